/* supervisor_test.c - commands and graphs under their supervisor: ends, signals, what is left
 * behind, kills of every process. */
#include "agent/supervisor_int.h"

#include "agent/folder.h"
#include "agent/output.h"
#include "base/env.h"
#include "base/mem.h"
#include "test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define RUN "0123456789abcdef0123456789abcdef"

static void pause_ms(int ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    (void)nanosleep(&t, NULL);
}

static json_t *order_of(const char *kind, json_t *argv)
{
    struct start_order o = {
        .run_id = RUN, .epoch = 1, .kind = kind, .name = "test", .lane = "queued", .argv = argv};
    json_t *doc = wire_write(&wire_start_order, &o);
    json_decref(argv);
    return doc;
}

static json_t *shell(const char *script)
{
    return order_of("command", json_pack("[sss]", "/bin/sh", "-c", script));
}

/* A run folder of the test with this order, which is taken. */
static const char *accepted(json_t *order)
{
    static char dir[1100];
    struct err e;
    enum run_folder_seen seen;
    (void)snprintf(dir, sizeof dir, "%s/run", test_dir());
    (void)setenv("SNUG_HOME", test_dir(), 1);
    CHECK_OK(run_folder_accept(dir, order, "w", json_get_str(order, "lease", ""), &seen, &e), &e);
    CHECK_EQ(seen, FOLDER_NEW);
    json_decref(order);
    return dir;
}

static int graph_nothing(const char *dir, int control_fd)
{
    (void)dir;
    (void)control_fd;
    return 0;
}

static supervisor_graph *graph_under_test = graph_nothing;
static int control_under_test = -1;

static int supervise(void *ctx)
{
    struct supervisor_options o = {
        .dir = ctx, .graph = graph_under_test, .control_fd = control_under_test};
    return supervisor_run(&o);
}

static struct process supervisor_start(const char *dir)
{
    struct process_spec spec = {
        .in = -1, .out = -1, .err = 2, .session = true, .dies_with_us = true};
    struct process p;
    struct err e;
    if (control_under_test >= 0) {
        spec.keep = &control_under_test;
        spec.n_keep = 1;
    }
    CHECK_OK(process_fork(&spec, supervise, (void *)(uintptr_t)dir, &p, &e), &e);
    return p;
}

/* The payload of the last event of that type; NULL: none. Checks that sequences have no gaps. */
static json_t *last_event(const char *dir, const char *type)
{
    struct journal_reader r;
    struct run_event ev;
    struct err e;
    json_t *doc, *found = NULL;
    int bad = 0;
    int64_t at = 0;
    CHECK_OK(journal_read_open(&r, dir, &e), &e);
    while (journal_next(&r, &doc, &ev, &bad)) {
        CHECK_EQ(ev.sequence, ++at);
        if (strcmp(ev.type, type) == 0) {
            json_decref(found);
            found = json_incref(ev.payload);
        }
        json_decref(doc);
    }
    CHECK_EQ(bad, 0);
    journal_read_close(&r);
    return found;
}

static json_t *wait_for_event(const char *dir, const char *type)
{
    for (int i = 0; i < 1000; i++) {
        json_t *found = last_event(dir, type);
        if (found)
            return found;
        pause_ms(10);
    }
    test_fail(__FILE__, __LINE__, "no event %s", type);
}

static json_t *run_to_end(json_t *order, const char **dir)
{
    struct process_end end;
    *dir = accepted(order);
    struct process p = supervisor_start(*dir);
    CHECK(process_wait(&p, 30000, &end));
    CHECK_EQ(end.exit_code, 0);
    CHECK(!run_folder_locked(*dir));
    json_t *ended = last_event(*dir, "ended");
    CHECK(ended);
    return ended;
}

static char *log_of(const char *dir)
{
    char path[1200], *text;
    size_t n;
    struct err e;
    CHECK_OK(
        file_read(run_folder_path(dir, "output.log", path, sizeof path), 64 << 20, &text, &n, &e),
        &e);
    return text;
}

