/* reduce_test.c - sums, means, softmax and argmax against double precision. */
#include "backends/cpu/kernel_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const enum layout layouts[] = {LAYOUT_ROW, LAYOUT_CL, LAYOUT_C16};

/* Sum over dims of a tensor of rank 4, by logical indices. */
static void sum_of(const struct tensor *x, uint32_t dims, double *want)
{
    const int64_t *d = x->shape.dim;
    for (int64_t i = 0; i < tensor_count(x); i++) {
        int64_t at[4] = {
            i / (d[1] * d[2] * d[3]), i / (d[2] * d[3]) % d[1], i / d[3] % d[2], i % d[3]};
        int64_t o = 0;
        for (int k = 0; k < 4; k++)
            o = dims >> k & 1 ? o : o * d[k] + at[k];
        want[o] += kt_at(x, i);
    }
}

static struct shape kept(const struct shape *s, uint32_t dims)
{
    struct shape r = {0};
    for (int k = 0; k < s->rank; k++)
        if (!(dims >> k & 1))
            r.dim[r.rank++] = s->dim[k];
    return r;
}

TEST(k_sums, "sums and means over every set of dimensions, in every layout and type")
{
    for (uint32_t dims = 0; dims < 16; dims++) {
        for (int l = 0; l < 3; l++) {
            for (int t = DT_F32; t <= DT_F16; t++) {
                struct kt k;
                kt_init(&k, dims & 1 ? OP_SUM : OP_MEAN, dims);
                k.attr.reduce.dims = dims;
                struct shape s = SHAPE(3, 32, 5, 7), r = kept(&s, dims);
                kt_in(&k, (enum dtype)t, layouts[l], s);
                kt_out(&k, DT_F32, LAYOUT_ROW, r);
                double want[3 * 32 * 5 * 7] = {0};
                sum_of(&k.in[0], dims, want);
                int64_t n = shape_count(&r);
                for (int64_t i = 0; i < n && !(dims & 1); i++)
                    want[i] /= (double)(tensor_count(&k.in[0]) / n);
                kt_run(&k);
                CHECK(kt_error(&k.out[0], want) < 1e-6);
                kt_free(&k);
            }
        }
    }
}

static void threads_case(enum opcode c, struct shape s, uint32_t dims)
{
    struct kt k;
    kt_init(&k, c, 1);
    k.attr.reduce.dims = dims;
    struct shape r = kept(&s, dims);
    kt_in(&k, DT_F32, LAYOUT_ROW, s);
    kt_out(&k, DT_F32, LAYOUT_ROW, r);
    struct tensor one = kt_tensor(DT_F32, LAYOUT_ROW, r);
    k.threads = 1;
    kt_run(&k);
    memcpy(one.data, k.out[0].data, (size_t)tensor_count(&one) * 4);
    for (int threads = 2; threads <= 5; threads++) {
        k.threads = threads;
        kt_run(&k);
        CHECK(kt_same(&one, &k.out[0]));
    }
    kt_tensor_free(&one);
    kt_free(&k);
}

TEST(k_sum_threads, "sums have the same bits on 1 to 5 threads")
{
    threads_case(OP_SUM, SHAPE(300001), 1);
    threads_case(OP_SUM, SHAPE(4099, 33), 1);
    threads_case(OP_SUM, SHAPE(4099, 33), 2);
    threads_case(OP_MEAN, SHAPE(17, 3, 4000), 5);
}

TEST(k_sum_accuracy, "case-T26: 8192 losses of ln 50257 have their mean")
{
    struct kt k;
    kt_init(&k, OP_MEAN, 1);
    k.attr.reduce.dims = 1;
    kt_in(&k, DT_F32, LAYOUT_ROW, SHAPE(8192));
    for (int i = 0; i < 8192; i++)
        kt_put(&k.in[0], i, log(50257));
    kt_out(&k, DT_F32, LAYOUT_ROW, shape_scalar());
    kt_run(&k);
    CHECK_NEAR(kt_at(&k.out[0], 0), 10.824905, 1e-6);
    kt_free(&k);
}

TEST(k_sum_empty, "case-T102: the sum of nothing is 0, its mean NaN; NaN and infinity propagate")
{
    static const enum opcode codes[] = {OP_SUM, OP_MEAN};
    for (int i = 0; i < 2; i++) {
        struct kt k;
        kt_init(&k, codes[i], 1);
        k.attr.reduce.dims = 1;
        kt_in(&k, DT_F32, LAYOUT_ROW, SHAPE(0, 3));
        kt_out(&k, DT_F32, LAYOUT_ROW, SHAPE(3));
        kt_run(&k);
        for (int j = 0; j < 3; j++)
            CHECK(i ? isnan(kt_at(&k.out[0], j)) : kt_at(&k.out[0], j) == 0);
        kt_free(&k);
    }
    threads_case(OP_SUM, SHAPE(5), 1);
    struct kt k;
    kt_init(&k, OP_SUM, 1);
    k.attr.reduce.dims = 2;
    kt_in(&k, DT_F32, LAYOUT_ROW, SHAPE(2, 999));
    kt_put(&k.in[0], 998, (double)NAN), kt_put(&k.in[0], 1000, (double)INFINITY);
    kt_out(&k, DT_F32, LAYOUT_ROW, SHAPE(2));
    kt_run(&k);
    CHECK(isnan(kt_at(&k.out[0], 0)) && isinf(kt_at(&k.out[0], 1)));
    kt_free(&k);
}

