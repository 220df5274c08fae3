/* route_health.c - GET /api/health: what this server is, and whether it is well. */
#include "server/core.h"
#include "server/routes.h"
#include "server/server.h"
#include "server/store.h"

#include "base/env.h"
#include "base/version.h"
#include "graph/nodes.h"
#include "server/catalog.h"

enum { DEPTH_MAX = 6 };

/* Sums over everything that agents reported, wherever it stands in their documents. */
struct cache_sums {
    int64_t instances, entries, bytes; /* execution_cache */
    int64_t runs, run_bytes;           /* run_output_store */
    int64_t modules, module_bytes;     /* node_state_store */
};

static void sum_caches(const json_t *of, int depth, struct cache_sums *out)
{
    size_t i;
    const char *key;
    json_t *value;
    if (depth > DEPTH_MAX)
        return;
    if (json_is_array(of)) {
        json_array_foreach(of, i, value) sum_caches(value, depth + 1, out);
        return;
    }
    json_object_foreach((json_t *)(uintptr_t)of, key, value)
    {
        if (str_eq(key, "execution_cache")) {
            out->instances += json_get_i64(value, "instances", 1);
            out->entries += json_get_i64(value, "entries", 0);
            out->bytes += json_get_i64(value, "bytes", 0);
        } else if (str_eq(key, "run_output_store")) {
            out->runs += json_get_i64(value, "runs", 0);
            out->run_bytes += json_get_i64(value, "bytes", 0);
        } else if (str_eq(key, "node_state_store")) {
            out->modules += json_get_i64(value, "modules", 0);
            out->module_bytes += json_get_i64(value, "bytes", 0);
        } else if (json_is_object(value) || json_is_array(value)) {
            sum_caches(value, depth + 1, out);
        }
    }
}

static json_t *caches_json(struct server *s)
{
    enum { RUNS_MAX = 20, MODULES_MAX = 200 };
    struct cache_sums sum = {0};
    json_t *reported = core_caches(s->core), *o = json_object(), *execution = json_object();
    json_t *outputs = json_object(), *state = json_object();
    sum_caches(reported, 0, &sum);
    json_decref(reported);
    json_put_i64(execution, "instances", sum.instances);
    json_put_i64(execution, "entries", sum.entries);
    json_put_i64(execution, "bytes", sum.bytes);
    json_put_i64(execution, "max_bytes_each", s->config->execution_cache_max_mb << 20);
    json_put_i64(outputs, "runs", sum.runs);
    json_put_i64(outputs, "max_runs", RUNS_MAX);
    json_put_i64(outputs, "bytes", sum.run_bytes);
    json_put_i64(outputs, "max_bytes", s->config->run_output_store_max_mb << 20);
    json_put_i64(state, "modules", sum.modules);
    json_put_i64(state, "max_modules", MODULES_MAX);
    json_put_i64(state, "bytes", sum.module_bytes);
    json_put_i64(state, "max_bytes", s->config->node_state_store_max_mb << 20);
    json_put(o, "execution_cache", execution);
    json_put(o, "run_output_store", outputs);
    json_put(o, "node_state_store", state);
    return o;
}

static void warn(json_t *list, const char *text)
{
    (void)json_array_append_new(list, json_string(text));
}

static json_t *database_json(struct server *s, json_t *warnings)
{
    struct store_health h;
    json_t *o = json_object();
    store_health(s->store, &h);
    json_put_str(o, "sqlite", h.sqlite_version);
    json_put_i64(o, "bytes", h.file_bytes);
    json_put_i64(o, "wal_bytes", h.wal_bytes);
    json_put_bool(o, "failing", h.failing);
    json_put_i64(o, "failures", h.failures);
    if (h.failing) {
        json_put_str(o, "last_error", h.last_error);
        warn(warnings, "the database could not be written");
    }
    if (h.wal_large)
        warn(warnings, "the database's log is large: a reader keeps it from being emptied");
    if (h.wal_reset_bug)
        warn(
            warnings,
            "this SQLite is older than 3.51.3 and may damage a database that two programs "
            "write: do not open snug.db for writing with another one");
    return o;
}

void route_health(struct server *s, const struct http_request *q, struct http_reply *r)
{
    (void)q;
    json_t *o = json_object(), *warnings = json_array(),
           *presets = catalog_presets(s->config->home, NULL);
    json_t *database = database_json(s, warnings);
    bool failing = json_get_bool(database, "failing", false);
    json_put_str(o, "status", failing ? "degraded" : "ok");
    json_put_str(o, "version", SNUG_VERSION);
    json_put_str(o, "commit", snug_commit());
    json_put_str(o, "boot_id", s->boot_id);
    json_put_f64(o, "uptime_s", (double)(clock_wall_us() - s->started_us) / 1e6);
    json_put_i64(o, "nodes_loaded", (int64_t)node_type_count());
    json_put_i64(o, "presets_loaded", (int64_t)json_array_size(presets));
    json_put(o, "caches", caches_json(s));
    json_put(o, "database", database);
    json_put(o, "warnings", warnings);
    json_decref(presets);
    http_json(r, 200, o);
}
