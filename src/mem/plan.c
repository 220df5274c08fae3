/* plan.c - the static storage planner: checks the input, tries the strategies, keeps the best. */
#include "mem/plan.h"

#include "base/mem.h"
#include "plan_exact.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT_MAX = 1 << 30, ITEMS_FEW = 24, HALVING_SHARE = 8 };
#define TOTAL_MAX_BYTES ((int64_t)1 << 62)
#define WORK_IMPROVE_MAX 8000000
#define WORK_EXACT_DEFAULT 100000000
#define WORK_FEW_MAX 1000000

static int64_t alignment_of(const struct mem_plan_buffer *b)
{
    return b->alignment ? b->alignment : MEM_PLAN_ALIGNMENT;
}

static enum status check_buffer(const struct mem_plan_buffer *b, size_t i, struct err *e)
{
    long long size = b->size_bytes, first = b->first, last = b->last, alignment = b->alignment;
    if (b->size_bytes < 0)
        return err_set(e, ST_INVALID, "buffer %zu has a size of %lld bytes", i, size);
    if (b->first < 0 || b->last < b->first)
        return err_set(
            e, ST_INVALID, "buffer %zu lives from operation %lld to %lld", i, first, last);
    if (b->alignment < 0 || b->alignment > ALIGNMENT_MAX || (b->alignment & (b->alignment - 1)))
        return err_set(
            e, ST_INVALID, "buffer %zu has alignment %lld, which is not a power of two up to %d", i,
            alignment, ALIGNMENT_MAX);
    return ST_OK;
}

/* Checks every buffer; the granule, and that no sum of sizes can overflow. */
static enum status
check_buffers(const struct mem_plan_buffer *b, size_t n, int64_t *granule, struct err *e)
{
    int64_t least = n ? ALIGNMENT_MAX : MEM_PLAN_ALIGNMENT, total = 0;
    if (n > INT32_MAX / 2)
        return err_set(e, ST_INVALID, "%zu buffers are more than a plan can hold", n);
    for (size_t i = 0; i < n; i++) {
        TRY(check_buffer(&b[i], i, e));
        int64_t alignment = alignment_of(&b[i]);
        if (alignment < least)
            least = alignment;
        /* Room for rounding and padding of each is part of the sum. */
        if (b[i].size_bytes > TOTAL_MAX_BYTES - 2 * alignment - total) {
            enum status st = err_set(e, ST_OOM, "the program needs more than 4 EiB of memory");
            err_detail(
                e, "buffer %zu of %lld bytes brings the sum past 2^62", i,
                (long long)b[i].size_bytes);
            return st;
        }
        total += b[i].size_bytes + 2 * alignment;
    }
    *granule = least;
    return ST_OK;
}

/* Everything that one call works with. */
struct work {
    struct plan_item *items;
    size_t n;
    int64_t *live_bytes; /* per compressed time */
    int32_t times_n, fullest;
    int64_t bound_bytes;
    int64_t goal_bytes; /* what is good enough: the bound, or the capacity asked for */
    struct placer *placer;
    uint32_t *order;
    int64_t *offset, *offset_best;
    int64_t peak_best;
    enum mem_plan_strategy strategy;
    struct ranked *ranked;
};

static int by_i64(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The number of entries of sorted `a` that are <= x. */
static size_t count_until(const int64_t *a, size_t n, int64_t x)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (a[mid] <= x)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Two intervals meet exactly if each begins no later than the other ends; so only the order of
 * beginnings matters, and times are renumbered by them. */
static void
collect_items(struct work *w, const struct mem_plan_buffer *b, size_t n, int64_t granule)
{
    int64_t *begin = mem_alloc(n * sizeof *begin);
    size_t unique = 0;
    for (size_t i = 0; i < n; i++)
        if (b[i].size_bytes > 0)
            begin[w->n++] = b[i].first;
    qsort(begin, w->n, sizeof *begin, by_i64);
    for (size_t i = 0; i < w->n; i++)
        if (i == 0 || begin[i] != begin[unique - 1])
            begin[unique++] = begin[i];
    w->items = mem_alloc(w->n * sizeof *w->items);
    w->times_n = (int32_t)unique;
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (b[i].size_bytes == 0)
            continue;
        w->items[k++] = (struct plan_item){
            .size_bytes = (b[i].size_bytes + granule - 1) & ~(granule - 1),
            .alignment = alignment_of(&b[i]),
            .first = (int32_t)count_until(begin, unique, b[i].first) - 1,
            .last = (int32_t)count_until(begin, unique, b[i].last) - 1,
            .buffer = (uint32_t)i};
    }
    mem_free(begin);
}

