/* loss_class.c - cross-entropy and negative log-likelihood over classes, and their gradients.
 *
 * Scores are [N, C, d...] (or [C]); a position is one of N d.... Its loss, with class weights w,
 * target t and label smoothing eps (torch.nn.functional.cross_entropy, PyTorch 1.13):
 *     (1 - eps) w[t] (-logp[t]) + eps / C sum_c w[c] (-logp[c])
 * A position whose target is ignore_index counts nowhere. The mean divides by the sum of w[t] over
 * the others (wsum; 0 / 0 is NaN when there is none). Probability targets: sum_c t'[c] w[c]
 * (-logp[c]), t' = t (1 - eps) + eps / C; the mean divides by the number of positions.
 *
 * Everything between the scores and the stored loss is in double, so that a loss near 0 keeps its
 * digits. Positions are cut into chunks of CHUNK, whose sums are added in order. The gradient may
 * overwrite the scores.
 */
#include "backends/cpu/loss_class.h"
#include "backends/backend.h"
#include "backends/cpu/lanes.h"
#include "backends/cpu/nd.h"

#include <math.h>
#include <string.h>

enum {
    CHUNK = 32,
    EXACT_CLASSES = 4096 /* up to here the gradient forms the sum anew instead of using lse */
};

/* Scores as [positions, C] and the targets of positions. */
enum status class_rows_of(
    const struct tensor *scores, const struct tensor *target, struct class_rows *r, struct err *e)
{
    const struct shape *s = &scores->shape;
    int dim = s->rank > 1 ? 1 : 0;
    *r = (struct class_rows){.scores = nd_of(scores, s, false), .classes = s->dim[dim]};
    nd_move(&r->scores, dim, s->rank - 1);
    r->positions = 1;
    for (int i = 0; i < s->rank - 1; i++)
        r->positions *= r->scores.dim[i];
    (void)nd_merge(&r->scores, 1, 0, r->scores.rank);
    r->soft = dtype_floating(target->dtype);
    r->target = nd_of(target, &target->shape, false);
    if (r->soft && target->shape.rank == s->rank)
        nd_move(&r->target, dim, s->rank - 1);
    (void)nd_merge(&r->target, 1, 0, r->target.rank);
    int64_t want = r->soft ? r->positions * r->classes : r->positions;
    if (tensor_count(target) != want)
        return err_set(
            e, ST_INVALID, "%lld targets for %lld positions", (long long)tensor_count(target),
            (long long)r->positions);
    return ST_OK;
}

int64_t class_target(const struct class_rows *r, int64_t position)
{
    int64_t at;
    nd_offsets(&r->target, position, 1, &at);
    if (r->target.dtype == DT_I64)
        return ((const int64_t *)(const void *)r->target.data)[at];
    return (int64_t)dtype_load(r->target.data, r->target.dtype, at);
}

static enum status check_targets(const struct class_rows *r, int64_t ignore, struct err *e)
{
    for (int64_t p = 0; p < r->positions && !r->soft; p++) {
        int64_t t = class_target(r, p);
        if (t != ignore && (t < 0 || t >= r->classes))
            return err_set(
                e, ST_INVALID, "target %lld is outside 0..%lld (%lld classes)", (long long)t,
                (long long)r->classes - 1, (long long)r->classes);
    }
    return ST_OK;
}

enum status class_job_make(
    const struct loss_attr *attr, const struct tensor *scores, const struct tensor *target,
    const struct tensor *weight, struct class_job *j, struct err *e)
{
    *j = (struct class_job){.attr = attr};
    TRY(class_rows_of(scores, target, &j->rows, e));
    TRY(check_targets(&j->rows, j->attr->ignore_index, e));
    j->mean = j->attr->reduction == REDUCE_MEAN;
    j->weight_sum = (double)j->rows.classes;
    if (weight->data) {
        if (weight->dtype != DT_F32 || !tensor_contiguous(weight))
            return err_set(e, ST_UNSUPPORTED, "class weights that are not dense float32");
        j->weight = weight->data;
        j->weight_sum = 0;
        for (int64_t c = 0; c < j->rows.classes; c++)
            j->weight_sum += (double)j->weight[c];
    }
    return ST_OK;
}

