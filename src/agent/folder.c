/* folder.c - run folders on the worker's disk (folder.h). */
#define _GNU_SOURCE
#include "agent/folder.h"

#include "base/env.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/shared.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { START_BYTES_MAX = 256 << 20 };

const char *run_folder_path(const char *dir, const char *name, char *buf, size_t cap)
{
    (void)snprintf(buf, cap, "%s/%s", dir, name);
    return buf;
}

enum status run_folder_read(struct run_folder *f, const char *dir, struct err *e)
{
    char path[1200];
    *f = (struct run_folder){0};
    if (strlen(dir) >= sizeof f->dir)
        return err_set(e, ST_INVALID, "the path of a run folder is too long");
    memcpy(f->dir, dir, strlen(dir) + 1);
    TRY(json_read_file(
        run_folder_path(dir, "start.json", path, sizeof path), START_BYTES_MAX, &f->doc, e));
    enum status st = wire_read(&wire_start_order, f->doc, &f->o, e);
    if (st == ST_OK && !run_id_is_valid(f->o.run_id))
        st = err_set(e, ST_CORRUPT, "\"%s\" names no run", path);
    f->worker = json_get_str(f->doc, "worker", "");
    f->lease = json_get_str(f->doc, "lease", "");
    if (st != ST_OK)
        run_folder_release(f);
    return st;
}

void run_folder_release(struct run_folder *f)
{
    json_decref(f->doc);
    f->doc = NULL;
}

/* ---- accepting, forgetting ---- */

/* Epoch of start.json or done.json; 0: neither. */
static int64_t epoch_seen(const char *dir)
{
    char path[1200];
    struct err ignored;
    int64_t epoch = 0;
    const char *names[] = {"start.json", "done.json"};
    for (int i = 0; i < 2; i++) {
        json_t *doc;
        if (json_read_file(
                run_folder_path(dir, names[i], path, sizeof path), START_BYTES_MAX, &doc,
                &ignored) != ST_OK)
            continue;
        int64_t found = json_get_i64(doc, "epoch", 0);
        epoch = found > epoch ? found : epoch;
        json_decref(doc);
    }
    return epoch;
}

static enum status start_write(
    const char *dir, const json_t *order, const char *worker, const char *lease, struct err *e)
{
    char path[1200];
    json_t *doc = json_copy((json_t *)(uintptr_t)order); /* shallow; the order stays as it is */
    json_put_str(doc, "worker", worker);
    json_put_str(doc, "lease", lease);
    char *text = json_text(doc, false);
    json_decref(doc);
    enum status st =
        file_write(run_folder_path(dir, "start.json", path, sizeof path), text, strlen(text), e);
    mem_free(text);
    return st;
}

/* What an earlier attempt left behind and the next would take for its own. */
static void leftovers_remove(const char *dir)
{
    static const char *const names[] = {"stop", "result.json", "peaks.json", "oom", "done.json"};
    char path[1200];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        (void)unlink(run_folder_path(dir, names[i], path, sizeof path));
}

