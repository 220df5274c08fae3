/* store_workers.c - workers, the modes of their cards, credentials, refused agents, settings. */
#include "server/store_int.h"

#include <string.h>

/* ---- workers ----------------------------------------------------------------------------------
 */

enum status
store_worker_put(struct store *s, const struct store_worker *w, int64_t *id, struct err *e)
{
    struct conn *c = store_writing(s);
    const struct sql_arg args[] = {A_TEXT(w->worker_id),    A_TEXT(w->name),     A_TEXT(w->kind),
                                   A_TEXT(w->pool),         A_TEXT(w->ssh_host), A_TEXT(w->hello),
                                   A_TEXT(w->last_refusal), A_INT(w->draining),  A_INT(w->disabled),
                                   A_INT(w->created_us),    A_INT(w->seen_us),   A_INT(w->id)};
    bool is_new = w->id == 0;
    enum status st =
        sql_do(c, is_new ? SQL_WORKER_ADD : SQL_WORKER_UPDATE, args, is_new ? 11 : 12, e);
    if (st == ST_CONFLICT)
        return err_set(e, ST_CONFLICT, "there is a worker \"%.64s\" already", w->name);
    TRY(st);
    if (!is_new && sql_changes(c) != 1)
        return err_set(e, ST_NOT_FOUND, "worker \"%.64s\" is not there", w->name);
    *id = is_new ? sqlite3_last_insert_rowid(c->db) : w->id;
    return ST_OK;
}

enum status store_worker_delete(struct store *s, int64_t id, struct err *e)
{
    struct conn *c = store_writing(s);
    TRY(sql_do(c, SQL_WORKER_DELETE, SQL_ARGS(A_INT(id)), e));
    if (sql_changes(c) != 1)
        return err_set(e, ST_NOT_FOUND, "worker %lld is not there", (long long)id);
    return ST_OK;
}

static enum status
workers_read(struct conn *c, struct arena *a, struct store_worker **out, size_t *n, struct err *e)
{
    VEC(struct store_worker) rows = {0};
    sqlite3_stmt *stmt;
    bool more = true;
    enum status st = sql_bind(c, SQL_WORKERS_READ, SQL_NONE, &stmt, e);
    while (st == ST_OK && (st = sql_row(c, stmt, &more, e)) == ST_OK && more) {
        struct store_worker w = {
            .id = col_int(stmt, 0),
            .name = col_text(stmt, 2, a),
            .kind = col_text(stmt, 3, a),
            .pool = col_text(stmt, 4, a),
            .ssh_host = col_text(stmt, 5, a),
            .hello = col_text(stmt, 6, a),
            .last_refusal = col_text(stmt, 7, a),
            .draining = col_int(stmt, 8) != 0,
            .disabled = col_int(stmt, 9) != 0,
            .created_us = col_int(stmt, 10),
            .seen_us = col_int(stmt, 11)};
        col_id(stmt, 1, w.worker_id);
        vec_push(&rows, w);
    }
    *n = rows.n;
    *out = arena_keep(a, rows.data, rows.n * sizeof *rows.data);
    return st;
}

enum status store_workers_read(
    struct store *s, struct arena *a, struct store_worker **out, size_t *n, struct err *e)
{
    struct conn *c = store_read_take(s);
    enum status st = workers_read(c, a, out, n, e);
    store_read_give(s, c);
    return st;
}

/* ---- cards ------------------------------------------------------------------------------------
 */

enum status store_card_put(struct store *s, const struct store_card *x, struct err *e)
{
    return sql_do(
        store_writing(s), SQL_CARD_PUT,
        SQL_ARGS(A_INT(x->worker), A_TEXT(x->card), A_INT((int64_t)x->mode)), e);
}

