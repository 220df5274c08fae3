/* pickle_value.c - building and reading the values that PyTorch files hold. */
#include "nn/pickle_value.h"

#include "base/err.h"

#include <string.h>

static struct pt_value *value_new(struct arena *a, enum pt_kind kind)
{
    struct pt_value *v = ARENA_NEW(a, struct pt_value);
    v->kind = kind;
    return v;
}

struct pt_value *pt_none(struct arena *a)
{
    return value_new(a, PT_NONE);
}

struct pt_value *pt_bool(struct arena *a, bool truth)
{
    struct pt_value *v = value_new(a, PT_BOOL);
    v->truth = truth;
    return v;
}

struct pt_value *pt_int(struct arena *a, int64_t integer)
{
    struct pt_value *v = value_new(a, PT_INT);
    v->integer = integer;
    return v;
}

struct pt_value *pt_float(struct arena *a, double real)
{
    struct pt_value *v = value_new(a, PT_FLOAT);
    v->real = real;
    return v;
}

static struct pt_value *text_new(struct arena *a, enum pt_kind kind, const void *data, size_t n)
{
    struct pt_value *v = value_new(a, kind);
    char *copy = arena_alloc(a, n + 1);
    if (n > 0)
        memcpy(copy, data, n);
    v->text.data = copy;
    v->text.n = n;
    return v;
}

struct pt_value *pt_string_n(struct arena *a, const char *text, size_t n)
{
    return text_new(a, PT_STRING, text, n);
}

struct pt_value *pt_string(struct arena *a, const char *text)
{
    return text_new(a, PT_STRING, text, strlen(text));
}

struct pt_value *pt_bytes(struct arena *a, const void *data, size_t n)
{
    return text_new(a, PT_BYTES, data, n);
}

struct pt_value *pt_list(struct arena *a)
{
    return value_new(a, PT_LIST);
}

struct pt_value *pt_tuple(struct arena *a)
{
    return value_new(a, PT_TUPLE);
}

struct pt_value *pt_dict(struct arena *a, enum pt_dict_class class)
{
    struct pt_value *v = value_new(a, PT_DICT);
    v->dict.class = class;
    return v;
}

/* Doubling inside an arena wastes at most as much again. */
static void *grown(struct arena *a, const void *data, size_t n, size_t *cap, size_t item_bytes)
{
    *cap = *cap ? 2 * *cap : 4;
    void *more = arena_alloc(a, *cap * item_bytes);
    if (n > 0)
        memcpy(more, data, n * item_bytes);
    return more;
}

void pt_add(struct arena *a, struct pt_value *seq, struct pt_value *item)
{
    ASSERT(seq->kind == PT_LIST || seq->kind == PT_TUPLE);
    if (seq->seq.n == seq->seq.cap)
        seq->seq.data = grown(a, seq->seq.data, seq->seq.n, &seq->seq.cap, sizeof *seq->seq.data);
    seq->seq.data[seq->seq.n++] = item;
}

void pt_put_value(
    struct arena *a, struct pt_value *dict, struct pt_value *key, struct pt_value *value)
{
    ASSERT(dict->kind == PT_DICT);
    if (dict->dict.n == dict->dict.cap)
        dict->dict.data =
            grown(a, dict->dict.data, dict->dict.n, &dict->dict.cap, sizeof *dict->dict.data);
    dict->dict.data[dict->dict.n++] = (struct pt_item){key, value};
}

void pt_put(struct arena *a, struct pt_value *dict, const char *key, struct pt_value *value)
{
    pt_put_value(a, dict, pt_string(a, key), value);
}

void pt_put_int(struct arena *a, struct pt_value *dict, int64_t key, struct pt_value *value)
{
    pt_put_value(a, dict, pt_int(a, key), value);
}

struct pt_storage *pt_storage(struct arena *a, const void *data, size_t size_bytes)
{
    struct pt_storage *s = ARENA_NEW(a, struct pt_storage);
    s->data = data;
    s->size_bytes = size_bytes;
    s->entry = -1;
    return s;
}

struct pt_value *pt_tensor(
    struct arena *a, struct pt_storage *s, enum dtype type, const int64_t *shape, int rank,
    int64_t offset)
{
    ASSERT(rank >= 0 && rank <= PT_RANK_MAX);
    struct pt_value *v = value_new(a, PT_TENSOR);
    struct pt_tensor *t = v->tensor = ARENA_NEW(a, struct pt_tensor);
    t->type = type;
    t->rank = rank;
    t->offset = offset;
    t->storage = s;
    int64_t stride = 1;
    for (int d = rank - 1; d >= 0; d--) {
        t->shape[d] = shape[d];
        t->strides[d] = stride;
        stride *= shape[d] > 0 ? shape[d] : 1;
    }
    ASSERT(pt_tensor_fits(t));
    return v;
}

