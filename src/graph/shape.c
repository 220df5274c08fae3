/* shape.c - whether a graph document has the shape that the rest of this folder takes for granted.
 *
 * Every fault is reported with its place ("nodes[3].data.params"); none stops the search.
 */
#include "graph/graph_int.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define FAULTS_SHOWN_MAX 20

struct faults {
    struct str list; /* one a line, the first FAULTS_SHOWN_MAX of them */
    size_t n;
    char first[256];
};

static void fault(struct faults *f, const char *fmt, ...) PRINTF(2, 3);
static void fault(struct faults *f, const char *fmt, ...)
{
    char line[256];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (f->n == 0)
        memcpy(f->first, line, sizeof line);
    if (f->n++ < FAULTS_SHOWN_MAX)
        str_printf(&f->list, "%s\n", line);
}

static const char *kind_of(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "true or false";
    case JSON_NULL:
        break;
    }
    return "null";
}

enum want { WANT_STRING, WANT_ARRAY, WANT_OBJECT };

/* The member when it is there and of the wanted kind; reports what is wrong otherwise. */
static const json_t *member(
    struct faults *f, const json_t *object, const char *place, const char *key, enum want want,
    bool required)
{
    static const char *const names[] = {"a string", "an array", "an object"};
    const json_t *v = json_object_get(object, key);
    const char *dot = *place ? "." : "";
    /* Servers write null for what a whole graph does not have. */
    bool absent = !v || (json_is_null(v) && !*place && !required);
    if (absent) {
        if (required)
            fault(f, "%s%s%s is missing", place, dot, key);
        return NULL;
    }
    bool good = want == WANT_STRING  ? json_is_string(v)
                : want == WANT_ARRAY ? json_is_array(v)
                                     : json_is_object(v);
    if (!good) {
        fault(f, "%s%s%s is %s, not %s", place, dot, key, kind_of(v), names[want]);
        return NULL;
    }
    return v;
}

static void check_id(struct faults *f, const char *place, const char *key, const json_t *id)
{
    if (!id)
        return;
    if (json_string_length(id) == 0)
        fault(f, "%s.%s is empty", place, key);
    if (json_string_length(id) > ID_BYTES_MAX)
        fault(
            f, "%s.%s has %zu bytes, more than %d", place, key, json_string_length(id),
            ID_BYTES_MAX);
}

/* data.internalParams: {inner node id: {param: value}} */
static void check_internal(struct faults *f, const char *place, const json_t *owner)
{
    const json_t *internal = member(f, owner, place, "internalParams", WANT_OBJECT, false);
    const char *id;
    json_t *params;
    json_object_foreach((json_t *)(uintptr_t)internal, id, params)
    {
        if (!json_is_object(params))
            fault(f, "%s.internalParams.%s is %s, not an object", place, id, kind_of(params));
    }
}

static void check_node(struct faults *f, const char *place, const json_t *node)
{
    char deeper[96];
    if (!json_is_object(node)) {
        fault(f, "%s is %s, not an object", place, kind_of(node));
        return;
    }
    check_id(f, place, "id", member(f, node, place, "id", WANT_STRING, true));
    check_id(f, place, "type", member(f, node, place, "type", WANT_STRING, true));
    (void)member(f, node, place, "params", WANT_OBJECT, false); /* within presets */
    check_internal(f, place, node);
    const json_t *data = member(f, node, place, "data", WANT_OBJECT, false);
    (void)snprintf(deeper, sizeof deeper, "%s.data", place);
    if (data) {
        (void)member(f, data, deeper, "params", WANT_OBJECT, false);
        check_internal(f, deeper, data);
    }
    const json_t *bypassed = json_object_get(data, "bypassed");
    if (bypassed && !json_is_boolean(bypassed))
        fault(f, "%s.bypassed is %s, not true or false", deeper, kind_of(bypassed));
}

static void check_edge(struct faults *f, const char *place, const json_t *edge)
{
    static const char *const handles[] = {"sourceHandle", "targetHandle"};
    if (!json_is_object(edge)) {
        fault(f, "%s is %s, not an object", place, kind_of(edge));
        return;
    }
    check_id(f, place, "source", member(f, edge, place, "source", WANT_STRING, true));
    check_id(f, place, "target", member(f, edge, place, "target", WANT_STRING, true));
    for (int i = 0; i < 2; i++) {
        /* The canvas writes null for a node with one nameless handle. */
        if (!json_is_null(json_object_get(edge, handles[i])))
            (void)member(f, edge, place, handles[i], WANT_STRING, false);
    }
    const json_t *type = member(f, edge, place, "type", WANT_STRING, false);
    if (type && !str_eq(json_string_value(type), "data") &&
        !str_eq(json_string_value(type), "trigger"))
        fault(
            f, "%s.type is \"%.40s\", neither \"data\" nor \"trigger\"", place,
            json_string_value(type));
}

