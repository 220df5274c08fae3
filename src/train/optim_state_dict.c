/* optim_state_dict.c - the optimizer's state as PyTorch's state_dict. */
#include "train/optim_state_dict.h"

#include "ir/optim_state.h"
#include "ir/quant.h"

#include <math.h>
#include <string.h>

/* ---- making ---- */

static struct pt_value *pair(struct arena *m, double first, double second)
{
    struct pt_value *t = pt_tuple(m);
    pt_add(m, t, pt_float(m, first));
    pt_add(m, t, pt_float(m, second));
    return t;
}

static struct pt_value *none_and(struct arena *m, double second)
{
    struct pt_value *t = pt_tuple(m);
    pt_add(m, t, pt_none(m));
    pt_add(m, t, pt_float(m, second));
    return t;
}

static struct pt_value *group_of(struct arena *m, const struct optim_attr *a, double lr)
{
    struct pt_value *group = pt_dict(m, PT_DICT_PLAIN);
#define X(of, key, value)                                                                          \
    if (a->kind == OPTIM_##of)                                                                     \
        pt_put(m, group, key, value);
#include "train/optim_groups.def"
#undef X
    return group;
}

static bool counts_with_integers(enum optim_kind kind)
{
    return kind == OPTIM_RMSPROP || kind == OPTIM_RPROP;
}

/* Each parameter has a storage of its own: PyTorch counts in place. */
static struct pt_value *step_of(struct arena *m, enum optim_kind kind, int64_t steps)
{
    if (counts_with_integers(kind))
        return pt_int(m, steps);
    float *number = ARENA_NEW(m, float);
    *number = (float)steps;
    return pt_tensor_of(m, DT_F32, NULL, 0, number);
}

/* The entry of a parameter, made when it is first needed. */
static struct pt_value *entry_of(
    struct arena *m, struct pt_value *state, struct pt_value **entries, int param,
    enum optim_kind kind, int64_t steps)
{
    if (!entries[param]) {
        entries[param] = pt_dict(m, PT_DICT_PLAIN);
        pt_put_int(m, state, param, entries[param]);
        if (kind != OPTIM_SGD)
            pt_put(m, entries[param], "step", step_of(m, kind, steps));
    }
    return entries[param];
}

static const char *key_of(const struct optim_attr *a, const struct optim_tensor *t)
{
    return t->key ? t->key : optim_state_name(a, t->state);
}

static struct pt_value *states_of(
    struct arena *m, const struct optim_attr *a, int n_params, const struct optim_tensor *tensors,
    int n, int64_t steps)
{
    struct pt_value *state = pt_dict(m, PT_DICT_PLAIN);
    struct pt_value **entries = ARENA_ARRAY(m, struct pt_value *, n_params + 1);
    if (steps == 0 && a->kind != OPTIM_ADAGRAD)
        return state;
    for (int i = 0; i < n; i++) {
        const struct optim_tensor *t = &tensors[i];
        ASSERT(t->param >= 0 && t->param < n_params);
        struct pt_value *entry = entry_of(m, state, entries, t->param, a->kind, steps);
        pt_put(
            m, entry, key_of(a, t),
            pt_tensor_of(m, t->dtype, t->shape.dim, t->shape.rank, t->data));
    }
    /* SGD without momentum says so for every parameter. */
    for (int i = 0; i < n_params && a->kind == OPTIM_SGD && optim_state_count(a) == 0; i++)
        pt_put(m, entry_of(m, state, entries, i, a->kind, steps), "momentum_buffer", pt_none(m));
    return state;
}

/* What the codes mean: block size, and the map of each state. */
static struct pt_value *legend_of(struct arena *m, const struct optim_tensor *tensors, int n)
{
    static const int64_t codes = 256;
    struct pt_value *legend = pt_dict(m, PT_DICT_PLAIN), *maps = pt_dict(m, PT_DICT_PLAIN);
    pt_put(m, legend, "method", pt_string(m, "block-wise dynamic tree quantisation, 8 bits"));
    pt_put(m, legend, "block", pt_int(m, QUANT_STATE_BLOCK));
    for (int i = 0; i < n; i++) {
        if (tensors[i].map == OPTIM_STATE_WHOLE)
            continue;
        const char *key = tensors[i].key;
        char *name = arena_printf(m, "%.*s", (int)(strlen(key) - strlen("_codes")), key);
        const float *map = quant_dynamic(tensors[i].map == OPTIM_STATE_SIGNED)->value;
        if (!pt_get(maps, name))
            pt_put(
                m, maps, name, pt_tensor_of(m, DT_F32, &codes, 1, (void *)(uintptr_t)map));
    }
    pt_put(m, legend, "maps", maps);
    return maps->dict.n ? legend : NULL;
}

struct pt_value *optim_state_dict_make(
    struct arena *m, const struct optim_spec *s, int n_params, const struct optim_tensor *tensors,
    int n_tensors, int64_t steps, double lr, bool has_schedule)
{
    struct pt_value *group = group_of(m, &s->attr, lr), *groups = pt_list(m), *ids = pt_list(m);
    if (has_schedule)
        pt_put(m, group, "initial_lr", pt_float(m, s->lr));
    for (int i = 0; i < n_params; i++)
        pt_add(m, ids, pt_int(m, i));
    pt_put(m, group, "params", ids);
    pt_add(m, groups, group);
    struct pt_value *dict = pt_dict(m, PT_DICT_PLAIN);
    pt_put(m, dict, "state", states_of(m, &s->attr, n_params, tensors, n_tensors, steps));
    pt_put(m, dict, "param_groups", groups);
    struct pt_value *legend = legend_of(m, tensors, n_tensors);
    if (legend)
        pt_put(m, dict, "snug_int8", legend);
    return dict;
}

/* ---- reading ---- */

struct reader {
    struct ptfile *f;
    const struct optim_spec *s;
    const struct pt_value *state; /* the dict "state" */
    const struct pt_value **ids;  /* of the saved parameters, in their order */
    int n_ids;
    const char *const *names; /* of the same, or NULL */
    int n_names;
    int64_t steps;
};

static bool is_kind(const struct pt_value *v, enum pt_kind kind)
{
    return v && v->kind == kind;
}

/* The ids of all groups, one after the other. */
static enum status
collect_ids(struct reader *r, struct arena *m, const struct pt_value *groups, struct err *e)
{
    size_t n = 0;
    for (size_t g = 0; g < groups->seq.n; g++) {
        const struct pt_value *ids = pt_get(groups->seq.data[g], "params");
        if (!is_kind(ids, PT_LIST))
            return err_set(
                e, ST_CORRUPT, "\"param_groups\" of the optimizer state has no \"params\"");
        n += ids->seq.n;
    }
    if (n > PT_VALUES_MAX)
        return err_set(e, ST_CORRUPT, "the optimizer state lists %zu parameters", n);
    r->ids = ARENA_ARRAY(m, const struct pt_value *, n + 1);
    for (size_t g = 0; g < groups->seq.n; g++) {
        const struct pt_value *ids = pt_get(groups->seq.data[g], "params");
        for (size_t i = 0; i < ids->seq.n; i++)
            r->ids[r->n_ids++] = ids->seq.data[i];
    }
    return ST_OK;
}

/* Newer PyTorch can save names in place of numbers. */
static const char *const *names_in_ids(const struct reader *r, struct arena *m)
{
    const char **names = ARENA_ARRAY(m, const char *, r->n_ids + 1);
    for (int i = 0; i < r->n_ids; i++)
        if (!(names[i] = pt_to_string(r->ids[i])))
            return NULL;
    return r->n_ids ? names : NULL;
}

static const struct pt_value *entry_at(const struct reader *r, int place)
{
    ASSERT(r->ids && place >= 0 && place < r->n_ids);
    const struct pt_value *id = r->ids[place];
    int64_t number;
    if (pt_to_string(id))
        return pt_get(r->state, pt_to_string(id));
    return pt_to_int(id, &number) ? pt_get_int(r->state, number) : NULL;
}

static enum status
find_place(const struct reader *r, const struct optim_tensor *t, int *place, struct err *e)
{
    if (!r->names) {
        *place = t->param;
        return t->param < r->n_ids
                   ? ST_OK
                   : err_set(
                         e, ST_INVALID,
                         "the optimizer state has %d parameters, none for \"%s\" (number %d)",
                         r->n_ids, t->param_name, t->param);
    }
    for (int i = 0; i < r->n_ids; i++)
        if (strcmp(r->names[i], t->param_name) == 0) {
            *place = i;
            return ST_OK;
        }
    return err_set(e, ST_INVALID, "the optimizer state has no parameter \"%s\"", t->param_name);
}

static enum status missing(const struct optim_tensor *t, const char *key, struct err *e)
{
    enum status st = err_set(
        e, ST_INVALID, "the optimizer state of parameter \"%s\" has no \"%s\"", t->param_name, key);
    err_hint(
        e, "The file was saved with another optimizer, with other options of it, or with another "
           "optimizer_state on the TrainingLoop.");
    return st;
}

static enum status read_steps(
    struct reader *r, const struct optim_tensor *t, const struct pt_value *entry, struct err *e)
{
    const struct pt_value *v = pt_get(entry, "step");
    double steps = 1;
    if (v)
        TRY(ptfile_read_number(r->f, v, &steps, e));
    else if (r->s->attr.kind != OPTIM_SGD)
        return missing(t, "step", e);
    if (!(steps >= 0 && steps <= 0x1p53))
        return err_set(
            e, ST_CORRUPT, "\"step\" of parameter \"%s\" in the optimizer state is %g",
            t->param_name, steps);
    /* A parameter that had no gradient at times lags behind. */
    if ((int64_t)steps > r->steps)
        r->steps = (int64_t)steps;
    return ST_OK;
}

static bool same_shape(const struct pt_tensor *a, const struct shape *b)
{
    if (a->rank != b->rank)
        return false;
    for (int d = 0; d < a->rank; d++)
        if (a->shape[d] != b->dim[d])
            return false;
    return true;
}

static enum status read_tensor(
    const struct reader *r, const struct optim_tensor *t, const struct pt_value *v, const char *key,
    struct err *e)
{
    size_t bytes = (size_t)shape_count(&t->shape) * (size_t)dtype_size(t->dtype);
    if (v->kind == PT_NONE && strcmp(key, "momentum_buffer") == 0) {
        memset(t->data, 0, bytes);
        return ST_OK;
    }
    if (t->shape.rank == 0) { /* older files have plain numbers */
        double number;
        TRY(ptfile_read_number(r->f, v, &number, e));
        dtype_store(t->data, t->dtype, 0, number);
        return ST_OK;
    }
    if (v->kind != PT_TENSOR)
        return err_set(
            e, ST_CORRUPT, "\"%s\" of parameter \"%s\" in the optimizer state is %s, not a tensor",
            key, t->param_name, pt_kind_name(v->kind));
    if (!same_shape(v->tensor, &t->shape)) {
        struct shape saved = {.rank = v->tensor->rank};
        memcpy(saved.dim, v->tensor->shape, sizeof saved.dim);
        char a[128], b[128];
        return err_set(
            e, ST_INVALID,
            "\"%s\" of parameter \"%s\" in the optimizer state has the shape %s, the model's is %s",
            key, t->param_name, shape_text(&saved, a, sizeof a),
            shape_text(&t->shape, b, sizeof b));
    }
    return ptfile_read(r->f, v->tensor, t->dtype, t->data, bytes, e);
}

static enum status read_one(struct reader *r, const struct optim_tensor *t, struct err *e)
{
    const char *key = key_of(&r->s->attr, t);
    int place = 0;
    TRY(find_place(r, t, &place, e));
    const struct pt_value *entry = entry_at(r, place);
    if (!is_kind(entry, PT_DICT))
        return missing(t, key, e);
    const struct pt_value *v = pt_get(entry, key);
    if (!v)
        return missing(t, key, e);
    enum status st = read_tensor(r, t, v, key, e);
    if (st == ST_OK && v->kind != PT_NONE)
        st = read_steps(r, t, entry, e);
    return st;
}

/* By position only, another number of parameters means another model. */
static enum status
check_count(const struct reader *r, const struct optim_tensor *tensors, int n, struct err *e)
{
    int params = 0;
    for (int i = 0; i < n; i++)
        params += i == 0 || tensors[i].param != tensors[i - 1].param;
    if (r->names || n == 0 || r->state->dict.n == (size_t)params)
        return ST_OK;
    return err_set(
        e, ST_INVALID, "the optimizer state has entries for %zu parameters, the model has %d",
        r->state->dict.n, params);
}

static enum status
read_rate(struct reader *r, const struct pt_value *groups, double *lr, struct err *e)
{
    const struct pt_value *v = groups->seq.n ? pt_get(groups->seq.data[0], "lr") : NULL;
    *lr = r->s->lr;
    if (!v)
        return ST_OK;
    TRY(ptfile_read_number(r->f, v, lr, e));
    return isfinite(*lr) ? ST_OK
                         : err_set(e, ST_CORRUPT, "\"lr\" of the optimizer state is not finite");
}

static enum status read_all(
    struct reader *r, struct arena *m, const struct pt_value *groups,
    const struct optim_tensor *tensors, int n, struct err *e)
{
    TRY(collect_ids(r, m, groups, e));
    if (r->names && r->n_names != r->n_ids)
        return err_set(
            e, ST_CORRUPT, "the optimizer state has %d parameters, and %d names for them", r->n_ids,
            r->n_names);
    if (!r->names)
        r->names = names_in_ids(r, m);
    if (r->state->dict.n == 0)
        return ST_OK;
    TRY(check_count(r, tensors, n, e));
    for (int i = 0; i < n; i++)
        TRY(read_one(r, &tensors[i], e));
    return ST_OK;
}

enum status optim_state_dict_read(
    struct ptfile *f, const struct pt_value *dict, const char *const *saved_names,
    int n_saved_names, const struct optim_spec *s, const struct optim_tensor *tensors,
    int n_tensors, int64_t *steps, double *lr, struct err *e)
{
    struct reader r = {
        .f = f,
        .s = s,
        .state = pt_get(dict, "state"),
        .names = saved_names,
        .n_names = n_saved_names};
    const struct pt_value *groups = pt_get(dict, "param_groups");
    if (!is_kind(r.state, PT_DICT) || !is_kind(groups, PT_LIST))
        return err_set(e, ST_CORRUPT, "the optimizer state has no \"state\" and \"param_groups\"");
    struct arena m;
    arena_init(&m);
    enum status st = read_all(&r, &m, groups, tensors, n_tensors, e);
    if (st == ST_OK)
        st = read_rate(&r, groups, lr, e);
    arena_release(&m);
    if (st == ST_OK)
        *steps = r.steps;
    return st;
}
