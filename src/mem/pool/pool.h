/* pool.h - the caching allocator: PyTorch's CUDA allocator, rule for rule, over any device.
 *
 * Behind `--memory dynamic`, simulated cards and replays. What it reserves, splits, merges, frees
 * and counts is what PyTorch's allocator would, given the same requests and the same addresses
 * from the device. Source: PyTorch's documentation ("CUDA semantics", "Memory management") and
 * observed behaviour; each rule stands with the code that follows it.
 *
 * SIZES
 *   request -> block     at least 512 bytes, rounded up to 512 (or by roundup_power2_divisions)
 *   block -> pool        up to 1 MiB small, above it large
 *   block -> segment     small 2 MiB; large below 10 MiB large_segment_size (20 MiB); else rounded
 *                        up to 2 MiB
 *   search               smallest free block of the pool and the stream that is large enough;
 *                        ties: the lowest address
 *   split                small pools and expandable segments: 512 bytes or more are left; large:
 *                        more than 1 MiB is left and the request is below max_split_size
 *   free                 joins free neighbours in its segment
 *   no room              callbacks; old segments by garbage collection; a new segment; pools for
 *                        the last resort; oversize segments back; everything back that is unused;
 *                        ST_OOM
 *
 * Addresses are numbers: the pool never touches the memory it manages. Its answers depend on the
 * calls and on the addresses the source gives, on nothing else.
 *
 * INVARIANTS (mem_pool_check)
 * 1. The blocks of a segment cover it without gap or overlap; two neighbours are never both free
 *    or both unmapped.
 * 2. The free sets hold exactly the free blocks, those of unmapped ranges exactly the unmapped.
 * 3. A free block in a large pool outside expandable segments has more than 1 MiB; one in a small
 *    pool at least 512 bytes and a multiple of 512.
 * 4. Every statistic is the sum over the blocks; reserved_bytes is what this pool holds of its
 *    sources. reserved >= active >= allocated.
 *
 * Threads: every function locks the pool; a block may be given back by any thread. Listeners run
 * under the lock and call nothing here; pressure callbacks run without it. Host memory for
 * bookkeeping does not fail (base/mem.h).
 */
#ifndef MEM_POOL_POOL_H
#define MEM_POOL_POOL_H

#include "mem/pool/conf.h"
#include "mem/pool/event.h"
#include "mem/pool/stats.h"
#include "mem/source.h"

#include <stddef.h>

struct mem_pool;
struct mem_block;

/* ---- A pool ---- */

struct mem_pool_options {
    const struct mem_pool_conf *conf; /* copied; NULL: mem_pool_conf_init */
    int device_id;                    /* for texts: "GPU 0" */
    /* Called under the lock for every event. NULL costs nothing. */
    void (*listen)(void *ctx, const struct mem_event *event);
    void *listen_ctx;
    /* A line of text for the log: a device that refused memory (PyTorch's wording). */
    void (*warn)(void *ctx, const char *text);
    void *warn_ctx;
};

/* `source` is borrowed and outlives the pool. */
struct mem_pool *mem_pool_new(struct mem_source *source); /* default options */
struct mem_pool *mem_pool_open(struct mem_source *source, const struct mem_pool_options *o);
/* Gives everything back; blocks still live are gone too. No events. */
void mem_pool_free(struct mem_pool *p);

void mem_pool_listen(
    struct mem_pool *p, void (*listen)(void *ctx, const struct mem_event *event), void *ctx);
/* A copy of the configuration, and a change at run time: of memory that is already cached only
 * the search differs. large_segment_bytes of a reserved expandable range stays. */
void mem_pool_conf_get(struct mem_pool *p, struct mem_pool_conf *out);
void mem_pool_conf_set(struct mem_pool *p, const struct mem_pool_conf *c);
/* set_per_process_memory_fraction: reserved bytes stay within fraction * total of the device. */
void mem_pool_fraction_set(struct mem_pool *p, double fraction);

/* ---- Blocks ---- */

