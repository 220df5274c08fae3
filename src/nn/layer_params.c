/* layer_params.c - reads a layer's "params" into struct layer_params, by the rows of layers.def.
 *
 * Kinds. Spatial ones take a number, or a list with one number per spatial dimension.
 *   SIZE       a whole number from 1 on              DIMS       spatial, from 1 on
 *   INT        a whole number                        OPT_DIMS   the same, or null
 *   OPT_INT    a whole number or null                PADS       spatial, from 0 on
 *   FLOAT      a finite number from 0 on             PADDING    PADS, "same" or "valid"
 *   OPT_FLOAT  a finite number from 0 on, or null    OUTPUT     DIMS, null for the input's size
 *   BOOL       true or false                         SHAPE      a number or a list, from 1 on
 *   SHAPE_TEXT "a,b,..." or a list, one may be -1    ZEROS      the text "zeros"
 *   CHOICE     one of the texts of the default, "a|b": its place; the first is the default
 *   ZERO       0: the rest is not in this version
 *   FALSE      false: the rest is not in this version
 *   NONE       null: the rest is not in this version
 *   IGNORED    any value, without effect             ANY        as IGNORED, under any name
 */
#include "base/mem.h"
#include "base/str.h"
#include "nn/layer.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* A product of two numbers fits 64 bits: nothing in the arithmetic of shapes overflows. */
static const int64_t number_max = INT32_MAX;

struct reader {
    const struct layer *layer;
    const char *name; /* of the parameter */
    struct err *e;
};

enum kind {
    KIND_SIZE,
    KIND_INT,
    KIND_OPT_INT,
    KIND_FLOAT,
    KIND_OPT_FLOAT,
    KIND_BOOL,
    KIND_DIMS,
    KIND_OPT_DIMS,
    KIND_PADS,
    KIND_PADDING,
    KIND_OUTPUT,
    KIND_SHAPE,
    KIND_SHAPE_TEXT,
    KIND_ZEROS,
    KIND_FALSE,
    KIND_NONE,
    KIND_IGNORED,
    KIND_ANY,
    KIND_ZERO,
    KIND_CHOICE
};

