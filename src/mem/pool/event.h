/* event.h - what the pool tells a listener: PyTorch's trace events, for history and replay. */
#ifndef MEM_POOL_EVENT_H
#define MEM_POOL_EVENT_H

#include <stdint.h>

/* Who holds a block. The strings are borrowed and outlive it. */
struct mem_tag {
    const char *what; /* "activation", "workspace" */
    const char *node; /* id of the graph node, or NULL */
    int64_t step;
};

/* The default pool is {0, 0}; captures are {0, n}, user pools {n, 0}. */
struct mem_pool_id {
    uint64_t first, second;
};

enum mem_event_kind {
    MEM_EVENT_ALLOC,          /* addr, size asked for */
    MEM_EVENT_FREE_REQUESTED, /* addr, size asked for */
    MEM_EVENT_FREE_COMPLETED, /* addr, size asked for */
    MEM_EVENT_SEGMENT_ALLOC,  /* addr, size of the segment */
    MEM_EVENT_SEGMENT_FREE,
    MEM_EVENT_SEGMENT_MAP, /* addr, size of the range */
    MEM_EVENT_SEGMENT_UNMAP,
    MEM_EVENT_SNAPSHOT, /* size: active bytes */
    MEM_EVENT_OOM,      /* size: the rounded request; device_free_bytes instead of addr */
    MEM_EVENT_N
};

struct mem_event {
    enum mem_event_kind kind;
    uint64_t addr;
    int64_t size_bytes;
    int64_t device_free_bytes; /* MEM_EVENT_OOM */
    uint64_t stream;
    struct mem_pool_id pool;
    /* Of the block; of the request that made room for segment events and OOM; empty otherwise. */
    struct mem_tag tag;
};

const char *mem_event_name(enum mem_event_kind k); /* "free_requested", as in snapshots */

#endif
