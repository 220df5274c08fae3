/* torch_ops.c - each operator as PyTorch runs it: rows of torch_saves.def, and those with habits of
 * their own. */
#include "plan/torch_style_int.h"

#include <string.h>

enum { SAVE_NONE, SAVE_A, SAVE_B, SAVE_AB };
enum { KEEP_NOTHING, KEEP_LOW_MASK, KEEP_INDEX };
enum { CAST_WIDE, CAST_GPU, CAST_FULL };
struct row {
    enum opcode code;
    unsigned saved, aliased;
    bool output;
    int keep, temporaries, autocast;
};
static const struct row rows[] = {
#define SAVES(op, in, out, alias, kept, temporary, cast)                                           \
    {OP_##op, SAVE_##in, SAVE_##alias, out, KEEP_##kept, temporary, CAST_##cast},
#include "plan/torch_saves.def"
#undef SAVES
};

static const struct row *row_of(enum opcode code)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].code == code)
            return &rows[i];
    return NULL;
}

static int out_size(const struct replay *r, const struct ir_op *op)
{
    return dtype_size(ir_value_at(r->p, op->out[0])->dtype);
}

static enum tape_kind kind_of(const struct replay *r, int value)
{
    return ir_value_at(r->p, value)->category == CATEGORY_LOGITS ? TAPE_LOGITS : TAPE_WORKING;
}

/* ---- rows ---- */

static void by_row(struct replay *r, const struct ir_op *op, const struct row *row)
{
    struct tensor_of in[TAPE_IN_MAX], used[TAPE_IN_MAX], y = {0, replay_count(r, op->out[0]), 0};
    int n = op->n_in < TAPE_IN_MAX ? op->n_in : TAPE_IN_MAX;
    bool floating = dtype_floating(ir_value_at(r->p, op->out[0])->dtype);
    bool full = row->autocast == CAST_FULL || (row->autocast == CAST_GPU && r->o->cuda);
    for (int i = 0; i < n; i++) {
        used[i] = in[i] = replay_in(r, op, i);
        if (full && r->o->autocast && in[i].size == 2)
            used[i] = replay_cast(r, in[i], 4);
        if (floating && used[i].v >= 0 && used[i].size > y.size)
            y.size = used[i].size;
    }
    if (!floating || op->code == OP_CAST)
        y.size = out_size(r, op);
    struct tape_op t = {
        .what = ir_op_row(op->code)->name,
        .n_in = n,
        .save_in = row->saved,
        .alias_in = row->aliased,
        .save_out = row->output};
    for (int i = 0; i < n; i++) {
        t.in[i] = used[i].v;
        /* An operand is kept for the other's gradient. */
        if (n == 2 && row->saved == SAVE_AB && !tape_needs_grad(r->t, used[1 - i].v))
            t.save_in &= ~(1u << i);
        if (used[i].n != y.n || used[i].size != y.size)
            t.alias_in &= ~(1u << i);
    }
    if (op->code == OP_CONCAT)
        t.alias_in = (1u << n) - 1;
    t.bytes = replay_bytes(y);
    t.keep_bytes = row->keep == KEEP_INDEX ? y.n * 8 : row->keep == KEEP_LOW_MASK ? y.n : 0;
    t.forward_temporary =
        op->code == OP_AFFINE && op->attr.ew.b != 0 && op->attr.ew.a != 1 ? t.bytes : 0;
    t.backward_temporary = row->temporaries * t.bytes;
    t.kind = kind_of(r, op->out[0]);
    y.v = replay_apply(r, t);
    for (int i = 0; i < n; i++)
        replay_done(r, in[i], used[i]);
    replay_out(r, op, 0, y);
}

/* ---- products ---- */

