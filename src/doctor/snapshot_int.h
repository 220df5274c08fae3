/* snapshot_int.h - how a snapshot is read; private to snapshot_*.c.
 *
 *     input    bytes through a window: a file, memory, or the base64 within a page
 *     pickle   opcodes \
 *     json     tokens  / drive the same stack machine:
 *     build    values, lists, dictionaries; a dictionary that is an event, a block, a segment or a
 *              frame becomes a row of a table at once, and only its number stays
 *     finish   the top level becomes a struct snapshot: devices, slices, sums, warnings
 *
 * INVARIANTS
 * 1. A value names an object by index; nothing here follows more than two levels of them, so
 *    neither depth nor cycles matter.
 * 2. An object's items are a slice of `items`. A list of frames gives its slice back when it
 *    becomes a stack, so the list that holds the events is last again and grows in place.
 * 3. What grows does so through SNAP_ROOM, which counts against the limit and answers ST_OOM.
 */
#ifndef DOCTOR_SNAPSHOT_INT_H
#define DOCTOR_SNAPSHOT_INT_H

#include "doctor/snapshot.h"

#include <stdio.h>

enum snap_key {
    KEY_NONE, /* the empty text */
#define X(name, text) KEY_##name,
#include "doctor/snapshot_keys.def"
#undef X
    KEY_COUNT,
    KEY_FIRST_ACTION = KEY_COUNT /* texts of snapshot_actions.def follow */
};

/* ---- input ---- */

enum { SNAP_WINDOW = 1 << 20, SNAP_TEXT_MAX = 64 << 20 };

struct snap_input {
    const uint8_t *at, *end; /* of the window */
    uint8_t *window;         /* NULL: the bytes are the caller's */
    size_t cap;
    FILE *in;
    int64_t before_bytes; /* of the document, before the window */
    int64_t total_bytes;  /* 0: not known */
    /* Within a page: characters of base64 become bytes of the document. */
    bool base64;
    uint32_t bits;
    int bits_n;
    bool ended;        /* nothing comes after the window */
    bool failed;       /* reading did not end well */
    int64_t raw_bytes; /* read from the file */
    int64_t told_ns;
    const struct snapshot_options *options;
};

/* Makes `n` bytes (at most SNAP_TEXT_MAX) available at `at`; false where the document ends before.
 */
bool snap_input_need(struct snap_input *in, size_t n);
static inline bool snap_input_has(struct snap_input *in, size_t n)
{
    return (size_t)(in->end - in->at) >= n || snap_input_need(in, n);
}
int64_t snap_input_offset(const struct snap_input *in);
/* What is left in the document after the window's place is known to be at most this; -1 unknown. */
int64_t snap_input_left(const struct snap_input *in);
/* Goes to the first pickle of a page; false when there is none. */
bool snap_input_page(struct snap_input *in);

/* ---- build ---- */

enum snap_value_kind { VAL_NONE, VAL_BOOL, VAL_INT, VAL_FLOAT, VAL_TEXT, VAL_OBJECT };
struct snap_value {
    uint32_t kind;
    uint32_t id; /* TEXT: of the text; OBJECT: index of the object */
    union {
        int64_t i; /* INT (unsigned ones by their bits), BOOL */
        double f;
    };
};

enum snap_object_kind {
    OBJ_LIST, /* lists and tuples */
    OBJ_DICT, /* items: key, value, key, value */
    OBJ_EVENT,
    OBJ_BLOCK,
    OBJ_SEGMENT,
    OBJ_HISTORY,
    OBJ_FRAME,
    OBJ_STACK /* a list of frames that became one */
};
struct snap_object {
    uint32_t first;  /* item; or row of the table */
    uint32_t n, cap; /* items */
    uint8_t kind;
    uint8_t seen; /* of a frame: which of its three keys */
};

/* The frames of an event, block or segment before the end: a stack, or in our own files the index
 * of one that may come later. */
#define SNAP_STACK_REF 0x80000000u

struct snap_history {
    int64_t real_size;
    uint32_t stack;
};

/* Open addressing: ids + 1 of rows, 0 is empty. */
struct snap_index {
    uint32_t *slots;
    size_t cap, n; /* cap is a power of two */
};

struct snap_text_row {
    const char *s;
    uint32_t n, hash;
};

struct snap_build {
    struct snap_input in;
    const char *what; /* for errors */
    struct err *e;
    int64_t held_bytes, held_bytes_max;

    VEC(struct snap_value) stack;
    VEC(uint32_t) marks; /* heights of the stack */
    VEC(struct snap_value) memo;
    VEC(struct snap_object) objects;
    VEC(struct snap_value) items;

