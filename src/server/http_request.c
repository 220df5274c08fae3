/* http_request.c - a request on its way: target, guard, body, route, waits. No sockets here. */
#include "server/http_int.h"

#include "base/env.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* ---- what routes ask of a request ---- */

const char *http_query(const struct http_request *q, const char *name)
{
    const struct exchange *x = q->inside;
    for (size_t i = 0; x && i < x->query_n; i++)
        if (str_eq(x->query[i].name, name))
            return x->query[i].value;
    return NULL;
}

const char *http_query_at(const struct http_request *q, const char *name, size_t at)
{
    const struct exchange *x = q->inside;
    for (size_t i = 0; x && i < x->query_n; i++)
        if (str_eq(x->query[i].name, name) && at-- == 0)
            return x->query[i].value;
    return NULL;
}

const char *http_header(const struct http_request *q, const char *name)
{
    const struct exchange *x = q->inside;
    return x ? x->head.get(x->head.ctx, name) : NULL;
}

bool http_query_i64(
    const struct http_request *q, const char *name, int64_t fallback, int64_t min, int64_t max,
    int64_t *out, struct http_reply *r)
{
    const char *text = http_query(q, name);
    *out = fallback;
    if (!text)
        return true;
    if (str_to_i64(text, out) && *out >= min && *out <= max)
        return true;
    http_error(
        r, 422, "\"%s\" must be a whole number from %lld to %lld", name, (long long)min,
        (long long)max);
    return false;
}

/* ---- the target ---- */

/* Splits "a=1&b=2" into x->query; false for more than fit or a bad percent code. */
static bool query_split(struct exchange *x, const char *text)
{
    size_t cap = 2 * strlen(text) + 2;
    char *to = x->query_text = mem_alloc(cap);
    while (*text) {
        size_t n = strcspn(text, "&"), name = strcspn(text, "=&");
        const char *value = text + name + (name < n);
        if (n > 0) {
            if (x->query_n == QUERY_MAX || !percent_decode(text, name, true, to, cap))
                return false;
            x->query[x->query_n].name = to;
            size_t used = strlen(to) + 1;
            to += used, cap -= used;
            if (!percent_decode(value, (size_t)(text + n - value), true, to, cap))
                return false;
            x->query[x->query_n++].value = to;
            used = strlen(to) + 1;
            to += used, cap -= used;
        }
        text += n + (text[n] == '&');
    }
    return true;
}

/* Splits the target into path and query. */
static bool target_split(struct exchange *x)
{
    size_t n = strcspn(x->target, "?");
    bool star = x->is_options && str_eq(x->target, "*");
    if ((x->target[0] != '/' && !star) || n >= sizeof x->path)
        return false;
    memcpy(x->path, x->target, n);
    x->path[n] = '\0';
    return x->target[n] == '\0' || query_split(x, x->target + n + 1);
}

void exchange_init(struct exchange *x, struct http *h, const char *method, const char *target)
{
    memset(x, 0, sizeof *x);
    x->h = h;
    x->spool.fd = -1;
    x->began_ns = clock_ns();
    (void)snprintf(x->method_text, sizeof x->method_text, "%s", method);
    x->target = mem_strdup(target);
    x->q.method = x->method_text;
    x->q.path = x->path;
    x->q.keep = &x->keep;
    x->q.inside = x;
}

void exchange_release(struct exchange *x)
{
    waits_remove(&x->h->waits, &x->waiter);
    http_reply_release(&x->r);
    body_release(x);
    json_decref(x->json);
    mem_free(x->keep);
    mem_free(x->target);
    mem_free(x->query_text);
}

void exchange_refuse(struct exchange *x, int status, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    if (x->replied)
        return;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    http_error(&x->r, status, "%s", text);
    x->replied = true;
}

/* ---- the head ---- */

static void add_allow(struct exchange *x)
{
    char list[64] = "";
    for (int m = 0; m < METHOD_COUNT; m++)
        if (x->match.methods & (1U << m)) {
            size_t n = strlen(list);
            (void)snprintf(
                list + n, sizeof list - n, "%s%s%s", n ? ", " : "", method_name(m),
                m == METHOD_GET ? ", HEAD" : "");
        }
    (void)http_add_header(&x->r, "Allow", list);
}

/* OPTIONS: what a page of another origin asks before it writes. */
static void answer_options(struct exchange *x)
{
    http_text(&x->r, 204, "text/plain", NULL, 0);
    add_allow(x);
    x->replied = true;
}

static bool is_api(const char *path)
{
    return str_starts(path, "/api/") || str_eq(path, "/api") || str_starts(path, "/ws/");
}

/* A request that no row is about. */
static void answer_without_route(struct exchange *x, bool method_known)
{
    if (x->match.methods) {
        exchange_refuse(x, 405, "%s is not what %s takes", x->method_text, x->path);
        add_allow(x);
    } else if (is_api(x->path)) {
        exchange_refuse(x, 404, "Not Found");
    } else if (method_known && x->method == METHOD_GET) {
        page_reply(x->h->server, x->path, &x->r);
        x->replied = true;
    } else {
        x->match.methods = 1U << METHOD_GET;
        exchange_refuse(x, 405, "%s is not what %s takes", x->method_text, x->path);
        add_allow(x);
    }
}

