/* core_report.c - reports of agents: events applied once and in order, heartbeats, answers.
 *
 * All events of a report are one transaction. An event is applied when its run is this worker's, in
 * this epoch, and its sequence is the next; what was seen is acknowledged and skipped, what leaves
 * a gap is left for the agent to send again, what is fenced is answered with "forget"
 * (promise-P12).
 */
#include "base/log.h"
#include "server/core_int.h"

#include <math.h>
#include <string.h>

/* ---- single events ---- */

static enum status
apply_started(struct core *c, struct run *r, const struct run_event *ev, struct err *e)
{
    const json_t *facts = json_object_get(ev->payload, "facts");
    if (r->now.state == RUN_ASSIGNED) {
        TRY(store_run_start(c->store, r->id, r->now.epoch, c->now.wall_us, e));
        r->now.state = RUN_RUNNING;
        r->now.started_us = c->now.wall_us;
        c->figures.started++;
    }
    r->start_ns = 0;
    if (r->timeout_s > 0) /* its own child ends it; this is for one that does not */
        r->limit_ns = c->now.now_ns + (int64_t)((r->timeout_s + 30) * 1e9);
    if (r->now.budget_bytes)
        c->ledger_moved = true; /* what was reserved is running: the ledger reads otherwise */
    note(c, "run", r->run_id);
    c->note_runs = true;
    if (!facts || json_is_null(facts))
        return ST_OK;
    char *text = json_text(facts, false);
    enum status st = store_run_facts(c->store, r->id, text, e);
    mem_free(text);
    return st;
}

static enum status
apply_facts(struct core *c, struct run *r, const struct run_event *ev, struct err *e)
{
    char *text = json_text(ev->payload, false);
    enum status st = store_run_facts(c->store, r->id, text, e);
    mem_free(text);
    return st;
}

static enum status
apply_points(struct core *c, struct run *r, const struct run_event *ev, struct err *e)
{
    size_t i;
    json_t *point;
    json_array_foreach(json_object_get(ev->payload, "points"), i, point)
    {
        const json_t *value = json_object_get(point, "value");
        const char *name = json_get_str(point, "name", "");
        if (!*name)
            continue;
        TRY(store_metric_add(
            c->store, r->id, r->now.cursor,
            &(struct store_metric){
                .name = name,
                .node_id = json_get_str(point, "node_id", ""),
                .step = json_get_i64(point, "step", 0),
                .value = json_is_number(value) ? json_number_value(value) : (double)NAN,
                .time_us = ev->time_us},
            e));
    }
    return ST_OK;
}

/* The event says which row it became. */
static enum status apply_artifact(
    struct core *c, struct run *r, const struct run_event *ev, json_t *payload, struct err *e)
{
    int64_t id = 0;
    const json_t *meta = json_object_get(payload, "meta");
    char *text = meta && !json_is_null(meta) ? json_text(meta, false) : mem_strdup("{}");
    enum status st = store_artifact_add(
        c->store, r->id,
        &(struct store_artifact){
            .kind = json_get_str(payload, "kind", ""),
            .path = json_get_str(payload, "path", ""),
            .meta = text,
            .node_id = json_get_str(payload, "node_id", ""),
            .time_us = ev->time_us},
        &id, e);
    mem_free(text);
    if (st == ST_OK)
        json_put_i64(payload, "artifact_id", id);
    return st;
}

/* ---- ends ---- */

/* What a run that somebody stopped may call its end: the stop is why, not what it made of it. */
static bool is_stop_cause(enum cause c, const struct run_end *end)
{
    return c == CAUSE_CANCELLED || c == CAUSE_AGENT_STOPPED || c == CAUSE_SERVER_STOPPED ||
           c == CAUSE_CHILD_LOST || c == CAUSE_COULD_NOT_START || c == CAUSE_CANNOT_CAP ||
           ((c == CAUSE_CRASHED || c == CAUSE_EXIT_STATUS) && end->signal > 0) ||
           (c == CAUSE_EXIT_STATUS && (end->exit_code == 130 || end->exit_code == 143));
}

