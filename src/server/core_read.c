/* core_read.c - what is told about runs: rows, pages of rows, events, metrics, artifacts.
 *
 * Rows are read from the store without the lock; what only memory knows (why a run waits, its place
 * in the queue, whether its agent answers) is laid over them.
 */
#include "server/core_int.h"

#include <math.h>
#include <string.h>

enum { POSITION_MAX = 1000 };

/* ---- rows ---- */

json_t *devices_json(const char *list)
{
    json_t *out = json_array();
    while (*list) {
        size_t n = strcspn(list, ",");
        json_array_append_new(out, json_stringn(list, n));
        list += n + (list[n] == ',');
    }
    return out;
}

static void put_document(json_t *row, const char *key, const char *text)
{
    json_t *value = NULL;
    struct err ignored;
    if (*text && json_parse(text, strlen(text), key, &value, &ignored) != ST_OK)
        value = NULL;
    json_put(row, key, value ? value : json_null());
}

static void put_text(json_t *row, const char *key, const char *text)
{
    json_put_str(row, key, *text ? text : NULL);
}

static void put_time(json_t *row, const char *key, int64_t us)
{
    char buf[40];
    put_text(row, key, iso_time(us, buf));
}

static json_t *
budget_json(int64_t bytes, enum budget_source source, const char *run_id, bool raised)
{
    if (bytes <= 0)
        return json_null();
    json_t *out = json_object();
    json_put_f64(out, "gib", (double)bytes / 1073741824.0);
    json_put_i64(out, "bytes", bytes);
    json_put_str(out, "source", budget_source_text(source));
    put_text(out, "run_id", run_id);
    json_put_bool(out, "raised", raised);
    return out;
}

/* Everything that the store has. */
static json_t *stored_row(const struct store_run *r)
{
    json_t *row = json_object();
    json_put_str(row, "id", r->run_id);
    json_put_str(row, "run_id", r->run_id);
    put_text(row, "name", r->name);
    json_put_str(row, "kind", r->kind);
    put_text(row, "owner", r->owner);
    json_put_str(row, "lane", r->lane);
    put_document(row, "options", r->options);
    if (*r->command)
        put_document(row, "command", r->command);
    json_put_str(row, "status", run_state_status(r->state));
    json_put_str(
        row, "state",
        run_state_ended(r->state) ? run_state_status(r->state) : run_state_name(r->state));
    json_put_bool(row, "active", !run_state_ended(r->state));
    put_text(row, "error", r->error);
    put_text(row, "cause", r->cause);
    json_put_bool(row, "cancel_asked", r->cancel_asked);
    put_text(row, "queue_key", r->queue_key);
    json_put(row, "queue_position", json_null());
    put_time(row, "created_at", r->created_us);
    put_time(row, "started_at", r->started_us);
    put_time(row, "finished_at", r->finished_us);
    put_text(row, "git_commit", r->git_commit);
    json_put_bool(row, "git_dirty", r->git_dirty);
    put_document(row, "plugin_pins", r->plugin_pins);
    put_text(row, "graph_key", r->graph_key);
    put_text(row, "target", r->target);
    put_text(row, "worker", r->worker);
    put_text(row, "worker_id", r->worker);
    json_put(row, "devices", *r->devices ? devices_json(r->devices) : json_null());
    json_put(row, "requested_devices", devices_json(r->wanted));
    json_put_i64(row, "epoch", r->epoch);
    json_put(
        row, "budget",
        budget_json(r->budget_bytes, r->budget_source, r->budget_run, r->budget_raised));
    json_put(row, "reason", json_null());
    put_document(row, "peaks", r->peaks);
    put_document(row, "final_metrics", r->final_metrics);
    if (!json_is_object(json_object_get(row, "final_metrics")))
        json_put(row, "final_metrics", json_object());
    json_put(row, "sweep_id", json_null());
    json_put(
        row, "sweep_variant", r->sweep && r->variant >= 0 ? json_integer(r->variant) : json_null());
    json_put(row, "study_id", json_null());
    json_put(
        row, "study_variant", r->study && r->variant >= 0 ? json_integer(r->variant) : json_null());
    json_put(
        row, "repetition",
        r->study && r->repetition >= 0 ? json_integer(r->repetition) : json_null());
    return row;
}

