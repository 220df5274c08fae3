/* variants.c - sweeps and studies from the command line. */
#include "cli/variants.h"

#include "cli/answer.h"
#include "cli/variation.h"

#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t stops;

static void on_stop(int signal_number)
{
    (void)signal_number;
    stops = 1;
}

/* ---- the ranking ---- */

static void add_value(struct str *rows, const json_t *value)
{
    if (json_is_number(value))
        str_printf(rows, "%.6g", json_number_value(value));
    else if (json_is_string(value))
        cell_add(rows, json_string_value(value), 0);
    else if (json_is_boolean(value))
        str_add(rows, json_is_true(value) ? "true" : "false");
    else
        str_add(rows, "-");
}

/* {"lr": 0.1} or [{"node_id", "param", "value"}]: "lr=0.1 batch_size=32". */
static void add_params(struct str *rows, const json_t *params)
{
    const char *name;
    json_t *value;
    size_t i;
    bool any = false;
    json_object_foreach((json_t *)(uintptr_t)params, name, value)
    {
        str_printf(rows, "%s%s=", any ? " " : "", name);
        add_value(rows, value);
        any = true;
    }
    json_array_foreach(params, i, value)
    {
        str_printf(
            rows, "%s%s.%s=", any ? " " : "", json_get_str(value, "node_id", "?"),
            json_get_str(value, "param", "?"));
        add_value(rows, json_object_get(value, "value"));
        any = true;
    }
}

static bool is_active(const char *status)
{
    return strcmp(status, "queued") == 0 || strcmp(status, "running") == 0 ||
           strcmp(status, "pending") == 0;
}

/* A sweep's variant is one run; a study's has a cell a repetition. */
static void add_status(struct str *rows, const json_t *v)
{
    const json_t *cells = json_object_get(v, "cells");
    size_t i, ended = 0;
    json_t *cell;
    char id[9];
    if (!json_is_array(cells)) {
        str_printf(
            rows, "\t%s\t%s\t", json_get_str(v, "status", "-"),
            short_id(json_get_str(v, "run_id", "-"), id));
        return;
    }
    json_array_foreach(cells, i, cell) ended += !is_active(json_get_str(cell, "status", "pending"));
    str_printf(rows, "\t%zu of %zu ended\t", ended, json_array_size(cells));
    json_array_foreach(cells, i, cell)
        str_printf(rows, "%s%s", i ? " " : "", short_id(json_get_str(cell, "run_id", "-"), id));
    str_add(rows, "\t");
}

static void add_variant(struct str *rows, const json_t *v)
{
    const json_t *devices = json_object_get(v, "devices"), *rank = json_object_get(v, "rank");
    size_t i;
    json_t *device;
    if (json_is_integer(rank))
        str_printf(rows, "%lld", (long long)json_integer_value(rank));
    str_printf(rows, "\t%lld\t", (long long)json_get_i64(v, "index", 0));
    add_value(rows, json_object_get(v, "objective"));
    str_add(rows, "\t");
    add_params(rows, json_object_get(v, "params"));
    add_status(rows, v);
    str_add(rows, json_get_str(v, "worker_id", "-"));
    json_array_foreach(devices, i, device) str_printf(
        rows, "%s%s", i ? "," : " ", json_is_string(device) ? json_string_value(device) : "?");
    str_add(rows, "\n");
}

