/* function.c - see function.h. */
#include "server/function.h"

#include "base/mem.h"
#include "graph/graph.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { NAME_MAX_CHARS = 64 };

static const struct {
    const char *code;
    int http;
} faults[] = {
#define FAULT(name, code, http) {code, http},
#include "server/function_faults.def"
#undef FAULT
};

const char *function_fault_code(enum function_fault f)
{
    return faults[f].code;
}

int function_fault_http(enum function_fault f)
{
    return faults[f].http;
}

/* ---- the signature ---- */

static const char *type_of(const json_t *node)
{
    return json_get_str(node, "type", "");
}

static json_t *params_of(const json_t *node)
{
    return json_object_get(json_object_get(node, "data"), "params");
}

static PRINTF(2, 3) void add_text(json_t *list, const char *fmt, ...)
{
    char text[512];
    va_list a;
    va_start(a, fmt);
    (void)vsnprintf(text, sizeof text, fmt, a);
    va_end(a);
    (void)json_array_append_new(list, json_string(text));
}

static bool name_is_valid(const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < n; i++) {
        char c = name[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        if (!letter && (i == 0 || c < '0' || c > '9'))
            return false;
    }
    return n >= 1 && n <= NAME_MAX_CHARS;
}

static bool has_name(const json_t *list, const char *name)
{
    json_t *item;
    size_t i;
    json_array_foreach(list, i, item) if (str_eq(json_get_str(item, "name", ""), name)) return true;
    return false;
}

/* Whether a value is of an input's type; an integral float becomes an integer. */
static bool fits(const char *type, json_t **value)
{
    json_t *v = *value;
    double x = json_number_value(v);
    if (str_eq(type, "string") || str_eq(type, "image"))
        return json_is_string(v);
    if (str_eq(type, "number"))
        return json_is_number(v);
    if (str_eq(type, "boolean"))
        return json_is_boolean(v);
    if (!str_eq(type, "integer"))
        return true;
    if (json_is_real(v) && floor(x) == x && fabs(x) < 9e15) {
        json_decref(v);
        *value = json_integer((json_int_t)x);
    }
    return json_is_integer(*value);
}

/* A new reference; NULL: the text is none of the type's. An empty text is null, for types but
 * string. */
static json_t *default_of(const char *type, const char *text)
{
    if (str_eq(type, "string"))
        return json_string(text);
    if (!*text)
        return json_null();
    json_t *value = graph_default_read(text);
    if (value && fits(type, &value))
        return value;
    json_decref(value);
    return NULL;
}

static void add_input(json_t *contract, const json_t *node)
{
    json_t *params = params_of(node), *list = json_object_get(contract, "inputs");
    json_t *problems = json_object_get(contract, "problems"), *o = json_object();
    const char *name = json_get_str(params, "name", "input");
    const char *type = json_get_str(params, "type", "string");
    const char *text = json_get_str(params, "default", "");
    bool required = json_get_bool(params, "required", true);
    json_t *value = required ? json_null() : default_of(type, text);
    if (!name_is_valid(name))
        add_text(problems, "input \"%s\": a name is a letter or _, then letters, digits, _", name);
    if (has_name(list, name))
        add_text(problems, "input \"%s\" is there twice", name);
    if (!required && str_eq(type, "image"))
        add_text(problems, "input \"%s\": an image must be required", name);
    else if (!value)
        add_text(problems, "input \"%s\": the default \"%s\" is no %s", name, text, type);
    json_put_str(o, "name", name);
    json_put_str(o, "type", type);
    json_put_bool(o, "required", required);
    json_put(o, "default", value ? value : json_null());
    json_put_str(o, "description", json_get_str(params, "description", ""));
    (void)json_array_append_new(list, o);
}

static const json_t *node_of(const json_t *graph, const char *id)
{
    json_t *node;
    size_t i;
    json_array_foreach(
        json_object_get(graph, "nodes"), i,
        node) if (str_eq(json_get_str(node, "id", NULL), id)) return node;
    return NULL;
}

