/* process.c - identity, waiting, and trees of processes (process.h). */
#define _GNU_SOURCE /* pidfd */
#include "base/process.h"

#include "base/env.h"
#include "base/mem.h"
#include "base/str.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- /proc ---- */

struct seen {
    pid_t pid, parent, session;
    char state;
    int64_t born;
    bool in; /* of the tree that is looked for */
};

/* Reads at most cap - 1 bytes; -1 where there is no such file any more. */
static ssize_t proc_read(pid_t pid, const char *file, char *buf, size_t cap)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t n = read(fd, buf, cap - 1);
    (void)close(fd);
    if (n >= 0)
        buf[n] = 0;
    return n;
}

/* A leader that ended before its other threads is a zombie with work to do. */
static bool has_threads(pid_t pid)
{
    char path[64];
    struct stat st;
    (void)snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    return stat(path, &st) == 0 && st.st_nlink > 3;
}

/* False: there is no such process, or it has ended. */
static bool look(pid_t pid, struct seen *out)
{
    char buf[1024];
    long long born = 0;
    int parent, session;
    if (pid <= 0 || proc_read(pid, "stat", buf, sizeof buf) <= 0)
        return false;
    char *after = strrchr(buf, ')'); /* the name may hold anything */
    if (!after ||
        sscanf(
            after,
            ") %c %d %*d %d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %lld",
            &out->state, &parent, &session, &born) != 4)
        return false;
    out->pid = pid;
    out->parent = (pid_t)parent;
    out->session = (pid_t)session;
    out->born = born;
    out->in = false;
    return true;
}

static bool ended(const struct seen *s)
{
    return (s->state == 'Z' && !has_threads(s->pid)) || s->state == 'X' || s->state == 'x';
}

struct process process_of(pid_t pid)
{
    struct seen s;
    return look(pid, &s) ? (struct process){pid, s.born} : (struct process){pid, 0};
}

struct process process_self(void)
{
    return process_of(getpid());
}

bool process_alive(const struct process *p)
{
    struct seen s;
    return p->born != 0 && look(p->pid, &s) && s.born == p->born && !ended(&s);
}

/* A descriptor of exactly that process; -1: it is not there. */
static int pidfd_of(const struct process *p)
{
    struct seen s;
    if (p->pid <= 0 || p->born == 0)
        return -1;
    int fd = (int)syscall(SYS_pidfd_open, p->pid, 0);
    if (fd >= 0 && look(p->pid, &s) && s.born == p->born)
        return fd;
    if (fd >= 0)
        (void)close(fd);
    return -1;
}

bool process_signal(const struct process *p, int signal)
{
    int fd = pidfd_of(p);
    if (fd < 0)
        return false;
    bool sent = syscall(SYS_pidfd_send_signal, fd, signal, NULL, 0) == 0;
    (void)close(fd);
    return sent;
}

struct process_end process_end_of(int wait_status)
{
    if (WIFSIGNALED(wait_status))
        return (struct process_end){-1, WTERMSIG(wait_status)};
    return (struct process_end){WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1, 0};
}

bool process_wait(const struct process *p, int wait_ms, struct process_end *out)
{
    int64_t until = clock_ns() + (int64_t)wait_ms * 1000000;
    int fd = pidfd_of(p), status;
    *out = (struct process_end){-1, 0};
    while (fd >= 0) {
        int64_t left_ms = wait_ms < 0 ? -1 : (until - clock_ns() + 999999) / 1000000;
        struct pollfd f = {.fd = fd, .events = POLLIN};
        int n = poll(&f, 1, wait_ms < 0 ? -1 : left_ms > 0 ? (int)left_ms : 0);
        if (n > 0)
            break;
        if (n == 0 && left_ms <= 0) {
            (void)close(fd);
            return false;
        }
    }
    if (fd >= 0)
        (void)close(fd);
    /* Gone; if it is a child, its status is waiting. */
    pid_t got;
    while ((got = waitpid(p->pid, &status, WNOHANG)) < 0 && errno == EINTR)
        ;
    if (got == p->pid)
        *out = process_end_of(status);
    return true;
}

void process_subreaper(void)
{
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
}

/* ---- trees ---- */

struct census {
    VEC(struct seen) all;
};

static int by_pid(const void *a, const void *b)
{
    const struct seen *x = a, *y = b;
    return (x->pid > y->pid) - (x->pid < y->pid);
}

static void census_take(struct census *c)
{
    DIR *d = opendir("/proc");
    struct dirent *entry;
    struct seen s;
    while (d && (entry = readdir(d)))
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' &&
            look((pid_t)strtol(entry->d_name, NULL, 10), &s))
            vec_push(&c->all, s);
    if (d)
        (void)closedir(d);
    if (c->all.n)
        qsort(c->all.data, c->all.n, sizeof *c->all.data, by_pid);
}

static struct seen *census_find(struct census *c, pid_t pid)
{
    struct seen key = {.pid = pid};
    return c->all.n ? bsearch(&key, c->all.data, c->all.n, sizeof key, by_pid) : NULL;
}

static void mark_descendants(struct census *c, const struct process *root)
{
    struct seen *top = census_find(c, root->pid);
    if (!top || top->born != root->born)
        return;
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < c->all.n; i++) {
            struct seen *s = &c->all.data[i], *parent;
            if (s->in || s->parent == 0)
                continue;
            parent = s->parent == root->pid ? top : census_find(c, s->parent);
            if (parent && (parent == top || parent->in))
                s->in = more = true;
        }
    }
}

