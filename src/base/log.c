/* log.c - logfmt lines on stderr. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

static enum log_level least_level = LOG_INFO;
static void (*sink_fn)(enum log_level, const char *, void *);
static void *sink_ctx;

const char *log_level_name(enum log_level level)
{
    static const char *const names[] = {"debug", "info", "warn", "error"};
    return names[level];
}

void log_level_set(enum log_level least)
{
    least_level = least;
}

void log_sink_set(void (*sink)(enum log_level, const char *, void *), void *ctx)
{
    sink_fn = sink;
    sink_ctx = ctx;
}

void log_line(enum log_level level, const char *fmt, ...)
{
    if (level < least_level)
        return;
    char text[1024], quoted[2100];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (sink_fn) {
        sink_fn(level, text, sink_ctx);
        return;
    }
    size_t n = 0;
    for (const char *p = text; *p && n + 3 < sizeof quoted; p++) {
        if (*p == '"' || *p == '\\')
            quoted[n++] = '\\';
        quoted[n++] = *p == '\n' ? ' ' : *p;
    }
    quoted[n] = 0;
    (void)fprintf(stderr, "level=%s msg=\"%s\"\n", log_level_name(level), quoted);
}
