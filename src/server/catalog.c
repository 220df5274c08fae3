/* catalog.c - definitions of node types, and of presets with their ports and parameters. */
#include "server/catalog.h"

#include "base/mem.h"
#include "graph/graph.h"
#include "server/catalog_int.h"

#include <stdio.h>
#include <string.h>

/* ---- devices ---- */

static int cards_of(const json_t *worker, bool *mps)
{
    json_t *device;
    size_t i;
    int n = 0;
    *mps = false;
    json_array_foreach(json_object_get(worker, "devices"), i, device)
    {
        const char *name =
            json_is_string(device) ? json_string_value(device) : json_get_str(device, "device", "");
        n += str_starts(name, "cuda");
        *mps = *mps || str_starts(name, "mps");
    }
    return n;
}

void catalog_devices_of(const json_t *workers, struct catalog_devices *out)
{
    json_t *worker;
    bool ignored;
    size_t i;
    *out = (struct catalog_devices){0};
    out->cuda = cards_of(json_object_get(workers, "local"), &out->mps);
    json_array_foreach(json_object_get(workers, "workers"), i, worker)
    {
        int cards = cards_of(worker, &ignored);
        if (cards > out->cuda_set)
            out->cuda_set = cards;
    }
}

static void add(json_t *list, const char *text)
{
    (void)json_array_append_new(list, json_string(text));
}

/* One card alone is only "cuda"; names within a device set go up to the largest worker's count. */
static json_t *device_options(const char *options, const struct catalog_devices *d)
{
    json_t *list = json_array();
    int own = d->cuda >= 2 ? d->cuda : 0;
    int named = own > d->cuda_set ? own : d->cuda_set;
    if (strstr(options, "auto"))
        add(list, "auto");
    add(list, "cpu");
    if (d->cuda > 0)
        add(list, "cuda");
    for (int i = 0; i < named; i++) {
        char name[24];
        (void)snprintf(name, sizeof name, "cuda:%d", i);
        add(list, name);
    }
    if (d->mps && strstr(options, "mps"))
        add(list, "mps");
    return list;
}

/* ---- nodes ---- */

static json_t *definition(const struct node_type *t, const struct catalog_devices *d)
{
    json_t *o = node_type_json(t), *port;
    json_t *params = json_object_get(o, "params");
    size_t i;
    json_array_foreach(json_object_get(o, "outputs"), i, port)
        json_put_bool(port, "optional", false);
    for (i = 0; t->params[i].name; i++)
        if (d && t->params[i].flags & PARAM_FLAG_DEVICE && t->params[i].options)
            json_put(json_array_get(params, i), "options", device_options(t->params[i].options, d));
    return o;
}

json_t *catalog_node(const char *name, const struct catalog_devices *d)
{
    const struct node_type *t = node_type_find(name);
    return t ? definition(t, d) : NULL;
}

json_t *catalog_nodes(const struct catalog_devices *d)
{
    json_t *list = json_array();
    for (size_t i = 0; i < node_type_count(); i++)
        (void)json_array_append_new(list, definition(node_type_at(i), d));
    return list;
}

/* ---- presets ---- */

static const json_t *inner_node(const json_t *preset, const char *id)
{
    json_t *node;
    size_t i;
    json_array_foreach(
        json_object_get(preset, "nodes"), i,
        node) if (str_eq(json_get_str(node, "id", NULL), id)) return node;
    return NULL;
}

static const struct node_type *inner_type(const json_t *preset, const json_t *exposed)
{
    const char *id = json_get_str(exposed, "internal_node", "");
    return node_type_find(json_get_str(inner_node(preset, id), "type", ""));
}

/* A port without a type of its own has that of the inner port, or any. */
static void complete_ports(json_t *preset, bool output)
{
    json_t *port;
    size_t i;
    json_array_foreach(
        json_object_get(preset, output ? "exposed_outputs" : "exposed_inputs"), i, port)
    {
        const char *id = json_get_str(port, "internal_node", "");
        const char *name = json_get_str(port, "internal_port", "");
        const struct node_type *t = inner_type(preset, port);
        const json_t *params = json_object_get(inner_node(preset, id), "params");
        struct node_port found;
        if (*json_get_str(port, "data_type", ""))
            continue;
        bool known = t && node_port_find(t, params, output, name, &found);
        json_put_str(port, "data_type", known ? port_type_name(found.type) : "ANY");
    }
}

static json_t *
param_definition(const struct node_type *t, const char *name, const struct catalog_devices *d)
{
    json_t *o = t ? definition(t, d) : NULL, *param, *found = NULL;
    size_t i;
    json_array_foreach(json_object_get(o, "params"), i, param)
    {
        if (str_eq(json_get_str(param, "name", ""), name))
            found = json_incref(param);
    }
    json_decref(o);
    return found ? found : json_null();
}

void catalog_complete_preset(json_t *preset, const struct catalog_devices *d)
{
    json_t *param;
    size_t i;
    complete_ports(preset, false);
    complete_ports(preset, true);
    json_array_foreach(json_object_get(preset, "exposed_params"), i, param)
    {
        json_put(
            param, "param_def",
            param_definition(inner_type(preset, param), json_get_str(param, "param_name", ""), d));
    }
}

json_t *catalog_presets(const char *home, const struct catalog_devices *d)
{
    json_t *list = graph_presets_builtin(), *preset;
    json_t *own = catalog_own_presets(home);
    size_t i;
    (void)json_array_extend(list, own);
    json_decref(own);
    json_array_foreach(list, i, preset) catalog_complete_preset(preset, d);
    return list;
}

json_t *catalog_preset(const char *home, const char *name, const struct catalog_devices *d)
{
    json_t *list = catalog_presets(home, d), *preset, *found = NULL;
    size_t i;
    json_array_foreach(
        list, i, preset) if (!found && str_eq(json_get_str(preset, "preset_name", ""), name))
        found = json_incref(preset);
    json_decref(list);
    return found;
}
