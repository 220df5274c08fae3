/* snapshot.c - the memory map of one moment, and a pool that starts from one. */
#include "mem/pool/pool_int.h"

#include <stdlib.h>
#include <string.h>

/* Out. */

static enum mem_block_state state_of(const struct mem_block *b)
{
    if (b->state == BLOCK_LIVE)
        return MEM_BLOCK_ALLOCATED;
    return b->state == BLOCK_PENDING ? MEM_BLOCK_PENDING_FREE : MEM_BLOCK_FREE;
}

struct writer {
    struct mem_pool_snapshot *out;
    size_t segments_cap, blocks_cap;
};

static void write_block(struct writer *w, struct mem_segment_info *s, const struct mem_block *b)
{
    bool active = b->state != BLOCK_FREE;
    struct mem_pool_snapshot *out = w->out;
    if (out->blocks_n == w->blocks_cap) {
        w->blocks_cap = w->blocks_cap ? 2 * w->blocks_cap : 64;
        out->blocks = mem_resize(out->blocks, w->blocks_cap * sizeof *out->blocks);
    }
    out->blocks[out->blocks_n++] = (struct mem_block_info){
        .addr = b->addr,
        .size_bytes = b->size_bytes,
        .requested_bytes = active ? b->requested_bytes : 0,
        .state = state_of(b),
        .tag = active ? b->tag : (struct mem_tag){0}};
    s->blocks_n++;
    s->size_bytes += b->size_bytes;
    s->allocated_bytes += b->state == BLOCK_LIVE ? b->size_bytes : 0;
    s->active_bytes += active ? b->size_bytes : 0;
    s->requested_bytes += active ? b->requested_bytes : 0;
}

static struct mem_segment_info *write_segment(struct writer *w, const struct mem_block *first)
{
    const struct segment *s = first->segment;
    struct mem_pool_snapshot *out = w->out;
    if (out->segments_n == w->segments_cap) {
        w->segments_cap = w->segments_cap ? 2 * w->segments_cap : 16;
        out->segments = mem_resize(out->segments, w->segments_cap * sizeof *out->segments);
    }
    struct mem_segment_info *info = &out->segments[out->segments_n++];
    *info = (struct mem_segment_info){
        .addr = first->addr,
        .stream = s->set->stream,
        .pool = block_pool_id(s->set->pool),
        .small = s->set->pool->small,
        .expandable = s->expandable,
        .reserved_addr = s->expandable ? s->addr : 0,
        .reserved_bytes = s->expandable ? s->size_bytes : 0,
        .tag = s->tag,
        .first_block = out->blocks_n};
    return info;
}

static int by_addr(const void *a, const void *b)
{
    const struct segment *x = *(struct segment *const *)a, *y = *(struct segment *const *)b;
    return (x->addr > y->addr) - (x->addr < y->addr);
}

static void walk(struct mem_pool *p, struct writer *w)
{
    struct segment **order = mem_alloc((p->segments.n + 1) * sizeof *order);
    for (size_t i = 0; i < p->segments.n; i++)
        order[i] = p->segments.data[i];
    qsort(order, p->segments.n, sizeof(struct segment *), by_addr);
    for (size_t i = 0; i < p->segments.n; i++) {
        struct mem_segment_info *range = NULL;
        for (const struct mem_block *b = order[i]->head; b; b = b->next) {
            if (b->state == BLOCK_UNMAPPED) {
                range = NULL; /* the next mapped block begins another */
                continue;
            }
            if (!range)
                range = write_segment(w, b);
            write_block(w, range, b);
        }
    }
    mem_free(order);
}

void mem_pool_snapshot(struct mem_pool *p, struct mem_pool_snapshot *out)
{
    struct writer w = {.out = out};
    *out = (struct mem_pool_snapshot){0};
    pthread_mutex_lock(&p->lock);
    walk(p, &w);
    stats_fill(p, &out->stats);
    if (p->listen) {
        struct mem_event event = {
            .kind = MEM_EVENT_SNAPSHOT,
            .size_bytes = out->stats.active_bytes[MEM_STAT_ALL].current};
        p->listen(p->listen_ctx, &event);
    }
    pthread_mutex_unlock(&p->lock);
}

