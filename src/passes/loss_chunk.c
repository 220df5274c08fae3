/* loss_chunk.c - the head's product and its cross-entropy become one operator that walks the tokens
 * in chunks, so that the logits never exist whole (L6).
 *
 *   x -> [RESHAPE] -> GEMM with a weight -> [RESHAPE, CAST, CONTIGUOUS]... -> CROSS_ENTROPY -> loss
 *
 * Comes before the gradients, whose rule for the new operator only hands on what it has computed.
 * For that the gradient of the cross-entropy must be the seed itself: the loss is the
 * cross-entropy, or a sum that it is a term of.
 */
#include "passes/passes.h"
#include "passes/rewrite.h"

#include "ir/build.h"

struct head {
    struct ir_program *p;
    int *maker, *uses;
    int loss_op, gemm_op, count_op; /* count_op: COUNT_CORRECT of the same logits; IR_NONE */
    int64_t classes;
    const char *why; /* the pattern is not there */
};

static const struct ir_op *op_at(const struct head *h, int i)
{
    return &h->p->ops.data[i];
}

static const struct ir_op *maker_of(const struct head *h, int v)
{
    return v == IR_NONE || h->maker[v] == IR_NONE ? NULL : op_at(h, h->maker[v]);
}

/* Whether the gradient of v is that of the loss itself. */
static bool is_term(const struct head *h, int loss, int v)
{
    const struct ir_op *op = maker_of(h, loss);
    if (loss == v)
        return true;
    if (!op || (op->code != OP_ADD && op->code != OP_RESHAPE))
        return false;
    for (int k = 0; k < op->n_in; k++) {
        const struct shape *s = &ir_value_at(h->p, op->in[k])->shape;
        if (shape_count(s) == 1 && is_term(h, op->in[k], v))
            return true;
    }
    return false;
}

static void find_loss(struct head *h, int loss)
{
    h->why = "the loss is not a cross-entropy over classes";
    for (int i = 0; i < (int)h->p->ops.n; i++) {
        const struct ir_op *op = op_at(h, i);
        if (op->code != OP_CROSS_ENTROPY || !is_term(h, loss, op->out[0]))
            continue;
        h->loss_op = i;
        h->why = NULL;
        if (ir_value_at(h->p, op->in[1])->dtype != DT_I64)
            h->why = "the targets are probabilities, not classes";
        else if (ir_value_at(h->p, op->in[0])->shape.rank != 2)
            h->why = "the classes are not the last dimension of the model's output";
        else if (h->uses[op->out[1]] > 0)
            h->why = "something else reads the logarithms of the sums";
        return;
    }
}

/* A step from the cross-entropy towards the product: only the form changes. */
static bool changes_form(const struct head *h, const struct ir_op *op)
{
    const struct shape *from = &ir_value_at(h->p, op->in[0])->shape;
    if (op->code == OP_CAST || op->code == OP_CONTIGUOUS)
        return true;
    return op->code == OP_RESHAPE && from->rank > 0 && from->dim[from->rank - 1] == h->classes;
}

static bool is_output(const struct ir_program *p, int v)
{
    for (size_t i = 0; i < p->outputs.n; i++)
        if (p->outputs.data[i] == v)
            return true;
    return false;
}

/* Readers of logits v: the next step, and at most the counting of hits. */
static bool read_elsewhere(struct head *h, int v)
{
    int other = h->uses[v] - 1;
    for (int i = 0; i < (int)h->p->ops.n; i++) {
        const struct ir_op *op = op_at(h, i), *loss = op_at(h, h->loss_op);
        bool counts = op->code == OP_COUNT_CORRECT && op->in[0] == v && op->in[1] == loss->in[1] &&
                      ir_value_at(h->p, v)->shape.rank == 2 &&
                      op->attr.loss.ignore_index == loss->attr.loss.ignore_index;
        if (counts && h->count_op == IR_NONE) {
            h->count_op = i;
            other--;
        }
    }
    return other > 0 || is_output(h->p, v);
}

