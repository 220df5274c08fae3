/* run.c - executes a graph node by node, twice: once to plan its memory, once for real. */
#include "runner/run_int.h"

#include "base/env.h"
#include "base/log.h"
#include "base/str.h"
#include "base/version.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct node_exec rows[] = {
#define X(type, function) {type, function},
#include "runner/node_exec.def"
#undef X
};

const struct node_exec *node_exec_find(const char *type)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].type, type) == 0)
            return &rows[i];
    return NULL;
}

enum status run_new(
    struct graph *g, const struct run_options *o, const struct run_sink *sink, struct run **out,
    struct err *e)
{
    struct run *r = mem_alloc(sizeof *r);
    r->graph = g;
    r->o = *o;
    if (sink)
        r->sink = *sink;
    if (o->threads > 0)
        cpu_threads_set(o->threads);
    r->seed = o->seed;
    if (!o->has_seed && !graph_setting_seed(g, &r->seed))
        r->seed = 0; /* a run without a seed is reproducible too */
    r->results = json_object();
    r->warnings = json_array();
    r->plan = json_object();
    r->failed = mem_alloc((graph_node_count(g) + 1) * sizeof *r->failed);
    enum status st = run_memory_check(r, e);
    if (st == ST_OK)
        st = run_places_open(r, e);
    if (st != ST_OK) {
        run_free(r);
        return st;
    }
    *out = r;
    return ST_OK;
}

/* Frees every object of a pass over the graph. */
static void reset(struct run *r)
{
    for (size_t i = 0; i < r->models.n; i++)
        if (r->models.data[i]->owns_home)
            exec_free(r->models.data[i]->home);
    for (size_t i = 0; i < r->trains.n; i++)
        train_free(r->trains.data[i]);
    for (size_t i = 0; i < r->programs.n; i++)
        ir_program_free(r->programs.data[i]);
    for (size_t i = 0; i < r->loaders.n; i++)
        loader_free(r->loaders.data[i]->open);
    for (size_t i = 0; i < r->datasets.n; i++)
        dataset_free(r->datasets.data[i]->open);
    for (size_t i = 0; i < r->models.n; i++) {
        model_free(r->models.data[i]->model);
        hf_close(r->models.data[i]->origin);
        ir_vars_release(&r->models.data[i]->vars);
        vec_release(&r->models.data[i]->loads);
        vec_release(&r->models.data[i]->strict);
    }
    for (size_t i = 0; i < r->losses.n; i++)
        loss_spec_release(r->losses.data[i]);
    for (size_t i = 0; i < r->schedules.n; i++)
        schedule_free(r->schedules.data[i]->schedule);
    for (size_t i = 0; i < r->documents.n; i++)
        json_decref(r->documents.data[i]);
    r->slots.n = r->models.n = r->trains.n = r->programs.n = r->loaders.n = r->datasets.n = 0;
    r->losses.n = r->schedules.n = r->documents.n = 0;
    arena_release(&r->memory);
}

void run_free(struct run *r)
{
    if (!r)
        return;
    reset(r);
    vec_release(&r->slots);
    vec_release(&r->models);
    vec_release(&r->trains);
    vec_release(&r->programs);
    vec_release(&r->loaders);
    vec_release(&r->datasets);
    vec_release(&r->losses);
    vec_release(&r->schedules);
    vec_release(&r->documents);
    json_decref(r->results);
    json_decref(r->metrics);
    json_decref(r->warnings);
    json_decref(r->plan);
    json_decref(r->profile);
    text_store_free(r->texts);
    run_memory_close(r);
    run_places_close(r);
    mem_free(r->failed);
    mem_free(r);
}

void run_keep_programs(struct run *r, struct ir_program *const *programs, int n)
{
    for (int i = 0; i < n; i++)
        vec_push(&r->programs, programs[i]);
}

