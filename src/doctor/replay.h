/* replay.h - the events of a snapshot through our allocator: as they were recorded, and as they
 * would have gone under other settings.
 *
 * EXACT. The state at the first event is worked out from the last one: the segments of the end,
 * with segment events undone; the blocks that are freed, or alive at the end, without having been
 * allocated. From there every event goes through mem/pool under the settings of the recording. The
 * driver below it answers what the recorded one answered: the next recorded segment's address, or a
 * refusal where the recording goes on with segments given back, or with an out-of-memory event.
 * What is predicted is compared: the address of every allocation, every segment event, and at the
 * end every block of every segment. The ring of events may have overflowed: the state is worked out
 * from the end.
 *
 * What a file cannot say: a block of a large pool that was allocated before the first event may be
 * up to 1 MiB larger than what was asked for. The block of the end settles it if it still lives,
 * else the first allocation behind it; where neither does (`ambiguous_n`), it is taken as not
 * larger.
 *
 * WHAT IF. The same requests in the same order from a clean start (those that lived before the
 * first event come first, by address) under any settings and capacity. Runs of recorded
 * segment_free and segment_unmap are calls of empty_cache. A request that failed in the recording
 * is made and given back at once. Addresses of segments are not known then; the order in which the
 * device hands them out is a parameter that hardly matters (mem_virtual_order).
 *
 * Source of the method: measurements on public snapshots, docs/replay.md.
 */
#ifndef DOCTOR_REPLAY_H
#define DOCTOR_REPLAY_H

#include "doctor/snapshot.h"
#include "mem/pool/conf.h"
#include "mem/virtual.h"

/* The settings that a snapshot was recorded under; `warnings` (may be NULL) gets lines about text
 * that is not understood. Files without settings: the defaults, expandable where the segments are.
 */
void replay_recorded_conf(
    const struct snapshot *s, struct mem_pool_conf *out, struct str *warnings);

struct replay_exact {
    uint32_t allocs_n, allocs_wrong_n;     /* addresses */
    uint32_t segments_n, segments_wrong_n; /* segment events: missing, unpredicted or different */
    uint32_t reordered_n;                  /* segment events that came in another order */
    uint32_t ooms_n, ooms_wrong_n;         /* requests that failed; wrong: found memory */
    uint32_t pending_n, pending_wrong_n;   /* frees that completed later; wrong: at another time */
    uint32_t blocks_n, blocks_wrong_n;     /* of the end, in the snapshot's segment list */
    uint32_t start_blocks_n, unplaced_n;   /* of the start; lying in no segment */
    uint32_t ambiguous_n;                  /* of the start: the size is not certain */
    int64_t reserved_start_bytes, reserved_peak_bytes;
    int64_t allocated_start_bytes, allocated_peak_bytes;
    uint32_t peak_event; /* of `events`: the first with the most allocated; SNAP_NONE: the start */
    /* Of the last failed request: what the device had free, and what was reserved. */
    uint32_t oom_event; /* SNAP_NONE: there was none */
    int64_t oom_free_bytes, oom_reserved_bytes;
    char first_wrong[256]; /* the first difference, in words; empty: none */
};
/* ST_INVALID: no such device. A device without events gives the comparison of blocks alone. */
enum status replay_exact(
    const struct snapshot *s, int device, const struct mem_pool_conf *conf,
    struct replay_exact *out, struct err *e) NODISCARD;
static inline bool replay_is_exact(const struct replay_exact *x)
{
    return x->allocs_wrong_n + x->segments_wrong_n + x->ooms_wrong_n + x->pending_wrong_n +
               x->blocks_wrong_n ==
           0;
}

struct replay_setting {
    const struct mem_pool_conf *conf;
    int64_t capacity_bytes; /* the most that may be reserved; 0: no limit */
    enum mem_virtual_order order;
    uint64_t seed;
    uint32_t stop_event; /* index of `events` to stop before; SNAP_NONE: the end */
};
struct replay_run {
    bool oom;           /* a request found no memory, and the run ends there */
    uint32_t oom_event; /* SNAP_NONE: among those that come first */
    int64_t oom_bytes;  /* asked for */
    int64_t reserved_peak_bytes, allocated_peak_bytes, requested_peak_bytes;
    uint32_t peak_event;             /* the first with the most reserved; SNAP_NONE: before all */
    int64_t allocated_at_peak_bytes; /* when the most was reserved */
    int64_t segments_taken_n, segments_given_n, maps_n, unmaps_n, retries_n;
    /* When the run ends: */
    int64_t reserved_bytes, allocated_bytes, largest_free_bytes;
};
/* One run from a clean start. `largest_free_bytes` walks all blocks, -1 unless `look`. */
enum status replay_run(
    const struct snapshot *s, int device, const struct replay_setting *o, bool look,
    struct replay_run *out, struct err *e) NODISCARD;

/* What one configuration gives, over several orders of addresses. */
struct replay_outcome {
    struct replay_run run; /* ascending addresses, within the capacity */
    int64_t reserved_peak_bytes_min, reserved_peak_bytes_max; /* over orders, without capacity */
    int64_t largest_free_at_peak_bytes;
    int64_t
        capacity_needed_bytes; /* the smallest that passes, to within tolerance; -1: not asked */
    int64_t capacity_tolerance_bytes;
};
struct replay_question {
    int64_t capacity_bytes; /* 0: none */
    int orders_n;           /* 1: ascending alone; more: descending, then random ones */
    bool bisect;
    int bisect_steps_max;
};
enum status replay_ask(
    const struct snapshot *s, int device, const struct mem_pool_conf *conf,
    const struct replay_question *q, struct replay_outcome *out, struct err *e) NODISCARD;

/* What the allocator could reserve when a request failed: free plus reserved. 0: none failed. */
int64_t replay_oom_capacity(const struct replay_exact *x);

/* ---- Several settings beside each other ---- */

struct replay_row {
    char text[512];    /* as given; "" is PyTorch's defaults */
    const char *about; /* of replay_settings.def, or NULL */
    bool recorded;     /* the settings of the recording */
    struct mem_pool_conf conf;
    struct replay_outcome outcome;
};
/* The settings of replay_settings.def, without those that equal `recorded`. Returns how many. */
enum { REPLAY_SETTINGS_MAX = 16 };
int replay_settings(const struct mem_pool_conf *recorded, struct replay_row *out);
/* How much work for each setting: fewer orders and steps where the trace is long. */
struct replay_question
replay_question_for(const struct snapshot *s, int device, int64_t capacity_bytes);

/* A setting is better if it passes where the first row runs out of memory, or if its smallest
 * capacity is lower by REPLAY_MARGIN_PERCENT of the first row's, and by REPLAY_MARGIN_BYTES. Among
 * several: the first that passes where the recorded one does not; else a later one only if it is
 * better than an earlier one in the same way. -1: none is. All rows were asked to bisect. */
enum { REPLAY_MARGIN_PERCENT = 2, REPLAY_MARGIN_BYTES = 64 << 20 };
int replay_recommend(const struct replay_row *rows, int n);

#endif
