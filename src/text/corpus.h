/* corpus.h - texts, one per row: read from files, mixed, and turned into one row of tokens.
 *
 * A file has a text on each line; blank lines are none. Gzip is undone. Rows borrow the bytes of
 * the files, which live as long as the corpus that read them.
 */
#ifndef TEXT_CORPUS_H
#define TEXT_CORPUS_H

#include "data/tokens.h"
#include "text/tokenizer.h"

struct corpus;
/* At most `most` rows (0: all). */
enum status
corpus_open(const char *path, int64_t most, struct corpus **out, struct err *e) NODISCARD;
/* The parts one behind the other, or row by row: the part of the next row is drawn by weight, until
 * the part that is drawn has none left. The order is a function of the weights and the seed. The
 * parts are borrowed and must outlive the mix. */
enum status corpus_mix(
    const struct corpus *const *parts, const double *weights, int n, bool interleave, uint64_t seed,
    struct corpus **out, struct err *e) NODISCARD;
void corpus_free(struct corpus *c);
int64_t corpus_rows(const struct corpus *c);
int64_t corpus_bytes(const struct corpus *c); /* of all rows */
uint64_t corpus_key(const struct corpus *c);  /* changes with the rows and their order */

struct tokenize_options {
    bool append_end;    /* the tokenizer's end token after each row */
    int64_t tokens_max; /* 0: all */
    int64_t bytes_max;  /* stops after the row that passes it; 0: all */
    bool (*progress)(int64_t done_bytes, int64_t bytes, void *ctx); /* false: stop; NULL: none */
    void *ctx;
};
/* *bytes: how many bytes of text the tokens are (NULL: not asked). Errors name file and line.
 * ST_INTERRUPTED when progress says so. */
enum status corpus_tokenize(
    const struct corpus *c, struct tokenizer *t, const struct tokenize_options *o,
    struct token_row *out, int64_t *bytes, struct err *e) NODISCARD;

#endif
