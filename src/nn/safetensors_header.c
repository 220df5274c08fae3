/* safetensors_header.c - reads the header of a safetensors file and checks all that it claims. */
#include "base/json.h"
#include "base/str.h"
#include "nn/safetensors_int.h"
#include "nn/tensorfile_types.h"

#include <stdlib.h>
#include <string.h>

static bool parse_dtype(const char *name, enum dtype *out)
{
    for (int t = 0; t < DT_COUNT; t++) {
        if (str_eq(name, dtype_safetensors_name((enum dtype)t))) {
            *out = (enum dtype)t;
            return true;
        }
    }
    return false;
}

static enum status read_shape(const json_t *shape, struct safetensor *t, struct err *e)
{
    if (!json_is_array(shape))
        return err_set(e, ST_CORRUPT, "tensor \"%.100s\" has no shape", t->name);
    if (json_array_size(shape) > SAFETENSORS_RANK_MAX)
        return err_set(
            e, ST_UNSUPPORTED, "tensor \"%.100s\" has %zu dimensions, more than %d", t->name,
            json_array_size(shape), SAFETENSORS_RANK_MAX);
    t->rank = (int)json_array_size(shape);
    for (int d = 0; d < t->rank; d++) {
        const json_t *size = json_array_get(shape, (size_t)d);
        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return err_set(
                e, ST_CORRUPT, "tensor \"%.100s\" has a size that is no whole number", t->name);
        t->shape[d] = json_integer_value(size);
    }
    int64_t n = shape_elements(t->shape, t->rank);
    if (n < 0)
        return err_set(e, ST_CORRUPT, "tensor \"%.100s\" has too many elements", t->name);
    t->size_bytes = (size_t)n * (size_t)dtype_size(t->type);
    return ST_OK;
}

static enum status
read_offsets(const json_t *offsets, uint64_t data_bytes, struct safetensor *t, struct err *e)
{
    const json_t *b = json_array_get(offsets, 0), *x = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(b) || !json_is_integer(x))
        return err_set(e, ST_CORRUPT, "tensor \"%.100s\" has no data_offsets", t->name);
    int64_t begin = json_integer_value(b), end = json_integer_value(x);
    if (begin < 0 || end < begin || (uint64_t)end > data_bytes)
        return err_set(
            e, ST_CORRUPT, "tensor \"%.100s\" lies at bytes %lld to %lld, of %llu in the file",
            t->name, (long long)begin, (long long)end, (unsigned long long)data_bytes);
    if ((uint64_t)(end - begin) != t->size_bytes)
        return err_set(
            e, ST_CORRUPT, "tensor \"%.100s\" has %lld bytes, but its shape needs %zu", t->name,
            (long long)(end - begin), t->size_bytes);
    t->begin = (uint64_t)begin;
    return ST_OK;
}

static enum status
read_tensor(const json_t *entry, uint64_t data_bytes, struct safetensor *t, struct err *e)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    if (!dtype)
        return err_set(e, ST_CORRUPT, "tensor \"%.100s\" has no dtype", t->name);
    if (!parse_dtype(dtype, &t->type))
        return err_set(
            e, ST_UNSUPPORTED, "tensor \"%.100s\" has the unknown dtype \"%.40s\"", t->name, dtype);
    TRY(read_shape(json_object_get(entry, "shape"), t, e));
    TRY(read_offsets(json_object_get(entry, "data_offsets"), data_bytes, t, e));
    if (json_object_size(entry) != 3)
        return err_set(
            e, ST_CORRUPT, "tensor \"%.100s\" has fields beside dtype, shape and data_offsets",
            t->name);
    return ST_OK;
}

static enum status read_metadata(json_t *object, struct safetensors_header *h, struct err *e)
{
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return err_set(e, ST_CORRUPT, "\"__metadata__\" is not an object");
    json_object_foreach(object, key, value)
    {
        if (!json_is_string(value))
            return err_set(e, ST_CORRUPT, "\"__metadata__\": \"%.100s\" is not a string", key);
        struct safetensors_meta m = {
            arena_strdup(&h->arena, key), arena_strdup(&h->arena, json_string_value(value))};
        vec_push(&h->meta, m);
    }
    return ST_OK;
}

static int by_place(const void *a, const void *b)
{
    const struct safetensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->size_bytes != y->size_bytes) /* empty ones before the one that begins there */
        return x->size_bytes < y->size_bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int by_meta_key(const void *a, const void *b)
{
    return strcmp(
        ((const struct safetensors_meta *)a)->key, ((const struct safetensors_meta *)b)->key);
}

/* Every byte belongs to exactly one tensor. */
static enum status check_cover(struct safetensors_header *h, uint64_t data_bytes, struct err *e)
{
    uint64_t at = 0;
    const char *before = "the header";
    for (size_t i = 0; i < h->tensors.n; i++) {
        const struct safetensor *t = &h->tensors.data[i];
        if (t->begin < at)
            return err_set(e, ST_CORRUPT, "tensor \"%.100s\" overlaps \"%.100s\"", t->name, before);
        if (t->begin > at)
            return err_set(
                e, ST_CORRUPT, "%llu bytes before tensor \"%.100s\" belong to no tensor",
                (unsigned long long)(t->begin - at), t->name);
        at += t->size_bytes;
        before = t->name;
    }
    if (at != data_bytes)
        return err_set(
            e, ST_CORRUPT, "%llu bytes after the last tensor (\"%.100s\") belong to no tensor",
            (unsigned long long)(data_bytes - at), before);
    return ST_OK;
}

static enum status
read_entries(json_t *root, uint64_t data_bytes, struct safetensors_header *h, struct err *e)
{
    const char *name;
    json_t *entry;
    if (!json_is_object(root))
        return err_set(e, ST_CORRUPT, "the header is not a JSON object");
    json_object_foreach(root, name, entry)
    {
        if (str_eq(name, "__metadata__")) {
            TRY(read_metadata(entry, h, e));
            continue;
        }
        struct safetensor t = {.name = arena_strdup(&h->arena, name)};
        TRY(read_tensor(entry, data_bytes, &t, e));
        vec_push(&h->tensors, t);
    }
    if (h->tensors.n > 1)
        qsort(h->tensors.data, h->tensors.n, sizeof *h->tensors.data, by_place);
    if (h->meta.n > 1)
        qsort(h->meta.data, h->meta.n, sizeof *h->meta.data, by_meta_key);
    return check_cover(h, data_bytes, e);
}

enum status safetensors_header_read(
    const char *json, size_t n, uint64_t data_bytes, struct safetensors_header *h, struct err *e)
{
    json_t *root = NULL;
    *h = (struct safetensors_header){0};
    arena_init(&h->arena);
    TRY(json_parse(json, n, "header", &root, e));
    enum status st = read_entries(root, data_bytes, h, e);
    json_decref(root);
    return st;
}

void safetensors_header_release(struct safetensors_header *h)
{
    vec_release(&h->tensors);
    vec_release(&h->meta);
    arena_release(&h->arena);
}
