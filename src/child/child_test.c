/* child_test.c - runs as a supervisor starts them: a folder in, events and a result out. */
#include "child/child.h"

#include "backends/backend.h"
#include "base/env.h"
#include "base/json.h"
#include "base/mem.h"
#include "record/outputs.h"
#include "test.h"
#include "wire/journal.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- orders ---- */

static const char run_id[] = "0123456789abcdef0123456789abcdef";

static const char *folder(const char *id)
{
    static char dir[2][1100];
    static int next;
    struct err e;
    char runs[1000];
    next = !next;
    (void)path_join(test_dir(), "home/runs", runs, sizeof runs);
    (void)path_join(runs, id, dir[next], sizeof dir[next]);
    CHECK_OK(dir_make(dir[next], &e), &e);
    CHECK(setenv("SNUG_HOME", path_dir(runs, runs, sizeof runs), 1) == 0);
    return dir[next];
}

/* {"nodes", "edges"} of the example that trains a small convolutional network. */
static json_t *example(int64_t max_steps)
{
    struct err e;
    json_t *g, *node;
    size_t i;
    CHECK_OK(
        json_read_file(SNUG_SOURCE_DIR "/examples/fashion-cnn/graph.json", 1 << 20, &g, &e), &e);
    json_array_foreach(json_object_get(g, "nodes"), i, node)
    {
        json_t *params = json_object_get(json_object_get(node, "data"), "params");
        if (strcmp(json_get_str(node, "type", ""), "TrainingLoop") == 0) {
            json_put_i64(params, "max_steps", max_steps);
            json_put_bool(params, "batch_metrics", true);
        }
        if (json_object_get(params, "batch_size"))
            json_put_i64(params, "batch_size", 16);
    }
    return g;
}

static json_t *node_of(json_t *graph, const char *type)
{
    size_t i;
    json_t *node;
    json_array_foreach(
        json_object_get(graph, "nodes"), i,
        node) if (strcmp(json_get_str(node, "type", ""), type) == 0) return node;
    test_fail(__FILE__, __LINE__, "no %s", type);
}

static json_t *params_of(json_t *graph, const char *type)
{
    return json_object_get(json_object_get(node_of(graph, type), "data"), "params");
}

/* Takes graph and options. */
static json_t *order(json_t *graph, json_t *options, const char *devices)
{
    struct err e;
    json_t *o = json_object(), *d;
    CHECK_OK(json_parse(devices, strlen(devices), "devices", &d, &e), &e);
    json_put_str(o, "run_id", run_id);
    json_put_i64(o, "epoch", 1);
    json_put_str(o, "kind", "graph");
    json_put(o, "graph", graph);
    json_put(o, "options", options);
    json_put(o, "devices", d);
    return o;
}

static void put_order(const char *dir, json_t *o)
{
    struct err e;
    char path[1200], *text = json_text(o, false);
    CHECK_OK(
        file_write(path_join(dir, "start.json", path, sizeof path), text, strlen(text), &e), &e);
    mem_free(text);
    json_decref(o);
}

/* One thread: beside others that wait for each other by spinning, several would take minutes. */
_Noreturn static void work(const struct child_options *o)
{
    cpu_threads_set(1);
    _exit(child_work(o));
}

static int execute(const char *dir)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0)
        work(&(struct child_options){.dir = dir, .control_fd = -1});
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static json_t *result_of(const char *dir)
{
    struct err e;
    char path[1200];
    json_t *d;
    CHECK_OK(
        json_read_file(path_join(dir, "result.json", path, sizeof path), 64 << 20, &d, &e), &e);
    return d;
}

/* All events as an array; sequences must have no gap. */
static json_t *events_of(const char *dir)
{
    struct err e;
    struct journal_reader r;
    struct run_event v;
    json_t *all = json_array(), *doc;
    int bad = 0;
    CHECK_OK(journal_read_open(&r, dir, &e), &e);
    while (journal_next(&r, &doc, &v, &bad)) {
        (void)json_array_append_new(all, doc);
        CHECK_EQ(v.sequence, (int64_t)json_array_size(all));
    }
    journal_read_close(&r);
    CHECK_EQ(bad, 0);
    return all;
}

