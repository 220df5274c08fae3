/* softmax.c - softmax, log-softmax and their gradients along any dimension.
 *
 * Along memory's innermost dimension each position is a row; else, where another dimension is
 * innermost, up to ND_BLOCK positions are done side by side. Sums are in double.
 */
#include "backends/backend.h"
#include "backends/cpu/lanes.h"
#include "backends/cpu/nd.h"

#include <math.h>

/* v[0] is the result, v[1..] the operands: rows [positions, D], or [outer, D, inner]. */
struct plan {
    struct nd v[3];
    int64_t length, inner, outer;
};

static struct plan plan_of(const struct kernel_args *a)
{
    struct plan p = {.inner = 1, .outer = 1};
    const struct shape *s = &a->out[0].shape;
    int n = a->n_in + 1, dim = a->attr->view.dim;
    if (s->rank == 0) {
        p.length = 1;
        for (int k = 0; k < n; k++)
            p.v[k] = nd_of(k ? &a->in[k - 1] : &a->out[0], s, false);
        return p;
    }
    dim = dim < 0 ? dim + s->rank : dim;
    p.length = s->dim[dim];
    for (int k = 0; k < n; k++) {
        p.v[k] = nd_of(k ? &a->in[k - 1] : &a->out[0], s, false);
        nd_move(&p.v[k], dim, s->rank - 1);
    }
    int last = nd_merge(p.v, n, 0, s->rank - 1);
    for (int i = 0; i < last; i++)
        p.outer *= p.v[0].dim[i];
    const struct nd *x = &p.v[1];
    if (last > 0 && x->stride[last] != 1 && x->stride[last - 1] == 1) {
        p.inner = x->dim[last - 1];
        p.outer /= p.inner;
    }
    for (int k = 0; k < n; k++) {
        if (p.inner > 1)
            nd_move(&p.v[k], last, last - 1);
        (void)nd_merge(&p.v[k], 1, 0, p.v[k].rank);
    }
    return p;
}

static void set_all(float *y, float x, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = x;
}

/* ---- one row, from element i on ---- */
static void row_forward(const struct plan *p, bool logarithm, int64_t i)
{
    const struct lanes_sum *l = lanes_sum();
    float bx[ND_BLOCK], by[ND_BLOCK], shift[ND_BLOCK], factor[ND_BLOCK];
    int64_t end = i + p->length;
    int n = p->length < ND_BLOCK ? (int)p->length : ND_BLOCK;
    float m = -INFINITY;
    for (int64_t k = i; k < end && m == m; k += n) {
        int c = end - k < n ? (int)(end - k) : n;
        float b = l->max(nd_read(&p->v[1], k, c, bx), c);
        m = b > m || b != b ? b : m;
    }
    double s = 0;
    for (int64_t k = i; k < end; k += n) {
        int c = end - k < n ? (int)(end - k) : n;
        s += l->exp_sum(nd_read(&p->v[1], k, c, bx), m, c);
    }
    set_all(shift, m, n);
    set_all(factor, (float)(logarithm ? log(s) : 1 / s), n);
    for (int64_t k = i; k < end; k += n) {
        int c = end - k < n ? (int)(end - k) : n;
        const float *x = nd_read(&p->v[1], k, c, bx);
        float *y = nd_target(&p->v[0], k, by);
        (logarithm ? l->log_columns : l->exp_columns)(x, shift, factor, y, c);
        nd_write(&p->v[0], k, c, y);
    }
}

/* Operands: dy, y. */
static void row_grad(const struct plan *p, bool logarithm, int64_t i)
{
    const struct lanes_sum *l = lanes_sum();
    float bd[ND_BLOCK], by[ND_BLOCK], bx[ND_BLOCK], sum[ND_BLOCK];
    int64_t end = i + p->length;
    int n = p->length < ND_BLOCK ? (int)p->length : ND_BLOCK;
    double s = 0;
    for (int64_t k = i; k < end; k += n) {
        int c = end - k < n ? (int)(end - k) : n;
        const float *d = nd_read(&p->v[1], k, c, bd), *y = nd_read(&p->v[2], k, c, by);
        s += logarithm ? l->sum(d, c) : l->dot(d, y, c);
    }
    set_all(sum, (float)s, n);
    for (int64_t k = i; k < end; k += n) {
        int c = end - k < n ? (int)(end - k) : n;
        const float *d = nd_read(&p->v[1], k, c, bd), *y = nd_read(&p->v[2], k, c, by);
        float *x = nd_target(&p->v[0], k, bx);
        (logarithm ? l->log_softmax_grad : l->softmax_grad)(d, y, sum, x, c);
        nd_write(&p->v[0], k, c, x);
    }
}

