/* study.c - studies: made, paused, resumed, cancelled, ticked (study.h). */
#include "server/study_int.h"

#include "base/log.h"
#include "graph/graph.h"
#include "server/secret.h"

#include <stdio.h>
#include <string.h>

enum { RETRY_NS = 1000000000 };

/* ---- the list of what is due ------------------------------------------------------------------
 */

struct studies *studies_new(const struct sweeps *x, const struct studies_hooks *hooks)
{
    struct studies *s = mem_alloc(sizeof *s);
    s->x = *x;
    s->hooks = hooks ? *hooks : (struct studies_hooks){0};
    ASSERT(pthread_mutex_init(&s->work, NULL) == 0 && pthread_mutex_init(&s->notes, NULL) == 0);
    return s;
}

void studies_free(struct studies *s)
{
    if (!s)
        return;
    (void)pthread_mutex_destroy(&s->work);
    (void)pthread_mutex_destroy(&s->notes);
    vec_release(&s->noted);
    mem_free(s);
}

void study_note_at(struct studies *s, int64_t study, int64_t after_ns)
{
    struct noted note = {study, after_ns};
    (void)pthread_mutex_lock(&s->notes);
    vec_push(&s->noted, note);
    (void)pthread_mutex_unlock(&s->notes);
}

void studies_note(struct studies *s, int64_t study)
{
    study_note_at(s, study, 0);
}

void study_changed(struct studies *s, const char *study_id)
{
    if (s->hooks.changed)
        s->hooks.changed(s->hooks.ctx, study_id);
}

/* One that is due, taken from the list with everything else that says the same; 0: none. */
static int64_t take_due(struct studies *s, int64_t now_ns)
{
    int64_t study = 0;
    size_t kept = 0;
    (void)pthread_mutex_lock(&s->notes);
    for (size_t i = 0; i < s->noted.n; i++) {
        struct noted n = s->noted.data[i];
        if (!study && n.after_ns <= now_ns)
            study = n.study;
        if (n.study != study)
            s->noted.data[kept++] = n;
    }
    s->noted.n = kept;
    (void)pthread_mutex_unlock(&s->notes);
    return study;
}

static void step_or_later(struct studies *s, int64_t study, struct instant now)
{
    struct err e;
    enum status st = study_step(s, study, now, &e);
    if (st == ST_OK || st == ST_NOT_FOUND)
        return;
    if (st != ST_FULL && st != ST_BUSY)
        log_warn("study: %s", e.text);
    study_note_at(s, study, now.now_ns + RETRY_NS);
}

/* The studies of an earlier server. */
static void note_open(struct studies *s)
{
    struct arena a;
    int64_t *ids;
    size_t n;
    arena_init(&a);
    s->resumed = store_studies_open(s->x.store, &a, &ids, &n, NULL) == ST_OK;
    for (size_t i = 0; s->resumed && i < n; i++)
        studies_note(s, ids[i]);
    arena_release(&a);
}

void studies_tick(struct studies *s, struct instant now)
{
    (void)pthread_mutex_lock(&s->work);
    if (!s->resumed)
        note_open(s);
    for (int64_t study; (study = take_due(s, now.now_ns)) != 0;)
        step_or_later(s, study, now);
    (void)pthread_mutex_unlock(&s->work);
}

/* ---- making one -------------------------------------------------------------------------------
 */

/* A whole number of a body within bounds, or the fallback where it is absent. */
static enum status whole(
    const json_t *body, const char *key, int64_t fallback, int64_t min, int64_t max, int64_t *out,
    struct err *e)
{
    const json_t *v = json_object_get(body, key);
    *out = fallback;
    if (!v || json_is_null(v))
        return ST_OK;
    *out = json_integer_value(v);
    if (!json_is_integer(v) || *out < min || *out > max)
        return err_set(
            e, ST_INVALID, "%s is a whole number, %lld to %lld", key, (long long)min,
            (long long)max);
    return ST_OK;
}

struct making {
    struct store_study row;
    struct sweep_plan plan;
    const json_t *graph, *options;
    int64_t repetitions, parallel, attempts;
    const char *on_failure;
    char *params, *objective, *options_text, *settings;
    struct store_blob blob;
};

