/* update_early.c - the update within the backward pass (L5): each of its operators moves to the
 * earliest place it can have. Same operators, same operands: same bits. */
#include "passes/rewrite.h"
#include "passes/update.h"

struct early {
    const struct ir_program *p;
    int *maker;    /* by value: its operator */
    bool *movable; /* by operator */
    int *place;    /* by operator: the operator of the old list it follows (its own, if it stays) */
    int *read;     /* by storage: the latest place that reads it */
};

static bool only_moves(enum opcode code)
{
    return code == OP_CONTIGUOUS || code == OP_CAST || code == OP_REORDER || code == OP_RESHAPE ||
           code == OP_PERMUTE || code == OP_SLICE;
}

/* Operators of the update, and copies and casts of gradients that only the update reads. */
static void choose_movable(struct early *w)
{
    const struct ir_program *p = w->p;
    bool *elsewhere = mem_alloc(p->values.n + 1); /* read by an operator that stays, or the host */
    for (size_t i = 0; i < p->outputs.n; i++)
        elsewhere[p->outputs.data[i]] = true;
    for (int i = (int)p->ops.n - 1; i >= 0; i--) {
        const struct ir_op *op = &p->ops.data[i];
        bool stays = op->phase != PHASE_BACKWARD || !only_moves(op->code);
        for (int k = 0; k < op->n_out; k++)
            stays = stays || elsewhere[op->out[k]];
        w->movable[i] = op->phase == PHASE_UPDATE || !stays;
        for (int k = 0; k < op->n_in && !w->movable[i]; k++)
            if (op->in[k] != IR_NONE)
                elsewhere[op->in[k]] = true;
    }
    mem_free(elsewhere);
}

static int later(int a, int b)
{
    return a > b ? a : b;
}

static void choose_place(struct early *w, int i)
{
    const struct ir_program *p = w->p;
    const struct ir_op *op = &p->ops.data[i];
    int place = w->movable[i] ? 0 : i;
    for (int k = 0; k < op->n_in && w->movable[i]; k++) {
        int v = op->in[k];
        if (v != IR_NONE && w->maker[v] != IR_NONE)
            place = later(place, w->place[w->maker[v]]);
        if (k < ir_op_mutated(op))
            place = later(place, w->read[ir_storage(p, v)]);
    }
    w->place[i] = place;
    for (int k = 0; k < op->n_in; k++)
        if (op->in[k] != IR_NONE)
            w->read[ir_storage(p, op->in[k])] = later(w->read[ir_storage(p, op->in[k])], place);
}

/* By place, in the old order among equals; what stays comes before what follows it. */
static void reorder(struct early *w, struct ir_program *p)
{
    size_t n = p->ops.n, *start = mem_alloc((n + 2) * sizeof *start);
    struct ir_op *ops = mem_alloc((n + 1) * sizeof *ops);
    for (size_t i = 0; i < n; i++)
        start[w->place[i] + 1]++;
    for (size_t i = 0; i < n; i++)
        start[i + 1] += start[i];
    for (size_t i = 0; i < n; i++)
        if (!w->movable[i])
            ops[start[w->place[i]]++] = p->ops.data[i];
    for (size_t i = 0; i < n; i++)
        if (w->movable[i])
            ops[start[w->place[i]]++] = p->ops.data[i];
    ir_ops_replace(p, ops, n);
    mem_free(start);
    mem_free(ops);
}

enum status update_early(struct ir_program *p, struct err *e)
{
    struct early w = {
        .p = p,
        .maker = rewrite_makers(p),
        .movable = mem_alloc(p->ops.n + 1),
        .place = mem_alloc((p->ops.n + 1) * sizeof(int)),
        .read = mem_alloc((p->values.n + 1) * sizeof(int))};
    choose_movable(&w);
    for (int i = 0; i < (int)p->ops.n; i++)
        choose_place(&w, i);
    reorder(&w, p);
    mem_free(w.maker);
    mem_free(w.movable);
    mem_free(w.place);
    mem_free(w.read);
#if SNUG_VERIFY
    TRY(ir_verify(p, e));
#endif
    return ir_status(p, e);
}
