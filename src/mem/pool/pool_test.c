/* pool_test.c - the caching allocator: sizes, splitting, merging, budgets. */
#include "base/mem.h"
#include "base/rng.h"
#include "mem/pool/pool.h"
#include "test.h"

#include <string.h>

#define KIB ((int64_t)1 << 10)
#define MIB ((int64_t)1 << 20)

static const struct mem_tag tag = {"test", "node-1", 3};

static struct mem_pool_stats stats_of(struct mem_pool *p)
{
    struct mem_pool_stats s;
    mem_pool_stats(p, &s);
    return s;
}

static struct mem_block *get(struct mem_pool *p, int64_t size)
{
    struct err e = {0};
    struct mem_block *b = NULL;
    CHECK_OK(mem_pool_alloc(p, size, tag, &b, &e), &e);
    mem_pool_check(p);
    return b;
}

static void give(struct mem_pool *p, struct mem_block *b)
{
    mem_pool_give(p, b);
    mem_pool_check(p);
}

TEST(
    pool_sizes,
    "requests are rounded to 512 bytes and segments are 2 MiB, 20 MiB or their own size")
{
    static const struct {
        int64_t request, block, segment;
    } rows[] = {
        {1, 512, 2 * MIB},
        {511, 512, 2 * MIB},
        {512, 512, 2 * MIB},
        {513, 1024, 2 * MIB},
        {MIB, MIB, 2 * MIB},
        {MIB + 1, MIB + 512, 20 * MIB},
        {10 * MIB - 512, 10 * MIB - 512, 20 * MIB},
        {10 * MIB - 1, 10 * MIB, 10 * MIB},
        {10 * MIB, 10 * MIB, 10 * MIB},
        {12 * MIB - 512, 12 * MIB, 12 * MIB},     /* the rest is too small to split off */
        {12 * MIB + 1, 12 * MIB + 512, 14 * MIB}, /* 2 MiB - 512 are split off */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct mem_source source;
        mem_source_init_host(&source, 0);
        struct mem_pool *p = mem_pool_new(&source);
        struct mem_block *b = get(p, rows[i].request);
        CHECK_EQ(source.held_bytes, rows[i].segment);
        CHECK_EQ(mem_block_bytes(b), rows[i].block);
        CHECK(mem_block_data(b));
        memset(mem_block_data(b), 1, (size_t)rows[i].request);
        mem_pool_free(p);
        CHECK_EQ(source.held_bytes, 0);
    }
}

TEST(pool_split_and_join, "a large block is split above 1 MiB of rest, a small one from 512 bytes")
{
    struct mem_source source;
    mem_source_init_host(&source, 0);
    struct mem_pool *p = mem_pool_new(&source);
    struct mem_block *a = get(p, 19 * MIB - 512), *b; /* own segment of 20 MiB, rest 1 MiB + 512 */
    CHECK_EQ(mem_block_bytes(a), 19 * MIB - 512);
    give(p, a);
    a = get(p, 19 * MIB); /* rest is 1 MiB exactly: not split */
    CHECK_EQ(mem_block_bytes(a), 20 * MIB);
    CHECK_EQ(stats_of(p).requested_bytes[MEM_STAT_ALL].current, 19 * MIB);
    give(p, a);
    CHECK_EQ(stats_of(p).segment[MEM_STAT_ALL].current, 1);

    a = get(p, MIB);
    b = get(p, MIB - 512);
    CHECK_EQ(stats_of(p).segment[MEM_STAT_ALL].current, 2); /* one small segment holds both */
    struct mem_block *c = get(p, 512);
    CHECK_EQ(stats_of(p).segment[MEM_STAT_ALL].current, 2);
    CHECK((char *)mem_block_data(c) == (char *)mem_block_data(a) + 2 * MIB - 512);
    give(p, a);
    give(p, c);
    give(p, b); /* joins both sides */
    mem_pool_trim(p);
    CHECK_EQ(source.held_bytes, 0);
    mem_pool_free(p);
}

TEST(pool_best_fit, "the smallest free block that is large enough is used; freed ones are reused")
{
    struct mem_source source;
    mem_source_init_host(&source, 0);
    struct mem_pool *p = mem_pool_new(&source);
    struct mem_block *b[7];
    static const int64_t sizes[7] = {64 * KIB, 512, 16 * KIB, 512, 32 * KIB, 512, 1024};
    for (int i = 0; i < 7; i++)
        b[i] = get(p, sizes[i]);
    void *fit = mem_block_data(b[4]);
    give(p, b[0]);
    give(p, b[2]);
    give(p, b[4]);
    b[4] = get(p, 20 * KIB); /* 64 and 32 KiB are free: 32 fits best */
    CHECK(mem_block_data(b[4]) == fit);
    CHECK_EQ(stats_of(p).segment[MEM_STAT_ALL].current, 1);
    CHECK(mem_block_data(get(p, 0)) == NULL);
    mem_pool_free(p);
}

