/* view.c - operators that change shape, place or type but no value: views, joins, copies, casts. */
#include "ir/ops/ops_int.h"

#include <string.h>

/* Runs of dimensions that lie densely one within the other can be split and merged freely: each
 * run of the source must be made up exactly by some of the target's dimensions. */
bool view_strides(const struct ir_value *v, const struct shape *to, int64_t stride[RANK_MAX])
{
    int64_t count = shape_count(to);
    if (v->layout != LAYOUT_ROW || count != shape_count(&v->shape))
        return false;
    if (count == 0) {
        tensor_row_strides(to, stride);
        return true;
    }
    int t = to->rank - 1;
    for (int i = v->shape.rank - 1; i >= 0;) {
        int64_t run = v->shape.dim[i], step = v->stride[i];
        int64_t innermost = v->shape.dim[i] == 1 ? 0 : step;
        for (i--; i >= 0; i--) {
            bool one = v->shape.dim[i] == 1, empty = run == 1;
            if (!one && !empty && v->stride[i] != innermost * run)
                break;
            if (!one && empty)
                innermost = v->stride[i];
            run *= v->shape.dim[i];
        }
        int64_t place = innermost ? innermost : 1, got = 1;
        /* A run of zero stride (expanded) stays zero. */
        if (innermost == 0 && run > 1)
            place = 0;
        for (; t >= 0 && got * to->dim[t] <= run && run % (got * to->dim[t]) == 0; t--) {
            if (got == run && to->dim[t] != 1)
                break;
            stride[t] = place * got;
            got *= to->dim[t];
        }
        if (got != run)
            return false;
    }
    for (; t >= 0; t--)
        stride[t] = 1; /* dimensions of size 1 in front */
    return true;
}

static enum status row_check(const struct ir_value *x, struct err *e)
{
    if (x->layout != LAYOUT_ROW)
        return err_set(e, ST_INTERNAL, "a view of a %s tensor", layout_name(x->layout));
    return ST_OK;
}

enum status shape_reshape(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *x = op_in(p, op, 0);
    out->dtype = x->dtype;
    out->shape = op->attr.view.shape;
    out->offset = x->offset;
    TRY(row_check(x, e));
    if (shape_count(&out->shape) != shape_count(&x->shape))
        return err_set(
            e, ST_INVALID, "shape %s is invalid for input of size %lld (%s)", TEXT(out->shape),
            (long long)shape_count(&x->shape), TEXT(x->shape));
    if (!view_strides(x, &out->shape, out->stride))
        return err_set(
            e, ST_INTERNAL, "no view of %s has shape %s", TEXT(x->shape), TEXT(out->shape));
    return ST_OK;
}

enum status shape_permute(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *x = op_in(p, op, 0);
    const int *perm = op->attr.view.perm;
    unsigned seen = 0;
    out->dtype = x->dtype;
    out->offset = x->offset;
    out->shape.rank = x->shape.rank;
    TRY(row_check(x, e));
    for (int i = 0; i < x->shape.rank; i++) {
        if (perm[i] < 0 || perm[i] >= x->shape.rank || (seen >> perm[i] & 1))
            return err_set(
                e, ST_INVALID, "not a permutation of the dimensions of %s", TEXT(x->shape));
        seen |= 1U << perm[i];
        out->shape.dim[i] = x->shape.dim[perm[i]];
        out->stride[i] = x->stride[perm[i]];
    }
    return ST_OK;
}

enum status shape_expand(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *x = op_in(p, op, 0);
    const struct shape *s = &op->attr.view.shape;
    TRY(row_check(x, e));
    out->dtype = x->dtype;
    out->offset = x->offset;
    out->shape = *s;
    int front = s->rank - x->shape.rank;
    if (front < 0)
        return err_set(e, ST_INVALID, "cannot expand %s to %s", TEXT(x->shape), TEXT(*s));
    for (int i = 0; i < s->rank; i++) {
        int64_t have = i < front ? 1 : x->shape.dim[i - front];
        if (have != s->dim[i] && have != 1)
            return err_set(
                e, ST_INVALID,
                "the expanded size (%lld) must match the existing size (%lld) at dimension %d: "
                "cannot "
                "expand %s to %s",
                (long long)s->dim[i], (long long)have, i, TEXT(x->shape), TEXT(*s));
        out->stride[i] = i < front || have != s->dim[i] ? 0 : x->stride[i - front];
    }
    return ST_OK;
}

static enum status slice_check(const struct view_attr *a, const struct shape *s, struct err *e)
{
    if (a->dim < 0 || a->dim >= s->rank)
        return err_set(e, ST_INVALID, "cannot slice dimension %d of %s", a->dim, TEXT(*s));
    int64_t size = s->dim[a->dim];
    bool fits = a->step >= 1 && a->length >= 0 && a->start >= 0 && a->start <= size;
    if (fits && a->length > 0)
        fits = a->start < size && (a->length - 1) <= (size - 1 - a->start) / a->step;
    if (!fits)
        return err_set(
            e, ST_INVALID, "slice of %lld from %lld by %lld is out of range for dimension %d of %s",
            (long long)a->length, (long long)a->start, (long long)a->step, a->dim, TEXT(*s));
    return ST_OK;
}

enum status shape_slice(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *x = op_in(p, op, 0);
    const struct view_attr *a = &op->attr.view;
    TRY(row_check(x, e));
    TRY(slice_check(a, &x->shape, e));
    out->dtype = x->dtype;
    out->shape = x->shape;
    out->shape.dim[a->dim] = a->length;
    memcpy(out->stride, x->stride, sizeof out->stride);
    out->offset = x->offset;
    if (shape_count(&out->shape) == 0)
        return ST_OK;
    if (a->length > 1)
        out->stride[a->dim] *= a->step;
    out->offset += a->start * x->stride[a->dim];
    return ST_OK;
}