enum status run_folder_accept(
    const char *dir, const json_t *order, const char *worker, const char *lease,
    enum run_folder_seen *seen, struct err *e)
{
    char path[1200];
    int64_t epoch = json_get_i64(order, "epoch", 0), before = epoch_seen(dir);
    *seen = before >= epoch && before > 0 ? FOLDER_SEEN : FOLDER_NEW;
    if (*seen == FOLDER_SEEN)
        return ST_OK;
    TRY(dir_make(dir, e));
    leftovers_remove(dir);
    int fd = open(
        run_folder_path(dir, "events.jsonl", path, sizeof path),
        O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return err_errno(e, "cannot make \"%s\"", path);
    (void)close(fd);
    return start_write(dir, order, worker, lease, e);
}

enum status run_folder_forget(const char *dir, struct err *e)
{
    char from[1200], to[1200];
    if (rename(
            run_folder_path(dir, "start.json", from, sizeof from),
            run_folder_path(dir, "done.json", to, sizeof to)) != 0 &&
        errno != ENOENT)
        return err_errno(e, "could not rename \"%s\"", from);
    static const char *const names[] = {"events.jsonl", "pid", "stop", "result.json", "lock"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        (void)unlink(run_folder_path(dir, names[i], from, sizeof from));
    return ST_OK;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

enum status run_folder_remove(const char *dir, struct err *e)
{
    if (nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
        return err_errno(e, "could not remove \"%s\"", dir);
    return ST_OK;
}

/* ---- who lives ---- */

bool run_folder_locked(const char *dir)
{
    char path[1200];
    struct shared lock;
    struct err ignored;
    if (shared_open(&lock, run_folder_path(dir, "lock", path, sizeof path), false, &ignored) !=
        ST_OK)
        return false;
    bool held = shared_locked(&lock, 0, 1);
    shared_close(&lock);
    return held;
}

/* What the pid file says, whether that process lives or not. */
static struct process pid_read(const char *dir)
{
    char path[1200], *text = NULL;
    size_t n;
    struct err ignored;
    long long pid = 0, born = 0;
    if (file_read(run_folder_path(dir, "pid", path, sizeof path), 100, &text, &n, &ignored) ==
            ST_OK &&
        sscanf(text, "%lld %lld", &pid, &born) != 2)
        pid = 0;
    mem_free(text);
    return (struct process){(pid_t)pid, born};
}

struct process run_folder_supervisor(const char *dir)
{
    struct process p = pid_read(dir);
    return process_alive(&p) ? p : (struct process){0};
}

struct process_tree run_folder_tree(const char *dir, char variable[RUN_FOLDER_MARK])
{
    (void)snprintf(variable, RUN_FOLDER_MARK, "SNUG_RUN_DIR=%s", dir);
    return (struct process_tree){.session = pid_read(dir), .variable = variable};
}

enum status run_folder_stop_write(const char *dir, enum cause why, struct err *e)
{
    char path[1200];
    (void)run_folder_path(dir, "stop", path, sizeof path);
    if (file_exists(path))
        return ST_OK;
    return file_write(path, cause_code(why), strlen(cause_code(why)), e);
}

bool run_folder_stop_read(const char *dir, enum cause *why)
{
    char path[1200], *text = NULL;
    size_t n;
    struct err ignored;
    bool found =
        file_read(run_folder_path(dir, "stop", path, sizeof path), 64, &text, &n, &ignored) ==
            ST_OK &&
        cause_find(text, why);
    mem_free(text);
    return found;
}

/* ---- the end ---- */

static const char *cause_about(enum cause c)
{
    static const char *const about[] = {
#define CAUSE(name, code, status, about) about,
#include "wire/causes.def"
#undef CAUSE
    };
    return about[c];
}

json_t *
run_folder_end(enum cause why, const char *text, const char *hint, int exit_code, int signal)
{
    struct run_end end = {
        .status = cause_status(why),
        .cause = cause_code(why),
        .error = why == CAUSE_DONE ? ""
                 : text            ? text
                                   : cause_about(why),
        .exit_code = exit_code,
        .signal = signal,
    };
    json_t *doc = wire_write(&wire_run_end, &end);
    if (why != CAUSE_DONE) {
        json_t *detail = json_object();
        json_put_str(detail, "code", end.cause);
        json_put_str(detail, "message", end.error);
        json_put(detail, "node_id", json_null());
        json_put_str(detail, "hint", hint ? hint : "");
        json_put(doc, "detail", detail);
    }
    return doc;
}

enum status
run_folder_bury(const struct run_folder *f, enum cause why, const char *text, struct err *e)
{
    char path[1200], variable[RUN_FOLDER_MARK];
    struct shared lock;
    struct journal j;
    struct process_tree tree = run_folder_tree(f->dir, variable);
    TRY(shared_open(&lock, run_folder_path(f->dir, "lock", path, sizeof path), true, e));
    enum status st = ST_OK;
    if (!shared_try(&lock, 0))
        st = err_set(e, ST_BUSY, "run %.8s still has its supervisor", f->o.run_id);
    else if (process_tree_kill(&tree, 5000) > 0)
        st = err_set(e, ST_BUSY, "processes of run %.8s do not end", f->o.run_id);
    if (st == ST_OK)
        st = journal_open(&j, f->dir, f->o.epoch, e);
    if (st == ST_OK) {
        if (!j.ended)
            st = journal_append(&j, EVENT_ENDED, run_folder_end(why, text, NULL, -1, 0), e);
        journal_close(&j);
    }
    shared_close(&lock);
    return st;
}

/* ---- leases ---- */

/* Monotonic times mean something within one boot only. */
uint64_t lease_boot(void)
{
    static uint64_t known; /* does not change under a process */
    char text[64] = "";
    if (known)
        return known;
    FILE *in = fopen("/proc/sys/kernel/random/boot_id", "re"); /* its size is said to be 0 */
    if (in && fgets(text, sizeof text, in))
        known = hash_bytes(text, strlen(text), 1);
    if (in)
        (void)fclose(in);
    known |= 1;
    return known;
}

enum status lease_open(struct lease *l, const char *path, bool write, struct err *e)
{
    int flags = write ? O_RDWR | O_CREAT : O_RDONLY;
    l->fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
    return l->fd < 0 ? err_errno(e, "cannot open \"%s\"", path) : ST_OK;
}

void lease_close(struct lease *l)
{
    if (l->fd >= 0)
        (void)close(l->fd);
    l->fd = -1;
}

void lease_renew(const struct lease *l, int64_t until_ns)
{
    char text[64];
    int n = snprintf(text, sizeof text, "%020" PRId64 " %020" PRIu64 "\n", until_ns, lease_boot());
    if (l->fd >= 0)
        (void)!pwrite(l->fd, text, (size_t)n, 0);
}

int64_t lease_until_ns(const struct lease *l)
{
    char text[64] = {0};
    int64_t until = 0;
    uint64_t boot = 0;
    if (l->fd < 0 || pread(l->fd, text, sizeof text - 1, 0) < 42 ||
        sscanf(text, "%" SCNd64 " %" SCNu64, &until, &boot) != 2 || boot != lease_boot())
        return 0;
    return until;
}
