/* gemm_op.c - the GEMM operator: tensor views to a job of gemm.h. */
#include "backends/cpu/gemm.h"

#include "backends/cpu/args.h"
#include "base/mem.h"

static void operand_set(struct gemm_operand *o, const struct tensor *t, bool transposed)
{
    int r = t->shape.rank;
    o->data = t->data;
    o->dtype = t->dtype;
    o->row = t->stride[transposed ? r - 1 : r - 2];
    o->col = t->stride[transposed ? r - 2 : r - 1];
    for (int i = 0; i < r - 2; i++)
        o->batch[i] = t->stride[i];
}

/* With one b for all, the batch and the rows of a dense a are rows of one product. */
static void batch_fold(struct gemm_job *g)
{
    while (g->batch_rank > 0) {
        int last = g->batch_rank - 1;
        if (g->m != 1 && g->a.batch[last] != g->m * g->a.row && g->batch[last] != 1)
            return;
        if (g->m == 1)
            g->a.row = g->a.batch[last];
        g->m *= g->batch[last];
        g->batch_rank--;
    }
}

static struct gemm_job job_make(const struct kernel_args *a)
{
    const struct gemm_attr *at = &a->attr->gemm;
    const struct tensor *x = &a->in[0], *w = &a->in[1], *y = &a->out[0];
    int r = x->shape.rank;
    struct gemm_job g = {.c = y->data, .c_dtype = y->dtype};
    operand_set(&g.a, x, at->ta);
    operand_set(&g.b, w, at->tb);
    g.a.round = at->round[0];
    g.b.round = at->round[1];
    g.m = x->shape.dim[at->ta ? r - 1 : r - 2];
    g.k = x->shape.dim[at->ta ? r - 2 : r - 1];
    g.n = w->shape.dim[at->tb ? w->shape.rank - 2 : w->shape.rank - 1];
    g.c_row = g.n;
    g.c_batch = g.m * g.n;
    g.relu = at->act == ACT_RELU;
    g.batch_rank = r - 2;
    memcpy(g.batch, x->shape.dim, sizeof g.batch[0] * (size_t)(r - 2));
    if (w->shape.rank == 2)
        batch_fold(&g);
    if (arg_present(a, 2)) {
        g.bias = a->in[2].data;
        g.bias_dtype = a->in[2].dtype;
    }
    return g;
}

static enum status
gemm_prepare(const struct kernel_args *a, int64_t *workspace_bytes, void **state, struct err *e)
{
    (void)e;
    struct gemm_job g = job_make(a);
    int threads = cpu_threads();
    *workspace_bytes = gemm_bytes(&g, threads);
    *state = threads_keep(threads);
    return ST_OK;
}

static enum status gemm_op_run(const struct kernel_args *a, struct err *e)
{
    (void)e;
    struct gemm_job g = job_make(a);
    gemm_run(&g, a->workspace, threads_kept(a->state));
    return ST_OK;
}

const struct kernel KERNEL(gemm) = {gemm_prepare, gemm_op_run, mem_free, "gemm: packed"};
