/* optim_weights.c - parameters in 16 bits: masters, and rounding by chance. */
#include "backends/cpu/optim_weights.h"

#include <math.h>
#include <string.h>

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

/* Rounds x up or down, up with the chance that makes the mean x: then x has type t exactly. */
static float by_chance(float x, enum dtype t, uint32_t random)
{
    uint32_t u, drop = t == DT_BF16 ? 16 : 13;
    if (!isfinite(x))
        return x;
    if (t == DT_F16 && fabsf(x) < 0x1p-14f) /* float16's subnormal numbers are 2^-24 apart */
        return floorf(x * 0x1p24f + (float)(random >> 8) * 0x1p-24f) * 0x1p-24f;
    memcpy(&u, &x, sizeof u);
    u = (u + (random >> (32 - drop))) & ~((1u << drop) - 1);
    memcpy(&x, &u, sizeof x);
    return x;
}

void optim_weights_write(const struct optim_weights *o, int64_t i, int n, const float *x)
{
    float rounded[ND_BLOCK];
    if (o->has_master)
        nd_write(&o->master, i, n, x);
    if (o->rounds) {
        uint32_t random[ND_BLOCK];
        lanes_ew()->random(random, n, &o->chance, i);
        for (int k = 0; k < n; k++)
            rounded[k] = by_chance(x[k], o->w.dtype, random[k]);
        x = rounded;
    }
    nd_write(&o->w, i, n, x);
}
