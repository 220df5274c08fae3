/* norm.c - batch, layer, group and root mean square normalisation: shape, gradients, cost.
 *
 * Statistics are float32: [C] (batch), [rows] (layer, rms), [N, groups] (group). The mean of rms is
 * 0, its rstd is 1 / sqrt(mean(x^2) + eps). The gradient of
 * NORM_APPLY is that of the whole normalisation; nothing flows through the statistics apart. */
#include "ir/ops/ops_int.h"

static enum status norm_check(const struct norm_attr *a, const struct ir_value *x, struct err *e)
{
    if (!dtype_floating(x->dtype))
        return err_set(
            e, ST_INVALID, "normalisation needs floating values, got %s", dtype_name(x->dtype));
    if (norm_by_rows(a->kind)) {
        if (a->trailing < 1 || a->trailing > x->shape.rank)
            return err_set(
                e, ST_INVALID, "cannot normalise the last %d dimensions of %s", a->trailing,
                TEXT(x->shape));
        return ST_OK;
    }
    if (x->shape.rank < 2)
        return err_set(e, ST_INVALID, "expected at least 2D input, got %s", TEXT(x->shape));
    if (a->kind == NORM_GROUP && (a->groups < 1 || x->shape.dim[1] % a->groups))
        return err_set(
            e, ST_INVALID,
            "expected number of channels in input to be divisible by num_groups, got input of "
            "shape %s "
            "and num_groups=%lld",
            TEXT(x->shape), (long long)a->groups);
    return ST_OK;
}

static struct shape stats_shape(const struct norm_attr *a, const struct shape *x)
{
    if (a->kind == NORM_BATCH)
        return SHAPE(x->dim[1]);
    if (a->kind == NORM_GROUP)
        return SHAPE(x->dim[0], a->groups);
    struct shape lead = {.rank = x->rank - a->trailing};
    for (int i = 0; i < lead.rank; i++)
        lead.dim[i] = x->dim[i];
    return SHAPE(shape_count(&lead));
}

static struct shape gamma_shape(const struct norm_attr *a, const struct shape *x)
{
    if (!norm_by_rows(a->kind))
        return SHAPE(x->dim[1]);
    return shape_of(a->trailing, x->dim + x->rank - a->trailing);
}

static enum status like(const struct ir_value *v, struct shape s, const char *what, struct err *e)
{
    if (!v || shape_eq(&v->shape, &s))
        return ST_OK;
    return err_set(e, ST_INVALID, "expected %s of shape %s, got %s", what, TEXT(s), TEXT(v->shape));
}

static enum status stats_out(
    const struct norm_attr *a, const struct ir_value *x, struct ir_shape_out *out, struct err *e)
{
    TRY(norm_check(a, x, e));
    for (int i = 0; i < 2; i++) {
        out[i].dtype = DT_F32;
        out[i].shape = stats_shape(a, &x->shape);
    }
    return ST_OK;
}

enum status shape_batch_stats(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *x = op_in(p, op, 3);
    ir_mutated_outs(p, op, out);
    TRY(stats_out(&op->attr.norm, x, out + 3, e));
    for (int i = 0; i < 2; i++)
        if (!shape_eq(&op_in(p, op, i)->shape, &out[3].shape))
            return err_set(
                e, ST_INVALID, "running_%s should contain %lld elements not %s", i ? "var" : "mean",
                (long long)x->shape.dim[1], TEXT(op_in(p, op, i)->shape));
    if (op_in(p, op, 2)->dtype != DT_I64)
        return err_set(e, ST_INVALID, "num_batches_tracked must be int64");
    return ST_OK;
}

enum status shape_norm_stats(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    return stats_out(&op->attr.norm, op_in(p, op, 0), out, e);
}

/* x mean rstd gamma beta, from operand `first` on. */
static enum status
operands_check(const struct ir_program *p, const struct ir_op *op, int first, struct err *e)
{
    const struct norm_attr *a = &op->attr.norm;
    const struct ir_value *x = op_in(p, op, first);
    TRY(norm_check(a, x, e));
    struct shape stats = stats_shape(a, &x->shape), gamma = gamma_shape(a, &x->shape);
    TRY(like(op_in(p, op, first + 1), stats, "mean", e));
    TRY(like(op_in(p, op, first + 2), stats, "variance", e));
    TRY(like(op_in(p, op, first + 3), gamma, "weight", e));
    return like(op_in(p, op, first + 4), gamma, "bias", e);
}

