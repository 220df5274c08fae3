/* linear_loss.c - the head's product, cross-entropy and their gradients, a chunk of tokens at a
 * time.
 *
 * For each chunk: logits [rows, V] = x W' + b in float32, in the workspace; each row's loss; in its
 * place each row's gradient, which is rounded to x's type as autocast would; then dx = dl W and
 * dW += dl' x. The chunks are equal but for the last. What the mean divides by follows from the
 * targets alone, so it is known before the walk, and no product is done twice.
 */
#include "backends/cpu/args.h"
#include "backends/cpu/gemm.h"
#include "backends/cpu/lanes.h"
#include "backends/cpu/loss_class.h"

enum { ROW_UNIT = 8 };

struct walk {
    const struct linear_loss_attr *attr;
    const struct tensor *x, *weight, *target, *bias, *class_weight, *seed;
    struct tensor *dx, *dweight, *dbias;
    int64_t tokens, features, classes, rows; /* rows: of a chunk */
    bool low;                                /* gradients of logits are in x's 16-bit type */
    int threads;
    /* Workspace. */
    float *logits;     /* [rows, V] */
    double (*part)[2]; /* by row: loss, counted */
    int64_t (*hit)[2]; /* by row: correct, counted */
    double *bias_sum;  /* [V] */
    char *room;        /* of the products */
};

static bool present(const struct kernel_args *a, int i)
{
    return arg_present(a, i);
}

static struct walk walk_of(const struct kernel_args *a, int threads)
{
    static const struct tensor none;
    const struct linear_loss_attr *at = &a->attr->linear_loss;
    struct walk w = {
        .attr = at,
        .x = &a->in[0],
        .weight = &a->in[1],
        .target = &a->in[2],
        .bias = present(a, 3) ? &a->in[3] : &none,
        .class_weight = present(a, 4) ? &a->in[4] : &none,
        .seed = present(a, 5) ? &a->in[5] : &none,
        .threads = threads};
    int n = 2 + at->correct;
    w.dx = at->dx ? &a->out[n++] : NULL;
    w.dweight = at->dweight ? &a->out[n++] : NULL;
    w.dbias = at->dbias ? &a->out[n++] : NULL;
    w.tokens = w.x->shape.dim[0];
    w.features = w.x->shape.dim[1];
    w.classes = w.weight->shape.dim[at->in_out];
    w.low = w.x->dtype != DT_F32;
    int64_t chunks =
        w.tokens / at->chunk + (w.tokens % at->chunk != 0); /* any chunk: no overflow */
    w.rows = chunks ? (w.tokens + chunks - 1) / chunks : 0;
    w.rows = (w.rows + ROW_UNIT - 1) / ROW_UNIT * ROW_UNIT;
    w.rows = w.rows > at->chunk ? at->chunk : w.rows;
    return w;
}

/* Element `at` of a tensor, as a pointer; NULL stays NULL while workspace is asked for. */
static void *at(const struct tensor *t, int64_t element)
{
    return t->data ? (char *)t->data + element * dtype_size(t->dtype) : NULL;
}

/* The weight as [E, V] (transposed) or [V, E]. */
static struct gemm_operand weight_operand(const struct walk *w, bool transposed)
{
    bool swap = transposed != w->attr->in_out;
    int64_t wide = w->weight->shape.dim[1];
    return (struct gemm_operand){
        .data = w->weight->data,
        .dtype = w->weight->dtype,
        .row = swap ? 1 : wide,
        .col = swap ? wide : 1};
}

/* Gradients of a chunk's logits, [rows, V] or transposed. Rows keep the distance of float32. */
static struct gemm_operand slope_operand(const struct walk *w, bool transposed)
{
    int64_t row = w->classes * (w->low ? 2 : 1);
    return (struct gemm_operand){
        .data = w->logits,
        .dtype = w->low ? w->x->dtype : DT_F32,
        .row = transposed ? 1 : row,
        .col = transposed ? row : 1};
}

static struct gemm_operand input_operand(const struct walk *w, int64_t from, bool transposed)
{
    return (struct gemm_operand){
        .data = at(w->x, from * w->features),
        .dtype = w->x->dtype,
        .row = transposed ? 1 : w->features,
        .col = transposed ? w->features : 1};
}

static struct gemm_job logits_job(const struct walk *w, int64_t from, int64_t rows)
{
    return (struct gemm_job){
        .m = rows,
        .n = w->classes,
        .k = w->features,
        .a = input_operand(w, from, false),
        .b = weight_operand(w, true),
        .c = w->logits,
        .c_dtype = DT_F32,
        .c_row = w->classes,
        .bias = w->bias->data,
        .bias_dtype = w->bias->dtype};
}

