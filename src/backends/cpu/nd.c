/* nd.c - strided views and blocks of them. */
#include "backends/cpu/nd.h"

#include "backends/cpu/lanes.h"

#include <string.h>

/* Strides of t in its own logical dimensions; *k: that of a channel within its block of 16. */
static void own_strides(const struct tensor *t, int64_t stride[RANK_MAX], int64_t *k)
{
    const struct shape *s = &t->shape;
    if (t->layout == LAYOUT_ROW || s->rank < 3) {
        memcpy(stride, t->stride, sizeof t->stride);
        *k = s->rank > 1 ? t->stride[1] : 0;
        return;
    }
    int64_t unit = t->layout == LAYOUT_CL ? s->dim[1] : 16, n = unit;
    for (int i = s->rank - 1; i >= 2; i--) {
        stride[i] = n;
        n *= s->dim[i];
    }
    *k = 1;
    stride[1] = t->layout == LAYOUT_CL ? 1 : n; /* C16: from block to block */
    stride[0] = t->layout == LAYOUT_CL ? n : n * (s->dim[1] / 16);
}

struct nd nd_of(const struct tensor *t, const struct shape *shape, bool split)
{
    struct nd v = {.data = t->data, .dtype = t->dtype};
    int64_t own[RANK_MAX], k;
    own_strides(t, own, &k);
    int lead = shape->rank - t->shape.rank;
    for (int i = 0; i < shape->rank; i++) {
        bool whole = i >= lead && t->shape.dim[i - lead] != 1;
        int64_t stride = whole ? own[i - lead] : 0;
        if (split && i == 1) {
            bool blocked = t->layout == LAYOUT_C16 && t->shape.rank >= 3;
            int64_t inner = !whole ? 0 : blocked ? k : stride;
            v.dim[v.rank] = shape->dim[1] / 16;
            v.stride[v.rank++] = blocked ? stride : 16 * stride;
            v.dim[v.rank] = 16;
            v.stride[v.rank++] = inner;
            continue;
        }
        v.dim[v.rank] = shape->dim[i];
        v.stride[v.rank++] = stride;
    }
    return v;
}

static void swap_dims(struct nd *v, int a, int b)
{
    int64_t d = v->dim[a], s = v->stride[a];
    v->dim[a] = v->dim[b], v->stride[a] = v->stride[b];
    v->dim[b] = d, v->stride[b] = s;
}

static void drop_dim(struct nd *v, int i)
{
    for (v->rank--; i < v->rank; i++) {
        v->dim[i] = v->dim[i + 1];
        v->stride[i] = v->stride[i + 1];
    }
}

void nd_move(struct nd *v, int from, int to)
{
    for (; from < to; from++)
        swap_dims(v, from, from + 1);
    for (; from > to; from--)
        swap_dims(v, from, from - 1);
}

static bool mergeable(const struct nd *v, int n, int i)
{
    for (int j = 0; j < n; j++) {
        if (v[j].stride[i] != v[j].stride[i + 1] * v[j].dim[i + 1])
            return false;
    }
    return true;
}

int nd_merge(struct nd *v, int n, int from, int to)
{
    for (int i = from; i < to;) {
        bool one = v[0].dim[i] == 1, merges = !one && i > from && mergeable(v, n, i - 1);
        if (!one && !merges) {
            i++;
            continue;
        }
        for (int j = 0; j < n; j++) {
            if (merges) {
                v[j].dim[i - 1] *= v[j].dim[i];
                v[j].stride[i - 1] = v[j].stride[i];
            }
            drop_dim(&v[j], i);
        }
        to--;
    }
    return to - from;
}

void nd_align(struct nd *v, const struct tensor *const *t, int n, const struct shape *shape)
{
    bool split = false;
    for (int j = 0; j < n; j++)
        split = split || (t[j]->layout == LAYOUT_C16 && t[j]->shape.rank >= 3);
    for (int j = 0; j < n; j++)
        v[j] = nd_of(t[j], shape, split);
    /* Insertion sort by the first operand's strides, largest first. */
    for (int i = 1; i < v[0].rank; i++) {
        for (int k = i; k > 0 && v[0].stride[k] > v[0].stride[k - 1]; k--) {
            for (int j = 0; j < n; j++)
                swap_dims(&v[j], k, k - 1);
        }
    }
    (void)nd_merge(v, n, 0, v[0].rank);
}

int64_t nd_count(const struct nd *v)
{
    int64_t n = 1;
    for (int i = 0; i < v->rank; i++)
        n *= v->dim[i];
    return n;
}

bool nd_flat(const struct nd *v)
{
    return v->rank == 0 || (v->rank == 1 && v->stride[0] == 1);
}

/* A place in a view: indices and the element's offset. */
struct cursor {
    int64_t at[ND_MAX], offset;
};

static void seek(const struct nd *v, int64_t i, struct cursor *c)
{
    c->offset = 0;
    for (int d = v->rank - 1; d >= 0; d--) {
        c->at[d] = d ? i % v->dim[d] : i;
        i /= v->dim[d];
        c->offset += c->at[d] * v->stride[d];
    }
}

/* Elements left in the innermost row, at most n. */
static int64_t row_left(const struct nd *v, const struct cursor *c, int64_t n)
{
    int64_t left = v->rank ? v->dim[v->rank - 1] - c->at[v->rank - 1] : 1;
    return left < n ? left : n;
}