static enum status read_numbers(const json_t *body, struct making *m, struct err *e)
{
    const json_t *spec = json_object_get(body, "sweep_spec");
    TRY(whole(body, "repetitions", 1, 1, STUDY_CELLS_MAX, &m->repetitions, e));
    TRY(whole(body, "seed", json_get_i64(spec, "seed", 0), 0, UINT32_MAX, &m->row.seed, e));
    TRY(whole(body, "runs_max", 0, 1, INT64_MAX, &m->row.runs_max, e));
    TRY(whole(body, "parallel", 16, 1, STUDY_PARALLEL_MAX, &m->parallel, e));
    TRY(whole(body, "attempts", 3, 1, STUDY_ATTEMPTS_MAX, &m->attempts, e));
    m->on_failure = json_get_str(body, "on_failure", "continue");
    if (!str_eq(m->on_failure, "continue") && !str_eq(m->on_failure, "pause"))
        return err_set(e, ST_INVALID, "on_failure is continue or pause");
    return ST_OK;
}

static enum status
read_plan(const struct sweeps *x, const json_t *body, struct making *m, struct err *e)
{
    const json_t *spec = json_object_get(body, "sweep_spec");
    if (spec && !json_is_null(spec)) {
        TRY(sweep_plan_make(spec, m->graph, &x->limits, &m->plan, e));
    } else {
        m->plan.n = m->plan.total = 1;
        m->plan.chosen = mem_alloc(sizeof *m->plan.chosen);
    }
    if ((int64_t)m->plan.n * m->repetitions > STUDY_CELLS_MAX)
        return err_set(
            e, ST_INVALID, "the study has %lld runs, more than %d",
            (long long)m->plan.n * (long long)m->repetitions, STUDY_CELLS_MAX);
    return variant_options_check(m->options, m->plan.n * (size_t)m->repetitions, e);
}

/* The snapshot, secrets blank. */
static enum status pack_graph(struct making *m, struct err *e)
{
    struct graph *g;
    char *text = json_text(m->graph, false);
    enum status st = graph_parse(text, strlen(text), "base_graph", &g, e);
    mem_free(text);
    if (st != ST_OK) {
        if (e && st == ST_CORRUPT)
            e->status = ST_UNPROCESSABLE;
        return st == ST_CORRUPT ? ST_UNPROCESSABLE : st;
    }
    json_t *blank = graph_document(g);
    graph_free(g);
    text = json_text(blank, false);
    st = store_blob_pack(text, strlen(text), &m->blob, e);
    mem_free(text);
    json_decref(blank);
    return st;
}

/* Every variant as its first run would be submitted: refused if one of them would be. */
static enum status check_runs(
    struct studies *s, const struct actor *who, const struct making *m, struct instant now,
    struct err *e)
{
    size_t n = m->plan.n;
    struct core_submission *runs = mem_alloc(n * sizeof *runs);
    json_t *options =
        json_is_object(m->options) ? json_copy((json_t *)(uintptr_t)m->options) : json_object();
    json_put_i64(options, "seed", m->row.seed);
    for (size_t i = 0; i < n; i++)
        runs[i] = (struct core_submission){
            .graph = m->graph,
            .options = options,
            .patch = m->plan.n_params ? sweep_plan_patch(&m->plan, m->plan.chosen[i]) : NULL,
            .variant = (int)i,
            .repetition = 0};
    enum status st = core_submit_check(s->x.core, who, runs, n, now, e);
    for (size_t i = 0; i < n; i++)
        json_decref((json_t *)(uintptr_t)runs[i].patch);
    json_decref(options);
    mem_free(runs);
    return st;
}

static enum status
write_study(struct studies *s, struct making *m, struct instant now, struct err *e)
{
    TRY(store_graph_put(s->x.store, &m->blob, &m->row.graph_id, e));
    TRY(store_study_add(s->x.store, &m->row, &m->row.id, e));
    for (int32_t k = 0; k < m->row.repetitions; k++)
        for (int32_t i = 0; i < m->row.variants; i++)
            TRY(store_study_cell_add(s->x.store, m->row.id, i, k, m->plan.chosen[i], e));
    json_t *payload = json_object();
    json_put_i64(payload, "variants", m->row.variants);
    json_put_i64(payload, "repetitions", m->row.repetitions);
    return study_tell(s, m->row.id, "study_started", payload, now, e);
}

