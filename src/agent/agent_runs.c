/* agent_runs.c - the runs of an agent: accepted, started, adopted, stopped, forgotten. */
#define _GNU_SOURCE
#include "agent/agent_int.h"

#include "base/env.h"
#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)
enum { KILL_HARDER_S = 15, FORGOTTEN_KEPT = 1000 };

/* ---- the table ---- */

struct agent_run *agent_run_find(struct agent *a, const char *id)
{
    for (size_t i = 0; i < a->runs.n; i++)
        if (strcmp(a->runs.data[i]->id, id) == 0)
            return a->runs.data[i];
    return NULL;
}

static void watch(struct agent *a, struct agent_run *r)
{
    char path[1200];
    (void)run_folder_path(r->dir, "events.jsonl", path, sizeof path);
    r->watch = a->inotify >= 0 ? inotify_add_watch(a->inotify, path, IN_MODIFY) : -1;
    r->fresh = true;
}

static struct agent_run *run_add(struct agent *a, const char *dir, const struct start_order *o)
{
    struct agent_run *r = mem_alloc(sizeof *r);
    (void)snprintf(r->id, sizeof r->id, "%s", o->run_id);
    (void)snprintf(r->dir, sizeof r->dir, "%s", dir);
    (void)snprintf(r->tab, sizeof r->tab, "%s", o->tab);
    r->epoch = o->epoch;
    r->devices = o->devices ? json_deep_copy(o->devices) : json_array();
    r->budget_bytes = o->budget_bytes;
    r->reader.fd = -1;
    r->watch = -1;
    vec_push(&a->runs, r);
    return r;
}

static void run_free(struct agent *a, struct agent_run *r)
{
    if (r->watch >= 0)
        (void)inotify_rm_watch(a->inotify, r->watch);
    journal_read_close(&r->reader);
    json_decref(r->devices);
    json_decref(r->said_end);
    mem_free(r);
}

static void run_remove(struct agent *a, struct agent_run *r)
{
    for (size_t i = 0; i < a->runs.n; i++)
        if (a->runs.data[i] == r)
            a->runs.data[i] = a->runs.data[--a->runs.n];
    run_free(a, r);
}

void agent_runs_release(struct agent *a)
{
    for (size_t i = 0; i < a->runs.n; i++)
        run_free(a, a->runs.data[i]);
    vec_release(&a->runs);
}

size_t agent_runs_alive(const struct agent *a)
{
    size_t n = 0;
    for (size_t i = 0; i < a->runs.n; i++)
        n += a->runs.data[i]->alive || a->runs.data[i]->waits;
    return n;
}

/* ---- ends that the agent itself gives a run ---- */

/* In the journal, or, where the disk does not take it, in memory until the server has it. */
static void end_here(struct agent_run *r, enum cause why, const char *text)
{
    struct run_folder f;
    struct err e;
    enum status st = run_folder_read(&f, r->dir, &e);
    if (st == ST_OK) {
        st = run_folder_bury(&f, why, text, &e);
        run_folder_release(&f);
    }
    if (st == ST_BUSY) { /* the tree does not die: looked at again */
        log_warn("%s", e.text);
        return;
    }
    if (st != ST_OK) {
        log_warn("run %.8s: %s", r->id, e.text);
        if (!r->said_end)
            r->said_end = run_folder_end(why, text, NULL, -1, 0);
    }
    r->alive = r->waits = false;
    r->fresh = true;
}

/* ---- starting ---- */

void agent_run_spawn(struct agent *a, struct agent_run *r)
{
    struct run_folder f;
    struct err e;
    int theirs = -1;
    enum status st = ST_OK;
    r->alive = true;
    r->waits = false;
    if (*r->tab && run_folder_read(&f, r->dir, &e) == ST_OK) {
        bool given = agent_warm_take(a, &f, &theirs, &r->supervisor);
        run_folder_release(&f);
        if (given)
            return;
    }
    st = spawner_start(a->spawner, r->dir, theirs, &r->supervisor, &e);
    if (theirs >= 0)
        (void)close(theirs);
    if (st != ST_OK)
        end_here(r, CAUSE_COULD_NOT_START, e.text);
    else if (*r->tab)
        agent_warm_started(a, r->id, &r->supervisor);
}

