/* history.c - recording: the ring, what is live, and names by number. See history.h. */
#include "mem/history_int.h"

#include "base/env.h"
#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RING_START = 4096, LIVE_START = 1024, FRAMES_MAX = 2 };

/* ---- names by number ---- */

void intern_init(struct intern *t)
{
    *t = (struct intern){0};
    arena_init(&t->memory);
    vec_push(&t->rows, ((struct intern_row){"", 0}));
}

void intern_release(struct intern *t)
{
    arena_release(&t->memory);
    vec_release(&t->rows);
    mem_free(t->slots);
}

static void intern_grow(struct intern *t)
{
    size_t n = t->slots_n ? 2 * t->slots_n : 256;
    uint32_t *slots = mem_alloc(n * sizeof *slots);
    for (uint32_t id = 1; id < t->rows.n; id++) {
        size_t k = hash_bytes(t->rows.data[id].data, t->rows.data[id].size, 0) & (n - 1);
        while (slots[k])
            k = (k + 1) & (n - 1);
        slots[k] = id;
    }
    mem_free(t->slots);
    t->slots = slots;
    t->slots_n = n;
}

uint32_t intern_put(struct intern *t, const void *data, size_t size)
{
    if (size == 0)
        return 0;
    if (2 * t->rows.n >= t->slots_n)
        intern_grow(t);
    size_t k = hash_bytes(data, size, 0) & (t->slots_n - 1);
    for (; t->slots[k]; k = (k + 1) & (t->slots_n - 1)) {
        const struct intern_row *row = &t->rows.data[t->slots[k]];
        if (row->size == size && memcmp(row->data, data, size) == 0)
            return t->slots[k];
    }
    char *copy = arena_alloc(&t->memory, size + 1); /* a NUL behind texts */
    memcpy(copy, data, size);
    vec_push(&t->rows, ((struct intern_row){copy, (uint32_t)size}));
    t->slots[k] = (uint32_t)(t->rows.n - 1);
    return t->slots[k];
}

static uint32_t text_id(struct mem_history *h, const char *s)
{
    return s ? intern_put(&h->texts, s, strlen(s)) : 0;
}

const char *history_text(const struct mem_history *h, uint32_t id)
{
    return h->texts.rows.data[id].data;
}

static uint32_t tag_id(struct mem_history *h, const char *node, const char *category)
{
    struct history_tag tag = {text_id(h, node), text_id(h, category)};
    return tag.node || tag.category ? intern_put(&h->tags, &tag, sizeof tag) : 0;
}

/* ---- life ---- */

struct mem_history *mem_history_new(int64_t events_max)
{
    struct mem_history *h = mem_alloc(sizeof *h);
    struct intern *tables[] = {&h->texts, &h->frames, &h->stacks, &h->tags, &h->streams, &h->pools};
    ASSERT(pthread_mutex_init(&h->lock, NULL) == 0);
    arena_init(&h->memory);
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        intern_init(tables[i]);
    h->ring_max = (size_t)(events_max > 0 ? events_max : MEM_HISTORY_EVENTS_MAX);
    h->live_cap = LIVE_START;
    h->live = mem_alloc(h->live_cap * sizeof *h->live);
    h->step = -1;
    return h;
}

void mem_history_free(struct mem_history *h)
{
    if (!h)
        return;
    struct intern *tables[] = {&h->texts, &h->frames, &h->stacks, &h->tags, &h->streams, &h->pools};
    while (h->watched)
        mem_history_unwatch(h, h->watched->pool);
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        intern_release(tables[i]);
    history_parts_release(&h->parts);
    vec_release(&h->nodes);
    vec_release(&h->devices);
    vec_release(&h->segments);
    mem_free(h->ring);
    mem_free(h->live);
    arena_release(&h->memory);
    (void)pthread_mutex_destroy(&h->lock);
    mem_free(h);
}

static void lock(struct mem_history *h)
{
    (void)pthread_mutex_lock(&h->lock);
}

static void unlock(struct mem_history *h)
{
    (void)pthread_mutex_unlock(&h->lock);
}

