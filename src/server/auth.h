/* auth.h - who asks: the owner's and the page's token, API keys, workers' credentials, join tokens.
 *
 *     kind           looks like  made by                     lives                        may
 *     owner          43 chars    each start of the server    SNUG_HOME/session.token 0600 all
 *     page           43 chars    each start                  memory; /api/auth/bootstrap  WRITE
 *     key            snk_...     auth_key_mint               store                        WRITE,
 * EXEC worker         snw_...     auth_worker_mint            store                        WORKER
 *     join           snj_...     auth_join_mint              store                        ENROLL
 *
 * The store keeps SHA-256 of a token, never the token; minting shows it once. Comparing takes the
 * same time whatever is right about a token. Nothing here logs a token; messages name keys by id.
 * Revoking works from the next request on, also of connections that are open.
 *
 * Threads: everything here may be called by several at once. What writes begins a transaction of
 * the store, or joins the one that this thread is in; locks are taken in the order core, store,
 * auth.
 */
#ifndef SERVER_AUTH_H
#define SERVER_AUTH_H

#include "server/http.h"
#include "server/secret.h"

struct auth;
struct store;

/* Makes the owner's and the page's token; writes session.token into `home` (NULL: nowhere). */
enum status
auth_open(struct store *s, const char *home, struct auth **out, struct err *e) NODISCARD;
void auth_close(struct auth *a); /* removes the session.token that it wrote */
const char *auth_owner_token(const struct auth *a);
const char *auth_page_token(const struct auth *a);

/* Who shows this token: fills role, exec, name and id; ROLE_NOBODY when it is none that holds
 * (unknown, revoked, spent, expired). now_us: wall clock, for expiry. */
void auth_who(struct auth *a, const char *token, int64_t now_us, struct actor *out);

/* About once a second: writes when keys were last used, at most once a minute. */
void auth_tick(struct auth *a);

/* ---- API keys ---- */
/* *row: {id, name, prefix, exec, created_at, last_used_at, revoked_at}; a new reference. A taken or
 * malformed name (1 to 64 of letters, digits, '.', '_', '-', '@') is ST_CONFLICT, ST_INVALID. */
enum status auth_key_mint(
    struct auth *a, const char *name, bool exec, char token[SECRET_BYTES], json_t **row,
    struct err *e) NODISCARD;
enum status auth_keys(struct auth *a, json_t **rows, struct err *e) NODISCARD; /* an array */
enum status auth_key_revoke(struct auth *a, const char *id, struct err *e) NODISCARD;

/* ---- workers ---- */
/* A credential for the worker (its row must be in the store), in place of those it had: enrolling,
 * and re-issuing. worker_id and name become the actor's. */
enum status auth_worker_mint(
    struct auth *a, const char *worker_id, const char *name, char token[SECRET_BYTES],
    struct err *e) NODISCARD;
enum status auth_worker_revoke(struct auth *a, const char *worker_id, struct err *e) NODISCARD;

/* ---- join tokens ---- */
struct auth_join {
    const char *name;   /* the worker's name to be, or ""; the actor's name at the door */
    const char *pool;   /* of one-shot workers, or "" */
    bool once;          /* one use; else any number until expires_us */
    int64_t expires_us; /* wall clock; 0: never */
};
enum status auth_join_mint(
    struct auth *a, const struct auth_join *j, char id[33], char token[SECRET_BYTES],
    struct err *e) NODISCARD;
/* Spends a use of the join token that the actor came with (actor.id); ST_DENIED when another was
 * first. `pool` (may be NULL) takes its pool. */
enum status auth_join_use(
    struct auth *a, const char *id, int64_t now_us, char pool[65], struct err *e) NODISCARD;
enum status auth_join_revoke(struct auth *a, const char *id, struct err *e) NODISCARD;

#endif
