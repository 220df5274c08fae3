/* fake_server.h - a server for the tests of agents: one thread, the test's own, which lends it its
 * time.
 *
 *     struct fake f;
 *     fake_open(&f, 0);
 *     fake_order(&f, "start", id, epoch, order);
 *     CHECK(fake_until(&f, fake_ended, id, 10000));       serves meanwhile
 *     fake_close(&f);
 *
 * It applies events once, in order, as the real one does, and can lose its replies, forget its
 * sessions and go away.
 */
#ifndef AGENT_FAKE_SERVER_H
#define AGENT_FAKE_SERVER_H

#include "base/json.h"
#include "base/mem.h"

enum { FAKE_LINKS = 32 };

struct fake_link {
    int fd; /* -1: free */
    struct str in;
    bool parked; /* a long poll without orders */
    int64_t after, until_ns;
};
struct fake {
    int fd, port;
    struct fake_link links[FAKE_LINKS];
    json_t *orders, *events, *hellos, *answers;
    json_t *sequences; /* {run: last} */
    json_t *verdicts;  /* {run: action}: for the next hello; the rest is kept */
    json_t *fenced;    /* [run]: in the next replies */
    int64_t number;
    int sessions, reports, heartbeats, left;
    double lease_s, heartbeat_s;
    char session[16];
    int lose_replies; /* so many reports are applied and not answered */
    int refuse;       /* status for connect; 0: welcome */
};
void fake_open(struct fake *f, int port);
void fake_close(struct fake *f);
/* Does not listen any more, and drops its connections; what it knows stays. */
void fake_vanish(struct fake *f);
void fake_return(struct fake *f);
/* As a server that was started anew: its sessions are not known any more. */
void fake_forget_sessions(struct fake *f);

void fake_order(struct fake *f, const char *type, const char *run, int64_t epoch, json_t *body);
void fake_serve(struct fake *f, int ms);
bool fake_until(
    struct fake *f, bool (*done)(const struct fake *f, const char *id), const char *id, int ms);

/* The last applied event of that type, borrowed; NULL: none. */
const json_t *fake_event(const struct fake *f, const char *run, const char *type);
int fake_count(const struct fake *f, const char *run, const char *type);
bool fake_ended(const struct fake *f, const char *run);
bool fake_started(const struct fake *f, const char *run);
bool fake_logged(const struct fake *f, const char *run);

#endif
