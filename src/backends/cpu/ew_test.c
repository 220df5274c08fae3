/* ew_test.c - elementwise operators, casts and dropout against double precision. */
#include "backends/cpu/kernel_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
static const enum layout layouts[] = {LAYOUT_ROW, LAYOUT_CL, LAYOUT_C16};

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* Value of an operator with attr a = 0.3, b = 1.2; GELU's erf form. */
static double reference(enum opcode c, double x)
{
    switch ((int)c) {
    case OP_RELU:
        return x > 0 ? x : 0;
    case OP_LEAKY_RELU:
        return x > 0 ? x : 0.3 * x;
    case OP_ELU:
        return x > 0 ? x : 0.3 * expm1(x);
    case OP_SELU:
        return 1.0507009873554805 * (x > 0 ? x : 1.6732632423543772 * expm1(x));
    case OP_GELU:
        return 0.5 * x * (1 + erf(x / sqrt(2)));
    case OP_SIGMOID:
        return sigmoid(x);
    case OP_TANH:
        return tanh(x);
    case OP_SILU:
        return x * sigmoid(x);
    case OP_MISH:
        return x * tanh(log1p(exp(x)));
    case OP_HARDSWISH:
        return x * fmin(fmax(x + 3, 0), 6) / 6;
    case OP_EXP:
        return exp(x);
    case OP_ABS:
        return fabs(x);
    case OP_SIGN:
        return (x > 0) - (x < 0);
    case OP_AFFINE:
        return 0.3 * x + 1.2;
    case OP_CLAMP:
        return fmin(fmax(x, 0.3), 1.2);
    default:
        return (double)NAN;
    }
}

static const enum opcode unary[] = {
    OP_RELU, OP_LEAKY_RELU, OP_ELU, OP_SELU, OP_GELU, OP_SIGMOID, OP_TANH,  OP_SILU,
    OP_MISH, OP_HARDSWISH,  OP_EXP, OP_ABS,  OP_SIGN, OP_AFFINE,  OP_CLAMP,
};

static void unary_case(enum opcode c, enum dtype t, enum layout l, struct shape s)
{
    struct kt k;
    kt_init(&k, c, (uint32_t)t);
    k.attr.ew.a = 0.3, k.attr.ew.b = 1.2;
    kt_in(&k, t, l, s);
    kt_out(&k, t, l, s);
    int64_t n = tensor_count(&k.in[0]);
    double *want = malloc(sizeof *want * (size_t)n);
    for (int64_t i = 0; i < n; i++)
        want[i] = reference(c, kt_at(&k.in[0], i));
    kt_run(&k);
    CHECK(kt_error(&k.out[0], want) <= kt_tolerance(t));
    free(want);
    kt_free(&k);
}

TEST(k_unary_values, "activations in every type and layout, tails included")
{
    for (size_t i = 0; i < sizeof unary / sizeof *unary; i++) {
        for (int t = 0; t < 3; t++) {
            unary_case(unary[i], types[t], LAYOUT_ROW, SHAPE(1037));
            unary_case(unary[i], types[t], LAYOUT_ROW, SHAPE(3, 5));
            for (int l = 0; l < 3; l++)
                unary_case(unary[i], types[t], layouts[l], SHAPE(2, 32, 9, 7));
        }
    }
}

/* Which forward operator a gradient belongs to, and whether it saves the output. */
static const struct {
    enum opcode grad, forward;
    bool output;
} grads[] = {
    {OP_RELU_GRAD, OP_RELU, true},    {OP_LEAKY_RELU_GRAD, OP_LEAKY_RELU, false},
    {OP_ELU_GRAD, OP_ELU, false},     {OP_SELU_GRAD, OP_SELU, false},
    {OP_GELU_GRAD, OP_GELU, false},   {OP_SIGMOID_GRAD, OP_SIGMOID, true},
    {OP_TANH_GRAD, OP_TANH, true},    {OP_SILU_GRAD, OP_SILU, false},
    {OP_MISH_GRAD, OP_MISH, false},   {OP_HARDSWISH_GRAD, OP_HARDSWISH, false},
    {OP_CLAMP_GRAD, OP_CLAMP, false},
};

TEST(k_unary_gradients, "activation gradients are dy times the finite difference")
{
    for (size_t g = 0; g < sizeof grads / sizeof *grads; g++) {
        struct kt k;
        kt_init(&k, grads[g].grad, 1);
        k.attr.ew.a = 0.3, k.attr.ew.b = 1.2;
        struct shape s = SHAPE(997);
        kt_in(&k, DT_F32, LAYOUT_ROW, s);
        struct tensor *saved = kt_in(&k, DT_F32, LAYOUT_ROW, s);
        kt_out(&k, DT_F32, LAYOUT_ROW, s);
        double want[997], h = 1e-6;
        for (int i = 0; i < 997; i++) {
            double x = kt_at(saved, i);
            for (double corner = -3; corner <= 3; corner += 0.3) /* away from kinks */
                x += fabs(x - corner) < 1e-4 ? 1e-3 : 0;
            enum opcode f = grads[g].forward;
            kt_put(saved, i, x);
            x = kt_at(saved, i);
            want[i] = kt_at(&k.in[0], i) * (reference(f, x + h) - reference(f, x - h)) / (2 * h);
            if (grads[g].output)
                kt_put(saved, i, reference(f, x));
        }
        kt_run(&k);
        CHECK(kt_error(&k.out[0], want) < 1e-6);
        kt_free(&k);
    }
}

