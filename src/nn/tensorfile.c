/* tensorfile.c - the named tensors of a file, whatever its format. */
#include "nn/tensorfile.h"

#include "base/mem.h"
#include "nn/ptfile.h"
#include "nn/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tensorfile {
    struct ptfile *pt;
    bool owned; /* the ptfile is ours to close */
    struct safetensors *safe;
    VEC(struct tensorfile_entry) entries;
    const struct tensorfile_entry **by_name;
    size_t skipped;
};

const struct tensorfile_entry *tensorfile_list(const struct tensorfile *f, size_t *n)
{
    *n = f->entries.n;
    return f->entries.data;
}

const char *tensorfile_path(const struct tensorfile *f)
{
    return f->pt ? ptfile_path(f->pt) : safetensors_path(f->safe);
}

size_t tensorfile_skipped(const struct tensorfile *f)
{
    return f->skipped;
}

static int by_name(const void *a, const void *b)
{
    const struct tensorfile_entry *x = *(const struct tensorfile_entry *const *)a;
    const struct tensorfile_entry *y = *(const struct tensorfile_entry *const *)b;
    return strcmp(x->name, y->name);
}

const struct tensorfile_entry *tensorfile_find(const struct tensorfile *f, const char *name)
{
    struct tensorfile_entry key = {.name = name}, *p = &key;
    const struct tensorfile_entry **hit =
        f->entries.n > 0 ? bsearch(&p, f->by_name, f->entries.n, sizeof *f->by_name, by_name)
                         : NULL;
    return hit ? *hit : NULL;
}

void tensorfile_close(struct tensorfile *f)
{
    if (!f)
        return;
    if (f->owned)
        ptfile_close(f->pt);
    safetensors_close(f->safe);
    vec_release(&f->entries);
    mem_free(f->by_name);
    mem_free(f);
}

static void index_names(struct tensorfile *f)
{
    f->by_name = mem_alloc(f->entries.n * sizeof *f->by_name);
    for (size_t i = 0; i < f->entries.n; i++)
        f->by_name[i] = &f->entries.data[i];
    if (f->entries.n > 1)
        qsort(f->by_name, f->entries.n, sizeof *f->by_name, by_name);
}

static void add_entry(
    struct tensorfile *f, const char *name, enum dtype type, const int64_t *dims, int rank,
    const struct pt_tensor *pt, const struct safetensor *safe)
{
    struct tensorfile_entry x = {name, type, shape_of(rank, dims), pt, safe};
    vec_push(&f->entries, x);
}

enum status tensorfile_from_pt(
    struct ptfile *pt, const struct pt_value *dict, struct tensorfile **out, struct err *e)
{
    if (!dict || dict->kind != PT_DICT)
        return err_set(
            e, ST_CORRUPT, "\"%s\": %s where a state dict should be", ptfile_path(pt),
            dict ? pt_kind_name(dict->kind) : "nothing");
    struct tensorfile *f = mem_alloc(sizeof *f);
    f->pt = pt;
    for (size_t i = 0; i < dict->dict.n; i++) {
        const struct pt_item *item = &dict->dict.data[i];
        const struct pt_tensor *t = item->value->kind == PT_TENSOR ? item->value->tensor : NULL;
        if (t && item->key->kind == PT_STRING)
            add_entry(f, item->key->text.data, t->type, t->shape, t->rank, t, NULL);
        else
            f->skipped++;
    }
    index_names(f);
    *out = f;
    return ST_OK;
}

/* The state dict in what a .pt file holds. */
static const struct pt_value *find_state_dict(const struct pt_value *root)
{
    static const char *const keys[] = {"model_state_dict", "state_dict", "model"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const struct pt_value *inner = pt_get(root, keys[i]);
        if (inner && inner->kind == PT_DICT)
            return inner;
    }
    return root;
}

static enum status open_pt(const char *path, struct tensorfile **out, struct err *e)
{
    struct ptfile *pt = NULL;
    TRY(ptfile_open(path, &pt, e));
    enum status st = tensorfile_from_pt(pt, find_state_dict(ptfile_root(pt)), out, e);
    if (st == ST_OK && (*out)->entries.n == 0 && (*out)->skipped > 0) {
        tensorfile_close(*out);
        *out = NULL;
        st = err_set(e, ST_CORRUPT, "\"%s\" holds no state dict", path);
        err_hint(
            e, "Expected a dict of tensors, or one under \"model_state_dict\" or \"state_dict\".");
    }
    if (st != ST_OK)
        ptfile_close(pt);
    else
        (*out)->owned = true;
    return st;
}

static enum status open_safe(const char *path, struct tensorfile **out, struct err *e)
{
    struct safetensors *safe = NULL;
    size_t n;
    TRY(safetensors_open(path, &safe, e));
    struct tensorfile *f = mem_alloc(sizeof *f);
    f->safe = safe;
    const struct safetensor *list = safetensors_list(safe, &n);
    for (size_t i = 0; i < n; i++)
        add_entry(f, list[i].name, list[i].type, list[i].shape, list[i].rank, NULL, &list[i]);
    index_names(f);
    *out = f;
    return ST_OK;
}

/* A safetensors header begins with "{" after its length, whose upper bytes are zero. */
static bool looks_like_safetensors(const unsigned char *head, size_t n)
{
    return n >= 9 && head[8] == '{' && head[5] == 0 && head[6] == 0 && head[7] == 0;
}

enum status tensorfile_open(const char *path, struct tensorfile **out, struct err *e)
{
    unsigned char head[16];
    FILE *in = fopen(path, "rb");
    if (!in)
        return err_errno(e, "cannot open \"%s\"", path);
    size_t n = fread(head, 1, sizeof head, in);
    (void)fclose(in);
    if (looks_like_safetensors(head, n) || str_ends(path, ".safetensors"))
        return open_safe(path, out, e);
    return open_pt(path, out, e);
}

enum status tensorfile_read(
    struct tensorfile *f, const char *name, enum dtype type, void *dst, size_t dst_bytes,
    struct err *e)
{
    const struct tensorfile_entry *x = tensorfile_find(f, name);
    if (!x)
        return err_set(e, ST_NOT_FOUND, "\"%s\" holds no tensor \"%s\"", tensorfile_path(f), name);
    if (x->safe)
        return safetensors_read(f->safe, x->safe, type, dst, dst_bytes, e);
    enum status st = ptfile_read(f->pt, x->pt, type, dst, dst_bytes, e);
    if (st != ST_OK)
        err_prefix(e, "tensor \"%.200s\"", name);
    return st;
}
