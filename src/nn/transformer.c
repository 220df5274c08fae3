/* transformer.c - a transformer's parts: which a configuration has, their shapes, names and
 * starting values. */
#include "nn/transformer_int.h"

#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LAYERS_MAX = 4096, NAME_MAX_BYTES = 160 };
static const int64_t size_max = INT32_MAX, elements_max = (int64_t)1 << 44;

enum base { BASE, BARE };
enum orientation { OUT_IN, IN_OUT };

static const struct part_name {
    enum transformer_family family;
    enum part part;
    enum base base;
    const char *weight, *bias;
    enum orientation orientation;
} names[] = {
#define PART(family, part, base, ...) {FAMILY_##family, PART_##part, base, __VA_ARGS__},
#include "nn/transformer_names.def"
};
enum { NAME_COUNT = sizeof names / sizeof names[0] };

static const char *const prefixes[FAMILY_COUNT] = {
#define FAMILY(id, prefix) [FAMILY_##id] = prefix,
#define PART(...)
#include "nn/transformer_names.def"
};

const char *transformer_act_name(enum transformer_act a)
{
    static const char *const texts[] = {"gelu", "gelu_tanh", "relu", "silu"};
    return texts[a];
}

/* ---- which parts there are ---- */

enum form_kind { FORM_ABSENT, FORM_TABLE, FORM_NORM, FORM_LINEAR };
struct part_form {
    enum form_kind kind;
    int64_t out, in; /* rows and width of a table; features of a norm; a product's sizes */
    bool bias;
    bool scaled; /* starts closer to 0: it adds to the residual stream */
};

static struct part_form table(int64_t rows, int64_t width)
{
    return (struct part_form){FORM_TABLE, rows, width, false, false};
}

static struct part_form product(int64_t out, int64_t in, bool bias, bool scaled)
{
    return (struct part_form){FORM_LINEAR, out, in, bias, scaled};
}

static struct part_form norm(const struct transformer_config *c, int64_t n)
{
    return (struct part_form){FORM_NORM, n, 1, !c->rms_norm, false};
}

static struct part_form part_form(const struct transformer_config *c, enum part k)
{
    const struct part_form absent = {.kind = FORM_ABSENT};
    const int64_t d = c->d_model, q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    bool bert_head = c->head && c->family == FAMILY_BERT;
    switch (k) {
    case PART_TOKENS:
        return table(c->vocab, d);
    case PART_POSITIONS:
        return c->position_kind == POSITIONS_LEARNED ? table(c->positions, d) : absent;
    case PART_TYPES:
        return c->token_types > 0 ? table(c->token_types, d) : absent;
    case PART_EMBED_NORM:
        return c->embed_norm ? norm(c, d) : absent;
    case PART_NORM1:
    case PART_NORM2:
        return norm(c, d);
    case PART_QKV:
        return c->fused_qkv ? product(q + 2 * kv, d, c->qkv_bias, false) : absent;
    case PART_Q:
        return c->fused_qkv ? absent : product(q, d, c->qkv_bias, false);
    case PART_K:
    case PART_V:
        return c->fused_qkv ? absent : product(kv, d, c->qkv_bias, false);
    case PART_Q_NORM:
    case PART_K_NORM: /* an RMS norm in every family: no bias */
        return c->qk_norm ? (struct part_form){FORM_NORM, c->head_dim, 1, false, false} : absent;
    case PART_OUT:
        return product(d, q, c->out_bias, true);
    case PART_GATE:
        return c->gated ? product(c->d_ff, d, c->mlp_bias, false) : absent;
    case PART_UP:
        return product(c->d_ff, d, c->mlp_bias, false);
    case PART_DOWN:
        return product(d, c->d_ff, c->mlp_bias, true);
    case PART_FINAL_NORM:
        return c->final_norm ? norm(c, d) : absent;
    case PART_POOLER:
        return c->pooler ? product(d, d, true, false) : absent;
    case PART_TRANSFORM:
        return bert_head ? product(d, d, true, false) : absent;
    case PART_TRANSFORM_NORM:
        return bert_head ? norm(c, d) : absent;
    case PART_HEAD:
        return c->head ? product(c->vocab, d, c->head_bias, false) : absent;
    case PART_COUNT:
        break;
    }
    return absent;
}

static struct init weight_init(const struct transformer_config *c, const struct part_form *f)
{
    if (f->kind == FORM_NORM)
        return init_constant(1);
    double std = c->init_std;
    if (f->scaled && c->scaled_init)
        std /= sqrt(2.0 * (double)c->layers);
    return (struct init){.kind = INIT_NORMAL, .value = std};
}

/* ---- declaring ---- */

