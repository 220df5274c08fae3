/* http.h - the server's door: requests in, answers, waits and streams out; libmicrohttpd inside.
 *
 * A route is a row of routes.def and a function:
 *
 *     void route_runs_get(struct server *s, const struct http_request *q, struct http_reply *r)
 *     {
 *         struct err e;
 *         json_t *row;
 *         if (core_run(s->core, q->param[0], &row, &e) != ST_OK)
 *             http_fail(r, &e);
 *         else
 *             http_json(r, 200, row);
 *     }
 *
 * Routes run on the library's threads, several at once. None may block: what has to wait says so
 * with http_wait and is called again, with `woken` set, when the topic is woken or the time is up.
 * By the time a route is called the request has passed, in this order: host (421), access
 * (401, 403), size of the body (413, counted as bytes arrive), form of the body (422).
 */
#ifndef SERVER_HTTP_H
#define SERVER_HTTP_H

#include "base/json.h"
#include "base/str.h"

#include <stddef.h>

struct server;

/* Who asks. */
enum role {
    ROLE_NOBODY,
    ROLE_PAGE,   /* the token that the bootstrap route gives to pages */
    ROLE_OWNER,  /* the token of SNUG_HOME/session.token */
    ROLE_KEY,    /* an API key */
    ROLE_WORKER, /* a worker's credential */
    ROLE_ENROLL  /* a join token: may only become a worker */
};
struct actor {
    enum role role;
    bool exec;     /* may run any command: the owner, and keys with exec */
    char name[65]; /* of the key or worker; "owner", "page" */
    char id[33];   /* of the key or worker */
    char peer[64]; /* address, for logs */
};

/* A body that came as a file. The door removes it after the route unless that has renamed it. */
struct http_upload {
    char path[1024]; /* complete and synced, mode 0600, in SNUG_HOME/tmp: same file system */
    char name[256];  /* as the client calls it: hostile until http_file_name has looked at it */
    int64_t bytes;
};

struct http_request {
    const char *method, *path;
    const char *param[4]; /* what the {..} of the route matched, decoded */
    const char *body;     /* whole; NUL after it */
    size_t body_bytes;
    json_t *json; /* of a JSON route; borrowed */
    struct actor actor;
    bool foreign;        /* a page of another origin asks; writes of such are refused before */
    bool woken, expired; /* called again after http_wait: by its topic, or as the time is up */
    /* An UPGRADE route (a row of routes.def says so) is called whatever host, origin and token are,
     * because a WebSocket learns by a close code why it is refused: 421 host, 403 origin or token
     * of another kind, 401 no token that we know, 0 none of these. The token comes from the header
     * or from ?token=. Other routes are never called with it set. */
    int refused;
    void **keep; /* the route's own, over calls of one request; freed by mem_free at the end */
    struct http_upload upload; /* of an UPLOAD route */
    void *inside;
};
const char *http_query(const struct http_request *q, const char *name); /* NULL when absent */
/* The n-th of that name, from 0: ?status=queued&status=running. */
const char *http_query_at(const struct http_request *q, const char *name, size_t n);
const char *http_header(const struct http_request *q, const char *name); /* NULL when absent */
/* A whole number of the query within bounds, or the fallback where absent; false: r is a 422. */
struct http_reply;
bool http_query_i64(
    const struct http_request *q, const char *name, int64_t fallback, int64_t min, int64_t max,
    int64_t *out, struct http_reply *r);

/* A stream: pull adds bytes to `out`, as much as it likes at a time. It is called when the
 * connection has taken everything before, and again after each wake of the topic (or of `topic2`,
 * where it is not 0). A reader that does not read is not called for, and costs only its own place.
 * Wakes are never lost: a topic woken while pull runs calls it again. Streams of text/event-stream
 * get a comment line every 15 s from the door. */
enum http_pull { HTTP_PULL_MORE, HTTP_PULL_WAIT, HTTP_PULL_END };
struct http_stream {
    enum http_pull (*pull)(void *ctx, struct str *out); /* MORE: again once this is taken */
    void (*release)(void *ctx);                         /* called once, however it ends */
    void *ctx;
    uint64_t topic, topic2;
};
/* Adds "id: ...\nevent: ...\ndata: ...\n\n"; id < 0 and type NULL are left out. */
void http_sse(struct str *out, int64_t id, const char *type, const char *json_line);

/* A connection that leaves HTTP (101). `taken` is called once the answer's head is sent, on a
 * thread of the door, and must not block; the socket is then the route's: plain bytes, also under
 * TLS, and `early` is what the client had sent ahead. It ends with http_upgrade_close, from any
 * thread, once, and before http_close. `dropped` is called instead where the connection ends
 * before. */
