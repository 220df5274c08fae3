/* norm_test.c - normalisation against double precision; fused against unfused bits; threads. */
#include "backends/cpu/kernel_test.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

struct form {
    enum norm_kind kind;
    struct shape shape;
    int64_t groups;
    int trailing;
    enum layout layout;
};

static const struct form forms[] = {
    {NORM_BATCH, {4, {5, 16, 7, 9}}, 0, 0, LAYOUT_ROW},
    {NORM_BATCH, {4, {5, 16, 7, 9}}, 0, 0, LAYOUT_CL},
    {NORM_BATCH, {4, {5, 48, 7, 9}}, 0, 0, LAYOUT_C16},
    {NORM_BATCH, {4, {3, 37, 5, 5}}, 0, 0, LAYOUT_CL},
    {NORM_BATCH, {4, {16, 80, 20, 21}}, 0, 0, LAYOUT_CL},
    {NORM_BATCH, {4, {16, 32, 20, 21}}, 0, 0, LAYOUT_C16},
    {NORM_BATCH, {3, {4, 6, 700}}, 0, 0, LAYOUT_ROW},
    {NORM_BATCH, {2, {33, 21}}, 0, 0, LAYOUT_ROW},
    {NORM_LAYER, {3, {4, 9, 70}}, 0, 1, LAYOUT_ROW},
    {NORM_LAYER, {3, {40, 9, 170}}, 0, 2, LAYOUT_ROW},
    {NORM_LAYER, {1, {19}}, 0, 1, LAYOUT_ROW},
    {NORM_GROUP, {4, {3, 12, 5, 7}}, 3, 0, LAYOUT_ROW},
    {NORM_GROUP, {4, {3, 12, 5, 7}}, 4, 0, LAYOUT_CL},
    {NORM_GROUP, {4, {3, 48, 5, 7}}, 6, 0, LAYOUT_C16},
    {NORM_GROUP, {4, {2, 16, 6, 7}}, 16, 0, LAYOUT_CL},
    {NORM_GROUP, {3, {2, 10, 600}}, 1, 0, LAYOUT_ROW},
    {NORM_GROUP, {2, {7, 24}}, 2, 0, LAYOUT_ROW}};
enum { FORMS = sizeof forms / sizeof *forms };

/* Statistics and gamma of the element at logical index i. */
struct where {
    int64_t stat, gamma;
};
static struct where where_of(const struct form *f, int64_t i)
{
    int64_t tail = 1;
    int lead = f->kind == NORM_LAYER ? f->shape.rank - f->trailing : 2;
    for (int d = lead; d < f->shape.rank; d++)
        tail *= f->shape.dim[d];
    if (f->kind == NORM_LAYER)
        return (struct where){i / tail, i % tail};
    int64_t c = i / tail % f->shape.dim[1], n = i / tail / f->shape.dim[1];
    if (f->kind == NORM_BATCH)
        return (struct where){c, c};
    return (struct where){n * f->groups + c / (f->shape.dim[1] / f->groups), c};
}

static int64_t stats_count(const struct form *f)
{
    return where_of(f, shape_count(&f->shape) - 1).stat + 1;
}
static struct shape gamma_shape(const struct form *f)
{
    if (f->kind != NORM_LAYER)
        return SHAPE(f->shape.dim[1]);
    return shape_of(f->trailing, f->shape.dim + f->shape.rank - f->trailing);
}

static void attr_set(struct kt *k, const struct form *f)
{
    k->attr.norm = (struct norm_attr){
        .kind = f->kind,
        .groups = f->groups,
        .trailing = f->trailing,
        .eps = 1e-5,
        .momentum = 0.1};
}

/* mean and rstd by definition. */
static void stats(const struct form *f, const struct tensor *x, double *mean, double *rstd)
{
    int64_t n = tensor_count(x), count = n / stats_count(f);
    for (int64_t i = 0; i < n; i++)
        mean[where_of(f, i).stat] += kt_at(x, i) / (double)count;
    for (int64_t i = 0; i < n; i++) {
        double d = kt_at(x, i) - mean[where_of(f, i).stat];
        rstd[where_of(f, i).stat] += d * d / (double)count;
    }
    for (int64_t i = 0; i < stats_count(f); i++)
        rstd[i] = 1 / sqrt(rstd[i] + 1e-5);
}

