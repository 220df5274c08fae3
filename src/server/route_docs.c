/* route_docs.c - /openapi.json and /docs, made from the table of routes. */
#include "server/http_int.h"
#include "server/routes.h"
#include "server/server.h"

#include "base/version.h"

#include <stdio.h>
#include <string.h>

/* What a row's access asks for, in words. */
static const char *access_about(enum route_access a)
{
    static const char *const texts[] = {
        [ACCESS_OPEN] = "anybody",
        [ACCESS_READ] = "anybody (with private_reads: a token or key)",
        [ACCESS_WRITE] = "a token or key",
        [ACCESS_EXEC] = "the owner, or a key with exec",
        [ACCESS_OWNER] = "the owner",
        [ACCESS_WORKER] = "a worker's credential, or the owner",
        [ACCESS_ENROLL] = "a join token, a worker's credential, or the owner",
        [ACCESS_UPGRADE] = "a token or key (a WebSocket is told by its close code)"};
    return texts[a];
}

static const char *body_about(enum route_body b)
{
    static const char *const texts[] = {
        [BODY_NONE] = "",
        [BODY_JSON] = "JSON object",
        [BODY_JSON_ANY] = "JSON object, may be absent",
        [BODY_RAW] = "bytes",
        [BODY_UPLOAD] = "file"};
    return texts[b];
}

/* ---- OpenAPI ---- */

/* "/api/graph/load/{name...}" as OpenAPI writes it: without the dots. */
static void open_path(const char *path, char *out, size_t cap)
{
    size_t n = 0;
    for (; *path && n + 1 < cap; path++)
        if (!str_starts(path, "...}"))
            out[n++] = *path;
        else
            path += 2;
    out[n] = '\0';
}

static json_t *parameters_of(const char *path)
{
    json_t *list = json_array();
    for (const char *at = path; (at = strchr(at, '{')); at++) {
        json_t *p = json_object(), *schema = json_object();
        char name[64];
        (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(at + 1, ".}"), at + 1);
        json_put_str(p, "name", name);
        json_put_str(p, "in", "path");
        json_put_bool(p, "required", true);
        json_put_str(schema, "type", "string");
        json_put(p, "schema", schema);
        (void)json_array_append_new(list, p);
    }
    return list;
}

static json_t *content_of(const char *type, const char *schema_type, const char *format)
{
    json_t *content = json_object(), *media = json_object(), *schema = json_object();
    json_put_str(schema, "type", schema_type);
    if (format)
        json_put_str(schema, "format", format);
    json_put(media, "schema", schema);
    json_put(content, type, media);
    return content;
}

static void put_body(json_t *operation, enum route_body body)
{
    json_t *o = json_object();
    if (body == BODY_NONE) {
        json_decref(o);
        return;
    }
    bool json = body == BODY_JSON || body == BODY_JSON_ANY;
    json_put_bool(o, "required", body != BODY_JSON_ANY);
    json_put(
        o, "content",
        json ? content_of("application/json", "object", NULL)
             : content_of("application/octet-stream", "string", "binary"));
    json_put(operation, "requestBody", o);
}

static void put_response(json_t *responses, const char *status, const char *about, bool error)
{
    json_t *o = json_object();
    json_put_str(o, "description", about);
    if (error) {
        json_t *content = json_object(), *media = json_object(), *schema = json_object();
        json_put_str(schema, "$ref", "#/components/schemas/Error");
        json_put(media, "schema", schema);
        json_put(content, "application/json", media);
        json_put(o, "content", content);
    }
    json_put(responses, status, o);
}

static json_t *responses_of(const struct route *r)
{
    json_t *o = json_object();
    if (r->access == ACCESS_UPGRADE)
        put_response(o, "101", "the connection is a WebSocket", false);
    else
        put_response(o, "200", "done", false);
    if (r->access != ACCESS_OPEN && r->access != ACCESS_UPGRADE) {
        put_response(o, "401", "the key or credential is not known", true);
        put_response(o, "403", "no token, or one that may not", true);
    }
    if (strchr(r->path, '{'))
        put_response(o, "404", "there is no such thing", true);
    if (r->body != BODY_NONE) {
        put_response(o, "413", "the body is too large", true);
        put_response(o, "422", "the body has not the form", true);
    }
    put_response(o, "421", "the Host is not this server's", true);
    return o;
}

