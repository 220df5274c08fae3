/* placement.c - the pass: a fold over the waiting runs, and the classes and queues they share.
 *
 * WHY  A pass meets 100,000 waiting runs in a few milliseconds because within one pass room only
 * shrinks: what was refused once stays refused. So a class is judged once a pass; other budgets of
 * its queue are compared with the most that queue has room for; and no reason is written before
 * somebody asks.
 *
 * INVARIANTS
 *   1. Within a pass nothing gives room back: a run that waits would wait at every later point too.
 *   2. At most one run keeps the slots of a card, and at most one claims its memory.
 *   3. A run keeps or claims only what the pass, so far, says it is the first to want.
 */
#include "server/placement_int.h"

#include "base/rng.h"

#include <string.h>

struct place *place_new(void)
{
    struct place *p = mem_alloc(sizeof *p);
    arena_init(&p->arena);
    p->cap_classes = p->cap_queues = 64;
    p->classes = mem_alloc(p->cap_classes * sizeof(struct place_class *));
    p->queues = mem_alloc(p->cap_queues * sizeof(struct queue *));
    struct place_world nothing = {0};
    place_begin(p, &nothing);
    return p;
}

static void queue_free(struct queue *q)
{
    arena_release(&q->texts);
    mem_free(q);
}

void place_free(struct place *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->cap_classes; i++)
        for (struct place_class *c = p->classes[i], *next; c; c = next) {
            next = c->chain;
            mem_free(c);
        }
    for (size_t i = 0; i < p->cap_queues; i++)
        for (struct queue *q = p->queues[i], *next; q; q = next) {
            next = q->chain;
            queue_free(q);
        }
    mem_free(p->classes);
    mem_free(p->queues);
    vec_release(&p->evictions);
    arena_release(&p->arena);
    mem_free(p);
}

/* ---- queues ---- */

static void queue_key(const struct place_request *r, struct str *out)
{
    if (r->target == PLACE_ANY)
        str_add(out, "any/");
    else if (r->target == PLACE_POOL)
        str_printf(out, "pool:%s/", r->pool);
    else if (!str_eq(r->worker, "local"))
        str_printf(out, "%s/", r->worker);
    for (size_t i = 0; i < r->n_devices; i++)
        str_printf(out, "%s%s", i ? "+" : "", r->devices[i]);
}

static void queues_grow(struct place *p)
{
    size_t cap = 2 * p->cap_queues;
    struct queue **at = mem_alloc(cap * sizeof *at);
    for (size_t i = 0; i < p->cap_queues; i++)
        for (struct queue *q = p->queues[i], *next; q; q = next) {
            next = q->chain;
            q->chain = at[q->hash & (cap - 1)];
            at[q->hash & (cap - 1)] = q;
        }
    mem_free(p->queues);
    p->queues = at;
    p->cap_queues = cap;
}

static struct queue *queue_new(const struct place_request *r, const char *key, uint64_t hash)
{
    struct queue *q = mem_alloc(sizeof *q);
    struct arena *a = &q->texts;
    arena_init(a);
    q->key = arena_strdup(a, key);
    q->hash = hash;
    q->n = r->n_devices;
    q->shape.target = r->target;
    q->shape.worker = arena_strdup(a, r->worker ? r->worker : "");
    q->shape.pool = arena_strdup(a, r->pool ? r->pool : "");
    q->shape.n_devices = q->n;
    for (size_t i = 0; i < q->n; i++)
        q->shape.devices[i] = arena_strdup(a, r->devices[i]);
    q->exact = q->n > 1 || strchr(r->devices[0], ':') || str_eq(r->devices[0], "cpu");
    return q;
}

static struct queue *queue_get(struct place *p, const struct place_request *r)
{
    struct str key;
    str_init(&key);
    queue_key(r, &key);
    uint64_t hash = hash_bytes(key.data, key.n, (uint64_t)r->target);
    struct queue **at = &p->queues[hash & (p->cap_queues - 1)];
    for (struct queue *q = *at; q; q = q->chain)
        if (q->hash == hash && q->shape.target == r->target && str_eq(q->key, key.data)) {
            str_release(&key);
            q->references++;
            return q;
        }
    struct queue *q = queue_new(r, key.data, hash);
    str_release(&key);
    q->references = 1;
    q->chain = *at;
    *at = q;
    if (++p->n_queues > p->cap_queues)
        queues_grow(p);
    return q;
}

static void queue_give(struct place *p, struct queue *q)
{
    if (--q->references > 0)
        return;
    struct queue **at = &p->queues[q->hash & (p->cap_queues - 1)];
    while (*at != q)
        at = &(*at)->chain;
    *at = q->chain;
    p->n_queues--;
    queue_free(q);
}

