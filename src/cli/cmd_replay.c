/* cmd_replay.c - `snug replay SNAPSHOT`: a recorded trace through the allocator, under other
 * settings. */
#include "cli/answer.h"
#include "cli/commands.h"

#include "base/env.h"
#include "doctor/replay.h"

#include <string.h>

struct device_answer {
    int device;
    bool replayed; /* `exact` is there; else `why_not` */
    struct replay_exact exact;
    char why_not[256];
    int64_t capacity_bytes;  /* 0: none */
    bool capacity_of_oom;    /* worked out from the failed request */
    struct replay_row *rows; /* the recorded settings first */
    int rows_n, recommended; /* recommended: -1 none */
    bool recommending;
};

struct answer {
    const struct args *a;
    struct snapshot *s;
    struct mem_pool_conf recorded;
    struct str warnings; /* lines */
    VEC(struct device_answer) devices;
    int64_t capacity_bytes;
    double read_seconds, seconds;
    bool terminal;
};

/* ---- What was asked ---- */

static enum status read_capacity(struct answer *w, struct err *e)
{
    const char *text = w->a->option[OPTION_CAPACITY].text;
    if (text && (!str_to_bytes(text, &w->capacity_bytes) || w->capacity_bytes <= 0))
        return err_set(
            e, ST_USAGE, "--capacity is a size above 0 (24GiB, 8GB), not \"%.60s\"", text);
    return ST_OK;
}

/* The settings of --alloc-conf, before anything is read: a slip shows at once. */
static enum status read_settings(struct answer *w, struct replay_row *rows, struct err *e)
{
    for (size_t i = 0; i < w->a->option[OPTION_ALLOC_CONF].list.n; i++) {
        struct replay_row *r = &rows[i];
        *r = (struct replay_row){0};
        (void)snprintf(r->text, sizeof r->text, "%s", w->a->option[OPTION_ALLOC_CONF].list.data[i]);
        mem_pool_conf_init(&r->conf);
        enum status st = mem_pool_conf_parse(
            &r->conf, w->a->option[OPTION_ALLOC_CONF].list.data[i], &w->warnings, e);
        if (st != ST_OK) {
            err_prefix(e, "--alloc-conf \"%.100s\"", w->a->option[OPTION_ALLOC_CONF].list.data[i]);
            return st;
        }
    }
    return ST_OK;
}

static enum status read_device(const struct answer *w, int64_t *device, struct err *e)
{
    const struct option_value *v = &w->a->option[OPTION_DEVICE];
    *device = -1;
    if (!v->given)
        return ST_OK;
    if (!str_to_i64(v->text, device) || *device < 0 || *device >= w->s->devices_n)
        return err_set(
            e, ST_USAGE,
            "--device is the number of one of the snapshot's %d devices, not \"%.40s\"",
            w->s->devices_n, v->text);
    return ST_OK;
}

/* ---- Working it out ---- */

static void say(const struct answer *w, const char *fmt, ...) PRINTF(2, 3);
static void say(const struct answer *w, const char *fmt, ...)
{
    va_list ap;
    if (!w->terminal)
        return;
    va_start(ap, fmt);
    (void)fputs("\r\033[K", stderr);
    (void)vfprintf(stderr, fmt, ap);
    (void)fflush(stderr);
    va_end(ap);
}

static void on_read(void *ctx, int64_t done_bytes, int64_t total_bytes)
{
    const struct answer *w = ctx;
    if (total_bytes > 0)
        say(w, "reading: %.0f of %.0f MB", (double)done_bytes * 1e-6, (double)total_bytes * 1e-6);
    else
        say(w, "reading: %.0f MB", (double)done_bytes * 1e-6);
}

static void
list_rows(const struct answer *w, struct device_answer *d, const struct replay_row *given)
{
    bool search = w->a->option[OPTION_SEARCH].given;
    d->rows = mem_alloc(
        (1 + w->a->option[OPTION_ALLOC_CONF].list.n + REPLAY_SETTINGS_MAX) * sizeof *d->rows);
    d->rows[0] = (struct replay_row){.recorded = true, .conf = w->recorded};
    (void)snprintf(d->rows[0].text, sizeof d->rows[0].text, "%s", w->recorded.text);
    d->rows_n = 1;
    for (size_t i = 0; i < w->a->option[OPTION_ALLOC_CONF].list.n; i++)
        d->rows[d->rows_n++] = given[i];
    if (search)
        d->rows_n += replay_settings(&w->recorded, &d->rows[d->rows_n]);
}

