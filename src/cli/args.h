/* args.h - the command line: which command, its arguments and options (rows: commands.def,
 * options.def).
 *
 *     struct args a;
 *     enum status st = args_parse(argc, argv, &a, e);   ST_USAGE: one line says what is wrong
 *     ... a.command->run(&a) ...
 *     args_release(&a);
 *
 * Options may stand before or after arguments, as `--name value` or `--name=value`; after `--`
 * everything is an argument, or, where the command's options have the word "--", another program's
 * line (args.rest). Given twice, the last counts.
 */
#ifndef CLI_ARGS_H
#define CLI_ARGS_H

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"

enum option_id {
#define OPTION(id, name, value, kind, choices, about) OPTION_##id,
#include "cli/options.def"
#undef OPTION
    OPTION_COUNT
};

struct args;
struct command {
    const char *name;
    int (*run)(const struct args *a); /* returns the exit status */
    int arguments_max;
    /* `arguments`: as the usage line has them; what stands between "|" before the first blank are
     * words to choose from. */
    const char *arguments, *options, *about, *help;
};
/* What the tables say of an option; `value` NULL: a flag; `choices` "a|b" or NULL. */
struct option_info {
    const char *name, *value, *choices, *about;
};
struct option_info option_info(enum option_id id);
bool command_takes(const struct command *c, enum option_id id);
size_t command_count(void);
const struct command *command_at(size_t i);
const struct command *command_find(const char *name); /* NULL when there is none */

enum { ARGS_MAX = 3 }; /* arguments of a command */
struct option_value {
    bool given;
    const char *text;       /* of a LIST: the last one */
    int64_t number;         /* INT, COUNT; GIB: bytes */
    double seconds;         /* SECONDS */
    VEC(const char *) list; /* LIST: all of them, in the order given */
};
/* Texts are borrowed from argv, those of SECRET options aside: argv shows stars in their place. */
struct args {
    const struct command *command; /* NULL: only help or version was asked for */
    bool json, help, version;
    const char *argument[ARGS_MAX];
    int n_arguments;
    struct option_value option[OPTION_COUNT];
    char *const *rest; /* what follows "--", where the command takes that; NULL: no "--" */
    int n_rest;
    VEC(char *) hidden; /* copies of secrets */
};

/* Whether --json is given, before anything else is known of the line. */
bool args_want_json(int argc, char *const *argv);
/* Always leaves `a` fit for args_release; json is found even where the rest is wrong. */
enum status args_parse(int argc, char *const *argv, struct args *a, struct err *e) NODISCARD;
void args_release(struct args *a);

/* `snug --help`, and `snug COMMAND --help`. */
void args_help(struct str *out);
void args_command_help(const struct command *c, struct str *out);

#endif
