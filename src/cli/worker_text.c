/* worker_text.c - workers and their ledgers as text.
 *
 * A card's bar: what budgets of running runs hold, what is reserved for runs that start, what
 * others hold, what is free. An exclusive card has no ledger: what is in use, and what is free. */
#include "cli/worker_text.h"

#include "cli/remote.h"

#include <string.h>

enum { BAR = 24 };

static const char *paint(bool colour, const char *code)
{
    return colour ? code : "";
}

/* n cells of `mark`, of what is left of the bar. */
static int
add_cells(struct str *out, int left, double part, const char *mark, const char *code, bool colour)
{
    int n = (int)(part * BAR + 0.5);
    n = n > left ? left : n < 0 ? 0 : n;
    str_add(out, n ? paint(colour, code) : "");
    for (int i = 0; i < n; i++)
        str_add(out, mark);
    str_add(out, n ? paint(colour, "\033[0m") : "");
    return left - n;
}

static void add_bar(struct str *out, const json_t *device, bool colour)
{
    const json_t *memory = json_object_get(device, "memory");
    int64_t total = json_get_i64(device, "total_bytes", 0),
            free = json_get_i64(device, "free_bytes", 0);
    int64_t running = json_get_i64(memory, "running_bytes", 0);
    int64_t reserved = json_get_i64(memory, "reserved_bytes", 0), used = total - free;
    double whole = (double)total;
    int left = BAR;
    if (json_is_object(memory)) {
        left = add_cells(out, left, (double)running / whole, "█", "\033[32m", colour);
        left = add_cells(out, left, (double)reserved / whole, "▓", "\033[33m", colour);
        used = used > running ? used - running : 0;
        left = add_cells(out, left, (double)used / whole, "▒", "\033[35m", colour);
    } else {
        left = add_cells(out, left, (double)used / whole, "█", "\033[32m", colour);
    }
    for (; left > 0; left--)
        str_add(out, "·");
}

/* In GiB; a card so small that this would say nothing (a simulated one) in its own unit. */
static void add_free(struct str *out, int64_t free_bytes, int64_t total_bytes)
{
    char left[32], whole[32];
    if (total_bytes >= (int64_t)1 << 30 || total_bytes <= 0)
        str_printf(out, " free %.1f / %.1f GiB", gib_of(free_bytes), gib_of(total_bytes));
    else
        str_printf(
            out, " free %s / %s", bytes_text(free_bytes, left, sizeof left),
            bytes_text(total_bytes, whole, sizeof whole));
}

static void add_memory(struct str *out, const json_t *device)
{
    const json_t *memory = json_object_get(device, "memory");
    bool last = json_get_bool(device, "as_last_reported", false);
    add_free(out, json_get_i64(device, "free_bytes", 0), json_get_i64(device, "total_bytes", 0));
    if (json_is_object(memory))
        str_printf(
            out, ", running %.1f, reserved %.1f, room for %.1f",
            gib_of(json_get_i64(memory, "running_bytes", 0)),
            gib_of(json_get_i64(memory, "reserved_bytes", 0)),
            gib_of(json_get_i64(memory, "room_bytes", 0)));
    if (last)
        str_add(out, " (as last reported)");
}

/* "1/1 runs, exclusive" */
static void add_slots(struct str *out, const json_t *device, const char *worker)
{
    const json_t *slots = json_object_get(device, "slots"),
                 *limit = json_object_get(slots, "limit");
    const char *by = json_get_str(slots, "limit_by", NULL);
    str_printf(out, "%lld", (long long)json_get_i64(slots, "used", 0));
    if (json_is_integer(limit))
        str_printf(out, "/%lld", (long long)json_integer_value(limit));
    if (by && by[0] && strcmp(by, worker) != 0 &&
        json_get_i64(slots, "own_limit", INT64_MAX) > json_get_i64(slots, "limit", 0))
        str_printf(out, " (limit of %s)", by);
    if (json_get_bool(device, "can_share", false))
        str_printf(out, " %s", json_get_str(device, "mode", "?"));
}

