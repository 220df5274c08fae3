/* alloc.c - the pool: requests in PyTorch's order of attempts, and what comes back. */
#include "mem/pool/pool_int.h"

#include <string.h>

/* Rules of size. */

static int64_t round_up(int64_t n, int64_t step)
{
    return (n + step - 1) / step * step;
}

static int log2_floor(int64_t n)
{
    return 63 - __builtin_clzll((unsigned long long)n);
}

/* Up to the next of `divisions` steps between two powers of two. */
static int64_t round_division(int64_t n, int64_t divisions)
{
    int64_t power = (int64_t)1 << log2_floor(n);
    if (power == n)
        return n;
    int64_t step = power >> log2_floor(divisions);
    return step ? round_up(n, step) : 2 * power;
}

int64_t mem_pool_round_size(const struct mem_pool_conf *c, int64_t size_bytes)
{
    if (size_bytes < BLOCK_MIN_BYTES)
        return BLOCK_MIN_BYTES;
    int i = log2_floor(size_bytes) - 20;
    i = i < 0 ? 0 : i >= MEM_POOL_DIVISIONS_N ? MEM_POOL_DIVISIONS_N - 1 : i;
    int64_t divisions = c->roundup_power2_divisions[i];
    if (divisions > 1 && size_bytes > BLOCK_MIN_BYTES * divisions)
        return round_division(size_bytes, divisions);
    return round_up(size_bytes, BLOCK_MIN_BYTES);
}

int64_t mem_pool_segment_size(const struct mem_pool_conf *c, int64_t rounded_bytes)
{
    if (rounded_bytes <= SMALL_MAX_BYTES)
        return SMALL_SEGMENT_BYTES;
    if (rounded_bytes < LARGE_OWN_BYTES)
        return c->large_segment_bytes;
    return round_up(rounded_bytes, LARGE_ROUND_BYTES);
}

bool mem_pool_is_small(int64_t rounded_bytes)
{
    return rounded_bytes <= SMALL_MAX_BYTES;
}

/* Handing out. */

static bool should_split(const struct request *r, const struct mem_block *b)
{
    int64_t rest = b->size_bytes - r->size_bytes;
    if (r->pool->owner && r->pool->owner->options.no_split)
        return false;
    if (r->pool->small || b->expandable)
        return rest >= BLOCK_MIN_BYTES;
    return r->size_bytes < r->p->conf.max_split_size_bytes && rest > SMALL_MAX_BYTES;
}

/* The head of `b` is wanted, its tail stays free. */
static void split(struct request *r, struct mem_block *b)
{
    struct mem_pool *p = r->p;
    bool was_split = block_is_split(b), small = r->pool->small;
    struct mem_block *rest = block_cut(p, b, r->size_bytes);
    block_to_free(rest);
    if (b->expandable)
        return;
    if (was_split) {
        stat_down(p, STAT_inactive_split_bytes, small, b->size_bytes);
    } else {
        stat_up(p, STAT_inactive_split_bytes, small, rest->size_bytes);
        stat_up(p, STAT_inactive_split, small, 1);
    }
}

void pool_count_live(struct mem_pool *p, struct mem_block *b)
{
    bool small = b->set->pool->small;
    stat_up(p, STAT_allocation, small, 1);
    stat_up(p, STAT_allocated_bytes, small, b->size_bytes);
    stat_up(p, STAT_active, small, 1);
    stat_up(p, STAT_active_bytes, small, b->size_bytes);
    stat_up(p, STAT_requested_bytes, small, b->requested_bytes);
    b->oversize = b->size_bytes >= p->conf.max_split_size_bytes;
    if (b->oversize)
        counter_up(&p->oversize_allocations, 1);
}

