/* size.c - rules of size: from a request to its block and its segment. */
#include "mem/pool/pool_int.h"

static int log2_floor(int64_t n)
{
    return 63 - __builtin_clzll((unsigned long long)n);
}

/* Up to the next of `divisions` steps between two powers of two. */
static int64_t round_division(int64_t n, int64_t divisions)
{
    int64_t power = (int64_t)1 << log2_floor(n);
    if (power == n)
        return n;
    int64_t step = power >> log2_floor(divisions);
    return step ? round_up(n, step) : 2 * power;
}

int64_t mem_pool_round_size(const struct mem_pool_conf *c, int64_t size_bytes)
{
    if (size_bytes < BLOCK_MIN_BYTES)
        return BLOCK_MIN_BYTES;
    int i = log2_floor(size_bytes) - 20;
    i = i < 0 ? 0 : i >= MEM_POOL_DIVISIONS_N ? MEM_POOL_DIVISIONS_N - 1 : i;
    int64_t divisions = c->roundup_power2_divisions[i];
    if (divisions > 1 && size_bytes > BLOCK_MIN_BYTES * divisions)
        return round_division(size_bytes, divisions);
    return round_up(size_bytes, BLOCK_MIN_BYTES);
}

int64_t mem_pool_segment_size(const struct mem_pool_conf *c, int64_t rounded_bytes)
{
    if (rounded_bytes <= SMALL_MAX_BYTES)
        return SMALL_SEGMENT_BYTES;
    if (rounded_bytes < LARGE_OWN_BYTES)
        return c->large_segment_bytes;
    return round_up(rounded_bytes, LARGE_ROUND_BYTES);
}

bool mem_pool_is_small(int64_t rounded_bytes)
{
    return rounded_bytes <= SMALL_MAX_BYTES;
}