static void product(struct replay *r, const struct ir_op *op)
{
    struct tensor_of a = replay_in(r, op, 0), b = replay_in(r, op, 1);
    struct tensor_of bias = op->n_in > 2 ? replay_in(r, op, 2) : (struct tensor_of){-1, 0, 0};
    struct tensor_of la = a, lb = b, lbias = bias, y = {0, replay_count(r, op->out[0]), 0};
    if (bias.v >= 0)
        lbias = replay_low(r, op, 2);
    lb = replay_low(r, op, 1);
    la = replay_low(r, op, 0);
    y.size = replay_low_size(r, a);
    struct tape_op t = {
        .what = ir_op_row(op->code)->name,
        .in = {la.v, lb.v, lbias.v},
        .n_in = 3,
        .bytes = replay_bytes(y),
        .kind = kind_of(r, op->out[0])};
    t.save_in = (tape_needs_grad(r->t, lb.v) ? 1u : 0) | (tape_needs_grad(r->t, la.v) ? 2u : 0);
    if (op->code != OP_GEMM && !r->o->cuda) { /* oneDNN's blocked copies */
        bool blocked = ir_value_at(r->p, op->in[0])->shape.dim[1] >= 8;
        int64_t in = blocked ? replay_bytes(la) : 0;
        t.forward_temporary = in + (blocked ? replay_bytes(lb) : 0);
        t.grad_temporary = replay_bytes(y) + in;
    }
    y.v = replay_apply(r, t);
    replay_done(r, a, la);
    replay_done(r, b, lb);
    replay_done(r, bias, lbias);
    replay_out(r, op, 0, y);
}

/* ---- norms ---- */

static void norm(struct replay *r, const struct ir_op *op)
{
    struct tensor_of x = replay_in(r, op, 0), used = x, y = x;
    struct tensor_of gamma = op->n_in > 3 ? replay_in(r, op, 3) : (struct tensor_of){-1, 0, 0};
    struct tensor_of beta = op->n_in > 4 ? replay_in(r, op, 4) : (struct tensor_of){-1, 0, 0};
    int64_t statistics = 2 * 4 * replay_count(r, op->in[1]);
    bool rms = op->attr.norm.kind == NORM_RMS, batch = op->attr.norm.kind == NORM_BATCH;
    if (r->o->autocast && !batch)
        used = replay_cast(r, x, 4);
    y.size = used.size;
    struct tape_op t = {
        .what = "norm",
        .in = {used.v, gamma.v, beta.v},
        .n_in = 3,
        .save_in = 1,
        .bytes = replay_bytes(y),
        .keep_bytes = statistics};
    if (rms) { /* written out: x x, mean, x rstd, times gamma */
        t.keep_bytes = replay_bytes(y) + statistics / 2;
        t.forward_temporary = replay_bytes(y);
        t.backward_temporary = 3 * replay_bytes(y);
    }
    y.v = replay_apply(r, t);
    replay_done(r, x, used);
    replay_out(r, op, 0, y);
}

/* ---- noise, lookup ---- */

/* On the CPU the noise is a tensor of x's type; CUDA keeps one byte an element. */
static void dropout(struct replay *r, const struct ir_op *op)
{
    struct tensor_of x = replay_in(r, op, 0), y = x;
    y.v = replay_apply(
        r, (struct tape_op){
               .what = "dropout",
               .in = {x.v},
               .n_in = 1,
               .bytes = replay_bytes(y),
               .keep_bytes = r->o->cuda ? x.n : replay_bytes(x)});
    replay_out(r, op, 0, y);
}

static void embedding(struct replay *r, const struct ir_op *op)
{
    struct tensor_of index = replay_in(r, op, 0), table = replay_in(r, op, 1);
    struct tensor_of y = {0, replay_count(r, op->out[0]), table.size};
    y.v = replay_apply(
        r, (struct tape_op){
               .what = "embedding",
               .in = {index.v, table.v},
               .n_in = 2,
               .save_in = 1,
               .bytes = replay_bytes(y)});
    replay_out(r, op, 0, y);
}

/* ---- losses ---- */

