/* image_fuzz.c - any bytes as a PNG or JPEG file, up to a mega-pixel: an error or an image, never
 * a crash. Corpus: tests/corpus/image. */
#include "data/image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    struct image im = {0};
    enum status st = image_decode(data, size, "fuzz", 1 << 20, &im, &e);
    ASSERT(st == ST_OK ? im.c == 3 : e.text[0] != 0);
    image_release(&im);
    return 0;
}
