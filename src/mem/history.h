/* history.h - the allocation history: a ring of events, and snapshots of it as PyTorch writes them.
 *
 *     h = mem_history_new(events_max)
 *     mem_history_node(h, "train", "TrainingLoop", 12)     the graph, for frames
 *     origin = mem_history_origin(h, ..)                   once for each operator
 *     mem_history_at(h, origin)                            before each operator
 *     pools tell what happens (mem_history_watch), or an executor with an arena of its own does
 *     (mem_history_segment, mem_history_alloc, mem_history_give)
 *     mem_history_write(h, "run.pickle", ..)
 *
 * Who takes memory finds the history in the source that it takes it from (mem_source.history).
 *
 * What an event keeps: what happened where, when (microseconds), in which step, the node and the
 * category of the block, and an origin: the stack of who caused it, innermost first, as frames
 * {file, name, line} - "model/conv1 (SequentialModel) conv2d" at the node's line of the graph file,
 * then "train (TrainingLoop) train.only, forward".
 *
 * INVARIANTS
 * 1. The ring holds the newest events_max events; `lost` counts the older ones.
 * 2. What is live is known without the ring: who holds a block can be said after the event of its
 *    allocation was overwritten.
 * 3. Texts are copied: nothing of a pool, program or graph has to outlive it.
 *
 * FORMAT  mem_history_write gives one document in two forms, with the keys of PyTorch's snapshots:
 * segments, device_traces, allocator_settings, external_annotations (empty), and "snug". Events and
 * blocks of ours have "node", "category" and "step" beside PyTorch's keys. A pickle is of protocol
 * 2, without any global, its texts, frames and stacks shared through the memo. In JSON, "frames" is
 * an index into snug.stacks, whose elements are lists of indices into snug.frames.
 * Source: PyTorch's documentation, "Understanding CUDA Memory Usage".
 *
 * LIMITS  48 bytes an event, 56 a live block. Recording never fails.
 * Threads: every function locks the history.
 */
#ifndef MEM_HISTORY_H
#define MEM_HISTORY_H

#include "mem/pool/pool.h"

enum { MEM_HISTORY_EVENTS_MAX = 1 << 20 }; /* the default ring */

struct mem_history;
struct mem_history *mem_history_new(int64_t events_max); /* 0: the default */
void mem_history_free(struct mem_history *h);            /* NULL is harmless */

/* ---- Names ---- */

/* The file that frames name, and its nodes: id, type, line (0: unknown). */
void mem_history_file(struct mem_history *h, const char *path);
void mem_history_node(struct mem_history *h, const char *id, const char *type, int line);
/* The node that runs now: part of the origins made from here on. NULL: none. */
void mem_history_running(struct mem_history *h, const char *id);

/* Who causes something: `path` is a node, or a layer of one ("model/conv1"; may be NULL), `what` an
 * operator or a weight, `where` the program and its part. Equal ones have equal numbers; 0 is
 * nobody. */
uint32_t
mem_history_origin(struct mem_history *h, const char *path, const char *what, const char *where);

/* A device, and what is known of it; 0 is unknown. Equal names have equal numbers. */
struct mem_history_device {
    const char *name; /* "cpu" */
    int64_t capacity_bytes, others_bytes, limit_bytes;
};
int mem_history_device(struct mem_history *h, const struct mem_history_device *d);

/* ---- What happens ---- */

/* What runs from here on, and in which step. */
void mem_history_at(struct mem_history *h, uint32_t origin);
void mem_history_step(struct mem_history *h, int64_t step);

/* Records all of a pool's events; unwatch says that everything it holds is given back. */
void mem_history_watch(struct mem_history *h, int device, struct mem_pool *p);
void mem_history_unwatch(struct mem_history *h, struct mem_pool *p);

/* Memory that no pool manages: a segment, and parts of it that live and die at planned addresses.
 * The end of a segment ends what still lives in it. */
void mem_history_segment(struct mem_history *h, int device, uint64_t addr, int64_t size_bytes);
void mem_history_segment_end(struct mem_history *h, int device, uint64_t addr);
void mem_history_alloc(
    struct mem_history *h, int device, uint64_t addr, int64_t size_bytes, const char *category,
    const char *node);
void mem_history_give(struct mem_history *h, int device, uint64_t addr);

/* Like alloc, for what was there before the recording began: no event. */
void mem_history_hold(
    struct mem_history *h, int device, uint64_t addr, int64_t size_bytes, const char *category,
    const char *node);

/* A request that could not be met. A pool's are heard from it. */
void mem_history_oom(struct mem_history *h, int device, int64_t size_bytes, int64_t free_bytes);
/* The state of now is what will be written, whatever is given back later, and nothing is recorded
 * any more: for failures, while memory is still held. Later calls do nothing. */
void mem_history_freeze(struct mem_history *h);

/* ---- Reading ---- */

struct mem_history_counts {
    int64_t events_n, lost_n, ooms_n; /* held, overwritten, requests that failed */
    int64_t live_blocks_n, segments_n;
    bool frozen;
};
void mem_history_counts(struct mem_history *h, struct mem_history_counts *out);

struct mem_history_form {
    bool pickle;                      /* else JSON */
    const char *version;              /* of this program */
    const struct mem_pool_conf *conf; /* NULL: PyTorch's defaults */
};
/* Whole or not at all (base/env.h). `path` may be a device or a pipe. */
enum status mem_history_write(
    struct mem_history *h, const char *path, const struct mem_history_form *form,
    struct err *e) NODISCARD;

#endif
