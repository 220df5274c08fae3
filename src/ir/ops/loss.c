/* loss.c - losses: shape, gradients, cost. */
#include "ir/ops/ops_int.h"

static enum status floats(const struct ir_value *x, const char *what, struct err *e)
{
    if (dtype_floating(x->dtype))
        return ST_OK;
    return err_set(e, ST_INVALID, "%s must be floating values, got %s", what, dtype_name(x->dtype));
}

/* The dimension of the classes: 0 for [C], else 1. */
static struct shape without_classes(const struct shape *x)
{
    struct shape s = {0};
    for (int i = 0; i < x->rank; i++)
        if (i != (x->rank > 1))
            s.dim[s.rank++] = x->dim[i];
    return s;
}

static enum status
class_check(const struct ir_program *p, const struct ir_op *op, bool probabilities, struct err *e)
{
    const struct ir_value *x = op_in(p, op, 0), *t = op_in(p, op, 1), *w = op_in(p, op, 2);
    if (x->shape.rank < 1)
        return err_set(e, ST_INVALID, "expected logits of shape [N, C, ..] or [C], got a scalar");
    TRY(floats(x, "logits", e));
    struct shape expected = without_classes(&x->shape);
    int64_t classes = x->shape.dim[x->shape.rank > 1];
    if (dtype_floating(t->dtype)) {
        if (!probabilities)
            return err_set(
                e, ST_INVALID, "expected a target of class indices, got %s", dtype_name(t->dtype));
        if (!shape_eq(&t->shape, &x->shape))
            return err_set(
                e, ST_INVALID, "expected class probabilities of shape %s, got %s", TEXT(x->shape),
                TEXT(t->shape));
    } else if (t->dtype != DT_I64) {
        return err_set(
            e, ST_INVALID, "expected a target of type int64, got %s", dtype_name(t->dtype));
    } else if (!shape_eq(&t->shape, &expected)) {
        return err_set(
            e, ST_INVALID, "expected target size %s, got %s (input %s)", TEXT(expected),
            TEXT(t->shape), TEXT(x->shape));
    }
    if (w && (w->shape.rank != 1 || w->shape.dim[0] != classes))
        return err_set(
            e, ST_INVALID, "weight tensor should be defined for all %lld classes, got %s",
            (long long)classes, TEXT(w->shape));
    if (op->attr.loss.reduction == REDUCE_BATCHMEAN)
        return err_set(e, ST_INVALID, "batchmean is not a valid value for reduction here");
    return ST_OK;
}

enum status shape_cross_entropy(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *x = op_in(p, op, 0);
    double smoothing = op->attr.loss.label_smoothing;
    if (!(smoothing >= 0 && smoothing <= 1))
        return err_set(
            e, ST_INVALID, "label_smoothing must be between 0.0 and 1.0, got %g", smoothing);
    TRY(class_check(p, op, true, e));
    struct shape each = without_classes(&x->shape);
    out[0].dtype = op->attr.loss.f32_out ? DT_F32 : x->dtype;
    out[0].shape = op->attr.loss.reduction == REDUCE_NONE ? each : shape_scalar();
    out[1].dtype = out[2].dtype = DT_F32;
    out[1].shape = each;
    out[2].shape = shape_scalar();
    return ST_OK;
}

enum status shape_nll(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *x = op_in(p, op, 0);
    TRY(class_check(p, op, false, e));
    out[0].dtype = x->dtype;
    out[0].shape =
        op->attr.loss.reduction == REDUCE_NONE ? without_classes(&x->shape) : shape_scalar();
    out[1].dtype = DT_F32;
    out[1].shape = shape_scalar();
    return ST_OK;
}

