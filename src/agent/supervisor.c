/* supervisor.c - the process that stands over a run: its loop, stopping it, the run's beginning and
 * end (supervisor.h). */
#define _GNU_SOURCE
#include "agent/supervisor_int.h"

#include "base/env.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)
enum {
    LEFT_OVER_S = 5, /* what the work leaves behind may take so long to end by itself */
    RESERVE_BYTES = 32 << 10
};

static int64_t setting(const char *name, int64_t fallback)
{
    const char *text = getenv(name);
    int64_t n;
    return text && str_to_i64(text, &n) && n >= 0 ? n : fallback;
}

/* ---- the beginning of a run ---- */

static void write_plain(const char *path, const char *text, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0) {
        (void)!write(fd, text, n);
        (void)close(fd);
    }
}

static void pid_write(const struct supervisor *s)
{
    char path[1200], text[64];
    int n = snprintf(text, sizeof text, "%d %lld\n", (int)s->self.pid, (long long)s->self.born);
    write_plain(run_folder_path(s->f.dir, "pid", path, sizeof path), text, (size_t)n);
}

/* Room on the disk that is given up for the last event. */
static void reserve_make(const struct supervisor *s)
{
    char path[1200], *zeros = mem_alloc(RESERVE_BYTES);
    write_plain(run_folder_path(s->f.dir, "reserve", path, sizeof path), zeros, RESERVE_BYTES);
    mem_free(zeros);
}

static void reserve_drop(const struct supervisor *s)
{
    char path[1200];
    (void)unlink(run_folder_path(s->f.dir, "reserve", path, sizeof path));
}

static json_t *started_payload(const struct supervisor *s)
{
    json_t *p = json_object(), *facts = json_object(), *aliases = json_object();
    const json_t *devices = s->f.o.devices;
    for (size_t i = 0; i < json_array_size(devices); i++) {
        char name[32];
        const char *device = json_string_value(json_array_get(devices, i));
        if (device && str_starts(device, "cuda")) {
            (void)snprintf(name, sizeof name, "cuda:%zu", i);
            json_put_str(aliases, name, device);
        }
    }
    json_put(facts, "visible_devices", devices ? json_deep_copy(devices) : json_array());
    json_put(facts, "device_aliases", aliases);
    json_put_i64(p, "pid", s->self.pid);
    json_put(p, "facts", facts);
    return p;
}

static void run_release(struct supervisor *s)
{
    journal_close(&s->j);
    lease_close(&s->lease);
    shared_close(&s->lock);
    run_folder_release(&s->f);
    s->on = false;
}

/* Lock, journal, `started`. ST_CONFLICT: there is nothing to start. */
static enum status run_claim(struct supervisor *s, const char *dir, struct err *e)
{
    char path[1200];
    struct err ignored;
    s->j.fd = s->lease.fd = s->lock.fd = -1;
    TRY(run_folder_read(&s->f, dir, e));
    TRY(shared_open(&s->lock, run_folder_path(dir, "lock", path, sizeof path), true, e));
    if (!shared_try(&s->lock, 0))
        return err_set(e, ST_BUSY, "run %.8s has a supervisor", s->f.o.run_id);
    TRY(journal_open(&s->j, dir, s->f.o.epoch, e));
    if (s->j.started && !s->j.ended)
        TRY(journal_append(
            &s->j, EVENT_ENDED, run_folder_end(CAUSE_CHILD_LOST, NULL, NULL, -1, 0), e));
    if (s->j.ended)
        return err_set(e, ST_CONFLICT, "run %.8s was started before", s->f.o.run_id);
    if (*s->f.lease && lease_open(&s->lease, s->f.lease, false, &ignored) != ST_OK)
        s->lease.fd = -1;
    pid_write(s);
    reserve_make(s);
    return journal_append(&s->j, EVENT_STARTED, started_payload(s), e);
}

static void run_ended(struct supervisor *s, json_t *end);

static void run_reset(struct supervisor *s)
{
    double limit_s = s->f.o.timeout_s;
    s->on = true;
    s->asked = 0;
    s->killing = s->timed_out = s->lapsed = false;
    s->kill_at_ns = s->look_again_ns = 0;
    s->time_up_ns = limit_s > 0 ? clock_ns() + (int64_t)(limit_s * (double)SECOND) : 0;
    s->end = (struct process_end){-1, 0};
    process_title("snug: run %.8s", s->f.o.run_id);
}

