/* layer.c - the table of layer types, and what the families share. */
#include "nn/layer.h"

#include "base/rng.h"
#include "base/str.h"
#include "ir/build.h"

#include <stdarg.h>
#include <stdio.h>

static const struct layer_type types[] = {
#define LAYER(type, torch_class, fam, dims, op, lo, hi, test_name)                                 \
    {.name = #type,                                                                                \
     .torch = torch_class,                                                                         \
     .family = #fam,                                                                               \
     .test = test_name,                                                                            \
     .spatial = dims,                                                                              \
     .inputs_min = lo,                                                                             \
     .inputs_max = hi,                                                                             \
     .code = op,                                                                                   \
     .check = check_##fam,                                                                         \
     .forward = forward_##fam},
#include "nn/layers.def"
};
enum { TYPE_COUNT = sizeof types / sizeof types[0] };

int layer_type_count(void)
{
    return TYPE_COUNT;
}

const struct layer_type *layer_type_at(int i)
{
    return &types[i];
}

enum status layer_type_find(const char *name, const struct layer_type **out, struct err *e)
{
    const char *names[TYPE_COUNT];
    for (int i = 0; i < TYPE_COUNT; i++) {
        names[i] = types[i].name;
        if (str_eq(name, types[i].name)) {
            *out = &types[i];
            return ST_OK;
        }
    }
    (void)err_set(e, ST_INVALID, "SequentialModel: unknown layer type '%.64s'", name);
    const char *near = str_nearest(name, names, TYPE_COUNT);
    if (near && e)
        err_hint(e, "Did you mean '%s'?", near);
    return ST_INVALID;
}

enum status layer_refuse(const struct layer_check *c, enum status st, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(c->e, st, "layer \"%s\" (%s): %s", c->layer->id, c->layer->type->name, text);
}

/* Sums over thousands of such variables stay far inside 64 bits. */
enum { ELEMENTS_MAX_LOG2 = 44, VARIABLES_MAX = 1 << 18 };

static enum status declare(
    const struct layer_check *c, enum dtype t, struct shape s, struct init init, bool parameter,
    const char *name)
{
    struct layer *l = c->layer;
    int64_t count = shape_count(&s);
    if (count < 0 || count > (int64_t)1 << ELEMENTS_MAX_LOG2)
        return layer_refuse(
            c, ST_INVALID, "parameter \"%s\" of shape %s is absurdly large", name,
            shape_text(&s, (char[192]){0}, 192));
    if (c->vars->list.n >= VARIABLES_MAX)
        return layer_refuse(c, ST_INVALID, "the model has more than %d tensors", VARIABLES_MAX);
    char full[512];
    (void)snprintf(full, sizeof full, "layers.%s.%s", l->id, name);
    struct ir_var v = {
        .name = full,
        .dtype = t,
        .shape = s,
        .category = parameter ? CATEGORY_PARAMETERS : CATEGORY_BUFFERS,
        .trainable = parameter,
        .of = IR_NONE,
        .node = l->node};
    struct layer_var own = {.init = init, .like = (int)l->vars.n, .parameter = parameter};
    (void)snprintf(own.name, sizeof own.name, "%s", name);
    own.var = ir_var_new(c->vars, &v);
    vec_push(&l->vars, own);
    return ST_OK;
}

/* A name made of parts, cut where it would not fit: no layer has such names. */
#define NAME_FORMAT(name, fmt)                                                                     \
    do {                                                                                           \
        va_list ap;                                                                                \
        va_start(ap, fmt);                                                                         \
        (void)vsnprintf(name, sizeof(name), fmt, ap);                                              \
        va_end(ap);                                                                                \
    } while (0)

enum status
layer_declare(const struct layer_check *c, struct shape s, struct init init, const char *fmt, ...)
{
    char name[LAYER_NAME_MAX];
    NAME_FORMAT(name, fmt);
    return declare(c, DT_F32, s, init, true, name);
}

enum status layer_declare_buffer(
    const struct layer_check *c, enum dtype t, struct shape s, struct init init, const char *name)
{
    return declare(c, t, s, init, false, name);
}

void layer_copy_starts(struct layer *l, size_t first, size_t n)
{
    for (size_t i = first + n; i < l->vars.n; i++)
        l->vars.data[i].like = (int)(first + (i - first) % n);
}

int layer_fail(const struct layer_run *r, const char *fmt, ...)
{
    if (r->p->err.status != ST_OK)
        return IR_NONE;
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    (void)err_set(&r->p->err, ST_INVALID, "%s: %s", r->layer->id, text);
    return IR_NONE;
}

int layer_var_find(const struct layer *l, const char *fmt, ...)
{
    char name[LAYER_NAME_MAX];
    NAME_FORMAT(name, fmt);
    for (size_t i = 0; i < l->vars.n; i++)
        if (str_eq(l->vars.data[i].name, name))
            return l->vars.data[i].var;
    return IR_NONE;
}

int layer_read(const struct layer_run *r, const char *fmt, ...)
{
    char name[LAYER_NAME_MAX];
    NAME_FORMAT(name, fmt);
    int var = layer_var_find(r->layer, "%s", name);
    return var == IR_NONE ? IR_NONE : ir_var_read(r->p, var);
}

struct shape layer_input_shape(const struct layer_run *r)
{
    if (r->p->err.status != ST_OK || r->in[0] < 0)
        return (struct shape){.rank = -1};
    return ir_value_at(r->p, r->in[0])->shape;
}

/* ---- what layers are made of ---- */

uint32_t layer_stream(const struct layer_run *r, const char *place)
{
    char name[LAYER_NAME_MAX + 128];
    (void)snprintf(name, sizeof name, "%s%s%s", r->layer->id, *place ? "." : "", place);
    return (uint32_t)hash_name(name);
}

int layer_dropout(const struct layer_run *r, int x, double p, const char *place)
{
    if (!r->training || p == 0)
        return x;
    if (r->rng == IR_NONE)
        return layer_fail(r, "dropout needs random numbers to train, and got none");
    return ir_dropout(r->p, x, r->rng, IR_NONE, p, layer_stream(r, place));
}

enum status layer_declare_linear(
    const struct layer_check *c, const char *place, int64_t in, int64_t out, bool bias)
{
    TRY(layer_declare(c, SHAPE(out, in), init_fan_in(in), "%sweight", place));
    return bias ? layer_declare(c, SHAPE(out), init_fan_in(in), "%sbias", place) : ST_OK;
}

int layer_linear(const struct layer_run *r, int x, const char *place)
{
    struct linear l = {
        .weight_var = layer_var_find(r->layer, "%sweight", place),
        .bias_var = layer_var_find(r->layer, "%sbias", place),
        .training = r->training,
        .rng = r->rng};
    return nn_linear(r->model, r->p, x, &l);
}

enum status layer_probability(const struct layer_check *c, double p)
{
    if (p <= 1)
        return ST_OK;
    return layer_refuse(
        c, ST_INVALID, "dropout probability has to be between 0 and 1, but got %g", p);
}

enum status layer_stack_check(const struct layer_check *c, int64_t n)
{
    if (n <= LAYER_STACK_MAX)
        return ST_OK;
    return layer_refuse(
        c, ST_INVALID, "parameter \"num_layers\" is %lld, at most %d", (long long)n,
        LAYER_STACK_MAX);
}

void layer_block_begin(const struct layer_run *r)
{
    r->p->block = (*r->blocks)++;
}

void layer_block_end(const struct layer_run *r)
{
    r->p->block = IR_NONE;
}

int layer_sequence(const struct layer_run *r, int x, int64_t features, bool *single)
{
    *single = false;
    if (r->p->err.status != ST_OK || x < 0)
        return IR_NONE;
    struct shape s = ir_value_at(r->p, x)->shape;
    if (s.rank != 2 && s.rank != 3)
        return layer_fail(
            r, "expected a 3-D input, or a 2-D one for a single sequence, got %s",
            shape_text(&s, (char[192]){0}, 192));
    if (s.dim[s.rank - 1] != features)
        return layer_fail(
            r, "expected %lld features in the last dimension of the input, got %s",
            (long long)features, shape_text(&s, (char[192]){0}, 192));
    if (!dtype_floating(ir_value_at(r->p, x)->dtype))
        return layer_fail(r, "expected floating values");
    *single = s.rank == 2;
    return *single ? ir_unsqueeze(r->p, x, r->layer->params.batch_first ? 0 : 1) : x;
}
