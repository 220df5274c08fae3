/* hf_test.c - Hugging Face folders: names, forms and refusals. Numbers are compared with PyTorch in
 * tests/parity/test_transformers.py, whole runs and attacks are in tests/e2e/test_models.py. */
#include "nn/hf.h"

#include "base/env.h"
#include "base/json.h"
#include "nn/safetensors.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

static const char *const config =
    "{\"model_type\": \"qwen2\", \"vocab_size\": 40, \"hidden_size\": 16, \"intermediate_size\": "
    "24,"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
    " \"max_position_embeddings\": 32, \"tie_word_embeddings\": true, \"torch_dtype\": "
    "\"bfloat16\","
    " \"use_sliding_window\": false, \"surprise\": 1}";

struct fixture {
    struct ir_vars vars;
    struct hf *h;
    struct model *m;
    void *values[64]; /* by place in the state */
    struct err e;
};

static const char *in_dir(const char *dir, const char *name)
{
    static char path[4][1200];
    static int turn;
    turn = (turn + 1) % 4;
    return path_join(dir, name, path[turn], sizeof path[turn]);
}

static void write_text(const char *dir, const char *name, const char *text, size_t n)
{
    struct err e;
    CHECK_OK(dir_make(dir, &e), &e);
    CHECK_OK(file_write(in_dir(dir, name), text, n, &e), &e);
}

/* Weights of every tensor of the configuration: bfloat16, element i of tensor t is t + i / 256. */
static void write_weights(const char *dir)
{
    static const struct {
        const char *name;
        int64_t rows, width;
    } rows[] = {{"self_attn.q_proj.weight", 16, 16},   {"self_attn.q_proj.bias", 16, 0},
                {"self_attn.k_proj.weight", 8, 16},    {"self_attn.k_proj.bias", 8, 0},
                {"self_attn.v_proj.weight", 8, 16},    {"self_attn.v_proj.bias", 8, 0},
                {"self_attn.o_proj.weight", 16, 16},   {"mlp.gate_proj.weight", 24, 16},
                {"mlp.up_proj.weight", 24, 16},        {"mlp.down_proj.weight", 16, 24},
                {"input_layernorm.weight", 16, 0},     {"post_attention_layernorm.weight", 16, 0},
                {"model.embed_tokens.weight", 40, 16}, {"model.norm.weight", 16, 0}};
    enum { ROWS = sizeof rows / sizeof *rows, IN_BLOCK = 12 };
    struct safetensor list[2 * ROWS];
    static char names[2 * ROWS][80];
    static uint16_t data[2 * ROWS][640];
    size_t n = 0;
    struct err e;
    for (int block = 0; block < 2; block++) {
        for (int i = 0; i < ROWS; i++) {
            if (i >= IN_BLOCK && block > 0)
                continue;
            if (i < IN_BLOCK)
                (void)snprintf(
                    names[n], sizeof names[n], "model.layers.%d.%s", block, rows[i].name);
            else
                (void)snprintf(names[n], sizeof names[n], "%s", rows[i].name);
            for (int k = 0; k < 640; k++)
                data[n][k] = bf16_from_f32((float)n + (float)k / 256);
            list[n] = (struct safetensor){
                .name = names[n],
                .type = DT_BF16,
                .rank = rows[i].width ? 2 : 1,
                .shape = {rows[i].rows, rows[i].width},
                .data = data[n]};
            n++;
        }
    }
    CHECK_OK(safetensors_write(in_dir(dir, "model.safetensors"), list, n, NULL, 0, &e), &e);
}

static const char *folder(void)
{
    static char dir[600];
    (void)snprintf(dir, sizeof dir, "%s/tiny", test_dir());
    write_text(dir, "config.json", config, strlen(config));
    write_text(dir, "tokenizer.json", "{}", 2);
    write_weights(dir);
    return dir;
}

static enum status load(struct fixture *f, const char *dir)
{
    *f = (struct fixture){0};
    ir_vars_init(&f->vars);
    TRY(hf_open(dir, true, &f->h, &f->e));
    TRY(hf_model(f->h, "lm", &f->vars, &f->m, &f->e));
    CHECK(model_state_count(f->m) <= 64);
    for (int i = 0; i < model_state_count(f->m); i++) {
        int var = model_state_var(f->m, i);
        f->values[i] =
            mem_alloc((size_t)shape_count(&f->vars.list.data[var].shape) * sizeof(float));
        TRY(hf_read(f->h, f->m, var, f->values[i], &f->e));
    }
    return ST_OK;
}

static void drop(struct fixture *f)
{
    for (int i = 0; i < 64; i++)
        mem_free(f->values[i]);
    model_free(f->m);
    hf_close(f->h);
    ir_vars_release(&f->vars);
}

static const void *value_of(int var, enum dtype *type, void *ctx)
{
    struct fixture *f = ctx;
    *type = DT_F32;
    for (int i = 0; i < model_state_count(f->m); i++)
        if (model_state_var(f->m, i) == var)
            return f->values[i];
    return NULL;
}

