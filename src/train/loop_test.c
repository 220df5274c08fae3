/* loop_test.c - the training loop: precision, the scaler, accumulation, what it counts and says. */
#include "train/train_test_support.h"

#include "base/str.h"

#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- what the programs are made of ---- */

static const struct ir_program *program_of(struct trial *t, enum step_program kind)
{
    const struct step_set *s = train_steps(t->train);
    CHECK(s->index[kind] != IR_NONE);
    return s->programs[s->index[kind]];
}

/* The type that operand i is read in: products may round float32 weights themselves. */
static enum dtype in_type(const struct ir_program *p, const struct ir_op *op, int i)
{
    if (op->code == OP_GEMM && i < 2 && op->attr.gemm.round[i])
        return DT_BF16;
    return ir_value_at(p, op->in[i])->dtype;
}

static enum dtype low_of(enum precision p)
{
    return p == PRECISION_BF16 ? DT_BF16 : p == PRECISION_FP16 ? DT_F16 : DT_F32;
}

/* Products and convolutions take `low`; statistics, softmax, losses take float32. */
static void check_types(const struct ir_program *p, enum dtype low)
{
    int products = 0, full = 0;
    for (size_t i = 0; i < p->ops.n; i++) {
        const struct ir_op *op = &p->ops.data[i];
        if (op->code == OP_GEMM || op->code == OP_CONV) {
            products++;
            CHECK_EQ(in_type(p, op, 0), low);
            CHECK_EQ(in_type(p, op, 1), low);
        }
        if (op->code == OP_CROSS_ENTROPY || op->code == OP_SOFTMAX) {
            full++;
            CHECK_EQ(in_type(p, op, 0), DT_F32);
        }
    }
    CHECK(products > 0 && full > 0);
}

TEST(
    autocast_is_per_operator,
    "P2 P3 P6: products low, losses float32, validation under the same autocast")
{
    for (int p = PRECISION_FP32; p <= PRECISION_FP16; p++) {
        struct trial_setup s = trial_cnn(8, 4);
        struct trial t;
        struct err e;
        s.val = s.train;
        s.config.precision = (enum precision)p;
        CHECK_OK(trial_plan(&t, &s, &e), &e);
        check_types(program_of(&t, STEP_ONLY), low_of((enum precision)p));
        check_types(program_of(&t, STEP_EVAL), low_of((enum precision)p));
        CHECK_EQ(t.train->scaler.enabled, p == PRECISION_FP16);
        for (size_t i = 0; i < t.vars.list.n; i++) /* parameters, gradients, state, buffers */
            CHECK(t.vars.list.data[i].dtype == DT_F32 || t.vars.list.data[i].dtype == DT_I64);
        trial_close(&t);
    }
}

TEST(
    accumulators_are_float32,
    "P2 P9b: gradients of a window are summed in float32 under every precision")
{
    for (int p = PRECISION_FP32; p <= PRECISION_FP16; p++) {
        struct trial_setup s = trial_mlp(8, 2);
        struct trial t;
        struct err e;
        int n = 0;
        s.config.precision = (enum precision)p;
        s.config.accumulate = 2;
        CHECK_OK(trial_plan(&t, &s, &e), &e);
        for (size_t i = 0; i < t.vars.list.n; i++) {
            const struct ir_var *v = &t.vars.list.data[i];
            n += v->category == CATEGORY_GRADIENTS;
            CHECK(v->category != CATEGORY_GRADIENTS || v->dtype == DT_F32);
        }
        CHECK_EQ(n, 4);
        trial_close(&t);
    }
}

TEST(precision_names, "P1: fp32 is the default; fp32, bf16 and fp16 are the names")
{
    enum precision p;
    CHECK(precision_parse("fp32", &p) && p == PRECISION_FP32);
    CHECK(precision_parse("bf16", &p) && p == PRECISION_BF16);
    CHECK(precision_parse("fp16", &p) && p == PRECISION_FP16);
    CHECK(!precision_parse("half", &p));
    CHECK_EQ((enum precision)0, PRECISION_FP32);
}

