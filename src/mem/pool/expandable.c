/* expandable.c - segments that grow: an address range per pool and stream, mapped page by page. */
#include "mem/pool/pool_int.h"

static bool usable(const struct mem_block *b)
{
    return b && (b->state == BLOCK_FREE || b->state == BLOCK_UNMAPPED);
}

/* From `b` on there are `size` bytes without a gap, mapped or not. */
static bool has_space(const struct mem_block *b, int64_t size)
{
    int64_t bytes = 0;
    for (; bytes < size && usable(b); b = b->next)
        bytes += b->size_bytes;
    return bytes >= size;
}

int64_t expand_reserve_bytes(const struct mem_pool *p, int64_t page_bytes)
{
    double part = p->conf.expandable_segments_reserve;
    int64_t most = p->total_bytes + p->total_bytes / 8, bytes = most;
    if (p->conf.expandable_segments_reserve_bytes)
        bytes = p->conf.expandable_segments_reserve_bytes;
    else if (part < 1.125)
        bytes = (int64_t)(part * (double)p->total_bytes);
    bytes = bytes < most ? bytes : most;
    return round_up(bytes < page_bytes ? page_bytes : bytes, page_bytes);
}

/* A new address range, nothing of it mapped. */
static struct mem_block *reserve(struct request *r)
{
    struct mem_pool *p = r->p;
    int64_t page = r->pool->small ? SMALL_SEGMENT_BYTES : p->conf.large_segment_bytes;
    int64_t size = expand_reserve_bytes(p, page);
    if (size < r->size_bytes)
        return NULL;
    uint64_t addr = mem_source_reserve(p->source, size);
    if (!addr)
        return NULL;
    struct segment *s = segment_add(
        p, r->set,
        (struct segment){
            .addr = addr,
            .size_bytes = size,
            .source = p->source,
            .expandable = true,
            .page_bytes = page,
            .tag = *r->tag});
    block_unmapped_insert(r->set, s->head);
    return s->head;
}

/* The lowest place with room for the request: an unmapped range, or the free block before one. */
static struct mem_block *find_place(struct request *r)
{
    struct mem_block *u = block_unmapped_from(r->set, 0);
    for (; u; u = block_unmapped_from(r->set, u->addr + 1)) {
        struct mem_block *b = usable(u->prev) ? u->prev : u;
        if (has_space(b, r->size_bytes))
            return b;
    }
    return reserve(r);
}

static void count_mapped(struct mem_pool *p, const struct stream_set *set, int64_t size_bytes)
{
    p->reserved_bytes += size_bytes;
    p->num_device_alloc++;
    if (set->pool->owner)
        set->pool->owner->reserved_bytes += size_bytes;
    stat_up(p, STAT_reserved_bytes, set->pool->small, size_bytes);
}

/* Maps the pages below the first `size` bytes of the unmapped block `b`, which becomes free and is
 * joined with free neighbours. The joined block, in the free set, or NULL. */
static struct mem_block *map_block(struct request *r, struct mem_block *b, int64_t size)
{
    struct mem_pool *p = r->p;
    int64_t prev_bytes, next_bytes, bytes = round_up(size, b->segment->page_bytes);
    uint64_t addr = b->addr;
    ASSERT(b->state == BLOCK_UNMAPPED && bytes <= b->size_bytes);
    if (!mem_source_map(b->segment->source, b->addr, bytes))
        return NULL;
    block_unmapped_remove(b->set, b);
    if (bytes < b->size_bytes)
        block_unmapped_insert(b->set, block_cut(p, b, bytes));
    b->state = BLOCK_FREE;
    b = block_join(p, b, &prev_bytes, &next_bytes);
    block_to_free(b);
    count_mapped(p, b->set, bytes);
    if (p->listen) {
        struct mem_block range = {.addr = addr, .set = b->set};
        tell(p, MEM_EVENT_SEGMENT_MAP, &range, bytes, r->tag);
    }
    return b;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

struct mem_block *expand_take(struct request *r)
{
    struct mem_block *b = find_place(r);
    if (b && b->state == BLOCK_UNMAPPED)
        b = map_block(r, b, least(b->size_bytes, r->size_bytes));
    /* What is free before the next unmapped range is joined with what is mapped behind it. */
    while (b && b->size_bytes < r->size_bytes)
        b = map_block(r, b->next, least(b->next->size_bytes, r->size_bytes - b->size_bytes));
    if (b)
        block_set_remove(r->set, b);
    return b;
}

bool expand_reservation_empty(const struct segment *s)
{
    return s->expandable && s->head->state == BLOCK_UNMAPPED && !block_is_split(s->head);
}

/* `b` is free and in its set: leaves only the whole pages of it, in no set; what lies before and
 * behind stays free. NULL when there is no whole page. */
static struct mem_block *cut_pages(struct mem_pool *p, struct mem_block *b)
{
    int64_t page = b->segment->page_bytes, start = (int64_t)(b->addr - b->segment->addr);
    int64_t from = round_up(start, page), to = (start + b->size_bytes) / page * page;
    if (from >= to)
        return NULL;
    block_set_remove(b->set, b);
    if (to < start + b->size_bytes)
        block_to_free(block_cut(p, b, to - start));
    if (from > start) {
        struct mem_block *pages = block_cut(p, b, from - start);
        block_to_free(b);
        b = pages;
    }
    return b;
}

void expand_unmap(struct mem_pool *p, struct mem_block *b)
{
    b = cut_pages(p, b);
    if (!b)
        return;
    struct segment *s = b->segment;
    struct stream_set *set = b->set;
    int64_t bytes = b->size_bytes, prev_bytes, next_bytes;
    struct mem_block range = {.addr = b->addr, .set = set};
    mem_source_unmap(s->source, b->addr, bytes);
    b->state = BLOCK_UNMAPPED;
    b = block_join(p, b, &prev_bytes, &next_bytes);
    block_unmapped_insert(set, b);
    p->reserved_bytes -= bytes;
    p->num_device_free++;
    if (set->pool->owner)
        set->pool->owner->reserved_bytes -= bytes;
    stat_down(p, STAT_reserved_bytes, set->pool->small, bytes);
    if (p->listen)
        tell(p, MEM_EVENT_SEGMENT_UNMAP, &range, bytes, NULL);
    if (expand_reservation_empty(s)) {
        block_unmapped_remove(set, b);
        mem_source_release(s->source, s->addr, s->size_bytes);
        segment_remove(p, s);
    }
}
