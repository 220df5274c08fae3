/* expand.c - from the document to a flat list of nodes and edges: presets and subgraphs inlined.
 *
 * Both are boxes: a definition with inner nodes, inner edges and exposed ports, of which an
 * instance is a node of type "preset:<name>" or "subgraph:<id>". Subgraphs go first. One round
 * replaces every instance there is; inner instances wait for the next round, up to DEPTH_MAX.
 * An edge that names a port the box does not expose keeps the instance as its end and is reported
 * as an edge to a missing node later.
 */
#include "graph/graph_int.h"

#include <stdio.h>
#include <string.h>

#define EXPOSED_MAX 4096

/* The words in which the two kinds of box are written. */
struct box_words {
    const char *prefix, *separator, *what;
    const char *list, *name;      /* where the document keeps definitions */
    const char *inputs, *outputs; /* lists of exposed ports */
    const char *port, *inner_node, *inner_port;
};
static const struct box_words preset_words = {
    "preset:",         "__",   "Preset",        "presets",      "preset_name", "exposed_inputs",
    "exposed_outputs", "name", "internal_node", "internal_port"};
static const struct box_words subgraph_words = {"subgraph:", "/",        "Subgraph", "subgraphs",
                                                "id",        "inputs",   "outputs",  "port",
                                                "innerNode", "innerPort"};

/* The definitions that an item came out of, innermost first. */
struct chain {
    const char *definition;
    const struct chain *up;
};

struct item {
    struct graph_node node;
    const json_t *internal; /* internalParams of a preset instance */
    const struct chain *chain;
};

struct expansion {
    struct graph *g;
    const struct box_words *words;
    json_t *definitions; /* name to definition */
    json_t *faults;      /* name to what is wrong with its inside, "" when nothing is */
    VEC(struct item) items;
    VEC(struct graph_edge) edges;
    VEC(struct item) next_items;
    VEC(struct graph_edge) next_edges;
    bool stopped;
};

static void stop(struct expansion *x, const char *code, const char *node_id, const char *text)
{
    if (!x->stopped)
        graph_issue_add(x->g, code, node_id, NULL, "%s", text);
    x->stopped = true;
}

static const char *handle_of(const json_t *edge, const char *key)
{
    return json_get_str(edge, key, "");
}

/* `prefix` and `separator` are "" for the document's own. */
static struct graph_edge
edge_of(struct graph *g, const json_t *edge, const char *prefix, const char *separator)
{
    const char *type = json_get_str(edge, "type", NULL);
    struct graph_edge out = {
        .source = GRAPH_NO_NODE,
        .target = GRAPH_NO_NODE,
        .source_id = json_get_str(edge, "source", ""),
        .target_id = json_get_str(edge, "target", ""),
        .source_port = handle_of(edge, "sourceHandle"),
        .target_port = handle_of(edge, "targetHandle"),
    };
    if (*prefix) {
        out.source_id = arena_printf(&g->arena, "%s%s%s", prefix, separator, out.source_id);
        out.target_id = arena_printf(&g->arena, "%s%s%s", prefix, separator, out.target_id);
    }
    /* The canvas takes an untyped edge from a trigger port for a trigger, and so do we. */
    out.trigger = type ? str_eq(type, "trigger") : str_eq(out.source_port, "trigger");
    return out;
}

/* Parameters as written: a new object, so that changing it leaves the document alone. */
static json_t *params_of(const json_t *node, const json_t *overlay)
{
    const json_t *data = json_object_get(node, "data");
    const json_t *params = json_object_get(data, "params");
    if (!params)
        params = json_object_get(node, "params");
    json_t *copy = params ? json_copy((json_t *)(uintptr_t)params) : json_object();
    if (overlay)
        (void)json_object_update(copy, (json_t *)(uintptr_t)overlay);
    return copy;
}

