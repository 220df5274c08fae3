/* core.h - runs, queue, workers and cards: what the server knows and decides; the truth is the
 * store.
 *
 * The core holds every run that has not ended, every worker and every card in memory, beside the
 * database (store.h) that it is rebuilt from. A change is one transaction, which also appends the
 * run's event; then memory changes, then hooks are called, then the caller gets its answer: what
 * was answered survives a kill at any point.
 *
 * One lock inside; every function may be called from any thread. There is no clock, thread, socket,
 * process or random device in here: the time is an argument, so a simulation drives the whole
 * server with fake agents. Nothing is started in a call that submits or reports: such a call asks
 * for a tick (hooks.due), and core_tick does one placement pass for everything that came together.
 *
 *     core_open(...);
 *     loop: next = core_tick(core, now);   sleep until `next` or until hooks.due says earlier
 *
 * STATES  queued -> (assigned) -> running -> (stopping) -> succeeded failed cancelled interrupted.
 * Assigned and stopping are inside: people see queued and running. A run is assigned when a start
 * is ordered from an agent, running when its agent reported `started`; it gives its card back when
 * its agent reported `ended`, which is after its last process is gone (or when the agent's grace
 * ended, which is after the agent's own lease).
 *
 * JSON documents that are handed out are new references of the caller. Documents handed in are
 * borrowed. Errors have a text for people and the HTTP status of their row in status.def.
 */
#ifndef SERVER_CORE_H
#define SERVER_CORE_H

#include "base/json.h"
#include "server/http.h"

struct core;
struct store;

struct instant {
    int64_t now_ns;  /* clock_ns: leases, graces, time limits */
    int64_t wall_us; /* clock_wall_us: for display only */
};

/* Calls out of the core, made after the commit and with the core unlocked (they may call the core),
 * from whatever thread made the change. NULL members are not called. */
struct core_end {
    const char *run_id, *status, *cause; /* causes.def */
    int64_t sweep, study;                /* ids of the store; 0 none */
};
struct core_pruned {
    const char *run_id;
    bool interrupted;               /* its checkpoints stay: it may be resumed */
    int64_t ended_us;               /* wall clock; what is younger belongs to somebody else */
    const char *const *checkpoints; /* paths of those that its training loops wrote by themselves */
    size_t n_checkpoints;
};
struct core_hooks {
    void *ctx;
    /* Something that waiters look at: kind "run" (id: the run), "runs", "workers" (id ""),
     * "orders" (the session), "answer" (the request). http_wake(http_topic(kind, id)). */
    void (*changed)(void *ctx, const char *kind, const char *id);
    /* A run reached its end: studies go on, the webhook is sent. */
    void (*ended)(void *ctx, const struct core_end *end);
    /* Retention removed a run's rows; what it left on the disk may go (retention.h). Called within
     * core_tick, with the core locked. */
    void (*pruned)(void *ctx, const struct core_pruned *run);
    /* The id that people know a sweep or study by; false: none. For rows of runs; quick. */
    bool (*sweep_name)(void *ctx, int64_t sweep, char id[33]);
    bool (*study_name)(void *ctx, int64_t study, char id[33]);
    /* core_tick has something to do at that time (clock_ns), earlier than it last answered. */
    void (*due)(void *ctx, int64_t at_ns);
};

struct core_config {
    const char *version, *commit; /* agents must have this version */
    const char *nodes_hash;       /* of the server's table of node types */
    const json_t *node_types;     /* [name]; which ones differ is said per worker */
    const char *machine_secret;   /* SNUG_HOME/machine.id: agents that know it share this host */
    const char *local_url;        /* "http://127.0.0.1:8000", for the text of join commands */
    bool loopback_only;           /* bound to 127.0.0.1: other machines cannot join directly */
    bool allow_commands;
    const json_t *devices; /* [device_report] of this server's machine */
    int64_t (*pass_clock)(
        void);     /* clock_ns, so that passes take half the time at most; NULL: none */
    uint64_t seed; /* random; ids of runs and sessions come from it */

