/* optim_weights.h - the parameter of an optimizer step as float32: what is stored in a type of 16
 * bits, with a master in float32 or rounded by chance, is read and written here. Private to the
 * kernels of OPTIMIZER.
 */
#ifndef BACKENDS_CPU_OPTIM_WEIGHTS_H
#define BACKENDS_CPU_OPTIM_WEIGHTS_H

#include "backends/cpu/lanes.h"
#include "backends/cpu/nd.h"

struct optim_weights {
    struct nd w, master;
    bool has_master, rounds; /* rounds: up or down by chance, so that the mean is right */
    struct dropout_key chance;
};
/* From the operands of OPTIMIZER; w and master are set by the caller. */
void optim_weights_init(const struct kernel_args *a, struct optim_weights *o);
/* Elements [i, i + n), n <= ND_BLOCK, to be changed in place: in buf, or the memory itself. */
float *optim_weights_read(const struct optim_weights *o, int64_t i, int n, float *buf);
void optim_weights_write(const struct optim_weights *o, int64_t i, int n, const float *x);

#endif
