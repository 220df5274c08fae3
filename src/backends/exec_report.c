/* exec_report.c - the memory bill of a compiled set: peak, by category, by node, over the step. */
#include "backends/exec_int.h"

#include <stdlib.h>
#include <string.h>

static int64_t rounded(int64_t bytes, int64_t to)
{
    return (bytes + to - 1) / to * to;
}

static struct exec_holder *holder_of(struct exec_report *r, int node)
{
    for (int i = 0; i < r->n_holders; i++)
        if (r->holders[i].node == node)
            return &r->holders[i];
    r->holders[r->n_holders] = (struct exec_holder){.node = node};
    return &r->holders[r->n_holders++];
}

static void charge(struct exec_report *r, int node, int category, int64_t bytes)
{
    struct exec_holder *h = holder_of(r, node);
    h->by_category[category] += bytes;
    h->total_bytes += bytes;
    r->by_category[category] += bytes;
}

static int by_size(const void *a, const void *b)
{
    const struct exec_holder *x = a, *y = b;
    if (x->total_bytes != y->total_bytes)
        return x->total_bytes < y->total_bytes ? 1 : -1;
    return x->node - y->node;
}

/* Live bytes of temporaries per operator; returns the operator with most. */
static int live_bytes(struct exec *x, int index, int64_t *live)
{
    struct exec_program *program = &x->programs[index];
    const struct mem_plan *plan = &x->plan_programs[index].plan;
    int n = (int)program->ir->ops.n, peak = 0;
    int64_t *delta = mem_alloc(((size_t)n + 2) * sizeof *delta);
    for (size_t i = 0; i < program->storages.n; i++) {
        const struct mem_plan_buffer *b = &program->storages.buffers[i];
        int64_t bytes = mem_plan_bytes(plan, b);
        delta[b->first] += bytes;
        delta[b->last + 1] -= bytes;
    }
    int64_t sum = 0;
    for (int i = 0; i < n; i++) {
        sum += delta[i];
        live[i] = sum;
        if (live[i] > live[peak])
            peak = i;
    }
    mem_free(delta);
    return peak;
}

static void charge_vars(struct exec *x)
{
    for (size_t i = 0; i < x->vars->list.n; i++) {
        const struct ir_var *v = &x->vars->list.data[i];
        charge(
            &x->report, v->node, (int)v->category,
            rounded(x->persistent[i].size_bytes, MEM_PLAN_ALIGNMENT));
    }
}

static void charge_storages(struct exec *x)
{
    struct exec_report *r = &x->report;
    struct exec_program *program = &x->programs[r->peak_program];
    const struct mem_plan *plan = &x->plan_programs[r->peak_program].plan;
    for (size_t i = 0; i < program->storages.n; i++) {
        const struct mem_plan_buffer *b = &program->storages.buffers[i];
        if (b->first <= r->peak_op && b->last >= r->peak_op && b->size_bytes)
            charge(
                r, program->storages.node[i], program->storages.category[i],
                mem_plan_bytes(plan, b));
    }
}

/* Who holds the peak. Without programs the variables alone do. */
static void charge_peak(struct exec *x)
{
    struct exec_report *r = &x->report;
    size_t n = x->n_programs > 0 ? x->programs[r->peak_program].storages.n : 0;
    r->holders = ARENA_ARRAY(&x->memory, struct exec_holder, x->vars->list.n + n + 2);
    charge_vars(x);
    memcpy(r->persistent_by_category, r->by_category, sizeof r->by_category);
    if (x->n_programs > 0)
        charge_storages(x);
    int64_t held = 0;
    for (int i = 0; i < CATEGORY_COUNT; i++)
        held += r->by_category[i];
    r->by_category[CATEGORY_GAPS] = r->peak_bytes - held;
    qsort(r->holders, (size_t)r->n_holders, sizeof *r->holders, by_size);
}

enum status exec_report_make(struct exec *x, struct err *e)
{
    (void)e;
    struct exec_report *r = &x->report;
    r->peak_bytes = x->held_bytes + x->plan.peak_bytes;
    r->persistent_bytes = x->held_bytes + x->plan.persistent_bytes;
    r->n_programs = x->n_programs;
    r->program_peak_bytes = ARENA_ARRAY(&x->memory, int64_t, x->n_programs + 1);
    x->timelines = ARENA_ARRAY(&x->memory, int64_t *, x->n_programs + 1);
    r->lower_bound_bytes = r->persistent_bytes;
    r->peak_program = (int)x->plan.peak_program;
    for (int i = 0; i < x->n_programs; i++) {
        const struct mem_plan *plan = &x->plan_programs[i].plan;
        size_t n = x->programs[i].ir->ops.n;
        x->timelines[i] = ARENA_ARRAY(&x->memory, int64_t, n + 1);
        int peak_op = live_bytes(x, i, x->timelines[i]);
        for (size_t k = 0; k < n; k++)
            x->timelines[i][k] += r->persistent_bytes;
        r->program_peak_bytes[i] = r->persistent_bytes + plan->peak_bytes;
        if (r->persistent_bytes + plan->lower_bound_bytes > r->lower_bound_bytes)
            r->lower_bound_bytes = r->persistent_bytes + plan->lower_bound_bytes;
        if (i == r->peak_program)
            r->peak_op = peak_op;
    }
    r->host_state_bytes = x->host_plan.persistent_bytes;
    r->host_activation_bytes = x->host_plan.peak_bytes - x->host_plan.persistent_bytes;
    for (int i = 0; i < x->n_programs; i++)
        if (x->programs[i].transfers.bytes > r->transfer_bytes)
            r->transfer_bytes = x->programs[i].transfers.bytes;
    charge_peak(x);
    return ST_OK;
}

void exec_report_release(struct exec *x)
{
    x->report = (struct exec_report){0};
}

const struct exec_report *exec_report(const struct exec *x)
{
    return &x->report;
}

const int64_t *exec_timeline(const struct exec *x, int program, int *n)
{
    *n = (int)x->programs[program].ir->ops.n;
    return x->timelines[program];
}

bool exec_buffer_at(const struct exec *x, int program, int i, struct exec_buffer *out)
{
    const struct exec_storages *s = &x->programs[program].storages;
    const struct mem_plan *plan = &x->plan_programs[program].plan;
    if (i < 0 || (size_t)i >= s->n)
        return false;
    *out = (struct exec_buffer){
        .offset_bytes = x->report.persistent_bytes + plan->offset_bytes[i],
        .size_bytes = mem_plan_bytes(plan, &s->buffers[i]),
        .first = (int)s->buffers[i].first,
        .last = (int)s->buffers[i].last,
        .node = s->node[i],
        .category = s->category[i]};
    return true;
}

const char *exec_strategy(const struct exec *x, int program)
{
    return mem_plan_strategy_text(x->plan_programs[program].plan.strategy);
}
