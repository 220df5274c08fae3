/* history_write.c - a history as a snapshot: PyTorch's keys and ours. FORMAT in history.h. */
#include "mem/doc_out.h"
#include "mem/history_int.h"

#include "base/env.h"

#include <stdlib.h>
#include <string.h>

#define MIB ((int64_t)1 << 20)

struct writing {
    struct mem_history *h;
    const struct mem_history_form *form;
    struct doc_out out;
    const struct history_parts *parts;
    uint32_t *frame_mark, *stack_mark; /* pickle: memo + 1; 0: not written yet */
};

/* ---- frames ---- */

static void write_frame(struct writing *w, uint32_t id)
{
    struct doc_out *d = &w->out;
    const struct history_frame *f = w->h->frames.rows.data[id].data;
    if (w->frame_mark[id]) {
        doc_out_again(d, w->frame_mark[id] - 1);
        return;
    }
    doc_map(d);
    doc_key(d, "filename");
    doc_text(d, history_text(w->h, f->file));
    doc_key(d, "name");
    doc_text(d, history_text(w->h, f->name));
    doc_key(d, "line");
    doc_int(d, f->line);
    doc_map_end(d);
    if (d->pickle)
        w->frame_mark[id] = doc_out_mark(d) + 1;
}

static void write_frames(struct writing *w, uint32_t stack)
{
    struct doc_out *d = &w->out;
    const struct intern_row *row = &w->h->stacks.rows.data[stack];
    const uint32_t *frames = row->data;
    doc_key(d, "frames");
    if (!d->pickle) {
        doc_int(d, stack);
    } else if (w->stack_mark[stack]) {
        doc_out_again(d, w->stack_mark[stack] - 1);
    } else {
        doc_list(d);
        for (size_t i = 0; i < row->size / sizeof *frames; i++)
            write_frame(w, frames[i]);
        doc_list_end(d);
        w->stack_mark[stack] = doc_out_mark(d) + 1;
    }
}

/* JSON: the tables that "frames" counts in. */
static void write_stacks(struct writing *w)
{
    struct doc_out *d = &w->out;
    const struct mem_history *h = w->h;
    doc_key(d, "frames");
    doc_list(d);
    for (uint32_t i = 1; i < h->frames.rows.n; i++)
        write_frame(w, i);
    doc_list_end(d);
    doc_key(d, "stacks");
    doc_list(d);
    for (size_t i = 0; i < h->stacks.rows.n; i++) {
        const struct intern_row *row = &h->stacks.rows.data[i];
        const uint32_t *frames = row->data;
        doc_list(d);
        for (size_t k = 0; k < row->size / sizeof *frames; k++)
            doc_int(d, frames[k] - 1); /* frame 0, the empty one, is not in the table */
        doc_list_end(d);
    }
    doc_list_end(d);
}

/* Node, category and step, where they are known. */
static void write_tag(struct writing *w, uint32_t tag, int32_t step)
{
    struct doc_out *d = &w->out;
    const struct history_tag *t = w->h->tags.rows.data[tag].data;
    if (tag && t->category) {
        doc_key(d, "category");
        doc_text(d, history_text(w->h, t->category));
    }
    if (tag && t->node) {
        doc_key(d, "node");
        doc_text(d, history_text(w->h, t->node));
    }
    if (step >= 0) {
        doc_key(d, "step");
        doc_int(d, step);
    }
}

/* ---- ours ---- */

static void put_int(struct doc_out *d, const char *key, int64_t v)
{
    doc_key(d, key);
    doc_int(d, v);
}

static void put_text(struct doc_out *d, const char *key, const char *v)
{
    doc_key(d, key);
    doc_text(d, v);
}

static void put_bool(struct doc_out *d, const char *key, bool v)
{
    doc_key(d, key);
    doc_bool(d, v);
}

static void write_device(struct doc_out *d, const struct mem_history_device *v)
{
    put_text(d, "device", v->name);
    put_int(d, "capacity_bytes", v->capacity_bytes);
    put_int(d, "others_bytes", v->others_bytes);
    put_int(d, "limit_bytes", v->limit_bytes);
}

