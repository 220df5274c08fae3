/* image_test.c - files of people: formats, damage, limits, and writing. */
#include "base/env.h"
#include "base/mem.h"
#include "base/str.h"
#include "data/image.h"

#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PICTURES SNUG_SOURCE_DIR "/tests/corpus/data/pictures/"

static const char *const pictures[] = {
    "rgb.png", "grey.png", "rgba.png",        "palette.png",    "bits.png", "grey_alpha.png",
    "rgb.jpg", "grey.jpg", "progressive.jpg", "subsampled.jpg", "cmyk.jpg"};
enum { PICTURES_N = sizeof pictures / sizeof pictures[0] };

static void load(const char *name, uint8_t **bytes, size_t *n)
{
    struct err e = {0};
    char path[1024], *data = NULL;
    (void)snprintf(path, sizeof path, "%s%s", PICTURES, name);
    CHECK_OK(file_read(path, 1 << 20, &data, n, &e), &e);
    *bytes = (uint8_t *)data;
}

TEST(decodes_as_pillow, "PNG equals Pillow's RGB exactly, JPEG within 1 (other builds of libjpeg)")
{
    for (int i = 0; i < PICTURES_N; i++) {
        struct err e = {0};
        struct image im = {0};
        uint8_t *file, *want;
        size_t n, want_n;
        char name[64];
        (void)snprintf(name, sizeof name, "%s.rgb", pictures[i]);
        load(pictures[i], &file, &n);
        load(name, &want, &want_n);
        int32_t size[2];
        memcpy(size, want, sizeof size);
        CHECK_OK(image_decode(file, n, pictures[i], 1 << 20, &im, &e), &e);
        CHECK_EQ(im.w, size[0]);
        CHECK_EQ(im.h, size[1]);
        CHECK_EQ(image_bytes(&im) + 8, want_n);
        int tolerance = str_ends(pictures[i], ".jpg") ? 1 : 0;
        for (size_t k = 0; k < image_bytes(&im); k++)
            if (abs(im.px[k] - want[8 + k]) > tolerance)
                test_fail(
                    __FILE__, __LINE__, "%s: byte %zu is %d, not %d", pictures[i], k, im.px[k],
                    want[8 + k]);
        image_release(&im);
        mem_free(file);
        mem_free(want);
    }
}

TEST(cut_off_files, "a picture cut off anywhere, or with a damaged byte, never crashes")
{
    for (int i = 0; i < PICTURES_N; i++) {
        uint8_t *file;
        size_t n;
        struct image im = {0};
        load(pictures[i], &file, &n);
        for (size_t cut = 0; cut < n; cut++) {
            struct err e = {0};
            enum status st = image_decode(file, cut, pictures[i], 1 << 20, &im, &e);
            /* Behind the last pixel a decoder may be content. */
            CHECK(st == ST_CORRUPT || st == ST_UNSUPPORTED || (st == ST_OK && cut > n / 2));
            CHECK(st == ST_OK || strstr(e.text, pictures[i]));
        }
        for (size_t at = 0; at < n; at++) {
            struct err e = {0};
            file[at] ^= 0x55;
            (void)!image_decode(file, n, pictures[i], 1 << 20, &im, &e);
            file[at] ^= 0x55;
        }
        image_release(&im);
        mem_free(file);
    }
}

TEST(size_limit, "an image with more pixels than allowed is refused from its header")
{
    uint8_t *file;
    size_t n;
    struct err e = {0};
    struct image im = {0};
    load("rgb.png", &file, &n);
    CHECK_EQ(image_decode(file, n, "rgb.png", 13 * 17 - 1, &im, &e), ST_UNSUPPORTED);
    CHECK(strstr(e.text, "17 x 13") != NULL);
    CHECK_EQ(im.cap_bytes, 0);
    mem_free(file);
}

TEST(other_formats, "text, nothing and a missing file get their own errors")
{
    struct err e = {0};
    struct image im = {0};
    CHECK_EQ(image_decode((const uint8_t *)"BM..", 4, "a.bmp", 100, &im, &e), ST_UNSUPPORTED);
    CHECK_STR(e.text, "\"a.bmp\" is neither PNG nor JPEG");
    CHECK_EQ(image_decode(NULL, 0, "empty.png", 100, &im, &e), ST_CORRUPT);
    CHECK_EQ(image_read("/no/such/file.png", &im, &e), ST_NOT_FOUND);
    CHECK_EQ(image_read(test_dir(), &im, &e), ST_INVALID);
}

TEST(png_round_trip, "what png_write wrote decodes to the same bytes, and nothing half is left")
{
    struct err e = {0};
    struct image im = {0};
    char path[1024];
    uint8_t rgb[5 * 4 * 3];
    for (size_t i = 0; i < sizeof rgb; i++)
        rgb[i] = (uint8_t)(i * 37);
    path_join(test_dir(), "out.png", path, sizeof path);
    CHECK_OK(png_write(path, 5, 4, rgb, &e), &e);
    CHECK_OK(image_read(path, &im, &e), &e);
    CHECK(im.w == 5 && im.h == 4 && memcmp(im.px, rgb, sizeof rgb) == 0);
    int w = 0, h = 0;
    CHECK_OK(image_read_size(path, &w, &h, &e), &e);
    CHECK(w == 5 && h == 4);
    CHECK(png_write("/no/such/folder/a.png", 5, 4, rgb, &e) != ST_OK);
    CHECK_EQ(png_write(path, 0, 4, rgb, &e), ST_INVALID);
    CHECK(file_exists(path));
    image_release(&im);
}
