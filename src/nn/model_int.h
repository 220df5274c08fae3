/* model_int.h - the inside of a model. Private to src/nn. */
#ifndef NN_MODEL_INT_H
#define NN_MODEL_INT_H

#include "nn/layer.h"
#include "nn/model.h"

struct model_port {
    const char *id, *name;
    int source; /* outputs: the layer it shows, or -1 - i for input port i; SOURCE_NONE before */
};
enum { SOURCE_NONE = INT32_MIN };

struct model {
    struct arena arena;
    struct ir_vars *vars;
    const char *node_id;
    struct layer *layers; /* in the order of `nodes`, without Input and Output */
    int n_layers;
    int *order; /* the layers, each after what it reads */
    struct model_port *inputs, *outputs;
    int n_inputs, n_outputs;
    int *state, n_state; /* variables in the order of state_dict */
    int *params, n_params;
};

/* Reads the document into m: layers with types, parameters and sources, ports, order. */
enum status model_parse(struct model *m, const char *layers_json, struct err *e) NODISCARD;

#endif
