/* text_line.h - lines made plain: escapes of terminals, HTML and JSON undone, and what stands
 * before the text of a line. */
#ifndef DOCTOR_TEXT_LINE_H
#define DOCTOR_TEXT_LINE_H

#include <stdbool.h>
#include <stddef.h>

/* In place: colours and other terminal sequences, NUL, other control characters and carriage
 * returns go; entities of HTML become characters; a line of JSON has its escapes undone, "\n" as
 * line ends. Returns the new length; the result is a C string. */
size_t line_plain(char *s, size_t n);

struct line_head {
    char source[32]; /* "rank0", "pid=7", ...; "" where nothing names one */
    int rank;        /* -1 unknown */
};
/* Reads prefixes of launchers and loggers; returns where the rest begins. */
const char *line_head_read(const char *s, struct line_head *head);

/* One character of squeezed text for what stands at *s (moved on), or 0 where it is dropped. */
int line_squeeze(const unsigned char **s);

/* The step, batch or iteration that a line names, or -1. */
long long line_step(const char *s);

#endif
