/* replay_start.c - the state of the allocator before the first event of a trace, worked out from
 * the state after the last one.
 *
 * Segments: those of the end, with segment events undone from the last to the first. Expandable
 * ones are kept by pages of 2 MiB, which every map and unmap is a multiple of. Blocks: lives
 * without an alloc event. Whatever of a segment they do not cover is free, and free neighbours are
 * one block, so nothing else has to be known; but for the slack of large blocks.
 */
#include "doctor/replay_start_int.h"

#include <stdlib.h>
#include <string.h>

enum { SLACK_BYTES_MAX = 1 << 20 };

static struct place *slot_of(struct place *slots, size_t cap, uint64_t addr)
{
    size_t at = (size_t)((addr >> 9) * 0x9e3779b97f4a7c15u >> 24) & (cap - 1);
    while (slots[at].used && slots[at].addr != addr)
        at = (at + 1) & (cap - 1);
    return &slots[at];
}

struct place *replay_place_at(struct places *p, uint64_t addr)
{
    if (2 * (p->n + 1) > p->cap) {
        size_t cap = p->cap ? 2 * p->cap : 256;
        struct place *slots = mem_alloc(cap * sizeof *slots);
        for (size_t i = 0; i < p->cap; i++)
            if (p->slots[i].used)
                *slot_of(slots, cap, p->slots[i].addr) = p->slots[i];
        mem_free(p->slots);
        p->slots = slots;
        p->cap = cap;
    }
    struct place *x = slot_of(p->slots, p->cap, addr);
    if (!x->used) {
        *x = (struct place){.addr = addr, .used = true};
        p->n++;
    }
    return x;
}

static void put(struct places *p, const struct place *like)
{
    struct place *x = replay_place_at(p, like->addr);
    *x = *like;
    x->used = true;
    x->there = true;
}

/* A range by pages; each looks like `like`. */
static void put_pages(struct places *p, struct place like, uint64_t addr, int64_t size)
{
    like.size = PAGE_BYTES;
    for (int64_t at = 0; at < size; at += like.size) {
        like.addr = addr + (uint64_t)at;
        put(p, &like);
    }
}

static void take_pages(struct places *p, uint64_t addr, int64_t size)
{
    for (int64_t at = 0; at < size; at += PAGE_BYTES)
        replay_place_at(p, addr + (uint64_t)at)->there = false;
}

/* ---- Segments: from the end to the start ---- */

static enum status check_pages(const struct snap_event *v, struct err *e)
{
    uint64_t part = (uint64_t)PAGE_BYTES - 1;
    if (((v->addr | (uint64_t)v->size) & part) == 0 && v->size <= (int64_t)1 << 42)
        return ST_OK;
    return err_set(
        e, ST_INVALID, "an expandable range of %lld bytes at 0x%llx is not made of pages of 2 MiB",
        (long long)v->size, (unsigned long long)v->addr);
}

/* Pages that were unmapped and are mapped again, or lie beside such, are of the same reservation.
 */
static void like_later(struct work *w, struct place *x)
{
    for (int64_t at = -PAGE_BYTES; at <= x->size; at += PAGE_BYTES) {
        const struct place *later = replay_place_at(&w->places, x->addr + (uint64_t)at);
        bool inside = at >= 0 && at < x->size;
        if (!later->expandable || later->stream != x->stream || (!inside && !later->there))
            continue;
        x->large = later->large;
        x->pool = later->pool;
        if (inside)
            return;
    }
}

/* Of a range that is gone at the end. Small pools unmap 2 MiB and multiples, large ones more. */
static struct place like_event(const struct work *w, const struct snap_event *v)
{
    return (struct place){
        .addr = v->addr,
        .size = v->size,
        .stream = v->stream,
        .pool = replay_event_pool(w, v),
        .large = v->action == SNAP_SEGMENT_FREE ? v->size != SMALL_SEGMENT_BYTES
                                                : v->size % w->conf->large_segment_bytes == 0,
        .expandable = v->action == SNAP_SEGMENT_UNMAP};
}

static enum status undo(struct work *w, const struct snap_event *v, struct err *e)
{
    struct place x;
    switch ((enum snap_action)v->action) {
    case SNAP_SEGMENT_ALLOC:
        replay_place_at(&w->places, v->addr)->there = false;
        return ST_OK;
    case SNAP_SEGMENT_FREE:
        x = like_event(w, v);
        put(&w->places, &x);
        return ST_OK;
    case SNAP_SEGMENT_MAP:
        TRY(check_pages(v, e));
        take_pages(&w->places, v->addr, v->size);
        return ST_OK;
    case SNAP_SEGMENT_UNMAP:
        TRY(check_pages(v, e));
        x = like_event(w, v);
        like_later(w, &x);
        x.group = ++w->groups_n;
        put_pages(&w->places, x, v->addr, v->size);
        return ST_OK;
    case SNAP_ALLOC:
    case SNAP_FREE_REQUESTED:
    case SNAP_FREE_COMPLETED:
    case SNAP_SNAPSHOT:
    case SNAP_OOM:
    case SNAP_ANNOTATE:
    case SNAP_OTHER:
    case SNAP_ACTION_COUNT:
        break;
    }
    return ST_OK;
}

