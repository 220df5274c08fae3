/* history_test.c - the ring, what is live, and the snapshots of both forms. */
#include "base/env.h"
#include "base/json.h"
#include "base/mem.h"
#include "mem/doc_out.h"
#include "mem/history.h"
#include "mem/virtual.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((int64_t)1 << 20)
#define ARENA ((uint64_t)1 << 32)

static const struct mem_history_device cpu = {"cpu", 8 << 20, 0, 0};

static json_t *written(struct mem_history *h)
{
    char path[300];
    struct err e = {0};
    json_t *d = NULL;
    struct mem_history_form form = {.version = "1.2.3"};
    (void)snprintf(path, sizeof path, "%s/h.json", test_dir());
    CHECK_OK(mem_history_write(h, path, &form, &e), &e);
    CHECK_OK(json_read_file(path, 1 << 26, &d, &e), &e);
    return d;
}

static json_t *at(json_t *list, size_t i)
{
    CHECK(i < json_array_size(list));
    return json_array_get(list, i);
}

static json_t *trace(json_t *d)
{
    return at(json_object_get(d, "device_traces"), 0);
}

TEST(history_planned, "T2: parts of an arena live and die with node, category, step and origin")
{
    struct mem_history *h = mem_history_new(0);
    mem_history_file(h, "net.json");
    mem_history_node(h, "model", "SequentialModel", 7);
    mem_history_node(h, "train", "TrainingLoop", 30);
    mem_history_running(h, "train");
    int device = mem_history_device(h, &cpu);
    CHECK_EQ(mem_history_device(h, &cpu), device);
    uint32_t conv = mem_history_origin(h, "model/conv1", "conv2d", "train.only, forward");
    CHECK_EQ(mem_history_origin(h, "model/conv1", "conv2d", "train.only, forward"), conv);
    CHECK(mem_history_origin(h, "model/conv2", "conv2d", "train.only, forward") != conv);
    mem_history_segment(h, device, ARENA, 4096);
    mem_history_step(h, 12);
    mem_history_at(h, conv);
    mem_history_alloc(h, device, ARENA + 512, 1024, "activations", "model/conv1");
    mem_history_alloc(h, device, ARENA + 2048, 512, "workspace", NULL);
    mem_history_at(h, 0);
    mem_history_give(h, device, ARENA + 2048);
    mem_history_oom(h, device, 1 << 20, 99);

    json_t *d = written(h), *v = at(trace(d), 1), *s = at(json_object_get(d, "segments"), 0);
    CHECK_EQ(json_array_size(trace(d)), 6);
    CHECK_STR(json_get_str(at(trace(d), 0), "action", ""), "segment_alloc");
    CHECK_STR(json_get_str(v, "action", ""), "alloc");
    CHECK_EQ(json_get_i64(v, "addr", 0), ARENA + 512);
    CHECK_EQ(json_get_i64(v, "size", 0), 1024);
    CHECK_EQ(json_get_i64(v, "step", 0), 12);
    CHECK_STR(json_get_str(v, "node", ""), "model/conv1");
    CHECK_STR(json_get_str(v, "category", ""), "activations");
    CHECK(json_get_i64(v, "time_us", 0) > 1000000);
    CHECK_STR(json_get_str(at(trace(d), 3), "action", ""), "free_requested");
    CHECK_STR(json_get_str(at(trace(d), 4), "action", ""), "free_completed");
    CHECK_STR(json_get_str(at(trace(d), 4), "category", ""), "workspace"); /* known by address */
    CHECK_STR(json_get_str(at(trace(d), 5), "action", ""), "oom");
    CHECK_EQ(json_get_i64(at(trace(d), 5), "device_free", 0), 99);

    json_t *snug = json_object_get(d, "snug"), *frames = json_object_get(snug, "frames");
    json_t *stack = at(json_object_get(snug, "stacks"), (size_t)json_get_i64(v, "frames", 0));
    CHECK_EQ(json_array_size(stack), 2);
    json_t *inner = at(frames, (size_t)json_integer_value(at(stack, 0)));
    json_t *outer = at(frames, (size_t)json_integer_value(at(stack, 1)));
    CHECK_STR(json_get_str(inner, "name", ""), "model/conv1 (SequentialModel) conv2d");
    CHECK_STR(json_get_str(inner, "filename", ""), "net.json");
    CHECK_EQ(json_get_i64(inner, "line", 0), 7);
    CHECK_STR(json_get_str(outer, "name", ""), "train (TrainingLoop) train.only, forward");
    CHECK_STR(json_get_str(snug, "version", ""), "1.2.3");
    CHECK_EQ(json_get_i64(snug, "capacity_bytes", 0), 8 << 20);

    json_t *blocks = json_object_get(s, "blocks"); /* gap, activation, gap */
    CHECK_EQ(json_get_i64(s, "total_size", 0), 4096);
    CHECK_EQ(json_get_i64(s, "allocated_size", 0), 1024);
    CHECK_EQ(json_array_size(blocks), 3);
    CHECK_EQ(json_get_i64(at(blocks, 1), "size", 0), 1024);
    CHECK_STR(json_get_str(at(blocks, 1), "state", ""), "active_allocated");
    CHECK_STR(json_get_str(at(blocks, 1), "node", ""), "model/conv1");
    CHECK_EQ(json_get_i64(at(blocks, 2), "size", 0), 4096 - 1536);
    json_decref(d);

    mem_history_segment_end(h, device, ARENA); /* ends what lives in it */
    d = written(h);
    CHECK_EQ(json_array_size(json_object_get(d, "segments")), 0);
    CHECK_EQ(json_array_size(trace(d)), 9);
    json_decref(d);
    mem_history_free(h);
}

