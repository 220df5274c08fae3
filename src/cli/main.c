/* main.c - the program `snug`: finds the command and runs it. */
#include "backends/backend.h"
#include "base/process.h"
#include "base/version.h"
#include "cli/answer.h"
#include "cli/args.h"
#include "cli/commands.h"

#include <signal.h>

/* Text, or a document with the text under `key`. */
static int show(const struct args *a, const char *key, struct str *text)
{
    int rc;
    if (a->json) {
        json_t *d = json_object();
        json_put_str(d, key, text->data);
        rc = answer_end(true, ST_OK, NULL, d);
    } else {
        rc = answer_text(text->data);
    }
    str_release(text);
    return rc;
}

static int show_help(const struct args *a)
{
    struct str out;
    str_init(&out);
    if (a->command)
        args_command_help(a->command, &out);
    else
        args_help(&out);
    return show(a, "help", &out);
}

static int show_version(const struct args *a)
{
    struct str out;
    str_init(&out);
    str_printf(&out, a->json ? "%s (%s)" : "snug %s (%s)\n", SNUG_VERSION, snug_commit());
    return show(a, "version", &out);
}

int main(int argc, char **argv)
{
    struct args a;
    struct err e = {0};
    int rc;
    cpu_wait_asleep(argv);
    process_title_init(argc, argv);
    (void)signal(SIGPIPE, SIG_IGN); /* a reader that leaves is a write error, not a death */
    answer_begin(args_want_json(argc, argv));
    enum status st = args_parse(argc, argv, &a, &e);
    if (st != ST_OK)
        rc = answer_end(a.json, st, &e, NULL);
    else if (a.help)
        rc = show_help(&a);
    else if (a.version)
        rc = show_version(&a);
    else if ((st = commands_begin(&a, &e)) != ST_OK)
        rc = answer_end(a.json, st, &e, NULL);
    else
        rc = a.command->run(&a);
    args_release(&a);
    return rc;
}
