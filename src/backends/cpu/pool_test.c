/* pool_test.c - pooling and its gradients against plain loops; ties, NaN, adaptive windows. */
#include "backends/cpu/kernel_test.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct problem {
    int64_t n, c, in[2], kernel[2], stride[2], pad[2], dilation[2];
    bool ceil, exclude, adaptive;
    int64_t output[2], divisor;
};

static int64_t out_size(const struct problem *p, int i)
{
    if (p->adaptive)
        return p->output[i];
    int64_t room = p->in[i] + 2 * p->pad[i] - p->dilation[i] * (p->kernel[i] - 1) - 1;
    int64_t n = (room + (p->ceil ? p->stride[i] - 1 : 0)) / p->stride[i] + 1;
    return p->ceil && (n - 1) * p->stride[i] >= p->in[i] + p->pad[i] ? n - 1 : n;
}

static void attr_set(struct pool_attr *a, const struct problem *p, bool gradient)
{
    *a = (struct pool_attr){
        .spatial = 2,
        .ceil_mode = p->ceil,
        .exclude_pad = p->exclude,
        .adaptive = p->adaptive,
        .divisor = p->divisor};
    for (int i = 0; i < 2; i++) {
        a->kernel[i] = p->kernel[i], a->stride[i] = p->stride[i];
        a->pad[i] = p->pad[i], a->dilation[i] = p->dilation[i];
        a->output[i] = gradient ? p->in[i] : p->output[i];
    }
}

/* Rows or columns of window o: start, end before clipping, step. */
static void
span(const struct problem *p, int i, int64_t o, int64_t *from, int64_t *to, int64_t *step)
{
    *step = p->adaptive ? 1 : p->dilation[i];
    if (p->adaptive) {
        *from = (int64_t)floor((double)o * (double)p->in[i] / (double)p->output[i]);
        *to = (int64_t)ceil((double)(o + 1) * (double)p->in[i] / (double)p->output[i]);
    } else {
        *from = o * p->stride[i] - p->pad[i];
        *to = *from + p->dilation[i] * (p->kernel[i] - 1) + 1;
    }
}

/* Pools x and pushes dy back, one plane; place as kernels state it. */
static void plane(
    const struct problem *p, bool max, const double *x, const double *dy, double *y, double *place,
    double *dx)
{
    for (int64_t i = 0; i < out_size(p, 0); i++)
        for (int64_t j = 0; j < out_size(p, 1); j++) {
            int64_t r0, r1, c0, c1, dr, dc, count = 0, at = -1, o = i * out_size(p, 1) + j;
            span(p, 0, i, &r0, &r1, &dr);
            span(p, 1, j, &c0, &c1, &dc);
            double best = -(double)INFINITY, sum = 0;
            for (int64_t r = r0; r < r1; r += dr)
                for (int64_t c = c0; c < c1; c += dc) {
                    if (r < 0 || r >= p->in[0] || c < 0 || c >= p->in[1])
                        continue;
                    double v = x[r * p->in[1] + c];
                    count++;
                    sum += v;
                    if (at < 0 || v > best || isnan(v)) {
                        best = v;
                        at = r * p->in[1] + c;
                        place[o] =
                            (double)((r - r0) / dr * ((c1 - c0 + dc - 1) / dc) + (c - c0) / dc);
                    }
                }
            int64_t padded = (fmin((double)r1, (double)(p->in[0] + p->pad[0])) - (double)r0) *
                             (fmin((double)c1, (double)(p->in[1] + p->pad[1])) - (double)c0);
            double by = (double)(p->divisor ? p->divisor : p->exclude || p->adaptive ? count : padded);
            y[o] = max ? best : count ? sum / by : 0;
            if (max)
                dx[at] += dy[o];
            for (int64_t r = r0; !max && r < r1; r++)
                for (int64_t c = c0; c < c1; c++)
                    if (r >= 0 && r < p->in[0] && c >= 0 && c < p->in[1])
                        dx[r * p->in[1] + c] += dy[o] / by;
        }
}

static double *values(const struct tensor *t)
{
    double *v = mem_alloc(sizeof *v * (size_t)tensor_count(t));
    for (int64_t i = 0; i < tensor_count(t); i++)
        v[i] = kt_at(t, i);
    return v;
}

