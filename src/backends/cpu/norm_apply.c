/* norm_apply.c - NORM_APPLY: y = act(norm(x) [+ residual]).
 *
 * With fused parts the result is rounded to y's type where the unfused operators would store, so
 * that fused and unfused programs give the same bits.
 */
#include "backends/cpu/norm.h"

enum { PLACES = 256 }; /* of one task */

void norm_coefs_fill(
    const struct norm_view *v, const struct kernel_args *a, int first, float *room, int rows,
    struct norm_coefs *c)
{
    const struct tensor *gamma = arg_present(a, first + 3) ? &a->in[first + 3] : NULL;
    const struct tensor *beta = arg_present(a, first + 4) ? &a->in[first + 4] : NULL;
    int64_t each = v->groups ? v->channels / v->groups : 1;
    c->image = v->groups ? v->channels * rows : 0;
    c->mean = room;
    c->scale = room + v->channels;
    c->shift = room + 2 * v->channels;
    for (int64_t n = 0; n < norm_coef_images(v); n++)
        for (int64_t i = 0; i < v->channels; i++) {
            int64_t r = v->groups ? n * v->groups + i / each : i, to = n * c->image + i;
            float rstd = norm_rstd_at(a, first, r);
            c->mean[to] = norm_mean_at(a, first, r);
            c->scale[to] = gamma ? rstd * fload(gamma->data, gamma->dtype, i) : rstd;
            c->shift[to] = beta ? fload(beta->data, beta->dtype, i) : 0;
        }
}

struct apply {
    const void *x, *residual;
    void *y;
    enum dtype residual_type;
    bool relu;
};

