/* key_test.c - what is the same graph and what is not. */
#include "graph/graph.h"

#include "base/mem.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

static void key_of(struct graph *g, char key[33])
{
    (void)graph_check(g, GRAPH_RUN);
    graph_key(g, key);
}

static struct graph *load(const char *name)
{
    char path[512];
    struct graph *g = NULL;
    struct err e = {0};
    (void)snprintf(path, sizeof path, "%s/examples/%s/graph.json", SNUG_SOURCE_DIR, name);
    CHECK_OK(graph_load(path, &g, &e), &e);
    return g;
}

static void key_with(const char *name, const char *set, char key[33])
{
    struct graph *g = load(name);
    struct err e = {0};
    if (set)
        CHECK_OK(graph_set(g, set, &e), &e);
    key_of(g, key);
    graph_free(g);
}

static void compare(const char *set, bool same)
{
    char a[33], b[33];
    key_with("fashion-cnn", NULL, a);
    key_with("fashion-cnn", set, b);
    if ((strcmp(a, b) == 0) != same)
        test_fail(__FILE__, __LINE__, "%s: %s key", set, same ? "another" : "the same");
}

TEST(key_sees_memory_and_data, "B3: what influences memory or chooses data makes another graph")
{
    compare("train-loader.batch_size=64", false);
    compare("train-data.name=MNIST", false);
    compare("TrainingLoop.precision=bf16", false);
    compare("TrainingLoop.accumulate_steps=2", false);
    compare("Optimizer.type=SGD", false);
    compare("TrainingLoop.early_stopping_patience=1", false);
}

TEST(key_ignores_the_rest, "B3: seed, labels, rate, duration and loader workers do not count")
{
    compare("TrainingLoop.epochs=99", true);
    compare("TrainingLoop.max_steps=5", true);
    compare("Optimizer.lr=0.5", true);
    compare("train-loader.num_workers=4", true);
    compare("Print.label=other", true);
    compare("Visualize.title=other", true);
    compare("ModelSaver.path=other.pt", true);
    compare("train-loader.batch_size=128", true);
    compare("TrainingLoop.precision=fp32", true);
    compare("TrainingLoop.accumulate_steps=1", true);
}

static void parse_key(const char *text, char key[33])
{
    struct graph *g = NULL;
    struct err e = {0};
    CHECK_OK(graph_parse(text, strlen(text), "t", &g, &e), &e);
    key_of(g, key);
    graph_free(g);
}

/* Renames every node, turns the order of nodes and edges round, moves everything, adds a note. */
static char *disguise(const json_t *document)
{
    json_t *copy = json_deep_copy(document), *turned = json_array(), *names = json_object();
    json_t *nodes = json_object_get(copy, "nodes"), *edges = json_object_get(copy, "edges");
    static const char *const ends[] = {"source", "target"};
    for (size_t i = json_array_size(nodes); i-- > 0;) {
        json_t *n = json_array_get(nodes, i);
        char id[16];
        (void)snprintf(id, sizeof id, "n%zu", i * 7 % 101);
        json_put_str(names, json_get_str(n, "id", ""), id);
        json_put_str(n, "id", id);
        json_put(n, "position", json_pack("{s:i,s:i}", "x", (int)i, "y", 9));
        (void)json_array_append(turned, n);
    }
    json_put(copy, "nodes", turned);
    (void)json_array_append_new(turned, json_pack("{s:s,s:s}", "id", "zz", "type", "note"));
    turned = json_array();
    for (size_t i = json_array_size(edges); i-- > 0;) {
        json_t *edge = json_array_get(edges, i);
        for (int k = 0; k < 2; k++)
            json_put_str(edge, ends[k], json_get_str(names, json_get_str(edge, ends[k], ""), ""));
        (void)json_array_append(turned, edge);
    }
    json_put(copy, "edges", turned);
    json_put(copy, "settings", json_pack("{s:i}", "seed", 99));
    char *text = json_text(copy, false);
    json_decref(copy);
    json_decref(names);
    return text;
}

