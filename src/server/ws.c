/* ws.c - the thread that serves every WebSocket, and the handshake (ws.h).
 *
 * A client is added by the door's thread (`taken`), and from then on touched by the WebSockets'
 * thread alone, but for its place in the table of topics and its flag `dirty`, which on_wake sets
 * under the lock. Whoever changes a run wakes its topic; the thread then reads on in the event log.
 */
#include "server/ws.h"

#include "base/env.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/aliases.h"
#include "server/auth.h"
#include "server/catalog.h"
#include "server/config.h"
#include "server/core.h"
#include "server/routes.h"
#include "server/ws_link.h"
#include "server/ws_talk.h"
#include "wire/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define SECOND_NS ((int64_t)1000000000)

enum { TOPIC_BUCKETS = 1024, PING_S = 20, SILENCE_S = 60, CLOSE_S = 5 };
enum { REFUSED_BYTES_MAX = 4096 }; /* what a client that is turned away may say meanwhile */

struct client {
    struct ws *ws;
    struct client *next;          /* of all clients, or of those that wait to be taken in */
    struct client *topic_next;    /* of its bucket */
    uint64_t topic;               /* 0: of none */
    bool dirty;                   /* under the lock */
    bool more;                    /* its run has more events than had room */
    bool writes;                  /* epoll watches for room to write */
    char token[SECRET_BYTES * 2]; /* looked at again with each message: a key may be revoked */
    struct actor who;
    int refused;
    int socket;
    void *handle; /* of the door */
    uint8_t *early;
    size_t early_n, early_at;
    int64_t heard_ns, pinged_ns, closed_ns;
    struct ws_link *link;
    struct ws_talk talk;
};

/* The page that was read last: several viewers of a run read the same. */
struct page {
    char run_id[33];
    int64_t cursor, limit;
    json_t *doc;
};

struct ws {
    struct server *server;
    int64_t message_max_bytes;
    int epoll, event;
    pthread_t thread;
    struct ws_runs runs;
    struct aliases aliases;
    struct page page;
    struct client *clients; /* of the thread */

    pthread_mutex_t lock; /* what follows */
    struct client *incoming;
    struct client *by_topic[TOPIC_BUCKETS];
    int n_clients; /* with those that shake hands */
    uint64_t sessions;
    bool stop;
};

static struct instant instant_now(void)
{
    return (struct instant){clock_ns(), clock_wall_us()};
}

/* ---- runs, as talks see them ---- */

static enum status runs_submit(
    void *ctx, const struct actor *who, const json_t *graph, const json_t *options, bool replace,
    json_t **reply, struct err *e)
{
    struct ws *w = ctx;
    json_t *whole = json_copy((json_t *)(uintptr_t)graph);
    struct core_submission s = {
        .graph = whole, .options = options, .variant = -1, .repetition = -1, .replace = replace};
    catalog_complete(w->server->config->home, whole);
    enum status st = core_submit(w->server->core, who, &s, instant_now(), reply, e);
    json_decref(whole);
    return st;
}

static enum status runs_cancel(void *ctx, const char *run_id, json_t **reply, struct err *e)
{
    struct ws *w = ctx;
    return core_cancel(w->server->core, run_id, instant_now(), reply, e);
}

static enum status runs_status(void *ctx, const char *run_id, char status[16], struct err *e)
{
    struct ws *w = ctx;
    return core_run_status(w->server->core, run_id, status, e);
}

static void page_forget(struct page *p)
{
    json_decref(p->doc);
    *p = (struct page){0};
}

static enum status runs_events(
    void *ctx, const char *run_id, int64_t cursor, int64_t limit, json_t **page, struct err *e)
{
    struct ws *w = ctx;
    struct page *p = &w->page;
    if (!p->doc || p->cursor != cursor || p->limit != limit || strcmp(p->run_id, run_id) != 0) {
        page_forget(p);
        TRY(core_events(w->server->core, run_id, cursor, limit, &p->doc, e));
        p->cursor = cursor;
        p->limit = limit;
        (void)snprintf(p->run_id, sizeof p->run_id, "%s", run_id);
    }
    *page = json_incref(p->doc);
    return ST_OK;
}

