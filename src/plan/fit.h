/* fit.h - `snug fit`: the cheapest ways to bring a graph's peak below a budget.
 *
 * The levers are the rows of train/levers.def. A way is a set of levers; each is planned as `--set`
 * would have it, so its peak is the one that `snug plan` gives for the changed graph. Three groups:
 * the same numbers to the bit, the same mathematics with other rounding, other numbers. Levers of
 * the last are used only where `allow` has their word. Nothing is ever applied (requirement O3).
 *
 * SEARCH. In each group levers are added one at a time to the FIT_BEAM sets that save most, to see
 * whether the budget can be met at all. If so, sets of levers are tried from the smallest on; a set
 * that contains one that fits already is left out, and in a set that fits every lever is turned
 * back as far as it can be. What is left are ways from which nothing can be taken away.
 *
 * LIMITS: FIT_PLANS_MAX plans a group; FIT_WAYS_MAX ways shown a group, the cheapest.
 */
#ifndef PLAN_FIT_H
#define PLAN_FIT_H

#include "base/json.h"
#include "base/str.h"
#include "runner/run.h"

enum fit_group { FIT_SAME, FIT_ROUNDING, FIT_OTHER, FIT_GROUP_COUNT };
enum { FIT_PLANS_MAX = 600, FIT_BEAM = 6, FIT_WAYS_MAX = 5 };

struct fit_options {
    const char *path; /* the graph file */
    const char *const *sets;
    size_t n_sets;
    int64_t budget_bytes;
    const char *allow;      /* words separated by commas; NULL: none */
    struct run_options run; /* device, seed, threads */
    void (*progress)(int plans, int64_t least_bytes, void *ctx); /* after each plan; may be NULL */
    bool (*stop)(void *ctx);                                     /* may be NULL */
    void *ctx;
};

struct fit;
/* ST_USAGE for a word of `allow` that no lever has. Options outlive the fit. */
enum status fit_search(const struct fit_options *o, struct fit **out, struct err *e) NODISCARD;
void fit_free(struct fit *f);

/* ST_FAILED where no way was found: the least peak and what stands in the way. */
enum status fit_verdict(const struct fit *f, struct err *e) NODISCARD;
/* The graph with the first way (the cheapest of the first group that has one), or as it is where it
 * fits already. */
enum status fit_write(const struct fit *f, const char *path, struct err *e) NODISCARD;
json_t *fit_json(const struct fit *f); /* a new reference */
void fit_text(const struct fit *f, struct str *out);

#endif
