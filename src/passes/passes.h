/* passes.h - rewrites of a program; each is one file and usable alone. Order: passes.def.
 *
 * Every pass takes a verified program and leaves a verified one. Autocast comes before the
 * gradients are appended; the others after.
 */
#ifndef PASSES_PASSES_H
#define PASSES_PASSES_H

#include "ir/program.h"

/* After which step a program can be looked at: --dump-after. */
enum pass {
#define PASS(id, name, about) PASS_##id,
#include "passes/passes.def"
#undef PASS
    PASS_COUNT
};
const char *pass_name(enum pass pass);
const char *pass_about(enum pass pass);
bool pass_find(const char *name, enum pass *out);

/* P3: forward and loss under autocast to `low` (DT_BF16, DT_F16): operators of class LOW get their
 * floating inputs cast down (a parameter once per program), FULL ones up to float32. */
enum status pass_autocast(struct ir_program *p, enum dtype low, struct err *e) NODISCARD;

/* Forward results that are only kept for the backward pass are computed again there, where that
 * gives the same bits and frees memory (norm, activation, dropout outputs). wide: also with more
 * arithmetic, as long as it is no product with a weight (attention's core, softmax, pooling). */
enum status pass_recompute(struct ir_program *p, bool wide, struct err *e) NODISCARD;

/* The head's product and its cross-entropy as one operator, `tokens` tokens at a time (L6). Comes
 * before the gradients; `seed` is the value that they will start from, IR_NONE in evaluation.
 * Changes nothing and says in *why (else NULL) what is missing where the program does not end so.
 */
struct loss_chunk_options {
    int64_t tokens;
    int loss, seed; /* values */
};
enum status pass_loss_chunk(
    struct ir_program *p, const struct loss_chunk_options *o, const char **why,
    struct err *e) NODISCARD;

/* Activation checkpointing: of what the first `count` segments of the forward pass compute, the
 * backward pass keeps only what enters a segment and computes the rest again, to the bit, just
 * before it is needed. Comes before pass_recompute, which sees the second computation as forward
 * work. Segments are the model's blocks (ir_op.block); where it marks none, they are cut where one
 * activation alone passes from one side to the other. A last segment whose second run would follow
 * its first at once, and lower nothing, is left alone. */
enum { CHECKPOINT_ALL = 1 << 30 };
struct checkpoint_options {
    int count; /* leading segments; CHECKPOINT_ALL */
    bool wide; /* what pass_recompute is called with afterwards */
};
/* *segments (may be NULL): how many there are. */
enum status pass_checkpoint(
    struct ir_program *p, const struct checkpoint_options *o, int *segments,
    struct err *e) NODISCARD;

/* Arithmetic of one run of a program, and the part of it that is done a second time. */
struct pass_flops {
    double all, again;
};
struct pass_flops pass_flops(const struct ir_program *p);

/* Must always run. enabled: chooses the physical layout (channels last or blocked) of what
 * convolutions, pooling and norms touch, and inserts the reorders at the borders; blocked: allow
 * C16. In any case makes strided views dense for the operators that need it. */
struct layout_options {
    bool enabled, blocked;
};
enum status
pass_layout(struct ir_program *p, const struct layout_options *o, struct err *e) NODISCARD;

/* Fused forms with the bits of the unfused ones: norm + residual + ReLU, ReLU's gradient into the
 * norm's, casts into the products that feed them. */
enum status pass_fuse(struct ir_program *p, struct err *e) NODISCARD;

#endif
