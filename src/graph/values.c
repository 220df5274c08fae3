/* values.c - parameter values: what is wrong with one, and how messages show it. */
#include "graph/graph_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN_BYTES_MAX 60

/* The shortest decimal that reads back as the same double; whole ones end in ".0". */
static void number_text(double v, struct str *out)
{
    char buf[32];
    for (int digits = 1; digits <= 17; digits++) {
        (void)snprintf(buf, sizeof buf, "%.*g", digits, v);
        if (strtod(buf, NULL) == v)
            break;
    }
    str_add(out, buf);
    if (!strpbrk(buf, ".einf"))
        str_add(out, ".0");
}

static void bound_text(double v, char *buf, size_t cap)
{
    (void)snprintf(buf, cap, "%.17g", v);
    if (strtod(buf, NULL) == v)
        (void)snprintf(buf, cap, "%g", v);
}

/* Cuts at a character, not within one. */
static size_t cut(const char *s, size_t max)
{
    size_t n = strlen(s);
    if (n <= max)
        return n;
    n = max;
    while (n > 0 && ((unsigned char)s[n] & 0xC0) == 0x80)
        n--;
    return n;
}

void graph_value_text(const json_t *value, struct str *out)
{
    if (json_is_integer(value)) {
        str_printf(out, "%lld", (long long)json_integer_value(value));
    } else if (json_is_real(value)) {
        number_text(json_real_value(value), out);
    } else {
        char *text =
            json_is_string(value) ? mem_strdup(json_string_value(value)) : json_text(value, false);
        size_t n = cut(text, SHOWN_BYTES_MAX);
        str_add_n(out, text, n);
        if (text[n])
            str_add(out, "...");
        mem_free(text);
    }
}

/* Writes "Parameter 'p' on node ID (T): value V is <rest>". */
static void tell(
    const struct graph_node *n, const struct node_param *p, const json_t *value, const char *rest,
    char *buf, size_t cap)
{
    struct str v;
    str_init(&v);
    graph_value_text(value, &v);
    (void)snprintf(
        buf, cap, "Parameter '%s' on node %.200s (%.100s): value %s is %s", p->name, n->id, n->type,
        v.data, rest);
    str_release(&v);
}

static const char *
number_fault(const struct node_param *p, const json_t *value, bool strict, char rest[96])
{
    bool bounded = !isnan(p->min) || !isnan(p->max);
    char bound[40];
    /* The founding system counts true as 1; we do not let it pass for a number. */
    if (!json_is_number(value)) {
        if (!bounded && !strict)
            return NULL;
        (void)snprintf(
            rest, 96, "not a number%s",
            bounded ? ", so it cannot be checked against its bounds" : "");
        return "param_not_number";
    }
    double v = json_number_value(value);
    if (!isnan(p->min) && v < p->min) {
        bound_text(p->min, bound, sizeof bound);
        (void)snprintf(rest, 96, "below minimum %s", bound);
        return "param_below_min";
    }
    if (!isnan(p->max) && v > p->max) {
        bound_text(p->max, bound, sizeof bound);
        (void)snprintf(rest, 96, "above maximum %s", bound);
        return "param_above_max";
    }
    if (strict && p->type == PARAM_INT && json_is_real(value) &&
        (floor(v) != v || fabs(v) >= 0x1p53)) {
        (void)snprintf(rest, 96, "not a whole number");
        return "param_not_integer";
    }
    return NULL;
}

static const char *select_fault(const struct node_param *p, const json_t *value, char rest[96])
{
    const char *text = json_string_value(value);
    if (text && node_param_option(p, text) != PARAM_OPTION_UNKNOWN)
        return NULL;
    /* Which devices there are is decided where they are known. */
    if (text && (p->flags & PARAM_FLAG_DEVICE) && graph_device_is_known(text))
        return NULL;
    (void)snprintf(rest, 96, "not one of its options");
    return "param_option";
}

const char *graph_value_fault(
    const struct graph_node *n, const struct node_param *p, const json_t *value, bool strict,
    char *buf, size_t cap)
{
    char rest[96] = "";
    const char *code = NULL;
    bool good = true;
    switch (p->type) {
    case PARAM_INT:
    case PARAM_FLOAT:
        code = number_fault(p, value, strict, rest);
        break;
    case PARAM_BOOL:
        good = json_is_boolean(value);
        (void)snprintf(rest, sizeof rest, "neither true nor false");
        break;
    case PARAM_SELECT:
        code = strict ? select_fault(p, value, rest) : NULL;
        break;
    case PARAM_TENSOR_GRID:
        good = json_is_null(value) || json_is_array(value) || json_is_number(value);
        (void)snprintf(rest, sizeof rest, "not nested lists of numbers");
        break;
    case PARAM_STRING:
    case PARAM_MODEL_FILE:
    case PARAM_IMAGE_FILE:
    case PARAM_DATA_FILE:
    case PARAM_SECRET:
    case PARAM_CODE:
        good = json_is_string(value);
        (void)snprintf(rest, sizeof rest, "not a text");
        break;
    }
    if (!code && strict && !good)
        code = "param_type";
    if (!code)
        return NULL;
    tell(n, p, value, rest, buf, cap);
    if (p->options && str_eq(code, "param_option")) {
        size_t used = strlen(buf);
        (void)snprintf(buf + used, cap - used, " (%s)", p->options);
        for (char *c = buf + used; *c; c++) {
            if (*c == '|')
                *c = ' ';
        }
    }
    return code;
}

/* The value of a parameter, or NULL where the default stands. */
static const json_t *
value_of(const struct graph_node *n, const char *name, const struct node_param **param)
{
    ASSERT(n->kind != NULL);
    *param = node_param_find(n->kind, name);
    ASSERT(*param != NULL);
    return json_object_get(n->params, name);
}

int64_t graph_param_i64(const struct graph_node *n, const char *name)
{
    const struct node_param *p;
    int64_t initial = 0;
    (void)value_of(n, name, &p);
    (void)str_to_i64(p->initial, &initial);
    return json_get_i64(n->params, name, initial);
}

double graph_param_f64(const struct graph_node *n, const char *name)
{
    const struct node_param *p;
    double initial = 0;
    (void)value_of(n, name, &p);
    (void)str_to_f64(p->initial, &initial);
    return json_get_f64(n->params, name, initial);
}

bool graph_param_bool(const struct graph_node *n, const char *name)
{
    const struct node_param *p;
    (void)value_of(n, name, &p);
    return json_get_bool(n->params, name, str_eq(p->initial, "true"));
}

const char *graph_param_str(const struct graph_node *n, const char *name)
{
    const struct node_param *p;
    const json_t *v = value_of(n, name, &p);
    return json_is_string(v) ? json_string_value(v) : p->initial;
}

const json_t *graph_param_json(const struct graph_node *n, const char *name)
{
    const struct node_param *p;
    return value_of(n, name, &p);
}

json_t *graph_params_full(const struct graph_node *n)
{
    json_t *full = json_copy(n->params);
    for (const struct node_param *p = n->kind ? n->kind->params : NULL; p && p->name; p++) {
        if (!json_object_get(full, p->name))
            json_put(full, p->name, node_param_initial(p));
    }
    return full;
}

json_t *graph_default_read(const char *text)
{
    struct str list;
    struct err ignored;
    json_t *read = NULL, *value = NULL;
    str_init(&list);
    str_printf(&list, "[%s]", text);
    if (json_parse(list.data, list.n, "default", &read, &ignored) == ST_OK &&
        json_array_size(read) == 1)
        value = json_incref(json_array_get(read, 0));
    json_decref(read);
    str_release(&list);
    return value;
}
