/* sampler.c - the order of an epoch. */
#include "data/sampler.h"

void sampler_permute(uint32_t *order, uint32_t n, uint64_t seed, uint32_t stream, int64_t epoch)
{
    struct rng r;
    rng_init(&r, seed, stream, (uint32_t)epoch);
    r.block = SAMPLER_BLOCK;
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = (uint32_t)rng_below(&r, i), t = order[i - 1];
        order[i - 1] = order[j];
        order[j] = t;
    }
}

struct rng sampler_rng(uint64_t seed, uint32_t stream, int64_t epoch, int64_t index)
{
    struct rng r;
    rng_init(&r, seed, stream, (uint32_t)epoch);
    r.block = (uint64_t)index * SAMPLE_BLOCKS;
    return r;
}
