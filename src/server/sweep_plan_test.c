/* sweep_plan_test.c - variants of sweeps against answers computed elsewhere; every refusal. */
#include "server/sweep_plan.h"

#include "base/mem.h"
#include "test.h"

#include <math.h>
#include <string.h>

static struct err e;
static const struct sweep_limits limits = {32, 4, 32};

static const char graph_text[] =
    "{\"nodes\": ["
    "{\"id\": \"opt\", \"type\": \"Optimizer\", \"data\": {\"params\": {\"type\": \"Adam\"}}},"
    "{\"id\": \"load\", \"type\": \"DataLoader\", \"data\": {\"params\": {}}},"
    "{\"id\": \"p\", \"type\": \"preset:Thing\", \"data\": {}},"
    "{\"id\": \"twice\", \"type\": \"DataLoader\", \"data\": {}},"
    "{\"id\": \"twice\", \"type\": \"DataLoader\", \"data\": {}}], \"edges\": []}";

static json_t *parse(const char *text)
{
    json_t *doc;
    CHECK_OK(json_parse(text, strlen(text), "test", &doc, &e), &e);
    return doc;
}

static enum status make(const char *spec_text, const struct sweep_limits *l, struct sweep_plan *p)
{
    json_t *spec = parse(spec_text), *graph = parse(graph_text);
    enum status st = sweep_plan_make(spec, graph, l, p, &e);
    json_decref(spec);
    json_decref(graph);
    return st;
}

/* mulberry32 as Tommy Ettinger published it, run in JavaScript and in Python:
 *     a = a + 0x6D2B79F5 | 0; t = Math.imul(a ^ a >>> 15, 1 | a);
 *     t = t + Math.imul(t ^ t >>> 7, 61 | t) ^ t; (t ^ t >>> 14) >>> 0 */
TEST(mulberry32_is_the_published_one, "SW1: draws of the reference's generator")
{
    static const uint32_t of_0[] = {1144304738, 1416247, 958946056, 627933444, 2007157716},
                          of_42[] = {2581720956, 1925393290, 3661312704, 2876485805, 750819978},
                          of_max[] = {3850105811, 813802916, 3073704848};
    uint32_t a = 0, b = 42, c = UINT32_MAX;
    for (int i = 0; i < 5; i++) {
        CHECK_EQ(mulberry32(&a), of_0[i]);
        CHECK_EQ(mulberry32(&b), of_42[i]);
    }
    for (int i = 0; i < 3; i++)
        CHECK_EQ(mulberry32(&c), of_max[i]);
}

/* The same in Python with a dense list: i = draw % len(pool); out.append(pool[i]);
 * pool[i] = pool[-1]; pool.pop(). */
TEST(draws_are_a_shuffle_from_the_end, "SW1: different combinations, in the order of the draws")
{
    static const uint64_t all_12[] = {0, 7, 4, 8, 2, 1, 9, 10, 5, 11, 6, 3},
                          of_1000[] = {532, 65, 722, 447, 711, 658, 155, 965},
                          of_32[] = {19, 30, 8, 9, 27, 2};
    uint64_t got[12];
    sweep_draw(42, 12, 12, got);
    CHECK(memcmp(got, all_12, sizeof all_12) == 0);
    sweep_draw(7, 1000, 8, got);
    CHECK(memcmp(got, of_1000, sizeof of_1000) == 0);
    sweep_draw(UINT32_MAX, 32, 6, got);
    CHECK(memcmp(got, of_32, sizeof of_32) == 0);
    sweep_draw(1, 1, 1, got);
    CHECK_EQ(got[0], 0);
}

/* Against the definition with a dense list, for many seeds and sizes. */
TEST(sparse_draws_equal_dense_ones, "SW1: the table of moved places changes nothing")
{
    enum { MAX = 300 };
    for (uint32_t seed = 0; seed < 200; seed++) {
        uint64_t got[MAX];
        uint32_t pool[MAX], state = seed;
        size_t total = 1 + seed * 7 % MAX, n = 1 + seed % total;
        sweep_draw(seed, total, n, got);
        for (uint32_t i = 0; i < total; i++)
            pool[i] = i;
        for (size_t k = 0, left = total; k < n; k++, left--) {
            size_t i = mulberry32(&state) % left;
            CHECK_EQ(got[k], pool[i]);
            pool[i] = pool[left - 1];
        }
    }
}

/* A new reference, as text. */
static void check_text(json_t *doc, const char *want)
{
    char *text = json_text(doc, false);
    json_decref(doc);
    CHECK_STR(text, want);
    mem_free(text);
}

