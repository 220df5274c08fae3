/* graph.h - a graph file: read, expanded, checked, put in order, changed, written, identified.
 *
 *     struct graph *g;
 *     TRY(graph_load(path, &g, e));                          JSON and its shape
 *     TRY(graph_set(g, "TrainingLoop.precision=bf16", e));   any number of times
 *     graph_check(g, GRAPH_RUN);                             fills the issues and the order
 *     graph_check_runnable(g);
 *     TRY(graph_verdict(g, e));                              the issues as one error
 *     for (size_t i = 0; i < graph_order_count(g); i++)
 *         ... graph_node_at(g, graph_order_at(g, i)) ...
 *
 * Loading drops notes and replaces every preset ("<instance>__<inner>") and subgraph
 * ("<instance>/<inner>") by its inner nodes. Checking removes bypassed nodes, finds what runs, and
 * reports every fault. What runs: the nodes with an incoming trigger and everything downstream of
 * them over data edges; then, until nothing changes, whatever feeds a kept node, and the whole
 * preset or subgraph of a kept node; and the Start nodes that trigger a kept one. The rest is a
 * draft.
 *
 * A graph owns everything it hands out; pointers live until graph_free. graph_set and graph_check
 * leave node numbers as they are.
 *
 * LIMITS: files of 64 MiB, 100000 nodes and 400000 edges after expansion, ids of 512 bytes.
 */
#ifndef GRAPH_GRAPH_H
#define GRAPH_GRAPH_H

#include "graph/nodes.h"

#define GRAPH_NO_NODE SIZE_MAX

struct graph;

struct graph_node {
    const char *id;               /* unique once the graph has no issues */
    const char *type;             /* as the file has it */
    const struct node_type *kind; /* NULL when the type is unknown */
    json_t *params;               /* what the file and graph_set gave; defaults are not in it */
    const char *container;        /* outermost preset or subgraph instance it came from, or NULL */
    bool bypassed;
    bool entry;      /* has an incoming trigger (after graph_check) */
    bool executable; /* runs (after graph_check) */
    /* Private: an issue about its type is out already; where graph_set writes in the document. */
    bool blamed;
    json_t *home;
    const char *home_inner;
};

/* Ends by name are kept for ends that do not exist (GRAPH_NO_NODE). */
struct graph_edge {
    size_t source, target;
    const char *source_id, *target_id;
    const char *source_port, *target_port;
    bool trigger;
};

/* Reads and expands. Fails on JSON errors and on a document of the wrong shape, naming all faults
 * in the detail; everything else becomes an issue. */
enum status graph_load(const char *path, struct graph **out, struct err *e) NODISCARD;
enum status graph_parse(
    const char *text, size_t n, const char *name, struct graph **out, struct err *e) NODISCARD;
void graph_free(struct graph *g); /* NULL is fine */

const char *graph_path(const struct graph *g); /* as given; the name under graph_parse */
/* What to call a path: "-" where it is stdin's (/proc/self/fd/N, which the command line makes). */
const char *graph_path_shown(const char *path);
const char *graph_name(const struct graph *g); /* "Untitled" when it has none */
/* settings.device ("cpu", "auto", "cuda:1", ...) or NULL; settings.seed. */
const char *graph_setting_device(const struct graph *g);
/* cpu, auto, cuda, cuda:N, mps, mps:N; also what asks for a card without naming one ("cuda:abc",
 * "${CUDA_INDEX}"),
 * which falls back where it runs (mem/device.h). */
bool graph_device_is_known(const char *name);
bool graph_setting_seed(const struct graph *g, int64_t *seed);

/* Applies "NODE.PARAM=VALUE": NODE is an id, or a type, which sets every node of that type, also
 * inside presets. The value is read as the parameter's type and must be within its bounds. */
enum status graph_set(struct graph *g, const char *assignment, struct err *e) NODISCARD;

/* Checks. Each issue has the reference's text, a code of ours, the node and its particulars. */
enum graph_scope {
    GRAPH_ALL, /* every node, drafts too: `validate` */
    GRAPH_RUN  /* what runs: `run` and `plan` */
};
struct graph_issue {
    const char *message, *code;
    const char *node_id; /* or NULL */
    json_t *params;      /* object */
};
/* Forgets the issues of an earlier check; returns how many there are now. */
size_t graph_check(struct graph *g, enum graph_scope scope);
/* Adds an issue for every executable node, and every value, that this version cannot run; after
 * graph_check. Returns how many were added. */
size_t graph_check_runnable(struct graph *g);
size_t graph_issue_count(const struct graph *g);
const struct graph_issue *graph_issue_at(const struct graph *g, size_t i);
json_t *graph_issues_json(const struct graph *g); /* a new reference: issues[] of the API */
/* ST_OK without issues; else the first as the text, all of them as the detail. */
enum status graph_verdict(const struct graph *g, struct err *e) NODISCARD;

