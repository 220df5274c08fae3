/* fuse.c - joins neighbours into operators that have their joint form, with the same bits.
 *
 *   relu(norm_apply(x))               -> norm_apply act=relu
 *   relu(add(norm_apply(x), r))       -> norm_apply residual act=relu
 *   norm_grad(relu_grad(dy, relu(norm_apply(x))), x) -> norm_grad act=relu: the mask is recomputed
 *   relu(gemm(a, b))                  -> gemm act=relu
 *   cast(product in bf16) to float32, for gradients of parameters -> product in float32
 *     (the one that does not keep the bits: it saves a rounding that autocast would do; not in
 *     float16, where that rounding overflows and the gradient scaler counts on it)
 *   cast(x) feeding a sum             -> sum reads the low type itself
 *   cast(x) feeding a cross-entropy of many classes, and the cast of its gradient back: both in
 *     the low type
 *   add(a, cast(b))                   -> add reads the low type itself
 *   cast(weight) to bf16 feeding a product of bf16 -> the product rounds it while packing it
 */
#include "passes/passes.h"
#include "passes/rewrite.h"

#include <string.h>

struct fusing {
    struct rewrite r;
    int *uses;
    int *def;   /* by value: operator of the old list that defines it, IR_NONE */
    bool *gone; /* by old operator: absorbed by another */
    size_t cap;
};

static struct ir_op *maker(const struct fusing *f, int v)
{
    if (v == IR_NONE || (size_t)v >= f->cap || f->def[v] == IR_NONE || f->gone[f->def[v]])
        return NULL;
    return &f->r.ops[f->def[v]];
}

/* Whether variable value v is still the newest version when operator `to` runs: an optimizer that
 * runs in the backward pass may stand between an operator and the one that absorbs it. */
static bool unchanged(int v, const struct ir_op *from, const struct ir_op *to)
{
    for (const struct ir_op *op = from; op < to; op++)
        for (int k = 0; k < ir_op_mutated(op); k++)
            if (op->in[k] == v)
                return false;
    return true;
}

/* Whether `first` may run where `last` does. */
static bool moves(const struct fusing *f, const struct ir_op *first, const struct ir_op *last)
{
    const struct ir_program *p = f->r.p;
    for (int k = 0; k < first->n_in; k++) {
        int v = first->in[k] == IR_NONE ? IR_NONE : ir_storage(p, first->in[k]);
        if (v != IR_NONE && ir_value_at(p, v)->kind == VALUE_VAR && !unchanged(v, first, last))
            return false;
    }
    return true;
}

static bool used_once(const struct fusing *f, int v)
{
    return f->uses[v] == 1;
}

static struct ir_op *maker_of(const struct fusing *f, int v, enum opcode code)
{
    struct ir_op *op = maker(f, v);
    return op && op->code == code ? op : NULL;
}

static bool same_layout(const struct fusing *f, int a, int b)
{
    const struct ir_value *x = ir_value_at(f->r.p, a), *y = ir_value_at(f->r.p, b);
    return x->layout == y->layout && shape_eq(&x->shape, &y->shape) && x->dtype == y->dtype;
}

/* The absorbing operator takes the place of `last`, which keeps its output value. */
static void absorb(
    struct fusing *f, struct ir_op *last, struct ir_op *first, const int *in, int n_in,
    const union op_attr *attr)
{
    f->gone[first - f->r.ops] = true;
    last->code = first->code;
    last->attr = *attr;
    last->in = ARENA_ARRAY(&f->r.p->arena, int, n_in + 1);
    memcpy(last->in, in, sizeof *in * (size_t)n_in);
    last->n_in = n_in;
}

/* x mean rstd gamma? beta? as six operands with the residual last. */
static void norm_operands(const struct ir_op *norm, int residual, int in[6])
{
    for (int k = 0; k < 5; k++)
        in[k] = k < norm->n_in ? norm->in[k] : IR_NONE;
    in[5] = residual;
}

static bool plain_norm(const struct ir_op *op)
{
    return op && op->attr.norm.act == ACT_NONE && (op->n_in < 6 || op->in[5] == IR_NONE);
}