/* ---- what memory adds ---- */

/* From 1 within its own queue; 0 beyond what is counted. */
static int queue_position(const struct core *c, const struct run *r)
{
    const char *queue = place_class_queue(r->class);
    int n = 1;
    for (size_t i = 0; i < r->at; i++) {
        const struct slot *other = &c->waiting.data[i];
        if (!other->run ||
            (other->class != r->class && strcmp(place_class_queue(other->class), queue) != 0))
            continue;
        if (++n > POSITION_MAX)
            return 0;
    }
    return n;
}

static void waiting_reason(const struct core *c, const struct run *r, struct str *out)
{
    if (r->interactive)
        str_add(out, "waits for this server's own worker");
    else if (c->stopped)
        str_add(out, "the server is about to stop");
    else if (!c->passed || r->id > c->folded)
        str_add(out, "it was just submitted");
    else
        place_reason(c->place, r->class, r->id, out);
    if (r->now.raised && r->now.budget_bytes)
        str_printf(
            out, "; its budget was raised to %.1f GiB, the peak of run %.8s plus 20%%",
            (double)r->now.budget_bytes / 1073741824.0, r->now.budget_run);
}

static void live_reason(const struct core *c, const struct run *r, struct str *out)
{
    const struct worker *w = r->now.worker;
    if (!w->connected)
        str_printf(
            out, "no contact with worker \"%s\" for %lld s", w->name,
            (long long)((c->now.now_ns - w->contact_ns) / SECOND_NS));
    else if (r->now.state == RUN_ASSIGNED)
        str_printf(out, "starts on %s of %s", r->now.devices, w->server ? "this server" : w->name);
    else if (r->now.state == RUN_STOPPING)
        str_add(out, "was asked to stop");
}

/* Rows of a list: positions cost a walk, so a list asks for those of a whole page at once. */
static void overlay(struct core *c, const struct run *r, json_t *row)
{
    struct str reason;
    str_init(&reason);
    if (r->in_live) {
        live_reason(c, r, &reason);
        json_put_bool(row, "contact", r->now.worker->connected);
    } else {
        waiting_reason(c, r, &reason);
        if (r->class) {
            int position = queue_position(c, r);
            json_put_str(row, "queue_key", place_class_queue(r->class));
            json_put(row, "queue_position", position ? json_integer(position) : json_null());
        }
    }
    if (reason.n)
        json_put_str(row, "reason", reason.data);
    str_release(&reason);
}

/* Ids of sweeps and studies as people know them. */
static void put_parents(struct core *c, const struct store_run *r, json_t *row)
{
    char id[ID_BYTES];
    if (r->sweep && c->hooks.sweep_name && c->hooks.sweep_name(c->hooks.ctx, r->sweep, id))
        json_put_str(row, "sweep_id", id);
    if (r->study && c->hooks.study_name && c->hooks.study_name(c->hooks.ctx, r->study, id))
        json_put_str(row, "study_id", id);
}

enum status core_run(struct core *c, const char *run_id, json_t **out, struct err *e)
{
    struct arena a;
    struct store_run r;
    arena_init(&a);
    enum status st = store_run_get(c->store, run_id, &a, &r, e);
    if (st == ST_OK) {
        json_t *row = stored_row(&r);
        json_put_i64(row, "last_cursor", r.last_cursor);
        put_document(row, "execution_facts", r.facts);
        put_document(row, "error_detail", r.detail);
        put_document(row, "result", r.result);
        if (!run_state_ended(r.state)) {
            const char *metrics = "";
            if (store_metrics_final(c->store, r.id, &a, &metrics, NULL) == ST_OK && *metrics)
                put_document(row, "final_metrics", metrics);
        }
        put_parents(c, &r, row);
        core_enter_read(c);
        const struct run *live = run_map_get(&c->runs, run_id);
        if (live)
            overlay(c, live, row);
        core_leave(c);
        *out = row;
    }
    arena_release(&a);
    return st;
}

