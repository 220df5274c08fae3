/* work.c - one run: the order becomes options, the run events, its end result.json. */
#include "child/work.h"

#include "base/document.h"
#include "base/env.h"
#include "base/mem.h"
#include "base/str.h"
#include "child/events.h"
#include "child/say.h"
#include "mem/slot.h"
#include "plan/oom.h"
#include "record/outputs.h"
#include "runner/run.h"
#include "wire/wire.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ORDER_BYTES_MAX = 128 << 20, FOREGROUND_LOOK_MS = 200 };

struct job {
    const struct work *w;
    json_t *document; /* start.json */
    struct start_order order;
    char graph_path[1200], budget_about[200];
    struct device_pick picks[DEVICES_MAX];
    char *device; /* as run_options has it */
    struct graph *graph;
    struct run *run;
    struct run_options options;
    struct events *events;
};

/* ---- the order ---- */

static enum status read_order(struct job *j, struct err *e)
{
    char path[1200];
    (void)path_join(j->w->dir, "start.json", path, sizeof path);
    TRY(json_read_file(path, ORDER_BYTES_MAX, &j->document, e));
    TRY(wire_read(&wire_start_order, j->document, &j->order, e));
    if (strcmp(j->order.kind, "graph") != 0 || !json_is_object(j->order.graph))
        return err_set(e, ST_INVALID, "\"%s\" orders no graph", path);
    return ST_OK;
}

/* Not flushed to the disk: it can be made again from start.json. */
static enum status write_plain(const char *path, const char *text, struct err *e)
{
    FILE *out = fopen(path, "we");
    if (!out)
        return err_errno(e, "could not make \"%s\"", path);
    bool written = fputs(text, out) >= 0;
    if (fclose(out) != 0 || !written)
        return err_errno(e, "could not write \"%s\"", path);
    return ST_OK;
}

/* The graph as a file: its checkpoints are named after it, advice is planned from it. */
static enum status make_graph(struct job *j, struct err *e)
{
    json_t *d = json_copy(j->order.graph);
    if (!json_get_str(d, "name", NULL) && j->order.name[0])
        json_put_str(d, "name", j->order.name);
    char *text = json_text(d, true);
    (void)path_join(j->w->dir, "graph.json", j->graph_path, sizeof j->graph_path);
    enum status st = write_plain(j->graph_path, text, e);
    mem_free(text);
    json_decref(d);
    return st == ST_OK ? graph_prepare(j->graph_path, NULL, 0, &j->graph, e) : st;
}

static const char *text_at(const json_t *list, size_t i)
{
    const char *text = json_string_value(json_array_get(list, i));
    return text ? text : "";
}

/* R6: workers renumber a run's cards; on this server the machine's names hold. */
static bool is_renumbered(const struct start_order *o)
{
    const char *worker = json_get_str(json_object_get(o->options, "target"), "worker", "local");
    return strcmp(worker, "local") != 0;
}

/* What the user asked for where it comes to the ordered device, so that falling back is said (D4).
 */
static char *asked_device(const struct job *j, const char *ordered)
{
    const char *asked = json_get_str(j->order.options, "device", NULL);
    struct device_asker who = {.option = "options.device"};
    struct devices list;
    struct err ignored;
    bool same = false;
    if (!asked)
        asked = graph_setting_device(j->graph);
    if (!asked || !graph_device_is_known(asked) || devices_open(&list, &ignored) != ST_OK)
        return mem_strdup(ordered);
    same = strcmp(devices_choose(&list, asked, NULL, &who).device->id, ordered) == 0;
    devices_close(&list);
    return mem_strdup(same ? asked : ordered);
}

static void choose_devices(struct job *j)
{
    const struct start_order *o = &j->order;
    const char *first = text_at(o->devices, 0);
    if (!is_renumbered(o)) {
        j->device = asked_device(j, first[0] ? first : "cpu");
        return;
    }
    size_t n = json_array_size(o->devices);
    for (size_t i = 0; i < n && i < DEVICES_MAX; i++)
        j->picks[i] = (struct device_pick){text_at(o->devices, i), text_at(o->uuids, i)};
    if (n == 0)
        j->picks[n++] = (struct device_pick){"cpu", ""};
    j->options.picks = j->picks;
    j->options.n_picks = (int)(n < DEVICES_MAX ? n : DEVICES_MAX);
    j->device = mem_strdup(strcmp(j->picks[0].id, "cpu") == 0 ? "cpu" : "cuda:0");
}