static enum status begin_at_end(struct work *w, struct err *e)
{
    for (uint32_t i = 0; i < w->d->segments_n; i++) {
        const struct snap_segment *g = &w->s->segments[w->d->segments_first + i];
        struct place x = {
            .addr = g->addr,
            .size = g->total_size,
            .stream = g->stream,
            .pool = g->pool,
            .large = g->large,
            .expandable = g->expandable};
        if (g->expandable) {
            TRY(check_pages(&(struct snap_event){.addr = g->addr, .size = g->total_size}, e));
            put_pages(&w->places, x, g->addr, g->total_size);
        } else {
            put(&w->places, &x);
        }
    }
    return ST_OK;
}

static int by_address(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    return x->addr < y->addr ? -1 : x->addr > y->addr;
}

/* What is there now, pages that follow one another joined. */
static void list_segments(struct work *w)
{
    size_t n = 0;
    w->segments = mem_alloc((w->places.n + 1) * sizeof *w->segments);
    for (size_t i = 0; i < w->places.cap; i++)
        if (w->places.slots[i].used && w->places.slots[i].there)
            w->segments[n++] = w->places.slots[i];
    qsort(w->segments, n, sizeof *w->segments, by_address);
    for (size_t i = 0; i < n; i++) {
        struct place *last = w->segments_n > 0 ? &w->segments[w->segments_n - 1] : NULL;
        const struct place *x = &w->segments[i];
        if (last && x->expandable && last->expandable && x->large == last->large &&
            x->stream == last->stream && x->pool == last->pool &&
            last->addr + (uint64_t)last->size == x->addr)
            last->size += x->size;
        else
            w->segments[w->segments_n++] = *x;
    }
}

/* ---- Blocks ---- */

static int early_by_address(const void *a, const void *b)
{
    const struct early *x = a, *y = b;
    return x->addr < y->addr ? -1 : x->addr > y->addr;
}

static void list_lives(struct work *w)
{
    const struct snap_device *d = w->d;
    w->early = mem_alloc(((size_t)d->earlier_n + 1) * sizeof *w->early);
    for (uint32_t i = d->lives_first; i < d->lives_first + d->lives_n; i++) {
        const struct snap_life *life = &w->s->lives[i];
        if (life->alloc != SNAP_NONE)
            continue;
        int64_t size = life->block != SNAP_NONE ? w->s->blocks[life->block].size
                                                : mem_pool_round_size(w->conf, life->size);
        w->early[w->early_n++] = (struct early){life->addr, size, i};
    }
    qsort(w->early, w->early_n, sizeof *w->early, early_by_address);
}

/* The blocks whose size is not certain yet: `open[i]` is the room behind life i, at most the slack
 * that it may have. */
static void
settle_gaps(struct work *w, const struct place *g, size_t first, size_t n, int64_t *open)
{
    for (size_t i = first; i < first + n; i++) {
        const struct snap_life *life = &w->s->lives[w->early[i].life];
        uint64_t end = life->addr + (uint64_t)w->early[i].size;
        uint64_t next = i + 1 < first + n ? w->early[i + 1].addr : g->addr + (uint64_t)g->size;
        int64_t gap = next > end ? (int64_t)(next - end) : 0;
        open[i] = 0;
        if (!g->large || g->expandable || gap == 0 || life->block != SNAP_NONE)
            continue;
        if (gap <= SLACK_BYTES_MAX || w->early[i].size >= w->conf->max_split_size_bytes)
            w->early[i].size += gap; /* no free block is so small; oversize ones are never split */
        else
            open[i] = SLACK_BYTES_MAX;
    }
}

/* The last life that begins at or below an address, or early_n. */
static size_t life_below(const struct work *w, uint64_t addr)
{
    size_t low = 0, high = w->early_n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (w->early[middle].addr <= addr)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? low - 1 : w->early_n;
}

/* The first allocation behind an open block begins where the block ends, as long as it lives. */
static void settle_by_events(struct work *w, int64_t *open)
{
    const struct snapshot *s = w->s;
    for (uint32_t i = w->d->events_first; i < w->d->events_first + w->d->events_n; i++) {
        const struct snap_event *v = &s->events[i];
        if (v->action != SNAP_ALLOC)
            continue;
        size_t k = life_below(w, v->addr);
        if (k == w->early_n || !open[k])
            continue;
        const struct snap_life *life = &s->lives[w->early[k].life];
        uint64_t end = life->addr + (uint64_t)w->early[k].size;
        /* Once it is freed it is merged with what lies behind, and tells nothing any more. */
        if (life->free_completed > i && v->addr >= end && v->addr - end <= SLACK_BYTES_MAX) {
            w->early[k].size += (int64_t)(v->addr - end);
            open[k] = 0;
        }
    }
    for (size_t k = 0; k < w->early_n; k++)
        w->out->ambiguous_n += open[k] != 0;
}

