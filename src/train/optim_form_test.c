/* optim_form_test.c - whole runs with optimizer states in 8 bits, Adafactor, and weights in 16
 * bits: bytes of the plan, loss curves, checkpoints. */
#include "train/train_test_support.h"

#include "backends/exec.h"
#include "ir/optim_state.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* 64 -> 128 -> 3: one weight of 8192 elements, the rest below 4096. */
#define WIDE_LAYERS                                                                                \
    "Linear a {'in_features':64,'out_features':128}; ReLU r; "                                     \
    "Linear b {'in_features':128,'out_features':3}"
enum { WIDE_BIG = 64 * 128, WIDE_SMALL = 128 + 3 * 128 + 3 };
#define WIDE_W "layers.a.weight"

static struct trial_setup wide(const char *optim)
{
    struct trial_setup s = trial_mlp(64, 16);
    s.layers = WIDE_LAYERS;
    s.optim = optim;
    s.train.shape[0] = 64;
    s.config.epochs = 6;
    return s;
}

static int64_t bytes_of(struct trial *t, enum category c)
{
    int64_t sum = 0;
    for (size_t i = 0; i < t->vars.list.n; i++) {
        const struct ir_var *v = &t->vars.list.data[i];
        if (v->category == c)
            sum += shape_count(&v->shape) * dtype_size(v->dtype);
    }
    return sum;
}

/* ---- states in 8 bits ---- */

static const char *const int8_optims[] = {
    "{'type':'SGD','lr':0.05,'momentum':0.9}", "{'type':'Adam','lr':0.003}",
    "{'type':'AdamW','lr':0.003,'weight_decay':0.1}",
    "{'type':'RMSprop','lr':0.003,'momentum':0.5}", "{'type':'Adagrad','lr':0.02}"};
static const int int8_states[] = {1, 2, 2, 2, 1};
enum { INT8_OPTIMS = sizeof int8_optims / sizeof *int8_optims };

TEST(
    int8_bytes,
    "L4: a state of 8 bits takes a byte an element and 4 a block; small weights stay float32")
{
    for (int i = 0; i < INT8_OPTIMS; i++) {
        struct trial_setup s = wide(int8_optims[i]);
        struct trial t;
        s.config.levers.optimizer_state = OPTIM_STATE_INT8;
        trial_open(&t, &s);
        trial_run(&t);
        int64_t each = WIDE_BIG + WIDE_BIG / 256 * 4 + WIDE_SMALL * 4;
        CHECK_EQ(bytes_of(&t, CATEGORY_OPTIMIZER_STATE), int8_states[i] * each);
        CHECK_EQ(exec_peak_measured(train_exec(t.train)), exec_peak_planned(train_exec(t.train)));
        trial_close(&t);
    }
}

static double last_loss(const struct trial_setup *s)
{
    struct trial t;
    trial_open(&t, s);
    trial_run(&t);
    double loss = trial_metric(&t, "final_train_loss");
    trial_close(&t);
    return loss;
}

TEST(
    int8_learns,
    "L4: the loss after 24 updates is float32's within 3%, for every optimizer of them")
{
    for (int i = 0; i < INT8_OPTIMS; i++) {
        struct trial_setup s = wide(int8_optims[i]);
        double want = last_loss(&s), got;
        s.config.levers.optimizer_state = OPTIM_STATE_INT8;
        got = last_loss(&s);
        if (!(fabs(got - want) < 0.03 * want) || got == want)
            test_fail(__FILE__, __LINE__, "%s: loss %g, float32 %g", int8_optims[i], got, want);
    }
}

/* A run that is saved after 10 updates and resumed ends where `whole`, of the same setup, did. */
static void check_resume(const struct trial_setup *s, struct trial *whole)
{
    struct trial part, rest;
    char path[512];
    trial_open(&part, s);
    trial_run_to(&part, 10);
    trial_save(&part, path, "part");
    trial_open(&rest, s);
    trial_resume(&rest, path);
    trial_run(&rest);
    trial_check_same(whole, &rest);
    trial_close(&part);
    trial_close(&rest);
}

