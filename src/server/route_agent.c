/* route_agent.c - /api/agent: what agents say and ask (wire/messages.def). */
#include "base/env.h"
#include "base/mem.h"
#include "server/auth.h"
#include "server/core.h"
#include "server/routes.h"
#include "server/server.h"

#include <string.h>

enum { ORDERS_WAIT_MAX_S = 60 };

static struct instant instant_now(void)
{
    return (struct instant){clock_ns(), clock_wall_us()};
}

/* An agent with a join token becomes a worker, whose credential it gets with its welcome. */
static enum status enroll(
    struct server *s, const struct http_request *q, struct actor *who, char token[SECRET_BYTES],
    struct err *e)
{
    char pool[65], worker_id[33];
    const char *name = *q->actor.name ? q->actor.name : json_get_str(q->json, "name", "");
    TRY(core_agent_check(s->core, name, q->json, instant_now(), e));
    TRY(auth_join_use(s->auth, q->actor.id, clock_wall_us(), pool, e));
    TRY(core_worker_add(s->core, name, pool, instant_now(), worker_id, e));
    TRY(auth_worker_mint(s->auth, worker_id, name, token, e));
    *who = (struct actor){.role = ROLE_WORKER};
    (void)snprintf(who->name, sizeof who->name, "%s", name);
    (void)snprintf(who->id, sizeof who->id, "%s", worker_id);
    if (*pool)
        json_put_str(q->json, "pool", pool);
    json_put_str(q->json, "name", name);
    return ST_OK;
}

void route_agent_connect(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    struct actor who = q->actor;
    char token[SECRET_BYTES] = "";
    json_t *welcome = NULL;
    enum status st = who.role == ROLE_ENROLL ? enroll(s, q, &who, token, &e) : ST_OK;
    if (st == ST_OK)
        st = core_agent_connect(s->core, &who, q->json, instant_now(), &welcome, &e);
    if (st == ST_OK) {
        if (*token)
            json_put_str(welcome, "credential", token);
        http_json(r, 200, welcome);
    } else {
        http_fail(r, &e);
    }
    secret_wipe(token, sizeof token);
}

void route_agent_orders(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    const char *session = http_query(q, "session");
    int64_t after, wait;
    json_t *orders;
    if (!http_query_i64(q, "after", 0, 0, INT64_MAX, &after, r) ||
        !http_query_i64(q, "wait", 0, 0, ORDERS_WAIT_MAX_S, &wait, r))
        return;
    if (!session) {
        http_error(r, 422, "session is missing");
        return;
    }
    if (core_agent_orders(s->core, &q->actor, session, after, instant_now(), &orders, &e) !=
        ST_OK) {
        http_fail(r, &e);
        return;
    }
    if (!json_array_size(json_object_get(orders, "orders")) && wait && !q->expired) {
        if (!*q->keep) {
            int64_t *until = mem_alloc(sizeof *until);
            *until = clock_ns() + wait * 1000000000;
            *q->keep = until;
        }
        json_decref(orders);
        http_wait(r, http_topic("orders", session), *(int64_t *)*q->keep);
        return;
    }
    http_json(r, 200, orders);
}

void route_agent_report(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    json_t *reply = NULL;
    if (core_agent_report(s->core, &q->actor, q->json, instant_now(), &reply, &e) == ST_OK)
        http_json(r, 200, reply);
    else
        http_fail(r, &e);
}

void route_agent_leave(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    const char *session = json_get_str(q->json, "session", "");
    if (core_agent_leave(s->core, &q->actor, session, instant_now(), &e) == ST_OK)
        http_json(r, 200, json_object());
    else
        http_fail(r, &e);
}
