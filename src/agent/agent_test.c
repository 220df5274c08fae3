/* agent_test.c - agents against a fake server: starts, lost replies, restarts, kills, leases,
 * fences. */
#include "agent/agent.h"

#include "agent/folder.h"
#include "base/env.h"
#include "fake_server.h"
#include "test.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

static struct fake server;
static struct agent_options options;

static int agent_main(void *ctx)
{
    char url[64];
    struct err e = {0};
    (void)ctx;
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%d", server.port);
    options.server = url;
    options.secret = "snw_test";
    options.version = "0.1.0";
    options.commit = "c";
    enum status st = agent_run(&options, &e);
    if (st != ST_OK)
        (void)fprintf(stderr, "agent: %s\n", e.text);
    return status_exit(st);
}

static struct process agent_begin(void)
{
    struct process_spec spec = {
        .in = -1, .out = 2, .err = 2, .session = true, .dies_with_us = true};
    struct process p;
    struct err e;
    CHECK_OK(process_fork(&spec, agent_main, NULL, &p, &e), &e);
    return p;
}

static bool is_connected(const struct fake *f, const char *id)
{
    (void)id;
    return *f->session != 0;
}

/* A home, a server and an agent that is connected to it. */
static struct process ready(void)
{
    (void)setenv("SNUG_HOME", test_dir(), 1);
    (void)setenv("SNUG_ALLOW_COMMANDS", "1", 1);
    (void)unsetenv("SNUG_SIM_CARDS");
    fake_open(&server, 0);
    options.name = "t";
    struct process p = agent_begin();
    CHECK(fake_until(&server, is_connected, "", 10000));
    return p;
}

static void done(struct process *p)
{
    struct process_end end;
    (void)process_signal(p, SIGTERM);
    for (int i = 0; i < 400 && !process_wait(p, 0, &end); i++)
        fake_serve(&server, 50);
    CHECK(!process_alive(p));
    fake_close(&server);
}

static json_t *command(const char *id, int64_t epoch, const char *script)
{
    struct start_order o = {
        .run_id = id, .epoch = epoch, .kind = "command", .name = "test", .lane = "queued"};
    o.argv = json_pack("[sss]", "/bin/sh", "-c", script);
    o.devices = json_pack("[s]", "cpu");
    o.uuids = json_pack("[s]", "");
    json_t *doc = wire_write(&wire_start_order, &o);
    json_decref(o.argv);
    json_decref(o.devices);
    json_decref(o.uuids);
    return doc;
}

static void start(const char *id, int64_t epoch, const char *script)
{
    fake_order(&server, "start", id, epoch, command(id, epoch, script));
}

static const char *dir_of(const char *id)
{
    static char dir[1200];
    (void)snprintf(
        dir, sizeof dir, "%s/runs/%s", test_dir(), id); /* a real path, as agents have it */
    return dir;
}

static const char *end_field(const char *id, const char *field)
{
    return json_get_str(fake_event(&server, id, "ended"), field, "");
}

static int64_t lines_of(const char *id, const char *file)
{
    char path[1300], *text;
    size_t n;
    struct err e;
    int64_t lines = 0;
    if (file_read(run_folder_path(dir_of(id), file, path, sizeof path), 1 << 20, &text, &n, &e) !=
        ST_OK)
        return 0;
    for (size_t i = 0; i < n; i++)
        lines += text[i] == '\n';
    mem_free(text);
    return lines;
}

static bool lives(const char *id)
{
    char variable[1300];
    (void)snprintf(variable, sizeof variable, "SNUG_RUN_DIR=%s", dir_of(id));
    struct process_tree t = {.variable = variable};
    return process_tree_list(&t, NULL, 0) > 0;
}

static bool is_gone(const struct fake *f, const char *id)
{
    (void)f;
    return !lives(id) && !run_folder_locked(dir_of(id));
}

static bool is_forgotten(const struct fake *f, const char *id)
{
    char path[1300];
    (void)f;
    return file_exists(run_folder_path(dir_of(id), "done.json", path, sizeof path));
}

static int run_folders(void)
{
    char path[1100];
    struct dirent *entry;
    int n = 0;
    (void)snprintf(path, sizeof path, "%s/runs", test_dir());
    DIR *d = opendir(path);
    while (d && (entry = readdir(d)))
        n += run_id_is_valid(entry->d_name);
    if (d)
        (void)closedir(d);
    return n;
}

