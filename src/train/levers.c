/* levers.c - what the levers forbid, and what checkpointing "auto" comes to. */
#include "train/step.h"

#include "backends/exec.h"

/* ---- one by one ---- */

const char *lever_name(enum lever_field lever)
{
    static const char *const names[LEVER_FIELD_COUNT] = {
#define FIELD(ID, name) #name,
#include "train/lever_fields.def"
#undef FIELD
    };
    return names[lever];
}

bool lever_used(const struct levers *l, enum lever_field lever)
{
    const bool used[LEVER_FIELD_COUNT] = {
#define FIELD(ID, name) l->name != 0,
#include "train/lever_fields.def"
#undef FIELD
    };
    return used[lever];
}

void lever_switch_off(struct levers *l, enum lever_field lever)
{
    switch (lever) {
#define FIELD(ID, name)                                                                            \
    case LEVER_FIELD_##ID:                                                                         \
        l->name = 0;                                                                               \
        break;
#include "train/lever_fields.def"
#undef FIELD
    case LEVER_FIELD_COUNT:
        break;
    }
}

/* ---- combinations ---- */

static enum status
refuse(const char *lever, const char *other, const char *why, const char *hint, struct err *e)
{
    (void)err_set(e, ST_INVALID, "%s cannot be combined with %s: %s", lever, other, why);
    err_hint(e, "%s", hint);
    return ST_INVALID;
}

/* Names what brought the scaler. */
static enum status refuse_scaler(const char *lever, const struct step_config *c, struct err *e)
{
    const char *other = "bf16_scaler", *hint = "set bf16_scaler or update_in_backward to false";
    if (c->levers.parameter_dtype == DT_F16) {
        other = "parameter_dtype float16 (its gradient scaler)";
        hint = "use parameter_dtype bfloat16 or float32, or set update_in_backward to false";
    } else if (c->precision == PRECISION_FP16) {
        other = "precision fp16 (its gradient scaler)";
        hint = "use precision bf16 or fp32, or set update_in_backward to false";
    }
    return refuse(
        lever, other,
        "an infinite gradient must skip the whole update, and would be found after a part of it",
        hint, e);
}

static enum status check_update(const struct step_config *c, struct err *e)
{
    static const char lever[] = "update_in_backward";
    if (c->max_norm > 0)
        return refuse(
            lever, "grad_clip_norm",
            "the norm of the whole gradient is known only when all of it is there",
            "set grad_clip_norm to 0 or update_in_backward to false", e);
    if (c->scaler)
        return refuse_scaler(lever, c, e);
    if (c->accumulate > 1)
        return refuse(
            lever, "accumulate_steps above 1",
            "the gradient is complete only after the last micro-batch, and has to be kept until "
            "then",
            "set accumulate_steps to 1 or update_in_backward to false", e);
    if (c->log_update_ratio)
        return refuse(
            lever, "log_update_ratio",
            "it compares all weights before the update with the whole gradient",
            "set log_update_ratio or update_in_backward to false", e);
    return ST_OK;
}

enum status step_check(const struct step_config *c, struct err *e)
{
    if (c->levers.loss_chunk_tokens < 0)
        return err_set(e, ST_INVALID, "loss_chunk_tokens must not be negative");
    return c->levers.update_in_backward ? check_update(c, e) : ST_OK;
}

/* ---- checkpointing "auto" ---- */

struct search {
    struct ir_vars *vars;
    struct step_config config;
    const struct exec_options *options;
    int segments;
    struct checkpoint_options best;
    int64_t least;
};

/* Peak of a run that checkpoints so. The variables it declares are taken back. */
static enum status
try_out(struct search *s, struct checkpoint_options o, int64_t *peak, struct err *e)
{
    size_t n = s->vars->list.n;
    struct step_set set;
    struct exec *x = NULL;
    s->config.checkpoint = o;
    TRY(step_set_make(s->vars, &s->config, NULL, &set, e));
    enum status st = exec_new(s->vars, set.programs, set.n, s->options, &x, e);
    if (st == ST_OK) {
        *peak = exec_peak_planned(x);
        s->segments = set.segments;
        if (s->least == 0 || *peak < s->least) {
            s->least = *peak;
            s->best = o;
        }
    }
    exec_free(x);
    step_set_release(&set);
    s->vars->list.n = n;
    return st;
}

/* The smallest number of segments that fits; more of them never need more, but for the last. */
static enum status search_count(struct search *s, int64_t budget, struct err *e)
{
    int64_t peak;
    int low = 1, high = s->segments;
    struct checkpoint_options o = {.wide = true};
    while (low < high) {
        o.count = (low + high) / 2;
        TRY(try_out(s, o, &peak, e));
        if (peak <= budget)
            high = o.count;
        else
            low = o.count + 1;
    }
    o.count = low;
    TRY(try_out(s, o, &peak, e));
    if (peak <= budget)
        s->best = o;
    return ST_OK;
}

enum status step_choose(
    struct ir_vars *vars, struct step_config *c, const struct exec_options *options, struct err *e)
{
    int64_t budget = c->levers.budget_bytes, peak;
    struct search s = {.vars = vars, .config = *c, .options = options};
    struct checkpoint_options none = {0}, selective = {.wide = true};
    if (c->levers.checkpointing != CHECKPOINT_AUTO)
        return ST_OK;
    c->checkpoint = selective;
    if (budget <= 0)
        return ST_OK;
    TRY(try_out(&s, none, &peak, e));
    if (peak > budget)
        TRY(try_out(&s, selective, &peak, e));
    if (peak > budget && s.segments > 0)
        TRY(search_count(&s, budget, e));
    c->checkpoint = s.best;
    return ST_OK;
}