enum status shape_loss_ew(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *x = op_in(p, op, 0), *t = op_in(p, op, 1);
    const struct loss_attr *a = &op->attr.loss;
    TRY(floats(x, "input", e));
    TRY(floats(t, "target", e));
    for (int i = 1; i < op->n_in; i++)
        if (op_in(p, op, i) && !shape_eq(&op_in(p, op, i)->shape, &x->shape))
            return err_set(
                e, ST_INVALID, "target size (%s) must be the same as input size (%s)",
                TEXT(op_in(p, op, i)->shape), TEXT(x->shape));
    if (a->reduction == REDUCE_BATCHMEAN && (a->kind != LOSS_KLDIV || x->shape.rank == 0))
        return err_set(e, ST_INVALID, "batchmean is not a valid value for reduction here");
    if ((a->kind == LOSS_HUBER && !(a->beta > 0)) || (a->kind == LOSS_SMOOTH_L1 && a->beta < 0))
        return err_set(e, ST_INVALID, "beta or delta must be positive, got %g", a->beta);
    out->dtype = x->dtype;
    out->shape = a->reduction == REDUCE_NONE ? x->shape : shape_scalar();
    return ST_OK;
}

/* dloss x ...: the gradient of x. */
enum status shape_loss_grad(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    (void)n_out;
    const struct ir_value *dloss = op_in(p, op, 0), *x = op_in(p, op, 1);
    int64_t n = shape_count(&dloss->shape);
    struct shape each = op->code == OP_LOSS_EW_GRAD ? x->shape : without_classes(&x->shape);
    if (op->attr.loss.reduction == REDUCE_NONE ? !shape_eq(&dloss->shape, &each) : n != 1)
        return err_set(
            e, ST_INVALID, "a loss gradient of %s for %s", TEXT(dloss->shape), TEXT(x->shape));
    out->dtype = x->dtype;
    out->shape = x->shape;
    return ST_OK;
}

/* x weight target bias? class weight? seed? */
enum status shape_linear_cross_entropy(
    const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
    struct err *e)
{
    const struct linear_loss_attr *a = &op->attr.linear_loss;
    const struct ir_value *x = op_in(p, op, 0), *w = op_in(p, op, 1), *t = op_in(p, op, 2);
    const struct ir_value *bias = op_in(p, op, 3), *class_weight = op_in(p, op, 4);
    int n = 0;
    TRY(floats(x, "input", e));
    TRY(floats(w, "weight", e));
    if (x->shape.rank != 2 || w->shape.rank != 2 || t->shape.rank != 1 ||
        x->shape.dim[1] != w->shape.dim[!a->in_out] || t->shape.dim[0] != x->shape.dim[0] ||
        t->dtype != DT_I64)
        return err_set(
            e, ST_INVALID, "a head of %s over %s with targets %s", TEXT(w->shape), TEXT(x->shape),
            TEXT(t->shape));
    struct shape classes = SHAPE(w->shape.dim[a->in_out]);
    if ((bias && !shape_eq(&bias->shape, &classes)) ||
        (class_weight && !shape_eq(&class_weight->shape, &classes)))
        return err_set(e, ST_INVALID, "expected a bias and weights of shape %s", TEXT(classes));
    if (a->chunk < 1 || (a->loss.reduction != REDUCE_MEAN && a->loss.reduction != REDUCE_SUM))
        return err_set(e, ST_INVALID, "a chunked loss is a mean or a sum, of chunks of 1 or more");
    if ((a->dx || a->dweight || a->dbias) && !op_in(p, op, 5))
        return err_set(e, ST_INTERNAL, "gradients of a chunked loss need its seed");
    out[n++] = (struct ir_shape_out){.dtype = DT_F32, .shape = shape_scalar()};
    out[n++] = (struct ir_shape_out){.dtype = DT_F32, .shape = shape_scalar()};
    if (a->correct)
        out[n++] = (struct ir_shape_out){.dtype = DT_I64, .shape = SHAPE(2)};
    if (a->dx)
        out[n++] = (struct ir_shape_out){.dtype = x->dtype, .shape = x->shape};
    if (a->dweight)
        out[n++] = (struct ir_shape_out){.dtype = DT_F32, .shape = w->shape};
    if (a->dbias)
        out[n++] = (struct ir_shape_out){.dtype = DT_F32, .shape = classes};
    *n_out = n;
    return ST_OK;
}

/* ---- gradients ---- */

/* Only the first operand is differentiated. */
static bool target_free(struct ir_grad *g, const struct ir_op *op)
{
    for (int i = 1; i < op->n_in; i++)
        if (op->in[i] != IR_NONE && ir_grad_wanted(g, op->in[i])) {
            (void)ir_refuse(
                ir_grad_program(g), ST_UNSUPPORTED,
                "no gradient flows to the target or weight of \"%s\"", ir_op_row(op->code)->name);
            return false;
        }
    return true;
}