/* ---- classes ---- */

static void classes_grow(struct place *p)
{
    size_t cap = 2 * p->cap_classes;
    struct place_class **at = mem_alloc(cap * sizeof *at);
    for (size_t i = 0; i < p->cap_classes; i++)
        for (struct place_class *c = p->classes[i], *next; c; c = next) {
            next = c->chain;
            c->chain = at[c->hash & (cap - 1)];
            at[c->hash & (cap - 1)] = c;
        }
    mem_free(p->classes);
    p->classes = at;
    p->cap_classes = cap;
}

struct place_class *place_class_get(struct place *p, const struct place_request *r)
{
    ASSERT(r->n_devices >= 1 && r->n_devices <= PLACE_SET_MAX);
    int64_t budget = r->budget_bytes < 0 ? 0 : r->budget_bytes;
    struct queue *q = queue_get(p, r);
    uint64_t hash = hash_bytes(&budget, sizeof budget, q->hash + r->raised);
    struct place_class **at = &p->classes[hash & (p->cap_classes - 1)];
    for (struct place_class *c = *at; c; c = c->chain)
        if (c->queue == q && c->request.budget_bytes == budget && c->request.raised == r->raised) {
            c->references++;
            queue_give(p, q);
            return c;
        }
    struct place_class *c = mem_alloc(sizeof *c);
    *c = (struct place_class){
        .chain = *at, .hash = hash, .references = 1, .queue = q, .request = q->shape};
    c->request.budget_bytes = budget;
    c->request.raised = r->raised;
    *at = c;
    if (++p->n_classes > p->cap_classes)
        classes_grow(p);
    return c;
}

void place_class_give(struct place *p, struct place_class *c)
{
    if (!c || --c->references > 0)
        return;
    struct place_class **at = &p->classes[c->hash & (p->cap_classes - 1)];
    while (*at != c)
        at = &(*at)->chain;
    *at = c->chain;
    p->n_classes--;
    queue_give(p, c->queue);
    mem_free(c);
}

const struct place_request *place_class_request(const struct place_class *c)
{
    return &c->request;
}

const char *place_class_queue(const struct place_class *c)
{
    return c->queue->key;
}

/* ---- candidates ---- */

static bool worker_is_asked(const struct queue *q, const struct worker *w)
{
    const char *first = q->shape.devices[0];
    switch (q->shape.target) {
    case PLACE_NAMED:
        return true;
    case PLACE_POOL:
        return w->one_shot && (!*q->shape.pool || str_eq(q->shape.pool, w->pool));
    case PLACE_ANY:
        break;
    }
    /* Only other workers renumber a run's cards, so cards by number are theirs (R5). */
    bool by_number = str_starts(first, "cuda:") && (q->n > 1 || !str_eq(first, "cuda:0"));
    return !w->one_shot && !(w->server && by_number);
}

static void candidate_add(
    struct place *p, struct queue *q, size_t *cap, struct worker *w, struct device **devices)
{
    if (q->n_candidates == *cap) {
        struct candidate *more = ARENA_ARRAY(&p->arena, struct candidate, *cap ? 2 * *cap : 4);
        if (*cap)
            memcpy(more, q->candidates, *cap * sizeof *more);
        q->candidates = more;
        *cap = *cap ? 2 * *cap : 4;
    }
    struct candidate *c = &q->candidates[q->n_candidates++];
    c->worker = w;
    c->devices = ARENA_ARRAY(&p->arena, struct device *, q->n);
    memcpy(c->devices, devices, q->n * sizeof(struct device *));
    for (size_t i = 0; i < q->n; i++)
        q->any_shared = q->any_shared || devices[i]->card->shared;
}

static void worker_candidates(struct place *p, struct queue *q, size_t *cap, struct worker *w)
{
    struct device *set[PLACE_SET_MAX];
    if (q->exact) {
        for (size_t i = 0; i < q->n; i++)
            if (!(set[i] = worker_device(w, q->shape.devices[i])))
                return;
        candidate_add(p, q, cap, w, set);
        return;
    }
    for (size_t i = 0; i < w->n_devices; i++)
        if (str_eq(w->devices[i].kind, q->shape.devices[0])) {
            set[0] = &w->devices[i];
            candidate_add(p, q, cap, w, set);
        }
}

void queue_ready(struct place *p, struct queue *q)
{
    if (q->pass == p->pass)
        return;
    q->pass = p->pass;
    q->candidates = NULL;
    q->n_candidates = 0;
    q->any_shared = q->head_seen = q->memory_seen = q->blocked_plain = false;
    q->room_bound = INT64_MAX;
    q->waiting = (struct run_name){0};
    size_t cap = 0;
    if (q->shape.target == PLACE_NAMED) {
        struct worker *w = world_worker(p, q->shape.worker);
        if (w)
            worker_candidates(p, q, &cap, w);
        return;
    }
    for (size_t i = 0; i < p->n_workers; i++)
        if (worker_is_asked(q, &p->workers[i]))
            worker_candidates(p, q, &cap, &p->workers[i]);
}

