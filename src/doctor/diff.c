/* diff.c - two studies beside each other. */
#include "doctor/diff.h"

#include <stdlib.h>
#include <string.h>

enum { CHANGES_MAX = 40 };

/* ---- figures ---- */

#define FIGURES(X)                                                                                 \
    X(live_peak_bytes, d->walk.peak_bytes)                                                         \
    X(live_end_bytes, d->walk.end_bytes)                                                           \
    X(reserved_peak_bytes, d->walk.reserved_peak_bytes)                                            \
    X(reserved_end_bytes, d->walk.reserved_end_bytes)                                              \
    X(held_bytes, d->holders.live_bytes)                                                           \
    X(free_bytes, d->at.free_bytes)                                                                \
    X(largest_free_bytes, d->at.largest_free_bytes)                                                \
    X(inactive_split_bytes, d->at.split_bytes)                                                     \
    X(segments, d->at.segments_n)                                                                  \
    X(events, d->walk.d->events_n)                                                                 \
    X(ooms, d->walk.d->actions_n[SNAP_OOM])                                                        \
    X(bytes_per_iteration, (int64_t)d->growth.bytes_per_iteration)

static json_t *figures_json(const struct study_device *d)
{
    json_t *o = json_object();
#define X(name, value) json_put_i64(o, #name, (int64_t)(value));
    FIGURES(X)
#undef X
    json_put_str(o, "at", d->peak_is_moment ? "peak" : "out of memory");
    json_put_str(o, "peak_phase", label_phase((uint8_t)d->peak_phase, d->peak_loss));
    json_put_i64(o, "device", d->device);
    return o;
}

