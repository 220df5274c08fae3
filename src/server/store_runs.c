/* store_runs.c - rows of runs: added whole, moved by compare-and-set, listed, forgotten. */
#include "server/store_int.h"

#include "base/str.h"

#include <string.h>

enum { ROWS_AT_ONCE = 2000 }; /* events of a run that is deleted in one go */

/* ---- states -----------------------------------------------------------------------------------
 */

static const struct {
    const char *name, *status;
    bool ended;
} states[RUN_STATE_COUNT] = {
#define RUN_STATE(name, text, status, ended, about) [RUN_##name] = {text, status, ended},
#include "server/states.def"
};

const char *run_state_name(enum run_state s)
{
    return states[s].name;
}

const char *run_state_status(enum run_state s)
{
    return states[s].status;
}

bool run_state_ended(enum run_state s)
{
    return states[s].ended;
}

bool run_state_may(enum run_state from, enum run_state to)
{
    static const struct {
        enum run_state from, to;
    } moves[] = {
#define RUN_MOVE(from, to) {RUN_##from, RUN_##to},
#include "server/states.def"
    };
    for (size_t i = 0; i < sizeof moves / sizeof *moves; i++)
        if (moves[i].from == from && moves[i].to == to)
            return true;
    return false;
}

bool run_state_find_ended(const char *status, enum run_state *out)
{
    for (int i = 0; i < RUN_STATE_COUNT; i++)
        if (states[i].ended && str_eq(states[i].status, status)) {
            *out = (enum run_state)i;
            return true;
        }
    return false;
}

/* Bits of the states from which a run may move to `to`. */
static int64_t from_states(enum run_state to)
{
    int64_t bits = 0;
    for (int i = 0; i < RUN_STATE_COUNT; i++)
        if (run_state_may((enum run_state)i, to))
            bits |= INT64_C(1) << i;
    return bits;
}

/* ---- rows -------------------------------------------------------------------------------------
 */

static void read_row(sqlite3_stmt *st, struct arena *a, struct store_run *r)
{
    int i = 0;
    *r = (struct store_run){.facts = "", .detail = "", .result = ""};
#define INT(field) r->field = col_int(st, i++);
#define HEX(field) col_id(st, i++, r->field);
#define TEXT(field) r->field = col_text(st, i++, a);
#define FLAG(field) r->field = col_int(st, i++) != 0;
#define REAL(field) r->field = sqlite3_column_double(st, i++);
#define INT32(field) r->field = (int32_t)col_int(st, i++);
#define KIND(field) r->field = (int)col_int(st, i++);
#include "server/store_run.def"
    /* A file that somebody changed: an unknown number would index tables. */
    if ((int)r->state < 0 || r->state >= RUN_STATE_COUNT)
        r->state = RUN_FAILED;
    if ((int)r->budget_source < 0 || r->budget_source > BUDGET_ESTIMATE)
        r->budget_source = BUDGET_GIVEN;
}

enum status store_run_add(struct store *s, const struct store_run *r, int64_t *id, struct err *e)
{
    struct conn *c = store_writing(s);
    ASSERT(r->state == RUN_WAITING || (r->state == RUN_ASSIGNED && r->epoch == 1));
    ASSERT(strlen(r->run_id) == STORE_ID);
    struct sql_arg args[] = {
#define INT(field) A_INT(r->field),
#define HEX(field) A_TEXT(r->field),
#define TEXT(field) A_TEXT(r->field),
#define FLAG(field) A_INT(r->field),
#define REAL(field) A_REAL(r->field),
#define INT32(field) A_INT(r->field),
#define KIND(field) A_INT((int64_t)r->field),
#include "server/store_run.def"
    };
    args[0].kind = ARG_NULL; /* the next id */
    enum status st = sql_do(c, SQL_RUN_ADD, args, sizeof args / sizeof *args, e);
    if (st == ST_CONFLICT)
        return err_set(
            e, ST_CONFLICT, "run \"%s\" is there already, or its idempotency key or variant is",
            r->run_id);
    TRY(st);
    *id = sqlite3_last_insert_rowid(c->db);
    return ST_OK;
}

