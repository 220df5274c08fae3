/* model_tool.c - builds models and runs them forward and backward, for the tests against PyTorch.
 *
 * FORMAT. A request is one line of JSON, then the bytes of the input (little-endian, of the model's
 * input type) and, with "backward", of the gradient of output 0 (float32). Members:
 *   "layers": SequentialModel's document, or "transformer": {fields of transformer_config}, or
 *   "hf": folder, "head": bool, "padding_mask": bool
 *   "shape": [...], or "shapes" of several inputs, "seed", "training": bool, "backward": bool
 *   "state": weights file (else starting values), "save": folder, "dtype", "shard_bytes"
 * The answer is one line of JSON
 * {"status", "error", "input": dtype, "parameters": n, "params": [names], "notes",
 * "tensors": [{"name", "dtype", "shape"}]}, then the tensors' bytes: the state as it starts, the
 * outputs (by port name), gradients (names start with "grad:"; of inputs "grad:input0", ...), the
 * state afterwards (names start with "after:").
 */
#include "backends/exec.h"
#include "base/json.h"
#include "base/str.h"
#include "ir/build.h"
#include "nn/hf.h"
#include "nn/transformer.h"
#include "nn/weights.h"
#include "passes/passes.h"

#include <stdio.h>
#include <stdlib.h>

struct job {
    json_t *spec, *answer;
    struct ir_vars vars;
    struct model *m;
    struct ir_program *p;
    struct exec *exec;
    struct hf *hf;
    struct tensorfile *weights;
    int x_value[16], x_var[16], n_x; /* inputs; floating ones with a gradient are variables */
    int upstream, rng, *grads;
    int outputs[64];
    struct str bytes;
};

/* Adds a dense tensor to the answer. */
static void
answer_tensor(struct job *j, const char *prefix, const char *name, const struct tensor *t)
{
    json_t *row = json_object(), *dims = json_array();
    char full[256];
    (void)snprintf(full, sizeof full, "%s%s", prefix, name);
    for (int i = 0; i < t->shape.rank; i++)
        (void)json_array_append_new(dims, json_integer(t->shape.dim[i]));
    json_put_str(row, "name", full);
    json_put_str(row, "dtype", dtype_name(t->dtype));
    json_put(row, "shape", dims);
    (void)json_array_append_new(json_object_get(j->answer, "tensors"), row);
    str_add_n(&j->bytes, t->data, (size_t)tensor_count(t) * (size_t)dtype_size(t->dtype));
}

static void answer_state(struct job *j, const char *prefix)
{
    for (int i = 0; i < model_state_count(j->m); i++) {
        int var = model_state_var(j->m, i);
        const struct ir_var *v = &j->vars.list.data[var];
        struct tensor t = tensor_make(exec_var(j->exec, var), v->dtype, v->shape);
        if (t.data)
            answer_tensor(j, prefix, v->name, &t);
    }
}

static struct shape shape_read(const json_t *list)
{
    struct shape s = {.rank = (int)json_array_size(list)};
    for (int i = 0; i < s.rank && i < RANK_MAX; i++)
        s.dim[i] = json_integer_value(json_array_get(list, (size_t)i));
    return s;
}

/* A floating input whose gradient is wanted is a variable. */
static void input_make(struct job *j, int i, bool backward)
{
    const json_t *shapes = json_object_get(j->spec, "shapes");
    char name[16];
    (void)snprintf(name, sizeof name, "input%d", i);
    struct ir_var v = {
        .name = name,
        .dtype = model_input_dtype_at(j->m, i),
        .shape = shape_read(
            shapes ? json_array_get(shapes, (size_t)i) : json_object_get(j->spec, "shape")),
        .category = CATEGORY_INPUTS,
        .trainable = true,
        .of = IR_NONE,
        .node = IR_NONE};
    j->x_var[i] = IR_NONE;
    if (backward && v.dtype == DT_F32) {
        j->x_var[i] = ir_var_new(&j->vars, &v);
        j->x_value[i] = ir_var_read(j->p, j->x_var[i]);
    } else {
        j->x_value[i] = ir_input(j->p, name, v.dtype, v.shape);
    }
}