static void measure_live(struct work *w)
{
    w->live_bytes = mem_alloc(((size_t)w->times_n + 1) * sizeof *w->live_bytes);
    for (size_t i = 0; i < w->n; i++) {
        w->live_bytes[w->items[i].first] += w->items[i].size_bytes;
        w->live_bytes[w->items[i].last + 1] -= w->items[i].size_bytes;
    }
    for (int32_t t = 0; t < w->times_n; t++) {
        if (t > 0)
            w->live_bytes[t] += w->live_bytes[t - 1];
        if (w->live_bytes[t] > w->bound_bytes) {
            w->bound_bytes = w->live_bytes[t];
            w->fullest = t;
        }
    }
}

/* Sort key of an item: smaller goes first; ties by `next`, then by index. */
struct ranked {
    double key, next;
    uint32_t item;
};

static double length(const struct plan_item *x)
{
    return (double)(x->last - x->first + 1);
}

static void rank_first_use(const struct work *w, const struct plan_item *x, struct ranked *r)
{
    (void)w;
    *r = (struct ranked){.key = x->first, .next = -length(x)};
}

static void rank_last_use(const struct work *w, const struct plan_item *x, struct ranked *r)
{
    (void)w;
    *r = (struct ranked){.key = -(double)x->last, .next = -length(x)};
}

static void rank_length(const struct work *w, const struct plan_item *x, struct ranked *r)
{
    (void)w;
    *r = (struct ranked){.key = -length(x), .next = -(double)x->size_bytes};
}

static void rank_size(const struct work *w, const struct plan_item *x, struct ranked *r)
{
    (void)w;
    *r = (struct ranked){.key = -(double)x->size_bytes, .next = -length(x)};
}

static void rank_area(const struct work *w, const struct plan_item *x, struct ranked *r)
{
    (void)w;
    *r = (struct ranked){.key = -(double)x->size_bytes * length(x), .next = -(double)x->size_bytes};
}

static void rank_pressure(const struct work *w, const struct plan_item *x, struct ranked *r)
{
    bool at_peak = x->first <= w->fullest && x->last >= w->fullest;
    *r = (struct ranked){.key = at_peak ? 0.0 : 1.0, .next = -(double)x->size_bytes * length(x)};
}

/* The most bytes live at once during the item's life: what is crowded goes first. */
static void rank_contention(const struct work *w, const struct plan_item *x, struct ranked *r)
{
    int64_t most = 0;
    for (int32_t t = x->first; t <= x->last; t++)
        most = w->live_bytes[t] > most ? w->live_bytes[t] : most;
    *r = (struct ranked){.key = -(double)most, .next = -length(x)};
}

static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    if (x->next != y->next)
        return x->next < y->next ? -1 : 1;
    return (x->item > y->item) - (x->item < y->item);
}

typedef void rank_function(const struct work *w, const struct plan_item *x, struct ranked *r);

struct strategy {
    rank_function *rank;
    enum plan_fit fit;
    enum plan_forget forget;
    const char *text;
};

static const struct strategy strategies[] = {
#define X(name, rank, fit, forget, text) {rank, fit, forget, text},
#include "mem/plan_strategies.def"
#undef X
};
enum { STRATEGIES = sizeof strategies / sizeof *strategies };

const char *mem_plan_strategy_text(enum mem_plan_strategy s)
{
    if ((size_t)s < STRATEGIES)
        return strategies[s].text;
    return s == MEM_PLAN_EXACT ? "exact search" : "filled from the bottom, improved by search";
}

static void work_init(struct work *w)
{
    w->placer = placer_new(w->items, w->n);
    w->order = mem_alloc(w->n * sizeof *w->order);
    w->offset = mem_alloc(w->n * sizeof *w->offset);
    w->offset_best = mem_alloc(w->n * sizeof *w->offset_best);
    w->ranked = mem_alloc(w->n * sizeof *w->ranked);
    w->peak_best = INT64_MAX;
}

