/* snapshot_finish.c - from the top level of a file to a struct snapshot: what is a segment, whose
 * events are whose, and in which order. */
#include "doctor/snapshot_int.h"

#include <stdlib.h>
#include <string.h>

/* The items of an object, if it is a list (or, by kind, a dictionary). */
static const struct snap_value *
items_of(const struct snap_build *b, struct snap_value v, enum snap_object_kind kind, uint32_t *n)
{
    const struct snap_object *o = v.kind == VAL_OBJECT ? &b->objects.data[v.id] : NULL;
    *n = o && o->kind == kind ? o->n : 0;
    return o && o->kind == kind ? b->items.data + o->first : NULL;
}

static const struct snap_value none = {.kind = VAL_NONE};

/* The last value of a key. */
static struct snap_value member(const struct snap_build *b, struct snap_value dict, uint32_t key)
{
    uint32_t n;
    const struct snap_value *pair = items_of(b, dict, OBJ_DICT, &n);
    for (uint32_t i = n; i >= 2; i -= 2)
        if (pair[i - 2].kind == VAL_TEXT && pair[i - 2].id == key)
            return pair[i - 1];
    return none;
}

static int64_t
number(const struct snap_build *b, struct snap_value dict, uint32_t key, int64_t fallback)
{
    struct snap_value v = member(b, dict, key);
    return v.kind == VAL_INT || v.kind == VAL_BOOL ? v.i : fallback;
}

static uint32_t text(const struct snap_build *b, struct snap_value dict, uint32_t key)
{
    struct snap_value v = member(b, dict, key);
    return v.kind == VAL_TEXT ? v.id : 0;
}

/* ---- stacks of our own files ---- */

static enum status shared_stack(
    struct snap_build *b, struct snap_value list, const struct snap_value *frames,
    uint32_t frames_n, uint32_t *stack)
{
    uint32_t n;
    const struct snap_value *item = items_of(b, list, OBJ_LIST, &n);
    if (n == 0 || item[0].kind != VAL_INT)
        return snap_stack_of(b, list, stack);
    b->scratch.n = 0;
    SNAP_ROOM(b, &b->scratch, n);
    for (uint32_t i = 0; i < n; i++) {
        bool known = item[i].kind == VAL_INT && item[i].i >= 0 && item[i].i < frames_n;
        struct snap_value f = known ? frames[item[i].i] : none;
        if (f.kind != VAL_OBJECT || b->objects.data[f.id].kind != OBJ_FRAME)
            return snap_fail(b, ST_CORRUPT, "a stack of \"snug\" has a frame that is not there");
        b->scratch.data[i] = b->objects.data[f.id].first;
    }
    return snap_stack_id(b, b->scratch.data, n, stack);
}

static enum status
resolve(struct snap_build *b, const uint32_t *stacks, uint32_t stacks_n, uint32_t *stack)
{
    if (!(*stack & SNAP_STACK_REF))
        return ST_OK;
    uint32_t i = *stack & ~SNAP_STACK_REF;
    if (i >= stacks_n)
        return snap_fail(
            b, ST_CORRUPT, "\"frames\" is %u, but \"snug\" has %u stacks", i, stacks_n);
    *stack = stacks[i];
    return ST_OK;
}

static enum status resolve_all(struct snap_build *b, const uint32_t *stacks, uint32_t n)
{
    for (size_t i = 0; i < b->events.n; i++)
        TRY(resolve(b, stacks, n, &b->events.data[i].stack));
    for (size_t i = 0; i < b->blocks.n; i++)
        TRY(resolve(b, stacks, n, &b->blocks.data[i].stack));
    for (size_t i = 0; i < b->segments.n; i++)
        TRY(resolve(b, stacks, n, &b->segments.data[i].stack));
    return ST_OK;
}

