/* schedule_state.c - a schedule's state as PyTorch's state_dict, and back. */
#include "train/schedule_int.h"

#include "base/str.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static json_t *list_of(double x)
{
    json_t *list = json_array();
    (void)json_array_append_new(list, json_f64(x));
    return list;
}

/* {"10": 1, ...}: PyTorch's Counter of milestones. */
static json_t *milestones(const struct schedule *s)
{
    json_t *counter = json_object();
    for (int k = 1; k <= MULTISTEP_COUNT; k++) {
        char key[32];
        (void)snprintf(key, sizeof key, "%lld", (long long)(s->p.step_size * k));
        json_put_i64(counter, key, 1);
    }
    return counter;
}

static json_t *phase(double end, const char *const names[4])
{
    static const char *const keys[4] = {"start_lr", "end_lr", "start_momentum", "end_momentum"};
    json_t *p = json_object();
    json_put_f64(p, "end_step", end);
    for (int i = 0; i < 4; i++)
        json_put_str(p, keys[i], names[i]);
    return p;
}

static void put_onecycle(const struct schedule *s, json_t *o)
{
    static const char *const up[4] = {"initial_lr", "max_lr", "max_momentum", "base_momentum"};
    static const char *const down[4] = {"max_lr", "min_lr", "base_momentum", "max_momentum"};
    json_t *phases = json_array();
    (void)json_array_append_new(phases, phase(ONECYCLE_START * (double)s->p.total_steps - 1, up));
    json_t *last = phase(0, down);
    json_put_i64(last, "end_step", s->p.total_steps - 1);
    (void)json_array_append_new(phases, last);
    json_put_i64(o, "total_steps", s->p.total_steps);
    json_put(o, "_schedule_phases", phases);
    json_put_bool(o, "cycle_momentum", true);
    json_put_bool(o, "use_beta1", s->use_beta1);
    json_put_f64(o, "max_lr", s->p.max_lr); /* ours: PyTorch keeps it in the optimizer's group */
}

static json_t *plateau_state(const struct schedule *s)
{
    json_t *o = json_object();
    json_put_f64(o, "factor", s->p.gamma);
    json_t *floor = json_array();
    (void)json_array_append_new(floor, json_integer(0));
    json_put(o, "min_lrs", floor);
    json_put_i64(o, "patience", PLATEAU_PATIENCE);
    json_put_bool(o, "verbose", false);
    json_put_i64(o, "cooldown", 0);
    json_put_i64(o, "cooldown_counter", 0);
    json_put_str(o, "mode", "min");
    json_put_f64(o, "threshold", PLATEAU_THRESHOLD);
    json_put_str(o, "threshold_mode", "rel");
    json_put_f64(o, "best", s->best);
    json_put_i64(o, "num_bad_epochs", s->bad_epochs);
    json_put_f64(o, "mode_worse", (double)INFINITY);
    json_put_f64(o, "eps", PLATEAU_EPS);
    json_put_i64(o, "last_epoch", s->last_epoch);
    /* PyTorch has it from the first step on; the rate is needed before, too. */
    json_put(o, "_last_lr", list_of(s->lr));
    return o;
}

json_t *schedule_state(const struct schedule *s)
{
    if (s->kind == SCHEDULE_plateau)
        return plateau_state(s);
    const struct schedule_row *row = &schedule_rows[s->kind];
    json_t *o = json_object();
    if (s->kind == SCHEDULE_onecycle)
        put_onecycle(s, o);
    if (s->kind == SCHEDULE_multistep)
        json_put(o, "milestones", milestones(s));
    else if (row->uses & USES_STEP_SIZE)
        json_put_i64(o, "step_size", s->p.step_size);
    if (row->uses & USES_GAMMA)
        json_put_f64(o, "gamma", s->p.gamma);
    if (s->kind == SCHEDULE_restarts) {
        json_put_i64(o, "T_0", s->p.t_max);
        json_put_i64(o, "T_i", s->p.t_max);
        json_put_i64(o, "T_mult", 1);
        json_put_i64(o, "T_cur", s->t_cur);
    } else if (row->uses & USES_T_MAX) {
        json_put_i64(o, "T_max", s->p.t_max);
    }
    if (row->uses & USES_T_MAX)
        json_put_i64(o, "eta_min", 0);
    if (row->uses & USES_WARMUP) {
        /* The factor is a function, which PyTorch does not save; the last three are ours. */
        json_t *none = json_array();
        (void)json_array_append_new(none, json_null());
        json_put(o, "lr_lambdas", none);
        json_put_str(o, "warmup_type", row->name);
        json_put_i64(o, "warmup_steps", s->p.warmup_steps);
        if (row->uses & USES_TOTAL)
            json_put_i64(o, "total_steps", s->p.total_steps);
    }
    json_put(o, "base_lrs", list_of(s->base_lr));
    json_put_i64(o, "last_epoch", s->last_epoch);
    json_put_bool(o, "verbose", false);
    json_put_i64(o, "_step_count", s->step_count);
    json_put_bool(o, "_get_lr_called_within_step", false);
    json_put(o, "_last_lr", list_of(s->lr));
    return o;
}

