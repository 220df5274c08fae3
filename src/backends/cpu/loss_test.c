/* loss_test.c - losses and their gradients: PyTorch's values and double precision. */
#include "backends/cpu/kernel_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* cross_entropy of PyTorch, for class targets, one position at a time, and its gradient. */
struct ce {
    int64_t n, classes, inner;
    double eps;
    bool weighted;
    enum reduction reduction;
};

static void
ce_reference(const struct ce *c, const struct kt *k, double *loss, double *dx, double *wsum)
{
    const struct tensor *x = &k->in[0], *t = &k->in[1], *w = &k->in[2];
    double total = 0, weights = 0, each[4096], scale[4096];
    for (int64_t p = 0; p < c->n * c->inner; p++) {
        int64_t first = p / c->inner * c->classes * c->inner + p % c->inner;
        int64_t target = (int64_t)kt_at(t, p);
        double s = 0, l = 0;
        for (int64_t i = 0; i < c->classes; i++)
            s += exp(kt_at(x, first + i * c->inner));
        double sum_g = 0;
        for (int64_t i = 0; i < c->classes && target != -100; i++) {
            double wi = c->weighted ? kt_at(w, i) : 1;
            double g = c->eps / (double)c->classes * wi + (i == target ? (1 - c->eps) * wi : 0);
            l -= g * (kt_at(x, first + i * c->inner) - log(s));
            dx[first + i * c->inner] = -g;
            sum_g += g;
        }
        for (int64_t i = 0; i < c->classes; i++) {
            double y = exp(kt_at(x, first + i * c->inner)) / s;
            double *d = &dx[first + i * c->inner];
            *d = target == -100 ? 0 : *d + y * sum_g;
        }
        each[p] = l;
        scale[p] = 1;
        total += l;
        weights += target == -100 ? 0 : c->weighted ? kt_at(w, target) : 1;
    }
    *wsum = weights;
    double divisor = c->reduction == REDUCE_MEAN ? weights : 1;
    if (c->reduction == REDUCE_NONE)
        memcpy(loss, each, sizeof *loss * (size_t)(c->n * c->inner));
    else
        *loss = total / divisor;
    for (int64_t i = 0; i < c->n * c->classes * c->inner; i++)
        dx[i] /= divisor * scale[0];
}

static void ce_case(struct ce c, enum layout l)
{
    struct kt k, g;
    struct shape s = SHAPE(c.n, c.classes, 1, c.inner), pos = SHAPE(c.n, 1, c.inner);
    struct shape out = c.reduction == REDUCE_NONE ? pos : shape_scalar();
    kt_init(&k, OP_CROSS_ENTROPY, 1);
    k.attr.loss = (struct loss_attr){
        .reduction = c.reduction, .ignore_index = -100, .label_smoothing = c.eps};
    kt_in(&k, DT_F32, l, s);
    struct tensor *t = kt_in(&k, DT_I64, LAYOUT_ROW, pos), *w = NULL;
    for (int64_t i = 0; i < tensor_count(t); i++)
        kt_put(t, i, i % 5 == 3 ? -100 : (double)(i * 7 % c.classes));
    w = c.weighted ? kt_in(&k, DT_F32, LAYOUT_ROW, SHAPE(c.classes)) : kt_in_absent(&k);
    for (int64_t i = 0; i < c.classes && c.weighted; i++)
        kt_put(w, i, 0.5 + (double)(i % 4));
    kt_out(&k, DT_F32, LAYOUT_ROW, out);
    kt_out(&k, DT_F32, LAYOUT_ROW, pos);
    kt_out(&k, DT_F32, LAYOUT_ROW, shape_scalar());
    double *dx = calloc((size_t)tensor_count(&k.in[0]), sizeof *dx), loss[4096], wsum;
    ce_reference(&c, &k, loss, dx, &wsum);
    kt_run(&k);
    CHECK(kt_error(&k.out[0], loss) < 1e-6);
    CHECK_NEAR(kt_at(&k.out[2], 0), wsum, 1e-4);

    /* In place over the scores; dloss is 1 everywhere. */
    kt_init(&g, OP_CROSS_ENTROPY_GRAD, 1);
    g.attr = k.attr;
    kt_in(&g, DT_F32, LAYOUT_ROW, out);
    for (int64_t i = 0; i < tensor_count(&g.in[0]); i++)
        kt_put(&g.in[0], i, 1);
    struct tensor *x = kt_in(&g, DT_F32, l, s);
    memcpy(x->data, k.in[0].data, (size_t)tensor_count(x) * 4);
    memcpy(&g.in[2], &k.in[1], 2 * sizeof *g.in);
    memcpy(&g.in[4], &k.out[1], 2 * sizeof *g.in);
    g.n_in = 6;
    g.out[0] = *x;
    g.n_out = 1;
    kt_run(&g);
    CHECK(kt_error(&g.out[0], dx) < 2e-6);
    g.n_in = 2;
    g.n_out = 0;
    free(dx);
    kt_free(&g);
    kt_free(&k);
}

