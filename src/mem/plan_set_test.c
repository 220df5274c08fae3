/* plan_set_test.c - several programs over one arena, budgets against it, and the timeline. */
#include "base/mem.h"
#include "mem/plan_set.h"
#include "mem/source.h"
#include "test.h"

#include <string.h>

static const struct mem_plan_buffer kept[] = {
    {.size_bytes = 100},
    {.size_bytes = 0},
    {.size_bytes = 4096, .alignment = 4096},
    {.size_bytes = 1}};
static const struct mem_plan_buffer train[] = {
    {.size_bytes = 1000, .first = 0, .last = 3, .tag = 2},
    {.size_bytes = 500, .first = 1, .last = 1, .tag = 3},
    {.size_bytes = 500, .first = 2, .last = 3, .tag = 3},
    {.size_bytes = 0, .first = 2, .last = 2, .tag = 99}};
static const struct mem_plan_buffer eval[] = {{.size_bytes = 64, .first = 0, .last = 0}};

static void make(struct mem_plan_set *s, struct mem_plan_program programs[2])
{
    struct err e = {0};
    programs[0] = (struct mem_plan_program){.name = "evaluation", .buffers = eval, .n = 1};
    programs[1] = (struct mem_plan_program){.name = "training", .buffers = train, .n = 4};
    *s = (struct mem_plan_set){
        .persistent = kept, .persistent_n = 4, .programs = programs, .programs_n = 2};
    CHECK_OK(mem_plan_set_make(s, NULL, &e), &e);
    CHECK_OK(mem_plan_set_check(s, &e), &e);
}

TEST(set_layout, "persistent buffers lie below every program; the peak is theirs plus the largest")
{
    struct mem_plan_set s;
    struct mem_plan_program programs[2];
    make(&s, programs);
    CHECK_EQ(s.persistent_offset_bytes[2], 0); /* the most aligned first */
    CHECK_EQ(s.persistent_offset_bytes[0], 4096);
    CHECK_EQ(s.persistent_offset_bytes[3], 4096 + 128);
    CHECK_EQ(s.persistent_bytes, 8192);
    CHECK_EQ(programs[0].plan.peak_bytes, 64);
    CHECK_EQ(programs[1].plan.peak_bytes, 1024 + 512);
    CHECK_EQ(s.peak_bytes, 8192 + 1536);
    CHECK_EQ(s.peak_program, 1);
    mem_plan_set_release(&s);
}

TEST(set_check_mutations, "a set that was tampered with is refused")
{
    struct mem_plan_set s;
    struct mem_plan_program programs[2];
    struct err e = {0};
    make(&s, programs);
    s.peak_bytes -= 64;
    CHECK_EQ(mem_plan_set_check(&s, &e), ST_INTERNAL);
    s.peak_bytes += 64;
    s.persistent_offset_bytes[3] = 4096 + 64; /* onto buffer 0 */
    CHECK_EQ(mem_plan_set_check(&s, &e), ST_INTERNAL);
    s.persistent_offset_bytes[3] = 8192; /* above persistent_bytes */
    CHECK_EQ(mem_plan_set_check(&s, &e), ST_INTERNAL);
    s.persistent_offset_bytes[3] = 4096 + 128;
    programs[1].plan.offset_bytes[1] = 0;
    CHECK_EQ(mem_plan_set_check(&s, &e), ST_INTERNAL);
    mem_plan_set_release(&s);
}

TEST(set_errors, "an error names the program, or the persistent buffers")
{
    struct err e = {0};
    struct mem_plan_buffer bad = {.size_bytes = -5};
    struct mem_plan_program program = {.name = "evaluation", .buffers = &bad, .n = 1};
    struct mem_plan_set s = {.programs = &program, .programs_n = 1};
    CHECK_EQ(mem_plan_set_make(&s, NULL, &e), ST_INVALID);
    CHECK(strstr(e.text, "program \"evaluation\""));
    mem_plan_set_release(&s);
    s = (struct mem_plan_set){.persistent = &bad, .persistent_n = 1};
    CHECK_EQ(mem_plan_set_make(&s, NULL, &e), ST_INVALID);
    CHECK(strstr(e.text, "persistent"));
    mem_plan_set_release(&s);
    s = (struct mem_plan_set){0};
    CHECK_OK(mem_plan_set_make(&s, NULL, &e), &e);
    CHECK_EQ(s.peak_bytes, 0);
    mem_plan_set_release(&s);
}

TEST(set_until_it_fits, "the smallest budget under which the arena can be taken is the forecast")
{
    struct mem_plan_set s;
    struct mem_plan_program programs[2];
    make(&s, programs);
    for (int64_t budget = 64;; budget += 64) {
        struct mem_source source;
        struct err e = {0};
        void *arena;
        mem_source_init_host(&source, budget);
        enum status st = mem_source_take(&source, s.peak_bytes, &arena, &e);
        CHECK_EQ(st, budget < s.peak_bytes ? ST_OOM : ST_OK);
        if (st == ST_OK) {
            memset(arena, 1, (size_t)s.peak_bytes);
            mem_source_give(&source, arena, s.peak_bytes);
            break;
        }
        CHECK_EQ(source.held_bytes, 0);
    }
    mem_plan_set_release(&s);
}

TEST(source_budget, "segments are counted against the budget and come back")
{
    struct mem_source source;
    struct err e = {0};
    void *a, *b;
    mem_source_init_host(&source, 10000);
    CHECK_OK(mem_source_take(&source, 6000, &a, &e), &e);
    CHECK_EQ(mem_source_take(&source, 4001, &b, &e), ST_OOM);
    CHECK(strstr(e.text, "5.9 KiB of a budget of 9.8 KiB"));
    CHECK_OK(mem_source_take(&source, 4000, &b, &e), &e);
    mem_source_give(&source, a, 6000);
    mem_source_give(&source, b, 4000);
    CHECK_EQ(source.held_bytes, 0);
    CHECK_EQ(source.held_bytes_peak, 10000);
    mem_source_init_host(&source, 0);
    CHECK_EQ(mem_source_take(&source, INT64_MAX, &a, &e), ST_OOM); /* refused by the system */
}
