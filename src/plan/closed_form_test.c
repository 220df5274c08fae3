/* closed_form_test.c - worked rows of the requirements, and what the walk must say. */
#include "plan/closed_form.h"

#include "base/mem.h"
#include "test.h"

#include <math.h>
#include <string.h>

static struct closed_model shape(int64_t layers, int64_t hidden, int64_t heads, int64_t parameters)
{
    struct closed_model m = {.layers = layers, .hidden = hidden, .heads = heads};
    struct err e;
    CHECK(closed_model_family(&m, &e) == ST_OK);
    CHECK(closed_model_complete(&m, &e) == ST_OK);
    m.parameters = parameters;
    return m;
}

static struct closed_run batch(int64_t b, enum closed_precision precision)
{
    struct closed_run r;
    closed_run_defaults(&r);
    r.batch = b;
    r.precision = precision;
    return r;
}

static double gb(int64_t bytes)
{
    return (double)bytes / 1e9;
}

TEST(worked_rows_7b, "E8: 7B at L32 H4096 A32 S2048: states, a layer, batch 1 and 4, checkpointed")
{
    struct closed_model m = shape(32, 4096, 32, 7000000000);
    struct closed_run r = batch(1, CLOSED_FP32);
    CHECK_EQ(m.parameters * closed_precision_at(CLOSED_FP32)->weight, 28000000000);
    CHECK_EQ(m.parameters * closed_precision_at(CLOSED_HALF)->weight, 14000000000);
    struct closed_founding f = closed_founding_make(&m, &r);
    CHECK_EQ(f.states_bytes, 112000000000);
    CHECK_NEAR((double)f.states_bytes / 1073741824.0, 104.3, 0.05);
    CHECK_EQ(f.layer_bytes, 1124073472);
    CHECK_EQ(llround(gb(f.activations_bytes)), 36);
    CHECK_EQ(llround(gb(f.total_bytes)), 148);
    r.checkpointing = CLOSED_BLOCKS;
    CHECK_NEAR(gb(closed_founding_make(&m, &r).activations_bytes), 1.66, 0.005);
    r = batch(4, CLOSED_FP32);
    CHECK_EQ(llround(gb(closed_founding_make(&m, &r).activations_bytes)), 144);
    CHECK_EQ(llround(gb(closed_founding_make(&m, &r).total_bytes)), 256);
}

TEST(worked_rows_13b, "E8: 13B: 208 GB of states, 2.24 GB checkpointed at L40 H5120 A40")
{
    struct closed_model m = shape(40, 5120, 40, 13000000000);
    struct closed_run r = batch(1, CLOSED_HALF);
    r.checkpointing = CLOSED_BLOCKS;
    struct closed_founding f = closed_founding_make(&m, &r);
    CHECK_EQ(f.states_bytes, 208000000000);
    CHECK_NEAR(gb(f.activations_bytes), 2.24, 0.005);
}

TEST(worked_counts, "E9: 148 GB: two of 80 GB, tight; 256: four; 213: four to start, five safer")
{
    int64_t card = 80000000000;
    struct closed_cards a = closed_cards_for(148000000000, card);
    struct closed_cards b = closed_cards_for(256000000000, card);
    struct closed_cards c = closed_cards_for(213000000000, card);
    CHECK(a.minimum == 2 && a.tight && a.safer == 3);
    CHECK(b.minimum == 4 && !b.tight);
    CHECK(c.minimum == 4 && c.safer == 5 && c.bare == 3);
    CHECK_NEAR(a.minimum_free, 0.075, 1e-9);
    CHECK_EQ(closed_cards_for(1, card).minimum, 1);
    CHECK_EQ(closed_cards_for(9 * card, card).minimum, 16);
}

