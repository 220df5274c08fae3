/* snapshot.h - a memory snapshot of PyTorch or of snug, as compact tables, and how to read one.
 *
 * What is read: pickles of torch.cuda.memory._dump_snapshot (protocols 2 to 5, also those of
 * PyTorch's own C++ pickler), plain pickled lists of segments (memory_snapshot() of 1.x), pages
 * that _memory_viz.py wrote (the pickle within, base64), and JSON with the same keys (FORMAT).
 * Which of them a file is follows from its first bytes; a path "-" is the standard input.
 *
 *     struct snapshot *s;
 *     TRY(snapshot_read_file("oom.pickle", NULL, &s, e));
 *     for (int d = 0; d < s->devices_n; d++)
 *         for (uint32_t i = 0; i < s->devices[d].events_n; i++) {
 *             const struct snap_event *v = &s->events[s->devices[d].events_first + i];
 *             ... v->action, v->addr, snap_text(s, s->frames[...].file) ...
 *         }
 *     snapshot_free(s);
 *
 * Everything refers to everything by index: a text is an id of `texts`, a stack an id of `stacks`,
 * a stack is a slice of `stack_frames`, whose elements are ids of `frames`. Equal texts, frames and
 * stacks exist once, so two stacks are the same code path exactly if their ids are equal. Id 0 is
 * always the empty one: text "", stack without frames, origin without names.
 *
 * WHY a reader of its own beside nn/pickle.h: that one builds a tree of values for .pt files.
 * Traces of two million events share their frames through the pickle's memo; a tree of them would
 * take many gigabytes. Here each dictionary becomes a row of a table at the moment it is complete,
 * and the file is read through a window.
 *
 * SAFETY: a pickle is a program. Only the opcodes of snapshot_ops.def are run; any that could name,
 * make or call something is refused with its name and offset. Nothing recurses, counts are bounded
 * by LIMITS and by the bytes read.
 *
 * LIMITS: SNAP_DEVICES_MAX devices, SNAP_STREAMS_MAX streams, SNAP_POOLS_MAX pools, SNAP_DEPTH_MAX
 * open marks, 2^32 - 2 events, blocks, texts; options.memory_bytes of host memory (ST_OOM beyond).
 *
 * MEMORY: 52 bytes an event, 32 a life, 40 a block, 4 a frame of each distinct stack, 12 a frame.
 * While a pickle is read, 16 bytes more for each entry of its memo.
 *
 * FORMAT of JSON snapshots: an object with "segments" and "device_traces" (and, as in pickles,
 * "allocator_settings", "external_annotations"), whose elements have the keys of the pickle. What
 * JSON cannot share: "frames" of an event, block or segment is a list of frames, or a number: an
 * index into "stacks" of the "snug" object, which is a list of lists of frames, or of numbers:
 * indices into its "frames". Events and blocks may carry "node", "category", "what" (texts) and
 * "step" (a number): the origin. "snug" further has what the writer knows: "version", "device"
 * (name of the device), "capacity_bytes", "others_bytes", "limit_bytes", "large_segment_bytes" (0
 * or absent: unknown). The "snug" object may stand anywhere; at the beginning is cheapest. A pickle
 * may have the same keys.
 *
 * Source of the keys: PyTorch's torch/csrc/cuda/memory_snapshot.cpp and
 * docs/source/torch_cuda_memory.
 */
#ifndef DOCTOR_SNAPSHOT_H
#define DOCTOR_SNAPSHOT_H

#include "base/err.h"
#include "base/mem.h"

#include <stddef.h>
#include <stdint.h>

enum {
    SNAP_DEVICES_MAX = 1024,
    SNAP_STREAMS_MAX = 65535,
    SNAP_POOLS_MAX = 65534,
    SNAP_DEPTH_MAX = 1000,
    SNAP_POOL_UNKNOWN = 65535, /* an event without pool_id: every version but the newest */
    SNAP_ROUNDUP_N = 16
};

enum snap_action {
#define X(name, text) SNAP_##name,
#include "doctor/snapshot_actions.def"
#undef X
    SNAP_ACTION_COUNT
};
const char *snap_action_name(enum snap_action action);

