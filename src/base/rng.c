/* rng.c - Philox 4x32-10 and what is drawn from it. */
#include "base/rng.h"

#include <math.h>
#include <string.h>

void rng_block(uint64_t seed, uint32_t stream, uint32_t step, uint64_t block, uint32_t out[4])
{
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32), c2 = step, c3 = stream;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

void rng_init(struct rng *r, uint64_t seed, uint32_t stream, uint32_t step)
{
    *r = (struct rng){.seed = seed, .stream = stream, .step = step};
}

void rng_seek(struct rng *r, uint64_t block)
{
    r->block = block;
    r->left = 0;
}

uint32_t rng_u32(struct rng *r)
{
    if (r->left == 0) {
        rng_block(r->seed, r->stream, r->step, r->block++, r->buf);
        r->left = 4;
    }
    return r->buf[4 - r->left--];
}

double rng_f64(struct rng *r)
{
    uint64_t hi = rng_u32(r), lo = rng_u32(r);
    return (double)((hi << 32 | lo) >> 11) * 0x1p-53;
}

float rng_f32(struct rng *r)
{
    return (float)(rng_u32(r) >> 8) * 0x1p-24f;
}

double rng_normal(struct rng *r)
{
    double u = 1.0 - rng_f64(r), v = rng_f64(r); /* u in (0, 1], so its logarithm is finite */
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

uint64_t rng_below(struct rng *r, uint64_t n)
{
    uint64_t limit = UINT64_MAX - UINT64_MAX % n; /* reject the incomplete last stretch */
    for (;;) {
        uint64_t hi = rng_u32(r), v = hi << 32 | rng_u32(r);
        if (v < limit)
            return v % n;
    }
}

uint64_t hash_bytes(const void *p, uint64_t n, uint64_t seed)
{
    const unsigned char *b = p;
    uint64_t h = 0xcbf29ce484222325u ^ seed;
    for (uint64_t i = 0; i < n; i++)
        h = (h ^ b[i]) * 0x100000001b3u;
    h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
    h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
    return h ^ (h >> 31);
}

uint64_t hash_name(const char *name)
{
    return hash_bytes(name, strlen(name), 0);
}