static struct item item_of(const json_t *node, const char *id, const json_t *overlay)
{
    const json_t *data = json_object_get(node, "data");
    const json_t *internal = json_object_get(data, "internalParams");
    return (struct item){
        .node =
            {.id = id,
             .type = json_get_str(node, "type", ""),
             .params = params_of(node, overlay),
             .bypassed = json_get_bool(data, "bypassed", false)},
        .internal = internal ? internal : json_object_get(node, "internalParams"),
    };
}

/* id to number of the item; the first of equal ids. */
static json_t *index_items(const struct item *items, size_t n)
{
    json_t *index = json_object();
    for (size_t i = 0; i < n; i++) {
        if (!json_object_get(index, items[i].node.id))
            json_put_i64(index, items[i].node.id, (int64_t)i);
    }
    return index;
}

/* Notes are annotations: they and the edges that touch them are left out. */
static void take_document(struct expansion *x)
{
    const json_t *nodes = json_object_get(x->g->document, "nodes");
    const json_t *edges = json_object_get(x->g->document, "edges");
    json_t *notes = json_object();
    for (size_t i = 0; i < json_array_size(nodes); i++) {
        json_t *node = json_array_get(nodes, i);
        struct item item = item_of(node, json_get_str(node, "id", ""), NULL);
        item.node.home = node;
        if (str_eq(item.node.type, "note")) {
            json_put_bool(notes, item.node.id, true);
            json_decref(item.node.params);
        } else {
            vec_push(&x->items, item);
        }
    }
    for (size_t i = 0; i < json_array_size(edges); i++) {
        struct graph_edge edge = edge_of(x->g, json_array_get(edges, i), "", "");
        if (!json_object_get(notes, edge.source_id) && !json_object_get(notes, edge.target_id))
            vec_push(&x->edges, edge);
    }
    json_decref(notes);
}

/* Built-in presets go before the graph's own of the same name. */
static void take_definitions(struct expansion *x)
{
    x->definitions = json_object();
    const json_t *builtin = x->words == &preset_words ? x->g->builtin : NULL;
    const json_t *lists[] = {builtin, json_object_get(x->g->document, x->words->list)};
    for (int l = 0; l < 2; l++) {
        for (size_t i = 0; i < json_array_size(lists[l]); i++) {
            json_t *definition = json_array_get(lists[l], i);
            const char *name = json_get_str(definition, x->words->name, "");
            if (!json_object_get(x->definitions, name))
                (void)json_object_set(x->definitions, name, definition);
        }
    }
}

static const json_t *interface_of(const struct expansion *x, const json_t *definition)
{
    return x->words == &preset_words ? definition : json_object_get(definition, "interface");
}

static bool chain_holds(const struct chain *c, const char *definition)
{
    while (c && !str_eq(c->definition, definition))
        c = c->up;
    return c != NULL;
}

/* "a -> b -> a" for a chain of b in a (innermost first) that meets a again. */
static const char *chain_text(struct graph *g, const struct chain *c, const char *again)
{
    const char *text = again;
    for (bool found = false; c && !found; c = c->up) {
        found = str_eq(c->definition, again);
        text = arena_printf(&g->arena, "%s -> %s", c->definition, text);
    }
    return text;
}

/* What is wrong with the inside of a definition, "" when nothing is; looked at once. */
static const char *definition_fault(struct expansion *x, const char *name, const json_t *definition)
{
    const char *known = json_get_str(x->faults, name, NULL);
    if (known)
        return known;
    const json_t *interface = interface_of(x, definition);
    char why[256];
    if (graph_shape_inner(definition, why, sizeof why) &&
        (json_array_size(json_object_get(interface, x->words->inputs)) > EXPOSED_MAX ||
         json_array_size(json_object_get(interface, x->words->outputs)) > EXPOSED_MAX))
        (void)snprintf(why, sizeof why, "it exposes more than %d ports", EXPOSED_MAX);
    json_put_str(x->faults, name, why);
    return json_get_str(x->faults, name, "");
}

