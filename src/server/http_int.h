/* http_int.h - what the files of the door share: one request on its way, waits, connections.
 *
 * A request is an exchange. Who speaks HTTP (http.c: sockets; http_bare.c: none) drives it:
 *
 *     exchange_begin(x)             the head is there: target, host, access, route
 *     exchange_body(x, data, n)     any number of times
 *     exchange_end(x)               form of the body; calls the route; again after a wait
 *
 * and sends x->r once x->replied. Nothing here knows libmicrohttpd but http.c.
 */
#ifndef SERVER_HTTP_INT_H
#define SERVER_HTTP_INT_H

#include "server/routes.h"
#include "server/server.h"

#include "base/mem.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    TARGET_BYTES_MAX = 8192,
    QUERY_MAX = 32,             /* parameters of a query */
    DRAIN_BYTES_MAX = 65536,    /* of a refused request's body, read and thrown away */
    COMMENT_EVERY_S = 15,       /* streams */
    IDLE_S = 60,                /* a connection without a byte */
    HEAD_S = 75,                /* from a connection's start, or its last answer, to a whole head */
    BODY_GRACE_S = 30,          /* after which a body must have come faster than BODY_RATE_MIN */
    BODY_RATE_MIN = 512,        /* bytes a second */
    BODIES_BYTES_MAX = 1 << 30, /* of all bodies that are held at a time */
    JSON_DEPTH_MAX = 256,       /* brackets within brackets */
    TOPIC_SLOTS = 4096
};

/* ---- text.c's kind of help (routes.c) ---- */
bool percent_decode(const char *from, size_t n, bool plus, char *out, size_t cap);
bool text_is_utf8(const char *text, size_t n);

/* ---- headers, wherever they come from ---- */
struct head {
    const char *(*get)(void *ctx, const char *name); /* the first of that name, or NULL */
    size_t (*count)(void *ctx, const char *name);
    bool (*plain)(void *ctx); /* no name has a blank or a control character */
    void *ctx;
};

/* ---- waits (http_wake.c) ---- */
struct waiter {
    struct wait_link {
        struct wait_link *next, **at; /* of the bucket; `at` is what points here */
        struct waiter *owner;
        uint64_t topic; /* 0: link not used */
    } link[2];
    struct waiter *next_all, **at_all;
    int64_t until_ns;
    bool linked, woken, expired;
    void (*fire)(void *ctx); /* under the lock of the waits, once a waits_add */
    void *ctx;
};
struct waits {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool threaded, closing;
    uint64_t sequence, last[TOPIC_SLOTS]; /* number of the last wake by slot of the topic */
    struct wait_link *buckets[TOPIC_SLOTS];
    struct waiter *all;
    int64_t earliest_ns; /* the watching thread sleeps until then */
    void (*listener)(void *ctx, uint64_t topic);
    void *listener_ctx;
    void (*tick)(void *ctx); /* about once a second, without the lock */
    void *tick_ctx;
};
void waits_init(struct waits *w, void (*tick)(void *ctx), void *ctx, bool threaded);
void waits_stop(struct waits *w); /* ends the thread; fires everyone as expired; none wait later */
void waits_release(struct waits *w);
/* The number to give waits_add as `since`, taken before looking at what the topic is about. */
uint64_t waits_now(struct waits *w);
/* Waits for x->link[..].topic until x->until_ns, and calls `parked` under the lock; false (nothing
 * done) where a topic was woken since, or the door closes (x->expired is set then). */
bool waits_add(struct waits *w, struct waiter *x, uint64_t since, void (*parked)(void *ctx));
void waits_remove(struct waits *w, struct waiter *x);
bool waits_woken(struct waits *w, uint64_t topic, uint64_t since);

/* ---- uploads (http_upload.c, http_multipart.c) ---- */
struct multipart;
struct spool {
    int fd;                  /* -1: none */
    struct multipart *parts; /* NULL: the body is the file */
    struct http_upload file;
    bool complete;
};
/* A reader of multipart/form-data that finds the first part with a file name and hands its bytes
 * on; the rest is skipped. Bytes come in any pieces. */
