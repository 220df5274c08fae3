/* io_nodes.c - weights and checkpoints to files and back. */
#include "runner/run_int.h"

#include "base/env.h"
#include "base/str.h"
#include "nn/peft.h"
#include "nn/ptfile.h"
#include "nn/safetensors.h"
#include "nn/weights.h"

#include <stdio.h>
#include <string.h>

enum { LOSSES_MAX = 10000000 }; /* epochs of a checkpoint */

/* The file's name with the format's suffix, as the founding system forces it. */
static enum status
save_path(const struct graph_node *n, const char *suffix, char *out, size_t cap, struct err *e)
{
    char name[1024];
    const char *path = graph_param_str(n, "path");
    if (!path[0])
        return err_set(e, ST_INVALID, "parameter 'path' is empty: name the file to write");
    const char *slash = strrchr(path, '/'), *last = slash ? slash + 1 : path;
    if (!last[0] || strcmp(last, ".") == 0 || strcmp(last, "..") == 0)
        return err_set(e, ST_INVALID, "parameter 'path' is \"%s\": a folder, not a file", path);
    if (path[0] == '/') {
        (void)err_set(e, ST_INVALID, "parameter 'path': \"%s\" leaves the models folder", path);
        err_hint(e, "files are written below models/ in SNUG_HOME: give a path relative to it");
        return ST_INVALID;
    }
    bool has = str_ends(path, suffix) || (strcmp(suffix, ".pt") == 0 && str_ends(path, ".pth"));
    (void)snprintf(name, sizeof name, "%s%s", path, has ? "" : suffix);
    TRY(run_model_path(name, out, cap, e));
    char dir[1024];
    if (path_dir(out, dir, sizeof dir)[0])
        TRY(dir_make(dir, e));
    return ST_OK;
}

/* A model that no node has run yet gets an arena of its own, filled with its starting weights. */
static enum status
ensure_home(struct run *r, const struct graph_node *n, struct flow_model *m, struct err *e)
{
    if (m->home)
        return ST_OK;
    struct exec *x;
    TRY(flow_model_exec(r, n, m, NULL, 0, &x, e));
    struct run_place *place = run_place_of(r, n);
    flow_model_home(m, x, place, true);
    if (!r->planning)
        run_measured(r, place, m, x);
    return ST_OK;
}

/* Values of a model's weights as they are saved: exact, and with `merge` in one with adapters. */
struct saving {
    struct flow_model *m;
    float *merged; /* one weight at a time, made when it is written */
};

static const void *home_values(int var, enum dtype *type, void *ctx)
{
    struct flow_model *m = ctx;
    int exact = fill_exact(&m->vars, var, m->home_vars);
    *type = m->vars.list.data[exact].dtype;
    return exec_var(m->home, exact);
}

static bool is_merged(const struct model *m, int var)
{
    return model_adapter_of(m, var) || model_quant_of(m, var);
}

/* NULL where the weight has to be made: make_merged. */
static const void *saved_values(int var, enum dtype *type, void *ctx)
{
    struct saving *s = ctx;
    if (!is_merged(s->m->model, var))
        return home_values(var, type, s->m);
    *type = DT_F32;
    return NULL;
}

static const void *make_merged(int var, void *ctx)
{
    struct saving *s = ctx;
    struct model_values values = {home_values, s->m};
    model_merged(s->m->model, var, &values, s->merged);
    return s->merged;
}

/* Bytes of the largest weight that is made while it is written. */
static int64_t merged_bytes(const struct model *m)
{
    int64_t most = 0;
    for (int i = 0; i < model_state_count(m); i++) {
        int var = model_state_var(m, i);
        struct shape shape = model_var_shape(m, var);
        int64_t bytes = is_merged(m, var) ? shape_count(&shape) * (int64_t)sizeof(float) : 0;
        most = bytes > most ? bytes : most;
    }
    return most;
}

