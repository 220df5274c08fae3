/* ws_live_test.c - WebSockets over real connections: door, core and database, with an agent that
 * only talks. */
#include "base/env.h"
#include "base/mem.h"
#include "server/auth.h"
#include "server/core_test_support.h"
#include "server/routes.h"
#include "server/ws.h"
#include "test.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { MESSAGE_MAX = 100000 };

static const struct route rows[] = {
    {METHOD_GET, "/ws/execution", route_ws_execution, ACCESS_UPGRADE, BODY_NONE, "the sockets"}};

/* Everything between a browser and an agent. */
struct scene {
    struct stage s;
    struct server server;
    struct http_config door;
    struct server_config config;
    struct puppet agent;
};

static void on_changed(void *ctx, const char *kind, const char *id)
{
    struct scene *x = ctx;
    if (x->server.http)
        http_wake(x->server.http, http_topic(kind, id));
}

static void tick(struct scene *x)
{
    x->s.now = (struct instant){clock_ns(), clock_wall_us()};
    (void)core_tick(x->s.core, x->s.now);
}

static void scene_open(struct scene *x)
{
    memset(x, 0, sizeof *x);
    stage_open(&x->s, 0);
    core_close(x->s.core);
    x->s.now = (struct instant){clock_ns(), clock_wall_us()};
    x->s.hooks = (struct core_hooks){.ctx = x, .changed = on_changed};
    CHECK(core_open(x->s.store, &x->s.config, &x->s.hooks, x->s.now, &x->s.core, &x->s.e) == ST_OK);
    server_config_defaults(&x->config, test_dir());
    x->door = (struct http_config){.host = "127.0.0.1", .routes = rows, .routes_n = 1};
    x->door.body_max_bytes = x->door.upload_max_bytes = 100000;
    x->door.connections_max = x->door.per_address_max = 1000;
    x->server.core = x->s.core;
    x->server.store = x->s.store;
    x->server.config = &x->config;
    CHECK(auth_open(x->s.store, NULL, &x->server.auth, &x->s.e) == ST_OK);
    CHECK(http_open(&x->server, &x->door, &x->server.http, &x->s.e) == ST_OK);
    CHECK(http_start(x->server.http, &x->s.e) == ST_OK);
    CHECK(ws_open(&x->server, MESSAGE_MAX, &x->server.ws, &x->s.e) == ST_OK);
    puppet_open(&x->agent, &x->s, "local", 0, 24);
    CHECK(puppet_connect(&x->agent));
}

static void scene_close(struct scene *x)
{
    struct http *h = x->server.http;
    ws_close(x->server.ws);
    x->server.http = NULL; /* the core's last words go nowhere */
    http_close(h);
    auth_close(x->server.auth);
    puppet_close(&x->agent);
    stage_close(&x->s);
    server_config_release(&x->config);
}

/* ---- a client ---- */

static int connect_to(const struct scene *x)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)http_port(x->server.http))};
    struct timeval limit = {.tv_sec = 20};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && connect(fd, (const struct sockaddr *)&a, sizeof a) == 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    return fd;
}

#define UPGRADE "Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"

/* Asks for a WebSocket; the answer's head lies in `head`. Returns its status. */
static int
shake_hands(const struct scene *x, const char *target, const char *more, int *fd, char head[4096])
{
    char text[2048];
    size_t n = 0;
    int status = 0;
    *fd = connect_to(x);
    (void)snprintf(
        text, sizeof text,
        "GET %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n%s\r\n",
        target, http_port(x->server.http), more);
    (void)send(*fd, text, strlen(text), MSG_NOSIGNAL);
    while (n < 4095 && recv(*fd, head + n, 1, 0) == 1) {
        head[++n] = 0;
        if (str_ends(head, "\r\n\r\n"))
            break;
    }
    (void)sscanf(head, "HTTP/1.1 %d", &status);
    return status;
}

static void target_of(const struct scene *x, char out[256])
{
    (void)snprintf(out, 256, "/ws/execution?token=%s", auth_page_token(x->server.auth));
}

