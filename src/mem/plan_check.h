/* plan_check.h - says whether a plan is right, without trusting the planner.
 *
 * Shares no code with plan.c: a sweep over the operations keeps the live buffers sorted by offset
 * and compares each newcomer with its two neighbours.
 */
#ifndef MEM_PLAN_CHECK_H
#define MEM_PLAN_CHECK_H

#include "mem/plan.h"

/* ST_INTERNAL, with the buffers, operation and bytes, unless: every offset is aligned and not
 * negative; buffers live at the same operation do not overlap; granule_bytes, peak_bytes and
 * lower_bound_bytes are what plan.h defines, recomputed here. */
enum status mem_plan_check(
    const struct mem_plan_buffer *buffers, size_t n, const struct mem_plan *p,
    struct err *e) NODISCARD;

#endif
