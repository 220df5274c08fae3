/* reference.c - the placement rules once more, slow and plain (reference.h). */
#include "reference.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

/* ---- a pass's notebook ---- */

struct place_at { /* a device of a worker */
    size_t worker, device;
};
struct booking {
    long card;
    int64_t run, bytes; /* bytes: budget and context; 0 without budget */
    bool started, queued, warm, alone;
    size_t live;
};
struct note { /* something kept on a card for a run */
    long card;
    int64_t run;
    bool closed;
};
struct known { /* what a pass does not change about a card, looked up once */
    struct place_at first;
    bool shared, cuda;
    int64_t limit; /* 0: none */
    const struct place_device *report;
};
struct pass {
    const struct place_world *w;
    const char *limits;
    int64_t gpu, cpu;
    VEC(struct known) cards;
    VEC(long) card_of; /* of every device, worker by worker */
    VEC(size_t) from;  /* a worker's first in card_of */
    VEC(struct booking) bookings;
    VEC(struct note) kept;
    VEC(struct note) claims;
    VEC(struct note) wanted;
    VEC(size_t) spent;    /* one-shot workers that were given a run */
    VEC(char *) waited;   /* queues of which a set was at the head */
    VEC(char *) starving; /* queues of which a run with a budget waits for room */
    struct ref_heads *heads;
    bool *evict;
};

static const struct place_worker *worker_at(const struct pass *p, struct place_at d)
{
    return &p->w->workers[d.worker];
}

static const struct place_device *device_at(const struct pass *p, struct place_at d)
{
    return &p->w->workers[d.worker].devices[d.device];
}

/* One card: the same UUID, or without UUID the same device of the same worker. */
static bool same(
    const struct pass *p, struct place_at d, const char *worker, const char *device,
    const char *uuid)
{
    const char *own = device_at(p, d)->uuid;
    bool has = own && *own, other = uuid && *uuid;
    if (has || other)
        return has && other && str_eq(own, uuid);
    return str_eq(worker_at(p, d)->name, worker) && str_eq(device_at(p, d)->name, device);
}

static long card_at(const struct pass *p, struct place_at d)
{
    return p->card_of.data[p->from.data[d.worker] + d.device];
}

static bool same_card(const struct pass *p, struct place_at a, struct place_at b)
{
    return card_at(p, a) == card_at(p, b);
}

/* The card of a run's device, -1 when nobody offers it now (runs there are of no concern). */
static long
card_named(const struct pass *p, const char *worker, const char *device, const char *uuid)
{
    for (size_t i = 0; i < p->cards.n; i++)
        if (same(p, p->cards.data[i].first, worker, device, uuid))
            return (long)i;
    return -1;
}

static bool online_exists(const struct pass *p, struct place_at d)
{
    for (size_t i = 0; i < p->w->n_workers; i++)
        for (size_t j = 0; j < p->w->workers[i].n_devices; j++)
            if (p->w->workers[i].connected && same_card(p, (struct place_at){i, j}, d))
                return true;
    return false;
}

/* Offers of the card that count: of connected workers, or of all when none is connected. */
#define EACH_OFFER(p, d, x)                                                                        \
    for (struct place_at x = {0, 0}; x.worker < (p)->w->n_workers; x = next_at((p), x))            \
        if (x.device < (p)->w->workers[x.worker].n_devices && same_card((p), x, (d)) &&            \
            (!online_exists((p), (d)) || (p)->w->workers[x.worker].connected))

static struct place_at next_at(const struct pass *p, struct place_at x)
{
    x.device++;
    if (x.device >= p->w->workers[x.worker].n_devices) {
        x.worker++;
        x.device = 0;
    }
    return x;
}

static bool is_kind(const struct pass *p, struct place_at d, const char *kind)
{
    return str_eq(device_at(p, d)->kind, kind);
}

static bool look_shared(const struct pass *p, struct place_at d)
{
    bool all = true;
    EACH_OFFER(p, d, x)
    all = all && device_at(p, x)->shared && (is_kind(p, x, "cuda") || is_kind(p, x, "mps"));
    return all;
}

