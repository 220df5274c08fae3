/* pipeline.c - applying a transform: bytes through the steps, then numbers by table.
 *
 * ToTensor and the Normalize steps right after it become one table of 256 floats per channel,
 * filled with the arithmetic of the steps in float32 (v / 255, then (v - mean) / std), so the bits
 * are those of doing it pixel by pixel.
 */
#include "base/mem.h"
#include "data/transform_int.h"

#include <string.h>

struct pipeline {
    struct transform t;
    int channels;
    int to_tensor;    /* index of that step */
    int after;        /* first step behind the table */
    bool moves_after; /* a crop is among those */
    float table[TRANSFORM_CHANNELS_MAX][256];
};

static float normalized(const struct transform_step *s, int channel, float v)
{
    int i = s->normalize.n == 1 ? 0 : channel;
    return (v - s->normalize.mean[i]) / s->normalize.std[i];
}

static void fill_table(struct pipeline *p)
{
    for (int c = 0; c < p->channels; c++) {
        for (int v = 0; v < 256; v++) {
            float f = (float)v / 255.0F;
            for (int i = p->to_tensor + 1; i < p->after; i++)
                f = normalized(&p->t.step[i], c, f);
            p->table[c][v] = f;
        }
    }
}

enum status
transform_compile(const struct transform *t, int channels, struct pipeline **out, struct err *e)
{
    if (channels < 1 || channels > TRANSFORM_CHANNELS_MAX)
        return err_set(e, ST_INVALID, "images have %d channels, not 1 to 4", channels);
    struct pipeline *p = mem_alloc(sizeof *p);
    p->t = *t;
    p->channels = channels;
    while (p->to_tensor < t->n && t->step[p->to_tensor].kind != TRANSFORM_TO_TENSOR)
        p->to_tensor++;
    ASSERT(p->to_tensor < t->n); /* transform_shape has been asked */
    p->after = p->to_tensor + 1;
    while (p->after < t->n && t->step[p->after].kind == TRANSFORM_NORMALIZE)
        p->after++;
    for (int i = p->after; i < t->n; i++)
        p->moves_after = p->moves_after || t->step[i].kind == TRANSFORM_CROP;
    fill_table(p);
    *out = p;
    return ST_OK;
}

void pipeline_free(struct pipeline *p)
{
    mem_free(p);
}

/* Scratch memory */

struct needs {
    size_t image0, image1, work, tensor_floats;
    struct resize_need resize;
};

static void raise_to(size_t *a, size_t b)
{
    *a = *a > b ? *a : b;
}

static void
needs_of_resize(const struct flow *f, int size, enum image_filter filter, struct needs *n)
{
    struct resize_need r = resize_memory_need((int)f->w, (int)f->h, f->c, size, size, filter);
    if (f->varies) /* a smaller image has no more weights, but one of the final size is a copy */
        r = resize_memory_need((int)f->w + 1, (int)f->h + 1, f->c, size, size, filter);
    raise_to(&n->resize.weights_n, r.weights_n);
    raise_to(&n->resize.bounds_n, r.bounds_n);
    raise_to(&n->resize.middle_bytes, r.middle_bytes);
}

static void needs_of_step(
    const struct transform_step *s, const struct flow *before, const struct flow *after,
    struct needs *n)
{
    size_t a = (size_t)before->c * (size_t)before->h * (size_t)before->w;
    size_t b = (size_t)after->c * (size_t)after->h * (size_t)after->w;
    if (before->tensor) {
        if (s->kind == TRANSFORM_CROP)
            raise_to(&n->tensor_floats, 2 * (a > b ? a : b));
        return;
    }
    if (s->kind == TRANSFORM_TO_TENSOR)
        return;
    raise_to(&n->image0, a > b ? a : b);
    raise_to(&n->image1, a > b ? a : b);
    if (s->kind == TRANSFORM_RESIZE)
        needs_of_resize(before, s->resize.size, s->resize.filter, n);
    if (s->kind == TRANSFORM_RANDAUGMENT)
        raise_to(&n->work, a);
}

