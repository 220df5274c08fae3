/* report.c - verdict, evidence, remedies and checks of a text. */
#include "doctor/report.h"

#include "doctor/snapshot_report.h"

#include <stdio.h>
#include <string.h>

/* ---- document ---- */

static void put_amount(json_t *o, const char *key, struct amount a)
{
    if (amount_known(a))
        json_put_i64(o, key, a.bytes < 0 ? 0 : a.bytes);
}

static json_t *message_json(const struct text_facts *f, size_t i)
{
    const struct text_message *t = &f->messages.data[i];
    const struct message *m = &t->m;
    const struct message_info *info = message_info_of(m->id);
    struct evidence v;
    struct verdict d;
    json_t *o = json_object();
    json_put_i64(o, "line", t->line);
    json_put_str(o, "wording", info->name);
    json_put_str(o, "about", info->about);
    if (m->backend[0])
        json_put_str(o, "backend", m->backend);
    json_put_i64(o, "device", m->device);
    json_put_i64(o, "rank", t->rank);
    if (t->repeats)
        json_put_i64(o, "repeats", t->repeats);
    put_amount(o, "request_bytes", m->request);
    put_amount(o, "total_bytes", m->total);
    put_amount(o, "free_bytes", m->free);
    put_amount(o, "allowed_bytes", m->allowed);
    put_amount(o, "allocated_bytes", m->allocated);
    put_amount(o, "private_pools_bytes", m->private_pools);
    put_amount(o, "unallocated_bytes", m->unallocated);
    put_amount(o, "reserved_bytes", m->reserved);
    put_amount(o, "own_bytes", m->own);
    json_t *processes = json_array();
    for (int k = 0; k < m->n_processes; k++) {
        json_t *p = json_object();
        json_put_i64(p, "pid", m->process[k].pid);
        put_amount(p, "used_bytes", m->process[k].used);
        (void)json_array_append_new(processes, p);
    }
    if (m->n_processes)
        json_put(o, "processes", processes);
    else
        json_decref(processes);
    if (m->truncated)
        json_put_bool(o, "truncated", true);
    if (m->distrusted)
        json_put_i64(o, "distrusted_figures", m->distrusted);
    evidence_from_text(f, i, &v);
    json_put_str(o, "kind", verdict_of(&v, &d) ? oom_kind_name(d.kind) : NULL);
    return o;
}

/* What the rules looked at, as far as it is known. */
static json_t *evidence_json(const struct evidence *v)
{
    json_t *o = json_object();
    put_amount(o, "request_bytes", v->request);
    put_amount(o, "total_bytes", v->total);
    put_amount(o, "free_bytes", v->free);
    put_amount(o, "gap_bytes", v->gap);
    put_amount(o, "allocated_bytes", v->allocated);
    put_amount(o, "reserved_bytes", v->reserved);
    put_amount(o, "slack_bytes", v->slack);
    put_amount(o, "other_bytes", v->other);
    put_amount(o, "own_bytes", v->own);
    put_amount(o, "allowed_bytes", v->allowed);
    put_amount(o, "private_pools_bytes", v->private_pools);
    put_amount(o, "peak_bytes", v->peak);
    put_amount(o, "inactive_split_bytes", v->inactive_split);
    put_amount(o, "largest_free_bytes", v->largest_free);
    put_amount(o, "free_sum_bytes", v->free_sum);
    if (v->ooms >= 0)
        json_put_i64(o, "ooms", v->ooms);
    if (v->retries >= 0)
        json_put_i64(o, "retries", v->retries);
    if (v->has_message) {
        json_put_i64(o, "line", v->line);
        json_put_i64(o, "device", v->device);
        json_put_i64(o, "rank", v->rank);
        json_put_i64(o, "repeats", v->repeats);
    }
    if (v->step >= 0)
        json_put_i64(o, "step", v->step);
    if (v->conf[0])
        json_put_str(o, "alloc_conf", v->conf);
    return o;
}

static json_t *where_json(const struct evidence *v)
{
    json_t *o = json_object();
    if (moment_name(v->phase))
        json_put_str(o, "phase", moment_name(v->phase));
    else if (v->evaluating && !v->has_trace)
        json_put_str(o, "phase", "evaluation");
    if (v->has_trace && v->user.file[0]) {
        json_put_str(o, "file", v->user.file);
        json_put_i64(o, "line", v->user.line);
        json_put_str(o, "function", v->user.function);
        json_put_str(o, "code", v->user.code);
    }
    return o;
}

