/* replay_run.c - the requests of a trace through a pool of its own: one run, and what several say.
 */
#include "doctor/replay_int.h"

#include <stdlib.h>
#include <string.h>

struct sim {
    const struct snapshot *s;
    const struct snap_device *d;
    int device;
    const struct replay_setting *o;
    struct replay_run *out;
    struct mem_virtual *card;
    struct mem_pool *pool;
    struct mem_block **handles; /* of the device's lives */
    uint16_t *pools;            /* the same; NULL: the default one */
    uint32_t now;
    int64_t reserved_bytes, allocated_bytes;
    bool new_peak;
};

static void on_event(void *ctx, const struct mem_event *m)
{
    struct sim *x = ctx;
    if (m->kind == MEM_EVENT_SEGMENT_ALLOC || m->kind == MEM_EVENT_SEGMENT_MAP)
        x->reserved_bytes += m->size_bytes;
    else if (m->kind == MEM_EVENT_SEGMENT_FREE || m->kind == MEM_EVENT_SEGMENT_UNMAP)
        x->reserved_bytes -= m->size_bytes;
    if (x->reserved_bytes > x->out->reserved_peak_bytes) {
        x->out->reserved_peak_bytes = x->reserved_bytes;
        x->out->peak_event = x->now;
        x->new_peak = true;
    }
}

/* NULL where there is no memory. */
static struct mem_block *take(struct sim *x, uint16_t stream, uint16_t pool, int64_t size)
{
    struct err e;
    struct mem_block *block = NULL;
    struct mem_pool_id id = {x->s->pools[pool].a, x->s->pools[pool].b};
    if (pool != 0) {
        if (mem_pool_private_uses(x->pool, id) == 0)
            mem_pool_private_begin(x->pool, id, NULL);
        mem_pool_route_begin(x->pool, &(struct mem_pool_route){.id = id});
    }
    enum status st =
        mem_pool_alloc_on(x->pool, x->s->streams[stream], size, (struct mem_tag){0}, &block, &e);
    if (pool != 0)
        mem_pool_route_end(x->pool, id);
    if (st != ST_OK) {
        x->out->oom = true;
        x->out->oom_event = x->now;
        x->out->oom_bytes = size;
        return NULL;
    }
    if (block)
        x->allocated_bytes += mem_block_bytes(block);
    if (x->new_peak)
        x->out->allocated_at_peak_bytes = x->allocated_bytes;
    x->new_peak = false;
    return block;
}

static void give(struct sim *x, uint32_t life, bool pending)
{
    struct mem_block **handle = &x->handles[life - x->d->lives_first];
    if (!*handle)
        return;
    x->allocated_bytes -= mem_block_bytes(*handle);
    if (pending)
        mem_pool_use_on(x->pool, *handle, replay_elsewhere(life - x->d->lives_first));
    mem_pool_give(x->pool, *handle);
    *handle = NULL;
}

static void take_life(struct sim *x, uint32_t life, uint16_t stream)
{
    const struct snap_life *l = &x->s->lives[life];
    uint16_t pool = x->pools ? x->pools[life - x->d->lives_first] : 0;
    x->handles[life - x->d->lives_first] = take(x, stream, pool, l->size);
}

static void free_life(struct sim *x, const struct snap_event *v)
{
    uint32_t life = x->s->event_life[x->now];
    const struct snap_life *l = &x->s->lives[life];
    bool completed = v->action == SNAP_FREE_COMPLETED;
    if (completed && replay_was_pending(x->s, x->d, l))
        mem_virtual_complete(x->card, replay_elsewhere(life - x->d->lives_first));
    else if (!completed || l->free_requested == SNAP_NONE)
        give(x, life, replay_is_pending(x->d, l));
}

/* Only the first of a run of segments that were given back: the rest is the same empty_cache. */
static void flush(struct sim *x)
{
    const struct snap_event *v = &x->s->events[x->now];
    bool first = x->now == x->d->events_first ||
                 (v[-1].action != SNAP_SEGMENT_FREE && v[-1].action != SNAP_SEGMENT_UNMAP);
    if (first)
        mem_pool_trim(x->pool);
}

