/* corpus_test.c - every malformed file of tests/corpus/graph gets its error, and none a crash. */
#include "graph/graph.h"

#include "base/mem.h"
#include "test.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *file, *says;
} cases[] = {
#define X(file, says) {file, says},
#include "graph/corpus.def"
#undef X
};

/* True when some issue has the text; every message must be valid UTF-8. */
static bool issue_says(const struct graph *g, const char *text)
{
    bool found = false;
    for (size_t i = 0; i < graph_issue_count(g); i++) {
        const struct graph_issue *issue = graph_issue_at(g, i);
        json_t *message = json_string(issue->message);
        CHECK(message != NULL && *issue->code);
        json_decref(message);
        found = found || strstr(issue->message, text);
    }
    return found;
}

TEST(
    malformed_graphs,
    "N1 H4: each malformed file is refused with its file, node and parameter named")
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[512];
        struct graph *g = NULL;
        struct err e = {0};
        (void)snprintf(
            path, sizeof path, "%s/tests/corpus/graph/%s", SNUG_SOURCE_DIR, cases[i].file);
        if (graph_load(path, &g, &e) != ST_OK) {
            if (!strstr(e.text, cases[i].says) || !strstr(e.text, cases[i].file))
                test_fail(__FILE__, __LINE__, "%s: \"%s\"", cases[i].file, e.text);
            continue;
        }
        (void)graph_check(g, GRAPH_ALL);
        bool says = issue_says(g, cases[i].says);
        enum status st = graph_verdict(g, &e);
        if (!says || st == ST_OK || !strstr(e.text, cases[i].file))
            test_fail(__FILE__, __LINE__, "%s: \"%s\"", cases[i].file, e.text);
        char key[33];
        graph_key(g, key);
        CHECK_EQ(strlen(key), 32);
        graph_free(g);
    }
}

TEST(corpus_is_listed, "every file of the corpus has its expectation")
{
    size_t n = 0;
    DIR *d = opendir(SNUG_SOURCE_DIR "/tests/corpus/graph");
    CHECK(d != NULL);
    for (struct dirent *entry; (entry = readdir(d));) {
        if (entry->d_name[0] == '.')
            continue;
        bool listed = false;
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            listed = listed || strcmp(cases[i].file, entry->d_name) == 0;
        if (!listed)
            test_fail(__FILE__, __LINE__, "%s is not in corpus.def", entry->d_name);
        n++;
    }
    (void)closedir(d);
    CHECK_EQ(n, sizeof cases / sizeof *cases);
}

TEST(every_prefix_of_a_graph, "N1 H4: a file cut off anywhere is an error, never a crash")
{
    static const char text[] =
        "{\"nodes\":[{\"id\":\"s\",\"type\":\"Start\"},{\"id\":\"a\",\"type\":\"preset:Training "
        "Pipeline\",\"data\":{\"internalParams\":{\"loss\":{\"type\":\"MSELoss\"}}}}],\"edges\":[{"
        "\"source\":\"s\",\"target\":\"a\",\"type\":\"trigger\"}],\"settings\":{\"seed\":1}}";
    struct err e = {0};
    struct graph *g = NULL;
    for (size_t n = 0; n + 1 < sizeof text - 1; n++)
        CHECK_EQ(graph_parse(text, n, "cut", &g, &e), ST_CORRUPT);
    CHECK_OK(graph_parse(text, sizeof text - 1, "whole", &g, &e), &e);
    graph_free(g);
}