struct flow flow_list(struct run *r, const double *v, size_t n)
{
    struct flow_numbers *list = ARENA_NEW(&r->memory, struct flow_numbers);
    list->shape = SHAPE((int64_t)n);
    list->dtype = DT_F32;
    float *f = ARENA_ARRAY(&r->memory, float, n + 1);
    for (size_t i = 0; i < n; i++)
        f[i] = (float)v[i];
    list->data = f;
    return (struct flow){.kind = FLOW_NUMBERS, .numbers = list};
}

/* What the other models have on a device while one is at work: planned, or measured. */
static int64_t kept_by_others(
    const struct run *r, const struct run_place *place, const struct flow_model *m, bool measured)
{
    int64_t sum = 0;
    for (size_t i = 0; i < r->models.n; i++) {
        const struct flow_model *other = r->models.data[i];
        if (other != m && other->home && other->home_place == place)
            sum += measured ? exec_kept_measured(other->home) : exec_kept_planned(other->home);
    }
    return sum;
}

void run_measured(
    struct run *r, struct run_place *place, const struct flow_model *m, struct exec *x)
{
    int64_t bytes = exec_peak_measured(x) + kept_by_others(r, place, m, true);
    if (bytes > place->peak_measured_bytes)
        place->peak_measured_bytes = bytes;
    if (bytes > r->peak_measured_bytes) {
        r->peak_measured_bytes = bytes;
        run_memory_measured(r, place, x);
    }
}

/* ---- passes over the graph ---- */

enum { RETRY_PAUSE_MS = 500 };

const char *run_node_status_name(enum run_node_status s)
{
    static const char *const names[] = {"running", "completed",   "cached",
                                        "skipped", "interrupted", "error"};
    return names[s];
}

static void tell_node(struct run *r, size_t node, enum run_node_status status, const struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    if (status == RUN_NODE_RUNNING) {
        json_t *event = json_object();
        json_put_str(event, "event", "node");
        json_put_str(event, "node_id", n->id);
        json_put_str(event, "type", n->type);
        json_put_str(event, "status", "running");
        run_event(r, event);
    }
    if (r->sink.node)
        r->sink.node(r, n, status, e, r->sink.ctx);
}

static enum status run_node(struct run *r, const struct node_exec *x, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    if (r->history && !r->planning)
        mem_history_running(r->history, n->id);
    enum status st = x->run(r, node, e);
    if (st == ST_OOM && !r->planning)
        run_note_oom(r, n);
    if (st != ST_OK)
        err_node(e, n->id, n->type);
    return st;
}

/* Outputs of an attempt that failed. */
static void drop_outputs(struct run *r, size_t node)
{
    size_t kept = 0;
    for (size_t i = 0; i < r->slots.n; i++)
        if (r->slots.data[i].node != node)
            r->slots.data[kept++] = r->slots.data[i];
    r->slots.n = kept;
}

static bool may_retry(enum status st)
{
    return st != ST_OK && st != ST_OOM && st != ST_INTERRUPTED;
}

static enum status try_node(struct run *r, const struct node_exec *x, size_t node, struct err *e)
{
    enum status st = run_node(r, x, node, e);
    int most = r->o.error_mode == RUN_RETRY ? r->o.retries_max : 0;
    for (int again = 1; again <= most && may_retry(st) && !run_stop_asked(r); again++) {
        run_warn(
            r, graph_node_at(r->graph, node), "retry", "attempt %d of %d failed: %s", again,
            most + 1, e->text);
        clock_sleep_ms(RETRY_PAUSE_MS * again);
        drop_outputs(r, node);
        *e = (struct err){0};
        st = run_node(r, x, node, e);
    }
    return st;
}

/* Whether something that feeds the node, or triggers it, has failed. */
static bool lacks_input(const struct run *r, size_t node)
{
    const struct graph_edge *edge;
    for (size_t i = 0; (edge = graph_edge_into(r->graph, node, i)); i++)
        if (edge->source != GRAPH_NO_NODE && r->failed[edge->source])
            return true;
    return false;
}

