/* expand_test.c - expandable segments, snapshots, and pools that start from one. */
#include "base/mem.h"
#include "base/rng.h"
#include "mem/pool/pool_support.h"
#include "test.h"

#include <string.h>

static const char expandable[] = "expandable_segments:True";

TEST(pool_expand_grows, "an expandable segment grows by pages and is given back page by page")
{
    struct world w;
    world_begin(&w, NULL, expandable);
    struct mem_block *a = world_get(&w, 3 * MIB);
    CHECK_STR(world_events(&w), "segment_map 20971520, alloc 3145728");
    struct mem_block *b = world_get(&w, 30 * MIB); /* 17 are free: 13 more, a page of 20 */
    CHECK_STR(world_events(&w), "segment_map 20971520, alloc 31457280");
    CHECK_EQ(mem_block_addr(b), mem_block_addr(a) + 3 * (uint64_t)MIB);
    struct mem_block *c = world_get(&w, 6 * MIB + 512);
    CHECK_EQ(mem_block_bytes(c), 6 * MIB + 512); /* split from 512 bytes on */
    CHECK_EQ(world_reserved(&w), 40 * MIB);
    struct mem_pool_stats s = world_stats(&w);
    CHECK_EQ(s.segment[MEM_STAT_ALL].current, 0);
    CHECK_EQ(s.inactive_split[MEM_STAT_ALL].allocated, 0);
    CHECK_EQ(s.num_device_alloc, 2);
    world_give(&w, c);
    world_give(&w, b);
    world_mark(&w);
    mem_pool_trim(w.pool); /* 37 are free from 3 on: the page from 20 on goes */
    CHECK_STR(world_events(&w), "segment_unmap 20971520");
    world_give(&w, a);
    mem_pool_trim(w.pool);
    CHECK_EQ(world_reserved(&w), 0);
    CHECK_EQ(mem_virtual_calls(w.device).release_n, 1); /* nothing is mapped: the range too */
    world_end(&w);
}

TEST(pool_expand_gaps, "a request may need several ranges mapped, each joined with what is free")
{
    struct world w;
    world_begin(&w, NULL, expandable);
    struct mem_block *b[5];
    for (int i = 0; i < 5; i++)
        b[i] = world_get(&w, 20 * MIB);
    world_give(&w, b[0]);
    world_give(&w, b[2]);
    mem_pool_trim(w.pool); /* pages 0 and 2 are unmapped */
    world_give(&w, b[1]);
    world_mark(&w);
    struct mem_block *big = world_get(&w, 50 * MIB);
    CHECK_STR(world_events(&w), "segment_map 20971520, segment_map 20971520, alloc 52428800");
    CHECK_EQ(mem_block_addr(big), mem_block_addr(b[3]) - 60 * (uint64_t)MIB);
    world_end(&w);
}

TEST(pool_expand_small, "small requests have a reservation of their own with pages of 2 MiB")
{
    struct world w;
    world_begin(&w, &(struct mem_virtual_options){.capacity_bytes = 800 * MIB}, expandable);
    struct mem_block *a = world_get(&w, 512), *b = world_get_on(&w, 1, 512);
    CHECK_EQ(world_reserved(&w), 4 * MIB);
    CHECK_EQ(mem_virtual_calls(w.device).reserve_n, 2); /* one for each stream */
    struct mem_pool_snapshot s;
    mem_pool_snapshot(w.pool, &s);
    CHECK_EQ(s.segments_n, 2);
    CHECK_EQ(s.segments[0].reserved_bytes, 900 * MIB);
    CHECK(s.segments[0].expandable && s.segments[0].small);
    mem_pool_snapshot_release(&s);
    world_give(&w, a);
    world_give(&w, b);
    world_end(&w);
}

TEST(pool_expand_inner, "blocks that do not sit at the growing end are preferred")
{
    struct world w;
    world_begin(&w, NULL, expandable);
    struct mem_block *a = world_get(&w, 12 * MIB), *pin = world_get(&w, 2 * MIB);
    world_give(&w, a); /* 12 free inside, 6 free at the end */
    CHECK_EQ(mem_block_addr(world_get(&w, 5 * MIB)) + 12 * (uint64_t)MIB, mem_block_addr(pin));
    world_end(&w);
}

