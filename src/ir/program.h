/* program.h - a step program: a flat list of typed operators in SSA form over values with static
 * shapes.
 *
 * INVARIANTS (ir_verify checks them)
 *  1. ops[] is in topological order; every value is defined once: by one operator, or from outside.
 *  2. A value's shape, type and layout never change; shapes are PyTorch's logical ones.
 *  3. A persistent value belongs to a variable (struct ir_var) that outlives the program. Mutating
 *     operators (ops.def) give its next version; only the newest version is read afterwards.
 *  4. Views (RESHAPE, PERMUTE, SLICE, EXPAND) name the value whose storage they share in `base`; a
 *     base is never itself a view. Next versions share the storage of their variable.
 *  5. Every operator carries the graph node it came from.
 *
 * Variables live in a table that all programs of a run share, so that a parameter keeps one
 * identity (and one offset in the arena) in all of them.
 *
 * Errors are sticky: the first failing emitter records its error in program->err and returns
 * IR_NONE; later emitters given IR_NONE for a required operand do nothing. Build a whole model,
 * then look at the error once (ir_status).
 *
 * Owner: whoever called ir_program_new; everything inside lives in the program's arena.
 */
#ifndef IR_PROGRAM_H
#define IR_PROGRAM_H

#include "base/err.h"
#include "base/mem.h"
#include "ir/attr.h"
#include "ir/tensor.h"

enum { IR_NONE = -1 };

enum opcode {
#define X(name, ...) OP_##name,
#include "ir/ops.def"
#undef X
    OP_COUNT
};

enum op_flag {
    OPF_VIEW = 1,
    OPF_INPLACE = 2,
    OPF_RECOMPUTE = 4,
    OPF_ELEMENT = 8,
    OPF_CHANNEL = 16,
    OPF_NOGRAD = 32
};
enum autocast { AUTOCAST_NONE, AUTOCAST_LOW, AUTOCAST_FULL, AUTOCAST_WIDE };

enum phase { PHASE_FORWARD, PHASE_LOSS, PHASE_BACKWARD, PHASE_UPDATE };

/* What memory is for; the names of by_category. */
enum category {
    CATEGORY_PARAMETERS,
    CATEGORY_GRADIENTS,
    CATEGORY_OPTIMIZER_STATE,
    CATEGORY_BUFFERS,
    CATEGORY_ACTIVATIONS,
    CATEGORY_LOGITS,
    CATEGORY_INPUTS,
    CATEGORY_WORKSPACE,
    CATEGORY_COMMUNICATION,
    CATEGORY_GAPS,
    CATEGORY_COUNT
};
const char *category_name(enum category c); /* "optimizer_state" */

enum value_kind {
    VALUE_TEMP,  /* defined by an operator */
    VALUE_INPUT, /* written by the host before each run of the program: batch, targets, hyper, ...
                  */
    VALUE_VAR    /* a version of a variable */
};

struct ir_value {
    enum value_kind kind;
    enum dtype dtype;
    enum layout layout;
    enum category category;
    struct shape shape;
    int64_t stride[RANK_MAX]; /* ROW only, elements */
    int64_t offset;           /* elements from the start of base's storage */
    int base;                 /* storage owner; itself when it owns */
    int var;                  /* VALUE_VAR: index into vars; else IR_NONE */
    int def;                  /* operator that defines it; IR_NONE from outside */
    int node;                 /* provenance: index into nodes */
    bool needs_grad;          /* set by the autodiff */
    const char *name;         /* for dumps: "conv1.weight", "input"; may be NULL */
};

struct ir_op {
    enum opcode code;
    enum phase phase;
    int n_in, n_out;
    int *in, *out;
    union op_attr attr;
    int node;
    int block;       /* the repeated part of the model it belongs to, from 0; IR_NONE: none, or not
                        forward */
    bool recomputed; /* a second run of a forward operator, for the backward pass */
    int64_t workspace_bytes; /* set by select */
};

/* A thing that outlives programs: parameter, gradient accumulator, optimizer state, buffer. */
struct ir_var {
    const char
        *name; /* "layers.conv1.weight", "layers.bn.running_mean", "exp_avg:layers.conv1.weight" */
    enum dtype dtype;
    struct shape shape;
    enum category category;
    bool trainable;
    int of; /* gradients and state: the parameter's variable; else IR_NONE */
    int node;
};
struct ir_vars {
    struct arena arena;
    VEC(struct ir_var) list;
    VEC(const char *) nodes; /* provenance table shared by the programs: "model/conv1" */
};
void ir_vars_init(struct ir_vars *v);
void ir_vars_release(struct ir_vars *v);
int ir_var_new(struct ir_vars *v, const struct ir_var *var); /* copies; returns the index */
int ir_var_find(const struct ir_vars *v, const char *name);  /* IR_NONE when absent */
int ir_node_intern(struct ir_vars *v, const char *name);

