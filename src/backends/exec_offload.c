/* exec_offload.c - what lies on the host while the device does not use it: optimizer state, and
 * activations between forward and backward pass (requirement L4).
 *
 * WHY here, after all passes: both are questions of where bytes lie, and when. The program is the
 * same, with the same operators on the same operands, so the numbers are; layouts, fusions, views,
 * results in place and recomputation are settled, and a storage says all about who touches it.
 *
 *   state        a variable on the host; each operator that uses it does so in a storage of the
 *                device, which is filled before and copied back after
 *   activations  a storage that no operator touches from its last use in the forward pass to its
 *                first one in the backward pass becomes two, with a buffer on the host between
 *
 *     device  ##########....                     ....#########      # used   . in flight
 *     host              ############################
 *             out_at ^      ^ out_done      in_at ^   ^ in_use
 *
 * INVARIANTS
 *  1. A storage lives as long as a copy from or to it may be in flight: to out_done, from in_at.
 *  2. Nobody writes what a copy reads, nor touches what it writes, before its wait: an activation
 *     is untouched between out_at and in_use, a state between uses.
 *  3. A run waits for every copy that it issued before it ends, also when it fails.
 *
 * A copy of an activation has WINDOW operators of time; then the run waits for it. State comes
 * whole, one operator ahead, but for large parameters: there the update goes piece by piece through
 * two places, where the optimizer treats each element alone (not Adafactor's means, scalars of
 * NAdam and ASGD, rounding by chance, which goes by the element's number). */
#include "backends/exec_int.h"

#include "ir/optim_state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    OPERANDS_MAX = 9,      /* of OPTIMIZER */
    WINDOW = 4,            /* operators that the copy of an activation runs beside */
    GAP_LEAST = 4,         /* operators that must be left between its two copies */
    LEAST_BYTES = 64 << 10 /* of an activation: less is not worth a copy */
};

/* ---- which storage ---- */

bool exec_var_on_host(const struct exec *x, int var)
{
    return x->options.state_on_host && !x->options.lender &&
           x->vars->list.data[var].category == CATEGORY_OPTIMIZER_STATE;
}

int exec_storage_at(const struct exec_program *program, int v, int op)
{
    const struct exec_storages *s = &program->storages;
    const struct exec_transfers *t = &program->transfers;
    const struct ir_value *base = ir_value_at(program->ir, ir_value_at(program->ir, v)->base);
    if (base->kind == VALUE_VAR) {
        size_t i = t->first_of_op && t->first_of_op[op] != IR_NONE ? (size_t)t->first_of_op[op]
                                                                   : t->list.n;
        for (; i < t->list.n && t->list.data[i].op == op; i++)
            if (t->list.data[i].var == base->var)
                return t->list.data[i].in_storage;
        return IR_NONE;
    }
    int k = s->of_value[v];
    bool second = k != IR_NONE && s->again && s->again[k] != IR_NONE && op >= s->again_from[k];
    return second ? s->again[k] : k;
}

/* ---- making transfers ---- */

/* The operator with a kernel that is `steps` of them after i (before it: negative), or the last
 * (first) there is. */
static int kernels_away(const struct exec_program *program, int i, int steps)
{
    int n = (int)program->ir->ops.n, by = steps < 0 ? -1 : 1, at = i;
    for (int k = i + by; k >= 0 && k < n && steps != 0; k += by) {
        if (!program->calls[k].kernel)
            continue;
        at = k;
        steps -= by;
    }
    return at;
}

static int storage_add(struct exec_storages *s, struct mem_plan_buffer b, int node)
{
    size_t n = s->n + 1;
    s->buffers = mem_resize(s->buffers, n * sizeof *s->buffers);
    s->node = mem_resize(s->node, n * sizeof *s->node);
    s->category = mem_resize(s->category, n * sizeof *s->category);
    s->buffers[s->n] = b;
    s->node[s->n] = node;
    s->category[s->n] = b.tag;
    return (int)s->n++;
}

static int kernels_between(const struct exec_program *program, int from, int to)
{
    int n = 0;
    for (int i = from + 1; i < to; i++)
        n += program->calls[i].kernel != NULL;
    return n;
}

