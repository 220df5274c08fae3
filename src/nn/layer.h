/* layer.h - one layer of a model: its type, its parameters, its variables. Private to src/nn.
 *
 * A family (layers.def) is two functions: check_<family> refuses what PyTorch's constructor would,
 * and declares the layer's variables; forward_<family> appends operators.
 */
#ifndef NN_LAYER_H
#define NN_LAYER_H

#include "base/json.h"
#include "ir/program.h"
#include "nn/init.h"
#include "nn/linear.h"

enum { LAYER_NAME_MAX = 96 };

/* One variable of a layer: "weight", "encoder.layers.0.self_attn.in_proj_weight". */
struct layer_var {
    char name[LAYER_NAME_MAX];
    int var;
    struct init init;
    int like;       /* the variable of the layer whose starting value it has: mostly itself */
    bool parameter; /* else a buffer */
};

/* Where padding="same" was asked for, n is not used. */
struct layer_padding {
    int64_t n[2];
    bool same;
};

/* Every parameter of every family, under PyTorch's name. Spatial pairs are [height, width];
 * one-dimensional layers use [1]. Zeroed where the family does not have it. */
struct layer_params {
    int64_t in_channels, out_channels, groups, num_features, num_groups, num_channels;
    int64_t in_features, out_features, num_embeddings, embedding_dim;
    int64_t padding_idx, divisor_override; /* INT64_MIN: None */
    int64_t start_dim, end_dim, dim, index;
    int64_t kernel_size[2], dilation[2], output_padding[2];
    int64_t stride[2];      /* 0: the kernel's size */
    int64_t output_size[2]; /* -1: the input's size */
    struct layer_padding padding;
    double eps, p;
    double momentum; /* -1: None, a cumulative mean */
    int64_t input_size, hidden_size, num_layers, proj_size;
    int64_t embed_dim, num_heads, kv_heads, d_model, nhead, dim_feedforward;
    int64_t hidden_features, max_len, num_experts, top_k, hidden_dim, expert_hidden_dim;
    double dropout, layer_norm_eps;
    int nonlinearity, activation, mode; /* which of the row's choices */
    bool batch_first, bidirectional, norm_first, causal, rotary;
    char add_bias_kv, add_zero_attn, kdim, vdim; /* checked, then without effect */
    bool bias, affine, elementwise_affine, track_running_stats, ceil_mode, count_include_pad;
    struct shape normalized_shape;
    struct shape shape; /* without the batch; one of them may be -1 */
    char padding_mode, device, dtype, return_indices, inplace, max_norm, norm_type,
        scale_grad_by_freq, sparse, any; /* checked, then without effect */
};

struct layer {
    const struct layer_type *type;
    const char *id;
    struct layer_params params;
    VEC(struct layer_var) vars; /* in the order of PyTorch's state_dict */
    int *source;                /* what it reads: a layer >= 0, input port i as -1 - i */
    int n_sources;
    int node; /* provenance */
};

/* What check_<family> works with. */
struct layer_check {
    struct layer *layer;
    struct ir_vars *vars;
    struct err *e;
};

/* What forward_<family> works with; results are values, IR_NONE after an error. */
struct layer_run {
    const struct model *model;
    const struct layer *layer;
    struct ir_program *p;
    const int *in;
    int n_in;
    bool training;
    int rng;
    int *more; /* room for LAYER_MORE_MAX further results that some layers have; NULL: not wanted */
    int *blocks; /* how many blocks (ir_program.block) the layers before made */
};
enum { LAYER_MORE_MAX = 2 };

struct layer_type {
    const char *name, *torch, *family, *test;
    int spatial, inputs_min, inputs_max;
    enum opcode code;
    enum status (*check)(const struct layer_check *c);
    int (*forward)(const struct layer_run *r);
};

#define LAYER(name, torch, family, ...)                                                            \
    enum status check_##family(const struct layer_check *c);                                       \
    int forward_##family(const struct layer_run *r);
#include "nn/layers.def"

/* The row of a type; ST_INVALID with the nearest name as hint. */
enum status
layer_type_find(const char *name, const struct layer_type **out, struct err *e) NODISCARD;
int layer_type_count(void);
const struct layer_type *layer_type_at(int i);
/* Parameter i of a family (its name, kind and default as in layers.def); false past the last. */
struct layer_param {
    const char *family, *name, *kind, *fallback;
};
bool layer_param_at(const char *family, int i, struct layer_param *out);

/* Reads "params" (NULL: none) of a layer whose type and id are set. */
enum status layer_params_read(struct layer *l, const json_t *params, struct err *e) NODISCARD;

/* For the families: an error about a layer, with `layer "<id>" (<type>): ` in front. */
enum status layer_refuse(const struct layer_check *c, enum status st, const char *fmt, ...)
    PRINTF(3, 4);
/* Declares a float32 parameter of a name made by fmt, the next in the state_dict; ST_INVALID when
 * the shape is absurdly large. */
enum status
layer_declare(const struct layer_check *c, struct shape s, struct init init, const char *fmt, ...)
    PRINTF(4, 5) NODISCARD;
enum status layer_declare_buffer(
    const struct layer_check *c, enum dtype t, struct shape s, struct init init,
    const char *name) NODISCARD;
/* The variables from `first` on are groups of n: all groups start as the first does (PyTorch builds
 * such stacks by copying one layer). */
void layer_copy_starts(struct layer *l, size_t first, size_t n);
/* The same for a run: sets the program's sticky error, returns IR_NONE. */
int layer_fail(const struct layer_run *r, const char *fmt, ...) PRINTF(2, 3);
/* The variable of a name, and its value; IR_NONE where the layer has none. */
int layer_var_find(const struct layer *l, const char *fmt, ...) PRINTF(2, 3);
int layer_read(const struct layer_run *r, const char *fmt, ...) PRINTF(2, 3);
/* Dropout in training, from a stream of numbers that belongs to this layer and `place` in it. */
int layer_dropout(const struct layer_run *r, int x, double p, const char *place);
uint32_t layer_stream(const struct layer_run *r, const char *place);
/* torch.nn.Linear's variables "<place>weight" and "<place>bias". */
enum status layer_declare_linear(
    const struct layer_check *c, const char *place, int64_t in, int64_t out, bool bias) NODISCARD;
/* The product with the layer's variables "<place>weight" and "<place>bias". */
int layer_linear(const struct layer_run *r, int x, const char *place);
/* ST_INVALID unless p is a probability. */
enum status layer_probability(const struct layer_check *c, double p) NODISCARD;
/* A stack of so many layers is refused: no document's size is trusted. */
enum { LAYER_STACK_MAX = 512 };
enum status layer_stack_check(const struct layer_check *c, int64_t n) NODISCARD;
/* Operators emitted until layer_block_end form a block of their own, for checkpointing. */
void layer_block_begin(const struct layer_run *r);
void layer_block_end(const struct layer_run *r);
/* The input as a sequence [S, N, F] or batch [N, S, F] of `features`: a 2-D input is one sequence.
 * IR_NONE after an error. */
int layer_sequence(const struct layer_run *r, int x, int64_t features, bool *single);
/* Shape of the first input; rank -1 after an error. */
struct shape layer_input_shape(const struct layer_run *r);

#endif
