/* print.c - programs as text, the golden dumps.
 *
 * FORMAT
 *     program "train" : 3 values from outside, 2 operators
 *     %0 = input "x" : f32[8, 4]
 *     %1 = var "fc.weight" : f32[2, 4]  # parameters, trainable
 *     %2 = gemm(%0, %1) tb : f32[8, 2]  # forward model/fc
 *     output "loss" = %2
 * An absent operand is "_". Attributes at their defaults, and the layout row, are left out. */
#include "base/str.h"
#include "ir/ops/ops_int.h"

#include <string.h>

static void pair(struct str *s, const char *name, const int64_t v[2], int64_t neutral)
{
    if (v[0] != neutral || v[1] != neutral)
        str_printf(s, " %s=[%lld, %lld]", name, (long long)v[0], (long long)v[1]);
}
static void whole(struct str *s, const char *name, int64_t v, int64_t neutral)
{
    if (v != neutral)
        str_printf(s, " %s=%lld", name, (long long)v);
}
static void real(struct str *s, const char *name, double v, double neutral)
{
    if (v < neutral || v > neutral)
        str_printf(s, " %s=%.9g", name, v);
}
static void flag(struct str *s, const char *name, bool v)
{
    if (v)
        str_printf(s, " %s", name);
}
static void act(struct str *s, enum act a)
{
    flag(s, "relu", a == ACT_RELU);
}

/* ---- one function a family of attributes ---- */

static void show_conv(struct str *s, const struct ir_op *op)
{
    const struct conv_attr *a = &op->attr.conv;
    pair(s, "stride", a->stride, 1);
    if (a->pad_low[0] == a->pad_high[0] && a->pad_low[1] == a->pad_high[1]) {
        pair(s, "pad", a->pad_low, 0);
    } else {
        pair(s, "pad_low", a->pad_low, 0);
        pair(s, "pad_high", a->pad_high, 0);
    }
    pair(s, "dilation", a->dilation, 1);
    whole(s, "groups", a->groups, 1);
    whole(s, "spatial", a->spatial, 2);
    flag(s, "f32_out", a->f32_out);
}

static void show_pool(struct str *s, const struct ir_op *op)
{
    const struct pool_attr *a = &op->attr.pool;
    if (a->adaptive) {
        flag(s, "adaptive", true);
    } else {
        pair(s, "kernel", a->kernel, 0);
        pair(s, "stride", a->stride, 0);
    }
    pair(s, "pad", a->pad, 0);
    pair(s, "dilation", a->dilation, 1);
    whole(s, "spatial", a->spatial, 2);
    flag(s, "ceil_mode", a->ceil_mode);
    flag(s, "exclude_pad", a->exclude_pad);
    whole(s, "divisor", a->divisor, 0);
}

static void show_norm(struct str *s, const struct ir_op *op)
{
    static const char *const kinds[] = {"batch", "layer", "group", "rms"};
    const struct norm_attr *a = &op->attr.norm;
    str_printf(s, " %s", kinds[a->kind]);
    if (a->kind == NORM_GROUP)
        whole(s, "groups", a->groups, -1);
    if (norm_by_rows(a->kind))
        whole(s, "trailing", a->trailing, 1);
    real(s, "eps", a->eps, 1e-5);
    if (op->code == OP_BATCH_STATS)
        real(s, "momentum", a->momentum, 0.1);
    flag(s, "infer", a->infer);
    act(s, a->act);
}

static void show_gemm(struct str *s, const struct ir_op *op)
{
    flag(s, "ta", op->attr.gemm.ta);
    flag(s, "tb", op->attr.gemm.tb);
    flag(s, "f32_out", op->attr.gemm.f32_out);
    flag(s, "round_a", op->attr.gemm.round[0]);
    flag(s, "round_b", op->attr.gemm.round[1]);
    act(s, op->attr.gemm.act);
}

