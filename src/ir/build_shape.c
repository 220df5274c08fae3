/* build_shape.c - emitters: elementwise, reductions, views, joins, lookups. */
#include "ir/build.h"

#include "ir/ops/ops_int.h"

#include <string.h>

/* ---- elementwise ---- */

int ir_unary_attr(struct ir_program *p, enum opcode code, int x, struct ew_attr attr)
{
    return ir_idle(p, x) ? IR_NONE : ir_emit(p, code, &x, 1, &(union op_attr){.ew = attr});
}

/* The defaults are PyTorch's. */
int ir_unary(struct ir_program *p, enum opcode code, int x)
{
    struct ew_attr attr = {0};
    if (code == OP_LEAKY_RELU)
        attr.a = 0.01;
    if (code == OP_ELU || code == OP_AFFINE)
        attr.a = 1;
    return ir_unary_attr(p, code, x, attr);
}

int ir_binary(struct ir_program *p, enum opcode code, int a, int b)
{
    if (ir_idle(p, a) || ir_idle(p, b))
        return IR_NONE;
    return ir_emit(p, code, (int[]){a, b}, 2, NULL);
}

int ir_affine(struct ir_program *p, int x, double scale, double shift)
{
    return ir_unary_attr(p, OP_AFFINE, x, (struct ew_attr){.a = scale, .b = shift});
}

int ir_prelu(struct ir_program *p, int x, int w)
{
    return ir_binary(p, OP_PRELU, x, w);
}

int ir_dropout(struct ir_program *p, int x, int rng, int mask, double prob, uint32_t stream)
{
    if (ir_idle(p, x) || ir_idle(p, rng))
        return IR_NONE;
    union op_attr attr = {.dropout = {.p = prob, .stream = stream}};
    return ir_emit(p, OP_DROPOUT, (int[]){x, rng, mask}, mask == IR_NONE ? 2 : 3, &attr);
}

/* ---- reductions ---- */

static int reduce(struct ir_program *p, enum opcode code, int x, uint32_t dims, bool keepdim)
{
    if (ir_idle(p, x))
        return IR_NONE;
    union op_attr attr = {.reduce = {.dims = dims, .keepdim = keepdim}};
    return dims == 0 ? x : ir_emit(p, code, &x, 1, &attr);
}

int ir_sum(struct ir_program *p, int x, uint32_t dims, bool keepdim)
{
    return reduce(p, OP_SUM, x, dims, keepdim);
}

int ir_mean(struct ir_program *p, int x, uint32_t dims, bool keepdim)
{
    return reduce(p, OP_MEAN, x, dims, keepdim);
}

int ir_sum_to(struct ir_program *p, int x, const struct shape *s)
{
    if (ir_idle(p, x))
        return IR_NONE;
    struct shape have = value_shape(p, x);
    uint32_t dims = 0;
    int front = have.rank - s->rank;
    for (int i = 0; i < have.rank; i++)
        if (i < front || (s->dim[i - front] == 1 && have.dim[i] != 1))
            dims |= 1U << i;
    return ir_reshape(p, ir_sum(p, x, dims, false), *s);
}

static int along(struct ir_program *p, enum opcode code, int x, int dim, bool keepdim)
{
    if (ir_idle(p, x))
        return IR_NONE;
    struct shape s = value_shape(p, x);
    union op_attr attr = {.view = {.dim = dim, .keepdim = keepdim}};
    if (!dim_wrap(&attr.view.dim, s.rank))
        return ir_refuse(
            p, ST_INVALID,
            "dimension out of range (expected to be in range of [%d, %d], but got %d)",
            -(s.rank ? s.rank : 1), (s.rank ? s.rank : 1) - 1, dim);
    return ir_emit(p, code, &x, 1, &attr);
}

int ir_argmax(struct ir_program *p, int x, int dim, bool keepdim)
{
    return along(p, OP_ARGMAX, x, dim, keepdim);
}

int ir_softmax(struct ir_program *p, int x, int dim)
{
    return along(p, OP_SOFTMAX, x, dim, false);
}

int ir_log_softmax(struct ir_program *p, int x, int dim)
{
    return along(p, OP_LOG_SOFTMAX, x, dim, false);
}

/* ---- shapes ---- */

/* Wraps *dim against rank, or refuses. */
static bool dim_ok(struct ir_program *p, int *dim, int rank)
{
    int given = *dim, n = rank > 0 ? rank : 1;
    if (dim_wrap(dim, rank))
        return true;
    (void)ir_refuse(
        p, ST_INVALID, "dimension out of range (expected to be in range of [%d, %d], but got %d)",
        -n, n - 1, given);
    return false;
}

