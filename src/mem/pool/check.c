/* check.c - the invariants of pool.h, from the blocks alone. */
#include "mem/pool/pool_int.h"

#include <string.h>

/* What the blocks say, by kind. */
struct sums {
    int64_t stat[STAT_N][2];
    int64_t oversize_allocations, oversize_segments;
    int64_t pending_n;
};

static bool in_set(const struct mem_block *b)
{
    if (b->state == BLOCK_UNMAPPED)
        return block_unmapped_from(b->set, b->addr) == b;
    return block_set_at(b->set, b->size_bytes, b->addr) == b;
}

/* Invariants 1 to 3 for one block. */
static void check_block(const struct segment *s, const struct mem_block *b)
{
    const struct mem_block *prev = b->prev;
    bool waits = b->state == BLOCK_FREE || b->state == BLOCK_UNMAPPED;
    ASSERT(b->segment == s && b->set == s->set && b->size_bytes > 0);
    ASSERT(b->size_bytes % BLOCK_MIN_BYTES == 0 && b->expandable == s->expandable);
    ASSERT(!prev || (prev->next == b && prev->addr + (uint64_t)prev->size_bytes == b->addr));
    ASSERT(!prev || !waits || prev->state != b->state);
    ASSERT(!waits || in_set(b));
    ASSERT(waits || (b->requested_bytes > 0 && b->requested_bytes <= b->size_bytes));
    ASSERT(b->state != BLOCK_UNMAPPED || s->expandable);
    if (b->state == BLOCK_FREE && !b->set->pool->small && !s->expandable)
        ASSERT(b->size_bytes > SMALL_MAX_BYTES);
    if (s->expandable && b->state == BLOCK_UNMAPPED) {
        ASSERT((int64_t)(b->addr - s->addr) % s->page_bytes == 0);
        ASSERT(b->size_bytes % s->page_bytes == 0);
    }
}

static void add_block(struct sums *sum, const struct mem_block *b)
{
    bool small = b->set->pool->small;
    if (b->state == BLOCK_LIVE) {
        sum->stat[STAT_allocation][small]++;
        sum->stat[STAT_allocated_bytes][small] += b->size_bytes;
        sum->oversize_allocations += b->oversize;
    }
    if (b->state == BLOCK_LIVE || b->state == BLOCK_PENDING) {
        sum->stat[STAT_active][small]++;
        sum->stat[STAT_active_bytes][small] += b->size_bytes;
        sum->stat[STAT_requested_bytes][small] += b->requested_bytes;
    }
    if (b->state == BLOCK_FREE && block_is_split(b) && !b->expandable) {
        sum->stat[STAT_inactive_split][small]++;
        sum->stat[STAT_inactive_split_bytes][small] += b->size_bytes;
    }
    if (b->state != BLOCK_UNMAPPED)
        sum->stat[STAT_reserved_bytes][small] += b->size_bytes;
    sum->pending_n += b->state == BLOCK_PENDING;
}

static void check_segment(struct sums *sum, const struct segment *s)
{
    uint64_t end = s->addr;
    ASSERT(s->head->addr == s->addr && !s->head->prev);
    for (const struct mem_block *b = s->head; b; b = b->next) {
        check_block(s, b);
        add_block(sum, b);
        end = b->addr + (uint64_t)b->size_bytes;
    }
    ASSERT(end == s->addr + (uint64_t)s->size_bytes);
    if (s->expandable)
        return;
    sum->stat[STAT_segment][s->set->pool->small]++;
    sum->oversize_segments += s->oversize;
}

/* Invariant 2: nothing is in a set that is not one of the blocks. */
static size_t free_in_sets(const struct block_pool *pool)
{
    size_t n = 0;
    for (size_t i = 0; i < pool->sets.n; i++) {
        struct stream_set *s = pool->sets.data[i];
        struct mem_block **list = block_set_list(s);
        for (size_t k = 0; k < s->free_n; k++) {
            const struct mem_block *a = k ? list[k - 1] : NULL, *b = list[k];
            ASSERT(b->state == BLOCK_FREE && b->set == s);
            ASSERT(
                !a || a->size_bytes < b->size_bytes ||
                (a->size_bytes == b->size_bytes && a->addr < b->addr));
        }
        n += s->free_n;
        mem_free(list);
    }
    return n;
}

static size_t free_in_segments(const struct mem_pool *p)
{
    size_t n = 0;
    for (size_t i = 0; i < p->segments.n; i++)
        for (const struct mem_block *b = p->segments.data[i]->head; b; b = b->next)
            n += b->state == BLOCK_FREE;
    return n;
}

/* Invariant 4, of one record. */
static void check_record(const struct mem_stat s[MEM_STAT_OF_N], const int64_t sum[2])
{
    ASSERT(s[MEM_STAT_LARGE].current == sum[KIND_LARGE]);
    ASSERT(s[MEM_STAT_SMALL].current == sum[KIND_SMALL]);
    for (int i = 0; i < MEM_STAT_OF_N; i++)
        ASSERT(s[i].current <= s[i].peak && s[i].allocated >= 0 && s[i].freed >= 0);
    ASSERT(s[MEM_STAT_ALL].peak <= s[MEM_STAT_LARGE].peak + s[MEM_STAT_SMALL].peak);
}

static void check_stats(const struct mem_pool *p, const struct sums *sum)
{
    struct mem_pool_stats s;
    stats_fill(p, &s);
#define ARRAY(name) check_record(s.name, sum->stat[STAT_##name]);
#include "mem/pool/stats.def"
    for (int i = 0; i < MEM_STAT_OF_N; i++) {
        ASSERT(s.active_bytes[i].current >= s.allocated_bytes[i].current);
        ASSERT(s.reserved_bytes[i].current >= s.active_bytes[i].current);
    }
    ASSERT(s.reserved_bytes[MEM_STAT_ALL].current == p->reserved_bytes);
    ASSERT(sum->oversize_allocations == p->oversize_allocations.current);
    ASSERT(sum->oversize_segments == p->oversize_segments.current);
}

void check_locked(struct mem_pool *p)
{
    struct sums sum;
    memset(&sum, 0, sizeof sum);
    size_t free_n = free_in_sets(&p->pools[KIND_LARGE]) + free_in_sets(&p->pools[KIND_SMALL]);
    for (size_t i = 0; i < p->privates.n; i++)
        free_n +=
            free_in_sets(&p->privates.data[i]->large) + free_in_sets(&p->privates.data[i]->small);
    for (size_t i = 0; i < p->segments.n; i++) {
        ASSERT(p->segments.data[i]->index == i);
        check_segment(&sum, p->segments.data[i]);
    }
    ASSERT(free_n == free_in_segments(p));
    ASSERT((sum.pending_n > 0) == (p->events_n + p->deferred.n > 0));
    check_stats(p, &sum);
}

void mem_pool_check(struct mem_pool *p)
{
    pthread_mutex_lock(&p->lock);
    check_locked(p);
    pthread_mutex_unlock(&p->lock);
}
