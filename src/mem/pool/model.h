/* model.h - for tests: PyTorch's caching allocator once more, slowly and obviously.
 *
 * Written from the published rules alone; shares no code and no data structure with pool.c. Blocks
 * lie in one array in order of address, everything is found by walking it. The two are run side by
 * side on random operations (model_test.c): where they differ, one of them is wrong.
 *
 * The device is a rule, not memory: the n-th thing it hands out (segment or reservation) lies at
 * pool_model_address(n), and it hands out no more than its capacity.
 */
#ifndef MEM_POOL_MODEL_H
#define MEM_POOL_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#define MODEL_UNLIMITED INT64_MAX

struct model_config {
    int64_t capacity_bytes;  /* what the device can hand out */
    double fraction;         /* of the capacity; from 1 on there is no limit */
    int64_t max_split_bytes; /* MODEL_UNLIMITED */
    int64_t rounding_bytes;  /* max_non_split_rounding */
    int64_t large_segment_bytes;
    int64_t divisions[16]; /* roundup_power2_divisions; 0 is off */
    double gc_threshold;   /* 0 is off */
    bool expandable, no_caching;
    bool last_resort[4], no_split[4]; /* of private pools: use_on_oom, no_split */
    bool (*relieve)(void *ctx); /* asked when nothing cached serves; true: it gave something back */
    void *ctx;
};

enum model_family {
    MODEL_ALLOCATION,
    MODEL_ALLOCATED_BYTES,
    MODEL_REQUESTED_BYTES,
    MODEL_ACTIVE,
    MODEL_ACTIVE_BYTES,
    MODEL_SEGMENT,
    MODEL_RESERVED_BYTES,
    MODEL_INACTIVE_SPLIT,
    MODEL_INACTIVE_SPLIT_BYTES,
    MODEL_OVERSIZE_ALLOCATIONS, /* these two: only the first of the three pools */
    MODEL_OVERSIZE_SEGMENTS,
    MODEL_FAMILIES
};
enum { MODEL_ALL, MODEL_LARGE, MODEL_SMALL, MODEL_KINDS };
struct model_stat {
    int64_t current, peak, allocated, freed;
};
struct model_stats {
    struct model_stat of[MODEL_FAMILIES][MODEL_KINDS];
    int64_t retries, ooms, syncs, device_allocs, device_frees;
};

enum model_state { MODEL_FREE, MODEL_LIVE, MODEL_PENDING, MODEL_UNMAPPED };
enum { MODEL_STREAMS = 8, MODEL_POOLS = 4, MODEL_BLOCKS = 8192, MODEL_EVENTS = 4096 };

/* A segment, or the reservation of addresses behind an expandable one. */
struct model_segment {
    uint64_t address;
    int64_t size_bytes;
    int stream, pool;
    bool small, expandable, gone;
};
struct model_block {
    uint64_t address;
    int64_t size_bytes, requested_bytes;
    enum model_state state;
    int segment;   /* index */
    int64_t born;  /* the pool's search counter when it became free */
    unsigned uses; /* bit s: recorded on stream s */
    int events;    /* not complete yet */
};
struct model_event {
    uint64_t address; /* of the block that waits */
    int64_t number;   /* events of a stream complete in this order */
};
/* The numbers of the message of the last request that failed. */
struct model_oom {
    int64_t rounded, tried, free, allowed, allocated, in_private, reserved;
};
struct model_route {
    int pool;
    unsigned streams; /* bit s: allocations on stream s go to the pool */
    bool capture;
};

struct pool_model {
    struct model_config config;
    struct model_block block[MODEL_BLOCKS];
    int blocks_n;
    struct model_segment *segment;
    int segments_n, segments_cap;
    struct model_stats stats;
    struct model_oom oom;
    int64_t searches[MODEL_POOLS][2]; /* by pool, small */
    int uses[MODEL_POOLS];            /* of private pools; -1 for one that does not exist */
    struct model_route route[MODEL_POOLS];
    int routes_n;
    struct model_event event[MODEL_STREAMS][MODEL_EVENTS];
    int events_n[MODEL_STREAMS];
    int64_t recorded[MODEL_STREAMS], complete[MODEL_STREAMS]; /* events so far */
    uint64_t deferred[MODEL_EVENTS]; /* freed while capturing, with uses: their blocks */
    int deferred_n;
    int64_t handed_out;   /* segments and reservations so far: numbers of addresses */
    int64_t device_bytes; /* what the device holds for us */
};

uint64_t pool_model_address(int64_t n);
struct pool_model *pool_model_new(const struct model_config *config);
void pool_model_free(struct pool_model *m);

/* False: out of memory. A request of 0 bytes has address 0. */
bool pool_model_alloc(struct pool_model *m, int64_t size_bytes, int stream, uint64_t *address);
void pool_model_give(struct pool_model *m, uint64_t address);
void pool_model_record_stream(struct pool_model *m, uint64_t address, int stream);
void pool_model_empty_cache(struct pool_model *m);
void pool_model_reset_peaks(struct pool_model *m);
void pool_model_reset_accumulated(struct pool_model *m);

/* Pools 1 to MODEL_POOLS - 1 are private; begin and end count uses. A pool that is routed to is in
 * use, and there is at most one route to a pool. */
void pool_model_begin(struct pool_model *m, int pool);
void pool_model_end(struct pool_model *m, int pool);
void pool_model_route(struct pool_model *m, int pool, unsigned streams, bool capture);
void pool_model_unroute(struct pool_model *m, int pool);
bool pool_model_capturing(const struct pool_model *m);
bool pool_model_routed(const struct pool_model *m, int pool);

/* The block that starts at `address`, or NULL. */
const struct model_block *pool_model_find(const struct pool_model *m, uint64_t address);
/* The invariants and identities of the rules, counted anew. NULL, or what is wrong. */
const char *pool_model_wrong(const struct pool_model *m);

#endif