/* ---- n columns side by side: element i, and every `inner` further on ---- */
static void columns_forward(const struct plan *p, bool logarithm, int64_t i, int n)
{
    const struct lanes_sum *l = lanes_sum();
    float bx[ND_BLOCK], by[ND_BLOCK], m[ND_BLOCK], factor[ND_BLOCK];
    double s[ND_BLOCK] = {0};
    set_all(m, -INFINITY, n);
    for (int64_t k = 0; k < p->length; k++)
        l->max_into(m, nd_read(&p->v[1], i + k * p->inner, n, bx), n);
    for (int64_t k = 0; k < p->length; k++)
        l->exp_into(s, nd_read(&p->v[1], i + k * p->inner, n, bx), m, n);
    for (int j = 0; j < n; j++)
        factor[j] = (float)(logarithm ? log(s[j]) : 1 / s[j]);
    for (int64_t k = 0; k < p->length; k++) {
        const float *x = nd_read(&p->v[1], i + k * p->inner, n, bx);
        float *y = nd_target(&p->v[0], i + k * p->inner, by);
        (logarithm ? l->log_columns : l->exp_columns)(x, m, factor, y, n);
        nd_write(&p->v[0], i + k * p->inner, n, y);
    }
}

static void columns_grad(const struct plan *p, bool logarithm, int64_t i, int n)
{
    const struct lanes_sum *l = lanes_sum();
    float bd[ND_BLOCK], by[ND_BLOCK], bx[ND_BLOCK], sum[ND_BLOCK];
    double s[ND_BLOCK] = {0};
    for (int64_t k = 0; k < p->length; k++) {
        const float *d = nd_read(&p->v[1], i + k * p->inner, n, bd);
        if (logarithm)
            l->add_rows(s, d, n, 1, n);
        else
            l->mul_into(s, d, nd_read(&p->v[2], i + k * p->inner, n, by), n);
    }
    for (int j = 0; j < n; j++)
        sum[j] = (float)s[j];
    for (int64_t k = 0; k < p->length; k++) {
        const float *d = nd_read(&p->v[1], i + k * p->inner, n, bd);
        const float *y = nd_read(&p->v[2], i + k * p->inner, n, by);
        float *x = nd_target(&p->v[0], i + k * p->inner, bx);
        (logarithm ? l->log_softmax_grad : l->softmax_grad)(d, y, sum, x, n);
        nd_write(&p->v[0], i + k * p->inner, n, x);
    }
}

static enum status run(const struct kernel_args *a, struct err *e)
{
    (void)e;
    if (tensor_count(&a->out[0]) <= 0)
        return ST_OK;
    struct plan p = plan_of(a);
    bool logarithm = a->code == OP_LOG_SOFTMAX || a->code == OP_LOG_SOFTMAX_GRAD;
    bool grad = a->n_in == 2, rows = p.inner == 1;
    int64_t tiles = rows ? 1 : (p.inner + ND_BLOCK - 1) / ND_BLOCK, items = p.outer * tiles;
    bool parallel = items > 1 && tensor_count(&a->out[0]) > ND_PIECE;
    (void)parallel;
#pragma omp parallel for schedule(static) if (parallel)
    for (int64_t i = 0; i < items; i++) {
        int64_t first = i / tiles * p.length * p.inner, j = i % tiles * ND_BLOCK;
        int n = p.inner - j < ND_BLOCK ? (int)(p.inner - j) : ND_BLOCK;
        if (rows)
            (grad ? row_grad : row_forward)(&p, logarithm, first);
        else
            (grad ? columns_grad : columns_forward)(&p, logarithm, first + j, n);
    }
    return ST_OK;
}

extern const struct kernel kernel_softmax;
const struct kernel kernel_softmax = {.run = run, .name = "softmax"};
