/* transform_test.c - steps against Pillow's and torchvision's bytes, and what they draw. */
#include "base/mem.h"
#include "base/str.h"
#include "data/dataset.h"
#include "data/sampler.h"
#include "data/source.h"
#include "data/transform_int.h"

#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define GOLDEN SNUG_SOURCE_DIR "/tests/corpus/data/"

struct record {
    char name[24];
    double param[4];
    int32_t h, w, c, out_h, out_w, out_c;
};

static enum image_filter filter_of(double k)
{
    return k == 0 ? FILTER_NEAREST : k == 1 ? FILTER_BILINEAR : FILTER_BICUBIC;
}

/* Runs the record's operation on s->image[0]; the result is s->image[*at]. */
static void operate(const struct record *r, struct scratch *s, int *at)
{
    struct err e = {0};
    const double *p = r->param;
    struct image *in = &s->image[0], *out = &s->image[1];
    *at = 1;
    if (str_eq(r->name, "resize")) {
        int size = (int)p[0];
        CHECK_OK(image_resize(in, size, size, filter_of(p[1]), &s->resize, out, &e), &e);
    } else if (str_eq(r->name, "rotate")) {
        CHECK_OK(image_rotate(in, p[0], p[1] != 0, (int)p[2], out, &e), &e);
    } else if (str_starts(r->name, "crop")) {
        int pad = 0;
        (void)sscanf(r->name, "crop%d", &pad);
        enum image_pad mode = (enum image_pad)p[3];
        CHECK_OK(image_crop(in, (int)p[0], (int)p[1], (int)p[2], pad, mode, out, &e), &e);
    } else {
        *at = 0;
        if (str_eq(r->name, "flip"))
            image_flip(in);
        else if (str_eq(r->name, "brightness"))
            image_brightness(in, p[0]);
        else if (str_eq(r->name, "contrast"))
            image_contrast(in, p[0]);
        else if (str_eq(r->name, "saturation"))
            image_saturation(in, p[0]);
        else if (str_eq(r->name, "hue"))
            image_hue(in, p[0]);
        else
            CHECK_OK(randaugment_op(r->name, p[0], s, at, &e), &e);
    }
}

static void check_record(const struct record *r, const struct image *got, const uint8_t *want)
{
    if (got->h != r->out_h || got->w != r->out_w || got->c != r->out_c)
        test_fail(
            __FILE__, __LINE__, "%s(%g, %g): %d x %d, not %d x %d", r->name, r->param[0],
            r->param[1], got->h, got->w, r->out_h, r->out_w);
    size_t wrong = 0, first = 0;
    for (size_t i = image_bytes(got); i-- > 0;) {
        if (got->px[i] != want[i]) {
            wrong++;
            first = i;
        }
    }
    if (wrong)
        test_fail(
            __FILE__, __LINE__,
            "%s(%g, %g, %g) of %d x %d x %d: %zu of %zu bytes differ, the first at %zu: %d, not %d",
            r->name, r->param[0], r->param[1], r->param[2], r->h, r->w, r->c, wrong,
            image_bytes(got), first, got->px[first], want[first]);
}

TEST(operations_equal_pillow, "every image operation gives Pillow's bytes (tolerance 0)")
{
    struct err e = {0};
    struct source *in = NULL;
    struct scratch s = {0};
    struct record r;
    size_t got = 0;
    int n = 0;
    CHECK_OK(source_open(GOLDEN "transform_golden.bin.gz", &in, &e), &e);
    for (;; n++) {
        CHECK_OK(source_read(in, &r, sizeof r, &got, &e), &e);
        if (got == 0)
            break;
        size_t bytes = (size_t)r.out_h * (size_t)r.out_w * (size_t)r.out_c;
        uint8_t *want = mem_alloc(bytes);
        int at = 0;
        CHECK_OK(image_reserve(&s.image[0], r.w, r.h, r.c, &e), &e);
        CHECK_OK(source_need(in, s.image[0].px, image_bytes(&s.image[0]), "image", &e), &e);
        CHECK_OK(source_need(in, want, bytes, "image", &e), &e);
        operate(&r, &s, &at);
        check_record(&r, &s.image[at], want);
        mem_free(want);
    }
    CHECK_EQ(n, 390);
    source_close(in);
    scratch_release(&s);
}

