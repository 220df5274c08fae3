/* rules_test.c - PyTorch's rules one by one: sizes, limits, order of attempts, streams, pools. */
#include "base/mem.h"
#include "base/rng.h"
#include "mem/pool/pool_support.h"
#include "test.h"

#include <pthread.h>
#include <string.h>

TEST(pool_size_table, "A4 requests have the rounding, the pool and the segment of PyTorch's table")
{
    static const struct {
        int64_t request, rounded, segment;
        bool small;
    } rows[] = {
        {1, 512, 2 * MIB, true},
        {511, 512, 2 * MIB, true},
        {512, 512, 2 * MIB, true},
        {513, 1024, 2 * MIB, true},
        {MIB, MIB, 2 * MIB, true},
        {MIB + 1, MIB + 512, 20 * MIB, false},
        {10 * MIB - 1, 10 * MIB, 10 * MIB, false},
        {10 * MIB - 512, 10 * MIB - 512, 20 * MIB, false},
        {10 * MIB, 10 * MIB, 10 * MIB, false},
        {12 * MIB + 1, 12 * MIB + 512, 14 * MIB, false},
    };
    struct mem_pool_conf c;
    mem_pool_conf_init(&c);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int64_t rounded = mem_pool_round_size(&c, rows[i].request);
        CHECK_EQ(rounded, rows[i].rounded);
        CHECK_EQ(mem_pool_is_small(rounded), rows[i].small);
        CHECK_EQ(mem_pool_segment_size(&c, rounded), rows[i].segment);
    }
}

TEST(pool_division_rounding, "roundup_power2_divisions rounds between powers of two, by interval")
{
    struct mem_pool_conf c;
    struct err e = {0};
    mem_pool_conf_init(&c);
    CHECK_OK(mem_pool_conf_parse(&c, "roundup_power2_divisions:4", NULL, &e), &e);
    CHECK_EQ(mem_pool_round_size(&c, 5200), 6144);
    CHECK_EQ(mem_pool_round_size(&c, 2048), 2048); /* up to 512 * 4 untouched */
    CHECK_EQ(mem_pool_round_size(&c, 2047), 2048);
    CHECK_EQ(mem_pool_round_size(&c, 2049), 2560);
    CHECK_EQ(mem_pool_round_size(&c, 4096), 4096); /* a power of two */
    CHECK_EQ(mem_pool_round_size(&c, 1200 * MIB), 1280 * MIB);
    CHECK_OK(
        mem_pool_conf_parse(&c, "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", NULL, &e), &e);
    CHECK_EQ(mem_pool_round_size(&c, 5200), 5632);
    CHECK_EQ(mem_pool_round_size(&c, 300 * MIB), 300 * MIB);
    CHECK_EQ(mem_pool_round_size(&c, 600 * MIB), 768 * MIB);
    CHECK_EQ(mem_pool_round_size(&c, 1100 * MIB), 1280 * MIB);
    CHECK_EQ(mem_pool_round_size(&c, 2100 * MIB), 2304 * MIB);
}

TEST(pool_split_thresholds, "small blocks split from 512 bytes of rest, large above 1 MiB")
{
    struct world w;
    world_begin(&w, NULL, NULL);
    struct mem_block *a = world_get(&w, MIB), *b = world_get(&w, MIB - 512);
    struct mem_block *c = world_get(&w, 512); /* the last 512 of the segment */
    CHECK_EQ(mem_block_addr(c), mem_block_addr(a) + (uint64_t)(2 * MIB - 512));
    world_give(&w, b); /* MIB - 512 are free: exactly enough, nothing is left */
    b = world_get(&w, MIB - 512);
    CHECK_EQ(mem_block_bytes(b), MIB - 512);
    world_give(&w, b);
    b = world_get(&w, MIB - 1024); /* 512 are left and split off */
    CHECK_EQ(mem_block_bytes(b), MIB - 1024);

    struct mem_block *l = world_get(&w, 19 * MIB); /* segment of 20: rest of 1 MiB stays with it */
    CHECK_EQ(mem_block_bytes(l), 20 * MIB);
    world_give(&w, l);
    l = world_get(&w, 19 * MIB - 512);
    CHECK_EQ(mem_block_bytes(l), 19 * MIB - 512);
    world_end(&w);
}

