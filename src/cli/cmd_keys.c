/* cmd_keys.c - `snug keys`: who may use the server from elsewhere. */
#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/remote.h"

#include <string.h>
#include <time.h>

static enum status read_keys(struct client *c, json_t **keys, struct err *e)
{
    json_t *reply;
    TRY(client_get(c, "/api/keys", 0, &reply, e));
    *keys = json_is_array(reply) ? json_incref(reply) : json_incref(json_object_get(reply, "keys"));
    json_decref(reply);
    return ST_OK;
}

/* A day and a minute, of seconds since 1970 or a text; `none` where there is no time. */
static void add_time(struct str *rows, const json_t *when, const char *none)
{
    char text[32] = "";
    time_t seconds = (time_t)json_number_value(when);
    struct tm t;
    if (json_is_number(when) && gmtime_r(&seconds, &t))
        (void)strftime(text, sizeof text, "%Y-%m-%d %H:%M", &t);
    else if (json_is_string(when))
        (void)snprintf(text, sizeof text, "%.16s", json_string_value(when));
    str_add(rows, text[0] ? text : none);
}

static bool is_revoked(const json_t *key)
{
    const json_t *when = json_object_get(key, "revoked_at");
    return json_is_number(when) || json_string_length(when) > 0;
}

static enum status
list_keys(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    json_t *keys, *key;
    size_t i;
    struct str rows;
    (void)a;
    TRY(read_keys(c, &keys, e));
    str_init(&rows);
    str_add(&rows, "NAME\tKEY\tMAY\tMADE\tUSED\tID\n");
    json_array_foreach(keys, i, key)
    {
        cell_add(&rows, json_get_str(key, "name", "?"), 0);
        str_printf(
            &rows, "\t%s...\t%s\t", json_get_str(key, "prefix", "?"),
            is_revoked(key)                     ? "nothing: revoked"
            : json_get_bool(key, "exec", false) ? "submit, run commands"
                                                : "submit");
        add_time(&rows, json_object_get(key, "created_at"), "-");
        str_add(&rows, "\t");
        add_time(&rows, json_object_get(key, "last_used_at"), "never used");
        str_printf(&rows, "\t%s\n", json_get_str(key, "id", ""));
    }
    if (json_array_size(keys) == 0)
        str_add(out, "no keys; `snug keys add NAME` makes one\n");
    else
        table_text(rows.data, out);
    str_release(&rows);
    json_put(d, "keys", keys);
    return ST_OK;
}

/* The key is on stdout alone, so that it can be piped; what it is for on stderr. */
static enum status
add_key(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    json_t *reply, *body = json_pack("{s:s}", "name", a->argument[1]);
    if (a->option[OPTION_EXEC].given)
        json_put_bool(body, "exec", true);
    enum status st = client_post(c, "/api/keys", body, 0, &reply, e);
    json_decref(body);
    if (st != ST_OK)
        return st;
    const char *token = json_get_str(reply, "token", json_get_str(reply, "key", ""));
    str_printf(out, "%s\n", token);
    if (!a->json)
        (void)fprintf(
            stderr, "shown once. Whoever has it: export SNUG_SERVER=%s SNUG_KEY=...\n",
            client_url(c));
    (void)json_object_update_missing(d, reply);
    json_put_str(d, "token", token);
    json_decref(reply);
    return ST_OK;
}

/* By name or by the first letters of the id; of keys that are not revoked. */
static enum status
revoke_key(const struct args *a, struct client *c, json_t *d, struct str *out, struct err *e)
{
    const char *given = a->argument[1], *id = NULL;
    json_t *keys, *key;
    size_t i;
    TRY(read_keys(c, &keys, e));
    json_array_foreach(keys, i, key)
    {
        if (!is_revoked(key) && (strcmp(json_get_str(key, "name", ""), given) == 0 ||
                                 strcmp(json_get_str(key, "id", ""), given) == 0))
            id = json_get_str(key, "id", NULL);
    }
    enum status st =
        id ? client_json(c, "DELETE", client_path("/api/keys/%s", id).text, NULL, 0, NULL, e)
           : err_set(e, ST_NOT_FOUND, "there is no key \"%.64s\"", given);
    if (st == ST_OK) {
        str_printf(out, "the key of %s opens nothing any more\n", given);
        json_put_str(d, "id", id);
    }
    json_decref(keys);
    return st;
}

int cmd_keys(const struct args *a)
{
    static const struct remote_word words[] = {
        {"list", 0, "", list_keys}, {"add", 1, "NAME", add_key}, {"revoke", 1, "NAME", revoke_key}};
    return remote_command(a, words, sizeof words / sizeof *words);
}
