/* core_graph.c - graphs as they come in and go out: read, identified (B3), secrets apart, patched.
 */
#include "graph/graph.h"
#include "server/core_int.h"

#include <string.h>

static json_t *find_node(json_t *graph, const char *id)
{
    size_t i;
    json_t *node;
    json_array_foreach(
        json_object_get(graph, "nodes"), i,
        node) if (str_eq(json_get_str(node, "id", NULL), id)) return node;
    return NULL;
}

enum status graph_patch(json_t *graph, const json_t *patch, struct err *e)
{
    const char *id, *param;
    json_t *params, *value;
    if (!json_is_object(patch))
        return err_set(e, ST_INVALID, "a patch must be an object of nodes");
    json_object_foreach((json_t *)(uintptr_t)patch, id, params)
    {
        json_t *node = find_node(graph, id);
        if (!node)
            return err_set(e, ST_INVALID, "the graph has no node \"%s\"", id);
        json_t *data = json_object_get(node, "data");
        json_t *own = json_object_get(data, "params");
        if (!json_is_object(own))
            json_object_set_new(data, "params", own = json_object());
        json_object_foreach(params, param, value) json_object_set(own, param, value);
    }
    return ST_OK;
}

/* What has no nodes is refused here; every other fault of a graph is the run's own. */
static enum status check_outline(const json_t *graph, struct err *e)
{
    const json_t *nodes = json_object_get(graph, "nodes");
    if (!json_is_object(graph))
        return err_set(e, ST_UNPROCESSABLE, "graph must be an object");
    if (!json_is_array(nodes))
        return err_set(e, ST_UNPROCESSABLE, "graph.nodes must be a list");
    if (!json_array_size(nodes))
        return err_set(e, ST_INVALID, "the graph has no nodes");
    const json_t *settings = json_object_get(graph, "settings");
    const json_t *device = json_object_get(settings, "device");
    if (!device || json_is_null(device))
        return ST_OK;
    const char *name = json_string_value(device);
    if (!name || !graph_device_is_known(name))
        return err_set(
            e, ST_INVALID, "settings.device must be cpu, auto, cuda, cuda:N, mps or mps:N");
    return ST_OK;
}

static void cut_utf8(char *text, size_t n)
{
    while (n && ((unsigned char)text[n] & 0xc0) == 0x80)
        n--;
    text[n] = 0;
}

static enum status identify(const char *text, struct graph_read *out, json_t **blank, struct err *e)
{
    struct graph *g;
    enum status st = graph_parse(text, strlen(text), "graph", &g, e);
    if (st != ST_OK) {
        if (e && st != ST_OOM && st != ST_TOO_LARGE)
            e->status = st = ST_UNPROCESSABLE;
        return st;
    }
    (void)graph_check(g, GRAPH_RUN);
    graph_key(g, out->key);
    if (blank)
        *blank = graph_document(g);
    graph_free(g);
    return ST_OK;
}

static void read_settings(const json_t *graph, struct graph_read *out)
{
    const char *name = json_get_str(graph, "name", "");
    snprintf(
        out->device, sizeof out->device, "%s",
        json_get_str(json_object_get(graph, "settings"), "device", ""));
    snprintf(out->name, sizeof out->name, "%s", name);
    if (strlen(name) > 64)
        cut_utf8(out->name, 64);
}

enum status graph_read(
    const json_t *graph, const json_t *patch, bool pack, struct graph_read *out, struct err *e)
{
    *out = (struct graph_read){0};
    TRY(check_outline(graph, e));
    json_t *whole = (json_t *)(uintptr_t)graph, *blank = NULL;
    json_incref(whole);
    enum status st = ST_OK;
    char *text = NULL, *stored = NULL;
    if (patch) {
        json_decref(whole);
        whole = json_deep_copy(graph);
        TRY_OUT(graph_patch(whole, patch, e));
    }
    text = json_text(whole, false);
    TRY_OUT(identify(text, out, pack ? &blank : NULL, e));
    read_settings(whole, out);
    if (pack) {
        if (patch) { /* the snapshot is without it */
            json_decref(blank);
            char *base = json_text(graph, false);
            struct graph_read other = {0};
            st = identify(base, &other, &blank, e);
            mem_free(base);
            if (st != ST_OK)
                goto out;
        }
        stored = json_text(blank, false);
        TRY_OUT(store_blob_pack(stored, strlen(stored), &out->blob, e));
        out->packed = true;
        if (!patch && strcmp(stored, text) != 0) {
            out->secret_text = text;
            text = NULL;
        }
    }
out:
    mem_free(text);
    mem_free(stored);
    json_decref(whole);
    json_decref(blank);
    return st;
}

void graph_read_release(struct graph_read *g)
{
    if (g->packed)
        store_blob_release(&g->blob);
    mem_free(g->secret_text);
    *g = (struct graph_read){0};
}

enum status graph_family_open(const json_t *graph, struct graph_family *out, struct err *e)
{
    size_t i;
    json_t *node;
    *out = (struct graph_family){.document = graph};
    TRY(check_outline(graph, e));
    char *text = json_text(graph, false);
    enum status st = graph_parse(text, strlen(text), "graph", &out->graph, e);
    mem_free(text);
    if (st != ST_OK) {
        out->graph = NULL;
        if (e && st != ST_OOM && st != ST_TOO_LARGE)
            e->status = st = ST_UNPROCESSABLE;
        return st;
    }
    (void)graph_check(out->graph, GRAPH_RUN);
    out->keyer = graph_keyer_new(out->graph);
    read_settings(graph, &out->common);
    out->ids = json_object();
    json_array_foreach(json_object_get(graph, "nodes"), i, node)
        json_put_bool(out->ids, json_get_str(node, "id", ""), true);
    return ST_OK;
}

void graph_family_close(struct graph_family *f)
{
    graph_keyer_free(f->keyer);
    graph_free(f->graph);
    json_decref(f->ids);
    *f = (struct graph_family){0};
}

enum status graph_family_read(
    const struct graph_family *f, const json_t *patch, struct graph_read *out, struct err *e)
{
    const char *id;
    json_t *params;
    if (!json_is_object(patch))
        return err_set(e, ST_INVALID, "a patch must be an object of nodes");
    json_object_foreach((json_t *)(uintptr_t)patch, id, params) if (
        !json_object_get(
            f->ids, id)) return err_set(e, ST_INVALID, "the graph has no node \"%s\"", id);
    *out = f->common;
    graph_keyer_key(f->keyer, patch, out->key);
    return ST_OK;
}

enum status graph_of_run(
    struct core *c, const struct store_run *row, const char *text, json_t **out, struct err *e)
{
    char *stored = NULL;
    size_t n = text ? strlen(text) : 0;
    if (!text) {
        TRY(store_graph_get(c->store, row->graph_id, &stored, &n, e));
        text = stored;
    }
    json_t *graph = NULL, *patch = NULL;
    enum status st = json_parse(text, n, "graph", &graph, e);
    if (st == ST_OK && row->patch && *row->patch) {
        st = json_parse(row->patch, strlen(row->patch), "patch", &patch, e);
        if (st == ST_OK)
            st = graph_patch(graph, patch, e);
    }
    mem_free(stored);
    json_decref(patch);
    if (st == ST_OK)
        *out = graph;
    else
        json_decref(graph);
    return st;
}
