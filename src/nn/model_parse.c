/* model_parse.c - reads a `layers` document: nodes, ports, edges, order.
 *
 * LIMITS  NODES_MAX nodes, EDGES_MAX edges, PORTS_MAX ports a side, names of ID_MAX bytes. */
#include "base/str.h"
#include "nn/model_int.h"

#include <string.h>

enum { NODES_MAX = 4096, EDGES_MAX = 16384, PORTS_MAX = 64, ID_MAX = 100 };
enum { NODE_INPUT = -1, NODE_OUTPUT = -2 }; /* where a node is no layer */

struct node {
    const char *id, *type;
    int layer; /* index of the layer, or what it is instead */
};

struct parse {
    struct model *m;
    struct node *nodes;
    int n_nodes;
    struct err *e;
};

/* A required text of an object. */
static enum status text_of(
    const json_t *object, const char *key, const char *what, size_t i, const char **out,
    struct err *e)
{
    const json_t *v = json_object_get(object, key);
    if (!json_is_object(object))
        return err_set(e, ST_INVALID, "%s %zu must be an object", what, i);
    if (!v)
        return err_set(e, ST_INVALID, "%s %zu has no \"%s\"", what, i, key);
    if (!json_is_string(v) || json_string_length(v) > ID_MAX)
        return err_set(
            e, ST_INVALID, "%s %zu: \"%s\" must be a text of at most %d bytes", what, i, key,
            ID_MAX);
    *out = json_string_value(v);
    return ST_OK;
}

static enum status version_check(const json_t *doc, struct err *e)
{
    const json_t *v = json_object_get(doc, "version");
    if (!json_is_object(doc))
        return err_set(e, ST_INVALID, "\"layers\" must be a JSON object");
    if (json_is_number(v) && json_number_value(v) == 2)
        return ST_OK;
    char *got = v ? json_text(v, false) : mem_strdup("None");
    (void)err_set(e, ST_INVALID, "Unsupported graph spec version: %.60s", got);
    if (e)
        err_hint(e, "This program reads version 2 of the layers format.");
    mem_free(got);
    return ST_INVALID;
}

static enum status
array_of(const json_t *doc, const char *key, size_t limit, const json_t **out, struct err *e)
{
    const json_t *v = json_object_get(doc, key);
    if (!json_is_array(v))
        return err_set(e, ST_INVALID, "\"layers\" has no list \"%s\"", key);
    if (json_array_size(v) > limit)
        return err_set(
            e, ST_INVALID, "\"%s\" has %zu entries, at most %zu", key, json_array_size(v), limit);
    *out = v;
    return ST_OK;
}

/* ---- nodes ---- */

static enum status ports_read(
    const struct parse *s, const json_t *node, const char *side, struct model_port **out, int *n)
{
    const json_t *list = json_object_get(node, "ports");
    size_t count = json_array_size(list);
    if (count < 1 || count > PORTS_MAX)
        return err_set(
            s->e, ST_INVALID, "the %s node must have 1 to %d ports, not %zu", side, PORTS_MAX,
            count);
    struct model_port *ports = ARENA_ARRAY(&s->m->arena, struct model_port, count);
    for (size_t i = 0; i < count; i++) {
        const json_t *one = json_array_get(list, i);
        TRY(text_of(one, "id", "port", i, &ports[i].id, s->e));
        TRY(text_of(one, "name", "port", i, &ports[i].name, s->e));
        for (size_t k = 0; k < i; k++) {
            bool ids = str_eq(ports[k].id, ports[i].id);
            if (ids || str_eq(ports[k].name, ports[i].name))
                return err_set(
                    s->e, ST_INVALID, "two ports of the %s node have the %s \"%s\"", side,
                    ids ? "id" : "name", ids ? ports[i].id : ports[i].name);
        }
        ports[i].id = arena_strdup(&s->m->arena, ports[i].id);
        ports[i].name = arena_strdup(&s->m->arena, ports[i].name);
        ports[i].source = SOURCE_NONE;
    }
    *out = ports;
    *n = (int)count;
    return ST_OK;
}

/* The names that a layer's variables and provenance are made of. */
static enum status id_check(const struct parse *s, const char *id)
{
    if (!*id)
        return err_set(s->e, ST_INVALID, "a layer has an empty id");
    if (strchr(id, '.'))
        return err_set(
            s->e, ST_INVALID,
            "layer \"%s\": an id cannot contain \".\": it is part of the names "
            "of parameters",
            id);
    return ST_OK;
}

static const struct node *node_find(const struct parse *s, const char *id)
{
    for (int i = 0; i < s->n_nodes; i++)
        if (str_eq(s->nodes[i].id, id))
            return &s->nodes[i];
    return NULL;
}

