/* route_graph_run.c - saved graphs called as functions: POST /api/graph/run/{name}.
 *
 * A call is a run of the queue that the request waits for. Every answer has the same nine keys,
 * whatever went wrong, but for what the door refuses before (host, token, size). A client that goes
 * away leaves the run to itself.
 */
#include "base/env.h"
#include "base/mem.h"
#include "server/core.h"
#include "server/function.h"
#include "server/routes.h"
#include "server/secret.h"
#include "server/server.h"
#include "server/store.h"

#include <stdio.h>
#include <string.h>

#define SECOND_NS ((int64_t)1000000000)

enum { GRAPH_BYTES_MAX = 64 << 20, TIMEOUT_S = 300, TIMEOUT_MAX_S = 3600 };

/* What a request remembers while it waits. */
struct call {
    char run_id[33], device[32];
    int64_t started_ns, until_ns;
    bool submitted;
};

static struct instant instant_now(void)
{
    return (struct instant){clock_ns(), clock_wall_us()};
}

/* ---- the envelope ---- */

static void put_text_or_null(json_t *o, const char *key, const char *text)
{
    json_put_str(o, key, text && *text ? text : NULL);
}

static json_t *envelope(
    const struct call *c, const char *graph, const char *status, json_t *outputs, json_t *error)
{
    json_t *o = json_object(), *timing = json_null();
    if (c->submitted) {
        timing = json_object();
        json_put_f64(timing, "total_s", (double)(clock_ns() - c->started_ns) / 1e9);
    }
    json_put_str(o, "status", status);
    json_put_str(o, "run_id", c->run_id);
    json_put_str(o, "graph", graph);
    json_put(o, "app", json_null());
    json_put(o, "version", json_null());
    put_text_or_null(o, "device", c->device);
    json_put(o, "outputs", outputs ? outputs : json_null());
    json_put(o, "error", error ? error : json_null());
    json_put(o, "timing", timing);
    return o;
}

static void fail_at(
    const struct http_request *q, struct http_reply *r, enum function_fault fault,
    const char *message, const char *node, json_t *details)
{
    json_t *error = json_object();
    json_put_str(error, "code", function_fault_code(fault));
    json_put_str(error, "message", message);
    put_text_or_null(error, "node_id", node);
    json_put(error, "details", details ? details : json_null());
    http_json(r, function_fault_http(fault), envelope(*q->keep, q->param[0], "error", NULL, error));
}

static void
fail(const struct http_request *q, struct http_reply *r, const struct function_refusal *why)
{
    fail_at(q, r, why->fault, why->message, NULL, why->details);
}

/* ---- the saved graph ---- */

/* Names are taken as they are: one that its file would not have is no graph's. */
static bool name_is_plain(const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)name[i];
        bool plain = c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                     (c >= 'A' && c <= 'Z') || c == '-' || c == '_';
        if (!plain)
            return false;
    }
    return n > 0 && n <= 200;
}

static bool load(
    struct server *s, const char *name, json_t **graph, struct function_refusal *why, struct err *e)
{
    char path[1400];
    (void)snprintf(path, sizeof path, "%s/%s.json", s->config->graphs_dir, name);
    if (!name_is_plain(name) || !file_exists(path)) {
        *why = (struct function_refusal){.fault = FAULT_NOT_FOUND};
        (void)snprintf(why->message, sizeof why->message, "there is no graph \"%.128s\"", name);
        return false;
    }
    if (json_read_file(path, GRAPH_BYTES_MAX, graph, e) == ST_OK && json_is_object(*graph))
        return true;
    json_decref(*graph);
    *graph = NULL;
    *why = (struct function_refusal){.fault = FAULT_UNREADABLE};
    (void)snprintf(
        why->message, sizeof why->message, "the file of graph \"%.128s\" is damaged", name);
    return false;
}