/* Whether this agent can do what the order asks; else the cause and a text why not. */
static bool may_start(struct agent *a, const struct start_order *o, enum cause *why, struct err *e)
{
    *why = CAUSE_COULD_NOT_START;
    if (strcmp(o->kind, "command") == 0 && !a->allow_commands) {
        (void)err_set(
            e, ST_DENIED, "worker %s does not run commands: allow_commands is not set there",
            a->name);
        return false;
    }
    for (size_t i = 0; i < json_array_size(o->devices); i++) {
        const char *name = json_string_value(json_array_get(o->devices, i));
        const char *uuid = json_string_value(json_array_get(o->uuids, i));
        const struct device *d = name ? agent_device(a, name) : NULL;
        if (!d || (uuid && *uuid && strcmp(uuid, d->uuid) != 0)) {
            (void)err_set(
                e, ST_NOT_FOUND, "worker %s has no %s any more%s%s", a->name,
                name ? name : "such device", uuid && *uuid ? " with UUID " : "",
                uuid && *uuid ? uuid : "");
            return false;
        }
        if (o->budget_bytes > 0 && d->kind != DEVICE_CPU && d->capacity_bytes <= 0) {
            *why = CAUSE_CANNOT_CAP;
            (void)err_set(
                e, ST_UNSUPPORTED,
                "worker %s cannot hold the run to its budget: it does not know how large %s is",
                a->name, name);
            return false;
        }
    }
    return true;
}

/* The folder of an earlier attempt that still lives: nothing of it may be left. */
static void clear_earlier(struct agent *a, struct agent_run *r)
{
    struct process_end ignored;
    struct process p = run_folder_supervisor(r->dir);
    log_warn("run %.8s is ordered again while its attempt %lld lives", r->id, (long long)r->epoch);
    (void)process_signal(&p, SIGINT);
    (void)process_wait(&p, 10000, &ignored);
    (void)process_signal(&p, SIGKILL);
    (void)process_wait(&p, 2000, &ignored);
    end_here(r, CAUSE_AGENT_LOST, NULL);
    run_remove(a, r);
}

static void accept_start(struct agent *a, const json_t *body, const struct start_order *o)
{
    char dir[1000];
    enum run_folder_seen seen = FOLDER_NEW;
    enum cause why;
    struct err e;
    (void)snprintf(dir, sizeof dir, "%s/%s", a->runs_dir, o->run_id);
    struct agent_run *r = agent_run_find(a, o->run_id);
    if (r && r->epoch >= o->epoch)
        return; /* seen: a success without effect */
    if (r && (r->alive || run_folder_locked(dir)))
        clear_earlier(a, r);
    else if (r)
        run_remove(a, r);
    enum status st = run_folder_accept(dir, body, a->name, a->lease_path, &seen, &e);
    if (seen == FOLDER_SEEN)
        return;
    r = run_add(a, dir, o);
    if (st != ST_OK) {
        log_warn("run %.8s: %s", r->id, e.text);
        r->said_end = run_folder_end(CAUSE_COULD_NOT_START, e.text, NULL, -1, 0);
        r->fresh = true;
        return;
    }
    watch(a, r);
    if (!may_start(a, o, &why, &e))
        end_here(r, why, e.text);
    else
        agent_run_spawn(a, r);
    a->taken++;
}

void agent_run_start(struct agent *a, const struct order *order)
{
    struct start_order o;
    struct err e;
    enum status st = wire_read(&wire_start_order, order->body, &o, &e);
    if (st == ST_OK && (!run_id_is_valid(o.run_id) || o.epoch <= 0))
        st = err_set(&e, ST_INVALID, "it names no run");
    if (st != ST_OK)
        log_warn("order to start: %s", e.text);
    else if (!a->leaving && !(a->o->one_shot && a->taken > 0 && !agent_run_find(a, o.run_id)))
        accept_start(a, order->body, &o);
}