TEST(
    precision_is_reported,
    "P5: config frame and metrics say what ran and, where it differs, what was asked")
{
    for (int asked = PRECISION_BF16; asked <= PRECISION_FP16; asked++) {
        struct trial_setup s = trial_mlp(4, 2);
        struct trial t;
        s.config.precision = PRECISION_BF16;
        s.config.precision_requested = (enum precision)asked;
        trial_open(&t, &s);
        trial_run(&t);
        json_t *m = train_metrics(t.train);
        const json_t *c = json_object_get(trial_last(&t, "config"), "config");
        CHECK_STR(json_get_str(c, "precision", ""), "bf16");
        CHECK_STR(json_get_str(m, "precision", ""), "bf16");
        const char *want = asked == PRECISION_FP16 ? "fp16" : "absent";
        CHECK_STR(json_get_str(c, "precision_requested", "absent"), want);
        CHECK_STR(json_get_str(m, "precision_requested", "absent"), want);
        json_decref(m);
        trial_close(&t);
    }
}

TEST(
    validation_compares,
    "P6: with a rate of 0 validation on the training set gives the training loss")
{
    for (int p = PRECISION_FP32; p <= PRECISION_FP16; p++) {
        struct trial_setup s = trial_mlp(12, 4);
        struct trial t;
        s.layers = "Linear a {'in_features':6,'out_features':8}; Tanh r;"
                   "Linear b {'in_features':8,'out_features':3}";
        s.optim = "{'type':'SGD','lr':0}";
        s.val = s.train;
        s.config.precision = (enum precision)p;
        trial_open(&t, &s);
        trial_run(&t);
        CHECK_NEAR(trial_metric(&t, "final_val_loss"), trial_metric(&t, "final_train_loss"), 1e-9);
        trial_close(&t);
    }
}

/* ---- the scaler ---- */

/* Weights after an epoch with a forced scale, in `t`. */
static void run_scaled(struct trial *t, enum precision p, double scale)
{
    struct trial_setup s = trial_mlp(12, 3);
    s.config.precision = p;
    s.config.bf16_scaler = true;
    s.config.max_norm = 0.75;
    s.config.epochs = 2;
    s.config.accumulate = 2;
    s.config.log_grad_norm = s.config.batch_metrics = true;
    s.scale_forced = scale;
    trial_open(t, &s);
    trial_run(t);
}

TEST(
    scale_of_a_power_of_two_changes_nothing,
    "P7: S = 1 and S = 1024: the same weights, losses and norms")
{
    for (int p = PRECISION_FP32; p <= PRECISION_BF16; p++) {
        struct trial a, b;
        run_scaled(&a, (enum precision)p, 1);
        run_scaled(&b, (enum precision)p, 1024);
        CHECK(trial_same_weights(&a, &b));
        CHECK(trial_metric(&a, "final_train_loss") == trial_metric(&b, "final_train_loss"));
        CHECK(a.train->last_norm == b.train->last_norm && a.train->last_norm > 0);
        trial_close(&a);
        trial_close(&b);
    }
}

TEST(bf16_has_no_scaler, "P2 P7: none under bf16, unless it is switched on as a stopgap")
{
    for (int on = 0; on < 2; on++) {
        struct trial_setup s = trial_mlp(8, 2);
        struct trial t;
        s.config.precision = PRECISION_BF16;
        s.config.bf16_scaler = on;
        trial_open(&t, &s);
        trial_run(&t);
        CHECK_EQ(t.train->scaler.enabled, on);
        CHECK(isnan(trial_metric(&t, "scale")) == !on);
        CHECK(!on || trial_metric(&t, "scale") == 65536);
        json_t *state = train_scaler_state(t.train);
        CHECK_EQ(state != NULL, on);
        json_decref(state);
        trial_close(&t);
    }
}

