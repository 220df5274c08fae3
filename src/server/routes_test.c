/* routes_test.c - the simple routes on a bare server: graphs, files, keys, health, devices. */
#include "server/auth.h"
#include "server/files.h"
#include "server/graph_files.h"
#include "server/http_int.h"
#include "server/server.h"

#include "base/env.h"
#include "test.h"
#include "wire/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct bare {
    struct server_config config;
    struct server *server;
    struct http_reply r;
    json_t *json; /* of the last answer */
};

static void bare_open(struct bare *b)
{
    struct err e = {0};
    (void)setenv("SNUG_HOME", test_dir(), 1);
    server_config_defaults(&b->config, test_dir());
    b->config.builtin_worker = false;
    CHECK_OK(server_open_bare(&b->config, &b->server, &e), &e);
}

static void bare_close(struct bare *b)
{
    json_decref(b->json);
    http_reply_release(&b->r);
    server_close(b->server);
    server_config_release(&b->config);
}

/* One request as the owner; the answer's status. */
static int ask_with(
    struct bare *b, const char *method, const char *target, const char *const *headers,
    const char *body)
{
    struct err e = {0};
    struct http_ask ask = {
        .method = method,
        .target = target,
        .headers = headers,
        .token = auth_owner_token(b->server->auth),
        .body = body,
        .body_bytes = body ? strlen(body) : 0};
    http_reply_release(&b->r);
    json_decref(b->json);
    b->json = NULL;
    http_ask(b->server->http, &ask, &b->r);
    if (b->r.data && json_parse(b->r.data, b->r.data_bytes, "answer", &b->json, &e) != ST_OK)
        b->json = NULL;
    return b->r.status;
}

static int ask(struct bare *b, const char *method, const char *target, const char *body)
{
    return ask_with(b, method, target, NULL, body);
}

static const char *detail(const struct bare *b)
{
    return json_get_str(b->json, "detail", "");
}

#define GRAPH(name)                                                                                \
    "{\"name\":\"" name "\",\"nodes\":[{\"id\":\"s\",\"type\":\"Start\"},{\"id\":\"p\",\"type\":"  \
    "\"Print\",\"data\":{\"params\":{}},\"other\":1}],\"edges\":[],\"kept\":[1]}"

TEST(health_says, "S3: health names version, boot, counts and the limits of the three stores")
{
    struct bare b = {0};
    bare_open(&b);
    CHECK_EQ(ask(&b, "GET", "/api/health", NULL), 200);
    CHECK_STR(json_get_str(b.json, "status", ""), "ok");
    CHECK(run_id_is_valid(json_get_str(b.json, "boot_id", "")));
    CHECK(json_get_i64(b.json, "nodes_loaded", 0) > 100);
    const json_t *caches = json_object_get(b.json, "caches");
    CHECK_EQ(
        json_get_i64(json_object_get(caches, "execution_cache"), "max_bytes_each", 0), INT64_C(1)
                                                                                           << 30);
    CHECK_EQ(
        json_get_i64(json_object_get(caches, "run_output_store"), "max_bytes", 0), INT64_C(2)
                                                                                       << 30);
    CHECK_EQ(json_get_i64(json_object_get(caches, "node_state_store"), "max_modules", 0), 200);
    CHECK(json_get_str(json_object_get(b.json, "database"), "sqlite", NULL));
    bare_close(&b);
}

TEST(devices_menu_route, "D1: devices are listed as menus show them, free memory behind each card")
{
    struct bare b = {0};
    (void)setenv("SNUG_SIM_CARDS", "RTX 4090:24GiB:sm89,RTX 3060:12GiB:sm86", 1);
    bare_open(&b);
    CHECK_EQ(ask(&b, "GET", "/api/system/devices", NULL), 200);
    const json_t *list = json_object_get(b.json, "devices");
    CHECK_EQ(json_array_size(list), 4);
    CHECK_STR(json_get_str(b.json, "default", ""), "cuda");
    static const char *const values[] = {"cpu", "cuda", "cuda:0", "cuda:1"};
    for (size_t i = 0; i < 4; i++)
        CHECK_STR(json_get_str(json_array_get(list, i), "value", ""), values[i]);
    const char *label = json_get_str(json_array_get(list, 3), "label", "");
    CHECK(strstr(label, "cuda:1") && strstr(label, "RTX 3060") && strstr(label, "/ 12.0 GiB"));
    bare_close(&b);
}

