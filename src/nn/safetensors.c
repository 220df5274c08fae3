/* safetensors.c - reading and writing safetensors files, one tensor at a time. */
#include "nn/safetensors.h"

#include "base/env.h"
#include "base/json.h"
#include "base/str.h"
#include "nn/safetensors_int.h"
#include "nn/tensorfile_types.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct safetensors {
    FILE *in;
    char *path;
    uint64_t data_begin;
    struct safetensors_header header;
    const struct safetensor **by_name;
};

const char *safetensors_path(const struct safetensors *f)
{
    return f->path;
}

const struct safetensor *safetensors_list(const struct safetensors *f, size_t *n)
{
    *n = f->header.tensors.n;
    return f->header.tensors.data;
}

const struct safetensors_meta *safetensors_metadata(const struct safetensors *f, size_t *n)
{
    *n = f->header.meta.n;
    return f->header.meta.data;
}

static int by_name(const void *a, const void *b)
{
    const struct safetensor *x = *(const struct safetensor *const *)a;
    const struct safetensor *y = *(const struct safetensor *const *)b;
    return strcmp(x->name, y->name);
}

const struct safetensor *safetensors_find(const struct safetensors *f, const char *name)
{
    struct safetensor key = {.name = name}, *p = &key;
    const struct safetensor **hit =
        f->header.tensors.n > 0
            ? bsearch(&p, f->by_name, f->header.tensors.n, sizeof *f->by_name, by_name)
            : NULL;
    return hit ? *hit : NULL;
}

void safetensors_close(struct safetensors *f)
{
    if (!f)
        return;
    if (f->in)
        (void)fclose(f->in);
    safetensors_header_release(&f->header);
    mem_free(f->by_name);
    mem_free(f->path);
    mem_free(f);
}

static enum status read_exactly(struct safetensors *f, void *dst, size_t n, struct err *e)
{
    errno = 0;
    if (fread(dst, 1, n, f->in) == n)
        return ST_OK;
    if (ferror(f->in))
        return err_errno(e, "could not read \"%s\"", f->path);
    return err_set(e, ST_CORRUPT, "\"%s\" is cut short", f->path);
}

static enum status file_bytes(struct safetensors *f, uint64_t *n, struct err *e)
{
    off_t end = fseeko(f->in, 0, SEEK_END) == 0 ? ftello(f->in) : -1;
    if (end < 0 || fseeko(f->in, 0, SEEK_SET) != 0)
        return err_errno(e, "could not read \"%s\"", f->path);
    *n = (uint64_t)end;
    return ST_OK;
}

static enum status read_header(struct safetensors *f, struct err *e)
{
    uint64_t total = 0, n = 0;
    unsigned char length[8];
    TRY(file_bytes(f, &total, e));
    if (total < sizeof length)
        return err_set(e, ST_CORRUPT, "\"%s\" is too short to be a safetensors file", f->path);
    TRY(read_exactly(f, length, sizeof length, e));
    for (int i = 0; i < 8; i++)
        n |= (uint64_t)length[i] << (8 * i);
    if (n > total - sizeof length)
        return err_set(
            e, ST_CORRUPT, "\"%s\": the header claims %llu bytes, more than the file has", f->path,
            (unsigned long long)n);
    if (n > SAFETENSORS_HEADER_MAX)
        return err_set(
            e, ST_UNSUPPORTED, "\"%s\": the header has %llu bytes, more than %d", f->path,
            (unsigned long long)n, SAFETENSORS_HEADER_MAX);
    char *json = mem_try_alloc((size_t)n + 1);
    if (!json)
        return err_set(e, ST_OOM, "no host memory for the header of \"%s\"", f->path);
    enum status st = read_exactly(f, json, (size_t)n, e);
    if (st == ST_OK) {
        f->data_begin = sizeof length + n;
        st = safetensors_header_read(json, (size_t)n, total - f->data_begin, &f->header, e);
        if (st != ST_OK)
            err_prefix(e, "\"%s\"", f->path);
    }
    mem_free(json);
    return st;
}

enum status safetensors_open(const char *path, struct safetensors **out, struct err *e)
{
    FILE *in = fopen(path, "rb");
    if (!in)
        return err_errno(e, "cannot open \"%s\"", path);
    struct safetensors *f = mem_alloc(sizeof *f);
    f->in = in;
    f->path = mem_strdup(path);
    enum status st = read_header(f, e);
    if (st != ST_OK) {
        safetensors_close(f);
        return st;
    }
    size_t n = f->header.tensors.n;
    f->by_name = mem_alloc(n * sizeof *f->by_name);
    for (size_t i = 0; i < n; i++)
        f->by_name[i] = &f->header.tensors.data[i];
    if (n > 1)
        qsort(f->by_name, n, sizeof *f->by_name, by_name);
    *out = f;
    return ST_OK;
}

static enum status read_converted(
    struct safetensors *f, const struct safetensor *t, enum dtype type, char *dst, struct err *e)
{
    _Alignas(16) char part[16384];
    size_t size = (size_t)dtype_size(t->type), step = sizeof part / size;
    size_t n = t->size_bytes / size;
    for (size_t i = 0; i < n; i += step) {
        size_t m = n - i < step ? n - i : step;
        TRY(read_exactly(f, part, m * size, e));
        dtype_convert(type, dst + i * (size_t)dtype_size(type), t->type, part, m);
    }
    return ST_OK;
}

