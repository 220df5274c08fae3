/* args_test.c - command lines, right and wrong; the bars and charts of the bill. */
#include "base/document.h"
#include "cli/answer.h"
#include "cli/args.h"
#include "cli/bill.h"
#include "test.h"

#include <string.h>

/* Parses the words of a line, split at single blanks. */
static enum status parse(const char *line, struct args *a, struct err *e)
{
    static char words[512];
    static char *argv[32];
    int argc = 0;
    (void)snprintf(words, sizeof words, "snug %s", line);
    for (char *w = strtok(words, " "); w && argc < 31; w = strtok(NULL, " "))
        argv[argc++] = w;
    argv[argc] = NULL;
    *e = (struct err){0};
    return args_parse(argc, argv, a, e);
}

TEST(args_run_line, "options stand before or after the graph, with = or a blank")
{
    struct args a;
    struct err e;
    CHECK_OK(
        parse(
            "run --seed=-7 g.json --memory-gib 1.5 --set A.b=1 --set=C.d=x=y --local --json", &a,
            &e),
        &e);
    CHECK_STR(a.command->name, "run");
    CHECK_STR(a.argument[0], "g.json");
    CHECK(a.json && a.option[OPTION_LOCAL].given && a.option[OPTION_SEED].given);
    CHECK_EQ(a.option[OPTION_SEED].number, -7);
    CHECK_EQ(a.option[OPTION_MEMORY_GIB].number, 1610612736);
    CHECK_EQ(a.option[OPTION_SET].list.n, 2);
    CHECK_STR(a.option[OPTION_SET].list.data[1], "C.d=x=y");
    args_release(&a);
}

TEST(args_help_asked, "help needs no graph, in every spelling")
{
    static const char *const lines[] = {"plan --help", "plan -h", "help plan", "plan g --help"};
    struct args a;
    struct err e;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        CHECK_OK(parse(lines[i], &a, &e), &e);
        CHECK(a.help);
        CHECK_STR(a.command->name, "plan");
        args_release(&a);
    }
    CHECK_OK(parse("--help", &a, &e), &e);
    CHECK(a.help && !a.command);
    CHECK_OK(parse("--version", &a, &e), &e);
    CHECK(a.version);
}

TEST(args_other_line, "what follows -- is another program's line, to the letter")
{
    struct args a;
    struct err e;
    CHECK_OK(parse("run --target gpu --memory-gib 6 -- python -c x --json --help", &a, &e), &e);
    CHECK_EQ(a.n_rest, 5);
    CHECK_STR(a.rest[0], "python");
    CHECK_STR(a.rest[4], "--help");
    CHECK(!a.json && !a.help && a.n_arguments == 0);
    args_release(&a);
}

TEST(args_secrets, "H2: a key given on the command line does not stay where ps shows it")
{
    char snug[] = "snug", runs[] = "runs", key[] = "--key", line[] = "snk_secret";
    char *argv[] = {snug, runs, key, line, NULL};
    struct args a;
    struct err e = {0};
    CHECK_OK(args_parse(4, argv, &a, &e), &e);
    CHECK_STR(a.option[OPTION_KEY].text, "snk_secret");
    CHECK_STR(line, "**********");
    args_release(&a);
}

TEST(args_times_and_lists, "times have units, lists keep their order")
{
    struct args a;
    struct err e;
    CHECK_OK(parse("run g --timeout 1.5h --env A=1 --env B=2 --set x.y=3", &a, &e), &e);
    CHECK_NEAR(a.option[OPTION_TIMEOUT].seconds, 5400, 0);
    CHECK_EQ(a.option[OPTION_ENV].list.n, 2);
    CHECK_STR(a.option[OPTION_ENV].list.data[1], "B=2");
    CHECK_EQ(a.option[OPTION_SET].list.n, 1);
    args_release(&a);
}

static const struct {
    const char *line, *text, *hint;
} wrong[] = {
    {"", "what shall snug do", "--help"},
    {"rum g.json", "no command \"rum\"", "snug run"},
    {"xyzzyxyzzy", "no command \"xyzzyxyzzy\"", "--help"},
    {"--frobnicate", "no option \"--frobnicate\"", "--help"},
    {"--json run g", "after the command", ""},
    {"run", "needs GRAPH", ""},
    {"run --json", "needs GRAPH", ""},
    {"run a b", "\"b\" is too much", ""},
    {"devices here", "no arguments", ""},
    {"run g --sed 1", "no option --sed", "--seed"},
    {"plan g --resume auto", "no option --resume", ""},
    {"run g --seed", "needs a value", ""},
    {"run g --seed 1.5", "wants an integer", ""},
    {"run g --seed 99999999999999999999", "wants an integer", ""},
    {"run g --threads -1", "an integer from 0", ""},
    {"run g --memory-gib 0", "above 0", ""},
    {"run g --memory-gib nan", "above 0", ""},
    {"run g --memory-gib 1e300", "above 0", ""},
    {"run g --memory static", "planned|dynamic", ""},
    {"run g --json=1", "takes no value", ""},
    {"run g --resume=", "is empty", ""},
    {"run g -x", "no option --x", ""},
    {"run g --timeout soon", "wants a time", ""},
    {"run g --timeout 5w", "wants a time", ""},
    {"runs --limit -3", "an integer from 0", ""},
};