static enum status read_statuses(const struct core_filter *f, unsigned *states, struct err *e)
{
    *states = 0;
    for (int i = 0; i < f->n_statuses; i++) {
        unsigned bits = 0;
        for (int s = 0; s < RUN_STATE_COUNT; s++)
            if (str_eq(run_state_status((enum run_state)s), f->statuses[i]))
                bits |= 1u << s;
        if (!bits)
            return err_set(
                e, ST_INVALID,
                "status must be queued, running, succeeded, failed, cancelled or interrupted");
        *states |= bits;
    }
    return ST_OK;
}

enum status core_runs(struct core *c, const struct core_filter *f, json_t **page, struct err *e)
{
    struct store_run_filter q = {
        .owner = f->owner,
        .worker = f->worker,
        .sweep = f->sweep,
        .study = f->study,
        .limit = f->limit,
        .offset = f->offset};
    struct store_runs list;
    struct arena a;
    TRY(read_statuses(f, &q.states, e));
    arena_init(&a);
    enum status st = store_runs_list(c->store, &q, &a, &list, e);
    if (st == ST_OK) {
        json_t *rows = json_array();
        for (size_t i = 0; i < list.n; i++) {
            json_t *row = stored_row(&list.runs[i]);
            put_parents(c, &list.runs[i], row);
            json_array_append_new(rows, row);
        }
        core_enter_read(c);
        for (size_t i = 0; i < list.n; i++) {
            const struct run *live = run_map_get(&c->runs, list.runs[i].run_id);
            if (live)
                overlay(c, live, json_array_get(rows, i));
        }
        core_leave(c);
        *page = json_object();
        json_put(*page, "runs", rows);
        json_put_i64(*page, "total", list.total);
        json_put_i64(*page, "limit", f->limit);
        json_put_i64(*page, "offset", f->offset);
    }
    arena_release(&a);
    return st;
}

/* ---- graph, events, metrics, artifacts ---- */

/* The row's id, and its status: from memory while it lives. */
static enum status find_run(
    struct core *c, const char *run_id, int64_t *id, const char **status, int64_t *graph,
    struct err *e)
{
    core_enter_read(c);
    const struct run *r = run_map_get(&c->runs, run_id);
    if (r) {
        *id = r->id;
        *status = run_state_status(r->now.state);
    }
    core_leave(c);
    if (r && !graph)
        return ST_OK;
    struct arena a;
    struct store_run row;
    arena_init(&a);
    enum status st = store_run_get(c->store, run_id, &a, &row, e);
    if (st == ST_OK) {
        *id = row.id;
        *status = run_state_status(row.state);
        if (graph)
            *graph = row.graph_id;
    }
    arena_release(&a);
    return st;
}

enum status core_graph(struct core *c, const char *run_id, json_t **graph, struct err *e)
{
    struct arena a;
    struct store_run row;
    arena_init(&a);
    enum status st = store_run_get(c->store, run_id, &a, &row, e);
    if (st == ST_OK && !row.graph_id)
        st = err_set(e, ST_NOT_FOUND, "run %s is a command: it has no graph", run_id);
    if (st == ST_OK)
        st = graph_of_run(c, &row, NULL, graph, e);
    arena_release(&a);
    return st;
}

enum status core_events(
    struct core *c, const char *run_id, int64_t cursor, int64_t limit, json_t **page, struct err *e)
{
    int64_t id;
    const char *status;
    struct arena a;
    struct store_event *events;
    size_t n;
    /* The status first: a run that has ended by then has all its events stored. */
    TRY(find_run(c, run_id, &id, &status, NULL, e));
    arena_init(&a);
    enum status st = store_events_read(
        c->store, id, cursor, limit, c->config.response_cap_bytes, &a, &events, &n, e);
    if (st == ST_OK) {
        json_t *list = json_array();
        for (size_t i = 0; i < n; i++) {
            json_t *one = json_object();
            json_put_i64(one, "cursor", events[i].cursor);
            json_put_str(one, "type", events[i].type);
            put_document(one, "payload", events[i].payload);
            put_time(one, "ts", events[i].time_us);
            json_array_append_new(list, one);
        }
        *page = json_object();
        json_put_str(*page, "run_id", run_id);
        json_put_str(*page, "status", status);
        json_put_bool(*page, "active", str_eq(status, "queued") || str_eq(status, "running"));
        json_put(*page, "events", list);
        json_put_i64(*page, "cursor", n ? events[n - 1].cursor : cursor);
    }
    arena_release(&a);
    return st;
}