static enum status take_stacks(struct snap_build *b, struct snap_value snug)
{
    uint32_t n, frames_n;
    struct snap_value list = member(b, snug, KEY_STACKS);
    (void)items_of(b, list, OBJ_LIST, &n);
    if (!b->stack_refs)
        return ST_OK;
    uint32_t *stacks = NULL;
    size_t cap = 0;
    stacks = snap_grow(b, NULL, &cap, (size_t)n + 1, sizeof *stacks);
    enum status st = stacks ? ST_OK : ST_OOM;
    for (uint32_t i = 0; i < n && st == ST_OK; i++) {
        stacks[i] = 0;
        struct snap_value inner = items_of(b, list, OBJ_LIST, &n)[i];
        const struct snap_value *frames =
            items_of(b, member(b, snug, KEY_FRAMES), OBJ_LIST, &frames_n);
        st = shared_stack(b, inner, frames, frames_n, &stacks[i]);
        if (st == ST_OK && stacks[i] & SNAP_STACK_REF)
            st = snap_fail(b, ST_CORRUPT, "a stack of \"snug\" is no list");
    }
    if (st == ST_OK)
        st = resolve_all(b, stacks, n);
    mem_free(stacks);
    return st;
}

/* ---- segments and blocks ---- */

static int by_device_and_address(const void *a, const void *b)
{
    const struct snap_segment *x = a, *y = b;
    if (x->device != y->device)
        return x->device < y->device ? -1 : 1;
    return x->addr < y->addr ? -1 : x->addr > y->addr;
}

static enum status place_blocks(
    struct snap_build *b, struct snapshot *s, uint32_t segment, const struct snap_value *item,
    uint32_t n)
{
    struct snap_segment *g = &s->segments[segment];
    uint64_t at = g->addr;
    g->first_block = s->blocks_n;
    g->blocks_n = n;
    for (uint32_t i = 0; i < n; i++) {
        const struct snap_object *o =
            item[i].kind == VAL_OBJECT ? &b->objects.data[item[i].id] : NULL;
        if (!o || o->kind != OBJ_BLOCK)
            return snap_fail(b, ST_CORRUPT, "\"blocks\" holds something that is no block");
        struct snap_block *from = &b->blocks.data[o->first];
        if (from->segment != SNAP_NONE)
            return snap_fail(b, ST_CORRUPT, "a block is part of two segments");
        from->segment = segment;
        if (from->addr == UINT64_MAX)
            from->addr = at;
        if (from->addr > UINT64_MAX - (uint64_t)from->size)
            return snap_fail(b, ST_CORRUPT, "a block that ends beyond all addresses");
        at = from->addr + (uint64_t)from->size;
        s->blocks[s->blocks_n++] = *from;
    }
    return ST_OK;
}

static enum status take_segments(struct snap_build *b, struct snapshot *s, struct snap_value list)
{
    uint32_t n, blocks_n;
    const struct snap_value *item = items_of(b, list, OBJ_LIST, &n);
    size_t segments_cap = 0, blocks_cap = 0;
    s->segments = snap_grow(b, NULL, &segments_cap, (size_t)n + 1, sizeof *s->segments);
    s->blocks = snap_grow(b, NULL, &blocks_cap, b->blocks.n + 1, sizeof *s->blocks);
    if (!s->segments || !s->blocks)
        return ST_OOM;
    for (uint32_t i = 0; i < n; i++) {
        const struct snap_object *o =
            item[i].kind == VAL_OBJECT ? &b->objects.data[item[i].id] : NULL;
        if (!o || o->kind != OBJ_SEGMENT)
            return snap_fail(b, ST_CORRUPT, "\"segments\" holds something that is no segment");
        struct snap_segment g = b->segments.data[o->first];
        if (g.addr > UINT64_MAX - (uint64_t)g.total_size)
            return snap_fail(b, ST_CORRUPT, "a segment that ends beyond all addresses");
        s->segments[s->segments_n++] = g;
    }
    qsort(s->segments, n, sizeof *s->segments, by_device_and_address);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t object = s->segments[i].first_block;
        struct snap_value blocks = {
            .kind = object == SNAP_NONE ? VAL_NONE : VAL_OBJECT, .id = object};
        item = items_of(b, blocks, OBJ_LIST, &blocks_n);
        TRY(place_blocks(b, s, i, item, blocks_n));
    }
    return ST_OK;
}

/* ---- traces ---- */

/* Events of a trace that follow one another in the table, as they do in every real file, stay where
 * they are. */
