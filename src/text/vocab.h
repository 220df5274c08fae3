/* vocab.h - token texts and their numbers, and pairs of numbers and what they merge into.
 *
 * Both are open-addressing tables with a keyless mixed hash of all bytes; a file can make lookups
 * slow by choosing its own tokens, a text cannot.
 */
#ifndef TEXT_VOCAB_H
#define TEXT_VOCAB_H

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"

#include <stdint.h>

#define TOKEN_NONE UINT32_MAX
enum { TOKEN_ID_MAX = 1 << 22, TOKEN_BYTES_MAX = 1 << 16 };

struct vocab_entry {
    size_t at; /* in `bytes` */
    uint32_t length, id;
};
struct vocab {
    struct str bytes;
    VEC(struct vocab_entry) entries;
    VEC(uint32_t) by_id; /* index of the entry, TOKEN_NONE: no such token */
    uint32_t *slots;     /* index + 1 of an entry; 0: free */
    size_t slot_count;
    uint32_t longest; /* bytes */
};
void vocab_init(struct vocab *v);
void vocab_release(struct vocab *v);
/* ST_CORRUPT for a text or a number that is there already with another partner, or out of range;
 * the error names neither: the caller knows the file. */
enum status
vocab_add(struct vocab *v, const char *text, size_t n, uint64_t id, struct err *e) NODISCARD;
uint32_t vocab_find(const struct vocab *v, const char *text, size_t n); /* TOKEN_NONE: none */
/* The text of a number; NULL: no such token. */
const char *vocab_text(const struct vocab *v, uint32_t id, size_t *n);

struct merge {
    uint64_t pair; /* left << 32 | right; UINT64_MAX: free */
    uint32_t rank, id;
};
struct merges {
    struct merge *slots;
    size_t slot_count, n;
};
void merges_release(struct merges *m);
/* The last of two equal pairs counts. */
void merges_add(struct merges *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);
const struct merge *merges_find(const struct merges *m, uint32_t left, uint32_t right);

#endif
