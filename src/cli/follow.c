/* follow.c - polls a run's row and its events. */
#include "cli/follow.h"

#include "base/env.h"

#include <string.h>
#include <time.h>

enum { POLL_S = 2, WAIT_S = 20, REACH_S = 120 };

static bool stopped(const struct follow *f)
{
    return f->stop && f->stop(f->ctx);
}

/* A second, in pieces, so that Ctrl-C is noticed. */
static void rest(const struct follow *f)
{
    struct timespec piece = {.tv_nsec = 100000000};
    for (int i = 0; i < 10 && !stopped(f); i++)
        (void)nanosleep(&piece, NULL);
}

static void say(struct follow *f, const char *kind, const char *text)
{
    json_t *event = json_object();
    json_put_str(event, "event", kind);
    json_put_str(event, "message", text);
    live_event(event, f->live);
    json_decref(event);
}

/* Whether the trouble may pass: a server that restarts, a network that is gone for a while. */
static bool may_pass(enum status st)
{
    return st == ST_IO || st == ST_BUSY;
}

/* Opens the client again; the server of a SNUG_HOME may have another port and token by now. */
static enum status find_again(struct follow *f, struct err *e)
{
    struct client_options o = {
        .server = f->args->option[OPTION_SERVER].text,
        .secret = f->args->option[OPTION_KEY].text,
        .ca = f->args->option[OPTION_CA].text,
        .stop = f->stop,
        .ctx = f->ctx,
    };
    struct client *c;
    enum status st = client_open(&o, &c, e);
    if (st == ST_NOT_FOUND) /* it may come again */
        return err_set(e, ST_IO, "the server is gone");
    if (st != ST_OK)
        return st;
    client_close(f->client);
    f->client = c;
    return ST_OK;
}

/* A GET that outlasts a server's restart, and a network's absence of two minutes. */
static enum status
ask(struct follow *f, const char *path, double limit_s, json_t **out, struct err *e)
{
    int64_t since = 0;
    for (;;) {
        enum status st = client_get(f->client, path, limit_s, out, e);
        if (st == ST_OK && since)
            say(f, "log", "the server is back");
        if (!may_pass(st) || stopped(f))
            return stopped(f) && may_pass(st) ? err_set(e, ST_INTERRUPTED, "stopped") : st;
        if (!since) {
            say(f, "log", e->text);
            since = clock_ns();
        }
        if (clock_ns() - since > (int64_t)REACH_S * 1000000000)
            return st;
        rest(f);
        st = find_again(f, e);
        if (st != ST_OK && !may_pass(st))
            return st;
    }
}

static enum status read_row(struct follow *f, json_t **row, struct err *e)
{
    struct client_path p = client_path("/api/runs/%s", f->run_id);
    return ask(f, p.text, 0, row, e);
}

/* One page of events, shown; waits up to wait_s for it. */
static enum status
read_events(struct follow *f, int wait_s, char status[16], bool *more, struct err *e)
{
    struct client_path p = client_path("/api/runs/%s/events", f->run_id);
    json_t *page, *event;
    size_t i;
    client_query_i64(&p, "cursor", f->cursor);
    client_query_i64(&p, "wait", wait_s);
    TRY(ask(f, p.text, wait_s + 30, &page, e));
    const json_t *events = json_object_get(page, "events");
    json_array_foreach(events, i, event)
    {
        f->cursor = json_get_i64(event, "cursor", f->cursor);
        f->event(f, json_get_str(event, "type", ""), json_object_get(event, "payload"));
    }
    *more = json_array_size(events) > 0;
    (void)snprintf(status, 16, "%s", json_get_str(page, "status", ""));
    json_decref(page);
    return ST_OK;
}

void waiting_text(const json_t *row, struct str *out)
{
    static const char *const ends[] = {"th", "st", "nd", "rd"};
    int64_t place = json_get_i64(row, "queue_position", 0);
    int last = (int)(place % 10);
    bool teen = place % 100 > 10 && place % 100 < 14;
    const char *reason = json_get_str(row, "reason", NULL);
    str_add(out, "queued");
    if (place > 0)
        str_printf(
            out, " for %s, %lld%s", json_get_str(row, "queue_key", "its device"), (long long)place,
            teen || last > 3 ? "th" : ends[last]);
    if (reason && reason[0])
        str_printf(out, "; %s", reason);
}

static void tell_waiting(struct follow *f, const json_t *row)
{
    struct str s;
    str_init(&s);
    waiting_text(row, &s);
    if (strncmp(s.data, f->said, sizeof f->said - 1) != 0) {
        (void)snprintf(f->said, sizeof f->said, "%s", s.data);
        f->waits(f, row);
    }
    str_release(&s);
}

static bool is_active(const char *status)
{
    return strcmp(status, "queued") == 0 || strcmp(status, "running") == 0;
}

enum status follow_run(struct follow *f, json_t **row, struct err *e)
{
    char status[16] = "queued";
    bool more = true;
    enum status st = find_again(f, e); /* with `stop` */
    *row = NULL;
    while (st == ST_OK && (is_active(status) || more)) {
        bool queued = strcmp(status, "queued") == 0;
        if (queued) {
            json_decref(*row);
            st = read_row(f, row, e);
            if (st == ST_OK && strcmp(json_get_str(*row, "status", ""), "queued") == 0)
                tell_waiting(f, *row);
        }
        if (st == ST_OK && stopped(f))
            st = err_set(e, ST_INTERRUPTED, "stopped");
        if (st == ST_OK)
            st = read_events(
                f,
                !is_active(status) ? 0
                : queued           ? POLL_S
                                   : WAIT_S,
                status, &more, e);
    }
    json_decref(*row);
    *row = NULL;
    return st == ST_OK ? read_row(f, row, e) : st;
}

enum status run_end_status(const json_t *row, struct err *e)
{
    const char *status = json_get_str(row, "status", ""), *cause = json_get_str(row, "cause", "");
    const char *error = json_get_str(row, "error", NULL);
    const json_t *detail = json_object_get(row, "error_detail");
    if (strcmp(status, "succeeded") == 0)
        return ST_OK;
    enum status st = strcmp(cause, "out_of_memory") == 0 ? ST_OOM : ST_FAILED;
    if (error && error[0])
        (void)err_set(e, st, "%s", error);
    else
        (void)err_set(e, st, "the run is %s", status);
    if (st == ST_FAILED && strcmp(status, "failed") != 0 && error && !strstr(error, status))
        err_prefix(e, "the run is %s", status);
    const char *hint = json_get_str(detail, "hint", NULL);
    if (hint)
        err_hint(e, "%s", hint);
    err_node(e, json_get_str(detail, "node_id", ""), "");
    return st;
}