/* The nth event of a type whose payload has this member with this text (NULL: any). */
static json_t *
find_event(const json_t *events, const char *type, const char *member, const char *text)
{
    size_t i;
    json_t *v;
    json_array_foreach(events, i, v)
    {
        json_t *payload = json_object_get(v, "payload");
        if (strcmp(json_get_str(v, "type", ""), type) == 0 &&
            (!member || str_eq(json_get_str(payload, member, NULL), text)))
            return payload;
    }
    return NULL;
}

static json_t *entry_of(const json_t *payload, const char *kind)
{
    size_t i;
    json_t *entry;
    json_array_foreach(
        json_object_get(payload, "outputs"), i,
        entry) if (strcmp(json_get_str(entry, "output_kind", ""), kind) == 0) return entry;
    return NULL;
}

static void cards(const char *text)
{
    CHECK(setenv("SNUG_SIM_CARDS", text, 1) == 0 && unsetenv("SNUG_SIM_DIR") == 0);
}

/* ---- a run ---- */

TEST_WITHIN(
    run_writes_events_and_result, 120,
    "R11 R13: a run's events are the reference's, its result the document of `snug run --json`")
{
    const char *dir = folder(run_id);
    put_order(dir, order(example(3), json_pack("{s:i}", "seed", 3), "[\"cpu\"]"));
    CHECK_EQ(execute(dir), 0);
    json_t *events = events_of(dir), *result = result_of(dir);
    CHECK_STR(json_get_str(json_array_get(events, 0), "type", ""), "execution_start");
    CHECK_STR(
        json_get_str(json_array_get(events, json_array_size(events) - 1), "type", ""),
        "execution_complete");
    CHECK(json_get_i64(find_event(events, "plan", NULL, NULL), "peak_bytes", 0) > 0);
    json_t *facts = find_event(events, "facts", NULL, NULL);
    CHECK(json_get_str(facts, "version", NULL) && json_get_str(facts, "isa", NULL));
    CHECK_EQ(json_array_size(json_object_get(facts, "visible_devices")), 1);
    json_t *done = find_event(events, "node_status", "status", "completed");
    CHECK(entry_of(done, "tensor_summary") != NULL);
    json_t *progress = find_event(events, "node_status", "status", "progress");
    CHECK_STR(
        json_get_str(json_object_get(entry_of(progress, "progress"), "progress"), "event", ""),
        "config");
    json_t *points = json_object_get(find_event(events, "metric", NULL, NULL), "points");
    CHECK(json_array_size(points) > 0);
    CHECK_STR(json_get_str(json_array_get(points, 0), "name", ""), "train_loss_batch");
    CHECK_EQ(json_get_i64(json_array_get(points, 0), "step", 0), 1);
    CHECK_STR(json_get_str(result, "status", ""), "succeeded");
    CHECK_STR(json_get_str(result, "cause", ""), "done");
    json_t *document = json_object_get(result, "result");
    CHECK_EQ(json_get_i64(document, "schema", 0), 1);
    CHECK_EQ(json_get_i64(json_object_get(document, "metrics"), "total_steps", 0), 3);
    CHECK_EQ(json_get_i64(json_object_get(document, "facts"), "seed", 0), 3);
    json_decref(events);
    json_decref(result);
}

TEST_WITHIN(
    failed_run_says_why, 60,
    "R11: a graph that cannot run ends with its error in events and result")
{
    const char *dir = folder(run_id);
    put_order(dir, order(json_pack("{s:[], s:[]}", "nodes", "edges"), json_object(), "[\"cpu\"]"));
    CHECK_EQ(execute(dir), 1);
    json_t *events = events_of(dir), *result = result_of(dir);
    CHECK(find_event(events, "execution_error", NULL, NULL) != NULL);
    CHECK_STR(json_get_str(result, "cause", ""), "graph_error");
    CHECK(strlen(json_get_str(result, "error", "")) > 0);
    json_decref(events);
    json_decref(result);
}

TEST(order_that_is_none, "H4: a start.json that is no order is a result, not a crash")
{
    struct err e;
    const char *dir = folder(run_id);
    char path[1200];
    (void)path_join(dir, "start.json", path, sizeof path);
    static const char *const texts[] = {
        "", "[]", "{\"kind\": 3}", "{\"kind\": \"graph\", \"graph\": []}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        CHECK_OK(file_write(path, texts[i], strlen(texts[i]), &e), &e);
        CHECK_EQ(execute(dir), 1);
        json_t *result = result_of(dir);
        CHECK_STR(json_get_str(result, "status", ""), "failed");
        json_decref(result);
    }
}