static bool few_folders(const struct fake *f, const char *id)
{
    (void)f;
    (void)id;
    return run_folders() <= 3;
}

static bool has_answer(const struct fake *f, const char *id)
{
    (void)id;
    return json_array_size(f->answers) > 0;
}

TEST(
    one_run, "W2 R11: a run is started, its events arrive in order, its end is the last; then it "
             "is forgotten")
{
    struct process p = ready();
    start(A, 1, "echo hello");
    CHECK(fake_until(&server, fake_ended, A, 10000));
    CHECK_STR(end_field(A, "status"), "succeeded");
    CHECK_EQ(fake_count(&server, A, "started"), 1);
    CHECK_STR(json_get_str(fake_event(&server, A, "log"), "text", ""), "hello\n");
    fake_order(&server, "forget", A, 1, NULL);
    CHECK(fake_until(&server, is_forgotten, A, 5000));
    start(A, 1, "echo again");
    fake_serve(&server, 200);
    CHECK_EQ(fake_count(&server, A, "started"), 1);
    done(&p);
    CHECK_EQ(server.left, 1);
}

TEST(
    hello_says_what_it_is,
    "W3 W8 B10: a worker says its devices, its types, that it caps; a heartbeat carries memory")
{
    (void)setenv("SNUG_SIM_CARDS", "RTX 4090:24GiB:sm89:uuid=U0,RTX 3060:12GiB:sm86:uuid=U1", 1);
    (void)setenv("SNUG_HOME", test_dir(), 1);
    fake_open(&server, 0);
    server.heartbeat_s = 0.05;
    options.name = "t";
    options.devices = "cuda:1";
    options.mounts = "lab,scratch";
    struct process p = agent_begin();
    CHECK(fake_until(&server, is_connected, "", 10000));
    const json_t *hello = json_array_get(server.hellos, 0),
                 *devices = json_object_get(hello, "devices");
    CHECK_EQ(json_array_size(devices), 2);
    const json_t *card = json_array_get(devices, 1);
    CHECK_STR(json_get_str(json_array_get(devices, 0), "device", ""), "cpu");
    CHECK_STR(json_get_str(card, "device", ""), "cuda:1");
    CHECK_STR(json_get_str(card, "uuid", ""), "U1");
    CHECK_EQ(json_get_i64(card, "total_bytes", 0), 12LL << 30);
    CHECK(json_get_i64(card, "free_bytes", 0) > 11LL << 30);
    CHECK(json_get_bool(hello, "can_cap", false));
    CHECK_EQ(json_array_size(json_object_get(hello, "mounts")), 2);
    CHECK(strlen(json_get_str(hello, "instance", "")) == 32);
    fake_serve(&server, 400);
    CHECK(server.heartbeats >= 3);
    done(&p);
}

TEST(
    orders_twice,
    "promise-P2 case-Q21: an order that comes twice is done once, whatever its number")
{
    struct process p = ready();
    start(A, 1, "echo x >>\"$SNUG_RUN_DIR/count\"; sleep 0.2");
    start(A, 1, "echo x >>\"$SNUG_RUN_DIR/count\"");
    CHECK(fake_until(&server, fake_started, A, 10000));
    start(A, 1, "echo x >>\"$SNUG_RUN_DIR/count\"");
    CHECK(fake_until(&server, fake_ended, A, 10000));
    start(A, 1, "echo x >>\"$SNUG_RUN_DIR/count\"");
    fake_serve(&server, 200);
    CHECK_EQ(lines_of(A, "count"), 1);
    done(&p);
}

TEST(
    lost_replies, "promise-P10 promise-P12: replies that are lost change nothing: events arrive "
                  "once, without gaps")
{
    struct process p = ready();
    server.lose_replies = 3;
    start(A, 1, "for i in 1 2 3 4 5 6; do echo line $i; sleep 0.12; done");
    CHECK(fake_until(&server, fake_ended, A, 20000));
    CHECK_EQ(server.lose_replies, 0);
    CHECK_EQ(fake_count(&server, A, "started"), 1);
    struct str all;
    str_init(&all);
    for (size_t i = 0; i < json_array_size(server.events); i++)
        str_add(
            &all,
            json_get_str(json_object_get(json_array_get(server.events, i), "payload"), "text", ""));
    CHECK_STR(all.data, "line 1\nline 2\nline 3\nline 4\nline 5\nline 6\n");
    str_release(&all);
    done(&p);
}

