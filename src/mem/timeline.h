/* timeline.h - what a plan holds at each operation, for bills and reports.
 *
 * Bytes are rounded to the plan's granule, so at the peak operation the sums by tag plus
 * `gap_bytes` are the plan's peak.
 */
#ifndef MEM_TIMELINE_H
#define MEM_TIMELINE_H

#include "mem/plan.h"

enum { MEM_TIMELINE_TAGS = 16 }; /* tags outside 0..15 count as 15 */

struct mem_timeline_op {
    int64_t live_bytes; /* while the operation runs: its inputs and outputs are both live */
    int64_t tag_bytes[MEM_TIMELINE_TAGS];
};

struct mem_timeline {
    struct mem_timeline_op *ops;
    size_t ops_n;
    size_t peak_op;    /* the first operation with the most live bytes */
    int64_t gap_bytes; /* the plan's peak - live bytes at peak_op: lost to fragmentation */
    /* Buffers live at peak_op that hold bytes, largest first, then by index. */
    size_t *at_peak;
    size_t at_peak_n;
};

/* `ops_n` is above the last operation of every buffer (asserted). Released by the caller. */
void mem_timeline_make(
    const struct mem_plan_buffer *buffers, const struct mem_plan *p, size_t ops_n,
    struct mem_timeline *out);
void mem_timeline_release(struct mem_timeline *t);
/* Size of one buffer as the plan counts it. */
int64_t mem_timeline_bytes(const struct mem_plan_buffer *b, const struct mem_plan *p);

#endif
