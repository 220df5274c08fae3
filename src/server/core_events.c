/* core_events.c - events as they are stored: payloads within their cap; times as people read them.
 */
#include "server/core_int.h"

#include <string.h>
#include <time.h>

const char *iso_time(int64_t us, char buf[40])
{
    buf[0] = 0;
    if (us <= 0)
        return buf;
    time_t seconds = (time_t)(us / 1000000);
    struct tm t;
    if (!gmtime_r(&seconds, &t))
        return buf;
    size_t n = strftime(buf, 40, "%Y-%m-%dT%H:%M:%S", &t);
    snprintf(buf + n, 40 - n, ".%06dZ", (int)(us % 1000000));
    return buf;
}

static size_t bytes_of(const json_t *value)
{
    return json_dumpb(value, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY);
}

/* Texts longer than this are cut when a payload is over its cap. */
enum { TEXT_KEPT = 4096 };

static json_t *cut_text(const char *text)
{
    size_t n = TEXT_KEPT;
    while (n && ((unsigned char)text[n] & 0xc0) == 0x80)
        n--;
    struct str s;
    str_init(&s);
    str_add_n(&s, text, n);
    str_printf(&s, "... (%zu bytes more)", strlen(text) - n);
    json_t *out = json_string(s.data);
    str_release(&s);
    return out;
}

/* An output that is too large is told, not shown. */
static json_t *elided(const json_t *output, size_t bytes, int64_t cap_bytes)
{
    json_t *out = json_object();
    json_put_str(out, "output_kind", json_get_str(output, "output_kind", ""));
    const json_t *port = json_object_get(output, "port");
    if (port)
        json_object_set(out, "port", (json_t *)(uintptr_t)port);
    json_put_bool(out, "elided", true);
    json_put_i64(out, "bytes", (int64_t)bytes);
    json_put_i64(out, "cap_bytes", cap_bytes);
    return out;
}

static void cut_texts(json_t *object, int depth)
{
    const char *key;
    json_t *value;
    void *next;
    if (depth > 8)
        return;
    json_object_foreach_safe(object, next, key, value)
    {
        if (json_is_string(value) && json_string_length(value) > TEXT_KEPT)
            json_object_set_new(object, key, cut_text(json_string_value(value)));
        else if (json_is_object(value))
            cut_texts(value, depth + 1);
    }
}

/* The largest first, until the rest fits. */
static void elide_outputs(json_t *payload, int64_t cap_bytes)
{
    json_t *outputs = json_object_get(payload, "outputs");
    size_t n = json_array_size(outputs);
    for (size_t round = 0; round < n && (int64_t)bytes_of(payload) > cap_bytes; round++) {
        size_t largest = 0, at = n;
        for (size_t i = 0; i < n; i++) {
            const json_t *one = json_array_get(outputs, i);
            size_t bytes = bytes_of(one);
            if (json_is_object(one) && !json_object_get(one, "elided") && bytes > largest) {
                largest = bytes;
                at = i;
            }
        }
        if (at == n)
            return;
        json_array_set_new(outputs, at, elided(json_array_get(outputs, at), largest, cap_bytes));
    }
}

json_t *payload_capped(json_t *payload, int64_t cap_bytes)
{
    size_t bytes = cap_bytes > 0 ? bytes_of(payload) : 0;
    if ((int64_t)bytes <= cap_bytes || cap_bytes <= 0)
        return json_incref(payload);
    json_t *copy = json_deep_copy(payload);
    elide_outputs(copy, cap_bytes);
    if ((int64_t)bytes_of(copy) > cap_bytes)
        cut_texts(copy, 0);
    if ((int64_t)bytes_of(copy) <= cap_bytes)
        return copy;
    json_t *rest = json_object(); /* what it is about, and that it was too large */
    static const char *const kept[] = {"node_id", "status", "kind", "reason", "code"};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (json_is_string(json_object_get(copy, kept[i])))
            json_object_set(rest, kept[i], json_object_get(copy, kept[i]));
    json_put_bool(rest, "elided", true);
    json_put_i64(rest, "bytes", (int64_t)bytes);
    json_put_i64(rest, "cap_bytes", cap_bytes);
    json_decref(copy);
    return rest;
}