/* B6: where the budget came from. */
static const char *budget_about(struct job *j)
{
    const struct start_order *o = &j->order;
    if (strcmp(o->budget_source, "measured") == 0)
        (void)snprintf(
            j->budget_about, sizeof j->budget_about, "measured: the peak of run %.8s plus 20%%",
            o->budget_run);
    else if (strcmp(o->budget_source, "estimate") == 0)
        (void)snprintf(j->budget_about, sizeof j->budget_about, "a static estimate");
    else
        (void)snprintf(j->budget_about, sizeof j->budget_about, "the one given with the run");
    return o->budget_bytes > 0 ? j->budget_about : NULL;
}

static enum run_error_mode error_mode(const json_t *options)
{
    const char *mode = json_get_str(options, "error_mode", "fail_fast");
    return strcmp(mode, "continue") == 0 ? RUN_CONTINUE
           : strcmp(mode, "retry") == 0  ? RUN_RETRY
                                         : RUN_FAIL_FAST;
}

static void make_options(struct job *j)
{
    const struct start_order *o = &j->order;
    j->options = (struct run_options){
        .has_seed = json_is_integer(json_object_get(o->options, "seed")),
        .seed = json_get_i64(o->options, "seed", 0),
        .budget_bytes = o->budget_bytes,
        .storage = EXEC_PLANNED,
        .resume = o->resume[0] ? o->resume : NULL,
        .graph_dir = o->graph_dir[0] && dir_exists(o->graph_dir) ? o->graph_dir : NULL,
        .error_mode = error_mode(o->options),
        .retries_max = (int)json_get_i64(o->options, "max_retries", 0),
        .cache = j->w->cache,
        .quick = true, /* nobody waits for what each choice saves */
        .prepares_data = true};
    j->options.budget_about = budget_about(j);
    choose_devices(j);
    j->options.device = j->device;
    if (j->w->cache)
        run_cache_begin(
            j->w->cache, json_object_get(o->options, "changed_nodes"),
            json_get_bool(o->options, "weights_persistent", true));
}

/* ---- while it runs ---- */

static bool stop_asked(void *ctx)
{
    const struct job *j = ctx;
    return j->w->stop(j->w->ctx) || events_failed(j->events);
}

static void on_event(const json_t *event, void *ctx)
{
    say_event(event);
    events_event(event, ((struct job *)ctx)->events);
}

static void on_node(
    const struct run *r, const struct graph_node *n, enum run_node_status status,
    const struct err *e, void *ctx)
{
    events_node(r, n, status, e, ((struct job *)ctx)->events);
}

/* visible_devices: the machine's names in the run's order; device_aliases: the run's to them. */
static json_t *facts_of(const struct job *j)
{
    json_t *f = run_facts(j->run), *aliases = json_object();
    json_put(f, "visible_devices", j->order.devices ? json_copy(j->order.devices) : json_array());
    for (size_t i = 0, card = 0; i < json_array_size(j->order.devices); i++) {
        const char *machine = text_at(j->order.devices, i);
        char name[24];
        bool renumber = is_renumbered(&j->order) && strcmp(machine, "cpu") != 0;
        (void)snprintf(name, sizeof name, "cuda:%zu", card);
        card += strcmp(machine, "cpu") != 0;
        json_put_str(aliases, renumber ? name : machine, machine);
    }
    json_put(f, "device_aliases", aliases);
    json_put(f, "device_uuids", j->order.uuids ? json_copy(j->order.uuids) : json_array());
    json_put_i64(f, "budget_bytes", j->order.budget_bytes);
    json_put_i64(f, "pid", getpid());
    return f;
}

static void put_plan(const struct job *j)
{
    json_t *plan = run_plan_json(j->run, false);
    events_put(j->events, EVENT_PLAN, plan);
}

/* Canvas flags that mean nothing here yet are said, not swallowed. */
static void warn_unsupported(struct job *j)
{
    static const char *const flags[] = {"backward_mode", "auto_backward"};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        char text[160];
        if (!json_get_bool(j->order.options, flags[i], false))
            continue;
        (void)snprintf(
            text, sizeof text, "option %s has no effect: gradients of canvas layers are not kept",
            flags[i]);
        json_t *payload = json_object();
        json_put_str(payload, "kind", "unsupported_option");
        json_put_str(payload, "message", text);
        events_put(j->events, EVENT_RUN_WARNING, payload);
    }
}

