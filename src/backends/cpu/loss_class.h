/* loss_class.h - scores [N, C, d...] and targets as rows of positions. */
#ifndef BACKENDS_CPU_LOSS_CLASS_H
#define BACKENDS_CPU_LOSS_CLASS_H

#include "backends/cpu/nd.h"
#include "base/err.h"
#include "ir/attr.h"

struct class_rows {
    struct nd scores; /* element position C + c */
    struct nd target; /* indices: element position; probabilities: as scores */
    int64_t positions, classes;
    bool soft; /* targets are probabilities */
};
enum status class_rows_of(
    const struct tensor *scores, const struct tensor *target, struct class_rows *r,
    struct err *e) NODISCARD;
int64_t class_target(const struct class_rows *r, int64_t position); /* an index */
/* Place of the first largest of `length` elements from element i on; NaN counts as largest. */
int64_t class_largest(const struct nd *v, int64_t i, int64_t length);

/* Cross-entropy position by position; formulas: loss_class.c. `weight` without data: all 1.
 * ST_INVALID for a target outside the classes. */
struct class_job {
    struct class_rows rows;
    const struct loss_attr *attr;
    const float *weight; /* NULL: all 1 */
    double weight_sum;   /* of all classes */
    bool mean;
};
enum status class_job_make(
    const struct loss_attr *attr, const struct tensor *scores, const struct tensor *target,
    const struct tensor *weight, struct class_job *j, struct err *e) NODISCARD;
/* The loss of position p; lse: of its scores; counted: its part of what the mean divides by. */
double class_loss(const struct class_job *j, int64_t p, float *lse, double *counted);
/* d times the gradient of class_loss, to `out` (may be the scores themselves). */
void class_grad(const struct class_job *j, const struct nd *out, int64_t p, double d, float lse);

#endif