static void write_snug(struct writing *w)
{
    struct doc_out *d = &w->out;
    const struct mem_history *h = w->h;
    doc_key(d, "snug");
    doc_map(d);
    put_text(d, "version", w->form->version ? w->form->version : "");
    if (h->file)
        put_text(d, "graph", h->file);
    if (h->devices.n > 0)
        write_device(d, &h->devices.data[0]);
    put_int(
        d, "large_segment_bytes", w->form->conf ? w->form->conf->large_segment_bytes : 20 * MIB);
    put_int(d, "events_lost", h->lost_n);
    doc_key(d, "devices");
    doc_list(d);
    for (size_t i = 0; i < h->devices.n; i++) {
        doc_map(d);
        write_device(d, &h->devices.data[i]);
        doc_map_end(d);
    }
    doc_list_end(d);
    if (!d->pickle)
        write_stacks(w);
    doc_map_end(d);
}

/* ---- segments ---- */

static const char *const state_names[] = {
    [MEM_BLOCK_FREE] = "inactive",
    [MEM_BLOCK_ALLOCATED] = "active_allocated",
    [MEM_BLOCK_PENDING_FREE] = "active_pending_free"};

static void write_block(struct writing *w, int device, const struct mem_block_info *b)
{
    struct doc_out *d = &w->out;
    bool free = b->state == MEM_BLOCK_FREE;
    const struct history_block *live = free ? NULL : history_live(w->h, device, b->addr);
    doc_map(d);
    doc_key(d, "address");
    doc_uint(d, b->addr);
    put_int(d, "size", b->size_bytes);
    put_int(d, "requested_size", b->requested_bytes);
    put_text(d, "state", state_names[b->state]);
    write_frames(w, live ? live->stack : 0);
    if (live)
        write_tag(w, live->tag, live->step);
    doc_map_end(d);
}

static void write_segment(struct writing *w, const struct history_part *part, size_t i)
{
    struct doc_out *d = &w->out;
    const struct mem_segment_info *s = &part->s.segments[i];
    doc_map(d);
    put_int(d, "device", part->device);
    doc_key(d, "address");
    doc_uint(d, s->addr);
    put_int(d, "total_size", s->size_bytes);
    put_int(d, "allocated_size", s->allocated_bytes);
    put_int(d, "active_size", s->active_bytes);
    put_int(d, "requested_size", s->requested_bytes);
    doc_key(d, "stream");
    doc_uint(d, s->stream);
    put_text(d, "segment_type", s->small ? "small" : "large");
    doc_key(d, "segment_pool_id");
    struct mem_pool_id id = history_pool_id(s->pool, part->number);
    doc_pair(d, id.first, id.second);
    put_bool(d, "is_expandable", s->expandable);
    write_frames(w, history_segment_stack(w->h, part->device, s->addr));
    doc_key(d, "blocks");
    doc_list(d);
    for (size_t k = 0; k < s->blocks_n; k++)
        write_block(w, part->device, &part->s.blocks[s->first_block + k]);
    doc_list_end(d);
    doc_map_end(d);
}

struct place {
    const struct history_part *part;
    size_t segment;
};

static int by_address(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    uint64_t p = x->part->s.segments[x->segment].addr, q = y->part->s.segments[y->segment].addr;
    if (x->part->device != y->part->device)
        return x->part->device < y->part->device ? -1 : 1;
    return p < q ? -1 : p > q;
}

static void write_segments(struct writing *w)
{
    VEC(struct place) list = {0};
    for (size_t k = 0; k < w->parts->list.n; k++) {
        const struct history_part *p = &w->parts->list.data[k];
        for (size_t i = 0; i < p->s.segments_n; i++)
            vec_push(&list, ((struct place){p, i}));
    }
    if (list.n > 1)
        qsort(list.data, list.n, sizeof *list.data, by_address);
    doc_key(&w->out, "segments");
    doc_list(&w->out);
    for (size_t i = 0; i < list.n; i++)
        write_segment(w, list.data[i].part, list.data[i].segment);
    doc_list_end(&w->out);
    vec_release(&list);
}

/* ---- events ---- */

