/* build_math.c - emitters: products, convolution, pooling, normalisation. */
#include "ir/build.h"

#include "ir/ops/ops_int.h"

#include <string.h>

/* ---- products ---- */

/* A matrix that is only transposed is read as it lies, with the flag turned. */
static int product_operand(struct ir_program *p, int x, bool *transposed)
{
    if (ir_idle(p, x) || value_dense(&p->values.data[x]))
        return x;
    struct ir_value v = p->values.data[x];
    int r = v.shape.rank;
    if (r >= 2) {
        int perm[RANK_MAX];
        struct ir_value turned = v;
        for (int i = 0; i < r; i++)
            perm[i] = i < r - 2 ? i : i == r - 1 ? r - 2 : r - 1;
        for (int i = r - 2; i < r; i++) {
            turned.shape.dim[i] = v.shape.dim[perm[i]];
            turned.stride[i] = v.stride[perm[i]];
        }
        if (value_dense(&turned)) {
            *transposed = !*transposed;
            return ir_permute(p, x, perm);
        }
    }
    return x;
}

int ir_gemm(struct ir_program *p, int a, int b, int bias, bool ta, bool tb)
{
    if (ir_idle(p, a) || ir_idle(p, b))
        return IR_NONE;
    union op_attr attr = {.gemm = {.ta = ta, .tb = tb}};
    int in[] = {
        product_operand(p, a, &attr.gemm.ta), product_operand(p, b, &attr.gemm.tb),
        ir_contiguous(p, bias)};
    return ir_emit(p, OP_GEMM, in, bias == IR_NONE ? 2 : 3, &attr);
}

/* a [.., M, K] times one matrix: all rows in one product. */
static int rows_product(struct ir_program *p, int a, int b, int bias, bool tb)
{
    struct shape s = value_shape(p, a);
    if (s.rank == 2)
        return ir_gemm(p, a, b, bias, false, tb);
    int c = ir_gemm(p, ir_flatten(p, a, 0, s.rank - 2), b, bias, false, tb);
    if (c == IR_NONE)
        return IR_NONE;
    s.dim[s.rank - 1] = value_shape(p, c).dim[1];
    return ir_reshape(p, c, s);
}

int ir_linear(struct ir_program *p, int x, int weight, int bias)
{
    if (ir_idle(p, x) || ir_idle(p, weight))
        return IR_NONE;
    struct shape sx = value_shape(p, x), sw = value_shape(p, weight);
    if (sx.rank < 1 || sw.rank != 2)
        return ir_refuse(p, ST_INVALID, "linear of %s with a weight of %s", TEXT(sx), TEXT(sw));
    if (sx.dim[sx.rank - 1] != sw.dim[1])
        return ir_refuse(
            p, ST_INVALID, "expected input with %lld features, got %lld (%s)", (long long)sw.dim[1],
            (long long)sx.dim[sx.rank - 1], TEXT(sx));
    if (sx.rank > 1)
        return rows_product(p, x, weight, bias, true);
    return ir_squeeze(p, ir_gemm(p, ir_unsqueeze(p, x, 0), weight, bias, false, true), 0);
}

/* Both with the leading dimensions they broadcast to. */
static bool leading_broadcast(struct ir_program *p, int *a, int *b)
{
    struct shape sa = value_shape(p, *a), sb = value_shape(p, *b), la = sa, lb = sb, lead;
    la.rank -= 2;
    lb.rank -= 2;
    if (!shape_broadcast(&la, &lb, &lead) || lead.rank + 2 > RANK_MAX) {
        (void)ir_refuse(
            p, ST_INVALID, "the batch dimensions of %s and %s cannot be broadcast together",
            TEXT(sa), TEXT(sb));
        return false;
    }
    struct shape ea = lead, eb = lead;
    ea.rank = eb.rank = lead.rank + 2;
    for (int i = 0; i < 2; i++) {
        ea.dim[lead.rank + i] = sa.dim[sa.rank - 2 + i];
        eb.dim[lead.rank + i] = sb.dim[sb.rank - 2 + i];
    }
    *a = ir_expand(p, *a, ea);
    *b = ir_expand(p, *b, eb);
    return true;
}

