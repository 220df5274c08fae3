/* modes_test.c - what becomes of a run when one node fails. */
#include "base/env.h"
#include "runner/run.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A batch of pictures that are not there, printed; beside it a tensor that is, printed. */
static const char document[] =
    "{\"name\":\"modes\",\"nodes\":["
    "{\"id\":\"s\",\"type\":\"Start\",\"data\":{\"params\":{}}},"
    "{\"id\":\"d\",\"type\":\"Dataset\",\"data\":{\"params\":{\"name\":\"CIFAR100\",\"data_dir\":"
    "\"./nowhere\"}}},"
    "{\"id\":\"b\",\"type\":\"DatasetBatch\",\"data\":{\"params\":{\"batch_size\":2}}},"
    "{\"id\":\"p\",\"type\":\"Print\",\"data\":{\"params\":{}}},"
    "{\"id\":\"x\",\"type\":\"TensorCreate\",\"data\":{\"params\":{\"shape\":\"2\"}}},"
    "{\"id\":\"q\",\"type\":\"Print\",\"data\":{\"params\":{}}}],"
    "\"edges\":["
    "{\"id\":\"t0\",\"source\":\"s\",\"target\":\"d\",\"sourceHandle\":\"trigger\",\"type\":"
    "\"trigger\"},"
    "{\"id\":\"t1\",\"source\":\"s\",\"target\":\"x\",\"sourceHandle\":\"trigger\",\"type\":"
    "\"trigger\"},"
    "{\"id\":\"e1\",\"source\":\"d\",\"target\":\"b\",\"sourceHandle\":\"dataset\","
    "\"targetHandle\":\"dataset\"},"
    "{\"id\":\"e2\",\"source\":\"b\",\"target\":\"p\",\"sourceHandle\":\"images\","
    "\"targetHandle\":\"value\"},"
    "{\"id\":\"e3\",\"source\":\"x\",\"target\":\"q\",\"sourceHandle\":\"tensor\","
    "\"targetHandle\":\"value\"}]}";

struct seen {
    char nodes[256];
    int retries;
};

static void on_node(
    const struct run *r, const struct graph_node *n, enum run_node_status s, const struct err *e,
    void *ctx)
{
    struct seen *v = ctx;
    size_t at = strlen(v->nodes);
    (void)r;
    CHECK((s == RUN_NODE_FAILED) == (e != NULL));
    if (s != RUN_NODE_RUNNING)
        (void)snprintf(
            v->nodes + at, sizeof v->nodes - at, "%s=%s ", n->id, run_node_status_name(s));
}

static void on_event(const json_t *event, void *ctx)
{
    struct seen *v = ctx;
    v->retries += strcmp(json_get_str(event, "kind", ""), "retry") == 0;
}

static enum status execute(enum run_error_mode mode, int retries_max, struct seen *v, struct err *e)
{
    struct graph *g;
    struct run *r;
    struct run_sink sink = {.node = on_node, .event = on_event, .ctx = v};
    struct run_options o = {
        .error_mode = mode,
        .retries_max = retries_max,
        .quick = true,
        .graph_dir = test_dir(),
        .threads = 1};
    *v = (struct seen){.retries = 0};
    CHECK(setenv("SNUG_HOME", test_dir(), 1) == 0);
    CHECK_OK(graph_parse(document, strlen(document), "modes.json", &g, e), e);
    (void)graph_check(g, GRAPH_RUN);
    CHECK_OK(graph_verdict(g, e), e);
    CHECK_OK(run_new(g, &o, &sink, &r, e), e);
    CHECK_OK(run_plan(r, e), e);
    enum status st = run_execute(r, e);
    run_free(r);
    graph_free(g);
    return st;
}

TEST(fail_fast_stops_at_the_first, "error_mode fail_fast: the first failure ends the run")
{
    struct seen v;
    struct err e = {0};
    CHECK(execute(RUN_FAIL_FAST, 3, &v, &e) != ST_OK);
    CHECK(strstr(v.nodes, "b=error") != NULL);
    CHECK(strstr(v.nodes, "p=") == NULL);
    CHECK_EQ(v.retries, 0);
    CHECK_STR(e.node, "d"); /* whose files are missing */
}

TEST(
    continue_skips_downstream, "error_mode continue: what needs the failed node is skipped, the "
                               "rest runs, and the run has failed with the first error")
{
    struct seen v;
    struct err e = {0};
    CHECK(execute(RUN_CONTINUE, 0, &v, &e) != ST_OK);
    CHECK(strstr(v.nodes, "b=error") && strstr(v.nodes, "p=skipped"));
    CHECK(strstr(v.nodes, "x=completed") && strstr(v.nodes, "q=completed"));
    CHECK_STR(e.node, "d"); /* whose files are missing */
}

TEST(
    retry_tries_again, "error_mode retry: a node is tried again as often as max_retries says, "
                       "after pauses of 0.5 s times the attempt")
{
    struct seen v;
    struct err e = {0};
    int64_t begin = clock_ns();
    CHECK(execute(RUN_RETRY, 2, &v, &e) != ST_OK);
    CHECK_EQ(v.retries, 2);
    CHECK(clock_ns() - begin >= 1500000000);
    CHECK(strstr(v.nodes, "b=error") != NULL);
}