    /* SNUG_RUN_QUEUE_MAX_CONCURRENT, _GPU, _CPU: placement.h */
    const char *limits;
    int limit_gpu, limit_cpu;   /* 1, 2 */
    int interactive_max;        /* 2 */
    int64_t queue_max;          /* SNUG_QUEUE_MAX: 1000000 waiting runs, then 429 */
    double reserve_s;           /* SNUG_QUEUE_RESERVE_S: 600 */
    double grace_s;             /* SNUG_WORKER_RESUME_GRACE_S: 300 */
    double heartbeat_s;         /* 10 */
    double start_s;             /* 60: a start that nobody confirmed is ordered again after it */
    double stop_s;              /* 30: a run that was asked to stop is killed after it */
    int64_t context_bytes;      /* SNUG_EXECUTION_CUDA_CONTEXT_MIB: 768 MiB */
    int64_t payload_cap_bytes;  /* SNUG_RUN_EVENT_PAYLOAD_CAP_BYTES: 131072; <= 0 off */
    int64_t response_cap_bytes; /* SNUG_RUN_EVENTS_RESPONSE_CAP_BYTES: 4194304 */
    int64_t keep_last;          /* SNUG_RUN_RETENTION_KEEP_LAST: 200; negative: all */
    int output_runs_max;        /* 20: recorded runs of one submission */
};
/* Every default above; texts are "" and the devices are one CPU. */
void core_config_init(struct core_config *c);

/* Rebuilds queue, ledger and workers from the store. Runs that were running stay so until their
 * agents return or the grace, counted from now, ends. Config and store must outlive the core; the
 * hooks are copied. */
enum status core_open(
    struct store *store, const struct core_config *config, const struct core_hooks *hooks,
    struct instant now, struct core **out, struct err *e) NODISCARD;
void core_close(struct core *c); /* NULL is fine; writes nothing */
/* Leases, graces, time limits, one placement pass if anything changed. Returns when to come again
 * (clock_ns), at most a second later than `now`. */
int64_t core_tick(struct core *c, struct instant now);
/* The server stops for good: waiting runs end interrupted, but for those of sweeps and studies,
 * which go on with the next server; the others are asked to stop. */
void core_stop(struct core *c, struct instant now);
/* Runs that have been started or ordered and are not gone. */
int core_live_count(struct core *c);
/* Asserts what must hold between queue, ledger and workers. */
void core_check(struct core *c);

/* ---- submission ---- */

/* A body of POST /api/runs: {graph | command, options?, name?, idempotency_key?}. Submissions of
 * one call that point to the same graph document share its snapshot; what differs is their patch.
 */
struct core_submission {
    const json_t *graph, *command; /* one of them */
    const json_t *options;         /* NULL: none */
    const json_t *patch;           /* {"NODE": {"PARAM": value}} over the graph, or NULL */
    const char *name;              /* NULL: the graph's */
    const char *idempotency_key;   /* NULL: none */
    int64_t sweep, study;          /* of the store; 0 none */
    int variant, repetition;       /* -1 none */
    bool
        replace; /* interactive: the tab's run before is cancelled first, and this one follows it */
};
/* Fields of a body, borrowed from it; `header` is the Idempotency-Key (NULL none). ST_UNPROCESSABLE
 * when it has neither graph nor command; ST_INVALID for an unknown key. */
enum status core_submission_read(
    const json_t *body, const char *header, struct core_submission *out, struct err *e) NODISCARD;
/* Checks, stores and queues one run. `*reply` is {"run_id", "status"} (and "repeated": true where
 * the idempotency key was seen with the same body). ST_UNPROCESSABLE: no graph; ST_INVALID: what an
 * option or target cannot be; ST_DENIED: commands; ST_FULL: the queue's limit; ST_BUSY: interactive
 * over its limit; ST_IO: the database could not store it. */
enum status core_submit(
    struct core *c, const struct actor *who, const struct core_submission *s, struct instant now,
    json_t **reply, struct err *e) NODISCARD;
/* All or none: every one is checked first, then all are stored in one transaction. `within` (NULL
 * none) is called in it, before the runs are added: it writes rows of its own (a sweep) and may
 * fill in `sweep` and `study` of the submissions; its failure undoes everything. `ids` gets n texts
 * of 33 bytes. The error's text names what one run was refused for. The lock is held while `within`
 * runs: it may use the store, never the core. */
