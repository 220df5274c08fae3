/* transformer_forward.c - appends a transformer's forward pass to a program. */
#include "base/rng.h"
#include "ir/build.h"
#include "nn/transformer_int.h"

#include <string.h>

/* One forward pass being appended. */
struct pass {
    const struct model *m;
    const struct transformer *t;
    const struct transformer_config *c;
    struct ir_program *p;
    bool training;
    int rng;
    int64_t batch, seq;
    int padding; /* hides padding: added to scores; IR_NONE without */
    int rope;    /* the table of angles; IR_NONE without */
    struct rope_attr rope_attr;
};

static int read_var(const struct pass *f, int var)
{
    return var == IR_NONE ? IR_NONE : ir_var_read(f->p, var);
}

static int linear(const struct pass *f, const struct part_vars *part, int x)
{
    struct linear l = {
        .weight_var = part->weight,
        .bias_var = part->bias,
        .in_out = part->in_out,
        .training = f->training,
        .rng = f->rng};
    return nn_linear(f->m, f->p, x, &l);
}

static int norm(const struct pass *f, const struct part_vars *part, int x)
{
    int gamma = read_var(f, part->weight);
    if (f->c->rms_norm)
        return ir_rms_norm(f->p, x, gamma, f->c->norm_eps);
    return ir_layer_norm(f->p, x, gamma, read_var(f, part->bias), 1, f->c->norm_eps);
}

static int activation(const struct pass *f, int x)
{
    switch (f->c->activation) {
    case ACTIVATION_RELU:
        return ir_unary(f->p, OP_RELU, x);
    case ACTIVATION_SILU:
        return ir_unary(f->p, OP_SILU, x);
    case ACTIVATION_GELU:
    case ACTIVATION_GELU_TANH:
        break;
    }
    struct ew_attr attr = {.tanh_form = f->c->activation == ACTIVATION_GELU_TANH};
    return ir_unary_attr(f->p, OP_GELU, x, attr);
}

static int dropout(const struct pass *f, int x, double prob, uint32_t stream)
{
    if (!f->training || prob == 0)
        return x;
    return ir_dropout(f->p, x, f->rng, IR_NONE, prob, stream);
}

/* ---- positions ---- */

/* Sine at even features, cosine at odd ones: the table of rope, its halves interleaved. */
static int sinusoidal(const struct pass *f)
{
    struct rope_attr a = {.positions = f->seq, .dims = f->c->d_model, .theta = 10000};
    int table = ir_rope_table(f->p, &a);
    int64_t half = f->c->d_model / 2;
    int pair[2] = {ir_slice(f->p, table, 1, half, half, 1), ir_slice(f->p, table, 1, 0, half, 1)};
    int both = ir_stack(f->p, pair, 2, 2);
    return ir_reshape(f->p, both, SHAPE(f->seq, f->c->d_model));
}

static int embedding(const struct pass *f, int tokens)
{
    const struct transformer *t = f->t;
    struct ir_program *p = f->p;
    p->node = t->embed_node;
    int64_t row = f->c->padding_row ? f->c->padding_index : -1;
    int x = ir_embedding(p, tokens, read_var(f, t->part[PART_TOKENS].weight), row);
    if (f->c->position_kind == POSITIONS_LEARNED) {
        int rows = ir_slice(p, read_var(f, t->part[PART_POSITIONS].weight), 0, 0, f->seq, 1);
        x = ir_binary(p, OP_ADD, x, rows);
    } else if (f->c->position_kind == POSITIONS_SINUSOIDAL) {
        x = ir_binary(p, OP_ADD, x, sinusoidal(f));
    }
    if (f->c->token_types > 0) {
        int first = ir_slice(p, read_var(f, t->part[PART_TYPES].weight), 0, 0, 1, 1);
        x = ir_binary(p, OP_ADD, x, first);
    }
    if (f->c->embed_norm)
        x = norm(f, &t->part[PART_EMBED_NORM], x);
    return dropout(f, x, f->c->embed_dropout, (uint32_t)hash_name("embed"));
}