static void fuse_relu(struct fusing *f, struct ir_op *op)
{
    int x = op->in[0], in[6];
    struct ir_op *norm = maker_of(f, x, OP_NORM_APPLY), *sum = maker_of(f, x, OP_ADD);
    struct ir_op *gemm = maker_of(f, x, OP_GEMM);
    if (!used_once(f, x))
        return;
    if (plain_norm(norm) && moves(f, norm, op)) {
        union op_attr attr = norm->attr;
        attr.norm.act = ACT_RELU;
        norm_operands(norm, IR_NONE, in);
        absorb(f, op, norm, in, 5, &attr);
    } else if (gemm && gemm->attr.gemm.act == ACT_NONE && moves(f, gemm, op)) {
        union op_attr attr = gemm->attr;
        attr.gemm.act = ACT_RELU;
        int operands[3] = {gemm->in[0], gemm->in[1], gemm->n_in > 2 ? gemm->in[2] : IR_NONE};
        absorb(f, op, gemm, operands, gemm->n_in, &attr);
    } else if (sum) {
        for (int k = 0; k < 2; k++) {
            norm = maker_of(f, sum->in[k], OP_NORM_APPLY);
            if (!plain_norm(norm) || !used_once(f, sum->in[k]) || sum->in[0] == sum->in[1] ||
                !moves(f, norm, op) || !same_layout(f, sum->in[0], sum->in[1]) ||
                !same_layout(f, sum->in[k], x))
                continue;
            /* The residual must be there where the norm is now computed: it is, at the relu. */
            union op_attr attr = norm->attr;
            attr.norm.act = ACT_RELU;
            norm_operands(norm, sum->in[1 - k], in);
            f->gone[sum - f->r.ops] = true;
            absorb(f, op, norm, in, 6, &attr);
            return;
        }
    }
}

/* Whether y is relu(norm_apply) of exactly x, mean, rstd, gamma; gives beta. */
static bool is_relu_of_norm(const struct fusing *f, int y, const struct ir_op *grad, int *beta)
{
    const struct ir_op *norm = maker_of(f, y, OP_NORM_APPLY);
    if (!norm || norm->attr.norm.act != ACT_RELU || (norm->n_in > 5 && norm->in[5] != IR_NONE))
        return false;
    int gamma = norm->n_in > 3 ? norm->in[3] : IR_NONE;
    *beta = norm->n_in > 4 ? norm->in[4] : IR_NONE;
    int grad_gamma = grad->n_in > 4 ? grad->in[4] : IR_NONE;
    return norm->in[0] == grad->in[1] && norm->in[1] == grad->in[2] && norm->in[2] == grad->in[3] &&
           gamma == grad_gamma;
}

static void fuse_norm_grad(struct fusing *f, struct ir_op *op)
{
    struct ir_op *relu = maker_of(f, op->in[0], OP_RELU_GRAD);
    int beta = IR_NONE;
    if (!relu || !used_once(f, op->in[0]) || op->attr.norm.act != ACT_NONE ||
        !is_relu_of_norm(f, relu->in[1], op, &beta))
        return;
    int in[6] = {relu->in[0], op->in[1], op->in[2], op->in[3], op->n_in > 4 ? op->in[4] : IR_NONE,
                 beta};
    f->uses[relu->in[1]]--;
    f->gone[relu - f->r.ops] = true;
    op->in = ARENA_ARRAY(&f->r.p->arena, int, 6);
    memcpy(op->in, in, sizeof in);
    op->n_in = 6;
    op->attr.norm.act = ACT_RELU;
}

static void widen_output(struct ir_op *product)
{
    if (product->code == OP_GEMM)
        product->attr.gemm.f32_out = true;
    else if (product->code == OP_SUM)
        product->attr.reduce.f32_out = true;
    else
        product->attr.conv.f32_out = true;
}

/* A parameter's gradient leaves the product in float32 instead of being rounded and cast. The
 * product moves to the cast, unless a weight that it reads is updated in between. */
static void fuse_cast(struct fusing *f, struct ir_op *op)
{
    struct ir_op *product = maker(f, op->in[0]);
    struct ir_program *p = f->r.p;
    if (!product || ir_value_at(p, op->in[0])->dtype == DT_F16 || op->phase != PHASE_BACKWARD ||
        op->attr.cast.to != DT_F32 || !used_once(f, op->in[0]) || op->recomputed)
        return;
    bool wide =
        product->code == OP_CONV_WGRAD || product->code == OP_GEMM || product->code == OP_SUM;
    if (!wide || ir_value_at(p, op->in[0])->base != op->in[0])
        return;
    if (!moves(f, product, op)) {
        f->gone[op - f->r.ops] = true;
        product->out[0] = op->out[0];
        f->def[op->out[0]] = (int)(product - f->r.ops);
        widen_output(product);
        return;
    }
    f->gone[product - f->r.ops] = true;
    op->code = product->code;
    op->attr = product->attr;
    op->in = product->in;
    op->n_in = product->n_in;
    op->node = product->node;
    widen_output(op);
}

static void fuse_sum(struct fusing *f, struct ir_op *op)
{
    struct ir_op *up = maker_of(f, op->in[0], OP_CAST);
    if (!up || !used_once(f, op->in[0]) || !dtype_floating(ir_value_at(f->r.p, up->in[0])->dtype))
        return;
    f->gone[up - f->r.ops] = true;
    op->in[0] = up->in[0];
    op->attr.reduce.f32_out = true;
}

/* The floating value that v is cast up from, IR_NONE when it is not. */
static int cast_from(const struct fusing *f, int v)
{
    const struct ir_op *up = maker_of(f, v, OP_CAST);
    if (!up || ir_value_at(f->r.p, v)->dtype != DT_F32)
        return IR_NONE;
    enum dtype t = ir_value_at(f->r.p, up->in[0])->dtype;
    return t == DT_BF16 || t == DT_F16 ? up->in[0] : IR_NONE;
}

