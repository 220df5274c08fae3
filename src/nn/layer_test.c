/* layer_test.c - each layer type's forward pass: shapes, operators, errors. The numbers are
 * compared with PyTorch by tests/parity/test_layers.py. */
#include "nn/layer.h"
#include "nn/model.h"

#include "base/str.h"
#include "test.h"

#include <string.h>

/* A model of one layer "l" with `sources` copies of its input, run on one input. */
struct run {
    struct ir_vars vars;
    struct model *m;
    struct ir_program *p;
    struct err e;
    int x, y;
    enum status status;
};

static void document(struct str *s, const char *type, const char *params, int sources)
{
    str_printf(
        s,
        "{'version':2,'nodes':[{'id':'in','type':'Input','ports':[{'id':'a','name':'x'}]},"
        "{'id':'l','type':'%s','params':{%s}},"
        "{'id':'out','type':'Output','ports':[{'id':'b','name':'y'}]}],'edges':["
        "{'source':'l','target':'out','targetHandle':'b'}",
        type, params);
    for (int i = 0; i < sources; i++)
        str_add(s, ",{'source':'in','sourceHandle':'a','target':'l'}");
    str_add(s, "]}");
    for (char *c = s->data; *c; c++)
        *c = *c == '\'' ? '"' : *c;
}

static void
start(struct run *r, const char *type, const char *params, struct shape input, bool training)
{
    const struct layer_type *t;
    struct str s;
    memset(r, 0, sizeof *r);
    r->y = IR_NONE;
    ir_vars_init(&r->vars);
    str_init(&s);
    CHECK_OK(layer_type_find(type, &t, &r->e), &r->e);
    document(&s, type, params, t->inputs_min);
    CHECK_OK(model_from_layers(s.data, "model", &r->vars, &r->m, &r->e), &r->e);
    str_release(&s);
    r->p = ir_program_new("test", &r->vars);
    r->x = ir_input(r->p, "input", model_input_dtype(r->m), input);
    int rng = training ? ir_input(r->p, "rng", DT_I64, SHAPE(2)) : IR_NONE;
    r->status = model_forward(r->m, r->p, &r->x, 1, training, rng, &r->y, &r->e);
}

static void stop(struct run *r)
{
    ir_program_free(r->p);
    model_free(r->m);
    ir_vars_release(&r->vars);
}

struct row {
    const char *type, *params;
    struct shape input, output;
};

#define S(...)                                                                                     \
    {                                                                                              \
        (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),                                 \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

/* Every row with its batch, then with an empty one (evaluation: statistics need samples). */
static void check_shapes(const struct row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        for (int empty = 0; empty < 2; empty++) {
            struct row row = rows[i];
            struct run r;
            if (empty)
                row.input.dim[0] = row.output.dim[0] = 0;
            start(&r, row.type, row.params, row.input, !empty);
            if (r.status != ST_OK)
                test_fail(__FILE__, __LINE__, "%s {%s}: %s", row.type, row.params, r.e.text);
            struct shape got = ir_value_at(r.p, r.y)->shape;
            if (!shape_eq(&got, &row.output))
                test_fail(
                    __FILE__, __LINE__, "%s {%s} gives %s", row.type, row.params,
                    shape_text(&got, (char[192]){0}, 192));
            CHECK_OK(ir_verify(r.p, &r.e), &r.e);
            stop(&r);
        }
    }
}
#define SHAPES(rows) check_shapes(rows, sizeof rows / sizeof *rows)

