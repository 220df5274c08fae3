/* placement_int.h - inside placement: the copy of the world that a pass works on.
 *
 * Everything here but classes and queues lives in the arena of the last place_begin. Workers are
 * sorted as `any` asks them: by name, this server last.
 */
#ifndef SERVER_PLACEMENT_INT_H
#define SERVER_PLACEMENT_INT_H

#include "base/mem.h"
#include "server/placement.h"

enum { SHORT_ID = 8 };

/* How a run fits a card or a set of cards now; the smaller, the nearer to a start. */
enum fit {
    FIT_OK,
    FIT_EVICT,      /* fits when idle canvas children leave */
    FIT_MEMORY,     /* its budget is larger than the room */
    FIT_ALONE,      /* a run without budget has the shared card */
    FIT_SLOT,       /* every slot is taken */
    FIT_KEPT,       /* a free slot is kept for a set at the head of its queue */
    FIT_CLOSED,     /* the card takes nothing before a run that waits for memory (R19) */
    FIT_UNREPORTED, /* a CUDA card whose memory no heartbeat has told yet */
    FIT_ADOPTING,
    FIT_SPENT,
    FIT_DRAINING,
    FIT_OFFLINE,
    FIT_DISABLED,
    FIT_NO_BUDGET,  /* a shared card, and the run has no budget */
    FIT_TOO_LARGE,  /* more than the card has in all */
    FIT_NO_TOTAL,   /* a shared card that reports no memory (MPS) */
    FIT_CANNOT_CAP, /* a shared card of an agent that cannot hold a run to its budget */
    FIT_COUNT
};
/* A worker that takes runs, and a card that may one day hold this one: room is all that lacks. */
static inline bool fit_is_room(enum fit f)
{
    return f >= FIT_EVICT && f <= FIT_CLOSED;
}
static inline bool fit_is_memory(enum fit f)
{
    return f >= FIT_EVICT && f <= FIT_ALONE;
}
static inline bool fit_is_never(enum fit f)
{
    return f >= FIT_NO_BUDGET;
}

struct run_name {
    int64_t run; /* 0: nobody */
    char id[SHORT_ID + 1];
};

struct holder {
    struct holder *next;
    struct run_name who;
    bool queued; /* it takes a slot */
};
struct warm_child {
    struct warm_child *next;
    size_t live; /* position in world.live */
    int64_t cost_bytes;
};

struct device;
struct worker {
    const char *name, *pool;
    struct device *devices;
    size_t n_devices, index; /* in world.workers */
    bool server, same_host, connected, seen, draining, disabled, adopting, one_shot, spent, can_cap;
};

/* A physical card. */
struct card {
    const char *uuid;           /* NULL: one worker's device without UUID */
    const char *worker, *named; /* of that device */
    uint64_t hash;
    struct card *chain;    /* of the table */
    struct device *offers; /* every worker's device that is this card */
    bool cuda, shared;
    int64_t limit; /* 0: none (a shared card without a limit of its own) */
    const struct worker *limit_by;
    int64_t used; /* queued runs */
    int64_t total_bytes, free_bytes, reserved_bytes, running_bytes, warm_bytes;
    struct run_name alone; /* a run without budget */
    struct holder *holders, **holders_end;
    struct warm_child *warm;
    bool evicted; /* its warm children are told to leave */
    /* what waiting runs keep, in this pass */
    bool wanted;  /* an earlier run that names it lacks only room */
    int64_t kept; /* free slots kept for `kept_for` (R7) */
    struct run_name kept_for;
    struct run_name claim; /* the first that waits for memory here (R19) */
    bool closed;           /* and has waited long enough */
};

struct device {
    const char *name, *kind;
    struct worker *worker;
    struct card *card;
    struct device *next_offer;
    int64_t total_bytes, free_bytes, reported_ns;
    int64_t own_limit;
    bool own_explicit, inherits; /* an entry of R8 of its own; this server's */
    bool shared;
};

struct candidate {
    struct worker *worker;
    struct device **devices; /* as many as the queue has */
};

