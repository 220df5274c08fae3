/* transformer.h - transformers by configuration: one builder for all families.
 *
 *     tokens [B, S] int64 -> embedding (+ positions, token types) -> norm? -> blocks -> norm? ->
 * head?
 *
 * A block with pre_norm is x += attention(norm1(x)); x += mlp(norm2(x)); without it (BERT)
 * x = norm1(x + attention(x)); x = norm2(x + mlp(x)). The families differ in numbers, switches and
 * names only. Names, orientation and order of the weights: transformer_names.def.
 *
 * Sources: Vaswani et al. 2017 (attention, sinusoidal positions); Radford et al. 2019 (GPT-2);
 * Devlin et al. 2018 (BERT); Su et al. 2021 (rotary positions); Touvron et al. 2023 and Dubey et
 * al. 2024 (Llama); Jiang et al. 2023 (Mistral); Qwen team 2024, 2025 (Qwen2, Qwen3).
 *
 * Input: one port, "input_ids". Outputs: "logits" [B, S, vocab] with a head, else
 * "last_hidden_state" [B, S, d_model], and "pooler_output" [B, d_model] with a pooler.
 * Dropout layer k of block i draws from a stream of its own, named after its node.
 */
#ifndef NN_TRANSFORMER_H
#define NN_TRANSFORMER_H

#include "nn/model.h"

enum transformer_family {
    FAMILY_CAUSAL_LM, /* the node CausalLMModel */
    FAMILY_GPT2,
    FAMILY_LLAMA, /* and Mistral, Qwen2, Qwen3 */
    FAMILY_BERT,
    FAMILY_COUNT
};
enum transformer_positions {
    POSITIONS_LEARNED,
    POSITIONS_SINUSOIDAL, /* sine at even, cosine at odd features */
    POSITIONS_ROPE
};
enum transformer_act { ACTIVATION_GELU, ACTIVATION_GELU_TANH, ACTIVATION_RELU, ACTIVATION_SILU };

struct transformer_config {
    enum transformer_family family;
    int64_t vocab, d_model, layers, heads, kv_heads, head_dim, d_ff;
    int64_t positions;   /* longest sequence */
    int64_t token_types; /* 0: none; all tokens are of type 0 */
    enum transformer_positions position_kind;
    struct rope_attr rope; /* theta and the stretching of low frequencies; the rest is filled in */
    enum transformer_act activation;
    bool rms_norm; /* else LayerNorm */
    double norm_eps;
    bool causal, pre_norm, gated; /* gated: down(act(gate(x)) * up(x)) */
    bool fused_qkv;               /* one product for queries, keys and values, in this order */
    bool qk_norm;                 /* RMS norm of each head of queries and keys, before rope */
    bool qkv_bias, out_bias, mlp_bias;
    bool embed_norm, final_norm;
    bool head; /* scores of the vocabulary; BERT's goes through dense, activation and norm */
    bool tied; /* the head's weight is the embedding */
    bool head_bias;
    bool pooler;   /* tanh(dense(first token)) */
    bool prefixed; /* names begin with the family's prefix: "transformer." */
    double embed_dropout, attention_dropout, residual_dropout;
    int64_t window;       /* attention to the last `window` tokens; 0: to all before */
    const bool *windowed; /* [layers]: where the window applies; NULL: in all */
    bool mask_padding;    /* tokens equal to pad_token are not attended to */
    int64_t pad_token;
    bool padding_row; /* row padding_index of the embedding gets no gradient from lookups */
    int64_t padding_index;
    double attention_scale; /* 0: 1 / sqrt(head_dim) */
    bool scale_by_layer;    /* and divided by the block's number from 1 (GPT-2) */
    double init_std;        /* weights and embeddings: normal(0, init_std) */
    bool scaled_init;       /* out and down: divided by sqrt(2 * layers) */
    uint64_t seed;          /* of starting values; 0: the run's */
    bool wants_checkpointing;
};

/* Checks the configuration and declares the variables, with provenance "<node_id>/blocks.0.attn"
 * and the like. ST_INVALID names the field as this struct has it; e->node is node_id. `config` is
 * copied. On failure `vars` may hold some of the variables. */
enum status transformer_make(
    const struct transformer_config *config, const char *node_id, struct ir_vars *vars,
    struct model **out, struct err *e) NODISCARD;
/* NULL when the model is none. */
const struct transformer_config *transformer_config_of(const struct model *m);
const char *transformer_act_name(enum transformer_act a); /* "gelu" */

#endif