/* `b` is free and in no set. */
static void hand_out(struct request *r, struct mem_block *b)
{
    struct mem_pool *p = r->p;
    if (should_split(r, b)) {
        split(r, b);
    } else if (block_is_split(b) && !b->expandable) {
        stat_down(p, STAT_inactive_split_bytes, r->pool->small, b->size_bytes);
        stat_down(p, STAT_inactive_split, r->pool->small, 1);
    }
    b->state = BLOCK_LIVE;
    b->requested_bytes = r->requested_bytes;
    b->tag = r->tag;
    if (p->listen)
        tell(p, MEM_EVENT_ALLOC, b, b->requested_bytes, &b->tag);
    pool_count_live(p, b);
}

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
        b = pool_find_free(r);
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
    struct mem_block *b = pool_find_free(r);
    if (b)
        return b;
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
    struct request r = {.p = p, .requested_bytes = size_bytes, .tag = *tag};
    if (size_bytes >= REQUEST_MAX_BYTES)
        return oom_answer(&r, true, e);
    if (p->captures_n == 0 && (p->events_n || p->deferred.n))
        events_process(p);
    r.size_bytes = mem_pool_round_size(&p->conf, size_bytes);
    r.segment_bytes = mem_pool_segment_size(&p->conf, r.size_bytes);
    bool small = mem_pool_is_small(r.size_bytes);
    r.pool = p->routes.n ? private_route(p, small, stream) : &p->pools[small];
    r.set = block_pool_set(r.pool, stream);
    struct mem_block *b = obtain(&r);
    if (!b)
        return oom_answer(&r, false, e);
    hand_out(&r, b);
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

void pool_block_free(struct mem_pool *p, struct mem_block *b)
{
    bool small = b->set->pool->small, split_counts = !b->expandable, uncached = b->uncached;
    int64_t size = b->size_bytes, requested = b->requested_bytes, prev_bytes, next_bytes;
    if (p->listen)
        tell(p, MEM_EVENT_FREE_COMPLETED, b, requested, &b->tag);
    b->state = BLOCK_FREE;
    b = block_join(p, b, &prev_bytes, &next_bytes);
    block_to_free(b);
    if (split_counts) {
        /* Net of the merges: PyTorch counts one change, not three. */
        bool part = block_is_split(b);
        stat_change(
            p, STAT_inactive_split, small, (int64_t)part - (prev_bytes != 0) - (next_bytes != 0));
        stat_change(
            p, STAT_inactive_split_bytes, small,
            (part ? b->size_bytes : 0) - prev_bytes - next_bytes);
    }
    stat_down(p, STAT_active, small, 1);
    stat_down(p, STAT_active_bytes, small, size);
    stat_down(p, STAT_requested_bytes, small, requested);
    if (uncached)
        segment_give(p, b);
}

static void give_locked(struct mem_pool *p, struct mem_block *b)
{
    bool small = b->set->pool->small;
    ASSERT(b->state == BLOCK_LIVE);
    stat_down(p, STAT_allocation, small, 1);
    stat_down(p, STAT_allocated_bytes, small, b->size_bytes);
    if (p->listen)
        tell(p, MEM_EVENT_FREE_REQUESTED, b, b->requested_bytes, &b->tag);
    if (b->oversize)
        counter_down(&p->oversize_allocations, 1);
    if (!b->uses_n)
        pool_block_free(p, b);
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

/* A live block does not change, except by who owns it. */

uint64_t mem_block_addr(const struct mem_block *b)
{
    return b ? b->addr : 0;
}

void *mem_block_data(const struct mem_block *b)
{
    return b ? (void *)(uintptr_t)b->addr : NULL;
}

int64_t mem_block_bytes(const struct mem_block *b)
{
    return b ? b->size_bytes : 0;
}

int64_t mem_block_requested_bytes(const struct mem_block *b)
{
    return b ? b->requested_bytes : 0;
}

uint64_t mem_block_stream(const struct mem_block *b)
{
    return b ? b->set->stream : 0;
}

const struct mem_tag *mem_block_tag(const struct mem_block *b)
{
    static const struct mem_tag none;
    return b ? &b->tag : &none;
}

struct mem_block *mem_pool_find(struct mem_pool *p, uint64_t addr)
{
    struct mem_block *found = NULL;
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->segments.n && !found; i++) {
        const struct segment *s = p->segments.data[i];
        if (addr < s->addr || addr - s->addr >= (uint64_t)s->size_bytes)
            continue;
        for (struct mem_block *b = s->head; b && b->addr <= addr; b = b->next)
            if (b->addr == addr && b->state == BLOCK_LIVE)
                found = b;
    }
    pthread_mutex_unlock(&p->lock);
    return found;
}
