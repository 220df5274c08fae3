/* prelu.c - PRELU: x where positive, w x elsewhere, one w or one per channel; and its gradients.
 *
 * The gradient of w is summed over slices of places as the norms do (norm.h), in order.
 */
#include "backends/cpu/norm.h"

static struct norm_view view_of(const struct tensor *x)
{
    struct norm_attr a = {.kind = NORM_BATCH};
    if (x->shape.rank >= 2)
        return norm_view_of(&a, x);
    struct tensor line = *x; /* no channels: one */
    line.shape = SHAPE(1, 1, tensor_count(x));
    return norm_view_of(&a, &line);
}

struct prelu {
    const void *dy, *x; /* dy: gradient only */
    void *out;
    float *sum; /* of a slice, per channel; gradient only */
    const struct tensor *w;
};

/* n lanes of the element `at`; w_at: channel of the first lane, lanes share it when `one`. */
VEC_FN void
prelu_vector(const struct prelu *p, enum dtype t, int64_t at, int n, bool one, int64_t channel)
{
    int64_t w_at = tensor_count(p->w) == 1 ? 0 : channel;
    bool same = one || tensor_count(p->w) == 1;
    vf w = same ? vset(fload(p->w->data, p->w->dtype, w_at))
                : vload_n(p->w->data, p->w->dtype, w_at, n);
    vf x = n == VL ? vload(p->x, t, at) : vload_n(p->x, t, at, n);
    vf g = !p->dy ? x : n == VL ? vload(p->dy, t, at) : vload_n(p->dy, t, at, n);
    vi positive = x > vset(0);
    vf y = vsel(positive, g, w * g);
    if (n == VL)
        vstore(p->out, t, at, y);
    else
        vstore_n(p->out, t, at, n, y);
    if (!p->sum)
        return;
    vf part = (vf)((vi)(x * g) & ~positive);
    if (one) {
        p->sum[channel] += vsum(part);
    } else {
        vf sum =
            (n == VL ? vload(p->sum, DT_F32, channel) : vload_n(p->sum, DT_F32, channel, n)) + part;
        if (n == VL)
            vstore(p->sum, DT_F32, channel, sum);
        else
            vstore_n(p->sum, DT_F32, channel, n, sum);
    }
}

VEC_FN void prelu_piece(
    const struct norm_view *v, const struct prelu *p, enum dtype t, int64_t at, int64_t places,
    int64_t channel)
{
    if (v->k == 1) {
        for (int64_t i = 0; i < places; i += VL)
            prelu_vector(p, t, at + i, (int)norm_least(VL, places - i), true, channel);
        return;
    }
    for (int64_t i = 0; i < places; i++)
        for (int64_t j = 0; j < v->k; j += VL)
            prelu_vector(
                p, t, at + i * v->k + j, (int)norm_least(VL, v->k - j), false, channel + j);
}

static void
prelu_slice(const struct norm_view *v, const struct prelu *p, enum dtype type, int64_t i, int64_t b)
{
    NORM_EACH_PIECE(
        v, i, b, at, places, DTYPE_CONST(type, T, prelu_piece(v, p, T, at, places, b * v->k)));
}

static void
prelu_all(const struct norm_view *v, const struct prelu *p, enum dtype type, float *table)
{
#pragma omp parallel for schedule(static) if (norm_parallel(v))
    for (int64_t task = 0; task < v->slices * v->b; task++) {
        struct prelu own = *p;
        int64_t i = task / v->b, b = task % v->b;
        if (table) {
            own.sum = table + i * v->channels;
            memset(own.sum + b * v->k, 0, (size_t)v->k * 4);
        }
        prelu_slice(v, &own, type, i, b);
    }
}

static enum status prelu_run(const struct kernel_args *a, struct err *e)
{
    (void)e;
    struct norm_view v = view_of(&a->in[0]);
    struct prelu p = {.x = a->in[0].data, .out = a->out[0].data, .w = &a->in[1]};
    prelu_all(&v, &p, a->in[0].dtype, NULL);
    return ST_OK;
}

static enum status
grad_prepare(const struct kernel_args *a, int64_t *workspace_bytes, void **state, struct err *e)
{
    (void)state;
    (void)e;
    struct norm_view v = view_of(&a->in[1]);
    *workspace_bytes = v.slices * v.channels * 4;
    return ST_OK;
}

static enum status grad_run(const struct kernel_args *a, struct err *e)
{
    (void)e;
    struct norm_view v = view_of(&a->in[1]);
    float *table = a->workspace;
    struct prelu p = {a->in[0].data, a->in[1].data, a->out[0].data, NULL, &a->in[2]};
    prelu_all(&v, &p, a->in[1].dtype, table);
    struct tensor *dw = &a->out[1];
    double all = 0;
    for (int64_t c = 0; c < v.channels; c++) {
        double sum = 0;
        for (int64_t i = 0; i < v.slices; i++)
            sum += (double)table[i * v.channels + c];
        all += sum;
        if (tensor_count(dw) != 1)
            dtype_store(dw->data, dw->dtype, c, sum);
    }
    if (tensor_count(dw) == 1)
        dtype_store(dw->data, dw->dtype, 0, all);
    return ST_OK;
}

const struct kernel KERNEL(prelu) = {NULL, prelu_run, NULL, "prelu"};
const struct kernel KERNEL(prelu_grad) = {grad_prepare, grad_run, NULL, "prelu gradient"};
