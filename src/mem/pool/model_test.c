/* model_test.c - the pool beside its slow model: the same random calls, equal answers.
 *
 * A sequence is a list of calls that means something from any state (a call that does not apply
 * does nothing), so a failing one can be shortened by leaving calls out; the shortest is printed.
 */
#include "base/mem.h"
#include "base/rng.h"
#include "mem/pool/model.h"
#include "mem/pool/pool.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((int64_t)1 << 20)

enum { SLOTS = 160, CALLS_MAX = 4000 };

/* ---- the device: what model.h says it is ---- */

struct device {
    struct mem_source source;
    int64_t capacity_bytes, held_bytes, handed_out;
    int64_t recorded[MODEL_STREAMS], complete[MODEL_STREAMS];
};

static uint64_t stream_name(int s)
{
    return (uint64_t)s << 12;
}

static bool device_hold(struct device *d, int64_t size)
{
    if (size > d->capacity_bytes - d->held_bytes)
        return false;
    d->held_bytes += size;
    return true;
}

static uint64_t device_take(struct mem_source *s, int64_t size)
{
    struct device *d = s->ctx;
    return device_hold(d, size) ? pool_model_address(d->handed_out++) : 0;
}

static void device_give(struct mem_source *s, uint64_t address, int64_t size)
{
    struct device *d = s->ctx;
    (void)address;
    d->held_bytes -= size;
}

static void device_info(struct mem_source *s, int64_t *free_bytes, int64_t *total_bytes)
{
    const struct device *d = s->ctx;
    *free_bytes = d->capacity_bytes - d->held_bytes;
    *total_bytes = d->capacity_bytes;
}

static uint64_t device_reserve(struct mem_source *s, int64_t size)
{
    struct device *d = s->ctx;
    (void)size;
    return pool_model_address(d->handed_out++);
}

static void device_release(struct mem_source *s, uint64_t address, int64_t size)
{
    (void)s;
    (void)address;
    (void)size;
}

static bool device_map(struct mem_source *s, uint64_t address, int64_t size)
{
    (void)address;
    return device_hold(s->ctx, size);
}

/* An event is its stream and its number there. */
static uint64_t device_record(struct mem_source *s, uint64_t stream)
{
    struct device *d = s->ctx;
    uint64_t k = stream >> 12;
    return k << 40 | (uint64_t)++d->recorded[k];
}

static bool device_done(struct mem_source *s, uint64_t event)
{
    const struct device *d = s->ctx;
    return (int64_t)(event & (((uint64_t)1 << 40) - 1)) <= d->complete[event >> 40];
}

static void device_wait(struct mem_source *s, uint64_t event)
{
    struct device *d = s->ctx;
    int64_t n = (int64_t)(event & (((uint64_t)1 << 40) - 1));
    if (n > d->complete[event >> 40])
        d->complete[event >> 40] = n;
}

static void device_init(struct device *d, int64_t capacity_bytes)
{
    *d = (struct device){.capacity_bytes = capacity_bytes};
    d->source = (struct mem_source){
        .take = device_take,
        .give = device_give,
        .info = device_info,
        .reserve = device_reserve,
        .release = device_release,
        .map = device_map,
        .unmap = device_give,
        .event_record = device_record,
        .event_done = device_done,
        .event_wait = device_wait,
        .ctx = d,
        .device = "numbers"};
}

/* ---- settings ---- */

struct setting {
    const char *text; /* as the pool reads it; the rest says the same to the model */
    int capacity_mib;
    int max_split_mib, rounding_mib, large_mib; /* 0: default */
    int64_t divisions[16];
    double gc, fraction; /* 0: default */
    bool expandable, no_caching;
    int streams;  /* 0: one */
    int privates; /* private pools */
    bool last_resort, no_split, captures, switches, pressure;
};

#define EVERY(d)                                                                                   \
    {                                                                                              \
        d, d, d, d, d, d, d, d, d, d, d, d, d, d, d, d                                             \
    }

