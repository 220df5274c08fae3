/* loop_int.h - the state of a training run, shared by loop.c, loop_*.c and checkpoint.c. */
#ifndef TRAIN_LOOP_INT_H
#define TRAIN_LOOP_INT_H

#include "train/loop.h"

/* Where the run stands. INVARIANT: between windows everything here and in the variables is what a
 * checkpoint holds; inside a window only `window_*` fields and accumulators differ. */
struct position {
    int64_t epoch, batch;     /* next batch to be read: epoch (0-based), batch within it */
    int64_t updates, batches; /* total_steps, total_batches */
    int64_t optimizer_steps;  /* updates the optimizer state has seen */
    double loss_sum;          /* of the running epoch's batches */
    int64_t loss_count;
};

struct series {
    VEC(double) losses, val_losses, val_accuracies, lrs; /* per finished epoch of this call */
};

struct train {
    struct train_config c;
    struct train_parts parts;
    struct optim_spec optim; /* parts.optim, with what the schedule sets at its start */
    struct train_sink sink;
    struct step_config steps_config;
    struct step_set steps;
    struct exec *exec;
    struct scaler scaler;
    struct early_stop early;
    struct position at, window; /* window: as it was when the open window began */
    struct series series;
    struct loader *train_loader, *val_loader;
    int64_t first_epoch; /* of this call */
    bool resumed, adopted_schedule, interrupted, stopped_early, stopped_at_max;
    bool loader_open; /* the loader stands at `at` */
    char interrupt_checkpoint[1024];
    double last_val_loss, last_val_accuracy;
    double window_valid,
        window_size;      /* tokens: weight of the window's valid labels, labels of a batch */
    char *window_buffers; /* batch statistics as they were when the open window began */
    bool warned_ignored;
    double max_norm_seen, last_norm, last_ratio; /* since the last health report */
    double last_lr; /* the rate of the latest update: the one that is reported */
    int64_t started_ns, images, epoch_started_batches, last_event_ns;
    double saved_metric; /* plateau */
};

void train_event(struct train *t, json_t *event); /* takes the reference */
void train_warn(struct train *t, const char *kind, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
double train_lr(const struct train *t);
bool train_should_stop(struct train *t);
/* batch_size x accumulate_steps, or INT64_MAX. */
int64_t train_effective_batch(const struct train *t);
void train_window_begin(struct train *t);

/* Index of a program of the run. One that step_reach left out is a fault of ours: asserted. */
int train_program(const struct train *t, enum step_program kind);
/* loop_step.c: one micro-batch, one update. */
enum status train_batch(struct train *t, double *loss, struct err *e) NODISCARD;
/* loop_eval.c: validation over the whole loader. NaN where there is nothing. */
enum status
train_validate(struct train *t, double *loss, double *accuracy, struct err *e) NODISCARD;
/* loop_report.c: events and results. */
void train_report_batch(struct train *t, double loss, bool updated);
/* T1: memory, with what was computed. `failure`: where it ended, or NULL. */
void train_report_memory(struct train *t, int64_t samples, const struct err *failure);
void train_report_epoch(struct train *t, double loss, double lr_used);

/* checkpoint.c */
enum status checkpoint_write(
    struct train *t, const char *path, const struct position *at, int64_t epoch,
    struct err *e) NODISCARD;
enum status
checkpoint_read(struct train *t, const char *path, bool position, struct err *e) NODISCARD;
/* Periodic files: name, room on the disk, the oldest ones removed. */
enum status checkpoint_periodic(struct train *t, bool by_steps, struct err *e) NODISCARD;
enum status checkpoint_interrupt(struct train *t, struct err *e) NODISCARD;
int64_t checkpoint_bytes(const struct train *t); /* about */

#endif
