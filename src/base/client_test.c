/* client_test.c - the HTTP client against a server of a few lines, which plays a list of replies.
 */
#include "base/client.h"

#include "base/env.h"
#include "base/mem.h"
#include "test.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PLAY_MAX = 8 };
struct player {
    pid_t pid;
    int port, heard; /* heard: a pipe with the requests as they arrived */
    char url[64];
};

/* One request with its body, by Content-Length. */
static void hear(int s, struct str *out)
{
    char buf[4096];
    ssize_t n;
    str_clear(out);
    while ((n = read(s, buf, sizeof buf)) > 0) {
        str_add_n(out, buf, (size_t)n);
        const char *end = strstr(out->data, "\r\n\r\n"),
                   *length = strstr(out->data, "Content-Length: ");
        if (end &&
            out->n >= (size_t)(end + 4 - out->data) + (length ? strtoul(length + 16, NULL, 10) : 0))
            return;
    }
}

static void play(int listener, int heard, const char *const *replies)
{
    struct str request;
    str_init(&request);
    for (; *replies; replies++) {
        int s = accept(listener, NULL, NULL);
        hear(s, &request);
        if (write(heard, request.data, request.n + 1) < 0 ||
            write(s, *replies, strlen(*replies)) < 0)
            _exit(1);
        if (strstr(*replies, "(hangs)"))
            (void)sleep(60);
        (void)close(s);
    }
    _exit(0);
}

/* Answers one connection after another with the texts of `replies`, then is gone. */
static struct player player_start(const char *const *replies)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), pipes[2];
    struct player p;
    CHECK(bind(listener, (struct sockaddr *)&at, n) == 0 && listen(listener, 8) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&at, &n) == 0 && pipe(pipes) == 0);
    p.pid = fork();
    if (p.pid == 0)
        play(listener, pipes[1], replies);
    (void)close(listener);
    (void)close(pipes[1]);
    p.heard = pipes[0];
    p.port = ntohs(at.sin_port);
    (void)snprintf(p.url, sizeof p.url, "http://127.0.0.1:%d", p.port);
    return p;
}

static const char *player_heard(struct player *p)
{
    static char text[8192];
    ssize_t n = read(p->heard, text, sizeof text - 1);
    text[n > 0 ? n : 0] = 0;
    return text;
}

static void player_end(struct player *p)
{
    (void)kill(p->pid, SIGKILL);
    (void)waitpid(p->pid, NULL, 0);
    (void)close(p->heard);
}

static struct client *open_to(const char *url, const char *secret)
{
    struct client_options o = {.server = url, .secret = secret};
    struct client *c;
    struct err e = {0};
    CHECK(client_open(&o, &c, &e) == ST_OK);
    return c;
}

#define OK(body) "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" body

TEST(client_asks_and_reads_json, "a call sends its JSON and its key, and gives the reply's JSON")
{
    static const char *const replies[] = {OK("{\"run_id\": \"a1\"}"), NULL};
    struct player p = player_start(replies);
    struct client *c = open_to(p.url, "snk_secret");
    struct err e = {0};
    json_t *body = json_pack("{s:s}", "name", "n"), *reply;
    CHECK(client_post(c, "/api/runs", body, 5, &reply, &e) == ST_OK);
    CHECK_STR(json_get_str(reply, "run_id", ""), "a1");
    const char *heard = player_heard(&p);
    CHECK(strstr(heard, "POST /api/runs HTTP/1.1"));
    CHECK(strstr(heard, "Authorization: Bearer snk_secret\r\n"));
    CHECK(strstr(heard, "Content-Type: application/json\r\n"));
    CHECK(strstr(heard, "{\"name\": \"n\"}") || strstr(heard, "{\"name\":\"n\"}"));
    json_decref(reply);
    json_decref(body);
    client_close(c);
    player_end(&p);
}

TEST(
    client_refusals,
    "what a server refuses becomes an error with its words, and never with the key")
{
    static const char *const replies[] = {
        "HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n{\"detail\": \"there is no run "
        "\\\"x\\\"\"}",
        "HTTP/1.1 422 No\r\nConnection: close\r\n\r\n"
        "{\"detail\": [{\"type\": \"t\", \"loc\": [\"body\", \"graph\"], \"msg\": \"is "
        "missing\"}]}",
        "HTTP/1.1 403 No\r\nConnection: close\r\n\r\n{\"detail\": \"wrong token\"}",
        "HTTP/1.1 503 No\r\nConnection: close\r\n\r\nplain words",
        "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nConnection: close\r\n\r\n",
        NULL};
    struct player p = player_start(replies);
    struct client *c = open_to(p.url, "snk_very_secret");
    struct err e = {0};
    CHECK(client_get(c, "/a", 5, NULL, &e) == ST_NOT_FOUND);
    CHECK_STR(e.text, "there is no run \"x\"");
    CHECK(client_get(c, "/b", 5, NULL, &e) == ST_UNPROCESSABLE);
    CHECK_STR(e.text, "graph: is missing");
    CHECK(client_get(c, "/c", 5, NULL, &e) == ST_DENIED);
    CHECK(!strstr(e.text, "secret") && !strstr(e.hint, "secret") && strstr(e.hint, "revoked"));
    CHECK(client_get(c, "/d", 5, NULL, &e) == ST_BUSY);
    CHECK(strstr(e.text, "status 503"));
    CHECK(client_get(c, "/e", 5, NULL, &e) == ST_UNSUPPORTED); /* not followed */
    player_end(&p);
    CHECK(client_get(c, "/f", 5, NULL, &e) == ST_IO);
    CHECK(strstr(e.text, "could not reach") && strstr(e.text, p.url) && !strstr(e.text, "secret"));
    client_close(c);
}

