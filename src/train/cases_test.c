/* cases_test.c - cases of public bug reports about accumulation, mixed precision, clipping, the
 * order of arithmetic, evaluation and schedules, each with its right value. Those about checkpoints
 * are in resume_test.c. Losses and optimizers alone: spec and kernel tests. */
#include "train/train_test_support.h"

#include "ir/build.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { IGNORED = -100 };

/* ---- A: accumulation ---- */

static const int64_t t01_labels[] = {0, 0, 0, 1, IGNORED, IGNORED};

static void check_t01(int64_t accumulate, bool tokens, double b0)
{
    struct trial_setup s = trial_classifier(t01_labels, 6, 6 / accumulate);
    struct trial t;
    s.config.accumulate = accumulate;
    s.config.accumulate_tokens = tokens;
    trial_open(&t, &s);
    trial_run(&t);
    const float *b = trial_var(&t, CLASSIFIER_B);
    CHECK_NEAR((double)b[0], b0, 1e-7);
    CHECK_NEAR((double)b[1], -b0, 1e-7);
    CHECK_NEAR(trial_metric(&t, "final_train_loss"), 0.69314718, 1e-6);
    CHECK_EQ(trial_warned(&t, "accumulate_normalize"), accumulate > 1 && !tokens);
    trial_close(&t);
}

TEST(tokens_weigh_micro_batches, "A8 A2 case-T01: per label, the window is the big batch")
{
    check_t01(1, false, 0.25);
    check_t01(2, true, 0.25);
}

TEST(batches_weigh_the_same, "A8 case-T01: plain division gives the mean of means, and warns")
{
    check_t01(2, false, 0);
}

TEST(short_window_divides_by_n, "A6 case-T03: one micro-batch of three steps by c/3")
{
    const float c[] = {7};
    struct trial_setup s = trial_scalar(c, 1);
    s.config.accumulate = 3;
    CHECK_NEAR(trial_scalar_weight(&s), -7.0 / 3, 1e-6);
    const float more[] = {1, 2, 3, 7}; /* the same after a full window */
    s = trial_scalar(more, 4);
    s.config.accumulate = 3;
    CHECK_NEAR(trial_scalar_weight(&s), -2 - 7.0 / 3, 1e-6);
}

TEST(short_window_by_tokens, "A6 A8 case-T03: the short window is as small when labels are weighed")
{
    const int64_t labels[] = {0, 0, IGNORED};
    for (int tokens = 0; tokens < 2; tokens++) {
        struct trial_setup s = trial_classifier(labels, 3, 3);
        struct trial t;
        s.config.accumulate = 3;
        s.config.accumulate_tokens = tokens;
        trial_open(&t, &s);
        trial_run(&t);
        CHECK_NEAR((double)trial_var(&t, CLASSIFIER_B)[0], 0.5 / 3, 1e-7);
        trial_close(&t);
    }
}

static void check_t07(int64_t accumulate)
{
    const float c[] = {3, 3, 3, 3}, zero[4] = {0};
    struct trial_setup s = trial_scalar(c, accumulate);
    struct trial t;
    s.train.y = zero;
    s.config.accumulate = accumulate;
    s.config.log_grad_norm = s.config.batch_metrics = true;
    trial_open(&t, &s);
    *trial_var(&t, SCALAR_W) = 1;
    trial_run(&t);
    CHECK_NEAR(trial_w(&t), -2, 0);
    CHECK_NEAR(trial_metric(&t, "final_train_loss"), 3, 0);
    CHECK_NEAR(json_get_f64(trial_last(&t, "batch"), "loss", 0), 3, 0);
    CHECK_NEAR(json_get_f64(trial_last(&t, "batch"), "grad_norm", 0), 3, 0);
    trial_close(&t);
}

TEST(divided_once, "A1 A5 case-T07: gradient, loss and norm do not carry N")
{
    check_t07(1);
    check_t07(4);
}

static const float t10_c[] = {1, NAN, 3, 5};