static bool look_cuda(const struct pass *p, struct place_at d)
{
    for (struct place_at x = {0, 0}; x.worker < p->w->n_workers; x = next_at(p, x))
        if (x.device < p->w->workers[x.worker].n_devices && same_card(p, x, d) &&
            is_kind(p, x, "cuda"))
            return true;
    return false;
}

static const struct place_device *look_report(const struct pass *p, struct place_at d)
{
    const struct place_device *best = NULL;
    const struct place_worker *of = NULL;
    EACH_OFFER(p, d, x)
    {
        const struct place_device *y = device_at(p, x);
        if (y->total_bytes <= 0)
            continue;
        /* Of equally old reports the first by name, this server last. */
        bool before = !best || y->reported_ns > best->reported_ns;
        if (best && y->reported_ns == best->reported_ns && worker_at(p, x) != of)
            before = worker_at(p, x)->server != of->server
                         ? of->server
                         : strcmp(worker_at(p, x)->name, of->name) < 0;
        if (before) {
            best = y;
            of = worker_at(p, x);
        }
    }
    return best;
}

static bool is_shared(const struct pass *p, struct place_at d)
{
    return p->cards.data[card_at(p, d)].shared;
}

static bool is_cuda(const struct pass *p, struct place_at d)
{
    return p->cards.data[card_at(p, d)].cuda;
}

static const struct place_device *latest_report(const struct pass *p, struct place_at d)
{
    return p->cards.data[card_at(p, d)].report;
}

/* ---- limits ---- */

/* The number behind "name=" in the list, the last one; 0: not there. */
static int64_t entry(const struct pass *p, const char *name)
{
    char copy[512], *rest = NULL;
    int64_t found = 0;
    (void)snprintf(copy, sizeof copy, "%s", p->limits);
    for (char *t = strtok_r(copy, ",", &rest); t; t = strtok_r(NULL, ",", &rest)) {
        size_t n = strlen(name);
        if (strncmp(t, name, n) == 0 && t[n] == '=') {
            int64_t value = 0;
            if (!str_to_i64(t + n + 1, &value))
                continue;
            found = value < 1 ? 1 : value;
        }
    }
    return found;
}

static int64_t own_limit(const struct pass *p, struct place_at d, bool *explicit)
{
    char name[600];
    const struct place_worker *w = worker_at(p, d);
    *explicit = true;
    (void)snprintf(
        name, sizeof name, "%s%s%s", w->server ? "" : w->name, w->server ? "" : "/",
        device_at(p, d)->name);
    int64_t n = entry(p, name);
    bool met = w->server || !w->same_host; /* the server's first device that is the same card */
    for (struct place_at x = {0, 0}; n == 0 && !met && x.worker < p->w->n_workers;
         x = next_at(p, x))
        if (x.device < worker_at(p, x)->n_devices && worker_at(p, x)->server &&
            same_card(p, x, d)) {
            n = entry(p, device_at(p, x)->name);
            met = true;
        }
    if (n)
        return n;
    *explicit = false;
    int64_t plain = is_kind(p, d, "cpu") ? p->cpu : p->gpu;
    return plain < 1 ? 1 : plain;
}

/* 0: none. */
static int64_t look_limit(const struct pass *p, struct place_at d)
{
    int64_t least = 0;
    bool shared = is_shared(p, d);
    EACH_OFFER(p, d, x)
    {
        bool explicit;
        int64_t n = own_limit(p, x, &explicit);
        if ((explicit || !shared) && (least == 0 || n < least))
            least = n;
    }
    return least;
}

static int64_t limit(const struct pass *p, struct place_at d)
{
    return p->cards.data[card_at(p, d)].limit;
}

