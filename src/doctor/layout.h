/* layout.h - the segments of a device at a moment of its trace, and the free blocks between what is
 * live in them.
 *
 * Segments are those of the end with the segment events after the moment undone: what an event
 * first does to an address tells whether it was there before. Within them lie the lives of that
 * moment; what is left is free. A free block lies between two live ones, or a live one and an end.
 */
#ifndef DOCTOR_LAYOUT_H
#define DOCTOR_LAYOUT_H

#include "doctor/walk.h"

struct layout_block {
    uint64_t addr;
    int64_t bytes;
    uint32_t life; /* of the device's lives */
};
struct layout_segment {
    uint64_t addr;
    int64_t bytes, live_bytes, largest_free_bytes;
    uint32_t first_block, blocks_n; /* of `blocks`, in order of address */
    uint16_t stream, pool;
    bool expandable;
};
struct snap_layout {
    struct layout_segment *segments; /* in order of address */
    struct layout_block *blocks;
    uint32_t segments_n, blocks_n;
    int64_t reserved_bytes, live_bytes, free_bytes;
    int64_t largest_free_bytes; /* in pools and streams of any kind */
    int64_t split_bytes; /* free, in segments that something lives in: cannot be given back */
    int64_t whole_bytes; /* of segments without anything live */
    int64_t private_bytes, private_live_bytes; /* in private pools */
    int64_t expandable_bytes;
    uint32_t free_n, unplaced_n; /* free blocks; lives that lie in no segment */
};
void layout_at(const struct walk *w, uint32_t moment, struct snap_layout *out);
void layout_release(struct snap_layout *x);

/* The `most` segments that waste most: something lives in them, and more than half is free. Returns
 * how many, as indices of `segments`, the most free bytes first. */
int layout_half_empty(const struct snap_layout *x, int most, uint32_t *out);

#endif
