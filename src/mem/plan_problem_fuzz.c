/* plan_problem_fuzz.c - any bytes as a storage problem: an error, or a problem that is planned. */
#include "mem/plan_check.h"
#include "mem/plan_problem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    struct mem_problem p;
    struct mem_plan plan = {0};
    if (mem_problem_parse((const char *)data, size, "fuzz", &p, &e) != ST_OK) {
        ASSERT(e.text[0] != 0);
    } else if (
        p.n <= 200 &&
        mem_plan_make(p.buffers, p.n, &(struct mem_plan_options){.work_max = 100000}, &plan, &e) ==
            ST_OK) {
        ASSERT(mem_plan_check(p.buffers, p.n, &plan, &e) == ST_OK);
    }
    mem_plan_release(&plan);
    mem_problem_release(&p);
    return 0;
}
