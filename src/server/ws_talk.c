/* ws_talk.c - see ws_talk.h. */
#include "server/ws_talk.h"

#include "server/ws.h"
#include "wire/wire.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void ws_talk_init(
    struct ws_talk *t, const struct ws_runs *runs, const struct actor *who, const char *session,
    void (*send)(void *ctx, json_t *frame), void *ctx)
{
    *t = (struct ws_talk){.runs = runs, .who = *who, .send = send, .ctx = ctx};
    (void)snprintf(t->tab, sizeof t->tab, "%s", session);
}

/* ---- frames of the connection itself ---- */

static json_t *frame(const char *type)
{
    json_t *f = json_object();
    json_put_str(f, "type", type);
    return f;
}

static PRINTF(3, 4) void say_error(struct ws_talk *t, const char *type, const char *fmt, ...)
{
    struct str text;
    char line[1024];
    va_list a;
    va_start(a, fmt);
    (void)vsnprintf(line, sizeof line, fmt, a);
    va_end(a);
    str_init(&text);
    str_add(&text, line);
    json_t *f = frame(type);
    json_put_str(f, "error", text.data);
    str_release(&text);
    t->send(t->ctx, f);
}

static void say_run(struct ws_talk *t, const char *type, const char *run_id)
{
    json_t *f = frame(type);
    json_put_str(f, "run_id", run_id);
    t->send(t->ctx, f);
}

static void say_attached(struct ws_talk *t, const char *status)
{
    json_t *f = frame("attached");
    json_put_str(f, "run_id", t->run_id);
    json_put_i64(f, "cursor", t->cursor);
    json_put_str(f, "status", status);
    t->send(t->ctx, f);
}

/* ---- following a run ---- */

static void follow(struct ws_talk *t, const char *run_id, int64_t cursor)
{
    (void)snprintf(t->run_id, sizeof t->run_id, "%s", run_id);
    t->cursor = cursor;
    t->their_id[0] = 0;
}

static void leave(struct ws_talk *t)
{
    t->run_id[0] = 0;
    t->their_id[0] = 0;
}

static bool is_last(const char *type)
{
    return str_eq(type, "execution_complete") || str_eq(type, "execution_error") ||
           str_eq(type, "execution_stopped");
}

/* A 1.4.2 client that is a whole page behind sees the newest progress, not all of it. */
static bool is_passed_over(const struct ws_talk *t, const json_t *event, bool behind)
{
    const json_t *payload = json_object_get(event, "payload");
    return behind && t->form == WS_FORM_142 &&
           str_eq(json_get_str(event, "type", ""), "node_status") &&
           str_eq(json_get_str(payload, "status", ""), "progress");
}

/* Sends one event; true when it was the run's last. */
static bool send_event(struct ws_talk *t, const json_t *event, bool behind)
{
    t->cursor = json_get_i64(event, "cursor", t->cursor);
    json_t *f = NULL;
    if (t->form == WS_FORM_VIEW)
        f = ws_frame_view(event, t->run_id);
    else if (!is_passed_over(t, event, behind))
        f = ws_frame_142(event, *t->their_id ? t->their_id : t->run_id);
    if (f)
        t->send(t->ctx, f);
    return is_last(json_get_str(event, "type", ""));
}

bool ws_talk_pump(struct ws_talk *t, size_t room)
{
    json_t *page = NULL, *event;
    struct err e;
    size_t i;
    if (!*t->run_id || room == 0)
        return *t->run_id != 0;
    if (t->runs->events(t->runs->ctx, t->run_id, t->cursor, (int64_t)room, &page, &e) != ST_OK) {
        /* It may come back: the next wake tries again. */
        if (e.status == ST_NOT_FOUND) {
            say_error(t, "error", "%s", e.text);
            leave(t);
        }
        return false;
    }
    const json_t *events = json_object_get(page, "events");
    bool behind = json_array_size(events) >= room, last = false;
    json_array_foreach(events, i, event) last = send_event(t, event, behind) || last;
    bool over = json_array_size(events) == 0 && !json_get_bool(page, "active", true);
    json_decref(page);
    if (last || over)
        leave(t);
    return behind && *t->run_id;
}