static struct needs needs_of(const struct transform *t, const int64_t in[3], bool decoded)
{
    struct needs n = {0};
    struct err ignored;
    struct flow f = {.c = (int)in[0], .h = in[1], .w = in[2]};
    if (decoded)
        n.image0 = (size_t)in[0] * (size_t)in[1] * (size_t)in[2];
    for (int i = 0; i < t->n; i++) {
        struct flow before = f;
        if (flow_step(&t->step[i], &f, &ignored) != ST_OK)
            break; /* transform_shape says so */
        needs_of_step(&t->step[i], &before, &f, &n);
    }
    raise_to(&n.image0, n.image1);
    return n;
}

int64_t scratch_predict(const struct transform *t, const int64_t in[3], bool decoded)
{
    struct needs n = needs_of(t, in, decoded);
    return (int64_t)(
        n.image0 + n.image1 + n.work + n.tensor_floats * sizeof(float) +
        n.resize.weights_n * sizeof(int32_t) + n.resize.bounds_n * sizeof(int) +
        n.resize.middle_bytes);
}

size_t scratch_host_bytes(const struct scratch *s)
{
    return s->image[0].cap_bytes + s->image[1].cap_bytes + s->work.cap_bytes +
           s->tensor_floats * sizeof(float) + resize_memory_bytes(&s->resize);
}

void scratch_release(struct scratch *s)
{
    image_release(&s->image[0]);
    image_release(&s->image[1]);
    image_release(&s->work);
    resize_memory_release(&s->resize);
    mem_free(s->tensor);
    *s = (struct scratch){0};
}

static enum status reserve_tensor(struct scratch *s, size_t floats, struct err *e)
{
    if (floats <= s->tensor_floats)
        return ST_OK;
    mem_free(s->tensor);
    s->tensor_floats = 0;
    s->tensor = mem_try_alloc(size_mul(floats, sizeof(float)));
    if (!s->tensor)
        return err_set(e, ST_OOM, "no host memory for %zu numbers of an image", floats);
    s->tensor_floats = floats;
    return ST_OK;
}

static enum status reserve_bytes(struct image *im, size_t bytes, struct err *e)
{
    ASSERT(bytes <= INT32_MAX);
    return bytes ? image_reserve(im, (int)bytes, 1, 1, e) : ST_OK;
}

enum status scratch_reserve(
    struct scratch *s, const struct transform *t, const int64_t in[3], bool decoded, struct err *e)
{
    struct needs n = needs_of(t, in, decoded);
    TRY(reserve_bytes(&s->image[0], n.image0, e));
    TRY(reserve_bytes(&s->image[1], n.image1, e));
    TRY(reserve_bytes(&s->work, n.work, e));
    TRY(resize_memory_grow(&s->resize, n.resize, e));
    return reserve_tensor(s, n.tensor_floats, e);
}

/* Steps on bytes: the image is s->image[*at] before and after. */

static enum status apply_crop(
    const struct transform_step *step, struct rng *r, struct scratch *s, int *at, struct err *e)
{
    const struct image *in = &s->image[*at];
    int64_t room_y = in->h + 2 * (int64_t)step->crop.padding - step->crop.size;
    int64_t room_x = in->w + 2 * (int64_t)step->crop.padding - step->crop.size;
    if (room_y < 0 || room_x < 0)
        return err_set(
            e, ST_INVALID,
            "RandomCrop: \"size\" %d is larger than the image, %d x %d before "
            "padding by %d",
            step->crop.size, in->h, in->w, step->crop.padding);
    int y = (int)rng_below(r, (uint64_t)room_y + 1), x = (int)rng_below(r, (uint64_t)room_x + 1);
    struct image *out = &s->image[1 - *at];
    *at = 1 - *at;
    return image_crop(in, x, y, step->crop.size, step->crop.padding, step->crop.mode, out, e);
}

static enum status apply_rotation(
    const struct transform_step *step, struct rng *r, struct scratch *s, int *at, struct err *e)
{
    double angle = step->rotation.degrees * (2.0 * rng_f64(r) - 1.0);
    const struct image *in = &s->image[*at];
    *at = 1 - *at;
    return image_rotate(in, angle, step->rotation.expand, step->rotation.fill, &s->image[*at], e);
}

