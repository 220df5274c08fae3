/* core_pass.c - a placement pass: the world for placement.h, the fold over the queue, the starts.
 *
 * WHY one transaction per pass: what a pass gives away is one decision. The planner has counted it
 * by then; when the commit fails, the next pass begins from what is stored. Canvas runs do not wait
 * in the queue: they are ordered from the built-in worker as soon as it is there.
 */
#include "base/env.h"
#include "base/log.h"
#include "server/core_int.h"

#include <string.h>

/* ---- the world ---- */

static void world_worker(struct arena *a, const struct worker *w, struct place_worker *out)
{
    struct place_device *devices = ARENA_ARRAY(a, struct place_device, w->cards.n + 1);
    for (size_t i = 0; i < w->cards.n; i++) {
        const struct card *d = &w->cards.data[i];
        devices[i] = (struct place_device){
            .name = d->device,
            .kind = d->kind,
            .uuid = d->uuid,
            .total_bytes = d->total_bytes,
            .free_bytes = d->free_bytes,
            .reported_ns = d->reported_ns,
            .shared = d->mode == CARD_SHARED};
    }
    *out = (struct place_worker){
        .name = w->name,
        .pool = w->pool,
        .devices = devices,
        .n_devices = w->cards.n,
        .server = w->server,
        .same_host = w->same_host,
        .connected = w->connected,
        .seen = w->seen,
        .draining = w->draining,
        .disabled = w->disabled,
        .adopting = w->strays > 0,
        .one_shot = w->one_shot,
        .spent = w->spent,
        .can_cap = w->can_cap};
}

static void world_live(struct arena *a, const struct run *r, struct place_live *out)
{
    *out = (struct place_live){
        .run = r->id,
        .run_id = r->run_id,
        .worker = r->now.worker->name,
        .budget_bytes = r->now.budget_bytes,
        .lane = r->interactive ? PLACE_CANVAS : PLACE_QUEUED,
        .started = r->now.started_us != 0}; /* also one that is stopped before it started */
    char *list = arena_strdup(a, r->now.devices);
    for (char *save, *d = strtok_r(list, ",", &save); d && out->n_devices < PLACE_SET_MAX;
         d = strtok_r(NULL, ",", &save)) {
        out->devices[out->n_devices] = d;
        out->uuids[out->n_devices] = r->uuids[out->n_devices];
        out->n_devices++;
    }
}

/* An idle child of a canvas tab, {tab, idle, devices: [{device, bytes}]}: what it holds counts, and
 * it leaves when a run needs the card. */
static void world_warm(struct worker *w, const json_t *child, struct place_live *out)
{
    size_t i;
    json_t *held;
    *out = (struct place_live){
        .run = -1, .run_id = "", .worker = w->name, .lane = PLACE_WARM, .started = true};
    json_array_foreach(json_object_get(child, "devices"), i, held)
    {
        const struct card *card = worker_card(w, json_get_str(held, "device", ""));
        int64_t bytes = json_get_i64(held, "bytes", 0);
        if (!card || bytes <= 0 || out->n_devices == PLACE_SET_MAX)
            continue;
        out->devices[out->n_devices] = card->device;
        out->uuids[out->n_devices++] = card->uuid;
        out->budget_bytes = bytes > out->budget_bytes ? bytes : out->budget_bytes;
    }
}

static size_t world_warm_all(struct core *c, struct place_live *live, size_t max)
{
    struct worker *w = worker_by_name(c, "local");
    size_t i, n = 0;
    json_t *child;
    c->warm.n = 0;
    json_array_foreach(w && w->connected ? w->caches : NULL, i, child)
    {
        struct warm one = {.worker = w};
        if (n == max || !json_get_bool(child, "idle", false))
            continue;
        world_warm(w, child, &live[n]);
        if (!live[n].n_devices)
            continue;
        (void)snprintf(one.tab, sizeof one.tab, "%s", json_get_str(child, "tab", ""));
        vec_push(&c->warm, one);
        n++;
    }
    return n;
}

