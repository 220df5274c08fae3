/* loop_report.c - what a run says while it goes (events) and when it ends (metrics). */
#include "train/loop_int.h"

#include "base/env.h"

#include <math.h>

enum { EVENT_GAP_NS = 500000000 }; /* batch events come at most every half second */

static json_t *rounded(double v)
{
    return isfinite(v) ? json_real(round(v * 1e6) / 1e6) : json_f64(v);
}

static json_t *list(const double *v, size_t n, bool round_them)
{
    json_t *a = json_array();
    for (size_t i = 0; i < n; i++)
        if (json_array_append_new(a, round_them ? rounded(v[i]) : json_f64(v[i])) != 0)
            break;
    return a;
}

json_t *train_config_frame(const struct train *t)
{
    json_t *frame = json_object(), *c = json_object();
    json_put_str(frame, "event", "config");
    json_put_str(frame, "node_id", t->c.node_id);
    json_put_str(c, "model_class", "GraphModelModule");
    json_put_i64(c, "params", model_parameter_count(t->parts.model));
    json_put_i64(c, "trainable", model_trainable_count(t->parts.model));
    json_put_str(c, "optimizer", optim_kind_name(t->parts.optim->attr.kind));
    json_put_f64(c, "lr", t->parts.optim->lr);
    json_put_str(c, "loss_fn", loss_type_name(t->parts.loss->type));
    json_put_i64(c, "epochs", t->c.epochs);
    json_put_i64(c, "start_epoch", t->c.start_epoch);
    json_put_str(c, "device", t->c.device ? t->c.device : "cpu");
    json_put_i64(c, "batch_size", t->parts.train_batch);
    json_put_i64(c, "accumulate_steps", t->c.accumulate);
    json_put_i64(c, "effective_batch_size", train_effective_batch(t));
    json_put_bool(c, "early_stopping", t->c.patience > 0);
    json_put_i64(c, "patience", t->c.patience);
    json_put(
        c, "grad_clip_norm", t->c.max_norm > 0 ? json_f64(t->c.max_norm) : json_string("disabled"));
    json_put_bool(c, "has_validation", t->parts.val != NULL);
    json_put_bool(c, "has_lr_scheduler", t->parts.schedule != NULL);
    json_put_str(c, "precision", precision_name(t->c.precision));
    if (t->c.precision_requested != t->c.precision)
        json_put_str(c, "precision_requested", precision_name(t->c.precision_requested));
    json_put_i64(c, "seed", (int64_t)t->c.seed);
    json_put_i64(c, "batches", t->steps_config.batches);
    json_put(frame, "config", c);
    return frame;
}

static void put_rate(struct train *t, json_t *event)
{
    double seconds = (double)(clock_ns() - t->started_ns) * 1e-9;
    double rate = seconds > 0 ? (double)t->images / seconds : 0;
    /* Floating: epochs and limits may be as large as 64 bits allow. */
    double left =
        (double)(t->c.epochs - t->at.epoch) * (double)t->steps_config.batches - (double)t->at.batch;
    if (t->c.max_steps > 0)
        left = fmin(left, (double)(t->c.max_steps - t->at.updates) * (double)t->c.accumulate);
    json_put_f64(event, "images_per_s", rate);
    if (rate > 0)
        json_put_f64(event, "seconds_left", left * (double)t->parts.train_batch / rate);
    json_put_i64(event, "memory_bytes", process_rss_bytes());
    json_put_i64(event, "memory_peak_bytes", process_rss_peak_bytes());
    json_put_i64(event, "arena_peak_bytes", exec_peak_measured(t->exec));
}

void train_report_batch(struct train *t, double loss, bool updated)
{
    int64_t now = clock_ns();
    bool logged =
        t->c.batch_metrics && (t->c.log_interval <= 1 || t->at.batches % t->c.log_interval == 0);
    bool due = now - t->last_event_ns >= EVENT_GAP_NS || t->at.batch == t->steps_config.batches;
    if (!logged && !due)
        return;
    t->last_event_ns = now;
    json_t *event = json_object();
    json_put_str(event, "event", "batch");
    json_put_str(event, "node_id", t->c.node_id);
    json_put_i64(event, "epoch", t->at.epoch + 1);
    json_put_i64(event, "total_epochs", t->c.epochs);
    json_put_i64(event, "batch", t->at.batch);
    json_put_i64(event, "total_batches", t->steps_config.batches);
    json_put_i64(event, "step", t->at.updates);
    json_put_i64(event, "global_batch", t->at.batches);
    json_put_bool(event, "logged", logged); /* a point of the series, not only news */
    json_put_f64(event, "loss", loss);
    if (updated && t->c.log_grad_norm) {
        json_put_f64(event, "grad_norm", t->last_norm);
        if (t->c.max_norm > 0)
            json_put_f64(
                event, "grad_norm_clipped",
                t->last_norm < t->c.max_norm ? t->last_norm : t->c.max_norm);
    }
    if (updated && t->c.log_update_ratio)
        json_put_f64(event, "update_ratio", t->last_ratio);
    if (t->scaler.enabled)
        json_put_f64(event, "scale", t->scaler.scale);
    json_put_f64(event, "lr", t->last_lr);
    put_rate(t, event);
    train_event(t, event);
}

static json_t *dims(const struct shape *s, int64_t batch)
{
    json_t *a = json_array();
    (void)json_array_append_new(a, json_integer(batch));
    for (int i = 0; i < s->rank; i++)
        (void)json_array_append_new(a, json_integer(s->dim[i]));
    return a;
}

