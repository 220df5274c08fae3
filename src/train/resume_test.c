/* resume_test.c - checkpoints, Stop and resume: what was saved goes on as if nothing had happened.
 */
#include "train/train_test_support.h"

#include "base/env.h"
#include "base/str.h"
#include "nn/ptfile.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- k steps, save, load, the rest ---- */

/* Runs to Stop at the k-th question (batches of training and of validation), which leaves a file.
 */
static bool run_to_stop(struct trial *t, const struct trial_setup *s, const char *from, int64_t k)
{
    struct err e;
    trial_open(t, s);
    if (from)
        trial_resume(t, from);
    t->stop_after = k;
    enum status st = trial_go(t, &e);
    if (st != ST_INTERRUPTED && st != ST_OK)
        test_fail(__FILE__, __LINE__, "stop at %lld: %s", (long long)k, e.text);
    if (st == ST_OK)
        return false;
    CHECK(train_interrupted(t->train));
    CHECK(t->train->interrupt_checkpoint[0]);
    return true;
}

/* For every k: Stop at k, resume, run to the end; and with `twice`, Stop again 3 batches later. */
static void check_every_k(struct trial_setup s, bool twice)
{
    struct trial whole, first, second, last;
    int64_t k = 1;
    s.config.checkpoint_dir = test_dir();
    s.config.run_name = "run";
    trial_open(&whole, &s);
    trial_run(&whole);
    for (; run_to_stop(&first, &s, NULL, k); k++) {
        char path[1024];
        (void)snprintf(path, sizeof path, "%s", first.train->interrupt_checkpoint);
        trial_close(&first);
        if (twice && run_to_stop(&second, &s, path, 3))
            (void)snprintf(path, sizeof path, "%s", second.train->interrupt_checkpoint);
        if (twice)
            trial_close(&second);
        trial_open(&last, &s);
        trial_resume(&last, path);
        trial_run(&last);
        trial_check_same(&whole, &last);
        trial_close(&last);
    }
    CHECK(k > whole.train->at.batches);
    trial_close(&first);
    trial_close(&whole);
}

static void validate_like(struct trial_setup *s, int64_t n)
{
    s->val = s->train;
    s->val.n = n;
    s->val.shuffle = false;
}

TEST(resumes_at_every_batch, "A7 A6: shuffled epochs, dropout, momentum, N 2 with a short window")
{
    struct trial_setup s = trial_mlp(19, 4);
    s.train.shuffle = true;
    s.config.epochs = 3;
    s.config.accumulate = 2;
    s.config.schedule_per_update = true;
    s.schedule = "{'type':'StepLR','step_size':2,'gamma':0.5}";
    check_every_k(s, false);
    check_every_k(s, true);
}

TEST(resumes_with_validation, "A7: Stop inside validation, early stopping, best weights, plateau")
{
    struct trial_setup s = trial_mlp(18, 4);
    validate_like(&s, 10);
    s.config.epochs = 4;
    s.config.patience = 2;
    s.config.val_every_steps = 2;
    s.config.checkpoint_keep = 1;
    s.optim = "{'type':'SGD','lr':0.5,'momentum':0.9}";
    s.schedule = "{'type':'ReduceLROnPlateau','gamma':0.5}";
    check_every_k(s, false);
    s.config.monitor_accuracy = true;
    check_every_k(s, true);
}

TEST(resumes_convolutions, "A7: batch statistics of a dropped window are taken back")
{
    struct trial_setup s = trial_cnn(14, 2);
    s.train.shuffle = true;
    s.config.epochs = 2;
    s.config.accumulate = 3;
    s.config.max_norm = 0.5;
    check_every_k(s, false);
}

TEST(
    resumes_around_scale_changes,
    "P7 P8 case-T16: every attempt, with skips and growths of the scale")
{
    struct trial_setup s = trial_mlp(20, 2);
    s.config.epochs = 2;
    s.config.precision = PRECISION_FP16;
    s.config.scale_initial = 0x1p20;
    s.config.scale_growth_interval = 3;
    s.config.schedule_per_update = true;
    s.schedule = "{'type':'ExponentialLR','gamma':0.875}";
    check_every_k(s, false);
    s.config.accumulate = 2;
    s.config.scale_growth_interval = 2;
    check_every_k(s, true);
}

TEST(resumes_bf16, "P2: under bf16 too")
{
    struct trial_setup s = trial_cnn(12, 3);
    s.config.precision = PRECISION_BF16;
    s.config.epochs = 2;
    check_every_k(s, false);
}