TEST(pool_expand_off, "after expandable segments are turned off their blocks are left alone")
{
    struct world w;
    struct mem_pool_conf c;
    world_begin(&w, NULL, expandable);
    struct mem_block *a = world_get(&w, 10 * MIB);
    world_give(&w, a);
    mem_pool_conf_get(w.pool, &c);
    c.expandable_segments = false;
    mem_pool_conf_set(w.pool, &c);
    (void)world_get(&w, 10 * MIB);
    CHECK_EQ(world_reserved(&w), 30 * MIB);
    CHECK_EQ(world_stats(&w).segment[MEM_STAT_ALL].current, 1);
    world_end(&w);
}

/* A random run with events pending, pools and flushes; false when memory ran out. */
static bool random_run(struct world *w, uint64_t seed, int steps)
{
    enum { SLOTS = 24 };
    static const struct mem_pool_id id = {0, 9};
    struct mem_block *slot[SLOTS] = {0};
    struct rng r;
    bool ok = true;
    rng_init(&r, seed, 1, 0);
    mem_pool_private_begin(w->pool, id, NULL);
    for (int i = 0; i < steps && ok; i++) {
        struct err e;
        size_t k = (size_t)rng_below(&r, SLOTS);
        int64_t size = 1 + (int64_t)rng_below(&r, (uint64_t)1 << (9 + rng_below(&r, 17)));
        bool routed = rng_below(&r, 5) == 0;
        if (slot[k] && rng_below(&r, 4) == 0)
            mem_pool_use_on(w->pool, slot[k], rng_below(&r, 3));
        world_give(w, slot[k]);
        slot[k] = NULL;
        if (routed)
            mem_pool_route_begin(w->pool, &(struct mem_pool_route){.id = id});
        ok = mem_pool_alloc_on(
                 w->pool, rng_below(&r, 2), size, (struct mem_tag){0}, &slot[k], &e) == ST_OK;
        mem_pool_check(w->pool);
        if (routed)
            mem_pool_route_end(w->pool, id);
        if (rng_below(&r, 3) == 0)
            mem_virtual_complete(w->device, rng_below(&r, 3));
        if (rng_below(&r, 40) == 0)
            mem_pool_trim(w->pool);
    }
    for (size_t k = 0; k < SLOTS; k++)
        world_give(w, slot[k]);
    mem_pool_private_end(w->pool, id);
    mem_pool_trim(w->pool);
    mem_pool_check(w->pool);
    CHECK_EQ(world_reserved(w), 0);
    return ok;
}

static const char *const confs[] = {
    "",
    "expandable_segments:True",
    "max_split_size_mb:24",
    "max_split_size_mb:24,expandable_segments:True",
    "roundup_power2_divisions:8,garbage_collection_threshold:0.6,per_process_memory_fraction:0.9",
    "large_segment_size_mb:32,max_non_split_rounding_mb:64,max_split_size_mb:40"};
enum { CONFS = sizeof confs / sizeof *confs };

TEST(pool_every_order, "random runs keep the invariants whatever the order of addresses")
{
    for (int order = MEM_VIRTUAL_ASCENDING; order <= MEM_VIRTUAL_RANDOM; order++)
        for (size_t c = 0; c < CONFS; c++) {
            struct world w;
            world_begin(
                &w,
                &(struct mem_virtual_options){
                    .order = (enum mem_virtual_order)order, .seed = 5, .manual_events = true},
                confs[c]);
            CHECK(random_run(&w, test_seed() + c, 500));
            world_end(&w);
        }
}

TEST(
    pool_every_refusal,
    "whichever call the device refuses, the pool stays right and holds nothing in the end")
{
    for (size_t c = 0; c < CONFS; c++) {
        int64_t calls = 1, n = 0;
        for (n = 1; n <= calls; n++) {
            struct world w;
            world_begin(&w, &(struct mem_virtual_options){.manual_events = true}, confs[c]);
            mem_virtual_fail_nth(w.device, n);
            /* One refusal is made good by the retry. */
            CHECK(random_run(&w, 3, 120));
            struct mem_virtual_calls now = mem_virtual_calls(w.device);
            calls = now.take_n + now.reserve_n + now.map_n;
            world_end(&w);
        }
        CHECK(n > 8);
    }
}

