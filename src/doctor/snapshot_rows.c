/* snapshot_rows.c - dictionaries that are events, blocks, segments, frames become rows of tables.
 */
#include "doctor/snapshot_int.h"

#include <stdio.h>
#include <string.h>

/* A size above this is damage; so is a file whose sizes together pass SIZES_MAX, so that no sum of
 * them can overflow. */
#define SIZE_MAX_BYTES ((int64_t)1 << 56)
#define SIZES_MAX_BYTES ((int64_t)1 << 62)
enum { SEEN_FILENAME = 1, SEEN_NAME = 2, SEEN_LINE = 4, SEEN_ALL = 7 };

static enum status wrong(struct snap_build *b, uint32_t key, const char *of)
{
    return snap_fail(
        b, ST_CORRUPT, "\"%s\" of %s is not what it should be", b->texts.data[key].s, of);
}

/* ---- values ---- */

static enum status
take_size(struct snap_build *b, uint32_t key, struct snap_value v, const char *of, int64_t *out)
{
    if (v.kind != VAL_INT || v.i < 0 || v.i > SIZE_MAX_BYTES)
        return wrong(b, key, of);
    b->sizes_bytes += v.i;
    if (b->sizes_bytes > SIZES_MAX_BYTES)
        return snap_fail(b, ST_CORRUPT, "its sizes add up to more than any memory has");
    *out = v.i;
    return ST_OK;
}

/* A size that may be missing: -1. */
static enum status
take_size_opt(struct snap_build *b, uint32_t key, struct snap_value v, const char *of, int64_t *out)
{
    if (v.kind == VAL_NONE || (v.kind == VAL_INT && v.i == -1))
        return ST_OK;
    return take_size(b, key, v, of, out);
}

static enum status
take_stream(struct snap_build *b, uint32_t key, struct snap_value v, const char *of, uint16_t *out)
{
    if (v.kind != VAL_INT)
        return wrong(b, key, of);
    return snap_stream_id(b, (uint64_t)v.i, out);
}

/* A pair of numbers, as a tuple or a list. */
static enum status
take_pool(struct snap_build *b, uint32_t key, struct snap_value v, const char *of, uint16_t *out)
{
    if (v.kind != VAL_OBJECT)
        return wrong(b, key, of);
    struct snap_object *o = &b->objects.data[v.id];
    const struct snap_value *pair = b->items.data + o->first;
    if (o->kind != OBJ_LIST || o->n != 2 || pair[0].kind != VAL_INT || pair[1].kind != VAL_INT)
        return wrong(b, key, of);
    TRY(snap_pool_id(b, (struct snap_pool){(uint64_t)pair[0].i, (uint64_t)pair[1].i}, out));
    return ST_OK;
}

/* Texts; numbers are written out (compile_context may be one). */
static enum status take_text(struct snap_build *b, struct snap_value v, uint32_t *out)
{
    char number[32];
    if (v.kind == VAL_TEXT) {
        *out = v.id;
    } else if (v.kind == VAL_INT) {
        int n = snprintf(number, sizeof number, "%lld", (long long)v.i);
        TRY(snap_text_id(b, number, (size_t)n, out));
    }
    return ST_OK;
}

static uint32_t line_of(struct snap_value v)
{
    return v.kind == VAL_INT && v.i > 0 && v.i < UINT32_MAX ? (uint32_t)v.i : 0;
}

/* ---- frames and stacks ---- */

static enum status make_frame(struct snap_build *b, struct snap_object *o)
{
    struct snap_frame f = {0};
    const struct snap_value *pair = b->items.data + o->first;
    for (uint32_t i = 0; i + 1 < o->n; i += 2) {
        if (pair[i].kind != VAL_TEXT)
            continue;
        if (pair[i].id == KEY_FILENAME)
            TRY(take_text(b, pair[i + 1], &f.file));
        else if (pair[i].id == KEY_NAME)
            TRY(take_text(b, pair[i + 1], &f.name));
        else if (pair[i].id == KEY_LINE)
            f.line = line_of(pair[i + 1]);
    }
    if ((size_t)o->first + o->cap == b->items.n)
        b->items.n = o->first;
    uint32_t id;
    TRY(snap_frame_id(b, f, &id));
    *o = (struct snap_object){.kind = OBJ_FRAME, .first = id};
    return ST_OK;
}

/* The frame that a value of a list of frames stands for. */
static enum status frame_of(struct snap_build *b, struct snap_value v, uint32_t *frame)
{
    struct snap_object *o = v.kind == VAL_OBJECT ? &b->objects.data[v.id] : NULL;
    if (o && o->kind == OBJ_DICT && o->seen)
        TRY(make_frame(b, o));
    if (!o || o->kind != OBJ_FRAME)
        return snap_fail(b, ST_CORRUPT, "\"frames\" holds something that is no frame");
    *frame = o->first;
    return ST_OK;
}

