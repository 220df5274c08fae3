/* sampler.h - the order of an epoch.
 *
 * Random numbers of a loader share one (seed, stream, step = epoch): the permutation uses blocks
 * from SAMPLER_BLOCK up, sample i's transform the blocks from i * SAMPLE_BLOCKS, so no two uses
 * meet.
 */
#ifndef DATA_SAMPLER_H
#define DATA_SAMPLER_H

#include "base/rng.h"

#include <stdint.h>

#define SAMPLER_BLOCK ((uint64_t)1 << 62)
#define SAMPLE_BLOCKS ((uint64_t)1 << 20)

/* A permutation of 0..n-1 (Fisher-Yates, from the end), a function of (seed, stream, epoch). */
void sampler_permute(uint32_t *order, uint32_t n, uint64_t seed, uint32_t stream, int64_t epoch);
/* The generator for the transform of sample `index` in `epoch`. */
struct rng sampler_rng(uint64_t seed, uint32_t stream, int64_t epoch, int64_t index);

#endif
