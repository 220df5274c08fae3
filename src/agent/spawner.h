/* spawner.h - a process with one thread that forks supervisors: starting a run costs a fork, not
 * the start of a program with its libraries.
 *
 *     TRY(spawner_open(&sp, &o, e));          while this process has one thread
 *     TRY(spawner_start(sp, dir, control_fd, &supervisor, e));       from any thread
 *     spawner_close(sp);                      supervisors live on
 *
 * It is made before the agent reads a credential, opens a connection or a driver, so none of these
 * is in a run's memory. It inherits the orphans of supervisors that were killed, and kills them:
 * whatever is its child and no supervisor has lost its run. When it is gone itself, runs are
 * started as `snug child --dir`, which takes longer and does the same.
 */
#ifndef AGENT_SPAWNER_H
#define AGENT_SPAWNER_H

#include "agent/supervisor.h"
#include "base/process.h"

struct spawner;
enum status spawner_open(struct spawner **out, supervisor_graph *graph, struct err *e) NODISCARD;
void spawner_close(struct spawner *s); /* NULL is fine */
/* control_fd: of a warm child (supervisor.h), stays the caller's; -1 none. */
enum status spawner_start(
    struct spawner *s, const char *dir, int control_fd, struct process *out,
    struct err *e) NODISCARD;

#endif