TEST(normalize_equals_torchvision, "ToTensor and Normalize give torchvision's float32 bits")
{
    static const char *const presets[] = {"ImageNet", "CIFAR-10", "CIFAR-100", "Half"};
    struct err e = {0};
    struct source *in = NULL;
    struct scratch s = {0};
    uint8_t ramp[256 * 3];
    float want[3 * 256], got[3 * 256];
    for (int i = 0; i < 256 * 3; i++)
        ramp[i] = (uint8_t)(i / 3);
    struct image im = {.w = 256, .h = 1, .c = 3, .px = ramp};
    CHECK_OK(source_open(GOLDEN "normalize_golden.bin", &in, &e), &e);
    for (int i = 0; i < 4; i++) {
        struct transform t = {0};
        struct pipeline *p = NULL;
        struct rng r;
        int64_t shape[3];
        rng_init(&r, 1, 1, 1);
        CHECK_OK(transform_to_tensor(&t, &e), &e);
        CHECK_OK(transform_normalize(&t, presets[i], NULL, NULL, &e), &e);
        CHECK_OK(transform_compile(&t, 3, &p, &e), &e);
        CHECK_OK(pipeline_apply(p, &im, &r, &s, got, 3 * 256, shape, &e), &e);
        CHECK_OK(source_need(in, want, sizeof want, "numbers", &e), &e);
        CHECK(memcmp(want, got, sizeof want) == 0);
        pipeline_free(p);
    }
    source_close(in);
}

/* Applies t to a ramp of h x w x c with the generator of sample `index`. */
static void apply(
    const struct transform *t, int h, int w, int c, int64_t index, int64_t epoch, float *out,
    int64_t shape[3])
{
    struct err e = {0};
    struct image im = {0};
    struct scratch s = {0};
    struct pipeline *p = NULL;
    CHECK_OK(image_reserve(&im, w, h, c, &e), &e);
    for (size_t i = 0; i < image_bytes(&im); i++)
        im.px[i] = (uint8_t)(i * 7 % 251);
    int64_t in[3] = {c, h, w}, want[3];
    CHECK_OK(transform_shape(t, in, want, NULL, &e), &e);
    CHECK_OK(scratch_reserve(&s, t, in, false, &e), &e);
    CHECK_EQ(scratch_host_bytes(&s), scratch_predict(t, in, false));
    CHECK_OK(transform_compile(t, c, &p, &e), &e);
    struct rng r = sampler_rng(3, 4, epoch, index);
    CHECK_OK(pipeline_apply(p, &im, &r, &s, out, 3 * 64 * 64, shape, &e), &e);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(shape[i], want[i]);
    CHECK_EQ(scratch_host_bytes(&s), scratch_predict(t, in, false)); /* nothing more was needed */
    pipeline_free(p);
    scratch_release(&s);
    image_release(&im);
}

static struct transform augmented(void)
{
    struct err e = {0};
    struct transform t = {0};
    CHECK_OK(transform_resize(&t, 40, "bicubic", &e), &e);
    CHECK_OK(transform_random_rotation(&t, 15, true, 9, &e), &e);
    CHECK_OK(transform_random_crop(&t, 32, 4, "reflect", &e), &e);
    CHECK_OK(transform_color_jitter(&t, 0.4, 0.4, 0.4, 0.1, &e), &e);
    CHECK_OK(transform_randaugment(&t, 2, 9, 31, &e), &e);
    CHECK_OK(transform_to_tensor(&t, &e), &e);
    CHECK_OK(transform_normalize(&t, "ImageNet", NULL, NULL, &e), &e);
    CHECK_OK(transform_random_flip(&t, 0.5, &e), &e);
    CHECK_OK(transform_random_crop(&t, 24, 2, "constant", &e), &e);
    return t;
}

TEST(scratch_is_predicted, "what a thread needs is known before and not exceeded")
{
    struct transform t = augmented();
    float out[3 * 64 * 64];
    int64_t shape[3];
    for (int64_t i = 0; i < 200; i++)
        apply(&t, 28, 36, 3, i, 1, out, shape);
    CHECK_EQ(shape[1], 24);
}