/* ---- what a waiting run keeps ---- */

/* Whether this run is the first that wants any of these cards; free slots are counted. */
static bool
set_is_first(const struct queue *q, const struct candidate *c, int64_t run, size_t *free_slots)
{
    *free_slots = 0;
    for (size_t i = 0; i < q->n; i++) {
        const struct card *card = c->devices[i]->card;
        if (card->shared) {
            if (card->claim.run && card->claim.run != run)
                return false;
            continue;
        }
        if (card->wanted || (card->kept && card->kept_for.run != run))
            return false;
        *free_slots += card->used < card->limit;
    }
    return true;
}

static void
set_keep(const struct queue *q, const struct candidate *c, int64_t run, const char *run_id)
{
    for (size_t i = 0; i < q->n; i++) {
        struct card *card = c->devices[i]->card;
        if (card->shared)
            continue;
        if (bytes_add(card->used, card->kept) < card->limit) {
            name_set(&card->kept_for, run, run_id);
            card->kept++;
        }
        card->wanted = true;
    }
}

/* R7: a set at the head of its queue keeps the free slots among its cards. */
static void
set_waits(struct place *p, struct queue *q, int64_t budget_bytes, int64_t run, const char *run_id)
{
    const struct candidate *best = NULL;
    size_t most = 0;
    for (size_t i = 0; i < q->n_candidates; i++) {
        const struct candidate *c = &q->candidates[i];
        size_t free_slots;
        if (!fit_is_room(candidate_fit(p, q, c, budget_bytes, run, NULL)))
            continue;
        q->head_seen = true;
        if (!set_is_first(q, c, run, &free_slots) || free_slots <= most)
            continue;
        best = c;
        most = free_slots;
    }
    if (best)
        set_keep(q, best, run, run_id);
}

/* Later runs are not first where this one, which names its cards, lacks only room. */
static void cards_wanted(const struct queue *q, enum fit f)
{
    if (q->shape.target != PLACE_NAMED || !q->exact || !fit_is_room(f))
        return;
    for (size_t i = 0; i < q->n; i++) {
        struct card *c = q->candidates[0].devices[i]->card;
        c->wanted = c->wanted || !c->shared;
    }
}

static bool cards_unclaimed(const struct queue *q, const struct candidate *c)
{
    for (size_t i = 0; i < q->n; i++)
        if (c->devices[i]->card->shared && c->devices[i]->card->claim.run)
            return false;
    return true;
}

/* R19: the card of the first run that waits for memory; of several one where it fits when idle
 * canvas children leave, else the one with most room. */
static const struct candidate *
claim_choose(const struct place *p, const struct queue *q, int64_t budget_bytes, int64_t run)
{
    const struct candidate *best = NULL;
    int64_t most = 0;
    for (size_t i = 0; i < q->n_candidates; i++) {
        const struct candidate *c = &q->candidates[i];
        enum fit f = candidate_fit(p, q, c, budget_bytes, run, NULL);
        if (!fit_is_memory(f) || !cards_unclaimed(q, c))
            continue;
        int64_t room = f == FIT_EVICT ? INT64_MAX : candidate_room(q, c);
        if (best && room <= most)
            continue;
        best = c;
        most = room;
    }
    return best;
}

static void memory_waits(
    struct place *p, struct queue *q, int64_t budget_bytes, int64_t run, const char *run_id)
{
    q->memory_seen = true;
    const struct candidate *c = claim_choose(p, q, budget_bytes, run);
    if (!c)
        return;
    if (q->first_run != run) {
        q->first_run = run;
        q->first_since_ns = p->now_ns;
    }
    if (q->first_since_ns > p->now_ns) /* the clock was set back */
        q->first_since_ns = p->now_ns;
    int64_t closes = bytes_add(q->first_since_ns, p->reserve_ns);
    bool closed = p->now_ns >= closes;
    if (!closed && closes < p->wake_ns)
        p->wake_ns = closes;
    enum fit f = candidate_fit(p, q, c, budget_bytes, run, NULL);
    for (size_t i = 0; i < q->n; i++) {
        struct card *card = c->devices[i]->card;
        if (!card->shared)
            continue;
        name_set(&card->claim, run, run_id);
        card->closed = closed;
        if (f == FIT_EVICT)
            card_evict(p, card);
    }
}

