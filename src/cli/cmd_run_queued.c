/* cmd_run_queued.c - `snug run` through a server: submits, shows the wait and the run, ends as a
 * run in the foreground does. */
#include "cli/answer.h"
#include "cli/bill.h"
#include "cli/events.h"
#include "cli/follow.h"
#include "cli/queued.h"

#include "base/env.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t stops;

static void on_stop(int signal_number)
{
    (void)signal_number;
    stops = stops + 1;
    if (stops > 3)
        _exit(status_exit(ST_INTERRUPTED));
}

static bool stop_asked(void *ctx)
{
    (void)ctx;
    return stops > 0;
}

static void catch_signals(void)
{
    struct sigaction act = {.sa_handler = on_stop};
    (void)sigemptyset(&act.sa_mask);
    (void)sigaction(SIGINT, &act, NULL);
    (void)sigaction(SIGTERM, &act, NULL);
}

/* ---- submission ---- */

/* NAME=VALUE of each --env. */
static enum status environment_of(const struct args *a, json_t **out, struct err *e)
{
    const struct option_value *v = &a->option[OPTION_ENV];
    json_t *o = json_object();
    *out = o;
    for (size_t i = 0; i < v->list.n; i++) {
        const char *text = v->list.data[i], *equals = strchr(text, '=');
        char name[256];
        if (!equals || equals == text || equals - text >= (ptrdiff_t)sizeof name)
            return err_set(e, ST_USAGE, "--env wants NAME=VALUE, not \"%.100s\"", text);
        (void)snprintf(name, sizeof name, "%.*s", (int)(equals - text), text);
        json_put_str(o, name, equals + 1);
    }
    return ST_OK;
}

static enum status
command_of(const struct args *a, const struct client *c, json_t **out, struct err *e)
{
    const char *dir = a->option[OPTION_DIR].text;
    const char *worker = a->option[OPTION_TARGET].text;
    bool here = client_is_local(c) && (!worker || strcmp(worker, "local") == 0);
    char cwd[1024];
    json_t *environment, *argv = json_array();
    *out = json_object();
    for (int i = 0; i < a->n_rest; i++)
        (void)json_array_append_new(argv, json_string(a->rest[i]));
    json_put(*out, "argv", argv);
    if (!dir && here)
        dir = getcwd(cwd, sizeof cwd);
    if (dir)
        json_put_str(*out, "working_dir", dir);
    enum status st = environment_of(a, &environment, e);
    json_put(*out, "environment", environment);
    if (st == ST_OK && json_array_size(argv) != (size_t)a->n_rest)
        st = err_set(e, ST_USAGE, "the command's line is not UTF-8");
    return st;
}

static enum status
body_of(const struct args *a, const struct client *c, json_t **out, struct err *e)
{
    json_t *options = NULL, *part = NULL, *body = json_object();
    *out = body;
    TRY(queued_options(a, &options, e));
    json_put(body, "options", options);
    enum status st = a->rest ? command_of(a, c, &part, e)
                             : queued_graph(a, a->argument[0], c, options, &part, e);
    if (part)
        json_put(body, a->rest ? "command" : "graph", part);
    if (a->option[OPTION_NAME].given)
        json_put_str(body, "name", a->option[OPTION_NAME].text);
    else if (a->rest)
        json_put_str(body, "name", a->rest[0]);
    return st;
}

/* With a key of its own, so that a reply that got lost does not make a second run. */
static enum status submit(struct client *c, json_t *body, char id[33], struct err *e)
{
    char key[40];
    uint64_t bits[2];
    json_t *reply;
    random_bytes(bits, sizeof bits);
    (void)snprintf(
        key, sizeof key, "%016llx%016llx", (unsigned long long)bits[0],
        (unsigned long long)bits[1]);
    json_put_str(body, "idempotency_key", key);
    enum status st = client_post(c, "/api/runs", body, 120, &reply, e);
    if (st == ST_IO)
        st = client_post(c, "/api/runs", body, 120, &reply, e);
    if (st != ST_OK)
        return st;
    (void)snprintf(id, 33, "%.32s", json_get_str(reply, "run_id", ""));
    json_decref(reply);
    return id[0] ? ST_OK : err_set(e, ST_INTERNAL, "the server gave the run no id");
}

/* ---- looking on ---- */

/* What a run of a server adds to the document of a run. */
static json_t *document_of(const json_t *row, const json_t *result)
{
    static const char *const keys[] = {"worker", "devices", "queue_key", "budget", "peaks"};
    json_t *d = json_object();
    if (json_is_object(result))
        (void)json_object_update(d, (json_t *)(uintptr_t)result);
    (void)json_object_del(d, "schema");
    (void)json_object_del(d, "status");
    (void)json_object_del(d, "error");
    json_put_str(d, "run_id", json_get_str(row, "id", NULL));
    json_put_str(d, "run_status", json_get_str(row, "status", NULL));
    json_put_str(d, "cause", json_get_str(row, "cause", NULL));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (json_object_get(row, keys[i]))
            json_put(d, keys[i], json_incref(json_object_get(row, keys[i])));
    return d;
}

