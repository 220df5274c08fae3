/* process_start.c - starting processes closed off from this one (process.h). */
#define _GNU_SOURCE /* close_range */
#include "base/process.h"

#include "base/mem.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

enum { ABOVE = 10, KEEP_MAX = 16 };

/* What failed in the new process before it executed its program. */
struct failure {
    int at; /* enum step */
    int error;
};
enum step { AT_DIR, AT_EXECUTE };

static void close_span(int from, int to) /* both included */
{
    if (from <= to)
        (void)close_range((unsigned)from, (unsigned)to, 0);
}

void process_close_others(const int *keep, size_t n)
{
    int from = 3;
    for (;;) { /* the next kept one, in rising order */
        int next = -1;
        for (size_t i = 0; i < n; i++)
            if (keep[i] >= from && (next < 0 || keep[i] < next))
                next = keep[i];
        if (next < 0)
            break;
        close_span(from, next - 1);
        from = next + 1;
    }
    (void)close_range((unsigned)from, ~0U, 0);
}

static void signals_as_new(void)
{
    struct sigaction usual = {.sa_handler = SIG_DFL};
    sigset_t none;
    for (int i = 1; i < NSIG; i++)
        (void)sigaction(i, &usual, NULL);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

static void limits_set(const struct process_spec *s)
{
    struct rlimit no_core = {0, 0};
    struct rlimit size = {(rlim_t)s->file_bytes_max, (rlim_t)s->file_bytes_max};
    char score[16];
    int fd = s->oom_score_adj ? open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        int n = snprintf(score, sizeof score, "%d", s->oom_score_adj);
        (void)!write(fd, score, (size_t)n);
        (void)close(fd);
    }
    (void)setrlimit(RLIMIT_CORE, &no_core);
    if (s->file_bytes_max > 0)
        (void)setrlimit(RLIMIT_FSIZE, &size);
}

/* Puts `fd` where `as` is; `spare` (/dev/null) where there is none. */
static void place(int fd, int as, int spare)
{
    (void)dup2(fd >= 0 ? fd : spare, as);
}

/* In the new process: everything before its work. `report` is where a failure goes (-1: nowhere).
 */
static void settle(const struct process_spec *s, pid_t parent, int null, int report)
{
    int in = s->in, out = s->out, err = s->err, keep[KEEP_MAX + 1];
    size_t n = 0;
    signals_as_new();
    if (s->session)
        (void)setsid();
    else if (s->group)
        (void)setpgid(0, 0);
    if (s->dies_with_us) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) /* it went before the line above */
            _exit(127);
    }
    /* Above the standard ones first: they may be each other's targets. */
    in = in >= 0 ? fcntl(in, F_DUPFD_CLOEXEC, ABOVE) : -1;
    out = out >= 0 ? fcntl(out, F_DUPFD_CLOEXEC, ABOVE) : -1;
    err = err >= 0 ? fcntl(err, F_DUPFD_CLOEXEC, ABOVE) : -1;
    place(in, 0, null);
    place(out, 1, null);
    place(err, 2, null);
    for (size_t i = 0; i < s->n_keep; i++) {
        keep[n++] = s->keep[i];
        (void)fcntl(s->keep[i], F_SETFD, 0);
    }
    if (report >= 0)
        keep[n++] = report;
    process_close_others(keep, n);
    limits_set(s);
    if (s->dir && chdir(s->dir) != 0 && report >= 0) {
        struct failure f = {AT_DIR, errno};
        (void)!write(report, &f, sizeof f);
        _exit(127);
    }
}

static const char *variable_of(char *const *environment, const char *name)
{
    size_t n = strlen(name);
    for (; environment && *environment; environment++)
        if (strncmp(*environment, name, n) == 0 && (*environment)[n] == '=')
            return *environment + n + 1;
    return NULL;
}

/* The paths that may be the program, NULL at the end; strings and array in the arena. */
static char **candidates(const struct process_spec *s, struct arena *a)
{
    const char *name = s->argv[0];
    const char *path = s->environment ? variable_of(s->environment, "PATH") : getenv("PATH");
    VEC(char *) list = {0};
    if (strchr(name, '/')) {
        vec_push(&list, arena_strdup(a, name));
        path = NULL;
    } else if (!path) {
        path = "/usr/local/bin:/usr/bin:/bin";
    }
    while (path && *name) {
        size_t n = strcspn(path, ":");
        if (n)
            vec_push(&list, arena_printf(a, "%.*s/%s", (int)n, path, name));
        path = path[n] ? path + n + 1 : NULL;
    }
    char **out = ARENA_ARRAY(a, char *, list.n + 1);
    if (list.n)
        memcpy(out, list.data, list.n * sizeof *out);
    vec_release(&list);
    return out;
}

