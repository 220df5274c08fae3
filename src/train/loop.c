/* loop.c - epochs, validation, early stopping, limits, Stop. */
#include "train/loop_int.h"

#include "base/env.h"
#include "base/log.h"
#include "base/str.h"
#include "ir/optim_state.h"
#include "train/optim_form.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void train_event(struct train *t, json_t *event)
{
    if (t->sink.event)
        t->sink.event(event, t->sink.ctx);
    json_decref(event);
}

void train_warn(struct train *t, const char *kind, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    json_t *event = json_object();
    json_put_str(event, "event", "warning");
    json_put_str(event, "kind", kind);
    json_put_str(event, "node_id", t->c.node_id);
    json_put_str(event, "message", text);
    train_event(t, event);
}

double train_lr(const struct train *t)
{
    return t->parts.schedule ? schedule_lr(t->parts.schedule) : t->parts.optim->lr;
}

bool train_should_stop(struct train *t)
{
    return t->sink.stop && t->sink.stop(t->sink.ctx);
}

/* ---- building ---- */

static struct shape shape_from(int rank, const int64_t *dim)
{
    struct shape s = {.rank = rank};
    if (rank > 0)
        memcpy(s.dim, dim, sizeof *dim * (size_t)rank);
    return s;
}

/* Under a scaler windows are skipped, and a resumed run begins anywhere: both may go through all of
 * an epoch whatever max_steps says. */
static int64_t windows_max(const struct train *t)
{
    return t->c.fresh && !t->scaler.enabled ? t->c.max_steps : 0;
}

static void fill_steps_config(struct train *t, const struct train_parts *parts)
{
    const struct train_config *c = &t->c;
    const struct loader_plan *tp = parts->train, *vp = parts->val;
    t->steps_config = (struct step_config){
        .model = parts->model,
        .loss = parts->loss,
        .optim = parts->optim,
        .precision = c->precision,
        .batch = parts->train_batch,
        .batches = tp->batches,
        .last_batch = tp->last_count,
        .accumulate = c->accumulate,
        .max_norm = c->max_norm,
        .windows_max = windows_max(t),
        .val_every = c->val_every_steps,
        .scaler = t->scaler.enabled,
        .log_update_ratio = c->log_update_ratio,
        .keep_best = c->patience > 0,
        .levers = c->levers,
        .cycles_momentum = parts->schedule && schedule_momentum(parts->schedule, NULL)};
    struct sample_form *form = &t->steps_config.sample;
    form->input = shape_from(tp->rank, tp->shape);
    form->target = shape_from(tp->target_rank, tp->target_shape);
    form->target_dtype = tp->target == DATA_I64 ? DT_I64 : DT_F32;
    form->has_target = tp->target != DATA_NONE;
    if (vp) {
        t->steps_config.val_batch = parts->val_batch;
        t->steps_config.val_batches = vp->batches;
        t->steps_config.val_last_batch = vp->last_count;
    }
}

static struct scaler make_scaler(const struct train_config *c)
{
    if (c->precision == PRECISION_FP16 || c->levers.parameter_dtype == DT_F16 ||
        (c->precision == PRECISION_BF16 && c->bf16_scaler))
        return scaler_new(
            c->scale_initial > 0 ? c->scale_initial : 65536.0, c->scale_fixed,
            c->scale_growth_interval > 0 ? c->scale_growth_interval : 2000);
    return scaler_off();
}