/* What our own snapshots say of the device: its limit, or what others left of it. 0: nothing. */
static int64_t known_capacity(const struct snap_card *c)
{
    int64_t left = c->capacity_bytes > c->others_bytes ? c->capacity_bytes - c->others_bytes : 0;
    return c->limit_bytes > 0 && (left == 0 || c->limit_bytes < left) ? c->limit_bytes : left;
}

static enum status
work_out(struct answer *w, struct device_answer *d, const struct replay_row *given, struct err *e)
{
    struct err why = {0};
    say(w, "device %d: as recorded", d->device);
    d->replayed = replay_exact(w->s, d->device, &w->recorded, &d->exact, &why) == ST_OK;
    if (!d->replayed)
        (void)snprintf(d->why_not, sizeof d->why_not, "%.250s", why.text);
    d->capacity_bytes = w->capacity_bytes;
    if (d->capacity_bytes == 0 && d->replayed) {
        d->capacity_bytes = replay_oom_capacity(&d->exact);
        d->capacity_of_oom = d->capacity_bytes > 0;
    }
    if (d->capacity_bytes == 0)
        d->capacity_bytes = known_capacity(&w->s->devices[d->device].card);
    list_rows(w, d, given);
    struct replay_question q = replay_question_for(w->s, d->device, d->capacity_bytes);
    for (int i = 0; i < d->rows_n; i++) {
        struct replay_row *r = &d->rows[i];
        say(w, "device %d: %s", d->device, r->recorded ? "recorded settings" : r->text);
        TRY(replay_ask(w->s, d->device, &r->conf, &q, &r->outcome, e));
    }
    d->recommending = w->a->option[OPTION_SEARCH].given;
    d->recommended = d->recommending ? replay_recommend(d->rows, d->rows_n) : -1;
    return ST_OK;
}

static enum status work_out_all(struct answer *w, const struct replay_row *given, struct err *e)
{
    int64_t only;
    TRY(read_device(w, &only, e));
    for (int i = 0; i < w->s->devices_n; i++) {
        if ((only >= 0 && only != i) || (only < 0 && w->s->devices[i].events_n == 0))
            continue;
        vec_push(&w->devices, ((struct device_answer){.device = i, .recommended = -1}));
        TRY(work_out(w, &w->devices.data[w->devices.n - 1], given, e));
    }
    if (w->devices.n > 0)
        return ST_OK;
    (void)err_set(e, ST_INVALID, "there is nothing to replay: the snapshot has no events");
    err_hint(
        e, "Record them: torch.cuda.memory._record_memory_history() before the part that matters, "
           "then "
           "_dump_snapshot().");
    return ST_INVALID;
}

static enum status answer(struct answer *w, struct err *e)
{
    struct replay_row *given =
        mem_alloc((w->a->option[OPTION_ALLOC_CONF].list.n + 1) * sizeof *given);
    struct snapshot_options o = {.progress = on_read, .ctx = w};
    int64_t begin = clock_ns();
    enum status st;
    if (w->a->n_arguments != 1)
        TRY_OUT(err_set(e, ST_USAGE, "replay wants a SNAPSHOT: snug replay SNAPSHOT"));
    TRY_OUT(read_capacity(w, e));
    TRY_OUT(read_settings(w, given, e));
    TRY_OUT(snapshot_read_file(w->a->argument[0], &o, &w->s, e));
    w->read_seconds = (double)(clock_ns() - begin) * 1e-9;
    replay_recorded_conf(w->s, &w->recorded, &w->warnings);
    TRY_OUT(work_out_all(w, given, e));
    w->seconds = (double)(clock_ns() - begin) * 1e-9;
out:
    say(w, "%s", "");
    mem_free(given);
    return st;
}

/* ---- The document ---- */

static json_t *exact_json(const struct replay_exact *x)
{
    json_t *o = json_object();
    json_put_bool(o, "exact", replay_is_exact(x));
    json_put_i64(o, "addresses", x->allocs_n);
    json_put_i64(o, "addresses_wrong", x->allocs_wrong_n);
    json_put_i64(o, "segment_events", x->segments_n);
    json_put_i64(o, "segment_events_wrong", x->segments_wrong_n);
    json_put_i64(o, "segment_events_reordered", x->reordered_n);
    json_put_i64(o, "failed_requests", x->ooms_n);
    json_put_i64(o, "failed_requests_wrong", x->ooms_wrong_n);
    json_put_i64(o, "pending_frees", x->pending_n);
    json_put_i64(o, "pending_frees_wrong", x->pending_wrong_n);
    json_put_i64(o, "blocks", x->blocks_n);
    json_put_i64(o, "blocks_wrong", x->blocks_wrong_n);
    json_put_i64(o, "start_blocks", x->start_blocks_n);
    json_put_i64(o, "start_blocks_of_uncertain_size", x->ambiguous_n);
    json_put_i64(o, "reserved_start_bytes", x->reserved_start_bytes);
    json_put_i64(o, "reserved_peak_bytes", x->reserved_peak_bytes);
    json_put_i64(o, "allocated_start_bytes", x->allocated_start_bytes);
    json_put_i64(o, "allocated_peak_bytes", x->allocated_peak_bytes);
    json_put_str(o, "first_difference", x->first_wrong[0] ? x->first_wrong : NULL);
    return o;
}