TEST(
    bytes_of_a_parameter,
    "E5 P9b: 16, 16, 16, 18, 12 and 8 bytes a parameter with Adam, SGD's less")
{
    static const struct {
        enum closed_precision p;
        double adam;
    } row[] = {{CLOSED_FP32, 16},     {CLOSED_MIXED, 16}, {CLOSED_HALF, 16},
               {CLOSED_HALF_F32, 18}, {CLOSED_BARE, 12},  {CLOSED_BF16, 8}};
    struct closed_model m = shape(2, 64, 4, 0);
    struct closed_estimate x;
    struct err e;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct closed_run r = batch(1, row[i].p);
        CHECK(closed_estimate_make(&m, &r, &x, &e) == ST_OK);
        CHECK_NEAR(x.bytes_per_parameter, row[i].adam, 1e-12);
    }
}

static struct closed_estimate estimate(const struct closed_model *m, struct closed_run r)
{
    struct closed_estimate x;
    struct err e;
    CHECK(closed_estimate_make(m, &r, &x, &e) == ST_OK);
    return x;
}

TEST(parameters_of_families, "E5: parameters of public configurations are counted from their shape")
{
    struct closed_model m = shape(32, 4096, 32, 0);
    m.ffn = 11008;
    m.vocab = 32000;
    CHECK_EQ(closed_model_parameters(&m), 6738415616);
    m.kv_heads = 8;
    m.ffn = 14336;
    m.vocab = 128256;
    CHECK_EQ(closed_model_parameters(&m), 8030261248);
    struct closed_model g = {
        .family = "gpt2",
        .layers = 12,
        .hidden = 768,
        .heads = 12,
        .vocab = 50257,
        .positions = 1024,
        .tied = true};
    struct err e;
    CHECK(closed_model_family(&g, &e) == ST_OK && closed_model_complete(&g, &e) == ST_OK);
    CHECK_EQ(closed_model_parameters(&g), 124439808);
    struct closed_model x = shape(32, 4096, 32, 0);
    x.kv_heads = 8;
    x.ffn = 14336;
    x.vocab = 32000;
    x.experts = 8;
    x.experts_per_token = 2;
    CHECK_EQ(closed_model_parameters(&x), 46702792704);
    CHECK_EQ(closed_model_active(&x), 12879925248);
}

TEST(
    activations_of_a_layer,
    "E5: a GPT layer keeps 34 s b h + 5 a s s b, Llama's 20 + 4g + 8 phi, fused less")
{
    struct closed_model g = {
        .family = "gpt",
        .layers = 2,
        .hidden = 1024,
        .heads = 16,
        .vocab = 1000,
        .positions = 512,
        .dropout = 0.1,
        .tied = true};
    struct err e;
    CHECK(closed_model_family(&g, &e) == ST_OK && closed_model_complete(&g, &e) == ST_OK);
    struct closed_run r = batch(4, CLOSED_BF16);
    r.seq = 512;
    r.attention = CLOSED_PLAIN;
    double sbh = 512.0 * 4 * 1024, ass = 16.0 * 512 * 512 * 4;
    CHECK_NEAR((double)estimate(&g, r).layer_bytes / (34 * sbh + 5 * ass), 1, 0.01);
    r.attention = CLOSED_FLASH;
    CHECK_NEAR((double)estimate(&g, r).layer_bytes / (34 * sbh), 1, 0.01);
    struct closed_model l = shape(2, 1024, 16, 0);
    l.kv_heads = 4;
    l.ffn = 3584;
    l.vocab = 1000;
    CHECK_NEAR((double)estimate(&l, r).layer_bytes / ((20 + 1 + 28) * sbh), 1, 0.02);
    r.fused_norm = r.fused_mlp = true;
    CHECK_NEAR((double)estimate(&l, r).layer_bytes / ((12 + 1 + 21) * sbh), 1, 0.02);
}

