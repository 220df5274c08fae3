/* checkpoint.c - activation checkpointing: the backward pass computes segments of the forward pass
 * again and keeps only what enters them.
 *
 * The operators of the second run are clones, so the bits are the same: dropout repeats by its
 * counters, and operators that update variables (batch statistics) are never cloned, their results
 * are kept. So are results that are small beside their operands (mean and deviation of a norm).
 * A clone is emitted before the first backward operator that needs it and serves all later ones;
 * what is not needed again in the backward pass is freed as soon as the next clone has read it.
 *
 * A value is kept when anything outside its segment reads it in the forward pass: it enters the
 * next segment, or the loss.
 */
#include "passes/passes.h"
#include "passes/rewrite.h"

struct plan {
    struct ir_program *p;
    int start;    /* first backward operator */
    int *segment; /* by operator: from 0; IR_NONE: none */
    int count;    /* segments */
    int *maker;   /* by value: its operator */
    bool *kept;   /* by value that owns a storage */
};

/* ---- segments ---- */

/* As the model marks them. */
static int blocks_of(const struct plan *w)
{
    int count = 0;
    for (int i = 0; i < w->start; i++) {
        const struct ir_op *op = &w->p->ops.data[i];
        w->segment[i] = op->phase == PHASE_FORWARD ? op->block : IR_NONE;
        count = w->segment[i] >= count ? w->segment[i] + 1 : count;
    }
    return count;
}

/* By value: made from the batch, not from weights alone. */
static bool *activations_of(const struct plan *w)
{
    const struct ir_program *p = w->p;
    bool *active = mem_alloc(p->values.n + 1);
    for (size_t v = 0; v < p->values.n; v++)
        active[v] = ir_value_at(p, (int)v)->kind == VALUE_INPUT;
    for (int i = 0; i < w->start; i++) {
        const struct ir_op *op = &p->ops.data[i];
        bool any = false;
        for (int k = 0; k < op->n_in; k++)
            any = any || (op->in[k] != IR_NONE && active[op->in[k]]);
        for (int k = 0; k < op->n_out; k++)
            active[op->out[k]] = any && ir_value_at(p, op->out[k])->kind == VALUE_TEMP;
    }
    return active;
}

/* A place between two operators where one activation alone is alive. */
struct cut {
    int after;     /* operator */
    int64_t bytes; /* of that activation */
    int64_t
        saved; /* bytes that the backward pass reads of what lies before it, from the last cut */
};

/* Last forward operator that reads each storage; IR_NONE where none does. */
static int *last_reads(const struct plan *w)
{
    const struct ir_program *p = w->p;
    int *last = mem_alloc((p->values.n + 1) * sizeof *last);
    for (size_t v = 0; v < p->values.n; v++)
        last[v] = IR_NONE;
    for (int i = 0; i < w->start; i++)
        for (int k = 0; k < p->ops.data[i].n_in; k++)
            if (p->ops.data[i].in[k] != IR_NONE)
                last[ir_storage(p, p->ops.data[i].in[k])] = i;
    return last;
}

static bool *late_reads(const struct plan *w)
{
    const struct ir_program *p = w->p;
    bool *late = mem_alloc(p->values.n + 1);
    for (int i = w->start; i < (int)p->ops.n; i++)
        for (int k = 0; k < p->ops.data[i].n_in; k++)
            if (p->ops.data[i].in[k] != IR_NONE)
                late[ir_storage(p, p->ops.data[i].in[k])] = true;
    return late;
}

/* All cuts, the end of the forward pass last; returns their number. */
static int cuts_of(const struct plan *w, struct cut *cuts)
{
    const struct ir_program *p = w->p;
    bool *active = activations_of(w), *late = late_reads(w);
    int *last = last_reads(w), n = 0, alive = 0;
    int64_t bytes = 0, saved = 0;
    for (int i = 0; i < w->start && p->ops.data[i].phase == PHASE_FORWARD; i++) {
        const struct ir_op *op = &p->ops.data[i];
        for (int k = 0; k < op->n_out; k++) {
            int v = op->out[k];
            if (!active[v] || ir_storage(p, v) != v)
                continue;
            saved += late[v] ? ir_value_bytes(p, v) : 0;
            alive += last[v] > i;
            bytes += last[v] > i ? ir_value_bytes(p, v) : 0;
        }
        for (int k = 0; k < op->n_in; k++) {
            int v = op->in[k] == IR_NONE ? IR_NONE : ir_storage(p, op->in[k]);
            bool again = false;
            for (int j = 0; j < k && v != IR_NONE; j++)
                again = again || (op->in[j] != IR_NONE && ir_storage(p, op->in[j]) == v);
            if (v == IR_NONE || again || last[v] != i || w->maker[v] == IR_NONE || !active[v])
                continue;
            alive--;
            bytes -= ir_value_bytes(p, v);
        }
        bool ends = i + 1 == w->start || p->ops.data[i + 1].phase != PHASE_FORWARD;
        if (alive == 1 || ends) {
            cuts[n++] = (struct cut){i, bytes, saved};
            saved = 0;
        }
    }
    mem_free(active);
    mem_free(late);
    mem_free(last);
    return n;
}