static enum status runs_clear_cache(void *ctx, const char *tab, struct err *e)
{
    struct ws *w = ctx;
    json_t *what = wire_write(&wire_eviction, &(struct eviction){.tab = tab, .what = "caches"});
    enum status st = core_evict(w->server->core, tab, what, instant_now(), e);
    json_decref(what);
    return st;
}

static void runs_alias(void *ctx, const char *theirs, const char *run_id)
{
    struct ws *w = ctx;
    aliases_add(&w->aliases, theirs, run_id);
}

const char *ws_run_id(struct ws *w, const char *name, char out[129])
{
    return aliases_find(&w->aliases, name, out);
}

/* ---- topics ---- */

static struct client **bucket(struct ws *w, uint64_t topic)
{
    return &w->by_topic[topic % TOPIC_BUCKETS];
}

static void poke(struct ws *w)
{
    uint64_t one = 1;
    /* A full counter is a pending wake too. */
    ssize_t n = write(w->event, &one, sizeof one);
    (void)n;
}

static void on_wake(void *ctx, uint64_t topic)
{
    struct ws *w = ctx;
    bool any = false;
    (void)pthread_mutex_lock(&w->lock);
    for (struct client *c = *bucket(w, topic); c; c = c->topic_next)
        if (c->topic == topic)
            any = c->dirty = true;
    (void)pthread_mutex_unlock(&w->lock);
    if (any)
        poke(w);
}

/* Puts the client where wakes of its run find it. */
static void listen_to(struct client *c, uint64_t topic)
{
    struct ws *w = c->ws;
    if (c->topic == topic)
        return;
    (void)pthread_mutex_lock(&w->lock);
    if (c->topic) {
        struct client **at = bucket(w, c->topic);
        while (*at != c)
            at = &(*at)->topic_next;
        *at = c->topic_next;
    }
    c->topic = topic;
    if (topic) {
        c->topic_next = *bucket(w, topic);
        *bucket(w, topic) = c;
    }
    (void)pthread_mutex_unlock(&w->lock);
}

/* ---- one client ---- */

static int64_t client_read(void *ctx, uint8_t *buf, size_t n)
{
    struct client *c = ctx;
    c->heard_ns = clock_ns();
    if (c->early_at < c->early_n) {
        size_t some = c->early_n - c->early_at < n ? c->early_n - c->early_at : n;
        memcpy(buf, c->early + c->early_at, some);
        c->early_at += some;
        return (int64_t)some;
    }
    ssize_t got;
    do
        got = recv(c->socket, buf, n, 0);
    while (got < 0 && errno == EINTR);
    if (got >= 0)
        return got;
    return errno == EAGAIN || errno == EWOULDBLOCK ? -1 : -2;
}

static int64_t client_write(void *ctx, const uint8_t *data, size_t n)
{
    struct client *c = ctx;
    ssize_t put;
    do
        put = send(c->socket, data, n, MSG_NOSIGNAL);
    while (put < 0 && errno == EINTR);
    if (put >= 0)
        return put;
    return errno == EAGAIN || errno == EWOULDBLOCK ? -1 : -2;
}

static void client_send(void *ctx, json_t *frame)
{
    struct client *c = ctx;
    char *text = json_text(frame, false);
    ws_link_send(c->link, text, strlen(text));
    mem_free(text);
    json_decref(frame);
}

static void client_pump(struct client *c)
{
    char run[33];
    do {
        (void)snprintf(run, sizeof run, "%s", c->talk.run_id);
        listen_to(c, *run ? http_topic("run", run) : 0);
        c->more = ws_talk_pump(&c->talk, ws_link_room(c->link, WS_FRAMES_MAX));
    } while (strcmp(run, c->talk.run_id) != 0 && *c->talk.run_id);
    if (!*c->talk.run_id)
        listen_to(c, 0);
}

