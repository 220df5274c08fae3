/* schedule_test.c - the rates of the training cases, states, and what is refused. */
#include "train/schedule_dict.h"
#include "train/schedule_int.h"

#include "test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static struct optim_spec sgd(double lr)
{
    return (struct optim_spec){.attr = {.kind = OPTIM_SGD}, .lr = lr};
}

static json_t *parse(const char *text)
{
    struct err e;
    json_t *v;
    CHECK_OK(json_parse(text, strlen(text), "test", &v, &e), &e);
    return v;
}

static struct schedule *make(const char *node, double lr)
{
    struct optim_spec optim = sgd(lr);
    struct err e;
    struct schedule *s;
    json_t *params = parse(node);
    CHECK_OK(schedule_new(params, &optim, &s, &e), &e);
    json_decref(params);
    return s;
}

static void step(struct schedule *s, int n)
{
    struct err e;
    for (int i = 0; i < n; i++)
        CHECK_OK(schedule_step(s, (double)NAN, &e), &e);
}

TEST(
    schedule_first_rates,
    "case-T94: the rate rises from zero, i/W, and the rate given is the one an update uses")
{
    struct schedule *s = make("{\"type\": \"constant_with_warmup\", \"warmup_steps\": 4}", 1);
    double w = 0;
    for (int i = 0; i < 4; i++) {
        CHECK(schedule_lr(s) == i / 4.0);
        w -= schedule_lr(s) * 1;
        step(s, 1);
    }
    CHECK(w == -1.5);
    CHECK(schedule_lr(s) == 1);
    schedule_free(s);
}

TEST(
    schedule_forward, "case-T45: moved forward by updates, the rate lands where it would have been")
{
    struct schedule *s =
        make("{\"type\": \"warmup_cosine\", \"warmup_steps\": 10, \"total_steps\": 20}", 1);
    CHECK(schedule_fast_forward(s, 15));
    CHECK_NEAR(schedule_lr(s), 0.5, 1e-12);
    step(s, 1);
    CHECK_NEAR(schedule_lr(s), 0.345492, 1e-6);
    schedule_free(s);
}

TEST(schedule_plateau_forward, "a plateau schedule cannot be moved forward")
{
    struct schedule *s = make("{\"type\": \"ReduceLROnPlateau\"}", 1);
    CHECK(schedule_is_plateau(s));
    CHECK(!schedule_fast_forward(s, 3));
    CHECK(schedule_lr(s) == 1);
    schedule_free(s);
}

TEST(
    schedule_forward_far,
    "moving far forward takes no time where the rate is a function of the step")
{
    static const char *const nodes[] = {
        "{\"type\": \"CosineAnnealingWarmRestarts\", \"T_max\": 7}",
        "{\"type\": \"warmup_linear\", \"warmup_steps\": 5, \"total_steps\": 100}",
        "{\"type\": \"StepLR\"}"};
    for (int i = 0; i < 3; i++) {
        struct schedule *far = make(nodes[i], 1), *near = make(nodes[i], 1);
        CHECK(schedule_fast_forward(near, 40));
        CHECK(schedule_fast_forward(near, 0));
        for (int k = 0; k < 40; k++)
            step(far, 1);
        CHECK(schedule_lr(far) == schedule_lr(near));
        CHECK_EQ(far->last_epoch, near->last_epoch);
        CHECK_EQ(far->step_count, near->step_count);
        CHECK_EQ(far->t_cur, near->t_cur);
        CHECK_EQ(schedule_fast_forward(far, INT64_C(1) << 60), i < 2);
        CHECK(schedule_lr(far) >= 0);
        schedule_free(far);
        schedule_free(near);
    }
}

TEST(schedule_end, "case-T93: after its end the warm-up family stays at zero")
{
    static const char *const kinds[] = {"warmup_cosine", "warmup_linear"};
    for (int k = 0; k < 2; k++) {
        char node[120];
        (void)snprintf(
            node, sizeof node, "{\"type\": \"%s\", \"warmup_steps\": 5, \"total_steps\": 15}",
            kinds[k]);
        struct schedule *s = make(node, 1);
        double last = 2;
        for (int i = 0; i <= 40; i++) {
            if (i > 5)
                CHECK(schedule_lr(s) <= last);
            if (i >= 15)
                CHECK_NEAR(schedule_lr(s), 0, 1e-15);
            if (k == 0 && i == 5)
                CHECK(schedule_lr(s) == 1);
            if (k == 0 && (i == 6 || i == 14))
                CHECK_NEAR(schedule_lr(s), i == 6 ? 0.975528 : 0.024472, 1e-6);
            last = schedule_lr(s);
            step(s, 1);
        }
        schedule_free(s);
    }
}