/* False, and not locked, when nothing is recorded any more. */
static bool begin_recording(struct mem_history *h)
{
    lock(h);
    if (h->frozen)
        unlock(h);
    return !h->frozen;
}

/* ---- names ---- */

void mem_history_file(struct mem_history *h, const char *path)
{
    lock(h);
    h->file = arena_strdup(&h->memory, path);
    unlock(h);
}

void mem_history_node(struct mem_history *h, const char *id, const char *type, int line)
{
    lock(h);
    struct history_node n = {arena_strdup(&h->memory, id), arena_strdup(&h->memory, type), line};
    vec_push(&h->nodes, n);
    unlock(h);
}

void mem_history_running(struct mem_history *h, const char *id)
{
    lock(h);
    h->running = id ? arena_strdup(&h->memory, id) : NULL;
    unlock(h);
}

/* The node that a path begins with. */
static const struct history_node *node_of(const struct mem_history *h, const char *path)
{
    size_t n = strcspn(path, "/");
    for (size_t i = 0; i < h->nodes.n; i++)
        if (strlen(h->nodes.data[i].id) == n && memcmp(h->nodes.data[i].id, path, n) == 0)
            return &h->nodes.data[i];
    return NULL;
}

static uint32_t frame_id(struct mem_history *h, const char *path, const char *what)
{
    char name[512];
    const struct history_node *n = node_of(h, path);
    int len = snprintf(
        name, sizeof name, "%s%s%s%s %s", path, n ? " (" : "", n ? n->type : "", n ? ")" : "",
        what);
    if (len > 0 && name[0] && name[strlen(name) - 1] == ' ')
        name[strlen(name) - 1] = '\0';
    struct history_frame f = {
        text_id(h, h->file ? h->file : "??"), text_id(h, name), n ? (uint32_t)n->line : 0};
    return intern_put(&h->frames, &f, sizeof f);
}

uint32_t
mem_history_origin(struct mem_history *h, const char *path, const char *what, const char *where)
{
    uint32_t frame[FRAMES_MAX];
    size_t n = 0;
    lock(h);
    if (path || what)
        frame[n++] = frame_id(h, path ? path : "(step)", what ? what : "");
    if (h->running)
        frame[n++] = frame_id(h, h->running, where ? where : "");
    uint32_t stack = intern_put(&h->stacks, frame, n * sizeof *frame);
    unlock(h);
    return stack;
}

int mem_history_device(struct mem_history *h, const struct mem_history_device *d)
{
    size_t i = 0;
    lock(h);
    while (i < h->devices.n && strcmp(h->devices.data[i].name, d->name) != 0)
        i++;
    if (i == h->devices.n) {
        struct mem_history_device copy = *d;
        copy.name = arena_strdup(&h->memory, d->name);
        vec_push(&h->devices, copy);
    }
    unlock(h);
    return (int)i;
}

/* ---- what is live ---- */

/* Devices whose addresses are numbers may give the same ones. */
static size_t live_place(const struct mem_history *h, int device, uint64_t addr)
{
    /* Blocks are multiples of 64 at least: the low bits say nothing. */
    uint64_t hash = (addr >> 6 ^ (uint64_t)device << 58) * 0x9e3779b97f4a7c15u;
    size_t k = (size_t)(hash >> 20) & (h->live_cap - 1);
    while (h->live[k].addr && (h->live[k].addr != addr || h->live[k].device != device))
        k = (k + 1) & (h->live_cap - 1);
    return k;
}

const struct history_block *history_live(const struct mem_history *h, int device, uint64_t addr)
{
    const struct history_block *b = &h->live[live_place(h, device, addr)];
    return b->addr ? b : NULL;
}

static void live_put(struct mem_history *h, const struct history_block *b)
{
    if (2 * h->live_n >= h->live_cap) {
        struct history_block *old = h->live;
        size_t cap = h->live_cap;
        h->live_cap = 2 * cap;
        h->live = mem_alloc(h->live_cap * sizeof *h->live);
        for (size_t i = 0; i < cap; i++)
            if (old[i].addr)
                h->live[live_place(h, old[i].device, old[i].addr)] = old[i];
        mem_free(old);
    }
    size_t k = live_place(h, b->device, b->addr);
    h->live_n += h->live[k].addr == 0;
    h->live[k] = *b;
}

