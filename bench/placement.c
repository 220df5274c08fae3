/* placement.c - one placement pass over 100,000 waiting runs and 64 cards. Run by hand. */
#include "server/placement.h"

#include "base/env.h"
#include "base/mem.h"
#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>

#define GIB ((int64_t)1 << 30)

enum { WAITING = 100000, WORKERS = 8, CARDS = 8, PASSES = 40 };

struct fleet {
    struct place_worker workers[WORKERS];
    struct place_device devices[WORKERS][CARDS + 1];
    struct place_live live[WORKERS * CARDS];
    char names[WORKERS][16], uuids[WORKERS][CARDS][16], ids[WORKERS * CARDS][40];
    size_t n_live;
};

static const char *const cards[CARDS] = {"cuda:0", "cuda:1", "cuda:2", "cuda:3",
                                         "cuda:4", "cuda:5", "cuda:6", "cuda:7"};

/* Every card has a run of 16 GiB on it; odd ones are shared by memory. */
static void fleet_make(struct fleet *f)
{
    for (size_t i = 0; i < WORKERS; i++) {
        (void)snprintf(f->names[i], sizeof f->names[i], "box-%zu", i);
        f->workers[i] = (struct place_worker){
            .name = f->names[i],
            .pool = "",
            .devices = f->devices[i],
            .n_devices = CARDS + 1,
            .connected = true,
            .seen = true,
            .can_cap = true};
        f->devices[i][CARDS] = (struct place_device){.name = "cpu", .kind = "cpu", .uuid = ""};
        for (size_t j = 0; j < CARDS; j++) {
            (void)snprintf(f->uuids[i][j], sizeof f->uuids[i][j], "GPU-%zu-%zu", i, j);
            f->devices[i][j] = (struct place_device){
                .name = cards[j],
                .kind = "cuda",
                .uuid = f->uuids[i][j],
                .total_bytes = 24 * GIB,
                .free_bytes = 8 * GIB,
                .shared = j % 2 == 1};
            size_t k = f->n_live++;
            (void)snprintf(f->ids[k], sizeof f->ids[k], "%08zx", k);
            f->live[k] = (struct place_live){
                .run = (int64_t)k + 1,
                .run_id = f->ids[k],
                .worker = f->names[i],
                .devices = {cards[j]},
                .uuids = {f->uuids[i][j]},
                .n_devices = 1,
                .budget_bytes = 16 * GIB,
                .started = true};
        }
    }
}

/* A request of one of `kinds` sorts, one in eight under `any`, one in ten a set; budgets that do
 * not fit beside what runs. */
static struct place_class *
some_class(struct place *p, const struct fleet *f, struct rng *r, uint64_t budgets)
{
    struct place_request q = {.worker = f->names[rng_below(r, WORKERS)], .pool = ""};
    q.budget_bytes = 8 * GIB + (int64_t)rng_below(r, budgets) * 4096;
    q.n_devices = 1;
    q.devices[0] = cards[rng_below(r, CARDS)];
    if (rng_below(r, 8) == 0) {
        q.target = PLACE_ANY;
        q.devices[0] = "cuda";
    } else if (rng_below(r, 10) == 0) {
        size_t from = rng_below(r, CARDS - 1);
        q.n_devices = 2;
        q.devices[0] = cards[from];
        q.devices[1] = cards[from + 1];
    }
    return place_class_get(p, &q);
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void measure(const struct fleet *f, uint64_t budgets, const char *about)
{
    static struct place_class *waiting[WAITING];
    static int64_t took_ns[PASSES];
    struct place *p = place_new();
    struct place_limits *limits = place_limits_new("", 1, 2, NULL);
    struct rng r;
    rng_init(&r, 1, 0, 0);
    for (size_t i = 0; i < WAITING; i++)
        waiting[i] = some_class(p, f, &r, budgets);
    size_t waits = 0;
    for (int k = 0; k < PASSES; k++) {
        struct place_world w = {
            .workers = f->workers,
            .n_workers = WORKERS,
            .live = f->live,
            .n_live = f->n_live - (k % 2 ? 1 : 0), /* one card became free */
            .limits = limits,
            .context_bytes = 768 * (GIB / 1024),
            .reserve_ns = 1000,
            .now_ns = k};
        int64_t begun = clock_ns();
        place_begin(p, &w);
        for (size_t i = 0; i < WAITING; i++) {
            struct place_result out;
            waits += place_next(p, waiting[i], (int64_t)i + 1000, "0123456789abcdef", &out) ==
                     PLACE_WAITS;
        }
        took_ns[k] = clock_ns() - begun;
    }
    int64_t begun = clock_ns();
    struct str text;
    str_init(&text);
    for (size_t i = 0; i < 1000; i++) {
        str_clear(&text);
        place_reason(p, waiting[i * (WAITING / 1000)], 0, &text);
    }
    int64_t reason_ns = (clock_ns() - begun) / 1000;
    qsort(took_ns, PASSES, sizeof *took_ns, by_value);
    printf(
        "%-42s pass median %.2f ms, longest %.2f ms; a reason %.1f us; %zu waited\n", about,
        (double)took_ns[PASSES / 2] / 1e6, (double)took_ns[PASSES - 1] / 1e6,
        (double)reason_ns / 1e3, waits / PASSES);
    str_release(&text);
    for (size_t i = 0; i < WAITING; i++)
        place_class_give(p, waiting[i]);
    place_free(p);
    place_limits_free(limits);
}

int main(void)
{
    static struct fleet f;
    fleet_make(&f);
    printf("%d waiting runs, %d cards of %d workers\n", WAITING, WORKERS * CARDS, WORKERS);
    measure(&f, 4, "4 budgets (about 500 different requests)");
    measure(&f, 100, "100 budgets (about 13,000)");
    measure(&f, 1000000, "every run another budget");
    return 0;
}