/* ---- cards and budgets ---- */

TEST_WITHIN(
    cards_of_a_worker_are_renumbered, 120,
    "R6 R12: a worker run sees its cards as cuda:0, ... in the order given; a node that names "
    "another says so; peaks are of the machine's card")
{
    const char *dir = folder(run_id);
    cards("A:8GiB:sm89:uuid=GPU-a, B:8GiB:sm89:uuid=GPU-b");
    json_t *g = example(2), *options = json_pack("{s:{s:s}}", "target", "worker", "gpu-box");
    json_put_str(params_of(g, "TrainingLoop"), "device", "cuda:1");
    const char *id = json_get_str(node_of(g, "TrainingLoop"), "id", "");
    char expected[300];
    (void)snprintf(
        expected, sizeof expected,
        "Node %s (TrainingLoop) is set to device cuda:1; this run has 1 card (cuda:0 = the "
        "worker's cuda:1), so when it executes, it runs on cuda:0.",
        id);
    json_t *o = order(g, options, "[\"cuda:1\"]");
    json_put(o, "uuids", json_pack("[s]", "GPU-b"));
    put_order(dir, o);
    CHECK_EQ(execute(dir), 0);
    json_t *events = events_of(dir), *result = result_of(dir);
    json_t *warning = find_event(events, "run_warning", "kind", "device_fallback");
    CHECK_STR(json_get_str(warning, "message", ""), expected);
    json_t *facts = json_object_get(result, "facts");
    CHECK_STR(
        json_string_value(json_array_get(json_object_get(facts, "visible_devices"), 0)), "cuda:1");
    CHECK_STR(json_get_str(json_object_get(facts, "device_aliases"), "cuda:0", ""), "cuda:1");
    json_t *peaks = json_object_get(result, "peaks");
    CHECK_EQ(json_array_size(peaks), 1);
    CHECK_STR(json_get_str(json_array_get(peaks, 0), "device", ""), "cuda:1");
    CHECK(json_get_i64(json_array_get(peaks, 0), "bytes", 0) > 0);
    CHECK_STR(json_get_str(json_object_get(result, "result"), "device", ""), "cuda:0");
    json_decref(events);
    json_decref(result);
}

TEST_WITHIN(
    local_run_keeps_names, 120,
    "R6 D4: on this server the machine's names hold; a fallback to the CPU is in the log")
{
    const char *dir = folder(run_id);
    cards("A:8GiB:sm89, B:8GiB:sm89");
    put_order(dir, order(example(1), json_object(), "[\"cuda:1\"]"));
    CHECK_EQ(execute(dir), 0);
    json_t *result = result_of(dir);
    CHECK_STR(json_get_str(json_object_get(result, "result"), "device", ""), "cuda:1");
    json_decref(result);
    cards("");
    dir = folder("1123456789abcdef0123456789abcdef");
    put_order(dir, order(example(1), json_pack("{s:s}", "device", "cuda"), "[\"cpu\"]"));
    CHECK_EQ(execute(dir), 0);
    json_t *events = events_of(dir);
    CHECK(find_event(events, "run_warning", "kind", "device_fallback") != NULL);
    json_decref(events);
}

TEST_WITHIN(
    budget_ends_the_run_alone, 120,
    "B6: a run above its budget fails, saying where the budget came from and asking for a larger "
    "target.memory_gib")
{
    static const struct {
        const char *source, *run, *words;
    } rows[] = {
        {"given", "", "is the one given with the run: declare a larger target.memory_gib"},
        {"measured", "abcdef0123456789abcdef0123456789",
         "is measured: the peak of run abcdef01 plus 20%: declare a larger target.memory_gib"},
        {"estimate", "", "is a static estimate: declare a larger target.memory_gib"}};
    cards("A:8GiB:sm89");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *dir = folder(run_id);
        json_t *o = order(example(2), json_object(), "[\"cuda:0\"]");
        json_put_i64(o, "budget_bytes", 1 << 20);
        json_put_str(o, "budget_source", rows[i].source);
        json_put_str(o, "budget_run", rows[i].run);
        put_order(dir, o);
        CHECK_EQ(execute(dir), 3);
        json_t *result = result_of(dir);
        CHECK_STR(json_get_str(result, "cause", ""), "out_of_memory");
        const char *error = json_get_str(result, "error", "");
        if (!strstr(error, rows[i].words) || !strstr(error, "What to try, cheapest first:"))
            test_fail(__FILE__, __LINE__, "the error is: %s", error);
        CHECK_STR(json_get_str(json_object_get(result, "detail"), "type", ""), "NodeOOMError");
        json_decref(result);
    }
}

