/* adapter_test.c - attaching adapters: what becomes a variable, what is frozen, what is refused. */
#include "nn/adapter.h"

#include "nn/transformer.h"

#include "test.h"

#include <math.h>
#include <string.h>

static const char layers[] =
    "{\"version\":2,\"nodes\":[{\"id\":\"in\",\"type\":\"Input\",\"ports\":[{\"id\":\"x\",\"name\":"
    "\"x\"}]},"
    "{\"id\":\"l1\",\"type\":\"Linear\",\"params\":{\"in_features\":64,\"out_features\":32}},"
    "{\"id\":\"n\",\"type\":\"LayerNorm\",\"params\":{\"normalized_shape\":[32]}},"
    "{\"id\":\"l2\",\"type\":\"Linear\",\"params\":{\"in_features\":32,\"out_features\":8}},"
    "{\"id\":\"out\",\"type\":\"Output\",\"ports\":[{\"id\":\"y\",\"name\":\"y\"}]}],"
    "\"edges\":[{\"source\":\"in\",\"sourceHandle\":\"x\",\"target\":\"l1\"},{\"source\":\"l1\","
    "\"target\":\"n\"},{\"source\":\"n\",\"target\":\"l2\"},{\"source\":\"l2\",\"target\":\"out\","
    "\"targetHandle\":\"y\"}]}";

struct fixture {
    struct ir_vars vars;
    struct model *m;
    struct err e;
};

static void open_layers(struct fixture *f)
{
    *f = (struct fixture){0};
    ir_vars_init(&f->vars);
    CHECK_OK(model_from_layers(layers, "model", &f->vars, &f->m, &f->e), &f->e);
}

static void open_llama(struct fixture *f, bool tied)
{
    struct transformer_config c = {
        .family = FAMILY_LLAMA,
        .vocab = 96,
        .d_model = 32,
        .layers = 2,
        .heads = 4,
        .kv_heads = 2,
        .head_dim = 8,
        .d_ff = 64,
        .positions = 32,
        .position_kind = POSITIONS_ROPE,
        .rope = {.theta = 10000},
        .activation = ACTIVATION_SILU,
        .rms_norm = true,
        .norm_eps = 1e-5,
        .causal = true,
        .pre_norm = true,
        .gated = true,
        .final_norm = true,
        .head = true,
        .tied = tied,
        .prefixed = true,
        .init_std = 0.02};
    *f = (struct fixture){0};
    ir_vars_init(&f->vars);
    CHECK_OK(transformer_make(&c, "model", &f->vars, &f->m, &f->e), &f->e);
}

static void close_fixture(struct fixture *f)
{
    model_free(f->m);
    ir_vars_release(&f->vars);
}

static struct adapter_config lora(const char *targets)
{
    return (struct adapter_config){.rank = 4, .alpha = 8, .targets = targets};
}

static const struct ir_var *var_named(const struct fixture *f, const char *name)
{
    int v = ir_var_find(&f->vars, name);
    if (v == IR_NONE)
        test_fail(__FILE__, __LINE__, "no variable \"%s\"", name);
    return &f->vars.list.data[v];
}

TEST(adapters_are_variables, "L3: A is [rank, in], B [out, rank]; the rest is frozen")
{
    struct fixture f;
    struct adapter_config c = lora("all-linear");
    open_layers(&f);
    CHECK_OK(model_adapt(f.m, &c, &f.e), &f.e);
    CHECK_EQ(model_adapter_count(f.m), 2);
    struct shape a = var_named(&f, "layers.l1.lora_A.weight")->shape;
    struct shape b = var_named(&f, "layers.l1.lora_B.weight")->shape;
    CHECK(a.rank == 2 && a.dim[0] == 4 && a.dim[1] == 64);
    CHECK(b.rank == 2 && b.dim[0] == 32 && b.dim[1] == 4);
    CHECK_EQ(model_trainable_count(f.m), 4 * (64 + 32) + 4 * (32 + 8));
    CHECK(!var_named(&f, "layers.l1.weight")->trainable);
    CHECK(!var_named(&f, "layers.n.weight")->trainable);
    CHECK_NEAR(model_adapter_at(f.m, 0)->scale, 2, 0);
    close_fixture(&f);
    c.rslora = true;
    open_layers(&f);
    CHECK_OK(model_adapt(f.m, &c, &f.e), &f.e);
    CHECK_NEAR(model_adapter_at(f.m, 0)->scale, 4, 0);
    close_fixture(&f);
}