void route_graph_contract(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct function_refusal why;
    json_t *graph = NULL;
    struct err e;
    if (!load(s, q->param[0], &graph, &why, &e)) {
        http_error(r, function_fault_http(why.fault), "%s", why.message);
        return;
    }
    http_json(r, 200, function_contract(graph, q->param[0]));
    json_decref(graph);
}

/* ---- the call ---- */

/* The body, which may be absent; false: not the form of one. */
static bool read_body(
    const struct http_request *q, json_t **body, int64_t *timeout_s, struct function_refusal *why)
{
    struct err e;
    const char *bad = NULL;
    *body = NULL;
    if (q->body_bytes == 0)
        *body = json_object();
    else if (json_parse(q->body, q->body_bytes, "the body", body, &e) != ST_OK)
        bad = e.text;
    const json_t *timeout = json_object_get(*body, "timeout_s");
    const json_t *inputs = json_object_get(*body, "inputs");
    const json_t *record = json_object_get(*body, "record_outputs");
    *timeout_s = json_get_i64(*body, "timeout_s", TIMEOUT_S);
    if (!bad && !json_is_object(*body))
        bad = "the body is not an object";
    if (!bad && inputs && !json_is_object(inputs))
        bad = "inputs: an object";
    if (!bad && timeout &&
        (!json_is_integer(timeout) || *timeout_s < 1 || *timeout_s > TIMEOUT_MAX_S))
        bad = "timeout_s: a whole number from 1 to 3600";
    if (!bad && record && !json_is_boolean(record))
        bad = "record_outputs: true or false";
    if (!bad)
        return true;
    *why = (struct function_refusal){.fault = FAULT_INPUT, .details = json_array()};
    (void)snprintf(why->message, sizeof why->message, "%.250s", bad);
    (void)json_array_append_new(why->details, json_string(bad));
    json_decref(*body);
    *body = NULL;
    return false;
}

static json_t *options_of(const json_t *body, int64_t timeout_s)
{
    json_t *o = json_object();
    const char *device = json_get_str(body, "device", NULL);
    if (device)
        json_put_str(o, "device", device);
    if (json_get_bool(body, "record_outputs", false))
        json_put_bool(o, "record_outputs", true);
    json_put_i64(o, "timeout_s", timeout_s);
    return o;
}

static bool submit(
    struct server *s, const struct http_request *q, const json_t *graph, const json_t *body,
    int64_t timeout_s, struct function_refusal *why)
{
    struct call *c = *q->keep;
    json_t *options = options_of(body, timeout_s), *reply = NULL;
    struct core_submission submission = {
        .graph = graph, .options = options, .name = NULL, .variant = -1, .repetition = -1};
    struct err e;
    enum status st = core_submit(s->core, &q->actor, &submission, instant_now(), &reply, &e);
    json_decref(options);
    if (st != ST_OK) {
        bool ours = st == ST_FULL || st == ST_BUSY || st == ST_IO;
        *why = (struct function_refusal){.fault = ours ? FAULT_BUSY : FAULT_INPUT};
        (void)snprintf(why->message, sizeof why->message, "%.250s", e.text);
        return false;
    }
    (void)snprintf(c->run_id, sizeof c->run_id, "%s", json_get_str(reply, "run_id", ""));
    c->submitted = true;
    c->until_ns = c->started_ns + timeout_s * SECOND_NS;
    json_decref(reply);
    return true;
}

/* Everything up to the run; false with the refusal. */
static bool begin(struct server *s, const struct http_request *q, struct function_refusal *why)
{
    json_t *body = NULL, *graph = NULL, *contract = NULL;
    int64_t timeout_s;
    struct err e;
    bool ok = load(s, q->param[0], &graph, why, &e) && read_body(q, &body, &timeout_s, why);
    if (ok) {
        contract = function_contract(graph, q->param[0]);
        json_t *none = json_object(), *inputs = json_object_get(body, "inputs");
        ok = function_check(graph, contract, why) &&
             function_bind(graph, contract, inputs ? inputs : none, why) &&
             submit(s, q, graph, body, timeout_s, why);
        json_decref(none);
    }
    json_decref(body);
    json_decref(graph);
    json_decref(contract);
    return ok;
}

