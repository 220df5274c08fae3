/* route_graphs.c - graphs: check, save, load, list, rename, delete, contract; examples. */
#include "server/catalog.h"
#include "server/files.h"
#include "server/graph_files.h"
#include "server/routes.h"
#include "server/server.h"

#include "base/env.h"
#include "base/mem.h"
#include "graph/graph.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- checking ---- */

static json_t *texts_of(const json_t *issues)
{
    json_t *texts = json_array(), *issue;
    size_t i;
    json_array_foreach(issues, i, issue)(void)
        json_array_append(texts, json_object_get(issue, "message"));
    return texts;
}

/* A document whose shape is wrong has one issue: what is wrong with it. */
static json_t *shape_issue(const struct err *e)
{
    json_t *list = json_array(), *issue = json_object();
    json_put_str(issue, "message", e->text);
    json_put_str(issue, "code", "malformed");
    json_put(issue, "node_id", json_null());
    json_put(issue, "params", json_object());
    (void)json_array_append_new(list, issue);
    return list;
}

/* The body with the user's presets in it, as a graph. */
static enum status graph_of(struct server *s, const json_t *body, struct graph **g, struct err *e)
{
    json_t *copy = json_copy((json_t *)(uintptr_t)body);
    catalog_complete(s->config->home, copy);
    char *text = json_text(copy, false);
    enum status st = graph_parse(text, strlen(text), "the graph", g, e);
    mem_free(text);
    json_decref(copy);
    return st;
}

static bool has_nodes(const json_t *body, struct http_reply *r)
{
    if (json_is_array(json_object_get(body, "nodes")) &&
        json_is_array(json_object_get(body, "edges")))
        return true;
    http_error(r, 422, "a graph has \"nodes\" and \"edges\", both lists");
    return false;
}

void route_graph_validate(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct graph *g = NULL;
    struct err e = {0};
    json_t *issues, *o;
    if (!has_nodes(q->json, r))
        return;
    if (graph_of(s, q->json, &g, &e) == ST_OK) {
        (void)graph_check(g, GRAPH_ALL);
        issues = graph_issues_json(g);
    } else {
        issues = shape_issue(&e);
    }
    o = json_object();
    json_put_bool(o, "valid", json_array_size(issues) == 0);
    json_put(o, "errors", texts_of(issues));
    json_put(o, "issues", issues);
    graph_free(g);
    http_json(r, 200, o);
}

/* ---- files ---- */

static void conflict(struct http_reply *r, const char *file, const char *name)
{
    json_t *detail = json_object();
    json_put_str(detail, "error", "graph_exists");
    json_put_str(detail, "file", file);
    json_put_str(detail, "name", name);
    http_error_json(r, 409, detail);
}

static json_t *saved(const char *message, const char *file)
{
    json_t *o = json_object();
    json_put_str(o, "message", message);
    json_put_str(o, "file", file);
    return o;
}

void route_graph_save(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    char file[256] = "", path[1400];
    const json_t *wanted = json_object_get(q->json, "file");
    const json_t *name = json_object_get(q->json, "name");
    const json_t *overwrite = json_object_get(q->json, "overwrite");
    if (!has_nodes(q->json, r))
        return;
    if ((wanted && !json_is_string(wanted) && !json_is_null(wanted)) ||
        (name && !json_is_string(name)) ||
        (overwrite && !json_is_boolean(overwrite) && !json_is_null(overwrite))) {
        http_error(r, 422, "\"name\" and \"file\" are texts, \"overwrite\" is true or false");
        return;
    }
    enum status st = graph_files_save(
        s->config->graphs_dir, q->json, json_string_value(wanted), !json_is_false(overwrite), file,
        &e);
    if (st == ST_CONFLICT && json_is_false(overwrite)) {
        conflict(r, file, name ? json_string_value(name) : "Untitled");
        return;
    }
    if (st != ST_OK) {
        http_fail(r, &e);
        return;
    }
    json_t *o = saved("Graph saved", file);
    (void)snprintf(path, sizeof path, "%s/%s", s->config->graphs_dir, file);
    json_put_str(o, "path", path);
    server_changed(s, "graphs");
    http_json(r, 200, o);
}

