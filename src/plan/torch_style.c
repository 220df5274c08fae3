/* torch_style.c - replays a forward program as a PyTorch training step: residents, forward, loss,
 * backward, the optimizer's step. */
#include "plan/torch_style_int.h"

#include "base/mem.h"
#include "ir/optim_state.h"
#include "mem/pool/pool.h"
#include "mem/virtual.h"

#include <stdio.h>
#include <string.h>

void torch_options_defaults(struct torch_options *o, bool cuda)
{
    *o = (struct torch_options){
        .cuda = cuda,
        .plain_attention = !cuda,
        .sm = 80,
        .context_bytes = cuda ? (int64_t)560 << 20 : 0};
}

/* ---- what torch_ops.c uses ---- */

int replay_apply(struct replay *r, struct tape_op op)
{
    return tape_apply(r->t, &op);
}

int64_t replay_bytes(struct tensor_of x)
{
    return x.n * x.size;
}

int64_t replay_count(const struct replay *r, int value)
{
    return shape_count(&ir_value_at(r->p, value)->shape);
}

struct tensor_of replay_in(struct replay *r, const struct ir_op *op, int i)
{
    if (i >= op->n_in || op->in[i] == IR_NONE)
        return (struct tensor_of){-1, 0, 0};
    return r->at[op->in[i]];
}

void replay_out(struct replay *r, const struct ir_op *op, int i, struct tensor_of x)
{
    r->at[op->out[i]] = x;
}

struct tensor_of replay_cast(struct replay *r, struct tensor_of x, int size)
{
    struct tensor_of y = {x.v, x.n, size};
    if (x.v < 0 || x.size == size)
        return x;
    y.v = replay_apply(
        r, (struct tape_op){.what = "cast", .in = {x.v}, .n_in = 1, .bytes = replay_bytes(y)});
    return y;
}

struct tensor_of replay_low(struct replay *r, const struct ir_op *op, int i)
{
    struct tensor_of x = replay_in(r, op, i), y = {-1, x.n, 2};
    if (!r->o->autocast || x.v < 0 || x.size != 4)
        return x;
    const struct ir_value *v = ir_value_at(r->p, op->in[i]);
    bool leaf = v->kind == VALUE_VAR && v->base == op->in[i];
    if (!leaf)
        return replay_cast(r, x, 2);
    if (r->cast[v->var] < 0)
        r->cast[v->var] = replay_apply(
            r, (struct tape_op){
                   .what = "cast of a weight",
                   .in = {x.v},
                   .n_in = 1,
                   .kind = TAPE_CASTS,
                   .bytes = replay_bytes(y)});
    y.v = r->cast[v->var];
    return y;
}

void replay_done(struct replay *r, struct tensor_of given, struct tensor_of used)
{
    if (used.v < 0 || used.v == given.v)
        return;
    for (size_t i = 0; i < r->p->vars->list.n; i++)
        if (r->cast[i] == used.v)
            return;
    tape_drop(r->t, used.v);
}

int replay_low_size(const struct replay *r, struct tensor_of x)
{
    return r->o->autocast ? 2 : x.size;
}

/* ---- residents ---- */

static bool of_model(const struct ir_var *v)
{
    return v->of == IR_NONE &&
           (v->category == CATEGORY_PARAMETERS || v->category == CATEGORY_BUFFERS);
}

static int64_t var_bytes(const struct ir_var *v)
{
    return shape_count(&v->shape) * dtype_size(v->dtype);
}

/* Variables that the forward program reads, and the state of the trained ones. */
static void residents(struct replay *r)
{
    const struct ir_program *p = r->p;
    for (size_t i = 0; i < p->values.n; i++) {
        const struct ir_value *v = &p->values.data[i];
        if (v->kind != VALUE_VAR || v->def != IR_NONE)
            continue;
        const struct ir_var *var = &p->vars->list.data[v->var];
        int64_t n = shape_count(&var->shape);
        (void)tape_storage(r->t, var_bytes(var), TAPE_WEIGHTS);
        r->at[i] = (struct tensor_of){
            tape_parameter(r->t, var_bytes(var), var->trainable && of_model(var)), n,
            dtype_size(var->dtype)};
        if (var->category != CATEGORY_PARAMETERS)
            continue;
        r->out->parameters += n;
        if (!var->trainable)
            continue;
        r->out->trainable += n;
        for (int k = 0; k < optim_state_count(&r->o->optim); k++) {
            struct shape s = optim_state_shape(&r->o->optim, k, &var->shape);
            (void)tape_storage(r->t, shape_count(&s) * dtype_size(var->dtype), TAPE_MOMENTS);
        }
    }
    for (int i = 0; r->o->cuda && i < 2; i++)
        (void)tape_storage(r->t, r->o->sm >= 90 ? 33554432 : 8519680, TAPE_WORKSPACE);
}

