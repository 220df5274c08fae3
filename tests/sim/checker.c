/* checker.c - judges a history of the simulation (checker.h). */
#include "checker.h"

#include "reference.h"

#include "base/json.h"
#include "base/mem.h"
#include "server/store.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORKERS = 64, DEVICES = 12, SET = PLACE_SET_MAX };

/* ---- the model ---- */

struct model_worker {
    char name[24], pool[16], instance[40];
    struct place_device devices[DEVICES];
    char names[DEVICES][16], kinds[DEVICES][8], uuids[DEVICES][24];
    size_t n_devices;
    VEC(char *) shared; /* UUIDs that are set to shared */
    bool server, same_host, connected, seen, draining, disabled, one_shot, spent, can_cap;
    int strays; /* it came with live runs that are nobody's: heartbeats until it takes others */
    int64_t contact_ns;
};
struct model_run {
    char run_id[33], state[16], status[16], worker[24], target[24], pool[16], key[16], cause[24];
    char devices[SET][16], uuids[SET][24], wanted[SET][16]; /* uuids: as it was given them */
    size_t n_devices, n_wanted;
    int64_t epoch, budget, cursor, mark, lines, written, cancelled_ns;
    bool ran; /* it was told as running in this attempt */
    bool raised, canvas, closed, known, handed, has_pool;
    /* the truth */
    int64_t started_epoch; /* the highest that started */
    bool alive, orphaned;  /* orphaned: its worker was removed under it */
    char host[24];         /* the worker where it lives */
    char how[24];          /* it went */
};
struct checker {
    struct verdict *out;
    struct model_worker workers[WORKERS];
    size_t n_workers;
    VEC(struct model_run) runs; /* in order of submission */
    json_t *index;              /* run id -> place */
    int64_t t, context, reserve_ns, grace_ns, boot_ns, gpu, cpu;
    char limits[128];
    bool up, quiet;
};

#define BROKEN(c, ...) broken((c), __VA_ARGS__)
static void broken(struct checker *c, const char *fmt, ...) PRINTF(2, 3);
static void broken(struct checker *c, const char *fmt, ...)
{
    va_list ap;
    if (c->out->broken)
        return;
    c->out->broken = true;
    int n = snprintf(
        c->out->text, sizeof c->out->text, "line %lld, at %.3f s: ", (long long)c->out->lines,
        (double)c->t / 1e9);
    va_start(ap, fmt);
    (void)vsnprintf(c->out->text + n, sizeof c->out->text - (size_t)n, fmt, ap);
    va_end(ap);
}

static void copy(char *to, size_t cap, const char *from)
{
    (void)snprintf(to, cap, "%s", from);
}

static struct model_worker *worker_of(struct checker *c, const char *name)
{
    for (size_t i = 0; i < c->n_workers; i++)
        if (str_eq(c->workers[i].name, name))
            return &c->workers[i];
    ASSERT(c->n_workers < WORKERS);
    struct model_worker *w = &c->workers[c->n_workers++];
    copy(w->name, sizeof w->name, name);
    w->server = str_eq(name, "local");
    return w;
}

static struct model_run *run_of(struct checker *c, const char *run_id)
{
    json_t *at = json_object_get(c->index, run_id);
    if (at)
        return &c->runs.data[json_integer_value(at)];
    struct model_run r = {0};
    copy(r.run_id, sizeof r.run_id, run_id);
    json_put_i64(c->index, run_id, (int64_t)c->runs.n);
    vec_push(&c->runs, r);
    return &c->runs.data[c->runs.n - 1];
}

static bool is_live(const struct model_run *r)
{
    return str_eq(r->state, "assigned") || str_eq(r->state, "running") ||
           str_eq(r->state, "stopping");
}

static bool is_over(const struct model_run *r)
{
    return str_eq(r->status, "succeeded") || str_eq(r->status, "failed") ||
           str_eq(r->status, "cancelled") || str_eq(r->status, "interrupted");
}

static const char *uuid_of(const struct model_worker *w, const char *device)
{
    for (size_t i = 0; i < w->n_devices; i++)
        if (str_eq(w->names[i], device))
            return w->uuids[i];
    return "";
}

