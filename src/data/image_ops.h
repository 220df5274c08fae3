/* image_ops.h - operations on 8-bit images, each giving Pillow 9.4's bytes for the same call.
 *
 * Sources: Pillow's documentation of Image.resize, rotate, transform, ImageEnhance, ImageOps; the
 * formulas stand at each function. Images have 1 or 3 channels; in and out are different images.
 */
#ifndef DATA_IMAGE_OPS_H
#define DATA_IMAGE_OPS_H

#include "data/image.h"

enum image_filter { FILTER_NEAREST, FILTER_BILINEAR, FILTER_BICUBIC };
enum image_pad { PAD_CONSTANT, PAD_EDGE, PAD_REFLECT, PAD_SYMMETRIC };

/* image_resize.c */

/* Kept between calls so that a resize of a known size allocates nothing. */
struct resize_memory {
    struct image middle; /* between the horizontal and the vertical pass */
    int32_t *weights;
    int *bounds;
    size_t weights_n, bounds_n;
};
void resize_memory_release(struct resize_memory *m);
size_t resize_memory_bytes(const struct resize_memory *m);
/* What resizing w x h x c takes: numbers in weights and bounds, bytes in middle. */
struct resize_need {
    size_t weights_n, bounds_n, middle_bytes;
};
struct resize_need
resize_memory_need(int w, int h, int c, int out_w, int out_h, enum image_filter filter);
enum status
resize_memory_grow(struct resize_memory *m, struct resize_need need, struct err *e) NODISCARD;
/* Bilinear and bicubic (a = -1/2) widen their support when shrinking, so they do not alias. */
enum status image_resize(
    const struct image *in, int out_w, int out_h, enum image_filter filter, struct resize_memory *m,
    struct image *out, struct err *e) NODISCARD;

/* image_geometry.c */

void image_flip(struct image *im); /* left to right, in place */
/* Where coordinate i of an axis of n pixels, padded, comes from: an index below n, or -1: fill. */
int image_pad_source(int i, int n, enum image_pad mode);
/* The window of `size` pixels square whose corner is at (x, y) of the image padded by `padding`. */
enum status image_crop(
    const struct image *in, int x, int y, int size, int padding, enum image_pad mode,
    struct image *out, struct err *e) NODISCARD;
/* out(x, y) = in(m0 x + m1 y + m2, m3 x + m4 y + m5), nearest pixel; outside is `fill`. */
enum status image_affine(
    const struct image *in, const double m[6], int out_w, int out_h, int fill, struct image *out,
    struct err *e) NODISCARD;
/* Counter-clockwise about the centre, nearest pixel; `expand` grows the image to hold all. */
enum status image_rotate(
    const struct image *in, double degrees, bool expand, int fill, struct image *out,
    struct err *e) NODISCARD;
/* No rotation of w x h gives a larger side than this. */
int image_rotate_side_max(int w, int h);

/* image_color.c: in place; `work` holds a second image of the same size. */

void image_brightness(struct image *im, double factor);
void image_contrast(struct image *im, double factor);
void image_saturation(struct image *im, double factor);
void image_hue(struct image *im, double factor); /* in turns, -1/2 to 1/2 */
enum status
image_sharpness(struct image *im, double factor, struct image *work, struct err *e) NODISCARD;
void image_posterize(struct image *im, int bits);
void image_solarize(struct image *im, double threshold);
void image_autocontrast(struct image *im);
void image_equalize(struct image *im);

#endif
