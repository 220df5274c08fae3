/* attack_test.c - every route of the table with hostile requests: always an answer with a reason,
 * never a fault of ours. Full count under SNUG_SOAK. */
#include "server/auth.h"
#include "server/http_int.h"
#include "server/server.h"

#include "base/env.h"
#include "base/rng.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct target {
    struct server_config config;
    struct server *server;
};

static void target_open(struct target *t)
{
    struct err e = {0};
    (void)setenv("SNUG_HOME", test_dir(), 1);
    server_config_defaults(&t->config, test_dir());
    t->config.builtin_worker = false;
    t->config.max_run_body_bytes = 1 << 20;
    t->config.max_upload_size = 1 << 20;
    CHECK_OK(server_open_bare(&t->config, &t->server, &e), &e);
}

static void target_close(struct target *t)
{
    server_close(t->server);
    server_config_release(&t->config);
}

/* Statuses that say "not here" or "not now", with a reason, are answers too. */
static void judge(const char *method, const char *path, const char *body, struct http_reply *r)
{
    bool fine = r->status == 0 || (r->status >= 100 && r->status < 500) || r->status == 501 ||
                r->status == 503 || r->status == 504;
    bool told = r->data && (strstr(r->data, "\"detail\"") || strstr(r->data, "\"error\""));
    if (!fine || (r->status >= 400 && !told))
        test_fail(
            __FILE__, __LINE__, "%s %.300s with %.300s: %d %.300s", method, path, body, r->status,
            r->data ? r->data : "");
    http_reply_release(r);
}

/* ---- what is sent ---- */

static const char *const words[] = {
    "",
    "a",
    "..",
    "../../etc/passwd",
    "%2e%2e%2f",
    "%00",
    "%ff",
    "cpu",
    "cuda:0",
    "local",
    "any",
    "Untitled",
    "-1",
    "0",
    "1e999",
    "NaN",
    "null",
    "true",
    "{}",
    "[]",
    "\"",
    "%22",
    "a%0d%0ab",
    "queued",
    "stream",
    "%F0%9F%98%80",
    "0123456789abcdef0123456789abcdef",
    "18446744073709551616",
    "con",
    "a.pt"};
static const char *const keys[] = {
    "graph",      "nodes",      "edges",    "presets",   "settings",  "options",   "name",
    "device",     "seed",       "lane",     "target",    "worker",    "devices",   "wait",
    "pool",       "memory_gib", "command",  "argv",      "from",      "to",        "file",
    "overwrite",  "exec",       "graph_id", "node_ids",  "inputs",    "timeout_s", "sweep_spec",
    "method",     "params",     "node_id",  "param",     "values",    "range",     "min",
    "max",        "count",      "samples",  "objective", "metric",    "direction", "base_graph",
    "version",    "protocol",   "session",  "events",    "caches",    "answers",   "run_id",
    "epoch",      "sequence",   "type",     "payload",   "mode",      "confirm",   "id",
    "source",     "data",       "position", "layers",    "subgraphs", "runs",      "set",
    "environment"};

static const char *word(struct rng *g)
{
    return words[rng_below(g, sizeof words / sizeof *words)];
}

/* A random document, wrong in every way that JSON can be. */
static json_t *document(struct rng *g, int depth)
{
    uint64_t kind = rng_below(g, depth > 4 ? 7 : 10);
    json_t *o;
    switch (kind) {
    case 0:
        return json_null();
    case 1:
        return json_boolean(rng_below(g, 2));
    case 2:
        return json_integer((json_int_t)rng_below(g, 5) - 2);
    case 3:
        return json_integer(rng_below(g, 2) ? INT64_MAX : INT64_MIN);
    case 4:
        return json_real(rng_below(g, 2) ? 1e300 : -0.5);
    case 5:
    case 6:
        return json_string(word(g));
    case 7:
        o = json_array();
        for (uint64_t n = rng_below(g, 5); n > 0; n--)
            (void)json_array_append_new(o, document(g, depth + 1));
        return o;
    default:
        o = json_object();
        for (uint64_t n = rng_below(g, 6); n > 0; n--)
            (void)json_object_set_new(
                o, keys[rng_below(g, sizeof keys / sizeof *keys)], document(g, depth + 1));
        return o;
    }
}

/* The route's path with words in place of its names, and a query. */
static void path_of(struct rng *g, const struct route *r, char *out, size_t cap)
{
    size_t n = 0;
    static const char *const queries[] = {"limit",  "offset", "cursor", "wait",
                                          "status", "name",   "after",  "slice",
                                          "format", "bytes",  "path",   "session"};
    for (const char *c = r->path; *c && n + 200 < cap;) {
        if (*c == '{') {
            n += (size_t)snprintf(out + n, cap - n, "%s", word(g));
            c += strcspn(c, "}") + 1;
        } else {
            out[n++] = *c++;
        }
    }
    out[n] = '\0';
    for (uint64_t q = rng_below(g, 4); q > 0 && n + 100 < cap; q--)
        n += (size_t)snprintf(
            out + n, cap - n, "%c%s=%s", strchr(out, '?') ? '&' : '?',
            queries[rng_below(g, sizeof queries / sizeof *queries)], word(g));
}

