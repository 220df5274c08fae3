/* update_test.c - accumulation, gradient check, update ratio and the optimizers. */
#include "backends/cpu/kernel_test.h"
#include "backends/cpu/lanes.h"
#include "ir/optim_state.h"
#include "ir/quant.h"

#include <math.h>
#include <string.h>

TEST(k_accumulate, "case-T13: low-precision gradients add up in float32")
{
    struct kt k;
    kt_init(&k, OP_ACCUMULATE, 1);
    kt_in(&k, DT_F32, LAYOUT_ROW, SHAPE(37));
    kt_in(&k, DT_BF16, LAYOUT_ROW, SHAPE(37));
    for (int i = 0; i < 37; i++)
        kt_put(&k.in[0], i, 0), kt_put(&k.in[1], i, 1);
    k.out[0] = k.in[0];
    k.n_out = 1;
    for (int i = 0; i < 512; i++)
        kt_run(&k);
    CHECK(kt_at(&k.in[0], 36) / 512 == 1);
    k.n_out = 0;
    kt_free(&k);
}

/* ctl of n gradients of `size` elements of value g. */
static void ctl_of(double scale, double max_norm, enum dtype t, int n, double g, double ctl[4])
{
    struct kt k;
    kt_init(&k, OP_GRAD_CHECK, 1);
    k.attr.check.max_norm = max_norm;
    kt_in(&k, DT_F32, LAYOUT_ROW, shape_scalar());
    kt_put(&k.in[0], 0, scale);
    kt_in(&k, t, LAYOUT_ROW, SHAPE(n));
    for (int i = 0; i < n; i++)
        kt_put(&k.in[1], i, g);
    kt_out(&k, DT_F32, LAYOUT_ROW, SHAPE(4));
    kt_run(&k);
    for (int i = 0; i < 4; i++)
        ctl[i] = kt_at(&k.out[0], i);
    kt_free(&k);
}

TEST(k_grad_check, "A3 P7 case-T20: the norm does not overflow, and what is not finite is skipped")
{
    double ctl[4];
    ctl_of(1, 1, DT_F16, 1, 300, ctl);
    CHECK_NEAR(300 * ctl[1], 1, 1e-6);
    ctl_of(1, 1, DT_F32, 100, 1e20, ctl);
    CHECK_NEAR(ctl[3] / 1e21, 1, 1e-6);
    CHECK_NEAR(1e20 * ctl[1], 0.1, 1e-6);
    CHECK(ctl[2] == 0);
    ctl_of(1, 1, DT_F32, 2, (double)INFINITY, ctl);
    CHECK(ctl[2] == 1);
    ctl_of(1, 0, DT_F32, 2, (double)NAN, ctl);
    CHECK(ctl[2] == 1);
    ctl_of(1024, 10, DT_F32, 4, 1024, ctl);
    CHECK(ctl[0] == 1.0 / 1024 && ctl[1] == 1 && ctl[3] == 2);
}

TEST(
    k_grad_check_large,
    "P7: of many elements, wherever the bad one lies; the sum is that of any order")
{
    enum { N = 5003 };
    static const int places[] = {-1, 0, 1500, 4095, 4096, 5002};
    static const double bad[] = {(double)INFINITY, (double)NAN};
    for (int p = 0; p < 12; p++) {
        struct kt k;
        kt_init(&k, OP_GRAD_CHECK, 1);
        kt_in(&k, DT_F32, LAYOUT_ROW, shape_scalar());
        kt_put(&k.in[0], 0, p % 3 + 1);
        kt_in(&k, DT_F32, LAYOUT_ROW, SHAPE(N));
        double squares = 0;
        for (int i = 0; i < N; i++) {
            kt_put(&k.in[1], i, i % 101 - 50);
            squares += (i % 101 - 50.0) * (i % 101 - 50.0);
        }
        if (places[p / 2] >= 0)
            kt_put(&k.in[1], places[p / 2], bad[p % 2]);
        kt_out(&k, DT_F32, LAYOUT_ROW, SHAPE(4));
        kt_run(&k);
        CHECK(kt_at(&k.out[0], 2) == (places[p / 2] >= 0));
        if (places[p / 2] < 0)
            CHECK_NEAR(kt_at(&k.out[0], 3) * (p % 3 + 1), sqrt(squares), 1e-3);
        kt_free(&k);
    }
}