/* Whether who connected still may. */
static bool client_may(struct client *c)
{
    if (c->refused == 0)
        auth_who(c->ws->server->auth, c->token, clock_wall_us(), &c->who);
    return c->who.role == ROLE_PAGE || c->who.role == ROLE_OWNER || c->who.role == ROLE_KEY;
}

static void client_message(void *ctx, const char *text, size_t n)
{
    struct client *c = ctx;
    if (!client_may(c)) {
        ws_link_close(c->link, WS_CLOSE_TOKEN, "the token is not valid any more");
        return;
    }
    c->talk.who = c->who;
    page_forget(&c->ws->page);
    ws_talk_message(&c->talk, text, n);
    client_pump(c);
}

static void client_free(struct client *c)
{
    secret_wipe(c->token, sizeof c->token);
    ws_link_free(c->link);
    mem_free(c->early);
    (void)pthread_mutex_lock(&c->ws->lock);
    c->ws->n_clients--;
    (void)pthread_mutex_unlock(&c->ws->lock);
    mem_free(c);
}

static void client_watch(struct client *c)
{
    bool writes = ws_link_wants_write(c->link);
    struct epoll_event ev = {.events = EPOLLIN | (writes ? EPOLLOUT : 0), .data.ptr = c};
    if (writes == c->writes)
        return;
    c->writes = writes;
    (void)epoll_ctl(c->ws->epoll, EPOLL_CTL_MOD, c->socket, &ev);
}

static bool is_stopping(struct ws *w)
{
    (void)pthread_mutex_lock(&w->lock);
    bool stop = w->stop;
    (void)pthread_mutex_unlock(&w->lock);
    return stop;
}

static void client_end(struct client *c)
{
    struct client **at = &c->ws->clients;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    listen_to(c, 0);
    if (!is_stopping(c->ws))
        ws_talk_end(&c->talk);
    (void)epoll_ctl(c->ws->epoll, EPOLL_CTL_DEL, c->socket, NULL);
    http_upgrade_close(c->handle);
    client_free(c);
}

/* Sends, reads on where there is room again, and ends a client whose connection is over. Fills at
 * most a few buffers at a time, so that one quick reader does not keep the others waiting. */
static void client_flush(struct client *c)
{
    bool alive = ws_link_write(c->link);
    for (int i = 0; alive && c->more && i < 4 && !ws_link_wants_write(c->link); i++) {
        client_pump(c);
        alive = ws_link_write(c->link);
    }
    if (ws_link_is_closing(c->link) && c->closed_ns == 0)
        c->closed_ns = clock_ns();
    if (alive)
        client_watch(c);
    else
        client_end(c);
}

static void client_ready(struct client *c, unsigned events)
{
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR) && !ws_link_read(c->link))
        client_end(c);
    else
        client_flush(c);
}

/* Pings, and ends those that have been silent or do not close. */
static void client_time(struct client *c, int64_t now_ns)
{
    bool silent = now_ns - c->heard_ns > SILENCE_S * SECOND_NS;
    bool stuck = c->closed_ns && now_ns - c->closed_ns > CLOSE_S * SECOND_NS;
    if (silent || stuck) {
        client_end(c);
        return;
    }
    if (now_ns - c->pinged_ns > PING_S * SECOND_NS) {
        c->pinged_ns = now_ns;
        ws_link_ping(c->link);
    }
    client_flush(c);
}

/* ---- the thread ---- */

static void client_begin(struct client *c)
{
    struct ws *w = c->ws;
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};
    struct ws_link_owner owner = {c, client_read, client_write, client_message};
    char session[33];
    c->next = w->clients;
    w->clients = c;
    c->heard_ns = c->pinged_ns = clock_ns();
    bool has_role = client_may(c);
    c->link =
        ws_link_new(&owner, c->refused || !has_role ? REFUSED_BYTES_MAX : w->message_max_bytes);
    (void)snprintf(session, sizeof session, "ws-%llu", (unsigned long long)++w->sessions);
    ws_talk_init(&c->talk, &w->runs, &c->who, session, client_send, c);
    int flags = fcntl(c->socket, F_GETFL);
    (void)fcntl(c->socket, F_SETFL, flags | O_NONBLOCK);
    bool watched = epoll_ctl(w->epoll, EPOLL_CTL_ADD, c->socket, &ev) == 0;
    if (c->refused == 421)
        ws_link_close(c->link, WS_CLOSE_HOST, "host not allowed");
    else if (c->refused == 403 && has_role)
        ws_link_close(c->link, WS_CLOSE_HOST, "origin not allowed");
    else if (c->refused || !has_role)
        ws_link_close(c->link, WS_CLOSE_TOKEN, "missing or invalid token");
    if (!watched || !ws_link_read(c->link))
        client_end(c);
    else
        client_flush(c);
}

