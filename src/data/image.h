/* image.h - 8-bit images: decoding PNG and JPEG, writing PNG, and the operations on them.
 *
 * Pixels are interleaved: row after row, C bytes a pixel (1 grey, 3 RGB). The operations give what
 * Pillow 9.4 gives for the same call (torchvision's transforms on PIL images are thin layers over
 * it), to the bit; tests/parity/make_transform_golden.py makes the proof.
 */
#ifndef DATA_IMAGE_H
#define DATA_IMAGE_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

#define IMAGE_PIXELS_MAX (64 * 1024 * 1024) /* of a file that is decoded */

/* Owner: whoever zeroed it; image_release frees. */
struct image {
    int w, h, c;
    uint8_t *px;
    size_t cap_bytes; /* allocated */
};
/* Sets the size; contents become undefined. Grows when needed, never shrinks. */
enum status image_reserve(struct image *im, int w, int h, int c, struct err *e) NODISCARD;
void image_release(struct image *im);
size_t image_bytes(const struct image *im); /* w * h * c */

/* PNG or JPEG (known by content) as RGB. Alpha is dropped, 16 bits become 8, palettes and grey are
 * expanded; orientation tags are ignored, as torchvision's loader does. Damaged or cut off files
 * are ST_CORRUPT, other formats ST_UNSUPPORTED; `name` stands in errors. */
enum status image_decode(
    const uint8_t *bytes, size_t n, const char *name, int64_t pixels_max, struct image *out,
    struct err *e) NODISCARD;
enum status image_read(const char *path, struct image *out, struct err *e) NODISCARD;
/* Width and height from the header alone. */
enum status image_read_size(const char *path, int *w, int *h, struct err *e) NODISCARD;
/* An RGB image, written whole. */
enum status png_write(const char *path, int w, int h, const uint8_t *rgb, struct err *e) NODISCARD;

#endif
