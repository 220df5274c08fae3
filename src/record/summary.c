/* summary.c - values in few words. */
#include "record/summary.h"

#include "base/env.h"
#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 200 };

static const struct {
    const char *name;
    int bytes;
    bool floating;
} dtypes[RECORD_DTYPE_COUNT] = {{"float32", 4, true},  {"float64", 8, true}, {"float16", 2, true},
                                {"bfloat16", 2, true}, {"int64", 8, false},  {"int32", 4, false},
                                {"uint8", 1, false},   {"bool", 1, false}};

bool record_dtype_find(const char *name, enum record_dtype *out)
{
    for (int i = 0; i < RECORD_DTYPE_COUNT; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            *out = (enum record_dtype)i;
            return true;
        }
    }
    return false;
}

const char *record_dtype_name(enum record_dtype t)
{
    return dtypes[t].name;
}

int record_dtype_bytes(enum record_dtype t)
{
    return dtypes[t].bytes;
}

bool record_dtype_is_floating(enum record_dtype t)
{
    return dtypes[t].floating;
}

/* IEEE 754 binary16. */
static double half_value(uint16_t h)
{
    int exponent = h >> 10 & 0x1f;
    double fraction = h & 0x3ff, v;
    if (exponent == 0x1f)
        v = fraction != 0 ? (double)NAN : (double)INFINITY;
    else if (exponent == 0)
        v = ldexp(fraction, -24);
    else
        v = ldexp(fraction + 1024, exponent - 25);
    return h & 0x8000 ? -v : v;
}

double record_load(enum record_dtype t, const void *data, int64_t i)
{
    const char *at = (const char *)data + i * dtypes[t].bytes;
    union {
        float f;
        double d;
        int64_t l;
        int32_t w;
        uint16_t h;
        uint32_t bits;
        uint8_t b;
    } v = {0};
    memcpy(&v, at, (size_t)dtypes[t].bytes);
    switch (t) {
    case RECORD_F32:
        return (double)v.f;
    case RECORD_F64:
        return v.d;
    case RECORD_F16:
        return half_value(v.h);
    case RECORD_BF16:
        v.bits = (uint32_t)v.h << 16;
        return (double)v.f;
    case RECORD_I64:
        return (double)v.l;
    case RECORD_I32:
        return v.w;
    case RECORD_U8:
    case RECORD_BOOL:
    case RECORD_DTYPE_COUNT:
        break;
    }
    return v.b;
}

json_t *record_element(enum record_dtype t, const void *data, int64_t i)
{
    int64_t l;
    double v;
    if (t == RECORD_I64) {
        memcpy(&l, (const char *)data + 8 * i, sizeof l);
        return json_integer(l);
    }
    v = record_load(t, data, i);
    if (t == RECORD_BOOL)
        return json_boolean(v != 0);
    if (!dtypes[t].floating)
        return json_integer((json_int_t)v);
    return isfinite(v) ? json_real(v) : json_null();
}

int64_t record_count(const struct record_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->shape[i];
    return n;
}

static json_t *nested(const struct record_tensor *t, int dim, int64_t *at)
{
    if (dim == t->rank)
        return record_element(t->dtype, t->data, (*at)++);
    json_t *list = json_array();
    for (int64_t i = 0; i < t->shape[dim]; i++)
        (void)json_array_append_new(list, nested(t, dim + 1, at));
    return list;
}

json_t *record_values(const struct record_tensor *t)
{
    int64_t at = 0;
    return nested(t, 0, &at);
}

json_t *summary_number(double v, int decimals)
{
    double scale = pow(10, decimals);
    if (!isfinite(v))
        return json_null();
    return json_real(fabs(v) < 1e15 / scale ? round(v * scale) / scale : v);
}