int ir_matmul(struct ir_program *p, int a, int b)
{
    if (ir_idle(p, a) || ir_idle(p, b))
        return IR_NONE;
    struct shape sa = value_shape(p, a), sb = value_shape(p, b);
    if (sa.rank < 1 || sb.rank < 1)
        return ir_refuse(
            p, ST_INVALID,
            "both arguments to matmul need to be at least 1D, but they are %dD and %dD", sa.rank,
            sb.rank);
    if (sa.dim[sa.rank - 1] != sb.dim[sb.rank > 1 ? sb.rank - 2 : 0])
        return ir_refuse(
            p, ST_INVALID, "mat1 and mat2 shapes cannot be multiplied (%s and %s)", TEXT(sa),
            TEXT(sb));
    if (sa.rank == 1)
        a = ir_unsqueeze(p, a, 0);
    if (sb.rank == 1)
        b = ir_unsqueeze(p, b, 1);
    int c;
    if (sb.rank <= 2)
        c = rows_product(p, a, b, IR_NONE, false);
    else
        c = leading_broadcast(p, &a, &b) ? ir_gemm(p, a, b, IR_NONE, false, false) : IR_NONE;
    if (sb.rank == 1)
        c = ir_squeeze(p, c, -1);
    return sa.rank == 1 ? ir_squeeze(p, c, sb.rank == 1 ? -1 : -2) : c;
}

/* ---- convolution ---- */

/* 0 is the default everywhere; the one-dimensional forms are two-dimensional ones of height 1. */
static struct conv_attr conv_full(const struct conv_attr *attr)
{
    struct conv_attr a = *attr;
    if (a.spatial == 0)
        a.spatial = 2;
    if (a.groups == 0)
        a.groups = 1;
    for (int i = 0; i < 2; i++) {
        if (a.spatial == 1 && i == 0)
            a.pad_low[i] = a.pad_high[i] = 0, a.stride[i] = a.dilation[i] = 1;
        a.stride[i] = a.stride[i] ? a.stride[i] : 1;
        a.dilation[i] = a.dilation[i] ? a.dilation[i] : 1;
    }
    return a;
}

/* Gives an unbatched input a batch of one; *added says so. */
static int batched(struct ir_program *p, int x, int spatial, bool *added)
{
    *added = value_shape(p, x).rank == spatial + 1;
    return *added ? ir_unsqueeze(p, x, 0) : x;
}

/* The kernel's spatial size, for CONV's attribute too: plans and prints name it. */
static void kernel_sizes(struct conv_attr *a, const struct shape *w)
{
    a->kernel[0] = 1;
    for (int i = 2 - a->spatial; i < 2; i++)
        a->kernel[i] = w->rank == a->spatial + 2 ? w->dim[a->spatial == 2 ? 2 + i : 1 + i] : 1;
}

int ir_conv(struct ir_program *p, int x, int w, int bias, const struct conv_attr *attr)
{
    if (ir_idle(p, x) || ir_idle(p, w))
        return IR_NONE;
    union op_attr full = {.conv = conv_full(attr)};
    struct shape sw = value_shape(p, w);
    bool added;
    kernel_sizes(&full.conv, &sw);
    int in[] = {batched(p, x, full.conv.spatial, &added), w, bias};
    int y = ir_emit(p, OP_CONV, in, bias == IR_NONE ? 2 : 3, &full);
    return added ? ir_squeeze(p, y, 0) : y;
}

/* Sets the size of the result along spatial dimension i, `extra` longer than the smallest one.
 * Below the stride that is a size the forward convolution rounds away; from there on (PyTorch
 * allows less than the dilation) it takes back some of the upper padding. Returns how many rows are
 * left that no input reaches: zeros, to be appended. */
static int64_t transposed_size(struct conv_attr *a, int i, int64_t n, int64_t extra)
{
    int64_t unpadded = (n - 1) * a->stride[i] + a->dilation[i] * (a->kernel[i] - 1) + 1;
    int64_t unreached = 0;
    a->input[i] = unpadded - a->pad_low[i] - a->pad_high[i] + extra;
    if (extra >= a->stride[i]) {
        int64_t back = extra < a->pad_high[i] ? extra : a->pad_high[i];
        a->pad_high[i] -= back;
        unreached = extra - back >= a->stride[i] ? extra - back : 0;
        a->input[i] -= unreached;
    }
    return unreached;
}

/* Sets a->input and unreached[]; false when the sizes are refused. */
static bool transposed_sizes(
    struct ir_program *p, struct conv_attr *a, const struct shape *x,
    const int64_t output_padding[2], int64_t unreached[2])
{
    int64_t limit = (int64_t)1 << 30;
    a->input[0] = 1;
    for (int i = 2 - a->spatial; i < 2 && x->rank == a->spatial + 2; i++) {
        int64_t n = x->dim[x->rank - 2 + i], extra = output_padding ? output_padding[i] : 0;
        if (n > limit || a->stride[i] > limit || a->dilation[i] > limit || a->kernel[i] > limit) {
            (void)ir_refuse(p, ST_INVALID, "a transposed convolution of %s is too large", TEXT(*x));
            return false;
        }
        if (extra < 0 || (extra >= a->stride[i] && extra >= a->dilation[i])) {
            (void)ir_refuse(
                p, ST_INVALID,
                "output padding must be smaller than either stride or dilation, got "
                "output_padding=%lld, "
                "stride=%lld, dilation=%lld",
                (long long)extra, (long long)a->stride[i], (long long)a->dilation[i]);
            return false;
        }
        unreached[i] = transposed_size(a, i, n, extra);
    }
    return true;
}