static void judge_end(const struct run *r, const struct run_end *end, struct run_outcome *o)
{
    if (!run_state_find_ended(end->status, &o->state))
        o->state = RUN_FAILED;
    if (!cause_find(end->cause, &o->cause))
        o->cause = o->state == RUN_SUCCEEDED ? CAUSE_DONE : CAUSE_GRAPH_ERROR;
    o->error = end->error;
    o->end = end;
    if (o->state == RUN_SUCCEEDED)
        return;
    bool stopping = r->now.state == RUN_STOPPING, cancelled = r->now.cancel_asked;
    if (stopping && (o->state != RUN_FAILED || is_stop_cause(o->cause, end))) {
        o->state = cancelled ? RUN_CANCELLED : RUN_INTERRUPTED;
        o->cause = cancelled ? CAUSE_CANCELLED : CAUSE_SERVER_STOPPED;
        o->error = cancelled ? "" : "the server was stopped";
    } else if (o->state == RUN_CANCELLED) { /* nobody here asked for that */
        o->state = RUN_INTERRUPTED;
        o->cause = CAUSE_AGENT_STOPPED;
    }
}

/* The largest allocator peak of the run's CUDA cards; 0 where there is none. */
static int64_t cuda_peak(const json_t *peaks, int *cards)
{
    int64_t most = 0;
    size_t i;
    json_t *one;
    *cards = 0;
    json_array_foreach((json_t *)(uintptr_t)peaks, i, one)
    {
        if (!str_starts(json_get_str(one, "device", ""), "cuda"))
            continue;
        int64_t bytes = json_get_i64(one, "bytes", 0);
        most = bytes > most ? bytes : most;
        ++*cards;
    }
    return most;
}

/* What a successful run measured is what the next one of its graph is judged by (B2). */
static enum status
keep_peak(struct core *c, const struct run *r, const struct run_end *end, struct err *e)
{
    int cards = 0, own = 0;
    struct store_peak p = {.bytes = cuda_peak(end->peaks, &cards), .time_us = c->now.wall_us};
    for (const char *at = r->now.devices; (at = strstr(at, "cuda")); at++)
        own++;
    if (p.bytes <= 0 || !*r->graph_key || !own || cards > own)
        return ST_OK;
    memcpy(p.run_id, r->run_id, sizeof p.run_id);
    TRY(store_peak_put(c->store, r->graph_key, own, &p, e));
    return budgets_follow_peak(c, r->graph_key, own, &p, e);
}

static enum status
apply_ended(struct core *c, struct run *r, const struct run_event *ev, struct err *e)
{
    struct run_end end;
    struct run_outcome o = {0};
    TRY(wire_read(&wire_run_end, ev->payload, &end, e));
    if (r->now.state == RUN_ASSIGNED && str_eq(end.status, "succeeded")) {
        TRY(store_run_start(c->store, r->id, r->now.epoch, c->now.wall_us, e));
        r->now.state = RUN_RUNNING;
    }
    judge_end(r, &end, &o);
    if (o.state == RUN_SUCCEEDED)
        TRY(keep_peak(c, r, &end, e));
    return run_finish(c, r, &o, e);
}

/* ---- one event of a report ---- */

static enum status apply_public(
    struct core *c, struct run *r, const struct run_event *ev, enum event_type type, struct err *e)
{
    if (r->now.closed)
        return ST_OK; /* the log ended with its last event (promise-P3) */
    json_t *payload = json_is_object(ev->payload) ? json_copy(ev->payload) : json_object();
    enum status st = ST_OK;
    if (type == EVENT_ARTIFACT)
        st = apply_artifact(c, r, ev, payload, e);
    if (st != ST_OK) {
        json_decref(payload);
        return st;
    }
    TRY(core_run_event(c, r, event_name(type), payload, ev->time_us, e));
    if (type == EVENT_METRIC)
        TRY(apply_points(c, r, ev, e));
    if (type == EVENT_EXECUTION_COMPLETE || type == EVENT_EXECUTION_ERROR ||
        type == EVENT_EXECUTION_STOPPED)
        r->now.closed = true;
    return ST_OK;
}

static enum status apply(struct core *c, struct run *r, const struct run_event *ev, struct err *e)
{
    enum event_type type;
    run_touch(c, r);
    r->now.sequence = ev->sequence;
    if (!event_find(ev->type, &type))
        return ST_OK; /* of a later version */
    switch (type) {
    case EVENT_STARTED:
        return apply_started(c, r, ev, e);
    case EVENT_FACTS:
        return apply_facts(c, r, ev, e);
    case EVENT_ENDED:
        return apply_ended(c, r, ev, e);
    case EVENT_EXECUTION_START:
    case EVENT_NODE_STATUS:
    case EVENT_METRIC:
    case EVENT_ARTIFACT:
    case EVENT_RUN_WARNING:
    case EVENT_PLAN:
    case EVENT_LOG:
    case EVENT_EXECUTION_COMPLETE:
    case EVENT_EXECUTION_ERROR:
    case EVENT_EXECUTION_STOPPED:
        return apply_public(c, r, ev, type, e);
    case EVENT_COUNT:
        break;
    }
    return ST_OK;
}

