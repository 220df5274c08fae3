/* plan.h - the static storage planner: lifetimes in, one offset per buffer out.
 *
 * A program is a list of operations numbered from 0. A buffer is live from operation `first` to
 * operation `last`, both included; two buffers that are live at the same operation must not
 * overlap in memory. The planner knows nothing of programs or tensors: values that share storage
 * (views, in-place results) are merged by the caller into one buffer, with mem_plan_resolve.
 *
 * Bytes are counted in granules. The granule of a plan is the smallest alignment among its
 * buffers (64 when they leave it at 0), and every size is rounded up to it. From there:
 *     lower_bound_bytes   the largest sum of rounded sizes live at one operation
 *     peak_bytes          the largest offset + rounded size
 * No plan can have a peak below the bound; the difference is lost to fragmentation ("gaps").
 *
 * The plan is a pure function of buffers and options: no clock, no address, no thread has a say.
 */
#ifndef MEM_PLAN_H
#define MEM_PLAN_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { MEM_PLAN_ALIGNMENT = 64 };

struct mem_plan_buffer {
    int64_t size_bytes;  /* 0 is allowed: such a buffer gets offset 0 and holds nothing */
    int64_t first, last; /* 0 <= first <= last */
    int64_t alignment;   /* a power of two up to 2^30; 0 is MEM_PLAN_ALIGNMENT */
    int tag;             /* the caller's category; the planner ignores it */
};

enum mem_plan_strategy {
#define X(name, rank, fit, forget, text) MEM_PLAN_##name,
#include "mem/plan_strategies.def"
#undef X
    MEM_PLAN_IMPROVED,
    MEM_PLAN_EXACT,
    MEM_PLAN_STRATEGY_COUNT
};

struct mem_plan_options {
    /* Bound on the searches for something better when every strategy ends more than 0.5% above the
     * lower bound, in steps of about a nanosecond. 0 is the default, below 0 is no search. */
    int64_t work_max;
    /* > 0: a peak of at most this is good enough, and searches for nothing else: "does it fit?" */
    int64_t capacity_bytes;
    bool optimum; /* go on searching as long as the peak is above the bound at all */
    uint64_t seed;
};

struct mem_plan {
    int64_t *offset_bytes; /* one per buffer, in the order given */
    size_t n;
    int64_t peak_bytes, lower_bound_bytes;
    int64_t granule_bytes;
    enum mem_plan_strategy strategy; /* which one it was */
};

/* `o` may be NULL. ST_INVALID names the buffer that is not as described above; ST_OOM when sizes
 * add up to more than 2^62 bytes. `out` is released with mem_plan_release, also after a failure. */
enum status mem_plan_make(
    const struct mem_plan_buffer *buffers, size_t n, const struct mem_plan_options *o,
    struct mem_plan *out, struct err *e) NODISCARD;
void mem_plan_release(struct mem_plan *p);
/* Size of one buffer as the plan counts it: rounded to the granule. */
int64_t mem_plan_bytes(const struct mem_plan *p, const struct mem_plan_buffer *b);
/* "largest first, best fit" */
const char *mem_plan_strategy_text(enum mem_plan_strategy s);

/* Merges values that share storage. `owner[i]` is i for a value with storage of its own, else the
 * value whose storage it uses (which may itself use another's). Writes one buffer per storage, in
 * order of its owner, with the union of lifetimes, the largest size and alignment, and the owner's
 * tag; storage_of[i] is the buffer of value i. `storage` has room for n. */
enum status mem_plan_resolve(
    const struct mem_plan_buffer *values, const size_t *owner, size_t n,
    struct mem_plan_buffer *storage, size_t *storage_of, size_t *storage_n,
    struct err *e) NODISCARD;

#endif