struct http_upgrade {
    void (*taken)(void *ctx, int socket, const char *early, size_t n_early, void *handle);
    void (*dropped)(void *ctx);
    void *ctx;
    const char *protocol; /* of the Upgrade header: "websocket" */
};
void http_upgrade_close(void *handle);

struct http_reply {
    int status;
    const char *type; /* content type; static */
    char *data;       /* mem_free by the door */
    size_t data_bytes;
    char headers[512]; /* more lines "Name: value\r\n", by http_add_header */
    bool waits;
    uint64_t topic;
    int64_t wait_until_ns; /* clock_ns */
    struct http_stream stream;
    struct http_upgrade upgrade;     /* where taken is set: status 101, headers as added */
    char file[1024];                 /* a file to send, where not "" */
    int64_t file_offset, file_bytes; /* of it; -1: to its end */
};
void http_json(struct http_reply *r, int status, json_t *body); /* takes the reference */
/* {"detail": text, "code"} and the status of the error's row; "hint", "more" (the error's detail)
 * and "node_id" where there are any. */
void http_fail(struct http_reply *r, const struct err *e);
/* {"detail": text}. */
void http_error(struct http_reply *r, int status, const char *fmt, ...) PRINTF(3, 4);
/* {"detail": <any JSON>}; takes the reference. */
void http_error_json(struct http_reply *r, int status, json_t *detail);
void http_text(
    struct http_reply *r, int status, const char *type, char *data, size_t n); /* takes */
void http_wait(struct http_reply *r, uint64_t topic, int64_t until_ns);
void http_file(struct http_reply *r, const char *path, const char *type);
/* The last part of a name that a client gave, into `out`: false (and r is a 400) for what no file
 * of ours may be called: empty, "." and "..", over 255 bytes, control characters, not UTF-8, what
 * Windows does not take (<>:"|?* and its device names, a trailing dot or blank). */
bool http_file_name(const char *given, char out[256], struct http_reply *r);
/* Refuses (returns false) names and values with control characters. */
bool http_add_header(struct http_reply *r, const char *name, const char *value);

/* A topic is the hash of a name: "run:<id>", "runs", "workers", "orders:<session>". */
uint64_t http_topic(const char *kind, const char *id);
/* Calls whoever waits for the topic; from any thread, never blocks. */
struct http;
void http_wake(struct http *h, uint64_t topic);
/* Tells fn of every topic that is woken, on the thread that wakes it; fn must not block. One
 * listener at most (the WebSockets); NULL ends it. */
void http_on_wake(struct http *h, void (*fn)(void *ctx, uint64_t topic), void *ctx);

struct route;
struct http_config {
    const struct route *routes; /* routes.h's table; tests bring their own rows */
    size_t routes_n;
    const char *host;                      /* "127.0.0.1" */
    int port;                              /* 0: any; http_port tells which */
    const char *certificate, *private_key; /* PEM files; NULL: no TLS */
    const char *extra_hosts;               /* host:port, comma between */
    const char *origins;                   /* CORS */
    bool private_reads;                    /* READ routes need a token, too */
    const char *spool;                     /* folder for uploads; NULL: none are taken */
    int64_t body_max_bytes, upload_max_bytes;
    int connections_max, per_address_max; /* per_address_max does not count this machine */
    /* Limits on slow clients, and how often a quiet stream speaks; 0: 75, 60, 30, 15. */
    int head_s, idle_s, body_s, comment_s;
};
/* Listens (connections wait, http_port is known), and http_start serves: what routes need can be
 * made in between. */
enum status http_open(
    struct server *s, const struct http_config *c, struct http **out, struct err *e) NODISCARD;
enum status http_start(struct http *h, struct err *e) NODISCARD;
/* From here on no route, pull or taken is called, and none runs when it returns: what they use can
 * go. Requests are answered with 503. */
void http_stop(struct http *h);
void http_close(struct http *h); /* wakes and ends everything */
int http_port(const struct http *h);

/* ---- the door without sockets: for tests of routes, and for fuzzing ---- */
/* One request through everything but the network: host, access, body, form, route. Routes that wait
 * are called until they answer or `wait_max_ms` have passed (status 0). A stream is not pulled. */
struct http_ask {
    const char *method, *target; /* "GET", "/api/runs?limit=5" */
    const char *const *headers;  /* name, value, name, value, ..., NULL; Host is added */
    const char *token;           /* X-Snug-Token, where not NULL */
    const char *body;
    size_t body_bytes;
    int wait_max_ms;
};
struct http *http_bare(struct server *s, const struct http_config *c); /* no sockets, no threads */
void http_ask(struct http *h, const struct http_ask *ask, struct http_reply *r);
void http_reply_release(struct http_reply *r);

#endif