TEST(resumes_within_max_steps, "A4: max_steps in the middle and at the end of an epoch")
{
    for (int64_t max = 4; max <= 7; max++) {
        struct trial_setup s = trial_mlp(12, 2);
        validate_like(&s, 4);
        s.config.epochs = 3;
        s.config.accumulate = 2;
        s.config.max_steps = max;
        check_every_k(s, false);
    }
}

TEST(resumes_every_optimizer, "A7: state of all nine optimizers, bit for bit")
{
    static const char *const optimizers[] = {
        "{'type':'SGD','lr':0.1}",
        "{'type':'SGD','lr':0.1,'momentum':0.9,'nesterov':true,'weight_decay':0.01}",
        "{'type':'Adam','lr':0.01,'amsgrad':true}",
        "{'type':'AdamW','lr':0.01,'weight_decay':0.1}",
        "{'type':'RMSprop','lr':0.01,'momentum':0.5}",
        "{'type':'Adagrad','lr':0.1}",
        "{'type':'RAdam','lr':0.01}",
        "{'type':'NAdam','lr':0.01}",
        "{'type':'Rprop','lr':0.01}",
        "{'type':'ASGD','lr':0.1}"};
    for (size_t i = 0; i < sizeof optimizers / sizeof *optimizers; i++) {
        struct trial_setup s = trial_mlp(16, 2);
        s.optim = optimizers[i];
        s.config.accumulate = i % 2 ? 2 : 1;
        check_every_k(s, false);
    }
}

TEST(resumes_every_schedule, "A7: per epoch and per update")
{
    static const char *const schedules[] = {
        "{'type':'CosineAnnealingLR','T_max':5}",
        "{'type':'CosineAnnealingWarmRestarts','T_max':3}",
        "{'type':'MultiStepLR','step_size':2,'gamma':0.5}",
        "{'type':'OneCycleLR','max_lr':0.25,'total_steps':40}",
        "{'type':'warmup_cosine','warmup_steps':3,'total_steps':9}",
        "{'type':'warmup_linear','warmup_steps':3,'total_steps':9}",
        "{'type':'constant_with_warmup','warmup_steps':3}"};
    for (size_t i = 0; i < sizeof schedules / sizeof *schedules; i++) {
        for (int per_update = 0; per_update < 2; per_update++) {
            struct trial_setup s = trial_mlp(8, 2);
            s.schedule = schedules[i];
            s.config.epochs = 3;
            s.config.schedule_per_update = per_update;
            check_every_k(s, false);
        }
    }
}

static void check_periodic(struct trial_setup s, int files)
{
    struct trial whole, t;
    s.config.checkpoint_dir = test_dir();
    s.config.run_name = "run";
    trial_open(&whole, &s);
    trial_run(&whole);
    CHECK_EQ(trial_count(&whole, "checkpoint"), files);
    for (size_t i = 0; i < json_array_size(whole.events); i++) {
        const json_t *j = json_array_get(whole.events, i);
        if (strcmp(json_get_str(j, "event", ""), "checkpoint") != 0)
            continue;
        struct trial_setup again = s;
        again.config.checkpoint_every = again.config.checkpoint_every_steps = 0;
        trial_open(&t, &again);
        trial_resume(&t, json_get_str(j, "path", ""));
        trial_run(&t);
        trial_check_same(&whole, &t);
        trial_close(&t);
    }
    trial_close(&whole);
}

TEST(periodic_files_go_on, "A7: every periodic file continues to the same end")
{
    struct trial_setup s = trial_mlp(13, 2);
    validate_like(&s, 5);
    s.train.shuffle = true;
    s.config.epochs = 2;
    s.config.accumulate = 3; /* 7 batches: 3 updates an epoch */
    s.config.schedule_per_update = true;
    s.schedule = "{'type':'StepLR','step_size':2,'gamma':0.5}";
    s.config.checkpoint_every_steps = 1;
    check_periodic(s, 6);
    s.config.checkpoint_every_steps = 0;
    s.config.checkpoint_every = 1;
    check_periodic(s, 2);
}

/* ---- D: cases ---- */

static float ones[24];

/* fp16, constant gradient 200: a product with 200 follows w, and what flows back between the two is
 * kept in fp16. (The gradient of a weight itself leaves its product in float32.) */