static enum status
execute_node(struct run *r, const struct node_exec *x, size_t node, struct err *e)
{
    if (lacks_input(r, node)) {
        r->failed[node] = true;
        tell_node(r, node, RUN_NODE_SKIPPED, NULL);
        return ST_OK;
    }
    if (run_cache_take(r, node)) {
        tell_node(r, node, RUN_NODE_CACHED, NULL);
        return ST_OK;
    }
    tell_node(r, node, RUN_NODE_RUNNING, NULL);
    enum status st = try_node(r, x, node, e);
    r->failed[node] = st != ST_OK;
    if (st == ST_OK)
        run_cache_keep(r, node);
    else
        run_cache_forget(r, node);
    tell_node(
        r, node,
        st == ST_OK            ? RUN_NODE_COMPLETED
        : st == ST_INTERRUPTED ? RUN_NODE_INTERRUPTED
                               : RUN_NODE_FAILED,
        st == ST_OK ? NULL : e);
    return st;
}

static enum status pass(struct run *r, struct err *e)
{
    struct err first = {0};
    for (size_t i = 0; i < graph_order_count(r->graph); i++) {
        size_t node = graph_order_at(r->graph, i);
        const struct graph_node *n = graph_node_at(r->graph, node);
        const struct node_exec *x = node_exec_find(n->kind ? n->kind->name : n->type);
        struct err why = {0};
        if (!x)
            continue; /* Start; everything else was refused by graph_check_runnable */
        enum status st = r->planning ? run_node(r, x, node, &why) : execute_node(r, x, node, &why);
        if (st == ST_OK)
            continue;
        if (first.status == ST_OK)
            first = why;
        if (r->planning || r->o.error_mode != RUN_CONTINUE || !may_retry(st))
            break;
    }
    if (first.status == ST_OK)
        return ST_OK;
    *e = first;
    return first.status;
}

/* One line of the bill for memory beside the plan. */
static json_t *host_line(const char *node, const char *what, int64_t bytes)
{
    json_t *row = json_object();
    json_put_str(row, "node", node);
    json_put_str(row, "what", what);
    json_put_i64(row, "bytes", bytes);
    return row;
}

static void host_row(struct run *r, const char *node, const char *what, int64_t bytes)
{
    (void)json_array_append_new(json_object_get(r->plan, "host"), host_line(node, what, bytes));
    r->bill.host_bytes += bytes;
}

void run_host_row(struct run *r, const char *node, const char *what, int64_t bytes)
{
    if (bytes <= 0)
        return;
    if (!r->offloaded)
        r->offloaded = json_array();
    (void)json_array_append_new(r->offloaded, host_line(node, what, bytes));
    r->bill.host_bytes += bytes;
    r->bill.offload_bytes += bytes;
}

static void count_host(struct run *r)
{
    json_put(r->plan, "host", json_array());
    for (size_t i = 0; i < r->datasets.n; i++)
        host_row(r, r->datasets.data[i]->node_id, "data set", r->datasets.data[i]->info.host_bytes);
    for (size_t i = 0; i < r->loaders.n; i++)
        host_row(
            r, r->loaders.data[i]->node_id, "loader buffers", r->loaders.data[i]->plan.host_bytes);
    if (r->merge_bytes)
        host_row(r, r->merge_node, "one merged weight at a time", r->merge_bytes);
    if (r->offloaded)
        (void)json_array_extend(json_object_get(r->plan, "host"), r->offloaded);
}

/* Also of a graph that cannot be planned whole: an estimate starts from them. */
static void count_models(struct run *r)
{
    for (size_t i = 0; i < r->models.n; i++) {
        if (!r->models.data[i]->model)
            continue;
        r->bill.parameters += model_parameter_count(r->models.data[i]->model);
        r->bill.trainable += model_trainable_count(r->models.data[i]->model);
    }
}

enum status run_plan_once(struct run *r, struct err *e)
{
    r->planning = true;
    enum status st = pass(r, e);
    count_models(r);
    if (st == ST_OK)
        count_host(r);
    reset(r);
    json_decref(r->offloaded);
    r->offloaded = NULL;
    json_decref(r->results);
    json_decref(r->metrics);
    r->results = json_object();
    r->metrics = NULL;
    r->planning = false;
    return st;
}

