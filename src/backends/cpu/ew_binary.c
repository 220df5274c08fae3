/* ew_binary.c - arithmetic and comparison of two operands with broadcasting, and casts. */
#include "backends/cpu/ew.h"
#include "backends/cpu/lanes.h"
#include "backends/cpu/nd.h"

#include <math.h>
#include <string.h>

static void block(const struct ew_call *c, const float *const *x, float *y, int n)
{
    lanes_ew()->binary(c->args->code, x[0], x[1], y, n);
}

static double value(enum opcode code, double a, double b)
{
    switch ((int)code) {
    case OP_ADD:
        return a + b;
    case OP_SUB:
        return a - b;
    case OP_MUL:
        return a * b;
    case OP_DIV:
        return a / b;
    case OP_MAXIMUM:
        return isnan(a) || isnan(b) ? a + b : a > b ? a : b;
    case OP_MINIMUM:
        return isnan(a) || isnan(b) ? a + b : a < b ? a : b;
    case OP_GREATER:
        return a > b;
    default:
        return a == b;
    }
}

static void wide(const struct ew_call *c, const double *const *x, double *y, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = value(c->args->code, x[0][i], x[1][i]);
}

static enum status run(const struct kernel_args *a, struct err *e)
{
    struct ew_call c = {.args = a, .block = block, .wide = wide};
    const struct tensor *in[] = {&a->in[0], &a->in[1]};
    return ew_run(&c, &a->out[0], in, 2, e);
}

/* ---- cast: the reading and the writing of blocks do it ---- */
static void block_cast(const struct ew_call *c, const float *const *x, float *y, int n)
{
    if (c->args->out[0].dtype == DT_BOOL) {
        for (int i = 0; i < n; i++)
            y[i] = x[0][i] != 0;
    } else {
        memcpy(y, x[0], (size_t)n * sizeof *y);
    }
}

static void wide_cast(const struct ew_call *c, const double *const *x, double *y, int n)
{
    bool truth = c->args->out[0].dtype == DT_BOOL;
    for (int i = 0; i < n; i++)
        y[i] = truth ? x[0][i] != 0 : x[0][i];
}

static enum status run_cast(const struct kernel_args *a, struct err *e)
{
    struct ew_call c = {.args = a, .block = block_cast, .wide = wide_cast};
    const struct tensor *in[] = {&a->in[0]};
    return ew_run(&c, &a->out[0], in, 1, e);
}

extern const struct kernel kernel_binary, kernel_cast;
const struct kernel kernel_binary = {.run = run, .name = "elementwise"};
const struct kernel kernel_cast = {.run = run_cast, .name = "cast"};