static enum status
cards_read(struct conn *c, struct arena *a, struct store_card **out, size_t *n, struct err *e)
{
    VEC(struct store_card) rows = {0};
    sqlite3_stmt *stmt;
    bool more = true;
    enum status st = sql_bind(c, SQL_CARDS_READ, SQL_NONE, &stmt, e);
    while (st == ST_OK && (st = sql_row(c, stmt, &more, e)) == ST_OK && more) {
        struct store_card x = {
            .worker = col_int(stmt, 0),
            .card = col_text(stmt, 1, a),
            .mode = col_int(stmt, 2) == CARD_SHARED ? CARD_SHARED : CARD_EXCLUSIVE};
        vec_push(&rows, x);
    }
    *n = rows.n;
    *out = arena_keep(a, rows.data, rows.n * sizeof *rows.data);
    return st;
}

enum status store_cards_read(
    struct store *s, struct arena *a, struct store_card **out, size_t *n, struct err *e)
{
    struct conn *c = store_read_take(s);
    enum status st = cards_read(c, a, out, n, e);
    store_read_give(s, c);
    return st;
}

/* ---- credentials ------------------------------------------------------------------------------
 */

/* A credential without a worker has NULL there, as foreign keys ask for. */
static struct sql_arg worker_arg(int64_t worker)
{
    struct sql_arg arg = A_INT(worker);
    if (!worker)
        arg.kind = ARG_NULL;
    return arg;
}

enum status
store_credential_add(struct store *s, const struct store_credential *x, int64_t *id, struct err *e)
{
    struct conn *c = store_writing(s);
    const struct sql_arg args[] = {
        A_TEXT(x->credential_id), A_INT((int64_t)x->kind), A_TEXT(x->name),
        A_TEXT(x->prefix),        A_BLOB(x->hash, 32),     A_INT(x->exec),
        worker_arg(x->worker),    A_INT(x->created_us),    A_INT(x->used_us),
        A_INT(x->expires_us),     A_INT(x->revoked_us),    A_INT(x->uses_left)};
    TRY(sql_do(c, SQL_CREDENTIAL_ADD, args, sizeof args / sizeof *args, e));
    *id = sqlite3_last_insert_rowid(c->db);
    return ST_OK;
}

enum status
store_credential_update(struct store *s, const struct store_credential *x, struct err *e)
{
    struct conn *c = store_writing(s);
    const struct sql_arg args[] = {A_INT(x->id),       A_INT(x->exec),       worker_arg(x->worker),
                                   A_INT(x->used_us),  A_INT(x->expires_us), A_INT(x->revoked_us),
                                   A_INT(x->uses_left)};
    TRY(sql_do(c, SQL_CREDENTIAL_UPDATE, args, sizeof args / sizeof *args, e));
    if (sql_changes(c) != 1)
        return err_set(e, ST_NOT_FOUND, "credential \"%.64s\" is not there", x->credential_id);
    return ST_OK;
}

static void read_credential(sqlite3_stmt *st, struct arena *a, struct store_credential *x)
{
    *x = (struct store_credential){
        .id = col_int(st, 0),
        .kind = (int)col_int(st, 2),
        .name = col_text(st, 3, a),
        .prefix = col_text(st, 4, a),
        .exec = col_int(st, 6) != 0,
        .worker = col_int(st, 7),
        .created_us = col_int(st, 8),
        .used_us = col_int(st, 9),
        .expires_us = col_int(st, 10),
        .revoked_us = col_int(st, 11),
        .uses_left = col_int(st, 12)};
    col_id(st, 1, x->credential_id);
    const void *hash = sqlite3_column_blob(st, 5);
    if (hash && sqlite3_column_bytes(st, 5) == (int)sizeof x->hash)
        memcpy(x->hash, hash, sizeof x->hash);
    else
        x->revoked_us = 1; /* a row that nobody can prove to own */
}

static enum status credentials_read(
    struct conn *c, enum sql q, struct sql_arg key, struct arena *a, struct store_credential **out,
    size_t *n, struct err *e)
{
    VEC(struct store_credential) rows = {0};
    sqlite3_stmt *stmt;
    bool more = true;
    enum status st = sql_bind(c, q, &key, 1, &stmt, e);
    while (st == ST_OK && (st = sql_row(c, stmt, &more, e)) == ST_OK && more) {
        struct store_credential x;
        read_credential(stmt, a, &x);
        vec_push(&rows, x);
    }
    *n = rows.n;
    *out = arena_keep(a, rows.data, rows.n * sizeof *rows.data);
    return st;
}

