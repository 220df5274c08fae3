/* closed_model.c - a transformer's shape from its config.json, and its parameters. */
#include "plan/closed_form.h"

#include "base/str.h"

#include <math.h>
#include <string.h>

enum { CONFIG_BYTES_MAX = 1 << 20 };
#define PARAMETERS_MAX 1e16 /* of 16 to 24 bytes, on up to 100000 cards, in 64 bits */

/* ---- families ---- */

struct family {
    const char *name;
    enum closed_norm norm;
    enum closed_act act;
    bool bias, qkv_bias, qk_norm, post_norm, learned_positions;
    enum closed_head head;
};
static const struct family families[] = {
    {"llama", CLOSED_RMS_NORM, CLOSED_GATED, 0, 0, 0, 0, 0, CLOSED_HEAD_LM},
    {"mistral", CLOSED_RMS_NORM, CLOSED_GATED, 0, 0, 0, 0, 0, CLOSED_HEAD_LM},
    {"mixtral", CLOSED_RMS_NORM, CLOSED_GATED, 0, 0, 0, 0, 0, CLOSED_HEAD_LM},
    {"qwen", CLOSED_RMS_NORM, CLOSED_GATED, 0, 1, 0, 0, 0, CLOSED_HEAD_LM},
    {"qwen2", CLOSED_RMS_NORM, CLOSED_GATED, 0, 1, 0, 0, 0, CLOSED_HEAD_LM},
    {"qwen2_moe", CLOSED_RMS_NORM, CLOSED_GATED, 0, 1, 0, 0, 0, CLOSED_HEAD_LM},
    {"qwen3", CLOSED_RMS_NORM, CLOSED_GATED, 0, 0, 1, 0, 0, CLOSED_HEAD_LM},
    {"qwen3_moe", CLOSED_RMS_NORM, CLOSED_GATED, 0, 0, 1, 0, 0, CLOSED_HEAD_LM},
    {"gemma", CLOSED_RMS_NORM, CLOSED_GATED, 0, 0, 0, 0, 0, CLOSED_HEAD_LM},
    {"gemma2", CLOSED_RMS_NORM, CLOSED_GATED, 0, 0, 0, 0, 0, CLOSED_HEAD_LM},
    {"gemma3_text", CLOSED_RMS_NORM, CLOSED_GATED, 0, 0, 1, 0, 0, CLOSED_HEAD_LM},
    {"granite", CLOSED_RMS_NORM, CLOSED_GATED, 0, 0, 0, 0, 0, CLOSED_HEAD_LM},
    {"olmo2", CLOSED_RMS_NORM, CLOSED_GATED, 0, 0, 1, 0, 0, CLOSED_HEAD_LM},
    {"internlm2", CLOSED_RMS_NORM, CLOSED_GATED, 0, 0, 0, 0, 0, CLOSED_HEAD_LM},
    {"baichuan", CLOSED_RMS_NORM, CLOSED_GATED, 0, 0, 0, 0, 0, CLOSED_HEAD_LM},
    {"smollm3", CLOSED_RMS_NORM, CLOSED_GATED, 0, 0, 0, 0, 0, CLOSED_HEAD_LM},
    {"cohere", CLOSED_LAYER_NORM, CLOSED_GATED, 0, 0, 0, 0, 0, CLOSED_HEAD_LM},
    {"phi", CLOSED_LAYER_NORM, CLOSED_GELU_NEW, 1, 1, 0, 0, 0, CLOSED_HEAD_LM},
    {"starcoder2", CLOSED_LAYER_NORM, CLOSED_GELU, 1, 1, 0, 0, 0, CLOSED_HEAD_LM},
    {"mpt", CLOSED_LAYER_NORM, CLOSED_GELU, 0, 0, 0, 0, 0, CLOSED_HEAD_LM},
    {"phi3", CLOSED_RMS_NORM, CLOSED_GATED, 0, 0, 0, 0, 0, CLOSED_HEAD_LM},
    {"gpt2", CLOSED_LAYER_NORM, CLOSED_GELU_NEW, 1, 1, 0, 0, 1, CLOSED_HEAD_LM},
    {"gpt", CLOSED_LAYER_NORM, CLOSED_GELU, 1, 1, 0, 0, 1, CLOSED_HEAD_LM},
    {"gpt_neox", CLOSED_LAYER_NORM, CLOSED_GELU, 1, 1, 0, 0, 0, CLOSED_HEAD_LM},
    {"opt", CLOSED_LAYER_NORM, CLOSED_GELU, 1, 1, 0, 0, 1, CLOSED_HEAD_LM},
    {"bloom", CLOSED_LAYER_NORM, CLOSED_GELU, 1, 1, 0, 0, 0, CLOSED_HEAD_LM},
    {"gpt_neo", CLOSED_LAYER_NORM, CLOSED_GELU_NEW, 1, 0, 0, 0, 1, CLOSED_HEAD_LM},
    {"gptj", CLOSED_LAYER_NORM, CLOSED_GELU_NEW, 1, 0, 0, 0, 0, CLOSED_HEAD_LM},
    {"gpt_bigcode", CLOSED_LAYER_NORM, CLOSED_GELU, 1, 1, 0, 0, 1, CLOSED_HEAD_LM},
    {"falcon", CLOSED_LAYER_NORM, CLOSED_GELU, 0, 0, 0, 0, 0, CLOSED_HEAD_LM},
    {"stablelm", CLOSED_LAYER_NORM, CLOSED_GATED, 0, 0, 0, 0, 0, CLOSED_HEAD_LM},
    {"bert", CLOSED_LAYER_NORM, CLOSED_GELU, 1, 1, 0, 1, 1, CLOSED_HEAD_CLASSES},
    {"roberta", CLOSED_LAYER_NORM, CLOSED_GELU, 1, 1, 0, 1, 1, CLOSED_HEAD_CLASSES},
    {"xlm-roberta", CLOSED_LAYER_NORM, CLOSED_GELU, 1, 1, 0, 1, 1, CLOSED_HEAD_CLASSES},
    {"distilbert", CLOSED_LAYER_NORM, CLOSED_GELU, 1, 1, 0, 1, 1, CLOSED_HEAD_CLASSES},
};