TEST(
    command_succeeds,
    "W2 R11: a command's output is in the log and in events, its end in the journal")
{
    const char *dir;
    json_t *end = run_to_end(shell("echo hello; echo there >&2"), &dir);
    CHECK_STR(json_get_str(end, "status", ""), "succeeded");
    CHECK_STR(json_get_str(end, "cause", ""), "done");
    CHECK_EQ(json_get_i64(end, "exit_code", -7), 0);
    char *text = log_of(dir);
    CHECK_STR(text, "hello\nthere\n");
    mem_free(text);
    json_t *log = last_event(dir, "log");
    CHECK_STR(json_get_str(log, "text", ""), "hello\nthere\n");
    json_decref(log);
    json_decref(end);
}

TEST(command_fails, "W2: an exit status is a failure with its number")
{
    const char *dir;
    json_t *end = run_to_end(shell("exit 7"), &dir);
    CHECK_STR(json_get_str(end, "status", ""), "failed");
    CHECK_STR(json_get_str(end, "cause", ""), "exit_status");
    CHECK_STR(json_get_str(end, "error", ""), "the command ended with status 7");
    CHECK_EQ(json_get_i64(end, "exit_code", 0), 7);
    json_decref(end);
}

TEST(command_crashes, "W2: a signal is a crash with its name")
{
    const char *dir;
    json_t *end = run_to_end(shell("kill -SEGV $$"), &dir);
    CHECK_STR(json_get_str(end, "cause", ""), "crashed");
    CHECK_STR(json_get_str(end, "error", ""), "a signal ended its process: SIGSEGV (11)");
    CHECK_EQ(json_get_i64(end, "signal", 0), SIGSEGV);
    CHECK_EQ(json_get_i64(end, "exit_code", 0), -1);
    json_decref(end);
}

TEST(command_missing, "W2: what cannot be executed says so")
{
    const char *dir;
    json_t *end = run_to_end(order_of("command", json_pack("[s]", "no-such-program")), &dir);
    CHECK_STR(json_get_str(end, "cause", ""), "could_not_start");
    CHECK(strstr(json_get_str(end, "error", ""), "cannot execute \"no-such-program\""));
    json_decref(end);
}

TEST(no_second_start, "promise-P2 case-Q21: an epoch that is in the journal is not started again")
{
    const char *dir;
    struct process_end end;
    char path[1200], *text;
    size_t n;
    struct err e;
    json_t *ended = run_to_end(shell("echo x >> \"$SNUG_RUN_DIR/count\""), &dir);
    json_decref(ended);
    struct process p = supervisor_start(dir);
    CHECK(process_wait(&p, 10000, &end));
    CHECK_EQ(end.exit_code, 0);
    CHECK_OK(file_read(run_folder_path(dir, "count", path, sizeof path), 100, &text, &n, &e), &e);
    CHECK_STR(text, "x\n");
    mem_free(text);
}

TEST(two_supervisors, "promise-P2: of two supervisors at once one stands back")
{
    const char *dir = accepted(shell("echo x >> \"$SNUG_RUN_DIR/count\"; sleep 0.3"));
    struct process_end end;
    int zero = 0;
    struct process p[4];
    for (int i = 0; i < 4; i++)
        p[i] = supervisor_start(dir);
    for (int i = 0; i < 4; i++) {
        CHECK(process_wait(&p[i], 10000, &end));
        zero += end.exit_code == 0;
    }
    CHECK(zero >= 1);
    char path[1200], *text;
    size_t n;
    struct err e;
    CHECK_OK(file_read(run_folder_path(dir, "count", path, sizeof path), 100, &text, &n, &e), &e);
    CHECK_STR(text, "x\n");
    mem_free(text);
    json_decref(last_event(dir, "ended"));
}