TEST(k_cross_entropy, "weights, ignored positions, smoothing, reductions, any d; in place")
{
    static const enum reduction reductions[] = {REDUCE_MEAN, REDUCE_SUM, REDUCE_NONE};
    for (int r = 0; r < 3; r++) {
        for (int form = 0; form < 4; form++) {
            bool weighted = form & 1;
            double eps = form & 2 ? 0.2 : 0;
            ce_case((struct ce){70, 10, 1, eps, weighted, reductions[r]}, LAYOUT_ROW);
            ce_case((struct ce){3, 1100, 1, eps, weighted, reductions[r]}, LAYOUT_ROW);
            ce_case((struct ce){4, 7, 50, eps, weighted, reductions[r]}, LAYOUT_ROW);
            ce_case((struct ce){4, 32, 9, eps, weighted, reductions[r]}, LAYOUT_CL);
            ce_case((struct ce){3, 5000, 1, eps, weighted, reductions[r]}, LAYOUT_ROW);
        }
    }
}

/* Cross-entropy of one row of scores per target. */
static double ce_of(
    const double *scores, int n, int classes, const double *targets, struct loss_attr attr,
    double *gradient, struct err *e)
{
    float x[64], loss = 7, lse[8], wsum, dx[64], one = 1;
    int64_t t[8];
    double part[8];
    for (int i = 0; i < n * classes; i++)
        x[i] = (float)scores[i];
    for (int i = 0; i < n; i++)
        t[i] = (int64_t)targets[i];
    union op_attr a = {.loss = attr};
    struct tensor in[6] = {
        tensor_make(&one, DT_F32, shape_scalar()), tensor_make(x, DT_F32, SHAPE(n, classes)),
        tensor_make(t, DT_I64, SHAPE(n)),          {0},
        tensor_make(lse, DT_F32, SHAPE(n)),        tensor_make(&wsum, DT_F32, shape_scalar())};
    struct tensor out[3] = {tensor_make(&loss, DT_F32, shape_scalar()), in[4], in[5]};
    struct kernel_args call = {
        .code = OP_CROSS_ENTROPY,
        .attr = &a,
        .in = in + 1,
        .out = out,
        .n_in = 3,
        .n_out = 3,
        .workspace = part,
        .workspace_bytes = sizeof part};
    if (cpu_kernel(OP_CROSS_ENTROPY)->run(&call, e) != ST_OK)
        return -1;
    struct tensor result = tensor_make(dx, DT_F32, SHAPE(n, classes));
    call = (struct kernel_args){
        .code = OP_CROSS_ENTROPY_GRAD, .attr = &a, .in = in, .out = &result, .n_in = 6, .n_out = 1};
    CHECK_OK(cpu_kernel(OP_CROSS_ENTROPY_GRAD)->run(&call, e), e);
    for (int i = 0; i < n * classes && gradient; i++)
        gradient[i] = (double)dx[i];
    return (double)loss;
}