TEST(conv_shapes, "convolutions give PyTorch's shapes")
{
    static const struct row rows[] = {
        {"Conv2d", "'in_channels':3,'out_channels':8,'kernel_size':3", S(2, 3, 9, 8),
         S(2, 8, 7, 6)},
        {"Conv2d",
         "'in_channels':3,'out_channels':8,'kernel_size':[3,5],'stride':[2,1],'padding':[1,2]",
         S(2, 3, 9, 8), S(2, 8, 5, 8)},
        {"Conv2d",
         "'in_channels':4,'out_channels':8,'kernel_size':3,'groups':4,'dilation':2,'bias':false",
         S(2, 4, 9, 8), S(2, 8, 5, 4)},
        {"Conv2d",
         "'in_channels':4,'out_channels':8,'kernel_size':[4,3],'padding':'same','dilation':[3,1]",
         S(2, 4, 9, 8), S(2, 8, 9, 8)},
        {"Conv2d",
         "'in_channels':4,'out_channels':8,'kernel_size':3,'padding':'valid','padding_mode':'"
         "zeros'",
         S(2, 4, 9, 8), S(2, 8, 7, 6)},
        {"Conv1d", "'in_channels':4,'out_channels':8,'kernel_size':3,'stride':2,'padding':[1]",
         S(2, 4, 9), S(2, 8, 5)}};
    SHAPES(rows);
}

TEST(conv_transpose_shapes, "transposed convolutions give PyTorch's shapes")
{
    static const struct row rows[] = {
        {"ConvTranspose2d", "'in_channels':6,'out_channels':4,'kernel_size':3", S(2, 6, 5, 4),
         S(2, 4, 7, 6)},
        {"ConvTranspose2d",
         "'in_channels':6,'out_channels':4,'kernel_size':3,'stride':2,'padding':1,'output_padding':"
         "1,'groups':2",
         S(2, 6, 5, 4), S(2, 4, 10, 8)},
        {"ConvTranspose1d", "'in_channels':6,'out_channels':4,'kernel_size':3,'stride':3",
         S(2, 6, 5), S(2, 4, 15)}};
    SHAPES(rows);
}

TEST(norm_shapes, "normalisations keep the shape, with and without weights")
{
    static const struct row rows[] = {
        {"BatchNorm2d", "'num_features':6", S(4, 6, 5, 3), S(4, 6, 5, 3)},
        {"BatchNorm2d", "'num_features':6,'affine':false,'momentum':null", S(4, 6, 5, 3),
         S(4, 6, 5, 3)},
        {"BatchNorm1d", "'num_features':6", S(4, 6), S(4, 6)},
        {"BatchNorm1d", "'num_features':6", S(4, 6, 7), S(4, 6, 7)},
        {"InstanceNorm2d", "'num_features':6", S(4, 6, 5, 3), S(4, 6, 5, 3)},
        {"InstanceNorm2d", "'num_features':6,'affine':true", S(4, 6, 5, 3), S(4, 6, 5, 3)},
        {"LayerNorm", "'normalized_shape':7", S(4, 6, 7), S(4, 6, 7)},
        {"LayerNorm", "'normalized_shape':[6,7],'elementwise_affine':false", S(4, 6, 7),
         S(4, 6, 7)},
        {"GroupNorm", "'num_groups':3,'num_channels':6,'eps':1e-3", S(4, 6, 7, 2), S(4, 6, 7, 2)}};
    SHAPES(rows);
}

TEST(pool_shapes, "poolings give PyTorch's shapes")
{
    static const struct row rows[] = {
        {"MaxPool2d", "'kernel_size':2", S(2, 3, 9, 8), S(2, 3, 4, 4)},
        {"MaxPool2d", "'kernel_size':3,'stride':2,'padding':1,'ceil_mode':true", S(2, 3, 9, 8),
         S(2, 3, 5, 5)},
        {"MaxPool2d", "'kernel_size':2,'stride':null,'dilation':2,'return_indices':false",
         S(2, 3, 9, 8), S(2, 3, 4, 3)},
        {"MaxPool1d", "'kernel_size':2", S(2, 3, 9), S(2, 3, 4)},
        {"AvgPool2d", "'kernel_size':[2,3],'padding':[1,0],'divisor_override':3", S(2, 3, 9, 8),
         S(2, 3, 5, 2)},
        {"AvgPool1d", "'kernel_size':3,'stride':1,'padding':1,'count_include_pad':false",
         S(2, 3, 9), S(2, 3, 9)},
        {"AdaptiveAvgPool2d", "'output_size':1", S(2, 3, 9, 8), S(2, 3, 1, 1)},
        {"AdaptiveAvgPool2d", "'output_size':[null,3]", S(2, 3, 9, 8), S(2, 3, 9, 3)},
        {"AdaptiveAvgPool1d", "'output_size':4", S(2, 3, 9), S(2, 3, 4)},
        {"AdaptiveMaxPool2d", "'output_size':[2,3]", S(2, 3, 9, 8), S(2, 3, 2, 3)},
        {"AdaptiveMaxPool1d", "'output_size':2", S(2, 3, 9), S(2, 3, 2)}};
    SHAPES(rows);
}

