/* key.c - the identity of a graph: a hash that does not see ids or order (requirement B3).
 *
 * Every node gets a hash of its type and parameters; then of all that feeds it (in topological
 * order), then of all that it feeds (backwards), then of what feeds it once more. The key is the
 * hash of the sorted node hashes. In a cycle, where there is no order, a node keeps its own hash.
 * The layers of a SequentialModel are hashed in the same way, so that their ids do not count
 * either; operands of a merging layer keep their order.
 */
#include "graph/graph_int.h"

#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct hash {
    uint64_t lo, hi; /* two hashes of the same bytes with different seeds */
};

static struct hash hash_text(struct hash h, const char *text)
{
    size_t n = strlen(text) + 1; /* with the NUL: "ab","c" is not "a","bc" */
    return (struct hash){hash_bytes(text, n, h.lo), hash_bytes(text, n, ~h.hi)};
}

static struct hash hash_hash(struct hash h, struct hash x)
{
    return (struct hash){hash_bytes(&x, sizeof x, h.lo), hash_bytes(&x, sizeof x, ~h.hi)};
}

static int compare_hashes(const void *a, const void *b)
{
    const struct hash *x = a, *y = b;
    if (x->lo != y->lo)
        return x->lo < y->lo ? -1 : 1;
    return x->hi < y->hi ? -1 : x->hi > y->hi;
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static struct hash hash_json(struct hash h, const json_t *v);

static struct hash hash_object(struct hash h, const json_t *object)
{
    size_t n = json_object_size(object), i = 0;
    const char **keys = mem_alloc((n + 1) * sizeof *keys), *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        keys[i++] = key;
    }
    qsort(keys, n, sizeof *keys, compare_texts);
    for (i = 0; i < n; i++)
        h = hash_json(hash_text(h, keys[i]), json_object_get(object, keys[i]));
    mem_free(keys);
    return hash_text(h, "}");
}

/* A number is its value: 1 and 1.0 are the same. */
static struct hash hash_json(struct hash h, const json_t *v)
{
    char buf[40];
    if (json_is_object(v))
        return hash_object(hash_text(h, "{"), v);
    if (json_is_array(v)) {
        h = hash_text(h, "[");
        for (size_t i = 0; i < json_array_size(v); i++)
            h = hash_json(h, json_array_get(v, i));
        return hash_text(h, "]");
    }
    if (json_is_string(v))
        return hash_text(hash_text(h, "\""), json_string_value(v));
    if (json_is_number(v)) {
        (void)snprintf(buf, sizeof buf, "%.17g", json_number_value(v) + 0.0);
        return hash_text(h, buf);
    }
    return hash_text(h, json_is_true(v) ? "true" : json_is_false(v) ? "false" : "null");
}

/* A graph to be hashed: local hashes, edges with labels. */
struct link {
    size_t source, target;
    struct hash label;
};
struct web {
    struct hash *nodes;
    size_t n;
    VEC(struct link) links;
};

static int compare_sources(const void *a, const void *b)
{
    size_t x = ((const struct link *)a)->source, y = ((const struct link *)b)->source;
    return x < y ? -1 : x > y;
}

/* One sweep along the links: each node takes in the sorted hashes of what leads to it. */
static void sweep(struct web *w)
{
    size_t *waits = mem_alloc((w->n + 1) * sizeof *waits);
    size_t *first = mem_alloc((w->n + 2) * sizeof *first);
    size_t *first_in = mem_alloc((w->n + 2) * sizeof *first_in);
    size_t *filled = mem_alloc((w->n + 1) * sizeof *filled);
    struct hash *in = mem_alloc((w->links.n + 1) * sizeof *in);
    VEC(size_t) ready = {0};
    if (w->links.n > 0)
        qsort(w->links.data, w->links.n, sizeof *w->links.data, compare_sources);
    for (size_t i = 0; i < w->links.n; i++) {
        first[w->links.data[i].source + 1]++;
        first_in[w->links.data[i].target + 1]++;
        waits[w->links.data[i].target]++;
    }
    for (size_t v = 0; v < w->n; v++) {
        first[v + 1] += first[v];
        first_in[v + 1] += first_in[v];
        if (waits[v] == 0)
            vec_push(&ready, v);
    }
    for (size_t done = 0; done < ready.n; done++) {
        size_t v = ready.data[done];
        struct hash *mine = in + first_in[v];
        if (filled[v] > 1)
            qsort(mine, filled[v], sizeof *mine, compare_hashes);
        for (size_t i = 0; i < filled[v]; i++)
            w->nodes[v] = hash_hash(w->nodes[v], mine[i]);
        for (size_t k = first[v]; k < first[v + 1]; k++) {
            const struct link *l = &w->links.data[k];
            in[first_in[l->target] + filled[l->target]++] = hash_hash(l->label, w->nodes[v]);
            if (--waits[l->target] == 0)
                vec_push(&ready, l->target);
        }
    }
    mem_free(waits);
    mem_free(first);
    mem_free(first_in);
    mem_free(filled);
    mem_free(in);
    vec_release(&ready);
}

