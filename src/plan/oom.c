/* oom.c - the advice of a NodeOOMError, each item planned. */
#include "plan/oom.h"

#include "fit_int.h"

#include "base/env.h"
#include "base/mem.h"
#include "mem/device.h"
#include "train/precision.h"

#include <stdio.h>
#include <string.h>

enum {
    ADVICE_PLANS_MAX = 80,
    WORTH_PARTS = 100 /* less than a hundredth is no advice */
};

/* A change, in the order of requirement O1. `id` is a row of train/levers.def. */
static const struct change {
    const char *id, *text;
} changes[] = {
    {"SMALLER_BATCH", "reduce batch_size on the DataLoader node"},
    {"EVAL_BATCH", "reduce the batch_size of validation and evaluation"},
    {"BF16", "set TrainingLoop's precision to bf16"},
    {"FP16", "set TrainingLoop's precision to fp16, which brings its gradient scaler"},
    {"MICRO_BATCH",
     "raise TrainingLoop's accumulate_steps and lower batch_size by the same factor"},
    {"CHECKPOINT_SELECTIVE", "set TrainingLoop's checkpointing to selective"},
    {"CHECKPOINT_BLOCKS", "set TrainingLoop's checkpointing to blocks (20 to 30% slower)"},
    {"LOSS_CHUNK", "compute the loss in chunks of tokens"},
    {"UPDATE_IN_BACKWARD", "update weights in the backward pass"},
    {"STATE_HOST", "keep the optimizer's state on the host"},
    {"OFFLOAD_ACTIVATIONS", "keep activations on the host"},
    {"STATE_INT8", "keep the optimizer's state in 8 bits"},
    {"LORA", "train a LoRA adapter instead of the model"},
    {"QLORA_INT8", "train an adapter over a base in 8 bits (QLoRA)"},
    {"QLORA_NF4", "train an adapter over a base in 4 bits (QLoRA)"},
};
static const char *const numbers[FIT_GROUP_COUNT] = {"same", "rounding", "other"};
static const char *const numbers_text[FIT_GROUP_COUNT] = {
    "same numbers", "same mathematics", "other numbers"};

struct advice {
    struct fit fit;
    struct run_oom oom;
    int64_t peak_bytes; /* of the graph as it is, on the device that ran out */
    bool fits;          /* the graph as it is would, with its static plan */
    bool statistics, any_fits;
    struct str text;
    json_t *list;
};

/* The first level that fits, else the one with the least peak; false when none lowers the peak. */
static bool best_level(struct advice *a, int lever, struct fit_plan *best)
{
    bool found = false;
    for (int level = 1; level <= a->fit.levers[lever].levels; level++) {
        struct fit_plan p = {0};
        struct err ignored = {0};
        if (a->fit.plans_left-- <= 0)
            break;
        p.choice.level[lever] = (signed char)level;
        if (fit_plan_make(&a->fit, &p.choice, &p, &ignored) != ST_OK || !p.valid)
            continue;
        if (p.peak_bytes >=
            (found ? best->peak_bytes : a->peak_bytes - a->peak_bytes / WORTH_PARTS))
            continue;
        *best = p;
        found = true;
        if (p.fits)
            break;
    }
    return found;
}

static void begin_line(struct advice *a, json_t **row, const char *change)
{
    *row = json_object();
    json_put_str(*row, "change", change);
    str_printf(&a->text, "%s  - %s", a->text.n ? "\n" : "", change);
}

/* "+model|model|snug:Adapter|kind=lora" in words. */
static void say_setting(struct str *out, const char *setting)
{
    if (!str_starts(setting, FIT_INSERT)) {
        str_add(out, setting);
        return;
    }
    const char *source = setting + strlen(FIT_INSERT), *params = strrchr(setting, '|');
    str_printf(
        out, "a snug:Adapter node behind %.*s with %s", (int)strcspn(source, "|"), source,
        params ? params + 1 : "");
}

static const char *verdict(const struct advice *a, bool fits)
{
    if (fits && a->oom.dynamic)
        return "fits as a static plan, without --memory dynamic";
    return fits ? "fits" : "not enough alone";
}