static void take_devices(struct checker *c, struct model_worker *w, const json_t *list, bool fresh)
{
    size_t i;
    json_t *d;
    w->n_devices = 0;
    json_array_foreach((json_t *)(uintptr_t)list, i, d)
    {
        size_t n = w->n_devices++;
        ASSERT(n < DEVICES);
        copy(w->names[n], sizeof w->names[n], json_get_str(d, "device", ""));
        copy(w->kinds[n], sizeof w->kinds[n], json_get_str(d, "kind", ""));
        copy(w->uuids[n], sizeof w->uuids[n], json_get_str(d, "uuid", ""));
        w->devices[n] = (struct place_device){
            .name = w->names[n],
            .kind = w->kinds[n],
            .uuid = w->uuids[n],
            .total_bytes = json_get_i64(d, "total_bytes", 0),
            .free_bytes = json_get_i64(d, "free_bytes", 0),
            .reported_ns = fresh ? c->t : 0};
    }
}

/* ---- the world of the reference ---- */

/* A worker that said nothing for three heartbeats is away; the server looks once a second, so for
 * a moment either is right. */
static bool online(const struct checker *c, const struct model_worker *w, bool *unsure)
{
    int64_t silent = c->t - w->contact_ns;
    if (w->connected && silent > 30 * INT64_C(1000000000) && silent <= 32 * INT64_C(1000000000) &&
        unsure)
        *unsure = true;
    return w->connected && silent <= 30 * INT64_C(1000000000);
}

struct made_world {
    struct place_world w;
    struct place_worker workers[WORKERS];
    struct place_live *live;
    bool unsure;
};

static void make_workers(struct checker *c, struct made_world *m)
{
    for (size_t i = 0; i < c->n_workers; i++) {
        struct model_worker *w = &c->workers[i];
        for (size_t j = 0; j < w->n_devices; j++) {
            w->devices[j].shared = false;
            for (size_t k = 0; k < w->shared.n; k++)
                w->devices[j].shared =
                    w->devices[j].shared || str_eq(w->shared.data[k], w->uuids[j]);
        }
        m->workers[i] = (struct place_worker){
            .name = w->name,
            .pool = w->pool,
            .devices = w->devices,
            .n_devices = w->n_devices,
            .server = w->server,
            .same_host = w->same_host || w->server,
            .connected = online(c, w, &m->unsure),
            .seen = w->seen,
            .draining = w->draining,
            .disabled = w->disabled,
            .adopting = w->strays > 0,
            .one_shot = w->one_shot,
            .spent = w->spent,
            .can_cap = w->can_cap};
    }
}

static void make_live(struct checker *c, const struct model_run *r, struct place_live *out)
{
    *out = (struct place_live){
        .run = 1 + (int64_t)(r - c->runs.data),
        .run_id = r->run_id,
        .worker = r->worker,
        .n_devices = r->n_devices,
        .budget_bytes = r->budget,
        .lane = r->canvas ? PLACE_CANVAS : PLACE_QUEUED,
        .started = r->ran};
    for (size_t k = 0; k < r->n_devices; k++) {
        out->devices[k] = r->devices[k];
        out->uuids[k] = r->uuids[k];
    }
}

/* Without one run, where its own admission is judged. */
static void make_world(struct checker *c, const struct model_run *without, struct made_world *m)
{
    memset(m, 0, sizeof *m);
    make_workers(c, m);
    m->live = mem_alloc((c->runs.n + 1) * sizeof *m->live);
    size_t n = 0;
    for (size_t i = 0; i < c->runs.n; i++)
        if (&c->runs.data[i] != without && is_live(&c->runs.data[i]))
            make_live(c, &c->runs.data[i], &m->live[n++]);
    m->w = (struct place_world){
        .workers = m->workers,
        .n_workers = c->n_workers,
        .live = m->live,
        .n_live = n,
        .context_bytes = c->context,
        .reserve_ns = INT64_MAX,
        .now_ns = c->t};
}

/* ---- admission (P4, P5, P6, P9, P11) ---- */

