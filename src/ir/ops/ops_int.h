/* ops_int.h - what the operator families share. Private to ir. */
#ifndef IR_OPS_INT_H
#define IR_OPS_INT_H

#include "ir/build.h"
#include "ir/program.h"

#define TEXT(s) shape_text(&(s), (char[192]){0}, 192)

/* May operand i be IR_NONE? */
bool ir_operand_optional(enum opcode code, int i);
/* Does the operator take ROW operands of any strides? The others read dense ones: ir_emit inserts
 * CONTIGUOUS where needed. */
bool ir_reads_strided(enum opcode code);
/* The next versions that op makes have the types of the operands they replace. */
void ir_mutated_outs(const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out);
/* A builder's refusal: sets the sticky error with the node's name and returns IR_NONE. */
int ir_refuse(struct ir_program *p, enum status st, const char *fmt, ...) PRINTF(3, 4);

/* Puts the current node's name (else `fallback`) before the sticky error's text. */
void ir_blame_node(struct ir_program *p, const char *fallback);

#define X(NAME, name, lo, hi, outs, mutated, autocast, flags, family)                              \
    enum status shape_##family(                                                                    \
        const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,  \
        struct err *e);                                                                            \
    void grad_##family(struct ir_grad *g, const struct ir_op *op);                                 \
    void cost_##family(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c);
#include "ir/ops.def"
#undef X
void cost_moves(
    const struct ir_program *p, const struct ir_op *op, struct ir_cost *c); /* one pass */
void cost_none(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c); /* a view */
/* Adds `flops` per element of operand 0 (of the output when there is none). */
void cost_each(const struct ir_program *p, const struct ir_op *op, double flops, struct ir_cost *c);

/* Operand i, NULL when absent. The pointer does not survive an emission. */
static inline const struct ir_value *
op_in(const struct ir_program *p, const struct ir_op *op, int i)
{
    return i < op->n_in && op->in[i] >= 0 ? &p->values.data[op->in[i]] : NULL;
}
/* Operand i as a value's index, IR_NONE when absent. */
static inline int op_arg(const struct ir_op *op, int i)
{
    return i < op->n_in ? op->in[i] : IR_NONE;
}
static inline struct shape value_shape(const struct ir_program *p, int value)
{
    return p->values.data[value].shape;
}
/* Is there nothing to do: an error, or a required operand that an error left out? */
static inline bool ir_idle(const struct ir_program *p, int value)
{
    return p->err.status != ST_OK || value < 0;
}
enum dtype
dtype_widest(enum dtype a, enum dtype b); /* the type that holds both; PyTorch's promotion */
/* dim in [-rank, rank) made non-negative; false when outside. Scalars count as rank 1. */
bool dim_wrap(int *dim, int rank);
bool value_dense(const struct ir_value *v);
/* Strides of a reshape without a copy; false when there are none. */
bool view_strides(const struct ir_value *v, const struct shape *to, int64_t stride[RANK_MAX]);
/* Gradient of output i of op. */
static inline int grad_out(const struct ir_grad *g, const struct ir_op *op, int i)
{
    return ir_grad_get(g, op->out[i]);
}

#endif
