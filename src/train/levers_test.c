/* levers_test.c - what each lever promises: the same bits where it says so, a lower peak, and the
 * measured peak equal to the planned one. */
#include "train/train_test_support.h"

#include "base/str.h"
#include "ir/build.h"
#include "passes/passes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Twelve hidden layers of different weights, with dropout and layer norm among them. */
static struct trial_setup deep(int64_t n, int64_t batch)
{
    static const char *const acts[] = {"GELU", "Tanh", "SiLU", "Sigmoid"};
    static char layers[4096];
    struct trial_setup s = trial_mlp(n, batch);
    struct str text;
    str_init(&text);
    str_add(&text, "Linear a {'in_features':6,'out_features':64}");
    for (int i = 0; i < 12; i++) {
        str_printf(&text, "; Linear l%d {'in_features':64,'out_features':64}", i);
        str_printf(&text, "; %s g%d", acts[i % 4], i);
        if (i % 3 == 0)
            str_printf(&text, "; Dropout d%d {'p':0.25}", i);
        if (i % 3 == 1)
            str_printf(&text, "; LayerNorm n%d {'normalized_shape':[64]}", i);
    }
    str_add(&text, "; Linear z {'in_features':64,'out_features':3}");
    (void)snprintf(layers, sizeof layers, "%s", text.data);
    str_release(&text);
    s.layers = layers;
    s.optim = "{'type':'AdamW','lr':0.01}";
    s.config.max_steps = 3;
    return s;
}

/* Convolutions with batch norm, whose statistics must move once an update. */
static struct trial_setup deep_cnn(int64_t n, int64_t batch)
{
    struct trial_setup s = trial_cnn(n, batch);
    s.layers =
        "Conv2d c {'in_channels':2,'out_channels':8,'kernel_size':3,'padding':1};"
        "BatchNorm2d n {'num_features':8}; ReLU r;"
        "Conv2d c2 {'in_channels':8,'out_channels':16,'kernel_size':3,'padding':1};"
        "BatchNorm2d n2 {'num_features':16}; SiLU r2; MaxPool2d p {'kernel_size':2,'stride':2};"
        "Conv2d c3 {'in_channels':16,'out_channels':8,'kernel_size':3,'padding':1};"
        "BatchNorm2d n3 {'num_features':8}; GELU r3;"
        "Flatten f; Dropout d {'p':0.25}; Linear l {'in_features':128,'out_features':4}";
    s.config.max_steps = 3;
    return s;
}

static int64_t run_peak(struct trial *t, const struct trial_setup *s)
{
    trial_open(t, s);
    trial_run(t);
    CHECK_EQ(exec_peak_measured(train_exec(t->train)), exec_peak_planned(train_exec(t->train)));
    return exec_peak_planned(train_exec(t->train));
}

static double again_share(struct trial *t)
{
    struct pass_flops f = pass_flops(train_steps(t->train)->programs[0]);
    return f.again / f.all;
}

TEST(checkpoint_levels, "L1 case-T36: none, some, all: the same bits after 3 updates, falling peak")
{
    struct trial_setup s = deep(4096, 1024);
    struct trial none, some, all, selective;
    int64_t most = run_peak(&none, &s);
    s.config.levers.checkpointing = CHECKPOINT_BLOCKS;
    int64_t least = run_peak(&all, &s);
    s.config.levers.checkpointing = CHECKPOINT_AUTO;
    s.config.levers.budget_bytes = (most + least) / 2;
    int64_t between = run_peak(&some, &s);
    s.config.levers.checkpointing = CHECKPOINT_SELECTIVE;
    int64_t free_of_cost = run_peak(&selective, &s);
    CHECK(least < between && between <= s.config.levers.budget_bytes);
    CHECK(free_of_cost <= most);
    CHECK(trial_same_weights(&none, &some));
    CHECK(trial_same_weights(&none, &all));
    CHECK(trial_same_weights(&none, &selective));
    CHECK(again_share(&none) < again_share(&some));
    CHECK(again_share(&some) < again_share(&all));
    CHECK(again_share(&all) < 0.3);
    trial_close(&none);
    trial_close(&some);
    trial_close(&all);
    trial_close(&selective);
}

