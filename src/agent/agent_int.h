/* agent_int.h - the state of an agent; for the files agent*.c. */
#ifndef AGENT_AGENT_INT_H
#define AGENT_AGENT_INT_H

#include "agent/agent.h"
#include "agent/folder.h"
#include "agent/spawner.h"
#include "base/client.h"
#include "base/mem.h"
#include "base/shared.h"
#include "mem/device.h"

#include <pthread.h>
#include <stdatomic.h>

/* A run of ours. Under the agent's lock. */
struct agent_run {
    char id[WIRE_RUN_ID + 1];
    int64_t epoch;
    char dir[900];
    json_t *devices;
    int64_t budget_bytes;
    char tab[65]; /* interactive: of the editor; "" */

    /* Forwarding. What the server has is `stored`; the reader is behind what was sent. */
    struct journal_reader reader;
    int watch;  /* inotify; -1: none */
    bool fresh; /* there may be something to read */
    int64_t stored, sent;
    json_t *said_end;    /* an end that could not be written to the disk: a payload */
    bool end_sent, over; /* over: its `ended` is stored */
    bool ending;         /* it has said how it ends */

    /* Its processes. */
    bool alive;        /* the supervisor is there, or may be */
    bool waits;        /* adopted, never begun: starts when the server says "keep" */
    bool starts_again; /* its supervisor vanished before it began; once */
    struct process supervisor;
    int64_t kill_since_ns; /* 0: nobody wants it dead */
    bool forget;           /* once it is dead */
};
struct warm {
    struct process supervisor;
    char tab[65];
    int fd;                       /* to its supervisor; -1: gone */
    char run_id[WIRE_RUN_ID + 1]; /* "": idle */
    json_t *devices, *caches;
    int64_t budget_bytes, used_ns; /* used_ns: when it last got a run */
    struct str lines;
};

struct agent {
    const struct agent_options *o;
    char name[65], instance[33], machine[33];
    char runs_dir[900], lease_path[1000], state_path[1000];
    bool allow_commands;
    struct spawner *spawner;
    struct devices devices;
    struct shared held; /* the lock of the name */
    struct lease lease;
    int inotify, kick; /* eventfd: something for the report thread */

    pthread_mutex_t lock; /* everything below, and devices */
    char session[65];     /* "": not connected */
    char secret[256];     /* opens the server's door; "": that of this SNUG_HOME's server */
    char known_as[65];    /* the worker's name at the server */
    char url[256];        /* of the server it is, or was last, connected to */
    bool ever_connected;
    double heartbeat_s, lease_s;
    int64_t heard_ns; /* when the last message was sent that was answered */
    VEC(struct agent_run *) runs;
    VEC(struct warm *) warms;
    json_t *answers;
    size_t forgotten; /* since old folders were dropped */
    int taken;        /* runs that a one-shot took */
    bool caches_news; /* what caches hold has changed: the next report says so */

    atomic_bool leaving, quit; /* leaving: runs are being stopped; quit: threads end */
    enum cause exit_cause;     /* of the runs that are stopped as it leaves */
    bool refused;              /* for good: `why` */
    struct err why;
};

/* ---- agent_runs.c: the lock is held ---- */
struct agent_run *agent_run_find(struct agent *a, const char *id);
void agent_run_start(struct agent *a, const struct order *order);
/* The process of an accepted run that has none. */
void agent_run_spawn(struct agent *a, struct agent_run *r);
void agent_run_stop(struct agent *a, const char *id, int64_t epoch, enum cause why);
void agent_run_kill(struct agent *a, struct agent_run *r, enum cause why);
/* The server has its end, or never knew it. */
void agent_run_forget(struct agent *a, struct agent_run *r);
/* What is on the disk at the start. */
void agent_runs_adopt(struct agent *a);
/* Those whose supervisor vanished, those to be killed harder, those to be forgotten. */
void agent_runs_look(struct agent *a);
void agent_runs_stop_all(struct agent *a, enum cause why);
void agent_runs_kill_all(struct agent *a, enum cause why);
size_t agent_runs_alive(const struct agent *a);
void agent_runs_release(struct agent *a);

/* ---- agent_warm.c: the lock is held ---- */
/* Gives the run to the tab's warm child. False: there is none that may have it; *fd is then the
 * agent's end for a new supervisor, and *theirs the supervisor's (close it after the start). */
bool agent_warm_take(
    struct agent *a, const struct run_folder *f, int *theirs, struct process *supervisor);
/* The supervisor that was started for it. */
void agent_warm_started(struct agent *a, const char *run_id, const struct process *supervisor);
void agent_warm_ended(struct agent *a, const char *run_id);
void agent_warm_read(struct agent *a, struct warm *w);
void agent_warm_evict(struct agent *a, const json_t *body);
void agent_warms_close(struct agent *a);
json_t *agent_warm_caches(const struct agent *a);

/* ---- agent_orders.c, agent_report.c: threads ---- */
void *agent_orders_thread(void *agent);
void *agent_report_thread(void *agent);
void agent_kick(struct agent *a);
/* A client for the server, with the secret as it is now. */
enum status agent_client(struct agent *a, struct client **out, struct err *e) NODISCARD;
/* An answer came to what was sent at that time: the lease goes on. The lock is held. */
void agent_heard(struct agent *a, int64_t sent_ns);

/* ---- agent_read.c ---- */
json_t *agent_answer(const struct agent *a, const struct order *o); /* an `answer` */

/* ---- agent_devices.c ---- */
json_t *agent_device_reports(struct agent *a);
bool agent_device_offered(const struct agent *a, const char *device);
struct device *agent_device(struct agent *a, const char *device);
json_t *agent_environment(void);

#endif