/* By storage: the last operator of the forward pass that touches it, and the first one after. */
struct touches {
    int *last, *first; /* IR_NONE: none */
    bool *stays;       /* what the host writes or reads, logits, workspaces */
};

static int backward_start(const struct ir_program *p)
{
    int i = 0;
    while (i < (int)p->ops.n && p->ops.data[i].phase < PHASE_BACKWARD)
        i++;
    return i;
}

static void touch(struct touches *t, const struct exec_storages *s, int v, int op, bool backward)
{
    int k = v == IR_NONE ? IR_NONE : s->of_value[v];
    if (k == IR_NONE)
        return;
    if (!backward)
        t->last[k] = op;
    else if (t->first[k] == IR_NONE)
        t->first[k] = op;
}

static void touches_find(const struct exec_program *program, int backward, struct touches *t)
{
    const struct ir_program *p = program->ir;
    const struct exec_storages *s = &program->storages;
    for (size_t k = 0; k < s->n; k++) {
        t->last[k] = t->first[k] = IR_NONE;
        t->stays[k] = s->category[k] != CATEGORY_ACTIVATIONS;
    }
    for (int v = 0; v < (int)p->values.n; v++)
        if (s->of_value[v] != IR_NONE && ir_value_at(p, v)->kind == VALUE_INPUT)
            t->stays[s->of_value[v]] = true;
    for (size_t i = 0; i < p->outputs.n; i++)
        if (s->of_value[p->outputs.data[i]] != IR_NONE)
            t->stays[s->of_value[p->outputs.data[i]]] = true;
    for (int i = 0; i < (int)p->ops.n; i++) {
        const struct ir_op *op = &p->ops.data[i];
        if (!program->calls[i].kernel) /* a view touches nothing */
            continue;
        for (int k = 0; k < op->n_in; k++)
            touch(t, s, op->in[k], i, i >= backward);
        for (int k = 0; k < op->n_out; k++)
            touch(t, s, op->out[k], i, i >= backward);
    }
}

/* Storage k leaves the device after operator `last` and comes back for `first`. False where the
 * time between is too short. */
static bool activation_add(struct exec_program *program, int k, int last, int first)
{
    struct exec_storages *s = &program->storages;
    struct exec_transfers *t = &program->transfers;
    struct exec_transfer made = {
        .var = IR_NONE,
        .host = (int)t->host.n,
        .op = IR_NONE,
        .bytes = s->buffers[k].size_bytes - EXEC_RED_ZONE,
        .out_at = last,
        .out_done = kernels_away(program, last, WINDOW),
        .in_at = kernels_away(program, first, -WINDOW),
        .in_use = first,
        .out_storage = k};
    if (kernels_between(program, made.out_done, made.in_at) < GAP_LEAST)
        return false;
    struct mem_plan_buffer again = s->buffers[k];
    again.first = made.in_at;
    s->buffers[k].last = made.out_done;
    made.in_storage = s->again[k] = storage_add(s, again, s->node[k]);
    s->again_from[k] = made.in_at;
    vec_push(&t->list, made);
    vec_push(
        &t->host,
        ((struct mem_plan_buffer){
            .size_bytes = made.bytes, .first = last, .last = first, .tag = CATEGORY_ACTIVATIONS}));
    return true;
}

/* Recomputed values are made in the backward pass, so nothing of them waits. */
static void activations_make(struct exec_program *program)
{
    struct exec_storages *s = &program->storages;
    size_t n = s->n;
    int backward = backward_start(program->ir);
    struct touches t = {
        mem_alloc((n + 1) * sizeof *t.last), mem_alloc((n + 1) * sizeof *t.first),
        mem_alloc(n + 1)};
    s->again = mem_alloc((n + 1) * sizeof *s->again);
    s->again_from = mem_alloc((n + 1) * sizeof *s->again_from);
    touches_find(program, backward, &t);
    for (size_t k = 0; k < n; k++) {
        s->again[k] = IR_NONE;
        if (!t.stays[k] && t.last[k] != IR_NONE && t.first[k] != IR_NONE &&
            s->buffers[k].size_bytes >= LEAST_BYTES + EXEC_RED_ZONE)
            (void)activation_add(program, (int)k, t.last[k], t.first[k]);
    }
    mem_free(t.last);
    mem_free(t.first);
    mem_free(t.stays);
}

