/* update.c - what surrounds the optimizer: accumulation, the check of all gradients, update ratio.
 *
 * Norms are formed in double, in pieces by shape that are added in order: gradients of 1e20 do not
 * overflow, and threads do not change the bits.
 */
#include "backends/backend.h"
#include "backends/cpu/ew.h"
#include "backends/cpu/lanes.h"
#include "backends/cpu/nd.h"

#include <math.h>
#include <string.h>

static void block_add(const struct ew_call *c, const float *const *x, float *y, int n)
{
    (void)c;
    lanes_ew()->binary(OP_ADD, x[0], x[1], y, n);
}

/* sum g: the sum's storage is updated. */
static enum status accumulate(const struct kernel_args *a, struct err *e)
{
    struct ew_call c = {.args = a, .block = block_add};
    const struct tensor *in[] = {&a->in[0], &a->in[1]};
    return ew_run(&c, &a->in[0], in, 2, e);
}

static int64_t pieces_of(const struct tensor *t)
{
    return (tensor_count(t) + ND_PIECE - 1) / ND_PIECE;
}

static struct nd in_memory_order(const struct tensor *t)
{
    struct nd v;
    nd_align(&v, &t, 1, &t->shape);
    return v;
}

/* Sum of ((x scale) scale2)^2 of piece p; *finite becomes false when an element is not. Where the
 * sum, in double, is finite, so is every element. */
static double piece_squares(const struct nd *v, int64_t p, const float scale[2], bool *finite)
{
    float buf[ND_BLOCK];
    int64_t count = nd_count(v), end = (p + 1) * ND_PIECE < count ? (p + 1) * ND_PIECE : count;
    int64_t i = p * ND_PIECE;
    double s = 0;
    for (bool flat = v->dtype == DT_F32 && nd_flat(v); flat && i + 4 * ND_BLOCK <= end;) {
        double sums[4];
        const float *x = (const float *)(const void *)v->data + i;
        lanes_sum()->four_squares(x, scale[0], scale[1], ND_BLOCK, sums);
        for (int b = 0; b < 4; b++, x += ND_BLOCK, i += ND_BLOCK) {
            s += sums[b];
            if (!isfinite(sums[b]))
                *finite = *finite && lanes_sum()->finite(x, ND_BLOCK);
        }
    }
    for (; i < end; i += ND_BLOCK) {
        int n = end - i < ND_BLOCK ? (int)(end - i) : ND_BLOCK;
        const float *x = nd_read(v, i, n, buf);
        s += lanes_sum()->sum_squares(x, scale[0], scale[1], n);
        *finite = *finite && lanes_sum()->finite(x, n);
    }
    return s;
}

/* Sum of squares of a tensor; `part` has room for its pieces. */
static double
tensor_squares(const struct tensor *t, const float scale[2], double *part, bool *finite)
{
    struct nd v = in_memory_order(t);
    int64_t pieces = pieces_of(t), bad = 0;
    double s = 0;
#pragma omp parallel for schedule(static) reduction(+ : bad) if (pieces > 1)
    for (int64_t p = 0; p < pieces; p++) {
        bool good = true;
        part[p] = piece_squares(&v, p, scale, &good);
        bad += !good;
    }
    for (int64_t p = 0; p < pieces; p++)
        s += part[p];
    *finite = *finite && bad == 0;
    return s;
}

/* Room for the pieces of the largest operand from in[first] on. */
static enum status prepare(const struct kernel_args *a, int64_t *bytes, void **state, struct err *e)
{
    (void)e;
    (void)state;
    int64_t most = 1;
    for (int i = 1; i < a->n_in; i++)
        most = pieces_of(&a->in[i]) > most ? pieces_of(&a->in[i]) : most;
    *bytes = most * (int64_t)sizeof(double);
    return ST_OK;
}

/* loss_scale g... -> ctl. The norm is that of the unscaled gradients, as clip_grad_norm_ after
 * unscale_; an infinite or NaN gradient sets skip, and nothing is updated. */
static enum status grad_check(const struct kernel_args *a, struct err *e)
{
    (void)e;
    double max_norm = a->attr->check.max_norm, squares = 0;
    float inverse = (float)(1 / (double)*(const float *)a->in[0].data);
    const float scale[2] = {inverse, 1};
    bool finite = true;
    for (int i = 1; i < a->n_in; i++)
        squares += tensor_squares(&a->in[i], scale, a->workspace, &finite);
    double norm = sqrt(squares), clip = 1;
    if (max_norm > 0 && finite)
        clip = fmin(1, max_norm / (norm + 1e-6));
    float *ctl = a->out[0].data;
    ctl[0] = inverse;
    ctl[1] = (float)clip;
    ctl[2] = finite ? 0.0f : 1.0f;
    ctl[3] = (float)norm;
    return ST_OK;
}

/* Checks of single gradients to one of all of them: the norm of their norms, skip if any skips. */
static enum status grad_join(const struct kernel_args *a, struct err *e)
{
    (void)e;
    const float *first = a->in[0].data;
    float *ctl = a->out[0].data, skip = 0;
    double squares = 0;
    for (int i = 0; i < a->n_in; i++) {
        const float *c = a->in[i].data;
        squares += (double)c[3] * (double)c[3];
        skip = c[2] != 0 ? 1 : skip;
    }
    ctl[0] = first[0];
    ctl[1] = 1;
    ctl[2] = skip;
    ctl[3] = (float)sqrt(squares);
    return ST_OK;
}

/* hyper ctl (param grad)...: norm of rate times gradient over norm of the parameters, all of them
 * together; 0 when nothing is updated or all parameters are 0. */
static enum status update_ratio(const struct kernel_args *a, struct err *e)
{
    (void)e;
    double rate = *(const double *)a->in[0].data, g = 0, w = 0;
    const float *ctl = a->in[1].data, one[2] = {1, 1};
    bool finite = true;
    for (int i = 2; i + 1 < a->n_in; i += 2) {
        w += tensor_squares(&a->in[i], one, a->workspace, &finite);
        g += tensor_squares(&a->in[i + 1], ctl, a->workspace, &finite);
    }
    bool none = ctl[2] != 0 || w == 0;
    dtype_store(a->out[0].data, a->out[0].dtype, 0, none ? 0 : fabs(rate) * sqrt(g) / sqrt(w));
    return ST_OK;
}

extern const struct kernel kernel_accumulate, kernel_grad_check, kernel_grad_join,
    kernel_update_ratio;
const struct kernel kernel_accumulate = {.run = accumulate, .name = "accumulate"};
const struct kernel kernel_grad_check = {
    .prepare = prepare, .run = grad_check, .name = "gradient check"};
const struct kernel kernel_grad_join = {.run = grad_join, .name = "gradient checks joined"};
const struct kernel kernel_update_ratio = {
    .prepare = prepare, .run = update_ratio, .name = "update ratio"};
