/* cmd_workers.c - `snug workers`: lists workers, and does with them what people do. */
#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/remote.h"
#include "cli/worker_text.h"

#include <string.h>

static enum status
list_workers(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    json_t *reply;
    (void)a;
    TRY(client_get(c, "/api/workers", 0, &reply, e));
    workers_text(reply, colour_on(stdout), out);
    (void)json_object_update(d, reply);
    json_decref(reply);
    return ST_OK;
}

static enum status
show_worker(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    json_t *w;
    TRY(client_get(c, client_path("/api/workers/%s", a->argument[1]).text, 0, &w, e));
    worker_text(w, colour_on(stdout), out);
    json_put(d, "worker", w);
    return ST_OK;
}

/* POST /api/workers/NAME/WORD, and a line that says what is so now. */
static enum status change(
    const struct args *a, struct client *c, const char *word, json_t *body, const char *said,
    json_t *d, struct str *out, struct err *e)
{
    const char *name = a->argument[1];
    json_t *reply = NULL;
    enum status st =
        client_post(c, client_path("/api/workers/%s/%s", name, word).text, body, 0, &reply, e);
    json_decref(body);
    if (st == ST_CONFLICT && !a->option[OPTION_YES].given && !e->hint[0])
        err_hint(e, "--yes does it all the same");
    if (st != ST_OK)
        return st;
    str_printf(out, "worker %s %s\n", name, said);
    json_put_str(d, "worker", name);
    if (json_is_object(reply))
        (void)json_object_update_missing(d, reply);
    json_decref(reply);
    return ST_OK;
}

static json_t *confirmed(const struct args *a)
{
    return json_pack("{s:b}", "confirm", a->option[OPTION_YES].given ? 1 : 0);
}

static enum status
drain(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    return change(
        a, c, "drain", json_object(), "is draining: its runs end, it gets no new ones", d, out, e);
}

static enum status
undrain(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    return change(a, c, "undrain", json_object(), "takes runs again", d, out, e);
}

static enum status
enable(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    return change(a, c, "enable", json_object(), "is enabled", d, out, e);
}

static enum status
disable(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    return change(a, c, "disable", confirmed(a), "is disabled", d, out, e);
}

static enum status set_mode(
    const struct args *a, struct client *c, const char *mode, json_t *d, struct str *out,
    struct err *e)
{
    const char *worker = a->argument[1], *card = a->argument[2];
    json_t *body = json_pack("{s:s}", "mode", mode);
    struct client_path p = client_path("/api/workers/%s/cards/%s", worker, card);
    enum status st = client_json(c, "PUT", p.text, body, 0, NULL, e);
    json_decref(body);
    if (st != ST_OK)
        return st;
    str_printf(
        out, "%s of worker %s is %s\n", card, worker,
        strcmp(mode, "shared") == 0 ? "shared by memory" : "exclusive");
    json_put_str(d, "worker", worker);
    json_put_str(d, "device", card);
    json_put_str(d, "mode", mode);
    return ST_OK;
}

static enum status
share(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    return set_mode(a, c, "shared", d, out, e);
}

static enum status
exclusive(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    return set_mode(a, c, "exclusive", d, out, e);
}

/* What a new worker, or one with a new credential, needs to know. */
static enum status show_join(json_t *reply, json_t *d, struct str *out)
{
    const char *join = json_get_str(reply, "command", NULL);
    const char *note = json_get_str(reply, "note", NULL);
    if (join)
        str_printf(out, "run this there, once:\n\n  %s\n\n", join);
    if (note)
        str_printf(out, "%s\n", note);
    (void)json_object_update_missing(d, reply);
    json_decref(reply);
    return ST_OK;
}

static enum status
add(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    const struct option_value *v = a->option;
    json_t *body = json_object(), *reply;
    if (a->n_arguments > 1)
        json_put_str(body, "name", a->argument[1]);
    if (v[OPTION_SSH].given)
        json_put_str(body, "ssh", v[OPTION_SSH].text);
    if (v[OPTION_DEVICES].given)
        json_put_str(body, "devices", v[OPTION_DEVICES].text);
    if (v[OPTION_POOL].given)
        json_put_str(body, "pool", v[OPTION_POOL].text);
    if (v[OPTION_ONE_SHOT].given || v[OPTION_POOL].given)
        json_put_bool(body, "one_shot", true);
    enum status st = client_post(c, "/api/workers", body, 0, &reply, e);
    json_decref(body);
    return st == ST_OK ? show_join(reply, d, out) : st;
}

static enum status
reissue(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    json_t *reply;
    struct client_path p = client_path("/api/workers/%s/reissue", a->argument[1]);
    TRY(client_post(c, p.text, NULL, 0, &reply, e));
    str_printf(out, "the old credential of %s is worth nothing any more\n", a->argument[1]);
    return show_join(reply, d, out);
}

static enum status
remove_worker(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    struct client_path p = client_path("/api/workers/%s", a->argument[1]);
    if (a->option[OPTION_YES].given)
        client_query(&p, "confirm", "true");
    enum status st = client_json(c, "DELETE", p.text, NULL, 0, NULL, e);
    if (st == ST_CONFLICT && !a->option[OPTION_YES].given && !e->hint[0])
        err_hint(e, "--yes does it all the same");
    if (st != ST_OK)
        return st;
    str_printf(out, "worker %s is removed\n", a->argument[1]);
    json_put_str(d, "worker", a->argument[1]);
    return ST_OK;
}

int cmd_workers(const struct args *a)
{
    static const struct remote_word words[] = {
        {"list", 0, "", list_workers},
        {"show", 1, "WORKER", show_worker},
        {"drain", 1, "WORKER", drain},
        {"undrain", 1, "WORKER", undrain},
        {"share", 2, "WORKER CARD", share},
        {"exclusive", 2, "WORKER CARD", exclusive},
        {"enable", 1, "WORKER", enable},
        {"disable", 1, "WORKER", disable},
        {"add", -1, "WORKER", add},
        {"reissue", 1, "WORKER", reissue},
        {"remove", 1, "WORKER", remove_worker}};
    return remote_command(a, words, sizeof words / sizeof *words);
}