static void step(struct sim *x)
{
    const struct snap_event *v = &x->s->events[x->now];
    switch ((enum snap_action)v->action) {
    case SNAP_ALLOC:
        take_life(x, x->s->event_life[x->now], v->stream);
        break;
    case SNAP_FREE_REQUESTED:
    case SNAP_FREE_COMPLETED:
        if (x->s->event_life[x->now] != SNAP_NONE)
            free_life(x, v);
        break;
    case SNAP_SEGMENT_FREE:
    case SNAP_SEGMENT_UNMAP:
        flush(x);
        break;
    case SNAP_OOM: {
        struct mem_block *block =
            take(x, v->stream, v->pool == SNAP_POOL_UNKNOWN ? 0 : v->pool, v->size);
        if (block)
            x->allocated_bytes -= mem_block_bytes(block);
        mem_pool_give(x->pool, block);
        break;
    }
    case SNAP_SEGMENT_ALLOC:
    case SNAP_SEGMENT_MAP:
    case SNAP_SNAPSHOT:
    case SNAP_ANNOTATE:
    case SNAP_OTHER:
    case SNAP_ACTION_COUNT:
        break;
    }
}

/* ---- What lived before the first event ---- */

struct early {
    uint64_t addr;
    uint32_t life;
};

static int by_address(const void *a, const void *b)
{
    const struct early *x = a, *y = b;
    return x->addr < y->addr ? -1 : x->addr > y->addr;
}

/* The stream of a life: of one of its events, or of its block's segment. */
static uint16_t stream_of(const struct snapshot *s, const struct snap_life *l)
{
    uint32_t event = l->free_requested != SNAP_NONE ? l->free_requested : l->free_completed;
    if (event != SNAP_NONE)
        return s->events[event].stream;
    return l->block != SNAP_NONE ? s->segments[s->blocks[l->block].segment].stream : 0;
}

static void begin(struct sim *x)
{
    const struct snap_device *d = x->d;
    struct early *all = mem_alloc(((size_t)d->earlier_n + 1) * sizeof *all);
    size_t n = 0;
    for (uint32_t i = d->lives_first; i < d->lives_first + d->lives_n; i++)
        if (x->s->lives[i].alloc == SNAP_NONE)
            all[n++] = (struct early){x->s->lives[i].addr, i};
    qsort(all, n, sizeof *all, by_address);
    for (size_t i = 0; i < n && !x->out->oom; i++) {
        const struct snap_life *l = &x->s->lives[all[i].life];
        take_life(x, all[i].life, stream_of(x->s, l));
        if (replay_was_dropped(x->s, d, l))
            give(x, all[i].life, true);
    }
    mem_free(all);
}

/* ---- A run ---- */

static void look_around(struct sim *x)
{
    struct mem_pool_snapshot map;
    mem_pool_snapshot(x->pool, &map);
    for (size_t i = 0; i < map.blocks_n; i++)
        if (map.blocks[i].state == MEM_BLOCK_FREE &&
            map.blocks[i].size_bytes > x->out->largest_free_bytes)
            x->out->largest_free_bytes = map.blocks[i].size_bytes;
    mem_pool_snapshot_release(&map);
}

static void take_figures(struct sim *x, bool look)
{
    struct mem_pool_stats stats;
    struct mem_virtual_calls calls = mem_virtual_calls(x->card);
    mem_pool_stats(x->pool, &stats);
    x->out->allocated_peak_bytes = stats.allocated_bytes[MEM_STAT_ALL].peak;
    x->out->requested_peak_bytes = stats.requested_bytes[MEM_STAT_ALL].peak;
    x->out->retries_n = stats.num_alloc_retries;
    x->out->segments_taken_n = calls.take_n;
    x->out->segments_given_n = calls.give_n;
    x->out->maps_n = calls.map_n;
    x->out->unmaps_n = calls.unmap_n;
    x->out->reserved_bytes = x->reserved_bytes;
    x->out->allocated_bytes = x->allocated_bytes;
    x->out->largest_free_bytes = look ? 0 : -1;
    if (look)
        look_around(x);
}

enum status replay_run(
    const struct snapshot *s, int device, const struct replay_setting *o, bool look,
    struct replay_run *out, struct err *e)
{
    *out = (struct replay_run){.oom_event = SNAP_NONE, .peak_event = SNAP_NONE};
    if (device < 0 || device >= s->devices_n)
        return err_set(
            e, ST_INVALID, "the snapshot has no device %d: it has %d", device, s->devices_n);
    struct sim x = {.s = s, .d = &s->devices[device], .device = device, .o = o, .out = out};
    x.card = mem_virtual_new(&(struct mem_virtual_options){
        .order = o->order,
        .seed = o->seed,
        .capacity_bytes = o->capacity_bytes,
        .manual_events = true});
    x.pool = mem_pool_open(
        mem_virtual_source(x.card),
        &(struct mem_pool_options){.conf = o->conf, .listen = on_event, .listen_ctx = &x});
    x.handles = mem_alloc(((size_t)x.d->lives_n + 1) * sizeof(struct mem_block *));
    x.pools = replay_pools(s, device);
    x.now = SNAP_NONE;
    begin(&x);
    uint32_t end = x.d->events_first + x.d->events_n;
    for (uint32_t i = x.d->events_first; i < end && i < o->stop_event && !out->oom; i++) {
        x.now = i;
        step(&x);
    }
    take_figures(&x, look);
    mem_pool_listen(x.pool, NULL, NULL);
    mem_pool_free(x.pool);
    mem_virtual_free(x.card);
    mem_free(x.handles);
    mem_free(x.pools);
    return ST_OK;
}

