/* growth.h - iterations of a program in a trace, and what stays behind in each.
 *
 * ITERATIONS, by the first that gives at least GROWTH_ITERATIONS_MIN: the steps of our own
 * snapshots; the user's annotations (Optimizer.step#..., ProfilerStep#n); steps of the optimizer in
 * the stacks; a line of the user's outermost loop that comes again; calls of the outermost module;
 * a period of the sequence of sizes; one line that makes the same size again and again. The live bytes are compared at the
 * beginnings; the first two iterations (states, caches and workspaces appear) do not count where
 * there are five or more.
 *
 * What grows at a place: bytes that were allocated there in an iteration and still live when the
 * next but one begins, or at the end.
 */
#ifndef DOCTOR_GROWTH_H
#define DOCTOR_GROWTH_H

#include "doctor/walk.h"

enum { GROWTH_ITERATIONS_MIN = 3, GROWTH_WARM = 2 };

struct growth_row {
    uint32_t group;
    uint8_t category;
    uint32_t iterations_n; /* in which it left something behind */
    uint32_t n;
    int64_t bytes;
    uint32_t life; /* an example */
};
struct growth_report {
    const char *by;      /* how the iterations were found; NULL: none were */
    bool by_optimizer;   /* they begin at steps of the optimizer, or of a run */
    uint32_t *begins;    /* events */
    int64_t *live_bytes; /* there */
    uint32_t n, first;   /* of them the first that counts */
    bool rising;
    bool swings;         /* an iteration rises and falls by three times what it leaves, and more */
    int64_t total_bytes; /* from the first that counts to the last */
    double bytes_per_iteration; /* the median of the differences */
    struct growth_row *rows;    /* most bytes first */
    uint32_t rows_n;
    int64_t kept_bytes;            /* in all rows */
    int64_t kept_activation_bytes; /* of them made within modules in a forward pass */
    uint32_t kept_places_n;        /* places of modules that they were made at */
};
void growth_find(const struct walk *w, struct growth_report *out);
void growth_release(struct growth_report *g);
/* Where the iteration of a moment begins; SNAP_NONE: not known. */
uint32_t growth_iteration(const struct growth_report *g, uint32_t moment);

/* Whether a forward pass keeps its activations: of what was allocated within modules from `begin`
 * (of the iteration; SNAP_NONE: of the trace), but after the last backward pass, the share (by
 * number) that lives at `moment`, 0 to 1; -1 where there is too little to say. Without gradients
 * nearly nothing of it lives. */
double growth_kept_share(const struct walk *w, uint32_t begin, uint32_t moment);

#endif
