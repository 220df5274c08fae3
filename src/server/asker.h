/* asker.h - plans and estimates of graphs, made by short-lived children: `snug plan FILE --json`.
 *
 * WHY  The server never touches tensors: a graph that takes for ever to plan, or crashes whoever
 * plans it, ends a child. Each has a time limit, after which its whole tree is killed, and is the
 * first to go when the machine runs out of memory.
 *
 *     TRY(asker_ask(a, &question, &ticket, e));       ST_FULL when too many wait
 *     ... wait for the topic ("asked", ticket) ...
 *     if (asker_take(a, ticket, &status, &body)) ...  an HTTP status and its body, once
 */
#ifndef SERVER_ASKER_H
#define SERVER_ASKER_H

#include "base/json.h"

#include <stdint.h>

struct server;
struct asker;

enum { ASKER_CHILDREN = 2, ASKER_WAITING_MAX = 32, ASKER_SETS_MAX = 64 };
struct asker_question {
    const char *command; /* "plan", "estimate" */
    const json_t *graph; /* borrowed, as everything here */
    const char *device;  /* NULL: the graph's */
    double memory_gib;   /* 0: no limit */
    const json_t *sets;  /* ["NODE.PARAM=VALUE"] or NULL */
};
enum status asker_open(struct server *s, struct asker **out, struct err *e) NODISCARD;
void asker_close(struct asker *a); /* kills what runs; NULL is fine */
enum status asker_ask(
    struct asker *a, const struct asker_question *question, char ticket[33],
    struct err *e) NODISCARD;
bool asker_take(struct asker *a, const char *ticket, int *status, json_t **body);

#endif