TEST(
    checkpoint_batch_statistics,
    "L1: running statistics move once an update; layouts, autocast and accumulation change nothing")
{
    for (int i = 0; i < 6; i++) {
        struct trial_setup s = deep_cnn(22, 4);
        struct trial a, b, c;
        s.config.precision = (enum precision)(i / 2);
        s.config.accumulate = i % 2 ? 3 : 1;
        int64_t plain = run_peak(&a, &s);
        s.config.levers.checkpointing = CHECKPOINT_BLOCKS;
        CHECK(run_peak(&b, &s) <= plain);
        s.config.levers.checkpointing = CHECKPOINT_SELECTIVE;
        CHECK(run_peak(&c, &s) <= plain);
        trial_check_same(&a, &b);
        trial_check_same(&a, &c);
        trial_close(&a);
        trial_close(&b);
        trial_close(&c);
    }
}

TEST(
    checkpoint_auto,
    "L1 T8: the least second computation that meets the budget; else the least peak")
{
    struct trial_setup s = deep(4096, 1024);
    struct trial t;
    struct err e;
    CHECK_OK(trial_plan(&t, &s, &e), &e);
    int64_t most = exec_peak_planned(train_exec(t.train));
    trial_close(&t);
    s.config.levers.checkpointing = CHECKPOINT_BLOCKS;
    CHECK_OK(trial_plan(&t, &s, &e), &e);
    int64_t least = exec_peak_planned(train_exec(t.train));
    trial_close(&t);
    s.config.levers.checkpointing = CHECKPOINT_AUTO;
    s.config.levers.budget_bytes = most;
    CHECK_OK(trial_plan(&t, &s, &e), &e);
    CHECK_EQ(exec_peak_planned(train_exec(t.train)), most);
    double before = again_share(&t);
    trial_close(&t);
    for (int64_t budget = most - 1; budget >= least; budget -= (most - least) / 4) {
        s.config.levers.budget_bytes = budget;
        CHECK_OK(trial_plan(&t, &s, &e), &e);
        CHECK(exec_peak_planned(train_exec(t.train)) <= budget);
        CHECK(again_share(&t) >= before); /* a smaller budget never computes less */
        before = again_share(&t);
        trial_close(&t);
    }
    s.config.levers.budget_bytes = 1024;
    CHECK_OK(trial_plan(&t, &s, &e), &e);
    CHECK(exec_peak_planned(train_exec(t.train)) <= least);
    trial_close(&t);
}

/* ---- programs of marked blocks, without a model ---- */

struct net {
    struct ir_vars vars;
    struct ir_program *p;
    struct exec *x;
};

static void net_begin(struct net *n)
{
    *n = (struct net){0};
    ir_vars_init(&n->vars);
    n->p = ir_program_new("test", &n->vars);
}

/* Gradients as outputs "grad:<name>"; checkpoints the first `count` blocks; ready to run. */
static void net_end(struct net *n, int loss, int count)
{
    struct err e = {0};
    struct checkpoint_options o = {.count = count};
    struct layout_options rows = {0};
    int grads[32];
    char name[64];
    CHECK(n->vars.list.n <= 32);
    ir_output(n->p, loss, "loss");
    ir_backward(n->p, loss, ir_input(n->p, "seed", DT_F32, shape_scalar()), grads);
    for (size_t v = 0; v < n->vars.list.n; v++) {
        (void)snprintf(name, sizeof name, "grad:%s", n->vars.list.data[v].name);
        if (grads[v] != IR_NONE)
            ir_output(n->p, grads[v], name);
    }
    CHECK_OK(ir_status(n->p, &e), &e);
    CHECK_OK(pass_checkpoint(n->p, &o, NULL, &e), &e);
    CHECK_OK(pass_recompute(n->p, false, &e), &e);
    ir_dead_code(n->p);
    CHECK_OK(pass_layout(n->p, &rows, &e), &e);
    CHECK_OK(pass_fuse(n->p, &e), &e);
    CHECK_OK(ir_verify(n->p, &e), &e);
    CHECK_OK(exec_new(&n->vars, &n->p, 1, NULL, &n->x, &e), &e);
    CHECK_OK(exec_map(n->x, &e), &e);
}

