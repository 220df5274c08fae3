/* plan_exact.h - exact search for storage plans; private to src/mem.
 *
 * METHOD. Canonical placements, inference over time sections, dominance, independent parts and
 * several orders are the ideas of M. D. Moffitt, "MiniMalloc: A Lightweight Memory Allocator for
 * Hardware-Accelerated Machine Learning", ASPLOS 2023; conflicts and weights are those of
 * constraint solvers.
 *  1. Canonical placements. Think of a layout with the least sum of offsets: no item can sink, so
 *     each lies at 0 or on another. A step takes an item below which nothing that lives with it can
 *     go any more, and either places it at the lowest offset that is left to it, or refuses it
 *     there. Whatever lives with a placed item rises above it.
 *  2. Dominance. An item that was refused somewhere must be kept from sinking back there: it will
 *     lie on one that is still to come and that begins below its refused top. Without such a one
 *     the branch ends.
 *  3. Inference. At every section of time the remaining items, one after another at the lowest
 *     offset each can have, must end below the capacity (the one-machine bound with heads).
 *  4. Conflicts. Each lowest offset remembers the placements that it follows from. When a branch
 *     ends, those behind its end are known; choices that are not among them are undone without
 *     being tried elsewhere. Parts of the problem that share no time never mix in a conflict, so
 *     they do not multiply.
 *  5. Weights and orders. Sections where branches end gain weight, and heavy sections come first.
 *     A dozen attempts (an order and a rule each) take turns. Their first turn is long enough for
 *     many ways down and sorts exactly; later ones grow, and blur what they sort by. What one
 *     attempt misses in 250 million steps another often does in a million.
 * A problem turned upside down is the same problem, and run backwards in time it is searched alike
 * but for ties: attempts at mirror images would find nothing else.
 */
#ifndef MEM_PLAN_EXACT_H
#define MEM_PLAN_EXACT_H

#include "plan_int.h"

enum exact_result { EXACT_FITS, EXACT_CANNOT, EXACT_LIMIT };

/* Searches a layout with a peak of at most `capacity_bytes`, and writes its offsets. EXACT_CANNOT
 * is a proof that there is none; EXACT_LIMIT: `work_max` steps were not enough (or the problem is
 * larger than this search takes on). `*work` grows by the steps done, of about a nanosecond each.
 * Deterministic. */
enum exact_result plan_exact(
    const struct plan_item *items, size_t n, int64_t capacity_bytes, int64_t work_max,
    int64_t *work, int64_t *offset_bytes);

/* ---- one order, searched (plan_exact_search.c) ---- */

/* Sizes and offsets are in units of the greatest common divisor of all sizes, as doubles: whole
 * numbers below 2^53, for which every processor has vector instructions. */
struct exact_item {
    double size, align;  /* align 1: none beyond the unit */
    double low;          /* lowest offset that the placed items leave it */
    double offset;       /* where it lies */
    double refused_low;  /* where it was refused */
    int32_t first, last; /* sections */
    bool placed, refused;
};
/* Which item is taken next. */
enum exact_rule {
    RULE_HEAVY, /* of the lowest, that which crosses the heaviest section */
    RULE_TIGHT, /* of the lowest, that which crosses the section with most weight for its slack */
    RULE_RANK,  /* of the lowest, the first */
    RULE_LOCAL  /* the lowest around the section with most weight for its slack */
};
struct exact_order {
    struct exact_item *items; /* by rank */
    size_t n;
    int32_t sections_n;
    double capacity;
    double *weight; /* by section: how often a branch ended there; kept from order to order */
    enum exact_rule rule;
    int64_t work, work_max; /* work grows */
};
/* Leaves the offsets in the items. */
enum exact_result exact_search(struct exact_order *o);

#endif
