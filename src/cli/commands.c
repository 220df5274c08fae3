/* commands.c - what several commands share: from options to the runner's words. */
#define _GNU_SOURCE /* memfd_create */
#include "cli/commands.h"

#include "cli/answer.h"
#include "plan/oom.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

enum { STDIN_BYTES_MAX = 64 << 20 };
static const char stdin_folder[] = "/proc/self/fd/";

/* ---- a graph from stdin ---- */

static bool takes_graph(const struct args *a)
{
    return a->command && strstr(a->command->arguments, "GRAPH") && a->n_arguments > 0 &&
           strcmp(a->argument[0], "-") == 0;
}

static enum status copy_stdin(int to, struct err *e)
{
    char buf[65536];
    int64_t all = 0;
    for (;;) {
        ssize_t n = read(STDIN_FILENO, buf, sizeof buf);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(e, "could not read stdin");
        if (n == 0)
            return ST_OK;
        all += n;
        if (all > STDIN_BYTES_MAX)
            return err_set(e, ST_TOO_LARGE, "stdin has more than 64 MiB");
        if (write(to, buf, (size_t)n) != n)
            return err_errno(e, "could not keep what stdin has");
    }
}

/* Read again by whoever plans changes of it. */
static enum status stdin_as_file(struct args *a, struct err *e)
{
    static char path[64];
    int fd = memfd_create("graph", MFD_CLOEXEC);
    if (fd < 0)
        return err_errno(e, "could not keep what stdin has");
    (void)snprintf(path, sizeof path, "%s%d", stdin_folder, fd);
    a->argument[0] = path;
    return copy_stdin(fd, e);
}

/* ---- a time limit ---- */

static void on_time_up(int signal_number)
{
    (void)signal_number;
    answer_now(ST_BUSY, "there is no answer within --timeout", NULL);
}

static void begin_timeout(double seconds)
{
    struct sigaction act = {.sa_handler = on_time_up};
    double whole = seconds < 1e8 ? seconds : 1e8;
    struct itimerval t = {.it_value.tv_sec = (time_t)whole};
    t.it_value.tv_usec = (suseconds_t)((whole - (double)t.it_value.tv_sec) * 1e6);
    (void)sigemptyset(&act.sa_mask);
    (void)sigaction(SIGALRM, &act, NULL);
    (void)setitimer(ITIMER_REAL, &t, NULL);
}

enum status commands_begin(struct args *a, struct err *e)
{
    static const char *const timed[] = {"plan", "fit", "estimate"};
    const struct option_value *timeout = &a->option[OPTION_TIMEOUT];
    for (size_t i = 0; timeout->given && i < sizeof timed / sizeof *timed; i++)
        if (strcmp(a->command->name, timed[i]) == 0)
            begin_timeout(timeout->seconds);
    return takes_graph(a) ? stdin_as_file(a, e) : ST_OK;
}

/* ---- options ---- */

struct run_options run_options_of(const struct args *a)
{
    const struct option_value *v = a->option;
    struct run_options o = {
        .device = v[OPTION_DEVICE].text,
        .has_seed = v[OPTION_SEED].given,
        .seed = v[OPTION_SEED].number,
        .budget_bytes = v[OPTION_MEMORY_GIB].number,
        .storage = EXEC_PLANNED,
        .threads = v[OPTION_THREADS].number > 4096 ? 4096 : (int)v[OPTION_THREADS].number,
        .resume = v[OPTION_RESUME].text,
        .dump_after = v[OPTION_DUMP_AFTER].text,
        .profile = v[OPTION_PROFILE].given,
        .memory_history = v[OPTION_MEMORY_HISTORY].text,
        .memory_history_max = v[OPTION_MEMORY_HISTORY_MAX].number,
        .memory_steps = v[OPTION_MEMORY_STEPS].given,
        .memory_summary = v[OPTION_MEMORY_SUMMARY].given,
    };
    if (a->n_arguments > 0 && str_starts(a->argument[0], stdin_folder))
        o.graph_dir = "."; /* it came from no folder */
    if (v[OPTION_MEMORY].given && strcmp(v[OPTION_MEMORY].text, "dynamic") == 0)
        o.storage = EXEC_DYNAMIC;
    return o;
}

enum status graph_of(const struct args *a, struct graph **out, struct err *e)
{
    return graph_prepare(
        a->argument[0], a->option[OPTION_SET].list.data, a->option[OPTION_SET].list.n, out, e);
}

void explain_oom(const struct args *a, const struct run *r, json_t *d, struct err *e)
{
    struct fit_options o = {
        .path = a->argument[0],
        .sets = a->option[OPTION_SET].list.data,
        .n_sets = a->option[OPTION_SET].list.n,
        .run = run_options_of(a)};
    o.run.dump_after = NULL; /* of the run itself, not of what would help */
    json_t *oom = oom_explain(&o, r, e);
    if (d && oom)
        json_put(d, "oom", json_incref(oom));
    json_decref(oom);
}
