/* build_attention.c - emitters: attention, rotary position embedding. */
#include "ir/build.h"

#include "ir/ops/ops_int.h"

/* x itself where its last dimension is dense, else a copy. */
static int rows_dense(struct ir_program *p, int x)
{
    if (ir_idle(p, x))
        return x;
    const struct ir_value *v = &p->values.data[x];
    int last = v->shape.rank - 1;
    if (v->layout != LAYOUT_ROW || (last >= 0 && v->shape.dim[last] > 1 && v->stride[last] != 1))
        return ir_contiguous(p, x);
    return x;
}

int ir_attention(
    struct ir_program *p, int q, int k, int v, int bias, int rng, const struct attention_attr *a)
{
    if (ir_idle(p, q))
        return IR_NONE;
    struct shape sq = value_shape(p, q);
    if (bias != IR_NONE && sq.rank == 4) {
        int64_t t =
            k != IR_NONE && value_shape(p, k).rank == 4 ? value_shape(p, k).dim[1] : sq.dim[1];
        bias = ir_expand(p, bias, SHAPE(sq.dim[0], a->heads, sq.dim[1], t));
        if (bias == IR_NONE)
            return IR_NONE;
    }
    int in[] = {rows_dense(p, q), rows_dense(p, k), rows_dense(p, v), bias, IR_NONE};
    if (a->dropout > 0)
        in[4] = rng;
    return ir_emit(p, OP_ATTENTION, in, 5, &(union op_attr){.attention = *a});
}

int ir_is_value(struct ir_program *p, int x, int64_t value)
{
    /* A difference of indices is exact, a float32 of one above 2^24 is not. */
    if (value != 0)
        x = ir_affine(p, x, 1, -(double)value);
    return ir_binary(p, OP_EQUAL, x, ir_fill(p, shape_scalar(), 0));
}

int ir_key_bias(struct ir_program *p, int mask)
{
    if (ir_idle(p, mask))
        return IR_NONE;
    struct shape s = value_shape(p, mask);
    if (s.rank != 2)
        return ir_refuse(p, ST_INVALID, "expected a mask [B, T], got %s", TEXT(s));
    int bias = ir_unary(p, OP_LOG, ir_is_value(p, mask, 0)); /* ln 1 = 0, ln 0 = -inf */
    return ir_reshape(p, bias, SHAPE(s.dim[0], 1, 1, s.dim[1]));
}

int ir_rope_table(struct ir_program *p, const struct rope_attr *a)
{
    return ir_emit(p, OP_ROPE_TABLE, NULL, 0, &(union op_attr){.rope = *a});
}

int ir_rope(struct ir_program *p, int x, int table, const struct rope_attr *a)
{
    if (ir_idle(p, x) || ir_idle(p, table))
        return IR_NONE;
    int in[] = {rows_dense(p, x), ir_contiguous(p, table)};
    return ir_emit(p, OP_ROPE, in, 2, &(union op_attr){.rope = *a});
}