enum status shape_slice_grad(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *dy = op_in(p, op, 0);
    const struct view_attr *a = &op->attr.view;
    TRY(slice_check(a, &a->shape, e));
    struct shape s = a->shape;
    s.dim[a->dim] = a->length;
    if (!shape_eq(&s, &dy->shape))
        return err_set(
            e, ST_INVALID, "a gradient of %s for a slice of %s", TEXT(dy->shape), TEXT(s));
    out->dtype = dy->dtype;
    out->shape = a->shape;
    return ST_OK;
}

enum status shape_concat(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *first = op_in(p, op, 0);
    int dim = op->attr.view.dim;
    if (dim < 0 || dim >= first->shape.rank)
        return err_set(
            e, ST_INVALID, "cannot join along dimension %d of %s", dim, TEXT(first->shape));
    out->dtype = first->dtype;
    out->shape = first->shape;
    for (int i = 1; i < op->n_in; i++) {
        const struct ir_value *x = op_in(p, op, i);
        struct shape same = x->shape;
        if (same.rank == out->shape.rank)
            same.dim[dim] = out->shape.dim[dim];
        if (!shape_eq(&same, &out->shape))
            return err_set(
                e, ST_INVALID,
                "sizes of tensors must match except in dimension %d: got %s and %s for tensor "
                "number %d",
                dim, TEXT(first->shape), TEXT(x->shape), i);
        out->dtype = dtype_widest(out->dtype, x->dtype);
        if (__builtin_add_overflow(out->shape.dim[dim], x->shape.dim[dim], &out->shape.dim[dim]))
            return err_set(e, ST_INVALID, "the joined tensor is too large");
    }
    return ST_OK;
}

enum status shape_copy(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    (void)e;
    out->dtype = op_in(p, op, 0)->dtype;
    out->shape = op_in(p, op, 0)->shape;
    return ST_OK;
}

enum status shape_reorder(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    TRY(shape_copy(p, op, out, n_out, e));
    enum layout to = op->attr.cast.layout;
    if (to != LAYOUT_ROW && out->shape.rank < 3)
        return err_set(e, ST_INTERNAL, "no %s layout of %s", layout_name(to), TEXT(out->shape));
    if (to == LAYOUT_C16 && out->shape.dim[1] % 16)
        return err_set(e, ST_INTERNAL, "channels of %s are not a multiple of 16", TEXT(out->shape));
    return ST_OK;
}

enum status shape_cast(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    TRY(shape_copy(p, op, out, n_out, e));
    out->dtype = op->attr.cast.to;
    return ST_OK;
}

enum status shape_fill(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)p;
    (void)n_out;
    (void)e;
    out->dtype = DT_F32;
    out->shape = op->attr.fill.shape;
    return ST_OK;
}

/* ---- gradients ---- */

void grad_reshape(struct ir_grad *g, const struct ir_op *op)
{
    struct ir_program *p = ir_grad_program(g);
    ir_grad_add(g, op->in[0], ir_reshape(p, grad_out(g, op, 0), value_shape(p, op->in[0])));
}

void grad_permute(struct ir_grad *g, const struct ir_op *op)
{
    struct ir_program *p = ir_grad_program(g);
    int inverse[RANK_MAX];
    int rank = value_shape(p, op->in[0]).rank;
    for (int i = 0; i < rank; i++)
        inverse[op->attr.view.perm[i]] = i;
    ir_grad_add(g, op->in[0], ir_permute(p, grad_out(g, op, 0), inverse));
}

void grad_expand(struct ir_grad *g, const struct ir_op *op)
{
    ir_grad_add(g, op->in[0], grad_out(g, op, 0)); /* summed back to the shape */
}

void grad_slice(struct ir_grad *g, const struct ir_op *op)
{
    struct ir_program *p = ir_grad_program(g);
    union op_attr attr = op->attr;
    attr.view.shape = value_shape(p, op->in[0]);
    int dy = grad_out(g, op, 0);
    ir_grad_add(g, op->in[0], ir_emit(p, OP_SLICE_GRAD, &dy, 1, &attr));
}

void grad_slice_grad(struct ir_grad *g, const struct ir_op *op)
{
    const struct view_attr *a = &op->attr.view;
    int dy = grad_out(g, op, 0);
    ir_grad_add(
        g, op->in[0], ir_slice(ir_grad_program(g), dy, a->dim, a->start, a->length, a->step));
}

void grad_concat(struct ir_grad *g, const struct ir_op *op)
{
    struct ir_program *p = ir_grad_program(g);
    int dim = op->attr.view.dim, dy = grad_out(g, op, 0);
    int64_t start = 0;
    for (int i = 0; i < op->n_in; i++) {
        int64_t length = value_shape(p, op->in[i]).dim[dim];
        if (ir_grad_wanted(g, op->in[i]))
            ir_grad_add(g, op->in[i], ir_slice(p, dy, dim, start, length, 1));
        start += length;
    }
}

void grad_copy(struct ir_grad *g, const struct ir_op *op)
{
    ir_grad_add(g, op->in[0], grad_out(g, op, 0));
}

void grad_reorder(struct ir_grad *g, const struct ir_op *op)
{
    grad_copy(g, op);
}

void grad_cast(struct ir_grad *g, const struct ir_op *op)
{
    grad_copy(g, op); /* cast back to the type */
}