static int client(const struct scene *x)
{
    char target[256], head[4096];
    int fd;
    target_of(x, target);
    CHECK_EQ(shake_hands(x, target, UPGRADE, &fd, head), 101);
    CHECK(strstr(head, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    return fd;
}

static void say_n(int fd, const char *text, size_t n)
{
    uint8_t head[14] = {0x81, 0x80};
    size_t at = 2;
    head[1] |= (uint8_t)(n < 126 ? n : n < 65536 ? 126 : 127);
    for (int i = n < 126 ? 0 : n < 65536 ? 2 : 8; i > 0; i--)
        head[at++] = (uint8_t)((uint64_t)n >> (8 * (i - 1)));
    at += 4; /* a mask of zeros changes nothing */
    (void)send(fd, head, at, MSG_NOSIGNAL);
    for (size_t sent = 0; sent < n;) {
        ssize_t some = send(fd, text + sent, n - sent, MSG_NOSIGNAL);
        if (some <= 0)
            break;
        sent += (size_t)some;
    }
}

static void say(int fd, const char *text)
{
    say_n(fd, text, strlen(text));
}

static bool take(int fd, void *out, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t got = recv(fd, (char *)out + at, n - at, 0);
        if (got <= 0)
            return false;
        at += (size_t)got;
    }
    return true;
}

/* The next frame's payload, NUL after it; its opcode, 0 when the connection ended. */
static int hear(int fd, char *out, size_t cap)
{
    uint8_t h[10];
    do {
        if (!take(fd, h, 2))
            return 0;
        uint64_t n = h[1] & 0x7f;
        size_t more = n == 126 ? 2 : n == 127 ? 8 : 0;
        if (!take(fd, h + 2, more))
            return 0;
        if (more)
            n = 0;
        for (size_t i = 0; i < more; i++)
            n = n << 8 | h[2 + i];
        CHECK(n < cap);
        if (!take(fd, out, (size_t)n))
            return 0;
        out[n] = 0;
    } while ((h[0] & 0xf) == 9);
    return h[0] & 0xf;
}

/* The close code that comes next, past other frames. */
static int closed(int fd)
{
    static char text[1 << 20];
    int op;
    while ((op = hear(fd, text, sizeof text)) == 1) {
    }
    return op == 8 ? (uint8_t)text[0] << 8 | (uint8_t)text[1] : 0;
}

static const char *next(int fd)
{
    static char text[1 << 20];
    CHECK_EQ(hear(fd, text, sizeof text), 1);
    return text;
}

#define GRAPH                                                                                      \
    "\"nodes\":[{\"id\":\"s\",\"type\":\"Start\",\"data\":{}},{\"id\":\"t\",\"type\":"             \
    "\"TensorCreate\",\"data\":{}}],\"edges\":[{\"id\":\"e\",\"source\":\"s\",\"target\":\"t\","   \
    "\"sourceHandle\":\"trigger\",\"targetHandle\":\"\",\"type\":\"trigger\"}]"
#define EXECUTE_142                                                                                \
    "{\"action\":\"execute\"," GRAPH ",\"presets\":[],\"run_id\":\"mine\",\"graph_id\":\"tab\","   \
    "\"device\":\"cpu\"}"
#define EXECUTE_VIEW                                                                               \
    "{\"action\":\"execute\"," GRAPH ",\"presets\":[],\"subgraphs\":[],\"graph_id\":\"tab\"}"

/* The newest run's id. */
static const char *newest(struct scene *x)
{
    static char id[33];
    json_t *page = NULL;
    struct core_filter f = {.limit = 1};
    id[0] = 0;
    CHECK(core_runs(x->s.core, &f, &page, &x->s.e) == ST_OK);
    (void)snprintf(
        id, sizeof id, "%s",
        json_get_str(json_array_get(json_object_get(page, "runs"), 0), "id", ""));
    json_decref(page);
    return id;
}

static const char *status_of(struct scene *x, const char *run)
{
    static char status[16];
    CHECK(core_run_status(x->s.core, run, status, &x->s.e) == ST_OK);
    return status;
}

/* Ticks until the run is ordered from the agent and started. */
static int64_t start(struct scene *x, const char *before, char run[33])
{
    for (int i = 0; i < 2000; i++) {
        tick(x);
        (void)snprintf(run, 33, "%s", newest(x));
        if (*run && strcmp(run, before) != 0) {
            int64_t epoch = puppet_start(&x->agent, run);
            if (epoch)
                return epoch;
        }
        (void)usleep(5000);
    }
    CHECK(!"the run was not ordered");
    return 0;
}

static void until_status(struct scene *x, const char *run, const char *status)
{
    for (int i = 0; i < 2000 && strcmp(status_of(x, run), status) != 0; i++)
        (void)usleep(5000);
    CHECK_STR(status_of(x, run), status);
}

/* ---- tests ---- */

TEST(
    who_may, "H1 promise-P15: a foreign host or origin is closed with 4003, a missing or wrong "
             "token with 4401")
{
    struct scene x;
    char target[256], head[4096], owner[256];
    int fd;
    scene_open(&x);
    CHECK_EQ(shake_hands(&x, "/ws/execution?token=wrong", UPGRADE, &fd, head), 101);
    CHECK_EQ(closed(fd), 4401);
    (void)close(fd);
    CHECK_EQ(shake_hands(&x, "/ws/execution", UPGRADE, &fd, head), 101);
    CHECK_EQ(closed(fd), 4401);
    (void)close(fd);
    target_of(&x, target);
    CHECK_EQ(shake_hands(&x, target, UPGRADE "Origin: http://evil.example\r\n", &fd, head), 101);
    CHECK_EQ(closed(fd), 4003);
    (void)close(fd);
    (void)snprintf(
        owner, sizeof owner, UPGRADE "X-CodefyUI-Token: %s\r\n", auth_owner_token(x.server.auth));
    CHECK_EQ(shake_hands(&x, "/ws/execution", owner, &fd, head), 101); /* the header serves too */
    say(fd, "{\"action\":\"stop\"}");
    CHECK_STR(next(fd), "{\"type\":\"execution_stopped\"}");
    (void)close(fd);
    CHECK_EQ(shake_hands(&x, target, "", &fd, head), 426);
    (void)close(fd);
    scene_close(&x);
}

TEST(
    a_run_in_the_old_form,
    "R1 promise-P15: a canvas run of 1.4.2 over a real connection, stopped in the middle")
{
    struct scene x;
    char run[33];
    scene_open(&x);
    int fd = client(&x);
    say(fd, EXECUTE_142);
    int64_t epoch = start(&x, "", run);
    CHECK(puppet_event(&x.agent, run, epoch, 2, "execution_start", "{}"));
    CHECK_STR(next(fd), "{\"type\":\"execution_start\",\"run_id\":\"mine\"}");
    CHECK(
        puppet_event(&x.agent, run, epoch, 3, "node_status", "{'node_id':'t','status':'running'}"));
    CHECK_STR(next(fd), "{\"type\":\"node_status\",\"node_id\":\"t\",\"status\":\"running\"}");
    char id[129];
    CHECK_STR(ws_run_id(x.server.ws, "mine", id), run);
    say(fd, "{\"action\":\"stop\"}");
    json_t *stop = NULL;
    for (int i = 0; i < 1000 && !stop; i++, (void)usleep(5000))
        stop = puppet_order(&x.agent, "stop");
    CHECK(stop);
    json_decref(stop);
    CHECK(puppet_event(&x.agent, run, epoch, 4, "execution_stopped", "{'reason':'cancelled'}"));
    CHECK_STR(next(fd), "{\"type\":\"execution_stopped\"}");
    (void)close(fd);
    scene_close(&x);
}

TEST(
    closing_cancels_the_old_form_only,
    "promise-P15: closing cancels a run of 1.4.2 and never one that is only viewed")
{
    struct scene x;
    char old[33], viewed[33];
    scene_open(&x);
    int fd = client(&x);
    say(fd, EXECUTE_142);
    int64_t epoch = start(&x, "", old);
    (void)close(fd);
    json_t *stop = NULL;
    for (int i = 0; i < 1000 && !stop; i++, (void)usleep(5000))
        stop = puppet_order(&x.agent, "stop");
    CHECK(stop);
    json_decref(stop);
    puppet_end(&x.agent, old, epoch, "cancelled");
    fd = client(&x);
    say(fd, EXECUTE_VIEW);
    CHECK(strstr(next(fd), "\"type\":\"attached\""));
    epoch = start(&x, old, viewed);
    (void)close(fd);
    (void)usleep(100000);
    CHECK(!puppet_order(&x.agent, "stop"));
    CHECK_STR(status_of(&x, viewed), "running");
    puppet_end(&x.agent, viewed, epoch, "succeeded");
    until_status(&x, viewed, "succeeded");
    scene_close(&x);
}

static int64_t cursor_of(const char *frame)
{
    const char *at = strstr(frame, "\"cursor\":");
    int64_t cursor = 0;
    (void)sscanf(at ? at : "", "\"cursor\":%ld", &cursor);
    return cursor;
}

TEST_WITHIN(
    two_viewers_one_stalled, 120,
    "promise-P12 promise-P15: viewers read one run without gaps; one that does not read costs the "
    "others nothing")
{
    struct scene x;
    char run[33], attach[128], payload[4200];
    enum { EVENTS = 2000 };
    scene_open(&x);
    int owner = client(&x);
    say(owner, EXECUTE_VIEW);
    CHECK(strstr(next(owner), "\"type\":\"attached\""));
    int64_t epoch = start(&x, "", run);
    int stalled = client(&x), viewer = client(&x);
    (void)snprintf(
        attach, sizeof attach, "{\"action\":\"attach\",\"run_id\":\"%s\",\"cursor\":0}", run);
    say(stalled, attach);
    say(viewer, attach);
    CHECK(strstr(next(viewer), "\"type\":\"attached\""));
    (void)snprintf(
        payload, sizeof payload, "{'node_id':'t','status':'progress','note':'%4000s'}", "x");
    int64_t want = 1;
    for (int i = 0; i < EVENTS; i++) {
        CHECK(puppet_event(&x.agent, run, epoch, 2 + i, "node_status", payload));
        for (; want <= i + 1; want++)
            CHECK_EQ(cursor_of(next(viewer)), want);
    }
    for (want = 1; want <= EVENTS; want++)
        CHECK_EQ(cursor_of(next(owner)), want);
    /* The stalled one reads at last, and has missed nothing. */
    CHECK(strstr(next(stalled), "\"type\":\"attached\""));
    for (want = 1; want <= EVENTS; want++)
        CHECK_EQ(cursor_of(next(stalled)), want);
    /* A third one goes on where another stopped. */
    (void)snprintf(
        attach, sizeof attach, "{\"action\":\"attach\",\"run_id\":\"%s\",\"cursor\":%d}", run,
        EVENTS - 3);
    int late = client(&x);
    say(late, attach);
    CHECK(strstr(next(late), "\"type\":\"attached\""));
    CHECK_EQ(cursor_of(next(late)), EVENTS - 2);
    (void)close(owner);
    (void)close(stalled);
    (void)close(viewer);
    (void)close(late);
    scene_close(&x);
}

TEST(revoked_key, "H2 promise-P15: a key that is revoked is closed with its next message")
{
    struct scene x;
    char token[SECRET_BYTES], target[256], head[4096], id[64];
    json_t *row = NULL;
    int fd;
    scene_open(&x);
    CHECK(auth_key_mint(x.server.auth, "ann", false, token, &row, &x.s.e) == ST_OK);
    (void)snprintf(id, sizeof id, "%s", json_get_str(row, "id", ""));
    json_decref(row);
    (void)snprintf(target, sizeof target, "/ws/execution?token=%s", token);
    CHECK_EQ(shake_hands(&x, target, UPGRADE, &fd, head), 101);
    say(fd, "{\"action\":\"stop\"}");
    CHECK_STR(next(fd), "{\"type\":\"execution_stopped\"}");
    CHECK(auth_key_revoke(x.server.auth, id, &x.s.e) == ST_OK);
    say(fd, "{\"action\":\"stop\"}");
    CHECK_EQ(closed(fd), 4401);
    (void)close(fd);
    scene_close(&x);
}

TEST(
    hostile_frames,
    "H4 promise-P15: what is too large or malformed closes that connection, with its code")
{
    struct scene x;
    scene_open(&x);
    char *big = mem_alloc(MESSAGE_MAX + 2);
    memset(big, 'x', MESSAGE_MAX + 1);
    int fd = client(&x), other = client(&x);
    say_n(fd, big, MESSAGE_MAX + 1);
    CHECK_EQ(closed(fd), 1009);
    (void)close(fd);
    fd = client(&x);
    (void)send(fd, "\x81\x02{}", 4, MSG_NOSIGNAL); /* no mask */
    CHECK_EQ(closed(fd), 1002);
    (void)close(fd);
    say(other, "{\"action\":\"stop\"}");
    CHECK_STR(next(other), "{\"type\":\"execution_stopped\"}");
    (void)close(other);
    mem_free(big);
    scene_close(&x);
}

TEST(server_stops, "promise-P15: a server that stops says so to every client and cancels nothing")
{
    struct scene x;
    char run[33];
    scene_open(&x);
    int fd = client(&x);
    say(fd, EXECUTE_142);
    (void)start(&x, "", run);
    ws_close(x.server.ws);
    x.server.ws = NULL;
    CHECK_EQ(closed(fd), 1001);
    CHECK_STR(status_of(&x, run), "running");
    CHECK(!puppet_order(&x.agent, "stop"));
    (void)close(fd);
    scene_close(&x);
}

TEST(many_clients, "promise-P15: clients come and go while others are served")
{
    struct scene x;
    int fd[100];
    scene_open(&x);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 100; i++)
            fd[i] = client(&x);
        for (int i = 0; i < 100; i++)
            say(fd[i], "{\"action\":\"stop\"}");
        for (int i = 0; i < 100; i++) {
            CHECK_STR(next(fd[i]), "{\"type\":\"execution_stopped\"}");
            (void)close(fd[i]);
        }
    }
    scene_close(&x);
}
