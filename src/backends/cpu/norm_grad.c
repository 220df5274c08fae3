/* norm_grad.c - NORM_GRAD: dx, dgamma and dbeta of a normalisation.
 *
 * With x^ = (x - mean) rstd and g = dy gamma (Ioffe and Szegedy, "Batch normalization", 2015):
 *     dx = rstd (g - mean(g) - x^ mean(g x^)),  dgamma = sum dy x^,  dbeta = sum dy
 * which per channel is dx = scale dy - k1 - (x - mean) k2 with constants of the channel (and image,
 * for groups). A fused ReLU masks dy by the sign of norm(x), computed again as NORM_APPLY does.
 */
#include "backends/cpu/norm.h"

enum { STRIP = 2, ROWS = 5 }; /* of a channel: mean scale shift k1 k2 */

struct grad {
    const void *dy, *x;
    void *dx;
    enum dtype dy_type;
    bool relu;
};

VEC_FN vf some(const void *p, enum dtype t, int64_t at, int n)
{
    return n == VL ? vload(p, t, at) : vload_n(p, t, at, n);
}

VEC_FN void put(void *p, enum dtype t, int64_t at, int n, vf x)
{
    if (n == VL)
        vstore(p, t, at, x);
    else
        vstore_n(p, t, at, n, x);
}

/* dy, masked where a fused ReLU gave 0. */
VEC_FN vf dy_at(
    const struct grad *p, enum dtype t, enum dtype td, bool relu, int64_t at, int n, vf x, vf mean,
    vf scale, vf shift)
{
    vf dy = some(p->dy, td, at, n);
    if (!relu)
        return dy;
    /* Whether y, stored as t, is 0 or less: what rounds to 0 is. */
    float zero = t == DT_BF16 ? 0x1p-134f : t == DT_F16 ? 0x1p-25f : 0;
    return (vf)((vi)dy & ~(vi)(norm_value(x, mean, scale, shift) <= vset(zero)));
}

/* ---- sums of dy and dy (x - mean) ---- */

/* `width` vectors of n lanes from channel j on, places from .. end of rows of k. */
VEC_FN void sums_strip(
    const struct grad *p, enum dtype t, enum dtype td, bool relu, int64_t at, int64_t k,
    int64_t places, int width, int n, const float *c, int64_t channels, float *sum)
{
    vf m[STRIP], scale[STRIP], shift[STRIP], a[STRIP], b[STRIP];
    for (int w = 0; w < width; w++) {
        m[w] = some(c, DT_F32, w * VL, n);
        scale[w] = some(c, DT_F32, channels + w * VL, n);
        shift[w] = some(c, DT_F32, 2 * channels + w * VL, n);
        a[w] = b[w] = vset(0);
    }
    for (int64_t i = 0; i < places; i++)
        for (int w = 0; w < width; w++) {
            int64_t e = at + i * k + w * VL;
            vf x = some(p->x, t, e, n);
            vf dy = dy_at(p, t, td, relu, e, n, x, m[w], scale[w], shift[w]);
            a[w] = a[w] + dy;
            b[w] = b[w] + dy * (x - m[w]);
        }
    for (int w = 0; w < width; w++) {
        put(sum, DT_F32, w * VL, n, a[w] + some(sum, DT_F32, w * VL, n));
        put(sum, DT_F32, channels + w * VL, n, b[w] + some(sum, DT_F32, channels + w * VL, n));
    }
}

VEC_FN void sums_rows(
    const struct grad *p, enum dtype t, enum dtype td, bool relu, int64_t at, int64_t k,
    int64_t places, const float *c, int64_t channels, float *sum)
{
    for (int64_t from = 0; from < places; from += NORM_CHUNK, at += NORM_CHUNK * k) {
        int64_t some_places = norm_least(NORM_CHUNK, places - from), j = 0;
        for (; j + STRIP * VL <= k; j += STRIP * VL)
            sums_strip(p, t, td, relu, at + j, k, some_places, STRIP, VL, c + j, channels, sum + j);
        for (; j + VL <= k; j += VL)
            sums_strip(p, t, td, relu, at + j, k, some_places, 1, VL, c + j, channels, sum + j);
        if (j < k)
            sums_strip(
                p, t, td, relu, at + j, k, some_places, 1, (int)(k - j), c + j, channels, sum + j);
    }
}

