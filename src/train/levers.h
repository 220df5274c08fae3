/* levers.h - what a TrainingLoop may change to need less memory; all off by default.
 *
 * The parameters' names are those of the node (graph/nodes.def). What each promises about numbers,
 * and what it cannot be combined with: docs/levers.md.
 */
#ifndef TRAIN_LEVERS_H
#define TRAIN_LEVERS_H

#include "ir/dtype.h"

#include <stdbool.h>
#include <stdint.h>

enum checkpointing { CHECKPOINT_NONE, CHECKPOINT_BLOCKS, CHECKPOINT_SELECTIVE, CHECKPOINT_AUTO };
enum optimizer_state { OPTIM_STATE_F32, OPTIM_STATE_INT8, OPTIM_STATE_HOST };
enum master_weights { MASTER_F32, MASTER_NONE, MASTER_STOCHASTIC };

/* Zero is: every lever off. */
struct levers {
    enum checkpointing checkpointing;
    int64_t loss_chunk_tokens; /* 0: the logits exist whole */
    bool update_in_backward;
    enum optimizer_state optimizer_state;
    bool offload_activations;
    enum dtype parameter_dtype; /* DT_F32, DT_BF16, DT_F16 */
    enum master_weights master_weights;
    int64_t budget_bytes; /* what checkpointing "auto" has to meet; 0: none is known */
};

/* The levers one by one, for what each saves. */
enum lever_field {
#define FIELD(ID, name) LEVER_FIELD_##ID,
#include "train/lever_fields.def"
#undef FIELD
    LEVER_FIELD_COUNT
};
const char *lever_name(enum lever_field lever); /* the node's parameter */
bool lever_used(const struct levers *l, enum lever_field lever);
void lever_switch_off(struct levers *l, enum lever_field lever);

#endif