static struct trial_setup t16_setup(void)
{
    for (int i = 0; i < 24; i++)
        ones[i] = 1;
    struct trial_setup s = trial_scalar(ones, 13);
    s.layers = SCALAR_LAYERS "; Linear k {'in_features':1,'out_features':1,'bias':false}";
    s.optim = "{'type':'SGD','lr':0.0001220703125}";
    s.config.precision = PRECISION_FP16;
    s.config.scale_growth_interval = 4;
    return s;
}

static void t16_open(struct trial *t)
{
    struct trial_setup s = t16_setup();
    trial_open(t, &s);
    *trial_var(t, SCALAR_W) = 0;
    *trial_var(t, "layers.k.weight") = 200;
}

static void
check_t16(struct trial *t, double scale, int64_t tracker, int64_t steps, int64_t skipped)
{
    CHECK_NEAR(t->train->scaler.scale, scale, 0);
    CHECK_EQ(t->train->scaler.growth_tracker, tracker);
    CHECK_EQ(t->train->at.updates, steps);
    CHECK_EQ(t->train->scaler.skipped, skipped);
}

TEST(scaler_state_survives, "P8 P7 case-T16: 10 attempts, save, resume, 3: 256, 512, 256")
{
    struct trial t;
    char path[512];
    t16_open(&t);
    trial_run_to(&t, 10);
    check_t16(&t, 256, 2, 2, 8);
    trial_save(&t, path, "t16");
    trial_close(&t);
    t16_open(&t);
    trial_resume(&t, path);
    check_t16(&t, 256, 2, 2, 8);
    trial_run_to(&t, 1);
    check_t16(&t, 256, 3, 3, 8);
    trial_run_to(&t, 1);
    check_t16(&t, 512, 0, 4, 8);
    trial_run(&t);
    check_t16(&t, 256, 0, 4, 9);
    trial_close(&t);
}

TEST(
    scaler_state_through_the_port,
    "P8: the port carries it; without it a fresh scaler finds its level")
{
    struct trial t;
    struct err e;
    t16_open(&t);
    trial_run_to(&t, 10);
    json_t *state = train_scaler_state(t.train);
    CHECK_NEAR(json_get_f64(state, "scale", 0), 256, 0);
    CHECK_EQ(json_get_i64(state, "_growth_tracker", 0), 2);
    trial_close(&t);
    t16_open(&t);
    CHECK_OK(train_set_scaler(t.train, state, &e), &e);
    trial_run_to(&t, 2);
    CHECK_NEAR(t.train->scaler.scale, 512, 0);
    CHECK_EQ(t.train->at.updates, 2);
    trial_close(&t);
    t16_open(&t); /* lost: 8 skips, then on */
    CHECK_OK(train_set_scaler(t.train, NULL, &e), &e);
    trial_run_to(&t, 10);
    check_t16(&t, 256, 2, 2, 8);
    trial_close(&t);
    json_decref(state);
}

TEST(half_precision_state_stays_float32, "P2 case-T24: v = 1e-10 survives the file: step 99.9 lr")
{
    const float c[] = {0, 0};
    struct trial_setup s = trial_scalar(c, 2);
    struct trial t;
    char path[512];
    s.optim = "{'type':'Adam','lr':0.000001}";
    s.config.precision = PRECISION_FP16;
    trial_open(&t, &s);
    trial_run_to(&t, 1);
    t.train->at.optimizer_steps = 1000000; /* bias correction done */
    *trial_var(&t, SCALAR_W) = 0;
    *trial_var(&t, "exp_avg:" SCALAR_W) = 1e-3f / 0.9f;
    *trial_var(&t, "exp_avg_sq:" SCALAR_W) = 1e-10f / 0.999f;
    trial_save(&t, path, "t24");
    trial_close(&t);
    trial_open(&t, &s);
    trial_resume(&t, path);
    CHECK(*trial_var(&t, "exp_avg_sq:" SCALAR_W) == 1e-10f / 0.999f);
    trial_run(&t); /* gradient 0: m = 1e-3, v = 1e-10 */
    CHECK_NEAR(trial_w(&t) / -9.99e-5, 1, 1e-4);
    trial_close(&t);
}

