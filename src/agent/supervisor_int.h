/* supervisor_int.h - the state of a supervisor; for the files supervisor*.c. */
#ifndef AGENT_SUPERVISOR_INT_H
#define AGENT_SUPERVISOR_INT_H

#include "agent/folder.h"
#include "agent/output.h"
#include "agent/supervisor.h"
#include "base/shared.h"

struct supervisor {
    const struct supervisor_options *opt;
    struct process self, work;
    int signals;                      /* signalfd */
    int pipe;                         /* what the work writes; -1: nobody can any more */
    bool warm;                        /* the work stays after a run, and is told the next one */
    int pair;                         /* our end of its control; -1: none */
    int control;                      /* the agent's; -1: gone */
    struct str from_work, from_agent; /* lines that are not whole yet */
    json_t *next; /* the line of a run that came as the one before was ending; NULL: none */

    /* The run that is on. */
    bool on;
    struct run_folder f;
    struct shared lock;
    struct journal j;
    struct lease lease;
    struct run_output out;

    /* The work's process, and what it left behind. */
    bool work_lives, tree_lives;
    struct process_end end;
    int64_t oom_before, oom_after; /* oom_after: as the work was reaped */

    /* Being stopped. */
    int asked;    /* how many signals came */
    bool killing; /* the tree gets SIGKILL */
    bool timed_out, lapsed;
    int64_t time_up_ns, kill_at_ns; /* 0: never */
    int64_t look_again_ns;          /* at the lease */
};

/* ---- supervisor_work.c ---- */
/* Starts the work of the current run, with the pipe for its output and, where it is warm, its
 * control. */
enum status supervisor_work_start(struct supervisor *s, struct err *e) NODISCARD;
/* Writes the hook's file where it is not as it should be; its folder into buf. */
enum status supervisor_work_hook_install(char *dir, size_t cap, struct err *e) NODISCARD;

/* ---- supervisor_end.c ---- */
/* What became of the current run, as a run_end. */
json_t *supervisor_end(const struct supervisor *s);

#endif