static const struct setting settings[] = {
    {"", 8192, .streams = 1},
    {"", 400, .streams = 1},
    {"", 120, .streams = 3},
    {"", 900, .streams = 5},
    {"per_process_memory_fraction:0.5", 1200, .fraction = 0.5},
    {"per_process_memory_fraction:0.3", 2000, .fraction = 0.3, .streams = 2},
    {"max_split_size_mb:20", 4096, .max_split_mib = 20},
    {"max_split_size_mb:20", 500, .max_split_mib = 20},
    {"max_split_size_mb:21", 300, .max_split_mib = 21, .streams = 2},
    {"max_split_size_mb:64", 700, .max_split_mib = 64},
    {"max_split_size_mb:128", 1500, .max_split_mib = 128, .streams = 3},
    {"max_split_size_mb:32,max_non_split_rounding_mb:40", 600, .max_split_mib = 32,
     .rounding_mib = 40},
    {"max_split_size_mb:24,max_non_split_rounding_mb:20", 350, .max_split_mib = 24,
     .rounding_mib = 20, .streams = 2},
    {"roundup_power2_divisions:4", 3000, .divisions = EVERY(4)},
    {"roundup_power2_divisions:8", 500, .divisions = EVERY(8), .streams = 2},
    {"roundup_power2_divisions:1", 500, .divisions = EVERY(1)},
    {"roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", 4000,
     .divisions = {1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8}},
    {"roundup_power2_divisions:[1:16,4:2,16:0,64:4,>:2]", 900,
     .divisions = {16, 2, 2, 0, 0, 4, 4, 2, 2, 2, 2, 2, 2, 2, 2, 2}},
    {"garbage_collection_threshold:0.6,per_process_memory_fraction:0.8", 700, .gc = 0.6,
     .fraction = 0.8},
    {"garbage_collection_threshold:0.3,per_process_memory_fraction:0.9", 2000, .gc = 0.3,
     .fraction = 0.9, .streams = 3},
    {"garbage_collection_threshold:0.9,per_process_memory_fraction:0.99,max_split_size_mb:40", 900,
     .gc = 0.9, .fraction = 0.99, .max_split_mib = 40},
    {"garbage_collection_threshold:0.5", 600, .gc = 0.5},
    {"expandable_segments:True", 4096, .expandable = true},
    {"expandable_segments:True", 400, .expandable = true},
    {"expandable_segments:True", 250, .expandable = true, .streams = 3},
    {"expandable_segments:True,per_process_memory_fraction:0.4", 1000, .expandable = true,
     .fraction = 0.4},
    {"expandable_segments:True,max_split_size_mb:32", 500, .expandable = true, .max_split_mib = 32},
    {"expandable_segments:True,large_segment_size_mb:40", 600, .expandable = true, .large_mib = 40,
     .streams = 2},
    {"expandable_segments:True,garbage_collection_threshold:0.4,per_process_memory_fraction:0.7",
     800, .expandable = true, .gc = 0.4, .fraction = 0.7},
    {"expandable_segments:True,roundup_power2_divisions:4", 700, .expandable = true,
     .divisions = EVERY(4)},
    {"large_segment_size_mb:40", 900, .large_mib = 40},
    {"large_segment_size_mb:11", 300, .large_mib = 11, .streams = 2},
    {"large_segment_size_mb:64,max_split_size_mb:64", 900, .large_mib = 64, .max_split_mib = 64},
    {"", 600, .streams = 8},
    {"", 700, .streams = 2, .privates = 3},
    {"", 300, .streams = 3, .privates = 3, .captures = true},
    {"max_split_size_mb:30", 500, .max_split_mib = 30, .streams = 2, .privates = 2,
     .captures = true},
    {"", 250, .privates = 3, .last_resort = true, .no_split = true},
    {"expandable_segments:True", 600, .expandable = true, .streams = 2, .privates = 3,
     .captures = true},
    {"garbage_collection_threshold:0.5,per_process_memory_fraction:0.9", 500, .gc = 0.5,
     .fraction = 0.9, .streams = 2, .privates = 2, .captures = true},
    {"expandable_segments:True", 500, .expandable = true, .streams = 2, .switches = true},
    {"roundup_power2_divisions:[256:1,4096:16,>:4]", 200000,
     .divisions = {1, 1, 1, 1, 1, 1, 1, 1, 1, 16, 16, 16, 16, 4, 4, 4}, .streams = 2},
    {"", 300, .streams = 2, .pressure = true},
    {"expandable_segments:True", 400, .expandable = true, .privates = 1, .pressure = true},
    {"", 500, .no_caching = true},
    {"expandable_segments:True", 300, .no_caching = true, .expandable = true, .streams = 3},
};
enum { SETTINGS_N = sizeof settings / sizeof *settings };

