/* attention.c - ATTENTION and ATTENTION_GRAD, one row of scores at a time. */
#include "backends/cpu/attention.h"

#include "backends/cpu/lanes.h"

static struct dropout_key key_of(const struct attn *n)
{
    return (struct dropout_key){
        .seed = (uint64_t)n->rng[0],
        .stream = n->stream,
        .step = (uint32_t)n->rng[1],
        .threshold = (uint32_t)fmin(n->dropout * 0x1p32, 0x1p32 - 1),
        .scale = n->dropout >= 1 ? 0.0f : 1.0f / (float)(1 - n->dropout)};
}

/* y = x kept and scaled, for keys from .. to of query i. */
static void drop(
    const struct attn *n, const float *x, float *y, int64_t b, int64_t h, int64_t i, int64_t from,
    int64_t to)
{
    struct dropout_key k = key_of(n);
    lanes_ew()->dropout(
        x + from, y + from, (int)(to - from), &k, ((b * n->h + h) * n->s + i) * n->t + from);
}

static float dot(const struct attn *n, const char *x, enum dtype tx, const char *y, enum dtype ty)
{
    float sum = 0;
    for (int64_t c = 0; c < n->d; c++)
        sum += fload(x, tx, c) * fload(y, ty, c);
    return sum;
}

static void
scores(const struct attn *n, int64_t b, int64_t h, int64_t i, int64_t from, int64_t to, float *s)
{
    const char *q = attn_row(&n->q, b, i, h);
    for (int64_t j = from; j < to; j++) {
        s[j] =
            dot(n, q, n->q.dtype, attn_row(&n->k, b, j, h / (n->h / n->g)), n->k.dtype) * n->scale;
        if (n->bias.data) {
            const int64_t *st = n->bias.stride;
            s[j] += ((const float *)n->bias.data)[b * st[0] + h * st[1] + i * st[2] + j * st[3]];
        }
    }
}

static void
row_forward(const struct attn *n, int64_t b, int64_t h, int64_t i, char *y, float *lse, float *s)
{
    int64_t from, to;
    attn_span(n, i, &from, &to);
    scores(n, b, h, i, from, to, s);
    float m = -INFINITY, sum = 0;
    for (int64_t j = from; j < to; j++)
        m = s[j] > m ? s[j] : m;
    for (int64_t j = from; j < to; j++)
        sum += s[j] = m > -INFINITY ? expf(s[j] - m) : 0;
    *lse = sum > 0 ? m + logf(sum) : -INFINITY;
    if (n->dropout > 0 && to > from)
        drop(n, s, s, b, h, i, from, to);
    for (int64_t c = 0; c < n->d; c++) {
        float x = 0;
        for (int64_t j = from; j < to; j++)
            x += s[j] * fload(attn_row(&n->v, b, j, h / (n->h / n->g)), n->v.dtype, c);
        fstore(y, n->q.dtype, c, sum > 0 ? x / sum : 0);
    }
}

static enum status
forward_prepare(const struct kernel_args *a, int64_t *bytes, void **state, struct err *e)
{
    (void)e;
    struct attn n = attn_of(a, 0);
    *state = threads_keep(cpu_threads());
    *bytes = cpu_threads() * n.t * 4;
    return ST_OK;
}

static enum status forward_run(const struct kernel_args *a, struct err *e)
{
    (void)e;
    struct attn n = attn_of(a, 0);
    struct attn_rows y = attn_rows_of(&a->out[0], 0);
    int used = threads_kept(a->state);
    int64_t rows = n.b * n.h * n.s;
#pragma omp parallel for schedule(static) num_threads(used)
    for (int i = 0; i < used; i++)
        for (int64_t r = rows * i / used; r < rows * (i + 1) / used; r++) {
            int64_t q = r % n.s, h = r / n.s % n.h, b = r / n.s / n.h;
            row_forward(
                &n, b, h, q, attn_row(&y, b, q, h), (float *)a->out[1].data + r,
                (float *)a->workspace + i * n.t);
        }
    return ST_OK;
}

struct grad {
    struct attn_rows dy, y, dq, dk, dv;
    const float *lse;
};