enum status core_submit_all(
    struct core *c, const struct actor *who, const struct core_submission *s, size_t n,
    enum status (*within)(void *ctx, const char (*ids)[33], struct err *e), void *ctx,
    struct instant now, char (*ids)[33], struct err *e) NODISCARD;
/* The checks alone, for n submissions together. */
enum status core_submit_check(
    struct core *c, const struct actor *who, const struct core_submission *s, size_t n,
    struct instant now, struct err *e) NODISCARD;

/* {"run_id", "status", "cancelled"}: false where it had ended. Durable when it returns. */
enum status core_cancel(
    struct core *c, const char *run_id, struct instant now, json_t **reply,
    struct err *e) NODISCARD;
/* {"run_id", "deleted": true}; ST_CONFLICT while it is queued or running. */
enum status
core_delete(struct core *c, const char *run_id, json_t **reply, struct err *e) NODISCARD;

/* ---- what is known of runs ---- */

/* The row of a run, with "last_cursor". Fields: id, name, kind, owner, options, status, error,
 * error_detail, cause, queue_key, created_at, started_at, finished_at (ISO 8601, UTC), git_commit,
 * git_dirty, plugin_pins, sweep_id, sweep_variant, study_id, study_variant, repetition,
 * queue_position, active, final_metrics, worker_id, worker, devices, epoch, budget {gib, bytes,
 * source, run_id, raised} or null, reason, execution_facts, peaks [{device, bytes}], graph_key,
 * state (inside: "assigned", "stopping", else the status), contact (false: its agent is out of
 * reach). */
enum status core_run(struct core *c, const char *run_id, json_t **row, struct err *e) NODISCARD;
struct core_filter {
    const char *statuses[8]; /* any of these; none: all */
    int n_statuses;
    const char *owner, *worker; /* NULL: any */
    int64_t sweep, study;       /* ids of the store; 0: any */
    int64_t limit, offset;
};
/* {"runs": [row], "total", "limit", "offset"}, newest first. */
enum status
core_runs(struct core *c, const struct core_filter *f, json_t **page, struct err *e) NODISCARD;
/* The status of a run in its public words, or ST_NOT_FOUND. */
enum status
core_run_status(struct core *c, const char *run_id, char status[16], struct err *e) NODISCARD;
/* The graph as stored (secrets blank). */
enum status core_graph(struct core *c, const char *run_id, json_t **graph, struct err *e) NODISCARD;
/* {"run_id", "status", "active", "events": [{cursor, type, payload, ts}], "cursor"}: public events
 * after `cursor`, at most `limit` and at most the response's cap in bytes (one at least). */
enum status core_events(
    struct core *c, const char *run_id, int64_t cursor, int64_t limit, json_t **page,
    struct err *e) NODISCARD;
/* {"run_id", "names", "points": [{node_id, name, step, value, ts}]}; `name` NULL: all series. */
enum status core_metrics(
    struct core *c, const char *run_id, const char *name, json_t **doc, struct err *e) NODISCARD;
/* The same as CSV with a byte order mark; cells that a spreadsheet would compute are quoted off. */
enum status core_metrics_csv(
    struct core *c, const char *run_id, const char *name, struct str *out, struct err *e) NODISCARD;
/* {"artifacts": [{id, kind, path, meta, node_id, created_at}]}, oldest first; `kind` NULL: all. */
enum status core_artifacts(
    struct core *c, const char *run_id, const char *kind, json_t **doc, struct err *e) NODISCARD;

/* A question to the agent that has a run (order `read`): its log, recorded outputs, files. The
 * answer comes with a later report; wait for the topic ("answer", request). ST_BUSY: the worker is
 * not connected; ST_NOT_FOUND: no such run, or it never was on a worker. */
enum status core_ask(
    struct core *c, const char *run_id, const json_t *question, struct instant now,
    char request[33], struct err *e) NODISCARD;
/* True when the answer (or its time-out, status 504) is there; it is handed out once. */
bool core_answer(struct core *c, const char *request, int *status, json_t **body);

/* Caches of warm children, as their agents last reported them (S3, S5); an array. */
json_t *core_caches(struct core *c);
/* An order `evict` to the agent of the canvas: a tab's caches, or its whole child. */
enum status core_evict(
    struct core *c, const char *tab, const json_t *what, struct instant now,
    struct err *e) NODISCARD;

