/* step.h - the programs of a training run: which there are, and how each is built.
 *
 * A training epoch of B batches and N = accumulate_steps runs, batch by batch, the program of the
 * batch's place in its window (passes/update.h): the last batch of an epoch ends its window, so no
 * window crosses an epoch (A7), and a short last batch has programs of its own. Validation has one
 * program, and one for its short last batch.
 *
 * A program that the run cannot reach is not built, and so not in the peak. Only a limit on updates
 * that ends training within the first epoch cuts any off: otherwise an epoch is whole, and has all.
 */
#ifndef TRAIN_STEP_H
#define TRAIN_STEP_H

#include "nn/model.h"
#include "passes/passes.h"
#include "passes/update.h"
#include "train/levers.h"
#include "train/precision.h"
#include "train/spec.h"

/* One sample of a data set, as the programs need to know it. */
struct sample_form {
    struct shape input, target; /* without the batch dimension */
    enum dtype target_dtype;    /* DT_I64 class indices, DT_F32 */
    bool has_target;
};

struct step_config {
    const struct model *model;
    const struct loss_spec *loss;
    const struct optim_spec *optim;
    enum precision precision;
    struct sample_form sample;
    int64_t batch, batches, last_batch;             /* size; per epoch; size of the last one */
    int64_t val_batch, val_batches, val_last_batch; /* batches 0: no validation */
    int64_t accumulate;
    int64_t windows_max; /* windows after which training is over for certain; 0: no such limit. The
                            caller knows that the run begins at batch 0 and that no window is
                            without an update. */
    int64_t val_every;   /* validation also after so many updates; 0: not */
    double max_norm;
    bool scaler, log_update_ratio, cycles_momentum;
    bool keep_best; /* early stopping: one more copy of the model's state */
    struct levers levers;
    struct checkpoint_options checkpoint; /* what step_choose found for checkpointing "auto" */
};

/* Indices into the run's programs; IR_NONE: not needed. */
enum step_program {
    STEP_ONLY,
    STEP_FIRST,
    STEP_MIDDLE,
    STEP_LAST,
    STEP_SHORT_ONLY,
    STEP_SHORT_LAST,
    STEP_EVAL,
    STEP_EVAL_SHORT,
    STEP_PROGRAM_COUNT
};

struct step_set {
    struct ir_vars *vars; /* the model's; outlives the set */
    struct ir_program *programs[STEP_PROGRAM_COUNT];
    int index[STEP_PROGRAM_COUNT]; /* by enum step_program: its place in programs[] */
    int n;
    struct update_vars update;
    int weight_var, pos_weight_var; /* constants of the loss; IR_NONE: none */
    int *best_var;                  /* by state of the model: its best copy; NULL: none kept */
    const char *unchunked;          /* why loss_chunk_tokens has no effect; NULL: it has, or is 0 */
    int segments;                   /* checkpointing: of the forward pass; 0 where it is off */
};

/* Builds every program the configuration needs. `dump` (may be NULL) is called after each pass. */
struct step_dump {
    void (*after)(const struct ir_program *p, const char *pass, void *ctx);
    void *ctx;
};
enum status step_set_make(
    struct ir_vars *vars, const struct step_config *c, const struct step_dump *dump,
    struct step_set *out, struct err *e) NODISCARD;
void step_set_release(struct step_set *s);

/* What the levers forbid: ST_INVALID, naming both parameters. */
enum status step_check(const struct step_config *c, struct err *e) NODISCARD;
/* checkpointing "auto": fills c->checkpoint with the least second computation whose peak, as the
 * executor plans it, is within levers.budget_bytes: nothing; what "selective" does; that and the
 * first k blocks; all of them. Without a budget "selective"; where nothing fits, the least peak.
 * Does nothing for the other choices. */
struct exec_options;
enum status step_choose(
    struct ir_vars *vars, struct step_config *c, const struct exec_options *o,
    struct err *e) NODISCARD;

/* The program of batch `i` of an epoch of c->batches. */
enum step_program step_program_of(const struct step_config *c, int64_t i);
/* Which programs the run can reach; c->batches >= 1. Stop, early stopping and errors only end it earlier. */
void step_reach(const struct step_config *c, bool reached[STEP_PROGRAM_COUNT]);
/* Layouts and fusions, for programs built elsewhere; verified. */
enum status step_lower(struct ir_program *p, struct err *e) NODISCARD;
/* Program of a plain forward pass (Inference): output "output". */
enum status step_forward_make(
    struct ir_vars *vars, const struct model *m, struct shape input, enum precision precision,
    struct ir_program **out, struct err *e) NODISCARD;
/* Program for the token after a text of up to `length` tokens: inputs "input" i64[1, length] and
 * "position" i64[1], the place of the text's last token; output "logits" f32[1, vocabulary]. Only
 * that place goes through a head that is a product. */
enum status step_next_token_make(
    struct ir_vars *vars, const struct model *m, int64_t length, struct ir_program **out,
    struct err *e) NODISCARD;
/* An evaluation program alone: outputs "loss" (when a loss is given) and "correct" i64[2]; where
 * the loss is a mean over labels, also "loss_weight", the labels (or class weights) it is a mean
 * over. */
enum status step_eval_make(
    struct ir_vars *vars, const struct step_config *c, int64_t batch, struct ir_program **out,
    struct err *e) NODISCARD;

#endif