TEST(position_counts_batches, "A4 case-T39: 20 batches, N 4, saved after 3 updates: resumes at 12")
{
    float c[20];
    for (int i = 0; i < 20; i++)
        c[i] = (float)(i + 1);
    struct trial_setup s = trial_scalar(c, 20);
    struct trial t;
    char path[512];
    s.config.accumulate = 4;
    s.config.max_steps = 3;
    trial_open(&t, &s);
    trial_run(&t);
    CHECK_NEAR(trial_w(&t), -2.5 - 6.5 - 10.5, 0);
    trial_save(&t, path, "t39");
    trial_close(&t);
    s.config.max_steps = 0;
    trial_open(&t, &s);
    trial_resume(&t, path);
    CHECK_EQ(t.train->at.epoch, 0);
    CHECK_EQ(t.train->at.batch, 12);
    trial_run_to(&t, 4);
    CHECK_NEAR(trial_w(&t), -19.5 - 14.5, 0); /* batches 13 to 16 */
    trial_run(&t);
    CHECK_NEAR(trial_w(&t), -19.5 - 14.5 - 18.5, 0);
    trial_close(&t);
}

static double interrupted_weight(const struct trial_setup *s, double w, int64_t at)
{
    struct trial t;
    char path[512];
    trial_open(&t, s);
    *trial_var(&t, SCALAR_W) = (float)w;
    trial_run_to(&t, at);
    trial_save(&t, path, "t41");
    trial_close(&t);
    trial_open(&t, s);
    trial_resume(&t, path);
    trial_run(&t);
    w = trial_w(&t);
    trial_close(&t);
    return w;
}

TEST(moments_survive, "case-T41: Adam 0.806782, SGD with momentum -0.9049")
{
    const float adam[] = {1, 0.5f}, sgd[] = {1, 1, 1, 1};
    struct trial_setup s = trial_scalar(adam, 2);
    s.optim = "{'type':'Adam','lr':0.1}";
    CHECK_NEAR(interrupted_weight(&s, 1, 1), 0.806782, 1e-6);
    s = trial_scalar(sgd, 4);
    s.optim = "{'type':'SGD','lr':0.1,'momentum':0.9}";
    CHECK_NEAR(interrupted_weight(&s, 0, 2), -0.9049, 1e-6);
}

/* Two weights in the document's order `first`, `second`; the gradient of both is 0. */
static struct trial_setup t43_setup(const char *first, const char *second)
{
    static char text[2048];
    static const float x[2] = {0}, y[2] = {0};
    struct trial_setup s = {.layers = text, .optim = "{'type':'SGD','lr':0.1,'momentum':0.9}"};
    (void)snprintf(
        text, sizeof text,
        "{'version':2,'nodes':[{'id':'in','type':'Input','ports':[{'id':'p','name':'x'}]},"
        "{'id':'%s','type':'Linear','params':{'in_features':1,'out_features':1,'bias':false}},"
        "{'id':'%s','type':'Linear','params':{'in_features':1,'out_features':1,'bias':false}},"
        "{'id':'sum','type':'Add'},"
        "{'id':'out','type':'Output','ports':[{'id':'q','name':'y'}]}],'edges':["
        "{'source':'in','sourceHandle':'p','target':'a'},"
        "{'source':'in','sourceHandle':'p','target':'b'},"
        "{'source':'a','target':'sum'},{'source':'b','target':'sum'},"
        "{'source':'sum','target':'out','targetHandle':'q'}]}",
        first, second);
    s.train = (struct trial_data){
        .n = 2,
        .batch = 1,
        .rank = 1,
        .shape = {1},
        .x = x,
        .target = DATA_F32,
        .target_rank = 1,
        .target_shape = {1},
        .y = y};
    return s;
}

TEST(state_follows_names, "case-T43: parameters in another order keep their own momentum")
{
    struct trial_setup s = t43_setup("a", "b");
    struct trial t;
    char path[512];
    trial_open(&t, &s);
    trial_run_to(&t, 1);
    *trial_var(&t, "layers.a.weight") = *trial_var(&t, "layers.b.weight") = 0;
    *trial_var(&t, "momentum_buffer:layers.a.weight") = 1;
    *trial_var(&t, "momentum_buffer:layers.b.weight") = 2;
    trial_save(&t, path, "t43");
    trial_close(&t);
    s = t43_setup("b", "a");
    trial_open(&t, &s);
    trial_resume(&t, path);
    trial_run(&t);
    CHECK_NEAR((double)*trial_var(&t, "layers.a.weight"), -0.09, 1e-7);
    CHECK_NEAR((double)*trial_var(&t, "layers.b.weight"), -0.18, 1e-7);
    trial_close(&t);
}

