/* tokens.h - long rows of token numbers in host memory, and the files they are kept in.
 *
 * FORMATS of .bin files, little-endian:
 *   llm.c, 16 bits: 256 int32 (20240520, 1, count, 0 ...), then count uint16
 *   llm.c, 32 bits: 256 int32 (20240801, 7, count, 0 ...), then count uint32 (Llama 3's numbers)
 *   nanoGPT: nothing but uint16; a file whose first int32 is neither of the numbers above
 * Numbers stay as wide as they are in the file: a sample becomes int64 only in a batch.
 */
#ifndef DATA_TOKENS_H
#define DATA_TOKENS_H

#include "data/dataset.h"

struct token_row {
    void *data;      /* uint16 or uint32; freed by token_row_release */
    int width;       /* bytes of one: 2 or 4 */
    int64_t n;       /* tokens */
    int64_t largest; /* number; -1 when there is none, or not looked at */
};
void token_row_release(struct token_row *t);
uint32_t token_row_at(const struct token_row *t, int64_t i);

/* How many tokens the file has and how wide they are, by its header and size. */
enum status token_file_describe(const char *path, struct token_row *out, struct err *e) NODISCARD;
/* At most `most` tokens (0: all). */
enum status
token_file_read(const char *path, int64_t most, struct token_row *out, struct err *e) NODISCARD;
/* In llm.c's format of its width. */
enum status token_file_write(const char *path, const struct token_row *t, struct err *e) NODISCARD;

/* Blocks of seq_len + 1 tokens, one behind the other; what is left at the end is not used. Sample i
 * is a block without its last token, its target the block without its first: int64 [seq_len] both.
 */
void dataset_describe_tokens(
    const char *name, const struct token_row *t, int64_t seq_len, struct dataset_info *out);
/* The row is borrowed and must outlive the data set. ST_INVALID when there is no whole block. */
enum status dataset_from_tokens(
    const char *name, const struct token_row *t, int64_t seq_len, struct dataset **out,
    struct err *e) NODISCARD;

#endif
