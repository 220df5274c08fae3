/* http_slow_test.c - the door under clients that are slow, many, or dead. */
#include "server/http_test_support.h"

#include "base/env.h"
#include "test.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void say(struct server *s, const struct http_request *q, struct http_reply *r)
{
    (void)s, (void)q;
    http_json(r, 200, json_object());
}

static const struct route rows[] = {
    {METHOD_GET, "/api/open", say, ACCESS_OPEN, BODY_NONE, ""},
    {METHOD_POST, "/api/raw", say, ACCESS_WRITE, BODY_RAW, ""}};

static void open_door(struct door *d)
{
    door_open(d, rows, sizeof rows / sizeof *rows);
}

static void pause_ms(int ms)
{
    (void)nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

TEST(door_slow, "H4: who trickles a head or a body is cut off, others are served meanwhile")
{
    struct door d = {.config = {.head_s = 1, .idle_s = 2}};
    int slow[20];
    open_door(&d);
    for (int i = 0; i < 20; i++) {
        slow[i] = door_connect(&d);
        door_send(slow[i], "GET /api/open HTTP/1.1\r\nHost: local");
    }
    int64_t until_ns = clock_ns() + 15000000000;
    int open_n = 20;
    while (open_n > 0 && clock_ns() < until_ns) {
        CHECK_EQ(door_ask(&d, "GET", "/api/open", NULL, NULL, NULL), 200);
        for (int i = 0; i < 20; i++) {
            char c;
            if (slow[i] >= 0 && send(slow[i], "h", 1, MSG_NOSIGNAL) < 0) {
                (void)close(slow[i]);
                slow[i] = -1;
                open_n--;
            } else if (slow[i] >= 0 && recv(slow[i], &c, 1, MSG_DONTWAIT) == 0) {
                (void)close(slow[i]);
                slow[i] = -1;
                open_n--;
            }
        }
        pause_ms(100);
    }
    CHECK_EQ(open_n, 0);
    door_close(&d);
}

TEST(door_slow_bodies, "H4: a body that trickles is cut off; one that comes steadily is not")
{
    struct door d = {.config = {.body_s = 1}};
    char text[400], piece[1001];
    struct answer a;
    bool cut = false;
    open_door(&d);
    int slow = door_connect(&d), fd = door_connect(&d);
    (void)snprintf(
        text, sizeof text,
        "POST /api/raw HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: 90\r\n\r\n",
        door_owner(&d));
    door_send(slow, text);
    for (int i = 0; i < 80 && !cut; i++) {
        char c;
        cut = send(slow, "x", 1, MSG_NOSIGNAL) < 0 || recv(slow, &c, 1, MSG_DONTWAIT) == 0;
        pause_ms(100);
    }
    CHECK(cut);
    (void)close(slow);
    (void)snprintf(
        text, sizeof text,
        "POST /api/raw HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: 24000\r\n\r\n",
        door_owner(&d));
    door_send(fd, text);
    memset(piece, 'y', 1000);
    piece[1000] = '\0';
    for (int i = 0; i < 24; i++) {
        door_send(fd, piece);
        pause_ms(100);
    }
    CHECK_EQ(door_read(fd, &a, false), 200);
    (void)close(fd);
    door_close(&d);
}

TEST(
    door_full,
    "H4: connections over the limit wait or are closed; the door serves on when some leave")
{
    struct door d = {.config = {.connections_max = 10}};
    int fd[40];
    open_door(&d);
    for (int i = 0; i < 40; i++)
        fd[i] = door_connect(&d);
    pause_ms(100);
    for (int i = 0; i < 40; i++)
        (void)close(fd[i]);
    int status = 0;
    for (int i = 0; i < 50 && status != 200; i++) {
        status = door_ask(&d, "GET", "/api/open", NULL, NULL, NULL);
        pause_ms(20);
    }
    CHECK_EQ(status, 200);
    door_close(&d);
}