static json_t *row_json(const struct answer *w, const struct device_answer *d, int i)
{
    const struct replay_row *r = &d->rows[i];
    const struct replay_outcome *x = &r->outcome;
    json_t *o = json_object();
    json_put_str(o, "setting", r->text);
    json_put_bool(o, "recorded", r->recorded);
    json_put_bool(o, "out_of_memory", x->run.oom);
    if (x->run.oom) {
        json_put_i64(
            o, "out_of_memory_event",
            x->run.oom_event == SNAP_NONE
                ? -1
                : (int64_t)x->run.oom_event - w->s->devices[d->device].events_first);
        json_put_i64(o, "out_of_memory_request_bytes", x->run.oom_bytes);
    }
    json_put_i64(o, "reserved_peak_bytes", x->run.reserved_peak_bytes);
    json_put_i64(o, "reserved_peak_bytes_min", x->reserved_peak_bytes_min);
    json_put_i64(o, "reserved_peak_bytes_max", x->reserved_peak_bytes_max);
    json_put_i64(o, "allocated_peak_bytes", x->run.allocated_peak_bytes);
    json_put_i64(o, "requested_peak_bytes", x->run.requested_peak_bytes);
    json_put_i64(o, "allocated_at_peak_bytes", x->run.allocated_at_peak_bytes);
    json_put_i64(
        o, "unused_at_peak_bytes", x->run.reserved_peak_bytes - x->run.allocated_at_peak_bytes);
    json_put_i64(o, "largest_free_at_peak_bytes", x->largest_free_at_peak_bytes);
    json_put_i64(o, "segments_taken", x->run.segments_taken_n);
    json_put_i64(o, "segments_given_back", x->run.segments_given_n);
    json_put_i64(o, "maps", x->run.maps_n);
    json_put_i64(o, "unmaps", x->run.unmaps_n);
    json_put_i64(o, "retries", x->run.retries_n);
    json_put_i64(o, "capacity_needed_bytes", x->capacity_needed_bytes);
    json_put_i64(o, "capacity_needed_tolerance_bytes", x->capacity_tolerance_bytes);
    return o;
}

static json_t *device_json(const struct answer *w, const struct device_answer *d)
{
    const struct snap_device *v = &w->s->devices[d->device];
    json_t *o = json_object(), *rows = json_array();
    json_put_i64(o, "device", d->device);
    json_put_i64(o, "events", v->events_n);
    json_put_i64(o, "reserved_end_bytes", v->reserved_bytes);
    json_put_i64(o, "allocated_end_bytes", v->allocated_bytes);
    json_put(o, "replay", d->replayed ? exact_json(&d->exact) : json_null());
    json_put_str(o, "replay_not_possible", d->replayed ? NULL : d->why_not);
    json_put_i64(o, "capacity_bytes", d->capacity_bytes);
    json_put_bool(o, "capacity_from_failed_request", d->capacity_of_oom);
    for (int i = 0; i < d->rows_n; i++)
        (void)json_array_append_new(rows, row_json(w, d, i));
    json_put(o, "settings", rows);
    if (d->recommending) {
        json_put_str(o, "recommended", d->recommended >= 0 ? d->rows[d->recommended].text : NULL);
        json_put_i64(o, "margin_percent", REPLAY_MARGIN_PERCENT);
        json_put_i64(o, "margin_bytes", REPLAY_MARGIN_BYTES);
    }
    return o;
}

