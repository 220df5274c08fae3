/* layer_norm.c - normalisation layers. */
#include "ir/build.h"
#include "nn/layer.h"

#define TEXT(s) shape_text(&(s), (char[192]){0}, 192)

static enum status declare_affine(const struct layer_check *c, struct shape s, bool bias)
{
    TRY(layer_declare(c, s, init_constant(1), "weight"));
    return bias ? layer_declare(c, s, init_constant(0), "bias") : ST_OK;
}

enum status check_batch_norm(const struct layer_check *c)
{
    const struct layer_params *a = &c->layer->params;
    struct shape s = SHAPE(a->num_features);
    if (a->affine)
        TRY(declare_affine(c, s, true));
    if (!a->track_running_stats)
        return ST_OK;
    TRY(layer_declare_buffer(c, DT_F32, s, init_constant(0), "running_mean"));
    TRY(layer_declare_buffer(c, DT_F32, s, init_constant(1), "running_var"));
    return layer_declare_buffer(c, DT_I64, shape_scalar(), init_constant(0), "num_batches_tracked");
}

int forward_batch_norm(const struct layer_run *r)
{
    const struct layer *l = r->layer;
    struct shape s = layer_input_shape(r);
    if (s.rank >= 0 && l->type->spatial == 2 && s.rank != 4)
        return layer_fail(r, "expected 4D input (got %dD input)", s.rank);
    if (s.rank >= 0 && l->type->spatial == 1 && s.rank != 2 && s.rank != 3)
        return layer_fail(r, "expected 2D or 3D input (got %dD input)", s.rank);
    if (s.rank >= 0 && s.dim[1] != l->params.num_features)
        return layer_fail(
            r, "running_mean should contain %lld elements not %lld (input %s, num_features %lld)",
            (long long)s.dim[1], (long long)l->params.num_features, TEXT(s),
            (long long)l->params.num_features);
    return ir_batch_norm(
        r->p, r->in[0], layer_read(r, "weight"), layer_read(r, "bias"),
        layer_var_find(l, "running_mean"), layer_var_find(l, "running_var"),
        layer_var_find(l, "num_batches_tracked"), r->training, l->params.momentum, l->params.eps);
}

enum status check_instance_norm(const struct layer_check *c)
{
    const struct layer_params *a = &c->layer->params;
    return a->affine ? declare_affine(c, SHAPE(a->num_features), true) : ST_OK;
}

int forward_instance_norm(const struct layer_run *r)
{
    const struct layer *l = r->layer;
    struct shape s = layer_input_shape(r);
    if (s.rank >= 0 && s.rank != 4)
        return layer_fail(r, "expected 4D input (got %dD input)", s.rank);
    if (s.rank == 4 && l->params.affine && s.dim[1] != l->params.num_features)
        return layer_fail(
            r, "expected input with %lld channels, got %s", (long long)l->params.num_features,
            TEXT(s));
    return ir_instance_norm(
        r->p, r->in[0], layer_read(r, "weight"), layer_read(r, "bias"), l->params.eps);
}

enum status check_layer_norm(const struct layer_check *c)
{
    const struct layer_params *a = &c->layer->params;
    return a->elementwise_affine ? declare_affine(c, a->normalized_shape, a->bias) : ST_OK;
}

int forward_layer_norm(const struct layer_run *r)
{
    const struct shape *wanted = &r->layer->params.normalized_shape;
    struct shape s = layer_input_shape(r);
    if (s.rank < 0)
        return IR_NONE;
    int front = s.rank - wanted->rank;
    struct shape tail = shape_of(front < 0 ? 0 : wanted->rank, s.dim + (front < 0 ? 0 : front));
    if (!shape_eq(&tail, wanted))
        return layer_fail(
            r, "given normalized_shape=%s, expected input whose last dimensions are these, got %s",
            TEXT(*wanted), TEXT(s));
    return ir_layer_norm(
        r->p, r->in[0], layer_read(r, "weight"), layer_read(r, "bias"), wanted->rank,
        r->layer->params.eps);
}

enum status check_group_norm(const struct layer_check *c)
{
    const struct layer_params *a = &c->layer->params;
    if (a->num_channels % a->num_groups != 0)
        return layer_refuse(
            c, ST_INVALID, "num_channels must be divisible by num_groups, got %lld and %lld",
            (long long)a->num_channels, (long long)a->num_groups);
    return a->affine ? declare_affine(c, SHAPE(a->num_channels), true) : ST_OK;
}

int forward_group_norm(const struct layer_run *r)
{
    const struct layer_params *a = &r->layer->params;
    struct shape s = layer_input_shape(r);
    if (s.rank >= 0 && a->affine && (s.rank < 2 || s.dim[1] != a->num_channels))
        return layer_fail(
            r, "expected input with %lld channels, got %s", (long long)a->num_channels, TEXT(s));
    return ir_group_norm(
        r->p, r->in[0], layer_read(r, "weight"), layer_read(r, "bias"), a->num_groups, a->eps);
}

enum status check_rms_norm(const struct layer_check *c)
{
    const struct layer_params *a = &c->layer->params;
    if (a->normalized_shape.rank != 1)
        return layer_refuse(
            c, ST_UNSUPPORTED, "this version only normalises the last dimension, not %s",
            TEXT(a->normalized_shape));
    return a->elementwise_affine ? declare_affine(c, a->normalized_shape, false) : ST_OK;
}

int forward_rms_norm(const struct layer_run *r)
{
    const struct layer_params *a = &r->layer->params;
    struct shape s = layer_input_shape(r);
    if (s.rank < 0)
        return IR_NONE;
    if (s.rank == 0 || s.dim[s.rank - 1] != a->normalized_shape.dim[0])
        return layer_fail(
            r, "given normalized_shape=%s, expected input whose last dimensions are these, got %s",
            TEXT(a->normalized_shape), TEXT(s));
    /* None stands for the distance of 1 to the next number. */
    double eps = a->eps < 0 ? 0x1p-23 : a->eps;
    return ir_rms_norm(r->p, r->in[0], layer_read(r, "weight"), eps);
}