struct ir_program {
    const char *name; /* "train.only", "eval", ... */
    struct arena arena;
    struct ir_vars *vars;
    VEC(struct ir_value) values;
    VEC(struct ir_op) ops;
    VEC(int)
    var_value;        /* by variable: its newest value in this program, IR_NONE before first use */
    VEC(int) outputs; /* values the host reads after a run; kept live to the end */
    enum phase phase; /* given to operators emitted now */
    int node;         /* provenance given to operators emitted now */
    int block;        /* likewise: set by models while they append block 0, 1, ...; else IR_NONE */
    struct err err;   /* first failure; status ST_OK when none */
};

struct ir_program *ir_program_new(const char *name, struct ir_vars *vars);
void ir_program_free(struct ir_program *p);
struct ir_program *ir_program_clone(const struct ir_program *p, const char *name); /* shares vars */
enum status ir_status(const struct ir_program *p, struct err *e) NODISCARD;

/* Values from outside. */
int ir_input(struct ir_program *p, const char *name, enum dtype t, struct shape s);
int ir_var_read(struct ir_program *p, int var); /* the newest version of a variable */
/* An output that the host reads (loss, counts, ctl). */
void ir_output(struct ir_program *p, int value, const char *name);
int ir_output_find(const struct ir_program *p, const char *name);
int ir_input_find(const struct ir_program *p, const char *name);

/* Appends one operator; shapes are inferred and checked. Returns output 0 (others: ir_out). */
int ir_emit(
    struct ir_program *p, enum opcode code, const int *in, int n_in, const union op_attr *attr);
/* Output i of the operator emitted last. */
int ir_out(const struct ir_program *p, int i);

static inline struct ir_value *ir_value_at(const struct ir_program *p, int value)
{
    return &p->values.data[value];
}
/* Bytes of a value's own storage (0 for views). */
int64_t ir_value_bytes(const struct ir_program *p, int value);
int ir_storage(const struct ir_program *p, int value); /* the value that owns its storage */

/* ---- the operator table ---- */
struct ir_shape_out {
    enum dtype dtype;
    struct shape shape;
    int64_t stride[RANK_MAX]; /* views only */
    int64_t offset;           /* views only */
};
struct ir_cost {
    double flops, bytes; /* arithmetic and memory traffic of one run */
};
struct ir_grad;
struct ir_op_row {
    const char *name;
    int n_in_min, n_in_max, n_out, mutated;
    enum autocast autocast;
    unsigned flags;
    /* Fills out[0..n_out); *n_out may be changed where the row says 0 (OPTIMIZER). */
    enum status (*shape)(
        const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out, int *n_out,
        struct err *e);
    /* Appends operators for the gradients of op's inputs; NULL when NOGRAD. */
    void (*grad)(struct ir_grad *g, const struct ir_op *op);
    void (*cost)(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c);
};
const struct ir_op_row *ir_op_row(enum opcode code);
bool ir_opcode_find(const char *name, enum opcode *out);
/* Number of leading inputs that op updates in place. */
int ir_op_mutated(const struct ir_op *op);
/* May output 0 take the storage of this operand, where it dies here and has the same form? */
bool ir_may_overwrite(const struct ir_op *op, int operand);

/* ---- reverse-mode differentiation ---- */
/* Appends to p the gradients of scalar value `loss`, seeded with value `seed` (float32 scalar), and
 * fills grad_of_var[var] (array of vars->list.n; IR_NONE where no gradient reaches it). Only
 * trainable variables and what leads to them get gradients. Phase becomes BACKWARD. A variable used
 * several times gets one gradient, summed in order of use from last to first. */
void ir_backward(struct ir_program *p, int loss, int seed, int *grad_of_var);
/* Sets needs_grad of every value: the floating ones that trainable variables lead to. */
void ir_needs_grad(struct ir_program *p);
/* For gradient rules: the gradient of a value so far (IR_NONE: none), whether one is wanted, and
 * adding a contribution (takes the value's type and shape). */
int ir_grad_get(const struct ir_grad *g, int value);
bool ir_grad_wanted(const struct ir_grad *g, int value);
void ir_grad_add(struct ir_grad *g, int value, int gradient);
/* The gradient becomes this one, which has the contributions so far in it. */
void ir_grad_replace(struct ir_grad *g, int value, int gradient);
struct ir_program *ir_grad_program(struct ir_grad *g);

/* ---- checking and printing ---- */
enum status ir_verify(const struct ir_program *p, struct err *e) NODISCARD;
struct str;
/* One line an operator; stable across runs and machines: the golden dumps. */
void ir_print(const struct ir_program *p, struct str *out);
/* Rebuilds op list without operators whose results nobody needs (outputs, mutations, live uses). */
void ir_dead_code(struct ir_program *p);
/* Replaces p->ops by `ops` (a permutation, subset or superset): renumbers `def`. For passes. */
void ir_ops_replace(struct ir_program *p, const struct ir_op *ops, size_t n);

#endif
