/* server.h - what routes can reach. Made by server_open, which `snug start` calls. */
#ifndef SERVER_SERVER_H
#define SERVER_SERVER_H

#include "server/http.h"

struct core;  /* core.h: runs, queue, workers, ledger; the truth behind it is the store */
struct store; /* store.h: SQLite */
struct auth;  /* auth.h: tokens and keys */
struct ws;    /* ws.h: WebSockets */

struct server {
    struct core *core;
    struct store *store;
    struct auth *auth;
    struct http *http;
    struct ws *ws;
    const struct server_config *config; /* server/config.h: settings, defaults, environment */
};

#endif
