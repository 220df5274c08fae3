/* optool_steps.c - one function per emitter of ir/build.h: constants from JSON, operands by
 * position. */
#include "optool.h"

#include "base/str.h"

#include <string.h>

/* ---- constants of a step ---- */

static int64_t get_i64(const struct step *s, const char *key, int64_t fallback)
{
    return json_get_i64(s->spec, key, fallback);
}

static double get_f64(const struct step *s, const char *key, double fallback)
{
    return json_get_f64(s->spec, key, fallback);
}

static bool get_bool(const struct step *s, const char *key)
{
    return json_get_bool(s->spec, key, false);
}

static int get_int(const struct step *s, const char *key, int fallback)
{
    return (int)get_i64(s, key, fallback);
}

/* A list of integers; returns how many there are, at most `max`. */
static int get_list(const struct step *s, const char *key, int64_t *out, int max)
{
    const json_t *list = json_object_get(s->spec, key);
    int n = (int)json_array_size(list);
    n = n < max ? n : max;
    for (int i = 0; i < n; i++)
        out[i] = json_integer_value(json_array_get(list, (size_t)i));
    return n;
}

static void get_pair(const struct step *s, const char *key, int64_t out[2], int64_t fallback)
{
    out[0] = out[1] = fallback;
    get_list(s, key, out, 2);
}

static struct shape get_shape(const struct step *s, const char *key)
{
    int64_t dim[RANK_MAX] = {0};
    int rank = get_list(s, key, dim, RANK_MAX);
    return shape_of(rank, dim);
}

static uint32_t get_dims(const struct step *s)
{
    int64_t dim[RANK_MAX];
    uint32_t dims = 0;
    int n = get_list(s, "dims", dim, RANK_MAX);
    for (int i = 0; i < n; i++)
        dims |= 1u << dim[i];
    return dims;
}

static enum dtype get_dtype(const struct step *s)
{
    enum dtype t = DT_F32;
    const char *name = json_get_str(s->spec, "dtype", "float32");
    ASSERT(dtype_parse(name, &t));
    return t;
}

static struct conv_attr get_conv(const struct step *s)
{
    struct conv_attr a = {.groups = get_i64(s, "groups", 1), .spatial = get_int(s, "spatial", 2)};
    get_pair(s, "stride", a.stride, 1);
    get_pair(s, "pad", a.pad_low, 0);
    memcpy(a.pad_high, a.pad_low, sizeof a.pad_high);
    get_list(s, "pad_high", a.pad_high, 2);
    get_pair(s, "dilation", a.dilation, 1);
    return a;
}

static struct pool_attr get_pool(const struct step *s)
{
    struct pool_attr a = {
        .spatial = get_int(s, "spatial", 2),
        .ceil_mode = get_bool(s, "ceil_mode"),
        .exclude_pad = get_bool(s, "exclude_pad"),
        .divisor = get_i64(s, "divisor", 0),
    };
    get_pair(s, "kernel", a.kernel, 1);
    get_pair(s, "stride", a.stride, 1);
    get_pair(s, "pad", a.pad, 0);
    get_pair(s, "dilation", a.dilation, 1);
    return a;
}

static struct loss_attr get_loss(const struct step *s)
{
    static const char *const reductions[] = {"mean", "sum", "none", "batchmean"};
    static const char *const kinds[] = {"mse", "l1",         "smooth_l1", "huber",
                                        "bce", "bce_logits", "kldiv"};
    struct loss_attr a = {
        .ignore_index = get_i64(s, "ignore_index", -100),
        .label_smoothing = get_f64(s, "label_smoothing", 0),
        .beta = get_f64(s, "beta", 1),
        .log_target = get_bool(s, "log_target"),
    };
    for (int i = 0; i < 4; i++)
        if (str_eq(reductions[i], json_get_str(s->spec, "reduction", "mean")))
            a.reduction = (enum reduction)i;
    for (int i = 0; i < 7; i++)
        if (str_eq(kinds[i], json_get_str(s->spec, "kind", "mse")))
            a.kind = (enum loss_kind)i;
    return a;
}

static enum optim_kind get_optim_kind(const struct step *s)
{
    static const char *const names[] = {"sgd",   "adam",  "adamw", "rmsprop", "adagrad",
                                        "radam", "nadam", "rprop", "asgd",    "adafactor"};
    for (int i = 0; i < OPTIM_COUNT; i++)
        if (str_eq(names[i], json_get_str(s->spec, "kind", "sgd")))
            return (enum optim_kind)i;
    return OPTIM_SGD;
}

