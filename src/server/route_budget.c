/* route_budget.c - POST /api/budget: what a run of a graph would be given on a shared card, and
 * from where: the peak that was measured, else the static estimate, which a child makes (B2, B4,
 * E2). */
#include "base/env.h"
#include "base/mem.h"
#include "server/asker.h"
#include "server/core.h"
#include "server/routes.h"
#include "server/server.h"

#include <string.h>

static bool
read_question(const struct http_request *q, const json_t **graph, int *cards, struct http_reply *r)
{
    const json_t *n = json_object_get(q->json, "cards");
    *graph = json_object_get(q->json, "graph");
    *cards = n && !json_is_null(n) ? (int)json_integer_value(n) : 1;
    if (!json_is_object(*graph)) {
        http_error(r, 422, "a \"graph\" is needed");
        return false;
    }
    if ((n && !json_is_null(n) && !json_is_integer(n)) || *cards < 1 || *cards > 16) {
        http_error(r, 422, "\"cards\" must be a whole number from 1 to 16");
        return false;
    }
    return true;
}

/* What memory knows comes first: where a peak was measured nothing is built. */
static bool
answer_hint(struct server *s, const json_t *graph, int cards, json_t **hint, struct http_reply *r)
{
    struct err e = {0};
    if (core_budget_hint(s->core, graph, cards, hint, &e) != ST_OK) {
        http_fail(r, &e);
        return true;
    }
    bool measured = !json_is_null(json_object_get(*hint, "measured"));
    if (!measured && s->asker)
        return false;
    json_put(*hint, "estimate", json_null());
    http_json(r, 200, *hint);
    return true;
}

static void answer_estimate(json_t *hint, int status, json_t *body, struct http_reply *r)
{
    if (status == 200) {
        json_put(hint, "estimate", body);
    } else {
        const json_t *why = json_object_get(body, "detail");
        json_put(hint, "estimate", json_null());
        json_put_str(hint, "estimate_error", why ? json_string_value(why) : "there is none");
        json_decref(body);
    }
    http_json(r, 200, hint);
}

void route_budget(struct server *s, const struct http_request *q, struct http_reply *r)
{
    const json_t *graph;
    json_t *hint = NULL, *body = NULL;
    struct err e = {0};
    int cards, status = 0;
    if (!read_question(q, &graph, &cards, r) || answer_hint(s, graph, cards, &hint, r))
        return;
    if (!*q->keep) {
        struct asker_question x = {
            .command = "estimate", .graph = graph, .device = NULL, .memory_gib = 0};
        char ticket[33];
        if (asker_ask(s->asker, &x, ticket, &e) != ST_OK) {
            json_decref(hint);
            http_fail(r, &e);
            return;
        }
        *q->keep = mem_strdup(ticket);
    }
    if (asker_take(s->asker, *q->keep, &status, &body)) {
        answer_estimate(hint, status, body, r);
        return;
    }
    if (q->expired) {
        json_put(hint, "estimate", json_null());
        json_put_str(hint, "estimate_error", "it takes too long");
        http_json(r, 200, hint);
        return;
    }
    json_decref(hint);
    int64_t limit_s = s->config->plan_timeout_s + 10;
    http_wait(r, http_topic("asked", *q->keep), clock_ns() + limit_s * 1000000000);
}
