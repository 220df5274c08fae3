/* ptfile_tool.c - shows and rewrites tensor files, for the tests against PyTorch.
 *
 *     ptfile_tool dump FILE.pt          the whole tree as JSON
 *     ptfile_tool list FILE DTYPE       name, type, shape and checksum of each tensor, read as
 * DTYPE
 *                                       ("same": as in the file), one JSON object a line
 *     ptfile_tool copy IN.pt OUT.pt     reads everything and writes it again
 *     ptfile_tool safe IN OUT           the tensors of IN as a safetensors file
 *
 * A tensor is {"tensor": dtype, "shape": [], "crc": n, "storage": key}; other values are
 * {"kind": value} where JSON has no form of their own.
 */
#include "base/json.h"
#include "base/mem.h"
#include "nn/ptfile.h"
#include "nn/safetensors.h"
#include "nn/tensorfile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static struct arena memory; /* tensors, until the end of the program */

static json_t *dims_json(const int64_t *dims, int rank)
{
    json_t *list = json_array();
    for (int d = 0; d < rank; d++)
        (void)json_array_append_new(list, json_integer(dims[d]));
    return list;
}

static json_t *tagged(const char *tag, json_t *value)
{
    json_t *object = json_object();
    json_put(object, tag, value);
    return object;
}

static enum status
tensor_json(struct ptfile *f, const struct pt_tensor *t, json_t **out, struct err *e)
{
    size_t n = (size_t)pt_tensor_elements(t) * (size_t)dtype_size(t->type);
    unsigned char *data = arena_alloc(&memory, n);
    enum status st = ptfile_read(f, t, t->type, data, n, e);
    if (st == ST_OK) {
        *out = tagged("tensor", json_string(dtype_name(t->type)));
        json_put(*out, "shape", dims_json(t->shape, t->rank));
        json_put_i64(*out, "crc", (int64_t)crc32(0, data, (unsigned)n));
        json_put_str(*out, "storage", t->storage->key);
    }
    return st;
}

static enum status
value_json(struct ptfile *f, const struct pt_value *v, json_t **out, struct err *e);

static enum status
dict_json(struct ptfile *f, const struct pt_value *v, json_t **out, struct err *e)
{
    json_t *list = json_array(), *key = NULL, *value = NULL;
    for (size_t i = 0; i < v->dict.n; i++) {
        TRY(value_json(f, v->dict.data[i].key, &key, e));
        TRY(value_json(f, v->dict.data[i].value, &value, e));
        (void)json_array_append_new(list, key);
        (void)json_array_append_new(list, value);
    }
    static const char *const classes[] = {"dict", "OrderedDict", "Counter"};
    *out = tagged(classes[v->dict.class], list);
    return ST_OK;
}

static enum status seq_json(struct ptfile *f, const struct pt_value *v, json_t **out, struct err *e)
{
    json_t *list = json_array(), *item = NULL;
    for (size_t i = 0; i < v->seq.n; i++) {
        TRY(value_json(f, v->seq.data[i], &item, e));
        (void)json_array_append_new(list, item);
    }
    *out = v->kind == PT_LIST ? list : tagged("tuple", list);
    return ST_OK;
}

static json_t *bytes_json(const struct pt_value *v)
{
    json_t *list = json_array();
    for (size_t i = 0; i < v->text.n; i++)
        (void)json_array_append_new(list, json_integer((unsigned char)v->text.data[i]));
    return tagged("bytes", list);
}

static enum status
value_json(struct ptfile *f, const struct pt_value *v, json_t **out, struct err *e)
{
    switch (v->kind) {
    case PT_NONE:
        *out = json_null();
        break;
    case PT_BOOL:
        *out = json_boolean(v->truth);
        break;
    case PT_INT:
        *out = json_integer(v->integer);
        break;
    case PT_FLOAT:
        *out = json_f64(v->real);
        break;
    case PT_STRING:
        *out = json_stringn(v->text.data, v->text.n);
        break;
    case PT_BYTES:
        *out = bytes_json(v);
        break;
    case PT_LIST:
    case PT_TUPLE:
        return seq_json(f, v, out, e);
    case PT_DICT:
        return dict_json(f, v, out, e);
    case PT_TENSOR:
        return tensor_json(f, v->tensor, out, e);
    case PT_DTYPE:
        *out = tagged("dtype", json_string(dtype_name(v->dtype)));
        break;
    case PT_GLOBAL:
    case PT_STORAGE:
        return err_set(e, ST_INTERNAL, "%s in a finished tree", pt_kind_name(v->kind));
    }
    return ST_OK;
}