TEST(graphs_saved, "graphs are saved, found by file and by name, renamed, deleted")
{
    struct bare b = {0};
    bare_open(&b);
    CHECK_EQ(ask(&b, "POST", "/api/graph/save", GRAPH("My gr\xc3\xa4ph/1")), 200);
    CHECK_STR(json_get_str(b.json, "message", ""), "Graph saved");
    CHECK_STR(json_get_str(b.json, "file", ""), "My_gr\xc3\xa4ph_1.json");
    CHECK_EQ(ask(&b, "GET", "/api/graph/load/My_gr%C3%A4ph_1", NULL), 200);
    CHECK(json_object_get(b.json, "kept")); /* keys that we do not know stay */
    CHECK_EQ(ask(&b, "GET", "/api/graph/load/My%20gr%C3%A4ph%2F1", NULL), 200);
    CHECK_EQ(ask(&b, "GET", "/api/graph/load/My_gr%C3%A4ph_1.json", NULL), 200);
    CHECK_EQ(ask(&b, "GET", "/api/graph/load/none", NULL), 404);
    /* overwrite: false refuses, absent replaces */
    CHECK_EQ(ask(&b, "POST", "/api/graph/save", GRAPH("a")), 200);
    CHECK_EQ(ask(&b, "POST", "/api/graph/save", GRAPH("a")), 200);
    CHECK_EQ(
        ask(&b, "POST", "/api/graph/save",
            "{\"name\":\"a\",\"overwrite\":false,\"nodes\":[],\"edges\":[]}"),
        409);
    const json_t *why = json_object_get(b.json, "detail");
    CHECK_STR(json_get_str(why, "error", ""), "graph_exists");
    CHECK_STR(json_get_str(why, "file", ""), "a.json");
    /* an address of its own; neither key is stored */
    CHECK_EQ(
        ask(&b, "POST", "/api/graph/save",
            "{\"name\":\"a\",\"file\":\"b\",\"overwrite\":false,\"nodes\":[],\"edges\":[]}"),
        200);
    CHECK_STR(json_get_str(b.json, "file", ""), "b.json");
    CHECK_EQ(ask(&b, "GET", "/api/graph/load/b", NULL), 200);
    CHECK(!json_object_get(b.json, "file") && !json_object_get(b.json, "overwrite"));
    CHECK_EQ(ask(&b, "GET", "/api/graph/list", NULL), 200);
    CHECK_EQ(json_array_size(b.json), 3);
    /* two of one name, no file of it: which? */
    CHECK_EQ(ask(&b, "POST", "/api/graph/rename", "{\"from\":\"a.json\",\"to\":\"c\"}"), 200);
    CHECK_STR(json_get_str(b.json, "file", ""), "c.json");
    CHECK_EQ(
        ask(&b, "POST", "/api/graph/save",
            "{\"name\":\"a\",\"file\":\"d\",\"nodes\":[],\"edges\":[]}"),
        200);
    CHECK_EQ(ask(&b, "GET", "/api/graph/load/a", NULL), 409);
    CHECK_EQ(ask(&b, "POST", "/api/graph/rename", "{\"from\":\"c\",\"to\":\"d\"}"), 409);
    CHECK_EQ(ask(&b, "POST", "/api/graph/rename", "{\"from\":\"zz\",\"to\":\"e\"}"), 404);
    CHECK_EQ(ask(&b, "POST", "/api/graph/rename", "{\"from\":\"c\",\"to\":\"\"}"), 400);
    CHECK_EQ(ask(&b, "POST", "/api/graph/rename", "{\"from\":3}"), 422);
    CHECK_EQ(ask(&b, "DELETE", "/api/graph/c", NULL), 200);
    CHECK_STR(json_string_value(json_array_get(json_object_get(b.json, "removed"), 0)), "c.json");
    CHECK_EQ(ask(&b, "DELETE", "/api/graph/c", NULL), 404);
    CHECK_EQ(ask(&b, "POST", "/api/graph/save", "{\"name\":\"a\"}"), 422);
    CHECK_EQ(ask(&b, "POST", "/api/graph/save", "{\"name\":1,\"nodes\":[],\"edges\":[]}"), 422);
    CHECK_EQ(ask(&b, "POST", "/api/graph/save", "{\"nodes\":[3],\"edges\":[]}"), 422);
    bare_close(&b);
}