struct pt_value *
pt_tensor_of(struct arena *a, enum dtype type, const int64_t *shape, int rank, const void *data)
{
    int64_t n = shape_elements(shape, rank);
    ASSERT(n >= 0);
    struct pt_storage *s = pt_storage(a, data, (size_t)n * (size_t)dtype_size(type));
    return pt_tensor(a, s, type, shape, rank, 0);
}

const struct pt_value *pt_get(const struct pt_value *dict, const char *key)
{
    if (!dict || dict->kind != PT_DICT)
        return NULL;
    for (size_t i = 0; i < dict->dict.n; i++) {
        const struct pt_item *item = &dict->dict.data[i];
        if (item->key->kind == PT_STRING && strcmp(item->key->text.data, key) == 0)
            return item->value;
    }
    return NULL;
}

const struct pt_value *pt_get_int(const struct pt_value *dict, int64_t key)
{
    if (!dict || dict->kind != PT_DICT)
        return NULL;
    for (size_t i = 0; i < dict->dict.n; i++) {
        const struct pt_item *item = &dict->dict.data[i];
        if (item->key->kind == PT_INT && item->key->integer == key)
            return item->value;
    }
    return NULL;
}

bool pt_to_int(const struct pt_value *v, int64_t *out)
{
    if (!v || (v->kind != PT_INT && v->kind != PT_BOOL))
        return false;
    *out = v->kind == PT_INT ? v->integer : v->truth;
    return true;
}

bool pt_to_float(const struct pt_value *v, double *out)
{
    int64_t i;
    if (v && v->kind == PT_FLOAT)
        *out = v->real;
    else if (pt_to_int(v, &i))
        *out = (double)i;
    else
        return false;
    return true;
}

const char *pt_to_string(const struct pt_value *v)
{
    return v && v->kind == PT_STRING ? v->text.data : NULL;
}

const char *pt_kind_name(enum pt_kind kind)
{
    static const char *const names[] = {
        [PT_NONE] = "None",         [PT_BOOL] = "a bool",     [PT_INT] = "an integer",
        [PT_FLOAT] = "a float",     [PT_STRING] = "a string", [PT_BYTES] = "bytes",
        [PT_LIST] = "a list",       [PT_TUPLE] = "a tuple",   [PT_DICT] = "a dict",
        [PT_TENSOR] = "a tensor",   [PT_DTYPE] = "a dtype",   [PT_GLOBAL] = "a function or class",
        [PT_STORAGE] = "a storage",
    };
    return names[kind];
}

int64_t pt_tensor_elements(const struct pt_tensor *t)
{
    return shape_elements(t->shape, t->rank);
}

bool pt_tensor_contiguous(const struct pt_tensor *t)
{
    int64_t stride = 1;
    if (pt_tensor_elements(t) == 0)
        return true;
    for (int d = t->rank - 1; d >= 0; d--) {
        if (t->shape[d] != 1 && t->strides[d] != stride)
            return false;
        stride *= t->shape[d];
    }
    return true;
}

int64_t pt_tensor_last(const struct pt_tensor *t)
{
    int64_t last = t->offset;
    for (int d = 0; d < t->rank; d++)
        last += (t->shape[d] - 1) * t->strides[d];
    return last;
}

bool pt_tensor_fits(const struct pt_tensor *t)
{
    int64_t n = pt_tensor_elements(t), last = t->offset;
    int64_t have = (int64_t)(t->storage->size_bytes / (size_t)dtype_size(t->type));
    if (n < 0 || t->offset < 0)
        return false;
    for (int d = 0; d < t->rank; d++) {
        int64_t step;
        if (t->strides[d] < 0)
            return false;
        if (n > 0 && (__builtin_mul_overflow(t->shape[d] - 1, t->strides[d], &step) ||
                      __builtin_add_overflow(last, step, &last)))
            return false;
    }
    return n == 0 ? t->offset <= have : last < have;
}

/* Bytes of the UTF-8 character that begins with c, and its smallest code point; 0 if none does. */
static size_t utf8_length(unsigned char c, uint32_t *point, uint32_t *least)
{
    static const uint32_t least_of[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = c < 0x80             ? 1
               : (c & 0xe0) == 0xc0 ? 2
               : (c & 0xf0) == 0xe0 ? 3
               : (c & 0xf8) == 0xf0 ? 4
                                    : 0;
    *point = n == 1 ? c : n == 0 ? 0 : c & (0x7fu >> n);
    *least = least_of[n];
    return n;
}

bool utf8_valid(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t point, least;
        size_t m = utf8_length((unsigned char)s[i], &point, &least);
        if (m == 0 || m > n - i)
            return false;
        for (size_t k = 1; k < m; k++) {
            unsigned char c = (unsigned char)s[i + k];
            if ((c & 0xc0) != 0x80)
                return false;
            point = point << 6 | (c & 0x3f);
        }
        if (point < least || point > 0x10ffff || (point >= 0xd800 && point < 0xe000))
            return false;
        i += m;
    }
    return true;
}