static json_t *changes_json(const json_t *a, const json_t *b)
{
    json_t *o = json_object();
#define X(name, value)                                                                             \
    json_put_i64(o, #name, json_get_i64(b, #name, 0) - json_get_i64(a, #name, 0));
    FIGURES(X)
#undef X
    return o;
}

/* ---- places ---- */

struct diff_row {
    char *key;
    const char *category, *phase;
    char *place;
    int64_t bytes[2];
    uint32_t blocks[2];
};
typedef VEC(struct diff_row) diff_rows;

static void list_rows(const struct study *x, int side, diff_rows *out)
{
    const struct study_device *d = study_main(x);
    for (uint32_t i = 0; d && i < d->holders.rows_n; i++) {
        const struct holder *h = &d->holders.rows[i];
        const struct label_group *g = &x->labels.groups[h->group];
        struct str key, place;
        bool earlier = !g->node && g->frame == LABEL_NONE && g->op == LABEL_NONE &&
                       walk_life(&d->walk, h->largest_life)->alloc == SNAP_NONE;
        str_init(&place);
        str_init(&key);
        if (earlier)
            str_add(&place, "(allocated before the recording)");
        else
            label_group_text(&x->labels, h->group, &place);
        struct diff_row r = {
            .category = d->walk.category_names[h->category],
            .phase = earlier ? "" : label_phase(g->phase, g->loss)};
        str_printf(&key, "%s\n%s\n%s", place.data, r.phase, r.category);
        r.bytes[side] = h->bytes;
        r.blocks[side] = h->n;
        r.place = str_take(&place);
        r.key = str_take(&key);
        vec_push(out, r);
    }
}

static int by_key(const void *a, const void *b)
{
    const struct diff_row *x = a, *y = b;
    return strcmp(x->key, y->key);
}

static int64_t change_of(const struct diff_row *r)
{
    return r->bytes[1] - r->bytes[0];
}

static int by_change(const void *a, const void *b)
{
    const struct diff_row *x = a, *y = b;
    int64_t i = llabs(change_of(x)), k = llabs(change_of(y));
    return i != k ? (i < k ? 1 : -1) : strcmp(x->key, y->key);
}

/* Equal keys become one row. */
static void merge_rows(diff_rows *rows)
{
    size_t n = 0;
    if (rows->n)
        qsort(rows->data, rows->n, sizeof *rows->data, by_key);
    for (size_t i = 0; i < rows->n; i++) {
        struct diff_row *r = &rows->data[i];
        if (n == 0 || strcmp(rows->data[n - 1].key, r->key) != 0) {
            rows->data[n++] = *r;
            continue;
        }
        for (int side = 0; side < 2; side++) {
            rows->data[n - 1].bytes[side] += r->bytes[side];
            rows->data[n - 1].blocks[side] += r->blocks[side];
        }
        mem_free(r->key);
        mem_free(r->place);
    }
    rows->n = n;
    if (n)
        qsort(rows->data, n, sizeof *rows->data, by_change);
}

static const char *change_name(const struct diff_row *r)
{
    return r->blocks[0] == 0   ? "new"
           : r->blocks[1] == 0 ? "gone"
           : change_of(r) > 0  ? "grown"
                               : "shrunk";
}

static json_t *places_json(diff_rows *rows)
{
    json_t *a = json_array();
    for (size_t i = 0; i < rows->n && json_array_size(a) < CHANGES_MAX; i++) {
        const struct diff_row *r = &rows->data[i];
        if (change_of(r) == 0)
            break;
        json_t *o = json_object();
        json_put_str(o, "place", r->place);
        json_put_str(o, "phase", r->phase);
        json_put_str(o, "category", r->category);
        json_put_str(o, "change", change_name(r));
        json_put_i64(o, "a_bytes", r->bytes[0]);
        json_put_i64(o, "b_bytes", r->bytes[1]);
        json_put_i64(o, "a_blocks", r->blocks[0]);
        json_put_i64(o, "b_blocks", r->blocks[1]);
        (void)json_array_append_new(a, o);
    }
    return a;
}

static int64_t category_bytes(const struct study_device *d, const char *name)
{
    for (int i = 0; i < d->walk.categories_n; i++)
        if (strcmp(d->walk.category_names[i], name) == 0)
            return d->holders.by_category[i];
    return 0;
}

static json_t *categories_json(const struct study_device *a, const struct study_device *b)
{
    json_t *list = json_array();
    for (int side = 0; side < 2; side++) {
        const struct walk *w = side ? &b->walk : &a->walk;
        for (int i = 0; i < w->categories_n; i++) {
            const char *name = w->category_names[i];
            int64_t x = category_bytes(a, name), y = category_bytes(b, name);
            if ((x == 0 && y == 0) || (side && i < HOLDER_FIXED_COUNT) || (side && x))
                continue;
            json_t *o = json_object();
            json_put_str(o, "category", name);
            json_put_i64(o, "a_bytes", x);
            json_put_i64(o, "b_bytes", y);
            (void)json_array_append_new(list, o);
        }
    }
    return list;
}

static json_t *settings_json(const struct study *a, const struct study *b)
{
    json_t *o = json_object();
    json_put_str(o, "a", snap_text(a->s, a->s->settings.conf));
    json_put_str(o, "b", snap_text(b->s, b->s->settings.conf));
    json_put_bool(o, "a_expandable", a->s->settings.expandable_segments);
    json_put_bool(o, "b_expandable", b->s->settings.expandable_segments);
    return o;
}

json_t *diff_document(const struct study *a, const struct study *b)
{
    json_t *o = json_object();
    const struct study_device *x = study_main(a), *y = study_main(b);
    diff_rows rows = {0};
    json_put(o, "kind", json_null());
    json_put(o, "settings", settings_json(a, b));
    if (!x || !y)
        return o;
    json_t *left = figures_json(x), *right = figures_json(y);
    list_rows(a, 0, &rows);
    list_rows(b, 1, &rows);
    merge_rows(&rows);
    json_put(o, "changes", changes_json(left, right));
    json_put(o, "a", left);
    json_put(o, "b", right);
    json_put(o, "categories", categories_json(x, y));
    json_put(o, "places", places_json(&rows));
    for (size_t i = 0; i < rows.n; i++) {
        mem_free(rows.data[i].key);
        mem_free(rows.data[i].place);
    }
    vec_release(&rows);
    return o;
}

/* ---- text ---- */

static const char *signed_size(int64_t bytes, char *buf, size_t cap)
{
    char text[32];
    (void)snprintf(
        buf, cap, "%s%s", bytes < 0 ? "-" : "+",
        bytes_text(bytes < 0 ? -bytes : bytes, text, sizeof text));
    return buf;
}

static void show_line(const char *name, int64_t a, int64_t b, const char *more, struct str *out)
{
    char x[32], y[32], z[40];
    str_printf(
        out, "  %-28s %12s %12s %13s%s%s\n", name, bytes_text(a, x, sizeof x),
        bytes_text(b, y, sizeof y), signed_size(b - a, z, sizeof z), more[0] ? "  " : "", more);
}

static void show_figures(const json_t *d, struct str *out)
{
    static const struct {
        const char *key, *name;
    } rows[] = {
        {"live_peak_bytes", "peak of live memory"},
        {"live_end_bytes", "live at the end"},
        {"reserved_peak_bytes", "peak of reserved memory"},
        {"reserved_end_bytes", "reserved at the end"},
        {"free_bytes", "free within reserved"},
        {"largest_free_bytes", "largest free block"},
        {"inactive_split_bytes", "free beside live blocks"},
        {"bytes_per_iteration", "more with each iteration"}};
    const json_t *a = json_object_get(d, "a"), *b = json_object_get(d, "b");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int64_t x = json_get_i64(a, rows[i].key, 0), y = json_get_i64(b, rows[i].key, 0);
        if (x || y)
            show_line(rows[i].name, x, y, "", out);
    }
    str_printf(
        out, "  %-28s %12lld %12lld\n", "segments", (long long)json_get_i64(a, "segments", 0),
        (long long)json_get_i64(b, "segments", 0));
    if (strcmp(json_get_str(a, "at", ""), json_get_str(b, "at", "")) != 0)
        str_printf(
            out, "  compared at                  %12s %12s\n",
            json_get_i64(a, "ooms", 0) ? "out of mem." : "peak",
            json_get_i64(b, "ooms", 0) ? "out of mem." : "peak");
}

