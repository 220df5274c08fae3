/* text_int.h - what a run keeps of texts over all its passes: tokenizers, files looked at, tokens.
 *
 * A plan must be about the set that will be read, so it needs the count of tokens. In this order:
 *   a .bin file says it in its size;
 *   a cache file (SNUG_HOME/cache/tokens/<key>.bin, llm.c's format) too; the key is made of the
 *     texts, the tokenizer's file and the options;
 *   else a run turns the texts into tokens while it plans, once, and keeps them for the execution;
 *   `plan` does so too up to TOKENIZE_BYTES of text; beyond, it counts a part and scales, and says
 * so.
 */
#ifndef RUNNER_TEXT_INT_H
#define RUNNER_TEXT_INT_H

#include "runner/run_int.h"

#include "text/corpus.h"

enum { TOKENIZE_BYTES = 32 << 20, SAMPLE_BYTES = 4 << 20 };

/* What is known of a file without keeping it. */
struct text_file {
    char path[1200];
    int64_t size, changed_ns, rows_max;
    uint64_t key; /* of its rows */
    int64_t rows, bytes;
};
struct text_tokens {
    uint64_t key;
    struct token_row row; /* data NULL: only counted */
    bool estimated;
};
struct text_tokenizer {
    char name[1200];
    struct tokenizer *t;
};
struct text_store {
    VEC(struct text_file *) files;
    VEC(struct text_tokens *) tokens;
    VEC(struct text_tokenizer *) tokenizers;
};

struct tokens_wanted {
    const struct graph_node *node;
    const struct flow_corpus *corpus;
    struct flow_tokenizer *tokenizer;
    int64_t seq_len, tokens_max;
    bool append_end, cache;
    const char *cache_dir; /* "": the default */
};
/* The tokens, or while planning at least their count. Owned by the store. */
enum status text_tokens_get(
    struct run *r, const struct tokens_wanted *w, const struct text_tokens **out,
    struct err *e) NODISCARD;
/* Rows and bytes of a corpus; reads its files once. */
enum status text_count(
    struct run *r, const struct flow_corpus *c, int64_t *rows, int64_t *bytes, uint64_t *key,
    struct err *e) NODISCARD;

#endif
