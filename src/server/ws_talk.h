/* ws_talk.h - what is said over /ws/execution: actions in, frames out, in both forms of ws.h.
 *
 * A talk belongs to one connection. It knows runs only through `struct ws_runs`, so tests and
 * fuzzers can put a fake behind it. It never reads ahead of its connection: ws_talk_pump sends at
 * most as many frames as the connection has room for, from the talk's own cursor.
 *
 * Translation to the form of 1.4.2: of a node_status's outputs[], `progress` becomes progress,
 * `text` log, `image` image (its base64), everything with a port output_summary[port];
 * `interrupted` is said as skipped, which that editor knows; warnings become a log line of their
 * node; metrics, artifacts, plans and logs of commands are left out.
 */
#ifndef SERVER_WS_TALK_H
#define SERVER_WS_TALK_H

#include "base/json.h"
#include "server/http.h"

struct ws_runs {
    void *ctx;
    /* core_submit on the interactive lane; replace: the tab's run before is cancelled first. */
    enum status (*submit)(
        void *ctx, const struct actor *who, const json_t *graph, const json_t *options,
        bool replace, json_t **reply, struct err *e);
    enum status (*cancel)(void *ctx, const char *run_id, json_t **reply, struct err *e);
    enum status (*status)(void *ctx, const char *run_id, char status[16], struct err *e);
    enum status (*events)(
        void *ctx, const char *run_id, int64_t cursor, int64_t limit, json_t **page, struct err *e);
    enum status (*clear_cache)(void *ctx, const char *tab, struct err *e);
    /* The editor's own name for a run, by which it asks for outputs later. */
    void (*alias)(void *ctx, const char *theirs, const char *run_id);
};

enum ws_form { WS_FORM_142, WS_FORM_VIEW };

struct ws_talk {
    const struct ws_runs *runs;
    struct actor who;
    void (*send)(void *ctx, json_t *frame); /* takes the reference */
    void *ctx;
    enum ws_form form;
    char tab[129];      /* graph_id of the last execute; before, a name of the connection's own */
    char run_id[33];    /* followed; "" none */
    char their_id[129]; /* what the editor calls it; "" as we do */
    int64_t cursor;     /* of the last event that was sent */
};
void ws_talk_init(
    struct ws_talk *t, const struct ws_runs *runs, const struct actor *who, const char *session,
    void (*send)(void *ctx, json_t *frame), void *ctx);
/* A message of the client; whatever is wrong with it is said in a frame. */
void ws_talk_message(struct ws_talk *t, const char *text, size_t n);
/* Sends what is new, at most `room` events. True when there may be more. */
bool ws_talk_pump(struct ws_talk *t, size_t room);
/* The connection is gone: cancels in the form of 1.4.2. */
void ws_talk_end(struct ws_talk *t);

/* An event's frame in each form; a new reference. 1.4.2: NULL where it has none. */
json_t *ws_frame_view(const json_t *event, const char *run_id);
json_t *ws_frame_142(const json_t *event, const char *run_id);

#endif