struct optim_attr step_optim(const struct step *s)
{
    return (struct optim_attr){
        .kind = get_optim_kind(s),
        .weight_decay = get_f64(s, "weight_decay", 0),
        .momentum = get_f64(s, "momentum", 0),
        .dampening = get_f64(s, "dampening", 0),
        .beta1 = get_f64(s, "beta1", 0.9),
        .beta2 = get_f64(s, "beta2", 0.999),
        .eps = get_f64(s, "eps", 1e-8),
        .alpha = get_f64(s, "alpha", 0),
        .lr_decay = get_f64(s, "lr_decay", 0),
        .momentum_decay = get_f64(s, "momentum_decay", 0),
        .eta_minus = get_f64(s, "eta_minus", 0.5),
        .eta_plus = get_f64(s, "eta_plus", 1.2),
        .step_min = get_f64(s, "step_min", 1e-6),
        .step_max = get_f64(s, "step_max", 50),
        .lambd = get_f64(s, "lambd", 1e-4),
        .t0 = get_f64(s, "t0", 1e6),
        .beta2_decay = get_f64(s, "beta2_decay", -0.8),
        .eps2 = get_f64(s, "eps2", 1e-3),
        .d = get_f64(s, "d", 1),
        .nesterov = get_bool(s, "nesterov"),
        .amsgrad = get_bool(s, "amsgrad"),
        .centered = get_bool(s, "centered"),
        .maximize = get_bool(s, "maximize"),
    };
}

/* ---- emitters ---- */

/* The operand, IR_NONE when the request gives fewer. */
static int arg(const struct step *s, int i)
{
    return i < s->n_in ? s->in[i] : IR_NONE;
}

static int step_linear(struct step *s)
{
    return ir_linear(s->p, arg(s, 0), arg(s, 1), arg(s, 2));
}

static int step_matmul(struct step *s)
{
    return ir_matmul(s->p, arg(s, 0), arg(s, 1));
}

static int step_gemm(struct step *s)
{
    return ir_gemm(s->p, arg(s, 0), arg(s, 1), arg(s, 2), get_bool(s, "ta"), get_bool(s, "tb"));
}

static int step_conv(struct step *s)
{
    struct conv_attr a = get_conv(s);
    return ir_conv(s->p, arg(s, 0), arg(s, 1), arg(s, 2), &a);
}

static int step_conv_transpose(struct step *s)
{
    struct conv_attr a = get_conv(s);
    int64_t output_padding[2];
    get_pair(s, "output_padding", output_padding, 0);
    return ir_conv_transpose(s->p, arg(s, 0), arg(s, 1), arg(s, 2), &a, output_padding);
}

static int step_max_pool(struct step *s)
{
    struct pool_attr a = get_pool(s);
    return ir_max_pool(s->p, arg(s, 0), &a);
}

static int step_avg_pool(struct step *s)
{
    struct pool_attr a = get_pool(s);
    return ir_avg_pool(s->p, arg(s, 0), &a);
}

static int step_adaptive_avg_pool(struct step *s)
{
    int64_t output[2];
    get_pair(s, "output", output, 1);
    return ir_adaptive_avg_pool(s->p, arg(s, 0), get_int(s, "spatial", 2), output);
}

static int step_adaptive_max_pool(struct step *s)
{
    int64_t output[2];
    get_pair(s, "output", output, 1);
    return ir_adaptive_max_pool(s->p, arg(s, 0), get_int(s, "spatial", 2), output);
}

/* The variable that operand i is a version of. */
static int arg_var(const struct step *s, int i)
{
    int value = arg(s, i);
    return value == IR_NONE ? IR_NONE : ir_value_at(s->p, value)->var;
}

static int step_batch_norm(struct step *s)
{
    return ir_batch_norm(
        s->p, arg(s, 0), arg(s, 1), arg(s, 2), arg_var(s, 3), arg_var(s, 4), arg_var(s, 5),
        get_bool(s, "training"), get_f64(s, "momentum", 0.1), get_f64(s, "eps", 1e-5));
}

