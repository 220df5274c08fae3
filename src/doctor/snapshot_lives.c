/* snapshot_lives.c - pairs allocations with what frees them, and with the blocks of the end. */
#include "doctor/snapshot_int.h"

#include <string.h>

/* Which life an address has now: open addressing; an address keeps its slot. */
struct holder {
    uint64_t addr;
    uint32_t life; /* SNAP_NONE: nobody's */
    bool used;
};
struct pairing {
    struct snap_build *b;
    struct snapshot *s;
    struct snap_device *device;
    struct holder *slots;
    size_t cap, n; /* cap is a power of two */
    size_t lives_cap;
    bool completes; /* the trace has free_completed; else free_requested ends a life */
};

static struct holder *slot_of(struct holder *slots, size_t cap, uint64_t addr)
{
    size_t at = (size_t)((addr >> 9 ^ addr << 20) * 0x9e3779b97f4a7c15u >> 20) & (cap - 1);
    while (slots[at].used && slots[at].addr != addr)
        at = (at + 1) & (cap - 1);
    return &slots[at];
}

static enum status grow(struct pairing *p)
{
    size_t cap = p->cap ? 2 * p->cap : 1024, held = 0;
    struct holder *slots = snap_grow(p->b, NULL, &held, cap, sizeof *slots);
    if (!slots)
        return ST_OOM;
    memset(slots, 0, cap * sizeof *slots);
    for (size_t i = 0; i < p->cap; i++)
        if (p->slots[i].used)
            *slot_of(slots, cap, p->slots[i].addr) = p->slots[i];
    p->b->held_bytes -= (int64_t)(p->cap * sizeof *slots);
    mem_free(p->slots);
    p->slots = slots;
    p->cap = cap;
    return ST_OK;
}

static enum status find(struct pairing *p, uint64_t addr, struct holder **out)
{
    if (2 * (p->n + 1) > p->cap)
        TRY(grow(p));
    *out = slot_of(p->slots, p->cap, addr);
    if (!(*out)->used) {
        **out = (struct holder){.addr = addr, .life = SNAP_NONE, .used = true};
        p->n++;
    }
    return ST_OK;
}

static enum status begin(struct pairing *p, struct holder *h, int64_t size)
{
    struct snapshot *s = p->s;
    if (s->lives_n == p->lives_cap) {
        void *grown = snap_grow(p->b, s->lives, &p->lives_cap, s->lives_n + 1, sizeof *s->lives);
        if (!grown)
            return ST_OOM;
        s->lives = grown;
    }
    h->life = s->lives_n;
    s->lives[s->lives_n++] =
        (struct snap_life){h->addr, size, SNAP_NONE, SNAP_NONE, SNAP_NONE, SNAP_NONE};
    return ST_OK;
}

static enum status begin_earlier(struct pairing *p, struct holder *h, int64_t size)
{
    p->device->earlier_n++;
    p->device->earlier_bytes += size;
    return begin(p, h, size);
}

static enum status on_alloc(struct pairing *p, uint32_t event, const struct snap_event *v)
{
    struct holder *h;
    TRY(find(p, v->addr, &h));
    if (h->life != SNAP_NONE)
        p->device->unmatched_n++; /* its end was not recorded */
    TRY(begin(p, h, v->size));
    p->s->lives[h->life].alloc = event;
    p->s->event_life[event] = h->life;
    return ST_OK;
}

static enum status on_free(struct pairing *p, uint32_t event, const struct snap_event *v)
{
    struct holder *h;
    TRY(find(p, v->addr, &h));
    bool completed = v->action == SNAP_FREE_COMPLETED;
    if (h->life != SNAP_NONE && !completed && p->s->lives[h->life].free_requested != SNAP_NONE) {
        p->device->unmatched_n++; /* dropped twice */
        h->life = SNAP_NONE;
    }
    if (h->life == SNAP_NONE)
        TRY(begin_earlier(p, h, v->size));
    struct snap_life *life = &p->s->lives[h->life];
    p->s->event_life[event] = h->life;
    if (completed)
        life->free_completed = event;
    else
        life->free_requested = event;
    if (completed || !p->completes)
        h->life = SNAP_NONE;
    return ST_OK;
}

/* A block that is in use at the end belongs to the life at its address. */
static enum status on_block(struct pairing *p, uint32_t block, const struct snap_block *k)
{
    struct holder *h;
    TRY(find(p, k->addr, &h));
    if (h->life == SNAP_NONE)
        TRY(begin_earlier(p, h, k->requested_size >= 0 ? k->requested_size : k->size));
    if (p->s->lives[h->life].block != SNAP_NONE) {
        p->device->unmatched_n++;
        return ST_OK;
    }
    p->s->lives[h->life].block = block;
    return ST_OK;
}

static enum status pair_device(struct pairing *p)
{
    struct snapshot *s = p->s;
    struct snap_device *d = p->device;
    d->lives_first = s->lives_n;
    for (uint32_t i = 0; i < d->events_n; i++)
        d->actions_n[s->events[d->events_first + i].action]++;
    p->completes = d->actions_n[SNAP_FREE_COMPLETED] > 0;
    for (uint32_t i = d->events_first; i < d->events_first + d->events_n; i++) {
        const struct snap_event *v = &s->events[i];
        s->event_life[i] = SNAP_NONE;
        if (v->action == SNAP_ALLOC)
            TRY(on_alloc(p, i, v));
        else if (v->action == SNAP_FREE_REQUESTED || v->action == SNAP_FREE_COMPLETED)
            TRY(on_free(p, i, v));
    }
    for (uint32_t i = 0; i < d->segments_n; i++) {
        const struct snap_segment *g = &s->segments[d->segments_first + i];
        for (uint32_t k = g->first_block; k < g->first_block + g->blocks_n; k++)
            if (s->blocks[k].state != SNAP_INACTIVE)
                TRY(on_block(p, k, &s->blocks[k]));
    }
    d->lives_n = s->lives_n - d->lives_first;
    return ST_OK;
}

enum status snap_lives(struct snap_build *b, struct snapshot *s)
{
    struct pairing p = {.b = b, .s = s};
    size_t cap = 0;
    enum status st = ST_OK;
    s->event_life = snap_grow(b, NULL, &cap, (size_t)s->events_n + 1, sizeof *s->event_life);
    if (!s->event_life)
        return ST_OOM;
    for (int d = 0; d < s->devices_n && st == ST_OK; d++) {
        p.device = &s->devices[d];
        st = pair_device(&p);
        b->held_bytes -= (int64_t)(p.cap * sizeof *p.slots);
        mem_free(p.slots);
        p.slots = NULL;
        p.cap = p.n = 0;
    }
    return st;
}
