/* snapshot_text.c - the parts of a snapshot's document as a person reads them. */
#include "doctor/snapshot_report.h"

#include <string.h>

static const char *size(const json_t *o, const char *key, char *buf)
{
    return bytes_text(json_get_i64(o, key, 0), buf, 32);
}

static double percent(const json_t *o, const char *key, int64_t of)
{
    return of > 0 ? 100.0 * (double)json_get_i64(o, key, 0) / (double)of : 0;
}

static void show_peak(const json_t *d, struct str *out)
{
    const json_t *p = json_object_get(d, "peak"), *a = json_object_get(p, "allocation");
    const char *phase = json_get_str(p, "phase", "");
    char buf[32], buf2[32];
    if (!p)
        return;
    str_printf(
        out, "\nPeak: %s live, %s reserved", size(p, "live_bytes", buf),
        size(p, "reserved_bytes", buf2));
    if (json_get_i64(p, "event", -1) >= 0)
        str_printf(out, ", event %lld", (long long)json_get_i64(p, "event", 0));
    if (phase[0])
        str_printf(
            out, ", in %s%s", json_get_bool(p, "backward_begins", false) ? "the beginning of " : "",
            phase);
    str_add(out, "\n");
    if (!a)
        return;
    str_printf(
        out, "  by %s at %s", size(a, "request_bytes", buf),
        json_get_str(a, "node", json_get_str(a, "place", "")));
    if (json_get_str(a, "operator", NULL) &&
        strcmp(json_get_str(a, "operator", ""), json_get_str(a, "place", "")) != 0)
        str_printf(out, " (%s)", json_get_str(a, "operator", ""));
    str_add(out, "\n");
}

/* One holder: bytes, share, blocks, category, place. */
static void show_place(const json_t *p, int64_t total, struct str *out)
{
    char buf[32];
    const char *phase = json_get_str(p, "phase", ""), *node = json_get_str(p, "node", NULL);
    str_printf(
        out, "  %11s %5.1f%% %6lld  %-18s %s", size(p, "bytes", buf), percent(p, "bytes", total),
        (long long)json_get_i64(p, "blocks", 0), json_get_str(p, "category", ""),
        node ? node : json_get_str(p, "place", ""));
    if (phase[0] && !node)
        str_printf(out, " [%s]", phase);
    str_add(out, "\n");
}

static void show_holders(const json_t *d, struct str *out)
{
    enum { ROWS = 12, SIZES = 5 };
    const json_t *h = json_object_get(d, "holders"), *list = json_object_get(h, "categories");
    const json_t *age = json_object_get(h, "age");
    int64_t live = json_get_i64(h, "live_bytes", 0);
    char buf[32], a[32], b[32];
    if (!h)
        return;
    str_printf(
        out, "\nWhat held it at the %s: %s in %lld blocks\n", json_get_str(h, "at", ""),
        size(h, "live_bytes", buf), (long long)json_get_i64(h, "blocks", 0));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i);
        str_printf(
            out, "  %11s %5.1f%% %6lld  %s\n", size(c, "bytes", buf), percent(c, "bytes", live),
            (long long)json_get_i64(c, "blocks", 0), json_get_str(c, "category", ""));
    }
    list = json_object_get(h, "places");
    if (json_array_size(list))
        str_add(out, "By place (bytes, share, blocks, category, line of the program [phase])\n");
    for (size_t i = 0; i < json_array_size(list) && i < ROWS; i++)
        show_place(json_array_get(list, i), live, out);
    list = json_object_get(h, "sizes");
    str_add(out, "  by size:");
    for (size_t i = 0; i < json_array_size(list) && i < SIZES; i++)
        str_printf(
            out, "%s %lld x %s", i ? "," : "",
            (long long)json_get_i64(json_array_get(list, i), "blocks", 0),
            size(json_array_get(list, i), "size_bytes", buf));
    str_printf(
        out, "\n  by age: %s from before the recording, %s of former iterations, %s of this one\n",
        size(age, "before_recording_bytes", buf), size(age, "former_iterations_bytes", a),
        size(age, "this_iteration_bytes", b));
}