/* A run that ends before its work began. */
static void run_not_begun(struct supervisor *s, json_t *end)
{
    run_output_open(&s->out, -1, s->f.dir, 0, NULL);
    run_ended(s, end);
}

/* s->on afterwards: its work is on; else it is over already. */
static enum status run_begin(struct supervisor *s, const char *dir, struct err *e)
{
    enum cause why;
    struct err failed;
    enum status st = run_claim(s, dir, e);
    if (st != ST_OK) {
        run_release(s);
        return st;
    }
    run_reset(s);
    if (run_folder_stop_read(dir, &why)) { /* asked before there was anybody to ask */
        run_not_begun(s, run_folder_end(why, NULL, NULL, -1, 0));
        return ST_OK;
    }
    if (!s->work_lives && supervisor_work_start(s, &failed) != ST_OK) {
        run_not_begun(s, run_folder_end(CAUSE_COULD_NOT_START, failed.text, failed.hint, -1, 0));
        return ST_OK;
    }
    s->work_lives = s->tree_lives = true;
    bool command = strcmp(s->f.o.kind, "command") == 0;
    run_output_open(
        &s->out, s->pipe, dir, setting("SNUG_RUN_LOG_MAX_BYTES", 16 << 20), command ? &s->j : NULL);
    return ST_OK;
}

/* ---- the end of a run ---- */

/* A graph appends its events itself: where they end is looked up anew. */
static enum status ended_write(const struct supervisor *s, const json_t *end, struct err *e)
{
    struct journal j;
    enum status st = journal_open(&j, s->f.dir, s->f.o.epoch, e);
    if (st != ST_OK)
        return st;
    if (!j.ended)
        st = journal_append(&j, EVENT_ENDED, json_deep_copy(end), e);
    journal_close(&j);
    return st;
}

/* The last event, which gives the cards back: tried until there is room for it. Takes `end`. */
static void run_ended(struct supervisor *s, json_t *end)
{
    struct timespec second = {1, 0};
    struct err e;
    enum status st;
    run_output_close(&s->out, clock_ns());
    while ((st = ended_write(s, end, &e)) != ST_OK && st != ST_CONFLICT) {
        reserve_drop(s);
        if (ended_write(s, end, &e) == ST_OK)
            break;
        log_warn("run %.8s: %s; trying again", s->f.o.run_id, e.text);
        (void)nanosleep(&second, NULL);
    }
    json_decref(end);
    reserve_drop(s);
    run_release(s);
}

/* ---- a warm child's lines ---- */

static void line_send(int fd, json_t *line)
{
    char *text = json_text(line, false);
    struct str s;
    str_init(&s);
    str_add(&s, text);
    if (s.n == 0 || s.data[s.n - 1] != '\n')
        str_add(&s, "\n");
    if (fd >= 0)
        (void)!send(fd, s.data, s.n, MSG_NOSIGNAL);
    str_release(&s);
    mem_free(text);
    json_decref(line);
}

static void child_exit(struct supervisor *s)
{
    if (s->pair >= 0) {
        json_t *line = json_object();
        json_put_bool(line, "exit", true);
        line_send(s->pair, line);
        (void)shutdown(s->pair, SHUT_WR);
    }
}

/* {"run": DIR} of the agent; everything else goes on as it is. One that comes while a run is ending
 * waits for that. */
static void agent_line(struct supervisor *s, json_t *line)
{
    const char *dir = json_get_str(line, "run", NULL);
    struct err e;
    if (dir && s->on && s->next) {
        log_warn("a warm child was given a third run");
        return;
    }
    if (dir && s->on) {
        s->next = json_incref(line);
        return;
    }
    if (dir && run_begin(s, dir, &e) != ST_OK) {
        log_warn("%s", e.text);
        return;
    }
    line_send(s->pair, json_incref(line));
}

static void begin_next(struct supervisor *s)
{
    json_t *line = s->next;
    s->next = NULL;
    if (line)
        agent_line(s, line);
    json_decref(line);
}