TEST(many_events, "R11: a long journal goes out in reports of at most 512 events")
{
    struct process p = ready();
    fake_vanish(&server);
    fake_return(&server);
    fake_forget_sessions(&server);
    CHECK(fake_until(&server, is_connected, "", 10000));
    /* A journal as a graph writes one, and a supervisor that was killed. */
    start(A, 1, "sleep 100");
    CHECK(fake_until(&server, fake_started, A, 10000));
    struct process sup = run_folder_supervisor(dir_of(A));
    CHECK(process_signal(&sup, SIGSTOP));
    struct journal j;
    struct err e;
    CHECK_OK(journal_open(&j, dir_of(A), 1, &e), &e);
    for (int i = 0; i < 3000; i++)
        CHECK_OK(journal_append(&j, EVENT_METRIC, NULL, &e), &e);
    journal_close(&j);
    for (int i = 0; i < 200 && fake_count(&server, A, "metric") < 3000; i++)
        fake_serve(&server, 20);
    CHECK_EQ(fake_count(&server, A, "metric"), 3000);
    CHECK(process_signal(&sup, SIGKILL));
    CHECK(fake_until(&server, fake_ended, A, 10000));
    CHECK_STR(end_field(A, "cause"), "child_lost");
    CHECK(!lives(A));
    done(&p);
}

TEST(
    server_restarts,
    "W1 W7 promise-P11: after a restart of the server its runs are reported again and go on")
{
    struct process p = ready();
    start(A, 1, "echo one; sleep 1; echo two");
    CHECK(fake_until(&server, fake_logged, A, 10000));
    fake_vanish(&server);
    fake_forget_sessions(&server);
    fake_return(&server);
    CHECK(fake_until(&server, is_connected, "", 20000));
    const json_t *hello = json_array_get(server.hellos, json_array_size(server.hellos) - 1);
    const json_t *run = json_array_get(json_object_get(hello, "runs"), 0);
    CHECK_STR(json_get_str(run, "run_id", ""), A);
    CHECK_STR(json_get_str(run, "state", ""), "live");
    CHECK(fake_until(&server, fake_ended, A, 20000));
    CHECK_STR(end_field(A, "status"), "succeeded");
    CHECK_EQ(fake_count(&server, A, "started"), 1);
    done(&p);
}

TEST(
    agent_killed, "W7 promise-P10 case-M27: runs outlive their agent; the next one takes them over "
                  "and misses no event")
{
    struct process_end end;
    struct process p = ready();
    start(A, 1, "echo one; sleep 1; echo two >>\"$SNUG_RUN_DIR/count\"; echo two");
    CHECK(fake_until(&server, fake_logged, A, 10000));
    CHECK(process_signal(&p, SIGKILL));
    CHECK(process_wait(&p, 5000, &end));
    fake_forget_sessions(&server);
    fake_serve(&server, 300);
    CHECK(run_folder_locked(dir_of(A)));
    p = agent_begin();
    CHECK(fake_until(&server, fake_ended, A, 20000));
    CHECK_STR(end_field(A, "status"), "succeeded");
    CHECK_EQ(fake_count(&server, A, "started"), 1);
    CHECK_EQ(lines_of(A, "count"), 1);
    done(&p);
}

TEST(ended_while_away, "W7: a run that ended while no agent was there is reported with its end")
{
    struct process_end end;
    struct process p = ready();
    start(A, 1, "echo one; sleep 0.3; exit 4");
    CHECK(fake_until(&server, fake_logged, A, 10000));
    CHECK(process_signal(&p, SIGKILL));
    CHECK(process_wait(&p, 5000, &end));
    fake_forget_sessions(&server);
    CHECK(fake_until(&server, is_gone, A, 10000));
    p = agent_begin();
    CHECK(fake_until(&server, fake_ended, A, 20000));
    CHECK_EQ(json_get_i64(fake_event(&server, A, "ended"), "exit_code", 0), 4);
    done(&p);
}

