/* peft.c - adapters from and to PEFT's folders. */
#include "nn/peft.h"

#include "base/env.h"
#include "base/json.h"
#include "base/mem.h"
#include "nn/model_int.h"
#include "nn/safetensors.h"

#include <stdio.h>
#include <string.h>

#define PREFIX "base_model.model."
enum { CONFIG_MAX = 1 << 20 };

/* ---- reading ---- */

/* Keys that must be absent, null, false, "none" or empty: they change what is computed. */
static const char *const refused[] = {"use_dora",          "rank_pattern",
                                      "alpha_pattern",     "modules_to_save",
                                      "layers_pattern",    "layers_to_transform",
                                      "megatron_config",   "layer_replication",
                                      "lora_bias",         "trainable_token_indices",
                                      "target_parameters", "use_qalora"};

static bool is_nothing(const json_t *v)
{
    return !v || json_is_null(v) || json_is_false(v) ||
           (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_object(v) && json_object_size(v) == 0);
}

static enum status check_supported(const json_t *doc, const char *path, struct err *e)
{
    const char *type = json_get_str(doc, "peft_type", ""),
               *bias = json_get_str(doc, "bias", "none");
    if (strcmp(type, "LORA") != 0)
        return err_set(
            e, ST_UNSUPPORTED, "\"%s\": \"peft_type\" is \"%.40s\", only LORA is read", path, type);
    if (strcmp(bias, "none") != 0)
        return err_set(
            e, ST_UNSUPPORTED, "\"%s\": \"bias\" is \"%.40s\", only none is read", path, bias);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (!is_nothing(json_object_get(doc, refused[i])))
            return err_set(
                e, ST_UNSUPPORTED, "\"%s\": \"%s\" is set, which this version does not do", path,
                refused[i]);
    return ST_OK;
}

static enum status
read_targets(const json_t *doc, const char *path, struct arena *a, const char **out, struct err *e)
{
    const json_t *v = json_object_get(doc, "target_modules");
    struct str text;
    if (json_is_string(v) && strcmp(json_string_value(v), "all-linear") == 0) {
        *out = "all-linear";
        return ST_OK;
    }
    if (!json_is_array(v) || json_array_size(v) == 0)
        return err_set(
            e, ST_UNSUPPORTED, "\"%s\": \"target_modules\" is not a list of module names", path);
    str_init(&text);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const char *name = json_string_value(json_array_get(v, i));
        str_printf(&text, "%s%s", i ? "," : "", name ? name : "");
    }
    *out = arena_strdup(a, text.data);
    str_release(&text);
    return ST_OK;
}

static enum status config_from(
    const json_t *doc, const char *path, struct arena *a, struct adapter_config *out, struct err *e)
{
    const json_t *r = json_object_get(doc, "r"), *alpha = json_object_get(doc, "lora_alpha");
    if (!json_is_object(doc))
        return err_set(e, ST_CORRUPT, "\"%s\" is not a JSON object", path);
    TRY(check_supported(doc, path, e));
    if (!json_is_integer(r) || !json_is_number(alpha))
        return err_set(e, ST_CORRUPT, "\"%s\": \"r\" and \"lora_alpha\" must be numbers", path);
    TRY(read_targets(doc, path, a, &out->targets, e));
    out->rank = json_integer_value(r);
    out->alpha = json_number_value(alpha);
    out->dropout = json_get_f64(doc, "lora_dropout", 0);
    out->rslora = json_get_bool(doc, "use_rslora", false);
    return ST_OK;
}

enum status
peft_config_read(const char *dir, struct arena *a, struct adapter_config *out, struct err *e)
{
    char path[1300];
    json_t *doc;
    TRY(json_read_file(
        path_join(dir, "adapter_config.json", path, sizeof path), CONFIG_MAX, &doc, e));
    enum status st = config_from(doc, path, a, out, e);
    json_decref(doc);
    return st;
}

static const char *file_name(const struct model *m, int var, char *buf, size_t cap)
{
    (void)snprintf(buf, cap, PREFIX "%s", m->vars->list.data[var].name);
    return buf;
}

enum status
peft_open(const char *dir, const struct model *m, struct tensorfile **out, struct err *e)
{
    char path[1300], name[1024];
    int n = model_adapter_count(m) * 2;
    struct tensorfile_match match = {0};
    struct arena a;
    TRY(tensorfile_open(path_join(dir, "adapter_model.safetensors", path, sizeof path), out, e));
    arena_init(&a);
    struct tensor_want *want = ARENA_ARRAY(&a, struct tensor_want, n + 1);
    for (int i = 0; i < n; i++) {
        const struct adapter *l = model_adapter_at(m, i / 2);
        int var = i % 2 ? l->b : l->a;
        want[i].name = arena_strdup(&a, file_name(m, var, name, sizeof name));
        want[i].shape = m->vars->list.data[var].shape;
    }
    enum status st = tensorfile_match(*out, want, (size_t)n, true, &match, e);
    tensorfile_match_release(&match);
    arena_release(&a);
    if (st != ST_OK) {
        tensorfile_close(*out);
        *out = NULL;
    }
    return st;
}