static json_t *growth_json(const struct growth *g)
{
    json_t *o = json_object();
    json_put_str(o, "of", series_kind_name(g->kind));
    json_put_str(o, "label", g->label);
    json_put_str(o, "source", g->source);
    json_put_i64(o, "points", g->points);
    json_put_f64(o, "first_bytes", g->first);
    json_put_f64(o, "last_bytes", g->last);
    json_put_f64(o, "bytes_per_point", g->per_point);
    return o;
}

static json_t *smi_json(const struct smi *s)
{
    json_t *o = json_object(), *gpus = json_array(), *processes = json_array();
    for (int i = 0; i < s->n_gpus; i++) {
        json_t *g = json_object();
        json_put_i64(g, "index", s->gpu[i].index);
        json_put_str(g, "name", s->gpu[i].name);
        put_amount(g, "used_bytes", s->gpu[i].used);
        put_amount(g, "total_bytes", s->gpu[i].total);
        if (s->gpu[i].utilisation >= 0)
            json_put_i64(g, "utilisation_percent", s->gpu[i].utilisation);
        json_put_i64(g, "samples", s->samples[i]);
        (void)json_array_append_new(gpus, g);
    }
    for (int i = 0; i < s->n_processes; i++) {
        json_t *p = json_object();
        json_put_i64(p, "gpu", s->process[i].gpu);
        json_put_i64(p, "pid", s->process[i].pid);
        json_put_str(p, "name", s->process[i].name);
        put_amount(p, "used_bytes", s->process[i].used);
        (void)json_array_append_new(processes, p);
    }
    json_put(o, "gpus", gpus);
    json_put(o, "processes", processes);
    return o;
}

static void put_row(json_t *o, const char *key, const struct summary_row *row)
{
    if (!amount_known(row->current))
        return;
    json_t *r = json_object();
    json_put_i64(r, "current", row->current.low);
    json_put_i64(r, "peak", row->peak.low);
    json_put(o, key, r);
}

static json_t *summary_json(const struct summary *s)
{
    json_t *o = json_object();
    json_put_i64(o, "line", s->line);
    json_put_i64(o, "device", s->device);
    json_put_i64(o, "ooms", s->ooms);
    json_put_i64(o, "retries", s->retries);
#define X(field, title) put_row(o, #field, &s->field);
    SUMMARY_ROWS(X)
#undef X
    return o;
}

static void note(json_t *list, const char *text)
{
    (void)json_array_append_new(list, json_string(text));
}

/* What is easily read wrongly in these figures. */
static json_t *notes_json(const struct evidence *v, const struct verdict *d)
{
    json_t *a = json_array();
    char text[256];
    const int64_t mib = 1 << 20;
    if (v->era != ERA_NONE && (v->request.bytes == 2 * mib || v->request.bytes == 20 * mib))
        note(
            a, "2 and 20 MiB are the sizes in which small requests are served: it was the last "
               "drop, and says "
               "nothing about what is large");
    if (v->has_snapshot && v->has_message && !amount_known(v->total))
        note(
            a, "the file does not say how large the card is, nor what others hold of it: reserved "
               "+ free is "
               "what this allocator could have; --capacity SIZE gives the rest");
    if (v->has_snapshot && !v->has_history)
        note(
            a, "the file has no events (torch.cuda.memory._record_memory_history() was not on): "
               "what came "
               "before its moment is not known");
    if (!v->has_snapshot && amount_known(v->private_pools) && v->private_pools.bytes > 0)
        note(
            a, "private pools (CUDA graphs): the allocated figure contains their free blocks, so "
               "less than it is "
               "live");
    if (v->hint_split && v->max_split)
        note(
            a, "the message advises max_split_size_mb, which is set already: it prints that every "
               "time");
    if (v->hint_expandable && v->expandable)
        note(
            a, "the message advises expandable_segments, which is on already: it prints that every "
               "time");
    else if (v->hint_expandable || v->hint_split)
        note(
            a, "the allocator setting in the message is printed with every out-of-memory and is no "
               "finding");
    if (v->batch_one && d->kind == OOM_CAPACITY && v->where == WHERE_CARD)
        note(
            a, "the batch is one sample already: the model and its state are too large, not the "
               "batch");
    if (v->own_from_process)
        note(
            a, "one \"Process\" line is this process itself, under the host's number (containers)");
    if (d->kind <= OOM_FRAGMENTATION && v->has_message && v->step > 50 && !v->growth.rising &&
        !v->allocated_flat && v->where == WHERE_CARD) {
        (void)snprintf(
            text, sizeof text,
            "it ran until step %lld before: either memory grows, or a larger sample came; figures "
            "of "
            "memory_allocated() per step would tell",
            (long long)v->step);
        note(a, text);
    }
    if (amount_known(v->other) && amount_known(v->total) && v->other.bytes > v->total.bytes / 8)
        note(
            a, "memory of other processes and of other CUDA libraries is invisible to PyTorch's "
               "own tools "
               "(memory_summary, snapshots)");
    return a;
}