TEST(
    nan_micro_batch_skips_its_window,
    "P7 A1 case-T10: the window is skipped whole, the next is its own")
{
    for (int adam = 0; adam < 2; adam++) {
        struct trial_setup s = trial_scalar(t10_c, 4);
        struct trial t;
        s.config.accumulate = 2;
        s.config.precision = PRECISION_FP16;
        s.config.scale_initial = 8;
        s.config.schedule_per_update = true;
        s.schedule = "{'type':'StepLR','step_size':1,'gamma':0.5}";
        s.optim = adam ? "{'type':'Adam','lr':1}" : "{'type':'SGD','lr':1}";
        trial_open(&t, &s);
        trial_run(&t);
        CHECK_NEAR(trial_w(&t), adam ? -1 : -4, 1e-6);
        CHECK_NEAR(train_lr(t.train), 0.5, 0); /* one update, one step of the schedule */
        CHECK_NEAR(trial_metric(&t, "total_steps"), 1, 0);
        CHECK_NEAR(trial_metric(&t, "skipped_steps"), 1, 0);
        CHECK_NEAR(trial_metric(&t, "scale"), 4, 0);
        if (adam) {
            CHECK_NEAR((double)*trial_var(&t, "exp_avg:" SCALAR_W), 0.4, 1e-6);
            CHECK_NEAR((double)*trial_var(&t, "exp_avg_sq:" SCALAR_W), 0.016, 1e-7);
        }
        trial_close(&t);
    }
}

TEST(
    nan_without_scaler_ends_the_run,
    "P10 case-T10: the run stops at the NaN, with the weights before it")
{
    for (int p = PRECISION_FP32; p <= PRECISION_BF16; p++) {
        struct trial_setup s = trial_scalar(t10_c, 4);
        struct trial t;
        struct err e;
        s.config.accumulate = 2;
        s.config.precision = (enum precision)p;
        trial_open(&t, &s);
        CHECK_EQ(trial_go(&t, &e), ST_FAILED);
        CHECK(strstr(e.text, "batch 2") != NULL);
        CHECK(strstr(e.detail, "model/l") != NULL);
        CHECK_NEAR(trial_w(&t), 0, 0);
        trial_close(&t);
    }
}

static void check_t12(int64_t accumulate, double mean, double var, double loss)
{
    const float x[] = {0, 0, 10, 10}, y[] = {-1, -1, -1, -1};
    struct trial_setup s = {.layers = "BatchNorm1d n {'num_features':1}"};
    struct trial t;
    s.train = (struct trial_data){
        .n = 4,
        .batch = 4 / accumulate,
        .rank = 1,
        .shape = {1},
        .x = x,
        .target = DATA_F32,
        .target_rank = 1,
        .target_shape = {1},
        .y = y};
    s.config.accumulate = accumulate;
    trial_open(&t, &s);
    trial_run(&t);
    CHECK_NEAR((double)*trial_var(&t, "layers.n.running_mean"), mean, 1e-6);
    CHECK_NEAR((double)*trial_var(&t, "layers.n.running_var"), var, 1e-6);
    const int64_t *seen =
        exec_var(train_exec(t.train), ir_var_find(&t.vars, "layers.n.num_batches_tracked"));
    CHECK_EQ(*seen, accumulate);
    CHECK_NEAR(trial_metric(&t, "final_train_loss"), loss, 1e-5);
    CHECK_EQ(trial_warned(&t, "batch_statistics"), accumulate > 1);
    trial_close(&t);
}

TEST(
    batch_statistics_see_the_micro_batch,
    "A10 A2 case-T12: batch norm under accumulation, and its warning")
{
    check_t12(1, 0.5, 4.233333, 1); /* half of the outputs are -1: |y - -1| is 0 or 2 */
    check_t12(2, 1.0, 0.81, 1);     /* every output is 0 */
}

static void check_t13(enum precision p, int64_t n, double scale)
{
    float *c = mem_alloc((size_t)n * sizeof *c);
    for (int64_t i = 0; i < n; i++)
        c[i] = 1;
    struct trial_setup s = trial_scalar(c, n);
    s.config.accumulate = n;
    s.config.precision = p;
    s.config.scale_initial = scale;
    s.config.scale_fixed = true;
    CHECK_NEAR(trial_scalar_weight(&s), -1, 0);
    mem_free(c);
}

TEST(long_windows_sum_in_float32, "P2 case-T13: 512 micro-batches in bf16, 4096 in fp16")
{
    check_t13(PRECISION_FP32, 512, 0);
    check_t13(PRECISION_BF16, 512, 0);
    check_t13(PRECISION_FP16, 4096, 4096);
    check_t13(PRECISION_FP16, 4096, 65536);
}