static int step_layer_norm(struct step *s)
{
    return ir_layer_norm(
        s->p, arg(s, 0), arg(s, 1), arg(s, 2), get_int(s, "trailing", 1), get_f64(s, "eps", 1e-5));
}

static int step_group_norm(struct step *s)
{
    return ir_group_norm(
        s->p, arg(s, 0), arg(s, 1), arg(s, 2), get_i64(s, "groups", 1), get_f64(s, "eps", 1e-5));
}

static int step_instance_norm(struct step *s)
{
    return ir_instance_norm(s->p, arg(s, 0), arg(s, 1), arg(s, 2), get_f64(s, "eps", 1e-5));
}

static int step_unary(struct step *s)
{
    enum opcode code;
    if (!ir_opcode_find(json_get_str(s->spec, "op", ""), &code))
        return IR_NONE;
    struct ew_attr a = {
        .a = get_f64(s, "a", 0), .b = get_f64(s, "b", 0), .tanh_form = get_bool(s, "tanh_form")};
    if (get_bool(s, "plain"))
        return ir_unary(s->p, code, arg(s, 0));
    return ir_unary_attr(s->p, code, arg(s, 0), a);
}

static int step_binary(struct step *s)
{
    enum opcode code;
    if (!ir_opcode_find(json_get_str(s->spec, "op", ""), &code))
        return IR_NONE;
    return ir_binary(s->p, code, arg(s, 0), arg(s, 1));
}

static int step_affine(struct step *s)
{
    return ir_affine(s->p, arg(s, 0), get_f64(s, "scale", 1), get_f64(s, "shift", 0));
}

static int step_prelu(struct step *s)
{
    return ir_prelu(s->p, arg(s, 0), arg(s, 1));
}

static int step_dropout(struct step *s)
{
    return ir_dropout(
        s->p, arg(s, 0), arg(s, 1), arg(s, 2), get_f64(s, "p", 0.5),
        (uint32_t)get_i64(s, "stream", 0));
}

static int step_sum(struct step *s)
{
    return ir_sum(s->p, arg(s, 0), get_dims(s), get_bool(s, "keepdim"));
}

static int step_mean(struct step *s)
{
    return ir_mean(s->p, arg(s, 0), get_dims(s), get_bool(s, "keepdim"));
}

static int step_sum_to(struct step *s)
{
    struct shape shape = get_shape(s, "shape");
    return ir_sum_to(s->p, arg(s, 0), &shape);
}

static int step_argmax(struct step *s)
{
    return ir_argmax(s->p, arg(s, 0), get_int(s, "dim", 0), get_bool(s, "keepdim"));
}

static int step_count_correct(struct step *s)
{
    union op_attr a = {.loss = {.ignore_index = get_i64(s, "ignore_index", -100)}};
    return ir_emit(s->p, OP_COUNT_CORRECT, s->in, s->n_in, &a);
}

static int step_softmax(struct step *s)
{
    return ir_softmax(s->p, arg(s, 0), get_int(s, "dim", -1));
}

static int step_log_softmax(struct step *s)
{
    return ir_log_softmax(s->p, arg(s, 0), get_int(s, "dim", -1));
}

static int step_reshape(struct step *s)
{
    return ir_reshape(s->p, arg(s, 0), get_shape(s, "shape"));
}

static int step_flatten(struct step *s)
{
    return ir_flatten(s->p, arg(s, 0), get_int(s, "start", 0), get_int(s, "end", -1));
}

static int step_permute(struct step *s)
{
    int64_t list[RANK_MAX] = {0};
    int perm[RANK_MAX] = {0};
    get_list(s, "perm", list, RANK_MAX);
    for (int i = 0; i < RANK_MAX; i++)
        perm[i] = (int)list[i];
    return ir_permute(s->p, arg(s, 0), perm);
}

static int step_transpose(struct step *s)
{
    return ir_transpose(s->p, arg(s, 0), get_int(s, "dim0", 0), get_int(s, "dim1", 1));
}

static int step_expand(struct step *s)
{
    return ir_expand(s->p, arg(s, 0), get_shape(s, "shape"));
}

static int step_slice(struct step *s)
{
    return ir_slice(
        s->p, arg(s, 0), get_int(s, "dim", 0), get_i64(s, "start", 0), get_i64(s, "length", 1),
        get_i64(s, "step", 1));
}

