/* store.h - SQLite, the truth about runs, workers, keys, sweeps: snug.db.
 *
 *     struct store *s;
 *     TRY(store_open("…/snug.db", NULL, &s, e));
 *     TRY(store_begin(s, e));
 *     st = store_run_add(s, &run, &id, e);
 *     if (st == ST_OK)
 *         st = store_event_add(s, id, &event, e);
 *     st = store_end(s, st, e);              commits, or rolls back when st is not ST_OK
 *
 * WRITING  One connection writes and checkpoints. store_begin takes it (waiting for whoever has it,
 * so it is taken after the core's mutex, never before), store_end gives it back; every function
 * whose comment says "in a transaction" asserts that this thread is between the two. A transaction
 * that failed anywhere is rolled back whole, and the next one starts afresh: nothing is to be
 * repaired after a full disk. A commit that returned ST_OK survives kill -9 and power loss
 * (WAL, synchronous FULL).
 *
 * READING  Functions under "reading" may be called from any thread at any time. Each borrows one of
 * a few read-only connections and sees what was committed before it began. In a thread that is
 * within a transaction they use the writing connection, and see what it has written so far.
 *
 * TEXTS  are UTF-8, never NULL when read ("" where the column is null); written NULL equals "".
 * Whatever is read lives in the arena that is passed. Documents are JSON texts, stored as given.
 * Times are microseconds since 1970 of the wall clock, 0 for none; nothing is decided by them.
 *
 * ERRORS  ST_IO: disk full, read-only, input/output error, damaged (text says which); ST_BUSY:
 * another program kept the file locked for 30 s; ST_CONFLICT: a unique value is taken, or a row is
 * not in a state that allows the change; ST_NOT_FOUND.
 */
#ifndef SERVER_STORE_H
#define SERVER_STORE_H

#include "base/err.h"
#include "base/mem.h"

#include <stddef.h>
#include <stdint.h>

enum run_state {
#define RUN_STATE(name, text, status, ended, about) RUN_##name,
#include "server/states.def"
    RUN_STATE_COUNT
};
const char *run_state_name(enum run_state s);   /* "assigned" */
const char *run_state_status(enum run_state s); /* "queued" */
bool run_state_ended(enum run_state s);
bool run_state_may(enum run_state from, enum run_state to);
/* The final state of a status text ("failed"); false when it is not one. */
bool run_state_find_ended(const char *status, enum run_state *out);

enum { STORE_ID = 32 }; /* hex digits of text ids */

struct store;
struct store_options {
    const char *vfs; /* NULL: the system's; tests bring their own */
    bool fast;       /* tests only: commits do not sync, so a power cut may lose them */
    int readers;     /* read-only connections; 0: 4 */
};
/* Opens or makes the database; ":memory:" is one that nobody else sees. Brings an older one up to
 * date. ST_UNSUPPORTED: it was written by a newer program; ST_CORRUPT: the check after an unclean
 * stop found damage, or it is not a database. `o` may be NULL. */
enum status store_open(
    const char *path, const struct store_options *o, struct store **out, struct err *e) NODISCARD;
void store_close(struct store *s); /* checkpoints; NULL is fine */

enum status store_begin(struct store *s, struct err *e) NODISCARD;
/* Commits when st is ST_OK, else rolls back and returns st. */
enum status store_end(struct store *s, enum status st, struct err *e) NODISCARD;
bool store_inside(const struct store *s); /* this thread is within a transaction */

/* For the timer, about once a second when nothing happens: moves the WAL into the file, gives freed
 * pages back. Takes the writing connection only when it is free. */
void store_idle(struct store *s);
/* An online copy, whole at any moment. */
enum status store_backup(struct store *s, const char *path, struct err *e) NODISCARD;

struct store_health {
    const char *sqlite_version;    /* "3.40.1"; static */
    bool wal_reset_bug;            /* below 3.51.3: never open the file for writing twice */
    int64_t file_bytes, wal_bytes; /* -1 unknown */
    bool wal_large;                /* a reader keeps the WAL from being reset */
    bool checked;                  /* the check after an unclean stop was done at this start */
    bool failing;                  /* the last transaction failed for the disk's sake */
    char last_error[256];
    int64_t failures;
};
void store_health(struct store *s, struct store_health *out);

/* ---- graphs: snapshots, compressed, each kept once ---------------------------------------- */

/* Made outside of any lock, since it takes time. Secrets must be blank already
 * (graph_document). Owner: whoever called pack. */
