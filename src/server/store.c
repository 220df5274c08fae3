/* store.c - the database as a whole: opening, versions, transactions, checkpoints, health.
 *
 * INVARIANTS
 * 1. One connection writes and checkpoints (SQLite below 3.51.3 can corrupt a WAL that two
 *    connections reset); whoever writes holds `writing` from store_begin to store_end.
 * 2. Readers are read-only, never checkpoint, and hold no snapshot between two calls.
 * 3. After store_end no transaction is open, whatever failed.
 * 4. A commit returned ST_OK only after the WAL was synced (synchronous FULL).
 */
#include "server/store_int.h"

#include "base/env.h"
#include "base/log.h"
#include "base/shared.h"
#include "base/str.h"

#include <stdio.h>
#include <string.h>

enum {
    APPLICATION_ID = 0x534e5547, /* "SNUG" */
    BUSY_MS = 30000,
    WAL_PAGES_CHECKPOINT = 2000, /* 8 MiB: small steps, so that no commit waits long */
    WAL_PAGES_ALARM = 64000,     /* 250 MiB: some reader keeps the WAL from starting over */
    PURGE_ROWS = 5000            /* in one go, while nothing else happens */
};

/* The store whose transaction this thread is within. A thread writes to one store at a time. */
static _Thread_local const struct store *inside;

/* ---- connections ------------------------------------------------------------------------------
 */

static enum status run_script(struct conn *c, const char *sql, struct err *e)
{
    int rc = sqlite3_exec(c->db, sql, NULL, NULL, NULL);
    return rc == SQLITE_OK ? ST_OK : store_error(c->db, rc, "open", e);
}

static int keep_wal_size(void *ctx, sqlite3 *db, const char *name, int pages)
{
    (void)db;
    (void)name;
    ((struct store *)ctx)->wal_pages = pages;
    return SQLITE_OK;
}