static void settle_by_guess(struct work *w, const struct replay_guess *guess, const int64_t *open)
{
    for (size_t i = 0; i < guess->slacks.n; i++)
        for (size_t k = 0; k < w->early_n; k++)
            if (w->early[k].life == guess->slacks.data[i].life && open[k])
                w->early[k].size += guess->slacks.data[i].bytes;
}

static void settle_sizes(struct work *w, const struct replay_guess *guess)
{
    int64_t *open = mem_alloc((w->early_n + 1) * sizeof *open);
    size_t at = 0;
    for (size_t i = 0; i < w->segments_n; i++) {
        const struct place *g = &w->segments[i];
        while (at < w->early_n && w->early[at].addr < g->addr)
            at++;
        size_t first = at;
        while (at < w->early_n && w->early[at].addr < g->addr + (uint64_t)g->size)
            at++;
        settle_gaps(w, g, first, at - first, open);
    }
    settle_by_events(w, open);
    settle_by_guess(w, guess, open);
    mem_free(open);
}

/* ---- The layout ---- */

static void add_block(struct work *w, uint64_t addr, int64_t size, uint32_t life)
{
    struct mem_pool_snapshot *l = &w->out->layout;
    struct mem_block_info *k = &l->blocks[l->blocks_n];
    *k = (struct mem_block_info){.addr = addr, .size_bytes = size};
    if (life != SNAP_NONE) {
        k->state = MEM_BLOCK_ALLOCATED;
        k->requested_bytes = w->s->lives[life].size;
        w->out->lives_n++;
    }
    w->out->life_of_block[l->blocks_n++] = life;
}

static void add_segment(struct work *w, const struct place *g, size_t *at)
{
    struct mem_pool_snapshot *l = &w->out->layout;
    struct mem_segment_info *x = &l->segments[l->segments_n++];
    const struct snap_pool *pool = &w->s->pools[g->pool];
    *x = (struct mem_segment_info){
        .addr = g->addr,
        .size_bytes = g->size,
        .stream = w->s->streams[g->stream],
        .pool = {pool->a, pool->b},
        .small = !g->large,
        .expandable = g->expandable,
        .first_block = l->blocks_n};
    uint64_t here = g->addr, end = g->addr + (uint64_t)g->size;
    for (; *at < w->early_n && w->early[*at].addr < end; (*at)++) {
        const struct snap_life *life = &w->s->lives[w->early[*at].life];
        if (life->addr < here || life->addr + (uint64_t)w->early[*at].size > end) {
            w->out->unplaced_n++; /* in no segment, or over another one */
            continue;
        }
        if (life->addr > here)
            add_block(w, here, (int64_t)(life->addr - here), SNAP_NONE);
        add_block(w, life->addr, w->early[*at].size, w->early[*at].life);
        here = life->addr + (uint64_t)w->early[*at].size;
    }
    if (here < end)
        add_block(w, here, (int64_t)(end - here), SNAP_NONE);
    x->blocks_n = l->blocks_n - x->first_block;
}

static void make_layout(struct work *w)
{
    struct mem_pool_snapshot *l = &w->out->layout;
    size_t at = 0, most = 2 * w->early_n + w->segments_n + 1;
    l->segments = mem_alloc((w->segments_n + 1) * sizeof *l->segments);
    l->blocks = mem_alloc(most * sizeof *l->blocks);
    w->out->life_of_block = mem_alloc(most * sizeof *w->out->life_of_block);
    for (size_t i = 0; i < w->segments_n; i++) {
        for (; at < w->early_n && w->early[at].addr < w->segments[i].addr; at++)
            w->out->unplaced_n++;
        add_segment(w, &w->segments[i], &at);
    }
    w->out->unplaced_n += (uint32_t)(w->early_n - at);
}

enum status replay_start_make(
    const struct snapshot *s, int device, const struct mem_pool_conf *conf,
    const struct replay_guess *guess, struct replay_start *out, struct err *e)
{
    struct work w = {.s = s, .d = &s->devices[device], .conf = conf, .out = out, .device = device};
    enum status st;
    *out = (struct replay_start){0};
    TRY_OUT(begin_at_end(&w, e));
    for (uint32_t i = w.d->events_n; i-- > 0;)
        TRY_OUT(undo(&w, &s->events[w.d->events_first + i], e));
    replay_tell_sizes(&w);
    list_segments(&w);
    list_lives(&w);
    settle_sizes(&w, guess);
    make_layout(&w);
    replay_set_ranges(&w, guess);
out:
    mem_free(w.places.slots);
    mem_free(w.groups_large);
    mem_free(w.segments);
    mem_free(w.early);
    return st;
}

void replay_start_release(struct replay_start *x)
{
    mem_free(x->layout.segments);
    mem_free(x->layout.blocks);
    mem_free(x->life_of_block);
    vec_release(&x->bases);
    *x = (struct replay_start){0};
}
