/* model_test.c - SequentialModel: the document's rules, names, counts, order, starting values. */
#include "nn/model.h"

#include "base/env.h"
#include "base/json.h"
#include "base/str.h"
#include "test.h"

#include <math.h>
#include <string.h>

struct fixture {
    struct ir_vars vars;
    struct model *m;
    struct err e;
};

static enum status make(struct fixture *f, const char *layers)
{
    memset(f, 0, sizeof *f);
    ir_vars_init(&f->vars);
    return model_from_layers(layers, "model", &f->vars, &f->m, &f->e);
}

static void drop(struct fixture *f)
{
    model_free(f->m);
    ir_vars_release(&f->vars);
}

static const char *var_name(const struct fixture *f, int var)
{
    return f->vars.list.data[var].name;
}

/* `nodes` between Input "in" (port "a") and Output "out" (port "b"); single quotes for double. */
#define DOCUMENT(nodes, edges)                                                                     \
    "{'version':2,'nodes':[{'id':'in','type':'Input','ports':[{'id':'a','name':'x'}]}," nodes      \
    "{'id':'out','type':'Output','ports':[{'id':'b','name':'y'}]}],'edges':[" edges "]}"
#define IN(to) "{'source':'in','sourceHandle':'a','target':'" to "'}"
#define OUT(from) "{'source':'" from "','target':'out','targetHandle':'b'}"
#define EDGE(from, to) "{'source':'" from "','target':'" to "'}"
#define ONE(type, params)                                                                          \
    DOCUMENT("{'id':'l','type':'" type "','params':{" params "}},", IN("l") "," OUT("l"))

static enum status make_quoted(struct fixture *f, const char *layers)
{
    char text[4096];
    CHECK(strlen(layers) < sizeof text);
    size_t n = 0;
    for (const char *s = layers; *s; s++)
        text[n++] = *s == '\'' ? '"' : *s;
    text[n] = 0;
    return make(f, text);
}

struct bad {
    const char *layers, *text;
    enum status status;
};

static void check_refused(const struct bad *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct fixture f;
        enum status st = make_quoted(&f, rows[i].layers);
        if (st != rows[i].status || !strstr(f.e.text, rows[i].text))
            test_fail(
                __FILE__, __LINE__, "row %zu: status %d, text \"%s\", not \"%s\"", i, (int)st,
                f.e.text, rows[i].text);
        CHECK_STR(f.e.node, "model");
        CHECK(f.m == NULL);
        drop(&f);
    }
}
#define REFUSED(rows) check_refused(rows, sizeof rows / sizeof *rows)

