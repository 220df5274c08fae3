/* attention.c - the kernels of ATTENTION and ATTENTION_GRAD: operands, workspace, and which build
 * of the tile loops runs. The S x T matrix never exists: workspace is a few tiles per thread, and
 * for gradients one head's dK and dV. */
#include "backends/cpu/attention.h"

#if VEC_LANES == 16
int64_t attn_forward_bytes_avx512_bf16(const struct attn *n);
void attn_forward_run_avx512_bf16(const struct kernel_args *a, const struct attn *n, int threads);
int64_t attn_grad_bytes_avx512_bf16(const struct attn *n);
void attn_grad_run_avx512_bf16(
    const struct attn_grads *g, const struct attn *n, void *workspace, int threads);
/* Dot products of pairs need pairs of features. */
static bool by_pairs(const struct attn *n, enum dtype other)
{
    return cpu_isa() == ISA_AVX512_BF16 && n->q.dtype == DT_BF16 && other == DT_BF16 &&
           n->d % 2 == 0;
}
#define PICK(name, pairs) ((pairs) ? name##_avx512_bf16 : (name))
#else
static bool by_pairs(const struct attn *n, enum dtype other)
{
    (void)n;
    (void)other;
    return false;
}
#define PICK(name, pairs) ((void)(pairs), (name))
#endif

static int tasks_least(int threads, int64_t tasks)
{
    return tasks < threads ? tasks > 1 ? (int)tasks : 1 : threads;
}

static enum status
forward_prepare(const struct kernel_args *a, int64_t *bytes, void **state, struct err *e)
{
    (void)e;
    struct attn n = attn_of(a, 0);
    int threads = tasks_least(cpu_threads(), n.b * n.h * n.s);
    *state = threads_keep(threads);
    *bytes = threads * PICK(attn_forward_bytes, by_pairs(&n, DT_BF16))(&n);
    return ST_OK;
}

static enum status forward_run(const struct kernel_args *a, struct err *e)
{
    (void)e;
    struct attn n = attn_of(a, 0);
    if (tensor_count(&a->out[0]) > 0)
        PICK(attn_forward_run, by_pairs(&n, DT_BF16))(a, &n, threads_kept(a->state));
    return ST_OK;
}

static enum status
grad_prepare(const struct kernel_args *a, int64_t *bytes, void **state, struct err *e)
{
    (void)e;
    struct attn n = attn_of(a, 1);
    int threads = tasks_least(cpu_threads(), n.b * n.g);
    *state = threads_keep(threads);
    *bytes = threads * PICK(attn_grad_bytes, by_pairs(&n, a->in[0].dtype))(&n);
    return ST_OK;
}

static enum status grad_run(const struct kernel_args *a, struct err *e)
{
    (void)e;
    struct attn n = attn_of(a, 1);
    bool packed = a->n_out == 1;
    struct attn_grads g = {
        .dy = attn_rows_of(&a->in[0], 0),
        .y = attn_rows_of(&a->in[6], 0),
        .lse = a->in[7].data,
        .dq = attn_rows_of(&a->out[0], 0),
        .dk = attn_rows_of(&a->out[packed ? 0 : 1], packed ? n.h : 0),
        .dv = attn_rows_of(&a->out[packed ? 0 : 2], packed ? n.h + n.g : 0)};
    PICK(attn_grad_run, by_pairs(&n, a->in[0].dtype))(&g, &n, a->workspace, threads_kept(a->state));
    return ST_OK;
}

const struct kernel KERNEL(attention) = {
    forward_prepare, forward_run, mem_free, "attention: tiles"};
const struct kernel KERNEL(attention_grad) = {
    grad_prepare, grad_run, mem_free, "attention gradient: tiles"};
