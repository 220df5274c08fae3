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
 * gives the same bits and frees memory (norm, activation, dropout outputs). */
enum status pass_recompute(struct ir_program *p, struct err *e) NODISCARD;

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
