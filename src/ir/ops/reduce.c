/* reduce.c - sums, means, argmax, counting, softmax: shape, gradients, cost. */
#include "ir/ops/ops_int.h"

static struct shape reduced(const struct shape *x, uint32_t dims, bool keepdim)
{
    struct shape s = {0};
    for (int i = 0; i < x->rank; i++) {
        if (!(dims >> i & 1))
            s.dim[s.rank++] = x->dim[i];
        else if (keepdim)
            s.dim[s.rank++] = 1;
    }
    return s;
}

enum status shape_reduce(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *x = op_in(p, op, 0);
    const struct reduce_attr *a = &op->attr.reduce;
    if (a->dims >> x->shape.rank)
        return err_set(
            e, ST_INVALID, "cannot reduce over dimensions that %s lacks", TEXT(x->shape));
    out->dtype = a->f32_out ? DT_F32 : x->dtype;
    if (!dtype_floating(x->dtype)) {
        if (op->code == OP_MEAN)
            return err_set(
                e, ST_INVALID, "mean needs floating values, got %s", dtype_name(x->dtype));
        out->dtype = DT_I64;
    }
    out->shape = reduced(&x->shape, a->dims, a->keepdim);
    return ST_OK;
}

void grad_reduce(struct ir_grad *g, const struct ir_op *op)
{
    struct ir_program *p = ir_grad_program(g);
    struct shape x = value_shape(p, op->in[0]);
    struct shape kept = reduced(&x, op->attr.reduce.dims, true);
    int dy = grad_out(g, op, 0);
    if (op->code == OP_MEAN) { /* divided, not multiplied by the inverse: PyTorch's rounding */
        double n = (double)shape_count(&x) / (double)shape_count(&kept);
        enum dtype t = p->values.data[dy].dtype;
        dy = ir_cast(p, ir_binary(p, OP_DIV, dy, ir_fill(p, shape_scalar(), n)), t);
    }
    ir_grad_add(g, op->in[0], ir_expand(p, ir_reshape(p, dy, kept), x));
}

enum status shape_argmax(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *x = op_in(p, op, 0);
    int dim = op->attr.view.dim;
    if (dim < 0 || dim >= x->shape.rank || x->shape.dim[dim] == 0)
        return err_set(e, ST_INVALID, "argmax over dimension %d of %s", dim, TEXT(x->shape));
    out->dtype = DT_I64;
    out->shape = reduced(&x->shape, 1U << dim, op->attr.view.keepdim);
    return ST_OK;
}

enum status shape_count_correct(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *x = op_in(p, op, 0), *t = op_in(p, op, 1);
    if (x->shape.rank < 2)
        return err_set(
            e, ST_INVALID, "expected scores of shape [N, C, ..], got %s", TEXT(x->shape));
    struct shape expected = reduced(&x->shape, 2, false);
    if (!shape_eq(&expected, &t->shape) || dtype_floating(t->dtype))
        return err_set(
            e, ST_INVALID, "expected target size %s of class indices, got %s (%s)", TEXT(expected),
            TEXT(t->shape), dtype_name(t->dtype));
    out->dtype = DT_I64;
    out->shape = SHAPE(2);
    return ST_OK;
}

enum status shape_softmax(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *x = op_in(p, op, 0);
    int dim = op->attr.view.dim;
    if (dim < 0 || dim >= (x->shape.rank ? x->shape.rank : 1))
        return err_set(e, ST_INVALID, "softmax over dimension %d of %s", dim, TEXT(x->shape));
    if (!dtype_floating(x->dtype))
        return err_set(
            e, ST_INVALID, "softmax needs floating values, got %s", dtype_name(x->dtype));
    out->dtype = x->dtype;
    out->shape = x->shape;
    return ST_OK;
}

void grad_softmax(struct ir_grad *g, const struct ir_op *op)
{
    enum opcode code = op->code == OP_SOFTMAX ? OP_SOFTMAX_GRAD : OP_LOG_SOFTMAX_GRAD;
    int in[] = {grad_out(g, op, 0), op->out[0]};
    ir_grad_add(g, op->in[0], ir_emit(ir_grad_program(g), code, in, 2, &op->attr));
}

void cost_reduce(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_each(p, op, 1, c);
}

void cost_argmax(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_each(p, op, 1, c);
}

void cost_count_correct(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_each(p, op, 1, c);
}

void cost_softmax(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_each(p, op, 12, c);
}