enum status safetensors_read(
    struct safetensors *f, const struct safetensor *t, enum dtype type, void *dst, size_t dst_bytes,
    struct err *e)
{
    ASSERT(dst_bytes == t->size_bytes / (size_t)dtype_size(t->type) * (size_t)dtype_size(type));
    if (!dtype_converts(type, t->type))
        return err_set(
            e, ST_UNSUPPORTED, "\"%s\": tensor \"%.100s\" of %s cannot be read as %s", f->path,
            t->name, dtype_name(t->type), dtype_name(type));
    if (fseeko(f->in, (off_t)(f->data_begin + t->begin), SEEK_SET) != 0)
        return err_errno(e, "could not read \"%s\"", f->path);
    if (type == t->type)
        return dst_bytes ? read_exactly(f, dst, dst_bytes, e) : ST_OK;
    return read_converted(f, t, type, dst, e);
}

/* Sizes filled in, larger elements first, otherwise as given. */
static enum status
write_order(const struct safetensor *tensors, size_t n, struct safetensor *sorted, struct err *e)
{
    size_t k = 0;
    uint64_t at = 0;
    for (int size = 8; size > 0; size /= 2) {
        for (size_t i = 0; i < n; i++) {
            struct safetensor t = tensors[i];
            if (dtype_size(t.type) != size)
                continue;
            int64_t elements = shape_elements(t.shape, t.rank);
            if (elements < 0 || t.rank > SAFETENSORS_RANK_MAX)
                return err_set(e, ST_INTERNAL, "tensor \"%.100s\" has a bad shape", t.name);
            t.size_bytes = (size_t)elements * (size_t)size;
            t.begin = at;
            at += t.size_bytes;
            sorted[k++] = t;
        }
    }
    return ST_OK;
}

static json_t *tensor_entry(const struct safetensor *t)
{
    json_t *entry = json_object(), *shape = json_array(), *offsets = json_array();
    for (int d = 0; d < t->rank; d++)
        (void)json_array_append_new(shape, json_integer(t->shape[d]));
    (void)json_array_append_new(offsets, json_integer((json_int_t)t->begin));
    (void)json_array_append_new(offsets, json_integer((json_int_t)(t->begin + t->size_bytes)));
    json_put_str(entry, "dtype", dtype_safetensors_name(t->type));
    json_put(entry, "shape", shape);
    json_put(entry, "data_offsets", offsets);
    return entry;
}

/* The header with its length before it, padded so that the tensors begin at a multiple of 8. */
static enum status make_header(
    const struct safetensor *t, size_t n, const struct safetensors_meta *meta, size_t n_meta,
    struct str *out, struct err *e)
{
    json_t *root = json_object(), *texts = json_object();
    enum status st = ST_OK;
    for (size_t i = 0; i < n_meta; i++)
        json_put_str(texts, meta[i].key, meta[i].value);
    if (n_meta > 0)
        json_put(root, "__metadata__", texts);
    else
        json_decref(texts);
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        if (str_eq(t[i].name, "__metadata__") || json_object_get(root, t[i].name))
            st = err_set(
                e, ST_INVALID, "two tensors would be called \"%.100s\" in the file", t[i].name);
        else
            json_put(root, t[i].name, tensor_entry(&t[i]));
    }
    char *text = json_text(root, false);
    size_t length = strlen(text), padded = (length + 7) & ~(size_t)7;
    unsigned char count[8];
    for (int i = 0; i < 8; i++)
        count[i] = (unsigned char)((uint64_t)padded >> (8 * i));
    str_add_n(out, (const char *)count, 8);
    str_add_n(out, text, length);
    str_add_n(out, "       ", padded - length);
    mem_free(text);
    json_decref(root);
    return st;
}

/* The tensor's bytes, converted piece by piece where they have another type in memory. */
static bool write_tensor(FILE *out, const struct safetensor *t)
{
    _Alignas(16) char part[16384];
    size_t size = (size_t)dtype_size(t->type), step = sizeof part / size;
    if (t->size_bytes == 0)
        return true;
    const char *data = t->data || !t->make ? t->data : t->make(t->id, t->ctx);
    if (!data) {
        errno = ENOMEM;
        return false;
    }
    if (!t->converted || t->held == t->type)
        return fwrite(data, 1, t->size_bytes, out) == t->size_bytes;
    size_t n = t->size_bytes / size, held = (size_t)dtype_size(t->held);
    for (size_t i = 0; i < n; i += step) {
        size_t m = n - i < step ? n - i : step;
        dtype_convert(t->type, part, t->held, data + i * held, m);
        if (fwrite(part, size, m, out) != m)
            return false;
    }
    return true;
}

static enum status write_all(
    const char *path, const struct str *header, const struct safetensor *t, size_t n, struct err *e)
{
    struct file_whole file;
    TRY(file_whole_begin(&file, path, e));
    bool good = fwrite(header->data, 1, header->n, file.out) == header->n;
    for (size_t i = 0; i < n && good; i++)
        good = write_tensor(file.out, &t[i]);
    if (good)
        return file_whole_commit(&file, e);
    enum status st = err_errno(e, "could not write \"%s\"", path);
    file_whole_abort(&file);
    return st;
}

enum status safetensors_write(
    const char *path, const struct safetensor *tensors, size_t n,
    const struct safetensors_meta *meta, size_t n_meta, struct err *e)
{
    struct safetensor *sorted = mem_alloc((n + 1) * sizeof *sorted);
    struct str header;
    enum status st;
    str_init(&header);
    TRY_OUT(write_order(tensors, n, sorted, e));
    TRY_OUT(make_header(sorted, n, meta, n_meta, &header, e));
    TRY_OUT(write_all(path, &header, sorted, n, e));
out:
    str_release(&header);
    mem_free(sorted);
    return st;
}
