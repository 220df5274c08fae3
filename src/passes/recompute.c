/* recompute.c - forward results kept only for the backward pass are computed again there.
 *
 * A value is computed again when its operator is cheap and gives the same bits (RECOMPUTE in
 * ops.def) and everything it needs is there anyway: variables, inputs of the program that the
 * backward pass reads, values saved for another backward operator, or values that can themselves
 * be computed again that way within CHAIN_OPS operators. So nothing is saved in its place, and
 * memory only falls. In a residual network this saves one tensor per convolution (its output) and
 * every second block output, where PyTorch saves two per convolution.
 */
#include "passes/passes.h"
#include "passes/rewrite.h"

enum { CHAIN_OPS = 5, LEAST_BYTES = 1024 };

struct plan {
    struct ir_program *p;
    int start;  /* first backward operator */
    int *reads; /* by value: how often the backward pass reads it */
    int *chain; /* by value: operators to compute it again; 0: it is saved */
};

static bool is_temp(const struct ir_program *p, int v)
{
    return ir_value_at(p, v)->kind == VALUE_TEMP && ir_value_at(p, v)->def != IR_NONE;
}

/* Operators needed to have v in the backward pass; above CHAIN_OPS when it cannot be had. */
static int price(const struct plan *w, int v, int depth)
{
    const struct ir_program *p = w->p;
    const struct ir_value *value = ir_value_at(p, v);
    if (value->kind == VALUE_VAR)
        return 0; /* variables change in the update phase only; see mutates() */
    if (w->reads[v] > 0 && w->chain[v] == 0)
        return 0; /* saved anyway */
    if (!is_temp(p, v) || depth > CHAIN_OPS)
        return CHAIN_OPS + 1;
    const struct ir_op *op = &p->ops.data[value->def];
    if (!(ir_op_row(op->code)->flags & OPF_RECOMPUTE) || value->def >= w->start)
        return CHAIN_OPS + 1;
    int sum = 1;
    for (int k = 0; k < op->n_in && sum <= CHAIN_OPS; k++)
        if (op->in[k] != IR_NONE)
            sum += price(w, op->in[k], depth + 1);
    return sum;
}

/* A variable version that a forward operator replaces (running statistics) is not there later. */
static bool reads_mutated(const struct ir_program *p, const struct ir_op *op)
{
    for (int k = 0; k < op->n_in; k++) {
        if (op->in[k] == IR_NONE || ir_value_at(p, op->in[k])->kind != VALUE_VAR)
            continue;
        int var = ir_value_at(p, op->in[k])->var;
        if (p->var_value.data[var] != op->in[k])
            return true;
    }
    return false;
}

static void decide(struct plan *w)
{
    struct ir_program *p = w->p;
    for (int i = 0; i < w->start; i++) {
        const struct ir_op *op = &p->ops.data[i];
        if (!(ir_op_row(op->code)->flags & OPF_RECOMPUTE) || reads_mutated(p, op))
            continue;
        int v = op->out[0];
        if (w->reads[v] == 0 || ir_value_bytes(p, v) < LEAST_BYTES)
            continue;
        int reads = w->reads[v];
        w->reads[v] = 0; /* it must not count as saved for itself */
        int n = price(w, v, 0);
        w->reads[v] = reads;
        w->chain[v] = n <= CHAIN_OPS ? n : 0;
    }
}

struct again {
    struct plan *w;
    struct rewrite r;
    int *made; /* by value: its second version, IR_NONE before */
};

/* Emits what is needed to have v; shared between the readers of one value, not along chains. */
static int compute_again(struct again *a, int v, bool keep)
{
    struct plan *w = a->w;
    struct ir_program *p = w->p;
    if (ir_value_at(p, v)->kind == VALUE_VAR || (w->reads[v] > 0 && w->chain[v] == 0))
        return v;
    if (a->made[v] != IR_NONE)
        return a->made[v];
    const struct ir_op *op = NULL;
    for (size_t i = 0; i < a->r.n && !op; i++) /* the old list: p->ops is being rebuilt */
        if (a->r.ops[i].n_out > 0 && a->r.ops[i].out[0] == v)
            op = &a->r.ops[i];
    ASSERT(op != NULL);
    int in[8];
    ASSERT(op->n_in <= 8);
    for (int k = 0; k < op->n_in; k++)
        in[k] = op->in[k] == IR_NONE ? IR_NONE : compute_again(a, op->in[k], false);
    int node = p->node;
    p->node = op->node;
    int made = ir_emit(p, op->code, in, op->n_in, &op->attr);
    p->node = node;
    if (made == IR_NONE)
        return made;
    p->ops.data[p->ops.n - 1].recomputed = true;
    ir_value_at(p, made)->category = ir_value_at(p, v)->category;
    if (keep)
        a->made[v] = made;
    return made;
}

static void rebuild(struct plan *w, struct again *a)
{
    size_t cap = w->p->values.n;
    for (size_t i = 0; i < a->r.n; i++) {
        struct ir_op *op = &a->r.ops[i];
        rewrite_at(&a->r, op);
        for (int k = 0; k < op->n_in && (int)i >= w->start; k++) {
            int v = op->in[k];
            if (v != IR_NONE && (size_t)v < cap && w->chain[v] > 0)
                op->in[k] = compute_again(a, v, true);
        }
        rewrite_keep(&a->r, op);
    }
}

enum status pass_recompute(struct ir_program *p, struct err *e)
{
    size_t n = p->values.n;
    struct plan w = {
        p, rewrite_backward_start(p), mem_alloc((n + 1) * sizeof(int)),
        mem_alloc((n + 1) * sizeof(int))};
    for (size_t i = (size_t)w.start; i < p->ops.n; i++)
        for (int k = 0; k < p->ops.data[i].n_in; k++)
            if (p->ops.data[i].in[k] != IR_NONE)
                w.reads[p->ops.data[i].in[k]]++;
    /* A view read in the backward pass saves its base. */
    for (size_t v = 0; v < n; v++)
        if (w.reads[v] > 0 && ir_value_at(p, (int)v)->base != (int)v)
            w.reads[ir_value_at(p, (int)v)->base]++;
    for (size_t i = 0; i < p->outputs.n; i++)
        w.reads[p->outputs.data[i]]++;
    decide(&w);
    /* Values whose base is read through a view, or that the host reads, stay. */
    for (size_t v = 0; v < n; v++)
        if (ir_value_at(p, (int)v)->base != (int)v && w.reads[v] > 0)
            w.chain[ir_value_at(p, (int)v)->base] = 0;
    for (size_t i = 0; i < p->outputs.n; i++)
        w.chain[p->outputs.data[i]] = 0;
    struct again a = {.w = &w, .made = mem_alloc((n + 1) * sizeof(int))};
    for (size_t v = 0; v < n; v++)
        a.made[v] = IR_NONE;
    rewrite_begin(&a.r, p);
    rebuild(&w, &a);
    mem_free(a.made);
    mem_free(w.reads);
    mem_free(w.chain);
    return rewrite_end(&a.r, e);
}
