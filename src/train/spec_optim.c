/* spec_optim.c - the Optimizer node's parameters as an optim_spec. */
#include "base/mem.h"
#include "base/str.h"
#include "ir/optim_state.h"
#include "train/spec.h"
#include "train/spec_int.h"

#include <math.h>
#include <string.h>

enum {
    TAKES_WEIGHT_DECAY = 1,
    TAKES_MOMENTUM = 2,
    TAKES_BETAS = 4,
    TAKES_EPS = 8,
    TAKES_AMSGRAD = 16,
    TAKES_NESTEROV = 32,
    TAKES_DAMPENING = 64,
    TAKES_FACTORS = 128 /* beta2_decay, eps1, eps2, d */
};

static const struct optimizer {
    unsigned takes;
    struct optim_attr defaults;
} optimizers[OPTIM_COUNT] = {
#define X(name, takes, ...) [OPTIM_##name] = {takes, {.kind = OPTIM_##name, __VA_ARGS__}},
#include "train/optimizers.def"
#undef X
};

/* What the node can say beside type and lr, with the values that mean "not said". */
struct asked {
    double weight_decay, momentum, beta1, beta2, eps, dampening;
    double beta2_decay, eps1, eps2, d;
    bool amsgrad, nesterov;
};
static const struct asked unasked = {
    .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .beta2_decay = -0.8, .eps2 = 1e-3, .d = 1};

const char *optim_kind_name(enum optim_kind k)
{
    return optim_name(k);
}

static enum status parse_type(const json_t *params, enum optim_kind *out, struct err *e)
{
    const char *names[OPTIM_COUNT], *type = json_get_str(params, "type", "Adam");
    for (int k = 0; k < OPTIM_COUNT; k++) {
        names[k] = optim_name((enum optim_kind)k);
        if (strcmp(names[k], type) == 0) {
            *out = (enum optim_kind)k;
            return ST_OK;
        }
    }
    enum status st = err_set(e, ST_INVALID, "\"type\" is '%s', which is no optimizer", type);
    const char *near = str_nearest(type, names, OPTIM_COUNT);
    if (near)
        err_hint(e, "Did you mean %s?", near);
    return st;
}

static enum status read_betas(const json_t *params, struct asked *a, struct err *e)
{
    double *list;
    int n;
    TRY(spec_list(params, "betas", &list, &n, e));
    const json_t *given = json_object_get(params, "betas");
    bool good = n == 2 || !given || json_is_null(given);
    if (n == 2) {
        a->beta1 = list[0];
        a->beta2 = list[1];
    }
    mem_free(list);
    char shown[80];
    return good ? ST_OK
                : err_set(
                      e, ST_INVALID, "\"betas\" is %s, not two numbers such as 0.9, 0.999",
                      spec_show(params, "betas", shown, sizeof shown));
}

static enum status read_asked(const json_t *params, struct asked *a, struct err *e)
{
    TRY(spec_f64(params, "weight_decay", &a->weight_decay, e));
    TRY(spec_f64(params, "momentum", &a->momentum, e));
    TRY(spec_f64(params, "eps", &a->eps, e));
    TRY(spec_f64(params, "dampening", &a->dampening, e));
    TRY(spec_f64(params, "beta2_decay", &a->beta2_decay, e));
    TRY(spec_f64(params, "eps1", &a->eps1, e));
    TRY(spec_f64(params, "eps2", &a->eps2, e));
    TRY(spec_f64(params, "d", &a->d, e));
    TRY(spec_bool(params, "amsgrad", &a->amsgrad, e));
    TRY(spec_bool(params, "nesterov", &a->nesterov, e));
    return read_betas(params, a, e);
}

/* The rule of the reference: a parameter that was changed must be one that the type takes. */
static enum status
refuse(const json_t *params, enum optim_kind kind, unsigned bit, const char *name, struct err *e)
{
    char shown[80];
    struct str takers;
    str_init(&takers);
    for (int k = 0; k < OPTIM_COUNT; k++)
        if (optimizers[k].takes & bit)
            str_printf(&takers, "%s%s", takers.n ? ", " : "", optim_name((enum optim_kind)k));
    enum status st = err_set(
        e, ST_INVALID,
        "Optimizer '%s' does not accept %s; got %s. Set it back to its default, or choose one of: "
        "%s",
        optim_name(kind), name, spec_show(params, name, shown, sizeof shown), takers.data);
    str_release(&takers);
    return st;
}