/* The definition of an instance that can be inlined now, else NULL (with an issue, or because it
 * is not one, or is unknown, which the check reports). */
static const json_t *definition_of(struct expansion *x, struct item *item)
{
    struct graph_node *n = &item->node;
    if (n->blamed || !str_starts(n->type, x->words->prefix))
        return NULL;
    const char *name = n->type + strlen(x->words->prefix);
    const json_t *definition = json_object_get(x->definitions, name);
    if (!definition)
        return NULL;
    if (n->bypassed) {
        graph_issue_add(
            x->g, "bypass", n->id, NULL, "A %s cannot be bypassed: node %s (%s)",
            x->words == &preset_words ? "preset" : "subgraph", n->id, n->type);
        n->bypassed = false;
    }
    n->blamed = true;
    const char *why = definition_fault(x, name, definition);
    if (*why)
        graph_issue_add(
            x->g, "bad_definition", n->id, NULL, "%s %s (node %s) cannot be read: %s",
            x->words->what, name, n->id, why);
    else if (x->words == &subgraph_words && chain_holds(item->chain, name))
        graph_issue_add(
            x->g, "subgraph_recursion", n->id, NULL, "Subgraph recursion: %s",
            chain_text(x->g, item->chain, name));
    else
        n->blamed = false;
    return n->blamed ? NULL : definition;
}

/* Appends one inner node; the instance's own parameters for it lie over the definition's. */
static void inline_node(
    struct expansion *x, const struct item *box, const struct chain *chain, const json_t *inner)
{
    const char *inner_id = json_get_str(inner, "id", "");
    const char *id =
        arena_printf(&x->g->arena, "%s%s%s", box->node.id, x->words->separator, inner_id);
    struct item item = item_of(inner, id, json_object_get(box->internal, inner_id));
    if (str_eq(item.node.type, "note")) {
        json_decref(item.node.params);
        return;
    }
    if (x->words == &preset_words && str_starts(item.node.type, "subgraph:")) {
        graph_issue_add(
            x->g, "subgraph_in_preset", id, NULL,
            "A preset must not contain a subgraph: node %s (%s)", id, item.node.type);
        item.node.blamed = true;
    }
    if (x->words == &subgraph_words && str_eq(item.node.type, "Start"))
        graph_issue_add(
            x->g, "start_in_subgraph", id, NULL, "A subgraph must not contain a Start: node %s",
            id);
    item.chain = chain;
    item.node.container = box->node.container ? box->node.container : box->node.id;
    /* Only an instance that stands in the document can hold a changed value. */
    if (x->words == &preset_words && box->node.home && !box->node.home_inner) {
        item.node.home = box->node.home;
        item.node.home_inner = inner_id;
    }
    vec_push(&x->next_items, item);
}

/* The outputs of an instance that stands in the document; those of inner ones are what these lead
 * to in the end. */
static void note_outputs(struct expansion *x, const struct item *box, const json_t *definition)
{
    const json_t *ports = json_object_get(interface_of(x, definition), x->words->outputs);
    for (size_t i = 0; !box->node.container && i < json_array_size(ports); i++) {
        const json_t *p = json_array_get(ports, i);
        struct graph_exposure e = {
            .container = box->node.id,
            .name = json_get_str(p, x->words->port, ""),
            .inner_port = json_get_str(p, x->words->inner_port, "")};
        e.inner_id = arena_printf(
            &x->g->arena, "%s%s%s", box->node.id, x->words->separator,
            json_get_str(p, x->words->inner_node, ""));
        vec_push(&x->g->exposures, e);
    }
}

