/* reach_test.c - the programs that are planned are those that the run can reach: step_reach against
 * the loop written down once more, and against the loop itself. */
#include "train/train_test_support.h"

#include "backends/exec_int.h"

#include <string.h>

/* ---- the loop of loop.h, without any numbers ---- */

struct walk {
    const struct step_config *c;
    int64_t epochs, max_steps, updates;
    bool ran[STEP_PROGRAM_COUNT];
};

static void walk_validation(struct walk *w)
{
    for (int64_t i = 0; i < w->c->val_batches; i++) {
        bool full = i < w->c->val_batches - 1 || w->c->val_last_batch == w->c->val_batch;
        w->ran[full ? STEP_EVAL : STEP_EVAL_SHORT] = true;
    }
}

static void walk_batch(struct walk *w, int64_t i, int64_t in_window)
{
    bool is_last = i == w->c->batches - 1, full = !is_last || w->c->last_batch == w->c->batch;
    bool ends = is_last || in_window == w->c->accumulate - 1;
    if (!ends)
        w->ran[in_window == 0 ? STEP_FIRST : STEP_MIDDLE] = true;
    else if (full)
        w->ran[in_window == 0 ? STEP_ONLY : STEP_LAST] = true;
    else
        w->ran[in_window == 0 ? STEP_SHORT_ONLY : STEP_SHORT_LAST] = true;
    if (!ends)
        return;
    w->updates++;
    if (w->c->val_every > 0 && w->updates % w->c->val_every == 0)
        walk_validation(w);
}

static bool at_limit(const struct walk *w)
{
    return w->max_steps > 0 && w->updates >= w->max_steps;
}

static void walk_run(struct walk *w)
{
    for (int64_t epoch = 0; epoch < w->epochs; epoch++) {
        int64_t in_window = 0;
        for (int64_t i = 0; i < w->c->batches; i++) {
            if (in_window == 0 && at_limit(w))
                return;
            walk_batch(w, i, in_window);
            in_window = (in_window + 1) % w->c->accumulate;
        }
        walk_validation(w);
        if (at_limit(w))
            return;
    }
}

static void check_walk(const struct step_config *c, int64_t epochs, int64_t max_steps)
{
    struct walk w = {.c = c, .epochs = epochs, .max_steps = max_steps};
    bool reached[STEP_PROGRAM_COUNT];
    walk_run(&w);
    step_reach(c, reached);
    if (memcmp(reached, w.ran, sizeof reached) == 0)
        return;
    for (int k = 0; k < STEP_PROGRAM_COUNT; k++)
        if (reached[k] != w.ran[k])
            test_fail(
                __FILE__, __LINE__,
                "program %d %s: %lld epochs of %lld batches, the last of %lld, accumulate %lld, "
                "max_steps %lld; %lld batches of validation, the last of %lld, every %lld updates",
                k, w.ran[k] ? "is missing" : "never runs", (long long)epochs, (long long)c->batches,
                (long long)c->last_batch, (long long)c->accumulate, (long long)max_steps,
                (long long)c->val_batches, (long long)c->val_last_batch, (long long)c->val_every);
}

/* Digit of `i` in a number system of several bases: i becomes the rest. */
static int64_t digit(int64_t *i, int64_t base)
{
    int64_t d = *i % base;
    *i /= base;
    return d;
}

TEST(
    planned_programs_are_the_reached_ones,
    "A4 A7: epochs x batches x accumulate x max_steps x short batch x validation, each walked")
{
    enum { CASES = 3 * 9 * 2 * 5 * 13 * 4 * 2 * 5 };
    for (int64_t i = 0; i < CASES; i++) {
        int64_t rest = i, epochs = 1 + digit(&rest, 3), max_steps;
        struct step_config c = {.batch = 4, .val_batch = 3};
        c.batches = 1 + digit(&rest, 9);
        c.last_batch = digit(&rest, 2) ? 4 : 1; /* 4: drop_last, or it comes out even */
        c.accumulate = 1 + digit(&rest, 5);
        max_steps = c.windows_max = digit(&rest, 13);
        c.val_batches = digit(&rest, 4);
        c.val_last_batch = digit(&rest, 2) ? 3 : 2;
        c.val_every = digit(&rest, 5);
        check_walk(&c, epochs, max_steps);
        c.windows_max = 0; /* where it cannot be counted on: the whole epoch, whatever max_steps */
        check_walk(&c, epochs, 0);
    }
}