enum status store_credentials_read(
    struct store *s, enum credential_kind kind, struct arena *a, struct store_credential **out,
    size_t *n, struct err *e)
{
    struct conn *c = store_read_take(s);
    struct sql_arg key = A_INT((int64_t)kind);
    enum status st = credentials_read(c, SQL_CREDENTIALS_READ, key, a, out, n, e);
    store_read_give(s, c);
    return st;
}

enum status store_credential_by_hash(
    struct store *s, const unsigned char hash[32], struct arena *a, struct store_credential *out,
    struct err *e)
{
    struct store_credential *found;
    size_t n;
    struct conn *c = store_read_take(s);
    struct sql_arg key = A_BLOB(hash, 32);
    enum status st = credentials_read(c, SQL_CREDENTIAL_BY_HASH, key, a, &found, &n, e);
    store_read_give(s, c);
    TRY(st);
    if (!n)
        return err_set(e, ST_NOT_FOUND, "there is no such credential");
    *out = found[0];
    return ST_OK;
}

/* ---- refused agents, settings -----------------------------------------------------------------
 */

enum status store_refusal_put(struct store *s, const struct store_refusal *r, struct err *e)
{
    struct conn *c = store_writing(s);
    TRY(sql_do(
        c, SQL_REFUSAL_PUT,
        SQL_ARGS(
            A_TEXT(r->name), A_TEXT(r->version), A_TEXT(r->hostname), A_TEXT(r->reason),
            A_INT(r->time_us)),
        e));
    return sql_do(c, SQL_REFUSAL_TRIM, SQL_NONE, e);
}

enum status store_refusal_clear(struct store *s, const char *name, struct err *e)
{
    return sql_do(store_writing(s), SQL_REFUSAL_CLEAR, SQL_ARGS(A_TEXT(name)), e);
}

static enum status
refusals_read(struct conn *c, struct arena *a, struct store_refusal **out, size_t *n, struct err *e)
{
    VEC(struct store_refusal) rows = {0};
    sqlite3_stmt *stmt;
    bool more = true;
    enum status st = sql_bind(c, SQL_REFUSALS_READ, SQL_NONE, &stmt, e);
    while (st == ST_OK && (st = sql_row(c, stmt, &more, e)) == ST_OK && more) {
        struct store_refusal r = {
            .name = col_text(stmt, 0, a),
            .version = col_text(stmt, 1, a),
            .hostname = col_text(stmt, 2, a),
            .reason = col_text(stmt, 3, a),
            .time_us = col_int(stmt, 4)};
        vec_push(&rows, r);
    }
    *n = rows.n;
    *out = arena_keep(a, rows.data, rows.n * sizeof *rows.data);
    return st;
}

enum status store_refusals_read(
    struct store *s, struct arena *a, struct store_refusal **out, size_t *n, struct err *e)
{
    struct conn *c = store_read_take(s);
    enum status st = refusals_read(c, a, out, n, e);
    store_read_give(s, c);
    return st;
}

enum status store_setting_put(struct store *s, const char *key, const char *value, struct err *e)
{
    return sql_do(store_writing(s), SQL_SETTING_PUT, SQL_ARGS(A_TEXT(key), A_TEXT(value)), e);
}

static enum status
setting_get(struct conn *c, const char *key, struct arena *a, const char **out, struct err *e)
{
    sqlite3_stmt *st;
    bool more;
    TRY(sql_bind(c, SQL_SETTING_GET, SQL_ARGS(A_TEXT(key)), &st, e));
    TRY(sql_row(c, st, &more, e));
    *out = more ? col_text(st, 0, a) : "";
    if (more)
        sql_done(st);
    return ST_OK;
}

enum status store_setting_get(
    struct store *s, const char *key, struct arena *a, const char **out, struct err *e)
{
    struct conn *c = store_read_take(s);
    enum status st = setting_get(c, key, a, out, e);
    store_read_give(s, c);
    return st;
}