TEST(k_update_ratio, "norm of rate times gradient over norm of the parameters")
{
    struct kt k;
    kt_init(&k, OP_UPDATE_RATIO, 1);
    kt_in(&k, DT_F64, LAYOUT_ROW, SHAPE(2));
    kt_in(&k, DT_F32, LAYOUT_ROW, SHAPE(4));
    kt_put(&k.in[0], 0, 0.1);
    static const double ctl[] = {0.5, 0.25, 0, 0};
    for (int i = 0; i < 4; i++)
        kt_put(&k.in[1], i, ctl[i]);
    for (int i = 2; i < 6; i++) {
        kt_in(&k, DT_F32, LAYOUT_ROW, SHAPE(1));
        kt_put(&k.in[i], 0, i % 2 ? 8 * (i - 2) : i - 1.0); /* w 1, 3; g 8, 24 */
    }
    kt_out(&k, DT_F32, LAYOUT_ROW, shape_scalar());
    kt_run(&k);
    CHECK_NEAR(kt_at(&k.out[0], 0), 0.1 * sqrt(10) / sqrt(10), 1e-7);
    kt_free(&k);
}

/* A parameter of n elements, its states, and one step after another. */
struct opt {
    struct kt k;
    int grad;
};

static void opt_begin(struct opt *o, struct optim_attr a, int states, int n, double w)
{
    kt_init(&o->k, OP_OPTIMIZER, 1);
    o->k.attr.optim = a;
    for (int i = 0; i <= states; i++) {
        bool scalar = (a.kind == OPTIM_NADAM && i == 3) || (a.kind == OPTIM_ASGD && i >= 2);
        kt_in(&o->k, DT_F32, LAYOUT_ROW, scalar ? shape_scalar() : SHAPE(n));
        for (int j = 0; j < (scalar ? 1 : n); j++)
            kt_put(&o->k.in[i], j, i ? scalar : w);
    }
    o->grad = states + 1;
    kt_in(&o->k, DT_F32, LAYOUT_ROW, SHAPE(n));
    kt_in(&o->k, DT_F64, LAYOUT_ROW, SHAPE(2));
    kt_in(&o->k, DT_F32, LAYOUT_ROW, SHAPE(4));
    for (int i = 0; i < 4; i++)
        kt_put(&o->k.in[states + 3], i, i < 2);
}

static void opt_step(struct opt *o, double g, double lr, int t)
{
    for (int64_t i = 0; i < tensor_count(&o->k.in[o->grad]); i++)
        kt_put(&o->k.in[o->grad], i, g);
    kt_put(&o->k.in[o->grad + 1], 0, lr);
    kt_put(&o->k.in[o->grad + 1], 1, t);
    kt_run(&o->k);
}

static double opt_w(const struct opt *o)
{
    int64_t n = tensor_count(&o->k.in[0]);
    for (int64_t i = 1; i < n; i++)
        CHECK(kt_at(&o->k.in[0], i) == kt_at(&o->k.in[0], 0));
    return kt_at(&o->k.in[0], n - 1);
}

static const struct optim_attr plain = {
    .beta1 = 0.9,
    .beta2 = 0.999,
    .eps = 1e-8,
    .alpha = 0.99,
    .momentum_decay = 4e-3,
    .eta_minus = 0.5,
    .eta_plus = 1.2,
    .step_min = 1e-6,
    .step_max = 50,
    .lambd = 1e-4,
    .t0 = 1e6};

TEST(k_adamw_decay, "case-T28: AdamW shrinks the old weight, then steps")
{
    struct opt o;
    struct optim_attr a = plain;
    a.kind = OPTIM_ADAMW;
    a.weight_decay = 0.1;
    opt_begin(&o, a, 2, 37, 1);
    opt_step(&o, 3, 0.1, 1);
    CHECK_NEAR(opt_w(&o), 0.89, 1e-7);
    kt_free(&o.k);
}