static struct model_config model_config(const struct setting *s)
{
    struct model_config c = {
        .capacity_bytes = s->capacity_mib * MIB,
        .fraction = s->fraction > 0 ? s->fraction : 1,
        .max_split_bytes = s->max_split_mib ? s->max_split_mib * MIB : MODEL_UNLIMITED,
        .large_segment_bytes = (s->large_mib ? s->large_mib : 20) * MIB,
        .gc_threshold = s->gc,
        .expandable = s->expandable,
        .no_caching = s->no_caching};
    c.rounding_bytes = s->rounding_mib ? s->rounding_mib * MIB : c.large_segment_bytes;
    memcpy(c.divisions, s->divisions, sizeof c.divisions);
    c.last_resort[1] = c.last_resort[2] = s->last_resort;
    c.no_split[2] = c.no_split[3] = s->no_split;
    return c;
}

/* ---- calls ---- */

enum call_kind {
    CALL_SLOT, /* gives the slot's block back, or fills it */
    CALL_USE,  /* record_stream */
    CALL_COMPLETE,
    CALL_TRIM,
    CALL_RESET_PEAKS,
    CALL_RESET_SUMS,
    CALL_BEGIN, /* of a private pool: `slot` */
    CALL_END,
    CALL_ROUTE,
    CALL_CAPTURE,
    CALL_UNROUTE,
    CALL_SWITCH, /* expandable segments on or off */
    CALL_KINDS
};
static const char *const call_names[CALL_KINDS] = {
    "slot",  "use", "complete", "trim",    "reset peaks", "reset sums",
    "begin", "end", "route",    "capture", "unroute",     "switch",
};

struct call {
    enum call_kind kind;
    int slot, stream;
    int64_t size_bytes;
};

static int64_t some_size(struct rng *r, const struct setting *s)
{
    int64_t edge;
    switch (rng_below(r, 10)) {
    case 0:
        return (int64_t)rng_below(r, 4097);
    case 1:
    case 2:
        return 1 + (int64_t)rng_below(r, (uint64_t)MIB);
    case 3:
        return 512 * (int64_t)(1 + rng_below(r, 64));
    case 4: /* about the borders of the rules */
        edge = rng_below(r, 2) ? MIB : 10 * MIB;
        if (s->max_split_mib && rng_below(r, 2))
            edge = s->max_split_mib * MIB;
        return edge + 512 * ((int64_t)rng_below(r, 5) - 2) + (int64_t)rng_below(r, 3) - 1;
    case 5:
        return (int64_t)(1 + rng_below(r, 12)) * 2 * MIB;
    case 6:
    case 7:
        return MIB + (int64_t)rng_below(r, (uint64_t)(9 * MIB));
    case 8:
        return 10 * MIB + (int64_t)rng_below(r, (uint64_t)(60 * MIB));
    default:
        return (int64_t)rng_below(r, (uint64_t)(s->capacity_mib * MIB / 3));
    }
}

static struct call some_call(struct rng *r, const struct setting *s, int window)
{
    int streams = s->streams ? s->streams : 1;
    struct call c = {
        .kind = CALL_SLOT,
        .slot = (int)rng_below(r, (uint64_t)window),
        .stream = rng_below(r, 3) ? 0 : (int)rng_below(r, (uint64_t)streams)};
    uint64_t dice = rng_below(r, 1000);
    if (streams > 1 && dice < 120)
        c.kind = CALL_USE, c.stream = (int)rng_below(r, (uint64_t)streams);
    else if (streams > 1 && dice < 200)
        c.kind = CALL_COMPLETE, c.stream = (int)rng_below(r, (uint64_t)streams);
    else if (dice < 204)
        c.kind = CALL_TRIM;
    else if (dice < 206)
        c.kind = CALL_RESET_PEAKS;
    else if (dice < 207)
        c.kind = CALL_RESET_SUMS;
    else if (s->switches && dice < 215)
        c.kind = CALL_SWITCH;
    else if (s->privates && dice < 240)
        c.kind = (enum call_kind)(CALL_BEGIN + rng_below(r, CALL_SWITCH - CALL_BEGIN));
    if (c.kind == CALL_CAPTURE && !s->captures)
        c.kind = CALL_ROUTE;
    if (c.kind >= CALL_BEGIN && c.kind < CALL_SWITCH)
        c.slot = 1 + (int)rng_below(r, (uint64_t)s->privates);
    c.size_bytes = c.kind == CALL_ROUTE || c.kind == CALL_CAPTURE
                       ? 1 + (int64_t)rng_below(r, (1u << streams) - 1)
                       : some_size(r, s);
    if (c.kind == CALL_COMPLETE)
        c.size_bytes = 1 + (int64_t)rng_below(r, 6);
    return c;
}