TEST(int8_resumes, "L4 A7: saved and resumed in the middle, codes and scales go on bit by bit")
{
    for (int i = 0; i < INT8_OPTIMS; i++) {
        struct trial_setup s = wide(int8_optims[i]);
        struct trial whole;
        s.config.levers.optimizer_state = OPTIM_STATE_INT8;
        trial_open(&whole, &s);
        trial_run(&whole);
        check_resume(&s, &whole);
        trial_close(&whole);
    }
}

TEST(int8_refuses, "L4: what has no 8-bit form is named; float32 states are not taken for codes")
{
    static const char *const none[] = {
        "{'type':'Adam','lr':0.01,'amsgrad':true}",
        "{'type':'NAdam','lr':0.01}",
        "{'type':'RAdam','lr':0.01}",
        "{'type':'Rprop','lr':0.01}",
        "{'type':'ASGD','lr':0.01}",
        "{'type':'Adafactor','lr':0.01}"};
    static const char *const state[] = {"max_exp_avg_sq", "exp_avg", "exp_avg",
                                        "prev",           "ax",      "variance"};
    struct trial t;
    struct err e = {0};
    char path[512];
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        struct trial_setup s = wide(none[i]);
        s.config.levers.optimizer_state = OPTIM_STATE_INT8;
        CHECK_EQ(trial_plan(&t, &s, &e), ST_UNSUPPORTED);
        CHECK(strstr(e.text, "optimizer_state int8") && strstr(e.text, state[i]));
    }
    struct trial_setup s = wide(int8_optims[1]);
    trial_open(&t, &s);
    trial_run(&t);
    trial_save(&t, path, "float32");
    trial_close(&t);
    s.config.levers.optimizer_state = OPTIM_STATE_INT8;
    trial_open(&t, &s);
    CHECK_EQ(train_resume(t.train, path, &e), ST_INVALID);
    CHECK(strstr(e.text, WIDE_W) && strstr(e.text, "exp_avg_codes"));
    CHECK(strstr(e.hint, "optimizer_state"));
    trial_close(&t);
}

/* ---- Adafactor ---- */

TEST(
    adafactor_bytes,
    "L4: a matrix costs its rows and columns, a vector its elements; it learns and resumes")
{
    struct trial_setup s = wide("{'type':'Adafactor','lr':0.05}");
    struct trial whole;
    trial_open(&whole, &s);
    CHECK_EQ(bytes_of(&whole, CATEGORY_OPTIMIZER_STATE), (64 + 128 + 128 + 128 + 3 + 3) * 4);
    trial_run(&whole);
    CHECK(trial_metric(&whole, "final_train_loss") < 0.9);
    check_resume(&s, &whole);
    trial_close(&whole);
}

/* ---- weights in 16 bits ---- */

static struct trial_setup half(const char *optim, enum dtype t, enum master_weights masters)
{
    struct trial_setup s = wide(optim);
    s.config.levers.parameter_dtype = t;
    s.config.levers.master_weights = masters;
    return s;
}

enum { WIDE_ALL = WIDE_BIG + WIDE_SMALL };

TEST(
    half_bytes, "P9 P9b P12: bytes a parameter: 2 and 2 of gradient; 12 with masters, 8 without; "
                "accumulators are float32")
{
    for (int i = 0; i < 8; i++) {
        enum master_weights masters = i & 1 ? MASTER_NONE : MASTER_F32;
        struct trial_setup s =
            half("{'type':'Adam','lr':0.003}", i & 2 ? DT_F16 : DT_BF16, masters);
        struct trial t;
        s.config.accumulate = i & 4 ? 2 : 1;
        trial_open(&t, &s);
        trial_run(&t);
        CHECK_EQ(bytes_of(&t, CATEGORY_PARAMETERS), WIDE_ALL * 2);
        CHECK_EQ(
            bytes_of(&t, CATEGORY_OPTIMIZER_STATE), WIDE_ALL * (masters == MASTER_F32 ? 12 : 8));
        CHECK_EQ(bytes_of(&t, CATEGORY_GRADIENTS), i & 4 ? WIDE_ALL * 4 : 0);
        for (int k = 0; k < t.train->steps.n; k++) {
            const struct ir_program *p = t.train->steps.programs[k];
            for (size_t o = 0; o < p->ops.n; o++) {
                const struct ir_op *op = &p->ops.data[o];
                if (op->code == OP_OPTIMIZER && !(i & 4))
                    CHECK(p->values.data[op->in[op->n_in - 3]].dtype != DT_F32);
            }
        }
        CHECK_EQ(exec_peak_measured(train_exec(t.train)), exec_peak_planned(train_exec(t.train)));
        trial_close(&t);
    }
}