/* Whether operator i may update its parameter by pieces of the flat memory: the elements of one. */
static int64_t piece_of(const struct exec *x, const struct exec_program *program, int i)
{
    const struct ir_op *op = &program->ir->ops.data[i];
    const struct kernel_args *a = &program->calls[i].args;
    int64_t piece = x->options.state_piece ? x->options.state_piece : EXEC_STATE_PIECE;
    if (op->code != OP_OPTIMIZER)
        return 0;
    const struct optim_attr *o = &op->attr.optim;
    bool alone = !o->int8 && !o->stochastic && o->kind != OPTIM_ADAFACTOR &&
                 optim_state_count(o) == optim_state_full(o) + o->master;
    bool flat = tensor_contiguous(&a->in[0]) && tensor_contiguous(&a->in[op->n_in - 3]);
    return alone && flat && tensor_count(&a->in[0]) > piece ? piece : 0;
}

/* One variable that operator `op` uses: there before it, and back after it where it changes. */
static void state_add(struct exec *x, struct exec_program *program, int op, int var, bool changes)
{
    const struct ir_op *o = &program->ir->ops.data[op];
    const struct ir_var *v = &x->vars->list.data[var];
    struct exec_transfer t = {
        .var = var,
        .host = IR_NONE,
        .op = op,
        .piece = piece_of(x, program, op),
        .bytes = shape_count(&v->shape) * dtype_size(v->dtype),
        .in_at = kernels_away(program, op, -1),
        .in_use = op,
        .out_at = changes ? op : IR_NONE,
        .out_done = changes ? kernels_away(program, op, 1) : IR_NONE};
    for (size_t i = 0; i < program->transfers.list.n; i++) {
        struct exec_transfer *before = &program->transfers.list.data[i];
        if (before->var != var || before->out_done == IR_NONE)
            continue;
        if (before->out_done >= op) /* back on the host before it is fetched again */
            before->out_done = op - 1;
        program->storages.buffers[before->out_storage].last = before->out_done;
        if (before->out_done >= t.in_at)
            t.in_at = before->out_done + 1;
    }
    int64_t held = t.piece ? 2 * t.piece * dtype_size(v->dtype) : t.bytes;
    t.in_storage = t.out_storage = storage_add(
        &program->storages,
        (struct mem_plan_buffer){
            .size_bytes = held ? held + EXEC_RED_ZONE : 0,
            .first = t.in_at,
            .last = changes ? t.out_done : op,
            .tag = (int)v->category},
        o->node);
    vec_push(&program->transfers.list, t);
}

/* Every variable of the host that an operator uses, once. */
static void states_make(struct exec *x, struct exec_program *program)
{
    const struct ir_program *p = program->ir;
    struct exec_transfers *t = &program->transfers;
    t->first_of_op = mem_alloc((p->ops.n + 1) * sizeof *t->first_of_op);
    for (int i = 0; i < (int)p->ops.n; i++) {
        const struct ir_op *op = &p->ops.data[i];
        size_t first = t->list.n;
        t->first_of_op[i] = IR_NONE;
        for (int k = 0; k < op->n_in && program->calls[i].kernel; k++) {
            const struct ir_value *base =
                op->in[k] == IR_NONE ? NULL : ir_value_at(p, ir_storage(p, op->in[k]));
            if (!base || base->kind != VALUE_VAR || !exec_var_on_host(x, base->var) ||
                exec_storage_at(program, op->in[k], i) != IR_NONE)
                continue;
            state_add(x, program, i, base->var, k < ir_op_mutated(op));
            t->first_of_op[i] = (int)first;
        }
    }
}

