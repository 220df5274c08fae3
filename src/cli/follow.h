/* follow.h - looks on at a run of a server until it ends: its place in the queue and the reason,
 * then its events, through restarts of the server. */
#ifndef CLI_FOLLOW_H
#define CLI_FOLLOW_H

#include "cli/live.h"
#include "cli/remote.h"

struct follow {
    const struct args *args; /* --server, --key, for when the server must be found again */
    struct client *client;   /* owned by the follower while it follows */
    const char *run_id;
    int64_t cursor;          /* of the last event shown */
    bool (*stop)(void *ctx); /* Ctrl-C */
    void *ctx;
    struct live *live;
    void (*event)(
        struct follow *f, const char *type, const json_t *payload); /* each event, in order */
    void (*waits)(struct follow *f, const json_t *row); /* while it is queued, on every change */
    char said[512];                                     /* of waiting, the last time */
};
/* ST_OK: the run has ended, and `*row` is its last row (a new reference). ST_INTERRUPTED: `stop`.
 * ST_IO: the server has been out of reach for two minutes. ST_NOT_FOUND: the run is gone. */
enum status follow_run(struct follow *f, json_t **row, struct err *e) NODISCARD;

/* "queued for cuda:0, 2nd; REASON". */
void waiting_text(const json_t *row, struct str *out);
/* How a run that ended ends a command: ST_OK, ST_OOM, ST_FAILED with the run's own words. */
enum status run_end_status(const json_t *row, struct err *e);

#endif