/* Bytes of checkpoints and of the largest segment when segments hold `most` bytes each. */
static int64_t packing_cost(const struct cut *cuts, int n, int64_t most)
{
    int64_t kept = 0, held = 0, largest = 0;
    for (int i = 0; i < n; i++) {
        if (held > 0 && held + cuts[i].saved > most) {
            kept += cuts[i - 1].bytes;
            held = 0;
        }
        held += cuts[i].saved;
        largest = held > largest ? held : largest;
    }
    return kept + largest;
}

static int64_t best_packing(const struct cut *cuts, int n)
{
    int64_t total = 0, best = 0, least = INT64_MAX;
    for (int i = 0; i < n; i++)
        total += cuts[i].saved;
    for (int parts = 1; parts <= n; parts++) {
        int64_t most = total / parts, cost = packing_cost(cuts, n, most);
        if (cost < least) {
            least = cost;
            best = most;
        }
    }
    return best;
}

/* Cut where one activation passes, into segments of about equal bytes: about the square root of
 * their number, which is where checkpoints and the largest segment together are least. */
static int automatic(const struct plan *w)
{
    struct cut *cuts = mem_alloc(((size_t)w->start + 1) * sizeof *cuts);
    int n = cuts_of(w, cuts), segment = 0, from = 0;
    int64_t most = best_packing(cuts, n), held = 0;
    for (int i = 0; i < n; i++) {
        if (held > 0 && held + cuts[i].saved > most) {
            segment++;
            held = 0;
        }
        held += cuts[i].saved;
        for (; from <= cuts[i].after; from++)
            w->segment[from] = segment;
    }
    mem_free(cuts);
    return n > 0 ? segment + 1 : 0;
}

/* ---- what is kept ---- */

static void keep(const struct plan *w, int v)
{
    w->kept[ir_storage(w->p, v)] = true;
}

static void choose_kept(const struct plan *w, int count)
{
    const struct ir_program *p = w->p;
    for (size_t i = 0; i < p->outputs.n; i++)
        keep(w, p->outputs.data[i]);
    for (int i = 0; i < w->start; i++) {
        const struct ir_op *op = &p->ops.data[i];
        bool again = w->segment[i] != IR_NONE && w->segment[i] < count && ir_op_mutated(op) == 0 &&
                     !rewrite_reads_replaced(p, op) &&
                     ((ir_op_row(op->code)->flags & OPF_VIEW) || !rewrite_small(p, op));
        for (int k = 0; k < op->n_out && !again; k++)
            keep(w, op->out[k]);
        for (int k = 0; k < op->n_in; k++) {
            int v = op->in[k];
            if (v != IR_NONE && w->maker[v] != IR_NONE && w->segment[w->maker[v]] != w->segment[i])
                keep(w, v);
        }
    }
}

/* ---- the second run ---- */

struct again {
    const struct plan *w;
    struct rewrite r;
    int *made; /* by value: its second version, IR_NONE before */
};

static bool is_again(const struct again *a, int v)
{
    const struct plan *w = a->w;
    return v != IR_NONE && w->maker[v] != IR_NONE && w->maker[v] < w->start &&
           ir_value_at(w->p, v)->kind == VALUE_TEMP && !w->kept[ir_storage(w->p, v)];
}

static int compute_again(struct again *a, int v)
{
    if (!is_again(a, v))
        return v;
    if (a->made[v] != IR_NONE)
        return a->made[v];
    const struct ir_op *op = &a->r.ops[a->w->maker[v]];
    int *in = mem_alloc(((size_t)op->n_in + 1) * sizeof *in);
    for (int k = 0; k < op->n_in; k++)
        in[k] = compute_again(a, op->in[k]);
    bool made = rewrite_again(&a->r, op, in);
    for (int k = 0; k < op->n_out && made; k++)
        a->made[op->out[k]] = ir_out(a->w->p, k);
    mem_free(in);
    return a->made[v];
}