static enum status
check_takes(const json_t *params, enum optim_kind kind, const struct asked *a, struct err *e)
{
    const struct {
        unsigned bit;
        bool changed;
        const char *name;
    } rows[] = {
        {TAKES_WEIGHT_DECAY, a->weight_decay != unasked.weight_decay, "weight_decay"},
        {TAKES_MOMENTUM, a->momentum != unasked.momentum, "momentum"},
        {TAKES_BETAS, a->beta1 != unasked.beta1 || a->beta2 != unasked.beta2, "betas"},
        {TAKES_EPS, a->eps != unasked.eps, "eps"},
        {TAKES_AMSGRAD, a->amsgrad, "amsgrad"},
        {TAKES_NESTEROV, a->nesterov, "nesterov"},
        {TAKES_DAMPENING, a->dampening != unasked.dampening, "dampening"},
        {TAKES_FACTORS, a->beta2_decay != unasked.beta2_decay, "beta2_decay"},
        {TAKES_FACTORS, a->eps1 != unasked.eps1, "eps1"},
        {TAKES_FACTORS, a->eps2 != unasked.eps2, "eps2"},
        {TAKES_FACTORS, a->d != unasked.d, "d"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].changed && !(optimizers[kind].takes & rows[i].bit))
            return refuse(params, kind, rows[i].bit, rows[i].name, e);
    return ST_OK;
}

static enum status
below_zero(double value, enum optim_kind kind, const char *name, const char *what, struct err *e)
{
    if (value >= 0)
        return ST_OK;
    return err_set(
        e, ST_INVALID, "Optimizer '%s': invalid %s: \"%s\" is %g, less than 0", optim_name(kind),
        what, name, value);
}

/* The range checks of torch.optim's constructors. */
static enum status check_ranges(const struct optim_spec *s, struct err *e)
{
    const struct optim_attr *a = &s->attr;
    TRY(below_zero(s->lr, a->kind, "lr", "learning rate", e));
    TRY(below_zero(a->eps, a->kind, "eps", "epsilon value", e));
    TRY(below_zero(a->weight_decay, a->kind, "weight_decay", "weight_decay value", e));
    TRY(below_zero(a->momentum, a->kind, "momentum", "momentum value", e));
    TRY(below_zero(a->eps2, a->kind, "eps2", "epsilon value", e));
    if (a->beta2_decay > 0 || (a->kind == OPTIM_ADAFACTOR && a->d < 1))
        return err_set(
            e, ST_INVALID, "Optimizer '%s': \"%s\" is %g, it must be %s", optim_name(a->kind),
            a->beta2_decay > 0 ? "beta2_decay" : "d", a->beta2_decay > 0 ? a->beta2_decay : a->d,
            a->beta2_decay > 0 ? "at most 0" : "at least 1");
    for (int i = 0; i < 2; i++) {
        double beta = i ? a->beta2 : a->beta1;
        if (!(beta >= 0 && beta < 1))
            return err_set(
                e, ST_INVALID,
                "Optimizer '%s': invalid beta parameter at index %d: \"betas\" has %g, outside [0, "
                "1)",
                optim_name(a->kind), i, beta);
    }
    if (a->nesterov && (a->momentum <= 0 || a->dampening != 0))
        return err_set(
            e, ST_INVALID,
            "Optimizer '%s': \"nesterov\" requires a \"momentum\" and zero \"dampening\"",
            optim_name(a->kind));
    return ST_OK;
}

enum status optim_spec_make(const json_t *params, struct optim_spec *out, struct err *e)
{
    enum optim_kind kind = OPTIM_ADAM;
    struct asked a = unasked;
    struct optim_spec s = {.lr = 0.001};
    TRY(parse_type(params, &kind, e));
    TRY(spec_f64(params, "lr", &s.lr, e));
    TRY(read_asked(params, &a, e));
    TRY(check_takes(params, kind, &a, e));
    unsigned takes = optimizers[kind].takes;
    s.attr = optimizers[kind].defaults;
    s.attr.weight_decay = a.weight_decay;
    s.attr.momentum = a.momentum;
    s.attr.dampening = a.dampening;
    s.attr.amsgrad = a.amsgrad;
    s.attr.nesterov = a.nesterov;
    if (takes & TAKES_BETAS) {
        s.attr.beta1 = a.beta1;
        s.attr.beta2 = a.beta2;
    }
    if (takes & TAKES_EPS)
        s.attr.eps = a.eps;
    if (takes & TAKES_FACTORS) {
        s.attr.beta2_decay = a.beta2_decay;
        s.attr.eps = a.eps1;
        s.attr.eps2 = a.eps2;
        s.attr.d = a.d;
    }
    TRY(check_ranges(&s, e));
    *out = s;
    return ST_OK;
}

double optim_state_initial(const struct optim_spec *s, int i)
{
    return i < optim_state_count(&s->attr) ? optim_state_start(&s->attr, i, s->lr) : 0;
}