void route_graph_load(struct server *s, const struct http_request *q, struct http_reply *r)
{
    json_t *document = NULL;
    struct err e = {0};
    if (graph_files_load(s->config->graphs_dir, q->param[0], &document, &e) == ST_OK)
        http_json(r, 200, document);
    else
        http_fail(r, &e);
}

void route_graph_list(struct server *s, const struct http_request *q, struct http_reply *r)
{
    (void)q;
    http_json(r, 200, graph_files_list(s->config->graphs_dir));
}

void route_graph_rename(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    char file[256] = "";
    const char *from = json_get_str(q->json, "from", NULL), *to = json_get_str(q->json, "to", NULL);
    if (!from || !to) {
        http_error(r, 422, "\"from\" and \"to\" are needed, both texts");
        return;
    }
    enum status st = graph_files_rename(s->config->graphs_dir, from, to, file, &e);
    if (st == ST_CONFLICT && file[0]) {
        conflict(r, file, to);
        return;
    }
    if (st != ST_OK) {
        http_fail(r, &e);
        return;
    }
    json_t *o = saved("Graph renamed", file);
    json_put_str(o, "name", to);
    server_changed(s, "graphs");
    http_json(r, 200, o);
}

void route_graph_delete(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    char file[256] = "";
    if (graph_files_delete(s->config->graphs_dir, q->param[0], file, &e) != ST_OK) {
        http_fail(r, &e);
        return;
    }
    json_t *o = json_object(), *removed = json_array();
    (void)json_array_append_new(removed, json_string(file));
    json_put_str(o, "message", "Graph deleted");
    json_put(o, "removed", removed);
    server_changed(s, "graphs");
    http_json(r, 200, o);
}

void route_graph_export(struct server *s, const struct http_request *q, struct http_reply *r)
{
    (void)s;
    if (has_nodes(q->json, r))
        http_error(
            r, 501, "this version does not export graphs to Python; `snug run` executes them");
}

/* ---- examples ---- */

static void example_add(json_t *rows, const char *dir, const char *file)
{
    char path[1024];
    json_t *document = NULL, *row;
    struct err ignored = {0};
    if (files_find(dir, file, path, &ignored) != ST_OK ||
        json_read_file(path, 64 << 20, &document, &ignored) != ST_OK)
        return;
    size_t n = strcspn(file, "/");
    char category[256];
    (void)snprintf(category, sizeof category, "%.*s", (int)(strchr(file, '/') ? n : 0), file);
    row = json_object();
    json_put_str(row, "name", json_get_str(document, "name", category));
    json_put_str(row, "description", json_get_str(document, "description", ""));
    json_put_str(row, "category", category);
    json_put_str(row, "path", file);
    json_put_i64(row, "node_count", (int64_t)json_array_size(json_object_get(document, "nodes")));
    json_put_i64(row, "edge_count", (int64_t)json_array_size(json_object_get(document, "edges")));
    (void)json_array_append_new(rows, row);
    json_decref(document);
}

void route_examples_list(struct server *s, const struct http_request *q, struct http_reply *r)
{
    json_t *files = files_list(s->config->examples_dir, ".json"), *rows = json_array(), *file;
    size_t i;
    (void)q;
    json_array_foreach(files, i, file)
    {
        const char *name = json_get_str(file, "filename", "");
        if (str_ends(name, "/graph.json") || str_eq(name, "graph.json"))
            example_add(rows, s->config->examples_dir, name);
    }
    json_decref(files);
    http_json(r, 200, rows);
}

void route_examples_load(struct server *s, const struct http_request *q, struct http_reply *r)
{
    const char *name = http_query(q, "path");
    char path[1024];
    json_t *document = NULL;
    struct err e = {0};
    if (!name) {
        http_error(r, 422, "?path= is needed: a path of /api/examples/list");
        return;
    }
    if (!str_ends(name, ".json") || files_find(s->config->examples_dir, name, path, &e) != ST_OK ||
        json_read_file(path, 64 << 20, &document, &e) != ST_OK)
        http_error(r, 404, "Example '%s' not found", name);
    else
        http_json(r, 200, document);
}
