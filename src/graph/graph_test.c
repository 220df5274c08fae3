/* graph_test.c - loading, expansion, what runs, order, changes, saving; the examples. */
#include "graph/graph.h"

#include "base/env.h"
#include "base/mem.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

/* A graph from text with ' for ", which must have the shape of one. */
static struct graph *parse(const char *text)
{
    struct graph *g = NULL;
    struct err e = {0};
    char *copy = mem_strdup(text);
    for (char *c = copy; *c; c++) {
        if (*c == '\'')
            *c = '"';
    }
    CHECK_OK(graph_parse(copy, strlen(copy), "test.json", &g, &e), &e);
    mem_free(copy);
    return g;
}

static struct graph *load(const char *relative)
{
    struct graph *g = NULL;
    struct err e = {0};
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", SNUG_SOURCE_DIR, relative);
    CHECK_OK(graph_load(path, &g, &e), &e);
    return g;
}

static const struct graph_node *node(const struct graph *g, const char *id)
{
    size_t i = graph_node_find(g, id);
    if (i == GRAPH_NO_NODE)
        test_fail(__FILE__, __LINE__, "no node %s", id);
    return graph_node_at(g, i);
}

static void no_issues(const struct graph *g)
{
    struct err e = {0};
    if (graph_verdict(g, &e) != ST_OK)
        test_fail(__FILE__, __LINE__, "%s", e.text);
}

static size_t position(const struct graph *g, const char *id)
{
    for (size_t i = 0; i < graph_order_count(g); i++) {
        if (str_eq(graph_node_at(g, graph_order_at(g, i))->id, id))
            return i;
    }
    return SIZE_MAX;
}

TEST(examples_are_clean, "N1: every example loads, checks without an issue and can be run")
{
    static const char *const names[] = {"fashion-cnn", "mlp", "resnet18-cifar", "own-pictures"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[128];
        (void)snprintf(path, sizeof path, "examples/%s/graph.json", names[i]);
        struct graph *g = load(path);
        (void)graph_check(g, GRAPH_ALL);
        no_issues(g);
        CHECK_EQ(graph_check_runnable(g), 0);
        CHECK_EQ(graph_order_count(g), graph_node_count(g));
        graph_free(g);
    }
}

TEST(
    preset_is_expanded, "N1: inner ids, values laid over the preset's, edges through exposed ports")
{
    struct graph *g = load("examples/mlp/graph.json");
    CHECK_EQ(graph_check(g, GRAPH_RUN), 0);
    const struct graph_node *loop = node(g, "pipeline__train_loop");
    CHECK_STR(loop->container, "pipeline");
    CHECK_EQ(graph_param_i64(loop, "epochs"), 3);
    CHECK_STR(graph_param_str(node(g, "pipeline__dataset"), "name"), "FashionMNIST");
    CHECK_STR(graph_param_str(node(g, "pipeline__dataset"), "split"), "train");
    CHECK_EQ(graph_param_i64(node(g, "pipeline__dataloader"), "batch_size"), 64);
    CHECK_NEAR(graph_param_f64(node(g, "pipeline__optimizer"), "lr"), 0.001, 0);
    CHECK(graph_param_bool(node(g, "pipeline__dataloader"), "shuffle"));
    size_t source;
    const char *port;
    CHECK(graph_input(g, graph_node_find(g, "pipeline__optimizer"), "model", &source, &port));
    CHECK_STR(graph_node_at(g, source)->id, "model");
    CHECK(graph_input(g, graph_node_find(g, "curve"), "data", &source, &port));
    CHECK_STR(graph_node_at(g, source)->id, "pipeline__train_loop");
    CHECK_STR(port, "losses");
    CHECK_EQ(graph_output_uses(g, graph_node_find(g, "model"), "model"), 2);
    CHECK(graph_node_find(g, "pipeline") == GRAPH_NO_NODE);
    graph_free(g);
}

