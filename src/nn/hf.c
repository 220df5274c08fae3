/* hf.c - opens a Hugging Face folder, finds the model's tensors in its files, and reads them. */
#include "base/env.h"
#include "nn/hf_int.h"
#include "nn/transformer_int.h"
#include "nn/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CONFIG_MAX = 4 << 20,
    INDEX_MAX = 64 << 20,
    FILES_MAX = 400, /* each stays open */
    NOTED_MAX = 6
};

const char *hf_dir(const struct hf *h)
{
    return h->dir;
}

const char *hf_notes(const struct hf *h)
{
    return h->notes.data;
}

void hf_close(struct hf *h)
{
    if (!h)
        return;
    for (size_t i = 0; i < h->files.n; i++)
        tensorfile_close(h->files.data[i].tensors);
    vec_release(&h->files);
    vec_release(&h->tensors);
    json_decref(h->config);
    mem_free(h->config_text);
    str_release(&h->notes);
    arena_release(&h->arena);
    mem_free(h);
}

static int by_name(const void *a, const void *b)
{
    const struct hf_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

struct hf_tensor *hf_find(const struct hf *h, const char *name)
{
    struct hf_tensor key = {.name = name};
    return h->tensors.n == 0 ? NULL
                             : bsearch(&key, h->tensors.data, h->tensors.n, sizeof key, by_name);
}

/* ---- the files ---- */

static const char *path_of(const struct hf *h, const char *name, char *buf, size_t cap)
{
    return path_join(h->dir, name, buf, cap);
}

static enum status file_open(struct hf *h, const char *name, int *index, struct err *e)
{
    char path[1200];
    struct hf_file f = {.name = arena_strdup(&h->arena, name)};
    for (size_t i = 0; i < h->files.n; i++) {
        if (str_eq(h->files.data[i].name, name)) {
            *index = (int)i;
            return ST_OK;
        }
    }
    if (h->files.n == FILES_MAX)
        return err_set(
            e, ST_UNSUPPORTED, "\"%s\" names more than %d files of weights", h->dir, FILES_MAX);
    TRY(tensorfile_open(path_of(h, name, path, sizeof path), &f.tensors, e));
    *index = (int)h->files.n;
    vec_push(&h->files, f);
    return ST_OK;
}

static void
tensor_add(struct hf *h, const char *name, const struct tensorfile_entry *entry, int file)
{
    struct hf_tensor t = {.name = name, .entry = entry, .file = file, .var = IR_NONE};
    vec_push(&h->tensors, t);
}

static enum status read_single(struct hf *h, const char *name, struct err *e)
{
    int file;
    size_t n;
    TRY(file_open(h, name, &file, e));
    const struct tensorfile_entry *list = tensorfile_list(h->files.data[file].tensors, &n);
    for (size_t i = 0; i < n; i++)
        tensor_add(h, list[i].name, &list[i], file);
    return ST_OK;
}

static enum status read_index_row(
    struct hf *h, const char *index, const char *name, const json_t *value, struct err *e)
{
    const char *shard = json_string_value(value);
    int file;
    if (!shard || !path_is_inside(shard) || strchr(shard, '/'))
        return err_set(
            e, ST_CORRUPT, "\"%s/%s\": tensor \"%.100s\" is in no file of the folder", h->dir,
            index, name);
    enum status st = file_open(h, shard, &file, e);
    if (st != ST_OK) {
        err_hint(e, "\"%s\" names it as the file of \"%.100s\".", index, name);
        return st;
    }
    const struct tensorfile_entry *entry = tensorfile_find(h->files.data[file].tensors, name);
    if (!entry)
        return err_set(
            e, ST_CORRUPT, "\"%s/%s\" holds no tensor \"%.100s\", which \"%s\" says it does",
            h->dir, shard, name, index);
    tensor_add(h, entry->name, entry, file);
    return ST_OK;
}

static enum status read_index(struct hf *h, const char *index, struct err *e)
{
    char path[1200];
    json_t *doc = NULL, *value;
    const char *name;
    TRY(json_read_file(path_of(h, index, path, sizeof path), INDEX_MAX, &doc, e));
    json_t *map = json_object_get(doc, "weight_map");
    enum status st =
        json_is_object(map) ? ST_OK : err_set(e, ST_CORRUPT, "\"%s\" has no \"weight_map\"", path);
    json_object_foreach(map, name, value)
    {
        if (st == ST_OK)
            st = read_index_row(h, index, name, value, e);
    }
    json_decref(doc);
    return st;
}

static enum status read_files(struct hf *h, struct err *e)
{
    static const struct {
        const char *name;
        enum status (*read)(struct hf *h, const char *name, struct err *e);
    } forms[] = {
        {"model.safetensors", read_single},
        {"model.safetensors.index.json", read_index},
        {"pytorch_model.bin", read_single},
        {"pytorch_model.bin.index.json", read_index}};
    char path[1200];
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (!file_exists(path_of(h, forms[i].name, path, sizeof path)))
            continue;
        TRY(forms[i].read(h, forms[i].name, e));
        if (h->tensors.n > 1)
            qsort(h->tensors.data, h->tensors.n, sizeof *h->tensors.data, by_name);
        return ST_OK;
    }
    return err_set(
        e, ST_NOT_FOUND,
        "\"%s\" has no weights: neither model.safetensors nor pytorch_model.bin, whole or with an "
        "index",
        h->dir);
}