TEST(
    document_rules,
    "N1: each rule of the layers document is checked, and its error names the place")
{
    static const struct bad rows[] = {
        {"{'version':2", "not valid JSON", ST_CORRUPT},
        {"[]", "must be a JSON object", ST_INVALID},
        {"{'version':1,'nodes':[],'edges':[]}", "Unsupported graph spec version: 1", ST_INVALID},
        {"{'version':'2'}", "Unsupported graph spec version: \"2\"", ST_INVALID},
        {"{'nodes':[],'edges':[]}", "Unsupported graph spec version: None", ST_INVALID},
        {"{'version':2,'edges':[]}", "no list \"nodes\"", ST_INVALID},
        {"{'version':2,'nodes':[],'edges':[]}", "exactly one Input node", ST_INVALID},
        {"{'version':2,'nodes':[{'id':'in','type':'Input','ports':[{'id':'a','name':'x'}]}],"
         "'edges':[]}",
         "exactly one Output node", ST_INVALID},
        {DOCUMENT("{'id':'q','type':'Input','ports':[{'id':'a','name':'x'}]},", ""),
         "\"q\" is a second", ST_INVALID},
        {"{'version':2,'nodes':[{'id':'in','type':'Input','ports':[]}],'edges':[]}",
         "1 to 64 ports, not 0", ST_INVALID},
        {"{'version':2,'nodes':[{'id':'in','type':'Input','ports':[{'id':'a','name':'x'},"
         "{'id':'b','name':'x'}]}],'edges':[]}",
         "have the name \"x\"", ST_INVALID},
        {DOCUMENT("3,", ""), "node 1 must be an object", ST_INVALID},
        {DOCUMENT("{'type':'ReLU'},", ""), "node 1 has no \"id\"", ST_INVALID},
        {DOCUMENT("{'id':7,'type':'ReLU'},", ""), "\"id\" must be a text", ST_INVALID},
        {DOCUMENT("{'id':'','type':'ReLU'},", ""), "empty id", ST_INVALID},
        {DOCUMENT("{'id':'a.b','type':'ReLU'},", ""), "cannot contain \".\"", ST_INVALID},
        {DOCUMENT("{'id':'r','type':'ReLU'},{'id':'r','type':'ReLU'},", ""),
         "two layers have the id \"r\"", ST_INVALID},
        {DOCUMENT("", EDGE("in", "out")), "must name a port in \"sourceHandle\"", ST_INVALID},
        {DOCUMENT("", "{'source':'in','sourceHandle':'x','target':'out'}"),
         "names port \"x\", which the Input node", ST_INVALID},
        {DOCUMENT(
             "{'id':'r','type':'ReLU'},",
             "{'source':'in','sourceHandle':'a','target':'r','targetHandle':'input'}"),
         "at layer \"r\", which has no ports", ST_INVALID},
        {DOCUMENT("", EDGE("in", "zz")), "layer \"zz\" that does not exist", ST_INVALID},
        {DOCUMENT("", EDGE("out", "in")), "out of the Output node", ST_INVALID},
        {DOCUMENT("{'id':'r','type':'ReLU'},", EDGE("r", "in")), "into the Input node", ST_INVALID},
        {DOCUMENT("{'id':'r','type':'ReLU'},", IN("r") "," OUT("r") "," OUT("r")),
         "output port \"y\" must have exactly one incoming edge, not more", ST_INVALID},
        {DOCUMENT("{'id':'r','type':'ReLU'},", IN("r")),
         "output port \"y\" must have exactly one incoming edge, and has none", ST_INVALID},
        {DOCUMENT("{'id':'r','type':'ReLU'},", OUT("r")), "input port \"x\" is not connected",
         ST_INVALID},
        {DOCUMENT("{'id':'r','type':'ReLU'},", IN("r") "," IN("r") "," OUT("r")),
         "layer \"r\" (ReLU) must have exactly 1 incoming edge, not 2", ST_INVALID},
        {DOCUMENT("{'id':'r','type':'ReLU'},{'id':'s','type':'ReLU'},", IN("r") "," OUT("r")),
         "layer \"s\" (ReLU) must have exactly 1 incoming edge, not 0", ST_INVALID},
        {DOCUMENT("{'id':'r','type':'Add'},", IN("r") "," OUT("r")),
         "layer \"r\" (Add) must have at least 2 incoming edges, not 1", ST_INVALID},
        {DOCUMENT("{'id':'r','type':'Subtract'},", IN("r") "," IN("r") "," IN("r") "," OUT("r")),
         "layer \"r\" (Subtract) must have exactly 2 incoming edges, not 3", ST_INVALID},
        {DOCUMENT(
             "{'id':'r','type':'Add'},{'id':'s','type':'ReLU'},",
             IN("r") "," EDGE("s", "r") "," EDGE("r", "s") "," OUT("s")),
         "cycle through", ST_INVALID}};
    REFUSED(rows);
}

TEST(unknown_layer_types, "N1: an unknown layer type is named with the nearest one")
{
    static const struct bad rows[] = {
        {ONE("Conv2D", ""), "SequentialModel: unknown layer type 'Conv2D'", ST_INVALID},
        {ONE("LSTMCell", ""), "SequentialModel: unknown layer type 'LSTMCell'", ST_INVALID}};
    REFUSED(rows);
    struct fixture f;
    CHECK(make_quoted(&f, ONE("Conv2D", "")) == ST_INVALID);
    CHECK(strstr(f.e.hint, "Conv2d"));
    drop(&f);
}

