/* supervisor.h - the process that stands over one run: `snug child --dir RUN_FOLDER`.
 *
 * STATES of a run folder (wire/wire.h)
 *     start.json                  accepted: run_folder_accept wrote it, whole and on the disk
 *     + lock held, pid, `started` running: supervisor_run
 *     + `ended`                   over: the supervisor, once the last process of the tree is gone;
 *                                 if it was killed itself, the agent, after it killed the tree
 *     done.json for start.json    forgotten: run_folder_forget, once the server has the end; its
 *                                 epoch still refuses a start that was seen
 *
 * INVARIANTS
 *  1. A journal with `started` of an epoch is never started again in that epoch.
 *  2. `ended` is written with the lock held and no process of the tree alive. If the tree cannot be
 *     killed (uninterruptible), `ended` waits: a card is given away after death only.
 *  3. The work has no descriptor of the agent's or server's, and no variable of the environment
 *     that holds a secret (SNUG_KEY, SNUG_TOKEN, ...).
 *
 * STOPPING  Whoever asks writes DIR/stop (the code of a cause) whole, then sends the supervisor a
 * SIGTERM: the work gets one too and may end by itself, within SNUG_STOP_GRACE_S for commands (30;
 * graphs: within a batch, no limit). A second SIGTERM, or SIGINT, kills the tree. Nothing but the
 * loss of the machine keeps a run alive without its supervisor: the work dies with it, and what it
 * left behind is killed by whoever adopts the folder.
 */
#ifndef AGENT_SUPERVISOR_H
#define AGENT_SUPERVISOR_H

/* The graph runner; src/child/child.h's child_work behind the command line. Called in a process of
 * its own. control_fd: of a warm canvas child, else -1. Returns the exit status. */
typedef int supervisor_graph(const char *dir, int control_fd);

struct supervisor_options {
    const char *dir; /* absolute */
    supervisor_graph *graph;
    /* A stream socket: lines "DIR\n" name the next run of a warm canvas child; its end ends the
     * child when it is idle. -1: one run. */
    int control_fd;
};
/* Removes SNUG_ variables that may hold a secret from this process's environment, for good. */
void supervisor_scrub_environment(void);
/* Runs it to its end. Returns the exit status of `snug child`: 0 when `ended` is in the journal,
 * whatever became of the run; 1 otherwise (another supervisor holds the lock, no start.json, the
 * disk is full: said on stderr). Changes signal handling, is a subreaper afterwards: for a process
 * that does nothing else. */
int supervisor_run(const struct supervisor_options *o);

#endif
