/* err.c - statuses, error texts, assertions. */
#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    int exit_status, http;
    const char *code;
} rows[ST_COUNT] = {
#define X(name, exit_status, code, http) {exit_status, http, code},
#include "base/status.def"
#undef X
};

enum status err_set(struct err *e, enum status status, const char *fmt, ...)
{
    if (!e)
        return status;
    /* The text may quote an earlier error of the same struct, so it is made aside first. */
    char text[sizeof e->text];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    *e = (struct err){.status = status};
    memcpy(e->text, text, sizeof text);
    return status;
}

enum status err_errno(struct err *e, const char *fmt, ...)
{
    int code = errno;
    enum status status = code == ENOENT ? ST_NOT_FOUND : ST_IO;
    if (!e)
        return status;
    char text[sizeof e->text];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    *e = (struct err){.status = status};
    (void)snprintf(e->text, sizeof e->text, "%.600s: %s", text, strerror(code));
    return status;
}

void err_hint(struct err *e, const char *fmt, ...)
{
    if (!e)
        return;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(e->hint, sizeof e->hint, fmt, ap);
    va_end(ap);
}

void err_detail(struct err *e, const char *fmt, ...)
{
    if (!e)
        return;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(e->detail, sizeof e->detail, fmt, ap);
    va_end(ap);
}

void err_prefix(struct err *e, const char *fmt, ...)
{
    if (!e)
        return;
    char text[sizeof e->text];
    memcpy(text, e->text, sizeof text);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof e->text)
        (void)snprintf(
            e->text + n, sizeof e->text - (size_t)n, ": %.*s", (int)(sizeof text - 3) - n, text);
}

void err_node(struct err *e, const char *id, const char *type)
{
    if (!e || e->node[0])
        return;
    (void)snprintf(e->node, sizeof e->node, "%s", id);
    (void)snprintf(e->node_type, sizeof e->node_type, "%s", type ? type : "");
}

int status_exit(enum status s)
{
    return rows[s].exit_status;
}

const char *status_code(enum status s)
{
    return rows[s].code;
}

int status_http(enum status s)
{
    return rows[s].http;
}

void assert_fail(const char *cond, const char *file, int line)
{
    (void)fprintf(stderr, "snug: broken invariant: %s (%s:%d)\n", cond, file, line);
    abort();
}
