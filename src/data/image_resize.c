/* image_resize.c - resizing in two passes with fixed-point weights.
 *
 * Output pixel i of n, from N: its centre is c = (i + 1/2) N/n. Each input pixel j within the
 * filter's support of c weighs f((j + 1/2 - c) / s), s = max(N/n, 1), normalised to 1. Weights are
 * rounded to 22 binary places and the sum of each pass to a byte.
 */
#include "data/image_ops.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { PLACES = 22 };

static double bilinear(double x)
{
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

static double bicubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0)
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    if (x < 2.0)
        return (((x - 5) * x + 8) * x - 4) * a;
    return 0.0;
}

static double support_of(int from, int to, enum image_filter filter)
{
    double scale = (double)from / to;
    return (filter == FILTER_BICUBIC ? 2.0 : 1.0) * (scale < 1.0 ? 1.0 : scale);
}

/* Most weights one output pixel has. */
static size_t taps(int from, int to, enum image_filter filter)
{
    return (size_t)ceil(support_of(from, to, filter)) * 2 + 1;
}

/* What an axis needs: numbers in weights and bounds. Nearest keeps a source index per pixel. */
static size_t axis_weights(int from, int to, enum image_filter filter)
{
    return filter == FILTER_NEAREST ? 0 : taps(from, to, filter) * (size_t)to;
}

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

struct resize_need
resize_memory_need(int w, int h, int c, int out_w, int out_h, enum image_filter filter)
{
    size_t longer = most((size_t)out_w, (size_t)out_h);
    struct resize_need n = {0};
    if (w == out_w && h == out_h)
        return n; /* a copy */
    n = (struct resize_need){
        .weights_n = most(axis_weights(w, out_w, filter), axis_weights(h, out_h, filter)),
        .bounds_n = filter == FILTER_NEAREST ? (size_t)out_w : 2 * longer,
        .middle_bytes =
            filter == FILTER_NEAREST ? 0 : size_mul(size_mul((size_t)out_w, (size_t)h), (size_t)c),
    };
    return n;
}

size_t resize_memory_bytes(const struct resize_memory *m)
{
    return m->weights_n * sizeof(int32_t) + m->bounds_n * sizeof(int) + m->middle.cap_bytes;
}

void resize_memory_release(struct resize_memory *m)
{
    image_release(&m->middle);
    mem_free(m->weights);
    mem_free(m->bounds);
    *m = (struct resize_memory){0};
}

static bool grow(void **block, size_t *have, size_t n, size_t item)
{
    if (n <= *have)
        return true;
    mem_free(*block);
    *block = mem_try_alloc(size_mul(n, item));
    *have = *block ? n : 0;
    return *block != NULL;
}

enum status resize_memory_grow(struct resize_memory *m, struct resize_need n, struct err *e)
{
    void *weights = m->weights, *bounds = m->bounds;
    bool ok = grow(&weights, &m->weights_n, n.weights_n, sizeof *m->weights);
    m->weights = weights;
    ok = grow(&bounds, &m->bounds_n, n.bounds_n, sizeof *m->bounds) && ok;
    m->bounds = bounds;
    if (!ok)
        return err_set(e, ST_OOM, "no host memory to resize images");
    if (n.middle_bytes > INT32_MAX)
        return err_set(e, ST_OOM, "an image is too large to resize");
    return n.middle_bytes ? image_reserve(&m->middle, (int)n.middle_bytes, 1, 1, e) : ST_OK;
}

/* Weights of one axis: bounds[2i] is the first input pixel of output i, bounds[2i+1] how many. */
static void axis_prepare(int from, int to, enum image_filter filter, struct resize_memory *m)
{
    double scale = (double)from / to, support = support_of(from, to, filter);
    double shrink = 1.0 / (scale < 1.0 ? 1.0 : scale);
    double (*f)(double) = filter == FILTER_BICUBIC ? bicubic : bilinear;
    size_t k = taps(from, to, filter);
    for (int i = 0; i < to; i++) {
        double centre = (i + 0.5) * scale, sum = 0;
        int first = (int)(centre - support + 0.5), last = (int)(centre + support + 0.5);
        first = first < 0 ? 0 : first;
        last = last > from ? from : last;
        int32_t *out = m->weights + (size_t)i * k;
        for (int j = first; j < last; j++)
            sum += f((j - centre + 0.5) * shrink);
        for (int j = first; j < last; j++) {
            double w = f((j - centre + 0.5) * shrink);
            w = (sum != 0.0 ? w / sum : w) * (1 << PLACES);
            out[j - first] = (int32_t)(w < 0 ? -0.5 + w : 0.5 + w);
        }
        m->bounds[2 * i] = first;
        m->bounds[2 * i + 1] = last - first;
    }
}