TEST(k_ce_cases, "case-T101 case-T26 case-T102: smoothing skips ignored positions; small losses")
{
    struct err e = {0};
    double g[6];
    struct loss_attr a = {.ignore_index = -100, .label_smoothing = 0.2};
    double loss = ce_of((double[]){2, 0, 0, 5}, 2, 2, (double[]){0, -100}, a, g, &e);
    CHECK_NEAR(loss, 0.326928, 1e-6);
    CHECK(g[2] == 0 && g[3] == 0);
    a.label_smoothing = 0;
    loss = ce_of((double[]){12, 0}, 1, 2, (double[]){0}, a, g, &e);
    CHECK_NEAR(loss, 6.144193e-06, 1e-11);
    CHECK_NEAR(g[0], -6.144175e-06, 1e-11);
    loss = ce_of((double[]){1, 2, 3, 4}, 2, 2, (double[]){-100, -100}, a, g, &e);
    CHECK(isnan(loss) && g[0] == 0 && g[3] == 0);
    loss = ce_of((double[]){0}, 0, 2, (double[]){0}, a, g, &e);
    CHECK(isnan(loss));
}

TEST(k_ce_bad_target, "a target outside the classes is an error that names it")
{
    struct err e = {0};
    double x[10] = {0};
    struct loss_attr a = {.ignore_index = -100};
    CHECK(ce_of(x, 1, 10, (double[]){12}, a, NULL, &e) == -1);
    CHECK_EQ(e.status, ST_INVALID);
    CHECK_STR(e.text, "target 12 is outside 0..9 (10 classes)");
    CHECK(ce_of(x, 1, 10, (double[]){-1}, a, NULL, &e) == -1);
}

TEST(k_count_correct, "correct and counted, without ignored and negative targets")
{
    struct kt k;
    kt_init(&k, OP_COUNT_CORRECT, 1);
    k.attr.loss.ignore_index = 2;
    kt_in(&k, DT_F32, LAYOUT_ROW, SHAPE(5, 3));
    kt_in(&k, DT_I64, LAYOUT_ROW, SHAPE(5));
    kt_out(&k, DT_I64, LAYOUT_ROW, SHAPE(2));
    static const int best[] = {0, 1, 1, 2, 0}, target[] = {0, 1, 0, 2, -1};
    for (int i = 0; i < 5; i++) {
        kt_put(&k.in[0], 3 * i + best[i], 100);
        kt_put(&k.in[1], i, target[i]);
    }
    kt_run(&k);
    CHECK_EQ(kt_at(&k.out[0], 0), 2);
    CHECK_EQ(kt_at(&k.out[0], 1), 3);
    kt_free(&k);
}

static double loss_value(const struct loss_attr *a, double x, double t, double w, double pw)
{
    double z = fabs(x - t), b = a->beta;
    switch (a->kind) {
    case LOSS_MSE:
        return w * z * z;
    case LOSS_L1:
        return w * z;
    case LOSS_SMOOTH_L1:
        return w * (z < b ? 0.5 * z * z / b : z - 0.5 * b);
    case LOSS_HUBER:
        return w * (z <= b ? 0.5 * z * z : b * (z - 0.5 * b));
    case LOSS_BCE:
        return -w * (t * fmax(log(x), -100) + (1 - t) * fmax(log1p(-x), -100));
    case LOSS_BCE_LOGITS:
        return w * ((1 - t) * x + ((pw - 1) * t + 1) * (log1p(exp(-fabs(x))) + fmax(-x, 0)));
    case LOSS_KLDIV:
        return w * (a->log_target ? exp(t) * (t - x) : t > 0 ? t * (log(t) - x) : 0);
    }
    return 0;
}

