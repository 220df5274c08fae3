/* summary.h - the table of torch.cuda.memory_summary() in a text: old units (KB, MB, GB) and new,
 * with all rows or abbreviated.
 *
 * A cell is an integer that was divided down, in the unit chosen by its "all" row: "12 GiB" is from
 * 12 to just under 13. Old tables mean 1024 by "KB".
 */
#ifndef DOCTOR_SUMMARY_H
#define DOCTOR_SUMMARY_H

#include "doctor/amount.h"

/* SUMMARY_ROW(field, title): the first row of a group. Bytes, then counts. */
#define SUMMARY_ROWS(X)                                                                            \
    X(allocated, "Allocated memory")                                                               \
    X(active, "Active memory")                                                                     \
    X(requested, "Requested memory")                                                               \
    X(reserved, "GPU reserved memory")                                                             \
    X(inactive_split, "Non-releasable memory")                                                     \
    X(allocations, "Allocations")                                                                  \
    X(active_allocations, "Active allocs")                                                         \
    X(segments, "GPU reserved segments")                                                           \
    X(inactive_splits, "Non-releasable allocs")                                                    \
    X(oversize_allocations, "Oversize allocations")                                                \
    X(oversize_segments, "Oversize GPU segments")

struct summary_row {
    struct amount current, peak, allocated, freed;
};
struct summary {
    int device;            /* -1 unknown */
    int64_t ooms, retries; /* -1 unknown */
    int64_t line;          /* where it begins in the text */
    int rows;              /* read so far */
    bool old_units;
#define X(field, title) struct summary_row field;
    SUMMARY_ROWS(X)
#undef X
};

/* Reads a table line by line; zero it at the start. */
struct summary_reader {
    bool open;
    struct summary table;
};
/* Reads the keys of a printed torch.cuda.memory_stats() in a line into `t`, which starts as
 * summary_unknown gives it; true where there were some. */
bool summary_stats_line(struct summary *t, const char *line);
void summary_unknown(struct summary *t, int64_t line);
/* Returns true where the line belongs to a table; *done is set with the line that ends one, and the
 * table may be taken. */
bool summary_line(struct summary_reader *r, const char *line, int64_t number, bool *done);

#endif
