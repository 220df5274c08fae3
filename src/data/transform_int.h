/* transform_int.h - what building and running transforms share. */
#ifndef DATA_TRANSFORM_INT_H
#define DATA_TRANSFORM_INT_H

#include "data/transform.h"

/* An image's shape on its way through the steps. */
struct flow {
    int c;
    int64_t h, w;
    bool tensor; /* past ToTensor */
    bool varies; /* h and w are upper bounds */
    bool fixed;  /* h and w do not depend on the image */
};
enum status flow_step(const struct transform_step *s, struct flow *f, struct err *e) NODISCARD;
const char *transform_step_name(enum transform_kind kind);

/* randaugment.c: `im` is s->image[*at]; steps may move it to the other one. */
enum status randaugment_apply(
    const struct transform_step *step, struct rng *r, struct scratch *s, int *at,
    struct err *e) NODISCARD;
/* One operation by torchvision's name; for tests against it. */
enum status randaugment_op(
    const char *name, double magnitude, struct scratch *s, int *at, struct err *e) NODISCARD;

#endif
