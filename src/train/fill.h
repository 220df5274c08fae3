/* fill.h - a model's weights in the memory of an executor: first values, and what is exact.
 *
 * A weight in 16 bits may have a master in float32, which is an optimizer state (passes/update.h):
 * then the master is the model's weight, and the parameter only its rounding. Everything that
 * saves, loads or copies weights therefore goes by fill_exact.
 */
#ifndef TRAIN_FILL_H
#define TRAIN_FILL_H

#include "backends/exec.h"
#include "nn/model.h"

/* Writes a variable's first value: initialisation, or a file. The memory is of the dtype and shape
 * that the variable has at the time of the call. */
struct train_weights {
    enum status (*fill)(int var, void *data, void *ctx, struct err *e);
    void *ctx;
    /* Instead of `fill`: weights are copied from where another executor holds them. Its variables
     * are the first from_vars, with weights of type from_dtype (DT_F32 without low ones). */
    struct exec *from;
    size_t from_vars;
    enum dtype from_dtype;
};

/* The variable that holds var's exact value: its master, or itself. Only masters among the first n
 * variables count. */
int fill_exact(const struct ir_vars *vars, int var, size_t n);
/* The type of the model's floating weights: DT_F32, or the type of the first low one. */
enum dtype fill_type(const struct model *m, const struct ir_vars *vars);

/* Variables first .. first + n - 1 of the model's state, or all of them. */
enum status fill_states(
    const struct model *m, struct ir_vars *vars, struct exec *x, const struct train_weights *w,
    int first, int n, struct err *e) NODISCARD;
enum status fill_model(
    const struct model *m, struct ir_vars *vars, struct exec *x, const struct train_weights *w,
    struct err *e) NODISCARD;
/* Weights with masters become the rounding of those. */
void fill_round(const struct model *m, const struct ir_vars *vars, struct exec *x);

#endif
