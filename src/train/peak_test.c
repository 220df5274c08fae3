/* peak_test.c - the peak that was planned is the peak that is measured, and the measure can differ:
 * a kernel that uses 64 bytes too many is seen. */
#include "train/train_test_support.h"

#include "backends/exec_int.h"

#include <stdio.h>
#include <string.h>

static struct trial_setup networks(int i, int64_t n)
{
    struct trial_setup s = i ? trial_cnn(n, 4) : trial_mlp(n, 4);
    s.val = s.train;
    s.val.n = 7;
    return s;
}

TEST(planned_is_measured, "to the byte: two networks, fp32, bf16, fp16, N 1 and 4")
{
    for (int i = 0; i < 12; i++) {
        struct trial_setup s = networks(i % 2, 22);
        struct trial t;
        s.config.precision = (enum precision)(i / 2 % 3);
        s.config.accumulate = i / 6 ? 4 : 1;
        trial_open(&t, &s);
        trial_run(&t);
        CHECK_EQ(exec_peak_measured(train_exec(t.train)), exec_peak_planned(train_exec(t.train)));
        trial_close(&t);
    }
}

TEST(budget_is_the_peak, "a run fits into the peak that was planned, and not into a byte less")
{
    for (int less = 0; less < 2; less++) {
        struct trial_setup s = networks(1, 22);
        struct trial t;
        struct err e;
        CHECK_OK(trial_plan(&t, &s, &e), &e);
        s.config.budget_bytes = exec_peak_planned(train_exec(t.train)) - less;
        trial_close(&t);
        CHECK_OK(trial_plan(&t, &s, &e), &e);
        CHECK_EQ(exec_map(train_exec(t.train), &e), less ? ST_OOM : ST_OK);
        trial_close(&t);
    }
}

/* ---- 64 bytes too many ---- */

static const struct kernel *honest; /* what `greedy` stands for */
static char *greed_at;

static enum status greedy_run(const struct kernel_args *a, struct err *e)
{
    enum status st = honest->run(a, e);
    memset(greed_at, 0, EXEC_RED_ZONE);
    return st;
}

static struct kernel greedy = {.run = greedy_run, .name = "greedy"};

/* Runs one epoch in which operator `op` of program `k` writes 64 bytes past storage `s`. */
static int64_t excess(const struct trial_setup *setup, int k, int op, int storage)
{
    struct trial t;
    trial_open(&t, setup);
    struct exec *x = train_exec(t.train);
    struct exec_call *call = &x->programs[k].calls[op];
    honest = call->kernel;
    greedy.release = honest->release;
    call->kernel = &greedy;
    greed_at = (char *)x->programs[k].data[storage] +
               x->programs[k].storages.buffers[storage].size_bytes - EXEC_RED_ZONE;
    trial_run(&t);
    int64_t more = exec_peak_measured(x) - exec_peak_planned(x);
    trial_close(&t);
    return more;
}

/* The storages that operator `op` may write: those of its results, and its workspace. */
static int written(const struct exec_program *p, int op, int list[16])
{
    const struct ir_op *o = &p->ir->ops.data[op];
    int n = 0;
    for (int i = 0; i < o->n_out && n < 15; i++)
        if (p->storages.of_value[o->out[i]] != IR_NONE)
            list[n++] = p->storages.of_value[o->out[i]];
    if (p->storages.of_workspace[op] != IR_NONE)
        list[n++] = p->storages.of_workspace[op];
    return p->calls[op].kernel ? n : 0;
}

TEST(
    overruns_are_seen,
    "A9: 64 bytes past any result or workspace, of any operator: measured differs")
{
    struct trial_setup s = networks(1, 8); /* one training program, two of evaluation */
    struct trial t;
    struct err e;
    int tried = 0, list[16];
    CHECK_OK(trial_plan(&t, &s, &e), &e);
    const struct exec *x = train_exec(t.train);
    for (int k = 0; k < x->n_programs; k++) {
        for (int op = 0; op < (int)x->programs[k].ir->ops.n; op++) {
            for (int i = 0, n = written(&x->programs[k], op, list); i < n; i++, tried++)
                if (excess(&s, k, op, list[i]) != EXEC_RED_ZONE)
                    test_fail(
                        __FILE__, __LINE__, "program %s, operator %d (%s): not seen",
                        x->programs[k].ir->name, op,
                        ir_op_row(x->programs[k].ir->ops.data[op].code)->name);
        }
    }
    CHECK(tried > 30);
    trial_close(&t);
}

/* ---- the bill ---- */

TEST(categories_sum_to_the_peak, "the categories of the bill and its holders sum to the peak")
{
    for (int p = PRECISION_FP32; p <= PRECISION_FP16; p++) {
        struct trial_setup s = networks(1, 22);
        struct trial t;
        struct err e;
        int64_t sum = 0, held = 0;
        s.config.precision = (enum precision)p;
        CHECK_OK(trial_plan(&t, &s, &e), &e);
        const struct exec_report *r = exec_report(train_exec(t.train));
        for (int i = 0; i < CATEGORY_COUNT; i++)
            sum += r->by_category[i];
        for (int i = 0; i < r->n_holders; i++)
            held += r->holders[i].total_bytes;
        CHECK_EQ(sum, r->peak_bytes);
        CHECK_EQ(held, r->peak_bytes);
        CHECK(r->lower_bound_bytes <= r->peak_bytes);
        CHECK(r->peak_bytes <= r->lower_bound_bytes + r->lower_bound_bytes / 100 + 4096);
        trial_close(&t);
    }
}