TEST(graphs_secrets, "H2: secrets of a graph are blank in its file")
{
    struct bare b = {0};
    bare_open(&b);
    const char *graph =
        "{\"name\":\"k\",\"nodes\":[{\"id\":\"h\",\"type\":\"HuggingFaceDataset\",\"data\":{"
        "\"params\":{\"token\":\"hf_hidden\",\"hf_token\":\"hf_hidden\"}}}],\"edges\":[]}";
    CHECK_EQ(ask(&b, "POST", "/api/graph/save", graph), 200);
    CHECK_EQ(ask(&b, "POST", "/api/graph/validate", graph), 200);
    CHECK(json_is_boolean(json_object_get(b.json, "valid")));
    CHECK(json_is_array(json_object_get(b.json, "errors")));
    CHECK(json_is_array(json_object_get(b.json, "issues")));
    bare_close(&b);
}

/* A link in the folder, to somewhere. */
static void link_to(const char *to, const char *dir, const char *name)
{
    char path[1400];
    struct err e = {0};
    CHECK_OK(dir_make(dir, &e), &e);
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    CHECK_EQ(symlink(to, path), 0);
}

TEST(files_inside, "H3: no name and no link leads out of a folder; inside it links work")
{
    struct bare b = {0};
    struct err e = {0};
    char secret[1100], path[1400];
    bare_open(&b);
    (void)path_join(test_dir(), "secret.pt", secret, sizeof secret);
    CHECK_OK(file_write(secret, "secret", 6, &e), &e);
    CHECK_OK(dir_make(b.config.models_dir, &e), &e);
    (void)snprintf(path, sizeof path, "%s/own.pt", b.config.models_dir);
    CHECK_OK(file_write(path, "own", 3, &e), &e);
    link_to(secret, b.config.models_dir, "link.pt");
    link_to("own.pt", b.config.models_dir, "same.pt");
    link_to(test_dir(), b.config.models_dir, "out");
    static const char *const names[] = {
        "..%2fsecret.pt",  "../secret.pt",   "%2e%2e/secret.pt", "link.pt",      "out/secret.pt",
        "out%2Fsecret.pt", "./../secret.pt", "own.pt/",          "own.pt%00.pt", "..%5csecret.pt",
        "config.json",     "/etc/passwd",    "%2fetc%2fpasswd"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        (void)snprintf(path, sizeof path, "/api/models/download/%s", names[i]);
        int status = ask(&b, "GET", path, NULL);
        CHECK(status == 404 || status == 400);
        (void)snprintf(path, sizeof path, "/api/models/%s", names[i]);
        status = ask(&b, "DELETE", path, NULL);
        CHECK(status == 404 || status == 400);
    }
    CHECK(file_exists(secret));
    CHECK_EQ(ask(&b, "GET", "/api/models/download/same.pt", NULL), 200);
    CHECK_EQ(ask(&b, "GET", "/api/models/download/own.pt", NULL), 200);
    CHECK_EQ(ask(&b, "GET", "/api/models", NULL), 200);
    CHECK_EQ(json_array_size(b.json), 1); /* links are not listed */
    CHECK_STR(json_get_str(json_array_get(b.json, 0), "filename", ""), "own.pt");
    /* An upload replaces a link, it does not follow it. */
    int status = ask(&b, "POST", "/api/models/upload?name=link.pt", "mine");
    CHECK(status == 200 || status == 409);
    char *text;
    size_t n;
    CHECK_OK(file_read(secret, 100, &text, &n, &e), &e);
    CHECK_STR(text, "secret");
    mem_free(text);
    bare_close(&b);
}

