/* http_test_support.h - a door for tests: routes of their own, a server of nothing, a client that
 * says what it likes. */
#ifndef SERVER_HTTP_TEST_SUPPORT_H
#define SERVER_HTTP_TEST_SUPPORT_H

#include "server/auth.h"
#include "server/http_int.h"

struct door {
    struct server server;
    struct http *h;
    struct http_config config;
};
/* Opens on a free port of 127.0.0.1 with the rows; sets what config says beyond that. */
void door_open(struct door *d, const struct route *rows, size_t n);
void door_close(struct door *d);

/* A connection of raw bytes. */
int door_connect(const struct door *d);
void door_send(int fd, const char *text);
/* Reads one answer: its status (0: the connection ended); head and body, NUL after each. */
struct answer {
    int status;
    char head[16384];
    char body[16384]; /* the beginning of a longer one */
    size_t body_bytes;
};
int door_read(int fd, struct answer *a, bool head_only);
/* One request on a connection of its own; `more` are header lines, may be NULL. Returns the
 * status. */
int door_ask(
    const struct door *d, const char *method, const char *target, const char *more,
    const char *body, struct answer *a);
/* "X-Snug-Token: ...\r\n" of the owner. */
const char *door_owner(const struct door *d);
const char *answer_header(const struct answer *a, const char *name, char buf[512]); /* or NULL */

#endif