TEST(k_adam_moments, "case-T41: Adam and SGD with momentum over several steps")
{
    struct opt o;
    struct optim_attr a = plain;
    a.kind = OPTIM_ADAM;
    opt_begin(&o, a, 2, 37, 1);
    opt_step(&o, 1, 0.1, 1);
    opt_step(&o, 0.5, 0.1, 2);
    CHECK_NEAR(opt_w(&o), 0.806782, 1e-6);
    kt_free(&o.k);
    a.kind = OPTIM_SGD;
    a.momentum = 0.9;
    opt_begin(&o, a, 1, 37, 0);
    for (int t = 1; t <= 4; t++)
        opt_step(&o, 1, 0.1, t);
    CHECK_NEAR(opt_w(&o), -0.9049, 1e-7);
    kt_free(&o.k);
}

/* torch.optim's results of PyTorch 1.13: w = 1, gradients 1, 0.5, -2, rate 0.1, weight_decay 0.01.
 */
static const struct {
    enum optim_kind kind;
    int states;
    double want;
} known[] = {
#include "backends/cpu/optim_known.def"
};

TEST(k_optimizers, "three steps of each optimizer end on PyTorch's bits")
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        struct opt o;
        struct optim_attr a = plain;
        a.kind = known[i].kind;
        a.weight_decay = a.kind == OPTIM_RPROP ? 0 : 0.01;
        a.momentum = a.kind == OPTIM_SGD || a.kind == OPTIM_RMSPROP ? 0.9 : 0;
        a.nesterov = a.kind == OPTIM_SGD;
        a.amsgrad = a.kind == OPTIM_ADAM;
        a.centered = a.kind == OPTIM_RMSPROP;
        a.eps = a.kind == OPTIM_ADAGRAD ? 1e-10 : 1e-8;
        a.alpha = a.kind == OPTIM_ASGD ? 0.75 : 0.99;
        opt_begin(&o, a, known[i].states, 53, 1);
        for (int j = 0; j < 53 && a.kind == OPTIM_RPROP; j++)
            kt_put(&o.k.in[2], j, 0.1);
        if (a.kind == OPTIM_ASGD)
            kt_put(&o.k.in[2], 0, 0.1);
        static const double g[] = {1, 0.5, -2};
        for (int t = 1; t <= 3; t++)
            opt_step(&o, g[t - 1], 0.1, t);
        if (opt_w(&o) != (double)(float)known[i].want)
            test_fail(
                __FILE__, __LINE__, "optimizer %d: %.9g, not %.9g", (int)a.kind, opt_w(&o),
                known[i].want);
        kt_free(&o.k);
    }
}

/* Correction of the second average by a quotient, to the bit, and what an infinite one does. */
TEST(
    k_adam_quotient,
    "P7: Adam's first step is the formula's in float32; an average that overflows moves nothing")
{
    struct opt o;
    struct optim_attr a = plain;
    a.kind = OPTIM_ADAM;
    for (int t = 1; t < 400; t += 7) {
        opt_begin(&o, a, 2, 37, 1);
        float g = 0.37f + (float)t * 0.013f;
        opt_step(&o, (double)g, 0.01, t);
        float one1 = (float)(1 - 0.9), one2 = (float)(1 - 0.999);
        float m = g * one1, v = one2 * g * g, denom = (float)sqrt(1 - pow(0.999, t));
        float root = sqrtf(v) / denom + 1e-8f, size = (float)-(0.01 / (1 - pow(0.9, t)));
        CHECK(opt_w(&o) == (double)(1.0f + size * m / root));
        kt_free(&o.k);
    }
    opt_begin(&o, a, 2, 37, 1);
    opt_step(&o, 1e30, 0.1, 3);
    CHECK(opt_w(&o) == 1 && isinf(kt_at(&o.k.in[2], 0)));
    kt_free(&o.k);
}

