/* pool.c - maximum and average pooling and their gradients, adaptive too, in all layouts.
 *
 * Tensors are seen as [n, b, s, k] (tensor.h): vectors run over k. Gradients gather: an input place
 * sums what the windows over it give, in float32 and in order of the windows, so that one rounding
 * is left and threads need no care.
 */
#include "backends/cpu/args.h"
#include "backends/cpu/vec.h"

/* One spatial axis of a pooling. */
struct axis {
    int64_t in, out, kernel, stride, pad, dilation;
    bool adaptive;
};
/* Taps first .. last (exclusive) of a window lie inside; tap t is at low + t * step. */
struct window {
    int64_t low, step, first, last, width; /* width: taps in a row of places */
    int64_t padded;                        /* taps inside the padded input, for averages */
};

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static struct window window_of(const struct axis *a, int64_t o)
{
    if (a->adaptive) {
        int64_t low = o * a->in / a->out, high = ((o + 1) * a->in + a->out - 1) / a->out;
        return (struct window){low, 1, 0, high - low, high - low, high - low};
    }
    struct window w = {.low = o * a->stride - a->pad, .step = a->dilation, .width = a->kernel};
    if (w.step == 1) { /* the common case, without divisions */
        w.first = w.low < 0 ? -w.low : 0;
        w.last = least(a->kernel, a->in - w.low);
    } else {
        w.first = w.low < 0 ? (-w.low + w.step - 1) / w.step : 0;
        w.last = w.low >= a->in ? 0 : least(a->kernel, (a->in - w.low + w.step - 1) / w.step);
    }
    w.padded = least(w.low + a->kernel, a->in + a->pad) - w.low;
    return w;
}

/* Windows of 2, 2 apart, all inside (ceil mode may pass the edge): the usual halving. As constants
 * they let the compiler unroll the taps. */
static bool halves(const struct axis *a)
{
    return !a->adaptive && a->kernel == 2 && a->stride == 2 && a->pad == 0 && a->dilation == 1 &&
           2 * a->out <= a->in;
}
static inline struct window window_two(int64_t o)
{
    return (struct window){.low = 2 * o, .step = 1, .last = 2, .width = 2, .padded = 2};
}

/* Windows first .. last (exclusive) may cover input place i. */
static void covering(const struct axis *a, int64_t i, int64_t *first, int64_t *last)
{
    if (a->adaptive) {
        *first = most(0, i * a->out / a->in - 1);
        *last = least(a->out, ((i + 1) * a->out + a->in - 1) / a->in + 1);
        return;
    }
    int64_t reach = i + a->pad - a->dilation * (a->kernel - 1);
    *first = reach <= 0 ? 0 : (reach + a->stride - 1) / a->stride;
    *last = least(a->out, (i + a->pad) / a->stride + 1);
}

/* The tap of window w at input place i, or -1. */
static int64_t tap_at(const struct window *w, int64_t i)
{
    int64_t d = i - w->low;
    if (d < 0 || d % w->step)
        return -1;
    d /= w->step;
    return d >= w->first && d < w->last ? d : -1;
}

struct pooling {
    const struct pool_attr *attr;
    struct axis y, x;       /* height and width */
    int64_t images, places; /* n * b, and k */
    enum dtype type, place_type;
};

/* in: the pooled tensor's shape, out: the windows'. */
static struct pooling
pooling_of(const struct pool_attr *a, const struct tensor *in, const struct tensor *out)
{
    struct pooling p = {.attr = a, .type = in->dtype, .place_type = DT_U8};
    struct axis *axes[] = {&p.y, &p.x};
    for (int i = 0; i < 2; i++) {
        struct axis *x = axes[i];
        *x = (struct axis){1, 1, 1, 1, 0, 1, false};
        if (i < 2 - a->spatial)
            continue;
        int d = in->shape.rank - 2 + i;
        *x = (struct axis){in->shape.dim[d], out->shape.dim[d], a->kernel[i], a->stride[i],
                           a->pad[i],        a->dilation[i],    a->adaptive};
        if (x->dilation == 0) /* averages have none */
            x->dilation = 1;
    }
    int64_t c = in->shape.dim[1];
    p.places = in->layout == LAYOUT_ROW ? 1 : in->layout == LAYOUT_CL ? c : 16;
    p.images = p.places ? in->shape.dim[0] * c / p.places : 0;
    return p;
}

