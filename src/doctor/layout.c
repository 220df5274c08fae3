/* layout.c - undoes segment events, places lives, and counts what is free. */
#include "doctor/layout.h"

#include <stdlib.h>
#include <string.h>

/* A range that is there, and whose it is: ranges of one key are one segment. */
struct range {
    uint64_t from, to;
    uint32_t key;
    uint16_t stream, pool;
    bool expandable, there;
};
typedef VEC(struct range) ranges;

static int by_number(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* ---- what was there: pieces between all ends, each decided by what touches it first ---- */

struct pieces {
    uint64_t *ends;
    uint32_t *next; /* the next piece that is not decided; follows to itself */
    struct range *of;
    size_t n;
};

static size_t piece_at(const struct pieces *p, uint64_t addr)
{
    size_t low = 0, high = p->n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (p->ends[mid] < addr)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static size_t undecided(struct pieces *p, size_t at)
{
    while (p->next[at] != at) {
        p->next[at] = p->next[p->next[at]];
        at = p->next[at];
    }
    return at;
}

static void decide(struct pieces *p, const struct range *r)
{
    size_t to = piece_at(p, r->to);
    for (size_t at = undecided(p, piece_at(p, r->from)); at < to; at = undecided(p, at)) {
        p->of[at] = *r;
        p->next[at] = (uint32_t)at + 1;
    }
}

static bool is_segment_event(const struct snap_event *v)
{
    return v->action == SNAP_SEGMENT_ALLOC || v->action == SNAP_SEGMENT_FREE ||
           v->action == SNAP_SEGMENT_MAP || v->action == SNAP_SEGMENT_UNMAP;
}

/* What came after the moment, first to last, and then the segments of the end. */
static void list_ranges(const struct walk *w, uint32_t moment, ranges *out)
{
    const struct snapshot *s = w->s;
    const struct snap_device *d = w->d;
    uint32_t first = moment == SNAP_NONE ? d->events_first : moment + 1;
    for (uint32_t i = first; i < d->events_first + d->events_n; i++) {
        const struct snap_event *v = &s->events[i];
        if (!is_segment_event(v) || v->size <= 0)
            continue;
        struct range r = {
            .from = v->addr,
            .to = v->addr + (uint64_t)v->size,
            .key = (uint32_t)out->n,
            .stream = v->stream,
            .pool = v->pool == SNAP_POOL_UNKNOWN ? 0 : v->pool,
            .expandable = v->action == SNAP_SEGMENT_MAP || v->action == SNAP_SEGMENT_UNMAP,
            .there = v->action == SNAP_SEGMENT_FREE || v->action == SNAP_SEGMENT_UNMAP};
        vec_push(out, r);
    }
    for (uint32_t i = 0; i < d->segments_n; i++) {
        const struct snap_segment *g = &s->segments[d->segments_first + i];
        struct range r = {
            .from = g->addr,
            .to = g->addr + (uint64_t)g->total_size,
            .key = (uint32_t)out->n,
            .stream = g->stream,
            .pool = g->pool,
            .expandable = g->expandable,
            .there = true};
        if (g->total_size > 0)
            vec_push(out, r);
    }
}

static bool one_segment(const struct range *a, const struct range *b)
{
    if (a->to != b->from)
        return false;
    return a->key == b->key ||
           (a->expandable && b->expandable && a->stream == b->stream && a->pool == b->pool);
}

static void find_segments(const struct walk *w, uint32_t moment, struct snap_layout *out)
{
    ranges all = {0};
    struct pieces p = {0};
    list_ranges(w, moment, &all);
    p.ends = mem_alloc((2 * all.n + 1) * sizeof *p.ends);
    for (size_t i = 0; i < all.n; i++) {
        p.ends[p.n++] = all.data[i].from;
        p.ends[p.n++] = all.data[i].to;
    }
    qsort(p.ends, p.n, sizeof *p.ends, by_number);
    size_t n = 0;
    for (size_t i = 0; i < p.n; i++)
        if (i == 0 || p.ends[i] != p.ends[n - 1])
            p.ends[n++] = p.ends[i];
    p.n = n;
    p.next = mem_alloc((n + 2) * sizeof *p.next);
    p.of = mem_alloc((n + 1) * sizeof *p.of);
    for (size_t i = 0; i < n + 1; i++)
        p.next[i] = (uint32_t)i;
    for (size_t i = 0; i < all.n; i++)
        decide(&p, &all.data[i]);
    out->segments = mem_alloc((n + 1) * sizeof *out->segments);
    struct range last = {0};
    for (size_t i = 0; i + 1 < n; i++) {
        struct range r = p.of[i];
        if (!r.there)
            continue;
        r.from = p.ends[i];
        r.to = p.ends[i + 1];
        if (out->segments_n && one_segment(&last, &r)) {
            out->segments[out->segments_n - 1].bytes += (int64_t)(r.to - r.from);
        } else {
            out->segments[out->segments_n++] = (struct layout_segment){
                .addr = r.from,
                .bytes = (int64_t)(r.to - r.from),
                .stream = r.stream,
                .pool = r.pool,
                .expandable = r.expandable};
        }
        last = r;
    }
    mem_free(p.ends);
    mem_free(p.next);
    mem_free(p.of);
    vec_release(&all);
}

/* ---- what lives in them ---- */

static int by_addr(const void *a, const void *b)
{
    const struct layout_block *x = a, *y = b;
    return (x->addr > y->addr) - (x->addr < y->addr);
}

static void list_blocks(const struct walk *w, uint32_t moment, struct snap_layout *out)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->d->lives_n; i++)
        n += walk_lives(w, i, moment);
    out->blocks = mem_alloc(((size_t)n + 1) * sizeof *out->blocks);
    for (uint32_t i = 0; i < w->d->lives_n; i++)
        if (walk_lives(w, i, moment))
            out->blocks[out->blocks_n++] =
                (struct layout_block){walk_life(w, i)->addr, walk_bytes(w, i), i};
    qsort(out->blocks, out->blocks_n, sizeof *out->blocks, by_addr);
}

