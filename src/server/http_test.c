/* http_test.c - the door: refusals in order, framing, waits, streams, files, limits. */
#include "server/http_test_support.h"

#include "base/env.h"
#include "test.h"

#include <errno.h>
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

static atomic_bool held;

/* Takes a job thread until it is let go. */
static void hold(struct server *s, const struct http_request *q, struct http_reply *r)
{
    for (int i = 0; i < 3000 && atomic_load(&held); i++)
        (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    say(s, q, r);
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
    {METHOD_POST, "/api/hold", hold, ACCESS_WRITE, BODY_RAW, ""},
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
    return strstr(a->body, text) != NULL;
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

TEST(door_kinds, "H1 H2: each kind of token opens its own doors, and none once it is revoked")
{
    struct door d = {0};
    struct err e = {0};
    char key[SECRET_BYTES], runner[SECRET_BYTES], worker[SECRET_BYTES], join[SECRET_BYTES];
    char id[33], head[200], pool[65];
    json_t *row = NULL, *row2 = NULL;
    open_door(&d);
    CHECK_OK(auth_key_mint(d.server.auth, "bob", false, key, &row, &e), &e);
    CHECK_OK(auth_key_mint(d.server.auth, "eve", true, runner, &row2, &e), &e);
    CHECK_OK(auth_worker_mint(d.server.auth, "0123", "box", worker, &e), &e);
    struct auth_join j = {.name = "new", .pool = "night", .once = true};
    CHECK_OK(auth_join_mint(d.server.auth, &j, id, join, &e), &e);
    static const char *const paths[] = {
        "/api/write", "/api/exec", "/api/owner", "/api/worker", "/api/enroll"};
    const char *const tokens[] = {auth_page_token(d.server.auth), key, runner, worker, join,
                                  auth_owner_token(d.server.auth)};
    static const int expected[6][5] = {{200, 403, 403, 403, 403}, {200, 403, 403, 403, 403},
                                       {200, 200, 403, 403, 403}, {403, 403, 403, 200, 200},
                                       {403, 403, 403, 403, 200}, {200, 200, 200, 200, 200}};
    for (int t = 0; t < 6; t++)
        for (int p = 0; p < 5; p++)
            for (int bearer = 0; bearer < 2; bearer++) {
                (void)snprintf(
                    head, sizeof head, "%s%s\r\n",
                    bearer ? "Authorization: Bearer " : "X-CodefyUI-Token: ", tokens[t]);
                CHECK_EQ(door_ask(&d, "POST", paths[p], head, "{}", NULL), expected[t][p]);
            }
    CHECK_OK(auth_key_revoke(d.server.auth, json_get_str(row, "id", ""), &e), &e);
    (void)snprintf(head, sizeof head, "Authorization: Bearer %s\r\n", key);
    CHECK_EQ(door_ask(&d, "POST", "/api/write", head, "{}", NULL), 401);
    CHECK_OK(auth_join_use(d.server.auth, id, 0, pool, &e), &e);
    CHECK_STR(pool, "night");
    CHECK_EQ(auth_join_use(d.server.auth, id, 0, pool, &e), ST_DENIED);
    (void)snprintf(head, sizeof head, "Authorization: Bearer %s\r\n", join);
    CHECK_EQ(door_ask(&d, "POST", "/api/enroll", head, "{}", NULL), 401);
    json_decref(row);
    json_decref(row2);
    door_close(&d);
}

TEST(
    door_origins,
    "H1: a page of another origin may not write; those of the list may, and are told so")
{
    struct door d = {.config = {.origins = "http://localhost:3000, http://lab:5173"}};
    struct answer a;
    char head[300], text[512];
    open_door(&d);
    static const char *const bad[] = {
        "Origin: http://evil.example\r\n", "Origin: null\r\n", "Origin: http://127.0.0.1:1\r\n",
        "Sec-Fetch-Site: cross-site\r\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        (void)snprintf(head, sizeof head, "%s%s", door_owner(&d), bad[i]);
        CHECK_EQ(door_ask(&d, "POST", "/api/write", head, "{}", NULL), 403);
        CHECK_EQ(door_ask(&d, "GET", "/api/read/1", head, NULL, &a), 200);
        CHECK(!answer_header(&a, "Access-Control-Allow-Origin", text));
    }
    (void)snprintf(
        head, sizeof head, "%sOrigin: http://127.0.0.1:%d\r\n", door_owner(&d), http_port(d.h));
    CHECK_EQ(door_ask(&d, "POST", "/api/write", head, "{}", NULL), 200);
    (void)snprintf(head, sizeof head, "%sOrigin: http://lab:5173\r\n", door_owner(&d));
    CHECK_EQ(door_ask(&d, "POST", "/api/write", head, "{}", &a), 200);
    CHECK_STR(answer_header(&a, "Access-Control-Allow-Origin", text), "http://lab:5173");
    CHECK_EQ(
        door_ask(
            &d, "OPTIONS", "/api/write",
            "Origin: http://lab:5173\r\nAccess-Control-Request-Method: POST\r\n", NULL, &a),
        204);
    CHECK(strstr(answer_header(&a, "Access-Control-Allow-Headers", text), "X-CodefyUI-Token"));
    /* A cookie opens reading only, whatever page caused the request. */
    door_close(&d);
}

TEST(
    door_private,
    "H1: private reads need a token, a key, or the page's cookie; the cookie never writes")
{
    struct door d = {.config = {.private_reads = true}};
    char head[300];
    open_door(&d);
    CHECK_EQ(door_ask(&d, "GET", "/api/open", NULL, NULL, NULL), 200);
    CHECK_EQ(door_ask(&d, "GET", "/api/read/1", NULL, NULL, NULL), 403);
    CHECK_EQ(door_ask(&d, "GET", "/api/read/1", door_owner(&d), NULL, NULL), 200);
    (void)snprintf(
        head, sizeof head, "Cookie: a=b; snug_page=%s\r\n", auth_page_token(d.server.auth));
    CHECK_EQ(door_ask(&d, "GET", "/api/read/1", head, NULL, NULL), 200);
    CHECK_EQ(door_ask(&d, "POST", "/api/write", head, "{}", NULL), 403);
    door_close(&d);
}

/* ---- targets and methods ---- */

TEST(door_targets, "H4: fixed parts win over names; malformed targets are 400, unknown ones 404")
{
    struct door d = {0};
    struct answer a;
    open_door(&d);
    CHECK_EQ(door_ask(&d, "GET", "/api/read/fixed", NULL, NULL, &a), 200);
    CHECK(body_has(&a, "\"param\":null"));
    CHECK_EQ(door_ask(&d, "GET", "/api/read/a%2Fb%20c?a=x%26y+z&b", NULL, NULL, &a), 200);
    CHECK(body_has(&a, "\"param\":\"a/b c\"") || body_has(&a, "\"param\":\"a\\/b c\""));
    CHECK(body_has(&a, "\"a\":\"x&y z\""));
    CHECK_EQ(door_ask(&d, "GET", "/api/rest/a/b/c", NULL, NULL, &a), 200);
    CHECK(body_has(&a, "a/b/c"));
    static const char *const malformed[] = {"/api/read/%",        "/api/read/%0",
                                            "/api/read/%zz",      "/api/read/%00",
                                            "/api/read/a%00b",    "/api/read/%ff",
                                            "/api/open?a=%",      "/api/open?a=%00",
                                            "/api/open?a=%c3%28", "http://evil.example/api/open"};
    for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++)
        CHECK_EQ(door_ask(&d, "GET", malformed[i], NULL, NULL, NULL), 400);
    static const char *const unknown[] = {"/api",       "/api/",         "/api/read",
                                          "/api/read/", "/api/read/a/b", "/api//open",
                                          "/api/OPEN",  "/api/open/",    "/ws/other"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        CHECK_EQ(door_ask(&d, "GET", unknown[i], NULL, NULL, NULL), 404);
    CHECK_EQ(door_ask(&d, "GET", "/", NULL, NULL, &a), 200);
    CHECK(body_has(&a, "/docs"));
    char many[1000] = "/api/open?";
    for (int i = 0; i < 40; i++)
        (void)snprintf(many + strlen(many), 20, "a%d=1&", i);
    CHECK_EQ(door_ask(&d, "GET", many, NULL, NULL, NULL), 400);
    door_close(&d);
}

TEST(door_methods, "H4: 405 names what a path takes; HEAD is GET without its body")
{
    struct door d = {0};
    struct answer a;
    char text[512];
    open_door(&d);
    CHECK_EQ(door_ask(&d, "DELETE", "/api/write", door_owner(&d), NULL, &a), 405);
    CHECK_STR(answer_header(&a, "Allow", text), "POST");
    CHECK_EQ(door_ask(&d, "PUT", "/api/wait", door_owner(&d), "{}", &a), 405);
    CHECK_STR(answer_header(&a, "Allow", text), "GET, HEAD, POST");
    CHECK_EQ(door_ask(&d, "TRACE", "/api/open", door_owner(&d), NULL, NULL), 405);
    CHECK_EQ(door_ask(&d, "POST", "/", door_owner(&d), "{}", NULL), 405);
    CHECK_EQ(door_ask(&d, "HEAD", "/api/open", NULL, NULL, &a), 200);
    CHECK(answer_header(&a, "Content-Length", text) && strcmp(text, "0") != 0);
    CHECK_EQ(door_ask(&d, "HEAD", "/api/count", NULL, NULL, &a), 200);
    CHECK_EQ(door_ask(&d, "OPTIONS", "/api/wait", NULL, NULL, &a), 204);
    CHECK_STR(answer_header(&a, "Allow", text), "GET, HEAD, POST");
    door_close(&d);
}

/* ---- bodies ---- */

/* Raw bytes on a connection of their own; what comes back. */
static int raw(const struct door *d, const char *text, struct answer *a)
{
    struct answer own;
    int fd = door_connect(d);
    door_send(fd, text);
    int status = door_read(fd, a ? a : &own, false);
    (void)close(fd);
    return status;
}

TEST(door_sizes, "H1: a body over its limit is 413 as its bytes arrive, before they are read")
{
    struct door d = {0};
    struct answer a;
    char text[1000];
    open_door(&d);
    /* Nothing of the body is sent: the answer comes all the same. */
    (void)snprintf(
        text, sizeof text,
        "POST /api/write HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: 100001\r\n\r\n",
        door_owner(&d));
    CHECK_EQ(raw(&d, text, &a), 413);
    CHECK(body_has(&a, "larger than 100000 bytes"));
    (void)snprintf(
        text, sizeof text,
        "POST /api/write HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: "
        "99999999999999999999999\r\n\r\n",
        door_owner(&d));
    int status = raw(&d, text, NULL);
    CHECK(status == 413 || status == 400);
    /* Of unknown length: cut off where it passes the limit. */
    struct str chunked;
    str_init(&chunked);
    str_printf(
        &chunked,
        "POST /api/raw HTTP/1.1\r\nHost: localhost\r\n%sTransfer-Encoding: chunked\r\n\r\n",
        door_owner(&d));
    int fd = door_connect(&d);
    door_send(fd, chunked.data);
    str_clear(&chunked);
    str_add(&chunked, "3e8\r\n");
    for (int i = 0; i < 1000; i++)
        str_add(&chunked, "x");
    str_add(&chunked, "\r\n");
    for (int i = 0; i < 101; i++)
        door_send(fd, chunked.data);
    CHECK_EQ(door_read(fd, &a, false), 413);
    (void)close(fd);
    str_release(&chunked);
    /* Token first: without one nobody learns the limit. */
    CHECK_EQ(
        raw(&d, "POST /api/write HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100001\r\n\r\n",
            NULL),
        403);
    door_close(&d);
}

TEST(door_framing, "H4: lengths that can be read in two ways are refused")
{
    struct door d = {0};
    open_door(&d);
    static const char *const lengths[] = {
        "Content-Length: 2\r\nContent-Length: 2\r\n",
        "Content-Length: 2\r\nContent-Length: 3\r\n",
        "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: gzip\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
        "Content-Length: +2\r\n",
        "Content-Length: -2\r\n",
        "Content-Length: 0x2\r\n",
        "Content-Length: \r\n",
        "Content-Length : 2\r\n",
        "Transfer-Encoding\t: chunked\r\n"};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        char text[500];
        (void)snprintf(
            text, sizeof text, "POST /api/write HTTP/1.1\r\nHost: localhost\r\n%s%s\r\n{}",
            door_owner(&d), lengths[i]);
        CHECK_EQ(raw(&d, text, NULL), 400);
    }
    door_close(&d);
}

/* Whether the connection ends, and how many answers it brought. */
static bool ends_after(int fd, int *answers)
{
    static const struct timeval patience = {.tv_sec = 5};
    char text[8192];
    size_t n = 0;
    ssize_t got;
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    while (n < sizeof text - 1 && (got = recv(fd, text + n, sizeof text - 1 - n, 0)) > 0)
        n += (size_t)got;
    text[n] = '\0';
    *answers = 0;
    for (const char *at = text; (at = strstr(at, "HTTP/1.1 ")); at++)
        (*answers)++;
    return got <= 0 && (got == 0 || errno == ECONNRESET);
}

TEST(
    door_smuggling,
    "H4: what comes after a request whose end can be read in two ways is not taken for another")
{
    struct door d = {0};
    open_door(&d);
    static const char *const lengths[] = {
        "Content-Length: 2\r\nContent-Length: 48\r\n",
        "Content-Length: 0\r\nContent-Length: 48\r\n", "Content-Length : 48\r\n",
        "Transfer-Encoding : chunked\r\n"};
    for (size_t i = 0; i < 2 * sizeof lengths / sizeof *lengths; i++) {
        char text[700];
        int answers, fd = door_connect(&d);
        (void)snprintf(
            text, sizeof text,
            "POST /api/write HTTP/1.1\r\nHost: localhost\r\n%s%s\r\n{}"
            "GET /api/open HTTP/1.1\r\nHost: localhost\r\n\r\n",
            i % 2 ? door_owner(&d) : "", lengths[i / 2]); /* refused for its token, too */
        door_send(fd, text);
        CHECK(ends_after(fd, &answers));
        CHECK(answers <= 1);
        (void)close(fd);
    }
    door_close(&d);
}

TEST(door_long_bodies, "promise-P15: documents that take long leave threads for short questions")
{
    enum { LONG = 300000, CLIENTS = 10 };
    struct door d = {.config = {.body_max_bytes = 1 << 20}};
    char head[300], *body = mem_alloc(LONG + 1);
    int fd[CLIENTS];
    memset(body, 'x', LONG);
    open_door(&d);
    atomic_store(&held, true);
    (void)snprintf(
        head, sizeof head,
        "POST /api/hold HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %d\r\n\r\n",
        door_owner(&d), LONG);
    for (int i = 0; i < CLIENTS; i++) {
        fd[i] = door_connect(&d);
        door_send(fd[i], head);
        door_send(fd[i], body);
    }
    for (int i = 0; i < 5; i++)
        CHECK_EQ(door_ask(&d, "GET", "/api/open", NULL, NULL, NULL), 200);
    CHECK(atomic_load(&held));
    atomic_store(&held, false);
    for (int i = 0; i < CLIENTS; i++) { /* and each of them has its turn */
        struct answer a;
        CHECK_EQ(door_read(fd[i], &a, false), 200);
        (void)close(fd[i]);
    }
    mem_free(body);
    door_close(&d);
}

TEST(door_nesting, "H4: a body nested too deep is 422; the deepest that may be is read")
{
    struct door d = {0};
    open_door(&d);
    for (int depth = JSON_DEPTH_MAX - 1; depth <= JSON_DEPTH_MAX; depth++) {
        struct str body;
        str_init(&body);
        str_add(&body, "{\"a\":");
        for (int i = 0; i < depth; i++)
            str_add(&body, "[");
        for (int i = 0; i < depth; i++)
            str_add(&body, "]");
        str_add(&body, "}");
        CHECK_EQ(
            door_ask(&d, "POST", "/api/write", door_owner(&d), body.data, NULL),
            depth < JSON_DEPTH_MAX ? 200 : 422);
        str_release(&body);
    }
    static const char *const bad[] = {
        "{\"a\":1,\"a\":2}",
        "{\"a\":1e999}",
        "{\"a\":\"\xff\"}",
        "{\"a\":\"\\ud800\"}",
        "{",
        "\"",
        "{\"a\":\"\\u0000\"}",
        "{\"\\u0000\":1}",
        "{} x",
        "{\"a\":99999999999999999999}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_EQ(door_ask(&d, "POST", "/api/write", door_owner(&d), bad[i], NULL), 422);
    door_close(&d);
}

/* ---- waits and streams ---- */

static void pause_ms(int ms)
{
    (void)nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static void *wake_later(void *ctx)
{
    struct door *d = ctx;
    pause_ms(50);
    http_wake(d->h, http_topic("test", "t"));
    return NULL;
}

TEST(door_waits, "a request that waits is answered when its topic is woken, or when the time is up")
{
    struct door d = {0};
    pthread_t thread;
    open_door(&d);
    for (int post = 0; post < 2; post++) {
        CHECK_EQ(pthread_create(&thread, NULL, wake_later, &d), 0);
        CHECK_EQ(door_ask(&d, post ? "POST" : "GET", "/api/wait", door_owner(&d), NULL, NULL), 200);
        pthread_join(thread, NULL);
        CHECK_EQ(door_ask(&d, post ? "POST" : "GET", "/api/wait", door_owner(&d), NULL, NULL), 408);
    }
    door_close(&d);
}

TEST(door_closing, "who waits, streams or sends when the door closes is ended, and nothing leaks")
{
    struct door d = {0};
    int fd[8];
    atomic_store(&counter_now, 1);
    atomic_store(&counters_open, 0);
    open_door(&d);
    for (int i = 0; i < 8; i++) {
        fd[i] = door_connect(&d);
        door_send(
            fd[i], i % 4 == 0   ? "GET /api/wait HTTP/1.1\r\nHost: localhost\r\n\r\n"
                   : i % 4 == 1 ? "GET /api/count HTTP/1.1\r\nHost: localhost\r\n\r\n"
                   : i % 4 == 2 ? "GET /api/op"
                                : "");
    }
    pause_ms(100);
    door_close(&d);
    CHECK_EQ(atomic_load(&counters_open), 0);
    for (int i = 0; i < 8; i++)
        (void)close(fd[i]);
}

/* Reads until the text appears. */
static bool reads(int fd, const char *text)
{
    char buf[65536];
    size_t n = 0;
    while (n + 1 < sizeof buf) {
        ssize_t got = recv(fd, buf + n, sizeof buf - 1 - n, 0);
        if (got <= 0)
            return false;
        n += (size_t)got;
        buf[n] = '\0';
        if (strstr(buf, text))
            return true;
    }
    return false;
}

TEST(
    door_streams,
    "promise-P15: each stream has its own place; clients that do not read cost the others nothing")
{
    enum { READERS = 20, STALLED = 50 };
    struct door d = {0};
    int reader[READERS], stalled[STALLED];
    char text[32];
    atomic_store(&counter_now, 0);
    atomic_store(&counters_open, 0);
    open_door(&d);
    for (int i = 0; i < READERS + STALLED; i++) {
        int fd = door_connect(&d);
        door_send(fd, "GET /api/count HTTP/1.1\r\nHost: localhost\r\n\r\n");
        *(i < READERS ? &reader[i] : &stalled[i - READERS]) = fd;
    }
    for (int n = 1; n <= 50; n++) {
        atomic_store(&counter_now, n);
        http_wake(d.h, http_topic("test", "count"));
        (void)snprintf(text, sizeof text, "data: %d\n\n", n);
        for (int i = 0; i < READERS; i++)
            CHECK(reads(reader[i], text));
    }
    CHECK_EQ(atomic_load(&counters_open), READERS + STALLED);
    atomic_store(&counter_now, -1);
    http_wake(d.h, http_topic("test", "count"));
    for (int i = 0; i < READERS; i++) {
        CHECK(reads(reader[i], "0\r\n\r\n")); /* the end of the chunks */
        (void)close(reader[i]);
    }
    for (int i = 0; i < STALLED; i++)
        (void)close(stalled[i]);
    door_close(&d);
    CHECK_EQ(atomic_load(&counters_open), 0);
}

/* ---- files ---- */

TEST(door_ranges, "media answer ranges; what cannot be is 416")
{
    struct door d = {0};
    struct answer a;
    struct err e = {0};
    char path[1100], target[1200], text[512];
    open_door(&d);
    (void)path_join(test_dir(), "f.txt", path, sizeof path);
    CHECK_OK(file_write(path, "0123456789", 10, &e), &e);
    (void)snprintf(target, sizeof target, "/api/file?path=%s", path);
    CHECK_EQ(door_ask(&d, "GET", target, NULL, NULL, &a), 200);
    CHECK_STR(a.body, "0123456789");
    static const struct {
        const char *range, *body, *content;
    } ranges[] = {{"bytes=2-4", "234", "bytes 2-4/10"}, {"bytes=7-", "789", "bytes 7-9/10"},
                  {"bytes=-3", "789", "bytes 7-9/10"},  {"bytes=0-0", "0", "bytes 0-0/10"},
                  {"bytes=8-99", "89", "bytes 8-9/10"}, {"bytes=-99", "0123456789", NULL},
                  {"bytes=0-", "0123456789", NULL},     {"bytes=1-2,4-5", "0123456789", NULL},
                  {"chapters=1-2", "0123456789", NULL}, {"bytes=x-y", "0123456789", NULL}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        char head[100];
        (void)snprintf(head, sizeof head, "Range: %s\r\n", ranges[i].range);
        CHECK_EQ(door_ask(&d, "GET", target, head, NULL, &a), ranges[i].content ? 206 : 200);
        CHECK_STR(a.body, ranges[i].body);
        if (ranges[i].content)
            CHECK_STR(answer_header(&a, "Content-Range", text), ranges[i].content);
    }
    CHECK_EQ(door_ask(&d, "GET", target, "Range: bytes=10-\r\n", NULL, &a), 416);
    CHECK_STR(answer_header(&a, "Content-Range", text), "bytes */10");
    CHECK_EQ(door_ask(&d, "GET", target, "Range: bytes=-0\r\n", NULL, NULL), 416);
    CHECK_EQ(door_ask(&d, "HEAD", target, NULL, NULL, &a), 200);
    CHECK_STR(answer_header(&a, "Content-Length", text), "10");
    CHECK_EQ(door_ask(&d, "GET", "/api/file?path=/no/such", NULL, NULL, NULL), 404);
    CHECK_EQ(door_ask(&d, "GET", "/api/file?path=/dev/zero", NULL, NULL, NULL), 404);
    door_close(&d);
}

TEST(door_uploads, "H3: uploads are capped, complete or gone, under a plain name")
{
    char spool[1100];
    struct door d = {.config = {.spool = spool, .upload_max_bytes = 1000}};
    struct answer a;
    char head[300];
    (void)path_join(test_dir(), "spool", spool, sizeof spool);
    open_door(&d);
    (void)snprintf(
        head, sizeof head, "%sContent-Type: multipart/form-data; boundary=XX\r\n", door_owner(&d));
    static const char form[] =
        "--XX\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nnot this\r\n"
        "--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"%s\"\r\n"
        "Content-Type: text/plain\r\n\r\nhe\r\nllo\r\n--X\r\n\r\n--XX--\r\n";
    char body[1000];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    (void)snprintf(body, sizeof body, form, "../../up.txt");
    CHECK_EQ(door_ask(&d, "POST", "/api/upload", head, body, &a), 200);
    CHECK(body_has(&a, "\"name\":\"up.txt\"") && body_has(&a, "he\\r\\nllo\\r\\n--X\\r\\n"));
    static const char *const names[] = {"..",      ".",   "",    "a/", "con", "CON.txt",
                                        "lpt1.pt", "a:b", "a<b", "x.", "x ",  ".hidden"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        (void)snprintf(body, sizeof body, form, names[i]);
        CHECK_EQ(door_ask(&d, "POST", "/api/upload", head, body, NULL), 400);
    }
#pragma GCC diagnostic pop
    static const char *const broken[] = {
        "--XX\r\nContent-Disposition: form-data; filename=\"a\"\r\n\r\nhello", "", "--XX--",
        "--XX\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nx\r\n--XX--", "--XXyy\r\n"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        CHECK_EQ(door_ask(&d, "POST", "/api/upload", head, broken[i], NULL), 422);
    /* The file as the body. */
    struct str big;
    str_init(&big);
    for (int i = 0; i < 1000; i++)
        str_add(&big, "y");
    CHECK_EQ(door_ask(&d, "POST", "/api/upload?name=b.txt", door_owner(&d), big.data, &a), 200);
    CHECK(body_has(&a, "\"bytes\":1000"));
    str_add(&big, "y");
    CHECK_EQ(door_ask(&d, "POST", "/api/upload?name=b.txt", door_owner(&d), big.data, NULL), 413);
    CHECK_EQ(door_ask(&d, "POST", "/api/upload", door_owner(&d), "x", NULL), 422);
    str_release(&big);
    /* Nothing stays behind. */
    json_t *left = NULL;
    door_close(&d);
    CHECK_EQ(rmdir(spool), 0);
    json_decref(left);
}

struct pieces {
    struct str out;
};

static bool piece_take(void *ctx, const char *p, size_t n)
{
    struct pieces *x = ctx;
    str_add_n(&x->out, p, n);
    return true;
}

TEST(door_multipart, "H3: a form is read the same however its bytes are cut")
{
    static const char form[] =
        "preamble\r\n--b\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\n1\r\n--b\r\n"
        "content-disposition: form-data; name=\"f\"; filename=\"a \\\"q\\\".bin\"\r\n\r\n"
        "\r\n--\r\r\n-\r\n--a\r\n\r\n--b\r\n\r\nepilogue--b--";
    for (size_t cut = 1; cut < sizeof form; cut++) {
        struct multipart *m = multipart_new("multipart/form-data; boundary=\"b\"");
        struct pieces x;
        str_init(&x.out);
        for (size_t at = 0; at < sizeof form - 1; at += cut) {
            size_t n = sizeof form - 1 - at < cut ? sizeof form - 1 - at : cut;
            CHECK(!multipart_feed(m, form + at, n, piece_take, &x));
        }
        CHECK_STR(multipart_name(m), "a \"q\".bin");
        CHECK(multipart_is_complete(m));
        CHECK_STR(x.out.data, "\r\n--\r\r\n-\r\n--a\r\n");
        str_release(&x.out);
        multipart_free(m);
    }
    CHECK(!multipart_new("multipart/form-data"));
    CHECK(!multipart_new("text/plain; boundary=b"));
}

/* ---- clients that are gone, or no clients ---- */

TEST(
    door_dead, "promise-P15: a quiet stream speaks from time to time, and so finds out who is gone")
{
    struct door d = {.config = {.comment_s = 1}};
    static const char ask[] = "GET /api/count HTTP/1.1\r\nHost: localhost\r\n\r\n";
    const struct linger at_once = {.l_onoff = 1};
    atomic_store(&counter_now, 1);
    atomic_store(&counters_open, 0);
    open_door(&d);
    int fd = door_connect(&d), gone = door_connect(&d);
    door_send(fd, ask);
    door_send(gone, ask);
    CHECK(reads(fd, "data: 1"));
    CHECK(reads(gone, "data: 1"));
    CHECK_EQ(setsockopt(gone, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
    (void)close(gone);
    CHECK(reads(fd, ": \n\n"));
    for (int i = 0; i < 100 && atomic_load(&counters_open) > 1; i++)
        pause_ms(50);
    CHECK_EQ(atomic_load(&counters_open), 1);
    (void)close(fd);
    door_close(&d);
}

TEST(door_garbage, "H4: bytes that are no request end a connection, never the door")
{
    struct door d = {0};
    open_door(&d);
    static const char *const junk[] = {
        "\r\n\r\n\r\n",
        "GET\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "\x16\x03\x01\x02",
        "GET /api/open\r\n",
        "GET /api/open HTTP/1.1\r\n: x\r\n\r\n",
        "GET /api/open HTTP/1.1\nHost: localhost\n\n",
        "GET /api/open HTTP/1.1\r\nHost : localhost\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"};
    for (size_t i = 0; i < sizeof junk / sizeof *junk; i++) {
        int fd = door_connect(&d);
        struct answer a;
        door_send(fd, junk[i]);
        (void)shutdown(fd, SHUT_WR);
        int status = door_read(fd, &a, false);
        CHECK(status < 500 || status == 505);
        (void)close(fd);
        CHECK_EQ(door_ask(&d, "GET", "/api/open", NULL, NULL, NULL), 200);
    }
    /* A head that never ends. */
    struct str head;
    str_init(&head);
    str_add(&head, "GET /api/open HTTP/1.1\r\nHost: localhost\r\n");
    for (int i = 0; i < 5000; i++)
        str_printf(&head, "X-%d: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n", i);
    str_add(&head, "\r\n");
    int status = raw(&d, head.data, NULL);
    CHECK(status == 0 || (status >= 400 && status < 500));
    str_release(&head);
    CHECK_EQ(door_ask(&d, "GET", "/api/open", NULL, NULL, NULL), 200);
    door_close(&d);
}

/* ---- replies ---- */

TEST(door_headers, "H1: no header takes control characters")
{
    struct http_reply r = {0};
    CHECK(http_add_header(&r, "X-A", "b c"));
    CHECK(!http_add_header(&r, "X-B", "a\r\nX-Evil: 1"));
    CHECK(!http_add_header(&r, "X-B\r\nX-Evil", "1"));
    CHECK(!http_add_header(&r, "X B", "1"));
    CHECK(!http_add_header(&r, "", "1"));
    char big[600];
    memset(big, 'a', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    CHECK(!http_add_header(&r, "X-C", big));
    CHECK_STR(r.headers, "X-A: b c\r\n");
}