/* The most that later budgets of this queue could fit: -1 none, as room only shrinks. */
static int64_t queue_room(const struct queue *q)
{
    int64_t most = -1;
    for (size_t i = 0; i < q->n_candidates; i++) {
        const struct candidate *c = &q->candidates[i];
        if (worker_fit(c->worker) != FIT_OK)
            continue;
        int64_t room = candidate_room(q, c);
        if (room != INT64_MAX && room > most)
            most = room;
    }
    return most;
}

/* ---- the fold ---- */

void place_begin(struct place *p, const struct place_world *w)
{
    p->pass++;
    world_copy(p, w);
}

static void run_assign(
    struct place *p, struct place_class *c, const struct candidate *to, int64_t run,
    const char *run_id, struct place_result *out)
{
    int64_t budget = c->request.budget_bytes;
    *out = (struct place_result){.worker = to->worker->index, .n_devices = c->queue->n};
    for (size_t i = 0; i < c->queue->n; i++) {
        struct device *d = to->devices[i];
        struct card *card = d->card;
        out->devices[i] = (size_t)(d - to->worker->devices);
        out->by_memory = out->by_memory || card->shared;
        card->used++;
        if (budget > 0)
            card_hold(p, card, budget, false);
        else if (!card->alone.run)
            name_set(&card->alone, run, run_id);
        card_holder(p, card, run, run_id, true);
        if (!card->shared)
            card_evict(p, card);
    }
    to->worker->spent = to->worker->one_shot;
}

/* B4, B10: runs that would wait for ever through no choice of their user. */
static bool run_fails(
    struct place *p, const struct place_class *c, enum fit f, const struct device *at,
    struct place_result *out)
{
    const struct queue *q = c->queue;
    bool cannot_cap = f == FIT_CANNOT_CAP && q->shape.target == PLACE_NAMED;
    bool too_large = c->request.raised && q->n_candidates > 0;
    for (size_t i = 0; i < q->n_candidates && too_large; i++)
        too_large =
            candidate_ever(p, q, &q->candidates[i], c->request.budget_bytes, NULL) == FIT_TOO_LARGE;
    if (!cannot_cap && !too_large)
        return false;
    struct str text;
    str_init(&text);
    if (too_large)
        text_too_large(p, q, c->request.budget_bytes, &text);
    else
        text_fit(p, q, at, f, &c->request, &text);
    *out = (struct place_result){.too_large = too_large};
    str_copy_trimmed(out->text, sizeof out->text, text.data, text.n);
    str_release(&text);
    return true;
}

static void
run_waits(struct place *p, struct place_class *c, enum fit f, int64_t run, const char *run_id)
{
    struct queue *q = c->queue;
    int64_t budget = c->request.budget_bytes;
    c->blocked = p->pass;
    if (!q->waiting.run)
        name_set(&q->waiting, run, run_id);
    if (budget > 0 && fit_is_room(f) && !q->memory_seen)
        memory_waits(p, q, budget, run, run_id);
    if (q->n > 1 && !q->head_seen)
        set_waits(p, q, budget, run, run_id);
    cards_wanted(q, f);
    if (budget == 0)
        q->blocked_plain = true;
    if (!q->any_shared) {
        q->blocked_plain = true;
        q->room_bound = -1;
    } else if (q->memory_seen && budget > 0) {
        q->room_bound = queue_room(q);
    }
}

/* Whether the pass has already shown that such a run has no room. */
static bool known_blocked(const struct place *p, const struct place_class *c)
{
    const struct queue *q = c->queue;
    if (c->blocked == p->pass)
        return true;
    if (q->pass != p->pass || c->request.raised)
        return false;
    return c->request.budget_bytes == 0 ? q->blocked_plain
                                        : c->request.budget_bytes > q->room_bound;
}

enum place_outcome place_next(
    struct place *p, struct place_class *c, int64_t run, const char *run_id,
    struct place_result *out)
{
    if (known_blocked(p, c))
        return PLACE_WAITS;
    enum fit f;
    const struct device *at = NULL;
    queue_ready(p, c->queue);
    const struct candidate *best = queue_best(p, c->queue, c->request.budget_bytes, run, &f, &at);
    if (best && f == FIT_OK) {
        run_assign(p, c, best, run, run_id, out);
        return PLACE_ASSIGNED;
    }
    if (run_fails(p, c, f, at, out))
        return PLACE_FAILS;
    run_waits(p, c, f, run, run_id);
    return PLACE_WAITS;
}

const size_t *place_evictions(const struct place *p, size_t *n)
{
    *n = p->evictions.n;
    return p->evictions.data;
}

int64_t place_wake_ns(const struct place *p)
{
    return p->wake_ns;
}