TEST(adapters_start, "L3: A starts uniform in 1/sqrt(in), B with zeros")
{
    struct fixture f;
    struct adapter_config c = lora("l1");
    float a[4 * 64], b[32 * 4];
    double largest = 0;
    open_layers(&f);
    CHECK_OK(model_adapt(f.m, &c, &f.e), &f.e);
    const struct adapter *l = model_adapter_at(f.m, 0);
    model_init_var(f.m, l->a, a, 1);
    model_init_var(f.m, l->b, b, 1);
    for (int i = 0; i < 4 * 64; i++)
        largest = fmax(largest, fabs((double)a[i]));
    CHECK(largest <= 0.125 && largest > 0.11);
    for (int i = 0; i < 32 * 4; i++)
        CHECK(b[i] == 0);
    close_fixture(&f);
}

static int matched(const char *targets)
{
    struct fixture f;
    struct adapter_config c = lora(targets);
    open_llama(&f, false);
    int n = model_adapt(f.m, &c, &f.e) == ST_OK ? model_adapter_count(f.m) : -1;
    close_fixture(&f);
    return n;
}

TEST(targets_as_peft, "L3: a name or the end of one after a dot; all-linear leaves the head out")
{
    CHECK_EQ(matched("q_proj, v_proj"), 4);
    CHECK_EQ(matched("model.layers.1.mlp.up_proj"), 1);
    CHECK_EQ(matched("self_attn.q_proj"), 2);
    CHECK_EQ(matched("all-linear"), 14);
    CHECK_EQ(matched("lm_head"), 1);
    CHECK_EQ(matched("proj"), -1);
    CHECK_EQ(matched("embed_tokens"), -1);
    CHECK_EQ(matched(""), -1);
}

TEST(targets_refused, "L3 case-T78: a head tied to the embedding takes no adapter, and says why")
{
    struct fixture f;
    struct adapter_config c = lora("lm_head");
    open_llama(&f, true);
    CHECK_EQ(model_adapt(f.m, &c, &f.e), ST_INVALID);
    CHECK(strstr(f.e.text, "\"lm_head\" shares its weight"));
    close_fixture(&f);
    c = lora("nothing");
    open_layers(&f);
    CHECK_EQ(model_adapt(f.m, &c, &f.e), ST_INVALID);
    CHECK(strstr(f.e.hint, "layers.l1") && strstr(f.e.text, "targets"));
    c = lora("all-linear");
    c.rank = 0;
    CHECK_EQ(model_adapt(f.m, &c, &f.e), ST_INVALID);
    CHECK(strstr(f.e.text, "rank") != NULL);
    close_fixture(&f);
}

TEST(quantised_base, "L3: linear weights become codes and scales; head, norms, embeddings stay")
{
    for (int i = 0; i < 4; i++) {
        struct fixture f;
        struct adapter_config c = lora("q_proj");
        c.base = i & 1 ? QUANT_NF4 : QUANT_INT8;
        c.double_quant = i & 2;
        open_llama(&f, false);
        int64_t all = model_parameter_count(f.m);
        CHECK_OK(model_adapt(f.m, &c, &f.e), &f.e);
        const struct ir_var *w = var_named(&f, "model.layers.0.mlp.up_proj.weight");
        CHECK(w->dtype == DT_U8 && w->shape.dim[0] == 32 * 64 / (i & 1 ? 2 : 1));
        const struct ir_var *s = var_named(&f, "model.layers.0.mlp.up_proj.weight.absmax");
        CHECK(s->dtype == (i & 2 ? DT_U8 : DT_F32) && s->shape.dim[0] == 32);
        CHECK_EQ(var_named(&f, "lm_head.weight")->dtype, DT_F32);
        CHECK_EQ(var_named(&f, "model.embed_tokens.weight")->dtype, DT_F32);
        CHECK_EQ(model_parameter_count(f.m), all + 2 * 2 * 4 * 32);
        CHECK(!model_has_batch_stats(f.m));
        close_fixture(&f);
    }
}