enum status snap_stack_of(struct snap_build *b, struct snap_value v, uint32_t *stack)
{
    if (v.kind == VAL_NONE)
        return ST_OK;
    if (v.kind == VAL_INT && v.i >= 0 && v.i < SNAP_STACK_REF) {
        *stack = SNAP_STACK_REF | (uint32_t)v.i;
        b->stack_refs = true;
        return ST_OK;
    }
    if (v.kind != VAL_OBJECT)
        return wrong(b, KEY_FRAMES, "an event, block or segment");
    struct snap_object *o = &b->objects.data[v.id];
    if (o->kind == OBJ_STACK) {
        *stack = o->first;
        return ST_OK;
    }
    if (o->kind != OBJ_LIST)
        return wrong(b, KEY_FRAMES, "an event, block or segment");
    b->scratch.n = 0;
    SNAP_ROOM(b, &b->scratch, (size_t)o->n + 1);
    for (uint32_t i = 0; i < o->n; i++)
        TRY(frame_of(b, b->items.data[o->first + i], &b->scratch.data[i]));
    TRY(snap_stack_id(b, b->scratch.data, o->n, stack));
    if ((size_t)o->first + o->cap == b->items.n)
        b->items.n = o->first;
    *o = (struct snap_object){.kind = OBJ_STACK, .first = *stack};
    return ST_OK;
}

/* ---- rows ---- */

static bool of_origin(uint32_t key)
{
    return key == KEY_NODE || key == KEY_CATEGORY || key == KEY_WHAT || key == KEY_STEP;
}

/* One of the three texts, or the number, of an origin. */
static enum status
origin_set(struct snap_build *b, uint32_t key, struct snap_value v, struct snap_origin *o)
{
    if (key == KEY_NODE)
        return take_text(b, v, &o->node);
    if (key == KEY_CATEGORY)
        return take_text(b, v, &o->category);
    if (key == KEY_WHAT)
        return take_text(b, v, &o->what);
    if (v.kind == VAL_INT)
        o->step = v.i;
    return ST_OK;
}

/* Who asked, all at once: an origin without its node is no row. */
static enum status
take_origin(struct snap_build *b, const struct snap_value *pair, uint32_t n, uint32_t *origin)
{
    struct snap_origin o = b->origins.data[*origin];
    for (uint32_t i = 0; i + 1 < n; i += 2)
        if (pair[i].kind == VAL_TEXT && of_origin(pair[i].id))
            TRY(origin_set(b, pair[i].id, pair[i + 1], &o));
    return snap_origin_id(b, o, origin);
}

static enum status event_size(struct snap_build *b, struct snap_event *r, struct snap_value v)
{
    /* A failed request may be absurd (and its kind may come after its size): never an error. */
    if (v.kind == VAL_INT && (v.i < 0 || v.i > SIZE_MAX_BYTES)) {
        r->size = INT64_MAX;
        return ST_OK;
    }
    return take_size(b, KEY_SIZE, v, "an event", &r->size);
}

static enum status
event_set(struct snap_build *b, struct snap_event *r, uint32_t key, struct snap_value v)
{
    switch (key) {
    case KEY_ACTION: {
        uint32_t action = v.kind == VAL_TEXT ? v.id - KEY_FIRST_ACTION : SNAP_OTHER;
        r->action = (uint8_t)(action < SNAP_OTHER ? action : SNAP_OTHER);
        return ST_OK;
    }
    case KEY_ADDR:
    case KEY_DEVICE_FREE:
        if (v.kind != VAL_INT)
            return wrong(b, key, "an event");
        r->addr = (uint64_t)v.i;
        return ST_OK;
    case KEY_SIZE:
        return event_size(b, r, v);
    case KEY_TIME_US:
        r->time_us = v.kind == VAL_INT ? v.i : 0;
        return ST_OK;
    case KEY_STREAM:
        return take_stream(b, key, v, "an event", &r->stream);
    case KEY_POOL_ID:
    case KEY_SEGMENT_POOL_ID:
        return take_pool(b, key, v, "an event", &r->pool);
    case KEY_FRAMES:
        return snap_stack_of(b, v, &r->stack);
    case KEY_COMPILE_CONTEXT:
        return take_text(b, v, &r->context);
    case KEY_USER_METADATA:
        return take_text(b, v, &r->metadata);
    default:
        return ST_OK;
    }
}

