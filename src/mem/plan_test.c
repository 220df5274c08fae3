/* plan_test.c - the planner against brute force, random programs and published problems. */
#include "base/env.h"
#include "base/mem.h"
#include "base/rng.h"
#include "mem/plan.h"
#include "mem/plan_check.h"
#include "plan_exact.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Plans, validates, and returns the plan. */
static struct mem_plan
planned(const struct mem_plan_buffer *b, size_t n, const struct mem_plan_options *o)
{
    struct err e = {0};
    struct mem_plan p;
    CHECK_OK(mem_plan_make(b, n, o, &p, &e), &e);
    CHECK_OK(mem_plan_check(b, n, &p, &e), &e);
    CHECK(p.peak_bytes >= p.lower_bound_bytes);
    return p;
}

/* Reads a MiniMalloc problem (id,lower,upper,size; upper is not included). */
static struct mem_plan_buffer *problem(const char *name, size_t *n)
{
    struct err e = {0};
    char path[512], *text;
    size_t size;
    (void)snprintf(path, sizeof path, "%s/tests/corpus/minimalloc/%s", SNUG_SOURCE_DIR, name);
    CHECK_OK(file_read(path, 1 << 20, &text, &size, &e), &e);
    VEC(struct mem_plan_buffer) b = {0};
    char *next = NULL;
    for (char *line = strtok_r(text, "\n", &next); line; line = strtok_r(NULL, "\n", &next)) {
        char *at = strchr(line, ',');
        int64_t field[3]; /* lower, upper, size */
        if (strncmp(line, "id,", 3) == 0)
            continue;
        for (int i = 0; i < 3; i++) {
            CHECK(at && *at == ',');
            field[i] = strtoll(at + 1, &at, 10);
        }
        struct mem_plan_buffer x = {
            .size_bytes = field[2], .first = field[0], .last = field[1] - 1, .alignment = 1};
        vec_push(&b, x);
    }
    mem_free(text);
    *n = b.n;
    return b.data;
}

/* Brute force: the least peak over every order of placement, each buffer at its lowest free offset.
 * Some order always gives the optimum: take the buffers of an optimal plan by offset. */
struct brute {
    const struct mem_plan_buffer *b;
    int n;
    int64_t offset[6], best, bound;
    bool placed[6];
};

static bool free_at(const struct brute *s, int i, int64_t at)
{
    for (int j = 0; j < s->n; j++)
        if (s->placed[j] && s->b[j].first <= s->b[i].last && s->b[i].first <= s->b[j].last &&
            at < s->offset[j] + s->b[j].size_bytes && s->offset[j] < at + s->b[i].size_bytes)
            return false;
    return true;
}

static void brute(struct brute *s, int placed_n, int64_t peak)
{
    if (peak >= s->best || s->best == s->bound)
        return;
    if (placed_n == s->n)
        s->best = peak;
    for (int i = 0; i < s->n; i++) {
        if (s->placed[i])
            continue;
        int64_t at = 0;
        while (!free_at(s, i, at))
            at++;
        s->placed[i] = true;
        s->offset[i] = at;
        int64_t end = at + s->b[i].size_bytes;
        brute(s, placed_n + 1, end > peak ? end : peak);
        s->placed[i] = false;
    }
}

static int64_t optimum(const struct mem_plan_buffer *b, int n, int64_t bound)
{
    struct brute s = {.b = b, .n = n, .best = INT64_MAX, .bound = bound};
    brute(&s, 0, 0);
    return s.best;
}

/* A grid of small buffers: every interval over `ops` operations in every size from 1 to `sizes`. */
struct grid {
    int ops, sizes, buffers_max;
    struct mem_plan_buffer kinds[40];
    int kinds_n;
    int64_t sets, at_bound, worse;
};

static void grid_init(struct grid *g)
{
    for (int first = 0; first < g->ops; first++)
        for (int last = first; last < g->ops; last++)
            for (int size = 1; size <= g->sizes; size++)
                g->kinds[g->kinds_n++] = (struct mem_plan_buffer){
                    .size_bytes = size, .first = first, .last = last, .alignment = 1};
}