static void show_attention(struct str *s, const struct ir_op *op)
{
    const struct attention_attr *a = &op->attr.attention;
    str_printf(s, " heads=%lld", (long long)a->heads);
    whole(s, "kv_heads", a->kv_heads, a->heads);
    real(s, "scale", a->scale, 0);
    flag(s, "causal", a->causal);
    whole(s, "window", a->window, 0);
    if (a->dropout > 0)
        str_printf(s, " dropout=%.9g stream=%u", a->dropout, (unsigned)a->stream);
}

static void show_rope_table(struct str *s, const struct ir_op *op)
{
    const struct rope_attr *a = &op->attr.rope;
    real(s, "theta", a->theta, 10000);
    whole(s, "start", a->start, 0);
    if (a->factor > 0)
        str_printf(
            s, " factor=%.9g low_freq_factor=%.9g high_freq_factor=%.9g original_positions=%lld",
            a->factor, a->low_freq_factor, a->high_freq_factor, (long long)a->original_positions);
}

static void show_rope(struct str *s, const struct ir_op *op)
{
    whole(s, "heads", op->attr.rope.heads, 0);
    flag(s, "interleaved", op->attr.rope.interleaved);
    flag(s, "inverse", op->attr.rope.inverse);
}

static void show_element(struct str *s, const struct ir_op *op)
{
    real(s, "a", op->attr.ew.a, 0);
    real(s, "b", op->attr.ew.b, 0);
    flag(s, "tanh_form", op->attr.ew.tanh_form);
}

static void show_reduce(struct str *s, const struct ir_op *op)
{
    const char *comma = "";
    str_add(s, " dims=[");
    for (int i = 0; i < RANK_MAX; i++)
        if (op->attr.reduce.dims >> i & 1) {
            str_printf(s, "%s%d", comma, i);
            comma = ", ";
        }
    str_add(s, "]");
    flag(s, "keepdim", op->attr.reduce.keepdim);
    flag(s, "f32_out", op->attr.reduce.f32_out);
}

static void show_dim(struct str *s, const struct ir_op *op)
{
    str_printf(s, " dim=%d", op->attr.view.dim);
    flag(s, "keepdim", op->attr.view.keepdim);
}

static void show_permute(struct str *s, const struct ir_op *op)
{
    /* The attribute does not say the rank: its entries are distinct, so the list ends before the
     * second zero. */
    const int *perm = op->attr.view.perm;
    bool zero = false;
    str_add(s, " perm=[");
    for (int i = 0; i < RANK_MAX && !(zero && perm[i] == 0); i++) {
        zero = zero || perm[i] == 0;
        str_printf(s, "%s%d", i ? ", " : "", perm[i]);
    }
    str_add(s, "]");
}

static void show_slice(struct str *s, const struct ir_op *op)
{
    const struct view_attr *a = &op->attr.view;
    str_printf(
        s, " dim=%d start=%lld length=%lld", a->dim, (long long)a->start, (long long)a->length);
    whole(s, "step", a->step, 1);
}

static void show_fill(struct str *s, const struct ir_op *op)
{
    str_printf(s, " value=%.9g", op->attr.fill.value);
}

static void show_dropout(struct str *s, const struct ir_op *op)
{
    str_printf(s, " p=%.9g stream=%u", op->attr.dropout.p, (unsigned)op->attr.dropout.stream);
}

static void show_embedding(struct str *s, const struct ir_op *op)
{
    whole(s, "padding_idx", op->attr.embed.padding_idx, -1);
}

static const char *const reductions[] = {"mean", "sum", "none", "batchmean"};

static void show_class_loss(struct str *s, const struct ir_op *op)
{
    str_printf(s, " %s", reductions[op->attr.loss.reduction]);
    whole(s, "ignore_index", op->attr.loss.ignore_index, -100);
    real(s, "label_smoothing", op->attr.loss.label_smoothing, 0);
    flag(s, "f32_out", op->attr.loss.f32_out);
}

static void show_linear_loss(struct str *s, const struct ir_op *op)
{
    show_class_loss(s, op); /* linear_loss begins with loss */
    whole(s, "chunk", op->attr.linear_loss.chunk, 0);
    flag(s, "in_out", op->attr.linear_loss.in_out);
}