/* ---- Several runs ---- */

enum { PAGE_BYTES = 2 << 20 };

static int64_t round_up(int64_t n)
{
    return (n + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

static enum status try_orders(
    const struct snapshot *s, int device, struct replay_setting o, int n,
    struct replay_outcome *out, struct err *e)
{
    struct replay_run run;
    o.capacity_bytes = 0;
    for (int i = 0; i < n; i++) {
        o.order = i == 0   ? MEM_VIRTUAL_ASCENDING
                  : i == 1 ? MEM_VIRTUAL_DESCENDING
                           : MEM_VIRTUAL_RANDOM;
        o.seed = (uint64_t)i;
        TRY(replay_run(s, device, &o, false, &run, e));
        int64_t peak = run.reserved_peak_bytes;
        if (i == 0 || peak < out->reserved_peak_bytes_min)
            out->reserved_peak_bytes_min = peak;
        if (i == 0 || peak > out->reserved_peak_bytes_max)
            out->reserved_peak_bytes_max = peak;
    }
    return ST_OK;
}

/* The smallest capacity that passes: below what is allocated at once none does, the peak without a
 * limit always does. In between it is not quite monotonic; what is found passes. */
static enum status bisect(
    const struct snapshot *s, int device, struct replay_setting o, int64_t passes, int64_t floor,
    int steps_max, struct replay_outcome *out, struct err *e)
{
    struct replay_run run;
    int64_t low = round_up(floor) - PAGE_BYTES, high = passes;
    for (int i = 0; i < steps_max && high - low > PAGE_BYTES; i++) {
        o.capacity_bytes = low + (high - low) / 2 / PAGE_BYTES * PAGE_BYTES;
        if (o.capacity_bytes <= low)
            break;
        TRY(replay_run(s, device, &o, false, &run, e));
        if (run.oom)
            low = o.capacity_bytes;
        else
            high = o.capacity_bytes;
    }
    out->capacity_needed_bytes = high;
    out->capacity_tolerance_bytes = high - low;
    return ST_OK;
}

/* The largest free block when the most was reserved. */
static enum status look_at_peak(
    const struct snapshot *s, int device, struct replay_setting o, struct replay_outcome *out,
    struct err *e)
{
    struct replay_run run;
    o.stop_event = out->run.peak_event == SNAP_NONE ? s->devices[device].events_first
                                                    : out->run.peak_event + 1;
    TRY(replay_run(s, device, &o, true, &run, e));
    out->largest_free_at_peak_bytes = run.largest_free_bytes;
    return ST_OK;
}

enum status replay_ask(
    const struct snapshot *s, int device, const struct mem_pool_conf *conf,
    const struct replay_question *q, struct replay_outcome *out, struct err *e)
{
    struct replay_setting o = {
        .conf = conf, .capacity_bytes = q->capacity_bytes, .stop_event = SNAP_NONE};
    struct replay_run free_run;
    *out = (struct replay_outcome){.capacity_needed_bytes = -1};
    TRY(replay_run(s, device, &o, false, &out->run, e));
    free_run = out->run;
    o.capacity_bytes = 0;
    if (q->capacity_bytes > 0 && (q->bisect || q->orders_n > 0))
        TRY(replay_run(s, device, &o, false, &free_run, e));
    out->reserved_peak_bytes_min = out->reserved_peak_bytes_max = free_run.reserved_peak_bytes;
    if (q->orders_n > 1)
        TRY(try_orders(s, device, o, q->orders_n, out, e));
    if (q->bisect)
        TRY(bisect(
            s, device, o, free_run.reserved_peak_bytes, free_run.allocated_peak_bytes,
            q->bisect_steps_max, out, e));
    o.capacity_bytes = q->capacity_bytes;
    return look_at_peak(s, device, o, out, e);
}
