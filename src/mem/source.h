/* source.h - where device memory comes from: the driver below the allocator, against one budget.
 *
 * The arena of a static plan, the segments of the pool and the pages of expandable segments are all
 * taken here, so a budget (`--memory-gib`, a simulated card's capacity) is enforced in one place.
 * A device of another kind supplies the functions; addresses are numbers that nobody here follows,
 * so the same allocator serves host memory, simulated cards and replays (mem/virtual.h).
 *
 * INVARIANTS
 * 1. held_bytes is what has been taken or mapped and not given back; it never passes budget_bytes.
 *    Reserved address ranges hold nothing.
 * 2. With an account, what it holds for this source is held_bytes: nothing is taken, mapped, given
 *    back or unmapped beside it.
 *
 * Threads: every mem_source_* function may be called from several threads at once; the functions
 * of a driver too, so they lock what they share.
 */
#ifndef MEM_SOURCE_H
#define MEM_SOURCE_H

#include "base/err.h"

#include <stdint.h>

/* The figures of the last request that was refused, here or by the allocator above; need_bytes 0:
 * none was. For the thread that was refused. */
struct mem_refusal {
    int64_t need_bytes, held_bytes, budget_bytes; /* held of this source; its budget, 0 none */
    int64_t free_bytes, total_bytes;              /* of the device; -1 unknown */
    /* Of the allocator: blocks handed out, segments held, and their peaks; 0 without one. */
    int64_t live_bytes, reserved_bytes, reserved_peak_bytes;
    const void *by; /* the allocator that was refused, to know it from others; NULL: none */
};

struct mem_source {
    /* A segment (cudaMalloc, cudaFree). The address, a multiple of 512; 0 when there is no such
     * memory left. */
    uint64_t (*take)(struct mem_source *s, int64_t size_bytes);
    void (*give)(struct mem_source *s, uint64_t addr, int64_t size_bytes);
    /* Free and total bytes of the device (cudaMemGetInfo). NULL: from the budget and what is held;
     * without a budget the host's capacity. */
    void (*info)(struct mem_source *s, int64_t *free_bytes, int64_t *total_bytes);

    /* The account of memory that other processes share; NULL: none. Asked with the bytes that are
     * wanted, before any of the functions around (false: there is no such room), and told with
     * their negative after they are gone (always true). So host memory with an account is a
     * simulated card, in every way that memory is taken. */
    bool (*account)(struct mem_source *s, int64_t bytes);
    /* Why the account last said no, where it was not for want of room (a damaged file): fills e. */
    bool (*account_broken)(struct mem_source *s, struct err *e);

    /* Expandable segments. All four or none: without them expandable_segments has no effect.
     * `reserve` and `release` deal in address ranges only (cuMemAddressReserve), `map` puts memory
     * behind a part of one (cuMemCreate, cuMemMap), whole or not at all. */
    uint64_t (*reserve)(struct mem_source *s, int64_t size_bytes); /* 0: no such range */
    void (*release)(struct mem_source *s, uint64_t addr, int64_t size_bytes);
    bool (*map)(struct mem_source *s, uint64_t addr, int64_t size_bytes);
    void (*unmap)(struct mem_source *s, uint64_t addr, int64_t size_bytes);

    /* Events on streams (cudaEventRecord, cudaEventQuery, cudaEventSynchronize). All NULL: work is
     * complete as soon as it is issued. An event is asked until it is done, or waited for; then
     * its number is dropped. */
    uint64_t (*event_record)(struct mem_source *s, uint64_t stream);
    bool (*event_done)(struct mem_source *s, uint64_t event);
    void (*event_wait)(struct mem_source *s, uint64_t event);

    void *ctx;            /* the driver's own */
    const char *device;   /* for errors: "cpu" */
    int64_t budget_bytes; /* 0 is none */
    int64_t
        tail_bytes; /* host: mapped behind each segment for addresses past it; counted nowhere */
    _Atomic int64_t held_bytes, held_bytes_peak;
    _Atomic int64_t taken_n; /* segments taken since the start */
    struct mem_refusal refused;
    /* Who records what is held here, and under which number of device; NULL: nobody. Executors
     * tell it what they do. Borrowed. */
    struct mem_history *history;
    int history_device;
    /* Where nobody records: an empty history, which becomes `history` when memory runs out, so that
     * what is held then can be written. NULL: not wanted. Borrowed. */
    struct mem_history *oom_history;
};

/* Host memory, mapped by page and zeroed, with huge pages advised. Expandable ranges are reserved
 * without access and opened as they are mapped. */
void mem_source_init_host(struct mem_source *s, int64_t budget_bytes);

/* Memory that this process can reach: ST_OOM with need, held, budget and what the device has free;
 * the figures are in `refused`. Nothing is held after a failure. */
enum status
mem_source_take(struct mem_source *s, int64_t size_bytes, void **out, struct err *e) NODISCARD;
/* `size_bytes` as taken. */
void mem_source_give(struct mem_source *s, void *p, int64_t size_bytes);

/* The caller gave pages of a segment back to the system (madvise): so many bytes of what was taken
 * are no longer held. mem_source_give_rest then gives the segment back: size_bytes as taken,
 * held_bytes of them still held. */
void mem_source_lower(struct mem_source *s, int64_t bytes);
void mem_source_give_rest(struct mem_source *s, void *p, int64_t size_bytes, int64_t held_bytes);

/* The same by address, for devices of any kind; 0 when there is none. */
uint64_t mem_source_segment_take(struct mem_source *s, int64_t size_bytes) NODISCARD;
void mem_source_segment_give(struct mem_source *s, uint64_t addr, int64_t size_bytes);
/* Counts a segment that is there already (a replay's start) as held; false above the budget. */
bool mem_source_adopt(struct mem_source *s, int64_t size_bytes) NODISCARD;

bool mem_source_can_expand(const struct mem_source *s);
uint64_t mem_source_reserve(struct mem_source *s, int64_t size_bytes) NODISCARD; /* 0: none */
void mem_source_release(struct mem_source *s, uint64_t addr, int64_t size_bytes);
bool mem_source_map(struct mem_source *s, uint64_t addr, int64_t size_bytes) NODISCARD;
void mem_source_unmap(struct mem_source *s, uint64_t addr, int64_t size_bytes);

void mem_source_info(struct mem_source *s, int64_t *free_bytes, int64_t *total_bytes);

#endif
