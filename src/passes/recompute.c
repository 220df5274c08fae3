/* recompute.c - forward results kept only for the backward pass are computed again there.
 *
 * A value is computed again when its operator is cheap and gives the same bits (RECOMPUTE in
 * ops.def) and everything it needs is there anyway: variables, inputs of the program that the
 * backward pass reads, values saved for another backward operator, or values that can themselves
 * be computed again that way within CHAIN_OPS operators. So nothing is saved in its place, and
 * memory only falls. In a residual network this saves one tensor per convolution (its output) and
 * every second block output, where PyTorch saves two per convolution.
 *
 * Wide (checkpointing "selective"): the same for all operators but products with weights and
 * convolutions, attention and softmax included, over longer chains.
 *
 * What pass_checkpoint computes again counts as forward work here: its cheap results need not wait
 * for their readers either.
 */
#include "passes/passes.h"
#include "passes/rewrite.h"

enum { CHAIN_OPS = 5, CHAIN_OPS_WIDE = 12, LEAST_BYTES = 1024 };

struct plan {
    struct ir_program *p;
    bool wide;
    int longest; /* chain of operators */
    int start;   /* first backward operator */
    int *maker;  /* by value: operator of the old list */
    int *reads;  /* by value: how often the backward pass reads it */
    int *chain;  /* by value: operators to compute it again; 0: it is saved */
};

static bool forward_like(const struct plan *w, int op)
{
    return op != IR_NONE && (op < w->start || w->p->ops.data[op].recomputed);
}

/* Whether reading v in operator i needs v at that time of the backward pass. */
static bool reads_late(const struct plan *w, int i, int v)
{
    const struct ir_op *op = &w->p->ops.data[i];
    return i >= w->start && !(op->recomputed && w->maker[v] >= w->start);
}

static bool may_run_again(const struct plan *w, const struct ir_op *op)
{
    if (ir_op_row(op->code)->flags & (OPF_RECOMPUTE | OPF_VIEW))
        return true;
    return w->wide && op->n_out > 0 && ir_op_mutated(op) == 0 && !rewrite_heavy(w->p, op) &&
           !rewrite_small(w->p, op);
}

/* Operators needed to have v in the backward pass, views not counted; above `longest` when it
 * cannot be had. */
static int price(const struct plan *w, int v, int depth)
{
    const struct ir_program *p = w->p;
    const struct ir_value *value = ir_value_at(p, v);
    int none = w->longest + 1;
    if (value->kind == VALUE_VAR)
        return 0; /* variables change in the update phase only; see rewrite_reads_replaced */
    if (w->reads[v] > 0 && w->chain[v] == 0)
        return 0; /* saved anyway */
    if (!forward_like(w, w->maker[v]) || depth > w->longest)
        return none;
    const struct ir_op *op = &p->ops.data[w->maker[v]];
    if (!may_run_again(w, op))
        return none;
    int sum = ir_op_row(op->code)->flags & OPF_VIEW ? 0 : 1;
    int below = depth + sum;
    for (int k = 0; k < op->n_in && sum <= w->longest; k++)
        if (op->in[k] != IR_NONE)
            sum += price(w, op->in[k], below);
    return sum;
}

/* An operator's results are computed again together, or none is. */
static void decide(struct plan *w, const struct ir_op *op)
{
    int reads[16], sum = 0;
    int64_t bytes = 0;
    if (op->n_out > 16 || !may_run_again(w, op) || rewrite_reads_replaced(w->p, op))
        return;
    for (int k = 0; k < op->n_out; k++) {
        sum += reads[k] = w->reads[op->out[k]];
        bytes += reads[k] ? ir_value_bytes(w->p, ir_storage(w->p, op->out[k])) : 0;
    }
    if (sum == 0 || bytes < LEAST_BYTES)
        return;
    for (int k = 0; k < op->n_out; k++)
        w->reads[op->out[k]] = 0;    /* they must not count as saved for themselves */
    int n = price(w, op->out[0], 0); /* 0: a view of what is saved */
    for (int k = 0; k < op->n_out; k++) {
        w->reads[op->out[k]] = reads[k];
        w->chain[op->out[k]] = reads[k] && n > 0 && n <= w->longest ? n : 0;
    }
}

/* A view that is read and not computed again saves its base. */
static void keep_base(struct plan *w, const struct ir_op *op)
{
    int v = op->n_out ? op->out[0] : IR_NONE;
    if (v == IR_NONE || ir_storage(w->p, v) == v || w->reads[v] == 0 || w->chain[v])
        return;
    w->reads[ir_storage(w->p, v)]++;
    w->chain[ir_storage(w->p, v)] = 0;
}

