/* reduce.c - SUM and MEAN over any dimensions, in any layout.
 *
 * Dimensions are sorted into kept and reduced ones. When memory's innermost dimension is reduced
 * ("rows") an output is the sum of one run of elements; when it is kept ("columns") rows of K
 * neighbouring outputs are added up. Either is cut into chunks by its shape alone, each chunk gives
 * a partial sum in double, and partial sums are added in order: threads never change the bits.
 */
#include "backends/backend.h"
#include "backends/cpu/lanes.h"
#include "backends/cpu/nd.h"

#include <string.h>

struct plan {
    struct nd in, out; /* in: rows: kept, reduced; columns: outer kept, reduced, inner kept */
    int64_t outputs;   /* all kept elements */
    int64_t reduced;   /* elements added for each */
    int64_t inner;     /* columns: K; rows: 1 */
    int64_t chunk, chunks;
    bool wide;
};

static void sort_group(struct nd *v, int from, int to) /* both views, by the first's strides */
{
    for (int i = from + 1; i < to; i++) {
        int k = i;
        while (k > from && v[0].stride[k - 1] < v[0].stride[i])
            k--;
        nd_move(&v[0], i, k);
        nd_move(&v[1], i, k);
    }
}

/* The result with reduced dimensions put back as 1. */
static struct tensor with_kept_dims(const struct kernel_args *a)
{
    const struct tensor *x = &a->in[0];
    struct tensor y = a->out[0];
    if (y.shape.rank == x->shape.rank)
        return y;
    struct tensor r = y;
    r.shape.rank = x->shape.rank;
    for (int i = 0, k = 0; i < x->shape.rank; i++) {
        bool reduced = a->attr->reduce.dims >> i & 1;
        r.shape.dim[i] = reduced ? 1 : y.shape.dim[k];
        r.stride[i] = reduced ? 0 : y.stride[k];
        k += !reduced;
    }
    return r;
}

static struct plan plan_of(const struct kernel_args *a)
{
    const struct tensor *x = &a->in[0];
    struct tensor y = with_kept_dims(a);
    bool split = x->shape.rank >= 3 && (x->layout == LAYOUT_C16 || y.layout == LAYOUT_C16);
    struct nd v[2] = {nd_of(x, &x->shape, split), nd_of(&y, &x->shape, split)};
    /* Kept dimensions first. */
    int kept = 0;
    for (int i = 0; i < v[0].rank; i++) {
        int logical = split && i > 1 ? i - 1 : i;
        if (a->attr->reduce.dims >> logical & 1)
            continue;
        nd_move(&v[0], i, kept);
        nd_move(&v[1], i, kept++);
    }
    struct plan p = {.outputs = 1, .reduced = 1, .inner = 1};
    for (int i = 0; i < v[0].rank; i++)
        *(i < kept ? &p.outputs : &p.reduced) *= v[0].dim[i];
    sort_group(v, 0, kept);
    sort_group(v, kept, v[0].rank);
    kept = nd_merge(v, 2, 0, kept);
    (void)nd_merge(v, 2, kept, v[0].rank);
    enum dtype t = x->dtype;
    p.wide = t == DT_F64 || t == DT_I64 || t == DT_I32;
    p.out = v[1];
    p.out.rank = kept;
    p.in = v[0];
    int last = v[0].rank - 1;
    bool columns = !p.wide && kept > 0 && last >= kept &&
                   v[0].stride[kept - 1] < v[0].stride[last] && v[0].stride[kept - 1] > 0;
    if (columns) {
        p.inner = v[0].dim[kept - 1];
        nd_move(&p.in, kept - 1, last);
    }
    int64_t least = columns ? 256 : 2 * ND_PIECE, most_chunks = columns ? 32 : 64;
    p.chunk = (p.reduced + most_chunks - 1) / most_chunks;
    p.chunk = p.chunk < least ? least : p.chunk;
    p.chunks = p.reduced ? (p.reduced + p.chunk - 1) / p.chunk : 1;
    (void)nd_merge(&p.in, 1, 0, p.in.rank);
    return p;
}

static double rows_partial(const struct plan *p, int64_t i, int64_t n)
{
    float buf[ND_BLOCK];
    double wide[ND_BLOCK], s = 0;
    for (int64_t end = i + n; i < end; i += ND_BLOCK) {
        int m = end - i < ND_BLOCK ? (int)(end - i) : ND_BLOCK;
        if (!p->wide) {
            s += lanes_sum()->sum(nd_read(&p->in, i, m, buf), m);
            continue;
        }
        nd_read_f64(&p->in, i, m, wide);
        for (int k = 0; k < m; k++)
            s += wide[k];
    }
    return s;
}