struct seen {
    int n;
    char last[64], id[16], type[16];
};

static bool note(void *ctx, const struct client_event *event)
{
    struct seen *s = ctx;
    s->n++;
    (void)snprintf(s->last, sizeof s->last, "%s", event->data);
    (void)snprintf(s->id, sizeof s->id, "%s", event->id);
    (void)snprintf(s->type, sizeof s->type, "%s", event->type);
    return strcmp(event->data, "last") != 0;
}

TEST(client_streams_events, "events of a stream come one by one, whatever their line ends")
{
    static const char *const replies[] = {
        OK(": hello\n\nid: 7\nevent: metric\ndata: a\ndata:b\n\n"),
        OK("data: 1\r\n\r\ndata: last\r\n\r\ndata: never\r\n\r\n"), NULL};
    struct player p = player_start(replies);
    struct client *c = open_to(p.url, NULL);
    struct err e = {0};
    struct seen s = {0};
    CHECK(client_stream(c, "/events", note, &s, &e) == ST_OK);
    CHECK_EQ(s.n, 1);
    CHECK_STR(s.last, "a\nb");
    CHECK_STR(s.id, "7");
    CHECK_STR(s.type, "metric");
    CHECK(client_stream(c, "/events", note, &s, &e) == ST_OK);
    CHECK_EQ(s.n, 3);
    CHECK_STR(s.last, "last");
    client_close(c);
    player_end(&p);
}

static bool at_once(void *ctx)
{
    return ++*(int *)ctx > 1;
}

TEST(client_limits, "a call ends at its time, at its size, and when it is told to")
{
    static const char *const replies[] = {OK("(hangs)"), OK("0123456789"), NULL};
    static const char *const hangs[] = {OK("(hangs)"), NULL};
    struct player p = player_start(hangs), q = player_start(&replies[1]), h = player_start(hangs);
    struct err e = {0};
    int asked = 0;
    struct client *c = open_to(p.url, NULL);
    CHECK(client_get(c, "/", 0.2, NULL, &e) == ST_BUSY);
    client_close(c);
    struct client_options o = {.server = q.url, .reply_bytes_max = 5};
    CHECK(client_open(&o, &c, &e) == ST_OK);
    CHECK(client_get(c, "/", 5, NULL, &e) == ST_TOO_LARGE);
    client_close(c);
    o = (struct client_options){.server = h.url, .stop = at_once, .ctx = &asked};
    CHECK(client_open(&o, &c, &e) == ST_OK);
    CHECK(client_get(c, "/", 30, NULL, &e) == ST_INTERRUPTED);
    client_close(c);
    player_end(&p);
    player_end(&q);
    player_end(&h);
}

TEST(client_files, "a file goes up as a form and comes down as bytes")
{
    static const char *const replies[] = {OK("{\"file\": \"w.pt\"}"), OK("bytes"), NULL};
    struct player p = player_start(replies);
    struct client *c = open_to(p.url, "token");
    struct err e = {0};
    char path[300], *data;
    size_t n;
    json_t *reply;
    (void)path_join(test_dir(), "w", path, sizeof path);
    CHECK(file_write(path, "weights", 7, &e) == ST_OK);
    CHECK(client_upload(c, "/api/models/upload", path, "w.pt", 5, &reply, &e) == ST_OK);
    CHECK_STR(json_get_str(reply, "file", ""), "w.pt");
    const char *heard = player_heard(&p);
    CHECK(strstr(heard, "X-Snug-Token: token\r\n"));
    CHECK(strstr(heard, "name=\"file\"; filename=\"w.pt\"") && strstr(heard, "weights"));
    FILE *to = fopen(path, "w");
    CHECK(client_download(c, "/x", 5, to, &e) == ST_OK);
    (void)fclose(to);
    CHECK(file_read(path, 100, &data, &n, &e) == ST_OK);
    CHECK_STR(data, "bytes");
    mem_free(data);
    json_decref(reply);
    client_close(c);
    player_end(&p);
}

