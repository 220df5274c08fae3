/* http_test.c - the door: refusals in order, framing, waits, streams, files, limits. */
#include "server/http_test_support.h"

#include "base/env.h"
#include "test.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* ---- routes of these tests ---- */

static void say(struct server *s, const struct http_request *q, struct http_reply *r)
{
    (void)s;
    json_t *o = json_object();
    json_put_str(o, "param", q->param[0]);
    json_put_str(o, "a", http_query(q, "a"));
    json_put_str(o, "who", q->actor.name);
    json_put_i64(o, "bytes", (int64_t)q->body_bytes);
    if (q->json)
        json_put(o, "json", json_incref(q->json));
    http_json(r, 200, o);
}

static void wait_for(struct server *s, const struct http_request *q, struct http_reply *r)
{
    (void)s;
    if (q->woken || q->expired)
        http_error(r, q->woken ? 200 : 408, "%s", q->woken ? "woken" : "expired");
    else
        http_wait(r, http_topic("test", "t"), clock_ns() + 300000000);
}

static void send_file(struct server *s, const struct http_request *q, struct http_reply *r)
{
    (void)s;
    http_file(r, http_query(q, "path"), "text/plain");
}

static void take_upload(struct server *s, const struct http_request *q, struct http_reply *r)
{
    (void)s;
    char name[256], *data = NULL;
    size_t n = 0;
    struct err e = {0};
    if (!http_file_name(q->upload.name, name, r))
        return;
    if (file_read(q->upload.path, 1 << 20, &data, &n, &e) != ST_OK) {
        http_fail(r, &e);
        return;
    }
    json_t *o = json_object();
    json_put_str(o, "name", name);
    json_put_i64(o, "bytes", q->upload.bytes);
    json_put_str(o, "first", n < 100 ? data : "");
    mem_free(data);
    http_json(r, 200, o);
}

/* A stream of numbers: one each time the topic is woken. */
struct counter {
    int64_t shown;
};
static atomic_llong counter_now, counters_open;

static enum http_pull count_pull(void *ctx, struct str *out)
{
    struct counter *c = ctx;
    char text[32];
    if (c->shown == atomic_load(&counter_now))
        return c->shown < 0 ? HTTP_PULL_END : HTTP_PULL_WAIT;
    c->shown = atomic_load(&counter_now);
    (void)snprintf(text, sizeof text, "%lld", (long long)c->shown);
    http_sse(out, c->shown, "n", text);
    return c->shown < 0 ? HTTP_PULL_END : HTTP_PULL_MORE;
}

static void count_release(void *ctx)
{
    atomic_fetch_sub(&counters_open, 1);
    mem_free(ctx);
}

static void count(struct server *s, const struct http_request *q, struct http_reply *r)
{
    (void)s, (void)q;
    r->status = 200;
    r->type = "text/event-stream";
    r->stream = (struct http_stream){
        .pull = count_pull,
        .release = count_release,
        .ctx = mem_alloc(sizeof(struct counter)),
        .topic = http_topic("test", "count")};
    atomic_fetch_add(&counters_open, 1);
}

static const struct route rows[] = {
    {METHOD_GET, "/api/open", say, ACCESS_OPEN, BODY_NONE, ""},
    {METHOD_GET, "/api/read/{id}", say, ACCESS_READ, BODY_NONE, ""},
    {METHOD_GET, "/api/read/fixed", say, ACCESS_READ, BODY_NONE, ""},
    {METHOD_GET, "/api/rest/{path...}", say, ACCESS_READ, BODY_NONE, ""},
    {METHOD_POST, "/api/write", say, ACCESS_WRITE, BODY_JSON, ""},
    {METHOD_POST, "/api/maybe", say, ACCESS_WRITE, BODY_JSON_ANY, ""},
    {METHOD_POST, "/api/raw", say, ACCESS_WRITE, BODY_RAW, ""},
    {METHOD_POST, "/api/owner", say, ACCESS_OWNER, BODY_NONE, ""},
    {METHOD_POST, "/api/exec", say, ACCESS_EXEC, BODY_NONE, ""},
    {METHOD_POST, "/api/worker", say, ACCESS_WORKER, BODY_NONE, ""},
    {METHOD_POST, "/api/enroll", say, ACCESS_ENROLL, BODY_NONE, ""},
    {METHOD_GET, "/api/wait", wait_for, ACCESS_READ, BODY_NONE, ""},
    {METHOD_POST, "/api/wait", wait_for, ACCESS_WRITE, BODY_NONE, ""},
    {METHOD_GET, "/api/file", send_file, ACCESS_READ, BODY_NONE, ""},
    {METHOD_POST, "/api/upload", take_upload, ACCESS_WRITE, BODY_UPLOAD, ""},
    {METHOD_GET, "/api/count", count, ACCESS_READ, BODY_NONE, ""}};