struct store_blob {
    unsigned char hash[32]; /* SHA-256 of the text */
    size_t text_bytes, packed_bytes;
    void *packed;
};
enum status
store_blob_pack(const char *text, size_t n, struct store_blob *out, struct err *e) NODISCARD;
void store_blob_release(struct store_blob *b);
/* In a transaction: the id of this snapshot, new or there already. */
enum status
store_graph_put(struct store *s, const struct store_blob *b, int64_t *id, struct err *e) NODISCARD;
/* Reading: the text (mem_free), NUL after it. */
enum status
store_graph_get(struct store *s, int64_t id, char **text, size_t *n, struct err *e) NODISCARD;

/* ---- runs ----------------------------------------------------------------------------------- */

enum budget_source { BUDGET_NONE, BUDGET_GIVEN, BUDGET_MEASURED, BUDGET_ESTIMATE };

struct store_run {
    int64_t id; /* inside; rises with submission, so it is the place in every queue */
    char run_id[STORE_ID + 1];
    enum run_state state;

    /* as submitted; never changed */
    const char *name, *owner;
    const char *kind;    /* "graph" or "command" */
    const char *lane;    /* "queued" or "interactive" */
    const char *tab;     /* of an interactive run */
    const char *options; /* the options, checked */
    int64_t graph_id;    /* snapshot; 0 for commands */
    const char *patch;   /* {"NODE": {"PARAM": value}} over the snapshot, of sweeps; "" none */
    const char *graph_key, *graph_dir;
    const char *command; /* {"argv", "working_dir", "environment"}; "" for graphs */
    const char *target;  /* "local", "any" or the worker's name */
    const char *wanted;  /* devices asked for: "cuda:2,cuda:0"; or a kind, "cuda", under any */
    const char *pool;
    bool wait; /* wait when it does not fit now */
    const char *resume;
    double timeout_s;
    const char *git_commit, *plugin_pins;
    bool git_dirty;
    const char *idempotency_key; /* unique per owner; "" none */
    int64_t sweep, study;        /* ids inside; 0 none */
    int32_t variant, repetition; /* -1 none */
    int64_t created_us;

    /* what changes while it lives */
    int64_t budget_bytes; /* per card; 0 none */
    enum budget_source budget_source;
    const char *budget_run; /* run_id that was measured */
    bool budget_raised;     /* by a larger peak, while it waited or at submission */
    int64_t epoch;          /* 0: never assigned */
    const char *worker;     /* name of the worker it was given to */
    const char *devices;    /* "cuda:2,cuda:0", the machine's names */
    const char *queue_key;
    int64_t sequence;    /* of the last event applied in this epoch */
    int64_t last_cursor; /* of the last event in its log; 0 none */
    int64_t started_us;
    bool cancel_asked;

    /* after its end */
    int64_t finished_us;
    const char *cause; /* code of causes.def */
    const char *error;
    int64_t exit_code, signal_number;
    const char *peaks;         /* [{"device", "bytes"}] */
    const char *final_metrics; /* {name: last value} */

    /* long documents: read by store_run_get only */
    const char *facts, *detail, *result;
};

/* In a transaction: every text and number of "as submitted", the budget, worker, devices, queue_key
 * and state (RUN_WAITING or RUN_ASSIGNED with epoch 1). r->id is not read. ST_CONFLICT: run_id,
 * idempotency key or (sweep, variant) is there already. */
enum status
store_run_add(struct store *s, const struct store_run *r, int64_t *id, struct err *e) NODISCARD;

/* The moves of states.def, each one compare-and-set: ST_CONFLICT when the row's state or epoch is
 * another by now. In a transaction; the caller adds the event. */
enum status store_run_assign(
    struct store *s, int64_t id, int64_t new_epoch, const char *worker, const char *devices,
    const char *queue_key, struct err *e) NODISCARD; /* from waiting; new_epoch > the old */
enum status store_run_unassign(struct store *s, int64_t id, int64_t epoch, struct err *e) NODISCARD;
enum status store_run_start(
    struct store *s, int64_t id, int64_t epoch, int64_t time_us, struct err *e) NODISCARD;
enum status store_run_stopping(struct store *s, int64_t id, int64_t epoch, struct err *e) NODISCARD;
struct store_end {
    enum run_state state; /* one that ended */
    const char *cause, *error;
    int64_t exit_code, signal_number;
    const char *peaks, *facts, *detail, *result; /* documents; NULL or "": none */
    int64_t time_us;
};
/* Also derives final_metrics from the metrics stored so far. */
enum status store_run_finish(
    struct store *s, int64_t id, int64_t epoch, const struct store_end *end,
    struct err *e) NODISCARD;

