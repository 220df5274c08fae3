/* plan_improve.c - looks for a better layout when no strategy came close to the lower bound.
 *
 * It walks over orders for the skyline. The items that end at the peak are what did not fit: a
 * step moves one of them to an earlier place, and maybe another anywhere, fills memory again, and
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
    struct skyline *skyline;
    int64_t work_max, bound_bytes;
    uint32_t *order, *order_next;
    int64_t *offset, *offset_next;
    int64_t peak;
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
    if (rng_below(&s->rng, 2))
        move(s->order_next, (size_t)rng_below(&s->rng, s->n), (size_t)rng_below(&s->rng, s->n));
}

/* Fills memory in order_next; when the peak is at most `peak_max`, that is where we are now. */
static void step(struct search *s, int64_t peak_max)
{
    int64_t peak;
    if (!skyline_run(s->skyline, s->order_next, peak_max, s->work_max, s->offset_next, &peak))
        return;
    uint32_t *order = s->order;
    int64_t *offset = s->offset;
    s->order = s->order_next;
    s->order_next = order;
    s->offset = s->offset_next;
    s->offset_next = offset;
    s->peak = peak;
}

static void walk(struct search *s)
{
    while (s->peak > s->bound_bytes && skyline_work(s->skyline) < s->work_max) {
        change(s);
        step(s, s->peak);
    }
}

bool plan_improve(
    const struct plan_item *items, size_t n, int32_t times_n, int64_t bound_bytes,
    const struct plan_search *how, struct plan_layout *best)
{
    struct search s = {
        .items = items,
        .n = n,
        .work_max = how->work_max,
        .bound_bytes = bound_bytes,
        .peak = INT64_MAX};
    s.skyline = skyline_new(items, n, times_n);
    s.order = mem_alloc(n * sizeof *s.order);
    s.order_next = mem_alloc(n * sizeof *s.order_next);
    s.offset = mem_alloc(n * sizeof *s.offset);
    s.offset_next = mem_alloc(n * sizeof *s.offset_next);
    rng_init(&s.rng, how->seed, 0, 0);
    for (size_t k = 0; k < how->orders_n; k++) {
        memcpy(s.order_next, how->orders[k], n * sizeof *s.order);
        step(&s, s.peak - 1);
    }
    if (s.peak < INT64_MAX)
        walk(&s);
    bool improved = s.peak < best->peak_bytes;
    if (improved) {
        memcpy(best->offset_bytes, s.offset, n * sizeof *s.offset);
        best->peak_bytes = s.peak;
    }
    skyline_free(s.skyline);
    mem_free(s.order);
    mem_free(s.order_next);
    mem_free(s.offset);
    mem_free(s.offset_next);
    return improved;
}
