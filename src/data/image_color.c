/* image_color.c - brightness, contrast, saturation, hue, sharpness and the histogram operations. */
#include "data/image_ops.h"

#include <math.h>
#include <string.h>

static uint8_t clip(int v)
{
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

/* a + alpha (b - a) in float32: Image.blend. Inside 0..1 it cannot leave the byte's range. */
static uint8_t blend(int a, int b, float alpha)
{
    float v = (float)a + alpha * (float)(b - a);
    if (v <= 0.0F)
        return 0;
    return v >= 255.0F ? 255 : (uint8_t)v;
}

/* ITU-R 601 with 16 binary places: convert("L"). */
static uint8_t luma(const uint8_t *p)
{
    return (uint8_t)((p[0] * 19595 + p[1] * 38470 + p[2] * 7471 + 0x8000) >> 16);
}

void image_brightness(struct image *im, double factor)
{
    size_t n = image_bytes(im);
    for (size_t i = 0; i < n; i++)
        im->px[i] = blend(0, im->px[i], (float)factor);
}

void image_contrast(struct image *im, double factor)
{
    size_t n = image_bytes(im), c = (size_t)im->c;
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i += c)
        sum += c == 3 ? luma(im->px + i) : im->px[i];
    int mean = (int)((double)sum / (double)(n / c) + 0.5);
    for (size_t i = 0; i < n; i++)
        im->px[i] = blend(mean, im->px[i], (float)factor);
}

void image_saturation(struct image *im, double factor)
{
    size_t n = image_bytes(im);
    if (im->c != 3)
        return; /* grey blended with itself */
    for (size_t i = 0; i < n; i += 3) {
        int grey = luma(im->px + i);
        for (size_t k = 0; k < 3; k++)
            im->px[i + k] = blend(grey, im->px[i + k], (float)factor);
    }
}

/* Hue, saturation, value as bytes. */
static void to_hsv(const uint8_t *p, uint8_t hsv[3])
{
    int r = p[0], g = p[1], b = p[2];
    int hi = r > g ? r : g, lo = r < g ? r : g;
    hi = hi > b ? hi : b;
    lo = lo < b ? lo : b;
    hsv[0] = hsv[1] = 0;
    hsv[2] = (uint8_t)hi;
    if (hi == lo)
        return;
    float span = (float)(hi - lo), s = span / (float)hi, h;
    float rc = (float)(hi - r) / span, gc = (float)(hi - g) / span, bc = (float)(hi - b) / span;
    if (r == hi)
        h = bc - gc;
    else if (g == hi)
        h = (float)(2.0 + (double)rc - (double)bc);
    else
        h = (float)(4.0 + (double)gc - (double)rc);
    h = (float)fmod((double)h / 6.0 + 1.0, 1.0);
    hsv[0] = clip((int)((double)h * 255.0));
    hsv[1] = clip((int)((double)s * 255.0));
}

static void from_hsv(const uint8_t hsv[3], uint8_t *out)
{
    int h = hsv[0], s = hsv[1], v = hsv[2];
    if (s == 0) {
        memset(out, v, 3);
        return;
    }
    int i = (int)floor((double)h * 6.0 / 255.0);
    float f = (float)((double)h * 6.0 / 255.0 - (double)i), fs = (float)(s / 255.0);
    uint8_t p = clip((int)round(v * (1.0 - (double)fs)));
    uint8_t q = clip((int)round(v * (1.0 - (double)(fs * f))));
    uint8_t t = clip((int)round(v * (1.0 - (double)fs * (1.0 - (double)f))));
    uint8_t u = (uint8_t)v;
    const uint8_t rgb[6][3] = {{u, t, p}, {q, u, p}, {p, u, t}, {p, q, u}, {t, p, u}, {u, p, q}};
    memcpy(out, rgb[i % 6], 3);
}

void image_hue(struct image *im, double factor)
{
    size_t n = image_bytes(im);
    uint8_t turn = (uint8_t)(int)(factor * 255);
    if (im->c != 3)
        return;
    for (size_t i = 0; i < n; i += 3) {
        uint8_t hsv[3];
        to_hsv(im->px + i, hsv);
        hsv[0] = (uint8_t)(hsv[0] + turn);
        from_hsv(hsv, im->px + i);
    }
}

