/* segment.c - segments: taken from the device, given back one by one, by age, or all at once. */
#include "mem/pool/pool_int.h"

#include <stdio.h>

struct segment *segment_add(struct mem_pool *p, struct stream_set *set, struct segment s)
{
    struct segment *made = mem_alloc(sizeof *made);
    struct mem_block *b = block_new(p);
    *made = s;
    made->set = set;
    made->head = b;
    made->index = p->segments.n;
    vec_push(&p->segments, made);
    *b = (struct mem_block){
        .addr = s.addr,
        .size_bytes = s.size_bytes,
        .set = set,
        .segment = made,
        .state = s.expandable ? BLOCK_UNMAPPED : BLOCK_FREE,
        .expandable = s.expandable};
    return made;
}

void segment_remove(struct mem_pool *p, struct segment *s)
{
    for (struct mem_block *b = s->head, *next; b; b = next) {
        next = b->next;
        block_drop(p, b);
    }
    p->segments.data[s->index] = p->segments.data[--p->segments.n];
    p->segments.data[s->index]->index = s->index;
    mem_free(s);
}

/* Taking. */

static bool within_limit(const struct mem_pool *p, int64_t size_bytes)
{
    return !p->allowed_bytes || size_bytes <= p->allowed_bytes - p->reserved_bytes;
}

static void warn_refused(struct request *r, struct mem_source *source)
{
    char text[192];
    int64_t free_bytes, total_bytes;
    if (!r->p->warn)
        return;
    mem_source_info(source, &free_bytes, &total_bytes);
    (void)snprintf(
        text, sizeof text,
        "memory allocation failed with OOM on device %d while trying to allocate %lld bytes "
        "(free: %lld, total: %lld).",
        r->p->device_id, (long long)r->segment_bytes, (long long)free_bytes,
        (long long)total_bytes);
    r->p->warn(r->p->warn_ctx, text);
}

/* The address, or 0. With release_lock_on_cudamalloc others go on meanwhile, so the limit is
 * looked at again. */
static uint64_t take_from(struct request *r, struct mem_source *source)
{
    struct mem_pool *p = r->p;
    bool unlock = p->conf.release_lock_on_cudamalloc;
    if (unlock)
        pthread_mutex_unlock(&p->lock);
    uint64_t addr = mem_source_segment_take(source, r->segment_bytes);
    if (unlock)
        pthread_mutex_lock(&p->lock);
    if (addr && !within_limit(p, r->segment_bytes)) {
        mem_source_segment_give(source, addr, r->segment_bytes);
        return 0;
    }
    if (!addr)
        warn_refused(r, source);
    return addr;
}

static void count_taken(struct request *r)
{
    struct mem_pool *p = r->p;
    p->reserved_bytes += r->segment_bytes;
    p->num_device_alloc++;
    if (r->pool->owner)
        r->pool->owner->reserved_bytes += r->segment_bytes;
    stat_up(p, STAT_segment, r->pool->small, 1);
    stat_up(p, STAT_reserved_bytes, r->pool->small, r->segment_bytes);
}

struct mem_block *segment_take(struct request *r, bool retry)
{
    struct mem_pool *p = r->p;
    const struct private_pool *owner = r->pool->owner;
    struct mem_source *source = owner && owner->options.source ? owner->options.source : p->source;
    if (retry)
        p->num_alloc_retries++;
    if (!within_limit(p, r->segment_bytes))
        return NULL;
    if (p->conf.expandable_segments && !p->conf.no_caching && source == p->source &&
        mem_source_can_expand(source))
        return expand_take(r);
    uint64_t addr = take_from(r, source);
    if (!addr)
        return NULL;
    struct segment *s = segment_add(
        p, r->set,
        (struct segment){
            .addr = addr, .size_bytes = r->segment_bytes, .source = source, .tag = *r->tag});
    s->oversize = r->segment_bytes >= p->conf.max_split_size_bytes;
    if (s->oversize)
        counter_up(&p->oversize_segments, 1);
    count_taken(r);
    if (p->listen)
        tell(p, MEM_EVENT_SEGMENT_ALLOC, s->head, s->size_bytes, r->tag);
    return s->head;
}

/* Giving back. */