TEST(key_ignores_ids, "B3: renamed, reordered and moved nodes are the same graph")
{
    static const char *const names[] = {"fashion-cnn", "mlp", "resnet18-cifar", "own-pictures"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char a[33], b[33];
        struct graph *g = load(names[i]);
        key_of(g, a);
        json_t *document = graph_document(g);
        char *text = disguise(document);
        parse_key(text, b);
        CHECK_STR(a, b);
        mem_free(text);
        json_decref(document);
        graph_free(g);
    }
}

TEST(
    key_of_preset_and_plain,
    "B3: a preset is the nodes it stands for; defaults need not be written")
{
    char a[33], b[33];
    parse_key(
        "{\"nodes\":[{\"id\":\"s\",\"type\":\"Start\"},{\"id\":\"m\",\"type\":\"SequentialModel\"},"
        "{\"id\":\"p\",\"type\":\"preset:Training Pipeline\"}],\"edges\":[{\"source\":\"s\","
        "\"sourceHandle\":\"trigger\",\"target\":\"m\",\"type\":\"trigger\"},{\"source\":\"m\","
        "\"sourceHandle\":\"model\",\"target\":\"p\",\"targetHandle\":\"model\"},{\"source\":\"m\","
        "\"sourceHandle\":\"model\",\"target\":\"p\",\"targetHandle\":\"model_for_opt\"}]}",
        a);
    parse_key(
        "{\"nodes\":[{\"id\":\"s\",\"type\":\"Start\"},{\"id\":\"m\",\"type\":\"SequentialModel\"},"
        "{\"id\":\"d\",\"type\":\"Dataset\"},{\"id\":\"l\",\"type\":\"DataLoader\"},{\"id\":\"c\","
        "\"type\":\"Loss\"},{\"id\":\"o\",\"type\":\"Optimizer\"},{\"id\":\"t\",\"type\":"
        "\"TrainingLoop\",\"data\":{\"params\":{\"device\":\"cpu\"}}}],\"edges\":[{\"source\":"
        "\"s\","
        "\"sourceHandle\":\"trigger\",\"target\":\"m\",\"type\":\"trigger\"},{\"source\":\"m\","
        "\"sourceHandle\":\"model\",\"target\":\"t\",\"targetHandle\":\"model\"},{\"source\":\"m\","
        "\"sourceHandle\":\"model\",\"target\":\"o\",\"targetHandle\":\"model\"},{\"source\":\"d\","
        "\"sourceHandle\":\"dataset\",\"target\":\"l\",\"targetHandle\":\"dataset\"},{\"source\":"
        "\"l\","
        "\"sourceHandle\":\"dataloader\",\"target\":\"t\",\"targetHandle\":\"dataloader\"},{"
        "\"source\":\"c\",\"sourceHandle\":\"loss_fn\",\"target\":\"t\",\"targetHandle\":\"loss_"
        "fn\"},"
        "{\"source\":\"o\",\"sourceHandle\":\"optimizer\",\"target\":\"t\",\"targetHandle\":"
        "\"optimizer\"}]}",
        b);
    CHECK_STR(a, b);
}

#define LAYERS(a, b, width)                                                                        \
    "m.layers={\"version\":2,\"nodes\":[{\"id\":\"" a "\",\"type\":\"Linear\",\"params\":{"        \
    "\"out_features\":" width "}},{\"id\":\"" b "\",\"type\":\"ReLU\",\"position\":{\"x\":1}}],"   \
    "\"edges\":[{\"source\":\"" a "\",\"target\":\"" b "\"}]}"

