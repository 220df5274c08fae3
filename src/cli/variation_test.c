/* variation_test.c - parameters that vary, from words to JSON. */
#include "cli/variation.h"
#include "test.h"

#include <string.h>

static json_t *graph(void)
{
    return json_pack(
        "{s:[{s:s, s:s}, {s:s, s:s}, {s:s, s:s}]}", "nodes", "id", "opt", "type", "Optimizer", "id",
        "a", "type", "DataLoader", "id", "b", "type", "DataLoader");
}

static void check(const char *text, const char *json)
{
    struct err e = {0};
    json_t *g = graph(), *row, *want = json_loads(json, 0, NULL);
    CHECK(variation_param(text, g, &row, &e) == ST_OK);
    if (!json_equal(row, want))
        test_fail(__FILE__, __LINE__, "%s gives %s", text, json_dumps(row, 0));
    json_decref(row);
    json_decref(want);
    json_decref(g);
}

TEST(variation_values, "values keep their kinds; ranges have points, scale and type")
{
    check("opt.lr=0.1,0.01", "{\"node_id\":\"opt\",\"param\":\"lr\",\"values\":[0.1,0.01]}");
    check(
        "Optimizer.type=Adam,SGD",
        "{\"node_id\":\"opt\",\"param\":\"type\",\"values\":[\"Adam\",\"SGD\"]}");
    check("a.batch_size=32, 64", "{\"node_id\":\"a\",\"param\":\"batch_size\",\"values\":[32,64]}");
    check(
        "a.shuffle=true,false",
        "{\"node_id\":\"a\",\"param\":\"shuffle\",\"values\":[true,false]}");
    check(
        "opt.lr=1e-4..0.01:3:log",
        "{\"node_id\":\"opt\",\"param\":\"lr\",\"range\":{\"min\":1e-4,\"max\":0.01,\"count\":3,"
        "\"scale\":\"log\",\"type\":\"float\"}}");
    check(
        "a.batch_size=8..64:4:int",
        "{\"node_id\":\"a\",\"param\":\"batch_size\",\"range\":{\"min\":8,\"max\":64,\"count\":4,"
        "\"scale\":\"linear\",\"type\":\"int\"}}");
}

TEST(variation_wrong, "what cannot be read is named")
{
    static const char *const wrong[][2] = {
        {"opt.lr", "NODE.PARAM=VALUES"},        {"lr=1,2", "NODE.PARAM=VALUES"},
        {"opt.lr=", "NODE.PARAM=VALUES"},       {"nobody.lr=1", "no node"},
        {"DataLoader.batch_size=1", "2 nodes"}, {"opt.lr=1..2", "MIN..MAX:COUNT"},
        {"opt.lr=1..x:3", "MIN..MAX:COUNT"},    {"opt.lr=1..2:3:cubic", "log or int"}};
    struct err e;
    json_t *g = graph(), *row;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        e = (struct err){0};
        CHECK(variation_param(wrong[i][0], g, &row, &e) == ST_USAGE);
        if (!strstr(e.text, wrong[i][1]))
            test_fail(__FILE__, __LINE__, "%s: %s", wrong[i][0], e.text);
    }
    CHECK(variation_objective("val_loss", &row, &e) == ST_USAGE);
    CHECK(variation_objective("max:acc", &row, &e) == ST_OK);
    CHECK_STR(json_get_str(row, "direction", ""), "maximize");
    json_decref(row);
    json_decref(g);
}