/* ---- B: precision, scaler, clipping ---- */

TEST(
    scale_is_one_per_window,
    "P7 A2 case-T18: the scale grows after the update, not inside the window")
{
    const float c[] = {1, 1};
    struct trial_setup s = trial_scalar(c, 2);
    struct trial t;
    s.config.accumulate = 2;
    s.config.precision = PRECISION_FP16;
    s.config.scale_initial = 2;
    s.config.scale_growth_interval = 1;
    trial_open(&t, &s);
    trial_run(&t);
    CHECK_NEAR(trial_w(&t), -1, 0);
    CHECK_NEAR(trial_metric(&t, "scale"), 4, 0);
    trial_close(&t);
}

TEST(clips_large_half_gradients, "A3 P7 case-T20: a gradient of 300 under fp16 is clipped to 1")
{
    const float c[] = {300};
    struct trial_setup s = trial_scalar(c, 1);
    s.config.precision = PRECISION_FP16;
    s.config.max_norm = 1;
    s.config.scale_fixed = true;
    for (double scale = 1; scale <= 64; scale *= 8) {
        s.config.scale_initial = scale;
        CHECK_NEAR(trial_scalar_weight(&s), -1, 1e-5);
    }
}

TEST(clips_gradients_whose_squares_overflow, "A3 case-T20: 100 gradients of 1e20 have norm 1e21")
{
    const float x[] = {1e20f};
    struct trial_setup s = {
        .layers = "Linear l {'in_features':1,'out_features':100,'bias':false}",
        .loss = "{'type':'L1Loss','reduction':'sum'}"};
    struct trial t;
    float y[100];
    for (int i = 0; i < 100; i++)
        y[i] = -1024;
    s.train = (struct trial_data){
        .n = 1,
        .batch = 1,
        .rank = 1,
        .shape = {1},
        .x = x,
        .target = DATA_F32,
        .target_rank = 1,
        .target_shape = {100},
        .y = y};
    s.config.max_norm = 1;
    s.config.log_grad_norm = s.config.batch_metrics = true;
    trial_open(&t, &s);
    float *w = trial_var(&t, SCALAR_W);
    memset(w, 0, 100 * sizeof *w);
    trial_run(&t);
    for (int i = 0; i < 100; i++)
        CHECK_NEAR((double)w[i], -0.1, 1e-6);
    CHECK_NEAR(json_get_f64(trial_last(&t, "batch"), "grad_norm", 0) / 1e21, 1, 1e-5);
    trial_close(&t);
}

TEST(infinite_gradients_touch_nothing, "A3 P7 case-T20: (inf, 1) is skipped or an error")
{
    const float x[] = {INFINITY, 1}, y[] = {-1024};
    for (int p = PRECISION_FP32; p <= PRECISION_FP16; p++) {
        struct trial_setup s = {
            .layers = "Linear l {'in_features':2,'out_features':1,'bias':false}"};
        struct trial t;
        struct err e;
        s.train = (struct trial_data){
            .n = 1,
            .batch = 1,
            .rank = 1,
            .shape = {2},
            .x = x,
            .target = DATA_F32,
            .target_rank = 1,
            .target_shape = {1},
            .y = y};
        s.config.precision = (enum precision)p;
        s.config.max_norm = 1;
        trial_open(&t, &s);
        float *w = trial_var(&t, SCALAR_W);
        w[0] = w[1] = 0.5f;
        CHECK_EQ(trial_go(&t, &e), p == PRECISION_FP16 ? ST_OK : ST_FAILED);
        CHECK(w[0] == 0.5f && w[1] == 0.5f);
        if (p == PRECISION_FP16)
            CHECK_NEAR(trial_metric(&t, "skipped_steps"), 1, 0);
        trial_close(&t);
    }
}