static void find_product(struct head *h)
{
    int v = op_at(h, h->loss_op)->in[0];
    h->classes = ir_value_at(h->p, v)->shape.dim[1];
    for (;;) {
        const struct ir_op *op = maker_of(h, v);
        h->why = "the model's output is read elsewhere, too";
        if (read_elsewhere(h, v))
            return;
        h->why = "the model does not end in one product with a weight";
        if (!op)
            return;
        if (op->code == OP_GEMM)
            break;
        if (!changes_form(h, op))
            return;
        v = op->in[0];
    }
    const struct ir_op *gemm = maker_of(h, v);
    h->gemm_op = h->maker[v];
    if (!gemm->attr.gemm.ta && gemm->attr.gemm.act == ACT_NONE &&
        ir_value_at(h->p, gemm->in[1])->shape.rank == 2)
        h->why = NULL;
}

/* The rows of x, [N, E]; N the tokens. */
static int rows_of(struct ir_program *p, int x)
{
    const struct shape s = ir_value_at(p, x)->shape;
    return s.rank == 2 ? x : ir_flatten(p, x, 0, s.rank - 2);
}

static bool wanted(const struct ir_program *p, int v)
{
    return v != IR_NONE && ir_value_at(p, v)->needs_grad;
}

static union op_attr attr_of(const struct head *h, const struct loss_chunk_options *o, int bias)
{
    const struct ir_op *gemm = op_at(h, h->gemm_op);
    struct linear_loss_attr a = {
        .loss = op_at(h, h->loss_op)->attr.loss,
        .chunk = o->tokens,
        .in_out = !gemm->attr.gemm.tb,
        .correct = h->count_op != IR_NONE};
    if (o->seed != IR_NONE) {
        ir_needs_grad(h->p);
        a.dx = wanted(h->p, gemm->in[0]);
        a.dweight = wanted(h->p, gemm->in[1]);
        a.dbias = wanted(h->p, bias);
    }
    return (union op_attr){.linear_loss = a};
}

/* The new operator stands where the loss stood and takes over the values that were made. */
static enum status rebuild(struct head *h, const struct loss_chunk_options *o, struct err *e)
{
    struct ir_program *p = h->p;
    const struct ir_op gemm = *op_at(h, h->gemm_op), loss = *op_at(h, h->loss_op);
    int bias = gemm.n_in > 2 ? gemm.in[2] : IR_NONE, weight = loss.n_in > 2 ? loss.in[2] : IR_NONE;
    int correct = h->count_op == IR_NONE ? IR_NONE : op_at(h, h->count_op)->out[0];
    union op_attr attr = attr_of(h, o, bias);
    struct rewrite r;
    rewrite_begin(&r, p);
    for (int i = 0; i < (int)r.n; i++) {
        rewrite_at(&r, &r.ops[i]);
        if (i == h->loss_op) {
            int in[6] = {rows_of(p, gemm.in[0]), gemm.in[1], loss.in[1], bias, weight, o->seed};
            if (ir_emit(p, OP_LINEAR_CROSS_ENTROPY, in, 6, &attr) == IR_NONE)
                break;
            struct ir_op *made = &p->ops.data[p->ops.n - 1];
            made->out[0] = loss.out[0];
            made->out[1] = loss.out[2];
            if (correct != IR_NONE)
                made->out[2] = correct;
        } else if (i != h->count_op) {
            rewrite_keep(&r, &r.ops[i]);
        }
    }
    mem_free(r.ops);
    TRY(ir_status(p, e));
    p->block = IR_NONE;
    ir_dead_code(p); /* the product and what led to the loss */
    return ir_status(p, e);
}

enum status pass_loss_chunk(
    struct ir_program *p, const struct loss_chunk_options *o, const char **why, struct err *e)
{
    struct head h = {
        .p = p,
        .maker = rewrite_makers(p),
        .uses = rewrite_uses(p),
        .loss_op = IR_NONE,
        .gemm_op = IR_NONE,
        .count_op = IR_NONE};
    enum status st = ST_OK;
    find_loss(&h, o->loss);
    if (!h.why)
        find_product(&h);
    if (!h.why)
        st = rebuild(&h, o, e);
    *why = h.why;
    mem_free(h.maker);
    mem_free(h.uses);
    return st;
}
