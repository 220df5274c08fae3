/* cache_test.c - what a second run of the same process finds of the first. */
#include "runner/cache.h"

#include "base/env.h"
#include "base/mem.h"
#include "runner/run.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* Start -> TensorInput -> Linear -> Activation, and TensorInput -> ScalarMultiply. */
static const char document[] =
    "{\"name\":\"canvas\",\"nodes\":["
    "{\"id\":\"s\",\"type\":\"Start\",\"data\":{\"params\":{}}},"
    "{\"id\":\"x\",\"type\":\"TensorCreate\",\"data\":{\"params\":{\"shape\":\"2,3\",\"fill\":"
    "\"randn\"}}},"
    "{\"id\":\"l\",\"type\":\"Linear\",\"data\":{\"params\":{\"in_features\":3,\"out_features\":4}}"
    "},"
    "{\"id\":\"a\",\"type\":\"Softmax\",\"data\":{\"params\":{}}},"
    "{\"id\":\"m\",\"type\":\"ScalarMultiply\",\"data\":{\"params\":{\"scalar\":2}}}],"
    "\"edges\":["
    "{\"id\":\"e0\",\"source\":\"s\",\"target\":\"x\",\"sourceHandle\":\"trigger\",\"type\":"
    "\"trigger\"},"
    "{\"id\":\"e1\",\"source\":\"x\",\"target\":\"l\",\"sourceHandle\":\"tensor\",\"targetHandle\":"
    "\"tensor\"},"
    "{\"id\":\"e2\",\"source\":\"l\",\"target\":\"a\",\"sourceHandle\":\"tensor\",\"targetHandle\":"
    "\"tensor\"},"
    "{\"id\":\"e3\",\"source\":\"x\",\"target\":\"m\",\"sourceHandle\":\"tensor\",\"targetHandle\":"
    "\"tensor\"}]}";

/* What a run said of each node, and the numbers that "a" put out. */
struct seen {
    char text[512];
    double sum;
};

static void on_node(
    const struct run *r, const struct graph_node *n, enum run_node_status s, const struct err *e,
    void *ctx)
{
    struct seen *v = ctx;
    struct run_output o;
    size_t at = strlen(v->text);
    (void)e;
    if (s == RUN_NODE_RUNNING)
        return;
    (void)snprintf(v->text + at, sizeof v->text - at, "%s=%s ", n->id, run_node_status_name(s));
    if (strcmp(n->id, "a") != 0 || !run_output_at(r, n, 0, &o))
        return;
    CHECK_EQ(o.kind, RUN_OUTPUT_TENSOR);
    for (int64_t i = 0; i < shape_count(o.shape); i++)
        v->sum += (double)(i + 1) * dtype_load(o.data, o.dtype, i);
}

static struct seen
run_document_with(const char *graph_text, struct run_cache *c, const char *set, int64_t seed)
{
    struct err e = {0};
    struct graph *g;
    struct run *r;
    struct seen v = {0};
    struct run_sink sink = {.node = on_node, .ctx = &v};
    struct run_options o = {
        .seed = seed, .has_seed = true, .cache = c, .quick = true, .threads = 1};
    CHECK(setenv("SNUG_HOME", test_dir(), 1) == 0);
    CHECK_OK(graph_parse(graph_text, strlen(graph_text), "canvas.json", &g, &e), &e);
    if (set)
        CHECK_OK(graph_set(g, set, &e), &e);
    (void)graph_check(g, GRAPH_RUN);
    (void)graph_check_runnable(g);
    CHECK_OK(graph_verdict(g, &e), &e);
    CHECK_OK(run_new(g, &o, &sink, &r, &e), &e);
    CHECK_OK(run_execute(r, &e), &e);
    run_free(r);
    graph_free(g);
    return v;
}

static struct seen run_with(struct run_cache *c, const char *set, int64_t seed)
{
    return run_document_with(document, c, set, seed);
}

static struct run_cache *fresh(int64_t output_bytes, int64_t weight_bytes)
{
    struct run_cache_limits l = {output_bytes, weight_bytes};
    struct run_cache *c = run_cache_new(&l);
    run_cache_begin(c, NULL, true);
    return c;
}

TEST(
    second_run_uses_what_is_unchanged,
    "R1: a second click runs only what changed; layers with weights run, on the same weights")
{
    struct run_cache *c = fresh(1 << 20, 1 << 20);
    struct seen first = run_with(c, NULL, 5), second = run_with(c, NULL, 5);
    CHECK(strstr(first.text, "x=completed") && strstr(first.text, "l=completed"));
    CHECK(strstr(second.text, "x=cached") && strstr(second.text, "l=completed"));
    CHECK(strstr(second.text, "a=cached") && strstr(second.text, "m=cached"));
    CHECK(first.sum == second.sum);
    struct seen third = run_with(c, "m.scalar=3", 5);
    CHECK(strstr(third.text, "m=completed") && strstr(third.text, "a=cached"));
    struct run_cache_stats s = run_cache_stats(c);
    CHECK_EQ(s.entries, 3);
    CHECK_EQ(s.bytes, (6 + 8 + 6) * 4); /* S2: the tensors' storages */
    CHECK_EQ(s.modules, 1);
    CHECK_EQ(s.weight_bytes, (12 + 4) * 4);
    run_cache_free(c);
}