/* Every card once, with what this pass does not change. */
static void look_around(struct pass *p)
{
    for (size_t i = 0; i < p->w->n_workers; i++) {
        vec_push(&p->from, p->card_of.n);
        for (size_t j = 0; j < p->w->workers[i].n_devices; j++) {
            const struct place_device *d = &p->w->workers[i].devices[j];
            long k = -1;
            for (size_t c = 0; c < p->cards.n && k < 0; c++)
                if (same(p, p->cards.data[c].first, p->w->workers[i].name, d->name, d->uuid))
                    k = (long)c;
            if (k < 0) {
                struct known card = {.first = {i, j}};
                k = (long)p->cards.n;
                vec_push(&p->cards, card);
            }
            vec_push(&p->card_of, k);
        }
    }
    for (size_t i = 0; i < p->cards.n; i++) {
        struct known *k = &p->cards.data[i];
        k->shared = look_shared(p, k->first);
        k->cuda = look_cuda(p, k->first);
        k->report = look_report(p, k->first);
    }
    for (size_t i = 0; i < p->cards.n; i++)
        p->cards.data[i].limit = look_limit(p, p->cards.data[i].first);
}

/* ---- what is on a card ---- */

static int64_t add(int64_t a, int64_t b)
{
    return a > INT64_MAX - b ? INT64_MAX : a + b;
}

static int64_t cost(const struct pass *p, struct place_at d, int64_t budget)
{
    int64_t context = p->w->context_bytes < 0 ? 0 : p->w->context_bytes;
    return is_cuda(p, d) ? add(budget, context) : budget;
}

static int64_t count_used(const struct pass *p, struct place_at d)
{
    int64_t n = 0;
    for (size_t i = 0; i < p->bookings.n; i++) {
        const struct booking *b = &p->bookings.data[i];
        n += b->queued && b->card == card_at(p, d);
    }
    return n;
}

static int64_t count_kept(const struct pass *p, struct place_at d, int64_t run)
{
    int64_t n = 0;
    for (size_t i = 0; i < p->kept.n; i++) {
        const struct note *k = &p->kept.data[i];
        n += k->run != run && k->card == card_at(p, d);
    }
    return n;
}

static bool has_alone(const struct pass *p, struct place_at d)
{
    for (size_t i = 0; i < p->bookings.n; i++) {
        const struct booking *b = &p->bookings.data[i];
        if (b->alone && b->card == card_at(p, d))
            return true;
    }
    return false;
}

/* min(free - reserved, total - reserved - running); warm children only, or without them. */
static int64_t room(const struct pass *p, struct place_at d, int64_t *warm)
{
    const struct place_device *report = latest_report(p, d);
    int64_t reserved = 0, running = 0, total = report ? report->total_bytes : 0;
    int64_t unused = report && report->free_bytes > 0 ? report->free_bytes : 0;
    *warm = 0;
    for (size_t i = 0; i < p->bookings.n; i++) {
        const struct booking *b = &p->bookings.data[i];
        if (b->card != card_at(p, d))
            continue;
        if (b->started)
            running = add(running, b->bytes);
        else
            reserved = add(reserved, b->bytes);
        if (b->warm)
            *warm = add(*warm, b->bytes);
    }
    int64_t by_free = unused - reserved, by_total = total - add(reserved, running);
    return by_free < by_total ? by_free : by_total;
}

static bool is_evicted(const struct pass *p, struct place_at d)
{
    for (size_t i = 0; i < p->bookings.n; i++) {
        const struct booking *b = &p->bookings.data[i];
        if (b->warm && b->card == card_at(p, d) && p->evict[b->live])
            return true;
    }
    return false;
}

static void evict(struct pass *p, struct place_at d)
{
    for (size_t i = 0; i < p->bookings.n; i++) {
        const struct booking *b = &p->bookings.data[i];
        if (b->warm && b->card == card_at(p, d))
            p->evict[b->live] = true;
    }
}

/* ---- judging ---- */

static enum ref_why worker_why(const struct pass *p, size_t i)
{
    const struct place_worker *w = &p->w->workers[i];
    if (w->disabled)
        return REF_DISABLED;
    if (!w->connected)
        return REF_OFFLINE;
    if (w->adopting)
        return REF_ADOPTING;
    if (w->draining)
        return REF_DRAINING;
    bool spent = w->spent;
    for (size_t k = 0; k < p->spent.n; k++)
        spent = spent || p->spent.data[k] == i;
    return spent && w->one_shot ? REF_SPENT : REF_ROOM;
}