TEST(pool_oom, "above its budget the pool answers out of memory, with figures and holders")
{
    struct mem_source source;
    struct err e = {0};
    struct mem_block *big = NULL;
    mem_source_init_host(&source, 40 * MIB);
    struct mem_pool *p = mem_pool_new(&source);
    struct mem_block *a = get(p, 20 * MIB), *cached = get(p, 16 * MIB);
    give(p, cached);
    struct mem_pool_stats was = stats_of(p);
    CHECK_EQ(mem_pool_alloc(p, 22 * MIB, tag, &big, &e), ST_OOM);
    mem_pool_check(p);
    CHECK(strstr(e.text, "22.0 MiB") && strstr(e.text, "cpu"));
    CHECK(strstr(e.detail, "40.0 MiB") && strstr(e.detail, "test of node \"node-1\": 20.0 MiB"));
    CHECK_STR(e.node, "node-1");
    CHECK_EQ(
        stats_of(p).allocated_bytes[MEM_STAT_ALL].current,
        was.allocated_bytes[MEM_STAT_ALL].current);
    CHECK_EQ(stats_of(p).num_ooms, 1);
    CHECK_EQ(source.held_bytes, 20 * MIB); /* the cached segment went back */
    big = get(p, 18 * MIB);
    CHECK_EQ(mem_pool_alloc(p, INT64_MAX, tag, &a, &e), ST_OOM);
    mem_pool_free(p);
}

/* A random run of `steps`; false when the pool ran out of memory. */
static bool random_run(struct mem_pool *p, uint64_t seed, int steps)
{
    enum { SLOTS = 40 };
    struct mem_block *slot[SLOTS] = {0};
    struct rng r;
    bool ok = true;
    rng_init(&r, seed, 0, 0);
    for (int i = 0; i < steps && ok; i++) {
        size_t k = (size_t)rng_below(&r, SLOTS);
        int64_t size = (int64_t)rng_below(&r, (uint64_t)1 << (9 + rng_below(&r, 14)));
        struct err e = {0};
        mem_pool_give(p, slot[k]);
        mem_pool_check(p);
        slot[k] = NULL;
        enum status st = mem_pool_alloc(p, size, tag, &slot[k], &e);
        mem_pool_check(p);
        CHECK(st == ST_OK || (st == ST_OOM && e.status == ST_OOM));
        ok = st == ST_OK;
        char *data = mem_block_data(slot[k]); /* ends of live blocks keep what was written */
        if (ok && size)
            data[0] = data[size - 1] = (char)k;
        for (size_t j = 0; j < SLOTS; j++)
            if (slot[j])
                CHECK(((char *)mem_block_data(slot[j]))[0] == (char)j);
    }
    for (size_t k = 0; k < SLOTS; k++)
        mem_pool_give(p, slot[k]);
    mem_pool_check(p);
    CHECK_EQ(stats_of(p).allocated_bytes[MEM_STAT_ALL].current, 0);
    return ok;
}

TEST(
    pool_until_it_fits,
    "every budget that is too small is out of memory; nothing leaks; then it fits")
{
    struct mem_source source;
    mem_source_init_host(&source, 0);
    struct mem_pool *p = mem_pool_new(&source);
    CHECK(random_run(p, test_seed(), 600));
    int64_t enough = stats_of(p).reserved_bytes[MEM_STAT_ALL].peak;
    mem_pool_free(p);
    int failures = 0;
    for (int64_t budget = 2 * MIB;; budget += 2 * MIB, failures++) {
        mem_source_init_host(&source, budget);
        p = mem_pool_new(&source);
        bool ok = random_run(p, test_seed(), 600);
        CHECK(source.held_bytes_peak <= budget);
        mem_pool_free(p);
        CHECK_EQ(source.held_bytes, 0);
        CHECK(budget < enough || ok); /* what sufficed without a limit suffices as a limit */
        if (ok)
            break;
    }
    CHECK(failures > 1);
}

TEST(pool_repeats, "the same requests give the same figures, wherever segments are mapped")
{
    struct mem_source source;
    struct mem_pool_stats first = {0};
    for (int i = 0; i < 2; i++) {
        mem_source_init_host(&source, 0);
        struct mem_pool *p = mem_pool_new(&source);
        CHECK(random_run(p, 7, 400));
        if (i == 0)
            first = stats_of(p);
        struct mem_pool_stats now = stats_of(p);
        CHECK(memcmp(&first, &now, sizeof first) == 0);
        mem_pool_free(p);
    }
}

/* Calls the pool with every sequence of up to 6 operations over three sizes and three slots. */
static void model(struct mem_pool *p, struct mem_block **slot, int depth)
{
    static const int64_t sizes[] = {1 * MIB, 512, 3 * MIB};
    if (depth == 0)
        return;
    for (int k = 0; k < 3; k++) {
        if (slot[k]) {
            /* Free it, go on from there, and take the like again on the way back. */
            int64_t size = mem_block_bytes(slot[k]);
            give(p, slot[k]);
            slot[k] = NULL;
            model(p, slot, depth - 1);
            slot[k] = get(p, size);
            continue;
        }
        for (int s = 0; s < 3; s++) {
            slot[k] = get(p, sizes[s]);
            model(p, slot, depth - 1);
            give(p, slot[k]);
            slot[k] = NULL;
        }
    }
}

TEST(pool_model_check, "every sequence of six calls over three sizes keeps the invariants")
{
    struct mem_source source;
    struct mem_block *slot[3] = {0};
    mem_source_init_host(&source, 0);
    struct mem_pool *p = mem_pool_new(&source);
    model(p, slot, 6);
    CHECK_EQ(stats_of(p).allocated_bytes[MEM_STAT_ALL].current, 0);
    mem_pool_trim(p);
    CHECK_EQ(source.held_bytes, 0);
    mem_pool_free(p);
}
