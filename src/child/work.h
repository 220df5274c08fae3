/* work.h - one run of a start_order, from its folder to its result.json; private to src/child. */
#ifndef CHILD_WORK_H
#define CHILD_WORK_H

#include "base/err.h"
#include "runner/cache.h"

struct work {
    const char *dir;
    struct run_cache *cache; /* of a warm canvas child; NULL: the run starts fresh (R17) */
    bool (*stop)(void *ctx);
    void *ctx;
};
/* Executes DIR/start.json. Returns the exit status of the run. */
int work_run(const struct work *w);
/* Writes DIR/result.json with nothing but the stack: for a process without memory. */
void work_result_of_exhausted(const char *dir);

#endif