/* Log-softmax, then what it picks. In float32 under autocast. */
static void cross_entropy(struct replay *r, const struct ir_op *op)
{
    struct tensor_of x = replay_in(r, op, 0), used = x, target = replay_in(r, op, 1), y,
                     loss = {0, 1, 4};
    if (r->o->autocast)
        used = replay_cast(r, x, 4);
    y = used;
    y.v = replay_apply(
        r, (struct tape_op){
               .what = "log_softmax",
               .in = {used.v},
               .n_in = 1,
               .save_out = true,
               .kind = kind_of(r, op->in[0]),
               .bytes = replay_bytes(y)});
    replay_done(r, x, used);
    loss.v = replay_apply(
        r, (struct tape_op){
               .what = "nll_loss",
               .in = {y.v, target.v},
               .n_in = 2,
               .save_in = 3,
               .bytes = 4,
               .keep_bytes = 4});
    tape_drop(r->t, y.v);
    replay_out(r, op, 0, loss);
}

static void loss(struct replay *r, const struct ir_op *op)
{
    struct tensor_of x = replay_in(r, op, 0), used = x, target = replay_in(r, op, 1), wide = target;
    struct tensor_of y = {0, replay_count(r, op->out[0]), 4};
    if (r->o->autocast) {
        used = replay_cast(r, x, 4);
        if (target.size == 2)
            wide = replay_cast(r, target, 4);
    }
    y.v = replay_apply(
        r, (struct tape_op){
               .what = ir_op_row(op->code)->name,
               .in = {used.v, wide.v},
               .n_in = 2,
               .save_in = 3,
               .bytes = replay_bytes(y),
               .forward_temporary = op->code == OP_NLL ? 0 : replay_bytes(used)});
    replay_done(r, x, used);
    replay_done(r, target, wide);
    replay_out(r, op, 0, y);
}

/* ---- recurrent layers ---- */

/* Step by step: gates, cell, its tanh and state of each are kept; under autocast also the half copy
 * of the state. The input's share of the gates is cut into steps, whose gradients are joined at the
 * end. */
static void recurrent(struct replay *r, const struct ir_op *op)
{
    struct tensor_of x = replay_in(r, op, 0), w = replay_in(r, op, 1), lw = replay_low(r, op, 1);
    struct tensor_of bias = op->n_in > 2 ? replay_in(r, op, 2) : (struct tensor_of){-1, 0, 0};
    enum recurrent_kind kind = op->attr.recurrent.kind;
    int gates = kind == RECURRENT_LSTM ? 4 : kind == RECURRENT_GRU ? 3 : 1;
    int64_t cells = x.n / gates, part = replay_bytes(x);
    int low = lw.size, steps;
    int64_t each = kind == RECURRENT_LSTM  ? gates * low + 12 + (low == 2 ? 2 : 0)
                   : kind == RECURRENT_GRU ? (gates + 1) * low + 8 + (low == 2 ? 2 : 0)
                                           : 4 + (low == 2 ? 4 : 0);
    tape_split(r->t, x.v, &part, 1, &steps);
    struct tensor_of y = {0, cells, 4};
    y.v = replay_apply(
        r, (struct tape_op){
               .what = "recurrent",
               .in = {steps, lw.v, bias.v},
               .n_in = 3,
               .save_in = 2,
               .bytes = replay_bytes(y),
               .keep_bytes = cells * each,
               .gradual = true,
               .grad_temporary = 2 * replay_bytes(lw)});
    tape_drop(r->t, steps);
    replay_done(r, w, lw);
    replay_out(r, op, op->n_out > 1 ? 1 : 0, y);
}

/* ---- shapes ---- */