TEST(schedule_per_update, "case-T91: stepped once an update, the rate halves once an update")
{
    struct schedule *s = make("{\"type\": \"ExponentialLR\", \"gamma\": 0.5}", 1);
    double w = 0;
    for (int batch = 0; batch < 8; batch++)
        if (batch % 4 == 3) {
            w -= schedule_lr(s) * 1;
            step(s, 1);
        }
    CHECK(w == -1.5);
    CHECK(schedule_lr(s) == 0.25);
    schedule_free(s);
}

TEST(
    schedule_horizon,
    "case-T44: a restored schedule keeps the horizon that was saved, and says what differs")
{
    struct schedule *s = make("{\"type\": \"CosineAnnealingLR\", \"T_max\": 10}", 1);
    step(s, 5);
    json_t *state = schedule_state(s);
    struct schedule *longer = make("{\"type\": \"CosineAnnealingLR\", \"T_max\": 20}", 1);
    const char *differs;
    struct err e;
    CHECK_OK(schedule_restore(longer, state, &differs, &e), &e);
    CHECK_STR(differs, "T_max");
    CHECK_NEAR(schedule_lr(longer), 0.5, 1e-12);
    for (int i = 5; i < 10; i++) {
        double before = schedule_lr(longer);
        step(longer, 1);
        step(s, 1);
        CHECK(schedule_lr(longer) == schedule_lr(s));
        CHECK(schedule_lr(longer) < before);
    }
    json_decref(state);
    schedule_free(s);
    schedule_free(longer);
}

TEST(
    schedule_horizon_over,
    "case-T44: an extended warm-up schedule stays at the end of the saved horizon")
{
    struct schedule *s =
        make("{\"type\": \"warmup_cosine\", \"warmup_steps\": 2, \"total_steps\": 10}", 1);
    step(s, 12);
    json_t *state = schedule_state(s);
    struct schedule *longer =
        make("{\"type\": \"warmup_cosine\", \"warmup_steps\": 4, \"total_steps\": 30}", 0.5);
    const char *differs;
    struct err e;
    CHECK_OK(schedule_restore(longer, state, &differs, &e), &e);
    CHECK_STR(differs, "lr, total_steps, warmup_steps");
    step(longer, 5);
    CHECK_NEAR(schedule_lr(longer), 0, 1e-15);
    json_decref(state);
    schedule_free(s);
    schedule_free(longer);
}

TEST(schedule_restore_same, "restoring under the same parameters differs in nothing")
{
    struct schedule *s = make("{\"type\": \"MultiStepLR\", \"step_size\": 3}", 0.1);
    step(s, 4);
    json_t *state = schedule_state(s);
    struct schedule *again = make("{\"type\": \"MultiStepLR\", \"step_size\": 3}", 0.1);
    const char *differs = "";
    struct err e;
    CHECK_OK(schedule_restore(again, state, &differs, &e), &e);
    CHECK(!differs);
    CHECK(schedule_lr(again) == schedule_lr(s));
    json_decref(state);
    schedule_free(s);
    schedule_free(again);
}

TEST(schedule_absent_metric, "case-T102: a plateau schedule ignores an absent metric")
{
    struct schedule *s = make("{\"type\": \"ReduceLROnPlateau\", \"gamma\": 0.5}", 1);
    struct err e;
    CHECK_OK(schedule_step(s, 1, &e), &e);
    step(s, 100); /* all absent */
    CHECK(schedule_lr(s) == 1);
    for (int i = 0; i < 11; i++)
        CHECK_OK(schedule_step(s, 1, &e), &e);
    CHECK(schedule_lr(s) == 0.5);
    schedule_free(s);
}