static void turn(struct web *w)
{
    for (size_t i = 0; i < w->links.n; i++) {
        struct link *l = &w->links.data[i];
        size_t source = l->source;
        l->source = l->target;
        l->target = source;
    }
}

/* Uses the web up. */
static struct hash web_hash(struct web *w)
{
    struct hash h = {1, 2};
    for (int i = 0; i < 3; i++) {
        sweep(w);
        turn(w);
    }
    qsort(w->nodes, w->n, sizeof *w->nodes, compare_hashes);
    for (size_t i = 0; i < w->n; i++)
        h = hash_hash(h, w->nodes[i]);
    mem_free(w->nodes);
    vec_release(&w->links);
    return h;
}

/* Which port of an Input or Output layer an edge is tied to, by position: its id does not count. */
static size_t port_position(const json_t *node, const char *handle)
{
    const json_t *ports = json_object_get(node, "ports");
    for (size_t i = 0; handle && i < json_array_size(ports); i++) {
        if (str_eq(json_get_str(json_array_get(ports, i), "id", NULL), handle))
            return i;
    }
    return 0;
}

/* The layers of a SequentialModel; false when the text is not the known form. */
static bool layers_hash(const char *text, struct hash *out)
{
    json_error_t je;
    json_t *spec = json_loads(text, JSON_REJECT_DUPLICATES, &je);
    const json_t *nodes = json_object_get(spec, "nodes"), *edges = json_object_get(spec, "edges");
    struct web w = {.n = json_array_size(nodes)};
    bool known = json_is_array(nodes) && json_is_array(edges);
    json_t *index = json_object();
    w.nodes = mem_alloc((w.n + 1) * sizeof *w.nodes);
    for (size_t i = 0; known && i < w.n; i++) {
        const json_t *node = json_array_get(nodes, i);
        const char *id = json_get_str(node, "id", NULL), *type = json_get_str(node, "type", NULL);
        known = id && type && !json_object_get(index, id);
        if (!known)
            break;
        json_put_i64(index, id, (int64_t)i);
        w.nodes[i] = hash_text((struct hash){3, 4}, type);
        json_t *params = json_object_get(node, "params");
        if (json_object_size(params) > 0)
            w.nodes[i] = hash_json(w.nodes[i], params);
    }
    size_t *operands = mem_alloc((w.n + 1) * sizeof *operands);
    for (size_t i = 0; known && i < json_array_size(edges); i++) {
        const json_t *edge = json_array_get(edges, i);
        int64_t s = json_get_i64(index, json_get_str(edge, "source", ""), -1);
        int64_t t = json_get_i64(index, json_get_str(edge, "target", ""), -1);
        known = s >= 0 && t >= 0;
        if (known) {
            char number[80];
            (void)snprintf(
                number, sizeof number, "%zu %zu %zu", operands[t]++,
                port_position(
                    json_array_get(nodes, (size_t)s), json_get_str(edge, "sourceHandle", NULL)),
                port_position(
                    json_array_get(nodes, (size_t)t), json_get_str(edge, "targetHandle", NULL)));
            struct link l = {(size_t)s, (size_t)t, hash_text((struct hash){5, 6}, number)};
            vec_push(&w.links, l);
        }
    }
    *out = web_hash(&w);
    mem_free(operands);
    json_decref(index);
    json_decref(spec);
    return known;
}

static struct hash param_hash(struct hash h, const struct node_param *p, const json_t *value)
{
    struct hash layers;
    h = hash_text(h, p->name);
    if (str_eq(p->name, "layers") && json_is_string(value) &&
        layers_hash(json_string_value(value), &layers))
        return hash_hash(h, layers);
    return hash_json(h, value);
}