TEST(files_upload, "uploads of each kind take their endings; what is there is replaced whole")
{
    struct bare b = {0};
    bare_open(&b);
    CHECK_EQ(ask(&b, "POST", "/api/models/upload?name=a.pt", "one"), 200);
    CHECK_EQ(ask(&b, "POST", "/api/models/upload?name=a.pt", "other"), 200);
    CHECK_EQ(json_get_i64(b.json, "size", 0), 5);
    CHECK_EQ(ask(&b, "POST", "/api/models/upload?name=a.exe", "one"), 400);
    CHECK(strstr(detail(&b), ".safetensors"));
    CHECK_EQ(ask(&b, "POST", "/api/images/upload?name=a.PNG", "one"), 200);
    CHECK_EQ(ask(&b, "POST", "/api/files/upload?name=x%2Fy.csv", "a,b"), 200);
    CHECK_STR(json_get_str(b.json, "filename", ""), "y.csv");
    CHECK_EQ(ask(&b, "POST", "/api/media/upload?name=a.mp4", "x"), 405);
    CHECK_EQ(ask(&b, "DELETE", "/api/files/y.csv", NULL), 200);
    CHECK_EQ(ask(&b, "DELETE", "/api/files/y.csv", NULL), 404);
    CHECK_EQ(ask(&b, "GET", "/api/files", NULL), 200);
    CHECK_EQ(json_array_size(b.json), 0);
    bare_close(&b);
}

TEST(keys_routes, "H2: a key is shown once; the list never shows it")
{
    struct bare b = {0};
    char token[SECRET_BYTES], path[100];
    bare_open(&b);
    CHECK_EQ(ask(&b, "POST", "/api/keys", "{\"name\":\"ci\",\"exec\":true}"), 201);
    (void)snprintf(token, sizeof token, "%s", json_get_str(b.json, "token", ""));
    (void)snprintf(path, sizeof path, "/api/keys/%s", json_get_str(b.json, "id", ""));
    CHECK_EQ(strlen(token), 47);
    CHECK_EQ(ask(&b, "GET", "/api/keys", NULL), 200);
    CHECK(!strstr(b.r.data, token + 12));
    CHECK_EQ(ask(&b, "POST", "/api/keys", "{\"name\":\"ci\"}"), 409);
    CHECK_EQ(ask(&b, "POST", "/api/keys", "{\"name\":3}"), 422);
    CHECK_EQ(ask(&b, "POST", "/api/keys", "{\"name\":\"x\",\"exec\":1}"), 422);
    CHECK_EQ(ask(&b, "DELETE", path, NULL), 200);
    CHECK_EQ(ask(&b, "DELETE", "/api/keys/none", NULL), 404);
    bare_close(&b);
}

TEST(page_token, "H1: a page gets its token and a cookie; a page of another site gets neither")
{
    struct bare b = {0};
    bare_open(&b);
    static const char *const cross[] = {"Sec-Fetch-Site", "cross-site", NULL};
    CHECK_EQ(ask(&b, "GET", "/api/auth/bootstrap", NULL), 200);
    CHECK_STR(json_get_str(b.json, "token", ""), auth_page_token(b.server->auth));
    CHECK(strstr(b.r.headers, "HttpOnly; SameSite=Strict"));
    CHECK_EQ(ask_with(&b, "GET", "/api/auth/bootstrap", cross, NULL), 403);
    static const char *const evil[] = {"Origin", "http://evil.example", NULL};
    CHECK_EQ(ask_with(&b, "GET", "/api/auth/bootstrap", evil, NULL), 403);
    static const char *const listed[] = {
        "Origin", "http://localhost:5173", "Sec-Fetch-Site", "cross-site", NULL};
    CHECK_EQ(ask_with(&b, "GET", "/api/auth/bootstrap", listed, NULL), 200);
    b.config.private_reads = true;
    struct http_reply r;
    struct http_ask nobody = {.method = "GET", .target = "/api/auth/bootstrap"};
    http_ask(b.server->http, &nobody, &r);
    CHECK_EQ(r.status, 403);
    http_reply_release(&r);
    bare_close(&b);
}
