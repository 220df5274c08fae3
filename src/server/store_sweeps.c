/* store_sweeps.c - rows of sweeps and studies (store_sweeps.h). */
#include "server/store_sweeps.h"

#include "server/store_int.h"

/* ---- what both have ---------------------------------------------------------------------------
 */

static void read_cell(sqlite3_stmt *st, struct arena *a, struct store_cell *x)
{
    *x = (struct store_cell){
        .variant = (int32_t)col_int(st, 0),
        .repetition = (int32_t)col_int(st, 1),
        .state = (int)col_int(st, 2),
        .attempt = (int32_t)col_int(st, 3),
        .combination = col_int(st, 4),
        .kept = col_text(st, 6, a),
        .run = col_int(st, 7),
        .run_state = (int)col_int(st, 8),
        .final_metrics = col_text(st, 9, a),
        .worker = col_text(st, 10, a),
        .devices = col_text(st, 11, a),
        .queue_key = col_text(st, 12, a),
        .run_started = col_int(st, 13) != 0};
    col_id(st, 5, x->run_id);
    if ((int)x->state < 0 || x->state > CELL_FAILED)
        x->state = CELL_FAILED;
    if (x->run_state >= RUN_STATE_COUNT)
        x->run_state = -1;
}

static enum status cells(
    struct conn *c, enum sql q, const struct sql_arg *args, size_t n_args, struct arena *a,
    struct store_cell **out, size_t *n, struct err *e)
{
    VEC(struct store_cell) rows = {0};
    sqlite3_stmt *stmt;
    bool more = true;
    enum status st = sql_bind(c, q, args, n_args, &stmt, e);
    while (st == ST_OK && (st = sql_row(c, stmt, &more, e)) == ST_OK && more) {
        struct store_cell x;
        read_cell(stmt, a, &x);
        vec_push(&rows, x);
    }
    *n = rows.n;
    *out = arena_keep(a, rows.data, rows.n * sizeof *rows.data);
    return st;
}

static bool name_of(struct store *s, enum sql q, int64_t id, char out[STORE_ID + 1])
{
    struct conn *c = store_read_take(s);
    sqlite3_stmt *st;
    bool more = false;
    out[0] = '\0';
    if (sql_bind(c, q, SQL_ARGS(A_INT(id)), &st, NULL) == ST_OK &&
        sql_row(c, st, &more, NULL) == ST_OK && more) {
        col_id(st, 0, out);
        sql_done(st);
    }
    store_read_give(s, c);
    return out[0] != '\0';
}

/* ---- sweeps -----------------------------------------------------------------------------------
 */

enum status
store_sweep_add(struct store *s, const struct store_sweep *x, int64_t *id, struct err *e)
{
    struct conn *c = store_writing(s);
    struct sql_arg args[] = {A_TEXT(x->sweep_id),      A_TEXT(x->name),   A_TEXT(x->owner),
                             A_INT((int64_t)x->state), A_TEXT(x->method), A_INT(x->seed),
                             A_INT(x->seed_variants),  A_TEXT(x->params), A_TEXT(x->objective),
                             A_TEXT(x->options),       A_INT(x->total),   A_INT(x->created_us),
                             A_INT(x->finished_us)};
    if (x->seed < 0)
        args[5].kind = ARG_NULL;
    TRY(sql_do(c, SQL_SWEEP_ADD, args, sizeof args / sizeof *args, e));
    *id = sqlite3_last_insert_rowid(c->db);
    return ST_OK;
}

enum status store_sweep_variant_add(
    struct store *s, int64_t sweep, int32_t variant, uint64_t combination, const char *run_id,
    struct err *e)
{
    return sql_do(
        store_writing(s), SQL_SWEEP_VARIANT_ADD,
        SQL_ARGS(A_INT(sweep), A_INT(variant), A_INT((int64_t)combination), A_TEXT(run_id)), e);
}

enum status store_sweep_state(
    struct store *s, int64_t sweep, enum sweep_state state, int64_t finished_us, struct err *e)
{
    return sql_do(
        store_writing(s), SQL_SWEEP_STATE,
        SQL_ARGS(A_INT(sweep), A_INT((int64_t)state), A_INT(finished_us)), e);
}

