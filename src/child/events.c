/* events.c - a run's events, from the runner's words to the API's. */
#include "child/events.h"

#include "base/config.h"
#include "base/env.h"
#include "base/mem.h"
#include "child/entries.h"
#include "child/series.h"
#include "wire/journal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const int64_t payload_cap_bytes = 131072;
enum { IMAGE_BYTES_MAX = 64 << 20 };

/* A preset or subgraph: one status for all that is inside. */
struct box {
    const char *id;
    size_t left; /* nodes of it that have not ended */
    bool said_running, any_completed, any_skipped;
};

struct events {
    const struct graph *graph; /* NULL: it could not be read */
    struct journal journal;
    struct err failed; /* the first */
    json_t *points;    /* waiting */
    int64_t points_ns, progress_ns, cap_bytes;
    VEC(struct box) boxes;
    struct outputs *records; /* NULL: not asked for, or given up */
    int64_t record_bytes_max;
    struct boards *boards;
    json_t *texts;  /* node id -> [text]: printed since its beginning */
    json_t *within; /* id of a node inside a preset or subgraph -> the whole's */
    bool said_failure;
    char dir[1100];
};

/* ---- opening ---- */

static void count_boxes(struct events *v, const struct graph *g)
{
    for (size_t i = 0; i < graph_order_count(g); i++) {
        const struct graph_node *n = graph_node_at(g, graph_order_at(g, i));
        size_t k = 0;
        if (!n->container || !n->kind || strcmp(n->kind->name, "Start") == 0)
            continue;
        json_put_str(v->within, n->id, n->container);
        while (k < v->boxes.n && strcmp(v->boxes.data[k].id, n->container) != 0)
            k++;
        if (k == v->boxes.n) {
            struct box b = {.id = n->container};
            vec_push(&v->boxes, b);
        }
        v->boxes.data[k].left++;
    }
}

enum status events_record_limit(int64_t *bytes_max, struct err *e)
{
    TRY(config_count(
        "SNUG_RUN_OUTPUT_STORE_MAX_MB", "run_output_store_max_mb", outputs_bytes_max >> 20,
        bytes_max, e));
    *bytes_max = *bytes_max < INT64_MAX >> 20 ? *bytes_max << 20 : 0;
    return ST_OK;
}

static enum status open_records(struct events *v, const struct start_order *o, struct err *e)
{
    char runs[1100];
    TRY(events_record_limit(&v->record_bytes_max, e));
    if (!json_get_bool(o->options, "record_outputs", false))
        return ST_OK;
    TRY(outputs_begin(&v->records, v->dir, e));
    (void)path_dir(v->dir, runs, sizeof runs);
    (void)outputs_evict(runs, OUTPUTS_RUNS_MAX, v->record_bytes_max, o->run_id);
    return ST_OK;
}

enum status events_open(
    const struct start_order *order, const char *dir, const struct graph *g, struct events **out,
    struct err *e)
{
    char tb[1200];
    struct events *v = mem_alloc(sizeof *v);
    (void)snprintf(v->dir, sizeof v->dir, "%s", dir);
    v->graph = g;
    v->journal.fd = -1;
    v->points = json_array();
    v->texts = json_object();
    v->within = json_object();
    struct err odd;
    if (config_count(
            "SNUG_RUN_EVENT_PAYLOAD_CAP_BYTES", "run_event_payload_cap_bytes", payload_cap_bytes,
            &v->cap_bytes, &odd) != ST_OK)
        v->cap_bytes = 0; /* below 0: no cap */
    enum status st = journal_open(&v->journal, dir, order->epoch, e);
    if (st == ST_OK && g) {
        count_boxes(v, g);
        v->boards = boards_new(g, path_join(dir, "tb", tb, sizeof tb), false);
        st = open_records(v, order, e);
    }
    if (st == ST_OK) {
        *out = v;
        return ST_OK;
    }
    struct err ignored;
    (void)!events_close(v, &ignored);
    return st;
}

/* ---- appending ---- */

static void append(struct events *v, enum event_type type, json_t *payload)
{
    struct err e = {0};
    if (v->failed.status != ST_OK) {
        json_decref(payload);
        return;
    }
    if (journal_append(&v->journal, type, payload, &e) != ST_OK)
        v->failed = e;
}