static void rope_begin(struct pass *f)
{
    f->rope = IR_NONE;
    if (f->c->position_kind != POSITIONS_ROPE)
        return;
    f->rope_attr = f->c->rope;
    f->rope_attr.positions = f->seq;
    f->rope_attr.dims = f->c->head_dim;
    f->p->node = f->t->embed_node;
    f->rope = ir_rope_table(f->p, &f->rope_attr);
}

static int rope(const struct pass *f, int x, int64_t heads)
{
    struct rope_attr a = f->rope_attr;
    a.heads = heads;
    return f->rope == IR_NONE ? x : ir_rope(f->p, x, f->rope, &a);
}

static void padding_begin(struct pass *f, int tokens)
{
    f->padding = IR_NONE;
    if (!f->c->mask_padding)
        return;
    f->p->node = f->t->embed_node;
    f->padding = ir_key_bias(f->p, ir_is_value(f->p, tokens, f->c->pad_token));
}

/* ---- blocks ---- */

static int heads_of(const struct pass *f, int x, int64_t heads)
{
    return ir_reshape(f->p, x, SHAPE(f->batch, f->seq, heads, f->c->head_dim));
}

static int head_norm(const struct pass *f, const struct part_vars *part, int x)
{
    return f->c->qk_norm ? ir_rms_norm(f->p, x, read_var(f, part->weight), f->c->norm_eps) : x;
}

/* Queries, keys and values as three tensors, or (k = v = IR_NONE) packed in one. */
static void
project(const struct pass *f, const struct transformer_block *b, int x, int *q, int *k, int *v)
{
    const struct transformer_config *c = f->c;
    struct ir_program *p = f->p;
    *k = *v = IR_NONE;
    if (c->fused_qkv) {
        *q = heads_of(f, linear(f, &b->part[PART_QKV], x), c->heads + 2 * c->kv_heads);
        if (!c->qk_norm) {
            *q = rope(f, *q, c->heads + c->kv_heads);
            return;
        }
        *v = ir_slice(p, *q, 2, c->heads + c->kv_heads, c->kv_heads, 1);
        *k = ir_slice(p, *q, 2, c->heads, c->kv_heads, 1);
        *q = ir_slice(p, *q, 2, 0, c->heads, 1);
    } else {
        *q = heads_of(f, linear(f, &b->part[PART_Q], x), c->heads);
        *k = heads_of(f, linear(f, &b->part[PART_K], x), c->kv_heads);
        *v = heads_of(f, linear(f, &b->part[PART_V], x), c->kv_heads);
    }
    *q = rope(f, head_norm(f, &b->part[PART_Q_NORM], *q), 0);
    *k = rope(f, head_norm(f, &b->part[PART_K_NORM], *k), 0);
}

static int attention(const struct pass *f, const struct transformer_block *b, int i, int x)
{
    const struct transformer_config *c = f->c;
    struct attention_attr a = {
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .scale = c->attention_scale,
        .causal = c->causal,
        .window = !c->windowed || c->windowed[i] ? c->window : 0,
        .dropout = f->training ? c->attention_dropout : 0,
        .stream = b->attn_stream};
    int q, k, v;
    if (c->scale_by_layer)
        a.scale = a.scale / (i + 1);
    f->p->node = b->attn_node;
    project(f, b, x, &q, &k, &v);
    int y = ir_attention(f->p, q, k, v, f->padding, a.dropout > 0 ? f->rng : IR_NONE, &a);
    y = ir_reshape(f->p, y, SHAPE(f->batch, f->seq, c->heads * c->head_dim));
    y = linear(f, &b->part[PART_OUT], y);
    return dropout(f, y, c->residual_dropout, b->out_stream);
}

