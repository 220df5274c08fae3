/* transform.c - building lists of steps, and the shapes they give. */
#include "data/transform.h"

#include "base/str.h"
#include "data/transform_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SIZE_MAX_PIXELS = 8192 };

static const char *const step_names[] = {
    "Resize",         "ToTensor",    "Normalize",  "RandomCrop", "RandomHorizontalFlip",
    "RandomRotation", "ColorJitter", "RandAugment"};

const char *transform_step_name(enum transform_kind kind)
{
    return step_names[kind];
}

static enum status add(struct transform *t, struct transform_step step, struct err *e)
{
    if (t->n >= TRANSFORM_STEPS_MAX)
        return err_set(e, ST_INVALID, "a transform has more than %d steps", TRANSFORM_STEPS_MAX);
    t->step[t->n++] = step;
    return ST_OK;
}

static enum status check_int(
    enum transform_kind kind, const char *parameter, int64_t v, int64_t lo, int64_t hi,
    struct err *e)
{
    if (v >= lo && v <= hi)
        return ST_OK;
    return err_set(
        e, ST_INVALID, "%s: \"%s\" is %lld, outside %lld to %lld", step_names[kind], parameter,
        (long long)v, (long long)lo, (long long)hi);
}

static enum status check_float(
    enum transform_kind kind, const char *parameter, double v, double lo, double hi, struct err *e)
{
    if (v >= lo && v <= hi) /* not for NaN */
        return ST_OK;
    return err_set(
        e, ST_INVALID, "%s: \"%s\" is %g, outside %g to %g", step_names[kind], parameter, v, lo,
        hi);
}

/* Index of `word` among n options, or an error naming them. */
static enum status option(
    enum transform_kind kind, const char *parameter, const char *word, const char *const *options,
    size_t n, int *out, struct err *e)
{
    struct str all;
    for (size_t i = 0; i < n; i++) {
        if (str_eq(word, options[i])) {
            *out = (int)i;
            return ST_OK;
        }
    }
    str_init(&all);
    for (size_t i = 0; i < n; i++)
        str_printf(&all, "%s%s", i ? ", " : "", options[i]);
    err_set(
        e, ST_INVALID, "%s: \"%s\" is \"%s\"; it can be %s", step_names[kind], parameter,
        word ? word : "", all.data);
    str_release(&all);
    return ST_INVALID;
}

enum status
transform_resize(struct transform *t, int64_t size, const char *interpolation, struct err *e)
{
    static const char *const filters[] = {"nearest", "bilinear", "bicubic"};
    int filter = 0;
    TRY(check_int(TRANSFORM_RESIZE, "size", size, 1, SIZE_MAX_PIXELS, e));
    TRY(option(TRANSFORM_RESIZE, "interpolation", interpolation, filters, 3, &filter, e));
    struct transform_step s = {.kind = TRANSFORM_RESIZE};
    s.resize.size = (int)size;
    s.resize.filter = (enum image_filter)filter;
    return add(t, s, e);
}

enum status transform_to_tensor(struct transform *t, struct err *e)
{
    return add(t, (struct transform_step){.kind = TRANSFORM_TO_TENSOR}, e);
}

/* "0.5, 0.4" to numbers; *n is how many. */
static enum status
parse_list(const char *parameter, const char *text, float *out, int *n, struct err *e)
{
    *n = 0;
    for (const char *p = text ? text : ""; *n < TRANSFORM_CHANNELS_MAX;) {
        char word[64];
        p += strspn(p, " ");
        size_t length = strcspn(p, ",");
        const char *next = p + length;
        while (length && p[length - 1] == ' ')
            length--;
        (void)snprintf(word, sizeof word, "%.*s", length < 63 ? (int)length : 63, p);
        double v = 0;
        if (!str_to_f64(word, &v) || !isfinite(v))
            break;
        out[(*n)++] = (float)v;
        if (!*next)
            return ST_OK;
        p = next + 1;
    }
    return err_set(
        e, ST_INVALID,
        "Normalize: \"%s\" is \"%s\"; it must be 1 to %d numbers separated by commas", parameter,
        text ? text : "", TRANSFORM_CHANNELS_MAX);
}

static enum status
custom(struct transform_step *s, const char *mean, const char *std, struct err *e)
{
    int means = 0, stds = 0;
    TRY(parse_list("mean", mean, s->normalize.mean, &means, e));
    TRY(parse_list("std", std, s->normalize.std, &stds, e));
    /* One number stands for all channels, as it does in torchvision by broadcasting. */
    s->normalize.n = means > stds ? means : stds;
    if (means != stds && means != 1 && stds != 1)
        return err_set(
            e, ST_INVALID, "Normalize: %d numbers in \"mean\" and %d in \"std\"", means, stds);
    for (int i = 0; i < s->normalize.n; i++) {
        s->normalize.mean[i] = s->normalize.mean[means == 1 ? 0 : i];
        s->normalize.std[i] = s->normalize.std[stds == 1 ? 0 : i];
        if (s->normalize.std[i] == 0.0F)
            return err_set(e, ST_INVALID, "Normalize: \"std\" is 0, which would divide by zero");
    }
    return ST_OK;
}