/* A device that a run in the foreground is on; NULL: none. */
static const struct device *foreground_on(const struct job *j)
{
    struct run_device d;
    for (int i = 0; run_device_at(j->run, i, &d); i++)
        if (d.used && d.device->kind != DEVICE_CPU && slot_held(slot_name(d.device)))
            return d.device;
    return NULL;
}

/* R7: a card that is not shared by memory takes a queued run when the one in the foreground has
 * ended. Canvas runs skip every queue. */
static enum status wait_for_foreground(struct job *j, struct err *e)
{
    const struct device *d;
    char text[200];
    bool waits = j->order.budget_bytes <= 0 && strcmp(j->order.lane, "interactive") != 0;
    if (!waits || !(d = foreground_on(j)))
        return ST_OK;
    json_t *payload = json_object();
    (void)snprintf(
        text, sizeof text, "waits for a run in the foreground (`snug run --local`) on %s", d->id);
    json_put_str(payload, "kind", "waits_for_foreground");
    json_put_str(payload, "message", text);
    events_put(j->events, EVENT_RUN_WARNING, payload);
    while (foreground_on(j)) {
        if (stop_asked(j))
            return err_set(e, ST_INTERRUPTED, "stopped while it waited for %s", d->id);
        clock_sleep_ms(FOREGROUND_LOOK_MS);
    }
    return ST_OK;
}

static enum status execute(struct job *j, struct err *e)
{
    struct run_sink sink = {on_event, on_node, stop_asked, j};
    make_options(j);
    TRY(run_new(j->graph, &j->options, &sink, &j->run, e));
    events_put(j->events, EVENT_FACTS, facts_of(j));
    warn_unsupported(j);
    TRY(run_plan(j->run, e));
    put_plan(j);
    TRY(wait_for_foreground(j, e));
    enum status st = run_execute(j->run, e);
    if (st == ST_OOM) {
        struct fit_options o = {.path = j->graph_path, .run = j->options};
        json_decref(oom_explain(&o, j->run, e));
    }
    return st;
}

/* ---- its end ---- */

static enum cause cause_of(const struct job *j, enum status st)
{
    char path[1200], code[64] = "", *text;
    size_t n;
    struct err ignored;
    enum cause c;
    if (st == ST_OK)
        return CAUSE_DONE;
    if (st == ST_OOM)
        return CAUSE_OUT_OF_MEMORY;
    if (st != ST_INTERRUPTED)
        return CAUSE_GRAPH_ERROR;
    (void)path_join(j->w->dir, "stop", path, sizeof path);
    if (file_read(path, sizeof code - 1, &text, &n, &ignored) == ST_OK) {
        str_copy_trimmed(code, sizeof code, text, n);
        code[strcspn(code, "\r\n")] = 0;
        mem_free(text);
    }
    return cause_find(code, &c) ? c : CAUSE_AGENT_STOPPED;
}

/* What people read: a NodeOOMError is its whole report. */
static const char *message_of(const json_t *error)
{
    return json_get_str(error, "message", "");
}

static void put_end(const struct job *j, enum status st, enum cause c, const json_t *error)
{
    json_t *payload = json_object();
    const char *status = cause_status(c);
    enum event_type type = EVENT_EXECUTION_ERROR;
    if (st == ST_OK) {
        type = EVENT_EXECUTION_COMPLETE;
    } else if (strcmp(status, "failed") != 0) {
        type = EVENT_EXECUTION_STOPPED;
        json_put_str(payload, "reason", status);
    } else {
        json_put_str(payload, "error", message_of(error));
        json_put_str(payload, "code", json_get_str(error, "code", ""));
        json_put_str(payload, "node_id", json_get_str(error, "node_id", NULL));
        json_put_str(payload, "hint", json_get_str(error, "hint", NULL));
    }
    events_put(j->events, type, payload);
}

static json_t *peaks_of(const struct job *j)
{
    json_t *list = json_array();
    struct run_device d;
    for (int i = 0; j->run && run_device_at(j->run, i, &d); i++) {
        if (!d.used || d.device->kind == DEVICE_CPU)
            continue;
        json_t *row = json_object();
        json_put_str(row, "device", d.device->machine_id);
        json_put_i64(row, "bytes", d.held_bytes_peak);
        (void)json_array_append_new(list, row);
    }
    return list;
}