/* load, set each, check what runs, verdict: what `run` and `plan` need. */
enum status graph_prepare(
    const char *path, const char *const *sets, size_t n_sets, struct graph **out,
    struct err *e) NODISCARD;

/* Nodes after expansion, in file order. */
size_t graph_node_count(const struct graph *g);
const struct graph_node *graph_node_at(const struct graph *g, size_t node);
size_t graph_node_find(const struct graph *g, const char *id); /* GRAPH_NO_NODE */
/* Executable nodes, each after everything that feeds it; Start nodes are among them. */
size_t graph_order_count(const struct graph *g);
size_t graph_order_at(const struct graph *g, size_t i);
/* The node and port that feed an input: of several edges the last. False when unconnected. */
bool graph_input(
    const struct graph *g, size_t node, const char *port, size_t *source, const char **source_port);
/* Edge i into a node, triggers among them, after bypassed nodes; NULL past the end. */
const struct graph_edge *graph_edge_into(const struct graph *g, size_t node, size_t i);
/* Output i of the presets and subgraphs that the document has: `container` is the instance, `node`
 * the one inside that puts it out. False past the end. */
struct graph_exposed {
    const char *container, *name, *port;
    size_t node;
};
bool graph_exposed_at(const struct graph *g, size_t i, struct graph_exposed *out);
/* How many edges leave an output. */
size_t graph_output_uses(const struct graph *g, size_t node, const char *port);

/* A parameter, or its default. The name must be in the table of the node's type. After
 * graph_check without issues the value is of the right type and within bounds. */
int64_t graph_param_i64(const struct graph_node *n, const char *name);
double graph_param_f64(const struct graph_node *n, const char *name);
bool graph_param_bool(const struct graph_node *n, const char *name);
const char *graph_param_str(const struct graph_node *n, const char *name);
/* A borrowed value, or NULL where the default stands: tensor grids. */
const json_t *graph_param_json(const struct graph_node *n, const char *name);
/* Every parameter with the default filled in; a new reference. For results and logs. */
json_t *graph_params_full(const struct graph_node *n);

/* What is wrong with a value as text in buf, with its code; NULL when nothing is. `strict` adds our
 * own rules (types, whole numbers, options) to the reference's. The node is named by its id and
 * type, of which no more is read. */
const char *graph_value_fault(
    const struct graph_node *n, const struct node_param *p, const json_t *value, bool strict,
    char *buf, size_t cap);
/* The default of a graph's input, as it stands in its node: JSON, which may be a number or a word
 * alone. A new reference; NULL where it is none. */
json_t *graph_default_read(const char *text);

/* Identity of the graph as far as memory and data go (requirement B3), 32 hex digits and a NUL;
 * after graph_check. It covers what runs, or every node where nothing does: types, parameters (but
 * those marked NOT_IN_KEY in the table) and data edges. Node ids, order in the file, positions,
 * layer names, seeds and durations do not enter. */
void graph_key(const struct graph *g, char key[33]);
/* The keys of many variants of a checked graph, which must outlive it: the key that the graph would
 * have with the parameters {"NODE": {"PARAM": value}} in place (NULL: as it is), as long as they
 * change no ports. Nodes that are not there are passed over. */
struct graph_keyer;
struct graph_keyer *graph_keyer_new(const struct graph *g);
void graph_keyer_key(const struct graph_keyer *k, const json_t *patch, char key[33]);
void graph_keyer_free(struct graph_keyer *k); /* NULL is fine */

/* The document with the changes of graph_set and nothing else changed, unknown keys included; a
 * new reference. Secrets are blank. */
json_t *graph_document(const struct graph *g);
/* Writes it whole. ST_UNSUPPORTED when a graph_set cannot be expressed in the file (a preset
 * inside a preset, a node of a subgraph). */
enum status graph_save(const struct graph *g, const char *path, struct err *e) NODISCARD;

/* The presets that ship with the program, in the form that graph files embed: an array; a new
 * reference. */
json_t *graph_presets_builtin(void);

/* Puts a node between an output and everything that it feeds, in a document as files have it (and
 * graph_parse reads it). Its id is `id`, with a number where that is taken: written to the buffer.
 * ST_NOT_FOUND when the document's own nodes have no such source. */
struct graph_insertion {
    const char *source, *port; /* node and output */
    const char *type, *id;
    const char *input, *output; /* ports of the new node */
    json_t *params;             /* borrowed */
};
enum status graph_insert_after(
    json_t *document, const struct graph_insertion *x, char id[64], struct err *e) NODISCARD;

#endif