TEST(
    everything_killed, "case-F25 case-F35 promise-P2: with agent, supervisor and work killed the "
                       "next agent says child_lost, once")
{
    struct process_end end;
    struct process p = ready();
    start(A, 1, "(setsid sleep 100 &); echo one; sleep 100");
    CHECK(fake_until(&server, fake_logged, A, 10000));
    struct process sup = run_folder_supervisor(dir_of(A));
    CHECK(process_signal(&p, SIGKILL));
    CHECK(process_signal(&sup, SIGKILL));
    CHECK(process_wait(&p, 5000, &end));
    fake_forget_sessions(&server);
    p = agent_begin();
    CHECK(fake_until(&server, fake_ended, A, 20000));
    CHECK_STR(end_field(A, "status"), "interrupted");
    CHECK_STR(end_field(A, "cause"), "child_lost");
    CHECK(!lives(A));
    CHECK_EQ(fake_count(&server, A, "started"), 1);
    done(&p);
}

TEST(
    supervisor_killed_alone,
    "W2 case-F25: a killed supervisor ends its run alone; another run goes on")
{
    struct process p = ready();
    start(A, 1, "(setsid env -i sleep 100 &); echo one; sleep 100");
    start(B, 1, "echo one; sleep 1.5; echo two");
    CHECK(fake_until(&server, fake_logged, A, 10000));
    CHECK(fake_until(&server, fake_logged, B, 10000));
    struct process sup = run_folder_supervisor(dir_of(A));
    CHECK(process_signal(&sup, SIGKILL));
    CHECK(fake_until(&server, fake_ended, A, 10000));
    CHECK_STR(end_field(A, "cause"), "child_lost");
    CHECK(fake_until(&server, fake_ended, B, 10000));
    CHECK_STR(end_field(B, "status"), "succeeded");
    done(&p);
}

TEST(
    lease_of_the_agent, "promise-P10 W7: without an answer for as long as its lease an agent's "
                        "runs end, before anybody else may start them")
{
    struct process p = ready();
    done(&p);
    fake_open(&server, 0);
    server.lease_s = 1.5;
    server.heartbeat_s = 0.2;
    p = agent_begin();
    CHECK(fake_until(&server, is_connected, "", 10000));
    start(A, 1, "trap '' TERM; echo one; while :; do sleep 0.05; done");
    CHECK(fake_until(&server, fake_logged, A, 10000));
    fake_serve(&server, 2500); /* answers renew it */
    CHECK(run_folder_locked(dir_of(A)));
    fake_vanish(&server);
    int64_t from = clock_ns();
    CHECK(fake_until(&server, is_gone, A, 10000));
    CHECK(clock_ns() - from < 4000000000);
    fake_return(&server);
    fake_forget_sessions(&server);
    CHECK(fake_until(&server, fake_ended, A, 20000));
    CHECK_STR(end_field(A, "cause"), "agent_lost");
    done(&p);
}

TEST(
    stopped_agent_loses_its_lease,
    "promise-P10: an agent that is stopped past its lease has no runs when it wakes")
{
    struct process p = ready();
    done(&p);
    fake_open(&server, 0);
    server.lease_s = 1;
    server.heartbeat_s = 0.2;
    p = agent_begin();
    CHECK(fake_until(&server, is_connected, "", 10000));
    start(A, 1, "echo one; sleep 100");
    CHECK(fake_until(&server, fake_logged, A, 10000));
    CHECK(process_signal(&p, SIGSTOP));
    CHECK(fake_until(&server, is_gone, A, 10000));
    CHECK(process_signal(&p, SIGCONT));
    CHECK(fake_until(&server, fake_ended, A, 20000));
    CHECK_STR(end_field(A, "cause"), "agent_lost");
    done(&p);
}

TEST(
    fenced,
    "promise-P12 promise-P2: a run that moved on is killed and forgotten by the agent that had it")
{
    struct process p = ready();
    start(A, 1, "trap '' TERM; echo one; while :; do echo more; sleep 0.1; done");
    CHECK(fake_until(&server, fake_logged, A, 10000));
    (void)json_array_append_new(server.fenced, json_string(A));
    CHECK(fake_until(&server, is_gone, A, 10000));
    CHECK(fake_until(&server, is_forgotten, A, 5000));
    done(&p);
}