TEST(k_optimizer_skip, "P7: a skipped update changes nothing; scale and clip are applied")
{
    struct opt o;
    struct optim_attr a = plain;
    a.kind = OPTIM_SGD;
    opt_begin(&o, a, 0, 70000, 1);
    kt_put(&o.k.in[3], 0, 0.5), kt_put(&o.k.in[3], 1, 0.25);
    opt_step(&o, 8, 0.5, 1);
    CHECK(opt_w(&o) == 0.5);
    kt_put(&o.k.in[3], 2, 1);
    opt_step(&o, (double)NAN, 0.5, 2);
    CHECK(opt_w(&o) == 0.5);
    kt_free(&o.k);
}

/* ---- states in 8 bits ---- */

/* An optimizer over n elements, its states in 8 bits. */
static void opt8_begin(struct opt *o, struct optim_attr a, int64_t n, uint32_t seed)
{
    struct shape s = SHAPE(n);
    a.int8 = true;
    kt_init(&o->k, OP_OPTIMIZER, seed);
    o->k.attr.optim = a;
    kt_in(&o->k, DT_F32, LAYOUT_ROW, s);
    for (int i = 0; i < optim_state_count(&a); i++) {
        struct shape own = optim_state_shape(&a, i, &s);
        struct tensor *t = kt_in(&o->k, optim_state_dtype(&a, i), LAYOUT_ROW, own);
        for (int64_t j = 0; j < tensor_count(t); j++)
            kt_put(t, j, optim_state_start(&a, i, 0));
    }
    o->grad = o->k.n_in;
    kt_in(&o->k, DT_F32, LAYOUT_ROW, s);
    kt_in(&o->k, DT_F64, LAYOUT_ROW, SHAPE(2));
    kt_in(&o->k, DT_F32, LAYOUT_ROW, SHAPE(4));
    for (int i = 0; i < 4; i++)
        kt_put(&o->k.in[o->grad + 2], i, i < 2);
}

static void opt8_step(struct opt *o, double lr, int t)
{
    kt_random(&o->k.in[o->grad], &o->k.rng);
    kt_put(&o->k.in[o->grad + 1], 0, lr);
    kt_put(&o->k.in[o->grad + 1], 1, t);
    kt_run(&o->k);
}

TEST(k_int8_decay, "L4 case-T28: with 8-bit states AdamW shrinks the old weight, then steps")
{
    struct opt o;
    struct optim_attr a = plain;
    a.kind = OPTIM_ADAMW;
    a.weight_decay = 0.1;
    opt8_begin(&o, a, 5000, 1);
    for (int i = 0; i < 5000; i++)
        kt_put(&o.k.in[0], i, 1);
    opt_step(&o, 3, 0.1, 1);
    CHECK_NEAR(opt_w(&o), 0.89, 1e-7);
    kt_free(&o.k);
}

TEST(k_int8_codes, "L4: whole blocks get the codes of single numbers, next to every middle too")
{
    for (int sign = 0; sign < 2; sign++) {
        const struct quant_dynamic *m = quant_dynamic(sign);
        for (int k = 0; k < m->last; k++) {
            float x[QUANT_STATE_BLOCK] = {1};
            uint8_t code[QUANT_STATE_BLOCK];
            for (int i = 1; i < QUANT_STATE_BLOCK; i++) { /* from 60 units below the middle on */
                uint32_t u;
                memcpy(&u, &m->middle[k], sizeof u);
                u += (uint32_t)(i / 2 - 60) * (i % 5 ? 1 : 997);
                memcpy(&x[i], &u, sizeof u);
                x[i] = x[i] > 1 ? 1 : i % 2 ? -x[i] : x[i];
            }
            CHECK(lanes_optim()->pack(m, x, code, QUANT_STATE_BLOCK - 3) == 1);
            for (int i = 0; i < QUANT_STATE_BLOCK - 3; i++)
                CHECK_EQ(code[i], quant_dynamic_code(m, x[i]));
        }
    }
}