TEST(bad_parameters, "a parameter of the wrong kind, size or name is a clear error")
{
    static const struct bad rows[] = {
        {ONE("Linear", "'in_features':3"),
         "layer \"l\" (Linear): parameter \"out_features\" is missing", ST_INVALID},
        {ONE("Linear", "'in_features':3.5,'out_features':1"),
         "\"in_features\" must be a whole number of at least 1, not 3.5", ST_INVALID},
        {ONE("Linear", "'in_features':-3,'out_features':1"), "not -3", ST_INVALID},
        {ONE("Linear", "'in_features':'3','out_features':1"), "not \"3\"", ST_INVALID},
        {ONE("Linear", "'in_features':null,'out_features':1"), "not null", ST_INVALID},
        {ONE("Linear", "'in_features':NaN,'out_features':1"), "not valid JSON", ST_CORRUPT},
        {ONE("Linear", "'in_features':1000000000,'out_features':1000000000"),
         "parameter \"weight\" of shape [1000000000, 1000000000] is absurdly large", ST_INVALID},
        {ONE("Linear", "'in_features':9000000000000000000,'out_features':1"), "at most 2147483647",
         ST_INVALID},
        {ONE("Linear", "'in_features':3,'out_features':1,'bias':1"), "must be true or false",
         ST_INVALID},
        {ONE("Linear", "'in_features':3,'out_feature':1"), "unexpected parameter \"out_feature\"",
         ST_INVALID},
        {ONE("Conv2d", "'in_channels':3,'out_channels':4,'kernel_size':[3]"), "or a pair of them",
         ST_INVALID},
        {ONE("Conv2d", "'in_channels':3,'out_channels':4,'kernel_size':0"), "not 0", ST_INVALID},
        {ONE("Conv2d", "'in_channels':3,'out_channels':4,'kernel_size':3,'padding':-1"),
         "\"padding\" must be a whole number of at least 0", ST_INVALID},
        {ONE("Conv2d", "'in_channels':3,'out_channels':4,'kernel_size':3,'padding':'full'"),
         "\"valid\", \"same\" or numbers", ST_INVALID},
        {ONE("Conv2d", "'in_channels':3,'out_channels':4,'kernel_size':3,'groups':2"),
         "in_channels must be divisible by groups", ST_INVALID},
        {ONE("Conv2d", "'in_channels':4,'out_channels':3,'kernel_size':3,'groups':2"),
         "out_channels must be divisible by groups", ST_INVALID},
        {ONE("Conv2d",
             "'in_channels':3,'out_channels':4,'kernel_size':3,'padding':'same','stride':2"),
         "padding='same' is not supported for strided convolutions", ST_INVALID},
        {ONE("Conv2d", "'in_channels':3,'out_channels':4,'kernel_size':3,'padding_mode':'reflect'"),
         "this version only has \"zeros\"", ST_UNSUPPORTED},
        {ONE("Conv2d", "'in_channels':2000000000,'out_channels':2000000000,'kernel_size':3"),
         "absurdly large", ST_INVALID},
        {ONE("Conv2d", "'in_channels':1,'out_channels':1,'kernel_size':99999999,'padding':'same',"
                       "'dilation':2147483647"),
         "absurdly large", ST_INVALID},
        {ONE("ConvTranspose2d",
             "'in_channels':3,'out_channels':4,'kernel_size':3,'output_padding':1"),
         "output padding must be smaller than either stride or dilation", ST_INVALID},
        {ONE("MaxPool2d", "'kernel_size':2,'padding':2"), "pad should be at most half", ST_INVALID},
        {ONE("MaxPool2d", "'kernel_size':2,'return_indices':true"), "only has false",
         ST_UNSUPPORTED},
        {ONE("AvgPool2d", "'kernel_size':2,'divisor_override':0"), "\"divisor_override\" must be",
         ST_INVALID},
        {ONE("AvgPool1d", "'kernel_size':2,'divisor_override':3"),
         "unexpected parameter \"divisor_override\"", ST_INVALID},
        {ONE("GroupNorm", "'num_groups':3,'num_channels':8"),
         "num_channels must be divisible by num_groups", ST_INVALID},
        {ONE("BatchNorm2d", "'num_features':3,'eps':-1"), "a finite number of at least 0",
         ST_INVALID},
        {ONE("InstanceNorm2d", "'num_features':3,'track_running_stats':true"), "only has false",
         ST_UNSUPPORTED},
        {ONE("LayerNorm", "'normalized_shape':[]"), "\"normalized_shape\" must be", ST_INVALID},
        {ONE("Dropout", "'p':1.5"), "dropout probability has to be between 0 and 1, but got 1.5",
         ST_INVALID},
        {ONE("Embedding", "'num_embeddings':4,'embedding_dim':2,'padding_idx':4"),
         "padding_idx must be within num_embeddings", ST_INVALID},
        {ONE("LSTM", "'input_size':3,'hidden_size':4,'proj_size':2"), "only has 0", ST_UNSUPPORTED},
        {ONE("LSTM", "'input_size':3,'hidden_size':4,'num_layers':2000000000"), "at most 512",
         ST_INVALID},
        {ONE("LSTM", "'input_size':2000000000,'hidden_size':2000000000"), "absurdly large",
         ST_INVALID},
        {ONE("GRU", "'input_size':3,'hidden_size':4,'dropout':1.5"), "between 0 and 1", ST_INVALID},
        {ONE("GRU", "'input_size':3,'hidden_size':4,'nonlinearity':'relu'"),
         "unexpected parameter \"nonlinearity\"", ST_INVALID},
        {ONE("RNN", "'input_size':3,'hidden_size':4,'nonlinearity':'sin'"),
         "must be one of tanh|relu, not \"sin\"", ST_INVALID},
        {ONE("MultiHeadAttention", "'embed_dim':8,'num_heads':3"),
         "embed_dim must be divisible by num_heads, got 8 and 3", ST_INVALID},
        {ONE("MultiHeadAttention", "'embed_dim':8,'num_heads':2,'kdim':3"), "only has null",
         ST_UNSUPPORTED},
        {ONE("MultiHeadAttention", "'embed_dim':8,'num_heads':4,'kv_heads':3"),
         "num_heads must be divisible by kv_heads, got 4 and 3", ST_INVALID},
        {ONE("MultiHeadAttention", "'embed_dim':8,'num_heads':4,'kv_heads':-2"),
         "num_heads must be divisible by kv_heads, got 4 and -2", ST_INVALID},
        {ONE("MultiHeadAttention", "'embed_dim':9,'num_heads':3,'rotary':true"),
         "heads of an even size, not 3", ST_INVALID},
        {ONE("TransformerEncoder", "'d_model':8,'nhead':2,'activation':'tanh'"),
         "must be one of relu|gelu, not \"tanh\"", ST_INVALID},
        {ONE("RMSNorm", "'normalized_shape':[2,3]"), "only normalises the last dimension",
         ST_UNSUPPORTED},
        {ONE("PositionalEncoding", "'d_model':7"), "needs an even d_model, not 7", ST_INVALID},
        {ONE("MoE", "'hidden_dim':8,'expert_hidden_dim':6,'top_k':5"),
         "top_k must be at most num_experts, got 5 and 4", ST_INVALID},
        {ONE("MoE", "'hidden_dim':8,'expert_hidden_dim':6,'num_experts':1000"), "at most 256",
         ST_INVALID},
        {ONE("Reshape", "'shape':'3,,2'"), "at most one of them -1", ST_INVALID},
        {ONE("Reshape", "'shape':'-1,-1'"), "at most one of them -1", ST_INVALID},
        {ONE("Reshape", "'shape':''"), "at most one of them -1", ST_INVALID},
        {DOCUMENT("{'id':'l','type':'Linear','params':[]},", ""), "\"params\" must be an object",
         ST_INVALID}};
    REFUSED(rows);
}