static void work_release(struct work *w)
{
    placer_free(w->placer);
    mem_free(w->items);
    mem_free(w->live_bytes);
    mem_free(w->order);
    mem_free(w->offset);
    mem_free(w->offset_best);
    mem_free(w->ranked);
}

static void sort_items(struct work *w, rank_function *rank)
{
    for (size_t i = 0; i < w->n; i++) {
        rank(w, &w->items[i], &w->ranked[i]);
        w->ranked[i].item = (uint32_t)i;
    }
    qsort(w->ranked, w->n, sizeof *w->ranked, by_rank);
    for (size_t i = 0; i < w->n; i++)
        w->order[i] = w->ranked[i].item;
}

/* The layout at hand is the best so far. */
static void keep(struct work *w, int64_t peak, enum mem_plan_strategy which)
{
    int64_t *offset = w->offset;
    w->offset = w->offset_best;
    w->offset_best = offset;
    w->peak_best = peak;
    w->strategy = which;
}

static void try_strategy(struct work *w, enum mem_plan_strategy which)
{
    const struct strategy *s = &strategies[which];
    int64_t peak;
    sort_items(w, s->rank);
    if (placer_run(w->placer, w->order, s->fit, s->forget, w->peak_best - 1, w->offset, &peak))
        keep(w, peak, which);
}

/* Begins a search with the orders that serve the skyline best. */
static void improve(struct work *w, int64_t work_max, uint64_t seed)
{
    static rank_function *const ranks[] = {rank_contention, rank_area, rank_length};
    enum { ORDERS = sizeof ranks / sizeof *ranks };
    uint32_t *orders[ORDERS];
    struct plan_layout best = {w->offset_best, w->peak_best};
    for (size_t k = 0; k < ORDERS; k++) {
        sort_items(w, ranks[k]);
        orders[k] = mem_alloc(w->n * sizeof *w->order);
        memcpy(orders[k], w->order, w->n * sizeof *w->order);
    }
    if (plan_improve(
            w->items, w->n, w->times_n, w->goal_bytes,
            &(struct plan_search){orders, ORDERS, work_max, seed}, &best)) {
        w->peak_best = best.peak_bytes;
        w->strategy = MEM_PLAN_IMPROVED;
    }
    for (size_t k = 0; k < ORDERS; k++)
        mem_free(orders[k]);
}

/* Looks for a layout within `capacity`, and keeps it. */
static enum exact_result
try_exact(struct work *w, int64_t capacity, int64_t work_max, int64_t *work)
{
    enum exact_result r = plan_exact(w->items, w->n, capacity, work_max, work, w->offset);
    if (r != EXACT_FITS)
        return r;
    int64_t peak = 0;
    for (size_t i = 0; i < w->n; i++)
        if (w->offset[i] + w->items[i].size_bytes > peak)
            peak = w->offset[i] + w->items[i].size_bytes;
    ASSERT(peak <= capacity);
    keep(w, peak, MEM_PLAN_EXACT);
    return r;
}

/* One round: the least peak that is not proved impossible gets `steps`. Then the distance between
 * what could not be reached and the best is halved, with fewer steps, until it is within `slack`.
 */
static void exact_round(
    struct work *w, int64_t slack, int64_t steps, int64_t work_max, int64_t *work,
    int64_t *impossible)
{
    int64_t low = *impossible, target = low + 1;
    while (target > low && target < w->peak_best && *work < work_max) {
        int64_t left = work_max - *work;
        enum exact_result r = try_exact(w, target, steps < left ? steps : left, work);
        steps = target == *impossible + 1 ? steps / HALVING_SHARE + 1 : steps;
        low = r == EXACT_FITS ? low : target;
        *impossible = r == EXACT_CANNOT ? target : *impossible;
        if (w->peak_best - 1 - low <= slack)
            return;
        target = low + (w->peak_best - low) / 2;
    }
}