static enum status write_pt(struct saving *s, const char *path, struct err *e)
{
    struct flow_model *m = s->m;
    struct arena a;
    arena_init(&a);
    struct pt_value *root = pt_dict(&a, PT_DICT_ORDERED);
    for (int i = 0; i < model_state_count(m->model); i++) {
        int var = model_state_var(m->model, i);
        struct shape shape = model_var_shape(m->model, var);
        enum dtype type = DT_F32;
        if (!model_var_in_files(m->model, var))
            continue;
        struct pt_value *t =
            pt_tensor_of(&a, type, shape.dim, shape.rank, saved_values(var, &type, s));
        struct pt_storage *storage = t->tensor->storage;
        storage->make = make_merged;
        storage->id = var;
        storage->ctx = s;
        pt_put(&a, root, m->vars.list.data[var].name, t);
    }
    weights_put_aliases(&a, root, m->model, &m->vars);
    enum status st = ptfile_write(path, root, e);
    arena_release(&a);
    return st;
}

static enum status write_safetensors(struct saving *s, const char *path, struct err *e)
{
    struct flow_model *m = s->m;
    size_t n = 0;
    struct safetensor *list = mem_alloc(((size_t)model_state_count(m->model) + 1) * sizeof *list);
    for (int i = 0; i < model_state_count(m->model); i++) {
        int var = model_state_var(m->model, i);
        struct shape shape = model_var_shape(m->model, var);
        enum dtype type = DT_F32;
        if (!model_var_in_files(m->model, var))
            continue;
        const void *data = saved_values(var, &type, s);
        list[n] = (struct safetensor){
            .name = m->vars.list.data[var].name,
            .type = type,
            .rank = shape.rank,
            .data = data,
            .make = make_merged,
            .id = var,
            .ctx = s};
        memcpy(list[n++].shape, shape.dim, sizeof *shape.dim * (size_t)shape.rank);
    }
    struct safetensors_meta meta = {"format", "pt"};
    enum status st = safetensors_write(path, list, n, &meta, 1, e);
    mem_free(list);
    return st;
}

/* Format huggingface: a folder like the one that the model came from. */
static enum status folder_options(
    const struct graph_node *n, struct saving *s, struct hf_save_options *o, struct err *e)
{
    struct flow_model *m = s->m;
    const char *size = graph_param_str(n, "max_shard_size");
    *o = (struct hf_save_options){
        .retype = m->retype,
        .dtype = m->dtype,
        .data = saved_values,
        .make = make_merged,
        .ctx = s};
    if (!m->origin) {
        (void)err_set(
            e, ST_INVALID,
            "format huggingface needs a model of snug:PretrainedLM, and this one is of %s",
            model_node_type(m->model));
        err_hint(e, "Save it as pytorch or safetensors.");
        return ST_INVALID;
    }
    if (!str_to_bytes(size, &o->shard_bytes) || o->shard_bytes < 1)
        return err_set(
            e, ST_INVALID, "parameter 'max_shard_size' is \"%.40s\", not a size such as 5GB", size);
    return ST_OK;
}

static enum status
write_folder(struct run *r, const struct graph_node *n, struct hf_save_options *o, struct err *e)
{
    struct flow_model *m = ((struct saving *)o->ctx)->m;
    char path[1200];
    TRY(save_path(n, "", path, sizeof path, e));
    o->dir = path;
    TRY(hf_save(m->origin, m->model, o, e));
    run_saved(r, n, path);
    return ST_OK;
}

/* What a model with adapters can be saved as is said, not guessed. */
static enum status
check_adapters(const struct graph_node *n, const struct flow_model *m, struct err *e)
{
    bool peft = str_eq(graph_param_str(n, "format"), "peft"), merge = graph_param_bool(n, "merge");
    bool has = model_adapter_config(m->model) != NULL;
    if (peft && !has) {
        (void)err_set(e, ST_INVALID, "format peft saves adapters, and the model has none");
        err_hint(e, "connect a snug:Adapter between the model and what trains it");
        return ST_INVALID;
    }
    if (!has || peft || merge)
        return ST_OK;
    (void)err_set(
        e, ST_INVALID, "the model has adapters, and format %s holds whole weights",
        graph_param_str(n, "format"));
    err_hint(
        e, "format peft saves the adapters alone; parameter 'merge' adds them to the weights they "
           "were trained on");
    return ST_INVALID;
}