static float *net_value(struct net *n, const char *name)
{
    int v = ir_output_find(n->p, name);
    if (v == IR_NONE)
        v = ir_input_find(n->p, name);
    if (v == IR_NONE)
        test_fail(__FILE__, __LINE__, "no \"%s\"", name);
    return exec_value(n->x, 0, v);
}

static void net_close(struct net *n)
{
    exec_free(n->x);
    ir_program_free(n->p);
    ir_vars_release(&n->vars);
}

static void run_net(struct net *n)
{
    struct err e = {0};
    *net_value(n, "seed") = 1;
    CHECK_OK(exec_run(n->x, 0, &e), &e);
    CHECK_EQ(exec_peak_measured(n->x), exec_peak_planned(n->x));
}

TEST(checkpoint_frozen_inputs, "L1 L3 case-T34: a trained part behind a frozen input learns")
{
    /* y = (W + B A) x, W = 2 frozen, A = 3, B = 0, x = 1, L = y^2 / 2, rate 0.1. */
    for (int count = 0; count < 2; count++) {
        struct net n;
        net_begin(&n);
        int x = ir_input(n.p, "x", DT_F32, SHAPE(1, 1));
        n.p->phase = PHASE_FORWARD;
        n.p->block = 0;
        int w = trial_weight(n.p, "w", SHAPE(1, 1), false);
        int a = trial_weight(n.p, "a", SHAPE(1, 1), true),
            b = trial_weight(n.p, "b", SHAPE(1, 1), true);
        int y = ir_binary(
            n.p, OP_ADD, ir_linear(n.p, x, w, IR_NONE),
            ir_linear(n.p, ir_linear(n.p, x, a, IR_NONE), b, IR_NONE));
        n.p->block = 1; /* so that block 0 is not the last one */
        y = ir_affine(n.p, y, 1, 0);
        n.p->block = IR_NONE;
        n.p->phase = PHASE_LOSS;
        int loss = ir_sum(n.p, ir_affine(n.p, ir_binary(n.p, OP_MUL, y, y), 0.5, 0), 3, false);
        net_end(&n, loss, count);
        *(float *)exec_var(n.x, 0) = 2;
        *(float *)exec_var(n.x, 1) = 3;
        *(float *)exec_var(n.x, 2) = 0;
        *net_value(&n, "x") = 1;
        run_net(&n);
        CHECK_EQ(*net_value(&n, "grad:a") == 0.0f, true);
        CHECK_EQ(*net_value(&n, "grad:b") == 6.0f, true); /* B becomes -0.6 */
        CHECK_EQ(ir_output_find(n.p, "grad:w"), IR_NONE);
        net_close(&n);
    }
}

