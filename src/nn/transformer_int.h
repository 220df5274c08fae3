/* transformer_int.h - the inside of a transformer. Private to src/nn. */
#ifndef NN_TRANSFORMER_INT_H
#define NN_TRANSFORMER_INT_H

#include "nn/init.h"
#include "nn/model_int.h"
#include "nn/transformer.h"

/* What may have a weight and a bias. From NORM1 to DOWN: once per block. */
enum part {
    PART_TOKENS,
    PART_POSITIONS,
    PART_TYPES,
    PART_EMBED_NORM,
    PART_NORM1,
    PART_QKV,
    PART_Q,
    PART_K,
    PART_V,
    PART_Q_NORM,
    PART_K_NORM,
    PART_OUT,
    PART_NORM2,
    PART_GATE,
    PART_UP,
    PART_DOWN,
    PART_FINAL_NORM,
    PART_POOLER,
    PART_TRANSFORM,
    PART_TRANSFORM_NORM,
    PART_HEAD,
    PART_COUNT
};
static inline bool part_in_block(enum part k)
{
    return k >= PART_NORM1 && k <= PART_DOWN;
}

struct part_vars {
    int weight, bias; /* IR_NONE where it has none */
    bool in_out;
};
struct transformer_block {
    struct part_vars part[PART_DOWN + 1];
    int attn_node, mlp_node, norm1_node, norm2_node; /* provenance */
    uint32_t attn_stream, out_stream, mlp_stream;    /* of dropout */
};
struct transformer {
    struct transformer_config c;
    struct part_vars part[PART_COUNT];
    struct transformer_block *blocks;
    int embed_node, norm_node, head_node, pooler_node;
    struct init *init; /* by place in the model's state */
};

/* Forward pass of a model of transformer_make (transformer_forward.c). */
void transformer_forward(
    const struct model *m, struct ir_program *p, const int *inputs, bool training, int rng,
    int *outputs);

#endif