enum snap_state {
    SNAP_ACTIVE,   /* active_allocated */
    SNAP_PENDING,  /* active_pending_free, active_awaiting_free: dropped, a stream still uses it */
    SNAP_INACTIVE, /* cached; its requested_size is that of its last user */
    SNAP_STATE_COUNT
};

/* The frame of a stack. C++ frames have file "??" and line 0. */
struct snap_frame {
    uint32_t file, name; /* texts */
    uint32_t line;
};

/* A slice of `stack_frames`, innermost frame first. */
struct snap_stack {
    uint32_t first, n;
};

/* Who asked, in snapshots of our own. */
struct snap_origin {
    uint32_t node, category, what; /* texts */
    int64_t step;                  /* -1: not known */
};

struct snap_event {
    uint64_t addr;     /* OOM: free bytes of the device at that moment (device_free) */
    int64_t size;      /* bytes; see snapshot_actions.def */
    int64_t time_us;   /* since 1970; 0 where the file has none */
    uint32_t stack;    /* 0 where no context was recorded */
    uint32_t context;  /* text: compile_context, "" where absent ("N/A" is kept) */
    uint32_t metadata; /* text: user_metadata */
    uint32_t origin;
    uint16_t stream; /* of `streams` */
    uint16_t pool;   /* of `pools`, or SNAP_POOL_UNKNOWN */
    uint8_t action;  /* enum snap_action */
};

/* requested_size is -1 where the file does not say. */
struct snap_block {
    uint64_t addr;
    int64_t size, requested_size;
    uint32_t stack, origin;
    uint32_t segment; /* of `segments` */
    uint8_t state;    /* enum snap_state */
};

/* One cudaMalloc, or for expandable segments one contiguous mapped range. Its blocks lie at
 * blocks[first_block .. first_block + blocks_n), in order of address. Sizes are -1 where absent. */
struct snap_segment {
    uint64_t addr;
    int64_t total_size, allocated_size, active_size, requested_size;
    uint32_t first_block, blocks_n;
    uint32_t stack; /* of the cudaMalloc */
    int32_t device;
    uint16_t stream, pool; /* of `streams`, `pools`; 0, the default pool, where the file has none */
    bool large, expandable;
};

/* One use of one address: from its allocation to the moment it can be used again. Events are
 * indices of `events`, SNAP_NONE where there is none: no alloc: it began before the recording; no
 * free_completed: alive at the end, and then `block` is its block, if the segments have it. */
#define SNAP_NONE UINT32_MAX
struct snap_life {
    uint64_t addr;
    int64_t size; /* as asked for; of the block where only that is known */
    uint32_t alloc, free_requested, free_completed;
    uint32_t block; /* of `blocks` */
};

/* {name, stage START or END} of external_annotations: the optimizer's step and the like. */
struct snap_annotation {
    uint32_t name; /* text */
    int32_t device;
    int64_t time_us;
    bool end;
};

/* A pool id; {0, 0} is the default one and always index 0. */
struct snap_pool {
    uint64_t a, b;
};

/* allocator_settings. `present` false: the file has none, the rest are PyTorch's defaults. */
struct snap_settings {
    bool present;
    uint32_t conf;                       /* text: PYTORCH_CUDA_ALLOC_CONF, or its newer name */
    int64_t max_split_size;              /* bytes; -1: unlimited */
    double garbage_collection_threshold; /* 0: off */
    bool expandable_segments;
    bool roundup_power2; /* a division above 1 is set */
    bool release_lock_on_cudamalloc, graph_capture_record_stream_reuse;
    int64_t roundup_power2_divisions[SNAP_ROUNDUP_N]; /* by power of two from 1 MiB on; 0: off */
    int trace_overflowed;                             /* 1 yes, 0 no, -1 the file does not say */
    int64_t trace_entries_max;                        /* -1: the file does not say */
};

/* What our own files say of a device; 0 and id 0 where unknown: its name, its capacity, what others
 * held of it, and the most that this process might take. */
struct snap_card {
    uint32_t name; /* text */
    int64_t capacity_bytes, others_bytes, limit_bytes;
};

