/* loop_step.c - one micro-batch: inputs in, its program, what the update reported. */
#include "train/loop_int.h"

#include <math.h>
#include <string.h>

int train_program(const struct train *t, enum step_program kind)
{
    ASSERT(t->steps.index[kind] != IR_NONE);
    return t->steps.index[kind];
}

static void *input(struct train *t, int index, const char *name)
{
    int v = ir_input_find(t->steps.programs[index], name);
    return v == IR_NONE ? NULL : exec_value(t->exec, index, v);
}

static const void *output(struct train *t, int index, const char *name)
{
    int v = ir_output_find(t->steps.programs[index], name);
    return v == IR_NONE ? NULL : exec_value(t->exec, index, v);
}

/* The labels of the batch in memory that its loss is the mean over. */
struct labels {
    int64_t all, valid;
    double weight; /* class weights of the valid ones; without class weights their count */
};

static struct labels count_labels(struct train *t, const int64_t *target, int64_t samples)
{
    const struct loss_spec *loss = t->parts.loss;
    struct labels l = {.all = samples * shape_count(&t->steps_config.sample.target)};
    for (int64_t i = 0; i < l.all; i++) {
        if (target[i] == loss->attr.ignore_index)
            continue;
        bool known = loss->weight && target[i] >= 0 && target[i] < loss->weight_n;
        l.valid++;
        l.weight += known ? loss->weight[target[i]] : 1;
    }
    return l;
}

static bool has_labels(const struct train *t)
{
    return t->parts.loss && loss_weighs_labels(t->parts.loss) &&
           t->steps_config.sample.target_dtype == DT_I64;
}

static bool counts_labels(const struct train *t)
{
    return t->c.accumulate > 1 && has_labels(t);
}

/* A batch of ignored labels alone: its mean is 0/0, its gradient 0. */
static bool nothing_to_learn(struct train *t, int index, int64_t samples)
{
    return has_labels(t) && count_labels(t, input(t, index, "target"), samples).valid == 0;
}

/* What the gradient of the reported loss is multiplied by before the backward pass (A1, A8). */
static double seed_of(struct train *t, int index, int64_t samples)
{
    double scale = t->scaler.scale;
    if (!counts_labels(t))
        return scale / (double)t->c.accumulate;
    struct labels l = count_labels(t, input(t, index, "target"), samples);
    if (l.valid < l.all && !t->c.accumulate_tokens && !t->warned_ignored) {
        t->warned_ignored = true;
        train_warn(
            t, "accumulate_normalize",
            "%lld of %lld labels of a micro-batch are ignored and accumulate_steps is %lld: each "
            "micro-batch weighs the same whatever its valid labels; accumulate_normalize 'tokens' "
            "weighs them by label",
            (long long)(l.all - l.valid), (long long)l.all, (long long)t->c.accumulate);
    }
    if (!t->c.accumulate_tokens)
        return scale / (double)t->c.accumulate;
    t->window_valid += l.weight;
    t->window_size =
        (double)shape_count(&t->steps_config.sample.target) * (double)t->parts.train_batch;
    return scale * l.weight / t->window_size;
}

/* What the summed gradient is divided by at the update. */
static double divisor(const struct train *t, int64_t present)
{
    if (!t->c.accumulate_tokens || !counts_labels(t))
        return t->scaler.scale;
    double share = t->window_valid / t->window_size; /* sum of the micro-batches' weights */
    return share > 0 ? t->scaler.scale * share * (double)t->c.accumulate / (double)present
                     : t->scaler.scale;
}

static enum status fill_inputs(struct train *t, int index, int64_t *count, struct err *e)
{
    TRY(exec_inputs_ready(t->exec, index, e));
    void *target = input(t, index, "target");
    TRY(loader_next(t->train_loader, input(t, index, "input"), target, count, e));
    ASSERT(*count > 0); /* nobody else reads from the loader of an open epoch */
    int64_t *rng = input(t, index, "rng");
    if (rng) {
        rng[0] = (int64_t)t->c.seed;
        rng[1] = t->at.epoch * t->steps_config.batches + t->at.batch;
    }
    return ST_OK;
}