enum status train_new(
    const struct train_config *c, const struct train_parts *parts, const struct train_sink *sink,
    const struct step_dump *dump, struct train **out, struct err *e)
{
    if (parts->train->batches == 0) {
        (void)err_set(e, ST_INVALID, "0 batches per epoch: the data loader would give nothing");
        err_hint(e, "lower batch_size, or switch drop_last off");
        return ST_INVALID;
    }
    enum dtype given = parts->train->type == DATA_I64 ? DT_I64 : DT_F32;
    if (given != model_input_dtype(parts->model))
        return err_set(
            e, ST_INVALID, "the model takes %s numbers, the data loader gives %s",
            dtype_name(model_input_dtype(parts->model)), dtype_name(given));
    struct train *t = mem_alloc(sizeof *t);
    t->c = *c;
    t->parts = *parts;
    t->optim = *parts->optim;
    t->parts.optim = &t->optim;
    if (parts->schedule)
        schedule_prepare_optim(parts->schedule, &t->optim);
    parts = &t->parts;
    if (sink)
        t->sink = *sink;
    t->scaler = make_scaler(c);
    t->early = (struct early_stop){.patience = c->patience};
    t->last_val_loss = t->last_val_accuracy = t->last_norm = t->last_ratio = (double)NAN;
    t->at.epoch = t->first_epoch = c->start_epoch;
    fill_steps_config(t, parts);
    struct exec_options o = {
        .storage = c->storage,
        .budget_bytes = c->budget_bytes,
        .workspace_limit_bytes = c->workspace_limit_bytes,
        .source = c->source,
        .state_on_host = c->levers.optimizer_state == OPTIM_STATE_HOST,
        .offload_activations = c->levers.offload_activations};
    enum status st = optim_form(&c->levers, c->precision, &t->optim.attr, e);
    if (st == ST_OK)
        st = step_choose(parts->vars, &t->steps_config, &o, e);
    if (st == ST_OK)
        st = step_set_make(parts->vars, &t->steps_config, dump, &t->steps, e);
    if (st == ST_OK)
        st = exec_new(parts->vars, t->steps.programs, t->steps.n, &o, &t->exec, e);
    if (st != ST_OK) {
        train_free(t);
        return st;
    }
    *out = t;
    return ST_OK;
}

void train_free(struct train *t)
{
    if (!t)
        return;
    exec_free(t->exec);
    step_set_release(&t->steps);
    vec_release(&t->series.losses);
    vec_release(&t->series.val_losses);
    vec_release(&t->series.val_accuracies);
    vec_release(&t->series.lrs);
    mem_free(t->window_buffers);
    mem_free(t);
}

struct exec *train_exec(struct train *t)
{
    return t->exec;
}

const struct step_set *train_steps(const struct train *t)
{
    return &t->steps;
}

/* ---- starting ---- */

/* A run that cannot keep its first checkpoint says so before it starts. */
static enum status check_disk(const struct train *t, struct err *e)
{
    char need[32], has[32];
    int64_t left, bytes = checkpoint_bytes(t);
    if (!t->c.checkpoint_dir || (t->c.checkpoint_every == 0 && t->c.checkpoint_every_steps == 0))
        return ST_OK;
    left = disk_free_bytes(t->c.checkpoint_dir);
    if (left < 0 || left >= bytes)
        return ST_OK;
    (void)err_set(
        e, ST_IO, "no room for a checkpoint: it needs %s, and \"%s\" has %s free",
        bytes_text(bytes, need, sizeof need), t->c.checkpoint_dir,
        bytes_text(left, has, sizeof has));
    err_hint(
        e, "free some space, set SNUG_HOME to another disk, or switch periodic checkpoints off");
    return ST_IO;
}

/* Optimizer states as they are before the first update, whose rate some of them start at. */
static void fill_state(struct train *t)
{
    const struct ir_vars *vars = t->parts.vars;
    struct optim_spec first = *t->parts.optim;
    first.lr = train_lr(t);
    for (size_t v = 0; v < t->steps.update.n; v++) {
        for (int k = 0; k < UPDATE_STATES_MAX; k++) {
            int var = t->steps.update.state[v][k];
            if (var == IR_NONE)
                continue;
            const struct ir_var *s = &vars->list.data[var], *p = &vars->list.data[v];
            struct optim_attr a = optim_attr_for(&first.attr, &p->shape, p->dtype, p->name);
            double initial = optim_state_start(&a, k, first.lr);
            int64_t n = shape_count(&s->shape);
            if (k < a.master)
                continue; /* filled with the weights */
            for (int64_t i = 0; i < n; i++)
                dtype_store(exec_var(t->exec, var), s->dtype, i, initial);
        }
    }
}

