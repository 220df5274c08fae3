/* study_read.c - what is told about studies: variants by rank, their cells, events, CSV. */
#include "server/study_int.h"

#include "server/core_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *study_state_text(enum study_state s)
{
    static const char *const texts[] = {"running", "paused", "cancelling", "finished", "cancelled"};
    return texts[s];
}

/* A cell with what is known of its run. */
struct known {
    const struct store_cell *cell;
    struct cell_facts facts;
    const char *status; /* "pending" before its run */
};
struct group {
    int32_t variant;
    int64_t combination, rank;
    double mean, deviation; /* over the repetitions that have the objective; NaN: none */
    int64_t n;
    bool maximize;
};
struct view {
    struct study_now x;
    struct known *cells; /* by (repetition, variant) */
    size_t n;
    struct group *groups;
    size_t n_groups;
};

static void view_release(struct view *v)
{
    for (size_t i = 0; i < v->n; i++)
        json_decref(v->cells[i].facts.final_metrics);
    mem_free(v->cells);
    mem_free(v->groups);
    study_now_release(&v->x);
}

static int by_rank(const void *a, const void *b)
{
    const struct group *x = a, *y = b;
    bool has_x = !isnan(x->mean), has_y = !isnan(y->mean);
    if (has_x != has_y)
        return has_x ? -1 : 1;
    if (has_x && x->mean < y->mean)
        return x->maximize ? 1 : -1;
    if (has_x && x->mean > y->mean)
        return x->maximize ? -1 : 1;
    return x->variant - y->variant;
}

/* Mean and standard deviation (of the sample) of each variant's objective. */
static void group_cells(struct view *v)
{
    bool maximize = str_eq(json_get_str(v->x.objective, "direction", ""), "maximize");
    v->n_groups = (size_t)v->x.row.variants;
    v->groups = mem_alloc((v->n_groups + 1) * sizeof *v->groups);
    for (size_t i = 0; i < v->n_groups; i++)
        v->groups[i] = (struct group){.variant = (int32_t)i, .maximize = maximize};
    for (size_t i = 0; i < v->n; i++) {
        struct group *g = &v->groups[v->cells[i].cell->variant];
        double value = v->cells[i].facts.objective;
        g->combination = v->cells[i].cell->combination;
        if (isnan(value))
            continue;
        double delta = value - g->mean; /* Welford 1962 */
        g->mean += delta / (double)++g->n;
        g->deviation += delta * (value - g->mean);
    }
    for (size_t i = 0; i < v->n_groups; i++) {
        struct group *g = &v->groups[i];
        g->deviation = g->n > 1 ? sqrt(g->deviation / (double)(g->n - 1)) : (double)NAN;
        g->mean = g->n ? g->mean : (double)NAN;
    }
    qsort(v->groups, v->n_groups, sizeof *v->groups, by_rank);
    for (size_t i = 0; i < v->n_groups && !isnan(v->groups[i].mean); i++)
        v->groups[i].rank = (int64_t)i + 1;
}

static enum status view_make(struct studies *s, const char *study_id, struct view *v, struct err *e)
{
    struct store_cell *cells;
    size_t n;
    *v = (struct view){0};
    TRY(study_load(s, study_id, &v->x, e));
    TRY(store_study_cells(s->x.store, v->x.row.id, -1, 0, &v->x.arena, &cells, &n, e));
    const char *metric = json_get_str(v->x.objective, "metric", "");
    v->cells = mem_alloc((n + 1) * sizeof *v->cells);
    for (size_t i = 0; i < n; i++) {
        if (cells[i].variant < 0 || cells[i].variant >= v->x.row.variants)
            return err_set(e, ST_IO, "could not read the database: a study's row is damaged");
        struct known *k = &v->cells[v->n++];
        k->cell = &cells[i];
        cell_facts_read(s->x.store, &cells[i], metric, &k->facts);
        k->status = cells[i].state == CELL_PENDING ? "pending" : k->facts.status;
        if (cells[i].state == CELL_PENDING)
            k->facts.objective = (double)NAN; /* of an attempt that is made again */
    }
    group_cells(v);
    return ST_OK;
}

/* ---- JSON -------------------------------------------------------------------------------------
 */

