/* http_reply.c - what routes say: JSON, errors, texts, files, waits, streams, headers. */
#include "server/http_int.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define TYPE_JSON "application/json"

void http_text(struct http_reply *r, int status, const char *type, char *data, size_t n)
{
    mem_free(r->data);
    r->status = status;
    r->type = type;
    r->data = data;
    r->data_bytes = n;
}

void http_json(struct http_reply *r, int status, json_t *body)
{
    char *text = json_text(body, false);
    json_decref(body);
    http_text(r, status, TYPE_JSON, text, strlen(text));
}

void http_error_json(struct http_reply *r, int status, json_t *detail)
{
    json_t *body = json_object();
    json_put(body, "detail", detail);
    http_json(r, status, body);
}

/* Texts may hold bytes that a client sent: what is not UTF-8 is shown as '?'. */
static json_t *text_json(char *text)
{
    json_t *value = json_string(text);
    if (value)
        return value;
    for (char *c = text; *c; c++)
        if ((unsigned char)*c >= 128)
            *c = '?';
    return json_string(text);
}

void http_error(struct http_reply *r, int status, const char *fmt, ...)
{
    char text[2048];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    http_error_json(r, status, text_json(text));
}

void http_fail(struct http_reply *r, const struct err *e)
{
    struct err copy = *e;
    json_t *body = json_object();
    json_put(body, "detail", text_json(copy.text));
    json_put_str(body, "code", status_code(copy.status));
    if (copy.hint[0])
        json_put(body, "hint", text_json(copy.hint));
    if (copy.detail[0])
        json_put(body, "more", text_json(copy.detail));
    if (copy.node[0])
        json_put(body, "node_id", text_json(copy.node));
    http_json(r, status_http(copy.status), body);
}

void http_wait(struct http_reply *r, uint64_t topic, int64_t until_ns)
{
    r->waits = true;
    r->topic = topic;
    r->wait_until_ns = until_ns;
}

void http_file(struct http_reply *r, const char *path, const char *type)
{
    r->status = 200;
    r->type = type;
    (void)snprintf(r->file, sizeof r->file, "%s", path);
    r->file_offset = 0;
    r->file_bytes = -1;
}

static bool header_text_is_fine(const char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 32 || *s == 127)
            return false;
    return true;
}

bool http_add_header(struct http_reply *r, const char *name, const char *value)
{
    bool fine = name[0] && header_text_is_fine(name) && header_text_is_fine(value) &&
                !strpbrk(name, ": \"(),/;<=>?@[\\]{}");
    size_t used = strlen(r->headers), more = strlen(name) + strlen(value) + 4;
    if (!fine || used + more >= sizeof r->headers)
        return false;
    (void)snprintf(r->headers + used, sizeof r->headers - used, "%s: %s\r\n", name, value);
    return true;
}

void http_reply_release(struct http_reply *r)
{
    mem_free(r->data);
    if (r->stream.release)
        r->stream.release(r->stream.ctx);
    if (r->upgrade.dropped)
        r->upgrade.dropped(r->upgrade.ctx);
    *r = (struct http_reply){0};
}

void http_sse(struct str *out, int64_t id, const char *type, const char *json_line)
{
    if (id >= 0)
        str_printf(out, "id: %lld\n", (long long)id);
    if (type)
        str_printf(out, "event: %s\n", type);
    str_add(out, "data: ");
    str_add(out, json_line);
    str_add(out, "\n\n");
}

/* ---- names of files ---- */

static bool windows_device(const char *name)
{
    static const char *const devices[] = {"con", "prn", "aux", "nul", "com", "lpt"};
    size_t n = strcspn(name, ".");
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        bool numbered = i >= 4;
        if (strncasecmp(name, devices[i], 3) != 0)
            continue;
        if (numbered ? n == 4 && name[3] >= '1' && name[3] <= '9' : n == 3)
            return true;
    }
    return false;
}

static const char *name_fault(const char *name, size_t n)
{
    if (n == 0 || str_eq(name, ".") || str_eq(name, ".."))
        return "a file name is needed";
    if (n > 255)
        return "the file name is longer than 255 bytes";
    if (!text_is_utf8(name, n))
        return "the file name is not UTF-8";
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 32 || name[i] == 127 || strchr("<>:\"|?*", name[i]))
            return "the file name has a character that not every system takes";
    if (name[n - 1] == '.' || name[n - 1] == ' ' || windows_device(name))
        return "the file name is not one that every system takes";
    return name[0] == '.' ? "the file name begins with a dot" : NULL;
}

bool http_file_name(const char *given, char out[256], struct http_reply *r)
{
    const char *name = given;
    for (const char *c = given; *c; c++)
        if (*c == '/' || *c == '\\')
            name = c + 1;
    size_t n = strlen(name);
    const char *fault = name_fault(name, n);
    if (fault) {
        http_error(r, 400, "%s", fault);
        return false;
    }
    memcpy(out, name, n + 1);
    return true;
}