TEST(schedule_bad_state, "a state that cannot be one is refused and changes nothing")
{
    static const char *const bad[] = {
        "[]",
        "{}",
        "{\"last_epoch\": -1}",
        "{\"last_epoch\": \"x\"}",
        "{\"last_epoch\": 9223372036854775807}",
        "{\"last_epoch\": 1, \"T_0\": 0}",
        "{\"last_epoch\": 1, \"T_0\": -4}",
        "{\"last_epoch\": 1, \"T_cur\": 7}",
        "{\"last_epoch\": 1, \"T_cur\": -1}",
        "{\"last_epoch\": 1, \"T_0\": 9223372036854775807}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct schedule *s = make("{\"type\": \"CosineAnnealingWarmRestarts\", \"T_max\": 5}", 1);
        json_t *state = parse(bad[i]);
        const char *differs;
        struct err e = {0};
        CHECK_EQ(schedule_restore(s, state, &differs, &e), ST_CORRUPT);
        CHECK_EQ(s->last_epoch, 0);
        json_decref(state);
        schedule_free(s);
    }
}

static void refused(const char *node, enum optim_kind kind, const char *word)
{
    struct optim_spec optim = sgd(1);
    struct schedule *s = NULL;
    struct err e = {0};
    json_t *params = parse(node);
    optim.attr.kind = kind;
    CHECK_EQ(schedule_new(params, &optim, &s, &e), ST_INVALID);
    CHECK(strstr(e.text, word));
    json_decref(params);
}

TEST(schedule_refused, "parameters that make no schedule are refused by name")
{
    refused("{\"type\": \"StepLr\"}", OPTIM_SGD, "StepLr");
    refused("{\"type\": \"StepLR\", \"step_size\": 0}", OPTIM_SGD, "step_size");
    refused("{\"type\": \"StepLR\", \"gamma\": \"x\"}", OPTIM_SGD, "gamma");
    refused("{\"type\": \"StepLR\", \"gamma\": \"nan\"}", OPTIM_SGD, "gamma");
    refused("{\"type\": \"MultiStepLR\", \"step_size\": -5}", OPTIM_SGD, "step_size");
    refused(
        "{\"type\": \"MultiStepLR\", \"step_size\": 9000000000000000000}", OPTIM_SGD, "step_size");
    refused("{\"type\": \"CosineAnnealingLR\", \"T_max\": 0}", OPTIM_SGD, "T_max");
    refused("{\"type\": \"CosineAnnealingLR\", \"T_max\": 2.5}", OPTIM_SGD, "T_max");
    refused("{\"type\": \"ReduceLROnPlateau\", \"gamma\": 1.5}", OPTIM_SGD, "gamma");
    refused("{\"type\": \"OneCycleLR\", \"total_steps\": 0}", OPTIM_SGD, "total_steps");
    refused("{\"type\": \"OneCycleLR\"}", OPTIM_RPROP, "Rprop");
    refused(
        "{\"type\": \"warmup_linear\", \"warmup_steps\": 9, \"total_steps\": 5}", OPTIM_SGD,
        "warmup_steps");
}

TEST(schedule_cycle_prepares, "OneCycleLR gives the optimizer a momentum that it did not have")
{
    struct optim_spec optim = sgd(1);
    double momentum;
    struct schedule *s = make("{\"type\": \"OneCycleLR\", \"total_steps\": 10}", 1);
    CHECK(schedule_momentum(s, &momentum) && momentum == 0.95);
    schedule_prepare_optim(s, &optim);
    CHECK(optim.attr.momentum == 0.95);
    schedule_free(s);
    s = make("{\"type\": \"StepLR\"}", 1);
    optim = sgd(1);
    schedule_prepare_optim(s, &optim);
    CHECK(optim.attr.momentum == 0 && !schedule_momentum(s, &momentum));
    schedule_free(s);
}

TEST(schedule_cycle_ends, "OneCycleLR says before a run that its steps will not do")
{
    struct schedule *s = make("{\"type\": \"OneCycleLR\", \"total_steps\": 10}", 1);
    struct err e = {0};
    CHECK_OK(schedule_check_steps(s, 10, &e), &e);
    CHECK_EQ(schedule_check_steps(s, 11, &e), ST_INVALID);
    step(s, 10);
    CHECK_EQ(schedule_step(s, 0, &e), ST_INVALID);
    CHECK(strstr(e.text, "total_steps"));
    schedule_free(s);
}