static void ranking_text(const struct variants_kind *k, const json_t *s, struct str *out)
{
    const json_t *objective = json_object_get(s, "objective");
    struct str rows;
    size_t i;
    json_t *v;
    const char *warning = json_get_str(s, "objective_warning", NULL);
    str_printf(
        out, "%s %s: %s", k->what, json_get_str(s, k->id, json_get_str(s, "id", "?")),
        json_get_str(s, "state", "?"));
    if (json_is_object(objective))
        str_printf(
            out, ", %s %s", json_get_str(objective, "direction", ""),
            json_get_str(objective, "metric", ""));
    if (json_get_str(s, "reason", NULL))
        str_printf(out, " (%s)", json_get_str(s, "reason", ""));
    str_add(out, "\n");
    if (warning)
        str_printf(out, "warning: %s\n", warning);
    str_init(&rows);
    str_add(&rows, "RANK\tVARIANT\tOBJECTIVE\tPARAMETERS\tSTATUS\tRUN\tWHERE\n");
    json_array_foreach(json_object_get(s, "variants"), i, v) add_variant(&rows, v);
    table_text(rows.data, out);
    str_release(&rows);
}

/* ---- one of them ---- */

static enum status
find(const struct variants_kind *k, struct client *c, const char *given, char id[65], struct err *e)
{
    enum status st = remote_id_of(c, k->path, k->list, k->what, given, id, e);
    if (st != ST_UNSUPPORTED) /* a server without a list of them: the id as given */
        return st;
    (void)snprintf(id, 65, "%s", given);
    return ST_OK;
}

static struct client_path path_of(const struct variants_kind *k, const char *id, const char *word)
{
    struct client_path p = client_path("/%s", id), whole = {.text = ""};
    (void)snprintf(
        whole.text, sizeof whole.text, "%s%.500s%s%s", k->path, p.text, word ? "/" : "",
        word ? word : "");
    return whole;
}

enum status variants_show(
    const struct variants_kind *k, const struct args *a, struct client *c, json_t *d,
    struct str *out, struct err *e)
{
    char id[65];
    json_t *s;
    TRY(find(k, c, a->argument[1], id, e));
    TRY(client_get(c, path_of(k, id, NULL).text, 0, &s, e));
    ranking_text(k, s, out);
    json_put(d, k->what, s);
    return ST_OK;
}

enum status variants_csv(
    const struct variants_kind *k, const struct args *a, struct client *c, json_t *d,
    struct str *out, struct err *e)
{
    char id[65];
    TRY(find(k, c, a->argument[1], id, e));
    struct client_path p = path_of(k, id, NULL);
    client_query(&p, "format", "csv");
    return remote_csv(c, p.text, d, out, e);
}

enum status variants_list(
    const struct variants_kind *k, struct client *c, json_t *d, struct str *out, struct err *e)
{
    json_t *page, *row;
    size_t i;
    struct str rows;
    TRY(client_get(c, k->path, 0, &page, e));
    str_init(&rows);
    str_add(&rows, "ID\tNAME\tSTATE\tMADE\n");
    json_array_foreach(json_object_get(page, k->list), i, row)
    {
        str_printf(&rows, "%s\t", json_get_str(row, k->id, json_get_str(row, "id", "?")));
        cell_add(&rows, json_get_str(row, "name", "-"), 40);
        str_printf(
            &rows, "\t%s\t%s\n", json_get_str(row, "state", "?"),
            json_get_str(row, "created_at", ""));
    }
    if (i == 0) {
        str_clear(&rows);
        str_add(&rows, "none\n");
    }
    remote_table(&rows, page, d, out);
    return ST_OK;
}

enum status variants_tell(
    const struct variants_kind *k, const struct args *a, struct client *c, const char *word,
    const char *said, json_t *d, struct str *out, struct err *e)
{
    char id[65], text[9];
    json_t *reply;
    TRY(find(k, c, a->argument[1], id, e));
    json_t *body = NULL;
    if (a->option[OPTION_RUNS_MAX].given) { /* more budget for a study that goes on */
        body = json_object();
        json_put_i64(body, "runs_max", a->option[OPTION_RUNS_MAX].number);
    }
    enum status st = client_post(c, path_of(k, id, word).text, body, 0, &reply, e);
    json_decref(body);
    if (st != ST_OK)
        return st;
    bool over = str_eq(json_get_str(reply, "state", ""), "finished");
    str_printf(out, "%s %s %s\n", k->what, short_id(id, text), over ? "is finished" : said);
    json_put(d, k->what, reply);
    return ST_OK;
}

