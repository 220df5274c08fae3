/* rewrite.h - the loop every pass is built on: walk the old operators, append kept and new ones.
 *
 *     struct rewrite r;
 *     rewrite_begin(&r, p);
 *     for (size_t i = 0; i < r.n; i++) {
 *         ... ir_emit(p, ...) inserts before operator i ...
 *         rewrite_keep(&r, &r.ops[i]);
 *     }
 *     rewrite_end(&r, e);
 */
#ifndef PASSES_REWRITE_H
#define PASSES_REWRITE_H

#include "ir/program.h"

struct rewrite {
    struct ir_program *p;
    struct ir_op *ops; /* the old list; operands may be edited before rewrite_keep */
    size_t n;
};

void rewrite_begin(struct rewrite *r, struct ir_program *p);
/* Phase and provenance of operators emitted from here on are those of `op`. */
void rewrite_at(struct rewrite *r, const struct ir_op *op);
/* Appends the old operator; its outputs keep their values, types are inferred again. */
void rewrite_keep(struct rewrite *r, const struct ir_op *op);
/* Emits a forward operator a second time, for the backward pass, on operands `in` (n_in of them):
 * marked `recomputed`, with the node of the first. Its outputs are ir_out(p, k). False after an
 * error. */
bool rewrite_again(struct rewrite *r, const struct ir_op *op, const int *in) NODISCARD;
/* Frees the old list; verifies in verify builds; reports the program's sticky error. */
enum status rewrite_end(struct rewrite *r, struct err *e) NODISCARD;

/* How often each value is read (outputs of the program count once). Array of values.n, mem_free. */
int *rewrite_uses(const struct ir_program *p);
/* By value: the operator that defines it, IR_NONE where none does. Array of values.n, mem_free. */
int *rewrite_makers(const struct ir_program *p);
/* A variable that a forward operator replaces (running statistics) is not there later: such an
 * operator cannot be run again. */
bool rewrite_reads_replaced(const struct ir_program *p, const struct ir_op *op);
/* Most of a program's arithmetic: products with a weight, convolutions, recurrences. Attention's
 * core is not counted among them. */
bool rewrite_heavy(const struct ir_program *p, const struct ir_op *op);
/* Results that are small beside what they are made of (statistics) are worth keeping. */
bool rewrite_small(const struct ir_program *p, const struct ir_op *op);
/* First operator of the backward or update phase; ops.n when there is none. */
int rewrite_backward_start(const struct ir_program *p);

#endif
