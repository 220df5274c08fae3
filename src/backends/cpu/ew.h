/* ew.h - runs a function over all elements of up to four operands and one result. */
#ifndef BACKENDS_CPU_EW_H
#define BACKENDS_CPU_EW_H

#include "backends/backend.h"

enum { EW_INPUTS = 4 };
struct ew_call {
    const struct kernel_args *args;
    const void *more; /* the kernel's own */
    /* y[0..n) from x[k][0..n). */
    void (*block)(const struct ew_call *c, const float *const *x, float *y, int n);
    /* The same in double, when an operand has a type that float32 does not hold; NULL: none. */
    void (*wide)(const struct ew_call *c, const double *const *x, double *y, int n);
};
/* Broadcasts in[0..n_in) to out; any layouts and strides; in may share out's storage when it lies
 * exactly as out does. */
enum status ew_run(
    const struct ew_call *c, const struct tensor *out, const struct tensor *const *in, int n_in,
    struct err *e) NODISCARD;

#endif
