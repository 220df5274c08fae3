/* route_studies.c - /api/studies: make, read, pause, resume, cancel, follow (study.h). */
#include "server/routes.h"
#include "server/server.h"
#include "server/server_int.h"
#include "server/study.h"

#include "base/env.h"
#include "base/mem.h"

#include <stdio.h>

/* `doc` by its address: the call that fills it in may be an argument too. */
static void answer(struct http_reply *r, enum status st, int ok, json_t **doc, const struct err *e)
{
    if (st == ST_OK)
        http_json(r, ok, *doc);
    else
        http_fail(r, e);
}

void route_studies_post(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e;
    json_t *doc = NULL;
    enum status st = study_create(s->studies, &q->actor, q->json, instant_of_now(), &doc, &e);
    answer(r, st, 201, &doc, &e);
}

void route_studies_list(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e;
    json_t *doc = NULL;
    int64_t limit, offset;
    if (!http_query_i64(q, "limit", 50, 1, 500, &limit, r) ||
        !http_query_i64(q, "offset", 0, 0, INT64_MAX, &offset, r))
        return;
    answer(r, study_list(s->studies, limit, offset, &doc, &e), 200, &doc, &e);
}

void route_study_get(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e;
    json_t *doc = NULL;
    struct str text;
    const char *format = http_query(q, "format");
    if (!format || str_eq(format, "json")) {
        answer(r, study_read(s->studies, q->param[0], &doc, &e), 200, &doc, &e);
        return;
    }
    if (!str_eq(format, "csv")) {
        http_error(r, 422, "format must be json or csv");
        return;
    }
    str_init(&text);
    if (study_csv(s->studies, q->param[0], &text, &e) == ST_OK) {
        char value[96];
        size_t n = text.n;
        (void)snprintf(
            value, sizeof value, "attachment; filename=\"study-%.32s.csv\"", q->param[0]);
        (void)http_add_header(r, "Content-Disposition", value);
        http_text(r, 200, "text/csv; charset=utf-8", str_take(&text), n);
    } else {
        http_fail(r, &e);
    }
    str_release(&text);
}

void route_study_pause(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e;
    json_t *doc = NULL;
    answer(r, study_pause(s->studies, q->param[0], instant_of_now(), &doc, &e), 200, &doc, &e);
}

void route_study_resume(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e;
    json_t *doc = NULL;
    enum status st = study_resume(s->studies, q->param[0], q->json, instant_of_now(), &doc, &e);
    answer(r, st, 200, &doc, &e);
}

void route_study_cancel(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e;
    json_t *doc = NULL;
    answer(r, study_cancel(s->studies, q->param[0], instant_of_now(), &doc, &e), 200, &doc, &e);
}

/* Events after the cursor; with ?wait= the answer waits for the next one while the study goes on.
 */
void route_study_events(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e;
    json_t *doc = NULL;
    int64_t cursor, limit, wait, *until = *q->keep;
    if (!http_query_i64(q, "cursor", 0, 0, INT64_MAX, &cursor, r) ||
        !http_query_i64(q, "limit", 500, 1, 2000, &limit, r) ||
        !http_query_i64(q, "wait", 0, 0, 60, &wait, r))
        return;
    enum status st = study_events(s->studies, q->param[0], cursor, limit, &doc, &e);
    bool quiet = st == ST_OK && json_array_size(json_object_get(doc, "events")) == 0 &&
                 json_get_bool(doc, "active", false);
    if (!quiet || !wait || q->expired) {
        answer(r, st, 200, &doc, &e);
        return;
    }
    json_decref(doc);
    if (!until) {
        *q->keep = until = mem_alloc(sizeof *until);
        *until = clock_ns() + wait * 1000000000;
    }
    http_wait(r, http_topic("study", q->param[0]), *until);
}