static bool asks_same(const struct model_run *a, const struct model_run *b)
{
    if (!str_eq(a->target, b->target) || a->has_pool != b->has_pool || !str_eq(a->pool, b->pool) ||
        a->n_wanted != b->n_wanted || a->budget != b->budget || a->canvas || b->canvas)
        return false;
    for (size_t i = 0; i < a->n_wanted; i++)
        if (!str_eq(a->wanted[i], b->wanted[i]))
            return false;
    return true;
}

static void judge_card(
    struct checker *c, const struct model_run *r, const struct made_world *m, size_t k, long *cards,
    int64_t budget)
{
    struct ref_card card;
    if (!ref_card(&m->w, c->limits, c->gpu, c->cpu, r->worker, r->devices[k], &card)) {
        BROKEN(
            c, "promise-P4: run %s was given %s, which %s does not offer", r->run_id, r->devices[k],
            r->worker);
        return;
    }
    int64_t before = 0;
    cards[k] = card.id;
    for (size_t i = 0; i < k; i++)
        before += cards[i] == card.id;
    if (!card.shared || card.limit > 0) {
        if (card.used + before >= card.limit)
            BROKEN(
                c, "promise-P4: run %s makes %lld on %s of %s, whose limit is %lld", r->run_id,
                (long long)(card.used + before + 1), r->devices[k], r->worker,
                (long long)card.limit);
    }
    if (!card.shared)
        return;
    int64_t cost = (budget + (card.cuda ? c->context : 0)) * (before + 1);
    int64_t by_free = card.free_bytes - card.reserved_bytes;
    int64_t by_total = card.total_bytes - card.reserved_bytes - card.running_bytes;
    if (budget <= 0 || card.alone)
        BROKEN(
            c, "promise-P5: run %s goes to the shared card %s of %s %s", r->run_id, r->devices[k],
            r->worker, budget <= 0 ? "without a budget" : "that a run without budget has alone");
    else if (cost > by_free || cost > by_total)
        BROKEN(
            c,
            "promise-P5: run %s costs %lld on %s of %s, which has %lld by free memory and %lld by "
            "its ledger",
            r->run_id, (long long)cost, r->devices[k], r->worker, (long long)by_free,
            (long long)by_total);
}

/* Nobody's processes are on the card but those of runs that the server counts there. */
static void judge_truth(struct checker *c, const struct model_run *r)
{
    for (size_t i = 0; i < c->runs.n; i++) {
        const struct model_run *x = &c->runs.data[i];
        if (!x->alive || x == r || is_live(x) || !is_over(x))
            continue;
        if (x->orphaned && !str_eq(x->host, r->worker))
            continue; /* who removes a worker frees its cards for others at once */
        for (size_t a = 0; a < x->n_devices; a++)
            for (size_t b = 0; b < r->n_devices; b++) {
                const char *u = x->uuids[a];
                if (*u && str_eq(u, r->uuids[b]))
                    BROKEN(
                        c,
                        "promise-P9: run %s is given the card %s, where processes of run %s (%s, "
                        "%s) live",
                        r->run_id, u, x->run_id, x->status, x->cause);
            }
    }
}

static void judge_admission(struct checker *c, const struct model_run *r)
{
    struct made_world m;
    long cards[SET];
    struct model_worker *w = worker_of(c, r->worker);
    c->out->admissions++;
    if (r->cancelled_ns)
        BROKEN(c, "promise-P9: run %s is admitted after its cancel", r->run_id);
    if (r->canvas)
        return;
    make_world(c, r, &m);
    bool unsure = false;
    if (!online(c, w, &unsure) && !unsure)
        BROKEN(
            c, "promise-P11: run %s is admitted to %s, which is not connected", r->run_id,
            r->worker);
    if (w->draining || w->disabled || w->strays || (w->one_shot && w->spent))
        BROKEN(
            c, "promise-P4: run %s is admitted to %s, which takes nothing", r->run_id, r->worker);
    for (size_t k = 0; k < r->n_devices && !m.unsure; k++)
        judge_card(c, r, &m, k, cards, r->budget);
    for (const struct model_run *x = c->runs.data; x < r; x++)
        if (str_eq(x->state, "waiting") && asks_same(x, r))
            BROKEN(
                c, "promise-P6: run %s is admitted before %s, which asks for the same", r->run_id,
                x->run_id);
    judge_truth(c, r);
    w->spent = w->spent || w->one_shot;
    mem_free(m.live);
}