TEST(
    default_model_is_the_mnist_cnn, "N1: the default layers build, with PyTorch's names and counts")
{
    static const char *const names[] = {"layers.c1.weight", "layers.c1.bias",   "layers.c2.weight",
                                        "layers.c2.bias",   "layers.l1.weight", "layers.l1.bias",
                                        "layers.l2.weight", "layers.l2.bias"};
    struct fixture f;
    CHECK_OK(make(&f, model_default_layers()), &f.e);
    CHECK_EQ(model_parameter_count(f.m), 421642);
    CHECK_EQ(model_trainable_count(f.m), 421642);
    CHECK_EQ(model_state_count(f.m), 8);
    for (int i = 0; i < 8; i++)
        CHECK_STR(var_name(&f, model_state_var(f.m, i)), names[i]);
    CHECK_STR(f.vars.nodes.data[f.vars.list.data[0].node], "model/c1");
    CHECK(!model_has_batch_stats(f.m) && !model_has_dropout(f.m));
    CHECK_STR(model_input_name(f.m, 0), "x");
    CHECK_STR(model_output_name(f.m, 0), "y");
    struct shape hint, want = SHAPE(1, -1, -1);
    CHECK(model_input_shape_hint(f.m, &hint) && shape_eq(&hint, &want));
    drop(&f);
}

