/* plan_test.c - the planner against brute force, random programs and published problems. */
#include "base/env.h"
#include "base/mem.h"
#include "base/rng.h"
#include "mem/plan.h"
#include "mem/plan_check.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Plans, validates, and returns the plan. */
static struct mem_plan
planned(const struct mem_plan_buffer *b, size_t n, const struct mem_plan_options *o)
{
    struct err e = {0};
    struct mem_plan p;
    CHECK_OK(mem_plan_make(b, n, o, &p, &e), &e);
    CHECK_OK(mem_plan_check(b, n, &p, &e), &e);
    CHECK(p.peak_bytes >= p.lower_bound_bytes);
    return p;
}

/* Reads a MiniMalloc problem (id,lower,upper,size; upper is not included). */
static struct mem_plan_buffer *problem(const char *name, size_t *n)
{
    struct err e = {0};
    char path[512], *text;
    size_t size;
    (void)snprintf(path, sizeof path, "%s/tests/corpus/minimalloc/%s", SNUG_SOURCE_DIR, name);
    CHECK_OK(file_read(path, 1 << 20, &text, &size, &e), &e);
    VEC(struct mem_plan_buffer) b = {0};
    char *next = NULL;
    for (char *line = strtok_r(text, "\n", &next); line; line = strtok_r(NULL, "\n", &next)) {
        long long lower, upper, bytes;
        if (strncmp(line, "id,", 3) == 0)
            continue;
        const char *fields = strchr(line, ',');
        CHECK(fields && sscanf(fields, ",%lld,%lld,%lld", &lower, &upper, &bytes) == 3);
        struct mem_plan_buffer x = {
            .size_bytes = bytes, .first = lower, .last = upper - 1, .alignment = 1};
        vec_push(&b, x);
    }
    mem_free(text);
    *n = b.n;
    return b.data;
}

TEST_WITHIN(minimalloc, 120, "the published hard problems are planned validly, near their capacity")
{
    static const char *const names[] = {"A.1048576.csv", "B.1048576.csv", "C.1048576.csv",
                                        "D.1048576.csv", "E.1048576.csv", "F.1048576.csv"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n;
        struct mem_plan_buffer *b = problem(names[i], &n);
        for (int64_t work = -1; work <= 100000000; work = work < 0 ? 8000000 : work * 10) {
            int64_t begin = clock_ns();
            struct mem_plan p = planned(b, n, &(struct mem_plan_options){.work_max = work});
            double ms = (double)(clock_ns() - begin) / 1e6;
            (void)printf(
                "  %s: %zu buffers, bound %.4f, peak %.4f of capacity, %.1f ms, %s\n", names[i], n,
                (double)p.lower_bound_bytes / 1048576, (double)p.peak_bytes / 1048576, ms,
                mem_plan_strategy_text(p.strategy));
            mem_plan_release(&p);
        }
        mem_free(b);
    }
}
