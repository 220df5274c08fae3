/* config.c - reads $SNUG_HOME/config.json. */
#include "base/config.h"

#include "base/env.h"
#include "base/mem.h"

#include <stdlib.h>

enum { CONFIG_BYTES_MAX = 1 << 20 };

enum status config_read(json_t **out, struct err *e)
{
    char path[1100];
    *out = NULL;
    (void)path_join(snug_home(), "config.json", path, sizeof path);
    if (!file_exists(path)) {
        *out = json_object();
        return ST_OK;
    }
    TRY(json_read_file(path, CONFIG_BYTES_MAX, out, e));
    if (json_is_object(*out))
        return ST_OK;
    json_decref(*out);
    *out = NULL;
    return err_set(e, ST_INVALID, "\"%s\" is not an object of settings", path);
}

enum status config_text(const char *env, const char *key, char **out, struct err *e)
{
    const char *set = getenv(env);
    *out = NULL;
    if (set) {
        *out = mem_strdup(set);
        return ST_OK;
    }
    json_t *config;
    enum status st = ST_OK;
    TRY(config_read(&config, e));
    const json_t *value = json_object_get(config, key);
    if (json_is_string(value))
        *out = mem_strdup(json_string_value(value));
    else if (value && !json_is_null(value))
        st = err_set(e, ST_INVALID, "\"%s\" of \"%s/config.json\" is not a text", key, snug_home());
    json_decref(config);
    return st;
}

enum status
config_count(const char *env, const char *key, int64_t fallback, int64_t *out, struct err *e)
{
    const char *text = getenv(env);
    json_t *config = NULL;
    *out = fallback;
    if (!text)
        TRY(config_read(&config, e));
    const json_t *value = json_object_get(config, key);
    bool good = true;
    text = text ? text : json_string_value(value);
    if (text)
        good = str_to_i64(text, out);
    else if (json_is_integer(value))
        *out = json_integer_value(value);
    else
        good = !value || json_is_null(value);
    json_decref(config);
    if (good && *out >= 0)
        return ST_OK;
    *out = fallback;
    return err_set(e, ST_INVALID, "%s (\"%s\" of config.json) is not a count", env, key);
}