static void save(struct fixture *f, const char *to, int64_t shard_bytes)
{
    struct hf_save_options o = {.dir = to, .shard_bytes = shard_bytes, .data = value_of, .ctx = f};
    CHECK_OK(hf_save(f->h, f->m, &o, &f->e), &f->e);
}

TEST(
    folder_there_and_back,
    "N4: import, export in shards, import: the same values, names and config")
{
    struct fixture a, b;
    char to[700], *text;
    size_t n;
    CHECK_OK(load(&a, folder()), &a.e);
    CHECK(strstr(hf_notes(a.h), "surprise"));
    CHECK(ir_var_find(&a.vars, "model.layers.1.self_attn.k_proj.bias") != IR_NONE);
    (void)snprintf(to, sizeof to, "%s/back", test_dir());
    save(&a, to, 3000);
    CHECK(file_exists(in_dir(to, "model.safetensors.index.json")));
    CHECK(file_exists(in_dir(to, "tokenizer.json")));
    CHECK_OK(file_read(in_dir(to, "config.json"), 4096, &text, &n, &a.e), &a.e);
    CHECK(n == strlen(config) && memcmp(text, config, n) == 0);
    mem_free(text);
    CHECK_OK(load(&b, to), &b.e);
    CHECK_EQ(model_state_count(b.m), model_state_count(a.m));
    for (int i = 0; i < model_state_count(a.m); i++) {
        const struct ir_var *v = &a.vars.list.data[model_state_var(a.m, i)];
        CHECK_STR(b.vars.list.data[model_state_var(b.m, i)].name, v->name);
        CHECK(
            memcmp(a.values[i], b.values[i], (size_t)shape_count(&v->shape) * sizeof(float)) == 0);
    }
    drop(&a);
    drop(&b);
}

TEST(
    stale_weights, "a folder that would load older weights is refused, and so is the source itself")
{
    struct fixture a;
    char to[700];
    const char *from = folder();
    CHECK_OK(load(&a, from), &a.e);
    (void)snprintf(to, sizeof to, "%s/back", test_dir());
    save(&a, to, 1 << 20);
    save(&a, to, 1 << 20); /* the same form again is fine */
    struct hf_save_options o = {.dir = to, .shard_bytes = 3000, .data = value_of, .ctx = &a};
    CHECK_EQ(hf_save(a.h, a.m, &o, &a.e), ST_INVALID);
    CHECK(strstr(a.e.text, "model.safetensors"));
    o.dir = from;
    CHECK_EQ(hf_save(a.h, a.m, &o, &a.e), ST_INVALID);
    drop(&a);
}

TEST(padding_by_config, "padding is masked by a pad token that is not the end of texts too")
{
    static const struct {
        const char *more, *error;
    } rows[] = {
        {"", "has no \"pad_token_id\""},
        {", \"pad_token_id\": -1", "\"pad_token_id\" must be a whole number"},
        {", \"pad_token_id\": 7, \"eos_token_id\": [3, 7]", "is an \"eos_token_id\" too"},
        {", \"pad_token_id\": 7, \"eos_token_id\": 2", NULL}};
    const char *dir = folder();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[1024];
        struct fixture f = {0};
        (void)snprintf(text, sizeof text, "%.*s%s}", (int)strlen(config) - 1, config, rows[i].more);
        write_text(dir, "config.json", text, strlen(text));
        CHECK_OK(hf_open(dir, true, &f.h, &f.e), &f.e);
        CHECK(!strstr(hf_notes(f.h), "token_id"));
        enum status st = hf_mask_padding(f.h, &f.e);
        CHECK_EQ(st, rows[i].error ? ST_INVALID : ST_OK);
        CHECK(!rows[i].error || (strstr(f.e.text, rows[i].error) && strstr(f.e.text, dir)));
        hf_close(f.h);
    }
}

/* Loading must end in an error with a text, or work. */
static void try_load(const char *dir)
{
    struct fixture f;
    if (load(&f, dir) != ST_OK)
        CHECK(f.e.text[0]);
    drop(&f);
}

TEST(cut_and_flipped_files, "H4: config, index and weights cut at any place or with a bit flipped")
{
    static const char *const names[] = {
        "config.json", "model.safetensors.index.json", "model-00001-of-00004.safetensors"};
    struct fixture a;
    char to[700], *text;
    size_t n;
    CHECK_OK(load(&a, folder()), &a.e);
    (void)snprintf(to, sizeof to, "%s/back", test_dir());
    save(&a, to, 2500);
    drop(&a);
    for (int k = 0; k < 3; k++) {
        CHECK_OK(file_read(in_dir(to, names[k]), 1 << 20, &text, &n, &a.e), &a.e);
        for (size_t i = 0; i < 120; i++) {
            size_t at = i * n / 120;
            write_text(to, names[k], text, at);
            try_load(to);
            text[at] ^= (char)(1 << i % 8);
            write_text(to, names[k], text, n);
            try_load(to);
            text[at] ^= (char)(1 << i % 8);
        }
        write_text(to, names[k], text, n);
        mem_free(text);
    }
    CHECK_OK(load(&a, to), &a.e);
    drop(&a);
}
