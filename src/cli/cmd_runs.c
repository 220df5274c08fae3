/* cmd_runs.c - `snug runs`: lists, one run, its log, events and figures; cancel, delete. */
#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/events.h"
#include "cli/remote.h"
#include "cli/run_rows.h"

#include "base/env.h"

#include <signal.h>
#include <string.h>

enum { LIMIT_DEFAULT = 50, EVENTS_PAGE = 500 };

/* ---- list ---- */

static enum status
list_runs(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    const struct option_value *statuses = &a->option[OPTION_STATUS];
    const struct option_value *limit = &a->option[OPTION_LIMIT];
    struct client_path p = client_path("/api/runs");
    struct str rows;
    json_t *page, *row;
    size_t i;
    for (i = 0; i < statuses->list.n; i++)
        client_query(&p, "status", statuses->list.data[i]);
    client_query_i64(&p, "limit", limit->given ? limit->number : LIMIT_DEFAULT);
    TRY(client_get(c, p.text, 0, &page, e));
    str_init(&rows);
    run_rows_head(&rows);
    json_array_foreach(json_object_get(page, "runs"), i, row) run_row(&rows, row);
    if (json_array_size(json_object_get(page, "runs")) == 0)
        str_add(out, "no runs\n");
    else
        table_text(rows.data, out);
    int64_t total = json_get_i64(page, "total", 0);
    if (total > (int64_t)i)
        str_printf(out, "%lld more: --limit N\n", (long long)(total - (int64_t)i));
    str_release(&rows);
    (void)json_object_update(d, page);
    json_decref(page);
    return ST_OK;
}

/* ---- one run ---- */

static void add_line(struct str *rows, const char *label, const char *text)
{
    if (!text || !text[0])
        return;
    str_printf(rows, "%s\t", label);
    cell_add(rows, text, 0);
    str_add(rows, "\n");
}

static void add_json(struct str *rows, const char *label, const json_t *value)
{
    bool empty = !value || json_is_null(value) ||
                 (json_is_object(value) && json_object_size(value) == 0) ||
                 (json_is_array(value) && json_array_size(value) == 0);
    char *text = empty ? NULL : json_text(value, false);
    add_line(rows, label, text);
    mem_free(text);
}

/* "cuda:0 5.21 GiB, cuda:1 5.19 GiB" (R12). */
static void add_peaks(struct str *rows, const json_t *row)
{
    const json_t *peaks = json_object_get(row, "peaks");
    struct str s;
    size_t i;
    json_t *peak;
    char size[32];
    str_init(&s);
    json_array_foreach(peaks, i, peak) str_printf(
        &s, "%s%s %s", i ? ", " : "", json_get_str(peak, "device", "?"),
        bytes_text(json_get_i64(peak, "bytes", 0), size, sizeof size));
    add_line(rows, "peak memory", s.data);
    str_release(&s);
}

static void run_text(const json_t *row, struct str *out)
{
    static const char *const texts[][2] = {
        {"id", "id"},
        {"name", "name"},
        {"kind", "kind"},
        {"status", "status"},
        {"reason", "reason"},
        {"error", "error"},
        {"cause", "cause"},
        {"owner", "owner"},
        {"queue", "queue_key"},
        {"created", "created_at"},
        {"started", "started_at"},
        {"ended", "finished_at"},
        {"graph key", "graph_key"}};
    struct str rows, cell;
    str_init(&rows);
    str_init(&cell);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        add_line(&rows, texts[i][0], json_get_str(row, texts[i][1], NULL));
    if (json_get_i64(row, "queue_position", 0) > 0)
        str_printf(&rows, "place\t%lld\n", (long long)json_get_i64(row, "queue_position", 0));
    run_where(&cell, row);
    add_line(&rows, "where", cell.data);
    str_clear(&cell);
    run_budget(&cell, row);
    add_line(&rows, "budget", cell.data);
    add_peaks(&rows, row);
    add_json(&rows, "options", json_object_get(row, "options"));
    add_json(&rows, "metrics", json_object_get(row, "final_metrics"));
    add_json(&rows, "facts", json_object_get(row, "execution_facts"));
    table_text(rows.data, out);
    str_release(&rows);
    str_release(&cell);
}

static enum status
show_run(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    char id[33];
    json_t *row;
    TRY(remote_run_id(c, a->argument[1], id, e));
    TRY(client_get(c, client_path("/api/runs/%s", id).text, 0, &row, e));
    run_text(row, out);
    json_put(d, "run", row);
    return ST_OK;
}

/* ---- what it said ---- */

static volatile sig_atomic_t stops;

static void on_stop(int signal_number)
{
    (void)signal_number;
    stops = 1;
}

static bool stop_asked(void *ctx)
{
    (void)ctx;
    return stops > 0;
}

/* -f: as `snug run` shows it. Ctrl-C leaves the run running. */
static enum status
follow_logs(const struct args *a, struct client *c, const char *id, json_t *d, struct err *e)
{
    struct live live;
    struct follow f = {
        .args = a,
        .run_id = id,
        .stop = stop_asked,
        .live = &live,
        .event = events_show,
        .waits = events_show_wait};
    struct sigaction act = {.sa_handler = on_stop};
    json_t *row = NULL;
    (void)c;
    (void)sigemptyset(&act.sa_mask);
    (void)sigaction(SIGINT, &act, NULL);
    (void)sigaction(SIGTERM, &act, NULL);
    live_begin(&live, a->json);
    enum status st = follow_run(&f, &row, e);
    live_end(&live);
    client_close(f.client);
    if (st == ST_INTERRUPTED) {
        (void)err_set(e, st, "stopped looking on; the run goes on");
        return st;
    }
    if (row)
        json_put(d, "run", row);
    return st;
}

