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

/* Elements from `begin` on, which is a multiple of PIECE. */
static void
fill_piece(const struct init *i, struct rng r, enum dtype t, int64_t begin, int64_t end, void *data)
{
    /* A normal number takes a whole block of four, a uniform one a quarter of it. */
    rng_seek(&r, (uint64_t)(i->kind == INIT_NORMAL ? begin : begin / 4));
    for (int64_t k = begin; k < end; k++) {
        double x = i->value;
        if (i->kind == INIT_UNIFORM)
            x = i->value * (2.0 * (double)rng_f32(&r) - 1.0);
        else if (i->kind == INIT_NORMAL)
            x = i->value * rng_normal(&r);
        bool zero = k >= i->zero_from && k - i->zero_from < i->zero_count;
        dtype_store(data, t, k, zero ? 0.0 : x);
    }
}

void init_fill(
    const struct init *i, const char *name, uint64_t seed, enum dtype t, int64_t count, void *data)
{
    enum { PIECE = 1 << 16 };
    uint64_t h = hash_name(name);
    struct rng r;
    rng_init(&r, seed, (uint32_t)h, (uint32_t)(h >> 32));
    /* Each number is a function of its place: pieces may be drawn in any order. */
    int64_t pieces = (count + PIECE - 1) / PIECE;
#pragma omp parallel for schedule(dynamic) if (pieces > 1)
    for (int64_t k = 0; k < pieces; k++) {
        int64_t begin = k * PIECE, end = begin + PIECE < count ? begin + PIECE : count;
        fill_piece(i, r, t, begin, end, data);
    }
}