static void fill_constants(struct train *t)
{
    for (int i = 0; t->steps.weight_var != IR_NONE && i < t->parts.loss->weight_n; i++)
        ((float *)exec_var(t->exec, t->steps.weight_var))[i] = (float)t->parts.loss->weight[i];
    for (int i = 0; t->steps.pos_weight_var != IR_NONE && i < t->parts.loss->pos_weight_n; i++)
        ((float *)exec_var(t->exec, t->steps.pos_weight_var))[i] =
            (float)t->parts.loss->pos_weight[i];
}

/* The buffers that a forward pass changes (batch norm's statistics): Stop inside a window takes
 * them back to its start, since its samples will be seen again. */
static bool is_buffer(const struct train *t, int state)
{
    return t->parts.vars->list.data[model_state_var(t->parts.model, state)].category ==
           CATEGORY_BUFFERS;
}

static size_t move_buffers(struct train *t, bool save)
{
    size_t at = 0;
    for (int i = 0; i < model_state_count(t->parts.model); i++) {
        int var = model_state_var(t->parts.model, i);
        const struct ir_var *v = &t->parts.vars->list.data[var];
        size_t bytes = (size_t)(shape_count(&v->shape) * dtype_size(v->dtype));
        if (!is_buffer(t, i))
            continue;
        if (t->window_buffers)
            memcpy(
                save ? t->window_buffers + at : exec_var(t->exec, var),
                save ? exec_var(t->exec, var) : t->window_buffers + at, bytes);
        at += bytes;
    }
    return at;
}

static void window_state_make(struct train *t)
{
    size_t bytes = t->c.accumulate > 1 ? move_buffers(t, true) : 0;
    t->window_buffers = bytes ? mem_alloc(bytes) : NULL;
}

void train_window_begin(struct train *t)
{
    t->window = t->at;
    t->window_valid = 0;
    t->scaler.unscaled = false;
    if (t->window_buffers)
        (void)move_buffers(t, true);
}

int64_t train_effective_batch(const struct train *t)
{
    int64_t n;
    return __builtin_mul_overflow(t->c.accumulate, t->parts.train_batch, &n) ? INT64_MAX : n;
}

/* Case T22: an update below half a unit in the last place of a weight is lost. */
static void warn_bare_weights(struct train *t)
{
    const struct levers *l = &t->c.levers;
    if (l->parameter_dtype == DT_F32 || l->master_weights != MASTER_NONE)
        return;
    train_warn(
        t, "master_weights",
        "weights are %s without masters: an update smaller than about 1/%d of a weight is rounded "
        "away, so small learning rates stop learning; master_weights stochastic keeps them at no "
        "memory, float32 exactly",
        dtype_name(l->parameter_dtype), l->parameter_dtype == DT_BF16 ? 512 : 4096);
}

/* A10: what accumulation does not do. */
static void warn_batch_statistics(struct train *t)
{
    if (t->c.accumulate <= 1 || !model_has_batch_stats(t->parts.model))
        return;
    train_warn(
        t, "batch_statistics",
        "accumulate_steps is %lld and the model has batch norm: statistics are those of each "
        "micro-batch of %lld, so this is not the same as a batch of %lld",
        (long long)t->c.accumulate, (long long)t->parts.train_batch,
        (long long)train_effective_batch(t));
}

static void warn_chunks(struct train *t)
{
    if (t->steps.unchunked)
        train_warn(
            t, "loss_chunk_tokens", "loss_chunk_tokens has no effect: %s", t->steps.unchunked);
}

