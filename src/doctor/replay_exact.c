/* replay_exact.c - plays a trace through mem/pool and compares what it does with what was recorded.
 *
 * The driver is an oracle: it looks at the recorded segment events that stand between the last
 * request and this one (the window) and lets the pool have what the recording had. Events of the
 * pool are taken off the window as they come; what is left in it afterwards was not predicted.
 */
#include "doctor/replay_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where the recording has no address: above all real ones. */
#define UNKNOWN_FIRST ((uint64_t)1 << 62)
#define UNKNOWN_STEP ((uint64_t)1 << 40)
#define MIB ((int64_t)1 << 20)
/* What the card is taken to have, for the address ranges of expandable segments. */
#define TOTAL_BYTES ((int64_t)256 << 30)

struct play {
    const struct snapshot *s;
    const struct snap_device *d;
    int device;
    struct replay_exact *out;
    struct mem_pool *pool;
    struct mem_source source;
    struct replay_start *start;
    const struct mem_pool_conf *conf;
    struct mem_block **handles; /* of the device's lives */
    uint16_t *pools;            /* the same; NULL: the default one */
    /* Recorded segment events that this call should make, in order. */
    VEC(uint32_t) window;
    size_t window_at;         /* those before have come */
    uint32_t now;             /* the event that is played */
    bool fails;               /* it is a request that failed */
    struct replay_base asked; /* the kind of the request that is played */
    bool giving;              /* blocks that nothing else uses: complete at once */
    uint64_t next_unknown;
    int64_t total_bytes, device_free_bytes;
    uint8_t *done;      /* of the device's lives: the recording has completed the pending free */
    int64_t completing; /* those of them that the pool has not yet completed */
    int64_t reserved_bytes, allocated_bytes;
    /* The first difference, where it is an address: what was predicted. 0: it is none. */
    uint64_t wrong_addr;
    uint32_t wrong_event;
};

static uint32_t wrongs(const struct replay_exact *x)
{
    return x->allocs_wrong_n + x->segments_wrong_n + x->ooms_wrong_n + x->pending_wrong_n +
           x->blocks_wrong_n;
}

static void wrong(struct play *p, uint32_t event, const char *fmt, ...) PRINTF(3, 4);
static void wrong(struct play *p, uint32_t event, const char *fmt, ...)
{
    char text[200];
    va_list ap;
    if (p->out->first_wrong[0])
        return;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (event == SNAP_NONE)
        (void)snprintf(p->out->first_wrong, sizeof p->out->first_wrong, "%s", text);
    else
        (void)snprintf(
            p->out->first_wrong, sizeof p->out->first_wrong, "event %u of device %d: %s",
            event - p->d->events_first, p->device, text);
}

/* ---- The driver ---- */

static const struct snap_event *head(const struct play *p)
{
    return p->window_at < p->window.n ? &p->s->events[p->window.data[p->window_at]] : NULL;
}

/* Whether the recorded driver refused here: memory was given back before anything was taken, or the
 * request failed. */
static bool refuses(const struct play *p)
{
    const struct snap_event *v = head(p);
    if (!v)
        return p->fails;
    return v->action == SNAP_SEGMENT_FREE || v->action == SNAP_SEGMENT_UNMAP;
}

static uint64_t unknown_address(struct play *p)
{
    p->next_unknown += UNKNOWN_STEP;
    return p->next_unknown;
}

static uint64_t oracle_take(struct mem_source *source, int64_t size_bytes)
{
    struct play *p = source->ctx;
    const struct snap_event *v = head(p);
    if (refuses(p))
        return 0;
    return v && v->action == SNAP_SEGMENT_ALLOC && v->size == size_bytes ? v->addr
                                                                         : unknown_address(p);
}

static void oracle_give(struct mem_source *source, uint64_t addr, int64_t size_bytes)
{
    (void)source;
    (void)addr;
    (void)size_bytes;
}

