/* alloc.c - the pool: requests in PyTorch's order of attempts, and what comes back. */
#include "mem/pool/pool_int.h"

#include <string.h>

/* Requests. */

/* Each callback runs without the lock, for it gives blocks back. */
static bool relieve(struct mem_pool *p)
{
    bool any = false;
    for (size_t i = 0; i < p->pressure.n; i++) {
        struct pressure c = p->pressure.data[i];
        pthread_mutex_unlock(&p->lock);
        any = c.free_some(c.ctx) || any;
        pthread_mutex_lock(&p->lock);
    }
    return any;
}

/* Nothing is cached: the rest of the order of attempts. */
static struct mem_block *obtain_more(struct request *r)
{
    struct mem_pool *p = r->p;
    struct mem_block *b = NULL;
    if (p->pressure.n && relieve(p))
        b = core_find_free(r);
    if (!b && p->allowed_bytes && p->conf.garbage_collection_threshold > 0)
        segment_collect_garbage(p);
    b = b ? b : segment_take(r, false);
    b = b ? b : private_last_resort(r);
    if (!b && segment_flush_oversize(r))
        b = segment_take(r, false);
    if (!b && p->captures_n == 0) {
        segment_flush(p);
        b = segment_take(r, true);
    }
    return b;
}

/* Without the cache a request is a segment, and its end is the segment's. */
static struct mem_block *obtain_uncached(struct request *r)
{
    r->segment_bytes = r->size_bytes = round_up(r->requested_bytes, BLOCK_MIN_BYTES);
    struct mem_block *b = segment_take(r, false);
    if (b)
        b->uncached = true;
    return b;
}

static struct mem_block *obtain(struct request *r)
{
    if (r->p->conf.no_caching)
        return obtain_uncached(r);
    struct mem_block *b = core_find_free(r);
    if (b)
        return b;
    r->segment_bytes = mem_pool_segment_size(&r->p->conf, r->size_bytes);
    struct private_pool *owner = r->pool->owner;
    if (owner)
        owner->pins++; /* callbacks and the device may be called without the lock */
    b = obtain_more(r);
    if (owner)
        owner->pins--;
    return b;
}

static enum status alloc_locked(
    struct mem_pool *p, uint64_t stream, int64_t size_bytes, const struct mem_tag *tag,
    struct mem_block **out, struct err *e)
{
    struct request r = {.p = p, .requested_bytes = size_bytes, .tag = tag};
    if (size_bytes >= REQUEST_MAX_BYTES)
        return oom_answer(&r, true, e);
    if (p->captures_n == 0 && (p->events_n || p->deferred.n))
        events_process(p);
    r.size_bytes = p->rounding ? mem_pool_round_size(&p->conf, size_bytes)
                               : round_up(size_bytes, BLOCK_MIN_BYTES);
    bool small = r.size_bytes <= SMALL_MAX_BYTES;
    r.pool = p->routes.n ? private_route(p, small, stream) : &p->pools[small];
    r.set = block_pool_set(r.pool, stream);
    struct mem_block *b = obtain(&r);
    if (!b)
        return oom_answer(&r, false, e);
    core_hand_out(&r, b);
    *out = b;
    return ST_OK;
}

enum status mem_pool_alloc_on(
    struct mem_pool *p, uint64_t stream, int64_t size_bytes, struct mem_tag tag,
    struct mem_block **out, struct err *e)
{
    ASSERT(size_bytes >= 0);
    *out = NULL;
    if (size_bytes == 0)
        return ST_OK;
    pthread_mutex_lock(&p->lock);
    enum status st = alloc_locked(p, stream, size_bytes, &tag, out, e);
    pool_verify(p);
    pthread_mutex_unlock(&p->lock);
    return st;
}

enum status mem_pool_alloc(
    struct mem_pool *p, int64_t size_bytes, struct mem_tag tag, struct mem_block **out,
    struct err *e)
{
    return mem_pool_alloc_on(p, 0, size_bytes, tag, out, e);
}

/* Coming back. */

static void give_locked(struct mem_pool *p, struct mem_block *b)
{
    bool small = b->set->pool->small;
    ASSERT(b->state == BLOCK_LIVE);
    __builtin_prefetch(b->prev); /* whether they are free is asked below */
    __builtin_prefetch(b->next);
    stat_down(p, STAT_allocation, small, 1);
    stat_down(p, STAT_allocated_bytes, small, b->size_bytes);
    if (p->listen)
        tell(p, MEM_EVENT_FREE_REQUESTED, b, b->requested_bytes, &b->tag);
    if (b->oversize)
        counter_down(&p->oversize_allocations, 1);
    if (!b->priority)
        core_block_free(p, b);
    else
        events_add(p, b);
}

void mem_pool_give(struct mem_pool *p, struct mem_block *b)
{
    if (!b)
        return;
    pthread_mutex_lock(&p->lock);
    give_locked(p, b);
    pool_verify(p);
    pthread_mutex_unlock(&p->lock);
}

void mem_pool_trim(struct mem_pool *p)
{
    pthread_mutex_lock(&p->lock);
    segment_flush(p);
    pool_verify(p);
    pthread_mutex_unlock(&p->lock);
}