/* ---- rows and events (P3, P10, P12) ---- */

static size_t take_names(const json_t *list, char out[SET][16])
{
    size_t i, n = 0;
    json_t *one;
    json_array_foreach((json_t *)(uintptr_t)list, i, one) if (n < SET)
        copy(out[n++], 16, json_string_value(one));
    return n;
}

/* Nobody is given up before the grace, and what was given up is gone by then. */
static void judge_end(struct checker *c, const struct model_run *r)
{
    const struct model_worker *w = worker_of(c, r->worker);
    /* Its machine may have ended it by itself, and told so later. */
    bool lost = str_eq(r->cause, "agent_lost") && !str_eq(r->how, "agent_lost");
    int64_t since = w->contact_ns > c->boot_ns ? w->contact_ns : c->boot_ns;
    if (lost && c->t - since < c->grace_ns)
        BROKEN(
            c, "promise-P10: run %s is given up %.3f s after the last word of %s", r->run_id,
            (double)(c->t - since) / 1e9, r->worker);
    if ((lost || str_eq(r->cause, "child_lost")) && r->alive)
        BROKEN(
            c, "promise-P10: run %s is given up (%s), and its processes live on %s", r->run_id,
            r->cause, r->host);
}

static void on_row(struct checker *c, const json_t *line)
{
    struct model_run *r = run_of(c, json_get_str(line, "run_id", ""));
    const char *status = json_get_str(line, "status", "");
    if (is_over(r) && !str_eq(r->status, status))
        BROKEN(c, "promise-P3: run %s was %s and is now %s", r->run_id, r->status, status);
    int64_t epoch = json_get_i64(line, "epoch", 0), before = r->epoch;
    if (epoch < before)
        BROKEN(
            c, "promise-P12: the epoch of run %s goes from %lld back to %lld", r->run_id,
            (long long)before, (long long)epoch);
    copy(r->state, sizeof r->state, json_get_str(line, "state", ""));
    copy(r->status, sizeof r->status, status);
    copy(r->worker, sizeof r->worker, json_get_str(line, "worker", ""));
    copy(r->target, sizeof r->target, json_get_str(line, "target", ""));
    copy(r->cause, sizeof r->cause, json_get_str(line, "cause", ""));
    const json_t *pool = json_object_get(line, "pool"), *budget = json_object_get(line, "budget");
    r->has_pool = json_is_string(pool);
    copy(r->pool, sizeof r->pool, r->has_pool ? json_string_value(pool) : "");
    r->n_wanted = take_names(json_object_get(line, "requested_devices"), r->wanted);
    r->n_devices = take_names(json_object_get(line, "devices"), r->devices);
    r->budget = json_get_i64(budget, "bytes", 0);
    r->raised = json_get_bool(budget, "raised", false);
    r->canvas = str_eq(json_get_str(line, "lane", ""), "interactive");
    r->known = true;
    r->epoch = epoch;
    if (epoch > before) {
        r->mark = r->lines = 0;
        for (size_t i = 0; i < r->n_devices; i++)
            copy(r->uuids[i], sizeof r->uuids[i], uuid_of(worker_of(c, r->worker), r->devices[i]));
        r->handed = r->ran = false;
        if (!is_over(r))
            judge_admission(c, r);
    }
    r->ran = r->ran || str_eq(r->state, "running");
    if (is_over(r))
        judge_end(c, r);
}

static bool is_last(const char *type)
{
    return str_eq(type, "execution_complete") || str_eq(type, "execution_error") ||
           str_eq(type, "execution_stopped");
}