/* The result with the rows appended that no input reaches, and the bias on all of it. */
static int extended(struct ir_program *p, int y, int bias, const int64_t unreached[2])
{
    if (ir_idle(p, y))
        return IR_NONE;
    for (int i = 0; i < 2; i++) {
        union op_attr attr = {.view = {.shape = value_shape(p, y), .step = 1}};
        attr.view.dim = attr.view.shape.rank - 2 + i;
        attr.view.length = attr.view.shape.dim[attr.view.dim];
        attr.view.shape.dim[attr.view.dim] += unreached[i];
        if (unreached[i] && (y = ir_emit(p, OP_SLICE_GRAD, &y, 1, &attr)) == IR_NONE)
            return IR_NONE;
    }
    if (bias == IR_NONE)
        return y;
    struct shape along = value_shape(p, y);
    for (int i = 0; i < along.rank; i++)
        along.dim[i] = i == 1 ? along.dim[1] : 1;
    return ir_binary(p, OP_ADD, y, ir_reshape(p, bias, along));
}

int ir_conv_transpose(
    struct ir_program *p, int x, int w, int bias, const struct conv_attr *attr,
    const int64_t output_padding[2])
{
    if (ir_idle(p, x) || ir_idle(p, w))
        return IR_NONE;
    union op_attr full = {.conv = conv_full(attr)};
    int64_t unreached[2] = {0};
    bool added;
    x = batched(p, x, full.conv.spatial, &added);
    if (ir_idle(p, x))
        return IR_NONE;
    struct shape sx = value_shape(p, x), sw = value_shape(p, w);
    kernel_sizes(&full.conv, &sw);
    if (!transposed_sizes(p, &full.conv, &sx, output_padding, unreached))
        return IR_NONE;
    bool whole = unreached[0] == 0 && unreached[1] == 0;
    int in[] = {x, w, bias};
    int y = ir_emit(p, OP_CONV_DGRAD, in, whole && bias != IR_NONE ? 3 : 2, &full);
    if (!whole)
        y = extended(p, y, bias, unreached);
    return added ? ir_squeeze(p, y, 0) : y;
}

/* ---- pooling ---- */

static int pool(struct ir_program *p, enum opcode code, int x, const struct pool_attr *attr)
{
    if (ir_idle(p, x))
        return IR_NONE;
    union op_attr full = {.pool = *attr};
    struct pool_attr *a = &full.pool;
    if (a->spatial == 0)
        a->spatial = 2;
    for (int i = 0; i < 2; i++) {
        if (a->spatial == 1 && i == 0) {
            a->kernel[0] = a->stride[0] = a->dilation[0] = a->output[0] = 1;
            a->pad[0] = 0;
        }
        a->dilation[i] = a->dilation[i] ? a->dilation[i] : 1;
        a->stride[i] = a->stride[i] ? a->stride[i] : a->kernel[i];
    }
    bool added;
    x = batched(p, x, a->spatial, &added);
    int y = ir_emit(p, code, &x, 1, &full);
    return added ? ir_squeeze(p, y, 0) : y;
}

int ir_max_pool(struct ir_program *p, int x, const struct pool_attr *attr)
{
    return pool(p, OP_MAX_POOL, x, attr);
}

int ir_avg_pool(struct ir_program *p, int x, const struct pool_attr *attr)
{
    return pool(p, OP_AVG_POOL, x, attr);
}

/* A negative size keeps the input's, as None does in PyTorch. */
static int
adaptive(struct ir_program *p, enum opcode code, int x, int spatial, const int64_t output[2])
{
    if (ir_idle(p, x))
        return IR_NONE;
    struct shape s = value_shape(p, x);
    struct pool_attr a = {.adaptive = true, .spatial = spatial};
    for (int i = 2 - spatial; i < 2; i++) {
        a.output[i] = output[i];
        if (output[i] < 0 && s.rank >= spatial)
            a.output[i] = s.dim[s.rank - 2 + i];
    }
    return pool(p, code, x, &a);
}

int ir_adaptive_avg_pool(struct ir_program *p, int x, int spatial, const int64_t output[2])
{
    return adaptive(p, OP_AVG_POOL, x, spatial, output);
}

int ir_adaptive_max_pool(struct ir_program *p, int x, int spatial, const int64_t output[2])
{
    return adaptive(p, OP_MAX_POOL, x, spatial, output);
}

