/* placement.h - who runs next, where, and why the others wait: a pure function of what it is given.
 *
 * No clock, no file, no thread, no random number: the same world and the same queue give the same
 * answers. A pass is a fold over the queue in order of submission:
 *
 *     place_begin(p, &world);
 *     for each waiting run, oldest first:
 *         switch (place_next(p, class, run->id, run->run_id, &out)) ...
 *
 * What a pass has given away, and what it keeps free for runs that wait, stays with `p` until the
 * next place_begin. So one run that was just submitted may be folded onto the end of the last pass
 * (another place_next) as long as nothing else changed since; everything else needs a new pass.
 * Reasons are made when they are asked for (place_reason), from the last pass.
 *
 * RULES (numbers of requirements.md)
 *
 *   Card: devices of several workers with one UUID are one card, with one count of runs and one
 *   ledger (R9). A device without UUID is a card of its own.
 *
 *   Slots: an exclusive card takes `limit` queued runs: the smallest limit of the connected workers
 *   that offer it; canvas runs are not counted (R1, R7, R8, R9).
 *
 *   Memory: a card is shared when every connected worker that offers it has it so. A run fits there
 *   when budget + context <= min(free - reserved, total - reserved - running), and when no run
 *   without budget is on it (B5, B8). A limit counts there only when it was set for that card
 *   (B12).
 *
 *   Sets: a set takes all its cards at once. At the head of its queue (no earlier run that could
 *   start there but for room wants one of its cards) it keeps those that are free (R7). Of the
 *   workers that could take a set under `any`, the one with most of its cards free keeps them.
 *
 *   Any: by name the first connected worker, neither draining nor disabled, that has room, its
 *   devices in its own order; this server last (R5). One-shot workers only for their pool.
 *
 *   Passing by: the first run with a budget in its queue, when it waits for memory and is the first
 *   that does on its card, lets later ones pass for reserve_ns; then its card takes nothing new
 * until it fits (R19). Under `any` its card is one where it fits when idle canvas children leave,
 * else the one with most room.
 *
 *   Order: otherwise strictly by submission within a queue key, and no queue blocks another.
 *
 * Bytes are int64_t and may be anything: what is negative counts as 0, sums saturate.
 * Not for several threads at once: the core's lock protects it.
 */
#ifndef SERVER_PLACEMENT_H
#define SERVER_PLACEMENT_H

#include "base/err.h"
#include "base/str.h"

#include <stddef.h>
#include <stdint.h>

enum { PLACE_SET_MAX = 16 }; /* devices of one run */

/* ---- limits (R8) ---- */

struct place_limits;
/* `text`: "cuda:0=2,gpu-box/cuda:1=3" (SNUG_RUN_QUEUE_MAX_CONCURRENT); a bare device is this
 * server's, as is "local/cuda:0". `gpu` and `cpu` hold for every other card. Below 1 counts as 1,
 * the last entry for a device wins. Entries that cannot be read are left out, with a line each in
 * `warnings` (may be NULL). NULL as text: no entries. */
struct place_limits *
place_limits_new(const char *text, int64_t gpu, int64_t cpu, struct str *warnings);
void place_limits_free(struct place_limits *l); /* NULL is fine */

/* ---- the world ---- */

/* A device as a worker offers it; the fields of the last heartbeat. */
struct place_device {
    const char *name, *kind, *uuid; /* "cuda:1", "cuda", "" */
    int64_t total_bytes;            /* 0: not reported */
    int64_t free_bytes;
    int64_t reported_ns; /* of several workers with one card, the latest report holds */
    bool shared;         /* by memory (B1); read for cuda and mps only */
};
struct place_worker {
    const char *name, *pool;
    const struct place_device *devices; /* in the worker's own order */
    size_t n_devices;
    bool server;    /* the built-in worker: "this server", named "local" */
    bool same_host; /* as this server; true for the server itself */
    bool connected;
    bool seen; /* connected at some time since the server started */
    bool draining, disabled;
    bool adopting; /* connected, but its runs are not taken over yet: takes nothing (promise-P11) */
    bool one_shot; /* takes one run; `spent` when it has had it */
    bool spent;
    bool can_cap;
};
enum place_lane {
    PLACE_QUEUED,
    PLACE_CANVAS, /* an interactive run that goes on */
    PLACE_WARM    /* a tab's idle child: `budget_bytes` is what it holds; leaves when asked */
};
/* What is on the cards: assigned, running and stopping runs, whoever brought them. */
struct place_live {
    int64_t run;
    const char *run_id; /* 32 hex digits (the first 8 are shown); of a warm child: "" */
    const char *worker; /* its name, also when it is away */
    const char *devices[PLACE_SET_MAX], *uuids[PLACE_SET_MAX]; /* uuid "" or NULL: none */
    size_t n_devices;
    int64_t budget_bytes; /* per card; 0: none */
    enum place_lane lane;
    bool started; /* in the ledger: running; else reserved */
};
struct place_world {
    const struct place_worker *workers;
    size_t n_workers; /* in any order, names are unique */
    const struct place_live *live;
    size_t n_live;
    const struct place_limits *limits;
    int64_t context_bytes; /* beside every budget on a CUDA card */
    int64_t reserve_ns;    /* R19 */
    int64_t now_ns;
};

