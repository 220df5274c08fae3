/* auth.c - tokens in memory, found by hash; the store behind them.
 *
 * INVARIANTS
 *  1 The table holds every credential that may hold now; revoked and spent ones have left it.
 *  2 The store is written first, the table after.
 *  3 No token is kept: the owner's and the page's, which pages and files need, are the exception.
 */
#include "server/auth.h"

#include "base/env.h"
#include "base/json.h"
#include "server/store.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A credential as the door needs it. */
struct entry {
    unsigned char hash[SECRET_HASH_BYTES];
    struct actor actor;
    char pool[65];
    int64_t row, worker, expires_us, uses_left, created_us;
    _Atomic int64_t used_us; /* written by readers of the table */
    int64_t written_us;      /* the last used_us that the store has */
};

struct auth {
    struct store *store; /* NULL: nothing outlives the process */
    pthread_rwlock_t lock;
    VEC(struct entry) entries;
    char owner[SECRET_BYTES], page[SECRET_BYTES];
    unsigned char owner_hash[SECRET_HASH_BYTES], page_hash[SECRET_HASH_BYTES];
    char file[1024];
};

const char *auth_owner_token(const struct auth *a)
{
    return a->owner;
}

const char *auth_page_token(const struct auth *a)
{
    return a->page;
}

/* ---- the table ---- */

static enum role role_of(enum credential_kind kind)
{
    return kind == CREDENTIAL_KEY      ? ROLE_KEY
           : kind == CREDENTIAL_WORKER ? ROLE_WORKER
                                       : ROLE_ENROLL;
}

/* "name" or "name/pool" into its halves; names have no slash. */
static void name_split(const char *text, struct entry *x)
{
    size_t n = strcspn(text, "/");
    str_copy_trimmed(x->actor.name, sizeof x->actor.name, text, n);
    (void)snprintf(x->pool, sizeof x->pool, "%s", text[n] ? text + n + 1 : "");
}

static void entry_fill(struct entry *x, const struct store_credential *c)
{
    *x = (struct entry){
        .row = c->id,
        .worker = c->worker,
        .expires_us = c->expires_us,
        .uses_left = c->uses_left,
        .created_us = c->created_us,
        .used_us = c->used_us,
        .written_us = c->used_us};
    memcpy(x->hash, c->hash, sizeof x->hash);
    x->actor.role = role_of(c->kind);
    x->actor.exec = c->exec;
    name_split(c->name, x);
    (void)snprintf(x->actor.id, sizeof x->actor.id, "%s", c->credential_id);
}

/* The actor of a worker's credential is the worker. */
static void entry_name_worker(struct entry *x, const char *worker_id, const char *name)
{
    (void)snprintf(x->actor.id, sizeof x->actor.id, "%s", worker_id);
    (void)snprintf(x->actor.name, sizeof x->actor.name, "%s", name);
}

static void table_add(struct auth *a, const struct entry *x)
{
    pthread_rwlock_wrlock(&a->lock);
    vec_push(&a->entries, *x);
    pthread_rwlock_unlock(&a->lock);
}

/* Every entry is compared, so that the time does not tell which is like it. Under the lock. */
static struct entry *table_find(struct auth *a, const unsigned char *hash)
{
    struct entry *found = NULL;
    for (size_t i = 0; i < a->entries.n; i++)
        if (secret_same_bytes(a->entries.data[i].hash, hash, SECRET_HASH_BYTES))
            found = &a->entries.data[i];
    return found;
}

static struct entry *table_find_id(struct auth *a, enum role role, const char *id)
{
    for (size_t i = 0; i < a->entries.n; i++) {
        struct entry *x = &a->entries.data[i];
        if (x->actor.role == role && str_eq(x->actor.id, id))
            return x;
    }
    return NULL;
}

static void table_remove(struct auth *a, struct entry *x)
{
    size_t at = (size_t)(x - a->entries.data);
    *x = a->entries.data[--a->entries.n];
    ASSERT(at <= a->entries.n);
}

