/* spec_params.c - node parameters as plain values. */
#include "base/mem.h"
#include "base/str.h"
#include "train/spec_int.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_MAX = 1 << 20 };

const char *spec_show(const json_t *params, const char *name, char *buf, size_t cap)
{
    const json_t *v = json_object_get(params, name);
    if (json_is_string(v)) {
        (void)snprintf(buf, cap, "'%.60s'", json_string_value(v));
        return buf;
    }
    char *text = v ? json_text(v, false) : NULL;
    /* The shortest digits that read back as the same number. */
    if (json_is_real(v))
        for (int digits = 1; digits <= 17; digits++) {
            (void)snprintf(buf, cap, "%.*g", digits, json_real_value(v));
            if (strtod(buf, NULL) == json_real_value(v))
                break;
        }
    else
        (void)snprintf(buf, cap, "%.60s", text ? text : "nothing");
    mem_free(text);
    return buf;
}

static enum status bad(const json_t *params, const char *name, const char *want, struct err *e)
{
    char shown[80];
    return err_set(
        e, ST_INVALID, "\"%s\" is %s, not %s", name, spec_show(params, name, shown, sizeof shown),
        want);
}

static bool number_of(const json_t *v, double *out)
{
    if (json_is_number(v)) {
        *out = json_number_value(v);
        return isfinite(*out);
    }
    return json_is_string(v) && str_to_f64(json_string_value(v), out) && isfinite(*out);
}

enum status spec_f64(const json_t *params, const char *name, double *out, struct err *e)
{
    const json_t *v = json_object_get(params, name);
    double x;
    if (!v || json_is_null(v))
        return ST_OK;
    if (!number_of(v, &x))
        return bad(params, name, "a finite number", e);
    *out = x;
    return ST_OK;
}

enum status spec_i64(const json_t *params, const char *name, int64_t *out, struct err *e)
{
    const json_t *v = json_object_get(params, name);
    double x;
    if (!v || json_is_null(v))
        return ST_OK;
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return ST_OK;
    }
    if (!number_of(v, &x) || floor(x) != x || fabs(x) > 0x1p53)
        return bad(params, name, "a whole number", e);
    *out = (int64_t)x;
    return ST_OK;
}

enum status spec_bool(const json_t *params, const char *name, bool *out, struct err *e)
{
    const json_t *v = json_object_get(params, name);
    if (!v || json_is_null(v))
        return ST_OK;
    if (!json_is_boolean(v))
        return bad(params, name, "true or false", e);
    *out = json_is_true(v);
    return ST_OK;
}

/* One number from *s up to a comma or the end; moves *s past the comma. */
static bool next_number(const char **s, double *out)
{
    char *end;
    *out = strtod(*s, &end);
    if (end == *s || !isfinite(*out))
        return false;
    while (isspace((unsigned char)*end))
        end++;
    if (*end != ',' && *end)
        return false;
    *s = *end ? end + 1 : end;
    return true;
}

static bool numbers_of_text(const char *text, double **out, int *n)
{
    VEC(double) found = {0};
    char *copy = mem_strdup(text), *start = copy, *end = copy + strlen(copy);
    while (isspace((unsigned char)*start))
        start++;
    while (end > start && isspace((unsigned char)end[-1]))
        end--;
    if (end - start >= 2 &&
        ((*start == '(' && end[-1] == ')') || (*start == '[' && end[-1] == ']')))
        start++, end--;
    *end = 0;
    const char *s = start;
    double x;
    bool good = true;
    while (good && *s && found.n < LIST_MAX) {
        good = next_number(&s, &x);
        if (good)
            vec_push(&found, x);
    }
    good = good && !*s;
    mem_free(copy);
    if (!good || !found.n)
        vec_release(&found);
    *out = found.data;
    *n = (int)found.n;
    return good;
}

static bool numbers_of_array(const json_t *v, double **out, int *n)
{
    size_t count = json_array_size(v);
    if (count > LIST_MAX)
        return false;
    double *list = count ? mem_alloc(count * sizeof *list) : NULL;
    for (size_t i = 0; i < count; i++)
        if (!number_of(json_array_get(v, i), &list[i])) {
            mem_free(list);
            return false;
        }
    *out = list;
    *n = (int)count;
    return true;
}

enum status spec_list(const json_t *params, const char *name, double **out, int *n, struct err *e)
{
    const json_t *v = json_object_get(params, name);
    *out = NULL;
    *n = 0;
    if (!v || json_is_null(v))
        return ST_OK;
    double one;
    if (json_is_number(v) && number_of(v, &one)) {
        *out = mem_alloc(sizeof one);
        **out = one;
        *n = 1;
        return ST_OK;
    }
    bool good = json_is_string(v)  ? numbers_of_text(json_string_value(v), out, n)
                : json_is_array(v) ? numbers_of_array(v, out, n)
                                   : false;
    return good ? ST_OK : bad(params, name, "a list of finite numbers separated by commas", e);
}