/* Closes the gap, so that a search never ends too early. */
static void live_drop(struct mem_history *h, int device, uint64_t addr)
{
    size_t k = live_place(h, device, addr), mask = h->live_cap - 1;
    if (!h->live[k].addr)
        return;
    h->live_n--;
    h->live[k].addr = 0;
    for (size_t i = (k + 1) & mask; h->live[i].addr; i = (i + 1) & mask) {
        struct history_block b = h->live[i];
        h->live[i].addr = 0;
        h->live[live_place(h, b.device, b.addr)] = b;
    }
}

/* ---- the ring ---- */

static void push(struct mem_history *h, const struct history_event *v)
{
    if (h->n == h->ring_cap && h->ring_cap < h->ring_max) {
        size_t cap = h->ring_cap ? 2 * h->ring_cap : RING_START;
        h->ring_cap = cap < h->ring_max ? cap : h->ring_max;
        h->ring = mem_resize(h->ring, h->ring_cap * sizeof *h->ring);
    }
    if (h->n == h->ring_cap) {
        h->ring[h->first] = *v;
        h->first = (h->first + 1) % h->ring_cap;
        h->lost_n++;
    } else {
        h->ring[(h->first + h->n++) % h->ring_cap] = *v;
    }
}

static struct history_event
event_of(const struct mem_history *h, enum mem_event_kind kind, int device)
{
    return (struct history_event){
        .kind = (uint8_t)kind,
        .device = (uint8_t)device,
        .time_us = h->now_us,
        .stack = h->at,
        .step = h->step};
}

void mem_history_at(struct mem_history *h, uint32_t origin)
{
    lock(h);
    h->at = origin;
    h->now_us = clock_wall_us();
    unlock(h);
}

void mem_history_step(struct mem_history *h, int64_t step)
{
    lock(h);
    h->step = (int32_t)step;
    unlock(h);
}

static void begin_block(struct mem_history *h, struct history_event *v)
{
    push(h, v);
    live_put(
        h, &(struct history_block){v->addr, v->size_bytes, v->stack, v->tag, v->step, v->device});
}

/* `requested` or `completed`, or both: what is freed is known by its address. */
static void end_block(struct mem_history *h, struct history_event *v)
{
    const struct history_block *b = history_live(h, v->device, v->addr);
    if (b)
        v->tag = b->tag;
    push(h, v);
    if (v->kind == MEM_EVENT_FREE_COMPLETED)
        live_drop(h, v->device, v->addr);
}

/* ---- segments ---- */

static struct history_segment *segment_at(struct mem_history *h, int device, uint64_t addr)
{
    for (size_t i = 0; i < h->segments.n; i++)
        if (h->segments.data[i].addr == addr && h->segments.data[i].device == device)
            return &h->segments.data[i];
    return NULL;
}

uint32_t history_segment_stack(const struct mem_history *h, int device, uint64_t addr)
{
    for (size_t i = 0; i < h->segments.n; i++)
        if (h->segments.data[i].addr == addr && h->segments.data[i].device == device)
            return h->segments.data[i].stack;
    return 0;
}

static void segment_put(struct mem_history *h, const struct history_event *v, bool of_pool)
{
    struct history_segment s = {
        .addr = v->addr,
        .size_bytes = v->size_bytes,
        .stack = v->stack,
        .device = v->device,
        .of_pool = of_pool};
    vec_push(&h->segments, s);
}

/* Ranges of expandable segments come and go by other borders than they came: what is not found at
 * this address stays until its pool ends. */
static void segment_drop(struct mem_history *h, int device, uint64_t addr)
{
    struct history_segment *s = segment_at(h, device, addr);
    if (s)
        *s = h->segments.data[--h->segments.n];
}

/* ---- pools ---- */

struct mem_pool_id history_pool_id(struct mem_pool_id id, uint64_t number)
{
    if (number > 0 && id.first == 0 && id.second == 0)
        id.first = number;
    return id;
}

static uint16_t pool_number(const struct history_watched *w, struct mem_pool_id id)
{
    id = history_pool_id(id, w->number);
    if (id.first == 0 && id.second == 0)
        return 0;
    return (uint16_t)intern_put(&w->history->pools, &id, sizeof id);
}