TEST(
    pool_max_split_size,
    "max_split_size keeps big blocks for big requests, and those from much bigger blocks")
{
    struct world w;
    world_begin(&w, NULL, "max_split_size_mb:40");
    struct mem_block *big = world_get(&w, 80 * MIB);
    world_give(&w, big); /* 80 cached */
    world_get(&w, 40 * MIB - 512);
    CHECK_EQ(world_reserved(&w), 120 * MIB); /* below the limit: not from the 80 */
    world_get(&w, 60 * MIB);                 /* 80 >= 60 + 20: too much would be lost */
    CHECK_EQ(world_reserved(&w), 180 * MIB);
    struct mem_block *b = world_get(&w, 60 * MIB + 512);
    CHECK_EQ(world_reserved(&w), 180 * MIB);
    CHECK_EQ(mem_block_bytes(b), 80 * MIB); /* whole, not split */
    struct mem_pool_stats s = world_stats(&w);
    CHECK_EQ(s.oversize_allocations.current, 3); /* 80, 60, 40 with its slack */
    CHECK_EQ(s.oversize_segments.current, 3);    /* and the segment of 40 */
    CHECK_EQ(s.max_split_size, 40 * MIB);
    world_end(&w);
}

TEST(
    pool_order_of_attempts,
    "no room: oversize blocks go back first, then everything unused with one retry, then OOM")
{
    struct world w;
    world_begin(
        &w, &(struct mem_virtual_options){.capacity_bytes = 100 * MIB}, "max_split_size_mb:20");
    struct mem_block *a = world_get(&w, 30 * MIB), *b = world_get(&w, 40 * MIB);
    struct mem_block *c = world_get(&w, 12 * MIB);
    world_give(&w, a);
    world_give(&w, c);
    world_mark(&w);
    a = world_get(&w, 46 * MIB); /* 18 free: 30 goes back, which is not 46, but flushing is */
    CHECK_STR(
        world_events(&w), "segment_free 31457280, segment_free 12582912, segment_alloc 48234496, "
                          "alloc 48234496");
    CHECK_EQ(world_stats(&w).num_alloc_retries, 1);
    world_give(&w, a);
    world_mark(&w);
    a = world_get(
        &w, 24 * MIB); /* 14 free; the block of 46 is too big for 24: it goes back alone */
    CHECK_STR(world_events(&w), "segment_free 48234496, segment_alloc 25165824, alloc 25165824");
    CHECK_EQ(world_stats(&w).num_alloc_retries, 1);
    CHECK(!world_try(&w, 60 * MIB));
    struct mem_pool_stats s = world_stats(&w);
    CHECK_EQ(s.num_ooms, 1);
    CHECK_EQ(s.num_alloc_retries, 2);
    CHECK_EQ(s.num_sync_all_streams, 2);
    CHECK_STR(world_events(&w), "oom 62914560");
    world_give(&w, b);
    world_end(&w);
}

TEST(pool_flush_unsplit, "a flush gives back whole free segments only, large ones first")
{
    struct world w;
    world_begin(&w, NULL, NULL);
    struct mem_block *s1 = world_get(&w, 512), *s2 = world_get(&w, 1024);
    struct mem_block *l1 = world_get(&w, 2 * MIB), *l2 = world_get(&w, 30 * MIB);
    world_give(&w, s1);
    world_give(&w, l2);
    world_give(&w, l1);
    world_mark(&w);
    mem_pool_trim(w.pool);
    CHECK_STR(world_events(&w), "segment_free 20971520, segment_free 31457280");
    CHECK_EQ(world_reserved(&w), 2 * MIB);
    world_give(&w, s2);
    mem_pool_trim(w.pool);
    CHECK_EQ(world_reserved(&w), 0);
    world_end(&w);
}

