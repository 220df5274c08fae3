/* layer_attention.c - MultiHeadAttention, TransformerEncoder, TransformerDecoder, PaddingMask.
 *
 * Names, order and defaults of the variables are those of torch.nn's modules behind a wrapper
 * ("attn.in_proj_weight", "encoder.layers.0.self_attn.in_proj_weight"). Inside, the batch comes
 * first. PyTorch builds a stack by copying one layer, so all layers of a stack start equal.
 */
#include "ir/build.h"
#include "nn/layer.h"

#include <math.h>
#include <stdio.h>

/* An attention inside a layer. `place` ends with a point, or is "". */
struct attention {
    const char *place;
    int64_t embed, heads, kv_heads;
    double dropout;
    bool causal, rotary;
    bool weights; /* also gives its weights, in layer_run.more */
    int bias;     /* hides padding: added to scores; IR_NONE without */
};

/* ---- variables ---- */

static enum status heads_check(const struct layer_check *c, int64_t embed, int64_t heads)
{
    if (embed % heads == 0)
        return ST_OK;
    return layer_refuse(
        c, ST_INVALID, "embed_dim must be divisible by num_heads, got %lld and %lld",
        (long long)embed, (long long)heads);
}

/* in_proj has the rows of the queries, then of the keys, then of the values, which are kv_width
 * each. */
static enum status declare_attention(
    const struct layer_check *c, const char *place, int64_t embed, int64_t kv_width, bool bias)
{
    int64_t rows = embed + 2 * kv_width;
    struct init projection = init_xavier(embed, rows);
    TRY(layer_declare(c, SHAPE(rows, embed), projection, "%sin_proj_weight", place));
    if (bias)
        TRY(layer_declare(c, SHAPE(rows), init_constant(0), "%sin_proj_bias", place));
    TRY(layer_declare(c, SHAPE(embed, embed), init_fan_in(embed), "%sout_proj.weight", place));
    return bias ? layer_declare(c, SHAPE(embed), init_constant(0), "%sout_proj.bias", place)
                : ST_OK;
}

static enum status declare_norm(const struct layer_check *c, const char *place, int64_t width)
{
    TRY(layer_declare(c, SHAPE(width), init_constant(1), "%sweight", place));
    return layer_declare(c, SHAPE(width), init_constant(0), "%sbias", place);
}

/* "<stack>.layers.<i>.<part>." */
struct place {
    char text[LAYER_NAME_MAX];
};

static struct place place_of(const char *stack, int64_t i, const char *part)
{
    struct place p;
    (void)snprintf(p.text, sizeof p.text, "%s.layers.%lld.%s.", stack, (long long)i, part);
    return p;
}

static enum status
declare_stack_layer(const struct layer_check *c, const char *stack, int64_t i, bool cross)
{
    static const char *const norms[] = {"norm1", "norm2", "norm3"};
    const struct layer_params *a = &c->layer->params;
    int64_t d = a->d_model;
    TRY(declare_attention(c, place_of(stack, i, "self_attn").text, d, d, true));
    if (cross)
        TRY(declare_attention(c, place_of(stack, i, "multihead_attn").text, d, d, true));
    TRY(layer_declare_linear(
        c, place_of(stack, i, "linear1").text, a->d_model, a->dim_feedforward, true));
    TRY(layer_declare_linear(
        c, place_of(stack, i, "linear2").text, a->dim_feedforward, a->d_model, true));
    for (int n = 0; n < (cross ? 3 : 2); n++)
        TRY(declare_norm(c, place_of(stack, i, norms[n]).text, a->d_model));
    return ST_OK;
}

static enum status stack_check(const struct layer_check *c, const char *stack, bool cross)
{
    const struct layer_params *a = &c->layer->params;
    TRY(heads_check(c, a->d_model, a->nhead));
    TRY(layer_probability(c, a->dropout));
    TRY(layer_stack_check(c, a->num_layers));
    size_t first = c->layer->vars.n;
    TRY(declare_stack_layer(c, stack, 0, cross));
    size_t each = c->layer->vars.n - first;
    for (int64_t i = 1; i < a->num_layers; i++)
        TRY(declare_stack_layer(c, stack, i, cross));
    layer_copy_starts(c->layer, first, each);
    return ST_OK;
}

static int64_t kv_heads_of(const struct layer_params *a)
{
    return a->kv_heads == INT64_MIN ? a->num_heads : a->kv_heads;
}