TEST(draws_differ, "case-T58: samples draw different numbers, and other ones in another epoch")
{
    struct transform t = augmented();
    float a[3 * 64 * 64], b[3 * 64 * 64], c[3 * 64 * 64], again[3 * 64 * 64];
    int64_t shape[3];
    size_t n = sizeof(float) * 3 * 24 * 24;
    apply(&t, 28, 36, 3, 0, 0, a, shape);
    apply(&t, 28, 36, 3, 1, 0, b, shape);
    apply(&t, 28, 36, 3, 0, 1, c, shape);
    apply(&t, 28, 36, 3, 0, 0, again, shape);
    CHECK(memcmp(a, b, n) != 0);
    CHECK(memcmp(a, c, n) != 0);
    CHECK(memcmp(a, again, n) == 0);
}

TEST(flip_probability, "p = 0 never flips, 1 always, 0.5 about half of the samples")
{
    static const double p[] = {0, 1, 0.5};
    static const int least[] = {0, 400, 150}, most[] = {0, 400, 250};
    struct err e = {0};
    for (int k = 0; k < 3; k++) {
        struct transform t = {0};
        CHECK_OK(transform_random_flip(&t, p[k], &e), &e);
        CHECK_OK(transform_to_tensor(&t, &e), &e);
        int flipped = 0;
        for (int64_t i = 0; i < 400; i++) {
            float out[3 * 64 * 64];
            int64_t shape[3];
            apply(&t, 2, 3, 1, i, 0, out, shape);
            flipped += out[0] != 0.0F;
        }
        CHECK(flipped >= least[k] && flipped <= most[k]);
    }
}

TEST(after_tensor, "flip and crop give the same behind ToTensor as in front of it")
{
    struct err e = {0};
    struct transform before = {0}, after = {0};
    CHECK_OK(transform_random_crop(&before, 9, 3, "symmetric", &e), &e);
    CHECK_OK(transform_random_flip(&before, 0.5, &e), &e);
    CHECK_OK(transform_to_tensor(&before, &e), &e);
    CHECK_OK(transform_normalize(&before, "CIFAR-10", NULL, NULL, &e), &e);
    CHECK_OK(transform_to_tensor(&after, &e), &e);
    CHECK_OK(transform_random_crop(&after, 9, 3, "symmetric", &e), &e);
    CHECK_OK(transform_random_flip(&after, 0.5, &e), &e);
    CHECK_OK(transform_normalize(&after, "CIFAR-10", NULL, NULL, &e), &e);
    for (int64_t i = 0; i < 50; i++) {
        float a[3 * 64 * 64], b[3 * 64 * 64];
        int64_t shape[3];
        apply(&before, 8, 11, 3, i, 0, a, shape);
        apply(&after, 8, 11, 3, i, 0, b, shape);
        CHECK(memcmp(a, b, sizeof(float) * 3 * 9 * 9) == 0);
    }
}

TEST(padding_after_normalize, "constant padding behind Normalize is 0, not a normalised black")
{
    struct err e = {0};
    struct transform t = {0};
    CHECK_OK(transform_to_tensor(&t, &e), &e);
    CHECK_OK(transform_normalize(&t, "Half", NULL, NULL, &e), &e);
    CHECK_OK(transform_random_crop(&t, 8, 2, "constant", &e), &e);
    float out[3 * 64 * 64];
    int64_t shape[3];
    apply(&t, 4, 4, 1, 0, 0, out, shape); /* 4 + 2*2 = 8: the crop is the padded image */
    CHECK_NEAR((double)out[0], 0, 0);
    CHECK_NEAR((double)out[2 * 8 + 2], -1, 0); /* the ramp begins with 0 */
}

