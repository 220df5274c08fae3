/* shape.c - copies: of strided views, into parts of a tensor, of constants. */
#include "backends/backend.h"
#include "backends/cpu/nd.h"

#include <string.h>

/* Elements [i, i + n) of another type: a low gradient into its float32 sum. */
static void convert(const struct nd *to, const struct nd *from, int64_t i, int64_t n)
{
    float buf[ND_BLOCK];
    for (int64_t end = i + n; i < end; i += ND_BLOCK) {
        int m = end - i < ND_BLOCK ? (int)(end - i) : ND_BLOCK;
        nd_write(to, i, m, nd_read(from, i, m, buf));
    }
}

/* to = from, equal shapes. */
static void copy(const struct tensor *to, const struct tensor *from)
{
    ASSERT(shape_count(&to->shape) == shape_count(&from->shape));
    int64_t count = tensor_count(to);
    if (count <= 0)
        return;
    const struct tensor *t[] = {to, from};
    struct nd v[2];
    nd_align(v, t, 2, &to->shape);
    int64_t pieces = (count + ND_PIECE - 1) / ND_PIECE;
#pragma omp parallel for schedule(static) if (pieces > 4)
    for (int64_t p = 0; p < pieces; p++) {
        int64_t i = p * ND_PIECE, n = count - i < ND_PIECE ? count - i : ND_PIECE;
        if (to->dtype == from->dtype)
            nd_copy(&v[0], &v[1], i, n);
        else
            convert(&v[0], &v[1], i, n);
    }
}

/* The part of t that starts at `start` of dimension dim, `length` long. */
static struct tensor
part(const struct tensor *t, int dim, int64_t start, int64_t length, int64_t step)
{
    struct tensor r = *t;
    r.data = (char *)t->data + start * t->stride[dim] * dtype_size(t->dtype);
    r.shape.dim[dim] = length;
    r.stride[dim] = t->stride[dim] * step;
    return r;
}

static enum status contiguous(const struct kernel_args *a, struct err *e)
{
    (void)e;
    copy(&a->out[0], &a->in[0]);
    return ST_OK;
}

/* into, from: the output is the first operand's next version, in its storage. */
static enum status copy_into(const struct kernel_args *a, struct err *e)
{
    (void)e;
    struct tensor to = a->in[0];
    if (to.data != a->in[1].data)
        copy(&to, &a->in[1]);
    return ST_OK;
}

static enum status concat(const struct kernel_args *a, struct err *e)
{
    int dim = a->attr->view.dim;
    int64_t at = 0;
    for (int k = 0; k < a->n_in; k++) {
        int64_t length = a->in[k].shape.dim[dim];
        if (at + length > a->out[0].shape.dim[dim])
            return err_set(e, ST_INTERNAL, "concat: operands are longer than the result");
        struct tensor to = part(&a->out[0], dim, at, length, 1);
        copy(&to, &a->in[k]);
        at += length;
    }
    return ST_OK;
}

static enum status slice_grad(const struct kernel_args *a, struct err *e)
{
    (void)e;
    const struct view_attr *v = &a->attr->view;
    int64_t step = v->step ? v->step : 1;
    memset(a->out[0].data, 0, (size_t)(tensor_count(&a->out[0]) * dtype_size(a->out[0].dtype)));
    struct tensor to = part(&a->out[0], v->dim, v->start, a->in[0].shape.dim[v->dim], step);
    copy(&to, &a->in[0]);
    return ST_OK;
}

static enum status fill(const struct kernel_args *a, struct err *e)
{
    (void)e;
    const struct tensor *t = &a->out[0];
    int64_t n = tensor_count(t);
    double x = a->attr->fill.value;
    if (t->dtype == DT_F32) {
        float *y = t->data, f = (float)x;
        for (int64_t i = 0; i < n; i++)
            y[i] = f;
    } else {
        for (int64_t i = 0; i < n; i++)
            dtype_store(t->data, t->dtype, i, x);
    }
    return ST_OK;
}

extern const struct kernel kernel_contiguous, kernel_copy, kernel_concat, kernel_slice_grad,
    kernel_fill;
const struct kernel kernel_contiguous = {.run = contiguous, .name = "copy"};
const struct kernel kernel_copy = {.run = copy_into, .name = "copy"};
const struct kernel kernel_concat = {.run = concat, .name = "copy"};
const struct kernel kernel_slice_grad = {.run = slice_grad, .name = "copy"};
const struct kernel kernel_fill = {.run = fill, .name = "fill"};
