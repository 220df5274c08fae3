/* holders.c - what is live at a moment, by place, category, size and age. */
#include "doctor/walk.h"

#include <stdlib.h>
#include <string.h>

static int by_bytes(const void *a, const void *b)
{
    const struct holder *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    return (x->category > y->category) - (x->category < y->category);
}

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int by_size_bytes(const void *a, const void *b)
{
    const struct holder_size *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return (x->size_bytes < y->size_bytes) - (x->size_bytes > y->size_bytes);
}

/* Equal sizes lie side by side in `all`. */
static void count_sizes(int64_t *all, size_t n, struct holders *out)
{
    qsort(all, n, sizeof *all, by_size);
    out->sizes = mem_alloc((n + 1) * sizeof *out->sizes);
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || all[i] != all[i - 1])
            out->sizes[out->sizes_n++] = (struct holder_size){.size_bytes = all[i]};
        out->sizes[out->sizes_n - 1].n++;
        out->sizes[out->sizes_n - 1].bytes += all[i];
    }
    qsort(out->sizes, out->sizes_n, sizeof *out->sizes, by_size_bytes);
}

/* ---- rows: one for each group and category that occurs ---- */

struct rows {
    struct holders *out;
    uint32_t *slots; /* row + 1; 0: empty */
    size_t cap, rows_cap;
};

static void rows_grow(struct rows *t)
{
    size_t cap = t->cap ? 2 * t->cap : 256;
    uint32_t *slots = mem_alloc(cap * sizeof *slots);
    for (uint32_t i = 0; i < t->out->rows_n; i++) {
        const struct holder *h = &t->out->rows[i];
        size_t at = (h->group * 0x9e3779b1u ^ h->category * 0x85ebca6bu) & (cap - 1);
        while (slots[at])
            at = (at + 1) & (cap - 1);
        slots[at] = i + 1;
    }
    mem_free(t->slots);
    t->slots = slots;
    t->cap = cap;
    t->rows_cap = cap / 2;
    t->out->rows = mem_resize(t->out->rows, t->rows_cap * sizeof *t->out->rows);
}

static struct holder *row_of(struct rows *t, uint32_t group, uint8_t category)
{
    if (t->out->rows_n == t->rows_cap)
        rows_grow(t);
    size_t at = (group * 0x9e3779b1u ^ category * 0x85ebca6bu) & (t->cap - 1);
    while (t->slots[at]) {
        struct holder *h = &t->out->rows[t->slots[at] - 1];
        if (h->group == group && h->category == category)
            return h;
        at = (at + 1) & (t->cap - 1);
    }
    struct holder *h = &t->out->rows[t->out->rows_n++];
    *h = (struct holder){.group = group, .category = category};
    t->slots[at] = t->out->rows_n;
    return h;
}

static void add_age(
    const struct walk *w, uint32_t life, uint32_t iteration_begin, int64_t bytes,
    struct holders *out)
{
    uint32_t alloc = walk_life(w, life)->alloc;
    if (alloc == SNAP_NONE)
        out->age_earlier_bytes += bytes;
    else if (iteration_begin != SNAP_NONE && alloc < iteration_begin)
        out->age_former_bytes += bytes;
    else
        out->age_current_bytes += bytes;
}

void holders_at(
    const struct walk *w, uint32_t moment, uint32_t iteration_begin, struct holders *out)
{
    struct rows t = {.out = out};
    int64_t *sizes = mem_alloc(((size_t)w->d->lives_n + 1) * sizeof *sizes), largest = -1;
    *out = (struct holders){.moment = moment, .largest_life = LABEL_NONE};
    for (uint32_t i = 0; i < w->d->lives_n; i++) {
        if (!walk_lives(w, i, moment))
            continue;
        int64_t bytes = walk_bytes(w, i);
        struct holder *h = row_of(&t, walk_group(w, i), w->category[i]);
        h->n++;
        h->bytes += bytes;
        if (h->n == 1 || bytes > h->largest_bytes) {
            h->largest_bytes = bytes;
            h->largest_life = i;
        }
        if (bytes > largest) {
            largest = bytes;
            out->largest_life = i;
        }
        out->by_category[w->category[i]] += bytes;
        out->by_category_n[w->category[i]]++;
        add_age(w, i, iteration_begin, bytes, out);
        sizes[out->live_n++] = bytes;
        out->live_bytes += bytes;
    }
    if (out->rows_n)
        qsort(out->rows, out->rows_n, sizeof *out->rows, by_bytes);
    count_sizes(sizes, out->live_n, out);
    mem_free(sizes);
    mem_free(t.slots);
}

void holders_release(struct holders *h)
{
    mem_free(h->rows);
    mem_free(h->sizes);
    *h = (struct holders){0};
}
