/* store_logs.c - what runs leave behind: graph snapshots, events, metrics, artifacts, peaks. */
#include "server/store_int.h"

#include "base/json.h"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <math.h>
#include <string.h>
#include <zlib.h>

enum { GRAPH_BYTES_MAX = 1 << 30 }; /* what a row may claim to hold */

/* ---- graphs -----------------------------------------------------------------------------------
 */

enum status store_blob_pack(const char *text, size_t n, struct store_blob *out, struct err *e)
{
    *out = (struct store_blob){.text_bytes = n};
    if (n > GRAPH_BYTES_MAX)
        return err_set(e, ST_TOO_LARGE, "a graph of %zu bytes is too large to keep", n);
    if (gnutls_hash_fast(GNUTLS_DIG_SHA256, text, n, out->hash) < 0)
        return err_set(e, ST_INTERNAL, "could not hash a graph");
    uLongf packed = compressBound((uLong)n);
    out->packed = mem_try_alloc(packed);
    if (!out->packed)
        return err_set(e, ST_OOM, "no memory to keep a graph of %zu bytes", n);
    /* Speed: a submission waits for it, and graphs repeat themselves so much that more is lost. */
    int rc = compress2(out->packed, &packed, (const Bytef *)text, (uLong)n, Z_BEST_SPEED);
    ASSERT(rc == Z_OK);
    out->packed_bytes = packed;
    return ST_OK;
}

void store_blob_release(struct store_blob *b)
{
    mem_free(b->packed);
    *b = (struct store_blob){0};
}

enum status store_graph_put(struct store *s, const struct store_blob *b, int64_t *id, struct err *e)
{
    struct conn *c = store_writing(s);
    TRY(sql_int(c, SQL_GRAPH_FIND, SQL_ARGS(A_BLOB(b->hash, sizeof b->hash)), 0, id, e));
    if (*id)
        return ST_OK;
    TRY(sql_do(
        c, SQL_GRAPH_ADD,
        SQL_ARGS(
            A_BLOB(b->hash, sizeof b->hash), A_INT((int64_t)b->text_bytes),
            A_BLOB(b->packed, b->packed_bytes)),
        e));
    *id = sqlite3_last_insert_rowid(c->db);
    return ST_OK;
}

static enum status unpack(sqlite3_stmt *st, char **text, size_t *n, struct err *e)
{
    int64_t size = col_int(st, 0);
    const void *packed = sqlite3_column_blob(st, 1);
    uLong packed_bytes = (uLong)sqlite3_column_bytes(st, 1);
    if (size < 0 || size > GRAPH_BYTES_MAX)
        return err_set(e, ST_IO, "could not read the database: a graph's row is damaged");
    char *out = mem_try_alloc((size_t)size + 1);
    if (!out)
        return err_set(e, ST_OOM, "no memory for a graph of %lld bytes", (long long)size);
    uLongf got = (uLongf)size;
    if (uncompress((Bytef *)out, &got, packed, packed_bytes) != Z_OK || got != (uLongf)size) {
        mem_free(out);
        return err_set(e, ST_IO, "could not read the database: a graph's row is damaged");
    }
    out[size] = '\0';
    *text = out;
    *n = (size_t)size;
    return ST_OK;
}

static enum status graph_get(struct conn *c, int64_t id, char **text, size_t *n, struct err *e)
{
    sqlite3_stmt *stmt;
    bool more;
    TRY(sql_bind(c, SQL_GRAPH_GET, SQL_ARGS(A_INT(id)), &stmt, e));
    TRY(sql_row(c, stmt, &more, e));
    if (!more)
        return err_set(e, ST_NOT_FOUND, "graph %lld is not there", (long long)id);
    enum status st = unpack(stmt, text, n, e);
    sql_done(stmt);
    return st;
}

enum status store_graph_get(struct store *s, int64_t id, char **text, size_t *n, struct err *e)
{
    struct conn *c = store_read_take(s);
    enum status st = graph_get(c, id, text, n, e);
    store_read_give(s, c);
    return st;
}

/* ---- events -----------------------------------------------------------------------------------
 */

enum status
store_event_add(struct store *s, int64_t run, const struct store_event *ev, struct err *e)
{
    return sql_do(
        store_writing(s), SQL_EVENT_ADD,
        SQL_ARGS(
            A_INT(run), A_INT(ev->cursor), A_TEXT(ev->type), A_TEXT(ev->payload),
            A_INT(ev->time_us)),
        e);
}

