/* nodes.c - the table of node types, lookups in it. */
#include "graph/nodes.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NONE ((double)NAN)
#define RUNNABLE NODE_FLAG_RUNNABLE
#define UNCACHED NODE_FLAG_UNCACHED
#define DYNAMIC NODE_FLAG_DYNAMIC
#define OPEN NODE_FLAG_OPEN
#define ADVANCED PARAM_FLAG_ADVANCED
#define NOT_IN_KEY PARAM_FLAG_NOT_IN_KEY
#define LATER PARAM_FLAG_LATER
#define DEVICE PARAM_FLAG_DEVICE
#define PORT(name, type) {name, PORT_##type, false},
#define OPT(name, type) {name, PORT_##type, true},
#define INPUTS(...)                                                                                \
    (const struct node_port[])                                                                     \
    {                                                                                              \
        __VA_ARGS__                                                                                \
        {                                                                                          \
            NULL, PORT_ANY, false                                                                  \
        }                                                                                          \
    }
#define OUTPUTS INPUTS
#define PARAM(name, type, initial, min, max, options, when, flags, about)                          \
    {name, PARAM_##type, initial, min, max, options, when, flags, about},
#define PARAMS(...)                                                                                \
    (const struct node_param[])                                                                    \
    {                                                                                              \
        __VA_ARGS__                                                                                \
        {                                                                                          \
            .name = NULL                                                                           \
        }                                                                                          \
    }
#define NODE(name, category, provider, flags, about, inputs, outputs, params)                      \
    {name, category, provider, flags, about, inputs, outputs, params},

static const struct node_type table[] = {
#include "graph/nodes.def"
};

static const char *const port_names[PORT_TYPE_COUNT] = {
    "TENSOR", "MODEL", "DATASET", "DATALOADER", "OPTIMIZER", "LOSS_FN", "SCALAR",
    "STRING", "IMAGE", "LIST",    "TRANSFORM",  "TRIGGER",   "ANY"};

const char *port_type_name(enum port_type t)
{
    return port_names[t];
}

bool port_type_fits(enum port_type source, enum port_type target)
{
    if (source == target)
        return true;
    if (source == PORT_TRIGGER || target == PORT_TRIGGER)
        return false;
    if (source == PORT_IMAGE && target == PORT_TENSOR)
        return true;
    return target == PORT_ANY || source == PORT_ANY;
}

const char *param_type_name(enum param_type t)
{
    static const char *const names[] = {"int",         "float",      "string",     "bool",
                                        "select",      "model_file", "image_file", "data_file",
                                        "tensor_grid", "secret",     "code"};
    return names[t];
}

size_t node_type_count(void)
{
    return sizeof table / sizeof *table;
}

const struct node_type *node_type_at(size_t i)
{
    return i < node_type_count() ? &table[i] : NULL;
}

const struct node_type *node_type_find(const char *name)
{
    for (size_t i = 0; i < node_type_count(); i++) {
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    }
    const struct node_type *best = NULL;
    for (size_t i = 0; !strchr(name, ':') && i < node_type_count(); i++) {
        const char *colon = strchr(table[i].name, ':');
        if (colon && strcmp(colon + 1, name) == 0 &&
            (!best || strcmp(table[i].name, best->name) < 0))
            best = &table[i];
    }
    return best;
}

const char *node_type_nearest(const char *name)
{
    const char *names[sizeof table / sizeof *table];
    for (size_t i = 0; i < node_type_count(); i++)
        names[i] = table[i].name;
    return str_nearest(name, names, node_type_count());
}

const struct node_param *node_param_find(const struct node_type *t, const char *name)
{
    for (const struct node_param *p = t->params; p->name; p++) {
        if (strcmp(p->name, name) == 0)
            return p;
    }
    return NULL;
}

const char *node_param_nearest(const struct node_type *t, const char *name)
{
    VEC(const char *) names = {0};
    for (const struct node_param *p = t->params; p->name; p++)
        vec_push(&names, p->name);
    const char *best = str_nearest(name, names.data, names.n);
    vec_release(&names);
    return best;
}

json_t *node_param_initial(const struct node_param *p)
{
    json_t *v = node_param_parse(p, p->initial);
    ASSERT(v != NULL); /* a test walks the table */
    return v;
}

/* Compares `value` with one option of length n; true when they are the same. */
static bool same_option(const char *option, size_t n, const char *value)
{
    return strlen(value) == n && memcmp(option, value, n) == 0;
}

enum param_option node_param_option(const struct node_param *p, const char *value)
{
    for (const char *o = p->options; o && *o;) {
        size_t n = strcspn(o, "|");
        bool later = *o == '!';
        if (same_option(o + later, n - later, value))
            return later ? PARAM_OPTION_LATER : PARAM_OPTION_OK;
        o += n + (o[n] == '|');
    }
    if ((p->flags & PARAM_FLAG_DEVICE) &&
        (str_starts(value, "cuda:") || str_starts(value, "${CUDA") || str_starts(value, "mps:")))
        return PARAM_OPTION_OK;
    return PARAM_OPTION_UNKNOWN;
}

json_t *node_param_parse(const struct node_param *p, const char *text)
{
    int64_t i;
    double d;
    json_error_t je;
    switch (p->type) {
    case PARAM_INT:
        if (str_to_i64(text, &i))
            return json_integer(i);
        /* 1e5 is a whole number too. */
        if (str_to_f64(text, &d) && floor(d) == d && fabs(d) < 0x1p53)
            return json_integer((json_int_t)d);
        return NULL;
    case PARAM_FLOAT:
        return str_to_f64(text, &d) && isfinite(d) ? json_real(d) : NULL;
    case PARAM_BOOL:
        if (str_eq(text, "true") || str_eq(text, "1"))
            return json_true();
        return str_eq(text, "false") || str_eq(text, "0") ? json_false() : NULL;
    case PARAM_SELECT:
        return node_param_option(p, text) != PARAM_OPTION_UNKNOWN ? json_string(text) : NULL;
    case PARAM_TENSOR_GRID:
        return json_loads(text, JSON_DECODE_ANY, &je);
    case PARAM_STRING:
    case PARAM_MODEL_FILE:
    case PARAM_IMAGE_FILE:
    case PARAM_DATA_FILE:
    case PARAM_SECRET:
    case PARAM_CODE:
        break;
    }
    return json_string(text); /* NULL where it is not UTF-8 */
}

/* Ports that follow from parameters: <prefix><first> ... <prefix><first + count - 1>. */
static const struct dynamic_ports {
    const char *type;
    bool output;
    const char *prefix;
    int first;
    const char *count_param;
    int count_min, count_max;
    struct node_port port;
} dynamic_ports[] = {
    {"Split", true, "chunk_", 0, "chunks", 1, 32, {NULL, PORT_TENSOR, false}},
    {"ComposeTransform", false, "step_", 1, "steps", 2, 8, {NULL, PORT_TRANSFORM, true}},
    {"DataMixDataset", false, "corpus_", 1, "sources", 2, 6, {NULL, PORT_DATASET, false}},
};

static const struct dynamic_ports *dynamic_find(const struct node_type *t, bool output)
{
    for (size_t i = 0; i < sizeof dynamic_ports / sizeof *dynamic_ports; i++) {
        const struct dynamic_ports *d = &dynamic_ports[i];
        if (d->output == output && strcmp(d->type, t->name) == 0)
            return d;
    }
    return NULL;
}

static size_t
dynamic_count(const struct dynamic_ports *d, const struct node_type *t, const json_t *params)
{
    int64_t initial = strtoll(node_param_find(t, d->count_param)->initial, NULL, 10);
    int64_t n = json_get_i64(params, d->count_param, initial);
    return (size_t)(n < d->count_min ? d->count_min : n > d->count_max ? d->count_max : n);
}

bool node_port_at(
    const struct node_type *t, const json_t *params, bool output, size_t i, struct node_port *port,
    char buf[32])
{
    const struct dynamic_ports *d = dynamic_find(t, output);
    if (d) {
        if (i >= dynamic_count(d, t, params))
            return false;
        (void)snprintf(buf, 32, "%s%d", d->prefix, d->first + (int)i);
        *port = d->port;
        port->name = buf;
        return true;
    }
    const struct node_port *list = output ? t->outputs : t->inputs;
    for (size_t k = 0; list[k].name; k++) {
        if (k == i) {
            *port = list[k];
            return true;
        }
    }
    return false;
}

bool node_port_find(
    const struct node_type *t, const json_t *params, bool output, const char *name,
    struct node_port *port)
{
    char buf[32];
    for (size_t i = 0; node_port_at(t, params, output, i, port, buf); i++) {
        if (strcmp(port->name, name) == 0) {
            port->name = name;
            return true;
        }
    }
    *port = (struct node_port){name, PORT_ANY, true};
    return (t->flags & NODE_FLAG_OPEN) && *name;
}
