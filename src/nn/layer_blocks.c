/* layer_blocks.c - parts of transformers that PyTorch has no class for: SwiGLU, PositionalEncoding,
 * MoE. */
#include "ir/build.h"
#include "nn/layer.h"

#include <stdio.h>

/* ---- SwiGLU: the names are those of Llama's files ---- */

enum status check_swiglu(const struct layer_check *c)
{
    const struct layer_params *a = &c->layer->params;
    int64_t out = a->out_features == INT64_MIN ? a->in_features : a->out_features;
    if (out < 1)
        return layer_refuse(
            c, ST_INVALID, "parameter \"out_features\" must be null or at least 1, not %lld",
            (long long)out);
    TRY(layer_declare_linear(c, "gate_proj.", a->in_features, a->hidden_features, a->bias));
    TRY(layer_declare_linear(c, "up_proj.", a->in_features, a->hidden_features, a->bias));
    return layer_declare_linear(c, "down_proj.", a->hidden_features, out, a->bias);
}

/* False, with the error set, unless the last dimension has so many features. */
static bool features_fit(const struct layer_run *r, int64_t features)
{
    struct shape s = layer_input_shape(r);
    if (s.rank < 0)
        return false;
    if (s.rank > 0 && s.dim[s.rank - 1] == features)
        return true;
    (void)layer_fail(
        r, "expected %lld features in the last dimension of the input, got %s", (long long)features,
        shape_text(&s, (char[192]){0}, 192));
    return false;
}

int forward_swiglu(const struct layer_run *r)
{
    if (!features_fit(r, r->layer->params.in_features))
        return IR_NONE;
    int gate = ir_unary(r->p, OP_SILU, layer_linear(r, r->in[0], "gate_proj."));
    int up = layer_linear(r, r->in[0], "up_proj.");
    return layer_linear(r, ir_binary(r->p, OP_MUL, gate, up), "down_proj.");
}

/* ---- positions ---- */

enum { SINUSOIDAL, LEARNABLE };

enum status check_positions(const struct layer_check *c)
{
    const struct layer_params *a = &c->layer->params;
    TRY(layer_probability(c, a->dropout));
    if (a->mode == LEARNABLE)
        return layer_declare(
            c, SHAPE(a->max_len, a->d_model), (struct init){.kind = INIT_NORMAL, .value = 0.02},
            "pe");
    if (a->d_model % 2 != 0)
        return layer_refuse(
            c, ST_INVALID, "a sinusoidal encoding needs an even d_model, not %lld",
            (long long)a->d_model);
    return ST_OK;
}

/* sin(s / 10000^(2i / d)) at feature 2i, the cosine at 2i + 1: the table of rotary embeddings, its
 * halves interleaved. */
static int sines(struct ir_program *p, int64_t steps, int64_t width)
{
    struct rope_attr a = {.positions = steps, .dims = width, .theta = 10000};
    int table = ir_rope_table(p, &a);
    int64_t half = width / 2;
    int pair[2] = {ir_slice(p, table, 1, half, half, 1), ir_slice(p, table, 1, 0, half, 1)};
    return ir_reshape(p, ir_stack(p, pair, 2, 2), SHAPE(steps, width));
}

/* The further result is what was added, [S, F]. */
int forward_positions(const struct layer_run *r)
{
    const struct layer_params *a = &r->layer->params;
    struct ir_program *p = r->p;
    bool single;
    int x = layer_sequence(r, r->in[0], a->d_model, &single);
    if (x < 0 || p->err.status != ST_OK)
        return IR_NONE;
    int64_t steps = ir_value_at(p, x)->shape.dim[a->batch_first ? 1 : 0];
    if (steps > a->max_len)
        return layer_fail(
            r, "a sequence of %lld is longer than max_len, %lld", (long long)steps,
            (long long)a->max_len);
    int pe = a->mode == LEARNABLE ? ir_slice(p, layer_read(r, "pe"), 0, 0, steps, 1)
                                  : sines(p, steps, a->d_model);
    if (r->more)
        r->more[0] = pe;
    x = ir_binary(p, OP_ADD, x, a->batch_first ? pe : ir_unsqueeze(p, pe, 1));
    x = layer_dropout(r, x, a->dropout, "");
    return single ? ir_squeeze(p, x, a->batch_first ? 0 : 1) : x;
}

/* ---- experts ---- */

enum { EXPERTS_MAX = 256 };

struct expert_name {
    char text[LAYER_NAME_MAX];
};

/* The two products of expert i, as in a Sequential(Linear, activation, Linear). */
static struct expert_name expert_name(int64_t i, int part)
{
    struct expert_name n;
    (void)snprintf(n.text, sizeof n.text, "experts.%lld.%d.", (long long)i, part);
    return n;
}

enum status check_experts(const struct layer_check *c)
{
    const struct layer_params *a = &c->layer->params;
    if (a->num_experts > EXPERTS_MAX)
        return layer_refuse(
            c, ST_INVALID, "parameter \"num_experts\" is %lld, at most %d",
            (long long)a->num_experts, EXPERTS_MAX);
    if (a->top_k > a->num_experts)
        return layer_refuse(
            c, ST_INVALID, "top_k must be at most num_experts, got %lld and %lld",
            (long long)a->top_k, (long long)a->num_experts);
    TRY(layer_declare_linear(c, "router.", a->hidden_dim, a->num_experts, true));
    for (int64_t i = 0; i < a->num_experts; i++) {
        TRY(layer_declare_linear(
            c, expert_name(i, 0).text, a->hidden_dim, a->expert_hidden_dim, true));
        TRY(layer_declare_linear(
            c, expert_name(i, 2).text, a->expert_hidden_dim, a->hidden_dim, true));
    }
    return ST_OK;
}

/* Weights of the chosen experts, [.., k], which sum to 1, and their numbers. */
static int route(const struct layer_run *r, int *index)
{
    const struct layer_params *a = &r->layer->params;
    int chosen =
        ir_topk(r->p, ir_softmax(r->p, layer_linear(r, r->in[0], "router."), -1), a->top_k);
    if (chosen < 0)
        return IR_NONE;
    *index = ir_out(r->p, 1);
    int last = ir_value_at(r->p, chosen)->shape.rank - 1;
    return ir_binary(r->p, OP_DIV, chosen, ir_sum(r->p, chosen, 1u << last, true));
}

static int expert(const struct layer_run *r, int64_t i)
{
    static const enum opcode activations[] = {OP_RELU, OP_GELU, OP_SILU};
    int x = layer_linear(r, r->in[0], expert_name(i, 0).text);
    x = ir_unary(r->p, activations[r->layer->params.activation], x);
    return layer_linear(r, x, expert_name(i, 2).text);
}

/* Every expert computes every token; the weights of those that were not chosen are 0. The further
 * results are the weights and the numbers of the chosen experts. */
int forward_experts(const struct layer_run *r)
{
    const struct layer_params *a = &r->layer->params;
    int index = IR_NONE;
    if (!features_fit(r, a->hidden_dim))
        return IR_NONE;
    int weights = route(r, &index);
    int all = ir_scatter(r->p, weights, index, a->num_experts), y = IR_NONE;
    for (int64_t i = 0; i < a->num_experts && r->p->err.status == ST_OK; i++) {
        int one = ir_slice(r->p, all, -1, i, 1, 1);
        int part = ir_binary(r->p, OP_MUL, expert(r, i), one);
        y = i == 0 ? part : ir_binary(r->p, OP_ADD, y, part);
    }
    if (r->more) {
        r->more[0] = weights;
        r->more[1] = index;
    }
    return y;
}
