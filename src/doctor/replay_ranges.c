/* replay_ranges.c - expandable segments: which pages belong to which reservation.
 *
 * Files list mapped ranges and the maps and unmaps of pages; reservations of addresses are not in
 * them. A reservation belongs to one pool, size class and stream. Within it a map always begins
 * right behind a mapped page, or at its beginning.
 */
#include "doctor/replay_start_int.h"

#include <stdlib.h>

struct range {
    uint64_t low, high;
    uint16_t stream, pool;
    bool large, start; /* there at the start */
    bool full;         /* another one of its kind was made beside it */
    int64_t pages_n;   /* mapped now */
};
struct ranges {
    struct work *w;
    VEC(struct range) all;
    const struct replay_guess *guess;
    bool beginning; /* the ranges of the start are listed */
    uint32_t now;   /* else the event that is played */
};

uint16_t replay_event_pool(const struct work *w, const struct snap_event *v)
{
    if (v->pool != SNAP_POOL_UNKNOWN)
        return v->pool;
    if (v->action == SNAP_SEGMENT_FREE)
        return 0; /* a segment of the end at its address is a later one */
    const struct snap_segment *g = replay_segment_at(w->s, w->device, v->addr);
    return g ? g->pool : 0;
}

/* ---- Small or large ---- */

void replay_tell_sizes(struct work *w)
{
    const struct snap_device *d = w->d;
    if (w->groups_n == 0)
        return;
    w->groups_large = mem_alloc((size_t)w->groups_n + 1);
    for (uint32_t i = d->lives_first; i < d->lives_first + d->lives_n; i++) {
        const struct snap_life *l = &w->s->lives[i];
        struct place *x = replay_place_at(&w->places, l->addr >> PAGE_SHIFT << PAGE_SHIFT);
        bool small = mem_pool_is_small(mem_pool_round_size(w->conf, l->size));
        if (x->there && x->group)
            w->groups_large[x->group] = small ? 1 : 2;
    }
    for (size_t i = 0; i < w->places.cap; i++) {
        struct place *x = &w->places.slots[i];
        if (x->there && x->group && w->groups_large[x->group])
            x->large = w->groups_large[x->group] == 2;
    }
}

/* ---- Reservations ---- */

static bool same_kind(const struct range *r, const struct place *x)
{
    return r->large == x->large && r->stream == x->stream && r->pool == x->pool;
}

static uint32_t add_range(struct ranges *q, const struct place *x, uint64_t addr)
{
    bool beside = false;
    for (size_t i = 0; i < q->all.n; i++) {
        struct range *r = &q->all.data[i];
        bool lives = same_kind(r, x) && r->pages_n > 0;
        r->full = r->full || lives;
        beside = beside || (lives && r->start);
    }
    /* Of two that are there at the start it is not known which came first. */
    vec_push(
        &q->all, ((struct range){
                     .low = addr,
                     .high = addr,
                     .stream = x->stream,
                     .pool = x->pool,
                     .large = x->large,
                     .start = q->beginning,
                     .full = q->beginning && beside}));
    if (!q->beginning)
        vec_push(
            &q->w->out->bases, ((struct replay_base){
                                   .addr = addr,
                                   .event = q->now,
                                   .stream = x->stream,
                                   .pool = x->pool,
                                   .large = x->large}));
    return (uint32_t)q->all.n - 1;
}

static void
set_pages(struct ranges *q, uint32_t range, struct place like, uint64_t addr, int64_t size)
{
    struct range *r = &q->all.data[range];
    for (int64_t at = 0; at < size; at += PAGE_BYTES) {
        struct place *x = replay_place_at(&q->w->places, addr + (uint64_t)at);
        like.addr = x->addr;
        like.size = PAGE_BYTES;
        like.used = like.there = true;
        like.range = range;
        *x = like;
        r->pages_n++;
    }
    r->low = addr < r->low ? addr : r->low;
    r->high = addr + (uint64_t)size > r->high ? addr + (uint64_t)size : r->high;
}

static int64_t page_of(const struct ranges *q, bool large)
{
    return large ? q->w->conf->large_segment_bytes : SMALL_SEGMENT_BYTES;
}

/* What a pool reserves on the card that is guessed. */
static int64_t reserve_of(const struct ranges *q, bool large)
{
    int64_t total = q->guess->total_bytes, page = page_of(q, large);
    return (total + total / 8 + page - 1) / page * page;
}

/* Whether a reservation may reach from `low` to `high` and have a page at `addr`. */
static bool
can_reach(const struct ranges *q, bool large, uint64_t low, uint64_t high, uint64_t addr)
{
    int64_t total = q->guess->total_bytes, page = page_of(q, large), most = reserve_of(q, large);
    bool aligned = (addr > low ? addr - low : low - addr) % (uint64_t)page == 0;
    return aligned && (total == 0 || high - low <= (uint64_t)most);
}

