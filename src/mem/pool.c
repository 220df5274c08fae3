/* pool.c - the caching allocator: blocks cut from cached segments. */
#include "mem/pool.h"

#include "base/mem.h"
#include "base/str.h"

#include <stdlib.h>
#include <string.h>

#define MIB ((int64_t)1 << 20)
#define BLOCK_MIN_BYTES ((int64_t)512)
#define SMALL_MAX_BYTES MIB           /* blocks up to this are of the small pool */
#define SMALL_SEGMENT_BYTES (2 * MIB) /* every segment of the small pool */
#define LARGE_SEGMENT_BYTES (20 * MIB)
#define LARGE_OWN_BYTES (10 * MIB) /* from here a block gets a segment of its own size */
#define LARGE_ROUND_BYTES (2 * MIB)
#define REQUEST_MAX_BYTES ((int64_t)1 << 60)

struct segment {
    char *base;
    int64_t size_bytes, serial; /* serial: age; addresses would make runs differ */
    bool small;
    struct mem_block *head; /* lowest block */
    size_t index;           /* in pool->segments */
};

struct mem_block {
    struct segment *segment;
    int64_t offset, size_bytes, requested_bytes;
    struct mem_block *prev, *next; /* neighbours in the segment, by offset */
    bool live;
    struct mem_tag tag;
};

struct mem_pool {
    struct mem_source *source;
    VEC(struct segment *) segments;
    VEC(struct mem_block *) free; /* sorted by before() */
    struct mem_pool_stats stats;
    int64_t serial_next;
};

static int64_t round_up(int64_t n, int64_t step)
{
    return (n + step - 1) / step * step;
}

static int64_t block_size(int64_t requested)
{
    return requested < BLOCK_MIN_BYTES ? BLOCK_MIN_BYTES : round_up(requested, BLOCK_MIN_BYTES);
}

static int64_t segment_size(int64_t block)
{
    if (block <= SMALL_MAX_BYTES)
        return SMALL_SEGMENT_BYTES;
    return block < LARGE_OWN_BYTES ? LARGE_SEGMENT_BYTES : round_up(block, LARGE_ROUND_BYTES);
}

/* The sorted list of free blocks. */

