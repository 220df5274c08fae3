/* cmd_validate.c - `snug validate`: every fault of a graph file. */
#include "cli/answer.h"
#include "cli/commands.h"

/* A fault of the file is an error; what only this version cannot run is one too, but told apart. */
static json_t *document(const struct graph *g, size_t faults)
{
    json_t *d = json_object();
    size_t issues = graph_issue_count(g);
    json_put_str(d, "graph", graph_path(g));
    json_put_str(d, "name", graph_name(g));
    json_put_bool(d, "valid", faults == 0);
    json_put_bool(d, "runnable", issues == 0);
    json_put_i64(d, "nodes", (int64_t)graph_node_count(g));
    json_put_i64(d, "executable_nodes", (int64_t)graph_order_count(g));
    json_put(d, "issues", graph_issues_json(g));
    return d;
}

static void text(const struct graph *g, size_t faults, struct str *out)
{
    size_t n = graph_issue_count(g);
    for (size_t i = 0; i < n; i++) {
        const struct graph_issue *x = graph_issue_at(g, i);
        str_printf(out, "%s: %s\n", i < faults ? "error" : "cannot run", x->message);
    }
    str_printf(out, "%s: ", graph_path(g));
    if (n == 0)
        str_printf(
            out, "valid: %zu nodes, %zu of them run\n", graph_node_count(g), graph_order_count(g));
    else if (faults)
        str_printf(out, "not valid: %zu error%s\n", faults, faults == 1 ? "" : "s");
    else
        str_add(out, "valid, but this version cannot run it\n");
}

static enum status check(const struct args *a, struct graph **g, size_t *faults, struct err *e)
{
    TRY(graph_load(a->argument[0], g, e));
    for (size_t i = 0; i < a->option[OPTION_SET].list.n; i++)
        TRY(graph_set(*g, a->option[OPTION_SET].list.data[i], e));
    *faults = graph_check(*g, GRAPH_ALL);
    (void)graph_check_runnable(*g);
    return graph_verdict(*g, e);
}

int cmd_validate(const struct args *a)
{
    struct err e = {0};
    struct graph *g = NULL;
    struct str out;
    size_t faults = 0;
    bool checked = false;
    str_init(&out);
    enum status st = check(a, &g, &faults, &e);
    checked = g && (st == ST_OK || graph_issue_count(g) > 0);
    json_t *d = checked ? document(g, faults) : NULL;
    if (checked && !a->json) {
        text(g, faults, &out);
        int rc = answer_text(out.data);
        st = st == ST_OK && rc ? ST_IO : st;
    }
    /* The text has said it all; only the exit status is left. */
    int rc = checked && !a->json ? status_exit(st) : answer_end(a->json, st, &e, d);
    if (checked && !a->json)
        json_decref(d);
    str_release(&out);
    graph_free(g);
    return rc;
}