/* Addresses are always to be had, also where there is no memory to map: the reservation then waits
 * for a later request. It begins where the recording next maps in a new one of this kind. */
static uint64_t oracle_reserve(struct mem_source *source, int64_t size_bytes)
{
    struct play *p = source->ctx;
    (void)size_bytes;
    for (size_t i = 0; i < p->start->bases.n; i++) {
        struct replay_base *b = &p->start->bases.data[i];
        if (b->used || b->stream != p->asked.stream || b->pool != p->asked.pool ||
            b->large != p->asked.large)
            continue;
        b->used = true;
        return b->addr;
    }
    return unknown_address(p);
}

static bool oracle_map(struct mem_source *source, uint64_t addr, int64_t size_bytes)
{
    struct play *p = source->ctx;
    (void)addr;
    (void)size_bytes;
    return !refuses(p);
}

/* An event of a stream of replay_elsewhere is named by that stream. */
static uint64_t oracle_record(struct mem_source *source, uint64_t stream)
{
    (void)source;
    return stream;
}

static bool oracle_done(struct mem_source *source, uint64_t event)
{
    const struct play *p = source->ctx;
    return p->done[event & UINT32_MAX] != 0;
}

static void oracle_wait(struct mem_source *source, uint64_t event)
{
    (void)source;
    (void)event;
}

static void oracle_info(struct mem_source *source, int64_t *free_bytes, int64_t *total_bytes)
{
    const struct play *p = source->ctx;
    *free_bytes = p->device_free_bytes;
    *total_bytes = p->total_bytes;
}

static void oracle_init(struct play *p)
{
    p->source = (struct mem_source){
        .take = oracle_take,
        .give = oracle_give,
        .info = oracle_info,
        .reserve = oracle_reserve,
        .release = oracle_give,
        .map = oracle_map,
        .unmap = oracle_give,
        .event_record = oracle_record,
        .event_done = oracle_done,
        .event_wait = oracle_wait,
        .ctx = p,
        .device = "recording"};
    p->next_unknown = UNKNOWN_FIRST;
}

/* ---- What the pool does ---- */

static bool is_same(const struct mem_event *m, const struct snap_event *v)
{
    static const uint8_t actions[MEM_EVENT_N] = {
        [MEM_EVENT_SEGMENT_ALLOC] = SNAP_SEGMENT_ALLOC,
        [MEM_EVENT_SEGMENT_FREE] = SNAP_SEGMENT_FREE,
        [MEM_EVENT_SEGMENT_MAP] = SNAP_SEGMENT_MAP,
        [MEM_EVENT_SEGMENT_UNMAP] = SNAP_SEGMENT_UNMAP};
    return actions[m->kind] == v->action && m->addr == v->addr && m->size_bytes == v->size;
}

/* Takes the event off the window: its head, or one behind it. */
static void on_segment(struct play *p, const struct mem_event *m)
{
    size_t i = p->window_at;
    while (i < p->window.n && !is_same(m, &p->s->events[p->window.data[i]]))
        i++;
    if (i == p->window.n) {
        p->out->segments_wrong_n++;
        wrong(
            p, p->now, "%s of %lld bytes at 0x%llx is predicted and was not recorded",
            mem_event_name(m->kind), (long long)m->size_bytes, (unsigned long long)m->addr);
        return;
    }
    p->out->reordered_n += i > p->window_at;
    uint32_t event = p->window.data[i];
    memmove(
        p->window.data + p->window_at + 1, p->window.data + p->window_at,
        (i - p->window_at) * sizeof event);
    p->window.data[p->window_at++] = event;
}