TEST(
    pool_fraction,
    "the fraction of a device is a limit on what is reserved; the device is not asked")
{
    struct world w;
    world_begin(
        &w, &(struct mem_virtual_options){.capacity_bytes = 100 * MIB},
        "per_process_memory_fraction:0.5");
    struct mem_block *a = world_get(&w, 40 * MIB);
    int64_t asked = mem_virtual_calls(w.device).take_n;
    CHECK(!world_try(&w, 12 * MIB));
    CHECK_EQ(mem_virtual_calls(w.device).take_n, asked);
    struct mem_pool_oom o;
    CHECK(mem_pool_last_oom(w.pool, &o));
    CHECK_EQ(o.allowed_bytes, 50 * MIB);
    CHECK_EQ(o.tried_bytes, 12 * MIB);
    CHECK_EQ(o.free_bytes, 60 * MIB);
    mem_pool_fraction_set(w.pool, 1);
    world_get(&w, 12 * MIB);
    world_give(&w, a);
    world_end(&w);
}

TEST(
    pool_garbage_collection,
    "above the threshold, free segments at least as old as the average go back")
{
    struct world w;
    world_begin(
        &w, &(struct mem_virtual_options){.capacity_bytes = 200 * MIB},
        "per_process_memory_fraction:0.9,garbage_collection_threshold:0.5");
    struct mem_block *b[3];
    for (int i = 0; i < 3; i++)
        b[i] = world_get(&w, (20 + 10 * i) * MIB); /* 20, 30, 40: 90 = half of 180 */
    world_give(&w, b[0]);
    struct mem_block *c = world_get(&w, 1 * MIB); /* other pool: no search in this one */
    world_give(&w, b[1]);
    world_mark(&w);
    struct mem_block *d = world_get(&w, 60 * MIB); /* 92 - 90 to reclaim; both are equally old */
    CHECK_STR(
        world_events(&w), "segment_free 20971520, segment_free 31457280, segment_alloc 62914560, "
                          "alloc 62914560");
    world_give(&w, d);
    d = world_get(&w, 24 * MIB); /* of the 60 */
    world_give(&w, b[2]);
    world_mark(&w);
    (void)world_get(&w, 70 * MIB); /* only the segment of 40 is whole */
    CHECK_STR(world_events(&w), "segment_free 41943040, segment_alloc 73400320, alloc 73400320");
    world_give(&w, c);
    world_end(&w);
}

TEST(pool_streams, "a cached block is only for its own stream")
{
    struct world w;
    world_begin(&w, NULL, NULL);
    struct mem_block *a = world_get_on(&w, 7, 30 * MIB);
    uint64_t addr = mem_block_addr(a);
    CHECK_EQ(mem_block_stream(a), 7);
    world_give(&w, a);
    struct mem_block *b = world_get_on(&w, 8, 30 * MIB);
    CHECK(mem_block_addr(b) != addr);
    CHECK_EQ(mem_block_addr(world_get_on(&w, 7, 29 * MIB)), addr);
    world_end(&w);
}

TEST(
    pool_record_stream,
    "a block used on other streams is pending until their events are done and a request looks")
{
    struct world w;
    world_begin(&w, &(struct mem_virtual_options){.manual_events = true}, NULL);
    struct mem_block *a = world_get(&w, 30 * MIB);
    mem_pool_use_on(w.pool, a, 0); /* its own */
    mem_pool_use_on(w.pool, a, 5);
    mem_pool_use_on(w.pool, a, 4);
    mem_pool_use_on(w.pool, a, 5);
    world_mark(&w);
    world_give(&w, a);
    CHECK_STR(world_events(&w), "free_requested 31457280");
    struct mem_pool_stats s = world_stats(&w);
    CHECK_EQ(s.allocated_bytes[MEM_STAT_ALL].current, 0);
    CHECK_EQ(s.active_bytes[MEM_STAT_ALL].current, 30 * MIB);
    CHECK_EQ(s.requested_bytes[MEM_STAT_ALL].current, 30 * MIB);
    CHECK_EQ(mem_virtual_calls(w.device).event_record_n, 2);
    mem_virtual_complete(w.device, 4);
    struct mem_block *b = world_get(&w, 30 * MIB);
    CHECK_EQ(world_reserved(&w), 60 * MIB);
    CHECK_EQ(world_stats(&w).active_bytes[MEM_STAT_ALL].peak, 60 * MIB);
    CHECK_EQ(world_stats(&w).allocated_bytes[MEM_STAT_ALL].peak, 30 * MIB);
    mem_virtual_complete(w.device, 5);
    CHECK_EQ(world_stats(&w).active[MEM_STAT_ALL].current, 2); /* nobody has looked */
    world_mark(&w);
    struct mem_block *c = world_get(&w, 30 * MIB);
    CHECK_STR(world_events(&w), "free_completed 31457280, alloc 31457280");
    mem_pool_use_on(w.pool, b, 6);
    world_give(&w, b);
    mem_pool_trim(w.pool); /* waits */
    CHECK_EQ(mem_virtual_calls(w.device).event_wait_n, 1);
    CHECK_EQ(world_reserved(&w), 30 * MIB);
    world_give(&w, c);
    world_end(&w);
}