static void some_calls(struct call *calls, int n, const struct setting *s, uint64_t seed)
{
    struct rng r;
    int window = 20;
    /* Steps repeat their sizes: some calls are those of a while ago. */
    rng_init(&r, seed, (uint32_t)(s - settings), 0);
    for (int i = 0; i < n; i++) {
        if (rng_below(&r, 300) == 0)
            window = 4 + (int)rng_below(&r, SLOTS - 4);
        int back = 1 + (int)rng_below(&r, 200);
        calls[i] = some_call(&r, s, window);
        if (calls[i].kind == CALL_SLOT && i >= back && calls[i - back].kind == CALL_SLOT)
            calls[i].size_bytes = calls[i - back].size_bytes;
    }
}

/* ---- the two side by side ---- */

struct pair {
    const struct setting *setting;
    struct device device;
    struct mem_pool *pool;
    struct pool_model *model;
    struct {
        struct mem_block *block;
        uint64_t address;
    } slot[SLOTS];
    unsigned routed[MODEL_POOLS];          /* streams; a route's ctx */
    int relieved;                          /* the slot that was given back under pressure, + 1 */
    int64_t told_reserved, told_requested; /* by the listener */
    char difference[300];
};

static void hear(void *ctx, const struct mem_event *v)
{
    struct pair *p = ctx;
    switch (v->kind) {
    case MEM_EVENT_ALLOC:
        p->told_requested += v->size_bytes;
        break;
    case MEM_EVENT_FREE_COMPLETED:
        p->told_requested -= v->size_bytes;
        break;
    case MEM_EVENT_SEGMENT_ALLOC:
    case MEM_EVENT_SEGMENT_MAP:
        p->told_reserved += v->size_bytes;
        break;
    case MEM_EVENT_SEGMENT_FREE:
    case MEM_EVENT_SEGMENT_UNMAP:
        p->told_reserved -= v->size_bytes;
        break;
    case MEM_EVENT_FREE_REQUESTED:
    case MEM_EVENT_SNAPSHOT:
    case MEM_EVENT_OOM:
    case MEM_EVENT_N:
        break;
    }
}

static bool relieve_pool(void *ctx);
static bool relieve_model(void *ctx);

static void pair_open(struct pair *p, const struct setting *s)
{
    struct err e = {0};
    struct mem_pool_conf conf;
    struct model_config c = model_config(s);
    memset(p, 0, sizeof *p);
    p->setting = s;
    device_init(&p->device, c.capacity_bytes);
    mem_pool_conf_init(&conf);
    CHECK_OK(mem_pool_conf_parse(&conf, s->text, NULL, &e), &e);
    conf.no_caching = s->no_caching;
    struct mem_pool_options o = {.conf = &conf, .listen = hear, .listen_ctx = p};
    p->pool = mem_pool_open(&p->device.source, &o);
    if (s->pressure) {
        mem_pool_on_pressure(p->pool, relieve_pool, p);
        c.relieve = relieve_model;
        c.ctx = p;
    }
    p->model = pool_model_new(&c);
}

static void pair_close(struct pair *p)
{
    mem_pool_free(p->pool);
    CHECK_EQ(p->device.held_bytes, 0);
    pool_model_free(p->model);
}

static bool differ(struct pair *p, const char *what, int64_t is, int64_t model)
{
    if (is == model)
        return false;
    (void)snprintf(
        p->difference, sizeof p->difference, "%s: the pool says %lld, the model %lld", what,
        (long long)is, (long long)model);
    return true;
}

