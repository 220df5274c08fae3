/* ws_frames.c - stored events as frames of either form (ws_talk.h says what becomes of what). */
#include "server/ws_talk.h"

#include <string.h>

static json_t *frame_new(const char *type)
{
    json_t *f = json_object();
    json_put_str(f, "type", type);
    return f;
}

json_t *ws_frame_view(const json_t *event, const char *run_id)
{
    const json_t *payload = json_object_get(event, "payload");
    json_t *f = json_is_object(payload) ? json_copy((json_t *)(uintptr_t)payload) : json_object();
    json_put_str(f, "type", json_get_str(event, "type", ""));
    json_put_str(f, "run_id", run_id);
    json_put_i64(f, "cursor", json_get_i64(event, "cursor", 0));
    return f;
}

/* Adds a line to a frame's log. */
static void add_log(json_t *frame, const char *text)
{
    const char *before = json_get_str(frame, "log", NULL);
    if (!before) {
        json_put_str(frame, "log", text);
        return;
    }
    struct str s;
    str_init(&s);
    str_printf(&s, "%s\n%s", before, text);
    json_put_str(frame, "log", s.data);
    str_release(&s);
}

/* An entry of outputs[] has its content under the name of its kind. */
static void add_output(json_t *frame, const json_t *entry)
{
    const char *kind = json_get_str(entry, "output_kind", "");
    const char *port = json_get_str(entry, "port", NULL);
    json_t *content = json_object_get(entry, kind);
    if (!content)
        return;
    if (str_eq(kind, "progress")) {
        json_object_set(frame, "progress", content);
    } else if (str_eq(kind, "text") && json_is_string(content)) {
        add_log(frame, json_string_value(content));
    } else if (str_eq(kind, "image")) {
        json_t *data = json_is_object(content) ? json_object_get(content, "data") : content;
        if (json_is_string(data))
            json_object_set(frame, "image", data);
    } else if (json_is_object(content)) {
        json_t *summary = json_object_get(frame, "output_summary");
        if (!summary) {
            summary = json_object();
            json_put(frame, "output_summary", summary);
        }
        if (port)
            json_object_set(summary, port, content);
        else if (str_eq(kind, "tensor_summary")) /* {port: summary} of all ports */
            json_object_update(summary, content);
    }
}

static json_t *node_status_142(const json_t *payload)
{
    const char *status = json_get_str(payload, "status", "running");
    const char *error = json_get_str(payload, "error", NULL);
    json_t *f = frame_new("node_status"), *entry;
    size_t i;
    json_put_str(f, "node_id", json_get_str(payload, "node_id", ""));
    json_put_str(f, "status", str_eq(status, "interrupted") ? "skipped" : status);
    if (error)
        json_put_str(f, "error", error);
    json_array_foreach(json_object_get(payload, "outputs"), i, entry) add_output(f, entry);
    /* What a payload says in the old words already stays as it is. */
    static const char *const kept[] = {"progress", "log", "image", "output_summary"};
    for (i = 0; i < sizeof kept / sizeof *kept; i++) {
        json_t *value = json_object_get(payload, kept[i]);
        if (value && !json_object_get(f, kept[i]))
            json_object_set(f, kept[i], value);
    }
    return f;
}

/* That editor has no warnings; a line in the node's log is where its user looks. */
static json_t *warning_142(const json_t *payload)
{
    const char *node = json_get_str(payload, "node_id", NULL);
    if (!node || !*node)
        return NULL;
    json_t *f = frame_new("node_status");
    json_put_str(f, "node_id", node);
    json_put_str(f, "status", "running");
    json_put_str(
        f, "log", json_get_str(payload, "message", json_get_str(payload, "kind", "warning")));
    return f;
}

json_t *ws_frame_142(const json_t *event, const char *run_id)
{
    const char *type = json_get_str(event, "type", "");
    const json_t *payload = json_object_get(event, "payload");
    if (str_eq(type, "node_status"))
        return node_status_142(payload);
    if (str_eq(type, "run_warning"))
        return warning_142(payload);
    if (str_eq(type, "execution_start")) {
        json_t *f = frame_new(type);
        json_put_str(f, "run_id", run_id);
        return f;
    }
    if (str_eq(type, "execution_error")) {
        json_t *f = frame_new(type);
        json_put_str(f, "error", json_get_str(payload, "error", "the run failed"));
        return f;
    }
    if (str_eq(type, "execution_complete") || str_eq(type, "execution_stopped"))
        return frame_new(type);
    return NULL;
}
