/* function_test.c - a graph's signature, and the arguments and results of calls. */
#include "base/mem.h"
#include "server/function.h"
#include "test.h"

#include <string.h>

static json_t *json(const char *text)
{
    struct err e;
    json_t *j = NULL;
    CHECK(json_parse(text, strlen(text), "test", &j, &e) == ST_OK);
    return j;
}

#define INPUT(id, params)                                                                          \
    "{\"id\":\"" id "\",\"type\":\"GraphInput\",\"data\":{\"params\":{" params "}}}"
#define EDGE(s, sp, t, tp)                                                                         \
    "{\"id\":\"" s t "\",\"source\":\"" s "\",\"sourceHandle\":\"" sp "\",\"target\":\"" t         \
    "\",\"targetHandle\":\"" tp "\"}"
#define TRIGGER(t)                                                                                 \
    "{\"id\":\"t" t "\",\"source\":\"s\",\"sourceHandle\":\"trigger\",\"target\":\"" t             \
    "\",\"targetHandle\":\"\",\"type\":\"trigger\"}"
#define ECHO                                                                                                                       \
    "{\"nodes\":[{\"id\":\"s\",\"type\":\"Start\",\"data\":{}}," INPUT("i", "\"name\":\"message\",\"type\":\"string\"") "," INPUT( \
        "k",                                                                                                                       \
        "\"name\":\"n\",\"type\":\"integer\",\"required\":false,\"default\":\"3\"") ","                                            \
                                                                                    "{\"id\":"                                     \
                                                                                    "\"o\","                                       \
                                                                                    "\"type\":"                                    \
                                                                                    "\"GraphOutpu"                                 \
                                                                                    "t\","                                         \
                                                                                    "\"data\":{"                                   \
                                                                                    "\"params\":{"                                 \
                                                                                    "\"name\":"                                    \
                                                                                    "\"echo\"}}}]"                                 \
                                                                                    ","                                            \
                                                                                    "\"edges\":"                                   \
                                                                                    "[" TRIGGER("i") "," TRIGGER("k") "," EDGE(    \
                                                                                        "i",                                       \
                                                                                        "value",                                   \
                                                                                        "o",                                       \
                                                                                        "value") "]}"

TEST(
    contract,
    "promise-P4: a graph's inputs and outputs are its signature, with what is wrong about them")
{
    json_t *g = json(ECHO), *c = function_contract(g, "Echo");
    char *text = json_text(c, false);
    CHECK_STR(
        text, "{\"graph\":\"Echo\",\"inputs\":[{\"name\":\"message\",\"type\":\"string\","
              "\"required\":true,\"default\":null,\"description\":\"\"},{\"name\":\"n\",\"type\":"
              "\"integer\",\"required\":false,\"default\":3,\"description\":\"\"}],\"outputs\":[{"
              "\"name\":\"echo\",\"type\":\"ANY\",\"description\":\"\"}],\"problems\":[]}");
    mem_free(text);
    json_decref(c);
    json_decref(g);
    g = json("{\"nodes\":[" INPUT("a", "\"name\":\"9x\"") "," INPUT("b", "\"name\":\"v\"") "," INPUT(
        "c",
        "\"name\":\"v\",\"type\":\"number\",\"required\":false,\"default\":\"x\"") "," INPUT("d", "\"name\":\"p\",\"type\":\"image\",\"required\":false") "],\"edges\":[]}");
    c = function_contract(g, "Bad");
    CHECK_EQ(json_array_size(json_object_get(c, "problems")), 4);
    json_decref(c);
    json_decref(g);
}

static enum function_fault check_fault(const char *graph)
{
    json_t *g = json(graph), *c = function_contract(g, "x");
    struct function_refusal why = {.fault = FAULT_COUNT};
    (void)function_check(g, c, &why);
    json_decref(why.details);
    json_decref(c);
    json_decref(g);
    return why.fault;
}

TEST(callable, "promise-P4: a graph that cannot be called says why, by code")
{
    CHECK_EQ(check_fault(ECHO), FAULT_COUNT);
    CHECK_EQ(check_fault("{\"nodes\":[" INPUT("i", "") "],\"edges\":[]}"), FAULT_NO_ENTRY);
    CHECK_EQ(
        check_fault("{\"nodes\":[" INPUT("i", "\"name\":\"\"") "],\"edges\":[]}"), FAULT_CONTRACT);
    CHECK_EQ(
        check_fault("{\"nodes\":[{\"id\":\"s\",\"type\":\"Start\"}," INPUT(
            "i", "") ",{\"id\":\"p\","
                     "\"type\":\"Print\"}],\"edges\":[" TRIGGER("p") "]}"),
        FAULT_UNTRIGGERED);
    CHECK_EQ(
        check_fault("{\"nodes\":[{\"id\":\"s\",\"type\":\"Start\"}," INPUT(
            "i", "") ",{\"id\":\"o\","
                     "\"type\":\"GraphOutput\"}],\"edges\":[" TRIGGER("i") "]}"),
        FAULT_UNREACHABLE);
    CHECK_EQ(
        check_fault("{\"nodes\":[{\"id\":\"s\",\"type\":\"Start\"}," INPUT(
            "i", "") ",{\"id\":\"p\","
                     "\"type\":\"Nothing\"}],\"edges\":[" TRIGGER("i") "," EDGE(
                         "i", "value", "p", "value") "]}"),
        FAULT_GRAPH);
    CHECK_EQ(check_fault("{}"), FAULT_NO_ENTRY);
    CHECK_EQ(check_fault("{\"nodes\":7,\"edges\":\"x\"}"), FAULT_NO_ENTRY);
}

static size_t faults_of(const char *inputs)
{
    json_t *g = json(ECHO), *c = function_contract(g, "x"), *given = json(inputs);
    struct function_refusal why = {0};
    bool ok = function_bind(g, c, given, &why);
    size_t n = json_array_size(why.details);
    CHECK(ok == (n == 0));
    json_decref(why.details);
    json_decref(given);
    json_decref(c);
    json_decref(g);
    return n;
}

TEST(arguments, "promise-P4: arguments are of their type to the letter, all faults at once")
{
    CHECK_EQ(faults_of("{\"message\":\"hi\"}"), 0);
    CHECK_EQ(faults_of("{\"message\":\"hi\",\"n\":4.0}"), 0);
    CHECK_EQ(faults_of("{\"message\":7,\"n\":4.5,\"Message\":1}"), 3);
    CHECK_EQ(faults_of("{}"), 1);
    CHECK_EQ(faults_of("{\"message\":\"hi\",\"n\":true}"), 1);
    CHECK_EQ(faults_of("{\"message\":null}"), 1);
}

TEST(results, "promise-P4: outputs are collected by name; what is missing or not JSON is said")
{
    json_t *g = json(ECHO), *outputs = NULL;
    struct function_refusal why = {0};
    json_t *r = json("{\"results\":{\"o\":{\"output\":\"echo\",\"value\":\"hi\"}}}");
    CHECK(function_outputs(g, r, &outputs, &why));
    CHECK_STR(json_get_str(outputs, "echo", ""), "hi");
    json_decref(outputs);
    json_decref(r);
    CHECK(!function_outputs(g, NULL, &outputs, &why));
    CHECK_EQ(why.fault, FAULT_NOT_PRODUCED);
    r = json("{\"results\":{\"o\":{\"output\":\"echo\",\"code\":\"output_too_large\"}}}");
    CHECK(!function_outputs(g, r, &outputs, &why));
    CHECK_EQ(why.fault, FAULT_OUTPUT_TOO_LARGE);
    json_decref(r);
    json_decref(g);
}
