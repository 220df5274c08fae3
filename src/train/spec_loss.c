/* spec_loss.c - the Loss node's parameters as a loss_spec. */
#include "base/mem.h"
#include "base/str.h"
#include "train/spec.h"
#include "train/spec_int.h"

#include <string.h>

enum { TAKES_SMOOTHING = 1, TAKES_WEIGHT = 2, TAKES_IGNORE = 4, TAKES_POS_WEIGHT = 8 };
enum { IGNORE_INDEX_DEFAULT = -100 };

static const struct loss_row {
    const char *name;
    enum loss_kind kind;
    unsigned takes;
} rows[LOSS_TYPE_COUNT] = {
#define X(type, name, kind, takes) [LOSS_TYPE_##type] = {name, kind, takes},
#include "train/losses.def"
#undef X
};

const char *loss_type_name(enum loss_type t)
{
    return rows[t].name;
}

bool loss_has_classes(enum loss_type t)
{
    return t == LOSS_TYPE_CROSS_ENTROPY || t == LOSS_TYPE_NLL;
}

bool loss_weighs_labels(const struct loss_spec *s)
{
    return (loss_has_classes(s->type) || s->type == LOSS_TYPE_LM_CROSS_ENTROPY) &&
           s->attr.reduction == REDUCE_MEAN;
}

static enum status parse_type(const json_t *params, enum loss_type *out, struct err *e)
{
    const char *names[LOSS_TYPE_COUNT], *type = json_get_str(params, "type", "CrossEntropyLoss");
    for (int i = 0; i < LOSS_TYPE_COUNT; i++) {
        names[i] = rows[i].name;
        if (strcmp(type, names[i]) == 0) {
            *out = (enum loss_type)i;
            return ST_OK;
        }
    }
    enum status st = err_set(e, ST_INVALID, "\"type\" is '%s', which is no loss", type);
    const char *near = str_nearest(type, names, LOSS_TYPE_COUNT);
    if (near)
        err_hint(e, "Did you mean %s?", near);
    return st;
}

static enum status parse_reduction(const json_t *params, enum reduction *out, struct err *e)
{
    static const char *const names[] = {
        [REDUCE_MEAN] = "mean", [REDUCE_SUM] = "sum", [REDUCE_NONE] = "none"};
    const char *asked = json_get_str(params, "reduction", "mean");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(asked, names[i]) == 0) {
            *out = (enum reduction)i;
            return ST_OK;
        }
    return err_set(e, ST_INVALID, "\"reduction\" is '%s', not mean, sum or none", asked);
}

/* A parameter that was changed must be one that the type takes, as with optimizers. */
static enum status refuse(
    const json_t *params, enum loss_type type, unsigned bit, const char *name, bool changed,
    struct err *e)
{
    if (!changed || (rows[type].takes & bit))
        return ST_OK;
    char shown[80];
    struct str takers;
    str_init(&takers);
    for (int i = 0; i < LOSS_TYPE_COUNT; i++)
        if (rows[i].takes & bit)
            str_printf(&takers, "%s%s", takers.n ? ", " : "", rows[i].name);
    enum status st = err_set(
        e, ST_INVALID,
        "Loss '%s' does not accept %s; got %s. Set it back to its default, or choose one of: %s",
        rows[type].name, name, spec_show(params, name, shown, sizeof shown), takers.data);
    str_release(&takers);
    return st;
}

static enum status read_values(const json_t *params, struct loss_spec *s, struct err *e)
{
    struct loss_attr *a = &s->attr;
    TRY(parse_reduction(params, &a->reduction, e));
    TRY(spec_f64(params, "label_smoothing", &a->label_smoothing, e));
    TRY(spec_i64(params, "ignore_index", &a->ignore_index, e));
    TRY(spec_list(params, "weight", &s->weight, &s->weight_n, e));
    TRY(spec_list(params, "pos_weight", &s->pos_weight, &s->pos_weight_n, e));
    TRY(refuse(params, s->type, TAKES_SMOOTHING, "label_smoothing", a->label_smoothing != 0, e));
    TRY(refuse(
        params, s->type, TAKES_IGNORE, "ignore_index", a->ignore_index != IGNORE_INDEX_DEFAULT, e));
    TRY(refuse(params, s->type, TAKES_WEIGHT, "weight", s->weight != NULL, e));
    TRY(refuse(params, s->type, TAKES_POS_WEIGHT, "pos_weight", s->pos_weight != NULL, e));
    if (!(a->label_smoothing >= 0 && a->label_smoothing <= 1))
        return err_set(
            e, ST_INVALID, "\"label_smoothing\" is %g, not between 0 and 1", a->label_smoothing);
    return ST_OK;
}

enum status loss_spec_make(const json_t *params, struct loss_spec *out, struct err *e)
{
    struct loss_spec s = {.attr = {.ignore_index = IGNORE_INDEX_DEFAULT, .beta = 1}};
    TRY(parse_type(params, &s.type, e));
    s.attr.kind = rows[s.type].kind;
    enum status st = read_values(params, &s, e);
    if (st != ST_OK) {
        loss_spec_release(&s);
        return st;
    }
    *out = s;
    return ST_OK;
}

void loss_spec_release(struct loss_spec *s)
{
    mem_free(s->weight);
    mem_free(s->pos_weight);
    s->weight = s->pos_weight = NULL;
    s->weight_n = s->pos_weight_n = 0;
}