static void show_element_loss(struct str *s, const struct ir_op *op)
{
    static const char *const kinds[] = {"mse", "l1",         "smooth_l1", "huber",
                                        "bce", "bce_logits", "kldiv"};
    const struct loss_attr *a = &op->attr.loss;
    str_printf(s, " %s %s", kinds[a->kind], reductions[a->reduction]);
    if (a->kind == LOSS_SMOOTH_L1 || a->kind == LOSS_HUBER)
        real(s, "beta", a->beta, 1);
    flag(s, "log_target", a->log_target);
}

static void show_loss_grad(struct str *s, const struct ir_op *op)
{
    (op->code == OP_LOSS_EW_GRAD ? show_element_loss : show_class_loss)(s, op);
}

static void show_act_grad(struct str *s, const struct ir_op *op)
{
    bool softmax = op->code == OP_SOFTMAX_GRAD || op->code == OP_LOG_SOFTMAX_GRAD;
    (softmax ? show_dim : show_element)(s, op);
}

static void show_grad_check(struct str *s, const struct ir_op *op)
{
    real(s, "max_norm", op->attr.check.max_norm, 0);
    flag(s, "allow_nonfinite", op->attr.check.allow_nonfinite);
}

static const char *optim_label(enum optim_kind kind)
{
    static const char *const names[OPTIM_COUNT] = {"sgd",     "adam",     "adamw", "rmsprop",
                                                   "adagrad", "radam",    "nadam", "rprop",
                                                   "asgd",    "adafactor"};
    return names[kind];
}

static void show_optimizer(struct str *s, const struct ir_op *op)
{
    const struct optim_attr *a = &op->attr.optim;
    str_printf(s, " %s", optim_label(a->kind));
    real(s, "weight_decay", a->weight_decay, 0);
    real(s, "momentum", a->momentum, 0);
    real(s, "dampening", a->dampening, 0);
    real(s, "beta1", a->beta1, 0);
    real(s, "beta2", a->beta2, 0);
    real(s, "eps", a->eps, 0);
    real(s, "alpha", a->alpha, 0);
    real(s, "lr_decay", a->lr_decay, 0);
    real(s, "momentum_decay", a->momentum_decay, 0);
    real(s, "eta_minus", a->eta_minus, 0);
    real(s, "eta_plus", a->eta_plus, 0);
    real(s, "step_min", a->step_min, 0);
    real(s, "step_max", a->step_max, 0);
    real(s, "lambd", a->lambd, 0);
    real(s, "t0", a->t0, 0);
    real(s, "beta2_decay", a->beta2_decay, 0);
    real(s, "eps2", a->eps2, 0);
    real(s, "d", a->d, 0);
    flag(s, "int8", a->int8);
    flag(s, "master", a->master);
    flag(s, "stochastic", a->stochastic);
    flag(s, "nesterov", a->nesterov);
    flag(s, "amsgrad", a->amsgrad);
    flag(s, "centered", a->centered);
    flag(s, "maximize", a->maximize);
}

/* Families that are not here have no attributes worth a word: the result's type says all. */
static const struct shower {
    const char *family;
    void (*show)(struct str *s, const struct ir_op *op);
} showers[] = {
    {"conv", show_conv},
    {"conv_dgrad", show_conv},
    {"conv_wgrad", show_conv},
    {"gemm", show_gemm},
    {"max_pool", show_pool},
    {"avg_pool", show_pool},
    {"pool_grad", show_pool},
    {"batch_stats", show_norm},
    {"norm_stats", show_norm},
    {"norm_apply", show_norm},
    {"norm_grad", show_norm},
    {"attention", show_attention},
    {"attention_grad", show_attention},
    {"rope_table", show_rope_table},
    {"rope", show_rope},
    {"unary", show_element},
    {"act_grad", show_act_grad},
    {"reduce", show_reduce},
    {"argmax", show_dim},
    {"softmax", show_dim},
    {"permute", show_permute},
    {"slice", show_slice},
    {"slice_grad", show_slice},
    {"concat", show_dim},
    {"fill", show_fill},
    {"embedding", show_embedding},
    {"embedding_grad", show_embedding},
    {"dropout", show_dropout},
    {"cross_entropy", show_class_loss},
    {"nll", show_class_loss},
    {"linear_cross_entropy", show_linear_loss},
    {"loss_ew", show_element_loss},
    {"loss_grad", show_loss_grad},
    {"grad_check", show_grad_check},
    {"optimizer", show_optimizer},
};