static void inline_box(struct expansion *x, const struct item *box, const json_t *definition)
{
    const json_t *nodes = json_object_get(definition, "nodes");
    const json_t *edges = json_object_get(definition, "edges");
    if (x->stopped)
        return;
    if (x->next_items.n + json_array_size(nodes) > NODES_MAX ||
        x->next_edges.n + json_array_size(edges) > EDGES_MAX) {
        stop(
            x, "too_large", box->node.id,
            "Graph is too large: more than 100000 nodes or 400000 "
            "edges after expansion");
        return;
    }
    if (strlen(box->node.id) + 2 > ID_BYTES_MAX * 4) {
        stop(
            x, "too_large", NULL,
            "Graph is too large: an id has more than 2048 bytes after "
            "expansion");
        return;
    }
    struct chain *chain = ARENA_NEW(&x->g->arena, struct chain);
    *chain = (struct chain){box->node.type + strlen(x->words->prefix), box->chain};
    for (size_t i = 0; i < json_array_size(nodes); i++)
        inline_node(x, box, chain, json_array_get(nodes, i));
    for (size_t i = 0; i < json_array_size(edges); i++) {
        struct graph_edge edge =
            edge_of(x->g, json_array_get(edges, i), box->node.id, x->words->separator);
        vec_push(&x->next_edges, edge);
    }
}

/* Moves one end of an edge from the box to the inner node behind the exposed port. */
static void redirect(
    struct expansion *x, const struct item *box, const json_t *ports, const char **id,
    const char **port)
{
    for (size_t i = 0; i < json_array_size(ports); i++) {
        const json_t *p = json_array_get(ports, i);
        if (!str_eq(json_get_str(p, x->words->port, ""), *port))
            continue;
        *id = arena_printf(
            &x->g->arena, "%s%s%s", box->node.id, x->words->separator,
            json_get_str(p, x->words->inner_node, ""));
        *port = json_get_str(p, x->words->inner_port, "");
        return;
    }
}

/* A trigger into a subgraph goes to its declared targets; none declared: to every inner node that
 * nothing inside feeds. */
static void trigger_subgraph(
    struct expansion *x, const struct item *box, const json_t *definition,
    const struct graph_edge *edge)
{
    const json_t *targets = json_object_get(interface_of(x, definition), "triggerTargets");
    const json_t *nodes = json_object_get(definition, "nodes");
    json_t *fed = json_object();
    bool declared = json_array_size(targets) > 0;
    for (size_t i = 0; !declared && i < json_array_size(json_object_get(definition, "edges")); i++)
        json_put_bool(
            fed,
            json_get_str(json_array_get(json_object_get(definition, "edges"), i), "target", ""),
            true);
    size_t n = declared ? json_array_size(targets) : json_array_size(nodes);
    for (size_t i = 0; i < n && x->next_edges.n < EDGES_MAX; i++) {
        const json_t *v = json_array_get(declared ? targets : nodes, i);
        const char *inner = declared ? json_string_value(v) : json_get_str(v, "id", "");
        if (!inner || json_object_get(fed, inner))
            continue;
        struct graph_edge copy = *edge;
        copy.target_id = arena_printf(&x->g->arena, "%s/%s", box->node.id, inner);
        vec_push(&x->next_edges, copy);
    }
    json_decref(fed);
}

static void carry_edge(
    struct expansion *x, const json_t *index, const json_t *const *boxes, struct graph_edge edge)
{
    int64_t source = json_get_i64(index, edge.source_id, -1);
    int64_t target = json_get_i64(index, edge.target_id, -1);
    if (source >= 0 && boxes[source])
        redirect(
            x, &x->items.data[source],
            json_object_get(interface_of(x, boxes[source]), x->words->outputs), &edge.source_id,
            &edge.source_port);
    if (target >= 0 && boxes[target]) {
        if (edge.trigger && x->words == &subgraph_words) {
            trigger_subgraph(x, &x->items.data[target], boxes[target], &edge);
            return;
        }
        redirect(
            x, &x->items.data[target],
            json_object_get(interface_of(x, boxes[target]), x->words->inputs), &edge.target_id,
            &edge.target_port);
    }
    vec_push(&x->next_edges, edge);
}