TEST(
    verdict_forget, "promise-P12 case-F13: what the server gave up while the agent was away is "
                    "killed on its return, nothing else")
{
    struct process_end end;
    struct process p = ready();
    start(A, 1, "echo one; sleep 100");
    start(B, 1, "echo one; sleep 2; echo two");
    CHECK(fake_until(&server, fake_logged, A, 10000));
    CHECK(fake_until(&server, fake_logged, B, 10000));
    CHECK(process_signal(&p, SIGKILL));
    CHECK(process_wait(&p, 5000, &end));
    fake_forget_sessions(&server);
    json_put_str(server.verdicts, A, "forget");
    p = agent_begin();
    CHECK(fake_until(&server, is_forgotten, A, 10000));
    CHECK(!lives(A));
    CHECK(fake_until(&server, fake_ended, B, 10000));
    CHECK_STR(end_field(B, "status"), "succeeded");
    CHECK(!fake_ended(&server, A));
    done(&p);
}

TEST(
    next_attempt,
    "promise-P2 promise-P12: the next attempt starts when nothing of the one before is left")
{
    struct process p = ready();
    start(A, 1, "echo one; sleep 100");
    CHECK(fake_until(&server, fake_logged, A, 10000));
    json_object_clear(server.sequences); /* of the attempt before */
    json_array_clear(server.events);
    fake_order(&server, "start", A, 2, command(A, 2, "echo second"));
    CHECK(fake_until(&server, fake_ended, A, 20000));
    CHECK_STR(json_get_str(fake_event(&server, A, "log"), "text", ""), "second\n");
    CHECK_EQ(json_get_i64(json_array_get(server.events, 0), "epoch", 0), 2);
    CHECK(!lives(A));
    done(&p);
}

TEST(
    stop_and_kill, "promise-P9: a cancelled run is asked to stop, a killed one has no choice; the "
                   "tree is gone by its end")
{
    struct process p = ready();
    start(A, 1, "trap 'echo bye; exit 0' TERM; echo one; while :; do sleep 0.05; done");
    start(B, 1, "trap '' TERM; (setsid sleep 100 &); echo one; while :; do sleep 0.05; done");
    CHECK(fake_until(&server, fake_logged, A, 10000));
    CHECK(fake_until(&server, fake_logged, B, 10000));
    fake_order(&server, "stop", A, 1, NULL);
    fake_order(&server, "kill", B, 1, NULL);
    CHECK(fake_until(&server, fake_ended, A, 10000));
    CHECK_STR(end_field(A, "status"), "cancelled");
    CHECK(fake_until(&server, fake_ended, B, 10000));
    CHECK_STR(end_field(B, "status"), "cancelled");
    CHECK(!lives(A) && !lives(B));
    done(&p);
}

TEST(stop_before_it_began, "promise-P9: a stop right behind the start is not lost")
{
    struct process p = ready();
    for (int i = 0; i < 10; i++) {
        char id[33];
        (void)snprintf(id, sizeof id, "%032d", i);
        start(id, 1, "sleep 100");
        fake_order(&server, "stop", id, 1, NULL);
    }
    for (int i = 0; i < 10; i++) {
        char id[33];
        (void)snprintf(id, sizeof id, "%032d", i);
        CHECK(fake_until(&server, fake_ended, id, 20000));
        CHECK_STR(end_field(id, "status"), "cancelled");
    }
    done(&p);
}

TEST(
    agent_stops, "case-F27 case-F29: an agent that is stopped stops its runs: interrupted, and "
                 "told before it leaves")
{
    struct process p = ready();
    start(A, 1, "echo one; sleep 100");
    CHECK(fake_until(&server, fake_logged, A, 10000));
    struct process_end end;
    CHECK(process_signal(&p, SIGTERM));
    for (int i = 0; i < 200 && !process_wait(&p, 0, &end); i++)
        fake_serve(&server, 50);
    CHECK(fake_ended(&server, A));
    CHECK_STR(end_field(A, "status"), "interrupted");
    CHECK_STR(end_field(A, "cause"), "agent_stopped");
    CHECK_EQ(server.left, 1);
    fake_close(&server);
}