static bool
differ_stat(struct pair *p, const char *what, const struct mem_stat *is, const struct model_stat *m)
{
    char text[64];
    const int64_t a[4] = {is->current, is->peak, is->allocated, is->freed};
    const int64_t b[4] = {m->current, m->peak, m->allocated, m->freed};
    static const char *const names[4] = {"current", "peak", "allocated", "freed"};
    for (int k = 0; k < 4; k++) {
        (void)snprintf(text, sizeof text, "%s.%s", what, names[k]);
        if (differ(p, text, a[k], b[k]))
            return true;
    }
    return false;
}

static bool differ_stats(struct pair *p)
{
    static const char *const of[MODEL_KINDS] = {"all", "large_pool", "small_pool"};
    struct mem_pool_stats s;
    const struct model_stats *m = &p->model->stats;
    mem_pool_stats(p->pool, &s);
    const struct {
        const char *name;
        const struct mem_stat *is;
        enum model_family family;
    } rows[] = {
        {"allocation", s.allocation, MODEL_ALLOCATION},
        {"allocated_bytes", s.allocated_bytes, MODEL_ALLOCATED_BYTES},
        {"requested_bytes", s.requested_bytes, MODEL_REQUESTED_BYTES},
        {"active", s.active, MODEL_ACTIVE},
        {"active_bytes", s.active_bytes, MODEL_ACTIVE_BYTES},
        {"segment", s.segment, MODEL_SEGMENT},
        {"reserved_bytes", s.reserved_bytes, MODEL_RESERVED_BYTES},
        {"inactive_split", s.inactive_split, MODEL_INACTIVE_SPLIT},
        {"inactive_split_bytes", s.inactive_split_bytes, MODEL_INACTIVE_SPLIT_BYTES},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int k = 0; k < MODEL_KINDS; k++) {
            char what[64];
            (void)snprintf(what, sizeof what, "%s.%s", rows[i].name, of[k]);
            if (differ_stat(p, what, &rows[i].is[k], &m->of[rows[i].family][k]))
                return true;
        }
    return differ_stat(
               p, "oversize_allocations", &s.oversize_allocations,
               &m->of[MODEL_OVERSIZE_ALLOCATIONS][0]) ||
           differ_stat(
               p, "oversize_segments", &s.oversize_segments, &m->of[MODEL_OVERSIZE_SEGMENTS][0]) ||
           differ(p, "num_alloc_retries", s.num_alloc_retries, m->retries) ||
           differ(p, "num_ooms", s.num_ooms, m->ooms) ||
           differ(p, "num_sync_all_streams", s.num_sync_all_streams, m->syncs) ||
           differ(p, "num_device_alloc", s.num_device_alloc, m->device_allocs) ||
           differ(p, "num_device_free", s.num_device_free, m->device_frees) ||
           differ(p, "events of segments", p->told_reserved, s.reserved_bytes[0].current) ||
           differ(p, "events of blocks", p->told_requested, s.requested_bytes[0].current);
}

static bool differ_block(struct pair *p, const struct mem_block_info *is, int i)
{
    const struct model_block *b = &p->model->block[i];
    static const enum mem_block_state state[] = {
        [MODEL_FREE] = MEM_BLOCK_FREE,
        [MODEL_LIVE] = MEM_BLOCK_ALLOCATED,
        [MODEL_PENDING] = MEM_BLOCK_PENDING_FREE};
    return differ(p, "address of a block", (int64_t)is->addr, (int64_t)b->address) ||
           differ(p, "size of a block", is->size_bytes, b->size_bytes) ||
           differ(p, "state of a block", is->state, state[b->state]) ||
           (b->state != MODEL_FREE &&
            differ(p, "request of a block", is->requested_bytes, b->requested_bytes));
}

static bool differ_segment(struct pair *p, const struct mem_segment_info *is, int i)
{
    const struct model_block *b = &p->model->block[i];
    const struct model_segment *s = &p->model->segment[b->segment];
    return differ(p, "address of a segment", (int64_t)is->addr, (int64_t)b->address) ||
           differ(p, "stream of a segment", (int64_t)is->stream, (int64_t)stream_name(s->stream)) ||
           differ(p, "pool of a segment", (int64_t)is->pool.first, s->pool) ||
           differ(p, "a small segment", is->small, s->small) ||
           differ(p, "an expandable segment", is->expandable, s->expandable);
}

