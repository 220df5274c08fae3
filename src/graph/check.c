/* check.c - the validation rules, each fault in the reference's words; none stops the others. */
#include "graph/graph_int.h"

#include <stdlib.h>
#include <string.h>

static json_t *about(const char *key, const char *value)
{
    json_t *o = json_object();
    json_put_str(o, key, value);
    return o;
}

static bool in_scope(const struct graph *g, size_t node, enum graph_scope scope)
{
    const struct graph_node *n = &g->nodes.data[node];
    return n->executable || (scope == GRAPH_ALL && !(n->bypassed && n->kind));
}

static void check_ids(struct graph *g)
{
    json_t *told = json_object();
    for (size_t i = 0; i < g->nodes.n; i++) {
        const char *id = g->nodes.data[i].id;
        if (graph_node_find(g, id) == i || json_object_get(told, id))
            continue;
        json_put_bool(told, id, true);
        graph_issue_add(
            g, "duplicate_id", id, NULL, "Duplicate node id: the node '%s' appears more than once",
            id);
    }
    json_decref(told);
}

static void check_type(struct graph *g, const struct graph_node *n)
{
    if (n->kind || n->blamed)
        return;
    if (str_starts(n->type, "preset:")) {
        graph_issue_add(
            g, "unknown_preset", n->id, about("preset", n->type + 7),
            "Unknown preset: %s (node %s)", n->type + 7, n->id);
    } else if (str_starts(n->type, "subgraph:")) {
        graph_issue_add(
            g, "unknown_subgraph", n->id, about("subgraph", n->type + 9),
            "Unknown subgraph: %s (node %s)", n->type + 9, n->id);
    } else {
        json_t *params = about("type", n->type);
        const char *near = node_type_nearest(n->type);
        if (near)
            json_put_str(params, "nearest", near);
        graph_issue_add(
            g, "unknown_type", n->id, params, "Unknown node type: %s (node %s)", n->type, n->id);
    }
}

static bool wired(const struct graph *g, size_t node, const char *port)
{
    for (size_t k = g->first_in[node]; k < g->first_in[node + 1]; k++) {
        if (strcmp(g->live.data[k].target_port, port) == 0)
            return true;
    }
    return false;
}

/* The bypassed node whose missing output left this input empty, or NULL. */
static const char *lost_to(const struct graph *g, size_t node, const char *port)
{
    for (size_t i = 0; i < g->lost.n; i++) {
        if (g->lost.data[i].target == node && strcmp(g->lost.data[i].port, port) == 0)
            return g->lost.data[i].bypassed_id;
    }
    return NULL;
}

static void check_inputs(struct graph *g, size_t node)
{
    const struct graph_node *n = &g->nodes.data[node];
    struct node_port port;
    char buf[32];
    for (size_t i = 0; n->kind && node_port_at(n->kind, n->params, false, i, &port, buf); i++) {
        if (port.optional || wired(g, node, port.name) || g->issues.n >= ISSUES_MAX)
            continue;
        const char *lost = lost_to(g, node, port.name);
        json_t *params = about("port", port.name);
        if (lost) {
            json_put_str(params, "bypassed", lost);
            graph_issue_add(
                g, "missing_input", n->id, params,
                "Missing required input '%s' on node %s (%s) -- the bypassed node %s passes "
                "nothing on to it",
                port.name, n->id, n->type, lost);
        } else {
            graph_issue_add(
                g, "missing_input", n->id, params,
                "Missing required input '%s' on node %s (%s) -- connect an output to this port",
                port.name, n->id, n->type);
        }
    }
}

/* Our own rules hold for what we run; the rest is judged as the reference judges it. */
static void check_params(struct graph *g, const struct graph_node *n)
{
    char text[768];
    for (const struct node_param *p = n->kind ? n->kind->params : NULL; p && p->name; p++) {
        const json_t *value = json_object_get(n->params, p->name);
        if (!value)
            continue;
        bool strict = n->kind->flags & NODE_FLAG_RUNNABLE;
        const char *code = graph_value_fault(n, p, value, strict, text, sizeof text);
        if (code)
            graph_issue_add(g, code, n->id, about("param", p->name), "%s", text);
    }
}

