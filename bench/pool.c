/* pool.c - what an allocate/free pair of the caching allocator costs, with 1 to 1,000,000 blocks
 * live. Run by hand. */
#include "mem/pool/pool.h"

#include "base/env.h"
#include "base/mem.h"
#include "base/rng.h"
#include "mem/virtual.h"

#include <stdio.h>
#include <stdlib.h>

/* Short pieces, the best of many: one that nothing else interrupted. */
enum { PIECES = 1000, PAIRS = 2000 };

struct bench {
    struct mem_virtual *device;
    struct mem_pool *pool;
    struct mem_block **live;
    size_t live_n;
    struct rng rng;
};

static struct mem_block *get(struct mem_pool *p, int64_t size_bytes)
{
    struct mem_block *b;
    struct err e;
    if (mem_pool_alloc(p, size_bytes, (struct mem_tag){.what = "bench"}, &b, &e) != ST_OK)
        abort();
    return b;
}

/* Sizes of a training step: mostly small, some of megabytes. */
static int64_t some_size(struct rng *r)
{
    uint64_t shift = rng_below(r, 100) < 90 ? rng_below(r, 6) : 6 + rng_below(r, 6);
    return (int64_t)(512 + rng_below(r, (uint64_t)512 << shift));
}

static void begin(struct bench *b, size_t live_n)
{
    *b = (struct bench){.live_n = live_n};
    b->device = mem_virtual_new(NULL);
    b->pool = mem_pool_new(mem_virtual_source(b->device));
    b->live = mem_alloc(live_n * sizeof(struct mem_block *));
    rng_init(&b->rng, 1, 0, 0);
    for (size_t i = 0; i < live_n; i++)
        b->live[i] = get(b->pool, some_size(&b->rng));
}

static void end(struct bench *b)
{
    mem_pool_free(b->pool);
    mem_virtual_free(b->device);
    mem_free(b->live);
}

/* One block comes and goes beside the live ones. */
static void pairs_same(struct bench *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        mem_pool_give(b->pool, get(b->pool, 4096 + 512 * (i & 7)));
}

/* A live block goes and one of its size comes; those that follow lie together. */
static void pairs_in_order(struct bench *b, int64_t n)
{
    size_t k = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t size_bytes = mem_block_requested_bytes(b->live[k]);
        mem_pool_give(b->pool, b->live[k]);
        b->live[k] = get(b->pool, size_bytes);
        k = k + 1 == b->live_n ? 0 : k + 1;
    }
}

/* The same of blocks anywhere: each is met for the first time in long. */
static void pairs_random(struct bench *b, int64_t n)
{
    uint64_t x = 88172645463325252u;
    for (int64_t i = 0; i < n; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        size_t k = (size_t)(x % b->live_n);
        int64_t size_bytes = mem_block_requested_bytes(b->live[k]);
        mem_pool_give(b->pool, b->live[k]);
        b->live[k] = get(b->pool, size_bytes);
    }
}

static double best_ns(struct bench *b, void (*pairs)(struct bench *b, int64_t n), int64_t n)
{
    double best = 1e30;
    for (int i = 0; i < PIECES; i++) {
        int64_t start = clock_ns();
        pairs(b, n);
        double ns = (double)(clock_ns() - start) / (double)n;
        best = ns < best ? ns : best;
    }
    return best;
}

/* Every second block goes: holes of all sizes, and a search among them. */
static void punch(struct bench *b)
{
    size_t left = 0;
    for (size_t i = 0; i < b->live_n; i++) {
        if (i % 2) {
            mem_pool_give(b->pool, b->live[i]);
            continue;
        }
        b->live[left++] = b->live[i];
    }
    b->live_n = left;
}

int main(void)
{
    printf("ns per pair, best of %d pieces; one thread, virtual device\n", PIECES);
    printf(
        "%10s %14s %14s %14s %14s\n", "live", "one block", "in order", "anywhere", "among holes");
    for (size_t live_n = 1; live_n <= 1000000; live_n *= 1000) {
        struct bench b;
        begin(&b, live_n);
        double same = best_ns(&b, pairs_same, PAIRS);
        double order = best_ns(&b, pairs_in_order, PAIRS);
        double random = best_ns(&b, pairs_random, PAIRS);
        punch(&b);
        double holes = best_ns(&b, pairs_random, PAIRS);
        printf("%10zu %14.1f %14.1f %14.1f %14.1f\n", live_n, same, order, random, holes);
        end(&b);
    }
    return 0;
}
