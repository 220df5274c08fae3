/* server_test.c - the server as a whole: one under a SNUG_HOME, its files, TLS, the webhook. */
#include "server/auth.h"
#include "server/core.h"
#include "server/http_test_support.h"
#include "server/server.h"
#include "server/store.h"

#include "base/client.h"
#include "base/env.h"
#include "test.h"

#include <arpa/inet.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void home(struct server_config *c)
{
    (void)setenv("SNUG_HOME", test_dir(), 1);
    server_config_defaults(c, test_dir());
    c->builtin_worker = false;
    c->port = 0;
}

static void set(char **field, const char *value)
{
    mem_free(*field);
    *field = mem_strdup(value);
}

TEST(one_server, "one server lives under a SNUG_HOME; its card and token go with it")
{
    struct server_config c;
    struct server *s, *second = NULL;
    struct err e = {0};
    struct stat st;
    char path[1100];
    json_t *card, *health;
    struct client *client;
    home(&c);
    CHECK_OK(server_open(&c, &s, &e), &e);
    CHECK_EQ(server_open(&c, &second, &e), ST_CONFLICT);
    CHECK(strstr(e.hint, "snug stop"));
    (void)path_join(test_dir(), "server.json", path, sizeof path);
    CHECK_OK(json_read_file(path, 1 << 16, &card, &e), &e);
    CHECK_STR(json_get_str(card, "url", ""), server_url(s));
    CHECK_EQ(json_get_i64(card, "pid", 0), getpid());
    CHECK_STR(json_get_str(card, "boot_id", ""), s->boot_id);
    CHECK_OK(client_open(&(struct client_options){0}, &client, &e), &e);
    CHECK_OK(client_get(client, "/api/health", 10, &health, &e), &e);
    CHECK_STR(json_get_str(health, "boot_id", ""), s->boot_id);
    client_close(client);
    server_close(s);
    CHECK(stat(path, &st) != 0);
    CHECK_OK(server_open(&c, &s, &e), &e); /* and the next one may come */
    server_close(s);
    server_config_release(&c);
    json_decref(card);
    json_decref(health);
}

TEST(port_taken, "a port that is taken is an error that names it, and nothing stays behind")
{
    struct server_config c;
    struct server *s = NULL;
    struct err e = {0};
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t n = sizeof a;
    char path[1100], text[32];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(fd, (const struct sockaddr *)&a, n) == 0 && listen(fd, 1) == 0);
    CHECK_EQ(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    home(&c);
    c.port = ntohs(a.sin_port);
    CHECK(server_open(&c, &s, &e) != ST_OK);
    (void)snprintf(text, sizeof text, "port %d", (int)c.port);
    CHECK(strstr(e.text, text));
    (void)path_join(test_dir(), "server.json", path, sizeof path);
    CHECK(!file_exists(path));
    (void)path_join(test_dir(), "session.token", path, sizeof path);
    CHECK(!file_exists(path));
    (void)close(fd);
    server_config_release(&c);
}

/* ---- TLS ---- */

static void write_pem(const char *name, const gnutls_datum_t *pem, char path[1100])
{
    struct err e = {0};
    (void)path_join(test_dir(), name, path, 1100);
    CHECK_OK(file_write(path, pem->data, pem->size, &e), &e);
}

/* A certificate for 127.0.0.1 that signs itself. */
static void make_certificate(char certificate[1100], char key_file[1100])
{
    gnutls_x509_crt_t crt;
    gnutls_x509_privkey_t key;
    gnutls_datum_t pem;
    static const unsigned char address[4] = {127, 0, 0, 1};
    CHECK(gnutls_x509_privkey_init(&key) == 0 && gnutls_x509_crt_init(&crt) == 0);
    CHECK_EQ(gnutls_x509_privkey_generate(key, GNUTLS_PK_ECDSA, 256, 0), 0);
    time_t now = (time_t)(clock_wall_us() / 1000000);
    CHECK_EQ(gnutls_x509_crt_set_version(crt, 3), 0);
    CHECK_EQ(gnutls_x509_crt_set_serial(crt, "\x01", 1), 0);
    CHECK_EQ(gnutls_x509_crt_set_activation_time(crt, now - 3600), 0);
    CHECK_EQ(gnutls_x509_crt_set_expiration_time(crt, now + 3600), 0);
    CHECK_EQ(gnutls_x509_crt_set_dn_by_oid(crt, GNUTLS_OID_X520_COMMON_NAME, 0, "lab", 3), 0);
    CHECK_EQ(
        gnutls_x509_crt_set_subject_alt_name(
            crt, GNUTLS_SAN_IPADDRESS, address, sizeof address, GNUTLS_FSAN_SET),
        0);
    CHECK_EQ(gnutls_x509_crt_set_basic_constraints(crt, 1, -1), 0);
    CHECK_EQ(gnutls_x509_crt_set_key(crt, key), 0);
    CHECK_EQ(gnutls_x509_crt_sign2(crt, crt, key, GNUTLS_DIG_SHA256, 0), 0);
    CHECK_EQ(gnutls_x509_crt_export2(crt, GNUTLS_X509_FMT_PEM, &pem), 0);
    write_pem("lab.pem", &pem, certificate);
    gnutls_free(pem.data);
    CHECK_EQ(gnutls_x509_privkey_export2(key, GNUTLS_X509_FMT_PEM, &pem), 0);
    write_pem("lab.key", &pem, key_file);
    gnutls_free(pem.data);
    gnutls_x509_crt_deinit(crt);
    gnutls_x509_privkey_deinit(key);
}

