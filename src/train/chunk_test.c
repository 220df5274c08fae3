/* chunk_test.c - loss_chunk_tokens: head and cross-entropy in chunks against the whole. */
#include "train/train_test_support.h"

#include "passes/passes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A network with a head over many classes. */
static struct trial_setup classifier(int64_t n, int64_t batch, int classes)
{
    static char layers[512];
    struct trial_setup s = trial_mlp(n, batch);
    (void)snprintf(
        layers, sizeof layers,
        "Linear a {'in_features':6,'out_features':40}; GELU g;"
        "Linear z {'in_features':40,'out_features':%d}",
        classes);
    s.layers = layers;
    s.optim = "{'type':'SGD','lr':0.5}";
    s.train.classes = classes;
    s.val = s.train;
    s.val.n = 13;
    return s;
}

static double largest_difference(const float *a, const float *b, int n, double *size)
{
    double d = 0;
    *size = 0;
    for (int i = 0; i < n; i++) {
        d = fmax(d, fabs((double)a[i] - (double)b[i]));
        *size = fmax(*size, fabs((double)a[i]));
    }
    return d;
}

static bool has(struct trial *t, int program, enum opcode code)
{
    const struct ir_program *p = train_steps(t->train)->programs[program];
    for (size_t i = 0; i < p->ops.n; i++)
        if (p->ops.data[i].code == code)
            return true;
    return false;
}

/* After three updates: weights, losses and validation within rounding. */
static void check_close(struct trial_setup s, int classes, double tolerance)
{
    static const char *const vars[] = {"layers.z.weight", "layers.z.bias", "layers.a.weight"};
    struct trial whole, parts;
    const int counts[] = {classes * 40, classes, 240};
    s.config.max_steps = 3;
    trial_open(&whole, &s);
    trial_run(&whole);
    s.config.levers.loss_chunk_tokens = 11;
    trial_open(&parts, &s);
    CHECK(parts.train->steps.unchunked == NULL);
    CHECK(has(&parts, 0, OP_LINEAR_CROSS_ENTROPY) && !has(&parts, 0, OP_CROSS_ENTROPY));
    CHECK(!has(&parts, parts.train->steps.n - 1, OP_COUNT_CORRECT));
    trial_run(&parts);
    CHECK_EQ(
        exec_peak_measured(train_exec(parts.train)), exec_peak_planned(train_exec(parts.train)));
    for (int i = 0; i < 3; i++) {
        double size, d = largest_difference(
                         trial_var(&whole, vars[i]), trial_var(&parts, vars[i]), counts[i], &size);
        if (!(d <= tolerance * size))
            test_fail(__FILE__, __LINE__, "%s differs by %g of %g", vars[i], d, size);
    }
    size_t n;
    double a = train_losses(whole.train, &n)[0], b = train_losses(parts.train, &n)[0];
    CHECK_NEAR(a, b, tolerance * a);
    CHECK_NEAR(
        train_val_losses(whole.train, &n)[0], train_val_losses(parts.train, &n)[0], tolerance * a);
    CHECK_EQ(whole.train->last_val_accuracy == parts.train->last_val_accuracy, true);
    trial_close(&whole);
    trial_close(&parts);
}

TEST(chunked_loss, "L6: loss, gradients and hits of the unchunked, within rounding")
{
    static const char *const losses[] = {
        "{'type':'CrossEntropyLoss'}", "{'type':'CrossEntropyLoss','reduction':'sum'}",
        "{'type':'CrossEntropyLoss','label_smoothing':0.1}",
        "{'type':'CrossEntropyLoss','ignore_index':1}"};
    /* Sums of 40 and of 300 products in another order: some units of 2^-24 of the largest. */
    for (int i = 0; i < 4; i++) {
        struct trial_setup s = classifier(96, 32, 300);
        s.loss = losses[i];
        if (i == 1)
            s.optim = "{'type':'SGD','lr':0.01}";
        check_close(s, 300, 4e-6);
    }
}

TEST(
    chunked_loss_any_size,
    "L6: a chunk of more tokens than there are is all of them, up to INT64_MAX")
{
    static const int64_t chunks[] = {96 * 300, INT64_MAX - 1, INT64_MAX};
    struct trial_setup s = classifier(96, 32, 300);
    s.config.max_steps = 2;
    struct trial first;
    for (int i = 0; i < 3; i++) {
        struct trial t;
        s.config.levers.loss_chunk_tokens = chunks[i];
        trial_open(i ? &t : &first, &s);
        trial_run(i ? &t : &first);
        if (i == 0)
            continue;
        trial_check_same(&first, &t);
        trial_close(&t);
    }
    trial_close(&first);
}

TEST(chunked_loss_precisions, "L6 P2: under autocast, with the gradient scaler, with accumulation")
{
    struct trial_setup s = classifier(96, 32, 300);
    s.config.precision = PRECISION_BF16; /* logits are not rounded to 8 bits here */
    check_close(s, 300, 0.02);
    s.config.precision = PRECISION_FP16;
    s.config.scale_initial = 1024;
    check_close(s, 300, 0.003);
    s.config.precision = PRECISION_FP32;
    s.config.accumulate = 3;
    check_close(s, 300, 4e-6);
}

TEST(chunked_loss_peak, "L6: the peak no longer grows with tokens times classes")
{
    int64_t peak[2][2];
    for (int on = 0; on < 2; on++)
        for (int more = 0; more < 2; more++) {
            struct trial_setup s = classifier(1024, 1024, more ? 4096 : 1024);
            struct trial t;
            struct err e;
            s.val.n = s.val.batch = 0;
            s.config.levers.loss_chunk_tokens = on ? 64 : 0;
            CHECK_OK(trial_plan(&t, &s, &e), &e);
            peak[on][more] = exec_peak_planned(train_exec(t.train));
            trial_close(&t);
        }
    int64_t classes = 3072, weights = 41 * classes * 4 * 2; /* and their gradients */
    CHECK(peak[0][1] - peak[0][0] >= 1024 * classes * 4);
    CHECK(peak[1][1] - peak[1][0] <= weights + 64 * classes * 4 + classes * 8 + (1 << 20));
}

TEST(chunked_loss_absent, "L6: where there is nothing to cut the run says why, and changes nothing")
{
    struct trial_setup s = trial_mlp(8, 4);
    struct trial a, b;
    s.layers = "Linear a {'in_features':6,'out_features':3}; ReLU r";
    trial_open(&a, &s);
    trial_run(&a);
    s.config.levers.loss_chunk_tokens = 2;
    trial_open(&b, &s);
    trial_run(&b);
    CHECK(trial_warned(&b, "loss_chunk_tokens"));
    CHECK_STR(b.train->steps.unchunked, "the model does not end in one product with a weight");
    trial_check_same(&a, &b);
    trial_close(&a);
    trial_close(&b);
}
