/* transformer_test.c - a transformer's names, counts, starting values, provenance and refusals.
 * Numbers are compared with PyTorch in tests/parity/test_transformers.py. */
#include "nn/transformer.h"

#include "base/str.h"
#include "test.h"

#include <math.h>
#include <string.h>

struct fixture {
    struct ir_vars vars;
    struct model *m;
    struct err e;
};

static struct transformer_config small(void)
{
    return (struct transformer_config){
        .family = FAMILY_CAUSAL_LM,
        .vocab = 300,
        .d_model = 64,
        .layers = 2,
        .heads = 4,
        .kv_heads = 4,
        .head_dim = 16,
        .d_ff = 128,
        .positions = 16,
        .rope = {.theta = 10000},
        .norm_eps = 1e-5,
        .causal = true,
        .pre_norm = true,
        .fused_qkv = true,
        .qkv_bias = true,
        .out_bias = true,
        .mlp_bias = true,
        .final_norm = true,
        .head = true,
        .tied = true,
        .init_std = 0.02,
        .scaled_init = true};
}

static enum status make(struct fixture *f, const struct transformer_config *c)
{
    *f = (struct fixture){0};
    ir_vars_init(&f->vars);
    return transformer_make(c, "lm", &f->vars, &f->m, &f->e);
}

static void drop(struct fixture *f)
{
    model_free(f->m);
    ir_vars_release(&f->vars);
}

TEST(causal_lm_names, "N2: CausalLMModel has the reference's state names, in PyTorch's order")
{
    static const char *const names[] = {
        "tok_emb.weight",
        "pos_emb.weight",
        "blocks.0.norm1.weight",
        "blocks.0.norm1.bias",
        "blocks.0.attn.qkv.weight",
        "blocks.0.attn.qkv.bias",
        "blocks.0.attn.out_proj.weight",
        "blocks.0.attn.out_proj.bias",
        "blocks.0.norm2.weight",
        "blocks.0.norm2.bias",
        "blocks.0.mlp.fc1.weight",
        "blocks.0.mlp.fc1.bias",
        "blocks.0.mlp.fc2.weight",
        "blocks.0.mlp.fc2.bias",
        "norm_f.weight",
        "norm_f.bias",
        "lm_head.weight"};
    struct transformer_config c = small();
    struct fixture f;
    c.layers = 1;
    c.tied = false;
    CHECK_OK(make(&f, &c), &f.e);
    CHECK_EQ(model_state_count(f.m), sizeof names / sizeof *names);
    for (int i = 0; i < model_state_count(f.m); i++)
        CHECK_STR(f.vars.list.data[model_state_var(f.m, i)].name, names[i]);
    CHECK_EQ(model_alias_count(f.m), 0);
    drop(&f);
}

TEST(tied_head_is_one_tensor, "case-T78: a tied head is the embedding, under a second name")
{
    struct transformer_config c = small();
    struct fixture f;
    int var;
    CHECK_OK(make(&f, &c), &f.e);
    CHECK_EQ(model_alias_count(f.m), 1);
    CHECK_STR(model_alias(f.m, 0, &var), "lm_head.weight");
    CHECK_STR(f.vars.list.data[var].name, "tok_emb.weight");
    CHECK_EQ(ir_var_find(&f.vars, "lm_head.weight"), IR_NONE);
    drop(&f);
}

TEST(gpt2_counts, "GPT-2 124M and the node's default have their published numbers of parameters")
{
    struct transformer_config c = small();
    struct fixture f;
    c.vocab = 50257;
    c.d_model = 768;
    c.layers = 12;
    c.heads = c.kv_heads = 12;
    c.head_dim = 64;
    c.d_ff = 3072;
    c.positions = 1024;
    CHECK_OK(make(&f, &c), &f.e);
    CHECK_EQ(model_parameter_count(f.m), 124439808);
    drop(&f);
    c.family = FAMILY_GPT2;
    c.prefixed = true;
    CHECK_OK(make(&f, &c), &f.e);
    CHECK_EQ(model_parameter_count(f.m), 124439808);
    CHECK(ir_var_find(&f.vars, "transformer.h.11.mlp.c_proj.bias") != IR_NONE);
    drop(&f);
}

static double deviation(const struct fixture *f, const char *name, uint64_t seed)
{
    int var = ir_var_find(&f->vars, name);
    CHECK(var != IR_NONE);
    int64_t n = shape_count(&f->vars.list.data[var].shape);
    float *x = mem_alloc((size_t)n * sizeof *x);
    double sum = 0;
    model_init_var(f->m, var, x, seed);
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    mem_free(x);
    return sqrt(sum / (double)n);
}

TEST(
    starting_values,
    "N2: normal(0, init_std); out_proj and fc2 divided by sqrt(2 n_layers); norms 1")
{
    struct transformer_config c = small();
    struct fixture f;
    c.init_std = 0.5;
    CHECK_OK(make(&f, &c), &f.e);
    CHECK_NEAR(deviation(&f, "tok_emb.weight", 1), 0.5, 0.01);
    CHECK_NEAR(deviation(&f, "blocks.1.attn.qkv.weight", 1), 0.5, 0.01);
    CHECK_NEAR(deviation(&f, "blocks.1.attn.out_proj.weight", 1), 0.25, 0.01);
    CHECK_NEAR(deviation(&f, "blocks.0.mlp.fc2.weight", 1), 0.25, 0.01);
    CHECK_NEAR(deviation(&f, "blocks.0.mlp.fc1.bias", 1), 0, 0);
    CHECK_NEAR(deviation(&f, "norm_f.weight", 1), 1, 0);
    drop(&f);
}

