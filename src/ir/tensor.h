/* tensor.h - shapes, physical layouts, and the tensor view that kernels see.
 *
 * Shapes are PyTorch's logical ones (N, C, H, W), whatever the layout. A layout says how a tensor
 * of rank 3 or more lies in memory:
 *   ROW  row-major (PyTorch's contiguous); only ROW tensors may have other strides (views)
 *   CL   channels last: N, spatial..., C (PyTorch's channels_last)
 *   C16  channels in blocks of 16: N, C/16, spatial..., 16 (oneDNN's nChw16c); C is a multiple of
 * 16 CL and C16 tensors are always dense. Seen as [N, B, S, K] with S the product of the spatial
 * dimensions, CL is B = 1, K = C and C16 is B = C/16, K = 16: one loop serves both.
 */
#ifndef IR_TENSOR_H
#define IR_TENSOR_H

#include "ir/dtype.h"

enum { RANK_MAX = 8 };
enum layout { LAYOUT_ROW, LAYOUT_CL, LAYOUT_C16 };

struct shape {
    int rank;
    int64_t dim[RANK_MAX];
};

/* A view on memory that somebody else owns. `data` already includes any offset of the view.
 * stride[] is in elements and meaningful for ROW only. An absent operand has data == NULL. */
struct tensor {
    void *data;
    enum dtype dtype;
    enum layout layout;
    struct shape shape;
    int64_t stride[RANK_MAX];
};

struct shape shape_of(int rank, const int64_t *dim);
#define SHAPE(...)                                                                                 \
    shape_of((int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__})
struct shape shape_scalar(void);
bool shape_eq(const struct shape *a, const struct shape *b);
/* Product of the dimensions; 1 for a scalar; -1 when it passes 2^62. */
int64_t shape_count(const struct shape *s);
/* "[128, 1, 28, 28]" into buf, returned. */
const char *shape_text(const struct shape *s, char *buf, size_t cap);
/* PyTorch's broadcasting of a and b; false when they do not fit. */
bool shape_broadcast(const struct shape *a, const struct shape *b, struct shape *out);

void tensor_row_strides(const struct shape *s, int64_t stride[RANK_MAX]);
/* A dense row-major tensor. */
struct tensor tensor_make(void *data, enum dtype t, struct shape s);
bool tensor_contiguous(const struct tensor *t); /* dense ROW */
static inline int64_t tensor_count(const struct tensor *t)
{
    return shape_count(&t->shape);
}
const char *layout_name(enum layout l); /* "row", "cl", "c16" */

#endif
