/* spawner.c - a process with one thread that forks supervisors (spawner.h). */
#define _GNU_SOURCE
#include "agent/spawner.h"

#include "base/env.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DIR_BYTES = 1024 };

struct spawner {
    int fd; /* -1: the process is gone */
    struct process process;
    pthread_mutex_t lock;
};
struct reply {
    pid_t pid; /* 0: `error` says why not */
    int64_t born;
    char error[256];
};

/* ---- in the spawner's process ---- */

struct zygote {
    int fd, signals;
    supervisor_graph *graph;
    VEC(struct process) supervisors;
    const char *dir; /* of the one that is being started */
    int control_fd;
};

/* A message and the descriptor that may come with it; bytes, 0 at the end. */
static ssize_t receive(int fd, char *dir, size_t cap, int *control_fd)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {dir, cap - 1};
    struct msghdr m = {
        .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = &control,
        .msg_controllen = sizeof control};
    ssize_t n;
    *control_fd = -1;
    while ((n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
        ;
    if (n <= 0)
        return 0;
    dir[n] = 0;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
        memcpy(control_fd, CMSG_DATA(c), sizeof *control_fd);
    return n;
}

static int supervise(void *ctx)
{
    const struct zygote *z = ctx;
    return supervisor_run(&(struct supervisor_options){
        .dir = z->dir, .graph = z->graph, .control_fd = z->control_fd});
}

/* False: nobody asks any more. */
static bool start_one(struct zygote *z)
{
    char dir[DIR_BYTES];
    struct reply r = {0};
    struct err e;
    struct process p;
    struct process_spec spec = {.in = -1, .out = 2, .err = 2, .session = true};
    if (receive(z->fd, dir, sizeof dir, &z->control_fd) == 0)
        return false;
    z->dir = dir;
    if (z->control_fd >= 0) {
        spec.keep = &z->control_fd;
        spec.n_keep = 1;
    }
    if (process_fork(&spec, supervise, z, &p, &e) == ST_OK) {
        r.pid = p.pid;
        r.born = p.born;
        vec_push(&z->supervisors, p);
    } else {
        (void)snprintf(r.error, sizeof r.error, "%.255s", e.text);
    }
    if (z->control_fd >= 0)
        (void)close(z->control_fd);
    return send(z->fd, &r, sizeof r, MSG_NOSIGNAL) >= 0;
}

static bool forget_supervisor(struct zygote *z, pid_t pid)
{
    for (size_t i = 0; i < z->supervisors.n; i++)
        if (z->supervisors.data[i].pid == pid) {
            z->supervisors.data[i] = z->supervisors.data[--z->supervisors.n];
            return true;
        }
    return false;
}

/* Children that are no supervisors are what a killed one had. What these have comes here next. */
static void kill_orphans(struct zygote *z)
{
    char path[64];
    int pid;
    (void)snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *in = fopen(path, "re");
    while (in && fscanf(in, "%d", &pid) == 1) {
        bool known = false;
        for (size_t i = 0; i < z->supervisors.n && !known; i++)
            known = z->supervisors.data[i].pid == pid;
        if (!known)
            (void)kill(pid, SIGKILL); /* a child that is not reaped keeps its number */
    }
    if (in)
        (void)fclose(in);
}

static void reap(struct zygote *z)
{
    int status;
    bool lost = false;
    for (;;) {
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid < 0 && errno == EINTR)
            continue;
        if (pid <= 0)
            break;
        /* A supervisor that ends by itself leaves nothing behind. */
        lost = !forget_supervisor(z, pid) || !WIFEXITED(status) || lost;
    }
    if (lost)
        kill_orphans(z);
}

static int zygote_run(void *ctx)
{
    struct zygote *z = ctx;
    struct signalfd_siginfo info;
    sigset_t set;
    process_title("snug: spawner");
    process_subreaper();
    supervisor_scrub_environment();
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGCHLD);
    (void)sigaddset(&set, SIGINT); /* Ctrl-C of a terminal is the agent's */
    (void)sigaddset(&set, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    z->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    for (;;) {
        struct pollfd f[] = {{.fd = z->fd, .events = POLLIN}, {.fd = z->signals, .events = POLLIN}};
        (void)poll(f, 2, -1);
        while (read(z->signals, &info, sizeof info) == (ssize_t)sizeof info)
            ;
        reap(z);
        if (f[0].revents && !start_one(z))
            return 0; /* the agent is gone; its runs go on */
    }
}

/* ---- in the agent ---- */

enum status spawner_open(struct spawner **out, supervisor_graph *graph, struct err *e)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return err_errno(e, "could not make a pair of sockets");
    struct zygote z = {.fd = pair[1], .graph = graph};
    struct process_spec spec = {
        .in = -1, .out = 2, .err = 2, .keep = &pair[1], .n_keep = 1, .group = true};
    struct process p;
    enum status st = process_fork(&spec, zygote_run, &z, &p, e);
    (void)close(pair[1]);
    if (st != ST_OK) {
        (void)close(pair[0]);
        return st;
    }
    struct spawner *s = mem_alloc(sizeof *s);
    s->fd = pair[0];
    s->process = p;
    (void)pthread_mutex_init(&s->lock, NULL);
    *out = s;
    return ST_OK;
}

void spawner_close(struct spawner *s)
{
    struct process_end end;
    if (!s)
        return;
    if (s->fd >= 0)
        (void)close(s->fd);
    if (!process_wait(&s->process, 2000, &end))
        (void)process_signal(&s->process, SIGKILL);
    (void)pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

static bool ask(struct spawner *s, const char *dir, int control_fd, struct reply *r)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec part = {(void *)(uintptr_t)dir, strlen(dir)};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    if (control_fd >= 0) {
        m.msg_control = &control;
        m.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &control_fd, sizeof control_fd);
    }
    ssize_t n;
    if (s->fd < 0 || sendmsg(s->fd, &m, MSG_NOSIGNAL) < 0)
        return false;
    while ((n = recv(s->fd, r, sizeof *r, 0)) < 0 && errno == EINTR)
        ;
    return n == (ssize_t)sizeof *r;
}

/* Without the spawner: the program again. */
static enum status execute(const char *dir, int control_fd, struct process *out, struct err *e)
{
    char program[] = "/proc/self/exe", child[] = "child", flag[] = "--dir",
         control[] = "--control-fd";
    char path[DIR_BYTES], number[16];
    (void)snprintf(path, sizeof path, "%s", dir);
    (void)snprintf(number, sizeof number, "%d", control_fd);
    char *argv[] = {program, child, flag, path, control_fd >= 0 ? control : NULL, number, NULL};
    struct process_spec spec = {
        .argv = argv,
        .in = -1,
        .out = 2,
        .err = 2,
        .session = true,
        .keep = &control_fd,
        .n_keep = control_fd >= 0};
    return process_spawn(&spec, out, e);
}

enum status spawner_start(
    struct spawner *s, const char *dir, int control_fd, struct process *out, struct err *e)
{
    struct reply r;
    if (strlen(dir) >= DIR_BYTES)
        return err_set(e, ST_INVALID, "the path of a run folder is too long");
    (void)pthread_mutex_lock(&s->lock);
    bool answered = ask(s, dir, control_fd, &r);
    if (!answered && s->fd >= 0) {
        log_warn("the spawner is gone; runs start more slowly from here on");
        (void)close(s->fd);
        s->fd = -1;
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (!answered)
        return execute(dir, control_fd, out, e);
    if (r.pid == 0)
        return err_set(e, ST_IO, "%s", r.error);
    *out = (struct process){r.pid, r.born};
    return ST_OK;
}