TEST(k_gelu_tanh, "the tanh form of GELU and its gradient (PyTorch's values)")
{
    struct kt k;
    kt_init(&k, OP_GELU, 1);
    k.attr.ew.tanh_form = true;
    kt_in(&k, DT_F32, LAYOUT_ROW, SHAPE(2));
    kt_put(&k.in[0], 0, 1), kt_put(&k.in[0], 1, -2);
    kt_out(&k, DT_F32, LAYOUT_ROW, SHAPE(2));
    kt_run(&k);
    CHECK_NEAR(kt_at(&k.out[0], 0), 0.841191990607477, 1e-7);
    CHECK_NEAR(kt_at(&k.out[0], 1), -0.0454023059, 1e-7);
    kt_free(&k);
}

TEST(k_special_values, "NaN and infinities pass as PyTorch lets them")
{
    static const enum opcode codes[] = {OP_RELU, OP_GELU, OP_SIGMOID, OP_TANH, OP_CLAMP, OP_EXP};
    for (int c = 0; c < 6; c++) {
        struct kt k;
        kt_init(&k, codes[c], 1);
        k.attr.ew.b = 1;
        kt_in(&k, DT_F32, LAYOUT_ROW, SHAPE(3));
        kt_put(&k.in[0], 0, (double)NAN), kt_put(&k.in[0], 1, (double)INFINITY),
            kt_put(&k.in[0], 2, 0);
        kt_out(&k, DT_F32, LAYOUT_ROW, SHAPE(3));
        kt_run(&k);
        CHECK(isnan(kt_at(&k.out[0], 0)));
        bool one = codes[c] == OP_SIGMOID || codes[c] == OP_TANH || codes[c] == OP_CLAMP;
        CHECK(kt_at(&k.out[0], 1) == (one ? 1 : (double)INFINITY));
        kt_free(&k);
    }
}

static double arithmetic(enum opcode c, double a, double b)
{
    switch ((int)c) {
    case OP_ADD:
        return a + b;
    case OP_SUB:
        return a - b;
    case OP_MUL:
        return a * b;
    case OP_DIV:
        return a / b;
    case OP_MAXIMUM:
        return fmax(a, b);
    case OP_MINIMUM:
        return fmin(a, b);
    case OP_GREATER:
        return a > b;
    default:
        return a == b;
    }
}

TEST(k_binary_broadcast, "arithmetic with broadcasting over mixed layouts")
{
    for (int c = OP_ADD; c <= OP_EQUAL; c++) {
        for (int t = 0; t < 3; t++) {
            for (int l = 0; l < 3; l++) {
                struct kt k;
                kt_init(&k, (enum opcode)c, 1);
                kt_in(&k, types[t], layouts[l], SHAPE(2, 16, 5, 7));
                kt_in(&k, types[t], LAYOUT_ROW, SHAPE(16, 1, 7));
                kt_out(&k, types[t], layouts[l], SHAPE(2, 16, 5, 7));
                double want[2 * 16 * 5 * 7];
                for (int i = 0; i < 1120; i++)
                    want[i] = arithmetic(
                        (enum opcode)c, kt_at(&k.in[0], i),
                        kt_at(&k.in[1], i / 35 % 16 * 7 + i % 7));
                kt_run(&k);
                CHECK(kt_error(&k.out[0], want) <= kt_tolerance(types[t]));
                kt_free(&k);
            }
        }
    }
}

TEST(k_binary_views, "arithmetic on transposed operands, in place, and on integers")
{
    struct kt k;
    kt_init(&k, OP_SUB, 1);
    kt_in(&k, DT_F32, LAYOUT_ROW, SHAPE(70, 40));
    struct tensor *b = kt_in(&k, DT_F32, LAYOUT_ROW, SHAPE(40, 70));
    kt_out(&k, DT_F32, LAYOUT_ROW, SHAPE(70, 40));
    double want[2800];
    for (int i = 0; i < 2800; i++)
        want[i] = kt_at(&k.in[0], i) - kt_at(b, i % 40 * 70 + i / 40);
    struct tensor whole = *b;
    b->shape = SHAPE(70, 40);
    b->stride[0] = 1, b->stride[1] = 70;
    kt_run(&k);
    CHECK(kt_error(&k.out[0], want) < 1e-7);
    struct tensor saved = k.out[0];
    k.out[0] = k.in[0]; /* the result takes the first operand's storage */
    kt_run(&k);
    CHECK(kt_same(&k.in[0], &saved));
    k.out[0] = saved;
    *b = whole;
    kt_free(&k);

    kt_init(&k, OP_MUL, 2);
    kt_in(&k, DT_I64, LAYOUT_ROW, SHAPE(5));
    kt_in(&k, DT_I64, LAYOUT_ROW, SHAPE(1));
    kt_put(&k.in[0], 0, 33554433), kt_put(&k.in[1], 0, 3); /* not a float32 */
    kt_out(&k, DT_I64, LAYOUT_ROW, SHAPE(5));
    kt_run(&k);
    CHECK_EQ(((int64_t *)k.out[0].data)[0], 100663299);
    kt_free(&k);
}