static void view(struct replay *r, const struct ir_op *op)
{
    struct tensor_of x = replay_in(r, op, 0), y = {0, replay_count(r, op->out[0]), x.size};
    bool same = y.n == x.n;
    y.v = replay_apply(
        r, (struct tape_op){
               .what = ir_op_row(op->code)->name,
               .in = {x.v},
               .n_in = 1,
               .view = true,
               .alias_in = same ? 1u : 0u,
               .bytes = replay_bytes(y)});
    replay_out(r, op, 0, y);
}

/* Its gradient is the scalar's, expanded: no memory. */
static void sum(struct replay *r, const struct ir_op *op)
{
    struct tensor_of x = replay_in(r, op, 0), used = x,
                     y = {0, replay_count(r, op->out[0]), x.size};
    if (r->o->autocast && r->o->cuda)
        used = replay_cast(r, x, 4);
    y.size = used.size;
    y.v = replay_apply(
        r, (struct tape_op){
               .what = "sum", .in = {used.v}, .n_in = 1, .alias_in = 1, .bytes = replay_bytes(y)});
    replay_done(r, x, used);
    replay_out(r, op, 0, y);
}

static void constant(struct replay *r, const struct ir_op *op)
{
    struct tensor_of y = {0, replay_count(r, op->out[0]), out_size(r, op)};
    y.v = tape_value(r->t, replay_bytes(y), TAPE_WORKING, false);
    replay_out(r, op, 0, y);
}

/* x cos + rotate(x) sin: the angles are kept, x is not. */
static void rope(struct replay *r, const struct ir_op *op)
{
    struct tensor_of x = replay_in(r, op, 0), y = x;
    y.v = replay_apply(
        r, (struct tape_op){
               .what = "rope",
               .in = {x.v},
               .n_in = 1,
               .bytes = replay_bytes(y),
               .forward_temporary = 2 * replay_bytes(y),
               .backward_temporary = 2 * replay_bytes(y)});
    replay_out(r, op, 0, y);
}

/* PyTorch answers an average over everything by a mean: nothing is kept. */
static bool whole_average(const struct replay *r, const struct ir_op *op)
{
    const struct ir_value *y = ir_value_at(r->p, op->out[0]);
    int64_t area = 1;
    for (int i = 2; i < y->shape.rank; i++)
        area *= y->shape.dim[i];
    return op->code == OP_AVG_POOL && op->attr.pool.adaptive && area == 1;
}

bool replay_operator(struct replay *r, const struct ir_op *op)
{
    static const struct row mean = {OP_MEAN,      SAVE_NONE, SAVE_NONE, false,
                                    KEEP_NOTHING, 0,         CAST_WIDE};
    const struct row *row = row_of(op->code);
    if (row) {
        by_row(r, op, whole_average(r, op) ? &mean : row);
        return true;
    }
    switch ((int)op->code) {
    case OP_GEMM:
    case OP_CONV:
    case OP_CONV_DGRAD:
        product(r, op);
        return true;
    case OP_ATTENTION:
        replay_attention(r, op);
        return true;
    case OP_BATCH_STATS:
    case OP_NORM_STATS:
        return true; /* inside the norm that follows */
    case OP_NORM_APPLY:
        norm(r, op);
        return true;
    case OP_DROPOUT:
        dropout(r, op);
        return true;
    case OP_EMBEDDING:
        embedding(r, op);
        return true;
    case OP_CROSS_ENTROPY:
        cross_entropy(r, op);
        return true;
    case OP_NLL:
    case OP_LOSS_EW:
        loss(r, op);
        return true;
    case OP_RECURRENT:
        recurrent(r, op);
        return true;
    case OP_RESHAPE:
    case OP_PERMUTE:
    case OP_EXPAND:
    case OP_SLICE:
        view(r, op);
        return true;
    case OP_SUM:
        sum(r, op);
        return true;
    case OP_FILL:
    case OP_ROPE_TABLE:
    case OP_ARGMAX:
    case OP_COUNT_CORRECT:
        constant(r, op);
        return true;
    case OP_ROPE:
        rope(r, op);
        return true;
    default:
        return false;
    }
}