static bool fits(const struct run *r)
{
    int64_t capacity = host_capacity_bytes();
    struct run_fit f;
    for (int i = 0; i < r->devices->n; i++)
        if (r->o.rooms ? r->o.rooms[i] != 0 && r->bill.peak_by_device[i] > r->o.rooms[i]
                       : run_fit_at(r, i, &f) && !f.fits_now)
            return false;
    return (r->o.budget_bytes <= 0 || r->bill.peak_bytes <= r->o.budget_bytes) &&
           (capacity <= 0 || run_host_need_bytes(r) <= capacity);
}

/* Workspace that only buys speed is the first thing to go where memory is short. */
static enum status plan_frugally(struct run *r, struct err *e)
{
    r->frugal = true;
    r->bill = (struct run_bill){0};
    json_decref(r->plan);
    r->plan = json_object();
    return run_plan_once(r, e);
}

enum status run_plan(struct run *r, struct err *e)
{
    if (r->planned)
        return ST_OK;
    TRY(run_plan_once(r, e));
    if (!fits(r))
        TRY(plan_frugally(r, e));
    r->planned = true;
    if (!r->o.quick)
        what_if_savings(r);
    return ST_OK;
}

struct run_figures run_figures(const struct run *r)
{
    return (struct run_figures){
        .peak_bytes = r->bill.peak_bytes,
        .host_bytes = r->bill.host_bytes,
        .transfer_bytes = r->bill.transfer_bytes,
        .trains_on_card = r->bill.trains_on_card,
        .train_flops = r->bill.train_flops};
}

static enum status execute(struct run *r, struct err *e)
{
    TRY(run_plan(r, e));
    TRY(run_check_budget(r, r->o.budget_bytes, e));
    TRY(run_check_cards(r, e));
    TRY(run_check_budget(r, -1, e));
    run_memory_open(r);
    TRY(run_places_begin(r, e));
    if (r->frugal)
        run_warn(
            r, NULL, "workspace",
            "the faster convolutions need more workspace than there is room for: the slower ones "
            "run, and results differ by rounding");
    r->rss_baseline_bytes = process_rss_bytes();
    process_rss_peak_reset();
    enum status st = pass(r, e);
    struct err unwritten = {0};
    if (run_memory_write(r, st == ST_OK ? e : &unwritten) == ST_OK)
        return st;
    if (st == ST_OK)
        return e->status;
    run_warn(r, NULL, "memory_history", "%s", unwritten.text);
    return st;
}

enum status run_execute(struct run *r, struct err *e)
{
    r->started_ns = clock_ns();
    enum status st = execute(r, e);
    if (st == ST_OOM) { /* O3: nothing of the run stays in memory */
        run_note_oom(r, NULL);
        reset(r);
    }
    return st;
}

/* ---- documents ---- */

static json_t *categories(const int64_t *by)
{
    json_t *o = json_object();
    for (int i = 0; i < CATEGORY_COUNT; i++)
        json_put_i64(o, category_name((enum category)i), by[i]);
    return o;
}

static json_t *holders(const struct exec_report *report, const struct ir_vars *vars)
{
    json_t *list = json_array();
    for (int i = 0; i < report->n_holders; i++) {
        const struct exec_holder *h = &report->holders[i];
        json_t *row = json_object(), *by = json_object();
        json_put_str(row, "node", h->node == IR_NONE ? "(step)" : vars->nodes.data[h->node]);
        json_put_i64(row, "bytes", h->total_bytes);
        for (int c = 0; c < CATEGORY_COUNT; c++)
            if (h->by_category[c])
                json_put_i64(by, category_name((enum category)c), h->by_category[c]);
        json_put(row, "by_category", by);
        (void)json_array_append_new(list, row);
    }
    return list;
}

