/* hf_config.c - config.json of a Hugging Face folder as a transformer's configuration. */
#include "nn/hf_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- typed fields ---- */

/* A reader whose first failure sticks. `doc` may be a part of the file. */
struct fields {
    const json_t *doc;
    const char *inside; /* "rope_scaling." */
    enum status st;
    struct err *e;
};

static void wrong(struct fields *f, const char *key, const json_t *v, const char *wanted)
{
    if (f->st != ST_OK)
        return;
    char *got = json_text(v, false);
    f->st = err_set(
        f->e, ST_INVALID, "config.json: \"%s%s\" must be %s, not %.60s", f->inside, key, wanted,
        got);
    mem_free(got);
}

/* The member, or NULL when it is absent or null. */
static const json_t *member(const struct fields *f, const char *key)
{
    const json_t *v = json_object_get(f->doc, key);
    return v && !json_is_null(v) ? v : NULL;
}

static int64_t whole(struct fields *f, const char *key, int64_t low, int64_t fallback)
{
    const json_t *v = member(f, key);
    char wanted[64];
    if (!v)
        return fallback;
    int64_t n = json_is_integer(v) ? json_integer_value(v) : -1;
    if (json_is_integer(v) && n >= low && n <= INT32_MAX)
        return n;
    (void)snprintf(wanted, sizeof wanted, "a whole number of %lld to 2147483647", (long long)low);
    wrong(f, key, v, wanted);
    return fallback;
}

static int64_t size(struct fields *f, const char *key)
{
    if (!member(f, key) && f->st == ST_OK)
        f->st = err_set(f->e, ST_INVALID, "config.json: \"%s%s\" is missing", f->inside, key);
    return whole(f, key, 1, 1);
}

static double real(struct fields *f, const char *key, double low, double high, double fallback)
{
    const json_t *v = member(f, key);
    char wanted[64];
    if (!v)
        return fallback;
    double x = json_is_number(v) ? json_number_value(v) : (double)NAN;
    if (x >= low && x <= high)
        return x;
    (void)snprintf(wanted, sizeof wanted, "a number of %g to %g", low, high);
    wrong(f, key, v, wanted);
    return fallback;
}

static bool truth(struct fields *f, const char *key, bool fallback)
{
    const json_t *v = member(f, key);
    if (!v)
        return fallback;
    if (!json_is_boolean(v))
        wrong(f, key, v, "true or false");
    return json_is_true(v);
}

static const char *word(struct fields *f, const char *key, const char *fallback)
{
    const json_t *v = member(f, key);
    if (!v)
        return fallback;
    if (!json_is_string(v))
        wrong(f, key, v, "a text");
    return json_is_string(v) ? json_string_value(v) : fallback;
}

static double chance(struct fields *f, const char *key, double fallback)
{
    return real(f, key, 0, 0.999, fallback);
}

/* ---- what every family has ---- */

static enum transformer_act act(struct fields *f, const char *key, const char *fallback)
{
    static const struct {
        const char *name;
        enum transformer_act act;
    } acts[] = {
        {"gelu", ACTIVATION_GELU},
        {"gelu_new", ACTIVATION_GELU_TANH},
        {"gelu_pytorch_tanh", ACTIVATION_GELU_TANH},
        {"gelu_fast", ACTIVATION_GELU_TANH},
        {"relu", ACTIVATION_RELU},
        {"silu", ACTIVATION_SILU},
        {"swish", ACTIVATION_SILU}};
    const char *name = word(f, key, fallback);
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        if (str_eq(acts[i].name, name))
            return acts[i].act;
    if (f->st == ST_OK)
        f->st = err_set(
            f->e, ST_UNSUPPORTED,
            "config.json: \"%s\" is \"%.40s\", an activation not in this version", key, name);
    return ACTIVATION_GELU;
}

/* Heads that are not stated divide the width. */
static void head_size(struct fields *f, struct transformer_config *c)
{
    c->head_dim = whole(f, "head_dim", 1, 0);
    if (c->head_dim > 0 || f->st != ST_OK)
        return;
    c->head_dim = c->d_model / c->heads;
    if (c->d_model % c->heads != 0)
        f->st = err_set(
            f->e, ST_INVALID, "config.json: a width of %lld cannot be divided among %lld heads",
            (long long)c->d_model, (long long)c->heads);
}

/* ---- rotary positions ---- */

static void rope_llama3(struct fields *f, struct rope_attr *a)
{
    a->factor = real(f, "factor", 1, 1e6, 0);
    a->low_freq_factor = real(f, "low_freq_factor", 1e-6, 1e6, 0);
    a->high_freq_factor = real(f, "high_freq_factor", 1e-6, 1e6, 0);
    a->original_positions = whole(f, "original_max_position_embeddings", 1, 0);
    bool all = a->factor > 0 && a->low_freq_factor > 0 && a->original_positions > 0;
    if (f->st == ST_OK && (!all || a->high_freq_factor <= a->low_freq_factor))
        f->st = err_set(
            f->e, ST_INVALID,
            "config.json: rope type \"llama3\" needs factor, low_freq_factor below "
            "high_freq_factor, and original_max_position_embeddings");
}

