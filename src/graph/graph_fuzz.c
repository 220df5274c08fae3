/* graph_fuzz.c - any bytes as a graph file: load, set, check, identify, write. */
#include "graph/graph.h"

#include "base/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct graph *g = NULL;
    struct err e = {0};
    char key[33];
    if (graph_parse((const char *)data, size, "fuzz", &g, &e) != ST_OK)
        return 0;
    bool set = graph_set(g, "TrainingLoop.epochs=2", &e) == ST_OK ||
               graph_set(g, "Optimizer.lr=0.5", &e) == ST_OK;
    ASSERT(set || e.status != ST_OK);
    (void)graph_check(g, GRAPH_ALL);
    graph_key(g, key);
    if (graph_check(g, GRAPH_RUN) == 0) {
        (void)graph_check_runnable(g);
        ASSERT(graph_order_count(g) > 0);
    }
    ASSERT((graph_verdict(g, &e) == ST_OK) == (graph_issue_count(g) == 0));
    json_decref(graph_issues_json(g));
    for (size_t i = 0; i < graph_node_count(g); i++)
        json_decref(graph_params_full(graph_node_at(g, i)));
    json_t *document = graph_document(g);
    mem_free(json_text(document, false));
    json_decref(document);
    graph_free(g);
    return 0;
}
