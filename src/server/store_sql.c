/* store_sql.c - statements of the store: prepared once, bound, stepped; what failures mean. */
#include "server/store_int.h"

#include "base/str.h"

#include <string.h>

static const char *const texts[SQL_COUNT] = {
#define SQL(name, text) [SQL_##name] = text,
#include "server/store_sql.def"
#undef SQL
};

/* ", id, run_id, …" and ", ?, ?, …". */
#define INT(field) ", " #field
#define HEX(field) ", " #field
#define KIND(field) ", " #field
#define TEXT(field) ", " #field
#define FLAG(field) ", " #field
#define REAL(field) ", " #field
#define INT32(field) ", " #field
static const char run_columns[] =
#include "server/store_run.def"
    ;
#define INT(field) ", ?"
#define HEX(field) ", ?"
#define KIND(field) ", ?"
#define TEXT(field) ", ?"
#define FLAG(field) ", ?"
#define REAL(field) ", ?"
#define INT32(field) ", ?"
static const char run_places[] =
#include "server/store_run.def"
    ;

/* The text of a statement with $COLUMNS and $PLACES filled in. */
static void statement_text(enum sql q, struct str *out)
{
    for (const char *p = texts[q]; *p;) {
        const char *dollar = strchr(p, '$');
        if (!dollar) {
            str_add(out, p);
            break;
        }
        str_add_n(out, p, (size_t)(dollar - p));
        bool columns = str_starts(dollar, "$COLUMNS");
        ASSERT(columns || str_starts(dollar, "$PLACES"));
        str_add(out, (columns ? run_columns : run_places) + 2);
        p = dollar + strlen(columns ? "$COLUMNS" : "$PLACES");
    }
}

static enum status prepare(struct conn *c, enum sql q, struct err *e)
{
    struct str text;
    str_init(&text);
    statement_text(q, &text);
    int rc = sqlite3_prepare_v3(
        c->db, text.data, (int)text.n, SQLITE_PREPARE_PERSISTENT, &c->statements[q], NULL);
    str_release(&text);
    return rc == SQLITE_OK ? ST_OK : store_error(c->db, rc, "read", e);
}

static int bind_one(sqlite3_stmt *st, int place, const struct sql_arg *a)
{
    switch (a->kind) {
    case ARG_INT:
        return sqlite3_bind_int64(st, place, a->i);
    case ARG_TEXT:
        return sqlite3_bind_text(st, place, a->p ? a->p : "", -1, SQLITE_STATIC);
    case ARG_BLOB:
        return sqlite3_bind_blob64(st, place, a->p, a->n, SQLITE_STATIC);
    case ARG_REAL:
        return sqlite3_bind_double(st, place, a->d);
    case ARG_NULL:
        break;
    }
    return sqlite3_bind_null(st, place);
}

enum status sql_bind(
    struct conn *c, enum sql q, const struct sql_arg *args, size_t n, sqlite3_stmt **out,
    struct err *e)
{
    if (!c->statements[q])
        TRY(prepare(c, q, e));
    sqlite3_stmt *st = c->statements[q];
    ASSERT(sqlite3_bind_parameter_count(st) == (int)n && !sqlite3_stmt_busy(st));
    for (size_t i = 0; i < n; i++) {
        int rc = bind_one(st, (int)i + 1, &args[i]);
        if (rc != SQLITE_OK)
            return store_error(c->db, rc, "write", e);
    }
    *out = st;
    return ST_OK;
}

void sql_done(sqlite3_stmt *st)
{
    (void)sqlite3_reset(st); /* repeats the code of the last step, which has been looked at */
}

enum status sql_row(struct conn *c, sqlite3_stmt *st, bool *more, struct err *e)
{
    int rc = sqlite3_step(st);
    *more = rc == SQLITE_ROW;
    if (rc == SQLITE_ROW)
        return ST_OK;
    enum status status = ST_OK;
    if (rc != SQLITE_DONE)
        status = store_error(c->db, rc, sqlite3_column_count(st) ? "read" : "write", e);
    sql_done(st);
    return status;
}