TEST(half_learns, "P9: with masters and with rounding by chance the loss is float32's within 5%")
{
    struct trial_setup s = wide("{'type':'Adam','lr':0.003}");
    double want = last_loss(&s);
    for (int i = 0; i < 4; i++) {
        s = half(
            "{'type':'Adam','lr':0.003}", i & 1 ? DT_F16 : DT_BF16,
            i & 2 ? MASTER_STOCHASTIC : MASTER_F32);
        double got = last_loss(&s);
        if (!(fabs(got - want) < 0.05 * want))
            test_fail(__FILE__, __LINE__, "form %d: loss %g, float32 %g", i, got, want);
    }
}

/* The scalar after 100 updates of gradient 1 and rate 1e-3, from 1. */
static double after_small_steps(enum master_weights masters, double *master, bool *warned)
{
    static float c[100];
    for (int i = 0; i < 100; i++)
        c[i] = 1;
    struct trial_setup s = trial_scalar(c, 100);
    struct trial t;
    s.optim = "{'type':'SGD','lr':0.001}";
    s.config.seed = 11;
    s.config.levers.parameter_dtype = DT_BF16;
    s.config.levers.master_weights = masters;
    trial_open(&t, &s);
    uint16_t *w = exec_var(t.train->exec, ir_var_find(&t.vars, SCALAR_W));
    *w = bf16_from_f32(1);
    if (masters == MASTER_F32)
        *trial_var(&t, "master:" SCALAR_W) = 1;
    trial_run(&t);
    *master = masters == MASTER_F32 ? (double)*trial_var(&t, "master:" SCALAR_W) : 0;
    *warned = trial_warned(&t, "master_weights");
    double end = (double)f32_from_bf16(*w);
    trial_close(&t);
    return end;
}

TEST(
    small_updates,
    "P9 case-T22: masters keep updates of 1/1000, bare bfloat16 stands still and says so")
{
    double master;
    bool warned;
    CHECK(after_small_steps(MASTER_F32, &master, &warned) == 0.8984375 && !warned);
    CHECK_NEAR(master, 0.900001, 1e-6);
    CHECK(after_small_steps(MASTER_NONE, &master, &warned) == 1 && warned);
    double chance = after_small_steps(MASTER_STOCHASTIC, &master, &warned);
    CHECK(chance < 0.97 && chance > 0.83 && !warned);
}

TEST(half_resumes, "P9 case-T24: every form is resumed bit by bit; moments stay float32")
{
    for (int i = 0; i < 6; i++) {
        struct trial_setup s = half(
            "{'type':'Adam','lr':0.003}", i & 1 ? DT_F16 : DT_BF16, (enum master_weights)(i / 2));
        struct trial whole;
        s.config.patience = i / 2 == 0 ? 3 : 0;
        s.val = s.train;
        trial_open(&whole, &s);
        trial_run(&whole);
        check_resume(&s, &whole);
        int v = ir_var_find(&whole.vars, "exp_avg_sq:" WIDE_W);
        CHECK_EQ(whole.vars.list.data[v].dtype, DT_F32);
        trial_close(&whole);
    }
}

TEST(half_saves_masters, "P9: a checkpoint holds the float32 masters, not their rounding")
{
    struct trial_setup s = half("{'type':'Adam','lr':0.003}", DT_BF16, MASTER_F32);
    struct trial t, plain;
    char path[512];
    trial_open(&t, &s);
    trial_run(&t);
    trial_save(&t, path, "masters");
    s = wide("{'type':'Adam','lr':0.003}");
    trial_open(&plain, &s);
    trial_resume(&plain, path);
    const float *master = trial_var(&t, "master:" WIDE_W), *w = trial_var(&plain, WIDE_W);
    int apart = 0;
    for (int i = 0; i < WIDE_BIG; i++) {
        CHECK(master[i] == w[i]);
        apart += w[i] != f32_from_bf16(bf16_from_f32(w[i]));
    }
    CHECK(apart > WIDE_BIG / 2);
    trial_close(&t);
    trial_close(&plain);
}

