/* http_links.c - connections, from accept to close: how many of whom, and who is too slow. */
#include "server/http_sockets.h"

#include "base/env.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* An end of the peer's that old, before a whole head, was overlooked. */
static const int64_t LEFT_NS = 300000000;

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

enum MHD_Result link_accept(void *ctx, const struct sockaddr *a, socklen_t n)
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

void link_notify(
    void *ctx, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode code)
{
    struct sockets *s = ctx;
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        link_add(s, c, context);
    else if (*context)
        link_remove(s, *context);
}

void link_phase(struct link *l, int phase)
{
    struct sockets *s = l->h->sockets;
    pthread_mutex_lock(&s->lock);
    l->phase = phase;
    l->since_ns = clock_ns();
    l->arrived = 0;
    pthread_mutex_unlock(&s->lock);
}

void link_arrived(struct link *l, size_t n)
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

/* Whether nobody is there any more to send the rest of a head. libmicrohttpd waits for news of the
 * socket, and misses an end that was there before it began to wait: a door that is full of such
 * connections would open for a few of them at each time limit only. */
static bool link_is_left(const struct link *l, int64_t now_ns)
{
    char byte;
    return l->phase == LINK_HEAD && now_ns - l->since_ns > LEFT_NS &&
           recv(l->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* Their sockets are shut, not closed: the door's
 * thread sees the end and does the rest. */
void links_tick(void *ctx)
{
    struct http *h = ctx;
    struct sockets *s = h->sockets;
    int64_t now_ns = clock_ns();
    pthread_mutex_lock(&s->lock);
    for (const struct link *l = s->links; l; l = l->next)
        if (link_trickles(l, now_ns) || link_is_left(l, now_ns))
            (void)shutdown(l->fd, SHUT_RDWR);
    pthread_mutex_unlock(&s->lock);
}