/* ---- one position's row of scores ---- */
struct row {
    const struct class_job *job;
    int64_t first;         /* element number of class 0 */
    double shift, log_sum; /* lse = shift + log_sum */
};

static double score(const struct class_job *j, int64_t element)
{
    float x;
    return (double)*nd_read(&j->rows.scores, element, 1, &x);
}

#define BLOCKS(j, c, n)                                                                            \
    for (int64_t c = 0, n;                                                                         \
         c < (j)->rows.classes &&                                                                  \
         (n = (j)->rows.classes - c < ND_BLOCK ? (j)->rows.classes - c : ND_BLOCK, true);          \
         c += n)

/* Largest score and the logarithm of the sum of e^(x - largest). */
static struct row row_of(const struct class_job *j, int64_t position)
{
    struct row r = {.job = j, .first = position * j->rows.classes};
    float buf[ND_BLOCK], m = -INFINITY;
    BLOCKS(j, c, n)
    {
        float b = lanes_sum()->max(nd_read(&j->rows.scores, r.first + c, (int)n, buf), (int)n);
        m = b > m || b != b || m != m ? (m != m ? m : b) : m;
    }
    double s = 0;
    BLOCKS(j, c, n)
    {
        const float *x = nd_read(&j->rows.scores, r.first + c, (int)n, buf);
        s += lanes_sum()->exp_sum(x, m, (int)n);
    }
    r.shift = (double)m;
    r.log_sum = log(s);
    return r;
}

/* sum over classes of coefficient (shift - x), the coefficient w or t' w. */
static double weighted(const struct row *r, bool soft)
{
    const struct class_job *j = r->job;
    float bx[ND_BLOCK], bt[ND_BLOCK];
    double eps = j->attr->label_smoothing, s = 0;
    float keep[2] = {(float)(1 - eps), (float)(eps / (double)j->rows.classes)};
    BLOCKS(j, c, n)
    {
        const float *x = nd_read(&j->rows.scores, r->first + c, (int)n, bx);
        const float *w = j->weight ? j->weight + c : NULL;
        if (soft) {
            const float *t = nd_read(&j->rows.target, r->first + c, (int)n, bt);
            s += lanes_sum()->soft((float)r->shift, x, t, w, keep, (int)n);
        } else {
            s += lanes_sum()->smooth((float)r->shift, x, w, (int)n);
        }
    }
    return s;
}

/* sum of t' w over classes. */
static double soft_weight(const struct class_job *j, int64_t first)
{
    float bt[ND_BLOCK], zero[ND_BLOCK] = {0};
    double eps = j->attr->label_smoothing, s = 0;
    float keep[2] = {(float)(1 - eps), (float)(eps / (double)j->rows.classes)};
    BLOCKS(j, c, n)
    {
        const float *t = nd_read(&j->rows.target, first + c, (int)n, bt);
        s += lanes_sum()->soft(1.0f, zero, t, j->weight ? j->weight + c : NULL, keep, (int)n);
    }
    return s;
}

/* The loss of a position, and its part of wsum. */
double class_loss(const struct class_job *j, int64_t p, float *lse, double *counted)
{
    struct row r = row_of(j, p);
    *lse = (float)(r.shift + r.log_sum);
    if (j->rows.soft) {
        *counted = 1;
        return weighted(&r, true) + soft_weight(j, r.first) * r.log_sum;
    }
    int64_t t = class_target(&j->rows, p);
    if (t == j->attr->ignore_index)
        return *counted = 0;
    double eps = j->attr->label_smoothing, w = j->weight ? (double)j->weight[t] : 1;
    double loss = w * (r.shift - score(j, r.first + t) + r.log_sum);
    *counted = w;
    if (eps > 0) {
        double smooth = weighted(&r, false) + j->weight_sum * r.log_sum;
        loss = (1 - eps) * loss + eps / (double)j->rows.classes * smooth;
    }
    return loss;
}