TEST(
    small_steps_move_the_masters,
    "P2 case-T22: float32 weights move where their bf16 copies cannot")
{
    float c[101], zero[101] = {0}, want = 1;
    for (int i = 0; i < 101; i++)
        c[i] = 1;
    struct trial_setup s = trial_scalar(c, 101);
    struct trial t;
    s.train.y = zero; /* the loss is |bf16(w)|: the copy that the product saw */
    s.optim = "{'type':'SGD','lr':0.001}";
    s.config.precision = PRECISION_BF16;
    s.config.batch_metrics = true;
    trial_open(&t, &s);
    *trial_var(&t, SCALAR_W) = 1;
    trial_run_to(&t, 100);
    for (int i = 0; i < 100; i++)
        want = want - 0.001f;
    CHECK(trial_w(&t) == (double)want);
    CHECK_NEAR(trial_w(&t), 0.900001, 5e-7);
    trial_run(&t);
    int at = 0;
    for (size_t i = 0; i < json_array_size(t.events); i++) {
        const json_t *j = json_array_get(t.events, i);
        if (strcmp(json_get_str(j, "event", ""), "batch") != 0)
            continue;
        double copy = json_get_f64(j, "loss", 0);
        if (at < 2)
            CHECK_NEAR(copy, 1, 0); /* after 0 and 1 updates */
        if (at == 2)
            CHECK_NEAR(copy, 0.99609375, 0);
        if (at == 100)
            CHECK_NEAR(copy, 0.8984375, 0);
        at++;
    }
    CHECK_EQ(at, 101);
    trial_close(&t);
}

static void
check_t26(enum precision p, double b0, double b1, int64_t n, double want, double tolerance)
{
    int64_t *labels = mem_alloc((size_t)n * sizeof *labels);
    struct trial_setup s = trial_classifier(labels, n, n);
    struct trial t;
    s.config.precision = p;
    trial_open(&t, &s);
    trial_var(&t, CLASSIFIER_B)[0] = (float)b0;
    trial_var(&t, CLASSIFIER_B)[1] = (float)b1;
    trial_run(&t);
    CHECK_NEAR(trial_metric(&t, "final_train_loss"), want, tolerance);
    trial_close(&t);
    mem_free(labels);
}

TEST(losses_are_summed_in_float32, "P3 case-T26: 8192 tokens of loss 10.82 overflow nothing")
{
    /* ln(1 + e^x) = 10.82 for a logit that all three types hold exactly */
    double x = 10.8125, want = log1p(exp(x));
    for (int p = PRECISION_FP32; p <= PRECISION_FP16; p++)
        check_t26((enum precision)p, 0, x, 8192, want, 1e-5);
}

TEST(mean_over_a_large_vocabulary, "P3 case-T26: ln 50257 for equal logits")
{
    for (int p = PRECISION_FP32; p <= PRECISION_FP16; p++) {
        struct trial_setup s = {
            .layers = "Linear l {'in_features':1,'out_features':50257}",
            .loss = "{'type':'CrossEntropyLoss'}"};
        const float x[8] = {0};
        struct trial t;
        s.train = (struct trial_data){
            .n = 8,
            .batch = 8,
            .rank = 1,
            .shape = {1},
            .x = x,
            .target = DATA_I64,
            .classes = 50257};
        s.config.precision = (enum precision)p;
        trial_open(&t, &s);
        memset(trial_var(&t, CLASSIFIER_B), 0, 50257 * sizeof(float));
        trial_run(&t);
        CHECK_NEAR(trial_metric(&t, "final_train_loss"), 10.824905, 1e-5);
        trial_close(&t);
    }
}

TEST(exponentials_are_float32, "P3 case-T26: cross-entropy of (12, 0) is 6.144193e-06 under fp16")
{
    for (int p = PRECISION_FP32; p <= PRECISION_FP16; p++)
        check_t26((enum precision)p, 12, 0, 1, 6.144193e-06, 6e-9);
}

TEST(decay_comes_first, "case-T28: AdamW decays the old weight, then steps: 0.89")
{
    const float c[] = {1};
    struct trial_setup s = trial_scalar(c, 1);
    struct trial t;
    s.optim = "{'type':'AdamW','lr':0.1,'weight_decay':0.1}";
    trial_open(&t, &s);
    *trial_var(&t, SCALAR_W) = 1;
    trial_run(&t);
    CHECK_NEAR(trial_w(&t), 0.89, 1e-6);
    trial_close(&t);
}

