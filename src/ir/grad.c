/* grad.c - reverse-mode differentiation: gradients are operators of the same program. */
#include "ir/ops/ops_int.h"

#include <string.h>

/* Values made while walking back (n and above) have no gradients of their own. */
struct ir_grad {
    struct ir_program *p;
    int *gradient; /* by value: its gradient so far, or IR_NONE */
    int n;
};

struct ir_program *ir_grad_program(struct ir_grad *g)
{
    return g->p;
}

int ir_grad_get(const struct ir_grad *g, int value)
{
    return value >= 0 && value < g->n ? g->gradient[value] : IR_NONE;
}

bool ir_grad_wanted(const struct ir_grad *g, int value)
{
    return value >= 0 && value < g->n && g->p->values.data[value].needs_grad;
}

void ir_grad_add(struct ir_grad *g, int value, int gradient)
{
    if (ir_idle(g->p, gradient) || !ir_grad_wanted(g, value))
        return;
    struct shape s = value_shape(g->p, value);
    gradient = ir_sum_to(g->p, gradient, &s);
    gradient = ir_cast(g->p, gradient, g->p->values.data[value].dtype);
    int before = g->gradient[value];
    if (ir_idle(g->p, gradient))
        return;
    struct ir_value *made = ir_value_at(g->p, gradient);
    if (g->p->values.data[value].kind == VALUE_VAR && made->kind == VALUE_TEMP)
        made->category = CATEGORY_GRADIENTS; /* a weight's, even while other uses are to come */
    g->gradient[value] = before == IR_NONE ? gradient : ir_binary(g->p, OP_ADD, before, gradient);
}

void ir_grad_replace(struct ir_grad *g, int value, int gradient)
{
    if (!ir_idle(g->p, gradient) && ir_grad_wanted(g, value))
        g->gradient[value] = gradient;
}

/* Marks the floating values that trainable variables lead to. */
void ir_needs_grad(struct ir_program *p)
{
    for (size_t i = 0; i < p->values.n; i++) {
        struct ir_value *v = &p->values.data[i];
        v->needs_grad = v->kind == VALUE_VAR && v->def == IR_NONE && dtype_floating(v->dtype) &&
                        p->vars->list.data[v->var].trainable;
    }
    for (size_t i = 0; i < p->ops.n; i++) {
        const struct ir_op *op = &p->ops.data[i];
        bool reached = false;
        for (int j = 0; j < op->n_in; j++)
            reached = reached || (op->in[j] >= 0 && p->values.data[op->in[j]].needs_grad);
        if (!reached || (ir_op_row(op->code)->flags & OPF_NOGRAD))
            continue;
        for (int j = ir_op_mutated(op); j < op->n_out; j++)
            p->values.data[op->out[j]].needs_grad =
                dtype_floating(p->values.data[op->out[j]].dtype);
    }
}

/* One operator: nothing unless a gradient has reached it and some operand wants one. */
static void step_back(struct ir_grad *g, const struct ir_op *op)
{
    bool arrived = false, wanted = false;
    for (int i = 0; i < op->n_out; i++)
        arrived = arrived || ir_grad_get(g, op->out[i]) != IR_NONE;
    for (int i = 0; i < op->n_in; i++)
        wanted = wanted || ir_grad_wanted(g, op->in[i]);
    const struct ir_op_row *row = ir_op_row(op->code);
    if (!arrived || !wanted || (row->flags & OPF_NOGRAD))
        return;
    g->p->node = op->node;
    if (row->grad)
        row->grad(g, op);
    else
        (void)ir_refuse(g->p, ST_UNSUPPORTED, "operator \"%s\" has no gradient", row->name);
}

/* The gradient of a variable: of its value from before any update. */
static void collect(struct ir_grad *g, int *grad_of_var)
{
    struct ir_program *p = g->p;
    for (int i = 0; i < g->n; i++) {
        const struct ir_value v = p->values.data[i];
        if (v.kind != VALUE_VAR || g->gradient[i] == IR_NONE || p->err.status != ST_OK)
            continue;
        /* A dense storage of its own: a view or somebody else's gradient cannot be one. */
        int made = ir_contiguous(p, g->gradient[i]);
        grad_of_var[v.var] = made;
        if (made != IR_NONE && p->values.data[made].kind == VALUE_TEMP) {
            p->values.data[ir_storage(p, made)].category = CATEGORY_GRADIENTS;
            p->values.data[made].category = CATEGORY_GRADIENTS;
        }
    }
}

void ir_backward(struct ir_program *p, int loss, int seed, int *grad_of_var)
{
    for (size_t i = 0; i < p->vars->list.n; i++)
        grad_of_var[i] = IR_NONE;
    if (ir_idle(p, loss) || ir_idle(p, seed))
        return;
    struct shape s = value_shape(p, loss);
    if (shape_count(&s) != 1) {
        (void)ir_refuse(
            p, ST_INVALID,
            "grad can be implicitly created only for scalar outputs, the loss has shape %s",
            TEXT(s));
        return;
    }
    int node = p->node;
    ir_needs_grad(p);
    p->phase = PHASE_BACKWARD;
    struct ir_grad g = {.p = p, .n = (int)p->values.n};
    g.gradient = mem_alloc(sizeof(int) * (size_t)g.n);
    for (int i = 0; i < g.n; i++)
        g.gradient[i] = IR_NONE;
    ir_grad_add(&g, loss, ir_reshape(p, seed, s));
    for (size_t i = (size_t)(p->ops.n); i-- > 0 && p->err.status == ST_OK;) {
        struct ir_op op = p->ops.data[i]; /* a copy: the list grows meanwhile */
        if (op.n_out && op.out[0] < g.n)
            step_back(&g, &op);
    }
    collect(&g, grad_of_var);
    mem_free(g.gradient);
    p->node = node;
}