static void flush_points(struct events *v)
{
    if (json_array_size(v->points) == 0)
        return;
    json_t *payload = json_object();
    json_put(payload, "points", v->points);
    v->points = json_array();
    append(v, EVENT_METRIC, payload);
}

void events_put(struct events *v, enum event_type type, json_t *payload)
{
    flush_points(v); /* in the order in which it happened */
    append(v, type, payload);
}

bool events_failed(const struct events *v)
{
    return v->failed.status != ST_OK;
}

enum status events_close(struct events *v, struct err *e)
{
    struct err board = {0};
    if (boards_free(v->boards, &board) != ST_OK) {
        json_t *payload = json_object();
        json_put_str(payload, "kind", "tensorboard");
        json_put_str(payload, "message", board.text);
        events_put(v, EVENT_RUN_WARNING, payload);
    }
    flush_points(v);
    outputs_end(v->records);
    journal_close(&v->journal);
    enum status st = v->failed.status;
    if (st != ST_OK)
        *e = v->failed;
    vec_release(&v->boxes);
    json_decref(v->points);
    json_decref(v->texts);
    json_decref(v->within);
    mem_free(v);
    return st;
}

/* ---- points, files, warnings ---- */

static void add_points(struct events *v, const json_t *event)
{
    struct series_point p[SERIES_POINTS_MAX];
    int n = series_points(event, p);
    int64_t now = clock_ns();
    for (int i = 0; i < n; i++) {
        json_t *row = json_object();
        if (json_array_size(v->points) == 0)
            v->points_ns = now;
        json_put_str(row, "name", p[i].name);
        json_put(row, "value", isfinite(p[i].value) ? json_real(p[i].value) : json_null());
        json_put_i64(row, "step", p[i].step);
        json_put_str(row, "node_id", p[i].node_id);
        (void)json_array_append_new(v->points, row);
        if (json_array_size(v->points) == EVENTS_POINTS)
            flush_points(v);
    }
    if (json_array_size(v->points) && now - v->points_ns >= (int64_t)EVENTS_FLUSH_MS * 1000000)
        flush_points(v);
}