enum status hf_open(const char *dir, bool head, struct hf **out, struct err *e)
{
    char path[1200];
    enum status st = ST_OK;
    if (!dir_exists(dir))
        return err_set(e, ST_NOT_FOUND, "\"%s\" is no folder", dir);
    struct hf *h = mem_alloc(sizeof *h);
    arena_init(&h->arena);
    str_init(&h->notes);
    h->dir = arena_strdup(&h->arena, dir);
    h->head = head;
    path_of(h, "config.json", path, sizeof path);
    TRY_OUT(file_read(path, CONFIG_MAX, &h->config_text, &h->config_bytes, e));
    TRY_OUT(json_parse(h->config_text, h->config_bytes, path, &h->config, e));
    st = hf_config_read(h, e);
    if (st == ST_OK)
        st = read_files(h, e);
    else
        err_prefix(e, "\"%s\"", dir);
    if (st == ST_OK) {
        *out = h;
        return ST_OK;
    }
out:
    hf_close(h);
    return st;
}

/* ---- which tensor is whose ---- */

static const char *prefix_of(const struct hf *h)
{
    static const char *const prefixes[FAMILY_COUNT] = {
#define FAMILY(id, text) [FAMILY_##id] = text,
#define PART(...)
#include "nn/transformer_names.def"
    };
    return prefixes[h->c.family];
}

/* Older files call a LayerNorm's weight and bias gamma and beta. */
static struct hf_tensor *find_aged(const struct hf *h, const char *name)
{
    char old[256];
    struct hf_tensor *t = hf_find(h, name);
    const char *tail = strstr(name, "LayerNorm.");
    if (t || !tail)
        return t;
    tail += strlen("LayerNorm.");
    (void)snprintf(
        old, sizeof old, "%.*s%s", (int)(tail - name), name,
        str_eq(tail, "weight") ? "gamma" : "beta");
    return hf_find(h, old);
}

/* A variable's tensor: under its name, or with the base model's prefix taken off or put on. */
static struct hf_tensor *find_any(const struct hf *h, const char *name)
{
    char longer[256];
    const char *prefix = prefix_of(h);
    struct hf_tensor *t = find_aged(h, name);
    if (t)
        return t;
    if (str_starts(name, prefix))
        return find_aged(h, name + strlen(prefix));
    (void)snprintf(longer, sizeof longer, "%s%s", prefix, name);
    return find_aged(h, longer);
}

static enum status fits(
    const struct hf *h, const struct hf_tensor *t, const char *name, const struct shape *s,
    struct err *e)
{
    char theirs[192], ours[192];
    const char *path = tensorfile_path(h->files.data[t->file].tensors);
    if (!shape_eq(&t->entry->shape, s))
        return err_set(
            e, ST_INVALID, "\"%s\": tensor \"%.100s\" is %s, and config.json makes it %s", path,
            t->name, shape_text(&t->entry->shape, theirs, sizeof theirs),
            shape_text(s, ours, sizeof ours));
    if (!dtype_floating(t->entry->type))
        return err_set(
            e, ST_UNSUPPORTED, "\"%s\": tensor \"%.100s\" (%s) is of type %s, not floating", path,
            t->name, name, dtype_name(t->entry->type));
    return ST_OK;
}

static enum status match_state(struct hf *h, const struct model *m, struct err *e)
{
    for (int i = 0; i < model_state_count(m); i++) {
        int var = model_state_var(m, i);
        const struct ir_var *v = &m->vars->list.data[var];
        struct hf_tensor *t = find_any(h, v->name);
        if (!t) {
            (void)err_set(
                e, ST_INVALID, "\"%s\": no tensor \"%s\" in its files (%zu tensors)", h->dir,
                v->name, h->tensors.n);
            if (str_starts(v->name, "lm_head.") || str_starts(v->name, "cls."))
                err_hint(e, "Set parameter 'head' to none where the folder has no head.");
            return ST_INVALID;
        }
        TRY(fits(h, t, v->name, &v->shape, e));
        t->var = var;
    }
    for (int i = 0; i < model_alias_count(m); i++) {
        int var;
        struct hf_tensor *t = find_any(h, model_alias(m, i, &var));
        if (!t)
            continue;
        TRY(fits(h, t, t->name, &m->vars->list.data[var].shape, e));
        t->var = var;
        t->alias = true;
    }
    return ST_OK;
}

/* Buffers that transformers computes, and what a class without that part leaves aside. */
static bool without_use(const struct hf *h, const char *name, bool *note)
{
    static const char *const buffers[] = {
        ".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq", "embeddings.position_ids"};
    static const char *const parts[] = {"bert.pooler.", "pooler.", "cls.seq_relationship."};
    *note = false;
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        if (str_ends(name, buffers[i]))
            return true;
    *note = true;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (h->c.family == FAMILY_BERT && h->head && str_starts(name, parts[i]))
            return true;
    return false;
}