TEST(changed_nodes_run_again, "R1: nodes that the editor names as changed run again")
{
    struct run_cache *c = fresh(1 << 20, 1 << 20);
    (void)run_with(c, NULL, 5);
    json_t *changed = json_pack("[s]", "x");
    run_cache_begin(c, changed, true);
    struct seen v = run_with(c, NULL, 5);
    CHECK(strstr(v.text, "x=completed") && strstr(v.text, "m=cached"));
    json_decref(changed);
    run_cache_free(c);
}

TEST(
    weights_outlive_a_seed,
    "R1: kept weights stay under another seed; without weights_persistent they are drawn anew")
{
    struct run_cache *c = fresh(1, 1 << 20); /* no outputs are kept */
    struct run_cache *none = fresh(1, 1);
    static const char input[] = "x.fill=ones";
    struct seen first = run_with(c, input, 5), second = run_with(c, input, 6);
    CHECK(first.sum == second.sum);
    CHECK(run_with(none, input, 6).sum != first.sum);
    run_cache_begin(c, NULL, false);
    CHECK(run_with(c, input, 6).sum != first.sum);
    run_cache_begin(c, NULL, true);
    CHECK(run_with(c, input, 6).sum == first.sum);
    CHECK_EQ(run_cache_stats(none).modules, 0);
    CHECK_EQ(run_cache_clear_weights(c, NULL), 1);
    CHECK(run_with(c, input, 6).sum != first.sum);
    run_cache_free(none);
    run_cache_free(c);
}

TEST(
    limits_of_bytes_hold,
    "S1: the least recently used goes first, and what is larger than the limit is not kept")
{
    struct run_cache *c = fresh(60, 1 << 20); /* two of x (24), m (24), a (32) */
    (void)run_with(c, NULL, 5);
    struct run_cache_stats s = run_cache_stats(c);
    CHECK(s.bytes <= 60 && s.entries >= 1);
    run_cache_clear_outputs(c);
    CHECK_EQ(run_cache_stats(c).bytes, 0);
    run_cache_free(c);
    c = fresh(10, 10);
    (void)run_with(c, NULL, 5);
    CHECK_EQ(run_cache_stats(c).entries, 0);
    CHECK_EQ(run_cache_stats(c).modules, 0);
    run_cache_free(c);
}

TEST(
    limits_come_from_settings,
    "S1: limits of the stores come from the environment; 0 turns them off")
{
    struct err e = {0};
    struct run_cache_limits l;
    CHECK(setenv("SNUG_HOME", test_dir(), 1) == 0);
    CHECK_OK(run_cache_limits_read(&l, &e), &e);
    CHECK_EQ(l.output_bytes_max, 1 << 30);
    CHECK(setenv("SNUG_EXECUTION_CACHE_MAX_MB", "0", 1) == 0);
    CHECK(setenv("SNUG_NODE_STATE_STORE_MAX_MB", "3", 1) == 0);
    CHECK_OK(run_cache_limits_read(&l, &e), &e);
    CHECK_EQ(l.output_bytes_max, 0);
    CHECK_EQ(l.weight_bytes_max, 3 << 20);
    CHECK(setenv("SNUG_NODE_STATE_STORE_MAX_MB", "-1", 1) == 0);
    CHECK_EQ(run_cache_limits_read(&l, &e), ST_INVALID);
}

TEST(
    batches_are_kept_as_long_as_the_files_are,
    "R1: a batch of a data set is cached until its files change; #144 of the founding system")
{
    static const char batch[] =
        "{\"name\":\"batch\",\"nodes\":["
        "{\"id\":\"s\",\"type\":\"Start\",\"data\":{\"params\":{}}},"
        "{\"id\":\"d\",\"type\":\"Dataset\",\"data\":{\"params\":{\"name\":\"FashionMNIST\","
        "\"split\":"
        "\"test\",\"data_dir\":\"./data\"}}},"
        "{\"id\":\"b\",\"type\":\"DatasetBatch\",\"data\":{\"params\":{\"batch_size\":2}}}],"
        "\"edges\":["
        "{\"id\":\"t\",\"source\":\"s\",\"target\":\"d\",\"sourceHandle\":\"trigger\",\"type\":"
        "\"trigger\"},"
        "{\"id\":\"e\",\"source\":\"d\",\"target\":\"b\",\"sourceHandle\":\"dataset\","
        "\"targetHandle\":\"dataset\"}]}";
    static const char system[] = "/usr/share/datasets/fashion-mnist";
    static const char *const names[] = {"t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"};
    char folder[900], to[1100], from[200], *bytes;
    size_t n;
    struct err e = {0};
    (void)snprintf(folder, sizeof folder, "%s/data/fashion-mnist", test_dir());
    CHECK_OK(dir_make(folder, &e), &e);
    for (int i = 0; i < 2; i++) {
        (void)path_join(system, names[i], from, sizeof from);
        if (!file_exists(from))
            test_skip("the Debian package dataset-fashion-mnist is missing");
        CHECK_OK(file_read(from, 1 << 26, &bytes, &n, &e), &e);
        CHECK_OK(file_write(path_join(folder, names[i], to, sizeof to), bytes, n, &e), &e);
        mem_free(bytes);
    }
    struct run_cache *c = fresh(1 << 20, 1 << 20);
    struct seen v = run_document_with(batch, c, NULL, 5);
    CHECK(strstr(v.text, "b=completed") != NULL);
    v = run_document_with(batch, c, NULL, 5);
    CHECK(strstr(v.text, "d=completed") && strstr(v.text, "b=cached"));
    struct timespec old[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    CHECK_EQ(utimensat(-100, to, old, 0), 0);
    v = run_document_with(batch, c, NULL, 5);
    CHECK(strstr(v.text, "b=completed") != NULL);
    run_cache_free(c);
}