static void open_door(struct door *d)
{
    door_open(d, rows, sizeof rows / sizeof *rows);
}

static bool body_has(const struct answer *a, const char *text)
{
    return a->body && strstr(a->body, text);
}

/* ---- who may come in ---- */

TEST(
    door_hosts, "H1: a request for another host is refused before anything else, also with a token")
{
    struct door d = {0};
    struct answer a;
    open_door(&d);
    CHECK_EQ(door_ask(&d, "GET", "/api/open", "Host: evil.example\r\n", NULL, &a), 421);
    CHECK(
        body_has(&a, "{\"detail\":\"Misdirected Request (Host not allowed)\"}") ||
        body_has(&a, "{\"detail\": \"Misdirected Request (Host not allowed)\"}"));
    CHECK_EQ(door_ask(&d, "GET", "/api/open", "Host: 127.0.0.1.evil.example\r\n", NULL, NULL), 421);
    CHECK_EQ(door_ask(&d, "GET", "/api/open", "Host: localhost\r\nHost: x\r\n", NULL, NULL), 421);
    CHECK_EQ(door_ask(&d, "GET", "/", "Host: evil.example\r\n", NULL, NULL), 421);
    CHECK_EQ(door_ask(&d, "GET", "/api/open", "Host: localhost:9\r\n", NULL, NULL), 200);
    CHECK_EQ(door_ask(&d, "GET", "/api/open", "Host: [::1]:80\r\n", NULL, NULL), 200);
    char head[200];
    (void)snprintf(head, sizeof head, "Host: evil.example\r\n%s", door_owner(&d));
    CHECK_EQ(door_ask(&d, "POST", "/api/write", head, "{}", NULL), 421);
    door_close(&d);
}

TEST(door_tokens, "H1: every write needs a token; host, then token, then size, then form")
{
    struct door d = {0};
    struct answer a;
    open_door(&d);
    CHECK_EQ(door_ask(&d, "POST", "/api/write", NULL, "{}", &a), 403);
    CHECK(body_has(&a, "Missing or invalid X-CodefyUI-Token header"));
    CHECK_EQ(door_ask(&d, "POST", "/api/write", "X-Snug-Token: wrong\r\n", "{}", NULL), 403);
    CHECK_EQ(
        door_ask(&d, "POST", "/api/write", "Authorization: Bearer snk_wrong\r\n", "{}", NULL), 401);
    CHECK_EQ(door_ask(&d, "POST", "/api/write", NULL, "not json", NULL), 403);
    CHECK_EQ(door_ask(&d, "POST", "/api/nothing", NULL, "{}", NULL), 403);
    CHECK_EQ(door_ask(&d, "POST", "/api/write", door_owner(&d), "{}", NULL), 200);
    CHECK_EQ(door_ask(&d, "POST", "/api/write", door_owner(&d), "not json", &a), 422);
    CHECK(body_has(&a, "json_invalid"));
    CHECK_EQ(door_ask(&d, "POST", "/api/write", door_owner(&d), "[]", NULL), 422);
    CHECK_EQ(door_ask(&d, "POST", "/api/write", door_owner(&d), "", NULL), 422);
    CHECK_EQ(door_ask(&d, "POST", "/api/maybe", door_owner(&d), "", NULL), 200);
    CHECK_EQ(door_ask(&d, "POST", "/api/nothing", door_owner(&d), "{}", NULL), 404);
    door_close(&d);
}