TEST(resnet18_counts, "N1: ResNet-18 for CIFAR has PyTorch's 11,173,962 parameters and 122 tensors")
{
    struct fixture f;
    struct err e = {0};
    json_t *graph, *node;
    size_t i;
    const char *layers = NULL;
    CHECK_OK(
        json_read_file(SNUG_SOURCE_DIR "/examples/resnet18-cifar/graph.json", 1 << 20, &graph, &e),
        &e);
    json_array_foreach(json_object_get(graph, "nodes"), i, node)
    {
        const json_t *params = json_object_get(json_object_get(node, "data"), "params");
        if (str_eq(json_get_str(node, "type", ""), "SequentialModel"))
            layers = json_get_str(params, "layers", NULL);
    }
    CHECK(layers != NULL);
    CHECK_OK(make(&f, layers), &f.e);
    CHECK_EQ(model_parameter_count(f.m), 11173962);
    CHECK_EQ(model_param_count_vars(f.m), 62);
    CHECK_EQ(model_state_count(f.m), 122);
    CHECK(model_has_batch_stats(f.m));
    drop(&f);
    json_decref(graph);
}

TEST(
    state_order,
    "state is ordered as PyTorch's state_dict, parameters as its optimizers number them")
{
    struct fixture f;
    CHECK_OK(
        make_quoted(
            &f, DOCUMENT(
                    "{'id':'n','type':'BatchNorm1d','params':{'num_features':4}},"
                    "{'id':'p','type':'PReLU','params':{'odd':true}},"
                    "{'id':'l','type':'Linear','params':{'in_features':4,'out_features':4}},",
                    IN("l") "," EDGE("l", "n") "," EDGE("n", "p") "," OUT("p"))),
        &f.e);
    static const char *const state[] = {
        "layers.n.weight",
        "layers.n.bias",
        "layers.n.running_mean",
        "layers.n.running_var",
        "layers.n.num_batches_tracked",
        "layers.p.weight",
        "layers.l.weight",
        "layers.l.bias"};
    static const char *const params[] = {
        "layers.n.weight", "layers.n.bias", "layers.p.weight", "layers.l.weight", "layers.l.bias"};
    CHECK_EQ(model_state_count(f.m), 8);
    for (int i = 0; i < 8; i++)
        CHECK_STR(var_name(&f, model_state_var(f.m, i)), state[i]);
    CHECK_EQ(model_param_count_vars(f.m), 5);
    for (int i = 0; i < 5; i++)
        CHECK_STR(var_name(&f, model_param_var(f.m, i)), params[i]);
    struct ir_var *batches = &f.vars.list.data[model_state_var(f.m, 4)];
    CHECK(batches->dtype == DT_I64 && batches->shape.rank == 0);
    CHECK(batches->category == CATEGORY_BUFFERS && !batches->trainable);
    CHECK_EQ(model_parameter_count(f.m), 4 + 4 + 1 + 16 + 4);
    drop(&f);
}

/* Draws the starting value of a variable. */
static float *drawn(const struct fixture *f, const char *name, uint64_t seed, int64_t *n)
{
    int var = ir_var_find(&f->vars, name);
    CHECK(var != IR_NONE);
    *n = shape_count(&f->vars.list.data[var].shape);
    float *x = mem_alloc((size_t)*n * sizeof *x);
    model_init_var(f->m, var, x, seed);
    return x;
}

static void check_moments(const float *x, int64_t n, double mean, double deviation, double bound)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        CHECK(fabs((double)x[i]) <= bound);
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
    }
    double m = sum / (double)n, s = sqrt(squares / (double)n - m * m);
    CHECK_NEAR(m, mean, 5 * deviation / sqrt((double)n));
    CHECK_NEAR(s / deviation, 1, 5 / sqrt((double)n));
}

