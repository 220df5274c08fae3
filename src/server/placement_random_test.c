/* placement_random_test.c - thousands of random worlds: placement against the slow reference. */
#include "../sim/reference.h"
#include "server/placement.h"
#include "test.h"

#include "base/mem.h"
#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB ((int64_t)1 << 30)

enum { WORKERS = 5, DEVICES = 5, LIVE = 24, WAITING = 24, PASSES = 6 };

static const char *const card_names[] = {"cuda:0", "cuda:1", "cuda:2", "cuda:3"};
static const char *const uuids[] = {"", "GPU-a", "GPU-b", "GPU-c", "GPU-d"};
static const char *const worker_names[] = {"local", "lab", "gpu-box", "attic", "once"};
static const char *const limit_texts[] = {
    "",
    "cuda:0=2,gpu-box/cuda:1=3",
    "lab/cuda:0=2,cuda:1=4,attic/cuda:0=0",
    "cpu=1,cuda:0=1,lab/cuda:1=2,lab/cuda:1=3",
};

struct random_world {
    struct rng rng;
    struct place_worker workers[WORKERS];
    struct place_device devices[WORKERS][DEVICES];
    struct place_live live[LIVE];
    char live_ids[LIVE][40];
    size_t n_workers, n_live, n_waiting;
    struct place_request requests[WAITING];
    struct place_class *classes[WAITING];
    int64_t runs[WAITING];
    char ids[WAITING][40];
    int64_t next_run, now_ns;
    const char *limits;
    int64_t gpu, cpu;
    struct place *p;
    struct place_limits *parsed;
    struct ref_heads heads;
};

static uint64_t below(struct random_world *w, uint64_t n)
{
    return rng_below(&w->rng, n);
}

static bool one_in(struct random_world *w, uint64_t n)
{
    return below(w, n) == 0;
}

/* Mostly sizes at home on cards, in halves of a GiB so that they meet exactly; now and then what
 * no card ever had. */
static int64_t some_bytes(struct random_world *w, uint64_t gib_max)
{
    static const int64_t odd[] = {INT64_MAX, INT64_MAX - 1, -1, INT64_MIN, 1, GIB - 1, GIB + 1};
    if (one_in(w, 40))
        return odd[below(w, sizeof odd / sizeof odd[0])];
    return (int64_t)below(w, 2 * gib_max + 1) * (GIB / 2);
}

static void some_device(struct random_world *w, size_t i, size_t j)
{
    struct place_device *d = &w->devices[i][j];
    bool cpu = j == 0, mps = !cpu && one_in(w, 12);
    *d = (struct place_device){
        .name = cpu   ? "cpu"
                : mps ? "mps:0"
                      : card_names[(j - 1) % 4],
        .kind = cpu   ? "cpu"
                : mps ? "mps"
                      : "cuda",
        .uuid = cpu || mps ? "" : uuids[below(w, 5)],
        .reported_ns = (int64_t)below(w, 3),
        .shared = one_in(w, 2)};
    if (!mps && !one_in(w, 10))
        d->total_bytes = one_in(w, 30) ? some_bytes(w, 24) : 24 * GIB;
    d->free_bytes = some_bytes(w, 24);
}

static void some_worker(struct random_world *w, size_t i)
{
    w->workers[i] = (struct place_worker){
        .name = worker_names[i],
        .pool = i == 4 ? "night" : "",
        .devices = w->devices[i],
        .n_devices = 1 + below(w, DEVICES),
        .server = i == 0,
        .same_host = i == 0 || one_in(w, 3),
        .connected = !one_in(w, 5),
        .seen = true,
        .draining = one_in(w, 8),
        .disabled = one_in(w, 20),
        .adopting = one_in(w, 15),
        .one_shot = i == 4,
        .can_cap = !one_in(w, 8)};
    for (size_t j = 0; j < DEVICES; j++)
        some_device(w, i, j);
}

