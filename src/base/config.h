/* config.h - $SNUG_HOME/config.json: settings below the command line and the environment. */
#ifndef BASE_CONFIG_H
#define BASE_CONFIG_H

#include "base/json.h"

/* The file as an object, empty where there is none; a new reference. A file that cannot be read or
 * is not an object is an error that names it. */
enum status config_read(json_t **out, struct err *e) NODISCARD;
/* A text: the environment variable `env` where it is set (also to nothing), else the string `key`
 * of the file, else NULL; mem_free. */
enum status config_text(const char *env, const char *key, char **out, struct err *e) NODISCARD;
/* A whole number of at least 0: `env` where it is set, else `key`, an integer or a text, else the
 * fallback. */
enum status config_count(
    const char *env, const char *key, int64_t fallback, int64_t *out, struct err *e) NODISCARD;

#endif
