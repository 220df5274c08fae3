/* ws.h - /ws/execution: an editor's view of runs over a WebSocket (RFC 6455), in both of its forms.
 *
 * One thread serves every socket (epoll). server_open calls ws_open after http_open, and ws_close
 * before http_close; routes.def has the row of route_ws_execution (GET, access UPGRADE).
 *
 * TWO FORMS. A connection starts in the form of 1.4.2, whose editor gives every run a `run_id` of
 * its own in `execute` and knows no `subgraphs`, `settings`, `seed` or `deterministic`. It becomes
 * a view (the newer form) with the first message that is otherwise: an `execute` without `run_id`
 * or with one of these, an `attach`, `detach` or `cancel`; it never goes back. Both submit on the
 * interactive lane.
 *
 *     1.4.2   the run belongs to the connection: a second execute cancels the first, closing
 *             cancels. Frames: execution_start, node_status {node_id, status, error?, progress?,
 *             log?, image?, output_summary?}, execution_complete, execution_stopped,
 *             execution_error, cache_cleared, error. The editor's own run_id is what
 *             execution_start says and what /api/execution/outputs takes.
 *     view    the run belongs to the server: execute detaches from the run followed before,
 *             closing only detaches. Frames are stored events {type, run_id, cursor, ...payload},
 *             and attached, detached, cancel_ack, execution_stopped, cache_cleared, error,
 *             execution_error {rejected}.
 *
 * A connection that follows a run reads its event log from its own cursor, at the pace of its own
 * socket, at most WS_FRAMES_MAX frames ahead of it: one that does not read costs its place and
 * slows nobody. A 1.4.2 connection that falls behind skips progress (newest first kept), never an
 * end or an error; a view never has gaps.
 *
 * CLOSE CODES  1002 protocol, 1003 not text, 1007 not UTF-8, 1009 frame or message too large,
 * 1001 server stops, 4003 host or origin, 4401 token.
 *
 * LIMITS  messages of WS_MAX_MESSAGE_BYTES (that of run bodies), WS_FRAMES_MAX frames waiting for a
 * client; a ping every 20 s; a client that answers none for 60 s is gone.
 */
#ifndef SERVER_WS_H
#define SERVER_WS_H

#include "server/server.h"

enum { WS_FRAMES_MAX = 256, WS_CLIENTS_MAX = 2048 };

struct ws;
enum status
ws_open(struct server *s, int64_t message_max_bytes, struct ws **out, struct err *e) NODISCARD;
void ws_close(struct ws *w); /* says 1001 to everyone and ends the thread */

/* The run that an editor of 1.4.2 calls so, else the name itself; into out, which is returned. */
const char *ws_run_id(struct ws *w, const char *name, char out[129]);

#endif