static void some_live(struct random_world *w)
{
    size_t i = w->n_live++;
    struct place_live *l = &w->live[i];
    size_t k = below(w, w->n_workers), n = one_in(w, 4) ? 2 : 1;
    *l = (struct place_live){
        .run = ++w->next_run,
        .run_id = w->live_ids[i],
        .worker = w->workers[k].name,
        .budget_bytes = one_in(w, 3) ? 0 : some_bytes(w, 8),
        .lane = one_in(w, 5) ? (one_in(w, 2) ? PLACE_CANVAS : PLACE_WARM) : PLACE_QUEUED,
        .started = !one_in(w, 3)};
    (void)snprintf(w->live_ids[i], sizeof w->live_ids[i], "%08x", (unsigned)l->run);
    if (l->lane == PLACE_WARM)
        n = 1;
    for (size_t j = 0; j < n; j++) {
        const struct place_device *d = &w->devices[k][below(w, DEVICES)];
        l->devices[j] = d->name;
        l->uuids[j] = d->uuid;
    }
    l->n_devices = n;
}

static struct place_request some_request(struct random_world *w)
{
    struct place_request r = {.budget_bytes = one_in(w, 3) ? 0 : some_bytes(w, 12)};
    r.raised = r.budget_bytes > 0 && one_in(w, 6);
    r.target = (enum place_target)(one_in(w, 8) ? PLACE_POOL : below(w, 2));
    r.worker = r.target == PLACE_NAMED ? worker_names[below(w, 5)] : "";
    r.pool = r.target == PLACE_POOL && one_in(w, 2) ? "night" : "";
    uint64_t shape = below(w, 10);
    r.n_devices = 1;
    if (shape == 0)
        r.devices[0] = "cpu";
    else if (shape == 1)
        r.devices[0] = one_in(w, 3) ? "mps" : "mps:0";
    else if (shape < 4)
        r.devices[0] = "cuda";
    else
        r.devices[0] = card_names[below(w, 3)];
    if (shape > 6) {
        r.n_devices = 2 + one_in(w, 4);
        size_t from = below(w, 4);
        for (size_t i = 0; i < r.n_devices; i++)
            r.devices[i] = card_names[(from + i) % 4];
    }
    return r;
}

static void world_make(struct random_world *w, uint64_t seed)
{
    memset(w, 0, sizeof *w);
    rng_init(&w->rng, seed, 7, 0);
    w->n_workers = 1 + below(w, WORKERS);
    for (size_t i = 0; i < w->n_workers; i++)
        some_worker(w, i);
    w->limits = limit_texts[below(w, 4)];
    w->gpu = 1 + (int64_t)one_in(w, 6);
    w->cpu = (int64_t)below(w, 4);
    w->parsed = place_limits_new(w->limits, w->gpu, w->cpu, NULL);
    w->p = place_new();
    for (size_t n = below(w, 8); n > 0; n--)
        some_live(w);
}

static void world_free(struct random_world *w)
{
    for (size_t i = 0; i < w->n_waiting; i++)
        place_class_give(w->p, w->classes[i]);
    place_check(w->p);
    place_free(w->p);
    place_limits_free(w->parsed);
}

static void submit(struct random_world *w)
{
    size_t i = w->n_waiting++;
    w->requests[i] = i > 0 && one_in(w, 2) ? w->requests[below(w, i)] : some_request(w);
    w->classes[i] = place_class_get(w->p, &w->requests[i]);
    w->runs[i] = ++w->next_run;
    (void)snprintf(w->ids[i], sizeof w->ids[i], "%08x-rest", (unsigned)w->runs[i]);
}

static void waiting_remove(struct random_world *w, size_t i)
{
    place_class_give(w->p, w->classes[i]);
    w->n_waiting--;
    for (size_t j = i; j < w->n_waiting; j++) {
        w->requests[j] = w->requests[j + 1];
        w->classes[j] = w->classes[j + 1];
        w->runs[j] = w->runs[j + 1];
        memcpy(w->ids[j], w->ids[j + 1], sizeof w->ids[j]);
    }
}

static void live_remove(struct random_world *w, size_t i)
{
    w->n_live--;
    for (size_t j = i; j < w->n_live; j++) {
        memcpy(w->live_ids[j], w->live_ids[j + 1], sizeof w->live_ids[j]);
        w->live[j] = w->live[j + 1];
        w->live[j].run_id = w->live_ids[j];
    }
}