/* Ranges of the start: neighbours of one kind share a reservation, if one can reach so far. */
static void begin(struct ranges *q)
{
    struct work *w = q->w;
    for (size_t i = 0; i < w->segments_n; i++) {
        const struct place *g = &w->segments[i], *before = i ? &w->segments[i - 1] : NULL;
        if (!g->expandable)
            continue;
        bool joins = before && before->expandable && before->large == g->large &&
                     before->stream == g->stream && before->pool == g->pool;
        uint64_t low = joins ? q->all.data[q->all.n - 1].low : 0;
        joins = joins && can_reach(q, g->large, low, g->addr + (uint64_t)g->size, g->addr);
        uint32_t range = joins ? (uint32_t)q->all.n - 1 : add_range(q, g, g->addr);
        set_pages(q, range, *g, g->addr, g->size);
        w->segments[i].range = range;
    }
}

/* The reservation that a map at an address without a mapped page before it belongs to. */
static uint32_t range_of_head(struct ranges *q, const struct place *x)
{
    uint32_t above = SNAP_NONE;
    for (uint32_t i = 0; i < q->all.n; i++) {
        const struct range *r = &q->all.data[i];
        if (!same_kind(r, x) || r->pages_n == 0)
            continue;
        if (x->addr >= r->low && x->addr < r->high)
            return i;
        if (x->addr < r->low && can_reach(q, r->large, x->addr, r->high, r->low) &&
            (above == SNAP_NONE || r->low < q->all.data[above].low))
            above = i;
    }
    if (above == SNAP_NONE)
        return add_range(q, x, x->addr);
    q->w->out->heads_n++;
    return q->guess->heads_are_new ? add_range(q, x, x->addr) : above;
}

static void on_map(struct ranges *q, const struct snap_event *v)
{
    struct place like = {
        .addr = v->addr,
        .stream = v->stream,
        .pool = replay_event_pool(q->w, v),
        .large = v->size != SMALL_SEGMENT_BYTES,
        .expandable = true};
    const struct place *before = replay_place_at(&q->w->places, v->addr - (uint64_t)PAGE_BYTES);
    bool behind =
        before->there && before->expandable && same_kind(&q->all.data[before->range], &like);
    uint32_t range = behind ? before->range : range_of_head(q, &like);
    set_pages(q, range, like, v->addr, v->size);
}

static void on_unmap(struct ranges *q, const struct snap_event *v)
{
    for (int64_t at = 0; at < v->size; at += PAGE_BYTES) {
        struct place *x = replay_place_at(&q->w->places, v->addr + (uint64_t)at);
        if (x->there && x->expandable)
            q->all.data[x->range].pages_n--;
        x->there = false;
    }
}

/* How far a reservation reaches: 9/8 of the card, but not into the next of its kind; or, where the
 * card is not guessed, as far as its pages. 0: the pool decides. */
static int64_t reach_of(const struct ranges *q, const struct range *r)
{
    int64_t page = page_of(q, r->large);
    int64_t pages = (int64_t)(r->high - r->low), total = q->guess->total_bytes;
    if (!r->full)
        return 0;
    int64_t reach = total ? reserve_of(q, r->large) : pages;
    for (size_t i = 0; i < q->all.n; i++) {
        const struct range *next = &q->all.data[i];
        struct place like = {.large = r->large, .stream = r->stream, .pool = r->pool};
        if (same_kind(next, &like) && next->low > r->low && (int64_t)(next->low - r->low) < reach)
            reach = (int64_t)(next->low - r->low);
    }
    return (reach > pages ? reach : pages) / page * page;
}

static void set_layout(struct ranges *q)
{
    struct work *w = q->w;
    struct mem_pool_snapshot *l = &w->out->layout;
    for (size_t i = 0; i < l->segments_n; i++) {
        if (!l->segments[i].expandable)
            continue;
        const struct range *r = &q->all.data[w->segments[i].range];
        l->segments[i].reserved_addr = r->low;
        l->segments[i].reserved_bytes = reach_of(q, r);
    }
    for (size_t i = 0; i < q->all.n; i++) {
        const struct range *r = &q->all.data[i];
        int64_t pages = (int64_t)(r->high - r->low);
        if (pages > w->out->span_bytes)
            w->out->span_bytes = pages;
        if (r->full && pages > w->out->full_bytes)
            w->out->full_bytes = pages;
    }
}

void replay_set_ranges(struct work *w, const struct replay_guess *guess)
{
    struct ranges q = {.w = w, .guess = guess};
    q.beginning = true;
    begin(&q);
    q.beginning = false;
    for (uint32_t i = w->d->events_first; i < w->d->events_first + w->d->events_n; i++) {
        const struct snap_event *v = &w->s->events[i];
        q.now = i;
        if (v->action == SNAP_SEGMENT_MAP)
            on_map(&q, v);
        else if (v->action == SNAP_SEGMENT_UNMAP)
            on_unmap(&q, v);
    }
    set_layout(&q);
    vec_release(&q.all);
}