TEST(own_presets_nest, "N1: the graph's own presets, one within another")
{
    struct graph *g = parse(
        "{'nodes':[{'id':'s','type':'Start'},{'id':'a','type':'preset:Outer'},"
        "{'id':'p','type':'Print'}],"
        "'edges':[{'source':'s','sourceHandle':'trigger','target':'p','type':'trigger'},"
        "{'source':'a','sourceHandle':'o','target':'p','targetHandle':'value'}],"
        "'presets':[{'preset_name':'Outer','nodes':[{'id':'b','type':'preset:Inner'}],'edges':[],"
        "'exposed_outputs':[{'name':'o','internal_node':'b','internal_port':'x'}]},"
        "{'preset_name':'Inner','nodes':[{'id':'c','type':'TensorCreate','params':{'fill':'ones'}}]"
        ","
        "'edges':[],'exposed_outputs':[{'name':'x','internal_node':'c','internal_port':'tensor'}]}]"
        "}");
    CHECK_EQ(graph_check(g, GRAPH_RUN), 0);
    CHECK_STR(graph_param_str(node(g, "a__b__c"), "fill"), "ones");
    CHECK_STR(node(g, "a__b__c")->container, "a");
    CHECK(node(g, "a__b__c")->executable);
    struct graph_exposed x;
    CHECK(graph_exposed_at(g, 0, &x) && !graph_exposed_at(g, 1, &x));
    CHECK(graph_exposed_at(g, 0, &x));
    CHECK_STR(x.container, "a");
    CHECK_STR(x.name, "o");
    CHECK_EQ(x.node, graph_node_find(g, "a__b__c"));
    CHECK_STR(x.port, "tensor");
    graph_free(g);
}

TEST(subgraphs_are_inlined, "N1: subgraph instances, their interface and their trigger targets")
{
    struct graph *g = parse(
        "{'nodes':[{'id':'s','type':'Start'},{'id':'u','type':'subgraph:x'},"
        "{'id':'v','type':'subgraph:x'},{'id':'p','type':'Print'}],"
        "'edges':[{'source':'s','sourceHandle':'trigger','target':'u','type':'trigger'},"
        "{'source':'u','sourceHandle':'out','target':'p','targetHandle':'value'}],"
        "'subgraphs':[{'id':'x','nodes':[{'id':'t','type':'TensorCreate','data':{'params':{'shape':"
        "'2,2'}}},{'id':'q','type':'Print','data':{}},{'id':'n','type':'note'}],"
        "'edges':[{'source':'t','sourceHandle':'tensor','target':'q','targetHandle':'value'}],"
        "'interface':{'inputs':[],'outputs':[{'port':'out','innerNode':'q','innerPort':'value'}],"
        "'triggerTargets':['t']}}]}");
    CHECK_EQ(graph_check(g, GRAPH_RUN), 0);
    CHECK(node(g, "u/t")->entry && node(g, "u/q")->executable && !node(g, "v/t")->executable);
    CHECK_STR(graph_param_str(node(g, "v/t"), "shape"), "2,2");
    graph_free(g);
}

#define TRIGGER(to) "{'source':'s','sourceHandle':'trigger','target':'" to "','type':'trigger'}"
#define DATA(a, ap, b, bp)                                                                         \
    ",{'source':'" a "','sourceHandle':'" ap "','target':'" b "','targetHandle':'" bp "'}"

