/* quant.c - weights in few bits as operands: shape, cost. No gradient flows: they are frozen. */
#include "ir/quant.h"
#include "ir/ops/ops_int.h"

enum status shape_dequant(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct quant_attr *a = &op->attr.quant;
    const struct ir_value *codes = op_in(p, op, 0), *absmax = op_in(p, op, 1);
    const struct ir_value *nested = op_in(p, op, 2), *offset = op_in(p, op, 3);
    int64_t n = a->shape.rank >= 0 && a->shape.rank <= RANK_MAX ? shape_count(&a->shape) : -1;
    if ((a->kind != QUANT_INT8 && a->kind != QUANT_NF4) || n < 1 ||
        (a->to != DT_F32 && a->to != DT_BF16 && a->to != DT_F16))
        return err_set(e, ST_INVALID, "a weight in few bits has no kind, shape or type");
    int64_t blocks = quant_blocks(n, QUANT_WEIGHT_BLOCK);
    bool good = codes->dtype == DT_U8 && shape_count(&codes->shape) == quant_code_bytes(a->kind, n);
    good = good && shape_count(&absmax->shape) == blocks && !nested == !offset &&
           absmax->dtype == (nested ? DT_U8 : DT_F32);
    if (good && nested)
        good = nested->dtype == DT_F32 && offset->dtype == DT_F32 &&
               shape_count(&nested->shape) == quant_blocks(blocks, QUANT_NESTED_BLOCK) &&
               shape_count(&offset->shape) == 1;
    if (!good)
        return err_set(
            e, ST_INVALID, "codes %s and scales %s are not those of a weight %s",
            TEXT(codes->shape), TEXT(absmax->shape), TEXT(a->shape));
    out->dtype = a->to;
    out->shape = a->shape;
    return ST_OK;
}

void cost_dequant(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_moves(p, op, c);
    c->flops = (double)shape_count(&op->attr.quant.shape);
}