TEST(k_casts, "casts between all types round once")
{
    for (int from = 0; from < DT_COUNT; from++) {
        for (int to = 0; to < DT_COUNT; to++) {
            struct kt k;
            kt_init(&k, OP_CAST, 1);
            kt_in(&k, (enum dtype)from, LAYOUT_ROW, SHAPE(603));
            kt_out(&k, (enum dtype)to, LAYOUT_ROW, SHAPE(603));
            for (int i = 0; i < 603; i++)
                kt_put(&k.in[0], i, fabs(kt_at(&k.in[0], i)));
            kt_run(&k);
            for (int i = 0; i < 603; i++) {
                double x = kt_at(&k.in[0], i), one[1];
                dtype_store(one, (enum dtype)to, 0, to == DT_BOOL ? x != 0 : x);
                CHECK(dtype_load(one, (enum dtype)to, 0) == kt_at(&k.out[0], i));
            }
            kt_free(&k);
        }
    }
}

static void dropout_run(struct kt *k, enum layout l, double p, bool mask)
{
    kt_init(k, OP_DROPOUT, 1);
    k->attr.dropout.p = p;
    k->attr.dropout.stream = 7;
    kt_in(k, DT_F32, l, SHAPE(2, 16, 5, 7));
    kt_in(k, DT_I64, LAYOUT_ROW, SHAPE(2));
    ((int64_t *)k->in[1].data)[0] = 123456789012345;
    ((int64_t *)k->in[1].data)[1] = 3;
    if (mask)
        kt_in(k, DT_F32, l, SHAPE(2, 16, 5, 7));
    kt_out(k, DT_F32, l, SHAPE(2, 16, 5, 7));
    for (int i = 0; i < 1120; i++) {
        kt_put(&k->in[0], i, 1 + i);
        if (mask)
            kt_put(&k->in[2], i, i % 3 == 0);
    }
    kt_run(k);
}

TEST(k_dropout, "one mask in every layout, the numbers of rng_block, scaled by 1 / (1 - p)")
{
    for (int l = 0; l < 3; l++) {
        struct kt k;
        dropout_run(&k, layouts[l], 0.25, false);
        for (int i = 0; i < 1120; i++) {
            uint32_t r[4];
            rng_block(123456789012345, 7, 3, (uint64_t)i / 4, r);
            double want = r[i % 4] >= 0x40000000u ? (double)((float)(1 + i) * (1 / 0.75f)) : 0;
            CHECK(kt_at(&k.out[0], i) == want);
        }
        kt_free(&k);
        dropout_run(&k, layouts[l], 0.5, true);
        for (int i = 0; i < 1120; i++)
            CHECK(kt_at(&k.out[0], i) == (i % 3 == 0 ? 2.0 * (1 + i) : 0));
        kt_free(&k);
    }
}

TEST(k_dropout_ends, "p = 0 copies, p = 1 gives zeros")
{
    struct kt k;
    dropout_run(&k, LAYOUT_ROW, 0, false);
    CHECK(kt_same(&k.in[0], &k.out[0]));
    kt_free(&k);
    dropout_run(&k, LAYOUT_ROW, 1, false);
    for (int i = 0; i < 1120; i++)
        CHECK(kt_at(&k.out[0], i) == 0);
    kt_free(&k);
}

/* Runs the tests of these kernels again in a process of each narrower instruction set. */
TEST_WITHIN(isa_sets, 300, "the same tests pass with SNUG_ISA=portable, avx2 and avx512")
{
    static const char *const sets[] = {"portable", "avx2", "avx512"};
    for (int i = 0; i < 3; i++) {
        if (getenv("SNUG_ISA"))
            test_skip("within one set");
        char command[600], self[500];
        ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
        CHECK(n > 0);
        self[n] = 0;
        CHECK(
            snprintf(
                command, sizeof command, "SNUG_ISA=%s '%s' k_ > /dev/null 2>&1", sets[i], self) <
            600);
        if (system(command) != 0)
            test_fail(__FILE__, __LINE__, "tests fail with SNUG_ISA=%s", sets[i]);
    }
}
