/* loop.h - the training loop: from a model, data and parameters to trained weights.
 *
 *     train_new (programs, plan) -> train_report -> train_start (map, weights) -> train_run ->
 * results
 *
 * SEMANTICS (reference: CodefyUI's TrainingLoop; requirements A, P)
 *  1. Window i of an epoch is batches iN .. iN+N-1; the last one may be shorter (A6, A7).
 *  2. An update happens at the end of a window, once: unscale, check, clip, optimizer (A3, P7).
 *  3. A skipped update advances neither schedule nor total_steps (P7).
 *  4. max_steps is checked before a window begins, so a finished run never trains again (A4).
 *  5. Stop finishes the micro-batch and drops the window; the position saved is its start (A7).
 *  6. Losses reported are not divided by N (A5): train loss of an epoch is the mean of its batch
 *     losses; validation loss and accuracy weigh every sample once.
 *  7. Validation never draws random numbers and never changes what training sees.
 */
#ifndef TRAIN_LOOP_H
#define TRAIN_LOOP_H

#include "backends/exec.h"
#include "data/loader.h"
#include "train/early_stop.h"
#include "train/fill.h"
#include "train/scaler.h"
#include "train/schedule.h"
#include "train/step.h"

struct train_config { /* the TrainingLoop node */
    const char *node_id;
    int64_t epochs, start_epoch, max_steps, accumulate;
    enum precision precision, precision_requested;
    double max_norm;
    int64_t patience;
    bool monitor_accuracy;
    int64_t checkpoint_every, checkpoint_every_steps, checkpoint_keep;
    int64_t val_every_steps, log_interval;
    bool batch_metrics, log_grad_norm, log_update_ratio;
    bool memory_steps; /* an event "memory" after every update, and where one fails */
    bool fresh; /* train_resume will not be called: programs that max_steps keeps the run from
                   reaching are left out of the plan */
    bool schedule_per_update, accumulate_tokens, bf16_scaler;
    double scale_initial; /* 0: 65536 */
    bool scale_fixed;
    int64_t scale_growth_interval; /* 0: 2000 */
    int64_t health_interval; /* updates (skipped ones too) between two looks at mixed precision; 0:
                                100 (P10) */
    uint64_t seed;
    int64_t budget_bytes;
    enum exec_storage storage;
    int64_t workspace_limit_bytes;                   /* exec_options */
    struct mem_source *source;                       /* exec_options */
    const char *device, *graph_key, *checkpoint_dir; /* folder of periodic and interrupt files */
    const char *run_name;                            /* part of their names */
    struct levers levers;
};

struct train_parts { /* what the other nodes give; borrowed */
    const struct model *model;
    struct ir_vars *vars;
    const struct loss_spec *loss;
    const struct optim_spec *optim;
    struct schedule *schedule;             /* NULL: constant rate */
    const struct loader_plan *train, *val; /* val NULL: no validation */
    struct loader *train_loader,
        *val_loader;                /* NULL until the run starts: `plan` never opens data */
    int64_t train_batch, val_batch; /* batch sizes */
};

/* Everything said while training: {"event": "config" | "batch" | "epoch" | "warning" | ...}. */
struct train_sink {
    void (*event)(const json_t *event, void *ctx);
    bool (*stop)(void *ctx); /* polled after every micro-batch */
    void *ctx;
};

struct train;
enum status train_new(
    const struct train_config *c, const struct train_parts *parts, const struct train_sink *sink,
    const struct step_dump *dump, struct train **out, struct err *e) NODISCARD;
void train_free(struct train *t);
struct exec *train_exec(struct train *t); /* owned by t */
const struct step_set *train_steps(const struct train *t);

enum status train_start(
    struct train *t, struct loader *train, struct loader *val, const struct train_weights *w,
    struct err *e) NODISCARD;
/* Continues from a checkpoint file: everything it holds replaces what train_start set. Not for a
 * run that was planned as `fresh`. */
enum status train_resume(struct train *t, const char *path, struct err *e) NODISCARD;
/* Only what CheckpointLoader hands over: optimizer, schedule and scaler state, not the position. */
enum status train_adopt(struct train *t, const char *path, struct err *e) NODISCARD;
/* A second loop with the Optimizer of the first: its state, count of updates and rate go on. To be
 * called after train_start. */
void train_carry(struct train *t, struct train *from);
/* The port grad_scaler_state (P8). */
enum status train_set_scaler(struct train *t, const json_t *state, struct err *e) NODISCARD;
/* The newest whole checkpoint of this graph key below `dir` (periodic/, interrupted/); false: none.
 */
bool checkpoint_newest(const char *dir, const char *graph_key, char *path, size_t cap);
/* The seed of the run that wrote the file; false: it does not say. */
bool checkpoint_seed(const char *path, uint64_t *seed);
/* ST_INTERRUPTED after Stop: results are there all the same. */
enum status train_run(struct train *t, struct err *e) NODISCARD;

/* Results: the node's `metrics` output (new reference), losses per epoch of this call. */
json_t *train_metrics(const struct train *t);
const double *train_losses(const struct train *t, size_t *n);
const double *train_val_losses(const struct train *t, size_t *n);
/* The config frame (requirement P5 and the reference): new reference. */
json_t *train_config_frame(const struct train *t);
/* Writes a checkpoint of the present state (CheckpointSaver). epoch < 0: completed epochs. */
enum status train_save(struct train *t, const char *path, int64_t epoch, struct err *e) NODISCARD;
json_t *train_scaler_state(const struct train *t); /* NULL without a scaler */
bool train_interrupted(const struct train *t);

#endif
