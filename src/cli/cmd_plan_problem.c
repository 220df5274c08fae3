/* cmd_plan_problem.c - `snug plan --problem FILE.csv`: the storage planner by itself. */
#include "cli/answer.h"
#include "cli/commands.h"

#include "base/env.h"
#include "mem/plan_check.h"
#include "mem/plan_problem.h"

/* Steps of the search, about a nanosecond each: some seconds. */
#define WORK_MAX ((int64_t)6000000000)

struct solving {
    struct mem_problem problem;
    struct mem_plan plan;
    int64_t capacity_bytes; /* 0: the smallest peak */
    double seconds;
};

static enum status read_options(const struct args *a, struct solving *s, struct err *e)
{
    static const enum option_id others[] = {OPTION_DEVICE,   OPTION_MEMORY_GIB, OPTION_SET,
                                            OPTION_SEED,     OPTION_MEMORY,     OPTION_DUMP_AFTER,
                                            OPTION_TIMELINE, OPTION_HTML};
    const char *text = a->option[OPTION_CAPACITY].text;
    if (a->n_arguments > 0)
        return err_set(e, ST_USAGE, "either GRAPH or --problem, not both");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (a->option[others[i]].given)
            return err_set(
                e, ST_USAGE, "--problem takes --capacity, -o and --json, and nothing of a graph's");
    if (text && (!str_to_bytes(text, &s->capacity_bytes) || s->capacity_bytes <= 0))
        return err_set(
            e, ST_USAGE, "--capacity is a size above 0 (1048576, 16MiB), not \"%.60s\"", text);
    return ST_OK;
}

static enum status write_answer(const char *path, const struct solving *s, struct err *e)
{
    struct str text;
    str_init(&text);
    mem_problem_text(&s->problem, &s->plan, &text);
    enum status st = file_write(path, text.data, text.n, e);
    str_release(&text);
    return st;
}

static enum status check_capacity(const struct solving *s, struct err *e)
{
    long long capacity = s->capacity_bytes, bound = s->plan.lower_bound_bytes;
    if (s->capacity_bytes == 0 || s->plan.peak_bytes <= s->capacity_bytes)
        return ST_OK;
    if (bound > capacity)
        return err_set(
            e, ST_OOM, "nothing fits into %lld: buffers of %lld live at the same time", capacity,
            bound);
    return err_set(
        e, ST_OOM, "no plan within %lld was found; the best has a peak of %lld", capacity,
        (long long)s->plan.peak_bytes);
}

static enum status solve(const struct args *a, struct solving *s, struct err *e)
{
    TRY(read_options(a, s, e));
    TRY(mem_problem_read(a->option[OPTION_PROBLEM].text, &s->problem, e));
    int64_t begin = clock_ns();
    TRY(mem_plan_make(
        s->problem.buffers, s->problem.n,
        &(struct mem_plan_options){
            .work_max = WORK_MAX, .capacity_bytes = s->capacity_bytes, .optimum = true},
        &s->plan, e));
    s->seconds = (double)(clock_ns() - begin) * 1e-9;
    TRY(mem_plan_check(s->problem.buffers, s->problem.n, &s->plan, e));
    if (a->option[OPTION_OUTPUT].given)
        TRY(write_answer(a->option[OPTION_OUTPUT].text, s, e));
    return check_capacity(s, e);
}

static json_t *document(const struct args *a, const struct solving *s)
{
    json_t *d = json_object(), *offsets = json_array();
    json_put_str(d, "problem", a->option[OPTION_PROBLEM].text);
    json_put_i64(d, "buffers", (int64_t)s->problem.n);
    json_put_i64(d, "peak_bytes", s->plan.peak_bytes);
    json_put_i64(d, "lower_bound_bytes", s->plan.lower_bound_bytes);
    if (s->capacity_bytes) {
        json_put_i64(d, "capacity_bytes", s->capacity_bytes);
        json_put_bool(d, "fits", s->plan.peak_bytes <= s->capacity_bytes);
    }
    json_put_str(d, "strategy", mem_plan_strategy_text(s->plan.strategy));
    json_put_f64(d, "seconds", s->seconds);
    for (size_t i = 0; i < s->problem.n; i++) {
        json_t *row = json_object();
        json_put_str(row, "id", s->problem.ids[i]);
        json_put_i64(row, "offset", s->plan.offset_bytes[i]);
        (void)json_array_append_new(offsets, row);
    }
    json_put(d, "offsets", offsets);
    return d;
}

static void text(const struct args *a, const struct solving *s, struct str *out)
{
    const struct mem_plan *p = &s->plan;
    str_printf(out, "%s, %zu buffers\n\n", a->option[OPTION_PROBLEM].text, s->problem.n);
    str_printf(out, "  peak          %lld\n", (long long)p->peak_bytes);
    str_printf(out, "  lower bound   %lld", (long long)p->lower_bound_bytes);
    if (p->peak_bytes == p->lower_bound_bytes)
        str_add(out, ", met: no plan has a smaller peak\n");
    else
        str_printf(
            out, ", the peak is %.2f %% above it\n",
            100 * (double)(p->peak_bytes - p->lower_bound_bytes) / (double)p->lower_bound_bytes);
    if (s->capacity_bytes)
        str_printf(
            out, "  capacity      %lld: %s\n", (long long)s->capacity_bytes,
            p->peak_bytes <= s->capacity_bytes ? "fits" : "does not fit");
    str_printf(out, "  strategy      %s\n", mem_plan_strategy_text(p->strategy));
    str_printf(out, "  time          %.3f s\n", s->seconds);
}

int cmd_plan_problem(const struct args *a)
{
    struct err e = {0};
    struct solving s = {0};
    struct str out;
    int rc = 0;
    json_t *d = NULL;
    str_init(&out);
    enum status st = solve(a, &s, &e);
    bool planned = s.plan.peak_bytes > 0 && (st == ST_OK || st == ST_OOM);
    if (planned && a->json) {
        d = document(a, &s);
    } else if (planned) {
        text(a, &s, &out);
        rc = answer_text(out.data);
    }
    int end = answer_end(a->json, st, &e, d);
    str_release(&out);
    mem_plan_release(&s.plan);
    mem_problem_release(&s.problem);
    return end ? end : rc;
}
