/* ws_test_support.c - see ws_test_support.h. */
#include "server/ws_test_support.h"

#include <stdio.h>
#include <string.h>

static struct fake_run *find(struct fake *f, const char *id)
{
    for (int i = 0; i < f->n_runs; i++)
        if (strcmp(f->run[i].id, id) == 0)
            return &f->run[i];
    return NULL;
}

static enum status submit(
    void *ctx, const struct actor *who, const json_t *graph, const json_t *options, bool replace,
    json_t **reply, struct err *e)
{
    struct fake *f = ctx;
    (void)who;
    if (f->refuse)
        return err_set(e, ST_BUSY, "%s", f->refuse);
    if (f->n_runs == FAKE_RUNS)
        return err_set(e, ST_FULL, "the fake is full");
    struct fake_run *r = &f->run[f->n_runs];
    (void)snprintf(r->id, sizeof r->id, "%032d", f->n_runs + 1);
    f->n_runs++;
    r->events = json_array();
    r->graph = json_deep_copy(graph);
    r->options = json_deep_copy(options);
    r->replace = replace;
    *reply = json_object();
    json_put_str(*reply, "run_id", r->id);
    json_put_str(*reply, "status", "queued");
    return ST_OK;
}

static enum status cancel(void *ctx, const char *id, json_t **reply, struct err *e)
{
    struct fake_run *r = find(ctx, id);
    if (!r)
        return err_set(e, ST_NOT_FOUND, "there is no run \"%s\"", id);
    *reply = json_object();
    json_put_str(*reply, "run_id", id);
    json_put_str(*reply, "status", "cancelled");
    json_put_bool(*reply, "cancelled", !r->ended);
    r->cancelled = true;
    return ST_OK;
}

static enum status status(void *ctx, const char *id, char out[16], struct err *e)
{
    struct fake_run *r = find(ctx, id);
    if (!r)
        return err_set(e, ST_NOT_FOUND, "there is no run \"%s\"", id);
    (void)snprintf(out, 16, "%s", r->ended ? "succeeded" : "running");
    return ST_OK;
}

static enum status
events(void *ctx, const char *id, int64_t cursor, int64_t limit, json_t **page, struct err *e)
{
    struct fake_run *r = find(ctx, id);
    if (!r)
        return err_set(e, ST_NOT_FOUND, "there is no run \"%s\"", id);
    json_t *list = json_array(), *event;
    size_t i;
    json_array_foreach(r->events, i, event) if (
        json_get_i64(event, "cursor", 0) > cursor && (int64_t)json_array_size(list) < limit)(void)
        json_array_append(list, event);
    *page = json_object();
    json_put_bool(*page, "active", !r->ended);
    json_put(*page, "events", list);
    return ST_OK;
}

static enum status clear_cache(void *ctx, const char *tab, struct err *e)
{
    struct fake *f = ctx;
    (void)e;
    (void)snprintf(f->cleared, sizeof f->cleared, "%s", tab);
    return ST_OK;
}

static void alias(void *ctx, const char *theirs, const char *run_id)
{
    struct fake *f = ctx;
    (void)snprintf(f->alias, sizeof f->alias, "%s", theirs);
    (void)snprintf(f->alias_run, sizeof f->alias_run, "%s", run_id);
}

void fake_init(struct fake *f)
{
    *f = (struct fake){.frames = json_array()};
    f->runs = (struct ws_runs){f, submit, cancel, status, events, clear_cache, alias};
}

void fake_release(struct fake *f)
{
    for (int i = 0; i < f->n_runs; i++) {
        json_decref(f->run[i].events);
        json_decref(f->run[i].graph);
        json_decref(f->run[i].options);
    }
    json_decref(f->frames);
}

void fake_event(struct fake *f, int run, const char *type, json_t *payload)
{
    struct fake_run *r = &f->run[run];
    json_t *event = json_object();
    json_put_i64(event, "cursor", (int64_t)json_array_size(r->events) + 1);
    json_put_str(event, "type", type);
    json_put(event, "payload", payload);
    (void)json_array_append_new(r->events, event);
    r->ended = str_eq(type, "execution_complete") || str_eq(type, "execution_error") ||
               str_eq(type, "execution_stopped");
}

void fake_send(void *ctx, json_t *frame)
{
    struct fake *f = ctx;
    if (json_array_size(f->frames) < FAKE_FRAMES)
        (void)json_array_append_new(f->frames, frame);
    else
        json_decref(frame);
}
