/* exec_history.c - tells the history of the device what an executor's arena holds: buffers that
 * live and die at their operators, under the operator's name. Pools tell the rest themselves.
 *
 * The device's source says whether anybody listens (mem_source.history); without one nothing here
 * is done.
 */
#include "backends/exec_int.h"
#include "mem/history.h"

#include <stdio.h>
#include <string.h>

/* Storages of a program by the operator at which they begin, or end: those of operator i are
 * list[at[i] .. at[i + 1]). */
struct by_op {
    int *at, *list;
};
struct recorded_program {
    uint32_t *origins; /* by operator */
    struct by_op begin, end;
    bool *kept, *input; /* by storage: the host reads it after the run, writes it before */
};
struct exec_history {
    struct mem_history *to;
    int device;
    uint32_t *var_origins, host_origin, arena_origin[2]; /* variables, temporaries */
    bool holds[2];
    struct recorded_program *programs;
    int left; /* the program whose outputs still live; -1: none */
};

static const char *node_name(const struct exec *x, int node)
{
    return node == IR_NONE ? NULL : x->vars->nodes.data[node];
}

static const char *phase_name(enum phase p)
{
    switch (p) {
    case PHASE_FORWARD:
        return "forward";
    case PHASE_LOSS:
        return "loss";
    case PHASE_BACKWARD:
        return "backward";
    case PHASE_UPDATE:
        return "update";
    }
    return "";
}

static struct by_op group(struct exec *x, const struct exec_program *p, bool ends)
{
    size_t n_ops = p->ir->ops.n, n = p->storages.n;
    struct by_op g = {ARENA_ARRAY(&x->memory, int, n_ops + 2), ARENA_ARRAY(&x->memory, int, n + 1)};
    int *fill = ARENA_ARRAY(&x->memory, int, n_ops + 1);
    for (size_t k = 0; k < n; k++) {
        const struct mem_plan_buffer *b = &p->storages.buffers[k];
        g.at[(ends ? b->last : b->first) + 1]++;
    }
    for (size_t i = 0; i <= n_ops; i++)
        g.at[i + 1] += g.at[i];
    for (size_t k = 0; k < n; k++) {
        const struct mem_plan_buffer *b = &p->storages.buffers[k];
        int64_t op = ends ? b->last : b->first;
        g.list[g.at[op] + fill[op]++] = (int)k;
    }
    return g;
}

static void name_ops(struct exec *x, struct exec_history *h, const struct exec_program *p)
{
    struct recorded_program *r = &h->programs[p - x->programs];
    size_t n = p->ir->ops.n;
    r->origins = ARENA_ARRAY(&x->memory, uint32_t, n + 1);
    for (size_t i = 0; i < n; i++) {
        char where[128];
        const struct ir_op *op = &p->ir->ops.data[i];
        (void)snprintf(where, sizeof where, "%s, %s", p->ir->name, phase_name(op->phase));
        r->origins[i] =
            mem_history_origin(h->to, node_name(x, op->node), ir_op_row(op->code)->name, where);
    }
}

static void name_vars(struct exec *x, struct exec_history *h)
{
    size_t n = x->vars->list.n;
    h->var_origins = ARENA_ARRAY(&x->memory, uint32_t, n + 1);
    for (size_t i = 0; i < n; i++) {
        const struct ir_var *v = &x->vars->list.data[i];
        h->var_origins[i] =
            mem_history_origin(h->to, node_name(x, v->node), v->name, category_name(v->category));
    }
}