struct maker {
    struct model *m;
    struct transformer *t;
    struct err *e;
};

static const char *full_name(const struct maker *k, const struct part_name *n, int block, bool bias)
{
    char with_block[NAME_MAX_BYTES];
    const char *text = bias ? n->bias : n->weight, *mark = strstr(text, "%d");
    bool prefixed = n->base == BASE && k->t->c.prefixed;
    if (mark)
        (void)snprintf(
            with_block, sizeof with_block, "%.*s%d%s", (int)(mark - text), text, block, mark + 2);
    return arena_printf(
        &k->m->arena, "%s%s", prefixed ? prefixes[n->family] : "", mark ? with_block : text);
}

static int declare(
    const struct maker *k, const struct part_name *n, int block, bool bias, struct shape s,
    struct init init, int node)
{
    struct model *m = k->m;
    struct ir_var v = {
        .name = full_name(k, n, block, bias),
        .dtype = DT_F32,
        .shape = s,
        .category = CATEGORY_PARAMETERS,
        .trainable = true,
        .of = IR_NONE,
        .node = node};
    int var = ir_var_new(m->vars, &v);
    k->t->init[m->n_state] = init;
    m->params[m->n_params++] = var;
    m->state[m->n_state++] = var;
    return var;
}

static int part_node(const struct maker *k, enum part part, int block)
{
    const struct transformer *t = k->t;
    const struct transformer_block *b = &t->blocks[block];
    if (part == PART_NORM1)
        return b->norm1_node;
    if (part == PART_NORM2)
        return b->norm2_node;
    if (part == PART_GATE || part == PART_UP || part == PART_DOWN)
        return b->mlp_node;
    if (part_in_block(part))
        return b->attn_node;
    if (part == PART_FINAL_NORM)
        return t->norm_node;
    if (part == PART_POOLER)
        return t->pooler_node;
    return part < PART_NORM1 ? t->embed_node : t->head_node;
}

enum { ALIASES_MAX = 2 };

static void declare_alias(const struct maker *k, const char *name, int var)
{
    struct model *m = k->m;
    if (!m->aliases)
        m->aliases = ARENA_ARRAY(&m->arena, struct model_alias, ALIASES_MAX);
    m->aliases[m->n_aliases++] = (struct model_alias){name, var};
}

/* A tied head has the embedding's variable; its own name becomes an alias. */
static void declare_part(const struct maker *k, const struct part_name *n, int block)
{
    struct transformer *t = k->t;
    struct part_form f = part_form(&t->c, n->part);
    if (f.kind == FORM_ABSENT)
        return;
    bool in_out = n->orientation == IN_OUT;
    struct part_vars *p =
        part_in_block(n->part) ? &t->blocks[block].part[n->part] : &t->part[n->part];
    struct shape s = f.kind == FORM_NORM ? SHAPE(f.out)
                     : in_out            ? SHAPE(f.in, f.out)
                                         : SHAPE(f.out, f.in);
    int node = part_node(k, n->part, block);
    p->in_out = in_out;
    if (n->part == PART_HEAD && t->c.tied) {
        p->weight = t->part[PART_TOKENS].weight;
        declare_alias(k, full_name(k, n, 0, false), p->weight);
    } else {
        p->weight = declare(k, n, block, false, s, weight_init(&t->c, &f), node);
    }
    if (f.bias)
        p->bias = declare(k, n, block, true, SHAPE(f.out), init_constant(0), node);
    if (n->part == PART_HEAD && t->c.family == FAMILY_BERT)
        declare_alias(k, "cls.predictions.decoder.bias", p->bias);
}

/* The family's rows in order; a run of rows with "%d" once per block. */
static void declare_all(const struct maker *k)
{
    enum transformer_family family = k->t->c.family;
    for (int i = 0; i < NAME_COUNT; i++) {
        if (names[i].family != family)
            continue;
        if (!part_in_block(names[i].part)) {
            declare_part(k, &names[i], 0);
            continue;
        }
        int end = i;
        while (end < NAME_COUNT && names[end].family == family && part_in_block(names[end].part))
            end++;
        for (int block = 0; block < k->t->c.layers; block++)
            for (int row = i; row < end; row++)
                declare_part(k, &names[row], block);
        i = end - 1;
    }
}

static int intern(const struct maker *k, const char *fmt, int block)
{
    char part[64];
    (void)snprintf(part, sizeof part, "blocks.%d.%s", block, fmt);
    return ir_node_intern(
        k->m->vars, arena_printf(&k->m->arena, "%s/%s", k->m->node_id, block < 0 ? fmt : part));
}

static uint32_t stream(const char *what, int block)
{
    char text[64];
    (void)snprintf(text, sizeof text, "blocks.%d.%s", block, what);
    return (uint32_t)hash_name(text);
}

