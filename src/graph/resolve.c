/* resolve.c - what runs and in which order: bypass, reachability from triggers, Kahn's order.
 *
 * Live edges are the file's, with bypassed nodes cut out, sorted by target and stable within, so
 * that the inputs of a node lie together and the last of several edges into one input wins.
 */
#include "graph/graph_int.h"

#include <stdlib.h>
#include <string.h>

static bool can_bypass(const struct graph_node *n)
{
    return n->bypassed && n->kind && !str_eq(n->type, "GraphInput") &&
           !str_eq(n->type, "GraphOutput");
}

/* The first declared input that the output can forward; false when there is none. */
static bool
forward_port(const struct graph_node *n, const char *output, struct node_port *input, char buf[32])
{
    struct node_port out;
    if (!node_port_find(n->kind, n->params, true, output, &out))
        return false;
    for (size_t i = 0; node_port_at(n->kind, n->params, false, i, input, buf); i++) {
        if (port_type_fits(input->type, out.type))
            return true;
    }
    return false;
}

/* The last data edge of the file into an input, or NULL. `first` and `edges` group by target. */
static const struct graph_edge *
last_into(const struct graph_edge *edges, const size_t *first, size_t node, const char *port)
{
    for (size_t i = first[node + 1]; i-- > first[node];) {
        if (!edges[i].trigger && strcmp(edges[i].target_port, port) == 0)
            return &edges[i];
    }
    return NULL;
}

/* Edges grouped by target, stable; those with a missing target come last. */
static void group(
    const struct graph *g, const struct graph_edge *in, size_t n_in, struct graph_edge *out,
    size_t *first)
{
    size_t n = g->nodes.n;
    size_t *at = mem_alloc((n + 2) * sizeof *at);
    for (size_t i = 0; i < n_in; i++)
        at[(in[i].target == GRAPH_NO_NODE ? n : in[i].target) + 1]++;
    for (size_t v = 0; v <= n; v++)
        at[v + 1] += at[v];
    memcpy(first, at, (n + 1) * sizeof *first);
    for (size_t i = 0; i < n_in; i++)
        out[at[in[i].target == GRAPH_NO_NODE ? n : in[i].target]++] = in[i];
    mem_free(at);
}

/* Numbers of the data edges that leave a node: list[first[n]] .. list[first[n + 1] - 1]. */
struct outgoing {
    size_t *first, *list;
};

static bool joins(const struct graph_edge *e)
{
    return !e->trigger && e->source != GRAPH_NO_NODE && e->target != GRAPH_NO_NODE;
}

static struct outgoing outgoing_of(const struct graph_edge *edges, size_t n_edges, size_t n)
{
    struct outgoing out = {
        mem_alloc((n + 2) * sizeof(size_t)), mem_alloc((n_edges + 1) * sizeof(size_t))};
    for (size_t i = 0; i < n_edges; i++) {
        if (joins(&edges[i]))
            out.first[edges[i].source + 2]++;
    }
    for (size_t v = 1; v <= n; v++)
        out.first[v + 1] += out.first[v];
    for (size_t i = 0; i < n_edges; i++) {
        if (joins(&edges[i]))
            out.list[out.first[edges[i].source + 1]++] = i;
    }
    return out;
}

static void outgoing_release(struct outgoing *out)
{
    mem_free(out->first);
    mem_free(out->list);
}

/* The edges as the file has them, while bypassed nodes are cut out. `work` bounds the walks along
 * chains of bypassed nodes, which a hostile file could make very long. */
struct cut {
    struct graph *g;
    struct graph_edge *grouped;
    size_t *first;
    struct outgoing out;
    size_t work;
};
#define WORK_MAX 20000000

static bool exhausted(struct cut *c, const struct graph_node *n)
{
    if (c->work++ < WORK_MAX)
        return false;
    if (c->work == WORK_MAX + 1)
        graph_issue_add(
            c->g, "too_large", n->id, NULL, "Graph is too large: chains of bypassed nodes at %s",
            n->id);
    return true;
}

/* Follows a data edge back through bypassed nodes. False, with an entry in `lost`, when one of
 * them passes nothing on. */