static void on_event(struct checker *c, const json_t *line)
{
    struct model_run *r = run_of(c, json_get_str(line, "run_id", ""));
    const char *type = json_get_str(line, "type", ""), *text = json_get_str(line, "text", "");
    int64_t cursor = json_get_i64(line, "cursor", 0);
    if (cursor != r->cursor + 1)
        BROKEN(
            c, "promise-P10: event %lld of run %s comes behind %lld", (long long)cursor, r->run_id,
            (long long)r->cursor);
    r->cursor = cursor;
    if (r->closed)
        BROKEN(c, "promise-P3: run %s has an event %s behind its last", r->run_id, type);
    r->closed = is_last(type);
    if (!str_eq(type, "log"))
        return;
    char *rest;
    int64_t epoch = *text == 'e' ? strtoll(text + 1, &rest, 10) : -1;
    int64_t mark = epoch >= 0 && rest[0] == ' ' && rest[1] == 'n' ? strtoll(rest + 2, NULL, 10) : 0;
    if (epoch != r->epoch)
        BROKEN(
            c, "promise-P12: run %s in its attempt %lld has the event \"%s\"", r->run_id,
            (long long)r->epoch, text);
    else if (mark <= r->mark)
        BROKEN(
            c, "promise-P10: run %s has the event \"%s\" behind number %lld", r->run_id, text,
            (long long)r->mark);
    r->mark = mark;
    r->lines++;
}

/* ---- the truth on machines (P2, P9) ---- */

static void on_handed(struct checker *c, const json_t *line)
{
    struct model_run *r = run_of(c, json_get_str(line, "run_id", ""));
    int64_t epoch = json_get_i64(line, "epoch", 0);
    if (is_over(r) || epoch != r->epoch)
        BROKEN(
            c,
            "promise-P9: a start of run %s, epoch %lld, is handed out, and it is %s in epoch %lld",
            r->run_id, (long long)epoch, r->status, (long long)r->epoch);
    if (r->cancelled_ns && !r->handed)
        BROKEN(c, "promise-P9: a start of run %s is handed out after its cancel", r->run_id);
    r->handed = true;
}

static void on_process(struct checker *c, const json_t *line)
{
    struct model_run *r = run_of(c, json_get_str(line, "run_id", ""));
    int64_t epoch = json_get_i64(line, "epoch", 0);
    c->out->starts++;
    if (r->alive)
        BROKEN(
            c, "promise-P2: run %s starts on %s while it lives on %s", r->run_id,
            json_get_str(line, "worker", ""), r->host);
    if (epoch <= r->started_epoch)
        BROKEN(c, "promise-P2: run %s starts in epoch %lld again", r->run_id, (long long)epoch);
    r->started_epoch = epoch;
    r->alive = true;
    copy(r->host, sizeof r->host, json_get_str(line, "worker", ""));
}

static void on_gone(struct checker *c, const json_t *line)
{
    struct model_run *r = run_of(c, json_get_str(line, "run_id", ""));
    r->alive = false;
    copy(r->how, sizeof r->how, json_get_str(line, "how", ""));
    r->written = json_get_i64(line, "lines", 0); /* events that it wrote */
}

/* ---- agents and people ---- */

static void on_call(struct checker *c, const json_t *line)
{
    struct model_worker *w = worker_of(c, json_get_str(line, "worker", ""));
    const char *call = json_get_str(line, "call", "");
    int64_t status = json_get_i64(line, "status", 0);
    if (str_eq(call, "connect") && status != ST_OK)
        return;
    if (status == ST_GONE || status == ST_DENIED)
        return;
    w->connected = true;
    w->contact_ns = c->t;
    if (str_eq(call, "leave"))
        w->connected = false;
    if (json_object_get(line, "devices") && status == ST_OK)
        take_devices(c, w, json_object_get(line, "devices"), true);
    if (!str_eq(call, "connect")) {
        w->strays -= w->strays > 0 && json_object_get(line, "devices"); /* a heartbeat */
        return;
    }
    const char *instance = json_get_str(line, "instance", "");
    if (!str_eq(w->instance, instance))
        w->spent = json_get_bool(line, "has_runs", false);
    copy(w->instance, sizeof w->instance, instance);
    copy(w->pool, sizeof w->pool, json_get_str(line, "pool", ""));
    w->same_host = json_get_bool(line, "same_host", false);
    w->one_shot = json_get_bool(line, "one_shot", false);
    w->can_cap = json_get_bool(line, "can_cap", false);
    w->strays = json_get_bool(line, "strays", false) ? 2 : 0;
    w->seen = true;
}

