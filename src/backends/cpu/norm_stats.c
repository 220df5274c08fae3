/* norm_stats.c - BATCH_STATS and NORM_STATS: mean and 1 / sqrt(variance + eps) in float32; of rms
 * normalisation 0 and 1 / sqrt(mean square + eps).
 *
 * A chunk of a few places gives its mean and its squared deviations from it in two passes over
 * cached data; chunks and slices are merged by the formulas of Chan, Golub and LeVeque ("Updating
 * formulae and a pairwise algorithm for computing sample variances", 1979). So a large mean costs
 * no digits of the variance, and memory is read once.
 */
#include "backends/cpu/norm.h"

enum { STRIP = 4 }; /* vectors of channels at a time */

/* Table: per slice, a row of means and a row of squared deviations. */
VEC_FN void
merge(float *mean, float *square, int64_t at, int n, double before, double more, vf m, vf q)
{
    if (before > 0) {
        vf old = n == VL ? vload(mean, DT_F32, at) : vload_n(mean, DT_F32, at, n);
        vf old_q = n == VL ? vload(square, DT_F32, at) : vload_n(square, DT_F32, at, n);
        vf delta = m - old;
        m = old + delta * (float)(more / (before + more));
        q = old_q + q + delta * delta * (float)(before * more / (before + more));
    }
    if (n == VL) {
        vstore(mean, DT_F32, at, m);
        vstore(square, DT_F32, at, q);
    } else {
        vstore_n(mean, DT_F32, at, n, m);
        vstore_n(square, DT_F32, at, n, q);
    }
}

/* `width` whole vectors of channels from element `at` on, `places` rows of k. */
VEC_FN void chunk_vectors(
    const void *x, enum dtype t, int64_t at, int64_t k, int64_t places, int width, float *mean,
    float *square, int64_t channel, double before)
{
    vf m[STRIP], q[STRIP];
    float share = 1.0f / (float)places;
    for (int j = 0; j < width; j++)
        m[j] = q[j] = vset(0);
    for (int64_t p = 0; p < places; p++)
        for (int j = 0; j < width; j++)
            m[j] = m[j] + vload(x, t, at + p * k + j * VL);
    for (int j = 0; j < width; j++)
        m[j] = m[j] * share;
    for (int64_t p = 0; p < places; p++)
        for (int j = 0; j < width; j++) {
            vf d = vload(x, t, at + p * k + j * VL) - m[j];
            q[j] = q[j] + d * d;
        }
    for (int j = 0; j < width; j++)
        merge(mean, square, channel + j * VL, VL, before, (double)places, m[j], q[j]);
}

VEC_FN void chunk_rest(
    const void *x, enum dtype t, int64_t at, int64_t k, int64_t places, int n, float *mean,
    float *square, int64_t channel, double before)
{
    vf m = vset(0), q = vset(0);
    for (int64_t p = 0; p < places; p++)
        m = m + vload_n(x, t, at + p * k, n);
    m = m * (1.0f / (float)places);
    for (int64_t p = 0; p < places; p++) {
        vf d = vload_n(x, t, at + p * k, n) - m;
        q = q + d * d;
    }
    merge(mean, square, channel, n, before, (double)places, m, q);
}

/* A piece of places with k channels each. */
VEC_FN void piece_rows(
    const struct norm_view *v, const void *x, enum dtype t, int64_t at, int64_t places, float *mean,
    float *square, double before)
{
    for (int64_t p = 0; p < places; p += NORM_CHUNK) {
        int64_t n = norm_least(NORM_CHUNK, places - p), from = at + p * v->k, c = 0;
        double done = before + (double)p;
        for (; c + STRIP * VL <= v->k; c += STRIP * VL)
            chunk_vectors(x, t, from + c, v->k, n, STRIP, mean, square, c, done);
        for (; c + VL <= v->k; c += VL)
            chunk_vectors(x, t, from + c, v->k, n, 1, mean, square, c, done);
        if (c < v->k)
            chunk_rest(x, t, from + c, v->k, n, (int)(v->k - c), mean, square, c, done);
    }
}

/* A run of one channel. */
VEC_FN void piece_run(
    const void *x, enum dtype t, int64_t at, int64_t length, float *mean, float *square,
    double before)
{
    for (int64_t p = 0; p < length; p += NORM_RUN) {
        int64_t n = norm_least(NORM_RUN, length - p), i = 0;
        vf sum = vset(0), q = vset(0);
        for (; i + VL <= n; i += VL)
            sum = sum + vload(x, t, at + p + i);
        if (i < n)
            sum = sum + vload_n(x, t, at + p + i, (int)(n - i));
        float m = vsum(sum) / (float)n, rest = 0;
        for (i = 0; i + VL <= n; i += VL) {
            vf d = vload(x, t, at + p + i) - m;
            q = q + d * d;
        }
        for (; i < n; i++) {
            float d = fload(x, t, at + p + i) - m;
            rest += d * d;
        }
        double done = before + (double)p, more = (double)n;
        float delta = m - *mean, square_now = vsum(q) + rest;
        if (done > 0) {
            *mean += delta * (float)(more / (done + more));
            *square += square_now + delta * delta * (float)(done * more / (done + more));
        } else {
            *mean = m;
            *square = square_now;
        }
    }
}

