/* reorder.h - copies between the physical layouts of tensor.h, converting the element type. */
#ifndef BACKENDS_CPU_REORDER_H
#define BACKENDS_CPU_REORDER_H

#include "backends/cpu/vec.h"

/* One side of a copy: [n, c, s] logical elements, s the product of the spatial dimensions. */
struct lay {
    void *data;
    enum dtype dtype; /* f32, bf16 or f16 */
    enum layout layout;
};
#define reorder_copy ISA_GLUE(reorder_copy, ISA_SUFFIX)
void reorder_copy(struct lay to, struct lay from, int64_t n, int64_t c, int64_t s);

#endif