void auth_who(struct auth *a, const char *token, int64_t now_us, struct actor *out)
{
    char peer[sizeof out->peer];
    unsigned char hash[SECRET_HASH_BYTES];
    memcpy(peer, out->peer, sizeof peer);
    *out = (struct actor){0};
    secret_hash(token, hash);
    bool owner = secret_same_bytes(hash, a->owner_hash, sizeof hash);
    bool page = secret_same_bytes(hash, a->page_hash, sizeof hash);
    pthread_rwlock_rdlock(&a->lock);
    struct entry *x = table_find(a, hash);
    if (x && (x->expires_us == 0 || now_us < x->expires_us) && x->uses_left != 0) {
        *out = x->actor;
        atomic_store_explicit(&x->used_us, now_us, memory_order_relaxed);
    }
    pthread_rwlock_unlock(&a->lock);
    if (owner)
        *out = (struct actor){.role = ROLE_OWNER, .exec = true, .name = "owner"};
    else if (page)
        *out = (struct actor){.role = ROLE_PAGE, .name = "page"};
    memcpy(out->peer, peer, sizeof peer);
}

/* ---- the store behind it ---- */

/* Runs `change` within a transaction: this thread's, or one of its own. */
static enum status in_transaction(
    struct auth *a, enum status (*change)(void *ctx, struct err *e), void *ctx, struct err *e)
{
    if (!a->store)
        return ST_OK;
    if (store_inside(a->store))
        return change(ctx, e);
    TRY(store_begin(a->store, e));
    return store_end(a->store, change(ctx, e), e);
}

struct change {
    struct auth *a;
    struct store_credential *c;
    int64_t worker; /* whose others go */
};

static enum status change_add(void *ctx, struct err *e)
{
    struct change *x = ctx;
    return store_credential_add(x->a->store, x->c, &x->c->id, e);
}

static enum status change_update(void *ctx, struct err *e)
{
    struct change *x = ctx;
    return store_credential_update(x->a->store, x->c, e);
}

/* Reads one credential of the store into the arena. */
static enum status credential_read(
    struct auth *a, enum credential_kind kind, const char *id, struct arena *arena,
    struct store_credential *out, struct err *e)
{
    struct store_credential *rows;
    size_t n;
    TRY(store_credentials_read(a->store, kind, arena, &rows, &n, e));
    for (size_t i = 0; i < n; i++)
        if (str_eq(rows[i].credential_id, id)) {
            *out = rows[i];
            return ST_OK;
        }
    return err_set(e, ST_NOT_FOUND, "there is no \"%s\"", id);
}

static enum status credential_new(
    struct auth *a, struct store_credential *c, const char *prefix, char token[SECRET_BYTES],
    struct err *e)
{
    TRY(secret_make(prefix, token, e));
    TRY(secret_id(c->credential_id, e));
    secret_hash(token, c->hash);
    c->prefix = "";
    char shown[13];
    (void)snprintf(shown, sizeof shown, "%s", token);
    c->prefix = shown;
    c->created_us = clock_wall_us();
    struct change x = {.a = a, .c = c};
    enum status st = in_transaction(a, change_add, &x, e);
    c->prefix = "";
    if (st != ST_OK)
        secret_wipe(token, SECRET_BYTES);
    return st;
}

static void load_rows(
    struct auth *a, const struct store_credential *rows, size_t n,
    const struct store_worker *workers, size_t n_workers)
{
    for (size_t i = 0; i < n; i++) {
        struct entry x;
        if (rows[i].revoked_us || rows[i].uses_left == 0)
            continue;
        entry_fill(&x, &rows[i]);
        for (size_t w = 0; w < n_workers; w++)
            if (x.actor.role == ROLE_WORKER && workers[w].id == x.worker)
                entry_name_worker(&x, workers[w].worker_id, workers[w].name);
        vec_push(&a->entries, x);
    }
}

static enum status load(struct auth *a, struct err *e)
{
    static const enum credential_kind kinds[] = {
        CREDENTIAL_KEY, CREDENTIAL_WORKER, CREDENTIAL_JOIN};
    struct arena arena;
    struct store_worker *workers;
    size_t n_workers;
    arena_init(&arena);
    enum status st = store_workers_read(a->store, &arena, &workers, &n_workers, e);
    for (size_t i = 0; st == ST_OK && i < 3; i++) {
        struct store_credential *rows;
        size_t n;
        st = store_credentials_read(a->store, kinds[i], &arena, &rows, &n, e);
        if (st == ST_OK)
            load_rows(a, rows, n, workers, n_workers);
    }
    arena_release(&arena);
    return st;
}