static void
slice_run(const struct norm_view *v, const struct tensor *x, int64_t i, int64_t b, float *table)
{
    float *mean = table + 2 * i * v->channels + b * v->k, *square = mean + v->channels;
    double before = 0;
    NORM_EACH_PIECE(v, i, b, at, places, {
        if (v->k == 1)
            DTYPE_CONST(x->dtype, T, piece_run(x->data, T, at, places, mean, square, before));
        else
            DTYPE_CONST(x->dtype, T, piece_rows(v, x->data, T, at, places, mean, square, before));
        before += (double)places;
    });
}

static void table_fill(const struct norm_view *v, const struct tensor *x, float *table)
{
#pragma omp parallel for schedule(static) if (norm_parallel(v))
    for (int64_t i = 0; i < v->slices * v->b; i++)
        slice_run(v, x, i / v->b, i % v->b, table);
}

struct moments {
    double n, mean, square;
};
static void moments_add(struct moments *m, double n, double mean, double square)
{
    if (n == 0)
        return;
    double delta = mean - m->mean, all = m->n + n;
    m->mean += delta * (n / all);
    m->square += square + delta * delta * (m->n * n / all);
    m->n = all;
}

/* Result r from the table: over the slices (batch), or the channels of a group. */
static struct moments combine(const struct norm_view *v, const float *table, int64_t r)
{
    struct moments m = {0, 0, 0};
    if (!v->groups) {
        for (int64_t i = 0; i < v->slices; i++) {
            int64_t places = v->n * v->s * (i + 1) / v->slices - v->n * v->s * i / v->slices;
            const float *row = table + 2 * i * v->channels + r;
            moments_add(&m, (double)places, (double)row[0], (double)row[v->channels]);
        }
        return m;
    }
    int64_t each = v->channels / v->groups, image = r / v->groups, first = r % v->groups * each;
    for (int64_t c = 0; c < each; c++) {
        const float *row = table + 2 * image * v->channels + first + c;
        moments_add(&m, (double)v->s, (double)row[0], (double)row[v->channels]);
    }
    return m;
}

static enum status
stats_prepare(const struct kernel_args *a, int64_t *workspace_bytes, void **state, struct err *e)
{
    (void)state;
    (void)e;
    struct norm_view v = norm_view_of(&a->attr->norm, &a->in[a->code == OP_BATCH_STATS ? 3 : 0]);
    *workspace_bytes = v.slices * v.channels * 2 * 4;
    return ST_OK;
}

static void stats_write(const struct kernel_args *a, int first, int64_t r, const struct moments *m)
{
    double variance = m->n > 0 ? m->square / m->n : 0, mean = m->mean;
    if (a->attr->norm.kind == NORM_RMS) {
        variance += mean * mean;
        mean = 0;
    }
    ((float *)a->out[first].data)[r] = (float)mean;
    ((float *)a->out[first + 1].data)[r] = norm_rstd(variance, a->attr->norm.eps);
}

static enum status norm_stats_run(const struct kernel_args *a, struct err *e)
{
    (void)e;
    struct norm_view v = norm_view_of(&a->attr->norm, &a->in[0]);
    table_fill(&v, &a->in[0], a->workspace);
    for (int64_t r = 0; r < v.results; r++) {
        struct moments m = combine(&v, a->workspace, r);
        stats_write(a, 0, r, &m);
    }
    return ST_OK;
}

/* The running statistics move by `step` towards the batch's; the variance is the unbiased one. */
static void
running_update(const struct kernel_args *a, int64_t c, double step, const struct moments *m)
{
    double batch[2] = {m->mean, m->square / (m->n > 1 ? m->n - 1 : 1)};
    for (int i = 0; i < 2; i++) {
        double old = dtype_load(a->in[i].data, a->in[i].dtype, c);
        dtype_store(a->out[i].data, a->out[i].dtype, c, step * batch[i] + (1 - step) * old);
    }
}

static enum status batch_stats_run(const struct kernel_args *a, struct err *e)
{
    (void)e;
    struct norm_view v = norm_view_of(&a->attr->norm, &a->in[3]);
    table_fill(&v, &a->in[3], a->workspace);
    int64_t batches = *(const int64_t *)a->in[2].data + 1;
    *(int64_t *)a->out[2].data = batches;
    double momentum = a->attr->norm.momentum;
    for (int64_t c = 0; c < v.channels; c++) {
        struct moments m = combine(&v, a->workspace, c);
        stats_write(a, 3, c, &m);
        running_update(a, c, momentum < 0 ? 1 / (double)batches : momentum, &m);
    }
    return ST_OK;
}

const struct kernel KERNEL(norm_stats) = {
    stats_prepare, norm_stats_run, NULL, "norm statistics: merged chunks"};
const struct kernel KERNEL(batch_stats) = {
    stats_prepare, batch_stats_run, NULL, "batch statistics: merged chunks"};