TEST(
    tls,
    "H5: with a certificate the server speaks TLS, to clients that trust it; limits hold there too")
{
    struct server_config c;
    struct server *s;
    struct err e = {0};
    struct client *client;
    struct client_reply r;
    char certificate[1100], key[1100];
    json_t *reply = NULL;
    home(&c);
    make_certificate(certificate, key);
    set(&c.tls_certificate, certificate);
    set(&c.tls_key, key);
    c.max_run_body_bytes = 5000;
    CHECK_OK(server_open(&c, &s, &e), &e);
    CHECK(strncmp(server_url(s), "https://127.0.0.1:", 18) == 0);
    CHECK_OK(client_open(&(struct client_options){0}, &client, &e), &e);
    CHECK_OK(client_get(client, "/api/health", 10, &reply, &e), &e);
    json_decref(reply);
    json_t *big = json_object();
    char text[8000];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    json_put_str(big, "name", text);
    CHECK_OK(client_call(client, "POST", "/api/keys", big, 10, &r, &e), &e);
    CHECK_EQ(r.status, 413);
    client_reply_release(&r);
    json_decref(big);
    client_close(client);
    /* Who does not trust it does not speak to it. */
    struct client_options other = {.server = server_url(s), .secret = "x", .ca = key};
    if (client_open(&other, &client, &e) == ST_OK) {
        CHECK(client_get(client, "/api/health", 5, &reply, &e) != ST_OK);
        client_close(client);
    }
    server_close(s);
    set(&c.tls_key, certificate);
    CHECK(server_open(&c, &s, &e) != ST_OK); /* no key in there */
    server_config_release(&c);
}

/* ---- the webhook ---- */

struct receiver {
    int fd, port, failures; /* so many calls are answered with 500 first */
    char body[4096], head[4096];
    int calls;
};

static void receiver_open(struct receiver *x)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t n = sizeof a;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    x->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(x->fd, (const struct sockaddr *)&a, n) == 0 && listen(x->fd, 8) == 0);
    CHECK_EQ(getsockname(x->fd, (struct sockaddr *)&a, &n), 0);
    x->port = ntohs(a.sin_port);
}

/* Answers one call. */
static void receive(struct receiver *x)
{
    char text[8192];
    size_t n = 0, length = 0;
    int fd = accept(x->fd, NULL, NULL);
    char *end = NULL;
    while (fd >= 0 && n + 1 < sizeof text) {
        ssize_t got = recv(fd, text + n, sizeof text - 1 - n, 0);
        if (got <= 0)
            break;
        n += (size_t)got;
        text[n] = '\0';
        end = strstr(text, "\r\n\r\n");
        const char *said = strstr(text, "Content-Length: ");
        length = said ? (size_t)atoi(said + 16) : 0;
        if (end && n >= (size_t)(end + 4 - text) + length)
            break;
    }
    CHECK(end != NULL);
    *end = '\0';
    (void)snprintf(x->head, sizeof x->head, "%.4000s", text);
    (void)snprintf(x->body, sizeof x->body, "%.4000s", end + 4);
    const char *answer = x->calls++ < x->failures
                             ? "HTTP/1.1 500 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                             : "HTTP/1.1 204 Fine\r\nConnection: close\r\n\r\n";
    CHECK(send(fd, answer, strlen(answer), MSG_NOSIGNAL) > 0);
    (void)close(fd);
}

TEST(
    webhook_tells,
    "the webhook tells of an ended run, again where the first call failed, without secrets")
{
    struct server_config c;
    struct server *s;
    struct err e = {0};
    struct receiver x = {.failures = 1};
    char url[200];
    json_t *reply = NULL, *body = NULL;
    struct actor owner = {.role = ROLE_OWNER, .name = "owner"};
    home(&c);
    receiver_open(&x);
    (void)snprintf(url, sizeof url, "http://user:hidden@127.0.0.1:%d/hook?key=hidden", x.port);
    set(&c.webhook_url, url);
    CHECK_OK(server_open(&c, &s, &e), &e);
    json_t *graph = json_pack(
        "{s:[{s:s,s:s},{s:s,s:s}],s:[{s:s,s:s,s:s,s:s,s:s,s:s}]}", "nodes", "id", "s", "type",
        "Start", "id", "p", "type", "TensorCreate", "edges", "id", "e", "source", "s",
        "sourceHandle", "trigger", "target", "p", "targetHandle", "", "type", "trigger");
    struct core_submission x2 = {.graph = graph, .name = "night", .variant = -1, .repetition = -1};
    struct instant now = {clock_ns(), clock_wall_us()};
    CHECK_OK(core_submit(s->core, &owner, &x2, now, &reply, &e), &e);
    char run_id[33];
    (void)snprintf(run_id, sizeof run_id, "%s", json_get_str(reply, "run_id", ""));
    json_decref(reply);
    CHECK_OK(core_cancel(s->core, run_id, now, &reply, &e), &e);
    receive(&x);
    receive(&x);
    CHECK_OK(json_parse(x.body, strlen(x.body), "notice", &body, &e), &e);
    CHECK_STR(json_get_str(body, "event", ""), "run_ended");
    CHECK_STR(json_get_str(body, "run_id", ""), run_id);
    CHECK_STR(json_get_str(body, "status", ""), "cancelled");
    CHECK_STR(json_get_str(body, "name", ""), "night");
    CHECK(!strstr(x.body, auth_owner_token(s->auth)) && !strstr(x.head, auth_owner_token(s->auth)));
    CHECK(!strstr(x.body, "nodes"));
    server_close(s);
    set(&c.webhook_url, "ftp://x");
    CHECK_EQ(server_open(&c, &s, &e), ST_INVALID);
    server_config_release(&c);
    (void)close(x.fd);
    json_decref(body);
    json_decref(reply);
    json_decref(graph);
}