static bool anything_of_run(void)
{
    char variable[1200];
    (void)snprintf(variable, sizeof variable, "SNUG_RUN_DIR=%s/run", test_dir());
    struct process_tree t = {.variable = variable};
    return process_tree_list(&t, NULL, 0) > 0;
}

TEST(
    daemons_end_first,
    "W2 promise-P9 case-F35: a run is over when what it left in the background is gone")
{
    const char *dir;
    json_t *end = run_to_end(
        shell("(setsid sh -c 'trap \"\" TERM; sleep 100' &) ; (setsid env -i sleep 100 &); "
              "sleep 0.2; echo done"),
        &dir);
    CHECK_STR(json_get_str(end, "status", ""), "succeeded");
    CHECK(!anything_of_run());
    json_decref(end);
}

TEST(
    forks_do_not_get_away,
    "promise-P9 case-F31: a tree that forks while it is killed is killed whole")
{
    const char *dir = accepted(shell("for i in 1 2 3 4; do (trap '' TERM; while :; do sleep 0.01; "
                                     "(sleep 50 &); done) & done; wait"));
    struct process_end end;
    struct process p = supervisor_start(dir);
    json_decref(wait_for_event(dir, "started"));
    pause_ms(300);
    CHECK(process_signal(&p, SIGINT));
    CHECK(process_wait(&p, 20000, &end));
    CHECK(!anything_of_run());
    json_t *ended = last_event(dir, "ended");
    CHECK_STR(json_get_str(ended, "status", ""), "interrupted");
    json_decref(ended);
}

TEST(stop_is_asked_first, "promise-P9: a stop is a SIGTERM to the work, and its cause is who asked")
{
    const char *dir = accepted(
        shell("trap 'echo stopping; exit 0' TERM; echo ready; while :; do sleep 0.05; done"));
    struct process_end end;
    struct err e;
    struct process p = supervisor_start(dir);
    json_decref(wait_for_event(dir, "log"));
    CHECK_OK(run_folder_stop_write(dir, CAUSE_CANCELLED, &e), &e);
    CHECK(process_signal(&p, SIGTERM));
    CHECK(process_wait(&p, 20000, &end));
    json_t *ended = last_event(dir, "ended");
    CHECK_STR(json_get_str(ended, "status", ""), "cancelled");
    CHECK_STR(json_get_str(ended, "cause", ""), "cancelled");
    json_decref(ended);
    char *text = log_of(dir);
    CHECK_STR(text, "ready\nstopping\n");
    mem_free(text);
}

TEST(stop_has_a_limit, "promise-P9: a command that does not stop is killed after its grace")
{
    (void)setenv("SNUG_STOP_GRACE_S", "1", 1);
    const char *dir = accepted(shell("trap '' TERM; echo ready; while :; do sleep 0.05; done"));
    struct process_end end;
    struct process p = supervisor_start(dir);
    json_decref(wait_for_event(dir, "log"));
    CHECK(process_signal(&p, SIGTERM));
    CHECK(process_wait(&p, 20000, &end));
    json_t *ended = last_event(dir, "ended");
    CHECK_STR(json_get_str(ended, "cause", ""), "agent_stopped");
    CHECK_EQ(json_get_i64(ended, "signal", 0), SIGKILL);
    json_decref(ended);
}

TEST(time_limit, "R11: a run past its time limit is stopped and says so")
{
    const char *dir;
    json_t *order = shell("sleep 100");
    json_put_f64(order, "timeout_s", 0.2);
    json_t *end = run_to_end(order, &dir);
    CHECK_STR(json_get_str(end, "status", ""), "failed");
    CHECK_STR(json_get_str(end, "error", ""), "it ran past its time limit of 0.2 s");
    json_decref(end);
}