static int mlp(const struct pass *f, const struct transformer_block *b, int x)
{
    f->p->node = b->mlp_node;
    int y = linear(f, &b->part[f->c->gated ? PART_GATE : PART_UP], x);
    y = activation(f, y);
    if (f->c->gated)
        y = ir_binary(f->p, OP_MUL, y, linear(f, &b->part[PART_UP], x));
    y = linear(f, &b->part[PART_DOWN], y);
    return dropout(f, y, f->c->residual_dropout, b->mlp_stream);
}

static int block_norm(const struct pass *f, const struct transformer_block *b, bool second, int x)
{
    f->p->node = second ? b->norm2_node : b->norm1_node;
    return norm(f, &b->part[second ? PART_NORM2 : PART_NORM1], x);
}

static int block(const struct pass *f, int i, int x)
{
    const struct transformer_block *b = &f->t->blocks[i];
    struct ir_program *p = f->p;
    p->block = i;
    if (f->c->pre_norm) {
        x = ir_binary(p, OP_ADD, x, attention(f, b, i, block_norm(f, b, false, x)));
        x = ir_binary(p, OP_ADD, x, mlp(f, b, block_norm(f, b, true, x)));
    } else {
        x = block_norm(f, b, false, ir_binary(p, OP_ADD, x, attention(f, b, i, x)));
        x = block_norm(f, b, true, ir_binary(p, OP_ADD, x, mlp(f, b, x)));
    }
    p->block = IR_NONE;
    return x;
}

/* ---- what comes after ---- */

static int head(const struct pass *f, int x)
{
    const struct transformer *t = f->t;
    f->p->node = t->head_node;
    if (t->part[PART_TRANSFORM].weight != IR_NONE) {
        x = activation(f, linear(f, &t->part[PART_TRANSFORM], x));
        x = norm(f, &t->part[PART_TRANSFORM_NORM], x);
    }
    return linear(f, &t->part[PART_HEAD], x);
}

static int pooler(const struct pass *f, int x)
{
    f->p->node = f->t->pooler_node;
    return ir_unary(f->p, OP_TANH, linear(f, &f->t->part[PART_POOLER], ir_select(f->p, x, 1, 0)));
}

static bool input_fits(struct pass *f, int tokens)
{
    const struct ir_value *v = ir_value_at(f->p, tokens);
    char text[192];
    if (v->shape.rank != 2 || v->dtype != DT_I64) {
        (void)err_set(
            &f->p->err, ST_INVALID, "expected token numbers [batch, sequence], got %s %s",
            dtype_name(v->dtype), shape_text(&v->shape, text, sizeof text));
        return false;
    }
    f->batch = v->shape.dim[0];
    f->seq = v->shape.dim[1];
    if (f->seq < 1 || f->seq > f->c->positions) {
        (void)err_set(
            &f->p->err, ST_INVALID, "the model takes sequences of 1 to %lld tokens, and got %lld",
            (long long)f->c->positions, (long long)f->seq);
        return false;
    }
    if (f->training && f->rng == IR_NONE && f->m->kind->has_dropout(f->m)) {
        (void)err_set(
            &f->p->err, ST_INVALID, "dropout needs random numbers to train, and got none");
        return false;
    }
    return true;
}

void transformer_forward(
    const struct model *m, struct ir_program *p, const int *inputs, bool training, int rng,
    int *outputs)
{
    const struct transformer *t = m->transformer;
    struct pass f = {.m = m, .t = t, .c = &t->c, .p = p, .training = training, .rng = rng};
    for (int i = 0; i < m->n_outputs; i++)
        outputs[i] = IR_NONE;
    if (!input_fits(&f, inputs[0]))
        return;
    rope_begin(&f);
    padding_begin(&f, inputs[0]);
    int x = embedding(&f, inputs[0]);
    for (int64_t i = 0; i < t->c.layers; i++)
        x = block(&f, (int)i, x);
    if (t->c.final_norm) {
        p->node = t->norm_node;
        x = norm(&f, &t->part[PART_FINAL_NORM], x);
    }
    outputs[0] = t->c.head ? head(&f, x) : x;
    if (t->c.pooler)
        outputs[1] = pooler(&f, x);
}