/* Two weights a and b of one product each, fed with the two numbers of a sample. */
#define TWO_WEIGHTS                                                                                \
    "{'version':2,'nodes':[{'id':'in','type':'Input','ports':[{'id':'p','name':'x'}]},"            \
    "{'id':'sa','type':'SelectIndex','params':{'dim':1,'index':0}},"                               \
    "{'id':'sb','type':'SelectIndex','params':{'dim':1,'index':1}},"                               \
    "{'id':'a','type':'Linear','params':{'in_features':1,'out_features':1,'bias':false}},"         \
    "{'id':'b','type':'Linear','params':{'in_features':1,'out_features':1,'bias':false}},"         \
    "{'id':'sum','type':'Add'},"                                                                   \
    "{'id':'out','type':'Output','ports':[{'id':'q','name':'y'}]}],'edges':["                      \
    "{'source':'in','sourceHandle':'p','target':'sa'},"                                            \
    "{'source':'in','sourceHandle':'p','target':'sb'},"                                            \
    "{'source':'sa','target':'a'},{'source':'sb','target':'b'},"                                   \
    "{'source':'a','target':'sum'},{'source':'b','target':'sum'},"                                 \
    "{'source':'sum','target':'out','targetHandle':'q'}]}"

TEST(clipping_is_global, "A3 case-T30: gradients 3 and 4 of two weights step -0.6 and -0.8")
{
    const float x[] = {3, 4}, y[] = {-1024};
    struct trial_setup s = {.layers = TWO_WEIGHTS};
    struct trial t;
    s.train = (struct trial_data){
        .n = 1,
        .batch = 1,
        .rank = 2,
        .shape = {2, 1},
        .x = x,
        .target = DATA_F32,
        .target_rank = 1,
        .target_shape = {1},
        .y = y};
    s.config.max_norm = 1;
    trial_open(&t, &s);
    *trial_var(&t, "layers.a.weight") = *trial_var(&t, "layers.b.weight") = 0;
    trial_run(&t);
    CHECK_NEAR((double)*trial_var(&t, "layers.a.weight"), -0.6, 2e-6);
    CHECK_NEAR((double)*trial_var(&t, "layers.b.weight"), -0.8, 2e-6);
    trial_close(&t);
}

TEST(shared_weight_counts_once, "A3 case-T31: used twice, gradient (3, 4): norm 5, step (-3, -4)")
{
    struct ir_vars vars;
    struct err e;
    ir_vars_init(&vars);
    struct ir_var w = {
        .name = "w",
        .dtype = DT_F32,
        .shape = SHAPE(2),
        .category = CATEGORY_PARAMETERS,
        .trainable = true,
        .of = IR_NONE,
        .node = IR_NONE};
    int var = ir_var_new(&vars, &w), grads[8];
    struct ir_program *p = ir_program_new("tied", &vars);
    int a = ir_input(p, "a", DT_F32, SHAPE(2)), b = ir_input(p, "b", DT_F32, SHAPE(2));
    int seed = ir_input(p, "seed", DT_F32, shape_scalar());
    int first = ir_binary(p, OP_MUL, ir_var_read(p, var), a);
    int second = ir_binary(p, OP_MUL, ir_var_read(p, var), b);
    int loss = ir_sum(p, ir_binary(p, OP_ADD, first, second), 1, false);
    ir_backward(p, loss, seed, grads);
    struct update_vars u;
    struct update_options o = {.window = WINDOW_ONLY, .max_norm = 5, .optim = {.kind = OPTIM_SGD}};
    update_vars_make(&vars, &o.optim, false, grads, 1, &u);
    CHECK_OK(pass_update(p, &o, grads, &u, &e), &e);
    struct exec *x;
    CHECK_OK(exec_new(&vars, &p, 1, NULL, &x, &e), &e);
    CHECK_OK(exec_map(x, &e), &e);
    float *va = exec_value(x, 0, a), *vb = exec_value(x, 0, b);
    va[0] = 1, va[1] = 4, vb[0] = 2, vb[1] = 0;
    *(float *)exec_value(x, 0, seed) = 1;
    *(float *)exec_value(x, 0, ir_input_find(p, "loss_scale")) = 1;
    double *hyper = exec_value(x, 0, ir_input_find(p, "hyper"));
    hyper[0] = hyper[1] = 1;
    CHECK_OK(exec_run(x, 0, &e), &e);
    const float *ctl = exec_value(x, 0, ir_output_find(p, "ctl")), *value = exec_var(x, var);
    CHECK_NEAR((double)ctl[3], 5, 0);
    CHECK_NEAR((double)value[0], -3, 1e-5);
    CHECK_NEAR((double)value[1], -4, 1e-5);
    exec_free(x);
    update_vars_release(&u);
    ir_program_free(p);
    ir_vars_release(&vars);
}