/* What a saved view shows stays, and so does what the host reads. Views that the backward pass
 * makes (of rows for a weight's gradient) follow what they view. */
static void keep_storages(struct plan *w)
{
    const struct ir_program *p = w->p;
    for (size_t v = 0; v < p->values.n; v++)
        if (ir_value_at(p, (int)v)->base != (int)v && w->reads[v] > 0 && w->chain[v] == 0 &&
            forward_like(w, w->maker[v]))
            w->chain[ir_value_at(p, (int)v)->base] = 0;
    for (size_t i = 0; i < p->outputs.n; i++)
        w->chain[p->outputs.data[i]] = 0;
}

static void count_reads(struct plan *w)
{
    const struct ir_program *p = w->p;
    for (int i = w->start; i < (int)p->ops.n; i++)
        for (int k = 0; k < p->ops.data[i].n_in; k++)
            if (p->ops.data[i].in[k] != IR_NONE && reads_late(w, i, p->ops.data[i].in[k]))
                w->reads[p->ops.data[i].in[k]]++;
    for (size_t i = 0; i < p->outputs.n; i++)
        w->reads[p->outputs.data[i]]++;
}

struct again {
    struct plan *w;
    struct rewrite r;
    int *made; /* by value: its second version, IR_NONE before */
    int cap;   /* values before the pass */
};

/* Emits what is needed to have v; shared between the readers of one value, not along chains. */
static int compute_again(struct again *a, int v, bool keep)
{
    struct plan *w = a->w;
    struct ir_program *p = w->p;
    if (v >= a->cap) /* an operand of a second run that has been replaced already */
        return v;
    if (ir_value_at(p, v)->kind == VALUE_VAR || (w->reads[v] > 0 && w->chain[v] == 0))
        return v;
    if (a->made[v] != IR_NONE)
        return a->made[v];
    const struct ir_op *op = &a->r.ops[w->maker[v]]; /* p->ops is being rebuilt */
    int in[16], made = IR_NONE;
    bool view = ir_op_row(op->code)->flags & OPF_VIEW;
    ASSERT(op->n_in <= 16);
    for (int k = 0; k < op->n_in; k++) /* what a view shows serves its other readers, too */
        in[k] = op->in[k] == IR_NONE ? IR_NONE : compute_again(a, op->in[k], keep && view);
    if (!rewrite_again(&a->r, op, in))
        return IR_NONE;
    for (int k = 0; k < op->n_out; k++) {
        int second = ir_out(p, k);
        made = op->out[k] == v ? second : made;
        if (keep && w->chain[op->out[k]] > 0)
            a->made[op->out[k]] = second;
    }
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
            bool late = !(op->recomputed && v != IR_NONE && w->maker[v] >= w->start);
            if (v != IR_NONE && (size_t)v < cap && w->chain[v] > 0 && late)
                op->in[k] = compute_again(a, v, true);
        }
        if ((int)i >= w->start && (ir_op_row(op->code)->flags & OPF_VIEW))
            ir_value_at(a->r.p, op->out[0])->base = ir_storage(a->r.p, op->in[0]);
        rewrite_keep(&a->r, op);
    }
}

static enum status emit(struct plan *w, struct err *e)
{
    size_t n = w->p->values.n;
    struct again a = {.w = w, .made = mem_alloc((n + 1) * sizeof(int)), .cap = (int)n};
    for (size_t v = 0; v < n; v++)
        a.made[v] = IR_NONE;
    rewrite_begin(&a.r, w->p);
    rebuild(w, &a);
    mem_free(a.made);
    return rewrite_end(&a.r, e);
}

enum status pass_recompute(struct ir_program *p, bool wide, struct err *e)
{
    size_t n = p->values.n;
    struct plan w = {
        .p = p,
        .wide = wide,
        .longest = wide ? CHAIN_OPS_WIDE : CHAIN_OPS,
        .start = rewrite_backward_start(p),
        .maker = rewrite_makers(p),
        .reads = mem_alloc((n + 1) * sizeof(int)),
        .chain = mem_alloc((n + 1) * sizeof(int))};
    count_reads(&w);
    for (int i = 0; i < (int)p->ops.n; i++)
        if (forward_like(&w, i)) {
            decide(&w, &p->ops.data[i]);
            keep_base(&w, &p->ops.data[i]);
        }
    keep_storages(&w);
    enum status st = emit(&w, e);
    mem_free(w.maker);
    mem_free(w.reads);
    mem_free(w.chain);
    return st;
}
