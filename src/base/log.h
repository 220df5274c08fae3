/* log.h - logfmt lines on stderr: `level=warn msg="..." node=train`. stdout is only for answers. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stddef.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

void log_level_set(enum log_level least);
/* `fmt` gives the message text; it is quoted and escaped here. */
void log_line(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Sends every line elsewhere (the live display, a JSON event stream, a test); NULL restores. */
void log_sink_set(void (*sink)(enum log_level level, const char *text, void *ctx), void *ctx);
const char *log_level_name(enum log_level level);

#define log_info(...) log_line(LOG_INFO, __VA_ARGS__)
#define log_warn(...) log_line(LOG_WARN, __VA_ARGS__)

#endif
