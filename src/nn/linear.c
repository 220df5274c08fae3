/* linear.c - products with weights, and the adapters beside them. */
#include "nn/linear.h"

#include "ir/build.h"
#include "nn/adapter.h"

/* The weight as numbers, in the type of x. */
static int weight_read(const struct model *m, struct ir_program *p, int x, int var)
{
    const struct model_quant *q = model_quant_of(m, var);
    if (!q)
        return ir_var_read(p, var);
    int in[4] = {ir_var_read(p, q->codes), ir_var_read(p, q->absmax)};
    for (int i = 0; i < 2; i++) {
        int nested = i ? q->offset : q->nested;
        in[2 + i] = nested == IR_NONE ? IR_NONE : ir_var_read(p, nested);
    }
    enum dtype t = ir_value_at(p, x)->dtype;
    union op_attr attr = {
        .quant = {
            .kind = q->kind, .shape = q->shape, .to = t == DT_BF16 || t == DT_F16 ? t : DT_F32}};
    return ir_emit(p, OP_DEQUANT, in, 4, &attr);
}

static int
adapted(const struct model *m, struct ir_program *p, int x, int y, const struct linear *l)
{
    const struct adapter *a = model_adapter_of(m, l->weight_var);
    if (!a)
        return y;
    double dropout = model_adapter_config(m)->dropout;
    if (l->training && dropout > 0)
        x = ir_dropout(p, x, l->rng, IR_NONE, dropout, a->stream);
    int low = ir_linear(p, x, ir_var_read(p, a->a), IR_NONE);
    int delta = ir_linear(p, low, ir_var_read(p, a->b), IR_NONE);
    return ir_binary(p, OP_ADD, y, ir_affine(p, delta, a->scale, 0));
}

int nn_linear(const struct model *m, struct ir_program *p, int x, const struct linear *l)
{
    if (x == IR_NONE)
        return IR_NONE;
    int bias = l->bias_var == IR_NONE ? IR_NONE : ir_var_read(p, l->bias_var);
    int weight = weight_read(m, p, x, l->weight_var);
    int y = l->in_out ? ir_gemm(p, x, weight, bias, false, false) : ir_linear(p, x, weight, bias);
    return adapted(m, p, x, y, l);
}