TEST(history_ring, "T2: the ring keeps the newest events, counts the rest, and knows what is live")
{
    struct mem_history *h = mem_history_new(100);
    struct mem_history_counts counts;
    int device = mem_history_device(h, &cpu);
    mem_history_segment(h, device, ARENA, MIB);
    mem_history_at(h, mem_history_origin(h, "model", "weight", NULL));
    mem_history_alloc(h, device, ARENA, 64, "parameters", "model");
    for (int i = 0; i < 500; i++) {
        mem_history_step(h, i);
        mem_history_alloc(h, device, ARENA + 128, 64, "activations", "model");
        mem_history_give(h, device, ARENA + 128);
    }
    mem_history_counts(h, &counts);
    CHECK_EQ(counts.events_n, 100);
    CHECK_EQ(counts.lost_n, 2 + 3 * 500 - 100);
    CHECK_EQ(counts.live_blocks_n, 1);
    json_t *d = written(h), *block;
    json_t *settings = json_object_get(d, "allocator_settings");
    CHECK_EQ(json_array_size(trace(d)), 100);
    CHECK_EQ(json_get_i64(at(trace(d), 99), "step", 0), 499);
    CHECK(json_get_bool(settings, "trace_alloc_overflowed", false));
    CHECK_EQ(json_get_i64(settings, "trace_alloc_max_entries", 0), 100);
    block = at(json_object_get(at(json_object_get(d, "segments"), 0), "blocks"), 0);
    CHECK_STR(json_get_str(block, "category", ""), "parameters");
    CHECK(json_get_i64(block, "frames", 0) > 0);
    json_decref(d);
    mem_history_free(h);
}

TEST(history_live, "what is live is found by address, through many blocks and any order of ends")
{
    enum { N = 5000 };
    struct mem_history *h = mem_history_new(10);
    struct mem_history_counts counts;
    int one = mem_history_device(h, &cpu);
    int two = mem_history_device(h, &(struct mem_history_device){.name = "other"});
    for (uint64_t i = 0; i < N; i++) {
        mem_history_alloc(h, one, ARENA + 512 * i, 512, "activations", NULL);
        mem_history_alloc(h, two, ARENA + 512 * i, 512, "gradients", NULL);
    }
    for (uint64_t i = 0; i < N; i++)
        mem_history_give(h, one, ARENA + 512 * (i * 7 % N));
    mem_history_counts(h, &counts);
    CHECK_EQ(counts.live_blocks_n, N);
    for (uint64_t i = 0; i < N; i++)
        mem_history_give(h, two, ARENA + 512 * (i * 11 % N));
    mem_history_counts(h, &counts);
    CHECK_EQ(counts.live_blocks_n, 0);
    mem_history_free(h);
}

static struct mem_block *get(struct mem_pool *p, int64_t size, const char *what)
{
    struct err e = {0};
    struct mem_block *b = NULL;
    CHECK_OK(mem_pool_alloc(p, size, (struct mem_tag){what, "model/fc", 1}, &b, &e), &e);
    return b;
}

TEST(
    history_pool,
    "T2: a watched pool's events, segments and blocks are written; its end frees them")
{
    struct mem_virtual_options o = {.capacity_bytes = 64 * MIB};
    struct mem_virtual *v = mem_virtual_new(&o);
    struct mem_pool *p = mem_pool_new(mem_virtual_source(v));
    struct mem_history *h = mem_history_new(0);
    struct mem_history_counts counts;
    struct err e = {0};
    int device = mem_history_device(h, &cpu);
    mem_history_watch(h, device, p);
    mem_history_at(h, mem_history_origin(h, "model/fc", "gemm", "train.only, forward"));
    struct mem_block *a = get(p, 3 * MIB, "activations"), *b = get(p, 1000, "workspace"), *c;
    mem_pool_give(p, b);
    CHECK_EQ(mem_pool_alloc(p, 60 * MIB, (struct mem_tag){0}, &c, &e), ST_OOM);

    json_t *d = written(h), *segment, *block;
    segment = at(json_object_get(d, "segments"), 0);
    CHECK_EQ(json_array_size(json_object_get(d, "segments")), 1); /* the small one was flushed */
    CHECK_EQ(json_get_i64(segment, "total_size", 0), 20 * MIB);
    block = at(json_object_get(segment, "blocks"), 0);
    CHECK_EQ(json_get_i64(block, "size", 0), 3 * MIB);
    CHECK_STR(json_get_str(block, "category", ""), "activations");
    CHECK_STR(json_get_str(block, "node", ""), "model/fc");
    CHECK(json_get_i64(block, "frames", 0) > 0);
    mem_history_counts(h, &counts);
    CHECK_EQ(counts.ooms_n, 1);
    json_decref(d);

    (void)a;
    mem_history_unwatch(h, p);
    d = written(h);
    CHECK_EQ(json_array_size(json_object_get(d, "segments")), 0);
    size_t n = json_array_size(trace(d));
    CHECK_STR(json_get_str(at(trace(d), n - 1), "action", ""), "segment_free");
    CHECK_STR(json_get_str(at(trace(d), n - 2), "action", ""), "free_completed");
    mem_history_counts(h, &counts);
    CHECK_EQ(counts.live_blocks_n, 0);
    json_decref(d);
    mem_history_free(h);
    mem_pool_free(p);
    mem_virtual_free(v);
}

