/* config.c - settings from the command line, the environment, config.json, the defaults. */
#include "server/config.h"

#include "base/config.h"
#include "base/env.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct setting settings[] = {
#define TEXT(name, fallback, about)                                                                \
    {#name, SETTING_TEXT, fallback, about, 0, 0, offsetof(struct server_config, name)},
#define INTEGER(name, fallback, min, max, about)                                                   \
    {#name, SETTING_INTEGER, #fallback, about, min, max, offsetof(struct server_config, name)},
#define FLAG(name, fallback, about)                                                                \
    {#name, SETTING_FLAG, #fallback, about, 0, 0, offsetof(struct server_config, name)},
#include "server/config.def"
#undef TEXT
#undef INTEGER
#undef FLAG
};
const size_t setting_count = sizeof settings / sizeof *settings;

static void *field(struct server_config *c, const struct setting *s)
{
    return (char *)c + s->offset;
}

static bool flag_read(const char *text, bool *out)
{
    static const char *const yes[] = {"1", "true", "yes", "on"};
    static const char *const no[] = {"0", "false", "no", "off", ""};
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
        if (str_eq(text, yes[i]))
            return *out = true;
    *out = false;
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        if (str_eq(text, no[i]))
            return true;
    return false;
}

/* `from` says where the text stands: "SNUG_PORT", "\"port\" of config.json", "--port". */
static enum status set_text(
    struct server_config *c, const struct setting *s, const char *text, const char *from,
    struct err *e)
{
    int64_t number;
    switch (s->kind) {
    case SETTING_TEXT:
        mem_free(*(char **)field(c, s));
        *(char **)field(c, s) = mem_strdup(text);
        return ST_OK;
    case SETTING_INTEGER:
        if (!str_to_i64(text, &number) || number < s->min || number > s->max)
            return err_set(
                e, ST_INVALID, "%s must be a whole number from %lld to %lld, not \"%s\"", from,
                (long long)s->min, (long long)s->max, text);
        *(int64_t *)field(c, s) = number;
        return ST_OK;
    case SETTING_FLAG:
        if (!flag_read(text, field(c, s)))
            return err_set(e, ST_INVALID, "%s must be true or false, not \"%s\"", from, text);
        return ST_OK;
    }
    return ST_OK;
}

static enum status set_json(
    struct server_config *c, const struct setting *s, const json_t *value, const char *from,
    struct err *e)
{
    char number[32];
    if (json_is_string(value))
        return set_text(c, s, json_string_value(value), from, e);
    if (json_is_boolean(value) && s->kind == SETTING_FLAG)
        return set_text(c, s, json_is_true(value) ? "true" : "false", from, e);
    if (json_is_integer(value) && s->kind == SETTING_INTEGER) {
        (void)snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
        return set_text(c, s, number, from, e);
    }
    return err_set(e, ST_INVALID, "%s is of the wrong type", from);
}

void setting_variable(const struct setting *s, char out[64])
{
    (void)snprintf(out, 64, "SNUG_%s", s->name);
    for (char *c = out; *c; c++)
        if (*c >= 'a' && *c <= 'z')
            *c = (char)(*c - 'a' + 'A');
}

static enum status setting_read(
    struct server_config *c, const struct setting *s, const json_t *file, const json_t *flags,
    struct err *e)
{
    char variable[64], from[96];
    setting_variable(s, variable);
    const json_t *flag = json_object_get(flags, s->name), *key = json_object_get(file, s->name);
    const char *environment = getenv(variable);
    if (flag) {
        (void)snprintf(from, sizeof from, "--%s", s->name);
        return set_json(c, s, flag, from, e);
    }
    if (environment)
        return set_text(c, s, environment, variable, e);
    if (key) {
        (void)snprintf(from, sizeof from, "\"%s\" of config.json", s->name);
        return set_json(c, s, key, from, e);
    }
    return ST_OK;
}

/* An empty place becomes a folder of the home. */
static void place(char **dir, const char *home, const char *name)
{
    char path[1024];
    if (*dir && (*dir)[0])
        return;
    mem_free(*dir);
    *dir = mem_strdup(path_join(home, name, path, sizeof path));
}

/* Where the examples lie: installed, or in the folder that the program was built from. */
static void find_examples(struct server_config *c)
{
    static const char *const places[] = {"../share/snug/examples", "../examples", "../../examples"};
    char self[1024], dir[1024], path[2048];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (c->examples_dir[0] || n <= 0)
        return;
    self[n] = '\0';
    (void)path_dir(self, dir, sizeof dir);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        (void)snprintf(path, sizeof path, "%s%s", dir, places[i]);
        if (dir_exists(path)) {
            mem_free(c->examples_dir);
            c->examples_dir = mem_strdup(path);
            return;
        }
    }
}

static void places(struct server_config *c)
{
    find_examples(c);
    place(&c->db_path, c->home, "snug.db");
    place(&c->graphs_dir, c->home, "graphs");
    place(&c->models_dir, c->home, "models");
    place(&c->images_dir, c->home, "images");
    place(&c->data_files_dir, c->home, "files");
    place(&c->media_dir, c->home, "media");
    if (c->ws_max_message_bytes == 0)
        c->ws_max_message_bytes = c->max_run_body_bytes;
}

static void initial(struct server_config *c, const char *home)
{
    *c = (struct server_config){0};
    c->home = mem_strdup(home);
    for (size_t i = 0; i < setting_count; i++) {
        enum status st = set_text(c, &settings[i], settings[i].initial, "the default", NULL);
        ASSERT(st == ST_OK);
    }
}

void server_config_defaults(struct server_config *c, const char *home)
{
    initial(c, home);
    places(c);
}

enum status server_config_read(struct server_config *c, const json_t *flags, struct err *e)
{
    json_t *file = NULL;
    enum status st;
    initial(c, snug_home());
    TRY_OUT(config_read(&file, e));
    for (size_t i = 0; i < setting_count; i++)
        TRY_OUT(setting_read(c, &settings[i], file, flags, e));
    if (!c->tls_certificate[0] != !c->tls_key[0]) {
        st = err_set(e, ST_INVALID, "tls_certificate and tls_key go together");
        goto out;
    }
    places(c);
out:
    json_decref(file);
    if (st != ST_OK)
        server_config_release(c);
    return st;
}

void server_config_release(struct server_config *c)
{
    for (size_t i = 0; i < setting_count; i++)
        if (settings[i].kind == SETTING_TEXT)
            mem_free(*(char **)field(c, &settings[i]));
    mem_free(c->home);
    *c = (struct server_config){0};
}