enum status shape_norm_apply(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *x = op_in(p, op, 0);
    TRY(operands_check(p, op, 0, e));
    TRY(like(op_in(p, op, 5), x->shape, "residual", e));
    out->dtype = x->dtype;
    out->shape = x->shape;
    return ST_OK;
}

enum status shape_norm_grad(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *dy = op_in(p, op, 0), *x = op_in(p, op, 1);
    TRY(operands_check(p, op, 1, e));
    TRY(like(dy, x->shape, "gradient", e));
    out[0].dtype = dy->dtype;
    out[0].shape = x->shape;
    for (int i = 1; i < 3; i++) {
        out[i].dtype = DT_F32;
        out[i].shape = gamma_shape(&op->attr.norm, &x->shape);
    }
    return ST_OK;
}

/* ---- gradients ---- */

/* Evaluation: the statistics are constants, y = (x - mean) / sqrt(var + eps) * gamma + beta. */
static void grad_infer(struct ir_grad *g, const struct ir_op *op, int dy)
{
    struct ir_program *p = ir_grad_program(g);
    int x = op->in[0], gamma = op_arg(op, 3), beta = op_arg(op, 4);
    struct shape along = value_shape(p, x);
    uint32_t all = (1U << along.rank) - 1;
    for (int i = 0; i < along.rank; i++)
        along.dim[i] = i == 1 ? along.dim[1] : 1;
    int mean = ir_reshape(p, op->in[1], along);
    int deviation = ir_unary(p, OP_SQRT, ir_affine(p, op->in[2], 1, op->attr.norm.eps));
    int rstd = ir_reshape(p, ir_unary(p, OP_RECIPROCAL, deviation), along);
    if (beta != IR_NONE && ir_grad_wanted(g, beta))
        ir_grad_add(g, beta, ir_sum(p, dy, all & ~2U, false));
    if (gamma != IR_NONE && ir_grad_wanted(g, gamma)) {
        int centred = ir_binary(p, OP_MUL, ir_binary(p, OP_SUB, x, mean), rstd);
        ir_grad_add(g, gamma, ir_sum(p, ir_binary(p, OP_MUL, dy, centred), all & ~2U, false));
    }
    if (!ir_grad_wanted(g, x))
        return;
    int scale = gamma == IR_NONE ? rstd : ir_binary(p, OP_MUL, rstd, ir_reshape(p, gamma, along));
    ir_grad_add(g, x, ir_binary(p, OP_MUL, dy, scale));
}

void grad_norm_apply(struct ir_grad *g, const struct ir_op *op)
{
    struct ir_program *p = ir_grad_program(g);
    int x = op->in[0], gamma = op_arg(op, 3), beta = op_arg(op, 4), residual = op_arg(op, 5);
    int dy = grad_out(g, op, 0);
    union op_attr attr = {.norm = op->attr.norm};
    attr.norm.act = ACT_NONE;
    if (op->attr.norm.act == ACT_RELU)
        dy = ir_binary(p, OP_RELU_GRAD, dy, op->out[0]);
    if (residual != IR_NONE && ir_grad_wanted(g, residual))
        ir_grad_add(g, residual, dy);
    if (op->attr.norm.infer && op->attr.norm.kind == NORM_BATCH) {
        grad_infer(g, op, dy);
        return;
    }
    int in[] = {dy, x, op->in[1], op->in[2], gamma, beta};
    int dx = ir_emit(p, OP_NORM_GRAD, in, 6, &attr);
    if (dx == IR_NONE)
        return;
    int dgamma = ir_out(p, 1), dbeta = ir_out(p, 2);
    if (beta != IR_NONE && ir_grad_wanted(g, beta))
        ir_grad_add(g, beta, dbeta);
    if (gamma != IR_NONE && ir_grad_wanted(g, gamma))
        ir_grad_add(g, gamma, dgamma);
    if (ir_grad_wanted(g, x))
        ir_grad_add(g, x, dx);
}

/* ---- costs ---- */

void cost_batch_stats(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_moves(p, op, c);
    c->flops = 4.0 * (double)shape_count(&op_in(p, op, 3)->shape);
}

void cost_norm_stats(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_each(p, op, 4, c);
}

void cost_norm_apply(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_each(p, op, 4, c);
}

void cost_norm_grad(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_each(p, op, 10, c);
}
