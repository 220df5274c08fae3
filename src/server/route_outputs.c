/* route_outputs.c - recorded outputs of runs, and kept weights: asked of the agent that has them.
 *
 * A question goes to the run's agent with its next orders and the answer comes with a report, so a
 * request waits for it.
 */
#include "base/env.h"
#include "base/mem.h"
#include "server/core.h"
#include "server/routes.h"
#include "server/ws.h"
#include "wire/wire.h"

#include <stdio.h>
#include <string.h>

#define ANSWER_NS ((int64_t)15000000000)

enum { PARTS_MAX = 1000000 }; /* elements of one answer */

/* What a request remembers while it waits. */
struct asked {
    char request[33];
    int64_t until_ns;
};

static struct instant instant_now(void)
{
    return (struct instant){clock_ns(), clock_wall_us()};
}

/* Waits on, or says that nothing came. */
static void wait_on(const struct asked *a, struct http_reply *r)
{
    if (clock_ns() >= a->until_ns)
        http_error(r, 504, "the worker that has this run did not answer in time");
    else
        http_wait(r, http_topic("answer", a->request), a->until_ns);
}

/* The editor's own name for the run stays in what it reads. */
static void put_run_id(json_t *body, const char *name)
{
    if (json_is_object(body) && json_object_get(body, "run_id"))
        json_put_str(body, "run_id", name);
}

static void answer(const struct http_request *q, struct http_reply *r, int status, json_t *body)
{
    if (status >= 400) {
        http_error(r, status, "%s", json_get_str(body, "detail", "the worker could not read this"));
        json_decref(body);
        return;
    }
    put_run_id(body, q->param[0]);
    http_json(r, 200, body ? body : json_object());
}

static void
ask(struct server *s, const struct http_request *q, struct http_reply *r, struct question *question)
{
    struct asked *a = *q->keep;
    json_t *body = NULL;
    int status = 0;
    if (!a) {
        char run_id[129];
        struct err e;
        a = *q->keep = mem_alloc(sizeof *a);
        a->until_ns = clock_ns() + ANSWER_NS;
        json_t *text = wire_write(&wire_question, question);
        enum status st = core_ask(
            s->core, ws_run_id(s->ws, q->param[0], run_id), text, instant_now(), a->request, &e);
        json_decref(text);
        if (st != ST_OK) {
            http_fail(r, &e);
            return;
        }
    }
    if (core_answer(s->core, a->request, &status, &body))
        answer(q, r, status, body);
    else
        wait_on(a, r);
}

void route_outputs_list(struct server *s, const struct http_request *q, struct http_reply *r)
{
    ask(s, q, r, &(struct question){.what = "outputs"});
}

void route_outputs_drop(struct server *s, const struct http_request *q, struct http_reply *r)
{
    ask(s, q, r, &(struct question){.what = "drop"});
}

void route_outputs_port(struct server *s, const struct http_request *q, struct http_reply *r)
{
    const char *port = q->param[2];
    struct question question = {.what = "output", .node = q->param[1], .port = port};
    int64_t max = 0;
    if (strcmp(port, "__steps_index") == 0 || strcmp(port, "__grad_index") == 0)
        question.what = "index";
    if (!http_query_i64(q, "max_elements", 0, 0, PARTS_MAX, &max, r))
        return;
    question.max_elements = max;
    question.slice = http_query(q, "slice");
    ask(s, q, r, &question);
}

void route_outputs_stats(struct server *s, const struct http_request *q, struct http_reply *r)
{
    ask(s, q, r, &(struct question){.what = "stats", .node = q->param[1], .port = q->param[2]});
}

/* ---- kept weights ---- */

/* Adds one child's modules, where it is of that tab (NULL: any). */
static int64_t add_modules(const json_t *child, const char *tab, json_t *nodes)
{
    const json_t *store = json_object_get(child, "node_state_store");
    json_t *id;
    size_t i;
    if (tab && !str_eq(json_get_str(child, "tab", ""), tab))
        return 0;
    json_array_foreach(json_object_get(store, "node_ids"), i, id) if (nodes)(void)
        json_array_append(nodes, id);
    return json_get_i64(store, "modules", 0);
}

/* Modules of one tab's child, or of all; and the ids of their nodes where the child tells them. */
static int64_t modules_of(struct server *s, const char *tab, json_t *nodes)
{
    json_t *workers = core_caches(s->core), *worker, *child;
    int64_t n = 0;
    size_t i, k;
    json_array_foreach(workers, i, worker)
        json_array_foreach(json_object_get(worker, "caches"), k, child) n +=
        add_modules(child, tab, nodes);
    json_decref(workers);
    return n;
}

/* The child drops them with its next order; the figure is what it last reported. */
void route_state_reset(struct server *s, const struct http_request *q, struct http_reply *r)
{
    const char *tab = json_get_str(q->json, "graph_id", NULL);
    json_t *nodes = json_object_get(q->json, "node_ids");
    struct eviction eviction = {.tab = tab, .what = "weights"};
    struct err e;
    if (!tab) {
        http_error(r, 422, "graph_id: a text");
        return;
    }
    if (nodes && !json_is_null(nodes) && !json_is_array(nodes)) {
        http_error(r, 422, "node_ids: a list of texts");
        return;
    }
    bool some = json_array_size(nodes) > 0;
    int64_t kept = modules_of(s, tab, NULL);
    if (some)
        eviction.nodes = nodes;
    json_t *what = wire_write(&wire_eviction, &eviction);
    enum status st = core_evict(s->core, tab, what, instant_now(), &e);
    json_decref(what);
    /* No child, no weights: that is what was asked for. */
    if (st != ST_OK && st != ST_NOT_FOUND) {
        http_fail(r, &e);
        return;
    }
    int64_t asked = some ? (int64_t)json_array_size(nodes) : kept;
    json_t *body = json_object();
    json_put_str(body, "graph_id", tab);
    json_put_str(body, "scope", some ? "nodes" : "graph");
    json_put_i64(body, "evicted", asked < kept ? asked : kept);
    http_json(r, 200, body);
}

void route_state_list(struct server *s, const struct http_request *q, struct http_reply *r)
{
    const char *tab = http_query(q, "graph_id");
    json_t *body = json_object(), *nodes = json_array();
    int64_t n = modules_of(s, tab, nodes);
    if (tab) {
        json_put_str(body, "graph_id", tab);
        json_put_i64(body, "count", n);
        json_put(body, "node_ids", json_incref(nodes));
    } else {
        json_put_i64(body, "total", n);
    }
    json_decref(nodes);
    http_json(r, 200, body);
}
