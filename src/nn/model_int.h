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

/* What a kind of model does itself; all else (ports, lists of variables, counts) is common. */
struct model_kind {
    const char *node_type; /* for errors: "SequentialModel" */
    enum dtype (*input_dtype)(const struct model *m, int port);
    bool (*input_shape_hint)(const struct model *m, struct shape *sample);
    bool (*has_dropout)(const struct model *m);
    /* Appends the forward pass; a failure is the program's sticky error. */
    void (*forward)(
        const struct model *m, struct ir_program *p, const int *inputs, bool training, int rng,
        int *outputs);
    void (*init_var)(const struct model *m, int var, void *data, uint64_t seed);
};

struct transformer;
struct model_alias {
    const char *name;
    int var;
};

struct model {
    const struct model_kind *kind;
    struct arena arena;
    struct ir_vars *vars;
    const char *node_id;
    struct transformer *transformer; /* of models that transformer_make made; else NULL */
    struct model_alias *aliases;
    int n_aliases;
    bool wants_checkpointing;
    struct layer *layers; /* in the order of `nodes`, without Input and Output */
    int n_layers;
    int *order; /* the layers, each after what it reads */
    struct model_port *inputs, *outputs;
    int n_inputs, n_outputs;
    int *state, n_state; /* variables in the order of state_dict */
    int *params, n_params;
    struct adaption *adapted; /* adapters; NULL: none */
    int n_scales;             /* variables of the state that hold scales of weights in few bits */
};

/* An empty model of a kind; model_free releases it. */
struct model *model_new(const struct model_kind *kind, const char *node_id, struct ir_vars *vars);

/* The starting value of an adapter; false when var is none. */
bool adapter_init_var(const struct model *m, int var, void *data, uint64_t seed);

/* Reads the document into m: layers with types, parameters and sources, ports, order. */
enum status model_parse(struct model *m, const char *layers_json, struct err *e) NODISCARD;

#endif
