/* core_int.h - what the core's files share. Private to them and their tests.
 *
 * INVARIANTS
 *  1. Memory follows the database: run_now of a run changes only between tx_begin and tx_end, by
 *     run_touch first; a transaction that fails puts it back.
 *  2. Every run that has not ended is in `runs`, and either in `waiting` (RUN_WAITING; in `canvas`
 *     those of the interactive lane) or in `live` (assigned, running, stopping; the only ones that
 *     hold cards).
 *  3. A live run has a worker, and an epoch above 0.
 *  4. Hooks are called without the lock, after the commit.
 */
#ifndef SERVER_CORE_INT_H
#define SERVER_CORE_INT_H

#include "base/mem.h"
#include "base/rng.h"
#include "server/core.h"
#include "server/core_map.h"
#include "server/core_options.h"
#include "server/placement.h"
#include "server/store.h"
#include "wire/wire.h"

#include <pthread.h>

#define SECOND_NS INT64_C(1000000000)
enum { NAME_BYTES = 65, ID_BYTES = 33, DEVICES_BYTES = 192 };

/* ---- runs ---- */

/* What changes while a run lives; copied by run_touch. */
struct run_now {
    enum run_state state;
    int64_t epoch, sequence, cursor;
    int64_t budget_bytes, started_us;
    enum budget_source source;
    char budget_run[ID_BYTES];
    bool raised, cancel_asked;
    bool closed; /* its log has its last public event */
    struct worker *worker;
    char devices[DEVICES_BYTES]; /* "cuda:2,cuda:0" of the worker */
};
struct run {
    int64_t id;
    char run_id[ID_BYTES];
    char *texts; /* owns the next ones */
    const char *owner, *tab, *graph_key, *target, *wanted, *pool;
    int64_t sweep, study;
    double timeout_s;
    int n_cards; /* CUDA cards that it asks for; 0: other devices */
    bool command, interactive, wait, record_outputs;
    char *graph_text; /* as submitted, where the stored one lacks secrets; else NULL */
    struct run_now now;

    struct place_class *class; /* while in `waiting` */
    size_t at;                 /* in `waiting`, `canvas` or `live` */
    bool in_live;
    char (*uuids)[NAME_BYTES]; /* of its cards, while in `live`: its agent may come back without
                                  them */
    bool handed;               /* its start went out to the agent */
    bool closed_unknown;       /* after a restart: now.closed is to be read from the log */
    /* Deadlines, 0 none: until it is confirmed (canvas: until its worker is there), killed, over.
     */
    int64_t start_ns, kill_ns, limit_ns;
    struct run *key_next, **key_link; /* waiting runs of one bucket of `by_key` */
    bool touched;
};

/* A place in the queue. A pass goes through all of them, so it finds here all that it needs. */
struct slot {
    struct run *run; /* NULL: a gap */
    struct place_class *class;
    int64_t id;
};

/* ---- workers ---- */

struct card {
    char device[24], kind[8], uuid[NAME_BYTES], name[96];
    int64_t total_bytes, free_bytes, context_bytes, reported_ns;
    enum card_mode mode;
};
struct order_item {
    int64_t number;
    enum order_type type;
    char run_id[ID_BYTES], request[ID_BYTES];
    int64_t run, epoch;
    json_t *body;
};
struct worker {
    int64_t row;
    char worker_id[ID_BYTES], name[NAME_BYTES], kind[16], pool[NAME_BYTES];
    char ssh_host[256]; /* kind ssh: alias, a blank, devices */
    bool server, same_host, one_shot, spent, can_cap, allow_commands;
    bool draining, disabled, seen, connected;
    int strays; /* it came with live runs that are nobody's: nothing new for so many heartbeats */
    bool limits_unsaid; /* it has just connected: limits that another lowers are logged */
    char session[ID_BYTES], instance[NAME_BYTES], credential[ID_BYTES], secret[NAME_BYTES];
    int64_t contact_ns;                 /* the last message of it */
    int64_t heartbeat_ns, heartbeat_us; /* 0: none yet */
    int64_t created_us, seen_us;
    json_t *hello; /* without runs; NULL before the first */
    json_t *caches;
    json_t *nodes_differ; /* {"missing", "extra"}; NULL: as here */
    char last_refusal[256];
    VEC(struct card) cards;
    VEC(struct order_item) orders;
    int64_t number; /* of the last order */
};

struct asked {
    char request[ID_BYTES];
    struct worker *worker;
    int64_t until_ns;
    bool answered;
    int status;
    json_t *body;
};

