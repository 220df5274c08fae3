/* snapshot_build.c - tables with one row for equal things, and the stack machine over them. */
#include "doctor/snapshot_int.h"

#include "base/env.h"

#include <stdarg.h>
#include <string.h>

void *snap_grow(struct snap_build *b, void *data, size_t *cap, size_t need, size_t item_bytes)
{
    size_t grown = *cap + *cap / 2 + 64;
    if (grown < need)
        grown = need;
    int64_t more = (int64_t)size_mul(grown - *cap, item_bytes);
    void *p = NULL;
    /* Ids are 32 bits, and one is "none". */
    if (grown < UINT32_MAX && more >= 0 && more <= b->held_bytes_max - b->held_bytes)
        p = mem_try_resize(data, grown * item_bytes);
    if (!p) {
        (void)snap_fail(
            b, ST_OOM, "no host memory for this snapshot: %lld bytes are held, the limit is %lld",
            (long long)b->held_bytes, (long long)b->held_bytes_max);
        return NULL;
    }
    b->held_bytes += more;
    *cap = grown;
    return p;
}

enum status snap_fail(struct snap_build *b, enum status st, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(
        b->e, st, "cannot read \"%.200s\" at byte %lld: %s", b->what,
        (long long)snap_input_offset(&b->in), text);
}

/* ---- tables ---- */

static uint32_t hash_bytes(const void *data, size_t n)
{
    const uint8_t *p = data;
    uint64_t h = 0x9e3779b97f4a7c15u ^ n, word;
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&word, p, 8);
        h = (h ^ word) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    word = 0;
    memcpy(&word, p, n);
    h = (h ^ word) * 0xc4ceb9fe1a85ec53u;
    return (uint32_t)(h ^ h >> 29 ^ h >> 43);
}

static enum status index_grow(
    struct snap_build *b, struct snap_index *x, uint32_t (*hash_of)(struct snap_build *, uint32_t))
{
    size_t cap = x->cap ? 2 * x->cap : 256, held = 0;
    uint32_t *slots = snap_grow(b, NULL, &held, cap, sizeof *slots);
    if (!slots)
        return ST_OOM;
    memset(slots, 0, cap * sizeof *slots);
    for (size_t i = 0; i < x->cap; i++) {
        if (!x->slots[i])
            continue;
        size_t at = hash_of(b, x->slots[i] - 1) & (cap - 1);
        while (slots[at])
            at = (at + 1) & (cap - 1);
        slots[at] = x->slots[i];
    }
    b->held_bytes -= (int64_t)(x->cap * sizeof *slots);
    mem_free(x->slots);
    x->slots = slots;
    x->cap = cap;
    return ST_OK;
}

/* Walks the rows whose hash may be `hash`: the row's id, or UINT32_MAX at a free slot, which then
 * belongs to `at`. */
static uint32_t index_next(const struct snap_index *x, uint32_t hash, size_t *at, bool *begun)
{
    *at = (*begun ? *at + 1 : hash) & (x->cap - 1);
    *begun = true;
    return x->slots[*at] - 1;
}

#define INDEX_ROOM(b, x, hash_of)                                                                  \
    do {                                                                                           \
        if (2 * ((x)->n + 1) > (x)->cap)                                                           \
            TRY(index_grow((b), (x), (hash_of)));                                                  \
    } while (0)

static void index_put(struct snap_index *x, size_t at, size_t id)
{
    x->slots[at] = (uint32_t)id + 1;
    x->n++;
}

static uint32_t text_hash(struct snap_build *b, uint32_t id)
{
    return b->texts.data[id].hash;
}

enum status snap_text_id(struct snap_build *b, const void *s, size_t n, uint32_t *id)
{
    uint32_t hash = hash_bytes(s, n);
    size_t at = 0;
    bool begun = false;
    INDEX_ROOM(b, &b->text_index, text_hash);
    while ((*id = index_next(&b->text_index, hash, &at, &begun)) != UINT32_MAX) {
        const struct snap_text_row *t = &b->texts.data[*id];
        if (t->hash == hash && t->n == n && memcmp(t->s, s, n) == 0)
            return ST_OK;
    }
    SNAP_ROOM(b, &b->texts, 1);
    if ((int64_t)n > b->held_bytes_max - b->held_bytes)
        return snap_fail(b, ST_OOM, "no host memory for its texts");
    b->held_bytes += (int64_t)n;
    char *copy = arena_alloc(&b->arena, n + 1);
    memcpy(copy, s, n);
    *id = (uint32_t)b->texts.n;
    index_put(&b->text_index, at, b->texts.n);
    b->texts.data[b->texts.n++] = (struct snap_text_row){copy, (uint32_t)n, hash};
    return ST_OK;
}