static bool traces_in_place(const struct snap_build *b, const struct snap_value *trace, uint32_t n)
{
    uint32_t next = 0, events_n;
    for (uint32_t d = 0; d < n; d++) {
        const struct snap_value *item = items_of(b, trace[d], OBJ_LIST, &events_n);
        for (uint32_t i = 0; i < events_n; i++, next++)
            if (item[i].kind != VAL_OBJECT || b->objects.data[item[i].id].kind != OBJ_EVENT ||
                b->objects.data[item[i].id].first != next)
                return false;
    }
    return next == b->events.n;
}

static enum status
copy_traces(struct snap_build *b, struct snapshot *s, const struct snap_value *trace, uint32_t n)
{
    size_t cap = 0, all = 0;
    uint32_t events_n;
    for (uint32_t d = 0; d < n; d++) {
        (void)items_of(b, trace[d], OBJ_LIST, &events_n);
        all += events_n;
    }
    s->events = snap_grow(b, NULL, &cap, all + 1, sizeof *s->events);
    if (!s->events)
        return ST_OOM;
    for (uint32_t d = 0; d < n; d++) {
        const struct snap_value *item = items_of(b, trace[d], OBJ_LIST, &events_n);
        for (uint32_t i = 0; i < events_n; i++) {
            const struct snap_object *o =
                item[i].kind == VAL_OBJECT ? &b->objects.data[item[i].id] : NULL;
            if (!o || o->kind != OBJ_EVENT)
                return snap_fail(b, ST_CORRUPT, "a trace holds something that is no event");
            s->events[s->events_n++] = b->events.data[o->first];
        }
    }
    return ST_OK;
}

/* Lists of events, one a device. A list that stands for two devices is damage: it could make much
 * of little. */
static enum status check_traces(struct snap_build *b, const struct snap_value *trace, uint32_t n)
{
    if (n > SNAP_DEVICES_MAX)
        return snap_fail(b, ST_CORRUPT, "traces of more than %d devices", SNAP_DEVICES_MAX);
    for (uint32_t d = 0; d < n; d++) {
        struct snap_object *o = trace[d].kind == VAL_OBJECT ? &b->objects.data[trace[d].id] : NULL;
        if (!o || (o->kind != OBJ_LIST && o->kind != OBJ_STACK))
            return snap_fail(b, ST_CORRUPT, "\"device_traces\" holds something that is no list");
        if (o->n > 0 && o->seen)
            return snap_fail(b, ST_CORRUPT, "the trace of device %u is also another's", d);
        o->seen = 1;
    }
    return ST_OK;
}

static enum status take_traces(struct snap_build *b, struct snapshot *s, struct snap_value list)
{
    uint32_t n;
    const struct snap_value *trace = items_of(b, list, OBJ_LIST, &n);
    TRY(check_traces(b, trace, n));
    if (traces_in_place(b, trace, n)) {
        SNAP_ROOM(b, &b->events, 1);
        s->events = b->events.data;
        s->events_n = (uint32_t)b->events.n;
        b->events.data = NULL;
        b->events.n = b->events.cap = 0;
    } else {
        TRY(copy_traces(b, s, trace, n));
    }
    for (uint32_t i = 0; i < s->events_n; i++) {
        const struct snap_event *v = &s->events[i];
        if (v->action == SNAP_OOM) /* a request may be absurd */
            continue;
        if (v->size == INT64_MAX || v->addr > UINT64_MAX - (uint64_t)v->size)
            return snap_fail(b, ST_CORRUPT, "an event that ends beyond all addresses");
    }
    return ST_OK;
}

static enum status take_devices(struct snap_build *b, struct snapshot *s, struct snap_value list)
{
    uint32_t n, first = 0, events_n;
    const struct snap_value *trace = items_of(b, list, OBJ_LIST, &n);
    s->devices_n = (int)n;
    if (s->segments_n > 0 && s->segments[s->segments_n - 1].device >= s->devices_n)
        s->devices_n = s->segments[s->segments_n - 1].device + 1;
    s->devices = mem_alloc((size_t)s->devices_n * sizeof *s->devices);
    for (uint32_t d = 0; d < n; d++) {
        (void)items_of(b, trace[d], OBJ_LIST, &events_n);
        s->devices[d].events_first = first;
        s->devices[d].events_n = events_n;
        first += events_n;
        s->has_history = s->has_history || events_n > 0;
    }
    for (uint32_t i = 0; i < s->segments_n; i++) {
        struct snap_device *d = &s->devices[s->segments[i].device];
        if (d->segments_n++ == 0)
            d->segments_first = i;
    }
    return ST_OK;
}