/* What no waiting mends. */
static enum ref_why ever_why(const struct pass *p, struct place_at d, int64_t budget)
{
    if (!is_shared(p, d))
        return REF_ROOM;
    if (budget == 0)
        return REF_NO_BUDGET;
    if (worker_at(p, d)->connected && !worker_at(p, d)->can_cap)
        return REF_CANNOT_CAP;
    const struct place_device *report = latest_report(p, d);
    if (!report)
        return is_cuda(p, d) ? REF_UNREPORTED : REF_NO_TOTAL;
    return cost(p, d, budget) > report->total_bytes ? REF_TOO_LARGE : REF_ROOM;
}

static enum ref_why
now_why(const struct pass *p, struct place_at d, int64_t budget, int64_t before, int64_t run)
{
    int64_t max = limit(p, d), used = count_used(p, d) + before;
    if (!is_shared(p, d)) {
        if (used >= max)
            return REF_SLOT;
        return used + count_kept(p, d, run) >= max ? REF_KEPT : REF_ROOM;
    }
    for (size_t i = 0; i < p->claims.n; i++) {
        const struct note *c = &p->claims.data[i];
        if (c->closed && c->run != run && c->card == card_at(p, d))
            return REF_CLOSED;
    }
    if (max > 0 && used >= max)
        return REF_SLOT;
    if (has_alone(p, d))
        return REF_ALONE;
    int64_t warm, has = room(p, d, &warm), each = cost(p, d, budget), needs = 0;
    for (int64_t i = 0; i <= before; i++)
        needs = add(needs, each);
    if (needs <= has)
        return REF_ROOM;
    int64_t then = has < 0 ? has + warm : add(has, warm);
    return needs <= then && !is_evicted(p, d) ? REF_EVICT : REF_MEMORY;
}

/* A set is as its worst device is: what is final before what is not, else the first that is not
 * there but for warm children. */
static enum ref_why set_why(
    const struct pass *p, const struct place_at *set, size_t n, int64_t budget, int64_t run,
    size_t *at)
{
    *at = 0;
    enum ref_why why = worker_why(p, set[0].worker);
    if (why != REF_ROOM)
        return why;
    for (size_t i = 0; i < n; i++) {
        enum ref_why x = ever_why(p, set[i], budget);
        if (x > why) {
            why = x;
            *at = i;
        }
    }
    if (why != REF_ROOM)
        return why;
    for (size_t i = 0; i < n; i++) {
        int64_t before = 0;
        for (size_t j = 0; j < i; j++)
            before += same_card(p, set[i], set[j]);
        enum ref_why x = now_why(p, set[i], budget, before, run);
        if (x > REF_EVICT) {
            *at = i;
            return x;
        }
        if (x == REF_EVICT && why == REF_ROOM) {
            why = x;
            *at = i;
        }
    }
    return why;
}

/* ---- candidates ---- */

struct set {
    struct place_at d[PLACE_SET_MAX];
    size_t n;
};
struct sets {
    VEC(struct set) of;
};

static bool asks_kind(const struct place_request *r)
{
    return r->n_devices == 1 && (str_eq(r->devices[0], "cuda") || str_eq(r->devices[0], "mps"));
}

static bool may_ask(const struct pass *p, const struct place_request *r, size_t i)
{
    const struct place_worker *w = &p->w->workers[i];
    if (r->target == PLACE_NAMED)
        return str_eq(w->name, r->worker);
    if (r->target == PLACE_POOL)
        return w->one_shot && (!*r->pool || str_eq(r->pool, w->pool));
    bool numbered = strncmp(r->devices[0], "cuda:", 5) == 0;
    if (w->server && numbered && (r->n_devices > 1 || !str_eq(r->devices[0], "cuda:0")))
        return false;
    return !w->one_shot;
}