VEC_FN void sums_run(
    const struct grad *p, enum dtype t, enum dtype td, bool relu, int64_t at, int64_t length,
    const float *c, int64_t channels, float *sum)
{
    vf m = vset(c[0]), scale = vset(c[channels]), shift = vset(c[2 * channels]);
    for (int64_t from = 0; from < length; from += NORM_RUN) {
        int64_t end = norm_least(length, from + NORM_RUN), i = from;
        vf a = vset(0), b = vset(0);
        for (; i + VL <= end; i += VL) {
            vf x = vload(p->x, t, at + i);
            vf dy = dy_at(p, t, td, relu, at + i, VL, x, m, scale, shift);
            a = a + dy;
            b = b + dy * (x - m);
        }
        if (i < end) {
            int n = (int)(end - i);
            vf x = vload_n(p->x, t, at + i, n);
            vf dy = dy_at(p, t, td, relu, at + i, n, x, m, scale, shift); /* 0 past the tail */
            a = a + dy;
            b = b + dy * (x - m);
        }
        sum[0] += vsum(a);
        sum[channels] += vsum(b);
    }
}

/* Runs the statement with T, TD and RELU constant where that pays: x's and dy's types are mostly
 * the same. */
#define RELU_CONST(relu, ...)                                                                      \
    do {                                                                                           \
        if (relu) {                                                                                \
            const bool RELU = true;                                                                \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            const bool RELU = false;                                                               \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)
#define TYPES_CONST(tx, tdy, ...)                                                                  \
    DTYPE_CONST(                                                                                   \
        tx, T,                                                                                     \
        if ((tdy) == T) {                                                                          \
            const enum dtype TD = T;                                                               \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            const enum dtype TD = tdy;                                                             \
            __VA_ARGS__;                                                                           \
        })

static void slice_sums(
    const struct norm_view *v, const struct grad *p, enum dtype type, const struct norm_coefs *c,
    int64_t i, int64_t b, float *table)
{
    float *sum = table + 2 * i * v->channels + b * v->k;
    const float *coef = c->mean + (v->groups ? i * c->image : 0) + b * v->k;
    memset(sum, 0, (size_t)v->k * 4);
    memset(sum + v->channels, 0, (size_t)v->k * 4);
    NORM_EACH_PIECE(v, i, b, at, places, {
        if (v->k == 1)
            TYPES_CONST(
                type, p->dy_type,
                RELU_CONST(p->relu, sums_run(p, T, TD, RELU, at, places, coef, v->channels, sum)));
        else
            TYPES_CONST(
                type, p->dy_type,
                RELU_CONST(
                    p->relu, sums_rows(p, T, TD, RELU, at, v->k, places, coef, v->channels, sum)));
    });
}

/* ---- dx ---- */

VEC_FN void dx_vector(
    const struct grad *p, enum dtype t, enum dtype td, bool relu, int64_t at, int n, const vf c[5])
{
    vf x = some(p->x, t, at, n);
    vf dy = dy_at(p, t, td, relu, at, n, x, c[0], c[1], c[2]);
    vf dx = c[1] * dy - c[3] - (x - c[0]) * c[4];
    put(p->dx, td, at, n, dx);
}

VEC_FN void dx_at(
    const struct grad *p, enum dtype t, enum dtype td, bool relu, int64_t at, int n,
    const float *coef, int64_t channels)
{
    vf c[5];
    for (int r = 0; r < 5; r++)
        c[r] = some(coef, DT_F32, r * channels, n);
    dx_vector(p, t, td, relu, at, n, c);
}

VEC_FN void dx_rows(
    const struct grad *p, enum dtype t, enum dtype td, bool relu, int64_t at, int64_t k,
    int64_t places, const float *coef, int64_t channels)
{
    if (k == VL) { /* blocked: the coefficients stay in registers */
        vf c[5];
        for (int r = 0; r < 5; r++)
            c[r] = vload(coef, DT_F32, r * channels);
        for (int64_t i = 0; i < places; i++)
            dx_vector(p, t, td, relu, at + i * k, VL, c);
        return;
    }
    for (int64_t i = 0; i < places; i++, at += k) {
        int64_t j = 0;
        for (; j + VL <= k; j += VL)
            dx_at(p, t, td, relu, at + j, VL, coef + j, channels);
        if (j < k)
            dx_at(p, t, td, relu, at + j, (int)(k - j), coef + j, channels);
    }
}

VEC_FN void dx_run(
    const struct grad *p, enum dtype t, enum dtype td, bool relu, int64_t at, int64_t length,
    const float *coef, int64_t channels)
{
    vf c[5];
    for (int r = 0; r < 5; r++)
        c[r] = vset(coef[r * channels]);
    int64_t i = 0;
    for (; i + VL <= length; i += VL)
        dx_vector(p, t, td, relu, at + i, VL, c);
    if (i < length)
        dx_vector(p, t, td, relu, at + i, (int)(length - i), c);
}

static void
dx_all(const struct norm_view *v, const struct grad *p, enum dtype type, const struct norm_coefs *c)
{
    int64_t parts = v->k == 1 ? 1 : (v->s + NORM_CHUNK - 1) / NORM_CHUNK;
    const struct grad q = *p; /* stores cannot change a copy */
#pragma omp parallel for schedule(static) firstprivate(q) if (norm_parallel(v))
    for (int64_t task = 0; task < v->n * v->b * parts; task++) {
        int64_t i = task / parts, from = task % parts * NORM_CHUNK, at = (i * v->s + from) * v->k;
        const float *coef = c->mean + i / v->b * c->image + i % v->b * v->k;
        int64_t places = norm_least(NORM_CHUNK, v->s - from);
        if (v->k == 1)
            TYPES_CONST(
                type, q.dy_type,
                RELU_CONST(q.relu, dx_run(&q, T, TD, RELU, at, v->s, coef, v->channels)));
        else
            TYPES_CONST(
                type, q.dy_type,
                RELU_CONST(q.relu, dx_rows(&q, T, TD, RELU, at, v->k, places, coef, v->channels)));
    }
}

/* ---- batch and group: constants from the sums ---- */

static void constants_batch(
    const struct norm_view *v, const struct kernel_args *a, const float *table, float *coef)
{
    float *dgamma = a->out[1].data, *dbeta = a->out[2].data;
    for (int64_t c = 0; c < v->channels; c++) {
        double sum = 0, product = 0;
        for (int64_t i = 0; i < v->slices; i++) {
            sum += (double)table[2 * i * v->channels + c];
            product += (double)table[(2 * i + 1) * v->channels + c];
        }
        double rstd = (double)norm_rstd_at(a, 1, c), scale = (double)coef[v->channels + c];
        product *= rstd;
        dbeta[c] = (float)sum;
        dgamma[c] = (float)product;
        coef[3 * v->channels + c] = (float)(scale * sum / (double)v->count);
        coef[4 * v->channels + c] = (float)(scale * rstd * product / (double)v->count);
    }
}

static void constants_group(
    const struct norm_view *v, const struct kernel_args *a, const float *table, float *coef)
{
    int64_t each = v->channels / v->groups;
    for (int64_t r = 0; r < v->results; r++) {
        int64_t n = r / v->groups, first = r % v->groups * each;
        const float *sums = table + 2 * n * v->channels;
        float *row = coef + n * ROWS * v->channels;
        double rstd = (double)norm_rstd_at(a, 1, r), sum = 0, product = 0;
        for (int64_t c = first; c < first + each; c++) {
            double scale = (double)row[v->channels + c]; /* rstd gamma */
            sum += scale * (double)sums[c];
            product += scale * (double)sums[v->channels + c];
        }
        for (int64_t c = first; c < first + each; c++) {
            row[3 * v->channels + c] = (float)(sum / (double)v->count);
            row[4 * v->channels + c] = (float)(rstd * rstd * product / (double)v->count);
        }
    }
    float *dgamma = a->out[1].data, *dbeta = a->out[2].data;
    for (int64_t c = 0; c < v->channels; c++) {
        double sum = 0, product = 0;
        for (int64_t n = 0; n < v->n; n++) {
            double rstd = (double)norm_rstd_at(a, 1, n * v->groups + c / each);
            sum += (double)table[2 * n * v->channels + c];
            product += rstd * (double)table[(2 * n + 1) * v->channels + c];
        }
        dbeta[c] = (float)sum;
        dgamma[c] = (float)product;
    }
}

static void
channels_grad(const struct norm_view *v, const struct kernel_args *a, const struct grad *p)
{
    enum dtype type = a->in[1].dtype;
    float *coef = a->workspace, *table = coef + norm_coefs_bytes(v, ROWS) / 4;
    struct norm_coefs c;
    norm_coefs_fill(v, a, 1, coef, ROWS, &c);
#pragma omp parallel for schedule(static) if (norm_parallel(v))
    for (int64_t i = 0; i < v->slices * v->b; i++)
        slice_sums(v, p, type, &c, i / v->b, i % v->b, table);
    if (v->groups)
        constants_group(v, a, table, coef);
    else
        constants_batch(v, a, table, coef);
    dx_all(v, p, type, &c);
}

/* ---- layer and rms norm: rows; dgamma and dbeta by slices of rows ---- */

static int64_t layer_slices(const struct norm_view *v)
{
    int64_t work = v->n * v->s / NORM_SLICE_LEAST + 1;
    return norm_least(norm_least(work, NORM_SLICES_MAX), v->n);
}

struct layer {
    const struct tensor *gamma, *beta;
    float mean, rstd;
};

/* Adds the row's part to dgamma and dbeta (sum, sum + s) and gives sums of g and g (x - mean). */
VEC_FN void layer_sums(
    const struct norm_view *v, const struct grad *p, enum dtype t, enum dtype td, int64_t row,
    const struct layer *l, float *sum, float *g_sum, float *gx_sum)
{
    vf m = vset(l->mean), r = vset(l->rstd), a = vset(0), b = vset(0);
    for (int64_t i = 0; i < v->s; i += VL) {
        int n = (int)norm_least(VL, v->s - i);
        vf gamma = l->gamma ? vload_n(l->gamma->data, l->gamma->dtype, i, n) : vset(1);
        vf beta = l->beta ? vload_n(l->beta->data, l->beta->dtype, i, n) : vset(0);
        vf x = some(p->x, t, row * v->s + i, n);
        vf dy = dy_at(p, t, td, p->relu, row * v->s + i, n, x, m, r * gamma, beta);
        vf d = x - m, g = dy * gamma;
        vf db = some(sum, DT_F32, i, n) + dy, dg = some(sum, DT_F32, v->s + i, n) + dy * (d * r);
        put(sum, DT_F32, i, n, db);
        put(sum, DT_F32, v->s + i, n, dg);
        a = a + g;
        b = b + g * d;
    }
    *g_sum = vsum(a);
    *gx_sum = vsum(b);
}

VEC_FN void layer_dx(
    const struct norm_view *v, const struct grad *p, enum dtype t, enum dtype td, int64_t row,
    const struct layer *l, float k1, float k2)
{
    for (int64_t i = 0; i < v->s; i += VL) {
        int n = (int)norm_least(VL, v->s - i);
        vf gamma = l->gamma ? vload_n(l->gamma->data, l->gamma->dtype, i, n) : vset(1);
        vf beta = l->beta ? vload_n(l->beta->data, l->beta->dtype, i, n) : vset(0);
        vf c[5] = {vset(l->mean), l->rstd * gamma, beta, vset(k1), vset(k2)};
        dx_vector(p, t, td, p->relu, row * v->s + i, n, c);
    }
}

static void layer_slice(
    const struct norm_view *v, const struct kernel_args *a, const struct grad *p, int64_t i,
    int64_t slices, float *sum)
{
    struct layer l = {
        arg_present(a, 4) ? &a->in[4] : NULL, arg_present(a, 5) ? &a->in[5] : NULL, 0, 0};
    bool rms = a->attr->norm.kind == NORM_RMS; /* no mean to go through */
    memset(sum, 0, (size_t)v->s * 8);
    for (int64_t row = v->n * i / slices; row < v->n * (i + 1) / slices; row++) {
        float g = 0, gx = 0;
        l.mean = norm_mean_at(a, 1, row);
        l.rstd = norm_rstd_at(a, 1, row);
        TYPES_CONST(a->in[1].dtype, p->dy_type, layer_sums(v, p, T, TD, row, &l, sum, &g, &gx));
        float k1 = rms ? 0 : l.rstd * (g / (float)v->s),
              k2 = l.rstd * l.rstd * l.rstd * (gx / (float)v->s);
        TYPES_CONST(a->in[1].dtype, p->dy_type, layer_dx(v, p, T, TD, row, &l, k1, k2));
    }
}

static void layer_grad(const struct norm_view *v, const struct kernel_args *a, const struct grad *p)
{
    int64_t slices = layer_slices(v);
    float *table = a->workspace, *dgamma = a->out[1].data, *dbeta = a->out[2].data;
#pragma omp parallel for schedule(static) if (norm_parallel(v))
    for (int64_t i = 0; i < slices; i++)
        layer_slice(v, a, p, i, slices, table + 2 * i * v->s);
    for (int64_t j = 0; j < v->s; j++) {
        double sum = 0, product = 0;
        for (int64_t i = 0; i < slices; i++) {
            sum += (double)table[2 * i * v->s + j];
            product += (double)table[(2 * i + 1) * v->s + j];
        }
        dbeta[j] = (float)sum;
        dgamma[j] = (float)product;
    }
}

static enum status
grad_prepare(const struct kernel_args *a, int64_t *workspace_bytes, void **state, struct err *e)
{
    (void)state;
    (void)e;
    struct norm_view v = norm_view_of(&a->attr->norm, &a->in[1]);
    if (norm_by_rows(a->attr->norm.kind))
        *workspace_bytes = layer_slices(&v) * v.s * 2 * 4;
    else
        *workspace_bytes = norm_coefs_bytes(&v, ROWS) + v.slices * v.channels * 2 * 4;
    return ST_OK;
}

static enum status grad_run(const struct kernel_args *a, struct err *e)
{
    (void)e;
    struct norm_view v = norm_view_of(&a->attr->norm, &a->in[1]);
    struct grad p = {
        a->in[0].data, a->in[1].data, a->out[0].data, a->in[0].dtype,
        a->attr->norm.act == ACT_RELU};
    if (norm_by_rows(a->attr->norm.kind))
        layer_grad(&v, a, &p);
    else
        channels_grad(&v, a, &p);
    return ST_OK;
}

const struct kernel KERNEL(norm_grad) = {grad_prepare, grad_run, NULL, "norm gradient: two passes"};