struct multipart *multipart_new(const char *content_type); /* NULL: not one, or no boundary */
void multipart_free(struct multipart *m);
/* NULL, or what is wrong with the form. `take` gets bytes of the file; false stops. */
const char *multipart_feed(
    struct multipart *m, const char *data, size_t n,
    bool (*take)(void *ctx, const char *p, size_t n), void *ctx);
const char *multipart_name(const struct multipart *m); /* of the file, NULL until it is found */
bool multipart_is_complete(const struct multipart *m); /* the file's end has been seen */

/* ---- one request ---- */
struct exchange {
    struct http *h;
    struct head head;
    struct http_request q;
    struct http_reply r;
    struct route_match match;
    const struct route *route;
    enum route_method method;
    bool is_head, is_options, begun, replied, ended;
    bool unclear; /* where it ends can be read in two ways: nothing after it is a request */
    char method_text[16];
    char *target; /* as it came; query parts are decoded in place */
    char path[ROUTE_PATH_BYTES_MAX];
    struct {
        const char *name, *value;
    } query[QUERY_MAX];
    size_t query_n;
    char *query_text;
    char origin[256]; /* to answer with, "" none */
    char *body;
    size_t body_n, body_cap;
    int64_t arrived, limit, began_ns;
    struct spool spool;
    json_t *json;
    void *keep;
    uint64_t since; /* waits_now before the last call of the route */
    struct waiter waiter;
};
void exchange_init(struct exchange *x, struct http *h, const char *method, const char *target);
void exchange_release(struct exchange *x);
void exchange_begin(struct exchange *x);
void exchange_body(struct exchange *x, const char *data, size_t n);
/* Called again after a wait with waiter.woken or .expired. May leave r.waits set: not replied. */
void exchange_end(struct exchange *x);
/* Headers that every answer gets, as "Name: value\r\n" lines. */
void exchange_headers(const struct exchange *x, struct str *out);
/* Replies, unless it has. */
void exchange_refuse(struct exchange *x, int status, const char *fmt, ...) PRINTF(3, 4);

/* ---- who may (http_guard.c) ---- */
struct allowed_hosts {
    struct str hosts;   /* ",localhost,[::1],lab:8000," (with a port: that port only) */
    struct str origins; /* ",http://localhost:3000," */
};
void allowed_init(struct allowed_hosts *a, const struct http_config *c);
void allowed_release(struct allowed_hosts *a);
bool host_is_allowed(const struct allowed_hosts *a, const char *host);
/* Host, origin, token, access: refuses by replying; of an UPGRADE route sets q.refused. */
void guard_check(struct exchange *x);

/* ---- form of the body (http_body.c, http_upload.c) ---- */
void body_begin(struct exchange *x); /* limits and kind; may reply */
void body_take(struct exchange *x, const char *data, size_t n);
void body_end(struct exchange *x);
void body_release(struct exchange *x);
bool spool_begin(struct exchange *x);
void spool_take(struct exchange *x, const char *data, size_t n);
void spool_end(struct exchange *x);
void spool_release(struct spool *s);

struct http {
    struct server *server;
    struct http_config config; /* its texts are copies */
    struct arena arena;
    struct allowed_hosts allowed;
    struct waits waits;
    atomic_llong bodies_bytes;
    atomic_bool closing;
    atomic_int busy; /* routes and pulls that run, sockets that are being handed over */
    int port;
    struct sockets *sockets; /* http.c; NULL without sockets */
};
/* Brackets what calls into the rest of the server; false (and nothing to leave): the door closes.
 */
bool http_enter(struct http *h);
void http_leave(struct http *h);
void http_init(struct http *h, struct server *s, const struct http_config *c);
void http_release(struct http *h);

/* route_docs.c: the table as OpenAPI 3.1; a new reference. */
json_t *openapi_json(const struct route *rows, size_t n);
/* page.c: what a GET outside /api gets. */
void page_reply(const struct server *s, const char *path, struct http_reply *r);

#endif