static enum status
save_as(struct run *r, const struct graph_node *n, struct saving *s, struct err *e)
{
    const char *format = graph_param_str(n, "format");
    bool safe = str_eq(format, "safetensors");
    struct hf_save_options options;
    char path[1200];
    if (str_eq(format, "huggingface")) {
        TRY(folder_options(n, s, &options, e));
        return write_folder(r, n, &options, e);
    }
    if (str_eq(format, "peft")) {
        struct model_values values = {home_values, s->m};
        TRY(save_path(n, "", path, sizeof path, e));
        TRY(peft_save(path, s->m->model, s->m->origin ? hf_dir(s->m->origin) : NULL, &values, e));
    } else {
        TRY(save_path(n, safe ? ".safetensors" : ".pt", path, sizeof path, e));
        TRY(safe ? write_safetensors(s, path, e) : write_pt(s, path, e));
    }
    run_saved(r, n, path);
    return ST_OK;
}

enum status node_model_saver(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct saving s = {0};
    struct hf_save_options options;
    struct flow in;
    TRY(flow_get(r, node, "model", FLOW_MODEL, &in, e));
    s.m = in.model;
    if (str_eq(graph_param_str(n, "format"), "huggingface"))
        TRY(folder_options(n, &s, &options, e));
    TRY(check_adapters(n, in.model, e));
    flow_set(r, node, "model", in);
    flow_set(
        r, node, "path", (struct flow){.kind = FLOW_STRING, .string = graph_param_str(n, "path")});
    TRY(ensure_home(r, n, in.model, e));
    int64_t bytes =
        str_eq(graph_param_str(n, "format"), "peft") ? 0 : merged_bytes(in.model->model);
    if (r->planning) {
        if (bytes > r->merge_bytes) {
            r->merge_bytes = bytes;
            r->merge_node = n->id;
        }
        return ST_OK;
    }
    s.merged = bytes ? mem_try_alloc((size_t)bytes) : NULL;
    if (bytes && !s.merged)
        return err_set(e, ST_OOM, "no %lld bytes to merge a weight in", (long long)bytes);
    enum status st = save_as(r, n, &s, e);
    mem_free(s.merged);
    return st;
}

enum status node_checkpoint_saver(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct flow model, optimizer;
    char path[1200];
    TRY(flow_get(r, node, "model", FLOW_MODEL, &model, e));
    TRY(flow_get(r, node, "optimizer", FLOW_OPTIMIZER, &optimizer, e));
    flow_set(r, node, "model", model);
    flow_set(
        r, node, "path", (struct flow){.kind = FLOW_STRING, .string = graph_param_str(n, "path")});
    if (r->planning)
        return ST_OK;
    if (!model.model->trained)
        return err_set(
            e, ST_INVALID,
            "there is no training state to save: no TrainingLoop ran before this node");
    TRY(save_path(n, ".pt", path, sizeof path, e));
    int64_t epoch = graph_param_i64(n, "epoch");
    TRY(train_save(model.model->trained, path, epoch > 0 ? epoch : -1, e));
    run_saved(r, n, path);
    return ST_OK;
}

/* The list of losses, one per epoch. A tensor may claim more elements than its storage has bytes
 * (stride 0), so its size is not taken on trust. */
static enum status read_losses(
    struct run *r, struct ptfile *f, const struct pt_tensor *t, struct flow *out, struct err *e)
{
    int64_t count = pt_tensor_elements(t);
    if (count > LOSSES_MAX)
        return err_set(
            e, ST_CORRUPT, "checkpoint \"%s\" lists %lld losses, more than the %d read here",
            ptfile_path(f), (long long)count, LOSSES_MAX);
    double *v = mem_alloc((size_t)(count + 1) * sizeof *v);
    enum status st = ptfile_read(f, t, DT_F64, v, (size_t)count * sizeof *v, e);
    if (st == ST_OK)
        *out = flow_list(r, v, (size_t)count);
    mem_free(v);
    return st;
}