static void blocks_make(const struct maker *k)
{
    struct transformer *t = k->t;
    t->blocks = ARENA_ARRAY(&k->m->arena, struct transformer_block, t->c.layers + 1);
    t->embed_node = intern(k, "embed", -1);
    for (int i = 0; i < t->c.layers; i++) {
        struct transformer_block *b = &t->blocks[i];
        b->norm1_node = intern(k, "norm1", i);
        b->attn_node = intern(k, "attn", i);
        b->norm2_node = intern(k, "norm2", i);
        b->mlp_node = intern(k, "mlp", i);
        b->attn_stream = stream("attn", i);
        b->out_stream = stream("attn.out", i);
        b->mlp_stream = stream("mlp", i);
        for (int part = 0; part <= PART_DOWN; part++)
            b->part[part] = (struct part_vars){IR_NONE, IR_NONE, false};
    }
    t->norm_node = intern(k, "norm", -1);
    t->head_node = intern(k, "head", -1);
    t->pooler_node = intern(k, "pooler", -1);
    for (int part = 0; part < PART_COUNT; part++)
        t->part[part] = (struct part_vars){IR_NONE, IR_NONE, false};
}

static void ports_make(struct model *m, const struct transformer_config *c)
{
    static const struct model_port tokens = {"input_ids", "input_ids", SOURCE_NONE};
    static const struct model_port logits = {"logits", "logits", SOURCE_NONE};
    static const struct model_port hidden = {"last_hidden_state", "last_hidden_state", SOURCE_NONE};
    static const struct model_port pooled = {"pooler_output", "pooler_output", SOURCE_NONE};
    m->n_inputs = 1;
    m->inputs = ARENA_NEW(&m->arena, struct model_port);
    m->inputs[0] = tokens;
    m->n_outputs = c->pooler ? 2 : 1;
    m->outputs = ARENA_ARRAY(&m->arena, struct model_port, 2);
    m->outputs[0] = c->head ? logits : hidden;
    m->outputs[1] = pooled;
}

/* ---- the kind ---- */

static enum dtype transformer_input_dtype(const struct model *m, int port)
{
    (void)m;
    (void)port;
    return DT_I64;
}

static bool transformer_hint(const struct model *m, struct shape *sample)
{
    (void)m;
    *sample = SHAPE(-1);
    return true;
}

static bool transformer_has_dropout(const struct model *m)
{
    const struct transformer_config *c = &m->transformer->c;
    return c->embed_dropout > 0 || c->attention_dropout > 0 || c->residual_dropout > 0;
}

static void transformer_init_var(const struct model *m, int var, void *data, uint64_t seed)
{
    const struct transformer *t = m->transformer;
    const struct ir_var *v = &m->vars->list.data[var];
    for (int i = 0; i < m->n_state; i++) {
        if (m->state[i] != var)
            continue;
        init_fill(
            &t->init[i], v->name, t->c.seed ? t->c.seed : seed, v->dtype, shape_count(&v->shape),
            data);
        return;
    }
}

static const struct model_kind kind_of_family[FAMILY_COUNT] = {
#define KIND(node)                                                                                 \
    {                                                                                              \
        .node_type = node, .input_dtype = transformer_input_dtype,                                 \
        .input_shape_hint = transformer_hint, .has_dropout = transformer_has_dropout,              \
        .forward = transformer_forward, .init_var = transformer_init_var                           \
    }
    [FAMILY_CAUSAL_LM] = KIND("CausalLMModel"),
    [FAMILY_GPT2] = KIND("snug:PretrainedLM"),
    [FAMILY_LLAMA] = KIND("snug:PretrainedLM"),
    [FAMILY_BERT] = KIND("snug:PretrainedLM"),
};

/* ---- checking ---- */

static enum status size_check(const char *name, int64_t n, int64_t low, int64_t high, struct err *e)
{
    if (n >= low && n <= high)
        return ST_OK;
    return err_set(
        e, ST_INVALID, "%s must be %lld to %lld, not %lld", name, (long long)low, (long long)high,
        (long long)n);
}

static enum status chance_check(const char *name, double p, struct err *e)
{
    if (p >= 0 && p < 1)
        return ST_OK;
    return err_set(e, ST_INVALID, "%s must be at least 0 and below 1, not %g", name, p);
}