TEST(
    one_trigger_is_enough,
    "N1: what feeds a kept node is kept, also over optional ports; the rest is a draft")
{
    struct graph *g = parse(
        "{'nodes':[{'id':'s','type':'Start'},{'id':'m','type':'SequentialModel'},"
        "{'id':'d','type':'Dataset'},{'id':'l','type':'DataLoader'},{'id':'o','type':'Optimizer'},"
        "{'id':'c','type':'Loss'},{'id':'t','type':'TrainingLoop'},{'id':'vd','type':'Dataset'},"
        "{'id':'vl','type':'DataLoader'},{'id':'draft','type':'DataLoader'},"
        "{'id':'s2','type':'Start'},{'id':'n','type':'note'}],'edges':[" TRIGGER("m")
            DATA("m", "model", "o", "model") DATA("m", "model", "t", "model")
                DATA("d", "dataset", "l", "dataset") DATA("l", "dataloader", "t", "dataloader")
                    DATA("o", "optimizer", "t", "optimizer") DATA("c", "loss_fn", "t", "loss_fn")
                        DATA("vd", "dataset", "vl", "dataset")
                            DATA("vl", "dataloader", "t", "val_dataloader")
                                DATA("n", "x", "t", "y") "]}");
    CHECK_EQ(graph_check(g, GRAPH_RUN), 0);
    CHECK(node(g, "c")->executable && node(g, "vd")->executable && node(g, "s")->executable);
    CHECK(!node(g, "draft")->executable && !node(g, "s2")->executable);
    CHECK(node(g, "m")->entry && !node(g, "s")->entry);
    CHECK(graph_node_find(g, "n") == GRAPH_NO_NODE);
    CHECK(position(g, "d") < position(g, "l") && position(g, "l") < position(g, "t"));
    CHECK(position(g, "draft") == SIZE_MAX);
    /* The draft has no data set: `validate` says so, `run` does not care. */
    CHECK_EQ(graph_check(g, GRAPH_ALL), 1);
    CHECK_EQ(graph_check(g, GRAPH_RUN), 0);
    graph_free(g);
}

TEST(last_edge_wins, "N1: of several edges into one input the last in the file counts")
{
    struct graph *g =
        parse("{'nodes':[{'id':'s','type':'Start'},{'id':'a','type':'TensorCreate'},"
              "{'id':'b','type':'TensorCreate'},{'id':'p','type':'Print'}],'edges':[" TRIGGER("p")
                  DATA("b", "tensor", "p", "value") DATA("a", "tensor", "p", "value") "]}");
    CHECK_EQ(graph_check(g, GRAPH_RUN), 0);
    size_t source;
    const char *port;
    CHECK(graph_input(g, graph_node_find(g, "p"), "value", &source, &port));
    CHECK_STR(graph_node_at(g, source)->id, "a");
    CHECK(!graph_input(g, graph_node_find(g, "p"), "other", &source, &port));
    graph_free(g);
}

TEST(
    bypass_passes_on,
    "N1: a bypassed node forwards its first fitting input; chains collapse; triggers move on")
{
    struct graph *g = parse(
        "{'nodes':[{'id':'s','type':'Start'},{'id':'d','type':'Dataset'},"
        "{'id':'x','type':'Transform','data':{'bypassed':true}},"
        "{'id':'y','type':'Transform','data':{'bypassed':true}},{'id':'l','type':'DataLoader'}],"
        "'edges':[" TRIGGER("x") DATA("d", "dataset", "x", "dataset")
            DATA("x", "dataset", "y", "dataset") DATA("y", "dataset", "l", "dataset") "]}");
    CHECK_EQ(graph_check(g, GRAPH_RUN), 0);
    size_t source;
    const char *port;
    CHECK(graph_input(g, graph_node_find(g, "l"), "dataset", &source, &port));
    CHECK_STR(graph_node_at(g, source)->id, "d");
    CHECK(node(g, "l")->entry && !node(g, "x")->executable);
    CHECK_EQ(graph_order_count(g), 3);
    graph_free(g);
}