TEST(pool_capture, "while a capture is under way blocks used elsewhere wait and nothing is flushed")
{
    static const struct mem_pool_id id = {0, 1};
    struct world w;
    world_begin(&w, &(struct mem_virtual_options){.capacity_bytes = 64 * MIB}, NULL);
    struct mem_block *outside = world_get(&w, 30 * MIB);
    world_give(&w, outside);
    mem_pool_private_begin(w.pool, id, NULL);
    mem_pool_route_begin(w.pool, &(struct mem_pool_route){.id = id, .capture = true});
    struct mem_block *a = world_get(&w, 30 * MIB); /* not the cached one */
    CHECK_EQ(world_reserved(&w), 60 * MIB);
    mem_pool_use_on(w.pool, a, 3);
    world_give(&w, a);
    CHECK(!world_try(&w, 30 * MIB)); /* a is not looked at, the cached one is not given back */
    CHECK_EQ(world_stats(&w).num_alloc_retries, 0);
    mem_pool_route_end(w.pool, id);
    (void)world_get(&w, 512);
    CHECK_EQ(world_stats(&w).active[MEM_STAT_LARGE].current, 0);
    world_end(&w);
}

TEST(
    pool_private,
    "freed blocks of a private pool stay in it until nobody uses it and the cache is flushed")
{
    static const struct mem_pool_id id = {4, 0};
    struct world w;
    world_begin(&w, NULL, NULL);
    mem_pool_private_begin(w.pool, id, NULL);
    mem_pool_route_begin(w.pool, &(struct mem_pool_route){.id = id});
    struct mem_block *a = world_get(&w, 30 * MIB), *s = world_get(&w, 512);
    mem_pool_route_end(w.pool, id);
    CHECK_EQ(w.log[0].pool.first, 4);
    world_give(&w, a);
    struct mem_block *b = world_get(&w, 30 * MIB);
    CHECK_EQ(world_reserved(&w), 62 * MIB);
    mem_pool_trim(w.pool);
    CHECK_EQ(world_reserved(&w), 62 * MIB);
    struct mem_pool_snapshot snap;
    mem_pool_snapshot(w.pool, &snap);
    CHECK_EQ(snap.segments_n, 3);
    CHECK_EQ(snap.segments[0].pool.first, 4);
    CHECK_EQ(snap.segments[2].pool.first, 0);
    mem_pool_snapshot_release(&snap);
    mem_pool_private_end(w.pool, id);
    mem_pool_trim(w.pool);
    CHECK_EQ(world_reserved(&w), 32 * MIB); /* the small block is still live */
    world_give(&w, s);
    mem_pool_trim(w.pool);
    CHECK_EQ(world_reserved(&w), 30 * MIB);
    world_give(&w, b);
    world_end(&w);
}