static void
execute(const struct process_spec *s, char **paths, char *const *environment, int report)
{
    struct failure f = {AT_EXECUTE, ENOENT};
    for (; *paths; paths++) {
        (void)execve(*paths, s->argv, environment);
        if (errno != ENOENT && errno != ENOTDIR)
            f.error = errno;
        if (errno != ENOENT && errno != ENOTDIR && errno != EACCES)
            break;
    }
    (void)!write(report, &f, sizeof f);
    _exit(127);
}

static enum status failed(const struct process_spec *s, const struct failure *f, struct err *e)
{
    enum status st = f->error == ENOENT || f->error == ENOTDIR ? ST_NOT_FOUND
                     : f->error == EACCES || f->error == EPERM ? ST_DENIED
                                                               : ST_IO;
    if (f->at == AT_DIR)
        return err_set(
            e, ST_INVALID, "cannot work in folder \"%s\": %s", s->dir, strerror(f->error));
    return err_set(e, st, "cannot execute \"%s\": %s", s->argv[0], strerror(f->error));
}

/* A fork behind which no buffered output is written twice. */
static enum status forked(pid_t *out, struct err *e)
{
    (void)fflush(NULL);
    *out = fork();
    return *out < 0 ? err_errno(e, "could not start a process") : ST_OK;
}

static enum status null_open(int *out, struct err *e)
{
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    *out = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, ABOVE); /* never itself a standard one */
    if (fd >= 0)
        (void)close(fd);
    return *out < 0 ? err_errno(e, "cannot open /dev/null") : ST_OK;
}

void process_outlive(void)
{
    (void)prctl(PR_SET_PDEATHSIG, 0);
}

enum status process_spawn(const struct process_spec *s, struct process *out, struct err *e)
{
    extern char **environ;
    char *const *environment = s->environment ? s->environment : environ;
    int null = -1, report[2] = {-1, -1};
    pid_t pid = 0, parent = getpid();
    struct failure f;
    struct arena a;
    enum status st;
    ASSERT(s->argv && s->argv[0] && s->n_keep <= KEEP_MAX);
    arena_init(&a);
    char **paths = candidates(s, &a);
    TRY_OUT(null_open(&null, e));
    if (pipe2(report, O_CLOEXEC) != 0) {
        st = err_errno(e, "could not make a pipe");
        goto out;
    }
    TRY_OUT(forked(&pid, e));
    if (pid == 0) {
        /* Out of the way of 0, 1 and 2, where the program that started us had closed them. */
        int to = fcntl(report[1], F_DUPFD_CLOEXEC, ABOVE);
        settle(s, parent, null, to);
        execute(s, paths, environment, to);
    }
    *out = process_of(pid);
    (void)close(report[1]);
    report[1] = -1;
    ssize_t n;
    while ((n = read(report[0], &f, sizeof f)) < 0 && errno == EINTR)
        ;
    if (n == (ssize_t)sizeof f) {
        (void)process_wait(out, -1, &(struct process_end){0});
        st = failed(s, &f, e);
    }
out:
    if (null >= 0)
        (void)close(null);
    if (report[0] >= 0)
        (void)close(report[0]);
    if (report[1] >= 0)
        (void)close(report[1]);
    arena_release(&a);
    return st;
}

enum status process_fork(
    const struct process_spec *s, int (*run)(void *ctx), void *ctx, struct process *out,
    struct err *e)
{
    int null;
    pid_t pid, parent = getpid();
    ASSERT(s->n_keep <= KEEP_MAX);
    TRY(null_open(&null, e));
    enum status st = forked(&pid, e);
    if (st == ST_OK && pid == 0) {
        settle(s, parent, null, -1);
        int rc = run(ctx);
        (void)fflush(NULL);
        _exit(rc);
    }
    (void)close(null);
    if (st == ST_OK)
        *out = process_of(pid);
    return st;
}

/* ---- what ps shows ---- */

static char *title_at;
static size_t title_room;

void process_title_init(int argc, char **argv)
{
    if (argc <= 0)
        return;
    char *end = argv[0] + strlen(argv[0]) + 1;
    for (int i = 1; i < argc && argv[i] == end; i++)
        end += strlen(argv[i]) + 1;
    title_at = argv[0];
    title_room = (size_t)(end - argv[0]);
}

void process_title(const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n < 0)
        return;
    (void)prctl(PR_SET_NAME, text);
    if (title_room == 0)
        return;
    memset(title_at, 0, title_room);
    (void)snprintf(title_at, title_room, "%s", text);
}