/* NaN counts as PyTorch has it: a minimum of anything with a NaN is NaN, which is null here. */
static void put_range(json_t *o, const struct record_tensor *t, int64_t n)
{
    double low = record_load(t->dtype, t->data, 0), high = low, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        double v = record_load(t->dtype, t->data, i);
        sum += v;
        low = v < low || isnan(v) ? v : low;
        high = v > high || isnan(v) ? v : high;
        if (isnan(v))
            break;
    }
    if (dtypes[t->dtype].floating) {
        json_put(o, "min", summary_number(low, 4));
        json_put(o, "max", summary_number(high, 4));
        json_put(o, "mean", summary_number(sum / (double)n, 4));
    } else {
        json_put_i64(o, "min", (int64_t)low);
        json_put_i64(o, "max", (int64_t)high);
    }
}

json_t *summary_tensor(const struct record_tensor *t)
{
    char name[32];
    int64_t n = record_count(t);
    json_t *o = json_object(), *shape = json_array();
    for (int i = 0; i < t->rank; i++)
        (void)json_array_append_new(shape, json_integer(t->shape[i]));
    (void)snprintf(name, sizeof name, "torch.%s", dtypes[t->dtype].name);
    json_put_str(o, "type", "tensor");
    json_put(o, "shape", shape);
    json_put_str(o, "dtype", name);
    if (n > 0)
        put_range(o, t, n);
    if (n <= SUMMARY_VALUES)
        json_put(o, "values", record_values(t));
    return o;
}

/* The first bytes of a text, whole characters only. */
static json_t *cut(const char *text, size_t n)
{
    size_t most = n < TEXT_BYTES ? n : TEXT_BYTES;
    while (most < n && most > 0 && ((unsigned char)text[most] & 0xc0) == 0x80)
        most--;
    return json_stringn(text, most);
}

/* A file below SNUG_HOME/models can be fetched by its path from there; a relative path is one from
 * there already. */
static void put_download(json_t *o, const char *text)
{
    char models[1024], path[1400];
    size_t n;
    (void)path_join(snug_home(), "models/", models, sizeof models);
    n = strlen(models);
    const char *inside = strncmp(text, models, n) == 0 ? text + n : text;
    if (strlen(inside) < 300 && path_is_inside(inside) && !strchr(inside, '\n') &&
        file_exists(path_join(models, inside, path, sizeof path)))
        json_put_str(o, "download_path", inside);
}

static bool is_plain(const json_t *v)
{
    return !json_is_object(v) && !json_is_array(v);
}

/* Pairs of numbers are plain too: offsets of tokens. */
static bool are_plain(const json_t *list)
{
    size_t i;
    json_t *v;
    bool plain = true, pairs = true;
    json_array_foreach(list, i, v)
    {
        plain = plain && is_plain(v);
        pairs = pairs && json_array_size(v) == 2 && json_is_number(json_array_get(v, 0)) &&
                json_is_number(json_array_get(v, 1));
    }
    return plain || pairs;
}

json_t *summary_value(const char *kind, const json_t *value)
{
    json_t *o = json_object();
    json_put_str(o, "type", kind);
    if (strcmp(kind, "scalar") == 0) {
        json_put(o, "value", value && is_plain(value) ? json_deep_copy(value) : json_null());
    } else if (strcmp(kind, "string") == 0 && json_is_string(value)) {
        json_put(o, "value", cut(json_string_value(value), json_string_length(value)));
        put_download(o, json_string_value(value));
    } else if (strcmp(kind, "list") == 0 && json_is_array(value)) {
        char *text = json_text(value, false);
        json_put_i64(o, "length", (int64_t)json_array_size(value));
        json_put(o, "repr", cut(text, strlen(text)));
        if (json_array_size(value) <= SUMMARY_VALUES && are_plain(value))
            json_put(o, "values", json_deep_copy(value));
        mem_free(text);
    } else if (strcmp(kind, "dict") == 0 && json_is_object(value)) {
        char *text = json_text(value, false);
        json_put(o, "repr", cut(text, strlen(text)));
        mem_free(text);
    } else if (json_is_object(value)) {
        json_object_update_missing(o, (json_t *)(uintptr_t)value);
    }
    return o;
}
