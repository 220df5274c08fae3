/* agent.h - the worker: `snug agent start`. Connects to a server, starts what it orders as
 * supervised runs, forwards their events, adopts on its start what an earlier agent left.
 *
 * THREADS
 *     orders    connects; then GET /api/agent/orders, a long poll, and does what it says
 *     report    follows the journals of all runs (inotify) and posts events, answers, heartbeats
 *     watch     the lease: without a successful answer for lease_s it kills the agent's runs
 * and, before all of them, the spawner: a process with one thread that forks a supervisor per run
 * without executing a program (spawner.h). Supervisors outlive agent and spawner.
 *
 * INVARIANTS
 *  1. An order to start is answered by the journal alone: start.json is on the disk before anything
 *     runs, and an epoch that is in start.json or done.json is not started again.
 *  2. A run is "live" in hello if and only if its lock is held, or its tree is not gone yet.
 *  3. What the server fences ("forget") is killed before it is forgotten.
 */
#ifndef AGENT_AGENT_H
#define AGENT_AGENT_H

#include "agent/supervisor.h"
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct agent_options {
    const char *name;     /* NULL: the host's name; --builtin: "local" */
    const char *known_as; /* the worker's name at the server, where it is another; NULL: name */
    const char *server;   /* NULL: the server of this SNUG_HOME */
    const char
        *secret; /* a credential or join token; NULL: the stored credential, else session.token */
    const char *devices; /* "cuda:0,cuda:1"; NULL: all. The CPU is always offered */
    const char *mounts;  /* labels, comma between; NULL none */
    const char *pool;    /* of a one-shot worker */
    bool one_shot;       /* takes one run and leaves */
    bool builtin;        /* the server's own */
    bool leash;          /* leaves when its standard input ends; its runs go on */
    double heartbeat_s;  /* 0: as the server says */
    supervisor_graph *graph;
    const char *version, *commit;
};
/* Works until it is told to stop (SIGTERM, SIGINT, order `exit`, the end of a one-shot's run). Call
 * while the process has one thread. A second agent of the same name under this SNUG_HOME is
 * ST_CONFLICT; a server that refuses this agent for good (version, credential) is ST_DENIED with
 * its reason. */
enum status agent_run(const struct agent_options *o, struct err *e) NODISCARD;

/* Files of an agent: SNUG_HOME/agents/<name>.SUFFIX, into buf. lock (its lock is held while the
 * agent lives; its text is "PID START\n"), lease (folder.h), state (below), json (its credential,
 * mode 0600: the command line's), log (in the background). */
const char *agent_path(const char *name, const char *suffix, char *buf, size_t cap);
bool agent_name_valid(const char *name); /* 1 to 64 of letters, digits, '.', '_', '-' */
/* `given`, else "local" of the built-in one, else the host's name. */
void agent_name_default(const char *given, bool builtin, char out[65]);

struct agent_state {
    char name[65], server[256]; /* server: whom it is connected to, "" none */
    int64_t pid;                /* 0: does not run */
    int64_t runs;               /* that live */
};
/* What `snug agent status` shows; a name that never was is one that does not run. */
enum status agent_status(const char *name, struct agent_state *out, struct err *e) NODISCARD;
/* SIGTERM to the agent of that name, then waits. ST_NOT_FOUND: none runs. ST_BUSY: it still runs.
 */
enum status agent_stop(const char *name, int wait_ms, struct err *e) NODISCARD;
/* Deletes what an agent that does not run kept: its files, and the folders of its runs.
 * ST_CONFLICT: it runs; ST_BUSY: a run of it lives. Nothing there is ST_OK. */
enum status agent_forget(const char *name, struct err *e) NODISCARD;

#endif