/* What follows the norm; constants in every kernel, so that no vector asks. */
struct form {
    bool add, relu;
    enum dtype residual_type;
};
#define FORM_CONST(p, t, F, ...)                                                                   \
    do {                                                                                           \
        if (!(p)->residual && !(p)->relu) {                                                        \
            const struct form F = {false, false, DT_F32};                                          \
            __VA_ARGS__;                                                                           \
        } else if (!(p)->residual) {                                                               \
            const struct form F = {false, true, DT_F32};                                           \
            __VA_ARGS__;                                                                           \
        } else if ((p)->residual_type == (t) && (p)->relu) {                                       \
            const struct form F = {true, true, t};                                                 \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            const struct form F = {true, (p)->relu, (p)->residual_type};                           \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

/* A ReLU before the rounding of the store gives what it gives after it. */
VEC_FN vf finish(const struct apply *p, struct form f, enum dtype t, int64_t at, int n, vf y)
{
    if (f.add) {
        y = vround_to(y, t);
        y = y + (n == VL ? vload(p->residual, f.residual_type, at)
                         : vload_n(p->residual, f.residual_type, at, n));
    }
    return f.relu ? vrelu(y) : y;
}

VEC_FN void apply_vector(
    const struct apply *p, struct form f, enum dtype t, int64_t at, int n, vf mean, vf scale,
    vf shift)
{
    vf x = n == VL ? vload(p->x, t, at) : vload_n(p->x, t, at, n);
    vf y = finish(p, f, t, at, n, norm_value(x, mean, scale, shift));
    if (n == VL)
        vstore(p->y, t, at, y);
    else
        vstore_n(p->y, t, at, n, y);
}

/* One channel's run of `length` elements. */
VEC_FN void apply_run(
    const struct apply *p, struct form f, enum dtype t, int64_t at, int64_t length, float mean,
    float scale, float shift)
{
    vf m = vset(mean), s = vset(scale), b = vset(shift);
    int64_t i = 0;
    for (; i + VL <= length; i += VL)
        apply_vector(p, f, t, at + i, VL, m, s, b);
    if (i < length)
        apply_vector(p, f, t, at + i, (int)(length - i), m, s, b);
}

/* `places` rows of k channels; coefficient rows begin at the first of them. */
VEC_FN void apply_rows(
    const struct apply *p, struct form f, enum dtype t, int64_t at, int64_t k, int64_t places,
    const float *mean, const float *scale, const float *shift)
{
    int64_t c = 0;
    if (k == 16) { /* blocked: the coefficients stay in registers */
        for (; c + VL <= k; c += VL) {
            vf m = vload(mean, DT_F32, c), s = vload(scale, DT_F32, c), b = vload(shift, DT_F32, c);
            for (int64_t i = 0; i < places; i++)
                apply_vector(p, f, t, at + i * k + c, VL, m, s, b);
        }
        return;
    }
    for (int64_t i = 0; i < places; i++) {
        for (c = 0; c + VL <= k; c += VL)
            apply_vector(
                p, f, t, at + i * k + c, VL, vload(mean, DT_F32, c), vload(scale, DT_F32, c),
                vload(shift, DT_F32, c));
        int n = (int)(k - c);
        if (n > 0)
            apply_vector(
                p, f, t, at + i * k + c, n, vload_n(mean, DT_F32, c, n),
                vload_n(scale, DT_F32, c, n), vload_n(shift, DT_F32, c, n));
    }
}

static void channels_run(
    const struct norm_view *v, const struct apply *p, enum dtype type, const struct norm_coefs *c)
{
    int64_t parts = v->k == 1 ? 1 : (v->s + PLACES - 1) / PLACES;
    const struct apply q = *p; /* stores cannot change a copy: its members stay in registers */
#pragma omp parallel for schedule(static) firstprivate(q) if (norm_parallel(v))
    for (int64_t task = 0; task < v->n * v->b * parts; task++) {
        int64_t i = task / parts, from = task % parts * PLACES;
        int64_t row = i / v->b * c->image + i % v->b * v->k, at = (i * v->s + from) * v->k;
        const float *m = c->mean + row, *s = c->scale + row, *b = c->shift + row;
        int64_t places = norm_least(PLACES, v->s - from);
        if (v->k == 1)
            DTYPE_CONST(type, T, FORM_CONST(&q, T, F, apply_run(&q, F, T, at, v->s, *m, *s, *b)));
        else
            DTYPE_CONST(
                type, T, FORM_CONST(&q, T, F, apply_rows(&q, F, T, at, v->k, places, m, s, b)));
    }
}

/* Layer norm: a row has its own statistics, an element its own gamma and beta. */
VEC_FN void layer_row(
    const struct norm_view *v, const struct kernel_args *a, const struct apply *p, enum dtype t,
    int64_t row)
{
    const struct tensor *gamma = arg_present(a, 3) ? &a->in[3] : NULL;
    const struct tensor *beta = arg_present(a, 4) ? &a->in[4] : NULL;
    const struct form f = {p->residual != NULL, p->relu, p->residual_type};
    vf m = vset(norm_mean_at(a, 0, row)), r = vset(norm_rstd_at(a, 0, row));
    for (int64_t i = 0; i < v->s; i += VL) {
        int n = (int)norm_least(VL, v->s - i);
        vf s = gamma ? r * vload_n(gamma->data, gamma->dtype, i, n) : r;
        vf b = beta ? vload_n(beta->data, beta->dtype, i, n) : vset(0);
        apply_vector(p, f, t, row * v->s + i, n, m, s, b);
    }
}

static enum status
apply_prepare(const struct kernel_args *a, int64_t *workspace_bytes, void **state, struct err *e)
{
    (void)state;
    (void)e;
    struct norm_view v = norm_view_of(&a->attr->norm, &a->in[0]);
    *workspace_bytes = norm_by_rows(a->attr->norm.kind) ? 0 : norm_coefs_bytes(&v, 3);
    return ST_OK;
}

static enum status apply_run_all(const struct kernel_args *a, struct err *e)
{
    (void)e;
    const struct tensor *x = &a->in[0];
    struct norm_view v = norm_view_of(&a->attr->norm, x);
    struct apply p = {.x = x->data, .y = a->out[0].data, .relu = a->attr->norm.act == ACT_RELU};
    if (arg_present(a, 5)) {
        p.residual = a->in[5].data;
        p.residual_type = a->in[5].dtype;
    }
    if (norm_by_rows(a->attr->norm.kind)) {
#pragma omp parallel for schedule(static) if (norm_parallel(&v))
        for (int64_t r = 0; r < v.n; r++)
            DTYPE_CONST(x->dtype, T, layer_row(&v, a, &p, T, r));
        return ST_OK;
    }
    struct norm_coefs c;
    norm_coefs_fill(&v, a, 0, a->workspace, 3, &c);
    channels_run(&v, &p, x->dtype, &c);
    return ST_OK;
}

const struct kernel KERNEL(norm_apply) = {
    apply_prepare, apply_run_all, NULL, "norm apply: one expression"};
