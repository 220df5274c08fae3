/* test.c - runs registered tests, each in a child process with a time limit. */
#include "test.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { EXIT_FAILED = 1, EXIT_SKIPPED = 77 };

static struct test *tests;
static char dir[256];

void test_register(struct test *t)
{
    t->next = tests;
    tests = t;
}

void test_fail(const char *file, int line, const char *fmt, ...)
{
    va_list ap;
    (void)printf("  %s:%d: ", file, line);
    va_start(ap, fmt);
    (void)vprintf(fmt, ap);
    va_end(ap);
    (void)printf(" (seed %llu)\n", (unsigned long long)test_seed());
    (void)fflush(stdout);
    _exit(EXIT_FAILED);
}

void test_skip(const char *why)
{
    (void)printf("  skipped: %s\n", why);
    (void)fflush(stdout);
    _exit(EXIT_SKIPPED);
}

uint64_t test_seed(void)
{
    const char *s = getenv("SNUG_TEST_SEED");
    return s ? strtoull(s, NULL, 10) : 20261129;
}

const char *test_dir(void)
{
    return dir;
}

static void remove_dir(void)
{
    char command[300];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", dir);
    if (system(command) != 0)
        (void)printf("  could not remove %s\n", dir);
}

/* Exit status of the test, or 128 + signal. */
static int run_child(const struct test *t)
{
    pid_t pid = fork();
    if (pid == 0) {
        (void)alarm((unsigned)t->seconds_max * (getenv("SNUG_TEST_SLOW") ? 10u : 1u));
        t->run();
        (void)fflush(stdout);
        exit(0); /* not _exit: leak checkers run at exit */
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) < 0)
        return EXIT_FAILED;
    if (WIFSIGNALED(status)) {
        (void)printf(
            "  ended by signal %d%s\n", WTERMSIG(status),
            WTERMSIG(status) == SIGALRM ? " (time limit)" : "");
        return 128 + WTERMSIG(status);
    }
    return WEXITSTATUS(status);
}

static int by_place(const void *a, const void *b)
{
    const struct test *x = *(struct test *const *)a, *y = *(struct test *const *)b;
    int c = strcmp(x->file, y->file);
    return c ? c : strcmp(x->name, y->name);
}

int main(int argc, char **argv)
{
    int passed = 0, failed = 0, skipped = 0, n = 0;
    const char *want = argc > 1 ? argv[1] : "";
    struct test *list[4096];
    for (struct test *t = tests; t && n < 4096; t = t->next)
        list[n++] = t;
    qsort(list, (size_t)n, sizeof *list, by_place);
    for (int i = 0; i < n; i++) {
        const struct test *t = list[i];
        if (strcmp(want, "-l") == 0) {
            (void)printf("%s\t%s\n", t->name, t->about);
            continue;
        }
        if (!strstr(t->name, want) && !strstr(t->about, want))
            continue;
        (void)snprintf(
            dir, sizeof dir, "%s/snug-test-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
        if (!mkdtemp(dir))
            return 1;
        (void)printf("%s: %s\n", t->name, t->about);
        (void)fflush(stdout);
        int rc = run_child(t);
        remove_dir();
        if (rc == 0) {
            passed++;
        } else if (rc == EXIT_SKIPPED) {
            skipped++;
        } else {
            failed++;
            (void)printf("FAILED %s\n", t->name);
        }
    }
    if (strcmp(want, "-l") == 0)
        return 0;
    (void)printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed != 0;
}
