/* device_ask.c - device strings: what they ask for, where that is, and what they are called. */
#include "mem/device.h"

#include "base/str.h"

#include <stdio.h>
#include <string.h>

enum { DIGITS_MAX = 4 };
static const double gib = 1024.0 * 1024.0 * 1024.0;

/* A plain number without leading zeros, as PyTorch takes an index. */
static bool read_index(const char *s, int *index)
{
    int64_t v;
    size_t n = strspn(s, "0123456789");
    if (n == 0 || n > DIGITS_MAX || s[n] || (s[0] == '0' && n > 1) || !str_to_i64(s, &v))
        return false;
    *index = (int)v;
    return true;
}

enum device_ask device_parse(const char *text, int *index)
{
    *index = 0;
    if (str_eq(text, "auto"))
        return ASK_AUTO;
    if (str_eq(text, "cpu"))
        return ASK_CPU;
    if (str_eq(text, "cuda"))
        return ASK_CUDA;
    if (str_eq(text, "mps") || str_starts(text, "mps:"))
        return ASK_MPS;
    if (str_starts(text, "cuda:") && read_index(text + 5, index))
        return ASK_CUDA_INDEX;
    /* The prefix still asks for a card; only the number is wrong. So does the name of a variable
     * that nobody put a value for. */
    bool card = str_starts(text, "cuda") || str_starts(text, "${CUDA");
    return card ? ASK_CUDA_BROKEN : ASK_UNKNOWN;
}

/* ---- the fallback rule ---- */

/* "Node train (TrainingLoop) is set to device cuda:3": who asks for what. */
static void
add_request(struct str *s, const struct device_asker *who, const char *text, enum device_ask ask)
{
    const char *graph = who->graph && who->graph[0] ? who->graph : NULL;
    bool broken = ask == ASK_CUDA_BROKEN;
    if (who->option) {
        str_printf(s, "%s asks for ", who->option);
    } else if (who->node) {
        str_printf(s, "Node %s (%s)", who->node, who->type ? who->type : "?");
        if (broken && graph)
            str_printf(s, " of graph \"%.80s\"", graph);
        str_printf(s, " %s", broken ? "has parameter '" : "is set to device ");
        if (broken)
            str_printf(s, "%s' set to ", who->param ? who->param : "device");
    } else {
        str_printf(s, "%s of graph \"%.80s\" is set to ", who->param, graph ? graph : "");
    }
    str_printf(s, broken ? "\"%.60s\", which addresses no card" : "%.60s", text);
}

/* "this machine has 2 CUDA cards (cuda:0, cuda:1)". */
static void add_cards(struct str *s, const struct devices *d)
{
    str_printf(s, "this machine has %d CUDA card%s (", d->cards_n, d->cards_n == 1 ? "" : "s");
    if (d->cards_n <= 4)
        for (int i = 0; i < d->cards_n; i++)
            str_printf(s, "%scuda:%d", i ? ", " : "", i);
    else
        str_printf(s, "cuda:0 to cuda:%d", d->cards_n - 1);
    str_add(s, ")");
}

/* "this run has 1 card (cuda:0 = the worker's cuda:1)" (R6). */
static void add_selection(struct str *s, const struct devices *d)
{
    if (d->cards_n == 0) {
        str_add(s, "this run has no card");
        return;
    }
    str_printf(s, "this run has %d card%s (", d->cards_n, d->cards_n == 1 ? "" : "s");
    for (int i = 0; i < d->cards_n; i++)
        str_printf(
            s, "%s%s = the worker's %s", i ? ", " : "", d->list[1 + i].id,
            d->list[1 + i].machine_id);
    str_add(s, ")");
}

static void tell(
    struct device_choice *c, const struct devices *d, const char *text, enum device_ask ask,
    const struct device_asker *who)
{
    struct str s;
    str_init(&s);
    add_request(&s, who, text, ask);
    str_add(&s, "; ");
    if (d->selected)
        add_selection(&s, d);
    else if (ask == ASK_MPS)
        str_add(&s, "this machine has no MPS device");
    else if (d->cards_n == 0)
        str_add(&s, "this machine has no CUDA card");
    else
        add_cards(&s, d);
    if (ask != ASK_MPS && d->cards_n > 0 && !d->cuda_runs)
        str_add(&s, ", which this build does not compute on");
    str_printf(
        &s, ", so %sit runs on %s.", d->selected ? "when it executes, " : "",
        c->device->kind == DEVICE_CPU ? "the CPU" : c->device->id);
    (void)snprintf(c->warning, sizeof c->warning, "%s", s.data);
    c->fell_back = true;
    str_release(&s);
}

/* The current CUDA device; NULL where none runs. */
static struct device *current_card(struct devices *d)
{
    for (int i = 0; i < d->n; i++)
        if (d->list[i].kind == DEVICE_CUDA && d->list[i].runs)
            return &d->list[i];
    return NULL;
}

struct device_choice devices_choose(
    struct devices *d, const char *text, struct device *automatic, const struct device_asker *who)
{
    int index;
    enum device_ask ask = device_parse(text, &index);
    struct device *card = current_card(d), *cpu = &d->list[0];
    struct device_choice c = {.device = cpu};
    if (ask == ASK_AUTO || ask == ASK_UNKNOWN) {
        c.device = automatic ? automatic : card ? card : cpu;
        return c;
    }
    if (ask == ASK_CPU)
        return c;
    if (ask == ASK_MPS || !card) {
        tell(&c, d, text, ask, who);
        return c;
    }
    c.device = card;
    if (ask == ASK_CUDA_INDEX && index < d->cards_n)
        c.device = &d->list[1 + index];
    else if (ask != ASK_CUDA)
        tell(&c, d, text, ask, who);
    return c;
}

/* ---- texts ---- */

void device_label(const struct device *d, char *out, size_t cap)
{
    if (d->kind == DEVICE_CPU)
        (void)snprintf(out, cap, "CPU");
    else
        (void)snprintf(out, cap, "NVIDIA CUDA #%d · %s · %s", d->index, d->id, d->name);
}

void device_free_label(struct device *d, char *out, size_t cap)
{
    struct device_memory m;
    struct err ignored;
    out[0] = 0;
    if (d->kind == DEVICE_CPU || device_memory(d, &m, &ignored) != ST_OK || m.free_bytes < 0 ||
        m.total_bytes < 0)
        return;
    (void)snprintf(
        out, cap, " · free %.1f / %.1f GiB", (double)m.free_bytes / gib,
        (double)m.total_bytes / gib);
}

static void add_row(json_t *menu, const char *value, const char *label, const char *memory)
{
    char text[256];
    json_t *row = json_object();
    (void)snprintf(text, sizeof text, "%s%s", label, memory);
    json_put_str(row, "value", value);
    json_put_str(row, "label", text);
    (void)json_array_append_new(menu, row);
}

json_t *devices_menu(struct devices *d, bool with_memory)
{
    json_t *menu = json_array();
    char label[160], memory[64] = "";
    add_row(menu, "cpu", "CPU", "");
    for (int i = 0; i < d->n; i++) {
        struct device *card = &d->list[i];
        if (card->kind != DEVICE_CUDA)
            continue;
        if (with_memory)
            device_free_label(card, memory, sizeof memory);
        if (card->index == 0)
            add_row(menu, "cuda", "NVIDIA CUDA", memory);
        device_label(card, label, sizeof label);
        if (d->cards_n > 1)
            add_row(menu, card->id, label, memory);
    }
    return menu;
}