void segment_give(struct mem_pool *p, struct mem_block *b)
{
    struct segment *s = b->segment;
    struct block_pool *pool = b->set->pool;
    ASSERT(b->state == BLOCK_FREE && !block_is_split(b) && !b->expandable);
    p->num_device_free++;
    if (p->listen)
        tell(p, MEM_EVENT_SEGMENT_FREE, b, b->size_bytes, NULL);
    if (pool->owner)
        pool->owner->reserved_bytes -= b->size_bytes;
    p->reserved_bytes -= b->size_bytes;
    stat_down(p, STAT_segment, pool->small, 1);
    stat_down(p, STAT_reserved_bytes, pool->small, b->size_bytes);
    if (s->oversize)
        counter_down(&p->oversize_segments, 1);
    block_set_remove(b->set, b);
    mem_source_segment_give(s->source, s->addr, s->size_bytes);
    segment_remove(p, s);
}

/* Whole free segments first, then whole free pages: unmapping changes the sets. */
static void release_set(struct mem_pool *p, struct stream_set *set)
{
    size_t n = set->free_n;
    struct mem_block **list = block_set_list(set);
    for (size_t i = 0; i < n; i++)
        if (!list[i]->expandable && !block_is_split(list[i])) {
            segment_give(p, list[i]);
            list[i] = NULL;
        }
    for (size_t i = 0; i < n; i++)
        if (list[i] && list[i]->expandable)
            expand_unmap(p, list[i]);
    mem_free(list);
}

void segment_release_pool(struct mem_pool *p, struct block_pool *pool)
{
    for (size_t i = 0; i < pool->sets.n; i++)
        release_set(p, pool->sets.data[i]);
}

void segment_flush(struct mem_pool *p)
{
    if (p->captures_n == 0) {
        events_wait_all(p);
        segment_release_pool(p, &p->pools[KIND_LARGE]);
        segment_release_pool(p, &p->pools[KIND_SMALL]);
    }
    private_flush(p);
}

/* Oversize blocks make room for a request, the smallest that is enough or several from the largest
 * on. True when enough was given back. */
bool segment_flush_oversize(struct request *r)
{
    int64_t limit = r->p->conf.max_split_size_bytes, released = 0;
    if (limit == MEM_POOL_UNLIMITED)
        return false;
    int64_t key = r->size_bytes < limit ? limit : r->size_bytes;
    struct mem_block *b = block_set_at(r->set, key, 0);
    if (b && !b->expandable && !block_is_split(b)) {
        segment_give(r->p, b);
        return true;
    }
    b = block_set_before(r->set, key, 0);
    while (b && released < key && b->size_bytes >= limit) {
        struct mem_block *lower = block_set_before(r->set, b->size_bytes, b->addr);
        if (!b->expandable && !block_is_split(b)) {
            released += b->size_bytes;
            segment_give(r->p, b);
        }
        b = lower;
    }
    return released >= key;
}

/* Garbage collection: whole free segments of the large pool that were not used for long. */

struct garbage {
    struct mem_pool *p;
    int64_t age_sum, blocks_n;           /* of what could go */
    int64_t pass_age_sum, pass_blocks_n; /* the same when the pass began */
    int64_t freed_bytes;
};

static int64_t age(const struct mem_block *b)
{
    return b->set->pool->calls_n - b->born;
}

static void garbage_walk(struct garbage *g, void (*each)(struct garbage *g, struct mem_block *b))
{
    const struct block_pool *pool = &g->p->pools[KIND_LARGE];
    for (size_t i = 0; i < pool->sets.n; i++) {
        size_t n = pool->sets.data[i]->free_n;
        struct mem_block **list = block_set_list(pool->sets.data[i]);
        for (size_t k = 0; k < n; k++)
            if (!block_is_split(list[k]) && !list[k]->expandable)
                each(g, list[k]);
        mem_free(list);
    }
}

static void garbage_count(struct garbage *g, struct mem_block *b)
{
    g->age_sum += age(b);
    g->blocks_n++;
}

static void garbage_free(struct garbage *g, struct mem_block *b)
{
    if (age(b) * g->pass_blocks_n < g->pass_age_sum)
        return; /* younger than the average */
    g->freed_bytes += b->size_bytes;
    g->age_sum -= age(b);
    g->blocks_n--;
    segment_give(g->p, b);
}

void segment_collect_garbage(struct mem_pool *p)
{
    struct garbage g = {.p = p};
    int64_t threshold = (int64_t)(p->conf.garbage_collection_threshold * (double)p->allowed_bytes);
    int64_t target = p->reserved_bytes - threshold, freed_before = -1;
    if (target <= 0)
        return;
    garbage_walk(&g, garbage_count);
    /* A pass takes all that are old enough, so that this happens rarely. */
    while (g.freed_bytes < target && g.freed_bytes != freed_before && g.blocks_n) {
        freed_before = g.freed_bytes;
        g.pass_age_sum = g.age_sum;
        g.pass_blocks_n = g.blocks_n;
        garbage_walk(&g, garbage_free);
    }
}