    VEC(struct snap_event) events;
    VEC(struct snap_block) blocks;
    VEC(struct snap_segment) segments; /* first_block: object of the list, until the end */
    VEC(struct snap_history) histories;
    VEC(struct snap_text_row) texts;
    VEC(struct snap_frame) frames;
    VEC(struct snap_stack) stacks;
    VEC(uint32_t) stack_frames;
    VEC(struct snap_origin) origins;
    VEC(uint64_t) streams;
    VEC(struct snap_pool) pools;
    struct snap_index text_index, frame_index, stack_index, origin_index;
    struct arena arena;
    VEC(uint32_t) scratch; /* frames of the stack that is being made */
    bool stack_refs;       /* some row has SNAP_STACK_REF */
    int64_t sizes_bytes;   /* of all rows; bounds every sum that anyone makes of them */
};

/* `v` gets room for `more` elements, or the enclosing function returns ST_OOM. */
#define SNAP_ROOM(b, v, more)                                                                      \
    do {                                                                                           \
        if ((v)->cap - (v)->n < (size_t)(more)) {                                                  \
            void *grown_ =                                                                         \
                snap_grow((b), (v)->data, &(v)->cap, (v)->n + (size_t)(more), sizeof *(v)->data);  \
            if (!grown_)                                                                           \
                return ST_OOM;                                                                     \
            (v)->data = grown_;                                                                    \
        }                                                                                          \
    } while (0)
/* NULL with the error set when the limit or the host's memory is passed; `data` is then as before.
 */
void *snap_grow(struct snap_build *b, void *data, size_t *cap, size_t need, size_t item_bytes);

enum status snap_build_init(struct snap_build *b, struct err *e) NODISCARD;
void snap_build_release(struct snap_build *b);
/* ST_CORRUPT (or `st`) with the file's name and the place before the text. */
enum status snap_fail(struct snap_build *b, enum status st, const char *fmt, ...) PRINTF(3, 4);

/* Each answers the id of the row, made if there is none. */
enum status snap_text_id(struct snap_build *b, const void *s, size_t n, uint32_t *id) NODISCARD;
enum status snap_frame_id(struct snap_build *b, struct snap_frame f, uint32_t *id) NODISCARD;
enum status snap_origin_id(struct snap_build *b, struct snap_origin o, uint32_t *id) NODISCARD;
enum status
snap_stack_id(struct snap_build *b, const uint32_t *frames, size_t n, uint32_t *id) NODISCARD;
enum status snap_stream_id(struct snap_build *b, uint64_t stream, uint16_t *id) NODISCARD;
enum status snap_pool_id(struct snap_build *b, struct snap_pool pool, uint16_t *id) NODISCARD;

/* The stack machine. */
static inline enum status snap_push(struct snap_build *b, struct snap_value v)
{
    SNAP_ROOM(b, &b->stack, 1);
    b->stack.data[b->stack.n++] = v;
    return ST_OK;
}
enum status snap_push_object(struct snap_build *b, enum snap_object_kind kind) NODISCARD;
enum status snap_push_text(struct snap_build *b, const void *s, size_t n) NODISCARD;
enum status snap_mark(struct snap_build *b) NODISCARD;
/* What lies above the last mark, which is taken away: its height. */
enum status snap_unmark(struct snap_build *b, size_t *height) NODISCARD;
/* The values from `height` on leave the stack, into the list or dictionary below them. */
enum status snap_appends(struct snap_build *b, size_t height) NODISCARD;
enum status snap_setitems(struct snap_build *b, size_t height) NODISCARD;
/* The values from `height` on become a list. */
enum status snap_list(struct snap_build *b, size_t height) NODISCARD;

/* ---- rows ---- */

/* Pairs of a dictionary have arrived: `pairs` of them, the last items of `items`. */
enum status snap_dict_changed(struct snap_build *b, uint32_t object, size_t pairs) NODISCARD;
/* One more pair of a dictionary that is a row already. */
enum status
snap_row_set(struct snap_build *b, uint32_t object, uint32_t key, struct snap_value v) NODISCARD;
/* "frames": the stack of a list of frames, or a reference. */
enum status snap_stack_of(struct snap_build *b, struct snap_value v, uint32_t *stack) NODISCARD;

/* ---- readers: leave the root as the only value of the stack ---- */

enum status snap_read_pickle(struct snap_build *b, int *protocol) NODISCARD;
enum status snap_read_json(struct snap_build *b) NODISCARD;

/* ---- finish ---- */

/* Takes the tables of `b`. */
enum status snap_finish(struct snap_build *b, struct snapshot *s) NODISCARD;
void snap_warn(struct snapshot *s, const char *fmt, ...) PRINTF(2, 3);
/* Pairs the events of every device and its active blocks: `lives`. */
enum status snap_lives(struct snap_build *b, struct snapshot *s) NODISCARD;
/* Warnings about what does not add up, and the sums of each device. */
void snap_check(struct snapshot *s);

#endif