static json_t *operation_of(const struct route *r)
{
    json_t *o = json_object(), *tags = json_array();
    char tag[64];
    const char *from = str_starts(r->path, "/api/") ? r->path + 5 : r->path + 1;
    (void)snprintf(tag, sizeof tag, "%.*s", (int)strcspn(from, "/"), from);
    (void)json_array_append_new(tags, json_string(tag));
    json_put(o, "tags", tags);
    json_put_str(o, "summary", r->about);
    json_put_str(o, "x-access", access_name(r->access));
    json_put_str(o, "description", access_about(r->access));
    json_t *parameters = parameters_of(r->path);
    if (json_array_size(parameters))
        json_put(o, "parameters", parameters);
    else
        json_decref(parameters);
    put_body(o, r->body);
    json_put(o, "responses", responses_of(r));
    if (r->access != ACCESS_OPEN && r->access != ACCESS_READ) {
        json_t *list = json_array(), *one = json_object(), *two = json_object();
        json_put(one, "token", json_array());
        json_put(two, "bearer", json_array());
        (void)json_array_append_new(list, one);
        (void)json_array_append_new(list, two);
        json_put(o, "security", list);
    }
    return o;
}

static json_t *components(void)
{
    json_error_t e;
    return json_loads(
        "{\"securitySchemes\":{"
        "\"token\":{\"type\":\"apiKey\",\"in\":\"header\",\"name\":\"X-CodefyUI-Token\","
        "\"description\":\"the page's token (/api/auth/bootstrap), or that of session.token\"},"
        "\"bearer\":{\"type\":\"http\",\"scheme\":\"bearer\","
        "\"description\":\"an API key (snk_), a worker's credential (snw_), a join token "
        "(snj_)\"}},"
        "\"schemas\":{\"Error\":{\"type\":\"object\",\"required\":[\"detail\"],"
        "\"properties\":{\"detail\":{},\"code\":{\"type\":\"string\"},"
        "\"hint\":{\"type\":\"string\"}}}}}",
        0, &e);
}

json_t *openapi_json(const struct route *rows, size_t n)
{
    json_t *o = json_object(), *info = json_object(), *paths = json_object();
    json_put_str(info, "title", "snug");
    json_put_str(info, "version", SNUG_VERSION);
    json_put_str(info, "description", "Training that fits: runs, queue, workers, cards.");
    for (size_t i = 0; i < n; i++) {
        char path[256], method[16];
        open_path(rows[i].path, path, sizeof path);
        (void)snprintf(method, sizeof method, "%s", method_name(rows[i].method));
        for (char *c = method; *c; c++)
            *c = (char)(*c - 'A' + 'a');
        json_t *item = json_object_get(paths, path);
        if (!item) {
            item = json_object();
            json_put(paths, path, item);
        }
        json_put(item, method, operation_of(&rows[i]));
    }
    json_put_str(o, "openapi", "3.1.0");
    json_put(o, "info", info);
    json_put(o, "paths", paths);
    json_put(o, "components", components());
    return o;
}

void route_openapi(struct server *s, const struct http_request *q, struct http_reply *r)
{
    (void)s, (void)q;
    http_json(r, 200, openapi_json(routes, route_count));
}

/* ---- the page ---- */

static void add_escaped(struct str *out, const char *text)
{
    for (; *text; text++) {
        const char *name = *text == '<'   ? "&lt;"
                           : *text == '>' ? "&gt;"
                           : *text == '&' ? "&amp;"
                                          : NULL;
        name ? str_add(out, name) : str_add_n(out, text, 1);
    }
}

static void docs_row(struct str *out, const struct route *r)
{
    str_printf(out, "<tr><td>%s<td><code>", method_name(r->method));
    add_escaped(out, r->path);
    str_printf(out, "</code><td>%s<td>%s<td>", access_name(r->access), body_about(r->body));
    add_escaped(out, r->about);
    str_add(out, "\n");
}

void route_docs(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct str out;
    (void)s, (void)q;
    str_init(&out);
    str_add(
        &out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>snug: "
        "API</title>\n"
        "<style>body{font:15px/1.5 system-ui,sans-serif;max-width:75em;margin:2em auto;padding:0 "
        "1em}"
        "table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;"
        "padding:.25em .6em;border-bottom:1px solid #8884}code{white-space:nowrap}</style></head>"
        "<body>\n<h1>snug: API</h1>\n<p>Every route of this server; <a href=\"/openapi.json\">"
        "as OpenAPI 3.1</a>. Errors are <code>{\"detail\": ...}</code>. Tokens go in "
        "<code>X-CodefyUI-Token</code> or <code>X-Snug-Token</code>, keys and credentials in "
        "<code>Authorization: Bearer</code>.</p>\n<table><tr><th>Access<th>means</tr>\n");
    for (int a = ACCESS_OPEN; a <= ACCESS_UPGRADE; a++)
        str_printf(
            &out, "<tr><td>%s<td>%s\n", access_name((enum route_access)a),
            access_about((enum route_access)a));
    str_add(
        &out,
        "</table>\n<h2>Routes</h2>\n<table><tr><th>Method<th>Path<th>Access<th>Body<th></tr>\n");
    for (size_t i = 0; i < route_count; i++)
        docs_row(&out, &routes[i]);
    str_add(&out, "</table></body></html>\n");
    size_t n = out.n;
    http_text(r, 200, "text/html; charset=utf-8", str_take(&out), n);
    (void)http_add_header(
        r, "Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'");
}