/* ---- opening ---- */

/* The owner's token where the command line finds it; the umask does not matter (0600 by mkstemp of
 * file_whole, 0700 of the folder). */
static enum status write_session(struct auth *a, const char *home, struct err *e)
{
    struct file_whole f;
    (void)path_join(home, "session.token", a->file, sizeof a->file);
    TRY(file_whole_begin(&f, a->file, e));
    if (fchmod(fileno(f.out), 0600) != 0 || fputs(a->owner, f.out) < 0) {
        enum status st = err_errno(e, "could not write \"%s\"", a->file);
        file_whole_abort(&f);
        return st;
    }
    return file_whole_commit(&f, e);
}

enum status auth_open(struct store *s, const char *home, struct auth **out, struct err *e)
{
    struct auth *a = mem_alloc(sizeof *a);
    enum status st;
    a->store = s;
    pthread_rwlock_init(&a->lock, NULL);
    TRY_OUT(secret_make("", a->owner, e));
    TRY_OUT(secret_make("", a->page, e));
    secret_hash(a->owner, a->owner_hash);
    secret_hash(a->page, a->page_hash);
    if (s)
        TRY_OUT(load(a, e));
    if (home)
        TRY_OUT(write_session(a, home, e));
    *out = a;
out:
    if (st != ST_OK) {
        a->file[0] = '\0';
        auth_close(a);
    }
    return st;
}

void auth_close(struct auth *a)
{
    if (!a)
        return;
    if (a->file[0])
        (void)unlink(a->file);
    pthread_rwlock_destroy(&a->lock);
    vec_release(&a->entries);
    secret_wipe(a->owner, sizeof a->owner);
    secret_wipe(a->page, sizeof a->page);
    mem_free(a);
}

/* ---- API keys ---- */

