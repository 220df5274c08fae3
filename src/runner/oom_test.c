/* oom_test.c - what a run that ran out of memory leaves behind: nothing. */
#include "base/mem.h"
#include "mem/device.h"
#include "runner/run.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *graph_file(void)
{
    static const char path[] = SNUG_SOURCE_DIR "/examples/fashion-cnn/graph.json";
    return path;
}

/* A card of so many bytes, and nothing else of the user's. */
static void card(int64_t bytes)
{
    char text[128], home[600];
    (void)snprintf(text, sizeof text, "Small:%lld:sm86:context=1MiB", (long long)bytes);
    (void)snprintf(home, sizeof home, "%s/home", test_dir());
    setenv("SNUG_SIM_CARDS", text, 1);
    setenv("SNUG_HOME", home, 1);
}

static struct graph *small_graph(const char *batch)
{
    const char *sets[] = {"TrainingLoop.max_steps=3", "TrainingLoop.epochs=1", batch};
    struct graph *g = NULL;
    struct err e = {0};
    CHECK(graph_prepare(graph_file(), sets, 3, &g, &e) == ST_OK);
    return g;
}

/* The training's loss; status in *st. Frees the run, and with it all that it held. */
static double
train(const char *batch, enum exec_storage storage, enum status *st, struct run_oom *oom)
{
    struct graph *g = small_graph(batch);
    struct run_options o = {.device = "cuda:0", .storage = storage, .quick = true, .threads = 1};
    struct run *r = NULL;
    struct err e = {0};
    double loss = -1;
    CHECK(run_new(g, &o, NULL, &r, &e) == ST_OK);
    *st = run_execute(r, &e);
    json_t *d = run_document(r);
    const json_t *m = json_object_get(d, "metrics");
    if (*st == ST_OK)
        loss = json_get_f64(m, "final_loss", -1);
    json_decref(d);
    memset(oom, 0, sizeof *oom);
    bool out = run_out_of_memory(r, oom);
    CHECK(out == (*st == ST_OOM));
    if (out) { /* before the run is freed: only the context is held, if that */
        struct devices list;
        struct device_memory m2;
        CHECK(devices_open(&list, &e) == ST_OK);
        CHECK(device_memory(&list.list[1], &m2, &e) == ST_OK);
        CHECK(m2.total_bytes - m2.free_bytes <= 1 << 20);
        devices_close(&list);
        CHECK(strcmp(oom->device->id, "cuda:0") == 0);
    }
    run_free(r);
    graph_free(g);
    return loss;
}

static void check_then_smaller(enum exec_storage storage, int64_t bytes, bool before_start)
{
    enum status st;
    struct run_oom oom;
    card((int64_t)1 << 30);
    double fresh = train("DataLoader.batch_size=16", EXEC_PLANNED, &st, &oom);
    CHECK(st == ST_OK);
    card(bytes);
    (void)train("DataLoader.batch_size=128", storage, &st, &oom);
    CHECK(st == ST_OOM);
    CHECK(oom.before_start == before_start);
    CHECK(oom.room_bytes > 0 && oom.room_bytes <= bytes);
    double after = train("DataLoader.batch_size=16", EXEC_PLANNED, &st, &oom);
    CHECK(st == ST_OK);
    CHECK(memcmp(&fresh, &after, sizeof fresh) == 0);
}

static void need_data(void)
{
    struct stat s;
    if (stat("/usr/share/datasets/fashion-mnist", &s) != 0)
        test_skip("the Debian package dataset-fashion-mnist is missing");
}

TEST_WITHIN(
    refused_then_smaller, 300,
    "O3 O4: after a refused run the same process trains a smaller one, as a fresh one would")
{
    need_data();
    check_then_smaller(EXEC_PLANNED, 30 << 20, true);
}

TEST_WITHIN(
    ran_out_then_smaller, 300,
    "O3: after running out at an operator nothing is held, and a smaller run "
    "gives a fresh one's bits")
{
    need_data();
    check_then_smaller(EXEC_DYNAMIC, (45705408 + (3 << 20)), false);
}
