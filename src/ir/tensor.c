/* tensor.c - shapes and tensor views. */
#include "ir/tensor.h"

#include <stdio.h>
#include <string.h>

struct shape shape_of(int rank, const int64_t *dim)
{
    struct shape s = {.rank = rank};
    memcpy(s.dim, dim, sizeof *dim * (size_t)rank);
    return s;
}

struct shape shape_scalar(void)
{
    return (struct shape){0};
}

bool shape_eq(const struct shape *a, const struct shape *b)
{
    return a->rank == b->rank && memcmp(a->dim, b->dim, sizeof *a->dim * (size_t)a->rank) == 0;
}

int64_t shape_count(const struct shape *s)
{
    int64_t n = 1;
    bool zero = false;
    for (int i = 0; i < s->rank; i++) {
        zero = zero || s->dim[i] == 0;
        if (!zero && (__builtin_mul_overflow(n, s->dim[i], &n) || n > (int64_t)1 << 62))
            return -1;
    }
    return zero ? 0 : n;
}

const char *shape_text(const struct shape *s, char *buf, size_t cap)
{
    size_t n = (size_t)snprintf(buf, cap, "[");
    for (int i = 0; i < s->rank && n < cap; i++)
        n += (size_t)snprintf(buf + n, cap - n, "%s%lld", i ? ", " : "", (long long)s->dim[i]);
    if (n < cap)
        (void)snprintf(buf + n, cap - n, "]");
    return buf;
}

bool shape_broadcast(const struct shape *a, const struct shape *b, struct shape *out)
{
    struct shape r = {.rank = a->rank > b->rank ? a->rank : b->rank};
    for (int i = 1; i <= r.rank; i++) {
        int64_t x = i <= a->rank ? a->dim[a->rank - i] : 1;
        int64_t y = i <= b->rank ? b->dim[b->rank - i] : 1;
        if (x != y && x != 1 && y != 1)
            return false;
        r.dim[r.rank - i] = x == 1 ? y : x;
    }
    *out = r;
    return true;
}

void tensor_row_strides(const struct shape *s, int64_t stride[RANK_MAX])
{
    int64_t n = 1;
    for (int i = s->rank - 1; i >= 0; i--) {
        stride[i] = n;
        /* Only an empty tensor's strides can overflow, and nobody uses those. */
        if (s->dim[i] > 1 && __builtin_mul_overflow(n, s->dim[i], &n))
            n = 1;
    }
}

struct tensor tensor_make(void *data, enum dtype t, struct shape s)
{
    struct tensor r = {.data = data, .dtype = t, .layout = LAYOUT_ROW, .shape = s};
    tensor_row_strides(&s, r.stride);
    return r;
}

bool tensor_contiguous(const struct tensor *t)
{
    if (t->layout != LAYOUT_ROW)
        return false;
    if (shape_count(&t->shape) == 0)
        return true;
    int64_t n = 1;
    for (int i = t->shape.rank - 1; i >= 0; i--) {
        if (t->shape.dim[i] != 1 && t->stride[i] != n)
            return false;
        n *= t->shape.dim[i];
    }
    return true;
}

const char *layout_name(enum layout l)
{
    static const char *const names[] = {"row", "cl", "c16"};
    return names[l];
}