TEST(long_epochs_are_reached_too, "numbers near the largest do not overflow")
{
    struct step_config c = {
        .batch = 4,
        .last_batch = 4,
        .batches = INT64_MAX,
        .accumulate = 3,
        .windows_max = INT64_MAX / 4};
    bool reached[STEP_PROGRAM_COUNT];
    step_reach(&c, reached);
    CHECK(reached[STEP_FIRST] && reached[STEP_MIDDLE] && reached[STEP_LAST]);
    CHECK(!reached[STEP_ONLY]); /* 2^63 - 1 leaves 1: the odd last window, of one batch */
    c.windows_max = INT64_MAX / 3 + 1;
    step_reach(&c, reached);
    CHECK(reached[STEP_ONLY]);
    c.accumulate = INT64_MAX;
    c.windows_max = INT64_MAX;
    step_reach(&c, reached);
    CHECK(reached[STEP_FIRST] && reached[STEP_MIDDLE] && reached[STEP_LAST]);
}

/* ---- the loop itself ---- */

/* Runs to the end: every program of the set ran, and what was planned is what was measured. */
static void check_run(const struct trial_setup *s)
{
    struct trial t;
    trial_open(&t, s);
    trial_run(&t);
    const struct exec *x = train_exec(t.train);
    for (int k = 0; k < x->n_programs; k++)
        if (!x->programs[k].seen)
            test_fail(
                __FILE__, __LINE__,
                "%s never ran: %lld samples, accumulate %lld, max_steps %lld, val_every %lld",
                x->programs[k].ir->name, (long long)s->train.n, (long long)s->config.accumulate,
                (long long)s->config.max_steps, (long long)s->config.val_every_steps);
    CHECK_EQ(exec_peak_measured(x), exec_peak_planned(x));
    trial_close(&t);
}

TEST(runs_use_all_they_plan, "A4: whole runs under max_steps: no program too many, none missing")
{
    for (int64_t i = 0; i < 2 * 3 * 3 * 5 * 3 * 3; i++) {
        int64_t rest = i;
        bool cnn = digit(&rest, 2) != 0;
        int64_t n = (int64_t[]){8, 10, 13}[digit(&rest, 3)];
        struct trial_setup s = cnn ? trial_cnn(n, 4) : trial_mlp(n, 2);
        s.config.fresh = true;
        s.config.accumulate = 1 + digit(&rest, 3);
        s.config.max_steps = digit(&rest, 5);
        s.config.val_every_steps = digit(&rest, 3);
        s.config.epochs = 1 + i % 2;
        s.train.drop_last = i % 3 == 0;
        s.val = s.train;
        s.val.drop_last = false;
        s.val.batch = 6; /* more than a training batch: validation can hold the peak */
        s.val.n = (int64_t[]){12, 7, 5}[digit(&rest, 3)];
        if (i % 5 == 0)
            s.val.batch = 0;
        check_run(&s);
    }
}

TEST(max_steps_cuts_programs_off, "A4: one update of an odd last window plans less than the epoch")
{
    struct trial_setup s = trial_mlp(10, 2); /* 5 batches: windows of 2, 2 and 1 */
    struct trial t;
    struct err e;
    s.val = s.train;
    s.config.accumulate = 2;
    s.config.max_steps = 1;
    for (int fresh = 0; fresh < 2; fresh++) {
        s.config.fresh = fresh != 0;
        CHECK_OK(trial_plan(&t, &s, &e), &e);
        CHECK_EQ(train_steps(t.train)->n, fresh ? 2 : 4);
        trial_close(&t);
    }
}

TEST(skipped_windows_reach_everything, "P7: fp16: skipped updates are no steps, so all is planned")
{
    struct trial_setup s = trial_mlp(9, 2); /* windows of 2, 2 and the short last batch */
    s.val = s.train;
    s.config.fresh = true;
    s.config.precision = PRECISION_FP16;
    s.config.accumulate = 2;
    s.config.max_steps = 1;
    s.config.scale_initial = 1e30;
    check_run(&s);
}
