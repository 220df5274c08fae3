/* schedule_int.h - the inside of a schedule, shared by schedule.c, schedule_state.c and tests. */
#ifndef TRAIN_SCHEDULE_INT_H
#define TRAIN_SCHEDULE_INT_H

#include "train/schedule.h"

enum {
    USES_STEP_SIZE = 1,
    USES_GAMMA = 2,
    USES_T_MAX = 4,
    USES_MAX_LR = 8,
    USES_TOTAL = 16,
    USES_WARMUP = 32
};

enum schedule_kind {
#define X(name, class, id, uses) SCHEDULE_##id,
#include "train/schedules.def"
#undef X
    SCHEDULE_COUNT
};

/* The node's parameters; only those of schedules.def's `uses` mean anything. */
struct schedule_params {
    int64_t step_size, t_max, total_steps, warmup_steps;
    double gamma, max_lr;
};

struct schedule {
    enum schedule_kind kind;
    struct schedule_params p;
    double base_lr, lr; /* PyTorch's initial_lr and lr of the one parameter group */
    int64_t last_epoch; /* steps done */
    int64_t step_count; /* PyTorch's _step_count */
    /* plateau */
    double best;
    int64_t bad_epochs;
    bool seen; /* a metric has been seen: PyTorch has _last_lr from then on */
    /* restarts */
    int64_t t_cur;
    /* onecycle */
    bool use_beta1;
    double momentum;
    char differs[160]; /* names for schedule_restore's answer */
};

struct schedule_row {
    const char *name, *class;
    unsigned uses;
    double (*next)(struct schedule *s); /* the rate after step number s->last_epoch */
};
extern const struct schedule_row schedule_rows[SCHEDULE_COUNT];

/* Whether the parameters that the kind uses are in range. */
enum status schedule_check(const struct schedule *s, struct err *e) NODISCARD;

/* PyTorch's constants that the node does not set. */
#define ONECYCLE_START 0.3
#define ONECYCLE_DIV 25.0
#define ONECYCLE_FINAL_DIV 1e4
#define ONECYCLE_MOMENTUM_LOW 0.85
#define ONECYCLE_MOMENTUM_HIGH 0.95
#define PLATEAU_THRESHOLD 1e-4
#define PLATEAU_EPS 1e-8
enum { PLATEAU_PATIENCE = 10, MULTISTEP_COUNT = 4 };

#endif