static void read_sweep(sqlite3_stmt *st, struct arena *a, struct store_sweep *x)
{
    *x = (struct store_sweep){
        .id = col_int(st, 0),
        .name = col_text(st, 2, a),
        .owner = col_text(st, 3, a),
        .state = (int)col_int(st, 4),
        .method = col_text(st, 5, a),
        .seed = sqlite3_column_type(st, 6) == SQLITE_NULL ? -1 : col_int(st, 6),
        .seed_variants = col_int(st, 7) != 0,
        .params = col_text(st, 8, a),
        .objective = col_text(st, 9, a),
        .options = col_text(st, 10, a),
        .total = col_int(st, 11),
        .created_us = col_int(st, 12),
        .finished_us = col_int(st, 13)};
    col_id(st, 1, x->sweep_id);
    if ((int)x->state < 0 || x->state > SWEEP_FAILED)
        x->state = SWEEP_FAILED;
}

static enum status sweeps_read(
    struct conn *c, enum sql q, const struct sql_arg *args, size_t n_args, struct arena *a,
    struct store_sweep **out, size_t *n, struct err *e)
{
    VEC(struct store_sweep) rows = {0};
    sqlite3_stmt *stmt;
    bool more = true;
    enum status st = sql_bind(c, q, args, n_args, &stmt, e);
    while (st == ST_OK && (st = sql_row(c, stmt, &more, e)) == ST_OK && more) {
        struct store_sweep x;
        read_sweep(stmt, a, &x);
        vec_push(&rows, x);
    }
    *n = rows.n;
    *out = arena_keep(a, rows.data, rows.n * sizeof *rows.data);
    return st;
}

enum status store_sweep_get(
    struct store *s, const char *sweep_id, struct arena *a, struct store_sweep *out, struct err *e)
{
    struct store_sweep *found;
    size_t n;
    struct conn *c = store_read_take(s);
    enum status st = sweeps_read(c, SQL_SWEEP_GET, SQL_ARGS(A_TEXT(sweep_id)), a, &found, &n, e);
    store_read_give(s, c);
    TRY(st);
    if (!n)
        return err_set(e, ST_NOT_FOUND, "sweep \"%.64s\" is not there", sweep_id);
    *out = found[0];
    return ST_OK;
}

enum status store_sweeps_list(
    struct store *s, int64_t limit, int64_t offset, struct arena *a, struct store_sweep **out,
    size_t *n, int64_t *total, struct err *e)
{
    struct conn *c = store_read_take(s);
    enum status st = sql_int(c, SQL_SWEEPS_COUNT, SQL_NONE, 0, total, e);
    if (st == ST_OK)
        st = sweeps_read(c, SQL_SWEEPS_LIST, SQL_ARGS(A_INT(limit), A_INT(offset)), a, out, n, e);
    store_read_give(s, c);
    return st;
}

enum status store_sweep_variants(
    struct store *s, int64_t sweep, struct arena *a, struct store_cell **out, size_t *n,
    struct err *e)
{
    struct conn *c = store_read_take(s);
    enum status st = cells(c, SQL_SWEEP_VARIANTS, SQL_ARGS(A_INT(sweep)), a, out, n, e);
    store_read_give(s, c);
    return st;
}

enum status store_sweep_lives(struct store *s, int64_t sweep, bool *lives, struct err *e)
{
    int64_t id = 0;
    struct conn *c = store_read_take(s);
    enum status st = sql_int(c, SQL_SWEEP_LIVES, SQL_ARGS(A_INT(sweep)), 0, &id, e);
    store_read_give(s, c);
    *lives = id != 0;
    return st;
}

bool store_sweep_name(struct store *s, int64_t sweep, char id[STORE_ID + 1])
{
    return name_of(s, SQL_SWEEP_NAME, sweep, id);
}

bool store_study_name(struct store *s, int64_t study, char id[STORE_ID + 1])
{
    return name_of(s, SQL_STUDY_NAME, study, id);
}

/* ---- studies ----------------------------------------------------------------------------------
 */

enum status
store_study_add(struct store *s, const struct store_study *x, int64_t *id, struct err *e)
{
    struct conn *c = store_writing(s);
    const struct sql_arg args[] = {
        A_TEXT(x->study_id),  A_TEXT(x->name),      A_TEXT(x->owner),     A_INT((int64_t)x->state),
        A_TEXT(x->reason),    A_TEXT(x->params),    A_TEXT(x->objective), A_TEXT(x->options),
        A_TEXT(x->settings),  A_INT(x->graph_id),   A_INT(x->variants),   A_INT(x->repetitions),
        A_INT(x->seed),       A_INT(x->runs_max),   A_INT(x->runs_made),  A_INT(x->last_cursor),
        A_INT(x->created_us), A_INT(x->finished_us)};
    TRY(sql_do(c, SQL_STUDY_ADD, args, sizeof args / sizeof *args, e));
    *id = sqlite3_last_insert_rowid(c->db);
    return ST_OK;
}

