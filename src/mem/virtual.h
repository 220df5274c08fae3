/* virtual.h - a device that is only numbers: addresses without memory, for tests and replays.
 *
 * Segments are never touched, so a card of 80 GB costs nothing. Addresses are multiples of 2 MiB,
 * in the order that is asked for; none is handed out twice.
 */
#ifndef MEM_VIRTUAL_H
#define MEM_VIRTUAL_H

#include "mem/source.h"

enum mem_virtual_order {
    MEM_VIRTUAL_ASCENDING, /* each segment above all earlier ones; the default */
    MEM_VIRTUAL_DESCENDING,
    MEM_VIRTUAL_RANDOM, /* by seed: neighbours neither in order nor adjacent */
    MEM_VIRTUAL_GIVEN   /* `next` answers */
};

struct mem_virtual_options {
    enum mem_virtual_order order;
    uint64_t seed;
    /* Capacity of the device; 0 is none: nothing is refused, and total_bytes reads 16 TiB. */
    int64_t capacity_bytes;
    /* MEM_VIRTUAL_GIVEN: the address of the next segment (or, with `reservation`, of the next
     * address range), for an exact replay. 0 refuses. */
    uint64_t (*next)(void *ctx, int64_t size_bytes, bool reservation);
    void *ctx;
    bool no_expandable; /* a device without address ranges */
    /* Work on streams stays pending until mem_virtual_complete is called. Without it events are
     * done at once. */
    bool manual_events;
};

struct mem_virtual;
struct mem_virtual *mem_virtual_new(const struct mem_virtual_options *o); /* NULL: defaults */
void mem_virtual_free(struct mem_virtual *v);
/* The source of this device; owned by it. Change budget_bytes to shrink the capacity later. */
struct mem_source *mem_virtual_source(struct mem_virtual *v);

/* manual_events: everything recorded so far on `stream` is done. */
void mem_virtual_complete(struct mem_virtual *v, uint64_t stream);
void mem_virtual_complete_all(struct mem_virtual *v);

/* Refuses the n-th call from now on of take, reserve or map (1 is the next), once; 0: none. */
void mem_virtual_fail_nth(struct mem_virtual *v, int64_t n);

/* Calls so far, answered or refused. */
struct mem_virtual_calls {
    int64_t take_n, give_n, reserve_n, release_n, map_n, unmap_n, event_record_n, event_wait_n;
    int64_t ranges_n; /* address ranges reserved now */
};
struct mem_virtual_calls mem_virtual_calls(struct mem_virtual *v);

#endif
