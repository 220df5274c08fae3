/* rng.h - counter-based random numbers (Philox 4x32-10).
 *
 * Source: Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
 * A number is a pure function of (seed, stream, step, element): nothing is stored, recomputation
 * repeats it, and threads need no order. Streams keep uses apart (one per dropout layer, one per
 * initialiser, one per loader).
 */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdint.h>

/* Four 32-bit numbers for block `block` of (seed, stream, step). */
void rng_block(uint64_t seed, uint32_t stream, uint32_t step, uint64_t block, uint32_t out[4]);

/* A sequential reader over one (seed, stream, step). */
struct rng {
    uint64_t seed, block;
    uint32_t stream, step, buf[4];
    unsigned left;
};
void rng_init(struct rng *r, uint64_t seed, uint32_t stream, uint32_t step);
void rng_seek(struct rng *r, uint64_t block); /* goes on with the first number of that block */
uint32_t rng_u32(struct rng *r);
double rng_f64(struct rng *r);                 /* uniform in [0, 1), 53 bits */
float rng_f32(struct rng *r);                  /* uniform in [0, 1), 24 bits */
double rng_normal(struct rng *r);              /* mean 0, standard deviation 1 (Box-Muller) */
uint64_t rng_below(struct rng *r, uint64_t n); /* uniform in [0, n), without bias; n > 0 */

/* 64-bit hash of a name: streams and seeds from node ids (FNV-1a, finished by a mixer). */
uint64_t hash_name(const char *name);
uint64_t hash_bytes(const void *p, uint64_t n, uint64_t seed);

#endif
