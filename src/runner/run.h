/* run.h - executes a graph node by node: for real, or only as far as its memory plan.
 *
 *     run_new(graph, options, sink) -> run_plan (models built, programs planned, no data touched)
 *                                   -> run_execute -> run_document -> run_free
 *
 * run_plan gives the memory bill; run_execute calls it first where the caller has not.
 */
#ifndef RUNNER_RUN_H
#define RUNNER_RUN_H

#include "graph/graph.h"
#include "mem/device.h"
#include "train/loop.h"

struct run_cache; /* runner/cache.h */

/* `pass`: a pass's name, of the steps of training loops; "evaluate" for the finished program of an
 * evaluation. The program lives for the time of the call. */
struct run_watch {
    void (*program)(const struct ir_program *p, const char *pass, void *ctx);
    void *ctx;
};
/* What becomes of the others when a node fails. Running out of memory and Stop always end the run,
 * and are never tried again (O3). */
enum run_error_mode {
    RUN_FAIL_FAST,
    RUN_CONTINUE, /* nodes downstream of it are skipped, the rest runs; then the run has failed */
    RUN_RETRY     /* the node is tried again, at most retries_max times, after a pause */
};
struct run_options {
    const char *device; /* as asked: NULL = the graph's, else cpu */
    /* The cards of the run, renumbered from cuda:0 (mem/device.h); n_picks 0: all of the machine.
     * Lives as long as the run. */
    const struct device_pick *picks;
    int n_picks;
    const char *
        budget_about; /* whose the budget is, for errors: "a static estimate"; NULL: --memory-gib */
    const char *graph_dir; /* relative paths of the graph start here; NULL: its file's folder */
    enum run_error_mode error_mode;
    int retries_max;
    struct run_cache *cache; /* outputs and weights of earlier runs; NULL: none. Outlives the run */
    bool has_seed;
    int64_t seed;
    int64_t budget_bytes; /* --memory-gib; 0 = none */
    enum exec_storage storage;
    int threads;            /* 0 = all */
    const char *resume;     /* a file, "auto", or NULL */
    const char *dump_after; /* a pass's name, or NULL: programs go to dump_out */
    FILE *dump_out;
    bool map; /* the plan says where every buffer lies, and when: "map" of each program */
    /* What each device of the list has for the plan, instead of what it has now (INT64_MAX: no
     * limit; 0: unknown): plans of advice are made as if the run that failed were not there. Lives
     * as long as the run; NULL: as it is now. */
    const int64_t *rooms;
    bool quick; /* the plan says nothing of what each choice saves: one pass over the graph */
    bool prepares_data; /* a run follows the plan: texts may be turned into tokens while planning */
    const struct run_watch *watch; /* sees every program that is planned; NULL: nobody does */
    const char *memory_history;    /* a .pickle or .json file: the snapshot of this run; or NULL */
    int64_t memory_history_max;    /* events that are kept; 0: the default */
    bool memory_steps;             /* an event with the memory of every update */
    bool memory_summary;           /* the document gets "memory_summary", a table */
    bool profile;                  /* the document gets "profile": time by operator and by node */
};

struct run;
enum run_node_status {
    RUN_NODE_RUNNING,
    RUN_NODE_COMPLETED,
    RUN_NODE_CACHED,      /* its outputs are those of an earlier run */
    RUN_NODE_SKIPPED,     /* something that it needs has failed */
    RUN_NODE_INTERRUPTED, /* Stop; what it put out is there as far as it came */
    RUN_NODE_FAILED
};
const char *run_node_status_name(enum run_node_status s); /* "completed", "error" for FAILED */
struct run_sink {
    void (*event)(const json_t *event, void *ctx); /* loop.h's events, and node events */
    /* A node of the executing pass; e: why it failed, else NULL. Its outputs may be looked at
     * (run_output_at) until this returns. May be NULL. */
    void (*node)(
        const struct run *r, const struct graph_node *n, enum run_node_status status,
        const struct err *e, void *ctx);
    bool (*stop)(void *ctx);
    void *ctx;
};

/* `g` has been prepared (graph_prepare) and outlives the run. */
enum status run_new(
    struct graph *g, const struct run_options *o, const struct run_sink *sink, struct run **out,
    struct err *e) NODISCARD;
void run_free(struct run *r);
enum status run_plan(struct run *r, struct err *e) NODISCARD;
/* ST_OOM before the start when the plan passes the budget, the card or the machine (O4), or while
 * it runs: run_out_of_memory has the figures, plan/oom.h the advice. Everything that the nodes held
 * is given back by then, and nothing is tried again (O3). ST_INTERRUPTED after Stop. */
