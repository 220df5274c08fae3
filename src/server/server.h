/* server.h - what routes can reach, and the server as a whole.
 *
 *     struct server *s;
 *     TRY(server_open(&config, &s, e));     lock, store, core, door; writes server.json,
 * session.token server_run(s, &stop);                 until *stop is set: timers, the built-in
 * worker server_close(s);
 *
 * `snug start` does that. Only one server lives under a SNUG_HOME (server.lock).
 */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include "server/config.h"
#include "server/http.h"

#include <signal.h>

struct core;    /* core.h: runs, queue, workers, ledger; the truth behind it is the store */
struct store;   /* store.h: SQLite */
struct auth;    /* auth.h: tokens and keys */
struct ws;      /* ws.h: WebSockets */
struct asker;   /* asker.h: plans and estimates in short-lived children */
struct webhook; /* webhook.h: notice of ended runs */
struct studies; /* study.h: studies, which go on by themselves */
struct feed;    /* feed.h: events as text, shared by streams */
struct server_inside;

struct server {
    struct core *core;
    struct store *store;
    struct auth *auth;
    struct http *http;
    struct ws *ws;
    struct asker *asker;
    struct webhook *webhook;
    struct studies *studies;
    struct feed *feed;
    const struct server_config *config; /* server/config.h: settings, defaults, environment */
    char boot_id[33];                   /* new per process */
    int64_t started_us;                 /* wall clock */
    struct server_inside *inside;
};

/* The config must outlive the server. ST_CONFLICT: another server runs under this SNUG_HOME (the
 * text has its address); ST_IO: the port is taken, the disk is full, ... */
enum status
server_open(const struct server_config *c, struct server **out, struct err *e) NODISCARD;
/* The same without network, lock, timer, children and webhook, its database in memory: for tests
 * and fuzzing, with http_ask. */
enum status
server_open_bare(const struct server_config *c, struct server **out, struct err *e) NODISCARD;
/* Returns once *stop is not 0 (a signal handler's; looked at each 200 ms). ST_OK then. */
enum status
server_run(struct server *s, const volatile sig_atomic_t *stop, struct err *e) NODISCARD;
/* Waiting runs end interrupted, running ones are asked to stop and get a few seconds; then the
 * built-in worker ends, who waits is answered, server.json and session.token go. */
void server_close(struct server *s);
/* A list that pages show has changed: "runs", "workers", "graphs", "sweeps", "studies". Wakes the
 * topic (list, "") and /api/events; from any thread. */
void server_changed(struct server *s, const char *list);
/* "http://127.0.0.1:8000" */
const char *server_url(const struct server *s);

#endif
