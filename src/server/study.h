/* study.h - studies: variants x repetitions of a graph, carried out over days, whatever restarts.
 *
 *     POST body  {"base_graph", "objective": {"metric", "direction"},
 *                 "sweep_spec"? (sweep_plan.h; without it the graph itself is the only variant),
 *                 "repetitions"? 1, "seed"? (else sweep_spec.seed, else 0), "options"?, "name"?,
 *                 "runs_max"? (the budget of runs; without it all), "parallel"? 16,
 *                 "attempts"? 3, "on_failure"? "continue" | "pause"}
 *
 * A cell is one (variant, repetition). Its seed is (seed + repetition) mod 2^32, so that all
 * variants meet the same seeds. Cells are submitted in order of repetition, then variant, with at
 * most `parallel` runs queued or running; each run counts against the budget unless it was taken
 * back before it started. A run that is interrupted (a machine went away) is made again, up to
 * `attempts` times; one that failed is a result.
 *
 *     running  -> paused      pause: what runs goes on to its end, what waits is taken back; also
 * by itself, with the reason: a run failed under on_failure "pause", or cannot be submitted paused
 * -> running     resume: from the next cell that has no result running, paused -> cancelling ->
 * cancelled     every run is stopped; results stay running  -> finished    no cell is left, or the
 * budget is spent; resume with a larger "runs_max" or "retry_failed" goes on
 *
 * The database decides everything: what to do next follows from its rows (study_step), so it does
 * not matter when a server dies. Everything that happens is an event with a cursor from 1 without
 * gaps: study_started, cell_submitted, cell_ended, study_paused, study_resumed, study_cancelling,
 * study_cancelled, study_finished.
 */
#ifndef SERVER_STUDY_H
#define SERVER_STUDY_H

#include "server/sweep.h"

struct studies;
/* `changed` is called without locks when there is something new to read of a study; may be NULL. */
struct studies_hooks {
    void *ctx;
    void (*changed)(void *ctx, const char *study_id);
};
/* Core and store must outlive it. Studies of the database go on with the first tick. */
struct studies *studies_new(const struct sweeps *x, const struct studies_hooks *hooks);
void studies_free(struct studies *s); /* NULL is fine */
/* From the core's hook: a run of this study has ended. Quick; takes no lock of core or store. */
void studies_note(struct studies *s, int64_t study);
/* The timer: takes the steps that are due. */
void studies_tick(struct studies *s, struct instant now);

/* {"study_id", "state", ...} as study_read. Checked whole before anything is stored (R10, B9). */
enum status study_create(
    struct studies *s, const struct actor *who, const json_t *body, struct instant now,
    json_t **reply, struct err *e) NODISCARD;
/* Rows of variants by rank (of the mean objective over their repetitions), with their cells. */
enum status
study_read(struct studies *s, const char *study_id, json_t **doc, struct err *e) NODISCARD;
/* A row a cell. */
enum status
study_csv(struct studies *s, const char *study_id, struct str *out, struct err *e) NODISCARD;
/* {"studies": [...], "total", "limit", "offset"}, newest first, without variants. */
enum status
study_list(struct studies *s, int64_t limit, int64_t offset, json_t **doc, struct err *e) NODISCARD;
/* {"study_id", "state", "active", "events": [{cursor, type, payload, ts}], "cursor"}. */
enum status study_events(
    struct studies *s, const char *study_id, int64_t cursor, int64_t limit, json_t **doc,
    struct err *e) NODISCARD;
/* Each gives study_read's document. ST_CONFLICT: not in this state. */
enum status study_pause(
    struct studies *s, const char *study_id, struct instant now, json_t **doc,
    struct err *e) NODISCARD;
/* body: {"runs_max"?, "retry_failed"?}, may be NULL. */
enum status study_resume(
    struct studies *s, const char *study_id, const json_t *body, struct instant now, json_t **doc,
    struct err *e) NODISCARD;
enum status study_cancel(
    struct studies *s, const char *study_id, struct instant now, json_t **doc,
    struct err *e) NODISCARD;

#endif
