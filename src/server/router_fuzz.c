/* router_fuzz.c - any bytes as a request, through everything of the server but sockets.
 *
 * FORMAT  "METHOD TARGET\n", lines "Name: value\n" (at most 8), an empty line, the body. The
 * owner's token is sent unless a line names a token. Whatever comes, the answer is none of 500.
 */
#define _XOPEN_SOURCE 700 /* nftw */

#include "server/server.h"

#include "base/env.h"
#include "base/log.h"
#include "base/mem.h"

#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/auth.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEADERS_MAX = 8, FRESH_EVERY = 2000, TARGET_MAX = 8192 };

static struct server_config config;
static struct server *server;
static char home[64];

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st, (void)kind, (void)ftw;
    return remove(path);
}

static void remove_home(void)
{
    (void)nftw(home, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void no_log(enum log_level level, const char *text, void *ctx)
{
    (void)level, (void)text, (void)ctx;
}

static void open_server(void)
{
    struct err e = {0};
    if (!home[0]) {
        (void)snprintf(home, sizeof home, "/tmp/snug-router-XXXXXX");
        ASSERT(mkdtemp(home) != NULL);
        (void)setenv("SNUG_HOME", home, 1);
        (void)atexit(remove_home);
        log_sink_set(no_log, NULL);
        server_config_defaults(&config, home);
        config.builtin_worker = false;
        config.max_run_body_bytes = 1 << 20;
        config.max_upload_size = 1 << 20;
    }
    enum status st = server_open_bare(&config, &server, &e);
    if (st != ST_OK)
        (void)fprintf(stderr, "%s\n", e.text);
    ASSERT(st == ST_OK);
}

/* Cuts the head out of the text, which it changes; returns the body. */
static char *head_read(char *text, const char *target[2], const char *headers[2 * HEADERS_MAX + 1])
{
    size_t n = 0;
    char *line = text, *end = strchr(line, '\n');
    if (!end)
        return NULL;
    *end = '\0';
    char *blank = strchr(line, ' ');
    if (!blank)
        return NULL;
    *blank = '\0';
    target[0] = line, target[1] = blank + 1;
    for (line = end + 1; (end = strchr(line, '\n')) && end != line; line = end + 1) {
        *end = '\0';
        char *value = strstr(line, ": ");
        if (!value || n == 2 * HEADERS_MAX)
            continue;
        *value = '\0';
        headers[n++] = line, headers[n++] = value + 2;
    }
    headers[n] = NULL;
    return end ? end + 1 : line + strlen(line);
}

static bool names_token(const char *const *headers)
{
    for (; *headers; headers += 2)
        if (strstr(headers[0], "oken") || strcmp(headers[0], "Authorization") == 0)
            return true;
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int asked;
    const char *headers[2 * HEADERS_MAX + 1] = {NULL}, *target[2];
    struct http_reply r;
    if (size > 1 << 18)
        return 0;
    if (server && ++asked % FRESH_EVERY == 0) {
        server_close(server);
        server = NULL;
    }
    if (!server)
        open_server();
    char *text = mem_alloc(size + 1);
    memcpy(text, data, size);
    char *body = head_read(text, target, headers);
    if (body && strlen(target[0]) < 16 && strlen(target[1]) < TARGET_MAX) {
        struct http_ask ask = {
            .method = target[0],
            .target = target[1],
            .headers = headers,
            .token = names_token(headers) ? NULL : auth_owner_token(server->auth),
            .body = body,
            .body_bytes = size - (size_t)(body - text)};
        http_ask(server->http, &ask, &r);
        ASSERT(r.status == 0 || (r.status >= 100 && r.status < 600 && r.status != 500));
        ASSERT(
            r.status < 400 ||
            (r.data && (strstr(r.data, "\"detail\"") || strstr(r.data, "\"error\""))));
        http_reply_release(&r);
    }
    mem_free(text);
    return 0;
}