static const struct family *family_find(const char *name)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (str_eq(families[i].name, name))
            return &families[i];
    return NULL;
}

static enum status unknown_family(const char *name, struct err *e)
{
    struct str list;
    str_init(&list);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        str_printf(&list, "%s%s", i ? ", " : "", families[i].name);
    (void)err_set(e, ST_UNSUPPORTED, "model_type \"%.40s\" is not known", name);
    err_hint(
        e,
        "known: %s; a model of another name but of the shape of one of these is read with "
        "--family NAME",
        list.data);
    str_release(&list);
    return ST_UNSUPPORTED;
}

static void apply_family(struct closed_model *m, const struct family *f)
{
    m->norm = f->norm;
    m->act = f->act;
    m->bias = f->bias;
    m->qkv_bias = f->qkv_bias;
    m->qk_norm = f->qk_norm;
    m->post_norm = f->post_norm;
    m->head = f->head;
}

/* ---- config.json ---- */

/* The first of the names that the file has. 0 when absent. */
static int64_t field(const json_t *c, const char *const names[])
{
    int64_t v = 0;
    for (int i = 0; names[i] && v == 0; i++)
        v = json_get_i64(c, names[i], 0);
    return v;
}
#define FIELD(c, ...) field(c, (const char *const[]){__VA_ARGS__, NULL})

/* Whether `name` is a word of `names`. */
static bool listed(const char *name, const char *names)
{
    size_t n = strlen(name);
    for (const char *at = names; (at = strstr(at, name)) != NULL; at += n)
        if ((at == names || at[-1] == ' ') && (at[n] == ' ' || at[n] == 0))
            return true;
    return false;
}