/* Every frequency divided by one factor: Llama 3's rule with no frequency counted as high. */
static void rope_linear(struct fields *f, struct rope_attr *a)
{
    a->factor = real(f, "factor", 1, 1e6, 1);
    a->low_freq_factor = 1e30;
    a->high_freq_factor = 2e30;
    a->original_positions = 1;
}

static void rope_read(struct fields *top, struct transformer_config *c)
{
    const json_t *newer = member(top, "rope_parameters"), *older = member(top, "rope_scaling");
    struct fields f = *top;
    f.inside = newer ? "rope_parameters." : "rope_scaling.";
    f.doc = newer ? newer : older;
    c->rope.theta = real(top, "rope_theta", 1e-3, 1e12, 10000);
    if (!f.doc)
        return;
    if (!json_is_object(f.doc)) {
        wrong(top, newer ? "rope_parameters" : "rope_scaling", f.doc, "an object");
        return;
    }
    c->rope.theta = real(&f, "rope_theta", 1e-3, 1e12, c->rope.theta);
    const char *type = word(&f, "rope_type", word(&f, "type", "default"));
    (void)real(&f, "partial_rotary_factor", 1, 1, 1);
    if (str_eq(type, "llama3"))
        rope_llama3(&f, &c->rope);
    else if (str_eq(type, "linear"))
        rope_linear(&f, &c->rope);
    else if (!str_eq(type, "default") && f.st == ST_OK)
        f.st = err_set(
            f.e, ST_UNSUPPORTED, "config.json: rope type \"%.40s\" is not in this version", type);
    top->st = f.st;
}

/* ---- families ---- */

static void read_gpt2(struct hf *h, struct fields *f)
{
    struct transformer_config *c = &h->c;
    c->family = FAMILY_GPT2;
    c->d_model = size(f, "n_embd");
    c->layers = size(f, "n_layer");
    c->heads = c->kv_heads = size(f, "n_head");
    c->d_ff = whole(f, "n_inner", 1, 4 * c->d_model);
    c->positions = size(f, "n_positions");
    head_size(f, c);
    c->activation = act(f, "activation_function", "gelu_new");
    c->norm_eps = real(f, "layer_norm_epsilon", 0, 1, 1e-5);
    c->embed_dropout = chance(f, "embd_pdrop", 0.1);
    c->attention_dropout = chance(f, "attn_pdrop", 0.1);
    c->residual_dropout = chance(f, "resid_pdrop", 0.1);
    c->attention_scale = truth(f, "scale_attn_weights", true) ? 0 : 1;
    c->scale_by_layer = truth(f, "scale_attn_by_inverse_layer_idx", false);
    c->causal = c->pre_norm = c->final_norm = c->fused_qkv = true;
    c->qkv_bias = c->out_bias = c->mlp_bias = true;
    c->tied = truth(f, "tie_word_embeddings", true);
}

/* Which layers look back through a window only: all (Mistral), those that layer_types names, or
 * those from max_window_layers on (Qwen). */
static void read_windows(struct hf *h, struct fields *f, bool qwen)
{
    struct transformer_config *c = &h->c;
    const json_t *types = member(f, "layer_types");
    /* Both classes' default; null means none. */
    int64_t fallback = json_object_get(h->config, "sliding_window") ? 0 : 4096;
    c->window = whole(f, "sliding_window", 1, fallback);
    if (qwen && !truth(f, "use_sliding_window", false))
        c->window = 0;
    if (c->window == 0 || c->layers > 4096 || f->st != ST_OK)
        return;
    int64_t from = qwen ? whole(f, "max_window_layers", 0, 28) : 0;
    bool *windowed = ARENA_ARRAY(&h->arena, bool, c->layers);
    if (types && (!json_is_array(types) || json_array_size(types) != (size_t)c->layers)) {
        wrong(f, "layer_types", types, "a list of one text per layer");
        return;
    }
    for (int64_t i = 0; i < c->layers; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        windowed[i] = types ? str_eq(type, "sliding_attention") : i >= from;
        if (types && !windowed[i] && !str_eq(type, "full_attention"))
            wrong(f, "layer_types", types, "full_attention or sliding_attention for each layer");
    }
    c->windowed = windowed;
}

