/* route_catalog.c - what an editor reads at its start: node types, presets, and the lists of things
 * that this program has none of. */
#include "base/env.h"
#include "graph/graph.h"
#include "server/catalog.h"
#include "server/config.h"
#include "server/core.h"
#include "server/routes.h"
#include "server/server.h"

static void devices_now(struct server *s, struct catalog_devices *d)
{
    json_t *workers = core_workers(s->core, (struct instant){clock_ns(), clock_wall_us()});
    catalog_devices_of(workers, d);
    json_decref(workers);
}

void route_nodes(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct catalog_devices d;
    (void)q;
    devices_now(s, &d);
    http_json(r, 200, catalog_nodes(&d));
}

void route_node(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct catalog_devices d;
    devices_now(s, &d);
    json_t *node = catalog_node(q->param[0], &d);
    if (node)
        http_json(r, 200, node);
    else
        http_error(r, 404, "Node '%s' not found", q->param[0]);
}

/* Node types are part of the program: there is nothing to load again but the users' presets, which
 * are read anew each time. */
void route_nodes_reload(struct server *s, const struct http_request *q, struct http_reply *r)
{
    int64_t builtin = 0, custom = 0, plugins = 0;
    json_t *presets = catalog_presets(s->config->home, NULL), *body = json_object();
    (void)q;
    for (size_t i = 0; i < node_type_count(); i++) {
        const char *provider = node_type_at(i)->provider;
        builtin += str_eq(provider, "builtin");
        custom += str_eq(provider, "custom");
        plugins += str_starts(provider, "plugin:");
    }
    json_put_i64(body, "builtin", builtin);
    json_put_i64(body, "custom", custom);
    json_put_i64(body, "plugins", plugins);
    json_put_i64(body, "presets", (int64_t)json_array_size(presets));
    json_put_i64(body, "total", builtin + custom + plugins);
    json_decref(presets);
    http_json(r, 200, body);
}

void route_presets(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct catalog_devices d;
    (void)q;
    devices_now(s, &d);
    http_json(r, 200, catalog_presets(s->config->home, &d));
}

void route_preset(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct catalog_devices d;
    devices_now(s, &d);
    json_t *preset = catalog_preset(s->config->home, q->param[0], &d);
    if (preset)
        http_json(r, 200, preset);
    else
        http_error(r, 404, "Preset '%s' not found", q->param[0]);
}

void route_preset_create(struct server *s, const struct http_request *q, struct http_reply *r)
{
    json_t *preset = NULL;
    struct err e;
    if (catalog_create_preset(s->config->home, q->json, &preset, &e) == ST_OK)
        http_json(r, 200, preset);
    else
        http_fail(r, &e);
}

/* ---- what there is none of ---- */

void route_empty_list(struct server *s, const struct http_request *q, struct http_reply *r)
{
    (void)s, (void)q;
    http_json(r, 200, json_array());
}

void route_custom_nodes_refused(
    struct server *s, const struct http_request *q, struct http_reply *r)
{
    (void)s, (void)q;
    http_error(r, 501, "custom nodes are Python files, which this program does not run");
}

void route_plugins_generation(struct server *s, const struct http_request *q, struct http_reply *r)
{
    json_t *body = json_object();
    (void)s, (void)q;
    json_put_i64(body, "generation", 0);
    http_json(r, 200, body);
}

void route_plugin_missing(struct server *s, const struct http_request *q, struct http_reply *r)
{
    (void)s;
    http_error(r, 404, "Plugin '%s' is not installed", q->param[0]);
}

void route_llm_models(struct server *s, const struct http_request *q, struct http_reply *r)
{
    json_t *body = json_object(), *can = json_object();
    (void)s, (void)q;
    json_put_bool(can, "reasoning_effort", false);
    json_put_bool(can, "rich_model_catalog", false);
    json_put(body, "models", json_array());
    json_put(body, "capabilities", can);
    http_json(r, 200, body);
}

void route_llm_status(struct server *s, const struct http_request *q, struct http_reply *r)
{
    json_t *body = json_object();
    (void)s, (void)q;
    json_put_str(body, "status", "logged_out");
    http_json(r, 200, body);
}

void route_llm_refused(struct server *s, const struct http_request *q, struct http_reply *r)
{
    (void)s, (void)q;
    http_error(r, 501, "this server calls no language model services");
}