static void on_event(void *ctx, const struct mem_event *m)
{
    struct play *p = ctx;
    switch (m->kind) {
    case MEM_EVENT_SEGMENT_ALLOC:
    case MEM_EVENT_SEGMENT_MAP:
        p->reserved_bytes += m->size_bytes;
        if (p->reserved_bytes > p->out->reserved_peak_bytes)
            p->out->reserved_peak_bytes = p->reserved_bytes;
        on_segment(p, m);
        break;
    case MEM_EVENT_SEGMENT_FREE:
    case MEM_EVENT_SEGMENT_UNMAP:
        p->reserved_bytes -= m->size_bytes;
        on_segment(p, m);
        break;
    case MEM_EVENT_FREE_COMPLETED:
        if (!p->giving)
            p->completing--;
        break;
    case MEM_EVENT_ALLOC:
    case MEM_EVENT_FREE_REQUESTED:
    case MEM_EVENT_SNAPSHOT:
    case MEM_EVENT_OOM:
    case MEM_EVENT_N:
        break;
    }
}

/* ---- The steps of the trace ---- */

/* What the recording did and the pool did not. */
static void close_window(struct play *p)
{
    for (size_t i = p->window_at; i < p->window.n; i++) {
        const struct snap_event *v = &p->s->events[p->window.data[i]];
        p->out->segments_wrong_n++;
        wrong(
            p, p->window.data[i], "%s of %lld bytes at 0x%llx was recorded and is not predicted",
            snap_action_name((enum snap_action)v->action), (long long)v->size,
            (unsigned long long)v->addr);
    }
    p->window.n = p->window_at = 0;
    if (p->completing != 0) {
        p->out->pending_wrong_n++;
        wrong(p, p->now, "a pending free completes at another time than recorded");
        p->completing = 0;
    }
}

static bool is_given_back(const struct play *p, size_t i)
{
    uint8_t action = p->s->events[p->window.data[i]].action;
    return action == SNAP_SEGMENT_FREE || action == SNAP_SEGMENT_UNMAP;
}

static bool in_front(const struct play *p, uint64_t addr, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p->s->events[p->window.data[i]].addr == addr)
            return true;
    return false;
}

/* Whether the first n of the window are all that a flush would give back. Under max_split_size and
 * garbage collection some segments may go alone, which is part of a request. */
static bool is_flush(struct play *p, size_t n, const struct mem_pool_conf *conf)
{
    struct mem_pool_snapshot map;
    bool all = true;
    if (conf->max_split_size_bytes == MEM_POOL_UNLIMITED && conf->garbage_collection_threshold == 0)
        return true;
    mem_pool_snapshot(p->pool, &map);
    for (size_t i = 0; i < map.segments_n && all; i++) {
        const struct mem_segment_info *g = &map.segments[i];
        bool whole = g->blocks_n == 1 && map.blocks[g->first_block].state == MEM_BLOCK_FREE;
        bool shared = g->pool.first == 0 && g->pool.second == 0;
        all = !whole || !shared || in_front(p, g->addr, n);
    }
    mem_pool_snapshot_release(&map);
    return all;
}

/* Private pools give memory back only when nobody uses them any more. */
static void end_private(struct play *p, size_t n)
{
    struct mem_pool_snapshot map;
    if (p->s->pools_n < 2)
        return;
    mem_pool_snapshot(p->pool, &map);
    for (size_t i = 0; i < map.segments_n; i++) {
        const struct mem_segment_info *g = &map.segments[i];
        if ((g->pool.first || g->pool.second) && in_front(p, g->addr, n))
            while (mem_pool_private_uses(p->pool, g->pool) > 0)
                mem_pool_private_end(p->pool, g->pool);
    }
    mem_pool_snapshot_release(&map);
}

/* Segments at the head of the window that were given back: a flush, by empty_cache or by a request
 * that found no memory, which is the same. */
static void flush(struct play *p, const struct mem_pool_conf *conf)
{
    size_t n = 0, all = p->window.n;
    while (n < all && is_given_back(p, n))
        n++;
    if (n == 0 || !is_flush(p, n, conf))
        return;
    end_private(p, n);
    p->window.n = n;
    p->window_at = 0;
    mem_pool_trim(p->pool);
    uint32_t *rest = p->window.data + n;
    size_t left = n - p->window_at;
    if (left > 0) {
        close_window(p);
    }
    memmove(p->window.data, rest, (all - n) * sizeof *rest);
    p->window.n = all - n;
    p->window_at = 0;
}