/* ---- stopping ---- */

/* A signal to the run's supervisor; false: it is not there. */
static bool tell(struct agent_run *r, int signal)
{
    struct process p = run_folder_supervisor(r->dir);
    if (p.pid == 0)
        p = r->supervisor;
    return p.pid > 0 && process_signal(&p, signal);
}

static void ask(struct agent_run *r, enum cause why, int signal)
{
    struct err e;
    if (r->waits) {
        end_here(r, why, NULL);
        return;
    }
    if (!r->alive)
        return;
    /* Before the signal, so that whoever reads it knows why; and where the supervisor has not
     * begun, it finds it there. */
    if (run_folder_stop_write(r->dir, why, &e) != ST_OK)
        log_warn("run %.8s: %s", r->id, e.text);
    (void)tell(r, signal);
}

void agent_run_stop(struct agent *a, const char *id, int64_t epoch, enum cause why)
{
    struct agent_run *r = agent_run_find(a, id);
    if (r && r->epoch == epoch)
        ask(r, why, SIGTERM);
}

void agent_run_kill(struct agent *a, struct agent_run *r, enum cause why)
{
    (void)a;
    if (r->kill_since_ns == 0)
        r->kill_since_ns = clock_ns();
    ask(r, why, SIGINT);
}

void agent_runs_stop_all(struct agent *a, enum cause why)
{
    for (size_t i = 0; i < a->runs.n; i++)
        ask(a->runs.data[i], why, SIGTERM);
}

void agent_runs_kill_all(struct agent *a, enum cause why)
{
    for (size_t i = 0; i < a->runs.n; i++)
        agent_run_kill(a, a->runs.data[i], why);
}

/* ---- forgetting ---- */

static void forget_now(struct agent *a, struct agent_run *r)
{
    struct err e;
    if (run_folder_forget(r->dir, &e) != ST_OK && dir_exists(r->dir))
        log_warn("run %.8s: %s", r->id, e.text);
    a->forgotten++;
    run_remove(a, r);
}

void agent_run_forget(struct agent *a, struct agent_run *r)
{
    r->forget = true;
    if (a->o->one_shot && r->end_sent) /* this order may be ahead of the report's reply */
        (void)kill(getpid(), SIGTERM);
    if (r->waits) { /* it never began */
        r->waits = false;
        forget_now(a, r);
    } else if (r->alive && !r->end_sent) { /* an end that the server has may be ahead of its reply
                                            */
        agent_run_kill(a, r, CAUSE_AGENT_LOST);
    } else if (!run_folder_locked(r->dir)) {
        forget_now(a, r);
    }
}

/* ---- what is kept of those that are over ---- */

struct old_run {
    int64_t time_ns;
    char name[WIRE_RUN_ID + 1];
};

static int newest_first(const void *a, const void *b)
{
    const struct old_run *x = a, *y = b;
    return (x->time_ns < y->time_ns) - (x->time_ns > y->time_ns);
}

static size_t runs_kept(void)
{
    const char *text = getenv("SNUG_AGENT_RUNS_KEPT");
    int64_t n;
    return text && str_to_i64(text, &n) && n >= 0 ? (size_t)n : FORGOTTEN_KEPT;
}

/* Of the runs that are over and forgotten the newest stay, with their logs and what they recorded.
 */
static void drop_old(struct agent *a)
{
    VEC(struct old_run) list = {0};
    struct dirent *entry;
    DIR *d = opendir(a->runs_dir);
    while (d && (entry = readdir(d))) {
        char path[1300];
        struct stat st;
        struct old_run one = {0};
        if (!run_id_is_valid(entry->d_name))
            continue;
        (void)snprintf(path, sizeof path, "%s/%s/done.json", a->runs_dir, entry->d_name);
        if (stat(path, &st) != 0)
            continue;
        one.time_ns =
            (int64_t)st.st_ctim.tv_sec * SECOND + st.st_ctim.tv_nsec; /* of its new name */
        memcpy(one.name, entry->d_name, sizeof one.name);
        vec_push(&list, one);
    }
    if (d)
        (void)closedir(d);
    if (list.n)
        qsort(list.data, list.n, sizeof *list.data, newest_first);
    for (size_t i = runs_kept(); i < list.n; i++) {
        char path[1300];
        struct err e;
        (void)snprintf(path, sizeof path, "%s/%s", a->runs_dir, list.data[i].name);
        if (run_folder_remove(path, &e) != ST_OK)
            log_warn("%s", e.text);
    }
    vec_release(&list);
    a->forgotten = 0;
}