enum status store_event_rows(
    struct conn *c, enum sql q, const struct sql_arg *args, size_t n_args, int64_t max_bytes,
    struct arena *a, struct store_event **out, size_t *n, struct err *e)
{
    VEC(struct store_event) rows = {0};
    sqlite3_stmt *stmt;
    bool more = true;
    int64_t bytes = 0;
    enum status st = sql_bind(c, q, args, n_args, &stmt, e);
    while (st == ST_OK && (st = sql_row(c, stmt, &more, e)) == ST_OK && more) {
        bytes += sqlite3_column_bytes(stmt, 2);
        if (rows.n && bytes > max_bytes) {
            sql_done(stmt);
            break;
        }
        struct store_event ev = {
            .cursor = col_int(stmt, 0),
            .type = col_text(stmt, 1, a),
            .payload = col_text(stmt, 2, a),
            .time_us = col_int(stmt, 3)};
        vec_push(&rows, ev);
    }
    *n = rows.n;
    *out = arena_keep(a, rows.data, rows.n * sizeof *rows.data);
    return st;
}

enum status store_events_read(
    struct store *s, int64_t run, int64_t cursor, int64_t limit, int64_t max_bytes, struct arena *a,
    struct store_event **out, size_t *n, struct err *e)
{
    struct conn *c = store_read_take(s);
    enum status st = store_event_rows(
        c, SQL_EVENTS_READ, SQL_ARGS(A_INT(run), A_INT(cursor), A_INT(limit)), max_bytes, a, out, n,
        e);
    store_read_give(s, c);
    return st;
}

/* ---- metrics ----------------------------------------------------------------------------------
 */

enum status store_metric_add(
    struct store *s, int64_t run, int64_t cursor, const struct store_metric *m, struct err *e)
{
    struct sql_arg args[] = {A_INT(run),     A_INT(cursor),    A_TEXT(m->name),  A_TEXT(m->node_id),
                             A_INT(m->step), A_REAL(m->value), A_INT(m->time_us)};
    if (!isfinite(m->value))
        args[5].kind = ARG_NULL;
    return sql_do(store_writing(s), SQL_METRIC_ADD, args, sizeof args / sizeof *args, e);
}

static double col_value(sqlite3_stmt *st, int i)
{
    return sqlite3_column_type(st, i) == SQLITE_NULL ? (double)NAN : sqlite3_column_double(st, i);
}

static enum status metrics_read(
    struct conn *c, int64_t run, const char *name, struct arena *a, struct store_metric **out,
    size_t *n, struct err *e)
{
    VEC(struct store_metric) rows = {0};
    sqlite3_stmt *stmt;
    bool more = true;
    const char *last_name = "", *last_node = "";
    const struct sql_arg args[] = {A_INT(run), A_TEXT(name)};
    enum status st =
        sql_bind(c, name ? SQL_METRICS_READ_NAME : SQL_METRICS_READ, args, name ? 2 : 1, &stmt, e);
    while (st == ST_OK && (st = sql_row(c, stmt, &more, e)) == ST_OK && more) {
        /* Series are long and their names few. */
        if (strcmp(last_name, col_text(stmt, 0, NULL)) != 0)
            last_name = col_text(stmt, 0, a);
        if (strcmp(last_node, col_text(stmt, 1, NULL)) != 0)
            last_node = col_text(stmt, 1, a);
        struct store_metric m = {
            .name = last_name,
            .node_id = last_node,
            .step = col_int(stmt, 2),
            .value = col_value(stmt, 3),
            .time_us = col_int(stmt, 4)};
        vec_push(&rows, m);
    }
    *n = rows.n;
    *out = arena_keep(a, rows.data, rows.n * sizeof *rows.data);
    return st;
}

enum status store_metrics_read(
    struct store *s, int64_t run, const char *name, struct arena *a, struct store_metric **out,
    size_t *n, struct err *e)
{
    struct conn *c = store_read_take(s);
    enum status st = metrics_read(c, run, name, a, out, n, e);
    store_read_give(s, c);
    return st;
}