TEST(
    client_finds_the_local_server,
    "W1: server.json and session.token of SNUG_HOME are found; a dead server is none")
{
    struct client_options o = {0};
    struct client *c;
    struct err e = {0};
    char path[300], text[200];
    (void)setenv("SNUG_HOME", test_dir(), 1);
    CHECK(client_open(&o, &c, &e) == ST_NOT_FOUND);
    CHECK(strstr(e.text, test_dir()) && !client_local_runs());
    static const char *const replies[] = {OK("{}"), OK("{}"), NULL};
    struct player p = player_start(replies);
    (void)snprintf(text, sizeof text, "{\"url\": \"%s\", \"pid\": %d}", p.url, (int)getpid());
    (void)path_join(test_dir(), "server.json", path, sizeof path);
    CHECK(file_write(path, text, strlen(text), &e) == ST_OK);
    (void)path_join(test_dir(), "session.token", path, sizeof path);
    CHECK(file_write(path, "tok\n", 4, &e) == ST_OK);
    CHECK(client_local_runs());
    CHECK(client_open(&o, &c, &e) == ST_OK && client_is_local(c));
    CHECK(client_get(c, "/", 5, NULL, &e) == ST_OK);
    CHECK(strstr(player_heard(&p), "X-Snug-Token: tok\r\n"));
    client_close(c);
    o.server = "http://127.0.0.1:1"; /* another server does not get this one's token */
    CHECK(client_open(&o, &c, &e) == ST_OK && !client_is_local(c));
    client_close(c);
    (void)setenv("SNUG_SERVER", "http://elsewhere:8000", 1);
    (void)setenv("SNUG_KEY", "snk_elsewhere", 1);
    CHECK(!client_local_runs());
    o = (struct client_options){.own = true}; /* its own worker is not sent there */
    CHECK(client_open(&o, &c, &e) == ST_OK && client_is_local(c));
    CHECK(client_get(c, "/", 5, NULL, &e) == ST_OK);
    CHECK(strstr(player_heard(&p), "X-Snug-Token: tok\r\n"));
    client_close(c);
    (void)unsetenv("SNUG_SERVER");
    (void)unsetenv("SNUG_KEY");
    pid_t gone = fork();
    if (gone == 0)
        _exit(0);
    (void)waitpid(gone, NULL, 0);
    (void)snprintf(text, sizeof text, "{\"url\": \"%s\", \"pid\": %d}", p.url, (int)gone);
    (void)path_join(test_dir(), "server.json", path, sizeof path);
    CHECK(file_write(path, text, strlen(text), &e) == ST_OK);
    CHECK(!client_local_runs());
    player_end(&p);
}

TEST(
    client_wants_a_sound_address,
    "H1: addresses with a password, keys with line ends and odd paths are refused")
{
    static const char *const bad[] = {
        "lab:8000", "ftp://lab", "http://u:pw@lab", "http:///x", "http://a b"};
    struct client *c;
    struct err e = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct client_options o = {.server = bad[i]};
        CHECK(client_open(&o, &c, &e) == ST_INVALID);
        CHECK(!strstr(e.text, "pw"));
    }
    struct client_options o = {.server = "http://lab:1/", .secret = "a\r\nX: y"};
    CHECK(client_open(&o, &c, &e) == ST_INVALID);
    c = open_to("http://127.0.0.1:1/", NULL);
    CHECK_STR(client_url(c), "http://127.0.0.1:1");
    CHECK(client_get(c, "/a b", 5, NULL, &e) == ST_INVALID);
    struct client_path p = client_path("/api/workers/%s/cards/%lld", "a/b ä", 7LL);
    client_query(&p, "x", "1&2");
    client_query(&p, "none", NULL);
    client_query_i64(&p, "n", -3);
    CHECK_STR(p.text, "/api/workers/a%2Fb%20%C3%A4/cards/7?x=1%262&n=-3");
    p = client_path("/a/%s/b", "..");
    CHECK(p.cut && client_get(c, p.text, 5, NULL, &e) == ST_INVALID);
    client_close(c);
}

TEST(
    client_proxies, "H1: a proxy is used where SNUG_PROXY names one, never for this machine, nor "
                    "by other variables")
{
    static const char *const replies[] = {OK("{}"), NULL};
    struct player proxy = player_start(replies), direct = player_start(replies);
    struct err e = {0};
    (void)setenv("http_proxy", "http://127.0.0.1:1", 1);
    (void)setenv("all_proxy", "http://127.0.0.1:1", 1);
    (void)setenv("SNUG_PROXY", proxy.url, 1);
    struct client *c = open_to(direct.url, "tok");
    CHECK(client_get(c, "/x", 5, NULL, &e) == ST_OK);
    CHECK(strstr(player_heard(&direct), "GET /x HTTP/1.1"));
    client_close(c);
    c = open_to("http://lab.invalid:8000", "tok");
    CHECK(client_get(c, "/x", 5, NULL, &e) == ST_OK);
    CHECK(strstr(player_heard(&proxy), "GET http://lab.invalid:8000/x HTTP/1.1"));
    client_close(c);
    player_end(&proxy);
    player_end(&direct);
}
