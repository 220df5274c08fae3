/* replay_conf.c - the settings and the pools that a snapshot was recorded under. */
#include "doctor/replay_int.h"

#include <stdio.h>

static bool was_expandable(const struct snapshot *s)
{
    for (uint32_t i = 0; i < s->segments_n; i++)
        if (s->segments[i].expandable)
            return true;
    for (int d = 0; d < s->devices_n; d++)
        if (s->devices[d].actions_n[SNAP_SEGMENT_MAP] > 0)
            return true;
    return false;
}

void replay_recorded_conf(const struct snapshot *s, struct mem_pool_conf *out, struct str *warnings)
{
    const struct snap_settings *t = &s->settings;
    struct err e = {0};
    mem_pool_conf_init(out);
    /* What only the text says, as the large segment size; a text of another version may not parse.
     */
    if (mem_pool_conf_parse(out, snap_text(s, t->conf), NULL, &e) != ST_OK && warnings)
        str_printf(
            warnings, "the recorded settings \"%.100s\" are not understood (%.200s)\n",
            snap_text(s, t->conf), e.text);
    if (t->present) {
        out->max_split_size_bytes = t->max_split_size < 0 ? MEM_POOL_UNLIMITED : t->max_split_size;
        out->garbage_collection_threshold = t->garbage_collection_threshold;
        for (int i = 0; i < SNAP_ROUNDUP_N; i++)
            out->roundup_power2_divisions[i] = t->roundup_power2_divisions[i];
        out->expandable_segments = t->expandable_segments;
    } else {
        out->expandable_segments = was_expandable(s);
    }
    if (s->snug.large_segment_bytes > 0)
        out->large_segment_bytes = s->snug.large_segment_bytes;
    if (t->conf)
        (void)snprintf(out->text, sizeof out->text, "%.500s", snap_text(s, t->conf));
}

const struct snap_segment *replay_segment_at(const struct snapshot *s, int device, uint64_t addr)
{
    const struct snap_device *d = &s->devices[device];
    uint32_t low = d->segments_first, high = low + d->segments_n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct snap_segment *g = &s->segments[middle];
        if (addr < g->addr)
            high = middle;
        else if (addr - g->addr >= (uint64_t)g->total_size)
            low = middle + 1;
        else
            return g;
    }
    return NULL;
}

/* For each segment of the end the event that made it (of expandable ones the first that is known to
 * be after all others), or 0. */
static uint32_t *births(const struct snapshot *s, int device)
{
    const struct snap_device *d = &s->devices[device];
    uint32_t *born = mem_alloc(((size_t)d->segments_n + 1) * sizeof *born);
    for (uint32_t i = d->events_first; i < d->events_first + d->events_n; i++) {
        const struct snap_event *v = &s->events[i];
        const struct snap_segment *g =
            v->action == SNAP_SEGMENT_ALLOC ? replay_segment_at(s, device, v->addr) : NULL;
        if (g && g->addr == v->addr)
            born[g - s->segments - d->segments_first] = i;
    }
    return born;
}

static uint16_t
pool_of(const struct snapshot *s, int device, const struct snap_life *life, const uint32_t *born)
{
    uint32_t first = s->devices[device].segments_first;
    uint32_t event = life->alloc != SNAP_NONE            ? life->alloc
                     : life->free_requested != SNAP_NONE ? life->free_requested
                                                         : life->free_completed;
    if (event != SNAP_NONE && s->events[event].pool != SNAP_POOL_UNKNOWN)
        return s->events[event].pool;
    const struct snap_segment *g = replay_segment_at(s, device, life->addr);
    if (!g || (event != SNAP_NONE && event < born[g - s->segments - first]))
        return 0;
    return g->pool;
}

uint16_t *replay_pools(const struct snapshot *s, int device)
{
    const struct snap_device *d = &s->devices[device];
    if (s->pools_n < 2)
        return NULL;
    uint32_t *born = births(s, device);
    uint16_t *pools = mem_alloc(((size_t)d->lives_n + 1) * sizeof *pools);
    for (uint32_t i = 0; i < d->lives_n; i++)
        pools[i] = pool_of(s, device, &s->lives[d->lives_first + i], born);
    mem_free(born);
    return pools;
}