static enum status
ask(struct play *p, const struct snap_event *v, uint16_t pool, int64_t size, struct mem_block **out)
{
    struct err e;
    uint64_t stream = p->s->streams[v->stream];
    struct mem_pool_id id = {p->s->pools[pool].a, p->s->pools[pool].b};
    struct mem_tag tag = {0};
    bool small = size <= MIB && mem_pool_is_small(mem_pool_round_size(p->conf, size));
    p->asked = (struct replay_base){.stream = v->stream, .pool = pool, .large = !small};
    if (pool == 0)
        return mem_pool_alloc_on(p->pool, stream, size, tag, out, &e);
    if (mem_pool_private_uses(p->pool, id) == 0)
        mem_pool_private_begin(p->pool, id, NULL);
    mem_pool_route_begin(p->pool, &(struct mem_pool_route){.id = id});
    enum status st = mem_pool_alloc_on(p->pool, stream, size, tag, out, &e);
    mem_pool_route_end(p->pool, id);
    return st;
}

static void count_allocated(struct play *p, int64_t bytes, uint32_t event)
{
    p->allocated_bytes += bytes;
    if (p->allocated_bytes > p->out->allocated_peak_bytes) {
        p->out->allocated_peak_bytes = p->allocated_bytes;
        p->out->peak_event = event;
    }
}

static void play_alloc(struct play *p, const struct snap_event *v)
{
    uint32_t life = p->s->event_life[p->now];
    struct mem_block *block = NULL;
    uint16_t pool = p->pools ? p->pools[life - p->d->lives_first] : 0;
    enum status st = ask(p, v, pool, v->size, &block);
    close_window(p);
    p->out->allocs_n++;
    p->handles[life - p->d->lives_first] = block;
    uint64_t addr = block ? mem_block_addr(block) : 0;
    if (st != ST_OK || addr != v->addr) {
        if (wrongs(p->out) == 0) {
            p->wrong_addr = addr;
            p->wrong_event = p->now;
        }
        p->out->allocs_wrong_n++;
        wrong(
            p, p->now, "an allocation of %lld bytes is predicted at 0x%llx and was at 0x%llx",
            (long long)v->size, (unsigned long long)addr, (unsigned long long)v->addr);
    }
    if (block)
        count_allocated(p, mem_block_bytes(block), p->now);
}

static void play_oom(struct play *p, const struct snap_event *v)
{
    struct mem_block *block = NULL;
    p->device_free_bytes = (int64_t)(v->addr < INT64_MAX ? v->addr : INT64_MAX);
    p->fails = true;
    enum status st = ask(p, v, v->pool == SNAP_POOL_UNKNOWN ? 0 : v->pool, v->size, &block);
    p->fails = false;
    close_window(p);
    p->out->ooms_n++;
    p->out->oom_event = p->now;
    p->out->oom_free_bytes = p->device_free_bytes;
    p->out->oom_reserved_bytes = p->reserved_bytes;
    if (st == ST_OK) {
        p->out->ooms_wrong_n++;
        wrong(p, p->now, "a request of %lld bytes failed and finds memory", (long long)v->size);
        mem_pool_give(p->pool, block);
    }
}

static void give(struct play *p, uint32_t life, bool pending)
{
    struct mem_block **handle = &p->handles[life - p->d->lives_first];
    if (!*handle)
        return;
    p->allocated_bytes -= mem_block_bytes(*handle);
    if (pending)
        mem_pool_use_on(p->pool, *handle, replay_elsewhere(life - p->d->lives_first));
    p->giving = true;
    mem_pool_give(p->pool, *handle);
    p->giving = false;
    *handle = NULL;
}

