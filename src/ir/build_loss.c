/* build_loss.c - emitters: losses, whole operators and composed ones. */
#include "ir/build.h"

#include "ir/ops/ops_int.h"

int ir_cross_entropy(
    struct ir_program *p, int logits, int target, int weight, const struct loss_attr *a)
{
    if (ir_idle(p, logits) || ir_idle(p, target))
        return IR_NONE;
    int in[] = {logits, target, weight};
    return ir_emit(
        p, OP_CROSS_ENTROPY, in, weight == IR_NONE ? 2 : 3, &(union op_attr){.loss = *a});
}

int ir_nll(struct ir_program *p, int logp, int target, int weight, const struct loss_attr *a)
{
    if (ir_idle(p, logp) || ir_idle(p, target))
        return IR_NONE;
    int in[] = {logp, target, weight};
    return ir_emit(p, OP_NLL, in, weight == IR_NONE ? 2 : 3, &(union op_attr){.loss = *a});
}

static bool broadcasts(enum loss_kind kind)
{
    return kind == LOSS_MSE || kind == LOSS_L1 || kind == LOSS_SMOOTH_L1 || kind == LOSS_HUBER;
}

/* x and target get one shape (where the loss broadcasts) and one type; weights x's. */
int ir_loss_ew(
    struct ir_program *p, int x, int target, int weight, int pos_weight, const struct loss_attr *a)
{
    if (ir_idle(p, x) || ir_idle(p, target))
        return IR_NONE;
    struct shape sx = value_shape(p, x), st = value_shape(p, target), common;
    if (broadcasts(a->kind) && shape_broadcast(&sx, &st, &common)) {
        x = ir_expand(p, x, common);
        target = ir_expand(p, target, common);
        sx = common;
    }
    if (ir_idle(p, x) || ir_idle(p, target))
        return IR_NONE;
    enum dtype t = dtype_widest(p->values.data[x].dtype, p->values.data[target].dtype);
    if (!dtype_floating(p->values.data[x].dtype))
        t = p->values.data[x].dtype; /* refused with a text about the input */
    int in[] = {ir_cast(p, x, t), ir_cast(p, target, t), weight, pos_weight};
    for (int i = 2; i < 4; i++)
        if (in[i] != IR_NONE)
            in[i] = ir_expand(p, in[i], sx);
    int n = pos_weight != IR_NONE ? 4 : weight != IR_NONE ? 3 : 2;
    return ir_emit(p, OP_LOSS_EW, in, n, &(union op_attr){.loss = *a});
}

static int reduced(struct ir_program *p, int each, enum reduction r)
{
    if (ir_idle(p, each) || r == REDUCE_NONE)
        return each;
    if (r == REDUCE_BATCHMEAN)
        return ir_refuse(p, ST_INVALID, "batchmean is not a valid value for reduction here");
    uint32_t all = (1U << value_shape(p, each).rank) - 1;
    return r == REDUCE_SUM ? ir_sum(p, each, all, false) : ir_mean(p, each, all, false);
}

/* max(0, -y (x1 - x2) + margin) */
int ir_margin_ranking(struct ir_program *p, int x1, int x2, int y, double margin, enum reduction r)
{
    if (ir_idle(p, x1) || ir_idle(p, x2) || ir_idle(p, y))
        return IR_NONE;
    if (value_shape(p, x1).rank != value_shape(p, x2).rank ||
        value_shape(p, x1).rank != value_shape(p, y).rank)
        return ir_refuse(
            p, ST_INVALID,
            "margin_ranking_loss: all input tensors should have same dimension but got sizes: "
            "input1: %s, "
            "input2: %s, target: %s",
            TEXT(p->values.data[x1].shape), TEXT(p->values.data[x2].shape),
            TEXT(p->values.data[y].shape));
    int difference = ir_binary(p, OP_SUB, x1, x2);
    if (difference == IR_NONE)
        return IR_NONE;
    y = ir_cast(p, y, p->values.data[difference].dtype);
    int each = ir_affine(p, ir_binary(p, OP_MUL, y, difference), -1, margin);
    return reduced(p, ir_unary(p, OP_RELU, each), r);
}

static int row_dot(struct ir_program *p, int a, int b)
{
    int product = ir_binary(p, OP_MUL, a, b);
    return ir_idle(p, product)
               ? IR_NONE
               : ir_sum(p, product, 1U << (value_shape(p, product).rank - 1), false);
}

/* 1 - cos where y is 1, max(0, cos - margin) where it is -1, else 0; cos = a.b / sqrt((a.a + e)(b.b
 * + e)). */
int ir_cosine_embedding(
    struct ir_program *p, int x1, int x2, int y, double margin, enum reduction r)
{
    if (ir_idle(p, x1) || ir_idle(p, x2) || ir_idle(p, y))
        return IR_NONE;
    struct shape s1 = value_shape(p, x1), s2 = value_shape(p, x2), sy = value_shape(p, y),
                 rows = s1;
    rows.rank--;
    if (s1.rank < 1 || s1.rank > 2 || !shape_eq(&s1, &s2) || !shape_eq(&sy, &rows))
        return ir_refuse(
            p, ST_INVALID,
            "cosine_embedding_loss: expects inputs of shape [N, D] and a target of [N] (or [D] and "
            "a "
            "scalar), got %s, %s and %s",
            TEXT(s1), TEXT(s2), TEXT(sy));
    double tiny = 1e-12;
    int dot = row_dot(p, x1, x2);
    int m1 = ir_affine(p, row_dot(p, x1, x1), 1, tiny),
        m2 = ir_affine(p, row_dot(p, x2, x2), 1, tiny);
    int cosine = ir_binary(p, OP_DIV, dot, ir_unary(p, OP_SQRT, ir_binary(p, OP_MUL, m1, m2)));
    if (cosine == IR_NONE)
        return IR_NONE;
    y = ir_cast(p, y, p->values.data[cosine].dtype);
    int one = ir_cast(p, ir_fill(p, shape_scalar(), 1), p->values.data[cosine].dtype);
    int same = ir_binary(p, OP_EQUAL, y, one);
    int other = ir_binary(p, OP_EQUAL, ir_affine(p, y, -1, 0), one);
    int near = ir_binary(p, OP_MUL, same, ir_affine(p, cosine, -1, 1));
    int far = ir_binary(p, OP_MUL, other, ir_unary(p, OP_RELU, ir_affine(p, cosine, 1, -margin)));
    return reduced(p, ir_binary(p, OP_ADD, near, far), r);
}
