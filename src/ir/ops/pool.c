/* pool.c - pooling: shape, gradients, cost. */
#include "ir/ops/ops_int.h"

static int axis_of(const struct pool_attr *a, int i)
{
    return a->spatial == 2 ? 2 + i : 1 + i;
}
static int first_spatial(const struct pool_attr *a)
{
    return 2 - a->spatial;
}

static enum status attr_check(const struct pool_attr *a, const struct ir_value *x, struct err *e)
{
    int64_t limit = (int64_t)1 << 40; /* keeps the size formulas inside 64 bits */
    if (a->spatial != 1 && a->spatial != 2)
        return err_set(e, ST_INVALID, "cannot pool over %d dimensions", a->spatial);
    if (x->shape.rank != a->spatial + 2)
        return err_set(
            e, ST_INVALID, "expected %dD or %dD input to pool%dd, got %s", a->spatial + 1,
            a->spatial + 2, a->spatial, TEXT(x->shape));
    if (!dtype_floating(x->dtype))
        return err_set(
            e, ST_INVALID, "pool%dd needs floating values, got %s", a->spatial,
            dtype_name(x->dtype));
    for (int i = 0; i < 2 && !a->adaptive; i++) {
        if (a->kernel[i] < 1 || a->stride[i] < 1 || a->dilation[i] < 1)
            return err_set(
                e, ST_INVALID, "kernel size, stride and dilation should be greater than zero");
        if (a->kernel[i] > limit / 1024 || a->stride[i] > limit || a->dilation[i] > 1024 * 1024)
            return err_set(e, ST_INVALID, "kernel size, stride or dilation is absurdly large");
        if (a->pad[i] < 0 || a->pad[i] > a->kernel[i] / 2)
            return err_set(
                e, ST_INVALID,
                "pad should be at most half of kernel size, but got pad=%lld and kernel_size=%lld",
                (long long)a->pad[i], (long long)a->kernel[i]);
    }
    return ST_OK;
}

/* PyTorch's pooling_output_shape: the last window must start inside the input or its left padding.
 */
static int64_t pool_size(const struct pool_attr *a, int i, int64_t input)
{
    int64_t room = input + 2 * a->pad[i] - a->dilation[i] * (a->kernel[i] - 1) - 1;
    if (room < 0 && !(a->ceil_mode && room > -a->stride[i]))
        return 0;
    int64_t n = (room + (a->ceil_mode ? a->stride[i] - 1 : 0)) / a->stride[i] + 1;
    if (a->ceil_mode && (n - 1) * a->stride[i] >= input + a->pad[i])
        n--;
    return n;
}

static enum status
pooled(const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, struct err *e)
{
    const struct pool_attr *a = &op->attr.pool;
    const struct ir_value *x = op_in(p, op, 0);
    TRY(attr_check(a, x, e));
    out->dtype = x->dtype;
    out->shape = x->shape;
    for (int i = first_spatial(a); i < 2; i++) {
        int d = axis_of(a, i);
        out->shape.dim[d] = a->adaptive ? a->output[i] : pool_size(a, i, x->shape.dim[d]);
        if (a->adaptive && (a->output[i] < 0 || (x->shape.dim[d] == 0 && a->output[i])))
            return err_set(
                e, ST_INVALID, "cannot pool %s to a size of %lld", TEXT(x->shape),
                (long long)a->output[i]);
        if (!a->adaptive && out->shape.dim[d] < 1)
            return err_set(
                e, ST_INVALID, "given input size %s, calculated output size %lld is too small",
                TEXT(x->shape), (long long)out->shape.dim[d]);
    }
    return ST_OK;
}

/* Places in the largest window. Adaptive windows run from floor(o*I/O) to ceil((o+1)*I/O). */
static double window_places(const struct pool_attr *a, const struct shape *x)
{
    double places = 1;
    for (int i = first_spatial(a); i < 2; i++) {
        int64_t in = x->dim[axis_of(a, i)], n = a->output[i];
        int64_t widest = !a->adaptive ? a->kernel[i] : n < 1 ? 1 : in % n ? in / n + 2 : in / n;
        places *= (double)widest;
    }
    return places;
}

enum status shape_max_pool(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    TRY(pooled(p, op, out, e));
    double places = window_places(&op->attr.pool, &op_in(p, op, 0)->shape);
    if (places > 2147483647.0)
        return err_set(e, ST_INVALID, "a pooling window of %.0f places is too large", places);
    out[1].dtype = places > 255 ? DT_I32 : DT_U8;
    out[1].shape = out[0].shape;
    return ST_OK;
}

enum status shape_avg_pool(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    if (op->attr.pool.divisor < 0)
        return err_set(e, ST_INVALID, "divisor must be not zero or negative");
    return pooled(p, op, out, e);
}

/* The input's shape again: attr.output holds its spatial size. */
enum status shape_pool_grad(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct pool_attr *a = &op->attr.pool;
    const struct ir_value *dy = op_in(p, op, 0), *place = op_in(p, op, 1);
    TRY(attr_check(a, dy, e));
    if (place && !shape_eq(&place->shape, &dy->shape))
        return err_set(
            e, ST_INVALID, "places of %s for a gradient of %s", TEXT(place->shape),
            TEXT(dy->shape));
    out->dtype = dy->dtype;
    out->shape = dy->shape;
    for (int i = first_spatial(a); i < 2; i++)
        out->shape.dim[axis_of(a, i)] = a->output[i];
    return ST_OK;
}

static void pool_back(struct ir_grad *g, const struct ir_op *op, enum opcode code)
{
    struct ir_program *p = ir_grad_program(g);
    union op_attr attr = {.pool = op->attr.pool};
    struct shape x = value_shape(p, op->in[0]);
    attr.pool.output[0] = 1;
    for (int i = first_spatial(&attr.pool); i < 2; i++)
        attr.pool.output[i] = x.dim[axis_of(&attr.pool, i)];
    int in[] = {grad_out(g, op, 0), code == OP_MAX_POOL_GRAD ? op->out[1] : IR_NONE};
    ir_grad_add(g, op->in[0], ir_emit(p, code, in, code == OP_MAX_POOL_GRAD ? 2 : 1, &attr));
}

void grad_max_pool(struct ir_grad *g, const struct ir_op *op)
{
    pool_back(g, op, OP_MAX_POOL_GRAD);
}

void grad_avg_pool(struct ir_grad *g, const struct ir_op *op)
{
    pool_back(g, op, OP_AVG_POOL_GRAD);
}

void cost_max_pool(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_moves(p, op, c);
    c->flops = window_places(&op->attr.pool, &op_in(p, op, 0)->shape) *
               (double)shape_count(&p->values.data[op->out[0]].shape);
}

void cost_avg_pool(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_max_pool(p, op, c);
}

void cost_pool_grad(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_each(p, op, 2, c);
}
