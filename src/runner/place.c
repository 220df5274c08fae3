/* place.c - where nodes run: the run's device, the nodes' own, and what each holds. */
#include "runner/run_int.h"

#include "base/config.h"
#include "base/env.h"
#include "base/str.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- which device ---- */

bool run_has_said(const struct run *r, const char *text)
{
    size_t i;
    json_t *w;
    json_array_foreach(
        r->warnings, i, w) if (str_eq(json_get_str(w, "message", ""), text)) return true;
    return false;
}

/* D2, D4: once, also where a plan and a run follow each other. */
static void warn_choice(
    struct run *r, const struct graph_node *n, const char *asked, const struct device_choice *c)
{
    if (!c->fell_back || run_has_said(r, c->warning))
        return;
    json_t *event = json_object();
    json_put_str(event, "event", "warning");
    json_put_str(event, "kind", "device_fallback");
    if (n)
        json_put_str(event, "node_id", n->id);
    json_put_str(event, "message", c->warning);
    json_put_str(event, "requested", asked);
    json_put_str(event, "device", c->device->id);
    json_put_i64(event, "cards", r->devices->cards_n);
    (void)json_array_append(r->warnings, event);
    run_event(r, event);
}

static struct run_place *place_at(struct run *r, struct device *d)
{
    return &r->places[d - r->devices->list];
}

/* What the run asks for: --device, the graph's settings, SNUG_DEVICE, config.json, the CPU. */
static enum status run_request(struct run *r, char **text, struct device_asker *who, struct err *e)
{
    const char *settings = graph_setting_device(r->graph);
    *who = (struct device_asker){.graph = graph_name(r->graph)};
    *text = NULL;
    if (r->o.device) {
        who->option = "--device";
        *text = mem_strdup(r->o.device);
    } else if (settings) {
        who->param = "settings.device";
        *text = mem_strdup(settings);
    } else {
        who->option = getenv("SNUG_DEVICE") ? "SNUG_DEVICE" : "\"device\" of config.json";
        TRY(config_text("SNUG_DEVICE", "device", text, e));
    }
    if (*text && (*text)[0] && !graph_device_is_known(*text)) {
        (void)err_set(
            e, ST_USAGE, "there is no device \"%.60s\": cpu, auto, cuda, cuda:N, mps or mps:N",
            *text);
        if (!r->o.device)
            err_prefix(e, "%s", who->option ? who->option : who->param);
        mem_free(*text);
        *text = NULL;
        return ST_USAGE;
    }
    return ST_OK;
}

/* What a run may take there: its cap, and what the card has now beside a context. */
static int64_t room_of(const struct run *r, struct device *d)
{
    struct device_memory m;
    struct err ignored;
    int64_t room = 0;
    if (r->o.rooms) {
        room = r->o.rooms[d - r->devices->list];
        return room == INT64_MAX ? 0 : room < 0 ? 1 : room;
    }
    if (d->kind != DEVICE_CPU && device_memory(d, &m, &ignored) == ST_OK && m.free_bytes >= 0) {
        room = m.free_bytes - d->context_bytes;
        room = room > 0 ? room : 1;
    }
    if (r->o.budget_bytes > 0 && (room == 0 || r->o.budget_bytes < room))
        room = r->o.budget_bytes;
    return room;
}

enum status run_places_open(struct run *r, struct err *e)
{
    struct device_asker who;
    char *text;
    r->devices = mem_alloc(sizeof *r->devices);
    TRY(devices_open(r->devices, e));
    if (r->o.n_picks > 0)
        TRY(devices_select(r->devices, r->o.picks, r->o.n_picks, e));
    r->places = mem_alloc((size_t)r->devices->n * sizeof *r->places);
    for (int i = 0; i < r->devices->n; i++)
        r->places[i] = (struct run_place){
            .device = &r->devices->list[i], .room_bytes = room_of(r, &r->devices->list[i])};
    TRY(run_request(r, &text, &who, e));
    struct device_choice c = devices_choose(r->devices, text && text[0] ? text : "cpu", NULL, &who);
    warn_choice(r, NULL, text ? text : "", &c);
    r->place = place_at(r, c.device);
    mem_free(text);
    return ST_OK;
}

void run_places_close(struct run *r)
{
    if (r->devices)
        devices_close(r->devices);
    mem_free(r->devices);
    mem_free(r->places);
    r->devices = NULL;
    r->places = NULL;
}

struct run_place *run_place_of(struct run *r, const struct graph_node *n)
{
    bool has = n && n->kind && node_param_find(n->kind, "device");
    const char *text = has ? graph_param_str(n, "device") : NULL;
    if (!text || !text[0])
        return r->place;
    struct device_asker who = {
        .graph = graph_name(r->graph), .node = n->id, .type = n->type, .param = "device"};
    struct device_choice c = devices_choose(r->devices, text, r->place->device, &who);
    warn_choice(r, n, text, &c);
    return place_at(r, c.device);
}

