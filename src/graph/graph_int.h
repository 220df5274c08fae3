/* graph_int.h - what the files of this folder share. */
#ifndef GRAPH_GRAPH_INT_H
#define GRAPH_GRAPH_INT_H

#include "graph/graph.h"

#include "base/mem.h"

#define NODES_MAX 100000
#define EDGES_MAX 400000
#define ID_BYTES_MAX 512
#define DEPTH_MAX 10
#define ISSUES_MAX 1000 /* more are not reported */

/* An input whose edge went away because its source is bypassed and passes nothing on. */
struct graph_lost {
    size_t target;
    const char *port, *bypassed_id;
};

/* An output of a preset or subgraph of the document: which inner node's it is. */
struct graph_exposure {
    const char *container, *name, *inner_id, *inner_port;
};

struct graph {
    struct arena arena;
    json_t *document;
    json_t *builtin; /* presets of the program, where the graph has any; nodes borrow from it */
    const char *path;
    VEC(struct graph_node) nodes;
    VEC(struct graph_edge) edges; /* after expansion */
    VEC(struct graph_edge) live;  /* after bypass; grouped by target, in file order within */
    VEC(struct graph_lost) lost;
    VEC(struct graph_exposure) exposures;
    size_t *first_in; /* live edges of target n: first_in[n] .. first_in[n + 1] - 1 */
    json_t *index;    /* id to node number */
    VEC(struct graph_issue) issues;
    size_t n_load_issues; /* the first of them; kept by every check */
    VEC(size_t) order;
    bool cyclic;
    const char *unsaved; /* id of a node whose change the document cannot hold */
};

/* Reports; `params` is a new reference or NULL. */
void graph_issue_add(
    struct graph *g, const char *code, const char *node_id, json_t *params, const char *fmt, ...)
    PRINTF(5, 6);

/* shape.c: whether the document has the shape that the rest takes for granted. */
enum status graph_shape(const json_t *document, const char *name, struct err *e) NODISCARD;
/* The same for the inside of a preset or subgraph; `why` takes the first fault. */
bool graph_shape_inner(const json_t *definition, char *why, size_t cap);

/* expand.c: fills nodes and edges from the document. */
void graph_expand(struct graph *g);

/* resolve.c: live edges, what runs, order. */
void graph_resolve(struct graph *g);

/* A value as messages show it. */
void graph_value_text(const json_t *value, struct str *out);

#endif
