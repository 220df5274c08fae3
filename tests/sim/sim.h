/* sim.h - the server's core with fake agents under one fake clock, from one seed.
 *
 * The core is the real one over a real database; agents, machines, cards, network and clock are
 * played. Everything that happens is written to a history, a JSON object a line (FORMAT in
 * checker.h), which only the checker reads.
 *
 * A machine is one worker: an agent process that may die and come back, supervisors with journals
 * that outlive it, a lease that ends its runs whether the agent lives or not. A message is a call
 * with an answer; each half may be late, lost or doubled. The server may be closed and opened,
 * killed (a copy of its files goes on), or stopped for minutes.
 */
#ifndef TESTS_SIM_SIM_H
#define TESTS_SIM_SIM_H

#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"
#include "server/core.h"
#include "server/store.h"

#include <stdio.h>

#define SIM_SECOND INT64_C(1000000000)
#define SIM_GIB ((int64_t)1 << 30)
enum { SIM_MACHINES = 50, SIM_CARDS = 8, SIM_GRAPHS = 6 };

/* Faults that are planted to see that the checker finds them. */
enum sim_canary {
    CANARY_NONE,
    CANARY_START_TWICE,    /* an agent starts an epoch that it has seen */
    CANARY_DROP_RELEASE,   /* the core keeps a run that ended on its card */
    CANARY_COUNT_LESS,     /* the core counts a budget with one GiB less */
    CANARY_FORGET_ADOPTED, /* after a restart the core does not count what runs */
    CANARY_LOSE_RUN,       /* an acknowledged run is not in the database */
    CANARY_OVERTAKE,       /* two runs of one queue change places */
    CANARY_WRONG_REASON,   /* a waiting run is told another's reason */
    CANARY_STALL,          /* the queue is not looked at any more */
    CANARY_OLD_EVENTS,     /* events of an old attempt are taken for the new one's */
    CANARY_EVENT_GAP,      /* an event of a run is lost on the way */
    CANARY_IGNORE_LEASE,   /* a machine runs on without a lease */
    CANARY_AFTER_END,      /* something is written behind the last event of a run */
    CANARY_COUNT
};

struct sim_options {
    uint64_t seed;
    int events; /* operations */
    enum sim_canary canary;
    const char *history; /* file that is written */
    const char *dir;     /* for databases */
};
/* Plays it through: operations, quiescence, the ends of all runs. True when a canary was planted
 * (or none was asked for). */
bool sim_run(const struct sim_options *o);

/* ---- inside: sim.c, sim_agent.c, sim_ops.c ---- */

/* A physical card; several machines of one host may offer it. */
struct sim_card {
    char uuid[24];
    int64_t total_bytes, foreign_bytes;
};
struct sim_host {
    struct sim_card cards[SIM_CARDS];
    int n_cards;
};

/* A run's processes and journal on a machine. */
struct sim_process {
    char run_id[33];
    int64_t epoch, budget_bytes, acked;
    int cards[16], n_cards; /* of the host; -1 the CPU */
    bool alive, ended, canvas, stubborn, stopping;
    int64_t next_ns, ends_ns; /* of the next line of its journal; of its life */
    int outcome, lines;       /* lines: marked events that it wrote */
    VEC(json_t *) journal;    /* payload and type; the sequence is the place from 1 */
};
enum sim_call { CALL_CONNECT, CALL_ORDERS, CALL_REPORT, CALL_LEAVE, CALL_COUNT };
struct sim_machine {
    char name[24], pool[16], session[33];
    int host, n_devices;
    struct {
        char name[24];
        int card; /* -1: the CPU */
    } devices[SIM_CARDS + 1];
    bool one_shot, can_cap, same_host, removed;
    bool up, leaving;
    int generation;
    int64_t up_ns;        /* when the agent comes back; INT64_MAX by hand only */
    int64_t link_ns;      /* no network until then */
    int64_t lease_ns;     /* runs end there; 0 never had one */
    int64_t heartbeat_ns; /* of the next */
    int64_t retry_ns;     /* no call before */
    int64_t after;        /* order number */
    double lease_s;
    int64_t serial[CALL_COUNT]; /* of the call that is out; 0 none */
    VEC(struct sim_process *) processes;
};

enum sim_item_kind { ITEM_REQUEST, ITEM_ANSWER, ITEM_TIMEOUT, ITEM_WAKE };
struct sim_item {
    int64_t at_ns, order;
    enum sim_item_kind kind;
    enum sim_call call;
    int machine, generation;
    int64_t serial, sent_ns;
    bool parked, again; /* a poll that waits at the server; a doubled request */
    enum status status; /* of an answer */
    json_t *body;
};

struct sim_run {
    char run_id[33], key[16];
    int64_t cursor;
    uint64_t row_hash;
    int graph;
    bool over;
};

struct sim {
    struct sim_options options;
    struct rng rng;
    FILE *history;
    int64_t now_ns, wall_us, tick_ns, order, serial;
    int64_t paused_ns; /* the server does nothing until then */
    int64_t back_ns;   /* the server is down until then; 0 up */
    bool drop;         /* it was killed */
    int databases;
    char path[512];
    struct store *store;
    struct core *core;
    struct core_config config;
    char limits[128];
    json_t *devices, *graphs[SIM_GRAPHS];
    struct actor owner;
    struct sim_host hosts[SIM_MACHINES];
    int n_hosts;
    struct sim_machine machines[SIM_MACHINES];
    int n_machines;
    VEC(struct sim_item) items;
    VEC(struct sim_run) runs;
    bool planted; /* the canary */
    bool quiet;   /* no faults any more */
};

uint64_t sim_below(struct sim *s, uint64_t n);
bool sim_one_in(struct sim *s, uint64_t n);
/* A line of the history; takes the object, adds the time. */
void sim_note(struct sim *s, json_t *line);
struct instant sim_now(const struct sim *s);
void sim_item(struct sim *s, struct sim_item item);
/* What changed in a run since it was last written: its row, its events. */
void sim_write_run(struct sim *s, const char *run_id);
struct sim_run *sim_find(struct sim *s, const char *run_id);
/* Lets time go by, with everything that happens meanwhile. */
void sim_pass(struct sim *s, int64_t ns);
void sim_open(struct sim *s);
void sim_shut(struct sim *s, bool kill, int64_t down_ns);
void sim_snapshot(struct sim *s);

/* sim_agent.c */
void machine_step(struct sim *s, int machine); /* the agent does what is due */
void machine_answer(struct sim *s, const struct sim_item *answer);
void machine_lives(struct sim *s, int machine); /* journals go on, lives and leases end */
int64_t machine_next_ns(const struct sim *s, int machine);
void machine_kill_agent(struct sim *s, int machine, int64_t back_ns);
void machine_crash(struct sim *s, int machine, int64_t back_ns); /* power loss */
void machine_disconnect(struct sim_machine *m);                  /* it has to connect again */
void machine_free(struct sim_machine *m);
json_t *machine_devices(struct sim *s, const struct sim_machine *m);

/* sim_ops.c */
void sim_fleet(struct sim *s);
void sim_operation(struct sim *s);
void sim_plant(struct sim *s); /* the canary, when its hour has come */

#endif
