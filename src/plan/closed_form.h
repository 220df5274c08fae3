/* closed_form.h - what a transformer needs to train, from its configuration alone (requirement E5).
 *
 * Two forms. CLOSED_WALK replays the operators of the named family as eager PyTorch runs them
 * (tape.h): the peak is the largest of all moments, and the phase that holds it is named.
 * CLOSED_FOUNDING is the pocket formula that people use, a sum: parameters x bytes + layers x
 * 2 (19 B S H + 3 B A S S); checkpointed, the inputs of all layers and one layer.
 *
 * All sizes are per card where the struct says so; bytes throughout. One sequence of `seq` tokens
 * is full: the longest batch decides.
 */
#ifndef PLAN_CLOSED_FORM_H
#define PLAN_CLOSED_FORM_H

#include "base/err.h"
#include "base/json.h"
#include "plan/tape.h"

enum closed_norm { CLOSED_LAYER_NORM, CLOSED_RMS_NORM };
enum closed_act {
    CLOSED_GELU,
    CLOSED_GELU_NEW,
    CLOSED_GATED
}; /* GELU_NEW: written out in Python */
enum closed_head { CLOSED_HEAD_LM, CLOSED_HEAD_CLASSES, CLOSED_HEAD_MLM, CLOSED_HEAD_NONE };

/* A transformer, as its config.json has it. Zero means "none". */
struct closed_model {
    char family[32];
    int64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
    int64_t positions, types; /* learned position and segment tables */
    int64_t experts, experts_per_token;
    int64_t parameters; /* told; else counted from the rest */
    bool tied, bias, qkv_bias, qk_norm, post_norm;
    double dropout; /* of residuals and attention weights */
    enum closed_norm norm;
    enum closed_act act;
    enum closed_head head;
};
/* Reads a Hugging Face config.json of a known model_type (llama, mistral, mixtral, qwen2, qwen3,
 * gemma, phi3, gpt2, gpt_neox, opt, bloom, falcon, bert and others: the table in closed_model.c),
 * or of any other with the shape of `family` (NULL: as the file says). Of a model with a
 * "text_config" that part is read. Errors name the field. */
enum status closed_model_read(
    const char *path, const char *family, struct closed_model *out, struct err *e) NODISCARD;
enum status closed_model_of(
    const json_t *config, const char *family, struct closed_model *out, struct err *e) NODISCARD;
/* Sets what `family` says (empty: llama). */
enum status closed_model_family(struct closed_model *m, struct err *e) NODISCARD;
/* Fills what follows from the rest (kv_heads, head_dim; ffn from the parameters, where they are
 * given, else 4 hidden); refuses what no model can be. */
enum status closed_model_complete(struct closed_model *m, struct err *e) NODISCARD;
/* The part of one of `tp` cards that share every matrix: heads, MLP and vocabulary are divided, the
 * residual is not. */
enum status closed_model_split(struct closed_model *m, int64_t tp, struct err *e) NODISCARD;
int64_t closed_model_parameters(const struct closed_model *m);
int64_t closed_model_active(const struct closed_model *m); /* of one token: MoE */

enum closed_precision {
#define PRECISION(id, name, w, g, master, moment, compute, cast, about) CLOSED_##id,
#include "plan/precisions.def"
#undef PRECISION
    CLOSED_PRECISION_COUNT
};
struct closed_precision_row {
    const char *name;
    int weight, gradient, master, moment, compute;
    bool autocast;
    const char *about;
};
const struct closed_precision_row *closed_precision_at(int i);

struct closed_optim_row {
    const char *name;
    int states;
    double bytes;
    int copies, largest;
    const char *about;
};
const struct closed_optim_row *closed_optim_at(int i); /* NULL past the end */

enum closed_step { CLOSED_STEP_SINGLE, CLOSED_STEP_FOREACH, CLOSED_STEP_FUSED };
enum closed_loss {
    CLOSED_LOSS_PLAIN,
    CLOSED_LOSS_SHIFTED,
    CLOSED_LOSS_UPCAST,
    CLOSED_LOSS_UPCAST_FUSED,
    CLOSED_LOSS_FUSED,
    CLOSED_LOSS_FLOAT,
    CLOSED_LOSS_CHUNKED,
    CLOSED_LOSS_CHUNK128,
    CLOSED_LOSS_CHUNKED_OUTPUT
};
enum {
    CLOSED_Q = 1,
    CLOSED_K = 2,
    CLOSED_V = 4,
    CLOSED_O = 8,
    CLOSED_GATE = 16,
    CLOSED_UP = 32,
    CLOSED_DOWN = 64,
    CLOSED_ATTENTION = 15,
    CLOSED_MLP = 112,
    CLOSED_ALL_LINEAR = 127
};
enum closed_habit {
    CLOSED_GRADIENT_BUFFER = 1,
    CLOSED_JOINT_QKV = 2,
    CLOSED_QUANT_INPUTS = 4,
    CLOSED_ENGINE = 8
};
struct closed_framework_row {
    const char *name;
    enum closed_loss loss;
    int holds_logits; /* 0 not, 1 through the backward pass, 2 to the step's end */
    bool fused_layers;
    enum closed_step step;
    int adapter_bytes;
    unsigned habits; /* of enum closed_habit */
    enum closed_precision precision;
    unsigned targets;
    double lora_dropout;
    const char *about;
};
const struct closed_framework_row *closed_framework_at(int i); /* NULL past the end */