/* Gradients of sum(output 0 * upstream). */
static void build_backward(struct job *j)
{
    struct ir_program *p = j->p;
    struct shape s = ir_value_at(p, j->outputs[0])->shape;
    char name[256];
    p->phase = PHASE_LOSS;
    j->upstream = ir_input(p, "upstream", DT_F32, s);
    int product = ir_binary(p, OP_MUL, j->outputs[0], j->upstream);
    int loss = ir_sum(p, product, (1u << s.rank) - 1, false);
    int seed = ir_input(p, "loss_seed", DT_F32, shape_scalar());
    j->grads = mem_alloc((j->vars.list.n + 1) * sizeof *j->grads);
    ir_backward(p, loss, seed, j->grads);
    for (int i = 0; p->err.status == ST_OK && i < model_param_count_vars(j->m); i++) {
        int var = model_param_var(j->m, i), g = j->grads[var];
        if (g == IR_NONE)
            continue;
        (void)snprintf(name, sizeof name, "grad:%s", j->vars.list.data[var].name);
        j->grads[var] = ir_contiguous(p, g);
        ir_output(p, j->grads[var], arena_strdup(&j->vars.arena, name));
    }
    for (int i = 0; i < j->n_x && p->err.status == ST_OK; i++) {
        if (j->x_var[i] == IR_NONE || j->grads[j->x_var[i]] == IR_NONE)
            continue;
        j->grads[j->x_var[i]] = ir_contiguous(p, j->grads[j->x_var[i]]);
        (void)snprintf(name, sizeof name, "grad:input%d", i);
        ir_output(p, j->grads[j->x_var[i]], name);
    }
}

static enum status build(struct job *j, struct err *e)
{
    bool training = json_get_bool(j->spec, "training", false);
    bool backward = json_get_bool(j->spec, "backward", false);
    struct layout_options plain = {0};
    j->p->phase = PHASE_FORWARD;
    j->n_x = model_input_count(j->m) < 16 ? model_input_count(j->m) : 16;
    for (int i = 0; i < j->n_x; i++)
        input_make(j, i, backward);
    j->rng = training ? ir_input(j->p, "rng", DT_I64, SHAPE(2)) : IR_NONE;
    TRY(model_forward(j->m, j->p, j->x_value, j->n_x, training, j->rng, j->outputs, e));
    for (int i = 0; i < model_output_count(j->m); i++) {
        j->outputs[i] = ir_contiguous(j->p, j->outputs[i]);
        ir_output(j->p, j->outputs[i], model_output_name(j->m, i));
    }
    if (backward)
        build_backward(j);
    TRY(ir_status(j->p, e));
    if (backward)
        TRY(pass_recompute(j->p, false, e));
    TRY(pass_layout(j->p, &plain, e));
    if (backward)
        TRY(pass_fuse(j->p, e));
    return ir_verify(j->p, e);
}

/* ---- which model, and its weights ---- */

static struct transformer_config transformer_of(const json_t *d)
{
    int64_t heads = json_get_i64(d, "heads", 1), width = json_get_i64(d, "d_model", 64);
    double dropout = json_get_f64(d, "dropout", 0);
    bool bias = json_get_bool(d, "bias", true);
    return (struct transformer_config){
        .family = FAMILY_CAUSAL_LM,
        .vocab = json_get_i64(d, "vocab", 256),
        .d_model = width,
        .layers = json_get_i64(d, "layers", 1),
        .heads = heads,
        .kv_heads = json_get_i64(d, "kv_heads", heads),
        .head_dim = width / heads,
        .d_ff = json_get_i64(d, "d_ff", 64),
        .positions = json_get_i64(d, "positions", 64),
        .position_kind = (enum transformer_positions)json_get_i64(d, "position_kind", 0),
        .rope = {.theta = 10000},
        .activation = (enum transformer_act)json_get_i64(d, "activation", 0),
        .rms_norm = json_get_bool(d, "rms_norm", false),
        .norm_eps = json_get_f64(d, "norm_eps", 1e-5),
        .causal = true,
        .pre_norm = true,
        .fused_qkv = true,
        .qk_norm = json_get_bool(d, "qk_norm", false),
        .qkv_bias = bias,
        .out_bias = bias,
        .mlp_bias = bias,
        .final_norm = true,
        .head = true,
        .tied = json_get_bool(d, "tied", true),
        .embed_dropout = dropout,
        .attention_dropout = dropout,
        .residual_dropout = dropout,
        .init_std = 0.02,
        .scaled_init = true};
}