/* ---- its end ---- */

static void note_device(struct call *c, const json_t *row)
{
    const json_t *devices = json_object_get(row, "devices");
    const char *device = json_is_string(devices) ? json_string_value(devices)
                                                 : json_string_value(json_array_get(devices, 0));
    if (!device || !*device)
        device = json_get_str(row, "queue_key", "cpu");
    const char *slash = strrchr(device, '/');
    (void)snprintf(c->device, sizeof c->device, "%s", slash ? slash + 1 : device);
}

static void answer_failed(const struct http_request *q, struct http_reply *r, const json_t *row)
{
    const json_t *detail = json_object_get(row, "error_detail");
    bool late = str_eq(json_get_str(row, "cause", ""), "timed_out");
    const char *text = json_get_str(row, "error", "");
    fail_at(
        q, r, late ? FAULT_TIMEOUT : FAULT_EXECUTION,
        *text ? text : json_get_str(row, "status", "the run did not succeed"),
        json_get_str(detail, "node_id", NULL), NULL);
}

static void answer_outputs(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct call *c = *q->keep;
    struct arena memory;
    struct store_run run;
    struct function_refusal why = {0};
    json_t *graph = NULL, *result = NULL, *outputs = NULL;
    struct err e;
    arena_init(&memory);
    enum status st = store_run_get(s->store, c->run_id, &memory, &run, &e);
    const char *text = st == ST_OK && run.result ? run.result : "";
    if (st == ST_OK)
        st = core_graph(s->core, c->run_id, &graph, &e);
    if (st == ST_OK && *text)
        st = json_parse(text, strlen(text), "the result", &result, &e);
    if (st != ST_OK)
        fail_at(q, r, FAULT_NOT_PRODUCED, e.text, NULL, NULL);
    else if (!function_outputs(graph, result, &outputs, &why))
        fail(q, r, &why);
    else
        http_json(r, 200, envelope(c, q->param[0], "ok", outputs, NULL));
    json_decref(graph);
    json_decref(result);
    arena_release(&memory);
}

/* True once the request is answered. */
static bool finish(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct call *c = *q->keep;
    json_t *row = NULL, *reply = NULL;
    struct err e;
    if (core_run(s->core, c->run_id, &row, &e) != ST_OK) {
        fail_at(q, r, FAULT_EXECUTION, e.text, NULL, NULL);
        return true;
    }
    const char *status = json_get_str(row, "status", "");
    bool ended = !str_eq(status, "queued") && !str_eq(status, "running");
    bool late = clock_ns() >= c->until_ns;
    note_device(c, row);
    if (ended && str_eq(status, "succeeded")) {
        answer_outputs(s, q, r);
    } else if (ended) {
        answer_failed(q, r, row);
    } else if (late) {
        if (core_cancel(s->core, c->run_id, instant_now(), &reply, &e) == ST_OK)
            json_decref(reply);
        fail_at(q, r, FAULT_TIMEOUT, "timeout_s is over; the run is being stopped", NULL, NULL);
    }
    json_decref(row);
    return ended || late;
}

void route_graph_run(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct call *c = *q->keep;
    struct function_refusal why = {0};
    struct err e;
    if (!c) {
        c = *q->keep = mem_alloc(sizeof *c);
        c->started_ns = clock_ns();
        if (secret_id(c->run_id, &e) != ST_OK) {
            http_fail(r, &e);
            return;
        }
        if (!begin(s, q, &why)) {
            fail(q, r, &why);
            return;
        }
    }
    if (!finish(s, q, r))
        http_wait(r, http_topic("run", c->run_id), c->until_ns);
}
