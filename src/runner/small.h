/* small.h - a small program of one node: its inputs are other nodes' tensors, its results its
 * output ports. Private to src/runner.
 */
#ifndef RUNNER_SMALL_H
#define RUNNER_SMALL_H

#include "runner/run_int.h"

enum { SMALL_PORTS_MAX = 32 };

struct small {
    struct run *run;
    size_t node;
    const struct graph_node *n;
    struct ir_vars vars;
    struct model *model; /* the layer that the node is; NULL: none */
    struct ir_program *p;
    const struct flow_numbers *from[SMALL_PORTS_MAX]; /* by input port; NULL: not connected */
    int in[SMALL_PORTS_MAX];                          /* its value in p; IR_NONE: not connected */
    int n_in;                                         /* input ports */
    int out[SMALL_PORTS_MAX];                         /* by output port; IR_NONE: there is none */
};

/* Weights of the layer `layer` with `params` (taken); the node's id is in its errors. */
enum status small_model(
    struct small *s, const char *layer, json_t *params, int inputs, struct err *e) NODISCARD;
/* A list of whole numbers, "0,2,1"; at most RANK_MAX. */
enum status
small_list(const struct small *s, const char *param, int64_t *out, int *n, struct err *e) NODISCARD;

/* small_ops.c: appends the operators of a node type. */
#define OPERATOR(type, emit) enum status emit_##emit(struct small *s, struct err *e);
#include "runner/layer_nodes.def"

#endif
