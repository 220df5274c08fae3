/* randaugment.c - RandAugment (Cubuk et al. 2019) with torchvision's operations and magnitudes. */
#include "base/str.h"
#include "data/transform_int.h"

#include <math.h>

struct operation {
    const char *name;
    bool is_signed;
    double lo, hi;
};

static const struct operation operations[] = {
#define X(name, is_signed, lo, hi) {#name, is_signed, lo, hi},
#include "data/randaugment.def"
#undef X
};
enum { OPERATIONS = sizeof operations / sizeof operations[0] };

/* Element i of n float32 numbers spread evenly from lo to hi, counted from the nearer end. */
static float spread(float lo, float hi, int i, int n)
{
    float step = (hi - lo) / (float)(n - 1);
    return i < n / 2 ? lo + step * (float)i : hi - step * (float)(n - 1 - i);
}

static double
magnitude_of(const struct operation *o, const struct transform_step *step, const struct image *im)
{
    int i = step->randaugment.magnitude, n = step->randaugment.bins;
    double side = str_eq(o->name, "TranslateX") ? im->w : str_eq(o->name, "TranslateY") ? im->h : 1;
    if (str_eq(o->name, "Posterize"))
        return 8 - (double)nearbyintf((float)i / ((float)(n - 1) / 4.0F));
    return (double)spread((float)o->lo, (float)(o->hi * side), i, n);
}

/* Shear about the corner, or shift: an affine map of the image onto itself. */
static enum status affine(struct scratch *s, int *at, const double m[6], struct err *e)
{
    const struct image *in = &s->image[*at];
    *at = 1 - *at;
    return image_affine(in, m, in->w, in->h, 0, &s->image[*at], e);
}

static enum status
geometric(const char *name, double magnitude, struct scratch *s, int *at, bool *done, struct err *e)
{
    *done = true;
    double shear = tan(atan(magnitude)), shift = trunc(magnitude);
    if (str_eq(name, "ShearX"))
        return affine(s, at, (const double[6]){1, shear, 0, 0, 1, 0}, e);
    if (str_eq(name, "ShearY"))
        return affine(s, at, (const double[6]){1, 0, 0, shear, 1, 0}, e);
    if (str_eq(name, "TranslateX"))
        return affine(s, at, (const double[6]){1, 0, -shift, 0, 1, 0}, e);
    if (str_eq(name, "TranslateY"))
        return affine(s, at, (const double[6]){1, 0, 0, 0, 1, -shift}, e);
    if (str_eq(name, "Rotate")) {
        const struct image *in = &s->image[*at];
        *at = 1 - *at;
        return image_rotate(in, magnitude, false, 0, &s->image[*at], e);
    }
    *done = false;
    return ST_OK;
}

enum status
randaugment_op(const char *name, double magnitude, struct scratch *s, int *at, struct err *e)
{
    bool done = false;
    TRY(geometric(name, magnitude, s, at, &done, e));
    struct image *im = &s->image[*at];
    if (done || str_eq(name, "Identity"))
        return ST_OK;
    if (str_eq(name, "Sharpness"))
        return image_sharpness(im, 1.0 + magnitude, &s->work, e);
    if (str_eq(name, "Brightness"))
        image_brightness(im, 1.0 + magnitude);
    else if (str_eq(name, "Color"))
        image_saturation(im, 1.0 + magnitude);
    else if (str_eq(name, "Contrast"))
        image_contrast(im, 1.0 + magnitude);
    else if (str_eq(name, "Posterize"))
        image_posterize(im, (int)magnitude);
    else if (str_eq(name, "Solarize"))
        image_solarize(im, magnitude);
    else if (str_eq(name, "AutoContrast"))
        image_autocontrast(im);
    else if (str_eq(name, "Equalize"))
        image_equalize(im);
    else
        return err_set(e, ST_INTERNAL, "RandAugment has no operation \"%s\"", name);
    return ST_OK;
}

enum status randaugment_apply(
    const struct transform_step *step, struct rng *r, struct scratch *s, int *at, struct err *e)
{
    for (int i = 0; i < step->randaugment.ops; i++) {
        const struct operation *o = &operations[rng_below(r, OPERATIONS)];
        double magnitude = magnitude_of(o, step, &s->image[*at]);
        if (o->is_signed && rng_below(r, 2))
            magnitude = -magnitude;
        TRY(randaugment_op(o->name, magnitude, s, at, e));
    }
    return ST_OK;
}