struct closed_card {
    const char *name;
    int64_t nominal_bytes, usable_bytes;
    int sm;
};
const struct closed_card *closed_card_at(int i); /* NULL past the end */

enum closed_method { CLOSED_FULL, CLOSED_LORA, CLOSED_QLORA };
enum closed_attention {
    CLOSED_FLASH,
    CLOSED_SDPA,
    CLOSED_PLAIN
}; /* SDPA: flash on repeated K, V */
enum closed_checkpointing { CLOSED_KEEP, CLOSED_BLOCKS, CLOSED_SELECTIVE, CLOSED_GELU_AGAIN };

struct closed_run {
    int64_t batch, seq; /* of one card */
    int precision;      /* row of precisions.def */
    int optimizer;      /* row of optims.def */
    int framework;      /* row of frameworks.def */
    enum closed_loss loss;
    int holds_logits; /* as in the framework's row */
    bool fused_norm, fused_mlp;
    enum closed_step step;
    enum closed_method method;
    int64_t rank;
    unsigned targets;
    double lora_dropout;
    double quant_bits; /* of a frozen weight under QLoRA: 4.5, 4.127 with double quantisation, 8 */
    bool train_embeddings;
    int zero, cards;
    bool offload_optimizer, offload_params, update_in_backward;
    unsigned habits; /* of enum closed_habit */
    bool first_step; /* the optimizer's state does not exist before its first step */
    int adapter_bytes;
    enum closed_checkpointing checkpointing;
    enum closed_attention attention;
    int sm; /* compute capability: from 90 on cuBLAS takes 32 MiB workspaces */
    int64_t context_bytes;
    bool inference;
};
void closed_run_defaults(struct closed_run *r);
/* Refuses what cannot be counted in 64 bits, and numbers below 1. */
enum status
closed_run_check(const struct closed_model *m, const struct closed_run *r, struct err *e) NODISCARD;
/* Takes the habits of a framework's row, its precision and what it adapts. */
void closed_run_framework(struct closed_run *r, int framework);

struct closed_estimate {
    int64_t parameters, trainable;
    double bytes_per_parameter; /* weights, gradients, masters and state of a trainable one */
    struct tape_peak peak, phase[TAPE_PHASE_COUNT]; /* of one card, without the context */
    int64_t start_bytes;                            /* between steps: gradients are gone */
    int64_t layer_bytes;                            /* saved by one layer */
    int64_t logits_bytes;
    int64_t context_bytes;
    int64_t card_bytes, total_bytes; /* with the context, of one card and of all */
    int64_t host_bytes;              /* what is offloaded, of one card */
};
enum status closed_estimate_make(
    const struct closed_model *m, const struct closed_run *r, struct closed_estimate *out,
    struct err *e) NODISCARD;

/* ---- the founding formula (E8) ---- */
struct closed_founding {
    int64_t states_bytes;      /* parameters x bytes per parameter */
    int64_t layer_bytes;       /* 2 (19 B S H + 3 B A S S) */
    int64_t activations_bytes; /* layers x that; checkpointed: inputs + one layer */
    int64_t total_bytes;
};
struct closed_founding
closed_founding_make(const struct closed_model *m, const struct closed_run *r);

/* ---- how many cards (E9) ----
 * `total` bytes fully sharded over cards of `card` bytes. Cards come in 1, 2, 4, 8 and then whole
 * machines of eight: the minimum is the smallest such count that holds it; tight: less than a tenth
 * is left. Safer is one more card (at 8 and above one machine more), with what that leaves free. */
struct closed_cards {
    int64_t bare; /* total / card, rounded up */
    int64_t minimum, safer;
    double minimum_free, safer_free; /* share of the memory */
    bool tight;
};
struct closed_cards closed_cards_for(int64_t total, int64_t card);

#endif