static int step_select(struct step *s)
{
    return ir_select(s->p, arg(s, 0), get_int(s, "dim", 0), get_i64(s, "index", 0));
}

static int step_squeeze(struct step *s)
{
    return ir_squeeze(s->p, arg(s, 0), get_int(s, "dim", 0));
}

static int step_unsqueeze(struct step *s)
{
    return ir_unsqueeze(s->p, arg(s, 0), get_int(s, "dim", 0));
}

static int step_concat(struct step *s)
{
    return ir_concat(s->p, s->in, s->n_in, get_int(s, "dim", 0));
}

static int step_stack(struct step *s)
{
    return ir_stack(s->p, s->in, s->n_in, get_int(s, "dim", 0));
}

static int step_chunk(struct step *s)
{
    return ir_chunk(
        s->p, arg(s, 0), get_int(s, "chunks", 1), get_int(s, "dim", 0), get_int(s, "index", 0));
}

static int step_contiguous(struct step *s)
{
    return ir_contiguous(s->p, arg(s, 0));
}

static int step_cast(struct step *s)
{
    return ir_cast(s->p, arg(s, 0), get_dtype(s));
}

static int step_fill(struct step *s)
{
    return ir_fill(s->p, get_shape(s, "shape"), get_f64(s, "value", 0));
}

static int step_embedding(struct step *s)
{
    return ir_embedding(s->p, arg(s, 0), arg(s, 1), get_i64(s, "padding_idx", -1));
}

static int step_topk(struct step *s)
{
    return ir_topk(s->p, arg(s, 0), get_i64(s, "k", 1));
}

static int step_scatter(struct step *s)
{
    return ir_scatter(s->p, arg(s, 0), arg(s, 1), get_i64(s, "n", 1));
}

static int step_gather(struct step *s)
{
    return ir_gather(s->p, arg(s, 0), arg(s, 1));
}

/* operands: x, w_ih, w_hh, b_ih, b_hh */
static int step_recurrent(struct step *s)
{
    static const char *const kinds[] = {"lstm", "gru", "tanh", "relu"};
    struct recurrent_attr a = {.reverse = get_bool(s, "reverse"), .keep = get_bool(s, "keep")};
    for (int i = 0; i < 4; i++)
        if (str_eq(kinds[i], json_get_str(s->spec, "kind", "lstm")))
            a.kind = (enum recurrent_kind)i;
    return ir_recurrent(s->p, arg(s, 0), arg(s, 1), arg(s, 2), arg(s, 3), arg(s, 4), &a);
}

static int step_rms_norm(struct step *s)
{
    return ir_rms_norm(s->p, arg(s, 0), arg(s, 1), get_f64(s, "eps", 1e-6));
}

static int step_attention(struct step *s)
{
    struct attention_attr a = {
        .heads = get_i64(s, "heads", 1),
        .kv_heads = get_i64(s, "kv_heads", get_i64(s, "heads", 1)),
        .scale = get_f64(s, "scale", 0),
        .causal = get_bool(s, "causal"),
        .window = get_i64(s, "window", 0),
        .dropout = get_f64(s, "dropout", 0),
        .stream = (uint32_t)get_i64(s, "stream", 0)};
    return ir_attention(s->p, arg(s, 0), arg(s, 1), arg(s, 2), arg(s, 3), arg(s, 4), &a);
}

static struct rope_attr get_rope(struct step *s)
{
    return (struct rope_attr){
        .positions = get_i64(s, "positions", 0),
        .dims = get_i64(s, "dims", 0),
        .start = get_i64(s, "start", 0),
        .theta = get_f64(s, "theta", 10000),
        .factor = get_f64(s, "factor", 0),
        .low_freq_factor = get_f64(s, "low_freq_factor", 0),
        .high_freq_factor = get_f64(s, "high_freq_factor", 0),
        .original_positions = get_i64(s, "original_positions", 0),
        .heads = get_i64(s, "heads", 0),
        .interleaved = get_bool(s, "interleaved")};
}

static int step_rope_table(struct step *s)
{
    struct rope_attr a = get_rope(s);
    return ir_rope_table(s->p, &a);
}

static int step_rope(struct step *s)
{
    struct rope_attr a = get_rope(s);
    return ir_rope(s->p, arg(s, 0), arg(s, 1), &a);
}