enum status transform_normalize(
    struct transform *t, const char *preset, const char *mean, const char *std, struct err *e)
{
    static const char *const presets[] = {"ImageNet", "CIFAR-10", "CIFAR-100", "Half", "Custom"};
    static const float means[][3] = {
        {0.485F, 0.456F, 0.406F}, {0.4914F, 0.4822F, 0.4465F}, {0.5071F, 0.4865F, 0.4409F}};
    static const float stds[][3] = {
        {0.229F, 0.224F, 0.225F}, {0.2470F, 0.2435F, 0.2616F}, {0.2673F, 0.2564F, 0.2762F}};
    int which = 0;
    struct transform_step s = {.kind = TRANSFORM_NORMALIZE};
    TRY(option(TRANSFORM_NORMALIZE, "preset", preset, presets, 5, &which, e));
    if (which == 4) {
        TRY(custom(&s, mean, std, e));
    } else if (which == 3) {
        s.normalize.n = 1;
        s.normalize.mean[0] = s.normalize.std[0] = 0.5F;
    } else {
        s.normalize.n = 3;
        memcpy(s.normalize.mean, means[which], sizeof means[which]);
        memcpy(s.normalize.std, stds[which], sizeof stds[which]);
    }
    return add(t, s, e);
}

enum status transform_random_crop(
    struct transform *t, int64_t size, int64_t padding, const char *padding_mode, struct err *e)
{
    static const char *const modes[] = {"constant", "edge", "reflect", "symmetric"};
    int mode = 0;
    TRY(check_int(TRANSFORM_CROP, "size", size, 1, SIZE_MAX_PIXELS, e));
    TRY(check_int(TRANSFORM_CROP, "padding", padding, 0, SIZE_MAX_PIXELS, e));
    TRY(option(TRANSFORM_CROP, "padding_mode", padding_mode, modes, 4, &mode, e));
    struct transform_step s = {.kind = TRANSFORM_CROP};
    s.crop.size = (int)size;
    s.crop.padding = (int)padding;
    s.crop.mode = (enum image_pad)mode;
    return add(t, s, e);
}

enum status transform_random_flip(struct transform *t, double p, struct err *e)
{
    TRY(check_float(TRANSFORM_FLIP, "p", p, 0, 1, e));
    struct transform_step s = {.kind = TRANSFORM_FLIP};
    s.flip.p = (float)p;
    return add(t, s, e);
}

enum status transform_random_rotation(
    struct transform *t, double degrees, bool expand, double fill, struct err *e)
{
    TRY(check_float(TRANSFORM_ROTATION, "degrees", degrees, 0, 180, e));
    TRY(check_float(TRANSFORM_ROTATION, "fill", fill, 0, 255, e));
    struct transform_step s = {.kind = TRANSFORM_ROTATION};
    s.rotation.degrees = degrees;
    s.rotation.expand = expand;
    s.rotation.fill = (int)(fill + 0.5);
    return add(t, s, e);
}

enum status transform_color_jitter(
    struct transform *t, double brightness, double contrast, double saturation, double hue,
    struct err *e)
{
    TRY(check_float(TRANSFORM_JITTER, "brightness", brightness, 0, 1, e));
    TRY(check_float(TRANSFORM_JITTER, "contrast", contrast, 0, 1, e));
    TRY(check_float(TRANSFORM_JITTER, "saturation", saturation, 0, 1, e));
    TRY(check_float(TRANSFORM_JITTER, "hue", hue, 0, 0.5, e));
    struct transform_step s = {.kind = TRANSFORM_JITTER};
    s.jitter.brightness = brightness;
    s.jitter.contrast = contrast;
    s.jitter.saturation = saturation;
    s.jitter.hue = hue;
    return add(t, s, e);
}

enum status transform_randaugment(
    struct transform *t, int64_t num_ops, int64_t magnitude, int64_t num_magnitude_bins,
    struct err *e)
{
    const enum transform_kind kind = TRANSFORM_RANDAUGMENT;
    TRY(check_int(kind, "num_ops", num_ops, 0, 8, e));
    TRY(check_int(kind, "num_magnitude_bins", num_magnitude_bins, 2, 1 << 20, e));
    TRY(check_int(kind, "magnitude", magnitude, 0, num_magnitude_bins - 1, e));
    struct transform_step s = {.kind = kind};
    s.randaugment.ops = (int)num_ops;
    s.randaugment.magnitude = (int)magnitude;
    s.randaugment.bins = (int)num_magnitude_bins;
    return add(t, s, e);
}

