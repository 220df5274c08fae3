/* http_sockets.h - what the files that know libmicrohttpd share: connections, requests on them.
 *
 * http.c drives requests, http_links.c keeps connections, http_answer.c makes answers.
 */
#ifndef SERVER_HTTP_SOCKETS_H
#define SERVER_HTTP_SOCKETS_H

#include "server/http_int.h"

#include <microhttpd.h>

enum {
    DOOR_THREADS = 2,
    JOB_THREADS = 6,
    LONG_JOBS_MAX = 2,
    LONG_BODY_BYTES = 1 << 18,
    CONNECTION_BYTES = 32768, /* head and buffers */
    STREAM_BYTES = 8192,
    CLOSE_WAIT_S = 5,
    OWN_DESCRIPTORS = 256 /* database, logs, children: what is not a connection */
};

struct handed;

/* One connection, from accept to close. */
struct link {
    struct link *next, **at;
    struct http *h;
    int fd;
    char peer[64];
    enum { LINK_HEAD, LINK_BODY, LINK_ANSWER } phase; /* what is awaited: a head, its body, us */
    int64_t since_ns;                                 /* of the phase */
    int64_t arrived;                                  /* bytes of the body */
};

struct request {
    struct exchange x;
    struct MHD_Connection *connection;
    struct link *link;
    enum { PHASE_READ, PHASE_JOB, PHASE_CALL, PHASE_SENT } phase;
    struct request *next_job;
    struct handed *handed; /* a socket that is being handed over, until it is */
    bool drains;           /* refused, and the rest of a small body is read away */
};

struct sockets {
    struct http *h;
    struct MHD_Daemon *daemon; /* NULL until http_start */
    int listener;              /* -1 once the daemon has it */
    pthread_mutex_t lock;      /* links, upgrades */
    pthread_cond_t fewer;      /* upgrades */
    struct link *links;
    int n_links, n_upgrades;
    char *certificate, *private_key;
    /* jobs */
    pthread_mutex_t jobs_lock;
    pthread_cond_t jobs_more;
    struct request *jobs, **jobs_tail;
    pthread_t job_threads[JOB_THREADS];
    int n_job_threads;
    bool jobs_end;
    int long_jobs; /* of those that are being done */
};

/* ---- http_links.c ---- */
/* Who may connect: of each other machine so many. */
enum MHD_Result link_accept(void *ctx, const struct sockaddr *a, socklen_t n);
void link_notify(
    void *ctx, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode code);
void link_phase(struct link *l, int phase);
void link_arrived(struct link *l, size_t n);
/* Once a second: ends connections that trickle. */
void links_tick(void *ctx);

/* ---- http.c ---- */
/* The connection sleeps, and goes on; parking is for its own thread alone. */
void request_park(void *ctx);
void request_unpark(void *ctx);
const char *request_header(void *ctx, const char *name);

/* ---- http_answer.c ---- */
enum MHD_Result answer(struct request *q);
/* A body grew past its limit while it comes: the library takes no answer before its end, so it is
 * written past it, and the connection ends. */
enum MHD_Result answer_raw(struct request *q);
/* The connection ended before its socket was handed over. */
void answer_not_handed(struct request *q);

#endif
