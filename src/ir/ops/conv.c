/* conv.c - convolution, its two gradients, transposed convolution: shape, gradients, cost.
 *
 * CONV_DGRAD is the gradient by the input and, read forwards, the transposed convolution; its own
 * gradients are a convolution and a CONV_WGRAD whose roles are swapped. */
#include "ir/ops/ops_int.h"

/* Spatial dimension i of the attribute is dimension `axis` of the logical shape. */
static int axis_of(const struct conv_attr *a, int i)
{
    return a->spatial == 2 ? 2 + i : 1 + i;
}
static int first_spatial(const struct conv_attr *a)
{
    return 2 - a->spatial;
}

static int64_t conv_size(const struct conv_attr *a, int i, int64_t input, int64_t kernel)
{
    int64_t room = input + a->pad_low[i] + a->pad_high[i] - a->dilation[i] * (kernel - 1) - 1;
    return room < 0 ? 0 : room / a->stride[i] + 1;
}

static enum status attr_check(const struct conv_attr *a, struct err *e)
{
    if (a->spatial != 1 && a->spatial != 2)
        return err_set(e, ST_INVALID, "cannot convolve over %d dimensions", a->spatial);
    if (a->groups < 1)
        return err_set(
            e, ST_INVALID, "non-positive groups is not supported, got %lld", (long long)a->groups);
    for (int i = 0; i < 2; i++) {
        if (a->stride[i] < 1)
            return err_set(
                e, ST_INVALID, "non-positive stride is not supported, got %lld",
                (long long)a->stride[i]);
        if (a->dilation[i] < 1)
            return err_set(
                e, ST_INVALID, "dilation should be greater than zero, got %lld",
                (long long)a->dilation[i]);
        if (a->pad_low[i] < 0 || a->pad_high[i] < 0)
            return err_set(e, ST_INVALID, "negative padding is not supported");
        int64_t limit = (int64_t)1 << 40; /* keeps the size formulas inside 64 bits */
        if (a->stride[i] > limit || a->dilation[i] > limit / 1024 || a->pad_low[i] > limit ||
            a->pad_high[i] > limit)
            return err_set(e, ST_INVALID, "stride, dilation or padding is absurdly large");
    }
    return ST_OK;
}

static enum status rank_check(
    const struct conv_attr *a, const struct ir_value *x, const struct ir_value *w, struct err *e)
{
    if (x->shape.rank != a->spatial + 2)
        return err_set(
            e, ST_INVALID, "expected %dD (unbatched) or %dD (batched) input to conv%dd, got %s",
            a->spatial + 1, a->spatial + 2, a->spatial, TEXT(x->shape));
    if (w->shape.rank != a->spatial + 2)
        return err_set(
            e, ST_INVALID, "expected a %dD weight for conv%dd, got %s", a->spatial + 2, a->spatial,
            TEXT(w->shape));
    if (!dtype_floating(x->dtype) || !dtype_floating(w->dtype))
        return err_set(
            e, ST_INVALID, "conv%dd needs floating values, got %s and %s", a->spatial,
            dtype_name(x->dtype), dtype_name(w->dtype));
    return ST_OK;
}

static enum status bias_check(const struct ir_value *bias, int64_t channels, struct err *e)
{
    if (!bias || (bias->shape.rank == 1 && bias->shape.dim[0] == channels))
        return ST_OK;
    return err_set(
        e, ST_INVALID, "expected bias to be 1-dimensional with %lld elements, got %s",
        (long long)channels, TEXT(bias->shape));
}

static enum status groups_check(
    const struct conv_attr *a, const struct ir_value *x, const struct ir_value *w, struct err *e)
{
    int64_t expected = w->shape.dim[1];
    if (__builtin_mul_overflow(expected, a->groups, &expected))
        return err_set(e, ST_INVALID, "%lld groups are too many", (long long)a->groups);
    if (x->shape.dim[1] != expected)
        return err_set(
            e, ST_INVALID, "expected input with %lld channels, got %lld (%s)", (long long)expected,
            (long long)x->shape.dim[1], TEXT(x->shape));
    if (w->shape.dim[0] % a->groups != 0)
        return err_set(
            e, ST_INVALID, "out_channels must be divisible by groups, got %lld and %lld",
            (long long)w->shape.dim[0], (long long)a->groups);
    return ST_OK;
}

