/* plan_problem_test.c - problem files: what is read, what is refused, and with which words. */
#include "base/rng.h"
#include "mem/plan_check.h"
#include "mem/plan_problem.h"
#include "test.h"

#include <string.h>

TEST(problem_columns, "columns come in any order, with alignments, offsets, CR LF and empty lines")
{
    static const char text[] = "\xef\xbb\xbfsize,upper,id,alignment,lower,offset\r\n"
                               "100,9, a ,64,0,77\r\n\r\n"
                               "8,4,b b,1,3,0";
    struct err e = {0};
    struct mem_problem p;
    CHECK_OK(mem_problem_parse(text, sizeof text - 1, "x.csv", &p, &e), &e);
    CHECK_EQ(p.n, 2);
    CHECK(strcmp(p.ids[0], "a") == 0 && strcmp(p.ids[1], "b b") == 0);
    CHECK(p.buffers[0].size_bytes == 100 && p.buffers[0].alignment == 64);
    CHECK(p.buffers[0].first == 0 && p.buffers[0].last == 8);
    CHECK(p.buffers[1].first == 3 && p.buffers[1].last == 3 && p.buffers[1].alignment == 1);
    mem_problem_release(&p);
}

TEST(problem_answer, "an answer is the problem with the offsets, and can be read again")
{
    static const char text[] = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\n"
                               "b5,0,21,4\n";
    struct err e = {0};
    struct mem_problem p, again;
    struct mem_plan plan;
    struct str out;
    str_init(&out);
    CHECK_OK(mem_problem_parse(text, sizeof text - 1, "x.csv", &p, &e), &e);
    CHECK_OK(mem_plan_make(p.buffers, p.n, NULL, &plan, &e), &e);
    CHECK_OK(mem_plan_check(p.buffers, p.n, &plan, &e), &e);
    CHECK_EQ(plan.peak_bytes, 12);
    mem_problem_text(&p, &plan, &out);
    CHECK(str_starts(out.data, "id,lower,upper,size,offset\nb1,0,3,4,"));
    CHECK_OK(mem_problem_parse(out.data, out.n, "y.csv", &again, &e), &e);
    CHECK_EQ(again.n, 5);
    CHECK(memcmp(again.buffers, p.buffers, 5 * sizeof *p.buffers) == 0);
    mem_problem_release(&again);
    mem_problem_release(&p);
    mem_plan_release(&plan);
    str_release(&out);
}

TEST(problem_errors, "a bad file is refused with its line, its column and what stands there")
{
    static const struct {
        const char *text, *words[3];
    } bad[] = {
        {"", {"x.csv", "id,lower,upper,size", ""}},
        {"\n\n", {"no storage problem", "", ""}},
        {"id,lower,upper\n", {"line 1", "\"size\" is missing", ""}},
        {"id,lower,upper,size,colour\n", {"line 1", "unknown column \"colour\"", ""}},
        {"id,lower,upper,size,id\n", {"line 1", "second column \"id\"", ""}},
        {"id,lower,upper,size\n", {"no buffers", "", ""}},
        {"id,lower,upper,size\na,0,1\n", {"line 2", "3 fields", "header 4"}},
        {"id,lower,upper,size\na,0,1,2,3\n", {"line 2", "5 fields", ""}},
        {"id,lower,upper,size\na,0,1,x\n", {"line 2", "\"size\" is \"x\"", "whole number"}},
        {"id,lower,upper,size\na,0,1,-1\n", {"line 2", "\"size\" is \"-1\"", ""}},
        {"id,lower,upper,size\na,-3,1,1\n", {"line 2", "\"lower\" is \"-3\"", ""}},
        {"id,lower,upper,size\na,0,1,1.5\n", {"line 2", "1.5", ""}},
        {"id,lower,upper,size\na,0,1,99999999999999999999999999999999999999\n",
         {"line 2", "\"9999", ""}},
        {"id,lower,upper,size\na,0,1,\n", {"line 2", "\"size\" is \"\"", ""}},
        {"id,lower,upper,size\na,0,1,1\nb,5,5,1\n", {"line 3", "upper (5)", "lower (5)"}},
        {"id,lower,upper,size\na,0,1,1\n\na,5,6,1\n", {"line 4", "id \"a\"", "line 2"}},
        {"id,lower,upper,size\n,0,1,1\n", {"line 2", "id is empty", ""}},
        {"id,lower,upper,size,alignment\na,0,1,1,3\n", {"line 2", "alignment 3", "power of two"}},
        {"id,lower,upper,size,alignment\na,0,1,1,0\n", {"line 2", "\"alignment\" is \"0\"", ""}},
        {"PK\3\4,,,,,,,,,,,,,,,,,,,,,\n", {"no storage problem", "", ""}}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e = {0};
        struct mem_problem p;
        CHECK_EQ(mem_problem_parse(bad[i].text, strlen(bad[i].text), "x.csv", &p, &e), ST_INVALID);
        for (int k = 0; k < 3; k++)
            if (!strstr(e.text, bad[i].words[k]))
                CHECK_STR(e.text, bad[i].words[k]);
        mem_problem_release(&p);
    }
}

TEST(problem_damage, "a file with bytes changed, lost or doubled is read or refused, never more")
{
    static const char text[] = "id,lower,upper,size,alignment\nb1,0,3,4,1\nb2,3,9,4,64\n"
                               "b3,0,9,4,8\nb4,9,21,4,1\nb5,0,21,4096,2\n";
    struct rng r;
    int read = 0;
    rng_init(&r, test_seed(), 0, 0);
    for (int round = 0; round < 20000; round++) {
        char copy[sizeof text];
        struct err e = {0};
        struct mem_problem p;
        size_t n = sizeof text - 1;
        memcpy(copy, text, sizeof text);
        for (uint64_t k = 1 + rng_below(&r, 4); k; k--) {
            size_t at = (size_t)rng_below(&r, n);
            if (rng_below(&r, 2))
                copy[at] = "0123456789,-\n\r\t xA\0\xff"[rng_below(&r, 20)];
            else if (rng_below(&r, 2) && n > 2)
                memmove(copy + at, copy + at + 1, --n - at);
            else
                copy[at] = copy[rng_below(&r, n)];
        }
        if (mem_problem_parse(copy, n, "x.csv", &p, &e) == ST_OK) {
            struct mem_plan plan;
            read++;
            if (mem_plan_make(p.buffers, p.n, NULL, &plan, &e) == ST_OK)
                CHECK_OK(mem_plan_check(p.buffers, p.n, &plan, &e), &e);
            mem_plan_release(&plan);
        } else {
            CHECK_EQ(e.status, ST_INVALID);
            CHECK(e.text[0] != 0);
        }
        mem_problem_release(&p);
    }
    CHECK(read > 100);
}
