/* args.c - reads the command line by the tables of commands and options. */
#include "cli/args.h"

#include "cli/commands.h"
#include "passes/passes.h"

#include <math.h>
#include <string.h>

enum option_kind {
    OPTION_KIND_FLAG,
    OPTION_KIND_TEXT,
    OPTION_KIND_LIST,
    OPTION_KIND_INT,
    OPTION_KIND_COUNT,
    OPTION_KIND_GIB,
    OPTION_KIND_SECONDS,
    OPTION_KIND_SECRET,
    OPTION_KIND_CHOICE
};
struct option {
    const char *name, *value;
    enum option_kind kind;
    const char *choices, *about;
};
static const struct option options[] = {
#define OPTION(id, name, value, kind, choices, about)                                              \
    {name, value, OPTION_KIND_##kind, choices, about},
#include "cli/options.def"
#undef OPTION
};

/* Words of an option for one command. */
static const struct meaning {
    const char *command;
    enum option_id id;
    const char *value, *about;
} meanings[] = {
#define MEANING(command, id, value, about) {#command, OPTION_##id, value, about},
#include "cli/option_meanings.def"
#undef MEANING
};

static const struct command commands[] = {
#define COMMAND(name, function, most, arguments, options, about, help)                             \
    {#name, function, most, arguments, options, about, help},
#include "cli/commands.def"
#undef COMMAND
};

size_t command_count(void)
{
    return sizeof commands / sizeof *commands;
}

const struct command *command_at(size_t i)
{
    return &commands[i];
}

const struct command *command_find(const char *name)
{
    for (size_t i = 0; i < command_count(); i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

/* ---- which options a command takes ---- */

/* Whether `name` of length n is a word of `words`. */
static bool has_word(const char *words, const char *name, size_t n)
{
    while (*words) {
        size_t length = strcspn(words, " ");
        if (length == n && strncmp(words, name, n) == 0)
            return true;
        words += length + (words[length] == ' ');
    }
    return false;
}

bool command_takes(const struct command *c, enum option_id id)
{
    return id == OPTION_JSON || id == OPTION_HELP ||
           has_word(c->options, options[id].name, strlen(options[id].name));
}

struct option_info option_info(enum option_id id)
{
    const struct option *o = &options[id];
    return (struct option_info){o->name, o->value, o->choices, o->about};
}

/* OPTION_COUNT when the command has no such option. */
static enum option_id find_option(const struct command *c, const char *name, size_t n)
{
    for (int i = 0; i < OPTION_COUNT; i++)
        if (strlen(options[i].name) == n && strncmp(options[i].name, name, n) == 0 &&
            command_takes(c, (enum option_id)i))
            return (enum option_id)i;
    return OPTION_COUNT;
}

static enum status
unknown_option(const struct command *c, const char *given, size_t n, struct err *e)
{
    const char *names[OPTION_COUNT], *near;
    size_t count = 0;
    char word[64];
    for (int i = 0; i < OPTION_COUNT; i++)
        if (command_takes(c, (enum option_id)i))
            names[count++] = options[i].name;
    if (n > sizeof word - 1)
        n = sizeof word - 1;
    memcpy(word, given, n);
    word[n] = 0;
    (void)err_set(e, ST_USAGE, "`snug %s` has no option --%s", c->name, word);
    near = str_nearest(word, names, count);
    if (near)
        err_hint(e, "did you mean --%s? `snug %s --help` lists the options", near, c->name);
    else
        err_hint(e, "`snug %s --help` lists the options", c->name);
    return ST_USAGE;
}

/* ---- values ---- */

/* Whether `value` is one of "a|b|c". */
static bool is_choice(const char *choices, const char *value)
{
    size_t n = strlen(value);
    while (*choices) {
        size_t length = strcspn(choices, "|");
        if (n == length && strncmp(choices, value, n) == 0)
            return true;
        choices += length + (choices[length] == '|');
    }
    return false;
}

static enum status read_gib(const struct option *o, const char *text, int64_t *bytes, struct err *e)
{
    double gib;
    if (!str_to_f64(text, &gib) || !isfinite(gib) || gib <= 0 || gib > 1e9)
        return err_set(
            e, ST_USAGE, "--%s wants a number of GiB above 0, not \"%s\"", o->name, text);
    *bytes = (int64_t)llround(gib * 1073741824.0);
    return ST_OK;
}

static enum status
read_seconds(const struct option *o, const char *text, double *seconds, struct err *e)
{
    static const struct {
        const char *unit;
        double seconds;
    } units[] = {{"s", 1}, {"m", 60}, {"min", 60}, {"h", 3600}, {"d", 86400}};
    char number[32];
    size_t n = strspn(text, "0123456789.");
    (void)snprintf(number, sizeof number, "%.*s", n < sizeof number ? (int)n : 0, text);
    if (str_to_f64(number, seconds)) {
        if (!text[n])
            return ST_OK;
        for (size_t i = 0; i < sizeof units / sizeof *units; i++)
            if (strcmp(text + n, units[i].unit) == 0) {
                *seconds *= units[i].seconds;
                return ST_OK;
            }
    }
    return err_set(
        e, ST_USAGE, "--%s wants a time, as 90, 90s, 10m, 2h or 1d, not \"%s\"", o->name, text);
}

/* What ps shows of it from here on is stars. */
static const char *hide(struct args *a, char *text)
{
    char *copy = mem_strdup(text);
    vec_push(&a->hidden, copy);
    memset(text, '*', strlen(text));
    return copy;
}

static enum status read_value(struct args *a, enum option_id id, char *text, struct err *e)
{
    const struct option *o = &options[id];
    struct option_value *v = &a->option[id];
    int64_t least = o->kind == OPTION_KIND_COUNT ? 0 : INT64_MIN;
    v->given = true;
    v->text = text;
    switch (o->kind) {
    case OPTION_KIND_LIST:
        vec_push(&v->list, text);
        return ST_OK;
    case OPTION_KIND_SECONDS:
        return read_seconds(o, text, &v->seconds, e);
    case OPTION_KIND_GIB:
        return read_gib(o, text, &v->number, e);
    case OPTION_KIND_INT:
    case OPTION_KIND_COUNT:
        if (str_to_i64(text, &v->number) && v->number >= least)
            return ST_OK;
        return err_set(
            e, ST_USAGE, "--%s wants %s, not \"%s\"", o->name,
            least == 0 ? "an integer from 0" : "an integer", text);
    case OPTION_KIND_CHOICE:
        if (is_choice(o->choices, text))
            return ST_OK;
        return err_set(e, ST_USAGE, "--%s is one of %s, not \"%s\"", o->name, o->choices, text);
    case OPTION_KIND_FLAG:
    case OPTION_KIND_TEXT:
    case OPTION_KIND_SECRET:
        break;
    }
    if (!text[0])
        return err_set(e, ST_USAGE, "--%s is empty", o->name);
    if (o->kind == OPTION_KIND_SECRET)
        v->text = hide(a, text);
    return ST_OK;
}

/* The argument after argv[*i] is the option's value. */
static enum status
take_value(int argc, char *const *argv, int *i, struct args *a, enum option_id id, struct err *e)
{
    if (*i + 1 >= argc)
        return err_set(
            e, ST_USAGE, "--%s needs a value: --%s %s", options[id].name, options[id].name,
            options[id].value);
    return read_value(a, id, argv[++*i], e);
}

/* argv[*i] starts with "--": reads it, and the next one where that is its value. */
static enum status read_option(int argc, char *const *argv, int *i, struct args *a, struct err *e)
{
    char *name = argv[*i] + 2, *equals = strchr(name, '=');
    size_t n = equals ? (size_t)(equals - name) : strlen(name);
    enum option_id id = find_option(a->command, name, n);
    if (id == OPTION_COUNT)
        return unknown_option(a->command, name, n, e);
    if (options[id].kind == OPTION_KIND_FLAG) {
        if (equals)
            return err_set(e, ST_USAGE, "--%s takes no value", options[id].name);
        a->option[id].given = true;
        return ST_OK;
    }
    if (equals)
        return read_value(a, id, equals + 1, e);
    return take_value(argc, argv, i, a, id, e);
}

/* ---- the line ---- */

static enum status add_argument(struct args *a, const char *text, struct err *e)
{
    if (a->n_arguments == a->command->arguments_max)
        return err_set(
            e, ST_USAGE, "`snug %s` takes %s; \"%s\" is too much", a->command->name,
            a->command->arguments_max ? a->command->arguments : "no arguments", text);
    a->argument[a->n_arguments++] = text;
    return ST_OK;
}

static enum status find_command(const char *name, struct args *a, struct err *e)
{
    const char *names[sizeof commands / sizeof *commands], *near;
    a->command = command_find(name);
    if (a->command)
        return ST_OK;
    for (size_t i = 0; i < command_count(); i++)
        names[i] = commands[i].name;
    (void)err_set(
        e, ST_USAGE, name[0] == '-' ? "snug has no option \"%s\"" : "snug has no command \"%s\"",
        name);
    near = name[0] == '-' ? NULL : str_nearest(name, names, command_count());
    if (near)
        err_hint(e, "did you mean `snug %s`? `snug --help` lists the commands", near);
    else
        err_hint(e, "`snug --help` lists the commands");
    return ST_USAGE;
}

static enum status read_rest(int argc, char *const *argv, struct args *a, struct err *e)
{
    bool plain = false;
    for (int i = 2; i < argc; i++) {
        if (plain || argv[i][0] != '-' || !argv[i][1]) {
            TRY(add_argument(a, argv[i], e));
        } else if (strcmp(argv[i], "--") == 0) {
            if (has_word(a->command->options, "--", 2)) {
                a->rest = argv + i + 1;
                a->n_rest = argc - i - 1;
                return ST_OK;
            }
            plain = true;
        } else if (strcmp(argv[i], "-h") == 0) {
            a->help = true;
        } else if (strcmp(argv[i], "-o") == 0 && command_takes(a->command, OPTION_OUTPUT)) {
            TRY(take_value(argc, argv, &i, a, OPTION_OUTPUT, e));
        } else if (strcmp(argv[i], "-f") == 0 && command_takes(a->command, OPTION_FOLLOW)) {
            a->option[OPTION_FOLLOW].given = true;
        } else if (strcmp(argv[i], "-f") == 0 && command_takes(a->command, OPTION_FOREGROUND)) {
            a->option[OPTION_FOREGROUND].given = true;
        } else if (argv[i][1] == '-') {
            TRY(read_option(argc, argv, &i, a, e));
        } else {
            return unknown_option(a->command, argv[i] + 1, strlen(argv[i] + 1), e);
        }
    }
    return ST_OK;
}

/* Before anything else: a wrong line still gets its answer in the form that was asked for. */
bool args_want_json(int argc, char *const *argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--json") == 0)
            return true;
    return false;
}

enum status args_parse(int argc, char *const *argv, struct args *a, struct err *e)
{
    *a = (struct args){0};
    a->json = args_want_json(argc, argv);
    if (argc > 1 && strcmp(argv[1], "--json") == 0)
        return err_set(e, ST_USAGE, "--json stands after the command: snug COMMAND --json");
    if (argc < 2) {
        (void)err_set(e, ST_USAGE, "what shall snug do?");
        err_hint(e, "`snug --help` lists the commands");
        return ST_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        (strcmp(argv[1], "help") == 0 && argc == 2)) {
        a->help = true;
        return ST_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        a->version = true;
        return ST_OK;
    }
    if (strcmp(argv[1], "help") == 0) {
        a->help = true;
        return find_command(argv[2], a, e);
    }
    TRY(find_command(argv[1], a, e));
    TRY(read_rest(argc, argv, a, e));
    a->help |= a->option[OPTION_HELP].given;
    bool needs = a->command->arguments[0] && a->command->arguments[0] != '[';
    if (!a->help && needs && a->n_arguments == 0 && !a->rest)
        return err_set(e, ST_USAGE, "`snug %s` needs %s", a->command->name, a->command->arguments);
    return ST_OK;
}

void args_release(struct args *a)
{
    for (int i = 0; i < OPTION_COUNT; i++)
        vec_release(&a->option[i].list);
    for (size_t i = 0; i < a->hidden.n; i++) {
        memset(a->hidden.data[i], 0, strlen(a->hidden.data[i]));
        mem_free(a->hidden.data[i]);
    }
    vec_release(&a->hidden);
}

/* ---- help ---- */

void args_help(struct str *out)
{
    str_add(
        out, "snug - training that fits: the peak memory of a run is known before it starts\n\n"
             "Usage: snug COMMAND [OPTIONS]\n\nCommands:\n");
    for (size_t i = 0; i < command_count(); i++)
        if (*commands[i].about) /* without it: for snug itself */
            str_printf(out, "  %-10s %s\n", commands[i].name, commands[i].about);
    str_add(
        out,
        "\n`snug COMMAND --help` tells all about a command; `snug --version` which snug this is.\n"
        "Exit status: 0 done, 1 failed, 2 wrong use, 3 out of memory, 130 interrupted.\n"
        "Files live in $SNUG_HOME (default ~/.local/share/snug): models, images, data.\n"
        "\nFirst: snug plan examples/fashion-cnn/graph.json\n"
        "Then:  snug run examples/fashion-cnn/graph.json\n");
}

static void help_option(const struct command *c, enum option_id id, struct str *out)
{
    char left[64];
    const char *value = options[id].value, *about = options[id].about;
    for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++)
        if (meanings[i].id == id && strcmp(meanings[i].command, c->name) == 0) {
            value = meanings[i].value;
            about = meanings[i].about;
        }
    (void)snprintf(
        left, sizeof left, "--%s%s%s", options[id].name, value ? " " : "", value ? value : "");
    str_printf(out, "  %-22s %s\n", left, about);
}

void args_command_help(const struct command *c, struct str *out)
{
    str_printf(
        out, "snug %s - %s\n\nUsage: snug %s%s%s [OPTIONS]\n\n", c->name, c->about, c->name,
        c->arguments[0] ? " " : "", c->arguments);
    const char *examples = strstr(c->help, "Example");
    size_t prose = examples ? (size_t)(examples - c->help) : strlen(c->help);
    str_add_n(out, c->help, prose);
    str_add(out, "Options:\n");
    for (int i = 0; i < OPTION_COUNT; i++)
        if (command_takes(c, (enum option_id)i))
            help_option(c, (enum option_id)i, out);
    if (command_takes(c, OPTION_DUMP_AFTER)) {
        str_add(out, "\nPasses, in the order they run:\n");
        for (int i = 0; i < PASS_COUNT; i++)
            str_printf(out, "  %-22s %s\n", pass_name((enum pass)i), pass_about((enum pass)i));
    }
    if (examples)
        str_printf(out, "\n%s", examples);
}
