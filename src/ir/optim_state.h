/* optim_state.h - what each optimizer remembers, per parameter: one table (optim_states.def) for
 * the update pass, the kernels, the checkpoints and the estimates.
 *
 * State i of a parameter is operand i + 1 of its OPTIMIZER. Whoever makes a state fills it with
 * optim_state_start; Adagrad's sum with initial_accumulator_value, where that is not 0. SGD's first
 * momentum, the gradient itself, is set by the kernel at update 1.
 *
 * Forms beside float32 (attributes of one parameter, made by optim_attr_for):
 *   master   state 0 is "master", the parameter in float32; its maker fills it with the parameter
 *   int8     instead of each state "x" there are "x_codes", uint8 of the parameter's shape, and,
 *            after all of these, "x_absmax", one float32 per block of QUANT_STATE_BLOCK elements
 *            in row-major order (quant.h)
 */
#ifndef IR_OPTIM_STATE_H
#define IR_OPTIM_STATE_H

#include "base/err.h"
#include "ir/attr.h"

const char *optim_name(enum optim_kind kind); /* "AdamW" */

/* The attributes for one parameter of this shape, type and name: parameters of fewer than
 * QUANT_STATE_LEAST elements keep float32 states; masters and stochastic rounding are for
 * low-precision ones. */
struct optim_attr optim_attr_for(
    const struct optim_attr *a, const struct shape *param, enum dtype type, const char *name);
/* ST_UNSUPPORTED, naming what is not, when a's states have no 8-bit form. */
enum status optim_int8_check(const struct optim_attr *a, struct err *e) NODISCARD;

int optim_state_count(const struct optim_attr *a);
const char *optim_state_name(const struct optim_attr *a, int i); /* "exp_avg" */
struct shape optim_state_shape(const struct optim_attr *a, int i, const struct shape *param);
enum dtype optim_state_dtype(const struct optim_attr *a, int i);
/* What every element is before the first update, whose rate is `rate`. */
double optim_state_start(const struct optim_attr *a, int i, double rate);
/* States of the parameter's shape, masters and scales aside; whether number k takes both signs. */
int optim_state_full(const struct optim_attr *a);
bool optim_state_signed(const struct optim_attr *a, int k);

#endif