static void take_in(struct ws *w)
{
    (void)pthread_mutex_lock(&w->lock);
    struct client *c = w->incoming;
    w->incoming = NULL;
    (void)pthread_mutex_unlock(&w->lock);
    while (c) {
        struct client *next = c->next;
        client_begin(c);
        c = next;
    }
}

static bool take_dirty(struct client *c)
{
    (void)pthread_mutex_lock(&c->ws->lock);
    bool dirty = c->dirty;
    c->dirty = false;
    (void)pthread_mutex_unlock(&c->ws->lock);
    return dirty;
}

static void serve_woken(struct ws *w)
{
    for (struct client *c = w->clients, *next; c; c = next) {
        next = c->next;
        if (take_dirty(c)) {
            client_pump(c);
            client_flush(c);
        }
    }
}

static void say_goodbye(struct ws *w)
{
    for (struct client *c = w->clients, *next; c; c = next) {
        next = c->next;
        ws_link_close(c->link, WS_CLOSE_GOING_AWAY, "the server stops");
        (void)ws_link_write(c->link);
        client_end(c);
    }
}

static void *serve(void *ctx)
{
    struct ws *w = ctx;
    struct epoll_event events[64];
    int64_t timed_ns = clock_ns();
    while (!is_stopping(w)) {
        int n = epoll_wait(w->epoll, events, 64, 1000);
        page_forget(&w->page);
        bool poked = false;
        for (int i = 0; i < n; i++) {
            uint64_t count;
            if (events[i].data.ptr)
                client_ready(events[i].data.ptr, events[i].events);
            else
                poked = read(w->event, &count, sizeof count) > 0;
        }
        if (poked) {
            take_in(w);
            serve_woken(w);
        }
        int64_t now = clock_ns();
        if (now - timed_ns > SECOND_NS) {
            timed_ns = now;
            for (struct client *c = w->clients, *next; c; c = next) {
                next = c->next;
                client_time(c, now);
            }
        }
    }
    take_in(w);
    say_goodbye(w);
    page_forget(&w->page);
    return NULL;
}

enum status ws_open(struct server *s, int64_t message_max_bytes, struct ws **out, struct err *e)
{
    struct ws *w = mem_alloc(sizeof *w);
    w->server = s;
    w->message_max_bytes = message_max_bytes;
    aliases_init(&w->aliases);
    w->runs = (struct ws_runs){w,           runs_submit,      runs_cancel, runs_status,
                               runs_events, runs_clear_cache, runs_alias};
    w->epoll = epoll_create1(EPOLL_CLOEXEC);
    w->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event ev = {.events = EPOLLIN};
    bool made =
        w->epoll >= 0 && w->event >= 0 && epoll_ctl(w->epoll, EPOLL_CTL_ADD, w->event, &ev) == 0;
    (void)pthread_mutex_init(&w->lock, NULL);
    if (!made || pthread_create(&w->thread, NULL, serve, w) != 0) {
        enum status st = err_errno(e, "could not start the thread of the WebSockets");
        if (w->epoll >= 0)
            (void)close(w->epoll);
        if (w->event >= 0)
            (void)close(w->event);
        (void)pthread_mutex_destroy(&w->lock);
        aliases_release(&w->aliases);
        mem_free(w);
        return st;
    }
    http_on_wake(s->http, on_wake, w);
    *out = w;
    return ST_OK;
}