/* T7: when the problem is solved. */
static json_t *checks_json(const struct evidence *v, const struct verdict *d)
{
    json_t *a = json_array();
    const char *const always[] = {
        "run several representative iterations, the largest batch among them, and one evaluation "
        "step: one "
        "that works proves nothing",
        "reset and record the peak (reset_peak_memory_stats, max_memory_allocated): it must stay "
        "below the "
        "card with a margin, and level from iteration to iteration",
        "loss and gradients are finite and near the former ones; the number of updates and the "
        "effective "
        "batch are as intended"};
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        (void)json_array_append_new(a, json_string(always[i]));
    if (d->kind == OOM_FRAGMENTATION)
        (void)json_array_append_new(
            a, json_string(
                   "compare reserved - allocated, retries and speed before and after a setting"));
    if (d->kind == OOM_GROWTH || d->kind == OOM_EVALUATION_GRAPH)
        (void)json_array_append_new(
            a,
            json_string(
                "print memory_allocated() at the same place of each iteration: it must come back "
                "to one level"));
    if (v->where == WHERE_CARD && !v->own_run)
        (void)json_array_append_new(
            a, json_string(
                   "less reserved after torch.cuda.empty_cache() proves nothing: it hands free "
                   "blocks to other programs, the run must pass its own peak"));
    return a;
}

static void put_verdict(json_t *o, const struct evidence *v, const struct verdict *d)
{
    json_t *list = json_array();
    json_put_str(o, "kind", oom_kind_name(d->kind));
    json_put_str(o, "about", oom_kind_about(d->kind));
    json_put_str(o, "confidence", confidence_name(d->confidence));
    json_put_bool(o, "borderline", d->borderline);
    json_put_str(o, "rule", d->rule);
    json_put_str(o, "condition", d->condition);
    json_put_str(o, "why", d->why);
    for (int i = 0; i < d->n_also; i++) {
        json_t *x = json_object();
        json_put_str(x, "kind", oom_kind_name(d->also[i].kind));
        json_put_str(x, "why", d->also[i].why);
        (void)json_array_append_new(list, x);
    }
    json_put(o, "also", list);
    list = json_array();
    for (int i = 0; i < d->n_remedies; i++) {
        json_t *x = json_object();
        json_put_str(x, "id", d->remedies[i].id);
        json_put_str(x, "what", d->remedies[i].what);
        json_put_str(x, "why", d->remedies[i].why);
        (void)json_array_append_new(list, x);
    }
    json_put(o, "evidence", evidence_json(v));
    json_put(o, "notes", notes_json(v, d));
    json_put(o, "where", where_json(v));
    if (v->growth.rising)
        json_put(o, "growth", growth_json(&v->growth));
    json_put(o, "remedies", list);
    json_put(o, "checks", checks_json(v, d));
}

static void put_input(json_t *o, const char *form, const struct text_facts *f)
{
    json_t *input = json_object();
    json_put_str(input, "form", form);
    if (f) {
        json_put_i64(input, "lines", f->lines);
        json_put_i64(input, "bytes", f->bytes);
    }
    json_put(o, "input", input);
}

static struct amount amount_of(const json_t *o, const char *key)
{
    int64_t x = json_get_i64(o, key, -1);
    return x > 0 ? amount_exact(x) : amount_unknown;
}

/* The figures of a document's `oom` (docs/oom.md). */
static void own_figures(const json_t *oom, struct evidence *v)
{
    const json_t *m = json_object_get(oom, "memory");
    int64_t capacity = json_get_i64(m, "capacity_bytes", -1),
            free = json_get_i64(m, "free_bytes", -1);
    v->request = amount_of(oom, "need_bytes");
    v->allowed = amount_of(oom, "budget_bytes");
    v->total = amount_of(m, "capacity_bytes");
    v->allocated = amount_of(m, "live_bytes");
    v->reserved = amount_of(m, "reserved_bytes");
    if (free >= 0)
        v->free = amount_exact(free);
    v->own_planned = json_get_bool(oom, "before_start", false);
    v->own_budget = amount_known(v->allowed) && v->request.bytes > v->allowed.bytes;
    int64_t own = json_get_i64(m, "reserved_bytes", 0) + json_get_i64(m, "context_bytes", 0);
    if (capacity > 0 && free >= 0 && capacity > free + own)
        v->other = amount_exact(capacity - free - own);
}