static struct gemm_job dx_job(const struct walk *w, int64_t from, int64_t rows)
{
    return (struct gemm_job){
        .m = rows,
        .n = w->features,
        .k = w->classes,
        .a = slope_operand(w, false),
        .b = weight_operand(w, false),
        .c = at(w->dx, from * w->features),
        .c_dtype = w->dx->dtype,
        .c_row = w->features};
}

static struct gemm_job dweight_job(const struct walk *w, int64_t from, int64_t rows)
{
    bool in_out = w->attr->in_out;
    return (struct gemm_job){
        .m = in_out ? w->features : w->classes,
        .n = in_out ? w->classes : w->features,
        .k = rows,
        .a = in_out ? input_operand(w, from, true) : slope_operand(w, true),
        .b = in_out ? slope_operand(w, false) : input_operand(w, from, false),
        .c = w->dweight->data,
        .c_dtype = DT_F32,
        .c_row = in_out ? w->classes : w->features,
        .accumulate = from > 0};
}

/* ---- workspace ---- */

static int64_t rounded(int64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Room of the products: the last chunk may be shorter, and cut among threads otherwise. */
static int64_t room_bytes(const struct walk *w)
{
    int64_t tail = w->rows ? w->tokens % w->rows : 0, bytes = 0;
    for (int k = 0; k < 2; k++) {
        int64_t rows = k && tail ? tail : w->rows;
        struct gemm_job logits = logits_job(w, 0, rows);
        bytes = larger(bytes, gemm_bytes(&logits, w->threads));
        if (w->dx) {
            struct gemm_job dx = dx_job(w, 0, rows);
            bytes = larger(bytes, gemm_bytes(&dx, w->threads));
        }
        if (w->dweight) {
            struct gemm_job first = dweight_job(w, 0, rows), more = dweight_job(w, 1, rows);
            bytes = larger(bytes, gemm_bytes(&first, w->threads));
            bytes = larger(bytes, gemm_bytes(&more, w->threads));
        }
    }
    return bytes;
}

/* Lays the workspace out from `base`; returns its size. */
static int64_t lay_out(struct walk *w, char *base)
{
    int64_t logits = rounded(w->rows * w->classes * 4), part = rounded(w->rows * 16);
    int64_t sums = w->dbias ? rounded(w->classes * 8) : 0;
    if (base) {
        w->logits = (float *)(void *)base;
        w->part = (void *)(base + logits);
        w->hit = (void *)(base + logits + part);
        w->bias_sum = (void *)(base + logits + 2 * part);
        w->room = base + logits + 2 * part + sums;
    }
    return logits + 2 * part + sums + room_bytes(w);
}

static enum status
linear_prepare(const struct kernel_args *a, int64_t *bytes, void **state, struct err *e)
{
    (void)e;
    int threads = cpu_threads();
    struct walk w = walk_of(a, threads);
    *bytes = lay_out(&w, NULL);
    *state = threads_keep(threads);
    return ST_OK;
}

/* ---- the walk ---- */

static struct tensor rows_tensor(void *data, enum dtype t, int64_t rows, int64_t columns)
{
    return tensor_make(data, t, SHAPE(rows, columns));
}

/* Weights of all counted targets: what the mean divides by. */
static enum status count_targets(const struct walk *w, double *sum, struct err *e)
{
    const int64_t *t = w->target->data;
    const float *weight = w->class_weight->data;
    *sum = 0;
    for (int64_t i = 0; i < w->tokens; i++) {
        if (t[i] == w->attr->loss.ignore_index)
            continue;
        if (t[i] < 0 || t[i] >= w->classes)
            return err_set(
                e, ST_INVALID, "target %lld is outside 0..%lld (%lld classes)", (long long)t[i],
                (long long)w->classes - 1, (long long)w->classes);
        *sum += weight ? (double)weight[t[i]] : 1;
    }
    return ST_OK;
}

/* A row's gradient in x's type, in its own place: what is written lies before what is read next. */
static void narrow_row(const struct walk *w, float *row)
{
    float block[ND_BLOCK];
    for (int64_t i = 0; i < w->classes; i += ND_BLOCK) {
        int64_t n = w->classes - i < ND_BLOCK ? w->classes - i : ND_BLOCK;
        memcpy(block, row + i, (size_t)n * sizeof *row);
        lanes_ew()->narrow(block, (char *)row + i * 2, w->x->dtype, n);
    }
}

/* Losses of a chunk's rows, and, with d, their gradients in their place. */
static void rows_run(const struct walk *w, const struct class_job *j, double d, bool slopes)
{
    int64_t rows = j->rows.positions;
#pragma omp parallel for schedule(static) num_threads(w->threads)
    for (int64_t r = 0; r < rows; r++) {
        float lse;
        if (w->attr->correct) {
            int64_t t = class_target(&j->rows, r);
            bool counts = t >= 0 && t != w->attr->loss.ignore_index;
            w->hit[r][1] = counts;
            w->hit[r][0] =
                counts && class_largest(&j->rows.scores, r * w->classes, w->classes) == t;
        }
        w->part[r][0] = class_loss(j, r, &lse, &w->part[r][1]);
        if (slopes)
            class_grad(j, &j->rows.scores, r, d, lse);
    }
}

static void bias_add(const struct walk *w, int64_t rows)
{
    enum { COLUMNS = 512 };
    int64_t blocks = (w->classes + COLUMNS - 1) / COLUMNS;
#pragma omp parallel for schedule(static) num_threads(w->threads)
    for (int64_t b = 0; b < blocks; b++) {
        int64_t from = b * COLUMNS, n = w->classes - from < COLUMNS ? w->classes - from : COLUMNS;
        lanes_sum()->add_rows(w->bias_sum + from, w->logits + from, w->classes, (int)rows, (int)n);
    }
}

static void slopes_run(const struct walk *w, int64_t from, int64_t rows)
{
    if (w->dbias)
        bias_add(w, rows);
    if (w->low) {
#pragma omp parallel for schedule(static) num_threads(w->threads)
        for (int64_t r = 0; r < rows; r++)
            narrow_row(w, w->logits + r * w->classes);
    }
    if (w->dx) {
        struct gemm_job dx = dx_job(w, from, rows);
        gemm_run(&dx, w->room, w->threads);
    }
    if (w->dweight) {
        struct gemm_job dweight = dweight_job(w, from, rows);
        gemm_run(&dweight, w->room, w->threads);
    }
}

static enum status chunk_run(
    const struct walk *w, int64_t from, double d, double total[2], int64_t hits[2], struct err *e)
{
    int64_t rows = w->tokens - from < w->rows ? w->tokens - from : w->rows;
    bool slopes = w->dx || w->dweight || w->dbias;
    struct gemm_job logits = logits_job(w, from, rows);
    struct tensor scores = rows_tensor(w->logits, DT_F32, rows, w->classes);
    struct tensor target = tensor_make(at(w->target, from), DT_I64, SHAPE(rows));
    struct class_job j;
    gemm_run(&logits, w->room, w->threads);
    TRY(class_job_make(&w->attr->loss, &scores, &target, w->class_weight, &j, e));
    rows_run(w, &j, d, slopes);
    for (int64_t r = 0; r < rows; r++) {
        total[0] += w->part[r][0];
        total[1] += w->part[r][1];
        for (int k = 0; k < 2 && w->attr->correct; k++)
            hits[k] += w->hit[r][k];
    }
    if (slopes)
        slopes_run(w, from, rows);
    return ST_OK;
}

/* No tokens: gradients of weights are zeros. */
static void clear(const struct walk *w)
{
    if (w->dweight && w->tokens == 0)
        memset(w->dweight->data, 0, (size_t)tensor_count(w->dweight) * sizeof(float));
    if (w->dbias)
        memset(w->bias_sum, 0, (size_t)w->classes * sizeof *w->bias_sum);
}

static enum status linear_run(const struct kernel_args *a, struct err *e)
{
    struct walk w = walk_of(a, threads_kept(a->state));
    bool mean = w.attr->loss.reduction == REDUCE_MEAN;
    double total[2] = {0}, counted, d = 0;
    int64_t hits[2] = {0};
    (void)lay_out(&w, a->workspace);
    TRY(count_targets(&w, &counted, e));
    if (w.seed->data)
        d = (double)*(const float *)w.seed->data;
    if (mean)
        d /= (double)(float)counted;
    clear(&w);
    for (int64_t from = 0; from < w.tokens; from += w.rows)
        TRY(chunk_run(&w, from, d, total, hits, e));
    *(float *)a->out[0].data = (float)(mean ? total[0] / total[1] : total[0]);
    *(float *)a->out[1].data = (float)total[1];
    if (w.attr->correct)
        memcpy(a->out[2].data, hits, sizeof hits);
    for (int64_t c = 0; w.dbias && c < w.classes; c++)
        ((float *)w.dbias->data)[c] = (float)w.bias_sum[c];
    return ST_OK;
}

const struct kernel KERNEL(linear_loss) = {
    linear_prepare, linear_run, mem_free, "linear cross-entropy: chunks of packed products"};