/* Logits of a large vocabulary in float32 would be the largest thing of a step; those of a few
 * classes are not worth another form. */
enum { CLASSES_LEAST = 1024 };

static void fuse_cross_entropy(struct fusing *f, struct ir_op *op)
{
    int low = cast_from(f, op->in[0]);
    if (low == IR_NONE)
        return;
    const struct shape *s = &ir_value_at(f->r.p, low)->shape;
    if (s->dim[s->rank > 1 ? 1 : 0] < CLASSES_LEAST)
        return;
    f->uses[op->in[0]]--;
    op->in[0] = low;
    op->attr.loss.f32_out = true;
}

static void fuse_cross_entropy_grad(struct fusing *f, struct ir_op *op)
{
    struct ir_op *grad = maker_of(f, op->in[0], OP_CROSS_ENTROPY_GRAD);
    int low = grad ? cast_from(f, grad->in[1]) : IR_NONE;
    if (low == IR_NONE || !used_once(f, op->in[0]) ||
        ir_value_at(f->r.p, low)->dtype != op->attr.cast.to || f->uses[grad->in[1]] > 1)
        return; /* more uses: the loss itself reads the cast */
    int in[6] = {grad->in[0], low, grad->in[2], grad->in[3], grad->in[4], grad->in[5]};
    absorb(f, op, grad, in, 6, &grad->attr);
}

/* A matrix of weights needs no bf16 copy. Activations keep theirs: a product packs its left operand
 * once for every block of columns. */
static void fuse_weight_cast(struct fusing *f, struct ir_op *op)
{
    struct ir_program *p = f->r.p;
    for (int k = 0; k < 2; k++) {
        struct ir_op *down = maker_of(f, op->in[k], OP_CAST);
        int other = op->in[1 - k];
        if (!down || down->attr.cast.to != DT_BF16 || ir_value_at(p, other)->dtype != DT_BF16 ||
            op->attr.gemm.round[1 - k])
            continue;
        int weight = down->in[0];
        const struct ir_value *v = ir_value_at(p, weight);
        if (v->kind != VALUE_VAR || v->dtype != DT_F32 || v->base != weight ||
            !unchanged(weight, down, op))
            continue;
        f->uses[op->in[k]]--;
        op->in[k] = weight;
        op->attr.gemm.round[k] = true;
    }
}

static void fuse_add(struct fusing *f, struct ir_op *op)
{
    for (int k = 0; k < 2; k++) {
        int low = cast_from(f, op->in[k]);
        if (low == IR_NONE || !used_once(f, op->in[k]) ||
            ir_value_at(f->r.p, op->in[1 - k])->dtype != DT_F32)
            continue;
        f->gone[maker(f, op->in[k]) - f->r.ops] = true;
        op->in[k] = low;
        return; /* the other one must stay float32 */
    }
}

static void visit(struct fusing *f, struct ir_op *op)
{
    switch ((int)op->code) {
    case OP_CROSS_ENTROPY:
        fuse_cross_entropy(f, op);
        break;
    case OP_GEMM:
        fuse_weight_cast(f, op);
        break;
    case OP_ADD:
        fuse_add(f, op);
        break;
    case OP_RELU:
        fuse_relu(f, op);
        break;
    case OP_NORM_GRAD:
        fuse_norm_grad(f, op);
        break;
    case OP_CAST:
        fuse_cast(f, op);
        if (op->code == OP_CAST && !f->gone[op - f->r.ops])
            fuse_cross_entropy_grad(f, op);
        break;
    case OP_SUM:
        fuse_sum(f, op);
        break;
    default:
        break;
    }
}

enum status pass_fuse(struct ir_program *p, struct err *e)
{
    struct fusing f = {.cap = p->values.n, .uses = rewrite_uses(p)};
    rewrite_begin(&f.r, p);
    f.def = mem_alloc((f.cap + 1) * sizeof *f.def);
    f.gone = mem_alloc((f.r.n + 1) * sizeof *f.gone);
    for (size_t v = 0; v < f.cap; v++)
        f.def[v] = IR_NONE;
    for (size_t i = 0; i < f.r.n; i++)
        for (int k = 0; k < f.r.ops[i].n_out; k++)
            f.def[f.r.ops[i].out[k]] = (int)i;
    for (size_t i = 0; i < f.r.n; i++)
        visit(&f, &f.r.ops[i]);
    for (size_t i = 0; i < f.r.n; i++)
        if (!f.gone[i])
            rewrite_keep(&f.r, &f.r.ops[i]);
    mem_free(f.uses);
    mem_free(f.def);
    mem_free(f.gone);
    TRY(rewrite_end(&f.r, e));
    ir_dead_code(p);
    return ir_status(p, e);
}