enum status run_execute(struct run *r, struct err *e) NODISCARD;

/* ST_OOM when the plan is above `budget_bytes`; 0: no budget; negative: what the machine has left
 * (O2). After run_plan. */
enum status run_check_budget(struct run *r, int64_t budget_bytes, struct err *e) NODISCARD;

/* How a run ran out of memory, before its start or while it ran. */
struct run_oom {
    const struct graph_node *node; /* NULL: none is known */
    const struct device *device;   /* mem/device.h */
    bool before_start, dynamic;    /* dynamic: storage value by value */
    int64_t need_bytes; /* of the plan on this device; of the request that was refused; 0 unknown */
    int64_t room_bytes; /* a plan of this peak there would have fitted; 0 or less: unknown */
    /* The same for every device of the list, by its place there; INT64_MAX: no limit. */
    int64_t room_by_device[DEVICES_MAX];
    int place;            /* of `device` in the list */
    int64_t budget_bytes; /* of --memory-gib, where it counts; 0: it does not */
    int64_t live_bytes, reserved_bytes, peak_bytes; /* of the allocator then; peak: reserved */
    int64_t capacity_bytes, free_bytes;             /* of a card; -1 */
    int64_t context_bytes;
};
/* False: it did not. Lives as long as the run. */
bool run_out_of_memory(const struct run *r, struct run_oom *out);
/* Whether the plan of `r`, a run on the same devices, would have fitted where another did not: on
 * each device, and in the host's memory. */
bool run_fits_rooms(const struct run *r, const struct run_oom *o);
/* The plan's peak on the device at this place of the list. */
int64_t run_peak_at(const struct run *r, int place);

/* How the plan and a card go together; after run_plan. */
struct run_fit {
    const struct device *device; /* mem/device.h */
    int64_t peak_bytes, context_bytes;
    int64_t capacity_bytes, free_bytes; /* -1 unknown; free: now */
    bool fits_now, fits_at_all;
};
/* Device i of the list; false where it is no card, none that the run uses, or past the end. */
bool run_fit_at(const struct run *r, int i, struct run_fit *out);
/* ST_OOM where a card that the run uses cannot hold the plan: never, or not now. */
enum status run_check_cards(struct run *r, struct err *e) NODISCARD;

/* What planning found, in numbers; after run_plan. */
struct run_figures {
    int64_t peak_bytes, host_bytes;
    int64_t transfer_bytes; /* of offloading, in a micro-batch */
    bool trains_on_card;    /* a training loop, on something else than the CPU */
    double train_flops; /* of one micro-batch of the training loop with the largest peak; 0: none */
};
struct run_figures run_figures(const struct run *r);

/* What a node has put out, port by port. Everything is borrowed. */
enum run_output_kind {
    RUN_OUTPUT_TENSOR,
    RUN_OUTPUT_SCALAR,
    RUN_OUTPUT_TEXT,
    RUN_OUTPUT_JSON,
    RUN_OUTPUT_MODEL,
    RUN_OUTPUT_OTHER
};
struct run_output {
    const char *port;
    bool list; /* the port's type is LIST */
    enum run_output_kind kind;
    enum dtype dtype; /* of a tensor, dense in C order */
    const struct shape *shape;
    const void *data;
    double scalar;
    const char *text; /* of a model its class, of others what they are: "a data set" */
    const json_t *json;
    int64_t parameters, trainable;
};
/* Output i of a node; false past the end. */
bool run_output_at(
    const struct run *r, const struct graph_node *n, size_t i, struct run_output *out);

/* Device i of the list; false past the end. */
struct run_device {
    const struct device *device;
    bool used;               /* by some node, says the plan */
    int64_t held_bytes_peak; /* what the run held there at most at once (R12); 0 before it began */
};
bool run_device_at(const struct run *r, int i, struct run_device *out);

/* Documents, valid after run_plan: new references. */
/* What `snug plan --json` gives beside schema and status: peak_bytes, lower_bound_bytes,
 * by_category, by_node, programs, host_bytes_planned, ... */
json_t *run_plan_json(const struct run *r, bool timeline);
/* What `snug run --json` gives beside schema and status, also after a failure. */
json_t *run_document(const struct run *r);
/* version, git commit, graph key, seed, threads, ISA, library versions: in every document. */
json_t *run_facts(const struct run *r);

#endif
