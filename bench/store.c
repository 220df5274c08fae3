/* store.c - the database under a large queue: submissions, lists, a million events, restart, and a
 * sweep of 10,000 variants checked and stored whole. Run by hand: bench/store [GRAPH]. */
#include "server/store.h"

#include "base/env.h"
#include "base/json.h"
#include "server/core.h"
#include "server/sweep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WAITING = 100000, SINGLES = 5000, EVENTS = 1000000, BATCH = 500, VARIANTS = 10000 };

static struct err e;
static char path[1024];

static void must(enum status st, const char *what)
{
    if (st == ST_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, e.text);
    exit(1);
}
#define MUST(call) must((call), #call)

static double since(int64_t from_ns)
{
    return (double)(clock_ns() - from_ns) / 1e9;
}

static void remove_database(void)
{
    static const char *const ends[] = {"", "-wal", "-shm"};
    char file[1040];
    for (size_t i = 0; i < 3; i++) {
        (void)snprintf(file, sizeof file, "%s%s", path, ends[i]);
        (void)unlink(file);
    }
}

static struct store_run make_run(unsigned number)
{
    struct store_run r = {
        .state = RUN_WAITING,
        .name = "train",
        .owner = "ann",
        .kind = "graph",
        .lane = "queued",
        .options = "{\"device\": \"cuda:0\", \"seed\": 1}",
        .graph_key = "0123456789abcdef0123456789abcdef",
        .target = "local",
        .wanted = "cuda:0",
        .queue_key = "cuda:0",
        .variant = -1,
        .repetition = -1,
        .created_us = number};
    (void)snprintf(
        r.run_id, sizeof r.run_id, "%08x%024x", number * 2654435761U, number); /* scattered */
    return r;
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static void submissions(struct store *s)
{
    static int64_t took[SINGLES];
    int64_t id, from = clock_ns();
    MUST(store_begin(s, &e));
    for (unsigned i = 0; i < WAITING; i++) {
        struct store_run r = make_run(i);
        MUST(store_run_add(s, &r, &id, &e));
    }
    MUST(store_end(s, ST_OK, &e));
    printf("%d runs in one transaction: %.2f s\n", WAITING, since(from));
    from = clock_ns();
    for (unsigned i = 0; i < SINGLES; i++) {
        struct store_run r = make_run(WAITING + i);
        int64_t begin = clock_ns();
        MUST(store_begin(s, &e));
        MUST(store_end(s, store_run_add(s, &r, &id, &e), &e));
        took[i] = clock_ns() - begin;
    }
    double seconds = since(from);
    qsort(took, SINGLES, sizeof *took, by_value);
    printf(
        "one by one: %.0f/s, p50 %.2f ms, p99 %.2f ms, longest %.1f ms\n", SINGLES / seconds,
        (double)took[SINGLES / 2] / 1e6, (double)took[SINGLES * 99 / 100] / 1e6,
        (double)took[SINGLES - 1] / 1e6);
}

static void lists(struct store *s)
{
    struct arena a;
    struct store_runs page;
    arena_init(&a);
    int64_t from = clock_ns();
    MUST(store_runs_list(s, &(struct store_run_filter){.limit = 50}, &a, &page, &e));
    printf("the newest 50 of %lld: %.1f ms\n", (long long)page.total, since(from) * 1e3);
    arena_release(&a);
}

static void events(struct store *s)
{
    struct store_event ev = {
        .type = "node_status",
        .payload =
            "{\"node_id\": \"train\", \"status\": \"running\", \"outputs\": [{\"output_kind\": "
            "\"progress\", \"progress\": {\"epoch\": 3, \"batch\": 120, \"loss\": 0.125}}]}"};
    struct store_health h;
    int64_t from = clock_ns();
    while (ev.cursor < EVENTS) {
        MUST(store_begin(s, &e));
        for (int i = 0; i < BATCH; i++) {
            ev.cursor++;
            MUST(store_event_add(s, 1, &ev, &e));
        }
        MUST(store_end(s, store_run_seen(s, 1, ev.cursor, ev.cursor, &e), &e));
    }
    store_health(s, &h);
    printf(
        "%d events of %zu bytes: %.0f/s; WAL %.1f MiB, at most\n", EVENTS, strlen(ev.payload),
        EVENTS / since(from), (double)h.wal_bytes / 1048576.0);
    store_idle(s);
    store_health(s, &h);
    printf("database %.1f MiB\n", (double)h.file_bytes / 1048576.0);
}

static enum status count(void *ctx, const struct store_run *r, struct err *err)
{
    (void)r;
    (void)err;
    ++*(int64_t *)ctx;
    return ST_OK;
}

static struct store *restart(struct store *s)
{
    int64_t n = 0;
    store_close(s);
    int64_t from = clock_ns();
    MUST(store_open(path, NULL, &s, &e));
    MUST(store_runs_active(s, count, &n, &e));
    printf("opened, %lld runs read: %.2f s\n", (long long)n, since(from));
    return s;
}

/* The longest time that a deleted run of a million events keeps the database. */
static void purge(struct store *s)
{
    struct store_end end = {.state = RUN_SUCCEEDED, .cause = "done", .time_us = 1};
    double longest = 0;
    struct store_health h;
    MUST(store_begin(s, &e));
    MUST(store_run_assign(s, 1, 1, "local", "cuda:0", "cuda:0", &e));
    MUST(store_run_start(s, 1, 1, 1, &e));
    MUST(store_run_finish(s, 1, 1, &end, &e));
    MUST(store_end(s, store_run_delete(s, 1, &e), &e));
    int64_t from = clock_ns();
    for (int i = 0; i < EVENTS / 2000; i++) {
        int64_t begin = clock_ns();
        store_idle(s);
        longest = since(begin) > longest ? since(begin) : longest;
    }
    store_health(s, &h);
    printf(
        "its log removed: %.1f s, %.1f ms at a time at most; database %.1f MiB\n", since(from),
        longest * 1e3, (double)h.file_bytes / 1048576.0);
}

static void sweep(const char *file)
{
    static const char text[] =
        "{\"objective\": {\"metric\": \"val_loss\", \"direction\": \"minimize\"},"
        " \"options\": {\"device\": \"cpu\"}, \"seed_variants\": true, \"sweep_spec\":"
        " {\"method\": \"random\", \"seed\": 1, \"samples\": 10000, \"params\": [{\"node_id\":"
        " \"optimizer\", \"param\": \"lr\", \"range\": {\"min\": 1e-5, \"max\": 1, \"count\": "
        "20000,"
        " \"scale\": \"log\", \"type\": \"float\"}}]}}";
    struct store *s;
    struct core *core;
    struct core_config config;
    struct instant now = {clock_ns(), clock_wall_us()};
    struct actor who = {.role = ROLE_OWNER, .name = "owner"};
    json_t *graph, *body, *reply,
        *devices = json_pack(
            "[{s:s, s:s, s:s, s:s}]", "device", "cpu", "kind", "cpu", "name", "CPU", "uuid", "");
    MUST(json_read_file(file, 1 << 26, &graph, &e));
    MUST(json_parse(text, sizeof text - 1, "body", &body, &e));
    json_put(body, "base_graph", graph);
    core_config_init(&config);
    config.devices = devices;
    remove_database();
    MUST(store_open(path, NULL, &s, &e));
    MUST(core_open(s, &config, &(struct core_hooks){0}, now, &core, &e));
    struct sweeps x = {.core = core, .store = s, .limits = {VARIANTS, 4, 100000}};
    int64_t from = clock_ns();
    MUST(sweep_create(&x, &who, body, now, &reply, &e));
    printf("a sweep of %d variants, checked and stored: %.2f s\n", VARIANTS, since(from));
    core_close(core);
    store_close(s);
    json_decref(reply);
    json_decref(body);
    json_decref(devices);
}

int main(int argc, char **argv)
{
    struct store *s;
    const char *dir = getenv("TMPDIR");
    (void)snprintf(
        path, sizeof path, "%s/snug-bench-store-%d.db", dir && *dir ? dir : "/tmp", (int)getpid());
    remove_database();
    MUST(store_open(path, NULL, &s, &e));
    submissions(s);
    lists(s);
    events(s);
    s = restart(s);
    purge(s);
    store_close(s);
    sweep(argc > 1 ? argv[1] : "examples/gpt-mini/graph.json");
    remove_database();
    return 0;
}
