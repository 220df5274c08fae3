/* snapshot_report.c - the document of a study. */
#include "doctor/snapshot_report.h"

#include "doctor/report.h"

#include <string.h>

enum {
    PLACES_MAX = 24,
    SIZES_MAX = 12,
    GROWS_MAX = 12,
    PINS_MAX = 8,
    STACK_MAX = 16,
    POINTS_MAX = 64
};

/* Index within the device's events, as a reader counts them; -1: before the first. */
static int64_t event_number(const struct study_device *d, uint32_t event)
{
    return event == SNAP_NONE ? -1 : (int64_t)event - d->walk.d->events_first;
}

static void put_text(json_t *o, const char *key, struct str *text)
{
    json_put_str(o, key, text->n ? text->data : "");
    str_release(text);
}

/* The frames of a stack that say something: the user's own and libraries', without the interpreter.
 */
static json_t *stack_json(const struct study *x, uint32_t stack)
{
    json_t *a = json_array();
    const struct snap_stack *k = &x->s->stacks[stack];
    const uint32_t *ids = snap_stack_frames(x->s, stack);
    for (uint32_t i = 0; i < k->n && json_array_size(a) < STACK_MAX; i++) {
        uint32_t m = x->labels.marks[ids[i]];
        if (!(m & MARK(PYTHON)) || (m & (MARK(MODULE) | MARK(TORCH))))
            continue;
        struct str t;
        str_init(&t);
        label_place(x->s, ids[i], &t);
        (void)json_array_append_new(a, json_string(t.data));
        str_release(&t);
    }
    return a;
}

static uint32_t stack_of(const struct study_device *d, uint32_t life)
{
    const struct snap_life *l = walk_life(&d->walk, life);
    if (l->alloc != SNAP_NONE)
        return d->walk.s->events[l->alloc].stack;
    return l->block != SNAP_NONE ? d->walk.s->blocks[l->block].stack : 0;
}

static void put_place(json_t *o, const struct study *x, uint32_t stack)
{
    const struct stack_label *k = &x->labels.of[stack];
    struct str t;
    str_init(&t);
    label_group_text(&x->labels, k->group, &t);
    put_text(o, "place", &t);
    json_put_str(o, "phase", label_phase(k->phase, (k->marks & MARK(LOSS)) != 0));
    if (k->frame != LABEL_NONE) {
        const struct snap_frame *f = &x->s->frames[k->frame];
        json_put_str(o, "file", snap_text(x->s, f->file));
        json_put_i64(o, "line", f->line);
        json_put_str(o, "function", snap_text(x->s, f->name));
    }
    if (k->op != LABEL_NONE) {
        str_init(&t);
        label_op(x->s, k->op, &t);
        put_text(o, "operator", &t);
    }
}

static void
put_origin(json_t *o, const struct study *x, const struct study_device *d, uint32_t life)
{
    uint32_t origin = walk_origin(&d->walk, life);
    const char *node = snap_text(x->s, x->s->origins[origin].node);
    if (node[0])
        json_put_str(o, "node", node);
}

json_t *snapshot_report_place(const struct study *x, const struct study_device *d, uint32_t life)
{
    json_t *o = json_object();
    const struct snap_life *l = walk_life(&d->walk, life);
    put_place(o, x, stack_of(d, life));
    if (l->alloc == SNAP_NONE && stack_of(d, life) == 0) {
        json_put_str(o, "place", "(allocated before the recording)");
        json_put_str(o, "phase", "");
    }
    put_origin(o, x, d, life);
    json_put_str(o, "category", d->walk.category_names[d->walk.category[life]]);
    json_put(o, "stack", stack_json(x, stack_of(d, life)));
    return o;
}

/* ---- devices and peaks ---- */