static void forget_modes(struct model_worker *w)
{
    for (size_t i = 0; i < w->shared.n; i++)
        mem_free(w->shared.data[i]);
    w->shared.n = 0;
}

static void on_mode(struct checker *c, const json_t *line)
{
    struct model_worker *w = worker_of(c, json_get_str(line, "worker", ""));
    const char *uuid = json_get_str(line, "uuid", "");
    for (size_t i = 0; i < w->shared.n; i++)
        if (str_eq(w->shared.data[i], uuid)) {
            mem_free(w->shared.data[i]);
            w->shared.data[i] = w->shared.data[--w->shared.n];
            break;
        }
    if (json_get_bool(line, "shared", false))
        vec_push(&w->shared, mem_strdup(uuid));
}

static void on_boot(struct checker *c, const json_t *line)
{
    copy(c->limits, sizeof c->limits, json_get_str(line, "limits", ""));
    c->gpu = json_get_i64(line, "gpu", 1);
    c->cpu = json_get_i64(line, "cpu", 2);
    c->context = json_get_i64(line, "context", 0);
    c->reserve_ns = json_get_i64(line, "reserve_ns", 0);
    c->grace_ns = json_get_i64(line, "grace_ns", 0);
    c->boot_ns = c->t;
    c->up = true;
    c->out->restarts++;
    for (size_t i = 0; i < c->n_workers; i++) {
        struct model_worker *w = &c->workers[i];
        w->connected = w->seen = w->same_host = false; /* told anew with the next hello */
        w->instance[0] = 0;
    }
    struct model_worker *own = worker_of(c, "local");
    take_devices(c, own, json_object_get(line, "devices"), false);
    own->seen = own->can_cap = own->same_host = true;
}

static void on_remove(struct checker *c, const json_t *line)
{
    struct model_worker *w = worker_of(c, json_get_str(line, "worker", ""));
    forget_modes(w);
    for (size_t i = 0; i < c->runs.n; i++)
        if (c->runs.data[i].alive && str_eq(c->runs.data[i].host, w->name))
            c->runs.data[i].orphaned = true;
    w->connected = w->seen = w->draining = w->disabled = w->spent = false;
    w->n_devices = 0;
    w->instance[0] = 0;
}

/* ---- snapshots (P5, P14) ---- */

static void judge_figures(struct checker *c, const struct made_world *m, const json_t *cards)
{
    size_t i;
    json_t *one;
    json_array_foreach((json_t *)(uintptr_t)cards, i, one)
    {
        struct ref_card card;
        const char *worker = json_get_str(one, "worker", ""),
                   *device = json_get_str(one, "device", "");
        if (!ref_card(&m->w, c->limits, c->gpu, c->cpu, worker, device, &card))
            continue;
        int64_t used = json_get_i64(one, "used", 0), limit = json_get_i64(one, "limit", 0);
        if (used != card.used || limit != card.limit)
            BROKEN(
                c, "promise-P4: %s of %s shows %lld of %lld slots used, a recount %lld of %lld",
                device, worker, (long long)used, (long long)limit, (long long)card.used,
                (long long)card.limit);
        int64_t reserved = json_get_i64(one, "reserved", -1),
                running = json_get_i64(one, "running", -1);
        if (!card.shared || reserved < 0 || !json_get_bool(one, "shared", false))
            continue;
        if (reserved != card.reserved_bytes || running != card.running_bytes)
            BROKEN(
                c,
                "promise-P5: %s of %s shows %lld reserved and %lld running, a recount %lld and "
                "%lld",
                device, worker, (long long)reserved, (long long)running,
                (long long)card.reserved_bytes, (long long)card.running_bytes);
    }
}

