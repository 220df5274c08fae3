/* plan_place.c - puts items into memory one after another, each into a gap left by those before it.
 *
 * Placed items are kept sorted by offset in chunks of at most CHUNK; a chunk knows the span of time
 * its items cover, so that a whole chunk is passed over when the item at hand lives elsewhere.
 * One pass from the bottom sees every gap among the items that share an operation with it.
 */
#include "plan_int.h"

#include "base/err.h"
#include "base/mem.h"

#include <string.h>

enum { CHUNK = 64 };

struct entry {
    int64_t offset, end;
    int32_t first, last;
};

struct chunk {
    int n;
    int32_t first_min, last_max;
    struct entry e[CHUNK];
};

struct placer {
    const struct plan_item *items;
    size_t n;
    struct chunk *store;      /* room for every chunk that can come to be */
    uint32_t *chunks;         /* indices into store, in order of offset */
    size_t chunks_n, store_n; /* in use */
    int64_t work;
};

struct placer *placer_new(const struct plan_item *items, size_t n)
{
    struct placer *p = mem_alloc(sizeof *p);
    /* A split leaves two half-full chunks, so each costs CHUNK / 2 insertions. */
    size_t cap = 2 * n / CHUNK + 3;
    p->items = items;
    p->n = n;
    p->store = mem_alloc(cap * sizeof *p->store);
    p->chunks = mem_alloc(cap * sizeof *p->chunks);
    return p;
}

void placer_free(struct placer *p)
{
    if (!p)
        return;
    mem_free(p->store);
    mem_free(p->chunks);
    mem_free(p);
}

int64_t placer_work(const struct placer *p)
{
    return p->work;
}

static void chunk_measure(struct chunk *c)
{
    c->first_min = INT32_MAX;
    c->last_max = -1;
    for (int i = 0; i < c->n; i++) {
        if (c->e[i].first < c->first_min)
            c->first_min = c->e[i].first;
        if (c->e[i].last > c->last_max)
            c->last_max = c->e[i].last;
    }
}

static void chunk_forget(struct chunk *c, const struct plan_item *x, enum plan_forget forget)
{
    int kept = 0;
    for (int i = 0; i < c->n; i++)
        if (forget == FORGET_PAST ? c->e[i].last >= x->first : c->e[i].first <= x->last)
            c->e[kept++] = c->e[i];
    if (kept == c->n)
        return;
    c->n = kept;
    chunk_measure(c);
}

/* State of the search for a gap. */
struct gap {
    int64_t top;    /* end of what lies below, so far */
    int64_t offset; /* the choice, -1 for none yet */
    int64_t waste;  /* bytes of the gap that the choice leaves free */
};

/* Looks at the gaps inside one chunk; true when the search is over. */
static bool
chunk_search(const struct chunk *c, const struct plan_item *x, enum plan_fit fit, struct gap *g)
{
    int64_t mask = x->alignment - 1;
    for (int i = 0; i < c->n; i++) {
        const struct entry *y = &c->e[i];
        if (y->first > x->last || y->last < x->first)
            continue;
        if (y->offset > g->top) {
            int64_t at = (g->top + mask) & ~mask, waste = y->offset - x->size_bytes - at;
            if (waste >= 0 && (g->offset < 0 || waste < g->waste)) {
                g->offset = at;
                g->waste = waste;
                if (fit == FIT_LOWEST || waste == 0)
                    return true;
            }
        }
        if (y->end > g->top)
            g->top = y->end;
    }
    return false;
}

static int64_t
find_offset(struct placer *p, const struct plan_item *x, enum plan_fit fit, enum plan_forget forget)
{
    struct gap g = {.offset = -1};
    for (size_t k = 0; k < p->chunks_n; k++) {
        struct chunk *c = &p->store[p->chunks[k]];
        p->work++;
        if (c->n && forget != FORGET_NONE)
            chunk_forget(c, x, forget);
        if (c->n == 0 || c->first_min > x->last || c->last_max < x->first)
            continue;
        p->work += c->n;
        if (chunk_search(c, x, fit, &g))
            return g.offset;
    }
    return g.offset >= 0 ? g.offset : (g.top + x->alignment - 1) & ~(x->alignment - 1);
}

/* The place in p->chunks where an entry at `offset` belongs. */
static size_t find_chunk(const struct placer *p, int64_t offset)
{
    for (size_t k = p->chunks_n; k-- > 1;) {
        const struct chunk *c = &p->store[p->chunks[k]];
        if (c->n && c->e[0].offset <= offset)
            return k;
    }
    return 0;
}

static void split(struct placer *p, size_t k)
{
    struct chunk *c = &p->store[p->chunks[k]], *d = &p->store[p->store_n];
    memmove(p->chunks + k + 2, p->chunks + k + 1, (p->chunks_n - k - 1) * sizeof *p->chunks);
    p->chunks[k + 1] = (uint32_t)p->store_n++;
    p->chunks_n++;
    d->n = CHUNK / 2;
    c->n = CHUNK - d->n;
    memcpy(d->e, c->e + c->n, (size_t)d->n * sizeof *d->e);
    chunk_measure(c);
    chunk_measure(d);
}

static void insert(struct placer *p, const struct plan_item *x, int64_t offset)
{
    size_t k = find_chunk(p, offset);
    if (p->store[p->chunks[k]].n == CHUNK) {
        split(p, k);
        if (p->store[p->chunks[k + 1]].e[0].offset <= offset)
            k++;
    }
    struct chunk *c = &p->store[p->chunks[k]];
    int i = c->n++;
    for (; i > 0 && c->e[i - 1].offset > offset; i--)
        c->e[i] = c->e[i - 1];
    c->e[i] = (struct entry){offset, offset + x->size_bytes, x->first, x->last};
    if (x->first < c->first_min)
        c->first_min = x->first;
    if (x->last > c->last_max)
        c->last_max = x->last;
}

static void clear(struct placer *p)
{
    p->store[0].n = 0;
    chunk_measure(&p->store[0]);
    p->chunks[0] = 0;
    p->chunks_n = p->store_n = 1;
}

bool placer_run(
    struct placer *p, const uint32_t *order, enum plan_fit fit, enum plan_forget forget,
    int64_t peak_max_bytes, int64_t *offset_bytes, int64_t *peak_bytes)
{
    int64_t peak = 0;
    clear(p);
    p->work += (int64_t)p->n;
    for (size_t i = 0; i < p->n; i++) {
        const struct plan_item *x = &p->items[order[i]];
        int64_t at = find_offset(p, x, fit, forget);
        if (at > peak_max_bytes - x->size_bytes)
            return false;
        if (at + x->size_bytes > peak)
            peak = at + x->size_bytes;
        offset_bytes[order[i]] = at;
        insert(p, x, at);
    }
    *peak_bytes = peak;
    return true;
}
