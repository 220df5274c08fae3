/* chunk_test.c - loss_chunk_tokens: head and cross-entropy in chunks against the whole. */
#include "train/train_test_support.h"

#include "ir/build.h"
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

TEST(chunked_loss_class_weights, "L6: class weights weigh the chunks as they weigh the whole")
{
    static char loss[4096];
    int used = snprintf(loss, sizeof loss, "{'type':'CrossEntropyLoss','weight':[");
    for (int i = 0; i < 300; i++)
        used += snprintf(loss + used, sizeof loss - (size_t)used, "%s%d", i ? "," : "", i % 4);
    (void)snprintf(loss + used, sizeof loss - (size_t)used, "]}");
    struct trial_setup s = classifier(96, 32, 300);
    s.loss = loss;
    check_close(s, 300, 4e-6);
}

/* A head over 50 classes by hand, as GPT-2's files have it ([E, V]) or the other way round;
 * gradients as outputs. chunk 0: whole. */
struct head_net {
    struct ir_vars vars;
    struct ir_program *p;
    struct exec *x;
    const char *why;
};
enum { TOKENS = 21, WIDTH = 8, CLASSES = 50 };

static void head_run(struct head_net *n, bool in_out, bool frozen, int chunk)
{
    struct err e = {0};
    int grads[4], at;
    *n = (struct head_net){0};
    ir_vars_init(&n->vars);
    n->p = ir_program_new("head", &n->vars);
    int x = ir_input(n->p, "x", DT_F32, SHAPE(TOKENS, WIDTH));
    int target = ir_input(n->p, "target", DT_I64, SHAPE(TOKENS));
    n->p->phase = PHASE_FORWARD;
    int first = trial_weight(n->p, "a", SHAPE(WIDTH, WIDTH), true);
    int w =
        trial_weight(n->p, "w", in_out ? SHAPE(WIDTH, CLASSES) : SHAPE(CLASSES, WIDTH), !frozen);
    x = ir_linear(n->p, x, first, IR_NONE);
    x = in_out ? ir_gemm(n->p, x, w, IR_NONE, false, false) : ir_linear(n->p, x, w, IR_NONE);
    n->p->phase = PHASE_LOSS;
    struct loss_attr attr = {.reduction = REDUCE_MEAN, .ignore_index = -100};
    int loss = ir_cross_entropy(n->p, x, target, IR_NONE, &attr);
    int seed = ir_input(n->p, "seed", DT_F32, shape_scalar());
    ir_output(n->p, loss, "loss");
    struct loss_chunk_options o = {.tokens = chunk, .loss = loss, .seed = seed};
    if (chunk)
        CHECK_OK(pass_loss_chunk(n->p, &o, &n->why, &e), &e);
    ir_backward(n->p, loss, seed, grads);
    CHECK_EQ(grads[1] == IR_NONE, frozen);
    ir_output(n->p, grads[0], "grad:a");
    if (!frozen)
        ir_output(n->p, grads[1], "grad:w");
    CHECK_OK(ir_status(n->p, &e), &e);
    ir_dead_code(n->p);
    CHECK_OK(ir_verify(n->p, &e), &e);
    CHECK_OK(exec_new(&n->vars, &n->p, 1, NULL, &n->x, &e), &e);
    CHECK_OK(exec_map(n->x, &e), &e);
    for (int i = 0; i < WIDTH * WIDTH; i++)
        ((float *)exec_var(n->x, 0))[i] = (float)(i * 7 % 23 - 11) / 16;
    for (int i = 0; i < CLASSES * WIDTH; i++) { /* the same numbers, whatever their order */
        at = in_out ? i % WIDTH * CLASSES + i / WIDTH : i;
        ((float *)exec_var(n->x, 1))[at] = (float)(i * 13 % 41 - 20) / 32;
    }
    for (int i = 0; i < TOKENS * WIDTH; i++)
        ((float *)exec_value(n->x, 0, ir_input_find(n->p, "x")))[i] = (float)(i * 5 % 17 - 8) / 8;
    for (int i = 0; i < TOKENS; i++)
        ((int64_t *)exec_value(n->x, 0, ir_input_find(n->p, "target")))[i] = i * 11 % CLASSES;
    *(float *)exec_value(n->x, 0, ir_input_find(n->p, "seed")) = 1;
    CHECK_OK(exec_run(n->x, 0, &e), &e);
}

static const float *head_output(struct head_net *n, const char *name)
{
    return exec_value(n->x, 0, ir_output_find(n->p, name));
}

static void head_close(struct head_net *n)
{
    exec_free(n->x);
    ir_program_free(n->p);
    ir_vars_release(&n->vars);
}

static bool head_has(const struct head_net *n, enum opcode code)
{
    for (size_t i = 0; i < n->p->ops.n; i++)
        if (n->p->ops.data[i].code == code)
            return true;
    return false;
}

TEST(chunked_loss_heads, "L6 L3: heads stored [E, V], and frozen heads: the unchunked gradients")
{
    for (int form = 0; form < 4; form++) {
        bool in_out = form & 1, frozen = form & 2;
        struct head_net whole, parts;
        double size, d;
        head_run(&whole, in_out, frozen, 0);
        head_run(&parts, in_out, frozen, 4);
        CHECK(parts.why == NULL && head_has(&parts, OP_LINEAR_CROSS_ENTROPY));
        CHECK(!head_has(&parts, OP_CROSS_ENTROPY));
        CHECK_NEAR(
            (double)*head_output(&whole, "loss"), (double)*head_output(&parts, "loss"), 1e-5);
        d = largest_difference(
            head_output(&whole, "grad:a"), head_output(&parts, "grad:a"), WIDTH * WIDTH, &size);
        CHECK(size > 0 && d <= 4e-6 * size);
        if (!frozen) {
            d = largest_difference(
                head_output(&whole, "grad:w"), head_output(&parts, "grad:w"), WIDTH * CLASSES,
                &size);
            CHECK(size > 0 && d <= 4e-6 * size);
        }
        head_close(&whole);
        head_close(&parts);
    }
}

TEST(
    chunked_loss_adapted_head,
    "L6 L3: an adapter on the head leaves nothing to cut, and it is said")
{
    static const struct adapter_config on_head = {.rank = 2, .alpha = 4, .targets = "z"};
    static const struct adapter_config before = {.rank = 2, .alpha = 4, .targets = "a"};
    struct trial_setup s = classifier(16, 8, 20);
    struct trial t;
    s.config.levers.loss_chunk_tokens = 3;
    s.adapter = &on_head;
    trial_open(&t, &s);
    CHECK(trial_warned(&t, "loss_chunk_tokens") && t.train->steps.unchunked != NULL);
    CHECK(has(&t, 0, OP_CROSS_ENTROPY));
    trial_run(&t);
    trial_close(&t);
    s.adapter = &before; /* the head itself is frozen then, and cut */
    trial_open(&t, &s);
    CHECK(!trial_warned(&t, "loss_chunk_tokens") && has(&t, 0, OP_LINEAR_CROSS_ENTROPY));
    trial_run(&t);
    trial_close(&t);
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