static void play_free(struct play *p, const struct snap_event *v)
{
    uint32_t life = p->s->event_life[p->now];
    const struct snap_life *x = &p->s->lives[life];
    bool completed = v->action == SNAP_FREE_COMPLETED;
    if (completed && replay_was_pending(p->s, p->d, x)) {
        p->done[life - p->d->lives_first] = 1;
        p->completing++;
        p->out->pending_n++;
        return;
    }
    if (completed && x->free_requested != SNAP_NONE)
        return;
    /* Nothing but a request or empty_cache completes pending frees; this one gave nothing back. */
    if (p->completing > 0 && p->window.n == 0)
        mem_pool_trim(p->pool);
    close_window(p);
    give(p, life, replay_is_pending(p->d, x));
}

static void play(struct play *p, uint32_t event, const struct mem_pool_conf *conf)
{
    const struct snap_event *v = &p->s->events[event];
    p->now = event;
    switch ((enum snap_action)v->action) {
    case SNAP_SEGMENT_ALLOC:
    case SNAP_SEGMENT_FREE:
    case SNAP_SEGMENT_MAP:
    case SNAP_SEGMENT_UNMAP:
        p->out->segments_n++;
        vec_push(&p->window, event);
        break;
    case SNAP_ALLOC:
        flush(p, conf);
        play_alloc(p, v);
        break;
    case SNAP_OOM:
        flush(p, conf);
        play_oom(p, v);
        break;
    case SNAP_FREE_REQUESTED:
    case SNAP_FREE_COMPLETED:
        if (p->s->event_life[event] == SNAP_NONE)
            break;
        flush(p, conf);
        play_free(p, v);
        break;
    case SNAP_SNAPSHOT:
    case SNAP_ANNOTATE:
    case SNAP_OTHER:
    case SNAP_ACTION_COUNT:
        break;
    }
}

/* ---- The start and the end ---- */

static enum status
set_up(struct play *p, const struct replay_start *start, struct mem_block **handles, struct err *e)
{
    const struct mem_pool_snapshot *l = &start->layout;
    for (size_t i = 0; i < l->segments_n; i++) /* until the recording shows otherwise, in use */
        if ((l->segments[i].pool.first || l->segments[i].pool.second) &&
            mem_pool_private_uses(p->pool, l->segments[i].pool) == 0)
            mem_pool_private_begin(p->pool, l->segments[i].pool, NULL);
    TRY(mem_pool_load(p->pool, l, handles, e));
    for (size_t i = 0; i < l->segments_n; i++)
        p->reserved_bytes += l->segments[i].size_bytes;
    for (size_t i = 0; i < l->blocks_n; i++) {
        if (!handles[i])
            continue;
        p->handles[start->life_of_block[i] - p->d->lives_first] = handles[i];
        count_allocated(p, l->blocks[i].size_bytes, SNAP_NONE);
    }
    /* Dropped before the first event, and still in use elsewhere. */
    for (uint32_t i = p->d->lives_first; i < p->d->lives_first + p->d->lives_n; i++)
        if (replay_was_dropped(p->s, p->d, &p->s->lives[i]))
            give(p, i, true);
    p->out->reserved_start_bytes = p->out->reserved_peak_bytes = p->reserved_bytes;
    p->out->allocated_start_bytes = p->out->allocated_peak_bytes = p->allocated_bytes;
    p->out->start_blocks_n = start->lives_n;
    p->out->unplaced_n = start->unplaced_n;
    p->out->ambiguous_n = start->ambiguous_n;
    p->out->blocks_wrong_n = start->unplaced_n;
    return ST_OK;
}

struct flat {
    uint64_t addr;
    int64_t size, requested;
    int state;
};

static int by_address(const void *a, const void *b)
{
    const struct flat *x = a, *y = b;
    return x->addr < y->addr ? -1 : x->addr > y->addr;
}

