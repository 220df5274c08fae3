/* server_int.h - what the files of the server as a whole share. */
#ifndef SERVER_SERVER_INT_H
#define SERVER_SERVER_INT_H

#include "server/core.h"
#include "server/server.h"

#include "base/process.h"
#include "base/shared.h"
#include "mem/device.h"

#include <pthread.h>

/* The built-in worker: `snug agent start --builtin`, started anew when it ends. */
struct builtin {
    struct process process; /* pid 0: does not run as our child */
    int64_t began_ns, again_ns;
    int failures; /* in a row */
};

struct server_inside {
    struct shared lock_file; /* SNUG_HOME/server.lock */
    char url[320], card[1024], spool[1024];
    char machine[33], nodes_hash[33];
    json_t *node_types, *device_reports;
    pthread_mutex_t devices_lock; /* the list is for one thread at a time */
    struct devices devices;
    bool devices_open;
    /* the timer */
    pthread_mutex_t lock;
    pthread_cond_t sooner;
    pthread_t timer;
    int64_t due_ns;
    bool timed, ends;
    struct builtin builtin;
    struct retention *retention; /* retention.h */
    struct ssh *ssh;             /* ssh.h; NULL before the first look */
};

struct instant instant_of_now(void);
struct sweeps server_sweeps(struct server *s); /* sweep.h; route_sweeps.c */
/* A few times a second: starts the built-in worker, where it should run and does not. */
void builtin_watch(struct server *s);
void builtin_stop(struct server *s); /* asks it to end, waits a little */
/* The environment without what children are not to know; the list is freed by mem_free, its texts
 * are the process's own. */
char **child_environment(void);

#endif
