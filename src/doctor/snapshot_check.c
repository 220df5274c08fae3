/* snapshot_check.c - what a snapshot's parts say about each other: sums, and warnings where they do
 * not add up. A file with warnings is still read; what was recorded may be all there is. */
#include "doctor/snapshot_int.h"

#include <stdarg.h>
#include <string.h>

void snap_warn(struct snapshot *s, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    if (s->warnings_n++ >= SNAP_WARNINGS_MAX)
        return;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!s->warnings)
        s->warnings = mem_alloc(SNAP_WARNINGS_MAX * sizeof *s->warnings);
    s->warnings[s->warnings_n - 1] = arena_strdup(&s->arena, text);
}

static void check_segment(struct snapshot *s, const struct snap_segment *g, struct snap_device *d)
{
    int64_t total = 0, active = 0, allocated = 0;
    uint64_t at = g->addr;
    bool gap = false;
    for (uint32_t i = g->first_block; i < g->first_block + g->blocks_n; i++) {
        const struct snap_block *k = &s->blocks[i];
        gap = gap || k->addr != at;
        at = k->addr + (uint64_t)k->size;
        total += k->size;
        active += k->state == SNAP_INACTIVE ? 0 : k->size;
        allocated += k->state == SNAP_ACTIVE ? k->size : 0;
        if (k->state == SNAP_INACTIVE) {
            d->free_bytes += k->size;
            if (k->size > d->free_block_bytes_max)
                d->free_block_bytes_max = k->size;
        } else {
            d->requested_bytes = k->requested_size < 0 || d->requested_bytes < 0
                                     ? -1
                                     : d->requested_bytes + k->requested_size;
        }
    }
    d->reserved_bytes += g->total_size;
    d->active_bytes += active;
    d->allocated_bytes += allocated;
    unsigned long long where = g->addr;
    if (total != g->total_size)
        snap_warn(
            s, "the blocks of segment 0x%llx add up to %lld bytes, its total_size is %lld", where,
            (long long)total, (long long)g->total_size);
    else if (gap)
        snap_warn(s, "the blocks of segment 0x%llx do not follow one another", where);
    if (g->active_size >= 0 && g->active_size != active)
        snap_warn(
            s, "the active blocks of segment 0x%llx add up to %lld bytes, its active_size is %lld",
            where, (long long)active, (long long)g->active_size);
}

static void check_overlaps(struct snapshot *s, const struct snap_device *d)
{
    for (uint32_t i = 1; i < d->segments_n; i++) {
        const struct snap_segment *g = &s->segments[d->segments_first + i];
        if (g[-1].addr + (uint64_t)g[-1].total_size > g->addr)
            snap_warn(
                s, "segments 0x%llx and 0x%llx overlap", (unsigned long long)g[-1].addr,
                (unsigned long long)g->addr);
    }
}

static void check_trace(struct snapshot *s, int device)
{
    const struct snap_device *d = &s->devices[device];
    if (d->unmatched_n > 0)
        snap_warn(
            s,
            "device %d: %u events contradict others (allocated twice without a free, or freed "
            "twice): some kinds of events were not recorded",
            device, d->unmatched_n);
    if (d->actions_n[SNAP_OTHER] > 0)
        snap_warn(
            s, "device %d: %u events are of kinds that this version does not know", device,
            d->actions_n[SNAP_OTHER]);
}

void snap_check(struct snapshot *s)
{
    for (int i = 0; i < s->devices_n; i++) {
        struct snap_device *d = &s->devices[i];
        for (uint32_t k = 0; k < d->segments_n; k++)
            check_segment(s, &s->segments[d->segments_first + k], d);
        check_overlaps(s, d);
        check_trace(s, i);
    }
    if (s->settings.trace_overflowed == 1)
        snap_warn(s, "the ring of events overflowed: the oldest events are missing");
}
