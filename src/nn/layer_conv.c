/* layer_conv.c - layers with a weight and a bias: convolutions, Linear, Embedding. */
#include "ir/build.h"
#include "nn/layer.h"

/* [a, b, kernel...] */
static struct shape kernel_shape(const struct layer *l, int64_t a, int64_t b)
{
    const int64_t *k = l->params.kernel_size;
    return l->type->spatial == 2 ? SHAPE(a, b, k[0], k[1]) : SHAPE(a, b, k[1]);
}

/* The weights that meet in one output of `weight`; PyTorch counts dimension 1 times the kernel, for
 * transposed convolutions too. */
static struct init fan_of(const struct shape *weight)
{
    struct shape rest = *weight;
    rest.dim[0] = 1;
    int64_t n = shape_count(&rest);
    return init_fan_in(n < 0 ? 0 : n);
}

static enum status declare(const struct layer_check *c, struct shape weight, int64_t outputs)
{
    struct init init = fan_of(&weight);
    TRY(layer_declare(c, weight, init, "weight"));
    if (c->layer->params.bias)
        return layer_declare(c, SHAPE(outputs), init, "bias");
    return ST_OK;
}

static enum status groups_check(const struct layer_check *c)
{
    const struct layer_params *a = &c->layer->params;
    if (a->in_channels % a->groups != 0)
        return layer_refuse(
            c, ST_INVALID, "in_channels must be divisible by groups, got %lld and %lld",
            (long long)a->in_channels, (long long)a->groups);
    if (a->out_channels % a->groups != 0)
        return layer_refuse(
            c, ST_INVALID, "out_channels must be divisible by groups, got %lld and %lld",
            (long long)a->out_channels, (long long)a->groups);
    return ST_OK;
}

enum status check_conv(const struct layer_check *c)
{
    const struct layer_params *a = &c->layer->params;
    TRY(groups_check(c));
    if (a->padding.same && (a->stride[0] != 1 || a->stride[1] != 1))
        return layer_refuse(
            c, ST_INVALID, "padding='same' is not supported for strided convolutions");
    return declare(
        c, kernel_shape(c->layer, a->out_channels, a->in_channels / a->groups), a->out_channels);
}

enum status check_conv_transpose(const struct layer_check *c)
{
    const struct layer_params *a = &c->layer->params;
    TRY(groups_check(c));
    for (int i = 0; i < 2; i++)
        if (a->output_padding[i] >= a->stride[i] && a->output_padding[i] >= a->dilation[i])
            return layer_refuse(
                c, ST_INVALID,
                "output padding must be smaller than either stride or dilation, but got %lld, "
                "%lld and %lld",
                (long long)a->output_padding[i], (long long)a->stride[i],
                (long long)a->dilation[i]);
    return declare(
        c, kernel_shape(c->layer, a->in_channels, a->out_channels / a->groups), a->out_channels);
}

static struct conv_attr attr_of(const struct layer *l)
{
    const struct layer_params *a = &l->params;
    struct conv_attr attr = {.groups = a->groups, .spatial = l->type->spatial};
    for (int i = 0; i < 2; i++) {
        /* What does not divide evenly goes to the far side. */
        int64_t total = a->dilation[i] * (a->kernel_size[i] - 1);
        attr.stride[i] = a->stride[i];
        attr.dilation[i] = a->dilation[i];
        attr.pad_low[i] = a->padding.same ? total / 2 : a->padding.n[i];
        attr.pad_high[i] = a->padding.same ? total - total / 2 : a->padding.n[i];
    }
    return attr;
}

int forward_conv(const struct layer_run *r)
{
    struct conv_attr attr = attr_of(r->layer);
    return ir_conv(r->p, r->in[0], layer_read(r, "weight"), layer_read(r, "bias"), &attr);
}

int forward_conv_transpose(const struct layer_run *r)
{
    struct conv_attr attr = attr_of(r->layer);
    return ir_conv_transpose(
        r->p, r->in[0], layer_read(r, "weight"), layer_read(r, "bias"), &attr,
        r->layer->params.output_padding);
}

enum status check_linear(const struct layer_check *c)
{
    const struct layer_params *a = &c->layer->params;
    return declare(c, SHAPE(a->out_features, a->in_features), a->out_features);
}

int forward_linear(const struct layer_run *r)
{
    struct shape s = layer_input_shape(r);
    int64_t wanted = r->layer->params.in_features;
    if (s.rank == 0 || (s.rank > 0 && s.dim[s.rank - 1] != wanted))
        return layer_fail(
            r, "expected %lld features in the last dimension of the input, got %s",
            (long long)wanted, shape_text(&s, (char[192]){0}, 192));
    struct linear l = {
        layer_var_find(r->layer, "weight"), layer_var_find(r->layer, "bias"), false, r->training,
        r->rng};
    return nn_linear(r->model, r->p, r->in[0], &l);
}

enum status check_embedding(const struct layer_check *c)
{
    struct layer_params *a = &c->layer->params;
    struct init init = {.kind = INIT_NORMAL, .value = 1};
    if (a->padding_idx != INT64_MIN) {
        if (a->padding_idx >= a->num_embeddings || a->padding_idx < -a->num_embeddings)
            return layer_refuse(
                c, ST_INVALID, "padding_idx must be within num_embeddings, got %lld for %lld",
                (long long)a->padding_idx, (long long)a->num_embeddings);
        a->padding_idx += a->padding_idx < 0 ? a->num_embeddings : 0;
        if (a->num_embeddings <= INT64_MAX / a->embedding_dim) {
            init.zero_from = a->padding_idx * a->embedding_dim;
            init.zero_count = a->embedding_dim;
        }
    }
    return layer_declare(c, SHAPE(a->num_embeddings, a->embedding_dim), init, "weight");
}

int forward_embedding(const struct layer_run *r)
{
    int64_t row = r->layer->params.padding_idx;
    return ir_embedding(r->p, r->in[0], layer_read(r, "weight"), row == INT64_MIN ? -1 : row);
}