void mem_pool_snapshot_release(struct mem_pool_snapshot *s)
{
    mem_free(s->segments);
    mem_free(s->blocks);
    *s = (struct mem_pool_snapshot){0};
}

/* In. */

static enum status bad(struct err *e, const struct mem_segment_info *s, const char *why)
{
    return err_set(
        e, ST_INVALID, "segment at 0x%llx cannot be: %s", (unsigned long long)s->addr, why);
}

/* Sizes and sums of one segment's blocks. */
static enum status
check_layout(const struct mem_pool_snapshot *in, const struct mem_segment_info *s, struct err *e)
{
    uint64_t at = s->addr;
    bool before_free = false;
    int64_t limit = (int64_t)1 << 50;
    if (s->size_bytes <= 0 || s->size_bytes > limit || s->addr > (uint64_t)1 << 63)
        return bad(e, s, "its size or address is out of range");
    if (!s->blocks_n || s->first_block > in->blocks_n ||
        s->blocks_n > in->blocks_n - s->first_block)
        return bad(e, s, "it has no blocks");
    for (size_t i = 0; i < s->blocks_n; i++) {
        const struct mem_block_info *b = &in->blocks[s->first_block + i];
        bool is_free = b->state == MEM_BLOCK_FREE;
        if (b->addr != at || b->size_bytes < BLOCK_MIN_BYTES || b->size_bytes > s->size_bytes)
            return bad(e, s, "its blocks leave a gap");
        if (b->size_bytes % BLOCK_MIN_BYTES)
            return bad(e, s, "a block is not a multiple of 512 bytes");
        if (!is_free && (b->requested_bytes <= 0 || b->requested_bytes > b->size_bytes))
            return bad(e, s, "a block is smaller than what was asked for");
        if (is_free && before_free)
            return bad(e, s, "two free blocks are neighbours");
        if (is_free && !s->small && !s->expandable && b->size_bytes <= SMALL_MAX_BYTES)
            return bad(e, s, "a large segment has a small free block");
        before_free = is_free;
        at += (uint64_t)b->size_bytes;
    }
    if (at != s->addr + (uint64_t)s->size_bytes)
        return bad(e, s, "its blocks do not fill it");
    return ST_OK;
}

static struct block_pool *load_pool(struct mem_pool *p, const struct mem_segment_info *s)
{
    if (!s->pool.first && !s->pool.second)
        return &p->pools[s->small];
    for (size_t i = 0; i < p->privates.n; i++) {
        struct private_pool *pool = p->privates.data[i];
        if (pool->id.first == s->pool.first && pool->id.second == s->pool.second)
            return s->small ? &pool->small : &pool->large;
    }
    return NULL;
}

/* The block after `b`, cut off its end, becomes what the snapshot says. */
static void load_block(
    struct mem_pool *p, struct mem_block *b, const struct mem_block_info *info,
    struct mem_block **handle)
{
    bool small = b->set->pool->small;
    if (info->state == MEM_BLOCK_FREE) {
        block_to_free(b);
        if (block_is_split(b) && !b->expandable) {
            stat_up(p, STAT_inactive_split, small, 1);
            stat_up(p, STAT_inactive_split_bytes, small, b->size_bytes);
        }
        return;
    }
    b->state = BLOCK_LIVE;
    b->priority = 0;
    b->requested_bytes = info->requested_bytes;
    b->tag = info->tag;
    core_count_live(p, b);
    if (handle)
        *handle = b;
}