static void
offer_sets(const struct pass *p, const struct place_request *r, size_t i, struct sets *out)
{
    const struct place_worker *w = &p->w->workers[i];
    struct set s = {.n = r->n_devices};
    if (asks_kind(r)) {
        for (size_t j = 0; j < w->n_devices; j++)
            if (str_eq(w->devices[j].kind, r->devices[0])) {
                s.d[0] = (struct place_at){i, j};
                vec_push(&out->of, s);
            }
        return;
    }
    for (size_t k = 0; k < r->n_devices; k++) {
        bool found = false;
        for (size_t j = 0; j < w->n_devices && !found; j++)
            if (str_eq(w->devices[j].name, r->devices[k])) {
                s.d[k] = (struct place_at){i, j};
                found = true;
            }
        if (!found)
            return;
    }
    vec_push(&out->of, s);
}

/* In the order of `any`: by name, this server last. */
static struct sets candidates(const struct pass *p, const struct place_request *r)
{
    struct sets out = {0};
    bool done[512] = {false};
    for (size_t k = 0; k < p->w->n_workers; k++) {
        size_t next = p->w->n_workers;
        for (size_t i = 0; i < p->w->n_workers; i++) {
            const struct place_worker *a = &p->w->workers[i];
            if (done[i])
                continue;
            const struct place_worker *b = next < p->w->n_workers ? &p->w->workers[next] : NULL;
            if (!b || (a->server != b->server ? b->server : strcmp(a->name, b->name) < 0))
                next = i;
        }
        done[next] = true;
        if (may_ask(p, r, next))
            offer_sets(p, r, next, &out);
    }
    return out;
}

static int64_t set_room(const struct pass *p, const struct set *s)
{
    int64_t least = INT64_MAX, warm;
    for (size_t i = 0; i < s->n; i++)
        if (is_shared(p, s->d[i])) {
            int64_t has = has_alone(p, s->d[i]) ? -1 : room(p, s->d[i], &warm);
            least = has < least ? has : least;
        }
    return least;
}

static const struct set *nearest(
    const struct pass *p, const struct sets *sets, int64_t budget, int64_t run, enum ref_why *why,
    size_t *at)
{
    const struct set *best = NULL;
    for (size_t i = 0; i < sets->of.n; i++) {
        const struct set *s = &sets->of.data[i];
        size_t here;
        enum ref_why x = set_why(p, s->d, s->n, budget, run, &here);
        bool better = !best || x < *why ||
                      (x == *why && x == REF_MEMORY && set_room(p, s) > set_room(p, best));
        if (better) {
            best = s;
            *why = x;
            *at = here;
        }
    }
    return best;
}

/* ---- what waiting does ---- */

static void key_of(const struct place_request *r, char out[256])
{
    size_t n = (size_t)snprintf(
        out, 256, "%d|%s|%s", (int)r->target, r->worker ? r->worker : "", r->pool ? r->pool : "");
    for (size_t i = 0; i < r->n_devices; i++)
        n += (size_t)snprintf(out + n, 256 - n, "|%s", r->devices[i]);
}

static bool lacks_room(enum ref_why why)
{
    return why >= REF_EVICT && why <= REF_CLOSED;
}

static bool lacks_memory(enum ref_why why)
{
    return why == REF_EVICT || why == REF_MEMORY || why == REF_ALONE;
}

static struct note note_of(const struct pass *p, struct place_at d, int64_t run)
{
    return (struct note){card_at(p, d), run, false};
}

#define NOTED(p, list, d, run_) noted((p), (p)->list.data, (p)->list.n, (d), (run_))

/* Whether a note of another run (run 0: of any) is on the card. */
static bool
noted(const struct pass *p, const struct note *notes, size_t n, struct place_at d, int64_t run)
{
    for (size_t i = 0; i < n; i++)
        if (notes[i].run != run && notes[i].card == card_at(p, d))
            return true;
    return false;
}

static bool listed(char *const *list, size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++)
        if (str_eq(list[i], key))
            return true;
    return false;
}

