/* core_test_support.h - for tests: a core over a database in memory, and agents that only talk. */
#ifndef SERVER_CORE_TEST_SUPPORT_H
#define SERVER_CORE_TEST_SUPPORT_H

#include "server/core.h"
#include "server/core_int.h"

struct stage {
    char path[256]; /* of the database; ":memory:" */
    struct store *store;
    struct core *core;
    struct core_config config;
    struct core_hooks hooks;
    json_t *devices;
    struct instant now;
    char said[1 << 16]; /* what hooks.changed and hooks.ended were told, a line each */
    size_t n_said;
    struct actor owner, person, worker;
    struct err e;
};
/* This server with one CPU, and cards if `cards` > 0. Fails the test when it cannot. */
void stage_open(struct stage *s, int cards);
/* As the server would after a kill: everything in memory is gone. */
void stage_restart(struct stage *s);
void stage_close(struct stage *s);
void stage_pass(struct stage *s, double seconds); /* time goes by, with a tick each second */

/* A small graph with so many units (another graph by its key). */
json_t *small_graph(int units);
/* Single quotes stand for double ones. */
json_t *J(const char *text);

/* Submits and returns the run's id; NULL when it was refused (s->e says why). Static storage, the
 * last eight live. */
const char *submit(struct stage *s, const char *options);
const char *submit_graph(struct stage *s, int units, const char *options);
json_t *row_of(struct stage *s, const char *run);
/* One field of it as text ("" for null). Static storage, the last eight live. */
const char *field(struct stage *s, const char *run, const char *path);

struct puppet {
    struct stage *s;
    char name[65], session[33], instance[33];
    struct actor who;
    json_t *hello, *welcome;
    int64_t after;
};
/* An agent with CUDA cards of so many GiB; uuid of card i is "<name>-i". */
void puppet_open(struct puppet *f, struct stage *s, const char *name, int cards, double gib);
bool puppet_connect(struct puppet *f); /* false: refused */
void puppet_close(struct puppet *f);
/* The next order of that type, or NULL; a new reference. Others before it are dropped. */
json_t *puppet_order(struct puppet *f, const char *type);
/* All orders that are out; acknowledged. */
json_t *puppet_orders(struct puppet *f);
/* An event of a run (single quotes in the payload). False when it was fenced. */
bool puppet_event(
    struct puppet *f, const char *run, int64_t epoch, int64_t sequence, const char *type,
    const char *payload);
/* Takes the start of a run and says that it started; returns its epoch, 0 when there is none. */
int64_t puppet_start(struct puppet *f, const char *run);
/* started was 1: execution_complete and ended with this status. */
void puppet_end(struct puppet *f, const char *run, int64_t epoch, const char *status);
void puppet_heartbeat(struct puppet *f);

#endif
