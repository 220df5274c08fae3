/* update.c - accumulation, the check of the gradients, optimizers: shape, cost. No gradient flows.
 */
#include "ir/ops/ops_int.h"
#include "ir/optim_state.h"

enum status shape_accumulate(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    ir_mutated_outs(p, op, out);
    const struct ir_value *sum = op_in(p, op, 0), *g = op_in(p, op, 1);
    if (!shape_eq(&sum->shape, &g->shape))
        return err_set(
            e, ST_INVALID, "cannot add %s to a sum of %s", TEXT(g->shape), TEXT(sum->shape));
    return ST_OK;
}

enum status shape_copy_into(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    return shape_accumulate(p, op, out, n_out, e);
}

enum status shape_grad_check(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *scale = op_in(p, op, 0);
    if (scale->dtype != DT_F32 || shape_count(&scale->shape) != 1)
        return err_set(e, ST_INVALID, "the loss scale must be a float32 scalar");
    for (int i = 1; i < op->n_in; i++)
        if (!dtype_floating(op_in(p, op, i)->dtype))
            return err_set(e, ST_INVALID, "gradient %d is not floating", i);
    out->dtype = DT_F32;
    out->shape = SHAPE(4);
    return ST_OK;
}

enum status shape_grad_join(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    for (int i = 0; i < op->n_in; i++)
        if (op_in(p, op, i)->dtype != DT_F32 || shape_count(&op_in(p, op, i)->shape) != 4)
            return err_set(e, ST_INVALID, "operand %d is not the float32[4] of grad_check", i);
    out->dtype = DT_F32;
    out->shape = SHAPE(4);
    return ST_OK;
}

static enum status
controls_check(const struct ir_value *hyper, const struct ir_value *ctl, struct err *e)
{
    if (hyper->dtype != DT_F64 ||
        (shape_count(&hyper->shape) != 2 && shape_count(&hyper->shape) != 3 &&
         shape_count(&hyper->shape) != 5))
        return err_set(
            e, ST_INVALID,
            "hyper must be a float64[2] of rate and step, [3] with momentum, or [5] with a seed");
    if (ctl->dtype != DT_F32 || shape_count(&ctl->shape) != 4)
        return err_set(e, ST_INVALID, "ctl must be the float32[4] of grad_check");
    return ST_OK;
}

enum status shape_optimizer(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    ir_mutated_outs(p, op, out);
    int n = op->n_in - 3;
    const struct optim_attr *a = &op->attr.optim;
    const struct ir_value *param = op_in(p, op, 0), *g = op_in(p, op, n);
    *n_out = n;
    if (a->kind < 0 || a->kind >= OPTIM_COUNT)
        return err_set(e, ST_INVALID, "unknown optimizer %d", (int)a->kind);
    if (a->factored && param->shape.rank < 2)
        return err_set(e, ST_INVALID, "%s has no rows and columns", TEXT(param->shape));
    if (n - 1 != optim_state_count(a))
        return err_set(
            e, ST_INTERNAL, "%s keeps %d states, got %d", optim_name(a->kind), optim_state_count(a),
            n - 1);
    for (int i = 0; i < n - 1; i++) {
        const struct ir_value *s = op_in(p, op, i + 1);
        struct shape expected = optim_state_shape(a, i, &param->shape);
        if (!shape_eq(&s->shape, &expected) || s->dtype != optim_state_dtype(a, i))
            return err_set(
                e, ST_INVALID, "expected state %s of %s %s, got %s %s", optim_state_name(a, i),
                dtype_name(optim_state_dtype(a, i)), TEXT(expected), dtype_name(s->dtype),
                TEXT(s->shape));
    }
    if (!shape_eq(&g->shape, &param->shape))
        return err_set(
            e, ST_INVALID, "a gradient of %s for a parameter of %s", TEXT(g->shape),
            TEXT(param->shape));
    return controls_check(op_in(p, op, n + 1), op_in(p, op, n + 2), e);
}

enum status shape_update_ratio(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    TRY(controls_check(op_in(p, op, 0), op_in(p, op, 1), e));
    if (op->n_in % 2)
        return err_set(e, ST_INTERNAL, "parameters and gradients come in pairs");
    for (int i = 2; i < op->n_in; i += 2)
        if (!shape_eq(&op_in(p, op, i)->shape, &op_in(p, op, i + 1)->shape))
            return err_set(
                e, ST_INVALID, "a gradient of %s for a parameter of %s",
                TEXT(op_in(p, op, i + 1)->shape), TEXT(op_in(p, op, i)->shape));
    out->dtype = DT_F32;
    out->shape = shape_scalar();
    return ST_OK;
}

void cost_accumulate(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_each(p, op, 1, c);
}

void cost_grad_check(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_moves(p, op, c);
    c->flops = c->bytes / 2; /* a product and a sum per float32 */
}

void cost_optimizer(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_each(p, op, op->attr.optim.kind == OPTIM_SGD ? 4 : 12, c);
}

void cost_update_ratio(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_grad_check(p, op, c);
}
