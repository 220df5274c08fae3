/* pool_int.h - inside the caching allocator: blocks, the sets they wait in, and who may call what.
 *
 * STATES of a block, and the function that makes each move
 *   unmapped  --expand_take (expandable.c)-->  free  --unmap_block-->  unmapped
 *   free      --core_hand_out-->  live  --mem_pool_give-->  free, or with uses on other streams:
 *   pending   --core_block_free (when its last event is done)-->  free
 * Free blocks are in the free set of their pool and stream, unmapped ones in its unmapped tree.
 *
 * Every function here expects the pool's lock.
 */
#ifndef MEM_POOL_INT_H
#define MEM_POOL_INT_H

#include "base/mem.h"
#include "mem/pool/pool.h"

#include <pthread.h>

#define MIB ((int64_t)1 << 20)
#define BLOCK_MIN_BYTES ((int64_t)512)
#define SMALL_MAX_BYTES MIB           /* blocks up to this are of the small pool */
#define SMALL_SEGMENT_BYTES (2 * MIB) /* segments and pages of the small pool */
#define LARGE_OWN_BYTES (10 * MIB)    /* from here a block gets a segment of its own size */
#define LARGE_ROUND_BYTES (2 * MIB)
#define REQUEST_MAX_BYTES ((int64_t)1 << 60)

enum block_state { BLOCK_FREE, BLOCK_LIVE, BLOCK_PENDING, BLOCK_UNMAPPED };

/* The first 64 bytes are all that an allocation and its free read of a block. */
struct mem_block {
    uint64_t addr;
    int64_t size_bytes;
    int64_t requested_bytes;       /* of live and pending ones */
    struct mem_block *prev, *next; /* neighbours in the segment, by address */
    struct stream_set *set;        /* its pool and stream */
    struct segment *segment;
    /* In a tree: its priority. Live: other streams that use it. Pending: events not yet done. */
    uint32_t priority;
    uint8_t state;                       /* enum block_state */
    bool expandable, uncached, oversize; /* oversize: counted as such */

    struct mem_block *left, *right; /* in the tree of its set */
    int64_t born;                   /* calls of the pool when it became free: its age */
    uint64_t *uses;                 /* the streams, ascending; NULL: none */
    struct mem_tag tag;
};

/* Sizes up to 2 MiB of a small pool: one tree for each multiple of 512, and where they are. */
enum { BINS_N = 4096, BIN_WORDS = BINS_N / 64 };
struct bins {
    uint64_t words_used; /* bit i: words[i] is not 0 */
    uint64_t words[BIN_WORDS];
    struct mem_block *tree[BINS_N];
};

/* The free blocks of one pool and stream, in order of size, then address. */
struct stream_set {
    struct block_pool *pool;
    uint64_t stream;
    struct mem_block *loose;    /* came last, not sorted yet; or NULL */
    struct bins *bins;          /* of small pools */
    struct mem_block *tree;     /* what has no bin; by size, address */
    struct mem_block *unmapped; /* ranges of expandable segments; by address */
    size_t free_n;
};

/* Small or large blocks of the default pool or a private one. */
struct block_pool {
    bool small;
    struct private_pool *owner;    /* NULL: the default pool */
    VEC(struct stream_set *) sets; /* by stream, ascending */
    struct stream_set *last;       /* the one used last */
    int64_t calls_n;               /* searches, while garbage collection is on */
};

struct private_pool {
    struct mem_pool_id id;
    int uses, pins; /* pins: requests under way that dropped the lock */
    struct mem_pool_private options;
    struct block_pool small, large;
    int64_t reserved_bytes;
};

/* What the device gave in one piece, or an address range that is mapped page by page. */
struct segment {
    uint64_t addr;
    int64_t size_bytes;
    struct stream_set *set;
    struct mem_source *source;
    struct mem_block *head; /* lowest block */
    bool expandable, oversize;
    int64_t page_bytes; /* expandable */
    struct mem_tag tag; /* of the request it was taken for */
    size_t index;       /* in mem_pool.segments */
};