TEST(pool_private_options, "no_split and use_on_oom; the last matching route counts")
{
    static const struct mem_pool_id one = {1, 0}, two = {2, 0};
    struct world w;
    world_begin(&w, &(struct mem_virtual_options){.capacity_bytes = 64 * MIB}, NULL);
    mem_pool_private_begin(w.pool, one, &(struct mem_pool_private){.no_split = true});
    mem_pool_private_begin(w.pool, two, &(struct mem_pool_private){.use_on_oom = true});
    mem_pool_route_begin(w.pool, &(struct mem_pool_route){.id = one});
    struct mem_block *a = world_get(&w, 2 * MIB);
    CHECK_EQ(mem_block_bytes(a), 20 * MIB);
    mem_pool_route_begin(w.pool, &(struct mem_pool_route){.id = two});
    struct mem_block *b = world_get(&w, 40 * MIB);
    mem_pool_route_end(w.pool, two);
    mem_pool_route_end(w.pool, one);
    world_give(&w, b);
    struct mem_block *c = world_get(&w, 40 * MIB); /* from pool two, for want of anything else */
    CHECK_EQ(world_reserved(&w), 60 * MIB);
    CHECK(!world_try(&w, 18 * MIB));
    world_give(&w, c);
    struct mem_pool_oom o;
    CHECK(mem_pool_last_oom(w.pool, &o) && o.private_bytes == 0);
    mem_pool_route_begin(w.pool, &(struct mem_pool_route){.id = one});
    CHECK(!world_try(&w, 18 * MIB)); /* allocating in a pool: no help from another */
    mem_pool_route_end(w.pool, one);
    CHECK(mem_pool_last_oom(w.pool, &o) && o.private_bytes == 40 * MIB);
    world_end(&w);
}

struct relief {
    struct world *w;
    struct mem_block *spare;
};

static bool give_spare(void *ctx)
{
    struct relief *r = ctx;
    bool any = r->spare != NULL;
    mem_pool_give(r->w->pool, r->spare);
    r->spare = NULL;
    return any;
}

TEST(pool_pressure, "callbacks are asked before the device, and what they give back is used")
{
    struct world w;
    world_begin(&w, NULL, NULL);
    struct relief r = {&w, world_get(&w, 30 * MIB)};
    uint64_t addr = mem_block_addr(r.spare);
    mem_pool_on_pressure(w.pool, give_spare, &r);
    CHECK_EQ(mem_block_addr(world_get(&w, 30 * MIB)), addr);
    CHECK_EQ(world_reserved(&w), 30 * MIB);
    world_end(&w);
}

TEST(pool_no_caching, "without the cache every request is a segment that ends with it")
{
    struct world w;
    struct mem_pool_conf c;
    world_begin(&w, NULL, NULL);
    mem_pool_conf_get(w.pool, &c);
    c.no_caching = true;
    mem_pool_conf_set(w.pool, &c);
    struct mem_block *a = world_get(&w, 1000), *b = world_get(&w, 3 * MIB);
    CHECK_EQ(world_reserved(&w), 1024 + 3 * MIB);
    world_give(&w, a);
    world_give(&w, b);
    CHECK_EQ(world_reserved(&w), 0);
    world_end(&w);
}

TEST(pool_oom_numbers, "O1 the numbers and the sentence of PyTorch's message")
{
    struct world w;
    struct mem_pool_oom o;
    struct str s;
    world_begin(&w, &(struct mem_virtual_options){.capacity_bytes = GIB}, NULL);
    CHECK(!mem_pool_last_oom(w.pool, &o));
    (void)world_get(&w, 1004 * MIB);
    (void)world_get(&w, 512);
    CHECK(!world_try(&w, 3 * MIB));
    CHECK(mem_pool_last_oom(w.pool, &o));
    CHECK_EQ(o.tried_bytes, 20 * MIB);
    CHECK_EQ(o.rounded_bytes, 3 * MIB);
    CHECK_EQ(w.log[w.log_n - 1].device_free_bytes, 18 * MIB);
    str_init(&s);
    mem_pool_oom_text(&o, 0, 1030 * MIB, "Process 42 has 1.50 GiB memory in use. ", &s);
    CHECK_STR(
        s.data,
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 1024.00 "
        "MiB "
        "of which 18.00 MiB is free. Process 42 has 1.50 GiB memory in use. Including non-PyTorch "
        "memory, this process has 1.01 GiB memory in use. Of the allocated memory 1004.00 MiB is "
        "allocated by PyTorch, and 2.00 MiB is reserved by PyTorch but unallocated. If reserved "
        "but "
        "unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to "
        "avoid fragmentation.  See documentation for Memory Management  "
        "(https://docs.pytorch.org/docs/stable/notes/"
        "cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)");
    str_clear(&s);
    CHECK(!world_try(&w, (int64_t)1 << 60));
    CHECK(mem_pool_last_oom(w.pool, &o) && o.absurd);
    mem_pool_oom_text(&o, 0, -1, NULL, &s);
    CHECK_STR(s.data, "CUDA out of memory. Tried to allocate more than 1EB memory.");
    str_release(&s);
    CHECK_EQ(world_stats(&w).num_ooms, 1);
    world_end(&w);
}

