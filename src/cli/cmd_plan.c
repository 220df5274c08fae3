/* cmd_plan.c - `snug plan`: the memory bill of a graph, without running it. */
#include "cli/answer.h"
#include "cli/bill.h"
#include "cli/commands.h"

#include "base/env.h"
#include "passes/passes.h"
#include "plan/page.h"

#include <stdlib.h>
#include <string.h>

enum { NODE_ROWS = 12 };

struct planning {
    struct graph *graph;
    struct run *run;
    char *dump; /* from open_memstream */
    size_t dump_bytes;
    int64_t process_bytes;
};

static enum status check_pass(const char *name, struct err *e)
{
    enum pass found;
    if (strcmp(name, "all") == 0 || pass_find(name, &found))
        return ST_OK;
    struct str list;
    str_init(&list);
    for (int i = 0; i < PASS_COUNT; i++)
        str_printf(&list, "%s, ", pass_name((enum pass)i));
    (void)err_set(e, ST_USAGE, "--dump-after is one of %sall, not \"%s\"", list.data, name);
    err_hint(e, "`snug plan --help` says what each pass does");
    str_release(&list);
    return ST_USAGE;
}

/* What only --problem understands. */
static enum status check_graph_options(const struct args *a, struct err *e)
{
    if (a->option[OPTION_CAPACITY].given || a->option[OPTION_OUTPUT].given)
        return err_set(
            e, ST_USAGE, "--%s goes with --problem",
            a->option[OPTION_CAPACITY].given ? "capacity" : "output");
    return ST_OK;
}

static enum status make_plan(const struct args *a, struct planning *p, struct err *e)
{
    struct run_options o = run_options_of(a);
    if (a->n_arguments == 0)
        return err_set(e, ST_USAGE, "`snug plan` needs GRAPH, or --problem FILE.csv");
    TRY(check_graph_options(a, e));
    o.map = a->option[OPTION_HTML].given;
    if (o.dump_after)
        TRY(check_pass(o.dump_after, e));
    TRY(graph_of(a, &p->graph, e));
    if (o.dump_after) {
        o.dump_out = open_memstream(&p->dump, &p->dump_bytes);
        if (!o.dump_out)
            return err_errno(e, "cannot keep the dump");
    }
    enum status st = run_new(p->graph, &o, NULL, &p->run, e);
    p->process_bytes = process_rss_bytes();
    if (st == ST_OK)
        st = run_plan(p->run, e);
    if (o.dump_out)
        (void)fclose(o.dump_out);
    if (st == ST_OK && o.dump_after && p->dump_bytes == 0) {
        st = err_set(e, ST_USAGE, "no program goes through \"%s\" here", o.dump_after);
        err_hint(e, "--dump-after all prints the programs after every pass, with its name");
    }
    return st;
}

/* The page, also where the plan is above the budget: `why` then has the advice. */
static enum status
write_page(const struct args *a, const struct planning *p, const struct err *why, struct err *e)
{
    struct str page;
    json_t *d = run_plan_json(p->run, true);
    str_init(&page);
    json_put_str(d, "title", graph_path(p->graph));
    json_put(d, "facts", run_facts(p->run));
    if (why->detail[0])
        json_put_str(d, "advice", why->detail);
    page_text(d, &page);
    enum status st = file_write(a->option[OPTION_HTML].text, page.data, page.n, e);
    str_release(&page);
    json_decref(d);
    return st;
}

static json_t *document(const struct args *a, const struct planning *p)
{
    json_t *d = run_plan_json(p->run, a->option[OPTION_TIMELINE].given);
    if (a->option[OPTION_HTML].given) {
        size_t i;
        json_t *program;
        json_put_str(d, "html", a->option[OPTION_HTML].text);
        json_array_foreach(json_object_get(d, "programs"), i, program)(void)
            json_object_del(program, "map"); /* the page's alone */
    }
    json_put(d, "facts", run_facts(p->run));
    if (p->dump)
        json_put(d, "dump", json_stringn(p->dump, p->dump_bytes));
    return d;
}

static void text(const struct args *a, const struct planning *p, struct str *out)
{
    if (p->dump) {
        str_add_n(out, p->dump, p->dump_bytes);
        return;
    }
    struct bill_options o = {
        .colour = colour_on(stdout),
        .all_programs = a->option[OPTION_TIMELINE].given,
        .rows_max = NODE_ROWS,
        .process_bytes = p->process_bytes,
        .budget_bytes = a->option[OPTION_MEMORY_GIB].number,
        .capacity_bytes = host_capacity_bytes(),
    };
    json_t *plan = run_plan_json(p->run, true), *warning;
    size_t i;
    json_array_foreach(json_object_get(plan, "warnings"), i, warning)(void)
        fprintf(stderr, "warning: %s\n", json_get_str(warning, "message", ""));
    bill_text(plan, &o, out);
    json_decref(plan);
}

int cmd_plan(const struct args *a)
{
    if (a->option[OPTION_PROBLEM].given)
        return cmd_plan_problem(a);
    struct err e = {0};
    struct planning p = {0};
    struct str out;
    str_init(&out);
    int rc = 0;
    json_t *d = NULL;
    enum status st = make_plan(a, &p, &e);
    bool planned = st == ST_OK;
    if (planned) /* exit status 3 */
        st = run_check_budget(p.run, a->option[OPTION_MEMORY_GIB].number, &e);
    if (planned && st == ST_OK)
        st = run_check_cards(p.run, &e);
    json_t *oom = json_object();
    if (planned && st == ST_OOM)
        explain_oom(a, p.run, oom, &e);
    if (planned && a->option[OPTION_HTML].given) {
        struct err failed = {0};
        enum status written = write_page(a, &p, &e, &failed);
        if (st == ST_OK && written != ST_OK) {
            st = written;
            e = failed;
        }
    }
    if (planned && a->json) {
        d = document(a, &p);
        if (json_object_get(oom, "oom"))
            json_put(d, "oom", json_incref(json_object_get(oom, "oom")));
    } else if (planned) {
        text(a, &p, &out);
        rc = answer_text(out.data);
    }
    int end = answer_end(a->json, st, &e, d);
    json_decref(oom);
    str_release(&out);
    run_free(p.run);
    graph_free(p.graph);
    free(p.dump);
    return end ? end : rc;
}