/* Adds query i of head h to the keys' sums dk and dv [T, D]. */
static void row_grad(
    const struct attn *n, const struct grad *p, int64_t b, int64_t h, int64_t i, float *s,
    float *dk, float *dv)
{
    int64_t from, to, g = h / (n->h / n->g);
    float *dp = s + n->t, *kept = dp + n->t, lse = p->lse[(b * n->h + h) * n->s + i];
    const char *dy = attn_row(&p->dy, b, i, h), *q = attn_row(&n->q, b, i, h);
    attn_span(n, i, &from, &to);
    scores(n, b, h, i, from, to, s);
    float d = dot(n, dy, p->dy.dtype, attn_row(&p->y, b, i, h), p->y.dtype);
    for (int64_t j = from; j < to; j++) {
        kept[j] = s[j] = lse > -INFINITY ? expf(s[j] - lse) : 0;
        dp[j] = dot(n, dy, p->dy.dtype, attn_row(&n->v, b, j, g), n->v.dtype);
    }
    if (n->dropout > 0 && to > from) {
        drop(n, kept, kept, b, h, i, from, to);
        drop(n, dp, dp, b, h, i, from, to);
    }
    for (int64_t j = from; j < to; j++)
        dp[j] = s[j] * (dp[j] - d) * n->scale;
    char *dq = attn_row(&p->dq, b, i, h);
    for (int64_t c = 0; c < n->d; c++) {
        float x = 0;
        for (int64_t j = from; j < to; j++) {
            x += dp[j] * fload(attn_row(&n->k, b, j, g), n->k.dtype, c);
            dk[j * n->d + c] += dp[j] * fload(q, n->q.dtype, c);
            dv[j * n->d + c] += kept[j] * fload(dy, p->dy.dtype, c);
        }
        fstore(dq, p->dq.dtype, c, x);
    }
}

static int64_t grad_bytes(const struct attn *n)
{
    return n->t * (3 + 2 * n->d) * 4;
}

static enum status
grad_prepare(const struct kernel_args *a, int64_t *bytes, void **state, struct err *e)
{
    (void)e;
    struct attn n = attn_of(a, 1);
    *state = threads_keep(cpu_threads());
    *bytes = cpu_threads() * grad_bytes(&n);
    return ST_OK;
}

static void kv_grad(const struct attn *n, const struct grad *p, int64_t task, float *room)
{
    int64_t b = task / n->g, g = task % n->g, each = n->h / n->g;
    float *dk = room + 3 * n->t, *dv = dk + n->t * n->d;
    memset(dk, 0, (size_t)(n->t * n->d) * 8);
    for (int64_t h = g * each; h < (g + 1) * each; h++)
        for (int64_t i = 0; i < n->s; i++)
            row_grad(n, p, b, h, i, room, dk, dv);
    for (int64_t j = 0; j < n->t; j++)
        for (int64_t c = 0; c < n->d; c++) {
            fstore(attn_row(&p->dk, b, j, g), p->dk.dtype, c, dk[j * n->d + c]);
            fstore(attn_row(&p->dv, b, j, g), p->dv.dtype, c, dv[j * n->d + c]);
        }
}

static enum status grad_run(const struct kernel_args *a, struct err *e)
{
    (void)e;
    struct attn n = attn_of(a, 1);
    bool packed = a->n_out == 1;
    struct grad p = {
        .dy = attn_rows_of(&a->in[0], 0),
        .y = attn_rows_of(&a->in[6], 0),
        .lse = a->in[7].data,
        .dq = attn_rows_of(&a->out[0], 0),
        .dk = attn_rows_of(&a->out[packed ? 0 : 1], packed ? n.h : 0),
        .dv = attn_rows_of(&a->out[packed ? 0 : 2], packed ? n.h + n.g : 0)};
    int used = threads_kept(a->state);
    int64_t tasks = n.b * n.g;
#pragma omp parallel for schedule(static) num_threads(used)
    for (int i = 0; i < used; i++)
        for (int64_t t = tasks * i / used; t < tasks * (i + 1) / used; t++)
            kv_grad(&n, &p, t, (float *)a->workspace + i * grad_bytes(&n) / 4);
    return ST_OK;
}

const struct kernel KERNEL(attention) = {forward_prepare, forward_run, mem_free, "attention"};
const struct kernel KERNEL(attention_grad) = {
    grad_prepare, grad_run, mem_free, "attention gradient"};