static void mark_session(struct census *c, const struct process *leader)
{
    const struct seen *now = census_find(c, leader->pid);
    if (now && now->born != leader->born)
        return; /* that number is another session by now */
    for (size_t i = 0; i < c->all.n; i++)
        if (c->all.data[i].session == leader->pid)
            c->all.data[i].in = true;
}

static bool has_variable(pid_t pid, const char *variable)
{
    enum { CAP = 256 << 10 };
    size_t n = strlen(variable) + 1; /* with its NUL */
    char *buf = mem_alloc(CAP);
    ssize_t got = proc_read(pid, "environ", buf, CAP);
    bool found = false;
    for (ssize_t at = 0; at < got && !found;) {
        size_t length = strlen(buf + at) + 1;
        found = length == n && memcmp(buf + at, variable, n) == 0;
        at += (ssize_t)length;
    }
    mem_free(buf);
    return found;
}

/* This process and what it descends from. */
static void unmark_ancestors(struct census *c)
{
    for (pid_t pid = getpid(); pid > 0;) {
        struct seen *s = census_find(c, pid);
        if (!s)
            break;
        s->in = false;
        pid = s->parent;
    }
}

static void tree_find(const struct process_tree *t, struct census *c)
{
    census_take(c);
    if (t->root.pid > 0)
        mark_descendants(c, &t->root);
    if (t->session.pid > 0)
        mark_session(c, &t->session);
    for (size_t i = 0; t->variable && i < c->all.n; i++)
        if (!c->all.data[i].in && has_variable(c->all.data[i].pid, t->variable))
            c->all.data[i].in = true;
    unmark_ancestors(c);
    size_t n = 0;
    for (size_t i = 0; i < c->all.n; i++)
        if (c->all.data[i].in && !ended(&c->all.data[i]))
            c->all.data[n++] = c->all.data[i];
    c->all.n = n;
}

size_t process_tree_list(const struct process_tree *t, struct process *out, size_t cap)
{
    struct census c = {0};
    tree_find(t, &c);
    for (size_t i = 0; i < c.all.n && i < cap; i++)
        out[i] = (struct process){c.all.data[i].pid, c.all.data[i].born};
    size_t n = c.all.n;
    vec_release(&c.all);
    return n;
}

size_t process_tree_signal(const struct process_tree *t, int signal)
{
    struct census c = {0};
    size_t sent = 0;
    tree_find(t, &c);
    for (size_t i = 0; i < c.all.n; i++)
        sent += process_signal(&(struct process){c.all.data[i].pid, c.all.data[i].born}, signal);
    vec_release(&c.all);
    return sent;
}

/* Stops what is found until a look finds nothing that still runs, so that no fork gets away. */
static size_t tree_freeze(const struct process_tree *t)
{
    size_t n = 0;
    for (int round = 0; round < 32; round++) {
        struct census c = {0};
        size_t running = 0;
        tree_find(t, &c);
        for (size_t i = 0; i < c.all.n; i++)
            if (c.all.data[i].state != 'T') {
                running++;
                (void)process_signal(
                    &(struct process){c.all.data[i].pid, c.all.data[i].born}, SIGSTOP);
            }
        n = c.all.n;
        vec_release(&c.all);
        if (running == 0)
            break;
    }
    return n;
}

size_t process_tree_kill(const struct process_tree *t, int wait_ms)
{
    int64_t until = clock_ns() + (int64_t)wait_ms * 1000000;
    struct timespec pause = {0, 500000};
    if (process_tree_list(t, NULL, 0) == 0)
        return 0;
    if (tree_freeze(t) == 0)
        return 0;
    for (;;) {
        if (process_tree_signal(t, SIGKILL) == 0 && process_tree_list(t, NULL, 0) == 0)
            return 0;
        if (clock_ns() >= until)
            return process_tree_list(t, NULL, 0);
        (void)nanosleep(&pause, NULL);
        if (pause.tv_nsec < 50000000)
            pause.tv_nsec *= 2;
    }
}

/* ---- the kernel's out-of-memory killer ---- */

static int64_t count_in(const char *path)
{
    char line[128];
    long long n = -1;
    FILE *in = fopen(path, "re");
    if (!in)
        return -1;
    while (fgets(line, sizeof line, in))
        if (str_starts(line, "oom_kill ") && sscanf(line + 9, "%lld", &n) == 1)
            break;
    (void)fclose(in);
    return n;
}

int64_t process_oom_kills(void)
{
    char line[512], path[700];
    int64_t n = -1;
    FILE *in = fopen("/proc/self/cgroup", "re");
    while (in && n < 0 && fgets(line, sizeof line, in)) {
        line[strcspn(line, "\n")] = 0;
        const char *own = strrchr(line, ':');
        bool v2 = str_starts(line, "0::");
        if (!own || (!v2 && !strstr(line, ":memory:")))
            continue;
        (void)snprintf(
            path, sizeof path,
            v2 ? "/sys/fs/cgroup%s/memory.events" : "/sys/fs/cgroup/memory%s/memory.oom_control",
            own + 1);
        n = count_in(path);
    }
    if (in)
        (void)fclose(in);
    return n;
}

void process_own_program(char out[PATH_MAX])
{
    static const char own[] = "/proc/self/exe";
    ssize_t n = readlink(own, out, PATH_MAX - 1);
    out[n > 0 ? n : 0] = '\0';
    if (n <= 0 || access(out, X_OK) != 0)
        memcpy(out, own, sizeof own);
}