TEST(pool_inactive_split, "inactive_split counts free parts of split segments, net of merges")
{
    struct world w;
    world_begin(&w, NULL, NULL);
    struct mem_block *a = world_get(&w, 2 * MIB), *b = world_get(&w, 3 * MIB);
    struct mem_stat n = world_stats(&w).inactive_split[MEM_STAT_ALL];
    struct mem_stat bytes = world_stats(&w).inactive_split_bytes[MEM_STAT_LARGE];
    CHECK_EQ(n.current, 1);
    CHECK_EQ(n.allocated, 1); /* one was made, and then used in part */
    CHECK_EQ(bytes.current, 15 * MIB);
    CHECK_EQ(bytes.allocated, 18 * MIB);
    CHECK_EQ(bytes.freed, 3 * MIB);
    world_give(&w, a);
    CHECK_EQ(world_stats(&w).inactive_split[MEM_STAT_ALL].current, 2);
    CHECK_EQ(world_stats(&w).inactive_split_bytes[MEM_STAT_ALL].current, 17 * MIB);
    world_give(&w, b); /* whole again */
    n = world_stats(&w).inactive_split[MEM_STAT_ALL];
    CHECK_EQ(n.current, 0);
    CHECK_EQ(n.freed, 2);
    CHECK_EQ(n.peak, 2);
    mem_pool_reset_peaks(w.pool);
    mem_pool_reset_accumulated(w.pool);
    struct mem_pool_stats s = world_stats(&w);
    CHECK_EQ(s.inactive_split[MEM_STAT_ALL].peak + s.inactive_split[MEM_STAT_ALL].freed, 0);
    CHECK_EQ(s.reserved_bytes[MEM_STAT_ALL].peak, 20 * MIB);
    CHECK_EQ(s.reserved_bytes[MEM_STAT_ALL].allocated, 0);
    CHECK_EQ(s.num_device_alloc, 0);
    world_end(&w);
}

enum { THREADS = 4, THREAD_STEPS = 3000 };

static void *churn(void *arg)
{
    struct mem_pool *p = arg;
    struct mem_block *slot[16] = {0};
    struct rng r;
    rng_init(&r, test_seed(), (uint32_t)(uintptr_t)&slot, 0);
    for (int i = 0; i < THREAD_STEPS; i++) {
        struct err e;
        size_t k = (size_t)rng_below(&r, 16);
        mem_pool_give(p, slot[k]);
        slot[k] = NULL;
        int64_t size = (int64_t)rng_below(&r, (uint64_t)1 << (9 + rng_below(&r, 15)));
        if (mem_pool_alloc_on(p, rng_below(&r, 3), size, (struct mem_tag){0}, &slot[k], &e) ==
            ST_OK)
            mem_pool_use_on(p, slot[k], rng_below(&r, 3));
        if (i % 500 == 0)
            mem_pool_trim(p);
    }
    for (size_t k = 0; k < 16; k++)
        mem_pool_give(p, slot[k]);
    return NULL;
}

TEST(pool_threads, "B6 several threads stay within the capacity and leave nothing behind")
{
    static const char *const confs[] = {
        "", "expandable_segments:True", "release_lock_on_cudamalloc:True"};
    for (size_t i = 0; i < 3; i++) {
        struct world w;
        pthread_t thread[THREADS];
        world_begin(&w, &(struct mem_virtual_options){.capacity_bytes = 200 * MIB}, confs[i]);
        mem_pool_listen(w.pool, NULL, NULL);
        for (int t = 0; t < THREADS; t++)
            CHECK_EQ(pthread_create(&thread[t], NULL, churn, w.pool), 0);
        for (int t = 0; t < THREADS; t++)
            CHECK_EQ(pthread_join(thread[t], NULL), 0);
        CHECK(w.source->held_bytes_peak <= 200 * MIB);
        mem_pool_trim(w.pool);
        CHECK_EQ(world_reserved(&w), 0);
        world_end(&w);
    }
}