static void read_llama(struct hf *h, struct fields *f)
{
    struct transformer_config *c = &h->c;
    const char *type = word(f, "model_type", "");
    bool qwen2 = str_eq(type, "qwen2"), qwen3 = str_eq(type, "qwen3");
    bool llama = str_eq(type, "llama");
    c->family = FAMILY_LLAMA;
    c->d_model = size(f, "hidden_size");
    c->layers = size(f, "num_hidden_layers");
    c->heads = size(f, "num_attention_heads");
    c->kv_heads = whole(f, "num_key_value_heads", 1, str_eq(type, "mistral") ? 8 : c->heads);
    c->d_ff = size(f, "intermediate_size");
    c->positions = size(f, "max_position_embeddings");
    if (qwen3 && !member(f, "head_dim"))
        c->head_dim = 128;
    else
        head_size(f, c);
    c->activation = act(f, "hidden_act", "silu");
    c->norm_eps = real(f, "rms_norm_eps", 0, 1, 1e-6);
    c->rms_norm = c->causal = c->pre_norm = c->final_norm = c->gated = true;
    c->position_kind = POSITIONS_ROPE;
    rope_read(f, c);
    bool attention_bias = truth(f, "attention_bias", false);
    c->qkv_bias = qwen2 || (attention_bias && !str_eq(type, "mistral"));
    c->out_bias = (llama || qwen3) && attention_bias;
    c->mlp_bias = llama && truth(f, "mlp_bias", false);
    c->qk_norm = qwen3;
    c->attention_dropout = chance(f, "attention_dropout", 0);
    if (!llama)
        read_windows(h, f, qwen2 || qwen3);
    c->tied = truth(f, "tie_word_embeddings", false);
}

static void read_bert(struct hf *h, struct fields *f)
{
    struct transformer_config *c = &h->c;
    c->family = FAMILY_BERT;
    c->d_model = size(f, "hidden_size");
    c->layers = size(f, "num_hidden_layers");
    c->heads = c->kv_heads = size(f, "num_attention_heads");
    c->d_ff = size(f, "intermediate_size");
    c->positions = size(f, "max_position_embeddings");
    c->token_types = whole(f, "type_vocab_size", 1, 2);
    head_size(f, c);
    c->activation = act(f, "hidden_act", "gelu");
    c->norm_eps = real(f, "layer_norm_eps", 0, 1, 1e-12);
    c->embed_dropout = c->residual_dropout = chance(f, "hidden_dropout_prob", 0.1);
    c->attention_dropout = chance(f, "attention_probs_dropout_prob", 0.1);
    c->embed_norm = c->qkv_bias = c->out_bias = c->mlp_bias = true;
    c->head_bias = h->head;
    c->tied = truth(f, "tie_word_embeddings", true);
}

/* A model_type: who reads it, and transformers' classes with and without head. */
static const struct hf_type {
    const char *name;
    void (*read)(struct hf *h, struct fields *f);
    const char *with_head, *without_head;
} types[] = {
    {"gpt2", read_gpt2, "GPT2LMHeadModel", "GPT2Model"},
    {"llama", read_llama, "LlamaForCausalLM", "LlamaModel"},
    {"mistral", read_llama, "MistralForCausalLM", "MistralModel"},
    {"qwen2", read_llama, "Qwen2ForCausalLM", "Qwen2Model"},
    {"qwen3", read_llama, "Qwen3ForCausalLM", "Qwen3Model"},
    {"bert", read_bert, "BertForMaskedLM", "BertModel"},
};
enum { TYPE_COUNT = sizeof types / sizeof types[0] };

static enum status type_find(const json_t *doc, const struct hf_type **out, struct err *e)
{
    const char *name = json_get_str(doc, "model_type", NULL), *known[TYPE_COUNT];
    for (int i = 0; i < TYPE_COUNT; i++) {
        known[i] = types[i].name;
        if (str_eq(types[i].name, name)) {
            *out = &types[i];
            return ST_OK;
        }
    }
    if (!name)
        return err_set(e, ST_INVALID, "config.json: \"model_type\" is missing");
    (void)err_set(
        e, ST_UNSUPPORTED, "config.json: model_type \"%.60s\" is not in this version", name);
    const char *near = str_nearest(name, known, TYPE_COUNT);
    err_hint(
        e, "This version reads gpt2, llama, mistral, qwen2, qwen3 and bert%s%s%s.",
        near ? "; did you mean \"" : "", near ? near : "", near ? "\"" : "");
    return ST_UNSUPPORTED;
}

/* ---- fields that must not be there, and fields nobody knows ---- */

static bool same_value(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b))
        return fabs(json_number_value(a) - json_number_value(b)) <= 0;
    return json_equal(a, b) == 1;
}

