/* http.c - sockets: libmicrohttpd drives exchanges, parks who waits, streams, hands sockets over.
 *
 * THREADS  Two door threads (epoll) read, write and pull streams. Routes run on a few job threads,
 * so that a commit, a disk or a large body never stands before somebody else's events; the
 * connection is parked meanwhile. One watching thread (http_wake.c) ends waits that are over and
 * connections that trickle.
 *
 * STATES of an exchange on its connection
 *     reading -> [job ->] answered | waiting -> [job ->] answered ...
 * A connection is parked (suspended) exactly while a job or a wait has it; parking happens before
 * the job is queued, or under the lock of the waits, so that it can never be resumed first.
 *
 * Requirements H1, H4; promise P15.
 */
#include "server/http_sockets.h"

#include "base/env.h"
#include "base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <gnutls/gnutls.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- heads ---- */

const char *request_header(void *ctx, const char *name)
{
    struct request *q = ctx;
    return MHD_lookup_connection_value(q->connection, MHD_HEADER_KIND, name);
}

struct counting {
    const char *name;
    size_t n;
};

static enum MHD_Result
count_one(void *ctx, enum MHD_ValueKind kind, const char *key, const char *value)
{
    struct counting *c = ctx;
    (void)kind, (void)value;
    c->n += strcasecmp(key, c->name) == 0;
    return MHD_YES;
}

static size_t head_count(void *ctx, const char *name)
{
    struct request *q = ctx;
    struct counting c = {.name = name};
    (void)MHD_get_connection_values(q->connection, MHD_HEADER_KIND, count_one, &c);
    return c.n;
}

static enum MHD_Result
name_is_plain(void *ctx, enum MHD_ValueKind kind, const char *key, const char *value)
{
    (void)kind, (void)value;
    for (const char *c = key; *c; c++)
        if ((unsigned char)*c <= ' ')
            *(bool *)ctx = false;
    return MHD_YES;
}

static bool head_plain(void *ctx)
{
    bool plain = true;
    (void)MHD_get_connection_values(
        ((struct request *)ctx)->connection, MHD_HEADER_KIND, name_is_plain, &plain);
    return plain;
}

/* ---- parking ---- */

void request_park(void *ctx)
{
    MHD_suspend_connection(((struct request *)ctx)->connection);
}

void request_unpark(void *ctx)
{
    MHD_resume_connection(((struct request *)ctx)->connection);
}

/* ---- jobs ---- */

/* Documents that take seconds to read have some of the threads, never all: heartbeats and short
 * questions do not queue behind them. */
static bool is_long(const struct request *q)
{
    return q->x.body_n > LONG_BODY_BYTES;
}

/* The first that may be begun; NULL: none. */
static struct request *job_take(struct sockets *s)
{
    for (struct request **at = &s->jobs; *at; at = &(*at)->next_job) {
        struct request *q = *at;
        if (is_long(q) && s->long_jobs == LONG_JOBS_MAX)
            continue;
        *at = q->next_job;
        if (s->jobs_tail == &q->next_job)
            s->jobs_tail = at;
        return q;
    }
    return NULL;
}

static void *job_thread(void *ctx)
{
    struct sockets *s = ctx;
    struct request *q;
    pthread_mutex_lock(&s->jobs_lock);
    for (;;) {
        while (!(q = job_take(s)) && (s->jobs || !s->jobs_end))
            pthread_cond_wait(&s->jobs_more, &s->jobs_lock);
        if (!q)
            break;
        bool counted = is_long(q);
        s->long_jobs += counted;
        pthread_mutex_unlock(&s->jobs_lock);
        exchange_end(&q->x);
        request_unpark(q);
        pthread_mutex_lock(&s->jobs_lock);
        s->long_jobs -= counted;
        if (counted)
            pthread_cond_broadcast(&s->jobs_more);
    }
    pthread_mutex_unlock(&s->jobs_lock);
    return NULL;
}

