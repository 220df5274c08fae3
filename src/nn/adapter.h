/* adapter.h - LoRA and QLoRA: small trained matrices beside frozen products.
 *
 * Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022:
 *     y = x W^T + b + scale * dropout(x) A^T B^T,   A [rank, in], B [out, rank]
 * scale is alpha / rank, or alpha / sqrt(rank) with rslora (Kalajdzievski 2023). A starts from
 * kaiming_uniform(a = sqrt(5)), B from zeros. Everything else of the model is frozen: no gradient,
 * no optimizer state. Dettmers et al., "QLoRA", NeurIPS 2023: the weights of the linear layers,
 * the head aside, are stored in 8 or 4 bits (ir/quant.h) and made numbers again where a product
 * needs them, in the backward pass too; they never change.
 *
 * TARGETS  module names separated by commas, as PEFT has them: a module is meant when its name is
 *          one of them or ends with "." and one of them. "all-linear": every linear layer but a
 *          language model's head.
 *
 * VARIABLES "<module>.lora_A.weight", "<module>.lora_B.weight" after the model's own. A quantised
 * weight keeps its variable, which becomes codes; its scales are "<name>.absmax", and with
 * double_quant "<name>.nested_absmax" and "<name>.nested_offset".
 */
#ifndef NN_ADAPTER_H
#define NN_ADAPTER_H

#include "ir/quant.h"
#include "nn/model.h"

struct adapter_config {
    int64_t rank;
    double alpha, dropout;
    const char *targets;
    bool rslora;
    enum quant_kind base; /* QUANT_NONE: as it is */
    bool double_quant;
};

struct adapter {
    const char *module; /* "layers.l1" */
    int weight, a, b;   /* variables */
    bool in_out;        /* the weight is [in, out] */
    double scale;
    uint32_t stream; /* of its dropout */
};
/* A weight in few bits. */
struct model_quant {
    enum quant_kind kind;
    struct shape shape;                /* of the weight */
    int codes, absmax, nested, offset; /* variables; the last two IR_NONE without double_quant */
};

/* Freezes the model and attaches adapters, before any program is built. ST_INVALID names the
 * parameter: ranks, targets that no module has (the hint lists some), a head that shares its weight
 * with the embedding. */
enum status model_adapt(struct model *m, const struct adapter_config *c, struct err *e) NODISCARD;
const struct adapter_config *model_adapter_config(const struct model *m); /* NULL: none */
int model_adapter_count(const struct model *m);
const struct adapter *model_adapter_at(const struct model *m, int i);
const struct adapter *model_adapter_of(const struct model *m, int weight_var); /* NULL: none */
const struct model_quant *model_quant_of(const struct model *m, int var);      /* NULL: none */

/* Where the values of a variable are. */
struct model_values {
    const void *(*at)(int var, enum dtype *type, void *ctx);
    void *ctx;
};
/* The weight of var as it works: read from few bits, with its adapter added, in float32; `out` has
 * the weight's shape. Adapters are merged onto what training saw (case T77). */
void model_merged(const struct model *m, int var, const struct model_values *values, float *out);
/* Puts a weight in few bits where its variables are. */
void model_quantise(
    const struct model_quant *q, void *(*at)(int var, void *ctx), void *ctx, const float *x);

#endif