void grad_cross_entropy(struct ir_grad *g, const struct ir_op *op)
{
    if (!target_free(g, op))
        return;
    int in[] = {grad_out(g, op, 0), op->in[0], op->in[1], op_arg(op, 2), op->out[1], op->out[2]};
    ir_grad_add(g, op->in[0], ir_emit(ir_grad_program(g), OP_CROSS_ENTROPY_GRAD, in, 6, &op->attr));
}

/* The float32 value that a weight in low precision was cast from. */
static int before_cast(const struct ir_program *p, int v)
{
    while (v >= 0 && p->values.data[v].kind == VALUE_TEMP && p->values.data[v].def >= 0 &&
           p->ops.data[p->values.data[v].def].code == OP_CAST)
        v = p->ops.data[p->values.data[v].def].in[0];
    return v;
}

/* The gradients are there already, for a loss gradient of `seed`. */
void grad_linear_cross_entropy(struct ir_grad *g, const struct ir_op *op)
{
    struct ir_program *p = ir_grad_program(g);
    const struct linear_loss_attr *a = &op->attr.linear_loss;
    int n = 2 + a->correct, seed = op_arg(op, 5), d = grad_out(g, op, 0);
    if (seed < 0 || ir_storage(p, d) != ir_storage(p, seed)) {
        (void)ir_refuse(p, ST_INTERNAL, "the loss gradient of a chunked loss is not its seed");
        return;
    }
    if (a->dx)
        ir_grad_add(g, op->in[0], op->out[n++]);
    if (a->dweight)
        ir_grad_add(g, before_cast(p, op->in[1]), op->out[n++]);
    if (a->dbias)
        ir_grad_add(g, before_cast(p, op->in[3]), op->out[n++]);
}

void grad_nll(struct ir_grad *g, const struct ir_op *op)
{
    if (!target_free(g, op))
        return;
    int in[] = {grad_out(g, op, 0), op->in[0], op->in[1], op_arg(op, 2), op->out[1]};
    ir_grad_add(g, op->in[0], ir_emit(ir_grad_program(g), OP_NLL_GRAD, in, 5, &op->attr));
}

void grad_loss_ew(struct ir_grad *g, const struct ir_op *op)
{
    struct ir_program *p = ir_grad_program(g);
    int in[] = {grad_out(g, op, 0), op->in[0], op->in[1], op_arg(op, 2), op_arg(op, 3)};
    enum loss_kind kind = op->attr.loss.kind;
    bool mirrored =
        kind == LOSS_MSE || kind == LOSS_L1 || kind == LOSS_SMOOTH_L1 || kind == LOSS_HUBER;
    /* Losses of the difference: the target's gradient is the input's, negated. */
    if (!mirrored && !target_free(g, op))
        return;
    int dx = ir_emit(p, OP_LOSS_EW_GRAD, in, 5, &op->attr);
    if (ir_grad_wanted(g, op->in[1]))
        ir_grad_add(g, op->in[1], ir_affine(p, dx, -1, 0));
    if (ir_grad_wanted(g, op->in[0]))
        ir_grad_add(g, op->in[0], dx);
}

/* ---- costs ---- */

void cost_cross_entropy(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_each(p, op, 12, c);
}

void cost_linear_cross_entropy(
    const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    const struct linear_loss_attr *a = &op->attr.linear_loss;
    double n = (double)shape_count(&op_in(p, op, 2)->shape);
    double weight = (double)shape_count(&op_in(p, op, 1)->shape);
    double classes = (double)op_in(p, op, 1)->shape.dim[a->in_out];
    cost_moves(p, op, c);
    c->flops = 2 * n * weight * (1 + a->dx + a->dweight) + n * classes * (a->dx ? 20 : 12);
}

void cost_nll(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_moves(p, op, c);
    c->flops = 2.0 * (double)shape_count(&op_in(p, op, 1)->shape);
}

void cost_loss_ew(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_each(p, op, 8, c);
}

void cost_loss_grad(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    cost_moves(p, op, c);
    c->flops = 8.0 * (double)shape_count(&op_in(p, op, 1)->shape);
}