/* Puts the size in place of -1. */
static bool shape_complete(struct ir_program *p, const struct shape *from, struct shape *s)
{
    int64_t known = 1, count = shape_count(from);
    int open = -1;
    bool bad = false;
    for (int i = 0; i < s->rank; i++) {
        if (s->dim[i] == -1 && open < 0)
            open = i;
        else
            bad = bad || s->dim[i] < 0 || __builtin_mul_overflow(known, s->dim[i], &known);
    }
    if (open >= 0 && !bad) {
        bad = known == 0 || count % known != 0;
        s->dim[open] = bad ? -1 : count / known;
        known = bad ? known : count;
    }
    if (!bad && known == count)
        return true;
    (void)ir_refuse(
        p, ST_INVALID, "shape %s is invalid for input of size %lld (%s)", TEXT(*s),
        (long long)count, TEXT(*from));
    return false;
}

int ir_reshape(struct ir_program *p, int x, struct shape s)
{
    if (ir_idle(p, x))
        return IR_NONE;
    struct shape have = value_shape(p, x);
    if (!shape_complete(p, &have, &s))
        return IR_NONE;
    if (shape_eq(&have, &s))
        return x;
    int64_t stride[RANK_MAX];
    if (!view_strides(&p->values.data[x], &s, stride))
        x = ir_contiguous(p, x);
    return ir_emit(p, OP_RESHAPE, &x, 1, &(union op_attr){.view.shape = s});
}

int ir_flatten(struct ir_program *p, int x, int start_dim, int end_dim)
{
    if (ir_idle(p, x))
        return IR_NONE;
    struct shape s = value_shape(p, x), flat = {0};
    if (!dim_ok(p, &start_dim, s.rank) || !dim_ok(p, &end_dim, s.rank))
        return IR_NONE;
    if (s.rank == 0)
        return ir_reshape(p, x, SHAPE(1));
    if (start_dim > end_dim)
        return ir_refuse(
            p, ST_INVALID, "flatten() has invalid args: start_dim cannot come after end_dim");
    for (int i = 0; i < s.rank; i++) {
        if (i > start_dim && i <= end_dim)
            flat.dim[flat.rank - 1] *= s.dim[i]; /* cannot overflow: the whole fits */
        else
            flat.dim[flat.rank++] = s.dim[i];
    }
    return ir_reshape(p, x, flat);
}

int ir_permute(struct ir_program *p, int x, const int *perm)
{
    if (ir_idle(p, x))
        return IR_NONE;
    union op_attr attr = {0};
    int rank = value_shape(p, x).rank;
    bool same = true;
    for (int i = 0; i < rank; i++) {
        attr.view.perm[i] = perm[i];
        if (!dim_ok(p, &attr.view.perm[i], rank))
            return IR_NONE;
        same = same && attr.view.perm[i] == i;
    }
    return same ? x : ir_emit(p, OP_PERMUTE, &x, 1, &attr);
}

int ir_transpose(struct ir_program *p, int x, int dim0, int dim1)
{
    if (ir_idle(p, x))
        return IR_NONE;
    int perm[RANK_MAX];
    int rank = value_shape(p, x).rank;
    if (!dim_ok(p, &dim0, rank) || !dim_ok(p, &dim1, rank))
        return IR_NONE;
    for (int i = 0; i < rank; i++)
        perm[i] = i == dim0 ? dim1 : i == dim1 ? dim0 : i;
    return ir_permute(p, x, perm);
}

int ir_expand(struct ir_program *p, int x, struct shape s)
{
    if (ir_idle(p, x))
        return IR_NONE;
    struct shape have = value_shape(p, x);
    int front = s.rank - have.rank;
    for (int i = 0; i < s.rank; i++)
        if (s.dim[i] == -1 && i >= front)
            s.dim[i] = have.dim[i - front];
    if (shape_eq(&have, &s))
        return x;
    return ir_emit(p, OP_EXPAND, &x, 1, &(union op_attr){.view.shape = s});
}

int ir_slice(struct ir_program *p, int x, int dim, int64_t start, int64_t length, int64_t step)
{
    if (ir_idle(p, x))
        return IR_NONE;
    struct shape s = value_shape(p, x);
    if (!dim_ok(p, &dim, s.rank))
        return IR_NONE;
    if (s.rank > 0 && start == 0 && length == s.dim[dim] && step == 1)
        return x;
    union op_attr attr = {.view = {.dim = dim, .start = start, .length = length, .step = step}};
    return ir_emit(p, OP_SLICE, &x, 1, &attr);
}

