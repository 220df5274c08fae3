/* graph.c - life of a graph: load, look at, issues, save. */
#include "graph/graph_int.h"

#include "base/env.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX (64u << 20)

void graph_issue_add(
    struct graph *g, const char *code, const char *node_id, json_t *params, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    if (g->issues.n == ISSUES_MAX) {
        json_decref(params);
        return;
    }
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n >= (int)sizeof text) {
        /* Do not end within a character. */
        size_t end = sizeof text - 4;
        while (end > 0 && ((unsigned char)text[end] & 0xC0) == 0x80)
            end--;
        memcpy(text + end, "...", 4);
    }
    /* A name that was cut within a character would not be UTF-8. */
    json_t *valid = json_string(text);
    for (char *c = text; !valid && *c; c++) {
        if ((unsigned char)*c >= 0x80)
            *c = '?';
    }
    json_decref(valid);
    struct graph_issue issue = {
        .message = arena_strdup(&g->arena, text),
        .code = code,
        .node_id = node_id,
        .params = params ? params : json_object()};
    vec_push(&g->issues, issue);
}

/* Takes the document. */
static enum status
graph_build(json_t *document, const char *name, struct graph **out, struct err *e)
{
    enum status st = graph_shape(document, name, e);
    if (st != ST_OK) {
        json_decref(document);
        return st;
    }
    struct graph *g = mem_alloc(sizeof *g);
    arena_init(&g->arena);
    g->document = document;
    g->path = arena_strdup(&g->arena, name);
    graph_expand(g);
    g->n_load_issues = g->issues.n;
    *out = g;
    return ST_OK;
}

const char *graph_path_shown(const char *path)
{
    return str_starts(path, "/proc/self/fd/") ? "-" : path;
}

enum status graph_load(const char *path, struct graph **out, struct err *e)
{
    json_t *document;
    TRY(json_read_file(path, FILE_BYTES_MAX, &document, e));
    return graph_build(document, graph_path_shown(path), out, e);
}

enum status
graph_parse(const char *text, size_t n, const char *name, struct graph **out, struct err *e)
{
    json_t *document;
    TRY(json_parse(text, n, name, &document, e));
    return graph_build(document, name, out, e);
}

void graph_free(struct graph *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->nodes.n; i++)
        json_decref(g->nodes.data[i].params);
    for (size_t i = 0; i < g->issues.n; i++)
        json_decref(g->issues.data[i].params);
    vec_release(&g->nodes);
    vec_release(&g->edges);
    vec_release(&g->live);
    vec_release(&g->exposures);
    vec_release(&g->lost);
    vec_release(&g->issues);
    vec_release(&g->order);
    mem_free(g->first_in);
    json_decref(g->index);
    json_decref(g->document);
    json_decref(g->builtin);
    arena_release(&g->arena);
    mem_free(g);
}

const char *graph_path(const struct graph *g)
{
    return g->path;
}

const char *graph_name(const struct graph *g)
{
    return json_get_str(g->document, "name", "Untitled");
}

const char *graph_setting_device(const struct graph *g)
{
    return json_get_str(json_object_get(g->document, "settings"), "device", NULL);
}

bool graph_setting_seed(const struct graph *g, int64_t *seed)
{
    const json_t *v = json_object_get(json_object_get(g->document, "settings"), "seed");
    if (!json_is_integer(v))
        return false;
    *seed = json_integer_value(v);
    return true;
}

size_t graph_node_count(const struct graph *g)
{
    return g->nodes.n;
}

const struct graph_node *graph_node_at(const struct graph *g, size_t node)
{
    ASSERT(node < g->nodes.n);
    return &g->nodes.data[node];
}

size_t graph_node_find(const struct graph *g, const char *id)
{
    const json_t *v = json_object_get(g->index, id);
    return v ? (size_t)json_integer_value(v) : GRAPH_NO_NODE;
}

size_t graph_order_count(const struct graph *g)
{
    return g->order.n;
}

size_t graph_order_at(const struct graph *g, size_t i)
{
    ASSERT(i < g->order.n);
    return g->order.data[i];
}

size_t graph_issue_count(const struct graph *g)
{
    return g->issues.n;
}

const struct graph_issue *graph_issue_at(const struct graph *g, size_t i)
{
    ASSERT(i < g->issues.n);
    return &g->issues.data[i];
}

