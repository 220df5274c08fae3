/* ew_unary.c - activations and other functions of one operand, and their gradients. */
#include "backends/cpu/ew.h"
#include "backends/cpu/lanes.h"

#include <math.h>

static void block(const struct ew_call *c, const float *const *x, float *y, int n)
{
    lanes_ew()->unary(c->args->code, &c->args->attr->ew, x[0], y, n);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double gelu(double x, bool tanh_form)
{
    if (tanh_form)
        return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
    return 0.5 * x * (1 + erf(x * 0.7071067811865476));
}

/* For float64 and integers. */
static double value(enum opcode code, const struct ew_attr *a, double x)
{
    switch ((int)code) {
    case OP_RELU:
        return x < 0 ? 0 : x;
    case OP_LEAKY_RELU:
        return x > 0 ? x : x * a->a;
    case OP_ELU:
        return x <= 0 ? a->a * expm1(x) : x;
    case OP_SELU:
        return 1.0507009873554805 * (x <= 0 ? 1.6732632423543772 * expm1(x) : x);
    case OP_GELU:
        return gelu(x, a->tanh_form);
    case OP_SIGMOID:
        return sigmoid(x);
    case OP_TANH:
        return tanh(x);
    case OP_SILU:
        return x * sigmoid(x);
    case OP_MISH:
        return x * tanh(x > 20 ? x : log1p(exp(x)));
    case OP_HARDSWISH:
        return x * fmin(fmax(x + 3, 0), 6) / 6;
    case OP_EXP:
        return exp(x);
    case OP_LOG:
        return log(x);
    case OP_SQRT:
        return sqrt(x);
    case OP_RECIPROCAL:
        return 1 / x;
    case OP_ABS:
        return fabs(x);
    case OP_SIGN:
        return (x > 0) - (x < 0);
    case OP_AFFINE:
        return x * a->a + a->b;
    case OP_CLAMP:
        return x < a->a ? a->a : x > a->b ? a->b : x;
    case OP_POW:
        return pow(x, a->a);
    default:
        return x;
    }
}

static void wide(const struct ew_call *c, const double *const *x, double *y, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = value(c->args->code, &c->args->attr->ew, x[0][i]);
}

static enum status run(const struct kernel_args *a, struct err *e)
{
    struct ew_call c = {.args = a, .block = block, .wide = wide};
    const struct tensor *in[] = {&a->in[0]};
    return ew_run(&c, &a->out[0], in, 1, e);
}

static void block_grad(const struct ew_call *c, const float *const *x, float *y, int n)
{
    lanes_ew()->grad(c->args->code, &c->args->attr->ew, x[0], x[1], y, n);
}

static enum status run_grad(const struct kernel_args *a, struct err *e)
{
    struct ew_call c = {.args = a, .block = block_grad};
    const struct tensor *in[] = {&a->in[0], &a->in[1]};
    return ew_run(&c, &a->out[0], in, 2, e);
}

extern const struct kernel kernel_unary, kernel_act_grad;
const struct kernel kernel_unary = {.run = run, .name = "elementwise"};
const struct kernel kernel_act_grad = {.run = run_grad, .name = "elementwise gradient"};
