/* live.h - what is seen while a run goes: a line that is rewritten on a terminal, plain lines in a
 * pipe, JSON lines under --json. All of it on stderr.
 *
 *     live_begin(&l, json) -> live_event (as run_sink.event, ctx = &l) ... -> live_end(&l)
 *
 * Between begin and end the log's lines come here too, so that they do not cut the live line.
 */
#ifndef CLI_LIVE_H
#define CLI_LIVE_H

#include "base/json.h"
#include "base/mem.h"

#include <stdio.h>

struct live {
    FILE *out;
    bool json, terminal, colour;
    bool open;                  /* a line without its end stands on the terminal */
    int64_t plain_ns, epoch_ns; /* when the last plain line was written, the epoch began */
    VEC(char *) said;           /* warnings that have been shown */
    json_t *logged;             /* the log's warnings: a result lists them with its own */
};
void live_begin(struct live *l, bool json);
void live_event(const json_t *event, void *ctx);
/* Takes the live line away, before something else is written on the same terminal. */
void live_clear(struct live *l);
/* Ends the line; the log is what it was. */
void live_end(struct live *l);

#endif