static void work_line(struct supervisor *s, json_t *line)
{
    const char *dir = json_get_str(line, "ended", NULL);
    if (dir && s->on && strcmp(dir, s->f.dir) == 0) {
        s->end = (struct process_end){(int)json_get_i64(line, "exit_code", -1), 0};
        run_output_read(&s->out, clock_ns());
        run_ended(s, supervisor_end(s));
        if (s->control < 0)
            child_exit(s);
    }
    line_send(s->control, json_incref(line));
    if (!s->on)
        begin_next(s);
}

/* Takes the whole lines of a socket; false: its end. */
static bool lines_read(
    struct supervisor *s, int fd, struct str *rest,
    void (*line_of)(struct supervisor *s, json_t *line))
{
    char buf[4096];
    ssize_t n = recv(fd, buf, sizeof buf, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return true;
    if (n <= 0 || rest->n > (1 << 20))
        return false;
    str_add_n(rest, buf, (size_t)n);
    for (char *end; (end = memchr(rest->data, '\n', rest->n)) != NULL;) {
        size_t length = (size_t)(end - rest->data);
        struct err ignored;
        json_t *doc = NULL;
        if (json_parse(rest->data, length, "line", &doc, &ignored) == ST_OK)
            line_of(s, doc);
        json_decref(doc);
        memmove(rest->data, end + 1, rest->n - length);
        rest->n -= length + 1;
    }
    return true;
}

/* ---- stopping ---- */

static int64_t sooner(int64_t a, int64_t b) /* 0: never */
{
    return a == 0 || (b != 0 && b < a) ? b : a;
}

static int64_t grace_ns(void)
{
    return setting("SNUG_STOP_GRACE_S", 30) * SECOND;
}

static bool is_command(const struct supervisor *s)
{
    return strcmp(s->f.o.kind, "command") == 0;
}

static void ask_to_stop(struct supervisor *s)
{
    if (s->work_lives)
        (void)process_signal(&s->work, SIGTERM);
    if (is_command(s) || s->timed_out)
        s->kill_at_ns = sooner(s->kill_at_ns, clock_ns() + grace_ns());
}

static void signal_came(struct supervisor *s, int signal)
{
    if (signal == SIGCHLD)
        return;
    if (!s->on) { /* a warm child with nothing to do */
        child_exit(s);
        s->kill_at_ns = sooner(s->kill_at_ns, clock_ns() + LEFT_OVER_S * SECOND);
        return;
    }
    s->asked++;
    if (signal == SIGINT || s->asked > 1)
        s->killing = true;
    else
        ask_to_stop(s);
}

static void look_at_clocks(struct supervisor *s, int64_t now)
{
    struct err ignored;
    if (s->on && s->time_up_ns && now >= s->time_up_ns && s->asked == 0 && !s->timed_out) {
        s->timed_out = true;
        (void)!run_folder_stop_write(s->f.dir, CAUSE_TIMED_OUT, &ignored);
        ask_to_stop(s);
    }
    if (s->on && s->lease.fd >= 0 && now >= s->look_again_ns) {
        int64_t until = lease_until_ns(&s->lease);
        if (until && now > until && !s->lapsed) {
            s->lapsed = s->killing = true;
            (void)!run_folder_stop_write(s->f.dir, CAUSE_AGENT_LOST, &ignored);
        }
        s->look_again_ns = until > now && until < now + SECOND ? until + 1 : now + SECOND;
    }
    if (s->kill_at_ns && now >= s->kill_at_ns)
        s->killing = true;
}

/* Takes the statuses of what has ended. Everything of the tree is a child in the end: this process
 * is its subreaper, so no children left means that nothing is left. */
static void reap(struct supervisor *s)
{
    int status;
    for (;;) {
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid < 0 && errno == EINTR)
            continue;
        if (pid <= 0) {
            s->tree_lives = pid == 0;
            return;
        }
        if (s->work_lives && pid == s->work.pid) {
            s->work_lives = false;
            s->end = process_end_of(status);
            s->oom_after = process_oom_kills();
        }
    }
}

/* The work is gone and left processes behind. */
static void end_the_rest(struct supervisor *s)
{
    struct process_tree tree = {.root = s->self};
    (void)process_tree_signal(&tree, SIGTERM);
    s->kill_at_ns = sooner(s->kill_at_ns, clock_ns() + LEFT_OVER_S * SECOND);
}