static void show_iterations(const json_t *d, struct str *out)
{
    enum { ROWS = 6 };
    const json_t *g = json_object_get(d, "iterations"), *list = json_object_get(g, "stays");
    char buf[32], each[32];
    if (!json_is_object(g))
        return;
    double step = json_get_f64(g, "bytes_per_iteration", 0);
    str_printf(
        out, "\n%lld iterations, by %s: live memory %s", (long long)json_get_i64(g, "n", 0),
        json_get_str(g, "by", ""), json_get_bool(g, "rising", false) ? "rises" : "is level");
    if (json_get_bool(g, "rising", false))
        str_printf(
            out, " by %s in each, %s in all", bytes_text((int64_t)step, each, sizeof each),
            size(g, "total_bytes", buf));
    str_add(out, "\n");
    for (size_t i = 0; i < json_array_size(list) && i < ROWS; i++) {
        const json_t *p = json_array_get(list, i);
        str_printf(
            out, "  stays: %s in each of %lld, at %s (%s)\n", size(p, "bytes_per_iteration", buf),
            (long long)json_get_i64(p, "iterations", 0), json_get_str(p, "place", ""),
            json_get_str(p, "category", ""));
    }
}

static void show_layout(const json_t *f, const char *key, const char *name, struct str *out)
{
    const json_t *x = json_object_get(f, key);
    char a[32], b[32], c[32], e[32];
    str_printf(
        out, "  %-14s %s reserved, %s free in %lld blocks, the largest %s; %s beside live ones\n",
        name, size(x, "reserved_bytes", a), size(x, "free_bytes", b),
        (long long)json_get_i64(x, "free_blocks", 0), size(x, "largest_free_bytes", c),
        size(x, "inactive_split_bytes", e));
}

static void show_fragmentation(const json_t *d, struct str *out)
{
    enum { ROWS = 3 };
    const json_t *f = json_object_get(d, "fragmentation"), *then = json_object_get(f, "then");
    const json_t *pins = json_object_get(then, "pinned_segments");
    char a[32], b[32], c[32];
    if (!f)
        return;
    str_add(out, "\nFree within what is reserved\n");
    show_layout(f, "then", json_get_str(f, "at", ""), out);
    show_layout(f, "end", "end", out);
    for (size_t i = 0; i < json_array_size(pins) && i < ROWS; i++) {
        const json_t *p = json_array_get(pins, i);
        const json_t *k = json_array_get(json_object_get(p, "blocks"), 0);
        str_printf(
            out, "  a segment of %s, %s of it free, is kept by %lld blocks; the largest: %s, %s\n",
            size(p, "bytes", a), size(p, "free_bytes", b),
            (long long)json_get_i64(p, "live_blocks", 0), size(k, "bytes", c),
            json_get_str(k, "place", ""));
    }
}

static void show_replay(const json_t *d, struct str *out)
{
    const json_t *r = json_object_get(d, "replay");
    char a[32], b[32];
    if (!json_is_object(r))
        return;
    str_printf(
        out,
        "\nReplayed under %lld other settings: ", (long long)json_get_i64(r, "settings_tried", 0));
    if (!json_get_str(r, "helps", NULL)) {
        str_add(out, "none helps\n");
        return;
    }
    str_printf(out, "%s helps", json_get_str(r, "helps", ""));
    if (json_object_get(r, "needs_bytes") && json_object_get(r, "recorded_settings_need_bytes"))
        str_printf(
            out, ": it needs %s instead of %s", size(r, "needs_bytes", a),
            size(r, "recorded_settings_need_bytes", b));
    str_add(out, json_get_bool(r, "fits", false) ? ", and fits\n" : "\n");
}

static void show_devices(const json_t *d, struct str *out)
{
    const json_t *s = json_object_get(d, "snapshot"), *list = json_object_get(s, "devices");
    char a[32], b[32];
    for (size_t i = 0; json_array_size(list) > 1 && i < json_array_size(list); i++) {
        const json_t *x = json_array_get(list, i);
        str_printf(
            out, "%sdevice %lld: %lld events, peak %s live, %s reserved%s\n",
            i ? "  " : "\nDevices\n  ", (long long)json_get_i64(x, "device", 0),
            (long long)json_get_i64(x, "events", 0), size(x, "live_peak_bytes", a),
            size(x, "reserved_peak_bytes", b), json_get_i64(x, "ooms", 0) ? ", out of memory" : "");
    }
    list = json_object_get(s, "warnings");
    for (size_t i = 0; i < json_array_size(list); i++)
        str_printf(out, "warning: %s\n", json_string_value(json_array_get(list, i)));
}

void snapshot_report_text(const json_t *d, struct str *out)
{
    show_peak(d, out);
    show_holders(d, out);
    show_iterations(d, out);
    show_fragmentation(d, out);
    show_replay(d, out);
    show_devices(d, out);
}
