/* dropout.c - y = x times 0 or 1 / (1 - p), from counter-based numbers (base/rng.h).
 *
 * The number of an element is rng_block(seed, stream, step, e / 4)[e % 4], e its place in row-major
 * order of the logical shape: every layout has the same mask, and so have the gradient and a
 * recomputation. It is dropped when the number is below p 2^32. As in PyTorch, x is multiplied, so
 * that NaN stays NaN. A third operand, 0 or 1 for each element, takes the numbers' place.
 */
#include "backends/cpu/ew.h"
#include "backends/cpu/lanes.h"
#include "backends/cpu/nd.h"

#include <math.h>
#include <string.h>

static void block_mask(const struct ew_call *c, const float *const *x, float *y, int n)
{
    float scale = *(const float *)c->more;
    for (int i = 0; i < n; i++)
        y[i] = x[0][i] * (x[1][i] * scale);
}

static void block_scale(const struct ew_call *c, const float *const *x, float *y, int n)
{
    float scale = *(const float *)c->more;
    for (int i = 0; i < n; i++)
        y[i] = x[0][i] * scale;
}

static void piece(const struct nd *v, const struct dropout_key *k, int64_t i, int64_t end)
{
    float bx[ND_BLOCK], by[ND_BLOCK];
    int64_t at[ND_BLOCK];
    bool in_order = nd_flat(&v[2]);
    for (; i < end; i += ND_BLOCK) {
        int n = end - i < ND_BLOCK ? (int)(end - i) : ND_BLOCK;
        const float *x = nd_read(&v[1], i, n, bx);
        float *y = nd_target(&v[0], i, by);
        if (in_order) {
            lanes_ew()->dropout(x, y, n, k, i);
        } else {
            nd_offsets(&v[2], i, n, at);
            lanes_ew()->dropout_at(x, y, n, k, at);
        }
        nd_write(&v[0], i, n, y);
    }
}

static void random_mask(const struct kernel_args *a, float scale)
{
    const int64_t *rng = a->in[1].data;
    struct dropout_key k = {
        .seed = (uint64_t)rng[0],
        .stream = a->attr->dropout.stream,
        .step = (uint32_t)rng[1],
        .threshold = (uint32_t)fmin(a->attr->dropout.p * 0x1p32, 0x1p32 - 1),
        .scale = scale};
    /* A dense row-major tensor that nobody reads: its offsets are the element numbers. */
    struct tensor places = tensor_make(NULL, DT_F32, a->out[0].shape);
    const struct tensor *t[] = {&a->out[0], &a->in[0], &places};
    struct nd v[3];
    nd_align(v, t, 3, &a->out[0].shape);
    int64_t count = tensor_count(&a->out[0]), pieces = (count + ND_PIECE - 1) / ND_PIECE;
#pragma omp parallel for schedule(static) if (pieces > 1)
    for (int64_t p = 0; p < pieces; p++)
        piece(v, &k, p * ND_PIECE, (p + 1) * ND_PIECE < count ? (p + 1) * ND_PIECE : count);
}

static enum status run(const struct kernel_args *a, struct err *e)
{
    double p = a->attr->dropout.p;
    float scale = p >= 1 ? 0.0f : 1.0f / (float)(1 - p);
    struct ew_call c = {.args = a, .more = &scale};
    const struct tensor *in[] = {&a->in[0], a->n_in > 2 ? &a->in[2] : NULL};
    bool masked = in[1] && in[1]->data;
    c.block = masked ? block_mask : block_scale;
    if (masked || p <= 0 || p >= 1)
        return ew_run(&c, &a->out[0], in, masked ? 2 : 1, e);
    if (tensor_count(&a->out[0]) > 0)
        random_mask(a, scale);
    return ST_OK;
}

extern const struct kernel kernel_dropout;
const struct kernel kernel_dropout = {.run = run, .name = "dropout"};