static uint32_t frame_hash(struct snap_build *b, uint32_t id)
{
    return hash_bytes(&b->frames.data[id], sizeof(struct snap_frame));
}

enum status snap_frame_id(struct snap_build *b, struct snap_frame f, uint32_t *id)
{
    size_t at = 0;
    bool begun = false;
    uint32_t hash = hash_bytes(&f, sizeof f);
    INDEX_ROOM(b, &b->frame_index, frame_hash);
    while ((*id = index_next(&b->frame_index, hash, &at, &begun)) != UINT32_MAX)
        if (memcmp(&b->frames.data[*id], &f, sizeof f) == 0)
            return ST_OK;
    SNAP_ROOM(b, &b->frames, 1);
    *id = (uint32_t)b->frames.n;
    index_put(&b->frame_index, at, b->frames.n);
    b->frames.data[b->frames.n++] = f;
    return ST_OK;
}

static uint32_t origin_hash(struct snap_build *b, uint32_t id)
{
    const struct snap_origin *o = &b->origins.data[id];
    uint64_t words[3] = {(uint64_t)o->node << 32 | o->category, o->what, (uint64_t)o->step};
    return hash_bytes(words, sizeof words);
}

enum status snap_origin_id(struct snap_build *b, struct snap_origin o, uint32_t *id)
{
    size_t at = 0;
    bool begun = false;
    INDEX_ROOM(b, &b->origin_index, origin_hash);
    SNAP_ROOM(b, &b->origins, 1);
    b->origins.data[b->origins.n] = o;
    uint32_t hash = origin_hash(b, (uint32_t)b->origins.n);
    while ((*id = index_next(&b->origin_index, hash, &at, &begun)) != UINT32_MAX) {
        const struct snap_origin *p = &b->origins.data[*id];
        if (p->node == o.node && p->category == o.category && p->what == o.what &&
            p->step == o.step)
            return ST_OK;
    }
    *id = (uint32_t)b->origins.n;
    index_put(&b->origin_index, at, b->origins.n++);
    return ST_OK;
}

static uint32_t stack_hash(struct snap_build *b, uint32_t id)
{
    const struct snap_stack *s = &b->stacks.data[id];
    return hash_bytes(b->stack_frames.data + s->first, s->n * sizeof(uint32_t));
}

enum status snap_stack_id(struct snap_build *b, const uint32_t *frames, size_t n, uint32_t *id)
{
    size_t at = 0;
    bool begun = false;
    uint32_t hash = hash_bytes(frames, n * sizeof *frames);
    INDEX_ROOM(b, &b->stack_index, stack_hash);
    while ((*id = index_next(&b->stack_index, hash, &at, &begun)) != UINT32_MAX) {
        const struct snap_stack *s = &b->stacks.data[*id];
        if (s->n == n && memcmp(b->stack_frames.data + s->first, frames, n * sizeof *frames) == 0)
            return ST_OK;
    }
    SNAP_ROOM(b, &b->stacks, 1);
    SNAP_ROOM(b, &b->stack_frames, n + 1);
    if (n)
        memcpy(b->stack_frames.data + b->stack_frames.n, frames, n * sizeof *frames);
    *id = (uint32_t)b->stacks.n;
    index_put(&b->stack_index, at, b->stacks.n);
    b->stacks.data[b->stacks.n++] = (struct snap_stack){(uint32_t)b->stack_frames.n, (uint32_t)n};
    b->stack_frames.n += n;
    return ST_OK;
}

