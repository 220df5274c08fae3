/* spec.h - what the Optimizer and Loss nodes say, as plain values. Made by spec_optim.c,
 * spec_loss.c. */
#ifndef TRAIN_SPEC_H
#define TRAIN_SPEC_H

#include "base/err.h"
#include "base/json.h"
#include "ir/attr.h"

enum loss_type {
    LOSS_TYPE_CROSS_ENTROPY,
    LOSS_TYPE_MSE,
    LOSS_TYPE_BCE_LOGITS,
    LOSS_TYPE_L1,
    LOSS_TYPE_SMOOTH_L1,
    LOSS_TYPE_NLL,
    LOSS_TYPE_KLDIV,
    LOSS_TYPE_HUBER,
    LOSS_TYPE_BCE,
    LOSS_TYPE_MARGIN_RANKING,
    LOSS_TYPE_COSINE_EMBEDDING,
    LOSS_TYPE_LM_CROSS_ENTROPY, /* logits [B, T, V], targets [B, T]: the node LMCrossEntropyLoss */
    LOSS_TYPE_COUNT
};

struct loss_spec {
    enum loss_type type;
    struct loss_attr attr;
    double margin;               /* margin ranking, cosine embedding */
    double *weight, *pos_weight; /* NULL: none; freed by loss_spec_release */
    int weight_n, pos_weight_n;
    const char *node_id; /* of the Loss node: errors and the bill name it; NULL: "loss" */
};
/* params: the node's parameters, defaults filled in. Errors name the parameter. */
enum status loss_spec_make(const json_t *params, struct loss_spec *out, struct err *e) NODISCARD;
void loss_spec_release(struct loss_spec *s);
const char *loss_type_name(enum loss_type t); /* "CrossEntropyLoss" */
/* Cross-entropy and NLL: targets are class indices, accuracy is counted, labels may be ignored. */
bool loss_has_classes(enum loss_type t);
/* Its value is a mean over valid labels: batches of unequal counts of them weigh differently. */
bool loss_weighs_labels(const struct loss_spec *s);

struct optim_spec {
    struct optim_attr attr;
    double lr;
};
enum status optim_spec_make(const json_t *params, struct optim_spec *out, struct err *e) NODISCARD;
const char *optim_kind_name(enum optim_kind k); /* "AdamW" */
/* The value PyTorch gives the elements of state tensor i before the first update. */
double optim_state_initial(const struct optim_spec *s, int i);

#endif