static struct ref_first *first_of(struct ref_heads *h, const char *key)
{
    for (size_t i = 0; i < h->n; i++)
        if (str_eq(h->of[i].key, key))
            return &h->of[i];
    ASSERT(h->n < sizeof h->of / sizeof h->of[0]);
    struct ref_first *f = &h->of[h->n++];
    (void)snprintf(f->key, sizeof f->key, "%s", key);
    f->run = f->since_ns = 0;
    return f;
}

/* R19: the first of its queue with a budget, where it lacks memory, claims what nobody claims. */
static void claim(
    struct pass *p, const struct sets *sets, const struct place_request *r, int64_t run,
    const char *key)
{
    const struct set *best = NULL;
    size_t at;
    for (size_t i = 0; i < sets->of.n; i++) {
        const struct set *s = &sets->of.data[i];
        enum ref_why why = set_why(p, s->d, s->n, r->budget_bytes, run, &at);
        bool open = lacks_memory(why);
        for (size_t k = 0; k < s->n && open; k++)
            open = !is_shared(p, s->d[k]) || !NOTED(p, claims, s->d[k], 0);
        if (open && why == REF_EVICT) {
            best = s; /* it fits when idle canvas children leave */
            break;
        }
        if (open && (!best || set_room(p, s) > set_room(p, best)))
            best = s;
    }
    if (!best)
        return;
    struct ref_first *f = first_of(p->heads, key);
    if (f->run != run) {
        f->run = run;
        f->since_ns = p->w->now_ns;
    }
    if (f->since_ns > p->w->now_ns)
        f->since_ns = p->w->now_ns;
    bool closed = p->w->now_ns - f->since_ns >= (p->w->reserve_ns < 0 ? 0 : p->w->reserve_ns);
    bool out = set_why(p, best->d, best->n, r->budget_bytes, run, &at) == REF_EVICT;
    for (size_t k = 0; k < best->n; k++)
        if (is_shared(p, best->d[k])) {
            struct note c = note_of(p, best->d[k], run);
            c.closed = closed;
            if (out)
                evict(p, best->d[k]);
            vec_push(&p->claims, c);
        }
}

/* R7: the first set of its queue keeps the free slots of the worker where it has most of them. */
static void keep(
    struct pass *p, const struct sets *sets, const struct place_request *r, int64_t run,
    const char *key)
{
    const struct set *best = NULL;
    size_t most = 0, at;
    for (size_t i = 0; i < sets->of.n; i++) {
        const struct set *s = &sets->of.data[i];
        if (!lacks_room(set_why(p, s->d, s->n, r->budget_bytes, run, &at)))
            continue;
        if (!listed(p->waited.data, p->waited.n, key))
            vec_push(&p->waited, mem_strdup(key));
        size_t free_slots = 0;
        bool first = true;
        for (size_t k = 0; k < s->n; k++) {
            struct place_at d = s->d[k];
            if (is_shared(p, d)) {
                first = first && !NOTED(p, claims, d, run);
                continue;
            }
            first = first && !NOTED(p, wanted, d, 0) && !NOTED(p, kept, d, run);
            free_slots += count_used(p, d) < limit(p, d);
        }
        if (first && free_slots > most) {
            best = s;
            most = free_slots;
        }
    }
    for (size_t k = 0; best && k < best->n; k++) {
        struct place_at d = best->d[k];
        if (is_shared(p, d))
            continue;
        if (count_used(p, d) + count_kept(p, d, 0) < limit(p, d))
            vec_push(&p->kept, note_of(p, d, run));
        vec_push(&p->wanted, note_of(p, d, run));
    }
}

static void book(
    struct pass *p, const struct set *s, const struct place_request *r, int64_t run,
    struct ref_answer *out)
{
    out->outcome = PLACE_ASSIGNED;
    out->worker = s->d[0].worker;
    out->n_devices = s->n;
    for (size_t k = 0; k < s->n; k++) {
        struct place_at d = s->d[k];
        struct note n = note_of(p, d, run);
        out->devices[k] = d.device;
        out->by_memory = out->by_memory || is_shared(p, d);
        struct booking b = {
            n.card,
            run,
            r->budget_bytes > 0 ? cost(p, d, r->budget_bytes) : 0,
            false,
            true,
            false,
            r->budget_bytes == 0,
            0};
        vec_push(&p->bookings, b);
        if (!is_shared(p, d))
            evict(p, d);
    }
    vec_push(&p->spent, s->d[0].worker);
}