static enum status make_row(
    const struct actor *who, const json_t *body, struct making *m, struct instant now,
    struct err *e)
{
    const char *name;
    TRY(variant_name_check(body, &name, e));
    TRY(secret_id(m->row.study_id, e));
    json_t *params = sweep_plan_params(&m->plan), *settings = json_object();
    json_put_i64(settings, "parallel", m->parallel);
    json_put_i64(settings, "attempts", m->attempts);
    json_put_str(settings, "on_failure", m->on_failure);
    m->params = json_text(params, false);
    m->settings = json_text(settings, false);
    m->objective = json_text(json_object_get(body, "objective"), false);
    m->options_text = json_is_object(m->options) ? json_text(m->options, false) : mem_strdup("");
    json_decref(params);
    json_decref(settings);
    m->row.name = name ? name : json_get_str(m->graph, "name", "");
    m->row.owner = who->name;
    m->row.state = STUDY_RUNNING;
    m->row.reason = "";
    m->row.params = m->params;
    m->row.objective = m->objective;
    m->row.options = m->options_text;
    m->row.settings = m->settings;
    m->row.variants = (int32_t)m->plan.n;
    m->row.repetitions = (int32_t)m->repetitions;
    m->row.created_us = now.wall_us;
    return ST_OK;
}

static enum status prepare(
    struct studies *s, const struct actor *who, const json_t *body, struct instant now,
    struct making *m, struct err *e)
{
    static const char *const keys[] = {"base_graph", "sweep_spec",  "objective",  "options",
                                       "name",       "repetitions", "seed",       "runs_max",
                                       "parallel",   "attempts",    "on_failure", NULL};
    TRY(body_keys_check(body, keys, e));
    m->graph = json_object_get(body, "base_graph");
    m->options = json_object_get(body, "options");
    if (!json_is_object(m->graph))
        return err_set(e, ST_UNPROCESSABLE, "a study needs an object base_graph");
    TRY(objective_check(json_object_get(body, "objective"), e));
    TRY(variant_options_check(m->options, 0, e));
    TRY(read_numbers(body, m, e));
    TRY(read_plan(&s->x, body, m, e));
    TRY(make_row(who, body, m, now, e));
    TRY(pack_graph(m, e));
    return check_runs(s, who, m, now, e);
}

static void making_release(struct making *m)
{
    sweep_plan_release(&m->plan);
    store_blob_release(&m->blob);
    mem_free(m->params);
    mem_free(m->objective);
    mem_free(m->options_text);
    mem_free(m->settings);
}

enum status study_create(
    struct studies *s, const struct actor *who, const json_t *body, struct instant now,
    json_t **reply, struct err *e)
{
    struct making m = {0};
    enum status st = prepare(s, who, body, now, &m, e);
    if (st == ST_OK)
        st = store_begin(s->x.store, e);
    if (st == ST_OK)
        st = store_end(s->x.store, write_study(s, &m, now, e), e);
    if (st == ST_OK) {
        (void)pthread_mutex_lock(&s->work);
        step_or_later(s, m.row.id, now);
        (void)pthread_mutex_unlock(&s->work);
        st = study_read(s, m.row.study_id, reply, e);
    }
    making_release(&m);
    return st;
}

/* ---- pause, resume, cancel --------------------------------------------------------------------
 */

/* Stops runs of submitted cells: all, or those that wait. */
static enum status stop_runs(
    struct studies *s, struct study_now *x, bool waiting_only, struct instant now, struct err *e)
{
    struct store_cell *cells;
    size_t n;
    TRY(store_study_cells(
        s->x.store, x->row.id, CELL_SUBMITTED, STUDY_CELLS_MAX, &x->arena, &cells, &n, e));
    for (size_t i = 0; i < n; i++) {
        json_t *answer = NULL;
        int state = cells[i].run_state;
        if (state < 0 || run_state_ended((enum run_state)state) ||
            (waiting_only && state != RUN_WAITING))
            continue;
        enum status st = core_cancel(s->x.core, cells[i].run_id, now, &answer, e);
        json_decref(answer);
        if (st != ST_OK && st != ST_NOT_FOUND)
            return st;
    }
    return ST_OK;
}

static enum status move(
    struct studies *s, struct study_now *x, enum study_state to, const char *type,
    struct instant now, struct err *e)
{
    TRY(store_begin(s->x.store, e));
    enum status st = store_study_move(s->x.store, x->row.id, x->row.state, to, "", 0, e);
    if (st == ST_OK)
        st = study_tell(s, x->row.id, type, NULL, now, e);
    return store_end(s->x.store, st, e);
}