static void inputs(struct replay *r)
{
    for (size_t i = 0; i < r->p->values.n; i++) {
        const struct ir_value *v = &r->p->values.data[i];
        if (v->kind != VALUE_INPUT || (v->name && strcmp(v->name, "rng") == 0))
            continue;
        struct tensor_of x = {0, shape_count(&v->shape), dtype_size(v->dtype)};
        x.v = tape_value(r->t, replay_bytes(x), TAPE_INPUTS, false);
        r->at[i] = x;
    }
}

/* ---- the forward pass ---- */

/* A value's variable goes where nothing reads it any more; the model's output outlives the step. */
static void find_uses(struct replay *r)
{
    const struct ir_program *p = r->p;
    for (size_t i = 0; i < p->values.n; i++)
        r->last_use[i] = -1;
    r->output = IR_NONE;
    for (size_t i = 0; i < p->ops.n; i++) {
        const struct ir_op *op = &p->ops.data[i];
        for (int k = 0; k < op->n_in; k++) {
            if (op->in[k] == IR_NONE)
                continue;
            r->last_use[op->in[k]] = (int)i;
            int def = ir_value_at(p, op->in[k])->def;
            if (op->phase == PHASE_LOSS && def != IR_NONE &&
                p->ops.data[def].phase == PHASE_FORWARD)
                r->output = op->in[k];
        }
        for (int k = 0; k < op->n_out; k++)
            r->last_use[op->out[k]] = (int)i;
    }
}

static void drop_dead(struct replay *r, const struct ir_op *op, int index)
{
    for (int k = 0; k < op->n_in + op->n_out; k++) {
        int v = k < op->n_in ? op->in[k] : op->out[k - op->n_in];
        if (v == IR_NONE || r->last_use[v] != index || v == r->output)
            continue;
        const struct ir_value *value = ir_value_at(r->p, v);
        if (value->kind == VALUE_TEMP && ir_output_find(r->p, "loss") != v)
            tape_drop(r->t, r->at[v].v);
    }
}

static void unknown(struct replay *r, const struct ir_op *op)
{
    const char *name = ir_op_row(op->code)->name;
    size_t used = strlen(r->out->unknown);
    if (!strstr(r->out->unknown, name))
        (void)snprintf(
            r->out->unknown + used, sizeof r->out->unknown - used, "%s%s", used ? ", " : "", name);
}

/* `old`: the last step's output, freed when this one's exists. */
static void forward(struct replay *r, int old)
{
    tape_enter(r->t, TAPE_PHASE_FORWARD, -1);
    for (size_t i = 0; i < r->p->ops.n; i++) {
        const struct ir_op *op = &r->p->ops.data[i];
        if (op->phase == PHASE_LOSS && (i == 0 || r->p->ops.data[i - 1].phase != PHASE_LOSS)) {
            tape_unref(r->t, old);
            tape_enter(r->t, TAPE_PHASE_LOSS, -1);
        }
        if (!replay_operator(r, op))
            unknown(r, op);
        drop_dead(r, op, (int)i);
    }
    for (size_t i = 0; i < r->p->vars->list.n; i++) {
        tape_drop(r->t, r->cast[i]);
        r->cast[i] = -1;
    }
}

/* ---- the optimizer's step ---- */

/* Temporaries of a tensor's size in a step over one tensor, and copies of everything in a foreach
 * step; the last one is a variable that lives until the next tensor's replaces it. */
struct step_row {
    enum optim_kind kind;
    int most, held, copies;
};
static const struct step_row steps[] = {{OPTIM_SGD, 0, 0, 0},     {OPTIM_ADAM, 2, 1, 1},
                                        {OPTIM_ADAMW, 2, 1, 1},   {OPTIM_RMSPROP, 1, 1, 1},
                                        {OPTIM_ADAGRAD, 1, 1, 1}, {OPTIM_RADAM, 3, 1, 2},
                                        {OPTIM_NADAM, 2, 1, 2},   {OPTIM_RPROP, 2, 1, 2},
                                        {OPTIM_ASGD, 1, 0, 1},    {OPTIM_ADAFACTOR, 2, 1, 1}};

static const struct step_row *step_of(enum optim_kind kind)
{
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        if (steps[i].kind == kind)
            return &steps[i];
    return &steps[0];
}

/* Weight decay that is not decoupled makes grad + decay * param. */
static bool decays_gradient(const struct optim_attr *a)
{
    return a->weight_decay != 0 && a->kind != OPTIM_ADAMW && a->kind != OPTIM_ADAFACTOR;
}

static bool is_trained(const struct replay *r, size_t i)
{
    const struct ir_value *v = &r->p->values.data[i];
    return v->kind == VALUE_VAR && v->def == IR_NONE && tape_needs_grad(r->t, r->at[i].v);
}

/* All parameters at once: so many lists of temporaries, a tensor of each parameter's size. */
static void step_foreach(struct replay *r, int copies)
{
    VEC(int) held = {0};
    for (int k = 0; k < copies; k++)
        for (size_t i = 0; i < r->p->values.n; i++)
            if (is_trained(r, i))
                vec_push(&held, tape_storage(r->t, r->at[i].n * 4, TAPE_STEP));
    for (size_t i = 0; i < held.n; i++)
        tape_unref(r->t, held.data[i]);
    vec_release(&held);
}

