/* element.c - elementwise operators of one and two operands: shape, gradients, cost. */
#include "ir/ops/ops_int.h"

/* ---- one operand ---- */

static bool takes_integers(enum opcode code)
{
    return code == OP_RELU || code == OP_ABS || code == OP_SIGN || code == OP_AFFINE ||
           code == OP_CLAMP;
}

enum status shape_unary(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *x = op_in(p, op, 0);
    if (!dtype_floating(x->dtype) && !takes_integers(op->code))
        return err_set(
            e, ST_INVALID, "\"%s\" needs floating values, got %s", ir_op_row(op->code)->name,
            dtype_name(x->dtype));
    out->dtype = x->dtype;
    out->shape = x->shape;
    return ST_OK;
}

enum status shape_act_grad(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *dy = op_in(p, op, 0), *x = op_in(p, op, 1);
    if (!shape_eq(&dy->shape, &x->shape))
        return err_set(
            e, ST_INVALID, "a gradient of %s for values of %s", TEXT(dy->shape), TEXT(x->shape));
    out->dtype = dy->dtype;
    out->shape = dy->shape;
    return ST_OK;
}

/* The operators whose gradient is an operator: it reads the output where `by_output`, else the
 * input. */
static const struct act_rule {
    enum opcode forward, backward;
    bool by_output;
} act_rules[] = {
    {OP_RELU, OP_RELU_GRAD, true},    {OP_LEAKY_RELU, OP_LEAKY_RELU_GRAD, false},
    {OP_ELU, OP_ELU_GRAD, false},     {OP_SELU, OP_SELU_GRAD, false},
    {OP_GELU, OP_GELU_GRAD, false},   {OP_SIGMOID, OP_SIGMOID_GRAD, true},
    {OP_TANH, OP_TANH_GRAD, true},    {OP_SILU, OP_SILU_GRAD, false},
    {OP_MISH, OP_MISH_GRAD, false},   {OP_HARDSWISH, OP_HARDSWISH_GRAD, false},
    {OP_CLAMP, OP_CLAMP_GRAD, false},
};

/* The others, out of products and quotients. */
static int composed(struct ir_program *p, const struct ir_op *op, int dy)
{
    int x = op->in[0], y = op->out[0];
    double a = op->attr.ew.a;
    if (op->code == OP_EXP)
        return ir_binary(p, OP_MUL, dy, y);
    if (op->code == OP_LOG)
        return ir_binary(p, OP_DIV, dy, x);
    if (op->code == OP_SQRT)
        return ir_binary(p, OP_DIV, dy, ir_affine(p, y, 2, 0));
    if (op->code == OP_RECIPROCAL)
        return ir_binary(p, OP_MUL, ir_affine(p, dy, -1, 0), ir_binary(p, OP_MUL, y, y));
    if (op->code == OP_ABS)
        return ir_binary(p, OP_MUL, dy, ir_unary(p, OP_SIGN, x));
    if (op->code == OP_AFFINE)
        return ir_affine(p, dy, a, 0);
    ASSERT(op->code == OP_POW);
    if (a == 0) /* also where x is 0, as PyTorch */
        return ir_affine(p, dy, 0, 0);
    int power = ir_unary_attr(p, OP_POW, x, (struct ew_attr){.a = a - 1});
    return ir_binary(p, OP_MUL, dy, ir_affine(p, power, a, 0));
}

void grad_unary(struct ir_grad *g, const struct ir_op *op)
{
    struct ir_program *p = ir_grad_program(g);
    int dy = grad_out(g, op, 0);
    for (size_t i = 0; i < sizeof act_rules / sizeof *act_rules; i++)
        if (act_rules[i].forward == op->code) {
            int in[] = {dy, act_rules[i].by_output ? op->out[0] : op->in[0]};
            ir_grad_add(g, op->in[0], ir_emit(p, act_rules[i].backward, in, 2, &op->attr));
            return;
        }
    ir_grad_add(g, op->in[0], composed(p, op, dy));
}

/* ---- PReLU ---- */

enum status shape_prelu(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *x = op_in(p, op, 0), *w = op_in(p, op, 1);
    int64_t channels = x->shape.rank > 1 ? x->shape.dim[1] : 1, n = shape_count(&w->shape);
    if (w->shape.rank != 1 || (n != 1 && n != channels))
        return err_set(
            e, ST_INVALID,
            "mismatch of parameter numbers and input channel size: found %s and %lld",
            TEXT(w->shape), (long long)channels);
    out->dtype = x->dtype;
    out->shape = x->shape;
    return ST_OK;
}

enum status shape_prelu_grad(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    TRY(shape_act_grad(p, op, out, n_out, e));
    out[1].dtype = op_in(p, op, 2)->dtype;
    out[1].shape = op_in(p, op, 2)->shape;
    return ST_OK;
}

void grad_prelu(struct ir_grad *g, const struct ir_op *op)
{
    struct ir_program *p = ir_grad_program(g);
    int in[] = {grad_out(g, op, 0), op->in[0], op->in[1]};
    int dx = ir_emit(p, OP_PRELU_GRAD, in, 3, NULL);
    if (dx == IR_NONE)
        return;
    int dw = ir_out(p, 1);
    if (ir_grad_wanted(g, op->in[1]))
        ir_grad_add(g, op->in[1], dw);
    if (ir_grad_wanted(g, op->in[0]))
        ir_grad_add(g, op->in[0], dx);
}

