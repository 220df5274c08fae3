/* exec_profile.c - where the time of a step goes: by kind of operator, by graph node, by call.
 *
 * Times are of the runs after the first: the first one touches fresh pages. */
#include "backends/exec_int.h"

#include "base/env.h"

#include <stdlib.h>
#include <string.h>

/* A sum of times under one name, as in a row of the tables. */
struct total {
    const char *name, *kernel;
    int calls;
    int64_t ns, phase_ns[4];
};

void exec_profile_begin(struct exec *x)
{
    for (int i = 0; i < x->n_programs; i++) {
        struct exec_program *p = &x->programs[i];
        if (!p->times_ns)
            p->times_ns = ARENA_ARRAY(&x->memory, int64_t, p->ir->ops.n + 1);
        memset(p->times_ns, 0, (p->ir->ops.n + 1) * sizeof *p->times_ns);
        p->timed_runs = -1;
    }
}

/* The first run warms up and is not kept. */
void exec_profile_add(struct exec_program *p, int op, int64_t ns)
{
    if (p->timed_runs >= 0)
        p->times_ns[op] += ns;
}

static int by_time(const void *a, const void *b)
{
    const struct total *x = a, *y = b;
    if (x->ns != y->ns)
        return x->ns < y->ns ? 1 : -1;
    return strcmp(x->name, y->name);
}

static struct total *total_of(struct total *list, size_t *n, const char *name)
{
    for (size_t i = 0; i < *n; i++)
        if (strcmp(list[i].name, name) == 0)
            return &list[i];
    list[*n] = (struct total){.name = name};
    return &list[(*n)++];
}

static double ms(const struct exec_program *p, int64_t ns)
{
    return p->timed_runs > 0 ? (double)ns / 1e6 / (double)p->timed_runs : 0;
}

static const char *node_name(const struct exec *x, const struct ir_op *op)
{
    return op->node == IR_NONE ? "(step)" : x->vars->nodes.data[op->node];
}

static json_t *rows_json(const struct exec_program *p, struct total *list, size_t n, bool nodes)
{
    static const char *const phases[4] = {"forward_ms", "loss_ms", "backward_ms", "update_ms"};
    json_t *rows = json_array();
    qsort(list, n, sizeof *list, by_time);
    for (size_t i = 0; i < n; i++) {
        json_t *row = json_object();
        json_put_str(row, nodes ? "node" : "operator", list[i].name);
        if (!nodes)
            json_put_str(row, "kernel", list[i].kernel);
        json_put_i64(row, "calls", list[i].calls);
        json_put_f64(row, "ms", ms(p, list[i].ns));
        for (int k = 0; nodes && k < 4; k++)
            if (list[i].phase_ns[k])
                json_put_f64(row, phases[k], ms(p, list[i].phase_ns[k]));
        (void)json_array_append_new(rows, row);
    }
    return rows;
}

static json_t *call_json(const struct exec *x, const struct exec_program *p, int i)
{
    const struct ir_op *op = &p->ir->ops.data[i];
    char shape[128];
    json_t *row = json_object();
    json_put_str(row, "operator", ir_op_row(op->code)->name);
    json_put_str(row, "node", node_name(x, op));
    json_put_f64(row, "ms", ms(p, p->times_ns[i]));
    if (op->n_out > 0) {
        const struct ir_value *out = ir_value_at(p->ir, op->out[0]);
        json_put_str(row, "shape", shape_text(&out->shape, shape, sizeof shape));
        json_put_str(row, "layout", layout_name(out->layout));
        json_put_str(row, "dtype", dtype_name(out->dtype));
    }
    return row;
}

static json_t *program_json(const struct exec *x, const struct exec_program *p)
{
    size_t n = p->ir->ops.n, n_kinds = 0, n_nodes = 0;
    struct total *kinds = mem_alloc((n + 1) * sizeof *kinds);
    struct total *nodes = mem_alloc((n + 1) * sizeof *nodes);
    json_t *d = json_object(), *calls = json_array();
    int64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        const struct ir_op *op = &p->ir->ops.data[i];
        if (!p->calls[i].kernel)
            continue;
        struct total *rows[2] = {
            total_of(kinds, &n_kinds, ir_op_row(op->code)->name),
            total_of(nodes, &n_nodes, node_name(x, op))};
        for (int k = 0; k < 2; k++) {
            rows[k]->kernel = p->calls[i].kernel->name;
            rows[k]->calls++;
            rows[k]->ns += p->times_ns[i];
            rows[k]->phase_ns[op->phase] += p->times_ns[i];
        }
        sum += p->times_ns[i];
        (void)json_array_append_new(calls, call_json(x, p, (int)i));
    }
    json_put_str(d, "program", p->ir->name);
    json_put_i64(d, "runs", p->timed_runs);
    json_put_f64(d, "ms", ms(p, sum));
    json_put(d, "operators", rows_json(p, kinds, n_kinds, false));
    json_put(d, "nodes", rows_json(p, nodes, n_nodes, true));
    json_put(d, "calls", calls);
    mem_free(kinds);
    mem_free(nodes);
    return d;
}

json_t *exec_profile_json(const struct exec *x)
{
    json_t *list = json_array();
    for (int i = 0; i < x->n_programs; i++)
        if (x->programs[i].times_ns && x->programs[i].timed_runs > 0)
            (void)json_array_append_new(list, program_json(x, &x->programs[i]));
    return list;
}