static enum status dump(const char *path, struct err *e)
{
    struct ptfile *f = NULL;
    json_t *tree = NULL;
    TRY(ptfile_open(path, &f, e));
    enum status st = value_json(f, ptfile_root(f), &tree, e);
    if (st == ST_OK) {
        char *text = json_text(tree, false);
        (void)puts(text);
        mem_free(text);
        json_decref(tree);
    }
    ptfile_close(f);
    return st;
}

static enum status list(const char *path, const char *as, struct err *e)
{
    struct tensorfile *f = NULL;
    size_t n;
    enum status st = ST_OK;
    TRY(tensorfile_open(path, &f, e));
    const struct tensorfile_entry *x = tensorfile_list(f, &n);
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        enum dtype type = x[i].type;
        (void)dtype_parse(as, &type);
        size_t bytes = (size_t)shape_count(&x[i].shape) * (size_t)dtype_size(type);
        unsigned char *data = arena_alloc(&memory, bytes);
        st = tensorfile_read(f, x[i].name, type, data, bytes, e);
        json_t *line = tagged("name", json_string(x[i].name));
        json_put_str(line, "dtype", dtype_name(x[i].type));
        json_put(line, "shape", dims_json(x[i].shape.dim, x[i].shape.rank));
        json_put_i64(line, "crc", (int64_t)crc32(0, data, (unsigned)bytes));
        char *text = json_text(line, false);
        if (st == ST_OK)
            (void)puts(text);
        mem_free(text);
        json_decref(line);
    }
    tensorfile_close(f);
    return st;
}

/* Brings every storage below `v` into memory. */
static enum status load(struct ptfile *f, struct pt_value *v, struct err *e)
{
    if (v->kind == PT_TENSOR && !v->tensor->storage->data) {
        void *data = arena_alloc(&memory, v->tensor->storage->size_bytes);
        TRY(ptfile_read_storage(f, v->tensor->storage, data, e));
        v->tensor->storage->data = data;
    }
    if (v->kind == PT_LIST || v->kind == PT_TUPLE) {
        for (size_t i = 0; i < v->seq.n; i++)
            TRY(load(f, v->seq.data[i], e));
    }
    if (v->kind == PT_DICT) {
        for (size_t i = 0; i < v->dict.n; i++)
            TRY(load(f, v->dict.data[i].value, e));
        if (v->dict.attributes)
            TRY(load(f, v->dict.attributes, e));
    }
    return ST_OK;
}

static enum status copy(const char *from, const char *to, struct err *e)
{
    struct ptfile *f = NULL;
    TRY(ptfile_open(from, &f, e));
    enum status st = load(f, ptfile_root(f), e);
    if (st == ST_OK)
        st = ptfile_write(to, ptfile_root(f), e);
    ptfile_close(f);
    return st;
}

static enum status safe(const char *from, const char *to, struct err *e)
{
    struct tensorfile *f = NULL;
    size_t n;
    enum status st = ST_OK;
    TRY(tensorfile_open(from, &f, e));
    const struct tensorfile_entry *x = tensorfile_list(f, &n);
    struct safetensor *t = mem_alloc(n * sizeof *t);
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        size_t bytes = (size_t)shape_count(&x[i].shape) * (size_t)dtype_size(x[i].type);
        void *data = arena_alloc(&memory, bytes);
        st = tensorfile_read(f, x[i].name, x[i].type, data, bytes, e);
        t[i] = (struct safetensor){
            .name = x[i].name, .type = x[i].type, .rank = x[i].shape.rank, .data = data};
        memcpy(t[i].shape, x[i].shape.dim, sizeof t[i].shape);
    }
    struct safetensors_meta meta = {"format", "pt"};
    if (st == ST_OK)
        st = safetensors_write(to, t, n, &meta, 1, e);
    mem_free(t);
    tensorfile_close(f);
    return st;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    enum status st = ST_USAGE;
    if (argc == 3 && strcmp(argv[1], "dump") == 0)
        st = dump(argv[2], &e);
    else if (argc == 4 && strcmp(argv[1], "list") == 0)
        st = list(argv[2], argv[3], &e);
    else if (argc == 4 && strcmp(argv[1], "copy") == 0)
        st = copy(argv[2], argv[3], &e);
    else if (argc == 4 && strcmp(argv[1], "safe") == 0)
        st = safe(argv[2], argv[3], &e);
    if (st != ST_OK)
        (void)fprintf(stderr, "%s: %s\n", status_code(st), e.text);
    arena_release(&memory);
    return status_exit(st);
}
