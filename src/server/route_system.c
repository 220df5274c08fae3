/* route_system.c - devices of this machine, the page's token, API keys, the server's figures. */
#include "server/auth.h"
#include "server/core.h"
#include "server/routes.h"
#include "server/server_int.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

/* ---- devices (D1) ---- */

/* Of "NVIDIA CUDA #1 · cuda:1 · RTX 3060" what stands behind the first dot, for a second line. */
static void device_row(json_t *rows, struct devices *d, const json_t *item)
{
    const char *value = json_get_str(item, "value", "");
    json_t *row = json_object();
    char detail[160] = "";
    for (int i = 0; i < d->n; i++)
        if (str_eq(d->list[i].id, value) ||
            (str_eq(value, "cuda") && str_eq(d->list[i].id, "cuda:0")))
            (void)snprintf(detail, sizeof detail, "%s", d->list[i].name);
    json_put_str(row, "value", value);
    json_put_str(row, "label", json_get_str(item, "label", ""));
    json_put_str(row, "detail", detail);
    json_put_bool(row, "available", true);
    (void)json_array_append_new(rows, row);
}

void route_devices(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct server_inside *x = s->inside;
    json_t *rows = json_array(), *o = json_object(), *item;
    size_t i;
    (void)q;
    pthread_mutex_lock(&x->devices_lock);
    json_t *menu = devices_menu(&x->devices, true);
    json_array_foreach(menu, i, item) device_row(rows, &x->devices, item);
    bool card = x->devices.cards_n > 0;
    pthread_mutex_unlock(&x->devices_lock);
    json_decref(menu);
    json_put_str(o, "default", card ? "cuda" : "cpu");
    json_put(o, "devices", rows);
    http_json(r, 200, o);
}

void route_status(struct server *s, const struct http_request *q, struct http_reply *r)
{
    (void)q;
    http_json(r, 200, core_status(s->core, instant_of_now()));
}

/* ---- the page's token ---- */

/* The token as JSON for headers, and as a cookie for what cannot send any (event streams, images):
 * the cookie counts for reading only. */
void route_bootstrap(struct server *s, const struct http_request *q, struct http_reply *r)
{
    char cookie[256];
    bool known =
        q->actor.role == ROLE_OWNER || q->actor.role == ROLE_KEY || q->actor.role == ROLE_PAGE;
    if (q->foreign) {
        http_error(r, 403, "this page's origin is not allowed");
        return;
    }
    if (s->config->private_reads && !known) {
        http_error(r, 403, "this server gives its page's token to keys alone (private_reads)");
        return;
    }
    json_t *o = json_object();
    json_put_str(o, "token", auth_page_token(s->auth));
    http_json(r, 200, o);
    (void)snprintf(
        cookie, sizeof cookie, "snug_page=%s; Path=/; HttpOnly; SameSite=Strict%s",
        auth_page_token(s->auth), s->config->tls_certificate[0] ? "; Secure" : "");
    (void)http_add_header(r, "Set-Cookie", cookie);
}

/* ---- keys ---- */

void route_keys(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    json_t *rows = NULL;
    (void)q;
    if (auth_keys(s->auth, &rows, &e) != ST_OK) {
        http_fail(r, &e);
        return;
    }
    json_t *o = json_object();
    json_put(o, "keys", rows);
    http_json(r, 200, o);
}

void route_key_mint(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    char token[SECRET_BYTES];
    json_t *row = NULL;
    const json_t *name = json_object_get(q->json, "name"), *exec = json_object_get(q->json, "exec");
    if (!json_is_string(name) || (exec && !json_is_boolean(exec))) {
        http_error(r, 422, "a \"name\" (a text) is needed, and \"exec\" is true or false");
        return;
    }
    bool may_run = json_is_true(exec);
    if (auth_key_mint(s->auth, json_string_value(name), may_run, token, &row, &e) != ST_OK) {
        http_fail(r, &e);
        return;
    }
    json_put_str(row, "token", token);
    secret_wipe(token, sizeof token);
    http_json(r, 201, row);
}

void route_key_revoke(struct server *s, const struct http_request *q, struct http_reply *r)
{
    struct err e = {0};
    if (auth_key_revoke(s->auth, q->param[0], &e) != ST_OK) {
        http_fail(r, &e);
        return;
    }
    json_t *o = json_object();
    json_put_str(o, "id", q->param[0]);
    json_put_bool(o, "revoked", true);
    http_json(r, 200, o);
}
