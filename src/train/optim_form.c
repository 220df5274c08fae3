/* optim_form.c - levers of storage as attributes of the optimizer. */
#include "train/optim_form.h"

#include "ir/optim_state.h"

static enum status int8(const struct levers *l, struct optim_attr *a, struct err *e)
{
    a->int8 = l->optimizer_state == OPTIM_STATE_INT8;
    return a->int8 ? optim_int8_check(a, e) : ST_OK;
}

/* Autocast in one half type over weights of the other would round every weight twice. */
static enum status
half(const struct levers *l, enum precision precision, struct optim_attr *a, struct err *e)
{
    bool low = l->parameter_dtype != DT_F32;
    if ((precision == PRECISION_BF16 && l->parameter_dtype == DT_F16) ||
        (precision == PRECISION_FP16 && l->parameter_dtype == DT_BF16)) {
        (void)err_set(
            e, ST_INVALID, "precision is %s, and parameter_dtype is %s", precision_name(precision),
            dtype_name(l->parameter_dtype));
        err_hint(e, "use the same type for both, or precision fp32, which follows the weights");
        return ST_INVALID;
    }
    a->master = low && l->master_weights == MASTER_F32;
    a->stochastic = low && l->master_weights == MASTER_STOCHASTIC;
    return ST_OK;
}

enum status
optim_form(const struct levers *l, enum precision precision, struct optim_attr *a, struct err *e)
{
    TRY(int8(l, a, e));
    return half(l, precision, a, e);
}
