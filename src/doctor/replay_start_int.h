/* replay_start_int.h - how the start of a trace is worked out; private to replay_start.c and
 * replay_ranges.c. */
#ifndef DOCTOR_REPLAY_START_INT_H
#define DOCTOR_REPLAY_START_INT_H

#include "doctor/replay_int.h"

enum { PAGE_SHIFT = 21, SMALL_SEGMENT_BYTES = 2 << 20 };
#define PAGE_BYTES ((int64_t)1 << PAGE_SHIFT)

/* A segment, or a page of an expandable one, by address. */
struct place {
    uint64_t addr;
    int64_t size;
    uint32_t group; /* of pages whose size class is not known: those of one unmap; 0: none */
    uint32_t range; /* the reservation of a page */
    uint16_t stream, pool;
    bool used, there; /* of the slot; at the moment that has been reached */
    bool large, expandable;
};
struct places {
    struct place *slots;
    size_t cap, n; /* cap is a power of two */
};
/* The place of an address; a new one is not there. */
struct place *replay_place_at(struct places *p, uint64_t addr);

/* A life without an alloc event. */
struct early {
    uint64_t addr;
    int64_t size; /* of its block */
    uint32_t life;
};

struct work {
    const struct snapshot *s;
    const struct snap_device *d;
    int device;
    const struct mem_pool_conf *conf;
    struct replay_start *out;
    struct places places;
    struct place *segments; /* by address */
    size_t segments_n;
    struct early *early; /* by address */
    size_t early_n;
    uint32_t groups_n;
    uint8_t *groups_large; /* groups_n + 1: 0 not known, 1 small, 2 large */
};

/* The pool of a segment event: what it says, else that of the segment of the end around it. */
uint16_t replay_event_pool(const struct work *w, const struct snap_event *v);
/* Pages of the start that are gone at the end: small or large, by what was allocated in them. */
void replay_tell_sizes(struct work *w);
/* Which ranges of the layout share a reservation, and how far it reaches: plays the maps forward
 * from the start. A map begins behind a mapped page, or at the beginning of a reservation; whether
 * that is a new one, or one whose first pages were given back, is the question `heads_are_new`
 * answers. */
void replay_set_ranges(struct work *w, const struct replay_guess *guess);

#endif