/* No length, or one that all readers read in the same way. */
static bool framing_is_plain(const struct head *head)
{
    size_t lengths = head->count(head->ctx, "Content-Length");
    size_t codings = head->count(head->ctx, "Transfer-Encoding");
    const char *coding = head->get(head->ctx, "Transfer-Encoding");
    const char *length = head->get(head->ctx, "Content-Length");
    return lengths + codings <= 1 && (!coding || strcasecmp(coding, "chunked") == 0) &&
           (!length || (*length && strspn(length, "0123456789") == strlen(length))) &&
           head->plain(head->ctx);
}

static void exchange_route(struct exchange *x)
{
    bool known = method_find(x->method_text, &x->method);
    x->is_head = str_eq(x->method_text, "HEAD");
    x->is_options = str_eq(x->method_text, "OPTIONS");
    bool target_ok = target_split(x);
    if (!known)
        x->method = METHOD_COUNT;
    if (target_ok && !str_eq(x->path, "*"))
        target_ok =
            route_find(x->h->config.routes, x->h->config.routes_n, x->path, x->method, &x->match);
    x->route = target_ok ? x->match.route : NULL;
    x->unclear = !framing_is_plain(&x->head);
    guard_check(x);
    if (x->replied)
        return;
    if (x->unclear)
        exchange_refuse(x, 400, "the request's length is not clear");
    else if (!target_ok)
        exchange_refuse(
            x, 400,
            "the request's target cannot be read: a path has at most 2 KiB, a query 32 parameters");
    else if (x->is_options)
        answer_options(x);
    else if (!x->route)
        answer_without_route(x, known);
}

void exchange_begin(struct exchange *x)
{
    ASSERT(!x->begun);
    x->begun = true;
    exchange_route(x);
    for (size_t i = 0; i < ROUTE_PARAMS; i++)
        x->q.param[i] = x->match.param[i];
    body_begin(x);
}

void exchange_body(struct exchange *x, const char *data, size_t n)
{
    x->arrived += (int64_t)n;
    if (!x->replied)
        body_take(x, data, n);
}

/* ---- the route ---- */

static void call_route(struct exchange *x)
{
    x->q.woken = x->waiter.woken;
    x->q.expired = x->waiter.expired;
    x->r.waits = false;
    x->since = waits_now(&x->h->waits);
    if (!http_enter(x->h)) {
        exchange_refuse(x, 503, "the server stops");
        return;
    }
    x->route->handler(x->h->server, &x->q, &x->r);
    http_leave(x->h);
    x->replied = !x->r.waits;
    if (x->r.waits) {
        x->waiter.link[0].topic = x->r.topic;
        x->waiter.until_ns = x->r.wait_until_ns;
    }
}

void exchange_end(struct exchange *x)
{
    if (!x->ended && !x->replied)
        body_end(x);
    x->ended = true;
    if (!x->replied)
        call_route(x);
    if (x->replied && x->r.status == 0)
        http_error(&x->r, 500, "the route did not answer");
}

void exchange_headers(const struct exchange *x, struct str *out)
{
    str_add(
        out, "X-Content-Type-Options: nosniff\r\nReferrer-Policy: same-origin\r\n"
             "X-Frame-Options: DENY\r\n");
    if (!strstr(x->r.headers, "Cache-Control:"))
        str_add(out, "Cache-Control: no-store\r\n");
    if (x->origin[0]) {
        str_printf(out, "Access-Control-Allow-Origin: %s\r\nVary: Origin\r\n", x->origin);
        if (x->is_options)
            str_add(
                out, "Access-Control-Allow-Methods: GET, POST, PUT, PATCH, DELETE\r\n"
                     "Access-Control-Allow-Headers: Content-Type, X-CodefyUI-Token, X-Snug-Token, "
                     "Authorization, Last-Event-ID\r\nAccess-Control-Max-Age: 600\r\n");
    }
    str_add(out, x->r.headers);
}

/* ---- the door itself ---- */

bool http_enter(struct http *h)
{
    atomic_fetch_add(&h->busy, 1);
    if (!atomic_load(&h->closing))
        return true;
    http_leave(h);
    return false;
}

void http_leave(struct http *h)
{
    atomic_fetch_sub(&h->busy, 1);
}

void http_init(struct http *h, struct server *s, const struct http_config *c)
{
    h->server = s;
    h->config = *c;
    arena_init(&h->arena);
    const char **texts[] = {&h->config.host,  &h->config.certificate, &h->config.private_key,
                            &h->config.spool, &h->config.extra_hosts, &h->config.origins};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (*texts[i])
            *texts[i] = arena_strdup(&h->arena, *texts[i]);
    if (!h->config.host)
        h->config.host = "127.0.0.1";
    h->config.head_s = c->head_s ? c->head_s : HEAD_S;
    h->config.idle_s = c->idle_s ? c->idle_s : IDLE_S;
    h->config.body_s = c->body_s ? c->body_s : BODY_GRACE_S;
    h->config.comment_s = c->comment_s ? c->comment_s : COMMENT_EVERY_S;
    allowed_init(&h->allowed, &h->config);
    h->port = c->port;
}

void http_release(struct http *h)
{
    allowed_release(&h->allowed);
    waits_release(&h->waits);
    arena_release(&h->arena);
    mem_free(h);
}

int http_port(const struct http *h)
{
    return h->port;
}