static void hear(void *ctx, const struct mem_event *m)
{
    const struct history_watched *w = ctx;
    struct mem_history *h = w->history;
    if (!begin_recording(h))
        return;
    struct history_event v = event_of(h, m->kind, w->device);
    v.addr = m->kind == MEM_EVENT_OOM ? (uint64_t)m->device_free_bytes : m->addr;
    v.size_bytes = m->size_bytes;
    v.stream = m->stream ? (uint16_t)intern_put(&h->streams, &m->stream, sizeof m->stream) : 0;
    v.pool = pool_number(w, m->pool);
    switch (m->kind) {
    case MEM_EVENT_FREE_REQUESTED:
    case MEM_EVENT_FREE_COMPLETED:
        end_block(h, &v);
        break;
    case MEM_EVENT_ALLOC:
        v.tag = tag_id(h, m->tag.node, m->tag.what);
        begin_block(h, &v);
        break;
    case MEM_EVENT_SEGMENT_ALLOC:
    case MEM_EVENT_SEGMENT_MAP:
        v.tag = tag_id(h, m->tag.node, m->tag.what);
        push(h, &v);
        segment_put(h, &v, true);
        break;
    case MEM_EVENT_SEGMENT_FREE:
    case MEM_EVENT_SEGMENT_UNMAP:
        push(h, &v);
        segment_drop(h, v.device, v.addr);
        break;
    case MEM_EVENT_SNAPSHOT:
    case MEM_EVENT_OOM:
        v.tag = tag_id(h, m->tag.node, m->tag.what);
        h->ooms_n += m->kind == MEM_EVENT_OOM;
        push(h, &v);
        break;
    case MEM_EVENT_N:
        break;
    }
    unlock(h);
}

void mem_history_watch(struct mem_history *h, int device, struct mem_pool *p)
{
    struct history_watched *w = mem_alloc(sizeof *w);
    lock(h);
    *w = (struct history_watched){h, p, device, h->watched_n++, h->watched};
    h->watched = w;
    h->now_us = clock_wall_us();
    unlock(h);
    mem_pool_listen(p, hear, w);
}

/* What a pool still holds, as if it were given back one by one. */
static void end_pool(struct history_watched *w)
{
    struct mem_history *h = w->history;
    struct mem_pool_snapshot s;
    if (h->frozen)
        return;
    mem_pool_snapshot(w->pool, &s);
    lock(h);
    for (size_t i = 0; i < s.blocks_n; i++) {
        if (s.blocks[i].state == MEM_BLOCK_FREE)
            continue;
        struct history_event v = event_of(h, MEM_EVENT_FREE_REQUESTED, w->device);
        v.addr = s.blocks[i].addr;
        v.size_bytes = s.blocks[i].requested_bytes;
        v.pool = pool_number(w, (struct mem_pool_id){0});
        if (s.blocks[i].state == MEM_BLOCK_ALLOCATED)
            end_block(h, &v);
        v.kind = MEM_EVENT_FREE_COMPLETED;
        end_block(h, &v);
    }
    for (size_t i = 0; i < s.segments_n; i++) {
        bool expandable = s.segments[i].expandable;
        struct history_event v =
            event_of(h, expandable ? MEM_EVENT_SEGMENT_UNMAP : MEM_EVENT_SEGMENT_FREE, w->device);
        v.addr = s.segments[i].addr;
        v.size_bytes = s.segments[i].size_bytes;
        v.pool = pool_number(w, s.segments[i].pool);
        push(h, &v);
        segment_drop(h, w->device, v.addr);
    }
    unlock(h);
    mem_pool_snapshot_release(&s);
}

void mem_history_unwatch(struct mem_history *h, struct mem_pool *p)
{
    struct history_watched **at = &h->watched;
    while (*at && (*at)->pool != p)
        at = &(*at)->next;
    struct history_watched *w = *at;
    if (!w)
        return;
    mem_pool_listen(p, NULL, NULL);
    end_pool(w);
    *at = w->next;
    mem_free(w);
}

/* ---- memory of plans ---- */

