/* route_runs.c - /api/runs: submit, list, look at, cancel, delete; events by page, wait and stream.
 */
#include "base/env.h"
#include "base/mem.h"
#include "server/core.h"
#include "server/feed.h"
#include "server/routes.h"
#include "server/server.h"
#include "wire/wire.h"

#include <string.h>

enum {
    LIST_DEFAULT = 50,
    LIST_MAX = 500,
    EVENTS_DEFAULT = 500,
    EVENTS_MAX = 2000,
    WAIT_MAX_S = 60
};
#define ANSWER_NS INT64_C(35000000000)

static struct instant instant_now(void)
{
    return (struct instant){clock_ns(), clock_wall_us()};
}

/* `body` by its address: the call that fills it in may be an argument too. */
static void answer(struct http_reply *r, enum status st, json_t **body, const struct err *e)
{
    if (st == ST_OK)
        http_json(r, 200, *body);
    else
        http_fail(r, e);
}

void route_runs_post(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    struct core_submission x;
    json_t *reply = NULL;
    enum status st = core_submission_read(q->json, http_header(q, "Idempotency-Key"), &x, &e);
    if (st == ST_OK)
        st = core_submit(s->core, &q->actor, &x, instant_now(), &reply, &e);
    answer(r, st, &reply, &e);
}

void route_runs_list(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    json_t *page = NULL;
    struct core_filter f = {.owner = http_query(q, "owner"), .worker = http_query(q, "worker")};
    const char *status;
    while (f.n_statuses < 8 && (status = http_query_at(q, "status", (size_t)f.n_statuses)))
        f.statuses[f.n_statuses++] = status;
    if (!http_query_i64(q, "limit", LIST_DEFAULT, 1, LIST_MAX, &f.limit, r) ||
        !http_query_i64(q, "offset", 0, 0, INT64_MAX, &f.offset, r))
        return;
    answer(r, core_runs(s->core, &f, &page, &e), &page, &e);
}

void route_run_get(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    json_t *row = NULL;
    answer(r, core_run(s->core, q->param[0], &row, &e), &row, &e);
}

void route_run_delete(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    json_t *reply = NULL;
    answer(r, core_delete(s->core, q->param[0], &reply, &e), &reply, &e);
}

void route_run_cancel(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    json_t *reply = NULL;
    answer(r, core_cancel(s->core, q->param[0], instant_now(), &reply, &e), &reply, &e);
}

void route_run_graph(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    json_t *graph = NULL;
    answer(r, core_graph(s->core, q->param[0], &graph, &e), &graph, &e);
}

/* ---- events ---- */

static int64_t deadline(const struct http_request *q, int64_t seconds)
{
    if (!*q->keep) {
        int64_t *until = mem_alloc(sizeof *until);
        *until = clock_ns() + seconds * 1000000000;
        *q->keep = until;
    }
    return *(int64_t *)*q->keep;
}

void route_run_events(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    int64_t cursor, limit, wait;
    json_t *page;
    if (!http_query_i64(q, "cursor", 0, 0, INT64_MAX, &cursor, r) ||
        !http_query_i64(q, "limit", EVENTS_DEFAULT, 1, EVENTS_MAX, &limit, r) ||
        !http_query_i64(q, "wait", 0, 0, WAIT_MAX_S, &wait, r))
        return;
    if (core_events(s->core, q->param[0], cursor, limit, &page, &e) != ST_OK) {
        http_fail(r, &e);
        return;
    }
    bool nothing = !json_array_size(json_object_get(page, "events"));
    if (nothing && json_get_bool(page, "active", false) && wait && !q->expired) {
        json_decref(page);
        http_wait(r, http_topic("run", q->param[0]), deadline(q, wait));
        return;
    }
    http_json(r, 200, page);
}

/* A stream of one run's events, from a cursor of its own; the id of each is its cursor. */
struct follower {
    struct server *s;
    char run_id[40];
    int64_t cursor;
};