static double *zeros(int64_t n)
{
    return mem_alloc(sizeof(double) * (size_t)(n + 1));
}

static void shift_by(struct tensor *x, double scale, double shift)
{
    for (int64_t i = 0; i < tensor_count(x); i++)
        kt_put(x, i, kt_at(x, i) * scale + shift);
}

static void check_stats(const struct form *f, enum dtype t, double shift)
{
    struct kt k;
    kt_init(&k, OP_NORM_STATS, 1);
    attr_set(&k, f);
    struct tensor *x = kt_in(&k, t, f->layout, f->shape);
    shift_by(x, 1, shift);
    int64_t n = stats_count(f);
    kt_out(&k, DT_F32, LAYOUT_ROW, SHAPE(n));
    kt_out(&k, DT_F32, LAYOUT_ROW, SHAPE(n));
    kt_run(&k);
    double *mean = zeros(n), *rstd = zeros(n);
    stats(f, x, mean, rstd);
    CHECK(kt_error(&k.out[0], mean) < (shift != 0.0 ? 1e-6 : 1e-5));
    CHECK(kt_error(&k.out[1], rstd) < 1e-5);
    mem_free(mean), mem_free(rstd);
    kt_free(&k);
}

TEST(norm_stats, "statistics of all kinds and layouts, also with a mean of 1000")
{
    for (int i = 0; i < FORMS; i++) {
        check_stats(&forms[i], DT_F32, 0);
        check_stats(&forms[i], DT_F32, 1000);
        check_stats(&forms[i], DT_BF16, 0);
        check_stats(&forms[i], DT_F16, 10);
    }
}

static void batch_once(const struct form *f, double momentum, int64_t tracked)
{
    struct kt k;
    kt_init(&k, OP_BATCH_STATS, 1);
    attr_set(&k, f);
    k.attr.norm.momentum = momentum;
    int64_t c = f->shape.dim[1];
    struct tensor *rm = kt_in(&k, DT_F32, LAYOUT_ROW, SHAPE(c));
    struct tensor *rv = kt_in(&k, DT_F32, LAYOUT_ROW, SHAPE(c));
    struct tensor *count = kt_in(&k, DT_I64, LAYOUT_ROW, shape_scalar());
    *(int64_t *)count->data = tracked;
    struct tensor *x = kt_in(&k, DT_F32, f->layout, f->shape);
    double *mean = zeros(c), *rstd = zeros(c), *want_m = zeros(c), *want_v = zeros(c);
    stats(f, x, mean, rstd);
    double n = (double)tensor_count(x) / (double)c,
           m = momentum < 0 ? 1 / (double)(tracked + 1) : momentum;
    for (int64_t i = 0; i < c; i++) {
        double var = (1 / (rstd[i] * rstd[i]) - 1e-5) * n / (n - 1);
        want_m[i] = (1 - m) * kt_at(rm, i) + m * mean[i];
        want_v[i] = (1 - m) * kt_at(rv, i) + m * var;
    }
    for (int i = 0; i < 3; i++) /* in place */
        k.out[k.n_out++] = k.in[i];
    kt_out(&k, DT_F32, LAYOUT_ROW, SHAPE(c));
    kt_out(&k, DT_F32, LAYOUT_ROW, SHAPE(c));
    kt_run(&k);
    CHECK(kt_error(rm, want_m) < 1e-5);
    CHECK(kt_error(rv, want_v) < 1e-5);
    CHECK_EQ(*(int64_t *)count->data, tracked + 1);
    CHECK(kt_error(&k.out[3], mean) < 1e-5);
    CHECK(kt_error(&k.out[4], rstd) < 1e-5);
    mem_free(mean), mem_free(rstd), mem_free(want_m), mem_free(want_v);
    k.out[0].data = k.out[1].data = k.out[2].data = NULL;
    kt_free(&k);
}

TEST(norm_running, "running statistics: momentum, cumulative mean, unbiased variance")
{
    for (int i = 0; i < FORMS; i++)
        if (forms[i].kind == NORM_BATCH) {
            batch_once(&forms[i], 0.1, 3);
            batch_once(&forms[i], -1, 4);
            batch_once(&forms[i], -1, 0);
        }
}

