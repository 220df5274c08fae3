/* agent.c - the worker as a whole: its name, its beginning and its end (agent.h). */
#define _GNU_SOURCE
#include "agent/agent_int.h"

#include "base/config.h"
#include "base/env.h"
#include "base/log.h"
#include "wire/machine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)
enum { LEAVE_S = 45 };

/* ---- names and files ---- */

bool agent_name_valid(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n <= 64 && *name != '.' && *name != '-' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == n;
}

const char *agent_path(const char *name, const char *suffix, char *buf, size_t cap)
{
    (void)snprintf(buf, cap, "%s/agents/%s.%s", snug_home(), name, suffix);
    return buf;
}

void agent_name_default(const char *given, bool builtin, char out[65])
{
    char host[256] = "";
    if (given)
        (void)snprintf(out, 65, "%.64s", given);
    else if (builtin)
        (void)snprintf(out, 65, "local");
    else {
        (void)gethostname(host, sizeof host - 1);
        (void)snprintf(out, 65, "%.64s", host);
        for (char *c = out; *c; c++) /* what may be in a host's name and not in ours */
            if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", *c))
                *c = '-';
        if (!agent_name_valid(out))
            (void)snprintf(out, 65, "worker");
    }
}

/* ---- the server ---- */

static bool quits(void *agent)
{
    return ((struct agent *)agent)->quit;
}

enum status agent_client(struct agent *a, struct client **out, struct err *e)
{
    char secret[sizeof a->secret];
    (void)pthread_mutex_lock(&a->lock);
    memcpy(secret, a->secret, sizeof secret);
    (void)pthread_mutex_unlock(&a->lock);
    struct client_options o = {
        .server = a->o->server,
        .secret = *secret ? secret : NULL,
        .own = a->o->builtin,
        .stop = quits,
        .ctx = a,
    };
    return client_open(&o, out, e);
}

void agent_heard(struct agent *a, int64_t sent_ns)
{
    /* A long poll is answered long after it was sent, when a later message has renewed already. */
    if (a->lease_s <= 0 || sent_ns <= a->heard_ns)
        return;
    a->heard_ns = sent_ns;
    lease_renew(&a->lease, sent_ns + (int64_t)(a->lease_s * (double)SECOND));
}

/* ---- beginning ---- */

static enum status name_take(struct agent *a, struct err *e)
{
    char path[1100];
    if (!agent_name_valid(a->name))
        return err_set(
            e, ST_INVALID, "\"%.80s\" cannot name a worker: letters, digits, '.', '_', '-'",
            a->name);
    (void)snprintf(path, sizeof path, "%s/agents", snug_home());
    TRY(dir_make(path, e));
    (void)agent_path(a->name, "lock", path, sizeof path);
    TRY(shared_open(&a->held, path, true, e));
    /* One that is leaving gets a moment. */
    if (shared_lock(&a->held, 0, a->o->builtin ? 5000 : 1000, e) == ST_OK) {
        char text[64];
        struct process self = process_self();
        int n = snprintf(text, sizeof text, "%d %lld\n", (int)self.pid, (long long)self.born);
        TRY(shared_clear(&a->held, 0, e));
        process_outlive();
        return shared_write(&a->held, 0, text, (size_t)n, e);
    }
    enum status st = err_set(e, ST_CONFLICT, "an agent named %s is running here", a->name);
    err_hint(e, "`snug agent stop --name %s` ends it.", a->name);
    return st;
}

static bool commands_allowed(const struct agent *a)
{
    const char *text = getenv("SNUG_ALLOW_COMMANDS");
    json_t *config = NULL;
    struct err ignored;
    if (a->o->builtin) /* its server decides */
        return true;
    if (text)
        return str_eq(text, "1") || str_eq(text, "true") || str_eq(text, "yes");
    bool allowed =
        config_read(&config, &ignored) == ST_OK && json_get_bool(config, "allow_commands", false);
    json_decref(config);
    return allowed;
}

static enum status instance_make(char out[33], struct err *e)
{
    unsigned char bytes[16];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return err_errno(e, "could not get random numbers");
    for (int i = 0; i < 16; i++)
        (void)snprintf(out + (size_t)2 * (size_t)i, 3, "%02x", bytes[i]);
    return ST_OK;
}

/* The devices that --devices names are there. */
static enum status devices_check(struct agent *a, struct err *e)
{
    char name[32];
    for (const char *at = a->o->devices; at && *at; at += strcspn(at, ",")) {
        at += strspn(at, ", ");
        size_t n = strcspn(at, ", ");
        (void)snprintf(name, sizeof name, "%.*s", n < sizeof name ? (int)n : 0, at);
        if (n && !agent_device(a, name))
            return err_set(e, ST_NOT_FOUND, "this machine has no device \"%.*s\"", (int)n, at);
        at += n;
    }
    return ST_OK;
}