TEST(set_by_id_and_type, "N1: --set changes one node, or every node of a type, inside presets too")
{
    struct graph *g = load("examples/mlp/graph.json");
    struct err e = {0};
    CHECK_OK(graph_set(g, "TrainingLoop.precision=bf16", &e), &e);
    CHECK_OK(graph_set(g, "pipeline__train_loop.epochs=7", &e), &e);
    CHECK_OK(graph_set(g, "Visualize.title=a=b.c", &e), &e);
    CHECK_OK(graph_set(g, "Optimizer.lr=1e-2", &e), &e);
    CHECK_STR(graph_param_str(node(g, "pipeline__train_loop"), "precision"), "bf16");
    CHECK_EQ(graph_param_i64(node(g, "pipeline__train_loop"), "epochs"), 7);
    CHECK_STR(graph_param_str(node(g, "curve"), "title"), "a=b.c");
    CHECK_NEAR(graph_param_f64(node(g, "pipeline__optimizer"), "lr"), 0.01, 0);
    CHECK_EQ(graph_check(g, GRAPH_RUN), 0);
    /* The document follows, so that a fitted graph can be written. */
    char path[512];
    (void)snprintf(path, sizeof path, "%s/out.json", test_dir());
    CHECK_OK(graph_save(g, path, &e), &e);
    struct graph *again = NULL;
    CHECK_OK(graph_load(path, &again, &e), &e);
    CHECK_EQ(graph_param_i64(node(again, "pipeline__train_loop"), "epochs"), 7);
    CHECK_STR(graph_param_str(node(again, "curve"), "title"), "a=b.c");
    graph_free(again);
    graph_free(g);
}

static void refuse_set(const char *assignment, enum status st, const char *text, const char *hint)
{
    struct graph *g = load("examples/mlp/graph.json");
    struct err e = {0};
    CHECK_EQ(graph_set(g, assignment, &e), st);
    if (!strstr(e.text, text) || !strstr(e.hint, hint))
        test_fail(__FILE__, __LINE__, "%s: \"%s\" / \"%s\"", assignment, e.text, e.hint);
    graph_free(g);
}

TEST(set_refuses, "N1: wrong assignments name node and parameter, and what was near")
{
    refuse_set("epochs=3", ST_USAGE, "not NODE.PARAM=VALUE", "TrainingLoop.epochs=3");
    refuse_set("TrainingLoop.epochs", ST_USAGE, "not NODE.PARAM=VALUE", "");
    refuse_set(".epochs=1", ST_USAGE, "not NODE.PARAM=VALUE", "");
    refuse_set("TrainingLop.epochs=3", ST_NOT_FOUND, "\"TrainingLop\"", "\"TrainingLoop\"");
    refuse_set("EvaluateModel.batch_size=3", ST_NOT_FOUND, "no node or node type", "");
    refuse_set("TrainingLoop.epoch=3", ST_NOT_FOUND, "no parameter \"epoch\"", "\"epochs\"");
    refuse_set("pipeline.epochs=3", ST_NOT_FOUND, "\"pipeline\"", "pipeline__train_loop");
    refuse_set(
        "TrainingLoop.epochs=three", ST_INVALID, "'epochs' on node pipeline__train_loop", "");
    refuse_set("TrainingLoop.epochs=0", ST_INVALID, "below minimum 1", "");
    refuse_set("TrainingLoop.epochs=1.5", ST_INVALID, "'epochs'", "");
    refuse_set("TrainingLoop.precision=fp8", ST_INVALID, "fp32 bf16 fp16", "");
    refuse_set("TrainingLoop.batch_metrics=maybe", ST_INVALID, "\"maybe\" is not of type bool", "");
    refuse_set("Optimizer.lr=nan", ST_INVALID, "not a number", "");
    refuse_set("Optimizer.lr=-1", ST_INVALID, "below minimum 0", "");
}

