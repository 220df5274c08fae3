/* oom.c - a run that does not fit: refused before it starts, or out of memory while it runs. What
 * was needed and what there was, as numbers; plan/oom.h makes the message of them. */
#include "runner/run_int.h"

#include "base/env.h"
#include "base/str.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

bool run_out_of_memory(const struct run *r, struct run_oom *out)
{
    if (!r->oom_set)
        return false;
    *out = r->oom;
    return true;
}

int64_t run_peak_at(const struct run *r, int place)
{
    return r->bill.peak_by_device[place];
}

/* Whether what a run takes there lies in the host's memory. */
static bool on_host(const struct run_place *p)
{
    return p->device->kind == DEVICE_CPU || p->device->simulated;
}

/* The device with the largest peak, of all or of those in the host's memory. */
static struct run_place *place_with_peak(const struct run *r, bool host)
{
    int best = 0;
    for (int i = 0; i < r->devices->n; i++)
        if ((!host || on_host(&r->places[i])) &&
            r->bill.peak_by_device[i] > r->bill.peak_by_device[best])
            best = i;
    return &r->places[best];
}

/* ---- what a plan's peak may be ---- */

/* By the card and the budget; INT64_MAX: neither limits it. What the run itself holds there counts
 * as free. */
static int64_t room_at(const struct run *r, const struct run_place *p)
{
    const struct device *d = p->device;
    struct device_memory m;
    struct err ignored;
    int64_t room = INT64_MAX;
    if (d->kind != DEVICE_CPU && d->capacity_bytes >= 0)
        room = d->capacity_bytes - d->context_bytes;
    if (d->kind != DEVICE_CPU && device_memory(p->device, &m, &ignored) == ST_OK &&
        m.free_bytes >= 0)
        room =
            m.free_bytes + atomic_load(&p->source.held_bytes) - (p->begun ? 0 : d->context_bytes);
    if (r->o.budget_bytes > 0 && r->o.budget_bytes < room)
        room = r->o.budget_bytes;
    return room;
}

/* Before anything is loaded: what the host has for one device beside the others and the data. */
static int64_t host_room_at(const struct run *r, int i)
{
    int64_t capacity = host_capacity_bytes();
    if (capacity <= 0 || !on_host(&r->places[i]))
        return INT64_MAX;
    return capacity - (run_host_need_bytes(r) - r->bill.peak_by_device[i]);
}

static void note_rooms(struct run *r, struct run_oom *o)
{
    for (int i = 0; i < r->devices->n; i++)
        o->room_by_device[i] = room_at(r, &r->places[i]);
    int64_t *room = &o->room_by_device[o->place], host = host_room_at(r, o->place);
    if (o->before_start && host < *room)
        *room = host;
    if (*room == INT64_MAX) /* it ran out all the same */
        *room = 0;
    o->room_bytes = *room;
}

bool run_fits_rooms(const struct run *r, const struct run_oom *o)
{
    int64_t capacity = host_capacity_bytes();
    for (int i = 0; i < r->devices->n; i++)
        if (r->bill.peak_by_device[i] > o->room_by_device[i])
            return false;
    return o->room_bytes > 0 && (capacity <= 0 || run_host_need_bytes(r) <= capacity);
}

/* What models of other nodes keep on the device, beside the executor that was refused. */
static int64_t live_elsewhere(const struct run *r, const struct run_place *p)
{
    int64_t sum = 0;
    for (size_t i = 0; i < r->models.n; i++) {
        const struct flow_model *m = r->models.data[i];
        struct exec_memory held;
        bool seen = !m->home || m->home_place != p || exec_was_refused(m->home);
        for (size_t k = 0; k < i && !seen; k++)
            seen = r->models.data[k]->home == m->home;
        if (seen)
            continue;
        exec_memory(m->home, &held);
        sum += held.live_bytes < held.reserved_bytes ? held.live_bytes : held.reserved_bytes;
    }
    return sum;
}

/* The figures of the moment, of all that the run holds on the device. What the allocator had when
 * it gave up is in the source. */
static void note(struct run *r, const struct run_place *p, const struct graph_node *n)
{
    struct run_oom *o = &r->oom;
    const struct mem_refusal *m = &p->source.refused;
    struct device_memory now;
    struct err ignored;
    o->node = n;
    o->device = p->device;
    o->place = (int)(p - r->places);
    o->dynamic = r->o.storage == EXEC_DYNAMIC;
    o->capacity_bytes = p->device->kind == DEVICE_CPU ? -1 : p->device->capacity_bytes;
    o->context_bytes = p->device->context_bytes;
    o->free_bytes = -1;
    if (p->device->kind != DEVICE_CPU && device_memory(p->device, &now, &ignored) == ST_OK)
        o->free_bytes = now.free_bytes;
    if (m->need_bytes && m->free_bytes >= 0 && o->free_bytes >= 0)
        o->free_bytes = m->free_bytes;
    o->reserved_bytes = m->need_bytes ? m->held_bytes : atomic_load(&p->source.held_bytes);
    o->peak_bytes = atomic_load(&p->source.held_bytes_peak);
    o->live_bytes = m->live_bytes + live_elsewhere(r, p);
    if (o->live_bytes > o->reserved_bytes)
        o->live_bytes = o->reserved_bytes;
    note_rooms(r, o);
    r->oom_set = true;
}