static void write_event(struct writing *w, const struct history_event *v)
{
    struct doc_out *d = &w->out;
    const struct mem_history *h = w->h;
    const uint64_t *stream = h->streams.rows.data[v->stream].data;
    const struct mem_pool_id *pool = h->pools.rows.data[v->pool].data;
    doc_map(d);
    put_text(d, "action", mem_event_name((enum mem_event_kind)v->kind));
    doc_key(d, v->kind == MEM_EVENT_OOM ? "device_free" : "addr");
    doc_uint(d, v->addr);
    put_int(d, "size", v->size_bytes);
    doc_key(d, "stream");
    doc_uint(d, v->stream ? *stream : 0);
    put_int(d, "time_us", v->time_us);
    doc_key(d, "pool_id");
    doc_pair(d, v->pool ? pool->first : 0, v->pool ? pool->second : 0);
    write_frames(w, v->stack);
    write_tag(w, v->tag, v->step);
    doc_map_end(d);
}

static void write_traces(struct writing *w)
{
    const struct mem_history *h = w->h;
    doc_key(&w->out, "device_traces");
    doc_list(&w->out);
    for (size_t device = 0; device < h->devices.n; device++) {
        doc_list(&w->out);
        for (size_t i = 0; i < h->n; i++) {
            const struct history_event *v = &h->ring[(h->first + i) % h->ring_cap];
            if (v->device == device)
                write_event(w, v);
        }
        doc_list_end(&w->out);
    }
    doc_list_end(&w->out);
}

/* ---- settings ---- */

static void write_settings(struct writing *w)
{
    struct doc_out *d = &w->out;
    struct mem_pool_conf defaults;
    const struct mem_pool_conf *c = w->form->conf ? w->form->conf : &defaults;
    mem_pool_conf_init(&defaults);
    doc_key(d, "allocator_settings");
    doc_map(d);
    put_text(d, "PYTORCH_CUDA_ALLOC_CONF", c->text);
    put_int(
        d, "max_split_size",
        c->max_split_size_bytes == MEM_POOL_UNLIMITED ? -1 : c->max_split_size_bytes);
    doc_key(d, "garbage_collection_threshold");
    doc_real(d, c->garbage_collection_threshold);
    put_bool(d, "expandable_segments", c->expandable_segments);
    put_int(d, "pinned_num_register_threads", c->pinned_num_register_threads);
    put_bool(d, "release_lock_on_cudamalloc", c->release_lock_on_cudamalloc);
    put_bool(d, "pinned_use_cuda_host_register", c->pinned_use_cuda_host_register);
    put_bool(d, "graph_capture_record_stream_reuse", c->graph_capture_record_stream_reuse);
    doc_key(d, "roundup_power2_divisions");
    doc_map(d);
    for (int i = 0; i < MEM_POOL_DIVISIONS_N; i++) {
        char megabytes[16];
        (void)snprintf(megabytes, sizeof megabytes, "%d", 1 << i);
        put_int(d, megabytes, c->roundup_power2_divisions[i]);
    }
    doc_map_end(d);
    put_bool(d, "trace_alloc_overflowed", w->h->lost_n > 0);
    put_int(d, "trace_alloc_max_entries", (int64_t)w->h->ring_max);
    doc_map_end(d);
}

/* ---- the document ---- */

static void write_document(struct writing *w, FILE *f)
{
    struct doc_out *d = &w->out;
    doc_out_begin(d, f, w->form->pickle);
    doc_map(d);
    write_snug(w);
    write_segments(w);
    write_traces(w);
    write_settings(w);
    doc_key(d, "external_annotations");
    doc_list(d);
    doc_list_end(d);
    doc_map_end(d);
    doc_out_end(d);
}

enum status mem_history_write(
    struct mem_history *h, const char *path, const struct mem_history_form *form, struct err *e)
{
    struct file_whole file;
    struct writing w = {.h = h, .form = form};
    struct history_parts now = {0};
    TRY(file_whole_begin(&file, path, e));
    w.parts = h->frozen ? &h->parts : &now;
    if (!h->frozen)
        history_parts_take(h, &now);
    (void)pthread_mutex_lock(&h->lock);
    w.frame_mark = mem_alloc((h->frames.rows.n + 1) * sizeof *w.frame_mark);
    w.stack_mark = mem_alloc((h->stacks.rows.n + 1) * sizeof *w.stack_mark);
    write_document(&w, file.out);
    (void)pthread_mutex_unlock(&h->lock);
    history_parts_release(&now);
    mem_free(w.frame_mark);
    mem_free(w.stack_mark);
    return file_whole_commit(&file, e);
}
