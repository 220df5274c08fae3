/* routes.h - the table of routes (routes.def), and how a request finds its row.
 *
 * ACCESS  who may call a route. Each kind that is named may; the owner (SNUG_HOME/session.token)
 * may always.
 *     OPEN     everybody (whose Host is ours); a token that is sent is still looked at
 *     READ     everybody; with the setting private_reads: page, key
 *     WRITE    page, key. Without a token: 403 "Missing or invalid X-CodefyUI-Token header"
 *     EXEC     a key with exec; never the page
 *     OWNER    nobody else
 *     WORKER   a worker's credential (the built-in worker and those of the same machine show the
 *              owner's token)
 *     ENROLL   a worker's credential or a join token
 *     UPGRADE  everybody: the route refuses by itself, by http_request.refused (WebSockets)
 * An unknown, spent or revoked token is 403 on a route that needs one, and 401 where it came as
 * "Authorization: Bearer"; a known one of a kind that may not is 403.
 *
 * BODY  what comes with the request.
 *     NONE      nothing; what is sent is read and thrown away (up to 64 KiB, else 413)
 *     JSON      an object: q->json. Not JSON, or not an object: 422
 *     JSON_ANY  an object, or nothing at all: q->json is an object in any case
 *     RAW       bytes: q->body, q->body_bytes, at most body_max_bytes
 *     UPLOAD    a file of at most upload_max_bytes, as multipart/form-data (its first part that has
 *               a file name) or as the plain body with ?name=: q->upload
 */
#ifndef SERVER_ROUTES_H
#define SERVER_ROUTES_H

#include "server/http.h"

enum route_method {
    METHOD_GET,
    METHOD_POST,
    METHOD_PUT,
    METHOD_PATCH,
    METHOD_DELETE,
    METHOD_COUNT
};
enum route_access {
    ACCESS_OPEN,
    ACCESS_READ,
    ACCESS_WRITE,
    ACCESS_EXEC,
    ACCESS_OWNER,
    ACCESS_WORKER,
    ACCESS_ENROLL,
    ACCESS_UPGRADE
};
enum route_body { BODY_NONE, BODY_JSON, BODY_JSON_ANY, BODY_RAW, BODY_UPLOAD };

struct route {
    enum route_method method;
    const char *path; /* "/api/runs/{id}" */
    void (*handler)(struct server *s, const struct http_request *q, struct http_reply *r);
    enum route_access access;
    enum route_body body;
    const char *about;
};

#define ROUTE(method, path, handler, access, body, about)                                          \
    void handler(struct server *s, const struct http_request *q, struct http_reply *r);
#include "server/routes.def"
#undef ROUTE

extern const struct route routes[];
extern const size_t route_count;

const char *method_name(enum route_method m);               /* "GET" */
const char *access_name(enum route_access a);               /* "owner" */
bool method_find(const char *name, enum route_method *out); /* HEAD is GET */

enum { ROUTE_PARAMS = 4, ROUTE_PATH_BYTES_MAX = 2048 };
/* A path (without query, as it came over the wire) against the table. */
struct route_match {
    const struct route *route; /* NULL: no row for this path and method */
    unsigned methods;          /* that the path has: bits of enum route_method; 0: unknown path */
    char text[ROUTE_PATH_BYTES_MAX]; /* decoded parts that param points to */
    const char *param[ROUTE_PARAMS];
};
/* False: the path is malformed (a bad or NUL percent code, not UTF-8, too long): 400. */
bool route_find(
    const struct route *rows, size_t n_rows, const char *path, enum route_method method,
    struct route_match *out);

#endif