struct note {
    const char *kind;
    char id[ID_BYTES];
};
struct ending {
    struct run *run;
    enum run_state state;
    enum cause cause;
};
struct warm { /* an idle canvas child that holds memory of cards */
    struct worker *worker;
    char tab[129];
};
struct undo {
    struct run *run;
    struct run_now now;
};
struct later { /* an order that goes out when the transaction is committed */
    struct worker *worker;
    enum order_type type;
    const struct run *run;
    int64_t epoch;
};

enum { KEY_BUCKETS = 4096 };
struct core {
    pthread_mutex_t lock;
    struct store *store;
    struct core_config config;
    char *config_texts;
    struct core_hooks hooks;
    struct rng rng;
    struct instant now; /* of the call that holds the lock */

    struct run_map runs;
    VEC(struct slot) waiting; /* in order of submission */
    size_t gaps;
    VEC(struct run *) canvas; /* RUN_WAITING of the interactive lane: beside the queue */
    VEC(struct run *) live;
    struct run *by_key[KEY_BUCKETS]; /* waiting runs whose budget may follow a peak */

    VEC(struct worker *) workers;
    VEC(struct store_card) modes; /* as stored; texts are owned */
    VEC(struct asked) questions;

    struct place *place;
    struct place_limits *limits;
    bool dirty;            /* a pass is to be made */
    bool passed;           /* the last pass still holds, but for runs behind `folded` */
    bool stale;            /* workers or cards changed since the last pass began */
    int64_t folded;        /* id of the last run that the pass met */
    int64_t pass_ns;       /* no pass before: the last ones took their time */
    VEC(struct warm) warm; /* of the last pass's world, behind the live runs */
    size_t n_world_live;
    int64_t retry_ns; /* no pass before: the last one could not be stored */
    int64_t due_ns;   /* what core_tick last answered, or hooks.due was told */
    bool stopped;     /* by core_stop */
    bool prune;       /* retention has something to do */

    /* Of the transaction that is open, and of the call. */
    VEC(struct undo) undo;
    VEC(struct ending) endings;
    VEC(struct later) later;
    VEC(struct run *) reclass; /* waiting runs whose budget changed */
    VEC(struct note) notes;
    VEC(struct ending) ended; /* for the hook; `run` is owned here by then */
    bool note_runs, note_workers;
    bool ledger_moved; /* a reserved run became a running one */

    struct { /* for core_status */
        int64_t submitted, started, finished, passes, pass_ns_max, events, orders;
    } figures;
};

/* core.c */
void core_enter(struct core *c, struct instant now);
/* For calls that are not told the time: the last one known. */
void core_enter_read(struct core *c);
void core_leave(struct core *c); /* unlocks, then calls the hooks */
void note(struct core *c, const char *kind, const char *id);
void core_dirty(struct core *c); /* a pass is due */
void core_stale(struct core *c); /* and what it knows of workers is wrong */
void make_id(struct core *c, char id[ID_BYTES]);

enum status tx_begin(struct core *c, struct err *e) NODISCARD;
/* Commits or undoes; runs that ended leave memory when it commits. */
enum status tx_end(struct core *c, enum status st, struct err *e) NODISCARD;
void run_touch(struct core *c, struct run *r); /* before r->now changes in a transaction */
/* An order to the run's worker, once the transaction is committed. */
void order_later(struct core *c, enum order_type type, const struct run *r);

/* core_run.c: moves of a run, in a transaction, and its events */
struct run *core_run_new(const struct store_run *row);
void core_run_free(struct core *c, struct run *r);
void run_enqueue(struct core *c, struct run *r); /* RUN_WAITING: into the queue, with its class */
void run_dequeue(struct core *c, struct run *r);
void run_reclass(struct core *c, struct run *r); /* its budget changed */
void run_live_add(struct core *c, struct run *r);
void run_live_remove(struct core *c, struct run *r);
void run_request(const struct run *r, char scratch[DEVICES_BYTES], struct place_request *out);
enum status core_run_event(
    struct core *c, struct run *r, const char *type, json_t *payload, int64_t time_us,
    struct err *e) NODISCARD; /* takes the payload */
/* In a transaction, after run_event: cursor and sequence go into the row. */
enum status run_seen(struct core *c, struct run *r, struct err *e) NODISCARD;
struct run_outcome {
    enum run_state state;
    enum cause cause;
    const char *error;         /* "" */
    const struct run_end *end; /* of the agent, or NULL */
};
enum status
run_finish(struct core *c, struct run *r, const struct run_outcome *o, struct err *e) NODISCARD;
enum status run_stop(struct core *c, struct run *r, bool cancelled, struct err *e) NODISCARD;

