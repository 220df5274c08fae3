/* timeline.c - one pass over the events, one bucket after another. */
#include "doctor/timeline.h"

#include <string.h>

static size_t slot_of(const struct walk *w, uint32_t group, uint8_t category)
{
    return (size_t)group * (size_t)w->categories_n + category;
}

/* The first rows that have no band yet, until there are `most` bands. */
static void take_bands(struct timeline *t, const struct walk *w, const struct holders *h, int most)
{
    for (uint32_t i = 0; i < h->rows_n && t->bands_n < most; i++) {
        uint8_t *band = &t->band_of[slot_of(w, h->rows[i].group, h->rows[i].category)];
        if (*band < TIMELINE_HOLDERS)
            continue;
        *band = (uint8_t)t->bands_n;
        t->bands[t->bands_n++] = h->rows[i];
    }
}

static void choose_bands(
    struct timeline *t, const struct walk *w, const struct holders *h, const struct holders *end)
{
    enum { OF_END = 3 };
    size_t n = (size_t)w->labels->groups_n * (size_t)w->categories_n;
    t->band_of = mem_alloc(n + 1);
    memset(t->band_of, TIMELINE_HOLDERS + 1, n + 1);
    take_bands(t, w, h, TIMELINE_HOLDERS - OF_END);
    take_bands(t, w, end, TIMELINE_HOLDERS);
    take_bands(t, w, h, TIMELINE_HOLDERS);
}

int timeline_band(const struct timeline *t, const struct walk *w, uint32_t life)
{
    int band = t->band_of[slot_of(w, walk_group(w, life), w->category[life])];
    bool earlier = w->category[life] == HOLDER_EARLIER;
    return band > TIMELINE_HOLDERS && earlier ? TIMELINE_HOLDERS : band;
}

/* What the walk over the events carries along. */
struct state {
    int64_t live, reserved, bands[TIMELINE_BANDS];
};

static void start(const struct timeline *t, const struct walk *w, struct state *x)
{
    *x = (struct state){.live = w->start_bytes, .reserved = w->reserved_start_bytes};
    for (uint32_t i = 0; i < w->d->lives_n; i++)
        if (walk_lives(w, i, SNAP_NONE))
            x->bands[timeline_band(t, w, i)] += walk_bytes(w, i);
}

static void step(const struct timeline *t, const struct walk *w, uint32_t event, struct state *x)
{
    int64_t change = walk_live_change(w, event);
    x->reserved += walk_reserved_change(w, event);
    if (change == 0)
        return;
    x->live += change;
    x->bands[timeline_band(t, w, w->s->event_life[event] - w->d->lives_first)] += change;
}

static void take(struct timeline_bucket *b, const struct state *x, bool first)
{
    if (first || x->live < b->live_min)
        b->live_min = x->live;
    if (first || x->reserved < b->reserved_min)
        b->reserved_min = x->reserved;
    if (first || x->reserved > b->reserved_max)
        b->reserved_max = x->reserved;
    if (first || x->live > b->live_max) {
        b->live_max = x->live;
        memcpy(b->bands, x->bands, sizeof b->bands);
    }
}

/* The phase of most allocations of events [from, to). */
static void find_phase(const struct walk *w, uint32_t from, uint32_t to, struct timeline_bucket *b)
{
    uint32_t n[MOMENT_COUNT][2] = {0}, most = 0;
    for (uint32_t i = from; i < to; i++) {
        const struct stack_label *x = &w->labels->of[w->s->events[i].stack];
        if (w->s->events[i].action == SNAP_ALLOC && x->phase != MOMENT_NONE)
            n[x->phase][(x->marks & MARK(LOSS)) != 0]++;
    }
    for (uint8_t k = 0; k < MOMENT_COUNT; k++)
        for (int loss = 0; loss < 2; loss++)
            if (n[k][loss] > most) {
                most = n[k][loss];
                b->phase = k;
                b->loss = loss;
            }
}

void timeline_init(
    struct timeline *t, const struct walk *w, const struct holders *h, const struct holders *end)
{
    struct state x;
    *t = (struct timeline){.events_n = w->d->events_n};
    choose_bands(t, w, h, end);
    t->buckets_n = t->events_n < TIMELINE_BUCKETS ? t->events_n : TIMELINE_BUCKETS;
    t->buckets = mem_alloc(((size_t)t->buckets_n + 1) * sizeof *t->buckets);
    start(t, w, &x);
    for (uint32_t k = 0; k < t->buckets_n; k++) {
        uint32_t first = w->d->events_first;
        uint32_t from = first + (uint32_t)((uint64_t)k * t->events_n / t->buckets_n);
        uint32_t to = first + (uint32_t)((uint64_t)(k + 1) * t->events_n / t->buckets_n);
        for (uint32_t i = from; i < to; i++) {
            step(t, w, i, &x);
            take(&t->buckets[k], &x, i == from);
        }
        find_phase(w, from, to, &t->buckets[k]);
    }
}

void timeline_release(struct timeline *t)
{
    mem_free(t->buckets);
    mem_free(t->band_of);
    *t = (struct timeline){0};
}
