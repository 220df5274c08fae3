/* torch_style_int.h - a program being replayed as PyTorch would run it; private to torch_*.c. */
#ifndef PLAN_TORCH_STYLE_INT_H
#define PLAN_TORCH_STYLE_INT_H

#include "plan/torch_style.h"

/* A tensor of PyTorch's: a tape value, its elements, bytes of each. */
struct tensor_of {
    int v; /* -1: none */
    int64_t n;
    int size;
};

struct replay {
    const struct ir_program *p;
    const struct torch_options *o;
    struct tape *t;
    struct tensor_of *at; /* by value of the program */
    int *last_use;        /* by value: the last operator that reads it or a view of it */
    int *cast;            /* by variable: its half copy in autocast's cache; -1 */
    int output;           /* value of the program: what the model gives */
    struct torch_estimate *out;
};

int replay_apply(struct replay *r, struct tape_op op);
int64_t replay_bytes(struct tensor_of x);
struct tensor_of replay_in(struct replay *r, const struct ir_op *op, int i);
void replay_out(struct replay *r, const struct ir_op *op, int i, struct tensor_of x);
/* Autocast: what an operator of the low class, or of the float32 class, reads. Made anew, except
 * for parameters. The caller drops it with replay_done. */
struct tensor_of replay_low(struct replay *r, const struct ir_op *op, int i);
struct tensor_of replay_cast(struct replay *r, struct tensor_of x, int size);
void replay_done(struct replay *r, struct tensor_of given, struct tensor_of used);
int replay_low_size(const struct replay *r, struct tensor_of x); /* of a product's result */
int64_t replay_count(const struct replay *r, int value);

/* torch_ops.c: false where the operator has no row. */
bool replay_operator(struct replay *r, const struct ir_op *op);
/* torch_attention.c */
void replay_attention(struct replay *r, const struct ir_op *op);

#endif
