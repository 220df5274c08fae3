/* linear.c - products with weights. */
#include "nn/linear.h"

#include "ir/build.h"

int nn_linear(const struct model *m, struct ir_program *p, int x, const struct linear *l)
{
    (void)m;
    int bias = l->bias_var == IR_NONE ? IR_NONE : ir_var_read(p, l->bias_var);
    int weight = ir_var_read(p, l->weight_var);
    return l->in_out ? ir_gemm(p, x, weight, bias, false, false) : ir_linear(p, x, weight, bias);
}