/* A NodeOOMError's message is the whole report (base/document.c), which is its detail too: the
 * first part alone is this error's line, so that nothing is said twice. */
static void set_message(const char *message, const char *detail, enum status st, struct err *e)
{
    size_t n = strlen(message), tail = strlen(detail);
    if (tail && n >= tail && str_eq(message + n - tail, detail))
        for (n -= tail; n > 0 && message[n - 1] == '\n';)
            n--;
    (void)err_set(e, st, "%.*s", (int)n, message);
}

/* The error of the result's document has more words than the row's. */
static enum status error_of(const json_t *result, enum status st, struct err *e)
{
    const json_t *error = json_object_get(result, "error");
    const char *message = json_get_str(error, "message", NULL);
    if (st == ST_OK || !message || (st != ST_OOM && st != ST_FAILED))
        return st;
    if (strcmp(json_get_str(error, "code", ""), "interrupted") == 0)
        return st;
    set_message(message, json_get_str(error, "detail", ""), st, e);
    (void)snprintf(e->type, sizeof e->type, "%s", json_get_str(error, "type", ""));
    err_detail(e, "%s", json_get_str(error, "detail", ""));
    err_hint(e, "%s", json_get_str(error, "hint", ""));
    err_node(e, json_get_str(error, "node_id", ""), json_get_str(error, "node_type", ""));
    return st;
}

static void show_result(const struct args *a, const json_t *row, const json_t *result)
{
    char id[9];
    struct str out;
    str_init(&out);
    if (json_is_object(result))
        bill_result_text(result, colour_on(stdout), &out);
    str_printf(
        &out, "run %s %s on %s", short_id(json_get_str(row, "id", ""), id),
        json_get_str(row, "status", ""), json_get_str(row, "worker", "?"));
    double took =
        seconds_between(json_get_str(row, "started_at", ""), json_get_str(row, "finished_at", ""));
    if (took >= 0) {
        str_add(&out, " in ");
        duration_add(&out, took);
    }
    str_add(&out, "\n");
    if (!a->rest)
        (void)fputs(out.data, stdout);
    str_release(&out);
}

/* Ctrl-C: the run goes on. */
static void leave(struct follow *f, struct err *e)
{
    char id[9];
    (void)short_id(f->run_id, id);
    (void)err_set(e, ST_INTERRUPTED, "the run goes on as %s", id);
    err_hint(e, "`snug runs logs -f %s` looks on, `snug runs cancel %s` stops it", id, id);
}

static int follow_to_end(const struct args *a, struct follow *f, struct err *e)
{
    json_t *row = NULL, *d;
    enum status st = follow_run(f, &row, e);
    live_end(f->live);
    if (st == ST_INTERRUPTED) {
        leave(f, e);
        d = json_pack("{s:s}", "run_id", f->run_id);
    } else if (st != ST_OK) {
        d = json_pack("{s:s}", "run_id", f->run_id);
    } else {
        const json_t *result = json_object_get(row, "result");
        st = error_of(result, run_end_status(row, e), e);
        if (!a->json && st == ST_OK)
            show_result(a, row, result);
        d = document_of(row, result);
    }
    int rc = answer_end(a->json, st, e, d);
    json_decref(row);
    return rc;
}

static int detached(const struct args *a, const char *id)
{
    struct err e = {0};
    if (!a->json)
        (void)printf("%s\n", id);
    return answer_end(
        a->json, ST_OK, &e,
        a->json ? json_pack("{s:s, s:s}", "run_id", id, "run_status", "queued") : NULL);
}

int queued_run(const struct args *a)
{
    struct err e = {0};
    struct client *c = NULL;
    json_t *body = NULL;
    char id[33], short_text[9];
    enum status st = remote_open(a, &c, &e);
    if (st == ST_OK)
        st = body_of(a, c, &body, &e);
    if (st == ST_OK)
        st = submit(c, body, id, &e);
    json_decref(body);
    if (st != ST_OK || a->option[OPTION_DETACH].given) {
        client_close(c);
        return st == ST_OK ? detached(a, id) : answer_end(a->json, st, &e, NULL);
    }
    struct live live;
    struct follow f = {
        .args = a,
        .client = c,
        .run_id = id,
        .stop = stop_asked,
        .live = &live,
        .event = events_show,
        .waits = events_show_wait};
    catch_signals();
    live_begin(&live, a->json);
    if (!a->json)
        (void)fprintf(stderr, "run %s at %s\n", short_id(id, short_text), client_url(c));
    int rc = follow_to_end(a, &f, &e);
    client_close(f.client);
    return rc;
}
