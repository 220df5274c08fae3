/* hf_save.c - writes an imported model back as a folder that transformers loads. */
#include "base/env.h"
#include "nn/hf_int.h"
#include "nn/model_int.h"
#include "nn/safetensors.h"

#include <stdio.h>
#include <string.h>

enum { COPIED_MAX = 256 << 20 };

/* ---- what goes into which file ---- */

struct shards {
    struct safetensor *list; /* in the order of the files they came from */
    size_t n;
    size_t *first; /* of each shard, and n at the end */
    size_t count;
    int64_t bytes; /* of all tensors */
};

static int64_t bytes_of(const struct safetensor *t)
{
    int64_t n = dtype_size(t->type);
    for (int i = 0; i < t->rank; i++)
        n *= t->shape[i];
    return n;
}

static void list_make(
    const struct hf *h, const struct model *m, const struct hf_save_options *o, struct shards *s)
{
    s->list = mem_alloc((h->tensors.n + 1) * sizeof *s->list);
    for (size_t i = 0; i < h->tensors.n; i++) {
        const struct hf_tensor *t = &h->tensors.data[i];
        if (t->var == IR_NONE)
            continue;
        const struct ir_var *v = &m->vars->list.data[t->var];
        struct safetensor *x = &s->list[s->n++];
        enum dtype held = v->dtype;
        struct shape shape = model_var_shape(m, t->var);
        const void *data = o->data(t->var, &held, o->ctx);
        *x = (struct safetensor){
            .name = t->name,
            .type = o->retype ? o->dtype : t->entry->type,
            .rank = shape.rank,
            .data = data,
            .make = o->make,
            .id = t->var,
            .ctx = o->ctx,
            .converted = true,
            .held = held};
        memcpy(x->shape, shape.dim, sizeof *shape.dim * (size_t)shape.rank);
        s->bytes += bytes_of(x);
    }
}

/* Greedy, in order: a shard is full when the next tensor would pass the limit. */
static void shards_make(struct shards *s, int64_t limit)
{
    int64_t at = 0;
    s->first = mem_alloc((s->n + 2) * sizeof *s->first);
    s->count = 1;
    for (size_t i = 0; i < s->n; i++) {
        int64_t bytes = bytes_of(&s->list[i]);
        if (at > 0 && at + bytes > limit) {
            s->first[s->count++] = i;
            at = 0;
        }
        at += bytes;
    }
    s->first[s->count] = s->n;
}

static void shard_name(const struct shards *s, size_t i, char *buf, size_t cap)
{
    if (s->count == 1)
        (void)snprintf(buf, cap, "model.safetensors");
    else
        (void)snprintf(buf, cap, "model-%05zu-of-%05zu.safetensors", i + 1, s->count);
}

static enum status write_index(const struct shards *s, const char *dir, struct err *e)
{
    char path[1200], name[64];
    json_t *root = json_object(), *meta = json_object(), *map = json_object();
    json_put_i64(meta, "total_size", s->bytes);
    json_put(root, "metadata", meta);
    json_put(root, "weight_map", map);
    for (size_t i = 0; i < s->count; i++) {
        shard_name(s, i, name, sizeof name);
        for (size_t k = s->first[i]; k < s->first[i + 1]; k++)
            json_put_str(map, s->list[k].name, name);
    }
    char *text = json_text(root, true);
    path_join(dir, "model.safetensors.index.json", path, sizeof path);
    enum status st = file_write(path, text, strlen(text), e);
    mem_free(text);
    json_decref(root);
    return st;
}

static enum status write_shards(const struct shards *s, const char *dir, struct err *e)
{
    const struct safetensors_meta meta = {"format", "pt"};
    char path[1200], name[64];
    for (size_t i = 0; i < s->count; i++) {
        shard_name(s, i, name, sizeof name);
        path_join(dir, name, path, sizeof path);
        TRY(safetensors_write(
            path, s->list + s->first[i], s->first[i + 1] - s->first[i], &meta, 1, e));
    }
    return s->count > 1 ? write_index(s, dir, e) : ST_OK;
}

/* ---- the other files ---- */

/* A list of one class, where the file had another. */
static bool change_architecture(json_t *config, const char *name)
{
    const json_t *old = json_object_get(config, "architectures");
    if (!old || str_eq(json_string_value(json_array_get(old, 0)), name))
        return false;
    json_t *list = json_array();
    (void)json_array_append_new(list, json_string(name));
    json_put(config, "architectures", list);
    return true;
}

static bool change_dtype(json_t *config, const struct hf_save_options *o)
{
    const char *key = json_object_get(config, "dtype") ? "dtype" : "torch_dtype";
    const char *old = json_get_str(config, key, "float32");
    if (!o->retype || str_eq(old, dtype_name(o->dtype)))
        return false;
    json_put_str(config, key, dtype_name(o->dtype));
    return true;
}

/* The file's own bytes, unless something in it changed. */
static enum status write_config(const struct hf *h, const struct hf_save_options *o, struct err *e)
{
    char path[1200];
    json_t *config = json_deep_copy(h->config);
    bool changed = change_architecture(config, h->architecture);
    changed = change_dtype(config, o) || changed;
    path_join(o->dir, "config.json", path, sizeof path);
    char *text = changed ? json_text(config, true) : NULL;
    enum status st =
        file_write(path, text ? text : h->config_text, text ? strlen(text) : h->config_bytes, e);
    mem_free(text);
    json_decref(config);
    return st;
}

static enum status copy_companions(const struct hf *h, const char *dir, struct err *e)
{
    static const char *const names[] = {
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "vocab.txt",
        "tokenizer.model",
        "generation_config.json",
        "chat_template.json",
        "chat_template.jinja"};
    char from[1200], to[1200], *data;
    size_t n;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        path_join(h->dir, names[i], from, sizeof from);
        if (!file_exists(from))
            continue;
        TRY(file_read(from, COPIED_MAX, &data, &n, e));
        enum status st = file_write(path_join(dir, names[i], to, sizeof to), data, n, e);
        mem_free(data);
        TRY(st);
    }
    return ST_OK;
}

/* transformers would take weights of another form that an earlier write left in the folder. */
static enum status stale_check(const struct shards *s, const char *dir, struct err *e)
{
    char path[1200];
    path_join(dir, "model.safetensors", path, sizeof path);
    if (s->count == 1 || !file_exists(path))
        return ST_OK;
    (void)err_set(
        e, ST_INVALID, "\"%s\" would be loaded in place of the shards written beside it", path);
    err_hint(e, "Remove it, or save into another folder.");
    return ST_INVALID;
}

enum status
hf_save(const struct hf *h, const struct model *m, const struct hf_save_options *o, struct err *e)
{
    struct shards s = {0};
    enum status st = ST_OK;
    if (str_eq(h->dir, o->dir))
        return err_set(e, ST_INVALID, "\"%s\" is the folder that the model was read from", o->dir);
    TRY(dir_make(o->dir, e));
    list_make(h, m, o, &s);
    shards_make(&s, o->shard_bytes);
    TRY_OUT(stale_check(&s, o->dir, e));
    TRY_OUT(write_shards(&s, o->dir, e));
    TRY_OUT(copy_companions(h, o->dir, e));
    TRY_OUT(write_config(h, o, e));
out:
    mem_free(s.list);
    mem_free(s.first);
    return st;
}
