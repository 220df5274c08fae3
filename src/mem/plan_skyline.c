/* plan_skyline.c - fills memory from the bottom: a second way to place items, for hard cases.
 *
 * Instead of taking items in a fixed order and looking for a gap, it looks at the lowest stretch of
 * the skyline (the end of what is placed, at each time) and takes, of the items that live wholly
 * within it, the first in the order. When none does, the stretch is raised to its lower neighbour.
 * After Burke, Kendall and Whitwell's best-fit heuristic for strip packing (Operations Research 52,
 * 2004), with the place in time given.
 */
#include "plan_int.h"

#include "base/mem.h"

#include <string.h>

struct skyline {
    const struct plan_item *items;
    size_t n, left_n;
    uint32_t *left; /* items not placed yet, in the order */
    int32_t times_n;
    int64_t *height;
    int32_t *waiting; /* items not placed yet that are live at a time */
};

/* The lowest stretch around a time that still waits for an item. */
static void lowest(const struct skyline *s, int32_t *from, int32_t *until)
{
    int32_t low = -1;
    for (int32_t t = 0; t < s->times_n; t++)
        if (s->waiting[t] > 0 && (low < 0 || s->height[t] < s->height[low]))
            low = t;
    for (*from = low; *from > 0 && s->height[*from - 1] <= s->height[low];)
        --*from;
    for (*until = low; *until + 1 < s->times_n && s->height[*until + 1] <= s->height[low];)
        ++*until;
}

/* Place in `left` of the first item within the stretch; left_n when there is none. */
static size_t find_within(const struct skyline *s, int32_t from, int32_t until)
{
    for (size_t k = 0; k < s->left_n; k++) {
        const struct plan_item *x = &s->items[s->left[k]];
        if (x->first >= from && x->last <= until)
            return k;
    }
    return s->left_n;
}

/* Raises the stretch to its lower neighbour; some neighbour exists, else every item is within. */
static void raise_stretch(struct skyline *s, int32_t from, int32_t until)
{
    int64_t to = INT64_MAX;
    if (from > 0)
        to = s->height[from - 1];
    if (until + 1 < s->times_n && s->height[until + 1] < to)
        to = s->height[until + 1];
    for (int32_t t = from; t <= until; t++)
        s->height[t] = to;
}

/* Returns the end of the item. */
static int64_t put(struct skyline *s, size_t k, int64_t at, int64_t *offset_bytes)
{
    uint32_t i = s->left[k];
    const struct plan_item *x = &s->items[i];
    offset_bytes[i] = (at + x->alignment - 1) & ~(x->alignment - 1);
    for (int32_t t = x->first; t <= x->last; t++) {
        s->height[t] = offset_bytes[i] + x->size_bytes;
        s->waiting[t]--;
    }
    s->left_n--;
    memmove(s->left + k, s->left + k + 1, (s->left_n - k) * sizeof *s->left);
    return offset_bytes[i] + x->size_bytes;
}

static void begin(struct skyline *s, const uint32_t *order)
{
    memcpy(s->left, order, s->n * sizeof *order);
    for (size_t i = 0; i < s->n; i++)
        for (int32_t t = s->items[i].first; t <= s->items[i].last; t++)
            s->waiting[t]++;
}

bool plan_skyline(
    const struct plan_item *items, size_t n, int32_t times_n, const uint32_t *order,
    int64_t peak_max_bytes, int64_t *work_left, int64_t *offset_bytes, int64_t *peak_bytes)
{
    struct skyline s = {.items = items, .n = n, .left_n = n, .times_n = times_n};
    int64_t peak = 0;
    s.left = mem_alloc(n * sizeof *s.left);
    s.height = mem_alloc((size_t)times_n * sizeof *s.height);
    s.waiting = mem_alloc((size_t)times_n * sizeof *s.waiting);
    begin(&s, order);
    while (s.left_n && peak <= peak_max_bytes && *work_left > 0) {
        int32_t from, until;
        lowest(&s, &from, &until);
        size_t k = find_within(&s, from, until);
        *work_left -= times_n + (int64_t)k;
        if (k == s.left_n) {
            raise_stretch(&s, from, until);
            continue;
        }
        int64_t at = 0;
        for (int32_t t = s.items[s.left[k]].first; t <= s.items[s.left[k]].last; t++)
            at = s.height[t] > at ? s.height[t] : at;
        int64_t end = put(&s, k, at, offset_bytes);
        peak = end > peak ? end : peak;
    }
    *peak_bytes = peak;
    mem_free(s.left);
    mem_free(s.height);
    mem_free(s.waiting);
    return s.left_n == 0 && peak <= peak_max_bytes;
}
