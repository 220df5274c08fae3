/* topk.c - places along the last dimension: shape, gradients, cost. */
#include "ir/ops/ops_int.h"

/* Values and places must have one shape. */
static enum status
places_check(const struct ir_value *v, const struct ir_value *index, bool same, struct err *e)
{
    struct shape a = v->shape, b = index->shape;
    if (index->dtype != DT_I64)
        return err_set(
            e, ST_INVALID, "expected places of type int64, got %s", dtype_name(index->dtype));
    if (!same && a.rank > 0 && a.rank == b.rank)
        a.dim[a.rank - 1] = b.dim[a.rank - 1];
    if (a.rank > 0 && shape_eq(&a, &b))
        return ST_OK;
    return err_set(e, ST_INVALID, "values %s do not fit places %s", TEXT(v->shape), TEXT(b));
}

enum status shape_topk(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *x = op_in(p, op, 0);
    struct shape s = x->shape;
    int64_t k = op->attr.view.length;
    if (s.rank < 1 || k < 0 || k > s.dim[s.rank - 1])
        return err_set(
            e, ST_INVALID, "selected index k out of range: the %lld largest of %s", (long long)k,
            TEXT(s));
    s.dim[s.rank - 1] = k;
    out[0] = (struct ir_shape_out){.dtype = x->dtype, .shape = s};
    out[1] = (struct ir_shape_out){.dtype = DT_I64, .shape = s};
    return ST_OK;
}

enum status shape_scatter(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *v = op_in(p, op, 0);
    TRY(places_check(v, op_in(p, op, 1), true, e));
    out->dtype = v->dtype;
    out->shape = v->shape;
    out->shape.dim[v->shape.rank - 1] = op->attr.view.length;
    return ST_OK;
}

enum status shape_gather(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    TRY(places_check(op_in(p, op, 0), op_in(p, op, 1), false, e));
    out->dtype = op_in(p, op, 0)->dtype;
    out->shape = op_in(p, op, 1)->shape;
    return ST_OK;
}

static int64_t last_dim(struct ir_program *p, int value)
{
    struct shape s = value_shape(p, value);
    return s.dim[s.rank - 1];
}

void grad_topk(struct ir_grad *g, const struct ir_op *op)
{
    struct ir_program *p = ir_grad_program(g);
    int dv = grad_out(g, op, 0);
    if (dv != IR_NONE)
        ir_grad_add(g, op->in[0], ir_scatter(p, dv, op->out[1], last_dim(p, op->in[0])));
}

void grad_scatter(struct ir_grad *g, const struct ir_op *op)
{
    struct ir_program *p = ir_grad_program(g);
    ir_grad_add(g, op->in[0], ir_gather(p, grad_out(g, op, 0), op->in[1]));
}

void grad_gather(struct ir_grad *g, const struct ir_op *op)
{
    struct ir_program *p = ir_grad_program(g);
    ir_grad_add(g, op->in[0], ir_scatter(p, grad_out(g, op, 0), op->in[1], last_dim(p, op->in[0])));
}

void cost_topk(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_each(p, op, (double)op->attr.view.length, c);
}

int ir_topk(struct ir_program *p, int x, int64_t k)
{
    if (ir_idle(p, x))
        return IR_NONE;
    return ir_emit(p, OP_TOPK, &x, 1, &(union op_attr){.view = {.length = k}});
}

int ir_scatter(struct ir_program *p, int values, int index, int64_t n)
{
    int in[] = {values, index};
    if (ir_idle(p, values) || ir_idle(p, index))
        return IR_NONE;
    return ir_emit(p, OP_SCATTER, in, 2, &(union op_attr){.view = {.length = n}});
}

int ir_gather(struct ir_program *p, int x, int index)
{
    int in[] = {x, index};
    if (ir_idle(p, x) || ir_idle(p, index))
        return IR_NONE;
    return ir_emit(p, OP_GATHER, in, 2, NULL);
}