enum { WARM_MAX = 64 };
static void world_build(struct core *c, struct arena *a, struct place_world *w)
{
    struct place_worker *workers = ARENA_ARRAY(a, struct place_worker, c->workers.n + 1);
    struct place_live *live = ARENA_ARRAY(a, struct place_live, c->live.n + WARM_MAX + 1);
    for (size_t i = 0; i < c->workers.n; i++)
        world_worker(a, c->workers.data[i], &workers[i]);
    for (size_t i = 0; i < c->live.n; i++)
        world_live(a, c->live.data[i], &live[i]);
    size_t n_warm = world_warm_all(c, live + c->live.n, WARM_MAX);
    c->n_world_live = c->live.n;
    *w = (struct place_world){
        .workers = workers,
        .n_workers = c->workers.n,
        .live = live,
        .n_live = c->live.n + n_warm,
        .limits = c->limits,
        .context_bytes = c->config.context_bytes,
        .reserve_ns = (int64_t)(c->config.reserve_s * 1e9),
        .now_ns = c->now.now_ns};
}

/* ---- what was decided ---- */

struct decision {
    struct run *run;
    struct worker *worker; /* NULL: it fails */
    char devices[DEVICES_BYTES], *text;
    bool by_memory, too_large;
};
struct decisions {
    VEC(struct decision) list;
};

static void
join_devices(const struct worker *w, const struct place_result *p, char *out, size_t cap)
{
    size_t n = 0;
    out[0] = 0;
    for (size_t i = 0; i < p->n_devices && n < cap; i++)
        n += (size_t)snprintf(
            out + n, cap - n, "%s%s", i ? "," : "", w->cards.data[p->devices[i]].device);
}

static void decide(
    struct core *c, struct decisions *d, struct run *r, enum place_outcome outcome,
    const struct place_result *p)
{
    struct decision x = {.run = r, .by_memory = p->by_memory, .too_large = p->too_large};
    if (outcome == PLACE_ASSIGNED) {
        x.worker = c->workers.data[p->worker];
        join_devices(x.worker, p, x.devices, sizeof x.devices);
    } else {
        x.text = mem_strdup(p->text);
    }
    vec_push(&d->list, x);
}

/* "cuda:0" of this server, "gpu-box/cuda:2+cuda:0". */
static void queue_key(const struct worker *w, const char *devices, char *out, size_t cap)
{
    snprintf(out, cap, "%s%s%s", w->server ? "" : w->name, w->server ? "" : "/", devices);
    for (char *at = out; *at; at++)
        if (*at == ',')
            *at = '+';
}

static enum status store_assign(struct core *c, const struct decision *d, struct err *e)
{
    struct run *r = d->run;
    char key[DEVICES_BYTES + NAME_BYTES];
    queue_key(d->worker, d->devices, key, sizeof key);
    run_touch(c, r);
    /* A default of ours caps nothing on a card that the run has for itself. */
    if (!d->by_memory && r->now.source == BUDGET_MEASURED) {
        TRY(store_run_budget(c->store, r->id, 0, BUDGET_NONE, "", false, e));
        r->now.budget_bytes = 0;
        r->now.source = BUDGET_NONE;
        r->now.budget_run[0] = 0;
        r->now.raised = false;
    }
    TRY(store_run_assign(c->store, r->id, r->now.epoch + 1, d->worker->name, d->devices, key, e));
    r->now.epoch++;
    r->now.sequence = 0;
    r->now.state = RUN_ASSIGNED;
    r->now.worker = d->worker;
    snprintf(r->now.devices, sizeof r->now.devices, "%s", d->devices);
    return ST_OK;
}

static enum status store_failure(struct core *c, const struct decision *d, struct err *e)
{
    return run_finish(
        c, d->run,
        &(struct run_outcome){
            .state = RUN_FAILED,
            .cause = d->too_large ? CAUSE_BUDGET_TOO_LARGE : CAUSE_CANNOT_CAP,
            .error = d->text},
        e);
}