enum stat_kind { KIND_LARGE, KIND_SMALL };
enum stat_index {
#define ARRAY(name) STAT_##name,
#include "mem/pool/stats.def"
    STAT_N
};

/* freed = total - current: one number less to write per call. */
struct counter {
    int64_t current, total, peak;
    int64_t total_base, freed_base; /* at the last reset */
};
struct counters {
    struct counter kind[2];
    int64_t all_peak;
};

struct stream_event {
    uint64_t event;
    struct mem_block *block;
};
/* Events of one stream, oldest first. */
struct stream_queue {
    uint64_t stream;
    size_t first;
    VEC(struct stream_event) events;
};

struct pressure {
    bool (*free_some)(void *ctx);
    void *ctx;
};

struct mem_pool {
    pthread_mutex_t lock;
    struct mem_source *source;
    struct mem_pool_conf conf;
    bool rounding; /* some roundup_power2_divisions above 1 */
    int device_id;
    int64_t total_bytes;   /* of the device */
    int64_t allowed_bytes; /* by the fraction; 0: no limit */
    int64_t reserved_bytes;

    struct block_pool pools[2];          /* by enum stat_kind */
    VEC(struct private_pool *) privates; /* by id */
    VEC(struct mem_pool_route) routes;   /* the last comes first */
    int captures_n;
    VEC(struct segment *) segments;
    VEC(struct stream_queue) queues;        /* by stream, ascending */
    size_t events_n;                        /* in all queues */
    int64_t pending_n[2], pending_bytes[2]; /* by enum stat_kind */
    VEC(struct mem_block *) deferred;       /* pending until no capture is under way */

    struct counters stat[STAT_N];
    struct counter oversize_allocations, oversize_segments;
#define SCALAR(name) int64_t name;
#include "mem/pool/stats.def"
    struct mem_pool_oom oom;
    bool oom_set;

    void (*listen)(void *ctx, const struct mem_event *event);
    void *listen_ctx;
    void (*warn)(void *ctx, const char *text);
    void *warn_ctx;
    VEC(struct pressure) pressure;

    struct mem_block *spare; /* unused block structs, by `next` */
    VEC(void *) slabs;
};

/* What one call asks for. */
struct request {
    struct mem_pool *p;
    struct block_pool *pool;
    struct stream_set *set;
    int64_t requested_bytes, size_bytes;
    int64_t segment_bytes; /* once nothing cached was found */
    const struct mem_tag *tag;
};

static inline int64_t round_up(int64_t n, int64_t step)
{
    return (n + step - 1) / step * step;
}

/* core.c: sets of free blocks */
void block_set_insert(struct stream_set *s, struct mem_block *b);
void block_set_remove(struct stream_set *s, struct mem_block *b);
void block_set_sort(struct stream_set *s); /* nothing is loose */
/* The first at or after (size, addr); NULL. */
struct mem_block *block_set_at(const struct stream_set *s, int64_t size_bytes, uint64_t addr);
struct mem_block *block_set_after(const struct stream_set *s, const struct mem_block *b);
void block_unmapped_insert(struct stream_set *s, struct mem_block *b);
void block_unmapped_remove(struct stream_set *s, struct mem_block *b);
struct mem_block *block_unmapped_from(const struct stream_set *s, uint64_t addr);
/* core.c: making, cutting and joining blocks */
struct mem_block *block_new(struct mem_pool *p);
void block_drop(struct mem_pool *p, struct mem_block *b);
bool block_is_split(const struct mem_block *b); /* part of a segment */
/* Cuts `b` after size_bytes; returns the tail, in no set, of the same state. */
struct mem_block *block_cut(struct mem_pool *p, struct mem_block *b, int64_t size_bytes);
/* Joins `b`, in no set, with neighbours of its state; *prev_bytes and *next_bytes get their sizes
 * or 0. */
struct mem_block *
block_join(struct mem_pool *p, struct mem_block *b, int64_t *prev_bytes, int64_t *next_bytes);
void block_to_free(struct mem_block *b); /* into the free set, its age starts */
/* core.c: the search, and both ends of a block's life */
struct mem_block *core_find_free(struct request *r); /* taken out of its set */
void core_hand_out(struct request *r, struct mem_block *b);
void core_count_live(struct mem_pool *p, struct mem_block *b);
void core_block_free(struct mem_pool *p, struct mem_block *b); /* its free is complete */

