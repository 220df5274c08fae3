/* http_bare.c - the door without sockets: one request at a time, in the caller's thread. */
#include "server/http_int.h"

#include "base/env.h"

#include <string.h>
#include <strings.h>
#include <time.h>

struct bare_head {
    const struct http_ask *ask;
    char length[24];
};

static const char *bare_get(void *ctx, const char *name)
{
    const struct bare_head *b = ctx;
    const char *const *h = b->ask->headers;
    for (; h && *h; h += 2)
        if (strcasecmp(h[0], name) == 0)
            return h[1];
    if (strcasecmp(name, "Host") == 0)
        return "localhost";
    if (strcasecmp(name, "X-Snug-Token") == 0)
        return b->ask->token;
    return strcasecmp(name, "Content-Length") == 0 && b->length[0] ? b->length : NULL;
}

static size_t bare_count(void *ctx, const char *name)
{
    const struct bare_head *b = ctx;
    size_t n = 0;
    for (const char *const *h = b->ask->headers; h && *h; h += 2)
        n += strcasecmp(h[0], name) == 0;
    return n ? n : bare_get(ctx, name) != NULL;
}

static bool bare_plain(void *ctx)
{
    (void)ctx;
    return true;
}

static void no_tick(void *ctx)
{
    (void)ctx;
}

struct http *http_bare(struct server *s, const struct http_config *c)
{
    struct http *h = mem_alloc(sizeof *h);
    http_init(h, s, c);
    waits_init(&h->waits, no_tick, NULL, false);
    return h;
}

/* Calls the route until it answers or the time is up. */
static void bare_wait(struct exchange *x, int wait_max_ms)
{
    int64_t until_ns = clock_ns() + (int64_t)wait_max_ms * 1000000;
    for (;;) {
        int64_t now_ns = clock_ns();
        x->waiter.woken = waits_woken(&x->h->waits, x->r.topic, x->since);
        x->waiter.expired = now_ns >= x->r.wait_until_ns;
        if (x->waiter.woken || x->waiter.expired)
            exchange_end(x);
        if (x->replied || now_ns >= until_ns)
            return;
        (void)nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
    }
}

void http_ask(struct http *h, const struct http_ask *ask, struct http_reply *r)
{
    struct exchange x;
    struct bare_head head = {.ask = ask};
    if (ask->body_bytes)
        (void)snprintf(head.length, sizeof head.length, "%zu", ask->body_bytes);
    exchange_init(&x, h, ask->method, ask->target);
    x.head = (struct head){bare_get, bare_count, bare_plain, &head};
    exchange_begin(&x);
    for (size_t at = 0; at < ask->body_bytes && !x.replied;) {
        size_t n = ask->body_bytes - at < 16384 ? ask->body_bytes - at : 16384;
        exchange_body(&x, ask->body + at, n);
        at += n;
    }
    exchange_end(&x);
    if (!x.replied)
        bare_wait(&x, ask->wait_max_ms);
    *r = x.r;
    x.r = (struct http_reply){0};
    if (!x.replied)
        r->status = 0;
    else if (r->upgrade.taken)
        r->status = 101;
    exchange_release(&x);
}