enum status
peft_read(struct tensorfile *f, const struct model *m, int var, void *dst, struct err *e)
{
    char name[1024];
    const struct ir_var *v = &m->vars->list.data[var];
    size_t bytes = (size_t)(shape_count(&v->shape) * dtype_size(v->dtype));
    return tensorfile_read(f, file_name(m, var, name, sizeof name), v->dtype, dst, bytes, e);
}

/* ---- writing ---- */

/* The last parts of the adapted modules' names, each once, as PEFT writes all-linear too. */
static json_t *targets_of(const struct model *m)
{
    json_t *list = json_array();
    for (int i = 0; i < model_adapter_count(m); i++) {
        const char *module = model_adapter_at(m, i)->module, *dot = strrchr(module, '.');
        const char *last = dot ? dot + 1 : module;
        bool there = false;
        for (size_t k = 0; k < json_array_size(list); k++)
            there = there || strcmp(json_string_value(json_array_get(list, k)), last) == 0;
        if (!there)
            (void)json_array_append_new(list, json_string(last));
    }
    return list;
}

/* Targets that were given by name are kept: their last parts may mean more modules. */
static json_t *targets_given(const struct model *m)
{
    const char *text = model_adapter_config(m)->targets;
    if (strcmp(text, "all-linear") == 0)
        return targets_of(m);
    json_t *list = json_array();
    for (const char *s = text; *s;) {
        const char *end = strchr(s, ',');
        size_t n = end ? (size_t)(end - s) : strlen(s);
        while (n && *s == ' ')
            s++, n--;
        while (n && s[n - 1] == ' ')
            n--;
        if (n)
            (void)json_array_append_new(list, json_stringn(s, n));
        s = end ? end + 1 : s + n + strlen(s + n);
    }
    return list;
}

static enum status
write_config(const char *dir, const struct model *m, const char *base, struct err *e)
{
    const struct adapter_config *c = model_adapter_config(m);
    char path[1300];
    json_t *doc = json_object();
    json_put_str(doc, "peft_type", "LORA");
    json_put(doc, "base_model_name_or_path", base ? json_string(base) : json_null());
    json_put(doc, "task_type", m->transformer ? json_string("CAUSAL_LM") : json_null());
    json_put(doc, "inference_mode", json_true());
    json_put_i64(doc, "r", c->rank);
    json_put(
        doc, "lora_alpha",
        c->alpha == (double)(int64_t)c->alpha ? json_integer((int64_t)c->alpha)
                                              : json_real(c->alpha));
    json_put_f64(doc, "lora_dropout", c->dropout);
    json_put(doc, "target_modules", targets_given(m));
    json_put(doc, "fan_in_fan_out", json_boolean(model_adapter_at(m, 0)->in_out));
    json_put_str(doc, "bias", "none");
    json_put(doc, "use_rslora", json_boolean(c->rslora));
    json_put(doc, "init_lora_weights", json_true());
    json_put(doc, "modules_to_save", json_null());
    json_put(doc, "rank_pattern", json_object());
    json_put(doc, "alpha_pattern", json_object());
    char *text = json_text(doc, true);
    enum status st =
        file_write(path_join(dir, "adapter_config.json", path, sizeof path), text, strlen(text), e);
    mem_free(text);
    json_decref(doc);
    return st;
}

enum status peft_save(
    const char *dir, const struct model *m, const char *base, const struct model_values *values,
    struct err *e)
{
    char path[1300], name[1024];
    int n = model_adapter_count(m) * 2;
    struct safetensors_meta meta = {"format", "pt"};
    struct arena a;
    arena_init(&a);
    struct safetensor *list = ARENA_ARRAY(&a, struct safetensor, n + 1);
    for (int i = 0; i < n; i++) {
        const struct adapter *l = model_adapter_at(m, i / 2);
        int var = i % 2 ? l->b : l->a;
        const struct ir_var *v = &m->vars->list.data[var];
        enum dtype type = v->dtype;
        list[i] = (struct safetensor){
            .name = arena_strdup(&a, file_name(m, var, name, sizeof name)),
            .rank = v->shape.rank,
            .data = values->at(var, &type, values->ctx)};
        list[i].type = type;
        memcpy(list[i].shape, v->shape.dim, sizeof *v->shape.dim * (size_t)v->shape.rank);
    }
    enum status st = dir_make(dir, e);
    if (st == ST_OK)
        st = safetensors_write(
            path_join(dir, "adapter_model.safetensors", path, sizeof path), list, (size_t)n, &meta,
            1, e);
    if (st == ST_OK)
        st = write_config(dir, m, base, e);
    arena_release(&a);
    return st;
}