/* Few of them, and mostly the one of before. */
enum status snap_stream_id(struct snap_build *b, uint64_t stream, uint16_t *id)
{
    for (size_t i = 0; i < b->streams.n; i++) {
        if (b->streams.data[i] == stream) {
            *id = (uint16_t)i;
            return ST_OK;
        }
    }
    if (b->streams.n == SNAP_STREAMS_MAX)
        return snap_fail(b, ST_CORRUPT, "more than %d streams", SNAP_STREAMS_MAX);
    SNAP_ROOM(b, &b->streams, 1);
    *id = (uint16_t)b->streams.n;
    b->streams.data[b->streams.n++] = stream;
    return ST_OK;
}

enum status snap_pool_id(struct snap_build *b, struct snap_pool pool, uint16_t *id)
{
    for (size_t i = 0; i < b->pools.n; i++) {
        if (b->pools.data[i].a == pool.a && b->pools.data[i].b == pool.b) {
            *id = (uint16_t)i;
            return ST_OK;
        }
    }
    if (b->pools.n == SNAP_POOLS_MAX)
        return snap_fail(b, ST_CORRUPT, "more than %d pools", SNAP_POOLS_MAX);
    SNAP_ROOM(b, &b->pools, 1);
    *id = (uint16_t)b->pools.n;
    b->pools.data[b->pools.n++] = pool;
    return ST_OK;
}

/* ---- the stack machine ---- */

enum status snap_push_object(struct snap_build *b, enum snap_object_kind kind)
{
    SNAP_ROOM(b, &b->objects, 1);
    b->objects.data[b->objects.n] = (struct snap_object){.kind = (uint8_t)kind};
    return snap_push(b, (struct snap_value){.kind = VAL_OBJECT, .id = (uint32_t)b->objects.n++});
}

enum status snap_push_text(struct snap_build *b, const void *s, size_t n)
{
    struct snap_value v = {.kind = VAL_TEXT};
    TRY(snap_text_id(b, s, n, &v.id));
    return snap_push(b, v);
}

enum status snap_mark(struct snap_build *b)
{
    if (b->marks.n == SNAP_DEPTH_MAX)
        return snap_fail(b, ST_CORRUPT, "nested deeper than %d", SNAP_DEPTH_MAX);
    SNAP_ROOM(b, &b->marks, 1);
    b->marks.data[b->marks.n++] = (uint32_t)b->stack.n;
    return ST_OK;
}

enum status snap_unmark(struct snap_build *b, size_t *height)
{
    if (b->marks.n == 0)
        return snap_fail(b, ST_CORRUPT, "the end of something that was not begun");
    *height = b->marks.data[--b->marks.n];
    return ST_OK;
}

/* Room for `more` items at the end of an object's slice. A slice that is not the last one moves to
 * the end and gets twice its room, so that all moves together cost no more than the items. */
static enum status items_room(struct snap_build *b, struct snap_object *o, size_t more)
{
    bool last = (size_t)o->first + o->cap == b->items.n;
    if (o->n + more <= o->cap)
        return ST_OK;
    if (o->cap > 0 && last) {
        SNAP_ROOM(b, &b->items, o->n + more - o->cap);
        b->items.n += o->n + more - o->cap;
        o->cap = (uint32_t)(o->n + more);
        return ST_OK;
    }
    size_t cap = o->n ? 2 * (o->n + more) : more;
    SNAP_ROOM(b, &b->items, cap);
    memcpy(b->items.data + b->items.n, b->items.data + o->first, o->n * sizeof *b->items.data);
    o->first = (uint32_t)b->items.n;
    o->cap = (uint32_t)cap;
    b->items.n += cap;
    return ST_OK;
}

/* The object right below `height`, if it is of that kind. */
static struct snap_object *below(struct snap_build *b, size_t height)
{
    size_t floor = b->marks.n ? b->marks.data[b->marks.n - 1] : 0;
    if (height == 0 || height - 1 < floor || b->stack.data[height - 1].kind != VAL_OBJECT)
        return NULL;
    return &b->objects.data[b->stack.data[height - 1].id];
}

enum status snap_appends(struct snap_build *b, size_t height)
{
    struct snap_object *o = below(b, height);
    size_t n = b->stack.n - height;
    if (!o || o->kind != OBJ_LIST)
        return snap_fail(b, ST_CORRUPT, "something is appended to what is no list, or no longer");
    if (n == 0)
        return ST_OK;
    TRY(items_room(b, o, n));
    memcpy(b->items.data + o->first + o->n, b->stack.data + height, n * sizeof *b->stack.data);
    o->n += (uint32_t)n;
    b->stack.n = height;
    return ST_OK;
}