struct applied {
    json_t *sequences, *forget;
};

static enum status take_event(
    struct core *c, struct worker *w, const json_t *document, struct applied *a, struct err *e)
{
    struct run_event ev;
    TRY(wire_read(&wire_run_event, document, &ev, e));
    struct run *r = run_map_get(&c->runs, ev.run_id);
    if (!r || !r->in_live || r->now.worker != w || r->now.epoch != ev.epoch) {
        if (run_id_is_valid(ev.run_id))
            json_object_set_new(a->forget, ev.run_id, json_true());
        return ST_OK;
    }
    enum status st = ST_OK;
    if (!run_state_ended(r->now.state) && ev.sequence == r->now.sequence + 1)
        st = apply(c, r, &ev, e);
    if (st != ST_OK)
        return st;
    json_object_set_new(a->sequences, ev.run_id, json_integer(r->now.sequence));
    return ST_OK;
}

static enum status take_events(
    struct core *c, struct worker *w, const json_t *events, struct applied *a, struct err *e)
{
    size_t i;
    json_t *one;
    if (!json_array_size(events))
        return ST_OK;
    TRY(tx_begin(c, e));
    enum status st = ST_OK;
    json_array_foreach((json_t *)(uintptr_t)events, i, one)
    {
        st = take_event(c, w, one, a, e);
        if (st != ST_OK)
            break;
    }
    for (i = 0; st == ST_OK && i < c->undo.n; i++) {
        struct run *r = c->undo.data[i].run;
        if (!run_state_ended(r->now.state) && r->in_live)
            st = run_seen(c, r, e);
    }
    return tx_end(c, st, e);
}

/* ---- heartbeats, answers ---- */

static bool any_shared(const struct worker *w)
{
    for (size_t i = 0; i < w->cards.n; i++)
        if (w->cards.data[i].mode == CARD_SHARED)
            return true;
    return false;
}

static void take_heartbeat(struct core *c, struct worker *w, const struct report *report)
{
    if (w->strays && --w->strays == 0) /* what was not its any more is gone */
        core_stale(c);
    w->heartbeat_ns = c->now.now_ns;
    w->heartbeat_us = c->now.wall_us;
    w->seen_us = c->now.wall_us;
    if (json_is_array(report->devices)) {
        size_t n = w->cards.n;
        json_object_set_new(w->hello, "devices", json_deep_copy(report->devices));
        worker_devices(c, w, report->devices, true);
        if (w->cards.n != n || any_shared(w))
            core_stale(c); /* free memory decides who fits */
    }
    if (report->caches) {
        json_decref(w->caches);
        w->caches = json_deep_copy(report->caches);
    }
    c->note_workers = true;
}

static void take_answers(struct core *c, struct worker *w, const json_t *answers)
{
    size_t i;
    json_t *one;
    json_array_foreach((json_t *)(uintptr_t)answers, i, one)
    {
        struct answer a;
        struct err ignored;
        if (wire_read(&wire_answer, one, &a, &ignored) != ST_OK)
            continue;
        for (size_t k = 0; k < c->questions.n; k++) {
            struct asked *q = &c->questions.data[k];
            if (q->answered || q->worker != w || !str_eq(q->request, a.request))
                continue;
            q->answered = true;
            q->status = a.status >= 200 && a.status < 600 ? (int)a.status : 502;
            q->body = json_incref(a.body);
            q->until_ns = c->now.now_ns + 60 * SECOND_NS;
            note(c, "answer", q->request);
        }
    }
}

static json_t *write_reply(const struct applied *a)
{
    json_t *forget = json_array(), *value;
    const char *run_id;
    json_object_foreach(a->forget, run_id, value)
        json_array_append_new(forget, json_string(run_id));
    json_t *reply = wire_write(
        &wire_report_reply, &(struct report_reply){.sequences = a->sequences, .forget = forget});
    json_decref(forget);
    return reply;
}