static void
add_planned(struct advice *a, const struct change *c, const struct fit_plan *p, int lever)
{
    const struct fit_lever *l = &a->fit.levers[lever];
    const char **settings = fit_settings(&a->fit, &p->choice, &a->fit.memory);
    json_t *row, *set = json_array();
    char peak[32];
    struct str words;
    begin_line(a, &row, c->text);
    str_init(&words);
    for (const char **s = settings; *s; s++) {
        str_add(&words, s == settings ? "" : ", ");
        say_setting(&words, *s);
        (void)json_array_append_new(set, json_string(*s));
    }
    bool inserts = l->settings[0][0] && str_starts(l->settings[0][0], FIT_INSERT);
    bool fits = p->fits && !a->oom.dynamic; /* value by value may need more than the plan */
    bool statistics = strcmp(c->id, "MICRO_BATCH") == 0 && a->statistics;
    enum fit_group group = statistics ? FIT_OTHER : l->group;
    str_printf(
        &a->text, " (%s): peak %s, %s; %s", words.data,
        bytes_text(p->peak_bytes, peak, sizeof peak), verdict(a, p->fits),
        statistics ? "the numbers change: batch statistics see the smaller batch"
                   : numbers_text[group]);
    json_put_str(row, "lever", c->id);
    json_put_str(row, "settings", words.data);
    json_put(row, "set", inserts ? json_null() : set);
    if (inserts) { /* no --set makes a node: `snug fit --allow lora -o` writes the graph */
        json_put_str(row, "allow", l->allow);
        json_decref(set);
    }
    json_put_str(row, "numbers", numbers[group]);
    json_put_i64(row, "peak_bytes", p->peak_bytes);
    if (p->fits && a->oom.dynamic)
        json_put(row, "sufficient", json_null()); /* nobody knows */
    else
        json_put_bool(row, "sufficient", fits);
    (void)json_array_append_new(a->list, row);
    a->any_fits = a->any_fits || fits;
    str_release(&words);
}

/* A change that cannot be planned here is only named. */
static void add_named(struct advice *a, const char *text)
{
    json_t *row;
    begin_line(a, &row, text);
    json_put(row, "peak_bytes", json_null());
    json_put(row, "sufficient", json_null());
    (void)json_array_append_new(a->list, row);
}

static int lever_of(const struct fit *f, const char *id)
{
    for (int i = 0; i < f->levers_n; i++)
        if (strcmp(f->levers[i].id, id) == 0)
            return i;
    return -1;
}

/* P11: of the low precisions only the one that suits the device. */
static bool suits_device(const struct advice *a, const char *id)
{
    const struct device *d = a->oom.device;
    struct precision_device can =
        d->kind == DEVICE_CUDA ? precision_cuda(d->id, d->compute_capability) : precision_cpu();
    enum precision advised = precision_advised(&can);
    if (strcmp(id, "BF16") == 0)
        return advised == PRECISION_BF16;
    return strcmp(id, "FP16") != 0 || advised == PRECISION_FP16;
}

static bool has_node(const struct graph *g, const char *type)
{
    for (size_t i = 0; i < graph_order_count(g); i++) {
        const struct graph_node *n = graph_node_at(g, graph_order_at(g, i));
        if (n->kind && strcmp(n->kind->name, type) == 0)
            return true;
    }
    return false;
}

/* Value by value needs more than the plan: blocks of a few sizes, and no temporary under another.
 */
static void add_storage(struct advice *a)
{
    char peak[32];
    json_t *row;
    if (!a->oom.dynamic || a->oom.before_start)
        return;
    bool fits = a->fits;
    begin_line(a, &row, "leave out --memory dynamic: the static plan");
    str_printf(
        &a->text, ": peak %s, %s; same numbers", bytes_text(a->peak_bytes, peak, sizeof peak),
        fits ? "fits" : "not enough alone");
    json_put_str(row, "numbers", numbers[FIT_SAME]);
    json_put_i64(row, "peak_bytes", a->peak_bytes);
    json_put_bool(row, "sufficient", fits);
    (void)json_array_append_new(a->list, row);
    a->any_fits = a->any_fits || fits;
}

static void add_changes(struct advice *a, const struct graph *g)
{
    /* Planned, or in force: then there is nothing to name. */
    bool adapters = has_node(g, "snug:Adapter") || lever_of(&a->fit, "LORA") >= 0;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        const struct change *c = &changes[i];
        int lever = lever_of(&a->fit, c->id);
        struct fit_plan p;
        if (lever < 0 || !suits_device(a, c->id) || !best_level(a, lever, &p))
            continue;
        add_planned(a, c, &p, lever);
    }
    if (!adapters && has_node(g, "TrainingLoop"))
        add_named(a, "LoRA or QLoRA (snug:Adapter) for a model that is trained already");
    add_named(a, "make the model smaller, or shorten the sequence / shrink the image");
}

/* Where not even the plans of the advice can be made (the host has nothing left), it is named. */
static void add_unplanned(struct advice *a)
{
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        if (suits_device(a, changes[i].id) && strncmp(changes[i].id, "QLORA", 5) != 0)
            add_named(a, changes[i].text);
    add_named(a, "make the model smaller, or shorten the sequence / shrink the image");
}

static void advise(struct advice *a)
{
    struct graph *g = NULL;
    struct fit_choice none = {0};
    struct err ignored = {0};
    bool room = host_capacity_bytes() > 0;
    bool known = room && fit_graph_with(&a->fit, &none, &g, &ignored) == ST_OK;
    a->statistics = known && fit_batch_statistics(g);
    if (known && fit_levers_find(&a->fit, g, &ignored) == ST_OK) {
        add_storage(a);
        add_changes(a, g);
    } else {
        add_unplanned(a);
    }
    graph_free(g);
}

static double gib(int64_t bytes)
{
    return (double)(bytes > 0 ? bytes : 0) / (1024.0 * 1024 * 1024);
}