/* Every set of kinds from `kind` on, added to the n buffers in `b`, against brute force. */
static void every_set(struct grid *g, struct mem_plan_buffer *b, int n, int kind)
{
    if (n > 0) {
        struct mem_plan p = planned(b, (size_t)n, NULL);
        int64_t best = optimum(b, n, p.lower_bound_bytes);
        CHECK(p.peak_bytes >= best && best >= p.lower_bound_bytes);
        g->sets++;
        g->at_bound += p.peak_bytes == p.lower_bound_bytes;
        g->worse += p.peak_bytes > best;
        mem_plan_release(&p);
    }
    for (int k = kind; k < g->kinds_n && n < g->buffers_max; k++) {
        b[n] = g->kinds[k];
        every_set(g, b, n + 1, k);
    }
}

static void model_check(int ops, int sizes, int buffers_max)
{
    struct grid g = {.ops = ops, .sizes = sizes, .buffers_max = buffers_max};
    struct mem_plan_buffer b[6];
    grid_init(&g);
    every_set(&g, b, 0, 0);
    (void)printf(
        "  %lld sets, %lld at the bound, %lld above the optimum\n", (long long)g.sets,
        (long long)g.at_bound, (long long)g.worse);
    CHECK_EQ(g.worse, 0);
}

TEST_WITHIN(
    model_check_four, 120,
    "every set of up to four buffers over four operations and three sizes is optimal")
{
    model_check(4, 3, 4);
}

TEST_WITHIN(
    model_check_six, 120,
    "every set of up to six buffers over four operations, or in three sizes, is optimal")
{
    model_check(4, 1, 6);
    model_check(3, 2, 6);
    model_check(2, 3, 6);
}

TEST(model_check_random, "random sets of five and six buffers over seven operations are optimal")
{
    struct rng r;
    rng_init(&r, test_seed(), 0, 0);
    for (int round = 0; round < 4000; round++) {
        struct mem_plan_buffer b[6];
        int n = 5 + (int)rng_below(&r, 2);
        for (int i = 0; i < n; i++) {
            int64_t from = (int64_t)rng_below(&r, 5);
            b[i] = (struct mem_plan_buffer){
                .size_bytes = 1 + (int64_t)rng_below(&r, 4),
                .first = from,
                .last = from + (int64_t)rng_below(&r, 3),
                .alignment = 1};
        }
        struct mem_plan p = planned(b, (size_t)n, NULL);
        CHECK_EQ(p.peak_bytes, optimum(b, n, p.lower_bound_bytes));
        mem_plan_release(&p);
    }
}

TEST(hard_case, "where every strategy ends above the bound, the search mostly does better")
{
    struct mem_plan_options none = {.work_max = -1};
    struct rng r;
    rng_init(&r, 3, 0, 0);
    int found = 0, improved = 0;
    for (int round = 0; round < 300; round++) {
        struct mem_plan_buffer b[30];
        for (int i = 0; i < 30; i++) {
            int64_t from = (int64_t)rng_below(&r, 12);
            b[i] = (struct mem_plan_buffer){
                .size_bytes = 1 + (int64_t)rng_below(&r, 9),
                .first = from,
                .last = from + (int64_t)rng_below(&r, 6),
                .alignment = 1};
        }
        struct mem_plan p = planned(b, 30, &none);
        if (p.peak_bytes > p.lower_bound_bytes) {
            struct mem_plan q = planned(b, 30, NULL);
            CHECK(q.peak_bytes <= p.peak_bytes);
            found++;
            improved += q.peak_bytes < p.peak_bytes;
            mem_plan_release(&q);
        }
        mem_plan_release(&p);
    }
    (void)printf("  greedy above the bound in %d of 300, search better in %d\n", found, improved);
    CHECK(found > 0 && improved * 2 > found);
}

static struct mem_plan_buffer *random_buffers(uint64_t seed, size_t n, int64_t ops, bool aligned)
{
    struct mem_plan_buffer *b = mem_alloc(n * sizeof *b);
    struct rng r;
    rng_init(&r, seed, 0, 0);
    for (size_t i = 0; i < n; i++) {
        int64_t from = (int64_t)rng_below(&r, (uint64_t)ops);
        int64_t life = (int64_t)rng_below(&r, (uint64_t)1 << rng_below(&r, 12));
        b[i] = (struct mem_plan_buffer){
            .size_bytes = (int64_t)rng_below(&r, (uint64_t)1 << rng_below(&r, 30)),
            .first = from,
            .last = from + life < ops ? from + life : ops - 1,
            .alignment = aligned ? (int64_t)1 << rng_below(&r, 13) : 0,
            .tag = (int)rng_below(&r, 10)};
    }
    return b;
}

