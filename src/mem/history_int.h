/* history_int.h - what the recording and the writing of a history share; private to src/mem. */
#ifndef MEM_HISTORY_INT_H
#define MEM_HISTORY_INT_H

#include "mem/history.h"

#include "base/mem.h"

#include <pthread.h>

/* Things known by number: equal bytes have equal numbers, 0 is the empty one. */
struct intern {
    struct arena memory;
    VEC(struct intern_row {
        const void *data;
        uint32_t size;
    })
    rows;
    uint32_t *slots; /* numbers, by hash; 0: empty */
    size_t slots_n;
};
void intern_init(struct intern *t);
void intern_release(struct intern *t);
uint32_t intern_put(struct intern *t, const void *data, size_t size);

struct history_frame {
    uint32_t file, name, line; /* texts */
};
struct history_tag {
    uint32_t node, category; /* texts */
};

struct history_event {
    uint64_t addr; /* OOM: free bytes */
    int64_t size_bytes, time_us;
    uint32_t stack, tag; /* numbers */
    int32_t step;
    uint16_t stream, pool; /* of `streams`, `pools` */
    uint8_t kind, device;
};

/* A live block, or one whose free is not complete. */
struct history_block {
    uint64_t addr; /* 0: an empty place of the table */
    int64_t size_bytes;
    uint32_t stack, tag;
    int32_t step;
    uint8_t device;
};

struct history_segment {
    uint64_t addr;
    int64_t size_bytes;
    uint32_t stack;
    int device;
    bool of_pool; /* else an arena: what lies in it is known here alone */
};

struct history_watched {
    struct mem_history *history;
    struct mem_pool *pool;
    int device;
    uint64_t number; /* 0: the first; others are told apart by their pool id */
    struct history_watched *next;
};

/* Memory of one pool or arena, as a pool's snapshot. */
struct history_part {
    int device;
    bool of_pool;
    uint64_t number; /* of the pool */
    struct mem_pool_snapshot s;
};
struct history_parts {
    VEC(struct history_part) list;
};

struct history_node {
    const char *id, *type;
    int line;
};

struct mem_history {
    pthread_mutex_t lock;
    struct arena memory;
    struct intern texts, frames, stacks, tags, streams, pools;
    VEC(struct history_node) nodes;
    VEC(struct mem_history_device) devices;
    VEC(struct history_segment) segments;
    struct history_watched *watched;
    uint64_t watched_n; /* since the beginning */
    const char *file, *running;

    struct history_event *ring;
    size_t ring_cap, ring_max, first, n; /* events ring[(first + i) % ring_cap] */
    int64_t lost_n, ooms_n;
    struct history_block *live; /* by hash of the address */
    size_t live_cap, live_n;

    bool frozen;
    struct history_parts parts; /* frozen: the state that is written */

    uint32_t at; /* stack */
    int32_t step;
    int64_t now_us;
};

/* Pools and arenas as they are. Without the lock: pools tell the history of their snapshots. */
void history_parts_take(struct mem_history *h, struct history_parts *out);
void history_parts_release(struct history_parts *p);
/* The stack that a segment was taken under. */
uint32_t history_segment_stack(const struct mem_history *h, int device, uint64_t addr);
/* Each executor has an allocator of its own: all but the first appear as private pools. */
struct mem_pool_id history_pool_id(struct mem_pool_id id, uint64_t number);
const char *history_text(const struct mem_history *h, uint32_t id);
const struct history_block *history_live(const struct mem_history *h, int device, uint64_t addr);

#endif