static void put_artifact(struct events *v, const char *kind, const char *path, const json_t *event)
{
    struct stat s;
    json_t *payload = json_object(), *meta = json_object();
    json_put_str(payload, "kind", kind);
    json_put_str(payload, "path", path);
    json_put_str(payload, "node_id", json_get_str(event, "node_id", NULL));
    if (stat(path, &s) == 0)
        json_put_i64(meta, "bytes", s.st_size);
    static const char *const keys[] = {"epoch", "step", "reason"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (json_object_get(event, keys[i]))
            json_put(meta, keys[i], json_incref(json_object_get(event, keys[i])));
    json_put(payload, "meta", meta);
    events_put(v, EVENT_ARTIFACT, payload);
}

static void put_warning(struct events *v, const json_t *event)
{
    json_t *payload = json_safe(event);
    (void)json_object_del(payload, "event");
    events_put(v, EVENT_RUN_WARNING, payload);
}

static void warn(struct events *v, const char *kind, const char *text)
{
    json_t *payload = json_object();
    json_put_str(payload, "kind", kind);
    json_put_str(payload, "message", text);
    events_put(v, EVENT_RUN_WARNING, payload);
}

static void add_boards(struct events *v, const json_t *event)
{
    struct err e;
    const char *opened;
    if (v->boards && boards_event(v->boards, event, &opened, &e) != ST_OK)
        warn(v, "tensorboard", e.text);
    else if (v->boards && opened)
        put_artifact(v, "tensorboard", opened, event);
}

/* ---- nodes ---- */

static const char *id_of(const struct graph_node *n)
{
    return n->container ? n->container : n->id;
}

/* The same by the id alone. */
static const char *shown_id(const struct events *v, const char *node)
{
    return json_get_str(v->within, node, node);
}

static struct box *box_of(struct events *v, const struct graph_node *n)
{
    for (size_t i = 0; n->container && i < v->boxes.n; i++)
        if (strcmp(v->boxes.data[i].id, n->container) == 0)
            return &v->boxes.data[i];
    return NULL;
}

static void add_text(struct events *v, const char *node, const char *text)
{
    node = shown_id(v, node);
    json_t *list = json_object_get(v->texts, node);
    if (!list) {
        list = json_array();
        json_put(v->texts, node, list);
    }
    (void)json_array_append_new(list, json_string(text));
}

static void take_texts(struct events *v, const char *node, json_t *outputs)
{
    size_t i;
    json_t *text;
    json_array_foreach(json_object_get(v->texts, node), i, text)(void)
        json_array_append_new(outputs, entry_text(json_string_value(text)));
    (void)json_object_del(v->texts, node);
}

/* A port "image" with the path of a picture. */
static void add_images(const struct run *r, const struct graph_node *n, json_t *outputs)
{
    struct run_output o;
    json_t *entry;
    char home[1024];
    (void)path_join(snug_home(), "images/", home, sizeof home); /* no file of anybody else's */
    for (size_t i = 0; run_output_at(r, n, i, &o); i++)
        if (str_starts(o.kind == RUN_OUTPUT_TEXT ? o.text : "", home) &&
            o.kind == RUN_OUTPUT_TEXT && strcmp(o.port, "image") == 0 &&
            (str_ends(o.text, ".png") || str_ends(o.text, ".svg")) &&
            (entry = entry_image(o.text, o.port, IMAGE_BYTES_MAX)))
            (void)json_array_append_new(outputs, entry);
}

/* What a preset or subgraph puts out, by its own names. */
static json_t *summaries_of_box(const struct events *v, const struct run *r, const char *id)
{
    struct graph_exposed x;
    struct run_output o;
    json_t *all = json_object();
    for (size_t i = 0; graph_exposed_at(v->graph, i, &x); i++)
        if (strcmp(x.container, id) == 0 && x.node != GRAPH_NO_NODE &&
            entries_find(r, graph_node_at(v->graph, x.node), x.port, &o))
            json_put(all, x.name, entry_summary(&o));
    return all;
}

static json_t *entries_of(struct events *v, const struct run *r, const struct graph_node *n)
{
    json_t *outputs = json_array(), *entry = json_object();
    take_texts(v, id_of(n), outputs);
    add_images(r, n, outputs);
    json_put_str(entry, "output_kind", "tensor_summary");
    json_put(
        entry, "tensor_summary",
        n->container ? summaries_of_box(v, r, n->container) : entries_summaries(r, n));
    (void)json_array_append_new(outputs, entry);
    return outputs;
}

static void put_status(
    struct events *v, const char *id, enum run_node_status status, json_t *outputs,
    const struct err *e)
{
    json_t *payload = json_object();
    json_put_str(payload, "node_id", id);
    json_put_str(payload, "status", run_node_status_name(status));
    if (e) {
        json_put_str(payload, "error", e->text);
        json_put_str(payload, "code", status_code(e->status));
    }
    if (outputs)
        json_put(payload, "outputs", outputs);
    entries_cap(payload, v->cap_bytes);
    events_put(v, EVENT_NODE_STATUS, payload);
}

/* The name of an output for whoever looks at the graph: of a preset's its own. */
static void record_name(
    const struct events *v, const struct graph_node *n, const char **node, const char **port)
{
    struct graph_exposed x;
    for (size_t i = 0; n->container && graph_exposed_at(v->graph, i, &x); i++) {
        if (x.node == GRAPH_NO_NODE || graph_node_at(v->graph, x.node) != n ||
            strcmp(x.port, *port) != 0)
            continue;
        *node = x.container;
        *port = x.name;
        return;
    }
}

static enum status
record_all(struct events *v, const struct run *r, const struct graph_node *n, struct err *e)
{
    struct run_output o;
    for (size_t i = 0; run_output_at(r, n, i, &o); i++) {
        const char *node = n->id, *port = o.port;
        record_name(v, n, &node, &port);
        TRY(entries_record(v->records, &o, node, port, e));
    }
    return ST_OK;
}

/* Recording is a convenience: where it cannot go on, the run does. */
static void record(struct events *v, const struct run *r, const struct graph_node *n)
{
    struct err e;
    char text[1000];
    if (!v->records)
        return;
    enum status st = record_all(v, r, n, &e);
    bool full = v->record_bytes_max > 0 && outputs_bytes(v->records) > v->record_bytes_max;
    if (st == ST_OK && !full)
        return;
    if (st == ST_OK)
        (void)err_set(&e, ST_TOO_LARGE, "outputs of this run pass SNUG_RUN_OUTPUT_STORE_MAX_MB");
    (void)snprintf(text, sizeof text, "%s: no more of them are recorded", e.text);
    warn(v, "record_outputs", text);
    outputs_end(v->records);
    v->records = NULL;
}

/* Of several nodes in a box the last one to end says how all did. */
static bool box_speaks(struct box *b, enum run_node_status *status)
{
    if (*status == RUN_NODE_RUNNING) {
        bool first = !b->said_running;
        b->said_running = true;
        return first;
    }
    b->left -= b->left > 0;
    b->any_completed = b->any_completed || *status == RUN_NODE_COMPLETED;
    b->any_skipped = b->any_skipped || *status == RUN_NODE_SKIPPED;
    if (*status == RUN_NODE_FAILED || *status == RUN_NODE_INTERRUPTED)
        return true;
    if (b->left > 0)
        return false;
    *status = b->any_completed ? RUN_NODE_COMPLETED
              : b->any_skipped ? RUN_NODE_SKIPPED
                               : RUN_NODE_CACHED;
    return true;
}

void events_node(
    const struct run *r, const struct graph_node *n, enum run_node_status status,
    const struct err *e, void *ctx)
{
    struct events *v = ctx;
    struct box *b = box_of(v, n);
    bool shows =
        status == RUN_NODE_COMPLETED || status == RUN_NODE_CACHED || status == RUN_NODE_INTERRUPTED;
    if (shows)
        record(v, r, n);
    if (b && !box_speaks(b, &status))
        return;
    v->said_failure = v->said_failure || status == RUN_NODE_FAILED;
    put_status(v, id_of(n), status, shows ? entries_of(v, r, n) : NULL, e);
}

void events_failure(struct events *v, const struct err *e)
{
    if (!v->said_failure && e->node[0])
        put_status(v, shown_id(v, e->node), RUN_NODE_FAILED, NULL, e);
}

/* ---- what happens within a node ---- */

static bool is(const json_t *event, const char *name)
{
    return strcmp(json_get_str(event, "event", ""), name) == 0;
}

static void put_progress(struct events *v, const json_t *event)
{
    int64_t now = clock_ns();
    bool often = is(event, "batch") || is(event, "tokenize") || is(event, "memory");
    if (often && now - v->progress_ns < (int64_t)EVENTS_PROGRESS_MS * 1000000)
        return;
    v->progress_ns = often ? now : v->progress_ns;
    json_t *payload = json_object(), *entry = json_object(), *outputs = json_array();
    json_t *progress = json_safe(event);
    const char *id = shown_id(v, json_get_str(event, "node_id", ""));
    json_put_str(progress, "node_id", id);
    json_put_str(payload, "node_id", id);
    json_put_str(payload, "status", "progress");
    json_put_str(entry, "output_kind", "progress");
    json_put(entry, "progress", progress);
    (void)json_array_append_new(outputs, entry);
    json_put(payload, "outputs", outputs);
    entries_cap(payload, v->cap_bytes);
    events_put(v, EVENT_NODE_STATUS, payload);
}

static void on_saved(struct events *v, const json_t *event)
{
    const char *path = json_get_str(event, "path", "");
    bool image = str_ends(path, ".png") || str_ends(path, ".svg");
    bool checkpoint = strcmp(json_get_str(event, "type", ""), "CheckpointSaver") == 0;
    put_artifact(v, image ? "image" : checkpoint ? "checkpoint" : "export", path, event);
}

void events_event(const json_t *event, void *ctx)
{
    struct events *v = ctx;
    if (is(event, "node"))
        return; /* events_node says it */
    add_points(v, event);
    add_boards(v, event);
    if (is(event, "warning"))
        put_warning(v, event);
    else if (is(event, "log"))
        add_text(v, json_get_str(event, "node_id", ""), json_get_str(event, "message", ""));
    else if (is(event, "text"))
        add_text(v, json_get_str(event, "node_id", ""), json_get_str(event, "text", ""));
    else if (is(event, "checkpoint"))
        put_artifact(v, "checkpoint", json_get_str(event, "path", ""), event);
    else if (is(event, "saved"))
        on_saved(v, event);
    else if (is(event, "memory_history"))
        put_artifact(v, "memory_history", json_get_str(event, "path", ""), event);
    else
        put_progress(v, event);
}