static enum status connect(struct store *s, struct conn *c, int flags, struct err *e)
{
    int rc = sqlite3_open_v2(
        s->path, &c->db, flags | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE, s->options.vfs);
    if (rc != SQLITE_OK)
        return store_error(c->db, rc, "open", e);
    (void)sqlite3_busy_timeout(c->db, BUSY_MS);
    (void)sqlite3_db_config(c->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    return run_script(
        c,
        "PRAGMA mmap_size = 0; PRAGMA trusted_schema = OFF; PRAGMA temp_store = MEMORY;"
        "PRAGMA cell_size_check = ON; PRAGMA wal_autocheckpoint = 0;",
        e);
}

static void disconnect(struct conn *c)
{
    for (int i = 0; i < SQL_COUNT; i++)
        (void)sqlite3_finalize(c->statements[i]);
    (void)sqlite3_close(c->db);
    *c = (struct conn){0};
}

/* One text of a pragma's answer. */
static enum status ask(struct conn *c, const char *sql, char *out, size_t cap, struct err *e)
{
    sqlite3_stmt *st;
    int rc = sqlite3_prepare_v2(c->db, sql, -1, &st, NULL);
    if (rc != SQLITE_OK)
        return store_error(c->db, rc, "open", e);
    rc = sqlite3_step(st);
    (void)snprintf(out, cap, "%s", rc == SQLITE_ROW ? col_text(st, 0, NULL) : "");
    if (rc == SQLITE_ROW)
        rc = sqlite3_step(st); /* a pragma that writes is done with its last step */
    enum status status =
        rc == SQLITE_ROW || rc == SQLITE_DONE ? ST_OK : store_error(c->db, rc, "open", e);
    (void)sqlite3_finalize(st);
    return status;
}

static enum status ask_int(struct conn *c, const char *sql, int64_t *out, struct err *e)
{
    char text[32];
    TRY(ask(c, sql, text, sizeof text, e));
    if (!str_to_i64(text, out))
        return err_set(e, ST_CORRUPT, "the database answers \"%s\" to %s", text, sql);
    return ST_OK;
}

/* ---- versions ---------------------------------------------------------------------------------
 */

static enum status refuse_foreign(struct store *s, int64_t version, struct err *e)
{
    int64_t application, tables;
    TRY(ask_int(&s->writer, "PRAGMA application_id", &application, e));
    TRY(ask_int(&s->writer, "SELECT count(*) FROM sqlite_schema", &tables, e));
    if (application == APPLICATION_ID || (application == 0 && tables == 0 && version == 0))
        return ST_OK;
    (void)err_set(e, ST_CORRUPT, "\"%s\" is a database of another program", s->path);
    err_hint(e, "Move it away, or choose another folder with SNUG_HOME.");
    return ST_CORRUPT;
}

static enum status keep_copy(struct store *s, int64_t version, struct err *e)
{
    char path[1100];
    (void)snprintf(path, sizeof path, "%s.v%lld", s->path, (long long)version);
    return store_backup(s, path, e);
}

enum status
store_migrate(struct store *s, const char *const *const *migrations, int n, struct err *e)
{
    int64_t version;
    TRY(ask_int(&s->writer, "PRAGMA user_version", &version, e));
    TRY(refuse_foreign(s, version, e));
    if (version > n || version < 0) {
        (void)err_set(
            e, ST_UNSUPPORTED,
            "\"%s\" was written by a newer program: its version is %lld, this one knows %d",
            s->path, (long long)version, n);
        err_hint(
            e, "Start the newer program, or put the copy \"%s.v%d\" in its place.", s->path, n);
        return ST_UNSUPPORTED;
    }
    if (version > 0 && version < n && !s->alone)
        TRY(keep_copy(s, version, e));
    for (; version < n; version++) {
        char mark[96];
        (void)snprintf(
            mark, sizeof mark, "PRAGMA application_id = %d; PRAGMA user_version = %lld;",
            APPLICATION_ID, (long long)version + 1);
        TRY(store_begin(s, e));
        enum status st = ST_OK;
        for (const char *const *sql = migrations[version]; *sql && st == ST_OK; sql++)
            st = run_script(&s->writer, *sql, e);
        if (st == ST_OK)
            st = run_script(&s->writer, mark, e);
        TRY(store_end(s, st, e));
    }
    return ST_OK;
}

/* ---- opening ----------------------------------------------------------------------------------
 */

/* A WAL that is still there means that the last program did not close the database. */
static bool was_left_open(const struct store *s)
{
    char wal[1100];
    int there = 0;
    sqlite3_vfs *vfs = sqlite3_vfs_find(s->options.vfs);
    (void)snprintf(wal, sizeof wal, "%s-wal", s->path);
    return vfs && !s->alone && vfs->xAccess(vfs, wal, SQLITE_ACCESS_EXISTS, &there) == SQLITE_OK &&
           there;
}

static enum status check_whole(struct store *s, struct err *e)
{
    char found[512];
    TRY(ask(&s->writer, "PRAGMA integrity_check(1)", found, sizeof found, e));
    s->health.checked = true;
    if (str_eq(found, "ok"))
        return ST_OK;
    (void)err_set(e, ST_CORRUPT, "the database is damaged: %s", found);
    err_hint(e, "Move it away, or put a copy of it in its place; graphs and runs are files.");
    return ST_CORRUPT;
}

/* Whether the last close moves the WAL into the file. Not before the file is known to be sound: the
 * WAL that stays is what makes the next start check again. */
static void close_in_order(struct store *s, bool on)
{
    (void)sqlite3_db_config(s->writer.db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, !on, NULL);
}

static enum status connect_writer(struct store *s, struct err *e)
{
    char mode[32];
    TRY(connect(s, &s->writer, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, e));
    close_in_order(s, false);
    (void)sqlite3_wal_hook(s->writer.db, keep_wal_size, s);
    /* EXTRA until the WAL is there: the rollback journal of the first page must not come back from
     * a folder that was not synced when power fails later. */
    TRY(run_script(&s->writer, "PRAGMA synchronous = EXTRA; PRAGMA auto_vacuum = INCREMENTAL;", e));
    TRY(ask(&s->writer, "PRAGMA journal_mode = WAL", mode, sizeof mode, e));
    if (!str_eq(mode, s->alone ? "memory" : "wal"))
        return err_set(
            e, ST_IO, "could not open the database \"%s\": journal mode is \"%s\"", s->path, mode);
    return run_script(
        &s->writer,
        s->options.fast ? "PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON;"
                        : "PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;"
                          "PRAGMA journal_size_limit = 67108864; PRAGMA cache_size = -65536;",
        e);
}

static bool damaged(const struct store *s)
{
    int code = s->writer.db ? sqlite3_errcode(s->writer.db) & 0xff : SQLITE_OK;
    return code == SQLITE_CORRUPT || code == SQLITE_NOTADB;
}

/* No half-open connection stays behind: the next transaction tries again. */
static enum status set_up_writer(struct store *s, struct err *e)
{
    enum status st = connect_writer(s, e);
    if (st != ST_OK) {
        if (e && damaged(s))
            st = e->status = ST_CORRUPT;
        disconnect(&s->writer);
    }
    return st;
}

/* After a rollback that failed: the file itself is as it was. */
static enum status reopen_writer(struct store *s, struct err *e)
{
    TRY(set_up_writer(s, e));
    close_in_order(s, true);
    return ST_OK;
}

static enum status open_all(struct store *s, struct err *e)
{
    bool left_open = was_left_open(s);
    TRY(set_up_writer(s, e));
    if (left_open)
        TRY(check_whole(s, e));
    TRY(store_migrate(s, store_migrations, store_migration_count, e));
    for (int i = 0; i < s->n_readers; i++) {
        TRY(connect(s, &s->readers[i], SQLITE_OPEN_READONLY, e));
        (void)sqlite3_db_config(s->readers[i].db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
        TRY(run_script(&s->readers[i], "PRAGMA query_only = ON; PRAGMA cache_size = -8192;", e));
    }
    close_in_order(s, true);
    return ST_OK;
}

/* The file is ours alone from its first byte on, and never on a network file system, where neither
 * locks nor shared memory can be trusted. */
static enum status prepare_file(const char *path, struct err *e)
{
    struct shared file;
    if (disk_is_network(path)) {
        (void)err_set(e, ST_UNSUPPORTED, "\"%s\" is on a network file system", path);
        err_hint(e, "Set SNUG_HOME to a folder on a local disk.");
        return ST_UNSUPPORTED;
    }
    TRY(shared_open(&file, path, true, e));
    shared_close(&file);
    return ST_OK;
}

enum status
store_open(const char *path, const struct store_options *o, struct store **out, struct err *e)
{
    bool alone = str_eq(path, ":memory:");
    if (strlen(path) >= sizeof((struct store *)0)->path)
        return err_set(e, ST_INVALID, "path \"%.60s...\" is too long", path);
    if (!alone && !(o && o->vfs))
        TRY(prepare_file(path, e));
    struct store *s = mem_alloc(sizeof *s);
    (void)snprintf(s->path, sizeof s->path, "%s", path);
    s->options = o ? *o : (struct store_options){0};
    s->alone = alone;
    s->n_readers = alone ? 0 : s->options.readers ? s->options.readers : 4;
    ASSERT(s->n_readers <= STORE_READERS_MAX);
    s->purge_pending = true;
    s->health.sqlite_version = sqlite3_libversion();
    s->health.wal_reset_bug = sqlite3_libversion_number() < 3051003;
    ASSERT(
        pthread_mutex_init(&s->writing, NULL) == 0 && pthread_mutex_init(&s->reading, NULL) == 0 &&
        pthread_mutex_init(&s->telling, NULL) == 0 &&
        pthread_cond_init(&s->reader_free, NULL) == 0);
    enum status st = open_all(s, e);
    if (st != ST_OK) {
        if (e && damaged(s))
            st = e->status = ST_CORRUPT;
        err_prefix(e, "\"%s\"", path);
        store_close(s);
        return st;
    }
    *out = s;
    return ST_OK;
}

void store_close(struct store *s)
{
    if (!s)
        return;
    ASSERT(inside != s);
    for (int i = 0; i < s->n_readers; i++)
        disconnect(&s->readers[i]);
    disconnect(&s->writer); /* the last one: SQLite checkpoints and removes the WAL */
    (void)pthread_mutex_destroy(&s->writing);
    (void)pthread_mutex_destroy(&s->reading);
    (void)pthread_mutex_destroy(&s->telling);
    (void)pthread_cond_destroy(&s->reader_free);
    mem_free(s);
}

/* ---- transactions -----------------------------------------------------------------------------
 */

bool store_inside(const struct store *s)
{
    return inside == s;
}

struct conn *store_writing(struct store *s)
{
    ASSERT(inside == s);
    return &s->writer;
}

static void note_result(struct store *s, enum status st, const struct err *e)
{
    (void)pthread_mutex_lock(&s->telling);
    bool disk = st == ST_IO || st == ST_BUSY;
    if (disk) {
        if (!s->health.failing)
            log_warn("store: %s; said once until it works again", e ? e->text : "failed");
        s->health.failures++;
        (void)snprintf(
            s->health.last_error, sizeof s->health.last_error, "%.250s", e ? e->text : "");
    }
    if (disk || st == ST_OK)
        s->health.failing = disk;
    (void)pthread_mutex_unlock(&s->telling);
}

enum status store_begin(struct store *s, struct err *e)
{
    ASSERT(!inside);
    struct err own;
    e = e ? e : &own;
    (void)pthread_mutex_lock(&s->writing);
    enum status st = s->writer.db ? ST_OK : reopen_writer(s, e);
    if (st == ST_OK)
        st = sql_do(&s->writer, SQL_BEGIN, SQL_NONE, e);
    if (st != ST_OK) {
        note_result(s, st, e);
        (void)pthread_mutex_unlock(&s->writing);
        return st;
    }
    inside = s;
    return ST_OK;
}

static void roll_back(struct store *s)
{
    /* SQLite has rolled back by itself after some errors. A failed rollback leaves the pages in
     * memory in doubt, so that connection goes. */
    if (sqlite3_get_autocommit(s->writer.db) ||
        sql_do(&s->writer, SQL_ROLLBACK, SQL_NONE, NULL) == ST_OK)
        return;
    disconnect(&s->writer);
    struct err e;
    if (reopen_writer(s, &e) != ST_OK)
        log_warn("store: cannot open the database again: %s", e.text);
}

/* Moves pages of the WAL into the file. Nobody is waited for: what a reader still needs stays. */
static void checkpoint(struct store *s, int mode)
{
    int pages = 0, moved = 0;
    (void)sqlite3_busy_timeout(s->writer.db, 0);
    int rc = sqlite3_wal_checkpoint_v2(s->writer.db, NULL, mode, &pages, &moved);
    (void)sqlite3_busy_timeout(s->writer.db, BUSY_MS);
    if (rc == SQLITE_OK && pages == moved)
        s->wal_pages = 0;
    bool failed = rc != SQLITE_OK && (rc & 0xff) != SQLITE_BUSY;
    if (failed && !s->checkpoint_failed)
        log_warn("store: checkpoint: %s", sqlite3_errmsg(s->writer.db));
    s->checkpoint_failed = failed;
}

enum status store_end(struct store *s, enum status st, struct err *e)
{
    ASSERT(inside == s);
    struct err own;
    e = e ? e : &own;
    if (st == ST_OK)
        st = sql_do(&s->writer, SQL_COMMIT, SQL_NONE, e);
    if (st != ST_OK)
        roll_back(s);
    else if (s->wal_pages >= WAL_PAGES_CHECKPOINT)
        checkpoint(s, SQLITE_CHECKPOINT_PASSIVE);
    note_result(s, st, e);
    inside = NULL;
    (void)pthread_mutex_unlock(&s->writing);
    return st;
}

/* ---- readers ----------------------------------------------------------------------------------
 */

struct conn *store_read_take(struct store *s)
{
    if (inside == s)
        return &s->writer;
    if (s->alone) {
        (void)pthread_mutex_lock(&s->writing);
        return &s->writer;
    }
    struct conn *c = NULL;
    (void)pthread_mutex_lock(&s->reading);
    while (!c) {
        for (int i = 0; i < s->n_readers && !c; i++)
            if (!s->readers[i].taken)
                c = &s->readers[i];
        if (!c)
            (void)pthread_cond_wait(&s->reader_free, &s->reading);
    }
    c->taken = true;
    (void)pthread_mutex_unlock(&s->reading);
    return c;
}

void store_read_give(struct store *s, struct conn *c)
{
    if (inside == s)
        return;
    if (s->alone) {
        (void)pthread_mutex_unlock(&s->writing);
        return;
    }
    (void)pthread_mutex_lock(&s->reading);
    c->taken = false;
    (void)pthread_cond_signal(&s->reader_free);
    (void)pthread_mutex_unlock(&s->reading);
}

/* ---- looking after it -------------------------------------------------------------------------
 */

static void purge_some(struct store *s)
{
    struct err e;
    bool more = true;
    if (sql_do(&s->writer, SQL_BEGIN, SQL_NONE, &e) != ST_OK)
        return;
    inside = s;
    enum status st = store_run_purge(s, PURGE_ROWS, &more, &e);
    if (st == ST_OK)
        st = sql_do(&s->writer, SQL_COMMIT, SQL_NONE, &e);
    if (st != ST_OK)
        roll_back(s);
    inside = NULL;
    s->purge_pending = st != ST_OK || more;
}

void store_idle(struct store *s)
{
    ASSERT(!inside);
    if (pthread_mutex_trylock(&s->writing) != 0)
        return;
    if (!s->writer.db) {
        (void)pthread_mutex_unlock(&s->writing);
        return; /* a failed disk; the next transaction opens it again */
    }
    if (s->purge_pending)
        purge_some(s);
    if (s->wal_pages > 0 && !s->alone) {
        (void)sqlite3_exec(s->writer.db, "PRAGMA incremental_vacuum(256)", NULL, NULL, NULL);
        checkpoint(s, SQLITE_CHECKPOINT_TRUNCATE);
    }
    (void)pthread_mutex_unlock(&s->writing);
}

enum status store_backup(struct store *s, const char *path, struct err *e)
{
    sqlite3 *to = NULL;
    ASSERT(inside != s);
    (void)pthread_mutex_lock(&s->writing);
    int rc = sqlite3_open_v2(path, &to, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, s->options.vfs);
    sqlite3_backup *copy =
        rc == SQLITE_OK ? sqlite3_backup_init(to, "main", s->writer.db, "main") : NULL;
    if (copy) {
        (void)sqlite3_backup_step(copy, -1);
        rc = sqlite3_backup_finish(copy);
    } else if (rc == SQLITE_OK) {
        rc = sqlite3_errcode(to);
    }
    enum status st = ST_OK;
    if (rc != SQLITE_OK) {
        st = store_error(to, rc, "copy", e);
        err_prefix(e, "\"%s\"", path);
    }
    (void)sqlite3_close(to);
    (void)pthread_mutex_unlock(&s->writing);
    return st;
}

void store_health(struct store *s, struct store_health *out)
{
    char wal[1100];
    (void)snprintf(wal, sizeof wal, "%s-wal", s->path);
    (void)pthread_mutex_lock(&s->telling);
    *out = s->health;
    (void)pthread_mutex_unlock(&s->telling);
    out->file_bytes = s->alone ? -1 : file_size_bytes(s->path);
    out->wal_bytes = s->alone ? -1 : file_size_bytes(wal);
    out->wal_large = out->wal_bytes > (int64_t)WAL_PAGES_ALARM * 4096;
}