/* ---- actions ---- */

/* Takes the message's value along where it is there and not null. */
static void take_along(const json_t *message, const char *from, json_t *to, const char *key)
{
    json_t *value = json_object_get(message, from);
    if (value && !json_is_null(value))
        json_object_set(to, key, value);
}

static json_t *options_of(const struct ws_talk *t, const json_t *message)
{
    static const char *const same[] = {"error_mode",    "max_retries",   "record_outputs",
                                       "backward_mode", "auto_backward", "seed",
                                       "deterministic", "device",        "changed_nodes"};
    json_t *o = json_object();
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        take_along(message, same[i], o, same[i]);
    take_along(message, "verbose", o, "verbose");
    take_along(message, "verbose_mode", o, "verbose");
    /* The graph's own device goes before that of the editor's Settings. */
    take_along(json_object_get(message, "settings"), "device", o, "device");
    json_put_str(o, "lane", "interactive");
    json_put_str(o, "graph_id", t->tab);
    json_put_bool(o, "weights_persistent", json_get_bool(message, "weights_persistent", true));
    return o;
}

static json_t *graph_of(const json_t *message)
{
    static const char *const parts[] = {"name",    "nodes",     "edges",
                                        "presets", "subgraphs", "settings"};
    json_t *graph = json_object();
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        take_along(message, parts[i], graph, parts[i]);
    return graph;
}

/* The editor of 1.4.2 names its runs; the newer one lets the server do it, and says more. */
static bool is_newer(const json_t *message)
{
    return !json_object_get(message, "run_id") || json_object_get(message, "subgraphs") ||
           json_object_get(message, "settings") || json_object_get(message, "seed") ||
           json_object_get(message, "deterministic");
}

/* The run before: cancelled by a second execute in the old form, left alone in the new one. */
static void part(struct ws_talk *t)
{
    if (!*t->run_id)
        return;
    if (t->form == WS_FORM_VIEW) {
        say_run(t, "detached", t->run_id);
    } else {
        json_t *reply = NULL;
        struct err e;
        if (t->runs->cancel(t->runs->ctx, t->run_id, &reply, &e) == ST_OK)
            t->send(t->ctx, frame("execution_stopped"));
        json_decref(reply);
    }
    leave(t);
}

static void say_rejected(struct ws_talk *t, const struct err *e)
{
    json_t *f = frame("execution_error");
    json_put_str(f, "error", e->text);
    if (t->form == WS_FORM_VIEW)
        json_put_bool(f, "rejected", true);
    t->send(t->ctx, f);
}

static void act_execute(struct ws_talk *t, const json_t *message)
{
    const char *tab = json_get_str(message, "graph_id", "");
    const char *theirs = json_get_str(message, "run_id", "");
    bool old = t->form == WS_FORM_142;
    json_t *reply = NULL;
    struct err e;
    part(t);
    if (*tab)
        (void)snprintf(t->tab, sizeof t->tab, "%s", tab);
    json_t *graph = graph_of(message), *options = options_of(t, message);
    enum status st = t->runs->submit(t->runs->ctx, &t->who, graph, options, old, &reply, &e);
    json_decref(graph);
    json_decref(options);
    if (st != ST_OK) {
        say_rejected(t, &e);
        return;
    }
    follow(t, json_get_str(reply, "run_id", ""), 0);
    if (!old) {
        say_attached(t, json_get_str(reply, "status", "queued"));
    } else if (*theirs && strlen(theirs) < sizeof t->their_id) {
        (void)snprintf(t->their_id, sizeof t->their_id, "%s", theirs);
        t->runs->alias(t->runs->ctx, theirs, t->run_id);
    }
    json_decref(reply);
}