/* ---- submitting ---- */

static bool is_over(const char *state)
{
    return strcmp(state, "finished") == 0 || strcmp(state, "failed") == 0 ||
           strcmp(state, "cancelled") == 0 || strcmp(state, "paused") == 0;
}

/* How many of its runs are over, on a terminal and when the number changes. */
static void show_progress(const struct args *a, const json_t *s, int64_t *shown)
{
    const json_t *counts = json_object_get(s, "counts");
    const char *status;
    json_t *n;
    int64_t ended = 0, all = 0;
    json_object_foreach((json_t *)(uintptr_t)counts, status, n)
    {
        if (strcmp(status, "total") == 0)
            continue;
        all += json_integer_value(n);
        ended += is_active(status) ? 0 : json_integer_value(n);
    }
    if (ended == *shown)
        return;
    *shown = ended;
    if (a->json)
        (void)fprintf(
            stderr, "{\"event\": \"progress\", \"ended\": %lld, \"runs\": %lld}\n",
            (long long)ended, (long long)all);
    else
        (void)fprintf(stderr, "%lld of %lld runs have ended\n", (long long)ended, (long long)all);
}

static enum status wait_for_end(
    const struct variants_kind *k, const struct args *a, struct client *c, const char *id,
    json_t **out, struct err *e)
{
    struct sigaction act = {.sa_handler = on_stop};
    struct timespec second = {.tv_sec = 1};
    int64_t shown = -1;
    char text[9];
    (void)sigemptyset(&act.sa_mask);
    (void)sigaction(SIGINT, &act, NULL);
    (void)sigaction(SIGTERM, &act, NULL);
    for (;;) {
        json_t *s;
        TRY(client_get(c, path_of(k, id, NULL).text, 0, &s, e));
        show_progress(a, s, &shown);
        if (is_over(json_get_str(s, "state", ""))) {
            *out = s;
            return ST_OK;
        }
        json_decref(s);
        if (!stops)
            (void)nanosleep(&second, NULL);
        if (stops) {
            (void)short_id(id, text);
            (void)err_set(e, ST_INTERRUPTED, "the %s goes on as %s", k->what, text);
            err_hint(
                e, "`snug %s show %s` looks at it, `snug %s cancel %s` stops it", k->what, text,
                k->what, text);
            return ST_INTERRUPTED;
        }
    }
}

enum status variants_submit(
    const struct variants_kind *k, const struct args *a, struct client *c,
    enum status (*adjust)(const struct args *a, json_t *body, struct err *e), json_t *d,
    struct str *out, struct err *e)
{
    json_t *body, *reply, *s = NULL;
    char id[65];
    TRY(variation_body(a, c, a->argument[1], k->needs_params, &body, e));
    enum status st = adjust ? adjust(a, body, e) : ST_OK;
    if (st == ST_OK)
        st = client_post(c, k->path, body, 120, &reply, e);
    json_decref(body);
    if (st != ST_OK)
        return st;
    (void)snprintf(id, sizeof id, "%s", json_get_str(reply, k->id, json_get_str(reply, "id", "")));
    json_put_str(d, k->id, id);
    if (a->option[OPTION_DETACH].given) {
        str_printf(out, "%s\n", id);
        json_put(d, k->what, reply);
        return ST_OK;
    }
    json_decref(reply);
    if (!a->json)
        (void)fprintf(stderr, "%s %s\n", k->what, id);
    TRY(wait_for_end(k, a, c, id, &s, e));
    ranking_text(k, s, out);
    if (strcmp(json_get_str(s, "state", ""), "failed") == 0)
        st = err_set(
            e, ST_FAILED, "the %s failed: %s", k->what,
            json_get_str(s, "error", "no run succeeded"));
    json_put(d, k->what, s);
    return st;
}