static const char *node_name(const struct ir_vars *vars, int node)
{
    return node == IR_NONE ? "(step)" : vars->nodes.data[node];
}

/* Bytes of a category after each operator: [category][operator], for those that have any. */
static json_t *category_timeline(const struct exec *x, int program, int n)
{
    struct exec_buffer b;
    json_t *o = json_object();
    int64_t *delta = mem_alloc((size_t)(CATEGORY_COUNT * (n + 1)) * sizeof *delta);
    for (int i = 0; exec_buffer_at(x, program, i, &b); i++) {
        delta[b.category * (n + 1) + b.first] += b.size_bytes;
        delta[b.category * (n + 1) + b.last + 1] -= b.size_bytes;
    }
    for (int c = 0; c < CATEGORY_COUNT; c++) {
        json_t *over = json_array();
        int64_t live = exec_report(x)->persistent_by_category[c], most = 0;
        for (int k = 0; k < n; k++) {
            live += delta[c * (n + 1) + k];
            most = live > most ? live : most;
            (void)json_array_append_new(over, json_integer(live));
        }
        if (most > 0)
            json_put(o, category_name((enum category)c), over);
        else
            json_decref(over);
    }
    mem_free(delta);
    return o;
}

/* Where every buffer lies and when: rows of numbers, for pages that draw them. */
static json_t *program_map(const struct exec *x, int program, const struct ir_program *p)
{
    json_t *map = json_object(), *operators = json_array(), *buffers = json_array();
    struct exec_buffer b;
    for (size_t k = 0; k < p->ops.n; k++)
        (void)json_array_append_new(
            operators, json_pack(
                           "[s,s]", ir_op_row(p->ops.data[k].code)->name,
                           node_name(p->vars, p->ops.data[k].node)));
    for (int i = 0; exec_buffer_at(x, program, i, &b); i++)
        if (b.size_bytes > 0)
            (void)json_array_append_new(
                buffers,
                json_pack(
                    "[I,I,i,i,s,s]", (json_int_t)b.offset_bytes, (json_int_t)b.size_bytes, b.first,
                    b.last, category_name((enum category)b.category), node_name(p->vars, b.node)));
    json_put(map, "operators", operators);
    json_put(map, "buffers", buffers);
    return map;
}

static json_t *program_rows(
    const struct run *r, const struct exec *x, const struct exec_report *report,
    struct ir_program *const *programs)
{
    json_t *list = json_array();
    for (int i = 0; i < report->n_programs; i++) {
        int n;
        const int64_t *live = exec_timeline(x, i, &n);
        json_t *row = json_object(), *over = json_array();
        json_put_str(row, "name", programs[i]->name);
        json_put_i64(row, "operators", (int64_t)programs[i]->ops.n);
        json_put_i64(row, "peak_bytes", report->program_peak_bytes[i]);
        for (int k = 0; k < n; k++)
            (void)json_array_append_new(over, json_integer(live[k]));
        json_put_str(row, "strategy", exec_strategy(x, i));
        json_put(row, "timeline", over);
        json_put(row, "timeline_by_category", category_timeline(x, i, n));
        if (r->o.map)
            json_put(row, "map", program_map(x, i, programs[i]));
        (void)json_array_append_new(list, row);
    }
    return list;
}

/* Rows and categories of the bill for what other models keep on the device. */
static void charge_others(struct run *r, const struct run_place *place, const struct flow_model *m)
{
    for (size_t i = 0; i < r->models.n; i++) {
        const struct flow_model *other = r->models.data[i];
        if (other == m || !other->home || other->home_place != place)
            continue;
        const struct exec_report *kept = exec_report(other->home);
        json_t *row = json_object();
        int64_t rest = exec_kept_planned(other->home);
        for (int c = 0; c < CATEGORY_COUNT; c++) {
            r->bill.by_category[c] += kept->persistent_by_category[c];
            rest -= kept->persistent_by_category[c];
        }
        r->bill.by_category[CATEGORY_GAPS] += rest;
        json_put_str(row, "node", other->node_id);
        json_put_i64(row, "bytes", exec_kept_planned(other->home));
        json_put(row, "by_category", categories(kept->persistent_by_category));
        (void)json_array_append_new(json_object_get(r->plan, "by_node"), row);
    }
}