TEST(round_trip, "N1: load and write gives an equal document, unknown keys included")
{
    static const char text[] = "{\"name\":\"n\",\"odd\":[1,2.5,{\"deep\":null}],\"nodes\":[{\"id\":"
                               "\"a\",\"type\":\"Print\","
                               "\"position\":{\"x\":1.25,\"y\":-3},\"mystery\":true,\"data\":{"
                               "\"params\":{\"label\":\"\\u00e9\","
                               "\"zzz\":0.1}}},{\"id\":\"n\",\"type\":\"note\",\"data\":{"
                               "\"noteKind\":\"text\"}}],\"edges\":[],"
                               "\"segmentGroups\":[{\"id\":\"g\"}],\"settings\":{\"device\":\"cuda:"
                               "1\",\"seed\":7,\"x\":1}}";
    struct graph *g = NULL;
    struct err e = {0};
    json_t *before, *after = NULL;
    char path[512];
    (void)snprintf(path, sizeof path, "%s/out.json", test_dir());
    CHECK_OK(graph_parse(text, sizeof text - 1, "t", &g, &e), &e);
    (void)graph_check(g, GRAPH_ALL);
    CHECK_OK(graph_save(g, path, &e), &e);
    CHECK_OK(json_read_file(path, 1 << 20, &after, &e), &e);
    CHECK_OK(json_parse(text, sizeof text - 1, "t", &before, &e), &e);
    CHECK(json_equal(before, after));
    int64_t seed = 0;
    CHECK_STR(graph_setting_device(g), "cuda:1");
    CHECK(graph_setting_seed(g, &seed) && seed == 7);
    json_decref(before);
    json_decref(after);
    graph_free(g);
    g = load("examples/mlp/graph.json");
    after = graph_document(g);
    (void)snprintf(path, sizeof path, "%s/examples/mlp/graph.json", SNUG_SOURCE_DIR);
    CHECK_OK(json_read_file(path, 1 << 20, &before, &e), &e);
    CHECK(json_equal(before, after));
    json_decref(before);
    json_decref(after);
    graph_free(g);
}

TEST(secrets_are_blank, "N1: secret values are not written")
{
    struct graph *g = parse(
        "{'nodes':[{'id':'a','type':'LLMChat','data':{'params':{'openai_api_key':'sk-1','model':"
        "'m'}}}],'edges':[],'presets':[{'preset_name':'p','nodes':[{'id':'b','type':'LLMChat',"
        "'params':{'anthropic_api_key':'sk-2'}}],'edges':[]}]}");
    json_t *document = graph_document(g);
    char *text = json_text(document, false);
    CHECK(!strstr(text, "sk-") && strstr(text, "\"m\""));
    mem_free(text);
    json_decref(document);
    graph_free(g);
}

TEST(prepare_tells_all, "N1: one call for run and plan: file, node and all problems in one error")
{
    char path[512];
    struct graph *g = NULL;
    struct err e = {0};
    const char *sets[] = {"TrainingLoop.strategy=zero1"};
    (void)snprintf(path, sizeof path, "%s/examples/mlp/graph.json", SNUG_SOURCE_DIR);
    CHECK_OK(graph_prepare(path, NULL, 0, &g, &e), &e);
    graph_free(g);
    CHECK_EQ(graph_prepare(path, sets, 1, &g, &e), ST_UNSUPPORTED);
    CHECK(strstr(e.text, "cannot run strategy zero1 on node pipeline__train_loop"));
    CHECK_STR(e.node, "pipeline__train_loop");
    CHECK_EQ(graph_prepare("/nowhere/graph.json", NULL, 0, &g, &e), ST_NOT_FOUND);
}

TEST(nulls_of_a_whole_graph, "N1: null for what a graph does not have is as if it were not there")
{
    static const char text[] = "{\"nodes\":[{\"id\":\"a\",\"type\":\"Print\"}],\"edges\":[],"
                               "\"description\":null,\"presets\":null,\"subgraphs\":null,"
                               "\"segmentGroups\":null,\"settings\":null}";
    static const char no_edges[] = "{\"nodes\":[],\"edges\":null}";
    struct graph *g = NULL;
    struct err e = {0};
    int64_t seed;
    CHECK_OK(graph_parse(text, sizeof text - 1, "t", &g, &e), &e);
    (void)graph_check(g, GRAPH_ALL);
    CHECK(!graph_setting_seed(g, &seed));
    graph_free(g);
    CHECK(graph_parse(no_edges, sizeof no_edges - 1, "t", &g, &e) == ST_INVALID);
    CHECK(strstr(e.text, "edges") != NULL);
}