enum status transform_classic(
    struct transform *t, int64_t resize, bool to_tensor, bool normalize, struct err *e)
{
    if (resize > 0)
        TRY(transform_resize(t, resize, "bilinear", e));
    if (to_tensor)
        TRY(transform_to_tensor(t, e));
    return normalize ? transform_normalize(t, "Half", NULL, NULL, e) : ST_OK;
}

struct transform transform_default(void)
{
    struct transform t = {.n = 2};
    t.step[0].kind = TRANSFORM_TO_TENSOR;
    t.step[1].kind = TRANSFORM_NORMALIZE;
    t.step[1].normalize.n = 1;
    t.step[1].normalize.mean[0] = t.step[1].normalize.std[0] = 0.5F;
    return t;
}

struct transform transform_only_to_tensor(void)
{
    struct transform t = {.n = 1};
    t.step[0].kind = TRANSFORM_TO_TENSOR;
    return t;
}

enum status transform_append(struct transform *t, const struct transform *more, struct err *e)
{
    for (int i = 0; i < more->n; i++)
        TRY(add(t, more->step[i], e));
    return ST_OK;
}

/* Shapes */

static enum status too_large(const struct transform_step *s, const struct flow *f, struct err *e)
{
    int64_t h = f->h + 2 * (int64_t)s->crop.padding, w = f->w + 2 * (int64_t)s->crop.padding;
    if (s->crop.size <= h && s->crop.size <= w)
        return ST_OK;
    return err_set(
        e, ST_INVALID,
        "RandomCrop: \"size\" %d is larger than the image, %lld x %lld with its padding",
        s->crop.size, (long long)h, (long long)w);
}

static void flow_square(struct flow *f, int size)
{
    f->h = f->w = size;
    f->fixed = true;
    f->varies = false;
}

static enum status flow_geometry(const struct transform_step *s, struct flow *f, struct err *e)
{
    if (s->kind == TRANSFORM_RESIZE) {
        flow_square(f, s->resize.size);
    } else if (s->kind == TRANSFORM_CROP) {
        TRY(too_large(s, f, e));
        flow_square(f, s->crop.size);
    } else if (s->kind == TRANSFORM_ROTATION && s->rotation.expand) {
        f->h = f->w = image_rotate_side_max((int)f->w, (int)f->h);
        f->varies = true;
        f->fixed = false;
    }
    return ST_OK;
}

static enum status flow_order(const struct transform_step *s, const struct flow *f, struct err *e)
{
    bool moves = s->kind == TRANSFORM_CROP || s->kind == TRANSFORM_FLIP;
    if (s->kind == TRANSFORM_TO_TENSOR && f->tensor)
        return err_set(e, ST_INVALID, "ToTensor comes twice in one transform");
    if (s->kind == TRANSFORM_NORMALIZE && !f->tensor) {
        err_set(e, ST_INVALID, "Normalize stands before ToTensor");
        err_hint(e, "Put ToTensorTransform before it: Normalize works on numbers, not on images.");
        return ST_INVALID;
    }
    if (s->kind == TRANSFORM_NORMALIZE && s->normalize.n != 1 && s->normalize.n != f->c)
        return err_set(
            e, ST_INVALID, "Normalize: %d means and deviations for an image of %d channel%s",
            s->normalize.n, f->c, f->c == 1 ? "" : "s");
    if (f->tensor && !moves && s->kind != TRANSFORM_NORMALIZE) {
        err_set(e, ST_UNSUPPORTED, "%s stands after ToTensor", step_names[s->kind]);
        err_hint(e, "Put %s before ToTensor.", step_names[s->kind]);
        return ST_UNSUPPORTED;
    }
    return ST_OK;
}

enum status flow_step(const struct transform_step *s, struct flow *f, struct err *e)
{
    TRY(flow_order(s, f, e));
    TRY(flow_geometry(s, f, e));
    f->tensor = f->tensor || s->kind == TRANSFORM_TO_TENSOR;
    return ST_OK;
}

enum status transform_shape(
    const struct transform *t, const int64_t in[3], int64_t out[3], bool *fixed, struct err *e)
{
    struct flow f = {.c = (int)in[0], .h = in[1], .w = in[2]};
    for (int i = 0; i < t->n; i++)
        TRY(flow_step(&t->step[i], &f, e));
    if (!f.tensor) {
        err_set(e, ST_INVALID, "the transform has no ToTensor: a network cannot read images");
        err_hint(e, "Add ToTensorTransform, or switch on \"to_tensor\" of the Transform node.");
        return ST_INVALID;
    }
    if (f.varies) {
        err_set(e, ST_INVALID, "RandomRotation with \"expand\" gives images of varying size");
        err_hint(e, "Put ResizeTransform or RandomCrop after it.");
        return ST_INVALID;
    }
    out[0] = f.c;
    out[1] = f.h;
    out[2] = f.w;
    if (fixed)
        *fixed = f.fixed;
    return ST_OK;
}