TEST(random_programs, "thousands of random buffers are planned validly, the same way twice")
{
    static const size_t sizes[] = {1, 63, 64, 65, 1000, 4000};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        for (int aligned = 0; aligned < 2; aligned++) {
            struct mem_plan_buffer *b =
                random_buffers(test_seed() + k, sizes[k], 3000, aligned != 0);
            struct mem_plan p = planned(b, sizes[k], NULL), q = planned(b, sizes[k], NULL);
            CHECK_EQ(p.peak_bytes, q.peak_bytes);
            CHECK(memcmp(p.offset_bytes, q.offset_bytes, sizes[k] * sizeof(int64_t)) == 0);
            mem_plan_release(&p);
            mem_plan_release(&q);
            mem_free(b);
        }
    }
}

TEST(
    odd_input,
    "empty programs, empty buffers and huge sizes plan; bad ones and overflow get a status")
{
    struct err e = {0};
    struct mem_plan p = planned(NULL, 0, NULL);
    CHECK_EQ(p.peak_bytes, 0);
    mem_plan_release(&p);
    struct mem_plan_buffer b[3] = {
        {.size_bytes = 0, .last = 5},
        {.size_bytes = 1, .last = INT64_MAX - 1},
        {.size_bytes = (int64_t)1 << 60, .first = 3, .last = 4}};
    p = planned(b, 3, NULL);
    CHECK_EQ(p.peak_bytes, ((int64_t)1 << 60) + 64);
    CHECK_EQ(p.offset_bytes[0], 0);
    mem_plan_release(&p);
    b[0].size_bytes = (int64_t)7 << 60;
    CHECK_EQ(mem_plan_make(b, 3, NULL, &p, &e), ST_OOM);
    mem_plan_release(&p);
    b[0].size_bytes = b[1].size_bytes = ((int64_t)1 << 61) - 100; /* each fits, the sum does not */
    CHECK_EQ(mem_plan_make(b, 3, NULL, &p, &e), ST_OOM);
    mem_plan_release(&p);
    static const struct mem_plan_buffer bad[] = {
        {.size_bytes = -1}, {.first = 2, .last = 1}, {.first = -1},
        {.alignment = 48},  {.alignment = -64},      {.alignment = (int64_t)1 << 31}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_EQ(mem_plan_make(&bad[i], 1, NULL, &p, &e), ST_INVALID);
        CHECK(strstr(e.text, "buffer 0"));
        mem_plan_release(&p);
    }
}

TEST(mixed_alignments, "the bound counts what must be held, not padding that a better order avoids")
{
    struct mem_plan_buffer b[2] = {{.size_bytes = 64}, {.size_bytes = 4096, .alignment = 4096}};
    struct mem_plan p = planned(b, 2, NULL);
    CHECK_EQ(p.lower_bound_bytes, 4096 + 64);
    CHECK_EQ(p.peak_bytes, 4096 + 64);
    mem_plan_release(&p);
}

/* Layers forward, then backward; sizes as of a network that narrows. */
static struct mem_plan_buffer *training(int layers, size_t *n)
{
    struct mem_plan_buffer *b = mem_alloc((size_t)layers * 4 * sizeof *b);
    *n = 0;
    for (int i = 0; i < layers; i++) {
        int64_t out = (int64_t)1 << 20 >> (4 * i / layers), back = 2 * layers - 1 - i;
        b[(*n)++] = (struct mem_plan_buffer){.size_bytes = out, .first = i, .last = back, .tag = 1};
        b[(*n)++] =
            (struct mem_plan_buffer){.size_bytes = out / 2 + 4096, .first = i, .last = i, .tag = 2};
        b[(*n)++] =
            (struct mem_plan_buffer){.size_bytes = out, .first = back, .last = back + 1, .tag = 3};
        b[(*n)++] = (struct mem_plan_buffer){
            .size_bytes = out / 4 + 64, .first = back, .last = back, .tag = 2};
    }
    return b;
}

TEST(training_profile, "a forward and backward pass is planned within 1% of the bound")
{
    for (int layers = 1; layers < 400; layers = layers * 3 / 2 + 1) {
        size_t n;
        struct mem_plan_buffer *b = training(layers, &n);
        struct mem_plan p = planned(b, n, NULL);
        CHECK((double)p.peak_bytes <= 1.01 * (double)p.lower_bound_bytes);
        mem_plan_release(&p);
        mem_free(b);
    }
}

