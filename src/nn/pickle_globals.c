/* pickle_globals.c - the functions and classes that a pickle may name, and what they give. */
#include "nn/pickle_int.h"

#include <string.h>

static bool same(const char *name, const char *s, size_t n)
{
    return strlen(name) == n && memcmp(name, s, n) == 0;
}

static enum status
refuse(const char *module, size_t module_n, const char *name, size_t name_n, struct err *e)
{
    char m[128], x[128];
    err_set(
        e, ST_UNSUPPORTED, "holds \"%s.%s\", which is neither a tensor nor a plain value",
        printable(module, module_n, m, sizeof m), printable(name, name_n, x, sizeof x));
    err_hint(
        e, "Code from files is never run: save the weights alone, as in "
           "torch.save(model.state_dict(), path).");
    return ST_UNSUPPORTED;
}

static struct pt_value *global_new(struct machine *m, int global)
{
    struct pt_value *v = ARENA_NEW(m->a, struct pt_value);
    v->kind = PT_GLOBAL;
    v->global = global;
    return v;
}

static struct pt_value *dtype_new(struct machine *m, enum dtype t)
{
    struct pt_value *v = ARENA_NEW(m->a, struct pt_value);
    v->kind = PT_DTYPE;
    v->dtype = t;
    return v;
}

enum status machine_global(
    struct machine *m, const char *module, size_t module_n, const char *name, size_t name_n,
    struct pt_value **out, struct err *e)
{
    static const struct {
        const char *module, *name;
    } table[] = {
#define X(id, module, name, call) {module, name},
#include "nn/pickle_globals.def"
#undef X
    };
    for (int g = 0; g < PG_STORAGE; g++) {
        if (same(table[g].module, module, module_n) && same(table[g].name, name, name_n)) {
            *out = global_new(m, g);
            return ST_OK;
        }
    }
    bool torch = same("torch", module, module_n);
    for (int t = 0; t < DT_COUNT && torch; t++) {
        if (same(dtype_storage_class((enum dtype)t), name, name_n)) {
            *out = global_new(m, PG_STORAGE + t);
            return ST_OK;
        }
        if (same(dtype_name((enum dtype)t), name, name_n)) {
            *out = dtype_new(m, (enum dtype)t);
            return ST_OK;
        }
    }
    if ((torch || same("torch.storage", module, module_n)) &&
        same("UntypedStorage", name, name_n)) {
        *out = global_new(m, PG_STORAGE_UNTYPED);
        return ST_OK;
    }
    return refuse(module, module_n, name, name_n, e);
}

enum status
machine_storage(struct machine *m, const struct pt_value *id, struct pt_value **out, struct err *e)
{
    static const enum pt_kind kinds[] = {PT_STRING, PT_GLOBAL, PT_STRING, PT_STRING, PT_INT};
    bool good = id->kind == PT_TUPLE && id->seq.n >= 5;
    for (size_t i = 0; i < 5 && good; i++)
        good = id->seq.data[i]->kind == kinds[i];
    if (!good || strcmp(id->seq.data[0]->text.data, "storage") != 0)
        return machine_fail(m, e, "a persistent id that is not a storage");
    int class = id->seq.data[1]->global;
    if (class < PG_STORAGE)
        return machine_fail(m, e, "a storage whose class is not a storage class");
    enum dtype type = class == PG_STORAGE_UNTYPED ? DT_U8 : (enum dtype)(class - PG_STORAGE);
    int64_t n = id->seq.data[4]->integer;
    const struct pt_value *key = id->seq.data[2];
    if (n < 0 || n > INT64_MAX / 8 || strlen(key->text.data) != key->text.n)
        return machine_fail(m, e, "a storage of %lld elements", (long long)n);
    struct pt_value *v = ARENA_NEW(m->a, struct pt_value);
    v->kind = PT_STORAGE;
    v->storage.type = type;
    size_t size_bytes = (size_t)n * (size_t)dtype_size(type);
    TRY(m->source.find(m->source.ctx, key->text.data, size_bytes, &v->storage.of, e));
    *out = v;
    return ST_OK;
}

/* A tuple of integers (a size or strides). */
static enum status read_dims(
    struct machine *m, const struct pt_value *v, int64_t out[PT_RANK_MAX], int *rank, struct err *e)
{
    if (v->kind != PT_TUPLE && v->kind != PT_LIST)
        return machine_fail(m, e, "a tensor's shape is %s", pt_kind_name(v->kind));
    if (v->seq.n > PT_RANK_MAX)
        return err_set(
            e, ST_UNSUPPORTED, "a tensor has %zu dimensions, more than %d", v->seq.n, PT_RANK_MAX);
    *rank = (int)v->seq.n;
    for (int d = 0; d < *rank; d++) {
        if (v->seq.data[d]->kind != PT_INT)
            return machine_fail(m, e, "a tensor's size is %s", pt_kind_name(v->seq.data[d]->kind));
        out[d] = v->seq.data[d]->integer;
    }
    return ST_OK;
}

static enum status tensor_make(
    struct machine *m, const struct pt_value *args, enum dtype type, struct pt_value **out,
    struct err *e)
{
    struct pt_value *const *arg = args->seq.data;
    int64_t offset;
    int stride_rank;
    if (arg[0]->kind != PT_STORAGE || !pt_to_int(arg[1], &offset))
        return machine_fail(m, e, "a tensor without a storage or an offset");
    struct pt_value *v = ARENA_NEW(m->a, struct pt_value);
    struct pt_tensor *t = ARENA_NEW(m->a, struct pt_tensor);
    v->kind = PT_TENSOR;
    v->tensor = t;
    t->type = type;
    t->offset = offset;
    t->storage = arg[0]->storage.of;
    TRY(read_dims(m, arg[2], t->shape, &t->rank, e));
    TRY(read_dims(m, arg[3], t->strides, &stride_rank, e));
    if (stride_rank != t->rank)
        return machine_fail(m, e, "a tensor of %d sizes and %d strides", t->rank, stride_rank);
    if (!pt_tensor_fits(t))
        return machine_fail(m, e, "a tensor that does not fit in its storage");
    *out = v;
    return ST_OK;
}