/* The port an edge names; reports when there is none. Unknown types have every port. */
static bool edge_port(
    struct graph *g, const struct graph_node *n, bool output, const char *name,
    struct node_port *port)
{
    *port = (struct node_port){name, PORT_ANY, true};
    if (!n->kind)
        return true;
    if (node_port_find(n->kind, n->params, output, name, port))
        return true;
    graph_issue_add(
        g, output ? "bad_output_port" : "bad_input_port", n->id, about("port", name),
        "Invalid %s port '%s' on %s", output ? "output" : "input", name, n->type);
    return false;
}

static void check_edge(struct graph *g, const struct graph_edge *e, enum graph_scope scope)
{
    struct node_port out, in;
    if (e->source == GRAPH_NO_NODE || e->target == GRAPH_NO_NODE) {
        const char *missing = e->source == GRAPH_NO_NODE ? e->source_id : e->target_id;
        size_t other = e->source == GRAPH_NO_NODE ? e->target : e->source;
        bool drop = scope == GRAPH_RUN && !e->trigger &&
                    (other == GRAPH_NO_NODE || !in_scope(g, other, scope));
        if (!drop)
            graph_issue_add(
                g, "edge_missing_node", NULL, about("missing", missing),
                "Edge references missing node: %s (%s -> %s)", missing, e->source_id, e->target_id);
        return;
    }
    if (!in_scope(g, e->source, scope) || !in_scope(g, e->target, scope))
        return;
    const struct graph_node *a = &g->nodes.data[e->source], *b = &g->nodes.data[e->target];
    bool good = edge_port(g, a, true, e->source_port, &out);
    if (e->trigger) {
        bool handle = !*e->target_port || str_eq(e->target_port, "__trigger");
        if (!handle)
            (void)edge_port(g, b, false, e->target_port, &in);
        if (good && a->kind && out.type != PORT_TRIGGER)
            graph_issue_add(
                g, "type_mismatch", b->id, NULL,
                "Type mismatch: %s.%s (%s) -> %s.__trigger (TRIGGER)", a->id, e->source_port,
                port_type_name(out.type), b->id);
        return;
    }
    good = edge_port(g, b, false, e->target_port, &in) && good;
    if (good && a->kind && b->kind && !port_type_fits(out.type, in.type))
        graph_issue_add(
            g, "type_mismatch", b->id, about("port", e->target_port),
            "Type mismatch: %s.%s (%s) -> %s.%s (%s)", a->id, e->source_port,
            port_type_name(out.type), b->id, e->target_port, port_type_name(in.type));
}

static void check_entry(struct graph *g)
{
    for (size_t i = 0; i < g->nodes.n; i++) {
        if (g->nodes.data[i].entry)
            return;
    }
    graph_issue_add(
        g, "no_entry_point", NULL, NULL,
        "Graph has no entry points. Connect the trigger of a Start node to the node it begins "
        "with");
}

/* A node that waits for ever has a feeder that does; walking back from feeder to feeder must come
 * round. `ordered` marks nodes that Kahn's order reached. */
static size_t waiting_feeder(const struct graph *g, const bool *ordered, size_t node)
{
    for (size_t k = g->first_in[node]; k < g->first_in[node + 1]; k++) {
        const struct graph_edge *e = &g->live.data[k];
        if (!e->trigger && e->source != GRAPH_NO_NODE && g->nodes.data[e->source].executable &&
            !ordered[e->source])
            return e->source;
    }
    return GRAPH_NO_NODE;
}