/* ---- and back ---- */

static double first_of(const json_t *state, const char *key, double fallback)
{
    const json_t *list = json_object_get(state, key), *v = json_array_get(list, 0);
    return json_is_number(v) && isfinite(json_number_value(v)) ? json_number_value(v) : fallback;
}

/* Infinity travels as text. */
static double best_of(const json_t *state)
{
    const json_t *v = json_object_get(state, "best");
    return json_is_number(v) ? json_number_value(v) : (double)INFINITY;
}

/* The smallest milestone: the node's step_size. */
static int64_t first_milestone(const json_t *state, int64_t fallback)
{
    const char *key;
    json_t *v;
    int64_t least = INT64_MAX, n;
    json_object_foreach(
        json_object_get(state, "milestones"), key, v) if (str_to_i64(key, &n) && n > 0 && n < least)
        least = n;
    return least == INT64_MAX ? fallback : least;
}

static enum schedule_kind saved_kind(const struct schedule *s, const json_t *state)
{
    const char *type = json_get_str(state, "warmup_type", schedule_rows[s->kind].name);
    for (int k = SCHEDULE_warmup_cosine; k < SCHEDULE_COUNT; k++)
        if (strcmp(type, schedule_rows[k].name) == 0)
            return (enum schedule_kind)k;
    return s->kind;
}

static void read_saved_params(struct schedule *s, const json_t *state)
{
    struct schedule_params *p = &s->p;
    p->gamma = json_get_f64(state, s->kind == SCHEDULE_plateau ? "factor" : "gamma", p->gamma);
    if (s->kind == SCHEDULE_multistep)
        p->step_size = first_milestone(state, p->step_size);
    else
        p->step_size = json_get_i64(state, "step_size", p->step_size);
    p->t_max = json_get_i64(state, s->kind == SCHEDULE_restarts ? "T_0" : "T_max", p->t_max);
    p->total_steps = json_get_i64(state, "total_steps", p->total_steps);
    p->warmup_steps = json_get_i64(state, "warmup_steps", p->warmup_steps);
    s->base_lr = first_of(state, "base_lrs", s->base_lr);
    /* PyTorch's own state has no max_lr. */
    if (s->kind == SCHEDULE_onecycle && p->max_lr / ONECYCLE_DIV != s->base_lr)
        p->max_lr = json_get_f64(state, "max_lr", s->base_lr * ONECYCLE_DIV);
}

static void add_name(struct schedule *s, const char *name)
{
    size_t n = strlen(s->differs);
    (void)snprintf(s->differs + n, sizeof s->differs - n, "%s%s", n ? ", " : "", name);
}

static void name_differences(struct schedule *s, const struct schedule *node)
{
    unsigned uses = schedule_rows[s->kind].uses;
    const struct schedule_params *a = &s->p, *b = &node->p;
    s->differs[0] = 0;
    if (s->kind != node->kind)
        add_name(s, "type");
    if (s->base_lr != node->base_lr && s->kind != SCHEDULE_plateau)
        add_name(s, s->kind == SCHEDULE_onecycle ? "max_lr" : "lr");
    if ((uses & USES_STEP_SIZE) && a->step_size != b->step_size)
        add_name(s, "step_size");
    if ((uses & USES_GAMMA) && a->gamma != b->gamma)
        add_name(s, "gamma");
    if ((uses & USES_T_MAX) && a->t_max != b->t_max)
        add_name(s, "T_max");
    if ((uses & USES_TOTAL) && a->total_steps != b->total_steps)
        add_name(s, "total_steps");
    if ((uses & USES_WARMUP) && a->warmup_steps != b->warmup_steps)
        add_name(s, "warmup_steps");
}

enum status
schedule_restore(struct schedule *s, const json_t *state, const char **differs, struct err *e)
{
    *differs = NULL;
    if (!json_is_object(state))
        return err_set(e, ST_CORRUPT, "the saved scheduler state is no dictionary");
    struct schedule r = *s;
    r.kind = saved_kind(s, state);
    read_saved_params(&r, state);
    r.last_epoch = json_get_i64(state, "last_epoch", -1);
    r.step_count = json_get_i64(state, "_step_count", s->step_count);
    r.lr = first_of(state, "_last_lr", s->lr);
    r.best = best_of(state);
    r.bad_epochs = json_get_i64(state, "num_bad_epochs", 0);
    r.t_cur = json_get_i64(state, "T_cur", 0);
    bool restarts = r.kind == SCHEDULE_restarts;
    if (r.last_epoch < 0 || r.last_epoch > INT64_MAX / 4 || schedule_check(&r, NULL) != ST_OK ||
        r.t_cur < 0 || (restarts && r.t_cur >= r.p.t_max))
        return err_set(
            e, ST_CORRUPT, "the saved state of the scheduler %s cannot be used", schedule_class(s));
    if (r.kind == SCHEDULE_onecycle)
        (void)schedule_rows[r.kind].next(&r); /* the momentum of this place */
    name_differences(&r, s);
    *s = r;
    if (s->differs[0])
        *differs = s->differs;
    return ST_OK;
}
