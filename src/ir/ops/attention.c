/* attention.c - attention and rotary position embedding: shape, gradients, cost. */
#include "ir/ops/ops_int.h"

/* Operands x, k, v from `first` on: sizes, and whether x is packed. */
struct sizes {
    int64_t b, s, t, h, g, d;
    bool packed;
};

static enum status heads_check(const struct attention_attr *a, struct err *e)
{
    if (a->heads < 1 || a->kv_heads < 1 || a->heads % a->kv_heads)
        return err_set(
            e, ST_INVALID, "%lld heads cannot share %lld heads of keys and values",
            (long long)a->heads, (long long)a->kv_heads);
    if (!(a->dropout >= 0 && a->dropout <= 1))
        return err_set(
            e, ST_INVALID, "dropout probability has to be between 0 and 1, but got %g", a->dropout);
    if (a->window < 0 || (a->window > 0 && !a->causal))
        return err_set(e, ST_INVALID, "a window of %lld needs causal", (long long)a->window);
    return ST_OK;
}

static enum status sizes_of(
    const struct ir_program *p, const struct ir_op *op, int first, struct sizes *z, struct err *e)
{
    const struct attention_attr *a = &op->attr.attention;
    const struct ir_value *q = op_in(p, op, first), *k = op_in(p, op, first + 1),
                          *v = op_in(p, op, first + 2);
    TRY(heads_check(a, e));
    *z = (struct sizes){.h = a->heads, .g = a->kv_heads, .packed = !k};
    if (!k != !v)
        return err_set(e, ST_INTERNAL, "keys without values");
    int64_t n = z->packed ? z->h + 2 * z->g : z->h;
    if (!dtype_floating(q->dtype) || q->shape.rank != 4 || q->shape.dim[2] != n)
        return err_set(
            e, ST_INVALID, "expected a query of shape [B, S, %lld, D], got %s %s", (long long)n,
            dtype_name(q->dtype), TEXT(q->shape));
    z->b = q->shape.dim[0];
    z->s = z->t = q->shape.dim[1];
    z->d = q->shape.dim[3];
    if (z->packed)
        return ST_OK;
    z->t = k->shape.rank == 4 ? k->shape.dim[1] : 0;
    struct shape want = SHAPE(z->b, z->t, z->g, z->d);
    if (!shape_eq(&k->shape, &want) || !shape_eq(&v->shape, &want))
        return err_set(
            e, ST_INVALID, "expected keys and values of shape [%lld, T, %lld, %lld], got %s and %s",
            (long long)z->b, (long long)z->g, (long long)z->d, TEXT(k->shape), TEXT(v->shape));
    if (k->dtype != q->dtype || v->dtype != q->dtype)
        return err_set(
            e, ST_INVALID, "query, key and value have types %s, %s and %s", dtype_name(q->dtype),
            dtype_name(k->dtype), dtype_name(v->dtype));
    return ST_OK;
}

/* bias and rng at `first` and after it. */
static enum status others_check(
    const struct ir_program *p, const struct ir_op *op, int first, const struct sizes *z,
    struct err *e)
{
    const struct ir_value *bias = op_in(p, op, first), *rng = op_in(p, op, first + 1);
    struct shape all = SHAPE(z->b, z->h, z->s, z->t);
    if (bias && (bias->dtype != DT_F32 || !shape_eq(&bias->shape, &all)))
        return err_set(
            e, ST_INVALID, "expected a mask of float32 %s, got %s %s", TEXT(all),
            dtype_name(bias->dtype), TEXT(bias->shape));
    if (op->attr.attention.dropout > 0 && !rng)
        return err_set(e, ST_INTERNAL, "dropout without random numbers");
    if (rng && (rng->dtype != DT_I64 || shape_count(&rng->shape) != 2))
        return err_set(e, ST_INVALID, "rng must be an int64[2] of seed and step");
    return ST_OK;
}

/* Kernels read rows of D as they lie. */
static enum status
dense_rows(const struct ir_program *p, const struct ir_op *op, int from, int to, struct err *e)
{
    for (int i = from; i < to; i++) {
        const struct ir_value *x = op_in(p, op, i);
        if (x && x->shape.rank && x->shape.dim[x->shape.rank - 1] > 1 &&
            x->stride[x->shape.rank - 1] != 1)
            return err_set(e, ST_INTERNAL, "operand %d has gaps in its last dimension", i);
    }
    return ST_OK;
}

enum status shape_attention(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    struct sizes z;
    TRY(sizes_of(p, op, 0, &z, e));
    TRY(others_check(p, op, 3, &z, e));
    TRY(dense_rows(p, op, 0, 3, e));
    out[0].dtype = op_in(p, op, 0)->dtype;
    out[0].shape = SHAPE(z.b, z.s, z.h, z.d);
    out[1].dtype = DT_F32;
    out[1].shape = SHAPE(z.b, z.h, z.s);
    return ST_OK;
}