/* Parks the request and queues it; false where the job threads have ended. */
static bool job_add(struct sockets *s, struct request *q)
{
    q->next_job = NULL;
    pthread_mutex_lock(&s->jobs_lock);
    bool open = !s->jobs_end;
    if (open) {
        request_park(q);
        *s->jobs_tail = q;
        s->jobs_tail = &q->next_job;
        pthread_cond_signal(&s->jobs_more);
    }
    pthread_mutex_unlock(&s->jobs_lock);
    return open;
}

static enum status jobs_start(struct sockets *s, struct err *e)
{
    for (; s->n_job_threads < JOB_THREADS; s->n_job_threads++) {
        int failed = pthread_create(&s->job_threads[s->n_job_threads], NULL, job_thread, s);
        if (failed)
            return err_set(e, ST_IO, "could not start a thread: %s", strerror(failed));
    }
    return ST_OK;
}

/* Everything that is queued is done first. */
static void jobs_stop(struct sockets *s)
{
    pthread_mutex_lock(&s->jobs_lock);
    s->jobs_end = true;
    pthread_cond_broadcast(&s->jobs_more);
    pthread_mutex_unlock(&s->jobs_lock);
    while (s->n_job_threads > 0)
        pthread_join(s->job_threads[--s->n_job_threads], NULL);
}

/* ---- requests ---- */

/* Whether the route runs on a job thread: all of them may read a disk or wait for a commit. */
static bool wants_job(const struct exchange *x)
{
    return !x->replied && x->route && x->route->access != ACCESS_UPGRADE;
}

/* The request is whole, or has been called before and waits no longer. */
static enum MHD_Result proceed(struct request *q)
{
    struct exchange *x = &q->x;
    struct sockets *s = x->h->sockets;
    for (;;) {
        if (q->phase != PHASE_JOB) { /* not: a job has just called it */
            q->phase = PHASE_JOB;
            if (wants_job(x) && job_add(s, q))
                return MHD_YES;
            exchange_end(x);
        }
        q->phase = PHASE_CALL;
        if (x->replied)
            return answer(q);
        x->waiter.fire = request_unpark;
        x->waiter.ctx = q;
        if (waits_add(&x->h->waits, &x->waiter, x->since, request_park))
            return MHD_YES;
        if (x->waiter.expired && x->q.expired) { /* the door closes, and it would wait on */
            http_error(&x->r, 503, "the server stops");
            x->replied = true;
        }
    }
}

/* The head is there. */
static enum MHD_Result begin(struct request *q)
{
    link_phase(q->link, LINK_BODY);
    exchange_begin(&q->x);
    if (!q->x.replied)
        return MHD_YES;
    int64_t n = 0;
    const char *length = request_header(q, "Content-Length");
    bool known = !request_header(q, "Transfer-Encoding") &&
                 (!length || (str_to_i64(length, &n) && n >= 0 && n <= DRAIN_BYTES_MAX));
    q->drains = known && !q->x.unclear && !request_header(q, "Expect");
    return q->drains ? MHD_YES : answer(q);
}

static enum MHD_Result on_request(
    void *ctx, struct MHD_Connection *c, const char *url, const char *method, const char *version,
    const char *data, size_t *n, void **context)
{
    struct request *q = *context;
    (void)ctx, (void)url, (void)c, (void)version;
    if (!q)
        return MHD_NO;
    if (!q->x.begun) {
        (void)snprintf(q->x.method_text, sizeof q->x.method_text, "%s", method);
        return begin(q);
    }
    if (*n > 0) {
        link_arrived(q->link, *n);
        exchange_body(&q->x, data, *n);
        *n = 0;
        if (q->x.replied && !q->drains)
            return answer_raw(q);
        return MHD_YES;
    }
    if (!q->x.ended)
        link_phase(q->link, LINK_ANSWER);
    return proceed(q);
}

/* The request line is there: `uri` is the target as it came. */
static void *on_target(void *ctx, const char *uri, struct MHD_Connection *c)
{
    struct http *h = ctx;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct request *q = mem_alloc(sizeof *q);
    q->connection = c;
    q->link = info ? info->socket_context : NULL;
    exchange_init(&q->x, h, "", uri);
    q->x.head = (struct head){request_header, head_count, head_plain, q};
    ASSERT(q->link);
    (void)snprintf(q->x.q.actor.peer, sizeof q->x.q.actor.peer, "%s", q->link->peer);
    return q;
}