/* A body: documents, and texts that are none. */
static char *body_of(struct rng *g)
{
    struct str s;
    uint64_t kind = rng_below(g, 12);
    str_init(&s);
    if (kind == 0) {
        str_add(&s, "{\"a\": ");
    } else if (kind == 1) {
        for (int i = 0; i < 3000; i++)
            str_add(&s, "[");
    } else if (kind == 2) {
        str_add(&s, "\xff\xfe{}");
    } else if (kind > 3) {
        json_t *o = json_object();
        for (uint64_t n = rng_below(g, 8); n > 0; n--)
            (void)json_object_set_new(
                o, keys[rng_below(g, sizeof keys / sizeof *keys)], document(g, 0));
        char *text = json_text(o, false);
        str_add(&s, text);
        mem_free(text);
        json_decref(o);
    }
    return str_take(&s);
}

static void attack(struct target *t, struct rng *g, const struct route *r)
{
    char path[2048];
    const char *token = NULL;
    struct http_reply reply;
    char *body = body_of(g);
    uint64_t who = rng_below(g, 8);
    path_of(g, r, path, sizeof path);
    if (who > 1)
        token = auth_owner_token(t->server->auth);
    else if (who == 1)
        token = auth_page_token(t->server->auth);
    const char *form[] = {"Content-Type", "multipart/form-data; boundary=a", NULL};
    struct http_ask ask = {
        .method = method_name(
            rng_below(g, 16) ? r->method : (enum route_method)rng_below(g, METHOD_COUNT)),
        .target = path,
        .token = token,
        .headers = rng_below(g, 4) ? NULL : form,
        .body = body,
        .body_bytes = strlen(body)};
    http_ask(t->server->http, &ask, &reply);
    judge(ask.method, path, body, &reply);
    mem_free(body);
}

TEST_WITHIN(
    attack_routes, 3600,
    "H4: every route answers hostile requests with a reason, never with a fault of its own")
{
    struct target t = {0};
    struct rng g;
    const char *soak = getenv("SNUG_SOAK");
    size_t rounds = (soak && *soak == '1' ? 1000000 : 20000) / route_count + 1;
    rng_init(&g, test_seed(), 1, 0);
    target_open(&t);
    for (size_t i = 0; i < rounds; i++) {
        if (i % 100 == 99) { /* what earlier requests left does not slow later ones down */
            target_close(&t);
            target_open(&t);
        }
        for (size_t r = 0; r < route_count; r++)
            attack(&t, &g, &routes[r]);
    }
    target_close(&t);
}

TEST(attack_access, "H1: each route refuses whom its row does not name")
{
    struct target t = {0};
    target_open(&t);
    for (size_t i = 0; i < route_count; i++) {
        const struct route *r = &routes[i];
        char path[512];
        size_t n = 0;
        for (const char *c = r->path; *c && n + 2 < sizeof path;) {
            if (*c == '{') {
                path[n++] = 'x';
                c += strcspn(c, "}") + 1;
            } else {
                path[n++] = *c++;
            }
        }
        path[n] = '\0';
        struct http_reply reply;
        struct http_ask ask = {.method = method_name(r->method), .target = path};
        http_ask(t.server->http, &ask, &reply);
        bool refused = reply.status == 401 || reply.status == 403;
        bool open =
            r->access == ACCESS_OPEN || r->access == ACCESS_READ || r->access == ACCESS_UPGRADE;
        if (refused == open)
            test_fail(__FILE__, __LINE__, "%s %s: %d", ask.method, path, reply.status);
        http_reply_release(&reply);
        ask.token = auth_page_token(t.server->auth);
        http_ask(t.server->http, &ask, &reply);
        if ((reply.status == 403) != (!open && r->access != ACCESS_WRITE))
            test_fail(__FILE__, __LINE__, "page: %s %s: %d", ask.method, path, reply.status);
        http_reply_release(&reply);
    }
    target_close(&t);
}

TEST(openapi_is_the_table, "every route is in /openapi.json, and nothing else")
{
    struct target t = {0};
    struct err e = {0};
    struct http_reply reply;
    json_t *o = NULL, *item;
    const char *path;
    size_t n = 0;
    target_open(&t);
    http_ask(
        t.server->http, &(struct http_ask){.method = "GET", .target = "/openapi.json"}, &reply);
    CHECK_EQ(reply.status, 200);
    CHECK_OK(json_parse(reply.data, reply.data_bytes, "openapi", &o, &e), &e);
    CHECK_STR(json_get_str(o, "openapi", ""), "3.1.0");
    json_t *paths = json_object_get(o, "paths");
    json_object_foreach(paths, path, item)
    {
        const char *method;
        json_t *operation;
        json_object_foreach(item, method, operation)
        {
            CHECK(json_get_str(operation, "summary", NULL));
            CHECK(json_object_get(operation, "responses"));
            n++;
        }
    }
    CHECK_EQ(n, route_count);
    for (size_t i = 0; i < route_count; i++) {
        char plain[256], method[16];
        size_t at = 0;
        for (const char *c = routes[i].path; *c; c++)
            if (*c != '.' || c[1] != '.')
                plain[at++] = *c;
            else
                c += 2;
        plain[at] = '\0';
        for (at = 0; method_name(routes[i].method)[at]; at++)
            method[at] = (char)(method_name(routes[i].method)[at] - 'A' + 'a');
        method[at] = '\0';
        if (!json_object_get(json_object_get(paths, plain), method))
            test_fail(__FILE__, __LINE__, "%s %s is not in the document", method, routes[i].path);
    }
    json_decref(o);
    http_reply_release(&reply);
    target_close(&t);
}
