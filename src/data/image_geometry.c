/* image_geometry.c - flips, crops, rotations and shears. */
#include "data/image_ops.h"

#include <math.h>
#include <string.h>

void image_flip(struct image *im)
{
    size_t c = (size_t)im->c;
    for (int y = 0; y < im->h; y++) {
        uint8_t *a = im->px + (size_t)y * (size_t)im->w * c, *b = a + ((size_t)im->w - 1) * c;
        for (; a < b; a += c, b -= c) {
            uint8_t t[8];
            memcpy(t, a, c);
            memcpy(a, b, c);
            memcpy(b, t, c);
        }
    }
}

int image_pad_source(int i, int n, enum image_pad mode)
{
    if (i >= 0 && i < n)
        return i;
    if (mode == PAD_CONSTANT)
        return -1;
    if (mode == PAD_EDGE)
        return i < 0 ? 0 : n - 1;
    /* reflect: period 2n-2, the edge not repeated; symmetric: period 2n */
    int period = mode == PAD_REFLECT ? 2 * n - 2 : 2 * n;
    if (period == 0)
        return 0;
    int k = i % period;
    k = k < 0 ? k + period : k;
    if (k < n)
        return k;
    return mode == PAD_REFLECT ? period - k : period - 1 - k;
}

enum status image_crop(
    const struct image *in, int x, int y, int size, int padding, enum image_pad mode,
    struct image *out, struct err *e)
{
    TRY(image_reserve(out, size, size, in->c, e));
    size_t c = (size_t)in->c;
    uint8_t *to = out->px;
    for (int oy = 0; oy < size; oy++) {
        int from_y = image_pad_source(y + oy - padding, in->h, mode);
        for (int ox = 0; ox < size; ox++, to += c) {
            int from_x = image_pad_source(x + ox - padding, in->w, mode);
            if (from_y < 0 || from_x < 0)
                memset(to, 0, c);
            else
                memcpy(to, in->px + ((size_t)from_y * (size_t)in->w + (size_t)from_x) * c, c);
        }
    }
    return ST_OK;
}

/* A matrix entry with 16 binary places. */
static int64_t fixed(double v)
{
    return (int64_t)floor(v * 65536.0 + 0.5);
}

enum status image_affine(
    const struct image *in, const double m[6], int out_w, int out_h, int fill, struct image *out,
    struct err *e)
{
    TRY(image_reserve(out, out_w, out_h, in->c, e));
    memset(out->px, fill, image_bytes(out));
    size_t c = (size_t)in->c;
    int64_t dxx = fixed(m[0]), dxy = fixed(m[1]), dyx = fixed(m[3]), dyy = fixed(m[4]);
    /* the centre of the first pixel */
    int64_t row_x = fixed(m[2] + m[0] * 0.5 + m[1] * 0.5);
    int64_t row_y = fixed(m[5] + m[3] * 0.5 + m[4] * 0.5);
    uint8_t *to = out->px;
    for (int y = 0; y < out_h; y++, row_x += dxy, row_y += dyy) {
        int64_t fx = row_x, fy = row_y;
        for (int x = 0; x < out_w; x++, fx += dxx, fy += dyx, to += c) {
            int64_t sx = fx >> 16, sy = fy >> 16;
            if (sx >= 0 && sx < in->w && sy >= 0 && sy < in->h)
                memcpy(to, in->px + ((size_t)sy * (size_t)in->w + (size_t)sx) * c, c);
        }
    }
    return ST_OK;
}

/* A quarter turn or half turn moves whole pixels. */
static enum status turn(const struct image *in, int quarters, struct image *out, struct err *e)
{
    bool swap = quarters % 2 != 0;
    TRY(image_reserve(out, swap ? in->h : in->w, swap ? in->w : in->h, in->c, e));
    size_t c = (size_t)in->c;
    uint8_t *to = out->px;
    for (int y = 0; y < out->h; y++) {
        for (int x = 0; x < out->w; x++, to += c) {
            int sx = quarters == 1 ? in->w - 1 - y : quarters == 2 ? in->w - 1 - x : y;
            int sy = quarters == 1 ? x : quarters == 2 ? in->h - 1 - y : in->h - 1 - x;
            if (quarters == 0) {
                sx = x;
                sy = y;
            }
            memcpy(to, in->px + ((size_t)sy * (size_t)in->w + (size_t)sx) * c, c);
        }
    }
    return ST_OK;
}

static double round_15(double v)
{
    return nearbyint(v * 1e15) / 1e15;
}

static void map_point(const double m[6], double x, double y, double *ox, double *oy)
{
    *ox = m[0] * x + m[1] * y + m[2];
    *oy = m[3] * x + m[4] * y + m[5];
}

/* Size of the box around the rotated corners; the matrix is moved to its middle. */
static void expand_box(double m[6], int w, int h, int *out_w, int *out_h)
{
    double lo_x = HUGE_VAL, lo_y = HUGE_VAL, hi_x = -HUGE_VAL, hi_y = -HUGE_VAL;
    for (int i = 0; i < 4; i++) {
        double x, y;
        map_point(m, i & 1 ? w : 0, i & 2 ? h : 0, &x, &y);
        lo_x = fmin(lo_x, x);
        hi_x = fmax(hi_x, x);
        lo_y = fmin(lo_y, y);
        hi_y = fmax(hi_y, y);
    }
    *out_w = (int)(ceil(hi_x) - floor(lo_x));
    *out_h = (int)(ceil(hi_y) - floor(lo_y));
    double x, y;
    map_point(m, -(*out_w - w) / 2.0, -(*out_h - h) / 2.0, &x, &y);
    m[2] = x;
    m[5] = y;
}

enum status image_rotate(
    const struct image *in, double degrees, bool expand, int fill, struct image *out, struct err *e)
{
    double angle = fmod(degrees, 360.0);
    angle = angle < 0 ? angle + 360.0 : angle;
    if (angle == 0 || angle == 180 || ((angle == 90 || angle == 270) && (expand || in->w == in->h)))
        return turn(in, (int)(angle / 90), out, e);
    double a = -angle * 3.14159265358979323846 / 180.0;
    double m[6] = {round_15(cos(a)), round_15(sin(a)), 0, round_15(-sin(a)), round_15(cos(a)), 0};
    double x, y, cx = in->w / 2.0, cy = in->h / 2.0;
    map_point(m, -cx, -cy, &x, &y);
    m[2] = x + cx;
    m[5] = y + cy;
    int w = in->w, h = in->h;
    if (expand)
        expand_box(m, in->w, in->h, &w, &h);
    return image_affine(in, m, w, h, fill, out, e);
}

int image_rotate_side_max(int w, int h)
{
    return (int)ceil(sqrt((double)w * w + (double)h * h)) + 2;
}