static void check_nodes_edges(struct faults *f, const json_t *document)
{
    char place[64];
    const json_t *nodes = member(f, document, "", "nodes", WANT_ARRAY, true);
    const json_t *edges = member(f, document, "", "edges", WANT_ARRAY, true);
    for (size_t i = 0; i < json_array_size(nodes); i++) {
        (void)snprintf(place, sizeof place, "nodes[%zu]", i);
        check_node(f, place, json_array_get(nodes, i));
    }
    for (size_t i = 0; i < json_array_size(edges); i++) {
        (void)snprintf(place, sizeof place, "edges[%zu]", i);
        check_edge(f, place, json_array_get(edges, i));
    }
    if (json_array_size(nodes) > NODES_MAX)
        fault(f, "nodes has %zu entries, more than %d", json_array_size(nodes), NODES_MAX);
    if (json_array_size(edges) > EDGES_MAX)
        fault(f, "edges has %zu entries, more than %d", json_array_size(edges), EDGES_MAX);
}

bool graph_device_is_known(const char *d)
{
    return str_eq(d, "cpu") || str_eq(d, "auto") || str_starts(d, "cuda") ||
           str_starts(d, "${CUDA") || str_eq(d, "mps") || str_starts(d, "mps:");
}

static void check_settings(struct faults *f, const json_t *settings)
{
    const json_t *device = json_object_get(settings, "device");
    const json_t *seed = json_object_get(settings, "seed");
    if (device && !json_is_null(device) && !json_is_string(device))
        fault(f, "settings.device is %s, not a string", kind_of(device));
    else if (json_is_string(device) && !graph_device_is_known(json_string_value(device)))
        fault(
            f, "settings.device is \"%.40s\", not one of cpu, auto, cuda, cuda:N, mps, mps:N",
            json_string_value(device));
    if (seed && !json_is_null(seed) && !json_is_integer(seed))
        fault(f, "settings.seed is %s, not a whole number", kind_of(seed));
}

/* Presets and subgraphs: an array of objects with a name each; the inside is read when used. */
static void
check_definitions(struct faults *f, const json_t *document, const char *list, const char *name)
{
    char place[64];
    const json_t *all = member(f, document, "", list, WANT_ARRAY, false);
    for (size_t i = 0; i < json_array_size(all); i++) {
        (void)snprintf(place, sizeof place, "%s[%zu]", list, i);
        const json_t *one = json_array_get(all, i);
        if (json_is_object(one))
            check_id(f, place, name, member(f, one, place, name, WANT_STRING, true));
        else
            fault(f, "%s is %s, not an object", place, kind_of(one));
    }
}

enum status graph_shape(const json_t *document, const char *name, struct err *e)
{
    if (!json_is_object(document))
        return err_set(
            e, ST_INVALID, "\"%s\" is not a graph: it is %s, not an object", name,
            kind_of(document));
    struct faults f = {0};
    str_init(&f.list);
    (void)member(&f, document, "", "name", WANT_STRING, false);
    (void)member(&f, document, "", "description", WANT_STRING, false);
    check_nodes_edges(&f, document);
    check_definitions(&f, document, "presets", "preset_name");
    check_definitions(&f, document, "subgraphs", "id");
    check_settings(&f, member(&f, document, "", "settings", WANT_OBJECT, false));
    enum status st = ST_OK;
    if (f.n > 0) {
        st = err_set(e, ST_INVALID, "\"%s\" is not a graph: %s", name, f.first);
        err_detail(e, "%s", f.list.data);
        if (f.n > FAULTS_SHOWN_MAX)
            err_detail(e, "%sand %zu more", f.list.data, f.n - FAULTS_SHOWN_MAX);
    }
    str_release(&f.list);
    return st;
}

bool graph_shape_inner(const json_t *definition, char *why, size_t cap)
{
    struct faults f = {0};
    str_init(&f.list);
    check_nodes_edges(&f, definition);
    (void)snprintf(why, cap, "%s", f.first);
    str_release(&f.list);
    return f.n == 0;
}
