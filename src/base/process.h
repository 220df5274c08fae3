/* process.h - other processes: start them closed off, know them again, wait for them, end their
 * trees.
 *
 *     struct process_spec s = {.argv = argv, .in = -1, .out = fd, .err = fd, .session = true};
 *     struct process p;
 *     TRY(process_spawn(&s, &p, e));
 *     if (!process_wait(&p, 5000, &end))
 *         process_tree_kill(&who, 2000);
 *
 * IDENTITY  A process number may be given away again; together with its start time (field 22 of
 * /proc/PID/stat) it may not. struct process holds both, and every function here that takes one
 * does nothing to a process that only has the number.
 *
 * TREES  Everything a process started, whoever its parent is by now. Three marks find it: descent
 * (complete below a subreaper, which inherits what daemonises), the session, and an environment
 * variable that children inherit. A tree is killed by stopping what is found until nothing new
 * appears, then killing it: no fork gets away between.
 *
 * Linux: reads /proc. Not for use in signal handlers.
 */
#ifndef BASE_PROCESS_H
#define BASE_PROCESS_H

#include "base/err.h"
#include <limits.h>

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct process {
    pid_t pid;    /* 0: none */
    int64_t born; /* clock ticks since the machine started */
};
struct process process_self(void);
/* born 0 where there is no process of that number. */
struct process process_of(pid_t pid);
/* False when it has ended; a zombie has ended. */
bool process_alive(const struct process *p);
/* Sends a signal to it if it is still that process. False: it is not there. */
bool process_signal(const struct process *p, int signal);

/* ---- starting ---- */
struct process_spec {
    char *const
        *argv; /* argv[0]: a path, or a name that is looked for in PATH (of `environment`) */
    char *const *environment; /* NULL: as here */
    const char *dir;          /* working folder; NULL: as here */
    int in, out, err;         /* descriptors; -1: /dev/null */
    const int *keep;          /* further descriptors that it gets, under the same numbers */
    size_t n_keep;
    bool session, group;    /* a session, or a process group, of its own */
    bool dies_with_us;      /* SIGKILL when the thread that starts it ends */
    int oom_score_adj;      /* 0: as here; else where it stands for the kernel's killer */
    int64_t file_bytes_max; /* RLIMIT_FSIZE; 0: as here */
};
/* Undoes `dies_with_us`, in the process itself. */
void process_outlive(void);
/* Executes a program. Every other descriptor is closed, signals are as a shell would have them,
 * core dumps are off. What cannot be executed is an error here, with its reason (ST_NOT_FOUND,
 * ST_DENIED, ST_INVALID for a folder that is not there). */
enum status
process_spawn(const struct process_spec *s, struct process *out, struct err *e) NODISCARD;
/* A fork that goes on in `run`, with the same closing, whose value is its exit status; argv and
 * environment are not used. For programs with one thread. */
enum status process_fork(
    const struct process_spec *s, int (*run)(void *ctx), void *ctx, struct process *out,
    struct err *e) NODISCARD;
/* Closes every descriptor from 3 up that is not in `keep`. */
void process_close_others(const int *keep, size_t n);
/* What ps shows: overwrites the arguments (secrets among them) and names the process. Call
 * process_title_init with main's argv first; without it only the short name changes. */
void process_title_init(int argc, char **argv);
void process_title(const char *fmt, ...) PRINTF(1, 2);

/* ---- ending ---- */
struct process_end {
    int exit_code; /* -1: by a signal, or unknown (not a child of ours) */
    int signal;    /* 0: none */
};
/* Waits for a child (reaps it), or for any process to be gone; wait_ms -1: without limit. False: it
 * is still there. */
bool process_wait(const struct process *p, int wait_ms, struct process_end *out);
struct process_end process_end_of(int wait_status);
/* This process inherits the orphans among its descendants. */
void process_subreaper(void);

/* Which processes make up a tree; marks that are not given are not looked at. */
struct process_tree {
    struct process root;    /* its descendants, without itself */
    struct process session; /* the leader of a session, itself too: its processes, also after it */
    const char *variable;   /* "SNUG_RUN_ID=1f2e": those that have it in their environment */
};
/* Writes at most `cap`, returns how many there are (zombies are not counted). The caller and its
 * ancestors are never among them. */
size_t process_tree_list(const struct process_tree *t, struct process *out, size_t cap);
/* Sends `signal` to all; returns to how many. */
size_t process_tree_signal(const struct process_tree *t, int signal);
/* Kills until nothing is left, at most wait_ms. Nothing is reaped: a child's status stays to
 * be asked. Returns how many are still there (uninterruptible in the kernel, as a rule). */
size_t process_tree_kill(const struct process_tree *t, int wait_ms);

/* How often the kernel killed for want of memory in this process's cgroup; -1 unknown. */
int64_t process_oom_kills(void);

/* What to start for another process of this very program: its path, or /proc/self/exe where the
 * file has been replaced since (an update under a server that runs: its children are to be of its
 * own version). */
void process_own_program(char out[PATH_MAX]);

#endif
