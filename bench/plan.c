/* plan.c - how long the storage planner takes and how close to the bound it comes. Run by hand. */
#include "mem/plan.h"
#include "base/env.h"
#include "base/mem.h"
#include "base/rng.h"
#include "mem/plan_check.h"

#include <stdio.h>
#include <stdlib.h>

struct profile {
    struct mem_plan_buffer *b;
    size_t n;
    struct rng rng;
};

static void add(struct profile *p, int64_t size_bytes, int64_t first, int64_t last)
{
    p->b = mem_resize(p->b, (p->n + 1) * sizeof *p->b);
    p->b[p->n++] = (struct mem_plan_buffer){.size_bytes = size_bytes, .first = first, .last = last};
}

/* Convolutions: saved outputs that shrink with depth, workspace, gradients of outputs. */
static void convolutions(struct profile *p, int layers)
{
    for (int i = 0; i < layers; i++) {
        int64_t out = ((int64_t)8 << 20) >> (5 * i / layers), f = 3 * i, g = 6 * layers - 3 * i;
        add(p, out, f, g + 1);                          /* output, saved */
        add(p, out, f + 1, g);                          /* normalised, saved */
        add(p, out / 8 + 12345, f, f);                  /* workspace */
        add(p, out, g - 2, g + 1);                      /* gradient */
        add(p, out / 4 + 4096, g, g);                   /* workspace */
        add(p, 4096 + 9 * 64 * i, f + 1, g);            /* statistics */
        add(p, 36864 * (i % 7 + 1), g, 6 * layers + 2); /* weight gradient, kept to the update */
    }
}

/* Transformer blocks: many values per block, mixed lives; logits at the turn. */
static void transformer(struct profile *p, int layers)
{
    int64_t h = 1536 * 1024, end = 40 * layers + 10;
    for (int i = 0; i < layers; i++) {
        int64_t f = 20 * i, g = end - 20 * i;
        static const int save[] = {1, 3, 1, 1, 4, 4, 1};
        for (int k = 0; k < 7; k++)
            add(p, h * save[k], f + 2 * k, g - 2 * k);
        for (int k = 0; k < 10; k++)
            add(p, h * (k % 4 + 1) / 2, f + k, f + k + 1 + k % 3);
        for (int k = 0; k < 14; k++)
            add(p, h * (k % 4 + 1), g - 15 + k, g - 14 + k + k % 2);
        for (int k = 0; k < 8; k++)
            add(p, 768 * 768 * 4 * (k % 4 + 1), g - k, end + 2);
    }
    add(p, 50257 * 1024 * 4, 20 * layers, 20 * layers + 9);
    add(p, 50257 * 1024 * 4, 20 * layers + 4, 20 * layers + 9);
}

/* Skips from the way down to the way up, as in a U-Net, forward and backward. */
static void skips(struct profile *p, int layers)
{
    for (int i = 0; i < layers; i++) {
        int64_t size = ((int64_t)16 << 20) >> (6 * i / layers), up = 2 * layers - i;
        add(p, size, i, 4 * layers - i);
        add(p, size * 2, up, 2 * layers + i + 1);
        add(p, size * 3 / 2, i, i + 1);
        add(p, size * 3, up, up + 1);
        add(p, size, 2 * layers + i, 2 * layers + i + 2);
    }
}

static void noise(struct profile *p, int n)
{
    for (int i = 0; i < n; i++) {
        int64_t from = (int64_t)rng_below(&p->rng, (uint64_t)n);
        int64_t life = (int64_t)rng_below(&p->rng, (uint64_t)1 << rng_below(&p->rng, 11));
        add(p, 1 + (int64_t)rng_below(&p->rng, (uint64_t)1 << (8 + rng_below(&p->rng, 20))), from,
            from + life);
    }
}

static void measure(const char *name, void (*make)(struct profile *, int), int size)
{
    struct profile p = {0};
    struct mem_plan plan;
    struct err e = {0};
    rng_init(&p.rng, 1, 0, 0);
    make(&p, size);
    int64_t begin = clock_ns();
    if (mem_plan_make(p.b, p.n, NULL, &plan, &e) != ST_OK) {
        (void)fprintf(stderr, "%s: %s\n", name, e.text);
        exit(1);
    }
    double plan_ms = (double)(clock_ns() - begin) / 1e6;
    begin = clock_ns();
    if (mem_plan_check(p.b, p.n, &plan, &e) != ST_OK) {
        (void)fprintf(stderr, "%s: %s\n", name, e.text);
        exit(1);
    }
    double check_ms = (double)(clock_ns() - begin) / 1e6;
    (void)printf(
        "%-14s %6zu buffers  plan %8.2f ms  check %6.2f ms  peak %10.2f MiB  %+7.3f%%  %s\n", name,
        p.n, plan_ms, check_ms, (double)plan.peak_bytes / 0x1p20,
        100.0 * ((double)plan.peak_bytes / (double)plan.lower_bound_bytes - 1.0),
        mem_plan_strategy_text(plan.strategy));
    mem_plan_release(&plan);
    mem_free(p.b);
}

int main(void)
{
    static const int sizes[] = {4, 20, 50, 150, 400};
    for (int i = 0; i < 5; i++)
        measure("convolutions", convolutions, sizes[i]);
    for (int i = 0; i < 5; i++)
        measure("transformer", transformer, sizes[i]);
    for (int i = 0; i < 5; i++)
        measure("skips", skips, sizes[i]);
    for (int i = 0; i < 4; i++)
        measure("noise", noise, sizes[i] * sizes[i]);
    measure("noise", noise, 10000);
    return 0;
}