/* Rounds of growing length; true when the best is within `slack` of what is possible. */
static bool exact(struct work *w, int64_t slack, int64_t work_max)
{
    int64_t work = 0, impossible = w->goal_bytes - 1;
    int64_t steps = work_max / 32 + 1;
    while (work < work_max) {
        exact_round(w, slack, steps, work_max, &work, &impossible);
        if (w->peak_best - 1 - impossible <= slack)
            return true;
        steps = steps < work_max ? 4 * steps : steps;
    }
    return false;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void search(struct work *w, const struct mem_plan_options *o)
{
    int64_t asked = o ? o->work_max : 0, work_max = asked ? asked : WORK_EXACT_DEFAULT;
    bool capacity = o && o->capacity_bytes >= w->bound_bytes;
    w->goal_bytes = capacity ? o->capacity_bytes : w->bound_bytes;
    for (int s = 0; s < STRATEGIES && w->peak_best > w->goal_bytes; s++)
        try_strategy(w, (enum mem_plan_strategy)s);
    int64_t slack = capacity || (o && o->optimum) ? 0 : w->bound_bytes / 200;
    if (work_max <= 0 || w->peak_best - w->goal_bytes <= slack)
        return;
    if (w->n <= ITEMS_FEW && exact(w, slack, least(work_max, WORK_FEW_MAX)))
        return; /* few items: a proof is quicker than the other search */
    improve(w, least(work_max, WORK_IMPROVE_MAX), o ? o->seed : 0);
    if (w->peak_best - w->goal_bytes <= slack)
        return;
    int64_t work = 0;
    if (capacity)
        (void)try_exact(w, w->goal_bytes, work_max, &work);
    else
        (void)exact(w, slack, work_max);
}

enum status mem_plan_make(
    const struct mem_plan_buffer *buffers, size_t n, const struct mem_plan_options *o,
    struct mem_plan *out, struct err *e)
{
    struct work w = {0};
    *out = (struct mem_plan){.n = n};
    TRY(check_buffers(buffers, n, &out->granule_bytes, e));
    out->offset_bytes = mem_alloc(n * sizeof *out->offset_bytes);
    collect_items(&w, buffers, n, out->granule_bytes);
    if (w.n) {
        measure_live(&w);
        work_init(&w);
        search(&w, o);
        for (size_t i = 0; i < w.n; i++)
            out->offset_bytes[w.items[i].buffer] = w.offset_best[i];
        out->peak_bytes = w.peak_best;
        out->lower_bound_bytes = w.bound_bytes;
        out->strategy = w.strategy;
    }
    work_release(&w);
    return ST_OK;
}

void mem_plan_release(struct mem_plan *p)
{
    mem_free(p->offset_bytes);
    *p = (struct mem_plan){0};
}

/* Follows owners to the one that owns itself; n when they form a circle. */
static size_t root_of(const size_t *owner, size_t n, size_t i)
{
    for (size_t steps = 0; steps <= n; steps++) {
        if (owner[i] >= n)
            return n;
        if (owner[i] == i)
            return i;
        i = owner[i];
    }
    return n;
}

static void extend(struct mem_plan_buffer *b, const struct mem_plan_buffer *v)
{
    if (v->first < b->first)
        b->first = v->first;
    if (v->last > b->last)
        b->last = v->last;
    if (v->size_bytes > b->size_bytes)
        b->size_bytes = v->size_bytes;
    if (alignment_of(v) > alignment_of(b))
        b->alignment = alignment_of(v);
}

enum status mem_plan_resolve(
    const struct mem_plan_buffer *values, const size_t *owner, size_t n,
    struct mem_plan_buffer *storage, size_t *storage_of, size_t *storage_n, struct err *e)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (owner[i] != i)
            continue;
        storage[k] = values[i];
        storage_of[i] = k++;
    }
    for (size_t i = 0; i < n; i++) {
        size_t root = root_of(owner, n, i);
        if (root == n)
            return err_set(e, ST_INVALID, "value %zu shares the storage of no value", i);
        storage_of[i] = storage_of[root];
        extend(&storage[storage_of[i]], &values[i]);
    }
    *storage_n = k;
    return ST_OK;
}

int64_t mem_plan_bytes(const struct mem_plan *p, const struct mem_plan_buffer *b)
{
    return (b->size_bytes + p->granule_bytes - 1) & ~(p->granule_bytes - 1);
}