static json_t *number_json(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static json_t *cell_row(const struct view *v, const struct known *k)
{
    json_t *row = json_object();
    json_put_i64(row, "repetition", k->cell->repetition);
    json_put_i64(row, "seed", study_seed(&v->x.row, k->cell->repetition));
    json_put_i64(row, "attempt", k->cell->attempt);
    json_put_str(row, "run_id", k->cell->run_id[0] ? k->cell->run_id : NULL);
    json_put_str(row, "status", k->status);
    json_put(row, "objective", number_json(k->facts.objective));
    json_put_bool(row, "run_exists", k->cell->run_state >= 0);
    cell_place_json(row, &k->facts);
    return row;
}

static json_t *variants_json(const struct view *v)
{
    json_t *list = json_array();
    for (size_t i = 0; i < v->n_groups; i++) {
        const struct group *g = &v->groups[i];
        json_t *row = json_object(), *cells = json_array();
        for (size_t k = (size_t)g->variant; k < v->n; k += v->n_groups)
            (void)json_array_append_new(cells, cell_row(v, &v->cells[k]));
        json_put_i64(row, "index", g->variant);
        json_put_i64(row, "domain_index", g->combination);
        json_put(row, "params", sweep_plan_values(&v->x.plan, (uint64_t)g->combination));
        json_put(row, "rank", g->rank ? json_integer(g->rank) : json_null());
        json_put(row, "objective", number_json(g->mean));
        json_put(row, "objective_std", number_json(g->deviation));
        json_put_i64(row, "n", g->n);
        json_put(row, "cells", cells);
        (void)json_array_append_new(list, row);
    }
    return list;
}

static json_t *counts_json(const struct view *v)
{
    static const char *const keys[] = {"pending", "queued",    "running",     "succeeded",
                                       "failed",  "cancelled", "interrupted", "missing"};
    json_t *counts = json_object();
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        int64_t n = 0;
        for (size_t i = 0; i < v->n; i++)
            n += str_eq(v->cells[i].status, keys[k]);
        json_put_i64(counts, keys[k], n);
    }
    return counts;
}

static void put_time(json_t *doc, const char *key, int64_t us)
{
    char buf[40];
    json_put_str(doc, key, us ? iso_time(us, buf) : NULL);
}

static json_t *parsed(const char *text)
{
    json_t *out = NULL;
    if (*text && json_parse(text, strlen(text), "row", &out, NULL) != ST_OK)
        return json_null();
    return out ? out : json_null();
}

static json_t *head_json(const struct store_study *row)
{
    json_t *doc = json_object();
    json_put_str(doc, "study_id", row->study_id);
    json_put_str(doc, "name", *row->name ? row->name : NULL);
    json_put_str(doc, "owner", *row->owner ? row->owner : NULL);
    json_put_str(doc, "state", study_state_text(row->state));
    json_put_str(doc, "reason", *row->reason ? row->reason : NULL);
    json_put_i64(doc, "n_variants", row->variants);
    json_put_i64(doc, "repetitions", row->repetitions);
    json_put_i64(doc, "seed", row->seed);
    json_put(doc, "objective", parsed(row->objective));
    json_put(doc, "options", parsed(row->options));
    json_put(doc, "settings", parsed(row->settings));
    json_put(doc, "runs_max", row->runs_max ? json_integer(row->runs_max) : json_null());
    json_put_i64(doc, "runs_made", row->runs_made);
    json_put_i64(doc, "last_cursor", row->last_cursor);
    put_time(doc, "created_at", row->created_us);
    put_time(doc, "finished_at", row->finished_us);
    return doc;
}

enum status study_read(struct studies *s, const char *study_id, json_t **doc, struct err *e)
{
    struct view v;
    enum status st = view_make(s, study_id, &v, e);
    if (st == ST_OK) {
        *doc = head_json(&v.x.row);
        json_put(*doc, "counts", counts_json(&v));
        json_put(*doc, "params", json_incref(v.x.params));
        json_put(*doc, "variants", variants_json(&v));
        json_t *best = json_null();
        if (v.n_groups && v.groups[0].rank)
            best = json_pack(
                "{s:i, s:f, s:I}", "index", (int)v.groups[0].variant, "objective", v.groups[0].mean,
                "n", (json_int_t)v.groups[0].n);
        json_put(*doc, "best", best);
    }
    view_release(&v);
    return st;
}

