/* queued.c - what `snug run` submits. */
#include "cli/queued.h"

#include "base/env.h"
#include "graph/graph.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Only a server knows them. */
static const enum option_id of_servers[] = {
    OPTION_TARGET,  OPTION_DEVICES,       OPTION_POOL, OPTION_WAIT_MEMORY,    OPTION_DETACH,
    OPTION_TIMEOUT, OPTION_DETERMINISTIC, OPTION_NAME, OPTION_RECORD_OUTPUTS, OPTION_SERVER,
    OPTION_KEY};
/* Only a run of this process has them. */
static const enum option_id of_local_runs[] = {
    OPTION_MEMORY,       OPTION_MEMORY_HISTORY, OPTION_MEMORY_HISTORY_MAX,
    OPTION_MEMORY_STEPS, OPTION_MEMORY_SUMMARY, OPTION_THREADS,
    OPTION_PROFILE,      OPTION_TENSORBOARD};

/* The first of the options that is given, or OPTION_COUNT. */
static enum option_id given_of(const struct args *a, const enum option_id *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (a->option[ids[i]].given)
            return ids[i];
    return OPTION_COUNT;
}

/* SNUG_SERVER or config.json name a server. */
static bool server_is_named(void)
{
    struct client *c;
    struct err e;
    enum status st = client_open(&(struct client_options){0}, &c, &e);
    bool named = st == ST_OK ? !client_is_local(c) : st != ST_NOT_FOUND;
    if (st == ST_OK)
        client_close(c);
    return named;
}

/* Of graphs, or of commands, alone. */
static const enum option_id of_graphs[] = {
    OPTION_SET, OPTION_SEED, OPTION_RESUME, OPTION_DETERMINISTIC, OPTION_RECORD_OUTPUTS};
static const enum option_id of_commands[] = {OPTION_ENV, OPTION_DIR};

static enum status check_line(const struct args *a, struct err *e)
{
    enum option_id id = a->rest
                            ? given_of(a, of_graphs, sizeof of_graphs / sizeof *of_graphs)
                            : given_of(a, of_commands, sizeof of_commands / sizeof *of_commands);
    if (id != OPTION_COUNT)
        return err_set(
            e, ST_USAGE, "--%s is of %s", option_info(id).name,
            a->rest ? "graphs, not of commands" : "commands: snug run [OPTIONS] -- COMMAND");
    if (a->rest && a->n_arguments > 0)
        return err_set(
            e, ST_USAGE, "either GRAPH or -- COMMAND, not both: \"%.100s\"", a->argument[0]);
    if (a->rest && a->n_rest == 0)
        return err_set(e, ST_USAGE, "a command is missing after --");
    return ST_OK;
}

static enum status check_here(const struct args *a, bool local, struct err *e)
{
    enum option_id id = given_of(a, of_servers, sizeof of_servers / sizeof *of_servers);
    const char *what = id != OPTION_COUNT ? option_info(id).name : NULL;
    if (!what && !a->rest)
        return ST_OK;
    (void)err_set(
        e, ST_USAGE, "%s%s %s", what ? "--" : "", what ? what : "`snug run -- COMMAND`",
        local ? "and --local contradict each other" : "needs a server");
    if (!local)
        err_hint(e, "`snug start` starts one here; --server URL (or SNUG_SERVER) names another");
    return ST_USAGE;
}

enum status queued_wanted(const struct args *a, bool *out, struct err *e)
{
    bool local = a->option[OPTION_LOCAL].given;
    *out = false;
    TRY(check_line(a, e));
    *out = !local && (a->option[OPTION_SERVER].given || client_local_runs() || server_is_named());
    if (!*out)
        return check_here(a, local, e);
    enum option_id id = given_of(a, of_local_runs, sizeof of_local_runs / sizeof *of_local_runs);
    if (id != OPTION_COUNT) {
        (void)err_set(
            e, ST_USAGE, "--%s is of runs in this process, and this one goes to a server",
            option_info(id).name);
        err_hint(e, "add --local to run it here");
        return ST_USAGE;
    }
    return ST_OK;
}