/* The blocks of the pool by address: its reservations may lie within one another's reach. */
static struct flat *flatten(const struct mem_pool_snapshot *map)
{
    static const int states[] = {
        [MEM_BLOCK_FREE] = SNAP_INACTIVE,
        [MEM_BLOCK_ALLOCATED] = SNAP_ACTIVE,
        [MEM_BLOCK_PENDING_FREE] = SNAP_PENDING};
    struct flat *all = mem_alloc((map->blocks_n + 1) * sizeof *all);
    for (size_t i = 0; i < map->blocks_n; i++) {
        const struct mem_block_info *k = &map->blocks[i];
        all[i] = (struct flat){k->addr, k->size_bytes, k->requested_bytes, states[k->state]};
    }
    qsort(all, map->blocks_n, sizeof *all, by_address);
    return all;
}

static bool block_matches(const struct snap_block *k, const struct flat *f)
{
    bool requested =
        k->state == SNAP_INACTIVE || k->requested_size < 0 || k->requested_size == f->requested;
    return k->size == f->size && (int)k->state == f->state && requested;
}

static void compare_end(struct play *p)
{
    const struct snap_device *d = p->d;
    struct mem_pool_snapshot map;
    mem_pool_snapshot(p->pool, &map);
    struct flat *all = flatten(&map);
    size_t at = 0;
    for (uint32_t i = 0; i < d->segments_n; i++) {
        const struct snap_segment *g = &p->s->segments[d->segments_first + i];
        for (uint32_t n = g->first_block; n < g->first_block + g->blocks_n; n++) {
            const struct snap_block *k = &p->s->blocks[n];
            for (; at < map.blocks_n && all[at].addr < k->addr; at++)
                p->out->blocks_wrong_n++;
            bool there = at < map.blocks_n && all[at].addr == k->addr;
            bool same = there && block_matches(k, &all[at]);
            at += there;
            p->out->blocks_n++;
            p->out->blocks_wrong_n += !same;
            if (!same)
                wrong(
                    p, SNAP_NONE,
                    "at the end, the block of %lld bytes at 0x%llx of device %d is not predicted",
                    (long long)k->size, (unsigned long long)k->addr, p->device);
        }
    }
    p->out->blocks_wrong_n += (uint32_t)(map.blocks_n - at);
    mem_free(all);
    mem_pool_snapshot_release(&map);
}

/* The recorded settings without what the oracle decides. */
static struct mem_pool_conf oracle_conf(const struct mem_pool_conf *conf)
{
    struct mem_pool_conf c = *conf;
    c.per_process_memory_fraction = 1;
    c.throw_on_cudamalloc_oom = false;
    c.release_lock_on_cudamalloc = false;
    return c;
}

/* What the card is taken to have: 9/8 of it is the reach of a reservation, which counts where one
 * comes to its end. Those that were full tell it; else it is a guess. */
static int64_t total_of(const struct replay_start *start, int64_t guess)
{
    int64_t most = start->full_bytes > start->span_bytes ? start->full_bytes : start->span_bytes;
    int64_t least = most / 9 * 8 + 8;
    return guess < least ? least : guess;
}

static enum status
run(struct play *p, const struct mem_pool_conf *conf, struct replay_start *start, int64_t guess,
    struct err *e)
{
    struct mem_block **handles =
        mem_alloc((start->layout.blocks_n + 1) * sizeof(struct mem_block *));
    enum status st;
    p->start = start;
    p->conf = conf;
    p->total_bytes = p->device_free_bytes = total_of(start, guess);
    p->pool = mem_pool_open(&p->source, &(struct mem_pool_options){.conf = conf});
    TRY_OUT(set_up(p, start, handles, e));
    mem_pool_listen(p->pool, on_event, p);
    for (uint32_t i = 0; i < p->d->events_n; i++)
        play(p, p->d->events_first + i, conf);
    flush(p, conf);
    close_window(p);
    mem_pool_listen(p->pool, NULL, NULL);
    compare_end(p);
out:
    mem_free(handles);
    mem_pool_free(p->pool);
    return st;
}

