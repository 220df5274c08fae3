/* config.h - the server's settings: what each is, where it comes from (rows: config.def).
 *
 *     struct server_config c;
 *     TRY(server_config_read(&c, &given, e));
 *     ... c.port, c.run_queue_max_concurrent_cpu ...
 *     server_config_release(&c);
 */
#ifndef SERVER_CONFIG_H
#define SERVER_CONFIG_H

#include "base/json.h"

#include <stddef.h>

struct server_config {
#define TEXT(name, fallback, about) char *name;
#define INTEGER(name, fallback, min, max, about) int64_t name;
#define FLAG(name, fallback, about) bool name;
#include "server/config.def"
#undef TEXT
#undef INTEGER
#undef FLAG
    char *home; /* SNUG_HOME */
};

/* Flag over environment over SNUG_HOME/config.json over default. flags: {"port": "8001"}, from the
 * command line, may be NULL; values are texts, or JSON of the right type. A setting that cannot be
 * read, or is out of bounds, is ST_INVALID and says where it came from. Fields of places are filled
 * in ("graphs_dir" becomes SNUG_HOME/graphs). */
enum status
server_config_read(struct server_config *c, const json_t *flags, struct err *e) NODISCARD;
/* The defaults alone, under this home: for tests. */
void server_config_defaults(struct server_config *c, const char *home);
void server_config_release(struct server_config *c);

enum setting_kind { SETTING_TEXT, SETTING_INTEGER, SETTING_FLAG };
struct setting {
    const char *name; /* "port"; its variable is SNUG_PORT */
    enum setting_kind kind;
    const char *initial, *about;
    int64_t min, max;
    size_t offset; /* in struct server_config */
};
void setting_variable(const struct setting *s, char out[64]); /* "SNUG_PORT" */
extern const struct setting settings[];
extern const size_t setting_count;

#endif