static bool trace_back(struct cut *c, struct graph_edge *edge)
{
    char buf[32];
    struct node_port input;
    struct graph *g = c->g;
    for (size_t steps = 0; edge->source != GRAPH_NO_NODE; steps++) {
        const struct graph_node *n = &g->nodes.data[edge->source];
        if (!can_bypass(n))
            return true;
        const struct graph_edge *from = NULL;
        if (steps > g->nodes.n)
            graph_issue_add(
                g, "bypass", n->id, NULL, "Bypassed nodes form a cycle: node %s (%s)", n->id,
                n->type);
        else if (!forward_port(n, edge->source_port, &input, buf))
            graph_issue_add(
                g, "bypass", n->id, NULL,
                "Bypassed node %s (%s) has no input that its output '%s' could pass on", n->id,
                n->type, edge->source_port);
        else if (!exhausted(c, n))
            from = last_into(c->grouped, c->first, edge->source, input.name);
        if (!from) {
            struct graph_lost lost = {edge->target, edge->target_port, n->id};
            if (edge->target != GRAPH_NO_NODE)
                vec_push(&g->lost, lost);
            return false;
        }
        edge->source = from->source;
        edge->source_id = from->source_id;
        edge->source_port = from->source_port;
    }
    return true;
}

/* Moves a trigger on a bypassed node to the first nodes downstream that are not. */
static void trigger_on(struct cut *c, struct graph_edge trigger)
{
    struct graph *g = c->g;
    VEC(size_t) todo = {0};
    bool *seen = mem_alloc(g->nodes.n + 1);
    vec_push(&todo, trigger.target);
    seen[trigger.target] = true;
    while (todo.n > 0) {
        size_t at = todo.data[--todo.n];
        if (!can_bypass(&g->nodes.data[at])) {
            trigger.target = at;
            trigger.target_id = g->nodes.data[at].id;
            vec_push(&g->live, trigger);
            continue;
        }
        for (size_t k = c->out.first[at]; k < c->out.first[at + 1]; k++) {
            size_t target = g->edges.data[c->out.list[k]].target;
            if (seen[target] || exhausted(c, &g->nodes.data[at]))
                continue;
            seen[target] = true;
            vec_push(&todo, target);
        }
    }
    mem_free(seen);
    vec_release(&todo);
}

static void cut_bypassed(struct graph *g)
{
    struct cut c = {
        .g = g,
        .grouped = mem_alloc((g->edges.n + 1) * sizeof(struct graph_edge)),
        .first = mem_alloc((g->nodes.n + 1) * sizeof(size_t)),
        .out = outgoing_of(g->edges.data, g->edges.n, g->nodes.n),
    };
    group(g, g->edges.data, g->edges.n, c.grouped, c.first);
    for (size_t i = 0; i < g->edges.n; i++) {
        struct graph_edge edge = g->edges.data[i];
        bool into_bypassed =
            edge.target != GRAPH_NO_NODE && can_bypass(&g->nodes.data[edge.target]);
        if (into_bypassed && edge.trigger)
            trigger_on(&c, edge);
        else if (!into_bypassed && (edge.trigger || trace_back(&c, &edge)))
            vec_push(&g->live, edge);
    }
    mem_free(c.grouped);
    mem_free(c.first);
    outgoing_release(&c.out);
}

static void group_live(struct graph *g)
{
    size_t n = g->live.n;
    struct graph_edge *grouped = mem_alloc((n + 1) * sizeof *grouped);
    g->first_in = mem_alloc((g->nodes.n + 1) * sizeof *g->first_in);
    group(g, g->live.data, n, grouped, g->first_in);
    vec_release(&g->live);
    g->live.data = grouped;
    g->live.n = g->live.cap = n;
}

struct reach {
    struct graph *g;
    VEC(size_t) todo;
    json_t *members; /* container id to an array of node numbers */
};

static void keep(struct reach *r, size_t node)
{
    struct graph_node *n = &r->g->nodes.data[node];
    if (n->executable || can_bypass(n))
        return;
    n->executable = true;
    vec_push(&r->todo, node);
}

static void keep_downstream(struct reach *r, const struct outgoing *out)
{
    struct graph *g = r->g;
    for (size_t i = 0; i < g->live.n; i++) {
        const struct graph_edge *e = &g->live.data[i];
        if (!e->trigger || e->target == GRAPH_NO_NODE)
            continue;
        g->nodes.data[e->target].entry = true;
        keep(r, e->target);
    }
    for (size_t done = 0; done < r->todo.n; done++) {
        size_t at = r->todo.data[done];
        for (size_t k = out->first[at]; k < out->first[at + 1]; k++)
            keep(r, g->live.data[out->list[k]].target);
    }
}

