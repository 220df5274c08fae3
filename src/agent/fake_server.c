/* fake_server.c - a server for the tests of agents (fake_server.h). */
#include "fake_server.h"

#include "base/env.h"
#include "test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

void fake_return(struct fake *f)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)f->port)};
    socklen_t n = sizeof at;
    int on = 1;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    f->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(f->fd >= 0);
    (void)setsockopt(f->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    CHECK(bind(f->fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(f->fd, 16) == 0);
    CHECK(getsockname(f->fd, (struct sockaddr *)&at, &n) == 0);
    f->port = ntohs(at.sin_port);
}

void fake_open(struct fake *f, int port)
{
    *f = (struct fake){.port = port, .lease_s = 60, .heartbeat_s = 5};
    f->orders = json_array();
    f->events = json_array();
    f->hellos = json_array();
    f->answers = json_array();
    f->sequences = json_object();
    f->verdicts = json_object();
    f->fenced = json_array();
    for (int i = 0; i < FAKE_LINKS; i++)
        f->links[i].fd = -1;
    fake_return(f);
}

static void drop(struct fake_link *l)
{
    if (l->fd >= 0) {
        (void)close(l->fd);
        str_release(&l->in);
    }
    *l = (struct fake_link){.fd = -1};
}

void fake_vanish(struct fake *f)
{
    for (int i = 0; i < FAKE_LINKS; i++)
        drop(&f->links[i]);
    if (f->fd >= 0)
        (void)close(f->fd);
    f->fd = -1;
}

void fake_close(struct fake *f)
{
    fake_vanish(f);
    json_t *all[] = {f->orders,    f->events,   f->hellos, f->answers,
                     f->sequences, f->verdicts, f->fenced};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        json_decref(all[i]);
}

void fake_forget_sessions(struct fake *f)
{
    f->session[0] = 0;
    json_array_clear(f->orders);
    for (int i = 0; i < FAKE_LINKS; i++)
        drop(&f->links[i]);
}

/* ---- replies ---- */

static void reply(struct fake_link *l, int status, json_t *body)
{
    char head[160], *text = json_text(body, false);
    int n = snprintf(
        head, sizeof head,
        "HTTP/1.1 %d x\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", status,
        strlen(text));
    if (send(l->fd, head, (size_t)n, MSG_NOSIGNAL) != n ||
        send(l->fd, text, strlen(text), MSG_NOSIGNAL) != (ssize_t)strlen(text))
        drop(l);
    mem_free(text);
    json_decref(body);
}

static void refuse(struct fake_link *l, int status, const char *detail)
{
    json_t *body = json_object();
    json_put_str(body, "detail", detail);
    reply(l, status, body);
}

/* ---- what agents say ---- */

static json_t *verdicts_of(const struct fake *f, const json_t *runs)
{
    json_t *list = json_array(), *one;
    size_t i;
    json_array_foreach((json_t *)(uintptr_t)runs, i, one)
    {
        const char *id = json_get_str(one, "run_id", "");
        json_t *v = json_object();
        json_put_str(v, "run_id", id);
        json_put_i64(v, "epoch", json_get_i64(one, "epoch", 0));
        json_put_str(v, "action", json_get_str(f->verdicts, id, "keep"));
        json_put_i64(v, "sequence", json_get_i64(f->sequences, id, 0));
        (void)json_array_append_new(list, v);
    }
    return list;
}

static void connect_request(struct fake *f, struct fake_link *l, const json_t *hello)
{
    (void)json_array_append(f->hellos, (json_t *)(uintptr_t)hello);
    if (f->refuse) {
        refuse(l, f->refuse, "not you");
        return;
    }
    json_array_clear(f->orders); /* they were of the session before */
    f->number = 0;
    (void)snprintf(f->session, sizeof f->session, "s%d", ++f->sessions);
    json_t *w = json_object();
    json_put_str(w, "session", f->session);
    json_put_str(w, "worker_id", "w");
    json_put_str(w, "name", json_get_str(hello, "name", ""));
    json_put_f64(w, "heartbeat_s", f->heartbeat_s);
    json_put_f64(w, "lease_s", f->lease_s);
    json_put(w, "runs", verdicts_of(f, json_object_get(hello, "runs")));
    reply(l, 200, w);
}

static void apply(struct fake *f, const json_t *events)
{
    size_t i;
    json_t *ev;
    CHECK(json_array_size(events) <= 512);
    json_array_foreach((json_t *)(uintptr_t)events, i, ev)
    {
        const char *id = json_get_str(ev, "run_id", "");
        int64_t sequence = json_get_i64(ev, "sequence", 0);
        CHECK(!fake_event(f, id, "ended") || sequence <= json_get_i64(f->sequences, id, 0));
        if (sequence != json_get_i64(f->sequences, id, 0) + 1)
            continue;
        json_put_i64(f->sequences, id, sequence);
        (void)json_array_append(f->events, ev);
    }
}

static void report_request(struct fake *f, struct fake_link *l, const json_t *report)
{
    if (!*f->session || strcmp(json_get_str(report, "session", ""), f->session) != 0) {
        refuse(l, 410, "the session is not known");
        return;
    }
    f->reports++;
    f->heartbeats += json_get_bool(report, "heartbeat", false);
    apply(f, json_object_get(report, "events"));
    (void)json_array_extend(f->answers, json_object_get(report, "answers"));
    if (f->lose_replies > 0) {
        f->lose_replies--;
        drop(l);
        return;
    }
    json_t *r = json_object();
    json_put(r, "sequences", json_copy(f->sequences));
    json_put(r, "forget", json_copy(f->fenced));
    reply(l, 200, r);
}

/* Orders after `after`; parks the link where there are none. */
static void answer_poll(struct fake *f, struct fake_link *l)
{
    json_t *list = json_array(), *one, *r = json_object();
    size_t i;
    json_array_foreach(f->orders, i, one)
    {
        if (json_get_i64(one, "number", 0) > l->after)
            (void)json_array_append(list, one);
    }
    l->parked = json_array_size(list) == 0 && clock_ns() < l->until_ns;
    json_put(r, "orders", list);
    if (l->parked)
        json_decref(r);
    else
        reply(l, 200, r);
}

static const char *query(const char *path, const char *name)
{
    const char *at = strstr(path, name);
    return at ? at + strlen(name) : "";
}

static void orders_request(struct fake *f, struct fake_link *l, const char *path)
{
    if (!*f->session || strncmp(query(path, "session="), f->session, strlen(f->session)) != 0) {
        refuse(l, 410, "the session is not known");
        return;
    }
    l->after = strtoll(query(path, "after="), NULL, 10);
    l->until_ns = clock_ns() + strtoll(query(path, "wait="), NULL, 10) * 1000000000;
    answer_poll(f, l);
}

static void request(struct fake *f, struct fake_link *l, const char *path, const char *body)
{
    struct err ignored;
    json_t *doc = NULL;
    if (*body)
        CHECK(json_parse(body, strlen(body), "body", &doc, &ignored) == ST_OK);
    if (strncmp(path, "/api/agent/connect", 18) == 0) {
        connect_request(f, l, doc);
    } else if (strncmp(path, "/api/agent/report", 17) == 0) {
        report_request(f, l, doc);
    } else if (strncmp(path, "/api/agent/orders", 17) == 0) {
        orders_request(f, l, path);
    } else {
        reply(l, 200, json_object());
        if (strncmp(path, "/api/agent/leave", 16) != 0)
            return;
        f->left++;
        for (int i = 0; i < FAKE_LINKS; i++) /* its long poll ends */
            if (f->links[i].parked)
                drop(&f->links[i]);
    }
    json_decref(doc);
}

/* ---- the wire ---- */

/* One whole request out of what has come, if there is one. */
static bool take_request(struct fake *f, struct fake_link *l)
{
    char method[8], path[512];
    char *end = strstr(l->in.data, "\r\n\r\n");
    if (!end)
        return false;
    size_t head = (size_t)(end - l->in.data) + 4, body = 0;
    for (char *line = l->in.data; line < end; line = strstr(line, "\r\n") + 2)
        if (strncasecmp(line, "Content-Length:", 15) == 0)
            body = strtoull(line + 15, NULL, 10);
    if (strstr(l->in.data, "Expect: 100-continue") && l->in.n == head)
        (void)!send(l->fd, "HTTP/1.1 100 Continue\r\n\r\n", 25, MSG_NOSIGNAL);
    if (l->in.n < head + body)
        return false;
    CHECK(sscanf(l->in.data, "%7s %511s", method, path) == 2);
    char *text = mem_alloc(body + 1);
    memcpy(text, l->in.data + head, body);
    memmove(l->in.data, l->in.data + head + body, l->in.n - head - body + 1);
    l->in.n -= head + body;
    request(f, l, path, text);
    mem_free(text);
    return l->fd >= 0;
}

static void receive(struct fake *f, struct fake_link *l)
{
    char buf[65536];
    ssize_t n = recv(l->fd, buf, sizeof buf, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0) {
        drop(l);
        return;
    }
    str_add_n(&l->in, buf, (size_t)n);
    while (take_request(f, l))
        ;
}

static void accept_link(struct fake *f)
{
    int fd = accept(f->fd, NULL, NULL);
    for (int i = 0; fd >= 0 && i < FAKE_LINKS; i++)
        if (f->links[i].fd < 0) {
            f->links[i] = (struct fake_link){.fd = fd};
            str_init(&f->links[i].in);
            return;
        }
    if (fd >= 0)
        (void)close(fd);
}

static void serve_once(struct fake *f, int ms)
{
    struct pollfd p[FAKE_LINKS + 1];
    for (int i = 0; i < FAKE_LINKS; i++)
        p[i] = (struct pollfd){.fd = f->links[i].fd, .events = POLLIN};
    p[FAKE_LINKS] = (struct pollfd){.fd = f->fd, .events = POLLIN};
    if (poll(p, FAKE_LINKS + 1, ms) > 0) {
        for (int i = 0; i < FAKE_LINKS; i++)
            if (p[i].revents && f->links[i].fd == p[i].fd)
                receive(f, &f->links[i]);
        if (p[FAKE_LINKS].revents)
            accept_link(f);
    }
    for (int i = 0; i < FAKE_LINKS; i++)
        if (f->links[i].parked)
            answer_poll(f, &f->links[i]);
}

void fake_serve(struct fake *f, int ms)
{
    for (int64_t until = clock_ns() + (int64_t)ms * 1000000; clock_ns() < until;)
        serve_once(f, 5);
}

bool fake_until(
    struct fake *f, bool (*done)(const struct fake *f, const char *id), const char *id, int ms)
{
    int64_t until = clock_ns() + (int64_t)ms * 1000000;
    while (!done(f, id)) {
        if (clock_ns() > until)
            return false;
        serve_once(f, 5);
    }
    return true;
}

void fake_order(struct fake *f, const char *type, const char *run, int64_t epoch, json_t *body)
{
    json_t *o = json_object();
    json_put_i64(o, "number", ++f->number);
    json_put_str(o, "type", type);
    json_put_str(o, "run_id", run);
    json_put_i64(o, "epoch", epoch);
    json_put_str(o, "request", "q");
    json_put(o, "body", body ? body : json_null());
    (void)json_array_append_new(f->orders, o);
}

/* ---- what arrived ---- */

const json_t *fake_event(const struct fake *f, const char *run, const char *type)
{
    for (size_t i = json_array_size(f->events); i-- > 0;) {
        const json_t *ev = json_array_get(f->events, i);
        if (strcmp(json_get_str(ev, "run_id", ""), run) == 0 &&
            strcmp(json_get_str(ev, "type", ""), type) == 0)
            return json_object_get(ev, "payload");
    }
    return NULL;
}

int fake_count(const struct fake *f, const char *run, const char *type)
{
    int n = 0;
    for (size_t i = 0; i < json_array_size(f->events); i++) {
        const json_t *ev = json_array_get(f->events, i);
        n += strcmp(json_get_str(ev, "run_id", ""), run) == 0 &&
             strcmp(json_get_str(ev, "type", ""), type) == 0;
    }
    return n;
}

bool fake_ended(const struct fake *f, const char *run)
{
    return fake_event(f, run, "ended") != NULL;
}

bool fake_started(const struct fake *f, const char *run)
{
    return fake_event(f, run, "started") != NULL;
}

bool fake_logged(const struct fake *f, const char *run)
{
    return fake_event(f, run, "log") != NULL;
}