TEST(work_killed, "case-F25: a killed work is a crash at once")
{
    const char *dir = accepted(shell("echo $$ > \"$SNUG_RUN_DIR/me\"; echo ready; exec sleep 100"));
    struct process_end end;
    char path[1200], *text;
    size_t n;
    struct err e;
    struct process p = supervisor_start(dir);
    json_decref(wait_for_event(dir, "log"));
    CHECK_OK(file_read(run_folder_path(dir, "me", path, sizeof path), 100, &text, &n, &e), &e);
    (void)kill((pid_t)strtol(text, NULL, 10), SIGKILL);
    mem_free(text);
    CHECK(process_wait(&p, 20000, &end));
    json_t *ended = last_event(dir, "ended");
    CHECK_STR(json_get_str(ended, "cause", ""), "crashed");
    json_decref(ended);
}

TEST(
    supervisor_killed, "case-F25 case-F35 promise-P10: with its supervisor killed a run ends: the "
                       "work dies, the rest is killed by who buries it")
{
    const char *dir = accepted(
        shell("(setsid sleep 100 &); sleep 100 & echo ready; while :; do sleep 0.05; done"));
    struct process_end end;
    struct run_folder f;
    struct err e;
    struct process p = supervisor_start(dir);
    json_decref(wait_for_event(dir, "log"));
    CHECK(anything_of_run());
    CHECK(run_folder_locked(dir));
    CHECK_EQ(run_folder_supervisor(dir).pid, p.pid);
    CHECK(process_signal(&p, SIGKILL));
    CHECK(process_wait(&p, 20000, &end));
    CHECK(!run_folder_locked(dir));
    CHECK_OK(run_folder_read(&f, dir, &e), &e);
    CHECK_OK(run_folder_bury(&f, CAUSE_CHILD_LOST, NULL, &e), &e);
    CHECK(!anything_of_run());
    json_t *ended = last_event(dir, "ended");
    CHECK_STR(json_get_str(ended, "status", ""), "interrupted");
    CHECK_STR(json_get_str(ended, "cause", ""), "child_lost");
    json_decref(ended);
    run_folder_release(&f);
}

TEST(lease_runs_out, "promise-P10: a run whose agent has no lease any more ends by itself")
{
    char path[1100];
    struct lease l;
    struct err e;
    struct process_end end;
    (void)snprintf(path, sizeof path, "%s/lease", test_dir());
    CHECK_OK(lease_open(&l, path, true, &e), &e);
    lease_renew(&l, clock_ns() + 60000000000);
    json_t *order = shell("trap '' TERM; echo ready; while :; do sleep 0.05; done");
    json_put_str(order, "lease", path);
    const char *dir = accepted(order);
    struct process p = supervisor_start(dir);
    json_decref(wait_for_event(dir, "log"));
    CHECK(!process_wait(&p, 1500, &end));
    lease_renew(&l, clock_ns() - 1);
    CHECK(process_wait(&p, 20000, &end));
    json_t *ended = last_event(dir, "ended");
    CHECK_STR(json_get_str(ended, "status", ""), "interrupted");
    CHECK_STR(json_get_str(ended, "cause", ""), "agent_lost");
    json_decref(ended);
    lease_close(&l);
}

TEST(
    environment_is_clean,
    "H2 R6: a command sees its cards by UUID, its folder and no secret; no descriptor of ours")
{
    const char *dir;
    char script[2048];
    (void)setenv("SNUG_KEY", "snk_secret", 1);
    (void)setenv("SNUG_SESSION_TOKEN", "secret", 1);
    int open_one = open("/dev/null", O_RDONLY);
    (void)snprintf(
        script, sizeof script,
        "echo "
        "\"$CUDA_VISIBLE_DEVICES|$SNUG_DEVICES|$SNUG_BUDGET_BYTES|$MORE|${SNUG_RUN_DIR##*/}\"; "
        "env | grep -c secret; ls /proc/self/fd | tr '\\n' ' '; ulimit -c; pwd");
    json_t *order = shell(script);
    json_put(order, "devices", json_pack("[ss]", "cuda:2", "cuda:0"));
    json_put(order, "uuids", json_pack("[ss]", "GPU-two", "GPU-zero"));
    json_put(order, "environment", json_pack("{ss}", "MORE", "more"));
    json_put_str(order, "working_dir", "/");
    json_put_i64(order, "budget_bytes", 123456789);
    json_t *end = run_to_end(order, &dir);
    char *text = log_of(dir);
    CHECK_STR(text, "GPU-two,GPU-zero|cuda:2,cuda:0|123456789|more|run\n0\n0 1 2 3 0\n/\n");
    mem_free(text);
    json_decref(end);
    json_t *started = last_event(dir, "started");
    CHECK_STR(
        json_get_str(
            json_object_get(json_object_get(started, "facts"), "device_aliases"), "cuda:0", ""),
        "cuda:2");
    json_decref(started);
    (void)close(open_one);
}

