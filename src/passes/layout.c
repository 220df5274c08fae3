/* layout.c - physical layouts: channels last or blocked for what convolutions, pooling and channel
 * norms touch, row-major elsewhere, with REORDER operators at the borders.
 *
 * Strided views are made dense for operators that do not read strides, also when layouts are off.
 *
 * Elementwise operators on equal shapes keep the layout of their first operand, so that a chain of
 * convolution, norm, activation and addition stays in one layout. A value is reordered once.
 */
#include "passes/passes.h"
#include "passes/rewrite.h"

#include "ir/build.h"

struct laying {
    struct rewrite r;
    const struct layout_options *o;
    int *other[3]; /* by value and layout: its reordered version, IR_NONE before */
    size_t cap;
};

/* Operands and results of CHANNEL operators that are activations, as bit masks. */
static void roles(const struct ir_op *op, unsigned *in, unsigned *out)
{
    *in = *out = 1;
    switch ((int)op->code) {
    case OP_CONV_WGRAD:
        *in = 3;
        *out = 0;
        break;
    case OP_MAX_POOL:
        *out = 3;
        break;
    case OP_MAX_POOL_GRAD:
        *in = 3;
        break;
    case OP_BATCH_STATS:
        *in = 8;
        *out = 0;
        break;
    case OP_NORM_STATS:
        *out = 0;
        break;
    case OP_NORM_APPLY:
        *in = 1 | 1 << 5;
        break;
    case OP_NORM_GRAD:
        *in = 3;
        break;
    case OP_PRELU_GRAD:
        *in = 3;
        break;
    case OP_SUM:
        *out = 0;
        break;
    default:
        break;
    }
}

static enum layout best(const struct laying *w, int v)
{
    const struct shape *s = &ir_value_at(w->r.p, v)->shape;
    if (!w->o->enabled || (s->rank != 3 && s->rank != 4))
        return LAYOUT_ROW;
    return w->o->blocked && s->dim[1] % 16 == 0 && s->dim[1] > 0 ? LAYOUT_C16 : LAYOUT_CL;
}

/* Inputs of one channel lie the same in ROW and CL. */
static bool relabel(struct laying *w, int v, enum layout to)
{
    struct ir_value *value = ir_value_at(w->r.p, v);
    if (value->kind != VALUE_INPUT || value->layout != LAYOUT_ROW || to != LAYOUT_CL)
        return false;
    return value->shape.rank >= 3 && value->shape.dim[1] == 1;
}

/* A dense row-major version, for operators that do not read strides. */
static int dense(struct laying *w, int v)
{
    struct ir_program *p = w->r.p;
    int *slot = v != IR_NONE && (size_t)v < w->cap ? &w->other[LAYOUT_ROW][v] : NULL;
    if (v == IR_NONE || ir_value_at(p, v)->layout != LAYOUT_ROW)
        return v;
    if (slot && *slot != IR_NONE)
        return *slot;
    int made = ir_contiguous(p, v);
    if (slot)
        *slot = made;
    return made;
}

static int in_layout(struct laying *w, int v, enum layout to)
{
    struct ir_program *p = w->r.p;
    if (v == IR_NONE || ir_value_at(p, v)->layout == to)
        return v;
    if (relabel(w, v, to)) {
        ir_value_at(p, v)->layout = to;
        return v;
    }
    int *slot = (size_t)v < w->cap ? &w->other[to][v] : NULL;
    if (slot && *slot != IR_NONE)
        return *slot;
    int x = ir_value_at(p, v)->layout == LAYOUT_ROW ? ir_contiguous(p, v) : v;
    union op_attr attr = {.cast = {.layout = to}};
    int made = ir_emit(p, OP_REORDER, &x, 1, &attr);
    if (made == IR_NONE)
        return made;
    ir_value_at(p, made)->layout = to;
    ir_value_at(p, made)->category = ir_value_at(p, v)->category;
    if (slot)
        *slot = made;
    return made;
}

/* Per-channel statistics and sums understand layouts; layer norm and other sums are row-major. */
static bool takes_channels(const struct laying *w, const struct ir_op *op)
{
    const struct ir_program *p = w->r.p;
    unsigned in, out;
    if (!(ir_op_row(op->code)->flags & OPF_CHANNEL) || op->code == OP_REORDER)
        return false;
    if (op->code >= OP_BATCH_STATS && op->code <= OP_NORM_GRAD && norm_by_rows(op->attr.norm.kind))
        return false;
    roles(op, &in, &out);
    for (int k = 0; k < op->n_in; k++) {
        if (!(in >> k & 1) || op->in[k] == IR_NONE)
            continue;
        int rank = ir_value_at(p, op->in[k])->shape.rank;
        if (rank != 3 && rank != 4)
            return false;
        if (op->code == OP_SUM && op->attr.reduce.dims != (((1u << rank) - 1) & ~2u))
            return false;
    }
    return true;
}

