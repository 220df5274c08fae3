/* update.h - the end of a training step: accumulation, gradient check, optimizer.
 *
 * A window is the `accumulate_steps` micro-batches between two updates. Its programs:
 *   ONLY    the window is one micro-batch: gradients live only inside the program
 *   FIRST   writes the gradient accumulators
 *   MIDDLE  adds to them
 *   LAST    adds to them, then updates
 * The loss gradient is seeded with loss_scale / N by the host, so every window, the short one too,
 * is divided by N (requirements A1, A6), and the reported loss is not (A5).
 *
 * Inputs that an updating program gets from the host:
 *   "hyper"       f64[2]  learning rate, number of this update; [3] or [5]: ops.def
 *   "loss_scale"  f32     what the loss was multiplied by
 * Outputs: "ctl" f32[4] (ops.def), "update_ratio" f32 when asked for.
 */
#ifndef PASSES_UPDATE_H
#define PASSES_UPDATE_H

#include "ir/program.h"

enum window { WINDOW_ONLY, WINDOW_FIRST, WINDOW_MIDDLE, WINDOW_LAST };

struct update_options {
    enum window window;
    struct optim_attr optim;
    double max_norm;      /* 0: no clipping */
    bool allow_nonfinite; /* a gradient scaler is on: skip, do not fail */
    bool log_update_ratio;
    bool cycles_momentum; /* hyper has a third element: ops.def */
    bool early;           /* each parameter as soon as its gradient is there (L5). Window ONLY, no
                             clipping, no scaler, no update ratio: they need the whole gradient */
};

/* Variables of the update, by parameter variable: accumulator and optimizer state. */
enum { UPDATE_STATES_MAX = 5 };
struct update_vars {
    int *accumulator;                /* by variable; IR_NONE: none */
    int (*state)[UPDATE_STATES_MAX]; /* by variable, in the order of optim_state.h */
    size_t n;
};
/* Makes state variables (and accumulators when `accumulates`) for every trainable variable that
 * has a gradient in grad_of_var; the rest is left alone by the update (requirement L2). */
void update_vars_make(
    struct ir_vars *vars, const struct optim_attr *optim, bool accumulates, const int *grad_of_var,
    size_t n, struct update_vars *out);
void update_vars_release(struct update_vars *u);

/* Appends to a program that has gradients. grad_of_var as ir_backward gave it. */
enum status pass_update(
    struct ir_program *p, const struct update_options *o, const int *grad_of_var,
    const struct update_vars *u, struct err *e) NODISCARD;

/* Moves every operator of the update to the earliest place it can have: after what it reads, and
 * after the last operator that reads what it replaces (a tied weight waits for its last use). So a
 * gradient is freed as soon as its parameter is updated. pass_update calls it. */
enum status update_early(struct ir_program *p, struct err *e) NODISCARD;

#endif
