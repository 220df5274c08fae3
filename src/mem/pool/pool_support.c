/* pool_support.c - what the tests of the allocator share. */
#include "mem/pool/pool_support.h"

#include "base/str.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

static const struct mem_tag tag = {"test", "node-1", 3};

static void note(void *ctx, const struct mem_event *event)
{
    struct world *w = ctx;
    if (w->log_n < LOG_MAX)
        w->log[w->log_n++] = *event;
}

void world_begin(struct world *w, const struct mem_virtual_options *o, const char *conf)
{
    struct mem_pool_conf c;
    struct err e = {0};
    w->log_n = 0;
    mem_pool_conf_init(&c);
    if (conf)
        CHECK_OK(mem_pool_conf_parse(&c, conf, NULL, &e), &e);
    w->device = mem_virtual_new(o);
    w->source = mem_virtual_source(w->device);
    w->pool = mem_pool_open(
        w->source, &(struct mem_pool_options){.conf = &c, .listen = note, .listen_ctx = w});
}

void world_end(struct world *w)
{
    mem_pool_check(w->pool);
    mem_pool_free(w->pool);
    CHECK_EQ(w->source->held_bytes, 0);
    struct mem_virtual_calls calls = mem_virtual_calls(w->device);
    CHECK_EQ(calls.ranges_n, 0);
    mem_virtual_free(w->device);
}

struct mem_block *world_get_on(struct world *w, uint64_t stream, int64_t size_bytes)
{
    struct err e = {0};
    struct mem_block *b = NULL;
    CHECK_OK(mem_pool_alloc_on(w->pool, stream, size_bytes, tag, &b, &e), &e);
    mem_pool_check(w->pool);
    return b;
}

struct mem_block *world_get(struct world *w, int64_t size_bytes)
{
    return world_get_on(w, 0, size_bytes);
}

struct mem_block *world_try(struct world *w, int64_t size_bytes)
{
    struct err e = {0};
    struct mem_block *b = NULL;
    enum status st = mem_pool_alloc(w->pool, size_bytes, tag, &b, &e);
    mem_pool_check(w->pool);
    CHECK(st == ST_OK || (st == ST_OOM && e.status == ST_OOM && e.text[0] && !b));
    return b;
}

void world_give(struct world *w, struct mem_block *b)
{
    mem_pool_give(w->pool, b);
    mem_pool_check(w->pool);
}

struct mem_pool_stats world_stats(struct world *w)
{
    struct mem_pool_stats s;
    mem_pool_stats(w->pool, &s);
    return s;
}

int64_t world_reserved(struct world *w)
{
    return world_stats(w).reserved_bytes[MEM_STAT_ALL].current;
}

void world_mark(struct world *w)
{
    w->log_n = 0;
}

const char *world_events(struct world *w)
{
    static char text[2048];
    size_t n = 0;
    text[0] = 0;
    for (size_t i = 0; i < w->log_n && n < sizeof text; i++)
        n += (size_t)snprintf(
            text + n, sizeof text - n, "%s%s %lld", i ? ", " : "", mem_event_name(w->log[i].kind),
            (long long)w->log[i].size_bytes);
    w->log_n = 0;
    return text;
}
