/* layer_misc.c - layers without weights of note: activations, dropout, views, merges. */
#include "ir/build.h"
#include "nn/layer.h"

/* Families whose parameters say all there is to check. */
#define UNCHECKED(family)                                                                          \
    enum status check_##family(const struct layer_check *c)                                        \
    {                                                                                              \
        (void)c;                                                                                   \
        return ST_OK;                                                                              \
    }
UNCHECKED(activation)
UNCHECKED(softmax)
UNCHECKED(flatten)
UNCHECKED(reshape)
UNCHECKED(select)
UNCHECKED(merge)
UNCHECKED(mean)
UNCHECKED(concat)
UNCHECKED(stack)
UNCHECKED(adaptive_avg_pool)
UNCHECKED(adaptive_max_pool)

/* ---- activations ---- */

/* PyTorch's defaults: slope 0.01 and alpha 1. */
int forward_activation(const struct layer_run *r)
{
    enum opcode code = r->layer->type->code;
    struct ew_attr attr = {.a = code == OP_LEAKY_RELU ? 0.01 : code == OP_ELU ? 1.0 : 0.0};
    return ir_unary_attr(r->p, code, r->in[0], attr);
}

enum status check_prelu(const struct layer_check *c)
{
    return layer_declare(c, SHAPE(1), init_constant(0.25), "weight");
}

int forward_prelu(const struct layer_run *r)
{
    return ir_prelu(r->p, r->in[0], layer_read(r, "weight"));
}

int forward_softmax(const struct layer_run *r)
{
    return ir_softmax(r->p, r->in[0], -1);
}

/* ---- dropout ---- */

enum status check_dropout(const struct layer_check *c)
{
    return layer_probability(c, c->layer->params.p);
}

/* Each layer draws from a stream of its own, named after it. */
int forward_dropout(const struct layer_run *r)
{
    return layer_dropout(r, r->in[0], r->layer->params.p, "");
}

/* ---- views ---- */

static bool dim_fits(int64_t dim, int rank)
{
    int n = rank > 0 ? rank : 1;
    return dim >= -n && dim < n;
}

static int dim_fail(const struct layer_run *r, int64_t dim, int rank)
{
    int n = rank > 0 ? rank : 1;
    return layer_fail(
        r, "dimension out of range (expected to be in range of [%d, %d], but got %lld)", -n, n - 1,
        (long long)dim);
}

int forward_flatten(const struct layer_run *r)
{
    int64_t from = r->layer->params.start_dim, to = r->layer->params.end_dim;
    struct shape s = layer_input_shape(r);
    if (s.rank < 0)
        return IR_NONE;
    if (!dim_fits(from, s.rank) || !dim_fits(to, s.rank))
        return dim_fail(r, dim_fits(from, s.rank) ? to : from, s.rank);
    return ir_flatten(r->p, r->in[0], (int)from, (int)to);
}

/* -1 is worked out from one sample, so that a batch of 0 has a shape too. */
int forward_reshape(const struct layer_run *r)
{
    struct shape s = layer_input_shape(r), sample = r->layer->params.shape, to;
    if (s.rank < 0)
        return IR_NONE;
    if (s.rank == 0)
        return layer_fail(r, "the input has no batch dimension");
    struct shape old = shape_of(s.rank - 1, s.dim + 1);
    int64_t count = shape_count(&old);
    int open = -1;
    to = (struct shape){.rank = sample.rank + 1};
    to.dim[0] = s.dim[0];
    for (int i = 0; i < sample.rank; i++) {
        if (sample.dim[i] < 0) {
            open = i;
            sample.dim[i] = 1;
        }
    }
    int64_t known = shape_count(&sample);
    if (open >= 0 && known > 0)
        sample.dim[open] = count / known;
    if (known < 0 || shape_count(&sample) != count)
        return layer_fail(
            r, "shape %s is invalid for a sample of shape %s",
            shape_text(&r->layer->params.shape, (char[192]){0}, 192),
            shape_text(&old, (char[192]){0}, 192));
    for (int i = 0; i < sample.rank; i++)
        to.dim[i + 1] = sample.dim[i];
    return ir_reshape(r->p, r->in[0], to);
}

int forward_select(const struct layer_run *r)
{
    struct shape s = layer_input_shape(r);
    int64_t dim = r->layer->params.dim;
    if (s.rank < 0)
        return IR_NONE;
    if (s.rank == 0 || !dim_fits(dim, s.rank))
        return dim_fail(r, dim, s.rank);
    return ir_select(r->p, r->in[0], (int)dim, r->layer->params.index);
}

/* ---- merges ---- */

int forward_merge(const struct layer_run *r)
{
    int x = r->in[0];
    for (int i = 1; i < r->n_in; i++)
        x = ir_binary(r->p, r->layer->type->code, x, r->in[i]);
    return x;
}

int forward_mean(const struct layer_run *r)
{
    int x = r->in[0];
    for (int i = 1; i < r->n_in; i++)
        x = ir_binary(r->p, OP_ADD, x, r->in[i]);
    return ir_affine(r->p, x, 1.0 / r->n_in, 0);
}

int forward_concat(const struct layer_run *r)
{
    struct shape s = layer_input_shape(r);
    int64_t dim = r->layer->params.dim;
    if (s.rank >= 0 && !dim_fits(dim, s.rank))
        return dim_fail(r, dim, s.rank);
    return ir_concat(r->p, r->in, r->n_in, (int)dim);
}

int forward_stack(const struct layer_run *r)
{
    struct shape s = layer_input_shape(r);
    int64_t dim = r->layer->params.dim;
    if (s.rank >= 0 && !dim_fits(dim, s.rank + 1))
        return dim_fail(r, dim, s.rank + 1);
    return ir_stack(r->p, r->in, r->n_in, (int)dim);
}