/* ---- looking after them ---- */

/* Its supervisor is gone. Without `ended` that was a kill, or it never began. */
static void vanished(struct agent *a, struct agent_run *r)
{
    struct process_end ignored;
    struct journal j;
    struct err e;
    if (r->supervisor.pid > 0)
        (void)process_wait(&r->supervisor, 0, &ignored); /* where it is our child */
    r->fresh = true;
    if (journal_open(&j, r->dir, r->epoch, &e) != ST_OK) {
        end_here(r, CAUSE_CHILD_LOST, e.text);
        return;
    }
    bool began = j.started, ended = j.ended;
    journal_close(&j);
    if (ended) {
        r->alive = false;
        agent_warm_ended(a, r->id);
    } else if (!began && !r->starts_again) {
        r->starts_again = true;
        agent_run_spawn(a, r);
    } else {
        end_here(
            r, began ? CAUSE_CHILD_LOST : CAUSE_COULD_NOT_START,
            began ? NULL : "its supervisor could not be started");
    }
}

static void kill_harder(struct agent_run *r)
{
    if (r->kill_since_ns == 0 || clock_ns() - r->kill_since_ns < KILL_HARDER_S * SECOND)
        return;
    (void)tell(r, SIGCONT);
    (void)tell(r, SIGKILL); /* what is left is killed where it is buried */
}

void agent_runs_look(struct agent *a)
{
    for (size_t i = 0; i < a->runs.n; i++) {
        struct agent_run *r = a->runs.data[i];
        if (r->alive && !run_folder_locked(r->dir) && !process_alive(&r->supervisor)) {
            /* Between two looks it may have taken the lock and gone. */
            vanished(a, r);
        } else if (r->alive) {
            kill_harder(r);
        }
    }
    for (size_t i = a->runs.n; i-- > 0;) {
        struct agent_run *r = a->runs.data[i];
        if (r->forget && !r->alive && !run_folder_locked(r->dir))
            forget_now(a, r);
    }
    if (a->forgotten > runs_kept() / 5)
        drop_old(a);
}

/* ---- adoption ---- */

static void adopt(struct agent *a, const char *dir)
{
    struct run_folder f;
    struct journal j;
    struct err e;
    if (run_folder_read(&f, dir, &e) != ST_OK || strcmp(f.worker, a->name) != 0) {
        run_folder_release(&f);
        return;
    }
    struct agent_run *r = run_add(a, dir, &f.o);
    r->supervisor = run_folder_supervisor(dir);
    watch(a, r);
    if (run_folder_locked(dir)) {
        r->alive = true;
    } else if (journal_open(&j, dir, f.o.epoch, &e) != ST_OK) {
        end_here(r, CAUSE_CHILD_LOST, e.text);
    } else {
        bool began = j.started, ended = j.ended;
        journal_close(&j);
        r->waits = !began;
        if (began && !ended) {
            r->alive = true; /* until its tree is gone */
            end_here(r, CAUSE_CHILD_LOST, NULL);
        }
    }
    run_folder_release(&f);
}

void agent_runs_adopt(struct agent *a)
{
    struct dirent *entry;
    DIR *d = opendir(a->runs_dir);
    while (d && (entry = readdir(d))) {
        char path[1200];
        if (!run_id_is_valid(entry->d_name))
            continue;
        (void)snprintf(path, sizeof path, "%s/%s", a->runs_dir, entry->d_name);
        adopt(a, path);
    }
    if (d)
        (void)closedir(d);
    drop_old(a);
}