TEST(fixed_scale_stays, "P7: a fixed scale neither grows nor halves; skips are still counted")
{
    const float c[] = {1, 1, INFINITY, 1};
    struct trial_setup s = trial_scalar(c, 4);
    struct trial t;
    s.config.precision = PRECISION_FP16;
    s.config.scale_initial = 512;
    s.config.scale_fixed = true;
    s.config.scale_growth_interval = 1;
    trial_open(&t, &s);
    trial_run(&t);
    CHECK_NEAR(trial_metric(&t, "scale"), 512, 0);
    CHECK_NEAR(trial_metric(&t, "skipped_steps"), 1, 0);
    CHECK_NEAR(trial_metric(&t, "total_steps"), 3, 0);
    CHECK_NEAR(trial_metric(&t, "total_batches"), 4, 0);
    trial_close(&t);
}

TEST(
    default_scale_grows_after_2000,
    "P7: 65536 at first; halves at inf; 2000 good updates double it")
{
    struct scaler s = scaler_new(65536, false, 2000);
    const float c[] = {INFINITY};
    struct trial_setup setup = trial_scalar(c, 1);
    struct trial t;
    setup.config.precision = PRECISION_FP16;
    trial_open(&t, &setup);
    CHECK(t.train->scaler.scale == s.scale);
    CHECK_EQ(t.train->scaler.growth_interval, 2000);
    trial_run(&t);
    CHECK(t.train->scaler.scale == 32768);
    trial_close(&t);
}

TEST(health_is_reported, "P10: every 100 updates by default: scale, loss, largest gradient norm")
{
    static float c[250];
    for (int i = 0; i < 250; i++)
        c[i] = i == 30 ? 3 : 1;
    for (int every = 0; every <= 50; every += 50) {
        struct trial_setup s = trial_scalar(c, 250);
        struct trial t;
        s.optim = "{'type':'SGD','lr':0.125}";
        s.config.precision = PRECISION_FP16;
        s.config.scale_initial = 64;
        s.config.health_interval = every;
        trial_open(&t, &s);
        trial_run(&t);
        CHECK_EQ(trial_count(&t, "precision_health"), every ? 5 : 2);
        for (size_t i = 0; i < json_array_size(t.events); i++) {
            const json_t *j = json_array_get(t.events, i);
            if (strcmp(json_get_str(j, "event", ""), "precision_health") != 0)
                continue;
            CHECK_NEAR(json_get_f64(j, "max_grad_norm", 0), 3, 0);
            CHECK_NEAR(json_get_f64(j, "scale", 0), 64, 0);
            CHECK(json_get_f64(j, "loss", 0) > 900);
            break;
        }
        trial_close(&t);
    }
}

TEST(falling_scale_is_named, "P10: 16 or lower with skips going on: a likely exploding gradient")
{
    static float c[40];
    for (int i = 0; i < 40; i++)
        c[i] = i % 2 ? INFINITY : 1;
    struct trial_setup s = trial_scalar(c, 40);
    struct trial t;
    s.config.precision = PRECISION_FP16;
    s.config.scale_initial = 64;
    s.config.health_interval = 5;
    trial_open(&t, &s);
    trial_run(&t);
    CHECK(trial_warned(&t, "precision"));
    bool learning_rate = false;
    for (size_t i = 0; i < json_array_size(t.events); i++)
        learning_rate |=
            strstr(json_get_str(json_array_get(t.events, i), "message", ""), "learning rate") !=
            NULL;
    CHECK(learning_rate);
    trial_close(&t);
}

TEST(endless_skips_are_named, "P10: a run whose every update is skipped says so too")
{
    static float c[300];
    for (int i = 0; i < 300; i++)
        c[i] = INFINITY;
    struct trial_setup s = trial_scalar(c, 300);
    struct trial t;
    s.config.precision = PRECISION_FP16;
    trial_open(&t, &s);
    trial_run(&t);
    CHECK_NEAR(trial_metric(&t, "skipped_steps"), 300, 0);
    CHECK(trial_warned(&t, "precision"));
    trial_close(&t);
}