/* Changes without a move. In a transaction. */
enum status store_run_budget(
    struct store *s, int64_t id, int64_t bytes, enum budget_source source, const char *run_id,
    bool raised, struct err *e) NODISCARD;
enum status store_run_cancel_asked(struct store *s, int64_t id, struct err *e) NODISCARD;
enum status
store_run_facts(struct store *s, int64_t id, const char *facts, struct err *e) NODISCARD;
/* After a batch of events: the last sequence applied and the last cursor given out. */
enum status store_run_seen(
    struct store *s, int64_t id, int64_t sequence, int64_t last_cursor, struct err *e) NODISCARD;

/* Removes an ended run and all its rows; ST_CONFLICT while it has not ended. Sweeps keep its
 * results. In a transaction. */
enum status store_run_delete(struct store *s, int64_t id, struct err *e) NODISCARD;

/* Reading. Rows come in the arena. */
enum status store_run_get(
    struct store *s, const char *run_id, struct arena *a, struct store_run *out,
    struct err *e) NODISCARD; /* everything */
enum status store_run_by_id(
    struct store *s, int64_t id, struct arena *a, struct store_run *out, struct err *e) NODISCARD;
/* The id of the run with this key; 0: none. */
enum status store_run_by_key(
    struct store *s, const char *owner, const char *idempotency_key, int64_t *id,
    struct err *e) NODISCARD;
/* All that has not ended, in order of submission: at start. The row (without long documents) lives
 * during the call only. A status from `each` ends the walk and is returned. */
enum status store_runs_active(
    struct store *s, enum status (*each)(void *ctx, const struct store_run *r, struct err *e),
    void *ctx, struct err *e) NODISCARD;

struct store_run_filter {
    unsigned states;            /* bit 1 << enum run_state; 0: all */
    const char *owner, *worker; /* NULL: any */
    int64_t sweep, study;       /* 0: any */
    int64_t limit, offset;
};
struct store_runs {
    struct store_run *runs; /* newest first; without long documents */
    size_t n;
    int64_t total; /* that match */
};
enum status store_runs_list(
    struct store *s, const struct store_run_filter *f, struct arena *a, struct store_runs *out,
    struct err *e) NODISCARD;
enum status
store_runs_count(struct store *s, int64_t by_state[RUN_STATE_COUNT], struct err *e) NODISCARD;

/* Retention: ended runs beyond the newest `keep` ended ones, oldest first, at most `max`; with what
 * the caller needs to remove their files. keep < 0: none. Reading. */
struct store_old_run {
    int64_t id;
    char run_id[STORE_ID + 1];
    enum run_state state; /* checkpoints of interrupted runs stay */
};
enum status store_runs_old(
    struct store *s, int64_t keep, size_t max, struct arena *a, struct store_old_run **out,
    size_t *n, struct err *e) NODISCARD;

/* ---- events, metrics, artifacts ------------------------------------------------------------- */

struct store_event {
    int64_t cursor; /* from 1, without gaps within a run */
    const char *type, *payload;
    int64_t time_us;
};
/* In a transaction. ST_CONFLICT: the cursor is there. */
enum status store_event_add(
    struct store *s, int64_t run, const struct store_event *ev, struct err *e) NODISCARD;
/* Reading: events after `cursor`, at most `limit`, and no more than max_bytes of payload (always
 * one). */
enum status store_events_read(
    struct store *s, int64_t run, int64_t cursor, int64_t limit, int64_t max_bytes, struct arena *a,
    struct store_event **out, size_t *n, struct err *e) NODISCARD;

struct store_metric {
    const char *name, *node_id;
    int64_t step;
    double value; /* NaN and infinities are stored as null, and read as NaN */
    int64_t time_us;
};
/* In a transaction; `cursor` is of the event that brought it. */
enum status store_metric_add(
    struct store *s, int64_t run, int64_t cursor, const struct store_metric *m,
    struct err *e) NODISCARD;
/* Reading: by (name, step); `name` NULL: all. */
enum status store_metrics_read(
    struct store *s, int64_t run, const char *name, struct arena *a, struct store_metric **out,
    size_t *n, struct err *e) NODISCARD;
/* {name: last value} as text, from the rows; of a run that goes on. Reading. */
enum status store_metrics_final(
    struct store *s, int64_t run, struct arena *a, const char **out, struct err *e) NODISCARD;

struct store_artifact {
    int64_t id;
    const char *kind, *path, *meta, *node_id;
    int64_t time_us;
};
enum status store_artifact_add(
    struct store *s, int64_t run, const struct store_artifact *x, int64_t *id,
    struct err *e) NODISCARD; /* in a transaction; x->id is not read */
