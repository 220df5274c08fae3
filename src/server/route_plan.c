/* route_plan.c - a graph's memory plan, and its estimates, from a child (asker.h). */
#include "server/asker.h"
#include "server/routes.h"
#include "server/server.h"

#include "base/env.h"
#include "base/mem.h"
#include "graph/graph.h"

#include <math.h>
#include <string.h>

/* The texts of a list, or nothing; false: it is something else. */
static bool is_texts(const json_t *list)
{
    size_t i;
    json_t *item;
    if (!list || json_is_null(list))
        return true;
    json_array_foreach(list, i, item) if (!json_is_string(item)) return false;
    return json_is_array(list) && json_array_size(list) <= ASKER_SETS_MAX;
}

/* {graph, device?, memory_gib?, set?}, or the graph itself. */
static bool question_read(const json_t *body, struct asker_question *x, struct http_reply *r)
{
    const json_t *graph = json_object_get(body, "graph"), *device = NULL, *memory = NULL;
    x->graph = graph ? graph : body;
    if (graph) {
        device = json_object_get(body, "device");
        memory = json_object_get(body, "memory_gib");
        x->sets = json_object_get(body, "set");
    }
    if (!json_is_array(json_object_get(x->graph, "nodes"))) {
        http_error(r, 422, "a \"graph\" with \"nodes\" is needed");
        return false;
    }
    x->device = json_string_value(device);
    x->memory_gib = json_is_number(memory) ? json_number_value(memory) : 0;
    bool device_fine = !device || json_is_null(device) ||
                       (x->device && graph_device_is_known(x->device) && strlen(x->device) < 32);
    bool memory_fine = !memory || json_is_null(memory) ||
                       (json_is_number(memory) && x->memory_gib > 0 && x->memory_gib < 1e6);
    if (device_fine && memory_fine && is_texts(x->sets))
        return true;
    http_error(
        r, 422,
        "\"device\" is a device, \"memory_gib\" a number above 0, \"set\" a list of at most %d "
        "texts \"NODE.PARAM=VALUE\"",
        ASKER_SETS_MAX);
    return false;
}

/* Called again when the answer is there: q->keep is the ticket. */
static void
ask(struct server *s, const struct http_request *q, struct http_reply *r, const char *command)
{
    struct asker_question x = {.command = command};
    struct err e = {0};
    char ticket[33];
    int status;
    json_t *body = NULL;
    if (!s->asker) {
        http_error(r, 503, "plans and estimates cannot be made here");
        return;
    }
    if (!*q->keep) {
        if (!question_read(q->json, &x, r))
            return;
        if (asker_ask(s->asker, &x, ticket, &e) != ST_OK) {
            http_fail(r, &e);
            return;
        }
        *q->keep = mem_strdup(ticket);
    }
    const char *mine = *q->keep;
    if (asker_take(s->asker, mine, &status, &body)) {
        http_json(r, status, body);
        return;
    }
    if (q->expired) {
        http_error(r, 503, "plans and estimates take long now; try again later");
        return;
    }
    int64_t limit_s = 3 * s->config->plan_timeout_s + 10;
    http_wait(r, http_topic("asked", mine), clock_ns() + limit_s * 1000000000);
}

void route_graph_plan(struct server *s, const struct http_request *q, struct http_reply *r)
{
    ask(s, q, r, "plan");
}

void route_graph_estimate(struct server *s, const struct http_request *q, struct http_reply *r)
{
    ask(s, q, r, "estimate");
}