enum status store_study_cell_add(
    struct store *s, int64_t study, int32_t variant, int32_t repetition, uint64_t combination,
    struct err *e)
{
    return sql_do(
        store_writing(s), SQL_STUDY_CELL_ADD,
        SQL_ARGS(A_INT(study), A_INT(variant), A_INT(repetition), A_INT((int64_t)combination)), e);
}

enum status store_study_move(
    struct store *s, int64_t study, enum study_state from, enum study_state to, const char *reason,
    int64_t finished_us, struct err *e)
{
    struct conn *c = store_writing(s);
    TRY(sql_do(
        c, SQL_STUDY_MOVE,
        SQL_ARGS(
            A_INT(study), A_INT((int64_t)from), A_INT((int64_t)to), A_TEXT(reason),
            A_INT(finished_us)),
        e));
    if (sql_changes(c) != 1)
        return err_set(e, ST_CONFLICT, "the study is in another state by now");
    return ST_OK;
}

enum status store_study_claim(
    struct store *s, int64_t study, int32_t variant, int32_t repetition, const char *run_id,
    struct err *e)
{
    struct conn *c = store_writing(s);
    TRY(sql_do(
        c, SQL_STUDY_CELL_CLAIM,
        SQL_ARGS(A_INT(study), A_INT(variant), A_INT(repetition), A_TEXT(run_id)), e));
    if (sql_changes(c) != 1)
        return err_set(
            e, ST_CONFLICT, "variant %d, repetition %d is submitted already", variant, repetition);
    return sql_do(c, SQL_STUDY_RUNS_MADE, SQL_ARGS(A_INT(study), A_INT(1)), e);
}

enum status store_study_close(
    struct store *s, int64_t study, const struct store_cell *cell, enum cell_state to, bool refund,
    struct err *e)
{
    struct conn *c = store_writing(s);
    TRY(sql_do(
        c, SQL_STUDY_CELL_CLOSE,
        SQL_ARGS(
            A_INT(study), A_INT(cell->variant), A_INT(cell->repetition), A_TEXT(cell->run_id),
            A_INT((int64_t)to)),
        e));
    if (sql_changes(c) != 1)
        return err_set(
            e, ST_CONFLICT, "variant %d, repetition %d has another run by now", cell->variant,
            cell->repetition);
    return refund ? sql_do(c, SQL_STUDY_RUNS_MADE, SQL_ARGS(A_INT(study), A_INT(-1)), e) : ST_OK;
}

enum status store_study_budget(struct store *s, int64_t study, int64_t runs_max, struct err *e)
{
    return sql_do(store_writing(s), SQL_STUDY_BUDGET, SQL_ARGS(A_INT(study), A_INT(runs_max)), e);
}

enum status store_study_retry(struct store *s, int64_t study, struct err *e)
{
    return sql_do(store_writing(s), SQL_STUDY_RETRY, SQL_ARGS(A_INT(study)), e);
}

enum status store_study_event(
    struct store *s, int64_t study, const char *type, const char *payload, int64_t time_us,
    struct err *e)
{
    struct conn *c = store_writing(s);
    int64_t cursor;
    TRY(sql_int(c, SQL_STUDY_CURSOR, SQL_ARGS(A_INT(study)), 0, &cursor, e));
    return sql_do(
        c, SQL_STUDY_EVENT_ADD,
        SQL_ARGS(A_INT(study), A_INT(cursor), A_TEXT(type), A_TEXT(payload), A_INT(time_us)), e);
}

static void read_study(sqlite3_stmt *st, struct arena *a, struct store_study *x)
{
    *x = (struct store_study){
        .id = col_int(st, 0),
        .name = col_text(st, 2, a),
        .owner = col_text(st, 3, a),
        .state = (int)col_int(st, 4),
        .reason = col_text(st, 5, a),
        .params = col_text(st, 6, a),
        .objective = col_text(st, 7, a),
        .options = col_text(st, 8, a),
        .settings = col_text(st, 9, a),
        .graph_id = col_int(st, 10),
        .variants = (int32_t)col_int(st, 11),
        .repetitions = (int32_t)col_int(st, 12),
        .seed = col_int(st, 13),
        .runs_max = col_int(st, 14),
        .runs_made = col_int(st, 15),
        .last_cursor = col_int(st, 16),
        .created_us = col_int(st, 17),
        .finished_us = col_int(st, 18)};
    col_id(st, 1, x->study_id);
    if ((int)x->state < 0 || x->state > STUDY_CANCELLED)
        x->state = STUDY_CANCELLED;
}

