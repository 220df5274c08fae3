/* rewrite.c - the loop every pass is built on. */
#include "passes/rewrite.h"

#include <string.h>

void rewrite_begin(struct rewrite *r, struct ir_program *p)
{
    r->p = p;
    r->n = p->ops.n;
    r->ops = mem_alloc((r->n + 1) * sizeof *r->ops);
    if (r->n)
        memcpy(r->ops, p->ops.data, r->n * sizeof *r->ops);
    p->ops.n = 0;
}

void rewrite_at(struct rewrite *r, const struct ir_op *op)
{
    r->p->phase = op->phase;
    r->p->node = op->node;
    r->p->block = op->block;
}

/* Types of results follow types of operands: autocast changes them. */
static void infer_types(struct rewrite *r, const struct ir_op *op)
{
    struct ir_shape_out out[16];
    int n_out = op->n_out;
    const struct ir_op_row *row = ir_op_row(op->code);
    if (r->p->err.status != ST_OK || n_out > 16)
        return;
    if (row->shape(r->p, op, out, &n_out, &r->p->err) != ST_OK)
        return;
    for (int i = ir_op_mutated(op); i < n_out; i++)
        ir_value_at(r->p, op->out[i])->dtype = out[i].dtype;
}

void rewrite_keep(struct rewrite *r, const struct ir_op *op)
{
    infer_types(r, op);
    for (int i = 0; i < op->n_out; i++)
        ir_value_at(r->p, op->out[i])->def = (int)r->p->ops.n;
    vec_push(&r->p->ops, *op);
}

enum status rewrite_end(struct rewrite *r, struct err *e)
{
    mem_free(r->ops);
    r->ops = NULL;
    r->p->block = IR_NONE;
    TRY(ir_status(r->p, e));
#if SNUG_VERIFY
    TRY(ir_verify(r->p, e));
#endif
    return ST_OK;
}

int *rewrite_uses(const struct ir_program *p)
{
    int *uses = mem_alloc((p->values.n + 1) * sizeof *uses);
    for (size_t i = 0; i < p->ops.n; i++)
        for (int k = 0; k < p->ops.data[i].n_in; k++)
            if (p->ops.data[i].in[k] != IR_NONE)
                uses[p->ops.data[i].in[k]]++;
    for (size_t i = 0; i < p->outputs.n; i++)
        uses[p->outputs.data[i]]++;
    return uses;
}

int rewrite_backward_start(const struct ir_program *p)
{
    int i = 0;
    while (i < (int)p->ops.n && p->ops.data[i].phase < PHASE_BACKWARD)
        i++;
    return i;
}