static void layers_key(const char *set, char key[33])
{
    static const char text[] =
        "{\"nodes\":[{\"id\":\"s\",\"type\":\"Start\"},{\"id\":\"m\",\"type\":\"SequentialModel\"}]"
        ","
        "\"edges\":[{\"source\":\"s\",\"sourceHandle\":\"trigger\",\"target\":\"m\",\"type\":"
        "\"trigger\"}]}";
    struct graph *g = NULL;
    struct err e = {0};
    CHECK_OK(graph_parse(text, sizeof text - 1, "t", &g, &e), &e);
    CHECK_OK(graph_set(g, set, &e), &e);
    key_of(g, key);
    graph_free(g);
}

TEST(key_looks_into_layers, "B3: layer names do not count, layer sizes and connections do")
{
    char a[33], b[33], c[33], d[33];
    layers_key(LAYERS("x", "y", "10"), a);
    layers_key(LAYERS("one", "two", "10.0"), b);
    layers_key(LAYERS("x", "y", "11"), c);
    layers_key("m.layers=not json", d);
    CHECK_STR(a, b);
    CHECK(strcmp(a, c) != 0);
    CHECK(strcmp(a, d) != 0);
}

#define WIRED(edges)                                                                               \
    "{\"nodes\":[{\"id\":\"s\",\"type\":\"Start\"},{\"id\":\"a\",\"type\":\"TensorCreate\"},"      \
    "{\"id\":\"b\",\"type\":\"TensorCreate\",\"data\":{\"params\":{\"fill\":\"ones\"}}},"          \
    "{\"id\":\"c\",\"type\":\"Concat\"}],\"edges\":[{\"source\":\"s\",\"sourceHandle\":"           \
    "\"trigger\",\"target\":\"c\",\"type\":\"trigger\"}" edges "]}"
#define INTO(from, port)                                                                           \
    ",{\"source\":\"" from                                                                         \
    "\",\"sourceHandle\":\"tensor\",\"target\":\"c\",\"targetHandle\":\"" port "\"}"

TEST(key_sees_connections, "B3: the same nodes connected otherwise are another graph")
{
    char a[33], b[33], c[33], d[33];
    parse_key(WIRED(INTO("a", "tensor_a") INTO("b", "tensor_b")), a);
    parse_key(WIRED(INTO("b", "tensor_a") INTO("a", "tensor_b")), b);
    parse_key(WIRED(INTO("b", "tensor_b") INTO("a", "tensor_a")), c);
    parse_key(WIRED(INTO("b", "tensor_a") INTO("a", "tensor_a") INTO("b", "tensor_b")), d);
    CHECK(strcmp(a, b) != 0);
    CHECK_STR(a, c);
    CHECK_STR(a, d); /* the edge that lost its input does not count */
}

TEST(keys_of_variants_are_those_of_graphs, "B3 SW1: a patched key is the key of the patched graph")
{
    static const struct {
        const char *set, *patch;
    } rows[] = {
        {"optimizer.lr=0.5", "{\"optimizer\": {\"lr\": 0.5}}"},
        {"train_loader.batch_size=3", "{\"train_loader\": {\"batch_size\": 3}}"},
        {"train.precision=bf16", "{\"train\": {\"precision\": \"bf16\"}}"},
    };
    struct graph *g = load("gpt-mini");
    (void)graph_check(g, GRAPH_RUN);
    struct graph_keyer *k = graph_keyer_new(g);
    char base[33], key[33], want[33];
    graph_key(g, base);
    graph_keyer_key(k, NULL, key);
    CHECK_STR(key, base);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *patch = json_loads(rows[i].patch, 0, NULL);
        graph_keyer_key(k, patch, key);
        key_with("gpt-mini", rows[i].set, want);
        CHECK_STR(key, want);
        CHECK((strcmp(key, base) == 0) == (i == 0));
        json_decref(patch);
    }
    graph_keyer_key(k, NULL, key); /* a patch leaves nothing behind */
    CHECK_STR(key, base);
    graph_keyer_free(k);
    graph_free(g);
}