static double position_nll(const struct class_job *j, int64_t p, double *counted)
{
    int64_t t = class_target(&j->rows, p);
    if (t == j->attr->ignore_index)
        return *counted = 0;
    *counted = j->weight ? (double)j->weight[t] : 1;
    return -*counted * score(j, p * j->rows.classes + t);
}

static int64_t chunks_of(int64_t positions)
{
    return (positions + CHUNK - 1) / CHUNK;
}

static enum status prepare(const struct kernel_args *a, int64_t *bytes, void **state, struct err *e)
{
    (void)e;
    (void)state;
    const struct shape *s = &a->in[0].shape;
    int64_t classes = s->rank > 1 ? s->dim[1] : s->dim[0];
    int64_t positions = classes ? shape_count(s) / classes : shape_count(s);
    *bytes = chunks_of(positions) * 2 * (int64_t)sizeof(double);
    return ST_OK;
}

/* Losses of all positions; lse is NULL for NLL. */
static void forward(const struct kernel_args *a, const struct class_job *j, float *lse, float *wsum)
{
    double(*part)[2] = a->workspace, total[2] = {0};
    bool each = j->attr->reduction == REDUCE_NONE;
    int64_t chunks = chunks_of(j->rows.positions);
    bool parallel = j->rows.positions * j->rows.classes > ND_PIECE;
    (void)parallel;
#pragma omp parallel for schedule(static) if (parallel)
    for (int64_t c = 0; c < chunks; c++) {
        double sum[2] = {0};
        for (int64_t p = c * CHUNK; p < (c + 1) * CHUNK && p < j->rows.positions; p++) {
            double counted,
                loss = lse ? class_loss(j, p, &lse[p], &counted) : position_nll(j, p, &counted);
            if (each)
                dtype_store(a->out[0].data, a->out[0].dtype, p, loss);
            sum[0] += loss;
            sum[1] += counted;
        }
        memcpy(part[c], sum, sizeof sum);
    }
    for (int64_t c = 0; c < chunks; c++) {
        total[0] += part[c][0];
        total[1] += part[c][1];
    }
    if (!each)
        dtype_store(a->out[0].data, a->out[0].dtype, 0, j->mean ? total[0] / total[1] : total[0]);
    *wsum = (float)total[1];
}

static enum status cross_entropy(const struct kernel_args *a, struct err *e)
{
    struct class_job j;
    struct tensor none = {0};
    TRY(class_job_make(
        &a->attr->loss, &a->in[0], &a->in[1], a->n_in > 2 ? &a->in[2] : &none, &j, e));
    forward(a, &j, a->out[1].data, a->out[2].data);
    return ST_OK;
}

static enum status nll(const struct kernel_args *a, struct err *e)
{
    struct class_job j;
    struct tensor none = {0};
    TRY(class_job_make(
        &a->attr->loss, &a->in[0], &a->in[1], a->n_in > 2 ? &a->in[2] : &none, &j, e));
    if (j.rows.soft)
        return err_set(e, ST_INVALID, "nll takes class indices, not probabilities");
    forward(a, &j, NULL, a->out[1].data);
    return ST_OK;
}

/* ---- gradients ---- */

/* What a position's gradient is multiplied by. */
static double
outer_gradient(const struct kernel_args *a, const struct class_job *j, int64_t p, double wsum)
{
    const struct tensor *d = &a->in[0];
    if (j->attr->reduction == REDUCE_NONE)
        return dtype_load(d->data, d->dtype, p);
    double g = dtype_load(d->data, d->dtype, 0);
    return j->mean ? g / wsum : g;
}

static void zero_row(const struct class_job *j, const struct nd *out, int64_t first)
{
    float zero[ND_BLOCK] = {0};
    BLOCKS(j, c, n)
    nd_write(out, first + c, (int)n, zero);
}

