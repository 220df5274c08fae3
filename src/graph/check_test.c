/* check_test.c - the issues as data, that all are reported, and limits of scale. */
#include "graph/graph.h"

#include "base/env.h"
#include "base/mem.h"
#include "base/str.h"
#include "test.h"

#include <string.h>

static struct graph *parse(const char *text)
{
    struct graph *g = NULL;
    struct err e = {0};
    CHECK_OK(graph_parse(text, strlen(text), "test.json", &g, &e), &e);
    return g;
}

static const struct graph_issue *issue(const struct graph *g, const char *code)
{
    for (size_t i = 0; i < graph_issue_count(g); i++) {
        if (str_eq(graph_issue_at(g, i)->code, code))
            return graph_issue_at(g, i);
    }
    test_fail(__FILE__, __LINE__, "no issue %s", code);
}

TEST(
    all_faults_are_reported,
    "N1: no fault hides another, and each is an object with its particulars")
{
    struct graph *g = parse(
        "{\"nodes\":[{\"id\":\"a\",\"type\":\"Nope\"},{\"id\":\"b\",\"type\":\"DataLoader\","
        "\"data\":"
        "{\"params\":{\"batch_size\":0,\"num_workers\":-1}}},{\"id\":\"b\",\"type\":\"Print\"}],"
        "\"edges\":[{\"source\":\"a\",\"target\":\"zz\"},{\"source\":\"b\",\"sourceHandle\":\"q\","
        "\"target\":\"b\",\"targetHandle\":\"r\"}]}");
    CHECK_EQ(graph_check(g, GRAPH_ALL), 10);
    CHECK_STR(issue(g, "unknown_type")->node_id, "a");
    CHECK_STR(json_get_str(issue(g, "missing_input")->params, "port", ""), "dataset");
    CHECK_STR(json_get_str(issue(g, "param_below_min")->params, "param", ""), "batch_size");
    CHECK_STR(issue(g, "bad_output_port")->message, "Invalid output port 'q' on DataLoader");
    CHECK_STR(issue(g, "bad_input_port")->message, "Invalid input port 'r' on DataLoader");
    CHECK(issue(g, "edge_missing_node")->node_id == NULL);
    (void)issue(g, "duplicate_id");
    (void)issue(g, "no_entry_point");
    json_t *list = graph_issues_json(g);
    CHECK_EQ(json_array_size(list), 10);
    CHECK(json_is_object(json_object_get(json_array_get(list, 0), "params")));
    json_decref(list);
    struct err e = {0};
    CHECK_EQ(graph_verdict(g, &e), ST_INVALID);
    CHECK(strstr(e.detail, "num_workers") && strstr(e.hint, "10 problems"));
    CHECK_EQ(graph_check(g, GRAPH_ALL), 10); /* again, not twice as many */
    graph_free(g);
}

TEST(shape_faults_are_all_told, "N1: a document of the wrong shape is refused with every place")
{
    static const char text[] = "{\"nodes\":[{\"type\":3},7],\"edges\":[{}],\"settings\":[]}";
    struct graph *g = NULL;
    struct err e = {0};
    CHECK_EQ(graph_parse(text, sizeof text - 1, "f.json", &g, &e), ST_INVALID);
    CHECK(strstr(e.text, "\"f.json\"") && strstr(e.text, "nodes[0].id is missing"));
    CHECK(
        strstr(e.detail, "nodes[0].type is a number") && strstr(e.detail, "nodes[1] is a number"));
    CHECK(strstr(e.detail, "edges[0].source") && strstr(e.detail, "settings is an array"));
}

TEST(
    known_but_not_run, "N1: a known type that this version does not execute is named with its node")
{
    struct graph *g = parse(
        "{\"nodes\":[{\"id\":\"s\",\"type\":\"Start\"},{\"id\":\"t\",\"type\":\"TensorCreate\"},"
        "{\"id\":\"c\",\"type\":\"Normalize\",\"data\":{\"params\":{\"axis\":\"same\"}}},"
        "{\"id\":\"k\",\"type\":\"KNN\"}],\"edges\":[{\"source\":\"s\",\"sourceHandle\":"
        "\"trigger\","
        "\"target\":\"c\",\"type\":\"trigger\"},{\"source\":\"t\",\"sourceHandle\":\"tensor\","
        "\"target\":\"c\",\"targetHandle\":\"tensor\"}]}");
    /* The reference does not check an unbounded parameter: neither do we where we do not run it. */
    CHECK_EQ(graph_check(g, GRAPH_RUN), 0);
    CHECK_EQ(graph_check_runnable(g), 1);
    CHECK_STR(issue(g, "type_not_runnable")->message, "This version cannot run node c (Normalize)");
    struct err e = {0};
    CHECK_EQ(graph_verdict(g, &e), ST_UNSUPPORTED);
    CHECK_STR(e.node, "c");
    CHECK_STR(e.node_type, "Normalize");
    graph_free(g);
}

