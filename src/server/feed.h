/* feed.h - the next events of a run as text for streams, read once for all who stand at one place.
 *
 * A thousand pages that follow one run ask for the same events at the same moment. What the first
 * of them read and wrote as text is kept until the run changes (its topic is woken), so that the
 * others copy bytes. Any thread may call.
 */
#ifndef SERVER_FEED_H
#define SERVER_FEED_H

#include "base/err.h"
#include "base/str.h"

#include <stdint.h>

struct server;
struct feed;
struct feed *feed_new(struct server *s);
void feed_free(struct feed *f); /* NULL is fine */
/* Adds the events after *cursor (some of them; moves it) in the form of http_sse, id: the cursor.
 * `status` gets the run's status, *active whether more may come. ST_NOT_FOUND: no such run. */
enum status feed_next(
    struct feed *f, const char *run_id, int64_t *cursor, struct str *out, char status[16],
    bool *active, struct err *e) NODISCARD;

#endif
