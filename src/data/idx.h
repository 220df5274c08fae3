/* idx.h - the IDX format of MNIST and its relatives.
 *
 * FORMAT: 2 zero bytes, type (8: unsigned bytes, the only one accepted), rank, then `rank` sizes
 * as big-endian 32-bit numbers, then the elements, last dimension fastest.
 * Source: http://yann.lecun.com/exdb/mnist/ (description of the files).
 */
#ifndef DATA_IDX_H
#define DATA_IDX_H

#include "data/source.h"

#include <stdint.h>

enum { IDX_RANK_MAX = 3 };

struct idx {
    int rank;
    uint32_t size[IDX_RANK_MAX];
    uint64_t bytes;
    uint8_t *data; /* mem_try_alloc; freed by idx_release */
};

/* Reads a whole IDX file of the given rank. Anything else, no items, a wrong length or a damaged
 * gzip is ST_CORRUPT with the file's name. Nothing is allocated before the size of the file has
 * been found to allow what the header promises. */
enum status idx_read(struct source *s, int rank, struct idx *out, struct err *e) NODISCARD;
/* The first of the sizes in the header: how many items there are. */
enum status idx_read_count(struct source *s, int rank, uint32_t *count, struct err *e) NODISCARD;
void idx_release(struct idx *x);

#endif