static enum status make_model(struct job *j, struct err *e)
{
    const char *folder = json_get_str(j->spec, "hf", NULL);
    const json_t *transformer = json_object_get(j->spec, "transformer");
    if (folder) {
        TRY(hf_open(folder, json_get_bool(j->spec, "head", true), &j->hf, e));
        if (json_get_bool(j->spec, "padding_mask", false))
            TRY(hf_mask_padding(j->hf, e));
        return hf_model(j->hf, "model", &j->vars, &j->m, e);
    }
    if (transformer) {
        struct transformer_config c = transformer_of(transformer);
        return transformer_make(&c, "model", &j->vars, &j->m, e);
    }
    return model_from_layers(json_get_str(j->spec, "layers", ""), "model", &j->vars, &j->m, e);
}

static enum status fill(struct job *j, int var, void *data, struct err *e)
{
    if (j->weights)
        return weights_read(j->weights, j->m, &j->vars, var, data, e);
    if (j->hf)
        return hf_read(j->hf, j->m, var, data, e);
    model_init_var(j->m, var, data, (uint64_t)json_get_i64(j->spec, "seed", 1));
    return ST_OK;
}

static enum status fill_all(struct job *j, struct err *e)
{
    const char *state = json_get_str(j->spec, "state", NULL);
    struct tensorfile_match match = {0};
    if (state) {
        TRY(tensorfile_open(state, &j->weights, e));
        enum status st = weights_match(j->weights, j->m, &j->vars, false, true, &match, e);
        tensorfile_match_release(&match);
        TRY(st);
    }
    for (int i = 0; i < model_state_count(j->m); i++) {
        int var = model_state_var(j->m, i);
        void *data = exec_var(j->exec, var);
        if (data)
            TRY(fill(j, var, data, e));
    }
    return ST_OK;
}

static const void *values_of(int var, enum dtype *type, void *ctx)
{
    (void)type; /* float32, as all of its variables */
    struct job *j = ctx;
    return exec_var(j->exec, var);
}

static enum status save(struct job *j, struct err *e)
{
    const char *dtype = json_get_str(j->spec, "dtype", NULL);
    struct hf_save_options o = {
        .dir = json_get_str(j->spec, "save", NULL),
        .shard_bytes = json_get_i64(j->spec, "shard_bytes", 5000000000),
        .data = values_of,
        .ctx = j};
    if (dtype)
        o.retype = dtype_parse(dtype, &o.dtype);
    return o.dir ? hf_save(j->hf, j->m, &o, e) : ST_OK;
}

/* The bytes of an input, or of an input that is a variable. */
static enum status read_input(struct job *j, int var, int value, struct err *e)
{
    const struct ir_value *v = ir_value_at(j->p, value);
    size_t n = (size_t)(shape_count(&v->shape) * dtype_size(v->dtype));
    void *to = var == IR_NONE ? exec_tensor(j->exec, 0, value).data : exec_var(j->exec, var);
    if (n > 0 && (!to || fread(to, 1, n, stdin) != n))
        return err_set(e, ST_IO, "the request ends early");
    return ST_OK;
}

static void answer_model(struct job *j)
{
    json_t *names = json_array();
    for (int i = 0; i < model_param_count_vars(j->m); i++)
        (void)json_array_append_new(
            names, json_string(j->vars.list.data[model_param_var(j->m, i)].name));
    json_put_str(j->answer, "input", dtype_name(model_input_dtype(j->m)));
    json_put_i64(j->answer, "parameters", model_parameter_count(j->m));
    json_put(j->answer, "params", names);
}