static enum status studies_read(
    struct conn *c, enum sql q, const struct sql_arg *args, size_t n_args, struct arena *a,
    struct store_study **out, size_t *n, struct err *e)
{
    VEC(struct store_study) rows = {0};
    sqlite3_stmt *stmt;
    bool more = true;
    enum status st = sql_bind(c, q, args, n_args, &stmt, e);
    while (st == ST_OK && (st = sql_row(c, stmt, &more, e)) == ST_OK && more) {
        struct store_study x;
        read_study(stmt, a, &x);
        vec_push(&rows, x);
    }
    *n = rows.n;
    *out = arena_keep(a, rows.data, rows.n * sizeof *rows.data);
    return st;
}

static enum status study_one(
    struct store *s, enum sql q, struct sql_arg key, struct arena *a, struct store_study *out,
    struct err *e)
{
    struct store_study *found;
    size_t n;
    struct conn *c = store_read_take(s);
    enum status st = studies_read(c, q, &key, 1, a, &found, &n, e);
    store_read_give(s, c);
    TRY(st);
    if (!n)
        return err_set(
            e, ST_NOT_FOUND, "study \"%.64s\" is not there",
            key.kind == ARG_TEXT ? (const char *)key.p : "");
    *out = found[0];
    return ST_OK;
}

enum status store_study_get(
    struct store *s, const char *study_id, struct arena *a, struct store_study *out, struct err *e)
{
    struct sql_arg key = A_TEXT(study_id);
    return study_one(s, SQL_STUDY_GET, key, a, out, e);
}

enum status store_study_by_id(
    struct store *s, int64_t id, struct arena *a, struct store_study *out, struct err *e)
{
    struct sql_arg key = A_INT(id);
    return study_one(s, SQL_STUDY_BY_ID, key, a, out, e);
}

enum status store_studies_list(
    struct store *s, int64_t limit, int64_t offset, struct arena *a, struct store_study **out,
    size_t *n, int64_t *total, struct err *e)
{
    struct conn *c = store_read_take(s);
    enum status st = sql_int(c, SQL_STUDIES_COUNT, SQL_NONE, 0, total, e);
    if (st == ST_OK)
        st = studies_read(c, SQL_STUDIES_LIST, SQL_ARGS(A_INT(limit), A_INT(offset)), a, out, n, e);
    store_read_give(s, c);
    return st;
}

static enum status
open_ids(struct conn *c, struct arena *a, int64_t **ids, size_t *n, struct err *e)
{
    VEC(int64_t) rows = {0};
    sqlite3_stmt *stmt;
    bool more = true;
    enum status st = sql_bind(c, SQL_STUDIES_OPEN, SQL_NONE, &stmt, e);
    while (st == ST_OK && (st = sql_row(c, stmt, &more, e)) == ST_OK && more)
        vec_push(&rows, col_int(stmt, 0));
    *n = rows.n;
    *ids = arena_keep(a, rows.data, rows.n * sizeof *rows.data);
    return st;
}

enum status
store_studies_open(struct store *s, struct arena *a, int64_t **ids, size_t *n, struct err *e)
{
    struct conn *c = store_read_take(s);
    enum status st = open_ids(c, a, ids, n, e);
    store_read_give(s, c);
    return st;
}

enum status store_study_cells(
    struct store *s, int64_t study, int state, int64_t limit, struct arena *a,
    struct store_cell **out, size_t *n, struct err *e)
{
    struct conn *c = store_read_take(s);
    enum status st = state < 0
                         ? cells(c, SQL_STUDY_CELLS, SQL_ARGS(A_INT(study)), a, out, n, e)
                         : cells(
                               c, SQL_STUDY_CELLS_OF_STATE,
                               SQL_ARGS(A_INT(study), A_INT(state), A_INT(limit)), a, out, n, e);
    store_read_give(s, c);
    return st;
}

enum status store_study_events_read(
    struct store *s, int64_t study, int64_t cursor, int64_t limit, struct arena *a,
    struct store_event **out, size_t *n, struct err *e)
{
    struct conn *c = store_read_take(s);
    enum status st = store_event_rows(
        c, SQL_STUDY_EVENTS_READ, SQL_ARGS(A_INT(study), A_INT(cursor), A_INT(limit)), INT64_MAX, a,
        out, n, e);
    store_read_give(s, c);
    return st;
}