/* The figures of now, with batch, sizes and precision (T1). */
static json_t *memory_json(const struct train *t)
{
    struct exec_memory m;
    exec_memory(t->exec, &m);
    json_t *o = exec_memory_json(&m);
    json_put_i64(o, "batch_size", t->parts.train_batch);
    json_put_i64(o, "accumulate_steps", t->c.accumulate);
    json_put(o, "input_shape", dims(&t->steps_config.sample.input, t->parts.train_batch));
    json_put_str(o, "precision", precision_name(t->c.precision));
    json_put_str(o, "device", t->c.device ? t->c.device : "cpu");
    return o;
}

void train_report_memory(struct train *t, int64_t samples, const struct err *failure)
{
    json_t *event = memory_json(t);
    json_put_str(event, "event", "memory");
    json_put_str(event, "node_id", t->c.node_id);
    json_put_i64(event, "epoch", t->at.epoch + 1);
    json_put_i64(event, "batch", t->at.batch + 1);
    json_put_i64(event, "step", t->at.updates);
    json_put_i64(event, "samples", samples);
    if (failure) {
        json_put_str(event, "failed_at", failure->node);
        json_put_str(event, "failed_operator", failure->node_type);
        json_put_str(event, "message", failure->text);
    }
    train_event(t, event);
}

void train_report_epoch(struct train *t, double loss, double lr_used)
{
    json_t *event = json_object();
    json_put_str(event, "event", "epoch");
    json_put_str(event, "node_id", t->c.node_id);
    json_put_i64(event, "epoch", t->at.epoch + 1);
    json_put_i64(event, "total_epochs", t->c.epochs);
    json_put(event, "loss", rounded(loss));
    json_put(event, "losses", list(t->series.losses.data, t->series.losses.n, true));
    json_put_f64(event, "lr", lr_used);
    if (t->steps_config.val_batches > 0) {
        json_put(event, "val_loss", rounded(t->last_val_loss));
        json_put(
            event, "val_losses", list(t->series.val_losses.data, t->series.val_losses.n, true));
        if (!isnan(t->last_val_accuracy))
            json_put_f64(event, "val_accuracy", t->last_val_accuracy);
    }
    if (t->c.patience > 0) {
        json_put_i64(event, "patience_counter", t->early.counter);
        json_put_i64(event, "best_epoch", t->early.best_epoch);
    }
    put_rate(t, event);
    train_event(t, event);
}

json_t *train_metrics(const struct train *t)
{
    const struct series *s = &t->series;
    json_t *m = json_object();
    /* A run that max_steps ended inside an epoch gives that epoch's mean so far. */
    double running = t->at.loss_count ? t->at.loss_sum / (double)t->at.loss_count : (double)NAN;
    json_put_f64(
        m, "final_train_loss",
        t->at.loss_count || !s->losses.n ? running : s->losses.data[s->losses.n - 1]);
    json_put(
        m, "final_val_loss",
        s->val_losses.n ? json_f64(s->val_losses.data[s->val_losses.n - 1]) : json_null());
    if (s->val_accuracies.n && !isnan(s->val_accuracies.data[s->val_accuracies.n - 1]))
        json_put_f64(m, "final_val_accuracy", s->val_accuracies.data[s->val_accuracies.n - 1]);
    json_put(m, "best_epoch", t->early.has_best ? json_integer(t->early.best_epoch) : json_null());
    json_put_i64(m, "start_epoch", t->c.start_epoch);
    json_put_i64(m, "last_epoch", t->at.epoch);
    json_put_i64(m, "total_epochs_run", (int64_t)s->losses.n);
    json_put_bool(m, "stopped_early", t->stopped_early);
    json_put_bool(m, "stopped_at_max_steps", t->stopped_at_max);
    json_put_bool(m, "interrupted", t->interrupted);
    json_put_i64(m, "total_steps", t->at.updates);
    json_put_i64(m, "total_batches", t->at.batches);
    json_put_i64(m, "accumulate_steps", t->c.accumulate);
    json_put_str(m, "precision", precision_name(t->c.precision));
    if (t->c.precision_requested != t->c.precision)
        json_put_str(m, "precision_requested", precision_name(t->c.precision_requested));
    if (t->scaler.enabled) {
        json_put_i64(m, "skipped_steps", t->scaler.skipped);
        json_put_f64(m, "scale", t->scaler.scale);
    }
    if (t->started_ns)
        json_put(m, "memory", memory_json(t));
    if (t->interrupt_checkpoint[0])
        json_put_str(m, "interrupt_checkpoint", t->interrupt_checkpoint);
    json_put(m, "lr_history", list(s->lrs.data, s->lrs.n, false));
    json_put(m, "losses", list(s->losses.data, s->losses.n, false));
    json_put(m, "val_losses", list(s->val_losses.data, s->val_losses.n, false));
    double seconds = (double)(clock_ns() - t->started_ns) * 1e-9;
    if (t->started_ns && seconds > 0)
        json_put_f64(m, "images_per_s", (double)t->images / seconds);
    return m;
}

const double *train_losses(const struct train *t, size_t *n)
{
    *n = t->series.losses.n;
    return t->series.losses.data;
}

const double *train_val_losses(const struct train *t, size_t *n)
{
    *n = t->series.val_losses.n;
    return t->series.val_losses.data;
}
