/* entries.c - outputs of nodes in the words of the API. */
#include "child/entries.h"

#include "base/env.h"
#include "base/mem.h"

#include <string.h>

/* ---- summaries ---- */

static bool tensor_of(const struct run_output *o, struct record_tensor *t)
{
    *t = (struct record_tensor){.rank = o->shape->rank, .shape = o->shape->dim, .data = o->data};
    return t->rank <= RECORD_RANK_MAX && record_dtype_find(dtype_name(o->dtype), &t->dtype);
}

/* A list port of numbers is a list to its readers. */
static json_t *list_of(const struct run_output *o)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < shape_count(o->shape); i++)
        (void)json_array_append_new(list, json_f64(dtype_load(o->data, o->dtype, i)));
    json_t *safe = json_safe(list);
    json_decref(list);
    return safe;
}

static json_t *model_of(const struct run_output *o)
{
    json_t *m = json_object();
    json_put_str(m, "class", o->text);
    json_put_i64(m, "params", o->parameters);
    json_put_i64(m, "trainable", o->trainable);
    return m;
}

/* "a data set" has the type "DataSet" nowhere: what it is called stands in repr. */
static json_t *other_of(const char *type, const char *repr)
{
    json_t *v = json_object();
    json_put_str(v, "type", type);
    json_put_str(v, "repr", repr);
    return v;
}

/* Kind and value of an output that is no tensor, as record/summary.h has them. */
static const char *value_of(const struct run_output *o, json_t **value)
{
    switch (o->kind) {
    case RUN_OUTPUT_TENSOR:
        *value = list_of(o);
        return "list";
    case RUN_OUTPUT_SCALAR:
        *value = json_f64(o->scalar);
        if (json_is_string(*value)) {
            json_decref(*value);
            *value = json_null();
        }
        return "scalar";
    case RUN_OUTPUT_TEXT:
        *value = json_string(o->text);
        if (!*value)
            *value = json_string("");
        return "string";
    case RUN_OUTPUT_MODEL:
        *value = model_of(o);
        return "model";
    case RUN_OUTPUT_JSON:
        *value = json_safe(o->json);
        if (json_is_array(*value))
            return "list";
        if (json_is_string(*value))
            return "string";
        return json_is_object(*value) ? "dict" : "scalar";
    case RUN_OUTPUT_OTHER:
        break;
    }
    *value = other_of("object", o->text);
    return "object";
}

json_t *entry_summary(const struct run_output *o)
{
    struct record_tensor t;
    json_t *value, *s;
    if (o->kind == RUN_OUTPUT_TENSOR && !o->list && tensor_of(o, &t))
        return summary_tensor(&t);
    const char *kind = value_of(o, &value);
    s = summary_value(kind, value);
    json_decref(value);
    return s;
}

json_t *entries_summaries(const struct run *r, const struct graph_node *n)
{
    struct run_output o;
    json_t *all = json_object();
    for (size_t i = 0; run_output_at(r, n, i, &o); i++)
        json_put(all, o.port, entry_summary(&o));
    return all;
}

/* ---- records ---- */

enum status entries_record(
    struct outputs *to, const struct run_output *o, const char *node, const char *port,
    struct err *e)
{
    struct record_tensor t;
    json_t *value;
    if (o->kind == RUN_OUTPUT_TENSOR && !o->list && tensor_of(o, &t))
        return outputs_put_tensor(to, node, port, &t, e);
    const char *kind = value_of(o, &value);
    return outputs_put_value(to, node, port, kind, value, e);
}

bool entries_find(
    const struct run *r, const struct graph_node *n, const char *port, struct run_output *out)
{
    for (size_t i = 0; run_output_at(r, n, i, out); i++)
        if (strcmp(out->port, port) == 0)
            return true;
    return false;
}

/* ---- entries ---- */

json_t *entry_text(const char *text)
{
    json_t *entry = json_object();
    json_put_str(entry, "output_kind", "text");
    json_put_str(entry, "text", text);
    return entry;
}

static char *base64(const unsigned char *data, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *out = mem_alloc((n + 2) / 3 * 4 + 1), *to = out;
    for (size_t i = 0; i < n; i += 3) {
        unsigned v = (unsigned)data[i] << 16;
        v |= i + 1 < n ? (unsigned)data[i + 1] << 8 : 0;
        v |= i + 2 < n ? data[i + 2] : 0;
        *to++ = digits[v >> 18];
        *to++ = digits[v >> 12 & 63];
        *to++ = i + 1 < n ? digits[v >> 6 & 63] : '=';
        *to++ = i + 2 < n ? digits[v & 63] : '=';
    }
    return out;
}

json_t *entry_image(const char *path, const char *port, int64_t bytes_max)
{
    struct err ignored;
    char *data, pixels[1400];
    size_t n = strlen(path);
    if (str_ends(path, ".svg") && n < sizeof pixels) {
        (void)snprintf(pixels, sizeof pixels, "%.*s.png", (int)(n - 4), path);
        path = file_exists(pixels) ? pixels : path;
    }
    if (file_read(path, (size_t)bytes_max, &data, &n, &ignored) != ST_OK)
        return NULL;
    char *text = base64((unsigned char *)data, n);
    json_t *entry = json_object(), *image = json_object();
    json_put_str(image, "format", str_ends(path, ".svg") ? "svg" : "png");
    json_put_str(image, "encoding", "base64");
    json_put_str(image, "data", text);
    json_put_str(entry, "output_kind", "image");
    json_put_str(entry, "port", port);
    json_put(entry, "image", image);
    mem_free(text);
    mem_free(data);
    return entry;
}

static int64_t size_of(const json_t *v)
{
    char *text = json_text(v, false);
    int64_t n = (int64_t)strlen(text);
    mem_free(text);
    return n;
}

static json_t *elided(const json_t *entry, int64_t bytes, int64_t cap_bytes)
{
    json_t *o = json_object();
    json_put_str(o, "output_kind", json_get_str(entry, "output_kind", ""));
    if (json_get_str(entry, "port", NULL))
        json_put_str(o, "port", json_get_str(entry, "port", ""));
    json_put_bool(o, "elided", true);
    json_put_i64(o, "bytes", bytes);
    json_put_i64(o, "cap_bytes", cap_bytes);
    return o;
}

void entries_cap(json_t *payload, int64_t cap_bytes)
{
    json_t *outputs = json_object_get(payload, "outputs"), *entry;
    while (cap_bytes > 0 && size_of(payload) > cap_bytes) {
        size_t i, largest = 0;
        int64_t most = 0;
        json_array_foreach(outputs, i, entry)
        {
            int64_t n = json_get_bool(entry, "elided", false) ? 0 : size_of(entry);
            largest = n > most ? i : largest;
            most = n > most ? n : most;
        }
        if (most == 0)
            return;
        entry = json_array_get(outputs, largest);
        (void)json_array_set_new(outputs, largest, elided(entry, most, cap_bytes));
    }
}

json_t *json_safe(const json_t *v)
{
    const char *text = json_string_value(v), *key;
    json_t *copy, *member;
    size_t i;
    if (json_is_array(v)) {
        copy = json_array();
        json_array_foreach(v, i, member)(void) json_array_append_new(copy, json_safe(member));
        return copy;
    }
    if (json_is_object(v)) {
        copy = json_object();
        json_object_foreach((json_t *)(uintptr_t)v, key, member)
            json_put(copy, key, json_safe(member));
        return copy;
    }
    if (str_eq(text, "NaN") || str_eq(text, "Infinity") || str_eq(text, "-Infinity"))
        return json_null();
    return json_deep_copy(v);
}