static void step(const struct nd *v, struct cursor *c, int64_t n)
{
    int d = v->rank - 1;
    if (d < 0)
        return;
    c->at[d] += n;
    c->offset += n * v->stride[d];
    while (d > 0 && c->at[d] >= v->dim[d]) {
        c->offset += v->stride[d - 1] - c->at[d] * v->stride[d];
        c->at[d] = 0;
        c->at[--d]++;
    }
}

static int64_t inner_stride(const struct nd *v)
{
    return v->rank ? v->stride[v->rank - 1] : 1;
}

static void read_row(const struct nd *v, int64_t offset, int64_t n, float *out)
{
    int64_t s = inner_stride(v);
    const char *p = v->data + offset * dtype_size(v->dtype);
    bool half = v->dtype == DT_BF16 || v->dtype == DT_F16;
    if (s == 1 && (half || v->dtype == DT_F32)) {
        lanes_ew()->widen(p, v->dtype, out, n);
    } else if (s == 0) {
        float x = (float)dtype_load(p, v->dtype, 0);
        for (int64_t j = 0; j < n; j++)
            out[j] = x;
    } else if (v->dtype == DT_F32) {
        for (int64_t j = 0; j < n; j++)
            out[j] = ((const float *)(const void *)p)[j * s];
    } else {
        for (int64_t j = 0; j < n; j++)
            out[j] = (float)dtype_load(p, v->dtype, j * s);
    }
}

static void write_row(const struct nd *v, int64_t offset, int64_t n, const float *from)
{
    int64_t s = inner_stride(v);
    char *p = v->data + offset * dtype_size(v->dtype);
    bool half = v->dtype == DT_BF16 || v->dtype == DT_F16;
    if (s == 1 && (half || v->dtype == DT_F32)) {
        lanes_ew()->narrow(from, p, v->dtype, n);
    } else if (v->dtype == DT_F32) {
        for (int64_t j = 0; j < n; j++)
            ((float *)(void *)p)[j * s] = from[j];
    } else {
        for (int64_t j = 0; j < n; j++)
            dtype_store(p, v->dtype, j * s, (double)from[j]);
    }
}

const float *nd_read(const struct nd *v, int64_t i, int n, float *buf)
{
    if (v->dtype == DT_F32 && nd_flat(v))
        return (const float *)(const void *)v->data + i;
    struct cursor c;
    seek(v, i, &c);
    for (int done = 0; done < n;) {
        int64_t run = row_left(v, &c, n - done);
        read_row(v, c.offset, run, buf + done);
        step(v, &c, run);
        done += (int)run;
    }
    return buf;
}

float *nd_target(const struct nd *v, int64_t i, float *buf)
{
    return v->dtype == DT_F32 && nd_flat(v) ? (float *)(void *)v->data + i : buf;
}

void nd_write(const struct nd *v, int64_t i, int n, const float *from)
{
    if (v->dtype == DT_F32 && nd_flat(v) && from == (const float *)(const void *)v->data + i)
        return;
    struct cursor c;
    seek(v, i, &c);
    for (int done = 0; done < n;) {
        int64_t run = row_left(v, &c, n - done);
        write_row(v, c.offset, run, from + done);
        step(v, &c, run);
        done += (int)run;
    }
}

void nd_offsets(const struct nd *v, int64_t i, int n, int64_t *out)
{
    struct cursor c;
    seek(v, i, &c);
    for (int done = 0; done < n;) {
        int64_t run = row_left(v, &c, n - done);
        for (int64_t j = 0; j < run; j++)
            out[done + j] = c.offset + j * inner_stride(v);
        step(v, &c, run);
        done += (int)run;
    }
}

void nd_read_f64(const struct nd *v, int64_t i, int n, double *buf)
{
    int64_t at[ND_BLOCK];
    nd_offsets(v, i, n, at);
    for (int j = 0; j < n; j++)
        buf[j] = dtype_load(v->data, v->dtype, at[j]);
}

void nd_write_f64(const struct nd *v, int64_t i, int n, const double *from)
{
    int64_t at[ND_BLOCK];
    nd_offsets(v, i, n, at);
    for (int j = 0; j < n; j++)
        dtype_store(v->data, v->dtype, at[j], from[j]);
}

#define COPY_ROW(T)                                                                                \
    do {                                                                                           \
        T *y = (T *)(void *)to;                                                                    \
        const T *x = (const T *)(const void *)from;                                                \
        for (int64_t j = 0; j < n; j++)                                                            \
            y[j * ts] = x[j * fs];                                                                 \
    } while (0)

static void copy_row(char *to, int64_t ts, const char *from, int64_t fs, int64_t n, int size)
{
    if (ts == 1 && fs == 1)
        memmove(to, from, (size_t)(n * size));
    else if (size == 4)
        COPY_ROW(uint32_t);
    else if (size == 2)
        COPY_ROW(uint16_t);
    else if (size == 8)
        COPY_ROW(uint64_t);
    else
        COPY_ROW(uint8_t);
}

void nd_copy(const struct nd *to, const struct nd *from, int64_t i, int64_t n)
{
    struct cursor a, b;
    int size = dtype_size(to->dtype);
    seek(to, i, &a);
    seek(from, i, &b);
    while (n > 0) { /* equal shapes: the rows end together */
        int64_t run = row_left(to, &a, n);
        copy_row(
            to->data + a.offset * size, inner_stride(to), from->data + b.offset * size,
            inner_stride(from), run, size);
        step(to, &a, run);
        step(from, &b, run);
        n -= run;
    }
}