TEST(nan_names_its_node, "P10: the first non-finite result is named by node and operator")
{
    struct trial_setup s = trial_mlp(8, 2);
    struct trial t;
    struct err e;
    s.layers = "Linear a {'in_features':6,'out_features':8}; ReLU r; "
               "Linear b {'in_features':8,'out_features':3}";
    trial_open(&t, &s);
    trial_run_to(&t, 2);
    trial_var(&t, "layers.b.weight")[3] = NAN;
    CHECK_EQ(trial_go(&t, &e), ST_FAILED);
    CHECK(strstr(e.detail, "\"model/b\"") != NULL);
    CHECK_STR(e.node, "model/b");
    CHECK(e.hint[0]);
    trial_close(&t);
}

/* ---- accumulation ---- */

/* n micro-batches of b against one batch of n b: three updates of SGD. */
static void run_split(struct trial *t, struct trial_setup s, int64_t micro, int64_t n)
{
    s.train.batch = micro;
    s.config.accumulate = n;
    trial_open(t, &s);
    trial_run(t);
    CHECK_NEAR(trial_metric(t, "total_steps"), 3, 0);
}

TEST(window_is_the_big_batch, "A1 A2: sums of dyadic numbers: the same bits for N 1, 2, 4, 8")
{
    static const float x[24 * 2] = {1, 2, 0.5f, 4, 8, 1, 2, 0.25f, 1, 1, 4, 2, 0.5f, 0.5f, 2, 8};
    static float y[24 * 2];
    struct trial whole, t;
    for (int i = 0; i < 48; i++)
        y[i] = i % 3 ? -512 : 512;
    struct trial_setup s = {
        .layers = "Linear a {'in_features':2,'out_features':2}",
        .optim = "{'type':'SGD','lr':0.125,'momentum':0.5}"};
    s.train = (struct trial_data){
        .n = 24,
        .rank = 1,
        .shape = {2},
        .x = x,
        .target = DATA_F32,
        .target_rank = 1,
        .target_shape = {2},
        .y = y};
    run_split(&whole, s, 8, 1);
    for (int64_t n = 2; n <= 8; n *= 2) {
        run_split(&t, s, 8 / n, n);
        CHECK(trial_same_weights(&whole, &t));
        trial_close(&t);
    }
    trial_close(&whole);
}

static double distance(struct trial *a, struct trial *b)
{
    double sum = 0, norm = 0;
    for (int i = 0; i < model_param_count_vars(a->model); i++) {
        int var = model_param_var(a->model, i);
        const struct ir_var *v = &a->vars.list.data[var];
        const float *x = exec_var(train_exec(a->train), var),
                    *y = exec_var(train_exec(b->train), var);
        for (int64_t k = 0; k < shape_count(&v->shape); k++) {
            sum += pow((double)x[k] - (double)y[k], 2);
            norm += pow((double)x[k], 2);
        }
    }
    return sqrt(sum / norm);
}

TEST(window_is_the_big_batch_for_networks, "A2: convolutions, any numbers: 1e-6")
{
    struct trial whole, t;
    struct trial_setup s = trial_cnn(24, 8);
    s.layers = "Conv2d c {'in_channels':2,'out_channels':8,'kernel_size':3,'padding':1};"
               "Tanh r; AvgPool2d p {'kernel_size':2,'stride':2}; Flatten f;"
               "Linear l {'in_features':128,'out_features':4}";
    s.optim = "{'type':'SGD','lr':0.125,'momentum':0.5}";
    run_split(&whole, s, 8, 1);
    for (int64_t n = 2; n <= 8; n *= 2) {
        run_split(&t, s, 8 / n, n);
        CHECK(distance(&whole, &t) < 1e-6);
        trial_close(&t);
    }
    trial_close(&whole);
}