void exec_history_open(struct exec *x)
{
    if (!x->source->history || x->history)
        return;
    struct exec_history *h = ARENA_NEW(&x->memory, struct exec_history);
    *h = (struct exec_history){
        .to = x->source->history, .device = x->source->history_device, .left = -1};
    h->programs = ARENA_ARRAY(&x->memory, struct recorded_program, x->n_programs + 1);
    name_vars(x, h);
    h->arena_origin[false] = mem_history_origin(h->to, NULL, "arena of variables", NULL);
    h->arena_origin[true] = mem_history_origin(h->to, NULL, "arena of temporaries", NULL);
    h->host_origin = mem_history_origin(h->to, NULL, "inputs", NULL);
    for (int i = 0; i < x->n_programs; i++) {
        const struct exec_program *p = &x->programs[i];
        struct recorded_program *r = &h->programs[i];
        name_ops(x, h, p);
        r->begin = group(x, p, false);
        r->end = group(x, p, true);
        r->kept = ARENA_ARRAY(&x->memory, bool, p->storages.n + 1);
        r->input = ARENA_ARRAY(&x->memory, bool, p->storages.n + 1);
        for (int v = 0; v < (int)p->ir->values.n; v++)
            if (ir_value_at(p->ir, v)->kind == VALUE_INPUT && p->storages.of_value[v] != IR_NONE)
                r->input[p->storages.of_value[v]] = true;
        for (size_t k = 0; k < p->ir->outputs.n; k++) {
            int s = p->storages.of_value[p->ir->outputs.data[k]];
            if (s != IR_NONE)
                r->kept[s] = true;
        }
    }
    x->history = h;
}

/* The host asks for memory: inputs that it writes. */
void exec_history_host(struct exec *x)
{
    if (x->history)
        mem_history_at(x->history->to, x->history->host_origin);
}

void exec_history_pool(struct exec *x)
{
    if (x->history)
        mem_history_watch(x->history->to, x->history->device, x->pool);
}

void exec_history_var(struct exec *x, int var)
{
    if (x->history)
        mem_history_at(x->history->to, x->history->var_origins[var]);
}

static uint64_t address_of(const void *p)
{
    return (uint64_t)(uintptr_t)p;
}

/* An arena is two segments: the variables, and behind them the temporaries, which go and come
 * (exec_trim). */
static void arena_part(struct exec *x, bool temporaries, bool begins)
{
    struct exec_history *h = x->history;
    int64_t vars = x->plan.persistent_bytes, from = temporaries ? vars : 0;
    int64_t bytes = temporaries ? x->taken_bytes - vars : vars;
    if (bytes <= 0 || h->holds[temporaries] == begins)
        return;
    h->holds[temporaries] = begins;
    mem_history_at(h->to, h->arena_origin[temporaries]);
    if (begins)
        mem_history_segment(h->to, h->device, address_of(x->arena + from), bytes);
    else
        mem_history_segment_end(h->to, h->device, address_of(x->arena + from));
}

/* The arena, and the variables in it. */
void exec_history_arena(struct exec *x)
{
    struct exec_history *h = x->history;
    if (!h)
        return;
    arena_part(x, false, true);
    arena_part(x, true, true);
    for (size_t i = 0; i < x->plan.persistent_n; i++) {
        const struct ir_var *v = &x->vars->list.data[i];
        int64_t bytes = x->persistent[i].size_bytes;
        if (bytes == 0)
            continue;
        bytes = (bytes + MEM_PLAN_ALIGNMENT - 1) / MEM_PLAN_ALIGNMENT * MEM_PLAN_ALIGNMENT;
        mem_history_at(h->to, h->var_origins[i]);
        mem_history_alloc(
            h->to, h->device, address_of(x->var_data[i]), bytes, category_name(v->category),
            node_name(x, v->node));
    }
    mem_history_at(h->to, 0);
}

void exec_history_resize(struct exec *x)
{
    struct exec_history *h = x->history;
    if (!h || !x->arena)
        return;
    if (x->taken_held_bytes < x->taken_bytes)
        h->left = -1;
    arena_part(x, true, x->taken_held_bytes == x->taken_bytes);
    arena_part(x, false, x->taken_held_bytes > 0);
}

void exec_history_close(struct exec *x)
{
    struct exec_history *h = x->history;
    if (!h)
        return;
    mem_history_at(h->to, 0);
    if (x->pool)
        mem_history_unwatch(h->to, x->pool);
    if (x->arena) {
        arena_part(x, true, false);
        arena_part(x, false, false);
    }
}

/* ---- a run ---- */