/* Blocks x + tanh(x W) V, each with weights of its own. */
static void build_blocks(struct net *n, int blocks, int count)
{
    enum { ROWS = 64, WIDTH = 32, WIDE = 128 };
    char name[16];
    net_begin(n);
    int x = ir_input(n->p, "x", DT_F32, SHAPE(ROWS, WIDTH));
    n->p->phase = PHASE_FORWARD;
    for (int i = 0; i < blocks; i++) {
        n->p->block = i;
        (void)snprintf(name, sizeof name, "w%d", i);
        int w = trial_weight(n->p, name, SHAPE(WIDE, WIDTH), true);
        (void)snprintf(name, sizeof name, "v%d", i);
        int v = trial_weight(n->p, name, SHAPE(WIDTH, WIDE), true);
        int h = ir_unary(n->p, OP_TANH, ir_linear(n->p, x, w, IR_NONE));
        x = ir_binary(n->p, OP_ADD, x, ir_linear(n->p, h, v, IR_NONE));
    }
    n->p->block = IR_NONE;
    n->p->phase = PHASE_LOSS;
    int loss = ir_mean(n->p, ir_binary(n->p, OP_MUL, x, x), 3, false);
    net_end(n, loss, count);
    for (int v = 0; v < 2 * blocks; v++)
        for (int i = 0; i < WIDTH * WIDE; i++)
            ((float *)exec_var(n->x, v))[i] = (float)((i * 7 + v * 13) % 29 - 14) / 64;
    for (int i = 0; i < ROWS * WIDTH; i++)
        net_value(n, "x")[i] = (float)(i % 17 - 8) / 8;
}

static int count_again(const struct net *n, enum opcode code)
{
    int found = 0;
    for (size_t i = 0; i < n->p->ops.n; i++)
        found += n->p->ops.data[i].recomputed && n->p->ops.data[i].code == code;
    return found;
}

TEST(checkpoint_blocks, "L1 case-T36: marked blocks: the same gradients, a falling peak")
{
    enum { BLOCKS = 5, SIZE = 128 * 32 };
    static float first[2 * BLOCKS][SIZE];
    int64_t before = 0;
    for (int count = 0; count <= BLOCKS; count++) {
        struct net n;
        char name[24];
        build_blocks(&n, BLOCKS, count);
        run_net(&n);
        for (int v = 0; v < 2 * BLOCKS; v++) {
            (void)snprintf(name, sizeof name, "grad:%s", n.vars.list.data[v].name);
            if (count == 0)
                memcpy(first[v], net_value(&n, name), sizeof first[v]);
            CHECK(memcmp(first[v], net_value(&n, name), sizeof first[v]) == 0);
        }
        int64_t peak = exec_peak_planned(n.x);
        CHECK(count == 0 || peak <= before);
        before = peak;
        /* One product of each block: the second one's result is needed by nobody. */
        CHECK_EQ(count_again(&n, OP_GEMM), count == BLOCKS ? BLOCKS - 1 : count);
        net_close(&n);
    }
}

/* Cheap chains with views in them before and within blocks: what a checkpoint runs again reads what
 * is itself computed again, and its cheap results are computed again for their readers. */
static void build_chains(struct net *n, int blocks, int count)
{
    enum { ROWS = 32, WIDTH = 64 };
    char name[16];
    net_begin(n);
    int x = ir_input(n->p, "x", DT_F32, SHAPE(ROWS, WIDTH));
    n->p->phase = PHASE_FORWARD;
    for (int i = 0; i < blocks; i++) {
        (void)snprintf(name, sizeof name, "v%d", i);
        int v = trial_weight(n->p, name, SHAPE(WIDTH, WIDTH), true);
        n->p->block = IR_NONE;
        x = ir_unary(n->p, OP_SILU, ir_linear(n->p, x, v, IR_NONE)); /* its gradient reads x */
        n->p->block = i;
        int in = ir_unary(n->p, OP_SIGMOID, x);
        int h = ir_unary(n->p, OP_TANH, ir_linear(n->p, in, v, IR_NONE));
        h = ir_binary(n->p, OP_MUL, h, ir_unary(n->p, OP_SILU, in));
        h = ir_reshape(n->p, h, SHAPE(ROWS, 2, WIDTH / 2));
        h = ir_unary(n->p, OP_SIGMOID, ir_unary(n->p, OP_TANH, h));
        h = ir_reshape(n->p, h, SHAPE(ROWS, WIDTH));
        int g = ir_binary(n->p, OP_MUL, h, ir_unary(n->p, OP_SILU, h));
        x = ir_binary(n->p, OP_ADD, x, ir_binary(n->p, OP_MUL, g, ir_linear(n->p, g, v, IR_NONE)));
    }
    n->p->block = IR_NONE;
    n->p->phase = PHASE_LOSS;
    int loss = ir_mean(n->p, ir_binary(n->p, OP_MUL, x, x), 3, false);
    net_end(n, loss, count);
    for (int v = 0; v < blocks; v++)
        for (int i = 0; i < WIDTH * WIDTH; i++)
            ((float *)exec_var(n->x, v))[i] = (float)((i * 7 + v * 13) % 29 - 14) / 64;
    for (int i = 0; i < ROWS * WIDTH; i++)
        net_value(n, "x")[i] = (float)(i % 17 - 8) / 8;
}