static void kill_tree(struct supervisor *s)
{
    struct process_tree tree = {.root = s->self};
    size_t left = process_tree_kill(&tree, 2000);
    if (left > 0)
        log_warn("%zu processes of run %.8s do not end", left, s->on ? s->f.o.run_id : "-");
}

/* ---- the loop ---- */

static int wait_ms(const struct supervisor *s, int64_t now)
{
    int64_t next = now + 3600 * SECOND;
    if (s->on && s->time_up_ns && !s->timed_out)
        next = sooner(next, s->time_up_ns);
    if (s->on && s->lease.fd >= 0)
        next = sooner(next, s->look_again_ns ? s->look_again_ns : now);
    next = sooner(next, s->kill_at_ns);
    if (s->on && run_output_due_ns(&s->out) < next)
        next = run_output_due_ns(&s->out);
    if (s->killing)
        next = sooner(next, now + SECOND);
    return next <= now ? 0 : (int)((next - now + 999999) / 1000000);
}

static void listen_once(struct supervisor *s)
{
    struct signalfd_siginfo info;
    struct pollfd f[] = {
        {.fd = s->signals, .events = POLLIN},
        {.fd = s->pipe, .events = POLLIN},
        {.fd = s->pair, .events = POLLIN},
        {.fd = s->control, .events = POLLIN},
    };
    if (poll(f, 4, wait_ms(s, clock_ns())) < 0)
        return;
    while (f[0].revents && read(s->signals, &info, sizeof info) == (ssize_t)sizeof info)
        signal_came(s, (int)info.ssi_signo);
    if (f[1].revents && s->on) {
        run_output_read(&s->out, clock_ns());
        if (s->out.pipe < 0) {
            (void)close(s->pipe);
            s->pipe = -1;
        }
    } else if (f[1].revents) { /* of a warm child between runs */
        char nowhere[4096];
        if (read(s->pipe, nowhere, sizeof nowhere) == 0) {
            (void)close(s->pipe);
            s->pipe = -1;
        }
    }
    if (f[2].revents && !lines_read(s, s->pair, &s->from_work, work_line)) {
        (void)close(s->pair);
        s->pair = -1;
    }
    if (f[3].revents && !lines_read(s, s->control, &s->from_agent, agent_line)) {
        (void)close(s->control);
        s->control = -1;
        if (!s->on)
            child_exit(s);
    }
}

/* Until the work, and everything it left, is gone. */
static void stand_over(struct supervisor *s)
{
    bool rest_asked = false;
    while (s->tree_lives) {
        listen_once(s);
        bool lived = s->work_lives;
        reap(s);
        look_at_clocks(s, clock_ns());
        if (s->on && run_output_due_ns(&s->out) <= clock_ns())
            run_output_flush(&s->out, clock_ns(), false);
        if (!s->work_lives && s->tree_lives && (lived || !rest_asked)) {
            rest_asked = true;
            end_the_rest(s);
        }
        if (s->killing && s->tree_lives) {
            kill_tree(s);
            reap(s);
        }
    }
    if (s->on)
        run_ended(s, supervisor_end(s));
}

static enum status signals_take(struct supervisor *s, struct err *e)
{
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    (void)signal(SIGHUP, SIG_IGN);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN);
    s->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return s->signals < 0 ? err_errno(e, "could not listen for signals") : ST_OK;
}

int supervisor_run(const struct supervisor_options *o)
{
    struct supervisor s = {
        .opt = o,
        .self = process_self(),
        .pair = -1,
        .pipe = -1,
        .control = o->control_fd,
        .warm = o->control_fd >= 0,
    };
    struct err e;
    str_init(&s.from_work);
    str_init(&s.from_agent);
    process_subreaper();
    enum status st = signals_take(&s, &e);
    if (st == ST_OK)
        st = run_begin(&s, o->dir, &e);
    if (st == ST_OK)
        stand_over(&s);
    else if (st != ST_CONFLICT)
        log_warn("%s: %s", o->dir, e.text);
    int fds[] = {s.signals, s.pair, s.pipe, s.control};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] > 2)
            (void)close(fds[i]);
    str_release(&s.from_work);
    str_release(&s.from_agent);
    return st == ST_OK || st == ST_CONFLICT ? 0 : 1;
}
