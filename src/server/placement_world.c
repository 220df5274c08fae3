/* placement_world.c - the copy of the world that a pass works on: workers in the order of `any`,
 * physical cards by UUID, what is on them. */
#include "server/placement_int.h"

#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

int64_t bytes_add(int64_t a, int64_t b)
{
    int64_t r;
    return __builtin_add_overflow(a, b, &r) ? INT64_MAX : r;
}

static int64_t not_negative(int64_t n)
{
    return n < 0 ? 0 : n;
}

void name_set(struct run_name *n, int64_t run, const char *run_id)
{
    n->run = run;
    size_t k = run_id ? strnlen(run_id, SHORT_ID) : 0;
    memcpy(n->id, run_id ? run_id : "", k);
    n->id[k] = 0;
}

/* ---- workers ---- */

static int by_name_server_last(const void *a, const void *b)
{
    const struct worker *x = a, *y = b;
    if (x->server != y->server)
        return x->server ? 1 : -1;
    return strcmp(x->name, y->name);
}

struct worker *world_worker(const struct place *p, const char *name)
{
    size_t low = 0, high = p->n_workers;
    if (high > 0 && p->workers[high - 1].server) {
        if (str_eq(p->workers[high - 1].name, name))
            return &p->workers[high - 1];
        high--;
    }
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int order = strcmp(p->workers[mid].name, name);
        if (order == 0)
            return &p->workers[mid];
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

struct device *worker_device(const struct worker *w, const char *name)
{
    for (size_t i = 0; i < w->n_devices; i++)
        if (str_eq(w->devices[i].name, name))
            return &w->devices[i];
    return NULL;
}

static void worker_copy(struct place *p, const struct place_worker *from, size_t index)
{
    struct arena *a = &p->arena;
    p->workers[index] = (struct worker){
        .name = arena_strdup(a, from->name),
        .pool = arena_strdup(a, from->pool ? from->pool : ""),
        .devices = ARENA_ARRAY(a, struct device, from->n_devices),
        .n_devices = from->n_devices,
        .index = index,
        .server = from->server,
        .same_host = from->same_host || from->server,
        .connected = from->connected,
        .seen = from->seen || from->connected || from->server,
        .draining = from->draining,
        .disabled = from->disabled,
        .adopting = from->adopting,
        .one_shot = from->one_shot,
        .spent = from->one_shot && from->spent,
        .can_cap = from->can_cap};
    for (size_t i = 0; i < from->n_devices; i++) {
        const struct place_device *d = &from->devices[i];
        p->workers[index].devices[i] = (struct device){
            .name = arena_strdup(a, d->name),
            .kind = arena_strdup(a, d->kind),
            .total_bytes = not_negative(d->total_bytes),
            .free_bytes = not_negative(d->free_bytes),
            .reported_ns = d->reported_ns,
            .shared = d->shared && (str_eq(d->kind, "cuda") || str_eq(d->kind, "mps"))};
    }
}

/* ---- cards ---- */

static uint64_t hash_pair(const char *a, const char *b)
{
    return hash_name(a) * 31 + hash_name(b);
}

/* The card of that UUID, else of that worker's device; made when it is met first. */
static struct card *
card_find(struct place *p, const char *uuid, const char *worker, const char *device)
{
    bool has_uuid = uuid && *uuid;
    uint64_t hash = has_uuid ? hash_name(uuid) : hash_pair(worker, device);
    struct card **at = &p->cards[hash & (p->cap_cards - 1)];
    for (struct card *c = *at; c; c = c->chain) {
        if (c->hash != hash || (c->uuid != NULL) != has_uuid)
            continue;
        if (has_uuid ? str_eq(c->uuid, uuid)
                     : str_eq(c->worker, worker) && str_eq(c->named, device))
            return c;
    }
    struct card *c = ARENA_NEW(&p->arena, struct card);
    c->hash = hash;
    c->chain = *at;
    c->holders_end = &c->holders;
    if (has_uuid) {
        c->uuid = arena_strdup(&p->arena, uuid);
    } else {
        c->worker = arena_strdup(&p->arena, worker);
        c->named = arena_strdup(&p->arena, device);
    }
    *at = c;
    return c;
}

static void devices_join(struct place *p, const struct place_world *w)
{
    for (size_t i = 0; i < p->n_workers; i++) {
        struct worker *x = &p->workers[i];
        for (size_t j = 0; j < x->n_devices; j++) {
            struct device *d = &x->devices[j];
            d->worker = x;
            d->card = card_find(p, w->workers[x->index].devices[j].uuid, x->name, d->name);
            d->card->cuda = d->card->cuda || str_eq(d->kind, "cuda");
            struct device **end = &d->card->offers;
            while (*end)
                end = &(*end)->next_offer;
            *end = d;
        }
    }
}

/* This server's device that is the same card, or NULL. */
static const struct device *server_device(const struct card *c)
{
    for (const struct device *d = c->offers; d; d = d->next_offer)
        if (d->worker->server)
            return d;
    return NULL;
}

/* R8, and R9's rule that a worker of this host without an entry of its own takes the server's. */
static void device_limit(struct device *d, const struct place_limits *l)
{
    const char *worker = d->worker->server ? "local" : d->worker->name;
    if (limits_find(l, worker, d->name, &d->own_limit)) {
        d->own_explicit = true;
        return;
    }
    bool beside = d->worker->same_host && !d->worker->server;
    const struct device *s = beside ? server_device(d->card) : NULL;
    d->inherits = s && limits_find(l, "local", s->name, &d->own_limit);
    d->own_explicit = d->inherits;
    if (!d->inherits)
        d->own_limit = limits_default(l, d->kind);
}

/* Of the connected workers that offer the card; of all of them when none is connected. */
static void card_settle(struct card *c, const struct place_limits *l)
{
    bool online = false;
    for (struct device *d = c->offers; d; d = d->next_offer) {
        device_limit(d, l);
        online = online || d->worker->connected;
    }
    const struct device *latest = NULL, *lowest = NULL;
    c->shared = c->offers != NULL;
    for (const struct device *d = c->offers; d; d = d->next_offer)
        if (d->worker->connected == online)
            c->shared = c->shared && d->shared;
    for (const struct device *d = c->offers; d; d = d->next_offer) {
        if (d->worker->connected != online)
            continue;
        if (d->total_bytes > 0 && (!latest || d->reported_ns > latest->reported_ns))
            latest = d;
        if ((!c->shared || d->own_explicit) && (!lowest || d->own_limit < lowest->own_limit))
            lowest = d;
    }
    c->total_bytes = latest ? latest->total_bytes : 0;
    c->free_bytes = latest ? latest->free_bytes : 0;
    c->limit = lowest ? lowest->own_limit : 0;
    c->limit_by = lowest ? lowest->worker : NULL;
    if (lowest && lowest->inherits && server_device(c))
        c->limit_by = server_device(c)->worker;
}

/* ---- what is on them ---- */

void card_hold(struct place *p, struct card *c, int64_t budget_bytes, bool started)
{
    int64_t cost = card_cost(p, c, budget_bytes);
    if (started)
        c->running_bytes = bytes_add(c->running_bytes, cost);
    else
        c->reserved_bytes = bytes_add(c->reserved_bytes, cost);
}

void card_holder(struct place *p, struct card *c, int64_t run, const char *run_id, bool queued)
{
    struct holder *h = ARENA_NEW(&p->arena, struct holder);
    name_set(&h->who, run, run_id);
    h->queued = queued;
    *c->holders_end = h;
    c->holders_end = &h->next;
}

void card_evict(struct place *p, struct card *c)
{
    if (c->evicted)
        return;
    c->evicted = true;
    for (const struct warm_child *w = c->warm; w; w = w->next)
        vec_push(&p->evictions, w->live);
}

static void live_put(struct place *p, const struct place_live *live, size_t index)
{
    for (size_t i = 0; i < live->n_devices && i < PLACE_SET_MAX; i++) {
        struct card *c = card_find(p, live->uuids[i], live->worker, live->devices[i]);
        if (!c->offers) /* its worker is unknown or offers it no more */
            c->cuda = c->cuda || str_starts(live->devices[i], "cuda");
        int64_t budget = not_negative(live->budget_bytes);
        if (live->lane == PLACE_WARM) {
            struct warm_child *w = ARENA_NEW(&p->arena, struct warm_child);
            *w = (struct warm_child){c->warm, index, card_cost(p, c, budget)};
            c->warm = w;
            c->warm_bytes = bytes_add(c->warm_bytes, w->cost_bytes);
            card_hold(p, c, budget, true);
        } else {
            c->used += live->lane == PLACE_QUEUED;
            if (budget > 0)
                card_hold(p, c, budget, live->started);
            else if (!c->alone.run)
                name_set(&c->alone, live->run, live->run_id);
        }
        card_holder(p, c, live->run, live->run_id, live->lane == PLACE_QUEUED);
    }
    struct worker *w = world_worker(p, live->worker);
    if (w && w->one_shot && live->lane == PLACE_QUEUED)
        w->spent = true;
}

void world_copy(struct place *p, const struct place_world *w)
{
    arena_release(&p->arena);
    arena_init(&p->arena);
    p->context_bytes = not_negative(w->context_bytes);
    p->reserve_ns = not_negative(w->reserve_ns);
    p->now_ns = w->now_ns;
    p->wake_ns = INT64_MAX;
    p->evictions.n = 0;
    p->n_workers = w->n_workers;
    p->workers = ARENA_ARRAY(&p->arena, struct worker, w->n_workers);
    size_t devices = 0;
    for (size_t i = 0; i < w->n_workers; i++) {
        worker_copy(p, &w->workers[i], i);
        devices += w->workers[i].n_devices;
    }
    if (w->n_workers > 1)
        qsort(p->workers, p->n_workers, sizeof *p->workers, by_name_server_last);
    for (size_t i = 0; i < w->n_live; i++)
        devices += w->live[i].n_devices;
    for (p->cap_cards = 64; p->cap_cards < 2 * devices;)
        p->cap_cards *= 2;
    p->cards = ARENA_ARRAY(&p->arena, struct card *, p->cap_cards);
    devices_join(p, w);
    for (size_t i = 0; i < p->cap_cards; i++)
        for (struct card *c = p->cards[i]; c; c = c->chain)
            card_settle(c, w->limits);
    for (size_t i = 0; i < w->n_live; i++)
        live_put(p, &w->live[i], i);
}