TEST(pool_every_capacity, "every capacity that is too small is out of memory; then it fits")
{
    for (size_t c = 0; c < CONFS; c++) {
        int failures = 0;
        for (int64_t capacity = 2 * MIB;; capacity += 18 * MIB, failures++) {
            struct world w;
            world_begin(
                &w,
                &(struct mem_virtual_options){.capacity_bytes = capacity, .manual_events = true},
                confs[c]);
            bool ok = random_run(&w, test_seed(), 300);
            CHECK(w.source->held_bytes_peak <= capacity);
            CHECK_EQ(world_stats(&w).num_ooms, !ok);
            world_end(&w);
            if (ok)
                break;
        }
        CHECK(failures > 1);
    }
}

static void same_snapshot(const struct mem_pool_snapshot *a, const struct mem_pool_snapshot *b)
{
    CHECK_EQ(a->segments_n, b->segments_n);
    CHECK_EQ(a->blocks_n, b->blocks_n);
    for (size_t i = 0; i < a->segments_n; i++) {
        CHECK_EQ(a->segments[i].addr, b->segments[i].addr);
        CHECK_EQ(a->segments[i].size_bytes, b->segments[i].size_bytes);
        CHECK_EQ(a->segments[i].stream, b->segments[i].stream);
        CHECK_EQ(a->segments[i].pool.second, b->segments[i].pool.second);
        CHECK_EQ(a->segments[i].requested_bytes, b->segments[i].requested_bytes);
        CHECK_EQ(a->segments[i].reserved_addr, b->segments[i].reserved_addr);
    }
    for (size_t i = 0; i < a->blocks_n; i++) {
        CHECK_EQ(a->blocks[i].addr, b->blocks[i].addr);
        CHECK_EQ(a->blocks[i].size_bytes, b->blocks[i].size_bytes);
        CHECK_EQ(a->blocks[i].state, b->blocks[i].state);
    }
}

/* Some blocks, some freed, in both pools and two streams. */
static void fill(struct world *w)
{
    static const struct mem_pool_id id = {0, 2};
    struct mem_block *b[30];
    struct rng r;
    rng_init(&r, 11, 0, 0);
    mem_pool_private_begin(w->pool, id, NULL);
    for (int i = 0; i < 30; i++) {
        if (i == 10)
            mem_pool_route_begin(w->pool, &(struct mem_pool_route){.id = id});
        if (i == 15)
            mem_pool_route_end(w->pool, id);
        b[i] = world_get_on(
            w, (uint64_t)i % 2, 1 + (int64_t)rng_below(&r, (uint64_t)1 << (9 + rng_below(&r, 16))));
    }
    for (int i = 0; i < 30; i += 3)
        world_give(w, b[i]);
}

TEST(pool_load, "T1 a pool that starts from a snapshot has its map and goes on as the first would")
{
    for (size_t c = 0; c < 2; c++) {
        struct world first, second;
        struct mem_pool_snapshot a, b;
        struct err e = {0};
        world_begin(&first, NULL, confs[c]);
        world_begin(
            &second, &(struct mem_virtual_options){.order = MEM_VIRTUAL_DESCENDING}, confs[c]);
        fill(&first);
        mem_pool_snapshot(first.pool, &a);
        struct mem_block **handles = mem_alloc(a.blocks_n * sizeof *handles);
        CHECK_OK(mem_pool_load(second.pool, &a, handles, &e), &e);
        mem_pool_check(second.pool);
        mem_pool_snapshot(second.pool, &b);
        same_snapshot(&a, &b);
        for (size_t i = 0; i < a.blocks_n; i++)
            CHECK_EQ(handles[i] != NULL, a.blocks[i].state == MEM_BLOCK_ALLOCATED);
        CHECK_EQ(
            b.stats.inactive_split_bytes[MEM_STAT_ALL].current,
            a.stats.inactive_split_bytes[MEM_STAT_ALL].current);
        CHECK_EQ(second.source->held_bytes, first.source->held_bytes);
        CHECK_EQ(mem_block_addr(world_get(&first, 700)), mem_block_addr(world_get(&second, 700)));
        for (size_t i = 0; i < a.blocks_n; i++)
            world_give(&second, handles[i]);
        mem_pool_trim(second.pool);
        mem_free(handles);
        mem_pool_snapshot_release(&a);
        mem_pool_snapshot_release(&b);
        world_end(&first);
        mem_pool_free(second.pool); /* its ranges were never reserved at this device */
        CHECK_EQ(second.source->held_bytes, 0);
        mem_virtual_free(second.device);
    }
}