static enum http_pull follower_pull(void *ctx, struct str *out)
{
    struct follower *f = ctx;
    struct err e;
    char status[16];
    bool active;
    if (feed_next(f->s->feed, f->run_id, &f->cursor, out, status, &active, &e) != ST_OK)
        return HTTP_PULL_END; /* it was deleted */
    if (out->n)
        return HTTP_PULL_MORE;
    if (active)
        return HTTP_PULL_WAIT;
    json_t *end = json_object();
    json_put_str(end, "run_id", f->run_id);
    json_put_str(end, "status", status);
    char *line = json_text(end, false);
    http_sse(out, -1, "end", line);
    mem_free(line);
    json_decref(end);
    return HTTP_PULL_END;
}

void route_run_stream(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    char status[16];
    int64_t cursor, seen;
    if (!http_query_i64(q, "cursor", 0, 0, INT64_MAX, &cursor, r))
        return;
    const char *last = http_header(q, "Last-Event-ID"); /* a page that connects again */
    if (last && str_to_i64(last, &seen) && seen > cursor)
        cursor = seen;
    if (core_run_status(s->core, q->param[0], status, &e) != ST_OK) {
        http_fail(r, &e);
        return;
    }
    struct follower *f = mem_alloc(sizeof *f);
    f->s = s;
    f->cursor = cursor;
    (void)snprintf(f->run_id, sizeof f->run_id, "%s", q->param[0]);
    r->status = 200;
    r->type = "text/event-stream";
    r->stream = (struct http_stream){
        .pull = follower_pull,
        .release = mem_free,
        .ctx = f,
        .topic = http_topic("run", f->run_id)};
}

/* ---- metrics, artifacts, log ---- */

void route_run_metrics(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    const char *name = http_query(q, "name"), *format = http_query(q, "format");
    if (!format || str_eq(format, "json")) {
        json_t *doc = NULL;
        answer(r, core_metrics(s->core, q->param[0], name, &doc, &e), &doc, &e);
        return;
    }
    if (!str_eq(format, "csv")) {
        http_error(r, 422, "format must be json or csv");
        return;
    }
    struct str out;
    str_init(&out);
    if (core_metrics_csv(s->core, q->param[0], name, &out, &e) == ST_OK) {
        size_t n = out.n;
        http_text(r, 200, "text/csv; charset=utf-8", str_take(&out), n);
    } else {
        http_fail(r, &e);
    }
    str_release(&out);
}

void route_run_artifacts(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    json_t *doc = NULL;
    answer(r, core_artifacts(s->core, q->param[0], http_query(q, "kind"), &doc, &e), &doc, &e);
}

struct asked {
    char request[33];
    int64_t until_ns;
};

static bool ask_log(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    struct question question = {.what = "log"};
    if (!http_query_i64(q, "offset", 0, INT64_MIN, INT64_MAX, &question.offset, r) ||
        !http_query_i64(q, "bytes", 1 << 20, 1, 8 << 20, &question.bytes, r))
        return false;
    struct asked *a = mem_alloc(sizeof *a);
    a->until_ns = clock_ns() + ANSWER_NS;
    *q->keep = a;
    json_t *body = wire_write(&wire_question, &question);
    enum status st = core_ask(s->core, q->param[0], body, instant_now(), a->request, &e);
    json_decref(body);
    if (st != ST_OK)
        http_fail(r, &e);
    return st == ST_OK;
}

void route_run_log(struct server *s, const struct http_request *q, struct http_reply *r)
{
    int status = 0;
    json_t *body = NULL;
    if (!*q->keep && !ask_log(s, q, r))
        return;
    const struct asked *a = *q->keep;
    if (core_answer(s->core, a->request, &status, &body)) {
        if (status >= 400) {
            http_error(
                r, status, "%s", json_get_str(body, "detail", "the worker could not read the log"));
            json_decref(body);
        } else {
            http_json(r, 200, body);
        }
        return;
    }
    int64_t now = clock_ns(), step = now + 500000000; /* the topic is younger than the question */
    if (now >= a->until_ns)
        http_error(r, 504, "the worker that has this run did not answer in time");
    else
        http_wait(r, http_topic("answer", a->request), step < a->until_ns ? step : a->until_ns);
}
