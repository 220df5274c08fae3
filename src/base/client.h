/* client.h - a client of snug's HTTP API, over libcurl: the command line and agents speak through
 * it.
 *
 *     struct client *c;
 *     TRY(client_open(&(struct client_options){0}, &c, e));     the server of this SNUG_HOME
 *     struct client_path p = client_path("/api/runs/%s/events", id);
 *     client_query_i64(&p, "cursor", cursor);
 *     TRY(client_get(c, p.text, 30, &json, e));                 json: a new reference
 *     client_close(c);
 *
 * A client belongs to one thread at a time and keeps its connection between calls. Opening one
 * makes no connection and costs little: who waits for a server that may restart (its port and its
 * token change) closes and opens again. Nothing is sent twice by itself; redirects are not
 * followed; no proxy is used unless SNUG_PROXY (config.json "proxy") names one, and never for this
 * machine. Errors name the server and what it said, never keys or tokens.
 */
#ifndef BASE_CLIENT_H
#define BASE_CLIENT_H

#include "base/json.h"

#include <stddef.h>
#include <stdio.h>

struct client;
struct client_options {
    /* "https://lab:8000". NULL: SNUG_SERVER, else "server" of config.json, else the server that
     * runs under this SNUG_HOME (its server.json). */
    const char *server;
    /* What opens the door: an API key (snk_), a worker's credential (snw_), a join token (snj_), or
     * a session token. NULL: SNUG_KEY, else "key" of config.json, else, for the server of this
     * SNUG_HOME only, session.token. */
    const char *secret;
    /* PEM file with the authorities that may sign the server's certificate. NULL: SNUG_CA, else
     * "ca" of config.json, else the system's; the certificate of this SNUG_HOME's server is
     * trusted. */
    const char *ca;
    /* The server of this SNUG_HOME with its session token, whatever environment and config.json
     * name: for its own worker. `server` and `secret` are then NULL. */
    bool own;
    int64_t reply_bytes_max; /* 0: 64 MiB; a longer reply is ST_TOO_LARGE */
    bool (*stop)(void *ctx); /* asked at least once a second; true ends the call: ST_INTERRUPTED */
    void *ctx;
};
/* ST_NOT_FOUND: no server is named and none runs under this SNUG_HOME. Copies what it is given. */
enum status
client_open(const struct client_options *o, struct client **out, struct err *e) NODISCARD;
void client_close(struct client *c);            /* NULL is fine */
const char *client_url(const struct client *c); /* "http://127.0.0.1:8000" */
bool client_is_local(const struct client *c);   /* the server of this SNUG_HOME */
/* Whether server.json of this SNUG_HOME names a process that lives: what `snug run` looks at. False
 * also where SNUG_SERVER or config.json name another server. */
bool client_local_runs(void);

struct client_reply {
    int status;   /* of HTTP: any of them */
    json_t *json; /* NULL where the body is not JSON */
    char *data;   /* the body; NUL after it */
    size_t data_bytes;
};
void client_reply_release(struct client_reply *r);

/* One request. `body` (borrowed, may be NULL) goes as JSON. limit_s: the whole call may take so
 * long; 0: 30 s. ST_OK means that a reply arrived, whatever its status. Failing: ST_IO "could not
 * reach ..." (it may not have arrived), ST_BUSY past the limit, ST_TOO_LARGE, ST_INTERRUPTED by
 * `stop`. */
enum status client_call(
    struct client *c, const char *method, const char *path, const json_t *body, double limit_s,
    struct client_reply *r, struct err *e) NODISCARD;
/* The same, but a reply of 400 and above is an error too: its status by client_status, its text the
 * reply's `detail`. `*out` (NULL: not wanted) is the reply's JSON, json_null where there is none.
 */
enum status client_json(
    struct client *c, const char *method, const char *path, const json_t *body, double limit_s,
    json_t **out, struct err *e) NODISCARD;
enum status client_get(
    struct client *c, const char *path, double limit_s, json_t **out, struct err *e) NODISCARD;
enum status client_post(
    struct client *c, const char *path, const json_t *body, double limit_s, json_t **out,
    struct err *e) NODISCARD;
enum status client_status(int http); /* 404: ST_NOT_FOUND; 2xx: ST_OK */
/* The error that a reply of 400 and above is. */
enum status client_refusal(const struct client *c, const struct client_reply *r, struct err *e);

/* GET whose body is not JSON: bytes into `to` as they come. */
enum status client_download(
    struct client *c, const char *path, double limit_s, FILE *to, struct err *e) NODISCARD;
/* POST of a file as multipart/form-data, field "file". `name`: what it is called there. */
enum status client_upload(
    struct client *c, const char *path, const char *file, const char *name, double limit_s,
    json_t **out, struct err *e) NODISCARD;

/* GET of a text/event-stream. `take` is called for every event; false ends the stream with ST_OK,
 * as does its end at the server. Comments are not shown; a minute without a byte is ST_BUSY. */
struct client_event {
    const char *id, *type; /* "" where not said */
    const char *data;      /* lines joined by "\n" */
};
enum status client_stream(
    struct client *c, const char *path, bool (*take)(void *ctx, const struct client_event *event),
    void *ctx, struct err *e) NODISCARD;

/* A path with its query. Texts are percent-encoded: the format takes %s and %lld alone, and a %s
 * becomes one path segment. A segment that is empty, "." or "..", or a path that is too long,
 * leaves text "", which calls refuse with ST_INVALID. */
struct client_path {
    char text[2048];
    bool cut;
};
struct client_path client_path(const char *fmt, ...) PRINTF(1, 2);
void client_query(struct client_path *p, const char *name, const char *value); /* NULL: nothing */
void client_query_i64(struct client_path *p, const char *name, int64_t value);

#endif
