/* memory.c - what a run says of its memory: the history and its snapshot, figures, the summary. */
#include "runner/run_int.h"

#include "base/env.h"
#include "base/str.h"
#include "base/version.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { GRAPH_TEXT_MAX = 64 << 20 };

/* ---- the history ---- */

static bool is_pickle(const char *path)
{
    return str_ends(path, ".pickle") || str_ends(path, ".pkl");
}

enum status run_memory_check(const struct run *r, struct err *e)
{
    char dir[1024];
    const char *path = r->o.memory_history;
    if (!path)
        return ST_OK;
    if (!is_pickle(path) && !str_ends(path, ".json")) {
        (void)err_set(e, ST_USAGE, "--memory-history \"%s\" is no .pickle and no .json", path);
        err_hint(e, "PyTorch's viewers read .pickle files; `snug doctor` reads both");
        return ST_USAGE;
    }
    (void)path_dir(path, dir, sizeof dir);
    if (dir[0] && !dir_exists(dir))
        return err_set(
            e, ST_NOT_FOUND, "--memory-history \"%s\": there is no folder \"%s\"", path, dir);
    return ST_OK;
}

static const char *skip_space(const char *s)
{
    return s + strspn(s, " \t\r\n");
}

/* The line of the graph file where each node's id stands; unknown ones stay 0. */
static void find_lines(const char *text, const struct graph *g, int *line)
{
    int at = 1;
    for (const char *s = text; *s; s++) {
        at += *s == '\n';
        if (strncmp(s, "\"id\"", 4) != 0)
            continue;
        const char *v = skip_space(s + 4);
        v = *v == ':' ? skip_space(v + 1) : v;
        size_t n = *v == '"' ? strcspn(v + 1, "\"") : 0;
        for (size_t i = 0; n > 0 && i < graph_node_count(g); i++) {
            const char *id = graph_node_at(g, i)->id;
            if (strlen(id) < n)
                continue;
            bool inner = strncmp(id + n, "__", 2) == 0; /* of a preset's node */
            if (line[i] == 0 && strncmp(id, v + 1, n) == 0 && (id[n] == '\0' || inner))
                line[i] = at;
        }
    }
}

void run_memory_open(struct run *r)
{
    char *text;
    size_t bytes, n = graph_node_count(r->graph);
    struct err ignored;
    r->history = mem_history_new(r->o.memory_history_max);
    mem_history_file(r->history, graph_path(r->graph));
    int *line = mem_alloc((n + 1) * sizeof *line);
    if (file_read(graph_path(r->graph), GRAPH_TEXT_MAX, &text, &bytes, &ignored) == ST_OK) {
        find_lines(text, r->graph, line);
        mem_free(text);
    }
    for (size_t i = 0; i < n; i++) {
        const struct graph_node *node = graph_node_at(r->graph, i);
        mem_history_node(r->history, node->id, node->type, line[i]);
    }
    mem_free(line);
}

/* What the run takes on this device is recorded from here on. */
void run_memory_place(struct run *r, struct run_place *p)
{
    struct device_memory m;
    struct err ignored;
    struct mem_history_device d = {
        .name = p->device->id,
        .capacity_bytes = p->device->capacity_bytes,
        .limit_bytes = r->o.budget_bytes};
    if (p->device->kind == DEVICE_CPU)
        d.capacity_bytes = host_capacity_bytes();
    else if (device_memory(p->device, &m, &ignored) == ST_OK && m.free_bytes >= 0)
        d.others_bytes = d.capacity_bytes - m.free_bytes - p->device->context_bytes;
    d.capacity_bytes = d.capacity_bytes > 0 ? d.capacity_bytes : 0;
    d.others_bytes = d.others_bytes > 0 ? d.others_bytes : 0;
    p->source.history_device = mem_history_device(r->history, &d);
    if (r->o.memory_history)
        p->source.history = r->history;
    else
        p->source.oom_history = r->history;
}

/* Where the state goes when memory runs out and no file was named: one for each graph. */
static enum status own_path(const struct run *r, char *path, size_t cap, struct err *e)
{
    char key[33], name[64], dir[1024];
    (void)path_join(snug_home(), "oom", dir, sizeof dir);
    TRY(dir_make(dir, e));
    graph_key(r->graph, key);
    (void)snprintf(name, sizeof name, "%s.pickle", key);
    (void)path_join(dir, name, path, cap);
    return ST_OK;
}

enum status run_memory_write(struct run *r, struct err *e)
{
    char path[1200];
    struct mem_history_counts counts;
    struct mem_pool_conf conf;
    mem_history_counts(r->history, &counts);
    if (!r->o.memory_history && !counts.frozen)
        return ST_OK;
    (void)snprintf(path, sizeof path, "%s", r->o.memory_history ? r->o.memory_history : "");
    if (!r->o.memory_history)
        TRY(own_path(r, path, sizeof path, e));
    TRY(mem_pool_conf_env(&conf, NULL, e));
    struct mem_history_form form = {
        .pickle = is_pickle(path), .version = SNUG_VERSION, .conf = &conf};
    TRY(mem_history_write(r->history, path, &form, e));
    json_t *event = json_object();
    json_put_str(event, "event", "memory_history");
    json_put_str(event, "path", path);
    json_put_i64(event, "events", counts.events_n);
    json_put_i64(event, "events_lost", counts.lost_n);
    json_put_bool(event, "ran_out", counts.frozen);
    json_decref(r->history_result);
    r->history_result = json_incref(event);
    run_event(r, event);
    return ST_OK;
}

void run_memory_close(struct run *r)
{
    mem_history_free(r->history);
    json_decref(r->history_result);
    r->history = NULL;
    r->history_result = NULL;
}

/* ---- figures ---- */

void run_memory_measured(struct run *r, const struct run_place *place, struct exec *x)
{
    (void)snprintf(r->memory_device, sizeof r->memory_device, "%s", place->device->id);
    exec_memory(x, &r->memory_figures);
    exec_memory_stats(x, &r->memory_stats);
}

json_t *run_memory_json(const struct run *r)
{
    json_t *o = exec_memory_json(&r->memory_figures);
    json_put_str(o, "device", r->memory_device);
    return o;
}

char *run_memory_summary(const struct run *r)
{
    struct str out;
    str_init(&out);
    const char *colon = strchr(r->memory_device, ':');
    int device = colon && colon[1] >= '0' && colon[1] <= '9' ? colon[1] - '0' : 0;
    mem_pool_summary(&r->memory_stats, device, false, &out);
    return str_take(&out);
}