/* True when the validator refuses the plan. */
static bool refused(const struct mem_plan_buffer *b, const struct mem_plan *p, const char *word)
{
    struct err e = {0};
    enum status st = mem_plan_check(b, p->n, p, &e);
    return st == ST_INTERNAL && strstr(e.text, word);
}

TEST(validator_mutations, "the validator refuses every plan that was tampered with")
{
    size_t n;
    struct mem_plan_buffer *b = training(12, &n);
    struct mem_plan p = planned(b, n, NULL);
    p.peak_bytes += 64;
    CHECK(refused(b, &p, "peak"));
    p.peak_bytes -= 64;
    p.lower_bound_bytes -= 64;
    CHECK(refused(b, &p, "bound"));
    p.lower_bound_bytes += 64;
    p.granule_bytes = 32;
    CHECK(refused(b, &p, "granule"));
    p.granule_bytes = 64;
    p.n--;
    struct err e = {0};
    CHECK_EQ(mem_plan_check(b, n, &p, &e), ST_INTERNAL);
    p.n++;
    for (size_t i = 0; i < n; i++) {
        int64_t was = p.offset_bytes[i];
        p.offset_bytes[i] = was + 1;
        CHECK(refused(b, &p, "aligned"));
        p.offset_bytes[i] = -64;
        CHECK(refused(b, &p, "aligned"));
        p.offset_bytes[i] = INT64_MAX - 63;
        CHECK(refused(b, &p, "past"));
        p.offset_bytes[i] = was;
        for (size_t j = 0; j < n; j++) { /* onto another that is live with it: its last granule */
            if (i == j || b[i].first > b[j].last || b[j].first > b[i].last)
                continue;
            p.offset_bytes[i] = p.offset_bytes[j] + (b[j].size_bytes - 1) / 64 * 64;
            CHECK(refused(b, &p, "overlap"));
            p.offset_bytes[i] = was;
        }
    }
    /* A buffer that lives one operation longer than planned, or is one granule larger. */
    int caught = 0;
    for (size_t i = 0; i < n; i++) {
        struct mem_plan_buffer was = b[i];
        b[i].size_bytes += 64;
        caught += mem_plan_check(b, n, &p, &e) != ST_OK;
        b[i] = was;
    }
    CHECK(caught > 0);
    mem_plan_release(&p);
    mem_free(b);
}

TEST(resolve_aliases, "values that share storage become one buffer with the union of their lives")
{
    struct err e = {0};
    struct mem_plan_buffer v[5] = {
        {.size_bytes = 100, .first = 2, .last = 3, .tag = 4},
        {.size_bytes = 50, .first = 0, .last = 0},
        {.size_bytes = 80, .first = 3, .last = 6, .alignment = 256, .tag = 9},
        {.size_bytes = 100, .first = 7, .last = 9},
        {.size_bytes = 10, .first = 1, .last = 1}};
    size_t owner[5] = {0, 1, 0, 2, 1}, of[5], n;
    struct mem_plan_buffer s[5];
    CHECK_OK(mem_plan_resolve(v, owner, 5, s, of, &n, &e), &e);
    CHECK_EQ(n, 2);
    CHECK(of[0] == 0 && of[1] == 1 && of[2] == 0 && of[3] == 0 && of[4] == 1);
    CHECK(s[0].first == 2 && s[0].last == 9 && s[0].size_bytes == 100 && s[0].alignment == 256);
    CHECK(s[0].tag == 4 && s[1].first == 0 && s[1].last == 1 && s[1].size_bytes == 50);
    owner[0] = 3; /* a circle */
    CHECK_EQ(mem_plan_resolve(v, owner, 5, s, of, &n, &e), ST_INVALID);
    owner[0] = 5; /* nobody */
    CHECK_EQ(mem_plan_resolve(v, owner, 5, s, of, &n, &e), ST_INVALID);
}

static double quick_ratio(const char *name)
{
    size_t n;
    struct mem_plan_buffer *b = problem(name, &n);
    int64_t begin = clock_ns();
    struct mem_plan p = planned(b, n, &(struct mem_plan_options){.work_max = 8000000});
    double ms = (double)(clock_ns() - begin) / 1e6, ratio = (double)p.peak_bytes / 1048576;
    (void)printf(
        "  %s: %zu buffers, bound %.4f, peak %.4f of capacity, %.1f ms, %s\n", name, n,
        (double)p.lower_bound_bytes / 1048576, ratio, ms, mem_plan_strategy_text(p.strategy));
    mem_plan_release(&p);
    mem_free(b);
    return ratio;
}

