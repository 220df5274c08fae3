/* tokenizer_int.h - the insides of a tokenizer, shared by its readers and its steps.
 *
 *     text -> added tokens cut out -> normalizer -> added tokens that are normalized ->
 * pre-tokenizer
 *          -> pieces -> byte-pair merges -> numbers
 */
#ifndef TEXT_TOKENIZER_INT_H
#define TEXT_TOKENIZER_INT_H

#include "base/json.h"
#include "text/pattern.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

enum normal_kind {
    NORMAL_PREPEND, /* text */
    NORMAL_REPLACE, /* pattern by text */
    NORMAL_NFC,
    NORMAL_NFD,
    NORMAL_NFKC,
    NORMAL_NFKD,
    NORMAL_LOWERCASE,
    NORMAL_STRIP
};
struct normal_step {
    enum normal_kind kind;
    struct pattern *pattern;
    char *text;
    bool left, right; /* strip */
};

enum prefix_scheme { PREFIX_NEVER, PREFIX_FIRST, PREFIX_ALWAYS };
enum pre_kind {
    PRE_SPLIT,        /* pattern, behavior, invert */
    PRE_PREFIX_SPACE, /* a space before pieces that begin with none */
    PRE_METASPACE     /* spaces become `text`, which is also put before a text by `scheme` */
};
struct pre_step {
    enum pre_kind kind;
    struct pattern *pattern;
    enum split_behavior behavior;
    bool invert;
    char *text;
    enum prefix_scheme scheme;
};

enum decode_kind {
    DECODE_REPLACE, /* from by text */
    DECODE_BYTE_FALLBACK,
    DECODE_FUSE,
    DECODE_STRIP, /* up to `start` and `stop` times `from` at the ends */
    DECODE_BYTE_LEVEL,
    DECODE_METASPACE /* `from` becomes a space; the first one goes where `strip_first` */
};
struct decode_step {
    enum decode_kind kind;
    char *from, *text;
    int64_t start, stop;
    bool strip_first;
};

struct added_token {
    char *text;
    size_t n;
    uint32_t id;
    bool special, normalized, single_word, left, right;
};
/* Added tokens that are looked for in one kind of text. */
struct added_set {
    struct vocab texts;    /* their numbers are indices into tokenizer.added */
    bool first[256];       /* bytes that one of them begins with */
    VEC(uint32_t) lengths; /* in bytes, longest first */
};

struct symbol {         /* a part of the piece that is being merged */
    uint32_t id, at, n; /* n 0: merged into the one before it */
    uint32_t before, after;
};
struct candidate {  /* a pair that may be merged: smallest rank first, then leftmost */
    uint64_t order; /* rank << 32 | symbol */
    uint32_t n, id; /* bytes of both together; what they become */
};

struct tokenizer {
    char name[256]; /* the file, for errors */
    uint64_t key;
    bool by_ranks; /* tiktoken: any two neighbours whose joined bytes are a token may merge */
    struct vocab vocab;
    struct merges merges;
    int64_t size;
    VEC(struct added_token) added;
    struct added_set raw, normalized; /* looked for before and after the normalizer */
    VEC(struct normal_step) normal;
    VEC(struct pre_step) pre;
    VEC(struct decode_step) decode;
    bool byte_level, ignore_merges, byte_fallback, fuse_unk;
    uint32_t unk;                 /* TOKEN_NONE: none */
    uint32_t byte_id[256];        /* ranks, byte-level: number of the byte; fallback: of "<0x0A>" */
    struct tokens prefix, suffix; /* the template */

    struct str text, other; /* work memory of an encoding */
    struct spans pieces, more;
    VEC(struct symbol) symbols;
    VEC(struct candidate) heap;
};

struct tokenizer *tokenizer_new(const char *name);
/* Adds one to the sets; `text` is copied. */
enum status
tokenizer_add_special(struct tokenizer *t, struct added_token token, struct err *e) NODISCARD;
/* After everything has been read: sorts the sets, finds the bytes' numbers, the size. */
enum status tokenizer_finish(struct tokenizer *t, struct err *e) NODISCARD;

enum status tokenizer_read_json(struct tokenizer *t, const json_t *doc, struct err *e) NODISCARD;
/* The normalizer, pre-tokenizer and decoder of a document. tokenizer_steps.c */
enum status tokenizer_read_steps(struct tokenizer *t, const json_t *doc, struct err *e) NODISCARD;
enum status
tokenizer_read_ranks(struct tokenizer *t, const char *bytes, size_t n, struct err *e) NODISCARD;

/* normalize.c: appends the text as the normalizer leaves it. */
enum status normalize_with(
    const struct tokenizer *t, const char *text, size_t n, struct str *out,
    struct err *e) NODISCARD;
/* pretokenize.c: cuts t->text into t->pieces; it may be written anew on the way. `first`: it stands
 * at the beginning of the whole text. */
enum status tokenizer_pieces(struct tokenizer *t, bool first, struct err *e) NODISCARD;
/* bpe.c: the numbers of one piece. */
enum status tokenizer_merge(
    struct tokenizer *t, const char *piece, size_t n, struct tokens *out, struct err *e) NODISCARD;

/* GPT-2's alphabet: the character that stands for a byte, and back (-1: none). */
uint32_t byte_level_char(unsigned char byte);
int byte_level_byte(uint32_t c);

#endif
