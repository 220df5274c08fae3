/* catalog_presets.c - presets that users make: SNUG_HOME/presets, a file each. */
#include "base/env.h"
#include "base/mem.h"
#include "graph/graph.h"
#include "server/catalog.h"
#include "server/catalog_int.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PRESET_BYTES_MAX = 4 << 20, PRESETS_MAX = 1000, NAME_MAX_BYTES = 128 };

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_preset(const struct dirent *d)
{
    return d->d_name[0] != '.' && str_ends(d->d_name, ".json");
}

json_t *catalog_own_presets(const char *home)
{
    json_t *list = json_array();
    struct dirent **names = NULL;
    char dir[1024], path[1400];
    (void)snprintf(dir, sizeof dir, "%s/presets", home);
    int n = scandir(dir, &names, is_preset, by_name);
    for (int i = 0; i < n; i++) {
        struct err ignored;
        json_t *preset = NULL;
        (void)snprintf(path, sizeof path, "%s/%s", dir, names[i]->d_name);
        if (i < PRESETS_MAX && json_read_file(path, PRESET_BYTES_MAX, &preset, &ignored) == ST_OK &&
            *json_get_str(preset, "preset_name", ""))
            (void)json_array_append(list, preset);
        json_decref(preset);
        free(names[i]);
    }
    free(names);
    return list;
}

/* ---- making one ---- */

static enum status check_node(const json_t *node, struct err *e)
{
    const char *type = json_get_str(node, "type", NULL);
    if (!type || !json_get_str(node, "id", NULL))
        return err_set(e, ST_UNPROCESSABLE, "nodes: each has an id and a type");
    if (str_starts(type, "subgraph:"))
        return err_set(e, ST_INVALID, "a preset cannot contain a subgraph (node %s)", type);
    return ST_OK;
}

/* Inner nodes are named anew; `ids` maps the canvas's ids to them. */
static enum status take_nodes(const json_t *from, json_t *preset, json_t *ids, struct err *e)
{
    json_t *node, *nodes = json_array();
    size_t i;
    json_put(preset, "nodes", nodes);
    json_array_foreach(json_object_get(from, "nodes"), i, node)
    {
        TRY(check_node(node, e));
        if (str_eq(json_get_str(node, "type", ""), "note"))
            continue;
        char id[32];
        (void)snprintf(id, sizeof id, "node_%zu", json_array_size(nodes));
        json_put_str(ids, json_get_str(node, "id", ""), id);
        json_t *o = json_object(), *data = json_object_get(node, "data");
        json_t *params = json_object_get(json_is_object(data) ? data : node, "params");
        json_put_str(o, "id", id);
        json_put_str(o, "type", json_get_str(node, "type", ""));
        json_put(o, "params", json_is_object(params) ? json_deep_copy(params) : json_object());
        (void)json_array_append_new(nodes, o);
    }
    if (json_array_size(nodes) == 0)
        return err_set(e, ST_INVALID, "a preset needs at least one node");
    return ST_OK;
}

static void take_edges(const json_t *from, json_t *preset, const json_t *ids)
{
    json_t *edge, *edges = json_array();
    size_t i;
    json_put(preset, "edges", edges);
    json_array_foreach(json_object_get(from, "edges"), i, edge)
    {
        const char *source = json_get_str(ids, json_get_str(edge, "source", ""), NULL);
        const char *target = json_get_str(ids, json_get_str(edge, "target", ""), NULL);
        if (!source || !target || str_eq(json_get_str(edge, "type", ""), "trigger"))
            continue;
        json_t *o = json_object();
        json_put_str(o, "source", source);
        json_put_str(o, "sourceHandle", json_get_str(edge, "sourceHandle", ""));
        json_put_str(o, "target", target);
        json_put_str(o, "targetHandle", json_get_str(edge, "targetHandle", ""));
        (void)json_array_append_new(edges, o);
    }
}

static bool is_connected(const json_t *preset, const char *id, const char *port, bool output)
{
    json_t *edge;
    size_t i;
    json_array_foreach(json_object_get(preset, "edges"), i, edge) if (
        str_eq(json_get_str(edge, output ? "source" : "target", ""), id) &&
        str_eq(json_get_str(edge, output ? "sourceHandle" : "targetHandle", ""), port)) return true;
    return false;
}

static void expose_ports(json_t *preset, const json_t *node, bool output)
{
    const char *id = json_get_str(node, "id", "");
    const struct node_type *t = node_type_find(json_get_str(node, "type", ""));
    json_t *list = json_object_get(preset, output ? "exposed_outputs" : "exposed_inputs");
    struct node_port port;
    char buf[32], name[256];
    for (size_t i = 0; t && node_port_at(t, json_object_get(node, "params"), output, i, &port, buf);
         i++) {
        if (is_connected(preset, id, port.name, output))
            continue;
        json_t *o = json_object();
        (void)snprintf(name, sizeof name, "%s_%s", id, port.name);
        json_put_str(o, "name", name);
        json_put_str(o, "internal_node", id);
        json_put_str(o, "internal_port", port.name);
        json_put_str(o, "data_type", port_type_name(port.type));
        json_put_str(o, "description", "");
        (void)json_array_append_new(list, o);
    }
}