/* Loss of a run on a card that another process holds most of, or of one alone there. */
static double loss_of(const char *id, const char *devices)
{
    const char *dir = folder(id);
    json_t *o = order(example(4), json_pack("{s:i}", "seed", 11), devices);
    json_put_i64(o, "budget_bytes", INT64_C(1) << 30);
    put_order(dir, o);
    CHECK_EQ(execute(dir), 0);
    json_t *result = result_of(dir);
    double loss = json_get_f64(
        json_object_get(json_object_get(result, "result"), "metrics"), "final_train_loss", -1);
    json_decref(result);
    return loss;
}

TEST_WITHIN(
    co_runner_changes_no_bit, 240,
    "promise-P13: a run beside another on a shared card gives the bits of a run alone")
{
    cards("A:4GiB:sm89:context=64MiB");
    double alone = loss_of(run_id, "[\"cuda:0\"]");
    pid_t other = fork();
    if (other == 0)
        _exit(loss_of("2123456789abcdef0123456789abcdef", "[\"cuda:0\"]") > 0 ? 0 : 1);
    double beside = loss_of("3123456789abcdef0123456789abcdef", "[\"cuda:0\"]");
    int status;
    CHECK(waitpid(other, &status, 0) == other && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(alone > 0 && memcmp(&alone, &beside, sizeof alone) == 0);
}

/* ---- stopping ---- */

TEST_WITHIN(
    stop_is_cooperative, 120,
    "R11: SIGTERM ends a run within a batch, with its interrupt checkpoint; the reason is that of "
    "DIR/stop")
{
    struct err e;
    const char *dir = folder(run_id);
    char path[1200];
    int status;
    put_order(dir, order(example(1000000), json_object(), "[\"cpu\"]"));
    pid_t child = fork();
    if (child == 0)
        work(&(struct child_options){.dir = dir, .control_fd = -1});
    (void)path_join(dir, "events.jsonl", path, sizeof path);
    while (!file_exists(path))
        clock_sleep_ms(20);
    for (;;) { /* until the first batch is told of */
        json_t *events = events_of(dir);
        bool runs = find_event(events, "metric", NULL, NULL) != NULL;
        json_decref(events);
        if (runs)
            break;
        clock_sleep_ms(20);
    }
    CHECK_OK(file_write(path_join(dir, "stop", path, sizeof path), "cancelled\n", 10, &e), &e);
    CHECK_EQ(kill(child, SIGTERM), 0);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 130);
    json_t *events = events_of(dir), *result = result_of(dir);
    CHECK_STR(json_get_str(result, "status", ""), "cancelled");
    CHECK_STR(
        json_get_str(find_event(events, "execution_stopped", NULL, NULL), "reason", ""),
        "cancelled");
    CHECK(find_event(events, "artifact", "kind", "checkpoint") != NULL);
    CHECK(find_event(events, "node_status", "status", "interrupted") != NULL);
    json_decref(events);
    json_decref(result);
}

TEST_WITHIN(
    events_that_cannot_be_written, 120,
    "R11 H4: a run whose events cannot be written (disk full) ends, and says why")
{
    const char *dir = folder(run_id);
    struct rlimit small = {65536, 65536};
    int status;
    put_order(dir, order(example(1000000), json_object(), "[\"cpu\"]"));
    pid_t child = fork();
    if (child == 0) {
        CHECK_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
        work(&(struct child_options){.dir = dir, .control_fd = -1});
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 1);
    json_t *events = events_of(dir), *result = result_of(dir); /* no torn line within */
    CHECK(json_array_size(events) > 10);
    CHECK_STR(json_get_str(result, "status", ""), "failed");
    CHECK(strlen(json_get_str(result, "error", "")) > 0);
    json_decref(events);
    json_decref(result);
}

/* ---- recorded outputs, TensorBoard, queued runs start fresh ---- */