/* On stream 0. 0 bytes give a NULL block, whose data is NULL and which may be given back. ST_OOM:
 * text with the request, detail with the figures and the largest holders. The pool is as before
 * after a failure, except that cached segments went back to the source. */
enum status mem_pool_alloc(
    struct mem_pool *p, int64_t size_bytes, struct mem_tag tag, struct mem_block **out,
    struct err *e) NODISCARD;
/* The same for a stream: the block belongs to it also while it is cached. */
enum status mem_pool_alloc_on(
    struct mem_pool *p, uint64_t stream, int64_t size_bytes, struct mem_tag tag,
    struct mem_block **out, struct err *e) NODISCARD;
/* NULL is harmless. Blocks with recorded uses on other streams are reusable when an event on each
 * of them is done and a later request looks. */
void mem_pool_give(struct mem_pool *p, struct mem_block *b);
/* The block is used by work on `stream` (record_stream). Its own stream is ignored. */
void mem_pool_use_on(struct mem_pool *p, struct mem_block *b, uint64_t stream);

/* A live block does not move; these need no lock. */
uint64_t mem_block_addr(const struct mem_block *b);
void *mem_block_data(const struct mem_block *b);    /* for memory of this process */
int64_t mem_block_bytes(const struct mem_block *b); /* with what was rounded up */
int64_t mem_block_requested_bytes(const struct mem_block *b);
uint64_t mem_block_stream(const struct mem_block *b);
const struct mem_tag *mem_block_tag(const struct mem_block *b);
/* The live block at this address, or NULL. Walks the blocks of its segment. */
struct mem_block *mem_pool_find(struct mem_pool *p, uint64_t addr);

/* empty_cache: waits for all events, then gives back whole free segments (large, then small,
 * each in the order of stream, size, address), unmaps whole free pages, and empties private pools
 * that nobody uses. Nothing while a capture is under way but those. */
void mem_pool_trim(struct mem_pool *p);

/* Called when a request finds no cached block, before a new segment: may give blocks back, and
 * returns whether it did. */
void mem_pool_on_pressure(struct mem_pool *p, bool (*free_some)(void *ctx), void *ctx);

/* ---- Private pools: captured graphs, user pools ---- */

struct mem_pool_private {
    bool use_on_oom;           /* the default pool may take its cached blocks before running out */
    bool no_split;             /* blocks are never split */
    struct mem_source *source; /* of its segments, which are then never expandable; NULL: the
                                  pool's. Borrowed. */
};

/* Makes the pool, or uses it once more (then `o` is ignored). Ids other than {0, 0}. */
void mem_pool_private_begin(
    struct mem_pool *p, struct mem_pool_id id, const struct mem_pool_private *o);
/* One use less. With none left, its memory goes back at the next flush. */
void mem_pool_private_end(struct mem_pool *p, struct mem_pool_id id);
int mem_pool_private_uses(struct mem_pool *p, struct mem_pool_id id); /* 0 also when unknown */

/* Requests that match go to the private pool `id` (which exists) until the route ends. The last
 * route that matches counts. */
struct mem_pool_route {
    struct mem_pool_id id;
    bool (*match)(void *ctx, uint64_t stream); /* NULL: every stream; called under the lock */
    void *ctx;
    /* A graph is being captured: events are not asked, blocks with uses on other streams stay
     * pending until no capture is under way, and a request is not tried again after a flush. */
    bool capture;
};
void mem_pool_route_begin(struct mem_pool *p, const struct mem_pool_route *r);
void mem_pool_route_end(struct mem_pool *p, struct mem_pool_id id); /* the last with this id */

/* ---- Figures ---- */

void mem_pool_stats(struct mem_pool *p, struct mem_pool_stats *out);
void mem_pool_reset_peaks(struct mem_pool *p);       /* peak = current */
void mem_pool_reset_accumulated(struct mem_pool *p); /* allocated, freed, and the scalars to 0 */

/* The live bytes by holder (what and node), largest first; returns how many were written. */
struct mem_holder {
    const char *what, *node;
    int64_t bytes, blocks_n;
};
size_t mem_pool_holders(struct mem_pool *p, struct mem_holder *out, size_t cap);

