/* plan_int.h - between the planner's files: items with compressed times, and the placer. */
#ifndef MEM_PLAN_INT_H
#define MEM_PLAN_INT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A buffer as the placer sees it: size rounded to the granule and above 0, times renumbered so
 * that they stay below the number of items. */
struct plan_item {
    int64_t size_bytes, alignment;
    int32_t first, last;
    uint32_t buffer; /* index in the caller's array */
};

enum plan_fit { FIT_BEST, FIT_LOWEST };
/* Which placed items can be dropped: those that end before the item at hand begins (the order is
 * by first use), those that begin after it ends (backwards from last use), or none. */
enum plan_forget { FORGET_NONE, FORGET_PAST, FORGET_FUTURE };

struct placer;
struct placer *placer_new(const struct plan_item *items, size_t n);
void placer_free(struct placer *p);
/* Places the items in `order`. False as soon as one would end above `peak_max_bytes`; else the
 * peak, and the offset of each item. */
bool placer_run(
    struct placer *p, const uint32_t *order, enum plan_fit fit, enum plan_forget forget,
    int64_t peak_max_bytes, int64_t *offset_bytes, int64_t *peak_bytes);
/* Steps done since placer_new. */
int64_t placer_work(const struct placer *p);

/* The second way to place items (plan_skyline.c). Items at the lowest place go first; `order`
 * decides between those that could lie there. False when the peak would pass `peak_max_bytes`, or
 * the steps since skyline_new `work_max`. */
struct skyline;
struct skyline *skyline_new(const struct plan_item *items, size_t n, int32_t times_n);
void skyline_free(struct skyline *s);
bool skyline_run(
    struct skyline *s, const uint32_t *order, int64_t peak_max_bytes, int64_t work_max,
    int64_t *offset_bytes, int64_t *peak_bytes);
int64_t skyline_work(const struct skyline *s);

/* A complete placement. */
struct plan_layout {
    int64_t *offset_bytes; /* one per item */
    int64_t peak_bytes;
};
struct plan_search {
    uint32_t *const *orders; /* to begin with */
    size_t orders_n;
    int64_t work_max;
    uint64_t seed;
};
/* Searches for a layout below `best`, until `work_max` steps are done or it meets the bound; true
 * when `best` improved. */
bool plan_improve(
    const struct plan_item *items, size_t n, int32_t times_n, int64_t bound_bytes,
    const struct plan_search *how, struct plan_layout *best);

#endif