static void read_fields(const json_t *c, const struct family *f, struct closed_model *m)
{
    m->layers = FIELD(c, "num_hidden_layers", "n_layer", "n_layers", "num_layers");
    m->hidden = FIELD(c, "hidden_size", "n_embd", "n_embed", "d_model", "dim");
    m->heads = FIELD(c, "num_attention_heads", "n_head", "n_heads", "num_heads");
    m->kv_heads = FIELD(c, "num_key_value_heads", "num_kv_heads");
    m->head_dim = FIELD(c, "head_dim");
    m->vocab = FIELD(c, "vocab_size");
    m->experts = FIELD(c, "num_local_experts", "num_experts");
    m->experts_per_token = FIELD(c, "num_experts_per_tok");
    if (m->experts)
        m->ffn = FIELD(c, "moe_intermediate_size", "intermediate_size");
    else
        m->ffn =
            FIELD(c, "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "hidden_dim");
    if (f->learned_positions)
        m->positions = FIELD(c, "max_position_embeddings", "n_positions");
    m->types = FIELD(c, "type_vocab_size");
    if (json_get_bool(c, "multi_query", false))
        m->kv_heads = 1;
    if (strcmp(m->family, "qwen") == 0)
        m->ffn /= 2; /* the file counts both halves of the gated MLP */
    bool tied = listed(
        m->family,
        "gpt2 gemma gemma2 gemma3_text opt bloom gpt_neo gpt_bigcode falcon cohere starcoder2 mpt");
    m->tied = json_get_bool(c, "tie_word_embeddings", tied);
    m->qkv_bias = json_get_bool(c, "attention_bias", m->qkv_bias);
    m->dropout = json_get_f64(c, "hidden_dropout_prob", json_get_f64(c, "resid_pdrop", 0));
}

enum status
closed_model_of(const json_t *c, const char *family, struct closed_model *out, struct err *e)
{
    *out = (struct closed_model){0};
    /* A model of pictures and text has its language model in a part of its own. */
    if (json_is_object(json_object_get(c, "text_config")) &&
        json_get_i64(c, "num_hidden_layers", 0) == 0)
        c = json_object_get(c, "text_config");
    const char *type = family ? family : json_get_str(c, "model_type", "");
    const struct family *f = family_find(type);
    if (!json_is_object(c) || !type[0])
        return err_set(e, ST_INVALID, "it is no config.json: it has no \"model_type\"");
    if (!f)
        return unknown_family(type, e);
    (void)strncpy(out->family, type, sizeof out->family - 1);
    apply_family(out, f);
    read_fields(c, f, out);
    return closed_model_complete(out, e);
}

enum status
closed_model_read(const char *path, const char *family, struct closed_model *out, struct err *e)
{
    json_t *c = NULL;
    *out = (struct closed_model){0};
    TRY(json_read_file(path, CONFIG_BYTES_MAX, &c, e));
    enum status st = closed_model_of(c, family, out, e);
    if (st != ST_OK)
        err_prefix(e, "%s", path);
    json_decref(c);
    return st;
}

/* ---- completing and counting ---- */

static enum status need(int64_t v, const char *name, struct err *e)
{
    if (v > 0 && v <= (int64_t)1 << 40)
        return ST_OK;
    return err_set(e, ST_INVALID, "\"%s\" must be above 0, not %lld", name, (long long)v);
}

enum status closed_model_family(struct closed_model *m, struct err *e)
{
    const struct family *f = family_find(m->family[0] ? m->family : "llama");
    if (!f)
        return unknown_family(m->family, e);
    (void)strncpy(m->family, f->name, sizeof m->family - 1);
    apply_family(m, f);
    return ST_OK;
}

/* Parameters as a real number: the whole number is counted where this is small enough. */
static double count_roughly(const struct closed_model *m)
{
    double h = (double)m->hidden, heads = (double)(m->heads + m->kv_heads) * (double)m->head_dim;
    double mlps = 3 * h * (double)m->ffn * (double)(1 + m->experts);
    double tables = (double)m->vocab + (double)m->positions + (double)m->types;
    return (double)m->layers * (2 * h * heads + mlps) + h * (2 * tables + h);
}

static int64_t count(const struct closed_model *m, int64_t experts);

/* The MLP's width that gives the parameters that were stated; as it is where none does. */
static void fit_ffn(struct closed_model *m)
{
    struct closed_model wider = *m;
    wider.ffn++;
    int64_t now = count(m, m->experts), each = count(&wider, m->experts) - now;
    int64_t more = llround((double)(m->parameters - now) / (double)each);
    if (m->ffn + more >= 1 && m->ffn + more <= 1 << 26)
        m->ffn += more;
}

enum status closed_model_complete(struct closed_model *m, struct err *e)
{
    bool guessed = m->ffn == 0;
    TRY(need(m->layers, "layers", e));
    TRY(need(m->hidden, "hidden", e));
    TRY(need(m->heads, "heads", e));
    if (m->kv_heads == 0)
        m->kv_heads = m->heads;
    if (m->head_dim == 0 && m->hidden % m->heads != 0)
        return err_set(
            e, ST_INVALID, "%lld heads do not divide a width of %lld, and no head_dim is given",
            (long long)m->heads, (long long)m->hidden);
    if (m->head_dim == 0)
        m->head_dim = m->hidden / m->heads;
    if (m->ffn == 0)
        m->ffn = 4 * m->hidden;
    if (m->experts > 0 && m->experts_per_token == 0)
        m->experts_per_token = 1;
    TRY(need(m->head_dim, "head_dim", e));
    TRY(need(m->ffn, "ffn", e));
    if (m->experts < 0 || m->experts_per_token < 0 || m->vocab < 0 || m->positions < 0 ||
        m->types < 0 || m->kv_heads < 1 || m->experts_per_token > m->experts)
        return err_set(e, ST_INVALID, "the configuration has sizes that no model can have");
    if (m->kv_heads > m->heads || m->heads % m->kv_heads != 0)
        return err_set(
            e, ST_INVALID, "%lld key-value heads do not divide %lld heads", (long long)m->kv_heads,
            (long long)m->heads);
    if (m->layers > 100000 || m->hidden > 1 << 24 || m->ffn > 1 << 26 || m->heads > 1 << 20 ||
        m->head_dim > 1 << 16 || m->vocab < 0 || m->vocab > 1 << 28 || m->experts > 1 << 16 ||
        m->positions > 1 << 28 || m->experts_per_token > 1 << 16 ||
        count_roughly(m) > PARAMETERS_MAX || (double)m->parameters > PARAMETERS_MAX)
        return err_set(e, ST_INVALID, "the configuration is absurdly large");
    if (guessed && m->parameters > 0)
        fit_ffn(m);
    return ST_OK;
}

enum status closed_model_split(struct closed_model *m, int64_t tp, struct err *e)
{
    if (tp < 1 || m->heads % tp != 0 || m->kv_heads % tp != 0)
        return err_set(
            e, ST_USAGE, "--tp %lld does not divide %lld heads and %lld key-value heads",
            (long long)tp, (long long)m->heads, (long long)m->kv_heads);
    m->heads /= tp;
    m->kv_heads /= tp;
    m->ffn = (m->ffn + tp - 1) / tp;
    m->vocab = (m->vocab + tp - 1) / tp;
    m->parameters /= tp;
    return ST_OK;
}

static int64_t norm_parameters(const struct closed_model *m)
{
    return m->hidden * (m->norm == CLOSED_LAYER_NORM ? 2 : 1);
}

static int64_t layer_parameters(const struct closed_model *m, int64_t experts)
{
    int64_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim, h = m->hidden;
    int64_t mlp =
        m->act == CLOSED_GATED ? 3 * h * m->ffn : 2 * h * m->ffn + (m->bias ? m->ffn + h : 0);
    int64_t n = h * (q + 2 * kv) + q * h + 2 * norm_parameters(m);
    if (m->qkv_bias)
        n += q + 2 * kv;
    if (m->bias)
        n += h;
    if (m->qk_norm)
        n += 2 * m->head_dim;
    return n + (m->experts ? experts * mlp + h * m->experts : mlp);
}

static int64_t count(const struct closed_model *m, int64_t experts)
{
    int64_t h = m->hidden;
    int64_t n = m->layers * layer_parameters(m, experts) + (m->vocab + m->positions + m->types) * h;
    if (!m->post_norm)
        n += norm_parameters(m);
    else
        n += norm_parameters(m); /* of the embeddings */
    if (m->head == CLOSED_HEAD_LM && !m->tied)
        n += m->vocab * h;
    if (m->head == CLOSED_HEAD_CLASSES)
        n += h * h + h + 2 * h + 2; /* pooler and two classes */
    if (m->head == CLOSED_HEAD_MLM)
        n += h * h + h + norm_parameters(m) + m->vocab;
    return n;
}

int64_t closed_model_parameters(const struct closed_model *m)
{
    return m->parameters ? m->parameters : count(m, m->experts);
}

int64_t closed_model_active(const struct closed_model *m)
{
    return count(m, m->experts_per_token);
}