TEST(linear_shapes, "Linear works on the last dimension")
{
    static const struct row rows[] = {
        {"Linear", "'in_features':7,'out_features':3", S(4, 7), S(4, 3)},
        {"Linear", "'in_features':7,'out_features':3,'bias':false", S(4, 5, 7), S(4, 5, 3)}};
    SHAPES(rows);
}

TEST(view_shapes, "Flatten, Reshape and SelectIndex keep the batch")
{
    static const struct row rows[] = {
        {"Flatten", "", S(4, 3, 5, 2), S(4, 30)},
        {"Flatten", "'start_dim':2,'end_dim':3", S(4, 3, 5, 2), S(4, 3, 10)},
        {"Reshape", "'shape':'5, -1'", S(4, 3, 5, 2), S(4, 5, 6)},
        {"Reshape", "'shape':[30]", S(4, 3, 5, 2), S(4, 30)},
        {"SelectIndex", "", S(4, 3, 5, 2), S(4, 5, 2)},
        {"SelectIndex", "'dim':-1,'index':-1", S(4, 3, 5, 2), S(4, 3, 5)}};
    SHAPES(rows);
}

TEST(activations, "every activation keeps the shape; its parameters are ignored")
{
    int seen = 0;
    for (int i = 0; i < layer_type_count(); i++) {
        const struct layer_type *t = layer_type_at(i);
        struct run r;
        struct shape s = SHAPE(4, 3, 5, 2);
        if (!str_eq(t->family, "activation") && !str_eq(t->family, "softmax") &&
            !str_eq(t->family, "prelu"))
            continue;
        start(&r, t->name, "'negative_slope':'odd','dim':7", s, true);
        CHECK_OK(r.status, &r.e);
        CHECK(shape_eq(&ir_value_at(r.p, r.y)->shape, &s));
        seen++;
        stop(&r);
    }
    CHECK_EQ(seen, 12);
    struct run r;
    start(&r, "LeakyReLU", "", SHAPE(2, 3), true);
    CHECK(r.p->ops.n == 1 && r.p->ops.data[0].attr.ew.a == 0.01);
    stop(&r);
    start(&r, "ELU", "", SHAPE(2, 3), true);
    CHECK(r.p->ops.n == 1 && r.p->ops.data[0].attr.ew.a == 1.0);
    stop(&r);
}

