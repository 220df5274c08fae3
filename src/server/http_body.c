/* http_body.c - bodies: their limits as bytes arrive, and their form once they are there. */
#include "server/http_int.h"

#include <stdlib.h>
#include <string.h>

static void refuse_size(struct exchange *x)
{
    exchange_refuse(x, 413, "the request's body is larger than %lld bytes", (long long)x->limit);
}

/* What Content-Length says; -1 where it says nothing. */
static int64_t length_of(const struct exchange *x)
{
    const char *text = x->head.get(x->head.ctx, "Content-Length");
    int64_t n;
    if (!text)
        return -1;
    return str_to_i64(text, &n) && n >= 0 ? n : INT64_MAX;
}

static int64_t limit_of(const struct exchange *x)
{
    switch (x->route->body) {
    case BODY_UPLOAD:
        return x->h->config.upload_max_bytes;
    case BODY_JSON:
    case BODY_JSON_ANY:
    case BODY_RAW:
        return x->h->config.body_max_bytes;
    case BODY_NONE:
        break;
    }
    return DRAIN_BYTES_MAX;
}

void body_begin(struct exchange *x)
{
    if (x->replied || !x->route)
        return;
    x->limit = limit_of(x);
    /* A form around a file has a little more than the file. */
    int64_t slack = x->route->body == BODY_UPLOAD ? 65536 : 0;
    if (length_of(x) > x->limit + slack)
        refuse_size(x);
    else if (x->route->body == BODY_UPLOAD && !spool_begin(x))
        ASSERT(x->replied);
}

static bool body_grow(struct exchange *x, size_t n)
{
    if (x->body_n + n + 1 <= x->body_cap)
        return true;
    size_t cap = x->body_cap ? 2 * x->body_cap : 4096;
    while (cap < x->body_n + n + 1)
        cap *= 2;
    int64_t more = (int64_t)(cap - x->body_cap);
    if (atomic_fetch_add(&x->h->bodies_bytes, more) + more > BODIES_BYTES_MAX) {
        atomic_fetch_sub(&x->h->bodies_bytes, more);
        return false;
    }
    char *p = mem_try_resize(x->body, cap);
    if (!p) {
        atomic_fetch_sub(&x->h->bodies_bytes, more);
        return false;
    }
    x->body = p;
    x->body_cap = cap;
    return true;
}

void body_take(struct exchange *x, const char *data, size_t n)
{
    if (x->route->body == BODY_UPLOAD) {
        spool_take(x, data, n);
    } else if (x->arrived > x->limit) {
        refuse_size(x);
    } else if (x->route->body != BODY_NONE) {
        if (body_grow(x, n)) {
            memcpy(x->body + x->body_n, data, n);
            x->body_n += n;
            x->body[x->body_n] = '\0';
        } else {
            exchange_refuse(x, 503, "too many large requests at a time; try again later");
        }
    }
}

/* {"detail": [{"type", "loc", "msg"}]}: how the API says that a body has not its form. */
static void refuse_form(struct exchange *x, const char *type, const char *message)
{
    json_t *fault = json_object(), *list = json_array(), *loc = json_array();
    json_put_str(fault, "type", type);
    (void)json_array_append_new(loc, json_string("body"));
    json_put(fault, "loc", loc);
    json_t *text = json_string(message);
    json_put(fault, "msg", text ? text : json_string("the body is not UTF-8"));
    (void)json_array_append_new(list, fault);
    http_error_json(&x->r, 422, list);
    x->replied = true;
}

/* How deep the brackets of a text go; strings are skipped. */
static int nesting(const char *text, size_t n)
{
    int depth = 0, deepest = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_string) {
            i += c == '\\';
            in_string = c != '"';
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > deepest)
                deepest = depth;
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
    return deepest;
}

static void body_json(struct exchange *x)
{
    struct err e = {0};
    if (x->body_n == 0 && x->route->body == BODY_JSON_ANY) {
        x->json = json_object();
    } else if (x->body_n == 0) {
        refuse_form(x, "missing", "a JSON object is needed");
    } else if (nesting(x->body, x->body_n) > JSON_DEPTH_MAX) {
        refuse_form(x, "json_invalid", "the body is nested too deep");
    } else if (json_parse(x->body, x->body_n, "the body", &x->json, &e) != ST_OK) {
        refuse_form(x, "json_invalid", e.text);
    } else if (!json_is_object(x->json)) {
        refuse_form(x, "object_type", "the body must be a JSON object");
    }
    x->q.json = x->json;
}

void body_end(struct exchange *x)
{
    x->q.body = x->body ? x->body : "";
    x->q.body_bytes = x->body_n;
    switch (x->route->body) {
    case BODY_JSON:
    case BODY_JSON_ANY:
        body_json(x);
        break;
    case BODY_UPLOAD:
        spool_end(x);
        break;
    case BODY_NONE:
    case BODY_RAW:
        break;
    }
}

void body_release(struct exchange *x)
{
    atomic_fetch_sub(&x->h->bodies_bytes, (int64_t)x->body_cap);
    mem_free(x->body);
    spool_release(&x->spool);
}