/* Rows that are converted at a time: as many as are added in float32, so that the bits are those of
 * a sum of the converted tensor. */
enum { ROWS_READ = 16 };

/* Adds n columns from k on of rows [r, end) of outer index o. */
static void columns_partial(
    const struct plan *p, int64_t o, int64_t r, int64_t end, int64_t k, int n, double *sum)
{
    float buf[ROWS_READ * ND_BLOCK];
    bool flat = p->in.dtype == DT_F32 && nd_flat(&p->in); /* read where it lies */
    int64_t rows_at_once = flat ? 64 : ROWS_READ;
    while (r < end) {
        int rows = (int)(end - r < rows_at_once ? end - r : rows_at_once);
        int64_t first = (o * p->reduced + r) * p->inner + k;
        const float *x = nd_read(&p->in, first, n, buf);
        for (int i = 1; i < rows && !flat; i++)
            (void)nd_read(&p->in, first + i * p->inner, n, buf + i * n);
        lanes_sum()->add_rows(sum, x, flat ? p->inner : n, rows, n);
        r += rows;
    }
}

static void store(const struct kernel_args *a, const struct plan *p, int64_t i, int n, double *sum)
{
    for (int k = 0; k < n && a->code == OP_MEAN; k++)
        sum[k] /= (double)p->reduced;
    nd_write_f64(&p->out, i, n, sum);
}

/* One chunk of one output (rows) or of a tile of outputs (columns). */
static void item(const struct kernel_args *a, const struct plan *p, int64_t tile, int64_t c)
{
    double sum[ND_BLOCK] = {0};
    int64_t r = c * p->chunk, end = r + p->chunk < p->reduced ? r + p->chunk : p->reduced;
    int64_t first = tile;
    int n = 1;
    if (p->inner == 1) {
        sum[0] = rows_partial(p, tile * p->reduced + r, end - r);
    } else {
        int64_t tiles = (p->inner + ND_BLOCK - 1) / ND_BLOCK, k = tile % tiles * ND_BLOCK;
        n = p->inner - k < ND_BLOCK ? (int)(p->inner - k) : ND_BLOCK;
        first = tile / tiles * p->inner + k;
        columns_partial(p, tile / tiles, r, end, k, n, sum);
    }
    if (p->chunks == 1)
        store(a, p, first, n, sum);
    else
        memcpy((double *)a->workspace + c * p->outputs + first, sum, (size_t)n * sizeof *sum);
}

static void add_partials(const struct kernel_args *a, const struct plan *p)
{
    const double *partial = a->workspace;
    for (int64_t i = 0; i < p->outputs; i += ND_BLOCK) {
        int n = p->outputs - i < ND_BLOCK ? (int)(p->outputs - i) : ND_BLOCK;
        double sum[ND_BLOCK] = {0};
        for (int64_t c = 0; c < p->chunks; c++) {
            for (int k = 0; k < n; k++)
                sum[k] += partial[c * p->outputs + i + k];
        }
        store(a, p, i, n, sum);
    }
}

static enum status prepare(const struct kernel_args *a, int64_t *bytes, void **state, struct err *e)
{
    (void)e;
    (void)state;
    struct plan p = plan_of(a);
    *bytes = p.chunks > 1 ? p.chunks * p.outputs * (int64_t)sizeof(double) : 0;
    return ST_OK;
}

static enum status run(const struct kernel_args *a, struct err *e)
{
    (void)e;
    struct plan p = plan_of(a);
    if (p.outputs == 0)
        return ST_OK;
    int64_t tiles =
        p.inner == 1 ? p.outputs : p.outputs / p.inner * ((p.inner + ND_BLOCK - 1) / ND_BLOCK);
    int64_t items = tiles * p.chunks;
    bool parallel = items > 1 && p.outputs * p.reduced > 2 * ND_PIECE;
    (void)parallel;
#pragma omp parallel for schedule(static) if (parallel)
    for (int64_t i = 0; i < items; i++)
        item(a, &p, i / p.chunks, i % p.chunks);
    if (p.chunks > 1)
        add_partials(a, &p);
    return ST_OK;
}

extern const struct kernel kernel_reduce;
const struct kernel kernel_reduce = {.prepare = prepare, .run = run, .name = "sum"};