TEST(exit_order, "W6: a worker that is removed stops its runs and leaves")
{
    struct process p = ready();
    start(A, 1, "echo one; sleep 100");
    CHECK(fake_until(&server, fake_logged, A, 10000));
    struct process_end end;
    fake_order(&server, "exit", "", 0, NULL);
    for (int i = 0; i < 200 && !process_wait(&p, 0, &end); i++)
        fake_serve(&server, 50);
    CHECK_STR(end_field(A, "cause"), "server_stopped");
    CHECK(!process_alive(&p));
    fake_close(&server);
}

TEST(refused_starts, "B10 W2: what an agent cannot do ends at once and says why")
{
    struct process p = ready();
    json_t *order = command(A, 1, "true");
    json_put(order, "devices", json_pack("[s]", "cuda:3"));
    fake_order(&server, "start", A, 1, order);
    CHECK(fake_until(&server, fake_ended, A, 10000));
    CHECK_STR(end_field(A, "status"), "failed");
    CHECK_STR(end_field(A, "cause"), "could_not_start");
    CHECK_STR(end_field(A, "error"), "worker t has no cuda:3 any more");
    CHECK(!fake_started(&server, A));
    done(&p);
}

TEST(other_card, "R9 B10: a card that is not the one the server means is refused")
{
    (void)setenv("SNUG_HOME", test_dir(), 1);
    (void)setenv("SNUG_SIM_CARDS", "RTX 4090:24GiB:sm89:uuid=U0", 1);
    (void)setenv("SNUG_ALLOW_COMMANDS", "0", 1);
    fake_open(&server, 0);
    options.name = "t";
    struct process p = agent_begin();
    CHECK(fake_until(&server, is_connected, "", 10000));
    json_t *order = command(A, 1, "true");
    json_put_str(order, "kind", "graph");
    json_put(order, "devices", json_pack("[s]", "cuda:0"));
    json_put(order, "uuids", json_pack("[s]", "U9"));
    fake_order(&server, "start", A, 1, order);
    CHECK(fake_until(&server, fake_ended, A, 10000));
    CHECK(strstr(end_field(A, "error"), "cuda:0 any more with UUID U9"));
    start(B, 1, "true");
    CHECK(fake_until(&server, fake_ended, B, 10000));
    CHECK(strstr(end_field(B, "error"), "does not run commands"));
    done(&p);
}

TEST(
    accepted_never_begun, "promise-P2: a run that was accepted and never began starts once the "
                          "server wants it, and only then")
{
    struct err e;
    enum run_folder_seen seen;
    (void)setenv("SNUG_HOME", test_dir(), 1);
    (void)setenv("SNUG_ALLOW_COMMANDS", "1", 1);
    fake_open(&server, 0);
    options.name = "t";
    json_t *a = command(A, 1, "echo x"), *b = command(B, 1, "echo x");
    CHECK_OK(run_folder_accept(dir_of(A), a, "t", "", &seen, &e), &e);
    CHECK_OK(run_folder_accept(dir_of(B), b, "t", "", &seen, &e), &e);
    json_put_str(server.verdicts, B, "forget");
    struct process p = agent_begin();
    CHECK(fake_until(&server, fake_ended, A, 10000));
    CHECK_STR(end_field(A, "status"), "succeeded");
    CHECK(fake_until(&server, is_forgotten, B, 5000));
    CHECK(!fake_started(&server, B));
    json_decref(a);
    json_decref(b);
    done(&p);
}

TEST(other_agents_runs, "W7 R9: agents under one home leave each other's runs alone")
{
    struct err e;
    enum run_folder_seen seen;
    struct process p = ready();
    json_t *a = command(A, 1, "echo x");
    CHECK_OK(run_folder_accept(dir_of(A), a, "other", "", &seen, &e), &e);
    json_decref(a);
    fake_forget_sessions(&server);
    CHECK(fake_until(&server, is_connected, "", 10000));
    const json_t *hello = json_array_get(server.hellos, json_array_size(server.hellos) - 1);
    CHECK_EQ(json_array_size(json_object_get(hello, "runs")), 0);
    done(&p);
}

