/* plan_skyline.c - fills memory from the bottom: a second way to place items, for hard cases.
 *
 * Instead of taking items in a fixed order and looking for a gap, it looks at the lowest stretch of
 * the skyline (the end of what is placed, at each time) and takes, of the items that live wholly
 * within it, the first in the order. When none does, the stretch is raised to its lower neighbour.
 * After Burke, Kendall and Whitwell's best-fit heuristic for strip packing (Operations Research 52,
 * 2004), with the place in time given.
 */
#include "plan_int.h"

#include "base/err.h"
#include "base/mem.h"

#include <string.h>

/* Height of a time at which no item waits to be placed: a wall. */
#define WALL INT64_MAX
#define PLACED UINT32_MAX

struct skyline {
    const struct plan_item *items;
    size_t n, left_n;
    int32_t times_n;
    uint32_t *by_first;    /* items in order of first */
    uint32_t *first_place; /* per time: where by_first has its items; times_n + 1 entries */
    int32_t *live_n;       /* items live at a time */
    uint32_t *rank;        /* place in the order, PLACED when done */
    int64_t *height;
    int32_t *waiting; /* items not placed yet that are live at a time */
    int64_t work;
};

struct skyline *skyline_new(const struct plan_item *items, size_t n, int32_t times_n)
{
    struct skyline *s = mem_alloc(sizeof *s);
    size_t times = (size_t)times_n;
    *s = (struct skyline){.items = items, .n = n, .times_n = times_n};
    s->by_first = mem_alloc(n * sizeof *s->by_first);
    s->first_place = mem_alloc((times + 2) * sizeof *s->first_place);
    s->live_n = mem_alloc(times * sizeof *s->live_n);
    s->rank = mem_alloc(n * sizeof *s->rank);
    s->height = mem_alloc(times * sizeof *s->height);
    s->waiting = mem_alloc(times * sizeof *s->waiting);
    /* Counting sort, one entry further right so that filling leaves the beginnings in place. */
    for (size_t i = 0; i < n; i++) {
        s->first_place[items[i].first + 2]++;
        for (int32_t t = items[i].first; t <= items[i].last; t++)
            s->live_n[t]++;
    }
    for (size_t t = 2; t < times + 2; t++)
        s->first_place[t] += s->first_place[t - 1];
    for (size_t i = 0; i < n; i++)
        s->by_first[s->first_place[items[i].first + 1]++] = (uint32_t)i;
    return s;
}

void skyline_free(struct skyline *s)
{
    if (!s)
        return;
    mem_free(s->by_first);
    mem_free(s->first_place);
    mem_free(s->live_n);
    mem_free(s->rank);
    mem_free(s->height);
    mem_free(s->waiting);
    mem_free(s);
}

int64_t skyline_work(const struct skyline *s)
{
    return s->work;
}

static void begin(struct skyline *s, const uint32_t *order)
{
    s->left_n = s->n;
    for (size_t i = 0; i < s->n; i++)
        s->rank[order[i]] = (uint32_t)i;
    memcpy(s->waiting, s->live_n, (size_t)s->times_n * sizeof *s->waiting);
    for (int32_t t = 0; t < s->times_n; t++)
        s->height[t] = s->live_n[t] ? 0 : WALL;
}

/* The lowest stretch: neighbouring times of the least height. */
static void lowest(const struct skyline *s, int32_t *from, int32_t *until)
{
    int32_t low = 0;
    for (int32_t t = 1; t < s->times_n; t++)
        low = s->height[t] < s->height[low] ? t : low;
    *from = *until = low;
    while (*until + 1 < s->times_n && s->height[*until + 1] == s->height[low])
        ++*until;
}

/* The first in the order of the items that live within the stretch; s->n when there is none. */
static size_t find_within(struct skyline *s, int32_t from, int32_t until)
{
    uint32_t best = PLACED;
    size_t found = s->n, k = s->first_place[from], end = s->first_place[until + 1];
    s->work += s->times_n / 2 + (int64_t)(end - k);
    for (; k < end; k++) {
        uint32_t i = s->by_first[k];
        if (s->rank[i] < best && s->items[i].last <= until) {
            best = s->rank[i];
            found = i;
        }
    }
    return found;
}

/* Raises the stretch to its lower neighbour. Between two walls every item would be within. */
static void raise_stretch(struct skyline *s, int32_t from, int32_t until)
{
    int64_t to = from > 0 ? s->height[from - 1] : WALL;
    if (until + 1 < s->times_n && s->height[until + 1] < to)
        to = s->height[until + 1];
    ASSERT(to != WALL);
    for (int32_t t = from; t <= until; t++)
        s->height[t] = to;
}

/* Puts the item on the stretch; its end. */
static int64_t put(struct skyline *s, size_t i, int64_t *offset_bytes)
{
    const struct plan_item *x = &s->items[i];
    int64_t at = (s->height[x->first] + x->alignment - 1) & ~(x->alignment - 1);
    int64_t end = at + x->size_bytes;
    offset_bytes[i] = at;
    for (int32_t t = x->first; t <= x->last; t++)
        s->height[t] = --s->waiting[t] ? end : WALL;
    s->rank[i] = PLACED;
    s->left_n--;
    return end;
}

bool skyline_run(
    struct skyline *s, const uint32_t *order, int64_t peak_max_bytes, int64_t work_max,
    int64_t *offset_bytes, int64_t *peak_bytes)
{
    int64_t peak = 0;
    begin(s, order);
    while (s->left_n && peak <= peak_max_bytes && s->work < work_max) {
        int32_t from, until;
        lowest(s, &from, &until);
        size_t i = find_within(s, from, until);
        if (i == s->n) {
            raise_stretch(s, from, until);
            continue;
        }
        int64_t end = put(s, i, offset_bytes);
        peak = end > peak ? end : peak;
    }
    *peak_bytes = peak;
    return s->left_n == 0 && peak <= peak_max_bytes;
}