/* ---- requests ---- */

enum place_target { PLACE_NAMED, PLACE_ANY, PLACE_POOL };
/* What a run asks for, resolved: no defaults are applied here. */
struct place_request {
    enum place_target target;
    const char *worker; /* PLACE_NAMED: "local" or a name */
    const char *pool;   /* PLACE_POOL; "": any pool */
    /* Names ("cuda:2", "cpu") in the order of the run, or one kind ("cuda", "mps", "cpu"): any one
     * device of it. At least one. */
    const char *devices[PLACE_SET_MAX];
    size_t n_devices;
    int64_t budget_bytes; /* per card; 0: none */
    bool raised;          /* by a larger peak: fails when no card can ever hold it (B4) */
};

struct place; /* the planner: requests, queues, and the last pass */
struct place *place_new(void);
void place_free(struct place *p);

/* Runs that ask for the same thing share a class; each run keeps a reference to its own. Made once
 * when a run is submitted or its budget changes, so that a pass compares pointers. */
struct place_class;
struct place_class *place_class_get(struct place *p, const struct place_request *r);
void place_class_give(struct place *p, struct place_class *c); /* NULL is fine */
const struct place_request *place_class_request(const struct place_class *c);
/* The name of the queue that such runs wait in: "cpu", "cuda:0" (this server's),
 * "gpu-box/cuda:2+cuda:0", "any/cuda", "any/cuda:0+cuda:1", "pool:night/cuda". Lives as long as
 * `c`. */
const char *place_class_queue(const struct place_class *c);

/* ---- a pass ---- */

enum place_outcome { PLACE_ASSIGNED, PLACE_WAITS, PLACE_FAILS };
struct place_result {
    size_t worker; /* PLACE_ASSIGNED: index in world.workers */
    /* indices in that worker's devices, in the order of the run */
    size_t devices[PLACE_SET_MAX];
    size_t n_devices;
    bool by_memory; /* onto a shared card: the agent must cap it */
    bool too_large; /* PLACE_FAILS: no card can hold its budget (CAUSE_BUDGET_TOO_LARGE) */
    char text[600]; /* PLACE_FAILS: why (also when the agent cannot cap it: B10) */
};

/* Texts and arrays of the world are copied where they are needed later; it may be gone after. */
void place_begin(struct place *p, const struct place_world *w);
/* The next waiting run, in order of submission. `run` rises with submission; `out` is filled unless
 * the run waits. */
enum place_outcome place_next(
    struct place *p, struct place_class *c, int64_t run, const char *run_id,
    struct place_result *out);
/* Warm children to send away, as positions in world.live: after a pass, those on cards that a run
 * was given or waits for. The array is the planner's, until the next pass. */
const size_t *place_evictions(const struct place *p, size_t *n);
/* When the next pass could end differently although nothing changed (R19): INT64_MAX never. */
int64_t place_wake_ns(const struct place *p);
/* Why a run of that class, met by the last pass, waits: a sentence without a full stop. `run` tells
 * the first of the class from those behind it. */
void place_reason(const struct place *p, const struct place_class *c, int64_t run, struct str *out);

/* ---- one request at submission ---- */

enum place_wait { PLACE_WAIT_DEFAULT, PLACE_WAIT_YES, PLACE_WAIT_NO };
/* Whether such a run may be queued, against the last pass (B7, R4, R5): ST_OK, or ST_INVALID with
 * the refusal's text: a set that is none; a worker that has not connected since the server started,
 * with those that have; devices that it does not offer, with those it does; a shared card without a
 * budget; a budget larger than every card; a budget that does not fit now, with the holders, when
 * the run may not wait. A busy slot is no refusal, nor is a worker that is away, draining or
 * disabled: the run waits. Changes nothing. */
enum status place_judge(
    struct place *p, const struct place_request *r, enum place_wait wait, struct err *e) NODISCARD;

/* ---- what the panel shows ---- */

struct place_card {
    bool shared;              /* as the card is treated */
    bool own_mode;            /* as this worker has it */
    int64_t limit, own_limit; /* slots; 0: the ledger alone decides */
    const char *limit_by;     /* the worker whose limit holds ("local" for this server), or "" */
    int64_t used;             /* queued runs on it */
    int64_t total_bytes, free_bytes;       /* 0, 0: not reported */
    int64_t reserved_bytes, running_bytes; /* contexts included */
    int64_t room_bytes; /* the largest budget that fits now, context deducted; 0 none */
    /* Other workers that offer the same card. */
    const char *others[8];
    size_t n_others; /* all of them, also beyond the array */
};
/* A device of a worker in the last pass's world, after what that pass gave away; false: unknown. */
bool place_card_get(
    const struct place *p, const char *worker, const char *device, struct place_card *out);

/* Asserts what must hold inside. */
void place_check(const struct place *p);

#endif