/* ---- normalisation ---- */

static int
norm_apply(struct ir_program *p, int x, int mean, int rstd, int gamma, int beta, struct norm_attr a)
{
    int in[] = {x, mean, rstd, gamma, beta};
    return ir_emit(p, OP_NORM_APPLY, in, 5, &(union op_attr){.norm = a});
}

static int norm_of(struct ir_program *p, int x, int gamma, int beta, struct norm_attr a)
{
    x = ir_contiguous(p, x);
    int mean = ir_emit(p, OP_NORM_STATS, &x, 1, &(union op_attr){.norm = a});
    return mean == IR_NONE ? IR_NONE : norm_apply(p, x, mean, ir_out(p, 1), gamma, beta, a);
}

/* One value has no variance. */
static bool one_value(struct ir_program *p, const struct shape *s, int64_t each)
{
    if (each != 1)
        return false;
    (void)ir_refuse(
        p, ST_INVALID, "Expected more than 1 value per channel when training, got input size %s",
        TEXT(*s));
    return true;
}

/* Values per channel; 0 for an empty batch. */
static int64_t per_channel(const struct shape *s)
{
    struct shape others = *s;
    if (s->rank > 1)
        others.dim[1] = 1;
    return shape_count(&others);
}

int ir_batch_norm(
    struct ir_program *p, int x, int gamma, int beta, int running_mean_var, int running_var_var,
    int batches_var, bool training, double momentum, double eps)
{
    if (ir_idle(p, x))
        return IR_NONE;
    x = ir_contiguous(p, x);
    struct shape s = value_shape(p, x);
    struct norm_attr a = {.kind = NORM_BATCH, .eps = eps, .momentum = momentum};
    bool running = running_mean_var != IR_NONE && running_var_var != IR_NONE;
    if (!training && running) {
        a.infer = true;
        int mean = ir_var_read(p, running_mean_var), variance = ir_var_read(p, running_var_var);
        return norm_apply(p, x, mean, variance, gamma, beta, a);
    }
    if (one_value(p, &s, per_channel(&s)))
        return IR_NONE;
    if (!running)
        return norm_of(p, x, gamma, beta, a);
    int in[] = {
        ir_var_read(p, running_mean_var), ir_var_read(p, running_var_var),
        ir_var_read(p, batches_var), x};
    if (ir_emit(p, OP_BATCH_STATS, in, 4, &(union op_attr){.norm = a}) == IR_NONE)
        return IR_NONE;
    return norm_apply(p, x, ir_out(p, 3), ir_out(p, 4), gamma, beta, a);
}

int ir_layer_norm(struct ir_program *p, int x, int gamma, int beta, int trailing, double eps)
{
    if (ir_idle(p, x))
        return IR_NONE;
    return norm_of(
        p, x, gamma, beta,
        (struct norm_attr){.kind = NORM_LAYER, .trailing = trailing, .eps = eps});
}

int ir_rms_norm(struct ir_program *p, int x, int gamma, double eps)
{
    if (ir_idle(p, x))
        return IR_NONE;
    return norm_of(
        p, x, gamma, IR_NONE, (struct norm_attr){.kind = NORM_RMS, .trailing = 1, .eps = eps});
}

int ir_group_norm(struct ir_program *p, int x, int gamma, int beta, int64_t groups, double eps)
{
    if (ir_idle(p, x))
        return IR_NONE;
    struct shape s = value_shape(p, x), merged = s;
    if (s.rank >= 2 && groups > 0) {
        /* PyTorch counts N * C / groups * spatial. */
        merged.dim[1] = s.dim[1] / groups;
        if (s.dim[1] % groups == 0 && one_value(p, &s, shape_count(&merged)))
            return IR_NONE;
    }
    return norm_of(
        p, x, gamma, beta, (struct norm_attr){.kind = NORM_GROUP, .groups = groups, .eps = eps});
}

int ir_instance_norm(struct ir_program *p, int x, int gamma, int beta, double eps)
{
    if (ir_idle(p, x))
        return IR_NONE;
    struct shape s = value_shape(p, x), spatial = s;
    if (s.rank < 2)
        return ir_refuse(p, ST_INVALID, "expected at least 2D input, got %s", TEXT(s));
    spatial.dim[0] = spatial.dim[1] = 1;
    if (shape_count(&spatial) == 1)
        return ir_refuse(
            p, ST_INVALID, "Expected more than 1 spatial element when training, got input size %s",
            TEXT(s));
    return norm_of(
        p, x, gamma, beta, (struct norm_attr){.kind = NORM_GROUP, .groups = s.dim[1], .eps = eps});
}