/* ---- the rest ---- */

/* {"1": 0, "2": 8, ...}: by MiB. */
static void take_roundup(const struct snap_build *b, struct snap_value v, struct snap_settings *t)
{
    uint32_t n;
    const struct snap_value *pair = items_of(b, v, OBJ_DICT, &n);
    for (uint32_t i = 0; i + 1 < n; i += 2) {
        if (pair[i].kind != VAL_TEXT || pair[i + 1].kind != VAL_INT)
            continue;
        long mib = strtol(b->texts.data[pair[i].id].s, NULL, 10);
        for (int k = 0; k < SNAP_ROUNDUP_N; k++)
            if (mib == 1L << k)
                t->roundup_power2_divisions[k] = pair[i + 1].i;
        t->roundup_power2 = t->roundup_power2 || pair[i + 1].i > 1;
    }
}

static void take_settings(struct snap_build *b, struct snapshot *s, struct snap_value v)
{
    struct snap_settings *t = &s->settings;
    uint32_t n;
    *t = (struct snap_settings){
        .present = items_of(b, v, OBJ_DICT, &n) != NULL,
        .max_split_size = -1,
        .trace_overflowed = -1,
        .trace_entries_max = -1};
    if (!t->present)
        return;
    uint32_t newer = text(b, v, KEY_ALLOC_CONF);
    t->conf = newer ? newer : text(b, v, KEY_CUDA_ALLOC_CONF);
    t->max_split_size = number(b, v, KEY_MAX_SPLIT_SIZE, -1);
    if (t->max_split_size < 0 || t->max_split_size > (int64_t)1 << 56)
        t->max_split_size = -1;
    struct snap_value gc = member(b, v, KEY_GC_THRESHOLD);
    t->garbage_collection_threshold = gc.kind == VAL_FLOAT && gc.f > 0 && gc.f < 1 ? gc.f : 0;
    t->expandable_segments = number(b, v, KEY_EXPANDABLE_SEGMENTS, 0) != 0;
    t->release_lock_on_cudamalloc = number(b, v, KEY_RELEASE_LOCK, 0) != 0;
    t->graph_capture_record_stream_reuse = number(b, v, KEY_CAPTURE_REUSE, 0) != 0;
    struct snap_value over = member(b, v, KEY_OVERFLOWED);
    if (over.kind == VAL_BOOL || over.kind == VAL_INT)
        t->trace_overflowed = over.i != 0;
    t->trace_entries_max = number(b, v, KEY_ENTRIES_MAX, -1);
    take_roundup(b, member(b, v, KEY_ROUNDUP), t);
}

static enum status
take_annotations(struct snap_build *b, struct snapshot *s, struct snap_value list)
{
    uint32_t n;
    const struct snap_value *item = items_of(b, list, OBJ_LIST, &n);
    size_t cap = 0;
    s->annotations = snap_grow(b, NULL, &cap, (size_t)n + 1, sizeof *s->annotations);
    if (!s->annotations)
        return ST_OOM;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t stage = text(b, item[i], KEY_STAGE);
        if (stage != KEY_START && stage != KEY_END)
            continue;
        int64_t device = number(b, item[i], KEY_DEVICE, -1);
        s->annotations[s->annotations_n++] = (struct snap_annotation){
            .name = text(b, item[i], KEY_NAME),
            .device = device >= 0 && device < SNAP_DEVICES_MAX ? (int32_t)device : -1,
            .time_us = number(b, item[i], KEY_TIME_US, 0),
            .end = stage == KEY_END};
    }
    return ST_OK;
}

static int64_t bytes_or_0(const struct snap_build *b, struct snap_value v, uint32_t key)
{
    int64_t bytes = number(b, v, key, 0);
    return bytes > 0 && bytes <= (int64_t)1 << 56 ? bytes : 0;
}