static enum status layer_read_node(struct parse *s, const json_t *node, struct node *n)
{
    struct layer *l = &s->m->layers[s->m->n_layers];
    TRY(id_check(s, n->id));
    enum status st = layer_type_find(n->type, &l->type, s->e);
    if (st != ST_OK) {
        if (st == ST_UNSUPPORTED && s->e)
            err_prefix(s->e, "layer \"%s\"", n->id);
        else if (s->e)
            err_detail(s->e, "The layer's id is \"%s\".", n->id);
        return st;
    }
    l->id = arena_strdup(&s->m->arena, n->id);
    TRY(layer_params_read(l, json_object_get(node, "params"), s->e));
    n->layer = s->m->n_layers++;
    return ST_OK;
}

static enum status node_read(struct parse *s, const json_t *node, size_t i)
{
    struct node n = {0};
    TRY(text_of(node, "id", "node", i, &n.id, s->e));
    TRY(text_of(node, "type", "node", i, &n.type, s->e));
    if (node_find(s, n.id))
        return err_set(s->e, ST_INVALID, "two layers have the id \"%s\"", n.id);
    bool input = str_eq(n.type, "Input"), output = str_eq(n.type, "Output");
    struct model *m = s->m;
    if ((input && m->inputs) || (output && m->outputs))
        return err_set(
            s->e, ST_INVALID, "there must be exactly one %s node, and \"%s\" is a second", n.type,
            n.id);
    if (input) {
        n.layer = NODE_INPUT;
        TRY(ports_read(s, node, "Input", &m->inputs, &m->n_inputs));
    } else if (output) {
        n.layer = NODE_OUTPUT;
        TRY(ports_read(s, node, "Output", &m->outputs, &m->n_outputs));
    } else {
        TRY(layer_read_node(s, node, &n));
    }
    s->nodes[s->n_nodes++] = n;
    return ST_OK;
}

static enum status nodes_read(struct parse *s, const json_t *doc)
{
    const json_t *list;
    TRY(array_of(doc, "nodes", NODES_MAX, &list, s->e));
    size_t n = json_array_size(list);
    s->m->layers = ARENA_ARRAY(&s->m->arena, struct layer, n + 1);
    s->nodes = ARENA_ARRAY(&s->m->arena, struct node, n + 1);
    for (size_t i = 0; i < n; i++)
        TRY(node_read(s, json_array_get(list, i), i));
    if (!s->m->inputs || !s->m->outputs)
        return err_set(
            s->e, ST_INVALID, "there must be exactly one %s node, and there is none",
            s->m->inputs ? "Output" : "Input");
    return ST_OK;
}

/* ---- edges ---- */

struct edge {
    int source; /* layer, or -1 - port of Input */
    int target; /* layer, or -1 - port of Output */
};

/* The end of an edge at Input or Output must name a port, by its id; an end at a layer nothing. */
static enum status handle_read(
    const struct parse *s, const json_t *edge, const char *key, const struct node *n, int *out)
{
    const json_t *v = json_object_get(edge, key);
    bool input = n->layer == NODE_INPUT, given = v && !json_is_null(v);
    if (n->layer >= 0) {
        *out = n->layer;
        if (given)
            return err_set(
                s->e, ST_INVALID, "an edge has a \"%s\" at layer \"%s\", which has no ports", key,
                n->id);
        return ST_OK;
    }
    const struct model_port *ports = input ? s->m->inputs : s->m->outputs;
    int count = input ? s->m->n_inputs : s->m->n_outputs;
    const char *id = json_string_value(v);
    if (!id)
        return err_set(
            s->e, ST_INVALID, "an edge at the %s node \"%s\" must name a port in \"%s\"", n->type,
            n->id, key);
    for (int i = 0; i < count; i++) {
        if (str_eq(ports[i].id, id)) {
            *out = -1 - i;
            return ST_OK;
        }
    }
    return err_set(
        s->e, ST_INVALID, "an edge names port \"%.64s\", which the %s node \"%s\" does not have",
        id, n->type, n->id);
}

static enum status edge_read(const struct parse *s, const json_t *edge, size_t i, struct edge *out)
{
    const char *from, *to;
    TRY(text_of(edge, "source", "edge", i, &from, s->e));
    TRY(text_of(edge, "target", "edge", i, &to, s->e));
    const struct node *a = node_find(s, from), *b = node_find(s, to);
    if (!a || !b)
        return err_set(
            s->e, ST_INVALID, "edge %zu names a layer \"%s\" that does not exist", i,
            a ? to : from);
    if (a->layer == NODE_OUTPUT || b->layer == NODE_INPUT)
        return err_set(
            s->e, ST_INVALID, "edge %zu goes %s the %s node", i,
            a->layer == NODE_OUTPUT ? "out of" : "into",
            a->layer == NODE_OUTPUT ? "Output" : "Input");
    TRY(handle_read(s, edge, "sourceHandle", a, &out->source));
    return handle_read(s, edge, "targetHandle", b, &out->target);
}

static enum status output_join(const struct parse *s, const struct edge *edge)
{
    struct model_port *port = &s->m->outputs[-1 - edge->target];
    if (port->source != SOURCE_NONE)
        return err_set(
            s->e, ST_INVALID, "output port \"%s\" must have exactly one incoming edge, not more",
            port->name);
    port->source = edge->source;
    return ST_OK;
}