enum status sql_do(struct conn *c, enum sql q, const struct sql_arg *args, size_t n, struct err *e)
{
    int64_t ignored;
    return sql_int(c, q, args, n, 0, &ignored, e);
}

enum status sql_int(
    struct conn *c, enum sql q, const struct sql_arg *args, size_t n, int64_t fallback,
    int64_t *out, struct err *e)
{
    sqlite3_stmt *st;
    bool more;
    TRY(sql_bind(c, q, args, n, &st, e));
    TRY(sql_row(c, st, &more, e));
    *out = more ? sqlite3_column_int64(st, 0) : fallback;
    if (more)
        sql_done(st);
    return ST_OK;
}

int64_t sql_changes(struct conn *c)
{
    return sqlite3_changes64(c->db);
}

const char *col_text(sqlite3_stmt *st, int i, struct arena *a)
{
    const char *text = (const char *)sqlite3_column_text(st, i);
    if (!text)
        return "";
    return a ? arena_strdup(a, text) : text;
}

int64_t col_int(sqlite3_stmt *st, int i)
{
    return sqlite3_column_int64(st, i);
}

void col_id(sqlite3_stmt *st, int i, char out[STORE_ID + 1])
{
    const char *text = col_text(st, i, NULL);
    size_t n = strlen(text);
    n = n > STORE_ID ? STORE_ID : n; /* a file that somebody else wrote */
    memcpy(out, text, n);
    out[n] = '\0';
}

void *arena_keep(struct arena *a, void *data, size_t bytes)
{
    void *kept = NULL;
    if (bytes) {
        kept = arena_alloc(a, bytes);
        memcpy(kept, data, bytes);
    }
    mem_free(data);
    return kept;
}

/* What people can do about it. */
static void hint(struct err *e, int primary)
{
    if (primary == SQLITE_FULL)
        err_hint(e, "Free some space on the disk; what was refused can be sent again.");
    else if (primary == SQLITE_READONLY || primary == SQLITE_CANTOPEN)
        err_hint(e, "Check that the folder and the file may be written by this user.");
    else if (primary == SQLITE_CORRUPT || primary == SQLITE_NOTADB)
        err_hint(e, "Stop the server, move the file away or put a copy of it in its place.");
    else if (primary == SQLITE_BUSY || primary == SQLITE_LOCKED)
        err_hint(e, "Another program holds the database; close it.");
}

enum status store_error(sqlite3 *db, int code, const char *what, struct err *e)
{
    int extended = db ? sqlite3_extended_errcode(db) : code;
    int primary = code & 0xff;
    enum status st = ST_INTERNAL;
    const char *why = db ? sqlite3_errmsg(db) : sqlite3_errstr(code);
    switch (primary) {
    case SQLITE_FULL:
        st = ST_IO;
        why = "the disk is full";
        break;
    case SQLITE_READONLY:
        st = ST_IO;
        why = "it is read-only";
        break;
    case SQLITE_IOERR:
        st = ST_IO;
        why = "input/output error";
        break;
    case SQLITE_CANTOPEN:
        st = ST_IO;
        why = "the file cannot be opened";
        break;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        st = ST_IO;
        why = primary == SQLITE_CORRUPT ? "the file is damaged" : "it is not a database";
        break;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        st = ST_BUSY;
        why = "another program has it locked";
        break;
    case SQLITE_NOMEM:
        st = ST_OOM;
        break;
    case SQLITE_TOOBIG:
        st = ST_TOO_LARGE;
        break;
    case SQLITE_CONSTRAINT:
        if (extended == SQLITE_CONSTRAINT_UNIQUE || extended == SQLITE_CONSTRAINT_PRIMARYKEY)
            st = ST_CONFLICT;
        break;
    default:
        break;
    }
    (void)err_set(e, st, "could not %s the database: %s", what, why);
    if (e && st == ST_IO)
        err_detail(e, "SQLite: %s (%d)", sqlite3_errstr(extended), extended);
    if (e)
        hint(e, primary);
    return st;
}