/* The large block of the start that ends where the first wrong address was predicted: the free
 * block behind it was too small for the request, so the block is larger than what was asked for. 0
 * bytes: there is none. As long as it lives, all that matters is that nothing fits behind it. */
static struct replay_slack slack_of(const struct play *p, const struct replay_start *start)
{
    const struct mem_pool_snapshot *l = &start->layout;
    const int64_t most = (int64_t)1 << 20;
    for (size_t i = 0; i < l->segments_n; i++) {
        const struct mem_segment_info *g = &l->segments[i];
        if (g->small || g->expandable || p->wrong_addr - g->addr >= (uint64_t)g->size_bytes)
            continue;
        for (size_t k = g->first_block; k + 1 < g->first_block + g->blocks_n; k++) {
            const struct mem_block_info *b = &l->blocks[k], *behind = b + 1;
            uint32_t life = start->life_of_block[k];
            if (behind->addr != p->wrong_addr || life == SNAP_NONE ||
                behind->state != MEM_BLOCK_FREE || behind->size_bytes <= most + 512)
                continue;
            int64_t bytes = behind->size_bytes - most - 512;
            return (struct replay_slack){life, bytes < most ? bytes : most};
        }
    }
    return (struct replay_slack){0};
}

/* `slack`: what could be tried next. */
static enum status attempt(
    const struct snapshot *s, int device, const struct mem_pool_conf *conf,
    const struct replay_guess *guess, struct replay_exact *out, struct replay_slack *slack,
    uint32_t *heads_n, struct err *e)
{
    struct play p = {.s = s, .d = &s->devices[device], .device = device, .out = out};
    struct mem_pool_conf c = oracle_conf(conf);
    struct replay_start start;
    *out = (struct replay_exact){.peak_event = SNAP_NONE, .oom_event = SNAP_NONE};
    oracle_init(&p);
    p.handles = mem_alloc(((size_t)p.d->lives_n + 1) * sizeof(struct mem_block *));
    p.done = mem_alloc((size_t)p.d->lives_n + 1);
    p.pools = replay_pools(s, device);
    enum status st = replay_start_make(s, device, &c, guess, &start, e);
    *heads_n = start.heads_n;
    if (st == ST_OK)
        st = run(&p, &c, &start, guess->total_bytes, e);
    *slack = st == ST_OK && p.wrong_addr ? slack_of(&p, &start) : (struct replay_slack){0};
    replay_start_release(&start);
    vec_release(&p.window);
    mem_free(p.handles);
    mem_free(p.done);
    mem_free(p.pools);
    return st;
}

static int64_t segment_change(const struct snap_event *v)
{
    return v->action == SNAP_SEGMENT_ALLOC || v->action == SNAP_SEGMENT_MAP    ? v->size
           : v->action == SNAP_SEGMENT_FREE || v->action == SNAP_SEGMENT_UNMAP ? -v->size
                                                                               : 0;
}

/* The least that the card has: free and reserved bytes when a request failed. 0: none did. */
static int64_t total_at_oom(const struct snapshot *s, const struct snap_device *d)
{
    int64_t reserved = d->reserved_bytes, most = 0;
    for (uint32_t i = d->events_first + d->events_n; i-- > d->events_first;) {
        const struct snap_event *v = &s->events[i];
        reserved -= segment_change(v);
        if (v->action == SNAP_OOM && v->addr < (uint64_t)1 << 50 &&
            reserved + (int64_t)v->addr > most)
            most = reserved + (int64_t)v->addr;
    }
    return most;
}

enum { GUESSES_MAX = 24, SLACKS_MAX = 64, GUESSED_EVENTS_MAX = 4000000 };

