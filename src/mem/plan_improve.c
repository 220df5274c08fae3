/* plan_improve.c - looks for a better order when no strategy came close to the lower bound.
 *
 * The items that end at the peak are what a plan failed to fit in. A step moves one of them to an
 * earlier place in the order (and now and then swaps two others), places everything again, and
 * keeps the new order unless the peak grew. Seeded, and bounded by work done, not by time, so the
 * result is the same everywhere.
 */
#include "plan_int.h"

#include "base/mem.h"
#include "base/rng.h"

#include <string.h>

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

bool plan_improve(
    struct placer *p, const struct plan_item *items, size_t n, uint32_t *order, int64_t bound_bytes,
    int64_t work_max, uint64_t seed, int64_t *offset_bytes, int64_t *peak_bytes)
{
    int64_t begin = placer_work(p), peak;
    struct search s = {
        .items = items,
        .n = n,
        .peak = INT64_MAX,
        .peak_best = *peak_bytes,
        .offset_best = offset_bytes};
    s.order = mem_alloc(n * sizeof *s.order);
    s.order_next = mem_alloc(n * sizeof *s.order_next);
    s.offset = mem_alloc(n * sizeof *s.offset);
    s.offset_next = mem_alloc(n * sizeof *s.offset_next);
    rng_init(&s.rng, seed, 0, 0);
    memcpy(s.order_next, order, n * sizeof *order);
    /* The order may have come from best fit; the search goes on with lowest fit. */
    if (placer_run(p, s.order_next, FIT_LOWEST, FORGET_NONE, INT64_MAX, s.offset_next, &peak))
        accept(&s, peak);
    while (placer_work(p) - begin < work_max && s.peak_best > bound_bytes) {
        change(&s);
        if (placer_run(p, s.order_next, FIT_LOWEST, FORGET_NONE, s.peak, s.offset_next, &peak))
            accept(&s, peak);
    }
    bool improved = s.peak_best < *peak_bytes;
    *peak_bytes = s.peak_best;
    mem_free(s.order);
    mem_free(s.order_next);
    mem_free(s.offset);
    mem_free(s.offset_next);
    return improved;
}