enum status train_start(
    struct train *t, struct loader *train, struct loader *val, const struct train_weights *w,
    struct err *e)
{
    t->train_loader = train;
    t->val_loader = val;
    TRY(check_disk(t, e));
    TRY(exec_map(t->exec, e));
    TRY(fill_model(t->parts.model, t->parts.vars, t->exec, w, e));
    fill_state(t);
    fill_constants(t);
    window_state_make(t);
    warn_batch_statistics(t);
    warn_bare_weights(t);
    warn_chunks(t);
    if (val && t->steps_config.val_batches == 0)
        train_warn(
            t, "validation",
            "the validation data has no samples: there is no validation loss, and "
            "early stopping and plateau schedules have nothing to watch");
    t->early.higher_is_better = t->c.monitor_accuracy;
    if (t->c.monitor_accuracy &&
        (!val || !t->parts.loss || !loss_has_classes(t->parts.loss->type))) {
        t->early.higher_is_better = false;
        train_warn(
            t, "monitor", "monitor is val_accuracy, but %s: val_loss is watched instead",
            val ? "this loss has no classes to count" : "there is no validation data");
    }
    return ST_OK;
}

enum status train_resume(struct train *t, const char *path, struct err *e)
{
    ASSERT(!t->c.fresh);
    TRY(checkpoint_read(t, path, true, e));
    t->resumed = true;
    t->first_epoch = t->at.epoch;
    return ST_OK;
}

void train_carry(struct train *t, struct train *from)
{
    bool differs = false;
    for (size_t v = 0; v < t->steps.update.n && v < from->steps.update.n; v++) {
        for (int k = 0; k < UPDATE_STATES_MAX; k++) {
            int to = t->steps.update.state[v][k], var = from->steps.update.state[v][k];
            if (to == IR_NONE || var == IR_NONE)
                continue;
            if (to != var) { /* stored in another form */
                differs = true;
                continue;
            }
            const struct ir_var *s = &t->parts.vars->list.data[to];
            memcpy(
                exec_var(t->exec, to), exec_var(from->exec, var),
                (size_t)(shape_count(&s->shape) * dtype_size(s->dtype)));
        }
    }
    if (differs)
        train_warn(
            t, "optimizer_state",
            "the first TrainingLoop stores the optimizer's state in another form: it starts anew");
    t->at.optimizer_steps = differs ? 0 : from->at.optimizer_steps;
    t->optim.lr = train_lr(from);
}

enum status train_adopt(struct train *t, const char *path, struct err *e)
{
    return checkpoint_read(t, path, false, e);
}

/* Without saved scheduler state the schedule is moved to where the run stands (case T45). */
static void align_schedule(struct train *t)
{
    int64_t per_epoch = (t->steps_config.batches - 1) / t->c.accumulate + 1;
    int64_t n = t->at.epoch;
    if (t->c.schedule_per_update) /* files of others do not count updates */
        n = t->at.updates > 0 ? t->at.updates
                              : t->at.epoch * per_epoch + t->at.batch / t->c.accumulate;
    if (!t->parts.schedule || t->adopted_schedule || n == 0)
        return;
    if (!schedule_fast_forward(t->parts.schedule, n))
        train_warn(
            t, "scheduler",
            "%s cannot be moved to epoch %lld without its saved state; it starts anew",
            schedule_class(t->parts.schedule), (long long)t->at.epoch + 1);
}

/* ---- the best weights ---- */

static void copy_state(struct train *t, bool to_best)
{
    for (int i = 0; t->steps.best_var && i < model_state_count(t->parts.model); i++) {
        int best = t->steps.best_var[i];
        int var =
            fill_exact(t->parts.vars, model_state_var(t->parts.model, i), t->parts.vars->list.n);
        const struct ir_var *v = &t->parts.vars->list.data[var];
        size_t bytes = (size_t)(shape_count(&v->shape) * dtype_size(v->dtype));
        memcpy(
            exec_var(t->exec, to_best ? best : var), exec_var(t->exec, to_best ? var : best),
            bytes);
    }
    if (t->steps.best_var && !to_best)
        fill_round(t->parts.model, t->parts.vars, t->exec);
}

/* ---- running ---- */

static bool finished(const struct train *t)
{
    return t->at.epoch >= t->c.epochs || t->stopped_early ||
           (t->c.max_steps > 0 && t->at.updates >= t->c.max_steps &&
            t->at.batch < t->steps_config.batches); /* else the epoch is whole, but not ended */
}