void diff_text(const json_t *d, struct str *out)
{
    const json_t *s = json_object_get(d, "settings"), *list = json_object_get(d, "categories");
    str_printf(out, "  %-28s %12s %12s %13s\n", "", "A", "B", "change");
    show_figures(d, out);
    if (strcmp(json_get_str(s, "a", ""), json_get_str(s, "b", "")) != 0 ||
        json_get_bool(s, "a_expandable", false) != json_get_bool(s, "b_expandable", false))
        str_printf(
            out, "\nSettings\n  A  %s\n  B  %s\n",
            json_get_str(s, "a", "")[0] ? json_get_str(s, "a", "") : "(defaults)",
            json_get_str(s, "b", "")[0] ? json_get_str(s, "b", "") : "(defaults)");
    if (json_array_size(list))
        str_add(out, "\nBy category\n");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *x = json_array_get(list, i);
        show_line(
            json_get_str(x, "category", ""), json_get_i64(x, "a_bytes", 0),
            json_get_i64(x, "b_bytes", 0), "", out);
    }
    list = json_object_get(d, "places");
    str_add(out, json_array_size(list) ? "\nBy place\n" : "\nNo place holds more or less.\n");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *x = json_array_get(list, i);
        struct str more;
        str_init(&more);
        str_printf(&more, "%s", json_get_str(x, "place", ""));
        if (json_get_str(x, "phase", "")[0])
            str_printf(&more, " [%s]", json_get_str(x, "phase", ""));
        char name[64];
        (void)snprintf(
            name, sizeof name, "%s, %s", json_get_str(x, "change", ""),
            json_get_str(x, "category", ""));
        show_line(
            name, json_get_i64(x, "a_bytes", 0), json_get_i64(x, "b_bytes", 0), more.data, out);
        str_release(&more);
    }
}

enum status diff_files(const char *a, const char *b, json_t **out, struct err *e)
{
    struct snapshot *x = NULL, *y = NULL;
    struct study_options o = {.no_replay = true};
    struct study left, right;
    enum status st;
    TRY_OUT(snapshot_read_file(a, NULL, &x, e));
    TRY_OUT(snapshot_read_file(b, NULL, &y, e));
    study_init(&left, x, &o);
    study_init(&right, y, &o);
    *out = diff_document(&left, &right);
    study_release(&left);
    study_release(&right);
out:
    snapshot_free(x);
    snapshot_free(y);
    return st;
}