TEST(half_types, "P9 P2: the other half type in autocast is refused; fp16 weights bring the scaler")
{
    struct trial_setup s = half("{'type':'Adam','lr':0.003}", DT_F16, MASTER_F32);
    struct trial t;
    struct err e = {0};
    s.config.precision = PRECISION_BF16;
    CHECK_EQ(trial_plan(&t, &s, &e), ST_INVALID);
    CHECK(strstr(e.text, "precision is bf16") && strstr(e.text, "float16"));
    s.config.precision = PRECISION_FP32;
    trial_open(&t, &s);
    CHECK(t.train->scaler.enabled);
    trial_run(&t);
    trial_close(&t);
    s.config.precision = PRECISION_FP16;
    CHECK(last_loss(&s) < 0.9);
}

TEST(half_layers, "P9: convolution, batch norm and dropout run on weights of 16 bits")
{
    for (int i = 0; i < 2; i++) {
        struct trial_setup s = trial_cnn(24, 8);
        struct trial t;
        s.config.levers.parameter_dtype = i ? DT_F16 : DT_BF16;
        s.config.epochs = 2;
        s.val = s.train;
        trial_open(&t, &s);
        trial_run(&t);
        CHECK(isfinite(trial_metric(&t, "final_train_loss")));
        CHECK_EQ(exec_peak_measured(train_exec(t.train)), exec_peak_planned(train_exec(t.train)));
        trial_close(&t);
    }
}

/* ---- adapters ---- */

static const struct adapter_config lora = {
    .rank = 4, .alpha = 8, .targets = "all-linear", .dropout = 0.1};
enum { LORA_ALL = 4 * (64 + 128) + 4 * (128 + 3) };

static struct trial_setup adapted(const struct adapter_config *c)
{
    struct trial_setup s = wide("{'type':'Adam','lr':0.01}");
    s.adapter = c;
    return s;
}

/* The bytes of a variable; the caller frees them. */
static void *bytes_of_var(struct trial *t, const char *name, size_t *n)
{
    int v = ir_var_find(&t->vars, name);
    CHECK(v != IR_NONE);
    const struct ir_var *var = &t->vars.list.data[v];
    *n = (size_t)(shape_count(&var->shape) * dtype_size(var->dtype));
    void *copy = mem_alloc(*n + 1);
    memcpy(copy, exec_var(t->train->exec, v), *n);
    return copy;
}

static const struct adapter_config bases[] = {
    {.rank = 4, .alpha = 8, .targets = "all-linear", .dropout = 0.1},
    {.rank = 4, .alpha = 8, .targets = "all-linear", .base = QUANT_INT8},
    {.rank = 4, .alpha = 8, .targets = "a", .base = QUANT_NF4},
    {.rank = 4, .alpha = 8, .targets = "all-linear", .base = QUANT_NF4, .double_quant = true}};
enum { BASES = sizeof bases / sizeof *bases };

TEST(
    adapters_train_alone,
    "L3: the base never changes by a bit and costs neither gradient nor state; the loss falls")
{
    for (int i = 0; i < BASES; i++) {
        struct trial_setup s = adapted(&bases[i]);
        struct trial t;
        size_t n, m;
        trial_open(&t, &s);
        void *before = bytes_of_var(&t, WIDE_W, &n);
        trial_run(&t);
        void *after = bytes_of_var(&t, WIDE_W, &m);
        CHECK(n == m && memcmp(before, after, n) == 0);
        CHECK_EQ(n, i == 0 ? WIDE_BIG * 4 : i == 1 ? WIDE_BIG : WIDE_BIG / 2);
        int64_t trained = i == 2 ? 4 * (64 + 128) : LORA_ALL;
        CHECK_EQ(bytes_of(&t, CATEGORY_OPTIMIZER_STATE), trained * 8);
        CHECK_EQ(ir_var_find(&t.vars, "exp_avg:" WIDE_W), IR_NONE);
        CHECK_EQ(exec_peak_measured(train_exec(t.train)), exec_peak_planned(train_exec(t.train)));
        CHECK(trial_metric(&t, "final_train_loss") < 1.0);
        mem_free(before);
        mem_free(after);
        trial_close(&t);
    }
}