json_t *graph_issues_json(const struct graph *g)
{
    json_t *list = json_array();
    for (size_t i = 0; i < g->issues.n; i++) {
        const struct graph_issue *issue = &g->issues.data[i];
        json_t *o = json_object();
        json_put_str(o, "message", issue->message);
        json_put_str(o, "code", issue->code);
        json_put_str(o, "node_id", issue->node_id);
        (void)json_object_set(o, "params", issue->params);
        (void)json_array_append_new(list, o);
    }
    return list;
}

enum status graph_verdict(const struct graph *g, struct err *e)
{
    if (g->issues.n == 0)
        return ST_OK;
    const struct graph_issue *first = &g->issues.data[0];
    size_t more = g->issues.n - 1;
    bool later = str_ends(first->code, "_not_runnable");
    enum status st =
        err_set(e, later ? ST_UNSUPPORTED : ST_INVALID, "\"%s\": %s", g->path, first->message);
    if (more > 0 && e) {
        struct str all;
        str_init(&all);
        for (size_t i = 0; i < g->issues.n && all.n < sizeof e->detail - 200; i++)
            str_printf(&all, "%s\n", g->issues.data[i].message);
        err_detail(e, "%s", all.data);
        str_release(&all);
        err_hint(e, "%zu problems in all: see \"snug validate %s\"", more + 1, g->path);
    }
    const char *near = json_get_str(first->params, "nearest", NULL);
    if (near && more == 0)
        err_hint(e, "Did you mean \"%s\"?", near);
    if (first->node_id) {
        size_t node = graph_node_find(g, first->node_id);
        err_node(e, first->node_id, node == GRAPH_NO_NODE ? "" : g->nodes.data[node].type);
    }
    return st;
}

enum status graph_prepare(
    const char *path, const char *const *sets, size_t n_sets, struct graph **out, struct err *e)
{
    struct graph *g = NULL;
    TRY(graph_load(path, &g, e));
    enum status st = ST_OK;
    for (size_t i = 0; i < n_sets; i++)
        TRY_OUT(graph_set(g, sets[i], e));
    if (graph_check(g, GRAPH_RUN) == 0)
        (void)graph_check_runnable(g);
    TRY_OUT(graph_verdict(g, e));
    *out = g;
    return ST_OK;
out:
    graph_free(g);
    return st;
}

/* Secrets of one object of parameters, by the type they belong to. */
static void blank_secrets(json_t *params, const char *type)
{
    const struct node_type *t = type ? node_type_find(type) : NULL;
    for (const struct node_param *p = t ? t->params : NULL; p && p->name; p++) {
        if (p->type == PARAM_SECRET && json_object_get(params, p->name))
            json_put_str(params, p->name, "");
    }
}

static void blank_nodes(json_t *owner)
{
    json_t *nodes = json_object_get(owner, "nodes"), *node, *inner;
    size_t i;
    const char *id;
    json_array_foreach(nodes, i, node)
    {
        json_t *data = json_object_get(node, "data");
        blank_secrets(json_object_get(node, "params"), json_get_str(node, "type", NULL));
        blank_secrets(json_object_get(data, "params"), json_get_str(node, "type", NULL));
        /* What the inner nodes are is not known here; the name says enough. */
        json_object_foreach(json_object_get(data, "internalParams"), id, inner)
        {
            blank_secrets(inner, "LLMChat");
        }
    }
}

json_t *graph_document(const struct graph *g)
{
    json_t *copy = json_deep_copy(g->document), *one;
    size_t i;
    blank_nodes(copy);
    json_array_foreach(json_object_get(copy, "presets"), i, one)
    {
        blank_nodes(one);
    }
    json_array_foreach(json_object_get(copy, "subgraphs"), i, one)
    {
        blank_nodes(one);
    }
    return copy;
}

enum status graph_save(const struct graph *g, const char *path, struct err *e)
{
    if (g->unsaved)
        return err_set(
            e, ST_UNSUPPORTED,
            "the change of node \"%s\" cannot be written: it stands in a preset within a preset or "
            "in a subgraph",
            g->unsaved);
    json_t *document = graph_document(g);
    char *text = json_text(document, true);
    enum status st = file_write(path, text, strlen(text), e);
    mem_free(text);
    json_decref(document);
    return st;
}
