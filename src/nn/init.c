/* init.c - draws starting values. */
#include "nn/init.h"

#include "base/rng.h"

#include <math.h>

struct init init_fan_in(int64_t fan_in)
{
    double bound = fan_in > 0 ? 1.0 / sqrt((double)fan_in) : 0.0;
    return (struct init){.kind = INIT_UNIFORM, .value = bound};
}

struct init init_xavier(int64_t fan_in, int64_t fan_out)
{
    return (struct init){
        .kind = INIT_UNIFORM, .value = sqrt(6.0 / ((double)fan_in + (double)fan_out))};
}

void init_fill(
    const struct init *i, const char *name, uint64_t seed, enum dtype t, int64_t count, void *data)
{
    uint64_t h = hash_name(name);
    struct rng r;
    rng_init(&r, seed, (uint32_t)h, (uint32_t)(h >> 32));
    for (int64_t k = 0; k < count; k++) {
        double x = i->value;
        if (i->kind == INIT_UNIFORM)
            x = i->value * (2.0 * (double)rng_f32(&r) - 1.0);
        else if (i->kind == INIT_NORMAL)
            x = i->value * rng_normal(&r);
        bool zero = k >= i->zero_from && k - i->zero_from < i->zero_count;
        dtype_store(data, t, k, zero ? 0.0 : x);
    }
}
