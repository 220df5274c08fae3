/* server_builtin.c - the server's own worker: a process of its own, so that runs outlive a server
 * that is killed. One that lives from the server before holds its lock; ours then ends at once, and
 * is tried again at longer and longer intervals. */
#include "server/server_int.h"

#include "base/env.h"
#include "base/log.h"
#include "base/mem.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

enum { AGAIN_MS_MIN = 200, AGAIN_MS_MAX = 10000, WELL_S = 30, END_WAIT_MS = 8000 };

/* Variables that hold secrets of the server, or would send the worker elsewhere. */
static bool is_kept_back(const char *variable)
{
    static const char *const names[] = {
        "SNUG_KEY=", "SNUG_SERVER=", "SNUG_WEBHOOK_URL=", "SNUG_TLS_KEY=", "SNUG_TLS_CERTIFICATE="};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (str_starts(variable, names[i]))
            return true;
    return false;
}

char **child_environment(void)
{
    size_t n = 0, kept = 0;
    while (environ[n])
        n++;
    char **list = mem_alloc((n + 1) * sizeof *list);
    for (size_t i = 0; i < n; i++)
        if (!is_kept_back(environ[i]))
            list[kept++] = environ[i];
    return list;
}

static int open_log(const struct server *s)
{
    char path[1100];
    struct err ignored = {0};
    (void)snprintf(path, sizeof path, "%s/agents", s->config->home);
    if (dir_make(path, &ignored) != ST_OK)
        return -1;
    (void)snprintf(path, sizeof path, "%s/agents/local.log", s->config->home);
    return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
}

static enum status builtin_spawn(struct server *s, struct err *e)
{
    char self[PATH_MAX], agent[] = "agent", start[] = "start", builtin[] = "--builtin";
    char *argv[] = {self, agent, start, builtin, NULL};
    process_own_program(self);
    int log = open_log(s);
    char **environment = child_environment();
    struct process_spec spec = {
        .argv = argv,
        .environment = environment,
        .in = -1,
        .out = log,
        .err = log,
        .session = true,
        .dies_with_us = true}; /* until it has the name: process_outlive */
    enum status st = process_spawn(&spec, &s->inside->builtin.process, e);
    mem_free(environment);
    if (log >= 0)
        (void)close(log);
    return st;
}

/* After an end: the next try comes later the more often it failed. */
static void builtin_ended(struct builtin *b, int64_t now_ns)
{
    if (now_ns - b->began_ns > (int64_t)WELL_S * 1000000000)
        b->failures = 0;
    int64_t ms = AGAIN_MS_MIN << (b->failures < 6 ? b->failures : 6);
    b->failures++;
    b->again_ns = now_ns + (ms < AGAIN_MS_MAX ? ms : AGAIN_MS_MAX) * 1000000;
    b->process.pid = 0;
}

void builtin_watch(struct server *s)
{
    struct builtin *b = &s->inside->builtin;
    struct process_end end;
    struct err e = {0};
    int64_t now_ns = clock_ns();
    if (!s->config->builtin_worker)
        return;
    if (b->process.pid && process_wait(&b->process, 0, &end)) {
        log_line(LOG_DEBUG, "the built-in worker ended (exit status %d)", end.exit_code);
        builtin_ended(b, now_ns);
    }
    if (b->process.pid || now_ns < b->again_ns)
        return;
    b->began_ns = now_ns;
    if (builtin_spawn(s, &e) != ST_OK) {
        log_warn("the built-in worker: %s", e.text);
        builtin_ended(b, now_ns);
    }
}

/* Who holds the lock of the worker's name: also one that a server before this one started. */
static struct process builtin_holder(const struct server *s)
{
    char path[1100];
    struct process p = {0};
    long long pid = 0, born = 0;
    (void)snprintf(path, sizeof path, "%s/agents/local.lock", s->config->home);
    FILE *in = fopen(path, "re");
    if (in && fscanf(in, "%lld %lld", &pid, &born) == 2 && pid > 0)
        p = (struct process){.pid = (pid_t)pid, .born = born};
    if (in)
        (void)fclose(in);
    return p;
}

static void end_worker(const struct process *p)
{
    struct process_end end;
    if (p->pid && process_signal(p, SIGTERM) && !process_wait(p, END_WAIT_MS, &end))
        log_warn("the built-in worker (process %d) still works", (int)p->pid);
}

void builtin_stop(struct server *s)
{
    if (!s->config->builtin_worker)
        return;
    struct builtin *b = &s->inside->builtin;
    end_worker(&b->process); /* it may be waiting for the name: then the other still holds it */
    struct process holder = builtin_holder(s);
    if (holder.pid != b->process.pid)
        end_worker(&holder);
    b->process.pid = 0;
}