/* x mean rstd gamma? beta? as operands; statistics from x. */
static void norm_operands(struct kt *k, const struct form *f, enum dtype t, bool affine)
{
    struct tensor *x = kt_in(k, t, f->layout, f->shape);
    int64_t n = stats_count(f);
    double *mean = zeros(n), *rstd = zeros(n);
    stats(f, x, mean, rstd);
    struct tensor *m = kt_in(k, DT_F32, LAYOUT_ROW, SHAPE(n));
    struct tensor *r = kt_in(k, DT_F32, LAYOUT_ROW, SHAPE(n));
    for (int64_t i = 0; i < n; i++) {
        kt_put(m, i, mean[i]);
        kt_put(r, i, rstd[i]);
    }
    for (int i = 0; i < 2; i++)
        if (affine)
            kt_in(k, DT_F32, LAYOUT_ROW, gamma_shape(f));
        else
            kt_in_absent(k);
    mem_free(mean), mem_free(rstd);
}

static double normed(const struct kt *k, const struct form *f, int first, int64_t i)
{
    struct where w = where_of(f, i);
    const struct tensor *in = k->in + first;
    double y = (kt_at(&in[0], i) - kt_at(&in[1], w.stat)) * kt_at(&in[2], w.stat);
    return in[3].data ? y * kt_at(&in[3], w.gamma) + kt_at(&in[4], w.gamma) : y;
}

static void check_apply(const struct form *f, enum dtype t, bool affine)
{
    struct kt k;
    kt_init(&k, OP_NORM_APPLY, 2);
    attr_set(&k, f);
    norm_operands(&k, f, t, affine);
    kt_out(&k, t, f->layout, f->shape);
    kt_run(&k);
    int64_t n = tensor_count(&k.in[0]);
    double *want = zeros(n);
    for (int64_t i = 0; i < n; i++)
        want[i] = normed(&k, f, 0, i);
    CHECK(kt_error(&k.out[0], want) <= kt_tolerance(t));
    /* As evaluation: the same from variances instead of rstd. */
    struct tensor plain = k.out[0];
    k.out[0] = kt_tensor(t, f->layout, f->shape);
    k.attr.norm.infer = true;
    for (int64_t i = 0; i < stats_count(f); i++)
        kt_put(&k.in[2], i, 1 / pow(kt_at(&k.in[2], i), 2) - 1e-5);
    kt_run(&k);
    CHECK(kt_error(&k.out[0], want) <= 5 * kt_tolerance(t));
    kt_tensor_free(&plain);
    mem_free(want);
    kt_free(&k);
}

static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};

TEST(norm_apply, "normalised values of all kinds, layouts and types, training and evaluation")
{
    for (int i = 0; i < FORMS; i++)
        for (int t = 0; t < 3; t++) {
            check_apply(&forms[i], types[t], true);
            check_apply(&forms[i], types[t], false);
        }
}

/* What add and relu make of stored values: compute in float32, round to the type. */
static void unfused(struct tensor *y, const struct tensor *residual)
{
    for (int64_t i = 0; i < tensor_count(y); i++) {
        float v = (float)kt_at(y, i);
        if (residual) {
            kt_put(y, i, (double)(v + (float)kt_at(residual, i)));
            v = (float)kt_at(y, i);
        }
        kt_put(y, i, v < 0 ? 0 : (double)v);
    }
}

TEST(norm_fused, "norm, addition and relu in one have the bits of the three")
{
    for (int i = 0; i < FORMS; i++)
        for (int t = 0; t < 3; t++)
            for (int with = 0; with < 2; with++) {
                struct kt k;
                kt_init(&k, OP_NORM_APPLY, 3);
                attr_set(&k, &forms[i]);
                norm_operands(&k, &forms[i], types[t], true);
                struct tensor *y = kt_out(&k, types[t], forms[i].layout, forms[i].shape);
                kt_run(&k);
                struct tensor apart = *y;
                *y = kt_tensor(types[t], forms[i].layout, forms[i].shape);
                struct tensor *r =
                    with ? kt_in(&k, types[t], forms[i].layout, forms[i].shape) : NULL;
                k.attr.norm.act = ACT_RELU;
                kt_run(&k);
                unfused(&apart, r);
                for (int64_t j = 0; j < tensor_count(y); j++)
                    CHECK(kt_at(y, j) == kt_at(&apart, j));
                kt_tensor_free(&apart);
                kt_free(&k);
            }
}

