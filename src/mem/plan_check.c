/* plan_check.c - the independent validator of storage plans. */
#include "mem/plan_check.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* A buffer begins or ends. Ends come before beginnings, since `last` is the operation before. */
struct event {
    int64_t op;
    int begins;
    size_t buffer;
};

/* The live buffers in order of offset. */
struct sweep {
    const struct mem_plan_buffer *buffers;
    const int64_t *offset;
    size_t *live;
    size_t live_n;
    int64_t granule, live_bytes, live_bytes_max;
};

static int by_op(const void *a, const void *b)
{
    const struct event *x = a, *y = b;
    if (x->op != y->op)
        return x->op < y->op ? -1 : 1;
    if (x->begins != y->begins)
        return x->begins - y->begins;
    return x->buffer < y->buffer ? -1 : x->buffer > y->buffer;
}

static int64_t padded(const struct sweep *s, size_t i)
{
    int64_t rest = s->buffers[i].size_bytes % s->granule;
    return s->buffers[i].size_bytes + (rest ? s->granule - rest : 0);
}

/* Index of the first live buffer whose offset is not below `offset`. */
static size_t position(const struct sweep *s, int64_t offset)
{
    size_t from = 0, until = s->live_n;
    while (from < until) {
        size_t half = (from + until) / 2;
        if (s->offset[s->live[half]] < offset)
            from = half + 1;
        else
            until = half;
    }
    return from;
}

static enum status
overlap(const struct sweep *s, size_t low, size_t high, int64_t op, struct err *e)
{
    return err_set(
        e, ST_INTERNAL,
        "storage plan: buffers %zu (%lld bytes at %lld) and %zu (%lld bytes at %lld) overlap at "
        "operation %lld",
        low, (long long)s->buffers[low].size_bytes, (long long)s->offset[low], high,
        (long long)s->buffers[high].size_bytes, (long long)s->offset[high], (long long)op);
}

static enum status begin(struct sweep *s, size_t i, int64_t op, struct err *e)
{
    size_t at = position(s, s->offset[i]);
    if (at < s->live_n && s->offset[s->live[at]] < s->offset[i] + padded(s, i))
        return overlap(s, i, s->live[at], op, e);
    if (at > 0 && s->offset[s->live[at - 1]] + padded(s, s->live[at - 1]) > s->offset[i])
        return overlap(s, s->live[at - 1], i, op, e);
    memmove(s->live + at + 1, s->live + at, (s->live_n - at) * sizeof *s->live);
    s->live[at] = i;
    s->live_n++;
    s->live_bytes += padded(s, i);
    if (s->live_bytes > s->live_bytes_max)
        s->live_bytes_max = s->live_bytes;
    return ST_OK;
}

static void end(struct sweep *s, size_t i)
{
    size_t at = position(s, s->offset[i]);
    ASSERT(at < s->live_n && s->live[at] == i);
    s->live_n--;
    memmove(s->live + at, s->live + at + 1, (s->live_n - at) * sizeof *s->live);
    s->live_bytes -= padded(s, i);
}

static enum status walk(struct sweep *s, size_t n, struct err *e)
{
    enum status st = ST_OK;
    size_t events_n = 0;
    struct event *events = mem_alloc(2 * n * sizeof *events);
    for (size_t i = 0; i < n; i++) {
        if (s->buffers[i].size_bytes == 0)
            continue;
        events[events_n++] = (struct event){s->buffers[i].first, 1, i};
        events[events_n++] = (struct event){s->buffers[i].last + 1, 0, i};
    }
    qsort(events, events_n, sizeof *events, by_op);
    for (size_t k = 0; k < events_n; k++) {
        if (events[k].begins)
            TRY_OUT(begin(s, events[k].buffer, events[k].op, e));
        else
            end(s, events[k].buffer);
    }
out:
    mem_free(events);
    return st;
}

static enum status figure(const char *what, int64_t claimed, int64_t found, struct err *e)
{
    if (claimed == found)
        return ST_OK;
    return err_set(
        e, ST_INTERNAL, "storage plan: %s is given as %lld, but is %lld", what, (long long)claimed,
        (long long)found);
}

/* Each offset by itself, and the highest end. */
static enum status check_offsets(const struct sweep *s, size_t n, int64_t *peak, struct err *e)
{
    for (size_t i = 0; i < n; i++) {
        int64_t step = s->buffers[i].alignment ? s->buffers[i].alignment : 64;
        int64_t at = s->offset[i], stop;
        if (at < 0 || at % step)
            return err_set(
                e, ST_INTERNAL, "storage plan: offset %lld of buffer %zu is not aligned to %lld",
                (long long)at, i, (long long)step);
        if (__builtin_add_overflow(at, padded(s, i), &stop))
            return err_set(
                e, ST_INTERNAL, "storage plan: buffer %zu at %lld ends past 2^63", i,
                (long long)at);
        if (stop > *peak && s->buffers[i].size_bytes > 0)
            *peak = stop;
    }
    return ST_OK;
}

enum status mem_plan_check(
    const struct mem_plan_buffer *buffers, size_t n, const struct mem_plan *p, struct err *e)
{
    struct sweep s = {.buffers = buffers, .offset = p->offset_bytes, .granule = 0};
    int64_t peak = 0;
    TRY(figure("the number of buffers", (int64_t)p->n, (int64_t)n, e));
    for (size_t i = 0; i < n; i++) {
        int64_t step = buffers[i].alignment ? buffers[i].alignment : 64;
        if (s.granule == 0 || step < s.granule)
            s.granule = step;
    }
    TRY(figure("the granule", p->granule_bytes, s.granule ? s.granule : 64, e));
    TRY(check_offsets(&s, n, &peak, e));
    s.live = mem_alloc((n + 1) * sizeof *s.live);
    enum status st = walk(&s, n, e);
    mem_free(s.live);
    TRY(st);
    TRY(figure("the peak", p->peak_bytes, peak, e));
    return figure("the lower bound", p->lower_bound_bytes, s.live_bytes_max, e);
}
