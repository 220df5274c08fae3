/* argmax.c - places of largest values, and how many of them are the targets. */
#include "backends/backend.h"
#include "backends/cpu/loss_class.h"
#include "backends/cpu/nd.h"

#include <math.h>

int64_t class_largest(const struct nd *v, int64_t i, int64_t length)
{
    float buf[ND_BLOCK], best = -INFINITY;
    int64_t place = 0;
    for (int64_t k = 0; k < length; k += ND_BLOCK) {
        int n = length - k < ND_BLOCK ? (int)(length - k) : ND_BLOCK;
        const float *x = nd_read(v, i + k, n, buf);
        for (int c = 0; c < n; c++) {
            if (x[c] > best || x[c] != x[c]) {
                place = k + c;
                best = x[c];
                if (best != best)
                    return place;
            }
        }
    }
    return place;
}

static enum status argmax(const struct kernel_args *a, struct err *e)
{
    const struct tensor *x = &a->in[0];
    int dim = a->attr->view.dim < 0 ? a->attr->view.dim + x->shape.rank : a->attr->view.dim;
    struct nd v = nd_of(x, &x->shape, false);
    if (v.rank == 0) {
        *(int64_t *)a->out[0].data = 0;
        return ST_OK;
    }
    int64_t length = x->shape.dim[dim], count = tensor_count(&a->out[0]);
    if (length == 0 && count > 0)
        return err_set(e, ST_INVALID, "argmax over an empty dimension");
    nd_move(&v, dim, v.rank - 1);
    (void)nd_merge(&v, 1, 0, v.rank);
    bool parallel = tensor_count(x) > ND_PIECE;
    (void)parallel;
#pragma omp parallel for schedule(static) if (parallel)
    for (int64_t i = 0; i < count; i++)
        ((int64_t *)a->out[0].data)[i] = class_largest(&v, i * length, length);
    return ST_OK;
}

/* Positions whose target is attr.loss.ignore_index, or negative, are not counted. */
static enum status count_correct(const struct kernel_args *a, struct err *e)
{
    struct class_rows r;
    TRY(class_rows_of(&a->in[0], &a->in[1], &r, e));
    int64_t correct = 0, counted = 0;
    bool parallel = r.positions * r.classes > ND_PIECE;
    (void)parallel;
#pragma omp parallel for schedule(static) reduction(+ : correct, counted) if (parallel)
    for (int64_t p = 0; p < r.positions; p++) {
        int64_t t =
            r.soft ? class_largest(&r.target, p * r.classes, r.classes) : class_target(&r, p);
        if (!r.soft && (t < 0 || t == a->attr->loss.ignore_index))
            continue;
        counted++;
        correct += class_largest(&r.scores, p * r.classes, r.classes) == t;
    }
    int64_t *out = a->out[0].data;
    out[0] = correct;
    out[1] = counted;
    return ST_OK;
}

extern const struct kernel kernel_argmax, kernel_count_correct;
const struct kernel kernel_argmax = {.run = argmax, .name = "argmax"};
const struct kernel kernel_count_correct = {.run = count_correct, .name = "count correct"};