static void softmax_case(enum layout l, struct shape s, int dim, bool logarithm)
{
    struct kt k, g;
    kt_init(&k, logarithm ? OP_LOG_SOFTMAX : OP_SOFTMAX, 1);
    k.attr.view.dim = dim;
    kt_in(&k, DT_F32, l, s);
    kt_out(&k, DT_F32, l, s);
    kt_init(&g, logarithm ? OP_LOG_SOFTMAX_GRAD : OP_SOFTMAX_GRAD, 1);
    g.attr.view.dim = dim;
    kt_in(&g, DT_F32, l, s);
    kt_in(&g, DT_F32, l, s);
    kt_out(&g, DT_F32, l, s);
    int64_t n = tensor_count(&k.in[0]), inner = 1, d = s.dim[dim];
    for (int i = dim + 1; i < s.rank; i++)
        inner *= s.dim[i];
    double *y = malloc(sizeof *y * (size_t)n), *dx = malloc(sizeof *y * (size_t)n);
    for (int64_t p = 0; p < n / d; p++) {
        int64_t first = p / inner * d * inner + p % inner;
        double sum = 0, dot = 0;
        for (int64_t c = 0; c < d; c++)
            sum += exp(kt_at(&k.in[0], first + c * inner));
        for (int64_t c = 0; c < d; c++) {
            int64_t i = first + c * inner;
            y[i] = exp(kt_at(&k.in[0], i)) / sum;
            kt_put(&g.in[1], i, logarithm ? log(y[i]) : y[i]);
            dot += kt_at(&g.in[0], i) * (logarithm ? 1 : y[i]);
        }
        for (int64_t c = 0; c < d; c++) {
            int64_t i = first + c * inner;
            double dy = kt_at(&g.in[0], i);
            dx[i] = logarithm ? dy - y[i] * dot : y[i] * (dy - dot);
            y[i] = logarithm ? log(y[i]) : y[i];
        }
    }
    kt_run(&k);
    kt_run(&g);
    CHECK(kt_error(&k.out[0], y) < 1e-6);
    CHECK(kt_error(&g.out[0], dx) < 1e-6);
    free(y);
    free(dx);
    kt_free(&k);
    kt_free(&g);
}

TEST(k_softmax, "softmax and log-softmax along any dimension, with their gradients")
{
    for (int form = 0; form < 2; form++) {
        softmax_case(LAYOUT_ROW, SHAPE(5, 10), 1, form);
        softmax_case(LAYOUT_ROW, SHAPE(5, 10), 0, form);
        softmax_case(LAYOUT_ROW, SHAPE(3, 1500), 1, form);
        softmax_case(LAYOUT_ROW, SHAPE(2, 37, 600), 1, form);
        softmax_case(LAYOUT_ROW, SHAPE(2, 3, 4, 5), 2, form);
        softmax_case(LAYOUT_CL, SHAPE(2, 21, 4, 5), 1, form);
    }
}

TEST(k_softmax_large, "softmax of large scores neither overflows nor loses the sum 1")
{
    struct kt k;
    kt_init(&k, OP_SOFTMAX, 1);
    k.attr.view.dim = 1;
    kt_in(&k, DT_F32, LAYOUT_ROW, SHAPE(1, 3));
    kt_put(&k.in[0], 0, 1000), kt_put(&k.in[0], 1, 1000), kt_put(&k.in[0], 2, -1000);
    kt_out(&k, DT_F32, LAYOUT_ROW, SHAPE(1, 3));
    kt_run(&k);
    CHECK(kt_at(&k.out[0], 0) == 0.5 && kt_at(&k.out[0], 1) == 0.5 && kt_at(&k.out[0], 2) == 0);
    kt_free(&k);
}

TEST(k_argmax, "argmax takes the first largest, and NaN as the largest")
{
    struct kt k;
    kt_init(&k, OP_ARGMAX, 1);
    k.attr.view.dim = 1;
    kt_in(&k, DT_F32, LAYOUT_ROW, SHAPE(3, 700));
    kt_put(&k.in[0], 20, 50), kt_put(&k.in[0], 620, 50);
    kt_put(&k.in[0], 700 + 699, 60);
    kt_put(&k.in[0], 1400 + 3, (double)NAN), kt_put(&k.in[0], 1400 + 2, 70);
    kt_out(&k, DT_I64, LAYOUT_ROW, SHAPE(3));
    kt_run(&k);
    CHECK_EQ(kt_at(&k.out[0], 0), 20);
    CHECK_EQ(kt_at(&k.out[0], 1), 699);
    CHECK_EQ(kt_at(&k.out[0], 2), 3);
    kt_free(&k);
}
