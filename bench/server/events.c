/* events.c - a run's events to many clients of one server: how late they are. Run by hand.
 *
 *     events [CLIENTS [STALLED [EVENTS_PER_SECOND [SECONDS]]]]      1000 0 20 10
 *
 * Needs a server of this SNUG_HOME (snug start). Plays an agent with one run; its events carry the
 * time they were posted, and each of CLIENTS connections (server-sent events) is timed from there
 * to the byte that arrives. STALLED more connect and never read.
 */
#include "base/client.h"
#include "base/env.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/version.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct reader {
    int fd;
    char tail[64]; /* the end of what was read, where a number may be cut */
    size_t tail_n;
};

struct bench {
    int port;
    char run_id[40], session[64];
    int64_t epoch, sequence;
    struct client *client;
    struct reader *readers;
    int n, stalled, epoll;
    atomic_llong seen;
    atomic_bool stop;
    double *late_ms;
    int64_t late_n, late_cap;
};

static void die(const char *what, const struct err *e)
{
    (void)fprintf(stderr, "events: %s%s%s\n", what, e ? ": " : "", e ? e->text : "");
    exit(1);
}

static json_t *post(struct bench *b, const char *path, json_t *body)
{
    struct err e = {0};
    json_t *reply = NULL;
    if (client_post(b->client, path, body, 30, &reply, &e) != ST_OK)
        die(path, &e);
    json_decref(body);
    return reply;
}

/* ---- the agent ---- */

static void connect_agent(struct bench *b)
{
    json_t *reply = post(
        b, "/api/agent/connect",
        json_pack(
            "{s:i,s:s,s:s,s:s,s:s,s:s,s:b,s:[{s:s,s:s,s:s,s:s,s:i,s:i}],s:[]}", "protocol", 1,
            "version", SNUG_VERSION, "commit", snug_commit(), "name", "bench", "instance", "bench",
            "hostname", "bench", "can_cap", 1, "devices", "device", "cpu", "kind", "cpu", "name",
            "cpu", "uuid", "", "total_bytes", 0, "free_bytes", 0, "runs"));
    (void)snprintf(b->session, sizeof b->session, "%s", json_get_str(reply, "session", ""));
    json_decref(reply);
}

static void start_run(struct bench *b)
{
    struct err e = {0};
    json_t *orders = NULL;
    json_t *graph = json_pack(
        "{s:[{s:s,s:s},{s:s,s:s,s:{s:{s:s}}}],s:[{s:s,s:s,s:s,s:s,s:s,s:s}]}", "nodes", "id", "s",
        "type", "Start", "id", "p", "type", "TensorCreate", "data", "params", "shape", "2", "edges",
        "id", "e", "source", "s", "sourceHandle", "trigger", "target", "p", "targetHandle", "",
        "type", "trigger");
    json_t *reply = post(
        b, "/api/runs",
        json_pack(
            "{s:o,s:s,s:{s:s,s:{s:s}}}", "graph", graph, "name", "bench", "options", "device",
            "cpu", "target", "worker", "bench"));
    (void)snprintf(b->run_id, sizeof b->run_id, "%s", json_get_str(reply, "run_id", ""));
    json_decref(reply);
    struct client_path p = client_path("/api/agent/orders");
    client_query(&p, "session", b->session);
    client_query_i64(&p, "after", 0);
    client_query_i64(&p, "wait", 10);
    if (client_get(b->client, p.text, 30, &orders, &e) != ST_OK)
        die("orders", &e);
    const json_t *order = json_array_get(json_object_get(orders, "orders"), 0);
    b->epoch = json_get_i64(order, "epoch", 1);
    json_decref(orders);
}

static void report(struct bench *b, const char *type, json_t *payload)
{
    json_t *event = json_pack(
        "{s:s,s:I,s:I,s:s,s:o,s:I}", "run_id", b->run_id, "epoch", (json_int_t)b->epoch, "sequence",
        (json_int_t)++b->sequence, "type", type, "payload", payload, "time_us",
        (json_int_t)clock_wall_us());
    json_decref(post(
        b, "/api/agent/report",
        json_pack(
            "{s:s,s:[o],s:[],s:n,s:n}", "session", b->session, "events", event, "answers",
            "devices", "caches")));
}

/* ---- the clients ---- */

static int open_stream(struct bench *b)
{
    char text[512];
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)b->port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)snprintf(
        text, sizeof text, "GET /api/runs/%s/events/stream HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b->run_id);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&a, sizeof a) != 0 ||
        send(fd, text, strlen(text), MSG_NOSIGNAL) < 0)
        die("could not connect", NULL);
    return fd;
}

static void note(struct bench *b, int64_t sent_ns)
{
    if (b->late_n < b->late_cap)
        b->late_ms[b->late_n++] = (double)(clock_ns() - sent_ns) / 1e6;
    atomic_fetch_add(&b->seen, 1);
}