TEST(
    peak_is_a_maximum,
    "E5: small batches peak in the optimizer's step, large ones in the backward pass")
{
    struct closed_model m = shape(8, 512, 8, 0);
    m.vocab = 1000;
    struct closed_run r = batch(1, CLOSED_BF16);
    r.seq = 64;
    struct closed_estimate small = estimate(&m, r);
    CHECK_EQ(small.peak.phase, TAPE_PHASE_STEP);
    CHECK_NEAR((double)small.peak.bytes / (double)small.parameters, 10, 1.0);
    r.batch = 64;
    struct closed_estimate large = estimate(&m, r);
    CHECK_EQ(large.peak.phase, TAPE_PHASE_BACKWARD);
    int64_t sum = 0, phases = 0;
    for (int k = 0; k < TAPE_KIND_COUNT; k++)
        sum += large.peak.by_kind[k];
    for (int p = 0; p < TAPE_PHASE_COUNT; p++)
        phases = phases > large.phase[p].bytes ? phases : large.phase[p].bytes;
    CHECK_EQ(sum, large.peak.bytes);
    CHECK_EQ(phases, large.peak.bytes);
}

TEST(
    levers_of_the_closed_form,
    "E5: sharding, offload, adapters and checkpointing lower what they should")
{
    struct closed_model m = shape(16, 1024, 16, 0);
    m.vocab = 32000;
    struct closed_run r = batch(2, CLOSED_MIXED);
    struct closed_estimate plain = estimate(&m, r);
    double p = (double)plain.parameters;
    r.cards = 4;
    CHECK_NEAR(
        (double)estimate(&m, r).peak.bytes, (double)plain.peak.bytes + 4 * p,
        512); /* ddp: all of it, and buckets as large as the gradients */
    int64_t last = plain.start_bytes;
    static const double saved[] = {0, 8 * 0.75, 8 * 0.75, 12 * 0.75};
    for (int stage = 1; stage <= 3; stage++) {
        r.zero = stage;
        int64_t now = estimate(&m, r).start_bytes;
        CHECK_NEAR((double)(plain.start_bytes - now) / p, saved[stage], 0.01);
        CHECK(now <= last);
        last = now;
    }
    r = batch(2, CLOSED_MIXED);
    r.offload_optimizer = true;
    CHECK_NEAR((double)estimate(&m, r).host_bytes / p, 8, 0.01);
    r = batch(2, CLOSED_MIXED);
    r.checkpointing = CLOSED_BLOCKS;
    CHECK(estimate(&m, r).peak.bytes < plain.peak.bytes);
    r.method = CLOSED_QLORA;
    r.adapter_bytes = 4;
    struct closed_estimate q = estimate(&m, r);
    CHECK(q.trainable < q.parameters / 50);
    CHECK(q.start_bytes < 2 * q.parameters);
}

TEST(
    attention_to_the_byte,
    "E7: attention of one head in float32: 4 b s s + 16 b s d + two workspaces, byte for byte")
{
    static const int64_t seq[] = {256, 1024, 4096, 8192}, dim[] = {16, 32, 64, 128};
    int64_t b = 8;
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < 4; k++) {
            struct tape *t = tape_new(512);
            int64_t n = b * seq[i] * dim[k] * 4, scores = b * seq[i] * seq[i] * 4;
            (void)tape_storage(t, 2 * 8519680, TAPE_WORKSPACE);
            int q = tape_value(t, n, TAPE_INPUTS, true), key = tape_value(t, n, TAPE_INPUTS, true);
            int v = tape_value(t, n, TAPE_INPUTS, true);
            int s = tape_apply(
                t, &(struct tape_op){
                       .what = "Q K'", .in = {q, key}, .n_in = 2, .save_in = 3, .bytes = scores});
            int p = tape_apply(
                t, &(struct tape_op){
                       .what = "softmax", .in = {s}, .n_in = 1, .save_out = true, .bytes = scores});
            tape_drop(t, s);
            int y = tape_apply(
                t, &(struct tape_op){
                       .what = "P V", .in = {p, v}, .n_in = 2, .save_in = 3, .bytes = n});
            tape_drop(t, p);
            CHECK_EQ(tape_live(t), 4 * b * seq[i] * seq[i] + 16 * b * seq[i] * dim[k] + 17039360);
            tape_backward(t, y);
            tape_free(t);
        }
    }
}