static const char *family_of(enum opcode code)
{
    static const char *const families[OP_COUNT] = {
#define X(NAME, name, lo, hi, outs, mutated, autocast, flags, family) [OP_##NAME] = #family,
#include "ir/ops.def"
#undef X
    };
    return families[code];
}

/* ---- lines ---- */

static void type_show(struct str *s, const struct ir_value *v)
{
    str_printf(s, "%s%s", dtype_short(v->dtype), TEXT(v->shape));
    if (v->layout != LAYOUT_ROW)
        str_printf(s, " %s", layout_name(v->layout));
}

static void outside_show(const struct ir_program *p, int i, struct str *s)
{
    const struct ir_value *v = &p->values.data[i];
    str_printf(
        s, "%%%d = %s \"%s\" : ", i, v->kind == VALUE_VAR ? "var" : "input",
        v->name ? v->name : "");
    type_show(s, v);
    if (v->kind == VALUE_VAR)
        str_printf(
            s, "  # %s%s", category_name(v->category),
            p->vars->list.data[v->var].trainable ? ", trainable" : "");
    str_add(s, "\n");
}

static void op_show(const struct ir_program *p, const struct ir_op *op, struct str *s)
{
    static const char *const phases[] = {"forward", "loss", "backward", "update"};
    for (int i = 0; i < op->n_out; i++)
        str_printf(s, "%s%%%d", i ? ", " : "", op->out[i]);
    str_printf(s, " = %s(", ir_op_row(op->code)->name);
    for (int i = 0; i < op->n_in; i++) {
        str_add(s, i ? ", " : "");
        if (op->in[i] == IR_NONE)
            str_add(s, "_");
        else
            str_printf(s, "%%%d", op->in[i]);
    }
    str_add(s, ")");
    for (size_t i = 0; i < sizeof showers / sizeof *showers; i++)
        if (str_eq(showers[i].family, family_of(op->code)))
            showers[i].show(s, op);
    str_add(s, " : ");
    for (int i = 0; i < op->n_out; i++) {
        str_add(s, i ? ", " : "");
        type_show(s, &p->values.data[op->out[i]]);
    }
    str_printf(s, "  # %s%s", phases[op->phase], op->recomputed ? " again" : "");
    if (op->node >= 0 && (size_t)op->node < p->vars->nodes.n)
        str_printf(s, " %s", p->vars->nodes.data[op->node]);
    str_add(s, "\n");
}

void ir_print(const struct ir_program *p, struct str *out)
{
    size_t outside = 0;
    for (size_t i = 0; i < p->values.n; i++)
        outside += p->values.data[i].kind != VALUE_TEMP && p->values.data[i].def == IR_NONE;
    str_printf(
        out, "program \"%s\" : %zu values from outside, %zu operators\n", p->name, outside,
        p->ops.n);
    for (size_t i = 0; i < p->values.n; i++)
        if (p->values.data[i].kind != VALUE_TEMP && p->values.data[i].def == IR_NONE)
            outside_show(p, (int)i, out);
    for (size_t i = 0; i < p->ops.n; i++)
        op_show(p, &p->ops.data[i], out);
    for (size_t i = 0; i < p->outputs.n; i++) {
        int value = p->outputs.data[i];
        const char *name = p->values.data[value].name;
        str_printf(out, "output \"%s\" = %%%d\n", name ? name : "", value);
    }
}