/* ---- the pass ---- */

static void book_live(struct pass *p)
{
    for (size_t i = 0; i < p->w->n_live; i++) {
        const struct place_live *l = &p->w->live[i];
        for (size_t k = 0; k < l->n_devices; k++) {
            long card = card_named(p, l->worker, l->devices[k], l->uuids[k]);
            struct booking b = {
                card,  l->run, 0, l->started, l->lane == PLACE_QUEUED, l->lane == PLACE_WARM,
                false, i};
            bool cuda = card >= 0 && p->cards.data[card].cuda;
            int64_t context = cuda && p->w->context_bytes > 0 ? p->w->context_bytes : 0;
            int64_t budget = l->budget_bytes < 0 ? 0 : l->budget_bytes;
            if (budget > 0 || b.warm)
                b.bytes = add(budget, context);
            b.alone = budget == 0 && !b.warm;
            b.started = b.started || b.warm;
            vec_push(&p->bookings, b);
        }
        for (size_t k = 0; k < p->w->n_workers; k++)
            if (l->lane == PLACE_QUEUED && str_eq(p->w->workers[k].name, l->worker))
                vec_push(&p->spent, k);
    }
}

static bool fails(
    const struct pass *p, const struct sets *sets, const struct place_request *r, enum ref_why why,
    struct ref_answer *out)
{
    bool too_large = r->raised && sets->of.n > 0;
    for (size_t i = 0; i < sets->of.n && too_large; i++) {
        enum ref_why worst = REF_ROOM;
        for (size_t k = 0; k < sets->of.data[i].n; k++) {
            enum ref_why x = ever_why(p, sets->of.data[i].d[k], r->budget_bytes);
            worst = x > worst ? x : worst;
        }
        too_large = worst == REF_TOO_LARGE;
    }
    out->too_large = too_large;
    return too_large || (why == REF_CANNOT_CAP && r->target == PLACE_NAMED);
}

static void turn(struct pass *p, const struct ref_run *x, struct ref_answer *out)
{
    struct place_request r = *x->request;
    r.budget_bytes = r.budget_bytes < 0 ? 0 : r.budget_bytes;
    struct sets sets = candidates(p, &r);
    enum ref_why why = REF_NOBODY;
    size_t at = 0;
    char key[256];
    key_of(&r, key);
    const struct set *best = nearest(p, &sets, r.budget_bytes, x->run, &why, &at);
    if (best && why == REF_ROOM) {
        book(p, best, &r, x->run, out);
    } else if (fails(p, &sets, &r, why, out)) {
        out->outcome = PLACE_FAILS;
    } else {
        out->outcome = PLACE_WAITS;
        if (r.budget_bytes > 0 && lacks_room(why) &&
            !listed(p->starving.data, p->starving.n, key)) {
            vec_push(&p->starving, mem_strdup(key));
            claim(p, &sets, &r, x->run, key);
        }
        if (r.n_devices > 1 && !listed(p->waited.data, p->waited.n, key))
            keep(p, &sets, &r, x->run, key);
        bool names = r.target == PLACE_NAMED && !asks_kind(&r);
        for (size_t k = 0; names && lacks_room(why) && k < r.n_devices; k++)
            if (!is_shared(p, sets.of.data[0].d[k]))
                vec_push(&p->wanted, note_of(p, sets.of.data[0].d[k], x->run));
    }
    vec_release(&sets.of);
}

static void explain(const struct pass *p, const struct ref_run *x, struct ref_answer *out)
{
    struct place_request r = *x->request;
    struct sets sets = candidates(p, &r);
    size_t at = 0;
    out->why = REF_NOBODY;
    const struct set *best =
        nearest(p, &sets, r.budget_bytes < 0 ? 0 : r.budget_bytes, x->run, &out->why, &at);
    if (best) {
        out->at_worker = best->d[at].worker;
        out->at_device = best->d[at].device;
    }
    vec_release(&sets.of);
}