/* Sets out's spatial size; false when some size is not positive. */
static enum status spatial_sizes(
    const struct conv_attr *a, const struct shape *x, const struct shape *w, struct shape *out,
    struct err *e)
{
    for (int i = first_spatial(a); i < 2; i++) {
        int d = axis_of(a, i);
        if (x->dim[d] > (int64_t)1 << 61)
            return err_set(e, ST_INVALID, "an input of %s is absurdly large", TEXT(*x));
        if (w->dim[d] < 1 || w->dim[d] > (int64_t)1 << 31)
            return err_set(e, ST_INVALID, "cannot convolve with a kernel of %s", TEXT(*w));
        out->dim[d] = conv_size(a, i, x->dim[d], w->dim[d]);
        if (out->dim[d] < 1)
            return err_set(
                e, ST_INVALID,
                "calculated padded input size per channel: %lld, kernel size: %lld; kernel size "
                "cannot "
                "be greater than actual input size (%s)",
                (long long)(x->dim[d] + a->pad_low[i] + a->pad_high[i]),
                (long long)(a->dilation[i] * (w->dim[d] - 1) + 1), TEXT(*x));
    }
    return ST_OK;
}

enum status shape_conv(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct conv_attr *a = &op->attr.conv;
    const struct ir_value *x = op_in(p, op, 0), *w = op_in(p, op, 1);
    TRY(attr_check(a, e));
    TRY(rank_check(a, x, w, e));
    TRY(groups_check(a, x, w, e));
    TRY(bias_check(op_in(p, op, 2), w->shape.dim[0], e));
    out->dtype = a->f32_out ? DT_F32 : dtype_widest(x->dtype, w->dtype);
    out->shape = x->shape;
    out->shape.dim[1] = w->shape.dim[0];
    return spatial_sizes(a, &x->shape, &w->shape, &out->shape, e);
}

enum status shape_conv_dgrad(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct conv_attr *a = &op->attr.conv;
    const struct ir_value *dy = op_in(p, op, 0), *w = op_in(p, op, 1);
    TRY(attr_check(a, e));
    TRY(rank_check(a, dy, w, e));
    if (dy->shape.dim[1] != w->shape.dim[0])
        return err_set(
            e, ST_INVALID, "expected input with %lld channels, got %lld (%s)",
            (long long)w->shape.dim[0], (long long)dy->shape.dim[1], TEXT(dy->shape));
    if (w->shape.dim[0] % a->groups != 0)
        return err_set(
            e, ST_INVALID, "in_channels must be divisible by groups, got %lld and %lld",
            (long long)w->shape.dim[0], (long long)a->groups);
    out->dtype = a->f32_out ? DT_F32 : dtype_widest(dy->dtype, w->dtype);
    out->shape = dy->shape;
    if (__builtin_mul_overflow(w->shape.dim[1], a->groups, &out->shape.dim[1]))
        return err_set(e, ST_INVALID, "%lld groups are too many", (long long)a->groups);
    TRY(bias_check(op_in(p, op, 2), out->shape.dim[1], e));
    for (int i = first_spatial(a); i < 2; i++) {
        out->shape.dim[axis_of(a, i)] = a->input[i];
        if (a->input[i] < 1)
            return err_set(
                e, ST_INVALID, "given input size %s, calculated output size %lld is too small",
                TEXT(dy->shape), (long long)a->input[i]);
    }
    struct shape back = dy->shape;
    TRY(spatial_sizes(a, &out->shape, &w->shape, &back, e));
    if (!shape_eq(&back, &dy->shape))
        return err_set(
            e, ST_INVALID, "an input of %s does not give an output of %s", TEXT(out->shape),
            TEXT(dy->shape));
    return ST_OK;
}

