/* set.c - "NODE.PARAM=VALUE" applied to the expanded nodes and to the document. */
#include "graph/graph_int.h"

#include <string.h>

struct assignment {
    char *node, *param, *value; /* parts of one allocation that starts at `node` */
};

/* The last dot before the first "=" parts node from parameter: ids may hold dots. */
static enum status split(const char *text, struct assignment *a, struct err *e)
{
    char *copy = mem_strdup(text);
    char *equals = strchr(copy, '=');
    if (equals)
        *equals = 0;
    char *dot = equals ? strrchr(copy, '.') : NULL;
    if (!dot || dot == copy || dot[1] == 0) {
        mem_free(copy);
        err_set(e, ST_USAGE, "\"%.200s\" is not NODE.PARAM=VALUE", text);
        err_hint(e, "Write for example --set TrainingLoop.epochs=3");
        return ST_USAGE;
    }
    *dot = 0;
    *a = (struct assignment){copy, dot + 1, equals + 1};
    return ST_OK;
}

static bool is_of_type(const struct graph_node *n, const char *type)
{
    return str_eq(n->type, type) || (n->kind && str_eq(n->kind->name, type));
}

static enum status no_such_node(const struct graph *g, const char *name, struct err *e)
{
    VEC(const char *) names = {0};
    for (size_t i = 0; i < g->nodes.n; i++) {
        vec_push(&names, g->nodes.data[i].id);
        vec_push(&names, g->nodes.data[i].type);
    }
    const char *near = str_nearest(name, names.data, names.n);
    vec_release(&names);
    enum status st =
        err_set(e, ST_NOT_FOUND, "\"%s\" has no node or node type \"%.100s\"", g->path, name);
    struct str inner;
    str_init(&inner);
    for (size_t i = 0; i < g->nodes.n && inner.n < 400; i++) {
        const struct graph_node *n = &g->nodes.data[i];
        if (str_eq(n->container, name))
            str_printf(&inner, "%s\"%.100s\"", inner.n ? ", " : "", n->id);
    }
    if (inner.n)
        err_hint(e, "It is a preset or subgraph; set one of %s", inner.data);
    else if (near)
        err_hint(e, "Did you mean \"%.200s\"?", near);
    str_release(&inner);
    return st;
}

static enum status
parse_value(const struct graph_node *n, const struct assignment *a, json_t **value, struct err *e)
{
    if (!n->kind)
        return err_set(
            e, ST_INVALID, "node \"%.100s\" has the unknown type \"%.100s\"", n->id, n->type);
    const struct node_param *p = node_param_find(n->kind, a->param);
    if (!p) {
        const char *near = node_param_nearest(n->kind, a->param);
        err_set(
            e, ST_NOT_FOUND, "node \"%.100s\" (%.100s) has no parameter \"%.100s\"", n->id, n->type,
            a->param);
        if (near)
            err_hint(e, "Did you mean \"%s\"?", near);
        else
            err_hint(e, "See \"snug nodes %.100s\"", n->kind->name);
        return ST_NOT_FOUND;
    }
    *value = node_param_parse(p, a->value);
    if (!*value && (p->type == PARAM_INT || p->type == PARAM_FLOAT || p->type == PARAM_SELECT))
        *value = json_string(a->value); /* refused below, in the words of the check */
    char text[768] = "";
    const char *code = *value ? graph_value_fault(n, p, *value, true, text, sizeof text) : "type";
    if (!code)
        return ST_OK;
    json_decref(*value);
    *value = NULL;
    if (*text)
        return err_set(e, ST_INVALID, "%s", text);
    return err_set(
        e, ST_INVALID, "Parameter '%s' on node %.100s (%.100s): \"%.100s\" is not of type %s",
        p->name, n->id, n->type, a->value, param_type_name(p->type));
}

static json_t *child(json_t *object, const char *key)
{
    json_t *v = json_object_get(object, key);
    if (!v) {
        v = json_object();
        json_put(object, key, v);
    }
    return v;
}

/* Writes the value where the file keeps it: the node's own parameters, or the instance's. */
static void write_home(struct graph *g, struct graph_node *n, const char *param, json_t *value)
{
    if (!n->home) {
        g->unsaved = n->id;
        return;
    }
    json_t *data = child(n->home, "data");
    json_t *params =
        n->home_inner ? child(child(data, "internalParams"), n->home_inner) : child(data, "params");
    (void)json_object_set(params, param, value);
}

static enum status
set_one(struct graph *g, struct graph_node *n, const struct assignment *a, struct err *e)
{
    json_t *value;
    enum status st = parse_value(n, a, &value, e);
    if (st != ST_OK) {
        err_node(e, n->id, n->type);
        return st;
    }
    (void)json_object_set(n->params, a->param, value);
    write_home(g, n, a->param, value);
    json_decref(value);
    return ST_OK;
}

enum status graph_set(struct graph *g, const char *assignment, struct err *e)
{
    struct assignment a;
    enum status st = split(assignment, &a, e);
    if (st != ST_OK)
        return st;
    size_t found = graph_node_find(g, a.node), n_set = 0;
    if (found != GRAPH_NO_NODE) {
        st = set_one(g, &g->nodes.data[found], &a, e);
        n_set = 1;
    }
    for (size_t i = 0; found == GRAPH_NO_NODE && st == ST_OK && i < g->nodes.n; i++) {
        if (!is_of_type(&g->nodes.data[i], a.node))
            continue;
        st = set_one(g, &g->nodes.data[i], &a, e);
        n_set++;
    }
    if (n_set == 0)
        st = no_such_node(g, a.node, e);
    mem_free(a.node);
    return st;
}
