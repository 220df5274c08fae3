/* loss_ew.c - losses that are a function of each element: MSE, L1, smooth L1, Huber, BCE (with
 * logits), KL divergence; sums in chunks by shape, added in order, in double.
 */
#include "backends/backend.h"
#include "backends/cpu/lanes.h"
#include "backends/cpu/nd.h"

#include <math.h>

enum { X, TARGET, WEIGHT, POS_WEIGHT, OPERANDS };

struct job {
    const struct loss_attr *attr;
    struct nd out, v[OPERANDS], d; /* d: gradient only */
    bool present[OPERANDS], each;
    int64_t count;
    double divisor; /* of the sum, and of the gradient */
};

/* in: x, target, weight?, pos_weight?; `out` has the order of elements. */
static void job_of(
    const struct kernel_args *a, const struct tensor *in, int n_in, const struct tensor *d,
    struct job *j)
{
    *j = (struct job){.attr = &a->attr->loss, .count = tensor_count(&in[X])};
    const struct shape *s = &in[X].shape;
    bool each = j->each = j->attr->reduction == REDUCE_NONE;
    const struct tensor *t[OPERANDS + 2] = {d || each ? &a->out[0] : &in[X]};
    struct nd v[OPERANDS + 2];
    for (int k = 0; k < OPERANDS; k++) {
        j->present[k] = k < n_in && in[k].data;
        t[k + 1] = j->present[k] ? &in[k] : &in[X];
    }
    t[OPERANDS + 1] = d ? d : &in[X];
    nd_align(v, t, OPERANDS + 2, s);
    j->out = v[0];
    for (int k = 0; k < OPERANDS; k++)
        j->v[k] = v[k + 1];
    j->d = v[OPERANDS + 1];
    j->divisor = 1;
    if (j->attr->reduction == REDUCE_MEAN)
        j->divisor = (double)j->count;
    if (j->attr->reduction == REDUCE_BATCHMEAN)
        j->divisor = s->rank > 0 ? (double)s->dim[0] : 1;
}

/* Reads n elements of all operands; returns false when BCE's input is outside [0, 1]. */
static bool read_block(
    const struct job *j, int64_t i, int n, float buf[OPERANDS][ND_BLOCK], struct loss_block *b)
{
    b->x = nd_read(&j->v[X], i, n, buf[X]);
    b->target = nd_read(&j->v[TARGET], i, n, buf[TARGET]);
    b->weight = j->present[WEIGHT] ? nd_read(&j->v[WEIGHT], i, n, buf[WEIGHT]) : NULL;
    b->pos_weight =
        j->present[POS_WEIGHT] ? nd_read(&j->v[POS_WEIGHT], i, n, buf[POS_WEIGHT]) : NULL;
    bool good = true;
    for (int k = 0; k < n && j->attr->kind == LOSS_BCE; k++)
        good = good && !(b->x[k] < 0 || b->x[k] > 1);
    return good;
}

static bool forward_piece(const struct job *j, int64_t i, int64_t end, double *sum)
{
    float buf[OPERANDS][ND_BLOCK], by[ND_BLOCK];
    bool good = true;
    for (; i < end; i += ND_BLOCK) {
        int n = end - i < ND_BLOCK ? (int)(end - i) : ND_BLOCK;
        struct loss_block b;
        good = read_block(j, i, n, buf, &b) && good;
        b.y = j->each ? nd_target(&j->out, i, by) : by;
        lanes_loss()->value(j->attr, &b, n);
        if (j->each)
            nd_write(&j->out, i, n, b.y);
        else
            *sum += lanes_sum()->sum(b.y, n);
    }
    return good;
}

static int64_t pieces_of(int64_t count)
{
    return (count + ND_PIECE - 1) / ND_PIECE;
}

static enum status prepare(const struct kernel_args *a, int64_t *bytes, void **state, struct err *e)
{
    (void)e;
    (void)state;
    *bytes = pieces_of(tensor_count(&a->in[X])) * (int64_t)sizeof(double);
    return ST_OK;
}

static enum status run(const struct kernel_args *a, struct err *e)
{
    struct job j;
    job_of(a, a->in, a->n_in, NULL, &j);
    double *part = a->workspace, total = 0;
    int64_t pieces = pieces_of(j.count), bad = 0;
#pragma omp parallel for schedule(static) reduction(+ : bad) if (pieces > 1)
    for (int64_t p = 0; p < pieces; p++) {
        int64_t end = (p + 1) * ND_PIECE < j.count ? (p + 1) * ND_PIECE : j.count;
        part[p] = 0;
        bad += !forward_piece(&j, p * ND_PIECE, end, &part[p]);
    }
    if (bad)
        return err_set(e, ST_INVALID, "an input of binary cross-entropy is outside 0..1");
    for (int64_t p = 0; p < pieces; p++)
        total += part[p];
    if (!j.each)
        dtype_store(a->out[0].data, a->out[0].dtype, 0, total / j.divisor);
    return ST_OK;
}

static void grad_piece(const struct job *j, int64_t i, int64_t end, double scalar)
{
    float buf[OPERANDS][ND_BLOCK], by[ND_BLOCK], bd[ND_BLOCK];
    for (int k = 0; k < ND_BLOCK; k++)
        bd[k] = (float)scalar;
    for (; i < end; i += ND_BLOCK) {
        int n = end - i < ND_BLOCK ? (int)(end - i) : ND_BLOCK;
        struct loss_block b;
        (void)read_block(j, i, n, buf, &b);
        b.d = j->each ? nd_read(&j->d, i, n, bd) : bd;
        b.y = nd_target(&j->out, i, by);
        lanes_loss()->grad(j->attr, &b, n);
        nd_write(&j->out, i, n, b.y);
    }
}

/* Operands: dloss x target weight? pos_weight?. */
static enum status grad(const struct kernel_args *a, struct err *e)
{
    (void)e;
    struct job j;
    job_of(a, a->in + 1, a->n_in - 1, &a->in[0], &j);
    double scalar = j.each ? 0 : dtype_load(a->in[0].data, a->in[0].dtype, 0) / j.divisor;
    int64_t pieces = pieces_of(j.count);
#pragma omp parallel for schedule(static) if (pieces > 1)
    for (int64_t p = 0; p < pieces; p++) {
        int64_t end = (p + 1) * ND_PIECE < j.count ? (p + 1) * ND_PIECE : j.count;
        grad_piece(&j, p * ND_PIECE, end, scalar);
    }
    return ST_OK;
}

extern const struct kernel kernel_loss_ew, kernel_loss_ew_grad;
const struct kernel kernel_loss_ew = {.prepare = prepare, .run = run, .name = "loss"};
const struct kernel kernel_loss_ew_grad = {.run = grad, .name = "loss gradient"};