/* The memory map of the one, walked beside that of the other. */
static bool differ_map(struct pair *p, const struct mem_pool_snapshot *s)
{
    const struct pool_model *m = p->model;
    size_t segment = 0, block = 0;
    for (int i = 0; i < m->blocks_n; i++) {
        if (m->block[i].state == MODEL_UNMAPPED)
            continue;
        bool first = i == 0 || m->block[i - 1].segment != m->block[i].segment ||
                     m->block[i - 1].state == MODEL_UNMAPPED;
        if (first && (differ(p, "segments", segment < s->segments_n, 1) ||
                      differ_segment(p, &s->segments[segment], i)))
            return true;
        if (first && differ(
                         p, "first block of a segment", (int64_t)s->segments[segment++].first_block,
                         (int64_t)block))
            return true;
        if (differ(p, "blocks", block < s->blocks_n, 1) || differ_block(p, &s->blocks[block], i))
            return true;
        block++;
    }
    return differ(p, "segments", (int64_t)s->segments_n, (int64_t)segment) ||
           differ(p, "blocks", (int64_t)s->blocks_n, (int64_t)block);
}

static bool differ_all(struct pair *p)
{
    const char *wrong = pool_model_wrong(p->model);
    struct mem_pool_snapshot s;
    if (wrong) {
        (void)snprintf(p->difference, sizeof p->difference, "the model: %s", wrong);
        return true;
    }
    mem_pool_check(p->pool);
    mem_pool_snapshot(p->pool, &s);
    bool d = differ_map(p, &s);
    mem_pool_snapshot_release(&s);
    return d || differ_stats(p);
}

static bool route_matches(void *ctx, uint64_t stream)
{
    return *(unsigned *)ctx >> (stream >> 12) & 1;
}

/* Under pressure the first block in a slot that 8 divides is given back. */
static bool relieve_pool(void *ctx)
{
    struct pair *p = ctx;
    for (int k = 0; k < SLOTS; k += 8) {
        if (!p->slot[k].block)
            continue;
        mem_pool_give(p->pool, p->slot[k].block);
        p->slot[k].block = NULL;
        p->relieved = k + 1;
        return true;
    }
    return false;
}

static bool relieve_model(void *ctx)
{
    struct pair *p = ctx;
    int slot = p->relieved - 1;
    p->relieved = 0;
    if (slot < 0)
        return false;
    pool_model_give(p->model, p->slot[slot].address);
    return true;
}

static bool differ_oom(struct pair *p, int64_t size)
{
    struct mem_pool_oom o;
    const struct model_oom *m = &p->model->oom;
    if (differ(p, "oom", mem_pool_last_oom(p->pool, &o), true) ||
        differ(p, "oom.requested", o.requested_bytes, size) ||
        differ(p, "oom.absurd", o.absurd, size >= (int64_t)1 << 60))
        return true;
    return !o.absurd && (differ(p, "oom.rounded", o.rounded_bytes, m->rounded) ||
                         differ(p, "oom.tried", o.tried_bytes, m->tried) ||
                         differ(p, "oom.free", o.free_bytes, m->free) ||
                         differ(p, "oom.total", o.total_bytes, p->device.capacity_bytes) ||
                         differ(p, "oom.allowed", o.allowed_bytes, m->allowed) ||
                         differ(p, "oom.allocated", o.allocated_bytes, m->allocated) ||
                         differ(p, "oom.private", o.private_bytes, m->in_private) ||
                         differ(p, "oom.reserved", o.reserved_bytes, m->reserved));
}

static bool apply_slot(struct pair *p, const struct call *c)
{
    struct err e = {0};
    struct mem_tag tag = {"test", "node-1", 3};
    if (p->slot[c->slot].block) {
        mem_pool_give(p->pool, p->slot[c->slot].block);
        pool_model_give(p->model, p->slot[c->slot].address);
        p->slot[c->slot].block = NULL;
        return false;
    }
    uint64_t address;
    struct mem_block *b = NULL;
    enum status st = mem_pool_alloc_on(p->pool, stream_name(c->stream), c->size_bytes, tag, &b, &e);
    bool fits = pool_model_alloc(p->model, c->size_bytes, c->stream, &address);
    if (differ(p, "status", st, fits ? ST_OK : ST_OOM) ||
        differ(p, "slots given back", p->relieved, 0) || (!fits && differ_oom(p, c->size_bytes)))
        return true;
    p->slot[c->slot].block = b;
    p->slot[c->slot].address = address;
    if (!b)
        return differ(p, "block", 0, (int64_t)address);
    return differ(p, "address", (int64_t)mem_block_addr(b), (int64_t)address) ||
           differ(p, "size", mem_block_bytes(b), pool_model_find(p->model, address)->size_bytes) ||
           differ(p, "request", mem_block_requested_bytes(b), c->size_bytes);
}

