/* init.h - starting values of parameters and buffers.
 *
 * The distributions are those of PyTorch's reset_parameters(). The numbers are drawn from (seed,
 * name) alone, so a layer starts the same whatever stands around it. */
#ifndef NN_INIT_H
#define NN_INIT_H

#include "ir/dtype.h"

enum init_kind {
    INIT_CONSTANT, /* all `value` */
    INIT_UNIFORM,  /* in [-value, value) */
    INIT_NORMAL    /* mean 0, deviation `value` */
};
struct init {
    enum init_kind kind;
    double value;
    int64_t zero_from, zero_count; /* elements set to zero afterwards: the row of padding_idx */
};

static inline struct init init_constant(double value)
{
    return (struct init){.kind = INIT_CONSTANT, .value = value};
}
/* kaiming_uniform_(a=sqrt(5)) for weights, and the matching bound for biases: both 1/sqrt(fan_in).
 */
struct init init_fan_in(int64_t fan_in);
/* xavier_uniform_: bound sqrt(6 / (fan_in + fan_out)) */
struct init init_xavier(int64_t fan_in, int64_t fan_out);
void init_fill(
    const struct init *i, const char *name, uint64_t seed, enum dtype t, int64_t count, void *data);

#endif
