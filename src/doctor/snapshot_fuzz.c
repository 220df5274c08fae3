/* snapshot_fuzz.c - any bytes as a snapshot; what is accepted must keep the promises of its header.
 */
#include "doctor/snapshot.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_stack(const struct snapshot *s, uint32_t stack)
{
    ASSERT(stack < s->stacks_n);
    const struct snap_stack *k = &s->stacks[stack];
    ASSERT(k->first + (uint64_t)k->n <= s->stack_frames_n);
    for (uint32_t i = 0; i < k->n; i++) {
        ASSERT(s->stack_frames[k->first + i] < s->frames_n);
        ASSERT(s->frames[s->stack_frames[k->first + i]].file < s->texts_n);
    }
}

static void check_device(const struct snapshot *s, const struct snap_device *d)
{
    ASSERT(d->events_first + (uint64_t)d->events_n <= s->events_n);
    ASSERT(d->segments_first + (uint64_t)d->segments_n <= s->segments_n);
    ASSERT(d->lives_first + (uint64_t)d->lives_n <= s->lives_n);
    ASSERT(d->active_bytes >= d->allocated_bytes && d->free_block_bytes_max <= d->free_bytes);
    for (uint32_t i = d->events_first; i < d->events_first + d->events_n; i++) {
        const struct snap_event *v = &s->events[i];
        check_stack(s, v->stack);
        ASSERT(v->action < SNAP_ACTION_COUNT && v->size >= 0 && v->origin < s->origins_n);
        ASSERT(v->stream < s->streams_n && v->metadata < s->texts_n && v->context < s->texts_n);
        ASSERT(v->pool == SNAP_POOL_UNKNOWN || v->pool < s->pools_n);
        ASSERT(s->event_life[i] == SNAP_NONE || s->event_life[i] < s->lives_n);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    struct snapshot *s = NULL;
    struct snapshot_options options = {.memory_bytes = 256 << 20};
    (void)snapshot_looks_like(data, size);
    if (snapshot_read_bytes(data, size, "fuzz", &options, &s, &e) != ST_OK)
        return 0;
    for (int d = 0; d < s->devices_n; d++)
        check_device(s, &s->devices[d]);
    for (uint32_t i = 0; i < s->blocks_n; i++) {
        check_stack(s, s->blocks[i].stack);
        ASSERT(s->blocks[i].segment < s->segments_n && s->blocks[i].state < SNAP_STATE_COUNT);
    }
    snapshot_free(s);
    return 0;
}