/* After an update that had to change one row: what was in its way. */
static enum status changed_one(struct store *s, int64_t id, const char *to, struct err *e)
{
    struct conn *c = store_writing(s);
    if (sql_changes(c) == 1)
        return ST_OK;
    sqlite3_stmt *st;
    bool more;
    TRY(sql_bind(c, SQL_RUN_STATE_OF, SQL_ARGS(A_INT(id)), &st, e));
    TRY(sql_row(c, st, &more, e));
    if (!more)
        return err_set(e, ST_NOT_FOUND, "run %lld is not there", (long long)id);
    int64_t state = col_int(st, 0), epoch = col_int(st, 1);
    sql_done(st);
    return err_set(
        e, ST_CONFLICT, "run %lld is %s in attempt %lld: it cannot become %s", (long long)id,
        state >= 0 && state < RUN_STATE_COUNT ? states[state].name : "unknown", (long long)epoch,
        to);
}

enum status store_run_assign(
    struct store *s, int64_t id, int64_t new_epoch, const char *worker, const char *devices,
    const char *queue_key, struct err *e)
{
    TRY(sql_do(
        store_writing(s), SQL_RUN_ASSIGN,
        SQL_ARGS(A_INT(id), A_INT(new_epoch), A_TEXT(worker), A_TEXT(devices), A_TEXT(queue_key)),
        e));
    return changed_one(s, id, "assigned", e);
}

enum status store_run_unassign(struct store *s, int64_t id, int64_t epoch, struct err *e)
{
    TRY(sql_do(store_writing(s), SQL_RUN_UNASSIGN, SQL_ARGS(A_INT(id), A_INT(epoch)), e));
    return changed_one(s, id, "waiting", e);
}

enum status
store_run_start(struct store *s, int64_t id, int64_t epoch, int64_t time_us, struct err *e)
{
    TRY(sql_do(
        store_writing(s), SQL_RUN_START,
        SQL_ARGS(A_INT(id), A_INT(epoch), A_INT(time_us), A_INT(from_states(RUN_RUNNING))), e));
    return changed_one(s, id, "running", e);
}

enum status store_run_stopping(struct store *s, int64_t id, int64_t epoch, struct err *e)
{
    TRY(sql_do(
        store_writing(s), SQL_RUN_STOPPING,
        SQL_ARGS(A_INT(id), A_INT(epoch), A_INT(from_states(RUN_STOPPING))), e));
    return changed_one(s, id, "stopping", e);
}

static enum status
put_document(struct store *s, int64_t id, const char *kind, const char *text, struct err *e)
{
    if (!text || !*text)
        return ST_OK;
    return sql_do(
        store_writing(s), SQL_RUN_DOCUMENT_PUT, SQL_ARGS(A_INT(id), A_TEXT(kind), A_TEXT(text)), e);
}

enum status store_run_finish(
    struct store *s, int64_t id, int64_t epoch, const struct store_end *end, struct err *e)
{
    struct arena a;
    const char *metrics = "";
    ASSERT(run_state_ended(end->state));
    arena_init(&a);
    enum status st = store_metrics_final(s, id, &a, &metrics, e);
    if (st == ST_OK)
        st = sql_do(
            store_writing(s), SQL_RUN_FINISH,
            SQL_ARGS(
                A_INT(id), A_INT(epoch), A_INT((int64_t)end->state), A_TEXT(end->cause),
                A_TEXT(end->error), A_INT(end->exit_code), A_INT(end->signal_number),
                A_TEXT(end->peaks), A_TEXT(metrics), A_INT(end->time_us),
                A_INT(from_states(end->state))),
            e);
    arena_release(&a);
    TRY(st);
    TRY(changed_one(s, id, states[end->state].name, e));
    TRY(put_document(s, id, "facts", end->facts, e));
    TRY(put_document(s, id, "detail", end->detail, e));
    return put_document(s, id, "result", end->result, e);
}

/* ---- changes without a move -------------------------------------------------------------------
 */