static enum status second_run(const struct plan *w, struct err *e)
{
    size_t n = w->p->values.n;
    struct again a = {.w = w, .made = mem_alloc((n + 1) * sizeof(int))};
    for (size_t v = 0; v < n; v++)
        a.made[v] = IR_NONE;
    rewrite_begin(&a.r, w->p);
    for (int i = 0; i < (int)a.r.n; i++) {
        struct ir_op *op = &a.r.ops[i];
        rewrite_at(&a.r, op);
        for (int k = 0; k < op->n_in && i >= w->start; k++)
            if (op->in[k] != IR_NONE && (size_t)op->in[k] < n)
                op->in[k] = compute_again(&a, op->in[k]);
        /* A view that the backward pass makes views the second version now. */
        if (i >= w->start && (ir_op_row(op->code)->flags & OPF_VIEW))
            ir_value_at(w->p, op->out[0])->base = ir_storage(w->p, op->in[0]);
        rewrite_keep(&a.r, op);
    }
    mem_free(a.made);
    return rewrite_end(&a.r, e);
}

/* ---- the pass ---- */

static enum status run(struct ir_program *p, int count, int *segments, struct err *e)
{
    struct plan w = {
        .p = p,
        .start = rewrite_backward_start(p),
        .maker = rewrite_makers(p),
        .kept = mem_alloc(p->values.n + 1),
        .segment = mem_alloc((p->ops.n + 1) * sizeof(int))};
    for (size_t i = 0; i < p->ops.n; i++)
        w.segment[i] = IR_NONE;
    w.count = blocks_of(&w);
    if (w.count == 0)
        w.count = automatic(&w);
    *segments = w.count;
    choose_kept(&w, count);
    enum status st = second_run(&w, e);
    mem_free(w.maker);
    mem_free(w.kept);
    mem_free(w.segment);
    return st;
}

/* Most bytes of temporaries alive at one operator, each with a storage of its own. */
static int64_t live_peak(const struct ir_program *p)
{
    int64_t *delta = mem_alloc((p->ops.n + 2) * sizeof *delta), sum = 0, peak = 0;
    int *first = mem_alloc((p->values.n + 1) * sizeof *first);
    int *last = mem_alloc((p->values.n + 1) * sizeof *last);
    for (size_t v = 0; v < p->values.n; v++)
        last[v] = IR_NONE;
    for (int i = (int)p->ops.n - 1; i >= 0; i--) {
        const struct ir_op *op = &p->ops.data[i];
        for (int k = 0; k < op->n_in + op->n_out; k++) {
            int v = k < op->n_in ? op->in[k] : op->out[k - op->n_in];
            if (v == IR_NONE)
                continue;
            v = ir_storage(p, v);
            last[v] = last[v] == IR_NONE ? i : last[v];
            first[v] = i;
        }
    }
    for (size_t v = 0; v < p->values.n; v++) {
        if (last[v] == IR_NONE || ir_value_at(p, (int)v)->kind != VALUE_TEMP)
            continue;
        delta[first[v]] += ir_value_bytes(p, (int)v);
        delta[last[v] + 1] -= ir_value_bytes(p, (int)v);
    }
    for (size_t i = 0; i < p->ops.n; i++) {
        sum += delta[i];
        peak = sum > peak ? sum : peak;
    }
    mem_free(delta);
    mem_free(first);
    mem_free(last);
    return peak;
}

/* Peak of a copy with `count` segments computed again. */
static enum status
peak_with(const struct ir_program *p, int count, bool wide, int64_t *bytes, struct err *e)
{
    struct ir_program *copy = ir_program_clone(p, p->name);
    int segments;
    enum status st = run(copy, count, &segments, e);
    if (st == ST_OK)
        st = pass_recompute(copy, wide, e);
    ir_dead_code(copy);
    *bytes = live_peak(copy);
    ir_program_free(copy);
    return st;
}

enum status pass_checkpoint(
    struct ir_program *p, const struct checkpoint_options *o, int *segments, struct err *e)
{
    struct ir_program *copy = ir_program_clone(p, p->name);
    int n = 0, count = o->count;
    int64_t with, without;
    enum status st = run(copy, 0, &n, e);
    ir_program_free(copy);
    TRY(st);
    if (segments)
        *segments = n;
    if (count >= n && n > 0) {
        TRY(peak_with(p, n, o->wide, &with, e));
        TRY(peak_with(p, n - 1, o->wide, &without, e));
        count = without <= with ? n - 1 : n;
    }
    return count > 0 ? run(p, count, &n, e) : ST_OK;
}

struct pass_flops pass_flops(const struct ir_program *p)
{
    struct pass_flops f = {0};
    for (size_t i = 0; i < p->ops.n; i++) {
        const struct ir_op *op = &p->ops.data[i];
        struct ir_cost c = {0};
        ir_op_row(op->code)->cost(p, op, &c);
        f.all += c.flops;
        f.again += op->recomputed ? c.flops : 0;
    }
    return f;
}