static void memory_line(const struct run_oom *o, struct str *out)
{
    if (!o->device || o->device->kind == DEVICE_CPU)
        return;
    str_printf(
        out,
        "CUDA memory on %s: %.2f GiB held by live tensors, %.2f GiB reserved by the caching "
        "allocator, %.2f GiB peak this process, %.2f GiB on the card.\n\n",
        o->device->id, gib(o->live_bytes), gib(o->reserved_bytes), gib(o->peak_bytes),
        gib(o->capacity_bytes));
}

static json_t *document(const struct advice *a, const char *original)
{
    const struct run_oom *o = &a->oom;
    json_t *d = json_object(), *m = json_object();
    json_put_str(d, "node_id", o->node ? o->node->id : NULL);
    json_put_str(d, "node_type", o->node ? o->node->type : NULL);
    json_put_str(d, "device", o->device->id);
    json_put_bool(d, "before_start", o->before_start);
    json_put_str(d, "storage", o->dynamic ? "dynamic" : "planned");
    json_put_i64(d, "need_bytes", o->need_bytes);
    json_put_i64(d, "room_bytes", o->room_bytes);
    json_put_i64(d, "budget_bytes", o->budget_bytes);
    json_put_i64(d, "peak_bytes_planned", a->peak_bytes);
    json_put_i64(m, "live_bytes", o->live_bytes);
    json_put_i64(m, "reserved_bytes", o->reserved_bytes);
    json_put_i64(m, "peak_bytes", o->peak_bytes);
    json_put_i64(m, "capacity_bytes", o->capacity_bytes);
    json_put_i64(m, "free_bytes", o->free_bytes);
    json_put_i64(m, "context_bytes", o->context_bytes);
    json_put(d, "memory", m);
    json_put(d, "advice", json_incref(a->list));
    json_put_str(d, "original", original);
    return d;
}

static void
fill_error(const struct advice *a, const char *original, const char *path, struct err *e)
{
    const struct run_oom *o = &a->oom;
    struct str all;
    str_init(&all);
    str_printf(&all, "What to try, cheapest first:\n%s\n\n", a->text.data);
    memory_line(o, &all);
    str_printf(&all, "Original error: %s", original);
    if (o->node)
        (void)err_set(
            e, ST_OOM, "Node %s (%s) ran out of memory on %s.", o->node->type, o->node->id,
            o->device->id);
    else
        (void)err_set(e, ST_OOM, "The run ran out of memory on %s.", o->device->id);
    err_detail(e, "%s", all.data);
    (void)snprintf(e->type, sizeof e->type, "NodeOOMError");
    if (o->node)
        err_node(e, o->node->id, o->node->type);
    if (o->room_bytes > 0)
        err_hint(
            e,
            "%sno change was made; `snug fit %s --budget %lld` searches combinations of changes%s",
            o->before_start ? "nothing has been started: " : "", path, (long long)o->room_bytes,
            a->any_fits || o->dynamic ? "" : ", for no single one is enough");
    else
        err_hint(
            e, "no change was made; `snug plan %s --set NODE.PARAM=V` shows the bill of one", path);
    str_release(&all);
}

/* The error as it was raised; where a budget refused what there was room for, whose it is (B6). */
static void say_original(
    const struct run_oom *o, const char *budget_about, const struct err *e, struct str *out)
{
    char budget[32];
    str_add(out, e->text);
    if (budget_about && o->budget_bytes > 0 && o->room_bytes == o->budget_bytes)
        str_printf(
            out, "; the run's budget of %s per card is %s: declare a larger target.memory_gib",
            bytes_text(o->budget_bytes, budget, sizeof budget), budget_about);
    else if (!o->before_start && o->budget_bytes > 0 && o->room_bytes == o->budget_bytes)
        str_printf(
            out,
            "; the budget of --memory-gib has %s: a larger --memory-gib (target.memory_gib of a "
            "queued run) allows more",
            bytes_text(o->budget_bytes, budget, sizeof budget));
    str_printf(out, "%s%s", e->detail[0] ? "; " : "", e->detail);
}

json_t *oom_explain(const struct fit_options *o, const struct run *r, struct err *e)
{
    struct advice a = {0};
    struct str original;
    if (!run_out_of_memory(r, &a.oom))
        return NULL;
    a.peak_bytes = run_peak_at(r, a.oom.place);
    a.fits = run_fits_rooms(r, &a.oom);
    str_init(&original);
    str_init(&a.text);
    say_original(&a.oom, o->run.budget_about, e, &original);
    a.list = json_array();
    a.fit.o = *o;
    a.fit.o.allow = NULL;
    a.fit.oom = &a.oom;
    a.fit.on_card = a.oom.device && a.oom.device->kind == DEVICE_CUDA;
    a.fit.plans_left = ADVICE_PLANS_MAX;
    arena_init(&a.fit.memory);
    advise(&a);
    json_t *d = document(&a, original.data);
    fill_error(&a, original.data, graph_path_shown(o->path), e);
    json_decref(a.list);
    json_decref(a.fit.least_plan);
    arena_release(&a.fit.memory);
    str_release(&a.text);
    str_release(&original);
    return d;
}
