/* oom.c - out of memory as an answer: numbers, PyTorch's sentence, and who holds what. */
#include "mem/pool/pool_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Holders. */

static int order(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

static int by_name(const void *a, const void *b)
{
    const struct mem_holder *x = a, *y = b;
    int c = strcmp(x->what, y->what);
    return c ? c : strcmp(x->node, y->node);
}

static int by_bytes(const void *a, const void *b)
{
    const struct mem_holder *x = a, *y = b;
    return x->bytes != y->bytes ? order(y->bytes, x->bytes) : by_name(a, b);
}

static size_t live_list(const struct mem_pool *p, struct mem_holder *out)
{
    size_t n = 0;
    for (size_t i = 0; i < p->segments.n; i++)
        for (const struct mem_block *b = p->segments.data[i]->head; b; b = b->next)
            if (b->state == BLOCK_LIVE)
                out[n++] = (struct mem_holder){
                    b->tag.what ? b->tag.what : "", b->tag.node ? b->tag.node : "", b->size_bytes,
                    1};
    return n;
}

size_t holders_list(const struct mem_pool *p, struct mem_holder *out, size_t cap)
{
    const struct counters *blocks = &p->stat[STAT_allocation];
    int64_t live_n = blocks->kind[KIND_LARGE].current + blocks->kind[KIND_SMALL].current;
    size_t unique = 0;
    struct mem_holder *h = mem_alloc((size_t)(live_n + 1) * sizeof *h);
    size_t n = live_list(p, h);
    qsort(h, n, sizeof *h, by_name);
    for (size_t i = 0; i < n; i++) {
        if (unique && by_name(&h[unique - 1], &h[i]) == 0) {
            h[unique - 1].bytes += h[i].bytes;
            h[unique - 1].blocks_n++;
        } else {
            h[unique++] = h[i];
        }
    }
    qsort(h, unique, sizeof *h, by_bytes);
    unique = unique < cap ? unique : cap;
    if (unique)
        memcpy(out, h, unique * sizeof *h);
    mem_free(h);
    return unique;
}

size_t mem_pool_holders(struct mem_pool *p, struct mem_holder *out, size_t cap)
{
    pthread_mutex_lock(&p->lock);
    size_t n = holders_list(p, out, cap);
    pthread_mutex_unlock(&p->lock);
    return n;
}

/* Our own error. */

static void describe(const struct mem_pool *p, struct str *s)
{
    char live[32], reserved[32], held[32], budget[32];
    struct mem_holder h[5];
    struct mem_pool_stats stats;
    size_t n = holders_list(p, h, 5);
    stats_fill(p, &stats);
    str_printf(
        s, "live %s in %lld blocks, reserved %s in %zu segments, device holds %s",
        bytes_text(stats.allocated_bytes[MEM_STAT_ALL].current, live, sizeof live),
        (long long)stats.allocation[MEM_STAT_ALL].current,
        bytes_text(stats.reserved_bytes[MEM_STAT_ALL].current, reserved, sizeof reserved),
        p->segments.n, bytes_text(p->source->held_bytes, held, sizeof held));
    if (p->source->budget_bytes)
        str_printf(s, " of %s", bytes_text(p->source->budget_bytes, budget, sizeof budget));
    for (size_t i = 0; i < n; i++)
        str_printf(
            s, "\n  %s%s%s%s: %s in %lld blocks", h[i].what, h[i].node[0] ? " of node \"" : "",
            h[i].node, h[i].node[0] ? "\"" : "", bytes_text(h[i].bytes, live, sizeof live),
            (long long)h[i].blocks_n);
}

static enum status fill_error(const struct request *r, bool absurd, struct err *e)
{
    const struct mem_pool *p = r->p;
    char need[32], segment[32];
    struct str s;
    const char *what = r->tag->what ? r->tag->what : "";
    if (absurd)
        return err_set(
            e, ST_OOM, "out of memory on device \"%s\": more than 1 EiB were asked for \"%s\"",
            p->source->device, what);
    str_init(&s);
    describe(p, &s);
    enum status st = err_set(
        e, ST_OOM, "out of memory on device \"%s\": %s for \"%s\" need a segment of %s",
        p->source->device, bytes_text(r->requested_bytes, need, sizeof need), what,
        bytes_text(r->segment_bytes, segment, sizeof segment));
    err_detail(e, "%s", s.data);
    str_release(&s);
    return st;
}

static void note(struct request *r, bool absurd)
{
    struct mem_pool *p = r->p;
    p->oom_set = true;
    p->oom = (struct mem_pool_oom){
        .requested_bytes = r->requested_bytes, .tag = *r->tag, .absurd = absurd};
    if (absurd)
        return;
    struct mem_pool_stats stats;
    stats_fill(p, &stats);
    struct mem_pool_oom *o = &p->oom;
    o->rounded_bytes = r->size_bytes;
    o->tried_bytes = r->segment_bytes;
    o->allowed_bytes = p->allowed_bytes;
    o->stream = r->set->stream;
    mem_source_info(p->source, &o->free_bytes, &o->total_bytes);
    o->allocated_bytes = stats.allocated_bytes[MEM_STAT_ALL].current;
    o->reserved_bytes = stats.reserved_bytes[MEM_STAT_ALL].current;
    o->private_bytes = private_free_bytes(p);
    p->source->refused = (struct mem_refusal){
        .need_bytes = r->requested_bytes,
        .held_bytes = p->source->held_bytes,
        .budget_bytes = p->source->budget_bytes,
        .free_bytes = o->free_bytes,
        .total_bytes = o->total_bytes,
        .live_bytes = o->allocated_bytes,
        .reserved_bytes = o->reserved_bytes,
        .reserved_peak_bytes = stats.reserved_bytes[MEM_STAT_ALL].peak,
        .by = p};
}

enum status oom_answer(struct request *r, bool absurd, struct err *e)
{
    struct mem_pool *p = r->p;
    note(r, absurd);
    if (!absurd) {
        p->num_ooms++;
        bool limit = p->allowed_bytes && r->segment_bytes > p->allowed_bytes - p->reserved_bytes;
        if (limit && p->conf.throw_on_cudamalloc_oom)
            p->num_oom_rejections++;
    }
    if (p->listen && !absurd) {
        struct mem_event event = {
            .kind = MEM_EVENT_OOM,
            .size_bytes = r->size_bytes,
            .device_free_bytes = p->oom.free_bytes,
            .stream = r->set->stream,
            .pool = block_pool_id(r->pool),
            .tag = *r->tag};
        p->listen(p->listen_ctx, &event);
    }
    enum status st = fill_error(r, absurd, e);
    if (r->tag->node)
        err_node(e, r->tag->node, "");
    return st;
}

/* PyTorch's numbers and sentence. */

bool mem_pool_last_oom(struct mem_pool *p, struct mem_pool_oom *out)
{
    pthread_mutex_lock(&p->lock);
    bool set = p->oom_set;
    if (set)
        *out = p->oom;
    pthread_mutex_unlock(&p->lock);
    return set;
}

const char *mem_size_text(int64_t bytes, char *buf, size_t cap)
{
    double v = (double)bytes;
    if (bytes <= 1024)
        (void)snprintf(buf, cap, "%lld bytes", (long long)bytes);
    else if (bytes <= 1024 * 1024)
        (void)snprintf(buf, cap, "%.2f KiB", v / 1024);
    else if (bytes <= 1024 * 1024 * 1024)
        (void)snprintf(buf, cap, "%.2f MiB", v / (1024 * 1024));
    else
        (void)snprintf(buf, cap, "%.2f GiB", v / (1024.0 * 1024 * 1024));
    return buf;
}

static void add_size(struct str *out, const char *before, int64_t bytes, const char *after)
{
    char text[48];
    str_printf(out, "%s%s%s", before, mem_size_text(bytes, text, sizeof text), after);
}

void mem_pool_oom_text(
    const struct mem_pool_oom *o, int device_id, int64_t own_bytes, const char *others,
    struct str *out)
{
    str_add(out, "CUDA out of memory. Tried to allocate ");
    if (o->absurd) {
        str_add(out, "more than 1EB memory.");
        return;
    }
    add_size(out, "", o->tried_bytes, "");
    str_printf(out, ". GPU %d has a total capacity of ", device_id);
    add_size(out, "", o->total_bytes, " of which ");
    add_size(out, "", o->free_bytes, " is free. ");
    str_add(out, others ? others : "");
    if (own_bytes >= 0)
        add_size(
            out, "Including non-PyTorch memory, this process has ", own_bytes, " memory in use. ");
    if (o->allowed_bytes)
        add_size(out, "", o->allowed_bytes, " allowed; ");
    add_size(
        out, "Of the allocated memory ", o->allocated_bytes + o->private_bytes,
        " is allocated by PyTorch, ");
    if (o->private_bytes)
        add_size(
            out, "with ", o->private_bytes, " allocated in private pools (e.g., CUDA Graphs), ");
    add_size(
        out, "and ", o->reserved_bytes - o->allocated_bytes - o->private_bytes,
        " is reserved by PyTorch but unallocated. ");
    str_add(
        out,
        "If reserved but unallocated memory is large try setting "
        "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation "
        "for Memory Management  (https://docs.pytorch.org/docs/stable/notes/"
        "cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)");
}