TEST(seed_of_the_node, "N2: seed 0 is the run's; another decides alone")
{
    struct transformer_config c = small();
    struct fixture f;
    CHECK_OK(make(&f, &c), &f.e);
    CHECK(deviation(&f, "tok_emb.weight", 1) != deviation(&f, "tok_emb.weight", 2));
    drop(&f);
    c.seed = 7;
    CHECK_OK(make(&f, &c), &f.e);
    CHECK_NEAR(deviation(&f, "tok_emb.weight", 1), deviation(&f, "tok_emb.weight", 2), 0);
    drop(&f);
}

/* ---- programs ---- */

static struct ir_program *forward(struct fixture *f, int64_t seq, bool training, int *out)
{
    struct ir_program *p = ir_program_new("test", &f->vars);
    int in = ir_input(p, "input", DT_I64, SHAPE(2, seq));
    int rng = training ? ir_input(p, "rng", DT_I64, SHAPE(2)) : IR_NONE;
    enum status st = model_forward(f->m, p, &in, 1, training, rng, out, &f->e);
    CHECK(st == ST_OK || f->e.text[0]);
    return p;
}

TEST(
    blocks_are_marked, "operators carry their block and their node, for checkpointing and the bill")
{
    struct transformer_config c = small();
    struct fixture f;
    int out, in_block[2] = {0}, outside = 0, attention = 0;
    CHECK_OK(make(&f, &c), &f.e);
    struct ir_program *p = forward(&f, 8, true, &out);
    CHECK_OK(ir_verify(p, &f.e), &f.e);
    for (size_t i = 0; i < p->ops.n; i++) {
        const struct ir_op *op = &p->ops.data[i];
        const char *node = f.vars.nodes.data[op->node];
        CHECK(str_starts(node, "lm/"));
        if (op->block == IR_NONE)
            outside++;
        else
            in_block[op->block]++;
        if (op->code == OP_ATTENTION)
            attention += str_eq(node, op->block ? "lm/blocks.1.attn" : "lm/blocks.0.attn");
        if (op->block != IR_NONE)
            CHECK(str_starts(node, op->block ? "lm/blocks.1." : "lm/blocks.0."));
    }
    CHECK(in_block[0] > 5 && in_block[0] == in_block[1] && outside > 2);
    CHECK_EQ(attention, 2);
    CHECK_EQ(p->block, IR_NONE);
    ir_program_free(p);
    drop(&f);
}

TEST(qkv_is_not_copied, "the fused product is read in place: no copy between it and attention")
{
    struct transformer_config c = small();
    struct fixture f;
    int out;
    c.kv_heads = 2;
    CHECK_OK(make(&f, &c), &f.e);
    struct ir_program *p = forward(&f, 8, true, &out);
    for (size_t i = 0; i < p->ops.n; i++)
        CHECK(p->ops.data[i].code != OP_CONTIGUOUS && p->ops.data[i].code != OP_CONCAT);
    ir_program_free(p);
    drop(&f);
}

TEST(sequences_too_long, "a sequence longer than the table of positions is refused by its length")
{
    struct transformer_config c = small();
    struct fixture f;
    int out;
    CHECK_OK(make(&f, &c), &f.e);
    struct ir_program *p = forward(&f, 17, false, &out);
    CHECK_EQ(p->err.status, ST_INVALID);
    CHECK(strstr(p->err.text, "1 to 16 tokens, and got 17"));
    CHECK_STR(p->err.node, "lm");
    CHECK_STR(p->err.node_type, "CausalLMModel");
    ir_program_free(p);
    drop(&f);
}

TEST(dropout_needs_noise, "training with dropout and without random numbers is refused")
{
    struct transformer_config c = small();
    struct fixture f;
    int out, in;
    c.attention_dropout = 0.5;
    CHECK_OK(make(&f, &c), &f.e);
    CHECK(model_has_dropout(f.m));
    struct ir_program *p = ir_program_new("test", &f.vars);
    in = ir_input(p, "input", DT_I64, SHAPE(1, 4));
    CHECK_EQ(model_forward(f.m, p, &in, 1, true, IR_NONE, &out, &f.e), ST_INVALID);
    ir_program_free(p);
    p = ir_program_new("test", &f.vars);
    in = ir_input(p, "input", DT_I64, SHAPE(1, 4));
    CHECK_OK(model_forward(f.m, p, &in, 1, false, IR_NONE, &out, &f.e), &f.e);
    ir_program_free(p);
    drop(&f);
}

TEST(refusals, "sizes that cannot be are refused by name")
{
    struct transformer_config c = small(), bad[8];
    static const char *const words[] = {"vocab",    "layers",        "multiple of kv_heads",
                                        "absurdly", "embed_dropout", "even size",
                                        "norm_eps", "head_dim"};
    for (int i = 0; i < 8; i++)
        bad[i] = c;
    bad[0].vocab = -1;
    bad[1].layers = 1000000000;
    bad[2].kv_heads = 3;
    bad[3].d_model = bad[3].vocab = INT32_MAX;
    bad[4].embed_dropout = (double)NAN;
    bad[5].position_kind = POSITIONS_ROPE;
    bad[5].head_dim = 7;
    bad[6].norm_eps = -1;
    bad[7].head_dim = (int64_t)1 << 40;
    for (int i = 0; i < 8; i++) {
        struct fixture f;
        CHECK_EQ(make(&f, &bad[i]), ST_INVALID);
        if (!strstr(f.e.text, words[i]))
            test_fail(__FILE__, __LINE__, "\"%s\" does not say %s", f.e.text, words[i]);
        CHECK_STR(f.e.node, "lm");
        ir_vars_release(&f.vars);
    }
}