static const char *const published[] = {"A.1048576.csv", "B.1048576.csv", "C.1048576.csv",
                                        "D.1048576.csv", "E.1048576.csv", "F.1048576.csv"};
enum { PUBLISHED = sizeof published / sizeof *published };

TEST_WITHIN(minimalloc, 120, "a moment of search comes near the published capacities")
{
    for (size_t i = 0; i < PUBLISHED; i++)
        CHECK(quick_ratio(published[i]) <= 1.20);
    size_t n;
    struct mem_plan_buffer *b = problem("input.12.csv", &n);
    struct mem_plan p = planned(b, n, NULL);
    CHECK_EQ(p.peak_bytes, 12);
    mem_plan_release(&p);
    mem_free(b);
}

TEST_WITHIN(minimalloc_capacity, 300, "every published hard problem is solved at its capacity")
{
    for (size_t i = 0; i < PUBLISHED; i++) {
        size_t n;
        struct mem_plan_buffer *b = problem(published[i], &n);
        int64_t begin = clock_ns();
        struct mem_plan p = planned(
            b, n,
            &(struct mem_plan_options){.work_max = (int64_t)9000000000, .capacity_bytes = 1048576});
        (void)printf(
            "  %s: peak %lld in %.3f s, %s\n", published[i], (long long)p.peak_bytes,
            (double)(clock_ns() - begin) / 1e9, mem_plan_strategy_text(p.strategy));
        CHECK(p.peak_bytes <= 1048576);
        mem_plan_release(&p);
        mem_free(b);
    }
}

/* The same problem as another compiler might write it: times run backwards or not, buffers come in
 * another order, and some are two, one after the other in time. */
static struct mem_plan_buffer *
rewritten(struct rng *r, const struct mem_plan_buffer *b, size_t n, size_t more)
{
    struct mem_plan_buffer *c = mem_alloc((n + more) * sizeof *c);
    bool backwards = rng_below(r, 2) == 1;
    int64_t end = 0;
    for (size_t i = 0; i < n; i++)
        end = b[i].last > end ? b[i].last : end;
    for (size_t i = 0; i < n; i++) {
        size_t k = (size_t)rng_below(r, i + 1);
        c[i] = c[k];
        c[k] = b[i];
        if (backwards) {
            c[k].first = end - b[i].last;
            c[k].last = end - b[i].first;
        }
    }
    for (size_t i = n; i < n + more; i++) {
        struct mem_plan_buffer *x = &c[rng_below(r, i)];
        while (x->last == x->first)
            x = &c[rng_below(r, i)];
        c[i] = *x;
        x->last = x->first + (int64_t)rng_below(r, (uint64_t)(x->last - x->first));
        c[i].first = x->last + 1;
    }
    return c;
}

TEST_WITHIN(minimalloc_rewritten, 300, "hard problems are solved however they are written")
{
    struct rng r;
    rng_init(&r, 23, 0, 0);
    for (size_t i = 0; i < PUBLISHED; i++) {
        size_t n;
        struct mem_plan_buffer *b = problem(published[i], &n);
        for (size_t more = 0; more < 4; more++) {
            struct mem_plan_buffer *c = rewritten(&r, b, n, more);
            struct mem_plan p = planned(
                c, n + more,
                &(struct mem_plan_options){.work_max = 1500000000, .capacity_bytes = 1048576});
            CHECK(p.peak_bytes <= 1048576);
            mem_plan_release(&p);
            mem_free(c);
        }
        mem_free(b);
    }
}

TEST_WITHIN(minimalloc_optimum, 300, "without a capacity, hard problems end within the published")
{
    for (size_t i = 0; i < PUBLISHED; i++) {
        size_t n;
        struct mem_plan_buffer *b = problem(published[i], &n);
        struct mem_plan p =
            planned(b, n, &(struct mem_plan_options){.work_max = 1500000000, .optimum = true});
        CHECK(p.peak_bytes <= 1048576);
        mem_plan_release(&p);
        mem_free(b);
    }
}

