/* webhook.h - tells another server when a run has ended: POST of a JSON document to webhook_url.
 *
 *     {"event": "run_ended", "run_id", "name", "status", "cause", "error", "owner", "worker",
 *      "devices", "created_at", "started_at", "finished_at", "server"}
 *
 * Any 2xx is fine. Anything else is tried again after 1, 5 and 30 s, then given up with a line in
 * the log. At most WEBHOOK_WAITING_MAX notices wait; beyond that the oldest are dropped. Nothing
 * that may hold a secret is in a notice, and the address is never logged whole.
 */
#ifndef SERVER_WEBHOOK_H
#define SERVER_WEBHOOK_H

#include "base/err.h"

enum { WEBHOOK_WAITING_MAX = 1000 };
struct server;
struct webhook;
/* *out is NULL where no address is set. ST_INVALID: it is no http(s) address. */
enum status webhook_open(struct server *s, struct webhook **out, struct err *e) NODISCARD;
void webhook_close(struct webhook *w); /* what waits gets one try each, a second in all */
/* From any thread, never blocks. NULL w is fine. */
void webhook_ended(struct webhook *w, const char *run_id);

#endif