/* Uniform in [1 - spread, 1 + spread], not below 0. */
static double factor(struct rng *r, double spread)
{
    double lo = 1.0 - spread < 0 ? 0 : 1.0 - spread;
    return lo + (1.0 + spread - lo) * rng_f64(r);
}

static void apply_jitter(const struct transform_step *step, struct rng *r, struct image *im)
{
    int order[4] = {0, 1, 2, 3};
    for (int i = 3; i > 0; i--) {
        int j = (int)rng_below(r, (uint64_t)i + 1), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
    double brightness = factor(r, step->jitter.brightness);
    double contrast = factor(r, step->jitter.contrast);
    double saturation = factor(r, step->jitter.saturation);
    double hue = step->jitter.hue * (2.0 * rng_f64(r) - 1.0);
    for (int i = 0; i < 4; i++) {
        if (order[i] == 0 && step->jitter.brightness > 0)
            image_brightness(im, brightness);
        else if (order[i] == 1 && step->jitter.contrast > 0)
            image_contrast(im, contrast);
        else if (order[i] == 2 && step->jitter.saturation > 0)
            image_saturation(im, saturation);
        else if (order[i] == 3 && step->jitter.hue > 0)
            image_hue(im, hue);
    }
}

static enum status
apply_resize(const struct transform_step *step, struct scratch *s, int *at, struct err *e)
{
    const struct image *in = &s->image[*at];
    int size = step->resize.size;
    *at = 1 - *at;
    return image_resize(in, size, size, step->resize.filter, &s->resize, &s->image[*at], e);
}

static enum status apply_byte_step(
    const struct transform_step *step, struct rng *r, struct scratch *s, int *at, struct err *e)
{
    switch (step->kind) {
    case TRANSFORM_RESIZE:
        return apply_resize(step, s, at, e);
    case TRANSFORM_CROP:
        return apply_crop(step, r, s, at, e);
    case TRANSFORM_FLIP:
        if (rng_f32(r) < step->flip.p)
            image_flip(&s->image[*at]);
        return ST_OK;
    case TRANSFORM_ROTATION:
        return apply_rotation(step, r, s, at, e);
    case TRANSFORM_JITTER:
        apply_jitter(step, r, &s->image[*at]);
        return ST_OK;
    case TRANSFORM_RANDAUGMENT:
        return randaugment_apply(step, r, s, at, e);
    case TRANSFORM_TO_TENSOR:
    case TRANSFORM_NORMALIZE:
        break;
    }
    return err_set(e, ST_INTERNAL, "%s among the byte steps", transform_step_name(step->kind));
}

/* Steps on numbers */

static void to_tensor(const struct pipeline *p, const struct image *im, float *out)
{
    size_t pixels = (size_t)im->w * (size_t)im->h, c = (size_t)im->c;
    for (size_t ch = 0; ch < c; ch++) {
        const uint8_t *in = im->px + ch;
        const float *table = p->table[ch];
        for (size_t i = 0; i < pixels; i++)
            *out++ = table[in[i * c]];
    }
}

struct numbers {
    float *x;
    int c, h, w;
};

static void flip_numbers(struct numbers *n)
{
    for (int64_t row = 0; row < (int64_t)n->c * n->h; row++) {
        float *a = n->x + row * n->w, *b = a + n->w - 1;
        for (; a < b; a++, b--) {
            float t = *a;
            *a = *b;
            *b = t;
        }
    }
}

static void normalize_numbers(const struct transform_step *s, struct numbers *n)
{
    int64_t pixels = (int64_t)n->h * n->w;
    for (int c = 0; c < n->c; c++)
        for (int64_t i = 0; i < pixels; i++)
            n->x[c * pixels + i] = normalized(s, c, n->x[c * pixels + i]);
}

static void
crop_numbers(const struct transform_step *s, struct rng *r, struct numbers *n, float *to)
{
    int size = s->crop.size, pad = s->crop.padding;
    int y = (int)rng_below(r, (uint64_t)(n->h + 2 * (int64_t)pad - size) + 1) - pad;
    int x = (int)rng_below(r, (uint64_t)(n->w + 2 * (int64_t)pad - size) + 1) - pad;
    float *out = to;
    for (int c = 0; c < n->c; c++) {
        for (int oy = 0; oy < size; oy++) {
            int fy = image_pad_source(y + oy, n->h, s->crop.mode);
            for (int ox = 0; ox < size; ox++) {
                int fx = image_pad_source(x + ox, n->w, s->crop.mode);
                bool fill = fy < 0 || fx < 0;
                *out++ = fill ? 0.0F : n->x[((int64_t)c * n->h + fy) * n->w + fx];
            }
        }
    }
    *n = (struct numbers){.x = to, .c = n->c, .h = size, .w = size};
}

static void
apply_number_steps(const struct pipeline *p, struct rng *r, float *half[2], struct numbers *n)
{
    for (int i = p->after; i < p->t.n; i++) {
        const struct transform_step *s = &p->t.step[i];
        if (s->kind == TRANSFORM_FLIP && rng_f32(r) < s->flip.p)
            flip_numbers(n);
        else if (s->kind == TRANSFORM_NORMALIZE)
            normalize_numbers(s, n);
        else if (s->kind == TRANSFORM_CROP)
            crop_numbers(s, r, n, half[n->x == half[0]]);
    }
}

/* The shape that leaves, from the shape at ToTensor. */
static enum status final_shape(
    const struct pipeline *p, const struct image *im, int64_t out_cap, int64_t shape[3],
    struct err *e)
{
    struct flow f = {.c = im->c, .h = im->h, .w = im->w, .tensor = true};
    for (int i = p->after; i < p->t.n; i++)
        TRY(flow_step(&p->t.step[i], &f, e));
    shape[0] = f.c;
    shape[1] = f.h;
    shape[2] = f.w;
    if (f.c * f.h * f.w <= out_cap)
        return ST_OK;
    return err_set(
        e, ST_INVALID, "an image of %d,%lld,%lld does not fit where %lld numbers belong", f.c,
        (long long)f.h, (long long)f.w, (long long)out_cap);
}

static enum status apply_numbers(
    const struct pipeline *p, const struct image *im, struct rng *r, struct scratch *s, float *out,
    int64_t out_cap, int64_t shape[3], struct err *e)
{
    TRY(final_shape(p, im, out_cap, shape, e));
    if (!p->moves_after) {
        struct numbers n = {.x = out, .c = im->c, .h = im->h, .w = im->w};
        float *unused[2] = {NULL, NULL};
        to_tensor(p, im, out);
        apply_number_steps(p, r, unused, &n);
        return ST_OK;
    }
    size_t first = image_bytes(im), half = first;
    for (int i = p->after; i < p->t.n; i++)
        if (p->t.step[i].kind == TRANSFORM_CROP)
            raise_to(
                &half,
                (size_t)im->c * (size_t)p->t.step[i].crop.size * (size_t)p->t.step[i].crop.size);
    TRY(reserve_tensor(s, 2 * half, e));
    float *halves[2] = {s->tensor, s->tensor + half};
    struct numbers n = {.x = halves[0], .c = im->c, .h = im->h, .w = im->w};
    to_tensor(p, im, n.x);
    apply_number_steps(p, r, halves, &n);
    memcpy(out, n.x, sizeof(float) * (size_t)n.c * (size_t)n.h * (size_t)n.w);
    return ST_OK;
}

enum status pipeline_apply(
    const struct pipeline *p, const struct image *in, struct rng *r, struct scratch *s, float *out,
    int64_t out_cap, int64_t shape[3], struct err *e)
{
    if (in->c != p->channels)
        return err_set(
            e, ST_INVALID, "an image has %d channels where %d belong", in->c, p->channels);
    int at = 0;
    if (p->to_tensor > 0 && in != &s->image[0]) {
        TRY(image_reserve(&s->image[0], in->w, in->h, in->c, e));
        memcpy(s->image[0].px, in->px, image_bytes(in));
    }
    for (int i = 0; i < p->to_tensor; i++)
        TRY(apply_byte_step(&p->t.step[i], r, s, &at, e));
    return apply_numbers(p, p->to_tensor ? &s->image[at] : in, r, s, out, out_cap, shape, e);
}