enum status check_attention(const struct layer_check *c)
{
    const struct layer_params *a = &c->layer->params;
    int64_t kv = kv_heads_of(a);
    TRY(heads_check(c, a->embed_dim, a->num_heads));
    TRY(layer_probability(c, a->dropout));
    if (kv < 1 || a->num_heads % kv != 0)
        return layer_refuse(
            c, ST_INVALID, "num_heads must be divisible by kv_heads, got %lld and %lld",
            (long long)a->num_heads, (long long)kv);
    int64_t size = a->embed_dim / a->num_heads;
    if (a->rotary && size % 2 != 0)
        return layer_refuse(
            c, ST_INVALID, "rotary positions need heads of an even size, not %lld",
            (long long)size);
    return declare_attention(c, "attn.", a->embed_dim, kv * size, a->bias);
}

enum status check_encoder(const struct layer_check *c)
{
    return stack_check(c, "encoder", false);
}

enum status check_decoder(const struct layer_check *c)
{
    return stack_check(c, "decoder", true);
}

/* ---- attention ---- */

/* Heads of parts [0, n) of the projection: queries, keys, values. */
static int64_t heads_before(const struct attention *a, int n)
{
    return n == 0 ? 0 : a->heads + (n - 1) * a->kv_heads;
}

/* x times parts [from, from + count) of the projection, as heads: [N, S, heads, D]. */
static int project(const struct layer_run *r, const struct attention *a, int x, int from, int count)
{
    struct ir_program *p = r->p;
    int bias = layer_read(r, "%sin_proj_bias", a->place);
    int weight = layer_read(r, "%sin_proj_weight", a->place);
    if (x < 0 || weight < 0 || p->err.status != ST_OK)
        return IR_NONE;
    struct shape s = ir_value_at(p, x)->shape;
    int64_t size = a->embed / a->heads, first = heads_before(a, from);
    int64_t heads = heads_before(a, from + count) - first;
    if (count == 3) {
        struct linear l = {
            .weight_var = layer_var_find(r->layer, "%sin_proj_weight", a->place),
            .bias_var = layer_var_find(r->layer, "%sin_proj_bias", a->place),
            .training = r->training,
            .rng = r->rng};
        x = nn_linear(r->model, p, x, &l);
    } else {
        if (bias != IR_NONE)
            bias = ir_slice(p, bias, 0, first * size, heads * size, 1);
        x = ir_linear(p, x, ir_slice(p, weight, 0, first * size, heads * size, 1), bias);
    }
    return ir_reshape(p, x, SHAPE(s.dim[0], s.dim[1], heads, size));
}

/* x [N, S, heads, D], its leading `heads` turned by their position in the sequence. */
static int turned(const struct layer_run *r, const struct attention *a, int x, int64_t heads)
{
    if (!a->rotary || x < 0 || r->p->err.status != ST_OK)
        return x;
    struct rope_attr attr = {
        .positions = ir_value_at(r->p, x)->shape.dim[1],
        .dims = a->embed / a->heads,
        .theta = 10000,
        .heads = heads};
    return ir_rope(r->p, x, ir_rope_table(r->p, &attr), &attr);
}

/* Probabilities averaged over the heads, [N, S, T]: what torch's module gives beside its result.
 * q, k: [N, S, H, D], [N, T, H, D]. */
static int weights_of(const struct layer_run *r, const struct attention *a, int q, int k)
{
    static const int heads_first[] = {0, 2, 1, 3}, turned_keys[] = {0, 2, 3, 1};
    struct ir_program *p = r->p;
    ASSERT(a->kv_heads == a->heads && a->bias == IR_NONE); /* the canvas node has neither */
    double scale = 1.0 / sqrt((double)a->embed / (double)a->heads);
    int scores = ir_matmul(p, ir_permute(p, q, heads_first), ir_permute(p, k, turned_keys));
    int weights = ir_softmax(p, ir_affine(p, scores, scale, 0), -1);
    return ir_mean(p, weights, 1u << 1, false);
}

/* Operands of attention; packed in q where k and v are IR_NONE. */
struct heads {
    int q, k, v;
};

/* One value three times is self-attention, key and value the same value attention to a memory:
 * fewer products. */
static struct heads
heads_of(const struct layer_run *r, const struct attention *a, int query, int key, int value)
{
    struct ir_program *p = r->p;
    struct heads h = {IR_NONE, IR_NONE, IR_NONE};
    if (query == key && key == value) {
        h.q = turned(r, a, project(r, a, query, 0, 3), heads_before(a, 2));
        return h;
    }
    h.q = turned(r, a, project(r, a, query, 0, 1), 0);
    if (key == value) {
        int both = turned(r, a, project(r, a, key, 1, 2), a->kv_heads);
        h.k = ir_slice(p, both, 2, 0, a->kv_heads, 1);
        h.v = ir_slice(p, both, 2, a->kv_heads, a->kv_heads, 1);
    } else {
        h.k = turned(r, a, project(r, a, key, 1, 1), 0);
        h.v = project(r, a, value, 2, 1);
    }
    return h;
}