static enum status answer_gradients(struct job *j, struct err *e)
{
    for (int i = 0; j->grads && i < j->n_x; i++) {
        if (j->x_var[i] == IR_NONE || j->grads[j->x_var[i]] == IR_NONE)
            continue;
        struct tensor g = exec_tensor(j->exec, 0, j->grads[j->x_var[i]]);
        answer_tensor(j, "grad:", j->vars.list.data[j->x_var[i]].name, &g);
    }
    for (int i = 0; j->grads && i < model_param_count_vars(j->m); i++) {
        int var = model_param_var(j->m, i);
        if (j->grads[var] == IR_NONE)
            continue;
        struct tensor g = exec_tensor(j->exec, 0, j->grads[var]);
        if (!tensor_contiguous(&g))
            return err_set(e, ST_INTERNAL, "a gradient is not dense");
        answer_tensor(j, "grad:", j->vars.list.data[var].name, &g);
    }
    return ST_OK;
}

static enum status run(struct job *j, struct err *e)
{
    struct exec_options o = {.storage = EXEC_PLANNED};
    TRY(make_model(j, e));
    answer_model(j);
    TRY(build(j, e));
    TRY(exec_new(&j->vars, &j->p, 1, &o, &j->exec, e));
    TRY(exec_map(j->exec, e));
    TRY(fill_all(j, e));
    answer_state(j, "");
    TRY(save(j, e));
    for (int i = 0; i < j->n_x; i++)
        TRY(read_input(j, j->x_var[i], j->x_value[i], e));
    if (j->grads) {
        TRY(read_input(j, IR_NONE, j->upstream, e));
        *(float *)exec_value(j->exec, 0, ir_input_find(j->p, "loss_seed")) = 1;
    }
    TRY(exec_run(j->exec, 0, e));
    for (int i = 0; i < model_output_count(j->m); i++) {
        struct tensor y = exec_tensor(j->exec, 0, j->outputs[i]);
        if (!tensor_contiguous(&y))
            return err_set(e, ST_INTERNAL, "output %d is not dense", i);
        answer_tensor(j, "", model_output_name(j->m, i), &y);
    }
    TRY(answer_gradients(j, e));
    answer_state(j, "after:");
    return ST_OK;
}

static void serve(const char *line, size_t n)
{
    struct err e = {0};
    struct job j = {0};
    if (json_parse(line, n, "request", &j.spec, &e) != ST_OK) {
        fprintf(stderr, "model_tool: %s\n", e.text);
        exit(2);
    }
    ir_vars_init(&j.vars);
    j.p = ir_program_new("model_tool", &j.vars);
    j.answer = json_object();
    json_put(j.answer, "tensors", json_array());
    str_init(&j.bytes);
    enum status st = run(&j, &e);
    json_put_str(j.answer, "status", st == ST_OK ? "ok" : "error");
    if (st != ST_OK) {
        str_clear(&j.bytes);
        (void)json_array_clear(json_object_get(j.answer, "tensors"));
        json_put_str(j.answer, "error", e.text);
    }
    if (j.hf)
        json_put_str(j.answer, "notes", hf_notes(j.hf));
    char *text = json_text(j.answer, false);
    printf("%s\n", text);
    (void)fwrite(j.bytes.data, 1, j.bytes.n, stdout);
    mem_free(text);
    exec_free(j.exec);
    ir_program_free(j.p);
    model_free(j.m);
    hf_close(j.hf);
    tensorfile_close(j.weights);
    mem_free(j.grads);
    ir_vars_release(&j.vars);
    str_release(&j.bytes);
    json_decref(j.answer);
    json_decref(j.spec);
}

/* One request per process: what follows a refused request's line are its input's bytes. */
int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n = getline(&line, &cap, stdin);
    if (n > 0)
        serve(line, (size_t)n);
    free(line);
    return n > 0 ? 0 : 2;
}