/* What begins or ends at operator i, in an arena. Outputs end with the next run. */
static void end_storages(struct exec *x, int index, int op, bool kept)
{
    struct exec_history *h = x->history;
    const struct exec_program *p = &x->programs[index];
    const struct recorded_program *r = &h->programs[index];
    for (int k = r->end.at[op]; k < r->end.at[op + 1]; k++) {
        int s = r->end.list[k];
        if (p->storages.buffers[s].size_bytes && r->kept[s] == kept)
            mem_history_give(h->to, h->device, address_of(p->data[s]));
    }
}

static void begin_storages(struct exec *x, int index, int op, bool inputs)
{
    struct exec_history *h = x->history;
    const struct exec_program *p = &x->programs[index];
    const struct recorded_program *r = &h->programs[index];
    for (int k = r->begin.at[op]; k < r->begin.at[op + 1]; k++) {
        int s = r->begin.list[k];
        if (p->storages.buffers[s].size_bytes && r->input[s] == inputs)
            mem_history_alloc(
                h->to, h->device, address_of(p->data[s]),
                mem_plan_bytes(&x->plan_programs[index].plan, &p->storages.buffers[s]),
                category_name((enum category)p->storages.category[s]),
                node_name(x, p->storages.node[s]));
    }
}

void exec_history_run(struct exec *x, int index)
{
    struct exec_history *h = x->history;
    if (!h || x->pool)
        return;
    if (h->left >= 0 && x->programs[h->left].ir->ops.n > 0)
        end_storages(x, h->left, (int)x->programs[h->left].ir->ops.n - 1, true);
    h->left = index;
    exec_history_host(x);
    if (x->programs[index].ir->ops.n > 0)
        begin_storages(x, index, 0, true);
}

void exec_history_begin(struct exec *x, int index, int op)
{
    struct exec_history *h = x->history;
    if (!h)
        return;
    mem_history_at(h->to, h->programs[index].origins[op]);
    if (!x->pool)
        begin_storages(x, index, op, false);
}

void exec_history_end(struct exec *x, int index, int op)
{
    if (x->history && !x->pool)
        end_storages(x, index, op, false);
}

/* ---- running out ---- */

/* What is held, for a history that has heard of nothing. */
static void hold_all(struct exec *x)
{
    struct exec_history *h = x->history;
    for (size_t i = 0; i < x->plan.persistent_n; i++) {
        const struct ir_var *v = &x->vars->list.data[i];
        if (!x->var_blocks[i])
            continue;
        mem_history_at(h->to, h->var_origins[i]);
        mem_history_hold(
            h->to, h->device, mem_block_addr(x->var_blocks[i]), mem_block_bytes(x->var_blocks[i]),
            category_name(v->category), node_name(x, v->node));
    }
    for (int i = 0; i < x->n_programs; i++) {
        const struct exec_program *p = &x->programs[i];
        for (size_t k = 0; k < p->storages.n; k++) {
            if (!p->blocks[k])
                continue;
            int64_t op = p->storages.buffers[k].first;
            mem_history_at(
                h->to, h->programs[i].input[k] ? h->host_origin : h->programs[i].origins[op]);
            mem_history_hold(
                h->to, h->device, mem_block_addr(p->blocks[k]), mem_block_bytes(p->blocks[k]),
                category_name((enum category)p->storages.category[k]),
                node_name(x, p->storages.node[k]));
        }
    }
}

/* Nobody recorded: the state alone, with the request that failed. */
static void begin_at_failure(struct exec *x)
{
    struct mem_pool_oom oom;
    x->source->history = x->source->oom_history;
    exec_history_open(x);
    hold_all(x);
    mem_history_at(x->history->to, 0);
    if (mem_pool_last_oom(x->pool, &oom))
        mem_history_oom(x->history->to, x->history->device, oom.rounded_bytes, oom.free_bytes);
    exec_history_pool(x);
}

/* Memory ran out: what is held now is what will be written. */
void exec_history_failed(struct exec *x, enum status st)
{
    if (st != ST_OOM)
        return;
    if (!x->history && x->pool && !x->source->history && x->source->oom_history)
        begin_at_failure(x);
    if (x->history)
        mem_history_freeze(x->history->to);
}

void exec_step(struct exec *x, int64_t step)
{
    if (x->history)
        mem_history_step(x->history->to, step);
}
