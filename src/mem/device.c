/* device.c - the list of devices, and what they hold. */
#include "mem/device.h"

#include "base/config.h"
#include "base/env.h"
#include "base/mem.h"
#include "mem/nvml.h"
#include "mem/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the CPU ---- */

static enum status host_memory(struct device *d, struct device_memory *out, struct err *e)
{
    (void)d;
    (void)e;
    *out = (struct device_memory){-1, host_capacity_bytes(), -1};
    return ST_OK;
}

static void host_source(struct device *d, struct mem_source *out)
{
    (void)d;
    mem_source_init_host(out, 0);
}

static const struct device_ops host_ops = {
    .name = "host", .memory = host_memory, .source = host_source};

/* ---- simulated cards ---- */

static enum status sim_memory(struct device *d, struct device_memory *out, struct err *e)
{
    struct sim_state s;
    TRY(sim_card_look(d->ctx, &s, e));
    *out = (struct device_memory){s.capacity_bytes, s.free_bytes, s.others_bytes};
    return ST_OK;
}

static size_t sim_holders(struct device *d, struct device_holder *out, size_t cap)
{
    struct sim_state s;
    struct err ignored;
    size_t n = 0;
    if (sim_card_look(d->ctx, &s, &ignored) != ST_OK)
        return 0;
    for (int i = 0; i < s.n && n < cap; i++)
        out[n++] = (struct device_holder){
            s.use[i].pid, s.use[i].held_bytes, s.use[i].context_bytes, s.use[i].own};
    return n;
}

static enum status sim_attach(struct device *d, struct err *e)
{
    enum status st = sim_card_attach(d->ctx, e);
    if (st != ST_OK)
        err_prefix(e, "%s", d->id);
    return st;
}

static bool sim_account(struct mem_source *s, int64_t bytes)
{
    struct device *d = s->ctx;
    return sim_card_charge(d->ctx, bytes, NULL) == ST_OK;
}

static bool sim_broken(struct mem_source *s, struct err *e)
{
    struct device *d = s->ctx;
    struct sim_state ignored;
    struct err why = {0};
    enum status st = sim_card_look(d->ctx, &ignored, &why);
    if (st == ST_OK)
        return false;
    *e = why;
    return true;
}

static void sim_info(struct mem_source *s, int64_t *free_bytes, int64_t *total_bytes)
{
    struct device_memory m = {-1, -1, -1};
    struct err ignored;
    if (sim_memory(s->ctx, &m, &ignored) != ST_OK)
        m = (struct device_memory){-1, -1, -1};
    *free_bytes = m.free_bytes;
    *total_bytes = m.total_bytes;
}

/* Memory of the host, in the card's account. */
static void sim_source(struct device *d, struct mem_source *out)
{
    mem_source_init_host(out, 0);
    out->account = sim_account;
    out->account_broken = sim_broken;
    out->info = sim_info;
    out->ctx = d;
    out->device = d->id;
}

static void sim_close(struct device *d)
{
    sim_card_free(d->ctx);
    d->ctx = NULL;
}

static const struct device_ops sim_ops = {
    .name = "simulated",
    .memory = sim_memory,
    .holders = sim_holders,
    .attach = sim_attach,
    .source = sim_source,
    .close = sim_close};

static void add_sim(struct devices *d, const struct sim_spec *s, const char *dir)
{
    struct device *card = &d->list[d->n++];
    *card = (struct device){
        .kind = DEVICE_CUDA,
        .index = d->cards_n++,
        .compute_capability = s->compute_capability,
        .capacity_bytes = s->capacity_bytes,
        .context_bytes = s->context_bytes,
        .simulated = true,
        .runs = true,
        .ops = &sim_ops,
        .ctx = sim_card_new(s, dir)};
    (void)snprintf(card->id, sizeof card->id, "cuda:%d", card->index);
    memcpy(card->name, s->name, sizeof card->name);
    memcpy(card->uuid, s->uuid, sizeof card->uuid);
    d->cuda_runs = true;
}

static enum status sim_dir(char *out, size_t cap, struct err *e)
{
    char *set;
    TRY(config_text("SNUG_SIM_DIR", "sim_dir", &set, e));
    if (set && set[0])
        (void)snprintf(out, cap, "%s", set);
    else
        (void)path_join(snug_home(), "sim", out, cap);
    mem_free(set);
    return ST_OK;
}

static enum status list_sim(struct devices *d, bool *described, struct err *e)
{
    struct sim_spec *specs = NULL;
    char *text, dir[900];
    int n = 0;
    TRY(config_text("SNUG_SIM_CARDS", "sim_cards", &text, e));
    *described = text && text[strspn(text, " \t\r\n")];
    if (!*described) {
        mem_free(text);
        return ST_OK;
    }
    specs = mem_alloc(SIM_CARDS_MAX * sizeof *specs);
    const char *what = getenv("SNUG_SIM_CARDS") ? "SNUG_SIM_CARDS" : "sim_cards of config.json";
    enum status st = sim_specs_parse(text, what, specs, &n, e);
    if (st == ST_OK)
        st = sim_dir(dir, sizeof dir, e);
    for (int i = 0; st == ST_OK && i < n; i++)
        add_sim(d, &specs[i], dir);
    mem_free(specs);
    mem_free(text);
    return st;
}