TEST(
    overflowing_gradient_of_a_finite_loss,
    "A3 P7 P10 case-T20: the run ends, or the update is skipped")
{
    const float x[] = {3e38f, 3e38f}, y[] = {-1, -1};
    for (int n = 1; n <= 2; n++) { /* in one batch, or summed over a window */
        struct trial_setup s = trial_scalar(x, 2);
        struct trial t;
        struct err e;
        s.loss = "{'type':'L1Loss','reduction':'sum'}";
        s.train.y = y;
        s.train.batch = 2 / n;
        s.config.accumulate = n;
        s.scale_forced = 2; /* undone at the update: the window sums 2 * 3e38 */
        trial_open(&t, &s);
        t.train->scaler.enabled = false;
        CHECK_EQ(trial_go(&t, &e), ST_FAILED);
        CHECK_NEAR(trial_w(&t), 0, 0);
        CHECK_NEAR(trial_metric(&t, "total_steps"), 0, 0);
        trial_close(&t);
    }
}

TEST(clipping_sees_the_whole_window, "A3: the sum of a window is clipped, not its parts")
{
    const float c[] = {6, -2};
    struct trial_setup s = trial_scalar(c, 2);
    s.config.accumulate = 2;
    s.config.max_norm = 1.5;
    CHECK_NEAR(trial_scalar_weight(&s), -1.5, 1e-5); /* gradient 2; parts clipped alone: 0 */
    s.config.max_norm = 4;
    CHECK_NEAR(trial_scalar_weight(&s), -2, 0);
}

/* ---- I: evaluation and schedules ---- */

TEST(
    validation_disturbs_nothing,
    "P6 L2 case-T88: never, each epoch, each 3 updates: the same weights")
{
    struct trial t[3];
    for (int i = 0; i < 3; i++) {
        struct trial_setup s = trial_mlp(20, 2);
        s.config.epochs = 2;
        if (i > 0) {
            s.val = s.train;
            s.val.n = 7;
        }
        s.config.val_every_steps = i == 2 ? 3 : 0;
        trial_open(&t[i], &s);
        trial_run(&t[i]);
        CHECK(trial_same_weights(&t[0], &t[i]));
    }
    CHECK_EQ(trial_count(&t[2], "val_step"), 6);
    for (int i = 0; i < 3; i++)
        trial_close(&t[i]);
}

TEST(rate_is_stepped_per_update, "A4 case-T91: 8 batches, N 4, rate halves twice")
{
    const float c[] = {1, 1, 1, 1, 1, 1, 1, 1};
    struct trial_setup s = trial_scalar(c, 8);
    struct trial t;
    s.config.accumulate = 4;
    s.config.schedule_per_update = true;
    s.schedule = "{'type':'StepLR','step_size':1,'gamma':0.5}";
    trial_open(&t, &s);
    trial_run(&t);
    CHECK_NEAR(trial_w(&t), -1.5, 0);
    CHECK_NEAR(train_lr(t.train), 0.25, 0);
    CHECK_NEAR(trial_metric(&t, "total_steps"), 2, 0);
    CHECK_NEAR(trial_metric(&t, "total_batches"), 8, 0);
    trial_close(&t);
}

/* The rates that the batch events name, and the weight that these rates give with c = 1. */
static void check_rates(const char *schedule, int64_t n, const double *want, double tolerance)
{
    float *c = mem_alloc((size_t)n * sizeof *c);
    for (int64_t i = 0; i < n; i++)
        c[i] = 1;
    struct trial_setup s = trial_scalar(c, n);
    struct trial t;
    double w = 0;
    int at = 0;
    s.config.schedule_per_update = s.config.batch_metrics = true;
    s.schedule = schedule;
    trial_open(&t, &s);
    trial_run(&t);
    for (size_t i = 0; i < json_array_size(t.events); i++) {
        const json_t *j = json_array_get(t.events, i);
        if (strcmp(json_get_str(j, "event", ""), "batch") != 0)
            continue;
        CHECK_NEAR(json_get_f64(j, "lr", -1), want[at], tolerance);
        w -= want[at++];
    }
    CHECK_EQ(at, n);
    CHECK_NEAR(trial_w(&t), w, 1e-4);
    trial_close(&t);
    mem_free(c);
}

