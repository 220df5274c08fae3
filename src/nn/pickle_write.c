/* pickle_write.c - a tree as a pickle that PyTorch's own readers accept. */
#include "nn/pickle_int.h"

#include <string.h>

struct writer {
    struct str *out;
    int64_t (*storage_key)(void *ctx, struct pt_storage *s);
    void *ctx;
};

static void put(struct writer *w, const void *p, size_t n)
{
    str_add_n(w->out, p, n);
}

static void put_op(struct writer *w, char code)
{
    put(w, &code, 1);
}

static void put_number(struct writer *w, uint64_t value, int bytes)
{
    char p[8];
    for (int i = 0; i < bytes; i++)
        p[i] = (char)(value >> (8 * i));
    put(w, p, (size_t)bytes);
}

static void put_int(struct writer *w, int64_t value)
{
    if (value >= 0 && value < 256) {
        put_op(w, 'K'); /* BININT1 */
        put_number(w, (uint64_t)value, 1);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
        put_op(w, 'J'); /* BININT */
        put_number(w, (uint64_t)value, 4);
    } else {
        put(w, "\x8a\x08", 2); /* LONG1 of 8 bytes */
        put_number(w, (uint64_t)value, 8);
    }
}

static void put_float(struct writer *w, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_op(w, 'G'); /* BINFLOAT, big-endian */
    put_number(w, __builtin_bswap64(bits), 8);
}

static void put_text(struct writer *w, const char *s, size_t n)
{
    put_op(w, 'X'); /* BINUNICODE */
    put_number(w, n, 4);
    put(w, s, n);
}

static void put_global(struct writer *w, const char *module, const char *name)
{
    put_op(w, 'c'); /* GLOBAL */
    put(w, module, strlen(module));
    put_op(w, '\n');
    put(w, name, strlen(name));
    put_op(w, '\n');
}

/* Protocol 2 has no opcode for bytes: encode(text, "latin1"). */
static void put_bytes(struct writer *w, const char *s, size_t n)
{
    struct str text;
    str_init(&text);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        char two[2] = {(char)(0xc0 | c >> 6), (char)(0x80 | (c & 0x3f))};
        if (c < 0x80)
            str_add_n(&text, s + i, 1);
        else
            str_add_n(&text, two, 2);
    }
    put_global(w, "_codecs", "encode");
    put_text(w, text.data, text.n);
    put_text(w, "latin1", 6);
    put(w, "\x86R", 2); /* TUPLE2 REDUCE */
    str_release(&text);
}

static void put_dims(struct writer *w, const int64_t *dims, int rank)
{
    put_op(w, '('); /* MARK */
    for (int d = 0; d < rank; d++)
        put_int(w, dims[d]);
    put_op(w, 't'); /* TUPLE */
}

/* torch._utils._rebuild_tensor_v2(storage, offset, size, stride, requires_grad, OrderedDict()) */
static enum status write_tensor(struct writer *w, const struct pt_tensor *t, struct err *e)
{
    struct str key;
    if (!pt_tensor_fits(t))
        return err_set(e, ST_INTERNAL, "a tensor does not fit in its storage");
    str_init(&key);
    str_printf(&key, "%lld", (long long)w->storage_key(w->ctx, t->storage));
    put_global(w, "torch._utils", "_rebuild_tensor_v2");
    put(w, "((", 2);
    put_text(w, "storage", 7);
    put_global(w, "torch", dtype_storage_class(t->type));
    put_text(w, key.data, key.n);
    put_text(w, "cpu", 3);
    put_int(w, (int64_t)(t->storage->size_bytes / (size_t)dtype_size(t->type)));
    put(w, "tQ", 2); /* TUPLE BINPERSID */
    put_int(w, t->offset);
    put_dims(w, t->shape, t->rank);
    put_dims(w, t->strides, t->rank);
    put_op(w, (char)(t->requires_grad ? 0x88 : 0x89));
    put_global(w, "collections", "OrderedDict");
    put(w, ")RtR", 4); /* OrderedDict(), then the tuple of arguments and the call */
    str_release(&key);
    return ST_OK;
}