/* ---- the list ---- */

enum status devices_open(struct devices *d, struct err *e)
{
    bool described;
    *d = (struct devices){.n = 1};
    d->list[0] = (struct device){
        .kind = DEVICE_CPU,
        .id = "cpu",
        .name = "CPU",
        .capacity_bytes = -1,
        .runs = true,
        .ops = &host_ops};
    enum status st = list_sim(d, &described, e);
    if (st == ST_OK && !described) {
        struct nvml_api *api = mem_alloc(sizeof *api);
        if (nvml_load(NULL, api) && nvml_list(api, d) > 0) {
            d->nvml = api;
        } else {
            nvml_unload(api);
            mem_free(api);
        }
    }
    for (int i = 0; i < d->n; i++)
        memcpy(d->list[i].machine_id, d->list[i].id, sizeof d->list[i].id);
    if (st != ST_OK)
        devices_close(d);
    return st;
}

/* ---- the cards of a run ---- */

/* The place of a card in the list; 0: there is none. */
static int find_card(const struct devices *d, const struct device_pick *p)
{
    for (int i = 1; i < d->n; i++)
        if (p->uuid && p->uuid[0] ? strcmp(d->list[i].uuid, p->uuid) == 0
                                  : strcmp(d->list[i].machine_id, p->id) == 0)
            return i;
    return 0;
}

static enum status
pick_cards(const struct devices *d, const struct device_pick *picks, int n, int *at, struct err *e)
{
    int cards = 0;
    for (int i = 0; i < n; i++) {
        if (strcmp(picks[i].id, "cpu") == 0)
            continue;
        int card = find_card(d, &picks[i]);
        if (!card)
            return err_set(
                e, ST_NOT_FOUND, "this machine has no card \"%s\"%s%s", picks[i].id,
                picks[i].uuid && picks[i].uuid[0] ? " with UUID " : "",
                picks[i].uuid ? picks[i].uuid : "");
        for (int k = 0; k < cards; k++)
            if (at[k] == card)
                return err_set(e, ST_INVALID, "card \"%s\" is named twice", picks[i].id);
        at[cards++] = card;
    }
    at[cards] = 0;
    return ST_OK;
}

enum status devices_select(struct devices *d, const struct device_pick *picks, int n, struct err *e)
{
    int at[DEVICES_MAX + 1] = {0}, cards = 0;
    bool kept[DEVICES_MAX] = {true};
    if (n > DEVICES_MAX - 1)
        return err_set(e, ST_INVALID, "a run has at most %d cards", DEVICES_MAX - 1);
    TRY(pick_cards(d, picks, n, at, e));
    struct device *list = mem_alloc(sizeof d->list);
    list[0] = d->list[0];
    for (; at[cards]; cards++) {
        struct device *card = &list[1 + cards];
        *card = d->list[at[cards]];
        kept[at[cards]] = true;
        card->index = cards;
        (void)snprintf(card->id, sizeof card->id, "cuda:%d", cards);
    }
    for (int i = 1; i < d->n; i++)
        if (!kept[i] && d->list[i].ops->close)
            d->list[i].ops->close(&d->list[i]);
    memcpy(d->list, list, sizeof d->list);
    mem_free(list);
    d->n = 1 + cards;
    d->cards_n = cards;
    d->cuda_runs = d->cuda_runs && cards > 0;
    d->selected = true;
    return ST_OK;
}

void devices_close(struct devices *d)
{
    for (int i = 0; i < d->n; i++)
        if (d->list[i].ops->close)
            d->list[i].ops->close(&d->list[i]);
    if (d->nvml) {
        (void)d->nvml->shutdown();
        nvml_unload(d->nvml);
        mem_free(d->nvml);
    }
    d->n = d->cards_n = 0;
    d->nvml = NULL;
}

/* ---- memory ---- */

enum status device_memory(struct device *d, struct device_memory *out, struct err *e)
{
    *out = (struct device_memory){-1, -1, -1};
    return d->ops->memory(d, out, e);
}

size_t device_holders(struct device *d, struct device_holder *out, size_t cap)
{
    return d->ops->holders ? d->ops->holders(d, out, cap) : 0;
}

enum status device_attach(struct device *d, struct err *e)
{
    return d->ops->attach ? d->ops->attach(d, e) : ST_OK;
}

void device_source(struct device *d, int64_t budget_bytes, struct mem_source *out)
{
    ASSERT(d->ops->source);
    d->ops->source(d, out);
    out->budget_bytes = budget_bytes;
}