/* The type of the port that feeds an output; of several edges the last. */
static const char *source_type(const json_t *graph, const char *id)
{
    const char *found = "ANY";
    json_t *edge;
    size_t i;
    json_array_foreach(json_object_get(graph, "edges"), i, edge)
    {
        const json_t *source = node_of(graph, json_get_str(edge, "source", ""));
        const struct node_type *t = source ? node_type_find(type_of(source)) : NULL;
        struct node_port port;
        if (!str_eq(json_get_str(edge, "target", ""), id) ||
            str_eq(json_get_str(edge, "type", ""), "trigger"))
            continue;
        found = t && node_port_find(
                         t, params_of(source), true, json_get_str(edge, "sourceHandle", ""), &port)
                    ? port_type_name(port.type)
                    : "ANY";
    }
    return found;
}

static void add_output(json_t *contract, const json_t *graph, const json_t *node)
{
    json_t *params = params_of(node), *list = json_object_get(contract, "outputs");
    json_t *problems = json_object_get(contract, "problems"), *o = json_object();
    const char *name = json_get_str(params, "name", "output");
    if (!name_is_valid(name))
        add_text(problems, "output \"%s\": a name is a letter or _, then letters, digits, _", name);
    if (has_name(list, name))
        add_text(problems, "output \"%s\" is there twice", name);
    json_put_str(o, "name", name);
    json_put_str(o, "type", source_type(graph, json_get_str(node, "id", "")));
    json_put_str(o, "description", json_get_str(params, "description", ""));
    (void)json_array_append_new(list, o);
}

json_t *function_contract(const json_t *graph, const char *name)
{
    json_t *c = json_object(), *node;
    size_t i;
    json_put_str(c, "graph", name);
    json_put(c, "inputs", json_array());
    json_put(c, "outputs", json_array());
    json_put(c, "problems", json_array());
    json_array_foreach(json_object_get(graph, "nodes"), i, node)
    {
        if (str_eq(type_of(node), "GraphInput"))
            add_input(c, node);
        else if (str_eq(type_of(node), "GraphOutput"))
            add_output(c, graph, node);
    }
    return c;
}

/* ---- whether it can be called ---- */

static PRINTF(4, 5) bool refuse(
    struct function_refusal *why, enum function_fault fault, json_t *details, const char *fmt, ...)
{
    va_list a;
    why->fault = fault;
    why->details = details;
    va_start(a, fmt);
    (void)vsnprintf(why->message, sizeof why->message, fmt, a);
    va_end(a);
    return false;
}

static bool is_triggered(const json_t *graph, const char *id)
{
    json_t *edge;
    size_t i;
    json_array_foreach(json_object_get(graph, "edges"), i, edge) if (
        str_eq(json_get_str(edge, "type", ""), "trigger") &&
        (!id || str_eq(json_get_str(edge, "target", ""), id))) return true;
    return false;
}

/* Names of the nodes of a type that `wrong` picks. */
static json_t *names_where(
    const json_t *graph, const struct graph *g, const char *type,
    bool (*wrong)(const json_t *graph, const struct graph *g, const char *id))
{
    json_t *list = json_array(), *node;
    size_t i;
    json_array_foreach(json_object_get(graph, "nodes"), i, node) if (
        str_eq(type_of(node), type) && wrong(graph, g, json_get_str(node, "id", "")))(void)
        json_array_append_new(list, json_string(json_get_str(params_of(node), "name", type)));
    return list;
}

static bool not_triggered(const json_t *graph, const struct graph *g, const char *id)
{
    (void)g;
    return !is_triggered(graph, id);
}

static bool not_run(const json_t *graph, const struct graph *g, const char *id)
{
    (void)graph;
    size_t node = graph_node_find(g, id);
    return node == GRAPH_NO_NODE || !graph_node_at(g, node)->executable;
}

static json_t *messages_of(const struct graph *g)
{
    json_t *list = json_array();
    for (size_t i = 0; i < graph_issue_count(g); i++)
        (void)json_array_append_new(list, json_string(graph_issue_at(g, i)->message));
    return list;
}

static bool check_run(const json_t *graph, const struct graph *g, struct function_refusal *why)
{
    json_t *lost = names_where(graph, g, "GraphOutput", not_run);
    if (json_array_size(lost))
        return refuse(why, FAULT_UNREACHABLE, lost, "an output is not reached from a Start");
    json_decref(lost);
    if (graph_issue_count(g))
        return refuse(why, FAULT_GRAPH, messages_of(g), "%.200s", graph_issue_at(g, 0)->message);
    return true;
}

