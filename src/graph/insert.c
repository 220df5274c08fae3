/* insert.c - puts a node between an output of a graph file and everything that it feeds. */
#include "graph/graph_int.h"

#include <string.h>

/* An id like `wish` that no node has. */
static void free_id(const json_t *nodes, const char *wish, char *out, size_t cap)
{
    const json_t *node;
    size_t i;
    (void)snprintf(out, cap, "%s", wish);
    for (int next = 2;; next++) {
        bool taken = false;
        json_array_foreach(nodes, i, node) taken =
            taken || str_eq(json_get_str(node, "id", NULL), out);
        if (!taken)
            return;
        (void)snprintf(out, cap, "%s%d", wish, next);
    }
}

/* A little right of and below the source. */
static json_t *place_beside(const json_t *source)
{
    const json_t *at = json_object_get(source, "position");
    json_t *p = json_object();
    json_put_f64(p, "x", json_get_f64(at, "x", 0) + 100);
    json_put_f64(p, "y", json_get_f64(at, "y", 0) + 100);
    return p;
}

static json_t *edge_to(const char *id, const char *source, const char *port, const char *input)
{
    json_t *edge = json_object();
    json_put_str(edge, "id", id);
    json_put_str(edge, "source", source);
    json_put_str(edge, "target", id);
    json_put_str(edge, "sourceHandle", port);
    json_put_str(edge, "targetHandle", input);
    return edge;
}

enum status
graph_insert_after(json_t *document, const struct graph_insertion *x, char id[64], struct err *e)
{
    json_t *nodes = json_object_get(document, "nodes"), *edges = json_object_get(document, "edges");
    json_t *node, *edge, *source = NULL, *data = json_object(), *new_node = json_object();
    size_t i;
    json_array_foreach(nodes, i, node)
    {
        if (str_eq(json_get_str(node, "id", NULL), x->source))
            source = node;
    }
    if (!source || !json_is_array(edges)) {
        json_decref(data);
        json_decref(new_node);
        return err_set(e, ST_NOT_FOUND, "the graph file has no node \"%.100s\"", x->source);
    }
    free_id(nodes, x->id, id, 64);
    json_array_foreach(edges, i, edge)
    {
        if (str_eq(json_get_str(edge, "source", NULL), x->source) &&
            str_eq(json_get_str(edge, "sourceHandle", NULL), x->port) &&
            !str_eq(json_get_str(edge, "type", NULL), "trigger")) {
            json_put_str(edge, "source", id);
            json_put_str(edge, "sourceHandle", x->output);
        }
    }
    json_put(data, "params", json_deep_copy(x->params));
    json_put_str(new_node, "id", id);
    json_put_str(new_node, "type", x->type);
    json_put(new_node, "position", place_beside(source));
    json_put(new_node, "data", data);
    (void)json_array_append_new(nodes, new_node);
    (void)json_array_append_new(edges, edge_to(id, x->source, x->port, x->input));
    return ST_OK;
}