TEST_WITHIN(
    outputs_are_recorded_when_asked, 120,
    "R17 W9: a queued run records outputs only with record_outputs")
{
    struct err e;
    json_t *d;
    const char *dir = folder(run_id);
    put_order(dir, order(example(1), json_object(), "[\"cpu\"]"));
    CHECK_EQ(execute(dir), 0);
    CHECK_EQ(outputs_list(dir, &d, &e), ST_NOT_FOUND);
    dir = folder("4123456789abcdef0123456789abcdef");
    json_t *g = example(1);
    const char *id = json_get_str(node_of(g, "TrainingLoop"), "id", "");
    char node[100];
    (void)snprintf(node, sizeof node, "%s", id);
    put_order(dir, order(g, json_pack("{s:b}", "record_outputs", 1), "[\"cpu\"]"));
    CHECK_EQ(execute(dir), 0);
    CHECK_OK(outputs_list(dir, &d, &e), &e);
    CHECK(json_array_size(d) > 5);
    json_decref(d);
    CHECK_OK(outputs_read(dir, node, "model", NULL, 0, &d, &e), &e);
    CHECK(json_get_i64(d, "params", 0) > 1000);
    json_decref(d);
}

TEST_WITHIN(
    tensorboard_of_the_loop, 120,
    "a training loop with `tensorboard` writes event files, told as an artifact")
{
    const char *dir = folder(run_id);
    json_t *g = example(2);
    json_put_bool(params_of(g, "TrainingLoop"), "tensorboard", true);
    put_order(dir, order(g, json_object(), "[\"cpu\"]"));
    CHECK_EQ(execute(dir), 0);
    json_t *events = events_of(dir);
    json_t *artifact = find_event(events, "artifact", "kind", "tensorboard");
    CHECK(strstr(json_get_str(artifact, "path", ""), "/tb/") != NULL);
    CHECK(json_get_i64(json_object_get(artifact, "meta"), "bytes", 0) > 0);
    json_decref(events);
}

/* ---- warm canvas children ---- */

static const char canvas[] =
    "{\"nodes\":["
    "{\"id\":\"s\",\"type\":\"Start\",\"data\":{\"params\":{}}},"
    "{\"id\":\"x\",\"type\":\"TensorCreate\",\"data\":{\"params\":{\"shape\":\"2,3\",\"fill\":"
    "\"randn\"}}},"
    "{\"id\":\"l\",\"type\":\"Linear\",\"data\":{\"params\":{\"in_features\":3,\"out_features\":4}}"
    "},"
    "{\"id\":\"p\",\"type\":\"Print\",\"data\":{\"params\":{\"label\":\"out\"}}}],"
    "\"edges\":["
    "{\"id\":\"e0\",\"source\":\"s\",\"target\":\"x\",\"sourceHandle\":\"trigger\",\"type\":"
    "\"trigger\"},"
    "{\"id\":\"e1\",\"source\":\"x\",\"target\":\"l\",\"sourceHandle\":\"tensor\",\"targetHandle\":"
    "\"tensor\"},"
    "{\"id\":\"e2\",\"source\":\"l\",\"target\":\"p\",\"sourceHandle\":\"tensor\",\"targetHandle\":"
    "\"value\"}]}";

static void put_canvas(const char *dir)
{
    struct err e;
    json_t *g;
    CHECK_OK(json_parse(canvas, strlen(canvas), "canvas", &g, &e), &e);
    json_t *o = order(
        g,
        json_pack(
            "{s:s,s:s,s:b,s:b}", "lane", "interactive", "graph_id", "tab", "record_outputs", 1,
            "weights_persistent", 1),
        "[\"cpu\"]");
    json_put_str(o, "lane", "interactive");
    put_order(dir, o);
}

struct peer {
    int fd;
    char buf[8192];
    size_t n;
};

/* The next line of the child; NULL at its end. */
static json_t *read_line(struct peer *p)
{
    struct err e;
    json_t *line;
    char *end;
    while (!(end = memchr(p->buf, '\n', p->n))) {
        ssize_t n = recv(p->fd, p->buf + p->n, sizeof p->buf - p->n, 0);
        if (n <= 0)
            return NULL;
        p->n += (size_t)n;
    }
    CHECK_OK(json_parse(p->buf, (size_t)(end - p->buf), "line", &line, &e), &e);
    p->n -= (size_t)(end - p->buf) + 1;
    memmove(p->buf, end + 1, p->n);
    return line;
}