static struct trial_setup ones_setup(int64_t n)
{
    for (int i = 0; i < 24; i++)
        ones[i] = 1;
    struct trial_setup s = trial_scalar(ones, n);
    s.config.schedule_per_update = true;
    return s;
}

static void check_t44(const char *planned, const char *asked, bool falls)
{
    struct trial_setup s = ones_setup(20);
    struct trial t;
    char path[512];
    double last = 1;
    s.schedule = planned;
    s.config.max_steps = 5;
    trial_open(&t, &s);
    trial_run(&t);
    trial_save(&t, path, "t44");
    trial_close(&t);
    s.schedule = asked;
    s.config.max_steps = 20;
    trial_open(&t, &s);
    trial_resume(&t, path);
    CHECK_NEAR(train_lr(t.train), 0.5, 1e-6);
    CHECK(trial_warned(&t, "scheduler"));
    for (int i = 0; i < 14 && falls; i++) {
        trial_run_to(&t, 1);
        CHECK(train_lr(t.train) <= last);
        last = train_lr(t.train);
    }
    trial_run(&t);
    CHECK(!falls || train_lr(t.train) == 0);
    trial_close(&t);
}

TEST(horizon_is_kept, "case-T44: the saved T stays, which is said; after its end never rising")
{
    check_t44(
        "{'type':'CosineAnnealingLR','T_max':10}", "{'type':'CosineAnnealingLR','T_max':20}",
        false);
    check_t44(
        "{'type':'warmup_cosine','warmup_steps':0,'total_steps':10}",
        "{'type':'warmup_cosine','warmup_steps':0,'total_steps':20}", true);
}

static const char *const t45_schedule =
    "{'type':'warmup_cosine','warmup_steps':10,'total_steps':20}";

TEST(
    fast_forward_counts_updates,
    "case-T45: start_epoch 3 of 5 updates: index 15, rate 0.5, falling")
{
    struct trial_setup s = ones_setup(5);
    struct trial t;
    s.config.epochs = 4;
    s.config.start_epoch = 3;
    s.schedule = t45_schedule;
    trial_open(&t, &s);
    trial_run_to(&t, 1);
    CHECK_NEAR(trial_w(&t), -0.5, 1e-6);
    CHECK_NEAR(train_lr(t.train), 0.345492, 1e-6);
    trial_close(&t);
}

TEST(
    resume_without_scheduler_state,
    "case-T45: a file that has none: the schedule goes to where the run is")
{
    struct trial_setup s = ones_setup(5);
    struct trial t;
    char path[512];
    s.config.epochs = 3;
    trial_open(&t, &s);
    trial_run(&t);
    trial_save(&t, path, "t45");
    double w = trial_w(&t);
    trial_close(&t);
    s.config.epochs = 4;
    s.schedule = t45_schedule;
    trial_open(&t, &s);
    trial_resume(&t, path);
    trial_run_to(&t, 1);
    CHECK_NEAR(trial_w(&t), w - 0.5, 1e-6);
    CHECK_NEAR(train_lr(t.train), 0.345492, 1e-6);
    trial_close(&t);
}

TEST(finished_runs_do_not_go_on, "A4 case-T48: max_steps 5, resumed twice: w = -5, no new file")
{
    struct trial_setup s = ones_setup(8);
    struct trial t;
    char path[512];
    s.config.max_steps = 5;
    s.config.checkpoint_dir = test_dir();
    s.config.checkpoint_every_steps = 5;
    trial_open(&t, &s);
    trial_run(&t);
    CHECK_EQ(trial_count(&t, "checkpoint"), 1);
    for (int i = 0; i < 3; i++) {
        CHECK_NEAR(trial_w(&t), -5, 0);
        CHECK_NEAR(trial_metric(&t, "total_steps"), 5, 0);
        json_t *m = train_metrics(t.train);
        CHECK(json_get_bool(m, "stopped_at_max_steps", false));
        json_decref(m);
        trial_save(&t, path, "t48");
        trial_close(&t);
        trial_open(&t, &s);
        trial_resume(&t, path);
        trial_run(&t);
        CHECK_EQ(trial_count(&t, "checkpoint"), 0);
        CHECK_EQ(trial_count(&t, "batch"), 0);
    }
    trial_close(&t);
}