static int step_cross_entropy(struct step *s)
{
    struct loss_attr a = get_loss(s);
    return ir_cross_entropy(s->p, arg(s, 0), arg(s, 1), arg(s, 2), &a);
}

static int step_nll(struct step *s)
{
    struct loss_attr a = get_loss(s);
    return ir_nll(s->p, arg(s, 0), arg(s, 1), arg(s, 2), &a);
}

static int step_loss_ew(struct step *s)
{
    struct loss_attr a = get_loss(s);
    return ir_loss_ew(s->p, arg(s, 0), arg(s, 1), arg(s, 2), arg(s, 3), &a);
}

static int step_margin_ranking(struct step *s)
{
    return ir_margin_ranking(
        s->p, arg(s, 0), arg(s, 1), arg(s, 2), get_f64(s, "margin", 0), get_loss(s).reduction);
}

static int step_cosine_embedding(struct step *s)
{
    return ir_cosine_embedding(
        s->p, arg(s, 0), arg(s, 1), arg(s, 2), get_f64(s, "margin", 0), get_loss(s).reduction);
}

static int step_grad_check(struct step *s)
{
    union op_attr a = {
        .check = {
            .max_norm = get_f64(s, "max_norm", 0),
            .allow_nonfinite = get_bool(s, "allow_nonfinite")}};
    return ir_emit(s->p, OP_GRAD_CHECK, s->in, s->n_in, &a);
}

static int step_accumulate(struct step *s)
{
    return ir_emit(s->p, OP_ACCUMULATE, s->in, s->n_in, NULL);
}

static int step_update_ratio(struct step *s)
{
    return ir_emit(s->p, OP_UPDATE_RATIO, s->in, s->n_in, NULL);
}

static int step_copy(struct step *s)
{
    return ir_emit(s->p, OP_COPY, s->in, s->n_in, NULL);
}

#define STEPS(X)                                                                                   \
    X(linear)                                                                                      \
    X(matmul)                                                                                      \
    X(gemm)                                                                                        \
    X(conv)                                                                                        \
    X(conv_transpose)                                                                              \
    X(max_pool)                                                                                    \
    X(avg_pool)                                                                                    \
    X(adaptive_avg_pool)                                                                           \
    X(adaptive_max_pool)                                                                           \
    X(batch_norm)                                                                                  \
    X(layer_norm)                                                                                  \
    X(group_norm)                                                                                  \
    X(instance_norm)                                                                               \
    X(unary)                                                                                       \
    X(binary)                                                                                      \
    X(affine)                                                                                      \
    X(prelu)                                                                                       \
    X(dropout)                                                                                     \
    X(sum)                                                                                         \
    X(mean)                                                                                        \
    X(sum_to)                                                                                      \
    X(argmax)                                                                                      \
    X(count_correct)                                                                               \
    X(softmax)                                                                                     \
    X(log_softmax)                                                                                 \
    X(reshape)                                                                                     \
    X(flatten)                                                                                     \
    X(permute)                                                                                     \
    X(transpose)                                                                                   \
    X(expand)                                                                                      \
    X(slice)                                                                                       \
    X(select)                                                                                      \
    X(squeeze)                                                                                     \
    X(unsqueeze)                                                                                   \
    X(concat)                                                                                      \
    X(stack)                                                                                       \
    X(chunk)                                                                                       \
    X(contiguous)                                                                                  \
    X(cast)                                                                                        \
    X(fill)                                                                                        \
    X(embedding)                                                                                   \
    X(rms_norm)                                                                                    \
    X(attention)                                                                                   \
    X(rope_table)                                                                                  \
    X(rope) X(recurrent) X(topk) X(scatter) X(gather) X(cross_entropy) X(nll) X(loss_ew)           \
        X(margin_ranking) X(cosine_embedding) X(grad_check) X(accumulate) X(update_ratio) X(copy)

static const struct {
    const char *name;
    int (*emit)(struct step *s);
} steps[] = {
#define X(name) {#name, step_##name},
    STEPS(X)
#undef X
};

enum status step_emit(struct step *s, int *result, struct err *e)
{
    const char *fn = json_get_str(s->spec, "fn", "");
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        if (str_eq(steps[i].name, fn)) {
            *result = steps[i].emit(s);
            return ir_status(s->p, e);
        }
    }
    return err_set(e, ST_INVALID, "unknown step \"%s\"", fn);
}