static int event_order(const void *a, const void *b)
{
    const struct exec_event *x = a, *y = b;
    if (x->op != y->op)
        return x->op - y->op;
    if (x->moment != y->moment)
        return (int)x->moment - (int)y->moment;
    return x->transfer - y->transfer;
}

static void event_add(struct exec_transfers *t, int op, int transfer, enum exec_moment moment)
{
    vec_push(&t->events, ((struct exec_event){op, transfer, moment}));
}

static void events_make(struct exec_transfers *t)
{
    for (int i = 0; i < (int)t->list.n; i++) {
        const struct exec_transfer *one = &t->list.data[i];
        if (one->in_at != IR_NONE) {
            event_add(t, one->in_at, i, MOMENT_IN_ISSUE);
            event_add(t, one->in_use, i, MOMENT_IN_WAIT);
            t->bytes += one->bytes;
        }
        if (one->out_at != IR_NONE) {
            if (!one->piece)
                event_add(t, one->out_at, i, MOMENT_OUT_ISSUE);
            event_add(t, one->out_done, i, MOMENT_OUT_WAIT);
            t->bytes += one->bytes;
        }
    }
    if (t->events.n)
        qsort(t->events.data, t->events.n, sizeof *t->events.data, event_order);
}

void exec_offload_make(struct exec *x, struct exec_program *program)
{
    if (x->options.offload_activations)
        activations_make(program);
    if (x->options.state_on_host && !x->options.lender)
        states_make(x, program);
    events_make(&program->transfers);
}

void exec_offload_release(struct exec_program *program)
{
    struct exec_transfers *t = &program->transfers;
    vec_release(&t->list);
    vec_release(&t->events);
    vec_release(&t->host);
    mem_free(t->first_of_op);
    t->first_of_op = NULL;
}

/* ---- memory on the host ---- */

enum status exec_offload_plan(struct exec *x, struct err *e)
{
    size_t n = x->vars->list.n;
    bool any = false;
    x->host_persistent = ARENA_ARRAY(&x->memory, struct mem_plan_buffer, n + 1);
    x->host_programs = ARENA_ARRAY(&x->memory, struct mem_plan_program, x->n_programs + 1);
    for (size_t i = 0; i < n; i++) {
        const struct ir_var *v = &x->vars->list.data[i];
        if (!exec_var_on_host(x, (int)i))
            continue;
        any = true;
        x->host_persistent[i] = (struct mem_plan_buffer){
            .size_bytes = shape_count(&v->shape) * dtype_size(v->dtype), .tag = (int)v->category};
    }
    for (int i = 0; i < x->n_programs; i++) {
        const struct exec_transfers *t = &x->programs[i].transfers;
        x->host_programs[i] = (struct mem_plan_program){
            .name = x->programs[i].ir->name, .buffers = t->host.data, .n = t->host.n};
        any = any || t->host.n > 0;
    }
    if (!any)
        return ST_OK;
    x->host_plan = (struct mem_plan_set){
        .persistent = x->host_persistent,
        .persistent_n = x->options.lender ? 0 : n,
        .programs = x->host_programs,
        .programs_n = (size_t)x->n_programs};
    TRY(mem_plan_set_make(&x->host_plan, NULL, e));
    return mem_plan_set_check(&x->host_plan, e);
}

enum status exec_offload_map(struct exec *x, struct err *e)
{
    void *p;
    if (x->host_plan.peak_bytes <= 0)
        return ST_OK;
    mem_source_init_host(&x->host_source, 0);
    x->host_source.device = "host";
    TRY(mem_source_take(&x->host_source, x->host_plan.peak_bytes, &p, e));
    x->host = p;
    for (size_t i = 0; i < x->host_plan.persistent_n; i++)
        if (exec_var_on_host(x, (int)i))
            x->var_data[i] = x->host + x->host_plan.persistent_offset_bytes[i];
    return copy_engine_new(&x->copies, e);
}

/* The activations' part goes back to the system; the next run takes it again. */
void exec_offload_trim(struct exec *x)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = (uintptr_t)x->host + (uintptr_t)x->host_plan.persistent_bytes;
    uintptr_t to = ((uintptr_t)x->host + (uintptr_t)x->host_plan.peak_bytes) / page * page;
    from = (from + page - 1) / page * page;
    if (x->host && to > from)
        (void)madvise((void *)from, to - from, MADV_DONTNEED);
}