/* A device's part of the tables. Segments are sorted by address, events oldest first. */
struct snap_device {
    uint32_t segments_first, segments_n;
    struct snap_card card;
    uint32_t events_first, events_n;
    uint32_t lives_first, lives_n;         /* in order of their first event; without one last */
    uint32_t actions_n[SNAP_ACTION_COUNT]; /* events by kind */
    /* Of the segments, at the end: */
    int64_t reserved_bytes, active_bytes, allocated_bytes; /* blocks; active has the pending ones */
    int64_t requested_bytes;                  /* of active blocks; -1 where a block does not say */
    int64_t free_bytes, free_block_bytes_max; /* inactive blocks; the largest one */
    /* Lives without an alloc event: what happened before is not known. Their number and bytes. */
    uint32_t earlier_n;
    int64_t earlier_bytes;
    uint32_t unmatched_n; /* events that contradict others: twice allocated, freed but not live */
};

/* What only our own files say; 0 and id 0 where unknown. */
struct snap_snug {
    bool present;
    uint32_t version, graph, device; /* texts; device and the next three are those of device 0 */
    int64_t capacity_bytes, others_bytes, limit_bytes;
    int64_t large_segment_bytes, events_lost;
};

enum snap_form { SNAP_PICKLE, SNAP_PAGE, SNAP_JSON };

/* Owner: whoever called snapshot_read_*; all tables are its own, read-only for others. */
struct snapshot {
    enum snap_form form;
    int protocol;     /* of the pickle; 0 for JSON */
    bool plain_list;  /* only segments, no traces: memory_snapshot() of 1.x */
    bool has_history; /* some device has events */
    bool has_stacks;  /* some event or block has frames */
    bool has_time;    /* events have time_us */
    struct snap_settings settings;
    struct snap_snug snug;

    int devices_n;
    struct snap_device *devices;
    struct snap_segment *segments;
    struct snap_block *blocks;
    struct snap_event *events;
    struct snap_life *lives;
    uint32_t *event_life; /* of each event the life it is part of, or SNAP_NONE */
    struct snap_annotation *annotations;
    uint32_t segments_n, blocks_n, events_n, lives_n, annotations_n;

    uint64_t *streams; /* as the file names them; index 0 is stream 0 */
    struct snap_pool *pools;
    const char **texts;
    struct snap_frame *frames;
    struct snap_stack *stacks;
    uint32_t *stack_frames;
    struct snap_origin *origins;
    uint32_t streams_n, pools_n, texts_n, frames_n, stacks_n, stack_frames_n, origins_n;

    /* What does not add up, one line each; the first SNAP_WARNINGS_MAX of warnings_n. */
    const char **warnings;
    uint32_t warnings_n;
    int64_t file_bytes; /* read */
    struct arena arena; /* of texts and warnings */
};
enum { SNAP_WARNINGS_MAX = 32 };

static inline const char *snap_text(const struct snapshot *s, uint32_t id)
{
    return s->texts[id];
}
/* The frame ids of a stack. */
static inline const uint32_t *snap_stack_frames(const struct snapshot *s, uint32_t stack)
{
    return s->stack_frames + s->stacks[stack].first;
}

/* A NULL gives the defaults. */
struct snapshot_options {
    int64_t memory_bytes; /* 0: what host_capacity_bytes says */
    /* Called about ten times a second while a long file is read; total 0: not known. */
    void (*progress)(void *ctx, int64_t done_bytes, int64_t total_bytes);
    void *ctx;
};

/* ST_NOT_FOUND, ST_IO; ST_CORRUPT with offset for what is no snapshot or damaged; ST_UNSUPPORTED
 * for an opcode that is refused; ST_OOM. */
enum status snapshot_read_file(
    const char *path, const struct snapshot_options *o, struct snapshot **out,
    struct err *e) NODISCARD;
/* The same from memory; `what` names it in errors. */
enum status snapshot_read_bytes(
    const void *data, size_t size_bytes, const char *what, const struct snapshot_options *o,
    struct snapshot **out, struct err *e) NODISCARD;
/* Whether these first bytes of a file (a kilobyte is enough) look like something to read here. */
bool snapshot_looks_like(const void *data, size_t size_bytes);
void snapshot_free(struct snapshot *s); /* NULL is harmless */

#endif
