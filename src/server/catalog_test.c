/* catalog_test.c - definitions as an editor reads them, and presets that users make. */
#include "base/env.h"
#include "base/mem.h"
#include "graph/graph.h"
#include "server/catalog.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

static json_t *json(const char *text)
{
    struct err e;
    json_t *j = NULL;
    CHECK(json_parse(text, strlen(text), "test", &j, &e) == ST_OK);
    return j;
}

static const char *device_list(const char *node, const struct catalog_devices *d)
{
    static char out[256];
    json_t *o = catalog_node(node, d), *param, *option;
    size_t i, k;
    out[0] = 0;
    json_array_foreach(
        json_object_get(o, "params"), i,
        param) if (str_eq(json_get_str(param, "name", ""), "device"))
        json_array_foreach(json_object_get(param, "options"), k, option)(void) snprintf(
            out + strlen(out), sizeof out - strlen(out), "%s%s", k ? " " : "",
            json_string_value(option));
    json_decref(o);
    return out;
}

TEST(
    device_lists,
    "D1 R16: a node's device list has this server's devices and names within a device set")
{
    CHECK_STR(device_list("TrainingLoop", &(struct catalog_devices){0}), "auto cpu");
    CHECK_STR(device_list("TrainingLoop", &(struct catalog_devices){.cuda = 1}), "auto cpu cuda");
    CHECK_STR(
        device_list("TrainingLoop", &(struct catalog_devices){.cuda = 2}),
        "auto cpu cuda cuda:0 cuda:1");
    CHECK_STR(
        device_list("TrainingLoop", &(struct catalog_devices){.cuda_set = 3, .mps = true}),
        "auto cpu cuda:0 cuda:1 cuda:2 mps");
    CHECK_STR(
        device_list("DiffusionTrainingLoop", &(struct catalog_devices){.cuda = 1}), "cpu cuda");
    struct catalog_devices d;
    json_t *w =
        json("{\"local\":{\"devices\":[{\"device\":\"cpu\"},{\"device\":\"cuda:0\"}]},"
             "\"workers\":[{\"name\":\"a\",\"devices\":[{\"device\":\"cuda:0\"},{\"device\":"
             "\"cuda:1\"}]},{\"name\":\"b\",\"devices\":[\"cpu\",\"mps:0\"]}]}");
    catalog_devices_of(w, &d);
    json_decref(w);
    CHECK_EQ(d.cuda, 1);
    CHECK_EQ(d.cuda_set, 2);
    CHECK(!d.mps);
}

static void has_keys(const json_t *o, const char *const *keys, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!json_object_get(o, keys[i]))
            test_fail(__FILE__, __LINE__, "\"%s\" is missing", keys[i]);
}

TEST(node_definitions, "promise-P15: every node definition has the fields that an editor reads")
{
    static const char *const node[] = {"node_name", "category", "description", "inputs",
                                       "outputs",   "params",   "provider"};
    static const char *const port[] = {"name", "data_type", "description", "optional"};
    static const char *const param[] = {"name",    "param_type", "default",   "description",
                                        "options", "min_value",  "max_value", "visible_when"};
    json_t *all = catalog_nodes(&(struct catalog_devices){0}), *o, *p;
    size_t i, k;
    CHECK(json_array_size(all) >= 131);
    json_array_foreach(all, i, o)
    {
        has_keys(o, node, 7);
        json_array_foreach(json_object_get(o, "inputs"), k, p) has_keys(p, port, 4);
        json_array_foreach(json_object_get(o, "outputs"), k, p) has_keys(p, port, 4);
        json_array_foreach(json_object_get(o, "params"), k, p) has_keys(p, param, 8);
    }
    json_decref(all);
    CHECK(!catalog_node("NoSuchNode", NULL));
}

TEST(
    preset_definitions, "promise-P15: presets are served with the types of their ports and the "
                        "definitions of their parameters")
{
    json_t *p =
        catalog_preset(test_dir(), "Training Pipeline", &(struct catalog_devices){.cuda = 2});
    json_t *in = json_array_get(json_object_get(p, "exposed_inputs"), 0);
    CHECK_STR(json_get_str(in, "data_type", ""), "MODEL");
    json_t *param = json_array_get(json_object_get(p, "exposed_params"), 0);
    CHECK_STR(json_get_str(json_object_get(param, "param_def"), "param_type", ""), "select");
    size_t i, most = 0;
    json_array_foreach(json_object_get(p, "exposed_params"), i, param)
    {
        size_t n = json_array_size(json_object_get(json_object_get(param, "param_def"), "options"));
        if (str_eq(json_get_str(param, "param_name", ""), "device"))
            most = n;
    }
    CHECK_EQ(most, 5); /* auto, cpu, cuda, cuda:0, cuda:1 */
    json_decref(p);
    CHECK(!catalog_preset(test_dir(), "None", NULL));
}