static json_t *peak_json(const struct study *x, const struct study_device *d)
{
    const struct walk *w = &d->walk;
    json_t *o = json_object();
    bool exact = d->replayed && replay_is_exact(&d->exact);
    json_put_i64(o, "live_bytes", exact ? d->exact.allocated_peak_bytes : w->peak_bytes);
    json_put_i64(o, "event", event_number(d, w->peak_event));
    json_put_str(o, "phase", label_phase((uint8_t)d->peak_phase, d->peak_loss));
    json_put_bool(o, "backward_begins", d->backward_begins);
    if (w->peak_event != SNAP_NONE) {
        const struct snap_event *v = &x->s->events[w->peak_event];
        json_t *place = json_object();
        put_place(place, x, v->stack);
        json_put(place, "stack", stack_json(x, v->stack));
        if (snap_text(x->s, x->s->origins[v->origin].node)[0])
            json_put_str(place, "node", snap_text(x->s, x->s->origins[v->origin].node));
        json_put_i64(place, "request_bytes", v->size);
        json_put(o, "allocation", place);
        if (v->time_us)
            json_put_i64(o, "time_us", v->time_us);
    }
    json_put_i64(o, "reserved_bytes", w->reserved_peak_bytes);
    json_put_i64(o, "reserved_event", event_number(d, w->reserved_peak_event));
    return o;
}

static json_t *device_json(const struct study *x, const struct study_device *d)
{
    const struct walk *w = &d->walk;
    json_t *o = json_object();
    json_put_i64(o, "device", d->device);
    json_put_i64(o, "events", w->d->events_n);
    json_put_i64(o, "segments", w->d->segments_n);
    json_put_i64(o, "live_start_bytes", w->start_bytes);
    json_put_i64(o, "live_peak_bytes", w->peak_bytes);
    json_put_i64(o, "live_end_bytes", w->end_bytes);
    json_put_i64(o, "reserved_start_bytes", w->reserved_start_bytes);
    json_put_i64(o, "reserved_peak_bytes", w->reserved_peak_bytes);
    json_put_i64(o, "reserved_end_bytes", w->reserved_end_bytes);
    json_put_i64(o, "ooms", w->d->actions_n[SNAP_OOM]);
    json_put_i64(o, "optimizer_steps", w->steps_n);
    json_put(o, "peak", peak_json(x, d));
    if (d->replayed) {
        json_put_bool(o, "replay_exact", replay_is_exact(&d->exact));
        json_put_i64(o, "allocated_start_bytes", d->exact.allocated_start_bytes);
        json_put_i64(o, "allocated_peak_bytes", d->exact.allocated_peak_bytes);
    }
    return o;
}

static json_t *snapshot_json(const struct study *x)
{
    const struct snapshot *s = x->s;
    json_t *o = json_object(), *devices = json_array(), *warnings = json_array();
    json_put_i64(o, "events", s->events_n);
    json_put_bool(o, "stacks", s->has_stacks);
    json_put_bool(o, "expandable_segments", s->settings.expandable_segments);
    json_put_str(o, "alloc_conf", snap_text(s, s->settings.conf));
    if (s->settings.trace_overflowed >= 0)
        json_put_bool(o, "events_lost", s->settings.trace_overflowed == 1);
    for (int i = 0; i < x->devices_n; i++)
        (void)json_array_append_new(devices, device_json(x, &x->devices[i]));
    json_put(o, "devices", devices);
    for (uint32_t i = 0; i < s->warnings_n && i < SNAP_WARNINGS_MAX; i++)
        (void)json_array_append_new(warnings, json_string(s->warnings[i]));
    json_put(o, "warnings", warnings);
    return o;
}

/* ---- who holds it ---- */

static json_t *categories_json(const struct study_device *d)
{
    json_t *a = json_array();
    bool done[HOLDER_COUNT_MAX] = {false};
    for (;;) {
        int best = -1;
        for (int i = 0; i < d->walk.categories_n; i++)
            if (!done[i] && d->holders.by_category_n[i] &&
                (best < 0 || d->holders.by_category[i] > d->holders.by_category[best]))
                best = i;
        if (best < 0)
            return a;
        done[best] = true;
        json_t *o = json_object();
        json_put_str(o, "category", d->walk.category_names[best]);
        json_put_i64(o, "bytes", d->holders.by_category[best]);
        json_put_i64(o, "blocks", d->holders.by_category_n[best]);
        (void)json_array_append_new(a, o);
    }
}

