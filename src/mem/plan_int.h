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

/* Fills memory from the bottom (plan_skyline.c). False when the peak would pass `peak_max_bytes` or
 * `*work_left`, which counts down, is used up. */
bool plan_skyline(
    const struct plan_item *items, size_t n, int32_t times_n, const uint32_t *order,
    int64_t peak_max_bytes, int64_t *work_left, int64_t *offset_bytes, int64_t *peak_bytes);

/* A complete placement. */
struct plan_layout {
    int64_t *offset_bytes; /* one per item */
    int64_t peak_bytes;
};
/* Searches around `best` for a better layout, for at most `work_max` steps or until it meets the
 * bound; true when it improved. */
bool plan_improve(
    struct placer *p, const struct plan_item *items, size_t n, int64_t bound_bytes,
    int64_t work_max, uint64_t seed, struct plan_layout *best);

#endif
