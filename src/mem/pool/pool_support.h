/* pool_support.h - what the tests of the allocator share: a pool over a device of numbers. */
#ifndef MEM_POOL_SUPPORT_H
#define MEM_POOL_SUPPORT_H

#include "mem/pool/pool.h"
#include "mem/virtual.h"

#define KIB ((int64_t)1 << 10)
#define MIB ((int64_t)1 << 20)
#define GIB ((int64_t)1 << 30)

enum { LOG_MAX = 4096 };

struct world {
    struct mem_virtual *device;
    struct mem_source *source;
    struct mem_pool *pool;
    struct mem_event log[LOG_MAX]; /* events, the first LOG_MAX */
    size_t log_n;
};

/* `conf` as in the environment, or NULL. Events are listened to. */
void world_begin(struct world *w, const struct mem_virtual_options *o, const char *conf);
void world_end(struct world *w); /* nothing is held afterwards */

/* Each is followed by mem_pool_check. */
struct mem_block *world_get(struct world *w, int64_t size_bytes);
struct mem_block *world_get_on(struct world *w, uint64_t stream, int64_t size_bytes);
struct mem_block *world_try(struct world *w, int64_t size_bytes); /* NULL: ST_OOM */
void world_give(struct world *w, struct mem_block *b);

struct mem_pool_stats world_stats(struct world *w);
int64_t world_reserved(struct world *w);
/* Forgets the events so far. */
void world_mark(struct world *w);
/* "segment_alloc 20971520, alloc 1048577": what happened since, as text; valid until the next. */
const char *world_events(struct world *w);

#endif