enum status shape_conv_wgrad(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct conv_attr *a = &op->attr.conv;
    const struct ir_value *x = op_in(p, op, 0), *dy = op_in(p, op, 1);
    TRY(attr_check(a, e));
    TRY(rank_check(a, x, dy, e));
    if (x->shape.dim[1] % a->groups != 0 || dy->shape.dim[1] % a->groups != 0)
        return err_set(
            e, ST_INVALID, "channels are not divisible by %lld groups", (long long)a->groups);
    out->dtype = a->f32_out ? DT_F32 : dtype_widest(x->dtype, dy->dtype);
    out->shape = dy->shape;
    out->shape.dim[0] = dy->shape.dim[1];
    out->shape.dim[1] = x->shape.dim[1] / a->groups;
    for (int i = first_spatial(a); i < 2; i++)
        out->shape.dim[axis_of(a, i)] = a->kernel[i];
    struct shape forward = dy->shape;
    TRY(spatial_sizes(a, &x->shape, &out->shape, &forward, e));
    if (!shape_eq(&forward, &dy->shape) || x->shape.dim[0] != dy->shape.dim[0])
        return err_set(
            e, ST_INVALID, "an input of %s does not give an output of %s", TEXT(x->shape),
            TEXT(dy->shape));
    return ST_OK;
}

/* ---- gradients ---- */

/* Copies the spatial size of `of` into an attribute's field. */
static void sizes_copy(const struct conv_attr *a, struct shape of, int64_t to[2])
{
    to[0] = to[1] = 1;
    for (int i = first_spatial(a); i < 2; i++)
        to[i] = of.dim[axis_of(a, i)];
}

static int emit2(struct ir_program *p, enum opcode code, int a, int b, struct conv_attr attr)
{
    return ir_emit(p, code, (int[]){a, b}, 2, &(union op_attr){.conv = attr});
}

/* The bias takes the sum over all but the channels. */
static void bias_grad(struct ir_grad *g, int bias, int dy)
{
    struct ir_program *p = ir_grad_program(g);
    if (bias == IR_NONE || !ir_grad_wanted(g, bias))
        return;
    uint32_t all = (1U << value_shape(p, dy).rank) - 1;
    ir_grad_add(g, bias, ir_sum(p, dy, all & ~2U, false));
}

void grad_conv(struct ir_grad *g, const struct ir_op *op)
{
    struct ir_program *p = ir_grad_program(g);
    struct conv_attr attr = op->attr.conv;
    int x = op->in[0], w = op->in[1], dy = grad_out(g, op, 0);
    bias_grad(g, op_arg(op, 2), dy);
    sizes_copy(&attr, value_shape(p, w), attr.kernel);
    sizes_copy(&attr, value_shape(p, x), attr.input);
    if (ir_grad_wanted(g, w))
        ir_grad_add(g, w, emit2(p, OP_CONV_WGRAD, x, dy, attr));
    if (ir_grad_wanted(g, x))
        ir_grad_add(g, x, emit2(p, OP_CONV_DGRAD, dy, w, attr));
}

void grad_conv_dgrad(struct ir_grad *g, const struct ir_op *op)
{
    struct ir_program *p = ir_grad_program(g);
    struct conv_attr attr = op->attr.conv;
    int t = op->in[0], w = op->in[1], dy = grad_out(g, op, 0);
    bias_grad(g, op_arg(op, 2), dy);
    sizes_copy(&attr, value_shape(p, w), attr.kernel);
    if (ir_grad_wanted(g, w))
        ir_grad_add(g, w, emit2(p, OP_CONV_WGRAD, dy, t, attr));
    if (ir_grad_wanted(g, t))
        ir_grad_add(g, t, emit2(p, OP_CONV, dy, w, attr));
}

/* ---- costs: a multiplication and an addition per output element, kernel place and input channel
 * ---- */

static void cost_of(
    const struct ir_program *p, const struct ir_op *op, const struct shape *w,
    const struct shape *y, struct ir_cost *c)
{
    cost_moves(p, op, c);
    double taps = (double)w->dim[1];
    for (int i = 2; i < w->rank; i++)
        taps *= (double)w->dim[i];
    c->flops = 2 * taps * (double)shape_count(y);
}

void cost_conv(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_of(p, op, &op_in(p, op, 1)->shape, &p->values.data[op->out[0]].shape, c);
}

void cost_conv_dgrad(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_of(p, op, &op_in(p, op, 1)->shape, &op_in(p, op, 0)->shape, c);
}

void cost_conv_wgrad(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_of(p, op, &p->values.data[op->out[0]].shape, &op_in(p, op, 1)->shape, c);
}