enum status store_run_budget(
    struct store *s, int64_t id, int64_t bytes, enum budget_source source, const char *run_id,
    bool raised, struct err *e)
{
    TRY(sql_do(
        store_writing(s), SQL_RUN_BUDGET,
        SQL_ARGS(A_INT(id), A_INT(bytes), A_INT((int64_t)source), A_TEXT(run_id), A_INT(raised)),
        e));
    return changed_one(s, id, "of another budget", e);
}

enum status store_run_cancel_asked(struct store *s, int64_t id, struct err *e)
{
    TRY(sql_do(store_writing(s), SQL_RUN_CANCEL_ASKED, SQL_ARGS(A_INT(id)), e));
    return changed_one(s, id, "cancelled", e);
}

enum status store_run_facts(struct store *s, int64_t id, const char *facts, struct err *e)
{
    return put_document(s, id, "facts", facts, e);
}

enum status
store_run_seen(struct store *s, int64_t id, int64_t sequence, int64_t last_cursor, struct err *e)
{
    TRY(sql_do(
        store_writing(s), SQL_RUN_SEEN, SQL_ARGS(A_INT(id), A_INT(sequence), A_INT(last_cursor)),
        e));
    return changed_one(s, id, "further", e);
}

/* ---- forgetting -------------------------------------------------------------------------------
 */

/* Rows that go with a run go by foreign keys; a long log would take seconds, so such a run is
 * hidden at once and its log is removed in pieces. */
enum status store_run_delete(struct store *s, int64_t id, struct err *e)
{
    struct conn *c = store_writing(s);
    sqlite3_stmt *st;
    bool more;
    TRY(sql_bind(c, SQL_RUN_LOG_SIZE, SQL_ARGS(A_INT(id)), &st, e));
    TRY(sql_row(c, st, &more, e));
    if (!more) {
        int64_t state;
        TRY(sql_int(c, SQL_RUN_STATE_OF, SQL_ARGS(A_INT(id)), -1, &state, e));
        if (state < 0)
            return err_set(e, ST_NOT_FOUND, "run %lld is not there", (long long)id);
        return err_set(e, ST_CONFLICT, "run %lld has not ended", (long long)id);
    }
    int64_t log = col_int(st, 0), graph = col_int(st, 1);
    sql_done(st);
    bool hide = log > ROWS_AT_ONCE;
    TRY(sql_do(c, SQL_SWEEP_KEEP, SQL_ARGS(A_INT(id)), e));
    TRY(sql_do(c, SQL_STUDY_KEEP, SQL_ARGS(A_INT(id)), e));
    TRY(sql_do(c, hide ? SQL_RUN_HIDE : SQL_RUN_DROP, SQL_ARGS(A_INT(id)), e));
    if (hide)
        s->purge_pending = true;
    else if (graph)
        TRY(sql_do(c, SQL_GRAPH_DROP, SQL_ARGS(A_INT(graph)), e));
    return ST_OK;
}

enum status store_run_purge(struct store *s, int64_t rows, bool *more, struct err *e)
{
    struct conn *c = store_writing(s);
    int64_t id, graph;
    TRY(sql_int(c, SQL_PURGE_NEXT, SQL_NONE, 0, &id, e));
    *more = id != 0;
    if (!id)
        return ST_OK;
    TRY(sql_do(c, SQL_PURGE_EVENTS, SQL_ARGS(A_INT(id), A_INT(rows)), e));
    int64_t gone = sql_changes(c);
    if (gone < rows) {
        TRY(sql_do(c, SQL_PURGE_METRICS, SQL_ARGS(A_INT(id), A_INT(rows - gone)), e));
        gone += sql_changes(c);
    }
    if (gone == rows)
        return ST_OK;
    TRY(sql_int(c, SQL_RUN_GRAPH_OF, SQL_ARGS(A_INT(id)), 0, &graph, e));
    TRY(sql_do(c, SQL_PURGE_RUN, SQL_ARGS(A_INT(id)), e));
    return sql_do(c, SQL_GRAPH_DROP, SQL_ARGS(A_INT(graph)), e);
}

/* ---- reading ----------------------------------------------------------------------------------
 */