/* An out-of-memory of one of our own runs, where nothing else is in the input; NULL when none. */
static const struct run_record *own_oom(const struct runs_reader *runs, struct evidence *v)
{
    for (int i = 0; runs && i < runs_count(runs); i++) {
        const struct run_record *run = runs_at(runs, i);
        if (!run->out_of_memory)
            continue;
        evidence_init(v);
        v->own_run = true;
        v->own_budget = strstr(run->message, "memory-gib") != NULL;
        if (run->oom)
            own_figures(run->oom, v);
        (void)snprintf(v->own_message, sizeof v->own_message, "%s", run->message);
        return run;
    }
    return NULL;
}

static void put_tables(json_t *o, const struct text_facts *f)
{
    json_t *list = json_array();
    for (size_t i = 0; i < f->messages.n; i++)
        (void)json_array_append_new(list, message_json(f, i));
    json_put(o, "messages", list);
    json_put_i64(o, "messages_seen", f->messages_seen);
    list = json_array();
    for (size_t i = 0; i < f->summaries.n; i++)
        (void)json_array_append_new(list, summary_json(&f->summaries.data[i]));
    json_put(o, "summaries", list);
    if (f->smi.seen)
        json_put(o, "nvidia_smi", smi_json(&f->smi));
}

json_t *report_text_document(const struct text_facts *f, const struct runs_reader *runs)
{
    struct evidence v;
    struct verdict d;
    json_t *symptoms = symptoms_json(f, runs);
    evidence_from_text(f, SIZE_MAX, &v);
    bool node = v.id == MESSAGE_NODE_CARD || v.id == MESSAGE_NODE_CPU || v.id == MESSAGE_NODE;
    const struct run_record *own = v.has_message && !node ? NULL : own_oom(runs, &v);
    bool found = own || v.has_message || !runs || runs_count(runs) == 0;
    found = found && verdict_of(&v, &d);
    bool runs_seen = runs && runs_count(runs) > 0;
    if (!found && !runs_seen && json_array_size(symptoms) == 0) {
        json_decref(symptoms);
        return NULL;
    }
    json_t *o = json_object();
    if (found)
        put_verdict(o, &v, &d);
    else
        json_put(o, "kind", json_null());
    if (own && json_object_get(own->oom, "advice"))
        json_put(o, "planned_changes", json_incref(json_object_get(own->oom, "advice")));
    put_tables(o, f);
    json_put(o, "symptoms", symptoms);
    put_input(o, runs_seen ? "runs of snug" : "text", f);
    if (runs_seen)
        json_put_i64(o, "runs", runs_count(runs));
    return o;
}

json_t *report_evidence_document(const struct evidence *v, const char *form)
{
    struct verdict d;
    json_t *o = json_object();
    (void)verdict_of(v, &d);
    put_verdict(o, v, &d);
    put_input(o, form, NULL);
    return o;
}

/* ---- text ---- */

static const char *bytes_of(const json_t *o, const char *key, char *buf, size_t cap)
{
    return bytes_text(json_get_i64(o, key, 0), buf, cap);
}

static void show_figures(const json_t *e, struct str *out)
{
    static const struct {
        const char *key, *label;
    } rows[] = {
        {"request_bytes", "asked for"},
        {"free_bytes", "free on the card"},
        {"gap_bytes", "missing"},
        {"total_bytes", "the card"},
        {"allowed_bytes", "this process may use"},
        {"allocated_bytes", "live (allocated)"},
        {"reserved_bytes", "reserved by the allocator"},
        {"slack_bytes", "reserved, not live"},
        {"inactive_split_bytes", "of that in pieces"},
        {"private_pools_bytes", "in private pools (CUDA graphs)"},
        {"own_bytes", "this process, with libraries"},
        {"other_bytes", "outside this allocator"},
        {"peak_bytes", "peak of live memory"}};
    char buf[32];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (json_object_get(e, rows[i].key))
            str_printf(
                out, "  %-32s %s\n", rows[i].label, bytes_of(e, rows[i].key, buf, sizeof buf));
    if (json_get_i64(e, "ooms", 0) > 0 || json_get_i64(e, "retries", 0) > 0)
        str_printf(
            out, "  %-32s %lld, %lld\n", "out of memory, retries",
            (long long)json_get_i64(e, "ooms", 0), (long long)json_get_i64(e, "retries", 0));
    if (json_get_str(e, "alloc_conf", NULL))
        str_printf(out, "  %-32s %s\n", "allocator settings", json_get_str(e, "alloc_conf", ""));
}