/* query, key, value [N, S, E] in, [N, S, E] out. */
static int
attend(const struct layer_run *r, const struct attention *a, int query, int key, int value)
{
    struct ir_program *p = r->p;
    struct attention_attr attr = {
        .heads = a->heads,
        .kv_heads = a->kv_heads,
        .causal = a->causal,
        .dropout = r->training ? a->dropout : 0,
        .stream = layer_stream(r, a->place)};
    if (attr.dropout > 0 && r->rng == IR_NONE)
        return layer_fail(r, "dropout needs random numbers to train, and got none");
    struct heads h = heads_of(r, a, query, key, value);
    int y = ir_attention(p, h.q, h.k, h.v, a->bias, attr.dropout > 0 ? r->rng : IR_NONE, &attr);
    if (y < 0 || p->err.status != ST_OK)
        return IR_NONE;
    if (a->weights && h.k == IR_NONE) {
        int all = h.q;
        h.q = ir_slice(p, all, 2, 0, a->heads, 1);
        h.k = ir_slice(p, all, 2, a->heads, a->heads, 1);
    }
    if (a->weights)
        r->more[0] = weights_of(r, a, h.q, h.k);
    struct shape s = ir_value_at(p, y)->shape;
    char place[LAYER_NAME_MAX];
    (void)snprintf(place, sizeof place, "%sout_proj.", a->place);
    return layer_linear(r, ir_reshape(p, y, SHAPE(s.dim[0], s.dim[1], a->embed)), place);
}

/* Input i, a padding mask [N, T] or [T], as what hides padding among `key` [N, T, F]. */
static int padding_bias(const struct layer_run *r, int i, int key)
{
    if (r->p->err.status != ST_OK)
        return IR_NONE;
    struct shape s = ir_value_at(r->p, r->in[i])->shape;
    const struct shape *k = &ir_value_at(r->p, key)->shape;
    struct shape want = SHAPE(k->dim[0], k->dim[1]), one = SHAPE(k->dim[1]);
    if (!shape_eq(&s, &want) && !(want.dim[0] == 1 && shape_eq(&s, &one)))
        return layer_fail(
            r, "expected a padding mask of shape %s in input %d, got %s",
            shape_text(&want, (char[192]){0}, 192), i + 1, shape_text(&s, (char[192]){0}, 192));
    return ir_key_bias(r->p, ir_reshape(r->p, r->in[i], want));
}

/* An input of the layer with its batch first; the same value once for the same input. */
static int batch_first(const struct layer_run *r, int i, int64_t features, bool *single)
{
    int x = layer_sequence(r, r->in[i], features, single);
    return r->layer->params.batch_first ? x : ir_transpose(r->p, x, 0, 1);
}

static int batch_back(const struct layer_run *r, int y, bool single)
{
    bool first = r->layer->params.batch_first;
    y = first ? y : ir_transpose(r->p, y, 0, 1);
    return single ? ir_squeeze(r->p, y, first ? 0 : 1) : y;
}

/* All inputs must have one batch; key and value one length. */
static bool lengths_fit(const struct layer_run *r, const int *x, int n)
{
    if (r->p->err.status != ST_OK)
        return false;
    const struct shape *a = &ir_value_at(r->p, x[0])->shape;
    for (int i = 1; i < n; i++) {
        const struct shape *b = &ir_value_at(r->p, x[i])->shape;
        const struct shape *key = &ir_value_at(r->p, x[1])->shape;
        if (b->dim[0] == a->dim[0] && b->dim[1] == key->dim[1])
            continue;
        (void)layer_fail(r, "the batch or the length of input %d does not fit the others", i + 1);
        return false;
    }
    return true;
}

int forward_attention(const struct layer_run *r)
{
    const struct layer_params *a = &r->layer->params;
    struct attention own = {
        .place = "attn.",
        .embed = a->embed_dim,
        .heads = a->num_heads,
        .kv_heads = kv_heads_of(a),
        .dropout = a->dropout,
        .causal = a->causal,
        .rotary = a->rotary,
        .weights = r->more != NULL,
        .bias = IR_NONE};
    int x[3], n = r->n_in > 2 ? 3 : 1;
    bool single = false, other;
    for (int i = 0; i < n; i++) {
        int before = 0;
        while (r->in[before] != r->in[i])
            before++;
        x[i] = before < i ? x[before] : batch_first(r, i, a->embed_dim, i ? &other : &single);
    }
    if (!lengths_fit(r, x, n))
        return IR_NONE;
    if (r->n_in > n)
        own.bias = padding_bias(r, n, x[n > 1 ? 1 : 0]);
    int y = attend(r, &own, x[0], x[n > 1 ? 1 : 0], x[n > 1 ? 2 : 0]);
    if (r->more && single)
        r->more[0] = ir_squeeze(r->p, r->more[0], 0);
    return batch_back(r, y, single);
}

