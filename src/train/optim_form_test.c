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

TEST(int8_resumes, "L4 A7: saved and resumed in the middle, codes and scales go on bit by bit")
{
    for (int i = 0; i < INT8_OPTIMS; i++) {
        struct trial_setup s = wide(int8_optims[i]);
        struct trial whole, half, rest;
        char path[512];
        s.config.levers.optimizer_state = OPTIM_STATE_INT8;
        trial_open(&whole, &s);
        trial_run(&whole);
        trial_open(&half, &s);
        trial_run_to(&half, 10);
        trial_save(&half, path, "half");
        trial_open(&rest, &s);
        trial_resume(&rest, path);
        trial_run(&rest);
        trial_check_same(&whole, &rest);
        trial_close(&whole);
        trial_close(&half);
        trial_close(&rest);
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
    struct trial whole, half, rest;
    char path[512];
    trial_open(&whole, &s);
    CHECK_EQ(bytes_of(&whole, CATEGORY_OPTIMIZER_STATE), (64 + 128 + 128 + 128 + 3 + 3) * 4);
    trial_run(&whole);
    CHECK(trial_metric(&whole, "final_train_loss") < 0.9);
    trial_open(&half, &s);
    trial_run_to(&half, 10);
    trial_save(&half, path, "half");
    trial_open(&rest, &s);
    trial_resume(&rest, path);
    trial_run(&rest);
    trial_check_same(&whole, &rest);
    trial_close(&whole);
    trial_close(&half);
    trial_close(&rest);
}