/* Cards and processes of nvidia-smi, the first of each. */
static void show_smi(const json_t *smi, struct str *out)
{
    enum { ROWS = 8 };
    const json_t *cards = json_object_get(smi, "gpus"), *list = json_object_get(smi, "processes");
    char label[80], used[32], total[32];
    for (size_t i = 0; i < json_array_size(cards) && i < ROWS; i++) {
        const json_t *c = json_array_get(cards, i);
        (void)snprintf(
            label, sizeof label, "card %lld%s%s", (long long)json_get_i64(c, "index", 0),
            json_get_str(c, "name", "")[0] ? ", " : "", json_get_str(c, "name", ""));
        if (json_get_i64(c, "total_bytes", 0) <= 0)
            continue;
        str_printf(
            out, "  %-32s %s of %s used\n", label, bytes_of(c, "used_bytes", used, sizeof used),
            bytes_of(c, "total_bytes", total, sizeof total));
    }
    for (size_t i = 0; i < json_array_size(list) && i < ROWS; i++) {
        const json_t *p = json_array_get(list, i);
        (void)snprintf(
            label, sizeof label, "process %lld, %s", (long long)json_get_i64(p, "pid", 0),
            json_get_str(p, "name", ""));
        if (json_get_i64(p, "used_bytes", 0) > 0)
            str_printf(out, "  %-32s %s\n", label, bytes_of(p, "used_bytes", used, sizeof used));
    }
}

static void show_where(const json_t *d, struct str *out)
{
    const json_t *w = json_object_get(d, "where"), *e = json_object_get(d, "evidence");
    const char *phase = json_get_str(w, "phase", NULL), *file = json_get_str(w, "file", NULL);
    if (phase)
        str_printf(out, "  %-32s %s\n", "during", phase);
    if (file) {
        str_printf(
            out, "  %-32s %s:%lld%s%s\n", "own code, last frame", file,
            (long long)json_get_i64(w, "line", 0), json_get_str(w, "function", "")[0] ? " in " : "",
            json_get_str(w, "function", ""));
        if (json_get_str(w, "code", "")[0])
            str_printf(out, "  %-32s %s\n", "", json_get_str(w, "code", ""));
    }
    if (json_object_get(e, "line")) {
        int64_t line = json_get_i64(e, "line", 0); /* 0: the event of a snapshot */
        if (line > 0)
            str_printf(out, "  %-32s line %lld", "message", (long long)line);
        else
            str_printf(out, "  %-32s of the snapshot", "message");
        if (json_get_i64(e, "rank", -1) >= 0)
            str_printf(out, ", rank %lld", (long long)json_get_i64(e, "rank", 0));
        if (json_get_i64(e, "device", -1) >= 0)
            str_printf(out, ", device %lld", (long long)json_get_i64(e, "device", 0));
        if (json_get_i64(d, "messages_seen", 1) > 1)
            str_printf(out, " (of %lld messages)", (long long)json_get_i64(d, "messages_seen", 1));
        str_add(out, "\n");
    }
}

/* Where several messages are, each in a line. */
static void show_messages(const json_t *d, struct str *out)
{
    const json_t *list = json_object_get(d, "messages");
    size_t n = json_array_size(list);
    char asked[32], free[32];
    if (n < 2)
        return;
    str_add(out, "\nMessages\n");
    for (size_t i = 0; i < n && i < 12; i++) {
        const json_t *m = json_array_get(list, i);
        str_printf(out, "  line %-8lld", (long long)json_get_i64(m, "line", 0));
        if (json_get_i64(m, "rank", -1) >= 0)
            str_printf(out, " rank %-3lld", (long long)json_get_i64(m, "rank", 0));
        if (json_get_i64(m, "device", -1) >= 0)
            str_printf(out, " device %-2lld", (long long)json_get_i64(m, "device", 0));
        str_printf(out, " %s", json_get_str(m, "kind", "-"));
        if (json_object_get(m, "request_bytes"))
            str_printf(out, ", asked for %s", bytes_of(m, "request_bytes", asked, sizeof asked));
        if (json_object_get(m, "free_bytes"))
            str_printf(out, ", free %s", bytes_of(m, "free_bytes", free, sizeof free));
        str_printf(out, " (%s)\n", json_get_str(m, "about", ""));
    }
    if (json_get_i64(d, "messages_seen", 0) > 12)
        str_printf(out, "  ... %lld in all\n", (long long)json_get_i64(d, "messages_seen", 0));
}

