/* loss_class.h - scores [N, C, d...] and targets as rows of positions. */
#ifndef BACKENDS_CPU_LOSS_CLASS_H
#define BACKENDS_CPU_LOSS_CLASS_H

#include "backends/cpu/nd.h"
#include "base/err.h"

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

#endif