static enum status
read_documents(struct conn *c, struct arena *a, struct store_run *r, struct err *e)
{
    sqlite3_stmt *st;
    TRY(sql_bind(c, SQL_RUN_DOCUMENTS, SQL_ARGS(A_INT(r->id)), &st, e));
    for (bool more = true;;) {
        TRY(sql_row(c, st, &more, e));
        if (!more)
            return ST_OK;
        const char *kind = col_text(st, 0, NULL);
        const char **to = str_eq(kind, "facts")    ? &r->facts
                          : str_eq(kind, "detail") ? &r->detail
                                                   : &r->result;
        *to = col_text(st, 1, a);
    }
}

/* The run that a bound statement finds. */
static enum status read_one(
    struct conn *c, enum sql q, struct sql_arg key, struct arena *a, struct store_run *out,
    struct err *e)
{
    sqlite3_stmt *st;
    bool more;
    TRY(sql_bind(c, q, &key, 1, &st, e));
    TRY(sql_row(c, st, &more, e));
    if (!more) {
        if (key.kind == ARG_TEXT)
            return err_set(e, ST_NOT_FOUND, "run \"%.64s\" is not there", (const char *)key.p);
        return err_set(e, ST_NOT_FOUND, "run %lld is not there", (long long)key.i);
    }
    read_row(st, a, out);
    sql_done(st);
    return read_documents(c, a, out, e);
}

enum status store_run_get(
    struct store *s, const char *run_id, struct arena *a, struct store_run *out, struct err *e)
{
    struct conn *c = store_read_take(s);
    struct sql_arg key = A_TEXT(run_id);
    enum status st = read_one(c, SQL_RUN_GET, key, a, out, e);
    store_read_give(s, c);
    return st;
}

enum status
store_run_by_id(struct store *s, int64_t id, struct arena *a, struct store_run *out, struct err *e)
{
    struct conn *c = store_read_take(s);
    struct sql_arg key = A_INT(id);
    enum status st = read_one(c, SQL_RUN_BY_ID, key, a, out, e);
    store_read_give(s, c);
    return st;
}

enum status store_run_by_key(
    struct store *s, const char *owner, const char *idempotency_key, int64_t *id, struct err *e)
{
    struct conn *c = store_read_take(s);
    enum status st =
        sql_int(c, SQL_RUN_BY_KEY, SQL_ARGS(A_TEXT(owner), A_TEXT(idempotency_key)), 0, id, e);
    store_read_give(s, c);
    return st;
}

static enum status walk_active(
    struct conn *c, enum status (*each)(void *ctx, const struct store_run *r, struct err *e),
    void *ctx, struct err *e)
{
    sqlite3_stmt *st;
    TRY(sql_bind(c, SQL_RUNS_ACTIVE, SQL_NONE, &st, e));
    for (bool more = true;;) {
        struct store_run r;
        TRY(sql_row(c, st, &more, e));
        if (!more)
            return ST_OK;
        read_row(st, NULL, &r);
        enum status status = each(ctx, &r, e);
        if (status != ST_OK) {
            sql_done(st);
            return status;
        }
    }
}

enum status store_runs_active(
    struct store *s, enum status (*each)(void *ctx, const struct store_run *r, struct err *e),
    void *ctx, struct err *e)
{
    struct conn *c = store_read_take(s);
    enum status st = walk_active(c, each, ctx, e);
    store_read_give(s, c);
    return st;
}

static enum status count_states(struct conn *c, int64_t by_state[RUN_STATE_COUNT], struct err *e)
{
    sqlite3_stmt *st;
    memset(by_state, 0, sizeof(int64_t) * RUN_STATE_COUNT);
    TRY(sql_bind(c, SQL_RUNS_COUNT, SQL_NONE, &st, e));
    for (bool more = true;;) {
        TRY(sql_row(c, st, &more, e));
        if (!more)
            return ST_OK;
        if (col_int(st, 0) < RUN_STATE_COUNT)
            by_state[col_int(st, 0)] = col_int(st, 1);
    }
}

enum status store_runs_count(struct store *s, int64_t by_state[RUN_STATE_COUNT], struct err *e)
{
    struct conn *c = store_read_take(s);
    enum status st = count_states(c, by_state, e);
    store_read_give(s, c);
    return st;
}

