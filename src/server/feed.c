/* feed.c - events as text, shared by streams.
 *
 * INVARIANT  An entry holds what core_events answered after the wake number `since`; it is used
 * only while the run's topic was not woken later than that.
 */
#include "server/feed.h"

#include "base/json.h"
#include "base/mem.h"
#include "server/core.h"
#include "server/http_int.h"
#include "server/server.h"

#include <stdio.h>
#include <string.h>

enum { ENTRIES = 64, EVENTS_AT_A_TIME = 500, ENTRY_BYTES_MAX = 1 << 20 };

struct entry {
    char run_id[33], status[16];
    int64_t from, to;
    uint64_t since, used; /* number of the wake; when it was used last */
    bool active;
    char *text;
    size_t n;
};

struct feed {
    struct server *server;
    pthread_mutex_t lock;
    uint64_t clock; /* of uses */
    struct entry entries[ENTRIES];
};

struct feed *feed_new(struct server *s)
{
    struct feed *f = mem_alloc(sizeof *f);
    f->server = s;
    pthread_mutex_init(&f->lock, NULL);
    return f;
}

void feed_free(struct feed *f)
{
    if (!f)
        return;
    for (int i = 0; i < ENTRIES; i++)
        mem_free(f->entries[i].text);
    pthread_mutex_destroy(&f->lock);
    mem_free(f);
}

static struct entry *find(struct feed *f, const char *run_id, int64_t from)
{
    for (int i = 0; i < ENTRIES; i++)
        if (f->entries[i].from == from && str_eq(f->entries[i].run_id, run_id))
            return &f->entries[i];
    return NULL;
}

/* The entry, if it still says what is true; under the lock. */
static bool
take(struct feed *f, const char *run_id, int64_t from, struct entry *out, struct str *text)
{
    struct entry *x = find(f, run_id, from);
    if (!x || waits_woken(&f->server->http->waits, http_topic("run", run_id), x->since))
        return false;
    x->used = ++f->clock;
    *out = *x;
    str_add_n(text, x->text, x->n);
    return true;
}

/* Keeps a copy in place of the one that was used least lately; under the lock. */
static void keep(struct feed *f, const struct entry *new, const char *text, size_t n)
{
    struct entry *x = find(f, new->run_id, new->from);
    if (!x)
        x = &f->entries[0];
    for (int i = 0; i < ENTRIES && !str_eq(x->run_id, new->run_id); i++)
        if (f->entries[i].used < x->used)
            x = &f->entries[i];
    mem_free(x->text);
    *x = *new;
    x->used = ++f->clock;
    x->text = mem_alloc(n + 1);
    memcpy(x->text, text, n);
    x->n = n;
}

/* Reads and writes what nobody has read yet. */
static enum status read_events(struct feed *f, struct entry *x, struct str *out, struct err *e)
{
    json_t *page, *event;
    size_t i;
    TRY(core_events(f->server->core, x->run_id, x->from, EVENTS_AT_A_TIME, &page, e));
    json_array_foreach(json_object_get(page, "events"), i, event)
    {
        char *line = json_text(event, false);
        http_sse(out, json_get_i64(event, "cursor", 0), json_get_str(event, "type", "event"), line);
        mem_free(line);
    }
    x->to = json_get_i64(page, "cursor", x->from);
    x->active = json_get_bool(page, "active", false);
    (void)snprintf(x->status, sizeof x->status, "%s", json_get_str(page, "status", ""));
    json_decref(page);
    return ST_OK;
}

enum status feed_next(
    struct feed *f, const char *run_id, int64_t *cursor, struct str *out, char status[16],
    bool *active, struct err *e)
{
    struct entry x = {.from = *cursor};
    size_t before = out->n;
    if (strlen(run_id) >= sizeof x.run_id)
        return err_set(e, ST_NOT_FOUND, "there is no run \"%s\"", run_id);
    pthread_mutex_lock(&f->lock);
    bool known = take(f, run_id, *cursor, &x, out);
    if (!known) { /* others who come meanwhile wait, and find it */
        (void)snprintf(x.run_id, sizeof x.run_id, "%s", run_id);
        x.since = waits_now(&f->server->http->waits);
        enum status st = read_events(f, &x, out, e);
        if (st != ST_OK) {
            pthread_mutex_unlock(&f->lock);
            return st;
        }
        if (out->n - before <= ENTRY_BYTES_MAX)
            keep(f, &x, out->data + before, out->n - before);
    }
    pthread_mutex_unlock(&f->lock);
    *cursor = x.to;
    *active = x.active;
    memcpy(status, x.status, sizeof x.status);
    return ST_OK;
}