/* core_agent.c */
struct worker *worker_by_name(const struct core *c, const char *name);
struct worker *worker_by_session(const struct core *c, const char *session);
struct worker *worker_new(struct core *c, const char *name);
void worker_free(struct worker *w);
bool worker_name_is_valid(const char *name);
struct card *worker_card(struct worker *w, const char *device);
enum status worker_store(struct core *c, struct worker *w, struct err *e) NODISCARD; /* in a tx */
/* The devices it says it has. `fresh`: with their memory, as of now. */
void worker_devices(struct core *c, struct worker *w, const json_t *devices, bool fresh);
/* At start: what it said of itself in its last life. */
void worker_remembers(struct core *c, struct worker *w, const char *hello);
void worker_lost(struct core *c, struct worker *w);  /* is out of reach from now on */
void worker_modes(struct core *c, struct worker *w); /* its cards take the modes that are stored */
void order_push(
    struct core *c, struct worker *w, enum order_type type, const struct run *r, int64_t epoch);
void order_drop(struct worker *w, const char *run_id, enum order_type type);

/* The worker of a session that this caller may speak for; notes the contact. */
enum status session_find(
    struct core *c, const struct actor *who, const char *session, struct worker **w,
    struct err *e) NODISCARD;
const char *budget_source_text(enum budget_source s);

/* core_pass.c */
void core_pass(struct core *c);
/* A pass now where one is due: before judging. `exact`: also when only runs came and went. */
void core_world_fresh(struct core *c, bool exact);
bool core_pass_due(const struct core *c);
int64_t core_wake_ns(const struct core *c);

/* core_graph.c */
/* A graph as submitted, read, identified and packed; made without the lock. */
struct graph_read {
    struct store_blob blob; /* of the graph without its patch, secrets blank */
    bool packed;            /* blob is owned; else it is that of an earlier submission */
    char key[ID_BYTES], device[40], name[200];
    char *secret_text; /* as submitted, where secrets were blanked; else NULL */
};
enum status graph_read(
    const json_t *graph, const json_t *patch, bool pack, struct graph_read *out,
    struct err *e) NODISCARD;
void graph_read_release(struct graph_read *g);
/* A graph of which many patched copies are read: it is parsed and checked once. The document must
 * outlive it. */
struct graph_family {
    const json_t *document;
    struct graph *graph;
    struct graph_keyer *keyer;
    json_t *ids; /* of the document's own nodes */
    struct graph_read common;
};
enum status
graph_family_open(const json_t *graph, struct graph_family *out, struct err *e) NODISCARD;
void graph_family_close(struct graph_family *f);
/* What graph_read would say of the graph with this patch, without a snapshot. */
enum status graph_family_read(
    const struct graph_family *f, const json_t *patch, struct graph_read *out,
    struct err *e) NODISCARD;
/* {"NODE": {"PARAM": value}} into the nodes of a document. */
enum status graph_patch(json_t *graph, const json_t *patch, struct err *e) NODISCARD;
/* The graph of a run as its agent gets it (secrets: from r->graph_text, may be NULL). */
enum status graph_of_run(
    struct core *c, const struct store_run *row, const char *text, json_t **out,
    struct err *e) NODISCARD;

/* core_budget.c */
/* Fills the budget of row and request; `run_id` keeps the text that row points to. */
enum status budget_at_submission(
    struct core *c, const struct run_options *o, struct store_run *row, struct place_request *q,
    char run_id[ID_BYTES], struct err *e) NODISCARD;
/* In a transaction: waiting runs of this graph take what was measured. */
enum status budgets_follow_peak(
    struct core *c, const char *graph_key, int cards, const struct store_peak *peak,
    struct err *e) NODISCARD;
/* In a transaction: waiting runs without a budget take their default, as a card became shared. */
enum status budgets_follow_cards(struct core *c, struct err *e) NODISCARD;

/* core_events.c */
/* The payload within the cap; a new reference. */
json_t *payload_capped(json_t *payload, int64_t cap_bytes);
const char *iso_time(int64_t us, char buf[40]); /* "" for 0 */
/* A cell of a CSV file; what a spreadsheet would compute is quoted off. */
void csv_cell(struct str *out, const char *text);

/* core_read.c */
json_t *devices_json(const char *list); /* "a,b" -> ["a", "b"] */

#endif