TEST(custom_normalize, "Custom takes lists, one number for all channels, and refuses a std of 0")
{
    struct err e = {0};
    struct transform t = {0};
    CHECK_OK(transform_normalize(&t, "Custom", "0.1, 0.2,0.3", "0.5", &e), &e);
    CHECK_EQ(t.step[0].normalize.n, 3);
    CHECK_NEAR((double)t.step[0].normalize.mean[2], 0.3, 1e-7);
    CHECK_NEAR((double)t.step[0].normalize.std[2], 0.5, 0);
    static const char *const bad[][2] = {{"", "0.5"},        {"a", "0.5"},    {"0.5", "0"},
                                         {"0.5", "nan"},     {"1,2,", "1"},   {"1,2", "1,2,3"},
                                         {"1,2,3,4,5", "1"}, {"0.5", "0.5,0"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK_EQ(transform_normalize(&t, "Custom", bad[i][0], bad[i][1], &e), ST_INVALID);
    CHECK_EQ(transform_normalize(&t, "imagenet", NULL, NULL, &e), ST_INVALID);
    CHECK(strstr(e.text, "ImageNet") != NULL);
}

TEST(parameters_out_of_range, "every parameter is checked and named")
{
    struct err e = {0};
    struct transform t = {0};
    CHECK_EQ(transform_resize(&t, 0, "bilinear", &e), ST_INVALID);
    CHECK_STR(e.text, "Resize: \"size\" is 0, outside 1 to 8192");
    CHECK_EQ(transform_resize(&t, 1000000000, "bilinear", &e), ST_INVALID);
    CHECK_EQ(transform_resize(&t, 8, "lanczos", &e), ST_INVALID);
    CHECK_EQ(transform_random_crop(&t, 8, -1, "edge", &e), ST_INVALID);
    CHECK_EQ(transform_random_crop(&t, 8, 1, "wrap", &e), ST_INVALID);
    CHECK_EQ(transform_random_flip(&t, (double)NAN, &e), ST_INVALID);
    CHECK_EQ(transform_random_flip(&t, 1.5, &e), ST_INVALID);
    CHECK_EQ(transform_random_rotation(&t, 181, false, 0, &e), ST_INVALID);
    CHECK_EQ(transform_color_jitter(&t, 0, 0, 0, 0.6, &e), ST_INVALID);
    CHECK(strstr(e.text, "hue") != NULL);
    CHECK_EQ(transform_randaugment(&t, 2, 31, 31, &e), ST_INVALID);
    CHECK_EQ(t.n, 0);
    for (int i = 0; i < TRANSFORM_STEPS_MAX; i++)
        CHECK_OK(transform_random_flip(&t, 0.5, &e), &e);
    CHECK_EQ(transform_random_flip(&t, 0.5, &e), ST_INVALID);
}

static void refuse(const struct transform *t, int64_t c, enum status want, const char *word)
{
    struct err e = {0};
    int64_t in[3] = {c, 28, 28}, out[3];
    CHECK_EQ(transform_shape(t, in, out, NULL, &e), want);
    if (!strstr(e.text, word))
        test_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", e.text, word);
}

TEST(orders_refused, "transforms that cannot work are refused before any image is read")
{
    struct err e = {0};
    struct transform none = {0}, early = {0}, three = transform_only_to_tensor();
    struct transform late = transform_only_to_tensor(), twice = late, large = {0}, turned = {0};
    refuse(&none, 1, ST_INVALID, "no ToTensor");
    CHECK_OK(transform_classic(&early, 8, false, true, &e), &e);
    refuse(&early, 1, ST_INVALID, "before ToTensor");
    CHECK_OK(transform_normalize(&three, "ImageNet", NULL, NULL, &e), &e);
    refuse(&three, 1, ST_INVALID, "3 means");
    CHECK_OK(transform_resize(&late, 8, "nearest", &e), &e);
    refuse(&late, 1, ST_UNSUPPORTED, "Resize stands after");
    CHECK_OK(transform_to_tensor(&twice, &e), &e);
    refuse(&twice, 1, ST_INVALID, "twice");
    CHECK_OK(transform_random_crop(&large, 40, 4, "constant", &e), &e);
    refuse(&large, 1, ST_INVALID, "RandomCrop");
    CHECK_OK(transform_random_rotation(&turned, 10, true, 0, &e), &e);
    CHECK_OK(transform_to_tensor(&turned, &e), &e);
    refuse(&turned, 1, ST_INVALID, "varying size");
}

TEST(classic_and_default, "the Transform node and the defaults are what their nodes say")
{
    struct err e = {0};
    struct transform t = {0}, all = {0}, d = transform_default();
    int64_t in[3] = {1, 28, 28}, out[3];
    bool fixed = false;
    CHECK_OK(transform_classic(&t, 32, true, true, &e), &e);
    CHECK_OK(transform_shape(&t, in, out, &fixed, &e), &e);
    CHECK_EQ(out[2], 32);
    CHECK(fixed);
    CHECK_OK(transform_shape(&d, in, out, &fixed, &e), &e);
    CHECK(!fixed);
    CHECK_OK(transform_random_crop(&all, 20, 0, "constant", &e), &e);
    CHECK_OK(transform_append(&all, &d, &e), &e);
    CHECK_EQ(all.n, 3);
    CHECK_OK(transform_shape(&all, in, out, &fixed, &e), &e);
    CHECK_EQ(out[1], 20);
}