static enum status
write_value(struct writer *w, const struct pt_value *v, int level, struct err *e);

static enum status
write_items(struct writer *w, const struct pt_value *dict, int level, struct err *e)
{
    if (dict->dict.n == 0)
        return ST_OK;
    put_op(w, '(');
    for (size_t i = 0; i < dict->dict.n; i++) {
        TRY(write_value(w, dict->dict.data[i].key, level, e));
        TRY(write_value(w, dict->dict.data[i].value, level, e));
    }
    put_op(w, 'u'); /* SETITEMS */
    return ST_OK;
}

static enum status write_dict(struct writer *w, const struct pt_value *v, int level, struct err *e)
{
    switch (v->dict.class) {
    case PT_DICT_PLAIN:
        put_op(w, '}');
        TRY(write_items(w, v, level, e));
        break;
    case PT_DICT_ORDERED:
        put_global(w, "collections", "OrderedDict");
        put(w, ")R", 2);
        TRY(write_items(w, v, level, e));
        break;
    case PT_DICT_COUNTER:
        put_global(w, "collections", "Counter");
        put_op(w, '}');
        TRY(write_items(w, v, level, e));
        put(w, "\x85R", 2); /* TUPLE1 REDUCE */
        break;
    }
    if (v->dict.attributes && v->dict.class != PT_DICT_PLAIN) {
        TRY(write_value(w, v->dict.attributes, level, e));
        put_op(w, 'b'); /* BUILD */
    }
    return ST_OK;
}

static enum status write_seq(struct writer *w, const struct pt_value *v, int level, struct err *e)
{
    if (v->kind == PT_LIST)
        put_op(w, ']');
    if (v->kind == PT_LIST && v->seq.n == 0)
        return ST_OK;
    put_op(w, '(');
    for (size_t i = 0; i < v->seq.n; i++)
        TRY(write_value(w, v->seq.data[i], level, e));
    put_op(w, v->kind == PT_LIST ? 'e' : 't');
    return ST_OK;
}

static enum status write_value(struct writer *w, const struct pt_value *v, int level, struct err *e)
{
    if (level > PT_DEPTH_MAX || w->out->n > PICKLE_BYTES_MAX)
        return err_set(e, ST_INTERNAL, "values nested too deep or too many for one file");
    switch (v->kind) {
    case PT_NONE:
        put_op(w, 'N');
        return ST_OK;
    case PT_BOOL:
        put_op(w, (char)(v->truth ? 0x88 : 0x89));
        return ST_OK;
    case PT_INT:
        put_int(w, v->integer);
        return ST_OK;
    case PT_FLOAT:
        put_float(w, v->real);
        return ST_OK;
    case PT_STRING:
        put_text(w, v->text.data, v->text.n);
        return ST_OK;
    case PT_BYTES:
        put_bytes(w, v->text.data, v->text.n);
        return ST_OK;
    case PT_LIST:
    case PT_TUPLE:
        return write_seq(w, v, level + 1, e);
    case PT_DICT:
        return write_dict(w, v, level + 1, e);
    case PT_TENSOR:
        return write_tensor(w, v->tensor, e);
    case PT_DTYPE:
        put_global(w, "torch", dtype_name(v->dtype));
        return ST_OK;
    case PT_GLOBAL:
    case PT_STORAGE:
        break;
    }
    return err_set(e, ST_INTERNAL, "%s cannot be written", pt_kind_name(v->kind));
}

enum status pickle_write(
    const struct pt_value *root, int64_t (*storage_key)(void *ctx, struct pt_storage *s), void *ctx,
    struct str *out, struct err *e)
{
    struct writer w = {out, storage_key, ctx};
    put(&w, "\x80\x02", 2); /* PROTO 2 */
    TRY(write_value(&w, root, 0, e));
    put_op(&w, '.');
    return ST_OK;
}
