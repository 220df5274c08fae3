/* train_test_support.h - small training runs for the tests: a chain of layers, arrays in memory,
 * node parameters as JSON with ' for ", and what the run said.
 *
 * THE SCALAR MODEL of the training cases is one weight w (Linear 1 -> 1 without bias) whose loss
 * has gradient c for a sample c: the loss is |w c - y| with y far below, so its value is w c - y
 * and its gradient is exactly c. With y = 0 and w > 0 the loss is c w itself.
 */
#ifndef TRAIN_TEST_SUPPORT_H
#define TRAIN_TEST_SUPPORT_H

#include "nn/adapter.h"
#include "test.h"
#include "train/loop_int.h"

/* "Linear l {'in_features':1,...}; ReLU r" is a chain. A text with "nodes" in it is a document. */
#define SCALAR_LAYERS "Linear l {'in_features':1,'out_features':1,'bias':false}"
#define SCALAR_W "layers.l.weight"
#define CLASSIFIER_LAYERS                                                                          \
    "Linear l {'in_features':1,'out_features':2}" /* bias only: inputs are 0 */
#define CLASSIFIER_B "layers.l.bias"

struct trial_data { /* n samples; batch 0: there is no such loader */
    int64_t n, batch;
    bool shuffle, drop_last;
    int rank, target_rank;
    int64_t shape[3], target_shape[3];
    const float *x; /* NULL: made up, from the index */
    enum data_type target;
    const void *y; /* NULL: made up */
    int classes;
};
struct trial_setup {
    const char *layers, *loss, *optim, *schedule; /* NULL: L1Loss, SGD lr 1, none */
    struct train_config config;                   /* epochs 0 and accumulate 0 mean 1 */
    struct trial_data train, val;
    const struct adapter_config *adapter; /* NULL: none */
    double scale_forced;                  /* not 0: a fixed scale, in float32 too */
};
struct trial {
    struct trial_setup setup;
    struct ir_vars vars;
    struct model *model;
    struct loss_spec loss;
    struct optim_spec optim;
    struct schedule *schedule;
    struct dataset *train_set, *val_set;
    struct loader *train_loader, *val_loader;
    struct train *train;
    json_t *events;     /* every event, in order */
    int64_t stop_after; /* batches until Stop; 0: never */
    int64_t polls;
};

/* A scalar-model setup over c[n], batch 1, y = -1024. */
struct trial_setup trial_scalar(const float *c, int64_t n);
/* A bias-only classifier of 2 classes over labels[n]. */
struct trial_setup trial_classifier(const int64_t *labels, int64_t n, int64_t batch);
/* Two hidden layers with ReLU and dropout, cross-entropy over 3 classes, made-up samples of 6. */
struct trial_setup trial_mlp(int64_t n, int64_t batch);
/* Conv, batch norm, ReLU, pool, dropout, linear; made-up 2x8x8 images of 4 classes. */
struct trial_setup trial_cnn(int64_t n, int64_t batch);

/* Programs and plan only; a failure is returned and leaves t empty. */
enum status trial_plan(struct trial *t, const struct trial_setup *s, struct err *e) NODISCARD;
/* Ready to run; fails the test when it cannot be. Weights: initialised from config.seed. */
void trial_open(struct trial *t, const struct trial_setup *s);
enum status trial_go(struct trial *t, struct err *e) NODISCARD; /* train_run */
void trial_run(struct trial *t);                                /* train_run that must succeed */
/* Runs until Stop after n more batches; fails the test unless it was interrupted. */
void trial_run_to(struct trial *t, int64_t n);
void trial_save(struct trial *t, char path[512], const char *name);
void trial_resume(struct trial *t, const char *path);
void trial_close(struct trial *t);
/* Open, run, close: the scalar's weight afterwards. */
double trial_scalar_weight(const struct trial_setup *s);

float *trial_var(struct trial *t, const char *name); /* float32 values; fails when absent */
double trial_w(struct trial *t);                     /* the scalar */
/* Element i of the metrics or the latest event of a kind; NaN where it is absent. */
double trial_metric(struct trial *t, const char *key);
const json_t *trial_last(struct trial *t, const char *event);
int trial_count(struct trial *t, const char *event); /* events of a kind */
/* A warning of this kind was given. */
bool trial_warned(struct trial *t, const char *kind);

/* Everything a run is: variables (gradient accumulators aside), rate, scaler, counters, series. */
void trial_check_same(struct trial *a, struct trial *b);
/* All variables of the model, bit by bit. */
bool trial_same_weights(struct trial *a, struct trial *b);

/* A float32 parameter of a program made by hand: its value. */
int trial_weight(struct ir_program *p, const char *name, struct shape s, bool trainable);

#endif
