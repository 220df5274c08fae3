/* layer_pool.c - pooling layers. */
#include "ir/build.h"
#include "nn/layer.h"

static enum status padding_check(const struct layer_check *c)
{
    const struct layer_params *a = &c->layer->params;
    for (int i = 0; i < 2; i++)
        if (a->padding.n[i] > a->kernel_size[i] / 2)
            return layer_refuse(
                c, ST_INVALID,
                "pad should be at most half of kernel size, but got padding %lld and kernel_size "
                "%lld",
                (long long)a->padding.n[i], (long long)a->kernel_size[i]);
    return ST_OK;
}

static struct pool_attr attr_of(const struct layer *l)
{
    const struct layer_params *a = &l->params;
    struct pool_attr attr = {
        .spatial = l->type->spatial,
        .ceil_mode = a->ceil_mode,
        .exclude_pad = !a->count_include_pad,
        .divisor = a->divisor_override > 0 ? a->divisor_override : 0};
    for (int i = 0; i < 2; i++) {
        attr.kernel[i] = a->kernel_size[i];
        attr.stride[i] = a->stride[i] ? a->stride[i] : a->kernel_size[i];
        attr.pad[i] = a->padding.n[i];
        attr.dilation[i] = a->dilation[i] ? a->dilation[i] : 1;
    }
    return attr;
}

enum status check_max_pool(const struct layer_check *c)
{
    return padding_check(c);
}

int forward_max_pool(const struct layer_run *r)
{
    struct pool_attr attr = attr_of(r->layer);
    attr.exclude_pad = false; /* padding never wins a maximum */
    return ir_max_pool(r->p, r->in[0], &attr);
}

enum status check_avg_pool(const struct layer_check *c)
{
    const struct layer *l = c->layer;
    if (l->params.divisor_override != INT64_MIN && l->type->spatial == 1)
        return layer_refuse(c, ST_INVALID, "unexpected parameter \"divisor_override\"");
    if (l->params.divisor_override != INT64_MIN && l->params.divisor_override < 1)
        return layer_refuse(
            c, ST_INVALID, "parameter \"divisor_override\" must be null or at least 1, not %lld",
            (long long)l->params.divisor_override);
    return padding_check(c);
}

int forward_avg_pool(const struct layer_run *r)
{
    struct pool_attr attr = attr_of(r->layer);
    return ir_avg_pool(r->p, r->in[0], &attr);
}

int forward_adaptive_avg_pool(const struct layer_run *r)
{
    return ir_adaptive_avg_pool(
        r->p, r->in[0], r->layer->type->spatial, r->layer->params.output_size);
}

int forward_adaptive_max_pool(const struct layer_run *r)
{
    return ir_adaptive_max_pool(
        r->p, r->in[0], r->layer->type->spatial, r->layer->params.output_size);
}