/* Adam in double precision whose moments are rounded to the map after each step, element by
 * element by looking at all values: the published method without our tables. */
static void reference_block(
    double *w, double *m, double *v, const struct tensor *g, int64_t from, int64_t n, int t)
{
    double most[2] = {0, 0};
    for (int64_t i = from; i < from + n; i++) {
        double d = kt_at(g, i);
        m[i] = 0.9 * m[i] + 0.1 * d;
        v[i] = 0.999 * v[i] + 0.001 * d * d;
        w[i] -= 0.01 * (m[i] / (1 - pow(0.9, t))) / (sqrt(v[i] / (1 - pow(0.999, t))) + 1e-8);
        most[0] = fmax(most[0], fabs(m[i]));
        most[1] = fmax(most[1], v[i]);
    }
    for (int64_t i = from; i < from + n; i++)
        for (int s = 0; s < 2; s++) {
            const struct quant_dynamic *map = quant_dynamic(!s);
            double *x = s ? &v[i] : &m[i], best = 9;
            for (int c = 0; c < 256; c++)
                if (fabs((double)map->value[c] - *x / most[s]) < fabs(best - *x / most[s]))
                    best = (double)map->value[c];
            *x = best * most[s];
        }
}

TEST(k_int8_reference, "L4: 8-bit Adam against the method in double precision, ragged last block")
{
    enum { N = 4096 + 77, STEPS = 6 };
    static double w[N], m[N], v[N];
    struct opt o;
    struct optim_attr a = plain;
    a.kind = OPTIM_ADAM;
    opt8_begin(&o, a, N, 3);
    for (int i = 0; i < N; i++)
        w[i] = kt_at(&o.k.in[0], i);
    for (int t = 1; t <= STEPS; t++) {
        opt8_step(&o, 0.01, t);
        for (int64_t i = 0; i < N; i += QUANT_STATE_BLOCK)
            reference_block(
                w, m, v, &o.k.in[o.grad], i, N - i < QUANT_STATE_BLOCK ? N - i : QUANT_STATE_BLOCK,
                t);
    }
    /* A quotient next to a middle may go either way by rounding: a few elements, one code each. */
    double sum = 0;
    int apart = 0;
    for (int i = 0; i < N; i++) {
        sum += fabs(kt_at(&o.k.in[0], i) - w[i]);
        apart += fabs(kt_at(&o.k.in[0], i) - w[i]) > 1e-6;
    }
    CHECK(apart <= 4);
    CHECK_NEAR(sum / N, 0, 1e-6);
    kt_free(&o.k);
}

TEST(
    k_int8_threads,
    "L4: states in 8 bits do not depend on the threads, for every optimizer of them")
{
    static const enum optim_kind kinds[] = {
        OPTIM_SGD, OPTIM_ADAM, OPTIM_ADAMW, OPTIM_RMSPROP, OPTIM_ADAGRAD};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct opt o[2];
        struct optim_attr a = plain;
        a.kind = kinds[i];
        a.momentum = a.kind == OPTIM_SGD || a.kind == OPTIM_RMSPROP ? 0.9 : 0;
        for (int k = 0; k < 2; k++) {
            opt8_begin(&o[k], a, 40000, 5);
            o[k].k.threads = k + 1;
            for (int t = 1; t <= 3; t++)
                opt8_step(&o[k], 0.01, t);
        }
        for (int k = 0; k < o[0].grad; k++)
            CHECK(kt_same(&o[0].k.in[k], &o[1].k.in[k]));
        kt_free(&o[0].k);
        kt_free(&o[1].k);
    }
}

/* ---- parameters in 16 bits ---- */