TEST(window_against_a_gradient_by_hand, "A1 A2: the whole-batch gradient, computed independently")
{
    const float c[] = {1, 2, 3, 10, 5, 6, 7, 8};
    for (int64_t n = 1; n <= 8; n *= 2) {
        struct trial_setup s = trial_scalar(c, 8);
        s.config.accumulate = n;
        s.config.max_steps = 1;
        double sum = 0;
        for (int i = 0; i < n; i++)
            sum += (double)c[i];
        CHECK_NEAR(trial_scalar_weight(&s), -sum / (double)n, 0);
    }
}

TEST(max_steps_counts_updates, "A4: max_steps 3 with N 2: 3 updates, 6 batches, across epochs")
{
    const float c[] = {1, 1, 1, 1};
    struct trial_setup s = trial_scalar(c, 4);
    struct trial t;
    s.config.epochs = 5;
    s.config.accumulate = 2;
    s.config.max_steps = 3;
    trial_open(&t, &s);
    trial_run(&t);
    CHECK_NEAR(trial_w(&t), -3, 0);
    CHECK_NEAR(trial_metric(&t, "total_steps"), 3, 0);
    CHECK_NEAR(trial_metric(&t, "total_batches"), 6, 0);
    CHECK_NEAR(trial_metric(&t, "total_epochs_run"), 1, 0);
    trial_close(&t);
}

TEST(losses_are_undivided, "A5: the curve of N 4 is that of N 1 when the weights stand still")
{
    double want[2] = {0};
    for (int n = 1; n <= 4; n += 3) {
        struct trial_setup s = trial_mlp(16, 2);
        struct trial t;
        s.optim = "{'type':'SGD','lr':0}";
        s.config.epochs = 2;
        s.config.accumulate = n;
        trial_open(&t, &s);
        trial_run(&t);
        for (int i = 0; i < 2; i++) {
            double loss = t.train->series.losses.data[i];
            want[i] = n == 1 ? loss : want[i];
            CHECK(loss == want[i]);
        }
        trial_close(&t);
    }
}

TEST(no_window_crosses_an_epoch, "A7 A6: 3 batches, N 2, two epochs: windows of 2, 1, 2, 1")
{
    const float c[] = {2, 4, 8};
    struct trial_setup s = trial_scalar(c, 3);
    struct trial t;
    s.config.epochs = 2;
    s.config.accumulate = 2;
    trial_open(&t, &s);
    trial_run(&t);
    CHECK_NEAR(trial_w(&t), 2 * (-3 - 4), 0);
    CHECK_NEAR(trial_metric(&t, "total_steps"), 4, 0);
    trial_close(&t);
}

TEST(accumulation_frees_nothing, "A9: the same batch with N 4 needs no less; a quarter of it does")
{
    struct trial t;
    struct err e;
    int64_t peak[3], activations[3];
    for (int i = 0; i < 3; i++) {
        struct trial_setup s = trial_cnn(128, i == 2 ? 16 : 64);
        s.config.accumulate = i == 0 ? 1 : 4;
        CHECK_OK(trial_plan(&t, &s, &e), &e);
        const struct exec_report *r = exec_report(train_exec(t.train));
        peak[i] = r->peak_bytes;
        activations[i] = r->by_category[CATEGORY_ACTIVATIONS];
        trial_close(&t);
    }
    CHECK(peak[1] >= peak[0]);
    CHECK(activations[1] == activations[0]);
    CHECK(peak[2] < peak[0] / 2);
}

/* ---- counting, events, limits ---- */

