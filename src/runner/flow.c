/* flow.c - ports: what nodes hand to each other. */
#include "runner/run_int.h"

#include "base/env.h"
#include "base/log.h"
#include "base/str.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *flow_name(enum flow_kind k)
{
    static const char *const names[] = {
        "nothing",      "a model", "a data set",  "a data loader",    "a transform",
        "an optimizer", "a loss",  "a scheduler", "a tensor",         "a number",
        "a text",       "a value", "a tokenizer", "a corpus of texts"};
    return names[k];
}

bool flow_has(struct run *r, size_t node, const char *port, struct flow *out)
{
    size_t source;
    const char *source_port;
    if (!graph_input(r->graph, node, port, &source, &source_port))
        return false;
    for (size_t i = 0; i < r->slots.n; i++) {
        const struct flow_slot *s = &r->slots.data[i];
        if (s->node == source && str_eq(s->port, source_port)) {
            *out = s->value;
            return true;
        }
    }
    return false;
}

enum status flow_get(
    struct run *r, size_t node, const char *port, enum flow_kind kind, struct flow *out,
    struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    *out = (struct flow){0};
    if (!flow_has(r, node, port, out) || out->kind == FLOW_NONE)
        return err_set(
            e, ST_INVALID, "Missing required input '%s' on node %s (%s)", port, n->id, n->type);
    if (out->kind != kind)
        return err_set(
            e, ST_INVALID, "input '%s' on node %s (%s) is %s, not %s", port, n->id, n->type,
            flow_name(out->kind), flow_name(kind));
    return ST_OK;
}

void flow_set(struct run *r, size_t node, const char *port, struct flow value)
{
    struct flow_slot s = {node, port, value};
    vec_push(&r->slots, s);
}

static const struct flow_slot *slot_at(const struct run *r, size_t node, size_t i)
{
    for (size_t k = 0; k < r->slots.n; k++)
        if (r->slots.data[k].node == node && i-- == 0)
            return &r->slots.data[k];
    return NULL;
}

static void fill_output(const struct flow *f, struct run_output *out)
{
    if (f->kind == FLOW_NUMBERS) {
        out->kind = RUN_OUTPUT_TENSOR;
        out->dtype = f->numbers->dtype;
        out->shape = &f->numbers->shape;
        out->data = f->numbers->data;
    } else if (f->kind == FLOW_SCALAR) {
        out->kind = RUN_OUTPUT_SCALAR;
        out->scalar = f->scalar;
    } else if (f->kind == FLOW_STRING) {
        out->kind = RUN_OUTPUT_TEXT;
        out->text = f->string ? f->string : "";
    } else if (f->kind == FLOW_JSON) {
        out->kind = RUN_OUTPUT_JSON;
        out->json = f->json;
    } else if (f->kind == FLOW_MODEL) {
        out->kind = RUN_OUTPUT_MODEL;
        out->text = "GraphModelModule";
        out->parameters = f->model->model ? model_parameter_count(f->model->model) : 0;
        out->trainable = f->model->model ? model_trainable_count(f->model->model) : 0;
    } else {
        out->kind = RUN_OUTPUT_OTHER;
        out->text = flow_name(f->kind);
    }
}

bool run_output_at(
    const struct run *r, const struct graph_node *n, size_t i, struct run_output *out)
{
    const struct flow_slot *s = slot_at(r, graph_node_find(r->graph, n->id), i);
    struct node_port port;
    if (!s)
        return false;
    *out = (struct run_output){.port = s->port};
    out->list = n->kind && node_port_find(n->kind, n->params, true, s->port, &port) &&
                port.type == PORT_LIST;
    fill_output(&s->value, out);
    return true;
}

void run_event(struct run *r, json_t *event)
{
    if (r->sink.event)
        r->sink.event(event, r->sink.ctx);
    json_decref(event);
}

void run_saved(struct run *r, const struct graph_node *n, const char *path)
{
    json_t *result = json_object(), *event = json_object();
    json_put_str(result, "path", path);
    json_put(r->results, n->id, result);
    json_put_str(event, "event", "saved");
    json_put_str(event, "node_id", n->id);
    json_put_str(event, "type", n->type);
    json_put_str(event, "path", path);
    run_event(r, event);
}

void run_warn(struct run *r, const struct graph_node *n, const char *kind, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    json_t *event = json_object();
    json_put_str(event, "event", "warning");
    json_put_str(event, "kind", kind);
    if (n)
        json_put_str(event, "node_id", n->id);
    json_put_str(event, "message", text);
    (void)json_array_append(r->warnings, event);
    run_event(r, event);
}

enum status run_model_path(const char *name, char *out, size_t cap, struct err *e)
{
    char dir[1024];
    if (name[0] == '/') {
        (void)snprintf(out, cap, "%s", name);
        return ST_OK;
    }
    if (!path_is_inside(name))
        return err_set(e, ST_INVALID, "parameter 'path': \"%s\" leaves the models folder", name);
    (void)path_join(path_join(snug_home(), "models", dir, sizeof dir), name, out, cap);
    return ST_OK;
}

const char *run_graph_dir(struct run *r, char *buf, size_t cap)
{
    if (r->o.graph_dir) {
        (void)snprintf(buf, cap, "%s", r->o.graph_dir);
        return buf;
    }
    path_dir(graph_path(r->graph), buf, cap);
    if (!buf[0])
        (void)snprintf(buf, cap, ".");
    return buf;
}
