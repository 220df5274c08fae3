/* transformer_nodes.c - language models: built anew, or from a Hugging Face folder. */
#include "runner/run_int.h"

#include "base/env.h"
#include "base/str.h"
#include "nn/transformer.h"

#include <stdio.h>
#include <string.h>

static void set_outputs(struct run *r, size_t node, struct flow_model *m)
{
    double count = (double)model_parameter_count(m->model);
    flow_set(r, node, "model", (struct flow){.kind = FLOW_MODEL, .model = m});
    flow_set(r, node, "param_count", (struct flow){.kind = FLOW_SCALAR, .scalar = count});
}

/* ---- CausalLMModel ---- */

static enum transformer_act act_of(const char *name)
{
    if (str_eq(name, "relu"))
        return ACTIVATION_RELU;
    return str_eq(name, "silu") ? ACTIVATION_SILU : ACTIVATION_GELU;
}

static enum transformer_positions positions_of(const char *name)
{
    if (str_eq(name, "rope"))
        return POSITIONS_ROPE;
    return str_eq(name, "sinusoidal") ? POSITIONS_SINUSOIDAL : POSITIONS_LEARNED;
}

static void causal_lm_config(const struct graph_node *n, struct transformer_config *c)
{
    int64_t heads = graph_param_i64(n, "n_heads"), kv = graph_param_i64(n, "n_kv_heads");
    double dropout = graph_param_f64(n, "dropout");
    bool bias = graph_param_bool(n, "bias"), rms = str_eq(graph_param_str(n, "norm"), "rmsnorm");
    *c = (struct transformer_config){
        .family = FAMILY_CAUSAL_LM,
        .vocab = graph_param_i64(n, "vocab_size"),
        .d_model = graph_param_i64(n, "d_model"),
        .layers = graph_param_i64(n, "n_layers"),
        .heads = heads,
        .kv_heads = kv ? kv : heads,
        .d_ff = graph_param_i64(n, "d_ff"),
        .positions = graph_param_i64(n, "max_seq_len"),
        .position_kind = positions_of(graph_param_str(n, "positional")),
        .rope = {.theta = 10000},
        .activation = act_of(graph_param_str(n, "activation")),
        .rms_norm = rms,
        .norm_eps = rms ? 1e-6 : 1e-5,
        .causal = true,
        .pre_norm = true,
        .fused_qkv = true,
        .qk_norm = graph_param_bool(n, "qk_norm"),
        .qkv_bias = bias,
        .out_bias = bias,
        .mlp_bias = bias,
        .final_norm = true,
        .head = true,
        .tied = graph_param_bool(n, "tie_embeddings"),
        .embed_dropout = dropout,
        .attention_dropout = dropout,
        .residual_dropout = dropout,
        .init_std = graph_param_f64(n, "init_std"),
        .scaled_init = true,
        .seed = (uint64_t)graph_param_i64(n, "seed"),
        .wants_checkpointing = graph_param_bool(n, "gradient_checkpointing")};
}

/* What the bounds of single parameters do not say. */
static enum status causal_lm_check(struct transformer_config *c, struct err *e)
{
    if (c->d_model % c->heads != 0)
        return err_set(
            e, ST_INVALID, "parameter 'n_heads' (%lld) must divide 'd_model' (%lld)",
            (long long)c->heads, (long long)c->d_model);
    c->head_dim = c->d_model / c->heads;
    if (c->kv_heads > c->heads || c->heads % c->kv_heads != 0)
        return err_set(
            e, ST_INVALID, "parameter 'n_kv_heads' (%lld) must divide 'n_heads' (%lld)",
            (long long)c->kv_heads, (long long)c->heads);
    return ST_OK;
}

enum status node_causal_lm(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct transformer_config c;
    causal_lm_config(n, &c);
    TRY(causal_lm_check(&c, e));
    struct flow_model *m = flow_model_new(r, n);
    TRY(transformer_make(&c, n->id, &m->vars, &m->model, e));
    set_outputs(r, node, m);
    return ST_OK;
}

/* ---- snug:PretrainedLM ---- */

/* Beside the graph file, else in the models folder. */
static enum status folder_of(struct run *r, const char *name, char *out, size_t cap, struct err *e)
{
    char dir[1024];
    if (!name[0])
        return err_set(
            e, ST_INVALID, "parameter 'path' is empty: name a folder with a config.json");
    (void)path_join(run_graph_dir(r, dir, sizeof dir), name, out, cap);
    if (name[0] == '/' || dir_exists(out))
        return ST_OK;
    char beside[1200];
    (void)snprintf(beside, sizeof beside, "%s", out);
    TRY(run_model_path(name, out, cap, e));
    if (dir_exists(out))
        return ST_OK;
    return err_set(
        e, ST_NOT_FOUND, "parameter 'path': there is no folder \"%s\", nor \"%s\"", beside, out);
}

enum status node_pretrained_lm(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    char path[1200];
    TRY(folder_of(r, graph_param_str(n, "path"), path, sizeof path, e));
    struct flow_model *m = flow_model_new(r, n);
    m->retype = dtype_parse(graph_param_str(n, "dtype"), &m->dtype);
    TRY(hf_open(path, str_eq(graph_param_str(n, "head"), "lm"), &m->origin, e));
    if (graph_param_bool(n, "padding_mask"))
        TRY(hf_mask_padding(m->origin, e));
    TRY(hf_model(m->origin, n->id, &m->vars, &m->model, e));
    if (hf_notes(m->origin)[0] && !r->planning)
        run_warn(r, n, "import", "\"%s\": %s", path, hf_notes(m->origin));
    set_outputs(r, node, m);
    return ST_OK;
}