/* P10: names the first operator whose result is not finite. The batch is read again. */
static enum status not_finite(struct train *t, int index, struct err *e)
{
    struct err ignored = {0};
    int64_t count;
    int op = IR_NONE;
    t->loader_open = false;
    if (loader_begin_epoch(t->train_loader, t->at.epoch, t->at.batch, &ignored) == ST_OK &&
        fill_inputs(t, index, &count, &ignored) == ST_OK) {
        float *seed = input(t, index, "loss_seed");
        if (seed)
            *seed = (float)(t->scaler.scale / (double)t->c.accumulate);
        op = exec_first_nonfinite(t->exec, index, &ignored);
    }
    const struct ir_program *p = t->steps.programs[index];
    (void)err_set(
        e, ST_FAILED,
        "the loss or a gradient became NaN or infinite in epoch %lld, batch %lld (update %lld)",
        (long long)t->at.epoch + 1, (long long)t->at.batch + 1, (long long)t->at.updates + 1);
    if (op == IR_NONE) {
        err_detail(
            e, "every operator of the step gives finite results; the batch itself may hold NaN");
    } else {
        const struct ir_op *o = &p->ops.data[op];
        const char *node = o->node == IR_NONE ? "" : p->vars->nodes.data[o->node];
        err_detail(
            e, "first non-finite result: operator %s of \"%s\" (%s pass)", ir_op_row(o->code)->name,
            node, o->phase == PHASE_BACKWARD ? "backward" : "forward");
        err_node(e, node, ir_op_row(o->code)->name);
    }
    err_hint(
        e, "lower the learning rate, %slook for NaN in the data; %s",
        t->c.levers.update_in_backward ? "" : "set grad_clip_norm, ",
        t->c.levers.update_in_backward
            ? "with update_in_backward, weights whose own gradient was finite are updated already"
            : "the weights are those before this update");
    return ST_FAILED;
}

/* Whether this window's update was skipped; errors when it must not be. */
static enum status finish_window(struct train *t, int index, struct err *e)
{
    const float *ctl = output(t, index, "ctl");
    if (!ctl)
        return ST_OK;
    bool found_inf = ctl[2] != 0;
    const float *ratio = output(t, index, "update_ratio");
    t->last_norm = (double)ctl[3];
    t->last_ratio = ratio ? (double)*ratio : (double)NAN;
    if (isfinite(t->last_norm) && t->last_norm > t->max_norm_seen)
        t->max_norm_seen = t->last_norm;
    if (found_inf && !t->scaler.enabled)
        return not_finite(t, index, e);
    TRY(scaler_unscale(&t->scaler, e));
    if (scaler_update(&t->scaler, found_inf))
        return ST_OK;
    t->at.updates++;
    t->at.optimizer_steps++;
    if (t->parts.schedule && t->c.schedule_per_update && !schedule_is_plateau(t->parts.schedule))
        TRY(schedule_step(t->parts.schedule, (double)NAN, e));
    return ST_OK;
}

static void set_hyper(struct train *t, int index, int64_t present)
{
    double *hyper = input(t, index, "hyper");
    float *scale = input(t, index, "loss_scale");
    if (hyper) {
        hyper[0] = t->last_lr = train_lr(t);
        hyper[1] = (double)(t->at.optimizer_steps + 1);
        if (t->optim.attr.stochastic) {
            hyper[2] = (double)NAN;
            hyper[3] = (double)(t->c.seed & UINT32_MAX);
            hyper[4] = (double)(t->c.seed >> 32);
        }
        if (t->steps_config.cycles_momentum)
            (void)schedule_momentum(t->parts.schedule, &hyper[2]);
    }
    if (scale)
        *scale = (float)divisor(t, present);
}

enum status train_batch(struct train *t, double *loss, struct err *e)
{
    int64_t count, in_window = t->at.batch % t->c.accumulate;
    enum step_program kind = step_program_of(&t->steps_config, t->at.batch);
    int index = train_program(t, kind);
    if (in_window == 0)
        train_window_begin(t);
    enum status st = fill_inputs(t, index, &count, e);
    if (st == ST_OOM && t->c.memory_steps)
        train_report_memory(t, t->parts.train_batch, e);
    TRY(st);
    float *seed = input(t, index, "loss_seed");
    if (seed)
        *seed = (float)seed_of(t, index, count);
    set_hyper(t, index, in_window + 1);
    bool nothing = nothing_to_learn(t, index, count); /* its memory is reused by the run */
    if (in_window == 0)
        exec_step(t->exec, t->at.updates);
    if (in_window == 0 && t->c.memory_steps)
        exec_memory_reset(t->exec);
    st = exec_run(t->exec, index, e);
    if (st != ST_OK && t->c.memory_steps)
        train_report_memory(t, count, e);
    TRY(st);
    const float *value = output(t, index, "loss");
    *loss = (double)*value;
    /* A window with a NaN loss is skipped whole under a scaler; without one the run ends now, with
     * the weights of the last good update. */
    if (!isfinite(*loss) && !t->scaler.enabled && !nothing)
        return not_finite(t, index, e);
    t->images += count;
    bool ends = kind != STEP_FIRST && kind != STEP_MIDDLE;
    if (ends)
        TRY(finish_window(t, index, e));
    if (ends && t->c.memory_steps)
        train_report_memory(t, count, NULL);
    t->at.batch++;
    t->at.batches++;
    if (isfinite(*loss)) {
        t->at.loss_sum += *loss;
        t->at.loss_count++;
    }
    return ST_OK;
}