TEST(merges, "N1: merges take their operands in the order of the edges")
{
    static const struct row rows[] = {
        {"Add", "", S(4, 3, 5), S(4, 3, 5)},      {"Multiply", "", S(4, 3, 5), S(4, 3, 5)},
        {"Mean", "", S(4, 3, 5), S(4, 3, 5)},     {"Subtract", "", S(4, 3, 5), S(4, 3, 5)},
        {"Concat", "", S(4, 3, 5), S(4, 6, 5)},   {"Concat", "'dim':-1", S(4, 3, 5), S(4, 3, 10)},
        {"Stack", "", S(4, 3, 5), S(4, 2, 3, 5)}, {"Stack", "'dim':-1", S(4, 3, 5), S(4, 3, 5, 2)}};
    SHAPES(rows);
    struct ir_vars vars;
    struct model *m;
    struct err e = {0};
    ir_vars_init(&vars);
    CHECK_OK(
        model_from_layers(
            "{\"version\":2,\"nodes\":[{\"id\":\"o\",\"type\":\"Output\",\"ports\":[{\"id\":\"1\","
            "\"name\":\"y\"}]},{\"id\":\"s\",\"type\":\"Subtract\"},{\"id\":\"i\",\"type\":"
            "\"Input\",\"ports\":[{\"id\":\"1\",\"name\":\"u\"},{\"id\":\"2\",\"name\":\"v\"}]}],"
            "\"edges\":[{\"source\":\"i\",\"sourceHandle\":\"2\",\"target\":\"s\"},{\"source\":"
            "\"i\",\"sourceHandle\":\"1\",\"target\":\"s\"},{\"source\":\"s\",\"target\":\"o\","
            "\"targetHandle\":\"1\"}]}",
            "model", &vars, &m, &e),
        &e);
    struct ir_program *p = ir_program_new("test", &vars);
    int in[2] = {ir_input(p, "u", DT_F32, SHAPE(2, 3)), ir_input(p, "v", DT_F32, SHAPE(2, 3))};
    int y;
    CHECK_OK(model_forward(m, p, in, 2, true, IR_NONE, &y, &e), &e);
    CHECK(p->ops.n == 1 && p->ops.data[0].in[0] == in[1] && p->ops.data[0].in[1] == in[0]);
    CHECK(model_forward(m, p, in, 1, true, IR_NONE, &y, &e) == ST_INVALID);
    ir_program_free(p);
    model_free(m);
    ir_vars_release(&vars);
}

TEST(recurrent_shapes, "recurrent layers give PyTorch's shapes, batch first or not")
{
    static const struct row rows[] = {
        {"LSTM", "'input_size':3,'hidden_size':8,'batch_first':true", S(4, 5, 3), S(4, 5, 8)},
        {"LSTM",
         "'input_size':3,'hidden_size':8,'num_layers':2,'bidirectional':true,"
         "'batch_first':true,'dropout':0.5",
         S(4, 5, 3), S(4, 5, 16)},
        {"GRU", "'input_size':3,'hidden_size':8,'num_layers':3,'batch_first':true", S(4, 5, 3),
         S(4, 5, 8)},
        {"RNN", "'input_size':3,'hidden_size':8,'nonlinearity':'relu','batch_first':true",
         S(4, 1, 3), S(4, 1, 8)}};
    SHAPES(rows);
    struct run r;
    start(&r, "LSTM", "'input_size':3,'hidden_size':8", SHAPE(5, 4, 3), true);
    struct shape want = SHAPE(5, 4, 8);
    CHECK(r.status == ST_OK && shape_eq(&ir_value_at(r.p, r.y)->shape, &want));
    CHECK_STR(r.vars.list.data[0].name, "layers.l.lstm.weight_ih_l0");
    stop(&r);
}

TEST(attention_shapes, "attention keeps shapes; each layer of a stack is a block")
{
    static const struct row rows[] = {
        {"MultiHeadAttention", "'embed_dim':8,'num_heads':2", S(4, 5, 8), S(4, 5, 8)},
        {"MultiHeadAttention", "'embed_dim':8,'num_heads':4,'kv_heads':2,'rotary':true", S(4, 5, 8),
         S(4, 5, 8)},
        {"TransformerEncoder", "'d_model':8,'nhead':2,'dim_feedforward':6,'num_layers':2",
         S(4, 5, 8), S(4, 5, 8)},
        {"TransformerDecoder", "'d_model':8,'nhead':4,'dim_feedforward':6,'norm_first':true",
         S(4, 5, 8), S(4, 5, 8)}};
    SHAPES(rows);
    struct run r;
    start(
        &r, "TransformerEncoder", "'d_model':8,'nhead':2,'dim_feedforward':6,'num_layers':3",
        SHAPE(4, 5, 8), true);
    int last = IR_NONE;
    for (size_t i = 0; i < r.p->ops.n; i++) {
        int block = r.p->ops.data[i].block;
        CHECK(block == last || block == last + 1);
        last = block;
    }
    CHECK(last == 2);
    CHECK_STR(r.vars.list.data[12].name, "layers.l.encoder.layers.1.self_attn.in_proj_weight");
    stop(&r);
}

