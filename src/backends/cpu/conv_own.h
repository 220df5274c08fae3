/* conv_own.h - convolutions in float32 by our own products: where oneDNN offers none, and to check
 * it.
 *
 * All data are float32 and ROW. Images go one by one through a matrix of taps (im2col) of
 * [ic/groups * k0 * k1, out0 * out1]; bits do not depend on the number of threads.
 */
#ifndef BACKENDS_CPU_CONV_OWN_H
#define BACKENDS_CPU_CONV_OWN_H

#include "backends/cpu/conv.h"
#include "backends/cpu/vec.h"

struct conv_own_data {
    float *x, *w, *y;
    const float *bias; /* forward: per output channel; or NULL */
    void *workspace;
};
#define conv_own_bytes ISA_GLUE(conv_own_bytes, ISA_SUFFIX)
int64_t conv_own_bytes(enum conv_way way, const struct conv_size *s, int threads);
/* A weight gradient is added to w when `add`. */
#define conv_own_run ISA_GLUE(conv_own_run, ISA_SUFFIX)
void conv_own_run(
    enum conv_way way, const struct conv_size *s, const struct conv_own_data *d, bool add,
    int threads);

#endif