static enum status open_loader(struct train *t, struct err *e)
{
    if (t->loader_open)
        return ST_OK;
    TRY(loader_begin_epoch(t->train_loader, t->at.epoch, t->at.batch, e));
    t->loader_open = true;
    return ST_OK;
}

/* Stop: the open window is dropped, the position is its start (A7). */
static enum status interrupt(struct train *t, struct err *e)
{
    if (t->at.batch % t->c.accumulate != 0 && t->at.batch != t->steps_config.batches) {
        int64_t updates = t->at.updates;
        t->at = t->window;
        if (t->window_buffers)
            (void)move_buffers(t, false);
        ASSERT(t->at.updates == updates);
    }
    t->interrupted = true;
    t->loader_open = false;
    if (t->c.checkpoint_dir)
        TRY(checkpoint_interrupt(t, e));
    return err_set(
        e, ST_INTERRUPTED, "stopped in epoch %lld at batch %lld of %lld",
        (long long)t->at.epoch + 1, (long long)t->at.batch, (long long)t->steps_config.batches);
}

/* Windows that ended, in an update or in a skip. */
static int64_t attempts(const struct train *t)
{
    return t->at.updates + t->scaler.skipped;
}

static void look_at_health(struct train *t)
{
    char text[512];
    bool bad;
    int64_t every = t->c.health_interval > 0 ? t->c.health_interval : 100;
    if (t->c.precision == PRECISION_FP32 || attempts(t) % every != 0)
        return;
    const char *said =
        t->scaler.enabled ? scaler_health(&t->scaler, &bad, text, sizeof text) : NULL;
    json_t *event = json_object();
    json_put_str(event, "event", "precision_health");
    json_put_f64(event, "scale", t->scaler.scale);
    json_put_i64(event, "skipped_steps", t->scaler.skipped);
    json_put_f64(event, "max_grad_norm", t->max_norm_seen);
    json_put_f64(
        event, "loss", t->at.loss_count ? t->at.loss_sum / (double)t->at.loss_count : (double)NAN);
    if (said)
        json_put_str(event, "message", said);
    train_event(t, event);
    if (said && bad)
        train_warn(
            t, "precision", "%s%s", said,
            t->c.precision == PRECISION_FP16
                ? "; where fp16 stays unstable, bf16 has float32's range"
                : "");
    t->max_norm_seen = 0;
}

static enum status validate_inside(struct train *t, struct err *e)
{
    double loss, accuracy;
    TRY(train_validate(t, &loss, &accuracy, e));
    json_t *event = json_object();
    json_put_str(event, "event", "val_step");
    json_put_i64(event, "step", t->at.updates);
    json_put_f64(event, "val_loss_step", loss);
    if (!isnan(accuracy))
        json_put_f64(event, "val_accuracy_step", accuracy);
    train_event(t, event);
    return ST_OK;
}

/* Everything that hangs on an update having happened. */
static enum status after_update(struct train *t, struct err *e)
{
    bool validates = t->c.val_every_steps > 0 && t->val_loader && t->steps_config.val_batches > 0;
    if (validates && t->at.updates % t->c.val_every_steps == 0)
        TRY(validate_inside(t, e));
    if (t->c.checkpoint_every_steps > 0 && t->at.updates % t->c.checkpoint_every_steps == 0)
        TRY(checkpoint_periodic(t, true, e));
    return ST_OK;
}

static enum status run_batches(struct train *t, struct err *e)
{
    while (t->at.batch < t->steps_config.batches) {
        bool window_start = t->at.batch % t->c.accumulate == 0;
        if (window_start && t->c.max_steps > 0 && t->at.updates >= t->c.max_steps) {
            t->stopped_at_max = true;
            return ST_OK;
        }
        int64_t before = t->at.updates, attempts_before = attempts(t);
        double loss;
        TRY(open_loader(t, e));
        TRY(train_batch(t, &loss, e));
        bool updated = t->at.updates != before;
        train_report_batch(t, loss, updated);
        if (attempts(t) != attempts_before)
            look_at_health(t);
        if (updated)
            TRY(after_update(t, e));
        if (train_should_stop(t))
            return err_set(e, ST_INTERRUPTED, "stopped");
    }
    return ST_OK;
}

