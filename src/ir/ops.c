/* ops.c - the operator table, made from ops.def, and helpers of the families. */
#include "base/str.h"
#include "ir/ops/ops_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* No rule: their gradients are never wanted, or only second derivatives would need them. */
#define grad_conv_wgrad NULL
#define grad_pool_grad NULL
#define grad_batch_stats NULL
#define grad_norm_stats NULL
#define grad_norm_grad NULL
#define grad_act_grad NULL
#define grad_attention_grad NULL
#define grad_rope_table NULL
#define grad_prelu_grad NULL
#define grad_argmax NULL
#define grad_count_correct NULL
#define grad_fill NULL
#define grad_embedding_grad NULL
#define grad_recurrent_grad NULL
#define grad_loss_grad NULL
#define grad_accumulate NULL
#define grad_grad_check NULL
#define grad_grad_join NULL
#define grad_optimizer NULL
#define grad_update_ratio NULL
#define grad_copy_into NULL
#define grad_dequant NULL
/* Costs that are only a pass over memory, or nothing. */
#define cost_reshape cost_none
#define cost_permute cost_none
#define cost_expand cost_none
#define cost_slice cost_none
#define cost_slice_grad cost_moves
#define cost_concat cost_moves
#define cost_copy cost_moves
#define cost_reorder cost_moves
#define cost_cast cost_moves
#define cost_fill cost_moves
#define cost_copy_into cost_moves
#define cost_grad_join cost_moves
#define cost_scatter cost_moves
#define cost_gather cost_moves

enum {
    VIEW = OPF_VIEW,
    INPLACE = OPF_INPLACE,
    RECOMPUTE = OPF_RECOMPUTE,
    ELEMENT = OPF_ELEMENT,
    CHANNEL = OPF_CHANNEL,
    NOGRAD = OPF_NOGRAD
};

static const struct ir_op_row rows[OP_COUNT] = {
#define X(NAME, text, lo, hi, outs, mutates, class, bits, family)                                  \
    [OP_##NAME] = {                                                                                \
        .name = text,                                                                              \
        .n_in_min = lo,                                                                            \
        .n_in_max = hi,                                                                            \
        .n_out = outs,                                                                             \
        .mutated = mutates,                                                                        \
        .autocast = AUTOCAST_##class,                                                              \
        .flags = (unsigned)(bits),                                                                 \
        .shape = shape_##family,                                                                   \
        .grad = grad_##family,                                                                     \
        .cost = cost_##family},
#include "ir/ops.def"
#undef X
};

const struct ir_op_row *ir_op_row(enum opcode code)
{
    ASSERT((unsigned)code < OP_COUNT);
    return &rows[code];
}

bool ir_opcode_find(const char *name, enum opcode *out)
{
    for (int i = 0; i < OP_COUNT; i++)
        if (str_eq(rows[i].name, name)) {
            *out = (enum opcode)i;
            return true;
        }
    return false;
}

int ir_op_mutated(const struct ir_op *op)
{
    int n = rows[op->code].mutated;
    return n >= 0 ? n : op->n_in - 3;
}

bool ir_operand_optional(enum opcode code, int i)
{
    if (code == OP_CROSS_ENTROPY_GRAD || code == OP_NLL_GRAD)
        return i == 3;
    if (code == OP_LOSS_EW_GRAD)
        return i == 3 || i == 4;
    if (code == OP_RECURRENT_GRAD)
        return i == 3;
    if (code == OP_ATTENTION_GRAD)
        return i >= 2 && i <= 5;
    return rows[code].n_in_max >= 0 && i >= rows[code].n_in_min && code != OP_OPTIMIZER;
}

bool ir_reads_strided(enum opcode code)
{
    return (rows[code].flags & OPF_VIEW) || rows[code].shape == shape_binary ||
           code == OP_CONTIGUOUS || code == OP_GEMM || code == OP_CAST || code == OP_ATTENTION ||
           code == OP_ATTENTION_GRAD || code == OP_ROPE;
}

bool ir_may_overwrite(const struct ir_op *op, int operand)
{
    if (!(rows[op->code].flags & OPF_INPLACE))
        return false;
    if (op->code == OP_EMBEDDING_GRAD)
        return operand == 2;
    return op->code != OP_CROSS_ENTROPY_GRAD || operand == 1; /* targets may have that form too */
}

void ir_mutated_outs(const struct ir_program *p, const struct ir_op *op, struct ir_shape_out *out)
{
    for (int i = 0; i < ir_op_mutated(op); i++)
        out[i] =
            (struct ir_shape_out){.dtype = op_in(p, op, i)->dtype, .shape = op_in(p, op, i)->shape};
}

int ir_refuse(struct ir_program *p, enum status st, const char *fmt, ...)
{
    if (p->err.status != ST_OK)
        return IR_NONE;
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    (void)err_set(&p->err, st, "%s", text);
    ir_blame_node(p, "");
    return IR_NONE;
}

/* ---- costs ---- */

void cost_none(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    (void)p;
    (void)op;
    *c = (struct ir_cost){0};
}

void cost_moves(const struct ir_program *p, const struct ir_op *op, struct ir_cost *c)
{
    *c = (struct ir_cost){0};
    for (int i = 0; i < op->n_in; i++)
        if (op->in[i] >= 0) {
            const struct ir_value *v = &p->values.data[op->in[i]];
            c->bytes += (double)shape_count(&v->shape) * dtype_size(v->dtype);
        }
    for (int i = 0; i < op->n_out; i++) {
        const struct ir_value *v = &p->values.data[op->out[i]];
        c->bytes += (double)shape_count(&v->shape) * dtype_size(v->dtype);
    }
}

void cost_each(const struct ir_program *p, const struct ir_op *op, double flops, struct ir_cost *c)
{
    cost_moves(p, op, c);
    int value = op->n_in && op->in[0] >= 0 ? op->in[0] : op->out[0];
    c->flops = flops * (double)shape_count(&p->values.data[value].shape);
}

/* ---- small rules ---- */

enum dtype dtype_widest(enum dtype a, enum dtype b)
{
    if (a == b)
        return a;
    if (dtype_floating(a) && dtype_floating(b))
        return a == DT_F64 || b == DT_F64 ? DT_F64 : DT_F32; /* bfloat16 with float16 too */
    if (dtype_floating(a) || dtype_floating(b))
        return dtype_floating(a) ? a : b;
    if (a == DT_BOOL || b == DT_BOOL)
        return a == DT_BOOL ? b : a;
    return dtype_size(a) >= dtype_size(b) ? a : b;
}

bool dim_wrap(int *dim, int rank)
{
    int n = rank > 0 ? rank : 1;
    if (*dim < -n || *dim >= n)
        return false;
    if (*dim < 0)
        *dim += n;
    return true;
}

bool value_dense(const struct ir_value *v)
{
    struct tensor t = {.layout = v->layout, .shape = v->shape};
    memcpy(t.stride, v->stride, sizeof t.stride);
    return v->layout != LAYOUT_ROW || shape_count(&v->shape) == 0 || tensor_contiguous(&t);
}