TEST(
    another_window_starts_whole,
    "A7 A2: saved at batch 3, resumed with N 2: the window of 3 and 4 is whole")
{
    const float c[] = {1, 2, 4, 8};
    struct trial_setup s = trial_scalar(c, 4);
    struct trial t;
    char path[512];
    trial_open(&t, &s);
    trial_run_to(&t, 3);
    CHECK_NEAR(trial_w(&t), -7, 0);
    trial_save(&t, path, "n1");
    trial_close(&t);
    s.config.accumulate = 2;
    trial_open(&t, &s);
    trial_resume(&t, path);
    CHECK(trial_warned(&t, "resume"));
    trial_run_to(&t, 1); /* Stop inside the first window after a resume */
    CHECK_NEAR(trial_w(&t), -7, 0);
    trial_run(&t);
    CHECK_NEAR(trial_w(&t), -7 - 6, 0);
    trial_close(&t);
}

TEST(seed_is_in_the_file, "A7: the order of the samples can be taken up again")
{
    struct trial_setup s = trial_mlp(4, 2);
    struct trial t;
    char path[512];
    uint64_t seed = 0;
    s.config.seed = 0xFEDCBA9876543210u;
    trial_open(&t, &s);
    trial_save(&t, path, "seed");
    CHECK(checkpoint_seed(path, &seed) && seed == 0xFEDCBA9876543210u);
    CHECK(!checkpoint_seed("/nowhere.pt", &seed));
    trial_close(&t);
}

TEST(stop_drops_the_window, "A7 case-T49: Stop after 2 of 4: the resumed window is 1..4, w = -2.5")
{
    const float c[] = {1, 2, 3, 4};
    for (int64_t at = 1; at <= 3; at++) {
        struct trial_setup s = trial_scalar(c, 4);
        struct trial t;
        char path[1024];
        s.config.accumulate = 4;
        s.config.checkpoint_dir = test_dir();
        trial_open(&t, &s);
        trial_run_to(&t, at);
        CHECK_NEAR(trial_w(&t), 0, 0);
        CHECK_EQ(t.train->at.batch, 0);
        (void)snprintf(path, sizeof path, "%s", t.train->interrupt_checkpoint);
        trial_close(&t);
        trial_open(&t, &s);
        trial_resume(&t, path);
        trial_run(&t);
        CHECK_NEAR(trial_w(&t), -2.5, 0);
        CHECK_NEAR(trial_metric(&t, "total_batches"), 4, 0);
        CHECK_NEAR(trial_metric(&t, "total_steps"), 1, 0);
        trial_close(&t);
    }
}

TEST(
    validation_is_whole_after_resume,
    "case-T51: val_loss 2.25 over 4 batches after a resume at batch 3")
{
    const float c[5] = {0}, y[] = {4, 1, 1, 3};
    struct trial_setup s = trial_scalar(c, 5);
    struct trial t;
    char path[512];
    s.val = s.train;
    s.val.n = 4;
    s.val.y = y;
    trial_open(&t, &s);
    trial_run_to(&t, 3);
    trial_save(&t, path, "t51");
    trial_close(&t);
    trial_open(&t, &s);
    trial_resume(&t, path);
    CHECK_EQ(t.train->at.batch, 3);
    trial_run(&t);
    CHECK_NEAR(trial_metric(&t, "final_val_loss"), 2.25, 0);
    trial_close(&t);
}

/* ---- J: memory ---- */

enum { MILLION = 1000000 };

/* Sanitizers' own memory grows with ours. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool sanitized = true;
#else
static const bool sanitized = false;
#endif

static struct trial_setup t96_setup(void)
{
    struct trial_setup s = {
        .layers = "Linear l {'in_features':1000,'out_features':1000,'bias':false}",
        .optim = "{'type':'Adam','lr':0.001}"};
    s.train = (struct trial_data){
        .n = 6,
        .batch = 1,
        .rank = 1,
        .shape = {1000},
        .target = DATA_F32,
        .target_rank = 1,
        .target_shape = {1000}};
    return s;
}

/* What a process that runs 3 updates grows by; saves to `to`, or goes on from it. */
static int64_t growth(const char *to, bool resumes)
{
    int pipe_of[2];
    int64_t bytes = 0;
    CHECK(pipe(pipe_of) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct trial_setup s = t96_setup();
        struct trial t;
        struct err e;
        process_rss_peak_reset();
        int64_t before = process_rss_bytes();
        trial_open(&t, &s);
        if (resumes)
            trial_resume(&t, to);
        trial_run_to(&t, 3);
        CHECK_EQ(exec_peak_measured(train_exec(t.train)), exec_peak_planned(train_exec(t.train)));
        CHECK_OK(train_save(t.train, to, -1, &e), &e);
        bytes = process_rss_peak_bytes() - before;
        _exit(write(pipe_of[1], &bytes, sizeof bytes) == sizeof bytes ? 0 : 1);
    }
    int status = 1;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(read(pipe_of[0], &bytes, sizeof bytes) == sizeof bytes);
    (void)close(pipe_of[0]);
    (void)close(pipe_of[1]);
    return bytes;
}