TEST(starting_values, "starting values have PyTorch's distributions")
{
    struct fixture f;
    int64_t n;
    CHECK_OK(make(&f, model_default_layers()), &f.e);
    static const struct {
        const char *name;
        double fan_in;
    } rows[] = {
        {"layers.l1.weight", 3136},
        {"layers.l1.bias", 3136},
        {"layers.c2.weight", 288},
        {"layers.c2.bias", 288},
        {"layers.c1.weight", 9}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double bound = 1 / sqrt(rows[i].fan_in);
        float *x = drawn(&f, rows[i].name, 7, &n);
        check_moments(x, n, 0, bound / sqrt(3), bound * (1 + 1e-7));
        mem_free(x);
    }
    drop(&f);
    /* A transposed convolution counts its outputs: 16 / 2 * 3 * 5. */
    CHECK_OK(
        make_quoted(
            &f, ONE("ConvTranspose2d",
                    "'in_channels':64,'out_channels':16,'kernel_size':[3,5],'groups':2")),
        &f.e);
    float *x = drawn(&f, "layers.l.weight", 7, &n);
    CHECK_EQ(n, 64 * 8 * 15);
    check_moments(x, n, 0, 1 / sqrt(120.0 * 3), 1 / sqrt(120.0) * (1 + 1e-7));
    mem_free(x);
    drop(&f);
}

TEST(starting_values_of_tables, "Embedding starts normal with a zero padding row; norms at 1 and 0")
{
    struct fixture f;
    int64_t n;
    CHECK_OK(
        make_quoted(
            &f, ONE("Embedding", "'num_embeddings':300,'embedding_dim':50,'padding_idx':-2")),
        &f.e);
    float *x = drawn(&f, "layers.l.weight", 3, &n);
    for (int i = 0; i < 50; i++)
        CHECK(x[298 * 50 + i] == 0 && x[299 * 50 + i] != 0 && x[297 * 50 + i] != 0);
    check_moments(x, 298 * 50, 0, 1, 7);
    mem_free(x);
    drop(&f);
    CHECK_OK(make_quoted(&f, ONE("BatchNorm2d", "'num_features':2")), &f.e);
    static const float want[4] = {1, 0, 0, 1};
    for (int i = 0; i < 4; i++) {
        float got[2];
        model_init_var(f.m, model_state_var(f.m, i), got, 1);
        CHECK(got[0] == want[i] && got[1] == want[i]);
    }
    int64_t batches = 5;
    model_init_var(f.m, model_state_var(f.m, 4), &batches, 1);
    CHECK_EQ(batches, 0);
    drop(&f);
}

TEST(starting_values_follow_names, "a starting value depends on the seed and its name alone")
{
    struct fixture f, g;
    int64_t n;
#define L "{'id':'l','type':'Linear','params':{'in_features':4,'out_features':8}},"
#define M "{'id':'m','type':'Linear','params':{'in_features':8,'out_features':8}},"
    CHECK_OK(make_quoted(&f, DOCUMENT(L M, IN("l") "," EDGE("l", "m") "," OUT("m"))), &f.e);
    CHECK_OK(make_quoted(&g, DOCUMENT(M L, IN("l") "," EDGE("l", "m") "," OUT("m"))), &g.e);
    float *a = drawn(&f, "layers.m.weight", 9, &n), *b = drawn(&g, "layers.m.weight", 9, &n);
    float *c = drawn(&f, "layers.m.weight", 10, &n);
    CHECK(memcmp(a, b, (size_t)n * sizeof *a) == 0);
    CHECK(memcmp(a, c, (size_t)n * sizeof *a) != 0);
    mem_free(a);
    mem_free(b);
    mem_free(c);
    drop(&f);
    drop(&g);
}

TEST(deep_documents, "thousands of layers need no deep stack")
{
    struct fixture f;
    struct str s;
    str_init(&s);
    str_add(
        &s, "{\"version\":2,\"nodes\":[{\"id\":\"in\",\"type\":\"Input\",\"ports\":[{\"id\":"
            "\"a\",\"name\":\"x\"}]},{\"id\":\"out\",\"type\":\"Output\",\"ports\":[{\"id\":"
            "\"b\",\"name\":\"y\"}]}");
    enum { N = 3000 };
    for (int i = 0; i < N; i++)
        str_printf(&s, ",{\"id\":\"r%d\",\"type\":\"ReLU\"}", i);
    str_add(&s, "],\"edges\":[{\"source\":\"in\",\"sourceHandle\":\"a\",\"target\":\"r0\"}");
    for (int i = 1; i < N; i++) /* backwards: from the last to the first */
        str_printf(&s, ",{\"source\":\"r%d\",\"target\":\"r%d\"}", i == 1 ? 0 : N - i + 1, N - i);
    str_add(&s, ",{\"source\":\"r1\",\"target\":\"out\",\"targetHandle\":\"b\"}]}");
    CHECK_OK(make(&f, s.data), &f.e);
    drop(&f);
    str_release(&s);
}