/* A world that failed, for people. */
static void world_print(const struct random_world *w)
{
    for (size_t i = 0; i < w->n_workers; i++) {
        const struct place_worker *x = &w->workers[i];
        printf(
            "  %s%s%s%s%s%s%s%s\n", x->name, x->server ? " server" : "",
            x->same_host ? " same_host" : "", x->connected ? " connected" : "",
            x->draining ? " draining" : "", x->disabled ? " disabled" : "",
            x->adopting ? " adopting" : "", x->can_cap ? " caps" : "");
        for (size_t j = 0; j < x->n_devices; j++) {
            const struct place_device *d = &x->devices[j];
            printf(
                "    %s %s %s total %lld free %lld at %lld\n", d->name, d->uuid,
                d->shared ? "shared" : "exclusive", (long long)d->total_bytes,
                (long long)d->free_bytes, (long long)d->reported_ns);
        }
    }
    for (size_t i = 0; i < w->n_live; i++) {
        const struct place_live *l = &w->live[i];
        printf(
            "  live %lld on %s %s(%s) %s(%s) budget %lld lane %d%s\n", (long long)l->run, l->worker,
            l->devices[0], l->uuids[0], l->n_devices > 1 ? l->devices[1] : "",
            l->n_devices > 1 ? l->uuids[1] : "", (long long)l->budget_bytes, (int)l->lane,
            l->started ? " started" : "");
    }
    for (size_t i = 0; i < w->n_waiting; i++)
        printf(
            "  waiting %lld: %s budget %lld%s\n", (long long)w->runs[i],
            place_class_queue(w->classes[i]), (long long)w->requests[i].budget_bytes,
            w->requests[i].raised ? " raised" : "");
    printf(
        "  limits \"%s\" gpu %lld cpu %lld now %lld\n", w->limits, (long long)w->gpu,
        (long long)w->cpu, (long long)w->now_ns);
}

/* ---- what must agree ---- */

static void check_reason(struct random_world *w, size_t i, const struct ref_answer *a)
{
    struct str text;
    char device[64];
    str_init(&text);
    place_reason(w->p, w->classes[i], w->runs[i], &text);
    if (!strstr(text.data, ref_words(a->why)))
        world_print(w);
    if (!strstr(text.data, ref_words(a->why)))
        test_fail(
            __FILE__, __LINE__, "run %lld waits for reason %d (\"%s\"), but is told: %s",
            (long long)w->runs[i], (int)a->why, ref_words(a->why), text.data);
    bool of_card = a->why != REF_NOBODY && (a->why < REF_ADOPTING || a->why > REF_DISABLED);
    if (of_card && a->why != REF_TOO_LARGE) {
        const struct place_worker *x = &w->workers[a->at_worker];
        (void)snprintf(
            device, sizeof device, "%s on %s", x->devices[a->at_device].name,
            x->server ? "this server" : x->name);
        if (!strstr(text.data, device))
            world_print(w);
        if (!strstr(text.data, device))
            test_fail(
                __FILE__, __LINE__, "run %lld waits for %s, but is told: %s", (long long)w->runs[i],
                device, text.data);
    }
    str_release(&text);
}

static void check_answer(
    struct random_world *w, size_t i, enum place_outcome got, const struct place_result *r,
    const struct ref_answer *a)
{
    if (got != a->outcome)
        world_print(w);
    if (got != a->outcome)
        test_fail(
            __FILE__, __LINE__, "run %lld: outcome %d, the reference says %d (why %d)",
            (long long)w->runs[i], (int)got, (int)a->outcome, (int)a->why);
    if (got == PLACE_FAILS) {
        CHECK_EQ(r->too_large, a->too_large);
        CHECK(r->text[0]);
    }
    if (got != PLACE_ASSIGNED)
        return;
    CHECK_EQ(r->worker, a->worker);
    CHECK_EQ(r->n_devices, a->n_devices);
    CHECK_EQ(r->by_memory, a->by_memory);
    for (size_t k = 0; k < r->n_devices; k++)
        CHECK_EQ(r->devices[k], a->devices[k]);
}