/* ---- options ---- */

/* "cuda:2, cuda:0" -> ["cuda:2", "cuda:0"]. */
static json_t *list_of(const char *text)
{
    json_t *list = json_array();
    while (*text) {
        char name[64];
        size_t n = strcspn(text, ",");
        str_copy_trimmed(name, sizeof name, text, n);
        if (name[0])
            (void)json_array_append_new(list, json_string(name));
        text += n + (text[n] == ',');
    }
    return list;
}

/* --device names one card of a worker, or a kind under any; of this server it is options.device. */
static json_t *target_of(const struct args *a, json_t *options)
{
    const struct option_value *v = a->option;
    const char *worker = v[OPTION_TARGET].text, *device = v[OPTION_DEVICE].text;
    json_t *t = json_object();
    if (worker || v[OPTION_POOL].given)
        json_put_str(t, "worker", worker ? worker : "any");
    if (v[OPTION_POOL].given)
        json_put_str(t, "pool", v[OPTION_POOL].text);
    if (v[OPTION_DEVICES].given)
        json_put(t, "devices", list_of(v[OPTION_DEVICES].text));
    else if (device && worker && strcmp(worker, "any") != 0 && strcmp(worker, "local") != 0)
        json_put(t, "devices", list_of(device));
    else if (device)
        json_put_str(options, "device", device);
    if (v[OPTION_MEMORY_GIB].given)
        json_put_f64(t, "memory_gib", (double)v[OPTION_MEMORY_GIB].number / 1073741824.0);
    if (v[OPTION_WAIT_MEMORY].given)
        json_put_bool(t, "wait", true);
    return t;
}

enum status queued_options(const struct args *a, json_t **out, struct err *e)
{
    const struct option_value *v = a->option;
    json_t *o = json_object(), *target = target_of(a, o);
    *out = NULL;
    if (json_object_size(target) > 0)
        json_put(o, "target", target);
    else
        json_decref(target);
    if (v[OPTION_SEED].given)
        json_put_i64(o, "seed", v[OPTION_SEED].number);
    if (v[OPTION_DETERMINISTIC].given)
        json_put_bool(o, "deterministic", true);
    if (v[OPTION_RECORD_OUTPUTS].given)
        json_put_bool(o, "record_outputs", true);
    if (v[OPTION_TIMEOUT].given)
        json_put_f64(o, "timeout_s", v[OPTION_TIMEOUT].seconds);
    if (v[OPTION_RESUME].given)
        json_put_str(o, "resume", v[OPTION_RESUME].text);
    if (v[OPTION_DEVICE].given && v[OPTION_DEVICES].given) {
        json_decref(o);
        return err_set(e, ST_USAGE, "either --device or --devices, not both");
    }
    *out = o;
    return ST_OK;
}

/* A path as any process of this machine finds it. */
static void absolute(const char *path, char *buf, size_t cap)
{
    char here[1024];
    if (path[0] == '/' || !getcwd(here, sizeof here))
        (void)snprintf(buf, cap, "%s", path);
    else
        (void)path_join(here, path, buf, cap);
}

enum status queued_graph(
    const struct args *a, const char *path, const struct client *c, json_t *options, json_t **out,
    struct err *e)
{
    struct graph *g = NULL;
    char dir[1024], whole[2048];
    const struct option_value *sets = &a->option[OPTION_SET];
    *out = NULL;
    TRY(graph_prepare(path, sets->list.data, sets->list.n, &g, e));
    *out = graph_document(g);
    if (client_is_local(c)) {
        absolute(path_dir(path, dir, sizeof dir), whole, sizeof whole);
        json_put_str(options, "graph_dir", whole);
    }
    const char *resume = json_get_str(options, "resume", NULL);
    if (resume && client_is_local(c) && strcmp(resume, "auto") != 0 && file_exists(resume)) {
        absolute(resume, whole, sizeof whole);
        json_put_str(options, "resume", whole);
    }
    graph_free(g);
    return ST_OK;
}
