/* topk.c - TOPK, SCATTER, GATHER along the last dimension, row by row, of dense operands. */
#include "backends/backend.h"

#include <string.h>

struct rows {
    int64_t n, in, out; /* rows; their lengths in the wider and in the picked tensor */
};

static struct rows rows_of(const struct tensor *wide, const struct tensor *picked)
{
    int last = wide->shape.rank - 1;
    struct rows r = {1, wide->shape.dim[last], picked->shape.dim[last]};
    for (int i = 0; i < last; i++)
        r.n *= wide->shape.dim[i];
    return r;
}

/* Is a before b in falling order? NaN counts as largest. */
static bool larger(double a, double b)
{
    return a > b || (a != a && b == b);
}

/* The k largest, kept sorted while the row is read: of equal ones the first stays ahead. */
static void row_largest(
    const struct tensor *x, const struct tensor *values, int64_t *index, int64_t from, int64_t to,
    const struct rows *r)
{
    int64_t n = 0;
    for (int64_t i = 0; i < r->in; i++) {
        double v = dtype_load(x->data, x->dtype, from + i);
        int64_t k = n;
        while (k > 0 && larger(v, dtype_load(values->data, values->dtype, to + k - 1)))
            k--;
        if (k == r->out)
            continue;
        n += n < r->out;
        for (int64_t m = n - 1; m > k; m--) {
            dtype_store(
                values->data, values->dtype, to + m,
                dtype_load(values->data, values->dtype, to + m - 1));
            index[to + m] = index[to + m - 1];
        }
        dtype_store(values->data, values->dtype, to + k, v);
        index[to + k] = i;
    }
}

static enum status topk(const struct kernel_args *a, struct err *e)
{
    (void)e;
    struct rows r = rows_of(&a->in[0], &a->out[0]);
    bool parallel = r.n * r.in > 1 << 14;
    (void)parallel;
#pragma omp parallel for schedule(static) if (parallel)
    for (int64_t i = 0; i < r.n; i++)
        row_largest(&a->in[0], &a->out[0], a->out[1].data, i * r.in, i * r.out, &r);
    return ST_OK;
}

static enum status index_check(const int64_t *index, int64_t n, int64_t width, struct err *e)
{
    for (int64_t i = 0; i < n; i++)
        if (index[i] < 0 || index[i] >= width)
            return err_set(
                e, ST_INVALID, "index %lld is outside 0..%lld", (long long)index[i],
                (long long)width - 1);
    return ST_OK;
}

static enum status scatter(const struct kernel_args *a, struct err *e)
{
    const struct tensor *v = &a->in[0], *y = &a->out[0];
    const int64_t *index = a->in[1].data;
    struct rows r = rows_of(y, v);
    TRY(index_check(index, r.n * r.out, r.in, e));
    if (r.n * r.in > 0)
        memset(y->data, 0, (size_t)(r.n * r.in * dtype_size(y->dtype)));
    for (int64_t i = 0; i < r.n * r.out; i++) {
        int64_t at = i / r.out * r.in + index[i];
        double sum = dtype_load(y->data, y->dtype, at) + dtype_load(v->data, v->dtype, i);
        dtype_store(y->data, y->dtype, at, sum);
    }
    return ST_OK;
}

static enum status gather(const struct kernel_args *a, struct err *e)
{
    const struct tensor *x = &a->in[0], *y = &a->out[0];
    const int64_t *index = a->in[1].data;
    struct rows r = rows_of(x, y);
    TRY(index_check(index, r.n * r.out, r.in, e));
    for (int64_t i = 0; i < r.n * r.out; i++)
        dtype_store(
            y->data, y->dtype, i, dtype_load(x->data, x->dtype, i / r.out * r.in + index[i]));
    return ST_OK;
}

extern const struct kernel kernel_topk, kernel_scatter, kernel_gather;
const struct kernel kernel_topk = {.run = topk, .name = "topk"};
const struct kernel kernel_scatter = {.run = scatter, .name = "scatter"};
const struct kernel kernel_gather = {.run = gather, .name = "gather"};
