/* autocast.c - mixed precision per operator (requirement P3), before gradients are appended.
 *
 * Products run in the low type; softmax, losses and reductions in float32; the rest follows its
 * inputs. Layer and group norm take float32 in and out, as PyTorch's autocast has them. Batch norm
 * computes in float32 and keeps the type of its input, so that activations really halve.
 * A value is cast once per program, whoever asks for it. Gradients of casts are casts, so the
 * backward pass runs in the types of the forward pass without any autocast of its own.
 */
#include "passes/passes.h"
#include "passes/rewrite.h"

#include "ir/build.h"

struct casting {
    struct rewrite r;
    enum dtype low;
    int *cached[2]; /* by value: its cast to the low type, to float32; IR_NONE when not made */
    size_t cap;
};

static bool is_float(const struct ir_program *p, int v)
{
    return v != IR_NONE && dtype_floating(ir_value_at(p, v)->dtype);
}

static int cast(struct casting *c, int v, enum dtype to)
{
    struct ir_program *p = c->r.p;
    if (!is_float(p, v) || ir_value_at(p, v)->dtype == to || ir_value_at(p, v)->dtype == DT_F64)
        return v;
    int *slot = (size_t)v < c->cap ? &c->cached[to == DT_F32][v] : NULL;
    if (slot && *slot != IR_NONE)
        return *slot;
    int made = ir_cast(p, v, to);
    if (slot)
        *slot = made;
    return made;
}

static void cast_all(struct casting *c, struct ir_op *op, enum dtype to)
{
    /* A mask that is added to scores stays what it is: scores are float32. */
    int n = op->code == OP_ATTENTION && op->n_in > 3 ? 3 : op->n_in;
    for (int k = 0; k < n; k++)
        op->in[k] = cast(c, op->in[k], to);
}

/* Binary operators and concatenation on mixed operands: the widest type. */
static void widen(struct casting *c, struct ir_op *op)
{
    bool low = false, full = false;
    bool joins = op->code == OP_CONCAT || (op->code >= OP_ADD && op->code <= OP_EQUAL);
    for (int k = 0; k < op->n_in && joins; k++) {
        if (!is_float(c->r.p, op->in[k]))
            continue;
        full = full || ir_value_at(c->r.p, op->in[k])->dtype == DT_F32;
        low = low || ir_value_at(c->r.p, op->in[k])->dtype == c->low;
    }
    if (low && full)
        cast_all(c, op, DT_F32);
}

static void visit(struct casting *c, struct ir_op *op)
{
    bool norm = op->code == OP_NORM_STATS || op->code == OP_NORM_APPLY;
    rewrite_at(&c->r, op);
    switch (ir_op_row(op->code)->autocast) {
    case AUTOCAST_LOW:
        cast_all(c, op, c->low);
        break;
    case AUTOCAST_FULL:
        cast_all(c, op, DT_F32);
        break;
    case AUTOCAST_WIDE:
        widen(c, op);
        break;
    case AUTOCAST_NONE:
        if (norm && op->attr.norm.kind != NORM_BATCH)
            op->in[0] = cast(c, op->in[0], DT_F32);
        break;
    }
    rewrite_keep(&c->r, op);
}

enum status pass_autocast(struct ir_program *p, enum dtype low, struct err *e)
{
    struct casting c = {.low = low, .cap = p->values.n};
    for (int i = 0; i < 2; i++) {
        c.cached[i] = mem_alloc((c.cap + 1) * sizeof **c.cached);
        for (size_t v = 0; v < c.cap; v++)
            c.cached[i][v] = IR_NONE;
    }
    rewrite_begin(&c.r, p);
    for (size_t i = 0; i < c.r.n; i++)
        visit(&c, &c.r.ops[i]);
    mem_free(c.cached[0]);
    mem_free(c.cached[1]);
    return rewrite_end(&c.r, e);
}
