/* study_step.c - what a study does next, from what the database says of it: cells whose runs have
 * ended are closed, the next ones submitted, the end told. */
#include "server/study_int.h"

#include "base/env.h"
#include "server/core_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- reading ----------------------------------------------------------------------------------
 */

static json_t *parsed(const char *text)
{
    json_t *out = NULL;
    if (*text && json_parse(text, strlen(text), "row", &out, NULL) != ST_OK)
        return NULL;
    return out;
}

static enum status read_row(struct study_now *out, struct err *e)
{
    json_t *settings = parsed(out->row.settings);
    out->settings = (struct study_settings){
        .parallel = json_get_i64(settings, "parallel", 16),
        .attempts = json_get_i64(settings, "attempts", 3),
        .pause_on_failure = str_eq(json_get_str(settings, "on_failure", ""), "pause")};
    json_decref(settings);
    out->objective = parsed(out->row.objective);
    out->params = parsed(out->row.params);
    out->options = parsed(out->row.options);
    return sweep_plan_read_params(out->params, &out->plan, e);
}

enum status
study_load(struct studies *s, const char *study_id, struct study_now *out, struct err *e)
{
    *out = (struct study_now){0};
    arena_init(&out->arena);
    TRY(store_study_get(s->x.store, study_id, &out->arena, &out->row, e));
    return read_row(out, e);
}

enum status study_load_id(struct studies *s, int64_t study, struct study_now *out, struct err *e)
{
    *out = (struct study_now){0};
    arena_init(&out->arena);
    TRY(store_study_by_id(s->x.store, study, &out->arena, &out->row, e));
    return read_row(out, e);
}

void study_now_release(struct study_now *x)
{
    sweep_plan_release(&x->plan);
    json_decref(x->objective);
    json_decref(x->params);
    json_decref(x->options);
    arena_release(&x->arena);
}

uint32_t study_seed(const struct store_study *row, int32_t repetition)
{
    return (uint32_t)(row->seed + repetition);
}

enum status study_tell(
    struct studies *s, int64_t study, const char *type, json_t *payload, struct instant now,
    struct err *e)
{
    char *text = payload ? json_text(payload, false) : mem_strdup("{}");
    enum status st = store_study_event(s->x.store, study, type, text, now.wall_us, e);
    mem_free(text);
    json_decref(payload);
    return st;
}

static json_t *cell_json(const struct store_cell *x)
{
    json_t *row = json_object();
    json_put_i64(row, "variant", x->variant);
    json_put_i64(row, "repetition", x->repetition);
    json_put_i64(row, "attempt", x->attempt);
    json_put_str(row, "run_id", x->run_id);
    return row;
}

/* A move of the study itself, with its event. */
static enum status move(
    struct studies *s, struct study_now *x, enum study_state to, const char *type,
    const char *reason, struct instant now, struct err *e)
{
    json_t *payload = json_object();
    bool ended = to == STUDY_FINISHED || to == STUDY_CANCELLED;
    json_put_str(payload, "reason", *reason ? reason : NULL);
    TRY(store_begin(s->x.store, e));
    enum status st = store_study_move(
        s->x.store, x->row.id, x->row.state, to, reason, ended ? now.wall_us : 0, e);
    if (st == ST_OK)
        st = study_tell(s, x->row.id, type, payload, now, e);
    else
        json_decref(payload);
    TRY(store_end(s->x.store, st, e));
    x->row.state = to;
    return ST_OK;
}

/* ---- cells whose run has ended ----------------------------------------------------------------
 */

/* What becomes of a cell; its run has this status. */
static enum cell_state
verdict(const struct study_now *x, const struct store_cell *cell, const char *status)
{
    if (str_eq(status, "succeeded"))
        return CELL_DONE;
    if (str_eq(status, "interrupted") &&
        (!cell->run_started || cell->attempt < x->settings.attempts))
        return CELL_PENDING;
    if (str_eq(status, "cancelled") && x->row.state == STUDY_PAUSED)
        return CELL_PENDING; /* taken back by the pause */
    return CELL_FAILED;
}