/* Finds "sent":N in what came, also where two reads cut it. */
static void reader_read(struct bench *b, struct reader *r)
{
    char buf[65536 + 64];
    memcpy(buf, r->tail, r->tail_n);
    ssize_t got = recv(r->fd, buf + r->tail_n, 65536, MSG_DONTWAIT);
    if (got <= 0)
        return;
    size_t n = r->tail_n + (size_t)got;
    buf[n] = '\0';
    char *at = buf, *mark;
    while ((mark = strstr(at, "\"sent\":"))) {
        char *end;
        long long ns = strtoll(mark + 7, &end, 10);
        if (*end == '\0')
            break;
        note(b, ns);
        at = end;
    }
    size_t left = (size_t)(buf + n - (mark ? mark : at));
    if (!mark && left > 10)
        left = 10;
    r->tail_n = left < sizeof r->tail ? left : sizeof r->tail;
    memcpy(r->tail, buf + n - r->tail_n, r->tail_n);
}

static void *reading(void *ctx)
{
    struct bench *b = ctx;
    struct epoll_event events[256];
    while (!atomic_load(&b->stop)) {
        int n = epoll_wait(b->epoll, events, 256, 100);
        for (int i = 0; i < n; i++)
            reader_read(b, events[i].data.ptr);
    }
    return NULL;
}

static void open_clients(struct bench *b)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
    b->epoll = epoll_create1(EPOLL_CLOEXEC);
    b->readers = mem_alloc((size_t)b->n * sizeof *b->readers);
    for (int i = 0; i < b->n; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &b->readers[i]};
        b->readers[i].fd = open_stream(b);
        (void)epoll_ctl(b->epoll, EPOLL_CTL_ADD, b->readers[i].fd, &event);
    }
    for (int i = 0; i < b->stalled; i++)
        (void)open_stream(b);
}

/* ---- the whole ---- */

static int by_size(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static double server_cpu_s(int pid)
{
    char path[64], text[1024] = "";
    long long user = 0, system = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "r");
    if (!f)
        return 0;
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = '\0';
    (void)fclose(f);
    const char *at = strrchr(text, ')');
    for (int i = 0; at && i < 12; i++)
        at = strchr(at + 1, ' ');
    if (at)
        (void)sscanf(at, "%lld %lld", &user, &system);
    return (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

static void publish(struct bench *b, int rate, int seconds)
{
    int64_t next_ns = clock_ns();
    for (int i = 0; i < rate * seconds; i++) {
        struct timespec until = {.tv_sec = next_ns / 1000000000, .tv_nsec = next_ns % 1000000000};
        (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
        report(
            b, "node_status",
            json_pack(
                "{s:s,s:s,s:I,s:s}", "node_id", "p", "status", "running", "sent",
                (json_int_t)clock_ns(), "text",
                "an epoch line of about as many bytes as such lines have"));
        next_ns += 1000000000 / rate;
    }
}

int main(int argc, char **argv)
{
    struct bench b = {
        .n = argc > 1 ? atoi(argv[1]) : 1000, .stalled = argc > 2 ? atoi(argv[2]) : 0};
    int rate = argc > 3 ? atoi(argv[3]) : 20, seconds = argc > 4 ? atoi(argv[4]) : 10;
    struct err e = {0};
    pthread_t thread;
    char card_path[1024];
    json_t *card = NULL;
    (void)path_join(snug_home(), "server.json", card_path, sizeof card_path);
    if (json_read_file(card_path, 1 << 16, &card, &e) != ST_OK ||
        client_open(&(struct client_options){0}, &b.client, &e) != ST_OK)
        die("no server", &e);
    b.port = (int)json_get_i64(card, "port", 0);
    int pid = (int)json_get_i64(card, "pid", 0);
    connect_agent(&b);
    start_run(&b);
    report(&b, "started", json_pack("{s:i}", "pid", 1));
    b.late_cap = (int64_t)b.n * rate * (seconds + 1);
    b.late_ms = mem_alloc((size_t)b.late_cap * sizeof *b.late_ms);
    open_clients(&b);
    if (pthread_create(&thread, NULL, reading, &b) != 0)
        die("no thread", NULL);
    (void)sleep(2);
    double cpu = server_cpu_s(pid);
    int64_t began_ns = clock_ns(), want = (int64_t)b.n * rate * seconds;
    publish(&b, rate, seconds);
    for (int i = 0; i < 100 && atomic_load(&b.seen) < want; i++)
        (void)usleep(50000);
    double took = (double)(clock_ns() - began_ns) / 1e9;
    cpu = server_cpu_s(pid) - cpu;
    atomic_store(&b.stop, true);
    pthread_join(thread, NULL);
    report(
        &b, "ended",
        json_pack(
            "{s:s,s:s,s:s,s:i}", "status", "succeeded", "cause", "done", "error", "", "exit_code",
            0));
    qsort(b.late_ms, (size_t)b.late_n, sizeof *b.late_ms, by_size);
    (void)printf(
        "%d clients, %d that do not read, %d events/s for %d s: %lld of %lld arrived; late p50 "
        "%.1f ms, p99 "
        "%.1f ms, worst %.1f ms; server %.0f %% of a core, %.1f us an event\n",
        b.n, b.stalled, rate, seconds, (long long)atomic_load(&b.seen), (long long)want,
        b.late_n ? b.late_ms[b.late_n / 2] : 0, b.late_n ? b.late_ms[b.late_n * 99 / 100] : 0,
        b.late_n ? b.late_ms[b.late_n - 1] : 0, 100 * cpu / took,
        cpu * 1e6 / (double)(want ? want : 1));
    return 0;
}