void run_account(
    struct run *r, const struct graph_node *n, struct run_place *place, const struct flow_model *m,
    const struct exec *x, const struct ir_vars *vars, struct ir_program *const *programs)
{
    const struct exec_report *report = exec_report(x);
    int64_t *on_device = &r->bill.peak_by_device[place - r->places];
    int64_t others = kept_by_others(r, place, m, false), peak = report->peak_bytes + others;
    if (peak > *on_device) {
        *on_device = peak;
        r->bill.peak_node_by_device[place - r->places] = n;
    }
    if (n->kind && strcmp(n->kind->name, "TrainingLoop") == 0 &&
        report->peak_bytes > r->bill.train_peak_bytes) {
        r->bill.train_peak_bytes = report->peak_bytes;
        r->bill.train_flops = report->n_programs ? pass_flops(programs[0]).all : 0;
        memcpy(r->bill.train_by_category, report->by_category, sizeof r->bill.train_by_category);
    }
    place->used = true;
    if (peak <= r->bill.peak_bytes)
        return;
    r->bill.peak_bytes = peak;
    r->bill.lower_bound_bytes = report->lower_bound_bytes + others;
    memcpy(r->bill.by_category, report->by_category, sizeof r->bill.by_category);
    json_decref(r->plan);
    r->plan = json_object();
    json_put_str(r->plan, "peak_node", n->id);
    json_put_i64(r->plan, "persistent_bytes", report->persistent_bytes);
    if (report->n_programs > 0) {
        const struct ir_program *p = programs[report->peak_program];
        const struct ir_op *op =
            report->peak_op < (int)p->ops.n ? &p->ops.data[report->peak_op] : NULL;
        json_put_str(r->plan, "peak_program", p->name);
        if (op) {
            json_put_str(r->plan, "peak_operator", ir_op_row(op->code)->name);
            json_put_str(
                r->plan, "peak_layer", op->node == IR_NONE ? "" : vars->nodes.data[op->node]);
        }
    }
    json_put_i64(r->plan, "peak_operator_index", report->peak_op);
    json_put(r->plan, "by_node", holders(report, vars));
    charge_others(r, place, m);
    json_put_str(r->plan, "peak_device", place->device->id);
    json_put(r->plan, "by_category", categories(r->bill.by_category));
    json_put(r->plan, "persistent_by_category", categories(report->persistent_by_category));
    json_put(r->plan, "programs", program_rows(r, x, report, programs));
}

/* What the graph's own choices save at the peak, and what they do not (A9, P12). */
static json_t *savings(const struct run_bill *b)
{
    json_t *s = json_object();
    int64_t precision = b->float32_peak_bytes - b->train_peak_bytes;
    int64_t accumulation = b->single_batch_peak_bytes - b->train_peak_bytes;
    if (b->float32_peak_bytes)
        json_put_i64(s, "precision", precision > 0 ? precision : 0);
    if (b->single_batch_peak_bytes)
        json_put_i64(s, "accumulate_steps", accumulation > 0 ? accumulation : 0);
    for (int i = 0; i < LEVER_FIELD_COUNT; i++) {
        int64_t saved = b->without_lever_bytes[i] - b->train_peak_bytes;
        if (b->without_lever_bytes[i])
            json_put_i64(s, lever_name((enum lever_field)i), saved > 0 ? saved : 0);
    }
    return s;
}