TEST(
    validation_is_independent_of_its_batches,
    "A5: loss and accuracy weigh every sample once, whatever the batch size")
{
    static const int64_t labels[11] = {0, 1, 2, -100, 1, 1, 0, -100, -100, 2, 1};
    double loss = 0, accuracy = 0;
    for (int64_t batch = 1; batch <= 12; batch++) {
        struct trial_setup s = trial_mlp(4, 2);
        struct trial t;
        s.val = s.train;
        s.val.n = 11;
        s.val.batch = batch;
        s.val.y = labels;
        s.loss = "{'type':'CrossEntropyLoss','weight':[1,2,0.5]}";
        trial_open(&t, &s);
        trial_run(&t);
        if (batch == 1) {
            loss = trial_metric(&t, "final_val_loss");
            accuracy = trial_metric(&t, "final_val_accuracy");
        }
        CHECK_NEAR(trial_metric(&t, "final_val_loss"), loss, 1e-6);
        CHECK_NEAR(trial_metric(&t, "final_val_accuracy"), accuracy, 0);
        trial_close(&t);
    }
    CHECK(loss > 0.1 && accuracy >= 0);
}

TEST(config_frame, "P5 A1: what the run is, before it trains")
{
    struct trial_setup s = trial_mlp(8, 2);
    struct trial t;
    s.config.accumulate = 3;
    s.config.max_norm = 2;
    trial_open(&t, &s);
    trial_run(&t);
    CHECK_STR(json_get_str(json_array_get(t.events, 0), "event", ""), "config");
    const json_t *c = json_object_get(json_array_get(t.events, 0), "config");
    CHECK_EQ(json_get_i64(c, "params", 0), 6 * 8 + 8 + 8 * 3 + 3);
    CHECK_EQ(json_get_i64(c, "batch_size", 0), 2);
    CHECK_EQ(json_get_i64(c, "accumulate_steps", 0), 3);
    CHECK_EQ(json_get_i64(c, "effective_batch_size", 0), 6);
    CHECK_STR(json_get_str(c, "optimizer", ""), "SGD");
    CHECK_STR(json_get_str(c, "loss_fn", ""), "CrossEntropyLoss");
    CHECK_STR(json_get_str(c, "precision", ""), "fp32");
    CHECK_NEAR(json_get_f64(c, "grad_clip_norm", 0), 2, 0);
    trial_close(&t);
}

TEST(
    log_interval,
    "A5: batch metrics come every log_interval batches, with norm and update ratio when asked")
{
    static float c[12];
    for (int i = 0; i < 12; i++)
        c[i] = 2;
    struct trial_setup s = trial_scalar(c, 12);
    struct trial t;
    s.optim = "{'type':'SGD','lr':0.5}";
    s.config.batch_metrics = s.config.log_grad_norm = s.config.log_update_ratio = true;
    s.config.log_interval = 4;
    s.config.max_norm = 1;
    trial_open(&t, &s);
    *trial_var(&t, SCALAR_W) = 16;
    t.train->last_event_ns = INT64_MAX / 2; /* none because of time */
    trial_run(&t);
    CHECK_EQ(trial_count(&t, "batch"), 3);
    const json_t *j = trial_last(&t, "batch");
    CHECK_EQ(json_get_i64(j, "batch", 0), 12);
    CHECK_NEAR(json_get_f64(j, "grad_norm", 0), 2, 0);
    CHECK_NEAR(json_get_f64(j, "grad_norm_clipped", 0), 1, 0);
    CHECK(json_get_f64(j, "update_ratio", 0) > 0);
    trial_close(&t);
}

TEST(
    early_stopping_keeps_the_best,
    "A4: no improvement for patience epochs: stop, best weights back")
{
    const float c[] = {1}, y[] = {-2}; /* validation |w - -2| falls to 0 at w = -2, then rises */
    struct trial_setup s = trial_scalar(c, 1);
    struct trial t;
    s.val = s.train;
    s.val.y = y;
    s.config.epochs = 20;
    s.config.patience = 3;
    trial_open(&t, &s);
    trial_run(&t);
    json_t *m = train_metrics(t.train);
    CHECK_EQ(json_get_i64(m, "best_epoch", 0), 2);
    CHECK_EQ(json_get_i64(m, "total_epochs_run", 0), 5);
    CHECK(json_get_bool(m, "stopped_early", false));
    CHECK_NEAR(trial_w(&t), -2, 0);
    json_decref(m);
    trial_close(&t);
}

