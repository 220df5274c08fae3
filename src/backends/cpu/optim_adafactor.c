/* optim_adafactor.c - Adafactor: second moments of rows and columns instead of elements.
 *
 * Shazeer, Stern: "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", ICML 2018, in
 * the form of PyTorch 2.5's torch.optim.Adafactor:
 *
 *     k = t^beta2_decay;  rho = min(lr, 1 / sqrt(t));  alpha = max(eps2, rms(w)) rho
 *     w = w (1 - lr weight_decay)
 *     rank >= 2:  row_var += k (mean of g^2 over columns - row_var); col_var likewise over rows
 *                 v = row_var col_var / max(mean of row_var, eps1)
 *     else:       variance += k (g^2 - variance);  v = variance
 *     u = g / sqrt(max(v, eps1^2));  w -= alpha u / max(1, rms(u) / d)
 *
 * with rank 3 and more as a batch of matrices. Elements are float32, sums double; sums are of whole
 * rows, or of pieces of a vector, added in order: threads do not change the bits.
 */
#include "backends/cpu/optim_adafactor.h"

#include "backends/cpu/optim_weights.h"

#include <float.h>
#include <math.h>

enum { COLUMNS = 128 }; /* that one thread sums over all rows */

struct factors {
    struct optim_weights weights;
    struct nd g;
    bool factored;
    int64_t count, batch, rows, columns; /* a vector: pieces of ND_PIECE as rows */
    float *row_var, *col_var, *variance;
    double *sum, *weight_sum; /* by row */
    double *row_mean;         /* by matrix: of row_var, at least eps1 */
    float scale[3];           /* of the gradient: the scaler's, clipping's, the sign */
    float take;               /* k */
    float floor;              /* eps1^2 */
    float keep, size;         /* w keep + u size */
};

static void dimensions(const struct shape *s, struct factors *f)
{
    f->count = shape_count(s);
    f->factored = s->rank > 1;
    f->batch = 1;
    f->columns = f->factored ? s->dim[s->rank - 1] : ND_PIECE;
    f->rows = f->factored ? s->dim[s->rank - 2] : (f->count + ND_PIECE - 1) / ND_PIECE;
    for (int d = 0; d + 2 < s->rank; d++)
        f->batch *= s->dim[d];
}

int64_t optim_adafactor_workspace(const struct kernel_args *a)
{
    struct factors f = {0};
    dimensions(&a->in[0].shape, &f);
    return (2 * f.batch * f.rows + f.batch) * (int64_t)sizeof(double);
}

/* Elements [i, i + n) of the gradient as it is used. */
static void gradient(const struct factors *f, int64_t i, int n, float *out)
{
    lanes_optim()->scaled(nd_read(&f->g, i, n, out), out, n, f->scale);
}

static float towards(float average, float new, float take) /* torch.lerp */
{
    return take < 0.5f ? average + take * (new - average) : new - (new - average) * (1 - take);
}

/* The next block of row r from element *at on; 0 at its end. */
static int next_block(const struct factors *f, int64_t r, int64_t *at)
{
    int64_t end = (r + 1) * f->columns < f->count ? (r + 1) * f->columns : f->count;
    return end - *at < ND_BLOCK ? (int)(end - *at) : ND_BLOCK;
}

/* Squares of gradient and weights of a row; row_var, or a vector's variance. */
static void row_begin(const struct factors *f, int64_t r)
{
    float g[ND_BLOCK], buf[ND_BLOCK];
    double s = 0, ws = 0;
    for (int64_t at = r * f->columns, n; (n = next_block(f, r, &at)) > 0; at += n) {
        const float *w = optim_weights_read(&f->weights, at, (int)n, buf);
        gradient(f, at, (int)n, g);
        s += lanes_sum()->sum_squares(g, 1, 1, (int)n);
        ws += lanes_sum()->sum_squares(w, 1, 1, (int)n);
        for (int64_t k = 0; !f->factored && k < n; k++)
            f->variance[at + k] = towards(f->variance[at + k], g[k] * g[k], f->take);
    }
    f->weight_sum[r] = ws;
    if (f->factored)
        f->row_var[r] = towards(f->row_var[r], (float)(s / (double)f->columns), f->take);
}

/* col_var of COLUMNS columns of one matrix. */
static void columns_update(const struct factors *f, int64_t matrix, int64_t first)
{
    float g[COLUMNS];
    double sum[COLUMNS] = {0};
    int n = f->columns - first < COLUMNS ? (int)(f->columns - first) : COLUMNS;
    for (int64_t r = 0; r < f->rows; r++) {
        gradient(f, (matrix * f->rows + r) * f->columns + first, n, g);
        lanes_optim()->squares_added(g, sum, n);
    }
    float *v = f->col_var + matrix * f->columns + first;
    for (int k = 0; k < n; k++)
        v[k] = towards(v[k], (float)(sum[k] / (double)f->rows), f->take);
}