/* 3 x 3 mean with weight 5 in the middle, over 13; the border stays: ImageFilter.SMOOTH. */
static void smooth(const struct image *im, struct image *out)
{
    size_t c = (size_t)im->c, row = (size_t)im->w * c;
    const float side = (float)(1.0 / 13), middle = (float)(5.0 / 13);
    memcpy(out->px, im->px, image_bytes(im));
    for (int y = 1; y + 1 < im->h; y++) {
        for (size_t x = c; x + c < row; x++) {
            const uint8_t *p = im->px + (size_t)y * row + x;
            float sum = 0.5F;
            for (int dy = 1; dy >= -1; dy--) {
                const uint8_t *q = dy == 1 ? p + row : dy == 0 ? p : p - row;
                float centre = dy == 0 ? middle : side;
                sum += (float)*(q - c) * side + (float)*q * centre + (float)q[c] * side;
            }
            out->px[(size_t)y * row + x] = clip((int)sum);
        }
    }
}

enum status image_sharpness(struct image *im, double factor, struct image *work, struct err *e)
{
    size_t n = image_bytes(im);
    TRY(image_reserve(work, im->w, im->h, im->c, e));
    smooth(im, work);
    for (size_t i = 0; i < n; i++)
        im->px[i] = blend(work->px[i], im->px[i], (float)factor);
    return ST_OK;
}

void image_posterize(struct image *im, int bits)
{
    size_t n = image_bytes(im);
    int kept = bits < 0 ? 0 : bits > 8 ? 8 : bits;
    uint8_t mask = (uint8_t)(0xff << (8 - kept));
    for (size_t i = 0; i < n; i++)
        im->px[i] &= mask;
}

void image_solarize(struct image *im, double threshold)
{
    size_t n = image_bytes(im);
    for (size_t i = 0; i < n; i++)
        if (im->px[i] >= threshold)
            im->px[i] = (uint8_t)(255 - im->px[i]);
}

static void histogram(const struct image *im, int channel, int64_t h[256])
{
    size_t n = image_bytes(im);
    memset(h, 0, 256 * sizeof *h);
    for (size_t i = (size_t)channel; i < n; i += (size_t)im->c)
        h[im->px[i]]++;
}

static void apply_table(struct image *im, int channel, const uint8_t table[256])
{
    size_t n = image_bytes(im);
    for (size_t i = (size_t)channel; i < n; i += (size_t)im->c)
        im->px[i] = table[im->px[i]];
}

/* Darkest value to 0, lightest to 255. */
static void stretch(const int64_t h[256], uint8_t table[256])
{
    int lo = 0, hi = 255;
    while (lo < 255 && !h[lo])
        lo++;
    while (hi > 0 && !h[hi])
        hi--;
    double scale = hi > lo ? 255.0 / (hi - lo) : 1.0, offset = hi > lo ? -lo * scale : 0.0;
    for (int i = 0; i < 256; i++)
        table[i] = clip((int)(i * scale + offset));
}

void image_autocontrast(struct image *im)
{
    int64_t h[256];
    uint8_t table[256];
    for (int c = 0; c < im->c; c++) {
        histogram(im, c, h);
        stretch(h, table);
        apply_table(im, c, table);
    }
}

/* Cumulative counts over a step of 1/255 of all pixels but the lightest value's. */
static void flatten(const int64_t h[256], uint8_t table[256])
{
    int64_t all = 0, last = 0;
    for (int i = 0; i < 256; i++) {
        all += h[i];
        last = h[i] ? h[i] : last;
    }
    int64_t step = (all - last) / 255, sum = step / 2;
    for (int i = 0; i < 256; i++) {
        int64_t v = step ? sum / step : i;
        table[i] = (uint8_t)(v > 255 ? 255 : v);
        sum += h[i];
    }
}

void image_equalize(struct image *im)
{
    int64_t h[256];
    uint8_t table[256];
    for (int c = 0; c < im->c; c++) {
        histogram(im, c, h);
        flatten(h, table);
        apply_table(im, c, table);
    }
}