TEST(
    one_name_once,
    "case-Q13: of two agents of one name under one home the second is told, the first unharmed")
{
    struct process_end end;
    struct process p = ready();
    struct process second = agent_begin();
    for (int i = 0; i < 100 && !process_wait(&second, 0, &end); i++)
        fake_serve(&server, 50);
    CHECK_EQ(end.exit_code, 1);
    start(A, 1, "true");
    CHECK(fake_until(&server, fake_ended, A, 10000));
    done(&p);
}

TEST(
    no_room_for_a_run,
    "promise-P13: a start that finds no room on the disk fails with its reason; the agent goes on")
{
    struct process p = ready();
    struct err e;
    CHECK_OK(file_write(dir_of(A), "in the way", 10, &e), &e);
    start(A, 1, "true");
    CHECK(fake_until(&server, fake_ended, A, 10000));
    CHECK_STR(end_field(A, "cause"), "could_not_start");
    start(B, 1, "true");
    CHECK(fake_until(&server, fake_ended, B, 10000));
    CHECK_STR(end_field(B, "status"), "succeeded");
    done(&p);
}

TEST(one_shot, "W9: a one-shot worker takes one run and leaves when its end is told")
{
    options.one_shot = true;
    options.pool = "night";
    struct process p = ready();
    struct process_end end;
    CHECK_STR(json_get_str(json_array_get(server.hellos, 0), "pool", ""), "night");
    start(A, 1, "echo one");
    start(B, 1, "echo one");
    for (int i = 0; i < 200 && !process_wait(&p, 0, &end); i++)
        fake_serve(&server, 50);
    CHECK_EQ(end.exit_code, 0);
    CHECK(fake_ended(&server, A));
    CHECK(!fake_started(&server, B));
    CHECK_EQ(server.left, 1);
    fake_close(&server);
}

TEST(reads_the_log, "W9 R11: a question about a run's log is answered through the agent")
{
    struct process p = ready();
    start(A, 1, "echo hello; echo world");
    CHECK(fake_until(&server, fake_ended, A, 10000));
    fake_order(
        &server, "read", A, 1, json_pack("{sssisi}", "what", "log", "offset", 6, "bytes", 3));
    CHECK(fake_until(&server, has_answer, "", 10000));
    const json_t *answer = json_array_get(server.answers, 0);
    CHECK_EQ(json_get_i64(answer, "status", 0), 200);
    CHECK_STR(json_get_str(json_object_get(answer, "body"), "text", ""), "wor");
    CHECK_EQ(json_get_i64(json_object_get(answer, "body"), "offset", 0), 9);
    CHECK_EQ(json_get_i64(json_object_get(answer, "body"), "size", 0), 12);
    json_array_clear(server.answers);
    fake_order(&server, "read", B, 1, json_pack("{ss}", "what", "log"));
    CHECK(fake_until(&server, has_answer, "", 10000));
    CHECK_EQ(json_get_i64(json_array_get(server.answers, 0), "status", 0), 404);
    done(&p);
}

TEST(flood_beside, "promise-P13: a run that floods its output does not hold up another's events")
{
    struct process p = ready();
    start(A, 1, "exec yes 'a line of output that goes on and on'");
    CHECK(fake_until(&server, fake_logged, A, 10000));
    fake_serve(&server, 300);
    int64_t from = clock_ns();
    start(B, 1, "echo one");
    CHECK(fake_until(&server, fake_ended, B, 10000));
    CHECK(clock_ns() - from < 5000000000);
    fake_order(&server, "kill", A, 1, NULL);
    CHECK(fake_until(&server, fake_ended, A, 10000));
    done(&p);
}

static bool asked_again(const struct fake *f, const char *id)
{
    (void)id;
    return json_array_size(f->hellos) >= 2;
}

TEST(
    refused_for_now, "W4 case-F37: an agent that is refused keeps asking, and comes in when it may")
{
    (void)setenv("SNUG_HOME", test_dir(), 1);
    fake_open(&server, 0);
    server.refuse = 409;
    options.name = "t";
    struct process p = agent_begin();
    CHECK(fake_until(&server, asked_again, "", 10000));
    server.refuse = 0;
    CHECK(fake_until(&server, is_connected, "", 10000));
    done(&p);
}