TEST(
    grids_count_the_last_parameter_fastest,
    "SW1: order of a grid, patches and values of its variants")
{
    struct sweep_plan p;
    CHECK_OK(
        make(
            "{\"method\": \"grid\", \"params\": ["
            "{\"node_id\": \"opt\", \"param\": \"lr\", \"values\": [0.5, 0.25]},"
            "{\"node_id\": \"load\", \"param\": \"batch_size\", \"values\": [8, 16.0, 32]}]}",
            &limits, &p),
        &e);
    CHECK_EQ(p.n, 6);
    CHECK_EQ(p.total, 6);
    CHECK(!p.has_seed);
    check_text(
        sweep_plan_patch(&p, p.chosen[0]), "{\"opt\":{\"lr\":0.5},\"load\":{\"batch_size\":8}}");
    check_text(
        sweep_plan_patch(&p, p.chosen[1]), "{\"opt\":{\"lr\":0.5},\"load\":{\"batch_size\":16}}");
    check_text(
        sweep_plan_values(&p, p.chosen[5]),
        "[{\"node_id\":\"opt\",\"param\":\"lr\",\"value\":0.25},"
        "{\"node_id\":\"load\",\"param\":\"batch_size\",\"value\":32}]");
    struct sweep_plan again;
    json_t *params = sweep_plan_params(&p);
    CHECK_OK(sweep_plan_read_params(params, &again, &e), &e);
    json_decref(params);
    check_text(sweep_plan_patch(&again, 4), "{\"opt\":{\"lr\":0.25},\"load\":{\"batch_size\":16}}");
    sweep_plan_release(&again);
    sweep_plan_release(&p);
}

static void check_domain(const char *range, const double *want, size_t n)
{
    char spec[512];
    struct sweep_plan p;
    (void)snprintf(
        spec, sizeof spec,
        "{\"method\": \"grid\", \"params\": [{\"node_id\": \"%s\", \"param\": \"%s\", \"range\": "
        "%s}]}",
        strstr(range, "int") ? "load" : "opt", strstr(range, "int") ? "batch_size" : "lr", range);
    CHECK_OK(make(spec, &limits, &p), &e);
    CHECK_EQ(p.n, n);
    for (size_t i = 0; i < n; i++)
        CHECK(json_number_value(json_array_get(p.params[0].domain, i)) == want[i]);
    sweep_plan_release(&p);
}

/* Bounds exactly; base 10; halves away from zero. */
TEST(ranges_have_exact_ends, "SW1: linear and log ranges, whole numbers, repeated ones once")
{
    check_domain(
        "{\"min\": 1e-4, \"max\": 1e-1, \"count\": 4, \"scale\": \"log\", \"type\": \"float\"}",
        (const double[]){0.0001, 0.001, 0.01, 0.1}, 4);
    check_domain(
        "{\"min\": 8, \"max\": 512, \"count\": 4, \"scale\": \"log\", \"type\": \"int\"}",
        (const double[]){8, 32, 128, 512}, 4);
    check_domain(
        "{\"min\": 1, \"max\": 4, \"count\": 3, \"scale\": \"linear\", \"type\": \"int\"}",
        (const double[]){1, 3, 4}, 3); /* 2.5 becomes 3 */
    check_domain(
        "{\"min\": 1, \"max\": 3, \"count\": 10, \"scale\": \"linear\", \"type\": \"int\"}",
        (const double[]){1, 2, 3}, 3);
    check_domain(
        "{\"min\": 0.5, \"max\": 0.7, \"count\": 1, \"scale\": \"linear\", \"type\": \"float\"}",
        (const double[]){0.5}, 1);
    check_domain(
        "{\"min\": 0.1, \"max\": 0.3, \"count\": 3, \"scale\": \"linear\", \"type\": \"float\"}",
        (const double[]){0.1, 0.1 + (0.3 - 0.1) * 1.0 / 2.0, 0.3}, 3);
}

#define LR(rest)                                                                                   \
    "{\"method\": \"grid\", \"params\": [{\"node_id\": \"opt\", \"param\": \"lr\", " rest "}]}"
#define RANDOM(rest)                                                                               \
    "{\"method\": \"random\", \"params\": [{\"node_id\": \"opt\", \"param\": \"lr\", \"values\": " \
    "[0.1, 0.2]}]" rest "}"