static enum status close_cell(
    struct studies *s, struct study_now *x, const struct store_cell *cell,
    const struct cell_facts *f, struct instant now, struct err *e)
{
    enum cell_state to = verdict(x, cell, f->status);
    bool refund = to == CELL_PENDING && !cell->run_started;
    json_t *payload = cell_json(cell);
    json_put_str(payload, "status", f->status);
    json_put(payload, "objective", isnan(f->objective) ? json_null() : json_real(f->objective));
    json_put_bool(payload, "again", to == CELL_PENDING);
    cell_place_json(payload, f);
    enum status st = store_begin(s->x.store, e);
    if (st != ST_OK) {
        json_decref(payload);
        return st;
    }
    st = store_study_close(s->x.store, x->row.id, cell, to, refund, e);
    if (st == ST_OK)
        st = study_tell(s, x->row.id, "cell_ended", payload, now, e);
    else
        json_decref(payload);
    TRY(store_end(s->x.store, st, e));
    x->row.runs_made -= refund;
    if (to == CELL_FAILED && x->settings.pause_on_failure && x->row.state == STUDY_RUNNING) {
        char reason[160];
        (void)snprintf(
            reason, sizeof reason, "run %.32s of variant %d, repetition %d ended %s", cell->run_id,
            cell->variant, cell->repetition, f->status);
        return move(s, x, STUDY_PAUSED, "study_paused", reason, now, e);
    }
    return ST_OK;
}

static enum status close_ended(
    struct studies *s, struct study_now *x, struct instant now, int64_t *active, struct err *e)
{
    struct store_cell *cells;
    size_t n;
    *active = 0;
    TRY(store_study_cells(
        s->x.store, x->row.id, CELL_SUBMITTED, STUDY_CELLS_MAX, &x->arena, &cells, &n, e));
    const char *metric = json_get_str(x->objective, "metric", "");
    for (size_t i = 0; i < n; i++) {
        if (cells[i].run_state >= 0 && !run_state_ended((enum run_state)cells[i].run_state)) {
            ++*active;
            continue;
        }
        struct cell_facts facts;
        cell_facts_read(s->x.store, &cells[i], metric, &facts);
        enum status st = close_cell(s, x, &cells[i], &facts, now, e);
        json_decref(facts.final_metrics);
        TRY(st);
    }
    return ST_OK;
}

/* ---- the next cells ---------------------------------------------------------------------------
 */

struct submitting {
    struct studies *s;
    struct study_now *x;
    const struct store_cell *cells;
    size_t n;
    struct instant now;
};

static enum status claim_all(void *ctx, const char (*ids)[33], struct err *e)
{
    struct submitting *m = ctx;
    for (size_t i = 0; i < m->n; i++) {
        struct store_cell cell = m->cells[i];
        (void)snprintf(cell.run_id, sizeof cell.run_id, "%s", ids[i]);
        cell.attempt++;
        TRY(store_study_claim(
            m->s->x.store, m->x->row.id, cell.variant, cell.repetition, cell.run_id, e));
        json_t *payload = cell_json(&cell);
        json_put_i64(payload, "seed", study_seed(&m->x->row, cell.repetition));
        TRY(study_tell(m->s, m->x->row.id, "cell_submitted", payload, m->now, e));
    }
    return ST_OK;
}

static json_t *cell_options(const struct study_now *x, const struct store_cell *cell)
{
    json_t *own = json_is_object(x->options) ? json_copy(x->options) : json_object();
    json_put_i64(own, "seed", study_seed(&x->row, cell->repetition));
    return own;
}

static void fill_submission(
    const struct study_now *x, const struct store_cell *cell, const json_t *graph,
    struct core_submission *out)
{
    char suffix[32], name[65];
    (void)snprintf(suffix, sizeof suffix, "%d.%d", cell->variant + 1, cell->repetition + 1);
    variant_run_name(*x->row.name ? x->row.name : "study", suffix, name);
    *out = (struct core_submission){
        .graph = graph,
        .options = cell_options(x, cell),
        .patch = x->plan.n_params ? sweep_plan_patch(&x->plan, (uint64_t)cell->combination) : NULL,
        .name = mem_strdup(name),
        .study = x->row.id,
        .variant = cell->variant,
        .repetition = cell->repetition};
}