/* Outputs that a box inside puts out go on to that box's own inside. */
static void follow_outputs(struct expansion *x, const json_t *index, const json_t *const *boxes)
{
    for (size_t i = 0; i < x->g->exposures.n; i++) {
        struct graph_exposure *e = &x->g->exposures.data[i];
        int64_t box = json_get_i64(index, e->inner_id, -1);
        if (box >= 0 && boxes[box])
            redirect(
                x, &x->items.data[box],
                json_object_get(interface_of(x, boxes[box]), x->words->outputs), &e->inner_id,
                &e->inner_port);
    }
}

/* Replaces every instance once; false when there was none. */
static bool expand_round(struct expansion *x, int round)
{
    size_t n = x->items.n, n_boxes = 0;
    const json_t **boxes = mem_alloc((n + 1) * sizeof *boxes);
    const char *first = NULL;
    for (size_t i = 0; i < n; i++) {
        boxes[i] = definition_of(x, &x->items.data[i]);
        if (boxes[i] && n_boxes++ == 0)
            first = x->items.data[i].node.id;
    }
    if (n_boxes && round == DEPTH_MAX) {
        char text[80];
        (void)snprintf(
            text, sizeof text, "%s nesting exceeds the maximum depth of %d", x->words->what,
            DEPTH_MAX);
        stop(x, "nesting_depth", first, text);
        for (size_t i = 0; i < n; i++)
            x->items.data[i].node.blamed |= boxes[i] != NULL;
    }
    if (n_boxes && !x->stopped) {
        json_t *index = index_items(x->items.data, n);
        follow_outputs(x, index, boxes);
        for (size_t i = 0; i < n; i++) {
            if (boxes[i]) {
                note_outputs(x, &x->items.data[i], boxes[i]);
                inline_box(x, &x->items.data[i], boxes[i]);
                json_decref(x->items.data[i].node.params);
            } else {
                vec_push(&x->next_items, x->items.data[i]);
            }
        }
        for (size_t i = 0; i < x->edges.n; i++)
            carry_edge(x, index, boxes, x->edges.data[i]);
        json_decref(index);
        x->items.n = x->edges.n = 0;
        for (size_t i = 0; i < x->next_items.n; i++)
            vec_push(&x->items, x->next_items.data[i]);
        for (size_t i = 0; i < x->next_edges.n; i++)
            vec_push(&x->edges, x->next_edges.data[i]);
        x->next_items.n = x->next_edges.n = 0;
    }
    mem_free(boxes);
    return n_boxes > 0 && !x->stopped;
}

static void expand_kind(struct expansion *x, const struct box_words *words)
{
    x->words = words;
    take_definitions(x);
    x->faults = json_object();
    for (int round = 0; expand_round(x, round); round++)
        continue;
    json_decref(x->definitions);
    json_decref(x->faults);
}

static bool has_presets(const struct expansion *x)
{
    for (size_t i = 0; i < x->items.n; i++)
        if (str_starts(x->items.data[i].node.type, preset_words.prefix))
            return true;
    return false;
}

void graph_expand(struct graph *g)
{
    struct expansion x = {.g = g};
    take_document(&x);
    expand_kind(&x, &subgraph_words);
    if (has_presets(&x)) /* reading ours takes longer than reading most graphs */
        g->builtin = graph_presets_builtin();
    expand_kind(&x, &preset_words);
    for (size_t i = 0; i < x.items.n; i++) {
        struct graph_node n = x.items.data[i].node;
        n.kind = node_type_find(n.type);
        vec_push(&g->nodes, n);
    }
    g->index = index_items(x.items.data, x.items.n);
    for (size_t i = 0; i < x.edges.n; i++) {
        struct graph_edge edge = x.edges.data[i];
        edge.source = graph_node_find(g, edge.source_id);
        edge.target = graph_node_find(g, edge.target_id);
        vec_push(&g->edges, edge);
    }
    vec_release(&x.items);
    vec_release(&x.edges);
    vec_release(&x.next_items);
    vec_release(&x.next_edges);
}