static void step(struct replay *r)
{
    const struct step_row *row = step_of(r->o->optim.kind);
    int decay = decays_gradient(&r->o->optim), held = -1;
    tape_enter(r->t, TAPE_PHASE_STEP, -1);
    if (r->o->cuda) {
        step_foreach(r, row->copies + decay);
        return;
    }
    for (size_t i = 0; i < r->p->values.n; i++) {
        if (!is_trained(r, i))
            continue;
        int64_t bytes = replay_bytes(r->at[i]);
        tape_flash(r->t, (decay + row->most) * bytes, TAPE_STEP);
        tape_unref(r->t, held);
        held = row->held ? tape_storage(r->t, bytes, TAPE_STEP) : -1;
    }
    tape_unref(r->t, held);
}

/* ---- a whole step ---- */

static void drop_gradients(struct replay *r)
{
    for (size_t i = 0; i < r->p->values.n; i++)
        if (r->p->values.data[i].kind == VALUE_VAR && r->at[i].v >= 0)
            tape_drop_grad(r->t, r->at[i].v);
}

/* Two steps: the first leaves behind what the second, which counts, begins with. */
static void run(struct replay *r)
{
    int loss = ir_output_find(r->p, "loss"), old = -1;
    residents(r);
    inputs(r);
    for (int i = 0; i < 2; i++) {
        if (!r->o->accumulates)
            drop_gradients(r);
        if (i == 1)
            tape_reset_peak(r->t);
        forward(r, old);
        tape_enter(r->t, TAPE_PHASE_BACKWARD, -1);
        tape_backward(r->t, r->at[loss].v);
        if (i == 1)
            step(r);
        old = r->output == IR_NONE ? -1 : tape_storage_of(r->t, r->at[r->output].v);
        tape_drop(r->t, r->at[loss].v);
    }
}

/* ---- what the allocator takes from the card ---- */

struct reserving {
    struct mem_virtual *device;
    struct mem_pool *pool;
    VEC(struct mem_block *) blocks; /* by storage */
};

static void reserve(int storage, int64_t bytes, const char *what, void *ctx)
{
    struct reserving *v = ctx;
    struct mem_block *block = NULL;
    struct err ignored;
    while (v->blocks.n <= (size_t)storage)
        vec_push(&v->blocks, NULL);
    if (bytes < 0)
        mem_pool_give(v->pool, v->blocks.data[storage]);
    else if (
        mem_pool_alloc(v->pool, bytes, (struct mem_tag){.what = what}, &block, &ignored) != ST_OK)
        block = NULL; /* beyond what any card has: the figure is a lower bound then */
    v->blocks.data[storage] = block;
}

static void reserving_begin(struct reserving *v, struct tape *t)
{
    *v = (struct reserving){.device = mem_virtual_new(NULL)};
    v->pool = mem_pool_new(mem_virtual_source(v->device));
    tape_set_watch(t, reserve, v);
}

static int64_t reserving_end(struct reserving *v)
{
    struct mem_pool_stats stats;
    mem_pool_stats(v->pool, &stats);
    mem_pool_free(v->pool);
    mem_virtual_free(v->device);
    vec_release(&v->blocks);
    return stats.reserved_bytes[MEM_STAT_ALL].peak;
}

enum status torch_estimate_make(
    const struct ir_program *p, const struct torch_options *o, struct torch_estimate *out,
    struct err *e)
{
    *out = (struct torch_estimate){0};
    if (ir_output_find(p, "loss") == IR_NONE)
        return err_set(e, ST_INVALID, "the program has no loss: nothing is trained");
    struct replay r = {.p = p, .o = o, .out = out, .t = tape_new(o->cuda ? 512 : 1)};
    r.at = mem_alloc((p->values.n + 1) * sizeof *r.at);
    r.last_use = mem_alloc((p->values.n + 1) * sizeof *r.last_use);
    r.cast = mem_alloc((p->vars->list.n + 1) * sizeof *r.cast);
    for (size_t i = 0; i < p->values.n; i++)
        r.at[i].v = -1;
    for (size_t i = 0; i < p->vars->list.n; i++)
        r.cast[i] = -1;
    tape_sum_anew(r.t, !o->cuda);
    struct reserving device;
    if (o->cuda)
        reserving_begin(&device, r.t);
    find_uses(&r);
    run(&r);
    out->reserved_bytes = o->cuda ? reserving_end(&device) : 0;
    out->peak = *tape_peak(r.t);
    for (int i = 0; i < TAPE_PHASE_COUNT; i++)
        out->phase[i] = *tape_phase_peak(r.t, (enum tape_phase)i);
    out->context_bytes = o->context_bytes;
    out->total_bytes = (o->cuda ? out->reserved_bytes : out->peak.bytes) + o->context_bytes;
    tape_free(r.t);
    mem_free(r.at);
    mem_free(r.last_use);
    mem_free(r.cast);
    return ST_OK;
}