static void check_cycle(struct graph *g)
{
    if (!g->cyclic)
        return;
    size_t n = g->nodes.n, at = 0;
    bool *ordered = mem_alloc(n), *seen = mem_alloc(n);
    for (size_t i = 0; i < g->order.n; i++)
        ordered[g->order.data[i]] = true;
    while (ordered[at] || !g->nodes.data[at].executable)
        at++;
    for (; !seen[at]; at = waiting_feeder(g, ordered, at))
        seen[at] = true;
    /* `at` is on the cycle; the walk goes against the edges, so text grows in front. */
    const char *text = g->nodes.data[at].id;
    size_t node = at;
    for (int shown = 0;; shown++) {
        node = waiting_feeder(g, ordered, node);
        if (node == at || shown < 20)
            text = arena_printf(&g->arena, "%s -> %s", g->nodes.data[node].id, text);
        else if (shown == 20)
            text = arena_printf(&g->arena, "... -> %s", text);
        if (node == at)
            break;
    }
    graph_issue_add(g, "cycle", g->nodes.data[at].id, NULL, "Graph contains a cycle: %s", text);
    mem_free(ordered);
    mem_free(seen);
}

size_t graph_check(struct graph *g, enum graph_scope scope)
{
    for (size_t i = g->n_load_issues; i < g->issues.n; i++)
        json_decref(g->issues.data[i].params);
    g->issues.n = g->n_load_issues;
    graph_resolve(g);
    check_ids(g);
    for (size_t i = 0; i < g->nodes.n; i++) {
        if (in_scope(g, i, scope))
            check_type(g, &g->nodes.data[i]);
        const struct graph_node *n = &g->nodes.data[i];
        if (n->bypassed && (str_eq(n->type, "GraphInput") || str_eq(n->type, "GraphOutput")))
            graph_issue_add(
                g, "bypass", n->id, NULL, "Node %s (%s) cannot be bypassed", n->id, n->type);
    }
    for (size_t i = 0; i < g->nodes.n; i++) {
        if (in_scope(g, i, scope))
            check_inputs(g, i);
    }
    for (size_t i = 0; i < g->nodes.n; i++) {
        if (in_scope(g, i, scope))
            check_params(g, &g->nodes.data[i]);
    }
    for (size_t i = 0; i < g->live.n; i++)
        check_edge(g, &g->live.data[i], scope);
    check_entry(g);
    check_cycle(g);
    return g->issues.n;
}

static void
check_value_runs(struct graph *g, const struct graph_node *n, const struct node_param *p)
{
    const json_t *value = json_object_get(n->params, p->name);
    bool later = false;
    if (!value)
        return;
    if (p->flags & PARAM_FLAG_LATER) {
        json_t *initial = node_param_initial(p);
        later = json_is_number(value) ? json_number_value(value) != json_number_value(initial)
                                      : !json_equal((json_t *)(uintptr_t)value, initial);
        json_decref(initial);
    } else if (p->type == PARAM_SELECT && json_is_string(value)) {
        later = node_param_option(p, json_string_value(value)) == PARAM_OPTION_LATER;
    }
    if (!later)
        return;
    struct str text;
    str_init(&text);
    graph_value_text(value, &text);
    graph_issue_add(
        g, "value_not_runnable", n->id, about("param", p->name),
        "This version cannot run %s %s on node %s (%s)", p->name, text.data, n->id, n->type);
    str_release(&text);
}

size_t graph_check_runnable(struct graph *g)
{
    size_t before = g->issues.n;
    for (size_t i = 0; i < g->nodes.n; i++) {
        const struct graph_node *n = &g->nodes.data[i];
        if (!n->executable || !n->kind)
            continue;
        if (!(n->kind->flags & NODE_FLAG_RUNNABLE))
            graph_issue_add(
                g, "type_not_runnable", n->id, about("type", n->type),
                "This version cannot run node %s (%s)", n->id, n->type);
        for (const struct node_param *p = n->kind->params; p->name; p++)
            check_value_runs(g, n, p);
    }
    return g->issues.n - before;
}