/* A secret neither shows nor stays. */
static void expose_params(json_t *preset, const json_t *node)
{
    const struct node_type *t = node_type_find(json_get_str(node, "type", ""));
    json_t *list = json_object_get(preset, "exposed_params");
    for (const struct node_param *p = t ? t->params : NULL; p && p->name; p++) {
        if (p->type == PARAM_SECRET) {
            json_object_del(json_object_get(node, "params"), p->name);
            continue;
        }
        json_t *o = json_object();
        json_put_str(o, "internal_node", json_get_str(node, "id", ""));
        json_put_str(o, "param_name", p->name);
        json_put_str(o, "display_name", p->name);
        json_put_str(o, "group", t->name);
        (void)json_array_append_new(list, o);
    }
}

static enum status make(const json_t *from, json_t *preset, struct err *e)
{
    json_t *ids = json_object(), *node, *tags = json_object_get(from, "tags");
    size_t i;
    json_put_str(preset, "preset_name", json_get_str(from, "name", ""));
    json_put_str(preset, "category", json_get_str(from, "category", "Custom"));
    json_put_str(preset, "description", json_get_str(from, "description", ""));
    json_put(preset, "tags", json_is_array(tags) ? json_deep_copy(tags) : json_array());
    enum status st = take_nodes(from, preset, ids, e);
    take_edges(from, preset, ids);
    json_decref(ids);
    TRY(st);
    json_put(preset, "exposed_inputs", json_array());
    json_put(preset, "exposed_outputs", json_array());
    json_put(preset, "exposed_params", json_array());
    json_array_foreach(json_object_get(preset, "nodes"), i, node)
    {
        expose_ports(preset, node, false);
        expose_ports(preset, node, true);
        expose_params(preset, node);
    }
    return ST_OK;
}

/* The file's name: what a name has beside letters, digits, '-' and '_' becomes '_'. Bytes of
 * other alphabets stay. */
static void file_of(const char *home, const char *name, char *path, size_t cap)
{
    char file[NAME_MAX_BYTES + 1];
    size_t n = 0;
    for (; name[n] && n < NAME_MAX_BYTES; n++) {
        unsigned char c = (unsigned char)name[n];
        bool stays = c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                     (c >= 'A' && c <= 'Z') || c == '-' || c == '_';
        file[n] = stays ? name[n] : '_';
    }
    file[n] = 0;
    (void)snprintf(path, cap, "%s/presets/%s.json", home, file);
}

static enum status store(const char *home, const json_t *preset, struct err *e)
{
    char dir[1024], path[1400];
    (void)snprintf(dir, sizeof dir, "%s/presets", home);
    file_of(home, json_get_str(preset, "preset_name", ""), path, sizeof path);
    TRY(dir_make(dir, e));
    if (file_exists(path))
        return err_set(e, ST_CONFLICT, "there is a preset of that name, or nearly that, already");
    char *text = json_text(preset, true);
    enum status st = file_write(path, text, strlen(text), e);
    mem_free(text);
    return st;
}

enum status
catalog_create_preset(const char *home, const json_t *from, json_t **preset, struct err *e)
{
    const char *name = json_get_str(from, "name", "");
    if (!*name || strlen(name) > NAME_MAX_BYTES)
        return err_set(e, ST_UNPROCESSABLE, "name: a text of 1 to %d bytes", NAME_MAX_BYTES);
    json_t *taken = catalog_preset(home, name, NULL);
    json_decref(taken);
    if (taken)
        return err_set(e, ST_CONFLICT, "preset \"%s\" exists already", name);
    json_t *made = json_object();
    enum status st = make(from, made, e);
    if (st == ST_OK)
        st = store(home, made, e);
    if (st != ST_OK) {
        json_decref(made);
        return st;
    }
    catalog_complete_preset(made, NULL);
    *preset = made;
    return ST_OK;
}

/* ---- graphs ---- */

static bool has_preset(const json_t *list, const char *name)
{
    json_t *preset;
    size_t i;
    json_array_foreach(
        list, i, preset) if (str_eq(json_get_str(preset, "preset_name", ""), name)) return true;
    return false;
}

static bool uses_presets(const json_t *graph)
{
    json_t *node;
    size_t i;
    json_array_foreach(
        json_object_get(graph, "nodes"), i,
        node) if (str_starts(json_get_str(node, "type", ""), "preset:")) return true;
    return false;
}

/* All of the users' that are not there: a preset may use another. What is not used is ignored. */
void catalog_complete(const char *home, json_t *graph)
{
    json_t *given = json_object_get(graph, "presets"), *own, *preset, *all;
    size_t i;
    if (!uses_presets(graph) || (given && !json_is_array(given) && !json_is_null(given)))
        return;
    own = catalog_own_presets(home);
    all = json_is_array(given) ? json_copy(given) : json_array();
    json_array_foreach(
        own, i, preset) if (!has_preset(all, json_get_str(preset, "preset_name", "")))(void)
        json_array_append(all, preset);
    json_put(graph, "presets", all);
    json_decref(own);
}
