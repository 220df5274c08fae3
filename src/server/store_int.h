/* store_int.h - what the files of the store share: connections, statements, errors. */
#ifndef SERVER_STORE_INT_H
#define SERVER_STORE_INT_H

#include "server/store.h"

#include <pthread.h>
#include <sqlite3.h>

enum sql {
#define SQL(name, text) SQL_##name,
#include "server/store_sql.def"
#undef SQL
    SQL_COUNT
};

/* A connection: used by one thread at a time. Statements are prepared once. */
struct conn {
    sqlite3 *db;
    sqlite3_stmt *statements[SQL_COUNT];
    bool taken;
};

enum { STORE_READERS_MAX = 16 };
struct store {
    char path[1024];
    struct store_options options;
    bool alone; /* ":memory:": readers use the writer */

    pthread_mutex_t writing; /* held from store_begin to store_end */
    struct conn writer;
    int wal_pages;          /* after the last commit; set by the hook */
    bool checkpoint_failed; /* the last one; said once */
    bool purge_pending;     /* logs of deleted runs may still be there */

    pthread_mutex_t reading; /* guards the flags of the readers */
    pthread_cond_t reader_free;
    struct conn readers[STORE_READERS_MAX];
    int n_readers;

    pthread_mutex_t telling; /* guards health */
    struct store_health health;
};

/* Each a list of statements that ends with NULL. */
extern const char *const *const store_migrations[];
extern const int store_migration_count;

/* Values for the parameters of a statement: SQL_ARGS(A_INT(id), A_TEXT(name)). */
struct sql_arg {
    enum { ARG_INT, ARG_TEXT, ARG_BLOB, ARG_REAL, ARG_NULL } kind;
    int64_t i;
    double d;
    const void *p; /* texts and blobs must outlive the step */
    size_t n;
};
#define A_INT(x)                                                                                   \
    {                                                                                              \
        .kind = ARG_INT, .i = (x)                                                                  \
    }
#define A_TEXT(x)                                                                                  \
    {                                                                                              \
        .kind = ARG_TEXT, .p = (x)                                                                 \
    }
#define A_BLOB(x, size)                                                                            \
    {                                                                                              \
        .kind = ARG_BLOB, .p = (x), .n = (size)                                                    \
    }
#define A_REAL(x)                                                                                  \
    {                                                                                              \
        .kind = ARG_REAL, .d = (x)                                                                 \
    }
#define A_NULL                                                                                     \
    {                                                                                              \
        .kind = ARG_NULL                                                                           \
    }
#define SQL_ARGS(...)                                                                              \
    (const struct sql_arg[]){__VA_ARGS__},                                                         \
        sizeof((const struct sql_arg[]){__VA_ARGS__}) / sizeof(struct sql_arg)
#define SQL_NONE NULL, 0

/* The statement with its parameters bound; step it with sql_row until that says there is no more,
 * or sql_done. */
enum status sql_bind(
    struct conn *c, enum sql q, const struct sql_arg *args, size_t n, sqlite3_stmt **out,
    struct err *e) NODISCARD;
/* The next row; false: none, and the statement is reset. An error resets it too. */
enum status sql_row(struct conn *c, sqlite3_stmt *st, bool *more, struct err *e) NODISCARD;
void sql_done(sqlite3_stmt *st);
/* bind, step to the end. */
enum status
sql_do(struct conn *c, enum sql q, const struct sql_arg *args, size_t n, struct err *e) NODISCARD;
/* The first column of the first row as a number; `fallback` where there is no row. */
enum status sql_int(
    struct conn *c, enum sql q, const struct sql_arg *args, size_t n, int64_t fallback,
    int64_t *out, struct err *e) NODISCARD;
int64_t sql_changes(struct conn *c); /* rows changed by the last statement */

/* Columns of the row at hand; texts are copied into the arena (borrowed when it is NULL). */
const char *col_text(sqlite3_stmt *st, int i, struct arena *a);
int64_t col_int(sqlite3_stmt *st, int i);
void col_id(sqlite3_stmt *st, int i, char out[STORE_ID + 1]);
/* Moves what a growing array holds into the arena, and empties it. */
void *arena_keep(struct arena *a, void *data, size_t bytes);

/* What the result code of a failed call means; `what` is "write", "read", "open". */
enum status store_error(sqlite3 *db, int code, const char *what, struct err *e);

/* The connection for a function under "reading": the writer's within a transaction, else a free
 * reader, for which it may wait. */
struct conn *store_read_take(struct store *s);
void store_read_give(struct store *s, struct conn *c);
/* The writing connection; asserts that this thread is within a transaction. */
struct conn *store_writing(struct store *s);

/* Rows of (cursor, type, payload, time): events of a run or of a study, no more than max_bytes of
 * payload (always one). */
enum status store_event_rows(
    struct conn *c, enum sql q, const struct sql_arg *args, size_t n_args, int64_t max_bytes,
    struct arena *a, struct store_event **out, size_t *n, struct err *e) NODISCARD;
/* Brings the database to version `n` of the list; ST_UNSUPPORTED when it is beyond. */
enum status store_migrate(
    struct store *s, const char *const *const *migrations, int n, struct err *e) NODISCARD;
/* Removes the logs of a deleted run piece by piece; in a transaction. `more`: there is more. */
enum status store_run_purge(struct store *s, int64_t rows, bool *more, struct err *e) NODISCARD;

#endif
