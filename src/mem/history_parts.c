/* history_parts.c - the memory map that a history writes: pools by their own word, arenas by what
 * is live in them. */
#include "mem/history_int.h"

#include <stdlib.h>

static int block_by_address(const void *a, const void *b)
{
    const struct mem_block_info *x = a, *y = b;
    return x->addr < y->addr ? -1 : x->addr > y->addr;
}

static struct mem_block_info *gap(struct mem_block_info *at, uint64_t from, uint64_t to)
{
    if (to <= from)
        return at;
    *at = (struct mem_block_info){.addr = from, .size_bytes = (int64_t)(to - from)};
    return at + 1;
}

/* An arena's blocks: what is live in it, in order, and the gaps between. */
static void map_arena(
    const struct mem_history *h, const struct history_segment *a, struct history_parts *out_parts)
{
    uint64_t end = a->addr + (uint64_t)a->size_bytes, at = a->addr;
    struct mem_block_info *live = mem_alloc((h->live_n + 1) * sizeof *live);
    size_t n = 0;
    for (size_t k = 0; k < h->live_cap; k++) {
        const struct history_block *b = &h->live[k];
        if (b->addr && b->device == a->device && b->addr >= a->addr && b->addr < end)
            live[n++] = (struct mem_block_info){
                .addr = b->addr,
                .size_bytes = b->size_bytes,
                .requested_bytes = b->size_bytes,
                .state = MEM_BLOCK_ALLOCATED};
    }
    if (n > 1)
        qsort(live, n, sizeof *live, block_by_address);
    struct history_part p = {.device = a->device};
    struct mem_block_info *blocks = mem_alloc((2 * n + 1) * sizeof *blocks), *out = blocks;
    int64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        out = gap(out, at, live[i].addr);
        *out++ = live[i];
        at = live[i].addr + (uint64_t)live[i].size_bytes;
        sum += live[i].size_bytes;
    }
    out = gap(out, at, end);
    p.s.blocks = blocks;
    p.s.blocks_n = (size_t)(out - blocks);
    p.s.segments = mem_alloc(sizeof *p.s.segments);
    p.s.segments_n = 1;
    p.s.segments[0] = (struct mem_segment_info){
        .addr = a->addr,
        .size_bytes = a->size_bytes,
        .allocated_bytes = sum,
        .active_bytes = sum,
        .requested_bytes = sum,
        .blocks_n = p.s.blocks_n};
    vec_push(&out_parts->list, p);
    mem_free(live);
}

void history_parts_take(struct mem_history *h, struct history_parts *out)
{
    *out = (struct history_parts){0};
    for (const struct history_watched *p = h->watched; p; p = p->next) {
        struct history_part part = {.device = p->device, .of_pool = true, .number = p->number};
        mem_pool_snapshot(p->pool, &part.s);
        vec_push(&out->list, part);
    }
    (void)pthread_mutex_lock(&h->lock);
    for (size_t i = 0; i < h->segments.n; i++)
        if (!h->segments.data[i].of_pool)
            map_arena(h, &h->segments.data[i], out);
    (void)pthread_mutex_unlock(&h->lock);
}

void history_parts_release(struct history_parts *p)
{
    for (size_t i = 0; i < p->list.n; i++) {
        struct history_part *part = &p->list.data[i];
        if (part->of_pool) {
            mem_pool_snapshot_release(&part->s);
        } else {
            mem_free(part->s.blocks);
            mem_free(part->s.segments);
        }
    }
    vec_release(&p->list);
}