static void on_completed(
    void *ctx, struct MHD_Connection *c, void **context, enum MHD_RequestTerminationCode code)
{
    struct request *q = *context;
    (void)ctx, (void)c, (void)code;
    if (!q)
        return;
    link_phase(q->link, LINK_HEAD);
    if (q->handed)
        answer_not_handed(q);
    exchange_release(&q->x);
    mem_free(q);
    *context = NULL;
}

/* ---- opening and closing ---- */

static size_t keep_escapes(void *ctx, struct MHD_Connection *c, char *text)
{
    (void)ctx, (void)c;
    return strlen(text);
}

__attribute__((format(printf, 2, 0))) static void
on_library_log(void *ctx, const char *fmt, va_list args)
{
    char text[512];
    (void)ctx;
    (void)vsnprintf(text, sizeof text, fmt, args);
    text[strcspn(text, "\r\n")] = '\0';
    log_line(LOG_DEBUG, "http: %s", text);
}

/* As many descriptors as connections need, within what the system allows; how many connections
 * that allows: the door is full before the database, the logs and the children have none left. */
static int raise_descriptors(int connections)
{
    struct rlimit r;
    rlim_t want = (rlim_t)connections + OWN_DESCRIPTORS;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur >= want)
        return connections;
    r.rlim_cur = r.rlim_max == RLIM_INFINITY || r.rlim_max >= want ? want : r.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &r);
    if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur >= want)
        return connections;
    int all = (int)r.rlim_cur, room = all / 3;
    room = all - OWN_DESCRIPTORS > room ? all - OWN_DESCRIPTORS : room;
    log_warn("%d descriptors (ulimit -n) are enough for %d connections only", all, room);
    return room > 2 * DOOR_THREADS ? room : 2 * DOOR_THREADS;
}

static enum status listen_on(struct http *h, int *out, struct err *e)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    char port[12], host[256];
    const char *from = h->config.host;
    size_t n = strlen(from);
    bool brackets = n > 2 && from[0] == '[' && from[n - 1] == ']';
    (void)snprintf(
        host, sizeof host, "%.*s", (int)(brackets ? n - 2 : n), brackets ? from + 1 : from);
    (void)snprintf(port, sizeof port, "%d", h->config.port);
    int failed = getaddrinfo(host, port, &hints, &list);
    if (failed)
        return err_set(e, ST_INVALID, "cannot listen on \"%s\": %s", host, gai_strerror(failed));
    int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), yes = 1;
    bool fine = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) == 0 &&
                bind(fd, list->ai_addr, list->ai_addrlen) == 0 && listen(fd, 1024) == 0;
    freeaddrinfo(list);
    if (!fine) {
        enum status st = err_errno(e, "could not listen on %s port %s", host, port);
        if (fd >= 0)
            (void)close(fd);
        return st;
    }
    *out = fd;
    return ST_OK;
}

static void port_read(struct http *h, int fd)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0)
        return;
    h->port = a.ss_family == AF_INET6
                  ? ntohs(((const struct sockaddr_in6 *)(const void *)&a)->sin6_port)
                  : ntohs(((const struct sockaddr_in *)(const void *)&a)->sin_port);
}

static enum status read_tls(struct sockets *s, struct err *e)
{
    const struct http_config *c = &s->h->config;
    size_t n;
    if (!c->certificate || !c->certificate[0])
        return ST_OK;
    TRY(file_read(c->certificate, 1 << 20, &s->certificate, &n, e));
    return file_read(c->private_key, 1 << 20, &s->private_key, &n, e);
}

