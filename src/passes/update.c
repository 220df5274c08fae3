/* update.c - appends accumulation, gradient check and optimizer to a program with gradients. */
#include "passes/update.h"

#include "ir/build.h"
#include "ir/optim_state.h"
#include "passes/rewrite.h"

/* A second training loop over the same model finds the variables of the first. */
static int var_once(struct ir_vars *vars, const struct ir_var *made)
{
    int found = ir_var_find(vars, made->name);
    return found != IR_NONE ? found : ir_var_new(vars, made);
}

void update_vars_make(
    struct ir_vars *vars, const struct optim_attr *optim, bool accumulates, const int *grad_of_var,
    size_t n, struct update_vars *out)
{
    *out = (struct update_vars){
        mem_alloc((n + 1) * sizeof *out->accumulator), mem_alloc((n + 1) * sizeof *out->state), n};
    for (size_t v = 0; v < n; v++) {
        out->accumulator[v] = IR_NONE;
        for (int k = 0; k < UPDATE_STATES_MAX; k++)
            out->state[v][k] = IR_NONE;
        struct ir_var param = vars->list.data[v];
        if (grad_of_var[v] == IR_NONE)
            continue;
        struct ir_var made = {
            .dtype = DT_F32,
            .shape = param.shape,
            .category = CATEGORY_GRADIENTS,
            .of = (int)v,
            .node = param.node};
        if (accumulates) {
            made.name = arena_printf(&vars->arena, "grad:%s", param.name);
            out->accumulator[v] = var_once(vars, &made);
        }
        made.category = CATEGORY_OPTIMIZER_STATE;
        struct optim_attr own = optim_attr_for(optim, &param.shape, param.dtype, param.name);
        ASSERT(optim_state_count(&own) <= UPDATE_STATES_MAX);
        for (int k = 0; k < optim_state_count(&own); k++) {
            made.name = arena_printf(&vars->arena, "%s:%s", optim_state_name(&own, k), param.name);
            made.shape = optim_state_shape(&own, k, &param.shape);
            made.dtype = optim_state_dtype(&own, k);
            out->state[v][k] = var_once(vars, &made);
        }
    }
}

void update_vars_release(struct update_vars *u)
{
    mem_free(u->accumulator);
    mem_free(u->state);
    *u = (struct update_vars){0};
}

/* The gradient of variable v as the update reads it: accumulated where the window says so. */
static int collect(
    struct ir_program *p, const struct update_options *o, const struct update_vars *u, int v, int g)
{
    p->node = p->vars->list.data[v].node;
    if (o->window == WINDOW_ONLY)
        return g;
    int in[2] = {ir_var_read(p, u->accumulator[v]), ir_contiguous(p, g)};
    return ir_emit(p, o->window == WINDOW_FIRST ? OP_COPY : OP_ACCUMULATE, in, 2, NULL);
}

static void step(
    struct ir_program *p, const struct update_options *o, const struct update_vars *u, int v, int g,
    int hyper, int ctl)
{
    int in[UPDATE_STATES_MAX + 4], n = 0;
    const struct ir_var *param = &p->vars->list.data[v];
    union op_attr attr = {
        .optim = optim_attr_for(&o->optim, &param->shape, param->dtype, param->name)};
    p->node = param->node;
    in[n++] = ir_var_read(p, v);
    for (int k = 0; k < optim_state_count(&attr.optim); k++)
        in[n++] = ir_var_read(p, u->state[v][k]);
    in[n++] = ir_contiguous(p, g);
    in[n++] = hyper;
    in[n++] = ctl;
    (void)ir_emit(p, OP_OPTIMIZER, in, n, &attr);
}

static int hyper_input(struct ir_program *p, const struct update_options *o)
{
    int64_t controls = o->optim.stochastic ? 5 : o->cycles_momentum ? 3 : 2;
    return ir_input(p, "hyper", DT_F64, SHAPE(controls));
}

/* Each parameter by its own check, joined for the host: nothing waits for the whole gradient. */
static void update_each(
    struct ir_program *p, const struct update_options *o, const int *grads,
    const struct update_vars *u)
{
    int *ctl = mem_alloc((u->n + 1) * sizeof *ctl), n = 0;
    int hyper = hyper_input(p, o);
    int scale = ir_input(p, "loss_scale", DT_F32, shape_scalar());
    union op_attr attr = {.check = {.max_norm = 0}};
    for (size_t v = 0; v < u->n; v++) {
        if (grads[v] == IR_NONE)
            continue;
        int in[2] = {scale, grads[v]};
        p->node = p->vars->list.data[v].node;
        ctl[n] = ir_emit(p, OP_GRAD_CHECK, in, 2, &attr);
        step(p, o, u, (int)v, grads[v], hyper, ctl[n++]);
    }
    p->node = IR_NONE;
    ir_output(p, ir_emit(p, OP_GRAD_JOIN, ctl, n, NULL), "ctl");
    mem_free(ctl);
}

static void update_all(
    struct ir_program *p, const struct update_options *o, const int *grads,
    const struct update_vars *u)
{
    int *in = mem_alloc((2 * u->n + 4) * sizeof *in), n = 0;
    int hyper = hyper_input(p, o);
    in[n++] = ir_input(p, "loss_scale", DT_F32, shape_scalar());
    for (size_t v = 0; v < u->n; v++)
        if (grads[v] != IR_NONE)
            in[n++] = grads[v];
    p->node = IR_NONE;
    union op_attr attr = {
        .check = {.max_norm = o->max_norm, .allow_nonfinite = o->allow_nonfinite}};
    int ctl = ir_emit(p, OP_GRAD_CHECK, in, n, &attr);
    ir_output(p, ctl, "ctl");
    if (o->log_update_ratio) {
        n = 0;
        in[n++] = hyper;
        in[n++] = ctl;
        for (size_t v = 0; v < u->n; v++) {
            if (grads[v] == IR_NONE)
                continue;
            in[n++] = ir_var_read(p, (int)v);
            in[n++] = grads[v];
        }
        ir_output(p, ir_emit(p, OP_UPDATE_RATIO, in, n, NULL), "update_ratio");
    }
    for (size_t v = 0; v < u->n; v++)
        if (grads[v] != IR_NONE)
            step(p, o, u, (int)v, grads[v], hyper, ctl);
    mem_free(in);
}

enum status pass_update(
    struct ir_program *p, const struct update_options *o, const int *grad_of_var,
    const struct update_vars *u, struct err *e)
{
    int *grads = mem_alloc((u->n + 1) * sizeof *grads);
    bool any = false;
    p->phase = PHASE_UPDATE;
    for (size_t v = 0; v < u->n; v++) {
        grads[v] = IR_NONE;
        if (grad_of_var[v] == IR_NONE)
            continue;
        any = true;
        ir_value_at(p, ir_storage(p, grad_of_var[v]))->category = CATEGORY_GRADIENTS;
        grads[v] = collect(p, o, u, (int)v, grad_of_var[v]);
    }
    bool updates = any && (o->window == WINDOW_ONLY || o->window == WINDOW_LAST);
    ASSERT(!o->early || (o->window == WINDOW_ONLY && o->max_norm == 0 && !o->log_update_ratio));
    if (updates && o->early)
        update_each(p, o, grads, u);
    else if (updates)
        update_all(p, o, grads, u);
    mem_free(grads);
    p->node = IR_NONE;
    TRY(ir_status(p, e));
    return o->early ? update_early(p, e) : ST_OK;
}