static enum status read_metrics(
    struct core *c, const char *run_id, const char *name, struct arena *a,
    struct store_metric **out, size_t *n, struct err *e)
{
    int64_t id;
    const char *status;
    TRY(find_run(c, run_id, &id, &status, NULL, e));
    return store_metrics_read(c->store, id, name, a, out, n, e);
}

enum status
core_metrics(struct core *c, const char *run_id, const char *name, json_t **doc, struct err *e)
{
    struct arena a;
    struct store_metric *points;
    size_t n;
    arena_init(&a);
    enum status st = read_metrics(c, run_id, name, &a, &points, &n, e);
    if (st == ST_OK) {
        json_t *names = json_array(), *list = json_array();
        for (size_t i = 0; i < n; i++) {
            const struct store_metric *m = &points[i];
            json_t *one = json_object();
            json_put_str(one, "node_id", m->node_id);
            json_put_str(one, "name", m->name);
            json_put_i64(one, "step", m->step);
            json_put(one, "value", isfinite(m->value) ? json_real(m->value) : json_null());
            put_time(one, "ts", m->time_us);
            json_array_append_new(list, one);
            if (!i || strcmp(points[i - 1].name, m->name) != 0)
                json_array_append_new(names, json_string(m->name));
        }
        *doc = json_object();
        json_put_str(*doc, "run_id", run_id);
        json_put(*doc, "names", names);
        json_put(*doc, "points", list);
    }
    arena_release(&a);
    return st;
}

void csv_cell(struct str *out, const char *text)
{
    bool formula = *text && strchr("=+-@\t\r", *text); /* a spreadsheet would compute it */
    if (!formula && !strpbrk(text, ",\"\r\n")) {
        str_add(out, text);
        return;
    }
    str_add(out, "\"");
    if (formula)
        str_add(out, "'");
    for (; *text; text++)
        str_add_n(out, *text == '"' ? "\"\"" : text, *text == '"' ? 2 : 1);
    str_add(out, "\"");
}

enum status core_metrics_csv(
    struct core *c, const char *run_id, const char *name, struct str *out, struct err *e)
{
    struct arena a;
    struct store_metric *points;
    size_t n;
    char when[40];
    arena_init(&a);
    enum status st = read_metrics(c, run_id, name, &a, &points, &n, e);
    if (st == ST_OK) {
        str_add(out, "\xef\xbb\xbfrun_id,node_id,name,step,value,ts\r\n");
        for (size_t i = 0; i < n; i++) {
            const struct store_metric *m = &points[i];
            str_printf(out, "%s,", run_id);
            csv_cell(out, m->node_id);
            str_add(out, ",");
            csv_cell(out, m->name);
            str_printf(out, ",%lld,", (long long)m->step);
            if (isfinite(m->value))
                str_printf(out, "%.17g", m->value);
            str_printf(out, ",%s\r\n", iso_time(m->time_us, when));
        }
    }
    arena_release(&a);
    return st;
}

enum status
core_artifacts(struct core *c, const char *run_id, const char *kind, json_t **doc, struct err *e)
{
    int64_t id;
    const char *status;
    struct arena a;
    struct store_artifact *list;
    size_t n;
    TRY(find_run(c, run_id, &id, &status, NULL, e));
    arena_init(&a);
    enum status st = store_artifacts_read(c->store, id, kind, &a, &list, &n, e);
    if (st == ST_OK) {
        json_t *rows = json_array();
        for (size_t i = 0; i < n; i++) {
            json_t *one = json_object();
            json_put_i64(one, "id", list[i].id);
            json_put_str(one, "kind", list[i].kind);
            json_put_str(one, "path", list[i].path);
            put_document(one, "meta", list[i].meta);
            put_text(one, "node_id", list[i].node_id);
            put_time(one, "created_at", list[i].time_us);
            json_array_append_new(rows, one);
        }
        *doc = json_object();
        json_put_str(*doc, "run_id", run_id);
        json_put(*doc, "artifacts", rows);
    }
    arena_release(&a);
    return st;
}
