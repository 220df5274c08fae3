/* attention.h - private to the attention kernels: how the operands of ATTENTION and ATTENTION_GRAD
 * are seen. Packed queries, keys and values are three views of one tensor. */
#ifndef BACKENDS_CPU_ATTENTION_H
#define BACKENDS_CPU_ATTENTION_H

#include "backends/cpu/args.h"
#include "backends/cpu/vec.h"

/* [B, S, N, D] with rows of D as they lie. */
struct attn_rows {
    char *data;
    enum dtype dtype;
    int64_t batch, position, head; /* strides in elements */
};
struct attn {
    int64_t b, s, t, h, g, d; /* batch, queries, keys, heads, heads of keys, head size */
    struct attn_rows q, k, v;
    struct tensor bias; /* data NULL: none */
    float scale;
    bool causal;
    int64_t window, offset; /* query i sees keys up to i + offset, with a window the last ones */
    double dropout;
    uint32_t stream;
    const int64_t *rng;
};

static inline struct attn_rows attn_rows_of(const struct tensor *t, int64_t first_head)
{
    struct attn_rows r = {NULL, t->dtype, t->stride[0], t->stride[1], t->stride[2]};
    if (t->data)
        r.data = (char *)t->data + first_head * r.head * dtype_size(t->dtype);
    return r;
}

/* q k? v? bias? rng? begin at a->in[first]. */
static inline struct attn attn_of(const struct kernel_args *a, int first)
{
    const struct attention_attr *at = &a->attr->attention;
    const struct tensor *q = &a->in[first];
    struct attn n = {.h = at->heads, .g = at->kv_heads, .causal = at->causal};
    n.b = q->shape.dim[0];
    n.s = n.t = q->shape.dim[1];
    n.d = q->shape.dim[3];
    n.q = attn_rows_of(q, 0);
    if (arg_present(a, first + 1)) {
        n.t = a->in[first + 1].shape.dim[1];
        n.k = attn_rows_of(&a->in[first + 1], 0);
        n.v = attn_rows_of(&a->in[first + 2], 0);
    } else {
        n.k = attn_rows_of(q, n.h);
        n.v = attn_rows_of(q, n.h + n.g);
    }
    if (arg_present(a, first + 3))
        n.bias = a->in[first + 3];
    n.scale = at->scale > 0 ? (float)at->scale : (float)(1 / sqrt((double)n.d));
    n.window = at->window;
    n.offset = n.t - n.s;
    n.dropout = at->dropout;
    n.stream = at->stream;
    n.rng = arg_present(a, first + 4) ? a->in[first + 4].data : NULL;
    return n;
}

/* What ATTENTION_GRAD has beside. */
struct attn_grads {
    struct attn_rows dy, y, dq, dk, dv;
    const float *lse;
};

/* Row (b, position, head) of a tensor. */
static inline char *attn_row(const struct attn_rows *r, int64_t b, int64_t i, int64_t head)
{
    return r->data + (b * r->batch + i * r->position + head * r->head) * dtype_size(r->dtype);
}

/* Keys [*from, *to) that query i may see by its position. */
static inline void attn_span(const struct attn *n, int64_t i, int64_t *from, int64_t *to)
{
    int64_t end = n->causal ? i + n->offset + 1 : n->t, begin = n->window ? end - n->window : 0;
    *to = end < 0 ? 0 : end > n->t ? n->t : end;
    *from = begin < 0 ? 0 : begin > *to ? *to : begin;
}

/* Workspace of one thread, and the loops over tiles on `threads` of them. */
#define attn_forward_bytes ISA_GLUE(attn_forward_bytes, ISA_SUFFIX)
int64_t attn_forward_bytes(const struct attn *n);
#define attn_forward_run ISA_GLUE(attn_forward_run, ISA_SUFFIX)
void attn_forward_run(const struct kernel_args *a, const struct attn *n, int threads);
#define attn_grad_bytes ISA_GLUE(attn_grad_bytes, ISA_SUFFIX)
int64_t attn_grad_bytes(const struct attn *n);
#define attn_grad_run ISA_GLUE(attn_grad_run, ISA_SUFFIX)
void attn_grad_run(const struct attn_grads *g, const struct attn *n, void *workspace, int threads);

#endif
