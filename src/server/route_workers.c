/* route_workers.c - /api/workers: the panel, and what it does (W3 to W6, B1); /api/queue. */
#include "base/env.h"
#include "base/mem.h"
#include "server/auth.h"
#include "server/core.h"
#include "server/routes.h"
#include "server/server.h"
#include "server/ssh.h"

#include <string.h>

#define JOIN_TOKEN_DAYS 7

static struct instant instant_now(void)
{
    return (struct instant){clock_ns(), clock_wall_us()};
}

void route_workers(struct server *s, const struct http_request *q, struct http_reply *r)
{
    (void)q;
    http_json(r, 200, core_workers(s->core, instant_now()));
}

/* The worker as it is now, after a change of it. */
static void answer_worker(
    struct server *s, struct http_reply *r, const char *name, enum status st, struct err *e)
{
    json_t *doc = NULL;
    if (st == ST_OK)
        st = core_worker(s->core, name, instant_now(), &doc, e);
    if (st == ST_OK)
        http_json(r, 200, doc);
    else
        http_fail(r, e);
}

void route_worker(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    answer_worker(s, r, q->param[0], ST_OK, &e);
}

void route_worker_drain(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    answer_worker(
        s, r, q->param[0], core_worker_drain(s->core, q->param[0], true, instant_now(), &e), &e);
}

void route_worker_undrain(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    answer_worker(
        s, r, q->param[0], core_worker_drain(s->core, q->param[0], false, instant_now(), &e), &e);
}

static bool confirmed(const struct http_request *q)
{
    const char *text = http_query(q, "confirm");
    return (text && (str_eq(text, "true") || str_eq(text, "1"))) ||
           json_get_bool(q->json, "confirm", false);
}

void route_worker_enable(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    answer_worker(
        s, r, q->param[0], core_worker_enable(s->core, q->param[0], true, false, instant_now(), &e),
        &e);
}

void route_worker_disable(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    answer_worker(
        s, r, q->param[0],
        core_worker_enable(s->core, q->param[0], false, confirmed(q), instant_now(), &e), &e);
}

void route_worker_card(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    const char *mode = json_get_str(q->json, "mode", "");
    answer_worker(
        s, r, q->param[0],
        core_card_mode(s->core, q->param[0], q->param[1], mode, instant_now(), &e), &e);
}

/* ---- joining ---- */

/* A worker that is to be, as POST /api/workers asks for it. */
struct joining {
    struct auth_join join;
    const char *devices;
    bool one_shot;
};

static void put_command(struct server *s, json_t *out, const char *token, const struct joining *j)
{
    struct str text;
    str_init(&text);
    str_printf(&text, "snug agent start --server %s --token %s", server_url(s), token);
    if (*j->join.name)
        str_printf(&text, " --name %s", j->join.name);
    if (*j->devices)
        str_printf(&text, " --devices %s", j->devices);
    if (j->one_shot)
        str_add(&text, " --one-shot");
    if (*j->join.pool)
        str_printf(&text, " --pool %s", j->join.pool);
    json_put_str(out, "token", token);
    json_put_str(out, "command", text.data);
    str_release(&text);
}

static const char *const join_keys[] = {"name", "pool", "devices", "one_shot", "once", "expires_s"};

static enum status check_join_keys(const json_t *body, struct err *e)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)body, key, value)
    {
        bool known = false;
        for (size_t i = 0; i < sizeof join_keys / sizeof *join_keys; i++)
            known = known || str_eq(key, join_keys[i]);
        if (!known)
            return err_set(e, ST_UNPROCESSABLE, "unknown key \"%.64s\"", key);
    }
    return ST_OK;
}

