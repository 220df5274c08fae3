/* pool.h - the caching allocator behind `--memory dynamic`: storage value by value.
 *
 * Sizes, pools, search, splitting and merging follow PyTorch's CUDA caching allocator (its
 * documentation and observed behaviour), so that what it reserves is what PyTorch would reserve.
 *
 * SIZES
 *   request -> block     at least 512 bytes, rounded up to 512
 *   block -> pool        up to 1 MiB small, above it large
 *   block -> segment     small 2 MiB; large below 10 MiB 20 MiB; else rounded up to 2 MiB
 *   search               smallest free block of the pool that is large enough; ties: the older
 *                        segment, then the lower offset
 *   split                small: 512 bytes or more are left; large: more than 1 MiB is left
 *   free                 joins free neighbours in its segment; segments are kept
 *   no room              whole free segments go back to the source, then one more try, then ST_OOM
 *
 * INVARIANTS (mem_pool_check)
 * 1. The blocks of a segment cover it without gap or overlap; two neighbours are never both free.
 * 2. The free list holds exactly the free blocks, in order of pool, size, segment, offset.
 * 3. live_bytes, requested_bytes, reserved_bytes and the counts are the sums over the blocks;
 *    reserved_bytes is what this pool holds of its source.
 *
 * Not for several threads at once. Contents of a block are undefined.
 */
#ifndef MEM_POOL_H
#define MEM_POOL_H

#include "mem/source.h"

#include <stddef.h>

/* Who holds a block. The strings are borrowed and outlive it. */
struct mem_tag {
    const char *what; /* "activation", "workspace" */
    const char *node; /* id of the graph node, or NULL */
    int64_t step;
};

struct mem_pool_stats {
    int64_t requested_bytes, live_bytes, reserved_bytes; /* as asked, as blocks, as segments */
    int64_t requested_bytes_peak, live_bytes_peak, reserved_bytes_peak;
    int64_t blocks_n, segments_n; /* live blocks; segments */
    int64_t allocs_n, retries_n, ooms_n;
};

struct mem_pool;
struct mem_block;

/* `source` is borrowed and outlives the pool. */
struct mem_pool *mem_pool_new(struct mem_source *source);
/* Gives everything back; blocks still live are gone too. */
void mem_pool_free(struct mem_pool *p);

/* 0 bytes give a NULL block, whose data is NULL and which may be given back. ST_OOM: text with the
 * request, detail with the figures and the largest holders. The pool is as before after a failure,
 * except that cached segments went back to the source. */
enum status mem_pool_alloc(
    struct mem_pool *p, int64_t size_bytes, struct mem_tag tag, struct mem_block **out,
    struct err *e) NODISCARD;
void mem_pool_give(struct mem_pool *p, struct mem_block *b); /* NULL is harmless */

void *mem_block_data(const struct mem_block *b); /* aligned to 512 bytes */
int64_t mem_block_bytes(const struct mem_block *b);
const struct mem_tag *mem_block_tag(const struct mem_block *b);

/* Gives whole free segments back to the source. */
void mem_pool_trim(struct mem_pool *p);
const struct mem_pool_stats *mem_pool_stats(const struct mem_pool *p);
void mem_pool_reset_peaks(struct mem_pool *p);

/* The live bytes by holder (what and node), largest first; returns how many were written. */
struct mem_holder {
    const char *what, *node;
    int64_t bytes, blocks_n;
};
size_t mem_pool_holders(const struct mem_pool *p, struct mem_holder *out, size_t cap);

/* Aborts unless the invariants hold. Called after every change in verify builds. */
void mem_pool_check(const struct mem_pool *p);

#endif