TEST(sweeps_are_refused_with_reasons, "SW1: what a sweep cannot be")
{
    static const struct {
        const char *spec, *text;
        enum status st;
    } rows[] = {
        {"{\"method\": \"grid\"}", "a list of 1 to 4", ST_INVALID},
        {"{\"method\": \"grid\", \"params\": []}", "a list of 1 to 4", ST_INVALID},
        {"{\"method\": \"hill\", \"params\": []}", "grid or random", ST_INVALID},
        {"{\"method\": \"grid\", \"params\": [], \"budget\": 3}", "has no \"budget\"",
         ST_UNPROCESSABLE},
        {LR("\"values\": [0.1], \"range\": {}"), "and not both", ST_INVALID},
        {LR("\"x\": 1"), "has no \"x\"", ST_UNPROCESSABLE},
        {LR("\"values\": []"), "list of 1 to 32", ST_INVALID},
        {LR("\"values\": [0.1, 0.10]"), "there twice", ST_INVALID},
        {LR("\"values\": [1, 1.0]"), "there twice", ST_INVALID},
        {LR("\"values\": [true]"), "is of type float", ST_INVALID},
        {LR("\"values\": [\"a\"]"), "is of type float", ST_INVALID},
        {LR("\"values\": [null]"), "is not a number", ST_INVALID},
        {LR("\"values\": [-1]"), "below minimum", ST_INVALID},
        {LR("\"range\": {\"min\": 0, \"max\": 1, \"count\": 2, \"scale\": \"log\", \"type\": "
            "\"float\"}"),
         "above 0", ST_INVALID},
        {LR("\"range\": {\"min\": 2, \"max\": 1, \"count\": 2, \"scale\": \"linear\", \"type\": "
            "\"float\"}"),
         "below its min", ST_INVALID},
        {LR("\"range\": {\"min\": 0.5, \"max\": 1, \"count\": 2, \"scale\": \"linear\", \"type\": "
            "\"int\"}"),
         "whole bounds", ST_INVALID},
        {LR("\"range\": {\"min\": 0.5, \"max\": 1, \"count\": 33, \"scale\": \"linear\", \"type\": "
            "\"float\"}"),
         "1 to 32", ST_INVALID},
        {LR("\"range\": {\"min\": 0.5, \"max\": 1, \"count\": 2, \"scale\": \"cubic\", \"type\": "
            "\"float\"}"),
         "linear or log", ST_INVALID},
        {RANDOM(", \"samples\": 1"), "needs sweep_spec.seed", ST_INVALID},
        {RANDOM(", \"seed\": 4294967296, \"samples\": 1"), "0 to 4294967295", ST_INVALID},
        {RANDOM(", \"seed\": 1"), "needs sweep_spec.samples", ST_INVALID},
        {RANDOM(", \"seed\": 1, \"samples\": 33"), "1 to 32", ST_INVALID},
        {RANDOM(", \"seed\": 1, \"samples\": 3"), "there are 2", ST_INVALID},
        {"{\"method\": \"grid\", \"samples\": 1, \"params\": [{\"node_id\": \"opt\", \"param\": "
         "\"lr\", \"values\": [0.1]}]}",
         "a grid is whole", ST_INVALID},
        {"{\"method\": \"grid\", \"params\": [{\"node_id\": \"none\", \"param\": \"lr\", "
         "\"values\": [1]}]}",
         "has no node", ST_INVALID},
        {"{\"method\": \"grid\", \"params\": [{\"node_id\": \"p\", \"param\": \"lr\", \"values\": "
         "[1]}]}",
         "a preset", ST_INVALID},
        {"{\"method\": \"grid\", \"params\": [{\"node_id\": \"twice\", \"param\": \"batch_size\", "
         "\"values\": [1]}]}",
         "two nodes", ST_INVALID},
        {"{\"method\": \"grid\", \"params\": [{\"node_id\": \"opt\", \"param\": \"rate\", "
         "\"values\": [1]}]}",
         "no parameter \"rate\"", ST_INVALID},
        {"{\"method\": \"grid\", \"params\": [{\"node_id\": \"opt\", \"param\": \"type\", "
         "\"values\": [\"Hill\"]}]}",
         "not one of its options", ST_INVALID},
        {"{\"method\": \"grid\", \"params\": [{\"node_id\": \"load\", \"param\": \"shuffle\", "
         "\"values\": [1]}]}",
         "is of type bool", ST_INVALID},
        {"{\"method\": \"grid\", \"params\": [{\"node_id\": \"load\", \"param\": \"batch_size\", "
         "\"values\": [1.5]}]}",
         "is of type int", ST_INVALID},
        {"{\"method\": \"grid\", \"params\": [{\"node_id\": \"opt\", \"param\": \"lr\", "
         "\"values\": [0.1]}, {\"node_id\": \"opt\", \"param\": \"lr\", \"values\": [0.2]}]}",
         "varies twice", ST_INVALID},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sweep_plan p;
        enum status st = make(rows[i].spec, &limits, &p);
        if (st != rows[i].st || !strstr(e.text, rows[i].text))
            test_fail(__FILE__, __LINE__, "%s: %d \"%s\"", rows[i].spec, st, st ? e.text : "");
        sweep_plan_release(&p);
    }
}

TEST(sweeps_are_never_cut, "SW1: 33 variants are refused under a limit of 32 and whole under 33")
{
    struct sweep_plan p;
    const struct sweep_limits small = {5, 4, 32};
    const char *six =
        "{\"method\": \"grid\", \"params\": ["
        "{\"node_id\": \"opt\", \"param\": \"lr\", \"values\": [0.1, 0.01]},"
        "{\"node_id\": \"load\", \"param\": \"batch_size\", \"values\": [8, 16, 32]}]}";
    CHECK_EQ(make(six, &small, &p), ST_INVALID);
    CHECK_STR(e.text, "the grid has 6 variants, more than 5");
    sweep_plan_release(&p);
    const struct sweep_limits enough = {6, 2, 3};
    CHECK_OK(make(six, &enough, &p), &e);
    CHECK_EQ(p.n, 6);
    sweep_plan_release(&p);
}