/* Memory follows: the run has a card, and its agent an order. */
static void begin_start(struct core *c, const struct decision *d)
{
    struct run *r = d->run;
    run_dequeue(c, r);
    run_live_add(c, r);
    r->handed = false;
    r->kill_ns = r->limit_ns = 0;
    r->start_ns = c->now.now_ns + (int64_t)(c->config.start_s * 1e9);
    if (d->worker->one_shot)
        d->worker->spent = true;
    order_push(c, d->worker, ORDER_START, r, r->now.epoch);
    if (r->interactive)
        core_dirty(c); /* the planner did not give this away */
    note(c, "run", r->run_id);
    c->note_runs = c->note_workers = true;
}

/* True when everything is stored and ordered. */
static bool carry_out(struct core *c, struct decisions *d)
{
    if (!d->list.n)
        return true;
    struct err e = {0};
    enum status st = tx_begin(c, &e);
    if (st == ST_OK) {
        for (size_t i = 0; st == ST_OK && i < d->list.n; i++) {
            struct decision *x = &d->list.data[i];
            st = x->worker ? store_assign(c, x, &e) : store_failure(c, x, &e);
        }
        st = tx_end(c, st, &e);
    }
    for (size_t i = 0; i < d->list.n; i++) {
        if (st == ST_OK && d->list.data[i].worker)
            begin_start(c, &d->list.data[i]);
        mem_free(d->list.data[i].text);
    }
    vec_release(&d->list);
    if (st != ST_OK)
        log_warn("starts could not be stored: %s", e.text);
    return st == ST_OK;
}

/* ---- canvas ---- */

static bool tab_is_free(const struct core *c, const struct run *r)
{
    for (size_t i = 0; i < c->live.n; i++)
        if (c->live.data[i]->interactive && *r->tab && str_eq(c->live.data[i]->tab, r->tab))
            return false;
    return true;
}

static void canvas_pass(struct core *c, struct decisions *d)
{
    struct worker *w = worker_by_name(c, "local");
    for (size_t i = 0; i < c->canvas.n; i++) {
        struct run *r = c->canvas.data[i];
        struct decision x = {.run = r, .worker = w};
        if (w && w->connected && w->server) {
            if (!tab_is_free(c, r))
                continue; /* the run before it is about to go */
            snprintf(x.devices, sizeof x.devices, "%s", r->wanted);
        } else if (r->start_ns && c->now.now_ns >= r->start_ns) {
            x.worker = NULL;
            x.text = mem_strdup("this server's own worker is not there");
        } else {
            continue;
        }
        vec_push(&d->list, x);
    }
}

/* ---- the pass ---- */

static void fold(struct core *c, struct decisions *d, size_t from)
{
    struct place_result p;
    for (size_t i = from; i < c->waiting.n; i++) {
        const struct slot *s = &c->waiting.data[i];
        if (!s->run)
            continue;
        enum place_outcome outcome = place_next(c->place, s->class, s->id, s->run->run_id, &p);
        if (outcome != PLACE_WAITS)
            decide(c, d, s->run, outcome, &p);
        c->folded = s->id;
    }
}

/* Of the runs that came after the last pass, the first. */
static size_t first_new(const struct core *c)
{
    size_t i = c->waiting.n;
    while (i && (!c->waiting.data[i - 1].run || c->waiting.data[i - 1].id > c->folded))
        i--;
    return i;
}