/* ---- agents ---- */

/* Before a join token is spent on it: whether such an agent could become a worker of that name ("":
 * the one it gives itself). */
enum status core_agent_check(
    struct core *c, const char *name, const json_t *hello, struct instant now,
    struct err *e) NODISCARD;
/* The messages of wire/messages.def. ST_CONFLICT: another version, or the name is in use;
 * ST_DENIED: this caller may not be that worker; ST_GONE (orders, report): the session is not
 * known, connect again. */
enum status core_agent_connect(
    struct core *c, const struct actor *who, const json_t *hello, struct instant now,
    json_t **welcome, struct err *e) NODISCARD;
/* {"orders": [order]} after number `after`, which acknowledges what came before; an empty list:
 * wait for the topic ("orders", session). */
enum status core_agent_orders(
    struct core *c, const struct actor *who, const char *session, int64_t after, struct instant now,
    json_t **orders, struct err *e) NODISCARD;
enum status core_agent_report(
    struct core *c, const struct actor *who, const json_t *report, struct instant now,
    json_t **reply, struct err *e) NODISCARD;
/* The agent leaves in good order (its runs have ended). */
enum status core_agent_leave(
    struct core *c, const struct actor *who, const char *session, struct instant now,
    struct err *e) NODISCARD;

/* ---- workers ---- */

/* {"workers": [...], "refused": [{name, version, reason, at}], "pools": [...]} as the panel shows
 * them (W3, W4). */
json_t *core_workers(struct core *c, struct instant now);
enum status core_worker(
    struct core *c, const char *name, struct instant now, json_t **doc, struct err *e) NODISCARD;
enum status core_worker_drain(
    struct core *c, const char *name, bool drain, struct instant now, struct err *e) NODISCARD;
/* A disabled worker is sent away and refused until it is enabled. With runs of its own it needs
 * `confirm`, else ST_CONFLICT with a text that says what would happen. */
enum status core_worker_enable(
    struct core *c, const char *name, bool enable, bool confirm, struct instant now,
    struct err *e) NODISCARD;
/* "exclusive" or "shared" (B1). */
enum status core_card_mode(
    struct core *c, const char *worker, const char *device, const char *mode, struct instant now,
    struct err *e) NODISCARD;
/* A new worker's row, which may connect with the credential that the caller makes (auth.h). `name`
 * "" lets the agent choose. ST_CONFLICT: the name is taken. */
enum status core_worker_add(
    struct core *c, const char *name, const char *pool, struct instant now, char worker_id[33],
    struct err *e) NODISCARD;
/* ST_CONFLICT when a worker has that name already; "" is always free. */
enum status core_worker_name_free(struct core *c, const char *name, struct err *e) NODISCARD;
/* Whether other machines can reach this server directly. */
bool core_reachable(const struct core *c);
/* A worker that the server reaches through ssh (ssh.h). `devices`: "cuda:0,cuda:1", "" all. Both as
 * ssh_host_is_valid and ssh_devices_are_valid want them. */
enum status core_ssh_add(
    struct core *c, const char *name, const char *host, const char *devices, struct instant now,
    struct err *e) NODISCARD;
/* [{"name", "worker_id", "host", "devices", "disabled"}]; a new reference. */
json_t *core_ssh_workers(struct core *c);
/* Disconnects, fails what waits for it alone, interrupts its runs; then it is unknown. With runs of
 * its own it needs `confirm`. The caller revokes its credential. */
enum status core_worker_remove(
    struct core *c, const char *name, bool confirm, struct instant now, struct err *e) NODISCARD;

/* ---- budgets, state ---- */

/* The budget that a run of this graph on so many cards would get (B2): {"graph_key", "measured":
 * {"gib", "bytes", "peak_bytes", "run_id", "finished_at"} or null}. */
enum status core_budget_hint(
    struct core *c, const json_t *graph, int cards, json_t **doc, struct err *e) NODISCARD;
/* {"runs": {status: n}, "workers": {...}, "queue": {...}, "figures": {...}}. */
json_t *core_status(struct core *c, struct instant now);

#endif
