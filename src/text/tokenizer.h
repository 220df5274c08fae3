/* tokenizer.h - text to token numbers and back, by the files that language models come with.
 *
 * Two kinds of file, told apart by their content:
 *   tokenizer.json of Hugging Face's tokenizers, model type BPE: byte-level (GPT-2, Llama 3, Qwen)
 *     and SentencePiece-like (Llama 2, Mistral), with normalizers, pre-tokenizers, added tokens,
 *     template and decoder; merges as strings or as pairs;
 *   rank files of tiktoken: a line "base64 rank" for each token. The file does not say how text is
 * cut nor which special tokens there are: encodings.def does, by the file's name. What a file asks
 * for and is not known here is ST_UNSUPPORTED and names it.
 *
 * Byte-pair encoding: Sennrich, Haddow, Birch: "Neural machine translation of rare words with
 * subword units", ACL 2016. A piece of n bytes costs O(n log n): pairs wait in a heap.
 * Text is UTF-8; other bytes are ST_INVALID. One thread uses a tokenizer at a time.
 */
#ifndef TEXT_TOKENIZER_H
#define TEXT_TOKENIZER_H

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"

#include <stdint.h>

enum { TOKENIZER_SIZE_MAX = 1 << 22 }; /* no file has larger numbers */

struct tokenizer;
struct tokens {
    uint32_t *data; /* release with vec_release */
    size_t n, cap;
};

enum status tokenizer_open(const char *path, struct tokenizer **out, struct err *e) NODISCARD;
/* A name of encodings.def ("gpt2"): SNUG_HOME/tokenizers/<name>.tiktoken. ST_NOT_FOUND says how it
 * gets there, ST_INVALID names the encodings there are. */
enum status
tokenizer_open_encoding(const char *name, struct tokenizer **out, struct err *e) NODISCARD;
/* From bytes; `name` stands in errors, and chooses the row of encodings.def for ranks. */
enum status tokenizer_from_bytes(
    const char *bytes, size_t n, const char *name, struct tokenizer **out, struct err *e) NODISCARD;
void tokenizer_free(struct tokenizer *t);

/* How many numbers there are of an encoding, without its file; 0: no such encoding. */
int64_t tokenizer_encoding_size(const char *name);
/* One more than the largest token number: rows of an embedding. */
int64_t tokenizer_size(const struct tokenizer *t);
/* Number of the token with exactly this text ("<|endoftext|>", or a token of the vocabulary); -1.
 */
int64_t tokenizer_find(const struct tokenizer *t, const char *text);
/* The token that ends a text (<|endoftext|>, </s>, <|end_of_text|>, ...); -1: the file has none. */
int64_t tokenizer_end(const struct tokenizer *t);
/* A number that changes with the file's bytes: caches are keyed by it. */
uint64_t tokenizer_key(const struct tokenizer *t);
const char *tokenizer_name(const struct tokenizer *t);

enum token_special {
    SPECIAL_BY_KIND, /* as the file's own library does: json finds them, ranks do not */
    SPECIAL_FOUND,   /* "<|endoftext|>" in the text is that token */
    SPECIAL_TEXT     /* it is text like any other */
};
struct encode_options {
    enum token_special special;
    bool templated; /* with what the file's template puts around a text (BOS) */
};
/* Appends to *out. `o` NULL: all defaults. */
enum status tokenizer_encode(
    struct tokenizer *t, const char *text, size_t n, const struct encode_options *o,
    struct tokens *out, struct err *e) NODISCARD;
/* Appends the bytes of the text (not UTF-8 where tokens cut a character: utf8_repair). A number
 * that no token has is ST_INVALID. */
enum status tokenizer_decode(
    const struct tokenizer *t, const uint32_t *ids, size_t n, bool skip_special, struct str *out,
    struct err *e) NODISCARD;

#endif