/* Unused without OpenMP. */
__attribute__((unused)) static bool parallel_worth(const struct pooling *p)
{
    return p->images * p->places * p->y.in * p->x.in > 16384;
}

VEC_FN vf load_some(const void *p, enum dtype t, int64_t at, int n)
{
    return n == VL ? vload(p, t, at) : vload_n(p, t, at, n);
}
VEC_FN void store_some(void *p, enum dtype t, int64_t at, int n, vf x)
{
    if (n == VL)
        vstore(p, t, at, x);
    else
        vstore_n(p, t, at, n, x);
}

VEC_FN void place_store(void *p, enum dtype t, int64_t at, int n, vi place)
{
    if (t == DT_U8) {
        vb b = __builtin_convertvector(place, vb);
        memcpy((uint8_t *)p + at, &b, n == VL ? sizeof b : (size_t)n);
    } else {
        memcpy((int32_t *)p + at, &place, n == VL ? sizeof place : (size_t)n * 4);
    }
}
VEC_FN vi place_load(const void *p, enum dtype t, int64_t at, int n)
{
    if (t == DT_U8) {
        vb b = {0};
        memcpy(&b, (const uint8_t *)p + at, n == VL ? sizeof b : (size_t)n);
        return __builtin_convertvector(b, vi);
    }
    vi place = {0};
    memcpy(&place, (const int32_t *)p + at, n == VL ? sizeof place : (size_t)n * 4);
    return place;
}

/* ---- maximum ---- */

/* Takes value and its tap where it beats the best so far, or is NaN. */
VEC_FN void take_better(vf value, int32_t tap, vf *best, vi *where)
{
#if VEC_LANES == 16
    __m512 v = (__m512)value;
    __mmask16 m =
        _mm512_cmp_ps_mask(v, (__m512)*best, _CMP_GT_OQ) | _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    *best = (vf)_mm512_mask_mov_ps((__m512)*best, m, v);
    *where = (vi)_mm512_mask_mov_epi32((__m512i)*where, m, _mm512_set1_epi32(tap));
#else
    vi better = (value > *best) | (value != value);
    *best = vsel(better, value, *best);
    *where = (((vi){0} + tap) & better) | (*where & ~better);
#endif
}

/* The window of one output place, n lanes from element `at`. The first largest wins, the last NaN.
 */
VEC_FN vf max_of(
    const struct pooling *p, const struct window *wy, const struct window *wx, const void *x,
    enum dtype t, int64_t at, int n, vi *place)
{
    vf best = vset(-INFINITY);
    vi where = (vi){0} + (int32_t)(wy->first * wx->width + wx->first);
    for (int64_t u = wy->first; u < wy->last; u++)
        for (int64_t v = wx->first; v < wx->last; v++) {
            int64_t s = (wy->low + u * wy->step) * p->x.in + wx->low + v * wx->step;
            vf value = load_some(x, t, at + s * p->places, n);
            take_better(value, (int32_t)(u * wx->width + v), &best, &where);
        }
    *place = where;
    return best;
}

VEC_FN void max_vector(
    const struct pooling *p, const struct window *wy, const struct window *wx, const void *x,
    void *y, void *place, enum dtype t, int64_t from, int64_t to, int n)
{
    vi where;
    vf best = max_of(p, wy, wx, x, t, from, n, &where);
    store_some(y, t, to, n, best);
    place_store(place, p->place_type, to, n, where);
}

VEC_FN void max_row(
    const struct pooling *p, const void *x, void *y, void *place, enum dtype t, int64_t image,
    int64_t row, bool two)
{
    struct window wy = two ? window_two(row) : window_of(&p->y, row);
    int64_t from = image * p->y.in * p->x.in * p->places;
    for (int64_t col = 0; col < p->x.out; col++) {
        struct window wx = two ? window_two(col) : window_of(&p->x, col);
        int64_t to = ((image * p->y.out + row) * p->x.out + col) * p->places;
        for (int64_t k = 0; k < p->places; k += VL) {
            int n = (int)least(VL, p->places - k);
            if (n == VL)
                max_vector(p, &wy, &wx, x, y, place, t, from + k, to + k, VL);
            else
                max_vector(p, &wy, &wx, x, y, place, t, from + k, to + k, n);
        }
    }
}