static enum status submit_cells(
    struct studies *s, struct study_now *x, const struct store_cell *cells, size_t n,
    const json_t *graph, struct instant now, struct err *e)
{
    struct submitting m = {s, x, cells, n, now};
    struct actor who = {.role = ROLE_KEY};
    struct core_submission *runs = mem_alloc(n * sizeof *runs);
    char(*ids)[33] = mem_alloc(n * sizeof *ids);
    (void)snprintf(who.name, sizeof who.name, "%s", x->row.owner);
    for (size_t i = 0; i < n; i++)
        fill_submission(x, &cells[i], graph, &runs[i]);
    enum status st = core_submit_all(s->x.core, &who, runs, n, claim_all, &m, now, ids, e);
    for (size_t i = 0; i < n; i++) {
        json_decref((json_t *)(uintptr_t)runs[i].options);
        json_decref((json_t *)(uintptr_t)runs[i].patch);
        mem_free((char *)(uintptr_t)runs[i].name);
    }
    mem_free(runs);
    mem_free(ids);
    return st;
}

/* How many may be submitted now. */
static int64_t room(const struct study_now *x, int64_t active)
{
    int64_t n = x->settings.parallel - active;
    if (x->row.runs_max && x->row.runs_max - x->row.runs_made < n)
        n = x->row.runs_max - x->row.runs_made;
    return n < 0 ? 0 : n;
}

static enum status submit_next(
    struct studies *s, struct study_now *x, int64_t active, struct instant now, struct err *e)
{
    struct store_cell *cells;
    size_t n, bytes;
    char *text;
    json_t *graph;
    int64_t free_places = room(x, active);
    TRY(store_study_cells(
        s->x.store, x->row.id, CELL_PENDING, free_places ? free_places : 1, &x->arena, &cells, &n,
        e));
    if (!n && !active)
        return move(s, x, STUDY_FINISHED, "study_finished", "", now, e);
    if (n && !active && !free_places) {
        char reason[96];
        (void)snprintf(
            reason, sizeof reason, "the budget of %lld runs is spent", (long long)x->row.runs_max);
        return move(s, x, STUDY_FINISHED, "study_finished", reason, now, e);
    }
    if (!n || !free_places)
        return ST_OK;
    TRY(store_graph_get(s->x.store, x->row.graph_id, &text, &bytes, e));
    enum status st = json_parse(text, bytes, "the study's graph", &graph, e);
    mem_free(text);
    TRY(st);
    st = submit_cells(s, x, cells, n, graph, now, e);
    json_decref(graph);
    if (st == ST_OK || st == ST_FULL || st == ST_BUSY || st == ST_IO || st == ST_OOM)
        return st; /* done, or to be tried again */
    char reason[512];
    (void)snprintf(reason, sizeof reason, "runs cannot be submitted: %.400s", e ? e->text : "");
    return move(s, x, STUDY_PAUSED, "study_paused", reason, now, e);
}

/* ---- the step ---------------------------------------------------------------------------------
 */

static enum status step(struct studies *s, struct study_now *x, struct instant now, struct err *e)
{
    int64_t active;
    if (x->row.state == STUDY_FINISHED || x->row.state == STUDY_CANCELLED)
        return ST_OK;
    TRY(close_ended(s, x, now, &active, e));
    if (x->row.state == STUDY_RUNNING)
        return submit_next(s, x, active, now, e);
    if (x->row.state == STUDY_CANCELLING && !active)
        return move(s, x, STUDY_CANCELLED, "study_cancelled", "", now, e);
    return ST_OK;
}

enum status study_step(struct studies *s, int64_t study, struct instant now, struct err *e)
{
    struct study_now x;
    struct err own;
    e = e ? e : &own;
    enum status st = study_load_id(s, study, &x, e);
    if (st == ST_OK) {
        st = step(s, &x, now, e);
        study_changed(s, x.row.study_id);
    }
    study_now_release(&x);
    return st;
}
