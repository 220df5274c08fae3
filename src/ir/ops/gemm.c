/* gemm.c - matrix products: shape, gradients, cost. */
#include "ir/ops/ops_int.h"

#include <string.h>

/* The matrix of a [.., R, C] operand as it is multiplied. */
static void matrix(const struct ir_value *v, bool transposed, int64_t *rows, int64_t *columns)
{
    int64_t r = v->shape.dim[v->shape.rank - 2], c = v->shape.dim[v->shape.rank - 1];
    *rows = transposed ? c : r;
    *columns = transposed ? r : c;
}

static bool leading_equal(const struct shape *a, const struct shape *b)
{
    return a->rank == b->rank &&
           memcmp(a->dim, b->dim, sizeof *a->dim * (size_t)(a->rank - 2)) == 0;
}

enum status shape_gemm(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *a = op_in(p, op, 0), *b = op_in(p, op, 1), *bias = op_in(p, op, 2);
    if (a->shape.rank < 2 || b->shape.rank < 2)
        return err_set(
            e, ST_INVALID, "a product needs matrices, got shapes %s and %s", TEXT(a->shape),
            TEXT(b->shape));
    int64_t m, k, k2, n;
    matrix(a, op->attr.gemm.ta, &m, &k);
    matrix(b, op->attr.gemm.tb, &k2, &n);
    if (k != k2 || (b->shape.rank != 2 && !leading_equal(&a->shape, &b->shape)))
        return err_set(
            e, ST_INVALID, "mat1 and mat2 shapes cannot be multiplied (%s%s and %s%s)",
            TEXT(a->shape), op->attr.gemm.ta ? " transposed" : "", TEXT(b->shape),
            op->attr.gemm.tb ? " transposed" : "");
    if (!dtype_floating(a->dtype) || !dtype_floating(b->dtype))
        return err_set(
            e, ST_INVALID, "a product needs floating values, got %s and %s", dtype_name(a->dtype),
            dtype_name(b->dtype));
    enum dtype ta = op->attr.gemm.round[0] ? DT_BF16 : a->dtype;
    enum dtype tb = op->attr.gemm.round[1] ? DT_BF16 : b->dtype;
    out->dtype = op->attr.gemm.f32_out ? DT_F32 : dtype_widest(ta, tb);
    out->shape = a->shape;
    out->shape.dim[a->shape.rank - 2] = m;
    out->shape.dim[a->shape.rank - 1] = n;
    if (bias && (bias->shape.rank != 1 || bias->shape.dim[0] != n))
        return err_set(
            e, ST_INVALID, "expected a bias of shape [%lld], got %s", (long long)n,
            TEXT(bias->shape));
    return ST_OK;
}

/* a [.., K, M] or [.., M, K] and b of rank 2: db sums over the leading dimensions. */
static int shared_grad(struct ir_program *p, int a, int dc, struct gemm_attr attr, struct shape b)
{
    struct shape sa = value_shape(p, a), sc = value_shape(p, dc);
    if (!attr.ta) {
        /* Flattened to one product of all rows. */
        int fa = ir_flatten(p, a, 0, sa.rank - 2), fc = ir_flatten(p, dc, 0, sc.rank - 2);
        return attr.tb ? ir_gemm(p, fc, fa, IR_NONE, true, false)
                       : ir_gemm(p, fa, fc, IR_NONE, true, false);
    }
    int each =
        attr.tb ? ir_gemm(p, dc, a, IR_NONE, true, true) : ir_gemm(p, a, dc, IR_NONE, false, false);
    return ir_sum_to(p, each, &b);
}

static int grad_b(struct ir_program *p, int a, int b, int dc, struct gemm_attr attr)
{
    struct shape sa = value_shape(p, a), sb = value_shape(p, b);
    if (sa.rank > sb.rank)
        return shared_grad(p, a, dc, attr, sb);
    return attr.tb ? ir_gemm(p, dc, a, IR_NONE, true, attr.ta)
                   : ir_gemm(p, a, dc, IR_NONE, !attr.ta, false);
}

static int grad_a(struct ir_program *p, int a, int b, int dc, struct gemm_attr attr)
{
    struct shape sa = value_shape(p, a), sb = value_shape(p, b);
    if (!attr.ta)
        return ir_gemm(p, dc, b, IR_NONE, false, !attr.tb);
    if (sa.rank > sb.rank) { /* b is the left factor: give it a's leading dimensions */
        struct shape s = sa;
        s.dim[s.rank - 2] = sb.dim[0];
        s.dim[s.rank - 1] = sb.dim[1];
        b = ir_expand(p, b, s);
    }
    return ir_gemm(p, b, dc, IR_NONE, attr.tb, true);
}

void grad_gemm(struct ir_grad *g, const struct ir_op *op)
{
    struct ir_program *p = ir_grad_program(g);
    struct gemm_attr attr = op->attr.gemm;
    int a = op->in[0], b = op->in[1], last = op_arg(op, 2), dc = grad_out(g, op, 0);
    if (attr.act == ACT_RELU)
        dc = ir_binary(p, OP_RELU_GRAD, dc, op->out[0]);
    if (last != IR_NONE && ir_grad_wanted(g, last))
        ir_grad_add(g, last, dc); /* summed to the bias's shape */
    if (ir_grad_wanted(g, b))
        ir_grad_add(g, b, grad_b(p, a, b, dc, attr));
    if (ir_grad_wanted(g, a))
        ir_grad_add(g, a, grad_a(p, a, b, dc, attr));
}

void cost_gemm(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_moves(p, op, c);
    int64_t m, k;
    matrix(op_in(p, op, 0), op->attr.gemm.ta, &m, &k);
    c->flops = 2.0 * (double)k * (double)shape_count(&p->values.data[op->out[0]].shape);
}
