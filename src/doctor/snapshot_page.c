/* snapshot_page.c - the data of the drawings, and the page around them. */
#include "doctor/snapshot_page.h"

#include "doctor/snapshot_report.h"
#include "doctor/timeline.h"

#include <stdlib.h>
#include <string.h>

extern const unsigned char snapshot_page_html[]; /* ends with a NUL (cmake/embed.cmake) */

enum {
    SEGMENTS_MAX = 500,   /* of a map; the smallest are left to the sums */
    PIECES_MAX = 24000,   /* of a map, all segments together */
    SEGMENT_PIECES = 900, /* of one segment: finer than a screen shows */
    MARKS_MAX = 400,
    PLACES_MAX = 4000
};

/* ---- over the events ---- */

static json_t *
band_json(const struct study *x, const struct study_device *d, const struct holder *h)
{
    json_t *o = json_object();
    struct str t;
    str_init(&t);
    const struct label_group *g = &x->labels.groups[h->group];
    label_group_text(&x->labels, h->group, &t);
    bool earlier = walk_life(&d->walk, h->largest_life)->alloc == SNAP_NONE && !g->node &&
                   g->frame == LABEL_NONE;
    json_put_str(o, "place", earlier ? "allocated before the recording" : t.data);
    json_put_str(o, "category", d->walk.category_names[h->category]);
    json_put_str(o, "phase", earlier ? "" : label_phase(g->phase, g->loss));
    str_release(&t);
    return o;
}

static json_t *
bands_json(const struct study *x, const struct study_device *d, const struct timeline *t)
{
    json_t *a = json_array();
    for (int i = 0; i < t->bands_n; i++)
        (void)json_array_append_new(a, band_json(x, d, &t->bands[i]));
    return a;
}

static json_t *numbers(void)
{
    return json_array();
}

static void add(json_t *a, int64_t n)
{
    (void)json_array_append_new(a, json_integer(n));
}

/* [live least, live most, reserved least, reserved most, phase, bands...] of each bucket. */
static json_t *buckets_json(const struct timeline *t)
{
    json_t *all = json_array();
    for (uint32_t i = 0; i < t->buckets_n; i++) {
        const struct timeline_bucket *b = &t->buckets[i];
        json_t *row = numbers();
        add(row, b->live_min);
        add(row, b->live_max);
        add(row, b->reserved_min);
        add(row, b->reserved_max);
        add(row, b->loss && b->phase == MOMENT_FORWARD ? MOMENT_COUNT : b->phase);
        for (int k = 0; k < t->bands_n; k++)
            add(row, b->bands[k]);
        add(row, b->bands[TIMELINE_HOLDERS]);
        add(row, b->bands[TIMELINE_HOLDERS + 1]);
        (void)json_array_append_new(all, row);
    }
    return all;
}

static json_t *marks_json(const struct study_device *d)
{
    json_t *a = json_array();
    const struct growth_report *g = &d->growth;
    uint32_t stride = g->n / MARKS_MAX + 1;
    for (uint32_t i = 0; g->by && i < g->n; i += stride)
        add(a, g->begins[i] - d->walk.d->events_first);
    return a;
}

/* ---- segments ---- */

struct places {
    uint32_t *number; /* of each group, plus 1; 0: not listed yet */
    json_t *texts;
};

static int64_t
place_of(const struct study *x, struct places *p, const struct study_device *d, uint32_t life)
{
    uint32_t group = walk_group(&d->walk, life);
    if (p->number[group] == 0) {
        if (json_array_size(p->texts) >= PLACES_MAX)
            return -1;
        struct str t;
        str_init(&t);
        const struct label_group *g = &x->labels.groups[group];
        bool unknown = !g->node && g->frame == LABEL_NONE && g->op == LABEL_NONE;
        if (unknown && walk_life(&d->walk, life)->alloc == SNAP_NONE)
            str_add(&t, "allocated before the recording");
        else
            label_group_text(&x->labels, group, &t);
        (void)json_array_append_new(p->texts, json_string(t.data));
        str_release(&t);
        p->number[group] = (uint32_t)json_array_size(p->texts);
    }
    return p->number[group] - 1;
}

struct piece {
    uint64_t from, to;
    int64_t live;
    uint32_t life; /* the largest one of it */
    uint32_t n;
};

static json_t *piece_json(
    const struct study *x, struct places *p, const struct study_device *d, const struct timeline *t,
    const struct layout_segment *g, const struct piece *k)
{
    json_t *o = numbers();
    add(o, (int64_t)(k->from - g->addr));
    add(o, (int64_t)(k->to - k->from));
    add(o, k->live);
    add(o, k->n);
    add(o, timeline_band(t, &d->walk, k->life));
    add(o, place_of(x, p, d, k->life));
    add(o, d->walk.category[k->life]);
    return o;
}

