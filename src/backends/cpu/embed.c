/* embed.c - rows of a table by index, and the table's gradient.
 *
 * A row of the gradient is the float32 sum of its positions in their order, rounded once: bits do
 * not depend on threads, which share the columns.
 */
#include "backends/backend.h"
#include "backends/cpu/lanes.h"
#include "backends/cpu/nd.h"

#include <string.h>

enum { COLUMNS = 64 };

static int64_t index_at(const struct nd *index, int64_t i)
{
    int64_t at;
    nd_offsets(index, i, 1, &at);
    if (index->dtype == DT_I64)
        return ((const int64_t *)(const void *)index->data)[at];
    return (int64_t)dtype_load(index->data, index->dtype, at);
}

static struct nd index_of(const struct tensor *t)
{
    struct nd v = nd_of(t, &t->shape, false);
    (void)nd_merge(&v, 1, 0, v.rank);
    return v;
}

static enum status check_indices(const struct nd *index, int64_t n, int64_t rows, struct err *e)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t k = index_at(index, i);
        if (k < 0 || k >= rows)
            return err_set(
                e, ST_INVALID, "index %lld is outside 0..%lld (a table of %lld rows)", (long long)k,
                (long long)rows - 1, (long long)rows);
    }
    return ST_OK;
}

/* index table -> rows */
static enum status embedding(const struct kernel_args *a, struct err *e)
{
    struct nd index = index_of(&a->in[0]), table = index_of(&a->in[1]), out = index_of(&a->out[0]);
    int64_t n = tensor_count(&a->in[0]), width = a->in[1].shape.dim[1];
    TRY(check_indices(&index, n, a->in[1].shape.dim[0], e));
    bool parallel = n * width > ND_PIECE;
    (void)parallel;
#pragma omp parallel for schedule(static) if (parallel)
    for (int64_t i = 0; i < n; i++) {
        float buf[ND_BLOCK];
        int64_t row = index_at(&index, i);
        for (int64_t k = 0; k < width; k += ND_BLOCK) {
            int m = width - k < ND_BLOCK ? (int)(width - k) : ND_BLOCK;
            nd_write(&out, i * width + k, m, nd_read(&table, row * width + k, m, buf));
        }
    }
    return ST_OK;
}

/* ---- the gradient: positions sorted by row, so that a row is read and written once ---- */

struct place {
    int64_t row, position;
};

static enum status prepare(const struct kernel_args *a, int64_t *bytes, void **state, struct err *e)
{
    (void)e;
    (void)state;
    *bytes = 2 * tensor_count(&a->in[0]) * (int64_t)sizeof(struct place);
    return ST_OK;
}

/* Merges the runs of `width` in `from` into runs of twice that in `to`; equal rows stay in order.
 */
static void merge_runs(const struct place *from, struct place *to, int64_t n, int64_t width)
{
    for (int64_t at = 0; at < n; at += 2 * width) {
        int64_t i = at, middle = at + width < n ? at + width : n, j = middle;
        int64_t end = at + 2 * width < n ? at + 2 * width : n;
        for (int64_t k = at; k < end; k++)
            to[k] = j == end || (i < middle && from[i].row <= from[j].row) ? from[i++] : from[j++];
    }
}

static const struct place *places_sort(const struct nd *index, int64_t n, struct place *room)
{
    struct place *from = room, *to = room + n;
    for (int64_t i = 0; i < n; i++)
        from[i] = (struct place){index_at(index, i), i};
    for (int64_t width = 1; width < n; width *= 2) {
        merge_runs(from, to, n, width);
        struct place *other = from;
        from = to;
        to = other;
    }
    return from;
}

struct rows_job {
    const struct nd *dy, *into, *out; /* into NULL: rows start from nothing */
    const struct place *places;
    int64_t n, width, padding;
};

/* Columns k .. k + m of the row that begins at places[first]. The positions are summed in their
 * order before they meet what is there: the bits are those of a gradient of its own, added. */
static void row_columns(const struct rows_job *j, int64_t first, int64_t k, int m)
{
    float sum[COLUMNS] = {0}, buf[COLUMNS];
    int64_t row = j->places[first].row, at = row * j->width + k;
    for (int64_t i = first; i < j->n && j->places[i].row == row; i++) {
        const float *dy = nd_read(j->dy, j->places[i].position * j->width + k, m, buf);
        lanes_ew()->binary(OP_ADD, sum, dy, sum, m);
    }
    if (j->into)
        lanes_ew()->binary(OP_ADD, nd_read(j->into, at, m, buf), sum, sum, m);
    nd_write(j->out, at, m, sum);
}

static void rows_add(const struct rows_job *j)
{
    int64_t tiles = (j->width + COLUMNS - 1) / COLUMNS;
    bool parallel = j->n * j->width > ND_PIECE;
    (void)parallel;
#pragma omp parallel for schedule(static) if (parallel)
    for (int64_t tile = 0; tile < tiles; tile++) {
        int64_t k = tile * COLUMNS;
        int m = j->width - k < COLUMNS ? (int)(j->width - k) : COLUMNS;
        for (int64_t i = 0; i < j->n; i++)
            if ((i == 0 || j->places[i].row != j->places[i - 1].row) &&
                j->places[i].row != j->padding)
                row_columns(j, i, k, m);
    }
}

/* The result before any row is added: zeros, or a copy of `into` where that lies elsewhere. */
static void fill(const struct kernel_args *a)
{
    const struct tensor *into = a->n_in > 2 ? &a->in[2] : NULL, *out = &a->out[0];
    int64_t bytes = tensor_count(out) * dtype_size(out->dtype), piece = 1 << 20;
    if (into && into->data == out->data)
        return;
#pragma omp parallel for schedule(static) if (bytes > piece)
    for (int64_t at = 0; at < bytes; at += piece) {
        size_t n = (size_t)(bytes - at < piece ? bytes - at : piece);
        if (into && into->data)
            memcpy((char *)out->data + at, (const char *)into->data + at, n);
        else
            memset((char *)out->data + at, 0, n);
    }
}

/* index dy into? -> dtable */
static enum status embedding_grad(const struct kernel_args *a, struct err *e)
{
    struct nd index = index_of(&a->in[0]), dy = index_of(&a->in[1]), out = index_of(&a->out[0]);
    int64_t n = tensor_count(&a->in[0]);
    bool more = a->n_in > 2 && a->in[2].data;
    TRY(check_indices(&index, n, a->out[0].shape.dim[0], e));
    fill(a);
    struct rows_job j = {
        .dy = &dy,
        .into = more ? &out : NULL,
        .out = &out,
        .places = places_sort(&index, n, a->workspace),
        .n = n,
        .width = a->out[0].shape.dim[1],
        .padding = a->attr->embed.padding_idx};
    rows_add(&j);
    return ST_OK;
}

extern const struct kernel kernel_embedding, kernel_embedding_grad;
const struct kernel kernel_embedding = {.run = embedding, .name = "embedding"};
const struct kernel kernel_embedding_grad = {
    .prepare = prepare, .run = embedding_grad, .name = "embedding gradient"};
