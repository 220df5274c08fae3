/* layer.c - the table of layer types, and what the families share. */
#include "nn/layer.h"

#include "base/str.h"

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

static const char *const unsupported[] = {
#define UNSUPPORTED(type) #type,
#include "nn/layers.def"
};

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
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++)
        if (str_eq(name, unsupported[i]))
            return err_set(e, ST_UNSUPPORTED, "layer type '%s' is not in this version", name);
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
enum { ELEMENTS_MAX_LOG2 = 44 };

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
