/* transform.h - what happens to an image between the data set and the network.
 *
 * A transform is a list of steps (a value: copy it freely). It is compiled for the images it will
 * see and then applied by any number of threads, each with its own scratch memory. In: 8-bit
 * H,W,C. Out: float32 C,H,W. Steps behave as torchvision 0.14's do on PIL images, to the bit where
 * nothing is drawn; what they draw comes from base/rng.h, keyed by (seed, stream, epoch, sample),
 * so it is the same for every number of workers and not disturbed by a validation in between.
 *
 * Steps before ToTensor see bytes, those after it numbers. Normalize belongs after it; flips and
 * crops may stand on either side; all others belong before it. A transform without ToTensor
 * cannot feed a network and is refused.
 */
#ifndef DATA_TRANSFORM_H
#define DATA_TRANSFORM_H

#include "base/err.h"
#include "base/rng.h"
#include "data/image.h"
#include "data/image_ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TRANSFORM_STEPS_MAX = 32, TRANSFORM_CHANNELS_MAX = 4 };

enum transform_kind {
    TRANSFORM_RESIZE,
    TRANSFORM_TO_TENSOR,
    TRANSFORM_NORMALIZE,
    TRANSFORM_CROP,
    TRANSFORM_FLIP,
    TRANSFORM_ROTATION,
    TRANSFORM_JITTER,
    TRANSFORM_RANDAUGMENT
};

struct transform_step {
    enum transform_kind kind;
    union {
        struct {
            int size;
            enum image_filter filter;
        } resize;
        struct {
            int n; /* 1: the same for every channel */
            float mean[TRANSFORM_CHANNELS_MAX], std[TRANSFORM_CHANNELS_MAX];
        } normalize;
        struct {
            int size, padding;
            enum image_pad mode;
        } crop;
        struct {
            float p;
        } flip;
        struct {
            double degrees;
            int fill;
            bool expand;
        } rotation;
        struct {
            double brightness, contrast, saturation, hue;
        } jitter;
        struct {
            int ops, magnitude, bins;
        } randaugment;
    };
};

struct transform {
    int n;
    struct transform_step step[TRANSFORM_STEPS_MAX];
};

/* Each appends one step (ST_INVALID for values out of range, naming the parameter as the graph's
 * nodes call it) and takes the options of its node. */
enum status transform_resize(
    struct transform *t, int64_t size, const char *interpolation, struct err *e) NODISCARD;
enum status transform_to_tensor(struct transform *t, struct err *e) NODISCARD;
/* preset: ImageNet, CIFAR-10, CIFAR-100, Half, Custom; mean and std are read for Custom only,
 * as numbers separated by commas. */
enum status transform_normalize(
    struct transform *t, const char *preset, const char *mean, const char *std,
    struct err *e) NODISCARD;
enum status transform_random_crop(
    struct transform *t, int64_t size, int64_t padding, const char *padding_mode,
    struct err *e) NODISCARD;
enum status transform_random_flip(struct transform *t, double p, struct err *e) NODISCARD;
/* fill is rounded to a byte. */
enum status transform_random_rotation(
    struct transform *t, double degrees, bool expand, double fill, struct err *e) NODISCARD;
enum status transform_color_jitter(
    struct transform *t, double brightness, double contrast, double saturation, double hue,
    struct err *e) NODISCARD;
enum status transform_randaugment(
    struct transform *t, int64_t num_ops, int64_t magnitude, int64_t num_magnitude_bins,
    struct err *e) NODISCARD;
/* The classic Transform node: resize (0: none) to a square, ToTensor, Normalize 0.5/0.5. */
enum status transform_classic(
    struct transform *t, int64_t resize, bool to_tensor, bool normalize, struct err *e) NODISCARD;
/* What a Dataset node does when nothing is connected: ToTensor, Normalize 0.5/0.5. */
struct transform transform_default(void);
struct transform transform_only_to_tensor(void); /* ImageFolderDataset's default */
/* All steps of `more` after those of t (ComposeTransform, or a chain of nodes). */
enum status
transform_append(struct transform *t, const struct transform *more, struct err *e) NODISCARD;

/* The shape (C,H,W) that images of `in` (C,H,W) leave with. ST_INVALID when a step cannot take
 * what the one before gives (crop larger than the image, three means for one channel) or when
 * the order is wrong. `*fixed` (may be NULL): the shape does not depend on the image's size. */
enum status transform_shape(
    const struct transform *t, const int64_t in[3], int64_t out[3], bool *fixed,
    struct err *e) NODISCARD;

/* Compiled for a channel count; does not change afterwards. */
struct pipeline;
enum status transform_compile(
    const struct transform *t, int channels, struct pipeline **out, struct err *e) NODISCARD;
void pipeline_free(struct pipeline *p);

/* Working memory of one thread. Owner: whoever zeroed it; scratch_release frees. */
struct scratch {
    struct image image[2]; /* the steps take turns */
    struct image work;     /* second operand of a blend */
    struct resize_memory resize;
    float *tensor; /* steps after ToTensor that move pixels */
    size_t tensor_floats;
};
size_t scratch_host_bytes(const struct scratch *s);
void scratch_release(struct scratch *s);
/* Grows `s` to all that images of this shape (C,H,W) need, so that applying allocates nothing;
 * `decoded`: room for the image itself too. The other form only says how much that is. */
enum status scratch_reserve(
    struct scratch *s, const struct transform *t, const int64_t in[3], bool decoded,
    struct err *e) NODISCARD;
int64_t scratch_predict(const struct transform *t, const int64_t in[3], bool decoded);

/* Turns one image into numbers at `out`, whose room (floats) is out_cap. `in` may be s->image[0],
 * and is not changed otherwise. shape (C,H,W) is what came out; more than out_cap is ST_INVALID. */
enum status pipeline_apply(
    const struct pipeline *p, const struct image *in, struct rng *r, struct scratch *s, float *out,
    int64_t out_cap, int64_t shape[3], struct err *e) NODISCARD;

#endif