static void add_free(struct snap_layout *x, struct layout_segment *g, int64_t bytes)
{
    if (bytes <= 0)
        return;
    x->free_n++;
    x->free_bytes += bytes;
    if (bytes > g->largest_free_bytes)
        g->largest_free_bytes = bytes;
    if (bytes > x->largest_free_bytes)
        x->largest_free_bytes = bytes;
}

/* Blocks from `at` on that lie in the segment; returns the first one behind it. */
static uint32_t fill_segment(struct snap_layout *x, struct layout_segment *g, uint32_t at)
{
    uint64_t end = g->addr + (uint64_t)g->bytes, free_from = g->addr;
    for (; at < x->blocks_n && x->blocks[at].addr < g->addr; at++)
        x->unplaced_n++;
    g->first_block = at;
    for (; at < x->blocks_n && x->blocks[at].addr < end; at++) {
        const struct layout_block *b = &x->blocks[at];
        if (b->addr > free_from)
            add_free(x, g, (int64_t)(b->addr - free_from));
        uint64_t to = b->addr + (uint64_t)b->bytes;
        to = to > end ? end : to;
        if (to > free_from)
            g->live_bytes += (int64_t)(to - (b->addr > free_from ? b->addr : free_from));
        free_from = to > free_from ? to : free_from;
    }
    add_free(x, g, (int64_t)(end - free_from));
    g->blocks_n = at - g->first_block;
    return at;
}

void layout_at(const struct walk *w, uint32_t moment, struct snap_layout *out)
{
    uint32_t at = 0;
    *out = (struct snap_layout){0};
    find_segments(w, moment, out);
    list_blocks(w, moment, out);
    for (uint32_t i = 0; i < out->segments_n; i++) {
        struct layout_segment *g = &out->segments[i];
        at = fill_segment(out, g, at);
        out->reserved_bytes += g->bytes;
        out->live_bytes += g->live_bytes;
        if (g->blocks_n)
            out->split_bytes += g->bytes - g->live_bytes;
        else
            out->whole_bytes += g->bytes;
        if (g->pool) {
            out->private_bytes += g->bytes;
            out->private_live_bytes += g->live_bytes;
        }
        if (g->expandable)
            out->expandable_bytes += g->bytes;
    }
    out->unplaced_n += out->blocks_n - at;
}

void layout_release(struct snap_layout *x)
{
    mem_free(x->segments);
    mem_free(x->blocks);
    *x = (struct snap_layout){0};
}

int layout_half_empty(const struct snap_layout *x, int most, uint32_t *out)
{
    int n = 0;
    for (uint32_t i = 0; i < x->segments_n; i++) {
        const struct layout_segment *g = &x->segments[i];
        int64_t free_bytes = g->bytes - g->live_bytes;
        if (!g->blocks_n || 2 * free_bytes <= g->bytes)
            continue;
        int at = n < most ? n++ : most;
        for (; at > 0; at--) {
            const struct layout_segment *o = &x->segments[out[at - 1]];
            if (o->bytes - o->live_bytes >= free_bytes)
                break;
            if (at < most)
                out[at] = out[at - 1];
        }
        if (at < most)
            out[at] = i;
    }
    return n;
}