/* Texts go into a command line that people run: nothing but these. */
static enum status
check_join_text(const json_t *body, const char *key, const char *more, size_t max, struct err *e)
{
    const json_t *value = json_object_get(body, key);
    const char *text = json_string_value(value);
    char allowed[96];
    if (!value || json_is_null(value))
        return ST_OK;
    (void)snprintf(
        allowed, sizeof allowed,
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-%s", more);
    if (text && strlen(text) <= max && strspn(text, allowed) == strlen(text) && *text != '-')
        return ST_OK;
    return err_set(
        e, ST_INVALID, "%s must have at most %zu of letters, digits, '.', '_', '-'%s", key, max,
        *more ? ", ':', ','" : "");
}

static enum status read_join(const json_t *body, struct joining *j, struct err *e)
{
    TRY(check_join_keys(body, e));
    TRY(check_join_text(body, "name", "", 64, e));
    TRY(check_join_text(body, "pool", "", 64, e));
    TRY(check_join_text(body, "devices", ":,", 400, e));
    j->join.name = json_get_str(body, "name", "");
    j->join.pool = json_get_str(body, "pool", "");
    j->devices = json_get_str(body, "devices", "");
    j->one_shot = json_get_bool(body, "one_shot", *j->join.pool != 0);
    j->join.once = json_get_bool(body, "once", !j->one_shot);
    double seconds = json_get_f64(body, "expires_s", JOIN_TOKEN_DAYS * 86400.0);
    if (!(seconds >= 1 && seconds <= 366 * 86400.0))
        return err_set(e, ST_INVALID, "expires_s must be between 1 and %d", 366 * 86400);
    j->join.expires_us = clock_wall_us() + (int64_t)(seconds * 1e6);
    return ST_OK;
}

/* A worker that this server reaches through ssh: {"ssh": HOST, "name"?: the host's, "devices"?}. */
static void add_ssh(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    const char *host = json_get_str(q->json, "ssh", ""), *key;
    const char *name = json_get_str(q->json, "name", host);
    const char *devices = json_get_str(q->json, "devices", "");
    enum status st = ST_OK;
    json_t *value, *out;
    json_object_foreach(q->json, key, value)
    {
        if (st == ST_OK && !str_eq(key, "ssh") && !str_eq(key, "name") && !str_eq(key, "devices"))
            st = err_set(&e, ST_UNPROCESSABLE, "\"%.64s\" does not go with ssh", key);
    }
    if (st == ST_OK && !ssh_host_is_valid(host))
        st = err_set(
            &e, ST_INVALID, "ssh: a host as in `ssh HOST`, of letters, digits and . _ - @ : [ ]");
    if (st == ST_OK && !ssh_devices_are_valid(devices))
        st = err_set(&e, ST_INVALID, "devices: as in \"cuda:0,cuda:1\"");
    if (st == ST_OK)
        st = core_ssh_add(s->core, name, host, devices, instant_now(), &e);
    if (st != ST_OK) {
        http_fail(r, &e);
        return;
    }
    out = json_object();
    json_put_str(out, "name", name);
    json_put_str(out, "ssh", host);
    json_put_str(
        out, "note", "the server opens the connection now; snug must be there in this version");
    http_json(r, 201, out);
}

/* Makes a join command for another machine; the same-machine command needs no token. */
void route_worker_add(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    struct joining j = {0};
    char id[33], token[SECRET_BYTES];
    if (json_object_get(q->json, "ssh")) {
        add_ssh(s, q, r);
        return;
    }
    enum status st = read_join(q->json, &j, &e);
    if (st == ST_OK)
        st = core_worker_name_free(s->core, j.join.name, &e);
    if (st == ST_OK)
        st = auth_join_mint(s->auth, &j.join, id, token, &e);
    if (st != ST_OK) {
        http_fail(r, &e);
        return;
    }
    json_t *out = json_object();
    json_put_str(out, "join_id", id);
    json_put_str(out, "name", *j.join.name ? j.join.name : NULL);
    json_put_str(out, "pool", *j.join.pool ? j.join.pool : NULL);
    put_command(s, out, token, &j);
    json_put_str(out, "same_machine_command", "snug agent start");
    bool reachable = core_reachable(s->core);
    json_put_bool(out, "reachable", reachable);
    if (!reachable)
        json_put_str(
            out, "note",
            "this server listens on this machine alone: other machines reach it through SSH, or "
            "after `snug start --host 0.0.0.0`");
    secret_wipe(token, sizeof token);
    http_json(r, 201, out);
}

/* A new credential in place of the old one, which does not hold any more. */
void route_worker_reissue(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    json_t *doc = NULL;
    char token[SECRET_BYTES];
    enum status st = core_worker(s->core, q->param[0], instant_now(), &doc, &e);
    if (st == ST_OK && !json_get_bool(doc, "can_reissue", false))
        st = err_set(&e, ST_CONFLICT, "worker \"%s\" has no credential to renew", q->param[0]);
    if (st == ST_OK)
        st = auth_worker_mint(s->auth, json_get_str(doc, "worker_id", ""), q->param[0], token, &e);
    json_decref(doc);
    if (st != ST_OK) {
        http_fail(r, &e);
        return;
    }
    json_t *out = json_object();
    json_put_str(out, "name", q->param[0]);
    put_command(
        s, out, token, &(struct joining){.join = {.name = q->param[0], .pool = ""}, .devices = ""});
    secret_wipe(token, sizeof token);
    http_json(r, 200, out);
}

void route_worker_remove(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    json_t *doc = NULL;
    enum status st = core_worker(s->core, q->param[0], instant_now(), &doc, &e);
    if (st == ST_OK)
        st = core_worker_remove(s->core, q->param[0], confirmed(q), instant_now(), &e);
    if (st == ST_OK)
        st = auth_worker_revoke(s->auth, json_get_str(doc, "worker_id", ""), &e);
    json_decref(doc);
    if (st != ST_OK) {
        http_fail(r, &e);
        return;
    }
    json_t *out = json_object();
    json_put_str(out, "name", q->param[0]);
    json_put_bool(out, "removed", true);
    http_json(r, 200, out);
}

void route_queue(struct server *s, const struct http_request *q, struct http_reply *r)
{
    (void)q;
    http_json(r, 200, core_status(s->core, instant_now()));
}
