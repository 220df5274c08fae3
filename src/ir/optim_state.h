/* optim_state.h - what each optimizer remembers, per parameter: one table (optim_states.def) for
 * the update pass, the kernels, the checkpoints and the estimates.
 *
 * State i of a parameter is operand i + 1 of its OPTIMIZER. Whoever makes a state fills it with
 * optim_state_start; Adagrad's sum with initial_accumulator_value, where that is not 0. SGD's first
 * momentum, the gradient itself, is set by the kernel at update 1. */
#ifndef IR_OPTIM_STATE_H
#define IR_OPTIM_STATE_H

#include "ir/attr.h"

const char *optim_name(enum optim_kind kind); /* "AdamW" */
int optim_state_count(const struct optim_attr *a);
const char *optim_state_name(const struct optim_attr *a, int i); /* "exp_avg" */
struct shape optim_state_shape(const struct optim_attr *a, int i, const struct shape *param);
enum dtype optim_state_dtype(const struct optim_attr *a, int i);
double
optim_state_start(const struct optim_attr *a, int i, double rate); /* rate: of the first update */

#endif