static enum status refuse(const struct study_now *x, const char *what, struct err *e)
{
    return err_set(
        e, ST_CONFLICT, "the study is %s: it cannot be %s", study_state_text(x->row.state), what);
}

static enum status
pause_now(struct studies *s, struct study_now *x, struct instant now, struct err *e)
{
    if (x->row.state == STUDY_PAUSED)
        return ST_OK;
    if (x->row.state != STUDY_RUNNING)
        return refuse(x, "paused", e);
    TRY(move(s, x, STUDY_PAUSED, "study_paused", now, e));
    return stop_runs(s, x, true, now, e);
}

static enum status
cancel_now(struct studies *s, struct study_now *x, struct instant now, struct err *e)
{
    if (x->row.state == STUDY_CANCELLED || x->row.state == STUDY_FINISHED)
        return ST_OK;
    if (x->row.state != STUDY_CANCELLING)
        TRY(move(s, x, STUDY_CANCELLING, "study_cancelling", now, e));
    return stop_runs(s, x, false, now, e);
}

struct wishes {
    int64_t runs_max;
    bool retry_failed;
};

static enum status resume_in(
    struct studies *s, struct study_now *x, const struct wishes *w, struct instant now,
    struct err *e)
{
    if (w->runs_max)
        TRY(store_study_budget(s->x.store, x->row.id, w->runs_max, e));
    if (w->retry_failed)
        TRY(store_study_retry(s->x.store, x->row.id, e));
    TRY(store_study_move(s->x.store, x->row.id, x->row.state, STUDY_RUNNING, "", 0, e));
    return study_tell(s, x->row.id, "study_resumed", NULL, now, e);
}

static enum status resume_now(
    struct studies *s, struct study_now *x, const struct wishes *w, struct instant now,
    struct err *e)
{
    bool wishes = w->runs_max || w->retry_failed;
    if (x->row.state == STUDY_RUNNING && !wishes)
        return ST_OK;
    if (x->row.state == STUDY_CANCELLING || x->row.state == STUDY_CANCELLED ||
        (x->row.state == STUDY_FINISHED && !wishes))
        return refuse(x, "resumed", e);
    TRY(store_begin(s->x.store, e));
    return store_end(s->x.store, resume_in(s, x, w, now, e), e);
}

enum change { CHANGE_PAUSE, CHANGE_RESUME, CHANGE_CANCEL };

static enum status change(
    struct studies *s, const char *study_id, enum change what, const struct wishes *w,
    struct instant now, json_t **doc, struct err *e)
{
    struct study_now x;
    (void)pthread_mutex_lock(&s->work);
    enum status st = study_load(s, study_id, &x, e);
    if (st == ST_OK)
        st = what == CHANGE_PAUSE    ? pause_now(s, &x, now, e)
             : what == CHANGE_CANCEL ? cancel_now(s, &x, now, e)
                                     : resume_now(s, &x, w, now, e);
    int64_t id = x.row.id;
    study_now_release(&x);
    if (st == ST_OK)
        step_or_later(s, id, now);
    (void)pthread_mutex_unlock(&s->work);
    return st == ST_OK ? study_read(s, study_id, doc, e) : st;
}

enum status study_pause(
    struct studies *s, const char *study_id, struct instant now, json_t **doc, struct err *e)
{
    return change(s, study_id, CHANGE_PAUSE, NULL, now, doc, e);
}

enum status study_cancel(
    struct studies *s, const char *study_id, struct instant now, json_t **doc, struct err *e)
{
    return change(s, study_id, CHANGE_CANCEL, NULL, now, doc, e);
}

enum status study_resume(
    struct studies *s, const char *study_id, const json_t *body, struct instant now, json_t **doc,
    struct err *e)
{
    static const char *const keys[] = {"runs_max", "retry_failed", NULL};
    struct wishes w = {0};
    TRY(body_keys_check(body, keys, e));
    TRY(whole(body, "runs_max", 0, 1, INT64_MAX, &w.runs_max, e));
    w.retry_failed = json_get_bool(body, "retry_failed", false);
    return change(s, study_id, CHANGE_RESUME, &w, now, doc, e);
}