TEST(
    secrets_leave_the_environment,
    "H2: variables that may hold a secret are taken out of a process, their bytes too")
{
    char value[] = "SNUG_TEST_TOKEN=very secret";
    CHECK_EQ(putenv(value), 0);
    CHECK_EQ(setenv("SNUG_TEST_PLAIN", "stays", 1), 0);
    supervisor_scrub_environment();
    CHECK(!getenv("SNUG_TEST_TOKEN"));
    CHECK_STR(getenv("SNUG_TEST_PLAIN"), "stays");
    for (size_t i = strlen("SNUG_TEST_TOKEN="); i < sizeof value; i++)
        CHECK_EQ(value[i], 0);
}

TEST(flood, "promise-P13: a flood of output is cut: the log keeps both ends, events a share")
{
    const char *dir;
    (void)setenv("SNUG_RUN_LOG_MAX_BYTES", "40000", 1);
    json_t *end = run_to_end(
        shell("echo first; i=0; while [ $i -lt 3000 ]; do echo "
              "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
              "xxx"
              "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
              "$i; "
              "i=$((i+1)); done; echo last"),
        &dir);
    CHECK_STR(json_get_str(end, "status", ""), "succeeded");
    char *text = log_of(dir);
    CHECK(strlen(text) <= 40000);
    CHECK(strncmp(text, "first\n", 6) == 0);
    CHECK(strcmp(text + strlen(text) - 5, "last\n") == 0);
    CHECK(strstr(text, " bytes are left out here]"));
    mem_free(text);
    json_decref(end);
    json_t *log = last_event(dir, "log");
    CHECK(strstr(json_get_str(log, "text", ""), "left out here"));
    json_decref(log);
}

TEST(bytes_become_utf8, "H4: output that is no UTF-8 becomes an event all the same")
{
    struct str s;
    str_init(&s);
    CHECK_EQ(run_output_utf8(&s, "a\xff\xc3\xa4\0z\xe2\x82", 8, true), 6);
    CHECK_STR(s.data, "a\xef\xbf\xbd\xc3\xa4\xef\xbf\xbdz");
    str_clear(&s);
    CHECK_EQ(run_output_utf8(&s, "\xe2\x82", 2, false), 2);
    CHECK_STR(s.data, "\xef\xbf\xbd\xef\xbf\xbd");
    str_clear(&s);
    CHECK_EQ(run_output_utf8(&s, "\xed\xa0\x80\xc0\xaf\xf4\x90\x80\x80", 9, false), 9);
    CHECK(strlen(s.data) == 27);
    str_release(&s);
}