static enum status max_run(const struct kernel_args *a, struct err *e)
{
    (void)e;
    const struct tensor *x = &a->in[0], *y = &a->out[0];
    struct pooling p = pooling_of(&a->attr->pool, x, y);
    p.place_type = a->out[1].dtype;
    bool two = halves(&p.y) && halves(&p.x);
    void *place = a->out[1].data;
#pragma omp parallel for collapse(2) schedule(static) if (parallel_worth(&p))
    for (int64_t i = 0; i < p.images; i++)
        for (int64_t r = 0; r < p.y.out; r++)
            if (two)
                DTYPE_CONST(p.type, T, max_row(&p, x->data, y->data, place, T, i, r, true));
            else
                DTYPE_CONST(p.type, T, max_row(&p, x->data, y->data, place, T, i, r, false));
    return ST_OK;
}

/* ---- gradients: one row of input places ---- */

VEC_FN float divisor(const struct pooling *p, const struct window *wy, const struct window *wx)
{
    if (p->attr->divisor)
        return (float)p->attr->divisor;
    if (p->attr->exclude_pad || p->attr->adaptive)
        return (float)((wy->last - wy->first) * (wx->last - wx->first));
    return (float)(wy->padded * wx->padded);
}

/* What the windows over place (row, col) give to n lanes from k on. */
VEC_FN vf gathered(
    const struct pooling *p, const void *dy, const void *place, enum dtype t, int64_t image,
    int64_t row, int64_t col, int64_t k, int n)
{
    int64_t r0, r1, c0, c1;
    covering(&p->y, row, &r0, &r1);
    covering(&p->x, col, &c0, &c1);
    vf sum = vset(0);
    for (int64_t r = r0; r < r1; r++) {
        struct window wy = window_of(&p->y, r);
        int64_t u = tap_at(&wy, row);
        if (u < 0)
            continue;
        for (int64_t c = c0; c < c1; c++) {
            struct window wx = window_of(&p->x, c);
            int64_t v = tap_at(&wx, col);
            if (v < 0)
                continue;
            int64_t at = ((image * p->y.out + r) * p->x.out + c) * p->places + k;
            vf g = load_some(dy, t, at, n);
            if (place) {
                vi hit = (place_load(place, p->place_type, at, n) == (int32_t)(u * wx.width + v));
                g = (vf)((vi)g & hit);
            } else {
                g = g / divisor(p, &wy, &wx);
            }
            sum = sum + g;
        }
    }
    return sum;
}

VEC_FN void grad_row(
    const struct pooling *p, const void *dy, const void *place, void *dx, enum dtype t,
    int64_t image, int64_t row)
{
    for (int64_t col = 0; col < p->x.in; col++) {
        int64_t to = ((image * p->y.in + row) * p->x.in + col) * p->places;
        for (int64_t k = 0; k < p->places; k += VL) {
            int n = (int)least(VL, p->places - k);
            store_some(dx, t, to + k, n, gathered(p, dy, place, t, image, row, col, k, n));
        }
    }
}

/* ---- gradients where windows do not overlap: each window writes its own places ---- */

static bool apart(const struct axis *a)
{
    return !a->adaptive && a->dilation == 1 && a->kernel <= a->stride;
}

/* What one window gives its taps, n lanes of dy at `at`: to all of them, or to the winner. */
VEC_FN void apart_vector(
    const struct pooling *p, const struct window *wy, const struct window *wx, const void *dy,
    const void *place, void *dx, enum dtype t, int64_t at, int64_t to, int n, float by)
{
    vf g = load_some(dy, t, at, n);
    vi winner = {0};
    if (place)
        winner = place_load(place, p->place_type, at, n);
    else
        g = g / by;
    for (int64_t u = wy->first; u < wy->last; u++)
        for (int64_t v = wx->first; v < wx->last; v++) {
            int64_t s = (wy->low + u) * p->x.in + wx->low + v;
            vf part = place ? (vf)((vi)g & (winner == (int32_t)(u * wx->width + v))) : g;
            store_some(dx, t, to + s * p->places, n, part);
        }
}

