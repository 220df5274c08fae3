/* schedule.c - the rates of torch.optim.lr_scheduler 1.13 and of the warm-up family. */
#include "base/mem.h"
#include "base/str.h"
#include "ir/optim_state.h"
#include "train/schedule_int.h"
#include "train/spec_int.h"

#include <math.h>
#include <string.h>

/* ---- the curves; PyTorch's order of operations, so that its float64 comes out ---- */

static double next_step(struct schedule *s)
{
    return s->last_epoch % s->p.step_size == 0 ? s->lr * s->p.gamma : s->lr;
}

static double next_exponential(struct schedule *s)
{
    return s->lr * s->p.gamma;
}

static double next_multistep(struct schedule *s)
{
    int64_t k = s->last_epoch / s->p.step_size;
    bool milestone = s->last_epoch % s->p.step_size == 0 && k <= MULTISTEP_COUNT;
    return milestone ? s->lr * s->p.gamma : s->lr;
}

static double next_cosine(struct schedule *s)
{
    double t = (double)s->p.t_max, k = (double)s->last_epoch;
    /* After a bottom of the wave the recursion would divide by zero. */
    if ((s->last_epoch - 1 - s->p.t_max) % (2 * s->p.t_max) == 0)
        return s->lr + s->base_lr * (1 - cos(M_PI / t)) / 2;
    return (1 + cos(M_PI * k / t)) / (1 + cos(M_PI * (k - 1) / t)) * s->lr;
}

static double next_restarts(struct schedule *s)
{
    if (++s->t_cur >= s->p.t_max)
        s->t_cur -= s->p.t_max;
    return s->base_lr * (1 + cos(M_PI * (double)s->t_cur / (double)s->p.t_max)) / 2;
}

static double anneal(double start, double end, double share)
{
    return end + (start - end) / 2.0 * (cos(M_PI * share) + 1);
}

/* Two phases: up to the largest rate, then down to almost nothing; momentum runs the other way. */
static double next_onecycle(struct schedule *s)
{
    double at = (double)s->last_epoch;
    double top = ONECYCLE_START * (double)s->p.total_steps - 1;
    double end = (double)(s->p.total_steps - 1);
    if (at <= top) {
        s->momentum = anneal(ONECYCLE_MOMENTUM_HIGH, ONECYCLE_MOMENTUM_LOW, at / top);
        return anneal(s->base_lr, s->p.max_lr, at / top);
    }
    double share = (at - top) / (end - top);
    s->momentum = anneal(ONECYCLE_MOMENTUM_LOW, ONECYCLE_MOMENTUM_HIGH, share);
    return anneal(s->p.max_lr, s->base_lr / ONECYCLE_FINAL_DIV, share);
}

static double warm(const struct schedule *s)
{
    return (double)s->last_epoch / (double)s->p.warmup_steps;
}

/* How much of the way from the end of the warm-up to the last step is done; never past it (T93). */
static double way(const struct schedule *s)
{
    int64_t length = s->p.total_steps - s->p.warmup_steps;
    double done = (double)(s->last_epoch - s->p.warmup_steps) / (double)(length > 1 ? length : 1);
    return done < 1 ? done : 1;
}

static double next_warmup_cosine(struct schedule *s)
{
    double f = s->last_epoch < s->p.warmup_steps ? warm(s) : 0.5 * (1.0 + cos(M_PI * way(s)));
    return s->base_lr * f;
}

static double next_warmup_linear(struct schedule *s)
{
    if (s->last_epoch < s->p.warmup_steps)
        return s->base_lr * warm(s);
    int64_t left = s->p.total_steps - s->last_epoch, length = s->p.total_steps - s->p.warmup_steps;
    double f = (double)left / (double)(length > 1 ? length : 1);
    return s->base_lr * (f > 0 ? f : 0);
}

static double next_warmup_constant(struct schedule *s)
{
    return s->last_epoch < s->p.warmup_steps ? s->base_lr * warm(s) : s->base_lr;
}

/* Plateau decides by the metric, not by the step: see plateau_step. */
static double next_plateau(struct schedule *s)
{
    return s->lr;
}

const struct schedule_row schedule_rows[SCHEDULE_COUNT] = {
#define X(name, class, id, uses) {name, class, uses, next_##id},
#include "train/schedules.def"
#undef X
};

/* ---- making one ---- */

