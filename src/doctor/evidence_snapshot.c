/* evidence_snapshot.c - the state at an out-of-memory, from the end backwards. */
#include "doctor/evidence_snapshot.h"

#include <stdio.h>
#include <string.h>

/* The device whose last event of kind OOM is the latest; else the fullest one. */
static int device_of(const struct snapshot *s, int64_t *event)
{
    int best = -1;
    *event = -1;
    for (int d = 0; d < s->devices_n; d++) {
        const struct snap_device *p = &s->devices[d];
        for (int64_t i = (int64_t)p->events_n - 1; i >= 0; i--)
            if (s->events[p->events_first + i].action == SNAP_OOM) {
                if (*event < 0 ||
                    s->events[p->events_first + i].time_us > s->events[*event].time_us) {
                    *event = (int64_t)p->events_first + i;
                    best = d;
                }
                break;
            }
    }
    for (int d = 0; d < s->devices_n && *event < 0; d++)
        if (best < 0 || s->devices[d].reserved_bytes > s->devices[best].reserved_bytes)
            best = d;
    return best;
}

/* What was live and reserved at `event`. */
static void state_at(
    const struct snapshot *s, const struct snap_device *d, int64_t event, int64_t *live,
    int64_t *reserved)
{
    *live = d->active_bytes;
    *reserved = d->reserved_bytes;
    for (int64_t i = (int64_t)d->events_first + d->events_n - 1; i > event; i--) {
        const struct snap_event *e = &s->events[i];
        if (e->action == SNAP_ALLOC)
            *live -= e->size;
        else if (e->action == SNAP_FREE_COMPLETED)
            *live += e->size;
        else if (e->action == SNAP_SEGMENT_ALLOC || e->action == SNAP_SEGMENT_MAP)
            *reserved -= e->size;
        else if (e->action == SNAP_SEGMENT_FREE || e->action == SNAP_SEGMENT_UNMAP)
            *reserved += e->size;
    }
}

static void settings(const struct snapshot *s, struct evidence *v)
{
    v->expandable = s->settings.expandable_segments;
    v->max_split = s->settings.max_split_size >= 0 && s->settings.present;
    (void)snprintf(v->conf, sizeof v->conf, "%s", snap_text(s, s->settings.conf));
}

void evidence_from_snapshot(const struct snapshot *s, struct evidence *v)
{
    int64_t event, live, reserved;
    evidence_init(v);
    v->has_snapshot = true;
    int at = device_of(s, &event);
    settings(s, v);
    if (at < 0)
        return;
    const struct snap_device *d = &s->devices[at];
    v->device = at;
    state_at(s, d, event < 0 ? (int64_t)UINT32_MAX : event, &live, &reserved);
    v->allocated = amount_exact(live < 0 ? 0 : live);
    v->reserved = amount_exact(reserved < live ? live : reserved);
    v->free_sum = amount_exact(d->free_bytes);
    v->largest_free = amount_exact(d->free_block_bytes_max);
    if (s->snug.capacity_bytes > 0)
        v->total = amount_exact(s->snug.capacity_bytes);
    if (s->snug.limit_bytes > 0)
        v->allowed = amount_exact(s->snug.limit_bytes);
    if (event >= 0) {
        v->has_message = true;
        v->id = MESSAGE_TORCH;
        v->where = WHERE_CARD;
        v->era = ERA_NEW;
        v->strength = 3;
        v->messages = d->actions_n[SNAP_OOM];
        v->ooms = d->actions_n[SNAP_OOM];
        v->request = amount_exact(s->events[event].size);
        v->free = amount_exact((int64_t)(s->events[event].addr & INT64_MAX));
    }
    evidence_derive(v);
    if (s->snug.others_bytes > 0)
        v->other = amount_exact(s->snug.others_bytes);
}
