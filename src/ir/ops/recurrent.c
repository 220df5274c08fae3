/* recurrent.c - recurrent layers over whole sequences: shape, gradients, cost.
 *
 * The product of the input with its weights is an ordinary GEMM over all steps; RECURRENT does what
 * has to go step by step. Its gradient gives the gradient of the gates; the weights' gradients are
 * again products over all steps: of the gates' gradients with the states before them, which are the
 * result moved by one step (the first step's are zeros, and add nothing).
 */
#include "ir/ops/ops_int.h"

static int64_t gates_of(enum recurrent_kind k)
{
    return k == RECURRENT_LSTM ? 4 : k == RECURRENT_GRU ? 3 : 1;
}

static bool has_cell(enum recurrent_kind k)
{
    return k == RECURRENT_LSTM || k == RECURRENT_GRU;
}

enum status shape_recurrent(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    const struct ir_value *x = op_in(p, op, 0), *w = op_in(p, op, 1), *bias = op_in(p, op, 2);
    const struct recurrent_attr *a = &op->attr.recurrent;
    int64_t gates = gates_of(a->kind);
    if (x->shape.rank != 3 || w->shape.rank != 2 || !dtype_floating(x->dtype) ||
        w->shape.dim[0] != gates * w->shape.dim[1] || x->shape.dim[2] != w->shape.dim[0])
        return err_set(
            e, ST_INVALID, "a recurrent layer of %lld gates cannot take %s with a weight of %s",
            (long long)gates, TEXT(x->shape), TEXT(w->shape));
    if (bias && (bias->shape.rank != 1 || bias->shape.dim[0] != w->shape.dim[0]))
        return err_set(
            e, ST_INVALID, "expected a bias of shape [%lld], got %s", (long long)w->shape.dim[0],
            TEXT(bias->shape));
    int64_t steps = x->shape.dim[0], rows = x->shape.dim[1], units = w->shape.dim[1];
    out[0] = (struct ir_shape_out){.dtype = x->dtype, .shape = x->shape};
    out[1] = (struct ir_shape_out){.dtype = x->dtype, .shape = SHAPE(steps, rows, units)};
    out[2] = (struct ir_shape_out){
        .dtype = DT_F32, .shape = SHAPE(a->keep || steps == 0 ? steps : 1, rows, units)};
    *n_out = has_cell(a->kind) ? 3 : 2;
    return ST_OK;
}

enum status shape_recurrent_grad(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    const struct ir_value *dy = op_in(p, op, 0), *gates = op_in(p, op, 1), *y = op_in(p, op, 2);
    if (!shape_eq(&dy->shape, &y->shape) || gates->shape.rank != 3)
        return err_set(
            e, ST_INVALID, "a gradient of %s for a result of %s", TEXT(dy->shape), TEXT(y->shape));
    out[0] = (struct ir_shape_out){.dtype = gates->dtype, .shape = gates->shape};
    out[1] = (struct ir_shape_out){.dtype = gates->dtype, .shape = y->shape};
    *n_out = op->attr.recurrent.kind == RECURRENT_GRU ? 2 : 1;
    return ST_OK;
}

/* Steps 1.. (`later`) or ..S-2 of a sequence, as rows of a matrix. */
static int steps_of(struct ir_program *p, int x, bool later)
{
    int64_t steps = value_shape(p, x).dim[0];
    return ir_flatten(p, ir_slice(p, x, 0, later, steps - 1, 1), 0, 1);
}

/* Gradient of w: the gates' gradients times the states before them. */
static int weight_grad(struct ir_program *p, const struct recurrent_attr *a, int dx, int dn, int y)
{
    struct shape sx = value_shape(p, dx), sy = value_shape(p, y);
    int64_t units = sy.dim[2];
    if (sx.dim[0] < 2)
        return ir_cast(p, ir_fill(p, SHAPE(sx.dim[2], units), 0), ir_value_at(p, dx)->dtype);
    int state = steps_of(p, y, a->reverse), gate = steps_of(p, dx, !a->reverse);
    if (dn == IR_NONE)
        return ir_gemm(p, gate, state, IR_NONE, true, false);
    int parts[] = {
        ir_gemm(p, ir_slice(p, gate, 1, 0, 2 * units, 1), state, IR_NONE, true, false),
        ir_gemm(p, steps_of(p, dn, !a->reverse), state, IR_NONE, true, false)};
    return ir_concat(p, parts, 2, 0);
}

static int bias_grad(struct ir_program *p, int dx, int dn)
{
    if (dn == IR_NONE)
        return ir_sum(p, dx, 3, false);
    int64_t units = value_shape(p, dn).dim[2];
    int parts[] = {
        ir_sum(p, ir_slice(p, dx, 2, 0, 2 * units, 1), 3, false), ir_sum(p, dn, 3, false)};
    return ir_concat(p, parts, 2, 0);
}

void grad_recurrent(struct ir_grad *g, const struct ir_op *op)
{
    struct ir_program *p = ir_grad_program(g);
    struct recurrent_attr a = op->attr.recurrent;
    int dy = grad_out(g, op, 1), bias = op_arg(op, 2), x = op->in[0], w = op->in[1], y = op->out[1];
    if (dy == IR_NONE)
        return;
    ASSERT(a.keep);
    int in[] = {dy, op->out[0], y, has_cell(a.kind) ? op->out[2] : IR_NONE, w};
    int dx = ir_emit(p, OP_RECURRENT_GRAD, in, 5, &(union op_attr){.recurrent = a});
    int dn = a.kind == RECURRENT_GRU ? ir_out(p, 1) : IR_NONE;
    if (dx == IR_NONE)
        return;
    if (ir_grad_wanted(g, w))
        ir_grad_add(g, w, weight_grad(p, &a, dx, dn, y));
    if (bias != IR_NONE && ir_grad_wanted(g, bias))
        ir_grad_add(g, bias, bias_grad(p, dx, dn));
    if (ir_grad_wanted(g, x))
        ir_grad_add(g, x, dx);
}

/* One product of [N, H] with [H, G H] a step, and about 20 operations a unit. */
static void cost_steps(const struct ir_program *p, const struct ir_op *op, int w, struct ir_cost *c)
{
    struct shape s = op_in(p, op, w)->shape, x = op_in(p, op, w == 1 ? 0 : 1)->shape;
    double rows = (double)x.dim[0] * (double)x.dim[1];
    cost_moves(p, op, c);
    c->flops = rows * (2.0 * (double)s.dim[0] * (double)s.dim[1] + 20.0 * (double)s.dim[1]);
}

void cost_recurrent(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_steps(p, op, 1, c);
}

void cost_recurrent_grad(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_steps(p, op, 4, c);
}

int ir_recurrent(
    struct ir_program *p, int x, int w_ih, int w_hh, int b_ih, int b_hh,
    const struct recurrent_attr *a)
{
    int in[] = {ir_linear(p, x, w_ih, b_ih), w_hh, b_hh};
    if (ir_idle(p, in[0]) || ir_idle(p, w_hh))
        return IR_NONE;
    if (ir_emit(p, OP_RECURRENT, in, 3, &(union op_attr){.recurrent = *a}) == IR_NONE)
        return IR_NONE;
    return ir_out(p, 1);
}