/* The blocks of `s` fill `b` exactly; `b` is in no set. */
static void load_blocks(
    struct mem_pool *p, struct mem_block *b, const struct mem_pool_snapshot *in,
    const struct mem_segment_info *s, struct mem_block **handles)
{
    for (size_t i = 0; i < s->blocks_n; i++) {
        const struct mem_block_info *info = &in->blocks[s->first_block + i];
        struct mem_block *rest = i + 1 < s->blocks_n ? block_cut(p, b, info->size_bytes) : NULL;
        load_block(p, b, info, handles ? &handles[s->first_block + i] : NULL);
        b = rest;
    }
}

static void load_reserved(struct mem_pool *p, const struct stream_set *set, int64_t size_bytes)
{
    p->reserved_bytes += size_bytes;
    if (set->pool->owner)
        set->pool->owner->reserved_bytes += size_bytes;
    stat_up(p, STAT_reserved_bytes, set->pool->small, size_bytes);
    p->num_device_alloc++;
}

static void load_segment(
    struct mem_pool *p, const struct mem_pool_snapshot *in, const struct mem_segment_info *info,
    struct mem_block **handles)
{
    struct stream_set *set = block_pool_set(load_pool(p, info), info->stream);
    struct segment *s = segment_add(
        p, set,
        (struct segment){
            .addr = info->addr,
            .size_bytes = info->size_bytes,
            .source = p->source,
            .tag = info->tag,
            .oversize = info->size_bytes >= p->conf.max_split_size_bytes});
    stat_up(p, STAT_segment, info->small, 1);
    load_reserved(p, set, info->size_bytes);
    if (s->oversize)
        counter_up(&p->oversize_segments, 1);
    load_blocks(p, s->head, in, info, handles);
}

/* The reservation that a mapped range lies in, made when it is the first of its pool and stream;
 * NULL when the range is outside. */
static struct segment *
load_reservation(struct mem_pool *p, struct stream_set *set, const struct mem_segment_info *info)
{
    uint64_t base = info->reserved_addr ? info->reserved_addr : info->addr;
    for (size_t i = 0; i < p->segments.n; i++) {
        struct segment *s = p->segments.data[i];
        if (s->set != set || !s->expandable || info->addr < s->addr)
            continue;
        if (info->addr - s->addr + (uint64_t)info->size_bytes <= (uint64_t)s->size_bytes)
            return s;
    }
    int64_t page = info->small ? SMALL_SEGMENT_BYTES : p->conf.large_segment_bytes;
    int64_t size = info->reserved_bytes ? info->reserved_bytes : expand_reserve_bytes(p, page);
    if (size % page || info->addr < base ||
        info->addr - base + (uint64_t)info->size_bytes > (uint64_t)size)
        return NULL;
    struct segment *s = segment_add(
        p, set,
        (struct segment){
            .addr = base,
            .size_bytes = size,
            .source = p->source,
            .expandable = true,
            .page_bytes = page,
            .tag = info->tag});
    block_unmapped_insert(set, s->head);
    return s;
}

static enum status load_range(
    struct mem_pool *p, const struct mem_pool_snapshot *in, const struct mem_segment_info *info,
    struct mem_block **handles, struct err *e)
{
    struct stream_set *set = block_pool_set(load_pool(p, info), info->stream);
    struct segment *s = load_reservation(p, set, info);
    if (!s)
        return bad(e, info, "it does not fit its reservation");
    if ((int64_t)(info->addr - s->addr) % s->page_bytes || info->size_bytes % s->page_bytes)
        return bad(e, info, "it is not made of whole pages");
    struct mem_block *b = s->head;
    while (b && !(b->state == BLOCK_UNMAPPED && info->addr - b->addr < (uint64_t)b->size_bytes))
        b = b->next;
    int64_t room = b ? b->size_bytes - (int64_t)(info->addr - b->addr) : 0;
    if (room < info->size_bytes)
        return bad(e, info, "it overlaps another");
    block_unmapped_remove(set, b);
    if (info->addr > b->addr) {
        struct mem_block *at = block_cut(p, b, (int64_t)(info->addr - b->addr));
        block_unmapped_insert(set, b);
        b = at;
    }
    if (room > info->size_bytes)
        block_unmapped_insert(set, block_cut(p, b, info->size_bytes));
    load_reserved(p, set, info->size_bytes);
    load_blocks(p, b, in, info, handles);
    return ST_OK;
}