static void ew_case(struct loss_attr a, bool weighted)
{
    struct kt k, g;
    struct shape s = SHAPE(90, 101), out = a.reduction == REDUCE_NONE ? s : shape_scalar();
    bool unit =
        a.kind == LOSS_BCE || a.kind == LOSS_BCE_LOGITS || (a.kind == LOSS_KLDIV && !a.log_target);
    kt_init(&k, OP_LOSS_EW, 1);
    k.attr.loss = a;
    kt_in(&k, DT_F32, LAYOUT_ROW, s);
    kt_in(&k, DT_F32, LAYOUT_ROW, s);
    for (int i = 0; i < 2 && weighted; i++) {
        kt_in(&k, DT_F32, LAYOUT_ROW, SHAPE(101));
        for (int j = 0; j < 101; j++)
            kt_put(&k.in[2 + i], j, 0.5 + j % 3);
    }
    kt_out(&k, DT_F32, LAYOUT_ROW, out);
    kt_init(&g, OP_LOSS_EW_GRAD, 2);
    g.attr = k.attr;
    kt_in(&g, DT_F32, LAYOUT_ROW, out);
    kt_out(&g, DT_F32, LAYOUT_ROW, s);
    int n = 90 * 101;
    double *each = malloc(sizeof *each * (size_t)n), *dx = malloc(sizeof *dx * (size_t)n), sum = 0;
    double divisor = a.reduction == REDUCE_MEAN ? n : a.reduction == REDUCE_BATCHMEAN ? 90 : 1;
    for (int i = 0; i < n; i++) {
        double x = kt_at(&k.in[0], i), t = kt_at(&k.in[1], i), h = 1e-5;
        if (a.kind == LOSS_BCE)
            kt_put(&k.in[0], i, 0.01 + 0.98 / (1 + exp(-x)));
        if (unit)
            kt_put(&k.in[1], i, 1 / (1 + exp(-3 * t)));
        x = kt_at(&k.in[0], i), t = kt_at(&k.in[1], i);
        double w = weighted ? kt_at(&k.in[2], i % 101) : 1,
               p = weighted ? kt_at(&k.in[3], i % 101) : 1;
        each[i] = loss_value(&a, x, t, w, p);
        sum += each[i];
        double d = kt_at(&g.in[0], a.reduction == REDUCE_NONE ? i : 0) / divisor;
        dx[i] = d * (loss_value(&a, x + h, t, w, p) - loss_value(&a, x - h, t, w, p)) / (2 * h);
    }
    sum /= divisor;
    kt_run(&k);
    CHECK(kt_error(&k.out[0], a.reduction == REDUCE_NONE ? each : &sum) < 1e-6);
    memcpy(&g.in[1], k.in, 4 * sizeof *g.in);
    g.n_in = 5;
    kt_run(&g);
    CHECK(kt_error(&g.out[0], dx) < 1e-4); /* the finite difference's own error */
    g.n_in = 1;
    free(each);
    free(dx);
    kt_free(&g);
    kt_free(&k);
}

TEST(k_elementwise_losses, "every loss with every reduction, weights, and its gradient")
{
    for (int kind = LOSS_MSE; kind <= LOSS_KLDIV; kind++) {
        for (int r = REDUCE_MEAN; r <= REDUCE_BATCHMEAN; r++) {
            struct loss_attr a = {
                .kind = (enum loss_kind)kind, .reduction = (enum reduction)r, .beta = 0.7};
            ew_case(a, false);
            ew_case(a, true);
            a.log_target = true;
            if (kind == LOSS_KLDIV)
                ew_case(a, false);
        }
    }
}

TEST(k_bce_ends, "BCE's logarithms stop at -100, and inputs outside 0..1 are errors")
{
    float x[2] = {0, 1}, t[2] = {1, 0}, loss = 7;
    double part[1];
    struct err e = {0};
    union op_attr a = {.loss = {.kind = LOSS_BCE}};
    struct tensor in[2] = {tensor_make(x, DT_F32, SHAPE(2)), tensor_make(t, DT_F32, SHAPE(2))};
    struct tensor out = tensor_make(&loss, DT_F32, shape_scalar());
    struct kernel_args call = {
        .code = OP_LOSS_EW,
        .attr = &a,
        .in = in,
        .out = &out,
        .n_in = 2,
        .n_out = 1,
        .workspace = part,
        .workspace_bytes = sizeof part};
    CHECK_OK(cpu_kernel(OP_LOSS_EW)->run(&call, &e), &e);
    CHECK(loss == 100);
    x[0] = 1.5f;
    CHECK_EQ(cpu_kernel(OP_LOSS_EW)->run(&call, &e), ST_INVALID);
}