/* Tokens [4, 5] through an Embedding to a layer that reads what `reads` says. */
static enum status masked(struct run *r, const char *type, const char *params, const char *reads)
{
    struct str s;
    memset(r, 0, sizeof *r);
    r->y = IR_NONE;
    ir_vars_init(&r->vars);
    str_init(&s);
    str_printf(
        &s,
        "{'version':2,'nodes':[{'id':'in','type':'Input','ports':[{'id':'a','name':'x'}]},"
        "{'id':'e','type':'Embedding','params':{'num_embeddings':9,'embedding_dim':8}},"
        "{'id':'m','type':'PaddingMask','params':{'padding_idx':3}},"
        "{'id':'l','type':'%s','params':{%s}},"
        "{'id':'out','type':'Output','ports':[{'id':'b','name':'y'}]}],'edges':["
        "{'source':'in','sourceHandle':'a','target':'e'},"
        "{'source':'in','sourceHandle':'a','target':'m'}%s,"
        "{'source':'l','target':'out','targetHandle':'b'}]}",
        type, params, reads);
    for (char *c = s.data; *c; c++)
        *c = *c == '\'' ? '"' : *c;
    CHECK_OK(model_from_layers(s.data, "model", &r->vars, &r->m, &r->e), &r->e);
    str_release(&s);
    CHECK(model_input_dtype(r->m) == DT_I64);
    r->p = ir_program_new("test", &r->vars);
    r->x = ir_input(r->p, "input", DT_I64, SHAPE(4, 5));
    r->status = model_forward(r->m, r->p, &r->x, 1, false, IR_NONE, &r->y, &r->e);
    return r->status;
}

static int attentions_with_mask(const struct ir_program *p)
{
    int n = 0;
    for (size_t i = 0; i < p->ops.n; i++) {
        const struct ir_op *op = &p->ops.data[i];
        n += op->code == OP_ATTENTION && op->n_in > 3 && op->in[3] != IR_NONE;
    }
    return n;
}

#define E ",{'source':'e','target':'l'}"
#define M ",{'source':'m','target':'l'}"
TEST(padding_masks, "a PaddingMask of tokens goes to attention, encoders and decoders")
{
    static const struct {
        const char *type, *params, *reads;
        int masked;
    } rows[] = {
        {"MultiHeadAttention", "'embed_dim':8,'num_heads':2", E M, 1},
        {"MultiHeadAttention", "'embed_dim':8,'num_heads':2", E E E M, 1},
        {"MultiHeadAttention", "'embed_dim':8,'num_heads':2", E E E, 0},
        {"TransformerEncoder", "'d_model':8,'nhead':2,'num_layers':3,'dim_feedforward':4", E M, 3},
        {"TransformerDecoder", "'d_model':8,'nhead':2,'num_layers':2,'dim_feedforward':4", E E M,
         2},
        {"TransformerDecoder", "'d_model':8,'nhead':2,'num_layers':2,'dim_feedforward':4", E E M M,
         4}};
    struct run r;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        CHECK_OK(masked(&r, rows[i].type, rows[i].params, rows[i].reads), &r.e);
        CHECK_OK(ir_verify(r.p, &r.e), &r.e);
        CHECK_EQ(attentions_with_mask(r.p), rows[i].masked);
        stop(&r);
    }
    CHECK_EQ(masked(&r, "MultiHeadAttention", "'embed_dim':8,'num_heads':2", E E), ST_INVALID);
    CHECK(strstr(r.e.text, "expected a padding mask of shape [4, 5] in input 2, got [4, 5, 8]"));
    stop(&r);
    CHECK_EQ(masked(&r, "PaddingMask", "", E), ST_INVALID);
    CHECK(strstr(r.e.text, "layer \"l\" (PaddingMask): expected token numbers, got float32"));
    stop(&r);
}