void ref_pass(
    const struct place_world *w, const char *limits, int64_t gpu, int64_t cpu,
    const struct ref_run *runs, size_t n, struct ref_heads *heads, struct ref_answer *out,
    bool *evicted)
{
    struct pass p = {
        .w = w, .limits = limits, .gpu = gpu, .cpu = cpu, .heads = heads, .evict = evicted};
    memset(evicted, 0, w->n_live * sizeof *evicted);
    look_around(&p);
    book_live(&p);
    for (size_t i = 0; i < n; i++) {
        out[i] = (struct ref_answer){0};
        turn(&p, &runs[i], &out[i]);
    }
    for (size_t i = 0; i < n; i++)
        if (out[i].outcome == PLACE_WAITS)
            explain(&p, &runs[i], &out[i]);
    for (size_t i = 0; i < p.waited.n; i++)
        mem_free(p.waited.data[i]);
    for (size_t i = 0; i < p.starving.n; i++)
        mem_free(p.starving.data[i]);
    vec_release(&p.cards);
    vec_release(&p.card_of);
    vec_release(&p.from);
    vec_release(&p.waited);
    vec_release(&p.starving);
    vec_release(&p.spent);
    vec_release(&p.bookings);
    vec_release(&p.kept);
    vec_release(&p.claims);
    vec_release(&p.wanted);
}

bool ref_card(
    const struct place_world *w, const char *limits, int64_t gpu, int64_t cpu, const char *worker,
    const char *device, struct ref_card *out)
{
    struct pass p = {.w = w, .limits = limits, .gpu = gpu, .cpu = cpu};
    bool found = false;
    look_around(&p);
    book_live(&p);
    for (struct place_at x = {0, 0}; x.worker < w->n_workers && !found; x = next_at(&p, x)) {
        if (x.device >= w->workers[x.worker].n_devices ||
            !str_eq(w->workers[x.worker].name, worker) || !str_eq(device_at(&p, x)->name, device))
            continue;
        const struct place_device *report = latest_report(&p, x);
        *out = (struct ref_card){
            .shared = is_shared(&p, x),
            .cuda = is_cuda(&p, x),
            .alone = has_alone(&p, x),
            .limit = limit(&p, x),
            .used = count_used(&p, x),
            .total_bytes = report ? report->total_bytes : 0,
            .free_bytes = report ? report->free_bytes : 0,
            .id = card_at(&p, x)};
        for (size_t i = 0; i < p.bookings.n; i++) {
            const struct booking *b = &p.bookings.data[i];
            int64_t *sum = b->started ? &out->running_bytes : &out->reserved_bytes;
            if (b->card == out->id)
                *sum = add(*sum, b->bytes);
        }
        found = true;
    }
    vec_release(&p.cards);
    vec_release(&p.card_of);
    vec_release(&p.from);
    vec_release(&p.bookings);
    vec_release(&p.spent);
    return found;
}

const char *ref_words(enum ref_why why)
{
    switch (why) {
    case REF_EVICT:
    case REF_MEMORY:
        return "GiB free";
    case REF_ALONE:
        return "has it for itself";
    case REF_SLOT:
        return "is taken by run";
    case REF_KEPT:
        return "is kept for run";
    case REF_CLOSED:
        return "takes nothing new until run";
    case REF_UNREPORTED:
        return "next heartbeat";
    case REF_ADOPTING:
        return "being settled";
    case REF_SPENT:
        return "one run";
    case REF_DRAINING:
        return "is draining";
    case REF_OFFLINE:
        return "is not connected";
    case REF_DISABLED:
        return "is disabled";
    case REF_NO_BUDGET:
        return "has no memory budget";
    case REF_TOO_LARGE:
        return "GiB in all";
    case REF_NO_TOTAL:
        return "reports no total";
    case REF_CANNOT_CAP:
        return "cannot hold a run";
    case REF_NOBODY:
        return "";
    case REF_ROOM:
        break;
    }
    return "(it has room, so it cannot wait)";
}
