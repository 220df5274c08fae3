/* thread_test.c - one pool, many threads: blocks never overlap, go from hand to hand, and all come
 * back. What the thread sanitizer is to look at (`make tsan`). */
#include "base/rng.h"
#include "mem/history.h"
#include "mem/pool/pool.h"
#include "test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define KIB ((int64_t)1 << 10)
#define MIB ((int64_t)1 << 20)

enum { THREADS = 4, SHELF = 32 };

/* Where threads leave blocks for each other. */
struct shared {
    struct mem_pool *pool;
    pthread_mutex_t lock;
    struct mem_block *shelf[SHELF];
    atomic_llong ooms;
};
struct worker {
    struct shared *s;
    uint32_t id;
    int steps;
};

/* The owner's mark at both ends: another block on the same bytes would overwrite it. */
static void sign(struct mem_block *b)
{
    uint64_t addr = mem_block_addr(b);
    char *data = mem_block_data(b);
    memcpy(data, &addr, sizeof addr);
    memcpy(data + mem_block_bytes(b) - sizeof addr, &addr, sizeof addr);
}

static void check_sign(struct mem_block *b)
{
    uint64_t addr = mem_block_addr(b), first, last;
    const char *data = mem_block_data(b);
    memcpy(&first, data, sizeof first);
    memcpy(&last, data + mem_block_bytes(b) - sizeof last, sizeof last);
    CHECK(first == addr && last == addr);
}

static struct mem_block *swap(struct shared *s, size_t k, struct mem_block *b)
{
    CHECK(pthread_mutex_lock(&s->lock) == 0);
    struct mem_block *was = s->shelf[k];
    s->shelf[k] = b;
    CHECK(pthread_mutex_unlock(&s->lock) == 0);
    return was;
}

static void look(struct shared *s, struct rng *r)
{
    struct mem_pool_stats stats;
    struct mem_holder holders[4];
    struct mem_pool_snapshot snapshot;
    switch (rng_below(r, 6)) {
    case 0:
        mem_pool_trim(s->pool);
        break;
    case 1:
        mem_pool_stats(s->pool, &stats);
        break;
    case 2:
        (void)mem_pool_holders(s->pool, holders, 4);
        break;
    case 3:
        mem_pool_reset_peaks(s->pool);
        break;
    case 4:
        mem_pool_check(s->pool);
        break;
    default:
        mem_pool_snapshot(s->pool, &snapshot);
        mem_pool_snapshot_release(&snapshot);
    }
}

static void *work(void *ctx)
{
    struct worker *w = ctx;
    struct shared *s = w->s;
    struct rng r;
    rng_init(&r, test_seed(), w->id, 0);
    for (int i = 0; i < w->steps; i++) {
        struct err e = {0};
        struct mem_block *b = NULL;
        int64_t size = rng_below(&r, 8) ? 1 + (int64_t)rng_below(&r, (uint64_t)(60 * KIB))
                                        : (int64_t)rng_below(&r, (uint64_t)(6 * MIB));
        struct mem_tag tag = {"activations", "model/fc", i};
        uint64_t stream = rng_below(&r, 3);
        enum status st = mem_pool_alloc_on(s->pool, stream, size, tag, &b, &e);
        CHECK(st == ST_OK || st == ST_OOM);
        if (st == ST_OOM)
            (void)atomic_fetch_add(&s->ooms, 1);
        if (b) {
            sign(b);
            mem_pool_use_on(s->pool, b, rng_below(&r, 3));
        }
        b = swap(s, (size_t)rng_below(&r, SHELF), b); /* somebody else's, perhaps */
        if (b)
            check_sign(b);
        mem_pool_give(s->pool, b);
        if (rng_below(&r, 50) == 0)
            look(s, &r);
    }
    return NULL;
}

static void all_at_once(struct mem_source *source, struct mem_history *h, int steps)
{
    struct shared s = {.pool = mem_pool_new(source), .lock = PTHREAD_MUTEX_INITIALIZER};
    struct worker w[THREADS];
    pthread_t t[THREADS];
    struct mem_pool_stats stats;
    if (h)
        mem_history_watch(h, 0, s.pool);
    for (uint32_t i = 0; i < THREADS; i++) {
        w[i] = (struct worker){&s, i, steps};
        CHECK(pthread_create(&t[i], NULL, work, &w[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(t[i], NULL) == 0);
    for (int i = 0; i < SHELF; i++)
        mem_pool_give(s.pool, s.shelf[i]);
    mem_pool_trim(s.pool);
    mem_pool_check(s.pool);
    mem_pool_stats(s.pool, &stats);
    CHECK_EQ(stats.active_bytes[MEM_STAT_ALL].current, 0);
    CHECK_EQ(stats.reserved_bytes[MEM_STAT_ALL].current, 0);
    CHECK_EQ(stats.num_ooms, atomic_load(&s.ooms));
    if (h)
        mem_history_unwatch(h, s.pool);
    mem_pool_free(s.pool);
    CHECK_EQ(source->held_bytes, 0);
    CHECK(source->budget_bytes == 0 || source->held_bytes_peak <= source->budget_bytes);
}

TEST(
    pool_threads, "B6: four threads on one pool: no two blocks overlap, the cap holds, all returns")
{
    struct mem_source source;
    mem_source_init_host(&source, 0);
    all_at_once(&source, NULL, 4000);
    mem_source_init_host(&source, 48 * MIB);
    all_at_once(&source, NULL, 4000);
    CHECK(source.held_bytes_peak > 20 * MIB);
}

TEST(pool_threads_watched, "T2: a history hears four threads")
{
    struct mem_source source;
    struct mem_history *h = mem_history_new(5000);
    struct mem_history_counts counts;
    (void)mem_history_device(h, &(struct mem_history_device){.name = "cpu"});
    mem_source_init_host(&source, 0);
    all_at_once(&source, h, 2000);
    mem_history_counts(h, &counts);
    CHECK_EQ(counts.events_n, 5000);
    CHECK_EQ(counts.live_blocks_n, 0);
    mem_history_free(h);
}