void ws_close(struct ws *w)
{
    if (!w)
        return;
    http_on_wake(w->server->http, NULL, NULL);
    (void)pthread_mutex_lock(&w->lock);
    w->stop = true;
    (void)pthread_mutex_unlock(&w->lock);
    poke(w);
    (void)pthread_join(w->thread, NULL);
    (void)close(w->epoll);
    (void)close(w->event);
    (void)pthread_mutex_destroy(&w->lock);
    aliases_release(&w->aliases);
    mem_free(w);
}

/* ---- the handshake ---- */

/* On the door's thread. */
static void taken(void *ctx, int socket, const char *early, size_t n_early, void *handle)
{
    struct client *c = ctx;
    struct ws *w = c->ws;
    c->socket = socket;
    c->handle = handle;
    if (n_early) {
        c->early = mem_alloc(n_early);
        memcpy(c->early, early, n_early);
        c->early_n = n_early;
    }
    (void)pthread_mutex_lock(&w->lock);
    c->next = w->incoming;
    w->incoming = c;
    (void)pthread_mutex_unlock(&w->lock);
    poke(w);
}

static void dropped(void *ctx)
{
    client_free(ctx);
}

/* Whether a comma list of tokens ("keep-alive, Upgrade") has this one, in any case. */
static bool header_has(const char *value, const char *token)
{
    size_t n = strlen(token);
    for (const char *at = value; at && *at;) {
        at += strspn(at, " \t,");
        size_t len = strcspn(at, ",");
        size_t trimmed = len;
        while (trimmed && (at[trimmed - 1] == ' ' || at[trimmed - 1] == '\t'))
            trimmed--;
        if (trimmed == n && strncasecmp(at, token, n) == 0)
            return true;
        at += len;
    }
    return false;
}

static struct client *client_reserve(struct ws *w, const struct http_request *q)
{
    (void)pthread_mutex_lock(&w->lock);
    bool full = w->n_clients >= WS_CLIENTS_MAX || w->stop;
    w->n_clients += !full;
    (void)pthread_mutex_unlock(&w->lock);
    if (full)
        return NULL;
    struct client *c = mem_alloc(sizeof *c);
    c->ws = w;
    c->who = q->actor;
    c->refused = q->refused;
    const char *bearer = http_header(q, "Authorization");
    const char *token = http_header(q, "X-CodefyUI-Token");
    token = token ? token : http_header(q, "X-Snug-Token");
    token = token ? token : http_query(q, "token");
    if (bearer && strncasecmp(bearer, "Bearer ", 7) == 0)
        str_copy_trimmed(c->token, sizeof c->token, bearer + 7, strlen(bearer + 7));
    else
        (void)snprintf(c->token, sizeof c->token, "%s", token ? token : "");
    return c;
}

void route_ws_execution(struct server *s, const struct http_request *q, struct http_reply *r)
{
    char accept[32];
    if (!header_has(http_header(q, "Upgrade"), "websocket") ||
        !header_has(http_header(q, "Connection"), "upgrade")) {
        (void)http_add_header(r, "Upgrade", "websocket");
        http_error(r, 426, "/ws/execution is a WebSocket: connect with ws:// or wss://");
        return;
    }
    if (!header_has(http_header(q, "Sec-WebSocket-Version"), "13")) {
        (void)http_add_header(r, "Sec-WebSocket-Version", "13");
        http_error(r, 426, "this server speaks version 13 of the WebSocket protocol");
        return;
    }
    if (!ws_accept_key(http_header(q, "Sec-WebSocket-Key"), accept)) {
        http_error(r, 400, "Sec-WebSocket-Key is not 16 bytes in base64");
        return;
    }
    struct client *c = client_reserve(s->ws, q);
    if (!c) {
        http_error(r, 503, "%d WebSockets are open already", WS_CLIENTS_MAX);
        return;
    }
    (void)http_add_header(r, "Sec-WebSocket-Accept", accept);
    r->status = 101;
    r->upgrade = (struct http_upgrade){taken, dropped, c, "websocket"};
}