static void act_attach(struct ws_talk *t, const json_t *message)
{
    const char *run_id = json_get_str(message, "run_id", "");
    int64_t cursor = json_get_i64(message, "cursor", 0);
    char status[16];
    struct err e;
    if (!run_id_is_valid(run_id)) {
        say_error(t, "error", "attach needs run_id, 32 hex digits");
    } else if (cursor < 0) {
        say_error(t, "error", "cursor is a whole number, 0 or more");
    } else if (t->runs->status(t->runs->ctx, run_id, status, &e) != ST_OK) {
        say_error(t, "error", "%s", e.text);
    } else {
        if (*t->run_id && !str_eq(t->run_id, run_id))
            say_run(t, "detached", t->run_id);
        follow(t, run_id, cursor);
        say_attached(t, status);
    }
}

static void act_detach(struct ws_talk *t, const json_t *message)
{
    (void)message;
    if (*t->run_id)
        say_run(t, "detached", t->run_id);
    else
        say_error(t, "error", "no run is attached");
    leave(t);
}

static void act_stop(struct ws_talk *t, const json_t *message)
{
    const char *run_id = json_get_str(message, "run_id", t->run_id);
    json_t *reply = NULL, *f;
    struct err e;
    if (t->form == WS_FORM_142)
        run_id = t->run_id; /* it calls its run by another name, and has but one */
    if (!*run_id) {
        f = frame("execution_stopped");
        if (t->form == WS_FORM_VIEW)
            json_put_str(f, "reason", "not_running");
        t->send(t->ctx, f);
    } else if (t->runs->cancel(t->runs->ctx, run_id, &reply, &e) != ST_OK) {
        say_error(t, "error", "%s", e.text);
    } else if (t->form == WS_FORM_VIEW) {
        f = frame("cancel_ack");
        (void)json_object_update(f, reply);
        t->send(t->ctx, f);
    }
    json_decref(reply);
}

static void act_clear_cache(struct ws_talk *t, const json_t *message)
{
    const char *tab = json_get_str(message, "graph_id", t->tab);
    struct err e;
    /* No child, no cache: that is what was asked for. */
    if (t->runs->clear_cache(t->runs->ctx, tab, &e) != ST_OK && e.status != ST_NOT_FOUND)
        say_error(t, "error", "%s", e.text);
    else
        t->send(t->ctx, frame("cache_cleared"));
}

/* Actions by name; `newer`: the newer editor alone says it. */
static const struct action {
    const char *name;
    bool newer;
    void (*act)(struct ws_talk *t, const json_t *message);
} actions[] = {
    {"execute", false, act_execute}, {"stop", false, act_stop},
    {"cancel", true, act_stop},      {"attach", true, act_attach},
    {"detach", true, act_detach},    {"clear_cache", false, act_clear_cache},
};

void ws_talk_message(struct ws_talk *t, const char *text, size_t n)
{
    json_t *message = NULL;
    struct err e;
    if (json_parse(text, n, "the message", &message, &e) != ST_OK) {
        say_error(t, "error", "%s", e.text);
        return;
    }
    const char *name = json_get_str(message, "action", NULL);
    const struct action *a = NULL;
    for (size_t i = 0; name && i < sizeof actions / sizeof *actions; i++)
        if (str_eq(actions[i].name, name))
            a = &actions[i];
    if (!a) {
        say_error(
            t, "error", "%s: execute, attach, detach, stop, cancel or clear_cache",
            name ? "unknown action" : "a message is an object with an action");
    } else {
        if (a->newer || (a->act == act_execute && is_newer(message)))
            t->form = WS_FORM_VIEW;
        a->act(t, message);
    }
    json_decref(message);
}

void ws_talk_end(struct ws_talk *t)
{
    json_t *reply = NULL;
    struct err e;
    if (t->form == WS_FORM_142 && *t->run_id)
        (void)t->runs->cancel(t->runs->ctx, t->run_id, &reply, &e);
    json_decref(reply);
}
