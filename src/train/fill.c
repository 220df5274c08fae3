/* fill.c - puts weights where an executor holds them, and keeps masters and weights together. */
#include "train/fill.h"

#include "base/str.h"
#include "nn/adapter.h"

#include <string.h>

int fill_exact(const struct ir_vars *vars, int var, size_t n)
{
    if (vars->list.data[var].dtype == DT_F32 || !dtype_floating(vars->list.data[var].dtype))
        return var;
    for (size_t i = 0; i < n && i < vars->list.n; i++)
        if (vars->list.data[i].of == var && str_starts(vars->list.data[i].name, "master:"))
            return (int)i;
    return var;
}

enum dtype fill_type(const struct model *m, const struct ir_vars *vars)
{
    for (int i = 0; i < model_param_count_vars(m); i++) {
        enum dtype t = vars->list.data[model_param_var(m, i)].dtype;
        if (dtype_floating(t) && t != DT_F32)
            return t;
    }
    return DT_F32;
}

static void convert(void *to, enum dtype type, const void *from, enum dtype of, int64_t n)
{
    if (type == of) {
        memcpy(to, from, (size_t)n * (size_t)dtype_size(type));
        return;
    }
    for (int64_t i = 0; i < n; i++)
        dtype_store(to, type, i, dtype_load(from, of, i));
}

static void round_one(const struct ir_vars *vars, struct exec *x, int var, int master)
{
    const struct ir_var *v = &vars->list.data[var];
    convert(exec_var(x, var), v->dtype, exec_var(x, master), DT_F32, shape_count(&v->shape));
}

void fill_round(const struct model *m, const struct ir_vars *vars, struct exec *x)
{
    for (int i = 0; i < model_param_count_vars(m); i++) {
        int var = model_param_var(m, i), master = fill_exact(vars, var, vars->list.n);
        if (master != var)
            round_one(vars, x, var, master);
    }
}

/* What the other executor has, into the exact variable of this one. */
static void carry(
    const struct model *m, const struct ir_vars *vars, struct exec *x,
    const struct train_weights *w, int var, int exact)
{
    const struct ir_var *v = &vars->list.data[var];
    int from = fill_exact(vars, var, w->from_vars);
    bool weight = v->category == CATEGORY_PARAMETERS && dtype_floating(v->dtype) &&
                  !model_var_is_scale(m, var);
    enum dtype of = !weight ? v->dtype : from != var ? DT_F32 : w->from_dtype;
    convert(
        exec_var(x, exact), vars->list.data[exact].dtype, exec_var(w->from, from), of,
        shape_count(&v->shape));
}

static void *var_at(int var, void *x)
{
    return exec_var(x, var);
}

/* Room for one weight in float32, so that a model in few bits never exists whole in float32; one
 * for all of them, which goes back to the system at the end. NULL when none is needed. */
static enum status room_for(const struct model *m, int first, int n, float **room, struct err *e)
{
    int64_t most = 0;
    for (int i = first; i < first + n; i++) {
        const struct model_quant *q = model_quant_of(m, model_state_var(m, i));
        most = q && shape_count(&q->shape) > most ? shape_count(&q->shape) : most;
    }
    *room = most ? mem_try_alloc((size_t)most * sizeof **room) : NULL;
    return *room || !most ? ST_OK : err_set(e, ST_OOM, "no host memory for a weight in float32");
}

static enum status fill_quantised(
    const struct model_quant *q, struct ir_vars *vars, struct exec *x,
    const struct train_weights *w, float *room, struct err *e)
{
    struct ir_var own = vars->list.data[q->codes];
    vars->list.data[q->codes].dtype = DT_F32;
    vars->list.data[q->codes].shape = q->shape;
    enum status st = w->fill(q->codes, room, w->ctx, e);
    vars->list.data[q->codes] = own;
    if (st == ST_OK)
        model_quantise(q, var_at, x, room);
    return st;
}

static enum status fill_one(
    const struct model *m, struct ir_vars *vars, struct exec *x, const struct train_weights *w,
    int var, float *room, struct err *e)
{
    int exact = fill_exact(vars, var, vars->list.n);
    const struct model_quant *q = model_quant_of(m, var);
    enum status st = ST_OK;
    if (w->from && (size_t)var < w->from_vars) {
        carry(m, vars, x, w, var, exact);
    } else if (model_var_is_scale(m, var)) {
        return ST_OK; /* filled with its codes */
    } else if (q) {
        return fill_quantised(q, vars, x, w, room, e);
    } else {
        /* The reader sees the variable as the type of the memory it gets. */
        enum dtype own = vars->list.data[var].dtype;
        vars->list.data[var].dtype = vars->list.data[exact].dtype;
        st = w->fill(var, exec_var(x, exact), w->ctx, e);
        vars->list.data[var].dtype = own;
    }
    if (st == ST_OK && exact != var)
        round_one(vars, x, var, exact);
    return st;
}

enum status fill_states(
    const struct model *m, struct ir_vars *vars, struct exec *x, const struct train_weights *w,
    int first, int n, struct err *e)
{
    float *room;
    enum status st = room_for(m, first, n, &room, e);
    for (int i = first; st == ST_OK && i < first + n; i++)
        st = fill_one(m, vars, x, w, model_state_var(m, i), room, e);
    mem_free(room);
    return st;
}

enum status fill_model(
    const struct model *m, struct ir_vars *vars, struct exec *x, const struct train_weights *w,
    struct err *e)
{
    return fill_states(m, vars, x, w, 0, model_state_count(m), e);
}
