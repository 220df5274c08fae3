/* json.c - jansson with our errors. */
#include "base/json.h"

#include "base/env.h"
#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum status json_parse(const char *text, size_t n, const char *what, json_t **out, struct err *e)
{
    json_error_t je;
    json_t *v = json_loadb(text, n, JSON_REJECT_DUPLICATES, &je);
    if (!v)
        return err_set(
            e, ST_CORRUPT, "\"%s\" is not valid JSON: line %d, column %d: %s", what, je.line,
            je.column, je.text);
    *out = v;
    return ST_OK;
}

enum status json_read_file(const char *path, size_t limit_bytes, json_t **out, struct err *e)
{
    char *text;
    size_t n;
    TRY(file_read(path, limit_bytes, &text, &n, e));
    enum status st = json_parse(text, n, path, out, e);
    mem_free(text);
    return st;
}

const char *json_get_str(const json_t *object, const char *key, const char *fallback)
{
    const json_t *v = json_object_get(object, key);
    return json_is_string(v) ? json_string_value(v) : fallback;
}

int64_t json_get_i64(const json_t *object, const char *key, int64_t fallback)
{
    const json_t *v = json_object_get(object, key);
    if (json_is_integer(v))
        return json_integer_value(v);
    if (json_is_real(v) && fabs(json_real_value(v)) < 0x1p53 &&
        floor(json_real_value(v)) == json_real_value(v))
        return (int64_t)json_real_value(v);
    return fallback;
}

double json_get_f64(const json_t *object, const char *key, double fallback)
{
    const json_t *v = json_object_get(object, key);
    return json_is_number(v) ? json_number_value(v) : fallback;
}

bool json_get_bool(const json_t *object, const char *key, bool fallback)
{
    const json_t *v = json_object_get(object, key);
    return json_is_boolean(v) ? json_is_true(v) : fallback;
}

json_t *json_f64(double value)
{
    if (isnan(value))
        return json_string("NaN");
    if (isinf(value))
        return json_string(value > 0 ? "Infinity" : "-Infinity");
    return json_real(value);
}

void json_put(json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) != 0)
        ASSERT(value != NULL);
}

void json_put_str(json_t *object, const char *key, const char *value)
{
    json_t *v = value ? json_string(value) : json_null();
    json_put(object, key, v ? v : json_string("(text that is not UTF-8)"));
}

void json_put_i64(json_t *object, const char *key, int64_t value)
{
    json_put(object, key, json_integer(value));
}

void json_put_f64(json_t *object, const char *key, double value)
{
    json_put(object, key, json_f64(value));
}

void json_put_bool(json_t *object, const char *key, bool value)
{
    json_put(object, key, json_boolean(value));
}

char *json_text(const json_t *value, bool indented)
{
    char *s = json_dumps(value, (indented ? JSON_INDENT(2) : JSON_COMPACT) | JSON_ENCODE_ANY);
    char *copy = mem_strdup(s ? s : "null");
    free(s);
    return copy;
}

/* Within a script element "<" could end it. */
static void add_for_script(struct str *out, const char *text)
{
    for (size_t n; *text; text += n) {
        n = strcspn(text, "<");
        str_add_n(out, text, n);
        if (text[n] == '<') {
            str_add(out, "\\u003c");
            n++;
        }
    }
}

void json_into_page(const char *page, const char *mark, const json_t *value, struct str *out)
{
    const char *at = strstr(page, mark);
    ASSERT(at);
    at += strlen(mark);
    char *text = json_text(value, false);
    str_add_n(out, page, (size_t)(at - page));
    add_for_script(out, text);
    str_add(out, at + 2); /* what stands there is {} */
    mem_free(text);
}