/* The numbers of PyTorch's message, at the moment of the last failure. */
struct mem_pool_oom {
    int64_t requested_bytes, rounded_bytes;
    int64_t tried_bytes;             /* "Tried to allocate": the segment's size */
    int64_t free_bytes, total_bytes; /* of the device, after the flush */
    int64_t allowed_bytes;           /* by the fraction; 0: no limit */
    int64_t allocated_bytes;         /* by blocks alone */
    int64_t private_bytes;           /* free blocks of private pools */
    int64_t reserved_bytes;
    uint64_t stream;
    struct mem_tag tag;
    bool absurd; /* 1 EiB or more was asked for; the other numbers are 0 */
};
/* False when there was none. */
bool mem_pool_last_oom(struct mem_pool *p, struct mem_pool_oom *out);
/* The sentence of today's PyTorch ("CUDA out of memory. Tried to allocate ..."), one line.
 * `own_bytes` of this process as the driver sees it, -1 unknown; `others` stands before it
 * ("Process 42 has 1.00 GiB memory in use. "), may be NULL. */
void mem_pool_oom_text(
    const struct mem_pool_oom *o, int device_id, int64_t own_bytes, const char *others,
    struct str *out);
/* PyTorch's format_size: "512 bytes", "1.00 KiB", "1024.00 MiB". Returns buf. */
const char *mem_size_text(int64_t bytes, char *buf, size_t cap);

/* ---- Snapshots: the memory map ---- */

enum mem_block_state { MEM_BLOCK_FREE, MEM_BLOCK_ALLOCATED, MEM_BLOCK_PENDING_FREE };

struct mem_block_info {
    uint64_t addr;
    int64_t size_bytes;
    int64_t requested_bytes; /* 0 of free ones */
    enum mem_block_state state;
    struct mem_tag tag; /* empty for free ones */
};

/* A segment, or a mapped range without gap of an expandable one. */
struct mem_segment_info {
    uint64_t addr;
    int64_t size_bytes, allocated_bytes, active_bytes;
    int64_t requested_bytes; /* of active blocks */
    uint64_t stream;
    struct mem_pool_id pool;
    bool small, expandable;
    uint64_t reserved_addr; /* expandable: the range it lies in */
    int64_t reserved_bytes;
    struct mem_tag tag; /* of the request that it was taken for */
    size_t first_block, blocks_n;
};

/* Both in order of address. Release with mem_pool_snapshot_release. */
struct mem_pool_snapshot {
    struct mem_segment_info *segments;
    struct mem_block_info *blocks;
    size_t segments_n, blocks_n;
    struct mem_pool_stats stats;
};
/* Of one moment. Tells the listener MEM_EVENT_SNAPSHOT. */
void mem_pool_snapshot(struct mem_pool *p, struct mem_pool_snapshot *out);
void mem_pool_snapshot_release(struct mem_pool_snapshot *s);

/* Fills a pool without segments with those of a snapshot, as if it had been there all the time:
 * for a replay that starts in the middle. Sums of the snapshot are ignored. The device is not
 * asked for the segments, they count as held. Pending blocks become allocated. Expandable ranges
 * of one pool and stream share one reservation: reserved_addr when it is set, else it starts at
 * the lowest. `handles` (blocks_n, may be NULL) gets the live blocks, NULL for free ones.
 * ST_INVALID for a layout that cannot be: the pool is empty again. ST_OOM above the budget. */
enum status mem_pool_load(
    struct mem_pool *p, const struct mem_pool_snapshot *s, struct mem_block **handles,
    struct err *e) NODISCARD;

/* ---- Rules alone ---- */

int64_t mem_pool_round_size(const struct mem_pool_conf *c, int64_t size_bytes);
int64_t mem_pool_segment_size(const struct mem_pool_conf *c, int64_t rounded_bytes);
bool mem_pool_is_small(int64_t rounded_bytes);

/* Aborts unless the invariants hold. Called after every change in verify builds. */
void mem_pool_check(struct mem_pool *p);

#endif