/* A kept node keeps what feeds it and the rest of its container. */
static void keep_feeders(struct reach *r)
{
    struct graph *g = r->g;
    for (size_t done = 0; done < r->todo.n; done++) {
        size_t at = r->todo.data[done];
        for (size_t k = g->first_in[at]; k < g->first_in[at + 1]; k++) {
            if (!g->live.data[k].trigger && g->live.data[k].source != GRAPH_NO_NODE)
                keep(r, g->live.data[k].source);
        }
        const char *container = g->nodes.data[at].container;
        json_t *siblings = container ? json_object_get(r->members, container) : NULL;
        for (size_t i = 0; i < json_array_size(siblings); i++)
            keep(r, (size_t)json_integer_value(json_array_get(siblings, i)));
        if (siblings)
            (void)json_object_del(r->members, container); /* once is enough */
    }
}

static json_t *container_members(const struct graph *g)
{
    json_t *members = json_object();
    for (size_t i = 0; i < g->nodes.n; i++) {
        const char *container = g->nodes.data[i].container;
        if (!container)
            continue;
        json_t *list = json_object_get(members, container);
        if (!list) {
            list = json_array();
            json_put(members, container, list);
        }
        (void)json_array_append_new(list, json_integer((json_int_t)i));
    }
    return members;
}

static void find_executable(struct graph *g, const struct outgoing *out)
{
    struct reach r = {.g = g, .members = container_members(g)};
    for (size_t i = 0; i < g->nodes.n; i++)
        g->nodes.data[i].entry = g->nodes.data[i].executable = false;
    keep_downstream(&r, out);
    keep_feeders(&r);
    for (size_t i = 0; i < g->live.n; i++) {
        const struct graph_edge *e = &g->live.data[i];
        if (e->trigger && e->source != GRAPH_NO_NODE && e->target != GRAPH_NO_NODE &&
            g->nodes.data[e->target].executable && str_eq(g->nodes.data[e->source].type, "Start"))
            keep(&r, e->source);
    }
    json_decref(r.members);
    vec_release(&r.todo);
}

/* Kahn: a node goes in when all that feeds it is in; ties in file order. */
static void find_order(struct graph *g, const struct outgoing *out)
{
    size_t *waits = mem_alloc((g->nodes.n + 1) * sizeof *waits), n_executable = 0;
    for (size_t i = 0; i < g->live.n; i++) {
        const struct graph_edge *e = &g->live.data[i];
        if (joins(e) && g->nodes.data[e->source].executable)
            waits[e->target]++;
    }
    for (size_t i = 0; i < g->nodes.n; i++) {
        n_executable += g->nodes.data[i].executable;
        if (g->nodes.data[i].executable && waits[i] == 0)
            vec_push(&g->order, i);
    }
    for (size_t done = 0; done < g->order.n; done++) {
        size_t at = g->order.data[done];
        for (size_t k = out->first[at]; k < out->first[at + 1]; k++) {
            size_t target = g->live.data[out->list[k]].target;
            if (g->nodes.data[target].executable && --waits[target] == 0)
                vec_push(&g->order, target);
        }
    }
    g->cyclic = g->order.n < n_executable;
    mem_free(waits);
}

void graph_resolve(struct graph *g)
{
    vec_release(&g->live);
    vec_release(&g->lost);
    vec_release(&g->order);
    mem_free(g->first_in);
    cut_bypassed(g);
    group_live(g);
    struct outgoing out = outgoing_of(g->live.data, g->live.n, g->nodes.n);
    find_executable(g, &out);
    find_order(g, &out);
    outgoing_release(&out);
}

bool graph_input(
    const struct graph *g, size_t node, const char *port, size_t *source, const char **source_port)
{
    ASSERT(g->first_in != NULL); /* after graph_check */
    const struct graph_edge *e = last_into(g->live.data, g->first_in, node, port);
    if (!e || e->source == GRAPH_NO_NODE)
        return false;
    *source = e->source;
    *source_port = e->source_port;
    return true;
}

const struct graph_edge *graph_edge_into(const struct graph *g, size_t node, size_t i)
{
    ASSERT(g->first_in != NULL); /* after graph_check */
    size_t from = g->first_in[node], to = g->first_in[node + 1];
    return i < to - from ? &g->live.data[from + i] : NULL;
}

bool graph_exposed_at(const struct graph *g, size_t i, struct graph_exposed *out)
{
    if (i >= g->exposures.n)
        return false;
    const struct graph_exposure *x = &g->exposures.data[i];
    *out = (struct graph_exposed){
        x->container, x->name, x->inner_port, graph_node_find(g, x->inner_id)};
    return true;
}

size_t graph_output_uses(const struct graph *g, size_t node, const char *port)
{
    size_t uses = 0;
    for (size_t i = 0; i < g->live.n; i++) {
        const struct graph_edge *e = &g->live.data[i];
        uses += joins(e) && e->source == node && strcmp(e->source_port, port) == 0 &&
                g->nodes.data[e->target].executable;
    }
    return uses;
}