int ir_select(struct ir_program *p, int x, int dim, int64_t index)
{
    if (ir_idle(p, x))
        return IR_NONE;
    struct shape s = value_shape(p, x);
    if (!dim_ok(p, &dim, s.rank))
        return IR_NONE;
    if (s.rank == 0 || index < -s.dim[dim] || index >= s.dim[dim])
        return ir_refuse(
            p, ST_INVALID, "index %lld is out of bounds for dimension %d of %s", (long long)index,
            dim, TEXT(s));
    return ir_squeeze(p, ir_slice(p, x, dim, index < 0 ? index + s.dim[dim] : index, 1, 1), dim);
}

int ir_squeeze(struct ir_program *p, int x, int dim)
{
    if (ir_idle(p, x))
        return IR_NONE;
    struct shape s = value_shape(p, x), to = {0};
    if (!dim_ok(p, &dim, s.rank))
        return IR_NONE;
    for (int i = 0; i < s.rank; i++)
        if (i != dim || s.dim[i] != 1)
            to.dim[to.rank++] = s.dim[i];
    return ir_reshape(p, x, to);
}

int ir_unsqueeze(struct ir_program *p, int x, int dim)
{
    if (ir_idle(p, x))
        return IR_NONE;
    struct shape s = value_shape(p, x), to = {0};
    if (!dim_ok(p, &dim, s.rank + 1))
        return IR_NONE;
    if (s.rank == RANK_MAX)
        return ir_refuse(p, ST_INVALID, "a tensor can have at most %d dimensions", RANK_MAX);
    for (int i = 0; i <= s.rank; i++) {
        if (i == dim)
            to.dim[to.rank++] = 1;
        if (i < s.rank)
            to.dim[to.rank++] = s.dim[i];
    }
    return ir_reshape(p, x, to);
}

int ir_concat(struct ir_program *p, const int *xs, int n, int dim)
{
    if (n < 1)
        return ir_refuse(p, ST_INVALID, "expected a non-empty list of tensors");
    for (int i = 0; i < n; i++)
        if (ir_idle(p, xs[i]))
            return IR_NONE;
    if (!dim_ok(p, &dim, value_shape(p, xs[0]).rank))
        return IR_NONE;
    return n == 1 ? xs[0] : ir_emit(p, OP_CONCAT, xs, n, &(union op_attr){.view.dim = dim});
}

int ir_stack(struct ir_program *p, const int *xs, int n, int dim)
{
    if (n < 1)
        return ir_refuse(p, ST_INVALID, "expected a non-empty list of tensors");
    int *each = mem_alloc(sizeof *each * (size_t)n);
    for (int i = 0; i < n; i++)
        each[i] = ir_unsqueeze(p, xs[i], dim);
    int y = ir_concat(p, each, n, dim);
    mem_free(each);
    return y;
}

int ir_chunk(struct ir_program *p, int x, int chunks, int dim, int i)
{
    if (ir_idle(p, x))
        return IR_NONE;
    struct shape s = value_shape(p, x);
    if (!dim_ok(p, &dim, s.rank))
        return IR_NONE;
    if (chunks < 1 || s.rank == 0)
        return ir_refuse(p, ST_INVALID, "cannot cut %s into %d chunks", TEXT(s), chunks);
    int64_t each = (s.dim[dim] + chunks - 1) / chunks, start = each * i;
    if (i < 0 || (i > 0 && start >= s.dim[dim]))
        return ir_refuse(
            p, ST_INVALID, "chunk %d of %d does not exist: %s is cut along dimension %d into fewer",
            i, chunks, TEXT(s), dim);
    int64_t left = s.dim[dim] - start;
    return ir_slice(p, x, dim, start, left < each ? left : each, 1);
}

int ir_contiguous(struct ir_program *p, int x)
{
    if (ir_idle(p, x))
        return IR_NONE;
    return value_dense(&p->values.data[x]) ? x : ir_emit(p, OP_CONTIGUOUS, &x, 1, NULL);
}

int ir_cast(struct ir_program *p, int x, enum dtype to)
{
    if (ir_idle(p, x))
        return IR_NONE;
    if (p->values.data[x].dtype == to)
        return x;
    return ir_emit(p, OP_CAST, &x, 1, &(union op_attr){.cast.to = to});
}

int ir_fill(struct ir_program *p, struct shape s, double value)
{
    return ir_emit(p, OP_FILL, NULL, 0, &(union op_attr){.fill = {.shape = s, .value = value}});
}

int ir_embedding(struct ir_program *p, int index, int table, int64_t padding_idx)
{
    if (ir_idle(p, index) || ir_idle(p, table))
        return IR_NONE;
    struct shape s = value_shape(p, table);
    union op_attr attr = {.embed = {.rows = s.rank ? s.dim[0] : 0, .padding_idx = padding_idx}};
    return ir_emit(p, OP_EMBEDDING, (int[]){index, table}, 2, &attr);
}