#define BODY                                                                                       \
    "{\"name\":\"My net\",\"tags\":[\"x\"],\"nodes\":[{\"id\":\"a\",\"type\":\"Conv2d\",\"data\":" \
    "{\"params\":{\"out_channels\":8}}},{\"id\":\"n\",\"type\":\"note\",\"data\":{}},{\"id\":"     \
    "\"b\","                                                                                       \
    "\"type\":\"LLMChat\",\"data\":{\"params\":{\"openai_api_key\":\"sk\"}}},{\"id\":\"c\","       \
    "\"type\":"                                                                                    \
    "\"Activation\",\"data\":{}}],\"edges\":[{\"id\":\"e\",\"source\":\"a\",\"target\":\"c\","     \
    "\"sourceHandle\":\"tensor\",\"targetHandle\":\"tensor\"}]}"

TEST(
    create_preset,
    "H2 H3 promise-P15: a preset of the canvas is stored, exposes what is free, keeps no secret")
{
    json_t *body = json(BODY), *preset = NULL, *o;
    struct err e;
    size_t i;
    CHECK(catalog_create_preset(test_dir(), body, &preset, &e) == ST_OK);
    CHECK_STR(json_get_str(preset, "category", ""), "Custom");
    CHECK_EQ(json_array_size(json_object_get(preset, "nodes")), 3);
    o = json_array_get(json_object_get(preset, "edges"), 0);
    CHECK_STR(json_get_str(o, "source", ""), "node_0");
    CHECK_STR(json_get_str(o, "target", ""), "node_2");
    o = json_array_get(json_object_get(preset, "exposed_inputs"), 0);
    CHECK_STR(json_get_str(o, "name", ""), "node_0_tensor");
    json_array_foreach(json_object_get(preset, "exposed_params"), i, o)
        CHECK(!strstr(json_get_str(o, "param_name", ""), "api_key"));
    char *text = json_text(preset, false);
    CHECK(!strstr(text, "\"sk\""));
    mem_free(text);
    json_decref(preset);
    CHECK(catalog_create_preset(test_dir(), body, &preset, &e) == ST_CONFLICT);
    json_put_str(body, "name", "../../My net");
    CHECK(catalog_create_preset(test_dir(), body, &preset, &e) == ST_OK);
    json_decref(preset);
    char path[1200];
    (void)snprintf(path, sizeof path, "%s/presets/______My_net.json", test_dir());
    CHECK(file_exists(path));
    json_put_str(body, "name", "Training Pipeline");
    CHECK(catalog_create_preset(test_dir(), body, &preset, &e) == ST_CONFLICT);
    json_put_str(body, "name", "Empty");
    json_put(body, "nodes", json_array());
    CHECK(catalog_create_preset(test_dir(), body, &preset, &e) == ST_INVALID);
    json_put(body, "nodes", json("[7]"));
    CHECK(catalog_create_preset(test_dir(), body, &preset, &e) == ST_UNPROCESSABLE);
    json_decref(body);
}

TEST(
    complete_graph, "promise-P15: a graph gets the users' presets that it names and does not embed")
{
    json_t *body = json(BODY), *preset = NULL;
    struct err e;
    CHECK(catalog_create_preset(test_dir(), body, &preset, &e) == ST_OK);
    json_decref(preset);
    json_decref(body);
    json_t *graph = json("{\"nodes\":[{\"id\":\"p\",\"type\":\"preset:My net\"}],\"edges\":[]}");
    catalog_complete(test_dir(), graph);
    CHECK_EQ(json_array_size(json_object_get(graph, "presets")), 1);
    catalog_complete(test_dir(), graph);
    CHECK_EQ(json_array_size(json_object_get(graph, "presets")), 1);
    json_decref(graph);
    graph = json("{\"nodes\":[{\"id\":\"p\",\"type\":\"Conv2d\"}],\"edges\":[]}");
    catalog_complete(test_dir(), graph);
    CHECK(!json_object_get(graph, "presets"));
    json_decref(graph);
}
