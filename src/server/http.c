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
#include "server/http_int.h"

#include "base/env.h"
#include "base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <gnutls/gnutls.h>
#include <microhttpd.h>
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

enum {
    DOOR_THREADS = 2,
    JOB_THREADS = 6,
    CONNECTION_BYTES = 32768, /* head and buffers */
    STREAM_BYTES = 8192,
    CLOSE_WAIT_S = 5
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
};

/* ---- heads ---- */

static const char *head_get(void *ctx, const char *name)
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

/* ---- connections ---- */

static bool address_text(const struct sockaddr *a, char out[64])
{
    char host[INET6_ADDRSTRLEN] = "";
    (void)snprintf(out, 64, "unknown");
    if (!a)
        return false;
    const void *bytes = a->sa_family == AF_INET
                            ? (const void *)&((const struct sockaddr_in *)(const void *)a)->sin_addr
                            : &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    if (inet_ntop(a->sa_family, bytes, host, sizeof host))
        (void)snprintf(out, 64, "%s", str_starts(host, "::ffff:") ? host + 7 : host);
    return str_starts(out, "127.") || str_eq(out, "::1");
}

static enum MHD_Result accept_one(void *ctx, const struct sockaddr *a, socklen_t n)
{
    struct sockets *s = ctx;
    char peer[64];
    (void)n;
    if (address_text(a, peer))
        return MHD_YES;
    int same = 0;
    pthread_mutex_lock(&s->lock);
    for (const struct link *l = s->links; l; l = l->next)
        same += str_eq(l->peer, peer);
    pthread_mutex_unlock(&s->lock);
    return same < s->h->config.per_address_max ? MHD_YES : MHD_NO;
}

static void link_add(struct sockets *s, struct MHD_Connection *c, void **context)
{
    struct link *l = mem_alloc(sizeof *l);
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    l->h = s->h;
    (void)address_text(info ? info->client_addr : NULL, l->peer);
    info = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    l->fd = info ? info->connect_fd : -1;
    l->since_ns = clock_ns();
    pthread_mutex_lock(&s->lock);
    l->at = &s->links;
    l->next = s->links;
    if (l->next)
        l->next->at = &l->next;
    s->links = l;
    s->n_links++;
    pthread_mutex_unlock(&s->lock);
    *context = l;
}

static void link_remove(struct sockets *s, struct link *l)
{
    pthread_mutex_lock(&s->lock);
    *l->at = l->next;
    if (l->next)
        l->next->at = l->at;
    s->n_links--;
    pthread_mutex_unlock(&s->lock);
    mem_free(l);
}

static void on_connection(
    void *ctx, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode code)
{
    struct sockets *s = ctx;
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        link_add(s, c, context);
    else if (*context)
        link_remove(s, *context);
}

static void link_phase(struct link *l, int phase)
{
    struct sockets *s = l->h->sockets;
    pthread_mutex_lock(&s->lock);
    l->phase = phase;
    l->since_ns = clock_ns();
    l->arrived = 0;
    pthread_mutex_unlock(&s->lock);
}

static void link_arrived(struct link *l, size_t n)
{
    struct sockets *s = l->h->sockets;
    pthread_mutex_lock(&s->lock);
    l->arrived += (int64_t)n;
    pthread_mutex_unlock(&s->lock);
}

/* Whether it takes longer over its head, or its body, than anybody honest does. */
static bool link_trickles(const struct link *l, int64_t now_ns)
{
    int64_t s = (now_ns - l->since_ns) / 1000000000;
    if (l->phase == LINK_HEAD)
        return s > l->h->config.head_s;
    return l->phase == LINK_BODY && s > l->h->config.body_s && l->arrived < s * BODY_RATE_MIN;
}

/* Once a second: ends connections that trickle. Their sockets are shut, not closed: the door's
 * thread sees the end and does the rest. */
static void tick(void *ctx)
{
    struct http *h = ctx;
    struct sockets *s = h->sockets;
    int64_t now_ns = clock_ns();
    pthread_mutex_lock(&s->lock);
    for (const struct link *l = s->links; l; l = l->next)
        if (link_trickles(l, now_ns))
            (void)shutdown(l->fd, SHUT_RDWR);
    pthread_mutex_unlock(&s->lock);
}

/* ---- parking ---- */

static void park(void *ctx)
{
    MHD_suspend_connection(((struct request *)ctx)->connection);
}