static enum status prepare(struct agent *a, struct err *e)
{
    char home[PATH_MAX]; /* whole: runs have working folders of their own */
    TRY(dir_make(snug_home(), e));
    if (!realpath(snug_home(), home))
        return err_errno(e, "cannot find \"%s\"", snug_home());
    if (snprintf(a->runs_dir, sizeof a->runs_dir, "%s/runs", home) >= (int)sizeof a->runs_dir)
        return err_set(e, ST_INVALID, "the path of SNUG_HOME is too long");
    (void)snprintf(a->lease_path, sizeof a->lease_path, "%.900s/agents/%s.lease", home, a->name);
    (void)agent_path(a->name, "state", a->state_path, sizeof a->state_path);
    TRY(dir_make(a->runs_dir, e));
    TRY(lease_open(&a->lease, a->lease_path, true, e));
    TRY(instance_make(a->instance, e));
    TRY(machine_secret(a->machine, e));
    TRY(devices_open(&a->devices, e));
    TRY(devices_check(a, e));
    a->allow_commands = commands_allowed(a);
    a->inotify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    a->kick = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (a->kick < 0)
        return err_errno(e, "could not make an event");
    if (a->inotify < 0)
        log_warn("journals are looked at once a second: %s", strerror(errno));
    return ST_OK;
}

/* ---- ending ---- */

static int signals_open(void)
{
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)sigprocmask(SIG_BLOCK, &set, NULL); /* and so in every thread after it */
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static bool all_told(struct agent *a)
{
    (void)pthread_mutex_lock(&a->lock);
    bool done = true;
    for (size_t i = 0; i < a->runs.n; i++)
        done = done && (a->runs.data[i]->over || (a->refused && !a->runs.data[i]->alive));
    (void)pthread_mutex_unlock(&a->lock);
    return done;
}

static void leave(struct agent *a, int signals)
{
    struct signalfd_siginfo info;
    struct timespec pause = {0, 50000000};
    int64_t until = clock_ns() + LEAVE_S * SECOND;
    bool harder = false;
    a->leaving = true;
    log_info(all_told(a) ? "leaving" : "leaving: runs are stopped");
    (void)pthread_mutex_lock(&a->lock);
    agent_runs_stop_all(a, a->exit_cause);
    (void)pthread_mutex_unlock(&a->lock);
    while (!all_told(a) && clock_ns() < until) {
        if (!harder && read(signals, &info, sizeof info) == (ssize_t)sizeof info) {
            harder = true;
            until = clock_ns() + 10 * SECOND;
            (void)pthread_mutex_lock(&a->lock);
            agent_runs_kill_all(a, a->exit_cause);
            (void)pthread_mutex_unlock(&a->lock);
        }
        (void)nanosleep(&pause, NULL);
    }
}

static void say_goodbye(struct agent *a)
{
    struct client *c = NULL;
    struct err ignored;
    json_t *body = json_object();
    json_put_str(body, "session", a->session);
    if (*a->session && agent_client(a, &c, &ignored) == ST_OK)
        (void)!client_post(c, "/api/agent/leave", body, 3, NULL, &ignored);
    client_close(c);
    json_decref(body);
}

/* Whether standard input has come to its end: what started this agent is gone. */
static bool leash_is_gone(const struct agent *a)
{
    char byte;
    struct pollfd f = {.fd = 0, .events = POLLIN};
    return a->o->leash && poll(&f, 1, 0) > 0 && read(0, &byte, 1) == 0;
}

static void wait_for_end(struct agent *a, int signals)
{
    struct signalfd_siginfo info;
    struct pollfd f[] = {
        {.fd = signals, .events = POLLIN}, {.fd = a->o->leash ? 0 : -1, .events = POLLIN}};
    bool gone = false;
    while (read(signals, &info, sizeof info) != (ssize_t)sizeof info && !gone) {
        (void)poll(f, 2, 1000);
        gone = leash_is_gone(a);
    }
    if (gone) {
        log_info("the connection that held this agent is gone; its runs go on");
    } else {
        leave(a, signals);
        say_goodbye(a);
    }
    a->quit = true;
    agent_kick(a);
}

static enum status work(struct agent *a, struct err *e)
{
    pthread_t orders, report;
    int signals = signals_open();
    if (signals < 0)
        return err_errno(e, "could not listen for signals");
    (void)pthread_mutex_lock(&a->lock);
    agent_runs_adopt(a);
    (void)pthread_mutex_unlock(&a->lock);
    if (pthread_create(&orders, NULL, agent_orders_thread, a) != 0)
        return err_set(e, ST_IO, "could not start a thread");
    if (pthread_create(&report, NULL, agent_report_thread, a) != 0)
        return err_set(e, ST_IO, "could not start a thread");
    wait_for_end(a, signals);
    (void)pthread_join(orders, NULL);
    (void)pthread_join(report, NULL);
    (void)close(signals);
    return ST_OK;
}

/* ---- from outside ---- */