/* Back to a pool without segments; nothing of it came from the device. */
static void unload(struct mem_pool *p)
{
    while (p->segments.n)
        segment_remove(p, p->segments.data[p->segments.n - 1]);
    for (size_t i = 0; i < p->privates.n; i++) {
        block_pool_release(&p->privates.data[i]->small);
        block_pool_release(&p->privates.data[i]->large);
        p->privates.data[i]->reserved_bytes = 0;
    }
    block_pool_release(&p->pools[KIND_LARGE]);
    block_pool_release(&p->pools[KIND_SMALL]);
    memset(p->stat, 0, sizeof p->stat);
    p->oversize_allocations = p->oversize_segments = (struct counter){0};
    p->reserved_bytes = p->num_device_alloc = 0;
}

static int by_range(const void *a, const void *b)
{
    const struct mem_segment_info *x = *(const struct mem_segment_info *const *)a;
    const struct mem_segment_info *y = *(const struct mem_segment_info *const *)b;
    return (x->addr > y->addr) - (x->addr < y->addr);
}

/* In order of address, each above the one before. */
static enum status
sorted(const struct mem_pool_snapshot *in, const struct mem_segment_info **order, struct err *e)
{
    for (size_t i = 0; i < in->segments_n; i++) {
        order[i] = &in->segments[i];
        TRY(check_layout(in, order[i], e));
    }
    qsort(order, in->segments_n, sizeof *order, by_range);
    for (size_t i = 1; i < in->segments_n; i++)
        if (order[i - 1]->addr + (uint64_t)order[i - 1]->size_bytes > order[i]->addr)
            return bad(e, order[i], "it overlaps another");
    return ST_OK;
}

/* Private pools of the snapshot that the pool does not know have no user. */
static void load_privates(struct mem_pool *p, const struct mem_pool_snapshot *in)
{
    for (size_t i = 0; i < in->segments_n; i++)
        if (!load_pool(p, &in->segments[i]))
            private_make(p, in->segments[i].pool, NULL);
}

static enum status load_all(
    struct mem_pool *p, const struct mem_pool_snapshot *in, struct mem_block **handles,
    struct err *e)
{
    const struct mem_segment_info **order = mem_alloc((in->segments_n + 1) * sizeof *order);
    int64_t bytes = 0;
    enum status st;
    TRY_OUT(sorted(in, order, e));
    load_privates(p, in);
    for (size_t i = 0; i < in->segments_n && st == ST_OK; i++) {
        bytes += order[i]->size_bytes;
        if (order[i]->expandable)
            st = load_range(p, in, order[i], handles, e);
        else
            load_segment(p, in, order[i], handles);
    }
    if (st == ST_OK && bytes && !mem_source_adopt(p->source, bytes))
        st = err_set(
            e, ST_OOM, "the snapshot's %lld bytes do not fit device \"%s\"", (long long)bytes,
            p->source->device);
    if (st != ST_OK)
        unload(p);
out:
    mem_free(order);
    return st;
}

enum status mem_pool_load(
    struct mem_pool *p, const struct mem_pool_snapshot *s, struct mem_block **handles,
    struct err *e)
{
    pthread_mutex_lock(&p->lock);
    ASSERT(p->segments.n == 0);
    if (handles && s->blocks_n)
        memset(handles, 0, s->blocks_n * sizeof *handles);
    enum status st = load_all(p, s, handles, e);
    if (st != ST_OK && handles && s->blocks_n)
        memset(handles, 0, s->blocks_n * sizeof *handles);
    pool_verify(p);
    pthread_mutex_unlock(&p->lock);
    return st;
}