static enum status parse_kind(const json_t *params, enum schedule_kind *out, struct err *e)
{
    const char *names[SCHEDULE_COUNT], *type = json_get_str(params, "type", "StepLR");
    for (int i = 0; i < SCHEDULE_COUNT; i++) {
        names[i] = schedule_rows[i].name;
        if (strcmp(type, names[i]) == 0) {
            *out = (enum schedule_kind)i;
            return ST_OK;
        }
    }
    enum status st = err_set(e, ST_INVALID, "\"type\" is '%s', which is no scheduler", type);
    const char *near = str_nearest(type, names, SCHEDULE_COUNT);
    if (near)
        err_hint(e, "Did you mean %s?", near);
    return st;
}

static enum status read_params(const json_t *params, struct schedule_params *p, struct err *e)
{
    TRY(spec_i64(params, "step_size", &p->step_size, e));
    TRY(spec_f64(params, "gamma", &p->gamma, e));
    TRY(spec_i64(params, "T_max", &p->t_max, e));
    TRY(spec_f64(params, "max_lr", &p->max_lr, e));
    TRY(spec_i64(params, "total_steps", &p->total_steps, e));
    return spec_i64(params, "warmup_steps", &p->warmup_steps, e);
}

static enum status
at_least(int64_t value, int64_t least, const char *type, const char *name, struct err *e)
{
    enum { STEPS_MAX = 1 << 30 }; /* keeps products of steps far from overflow */
    if (value >= least && value <= (int64_t)STEPS_MAX * STEPS_MAX)
        return ST_OK;
    return err_set(
        e, ST_INVALID, "%s: \"%s\" is %lld, it must be %lld or more", type, name, (long long)value,
        (long long)least);
}

enum status schedule_check(const struct schedule *s, struct err *e)
{
    const struct schedule_row *row = &schedule_rows[s->kind];
    const struct schedule_params *p = &s->p;
    if (row->uses & USES_STEP_SIZE)
        TRY(at_least(p->step_size, 1, row->name, "step_size", e));
    if (row->uses & USES_T_MAX)
        TRY(at_least(p->t_max, 1, row->name, "T_max", e));
    if (row->uses & USES_TOTAL)
        TRY(at_least(p->total_steps, 1, row->name, "total_steps", e));
    if (row->uses & USES_WARMUP)
        TRY(at_least(p->warmup_steps, 0, row->name, "warmup_steps", e));
    if ((row->uses & USES_TOTAL) && (row->uses & USES_WARMUP) && p->warmup_steps > p->total_steps)
        return err_set(
            e, ST_INVALID, "%s: \"warmup_steps\" is %lld, more than \"total_steps\" %lld",
            row->name, (long long)p->warmup_steps, (long long)p->total_steps);
    if (s->kind == SCHEDULE_plateau && p->gamma >= 1)
        return err_set(
            e, ST_INVALID, "%s: \"gamma\" is %g, it must be less than 1", row->name, p->gamma);
    return ST_OK;
}

/* What PyTorch's optimizer class offers OneCycleLR to cycle: beta1 where it has betas, else a
 * momentum, used or not; the others it refuses. */
static enum status start_onecycle(struct schedule *s, enum optim_kind kind, struct err *e)
{
    switch (kind) {
    case OPTIM_SGD:
    case OPTIM_RMSPROP:
        break;
    case OPTIM_ADAM:
    case OPTIM_ADAMW:
    case OPTIM_RADAM:
    case OPTIM_NADAM:
        s->use_beta1 = true;
        break;
    case OPTIM_ADAGRAD:
    case OPTIM_RPROP:
    case OPTIM_ASGD:
    case OPTIM_ADAFACTOR:
    case OPTIM_COUNT:
        return err_set(
            e, ST_INVALID, "OneCycleLR cycles the momentum too, and optimizer '%s' has none",
            optim_name(kind));
    }
    s->base_lr = s->p.max_lr / ONECYCLE_DIV;
    return ST_OK;
}

/* PyTorch's constructors make a step of their own, number 0. */
static void start(struct schedule *s)
{
    s->lr = s->base_lr;
    if (s->kind >= SCHEDULE_onecycle)
        s->lr = schedule_rows[s->kind].next(s);
    s->step_count = s->kind != SCHEDULE_restarts && s->kind != SCHEDULE_plateau;
}