/* y = scale softmax - floor w - share t w, the last part for probabilities only. */
static void
spread(const struct row *r, const struct nd *out, double scale, double least, double share)
{
    const struct class_job *j = r->job;
    float bx[ND_BLOCK], by[ND_BLOCK], bt[ND_BLOCK];
    float f = (float)(scale * exp(-r->log_sum)), floor_ = (float)least, part = (float)share;
    bool plain = least == 0 && share == 0;
    BLOCKS(j, c, n)
    {
        const float *x = nd_read(&j->rows.scores, r->first + c, (int)n, bx);
        const float *w = j->weight ? j->weight + c : NULL;
        float *y = nd_target(out, r->first + c, by);
        lanes_sum()->exp_scale(x, (float)r->shift, f, y, (int)n);
        const float *t = share != 0 ? nd_read(&j->rows.target, r->first + c, (int)n, bt) : NULL;
        for (int64_t k = 0; k < n && !plain; k++)
            y[k] -= (floor_ + (t ? part * t[k] : 0.0f)) * (w ? w[k] : 1.0f);
        nd_write(out, r->first + c, (int)n, y);
    }
}

void class_grad(const struct class_job *j, const struct nd *out, int64_t p, double d, float lse)
{
    double eps = j->attr->label_smoothing, classes = (double)j->rows.classes;
    struct row r = {.job = j, .first = p * j->rows.classes, .shift = (double)lse};
    int64_t t = j->rows.soft ? 0 : class_target(&j->rows, p);
    if (!j->rows.soft && t == j->attr->ignore_index) {
        zero_row(j, out, r.first);
        return;
    }
    if (j->rows.classes <= EXACT_CLASSES)
        r = row_of(j, p);
    if (j->rows.soft) {
        spread(&r, out, d * soft_weight(j, r.first), d * eps / classes, d * (1 - eps));
        return;
    }
    double w = j->weight ? (double)j->weight[t] : 1, wt = w;
    double scale = (1 - eps) * w + (eps > 0 ? eps / classes * j->weight_sum : 0);
    double own = scale * exp(score(j, r.first + t) - r.shift - r.log_sum); /* before overwriting */
    own -= (1 - eps) * w + (eps > 0 ? eps / classes * wt : 0);
    spread(&r, out, d * scale, eps > 0 ? d * eps / classes : 0, 0);
    float y = (float)(d * own);
    nd_write(out, r.first + t, 1, &y);
}

static void position_nll_grad(const struct class_job *j, const struct nd *out, int64_t p, double d)
{
    int64_t t = class_target(&j->rows, p), first = p * j->rows.classes;
    zero_row(j, out, first);
    if (t == j->attr->ignore_index)
        return;
    float y = (float)(-d * (j->weight ? (double)j->weight[t] : 1));
    nd_write(out, first + t, 1, &y);
}

/* Operands: dloss scores target weight? [lse] wsum. */
static enum status grad(const struct kernel_args *a, struct err *e)
{
    bool nll_form = a->code == OP_NLL_GRAD;
    struct class_job j;
    TRY(class_job_make(&a->attr->loss, &a->in[1], &a->in[2], &a->in[3], &j, e));
    struct class_rows to;
    TRY(class_rows_of(&a->out[0], &a->in[2], &to, e));
    const float *lse = nll_form ? NULL : a->in[4].data;
    double wsum = (double)*(const float *)a->in[nll_form ? 4 : 5].data;
    bool parallel = j.rows.positions * j.rows.classes > ND_PIECE;
    (void)parallel;
#pragma omp parallel for schedule(static) if (parallel)
    for (int64_t p = 0; p < j.rows.positions; p++) {
        double d = outer_gradient(a, &j, p, wsum);
        if (nll_form)
            position_nll_grad(&j, &to.scores, p, d);
        else
            class_grad(&j, &to.scores, p, d, lse[p]);
    }
    return ST_OK;
}

extern const struct kernel kernel_cross_entropy, kernel_nll, kernel_class_grad;
const struct kernel kernel_cross_entropy = {
    .prepare = prepare, .run = cross_entropy, .name = "cross-entropy"};
const struct kernel kernel_nll = {.prepare = prepare, .run = nll, .name = "nll"};
const struct kernel kernel_class_grad = {.run = grad, .name = "class loss gradient"};