void exec_offload_unmap(struct exec *x)
{
    copy_engine_free(x->copies);
    x->copies = NULL;
    for (size_t i = 0; x->host && i < x->host_plan.persistent_n; i++)
        if (exec_var_on_host(x, (int)i))
            x->var_data[i] = NULL;
    if (x->host)
        mem_source_give(&x->host_source, x->host, x->host_plan.peak_bytes);
    x->host = NULL;
}

void exec_offload_see(struct exec *x, const void *p, int64_t bytes)
{
    uintptr_t start = (uintptr_t)x->host, at = (uintptr_t)p;
    if (!x->host || at < start || at - start >= (uintptr_t)x->host_plan.peak_bytes)
        return;
    int64_t high = (int64_t)(at - start) + bytes; /* may pass the plan: then the two differ */
    high = (high + MEM_PLAN_ALIGNMENT - 1) / MEM_PLAN_ALIGNMENT * MEM_PLAN_ALIGNMENT;
    if (high > x->measured_host_bytes)
        x->measured_host_bytes = high;
}

int64_t exec_host_planned(const struct exec *x)
{
    return x->host_plan.peak_bytes;
}

int64_t exec_host_measured(const struct exec *x)
{
    return x->measured_host_bytes;
}

/* ---- running ---- */

static char *host_address(struct exec *x, const struct exec_program *program, int transfer)
{
    const struct exec_transfer *t = &program->transfers.list.data[transfer];
    if (t->var != IR_NONE)
        return x->var_data[t->var];
    const struct mem_plan *plan = &x->host_programs[program - x->programs].plan;
    return x->host + x->host_plan.persistent_bytes + plan->offset_bytes[t->host];
}

/* Where piece p of a state is while its operator works on it. */
static char *piece_place(
    const struct exec *x, const struct exec_program *program, const struct exec_transfer *t,
    int64_t p)
{
    int64_t size = dtype_size(x->vars->list.data[t->var].dtype);
    return (char *)program->data[t->in_storage] + p % 2 * t->piece * size;
}

static uint64_t piece_issue(
    struct exec *x, const struct exec_program *program, const struct exec_transfer *t, int64_t p,
    bool in)
{
    int64_t bytes = t->piece * dtype_size(x->vars->list.data[t->var].dtype), from = p * bytes;
    size_t n = (size_t)(t->bytes - from < bytes ? t->bytes - from : bytes);
    char *host = (char *)x->var_data[t->var] + from, *here = piece_place(x, program, t, p);
    return in ? copy_issue(x->copies, here, host, n) : copy_issue(x->copies, host, here, n);
}

/* Elements [first, first + n) of a flat operand; where they lie, if not within it. */
static struct tensor piece_tensor(const struct tensor *whole, int64_t first, int64_t n, void *data)
{
    struct tensor t = *whole;
    t.shape = SHAPE(n);
    t.stride[0] = 1;
    t.data = data ? data : (char *)whole->data + first * dtype_size(whole->dtype);
    return t;
}

static enum status
run_piece(struct exec *x, struct exec_program *program, int i, int64_t p, struct err *e)
{
    const struct exec_transfers *all = &program->transfers;
    const struct exec_transfer *first = &all->list.data[all->first_of_op[i]];
    const struct exec_call *call = &program->calls[i];
    struct kernel_args a = call->args;
    struct tensor in[OPERANDS_MAX], out[OPERANDS_MAX];
    int64_t from = p * first->piece, count = tensor_count(&a.in[0]);
    int64_t n = count - from < first->piece ? count - from : first->piece;
    int states = a.n_in - 4;
    in[0] = piece_tensor(&a.in[0], from, n, NULL);
    for (int k = 1; k <= states; k++) /* transfers are in the order of the operands */
        in[k] = piece_tensor(&a.in[k], from, n, piece_place(x, program, &first[k - 1], p));
    in[states + 1] = piece_tensor(&a.in[states + 1], from, n, NULL);
    in[states + 2] = a.in[states + 2];
    in[states + 3] = a.in[states + 3];
    memcpy(out, in, sizeof *out * (size_t)a.n_out);
    a.in = in;
    a.out = out;
    return call->kernel->run(&a, e);
}