static void make_request(const struct model_run *r, struct place_request *out)
{
    *out = (struct place_request){
        .target = r->has_pool                ? PLACE_POOL
                  : str_eq(r->target, "any") ? PLACE_ANY
                                             : PLACE_NAMED,
        .worker = r->target,
        .pool = r->pool,
        .n_devices = r->n_wanted,
        .budget_bytes = r->budget,
        .raised = r->raised};
    for (size_t i = 0; i < r->n_wanted; i++)
        out->devices[i] = r->wanted[i];
}

/* R19 lets a card wait for one run: then the reason names a run that has waited long enough. */
static bool excused(struct checker *c, const struct model_run *r, const char *reason)
{
    const char *run = strstr(reason, "takes nothing new until run ");
    if (!run)
        return strstr(reason, "the card takes nothing new until it fits") != NULL;
    run += strlen("takes nothing new until run ");
    for (size_t i = 0; i < c->runs.n; i++)
        if (strncmp(c->runs.data[i].run_id, run, 8) == 0)
            return &c->runs.data[i] < r && str_eq(c->runs.data[i].state, "waiting");
    return false;
}

static void judge_reason(
    struct checker *c, const struct model_run *r, const struct ref_answer *a, const char *reason)
{
    c->out->reasons++;
    if (excused(c, r, reason))
        return;
    if (a->outcome != PLACE_WAITS)
        BROKEN(c, "promise-P14: run %s could be placed, and is told: %s", r->run_id, reason);
    else if (!strstr(reason, ref_words(a->why)))
        BROKEN(
            c, "promise-P14: run %s waits for reason %d (\"%s\"), and is told: %s", r->run_id,
            (int)a->why, ref_words(a->why), reason);
}

static void on_snapshot(struct checker *c, const json_t *line)
{
    struct made_world m;
    size_t i, n;
    json_t *one;
    const json_t *waiting = json_object_get(line, "waiting");
    c->out->snapshots++;
    make_world(c, NULL, &m);
    if (m.unsure) {
        mem_free(m.live);
        return;
    }
    judge_figures(c, &m, json_object_get(line, "cards"));
    n = json_array_size(waiting);
    struct ref_run *runs = mem_alloc((n + 1) * sizeof *runs);
    struct place_request *requests = mem_alloc((n + 1) * sizeof *requests);
    struct ref_answer *answers = mem_alloc((n + 1) * sizeof *answers);
    struct ref_heads *heads = mem_alloc(sizeof *heads);
    bool *evict = mem_alloc(m.w.n_live + 1);
    const char **reasons = mem_alloc((n + 1) * sizeof *reasons);
    size_t k = 0;
    bool closed = false;
    for (size_t at = 0; at < c->runs.n; at++) {
        const struct model_run *r = &c->runs.data[at];
        if (r->canvas || !str_eq(r->state, "waiting"))
            continue;
        const char *reason = NULL;
        json_array_foreach(
            (json_t *)(uintptr_t)waiting, i,
            one) if (str_eq(json_get_str(one, "run_id", ""), r->run_id)) reason =
            json_get_str(one, "reason", "");
        if (!reason) {
            BROKEN(c, "promise-P1: run %s waits, and no list has it", r->run_id);
            break;
        }
        make_request(r, &requests[k]);
        runs[k] = (struct ref_run){&requests[k], (int64_t)at + 1, r->run_id};
        closed = closed || strstr(reason, "takes nothing new until it fits");
        reasons[k++] = reason;
    }
    ref_pass(&m.w, c->limits, c->gpu, c->cpu, runs, k, heads, answers, evict);
    /* Where a card is closed for others (R19) what the reference gives away there is not free. */
    for (i = 0; i < k && !closed; i++)
        judge_reason(c, &c->runs.data[runs[i].run - 1], &answers[i], reasons[i]);
    mem_free(runs);
    mem_free(requests);
    mem_free(answers);
    mem_free(heads);
    mem_free(evict);
    mem_free((void *)(uintptr_t)reasons);
    mem_free(m.live);
}

/* ---- ends ---- */

static void on_submitted(struct checker *c, const json_t *line)
{
    const char *key = json_get_str(line, "key", "");
    struct model_run *r = run_of(c, json_get_str(line, "run_id", ""));
    copy(r->key, sizeof r->key, key);
    c->out->runs++;
}