enum status run_places_begin(struct run *r, struct err *e)
{
    for (int i = 0; i < r->devices->n; i++) {
        struct run_place *p = &r->places[i];
        if (!p->used || p->begun)
            continue;
        TRY(device_attach(p->device, e));
        device_source(p->device, r->o.budget_bytes, &p->source);
        p->source.tail_bytes = r->o.storage == EXEC_PLANNED ? EXEC_TAIL_BYTES : 0;
        run_memory_place(r, p);
        p->begun = true;
    }
    return ST_OK;
}

/* ---- what it can do, and what it holds ---- */

/* "cuda:0 (Tesla T4, sm75)". */
void run_place_label(const struct run_place *p, char *out, size_t cap)
{
    const struct device *d = p->device;
    if (d->kind == DEVICE_CPU)
        (void)snprintf(out, cap, "cpu");
    else
        (void)snprintf(out, cap, "%s (%s, sm%d)", d->id, d->name, d->compute_capability);
}

struct precision_device run_place_precision(const struct run_place *p, const char *label)
{
    return p->device->kind == DEVICE_CPU ? precision_cpu()
                                         : precision_cuda(label, p->device->compute_capability);
}

bool run_fit_at(const struct run *r, int i, struct run_fit *out)
{
    if (i < 0 || i >= r->devices->n)
        return false;
    const struct run_place *p = &r->places[i];
    struct device *d = p->device;
    struct device_memory m;
    struct err ignored;
    if (!p->used || d->kind == DEVICE_CPU)
        return false;
    *out = (struct run_fit){
        .device = d,
        .peak_bytes = r->bill.peak_by_device[i],
        .context_bytes = d->context_bytes,
        .capacity_bytes = d->capacity_bytes,
        .free_bytes = -1};
    if (device_memory(d, &m, &ignored) == ST_OK)
        out->free_bytes = m.free_bytes;
    int64_t need = out->peak_bytes + d->context_bytes, more = p->begun ? 0 : d->context_bytes;
    out->fits_at_all = d->capacity_bytes < 0 || need <= d->capacity_bytes;
    out->fits_now =
        out->fits_at_all &&
        (out->free_bytes < 0 ||
         out->peak_bytes + more - atomic_load(&p->source.held_bytes) <= out->free_bytes);
    return true;
}

/* Bytes that lie in the host's memory beside `host_bytes`: the CPU's, and simulated cards'. */
int64_t run_host_need_bytes(const struct run *r)
{
    int64_t sum = r->bill.host_bytes;
    for (int i = 0; i < r->devices->n; i++)
        if (r->places[i].device->kind == DEVICE_CPU || r->places[i].device->simulated)
            sum += r->bill.peak_by_device[i];
    return sum;
}

bool run_device_at(const struct run *r, int i, struct run_device *out)
{
    if (i < 0 || i >= r->devices->n)
        return false;
    const struct run_place *p = &r->places[i];
    *out = (struct run_device){
        .device = p->device,
        .used = p->used,
        .held_bytes_peak = p->begun ? atomic_load(&p->source.held_bytes_peak) : 0};
    return true;
}

/* ---- documents ---- */

static json_t *place_json(const struct run *r, int i)
{
    const struct run_place *p = &r->places[i];
    const struct device *d = p->device;
    json_t *o = json_object();
    json_put_str(o, "id", d->id);
    json_put_str(o, "kind", d->kind == DEVICE_CPU ? "cpu" : "cuda");
    if (d->kind != DEVICE_CPU) {
        json_put_str(o, "name", d->name);
        json_put_str(o, "uuid", d->uuid);
        json_put_i64(o, "compute_capability", d->compute_capability);
        json_put_bool(o, "simulated", d->simulated);
        json_put_i64(o, "capacity_bytes", d->capacity_bytes);
        json_put_i64(o, "context_bytes", d->context_bytes);
    }
    json_put_i64(o, "peak_bytes_planned", r->bill.peak_by_device[i]);
    return o;
}

json_t *run_devices_plan_json(const struct run *r)
{
    json_t *list = json_array();
    for (int i = 0; i < r->devices->n; i++) {
        struct run_fit f;
        if (!r->places[i].used)
            continue;
        json_t *o = place_json(r, i);
        if (run_fit_at(r, i, &f)) {
            json_put_i64(o, "need_bytes", f.peak_bytes + f.context_bytes);
            json_put_i64(o, "free_bytes", f.free_bytes);
            json_put_bool(o, "fits_now", f.fits_now);
            json_put_bool(o, "fits_at_all", f.fits_at_all);
        }
        (void)json_array_append_new(list, o);
    }
    return list;
}

json_t *run_devices_json(const struct run *r)
{
    json_t *list = json_array();
    for (int i = 0; i < r->devices->n; i++) {
        const struct run_place *p = &r->places[i];
        if (!p->used)
            continue;
        json_t *o = place_json(r, i);
        json_put_i64(o, "peak_bytes_measured", p->peak_measured_bytes);
        json_put_i64(o, "held_bytes_peak", atomic_load(&p->source.held_bytes_peak));
        (void)json_array_append_new(list, o);
    }
    return list;
}