/* Idle canvas children on cards that a run was given or waits for. */
static void send_away_warm(struct core *c)
{
    size_t n;
    const size_t *at = place_evictions(c->place, &n);
    for (size_t i = 0; i < n; i++) {
        struct warm *x = at[i] >= c->n_world_live && at[i] - c->n_world_live < c->warm.n
                             ? &c->warm.data[at[i] - c->n_world_live]
                             : NULL;
        if (!x || !*x->tab)
            continue;
        order_push(c, x->worker, ORDER_EVICT, NULL, 0);
        if (!x->worker->orders.n)
            continue;
        json_t *body = json_object();
        json_put_str(body, "tab", x->tab);
        json_put_str(body, "what", "child");
        x->worker->orders.data[x->worker->orders.n - 1].body = body;
        x->tab[0] = 0; /* said */
    }
}

/* Whether this is news: the worker itself, or the one whose limit holds, has just connected. */
static bool limit_is_news(const struct core *c, const struct worker *w, const char *limit_by)
{
    bool news = w->limits_unsaid;
    for (size_t i = 0; !news && i < c->workers.n; i++)
        news = c->workers.data[i]->limits_unsaid && str_eq(c->workers.data[i]->name, limit_by);
    return news;
}

/* An override that another provider of the same card lowers is told once per connection (R9). */
static void say_limits(struct core *c)
{
    struct place_card p;
    bool news = false;
    for (size_t i = 0; i < c->workers.n; i++)
        news = news || c->workers.data[i]->limits_unsaid;
    for (size_t i = 0; news && i < c->workers.n; i++) {
        const struct worker *w = c->workers.data[i];
        for (size_t k = 0; w->connected && k < w->cards.n; k++) {
            const char *device = w->cards.data[k].device;
            if (place_card_get(c->place, w->name, device, &p) && p.limit > 0 &&
                p.own_limit > p.limit && p.limit_by && *p.limit_by &&
                limit_is_news(c, w, p.limit_by))
                log_warn(
                    "the limit %lld of %s/%s is lowered to %lld, that of %s for the same card",
                    (long long)p.own_limit, w->name, device, (long long)p.limit, p.limit_by);
        }
    }
    for (size_t i = 0; i < c->workers.n; i++)
        c->workers.data[i]->limits_unsaid = false;
}

bool core_pass_due(const struct core *c)
{
    if (c->stopped || c->dirty)
        return !c->stopped;
    for (size_t i = c->waiting.n; i > 0; i--) /* places of runs that have left are nothing new */
        if (c->waiting.data[i - 1].run)
            return c->waiting.data[i - 1].id > c->folded;
    return false;
}

void core_pass(struct core *c)
{
    struct decisions d = {0};
    size_t from = 0;
    if (c->stopped)
        return;
    int64_t began = c->config.pass_clock ? c->config.pass_clock() : 0;
    canvas_pass(c, &d);
    if (!carry_out(c, &d)) {
        core_dirty(c);
        c->retry_ns = c->now.now_ns + SECOND_NS;
        return;
    }
    if (c->dirty || !c->passed) { /* canvas runs that began just now are on their cards */
        c->folded = 0;
        struct arena a;
        struct place_world w;
        arena_init(&a);
        world_build(c, &a, &w);
        place_begin(c->place, &w);
        arena_release(&a);
    } else {
        from = first_new(c);
    }
    c->dirty = c->stale = false;
    c->passed = true;
    fold(c, &d, from);
    send_away_warm(c);
    if (from == 0)
        say_limits(c);
    c->figures.passes++;
    if (c->config.pass_clock) { /* half of the time is left to others */
        int64_t took = c->config.pass_clock() - began;
        c->pass_ns = c->now.now_ns + 2 * took;
        if (took > c->figures.pass_ns_max)
            c->figures.pass_ns_max = took;
    }
    if (!carry_out(c, &d)) {
        core_dirty(c);
        c->retry_ns = c->now.now_ns + SECOND_NS;
    }
}

void core_world_fresh(struct core *c, bool exact)
{
    if (!c->passed || c->stale || (exact && core_pass_due(c)))
        core_pass(c);
}

int64_t core_wake_ns(const struct core *c)
{
    return c->passed ? place_wake_ns(c->place) : INT64_MAX;
}
