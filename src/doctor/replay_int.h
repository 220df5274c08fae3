/* replay_int.h - shared by replay_*.c; private to them and their tests. */
#ifndef DOCTOR_REPLAY_INT_H
#define DOCTOR_REPLAY_INT_H

#include "doctor/replay.h"
#include "mem/pool/pool.h"

/* What is not in the file and may matter. */
struct replay_slack {
    uint32_t life; /* its block is so much larger than what was asked for */
    int64_t bytes;
};
struct replay_guess {
    /* Where reservations of expandable segments come to their end: */
    bool heads_are_new;  /* replay_set_ranges */
    int64_t total_bytes; /* of the card; 0: full reservations end where their last page does */
    /* Large blocks of the start that no event settles. */
    VEC(struct replay_slack) slacks;
};

/* A reservation that is made in the trace: where it begins, and the event that first maps in it. It
 * may be made earlier, by a request that then found no memory to map. */
struct replay_base {
    uint64_t addr;
    uint32_t event;
    uint16_t stream, pool;
    bool large, used;
};

/* The state before the first event of a device, fit for mem_pool_load. */
struct replay_start {
    struct mem_pool_snapshot layout;
    uint32_t *life_of_block; /* layout.blocks_n: the life, or SNAP_NONE for free ones */
    uint32_t unplaced_n, ambiguous_n, lives_n;
    uint32_t heads_n; /* maps that may begin a reservation, or the head of one (replay_ranges.c) */
    int64_t span_bytes; /* the widest reach of a reservation */
    int64_t full_bytes; /* the same of those that were full; 0: none was */
    VEC(struct replay_base) bases;
};
enum status replay_start_make(
    const struct snapshot *s, int device, const struct mem_pool_conf *conf,
    const struct replay_guess *guess, struct replay_start *out, struct err *e) NODISCARD;
void replay_start_release(struct replay_start *x);

/* The segment of the end that an address lies in, or NULL. */
const struct snap_segment *replay_segment_at(const struct snapshot *s, int device, uint64_t addr);
/* The pool of each of the device's lives, as an index of `pools`: what its events say, else that of
 * the segment of the end that it lies in, if that was there already. NULL: all are of the default
 * pool. The caller frees it with mem_free. */
uint16_t *replay_pools(const struct snapshot *s, int device);

/* Streams that stand for "used by work elsewhere": one for each life, so that each completes alone.
 */
static inline uint64_t replay_elsewhere(uint32_t life)
{
    return (uint64_t)1 << 63 | life;
}
/* Whether a life that is dropped stays pending for a while: its end is recorded, and is not the
 * next event; or ends are recorded, and its is not there. */
static inline bool replay_is_pending(const struct snap_device *d, const struct snap_life *life)
{
    return d->actions_n[SNAP_FREE_COMPLETED] > 0 && life->free_requested != SNAP_NONE &&
           life->free_completed != life->free_requested + 1;
}
/* Whether a life was dropped before the first event and stayed pending: only its end is recorded
 * (but not as the first event: then the ring ends between the two), or it is pending in the
 * segments of the end and nothing of it is recorded. */
static inline bool replay_was_dropped(
    const struct snapshot *s, const struct snap_device *d, const struct snap_life *life)
{
    bool ends = life->free_completed != SNAP_NONE && life->free_completed > d->events_first &&
                d->actions_n[SNAP_FREE_REQUESTED] > 0;
    bool stays = life->block != SNAP_NONE && s->blocks[life->block].state == SNAP_PENDING;
    return life->alloc == SNAP_NONE && life->free_requested == SNAP_NONE && (ends || stays);
}
/* Whether the recorded end of a life comes after it was pending. */
static inline bool replay_was_pending(
    const struct snapshot *s, const struct snap_device *d, const struct snap_life *life)
{
    return replay_is_pending(d, life) || replay_was_dropped(s, d, life);
}

#endif