static struct process agent_process(const char *name)
{
    char path[1100], *text = NULL;
    size_t n;
    long long pid = 0, born = 0;
    struct shared lock;
    struct err ignored;
    struct process p = {0};
    (void)agent_path(name, "lock", path, sizeof path);
    if (shared_open(&lock, path, false, &ignored) != ST_OK)
        return p;
    if (shared_locked(&lock, 0, 1) && file_read(path, 100, &text, &n, &ignored) == ST_OK &&
        sscanf(text, "%lld %lld", &pid, &born) == 2)
        p = (struct process){(pid_t)pid, born};
    mem_free(text);
    shared_close(&lock);
    return process_alive(&p) ? p : (struct process){0};
}

enum status agent_status(const char *name, struct agent_state *out, struct err *e)
{
    char path[1100];
    json_t *doc = NULL;
    struct err ignored;
    *out = (struct agent_state){0};
    if (!agent_name_valid(name))
        return err_set(e, ST_INVALID, "\"%.80s\" cannot name a worker", name);
    (void)snprintf(out->name, sizeof out->name, "%s", name);
    out->pid = agent_process(name).pid;
    (void)agent_path(name, "state", path, sizeof path);
    if (out->pid && json_read_file(path, 1 << 16, &doc, &ignored) == ST_OK) {
        (void)snprintf(out->server, sizeof out->server, "%s", json_get_str(doc, "server", ""));
        out->runs = json_get_i64(doc, "runs", 0);
    }
    json_decref(doc);
    return ST_OK;
}

enum status agent_stop(const char *name, int wait_ms, struct err *e)
{
    struct process_end ignored;
    struct process p = agent_process(name);
    if (p.pid == 0)
        return err_set(e, ST_NOT_FOUND, "no agent named %s runs here", name);
    (void)process_signal(&p, SIGTERM);
    return process_wait(&p, wait_ms, &ignored)
               ? ST_OK
               : err_set(e, ST_BUSY, "agent %s still stops its runs", name);
}

/* The folders of runs that this worker accepted. */
static enum status forget_runs(const char *name, struct err *e)
{
    char dir[1000];
    struct dirent *entry;
    enum status st = ST_OK;
    (void)snprintf(dir, sizeof dir, "%s/runs", snug_home());
    DIR *d = opendir(dir);
    while (d && st == ST_OK && (entry = readdir(d))) {
        static const char *const files[] = {"done.json", "start.json"};
        char run[1300], path[1400];
        bool ours = false;
        (void)snprintf(run, sizeof run, "%s/%s", dir, entry->d_name);
        for (int i = 0; i < 2 && run_id_is_valid(entry->d_name) && !ours; i++) {
            json_t *doc;
            struct err ignored;
            if (json_read_file(
                    run_folder_path(run, files[i], path, sizeof path), 256 << 20, &doc, &ignored) !=
                ST_OK)
                continue;
            ours = str_eq(json_get_str(doc, "worker", ""), name);
            json_decref(doc);
        }
        if (ours && run_folder_locked(run))
            st = err_set(e, ST_BUSY, "run %.8s still lives", entry->d_name);
        else if (ours)
            st = run_folder_remove(run, e);
    }
    if (d)
        (void)closedir(d);
    return st;
}

enum status agent_forget(const char *name, struct err *e)
{
    static const char *const suffixes[] = {"json", "lease", "state", "log", "log.1", "lock"};
    char path[1100];
    if (!agent_name_valid(name))
        return err_set(e, ST_INVALID, "\"%.80s\" cannot name a worker", name);
    if (agent_process(name).pid)
        return err_set(e, ST_CONFLICT, "agent %s runs: stop it first", name);
    TRY(forget_runs(name, e));
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++)
        (void)unlink(agent_path(name, suffixes[i], path, sizeof path));
    return ST_OK;
}

enum status agent_run(const struct agent_options *o, struct err *e)
{
    struct agent a = {
        .o = o,
        .inotify = -1,
        .kick = -1,
        .exit_cause = CAUSE_AGENT_STOPPED,
        .held = {.fd = -1},
        .lease = {.fd = -1},
        .answers = json_array()};
    enum status st;
    bool opened = false;
    (void)pthread_mutex_init(&a.lock, NULL);
    agent_name_default(o->name, o->builtin, a.name);
    (void)snprintf(a.known_as, sizeof a.known_as, "%.64s", o->known_as ? o->known_as : a.name);
    TRY_OUT(name_take(&a, e));
    TRY_OUT(spawner_open(&a.spawner, o->graph, e)); /* before anything secret is read */
    (void)snprintf(a.secret, sizeof a.secret, "%s", o->secret ? o->secret : "");
    opened = true;
    TRY_OUT(prepare(&a, e));
    st = work(&a, e);
    if (a.refused) {
        st = err_set(e, ST_DENIED, "%s", a.why.text);
        err_hint(e, "A new join command comes from `snug workers add`.");
    }
out:
    spawner_close(a.spawner);
    agent_warms_close(&a);
    agent_runs_release(&a);
    if (opened)
        devices_close(&a.devices);
    if (a.inotify >= 0)
        (void)close(a.inotify);
    if (a.kick >= 0)
        (void)close(a.kick);
    json_decref(a.answers);
    lease_close(&a.lease);
    shared_close(&a.held);
    (void)pthread_mutex_destroy(&a.lock);
    return st;
}