bool function_check(const json_t *graph, const json_t *contract, struct function_refusal *why)
{
    json_t *problems = json_object_get(contract, "problems");
    struct graph *g = NULL;
    struct err e = {0};
    if (json_array_size(problems))
        return refuse(
            why, FAULT_CONTRACT, json_incref(problems),
            "the graph's inputs and outputs are faulty");
    if (!is_triggered(graph, NULL))
        return refuse(why, FAULT_NO_ENTRY, NULL, "no Start triggers a node of the graph");
    json_t *idle = names_where(graph, NULL, "GraphInput", not_triggered);
    if (json_array_size(idle))
        return refuse(why, FAULT_UNTRIGGERED, idle, "an input has no trigger from a Start");
    json_decref(idle);
    char *text = json_text(graph, false);
    enum status st = graph_parse(text, strlen(text), "graph", &g, &e);
    mem_free(text);
    if (st != ST_OK)
        return refuse(why, FAULT_GRAPH, NULL, "%.200s", e.text);
    (void)graph_check(g, GRAPH_RUN);
    bool ok = check_run(graph, g, why);
    graph_free(g);
    return ok;
}

/* ---- arguments ---- */

static json_t *input_node(json_t *graph, const char *name)
{
    json_t *node;
    size_t i;
    json_array_foreach(json_object_get(graph, "nodes"), i, node) if (
        str_eq(type_of(node), "GraphInput") &&
        str_eq(json_get_str(params_of(node), "name", "input"), name)) return node;
    return NULL;
}

static void put_value(json_t *graph, const char *name, json_t *value)
{
    json_t *node = input_node(graph, name), *data = json_object_get(node, "data");
    if (!json_is_object(data)) {
        data = json_object();
        json_put(node, "data", data);
    }
    json_t *params = json_object_get(data, "params");
    if (!json_is_object(params)) {
        params = json_object();
        json_put(data, "params", params);
    }
    json_put(params, "value", value);
}

static void bind_one(json_t *graph, const json_t *input, const json_t *inputs, json_t *faults_found)
{
    const char *name = json_get_str(input, "name", ""), *type = json_get_str(input, "type", "");
    json_t *given = json_object_get(inputs, name);
    if (!given && json_get_bool(input, "required", true)) {
        add_text(faults_found, "input \"%s\" is missing", name);
        return;
    }
    json_t *value = json_deep_copy(given ? given : json_object_get(input, "default"));
    if (given && !fits(type, &value)) {
        add_text(faults_found, "input \"%s\" is no %s", name, type);
        json_decref(value);
        return;
    }
    put_value(graph, name, value);
}

bool function_bind(
    json_t *graph, const json_t *contract, const json_t *inputs, struct function_refusal *why)
{
    json_t *list = json_object_get(contract, "inputs"), *found = json_array(), *input, *value;
    const char *name;
    size_t i;
    json_object_foreach((json_t *)(uintptr_t)inputs, name, value) if (!has_name(list, name))
        add_text(found, "there is no input \"%s\"", name);
    json_array_foreach(list, i, input) bind_one(graph, input, inputs, found);
    if (json_array_size(found))
        return refuse(
            why, FAULT_INPUT, found, "%.200s", json_string_value(json_array_get(found, 0)));
    json_decref(found);
    return true;
}

/* ---- results ---- */

static bool
take_output(const json_t *node, const json_t *result, json_t *outputs, struct function_refusal *why)
{
    const char *name = json_get_str(params_of(node), "name", "output");
    const json_t *said =
        json_object_get(json_object_get(result, "results"), json_get_str(node, "id", ""));
    const char *code = json_get_str(said, "code", "");
    json_t *value = json_object_get(said, "value");
    if (*code)
        return refuse(
            why, str_eq(code, "output_too_large") ? FAULT_OUTPUT_TOO_LARGE : FAULT_UNSERIALIZABLE,
            NULL, "output \"%s\": %s", name, json_get_str(said, "message", ""));
    if (!value)
        return refuse(
            why, FAULT_NOT_PRODUCED, NULL, "the run gave no value for output \"%s\"", name);
    json_put(outputs, name, json_incref(value));
    return true;
}

bool function_outputs(
    const json_t *graph, const json_t *result, json_t **outputs, struct function_refusal *why)
{
    json_t *node, *all = json_object();
    size_t i;
    json_array_foreach(json_object_get(graph, "nodes"), i, node)
    {
        if (str_eq(type_of(node), "GraphOutput") && !take_output(node, result, all, why)) {
            json_decref(all);
            return false;
        }
    }
    *outputs = all;
    return true;
}