enum status snap_list(struct snap_build *b, size_t height)
{
    /* The list goes below its items. */
    TRY(snap_push_object(b, OBJ_LIST));
    struct snap_value list = b->stack.data[b->stack.n - 1];
    memmove(
        b->stack.data + height + 1, b->stack.data + height,
        (b->stack.n - 1 - height) * sizeof *b->stack.data);
    b->stack.data[height] = list;
    return snap_appends(b, height + 1);
}

enum status snap_setitems(struct snap_build *b, size_t height)
{
    struct snap_object *o = below(b, height);
    size_t n = b->stack.n - height;
    if (!o || o->kind == OBJ_LIST || o->kind == OBJ_STACK || n % 2 != 0)
        return snap_fail(b, ST_CORRUPT, "pairs are put into what is no dictionary");
    uint32_t object = b->stack.data[height - 1].id;
    for (size_t i = height; i < b->stack.n; i += 2)
        if (b->stack.data[i].kind == VAL_OBJECT || b->stack.data[i].kind == VAL_FLOAT)
            return snap_fail(b, ST_CORRUPT, "a key that is neither a text nor a number");
    if (o->kind == OBJ_DICT && n > 0) {
        TRY(items_room(b, o, n));
        memcpy(b->items.data + o->first + o->n, b->stack.data + height, n * sizeof *b->stack.data);
        o->n += (uint32_t)n;
        TRY(snap_dict_changed(b, object, n / 2));
    } else {
        for (size_t i = height; i < b->stack.n; i += 2)
            if (b->stack.data[i].kind == VAL_TEXT)
                TRY(snap_row_set(b, object, b->stack.data[i].id, b->stack.data[i + 1]));
    }
    b->stack.n = height;
    return ST_OK;
}

/* ---- begin and end ---- */

enum status snap_build_init(struct snap_build *b, struct err *e)
{
    static const char *const keys[] = {
        "",
#define X(name, text) text,
#include "doctor/snapshot_keys.def"
#undef X
    };
    uint32_t id;
    uint16_t zero;
    b->e = e;
    const struct snapshot_options *o = b->in.options;
    b->held_bytes_max = o && o->memory_bytes ? o->memory_bytes : host_capacity_bytes();
    arena_init(&b->arena);
    SNAP_ROOM(b, &b->items, 1); /* slices of nothing point somewhere too */
    for (size_t i = 0; i < KEY_COUNT; i++) {
        TRY(snap_text_id(b, keys[i], strlen(keys[i]), &id));
        ASSERT(id == i);
    }
    for (int i = 0; i < SNAP_OTHER; i++) {
        const char *name = snap_action_name((enum snap_action)i);
        TRY(snap_text_id(b, name, strlen(name), &id));
        ASSERT(id == (uint32_t)(KEY_FIRST_ACTION + i));
    }
    TRY(snap_stack_id(b, &id, 0, &id));
    TRY(snap_origin_id(b, (struct snap_origin){.step = -1}, &id));
    TRY(snap_stream_id(b, 0, &zero));
    return snap_pool_id(b, (struct snap_pool){0, 0}, &zero);
}

void snap_build_release(struct snap_build *b)
{
    vec_release(&b->stack);
    vec_release(&b->marks);
    vec_release(&b->memo);
    vec_release(&b->objects);
    vec_release(&b->items);
    vec_release(&b->events);
    vec_release(&b->blocks);
    vec_release(&b->segments);
    vec_release(&b->histories);
    vec_release(&b->texts);
    vec_release(&b->frames);
    vec_release(&b->stacks);
    vec_release(&b->stack_frames);
    vec_release(&b->origins);
    vec_release(&b->streams);
    vec_release(&b->pools);
    vec_release(&b->scratch);
    mem_free(b->text_index.slots);
    mem_free(b->frame_index.slots);
    mem_free(b->stack_index.slots);
    mem_free(b->origin_index.slots);
    arena_release(&b->arena);
    mem_free(b->in.window);
}