static int order(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

static int before(const struct mem_block *a, const struct mem_block *b)
{
    int c = order(a->segment->small, b->segment->small);
    c = c ? c : order(a->size_bytes, b->size_bytes);
    c = c ? c : order(a->segment->serial, b->segment->serial);
    return c ? c : order(a->offset, b->offset);
}

/* Index of the first free block that does not come before `b`. */
static size_t free_place(const struct mem_pool *p, const struct mem_block *b)
{
    size_t lo = 0, hi = p->free.n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (before(p->free.data[mid], b) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void free_insert(struct mem_pool *p, struct mem_block *b)
{
    size_t at = free_place(p, b);
    vec_push(&p->free, b);
    memmove(p->free.data + at + 1, p->free.data + at, (p->free.n - 1 - at) * sizeof b);
    p->free.data[at] = b;
}

static void free_remove(struct mem_pool *p, struct mem_block *b)
{
    size_t at = free_place(p, b);
    ASSERT(at < p->free.n && p->free.data[at] == b);
    p->free.n--;
    memmove(p->free.data + at, p->free.data + at + 1, (p->free.n - at) * sizeof b);
}

/* The smallest free block of the pool that holds `size`. */
static struct mem_block *find_free(const struct mem_pool *p, int64_t size)
{
    bool small = size <= SMALL_MAX_BYTES;
    struct segment s = {.small = small, .serial = -1};
    struct mem_block key = {.segment = &s, .size_bytes = size};
    size_t at = free_place(p, &key);
    if (at == p->free.n || p->free.data[at]->segment->small != small)
        return NULL;
    return p->free.data[at];
}

/* Segments. */

static enum status segment_take(struct mem_pool *p, int64_t block, struct err *e)
{
    void *base;
    int64_t size = segment_size(block);
    TRY(mem_source_take(p->source, size, &base, e));
    struct segment *s = mem_alloc(sizeof *s);
    struct mem_block *b = mem_alloc(sizeof *b);
    *s = (struct segment){
        .base = base,
        .size_bytes = size,
        .serial = p->serial_next++,
        .small = block <= SMALL_MAX_BYTES,
        .head = b,
        .index = p->segments.n};
    *b = (struct mem_block){.segment = s, .size_bytes = size};
    vec_push(&p->segments, s);
    free_insert(p, b);
    p->stats.segments_n++;
    p->stats.reserved_bytes += size;
    if (p->stats.reserved_bytes > p->stats.reserved_bytes_peak)
        p->stats.reserved_bytes_peak = p->stats.reserved_bytes;
    return ST_OK;
}

/* Drops a segment with its blocks, live or not; the free list is the caller's affair. */
static void segment_give(struct mem_pool *p, struct segment *s)
{
    for (struct mem_block *b = s->head, *next; b; b = next) {
        next = b->next;
        mem_free(b);
    }
    mem_source_give(p->source, s->base, s->size_bytes);
    p->stats.segments_n--;
    p->stats.reserved_bytes -= s->size_bytes;
    p->segments.data[s->index] = p->segments.data[--p->segments.n];
    p->segments.data[s->index]->index = s->index;
    mem_free(s);
}

void mem_pool_trim(struct mem_pool *p)
{
    for (size_t i = p->segments.n; i-- > 0;) {
        struct segment *s = p->segments.data[i];
        if (s->head->live || s->head->next)
            continue;
        free_remove(p, s->head);
        segment_give(p, s);
    }
}

struct mem_pool *mem_pool_new(struct mem_source *source)
{
    struct mem_pool *p = mem_alloc(sizeof *p);
    p->source = source;
    return p;
}

void mem_pool_free(struct mem_pool *p)
{
    if (!p)
        return;
    while (p->segments.n)
        segment_give(p, p->segments.data[p->segments.n - 1]);
    vec_release(&p->segments);
    vec_release(&p->free);
    mem_free(p);
}

/* Holders and errors. */

static int by_name(const void *a, const void *b)
{
    const struct mem_holder *x = a, *y = b;
    int c = strcmp(x->what, y->what);
    return c ? c : strcmp(x->node, y->node);
}

static int by_bytes(const void *a, const void *b)
{
    const struct mem_holder *x = a, *y = b;
    return x->bytes != y->bytes ? order(y->bytes, x->bytes) : by_name(a, b);
}

size_t mem_pool_holders(const struct mem_pool *p, struct mem_holder *out, size_t cap)
{
    size_t n = 0, unique = 0;
    struct mem_holder *h = mem_alloc((size_t)p->stats.blocks_n * sizeof *h);
    for (size_t i = 0; i < p->segments.n; i++)
        for (const struct mem_block *b = p->segments.data[i]->head; b; b = b->next)
            if (b->live)
                h[n++] = (struct mem_holder){
                    b->tag.what ? b->tag.what : "", b->tag.node ? b->tag.node : "", b->size_bytes,
                    1};
    qsort(h, n, sizeof *h, by_name);
    for (size_t i = 0; i < n; i++) {
        if (unique && by_name(&h[unique - 1], &h[i]) == 0) {
            h[unique - 1].bytes += h[i].bytes;
            h[unique - 1].blocks_n++;
        } else {
            h[unique++] = h[i];
        }
    }
    qsort(h, unique, sizeof *h, by_bytes);
    unique = unique < cap ? unique : cap;
    if (unique)
        memcpy(out, h, unique * sizeof *h);
    mem_free(h);
    return unique;
}

static void describe(const struct mem_pool *p, struct str *s)
{
    char live[32], reserved[32], held[32], budget[32];
    struct mem_holder h[5];
    size_t n = mem_pool_holders(p, h, 5);
    str_printf(
        s, "live %s in %lld blocks, reserved %s in %lld segments, device holds %s",
        bytes_text(p->stats.live_bytes, live, sizeof live), (long long)p->stats.blocks_n,
        bytes_text(p->stats.reserved_bytes, reserved, sizeof reserved),
        (long long)p->stats.segments_n, bytes_text(p->source->held_bytes, held, sizeof held));
    if (p->source->budget_bytes)
        str_printf(s, " of %s", bytes_text(p->source->budget_bytes, budget, sizeof budget));
    for (size_t i = 0; i < n; i++)
        str_printf(
            s, "\n  %s%s%s%s: %s in %lld blocks", h[i].what, h[i].node[0] ? " of node \"" : "",
            h[i].node, h[i].node[0] ? "\"" : "", bytes_text(h[i].bytes, live, sizeof live),
            (long long)h[i].blocks_n);
}

static enum status
out_of_memory(struct mem_pool *p, int64_t size, const struct mem_tag *tag, struct err *e)
{
    char need[32], segment[32];
    struct str s;
    p->stats.ooms_n++;
    str_init(&s);
    describe(p, &s);
    enum status st = err_set(
        e, ST_OOM, "out of memory on device \"%s\": %s for \"%s\" need a segment of %s",
        p->source->device, bytes_text(size, need, sizeof need), tag->what ? tag->what : "",
        bytes_text(segment_size(block_size(size)), segment, sizeof segment));
    err_detail(e, "%s", s.data);
    if (tag->node)
        err_node(e, tag->node, "");
    str_release(&s);
    return st;
}

/* Allocation. */

static void split(struct mem_pool *p, struct mem_block *b, int64_t size)
{
    struct mem_block *rest = mem_alloc(sizeof *rest);
    *rest = (struct mem_block){
        .segment = b->segment,
        .offset = b->offset + size,
        .size_bytes = b->size_bytes - size,
        .prev = b,
        .next = b->next};
    if (b->next)
        b->next->prev = rest;
    b->next = rest;
    b->size_bytes = size;
    free_insert(p, rest);
}

static bool should_split(const struct mem_block *b, int64_t size)
{
    int64_t rest = b->size_bytes - size;
    return b->segment->small ? rest >= BLOCK_MIN_BYTES : rest > SMALL_MAX_BYTES;
}

static void count(struct mem_pool *p, const struct mem_block *b, int sign)
{
    struct mem_pool_stats *s = &p->stats;
    s->blocks_n += sign;
    s->live_bytes += sign * b->size_bytes;
    s->requested_bytes += sign * b->requested_bytes;
    if (s->live_bytes > s->live_bytes_peak)
        s->live_bytes_peak = s->live_bytes;
    if (s->requested_bytes > s->requested_bytes_peak)
        s->requested_bytes_peak = s->requested_bytes;
}

/* A free block for `size`, from what is cached or from a new segment. */
static enum status obtain(struct mem_pool *p, int64_t size, struct mem_block **out, struct err *e)
{
    *out = find_free(p, size);
    if (*out)
        return ST_OK;
    if (segment_take(p, size, NULL) != ST_OK) {
        p->stats.retries_n++;
        mem_pool_trim(p);
        TRY(segment_take(p, size, e));
    }
    *out = find_free(p, size);
    ASSERT(*out);
    return ST_OK;
}

static void verify(const struct mem_pool *p)
{
    if (SNUG_VERIFY)
        mem_pool_check(p);
}

enum status mem_pool_alloc(
    struct mem_pool *p, int64_t size_bytes, struct mem_tag tag, struct mem_block **out,
    struct err *e)
{
    struct mem_block *b;
    ASSERT(size_bytes >= 0);
    *out = NULL;
    if (size_bytes == 0)
        return ST_OK;
    if (size_bytes > REQUEST_MAX_BYTES)
        return out_of_memory(p, REQUEST_MAX_BYTES, &tag, e);
    int64_t size = block_size(size_bytes);
    if (obtain(p, size, &b, NULL) != ST_OK) {
        verify(p);
        return out_of_memory(p, size_bytes, &tag, e);
    }
    free_remove(p, b);
    if (should_split(b, size))
        split(p, b, size);
    b->live = true;
    b->requested_bytes = size_bytes;
    b->tag = tag;
    p->stats.allocs_n++;
    count(p, b, 1);
    verify(p);
    *out = b;
    return ST_OK;
}

/* Joins `b` with the block after it. */
static void join_next(struct mem_block *b)
{
    struct mem_block *gone = b->next;
    b->size_bytes += gone->size_bytes;
    b->next = gone->next;
    if (b->next)
        b->next->prev = b;
    mem_free(gone);
}

void mem_pool_give(struct mem_pool *p, struct mem_block *b)
{
    if (!b)
        return;
    ASSERT(b->live);
    count(p, b, -1);
    b->live = false;
    b->requested_bytes = 0;
    b->tag = (struct mem_tag){0};
    if (b->next && !b->next->live) {
        free_remove(p, b->next);
        join_next(b);
    }
    if (b->prev && !b->prev->live) {
        b = b->prev;
        free_remove(p, b);
        join_next(b);
    }
    free_insert(p, b);
    verify(p);
}

void *mem_block_data(const struct mem_block *b)
{
    return b ? b->segment->base + b->offset : NULL;
}

int64_t mem_block_bytes(const struct mem_block *b)
{
    return b ? b->size_bytes : 0;
}

const struct mem_tag *mem_block_tag(const struct mem_block *b)
{
    static const struct mem_tag none;
    return b ? &b->tag : &none;
}

const struct mem_pool_stats *mem_pool_stats(const struct mem_pool *p)
{
    return &p->stats;
}

void mem_pool_reset_peaks(struct mem_pool *p)
{
    p->stats.requested_bytes_peak = p->stats.requested_bytes;
    p->stats.live_bytes_peak = p->stats.live_bytes;
    p->stats.reserved_bytes_peak = p->stats.reserved_bytes;
}

/* Invariant 1 for one segment; adds what it holds to `sum`. Returns its free blocks. */
static size_t
check_segment(const struct mem_pool *p, const struct segment *s, struct mem_pool_stats *sum)
{
    size_t free_n = 0;
    int64_t at = 0;
    const struct mem_block *prev = NULL;
    for (const struct mem_block *b = s->head; b; prev = b, b = b->next) {
        ASSERT(b->segment == s && b->offset == at && b->prev == prev && b->size_bytes > 0);
        ASSERT(b->size_bytes % BLOCK_MIN_BYTES == 0 && b->requested_bytes <= b->size_bytes);
        ASSERT(!prev || prev->live || b->live);
        at += b->size_bytes;
        if (b->live) {
            sum->blocks_n++;
            sum->live_bytes += b->size_bytes;
            sum->requested_bytes += b->requested_bytes;
        } else {
            size_t place = free_place(p, b);
            ASSERT(place < p->free.n && p->free.data[place] == b);
            free_n++;
        }
    }
    ASSERT(at == s->size_bytes);
    sum->segments_n++;
    sum->reserved_bytes += s->size_bytes;
    return free_n;
}

void mem_pool_check(const struct mem_pool *p)
{
    struct mem_pool_stats sum = {0};
    const struct mem_pool_stats *t = &p->stats;
    size_t free_n = 0;
    for (size_t i = 0; i < p->segments.n; i++) {
        ASSERT(p->segments.data[i]->index == i);
        free_n += check_segment(p, p->segments.data[i], &sum);
    }
    ASSERT(free_n == p->free.n);
    for (size_t i = 1; i < p->free.n; i++)
        ASSERT(before(p->free.data[i - 1], p->free.data[i]) < 0);
    ASSERT(sum.live_bytes == t->live_bytes && sum.requested_bytes == t->requested_bytes);
    ASSERT(sum.reserved_bytes == t->reserved_bytes && sum.segments_n == t->segments_n);
    ASSERT(sum.blocks_n == t->blocks_n && t->reserved_bytes <= p->source->held_bytes);
    ASSERT(t->requested_bytes <= t->live_bytes && t->live_bytes <= t->reserved_bytes);
    ASSERT(t->live_bytes <= t->live_bytes_peak && t->reserved_bytes <= t->reserved_bytes_peak);
}