TEST(pool_load_refused, "a layout that cannot be is refused, and the pool is empty again")
{
    struct mem_block_info blocks[2] = {
        {.addr = 1 << 21, .size_bytes = MIB, .requested_bytes = MIB, .state = MEM_BLOCK_ALLOCATED},
        {.addr = (1 << 21) + MIB, .size_bytes = MIB}};
    struct mem_segment_info segment = {
        .addr = 1 << 21, .size_bytes = 2 * MIB, .small = true, .blocks_n = 2};
    struct mem_pool_snapshot s = {
        .segments = &segment, .blocks = blocks, .segments_n = 1, .blocks_n = 2};
    for (int i = 0; i < 8; i++) {
        struct mem_block_info was[2] = {blocks[0], blocks[1]};
        struct mem_segment_info segment_was = segment;
        struct world w;
        struct err e = {0};
        switch (i) {
        case 0:
            blocks[1].addr += 512;
            break;
        case 1:
            blocks[0].requested_bytes = MIB + 1;
            break;
        case 2:
            blocks[0].state = MEM_BLOCK_FREE;
            break;
        case 3:
            blocks[1].size_bytes = MIB - 1;
            break;
        case 4:
            segment.size_bytes = 4 * MIB;
            break;
        case 5:
            segment.blocks_n = 3;
            break;
        case 6:
            segment.small = false;
            break;
        default:
            segment.expandable = true;
            segment.small = false;
            break;
        }
        world_begin(&w, NULL, NULL);
        CHECK_EQ(mem_pool_load(w.pool, &s, NULL, &e), ST_INVALID);
        CHECK(e.text[0]);
        CHECK_EQ(world_reserved(&w), 0);
        world_end(&w);
        memcpy(blocks, was, sizeof was);
        segment = segment_was;
    }
}

TEST(pool_host_expands, "host memory serves expandable segments: what is mapped can be written")
{
    struct mem_source source;
    struct mem_pool_conf c;
    struct err e = {0};
    struct mem_block *a, *b;
    mem_source_init_host(&source, 100 * MIB);
    mem_pool_conf_init(&c);
    c.expandable_segments = true;
    struct mem_pool *p = mem_pool_open(&source, &(struct mem_pool_options){.conf = &c});
    CHECK_OK(mem_pool_alloc(p, 30 * MIB, (struct mem_tag){0}, &a, &e), &e);
    CHECK_OK(mem_pool_alloc(p, 5 * MIB, (struct mem_tag){0}, &b, &e), &e);
    memset(mem_block_data(a), 1, (size_t)(30 * MIB));
    memset(mem_block_data(b), 2, (size_t)(5 * MIB));
    CHECK_EQ(((char *)mem_block_data(a))[30 * MIB - 1], 1);
    mem_pool_give(p, a);
    mem_pool_trim(p);
    CHECK_EQ(source.held_bytes, 20 * MIB);
    CHECK_EQ(((char *)mem_block_data(b))[0], 2);
    CHECK_OK(mem_pool_alloc(p, 30 * MIB, (struct mem_tag){0}, &a, &e), &e);
    CHECK_EQ(((char *)mem_block_data(a))[0], 0); /* fresh pages */
    CHECK_EQ(mem_pool_alloc(p, 90 * MIB, (struct mem_tag){0}, &a, &e), ST_OOM);
    mem_pool_free(p);
    CHECK_EQ(source.held_bytes, 0);
}