TEST(
    recompute_second_runs,
    "L1 case-T36: chains over what checkpoints run again: the same gradients")
{
    enum { BLOCKS = 4, SIZE = 64 * 64 };
    static float first[BLOCKS][SIZE];
    for (int count = 0; count <= BLOCKS; count++) {
        struct net n;
        char name[24];
        build_chains(&n, BLOCKS, count);
        run_net(&n);
        for (int v = 0; v < BLOCKS; v++) {
            (void)snprintf(name, sizeof name, "grad:%s", n.vars.list.data[v].name);
            if (count == 0)
                memcpy(first[v], net_value(&n, name), sizeof first[v]);
            CHECK(memcmp(first[v], net_value(&n, name), sizeof first[v]) == 0);
        }
        net_close(&n);
    }
}

/* ---- the update in the backward pass ---- */

static int64_t category_peak(struct trial *t, enum category c)
{
    return exec_report(train_exec(t->train))->by_category[c];
}

TEST(update_in_backward, "L5 L2: the same bits, several optimizers; gradients are freed one by one")
{
    static const char *const optims[] = {
        "{'type':'AdamW','lr':0.01}", "{'type':'SGD','lr':0.1,'momentum':0.9}",
        "{'type':'NAdam','lr':0.01}"};
    for (int i = 0; i < 6; i++) {
        struct trial_setup s = i % 2 ? deep_cnn(12, 4) : deep(48, 16);
        struct trial off, on;
        s.optim = optims[i / 2];
        s.config.precision = i == 2 ? PRECISION_BF16 : PRECISION_FP32;
        s.config.log_grad_norm = true;
        if (i > 3)
            s.config.levers.checkpointing = CHECKPOINT_BLOCKS;
        int64_t peak = run_peak(&off, &s);
        s.config.levers.update_in_backward = true;
        int64_t lower = run_peak(&on, &s);
        trial_check_same(&off, &on);
        CHECK_NEAR(off.train->last_norm, on.train->last_norm, off.train->last_norm * 1e-6);
        if (i % 2 == 0) {
            CHECK(lower < peak);
            CHECK(
                category_peak(&on, CATEGORY_GRADIENTS) * 3 <
                category_peak(&off, CATEGORY_GRADIENTS));
        }
        trial_close(&off);
        trial_close(&on);
    }
}

TEST(update_half, "L5 P9: weights of 16 bits under autocast: a fused product reads the old weight")
{
    struct trial_setup s = deep(48, 16);
    s.config.precision = PRECISION_BF16;
    s.config.levers.parameter_dtype = DT_BF16;
    for (int m = MASTER_F32; m <= MASTER_STOCHASTIC; m++) {
        struct trial off, on;
        s.config.levers.master_weights = (enum master_weights)m;
        s.config.levers.update_in_backward = false;
        (void)run_peak(&off, &s);
        s.config.levers.update_in_backward = true;
        (void)run_peak(&on, &s);
        trial_check_same(&off, &on);
        trial_close(&off);
        trial_close(&on);
    }
}