TEST(
    cosine_stays_at_its_end, "case-T93: warm-up 5, total 15: never rising after the peak, 0 beyond")
{
    double want[18] = {0, 0.2, 0.4, 0.6, 0.8};
    for (int i = 5; i < 15; i++)
        want[i] = 0.5 * (1 + cos(acos(-1.0) * (i - 5) / 10));
    CHECK_NEAR(want[6], 0.975528, 1e-6);
    CHECK_NEAR(want[14], 0.024472, 1e-6);
    check_rates("{'type':'warmup_cosine','warmup_steps':5,'total_steps':15}", 18, want, 1e-6);
}

TEST(
    warm_up_rates_are_those_used,
    "case-T94: i/W: 0, 0.25, 0.5, 0.75; the rate reported is the one used")
{
    const double want[] = {0, 0.25, 0.5, 0.75}; /* w = -1.5 */
    check_rates("{'type':'constant_with_warmup','warmup_steps':4}", 4, want, 0);
}

TEST(epoch_events_name_the_rate_used, "case-T94: per epoch too, in the event and in the history")
{
    const float c[] = {1, 1};
    for (int per_update = 0; per_update < 2; per_update++) {
        struct trial_setup s = trial_scalar(c, 2);
        struct trial t;
        s.config.schedule_per_update = per_update;
        s.schedule = "{'type':'StepLR','step_size':1,'gamma':0.5}";
        trial_open(&t, &s);
        trial_run(&t);
        CHECK_NEAR(json_get_f64(trial_last(&t, "epoch"), "lr", 0), per_update ? 0.5 : 1, 0);
        CHECK_NEAR(t.train->series.lrs.data[0], per_update ? 0.5 : 1, 0);
        trial_close(&t);
    }
}

/* ---- K: numerics, empty inputs ---- */

TEST(
    smoothing_skips_ignored_labels,
    "A8 case-T101: 0.326928, and no gradient for the ignored position")
{
    const float x[] = {2, 0, 0, 5};
    const int64_t y[] = {0, IGNORED};
    struct trial_setup s = {
        .layers = "Linear l {'in_features':2,'out_features':2,'bias':false}",
        .loss = "{'type':'CrossEntropyLoss','label_smoothing':0.2}"};
    struct trial t;
    s.train = (struct trial_data){
        .n = 2,
        .batch = 2,
        .rank = 1,
        .shape = {2},
        .x = x,
        .target = DATA_I64,
        .y = y,
        .classes = 2};
    trial_open(&t, &s);
    float *w = trial_var(&t, SCALAR_W);
    w[0] = w[3] = 1; /* the logits are the inputs */
    w[1] = w[2] = 0;
    trial_run(&t);
    CHECK_NEAR(trial_metric(&t, "final_train_loss"), 0.326928, 1e-6);
    CHECK(w[1] == 0 && w[3] == 1); /* column of the ignored position's input */
    CHECK(w[0] != 1);
    trial_close(&t);
}

TEST(empty_loader_is_said_before_the_run, "case-T102: 3 samples, batch 4, drop_last")
{
    const float c[] = {1, 2, 3};
    struct trial_setup s = trial_scalar(c, 3);
    struct trial t;
    struct err e;
    s.train.batch = 4;
    s.train.drop_last = true;
    CHECK_EQ(trial_plan(&t, &s, &e), ST_INVALID);
    CHECK(strstr(e.text, "0 batches per epoch") != NULL);
}

TEST(
    empty_validation_is_absent,
    "case-T102: no validation loss, and early stopping does not see one")
{
    const float c[] = {1, 1};
    struct trial_setup s = trial_scalar(c, 2);
    struct trial t;
    s.val = s.train;
    s.val.n = 0;
    s.config.epochs = 4;
    s.config.patience = 2;
    s.config.val_every_steps = 1;
    s.schedule = "{'type':'ReduceLROnPlateau','gamma':0.5}";
    trial_open(&t, &s);
    trial_run(&t);
    json_t *m = train_metrics(t.train);
    const json_t *v = json_object_get(m, "final_val_loss");
    CHECK(json_is_null(v));
    CHECK_EQ(json_array_size(json_object_get(m, "val_losses")), 0);
    CHECK(json_object_get(trial_last(&t, "epoch"), "val_loss") == NULL);
    CHECK(trial_warned(&t, "validation"));
    CHECK_EQ(trial_count(&t, "val_step"), 0);
    CHECK(!json_get_bool(m, "stopped_early", true));
    CHECK(json_is_null(json_object_get(m, "best_epoch")));
    CHECK_NEAR(trial_metric(&t, "total_epochs_run"), 4, 0);
    CHECK_NEAR(train_lr(t.train), 1, 0);
    json_decref(m);
    trial_close(&t);
}