static enum status call_rebuild_tensor(
    struct machine *m, const struct pt_value *args, struct pt_value **out, struct err *e)
{
    if (args->seq.n < 4 || args->seq.data[0]->kind != PT_STORAGE)
        return machine_fail(m, e, "a tensor without a storage");
    return tensor_make(m, args, args->seq.data[0]->storage.type, out, e);
}

static enum status call_rebuild_tensor_v2(
    struct machine *m, const struct pt_value *args, struct pt_value **out, struct err *e)
{
    if (args->seq.n < 6 || args->seq.n > 7)
        return machine_fail(m, e, "a tensor of %zu parts, not 6", args->seq.n);
    TRY(call_rebuild_tensor(m, args, out, e));
    const struct pt_value *grad = args->seq.data[4];
    (*out)->tensor->requires_grad = grad->kind == PT_BOOL && grad->truth;
    return ST_OK;
}

static enum status call_rebuild_tensor_v3(
    struct machine *m, const struct pt_value *args, struct pt_value **out, struct err *e)
{
    if (args->seq.n < 7 || args->seq.data[6]->kind != PT_DTYPE)
        return machine_fail(m, e, "a tensor without a dtype");
    TRY(tensor_make(m, args, args->seq.data[6]->dtype, out, e));
    const struct pt_value *grad = args->seq.data[4];
    (*out)->tensor->requires_grad = grad->kind == PT_BOOL && grad->truth;
    return ST_OK;
}

/* Parameter(data, requires_grad, hooks[, state]): the tensor itself; hooks and state are dropped.
 */
static enum status call_rebuild_parameter(
    struct machine *m, const struct pt_value *args, struct pt_value **out, struct err *e)
{
    if (args->seq.n < 2 || args->seq.data[0]->kind != PT_TENSOR)
        return machine_fail(m, e, "a parameter without a tensor");
    struct pt_value *v = ARENA_NEW(m->a, struct pt_value);
    v->kind = PT_TENSOR;
    v->tensor = ARENA_NEW(m->a, struct pt_tensor);
    *v->tensor = *args->seq.data[0]->tensor;
    v->tensor->requires_grad = args->seq.data[1]->kind == PT_BOOL && args->seq.data[1]->truth;
    *out = v;
    return ST_OK;
}

static enum status call_ordered_dict(
    struct machine *m, const struct pt_value *args, struct pt_value **out, struct err *e)
{
    if (args->seq.n != 0)
        return machine_fail(m, e, "an OrderedDict made from arguments");
    *out = pt_dict(m->a, PT_DICT_ORDERED);
    return ST_OK;
}

static enum status
call_counter(struct machine *m, const struct pt_value *args, struct pt_value **out, struct err *e)
{
    if (args->seq.n > 1 || (args->seq.n == 1 && args->seq.data[0]->kind != PT_DICT))
        return machine_fail(m, e, "a Counter that is not made from a dict");
    /* The dict itself becomes the Counter; nobody else holds it in a real file. */
    *out = args->seq.n == 1 ? args->seq.data[0] : pt_dict(m->a, PT_DICT_COUNTER);
    (*out)->dict.class = PT_DICT_COUNTER;
    return ST_OK;
}

static enum status
call_size(struct machine *m, const struct pt_value *args, struct pt_value **out, struct err *e)
{
    if (args->seq.n != 1 || args->seq.data[0]->kind != PT_TUPLE)
        return machine_fail(m, e, "a torch.Size that is not made from a tuple");
    *out = args->seq.data[0];
    return ST_OK;
}

/* encode(text, "latin1"): how protocol 2 writes bytes. */
static enum status
call_encode(struct machine *m, const struct pt_value *args, struct pt_value **out, struct err *e)
{
    const char *code = args->seq.n == 2 ? pt_to_string(args->seq.data[1]) : NULL;
    const struct pt_value *text = args->seq.n == 2 ? args->seq.data[0] : NULL;
    if (!code || text->kind != PT_STRING || (!str_eq(code, "latin1") && !str_eq(code, "latin-1")))
        return machine_fail(m, e, "bytes that are not encoded in latin1");
    m->encoded_bytes += text->text.n;
    if (m->encoded_bytes > (size_t)(m->end - m->begin))
        return machine_fail(m, e, "the same text encoded many times");
    char *bytes = arena_alloc(m->a, text->text.n + 1);
    size_t n = 0;
    for (size_t i = 0; i < text->text.n; i++) {
        unsigned char c = (unsigned char)text->text.data[i];
        if (c >= 0x80) {
            if (c > 0xc3) /* the text is valid UTF-8, so a second byte follows */
                return machine_fail(m, e, "bytes with a character beyond latin1");
            c = (unsigned char)(c << 6 | ((unsigned char)text->text.data[++i] & 0x3f));
        }
        bytes[n++] = (char)c;
    }
    *out = pt_bytes(m->a, bytes, n);
    return ST_OK;
}

enum status machine_call(
    struct machine *m, int global, const struct pt_value *args, struct pt_value **out,
    struct err *e)
{
    static enum status (*const calls[])(
        struct machine *, const struct pt_value *, struct pt_value **, struct err *) = {
#define X(id, module, name, call) call,
#include "nn/pickle_globals.def"
#undef X
    };
    if (global >= PG_STORAGE)
        return machine_fail(m, e, "a storage class that is called");
    return calls[global](m, args, out, e);
}