/* A rectangle of `ops` by `height`, cut at random into n buffers: it fits at `height` exactly. */
static struct mem_plan_buffer *cut_rectangle(struct rng *r, size_t n, int64_t ops, int64_t height)
{
    struct mem_plan_buffer *b = mem_alloc(n * sizeof *b);
    size_t have = 1;
    b[0] = (struct mem_plan_buffer){.size_bytes = height, .last = ops - 1, .alignment = 1};
    while (have < n) {
        size_t best = 0; /* the larger of some */
        for (int k = 0; k < 4; k++) {
            size_t i = (size_t)rng_below(r, have);
            if (b[i].size_bytes * (b[i].last - b[i].first + 1) >
                b[best].size_bytes * (b[best].last - b[best].first + 1))
                best = i;
        }
        struct mem_plan_buffer *x = &b[best], *y = &b[have];
        *y = *x;
        if (x->last - x->first > 3 && rng_below(r, 2)) {
            x->last = x->first + (int64_t)rng_below(r, (uint64_t)(x->last - x->first));
            y->first = x->last + 1;
        } else if (x->size_bytes > 3) {
            x->size_bytes = 1 + (int64_t)rng_below(r, (uint64_t)x->size_bytes - 1);
            y->size_bytes -= x->size_bytes;
        } else {
            continue;
        }
        have++;
    }
    return b;
}

TEST_WITHIN(cut_rectangles, 300, "rectangles cut into buffers are put together again")
{
    static const size_t sizes[] = {8, 20, 40, 60, 90};
    struct rng r;
    rng_init(&r, 17, 0, 0);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        int whole = 0;
        for (int round = 0; round < 6; round++) {
            struct mem_plan_buffer *b = cut_rectangle(&r, sizes[k], 300, 1000);
            struct mem_plan p = planned(
                b, sizes[k],
                &(struct mem_plan_options){.work_max = 300000000, .capacity_bytes = 1000});
            CHECK_EQ(p.lower_bound_bytes, 1000);
            whole += p.peak_bytes == 1000;
            mem_plan_release(&p);
            mem_free(b);
        }
        (void)printf("  %zu buffers: %d of 6 at the bound\n", sizes[k], whole);
        CHECK(whole >= (sizes[k] <= 20 ? 6 : 3));
    }
}

TEST(exact_proof, "the exact search finds a layout at the optimum, and proves that none is below")
{
    struct rng r;
    rng_init(&r, test_seed(), 0, 0);
    for (int round = 0; round < 3000; round++) {
        struct mem_plan_buffer b[6];
        struct plan_item items[6];
        int64_t offset[6], work = 0, live[8] = {0}, bound = 0;
        for (int i = 0; i < 6; i++) {
            int64_t from = (int64_t)rng_below(&r, 5);
            b[i] = (struct mem_plan_buffer){
                .size_bytes = 1 + (int64_t)rng_below(&r, 5),
                .first = from,
                .last = from + (int64_t)rng_below(&r, 3),
                .alignment = 1};
            items[i] = (struct plan_item){
                .size_bytes = b[i].size_bytes,
                .alignment = 1,
                .first = (int32_t)b[i].first,
                .last = (int32_t)b[i].last};
            for (int64_t t = b[i].first; t <= b[i].last; t++)
                live[t] += b[i].size_bytes;
        }
        for (int t = 0; t < 8; t++)
            bound = live[t] > bound ? live[t] : bound;
        int64_t best = optimum(b, 6, bound);
        CHECK_EQ(plan_exact(items, 6, best, 1000000, &work, offset), EXACT_FITS);
        CHECK_EQ(plan_exact(items, 6, best - 1, 1000000, &work, offset), EXACT_CANNOT);
    }
}

TEST(exact_aligned, "the exact search keeps to alignments larger than the sizes")
{
    struct rng r;
    rng_init(&r, test_seed(), 0, 0);
    for (int round = 0; round < 300; round++) {
        struct mem_plan_buffer b[24];
        for (int i = 0; i < 24; i++) {
            int64_t from = (int64_t)rng_below(&r, 12);
            b[i] = (struct mem_plan_buffer){
                .size_bytes = 1 + (int64_t)rng_below(&r, 900),
                .first = from,
                .last = from + (int64_t)rng_below(&r, 6),
                .alignment = (int64_t)1 << rng_below(&r, 9)};
        }
        struct mem_plan p = planned(b, 24, &(struct mem_plan_options){.work_max = 2000000});
        mem_plan_release(&p);
    }
}