static enum status collect(
    struct conn *c, enum sql q, const struct sql_arg *args, size_t n, struct arena *a,
    struct store_runs *out, struct err *e)
{
    VEC(struct store_run) rows = {0};
    sqlite3_stmt *stmt;
    bool more = true;
    enum status st = sql_bind(c, q, args, n, &stmt, e);
    while (st == ST_OK && (st = sql_row(c, stmt, &more, e)) == ST_OK && more) {
        struct store_run r;
        read_row(stmt, a, &r);
        vec_push(&rows, r);
    }
    out->n = rows.n;
    out->runs = arena_keep(a, rows.data, rows.n * sizeof *rows.data);
    return st;
}

/* Rows and their number are of the same moment. */
static enum status list_runs(
    struct conn *c, const struct store_run_filter *f, struct arena *a, struct store_runs *out,
    struct err *e)
{
    unsigned states_wanted = f->states ? f->states : (1U << RUN_STATE_COUNT) - 1;
    const char *owner = f->owner ? f->owner : "", *worker = f->worker ? f->worker : "";
    const struct sql_arg args[] = {A_INT(states_wanted), A_INT(f->limit), A_INT(f->offset),
                                   A_TEXT(owner),        A_TEXT(worker),  A_INT(f->sweep),
                                   A_INT(f->study)};
    if (*owner || *worker || f->sweep || f->study) {
        TRY(sql_int(c, SQL_RUNS_FILTER_COUNT, args, 7, 0, &out->total, e));
        return collect(c, SQL_RUNS_FILTER, args, 7, a, out, e);
    }
    int64_t by_state[RUN_STATE_COUNT];
    TRY(count_states(c, by_state, e));
    out->total = 0;
    for (int i = 0; i < RUN_STATE_COUNT; i++)
        out->total += states_wanted >> i & 1 ? by_state[i] : 0;
    return collect(c, SQL_RUNS_LIST, args, 3, a, out, e);
}

enum status store_runs_list(
    struct store *s, const struct store_run_filter *f, struct arena *a, struct store_runs *out,
    struct err *e)
{
    *out = (struct store_runs){0};
    ASSERT(f->limit >= 0 && f->offset >= 0);
    struct conn *c = store_read_take(s);
    bool whole = !store_inside(s);
    enum status st = whole ? sql_do(c, SQL_BEGIN_READ, SQL_NONE, e) : ST_OK;
    if (st == ST_OK)
        st = list_runs(c, f, a, out, e);
    if (whole && !sqlite3_get_autocommit(c->db)) {
        enum status ended = sql_do(c, SQL_ROLLBACK, SQL_NONE, NULL);
        st = st == ST_OK ? ended : st;
    }
    store_read_give(s, c);
    return st;
}

static enum status read_old(
    struct conn *c, int64_t keep, size_t max, struct arena *a, struct store_old_run **out,
    size_t *n, struct err *e)
{
    VEC(struct store_old_run) rows = {0};
    sqlite3_stmt *stmt;
    bool more = true;
    enum status st =
        sql_bind(c, SQL_RUNS_OLD, SQL_ARGS(A_INT((int64_t)max), A_INT(keep)), &stmt, e);
    while (st == ST_OK && (st = sql_row(c, stmt, &more, e)) == ST_OK && more) {
        struct store_old_run r = {.id = col_int(stmt, 0), .state = (int)col_int(stmt, 2)};
        col_id(stmt, 1, r.run_id);
        vec_push(&rows, r);
    }
    *n = rows.n;
    *out = arena_keep(a, rows.data, rows.n * sizeof *rows.data);
    return st;
}

enum status store_runs_old(
    struct store *s, int64_t keep, size_t max, struct arena *a, struct store_old_run **out,
    size_t *n, struct err *e)
{
    *out = NULL;
    *n = 0;
    if (keep < 0)
        return ST_OK;
    struct conn *c = store_read_take(s);
    enum status st = read_old(c, keep, max, a, out, n, e);
    store_read_give(s, c);
    return st;
}
