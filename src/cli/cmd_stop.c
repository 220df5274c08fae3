/* cmd_stop.c - `snug stop`: asks the server of this SNUG_HOME to stop, and waits. */
#include "base/env.h"
#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/server_process.h"

#include <signal.h>
#include <time.h>

static const double wait_s_default = 60;

/* The process is gone, or the time is up. */
static bool gone(const struct process *p, double wait_s)
{
    struct timespec piece = {.tv_nsec = 50000000};
    int64_t until = clock_ns() + (int64_t)(wait_s * 1e9);
    while (process_alive(p)) {
        if (clock_ns() >= until)
            return false;
        (void)nanosleep(&piece, NULL);
    }
    return true;
}

static enum status stop(const struct args *a, struct server_process *s, struct err *e)
{
    const struct option_value *timeout = &a->option[OPTION_TIMEOUT];
    double wait_s = timeout->given ? timeout->seconds : wait_s_default;
    TRY(server_process_find(s, e));
    if (!a->json)
        (void)fprintf(stderr, "asking the server at %s to stop\n", s->url);
    if (!process_signal(&s->process, SIGTERM) && process_alive(&s->process))
        return err_set(
            e, ST_DENIED, "the server (process %d) belongs to somebody else", (int)s->process.pid);
    if (gone(&s->process, wait_s))
        return ST_OK;
    (void)err_set(
        e, ST_BUSY, "the server (process %d) has not ended within %g s", (int)s->process.pid,
        wait_s);
    err_hint(e, "its runs may be writing their checkpoints; `snug stop` again waits on");
    return ST_BUSY;
}

int cmd_stop(const struct args *a)
{
    struct err e = {0};
    struct server_process s;
    json_t *d = NULL;
    enum status st = stop(a, &s, &e);
    if (st == ST_OK && a->json)
        d = json_pack("{s:s, s:i}", "url", s.url, "pid", (int)s.process.pid);
    if (st == ST_OK && !a->json)
        (void)printf("the server at %s has stopped\n", s.url);
    return answer_end(a->json, st, &e, d);
}