TEST(update_refused, "L5: what needs the whole gradient is refused, and both parameters are named")
{
    const char *const named[] = {"grad_clip_norm",   "precision fp16",   "bf16_scaler",
                                 "accumulate_steps", "log_update_ratio", "parameter_dtype float16"};
    for (int i = 0; i < 6; i++) {
        struct trial_setup s = deep(48, 16);
        struct trial t;
        struct err e = {0};
        s.config.levers.update_in_backward = true;
        s.config.max_norm = i == 0;
        s.config.precision = i == 1 ? PRECISION_FP16 : i == 2 ? PRECISION_BF16 : PRECISION_FP32;
        s.config.bf16_scaler = i == 2;
        s.config.accumulate = i == 3 ? 2 : 1;
        s.config.log_update_ratio = i == 4;
        s.config.levers.parameter_dtype = i == 5 ? DT_F16 : DT_F32;
        CHECK_EQ(trial_plan(&t, &s, &e), ST_INVALID);
        CHECK(strstr(e.text, "update_in_backward") && strstr(e.text, named[i]));
    }
}

TEST(update_nan, "L5 P10: a NaN is still found in the node that made it, and ends the run")
{
    static float x[48 * 6];
    struct trial_setup s = deep(48, 16);
    struct trial t;
    struct err e = {0};
    for (int i = 0; i < 48 * 6; i++)
        x[i] = (float)i / 288;
    s.train.x = x;
    s.config.levers.update_in_backward = true;
    trial_open(&t, &s);
    trial_var(&t, "layers.l3.bias")[1] = NAN;
    CHECK_EQ(trial_go(&t, &e), ST_FAILED);
    CHECK_STR(e.node, "model/l3");
    trial_close(&t);
}

TEST(update_tied, "L5: a weight with two uses is updated after the last of them")
{
    struct net n;
    struct err e = {0};
    struct update_vars u;
    struct update_options o = {.optim = {.kind = OPTIM_SGD}, .early = true};
    int grads[2], uses = 0, update = IR_NONE, last = IR_NONE;
    net_begin(&n);
    n.p->phase = PHASE_FORWARD;
    int x = ir_input(n.p, "x", DT_F32, SHAPE(8, 16));
    int w = trial_weight(n.p, "w", SHAPE(16, 16), true),
        v = trial_weight(n.p, "v", SHAPE(16, 16), true);
    int y = ir_unary(n.p, OP_TANH, ir_linear(n.p, x, w, IR_NONE));
    y = ir_unary(n.p, OP_TANH, ir_linear(n.p, y, v, IR_NONE));
    y = ir_linear(n.p, y, ir_transpose(n.p, w, 0, 1), IR_NONE);
    int loss = ir_mean(n.p, ir_binary(n.p, OP_MUL, y, y), 3, false);
    ir_output(n.p, loss, "loss");
    ir_backward(n.p, loss, ir_input(n.p, "seed", DT_F32, shape_scalar()), grads);
    update_vars_make(&n.vars, &o.optim, false, grads, 2, &u);
    CHECK_OK(pass_update(n.p, &o, grads, &u, &e), &e);
    CHECK_OK(ir_verify(n.p, &e), &e);
    for (int i = 0; i < (int)n.p->ops.n; i++) {
        const struct ir_op *op = &n.p->ops.data[i];
        if (op->code == OP_OPTIMIZER && op->in[0] == w)
            update = i;
        if (op->code == OP_OPTIMIZER && op->in[0] == v)
            CHECK(update == IR_NONE); /* v is done before w, whose first use is still to come */
        for (int k = 0; k < op->n_in && op->code == OP_GEMM; k++)
            if (ir_storage(n.p, op->in[k]) == w) {
                uses++;
                last = i;
            }
    }
    CHECK_EQ(uses, 3); /* two forward, one backward: x needs no gradient */
    CHECK(update > last);
    update_vars_release(&u);
    net_close(&n);
}
