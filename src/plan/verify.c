/* verify.c - cuts a graph down to its training loops, shortens them, runs them, and compares. */
#include "plan/verify.h"

#include "base/mem.h"
#include "plan/graph_estimate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQ_MOST = 64, UPDATES = 2 };
#define GO_BYTES 10000000000LL

/* ---- the short graph ---- */

static const char *field(const json_t *o, const char *name)
{
    return json_get_str(o, name, "");
}

static bool listed(const json_t *ids, const char *id)
{
    return json_object_get(ids, id) != NULL;
}

/* The ids, in the file's top level, of what holds a training loop and of everything that feeds it.
 */
static json_t *needed(const struct graph *g, const json_t *edges)
{
    json_t *ids = json_object(), *x;
    size_t i;
    for (i = 0; i < graph_order_count(g); i++) {
        const struct graph_node *n = graph_node_at(g, graph_order_at(g, i));
        if (n->kind && strcmp(n->kind->name, "TrainingLoop") == 0)
            json_put_bool(ids, n->container ? n->container : n->id, true);
    }
    for (bool more = json_object_size(ids) > 0; more;) {
        more = false;
        json_array_foreach(edges, i, x)
        {
            if (!listed(ids, field(x, "target")) || listed(ids, field(x, "source")) ||
                strcmp(field(x, "targetHandle"), "val_dataloader") == 0)
                continue;
            json_put_bool(ids, field(x, "source"), true);
            more = true;
        }
    }
    return ids;
}

/* Fewer samples, shorter sequences, two updates, no checkpoints: wherever the nodes are. Where a
 * preset would save a file, nothing is run. */
static enum status shorten(struct graph *g, int batch, struct err *e)
{
    static const char *const always[] = {
        "TrainingLoop.epochs=1", "TrainingLoop.max_steps=2", "TrainingLoop.checkpoint_every=0",
        "TrainingLoop.checkpoint_every_steps=0", "TrainingLoop.early_stopping_patience=0"};
    char text[64];
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        TRY(graph_set(g, always[i], e));
    (void)snprintf(text, sizeof text, "DataLoader.batch_size=%d", batch);
    TRY(graph_set(g, text, e));
    for (size_t i = 0; i < graph_node_count(g); i++) {
        const struct graph_node *n = graph_node_at(g, i);
        if (str_ends(n->type, "Saver"))
            return err_set(
                e, ST_UNSUPPORTED, "node %s (%s) would save a file in a short run", n->id, n->type);
        if (strcmp(n->type, "LMTokenizedDataset") != 0 || graph_param_i64(n, "seq_len") <= SEQ_MOST)
            continue;
        (void)snprintf(text, sizeof text, "LMTokenizedDataset.seq_len=%d", SEQ_MOST);
        TRY(graph_set(g, text, e));
    }
    return ST_OK;
}

/* Keeps the elements whose ends are all needed. */
static void keep(json_t *list, const json_t *ids, bool edges)
{
    for (size_t i = json_array_size(list); i-- > 0;) {
        const json_t *x = json_array_get(list, i);
        bool ok = edges ? listed(ids, field(x, "source")) && listed(ids, field(x, "target")) &&
                              strcmp(field(x, "targetHandle"), "val_dataloader") != 0
                        : listed(ids, field(x, "id"));
        if (!ok)
            (void)json_array_remove(list, i);
    }
}

static enum status short_graph(const struct graph *g, int batch, struct graph **out, struct err *e)
{
    json_t *d = graph_document(g), *nodes = json_object_get(d, "nodes");
    json_t *edges = json_object_get(d, "edges"), *ids = needed(g, edges);
    size_t n = json_object_size(ids);
    keep(nodes, ids, false);
    keep(edges, ids, true);
    json_decref(ids);
    char *text = json_text(d, false);
    json_decref(d);
    enum status st = n > 0 ? graph_parse(text, strlen(text), graph_path(g), out, e)
                           : err_set(e, ST_UNSUPPORTED, "the graph trains nothing");
    mem_free(text);
    if (st != ST_OK)
        return st;
    st = shorten(*out, batch, e);
    if (st == ST_OK && graph_check(*out, GRAPH_RUN) == 0)
        (void)graph_check_runnable(*out);
    if (st == ST_OK)
        st = graph_verdict(*out, e);
    if (st != ST_OK)
        graph_free(*out);
    return st;
}

/* ---- running it ---- */

static enum status
measure(struct graph *g, const struct run_options *o, int64_t *bytes, struct err *e)
{
    struct run_options quiet = *o;
    struct run *r;
    quiet.watch = NULL;
    quiet.prepares_data = true;
    TRY(run_new(g, &quiet, NULL, &r, e));
    enum status st = run_execute(r, e);
    json_t *d = run_document(r);
    *bytes = json_get_i64(d, "peak_bytes_measured", 0);
    json_decref(d);
    run_free(r);
    return st;
}

static enum status try_batch(
    const struct graph *g, const struct run_options *o, int batch, json_t **out, struct err *e)
{
    struct graph *small;
    int64_t measured = 0;
    json_t *d = NULL;
    TRY(short_graph(g, batch, &small, e));
    enum status st = measure(small, o, &measured, e);
    if (st == ST_OK)
        st = graph_estimate(small, o, &d, e);
    graph_free(small);
    if (st != ST_OK)
        return st;
    int64_t plan = json_get_i64(json_object_get(d, "plan"), "peak_bytes", 0);
    int64_t estimate = json_get_i64(json_object_get(d, "static"), "bytes", 0);
    json_put_i64(d, "batch", batch);
    json_put_i64(d, "updates", UPDATES);
    json_put_i64(d, "measured_bytes", measured);
    json_put_i64(d, "plan_difference_bytes", plan - measured);
    json_put_i64(d, "static_difference_bytes", estimate - measured);
    json_put_bool(d, "go", llabs((long long)(estimate - measured)) <= GO_BYTES);
    *out = d;
    return ST_OK;
}

/* Batch norm cannot train on one value: batch 2 then. */
enum status
graph_verify(const struct graph *g, const struct run_options *o, json_t **out, struct err *e)
{
    struct err first = {0};
    enum status st = try_batch(g, o, 1, out, &first);
    if (st == ST_INVALID)
        st = try_batch(g, o, 2, out, e);
    else if (st != ST_OK)
        *e = first;
    return st;
}

void graph_verify_text(const json_t *d, struct str *out)
{
    str_printf(
        out, "\na short real run: batch %lld, %lld updates\n",
        (long long)json_get_i64(d, "batch", 0), (long long)json_get_i64(d, "updates", 0));
    const struct {
        const char *label;
        int64_t bytes;
    } rows[] = {
        {"measured peak", json_get_i64(d, "measured_bytes", 0)},
        {"plan minus measured", json_get_i64(d, "plan_difference_bytes", 0)},
        {"static estimate minus measured", json_get_i64(d, "static_difference_bytes", 0)}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        str_printf(
            out, "    %-34s %+9.3f GiB  %+9.3f GB\n", rows[i].label,
            (double)rows[i].bytes / 1073741824.0, (double)rows[i].bytes / 1e9);
    str_printf(
        out, "    %s\n",
        json_get_bool(d, "go", false) ? "go: the estimate is within 10 GB"
                                      : "no go: the estimate is off by more than 10 GB");
}