static bool names_prefixed(const struct hf *h)
{
    const char *prefix = prefix_of(h);
    for (size_t i = 0; i < h->tensors.n; i++)
        if (str_starts(h->tensors.data[i].name, prefix))
            return true;
    return false;
}

/* With no head wanted, whatever lies beside the base model is some head. */
static bool is_some_head(const struct hf *h, const char *name, bool prefixed)
{
    if (h->head)
        return false;
    return prefixed ? !str_starts(name, prefix_of(h))
                    : str_starts(name, "lm_head.") || str_starts(name, "cls.");
}

static enum status match_rest(struct hf *h, struct err *e)
{
    bool prefixed = names_prefixed(h);
    size_t noted = 0;
    for (size_t i = 0; i < h->tensors.n; i++) {
        const char *name = h->tensors.data[i].name;
        bool note = true;
        if (h->tensors.data[i].var != IR_NONE)
            continue;
        if (!without_use(h, name, &note) && !is_some_head(h, name, prefixed))
            return err_set(
                e, ST_INVALID,
                "\"%s\": the model that config.json describes has no tensor \"%.100s\"", h->dir,
                name);
        if (note && noted++ < NOTED_MAX)
            str_printf(
                &h->notes, "%s%s%.100s", noted > 1 || !h->notes.n ? "" : "; ",
                noted == 1 ? "tensors without use in this model: " : ", ", name);
    }
    if (noted > NOTED_MAX)
        str_printf(&h->notes, " and %zu more", noted - NOTED_MAX);
    return ST_OK;
}

enum status
hf_model(struct hf *h, const char *node_id, struct ir_vars *vars, struct model **out, struct err *e)
{
    struct model *m = NULL;
    if (h->c.family == FAMILY_BERT && !h->head)
        h->c.pooler = find_any(h, "pooler.dense.weight") != NULL;
    TRY(transformer_make(&h->c, node_id, vars, &m, e));
    enum status st = match_state(h, m, e);
    if (st == ST_OK)
        st = match_rest(h, e);
    if (st != ST_OK) {
        err_node(e, node_id, m->kind->node_type);
        model_free(m);
        return st;
    }
    *out = m;
    return ST_OK;
}

/* ---- reading ---- */

static enum status finite_check(
    const struct hf *h, const struct hf_tensor *t, enum dtype type, const void *data, int64_t n,
    struct err *e)
{
    for (int64_t i = 0; i < n; i++) {
        double x = type == DT_F32 ? (double)((const float *)data)[i] : dtype_load(data, type, i);
        if (!isfinite(x))
            return err_set(
                e, ST_INVALID, "\"%s\": tensor \"%.100s\" is %g at element %lld",
                tensorfile_path(h->files.data[t->file].tensors), t->name, x, (long long)i);
    }
    return ST_OK;
}

/* The head's own copy must say what the embedding says: one tensor stands for both here. */
static enum status alias_check(
    struct hf *h, const struct hf_tensor *t, const struct ir_var *v, const void *data, size_t bytes,
    struct err *e)
{
    void *other = mem_try_alloc(bytes + 1);
    if (!other)
        return err_set(e, ST_OOM, "no host memory to compare \"%.100s\"", t->name);
    enum status st =
        tensorfile_read(h->files.data[t->file].tensors, t->name, v->dtype, other, bytes, e);
    if (st == ST_OK && memcmp(other, data, bytes) != 0) {
        st = err_set(
            e, ST_INVALID,
            "\"%s\": \"%.100s\" differs from \"%.100s\", and both are one tensor here", h->dir,
            t->name, v->name);
        err_hint(
            e,
            "Where the head was trained apart, set \"tie_word_embeddings\": false in config.json.");
    }
    mem_free(other);
    return st;
}

enum status hf_read(struct hf *h, const struct model *m, int var, void *dst, struct err *e)
{
    const struct ir_var *v = &m->vars->list.data[var];
    int64_t n = shape_count(&v->shape);
    size_t bytes = (size_t)(n * dtype_size(v->dtype));
    const struct hf_tensor *t = NULL, *alias = NULL;
    for (size_t i = 0; i < h->tensors.n; i++) {
        const struct hf_tensor *x = &h->tensors.data[i];
        if (x->var == var && x->alias)
            alias = x;
        else if (x->var == var)
            t = x;
    }
    if (!t)
        return err_set(e, ST_INTERNAL, "variable \"%s\" is not of \"%s\"", v->name, h->dir);
    TRY(tensorfile_read(h->files.data[t->file].tensors, t->name, v->dtype, dst, bytes, e));
    TRY(finite_check(h, t, v->dtype, dst, n, e));
    if (!alias || weights_same_storage(t->entry, alias->entry))
        return ST_OK;
    return alias_check(h, alias, v, dst, bytes, e);
}