/* While piece p is worked on, the next one comes and the one before leaves: it has the place that
 * the next one takes, so that one waits for it. */
static enum status run_pieces(struct exec *x, struct exec_program *program, int i, struct err *e)
{
    struct exec_transfers *all = &program->transfers;
    struct exec_transfer *t = &all->list.data[all->first_of_op[i]];
    int64_t count = tensor_count(&program->calls[i].args.in[0]);
    int64_t pieces = (count + t->piece - 1) / t->piece;
    int states = program->calls[i].args.n_in - 4;
    uint64_t next[OPERANDS_MAX] = {0};
    for (int64_t p = 0; p < pieces; p++) {
        for (int k = 0; k < states; k++) {
            copy_wait(x->copies, p > 0 ? t[k].out_ticket : 0);
            if (p + 1 < pieces)
                next[k] = piece_issue(x, program, &t[k], p + 1, true);
            copy_wait(x->copies, t[k].in_ticket);
            t[k].in_ticket = next[k];
        }
        TRY(run_piece(x, program, i, p, e));
        for (int k = 0; k < states; k++)
            t[k].out_ticket = piece_issue(x, program, &t[k], p, false);
    }
    for (int k = 0; k < states; k++)
        exec_offload_see(x, x->var_data[t[k].var], t[k].bytes);
    return ST_OK;
}

enum status exec_offload_run(struct exec *x, struct exec_program *program, int i, struct err *e)
{
    const struct exec_transfers *t = &program->transfers;
    bool pieces =
        t->first_of_op && t->first_of_op[i] != IR_NONE && t->list.data[t->first_of_op[i]].piece > 0;
    return pieces ? run_pieces(x, program, i, e)
                  : program->calls[i].kernel->run(&program->calls[i].args, e);
}

static void happen(struct exec *x, struct exec_program *program, const struct exec_event *event)
{
    struct exec_transfer *t = &program->transfers.list.data[event->transfer];
    char *host = host_address(x, program, event->transfer);
    switch (event->moment) {
    case MOMENT_IN_ISSUE:
        if (t->piece)
            t->in_ticket = piece_issue(x, program, t, 0, true);
        else
            t->in_ticket =
                copy_issue(x->copies, program->data[t->in_storage], host, (size_t)t->bytes);
        break;
    case MOMENT_IN_WAIT:
        copy_wait(x->copies, t->in_ticket);
        break;
    case MOMENT_OUT_ISSUE:
        exec_offload_see(x, host, t->bytes);
        t->out_ticket =
            copy_issue(x->copies, host, program->data[t->out_storage], (size_t)t->bytes);
        break;
    case MOMENT_OUT_WAIT:
        copy_wait(x->copies, t->out_ticket);
        break;
    }
}

/* The events of operator i, up to `last`. */
static void happen_up_to(struct exec *x, struct exec_program *program, int i, enum exec_moment last)
{
    struct exec_transfers *t = &program->transfers;
    for (; t->next < t->events.n; t->next++) {
        const struct exec_event *event = &t->events.data[t->next];
        if (event->op > i || (event->op == i && event->moment > last))
            return;
        happen(x, program, event);
    }
}

void exec_offload_begin(struct exec *x, struct exec_program *program, int i)
{
    if (i == 0)
        program->transfers.next = 0;
    happen_up_to(x, program, i, MOMENT_IN_WAIT);
}

void exec_offload_end(struct exec *x, struct exec_program *program, int i)
{
    happen_up_to(x, program, i, MOMENT_OUT_WAIT);
}

void exec_offload_drain(struct exec *x, struct exec_program *program)
{
    program->transfers.next = program->transfers.events.n;
    if (x->copies)
        copy_wait_all(x->copies);
}