TEST(block_shapes, "RMSNorm, SwiGLU, PositionalEncoding and MoE keep the shape of their input")
{
    static const struct row rows[] = {
        {"RMSNorm", "'normalized_shape':8", S(4, 5, 8), S(4, 5, 8)},
        {"SwiGLU", "'in_features':8,'hidden_features':12", S(4, 5, 8), S(4, 5, 8)},
        {"SwiGLU", "'in_features':8,'hidden_features':12,'out_features':3", S(4, 8), S(4, 3)},
        {"PositionalEncoding", "'d_model':8,'dropout':0.1", S(4, 5, 8), S(4, 5, 8)},
        {"PositionalEncoding", "'d_model':7,'mode':'learnable','max_len':5", S(4, 5, 7),
         S(4, 5, 7)},
        {"MoE", "'hidden_dim':8,'expert_hidden_dim':6", S(4, 5, 8), S(4, 5, 8)}};
    SHAPES(rows);
}

TEST(dropout_draws_only_in_training, "Dropout is nothing in evaluation, and has its own stream")
{
    struct run r;
    start(&r, "Dropout", "'p':0.25,'inplace':true", SHAPE(4, 3), false);
    CHECK(r.status == ST_OK && r.y == r.x && r.p->ops.n == 0);
    CHECK(model_has_dropout(r.m));
    stop(&r);
    start(&r, "Dropout", "'p':0.25", SHAPE(4, 3), true);
    CHECK(r.status == ST_OK && r.p->ops.n == 1);
    CHECK(r.p->ops.data[0].attr.dropout.p == 0.25 && r.p->ops.data[0].attr.dropout.stream != 0);
    stop(&r);
    start(&r, "Dropout", "'p':0", SHAPE(4, 3), true);
    CHECK(r.status == ST_OK && r.y == r.x && !model_has_dropout(r.m));
    stop(&r);
}

TEST(embedding_wants_indices, "a model that starts with an Embedding takes int64 indices")
{
    struct run r;
    struct shape want = SHAPE(4, 6, 5);
    start(&r, "Embedding", "'num_embeddings':9,'embedding_dim':5", SHAPE(4, 6), true);
    CHECK(model_input_dtype(r.m) == DT_I64);
    CHECK_OK(r.status, &r.e);
    CHECK(shape_eq(&ir_value_at(r.p, r.y)->shape, &want));
    int f = ir_input(r.p, "floats", DT_F32, SHAPE(4, 6)), y;
    CHECK(model_forward(r.m, r.p, &f, 1, true, IR_NONE, &y, &r.e) == ST_INVALID);
    CHECK(strstr(r.e.text, "layer \"l\" (Embedding)"));
    stop(&r);
    start(&r, "Linear", "'in_features':2,'out_features':1", SHAPE(4, 2), true);
    CHECK(model_input_dtype(r.m) == DT_F32);
    stop(&r);
}