/* ---- two operands ---- */

enum status shape_binary(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *a = op_in(p, op, 0), *b = op_in(p, op, 1);
    if (!shape_broadcast(&a->shape, &b->shape, &out->shape))
        return err_set(
            e, ST_INVALID, "shapes %s and %s cannot be broadcast together", TEXT(a->shape),
            TEXT(b->shape));
    out->dtype = dtype_widest(a->dtype, b->dtype);
    if (op->code == OP_DIV && !dtype_floating(out->dtype))
        return err_set(
            e, ST_INVALID, "\"div\" needs floating values, got %s", dtype_name(out->dtype));
    return ST_OK;
}

/* 1 where a is the winner, half at a tie. */
static int winner(struct ir_program *p, enum opcode code, int a, int b)
{
    int ahead =
        code == OP_MAXIMUM ? ir_binary(p, OP_GREATER, a, b) : ir_binary(p, OP_GREATER, b, a);
    int tie = ir_affine(p, ir_binary(p, OP_EQUAL, a, b), 0.5, 0);
    return ir_binary(p, OP_ADD, ahead, tie);
}

static int left_grad(struct ir_program *p, const struct ir_op *op, int dy)
{
    int a = op->in[0], b = op->in[1];
    if (op->code == OP_ADD || op->code == OP_SUB)
        return dy;
    if (op->code == OP_MUL || op->code == OP_DIV)
        return ir_binary(p, op->code, dy, b);
    return ir_binary(p, OP_MUL, dy, winner(p, op->code, a, b));
}

static int right_grad(struct ir_program *p, const struct ir_op *op, int dy)
{
    int a = op->in[0], b = op->in[1];
    if (op->code == OP_ADD)
        return dy;
    if (op->code == OP_SUB)
        return ir_affine(p, dy, -1, 0);
    if (op->code == OP_MUL)
        return ir_binary(p, OP_MUL, dy, a);
    if (op->code == OP_DIV) /* -dy * (y / b) */
        return ir_binary(p, OP_MUL, ir_affine(p, dy, -1, 0), ir_binary(p, OP_DIV, op->out[0], b));
    return ir_binary(p, OP_MUL, dy, winner(p, op->code, b, a));
}

/* ir_grad_add sums the broadcast dimensions away. */
void grad_binary(struct ir_grad *g, const struct ir_op *op)
{
    struct ir_program *p = ir_grad_program(g);
    int dy = grad_out(g, op, 0);
    bool left = ir_grad_wanted(g, op->in[0]), right = ir_grad_wanted(g, op->in[1]);
    /* Both contributions are made before the first is added: x * x adds twice to one value. */
    int da = left ? left_grad(p, op, dy) : IR_NONE;
    int db = right ? right_grad(p, op, dy) : IR_NONE;
    if (left)
        ir_grad_add(g, op->in[0], da);
    if (right)
        ir_grad_add(g, op->in[1], db);
}

/* ---- dropout: its own gradient ---- */

enum status shape_dropout(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *x = op_in(p, op, 0), *rng = op_in(p, op, 1), *mask = op_in(p, op, 2);
    double prob = op->attr.dropout.p;
    if (!(prob >= 0 && prob <= 1))
        return err_set(
            e, ST_INVALID, "dropout probability has to be between 0 and 1, but got %g", prob);
    if (rng->dtype != DT_I64 || shape_count(&rng->shape) != 2)
        return err_set(e, ST_INVALID, "dropout needs an int64[2] of seed and step");
    if (mask && !shape_eq(&mask->shape, &x->shape))
        return err_set(
            e, ST_INVALID, "a dropout mask of %s for %s", TEXT(mask->shape), TEXT(x->shape));
    out->dtype = x->dtype;
    out->shape = x->shape;
    return ST_OK;
}

void grad_dropout(struct ir_grad *g, const struct ir_op *op)
{
    int in[] = {grad_out(g, op, 0), op->in[1], op_arg(op, 2)};
    int dx = ir_emit(ir_grad_program(g), OP_DROPOUT, in, in[2] == IR_NONE ? 2 : 3, &op->attr);
    ir_grad_add(g, op->in[0], dx);
}

/* ---- costs ---- */

void cost_unary(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    bool cheap =
        op->code == OP_RELU || op->code == OP_ABS || op->code == OP_AFFINE || op->code == OP_CLAMP;
    cost_each(p, op, cheap ? 1 : 10, c);
}

void cost_act_grad(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_each(p, op, op->code == OP_RELU_GRAD ? 1 : 10, c);
}

void cost_prelu(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_each(p, op, 2, c);
}

void cost_prelu_grad(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_each(p, op, 4, c);
}

void cost_binary(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_moves(p, op, c);
    c->flops = (double)shape_count(&p->values.data[op->out[0]].shape);
}

void cost_dropout(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_each(p, op, 10, c);
}
