/* embed.c - rows of a table by index, and the table's gradient.
 *
 * The gradient is split over columns, each thread adding all positions in their order: bits do not
 * depend on threads. Tables that are not float32 are summed in a float32 workspace.
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

static enum status prepare(const struct kernel_args *a, int64_t *bytes, void **state, struct err *e)
{
    (void)e;
    (void)state;
    const struct tensor *t = &a->out[0];
    *bytes =
        t->dtype == DT_F32 && tensor_contiguous(t) ? 0 : tensor_count(t) * (int64_t)sizeof(float);
    return ST_OK;
}

/* index dy -> dtable */
static enum status embedding_grad(const struct kernel_args *a, struct err *e)
{
    struct nd index = index_of(&a->in[0]), dy = index_of(&a->in[1]), out = index_of(&a->out[0]);
    int64_t rows = a->out[0].shape.dim[0], width = a->out[0].shape.dim[1];
    int64_t n = tensor_count(&a->in[0]), padding = a->attr->embed.padding_idx;
    TRY(check_indices(&index, n, rows, e));
    bool direct = out.dtype == DT_F32 && nd_flat(&out);
    float *sum = direct ? (float *)(void *)out.data : a->workspace;
    memset(sum, 0, (size_t)(rows * width) * sizeof *sum);
    int64_t tiles = (width + COLUMNS - 1) / COLUMNS;
    bool parallel = n * width > ND_PIECE;
    (void)parallel;
#pragma omp parallel for schedule(static) if (parallel)
    for (int64_t tile = 0; tile < tiles; tile++) {
        float buf[ND_BLOCK];
        int64_t k = tile * COLUMNS;
        int m = width - k < COLUMNS ? (int)(width - k) : COLUMNS;
        for (int64_t i = 0; i < n; i++) {
            int64_t row = index_at(&index, i);
            float *y = sum + row * width + k;
            if (row != padding)
                lanes_ew()->binary(OP_ADD, y, nd_read(&dy, i * width + k, m, buf), y, m);
        }
    }
    for (int64_t i = 0; i < rows * width && !direct; i += ND_BLOCK)
        nd_write(
            &out, i, (int)(rows * width - i < ND_BLOCK ? rows * width - i : ND_BLOCK), sum + i);
    return ST_OK;
}

extern const struct kernel kernel_embedding, kernel_embedding_grad;
const struct kernel kernel_embedding = {.run = embedding, .name = "embedding"};
const struct kernel kernel_embedding_grad = {
    .prepare = prepare, .run = embedding_grad, .name = "embedding gradient"};
