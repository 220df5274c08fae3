/* output.h - what a run writes to stdout and stderr: kept in output.log, shown as log events.
 *
 * LIMITS  output.log holds the first bytes of a run as they come and, at its end, a line that says
 * how much is left out and the last bytes: at most SNUG_RUN_LOG_MAX_BYTES (16 MiB) in all. Log
 * events come at most every 100 ms, with whole lines where there are any; 64 KiB a second and 8 MiB
 * in all pass, the rest is counted and said. A flood costs its own run's pipe, nobody else.
 */
#ifndef AGENT_OUTPUT_H
#define AGENT_OUTPUT_H

#include "base/str.h"
#include "wire/journal.h"

struct run_output {
    int pipe; /* the caller's; -1: nobody can write any more */
    int log;  /* output.log; -1: not open, or cannot be written */
    int64_t head_left, dropped;
    char *ring; /* the last bytes, once the head is full */
    size_t ring_cap, ring_n, ring_at;
    struct journal *events; /* NULL: no log events */
    struct str pending;     /* not yet an event */
    int64_t pending_since_ns, rate_at_ns, rate_left, total_left, left_out;
    bool rate_started;
};
/* `pipe`: the read end, which does not block; it stays the caller's. `events` is borrowed, NULL:
 * none. A log that cannot be opened is left out. */
void run_output_open(
    struct run_output *o, int pipe, const char *dir, int64_t log_bytes_max, struct journal *events);
/* Reads what is there, at most a few times 64 KiB. At the end of the pipe `pipe` becomes -1. */
void run_output_read(struct run_output *o, int64_t now_ns);
/* When run_output_flush is due; INT64_MAX: never. */
int64_t run_output_due_ns(const struct run_output *o);
void run_output_flush(struct run_output *o, int64_t now_ns, bool all);
/* What the pipe still holds, the last event, the end of the log. */
void run_output_close(struct run_output *o, int64_t now_ns);

/* Adds n bytes as UTF-8: what is none, and NUL, becomes U+FFFD. Returns how many bytes were taken:
 * fewer than n where the last character is not whole and `more` may come. */
size_t run_output_utf8(struct str *to, const char *bytes, size_t n, bool more);

#endif