TEST(empty_batch_weighs_nothing, "case-T102: a batch of shape (0, d) has gradient 0, not NaN")
{
    struct trial t;
    struct err e;
    const float c[] = {1};
    struct trial_setup s = trial_scalar(c, 1);
    CHECK_OK(trial_plan(&t, &s, &e), &e);
    struct step_config config = t.train->steps_config;
    struct step_set steps;
    struct exec *x;
    config.batch = config.last_batch = 0;
    config.batches = 1;
    CHECK_OK(step_set_make(&t.vars, &config, NULL, &steps, &e), &e);
    CHECK_OK(exec_new(&t.vars, steps.programs, steps.n, NULL, &x, &e), &e);
    CHECK_OK(exec_map(x, &e), &e);
    const struct ir_program *p = steps.programs[0];
    double *hyper = exec_value(x, 0, ir_input_find(p, "hyper"));
    float *seed = exec_value(x, 0, ir_input_find(p, "loss_seed"));
    float *w = exec_var(x, ir_var_find(&t.vars, SCALAR_W));
    hyper[0] = hyper[1] = 1;
    *seed = *(float *)exec_value(x, 0, ir_input_find(p, "loss_scale")) = 1;
    *w = 3;
    CHECK_OK(exec_run(x, 0, &e), &e);
    CHECK(*w == 3);
    exec_free(x);
    step_set_release(&steps);
    trial_close(&t);
}

TEST(labels_all_ignored_weigh_nothing, "A8 case-T01: a micro-batch without valid labels is no NaN")
{
    const int64_t labels[] = {0, 0, IGNORED, IGNORED};
    for (int tokens = 0; tokens < 2; tokens++) {
        struct trial_setup s = trial_classifier(labels, 4, 2);
        struct trial t;
        s.config.accumulate = 2;
        s.config.accumulate_tokens = tokens;
        trial_open(&t, &s);
        trial_run(&t);
        CHECK_NEAR((double)trial_var(&t, CLASSIFIER_B)[0], tokens ? 0.5 : 0.25, 1e-7);
        CHECK_NEAR(trial_metric(&t, "final_train_loss"), 0.69314718, 1e-6);
        trial_close(&t);
    }
}

TEST(
    class_weights_weigh_micro_batches,
    "A8 A2 case-T101: with class weights the window is the big batch too")
{
    double got[2];
    for (int n = 1; n <= 2; n++) {
        struct trial_setup s = trial_classifier(t01_labels, 6, 6 / n);
        struct trial t;
        s.loss = "{'type':'CrossEntropyLoss','weight':[1,3]}";
        s.config.accumulate = n;
        s.config.accumulate_tokens = true;
        trial_open(&t, &s);
        trial_run(&t);
        got[n - 1] = (double)trial_var(&t, CLASSIFIER_B)[0];
        trial_close(&t);
    }
    CHECK_NEAR(got[0], 0, 1e-7); /* three labels of weight 1 against one of weight 3 */
    CHECK_NEAR(got[1], got[0], 1e-7);
}

TEST(sums_are_divided_by_n_alone, "A8: a loss that is a sum is not weighed by labels again")
{
    struct trial_setup s = trial_classifier(t01_labels, 6, 3);
    struct trial t;
    s.loss = "{'type':'CrossEntropyLoss','reduction':'sum'}";
    s.config.accumulate = 2;
    s.config.accumulate_tokens = true;
    trial_open(&t, &s);
    trial_run(&t);
    CHECK_NEAR((double)trial_var(&t, CLASSIFIER_B)[0], 0.5, 1e-7); /* (1.5 - 0.5) / 2 */
    trial_close(&t);
}