static void apply_private(struct pair *p, const struct call *c)
{
    struct pool_model *m = p->model;
    struct mem_pool_id id = {(uint64_t)c->slot, 0};
    struct mem_pool_private o = {
        .use_on_oom = m->config.last_resort[c->slot], .no_split = m->config.no_split[c->slot]};
    bool routed = pool_model_routed(m, c->slot);
    if (c->kind == CALL_BEGIN) {
        mem_pool_private_begin(p->pool, id, &o);
        pool_model_begin(m, c->slot);
    } else if (c->kind == CALL_END && m->uses[c->slot] > (routed ? 1 : 0)) {
        mem_pool_private_end(p->pool, id);
        pool_model_end(m, c->slot);
    } else if (c->kind == CALL_UNROUTE && routed) {
        mem_pool_route_end(p->pool, id);
        pool_model_unroute(m, c->slot);
    } else if (
        (c->kind == CALL_ROUTE || c->kind == CALL_CAPTURE) && !routed && m->uses[c->slot] > 0) {
        p->routed[c->slot] = (unsigned)c->size_bytes;
        struct mem_pool_route r = {id, route_matches, &p->routed[c->slot], c->kind == CALL_CAPTURE};
        mem_pool_route_begin(p->pool, &r);
        pool_model_route(m, c->slot, p->routed[c->slot], r.capture);
    }
}

static void apply_switch(struct pair *p)
{
    struct mem_pool_conf conf;
    mem_pool_conf_get(p->pool, &conf);
    conf.expandable_segments = p->model->config.expandable = !p->model->config.expandable;
    mem_pool_conf_set(p->pool, &conf);
}

static void apply_complete(struct pair *p, const struct call *c)
{
    int64_t *d = &p->device.complete[c->stream], *m = &p->model->complete[c->stream];
    int64_t most = p->device.recorded[c->stream] - *d;
    *d += c->size_bytes < most ? c->size_bytes : most;
    *m = *d;
}

/* Makes one call of both; whether they differ in it. */
static bool apply(struct pair *p, const struct call *c)
{
    switch (c->kind) {
    case CALL_SLOT:
        return apply_slot(p, c);
    case CALL_USE:
        if (p->slot[c->slot].block) {
            mem_pool_use_on(p->pool, p->slot[c->slot].block, stream_name(c->stream));
            pool_model_record_stream(p->model, p->slot[c->slot].address, c->stream);
        }
        break;
    case CALL_COMPLETE:
        apply_complete(p, c);
        break;
    case CALL_TRIM:
        mem_pool_trim(p->pool);
        pool_model_empty_cache(p->model);
        break;
    case CALL_RESET_PEAKS:
        mem_pool_reset_peaks(p->pool);
        pool_model_reset_peaks(p->model);
        break;
    case CALL_RESET_SUMS:
        mem_pool_reset_accumulated(p->pool);
        pool_model_reset_accumulated(p->model);
        break;
    case CALL_SWITCH:
        apply_switch(p);
        break;
    case CALL_BEGIN:
    case CALL_END:
    case CALL_ROUTE:
    case CALL_CAPTURE:
    case CALL_UNROUTE:
    case CALL_KINDS:
        apply_private(p, c);
        break;
    }
    return false;
}

static void check_load(struct pair *p);

/* The first call after which they differ, or n. Statistics and maps are compared often, or with
 * `always` after every call. */
static int first_difference(
    struct pair *p, const struct setting *s, const struct call *calls, int n, bool always)
{
    int i = 0;
    pair_open(p, s);
    for (; i < n; i++) {
        if (apply(p, &calls[i]) || ((always || i % 16 == 0) && differ_stats(p)) ||
            ((always || i % 97 == 0 || i == n - 1) && differ_all(p)))
            break;
    }
    if (i == n) {
        if (!s->no_caching)
            check_load(p);
        pair_close(p);
    }
    return i;
}