static struct snap_card card(const struct snap_build *b, struct snap_value v)
{
    return (struct snap_card){
        .name = text(b, v, KEY_DEVICE),
        .capacity_bytes = bytes_or_0(b, v, KEY_CAPACITY),
        .others_bytes = bytes_or_0(b, v, KEY_OTHERS),
        .limit_bytes = bytes_or_0(b, v, KEY_LIMIT)};
}

static void take_snug(const struct snap_build *b, struct snapshot *s, struct snap_value v)
{
    uint32_t n;
    if (!items_of(b, v, OBJ_DICT, &n))
        return;
    s->snug = (struct snap_snug){
        .present = true,
        .version = text(b, v, KEY_VERSION),
        .graph = text(b, v, KEY_GRAPH),
        .large_segment_bytes = bytes_or_0(b, v, KEY_LARGE_SEGMENT),
        .events_lost = bytes_or_0(b, v, KEY_EVENTS_LOST)};
    if (s->snug.events_lost > 0)
        s->settings.trace_overflowed = 1;
    if (s->devices_n > 0)
        s->devices[0].card = card(b, v);
    s->snug.device = text(b, v, KEY_DEVICE);
    s->snug.capacity_bytes = bytes_or_0(b, v, KEY_CAPACITY);
    s->snug.others_bytes = bytes_or_0(b, v, KEY_OTHERS);
    s->snug.limit_bytes = bytes_or_0(b, v, KEY_LIMIT);
    const struct snap_value *item = items_of(b, member(b, v, KEY_DEVICES), OBJ_LIST, &n);
    for (uint32_t i = 0; i < n && (int)i < s->devices_n; i++)
        s->devices[i].card = card(b, item[i]);
}

/* The tables change their owner. */
#define MOVE(s, b, table)                                                                          \
    ((s)->table = (b)->table.data, (s)->table##_n = (uint32_t)(b)->table.n,                        \
     (b)->table.data = NULL, (b)->table.n = (b)->table.cap = 0)

static enum status move_tables(struct snap_build *b, struct snapshot *s)
{
    size_t cap = 0;
    s->texts = snap_grow(b, NULL, &cap, b->texts.n + 1, sizeof *s->texts);
    if (!s->texts)
        return ST_OOM;
    for (size_t i = 0; i < b->texts.n; i++)
        s->texts[i] = b->texts.data[i].s;
    s->texts_n = (uint32_t)b->texts.n;
    s->arena = b->arena;
    arena_init(&b->arena);
    MOVE(s, b, frames);
    MOVE(s, b, stacks);
    MOVE(s, b, stack_frames);
    MOVE(s, b, origins);
    MOVE(s, b, streams);
    MOVE(s, b, pools);
    s->has_stacks = s->stacks_n > 1;
    for (uint32_t i = 0; i < s->events_n && !s->has_time; i++)
        s->has_time = s->events[i].time_us != 0;
    return ST_OK;
}

enum status snap_finish(struct snap_build *b, struct snapshot *s)
{
    struct snap_value root = b->stack.data[0], segments = root, traces = none;
    uint32_t n;
    s->plain_list = items_of(b, root, OBJ_LIST, &n) != NULL;
    if (!s->plain_list) {
        segments = member(b, root, KEY_SEGMENTS);
        traces = member(b, root, KEY_DEVICE_TRACES);
        if (!items_of(b, segments, OBJ_LIST, &n))
            return snap_fail(
                b, ST_CORRUPT, "this is no memory snapshot: it has no list \"segments\"");
        if (traces.kind != VAL_NONE && !items_of(b, traces, OBJ_LIST, &n))
            return snap_fail(b, ST_CORRUPT, "\"device_traces\" is no list");
    }
    TRY(take_stacks(b, member(b, root, KEY_SNUG)));
    TRY(take_segments(b, s, segments));
    TRY(take_traces(b, s, traces));
    TRY(take_devices(b, s, traces));
    take_settings(b, s, member(b, root, KEY_SETTINGS));
    take_snug(b, s, member(b, root, KEY_SNUG));
    TRY(take_annotations(b, s, member(b, root, KEY_ANNOTATIONS)));
    TRY(snap_lives(b, s));
    return move_tables(b, s);
}