TEST(args_wrong_use, "wrong use is exit status 2 and one line that names what is wrong")
{
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct args a;
        struct err e;
        CHECK_EQ(parse(wrong[i].line, &a, &e), ST_USAGE);
        CHECK_EQ(status_exit(e.status), 2);
        if (!strstr(e.text, wrong[i].text) || strchr(e.text, '\n'))
            test_fail(__FILE__, __LINE__, "`snug %s`: %s", wrong[i].line, e.text);
        if (!strstr(e.hint, wrong[i].hint))
            test_fail(__FILE__, __LINE__, "`snug %s`: hint %s", wrong[i].line, e.hint);
        args_release(&a);
    }
}

TEST(args_json_of_wrong_line, "a wrong line still says that JSON was asked for")
{
    struct args a;
    struct err e;
    CHECK_EQ(parse("run g --nonsense --json", &a, &e), ST_USAGE);
    CHECK(a.json);
    args_release(&a);
    CHECK_EQ(parse("plan g -- --json", &a, &e), ST_USAGE);
    CHECK(!a.json);
    args_release(&a);
}

TEST(args_help_complete, "the help of each command shows all its options and an example")
{
    for (size_t i = 0; i < command_count(); i++) {
        struct str s;
        str_init(&s);
        args_command_help(command_at(i), &s);
        if (strcmp(command_at(i)->name, "plan") == 0)
            CHECK(strstr(s.data, "--dump-after") && strstr(s.data, "\n  recompute "));
        CHECK(strstr(s.data, "--json") && strstr(s.data, "--help") && strstr(s.data, "Example"));
        CHECK(strstr(s.data, command_at(i)->about) != NULL);
        str_release(&s);
    }
}

TEST(args_help_meanings, "an option that means something else to a command is explained as that")
{
    struct str s;
    str_init(&s);
    args_command_help(command_find("replay"), &s);
    CHECK(strstr(s.data, "--device N ") && strstr(s.data, "one device of the snapshot"));
    CHECK(!strstr(s.data, "where to run") && strstr(s.data, "what the allocator may reserve"));
    str_release(&s);
}

TEST(answer_shapes, "the document has schema, status and error, whatever happened")
{
    struct err e = {0};
    (void)err_set(&e, ST_OOM, "too big \xff here");
    err_node(&e, "train", "TrainingLoop");
    json_t *d = document_of_status(ST_OOM, &e, NULL), *error = json_object_get(d, "error");
    CHECK_EQ(json_get_i64(d, "schema", 0), 1);
    CHECK_STR(json_get_str(d, "status", ""), "failed");
    CHECK_STR(json_get_str(error, "code", ""), "out_of_memory");
    CHECK_STR(json_get_str(error, "message", ""), "too big ? here");
    CHECK_STR(json_get_str(error, "node_id", ""), "train");
    CHECK(json_is_null(json_object_get(error, "hint")));
    json_decref(d);
    json_t *content = json_object();
    json_put_i64(content, "answer", 42);
    d = document_of_status(ST_OK, &e, content);
    CHECK(json_is_null(json_object_get(d, "error")));
    CHECK_EQ(json_get_i64(d, "answer", 0), 42);
    json_decref(d);
    d = document_of_status(ST_INTERRUPTED, &e, NULL);
    CHECK_STR(json_get_str(d, "status", ""), "interrupted");
    json_decref(d);
}

TEST(bill_bars, "a bar is as long as its share, in eighths; what is there is seen")
{
    struct str s;
    str_init(&s);
    bill_bar(&s, 1, 1, 4);
    CHECK_STR(s.data, "████");
    str_clear(&s);
    bill_bar(&s, 3, 16, 4);
    CHECK_STR(s.data, "▊");
    str_clear(&s);
    bill_bar(&s, 1, 1e9, 4);
    CHECK_STR(s.data, "▏");
    str_clear(&s);
    bill_bar(&s, 0, 0, 4);
    CHECK_STR(s.data, "");
    str_release(&s);
}

TEST(bill_charts, "a chart keeps its peak however many operators fold into a column")
{
    static int64_t value[1000];
    struct str s;
    value[501] = 1024;
    str_init(&s);
    bill_chart(&s, value, 1000, 10, 2);
    CHECK(strstr(s.data, " KiB ┤     █") != NULL);
    str_clear(&s);
    bill_chart(&s, value, 0, 10, 2);
    bill_chart(&s, value, 1, 10, 2);
    CHECK(strstr(s.data, "└") != NULL);
    str_release(&s);
}