json_t *run_plan_json(const struct run *r, bool timeline)
{
    json_t *d = json_deep_copy(r->plan);
    json_put_str(d, "device", r->place->device->id);
    json_put(d, "devices", run_devices_plan_json(r));
    json_put(d, "warnings", json_deep_copy(r->warnings));
    json_put_i64(d, "peak_bytes", r->bill.peak_bytes);
    json_put_i64(d, "lower_bound_bytes", r->bill.lower_bound_bytes);
    json_put_i64(d, "host_bytes_planned", r->bill.host_bytes);
    if (r->bill.offload_bytes) {
        json_put_i64(d, "offload_bytes_planned", r->bill.offload_bytes);
        json_put_i64(d, "transfer_bytes", r->bill.transfer_bytes);
    }
    json_put_i64(d, "parameters", r->bill.parameters);
    json_put_i64(d, "trainable", r->bill.trainable);
    json_put(d, "savings", savings(&r->bill));
    if (r->bill.without_lever_bytes[LEVER_FIELD_CHECKPOINTING])
        json_put_f64(d, "recompute_share", r->bill.recompute_share);
    if (r->bill.precision_note[0])
        json_put_str(d, "precision_note", r->bill.precision_note);
    if (r->bill.unchunked) {
        char note[256];
        (void)snprintf(note, sizeof note, "loss_chunk_tokens has no effect: %s", r->bill.unchunked);
        json_put_str(d, "loss_chunk_note", note);
    }
    json_t *programs = json_object_get(d, "programs"), *row;
    size_t i;
    json_array_foreach(programs, i, row)
    {
        if (timeline)
            continue;
        (void)json_object_del(row, "timeline");
        (void)json_object_del(row, "timeline_by_category");
    }
    return d;
}

json_t *run_facts(const struct run *r)
{
    json_t *f = json_object();
    char key[33];
    graph_key(r->graph, key);
    json_put_str(f, "version", SNUG_VERSION);
    json_put_str(f, "commit", snug_commit());
    json_put_str(f, "graph", graph_path(r->graph));
    json_put_str(f, "graph_key", key);
    json_put_i64(f, "seed", r->seed);
    json_put_i64(f, "threads", cpu_threads());
    json_put_str(f, "isa", isa_name(cpu_isa()));
    json_put(f, "libraries", cpu_libraries_json());
    return f;
}

json_t *run_document(const struct run *r)
{
    json_t *d = json_object();
    int64_t peak = process_rss_peak_bytes();
    json_put_str(d, "device", r->place->device->id);
    json_put(d, "devices", run_devices_json(r));
    json_put(d, "metrics", r->metrics ? json_deep_copy(r->metrics) : json_null());
    json_put(d, "results", json_deep_copy(r->results));
    json_put_i64(d, "peak_bytes_planned", r->bill.peak_bytes);
    json_put_i64(d, "peak_bytes_measured", r->peak_measured_bytes);
    json_put_i64(d, "host_bytes_planned", r->bill.host_bytes);
    if (r->bill.offload_bytes) {
        json_put_i64(d, "offload_bytes_planned", r->bill.offload_bytes);
        json_put_i64(d, "offload_bytes_measured", r->offload_measured_bytes);
    }
    if (r->rss_baseline_bytes > 0 && peak > 0) {
        json_put_i64(d, "rss_baseline_bytes", r->rss_baseline_bytes);
        json_put_i64(d, "rss_growth_bytes", peak - r->rss_baseline_bytes);
    }
    json_put(d, "by_category", categories(r->bill.by_category));
    json_put(d, "warnings", json_deep_copy(r->warnings));
    json_put(d, "facts", run_facts(r));
    if (r->peak_measured_bytes > 0)
        json_put(d, "memory", run_memory_json(r));
    if (r->peak_measured_bytes > 0 && r->o.memory_summary) {
        char *table = run_memory_summary(r);
        json_put_str(d, "memory_summary", table);
        mem_free(table);
    }
    if (r->history_result)
        json_put(d, "memory_history", json_deep_copy(r->history_result));
    if (r->profile)
        json_put(d, "profile", json_deep_copy(r->profile));
    if (r->resumed_from[0])
        json_put_str(d, "resumed_from", r->resumed_from);
    if (r->started_ns)
        json_put_f64(d, "seconds", (double)(clock_ns() - r->started_ns) * 1e-9);
    return d;
}