/* ---- stacks of layers ---- */

/* One layer of a stack, being appended. */
struct stack_run {
    const struct layer_run *r;
    const char *stack;
    int64_t i;
    int memory;                /* IR_NONE in an encoder */
    int own_bias, memory_bias; /* hide padding of the sequence itself, of the memory */
};

static int norm(const struct stack_run *s, int x, const char *part)
{
    struct place at = place_of(s->stack, s->i, part);
    int beta = layer_read(s->r, "%sbias", at.text), gamma = layer_read(s->r, "%sweight", at.text);
    return ir_layer_norm(s->r->p, x, gamma, beta, 1, s->r->layer->params.layer_norm_eps);
}

static int attention_part(const struct stack_run *s, int x, const char *part, int memory)
{
    const struct layer_params *a = &s->r->layer->params;
    struct place at = place_of(s->stack, s->i, part);
    bool own = memory == IR_NONE;
    struct attention attention = {
        .place = at.text,
        .embed = a->d_model,
        .heads = a->nhead,
        .kv_heads = a->nhead,
        .dropout = a->dropout,
        .causal = own && a->causal,
        .bias = own ? s->own_bias : s->memory_bias};
    int y = attend(s->r, &attention, x, own ? x : memory, own ? x : memory);
    return layer_dropout(s->r, y, a->dropout, place_of(s->stack, s->i, own ? "1" : "2").text);
}

static int feed_forward(const struct stack_run *s, int x)
{
    const struct layer_params *a = &s->r->layer->params;
    x = layer_linear(s->r, x, place_of(s->stack, s->i, "linear1").text);
    x = ir_unary(s->r->p, a->activation ? OP_GELU : OP_RELU, x);
    x = layer_dropout(s->r, x, a->dropout, place_of(s->stack, s->i, "inner").text);
    x = layer_linear(s->r, x, place_of(s->stack, s->i, "linear2").text);
    return layer_dropout(s->r, x, a->dropout, place_of(s->stack, s->i, "3").text);
}

/* Part `part` (0: self-attention, 1: attention to the memory, 2: feed-forward) and its residual. */
static int residual(const struct stack_run *s, int x, int part)
{
    bool first = s->r->layer->params.norm_first;
    const char *name = part == 0 ? "norm1" : part == 2 && s->memory != IR_NONE ? "norm3" : "norm2";
    int in = first ? norm(s, x, name) : x;
    int y = part == 2
                ? feed_forward(s, in)
                : attention_part(
                      s, in, part ? "multihead_attn" : "self_attn", part ? s->memory : IR_NONE);
    x = ir_binary(s->r->p, OP_ADD, x, y);
    return first ? x : norm(s, x, name);
}

/* An encoder reads a sequence and its mask; a decoder a sequence, the memory, the memory's mask,
 * the sequence's mask. */
static int stack_forward(const struct layer_run *r, const char *stack, bool cross)
{
    const struct layer_params *a = &r->layer->params;
    int in[2], own_mask = cross ? 3 : 1;
    bool single = false, other;
    in[0] = in[1] = batch_first(r, 0, a->d_model, &single);
    if (cross && r->n_in > 1 && r->in[1] != r->in[0])
        in[1] = batch_first(r, 1, a->d_model, &other);
    if (!lengths_fit(r, in, 2))
        return IR_NONE;
    struct stack_run s = {
        .r = r,
        .stack = stack,
        .memory = cross ? in[1] : IR_NONE,
        .own_bias = r->n_in > own_mask ? padding_bias(r, own_mask, in[0]) : IR_NONE,
        .memory_bias = cross && r->n_in > 2 ? padding_bias(r, 2, in[1]) : IR_NONE};
    int x = in[0];
    for (s.i = 0; s.i < a->num_layers; s.i++) {
        layer_block_begin(r);
        for (int part = 0; part < 3; part++)
            if (part != 1 || cross)
                x = residual(&s, x, part);
        layer_block_end(r);
    }
    return batch_back(r, x, single);
}

int forward_encoder(const struct layer_run *r)
{
    return stack_forward(r, "encoder", false);
}

int forward_decoder(const struct layer_run *r)
{
    return stack_forward(r, "decoder", true);
}

/* ---- masks ---- */

enum status check_padding_mask(const struct layer_check *c)
{
    (void)c;
    return ST_OK;
}

int forward_padding_mask(const struct layer_run *r)
{
    if (r->p->err.status != ST_OK || r->in[0] < 0)
        return IR_NONE;
    enum dtype t = ir_value_at(r->p, r->in[0])->dtype;
    if (t != DT_I64 && t != DT_I32)
        return layer_fail(r, "expected token numbers, got %s", dtype_name(t));
    return ir_is_value(r->p, r->in[0], r->layer->params.padding_idx);
}
