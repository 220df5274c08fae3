/* timeline.c - live bytes over the operations of a program. */
#include "mem/timeline.h"

#include "base/mem.h"

#include <stdlib.h>

int64_t mem_timeline_bytes(const struct mem_plan_buffer *b, const struct mem_plan *p)
{
    return (b->size_bytes + p->granule_bytes - 1) & ~(p->granule_bytes - 1);
}

static void add(struct mem_timeline_op *op, int tag, int64_t bytes)
{
    bool known = tag >= 0 && tag < MEM_TIMELINE_TAGS;
    op->live_bytes += bytes;
    op->tag_bytes[known ? tag : MEM_TIMELINE_TAGS - 1] += bytes;
}

/* First only changes from operation to operation, then their running sums. */
static void
sum_up(const struct mem_plan_buffer *b, const struct mem_plan *p, struct mem_timeline *t)
{
    for (size_t i = 0; i < p->n; i++) {
        int64_t bytes = mem_timeline_bytes(&b[i], p);
        ASSERT(b[i].last >= b[i].first && (uint64_t)b[i].last < t->ops_n);
        add(&t->ops[b[i].first], b[i].tag, bytes);
        add(&t->ops[b[i].last + 1], b[i].tag, -bytes);
    }
    for (size_t op = 1; op < t->ops_n; op++) {
        t->ops[op].live_bytes += t->ops[op - 1].live_bytes;
        for (int k = 0; k < MEM_TIMELINE_TAGS; k++)
            t->ops[op].tag_bytes[k] += t->ops[op - 1].tag_bytes[k];
        if (t->ops[op].live_bytes > t->ops[t->peak_op].live_bytes)
            t->peak_op = op;
    }
}

struct holder {
    int64_t bytes;
    size_t buffer;
};

static int by_bytes(const void *a, const void *b)
{
    const struct holder *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return (x->buffer > y->buffer) - (x->buffer < y->buffer);
}

static void
list_peak(const struct mem_plan_buffer *b, const struct mem_plan *p, struct mem_timeline *t)
{
    struct holder *h = mem_alloc(p->n * sizeof *h);
    size_t n = 0;
    int64_t op = (int64_t)t->peak_op;
    for (size_t i = 0; i < p->n; i++)
        if (b[i].first <= op && b[i].last >= op && b[i].size_bytes > 0)
            h[n++] = (struct holder){mem_timeline_bytes(&b[i], p), i};
    qsort(h, n, sizeof *h, by_bytes);
    t->at_peak = mem_alloc(n * sizeof *t->at_peak);
    t->at_peak_n = n;
    for (size_t i = 0; i < n; i++)
        t->at_peak[i] = h[i].buffer;
    mem_free(h);
}

void mem_timeline_make(
    const struct mem_plan_buffer *buffers, const struct mem_plan *p, size_t ops_n,
    struct mem_timeline *out)
{
    *out = (struct mem_timeline){.ops_n = ops_n};
    out->ops = mem_alloc((ops_n + 1) * sizeof *out->ops);
    sum_up(buffers, p, out);
    list_peak(buffers, p, out);
    out->gap_bytes = p->peak_bytes - out->ops[out->peak_op].live_bytes;
}

void mem_timeline_release(struct mem_timeline *t)
{
    mem_free(t->ops);
    mem_free(t->at_peak);
    *t = (struct mem_timeline){0};
}
