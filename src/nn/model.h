/* model.h - models: their parameters and their programs. A model is a SequentialModel, made here
 * from its `layers` document (version 2), or a transformer (nn/transformer.h).
 *
 * FORMAT of `layers`: a JSON text {"version": 2, "nodes": [...], "edges": [...]}: one Input and one
 * Output node with named ports, between them layers (layers.def) and merges. docs of the nodes:
 * layers.def.
 *
 * A model owns no tensor: it declares variables in an `ir_vars`, appends its forward pass to
 * programs, and fills buffers with starting values. Names are those of PyTorch's state_dict:
 * "layers.<layer id>.weight". The vars must outlive the model; indices are into vars->list.
 *
 * INVARIANTS
 *  1. Variables are declared in the order of `nodes`, and within a layer in PyTorch's order:
 *     parameters (weight, bias), then buffers (running_mean, running_var, num_batches_tracked).
 *  2. A variable's starting value depends on its name and the seed alone, not on its neighbours.
 *  3. Nothing is allocated by the sizes that a document states.
 */
#ifndef NN_MODEL_H
#define NN_MODEL_H

#include "ir/program.h"

struct model;

/* The `layers` text of a new SequentialModel node: a CNN for MNIST, 421,642 parameters. */
const char *model_default_layers(void);

/* Parses and checks the document, and declares its variables with provenance "<node_id>/<layer
 * id>". ST_CORRUPT: not JSON; ST_INVALID: a rule is broken; ST_UNSUPPORTED: a layer type or option
 * of PyTorch that this version lacks. Errors name the layer and the parameter; e->node is node_id.
 * On failure `vars` may hold some of the variables. The caller frees *out with model_free. */
enum status model_from_layers(
    const char *layers_json, const char *node_id, struct ir_vars *vars, struct model **out,
    struct err *e) NODISCARD;
void model_free(struct model *m); /* NULL is fine */

/* Ports, in the document's order. */
int model_input_count(const struct model *m);
int model_output_count(const struct model *m);
const char *model_input_name(const struct model *m, int i);
const char *model_output_name(const struct model *m, int i);
/* What the first input must be: DT_I64 when it leads to an Embedding or a PaddingMask, else DT_F32.
 */
enum dtype model_input_dtype(const struct model *m);
enum dtype model_input_dtype_at(const struct model *m, int i);
/* What the first layer says about the first input without its batch dimension, -1 where any size
 * will do: [1, -1, -1] for a Conv2d of one channel. False when it says nothing. */
bool model_input_shape_hint(const struct model *m, struct shape *sample);

/* Appends the forward pass. inputs[n_inputs] in the order of the ports; outputs has room for
 * model_output_count. `rng` is the noise of dropout (i64[2]); IR_NONE when not training or without
 * dropout. Sets p->node to each layer in turn; the outputs' storage becomes CATEGORY_LOGITS. Errors
 * have PyTorch's wording after the layer's id, and stay in p->err too. A batch of 0 is fine. */
enum status model_forward(
    const struct model *m, struct ir_program *p, const int *inputs, int n_inputs, bool training,
    int rng, int *outputs, struct err *e) NODISCARD;

/* The forward pass of a SequentialModel of one layer, with what else that layer can tell:
 * outputs[0] its result, then up to two more: an LSTM's and a GRU's last states, attention's
 * averaged weights, what a PositionalEncoding added, a MoE's weights and the numbers of the
 * experts. IR_NONE where there is nothing. */
enum { MODEL_LAYER_OUTPUTS = 3 }; /* operators keep p->node */
enum status model_layer_forward(
    const struct model *m, struct ir_program *p, const int *inputs, bool training, int rng,
    int outputs[MODEL_LAYER_OUTPUTS], struct err *e) NODISCARD;

/* Writes the starting value of one of the model's variables (dense, of its dtype and shape):
 * PyTorch's default initialisation, drawn from (seed, name). */
void model_init_var(const struct model *m, int var, void *data, uint64_t seed);

/* The state in the order of PyTorch's state_dict; its names are the variables'. */
int model_state_count(const struct model *m);
int model_state_var(const struct model *m, int i);
/* Second names that PyTorch's state_dict has for a variable: "lm_head.weight" of a head tied to the
 * embedding. Files may have them or not; where they do, both tensors must be equal. */
int model_alias_count(const struct model *m);
const char *model_alias(const struct model *m, int i, int *var);
/* The parameters alone, as model.parameters() gives them: PyTorch's optimizers number them so. */
int model_param_count_vars(const struct model *m);
int model_param_var(const struct model *m, int i);

/* Adapters (adapter.h) change what the state is. Whether files of the model's weights have the
 * variable, and its shape there; whether it holds scales of a weight in few bits. */
bool model_var_in_files(const struct model *m, int var);
struct shape model_var_shape(const struct model *m, int var);
bool model_var_is_scale(const struct model *m, int var);

int64_t model_parameter_count(const struct model *m); /* elements of all parameters */
int64_t model_trainable_count(const struct model *m);
bool model_has_batch_stats(const struct model *m);  /* a layer keeps running statistics */
bool model_has_dropout(const struct model *m);      /* a layer draws noise while training */
const char *model_node_type(const struct model *m); /* "SequentialModel": the node that makes it */
/* The node that made it asks for levers.checkpointing "blocks" where the loop asks for none. */
bool model_wants_checkpointing(const struct model *m);

#endif