static void device_row(struct str *rows, const json_t *device, const char *worker, bool colour)
{
    const json_t *others = json_object_get(device, "same_card_as");
    size_t i;
    json_t *other;
    str_printf(rows, "  %s\t", json_get_str(device, "device", "?"));
    cell_add(rows, json_get_str(device, "name", ""), 28);
    str_add(rows, "\t");
    add_slots(rows, device, worker);
    str_add(rows, "\t");
    if (json_get_i64(device, "total_bytes", 0) > 0) {
        add_bar(rows, device, colour);
        add_memory(rows, device);
    }
    json_array_foreach(others, i, other) str_printf(
        rows, "%s%s", i ? ", " : "; the same card as ",
        json_is_string(other) ? json_string_value(other) : "?");
    str_add(rows, "\n");
}

static void add_state(struct str *out, const json_t *w, bool colour)
{
    const char *state = json_get_str(w, "state", "?"), *reason = json_get_str(w, "reason", NULL);
    const char *code = strcmp(state, "online") == 0         ? "\033[32m"
                       : strcmp(state, "disconnected") == 0 ? "\033[31m"
                                                            : "\033[33m";
    str_printf(out, "%s%s%s", paint(colour, code), state, paint(colour, "\033[0m"));
    if (reason && reason[0])
        str_printf(out, " (%s)", reason);
}

void worker_text(const json_t *w, bool colour, struct str *out)
{
    struct str rows;
    size_t i;
    json_t *device, *run;
    const char *refusal = json_get_str(w, "last_refusal", NULL);
    char id[9];
    str_init(&rows);
    str_printf(
        out, "%s%s%s  ", paint(colour, "\033[1m"), json_get_str(w, "name", "?"),
        paint(colour, "\033[0m"));
    add_state(out, w, colour);
    if (json_get_str(w, "version", NULL))
        str_printf(
            out, "  snug %s%s", json_get_str(w, "version", ""),
            json_get_bool(w, "version_matches", true) ? "" : ", not the server's version");
    if (json_get_str(w, "hostname", NULL))
        str_printf(out, "  on %s", json_get_str(w, "hostname", ""));
    double age = json_get_f64(w, "heartbeat_age_s", -1);
    if (age >= 0)
        str_printf(out, "  heard %.0f s ago", age);
    str_add(out, "\n");
    json_array_foreach(json_object_get(w, "devices"), i, device)
        device_row(&rows, device, json_get_str(w, "name", ""), colour);
    table_text(rows.data, out);
    json_array_foreach(json_object_get(w, "runs"), i, run)
    {
        if (i == 0)
            str_add(out, "  runs:");
        str_printf(out, " %s", short_id(json_get_str(run, "run_id", "?"), id));
    }
    str_add(out, json_array_size(json_object_get(w, "runs")) ? "\n" : "");
    if (refusal && refusal[0])
        str_printf(out, "  last refused: %s\n", refusal);
    str_release(&rows);
}

void workers_text(const json_t *document, bool colour, struct str *out)
{
    const json_t *local = json_object_get(document, "local");
    size_t i;
    json_t *w;
    if (json_is_object(local))
        worker_text(local, colour, out);
    json_array_foreach(json_object_get(document, "workers"), i, w) worker_text(w, colour, out);
    json_array_foreach(json_object_get(document, "pools"), i, w) str_printf(
        out, "pool %s: %lld one-shot workers free\n", json_get_str(w, "name", "?"),
        (long long)json_get_i64(w, "free", 0));
    json_array_foreach(json_object_get(document, "refused"), i, w) str_printf(
        out, "refused: %s (snug %s): %s\n", json_get_str(w, "name", "?"),
        json_get_str(w, "version", "?"), json_get_str(w, "reason", ""));
}