TEST(adapters_resume, "L3 A7: adapters, codes and scales go on bit by bit from a checkpoint")
{
    for (int i = 0; i < BASES; i++) {
        struct trial_setup s = adapted(&bases[i]);
        struct trial whole;
        trial_open(&whole, &s);
        trial_run(&whole);
        check_resume(&s, &whole);
        trial_close(&whole);
    }
}

TEST(adapters_in_halves, "L3 P9: a base in bfloat16, adapters with float32 masters, 8-bit states")
{
    struct trial_setup s = adapted(&lora);
    struct trial t;
    s.config.levers.parameter_dtype = DT_BF16;
    s.config.levers.optimizer_state = OPTIM_STATE_INT8;
    trial_open(&t, &s);
    trial_run(&t);
    CHECK_EQ(bytes_of(&t, CATEGORY_PARAMETERS), (WIDE_ALL + LORA_ALL) * 2);
    CHECK_EQ(bytes_of(&t, CATEGORY_OPTIMIZER_STATE), LORA_ALL * 12);
    CHECK(trial_metric(&t, "final_train_loss") < 1.05);
    trial_close(&t);
}

TEST(
    gradient_reaches_adapters,
    "L3 L1 case-T34: over a frozen base, checkpointed or not, dL/dB is y A x")
{
    static const struct adapter_config one = {.rank = 1, .alpha = 1, .targets = "l"};
    static const float x[1] = {1}, y[1] = {0};
    for (int i = CHECKPOINT_NONE; i <= CHECKPOINT_SELECTIVE; i++) {
        struct trial_setup s = trial_scalar(x, 1);
        struct trial t;
        s.adapter = &one;
        s.train.y = y;
        s.loss = "{'type':'MSELoss'}"; /* y^2, whose gradient is twice that of y^2 / 2 */
        s.optim = "{'type':'SGD','lr':0.05}";
        s.config.levers.checkpointing = (enum checkpointing)i;
        trial_open(&t, &s);
        *trial_var(&t, SCALAR_W) = 2;
        *trial_var(&t, "layers.l.lora_A.weight") = 3;
        *trial_var(&t, "layers.l.lora_B.weight") = 0;
        trial_run(&t);
        CHECK_NEAR((double)*trial_var(&t, "layers.l.lora_B.weight"), -0.6, 1e-6);
        CHECK_NEAR((double)*trial_var(&t, "layers.l.lora_A.weight"), 3, 0);
        CHECK_NEAR(trial_w(&t), 2, 0);
        trial_close(&t);
    }
}

static const void *value_at(int var, enum dtype *type, void *ctx)
{
    struct trial *t = ctx;
    *type = t->vars.list.data[var].dtype;
    return exec_var(t->train->exec, var);
}

TEST(
    merge_onto_what_was_trained,
    "L3 case-T77: the merged weight is the 4-bit base as read, plus the adapter")
{
    static const struct adapter_config one = {
        .rank = 1, .alpha = 1, .targets = "a", .base = QUANT_NF4};
    struct trial_setup s = trial_mlp(8, 4);
    struct trial t;
    static float w[64 * 8], merged[64 * 8];
    s.layers =
        "Linear a {'in_features':64,'out_features':8}; Linear b {'in_features':8,'out_features':3}";
    s.train.shape[0] = 64;
    s.adapter = &one;
    trial_open(&t, &s);
    w[0] = 1;
    w[1] = 0.5f;
    const struct adapter *a = model_adapter_at(t.model, 0);
    struct quant_weight q = {
        .kind = QUANT_NF4,
        .n = 64 * 8,
        .codes = exec_var(t.train->exec, a->weight),
        .absmax = exec_var(t.train->exec, model_quant_of(t.model, a->weight)->absmax)};
    quant_weight_store(&q, w);
    float *down = exec_var(t.train->exec, a->a), *up = exec_var(t.train->exec, a->b);
    down[1] = 0.5f;
    up[0] = 0.2f;
    struct model_values values = {value_at, &t};
    model_merged(t.model, a->weight, &values, merged);
    CHECK_NEAR((double)merged[1], 0.540710, 1e-6);
    trial_close(&t);
}