static pid_t warm_start(const char *dir, struct peer *p, int idle_s)
{
    int pair[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    pid_t child = fork();
    if (child == 0) {
        (void)close(pair[0]);
        work(&(struct child_options){.dir = dir, .control_fd = pair[1], .idle_s = idle_s});
    }
    (void)close(pair[1]);
    *p = (struct peer){.fd = pair[0]};
    return child;
}

static void say(const struct peer *p, const char *line)
{
    size_t n = strlen(line);
    CHECK_EQ(send(p->fd, line, n, MSG_NOSIGNAL), (ssize_t)n);
}

static int64_t cache_figure(const json_t *line, const char *store, const char *figure)
{
    return json_get_i64(json_object_get(json_object_get(line, "caches"), store), figure, -1);
}

TEST_WITHIN(
    warm_child_keeps_and_gives_back, 120,
    "R1 S1 S3 S5: a tab's child keeps outputs and weights, says their bytes, obeys an eviction, "
    "and does the next run")
{
    const char *first = folder(run_id), *second = folder("5123456789abcdef0123456789abcdef");
    struct peer p;
    int status;
    put_canvas(first);
    put_canvas(second);
    pid_t child = warm_start(first, &p, 60);
    json_t *line = read_line(&p);
    CHECK_STR(json_get_str(line, "ended", ""), first);
    CHECK_EQ(json_get_i64(line, "exit_code", -1), 0);
    CHECK_EQ(cache_figure(line, "execution_cache", "entries"), 1);
    CHECK_EQ(cache_figure(line, "execution_cache", "bytes"), 24);
    CHECK_EQ(cache_figure(line, "execution_cache", "max_bytes"), 1 << 30);
    CHECK_EQ(cache_figure(line, "node_state_store", "modules"), 1);
    CHECK_EQ(cache_figure(line, "node_state_store", "bytes"), 64);
    json_decref(line);
    char run[1300];
    (void)snprintf(run, sizeof run, "{\"run\": \"%s\"}\n", second);
    say(&p, run);
    line = read_line(&p);
    CHECK_STR(json_get_str(line, "ended", ""), second);
    json_decref(line);
    json_t *events = events_of(second);
    json_t *cached = find_event(events, "node_status", "status", "cached");
    CHECK_STR(json_get_str(cached, "node_id", ""), "x");
    CHECK(entry_of(cached, "tensor_summary") != NULL);
    json_t *printed = find_event(events, "node_status", "node_id", "p");
    size_t i;
    json_t *v;
    json_array_foreach(
        events, i, v) if (str_eq(json_get_str(json_object_get(v, "payload"), "node_id", ""), "p"))
        printed = json_object_get(v, "payload");
    CHECK(strstr(json_get_str(entry_of(printed, "text"), "text", ""), "[out]") != NULL);
    json_decref(events);
    say(&p, "{\"evict\": \"weights\", \"nodes\": [\"other\"]}\n");
    line = read_line(&p);
    CHECK_EQ(json_get_i64(line, "evicted", -1), 0);
    CHECK_EQ(cache_figure(line, "execution_cache", "entries"), 1);
    json_decref(line);
    say(&p, "{\"evict\": \"all\"}\n");
    line = read_line(&p);
    CHECK_EQ(json_get_i64(line, "evicted", -1), 1);
    CHECK_EQ(cache_figure(line, "execution_cache", "entries"), 0);
    CHECK_EQ(cache_figure(line, "node_state_store", "bytes"), 0);
    json_decref(line);
    say(&p, "not json\n{\"exit\": true}\n");
    CHECK(read_line(&p) == NULL);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST_WITHIN(
    warm_child_leaves_when_idle, 60,
    "R1: a warm child ends after its idle time, on SIGTERM, and with its supervisor")
{
    const char *dir = folder(run_id);
    struct peer p;
    int status;
    for (int way = 0; way < 3; way++) {
        put_canvas(dir);
        pid_t child = warm_start(dir, &p, way == 0 ? 1 : 600);
        json_decref(read_line(&p));
        if (way == 1)
            CHECK_EQ(kill(child, SIGTERM), 0);
        if (way == 2)
            (void)close(p.fd);
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
        if (way != 2)
            (void)close(p.fd);
    }
}