/* What a run of ours planned for itself when it did not fit. */
static void show_planned(const json_t *d, struct str *out)
{
    const json_t *list = json_object_get(d, "planned_changes");
    char buf[32];
    if (json_array_size(list))
        str_add(out, "\nWhat the run planned, cheapest first\n");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *x = json_array_get(list, i);
        str_printf(out, "  - %s", json_get_str(x, "change", ""));
        if (json_get_str(x, "settings", "")[0])
            str_printf(out, " (%s)", json_get_str(x, "settings", ""));
        if (json_get_i64(x, "peak_bytes", -1) > 0)
            str_printf(
                out, ": peak %s, %s", bytes_of(x, "peak_bytes", buf, sizeof buf),
                json_get_bool(x, "sufficient", false) ? "fits" : "not enough alone");
        str_add(out, "\n");
    }
}

static void show_list(const json_t *d, const char *key, const char *title, struct str *out)
{
    const json_t *list = json_object_get(d, key);
    if (!json_array_size(list))
        return;
    str_printf(out, "\n%s\n", title);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *x = json_array_get(list, i);
        if (json_is_string(x))
            str_printf(out, "  - %s\n", json_string_value(x));
        else
            str_printf(
                out, "  %zu. %s\n     why: %s\n", i + 1, json_get_str(x, "what", ""),
                json_get_str(x, "why", ""));
    }
}

static void show_symptoms(const json_t *d, struct str *out)
{
    const json_t *list = json_object_get(d, "symptoms");
    if (json_array_size(list))
        str_printf(
            out, "%sBeside memory\n", json_is_string(json_object_get(d, "kind")) ? "\n" : "");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *x = json_array_get(list, i), *rows = json_object_get(x, "curves");
        str_printf(
            out, "  %s: %s\n     try: %s\n", json_get_str(x, "symptom", ""),
            json_get_str(x, "figures", ""), json_get_str(x, "advice", ""));
        for (size_t k = 0; k < json_array_size(rows); k++) {
            const char *key;
            json_t *value, *row = json_array_get(rows, k);
            str_add(out, "    ");
            json_object_foreach(row, key, value)
                str_printf(out, " %s %-10.5g", key, json_number_value(value));
            str_add(out, "\n");
        }
    }
}

static void show_verdict(const json_t *d, struct str *out)
{
    const json_t *also = json_object_get(d, "also");
    str_printf(
        out, "Verdict: %s (%s), confidence %s\n", json_get_str(d, "kind", ""),
        json_get_str(d, "about", ""), json_get_str(d, "confidence", ""));
    str_printf(out, "  %s\n", json_get_str(d, "why", ""));
    for (size_t i = 0; i < json_array_size(also); i++)
        str_printf(
            out, "  also %s: %s\n", json_get_str(json_array_get(also, i), "kind", ""),
            json_get_str(json_array_get(also, i), "why", ""));
    if (json_get_bool(d, "borderline", false))
        str_add(
            out, "  The printed figures are rounded; within the rounding it could be the other.\n");
    struct str evidence;
    str_init(&evidence);
    show_figures(json_object_get(d, "evidence"), &evidence);
    show_smi(json_object_get(d, "nvidia_smi"), &evidence);
    show_where(d, &evidence);
    if (evidence.n > 0)
        str_printf(out, "\nEvidence\n%s", evidence.data);
    str_release(&evidence);
    show_messages(d, out);
    snapshot_report_text(d, out);
    show_list(d, "notes", "Mind", out);
    show_planned(d, out);
    show_list(d, "remedies", "What to try, in this order", out);
    show_list(d, "checks", "How to see that it is fixed", out);
}

void report_text(const json_t *d, struct str *out)
{
    if (json_is_string(json_object_get(d, "kind")))
        show_verdict(d, out);
    else if (!json_array_size(json_object_get(d, "symptoms")))
        str_add(out, "Nothing wrong: no out-of-memory, a finite loss, no falling scale.\n");
    show_symptoms(d, out);
}