/* Live blocks from left to right; neighbours thinner than `grain` are drawn as one. */
static json_t *pieces_json(
    const struct study *x, struct places *p, const struct study_device *d, const struct timeline *t,
    const struct snap_layout *at, const struct layout_segment *g, int64_t grain)
{
    json_t *a = json_array();
    struct piece k = {0};
    int64_t largest = 0;
    for (uint32_t i = g->first_block; i < g->first_block + g->blocks_n; i++) {
        const struct layout_block *b = &at->blocks[i];
        uint64_t to = b->addr + (uint64_t)b->bytes;
        bool thin = k.n && (int64_t)(to - k.from) <= grain;
        if (k.n && !thin)
            (void)json_array_append_new(a, piece_json(x, p, d, t, g, &k));
        if (!thin) {
            k = (struct piece){.from = b->addr};
            largest = -1;
        }
        k.to = to;
        k.live += b->bytes;
        k.n++;
        if (b->bytes > largest) {
            largest = b->bytes;
            k.life = b->life;
        }
    }
    if (k.n)
        (void)json_array_append_new(a, piece_json(x, p, d, t, g, &k));
    return a;
}

static int by_bytes(const void *a, const void *b)
{
    const struct layout_segment *x = *(const struct layout_segment *const *)a,
                                *y = *(const struct layout_segment *const *)b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return (x->addr > y->addr) - (x->addr < y->addr);
}

/* [address, bytes, live, expandable, private pool, pieces] of each segment, the largest first. */
static json_t *map_json(
    const struct study *x, struct places *p, const struct study_device *d, const struct timeline *t,
    const struct snap_layout *at)
{
    json_t *o = json_object(), *all = json_array();
    const struct layout_segment **order = mem_alloc(((size_t)at->segments_n + 1) * sizeof *order);
    int64_t left = PIECES_MAX;
    uint32_t drawn = 0;
    for (uint32_t i = 0; i < at->segments_n; i++)
        order[i] = &at->segments[i];
    qsort(order, at->segments_n, sizeof *order, by_bytes);
    for (; drawn < at->segments_n && drawn < SEGMENTS_MAX && left > 0; drawn++) {
        const struct layout_segment *g = order[drawn];
        json_t *row = numbers();
        json_t *pieces = pieces_json(x, p, d, t, at, g, g->bytes / SEGMENT_PIECES);
        left -= (int64_t)json_array_size(pieces) + 1;
        add(row, (int64_t)g->addr);
        add(row, g->bytes);
        add(row, g->live_bytes);
        add(row, g->expandable);
        add(row, g->pool != 0);
        (void)json_array_append_new(row, pieces);
        (void)json_array_append_new(all, row);
    }
    json_put_i64(o, "segments_n", at->segments_n);
    json_put_i64(o, "reserved_bytes", at->reserved_bytes);
    json_put_i64(o, "live_bytes", at->live_bytes);
    json_put_i64(o, "largest_free_bytes", at->largest_free_bytes);
    json_put(o, "segments", all);
    mem_free(order);
    return o;
}

/* As the page counts events; -1: before the first, or none. */
static int64_t number_of(const struct study_device *d, uint32_t event)
{
    return event == SNAP_NONE ? -1 : (int64_t)event - d->walk.d->events_first;
}

static json_t *device_data(const struct study *x, const struct study_device *d)
{
    struct timeline t;
    struct places p = {
        .number = mem_alloc(((size_t)x->labels.groups_n + 1) * sizeof(uint32_t)),
        .texts = json_array()};
    json_t *o = json_object();
    struct holders end;
    uint32_t last =
        d->walk.d->events_n ? d->walk.d->events_first + d->walk.d->events_n - 1 : SNAP_NONE;
    holders_at(&d->walk, last, SNAP_NONE, &end);
    timeline_init(&t, &d->walk, &d->holders, &end);
    holders_release(&end);
    json_put_i64(o, "device", d->device);
    json_put_i64(o, "events", t.events_n);
    json_put(o, "bands", bands_json(x, d, &t));
    json_put(o, "buckets", buckets_json(&t));
    json_put(o, "marks", marks_json(d));
    json_put_i64(o, "peak_event", number_of(d, d->walk.peak_event));
    json_put_i64(o, "oom_event", number_of(d, d->walk.oom_event));
    json_put_str(o, "moment", d->peak_is_moment ? "peak" : "out of memory");
    json_put(o, "map", map_json(x, &p, d, &t, &d->at));
    json_put(o, "end_map", map_json(x, &p, d, &t, &d->end));
    json_put(o, "places", p.texts);
    timeline_release(&t);
    mem_free(p.number);
    return o;
}

json_t *snapshot_page_data(const struct study *x)
{
    json_t *o = json_object(), *categories = json_array(), *phases = json_array();
    const struct study_device *d = study_main(x);
    for (int i = 0; d && i < d->walk.categories_n; i++)
        (void)json_array_append_new(categories, json_string(d->walk.category_names[i]));
    for (int i = 0; i < MOMENT_COUNT; i++)
        (void)json_array_append_new(phases, json_string(label_phase((uint8_t)i, false)));
    (void)json_array_append_new(phases, json_string("loss"));
    json_put(o, "categories", categories);
    json_put(o, "phases", phases);
    json_put(o, "drawing", d ? device_data(x, d) : json_null());
    return o;
}

void snapshot_page(
    const struct study *x, const json_t *document, const char *title, struct str *out)
{
    json_t *d = snapshot_page_data(x);
    json_put_str(d, "title", title);
    (void)json_object_set(d, "document", (json_t *)(uintptr_t)document);
    json_into_page((const char *)snapshot_page_html, "id=\"data\">", d, out);
    json_decref(d);
}