enum status schedule_new(
    const json_t *params, const struct optim_spec *optim, struct schedule **out, struct err *e)
{
    struct schedule s = {
        .p =
            {.step_size = 10,
             .t_max = 50,
             .total_steps = 1000,
             .warmup_steps = 100,
             .gamma = 0.1,
             .max_lr = 0.01},
        .base_lr = optim->lr,
        .best = (double)INFINITY};
    TRY(parse_kind(params, &s.kind, e));
    TRY(read_params(params, &s.p, e));
    TRY(schedule_check(&s, e));
    if (s.kind == SCHEDULE_onecycle)
        TRY(start_onecycle(&s, optim->attr.kind, e));
    start(&s);
    *out = mem_alloc(sizeof **out);
    **out = s;
    return ST_OK;
}

void schedule_free(struct schedule *s)
{
    mem_free(s);
}

/* ---- reading and stepping ---- */

const char *schedule_class(const struct schedule *s)
{
    return schedule_rows[s->kind].class;
}

bool schedule_is_plateau(const struct schedule *s)
{
    return s->kind == SCHEDULE_plateau;
}

double schedule_lr(const struct schedule *s)
{
    return s->lr;
}

bool schedule_momentum(const struct schedule *s, double *momentum)
{
    if (s->kind != SCHEDULE_onecycle)
        return false;
    if (momentum)
        *momentum = s->momentum;
    return true;
}

void schedule_prepare_optim(const struct schedule *s, struct optim_spec *optim)
{
    double momentum;
    if (!schedule_momentum(s, &momentum))
        return;
    if (s->use_beta1)
        optim->attr.beta1 = momentum;
    else
        optim->attr.momentum = momentum;
}

static void plateau_step(struct schedule *s, double metric)
{
    if (isnan(metric))
        return;
    s->last_epoch++;
    s->seen = true;
    if (metric < s->best * (1. - PLATEAU_THRESHOLD)) {
        s->best = metric;
        s->bad_epochs = 0;
    } else {
        s->bad_epochs++;
    }
    if (s->bad_epochs <= PLATEAU_PATIENCE)
        return;
    double lower = s->lr * s->p.gamma > 0 ? s->lr * s->p.gamma : 0;
    if (s->lr - lower > PLATEAU_EPS)
        s->lr = lower;
    s->bad_epochs = 0;
}

enum status schedule_step(struct schedule *s, double metric, struct err *e)
{
    if (s->kind == SCHEDULE_plateau) {
        plateau_step(s, metric);
        return ST_OK;
    }
    TRY(schedule_check_steps(s, 1, e));
    s->last_epoch++;
    s->step_count += s->kind != SCHEDULE_restarts;
    s->lr = schedule_rows[s->kind].next(s);
    return ST_OK;
}

enum status schedule_check_steps(const struct schedule *s, int64_t n, struct err *e)
{
    if (s->kind != SCHEDULE_onecycle || n <= s->p.total_steps - s->last_epoch)
        return ST_OK;
    enum status st = err_set(
        e, ST_INVALID,
        "OneCycleLR: \"total_steps\" is %lld, and step %lld would come after its end",
        (long long)s->p.total_steps, (long long)(s->last_epoch + n));
    err_hint(e, "Set total_steps of the LRScheduler to at least the number of steps of the run.");
    return st;
}

/* Steps that the rate does not depend on but through their number are skipped. */
static void skip(struct schedule *s, int64_t n)
{
    s->last_epoch += n;
    s->step_count += s->kind == SCHEDULE_restarts ? 0 : n;
    s->t_cur = s->kind == SCHEDULE_restarts ? (s->t_cur + n) % s->p.t_max : 0;
}

bool schedule_fast_forward(struct schedule *s, int64_t n)
{
    enum { WALK_MAX = 1 << 28 }; /* seconds; no run is that long */
    bool direct = s->kind == SCHEDULE_restarts || s->kind >= SCHEDULE_onecycle;
    if (s->kind == SCHEDULE_plateau || n > (direct ? INT64_MAX / 4 : WALK_MAX) ||
        schedule_check_steps(s, n, NULL) != ST_OK)
        return false;
    if (direct && n > 1) {
        skip(s, n - 1);
        n = 1;
    }
    for (int64_t i = 0; i < n; i++)
        if (schedule_step(s, (double)NAN, NULL) != ST_OK)
            return false;
    return true;
}