TEST(
    state_is_planned_from_the_start,
    "case-T96: 16 bytes a parameter, in the plan, the run and the resume")
{
    struct trial_setup s = t96_setup();
    struct trial t;
    struct err e;
    char path[512];
    CHECK_OK(trial_plan(&t, &s, &e), &e);
    const struct exec_report *r = exec_report(train_exec(t.train));
    CHECK_EQ(r->by_category[CATEGORY_PARAMETERS], 4 * MILLION);
    CHECK_EQ(r->by_category[CATEGORY_OPTIMIZER_STATE], 8 * MILLION);
    CHECK(r->by_category[CATEGORY_GRADIENTS] >= 4 * MILLION);
    CHECK(r->peak_bytes >= 16 * MILLION && r->peak_bytes < 16 * MILLION + 64 * 1024);
    int64_t planned = r->peak_bytes;
    trial_close(&t);
    (void)snprintf(path, sizeof path, "%s/t96.pt", test_dir());
    int64_t fresh = growth(path, false), resumed = growth(path, true);
    if (sanitized)
        return;
    CHECK(fresh >= planned && fresh < planned + planned / 20 + 4 * 1024 * 1024);
    CHECK(resumed < fresh + 1024 * 1024);
}

/* ---- files ---- */

TEST(newest_file_of_the_graph, "A7: --resume auto takes the newest whole file of this graph")
{
    struct trial_setup s = ones_setup(8);
    struct trial t;
    char path[1024], torn[1024];
    s.config.checkpoint_dir = test_dir();
    s.config.checkpoint_every_steps = 2;
    s.config.checkpoint_keep = 2;
    s.config.graph_key = "key-1";
    CHECK(!checkpoint_newest(test_dir(), "key-1", path, sizeof path));
    trial_open(&t, &s);
    trial_run(&t);
    CHECK_EQ(trial_count(&t, "checkpoint"), 4);
    CHECK(checkpoint_newest(test_dir(), "key-1", path, sizeof path));
    CHECK(str_ends(path, "s8.pt"));
    CHECK(!checkpoint_newest(test_dir(), "key-2", path, sizeof path));
    (void)snprintf(torn, sizeof torn, "%s/periodic/run-loop-s9.pt", test_dir());
    FILE *f = fopen(torn, "w"); /* newer, but not whole */
    CHECK(f && fputs("PK", f) >= 0 && fclose(f) == 0);
    CHECK(checkpoint_newest(test_dir(), "key-1", path, sizeof path));
    CHECK(str_ends(path, "s8.pt"));
    (void)snprintf(path, sizeof path, "%s/periodic/run-loop-s4.pt", test_dir());
    CHECK(access(path, F_OK) != 0); /* checkpoint_keep 2 */
    trial_close(&t);
}

TEST(
    damaged_checkpoints_are_refused,
    "A7: cut anywhere: an error that names the file, never a crash")
{
    struct trial_setup s = trial_mlp(4, 2);
    struct trial t;
    char path[512], cut[1024];
    static char bytes[1 << 20];
    trial_open(&t, &s);
    trial_run(&t);
    trial_save(&t, path, "whole");
    FILE *f = fopen(path, "rb");
    CHECK(f);
    size_t n = fread(bytes, 1, sizeof bytes, f);
    (void)fclose(f);
    (void)snprintf(cut, sizeof cut, "%s/cut.pt", test_dir());
    for (size_t keep = 0; keep < n; keep += n / 40 + 1) {
        struct err e;
        f = fopen(cut, "wb");
        CHECK(f && fwrite(bytes, 1, keep, f) == keep && fclose(f) == 0);
        CHECK(train_resume(t.train, cut, &e) != ST_OK);
        CHECK(strstr(e.text, "cut.pt") != NULL);
    }
    trial_close(&t);
}