/* Known types: the table's parameters with defaults filled in. Unknown ones: whatever is there. */
static struct hash node_hash(const struct graph_node *n)
{
    struct hash h = hash_text((struct hash){7, 8}, n->kind ? n->kind->name : n->type);
    if (!n->kind || (n->kind->flags & NODE_FLAG_OPEN))
        return hash_json(h, n->params);
    for (const struct node_param *p = n->kind->params; p->name; p++) {
        if (p->flags & PARAM_FLAG_NOT_IN_KEY)
            continue;
        const json_t *value = json_object_get(n->params, p->name);
        json_t *initial = value ? NULL : node_param_initial(p);
        h = param_hash(h, p, value ? value : initial);
        json_decref(initial);
    }
    return h;
}

/* Links for the edges into a node: of several into one port the last one only. */
static void add_inputs(const struct graph *g, size_t node, const size_t *number, struct web *w)
{
    json_t *taken = json_object();
    for (size_t k = g->first_in[node + 1]; k-- > g->first_in[node];) {
        const struct graph_edge *e = &g->live.data[k];
        if (e->trigger || json_object_get(taken, e->target_port))
            continue;
        json_put_bool(taken, e->target_port, true);
        if (e->source == GRAPH_NO_NODE || number[e->source] == GRAPH_NO_NODE)
            continue;
        struct hash label =
            hash_text(hash_text((struct hash){9, 10}, e->source_port), e->target_port);
        struct link l = {number[e->source], number[node], label};
        vec_push(&w->links, l);
    }
    json_decref(taken);
}

/* What the keys of a graph's variants have in common. */
struct graph_keyer {
    const struct graph *g;
    size_t *number; /* of node v among those that count, or GRAPH_NO_NODE */
    struct web base;
};

struct graph_keyer *graph_keyer_new(const struct graph *g)
{
    ASSERT(g->first_in != NULL); /* after graph_check */
    struct graph_keyer *k = mem_alloc(sizeof *k);
    bool all = true;
    k->g = g;
    k->base.nodes = mem_alloc((g->nodes.n + 1) * sizeof *k->base.nodes);
    k->number = mem_alloc((g->nodes.n + 1) * sizeof *k->number);
    for (size_t i = 0; i < g->nodes.n; i++)
        all = all && !g->nodes.data[i].executable;
    for (size_t i = 0; i < g->nodes.n; i++) {
        const struct graph_node *n = &g->nodes.data[i];
        k->number[i] = GRAPH_NO_NODE;
        if ((all && !n->bypassed) || (n->executable && !str_eq(n->type, "Start"))) {
            k->number[i] = k->base.n;
            k->base.nodes[k->base.n++] = node_hash(n);
        }
    }
    for (size_t v = 0; v < g->nodes.n; v++) {
        if (k->number[v] != GRAPH_NO_NODE)
            add_inputs(g, v, k->number, &k->base);
    }
    return k;
}

void graph_keyer_free(struct graph_keyer *k)
{
    if (!k)
        return;
    mem_free(k->base.nodes);
    vec_release(&k->base.links);
    mem_free(k->number);
    mem_free(k);
}

/* The hash of a node with these parameters over its own. */
static struct hash patched_hash(const struct graph_node *n, const json_t *params)
{
    struct graph_node changed = *n;
    changed.params = json_copy(n->params);
    (void)json_object_update(changed.params, (json_t *)(uintptr_t)params);
    struct hash h = node_hash(&changed);
    json_decref(changed.params);
    return h;
}

void graph_keyer_key(const struct graph_keyer *k, const json_t *patch, char key[33])
{
    struct web w = {.n = k->base.n};
    const char *id;
    json_t *params;
    w.nodes = mem_alloc((w.n + 1) * sizeof *w.nodes);
    if (w.n)
        memcpy(w.nodes, k->base.nodes, w.n * sizeof *w.nodes);
    for (size_t i = 0; i < k->base.links.n; i++)
        vec_push(&w.links, k->base.links.data[i]);
    json_object_foreach((json_t *)(uintptr_t)patch, id, params)
    {
        size_t node = graph_node_find(k->g, id);
        if (node != GRAPH_NO_NODE && k->number[node] != GRAPH_NO_NODE)
            w.nodes[k->number[node]] = patched_hash(&k->g->nodes.data[node], params);
    }
    struct hash h = web_hash(&w);
    (void)snprintf(key, 33, "%016llx%016llx", (unsigned long long)h.lo, (unsigned long long)h.hi);
}

void graph_key(const struct graph *g, char key[33])
{
    struct graph_keyer *k = graph_keyer_new(g);
    graph_keyer_key(k, NULL, key);
    graph_keyer_free(k);
}
