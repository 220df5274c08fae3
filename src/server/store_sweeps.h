/* store_sweeps.h - rows of sweeps and studies: what was asked for, and the run of each variant.
 *
 * Part of the store (store.h): transactions, readers, texts and errors are as there. A variant
 * points to its run by the run's text id; when that run is deleted, its status, last metrics and
 * place are kept with the variant.
 */
#ifndef SERVER_STORE_SWEEPS_H
#define SERVER_STORE_SWEEPS_H

#include "server/store.h"

/* A variant of a sweep, or a cell (variant, repetition) of a study, with what is known of its run.
 */
enum cell_state { CELL_PENDING, CELL_SUBMITTED, CELL_DONE, CELL_FAILED };
struct store_cell {
    int32_t variant, repetition; /* repetition 0 in sweeps */
    enum cell_state state;       /* studies only */
    int32_t attempt;             /* studies: runs made of this cell so far */
    int64_t combination;         /* sweep_plan.h */
    char run_id[STORE_ID + 1];   /* "": none yet */
    const char *kept;            /* of a deleted run: {"status", "final_metrics", "worker", ...} */
    int64_t run;                 /* id inside; 0: the run is not there */
    int run_state;               /* of the run; -1: it is not there */
    bool run_started;
    const char *final_metrics; /* "" while it has not ended */
    const char *worker, *devices, *queue_key;
};

enum sweep_state { SWEEP_RUNNING, SWEEP_CANCELLING, SWEEP_FINISHED, SWEEP_FAILED };
struct store_sweep {
    int64_t id;
    char sweep_id[STORE_ID + 1];
    const char *name, *owner;
    enum sweep_state state;
    const char *method; /* "grid", "random" */
    int64_t seed;       /* -1: none */
    bool seed_variants;
    const char *params;    /* [{"node_id", "param", "domain"}] */
    const char *objective; /* {"metric", "direction"} */
    const char *options;
    int64_t total; /* combinations */
    int64_t created_us, finished_us;
};
/* In a transaction: the row, then its variants 0 .. n - 1 with their runs. */
enum status
store_sweep_add(struct store *s, const struct store_sweep *x, int64_t *id, struct err *e) NODISCARD;
enum status store_sweep_variant_add(
    struct store *s, int64_t sweep, int32_t variant, uint64_t combination, const char *run_id,
    struct err *e) NODISCARD;
enum status store_sweep_state(
    struct store *s, int64_t sweep, enum sweep_state state, int64_t finished_us,
    struct err *e) NODISCARD;
/* Reading. */
enum status store_sweep_get(
    struct store *s, const char *sweep_id, struct arena *a, struct store_sweep *out,
    struct err *e) NODISCARD;
enum status store_sweeps_list(
    struct store *s, int64_t limit, int64_t offset, struct arena *a, struct store_sweep **out,
    size_t *n, int64_t *total, struct err *e) NODISCARD;
enum status store_sweep_variants(
    struct store *s, int64_t sweep, struct arena *a, struct store_cell **out, size_t *n,
    struct err *e) NODISCARD;
/* Whether a run of it has not ended. */
enum status store_sweep_lives(struct store *s, int64_t sweep, bool *lives, struct err *e) NODISCARD;
/* The text id; false: none, or it could not be read. */
bool store_sweep_name(struct store *s, int64_t sweep, char id[STORE_ID + 1]);
bool store_study_name(struct store *s, int64_t study, char id[STORE_ID + 1]);

/* Running, paused and cancelling studies go on after a restart. */
enum study_state { STUDY_RUNNING, STUDY_PAUSED, STUDY_CANCELLING, STUDY_FINISHED, STUDY_CANCELLED };
struct store_study {
    int64_t id;
    char study_id[STORE_ID + 1];
    const char *name, *owner;
    enum study_state state;
    const char *reason; /* why it is paused, or ended before its last cell */
    const char *params, *objective, *options;
    const char *settings; /* {"parallel", "attempts", "on_failure", ...} */
    int64_t graph_id;
    int32_t variants, repetitions;
    int64_t seed;
    int64_t runs_max, runs_made; /* the budget of runs; 0: no limit */
    int64_t last_cursor;
    int64_t created_us, finished_us;
};
enum status
store_study_add(struct store *s, const struct store_study *x, int64_t *id, struct err *e) NODISCARD;
enum status store_study_cell_add(
    struct store *s, int64_t study, int32_t variant, int32_t repetition, uint64_t combination,
    struct err *e) NODISCARD;
/* Compare-and-set; ST_CONFLICT when it is in another state by now. */
enum status store_study_move(
    struct store *s, int64_t study, enum study_state from, enum study_state to, const char *reason,
    int64_t finished_us, struct err *e) NODISCARD;
/* A pending cell becomes submitted with this run; ST_CONFLICT when somebody else has it. Counts a
 * run of the budget. */
enum status store_study_claim(
    struct store *s, int64_t study, int32_t variant, int32_t repetition, const char *run_id,
    struct err *e) NODISCARD;
/* A submitted cell of this run becomes done, failed or pending again. `refund`: its run never
 * started, and does not count. */
enum status store_study_close(
    struct store *s, int64_t study, const struct store_cell *cell, enum cell_state to, bool refund,
    struct err *e) NODISCARD;
enum status
store_study_budget(struct store *s, int64_t study, int64_t runs_max, struct err *e) NODISCARD;
/* Failed cells become pending again. */
enum status store_study_retry(struct store *s, int64_t study, struct err *e) NODISCARD;
/* Appends an event with the next cursor. */
enum status store_study_event(
    struct store *s, int64_t study, const char *type, const char *payload, int64_t time_us,
    struct err *e) NODISCARD;
/* Reading. */
enum status store_study_get(
    struct store *s, const char *study_id, struct arena *a, struct store_study *out,
    struct err *e) NODISCARD;
enum status store_study_by_id(
    struct store *s, int64_t id, struct arena *a, struct store_study *out, struct err *e) NODISCARD;
enum status store_studies_list(
    struct store *s, int64_t limit, int64_t offset, struct arena *a, struct store_study **out,
    size_t *n, int64_t *total, struct err *e) NODISCARD;
enum status store_studies_open(
    struct store *s, struct arena *a, int64_t **ids, size_t *n, struct err *e) NODISCARD;
/* By (repetition, variant); `state` -1: all; at most `limit`. */
enum status store_study_cells(
    struct store *s, int64_t study, int state, int64_t limit, struct arena *a,
    struct store_cell **out, size_t *n, struct err *e) NODISCARD;
enum status store_study_events_read(
    struct store *s, int64_t study, int64_t cursor, int64_t limit, struct arena *a,
    struct store_event **out, size_t *n, struct err *e) NODISCARD;

#endif