/* One look into the index per name, however long the series are. */
static enum status final_metrics(struct conn *c, int64_t run, json_t *into, struct err *e)
{
    char name[256] = "";
    for (;;) {
        sqlite3_stmt *st;
        bool more;
        TRY(sql_bind(c, SQL_METRIC_NEXT_NAME, SQL_ARGS(A_INT(run), A_TEXT(name)), &st, e));
        TRY(sql_row(c, st, &more, e));
        if (!more)
            return ST_OK;
        const char *next = col_text(st, 0, NULL);
        size_t n = strlen(next);
        if (n >= sizeof name) { /* not one of ours: messages are shorter */
            sql_done(st);
            return ST_OK;
        }
        memcpy(name, next, n + 1);
        sql_done(st);
        TRY(sql_bind(c, SQL_METRIC_LAST, SQL_ARGS(A_INT(run), A_TEXT(name)), &st, e));
        TRY(sql_row(c, st, &more, e));
        double value = more ? col_value(st, 0) : (double)NAN;
        if (more)
            sql_done(st);
        json_put(into, name, isfinite(value) ? json_real(value) : json_null());
    }
}

enum status
store_metrics_final(struct store *s, int64_t run, struct arena *a, const char **out, struct err *e)
{
    json_t *values = json_object();
    struct conn *c = store_read_take(s);
    enum status st = final_metrics(c, run, values, e);
    store_read_give(s, c);
    if (st == ST_OK) {
        char *text = json_text(values, false);
        *out = arena_strdup(a, text);
        mem_free(text);
    }
    json_decref(values);
    return st;
}

/* ---- artifacts, peaks -------------------------------------------------------------------------
 */

enum status store_artifact_add(
    struct store *s, int64_t run, const struct store_artifact *x, int64_t *id, struct err *e)
{
    struct conn *c = store_writing(s);
    TRY(sql_do(
        c, SQL_ARTIFACT_ADD,
        SQL_ARGS(
            A_INT(run), A_TEXT(x->kind), A_TEXT(x->path), A_TEXT(x->meta), A_TEXT(x->node_id),
            A_INT(x->time_us)),
        e));
    *id = sqlite3_last_insert_rowid(c->db);
    return ST_OK;
}

static enum status artifacts_read(
    struct conn *c, int64_t run, const char *kind, struct arena *a, struct store_artifact **out,
    size_t *n, struct err *e)
{
    VEC(struct store_artifact) rows = {0};
    sqlite3_stmt *stmt;
    bool more = true;
    struct sql_arg args[] = {A_INT(run), A_TEXT(kind)};
    if (!kind)
        args[1].kind = ARG_NULL;
    enum status st = sql_bind(c, SQL_ARTIFACTS_READ, args, 2, &stmt, e);
    while (st == ST_OK && (st = sql_row(c, stmt, &more, e)) == ST_OK && more) {
        struct store_artifact x = {
            .id = col_int(stmt, 0),
            .kind = col_text(stmt, 1, a),
            .path = col_text(stmt, 2, a),
            .meta = col_text(stmt, 3, a),
            .node_id = col_text(stmt, 4, a),
            .time_us = col_int(stmt, 5)};
        vec_push(&rows, x);
    }
    *n = rows.n;
    *out = arena_keep(a, rows.data, rows.n * sizeof *rows.data);
    return st;
}

enum status store_artifacts_read(
    struct store *s, int64_t run, const char *kind, struct arena *a, struct store_artifact **out,
    size_t *n, struct err *e)
{
    struct conn *c = store_read_take(s);
    enum status st = artifacts_read(c, run, kind, a, out, n, e);
    store_read_give(s, c);
    return st;
}

enum status store_peak_put(
    struct store *s, const char *graph_key, int cards, const struct store_peak *p, struct err *e)
{
    return sql_do(
        store_writing(s), SQL_PEAK_PUT,
        SQL_ARGS(
            A_TEXT(graph_key), A_INT(cards), A_INT(p->bytes), A_TEXT(p->run_id), A_INT(p->time_us)),
        e);
}

static enum status
peak_get(struct conn *c, const char *graph_key, int cards, struct store_peak *out, struct err *e)
{
    sqlite3_stmt *st;
    bool more;
    TRY(sql_bind(c, SQL_PEAK_GET, SQL_ARGS(A_TEXT(graph_key), A_INT(cards)), &st, e));
    TRY(sql_row(c, st, &more, e));
    if (!more)
        return ST_OK;
    out->bytes = col_int(st, 0);
    col_id(st, 1, out->run_id);
    out->time_us = col_int(st, 2);
    sql_done(st);
    return ST_OK;
}

enum status store_peak_get(
    struct store *s, const char *graph_key, int cards, struct store_peak *out, struct err *e)
{
    *out = (struct store_peak){0};
    struct conn *c = store_read_take(s);
    enum status st = peak_get(c, graph_key, cards, out, e);
    store_read_give(s, c);
    return st;
}