/* The windows of output row r: input rows from its own first to the next window's are its. */
VEC_FN void apart_row(
    const struct pooling *p, const void *dy, const void *place, void *dx, enum dtype t,
    int64_t image, int64_t r, bool two)
{
    struct window wy = two ? window_two(r) : window_of(&p->y, r);
    int64_t top = r ? wy.low : 0, bottom = r + 1 < p->y.out ? wy.low + p->y.stride : p->y.in;
    int64_t from = (image * p->y.in + top) * p->x.in * p->places, bytes = dtype_size(t);
    if (bottom > top &&
        !(p->y.kernel == p->y.stride && p->x.kernel == p->x.stride &&
          wy.last - wy.first == bottom - top && p->x.pad == 0 && p->x.in == p->x.out * p->x.stride))
        memset(
            (char *)dx + from * bytes, 0, (size_t)((bottom - top) * p->x.in * p->places * bytes));
    for (int64_t c = 0; c < p->x.out; c++) {
        struct window wx = two ? window_two(c) : window_of(&p->x, c);
        float by = place ? 1 : divisor(p, &wy, &wx);
        int64_t at = ((image * p->y.out + r) * p->x.out + c) * p->places;
        int64_t to = image * p->y.in * p->x.in * p->places;
        for (int64_t k = 0; k < p->places; k += VL) {
            int n = (int)least(VL, p->places - k);
            if (n == VL)
                apart_vector(p, &wy, &wx, dy, place, dx, t, at + k, to + k, VL, by);
            else
                apart_vector(p, &wy, &wx, dy, place, dx, t, at + k, to + k, n, by);
        }
    }
}

static enum status grad_run(const struct kernel_args *a, struct err *e)
{
    (void)e;
    const struct tensor *dy = &a->in[0], *dx = &a->out[0];
    struct pooling p = pooling_of(&a->attr->pool, dx, dy);
    const void *place = NULL;
    if (a->code == OP_MAX_POOL_GRAD) {
        place = a->in[1].data;
        p.place_type = a->in[1].dtype;
    }
    bool two = halves(&p.y) && halves(&p.x);
    if (apart(&p.y) && apart(&p.x)) {
#pragma omp parallel for collapse(2) schedule(static) if (parallel_worth(&p))
        for (int64_t i = 0; i < p.images; i++)
            for (int64_t r = 0; r < p.y.out; r++)
                if (two)
                    DTYPE_CONST(p.type, T, apart_row(&p, dy->data, place, dx->data, T, i, r, true));
                else
                    DTYPE_CONST(
                        p.type, T, apart_row(&p, dy->data, place, dx->data, T, i, r, false));
        return ST_OK;
    }
#pragma omp parallel for collapse(2) schedule(static) if (parallel_worth(&p))
    for (int64_t i = 0; i < p.images; i++)
        for (int64_t r = 0; r < p.y.in; r++)
            DTYPE_CONST(p.type, T, grad_row(&p, dy->data, place, dx->data, T, i, r));
    return ST_OK;
}

/* ---- average ---- */

VEC_FN void
mean_row(const struct pooling *p, const void *x, void *y, enum dtype t, int64_t image, int64_t row)
{
    struct window wy = window_of(&p->y, row);
    int64_t from = image * p->y.in * p->x.in * p->places;
    for (int64_t col = 0; col < p->x.out; col++) {
        struct window wx = window_of(&p->x, col);
        int64_t to = ((image * p->y.out + row) * p->x.out + col) * p->places;
        bool none = wy.last <= wy.first || wx.last <= wx.first;
        float by = none ? 1 : divisor(p, &wy, &wx);
        for (int64_t k = 0; k < p->places; k += VL) {
            int n = (int)least(VL, p->places - k);
            vf sum = vset(0);
            for (int64_t u = wy.first; u < wy.last; u++)
                for (int64_t v = wx.first; v < wx.last; v++) {
                    int64_t s = (wy.low + u) * p->x.in + wx.low + v;
                    sum = sum + load_some(x, t, from + s * p->places + k, n);
                }
            store_some(y, t, to + k, n, sum / by);
        }
    }
}

static enum status mean_run(const struct kernel_args *a, struct err *e)
{
    (void)e;
    const struct tensor *x = &a->in[0], *y = &a->out[0];
    struct pooling p = pooling_of(&a->attr->pool, x, y);
    p.x.dilation = p.y.dilation = 1;
#pragma omp parallel for collapse(2) schedule(static) if (parallel_worth(&p))
    for (int64_t i = 0; i < p.images; i++)
        for (int64_t r = 0; r < p.y.out; r++)
            DTYPE_CONST(p.type, T, mean_row(&p, x->data, y->data, T, i, r));
    return ST_OK;
}

const struct kernel KERNEL(max_pool) = {NULL, max_run, NULL, "max pool: over channels"};
const struct kernel KERNEL(avg_pool) = {NULL, mean_run, NULL, "average pool: over channels"};
const struct kernel KERNEL(pool_grad) = {NULL, grad_run, NULL, "pool gradient: gathered"};