static enum snap_state state_of(struct snap_value v)
{
    if (v.kind != VAL_TEXT || v.id == KEY_INACTIVE)
        return SNAP_INACTIVE;
    return v.id == KEY_ACTIVE_ALLOCATED                                          ? SNAP_ACTIVE
           : v.id == KEY_ACTIVE_PENDING_FREE || v.id == KEY_ACTIVE_AWAITING_FREE ? SNAP_PENDING
                                                                                 : SNAP_INACTIVE;
}

/* "history" of 2.0 and before: the last user comes first. */
static enum status block_history(struct snap_build *b, struct snap_block *r, struct snap_value v)
{
    const struct snap_object *o = v.kind == VAL_OBJECT ? &b->objects.data[v.id] : NULL;
    if (!o || o->kind != OBJ_LIST || o->n == 0)
        return ST_OK;
    struct snap_value first = b->items.data[o->first];
    if (first.kind != VAL_OBJECT || b->objects.data[first.id].kind != OBJ_HISTORY)
        return wrong(b, KEY_HISTORY, "a block");
    const struct snap_history *h = &b->histories.data[b->objects.data[first.id].first];
    r->stack = r->stack ? r->stack : h->stack;
    r->requested_size = r->requested_size >= 0 ? r->requested_size : h->real_size;
    return ST_OK;
}

static enum status
block_set(struct snap_build *b, struct snap_block *r, uint32_t key, struct snap_value v)
{
    switch (key) {
    case KEY_ADDRESS:
        if (v.kind != VAL_INT)
            return wrong(b, key, "a block");
        r->addr = (uint64_t)v.i;
        return ST_OK;
    case KEY_SIZE:
        return take_size(b, key, v, "a block", &r->size);
    case KEY_REQUESTED_SIZE:
        return take_size_opt(b, key, v, "a block", &r->requested_size);
    case KEY_STATE:
        if (v.kind != VAL_TEXT)
            return wrong(b, key, "a block");
        r->state = (uint8_t)state_of(v);
        return ST_OK;
    case KEY_FRAMES:
        return snap_stack_of(b, v, &r->stack);
    case KEY_HISTORY:
        return block_history(b, r, v);
    default:
        return ST_OK;
    }
}

static enum status
segment_set(struct snap_build *b, struct snap_segment *r, uint32_t key, struct snap_value v)
{
    static const char of[] = "a segment";
    switch (key) {
    case KEY_DEVICE:
        if (v.kind != VAL_INT || v.i < 0 || v.i >= SNAP_DEVICES_MAX)
            return wrong(b, key, of);
        r->device = (int32_t)v.i;
        return ST_OK;
    case KEY_ADDRESS:
        if (v.kind != VAL_INT)
            return wrong(b, key, of);
        r->addr = (uint64_t)v.i;
        return ST_OK;
    case KEY_TOTAL_SIZE:
        return take_size(b, key, v, of, &r->total_size);
    case KEY_ALLOCATED_SIZE:
        return take_size_opt(b, key, v, of, &r->allocated_size);
    case KEY_ACTIVE_SIZE:
        return take_size_opt(b, key, v, of, &r->active_size);
    case KEY_REQUESTED_SIZE:
        return take_size_opt(b, key, v, of, &r->requested_size);
    case KEY_STREAM:
        return take_stream(b, key, v, of, &r->stream);
    case KEY_SEGMENT_TYPE:
        r->large = v.kind != VAL_TEXT || v.id != KEY_SMALL;
        return ST_OK;
    case KEY_SEGMENT_POOL_ID:
        return take_pool(b, key, v, of, &r->pool);
    case KEY_IS_EXPANDABLE:
        r->expandable = (v.kind == VAL_BOOL || v.kind == VAL_INT) && v.i != 0;
        return ST_OK;
    case KEY_FRAMES:
        return snap_stack_of(b, v, &r->stack);
    case KEY_BLOCKS:
        if (v.kind != VAL_OBJECT || b->objects.data[v.id].kind != OBJ_LIST)
            return wrong(b, key, of);
        r->first_block = v.id;
        return ST_OK;
    default:
        return ST_OK;
    }
}

static enum status
history_set(struct snap_build *b, struct snap_history *r, uint32_t key, struct snap_value v)
{
    if (key == KEY_REAL_SIZE)
        return take_size_opt(b, key, v, "a block's history", &r->real_size);
    return key == KEY_FRAMES ? snap_stack_of(b, v, &r->stack) : ST_OK;
}