TEST(later_values, "N1: a value of a parameter that this version does not run is named")
{
    struct graph *g = parse(
        "{\"nodes\":[{\"id\":\"s\",\"type\":\"Start\"},{\"id\":\"d\",\"type\":\"Dataset\",\"data\":"
        "{\"params\":{\"name\":\"SVHN\"}}}],\"edges\":[{\"source\":\"s\",\"sourceHandle\":"
        "\"trigger\","
        "\"target\":\"d\",\"type\":\"trigger\"}]}");
    CHECK_EQ(graph_check(g, GRAPH_RUN), 0);
    CHECK_EQ(graph_check_runnable(g), 1);
    CHECK_STR(
        issue(g, "value_not_runnable")->message,
        "This version cannot run name SVHN on node d (Dataset)");
    graph_free(g);
}

TEST(device_strings_pass, "D1 N1: a node's device may be any card; the device list judges it later")
{
    struct graph *g = parse(
        "{\"nodes\":[{\"id\":\"s\",\"type\":\"Start\"},{\"id\":\"m\",\"type\":\"SequentialModel\"},"
        "{\"id\":\"d\",\"type\":\"Dataset\"},{\"id\":\"e\",\"type\":\"EvaluateModel\",\"data\":{"
        "\"params\":{\"device\":\"cuda:3\"}}}],\"edges\":[{\"source\":\"s\",\"sourceHandle\":"
        "\"trigger\",\"target\":\"m\",\"type\":\"trigger\"},{\"source\":\"m\",\"sourceHandle\":"
        "\"model\",\"target\":\"e\",\"targetHandle\":\"model\"},{\"source\":\"d\",\"sourceHandle\":"
        "\"dataset\",\"target\":\"e\",\"targetHandle\":\"dataset\"}]}");
    CHECK_EQ(graph_check(g, GRAPH_RUN), 0);
    graph_free(g);
}

/* A chain of `n` Print nodes; the last leads back to the first when closed. */
static struct graph *chain(int n, bool closed)
{
    struct str s;
    str_init(&s);
    str_add(
        &s,
        "{\"nodes\":[{\"id\":\"s\",\"type\":\"Start\"},{\"id\":\"t\",\"type\":\"TensorCreate\"}");
    for (int i = 0; i < n; i++)
        str_printf(&s, ",{\"id\":\"p%d\",\"type\":\"Print\"}", i);
    str_add(
        &s, "],\"edges\":[{\"source\":\"s\",\"target\":\"p0\",\"sourceHandle\":\"trigger\","
            "\"type\":\"trigger\"},{\"source\":\"t\",\"sourceHandle\":\"tensor\",\"target\":\"p0\","
            "\"targetHandle\":\"value\"}");
    for (int i = 1; i < n + closed; i++)
        str_printf(
            &s,
            ",{\"source\":\"p%d\",\"sourceHandle\":\"value\",\"target\":\"p%d\",\"targetHandle\":"
            "\"value\"}",
            i - 1, i % n);
    str_add(&s, "]}");
    struct graph *g = parse(s.data);
    str_release(&s);
    return g;
}

TEST(
    large_graphs_are_quick,
    "N1 H4: a chain of 50000 nodes is checked, ordered and identified in seconds")
{
    struct graph *g = chain(50000, false);
    char key[33];
    int64_t begun = clock_ns();
    CHECK_EQ(graph_check(g, GRAPH_RUN), 0);
    CHECK_EQ(graph_order_count(g), 50002);
    graph_key(g, key);
    CHECK(clock_ns() - begun < 20000000000);
    graph_free(g);
    g = chain(50000, true);
    CHECK_EQ(graph_check(g, GRAPH_RUN), 1);
    CHECK(strlen(issue(g, "cycle")->message) < 1000);
    graph_key(g, key);
    graph_free(g);
}