static uint8_t to_byte(int32_t sum)
{
    int32_t v = sum >> PLACES;
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

static void pass_horizontal(
    const struct image *in, int out_w, enum image_filter filter, const struct resize_memory *m,
    struct image *out)
{
    size_t k = taps(in->w, out_w, filter), c = (size_t)in->c;
    for (int y = 0; y < in->h; y++) {
        const uint8_t *row = in->px + (size_t)y * (size_t)in->w * c;
        uint8_t *to = out->px + (size_t)y * (size_t)out_w * c;
        for (int x = 0; x < out_w; x++) {
            const int32_t *w = m->weights + (size_t)x * k;
            const uint8_t *p = row + (size_t)m->bounds[2 * x] * c;
            int n = m->bounds[2 * x + 1];
            for (size_t ch = 0; ch < c; ch++) {
                int32_t sum = 1 << (PLACES - 1);
                for (int j = 0; j < n; j++)
                    sum += p[(size_t)j * c + ch] * w[j];
                *to++ = to_byte(sum);
            }
        }
    }
}

static void pass_vertical(
    const struct image *in, int out_h, enum image_filter filter, const struct resize_memory *m,
    struct image *out)
{
    size_t k = taps(in->h, out_h, filter), row = (size_t)in->w * (size_t)in->c;
    for (int y = 0; y < out_h; y++) {
        const int32_t *w = m->weights + (size_t)y * k;
        const uint8_t *p = in->px + (size_t)m->bounds[2 * y] * row;
        int n = m->bounds[2 * y + 1];
        for (size_t x = 0; x < row; x++) {
            int32_t sum = 1 << (PLACES - 1);
            for (int j = 0; j < n; j++)
                sum += p[(size_t)j * row + x] * w[j];
            out->px[(size_t)y * row + x] = to_byte(sum);
        }
    }
}

/* Nearest: the pixel under the centre, found by steps of the scale. */
static void
resize_nearest(const struct image *in, int w, int h, struct resize_memory *m, struct image *out)
{
    double step_x = (double)in->w / w, step_y = (double)in->h / h, at = step_x * 0.5;
    size_t c = (size_t)in->c;
    for (int x = 0; x < w; x++, at += step_x)
        m->bounds[x] = (int)at < in->w ? (int)at : in->w - 1;
    at = step_y * 0.5;
    for (int y = 0; y < h; y++, at += step_y) {
        int from = (int)at < in->h ? (int)at : in->h - 1;
        const uint8_t *row = in->px + (size_t)from * (size_t)in->w * c;
        uint8_t *to = out->px + (size_t)y * (size_t)w * c;
        for (int x = 0; x < w; x++, to += c)
            memcpy(to, row + (size_t)m->bounds[x] * c, c);
    }
}

enum status image_resize(
    const struct image *in, int out_w, int out_h, enum image_filter filter, struct resize_memory *m,
    struct image *out, struct err *e)
{
    TRY(image_reserve(out, out_w, out_h, in->c, e));
    if (in->w == out_w && in->h == out_h) {
        memcpy(out->px, in->px, image_bytes(in));
        return ST_OK;
    }
    TRY(resize_memory_grow(m, resize_memory_need(in->w, in->h, in->c, out_w, out_h, filter), e));
    if (filter == FILTER_NEAREST) {
        resize_nearest(in, out_w, out_h, m, out);
        return ST_OK;
    }
    m->middle.w = out_w;
    m->middle.h = in->h;
    m->middle.c = in->c;
    axis_prepare(in->w, out_w, filter, m);
    pass_horizontal(in, out_w, filter, m, &m->middle);
    axis_prepare(in->h, out_h, filter, m);
    pass_vertical(&m->middle, out_h, filter, m, out);
    return ST_OK;
}