static const struct {
    struct layer_param row;
    enum kind kind;
    size_t offset; /* of the field in struct layer_params */
} rows[] = {
#define PARAM(family, name, kind, fallback)                                                        \
    {{#family, #name, #kind, fallback}, KIND_##kind, offsetof(struct layer_params, name)},
#include "nn/layers.def"
};
enum { ROW_COUNT = sizeof rows / sizeof rows[0] };

bool layer_param_at(const char *family, int i, struct layer_param *out)
{
    for (size_t k = 0; k < ROW_COUNT; k++) {
        if (str_eq(rows[k].row.family, family) && i-- == 0) {
            *out = rows[k].row;
            return true;
        }
    }
    return false;
}

/* "must be <wanted>, not <value>". */
static enum status refuse(const struct reader *r, const json_t *v, const char *wanted)
{
    char *got = json_text(v, false);
    enum status st = err_set(
        r->e, ST_INVALID, "layer \"%s\" (%s): parameter \"%s\" must be %s, not %.60s", r->layer->id,
        r->layer->type->name, r->name, wanted, got);
    mem_free(got);
    return st;
}

static enum status lacking(const struct reader *r, const json_t *v, const char *only)
{
    char *got = json_text(v, false);
    enum status st = err_set(
        r->e, ST_UNSUPPORTED,
        "layer \"%s\" (%s): parameter \"%s\" is %.60s, and this version only has %s", r->layer->id,
        r->layer->type->name, r->name, got, only);
    mem_free(got);
    return st;
}

static bool whole(const json_t *v, int64_t low, int64_t *out)
{
    if (!json_is_integer(v) || json_integer_value(v) < low || json_integer_value(v) > number_max)
        return false;
    *out = json_integer_value(v);
    return true;
}

static enum status read_whole(const struct reader *r, const json_t *v, int64_t low, int64_t *out)
{
    if (whole(v, low, out))
        return ST_OK;
    if (json_is_integer(v) && json_integer_value(v) > number_max)
        return refuse(r, v, "at most 2147483647");
    return refuse(r, v, low == 1 ? "a whole number of at least 1" : "a whole number");
}

/* One number for all spatial dimensions, or a list of them. `neutral` fills what a one-dimensional
 * layer lacks; -1 stands for null where `nulls` allows it. */
static enum status read_spatial(
    const struct reader *r, const json_t *v, int64_t low, bool nulls, int64_t neutral,
    int64_t out[2])
{
    int n = r->layer->type->spatial;
    bool list = json_is_array(v);
    bool good = !list || json_array_size(v) == (size_t)n;
    out[0] = neutral;
    for (int i = 0; i < n && good; i++) {
        const json_t *one = list ? json_array_get(v, (size_t)i) : v;
        int64_t *place = &out[2 - n + i];
        if (nulls && json_is_null(one))
            *place = -1;
        else
            good = whole(one, low, place);
    }
    if (good)
        return ST_OK;
    if (n == 1)
        return refuse(r, v, low ? "a whole number of at least 1" : "a whole number of at least 0");
    return refuse(
        r, v,
        low ? "a whole number of at least 1, or a pair of them"
            : "a whole number of at least 0, or a pair of them");
}

static enum status read_padding(const struct reader *r, const json_t *v, struct layer_padding *out)
{
    const char *text = json_string_value(v);
    *out = (struct layer_padding){.same = str_eq(text, "same")};
    if (out->same || str_eq(text, "valid"))
        return ST_OK;
    if (text)
        return refuse(r, v, "\"valid\", \"same\" or numbers");
    return read_spatial(r, v, 0, false, 0, out->n);
}

static enum status read_float(const struct reader *r, const json_t *v, double *out)
{
    double x = json_is_number(v) ? json_number_value(v) : (double)NAN;
    if (!isfinite(x) || x < 0)
        return refuse(r, v, "a finite number of at least 0");
    *out = x;
    return ST_OK;
}

static enum status read_bool(const struct reader *r, const json_t *v, bool *out)
{
    if (!json_is_boolean(v))
        return refuse(r, v, "true or false");
    *out = json_is_true(v);
    return ST_OK;
}

static enum status read_shape(const struct reader *r, const json_t *v, struct shape *out)
{
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    bool good = n >= 1 && n < RANK_MAX;
    out->rank = (int)n;
    for (size_t i = 0; i < n && good; i++)
        good = whole(json_is_array(v) ? json_array_get(v, i) : v, 1, &out->dim[i]);
    return good ? ST_OK
                : refuse(r, v, "a whole number of at least 1, or a list of one to seven of them");
}

/* One number of "3, -1,8": what lies before the comma. Advances *text. */
static bool shape_word(const char **text, int64_t *out)
{
    char word[24];
    size_t n = strcspn(*text, ","), first = strspn(*text, " ");
    first = first < n ? first : n;
    size_t length = n - first;
    while (length > 0 && (*text)[first + length - 1] == ' ')
        length--;
    if (length >= sizeof word)
        return false;
    memcpy(word, *text + first, length);
    word[length] = 0;
    *text += n;
    *text += **text == ',';
    return str_to_i64(word, out);
}

static enum status read_shape_text(const struct reader *r, const json_t *v, struct shape *out)
{
    const char *text = json_string_value(v);
    int free_dims = 0;
    bool good = text ? *text != 0 : json_is_array(v);
    size_t n = json_array_size(v);
    for (out->rank = 0; good && (text ? *text != 0 : (size_t)out->rank < n); out->rank++) {
        int64_t x = 0;
        good = out->rank < RANK_MAX - 1 &&
               (text ? shape_word(&text, &x) : whole(json_array_get(v, (size_t)out->rank), -1, &x));
        good = good && x >= -1 && x != 0 && x <= number_max;
        free_dims += x == -1;
        if (good)
            out->dim[out->rank] = x;
    }
    if (good && out->rank > 0 && free_dims <= 1)
        return ST_OK;
    return refuse(r, v, "one to seven sizes such as \"64,7,7\", at most one of them -1");
}

static enum status
read_optional(const struct reader *r, const json_t *v, enum kind kind, void *field)
{
    bool none = json_is_null(v);
    if (kind == KIND_OPT_DIMS) {
        int64_t *pair = field;
        pair[0] = pair[1] = 0;
        return none ? ST_OK : read_spatial(r, v, 1, false, 1, pair);
    }
    if (kind == KIND_OPT_FLOAT) {
        *(double *)field = -1;
        return none ? ST_OK : read_float(r, v, field);
    }
    *(int64_t *)field = INT64_MIN;
    return none ? ST_OK : read_whole(r, v, -number_max, field);
}

static enum status read_one(const struct reader *r, const json_t *v, enum kind kind, void *field)
{
    switch (kind) {
    case KIND_SIZE:
        return read_whole(r, v, 1, field);
    case KIND_INT:
        return read_whole(r, v, -number_max, field);
    case KIND_OPT_INT:
    case KIND_OPT_FLOAT:
    case KIND_OPT_DIMS:
        return read_optional(r, v, kind, field);
    case KIND_FLOAT:
        return read_float(r, v, field);
    case KIND_BOOL:
        return read_bool(r, v, field);
    case KIND_DIMS:
        return read_spatial(r, v, 1, false, 1, field);
    case KIND_PADS:
        return read_spatial(r, v, 0, false, 0, field);
    case KIND_PADDING:
        return read_padding(r, v, field);
    case KIND_OUTPUT:
        return read_spatial(r, v, 1, true, 1, field);
    case KIND_SHAPE:
        return read_shape(r, v, field);
    case KIND_SHAPE_TEXT:
        return read_shape_text(r, v, field);
    case KIND_ZEROS:
        return str_eq(json_string_value(v), "zeros") ? ST_OK : lacking(r, v, "\"zeros\"");
    case KIND_FALSE:
        return json_is_false(v) ? ST_OK : lacking(r, v, "false");
    case KIND_NONE:
        return json_is_null(v) ? ST_OK : lacking(r, v, "null");
    case KIND_ZERO:
        return json_is_integer(v) && json_integer_value(v) == 0 ? ST_OK : lacking(r, v, "0");
    case KIND_CHOICE:
    case KIND_IGNORED:
    case KIND_ANY:
        break;
    }
    return ST_OK;
}

/* Every name that is given must be one of the family's. */
static enum status names_check(const struct layer *l, const json_t *params, struct err *e)
{
    const char *known[ROW_COUNT], *name;
    size_t n = 0;
    json_t *value;
    for (size_t k = 0; k < ROW_COUNT; k++) {
        if (!str_eq(rows[k].row.family, l->type->family))
            continue;
        if (rows[k].kind == KIND_ANY)
            return ST_OK;
        known[n++] = rows[k].row.name;
    }
    json_object_foreach((json_t *)(uintptr_t)params, name, value)
    {
        bool found = false;
        for (size_t k = 0; k < n; k++)
            found = found || str_eq(known[k], name);
        if (found)
            continue;
        (void)err_set(
            e, ST_INVALID, "layer \"%s\" (%s): unexpected parameter \"%.64s\"", l->id,
            l->type->name, name);
        const char *near = str_nearest(name, known, n);
        if (near && e)
            err_hint(e, "Did you mean \"%s\"?", near);
        return ST_INVALID;
    }
    return ST_OK;
}

/* The place of a text among "a|b|c". */
static enum status
read_choice(const struct reader *r, const json_t *v, const char *options, int *out)
{
    const char *text = json_string_value(v);
    size_t n = text ? strlen(text) : 0;
    *out = 0;
    for (const char *one = options; text && *one; (*out)++) {
        size_t length = strcspn(one, "|\"");
        if (length == n && memcmp(one, text, n) == 0)
            return ST_OK;
        one += length;
        one += *one == '|';
        if (*one == '"')
            break;
    }
    char wanted[128];
    (void)snprintf(wanted, sizeof wanted, "one of %.*s", (int)strcspn(options, "\""), options);
    return refuse(r, v, wanted);
}

static enum status read_row(struct layer *l, size_t k, const json_t *params, struct err *e)
{
    struct reader r = {.layer = l, .name = rows[k].row.name, .e = e};
    const json_t *given = json_object_get(params, r.name);
    void *field = (char *)&l->params + rows[k].offset;
    if (rows[k].kind == KIND_CHOICE) {
        *(int *)field = 0;
        return given ? read_choice(&r, given, rows[k].row.fallback + 1, field) : ST_OK;
    }
    if (given)
        return read_one(&r, given, rows[k].kind, field);
    if (!*rows[k].row.fallback)
        return err_set(
            e, ST_INVALID, "layer \"%s\" (%s): parameter \"%s\" is missing", l->id, l->type->name,
            r.name);
    json_t *v = json_loads(rows[k].row.fallback, JSON_DECODE_ANY, NULL);
    ASSERT(v != NULL);
    enum status st = read_one(&r, v, rows[k].kind, field);
    json_decref(v);
    return st;
}

enum status layer_params_read(struct layer *l, const json_t *params, struct err *e)
{
    if (params && !json_is_object(params) && !json_is_null(params))
        return err_set(
            e, ST_INVALID, "layer \"%s\" (%s): \"params\" must be an object", l->id, l->type->name);
    TRY(names_check(l, params, e));
    for (size_t k = 0; k < ROW_COUNT; k++)
        if (str_eq(rows[k].row.family, l->type->family))
            TRY(read_row(l, k, params, e));
    return ST_OK;
}