/* Reading: oldest first; `kind` NULL: all. */
enum status store_artifacts_read(
    struct store *s, int64_t run, const char *kind, struct arena *a, struct store_artifact **out,
    size_t *n, struct err *e) NODISCARD;

/* ---- peaks by graph key --------------------------------------------------------------------- */

struct store_peak {
    int64_t bytes; /* of the card that took most */
    char run_id[STORE_ID + 1];
    int64_t time_us;
};
/* In a transaction: of the last successful run, whatever an earlier one measured. */
enum status store_peak_put(
    struct store *s, const char *graph_key, int cards, const struct store_peak *p,
    struct err *e) NODISCARD;
/* Reading: ST_OK with bytes 0 where there is none. */
enum status store_peak_get(
    struct store *s, const char *graph_key, int cards, struct store_peak *out,
    struct err *e) NODISCARD;

/* ---- workers, cards, credentials, refused agents -------------------------------------------- */

struct store_worker {
    int64_t id;
    char worker_id[STORE_ID + 1];
    const char *name;     /* unique */
    const char *kind;     /* "builtin", "local", "enrolled", "ssh", "one_shot" */
    const char *pool;     /* of one-shot workers */
    const char *ssh_host; /* alias of ssh's own configuration */
    const char *hello;    /* what it last said of itself: version, devices, environment, ... */
    const char *last_refusal;
    bool draining, disabled;
    int64_t created_us, seen_us;
};
/* In a transaction: adds it (id 0) or writes its row anew. */
enum status store_worker_put(
    struct store *s, const struct store_worker *w, int64_t *id, struct err *e) NODISCARD;
/* In a transaction: with its cards and credentials. */
enum status store_worker_delete(struct store *s, int64_t id, struct err *e) NODISCARD;
/* Reading: all, by name. */
enum status store_workers_read(
    struct store *s, struct arena *a, struct store_worker **out, size_t *n,
    struct err *e) NODISCARD;

enum card_mode { CARD_EXCLUSIVE, CARD_SHARED };
struct store_card {
    int64_t worker;
    const char *card; /* UUID where it has one, else the device's name */
    enum card_mode mode;
};
enum status store_card_put(struct store *s, const struct store_card *c, struct err *e) NODISCARD;
enum status store_cards_read(
    struct store *s, struct arena *a, struct store_card **out, size_t *n, struct err *e) NODISCARD;

enum credential_kind { CREDENTIAL_KEY, CREDENTIAL_WORKER, CREDENTIAL_JOIN };
struct store_credential {
    int64_t id;
    char credential_id[STORE_ID + 1];
    enum credential_kind kind;
    const char *name;
    const char *prefix;     /* first characters of the token, for lists */
    unsigned char hash[32]; /* SHA-256 of the token; unique */
    bool exec;
    int64_t worker; /* 0: none */
    int64_t created_us, used_us, expires_us, revoked_us;
    int64_t uses_left; /* of join tokens; -1: any number */
};
enum status store_credential_add(
    struct store *s, const struct store_credential *c, int64_t *id, struct err *e) NODISCARD;
/* Writes used_us, expires_us, revoked_us, uses_left, exec, worker. */
enum status
store_credential_update(struct store *s, const struct store_credential *c, struct err *e) NODISCARD;
/* Reading: all of a kind, oldest first, revoked ones too (auth keeps the table in memory). */
enum status store_credentials_read(
    struct store *s, enum credential_kind kind, struct arena *a, struct store_credential **out,
    size_t *n, struct err *e) NODISCARD;
enum status store_credential_by_hash(
    struct store *s, const unsigned char hash[32], struct arena *a, struct store_credential *out,
    struct err *e) NODISCARD;

struct store_refusal {
    const char *name, *version, *hostname, *reason;
    int64_t time_us;
};
/* In a transaction: one row per name; the oldest beyond 100 go. */
enum status
store_refusal_put(struct store *s, const struct store_refusal *r, struct err *e) NODISCARD;
enum status store_refusal_clear(struct store *s, const char *name, struct err *e) NODISCARD;
enum status store_refusals_read(
    struct store *s, struct arena *a, struct store_refusal **out, size_t *n,
    struct err *e) NODISCARD; /* newest first */

/* ---- small settings that must survive -------------------------------------------------------- */

enum status
store_setting_put(struct store *s, const char *key, const char *value, struct err *e) NODISCARD;
/* Reading: "" where there is none. */
enum status store_setting_get(
    struct store *s, const char *key, struct arena *a, const char **out, struct err *e) NODISCARD;

#endif