static void opt16_begin(struct opt *o, struct optim_attr a, enum dtype t, int64_t n, double w)
{
    kt_init(&o->k, OP_OPTIMIZER, 1);
    o->k.attr.optim = a;
    for (int i = 0; i <= a.master; i++) {
        kt_in(&o->k, i ? DT_F32 : t, LAYOUT_ROW, SHAPE(n));
        for (int64_t j = 0; j < n; j++)
            kt_put(&o->k.in[i], j, w);
    }
    o->grad = o->k.n_in;
    kt_in(&o->k, t, LAYOUT_ROW, SHAPE(n));
    kt_in(&o->k, DT_F64, LAYOUT_ROW, SHAPE(5));
    kt_put(&o->k.in[o->grad + 1], 2, (double)NAN);
    kt_put(&o->k.in[o->grad + 1], 3, 12345);
    kt_put(&o->k.in[o->grad + 1], 4, 0);
    kt_in(&o->k, DT_F32, LAYOUT_ROW, SHAPE(4));
    for (int i = 0; i < 4; i++)
        kt_put(&o->k.in[o->grad + 2], i, i < 2);
}

TEST(k_masters, "P9 case-T22: small updates add up in the master, and get lost without one")
{
    struct opt o;
    struct optim_attr a = {.kind = OPTIM_SGD, .master = true};
    opt16_begin(&o, a, DT_BF16, 1000, 1);
    opt_step(&o, 1, 1e-3, 1);
    CHECK(opt_w(&o) == 1);
    opt_step(&o, 1, 1e-3, 2);
    CHECK(opt_w(&o) == 0.99609375);
    for (int t = 3; t <= 100; t++)
        opt_step(&o, 1, 1e-3, t);
    CHECK(opt_w(&o) == 0.8984375);
    CHECK_NEAR(kt_at(&o.k.in[1], 7), 0.900001, 5e-7);
    kt_free(&o.k);
    a.master = false;
    opt16_begin(&o, a, DT_BF16, 1000, 1);
    for (int t = 1; t <= 100; t++)
        opt_step(&o, 1, 1e-3, t);
    CHECK(opt_w(&o) == 1);
    kt_free(&o.k);
}

static void check_chance(enum dtype t, double w, double step)
{
    enum { N = 100000 };
    struct opt o;
    struct optim_attr a = {.kind = OPTIM_SGD, .stochastic = true, .stream = 7};
    opt16_begin(&o, a, t, N, w);
    opt_step(&o, 1, step, 1);
    double sum = 0, low = (double)INFINITY, high = -(double)INFINITY;
    for (int i = 0; i < N; i++) {
        double x = kt_at(&o.k.in[0], i);
        sum += x;
        low = fmin(low, x);
        high = fmax(high, x);
    }
    /* Two neighbours of the wanted value, mixed so that the mean is right: 5 deviations. */
    double want = kt_at(&o.k.in[0], 0) == w && low == high ? w : w - step;
    CHECK(low <= want && want <= high && high > low);
    CHECK_NEAR(sum / N, want, 5 * (high - low) / 2 / sqrt(N));
    kt_free(&o.k);
}

TEST(k_chance, "P9: rounding by chance takes one of the two neighbours, and its mean is right")
{
    check_chance(DT_BF16, 1, 1e-3);
    check_chance(DT_BF16, -1, 1e-3);
    check_chance(DT_F16, 1, 1e-4);
    check_chance(DT_F16, 0x1p-15, 0x1p-26); /* subnormal numbers of float16 */
}

TEST(k_chance_counted, "P9: the same seed, step and parameter give the same bits on any threads")
{
    struct opt o[4];
    for (int k = 0; k < 4; k++) {
        struct optim_attr a = {.kind = OPTIM_SGD, .stochastic = true, .stream = k == 3 ? 8 : 7};
        opt16_begin(&o[k], a, DT_BF16, 50000, 1);
        o[k].k.threads = k == 1 ? 2 : 1;
        opt_step(&o[k], 1, 1e-3, k == 2 ? 2 : 1);
    }
    CHECK(kt_same(&o[0].k.in[0], &o[1].k.in[0]));
    CHECK(!kt_same(&o[0].k.in[0], &o[2].k.in[0]));
    CHECK(!kt_same(&o[0].k.in[0], &o[3].k.in[0]));
    for (int k = 0; k < 4; k++)
        kt_free(&o[k].k);
}