static json_t *holders_json(const struct study *x, const struct study_device *d)
{
    const struct holders *h = &d->holders;
    json_t *o = json_object(), *places = json_array(), *sizes = json_array(), *age = json_object();
    json_put_str(o, "at", d->peak_is_moment ? "peak" : "out of memory");
    json_put_i64(o, "event", event_number(d, h->moment));
    json_put_i64(o, "live_bytes", h->live_bytes);
    json_put_i64(o, "blocks", h->live_n);
    json_put(o, "categories", categories_json(d));
    for (uint32_t i = 0; i < h->rows_n && i < PLACES_MAX; i++) {
        const struct holder *r = &h->rows[i];
        json_t *p = snapshot_report_place(x, d, r->largest_life);
        json_put_i64(p, "bytes", r->bytes);
        json_put_i64(p, "blocks", r->n);
        json_put_i64(p, "largest_bytes", r->largest_bytes);
        (void)json_array_append_new(places, p);
    }
    for (uint32_t i = 0; i < h->sizes_n && i < SIZES_MAX; i++) {
        json_t *p = json_object();
        json_put_i64(p, "size_bytes", h->sizes[i].size_bytes);
        json_put_i64(p, "blocks", h->sizes[i].n);
        json_put_i64(p, "bytes", h->sizes[i].bytes);
        (void)json_array_append_new(sizes, p);
    }
    json_put_i64(age, "before_recording_bytes", h->age_earlier_bytes);
    json_put_i64(age, "former_iterations_bytes", h->age_former_bytes);
    json_put_i64(age, "this_iteration_bytes", h->age_current_bytes);
    json_put(o, "places", places);
    json_put_i64(o, "places_n", h->rows_n);
    json_put(o, "sizes", sizes);
    json_put(o, "age", age);
    return o;
}

/* ---- iterations ---- */

static json_t *iterations_json(const struct study *x, const struct study_device *d)
{
    const struct growth_report *g = &d->growth;
    json_t *o = json_object(), *live = json_array(), *grows = json_array();
    if (!g->by) {
        json_decref(live);
        json_decref(grows);
        json_decref(o);
        return json_null();
    }
    json_put_str(o, "by", g->by);
    json_put_i64(o, "n", g->n);
    json_put_i64(o, "first_that_counts", g->first);
    json_put_bool(o, "rising", g->rising);
    json_put_f64(o, "bytes_per_iteration", g->bytes_per_iteration);
    json_put_i64(o, "total_bytes", g->total_bytes);
    uint32_t stride = g->n / POINTS_MAX + 1;
    for (uint32_t i = 0; i < g->n; i += stride)
        (void)json_array_append_new(live, json_integer(g->live_bytes[i]));
    json_put(o, "live_bytes", live);
    json_put_i64(o, "live_bytes_every", stride);
    for (uint32_t i = 0; i < g->rows_n && i < GROWS_MAX; i++) {
        const struct growth_row *r = &g->rows[i];
        json_t *p = snapshot_report_place(x, d, r->life);
        json_put_i64(p, "bytes", r->bytes);
        json_put_i64(p, "blocks", r->n);
        json_put_i64(p, "iterations", r->iterations_n);
        json_put_i64(p, "bytes_per_iteration", r->bytes / (r->iterations_n ? r->iterations_n : 1));
        (void)json_array_append_new(grows, p);
    }
    json_put(o, "stays", grows);
    json_put_i64(o, "stays_bytes", g->kept_bytes);
    json_put_bool(
        o, "graph_retained",
        g->kept_places_n >= 2 && 2 * g->kept_activation_bytes >= g->kept_bytes);
    return o;
}

/* ---- fragmentation ---- */

/* The live blocks of a segment that keep it, the largest first. */
static json_t *pin_json(
    const struct study *x, const struct study_device *d, const struct snap_layout *at,
    uint32_t segment)
{
    enum { BLOCKS_MAX = 3 };
    const struct layout_segment *g = &at->segments[segment];
    json_t *o = json_object(), *blocks = json_array();
    json_put_i64(o, "address", (int64_t)g->addr);
    json_put_i64(o, "bytes", g->bytes);
    json_put_i64(o, "free_bytes", g->bytes - g->live_bytes);
    json_put_i64(o, "largest_free_bytes", g->largest_free_bytes);
    json_put_i64(o, "live_blocks", g->blocks_n);
    uint32_t best[BLOCKS_MAX];
    int n = 0;
    for (uint32_t i = g->first_block; i < g->first_block + g->blocks_n; i++) {
        int k = n < BLOCKS_MAX ? n++ : BLOCKS_MAX;
        for (; k > 0 && at->blocks[best[k - 1]].bytes < at->blocks[i].bytes; k--)
            if (k < BLOCKS_MAX)
                best[k] = best[k - 1];
        if (k < BLOCKS_MAX)
            best[k] = i;
    }
    for (int i = 0; i < n; i++) {
        json_t *p = snapshot_report_place(x, d, at->blocks[best[i]].life);
        json_put_i64(p, "bytes", at->blocks[best[i]].bytes);
        (void)json_array_append_new(blocks, p);
    }
    json_put(o, "blocks", blocks);
    return o;
}