TEST(unused_parameters_are_left_alone, "L2: a parameter that no gradient reaches keeps its value")
{
    const float x[] = {1, 1}, y[] = {-64};
    struct trial_setup s = {
        .layers =
            "{'version':2,'nodes':[{'id':'in','type':'Input','ports':[{'id':'p','name':'x'}]},"
            "{'id':'a','type':'Linear','params':{'in_features':2,'out_features':1}},"
            "{'id':'b','type':'Linear','params':{'in_features':2,'out_features':1}},"
            "{'id':'out','type':'Output','ports':[{'id':'q','name':'y'},"
            "{'id':'u','name':'unused'}]}],'edges':["
            "{'source':'in','sourceHandle':'p','target':'a'},"
            "{'source':'in','sourceHandle':'p','target':'b'},"
            "{'source':'a','target':'out','targetHandle':'q'},"
            "{'source':'b','target':'out','targetHandle':'u'}]}",
        .optim = "{'type':'AdamW','lr':0.1,'weight_decay':0.5}"};
    struct trial t;
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
    trial_open(&t, &s);
    float before = *trial_var(&t, "layers.b.weight"), a = *trial_var(&t, "layers.a.weight");
    trial_run(&t);
    CHECK(*trial_var(&t, "layers.b.weight") == before);
    CHECK(*trial_var(&t, "layers.a.weight") != a);
    CHECK(ir_var_find(&t.vars, "exp_avg:layers.b.weight") == IR_NONE);
    trial_close(&t);
}

/* ---- memory stays level ---- */

static void check_level(enum exec_storage storage)
{
    struct trial_setup s = trial_cnn(200, 2);
    struct trial t;
    s.config.storage = storage;
    s.config.accumulate = 2;
    trial_open(&t, &s);
    json_decref(t.events); /* what the test keeps of the events would grow */
    t.events = NULL;
    t.train->sink.event = NULL;
    trial_run_to(&t, 6);
    int64_t live = exec_peak_measured(train_exec(t.train));
    size_t heap = mallinfo2().uordblks;
    trial_run_to(&t, 90);
    CHECK_EQ(exec_peak_measured(train_exec(t.train)), live);
    CHECK(mallinfo2().uordblks <= heap + 4096);
    trial_close(&t);
}

TEST(live_bytes_stay, "case-T96: bytes after 3 updates are those after 48, planned and dynamic")
{
    check_level(EXEC_PLANNED);
    check_level(EXEC_DYNAMIC);
}

TEST(same_seed_same_run, "twice the same bits, losses and weights; another seed differs")
{
    for (int p = PRECISION_FP32; p <= PRECISION_FP16; p++) {
        struct trial a, b, c;
        struct trial_setup s = trial_cnn(20, 4);
        s.train.shuffle = true;
        s.config.epochs = 2;
        s.config.precision = (enum precision)p;
        trial_open(&a, &s);
        trial_run(&a);
        trial_open(&b, &s);
        trial_run(&b);
        trial_check_same(&a, &b);
        s.config.seed++;
        trial_open(&c, &s);
        trial_run(&c);
        CHECK(!trial_same_weights(&a, &c));
        trial_close(&a);
        trial_close(&b);
        trial_close(&c);
    }
}

TEST(storage_does_not_change_numbers, "planned and dynamic storage give the same bits")
{
    for (int p = PRECISION_FP32; p <= PRECISION_FP16; p++) {
        struct trial a, b;
        struct trial_setup s = trial_cnn(18, 4);
        s.val = s.train;
        s.config.precision = (enum precision)p;
        s.config.accumulate = 2;
        s.config.epochs = 2;
        trial_open(&a, &s);
        trial_run(&a);
        s.config.storage = EXEC_DYNAMIC;
        trial_open(&b, &s);
        trial_run(&b);
        trial_check_same(&a, &b);
        trial_close(&a);
        trial_close(&b);
    }
}
