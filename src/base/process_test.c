/* process_test.c - starting, knowing, waiting for and ending other processes.
 */
#include "base/process.h"

#include "base/mem.h"
#include "test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct process start(const char *script, const struct process_spec *like)
{
    char shell[] = "sh", flag[] = "-c", *text = mem_strdup(script);
    char *argv[] = {shell, flag, text, NULL};
    struct process_spec s = like ? *like : (struct process_spec){.in = -1, .out = -1, .err = -1};
    struct process p;
    struct err e;
    s.argv = argv;
    CHECK_OK(process_spawn(&s, &p, &e), &e);
    mem_free(text);
    return p;
}

TEST(spawn_and_wait, "a program's status and its signal come back")
{
    struct process_end end;
    struct process p = start("exit 3", NULL);
    CHECK(process_wait(&p, 5000, &end));
    CHECK(end.exit_code == 3 && end.signal == 0);
    p = start("kill -TERM $$", NULL);
    CHECK(process_wait(&p, 5000, &end));
    CHECK(end.exit_code == -1 && end.signal == SIGTERM);
}

TEST(wait_has_a_limit, "a wait ends with its time, and a signal reaches that process")
{
    struct process_end end;
    struct process p = start("sleep 100", NULL);
    CHECK(!process_wait(&p, 30, &end));
    CHECK(process_alive(&p));
    struct process other = {p.pid, p.born + 1};
    CHECK(!process_alive(&other));
    CHECK(!process_signal(&other, SIGKILL));
    CHECK(process_signal(&p, SIGKILL));
    CHECK(process_wait(&p, 5000, &end));
    CHECK(!process_alive(&p));
    CHECK(!process_signal(&p, SIGKILL));
}

TEST(
    spawn_refusals,
    "what cannot be executed, and a folder that is not there, are errors with a reason")
{
    char missing[] = "no-such-program-at-all", folder[] = "/etc", shell[] = "/bin/sh";
    char *argv[] = {missing, NULL};
    struct process_spec s = {.argv = argv, .in = -1, .out = -1, .err = -1};
    struct process p;
    struct err e;
    CHECK_EQ(process_spawn(&s, &p, &e), ST_NOT_FOUND);
    CHECK(strstr(e.text, "no-such-program-at-all"));
    argv[0] = folder;
    CHECK_EQ(process_spawn(&s, &p, &e), ST_DENIED);
    argv[0] = shell;
    s.dir = "/no/such/folder";
    CHECK_EQ(process_spawn(&s, &p, &e), ST_INVALID);
    CHECK_EQ(waitpid(-1, NULL, WNOHANG), -1); /* nothing left to be reaped */
}

TEST(descriptors_close, "H2: a program gets its three descriptors and those it is given, no other")
{
    int pipe_ends[2], kept = open("/dev/null", O_RDONLY), secret = open("/dev/null", O_RDONLY);
    char text[256] = {0}, expect[64];
    struct process_end end;
    CHECK(pipe(pipe_ends) == 0);
    struct process_spec s = {.in = -1, .out = pipe_ends[1], .err = -1, .keep = &kept, .n_keep = 1};
    struct process p = start("ls /proc/self/fd | tr '\\n' ' '", &s);
    CHECK(process_wait(&p, 5000, &end));
    CHECK(read(pipe_ends[0], text, sizeof text - 1) > 0);
    (void)snprintf(expect, sizeof expect, "0 1 2 %d ", kept);
    CHECK(strncmp(text, expect, strlen(expect)) == 0);
    CHECK_EQ(strlen(text), strlen(expect) + 2); /* and the folder that ls reads */
    (void)close(secret);
}

static int forked_work(void *ctx)
{
    return *(int *)ctx == 7 && fcntl(9, F_GETFD) < 0 ? 11 : 12;
}

TEST(fork_runs, "H2: a fork goes on in a function, closed off in the same way")
{
    int number = 7;
    struct process_spec s = {.in = -1, .out = -1, .err = -1, .group = true};
    struct process p;
    struct process_end end;
    struct err e;
    CHECK_EQ(dup2(2, 9), 9);
    CHECK_OK(process_fork(&s, forked_work, &number, &p, &e), &e);
    CHECK(process_wait(&p, 5000, &end));
    CHECK_EQ(end.exit_code, 11);
}

TEST(trees, "promise-P9: a tree is found by descent, session and environment, and killed whole")
{
    process_subreaper();
    CHECK(setenv("SNUG_TEST_MARK", "yes-1", 1) == 0);
    struct process_spec s = {.in = -1, .out = -1, .err = -1, .session = true};
    struct process p = start("(setsid sleep 50 &) ; sleep 50 & wait", &s);
    CHECK(unsetenv("SNUG_TEST_MARK") == 0);
    struct process_tree descent = {.root = process_self()}, session = {.session = p},
                        mark = {.variable = "SNUG_TEST_MARK=yes-1"},
                        other = {.variable = "SNUG_TEST_MARK=yes"};
    for (int i = 0; i < 200 && process_tree_list(&descent, NULL, 0) < 3; i++)
        (void)usleep(10000);
    CHECK_EQ(process_tree_list(&descent, NULL, 0), 3);
    CHECK_EQ(process_tree_list(&session, NULL, 0), 2);
    CHECK_EQ(process_tree_list(&mark, NULL, 0), 3);
    CHECK_EQ(process_tree_list(&other, NULL, 0), 0);
    CHECK_EQ(process_tree_kill(&session, 5000), 0);
    CHECK_EQ(process_tree_list(&mark, NULL, 0), 1);
    CHECK_EQ(process_tree_kill(&mark, 5000), 0);
    CHECK_EQ(process_tree_list(&descent, NULL, 0), 0);
}

TEST(title_hides, "H2: the arguments of a program can be overwritten")
{
    char words[] = "snug\0agent\0--token=secret";
    char *argv[] = {words, words + 5, words + 11, NULL};
    size_t n = sizeof words;
    process_title_init(3, argv);
    process_title("snug: agent %s", "x");
    CHECK_STR(words, "snug: agent x");
    for (size_t i = strlen(words); i < n; i++)
        CHECK_EQ(words[i], 0);
    char name[32] = "";
    FILE *in = fopen("/proc/self/comm", "r");
    CHECK(in && fgets(name, sizeof name, in));
    (void)fclose(in);
    CHECK_STR(name, "snug: agent x\n");
}
