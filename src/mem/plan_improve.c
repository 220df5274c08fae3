/* plan_improve.c - looks for a better order when no strategy came close to the lower bound.
 *
 * Any layout is found again, or one below it, by placing its items in order of offset, each as low
 * as it fits. So the search walks over orders, starting from the best layout. The items that end
 * at the peak are what did not fit: a step moves one of them to an earlier place, and up to two
 * others anywhere, places everything again, and keeps the new order unless the peak grew by more
 * than a tolerance that shrinks to 0. Seeded, and bounded by work done, not by time, so the result
 * is the same everywhere.
 */
#include "plan_int.h"

#include "base/mem.h"
#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

/* Largest growth of the peak that a step may make, as a part of it, at the start. */
#define TOLERANCE 0.01

struct search {
    const struct plan_item *items;
    size_t n;
    uint32_t *order, *order_next;
    int64_t *offset, *offset_next, *offset_best;
    int64_t peak, peak_best;
    struct rng rng;
};

/* Place in the order of a random item that ends at the peak. */
static size_t pick_top(struct search *s)
{
    size_t found = 0, place = 0;
    for (size_t i = 0; i < s->n; i++) {
        uint32_t x = s->order[i];
        if (s->offset[x] + s->items[x].size_bytes != s->peak)
            continue;
        if (rng_below(&s->rng, ++found) == 0)
            place = i;
    }
    return place;
}

static void move(uint32_t *order, size_t from, size_t to)
{
    uint32_t x = order[from];
    if (to < from)
        memmove(order + to + 1, order + to, (from - to) * sizeof *order);
    else
        memmove(order + from, order + from + 1, (to - from) * sizeof *order);
    order[to] = x;
}

static void change(struct search *s)
{
    size_t top = pick_top(s);
    memcpy(s->order_next, s->order, s->n * sizeof *s->order);
    if (top > 0)
        move(s->order_next, top, (size_t)rng_below(&s->rng, top));
    unsigned others = rng_u32(&s->rng) % 3;
    for (unsigned i = 0; i < others; i++)
        move(s->order_next, (size_t)rng_below(&s->rng, s->n), (size_t)rng_below(&s->rng, s->n));
}

static void accept(struct search *s, int64_t peak)
{
    uint32_t *order = s->order;
    int64_t *offset = s->offset;
    s->order = s->order_next;
    s->order_next = order;
    s->offset = s->offset_next;
    s->offset_next = offset;
    s->peak = peak;
    if (peak < s->peak_best) {
        s->peak_best = peak;
        memcpy(s->offset_best, s->offset, s->n * sizeof *offset);
    }
}

struct by_offset {
    int64_t offset;
    uint32_t item;
};

static int compare_offsets(const void *a, const void *b)
{
    const struct by_offset *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->item > y->item) - (x->item < y->item);
}

static void order_by_offset(const int64_t *offset, size_t n, uint32_t *order)
{
    struct by_offset *o = mem_alloc(n * sizeof *o);
    for (size_t i = 0; i < n; i++)
        o[i] = (struct by_offset){offset[i], (uint32_t)i};
    qsort(o, n, sizeof *o, compare_offsets);
    for (size_t i = 0; i < n; i++)
        order[i] = o[i].item;
    mem_free(o);
}

bool plan_improve(
    struct placer *p, const struct plan_item *items, size_t n, int64_t bound_bytes,
    int64_t work_max, uint64_t seed, struct plan_layout *best)
{
    int64_t begin = placer_work(p), peak, before = best->peak_bytes;
    struct search s = {
        .items = items,
        .n = n,
        .peak = INT64_MAX,
        .peak_best = best->peak_bytes,
        .offset_best = best->offset_bytes};
    s.order = mem_alloc(n * sizeof *s.order);
    s.order_next = mem_alloc(n * sizeof *s.order_next);
    s.offset = mem_alloc(n * sizeof *s.offset);
    s.offset_next = mem_alloc(n * sizeof *s.offset_next);
    rng_init(&s.rng, seed, 0, 0);
    order_by_offset(best->offset_bytes, n, s.order_next);
    if (placer_run(p, s.order_next, FIT_LOWEST, FORGET_NONE, INT64_MAX, s.offset_next, &peak))
        accept(&s, peak);
    for (int64_t done; (done = placer_work(p) - begin) < work_max && s.peak_best > bound_bytes;) {
        double left = 1.0 - (double)done / (double)work_max;
        int64_t slack = (int64_t)(TOLERANCE * left * (double)s.peak_best * rng_f64(&s.rng));
        change(&s);
        if (placer_run(
                p, s.order_next, FIT_LOWEST, FORGET_NONE, s.peak + slack, s.offset_next, &peak))
            accept(&s, peak);
    }
    best->peak_bytes = s.peak_best;
    mem_free(s.order);
    mem_free(s.order_next);
    mem_free(s.offset);
    mem_free(s.offset_next);
    return s.peak_best < before;
}