static void check_evictions(struct random_world *w, const bool *evict)
{
    size_t n, expected = 0;
    const size_t *list = place_evictions(w->p, &n);
    for (size_t i = 0; i < w->n_live; i++)
        expected += evict[i];
    /* A child on two cards is listed for each. */
    bool seen[LIVE] = {false};
    for (size_t i = 0; i < n; i++) {
        CHECK(list[i] < w->n_live && evict[list[i]]);
        seen[list[i]] = true;
    }
    for (size_t i = 0; i < w->n_live; i++)
        CHECK_EQ(seen[i], evict[i]);
    CHECK(n >= expected);
}

static void pass(struct random_world *w)
{
    struct place_world world = {
        .workers = w->workers,
        .n_workers = w->n_workers,
        .live = w->live,
        .n_live = w->n_live,
        .limits = w->parsed,
        .context_bytes = GIB / 2,
        .reserve_ns = 600,
        .now_ns = w->now_ns};
    struct ref_run runs[WAITING];
    struct ref_answer answers[WAITING];
    struct place_result results[WAITING];
    enum place_outcome outcomes[WAITING];
    bool evict[LIVE];
    for (size_t i = 0; i < w->n_waiting; i++)
        runs[i] = (struct ref_run){&w->requests[i], w->runs[i], w->ids[i]};
    ref_pass(&world, w->limits, w->gpu, w->cpu, runs, w->n_waiting, &w->heads, answers, evict);
    place_begin(w->p, &world);
    for (size_t i = 0; i < w->n_waiting; i++) {
        outcomes[i] = place_next(w->p, w->classes[i], w->runs[i], w->ids[i], &results[i]);
        place_check(w->p);
        check_answer(w, i, outcomes[i], &results[i], &answers[i]);
    }
    check_evictions(w, evict);
    for (size_t i = 0; i < w->n_waiting; i++)
        if (outcomes[i] == PLACE_WAITS)
            check_reason(w, i, &answers[i]);
    for (size_t i = w->n_waiting; i-- > 0;) {
        if (outcomes[i] == PLACE_WAITS)
            continue;
        if (outcomes[i] == PLACE_ASSIGNED && w->n_live < LIVE) {
            struct place_live *l = &w->live[w->n_live];
            const struct place_worker *x = &w->workers[results[i].worker];
            memcpy(w->live_ids[w->n_live], w->ids[i], sizeof w->ids[i]);
            *l = (struct place_live){
                .run = w->runs[i],
                .run_id = w->live_ids[w->n_live],
                .worker = x->name,
                .n_devices = results[i].n_devices,
                .budget_bytes = w->requests[i].budget_bytes};
            for (size_t k = 0; k < l->n_devices; k++) {
                l->devices[k] = x->devices[results[i].devices[k]].name;
                l->uuids[k] = x->devices[results[i].devices[k]].uuid;
            }
            w->n_live++;
        }
        waiting_remove(w, i);
    }
}

static void change(struct random_world *w)
{
    w->now_ns += (int64_t)below(w, 500) - (one_in(w, 10) ? 700 : 0);
    while (w->n_live > 0 && one_in(w, 2))
        live_remove(w, below(w, w->n_live));
    for (size_t i = 0; i < w->n_live; i++)
        if (one_in(w, 3))
            w->live[i].started = true;
    if (one_in(w, 3))
        some_worker(w, below(w, w->n_workers));
    if (w->n_live + 1 < LIVE && one_in(w, 3))
        some_live(w);
    if (w->n_waiting > 0 && one_in(w, 4))
        waiting_remove(w, below(w, w->n_waiting));
    while (w->n_waiting + 1 < WAITING && !one_in(w, 5))
        submit(w);
}

TEST_WITHIN(
    placement_random, 300,
    "R5 R7 R8 R9 R19 B5 B8 B12 promise-P4 promise-P6 promise-P14 case-M19: random worlds are "
    "placed, and explained, as the plain reference does")
{
    int worlds = getenv("SNUG_SOAK") ? 300000 : 3000;
    struct random_world *w = mem_alloc(sizeof *w);
    for (int i = 0; i < worlds; i++) {
        world_make(w, test_seed() * 1000003 + (uint64_t)i);
        for (int k = 0; k < PASSES; k++) {
            change(w);
            pass(w);
        }
        world_free(w);
    }
    mem_free(w);
}