static json_t *document(const struct answer *w)
{
    json_t *d = json_object(), *devices = json_array(), *warnings = json_array();
    json_put_str(d, "snapshot", w->a->argument[0]);
    json_put_i64(d, "snapshot_bytes", w->s->file_bytes);
    json_put_i64(d, "events", w->s->events_n);
    json_put_str(d, "recorded_setting", w->recorded.text);
    for (size_t i = 0; i < w->devices.n; i++)
        (void)json_array_append_new(devices, device_json(w, &w->devices.data[i]));
    json_put(d, "devices", devices);
    for (uint32_t i = 0; i < w->s->warnings_n && i < SNAP_WARNINGS_MAX; i++)
        (void)json_array_append_new(warnings, json_string(w->s->warnings[i]));
    if (w->warnings.n)
        (void)json_array_append_new(warnings, json_string(w->warnings.data));
    json_put(d, "warnings", warnings);
    json_put_f64(d, "read_seconds", w->read_seconds);
    json_put_f64(d, "seconds", w->seconds);
    return d;
}

/* ---- The text ---- */

static const char *size(int64_t bytes, char *buf)
{
    return bytes_text(bytes, buf, 32);
}

static const char *setting_text(const struct replay_row *r)
{
    return r->text[0] ? r->text : "(defaults)";
}

/* A static plan's addresses are no allocator's: all of them differ. */
static bool looks_planned(const struct answer *w, const struct replay_exact *x)
{
    return w->s->snug.present && x->allocs_n > 0 && x->allocs_wrong_n == x->allocs_n;
}

static void show_exact(const struct answer *w, const struct device_answer *d, struct str *out)
{
    const struct replay_exact *x = &d->exact;
    char a[32], b[32];
    if (!d->replayed) {
        str_printf(out, "  as recorded      cannot be replayed: %s\n", d->why_not);
        return;
    }
    str_printf(
        out,
        "  as recorded      %s: %u of %u addresses, %u of %u segment events, %u of %u blocks\n",
        replay_is_exact(x) ? "exact" : "not exact", x->allocs_n - x->allocs_wrong_n, x->allocs_n,
        x->segments_wrong_n < x->segments_n ? x->segments_n - x->segments_wrong_n : 0,
        x->segments_n, x->blocks_wrong_n < x->blocks_n ? x->blocks_n - x->blocks_wrong_n : 0,
        x->blocks_n);
    if (x->first_wrong[0])
        str_printf(out, "                   %s\n", x->first_wrong);
    if (looks_planned(w, x))
        str_add(
            out, "                   this run had a static plan, not an allocator: what follows is "
                 "what\n"
                 "                   PyTorch's allocator would do; record with --memory dynamic to "
                 "compare\n");
    if (x->ambiguous_n > 0)
        str_printf(
            out, "                   %u blocks of the start are of uncertain size\n",
            x->ambiguous_n);
    str_printf(
        out, "  peaks            %s allocated, %s reserved\n", size(x->allocated_peak_bytes, a),
        size(x->reserved_peak_bytes, b));
}

static void show_capacity(const struct answer *w, const struct device_answer *d, struct str *out)
{
    char a[32], b[32], c[32];
    const struct replay_exact *x = &d->exact;
    if (d->capacity_of_oom)
        str_printf(
            out,
            "  capacity         %s: event %u asked for %s and failed with %s free (others not "
            "counted)\n",
            size(d->capacity_bytes, a), x->oom_event - w->s->devices[d->device].events_first,
            size(w->s->events[x->oom_event].size, b), size(x->oom_free_bytes, c));
    else if (d->capacity_bytes)
        str_printf(out, "  capacity         %s\n", size(d->capacity_bytes, a));
}

/* The widest setting, for the first column. */
static int width_of(const struct device_answer *d)
{
    size_t most = 10;
    for (int i = 0; i < d->rows_n; i++) {
        size_t n = strlen(setting_text(&d->rows[i])) + (d->rows[i].recorded ? 11 : 0);
        most = n > most ? n : most;
    }
    return most > 60 ? 60 : (int)most;
}

static void
show_row(const struct device_answer *d, const struct replay_row *r, int width, struct str *out)
{
    const struct replay_outcome *x = &r->outcome;
    char name[80], reserved[32], unused[32], largest[32], needs[32];
    (void)snprintf(name, sizeof name, "%.60s%s", setting_text(r), r->recorded ? " (recorded)" : "");
    int64_t calls =
        x->run.segments_taken_n + x->run.segments_given_n + x->run.maps_n + x->run.unmaps_n;
    str_printf(
        out, "  %-*s %12s %12s %12s %12s %9lld %8lld", width, name,
        size(x->run.reserved_peak_bytes, reserved),
        size(x->run.reserved_peak_bytes - x->run.allocated_at_peak_bytes, unused),
        size(x->largest_free_at_peak_bytes, largest), size(x->capacity_needed_bytes, needs),
        (long long)calls, (long long)x->run.retries_n);
    if (d->capacity_bytes)
        str_add(out, x->run.oom ? "  out of memory" : "  fits");
    str_add(out, "\n");
    if (x->reserved_peak_bytes_min != x->reserved_peak_bytes_max)
        str_printf(
            out, "  %-*s %s to %s, by the order of addresses\n", width, "",
            size(x->reserved_peak_bytes_min, reserved), size(x->reserved_peak_bytes_max, needs));
}