static enum status fixed_check(const json_t *doc, struct err *e)
{
    static const struct {
        const char *name, *value;
    } fixed[] = {
#define FIXED(name, value) {name, value},
#include "nn/hf_fields.def"
    };
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) {
        const json_t *v = json_object_get(doc, fixed[i].name);
        if (!v || json_is_null(v))
            continue;
        json_t *only = json_loads(fixed[i].value, JSON_DECODE_ANY, NULL);
        bool same = same_value(v, only);
        json_decref(only);
        if (same)
            continue;
        char *got = json_text(v, false);
        enum status st = err_set(
            e, ST_UNSUPPORTED, "config.json: \"%s\" is %.60s, and this version computes only %s",
            fixed[i].name, got, fixed[i].value);
        mem_free(got);
        return st;
    }
    return ST_OK;
}

static void unknown_note(struct hf *h)
{
    static const char *const known[] = {
#define READ(name) name,
#define FIXED(name, value) name,
#define FREE(name) name,
#include "nn/hf_fields.def"
    };
    const char *key;
    json_t *value;
    size_t n = 0;
    json_object_foreach(h->config, key, value)
    {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            found = found || str_eq(known[i], key);
        if (!found && n++ < 12)
            str_printf(
                &h->notes, "%s\"%.60s\"", n == 1 ? "config.json: without effect here: " : ", ",
                key);
    }
    if (n > 12)
        str_printf(&h->notes, " and %zu more", n - 12);
}

/* A class with another head (a classifier) has no language model's. */
static enum status architecture_check(const struct hf *h, const struct hf_type *t, struct err *e)
{
    const json_t *list = json_object_get(h->config, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    if (!h->head || !name || str_eq(name, t->with_head) || str_eq(name, t->without_head) ||
        str_eq(name, "BertForPreTraining"))
        return ST_OK;
    (void)err_set(
        e, ST_UNSUPPORTED, "config.json: architecture \"%.60s\" has no language model's head",
        name);
    err_hint(e, "Set parameter 'head' to none to import the layers below it.");
    return ST_UNSUPPORTED;
}

/* eos_token_id is a number or a list of them. */
static bool ends_texts(const json_t *doc, int64_t token)
{
    const json_t *v = json_object_get(doc, "eos_token_id");
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(v) ? json_array_get(v, i) : v;
        if (json_is_integer(one) && json_integer_value(one) == token)
            return true;
    }
    return false;
}

static enum status padding_read(struct hf *h, struct err *e)
{
    struct fields f = {.doc = h->config, .inside = "", .e = e};
    bool bert = h->c.family == FAMILY_BERT;
    if (!member(&f, "pad_token_id") && !bert)
        return err_set(e, ST_INVALID, "config.json has no \"pad_token_id\" to mask padding by");
    h->c.pad_token = whole(&f, "pad_token_id", 0, 0);
    TRY(f.st);
    if (!bert && ends_texts(h->config, h->c.pad_token))
        return err_set(
            e, ST_INVALID,
            "config.json: \"pad_token_id\" %lld is an \"eos_token_id\" too: masking padding would "
            "hide the ends of texts",
            (long long)h->c.pad_token);
    h->c.mask_padding = true;
    return ST_OK;
}

enum status hf_mask_padding(struct hf *h, struct err *e)
{
    enum status st = padding_read(h, e);
    if (st != ST_OK)
        err_prefix(e, "\"%s\"", h->dir);
    return st;
}

/* transformers gives pad_token_id to the embedding as padding_idx, everywhere but in GPT-2: looking
 * that row up does not train it. Negative numbers count from the end, as in torch.nn.Embedding; one
 * beyond the table is no row. */
static void padding_row_read(struct hf *h)
{
    const json_t *v = json_object_get(h->config, "pad_token_id");
    bool bert = h->c.family == FAMILY_BERT;
    int64_t row = json_is_integer(v) ? json_integer_value(v) : 0;
    if (h->c.family == FAMILY_GPT2 || (!json_is_integer(v) && !(bert && !v)))
        return;
    row += row < 0 && row >= -h->c.vocab ? h->c.vocab : 0;
    h->c.padding_row = row >= 0 && row < h->c.vocab;
    h->c.padding_index = h->c.padding_row ? row : 0;
}

enum status hf_config_read(struct hf *h, struct err *e)
{
    const struct hf_type *t = NULL;
    struct fields f = {.doc = h->config, .inside = "", .e = e};
    if (!json_is_object(h->config))
        return err_set(e, ST_CORRUPT, "config.json is not a JSON object");
    TRY(type_find(h->config, &t, e));
    TRY(architecture_check(h, t, e));
    TRY(fixed_check(h->config, e));
    h->c = (struct transformer_config){.head = h->head, .prefixed = h->head};
    h->c.vocab = size(&f, "vocab_size");
    h->c.init_std = real(&f, "initializer_range", 0, 1e3, 0.02);
    t->read(h, &f);
    TRY(f.st);
    padding_row_read(h);
    h->c.tied = h->c.tied && h->head;
    h->architecture = h->head ? t->with_head : t->without_head;
    unknown_note(h);
    return ST_OK;
}