enum status shape_attention_grad(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    struct sizes z;
    TRY(sizes_of(p, op, 1, &z, e));
    TRY(others_check(p, op, 4, &z, e));
    TRY(dense_rows(p, op, 0, 4, e));
    TRY(dense_rows(p, op, 6, 7, e));
    struct shape like = SHAPE(z.b, z.s, z.h, z.d), rows = SHAPE(z.b, z.h, z.s);
    const struct ir_value *dy = op_in(p, op, 0), *y = op_in(p, op, 6), *lse = op_in(p, op, 7);
    if (!shape_eq(&dy->shape, &like) || !shape_eq(&y->shape, &like) ||
        !shape_eq(&lse->shape, &rows) || lse->dtype != DT_F32)
        return err_set(
            e, ST_INVALID, "a gradient of %s for a result of %s", TEXT(dy->shape), TEXT(y->shape));
    *n_out = z.packed ? 1 : 3;
    for (int i = 0; i < *n_out; i++) {
        out[i].dtype = op_in(p, op, 1)->dtype;
        out[i].shape = op_in(p, op, 1 + i)->shape;
    }
    return ST_OK;
}

void grad_attention(struct ir_grad *g, const struct ir_op *op)
{
    struct ir_program *p = ir_grad_program(g);
    int bias = op_arg(op, 3), dy = grad_out(g, op, 0), dq;
    if (dy == IR_NONE)
        return;
    if (bias != IR_NONE && ir_grad_wanted(g, bias)) {
        (void)ir_refuse(p, ST_UNSUPPORTED, "attention masks that are trained are not supported");
        return;
    }
    int in[] = {dy,   op->in[0],     op_arg(op, 1), op_arg(op, 2),
                bias, op_arg(op, 4), op->out[0],    op->out[1]};
    dq = ir_emit(p, OP_ATTENTION_GRAD, in, 8, &op->attr);
    if (dq == IR_NONE)
        return;
    int made[3] = {dq};
    for (int i = 1; i < 3 && op_arg(op, i) != IR_NONE; i++)
        made[i] = ir_out(p, i);
    for (int i = 2; i >= 0; i--) /* last operand first, as PyTorch's graph has them */
        if (op_arg(op, i) != IR_NONE && ir_grad_wanted(g, op->in[i]))
            ir_grad_add(g, op->in[i], made[i]);
}

enum status shape_rope_table(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)p;
    (void)n_out;
    const struct rope_attr *a = &op->attr.rope;
    if (a->dims < 2 || a->dims % 2 || a->positions < 0 || !(a->theta > 0))
        return err_set(
            e, ST_INVALID, "rotary embedding of %lld dimensions, base %g", (long long)a->dims,
            a->theta);
    out->dtype = DT_F32;
    out->shape = SHAPE(a->positions, a->dims);
    return ST_OK;
}

enum status shape_rope(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *x = op_in(p, op, 0), *table = op_in(p, op, 1);
    TRY(dense_rows(p, op, 0, 1, e));
    if (x->shape.rank != 4 || !dtype_floating(x->dtype))
        return err_set(
            e, ST_INVALID, "rotary embedding needs [B, S, N, D], got %s", TEXT(x->shape));
    if (table->shape.rank != 2 || table->dtype != DT_F32 || table->shape.dim[1] < 2 ||
        table->shape.dim[1] % 2 || table->shape.dim[0] < x->shape.dim[1] ||
        table->shape.dim[1] > x->shape.dim[3] || op->attr.rope.heads > x->shape.dim[2])
        return err_set(
            e, ST_INVALID, "a rotary table of %s does not fit %s", TEXT(table->shape),
            TEXT(x->shape));
    out->dtype = x->dtype;
    out->shape = x->shape;
    return ST_OK;
}

void grad_rope(struct ir_grad *g, const struct ir_op *op)
{
    union op_attr attr = op->attr;
    attr.rope.inverse = !attr.rope.inverse;
    int in[] = {grad_out(g, op, 0), op->in[1]};
    ir_grad_add(g, op->in[0], ir_emit(ir_grad_program(g), OP_ROPE, in, 2, &attr));
}

/* ---- costs ---- */

/* Pairs of a query and a key that it sees by position. */
static double pairs_seen(const struct attention_attr *a, const struct sizes *z)
{
    double s = (double)z->s, t = (double)z->t, most = a->window > 0 ? (double)a->window : t;
    if (!a->causal)
        return s * t;
    double n = 0;
    for (int64_t i = 0; i < z->s; i++) {
        double seen = (double)(i + 1) + t - s;
        seen = seen < 0 ? 0 : seen;
        n += seen < most ? seen : most;
    }
    return n;
}

static void cost_products(
    const struct ir_program *p, const struct ir_op *op, int first, int products, struct ir_cost *c)
{
    struct sizes z;
    struct err e = {0};
    cost_moves(p, op, c);
    if (sizes_of(p, op, first, &z, &e) != ST_OK)
        return;
    c->flops =
        2.0 * products * (double)z.d * (double)(z.b * z.h) * pairs_seen(&op->attr.attention, &z);
}

void cost_attention(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_products(p, op, 0, 2, c);
}

void cost_attention_grad(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_products(p, op, 1, 5, c);
}

void cost_rope_table(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_each(p, op, 40, c);
}

void cost_rope(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_each(p, op, 3, c);
}