static void show(const struct call *calls, int n)
{
    for (int i = 0; i < n; i++)
        (void)printf(
            "    {CALL_%s, %d, %d, %lld},\n", call_names[calls[i].kind], calls[i].slot,
            calls[i].stream, (long long)calls[i].size_bytes);
}

/* Leaves out what is not needed for a difference, first much at once, then one by one. */
static int shorten(struct pair *p, const struct setting *s, struct call *calls, int n)
{
    struct call *some = mem_alloc(sizeof *some * (size_t)n);
    n = first_difference(p, s, calls, n, true) + 1;
    for (int size = n / 2 > 0 ? n / 2 : 1; size > 0; size /= 2)
        for (int from = 0; from + size <= n;) {
            memcpy(some, calls, sizeof *some * (size_t)from);
            memcpy(some + from, calls + from + size, sizeof *some * (size_t)(n - from - size));
            int at = first_difference(p, s, some, n - size, true);
            if (at == n - size) {
                from += size;
                continue;
            }
            n = at + 1;
            memcpy(calls, some, sizeof *some * (size_t)n);
        }
    mem_free(some);
    return n;
}

/* A pool that is filled with the memory map of another has that map; pending blocks live in it. */
static void check_load(struct pair *p)
{
    struct device device;
    struct err e = {0};
    struct mem_pool_conf conf;
    struct mem_pool_snapshot a, b;
    device_init(&device, p->device.capacity_bytes);
    mem_pool_conf_get(p->pool, &conf);
    struct mem_pool *q = mem_pool_open(&device.source, &(struct mem_pool_options){.conf = &conf});
    mem_pool_snapshot(p->pool, &a);
    CHECK_OK(mem_pool_load(q, &a, NULL, &e), &e);
    mem_pool_check(q);
    mem_pool_snapshot(q, &b);
    CHECK_EQ(a.segments_n, b.segments_n);
    CHECK_EQ(a.blocks_n, b.blocks_n);
    for (size_t i = 0; i < a.segments_n; i++) {
        const struct mem_segment_info *x = &a.segments[i], *y = &b.segments[i];
        CHECK(x->addr == y->addr && x->size_bytes == y->size_bytes && x->stream == y->stream);
        CHECK(x->small == y->small && x->expandable == y->expandable);
        CHECK(x->pool.first == y->pool.first && x->active_bytes == y->active_bytes);
    }
    for (size_t i = 0; i < a.blocks_n; i++) {
        const struct mem_block_info *x = &a.blocks[i], *y = &b.blocks[i];
        CHECK(x->addr == y->addr && x->size_bytes == y->size_bytes);
        CHECK((x->state == MEM_BLOCK_FREE) == (y->state == MEM_BLOCK_FREE));
        CHECK(x->requested_bytes == y->requested_bytes);
    }
    mem_pool_snapshot_release(&a);
    mem_pool_snapshot_release(&b);
    mem_pool_free(q);
}

static void compare(struct pair *p, const struct setting *s, uint64_t seed, int n)
{
    static struct call calls[CALLS_MAX];
    some_calls(calls, n, s, seed);
    if (first_difference(p, s, calls, n, false) == n)
        return;
    n = shorten(p, s, calls, n);
    if (first_difference(p, s, calls, n, true) == n)
        test_fail(__FILE__, __LINE__, "a difference that does not repeat: %s", p->difference);
    (void)printf("  setting %d: \"%s\", %d MiB\n", (int)(s - settings), s->text, s->capacity_mib);
    show(calls, n);
    test_fail(__FILE__, __LINE__, "after %d calls, the last of these: %s", n, p->difference);
}

TEST_WITHIN(
    pool_model, 900,
    "B6 T5: random calls under 46 settings give the addresses, errors, statistics and memory maps "
    "of an independent model of the rules")
{
    static struct pair p;
    bool soak = getenv("SNUG_SOAK") != NULL;
    int sequences = soak ? 60 : 1, calls = soak ? CALLS_MAX : 2500;
    for (int i = 0; i < SETTINGS_N; i++)
        for (int k = 0; k < sequences; k++)
            compare(&p, &settings[i], test_seed() + (uint64_t)k, calls);
}