enum status node_checkpoint_loader(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct flow model, optimizer, schedule;
    char path[1200];
    double epoch = 0;
    TRY(flow_get(r, node, "model", FLOW_MODEL, &model, e));
    TRY(flow_get(r, node, "optimizer", FLOW_OPTIMIZER, &optimizer, e));
    const char *name = graph_param_str(n, "path");
    if (!name[0])
        return err_set(e, ST_INVALID, "parameter 'path' is empty: name the checkpoint file");
    TRY(run_model_path(name, path, sizeof path, e));
    struct flow losses = flow_list(r, NULL, 0), scaler = {0};
    if (!r->planning) {
        struct ptfile *f;
        TRY(ptfile_open(path, &f, e));
        const struct pt_value *root = ptfile_root(f), *s = pt_get(root, "scaler_state_dict");
        (void)pt_to_float(pt_get(root, "epoch"), &epoch);
        const struct pt_value *l = pt_get(root, "losses");
        enum status st = ST_OK;
        if (l && l->kind == PT_TENSOR) {
            st = read_losses(r, f, l->tensor, &losses, e);
        }
        if (s && s->kind == PT_DICT) {
            json_t *j = json_object();
            for (size_t i = 0; i < s->dict.n; i++) {
                double v;
                const char *key = pt_to_string(s->dict.data[i].key);
                if (key && pt_to_float(s->dict.data[i].value, &v))
                    json_put_f64(j, key, v);
            }
            vec_push(&r->documents, j);
            scaler = (struct flow){.kind = FLOW_JSON, .json = j};
        }
        ptfile_close(f);
        TRY(st);
    }
    /* The training loop, or whoever runs the model first, reads the tensors into place. */
    model.model->checkpoint = arena_strdup(&r->memory, path);
    vec_push(&model.model->loads, arena_strdup(&r->memory, path));
    vec_push(&model.model->strict, true);
    flow_set(r, node, "model", model);
    flow_set(r, node, "optimizer", optimizer);
    flow_set(r, node, "epoch", (struct flow){.kind = FLOW_SCALAR, .scalar = epoch});
    flow_set(r, node, "losses", losses);
    if (flow_has(r, node, "lr_scheduler", &schedule))
        flow_set(r, node, "lr_scheduler", schedule);
    if (scaler.kind)
        flow_set(r, node, "grad_scaler_state", scaler);
    return ST_OK;
}

/* ---- Print ---- */

static void add_numbers(struct str *s, const struct flow_numbers *v)
{
    char shape[128];
    int64_t n = shape_count(&v->shape);
    str_printf(s, "%s%s [", dtype_name(v->dtype), shape_text(&v->shape, shape, sizeof shape));
    for (int64_t i = 0; i < n && i < 16; i++)
        str_printf(s, "%s%.6g", i ? ", " : "", dtype_load(v->data, v->dtype, i));
    str_add(s, n > 16 ? ", ...]" : "]");
}

enum status node_print(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct flow in = {0};
    struct str text;
    (void)e;
    (void)flow_has(r, node, "value", &in);
    flow_set(r, node, "value", in);
    if (r->planning)
        return ST_OK;
    str_init(&text);
    const char *label = graph_param_str(n, "label");
    if (label[0])
        str_printf(&text, "[%s] ", label);
    if (in.kind == FLOW_NUMBERS) {
        add_numbers(&text, in.numbers);
    } else if (in.kind == FLOW_SCALAR) {
        str_printf(&text, "%.6g", in.scalar);
    } else if (in.kind == FLOW_STRING) {
        str_add(&text, in.string);
    } else if (in.kind == FLOW_JSON) {
        char *j = json_text(in.json, false);
        str_add(&text, j);
        mem_free(j);
    } else if (in.kind == FLOW_MODEL) {
        str_printf(
            &text, "model with %lld parameters", (long long)model_parameter_count(in.model->model));
    } else {
        str_add(&text, flow_name(in.kind));
    }
    json_t *event = json_object();
    json_put_str(event, "event", "log");
    json_put_str(event, "node_id", n->id);
    json_put_str(event, "message", text.data);
    json_t *result = json_object();
    json_put_str(result, "message", text.data);
    json_put(r->results, n->id, result);
    run_event(r, event);
    str_release(&text);
    return ST_OK;
}