static json_t *
layout_json(const struct study *x, const struct study_device *d, const struct snap_layout *at)
{
    json_t *o = json_object(), *pins = json_array();
    uint32_t half[PINS_MAX];
    json_put_i64(o, "reserved_bytes", at->reserved_bytes);
    json_put_i64(o, "live_bytes", at->live_bytes);
    json_put_i64(o, "free_bytes", at->free_bytes);
    json_put_i64(o, "free_blocks", at->free_n);
    json_put_i64(o, "largest_free_bytes", at->largest_free_bytes);
    json_put_i64(o, "inactive_split_bytes", at->split_bytes);
    json_put_i64(o, "whole_free_segments_bytes", at->whole_bytes);
    json_put_i64(o, "segments", at->segments_n);
    if (at->private_bytes) {
        json_put_i64(o, "private_pools_bytes", at->private_bytes);
        json_put_i64(o, "private_pools_live_bytes", at->private_live_bytes);
    }
    if (at->expandable_bytes)
        json_put_i64(o, "expandable_bytes", at->expandable_bytes);
    int n = layout_half_empty(at, PINS_MAX, half);
    for (int i = 0; i < n; i++)
        (void)json_array_append_new(pins, pin_json(x, d, at, half[i]));
    json_put(o, "pinned_segments", pins);
    return o;
}

static json_t *fragmentation_json(const struct study *x, const struct study_device *d)
{
    json_t *o = json_object();
    json_put_str(o, "at", d->peak_is_moment ? "peak" : "out of memory");
    json_put(o, "then", layout_json(x, d, &d->at));
    json_put(o, "end", layout_json(x, d, &d->end));
    return o;
}

static json_t *proof_json(const struct study_proof *p)
{
    json_t *o = json_object();
    json_put_i64(o, "settings_tried", p->tried_n);
    json_put_bool(o, "recorded_settings_fail", p->base_fails);
    json_put_str(o, "helps", p->setting[0] ? p->setting : NULL);
    json_put_bool(o, "fits", p->fits);
    if (p->needs_bytes >= 0)
        json_put_i64(o, "needs_bytes", p->needs_bytes);
    if (p->base_needs_bytes >= 0)
        json_put_i64(o, "recorded_settings_need_bytes", p->base_needs_bytes);
    return o;
}

static bool about_pieces(const struct verdict *d)
{
    bool found = d->kind == OOM_FRAGMENTATION;
    for (int i = 0; i < d->n_also; i++)
        found = found || d->also[i].kind == OOM_FRAGMENTATION;
    return found;
}

json_t *snapshot_report_document(struct study *x)
{
    struct evidence v;
    struct verdict verdict;
    evidence_from_study(x, &v);
    if (verdict_of(&v, &verdict) && about_pieces(&verdict)) {
        study_prove(x);
        evidence_from_study(x, &v);
    }
    json_t *o =
        report_evidence_document(&v, x->s->form == SNAP_JSON ? "json snapshot" : "pickle snapshot");
    const struct study_device *d = study_main(x);
    json_put(o, "snapshot", snapshot_json(x));
    if (!d)
        return o;
    json_put_bool(o, "out_of_memory", d->walk.oom_event != SNAP_NONE);
    json_put(o, "peak", peak_json(x, d));
    json_put(o, "holders", holders_json(x, d));
    json_put(o, "iterations", iterations_json(x, d));
    json_put(o, "fragmentation", fragmentation_json(x, d));
    json_put(o, "replay", x->proof.done ? proof_json(&x->proof) : json_null());
    return o;
}