static void check(const struct problem *p, bool max, enum dtype t, enum layout l, bool ties)
{
    struct kt k, g;
    int64_t window = p->kernel[0] * p->kernel[1];
    struct shape small = SHAPE(p->n, p->c, out_size(p, 0), out_size(p, 1));
    kt_init(&k, max ? OP_MAX_POOL : OP_AVG_POOL, 1);
    kt_init(&g, max ? OP_MAX_POOL_GRAD : OP_AVG_POOL_GRAD, 2);
    attr_set(&k.attr.pool, p, false);
    attr_set(&g.attr.pool, p, true);
    struct tensor *x = kt_in(&k, t, l, SHAPE(p->n, p->c, p->in[0], p->in[1]));
    for (int64_t i = 0; ties && i < tensor_count(x); i++)
        kt_put(
            x, i,
            i % 41 == 7   ? (double)NAN
            : i % 11 == 3 ? -(double)INFINITY
                          : (double)(i * 7 % 5));
    kt_out(&k, t, l, small);
    if (max)
        kt_out(&k, window > 255 ? DT_I32 : DT_U8, l, small);
    kt_run(&k);
    kt_in(&g, t, l, small);
    if (max)
        g.in[g.n_in++] = k.out[1];
    kt_out(&g, t, l, x->shape);
    kt_run(&g);
    int64_t in = p->in[0] * p->in[1], out = out_size(p, 0) * out_size(p, 1);
    double *vx = values(x), *dy = values(&g.in[0]),
           *y = mem_alloc(8 * (size_t)tensor_count(&k.out[0]));
    double *place = mem_alloc(8 * (size_t)tensor_count(&k.out[0])),
           *dx = mem_alloc(8 * (size_t)tensor_count(x));
    for (int64_t i = 0; i < p->n * p->c; i++)
        plane(p, max, vx + i * in, dy + i * out, y + i * out, place + i * out, dx + i * in);
    for (int64_t i = 0; max && i < p->n * p->c * out; i++) {
        CHECK(kt_at(&k.out[0], i) == y[i] || (isnan(y[i]) && isnan(kt_at(&k.out[0], i))));
        CHECK_EQ(kt_at(&k.out[1], i), place[i]);
    }
    CHECK(max || kt_error(&k.out[0], y) <= kt_tolerance(t));
    CHECK(kt_error(&g.out[0], dx) <= kt_tolerance(t));
    mem_free(vx), mem_free(dy), mem_free(y), mem_free(place), mem_free(dx);
    g.n_in = 1;
    kt_free(&g);
    kt_free(&k);
}

static const struct problem problems[] = {
    {2, 16, {8, 8}, {2, 2}, {2, 2}, {0, 0}, {1, 1}, false, false, false, {0, 0}, 0},
    {2, 32, {9, 7}, {3, 3}, {2, 2}, {1, 1}, {1, 1}, false, false, false, {0, 0}, 0},
    {1, 5, {9, 7}, {3, 2}, {2, 3}, {1, 1}, {1, 1}, true, true, false, {0, 0}, 0},
    {3, 37, {10, 10}, {3, 3}, {1, 1}, {1, 1}, {1, 1}, true, false, false, {0, 0}, 0},
    {2, 16, {6, 11}, {2, 3}, {3, 2}, {0, 1}, {1, 1}, true, false, false, {0, 0}, 5},
    {2, 16, {20, 18}, {16, 17}, {1, 1}, {8, 8}, {1, 1}, false, false, false, {0, 0}, 0},
    {2, 48, {7, 7}, {7, 7}, {1, 1}, {0, 0}, {1, 1}, false, false, true, {1, 1}, 0},
    {2, 16, {10, 7}, {1, 1}, {1, 1}, {0, 0}, {1, 1}, false, false, true, {4, 3}, 0},
    {1, 3, {4, 3}, {1, 1}, {1, 1}, {0, 0}, {1, 1}, false, false, true, {7, 5}, 0}};
static const struct problem dilated = {2,      16,   {12, 11}, {3, 2}, {2, 1}, {1, 1},
                                       {2, 3}, true, false,    false,  {0, 0}, 0};
enum { PROBLEMS = sizeof problems / sizeof *problems };

static void check_layouts(const struct problem *p, bool max, bool ties)
{
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    for (int t = 0; t < 3; t++)
        for (int l = LAYOUT_ROW; l <= LAYOUT_C16; l++)
            if (l != LAYOUT_C16 || p->c % 16 == 0)
                check(p, max, types[t], (enum layout)l, ties);
}

TEST(pool_average, "averages: padding counted or not, ceil mode, divisor, adaptive windows")
{
    for (int i = 0; i < PROBLEMS; i++)
        check_layouts(&problems[i], false, false);
}

TEST(pool_max, "maxima and their gradient, dilation, windows over 255 places, adaptive windows")
{
    for (int i = 0; i < PROBLEMS; i++)
        check_layouts(&problems[i], true, false);
    check_layouts(&dilated, true, false);
}

TEST(pool_ties, "the first of equal values wins, NaN wins over all, -inf is a value")
{
    for (int i = 0; i < PROBLEMS; i++)
        check_layouts(&problems[i], true, true);
}

TEST(pool_lines, "one-dimensional pooling, and a batch of nothing")
{
    struct kt k;
    kt_init(&k, OP_MAX_POOL, 5);
    k.attr.pool =
        (struct pool_attr){.kernel = {1, 2}, .stride = {1, 2}, .dilation = {1, 1}, .spatial = 1};
    struct tensor *x = kt_in(&k, DT_F32, LAYOUT_CL, SHAPE(2, 5, 9));
    kt_out(&k, DT_F32, LAYOUT_CL, SHAPE(2, 5, 4));
    kt_out(&k, DT_U8, LAYOUT_CL, SHAPE(2, 5, 4));
    kt_run(&k);
    for (int i = 0; i < 40; i++) {
        int from = i / 4 * 9 + i % 4 * 2;
        CHECK(kt_at(&k.out[0], i) == fmax(kt_at(x, from), kt_at(x, from + 1)));
    }
    x->shape.dim[0] = k.out[0].shape.dim[0] = k.out[1].shape.dim[0] = 0;
    k.n_out = 0;
    kt_run(&k);
    x->shape.dim[0] = k.out[0].shape.dim[0] = k.out[1].shape.dim[0] = 2;
    k.n_out = 2;
    kt_free(&k);
}