static enum status
write_result(const struct job *j, enum status st, enum cause c, json_t *result, struct err *e)
{
    char path[1200];
    json_t *error = json_object_get(result, "error");
    bool failed = strcmp(cause_status(c), "failed") == 0;
    struct run_end end = {
        .status = cause_status(c),
        .cause = cause_code(c),
        .error = failed ? message_of(error) : "",
        .detail = failed ? error : NULL,
        .exit_code = status_exit(st),
        .peaks = peaks_of(j),
        .facts = j->run ? facts_of(j) : NULL,
        .result = result};
    json_t *d = wire_write(&wire_run_end, &end);
    char *text = json_text(d, false);
    (void)path_join(j->w->dir, "result.json", path, sizeof path);
    enum status written = file_write(path, text, strlen(text), e);
    mem_free(text);
    json_decref(d);
    json_decref(end.peaks);
    json_decref(end.facts);
    return written;
}

static void release(struct job *j)
{
    run_free(j->run);
    graph_free(j->graph);
    mem_free(j->device);
    json_decref(j->document);
}

/* S1, now that this run's recorded outputs are whole. */
static void keep_within_limits(const struct job *j)
{
    char runs[1100];
    int64_t bytes_max;
    struct err ignored;
    if (!json_get_bool(j->order.options, "record_outputs", false) ||
        events_record_limit(&bytes_max, &ignored) != ST_OK)
        return;
    (void)path_dir(j->w->dir, runs, sizeof runs);
    (void)outputs_evict(runs, OUTPUTS_RUNS_MAX, bytes_max, j->order.run_id);
}

static int finish(struct job *j, enum status st, struct err *e)
{
    struct err unwritten = {0};
    enum cause c = cause_of(j, st);
    if (c == CAUSE_TIMED_OUT)
        err_prefix(e, "it ran past its time limit of %g s", j->order.timeout_s);
    json_t *content = j->run ? run_document(j->run) : NULL;
    json_t *result = document_of_status(st, e, content);
    if (st == ST_OK)
        say_line("succeeded");
    else
        say_line("%s: %s", cause_status(c), message_of(json_object_get(result, "error")));
    if (j->events && st != ST_OK && st != ST_INTERRUPTED)
        events_failure(j->events, e);
    if (j->events)
        put_end(j, st, c, json_object_get(result, "error"));
    if (j->events && events_close(j->events, &unwritten) != ST_OK) {
        json_decref(result);
        st = unwritten.status; /* the events are part of a run */
        c = CAUSE_GRAPH_ERROR;
        result = document_of_status(st, &unwritten, NULL);
    }
    j->events = NULL;
    keep_within_limits(j);
    if (write_result(j, st, c, result, &unwritten) != ST_OK) {
        (void)fprintf(stderr, "snug: error: %s\n", unwritten.text);
        st = st == ST_OK ? unwritten.status : st;
    }
    json_decref(result);
    release(j);
    return status_exit(st);
}

int work_run(const struct work *w)
{
    struct job j = {.w = w};
    struct err e = {0};
    enum status st = read_order(&j, &e);
    if (st == ST_OK)
        st = make_graph(&j, &e);
    /* A graph that cannot be read has events too. */
    struct err late = {0};
    enum status opened =
        j.document ? events_open(&j.order, w->dir, st == ST_OK ? j.graph : NULL, &j.events, &late)
                   : ST_OK;
    if (st == ST_OK && opened != ST_OK) {
        st = opened;
        e = late;
    }
    if (j.events) {
        json_t *payload = json_object();
        json_put_str(payload, "run_id", j.order.run_id);
        events_put(j.events, EVENT_EXECUTION_START, payload);
    }
    if (st == ST_OK)
        st = execute(&j, &e);
    return finish(&j, st, &e);
}

void work_result_of_exhausted(const char *dir)
{
    static const char text[] =
        "{\"status\": \"failed\", \"cause\": \"out_of_memory\", \"error\": \"NodeOOMError: host "
        "memory is exhausted\", \"detail\": {\"code\": \"out_of_memory\", \"message\": \"host "
        "memory is exhausted\", \"node_id\": null, \"hint\": null}, \"peaks\": []}\n";
    char path[1200];
    (void)path_join(dir, "result.json", path, sizeof path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return;
    (void)!write(fd, text, sizeof text - 1);
    (void)close(fd);
}