/* Before the start. */
static enum status refuse(
    struct run *r, const struct run_place *p, const char *text, const char *figures, struct err *e)
{
    int i = (int)(p - r->places);
    r->oom = (struct run_oom){.before_start = true, .need_bytes = r->bill.peak_by_device[i]};
    note(r, p, r->bill.peak_node_by_device[i]);
    (void)err_set(e, ST_OOM, "%s", text);
    err_detail(e, "%s", figures);
    if (r->oom.node)
        err_node(e, r->oom.node->id, r->oom.node->type);
    return ST_OOM;
}

enum status run_check_budget(struct run *r, int64_t budget_bytes, struct err *e)
{
    char need[32], has[32], text[400], figures[256];
    int64_t peak = r->bill.peak_bytes, limit = budget_bytes;
    if (budget_bytes == 0 || (budget_bytes > 0 && peak <= budget_bytes))
        return ST_OK;
    if (budget_bytes < 0) {
        limit = host_capacity_bytes();
        if (run_host_need_bytes(r) <= limit)
            return ST_OK;
    }
    (void)snprintf(
        figures, sizeof figures, "peak %lld bytes, limit %lld bytes, data and loaders %lld bytes",
        (long long)peak, (long long)limit, (long long)r->bill.host_bytes);
    (void)bytes_text(peak, need, sizeof need);
    (void)bytes_text(limit, has, sizeof has);
    if (budget_bytes > 0 && r->o.budget_about)
        (void)snprintf(
            text, sizeof text, "the plan needs %s, and the run's budget has %s", need, has);
    else if (budget_bytes > 0)
        (void)snprintf(
            text, sizeof text,
            "the plan needs %s, and the budget of --memory-gib has %s; a larger --memory-gib "
            "(target.memory_gib of a queued run) allows it",
            need, has);
    else
        (void)snprintf(text, sizeof text, "the plan needs %s, and this machine has %s", need, has);
    struct run_oom *o = &r->oom;
    enum status st = refuse(r, place_with_peak(r, budget_bytes < 0), text, figures, e);
    o->budget_bytes = budget_bytes > 0 ? budget_bytes : 0;
    return st;
}

static enum status refuse_card(struct run *r, int i, const struct run_fit *f, struct err *e)
{
    char need[32], context[32], all[32], left[32], text[400], figures[400];
    const struct device *d = f->device;
    (void)bytes_text(f->peak_bytes, need, sizeof need);
    (void)bytes_text(f->context_bytes, context, sizeof context);
    (void)bytes_text(f->capacity_bytes, all, sizeof all);
    (void)bytes_text(f->free_bytes, left, sizeof left);
    (void)snprintf(
        figures, sizeof figures,
        "peak %lld bytes, context %lld bytes, card %lld bytes, free now %lld bytes (%s)",
        (long long)f->peak_bytes, (long long)f->context_bytes, (long long)f->capacity_bytes,
        (long long)f->free_bytes, d->uuid);
    (void)snprintf(
        text, sizeof text, "the plan needs %s and %s for the context, and %s (%s) has %s%s%s%s",
        need, context, d->id, d->name, f->fits_at_all ? left : all,
        f->fits_at_all ? " free of its " : "", f->fits_at_all ? all : "",
        f->fits_at_all ? ": `snug devices --holders` shows who holds the rest" : "");
    return refuse(r, &r->places[i], text, figures, e);
}

enum status run_check_cards(struct run *r, struct err *e)
{
    struct run_fit f;
    for (int i = 0; i < r->devices->n; i++)
        if (run_fit_at(r, i, &f) && !f.fits_now)
            return refuse_card(r, i, &f, e);
    return ST_OK;
}

/* The place whose source refused last; NULL: none did. */
static struct run_place *place_refused(struct run *r)
{
    for (int i = 0; i < r->devices->n; i++)
        if (r->places[i].source.refused.need_bytes)
            return &r->places[i];
    return NULL;
}

void run_note_oom(struct run *r, const struct graph_node *n)
{
    struct run_place *p = place_refused(r);
    if (r->oom_set)
        return;
    r->oom = (struct run_oom){0};
    if (p) {
        r->oom.need_bytes = p->source.refused.need_bytes;
        r->oom.budget_bytes = r->o.budget_bytes;
    }
    note(r, p ? p : n ? run_place_of(r, n) : r->place, n);
}