static void show_recommendation(const struct device_answer *d, struct str *out)
{
    char a[32], b[32];
    const struct replay_outcome *base = &d->rows[0].outcome;
    if (!d->recommending)
        return;
    if (d->recommended < 0) {
        str_printf(
            out, "\n  No setting helps: none %sneeds %d %% and %s less than the recorded one.\n",
            base->run.oom ? "fits, and none " : "", REPLAY_MARGIN_PERCENT,
            size(REPLAY_MARGIN_BYTES, a));
        return;
    }
    const struct replay_row *r = &d->rows[d->recommended];
    const struct replay_outcome *x = &r->outcome;
    str_printf(
        out, "\n  Recommended: %s%s%s%s: needs %s instead of %s (%.1f %%)%s\n",
        r->text[0] ? "PYTORCH_ALLOC_CONF=" : "PyTorch's defaults", r->text, r->about ? ", " : "",
        r->about && r->text[0] ? r->about : "", size(x->capacity_needed_bytes, a),
        size(base->capacity_needed_bytes, b),
        100 * (double)(x->capacity_needed_bytes - base->capacity_needed_bytes) /
            (double)base->capacity_needed_bytes,
        x->run.oom      ? "; that does not fit either"
        : base->run.oom ? ", and fits"
                        : "");
}

static void show_device(const struct answer *w, const struct device_answer *d, struct str *out)
{
    const struct snap_device *v = &w->s->devices[d->device];
    int width = width_of(d);
    str_printf(out, "\nDevice %d: %u events\n", d->device, v->events_n);
    show_exact(w, d, out);
    show_capacity(w, d, out);
    str_printf(
        out, "\n  %-*s %12s %12s %12s %12s %9s %8s\n", width, "setting", "reserved", "unused",
        "largest free", "needs", "dev.calls", "retries");
    for (int i = 0; i < d->rows_n; i++)
        show_row(d, &d->rows[i], width, out);
    int64_t tolerance = d->rows[0].outcome.capacity_tolerance_bytes;
    if (tolerance > 8 << 20) {
        char a[32];
        str_printf(out, "  needs: to within %s, the trace is long\n", size(tolerance, a));
    }
    if (d->capacity_of_oom && !d->rows[0].outcome.run.oom)
        str_add(
            out, "  The recording failed; from a clean start the same requests pass under its "
                 "settings. What\n"
                 "  failed is the layout that had grown before the first event, or memory that "
                 "others took.\n");
    show_recommendation(d, out);
}

static void text(const struct answer *w, struct str *out)
{
    str_printf(
        out, "%s: %u events, %u segments; recorded settings: %s\n", w->a->argument[0],
        w->s->events_n, w->s->segments_n, w->recorded.text[0] ? w->recorded.text : "(defaults)");
    for (size_t i = 0; i < w->devices.n; i++)
        show_device(w, &w->devices.data[i], out);
    str_add(
        out, "\nreserved: the most, from a clean start; unused: of it, not allocated at that "
             "moment; needs:\n"
             "the smallest capacity that the trace passes with; dev.calls: segments taken and "
             "given back, "
             "maps and unmaps.\n");
    for (uint32_t i = 0; i < w->s->warnings_n && i < SNAP_WARNINGS_MAX; i++)
        str_printf(out, "warning: %s\n", w->s->warnings[i]);
    if (w->warnings.n)
        str_printf(out, "warning: %s", w->warnings.data);
}

int cmd_replay(const struct args *a)
{
    struct err e = {0};
    struct answer w = {.a = a, .terminal = !a->json && colour_on(stderr)};
    struct str out;
    int rc = 0;
    json_t *d = NULL;
    str_init(&out);
    str_init(&w.warnings);
    enum status st = answer(&w, &e);
    if (st == ST_OK && a->json) {
        d = document(&w);
    } else if (st == ST_OK) {
        text(&w, &out);
        rc = answer_text(out.data);
    }
    int end = answer_end(a->json, st, &e, d);
    for (size_t i = 0; i < w.devices.n; i++)
        mem_free(w.devices.data[i].rows);
    vec_release(&w.devices);
    snapshot_free(w.s);
    str_release(&w.warnings);
    str_release(&out);
    return end ? end : rc;
}