/* dx, dgamma, dbeta by the formulas; dy already masked. */
static void grad_want(
    const struct kt *k, const struct form *f, const double *dy, double *dx, double *dg, double *db)
{
    int64_t n = tensor_count(&k->in[1]), stats_n = stats_count(f);
    double *a = zeros(stats_n), *b = zeros(stats_n), count = (double)n / (double)stats_n;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; i < n; i++) {
            struct where w = where_of(f, i);
            double rstd = kt_at(&k->in[3], w.stat);
            double xh = (kt_at(&k->in[1], i) - kt_at(&k->in[2], w.stat)) * rstd;
            double g = dy[i] * (k->in[4].data ? kt_at(&k->in[4], w.gamma) : 1);
            if (pass) {
                dx[i] = rstd * (g - a[w.stat] - xh * b[w.stat]);
                continue;
            }
            a[w.stat] += g / count;
            b[w.stat] += g * xh / count;
            dg[w.gamma] += dy[i] * xh;
            db[w.gamma] += dy[i];
        }
    mem_free(a), mem_free(b);
}

static void check_grad(const struct form *f, enum dtype t, bool affine, bool relu)
{
    struct kt k;
    kt_init(&k, OP_NORM_GRAD, 4);
    attr_set(&k, f);
    k.attr.norm.act = relu ? ACT_RELU : ACT_NONE;
    struct tensor *dy = kt_in(&k, t, f->layout, f->shape);
    norm_operands(&k, f, t, affine);
    kt_out(&k, t, f->layout, f->shape);
    kt_out(&k, DT_F32, LAYOUT_ROW, gamma_shape(f));
    kt_out(&k, DT_F32, LAYOUT_ROW, gamma_shape(f));
    k.threads = 1;
    kt_run(&k);
    int64_t n = tensor_count(dy), c = tensor_count(&k.out[1]);
    double *masked = zeros(n), *dx = zeros(n), *dg = zeros(c), *db = zeros(c);
    for (int64_t i = 0; i < n; i++)
        masked[i] = relu && normed(&k, f, 1, i) <= 0 ? 0 : kt_at(dy, i);
    grad_want(&k, f, masked, dx, dg, db);
    CHECK(kt_error(&k.out[0], dx) <= 3 * kt_tolerance(t));
    CHECK(kt_error(&k.out[1], dg) <= 1e-5);
    CHECK(kt_error(&k.out[2], db) <= 1e-5);
    struct tensor one[3];
    for (int i = 0; i < 3; i++) {
        one[i] = k.out[i];
        k.out[i] = kt_tensor(one[i].dtype, one[i].layout, one[i].shape);
    }
    k.threads = 2;
    kt_run(&k);
    for (int i = 0; i < 3; i++) {
        CHECK(kt_same(&one[i], &k.out[i]));
        kt_tensor_free(&one[i]);
    }
    mem_free(masked), mem_free(dx), mem_free(dg), mem_free(db);
    kt_free(&k);
}

TEST(norm_grad, "gradients of normalisation, with the mask of a fused relu, on 1 and 2 threads")
{
    for (int i = 0; i < FORMS; i++)
        for (int t = 0; t < 3; t++)
            for (int relu = 0; relu < 2; relu++) {
                check_grad(&forms[i], types[t], true, relu);
                check_grad(&forms[i], types[t], false, relu);
            }
}

TEST(norm_threads, "statistics have the same bits on 1 and 2 threads")
{
    for (int i = 0; i < FORMS; i++) {
        struct kt k;
        kt_init(&k, OP_NORM_STATS, 5);
        attr_set(&k, &forms[i]);
        kt_in(&k, DT_F32, forms[i].layout, forms[i].shape);
        kt_out(&k, DT_F32, LAYOUT_ROW, SHAPE(stats_count(&forms[i])));
        kt_out(&k, DT_F32, LAYOUT_ROW, SHAPE(stats_count(&forms[i])));
        k.threads = 1;
        kt_run(&k);
        struct tensor mean = k.out[0], rstd = k.out[1];
        k.out[0] = kt_tensor(DT_F32, LAYOUT_ROW, mean.shape);
        k.out[1] = kt_tensor(DT_F32, LAYOUT_ROW, mean.shape);
        k.threads = 2;
        kt_run(&k);
        CHECK(kt_same(&mean, &k.out[0]));
        CHECK(kt_same(&rstd, &k.out[1]));
        kt_tensor_free(&mean);
        kt_tensor_free(&rstd);
        kt_free(&k);
    }
}
