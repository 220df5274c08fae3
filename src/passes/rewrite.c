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

bool rewrite_again(struct rewrite *r, const struct ir_op *op, const int *in)
{
    struct ir_program *p = r->p;
    int node = p->node;
    p->node = op->node;
    int made = ir_emit(p, op->code, in, op->n_in, &op->attr);
    p->node = node;
    if (op->n_out == 0 || made == IR_NONE)
        return false;
    struct ir_op *again = &p->ops.data[p->ops.n - 1];
    again->recomputed = true;
    for (int k = 0; k < again->n_out; k++)
        ir_value_at(p, again->out[k])->category = ir_value_at(p, op->out[k])->category;
    return true;
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

int *rewrite_makers(const struct ir_program *p)
{
    int *maker = mem_alloc((p->values.n + 1) * sizeof *maker);
    for (size_t v = 0; v < p->values.n; v++)
        maker[v] = IR_NONE;
    for (size_t i = 0; i < p->ops.n; i++)
        for (int k = 0; k < p->ops.data[i].n_out; k++)
            maker[p->ops.data[i].out[k]] = (int)i;
    return maker;
}

bool rewrite_reads_replaced(const struct ir_program *p, const struct ir_op *op)
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

/* The value is a variable, or a view or cast of one. */
static bool is_weight(const struct ir_program *p, int v)
{
    const struct ir_value *value = ir_value_at(p, ir_storage(p, v));
    while (value->kind == VALUE_TEMP && value->def != IR_NONE) {
        const struct ir_op *op = &p->ops.data[value->def];
        bool moves = op->code == OP_CAST || op->code == OP_CONTIGUOUS || op->code == OP_REORDER;
        if (!moves)
            return false;
        value = ir_value_at(p, ir_storage(p, op->in[0]));
    }
    return value->kind == VALUE_VAR;
}

bool rewrite_heavy(const struct ir_program *p, const struct ir_op *op)
{
    enum { FLOPS_EACH = 64 }; /* of one result: more is no elementwise work */
    const struct ir_op_row *row = ir_op_row(op->code);
    struct ir_cost cost;
    double results = 0;
    if (row->flags & OPF_VIEW)
        return false;
    if (op->code == OP_CONV || op->code == OP_CONV_DGRAD)
        return true;
    if (op->code == OP_GEMM)
        return is_weight(p, op->in[0]) || is_weight(p, op->in[1]);
    if (op->code == OP_ATTENTION)
        return false;
    row->cost(p, op, &cost);
    for (int k = 0; k < op->n_out; k++)
        results += (double)shape_count(&ir_value_at(p, op->out[k])->shape);
    return cost.flops > FLOPS_EACH * results;
}

bool rewrite_small(const struct ir_program *p, const struct ir_op *op)
{
    enum { SMALL = 16 };
    int64_t in = 0, out = 0;
    for (int k = 0; k < op->n_in; k++)
        if (op->in[k] != IR_NONE)
            in += shape_count(&ir_value_at(p, op->in[k])->shape);
    for (int k = 0; k < op->n_out; k++)
        out += shape_count(&ir_value_at(p, op->out[k])->shape);
    return out * SMALL <= in;
}

int rewrite_backward_start(const struct ir_program *p)
{
    int i = 0;
    while (i < (int)p->ops.n && p->ops.data[i].phase < PHASE_BACKWARD)
        i++;
    return i;
}
