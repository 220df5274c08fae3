/* optim_weights.c - parameters in 16 bits: masters, and rounding by chance. */
#include "backends/cpu/optim_weights.h"

void optim_weights_init(const struct kernel_args *a, struct optim_weights *o)
{
    const double *hyper = a->in[a->n_in - 2].data;
    o->has_master = a->attr->optim.master;
    o->rounds = a->attr->optim.stochastic;
    if (o->rounds)
        o->chance = (struct dropout_key){
            .seed = (uint64_t)hyper[3] | (uint64_t)hyper[4] << 32,
            .stream = a->attr->optim.stream,
            .step = (uint32_t)hyper[1]};
}

float *optim_weights_read(const struct optim_weights *o, int64_t i, int n, float *buf)
{
    const struct nd *from = o->has_master ? &o->master : &o->w;
    float *x = nd_target(from, i, buf);
    (void)nd_read(from, i, n, x);
    return x;
}

void optim_weights_write(const struct optim_weights *o, int64_t i, int n, const float *x)
{
    float rounded[ND_BLOCK];
    if (o->has_master)
        nd_write(&o->master, i, n, x);
    if (o->rounds) {
        lanes_ew()->by_chance(x, rounded, o->w.dtype, n, &o->chance, i);
        x = rounded;
    }
    nd_write(&o->w, i, n, x);
}