enum status core_agent_report(
    struct core *c, const struct actor *who, const json_t *document, struct instant now,
    json_t **reply, struct err *e)
{
    struct report report;
    struct worker *w;
    TRY(wire_read(&wire_report, document, &report, e));
    if (json_array_size(report.events) > WIRE_REPORT_MAX)
        return err_set(
            e, ST_INVALID, "a report has at most %d events, not %zu", WIRE_REPORT_MAX,
            json_array_size(report.events));
    struct applied a = {.sequences = json_object(), .forget = json_object()};
    core_enter(c, now);
    enum status st = session_find(c, who, report.session, &w, e);
    if (st == ST_OK)
        st = take_events(c, w, report.events, &a, e);
    if (st == ST_OK) {
        take_answers(c, w, report.answers);
        if (report.heartbeat)
            take_heartbeat(c, w, &report);
        *reply = write_reply(&a);
    }
    core_leave(c);
    json_decref(a.sequences);
    json_decref(a.forget);
    return st;
}

/* ---- questions ---- */

/* The worker that has, or had, the run. */
static enum status
worker_of_run(struct core *c, const char *run_id, struct worker **w, int64_t *epoch, struct err *e)
{
    struct run *r = run_map_get(&c->runs, run_id);
    struct arena a;
    struct store_run row;
    enum status st = ST_OK;
    if (r) {
        *w = r->now.worker;
        *epoch = r->now.epoch;
    } else {
        arena_init(&a);
        st = store_run_get(c->store, run_id, &a, &row, e);
        if (st == ST_OK) {
            *w = *row.worker ? worker_by_name(c, row.worker) : NULL;
            *epoch = row.epoch;
        }
        arena_release(&a);
    }
    if (st == ST_OK && !*w)
        st = err_set(e, ST_NOT_FOUND, "no worker has run %s", run_id);
    if (st == ST_OK && !(*w)->connected)
        st = err_set(e, ST_BUSY, "worker \"%s\" is not connected", (*w)->name);
    return st;
}

enum status core_ask(
    struct core *c, const char *run_id, const json_t *question, struct instant now,
    char request[33], struct err *e)
{
    struct worker *w = NULL;
    int64_t epoch = 0;
    core_enter(c, now);
    enum status st = worker_of_run(c, run_id, &w, &epoch, e);
    if (st == ST_OK && c->questions.n >= 1024)
        st = err_set(e, ST_FULL, "too many questions to workers are open");
    if (st == ST_OK) {
        struct asked q = {.worker = w, .until_ns = now.now_ns + 30 * SECOND_NS};
        make_id(c, q.request);
        memcpy(request, q.request, ID_BYTES);
        vec_push(&c->questions, q);
        order_push(c, w, ORDER_READ, NULL, epoch);
        struct order_item *o = &w->orders.data[w->orders.n - 1];
        snprintf(o->run_id, sizeof o->run_id, "%s", run_id);
        memcpy(o->request, q.request, ID_BYTES);
        o->body = json_deep_copy(question);
    }
    core_leave(c);
    return st;
}

bool core_answer(struct core *c, const char *request, int *status, json_t **body)
{
    bool found = false;
    core_enter_read(c);
    for (size_t i = 0; i < c->questions.n; i++) {
        struct asked *q = &c->questions.data[i];
        if (!str_eq(q->request, request) || !q->answered)
            continue;
        *status = q->status;
        *body = q->body ? q->body : json_object();
        if (!q->body && q->status >= 400)
            json_put_str(*body, "detail", "the worker did not answer");
        c->questions.data[i] = c->questions.data[--c->questions.n];
        found = true;
        break;
    }
    core_leave(c);
    return found;
}

json_t *core_caches(struct core *c)
{
    json_t *out = json_array();
    core_enter_read(c);
    for (size_t i = 0; i < c->workers.n; i++) {
        struct worker *w = c->workers.data[i];
        if (!w->connected || !w->caches || json_is_null(w->caches))
            continue;
        json_t *one = json_object();
        json_put_str(one, "worker", w->name);
        json_put(one, "caches", json_deep_copy(w->caches));
        json_array_append_new(out, one);
    }
    core_leave(c);
    return out;
}

enum status
core_evict(struct core *c, const char *tab, const json_t *what, struct instant now, struct err *e)
{
    enum status st = ST_OK;
    core_enter(c, now);
    struct worker *w = worker_by_name(c, "local");
    if (!w || !w->connected) {
        st = err_set(e, ST_BUSY, "this server's own worker is not there");
    } else {
        json_t *body = json_is_object(what) ? json_copy((json_t *)(uintptr_t)what) : json_object();
        if (json_is_string(what))
            json_put_str(body, "what", json_string_value(what));
        json_put_str(body, "tab", tab);
        order_push(c, w, ORDER_EVICT, NULL, 0);
        w->orders.data[w->orders.n - 1].body = body;
    }
    core_leave(c);
    return st;
}