static bool name_is_fine(const char *name)
{
    size_t n = strlen(name);
    static const char set[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_@";
    return n >= 1 && n <= 64 && strspn(name, set) == n;
}

static void put_time(json_t *row, const char *key, int64_t time_us)
{
    if (time_us)
        json_put_f64(row, key, (double)time_us / 1e6);
    else
        json_put(row, key, json_null());
}

static json_t *key_row(const struct store_credential *c)
{
    json_t *row = json_object();
    json_put_str(row, "id", c->credential_id);
    json_put_str(row, "name", c->name);
    json_put_str(row, "prefix", c->prefix);
    json_put_bool(row, "exec", c->exec);
    put_time(row, "created_at", c->created_us);
    put_time(row, "last_used_at", c->used_us);
    put_time(row, "revoked_at", c->revoked_us);
    return row;
}

enum status auth_key_mint(
    struct auth *a, const char *name, bool exec, char token[SECRET_BYTES], json_t **row,
    struct err *e)
{
    if (!name_is_fine(name))
        return err_set(
            e, ST_INVALID, "a key's name is 1 to 64 letters, digits, dots, \"-\", \"_\" or \"@\"");
    pthread_rwlock_rdlock(&a->lock);
    bool taken = false;
    for (size_t i = 0; i < a->entries.n; i++)
        taken = taken || (a->entries.data[i].actor.role == ROLE_KEY &&
                          str_eq(a->entries.data[i].actor.name, name));
    pthread_rwlock_unlock(&a->lock);
    if (taken)
        return err_set(e, ST_CONFLICT, "there is a key \"%s\"", name);
    struct store_credential c = {
        .kind = CREDENTIAL_KEY, .name = name, .exec = exec, .uses_left = -1};
    TRY(credential_new(a, &c, "snk_", token, e));
    struct entry x;
    entry_fill(&x, &c);
    table_add(a, &x);
    char shown[13];
    (void)snprintf(shown, sizeof shown, "%s", token);
    c.prefix = shown;
    *row = key_row(&c);
    return ST_OK;
}

/* Without a store, from the table alone. */
static json_t *keys_in_memory(struct auth *a)
{
    json_t *rows = json_array();
    pthread_rwlock_rdlock(&a->lock);
    for (size_t i = 0; i < a->entries.n; i++) {
        const struct entry *x = &a->entries.data[i];
        struct store_credential c = {
            .name = x->actor.name,
            .prefix = "",
            .exec = x->actor.exec,
            .created_us = x->created_us};
        (void)snprintf(c.credential_id, sizeof c.credential_id, "%s", x->actor.id);
        if (x->actor.role == ROLE_KEY)
            (void)json_array_append_new(rows, key_row(&c));
    }
    pthread_rwlock_unlock(&a->lock);
    return rows;
}

enum status auth_keys(struct auth *a, json_t **rows, struct err *e)
{
    struct store_credential *list;
    size_t n;
    if (!a->store) {
        *rows = keys_in_memory(a);
        return ST_OK;
    }
    struct arena arena;
    arena_init(&arena);
    enum status st = store_credentials_read(a->store, CREDENTIAL_KEY, &arena, &list, &n, e);
    if (st == ST_OK) {
        *rows = json_array();
        for (size_t i = 0; i < n; i++)
            (void)json_array_append_new(*rows, key_row(&list[i]));
    }
    arena_release(&arena);
    return st;
}

/* Marks it revoked in the store, and takes it out of the table. */
static enum status
credential_revoke(struct auth *a, enum credential_kind kind, const char *id, struct err *e)
{
    struct arena arena;
    arena_init(&arena);
    enum status st = ST_OK;
    if (a->store) {
        struct store_credential c;
        st = credential_read(a, kind, id, &arena, &c, e);
        if (st == ST_OK && !c.revoked_us) {
            c.revoked_us = clock_wall_us();
            struct change x = {.a = a, .c = &c};
            st = in_transaction(a, change_update, &x, e);
        }
    }
    arena_release(&arena);
    pthread_rwlock_wrlock(&a->lock);
    struct entry *found = st == ST_OK ? table_find_id(a, role_of(kind), id) : NULL;
    if (found)
        table_remove(a, found);
    pthread_rwlock_unlock(&a->lock);
    if (st == ST_OK && !found && !a->store)
        return err_set(e, ST_NOT_FOUND, "there is no \"%s\"", id);
    return st;
}

enum status auth_key_revoke(struct auth *a, const char *id, struct err *e)
{
    return credential_revoke(a, CREDENTIAL_KEY, id, e);
}

/* ---- when keys were used ---- */

enum { USED_EVERY_S = 60, USED_AT_A_TIME = 16 };

/* A key whose use the store does not know yet; false when there is none. */
static bool used_next(struct auth *a, char id[33], int64_t *used_us)
{
    bool found = false;
    pthread_rwlock_wrlock(&a->lock);
    for (size_t i = 0; i < a->entries.n && !found; i++) {
        struct entry *x = &a->entries.data[i];
        int64_t used = atomic_load(&x->used_us);
        found = x->actor.role == ROLE_KEY && used - x->written_us > USED_EVERY_S * INT64_C(1000000);
        if (found) {
            x->written_us = *used_us = used;
            memcpy(id, x->actor.id, sizeof x->actor.id);
        }
    }
    pthread_rwlock_unlock(&a->lock);
    return found;
}

void auth_tick(struct auth *a)
{
    char id[33];
    int64_t used_us;
    for (int i = 0; a->store && i < USED_AT_A_TIME && used_next(a, id, &used_us); i++) {
        struct arena arena;
        struct store_credential c;
        arena_init(&arena);
        if (credential_read(a, CREDENTIAL_KEY, id, &arena, &c, NULL) == ST_OK) {
            c.used_us = used_us;
            struct change x = {.a = a, .c = &c};
            (void)!in_transaction(a, change_update, &x, NULL);
        }
        arena_release(&arena);
    }
}

/* ---- workers ---- */

/* The id of the worker's row; 0 without a store. */
static enum status worker_row(struct auth *a, const char *worker_id, int64_t *out, struct err *e)
{
    struct arena arena;
    struct store_worker *rows;
    size_t n;
    *out = 0;
    if (!a->store)
        return ST_OK;
    arena_init(&arena);
    enum status st = store_workers_read(a->store, &arena, &rows, &n, e);
    for (size_t i = 0; st == ST_OK && i < n; i++)
        if (str_eq(rows[i].worker_id, worker_id))
            *out = rows[i].id;
    arena_release(&arena);
    if (st == ST_OK && !*out)
        return err_set(e, ST_NOT_FOUND, "there is no worker \"%s\"", worker_id);
    return st;
}

/* Those of the worker's row, in the store. */
static enum status change_worker_revoke(void *ctx, struct err *e)
{
    struct change *x = ctx;
    struct arena arena;
    struct store_credential *rows;
    size_t n;
    arena_init(&arena);
    enum status st = store_credentials_read(x->a->store, CREDENTIAL_WORKER, &arena, &rows, &n, e);
    for (size_t i = 0; st == ST_OK && i < n; i++)
        if (rows[i].worker == x->worker && !rows[i].revoked_us) {
            rows[i].revoked_us = clock_wall_us();
            st = store_credential_update(x->a->store, &rows[i], e);
        }
    arena_release(&arena);
    return st;
}

enum status auth_worker_revoke(struct auth *a, const char *worker_id, struct err *e)
{
    struct change x = {.a = a};
    /* A worker that is removed has no row any more, and its credentials went with it. */
    if (worker_row(a, worker_id, &x.worker, NULL) == ST_OK)
        TRY(in_transaction(a, change_worker_revoke, &x, e));
    pthread_rwlock_wrlock(&a->lock);
    for (size_t i = a->entries.n; i-- > 0;) {
        struct entry *entry = &a->entries.data[i];
        if (entry->actor.role == ROLE_WORKER && str_eq(entry->actor.id, worker_id))
            table_remove(a, entry);
    }
    pthread_rwlock_unlock(&a->lock);
    return ST_OK;
}

enum status auth_worker_mint(
    struct auth *a, const char *worker_id, const char *name, char token[SECRET_BYTES],
    struct err *e)
{
    struct store_credential c = {.kind = CREDENTIAL_WORKER, .name = name, .uses_left = -1};
    TRY(worker_row(a, worker_id, &c.worker, e));
    TRY(auth_worker_revoke(a, worker_id, e));
    TRY(credential_new(a, &c, "snw_", token, e));
    struct entry x;
    entry_fill(&x, &c);
    entry_name_worker(&x, worker_id, name);
    table_add(a, &x);
    return ST_OK;
}

/* ---- join tokens ---- */

enum status auth_join_mint(
    struct auth *a, const struct auth_join *j, char id[33], char token[SECRET_BYTES], struct err *e)
{
    char name[140];
    (void)snprintf(
        name, sizeof name, "%s%s%s", j->name ? j->name : "", j->pool && j->pool[0] ? "/" : "",
        j->pool ? j->pool : "");
    struct store_credential c = {
        .kind = CREDENTIAL_JOIN,
        .name = name,
        .expires_us = j->expires_us,
        .uses_left = j->once ? 1 : -1};
    TRY(credential_new(a, &c, "snj_", token, e));
    struct entry x;
    entry_fill(&x, &c);
    table_add(a, &x);
    memcpy(id, c.credential_id, 33);
    return ST_OK;
}

/* Takes a use in the table first: of two that come at once, one gets it. */
static bool take_use(struct auth *a, const char *id, int64_t now_us, char pool[65])
{
    bool taken = false;
    pthread_rwlock_wrlock(&a->lock);
    struct entry *x = table_find_id(a, ROLE_ENROLL, id);
    if (x && x->uses_left != 0 && (x->expires_us == 0 || now_us < x->expires_us)) {
        taken = true;
        if (pool)
            memcpy(pool, x->pool, sizeof x->pool);
        if (x->uses_left > 0 && --x->uses_left == 0)
            table_remove(a, x);
    }
    pthread_rwlock_unlock(&a->lock);
    return taken;
}

enum status
auth_join_use(struct auth *a, const char *id, int64_t now_us, char pool[65], struct err *e)
{
    if (!take_use(a, id, now_us, pool))
        return err_set(e, ST_DENIED, "this join token was used or has expired");
    if (!a->store)
        return ST_OK;
    struct arena arena;
    struct store_credential c;
    arena_init(&arena);
    enum status st = credential_read(a, CREDENTIAL_JOIN, id, &arena, &c, e);
    if (st == ST_OK) {
        c.used_us = now_us;
        c.uses_left -= c.uses_left > 0;
        struct change x = {.a = a, .c = &c};
        st = in_transaction(a, change_update, &x, e);
    }
    arena_release(&arena);
    return st;
}

enum status auth_join_revoke(struct auth *a, const char *id, struct err *e)
{
    return credential_revoke(a, CREDENTIAL_JOIN, id, e);
}