TEST(
    accept_twice, "promise-P2 promise-P12 case-Q21: a start that was seen is a success without "
                  "effect, also when it is forgotten")
{
    char dir[1100];
    struct err e;
    enum run_folder_seen seen;
    struct run_folder f;
    json_t *order = shell("true");
    (void)snprintf(dir, sizeof dir, "%s/run", test_dir());
    CHECK_OK(run_folder_accept(dir, order, "w", "", &seen, &e), &e);
    CHECK_EQ(seen, FOLDER_NEW);
    CHECK_OK(run_folder_accept(dir, order, "w", "", &seen, &e), &e);
    CHECK_EQ(seen, FOLDER_SEEN);
    CHECK_OK(run_folder_forget(dir, &e), &e);
    CHECK_EQ(run_folder_read(&f, dir, &e), ST_NOT_FOUND);
    CHECK_OK(run_folder_accept(dir, order, "w", "", &seen, &e), &e);
    CHECK_EQ(seen, FOLDER_SEEN);
    json_put_i64(order, "epoch", 2);
    CHECK_OK(run_folder_accept(dir, order, "w", "", &seen, &e), &e);
    CHECK_EQ(seen, FOLDER_NEW);
    json_put_i64(order, "epoch", 1);
    CHECK_OK(run_folder_accept(dir, order, "w", "", &seen, &e), &e);
    CHECK_EQ(seen, FOLDER_SEEN);
    json_decref(order);
}

/* ---- graphs: in place of src/child, functions that keep its contract ---- */

static void result_write(const char *dir)
{
    char path[1200];
    struct err e;
    json_t *end = run_folder_end(CAUSE_DONE, NULL, NULL, 0, 0);
    char *text = json_text(end, false);
    CHECK_OK(
        file_write(run_folder_path(dir, "result.json", path, sizeof path), text, strlen(text), &e),
        &e);
    mem_free(text);
    json_decref(end);
}

static int graph_good(const char *dir, int control_fd)
{
    struct journal j;
    struct err e;
    (void)control_fd;
    CHECK_OK(journal_open(&j, dir, 1, &e), &e);
    CHECK_OK(journal_append(&j, EVENT_EXECUTION_START, NULL, &e), &e);
    CHECK_OK(journal_append(&j, EVENT_EXECUTION_COMPLETE, NULL, &e), &e);
    journal_close(&j);
    (void)printf("hello from a graph\n");
    result_write(dir);
    return 0;
}

TEST(
    graph_succeeds,
    "W2 R11: a graph's own events stand between started and ended, its result in the end")
{
    const char *dir;
    graph_under_test = graph_good;
    json_t *end = run_to_end(order_of("graph", json_null()), &dir);
    CHECK_STR(json_get_str(end, "status", ""), "succeeded");
    CHECK_EQ(json_get_i64(end, "exit_code", 5), 0);
    json_t *complete = last_event(dir, "execution_complete");
    CHECK(complete);
    json_decref(complete);
    char *text = log_of(dir);
    CHECK_STR(text, "hello from a graph\n");
    mem_free(text);
    json_decref(end);
}

TEST(graph_without_result, "case-F25: a graph that ends without a word crashed")
{
    const char *dir;
    json_t *end = run_to_end(order_of("graph", json_null()), &dir);
    CHECK_STR(json_get_str(end, "cause", ""), "crashed");
    json_decref(end);
}

/* Two runs of a tab in one process. */
static int graph_warm(const char *dir, int control_fd)
{
    char line[2048], next[1200];
    static int runs;
    FILE *in = fdopen(dup(control_fd), "r");
    (void)snprintf(next, sizeof next, "%s", dir);
    for (;;) {
        struct err ignored;
        json_t *doc = NULL;
        (void)printf("run %d\n", ++runs);
        (void)fflush(stdout);
        result_write(next);
        int n = snprintf(line, sizeof line, "{\"ended\": \"%s\", \"exit_code\": 0}\n", next);
        CHECK(write(control_fd, line, (size_t)n) == n);
        if (!fgets(line, sizeof line, in) ||
            json_parse(line, strlen(line), "line", &doc, &ignored) != ST_OK)
            return 0;
        const char *to = json_get_str(doc, "run", NULL);
        if (!to)
            return 0;
        (void)snprintf(next, sizeof next, "%s", to);
        json_decref(doc);
    }
}

