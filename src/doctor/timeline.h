/* timeline.h - a device's curves over its events, decimated exactly: for every bucket of events the
 * least and the most, live and reserved, and what the most was made of.
 *
 * Buckets are equal runs of events; no event is left out: the largest of all `live_max` is the
 * peak. `bands` are shares of the live bytes at the bucket's highest event: one for each of the
 * largest holders (place and category), one for what was there before the recording, one for the
 * rest.
 */
#ifndef DOCTOR_TIMELINE_H
#define DOCTOR_TIMELINE_H

#include "doctor/walk.h"

enum { TIMELINE_BUCKETS = 1500, TIMELINE_HOLDERS = 11, TIMELINE_BANDS = TIMELINE_HOLDERS + 2 };

struct timeline_bucket {
    int64_t live_min, live_max, reserved_min, reserved_max;
    int64_t bands[TIMELINE_BANDS];
    uint8_t phase; /* enum moment: of most of its allocations */
    bool loss;
};
struct timeline {
    struct timeline_bucket *buckets;
    uint32_t buckets_n, events_n;
    struct holder bands[TIMELINE_HOLDERS]; /* the first bands_n bands; the last two follow */
    int bands_n;
    uint8_t *band_of; /* of group * categories_n + category */
};
/* The bands are the first rows of `h`, and some of `end`, who holds what when the recording ends.
 */
void timeline_init(
    struct timeline *t, const struct walk *w, const struct holders *h, const struct holders *end);
void timeline_release(struct timeline *t);
/* The band of a life: an index of bands, TIMELINE_HOLDERS (earlier) or TIMELINE_HOLDERS + 1. */
int timeline_band(const struct timeline *t, const struct walk *w, uint32_t life);

#endif