/* Norms and sums take what comes; convolutions and pooling ask for the best. */
static void lay_channel(struct laying *w, struct ir_op *op)
{
    struct ir_program *p = w->r.p;
    unsigned in, out;
    roles(op, &in, &out);
    bool heavy = op->code < OP_BATCH_STATS;
    enum layout follow = LAYOUT_ROW;
    for (int k = op->n_in - 1; k >= 0; k--)
        if (in >> k & 1 && op->in[k] != IR_NONE && ir_value_at(p, op->in[k])->layout != LAYOUT_ROW)
            follow = ir_value_at(p, op->in[k])->layout;
    for (int k = 0; k < op->n_in; k++) {
        if (op->in[k] == IR_NONE)
            continue;
        bool activation = in >> k & 1;
        enum layout to = !activation ? LAYOUT_ROW : heavy ? best(w, op->in[k]) : follow;
        op->in[k] = dense(w, in_layout(w, op->in[k], to));
    }
    for (int k = 0; k < op->n_out; k++)
        if (out >> k & 1)
            ir_value_at(p, op->out[k])->layout = heavy ? best(w, op->out[k]) : follow;
}

static bool equal_shapes(const struct laying *w, const struct ir_op *op, int n)
{
    for (int k = 0; k < n; k++)
        if (!shape_eq(
                &ir_value_at(w->r.p, op->in[k])->shape, &ir_value_at(w->r.p, op->out[0])->shape))
            return false;
    return true;
}

/* Elementwise operands: all but the generator state of dropout. */
static void lay_element(struct laying *w, struct ir_op *op)
{
    struct ir_program *p = w->r.p;
    bool dropout = op->code == OP_DROPOUT;
    int n = dropout ? 1 : op->n_in;
    enum layout to = LAYOUT_ROW;
    if (equal_shapes(w, op, n))
        for (int k = n - 1; k >= 0; k--)
            if (ir_value_at(p, op->in[k])->layout != LAYOUT_ROW)
                to = ir_value_at(p, op->in[k])->layout;
    for (int k = 0; k < n; k++)
        op->in[k] = in_layout(w, op->in[k], to);
    if (dropout && op->n_in > 2)
        op->in[2] = in_layout(w, op->in[2], to);
    ir_value_at(p, op->out[0])->layout = to;
}

/* Queries, keys, values and the bias of attention are parts of products and broadcast masks: a copy
 * of a mask would be as large as the scores that are never stored. */
static bool reads_strides(const struct ir_op *op, int operand)
{
    if (op->code == OP_ATTENTION)
        return operand < 4;
    if (op->code == OP_ATTENTION_GRAD)
        return operand >= 1 && operand <= 4;
    return ir_op_row(op->code)->flags & OPF_VIEW || op->code == OP_GEMM ||
           op->code == OP_CONTIGUOUS;
}

static void visit(struct laying *w, struct ir_op *op)
{
    rewrite_at(&w->r, op);
    if (takes_channels(w, op)) {
        lay_channel(w, op);
    } else if (ir_op_row(op->code)->flags & OPF_ELEMENT) {
        lay_element(w, op);
    } else {
        for (int k = 0; k < op->n_in; k++) {
            op->in[k] = in_layout(w, op->in[k], LAYOUT_ROW);
            if (!reads_strides(op, k))
                op->in[k] = dense(w, op->in[k]);
        }
    }
    /* A view of a value that now lies elsewhere views its row-major version. */
    if (ir_op_row(op->code)->flags & OPF_VIEW)
        ir_value_at(w->r.p, op->out[0])->base = ir_value_at(w->r.p, op->in[0])->base;
    rewrite_keep(&w->r, op);
}

/* What the host reads is row-major. */
static void restore_outputs(struct laying *w)
{
    struct ir_program *p = w->r.p;
    for (size_t i = 0; i < p->outputs.n; i++) {
        int v = p->outputs.data[i], row = in_layout(w, v, LAYOUT_ROW);
        ir_value_at(p, row)->name = ir_value_at(p, v)->name; /* outputs are found by name */
        p->outputs.data[i] = row;
    }
}

enum status pass_layout(struct ir_program *p, const struct layout_options *o, struct err *e)
{
    struct laying w = {.o = o, .cap = p->values.n};
    for (int i = 0; i < 3; i++) {
        w.other[i] = mem_alloc((w.cap + 1) * sizeof(int));
        for (size_t v = 0; v < w.cap; v++)
            w.other[i][v] = IR_NONE;
    }
    rewrite_begin(&w.r, p);
    for (size_t i = 0; i < w.r.n; i++)
        visit(&w, &w.r.ops[i]);
    restore_outputs(&w);
    for (int i = 0; i < 3; i++)
        mem_free(w.other[i]);
    return rewrite_end(&w.r, e);
}