TEST(
    shape_errors_name_the_layer,
    "an input that does not fit is refused with the layer's id and type")
{
    static const struct {
        const char *type, *params;
        struct shape input;
        const char *text;
    } rows[] = {
        {"Linear", "'in_features':8,'out_features':2", S(4, 7),
         "layer \"l\" (Linear): expected 8 features in the last dimension of the input, got [4, "
         "7]"},
        {"Conv2d", "'in_channels':3,'out_channels':8,'kernel_size':3", S(4, 1, 9, 9),
         "layer \"l\" (Conv2d): expected input with 3 channels, got 1"},
        {"Conv2d", "'in_channels':3,'out_channels':8,'kernel_size':5", S(4, 3, 4, 4),
         "kernel size cannot be greater than actual input size"},
        {"BatchNorm2d", "'num_features':8", S(4, 8),
         "layer \"l\" (BatchNorm2d): expected 4D input (got 2D input)"},
        {"BatchNorm2d", "'num_features':8", S(4, 7, 2, 2),
         "running_mean should contain 7 elements not 8"},
        {"BatchNorm1d", "'num_features':8", S(1, 8), "Expected more than 1 value per channel"},
        {"LayerNorm", "'normalized_shape':[2,3]", S(4, 3), "normalized_shape=[2, 3]"},
        {"GroupNorm", "'num_groups':2,'num_channels':8", S(4, 6, 2), "8 channels, got [4, 6, 2]"},
        {"MaxPool2d", "'kernel_size':3", S(4, 3, 2, 2), "too small"},
        {"Flatten", "'start_dim':5", S(4, 3), "range of [-2, 1], but got 5"},
        {"Reshape", "'shape':'4,-1'", S(4, 6), "shape [4, -1] is invalid"},
        {"SelectIndex", "'dim':3", S(4, 6), "dimension out of range"},
        {"SelectIndex", "'index':6", S(4, 6), "layer \"l\" (SelectIndex)"},
        {"LSTM", "'input_size':3,'hidden_size':8", S(4, 2, 5),
         "layer \"l\" (LSTM): expected 3 features in the last dimension of the input, got [4, 2, "
         "5]"},
        {"GRU", "'input_size':3,'hidden_size':8", S(4), "expected a 3-D input"},
        {"GRU", "'input_size':3,'hidden_size':8", S(0, 2, 3), "sequence length"},
        {"TransformerEncoder", "'d_model':8,'nhead':2", S(4, 2, 6), "expected 8 features"},
        {"PositionalEncoding", "'d_model':8,'max_len':4", S(2, 5, 8),
         "a sequence of 5 is longer than max_len, 4"},
        {"MoE", "'hidden_dim':8,'expert_hidden_dim':6", S(4, 5), "expected 8 features"},
        {"SwiGLU", "'in_features':8,'hidden_features':6", S(4, 5), "expected 8 features"},
        {"RMSNorm", "'normalized_shape':8", S(4, 5), "normalized_shape=[8]"},
        {"Concat", "'dim':9", S(4, 6), "dimension out of range"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct run r;
        start(&r, rows[i].type, rows[i].params, rows[i].input, true);
        if (r.status != ST_INVALID || !strstr(r.e.text, rows[i].text))
            test_fail(
                __FILE__, __LINE__, "%s {%s}: \"%s\"", rows[i].type, rows[i].params, r.e.text);
        CHECK_STR(r.e.node, "model");
        CHECK(strstr(r.e.text, "layer \"l\" (") == r.e.text);
        CHECK(r.y == IR_NONE);
        stop(&r);
    }
}

TEST(outputs_are_logits, "what the model puts out is counted as logits, operators by their layer")
{
    struct run r;
    start(&r, "Linear", "'in_features':8,'out_features':2", SHAPE(4, 8), true);
    CHECK(ir_value_at(r.p, ir_storage(r.p, r.y))->category == CATEGORY_LOGITS);
    CHECK_STR(r.vars.nodes.data[r.p->ops.data[0].node], "model/l");
    stop(&r);
    start(&r, "Flatten", "", SHAPE(4, 8), true); /* a view of the input */
    CHECK(ir_value_at(r.p, ir_storage(r.p, r.y))->category == CATEGORY_INPUTS);
    stop(&r);
}

/* The table is complete: every family has parameters whose defaults can be read, or none at all. */
TEST(layer_table, "every layer type has a test, and documented parameters")
{
    for (int i = 0; i < layer_type_count(); i++) {
        const struct layer_type *t = layer_type_at(i);
        struct layer_param row;
        CHECK(t->test && *t->test && t->torch && *t->torch);
        CHECK(layer_param_at(t->family, 0, &row));
        for (int k = 0; layer_param_at(t->family, k, &row); k++) {
            json_t *v = json_loads(*row.fallback ? row.fallback : "null", JSON_DECODE_ANY, NULL);
            CHECK(v != NULL);
            json_decref(v);
        }
    }
}