TEST(revoked, "W6 H2: an agent whose credential is not known any more leaves with the reason")
{
    struct process_end end;
    (void)setenv("SNUG_HOME", test_dir(), 1);
    fake_open(&server, 0);
    server.refuse = 401;
    options.name = "t";
    struct process p = agent_begin();
    for (int i = 0; i < 400 && !process_wait(&p, 0, &end); i++)
        fake_serve(&server, 50);
    CHECK_EQ(end.exit_code, 1);
    fake_close(&server);
}

TEST(
    old_folders_go, "promise-P13 W9: of runs that are over the newest folders stay, so that a "
                    "worker's disk does not fill")
{
    (void)setenv("SNUG_AGENT_RUNS_KEPT", "3", 1);
    struct process p = ready();
    for (int i = 0; i < 6; i++) {
        char id[33];
        (void)snprintf(id, sizeof id, "%032d", i);
        start(id, 1, "true");
        CHECK(fake_until(&server, fake_ended, id, 10000));
        fake_order(&server, "forget", id, 1, NULL);
        CHECK(fake_until(&server, is_forgotten, id, 5000));
    }
    CHECK(fake_until(&server, few_folders, "", 5000));
    char last[33];
    (void)snprintf(last, sizeof last, "%032d", 5);
    CHECK(is_forgotten(&server, last)); /* the newest stayed */
    done(&p);
}

/* In place of src/child: says which process ran, in each folder, and takes the next. */
static bool warm_result(const char *dir)
{
    char path[1300];
    struct err e;
    json_t *end = run_folder_end(CAUSE_DONE, NULL, NULL, 0, 0);
    json_put(end, "facts", json_pack("{si}", "pid", (int)getpid()));
    char *text = json_text(end, false);
    json_decref(end);
    (void)run_folder_path(dir, "result.json", path, sizeof path);
    enum status st = file_write(path, text, strlen(text), &e);
    mem_free(text);
    return st == ST_OK;
}

static int graph_warm(const char *dir, int control_fd)
{
    char line[2048], next[1200];
    FILE *in = control_fd >= 0 ? fdopen(dup(control_fd), "r") : NULL;
    (void)snprintf(next, sizeof next, "%s", dir);
    while (warm_result(next) && in) {
        struct err e;
        json_t *doc = NULL;
        int n =
            snprintf(line, sizeof line, "{\"ended\":\"%s\",\"exit_code\":0,\"caches\":{}}\n", next);
        if (write(control_fd, line, (size_t)n) != n || !fgets(line, sizeof line, in) ||
            json_parse(line, strlen(line), "line", &doc, &e) != ST_OK)
            break;
        (void)snprintf(next, sizeof next, "%s", json_get_str(doc, "run", "/nowhere"));
        json_decref(doc);
    }
    return 0;
}

static int64_t ran_in(const char *id)
{
    const json_t *end = fake_event(&server, id, "ended");
    CHECK_STR(json_get_str(end, "status", ""), "succeeded");
    return json_get_i64(json_object_get(end, "facts"), "pid", 0);
}

static void canvas(const char *id, const char *tab)
{
    json_t *order = command(id, 1, "");
    json_put_str(order, "kind", "graph");
    json_put_str(order, "lane", "interactive");
    json_put_str(order, "tab", tab);
    fake_order(&server, "start", id, 1, order);
    CHECK(fake_until(&server, fake_ended, id, 10000));
}

TEST(
    warm_tabs,
    "R1 S5: runs of a tab go to one process until it is told to leave; another tab has its own")
{
    options.graph = graph_warm;
    struct process p = ready();
    canvas("00000000000000000000000000000001", "one");
    canvas("00000000000000000000000000000002", "one");
    canvas("00000000000000000000000000000003", "two");
    int64_t first = ran_in("00000000000000000000000000000001");
    CHECK(first > 0);
    CHECK_EQ(ran_in("00000000000000000000000000000002"), first);
    CHECK(ran_in("00000000000000000000000000000003") != first);
    fake_order(&server, "evict", "", 0, json_pack("{ssss}", "tab", "one", "what", "child"));
    struct process warm = process_of((pid_t)first);
    for (int i = 0; i < 200 && process_alive(&warm); i++)
        fake_serve(&server, 20);
    CHECK(!process_alive(&warm));
    canvas("00000000000000000000000000000004", "one");
    CHECK(ran_in("00000000000000000000000000000004") != first);
    done(&p);
}