/* block_set.c */
struct stream_set *block_pool_set(struct block_pool *pool, uint64_t stream);
void block_pool_release(struct block_pool *pool);
/* The last before (size, addr) among blocks without a bin; NULL. */
struct mem_block *block_set_before(struct stream_set *s, int64_t size_bytes, uint64_t addr);
/* All free blocks in order; the caller frees the array. */
struct mem_block **block_set_list(struct stream_set *s);

/* segment.c: to and from the device */
struct mem_block *segment_take(struct request *r, bool retry); /* a block of its own, or NULL */
void segment_give(struct mem_pool *p, struct mem_block *b);    /* `b` is free and whole */
struct segment *segment_add(struct mem_pool *p, struct stream_set *set, struct segment s);
void segment_remove(struct mem_pool *p, struct segment *s); /* with its blocks */
void segment_release_pool(struct mem_pool *p, struct block_pool *pool);
void segment_flush(struct mem_pool *p); /* release_cached_blocks */
bool segment_flush_oversize(struct request *r);
void segment_collect_garbage(struct mem_pool *p);

/* expandable.c */
struct mem_block *expand_take(struct request *r);
void expand_unmap(struct mem_pool *p, struct mem_block *b);
bool expand_reservation_empty(const struct segment *s);
int64_t expand_reserve_bytes(const struct mem_pool *p, int64_t page_bytes);

/* open.c */
void pool_verify(struct mem_pool *p);

/* events.c: blocks used on other streams */
void events_add(struct mem_pool *p, struct mem_block *b);
void events_process(struct mem_pool *p);
void events_wait_all(struct mem_pool *p);
void events_release(struct mem_pool *p);

/* private.c */
struct private_pool *
private_make(struct mem_pool *p, struct mem_pool_id id, const struct mem_pool_private *o);
struct block_pool *private_route(struct mem_pool *p, bool small, uint64_t stream);
void private_flush(struct mem_pool *p);
struct mem_block *private_last_resort(struct request *r);
struct mem_pool_id block_pool_id(const struct block_pool *pool);

/* stats.c */
void stats_fill(const struct mem_pool *p, struct mem_pool_stats *out);
void stats_note_active(struct mem_pool *p); /* after an increase while some are pending */

/* Every call counts, so these are here and not behind calls of their own. */

static inline void counter_up(struct counter *c, int64_t n)
{
    c->current += n;
    c->total += n;
    c->peak = c->current > c->peak ? c->current : c->peak;
}

static inline void counter_down(struct counter *c, int64_t n)
{
    ASSERT(c->current >= n);
    c->current -= n;
}

static inline void stat_up(struct mem_pool *p, enum stat_index i, bool small, int64_t n)
{
    struct counters *s = &p->stat[i];
    counter_up(&s->kind[small], n);
    int64_t all = s->kind[KIND_LARGE].current + s->kind[KIND_SMALL].current;
    s->all_peak = all > s->all_peak ? all : s->all_peak;
}

static inline void stat_down(struct mem_pool *p, enum stat_index i, bool small, int64_t n)
{
    counter_down(&p->stat[i].kind[small], n);
}

static inline void stat_change(struct mem_pool *p, enum stat_index i, bool small, int64_t n)
{
    if (n > 0)
        stat_up(p, i, small, n);
    else if (n < 0)
        stat_down(p, i, small, -n);
}

/* event.c */
void tell(
    struct mem_pool *p, enum mem_event_kind kind, const struct mem_block *b, int64_t size_bytes,
    const struct mem_tag *tag);

/* oom.c */
enum status oom_answer(struct request *r, bool absurd, struct err *e);
/* private bytes: free ones of private pools */
int64_t private_free_bytes(const struct mem_pool *p);
size_t holders_list(const struct mem_pool *p, struct mem_holder *out, size_t cap);

/* check.c */
void check_locked(struct mem_pool *p);

#endif