TEST(
    warm_child,
    "R1: a canvas child takes one run after another, each in its folder, and leaves when told")
{
    int pair[2];
    char second[1100], line[1300];
    struct err e;
    enum run_folder_seen seen;
    struct process_end end;
    json_t *order = order_of("graph", json_null());
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    graph_under_test = graph_warm;
    control_under_test = pair[1];
    (void)snprintf(second, sizeof second, "%s/second", test_dir());
    CHECK_OK(run_folder_accept(second, order, "w", "", &seen, &e), &e);
    const char *dir = accepted(order);
    struct process p = supervisor_start(dir);
    (void)close(pair[1]);
    json_decref(wait_for_event(dir, "ended"));
    pause_ms(50);
    CHECK(!run_folder_locked(dir));
    int n = snprintf(line, sizeof line, "{\"run\": \"%s\"}\n", second);
    CHECK(write(pair[0], line, (size_t)n) == n);
    json_decref(wait_for_event(second, "ended"));
    char *text = log_of(second);
    CHECK_STR(text, "run 2\n");
    mem_free(text);
    CHECK(!process_wait(&p, 100, &end));
    (void)close(pair[0]);
    CHECK(process_wait(&p, 10000, &end));
    CHECK_EQ(end.exit_code, 0);
}

TEST(
    disk_full,
    "promise-P13: with the disk full the run ends, and its end is written when there is room")
{
    const char *dir = accepted(shell("echo ready; sleep 0.2; echo more"));
    struct process_end end;
    char path[1200];
    struct err e;
    struct process p = supervisor_start(dir);
    json_decref(wait_for_event(dir, "log"));
    /* A folder in the way of the journal stands for any reason not to open it. */
    char away[1200];
    (void)run_folder_path(dir, "events.jsonl", path, sizeof path);
    (void)run_folder_path(dir, "away", away, sizeof away);
    CHECK(rename(path, away) == 0);
    CHECK_OK(dir_make(path, &e), &e);
    CHECK(!process_wait(&p, 1000, &end));
    CHECK(run_folder_locked(dir));
    CHECK(rmdir(path) == 0 && rename(away, path) == 0);
    CHECK(process_wait(&p, 10000, &end));
    json_t *ended = last_event(dir, "ended");
    CHECK_STR(json_get_str(ended, "status", ""), "succeeded");
    json_decref(ended);
}

TEST(
    host_out_of_memory,
    "O2: a run that the kernel took for want of memory is a NodeOOMError with the node that ran")
{
    struct supervisor s = {.end = {-1, SIGKILL}, .oom_before = 3, .oom_after = 4};
    struct journal j;
    struct err e;
    json_t *order = order_of("graph", json_null());
    json_put(
        order, "graph", json_pack("{s[{ssss}]}", "nodes", "id", "train", "type", "TrainingLoop"));
    const char *dir = accepted(order);
    CHECK_OK(run_folder_read(&s.f, dir, &e), &e);
    CHECK_OK(journal_open(&j, dir, 1, &e), &e);
    const char *steps[][2] = {{"data", "running"}, {"data", "completed"}, {"train", "running"}};
    for (int i = 0; i < 3; i++)
        CHECK_OK(
            journal_append(
                &j, EVENT_NODE_STATUS,
                json_pack("{ssss}", "node_id", steps[i][0], "status", steps[i][1]), &e),
            &e);
    journal_close(&j);
    json_t *end = supervisor_end(&s);
    CHECK_STR(json_get_str(end, "cause", ""), "out_of_memory");
    const char *text = json_get_str(end, "error", "");
    CHECK(strncmp(text, "NodeOOMError: node train (TrainingLoop) on cpu: ", 48) == 0);
    CHECK(strstr(text, "What to try, cheapest first:"));
    CHECK_STR(json_get_str(json_object_get(end, "detail"), "node_id", ""), "train");
    json_decref(end);
    s.oom_after = 3; /* somebody's kill -9 */
    end = supervisor_end(&s);
    CHECK_STR(json_get_str(end, "cause", ""), "crashed");
    json_decref(end);
    run_folder_release(&s.f);
}
