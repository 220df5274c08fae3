/* docgen_server.c - tables of the server: routes, settings. */
#include "docgen_server.h"

#include "base/mem.h"

#include <stdbool.h>
#include <string.h>

/* Pipes would end a cell of the table. */
static void add_cell(struct str *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '|')
            str_add(out, "\\");
        str_add_n(out, text, 1);
    }
    str_add(out, "|");
}

static void add_lower(struct str *out, const char *text)
{
    for (; *text; text++) {
        char c = *text >= 'A' && *text <= 'Z' ? (char)(*text - 'A' + 'a') : *text;
        str_add_n(out, &c, 1);
    }
}

static void add_route(
    struct str *out, const char *method, const char *path, const char *access, const char *body,
    const char *about)
{
    str_printf(out, "|%s|`%s`|", method, path);
    add_lower(out, access);
    str_add(out, "|");
    if (strcmp(body, "NONE") != 0)
        add_lower(out, body);
    str_add(out, "|");
    add_cell(out, about);
    str_add(out, "\n");
}

void docgen_routes(struct str *out)
{
    str_add(
        out,
        "# Routes\n\nMade from `src/server/routes.def`. What access and body mean: "
        "[api.md](../api.md).\n\n|method|path|access|body|what it does|\n|---|---|---|---|---|\n");
#define ROUTE(method, path, handler, access, body, about)                                          \
    add_route(out, #method, path, #access, #body, about);
#include "server/routes.def"
#undef ROUTE
}

static void add_setting(struct str *out, const char *name, const char *initial, const char *about)
{
    str_add(out, "|`SNUG_");
    for (const char *c = name; *c; c++) {
        char upper = *c >= 'a' && *c <= 'z' ? (char)(*c - 'a' + 'A') : *c;
        str_add_n(out, &upper, 1);
    }
    str_printf(out, "`|%s|", *initial ? initial : "");
    add_cell(out, about);
    str_add(out, "\n");
}

void docgen_settings(struct str *out)
{
    str_add(
        out,
        "# Settings of the server\n\nMade from `src/server/config.def`. A flag of `snug start` "
        "wins over the variable, that over the key of `SNUG_HOME/config.json` (the name in "
        "lower case, without `SNUG_`), that over the default.\n\n|variable|default|meaning|\n"
        "|---|---|---|\n");
#define TEXT(name, fallback, about) add_setting(out, #name, fallback, about);
#define INTEGER(name, fallback, min, max, about) add_setting(out, #name, #fallback, about);
#define FLAG(name, fallback, about) add_setting(out, #name, #fallback, about);
#include "server/config.def"
#undef TEXT
#undef INTEGER
#undef FLAG
}