/* The least the card can have, then nothing in the way, then the sizes that cards have. */
static int list_guesses(const struct snapshot *s, const struct snap_device *d, int64_t *out)
{
    static const double gib[] = {7.8,   10.8, 11.8, 14.6, 15.8, 19.6, 22.2,  23.7,
                                 31.75, 39.4, 44.5, 47.5, 79.2, 94.5, 139.8, 178};
    int64_t least = total_at_oom(s, d);
    int n = 0;
    if (least > 0)
        out[n++] = least;
    out[n++] = TOTAL_BYTES;
    out[n++] = 0;
    if (least > 0)
        out[n++] = least + ((int64_t)1 << 29);
    for (size_t i = 0; i < sizeof gib / sizeof *gib; i++)
        if ((int64_t)(gib[i] * 1073741824.0) > least)
            out[n++] = (int64_t)(gib[i] * 1073741824.0);
    return n;
}

/* All that is tried for a device. */
struct trial {
    const struct snapshot *s;
    int device;
    const struct mem_pool_conf *conf;
    int64_t events_n; /* played so far */
    struct replay_guess best;
    struct replay_slack slack; /* of the best */
    enum status st;
    struct err e;
    struct replay_exact x;
};

static bool is_done(const struct trial *t)
{
    return (t->st == ST_OK && wrongs(&t->x) == 0) || t->events_n > GUESSED_EVENTS_MAX;
}

/* Keeps what is better; answers whether it was. */
static bool try_guess(struct trial *t, const struct replay_guess *guess, uint32_t *heads_n)
{
    struct replay_exact x;
    struct replay_slack slack;
    struct err e = {0};
    enum status st = attempt(t->s, t->device, t->conf, guess, &x, &slack, heads_n, &e);
    bool first = t->events_n == 0;
    t->events_n += t->s->devices[t->device].events_n + 1;
    if (!first && (st != ST_OK || (t->st == ST_OK && wrongs(&x) >= wrongs(&t->x))))
        return false;
    t->x = x;
    t->st = st;
    t->e = e;
    t->slack = slack;
    t->best.heads_are_new = guess->heads_are_new;
    t->best.total_bytes = guess->total_bytes;
    return true;
}

/* Where reservations end. */
static void try_totals(struct trial *t)
{
    const struct snap_device *d = &t->s->devices[t->device];
    bool expands = d->actions_n[SNAP_SEGMENT_MAP] > 0 || t->conf->expandable_segments;
    int64_t totals[GUESSES_MAX];
    int n = list_guesses(t->s, d, totals);
    for (int i = 0; i < 2 * n && (i == 0 || (expands && !is_done(t))); i++) {
        struct replay_guess guess = {.heads_are_new = i % 2 == 0, .total_bytes = totals[i / 2]};
        uint32_t heads_n;
        (void)try_guess(t, &guess, &heads_n);
        i += heads_n == 0; /* the other answer is the same */
    }
}

/* Blocks of the start, one after another as they are met. */
static void try_slacks(struct trial *t)
{
    uint32_t heads_n;
    while (!is_done(t) && t->st == ST_OK && t->slack.bytes > 0 && t->best.slacks.n < SLACKS_MAX) {
        vec_push(&t->best.slacks, t->slack);
        if (!try_guess(t, &t->best, &heads_n))
            break;
    }
}

enum status replay_exact(
    const struct snapshot *s, int device, const struct mem_pool_conf *conf,
    struct replay_exact *out, struct err *e)
{
    struct trial t = {.s = s, .device = device, .conf = conf};
    if (device < 0 || device >= s->devices_n)
        return err_set(
            e, ST_INVALID, "the snapshot has no device %d: it has %d", device, s->devices_n);
    try_totals(&t);
    try_slacks(&t);
    vec_release(&t.best.slacks);
    *out = t.x;
    if (t.st != ST_OK && e)
        *e = t.e;
    return t.st;
}

int64_t replay_oom_capacity(const struct replay_exact *x)
{
    return x->ooms_n > 0 ? x->oom_free_bytes + x->oom_reserved_bytes : 0;
}
