/* events.c - from stored events to the live display. */
#include "cli/events.h"

#include "cli/answer.h"
#include "cli/bill.h"

#include <string.h>

enum { NODE_ROWS = 8, TEXT_MOST = 160 };

static void show_as(struct follow *f, const char *event, const json_t *payload)
{
    json_t *copy = json_copy((json_t *)(uintptr_t)payload);
    json_put_str(copy, "event", event);
    live_event(copy, f->live);
    json_decref(copy);
}

static void on_plan(struct follow *f, const json_t *payload)
{
    struct bill_options o = {.colour = colour_on(stdout), .rows_max = NODE_ROWS};
    struct str out;
    if (!json_object_get(payload, "by_category"))
        return;
    live_clear(f->live);
    str_init(&out);
    bill_text(payload, &o, &out);
    str_add(&out, "\n");
    (void)fputs(out.data, stdout);
    (void)fflush(stdout);
    str_release(&out);
}

/* Progress of a training loop has the fields of the live display's own events. */
static void on_output(struct follow *f, const json_t *output)
{
    const char *kind = json_get_str(output, "output_kind", "");
    const json_t *value = json_object_get(output, kind);
    if (strcmp(kind, "progress") == 0 && json_is_object(value))
        show_as(f, json_get_str(value, "event", "batch"), value);
    else if (strcmp(kind, "text") == 0 && json_is_string(value)) {
        json_t *event = json_pack("{s:s, s:O}", "event", "text", "text", value);
        live_event(event, f->live);
        json_decref(event);
    }
}

static void on_node_status(struct follow *f, const json_t *payload)
{
    const json_t *outputs = json_object_get(payload, "outputs");
    size_t i;
    json_t *output;
    json_array_foreach(outputs, i, output) on_output(f, output);
}

static void on_warning(struct follow *f, const json_t *payload)
{
    show_as(f, "warning", payload);
}

static void on_artifact(struct follow *f, const json_t *payload)
{
    const char *kind = json_get_str(payload, "kind", "");
    if (strcmp(kind, "checkpoint") == 0 || strcmp(kind, "export") == 0)
        show_as(f, strcmp(kind, "export") == 0 ? "saved" : "checkpoint", payload);
}

/* What a command printed. */
static void on_log(struct follow *f, const json_t *payload)
{
    live_clear(f->live);
    (void)fputs(json_get_str(payload, "text", ""), stdout);
    (void)fflush(stdout);
}

static const struct {
    const char *type;
    void (*show)(struct follow *f, const json_t *payload);
} rows[] = {
    {"plan", on_plan},
    {"node_status", on_node_status},
    {"run_warning", on_warning},
    {"artifact", on_artifact},
    {"log", on_log},
};

void events_show(struct follow *f, const char *type, const json_t *payload)
{
    if (f->live->json) {
        json_t *event = json_object();
        json_put_str(event, "event", type);
        json_put_str(event, "run_id", f->run_id);
        json_put_i64(event, "cursor", f->cursor);
        (void)json_object_update_missing(event, (json_t *)(uintptr_t)payload);
        live_event(event, f->live);
        json_decref(event);
        return;
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].type, type) == 0)
            rows[i].show(f, payload);
}

void events_show_wait(struct follow *f, const json_t *row)
{
    json_t *event = json_object();
    json_put_str(event, "event", "waits");
    json_put_str(event, "message", f->said);
    json_put(event, "queue_position", json_deep_copy(json_object_get(row, "queue_position")));
    json_put_str(event, "queue_key", json_get_str(row, "queue_key", NULL));
    json_put_str(event, "reason", json_get_str(row, "reason", NULL));
    live_event(event, f->live);
    json_decref(event);
}

void event_line(const char *type, const json_t *payload, struct str *out)
{
    char *text;
    const char *said = json_get_str(payload, "message", NULL);
    if (!said)
        said = json_get_str(payload, "error", NULL);
    if (!said)
        said = json_get_str(payload, "text", NULL);
    str_printf(out, "%s\t", type);
    if (said) {
        cell_add(out, said, TEXT_MOST);
    } else {
        text = json_text(payload, false);
        cell_add(out, text, TEXT_MOST);
        mem_free(text);
    }
    str_add(out, "\n");
}