static void on_repeated(struct checker *c, const json_t *line)
{
    const char *key = json_get_str(line, "key", "");
    const struct model_run *r = run_of(c, json_get_str(line, "run_id", ""));
    if (!str_eq(r->key, key))
        BROKEN(c, "promise-P1: key %s names another run when it comes again, %s", key, r->run_id);
}

static void on_cancel(struct checker *c, const json_t *line)
{
    struct model_run *r = run_of(c, json_get_str(line, "run_id", ""));
    if (!r->cancelled_ns)
        r->cancelled_ns = c->t;
}

static void on_final(struct checker *c, const json_t *line)
{
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(line, "runs"), i, one)
    {
        struct model_run *r = run_of(c, json_get_str(one, "run_id", ""));
        const char *status = json_get_str(one, "status", "");
        if (str_eq(status, "lost"))
            BROKEN(c, "promise-P1: run %s was acknowledged and is lost", r->run_id);
        else if (!is_over(r) || !str_eq(status, r->status))
            BROKEN(
                c, "promise-P3: run %s is %s at the end (last told: %s, %s)", r->run_id, status,
                r->status, r->state);
        else if (!r->closed)
            BROKEN(c, "promise-P3: run %s ended without its last event", r->run_id);
        else if (r->alive)
            BROKEN(c, "promise-P9: run %s ended and lives on %s", r->run_id, r->host);
        else if (r->cancelled_ns && !r->started_epoch && !str_eq(status, "cancelled"))
            BROKEN(
                c, "promise-P9: run %s was cancelled, never started, and is %s", r->run_id, status);
        else if (str_eq(status, "succeeded") && r->written != r->lines)
            BROKEN(
                c, "promise-P10: run %s has %lld of its %lld events", r->run_id,
                (long long)r->lines, (long long)r->written);
    }
    if (json_get_i64(line, "total", 0) != (int64_t)c->runs.n)
        BROKEN(
            c, "promise-P8: the server has %lld runs, %zu were acknowledged",
            (long long)json_get_i64(line, "total", 0), c->runs.n);
}

/* ---- the whole ---- */

static void take_line(struct checker *c, const json_t *line)
{
    static const struct {
        const char *name;
        void (*take)(struct checker *c, const json_t *line);
    } kinds[] = {{"boot", on_boot},         {"submitted", on_submitted},
                 {"repeated", on_repeated}, {"cancel", on_cancel},
                 {"mode", on_mode},         {"remove", on_remove},
                 {"call", on_call},         {"row", on_row},
                 {"event", on_event},       {"handed", on_handed},
                 {"process", on_process},   {"gone", on_gone},
                 {"snapshot", on_snapshot}, {"final", on_final}};
    const char *e = json_get_str(line, "e", "");
    c->t = json_get_i64(line, "t", 0);
    c->out->lines++;
    if (str_eq(e, "drain"))
        worker_of(c, json_get_str(line, "worker", ""))->draining = json_get_bool(line, "on", false);
    if (str_eq(e, "enable"))
        worker_of(c, json_get_str(line, "worker", ""))->disabled =
            !json_get_bool(line, "on", false);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (str_eq(kinds[i].name, e))
            kinds[i].take(c, line);
}

enum status check_history(const char *path, struct verdict *out, struct err *e)
{
    FILE *f = fopen(path, "r");
    if (!f)
        return err_errno(e, "could not open \"%s\"", path);
    *out = (struct verdict){0};
    struct checker *c = mem_alloc(sizeof *c);
    c->out = out;
    c->index = json_object();
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    enum status st = ST_OK;
    while (st == ST_OK && !out->broken && (n = getline(&line, &cap, f)) > 0) {
        json_t *one;
        st = json_parse(line, (size_t)n, "history", &one, e);
        if (st != ST_OK)
            break;
        take_line(c, one);
        json_decref(one);
    }
    free(line);
    (void)fclose(f);
    for (size_t i = 0; i < c->n_workers; i++) {
        forget_modes(&c->workers[i]);
        vec_release(&c->workers[i].shared);
    }
    json_decref(c->index);
    vec_release(&c->runs);
    mem_free(c);
    return st;
}