static enum status sizes_check(const struct transformer_config *c, struct err *e)
{
    TRY(size_check("vocab", c->vocab, 1, size_max, e));
    TRY(size_check("d_model", c->d_model, 1, size_max, e));
    TRY(size_check("layers", c->layers, 0, LAYERS_MAX, e));
    TRY(size_check("heads", c->heads, 1, size_max, e));
    TRY(size_check("kv_heads", c->kv_heads, 1, c->heads, e));
    TRY(size_check("head_dim", c->head_dim, 1, size_max / c->heads, e));
    TRY(size_check("d_ff", c->d_ff, 1, size_max, e));
    TRY(size_check("positions", c->positions, 1, size_max, e));
    TRY(size_check("token_types", c->token_types, 0, size_max, e));
    TRY(size_check("window", c->window, 0, size_max, e));
    if (c->mask_padding)
        TRY(size_check("pad_token", c->pad_token, 0, size_max, e));
    if (c->padding_row)
        TRY(size_check("padding_index", c->padding_index, 0, c->vocab - 1, e));
    if (c->heads % c->kv_heads != 0)
        return err_set(
            e, ST_INVALID, "heads (%lld) must be a multiple of kv_heads (%lld)",
            (long long)c->heads, (long long)c->kv_heads);
    return ST_OK;
}

static enum status numbers_check(const struct transformer_config *c, struct err *e)
{
    TRY(chance_check("embed_dropout", c->embed_dropout, e));
    TRY(chance_check("attention_dropout", c->attention_dropout, e));
    TRY(chance_check("residual_dropout", c->residual_dropout, e));
    if (!(c->norm_eps >= 0) || isinf(c->norm_eps))
        return err_set(e, ST_INVALID, "norm_eps must be at least 0, not %g", c->norm_eps);
    if (!(c->init_std >= 0) || isinf(c->init_std))
        return err_set(e, ST_INVALID, "init_std must be at least 0, not %g", c->init_std);
    if (c->position_kind == POSITIONS_ROPE && (!(c->rope.theta > 0) || isinf(c->rope.theta)))
        return err_set(e, ST_INVALID, "rope's theta must be above 0, not %g", c->rope.theta);
    if (c->position_kind == POSITIONS_ROPE && c->head_dim % 2 != 0)
        return err_set(
            e, ST_INVALID, "rotary positions need heads of an even size, not %lld",
            (long long)c->head_dim);
    if (c->position_kind == POSITIONS_SINUSOIDAL && c->d_model % 2 != 0)
        return err_set(
            e, ST_INVALID, "sinusoidal positions need an even d_model, not %lld",
            (long long)c->d_model);
    return ST_OK;
}

/* No part so large that sums of their sizes could leave 64 bits. */
static enum status parts_check(const struct transformer_config *c, struct err *e)
{
    for (int k = 0; k < PART_COUNT; k++) {
        struct part_form f = part_form(c, (enum part)k);
        if (f.kind != FORM_ABSENT && f.out > elements_max / f.in)
            return err_set(
                e, ST_INVALID, "a weight of %lld x %lld elements is absurdly large",
                (long long)f.out, (long long)f.in);
    }
    return ST_OK;
}

static void config_keep(struct model *m, struct transformer *t, const struct transformer_config *c)
{
    t->c = *c;
    if (c->windowed) {
        bool *windowed = ARENA_ARRAY(&m->arena, bool, c->layers + 1);
        memcpy(windowed, c->windowed, sizeof *windowed * (size_t)c->layers);
        t->c.windowed = windowed;
    }
    if (c->scale_by_layer && c->attention_scale == 0)
        t->c.attention_scale = 1 / sqrt((double)c->head_dim);
}

enum status transformer_make(
    const struct transformer_config *config, const char *node_id, struct ir_vars *vars,
    struct model **out, struct err *e)
{
    struct model *m = model_new(&kind_of_family[config->family], node_id, vars);
    enum status st = ST_OK;
    TRY_OUT(sizes_check(config, e));
    TRY_OUT(numbers_check(config, e));
    TRY_OUT(parts_check(config, e));
    struct transformer *t = ARENA_NEW(&m->arena, struct transformer);
    struct maker k = {m, t, e};
    int64_t most = 2 * (PART_COUNT + PART_COUNT * config->layers);
    m->transformer = t;
    m->wants_checkpointing = config->wants_checkpointing;
    m->state = ARENA_ARRAY(&m->arena, int, most);
    m->params = ARENA_ARRAY(&m->arena, int, most);
    t->init = ARENA_ARRAY(&m->arena, struct init, most);
    config_keep(m, t, config);
    ports_make(m, config);
    blocks_make(&k);
    declare_all(&k);
    *out = m;
    return ST_OK;
out:
    if (e)
        err_node(e, node_id, m->kind->node_type);
    model_free(m);
    return st;
}

const struct transformer_config *transformer_config_of(const struct model *m)
{
    return m->transformer ? &m->transformer->c : NULL;
}