enum status
study_list(struct studies *s, int64_t limit, int64_t offset, json_t **doc, struct err *e)
{
    struct arena a;
    struct store_study *rows;
    size_t n = 0;
    int64_t total = 0;
    arena_init(&a);
    enum status st = store_studies_list(s->x.store, limit, offset, &a, &rows, &n, &total, e);
    if (st == ST_OK) {
        json_t *list = json_array();
        for (size_t i = 0; i < n; i++)
            (void)json_array_append_new(list, head_json(&rows[i]));
        *doc = json_object();
        json_put(*doc, "studies", list);
        json_put_i64(*doc, "total", total);
        json_put_i64(*doc, "limit", limit);
        json_put_i64(*doc, "offset", offset);
    }
    arena_release(&a);
    return st;
}

/* ---- events, CSV ------------------------------------------------------------------------------
 */

static json_t *events_json(const struct store_event *events, size_t n)
{
    json_t *list = json_array();
    char buf[40];
    for (size_t i = 0; i < n; i++) {
        json_t *row = json_object();
        json_put_i64(row, "cursor", events[i].cursor);
        json_put_str(row, "type", events[i].type);
        json_put(row, "payload", parsed(events[i].payload));
        json_put_str(row, "ts", iso_time(events[i].time_us, buf));
        (void)json_array_append_new(list, row);
    }
    return list;
}

enum status study_events(
    struct studies *s, const char *study_id, int64_t cursor, int64_t limit, json_t **doc,
    struct err *e)
{
    struct study_now x;
    struct store_event *events;
    size_t n = 0;
    enum status st = study_load(s, study_id, &x, e);
    if (st == ST_OK)
        st = store_study_events_read(s->x.store, x.row.id, cursor, limit, &x.arena, &events, &n, e);
    if (st == ST_OK) {
        *doc = json_object();
        json_put_str(*doc, "study_id", x.row.study_id);
        json_put_str(*doc, "state", study_state_text(x.row.state));
        json_put_bool(
            *doc, "active", x.row.state != STUDY_FINISHED && x.row.state != STUDY_CANCELLED);
        json_put(*doc, "events", events_json(events, n));
        json_put_i64(*doc, "cursor", n ? events[n - 1].cursor : cursor);
    }
    study_now_release(&x);
    return st;
}

static void csv_cells(const struct view *v, const struct group *g, struct str *out)
{
    for (size_t k = (size_t)g->variant; k < v->n; k += v->n_groups) {
        const struct known *c = &v->cells[k];
        json_t *values = sweep_plan_values(&v->x.plan, (uint64_t)g->combination), *value;
        size_t i;
        if (g->rank)
            str_printf(out, "%lld", (long long)g->rank);
        str_printf(
            out, ",%d,%lld,%d,%d,%u,%s,%s,", g->variant, (long long)g->combination,
            c->cell->repetition, c->cell->attempt, study_seed(&v->x.row, c->cell->repetition),
            c->cell->run_id, c->status);
        number_csv(out, c->facts.objective);
        str_add(out, ",");
        csv_cell(out, c->facts.worker);
        json_array_foreach(values, i, value)
        {
            str_add(out, ",");
            value_csv(out, json_object_get(value, "value"));
        }
        str_add(out, "\n");
        json_decref(values);
    }
}

enum status study_csv(struct studies *s, const char *study_id, struct str *out, struct err *e)
{
    struct view v;
    enum status st = view_make(s, study_id, &v, e);
    if (st == ST_OK) {
        str_add(
            out, "\xef\xbb\xbfrank,variant_index,domain_index,repetition,attempt,seed,run_id,"
                 "status,objective,worker_id");
        for (size_t i = 0; i < v.x.plan.n_params; i++) {
            char *name = arena_printf(
                &v.x.arena, "%s.%s", v.x.plan.params[i].node_id, v.x.plan.params[i].param);
            str_add(out, ",");
            csv_cell(out, name);
        }
        str_add(out, "\n");
        for (size_t i = 0; i < v.n_groups; i++)
            csv_cells(&v, &v.groups[i], out);
    }
    view_release(&v);
    return st;
}