enum status snap_row_set(struct snap_build *b, uint32_t object, uint32_t key, struct snap_value v)
{
    uint32_t row = b->objects.data[object].first;
    struct snap_value pair[2] = {{.kind = VAL_TEXT, .id = key}, v};
    enum snap_object_kind kind = (enum snap_object_kind)b->objects.data[object].kind;
    if (of_origin(key) && kind == OBJ_EVENT)
        return take_origin(b, pair, 2, &b->events.data[row].origin);
    if (of_origin(key) && kind == OBJ_BLOCK)
        return take_origin(b, pair, 2, &b->blocks.data[row].origin);
    switch (kind) {
    case OBJ_EVENT:
        return event_set(b, &b->events.data[row], key, v);
    case OBJ_BLOCK:
        return block_set(b, &b->blocks.data[row], key, v);
    case OBJ_SEGMENT:
        return segment_set(b, &b->segments.data[row], key, v);
    case OBJ_HISTORY:
        return history_set(b, &b->histories.data[row], key, v);
    case OBJ_LIST:
    case OBJ_DICT:
    case OBJ_FRAME:
    case OBJ_STACK:
        break;
    }
    return ST_OK;
}

static enum status add_row(struct snap_build *b, enum snap_object_kind kind, uint32_t *row)
{
    if (kind == OBJ_EVENT) {
        SNAP_ROOM(b, &b->events, 1);
        *row = (uint32_t)b->events.n;
        b->events.data[b->events.n++] = (struct snap_event){.pool = SNAP_POOL_UNKNOWN};
    } else if (kind == OBJ_BLOCK) {
        SNAP_ROOM(b, &b->blocks, 1);
        *row = (uint32_t)b->blocks.n;
        b->blocks.data[b->blocks.n++] =
            (struct snap_block){.addr = UINT64_MAX, .requested_size = -1, .segment = SNAP_NONE};
    } else if (kind == OBJ_SEGMENT) {
        SNAP_ROOM(b, &b->segments, 1);
        *row = (uint32_t)b->segments.n;
        b->segments.data[b->segments.n++] = (struct snap_segment){
            .allocated_size = -1,
            .active_size = -1,
            .requested_size = -1,
            .large = true,
            .first_block = SNAP_NONE};
    } else {
        SNAP_ROOM(b, &b->histories, 1);
        *row = (uint32_t)b->histories.n;
        b->histories.data[b->histories.n++] = (struct snap_history){.real_size = -1};
    }
    return ST_OK;
}

/* The items of a dictionary go into a new row. From the last pair on: the last value was made last,
 * so its slice of the items is the last one and can be given back first. */
static enum status make_row(struct snap_build *b, uint32_t object, enum snap_object_kind kind)
{
    struct snap_object o = b->objects.data[object];
    uint32_t row;
    TRY(add_row(b, kind, &row));
    b->objects.data[object] = (struct snap_object){.kind = (uint8_t)kind, .first = row};
    if ((size_t)o.first + o.cap == b->items.n)
        b->items.n = o.first; /* nothing below adds items */
    bool origin = false;
    for (uint32_t i = o.n; i >= 2; i -= 2) {
        const struct snap_value *pair = b->items.data + o.first + i - 2;
        if (pair[0].kind == VAL_TEXT && of_origin(pair[0].id))
            origin = true;
        else if (pair[0].kind == VAL_TEXT)
            TRY(snap_row_set(b, object, pair[0].id, pair[1]));
    }
    if (!origin || (kind != OBJ_EVENT && kind != OBJ_BLOCK))
        return ST_OK;
    return take_origin(
        b, b->items.data + o.first, o.n,
        kind == OBJ_EVENT ? &b->events.data[row].origin : &b->blocks.data[row].origin);
}

enum status snap_dict_changed(struct snap_build *b, uint32_t object, size_t pairs)
{
    struct snap_object *o = &b->objects.data[object];
    const struct snap_value *at = b->items.data + o->first + o->n - 2 * pairs;
    for (size_t i = 0; i < pairs; i++, at += 2) {
        if (at->kind != VAL_TEXT)
            continue;
        if (at->id == KEY_ACTION)
            return make_row(b, object, OBJ_EVENT);
        if (at->id == KEY_STATE)
            return make_row(b, object, OBJ_BLOCK);
        if (at->id == KEY_TOTAL_SIZE)
            return make_row(b, object, OBJ_SEGMENT);
        if (at->id == KEY_REAL_SIZE)
            return make_row(b, object, OBJ_HISTORY);
        o->seen |= at->id == KEY_FILENAME ? SEEN_FILENAME
                   : at->id == KEY_NAME   ? SEEN_NAME
                   : at->id == KEY_LINE   ? SEEN_LINE
                                          : 0;
    }
    return o->seen == SEEN_ALL ? make_frame(b, o) : ST_OK;
}