/* Hands the sources out to the layers, in the order of the edges. */
static enum status edges_join(struct parse *s, const struct edge *edges, size_t n)
{
    struct model *m = s->m;
    bool *used = ARENA_ARRAY(&m->arena, bool, m->n_inputs);
    for (size_t i = 0; i < n; i++) {
        if (edges[i].source < 0)
            used[-1 - edges[i].source] = true;
        if (edges[i].target >= 0)
            m->layers[edges[i].target].n_sources++;
        else
            TRY(output_join(s, &edges[i]));
    }
    for (int i = 0; i < m->n_layers; i++) {
        m->layers[i].source = ARENA_ARRAY(&m->arena, int, m->layers[i].n_sources);
        m->layers[i].n_sources = 0;
    }
    for (size_t i = 0; i < n; i++) {
        if (edges[i].target >= 0) {
            struct layer *l = &m->layers[edges[i].target];
            l->source[l->n_sources++] = edges[i].source;
        }
    }
    for (int i = 0; i < m->n_inputs; i++)
        if (!used[i])
            return err_set(
                s->e, ST_INVALID, "input port \"%s\" is not connected to any layer",
                m->inputs[i].name);
    for (int i = 0; i < m->n_outputs; i++)
        if (m->outputs[i].source == SOURCE_NONE)
            return err_set(
                s->e, ST_INVALID,
                "output port \"%s\" must have exactly one incoming edge, and has "
                "none",
                m->outputs[i].name);
    return ST_OK;
}

static enum status edges_read(struct parse *s, const json_t *doc)
{
    const json_t *list;
    TRY(array_of(doc, "edges", EDGES_MAX, &list, s->e));
    size_t n = json_array_size(list);
    struct edge *edges = ARENA_ARRAY(&s->m->arena, struct edge, n + 1);
    for (size_t i = 0; i < n; i++)
        TRY(edge_read(s, json_array_get(list, i), i, &edges[i]));
    return edges_join(s, edges, n);
}

static enum status arity_check(const struct layer *l, struct err *e)
{
    const struct layer_type *t = l->type;
    int n = l->n_sources;
    if (n >= t->inputs_min && (t->inputs_max < 0 || n <= t->inputs_max))
        return ST_OK;
    if (t->inputs_max < 0)
        return err_set(
            e, ST_INVALID, "layer \"%s\" (%s) must have at least %d incoming edges, not %d", l->id,
            t->name, t->inputs_min, n);
    if (t->inputs_max > t->inputs_min)
        return err_set(
            e, ST_INVALID, "layer \"%s\" (%s) must have %d to %d incoming edges, not %d", l->id,
            t->name, t->inputs_min, t->inputs_max, n);
    return err_set(
        e, ST_INVALID, "layer \"%s\" (%s) must have exactly %d incoming edge%s, not %d", l->id,
        t->name, t->inputs_max, t->inputs_max == 1 ? "" : "s", n);
}

/* ---- order ---- */

/* Follows sources from layer to layer; a layer met again while its own sources are being visited
 * lies on a cycle. Iterative: a document can be NODES_MAX layers deep. */
static enum status
order_visit(struct model *m, int root, int *next, int *stack, int *n, struct err *e)
{
    int depth = 0;
    stack[depth++] = root;
    next[root] = 1;
    while (depth > 0) {
        int at = stack[depth - 1];
        const struct layer *l = &m->layers[at];
        if (next[at] > l->n_sources) {
            m->order[(*n)++] = at;
            next[at] = INT32_MAX; /* done */
            depth--;
            continue;
        }
        int source = l->source[next[at]++ - 1];
        if (source < 0 || next[source] == INT32_MAX)
            continue;
        if (next[source] > 0)
            return err_set(
                e, ST_INVALID, "the layers form a cycle through \"%s\"", m->layers[source].id);
        next[source] = 1;
        stack[depth++] = source;
    }
    return ST_OK;
}

static enum status order_make(struct model *m, struct err *e)
{
    int n = 0;
    m->order = ARENA_ARRAY(&m->arena, int, m->n_layers + 1);
    int *next = ARENA_ARRAY(&m->arena, int, m->n_layers + 1);
    int *stack = ARENA_ARRAY(&m->arena, int, m->n_layers + 1);
    for (int i = 0; i < m->n_layers; i++)
        if (next[i] == 0)
            TRY(order_visit(m, i, next, stack, &n, e));
    ASSERT(n == m->n_layers);
    return ST_OK;
}

enum status model_parse(struct model *m, const char *layers_json, struct err *e)
{
    json_t *doc = NULL;
    struct parse s = {.m = m, .e = e};
    enum status st = ST_OK;
    TRY(json_parse(layers_json, strlen(layers_json), "layers", &doc, e));
    TRY_OUT(version_check(doc, e));
    TRY_OUT(nodes_read(&s, doc));
    TRY_OUT(edges_read(&s, doc));
    for (int i = 0; i < m->n_layers; i++)
        TRY_OUT(arity_check(&m->layers[i], e));
    TRY_OUT(order_make(m, e));
out:
    json_decref(doc);
    return st;
}