void mem_history_segment(struct mem_history *h, int device, uint64_t addr, int64_t size_bytes)
{
    if (!begin_recording(h))
        return;
    h->now_us = clock_wall_us();
    struct history_event v = event_of(h, MEM_EVENT_SEGMENT_ALLOC, device);
    v.addr = addr;
    v.size_bytes = size_bytes;
    push(h, &v);
    segment_put(h, &v, false);
    unlock(h);
}

static void give(struct mem_history *h, const struct history_block *b)
{
    struct history_event v = event_of(h, MEM_EVENT_FREE_REQUESTED, b->device);
    v.addr = b->addr;
    v.size_bytes = b->size_bytes;
    v.tag = b->tag;
    push(h, &v);
    v.kind = MEM_EVENT_FREE_COMPLETED;
    push(h, &v);
    live_drop(h, v.device, v.addr);
}

void mem_history_alloc(
    struct mem_history *h, int device, uint64_t addr, int64_t size_bytes, const char *category,
    const char *node)
{
    if (!begin_recording(h))
        return;
    struct history_event v = event_of(h, MEM_EVENT_ALLOC, device);
    v.addr = addr;
    v.size_bytes = size_bytes;
    v.tag = tag_id(h, node, category);
    begin_block(h, &v);
    unlock(h);
}

void mem_history_hold(
    struct mem_history *h, int device, uint64_t addr, int64_t size_bytes, const char *category,
    const char *node)
{
    if (!begin_recording(h))
        return;
    struct history_block b = {addr,    size_bytes,     h->at, tag_id(h, node, category),
                              h->step, (uint8_t)device};
    live_put(h, &b);
    unlock(h);
}

void mem_history_give(struct mem_history *h, int device, uint64_t addr)
{
    if (!begin_recording(h))
        return;
    const struct history_block *b = history_live(h, device, addr);
    if (b)
        give(h, b);
    unlock(h);
}

static int by_address(const void *a, const void *b)
{
    const struct history_block *x = a, *y = b;
    return x->addr < y->addr ? -1 : x->addr > y->addr;
}

/* Ends what lives in [from, to), in order of address. */
static void give_range(struct mem_history *h, int device, uint64_t from, uint64_t to)
{
    VEC(struct history_block) list = {0};
    for (size_t k = 0; k < h->live_cap; k++) {
        const struct history_block *b = &h->live[k];
        if (b->addr >= from && b->addr < to && b->device == device)
            vec_push(&list, *b);
    }
    if (list.n > 1)
        qsort(list.data, list.n, sizeof *list.data, by_address);
    for (size_t i = 0; i < list.n; i++)
        give(h, &list.data[i]);
    vec_release(&list);
}

void mem_history_segment_end(struct mem_history *h, int device, uint64_t addr)
{
    if (!begin_recording(h))
        return;
    struct history_segment *s = segment_at(h, device, addr);
    if (s) {
        struct history_event v = event_of(h, MEM_EVENT_SEGMENT_FREE, device);
        v.addr = addr;
        v.size_bytes = s->size_bytes;
        give_range(h, device, addr, addr + (uint64_t)s->size_bytes);
        push(h, &v);
        segment_drop(h, device, addr);
    }
    unlock(h);
}

void mem_history_oom(struct mem_history *h, int device, int64_t size_bytes, int64_t free_bytes)
{
    if (!begin_recording(h))
        return;
    struct history_event v = event_of(h, MEM_EVENT_OOM, device);
    v.addr = (uint64_t)free_bytes;
    v.size_bytes = size_bytes;
    push(h, &v);
    h->ooms_n++;
    unlock(h);
}

void mem_history_freeze(struct mem_history *h)
{
    struct history_parts parts;
    if (h->frozen)
        return;
    history_parts_take(h, &parts);
    lock(h);
    h->parts = parts;
    h->frozen = true;
    unlock(h);
}

void mem_history_counts(struct mem_history *h, struct mem_history_counts *out)
{
    lock(h);
    *out = (struct mem_history_counts){
        (int64_t)h->n, h->lost_n, h->ooms_n, (int64_t)h->live_n, (int64_t)h->segments.n, h->frozen};
    unlock(h);
}
