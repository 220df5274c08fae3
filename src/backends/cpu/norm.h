/* norm.h - private to the normalisation kernels: how tensors, slices and channel tables are seen.
 *
 * A tensor is [n, b, s, k] (tensor.h): `b` blocks of `k` channels, so that ROW is b = C, k = 1.
 * Sums run over slices of its n * s places: how many there are follows from the shape, never from
 * the threads, and they are combined in order. Tables hold, per slice or image, rows of C floats.
 * Layer norm is n = rows, one channel, s = what a row has.
 */
#ifndef BACKENDS_CPU_NORM_H
#define BACKENDS_CPU_NORM_H

#include "backends/cpu/args.h"
#include "backends/cpu/vec.h"

enum { NORM_SLICES_MAX = 64, NORM_SLICE_LEAST = 16384, NORM_CHUNK = 32, NORM_RUN = 512 };

struct norm_view {
    int64_t n, b, s, k, channels;
    int64_t slices;  /* of n * s places */
    int64_t groups;  /* statistics per image: 0 for batch, groups or 1 (layer) */
    int64_t count;   /* elements behind one pair of statistics */
    int64_t results; /* pairs of statistics */
};

VEC_FN int64_t norm_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline struct norm_view norm_view_of(const struct norm_attr *a, const struct tensor *x)
{
    struct norm_view v = {0};
    int lead = norm_by_rows(a->kind) ? x->shape.rank - a->trailing : 2;
    struct shape outer = {.rank = lead}, inner = {.rank = x->shape.rank - lead};
    memcpy(outer.dim, x->shape.dim, sizeof outer.dim[0] * (size_t)lead);
    memcpy(inner.dim, x->shape.dim + lead, sizeof inner.dim[0] * (size_t)inner.rank);
    v.s = shape_count(&inner);
    v.n = norm_by_rows(a->kind) ? shape_count(&outer) : outer.dim[0];
    v.channels = norm_by_rows(a->kind) ? 1 : outer.dim[1];
    v.k = x->layout == LAYOUT_CL ? v.channels : x->layout == LAYOUT_C16 ? 16 : 1;
    if (!norm_by_rows(a->kind) && v.s == 1) /* [N, C]: channels are adjacent */
        v.k = v.channels;
    v.b = v.k > 0 ? v.channels / v.k : 0;
    v.groups = a->kind == NORM_BATCH ? 0 : norm_by_rows(a->kind) ? 1 : a->groups;
    v.slices = v.n;
    if (a->kind == NORM_BATCH && v.k > 1) {
        int64_t work = v.n * v.s * v.channels / NORM_SLICE_LEAST + 1;
        v.slices = norm_least(norm_least(work, NORM_SLICES_MAX), v.n * v.s);
    }
    v.count = v.groups ? v.channels / v.groups * v.s : v.n * v.s;
    v.results = v.groups ? v.n * v.groups : v.channels;
    return v;
}

static inline bool norm_parallel(const struct norm_view *v)
{
    return v->n * v->s * v->channels > 16384;
}

/* Calls f for the pieces of slice i in block b, each contiguous: `at` is the first element,
 * `places` how many rows of k follow. */
#define NORM_EACH_PIECE(v, i, blk, at, places, ...)                                                \
    for (int64_t p_ = (v)->n * (v)->s * (i) / (v)->slices,                                         \
                 end_ = (v)->n * (v)->s * ((i) + 1) / (v)->slices, places = 0;                     \
         p_ < end_; p_ += places) {                                                                \
        int64_t img_ = (v)->b == 1 ? 0 : p_ / (v)->s, off_ = (v)->b == 1 ? p_ : p_ % (v)->s;       \
        places = (v)->b == 1 ? end_ - p_ : norm_least(end_ - p_, (v)->s - off_);                   \
        int64_t at = ((img_ * (v)->b + (blk)) * (v)->s + off_) * (v)->k;                           \
        __VA_ARGS__;                                                                               \
    }

/* 1 / sqrt(variance + eps), rounded once. */
static inline float norm_rstd(double variance, double eps)
{
    return (float)(1 / sqrt(variance + eps));
}

/* y before activation and residual: the one expression of all kernels here. */
VEC_FN vf norm_value(vf x, vf mean, vf scale, vf shift)
{
    return (x - mean) * scale + shift;
}

/* Rows of floats per image (one image for batch norm), `stride` apart. */
struct norm_coefs {
    float *mean, *scale, *shift; /* scale = rstd gamma, shift = beta */
    int64_t image;               /* floats from one image to the next, 0 for batch */
};
/* Fills mean, scale and shift from the operands x mean rstd gamma? beta? that begin at
 * a->in[first]. `room` has norm_coefs_bytes. */
static inline int64_t norm_coef_images(const struct norm_view *v)
{
    return v->groups ? v->n : 1;
}
static inline int64_t norm_coefs_bytes(const struct norm_view *v, int rows)
{
    return norm_coef_images(v) * v->channels * rows * 4;
}
#define norm_coefs_fill ISA_GLUE(norm_coefs_fill, ISA_SUFFIX)
void norm_coefs_fill(
    const struct norm_view *v, const struct kernel_args *a, int first, float *room, int rows,
    struct norm_coefs *c);

/* The statistics of result r: batch and group. */
static inline float norm_mean_at(const struct kernel_args *a, int first, int64_t r)
{
    return fload(a->in[first + 1].data, a->in[first + 1].dtype, r);
}
static inline float norm_rstd_at(const struct kernel_args *a, int first, int64_t r)
{
    float x = fload(a->in[first + 2].data, a->in[first + 2].dtype, r);
    return a->attr->norm.infer ? norm_rstd((double)x, a->attr->norm.eps) : x;
}

#endif
