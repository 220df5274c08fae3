/* route_events.c - GET /api/events: what changed on the server, for lists that stay up to date.
 *
 * Each event says which list is to be read again ("runs", "workers", "graphs", "sweeps",
 * "studies"), not what is in it. Several changes that a client has not read yet become one; so a
 * client that falls behind loses nothing, and one that does not read costs its place alone. What
 * happens within a run has a stream of its own (/api/runs/{id}/events).
 */
#include "server/http_int.h"
#include "server/routes.h"
#include "server/server.h"

#include "base/mem.h"

#include <string.h>

static const char *const lists[] = {"runs", "workers", "graphs", "sweeps", "studies"};
enum { LISTS = sizeof lists / sizeof *lists };

void server_changed(struct server *s, const char *list)
{
    if (!s->http)
        return;
    http_wake(s->http, http_topic(list, ""));
    http_wake(s->http, http_topic("any", ""));
}

struct changes {
    struct http *h;
    uint64_t seen; /* number of the last wake that was looked at */
    bool greeted;
    const char *boot_id;
};

static enum http_pull changes_pull(void *ctx, struct str *out)
{
    struct changes *c = ctx;
    uint64_t now = waits_now(&c->h->waits);
    char line[128];
    if (!c->greeted) {
        c->greeted = true;
        c->seen = now;
        (void)snprintf(line, sizeof line, "{\"boot_id\": \"%s\"}", c->boot_id);
        http_sse(out, (int64_t)now, "hello", line);
        return HTTP_PULL_MORE;
    }
    for (size_t i = 0; i < LISTS; i++)
        if (waits_woken(&c->h->waits, http_topic(lists[i], ""), c->seen)) {
            (void)snprintf(line, sizeof line, "{\"list\": \"%s\"}", lists[i]);
            http_sse(out, (int64_t)now, "changed", line);
        }
    c->seen = now;
    return out->n ? HTTP_PULL_MORE : HTTP_PULL_WAIT;
}

void route_events(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct changes *c = mem_alloc(sizeof *c);
    (void)q;
    c->h = s->http;
    c->boot_id = s->boot_id;
    r->status = 200;
    r->type = "text/event-stream";
    r->stream = (struct http_stream){
        .pull = changes_pull, .release = mem_free, .ctx = c, .topic = http_topic("any", "")};
}