/* Softmax written out: scores and normalised weights are kept, and three numbers a row. That code's
 * measured sum has six tensors of Q's size; that they are Q, K, V, the result and scaled copies of
 * two is how we read the sum, not its text. A Hopper card's workspaces. */
TEST(
    attention_by_hand_to_the_byte,
    "E7: attention with its softmax by hand: 8 b s s + 24 b s d + 12 b s + two workspaces")
{
    static const int64_t seq[] = {256, 1024, 4096, 8192, 16384}, dim[] = {16, 32, 64, 128};
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 4; k++) {
            int64_t b = 8, s = seq[i], d = dim[k], n = b * s * d * 4, scores = b * s * s * 4;
            struct tape *t = tape_new(512);
            int in[3], v[3];
            tape_storage(t, 2 * 33554432, TAPE_WORKSPACE);
            tape_record(t, true);
            for (int j = 0; j < 3; j++)
                in[j] = tape_value(t, n, TAPE_INPUTS, true);
            for (int j = 0; j < 3; j++)
                v[j] = j < 2 ? tape_value(t, n, TAPE_INPUTS, true) : in[2];
            struct tape_op qk = {
                .what = "Q K'", .in = {v[0], v[1]}, .n_in = 2, .save_in = 3, .bytes = scores};
            int raw = tape_apply(t, &qk);
            struct tape_op soft = {
                .what = "softmax",
                .in = {raw},
                .n_in = 1,
                .save_in = 1,
                .save_out = true,
                .bytes = scores,
                .keep_bytes = 3 * b * s * 4};
            int p = tape_apply(t, &soft);
            tape_drop(t, raw);
            struct tape_op pv = {
                .what = "P V", .in = {p, v[2]}, .n_in = 2, .save_in = 3, .bytes = n};
            (void)tape_apply(t, &pv);
            CHECK_EQ(tape_live(t), 8 * b * s * s + 24 * b * s * d + 12 * b * s + 67108864);
            tape_free(t);
        }
}

TEST(
    tape_returns_everything,
    "after the backward pass only leaves' gradients and the caller's variables are left")
{
    struct tape *t = tape_new(512);
    int x = tape_value(t, 1000, TAPE_INPUTS, false), w = tape_parameter(t, 2000, true);
    int h = tape_apply(
        t, &(struct tape_op){.what = "a", .in = {x, w}, .n_in = 2, .save_in = 1, .bytes = 3000});
    int r = tape_apply(
        t,
        &(struct tape_op){.what = "relu", .in = {h}, .n_in = 1, .save_out = true, .bytes = 3000});
    int y = tape_apply(
        t, &(struct tape_op){.what = "add", .in = {h, r}, .n_in = 2, .alias_in = 3, .bytes = 3000});
    tape_drop(t, h);
    tape_drop(t, r);
    CHECK_EQ(tape_live(t), 1024 + 3072 + 3072); /* h is freed: nothing saved it */
    tape_drop(t, y);
    tape_backward(t, y);
    CHECK_EQ(tape_live(t), 1024 + 2048);
    CHECK_EQ(tape_grad_held(t, w), 2048);
    tape_free(t);
}

TEST(
    stated_parameters,
    "E5: where the MLP's width is not given, it is what the stated parameters leave")
{
    struct closed_model m = {.layers = 32, .hidden = 4096, .heads = 32, .parameters = 7000000000};
    struct err e;
    CHECK_OK(closed_model_family(&m, &e), &e);
    CHECK_OK(closed_model_complete(&m, &e), &e);
    m.parameters = 0;
    CHECK_NEAR((double)closed_model_parameters(&m), 7e9, 7e7);
}