static enum status daemon_start(struct sockets *s, int fd, struct err *e)
{
    struct http *h = s->h;
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_ALLOW_UPGRADE |
                     MHD_USE_PEDANTIC_CHECKS | MHD_USE_ERROR_LOG |
                     (s->certificate ? MHD_USE_TLS : 0U);
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, s->certificate},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, s->private_key},
        {MHD_OPTION_END, 0, NULL}};
    s->daemon = MHD_start_daemon(
        flags, 0, link_accept, s, on_request, h, MHD_OPTION_EXTERNAL_LOGGER, on_library_log, NULL,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_THREAD_POOL_SIZE, (unsigned)DOOR_THREADS,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)h->config.connections_max,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)h->config.idle_s,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES, MHD_OPTION_STRICT_FOR_CLIENT,
        1, MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL, MHD_OPTION_URI_LOG_CALLBACK, on_target,
        h, MHD_OPTION_NOTIFY_COMPLETED, on_completed, h, MHD_OPTION_NOTIFY_CONNECTION, link_notify,
        s, MHD_OPTION_ARRAY, s->certificate ? tls : tls + 2, MHD_OPTION_END);
    if (s->daemon)
        return ST_OK;
    return err_set(
        e, ST_IO, "could not start the server%s",
        s->certificate ? ": is the certificate and its key in PEM form?" : "");
}

static void sockets_free(struct sockets *s)
{
    jobs_stop(s);
    pthread_cond_destroy(&s->jobs_more);
    pthread_mutex_destroy(&s->jobs_lock);
    pthread_cond_destroy(&s->fewer);
    pthread_mutex_destroy(&s->lock);
    if (s->private_key)
        explicit_bzero(s->private_key, strlen(s->private_key));
    mem_free(s->certificate);
    mem_free(s->private_key);
    mem_free(s);
}

static void unopen(struct http *h)
{
    struct sockets *s = h->sockets;
    if (s->listener >= 0)
        (void)close(s->listener);
    waits_stop(&h->waits);
    sockets_free(s);
    http_release(h);
}

enum status
http_open(struct server *srv, const struct http_config *c, struct http **out, struct err *e)
{
    struct http *h = mem_alloc(sizeof *h);
    struct sockets *s = mem_alloc(sizeof *s);
    enum status st;
    http_init(h, srv, c);
    h->sockets = s;
    s->h = h;
    s->listener = -1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->fewer, NULL);
    s->jobs_tail = &s->jobs;
    pthread_mutex_init(&s->jobs_lock, NULL);
    pthread_cond_init(&s->jobs_more, NULL);
    waits_init(&h->waits, links_tick, h, true);
    h->config.connections_max = raise_descriptors(c->connections_max);
    TRY_OUT(jobs_start(s, e));
    TRY_OUT(read_tls(s, e));
    TRY_OUT(listen_on(h, &s->listener, e));
    port_read(h, s->listener);
    *out = h;
out:
    if (st != ST_OK)
        unopen(h);
    return st;
}

enum status http_start(struct http *h, struct err *e)
{
    struct sockets *s = h->sockets;
    TRY(daemon_start(s, s->listener, e));
    s->listener = -1;
    return ST_OK;
}

/* WebSockets end before (ws_close); who forgot one is waited for a little. */
static void await_upgrades(struct sockets *s)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += CLOSE_WAIT_S;
    pthread_mutex_lock(&s->lock);
    while (s->n_upgrades > 0 && pthread_cond_timedwait(&s->fewer, &s->lock, &until) == 0)
        ;
    pthread_mutex_unlock(&s->lock);
}

void http_stop(struct http *h)
{
    if (!h)
        return;
    atomic_store(&h->closing, true);
    for (int i = 0; atomic_load(&h->busy) > 0 && i < CLOSE_WAIT_S * 500; i++)
        (void)nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

void http_close(struct http *h)
{
    if (!h)
        return;
    struct sockets *s = h->sockets;
    http_stop(h);
    if (!s || !s->daemon) {
        waits_stop(&h->waits);
        if (s)
            unopen(h);
        else
            http_release(h);
        return;
    }
    MHD_socket fd = MHD_quiesce_daemon(s->daemon);
    if (fd != MHD_INVALID_SOCKET)
        (void)close(fd);
    await_upgrades(s);
    waits_stop(&h->waits);
    jobs_stop(s);
    MHD_stop_daemon(s->daemon);
    sockets_free(s);
    http_release(h);
}