/* The monitored metric of this epoch; NaN when validation had nothing to say. */
static double monitored(const struct train *t, double loss)
{
    if (!t->val_loader)
        return loss;
    return t->early.higher_is_better ? t->last_val_accuracy : t->last_val_loss;
}

static enum status end_epoch(struct train *t, struct err *e)
{
    double loss = t->at.loss_count ? t->at.loss_sum / (double)t->at.loss_count : (double)NAN;
    double lr_used = t->c.schedule_per_update ? t->last_lr : train_lr(t);
    TRY(train_validate(t, &t->last_val_loss, &t->last_val_accuracy, e));
    vec_push(&t->series.losses, loss);
    vec_push(&t->series.lrs, lr_used);
    if (t->steps_config.val_batches > 0) {
        vec_push(&t->series.val_losses, t->last_val_loss);
        vec_push(&t->series.val_accuracies, t->last_val_accuracy);
    }
    struct schedule *s = t->parts.schedule;
    double metric = t->val_loader ? t->last_val_loss : loss; /* NaN: validation without samples */
    if (s && (!t->c.schedule_per_update || schedule_is_plateau(s)))
        TRY(schedule_step(s, metric, e));
    enum early_verdict verdict = early_stop_see(&t->early, t->at.epoch + 1, monitored(t, loss));
    if (verdict == EARLY_IMPROVED)
        copy_state(t, true);
    t->stopped_early = verdict == EARLY_STOP;
    train_report_epoch(t, loss, lr_used);
    t->at.epoch++;
    t->at.batch = 0;
    t->at.loss_sum = 0;
    t->at.loss_count = 0;
    t->loader_open = false;
    if (t->c.checkpoint_every > 0 && t->at.epoch % t->c.checkpoint_every == 0)
        TRY(checkpoint_periodic(t, false, e));
    return ST_OK;
}

enum status train_run(struct train *t, struct err *e)
{
    align_schedule(t);
    if (t->at.optimizer_steps == 0)
        fill_state(t); /* start_epoch may have moved the rate */
    if (!t->resumed)
        t->last_lr = train_lr(t);
    t->started_ns = clock_ns();
    train_event(t, train_config_frame(t));
    if (t->c.start_epoch >= t->c.epochs && !t->resumed)
        train_warn(
            t, "nothing_to_do", "start_epoch %lld is not below epochs %lld: nothing is trained",
            (long long)t->c.start_epoch, (long long)t->c.epochs);
    while (!finished(t)) {
        enum status st = run_batches(t, e);
        if (st == ST_OK && t->stopped_at_max && t->at.batch < t->steps_config.batches)
            break;
        if (st == ST_OK)
            st = end_epoch(t, e);
        if (st == ST_INTERRUPTED)
            return interrupt(t, e);
        TRY(st);
    }
    t->stopped_at_max =
        t->stopped_at_max || (t->c.max_steps > 0 && t->at.updates >= t->c.max_steps);
    if (t->c.patience > 0 && t->early.has_best)
        copy_state(t, false);
    return ST_OK;
}

enum status train_save(struct train *t, const char *path, int64_t epoch, struct err *e)
{
    return checkpoint_write(t, path, &t->at, epoch, e);
}

enum status train_set_scaler(struct train *t, const json_t *state, struct err *e)
{
    return t->scaler.enabled && state ? scaler_restore(&t->scaler, state, e) : ST_OK;
}

json_t *train_scaler_state(const struct train *t)
{
    return t->scaler.enabled ? scaler_state(&t->scaler) : NULL;
}

bool train_interrupted(const struct train *t)
{
    return t->interrupted;
}
