/* route_sweeps.c - /api/sweeps: submit, compare, cancel (sweep.h). */
#include "server/routes.h"
#include "server/server.h"
#include "server/server_int.h"
#include "server/sweep.h"

#include "base/mem.h"

struct sweeps server_sweeps(struct server *s)
{
    return (struct sweeps){
        .core = s->core,
        .store = s->store,
        .limits = {
            .runs = s->config->max_sweep_runs,
            .params = s->config->max_sweep_params,
            .domain = s->config->max_sweep_domain}};
}

/* `doc` by its address: the call that fills it in may be an argument too. */
static void answer(struct http_reply *r, enum status st, int ok, json_t **doc, const struct err *e)
{
    if (st == ST_OK)
        http_json(r, ok, *doc);
    else
        http_fail(r, e);
}

void route_sweeps_post(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e;
    json_t *doc = NULL;
    struct sweeps x = server_sweeps(s);
    enum status st = sweep_create(&x, &q->actor, q->json, instant_of_now(), &doc, &e);
    if (st == ST_OK)
        server_changed(s, "sweeps");
    answer(r, st, 201, &doc, &e);
}

void route_sweeps_list(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e;
    json_t *doc = NULL;
    int64_t limit, offset;
    struct sweeps x = server_sweeps(s);
    if (!http_query_i64(q, "limit", 50, 1, 500, &limit, r) ||
        !http_query_i64(q, "offset", 0, 0, INT64_MAX, &offset, r))
        return;
    answer(r, sweep_list(&x, limit, offset, &doc, &e), 200, &doc, &e);
}

static void send_csv(struct http_reply *r, const char *id, struct str *text)
{
    char value[96];
    size_t n = text->n;
    (void)snprintf(value, sizeof value, "attachment; filename=\"sweep-%.32s.csv\"", id);
    (void)http_add_header(r, "Content-Disposition", value);
    http_text(r, 200, "text/csv; charset=utf-8", str_take(text), n);
}

void route_sweep_get(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e;
    json_t *doc = NULL;
    struct str text;
    struct sweeps x = server_sweeps(s);
    const char *format = http_query(q, "format");
    if (!format || str_eq(format, "json")) {
        answer(r, sweep_read(&x, q->param[0], instant_of_now(), &doc, &e), 200, &doc, &e);
        return;
    }
    if (!str_eq(format, "csv")) {
        http_error(r, 422, "format must be json or csv");
        return;
    }
    str_init(&text);
    if (sweep_csv(&x, q->param[0], instant_of_now(), &text, &e) == ST_OK)
        send_csv(r, q->param[0], &text);
    else
        http_fail(r, &e);
    str_release(&text);
}

void route_sweep_cancel(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e;
    json_t *doc = NULL;
    struct sweeps x = server_sweeps(s);
    enum status st = sweep_cancel(&x, q->param[0], instant_of_now(), &doc, &e);
    if (st == ST_OK)
        server_changed(s, "sweeps");
    answer(r, st, 200, &doc, &e);
}