/* u of the elements [at, at + n) of row r. */
static void direction(const struct factors *f, int64_t r, int64_t at, int n, float *u)
{
    int64_t matrix = r / f->rows;
    const float *col =
        f->factored ? f->col_var + matrix * f->columns + (at - r * f->columns) : NULL;
    float row = f->factored ? f->row_var[r] / (float)f->row_mean[matrix] : 1;
    gradient(f, at, n, u);
    lanes_optim()->factored(f->factored ? col : f->variance + at, u, n, row, f->floor);
}

static void row_squares(const struct factors *f, int64_t r)
{
    float u[ND_BLOCK];
    double s = 0;
    for (int64_t at = r * f->columns, n; (n = next_block(f, r, &at)) > 0; at += n) {
        direction(f, r, at, (int)n, u);
        s += lanes_sum()->sum_squares(u, 1, 1, (int)n);
    }
    f->sum[r] = s;
}

static void row_end(const struct factors *f, int64_t r)
{
    float u[ND_BLOCK], buf[ND_BLOCK];
    for (int64_t at = r * f->columns, n; (n = next_block(f, r, &at)) > 0; at += n) {
        float *w = optim_weights_read(&f->weights, at, (int)n, buf);
        direction(f, r, at, (int)n, u);
        lanes_optim()->applied(w, u, (int)n, f->keep, f->size);
        optim_weights_write(&f->weights, at, (int)n, w);
    }
}

static double total(const double *part, int64_t n)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++)
        s += part[i];
    return s;
}

static void average_rows(const struct factors *f, double eps1)
{
    for (int64_t b = 0; b < f->batch; b++) {
        double s = 0;
        for (int64_t r = 0; r < f->rows; r++)
            s += (double)f->row_var[b * f->rows + r];
        f->row_mean[b] = fmax(s / (double)f->rows, eps1);
    }
}

static enum status operands(const struct kernel_args *a, struct factors *f, struct err *e)
{
    const struct optim_attr *o = &a->attr->optim;
    const struct tensor *t[3] = {&a->in[0], &a->in[a->n_in - 3], &a->in[1]};
    const float *ctl = a->in[a->n_in - 1].data;
    struct nd v[3];
    dimensions(&a->in[0].shape, f);
    nd_align(v, t, o->master ? 3 : 2, &a->in[0].shape);
    if (!nd_flat(&v[0]))
        return err_set(e, ST_INTERNAL, "optimizer: the parameter is not dense");
    optim_weights_init(a, &f->weights);
    f->weights.w = v[0];
    f->g = v[1];
    if (o->master)
        f->weights.master = v[2];
    int first = 1 + o->master;
    f->row_var = f->factored ? a->in[first].data : NULL;
    f->col_var = f->factored ? a->in[first + 1].data : NULL;
    f->variance = f->factored ? NULL : a->in[first].data;
    f->sum = a->workspace;
    f->weight_sum = f->sum + f->batch * f->rows;
    f->row_mean = f->weight_sum + f->batch * f->rows;
    f->scale[0] = ctl[0];
    f->scale[1] = ctl[1];
    f->scale[2] = o->maximize ? -1 : 1;
    return ST_OK;
}

enum status optim_adafactor_run(const struct kernel_args *a, struct err *e)
{
    const struct optim_attr *o = &a->attr->optim;
    const double *hyper = a->in[a->n_in - 2].data;
    struct factors f = {0};
    TRY(operands(a, &f, e));
    if (((const float *)a->in[a->n_in - 1].data)[2] != 0 || f.count == 0)
        return ST_OK;
    double lr = hyper[0], t = hyper[1], eps1 = o->eps > 0 ? o->eps : (double)FLT_EPSILON;
    double n = (double)f.count;
    int64_t rows = f.batch * f.rows, blocks = (f.columns + COLUMNS - 1) / COLUMNS;
    f.take = (float)pow(t, o->beta2_decay);
    f.floor = (float)(eps1 * eps1);
#pragma omp parallel for schedule(static) if (f.count > ND_PIECE)
    for (int64_t r = 0; r < rows; r++)
        row_begin(&f, r);
    if (f.factored) {
#pragma omp parallel for schedule(static) if (f.count > ND_PIECE)
        for (int64_t i = 0; i < f.batch * blocks; i++)
            columns_update(&f, i / blocks, i % blocks * COLUMNS);
        average_rows(&f, eps1);
    }
#pragma omp parallel for schedule(static) if (f.count > ND_PIECE)
    for (int64_t r = 0; r < rows; r++)
        row_squares(&f, r);
    double alpha = fmax(o->eps2, sqrt(total(f.weight_sum, rows) / n)) * fmin(lr, 1 / sqrt(t));
    double clip = fmax(1, sqrt(total(f.sum, rows) / n) / o->d);
    f.keep = (float)(1 - lr * o->weight_decay);
    f.size = (float)(-alpha / clip);
#pragma omp parallel for schedule(static) if (f.count > ND_PIECE)
    for (int64_t r = 0; r < rows; r++)
        row_end(&f, r);
    return ST_OK;
}
