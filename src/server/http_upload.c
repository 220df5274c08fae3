/* http_upload.c - a body that is a file: written beside its place as it arrives, complete or gone.
 */
#include "server/http_int.h"

#include "base/env.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static bool is_multipart(const char *type)
{
    return type && strncasecmp(type, "multipart/", 10) == 0;
}

/* What the file is called: the form's, or ?name=. */
static bool spool_name(struct exchange *x)
{
    const char *name = x->spool.parts ? multipart_name(x->spool.parts) : http_query(&x->q, "name");
    if (name && strlen(name) < sizeof x->spool.file.name) {
        (void)snprintf(x->spool.file.name, sizeof x->spool.file.name, "%s", name);
        return true;
    }
    exchange_refuse(
        x, name ? 400 : 422,
        name             ? "the file name is longer than 255 bytes"
        : x->spool.parts ? "the form has no file"
                         : "a form with a file is needed, or ?name= and the file as the body");
    return false;
}

bool spool_begin(struct exchange *x)
{
    const char *type = x->head.get(x->head.ctx, "Content-Type");
    struct err e = {0};
    if (is_multipart(type)) {
        x->spool.parts = multipart_new(type);
        if (!x->spool.parts)
            exchange_refuse(x, 422, "the form's boundary is missing or malformed");
    } else if (!http_query(&x->q, "name")) {
        (void)spool_name(x);
    }
    if (x->replied)
        return false;
    if (!x->h->config.spool || dir_make(x->h->config.spool, &e) != ST_OK) {
        exchange_refuse(x, 503, "no uploads can be taken now");
        return false;
    }
    (void)snprintf(
        x->spool.file.path, sizeof x->spool.file.path, "%s/upload-XXXXXX", x->h->config.spool);
    x->spool.fd = mkstemp(x->spool.file.path); /* mode 0600 */
    if (x->spool.fd < 0)
        exchange_refuse(x, 503, "could not write an upload: %s", strerror(errno));
    return x->spool.fd >= 0;
}

static bool spool_write(void *ctx, const char *p, size_t n)
{
    struct exchange *x = ctx;
    x->spool.file.bytes += (int64_t)n;
    if (x->spool.file.bytes > x->limit) {
        exchange_refuse(x, 413, "the file is larger than %lld bytes", (long long)x->limit);
        return false;
    }
    while (n > 0) {
        ssize_t wrote = write(x->spool.fd, p, n);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0) {
            exchange_refuse(x, 503, "could not write an upload: %s", strerror(errno));
            return false;
        }
        p += wrote, n -= (size_t)wrote;
    }
    return true;
}

void spool_take(struct exchange *x, const char *data, size_t n)
{
    if (!x->spool.parts) {
        (void)spool_write(x, data, n);
        return;
    }
    const char *fault = multipart_feed(x->spool.parts, data, n, spool_write, x);
    if (fault && !x->replied)
        exchange_refuse(x, 422, "%s", fault);
    if (!x->replied && x->arrived > x->limit + 65536)
        exchange_refuse(x, 413, "the form is larger than %lld bytes", (long long)x->limit);
}

void spool_end(struct exchange *x)
{
    if (!spool_name(x))
        return;
    if (x->spool.parts && !multipart_is_complete(x->spool.parts)) {
        exchange_refuse(x, 422, "the form ends before its file does");
        return;
    }
    if (fsync(x->spool.fd) != 0) {
        exchange_refuse(x, 503, "could not write an upload: %s", strerror(errno));
        return;
    }
    x->spool.complete = true;
    x->q.upload = x->spool.file;
}

void spool_release(struct spool *s)
{
    if (s->fd >= 0) {
        (void)close(s->fd);
        (void)unlink(s->file.path); /* not there any more where a route has renamed it */
    }
    s->fd = -1;
    multipart_free(s->parts);
    s->parts = NULL;
}
