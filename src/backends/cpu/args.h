/* args.h - small helpers for kernels: operands that may be absent, and the thread count that a
 * workspace was sized for. */
#ifndef BACKENDS_CPU_ARGS_H
#define BACKENDS_CPU_ARGS_H

#include "backends/backend.h"

/* True when optional operand i is there. In prepare data pointers are NULL: an absent operand is a
 * zeroed tensor, which has rank 0. */
static inline bool arg_present(const struct kernel_args *a, int i)
{
    return i < a->n_in && (a->in[i].data || a->in[i].shape.rank > 0);
}

/* The thread count at the time of prepare, as kernel state (mem_free releases it). Running on
 * another number later could overrun a workspace that was sized per thread. */
static inline void *threads_keep(int threads)
{
    int *p = mem_alloc(sizeof *p);
    *p = threads;
    return p;
}
static inline int threads_kept(const void *state)
{
    return *(const int *)state;
}

#endif