/* The whole log, in the parts that the worker gives. */
static enum status read_log(struct client *c, const char *id, struct str *out, struct err *e)
{
    int64_t offset = 0, size = 1;
    while (offset < size) {
        struct client_path p = client_path("/api/runs/%s/log", id);
        json_t *part;
        client_query_i64(&p, "offset", offset);
        TRY(client_get(c, p.text, 60, &part, e));
        const json_t *text = json_object_get(part, "text");
        int64_t next = json_get_i64(part, "offset", 0);
        size = next > offset ? json_get_i64(part, "size", 0) : 0; /* no part: no more */
        offset = next;
        str_add_n(out, json_string_value(text), json_string_length(text));
        json_decref(part);
    }
    return ST_OK;
}

static enum status
show_logs(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    char id[33];
    TRY(remote_run_id(c, a->argument[1], id, e));
    if (a->option[OPTION_FOLLOW].given)
        return follow_logs(a, c, id, d, e);
    TRY(read_log(c, id, out, e));
    json_put_str(d, "run_id", id);
    json_put(d, "log", json_stringn(out->data, out->n));
    return ST_OK;
}

static enum status
show_events(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    char id[33];
    int64_t cursor = 0;
    size_t i, n;
    json_t *page, *event, *all = json_array();
    struct str rows;
    enum status st = remote_run_id(c, a->argument[1], id, e);
    json_put(d, "events", all);
    str_init(&rows);
    do {
        struct client_path p = client_path("/api/runs/%s/events", id);
        client_query_i64(&p, "cursor", cursor);
        client_query_i64(&p, "limit", EVENTS_PAGE);
        n = 0;
        if (st == ST_OK)
            st = client_get(c, p.text, 0, &page, e);
        if (st != ST_OK)
            break;
        n = json_array_size(json_object_get(page, "events"));
        json_array_foreach(json_object_get(page, "events"), i, event)
        {
            cursor = json_get_i64(event, "cursor", cursor);
            str_printf(&rows, "%lld\t%s\t", (long long)cursor, json_get_str(event, "ts", ""));
            event_line(json_get_str(event, "type", ""), json_object_get(event, "payload"), &rows);
            (void)json_array_append(all, event);
        }
        json_decref(page);
    } while (n > 0);
    table_text(rows.data, out);
    str_release(&rows);
    if (st == ST_OK)
        json_put_str(d, "run_id", id);
    return st;
}

/* ---- figures ---- */

static enum status
show_metrics(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    char id[33];
    json_t *page, *point;
    size_t i;
    struct str rows;
    TRY(remote_run_id(c, a->argument[1], id, e));
    struct client_path p = client_path("/api/runs/%s/metrics", id);
    client_query(&p, "name", a->option[OPTION_METRIC].text);
    if (a->option[OPTION_CSV].given) {
        client_query(&p, "format", "csv");
        return remote_csv(c, p.text, d, out, e);
    }
    TRY(client_get(c, p.text, 60, &page, e));
    str_init(&rows);
    str_add(&rows, "SERIES\tNODE\tSTEP\tVALUE\n");
    json_array_foreach(json_object_get(page, "points"), i, point)
    {
        cell_add(&rows, json_get_str(point, "name", ""), 0);
        str_add(&rows, "\t");
        cell_add(&rows, json_get_str(point, "node_id", "-"), 0);
        str_printf(&rows, "\t%lld\t", (long long)json_get_i64(point, "step", 0));
        const json_t *v = json_object_get(point, "value");
        if (json_is_number(v))
            str_printf(&rows, "%.6g\n", json_number_value(v));
        else
            str_add(&rows, "-\n");
    }
    remote_table(&rows, page, d, out);
    return ST_OK;
}

/* ---- changes ---- */

static enum status
cancel_run(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    char id[33], text[9];
    json_t *reply;
    TRY(remote_run_id(c, a->argument[1], id, e));
    TRY(client_post(c, client_path("/api/runs/%s/cancel", id).text, NULL, 0, &reply, e));
    (void)short_id(id, text);
    if (json_get_bool(reply, "cancelled", false))
        str_printf(out, "run %s is cancelled\n", text);
    else
        str_printf(out, "run %s had ended: %s\n", text, json_get_str(reply, "status", "?"));
    json_put_str(d, "run_id", id);
    json_put_str(d, "run_status", json_get_str(reply, "status", NULL));
    json_put_bool(d, "cancelled", json_get_bool(reply, "cancelled", false));
    json_decref(reply);
    return ST_OK;
}

static enum status
delete_run(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    char id[33], text[9];
    TRY(remote_run_id(c, a->argument[1], id, e));
    TRY(client_json(c, "DELETE", client_path("/api/runs/%s", id).text, NULL, 0, NULL, e));
    str_printf(out, "run %s is forgotten; its files stay\n", short_id(id, text));
    json_put_str(d, "run_id", id);
    return ST_OK;
}

int cmd_runs(const struct args *a)
{
    static const struct remote_word words[] = {
        {"list", 0, "", list_runs},         {"show", 1, "ID", show_run},
        {"logs", 1, "ID", show_logs},       {"events", 1, "ID", show_events},
        {"metrics", 1, "ID", show_metrics}, {"cancel", 1, "ID", cancel_run},
        {"delete", 1, "ID", delete_run}};
    return remote_command(a, words, sizeof words / sizeof *words);
}