/* A queue: what runs of one key have in common. */
struct queue {
    struct queue *chain;
    uint64_t hash;
    size_t references;
    struct arena texts;
    const char *key;
    struct place_request shape; /* without budget; texts are the queue's */
    size_t n;                   /* cards of a run */
    bool exact;                 /* devices by name, not by kind */
    /* The run that was first to wait for memory, and since when (R19): outlives passes. */
    int64_t first_run, first_since_ns;
    /* this pass */
    uint64_t pass;
    struct candidate *candidates;
    size_t n_candidates;
    bool any_shared;         /* some candidate has a shared card */
    struct run_name waiting; /* the first that waits */
    bool head_seen;          /* a set has been at the head */
    bool memory_seen;        /* a run with a budget that lacks room has been met */
    bool blocked_plain;      /* no room for runs without budget */
    int64_t room_bound;      /* no room for larger budgets; INT64_MAX unknown */
};

struct place_class {
    struct place_class *chain;
    uint64_t hash;
    size_t references;
    struct queue *queue;
    struct place_request request; /* texts are the queue's */
    uint64_t blocked;             /* the pass in which it found no room */
};

struct place {
    struct place_class **classes;
    struct queue **queues;
    size_t n_classes, cap_classes, n_queues, cap_queues;
    /* the last pass */
    uint64_t pass;
    struct arena arena;
    struct worker *workers;
    size_t n_workers;
    struct card **cards; /* a table of chains */
    size_t cap_cards;
    const char *server_name; /* of the built-in worker, or "" */
    int64_t context_bytes, reserve_ns, now_ns, wake_ns;
    VEC(size_t) evictions;
};

/* placement_limits.c: false when no entry is for this device. `worker` is "local" for the server.
 */
bool limits_find(
    const struct place_limits *l, const char *worker, const char *device, int64_t *out);
int64_t limits_default(const struct place_limits *l, const char *kind);

/* placement_world.c */
void world_copy(struct place *p, const struct place_world *w);
struct worker *world_worker(const struct place *p, const char *name); /* NULL: unknown */
struct device *worker_device(const struct worker *w, const char *name);
int64_t bytes_add(int64_t a, int64_t b); /* neither negative; saturates */
void name_set(struct run_name *n, int64_t run, const char *run_id);
/* Books a run onto a card. */
void card_hold(struct place *p, struct card *c, int64_t budget_bytes, bool started);
void card_holder(struct place *p, struct card *c, int64_t run, const char *run_id, bool queued);
void card_evict(struct place *p, struct card *c);

/* placement_fit.c */
int64_t card_cost(const struct place *p, const struct card *c, int64_t budget_bytes);
/* min(free - reserved, total - reserved - running); may be negative. */
int64_t card_room(const struct card *c);
enum fit worker_fit(const struct worker *w);
/* Whether it could ever be: FIT_OK or a never. `at`: the device that decides (may be NULL). */
enum fit candidate_ever(
    const struct place *p, const struct queue *q, const struct candidate *c, int64_t budget_bytes,
    const struct device **at);
enum fit candidate_fit(
    const struct place *p, const struct queue *q, const struct candidate *c, int64_t budget_bytes,
    int64_t run, const struct device **at);
/* The largest cost that its shared cards have room for; INT64_MAX without shared cards, -1 when a
 * run without budget has one. */
int64_t candidate_room(const struct queue *q, const struct candidate *c);
/* The candidate nearest to a start (the first of equals; of those that lack memory, the one with
 * most room), or NULL when there is none. */
const struct candidate *queue_best(
    const struct place *p, const struct queue *q, int64_t budget_bytes, int64_t run, enum fit *fit,
    const struct device **at);

/* placement.c */
void queue_ready(struct place *p, struct queue *q); /* candidates of this pass */

/* placement_text.c */
void text_device(struct str *out, const struct device *d); /* "cuda:1 on gpu-box" */
void text_names(struct str *out, const struct queue *q);   /* "cuda:0, cuda:1" */
void text_fit(
    const struct place *p, const struct queue *q, const struct device *at, enum fit f,
    const struct place_request *r, struct str *out);
/* "needs 12.0 GiB (+0.8 GiB CUDA context), cuda:1 on gpu-box has 6.3 GiB free (runs ...)" (B5) */
void text_needs(
    const struct place *p, const struct device *at, int64_t budget_bytes, struct str *out);
void text_too_large(
    const struct place *p, const struct queue *q, int64_t budget_bytes, struct str *out);
void text_offers(struct str *out, const struct worker *w); /* "it offers cpu, cuda:0" */

#endif
