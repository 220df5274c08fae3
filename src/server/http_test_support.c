/* http_test_support.c - see http_test_support.h. */
#include "server/http_test_support.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

void door_open(struct door *d, const struct route *rows, size_t n)
{
    struct err e = {0};
    struct http_config *c = &d->config;
    c->host = "127.0.0.1";
    c->routes = rows;
    c->routes_n = n;
    c->body_max_bytes = c->body_max_bytes ? c->body_max_bytes : 100000;
    c->upload_max_bytes = c->upload_max_bytes ? c->upload_max_bytes : 1000000;
    c->connections_max = c->connections_max ? c->connections_max : 1000;
    c->per_address_max = 100;
    if (auth_open(NULL, NULL, &d->server.auth, &e) != ST_OK ||
        http_open(&d->server, c, &d->h, &e) != ST_OK || http_start(d->h, &e) != ST_OK) {
        (void)fprintf(stderr, "%s\n", e.text);
        abort();
    }
    d->server.http = d->h;
}

void door_close(struct door *d)
{
    http_close(d->h);
    auth_close(d->server.auth);
}

int door_connect(const struct door *d)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)http_port(d->h))};
    struct timeval limit = {.tv_sec = 20};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&a, sizeof a) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0)
        abort();
    return fd;
}

void door_send(int fd, const char *text)
{
    for (size_t n = strlen(text); n > 0;) {
        ssize_t sent = send(fd, text, n, MSG_NOSIGNAL);
        if (sent <= 0)
            return;
        text += sent, n -= (size_t)sent;
    }
}

const char *answer_header(const struct answer *a, const char *name, char buf[512])
{
    size_t n = strlen(name);
    for (const char *line = a->head; *line;) {
        size_t len = strcspn(line, "\r\n");
        if (strncasecmp(line, name, n) == 0 && line[n] == ':') {
            (void)snprintf(buf, 512, "%.*s", (int)(len - n - 2), line + n + 2);
            return buf;
        }
        line += len + strspn(line + len, "\r\n");
    }
    return NULL;
}

static bool read_head(int fd, struct answer *a)
{
    size_t n = 0;
    while (n + 1 < sizeof a->head) {
        if (recv(fd, a->head + n, 1, 0) != 1)
            return false;
        a->head[++n] = '\0';
        if (n >= 4 && strcmp(a->head + n - 4, "\r\n\r\n") == 0)
            return true;
    }
    return false;
}

static void read_body(int fd, struct answer *a, size_t want)
{
    char buf[4096];
    while (a->body_bytes < want) {
        size_t most = want - a->body_bytes < sizeof buf ? want - a->body_bytes : sizeof buf;
        ssize_t got = recv(fd, buf, most, 0);
        if (got <= 0)
            break;
        for (ssize_t i = 0; i < got; i++, a->body_bytes++)
            if (a->body_bytes + 1 < sizeof a->body)
                a->body[a->body_bytes] = buf[i];
    }
}

int door_read(int fd, struct answer *a, bool head_only)
{
    char text[512];
    int64_t n = 0;
    *a = (struct answer){0};
    if (!read_head(fd, a))
        return 0;
    a->status = atoi(a->head + 9);
    if (answer_header(a, "Content-Length", text))
        (void)str_to_i64(text, &n);
    else if (a->status != 204)
        n = head_only ? 0 : 1 << 30;
    read_body(fd, a, head_only ? 0 : (size_t)n);
    return a->status;
}

int door_ask(
    const struct door *d, const char *method, const char *target, const char *more,
    const char *body, struct answer *a)
{
    struct str text;
    struct answer own;
    int fd = door_connect(d);
    str_init(&text);
    str_printf(&text, "%s %s HTTP/1.1\r\n", method, target);
    if (!more || !strstr(more, "Host:"))
        str_printf(&text, "Host: 127.0.0.1:%d\r\n", http_port(d->h));
    str_add(&text, more ? more : "");
    if (body)
        str_printf(&text, "Content-Length: %zu\r\n", strlen(body));
    str_add(&text, "Connection: close\r\n\r\n");
    str_add(&text, body ? body : "");
    door_send(fd, text.data);
    str_release(&text);
    int status = door_read(fd, a ? a : &own, str_eq(method, "HEAD"));
    (void)close(fd);
    return status;
}

const char *door_owner(const struct door *d)
{
    static char line[128];
    (void)snprintf(line, sizeof line, "X-Snug-Token: %s\r\n", auth_owner_token(d->server.auth));
    return line;
}