TEST(history_freeze, "T2: what is written after a failure is the state at the failure")
{
    struct mem_virtual_options o = {.capacity_bytes = 64 * MIB};
    struct mem_virtual *v = mem_virtual_new(&o);
    struct mem_pool *p = mem_pool_new(mem_virtual_source(v));
    struct mem_history *h = mem_history_new(0);
    struct mem_history_counts counts;
    struct mem_block *b;
    struct err e = {0};
    int device = mem_history_device(h, &cpu);
    mem_history_segment(h, device, ARENA, 4096);
    mem_history_hold(h, device, ARENA, 1024, "parameters", "model");
    mem_history_watch(h, device, p);
    struct mem_block *a = get(p, 3 * MIB, "activations");
    CHECK_EQ(mem_pool_alloc(p, 60 * MIB, (struct mem_tag){0}, &b, &e), ST_OOM);
    mem_history_freeze(h);
    mem_history_counts(h, &counts);
    int64_t events = counts.events_n;
    mem_pool_give(p, a);
    mem_history_unwatch(h, p);
    mem_pool_free(p);
    mem_history_segment_end(h, device, ARENA);
    mem_history_freeze(h);
    mem_history_counts(h, &counts);
    CHECK_EQ(counts.events_n, events);
    json_t *d = written(h), *segments = json_object_get(d, "segments"), *blocks;
    CHECK_EQ(json_array_size(segments), 2);
    blocks = json_object_get(at(segments, 0), "blocks");
    if (json_get_i64(at(segments, 0), "total_size", 0) != 4096)
        blocks = json_object_get(at(segments, 1), "blocks");
    CHECK_STR(json_get_str(at(blocks, 0), "category", ""), "parameters");
    CHECK_STR(json_get_str(at(trace(d), events - 1), "action", ""), "snapshot");
    json_decref(d);
    mem_history_free(h);
    mem_virtual_free(v);
}

/* The bytes of a document that has one of everything. */
static size_t sample(char *out, size_t cap, bool pickle)
{
    FILE *f = fmemopen(out, cap, "w");
    struct doc_out d;
    CHECK(f);
    doc_out_begin(&d, f, pickle);
    doc_list(&d);
    doc_int(&d, 5);
    doc_int(&d, -300);
    doc_uint(&d, UINT64_MAX);
    doc_text(&d, "a\"\n\xff");
    doc_text(&d, "a\"\n\xff");
    doc_pair(&d, 1, 70000);
    doc_bool(&d, true);
    doc_real(&d, 0.5);
    doc_map(&d);
    doc_map_end(&d);
    doc_list_end(&d);
    doc_out_end(&d);
    size_t n = (size_t)ftell(f);
    CHECK(fclose(f) == 0);
    return n;
}

TEST(history_forms, "one document as JSON and as a pickle of protocol 2, byte for byte")
{
    char out[300];
    size_t n = sample(out, sizeof out, false);
    static const char json[] = "[5,-300,18446744073709551615,\"a\\\"\\u000a\xef\xbf\xbd\","
                               "\"a\\\"\\u000a\xef\xbf\xbd\",[1,70000],true,0.5,{}]\n";
    CHECK(n == sizeof json - 1 && memcmp(out, json, n) == 0);
    n = sample(out, sizeof out, true);
    static const char pickle[] = "\x80\x02](K\x05J\xd4\xfe\xff\xff\x8a\x09"
                                 "\xff\xff\xff\xff\xff\xff\xff\xff\x00"
                                 "X\x06\x00\x00\x00"
                                 "a\"\n\xef\xbf\xbdq\x00h\x00K\x01J\x70\x11\x01\x00\x86\x88"
                                 "G\x3f\xe0\x00\x00\x00\x00\x00\x00}(ue.";
    CHECK(n == sizeof pickle - 1 && memcmp(out, pickle, n) == 0);
}
