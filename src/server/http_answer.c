/* http_answer.c - answers on a connection: data, files and their ranges, streams, sockets handed
 * over. */
#include "server/http_sockets.h"

#include "base/env.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <gnutls/gnutls.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

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
        if (waits_add(w, x, since, request_park))
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
    q->x.waiter = (struct waiter){.fire = request_unpark, .ctx = q};
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
    bool fine = range_read(request_header(q, "Range"), size, &from, &to) || size == 0;
    (void)snprintf(text, sizeof text, "bytes %s/%lld", fine ? "" : "*", (long long)size);
    if (!fine) {
        (void)close(fd);
        http_error(r, 416, "the file has %lld bytes", (long long)size);
        (void)http_add_header(r, "Content-Range", text);
        return NULL;
    }
    if (request_header(q, "Range") && (from > 0 || to < size - 1)) {
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

void answer_not_handed(struct request *q)
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

enum MHD_Result answer(struct request *q)
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
    if (q->x.unclear || atomic_load(&q->x.h->closing))
        (void)MHD_add_response_header(response, "Connection", "close");
    q->phase = PHASE_SENT;
    enum MHD_Result sent = MHD_queue_response(q->connection, (unsigned)r->status, response);
    MHD_destroy_response(response);
    return sent;
}

enum MHD_Result answer_raw(struct request *q)
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