static void unpark(void *ctx)
{
    MHD_resume_connection(((struct request *)ctx)->connection);
}

/* ---- jobs ---- */

static void *job_thread(void *ctx)
{
    struct sockets *s = ctx;
    pthread_mutex_lock(&s->jobs_lock);
    for (;;) {
        while (!s->jobs && !s->jobs_end)
            pthread_cond_wait(&s->jobs_more, &s->jobs_lock);
        struct request *q = s->jobs;
        if (!q)
            break;
        s->jobs = q->next_job;
        if (!s->jobs)
            s->jobs_tail = &s->jobs;
        pthread_mutex_unlock(&s->jobs_lock);
        exchange_end(&q->x);
        unpark(q);
        pthread_mutex_lock(&s->jobs_lock);
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
        park(q);
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

/* ---- streams ---- */

struct streaming {
    struct request *q;
    struct http_stream stream;
    struct str out;
    size_t sent;
    bool ended, comments;
    int64_t spoken_ns; /* when bytes last went out */
};

/* Something to send in `out`, or the end, or parked: false. */
static bool stream_fill(struct streaming *t)
{
    struct waits *w = &t->q->x.h->waits;
    struct waiter *x = &t->q->x.waiter;
    while (t->out.n == 0 && !t->ended) {
        int64_t now_ns = clock_ns(), quiet_ns = (int64_t)t->q->x.h->config.comment_s * 1000000000;
        if (!http_enter(t->q->x.h)) {
            t->ended = true;
            break;
        }
        uint64_t since = waits_now(w);
        enum http_pull pulled = t->stream.pull(t->stream.ctx, &t->out);
        http_leave(t->q->x.h);
        t->ended = pulled == HTTP_PULL_END;
        if (pulled != HTTP_PULL_WAIT || t->out.n)
            continue;
        if (now_ns - t->spoken_ns >= quiet_ns) {
            if (t->comments) {
                str_add(&t->out, ": \n\n");
                break;
            }
            t->spoken_ns = now_ns;
        }
        x->until_ns = t->spoken_ns + quiet_ns;
        if (waits_add(w, x, since, park))
            return false;
    }
    return true;
}

static ssize_t stream_read(void *ctx, uint64_t position, char *buf, size_t cap)
{
    struct streaming *t = ctx;
    (void)position;
    if (!stream_fill(t))
        return 0;
    size_t left = t->out.n - t->sent, n = left < cap ? left : cap;
    if (n == 0)
        return MHD_CONTENT_READER_END_OF_STREAM;
    memcpy(buf, t->out.data + t->sent, n);
    t->sent += n;
    t->spoken_ns = clock_ns();
    if (t->sent == t->out.n) {
        t->sent = 0;
        if (t->out.cap > 65536) {
            str_release(&t->out);
            str_init(&t->out);
        }
        str_clear(&t->out);
    }
    return (ssize_t)n;
}

static void stream_free(void *ctx)
{
    struct streaming *t = ctx;
    if (t->stream.release)
        t->stream.release(t->stream.ctx);
    str_release(&t->out);
    mem_free(t);
}

static struct MHD_Response *stream_response(struct request *q)
{
    struct streaming *t = mem_alloc(sizeof *t);
    t->q = q;
    t->stream = q->x.r.stream;
    q->x.r.stream = (struct http_stream){0};
    t->comments = q->x.r.type && str_starts(q->x.r.type, "text/event-stream");
    t->spoken_ns = clock_ns();
    str_init(&t->out);
    q->x.waiter = (struct waiter){.fire = unpark, .ctx = q};
    q->x.waiter.link[0].topic = t->stream.topic;
    q->x.waiter.link[1].topic = t->stream.topic2;
    return MHD_create_response_from_callback(
        MHD_SIZE_UNKNOWN, STREAM_BYTES, stream_read, t, stream_free);
}

/* ---- files ---- */

/* "bytes=a-b", "bytes=a-", "bytes=-n": false where it asks for nothing that is there. Several
 * ranges, and other units, are read as none: the whole file. */
static bool range_read(const char *text, int64_t size, int64_t *from, int64_t *to)
{
    *from = 0, *to = size - 1;
    if (!text || strncmp(text, "bytes=", 6) != 0 || strchr(text, ','))
        return true;
    const char *dash = strchr(text += 6, '-');
    char first[24] = "";
    if (!dash || dash - text >= 20 || strlen(dash + 1) >= 20)
        return true;
    memcpy(first, text, (size_t)(dash - text));
    int64_t a = 0, b = size - 1;
    bool has_a = str_to_i64(first, &a), has_b = str_to_i64(dash + 1, &b);
    if ((first[0] && (!has_a || a < 0)) || (dash[1] && (!has_b || b < 0)) || (!has_a && !has_b))
        return true;
    *from = has_a ? a : (b < size ? size - b : 0);
    *to = has_a && b < size ? b : size - 1;
    return *from <= *to && *from < size && !(!has_a && b == 0);
}

/* Opens the reply's file; NULL: the reply became an error. */
static struct MHD_Response *file_response(struct request *q)
{
    struct http_reply *r = &q->x.r;
    struct stat st;
    int fd = open(r->file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        if (fd >= 0)
            (void)close(fd);
        http_error(r, 404, "Not Found");
        return NULL;
    }
    int64_t size = st.st_size - r->file_offset, from, to;
    if (r->file_bytes >= 0 && size > r->file_bytes)
        size = r->file_bytes;
    char text[96];
    bool fine = range_read(head_get(q, "Range"), size, &from, &to) || size == 0;
    (void)snprintf(text, sizeof text, "bytes %s/%lld", fine ? "" : "*", (long long)size);
    if (!fine) {
        (void)close(fd);
        http_error(r, 416, "the file has %lld bytes", (long long)size);
        (void)http_add_header(r, "Content-Range", text);
        return NULL;
    }
    if (head_get(q, "Range") && (from > 0 || to < size - 1)) {
        (void)snprintf(
            text, sizeof text, "bytes %lld-%lld/%lld", (long long)from, (long long)to,
            (long long)size);
        r->status = 206;
        (void)http_add_header(r, "Content-Range", text);
    }
    (void)http_add_header(r, "Accept-Ranges", "bytes");
    return MHD_create_response_from_fd_at_offset64(
        size ? (uint64_t)(to - from + 1) : 0, fd, (uint64_t)(r->file_offset + from));
}

/* ---- upgrades ---- */

struct handed {
    struct sockets *s;
    struct http_upgrade upgrade;
    struct MHD_UpgradeResponseHandle *handle;
};

static void upgraded(
    void *ctx, struct MHD_Connection *c, void *context, const char *early, size_t n_early,
    MHD_socket fd, struct MHD_UpgradeResponseHandle *handle)
{
    struct handed *x = ctx;
    (void)c;
    ((struct request *)context)->handed = NULL;
    x->handle = handle;
    pthread_mutex_lock(&x->s->lock);
    x->s->n_upgrades++;
    pthread_mutex_unlock(&x->s->lock);
    x->upgrade.dropped = NULL;
    struct http *h = x->s->h;
    x->upgrade.taken(x->upgrade.ctx, fd, early, n_early, x);
    http_leave(h);
}

/* The connection ended before its socket was handed over. */
static void not_handed(struct request *q)
{
    struct handed *x = q->handed;
    if (x->upgrade.dropped)
        x->upgrade.dropped(x->upgrade.ctx);
    mem_free(x);
    q->handed = NULL;
    http_leave(q->x.h);
}

void http_upgrade_close(void *handle)
{
    struct handed *x = handle;
    (void)MHD_upgrade_action(x->handle, MHD_UPGRADE_ACTION_CLOSE);
    pthread_mutex_lock(&x->s->lock);
    x->s->n_upgrades--;
    pthread_cond_broadcast(&x->s->fewer);
    pthread_mutex_unlock(&x->s->lock);
    mem_free(x);
}

static struct MHD_Response *upgrade_response(struct request *q)
{
    struct handed *x = mem_alloc(sizeof *x);
    x->s = q->x.h->sockets;
    x->upgrade = q->x.r.upgrade;
    q->x.r.upgrade = (struct http_upgrade){0};
    q->handed = x;
    atomic_fetch_add(&q->x.h->busy, 1);
    q->x.r.status = MHD_HTTP_SWITCHING_PROTOCOLS;
    struct MHD_Response *response = MHD_create_response_for_upgrade(upgraded, x);
    (void)MHD_add_response_header(
        response, "Upgrade", x->upgrade.protocol ? x->upgrade.protocol : "websocket");
    return response;
}

/* ---- answers ---- */

static void add_headers(struct MHD_Response *response, const struct exchange *x)
{
    struct str lines;
    str_init(&lines);
    exchange_headers(x, &lines);
    for (char *line = lines.data, *end; (end = strstr(line, "\r\n")); line = end + 2) {
        *end = '\0';
        char *value = strstr(line, ": ");
        if (!value)
            continue;
        *value = '\0';
        (void)MHD_add_response_header(response, line, value + 2);
    }
    str_release(&lines);
}

static struct MHD_Response *data_response(struct http_reply *r)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(
        r->data_bytes, r->data ? r->data : (void *)(uintptr_t) "", MHD_RESPMEM_MUST_COPY);
    return response;
}

static enum MHD_Result answer(struct request *q)
{
    struct http_reply *r = &q->x.r;
    if (r->status == 500) /* a fault of ours */
        log_warn("%s %s: 500 %.300s", q->x.method_text, q->x.path, r->data ? r->data : "");
    struct MHD_Response *response = NULL;
    if (r->upgrade.taken)
        response = upgrade_response(q);
    else if (r->file[0])
        response = file_response(q);
    else if (r->stream.pull && !q->x.is_head)
        response = stream_response(q);
    if (!response)
        response = data_response(r);
    if (!response)
        return MHD_NO;
    if (r->type && r->status != MHD_HTTP_SWITCHING_PROTOCOLS)
        (void)MHD_add_response_header(response, "Content-Type", r->type);
    add_headers(response, &q->x);
    if (atomic_load(&q->x.h->closing))
        (void)MHD_add_response_header(response, "Connection", "close");
    q->phase = PHASE_SENT;
    enum MHD_Result sent = MHD_queue_response(q->connection, (unsigned)r->status, response);
    MHD_destroy_response(response);
    return sent;
}

/* A body grew past its limit while it comes: the library takes no answer before its end, so it is
 * written past it, and the connection ends. */
static enum MHD_Result answer_raw(struct request *q)
{
    struct str text;
    const union MHD_ConnectionInfo *tls =
        MHD_get_connection_info(q->connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    str_init(&text);
    str_printf(
        &text, "HTTP/1.1 %d Refused\r\nContent-Type: %s\r\nContent-Length: %zu\r\n", q->x.r.status,
        q->x.r.type, q->x.r.data_bytes);
    exchange_headers(&q->x, &text);
    str_add(&text, "Connection: close\r\n\r\n");
    str_add_n(&text, q->x.r.data, q->x.r.data_bytes);
    if (tls && tls->tls_session)
        (void)gnutls_record_send(tls->tls_session, text.data, text.n);
    else
        (void)!send(q->link->fd, text.data, text.n, MSG_NOSIGNAL);
    str_release(&text);
    (void)shutdown(q->link->fd, SHUT_WR);
    return MHD_NO;
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
        x->waiter.fire = unpark;
        x->waiter.ctx = q;
        if (waits_add(&x->h->waits, &x->waiter, x->since, park))
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
    const char *length = head_get(q, "Content-Length");
    bool known = !head_get(q, "Transfer-Encoding") &&
                 (!length || (str_to_i64(length, &n) && n >= 0 && n <= DRAIN_BYTES_MAX));
    q->drains = known && !head_get(q, "Expect");
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
    q->x.head = (struct head){head_get, head_count, q};
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
        not_handed(q);
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

/* As many descriptors as connections need, within what the system allows. */
static void raise_descriptors(int connections)
{
    struct rlimit r;
    rlim_t want = (rlim_t)connections + 256;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur >= want)
        return;
    r.rlim_cur = r.rlim_max == RLIM_INFINITY || r.rlim_max >= want ? want : r.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &r);
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
        flags, 0, accept_one, s, on_request, h, MHD_OPTION_EXTERNAL_LOGGER, on_library_log, NULL,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_THREAD_POOL_SIZE, (unsigned)DOOR_THREADS,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)h->config.connections_max,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)h->config.idle_s,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES, MHD_OPTION_STRICT_FOR_CLIENT,
        1, MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL, MHD_OPTION_URI_LOG_CALLBACK, on_target,
        h, MHD_OPTION_NOTIFY_COMPLETED, on_completed, h, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, s, MHD_OPTION_ARRAY, s->certificate ? tls : tls + 2, MHD_OPTION_END);
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
    waits_init(&h->waits, tick, h, true);
    raise_descriptors(c->connections_max);
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
