/* client_call.c - requests of the HTTP client: JSON, files, event streams; replies as errors. */
#include "base/client.h"

#include "base/client_int.h"
#include "base/mem.h"

#include <string.h>

static const double limit_s_default = 30;
static const long silence_s = 60; /* a stream says something at least each 15 s */

/* One request on its way: where its bytes go. */
struct call {
    struct client *c;
    const char *method, *path;
    double limit_s;                                      /* 0: no limit but silence */
    bool (*take)(void *ctx, const char *data, size_t n); /* of a reply below 300; NULL: `reply` */
    void *ctx;
    struct str reply;
    bool too_large, ended; /* ended: by `take` */
};

static bool reply_is_wanted(struct call *k)
{
    long status = 0;
    (void)curl_easy_getinfo(k->c->curl, CURLINFO_RESPONSE_CODE, &status);
    return k->take && status < 300;
}

static size_t on_bytes(char *data, size_t size, size_t n, void *ctx)
{
    struct call *k = ctx;
    n *= size;
    if (reply_is_wanted(k)) {
        k->ended = !k->take(k->ctx, data, n);
        return k->ended ? 0 : n;
    }
    if ((int64_t)(k->reply.n + n) > k->c->reply_bytes_max) {
        k->too_large = true;
        return 0;
    }
    str_add_n(&k->reply, data, n);
    return n;
}

static enum status transport_error(const struct call *k, CURLcode code, struct err *e)
{
    const struct client *c = k->c;
    if (c->stopped)
        return err_set(e, ST_INTERRUPTED, "stopped while \"%s\" was asked", c->url);
    if (k->too_large)
        return err_set(
            e, ST_TOO_LARGE, "the reply of \"%s\" passes %lld bytes", c->url,
            (long long)c->reply_bytes_max);
    if (code == CURLE_OPERATION_TIMEDOUT)
        return err_set(e, ST_BUSY, "\"%s\" has not answered in time", c->url);
    (void)err_set(
        e, ST_IO, "could not reach \"%s\": %s", c->url,
        c->said[0] ? c->said : curl_easy_strerror(code));
    if (code == CURLE_PEER_FAILED_VERIFICATION)
        err_hint(e, "SNUG_CA names a PEM file with the authority that signed its certificate");
    else if (code == CURLE_COULDNT_CONNECT && c->local)
        err_hint(e, "`snug start` starts it; server.log in its SNUG_HOME may say why it ended");
    return ST_IO;
}

static void set_method(struct call *k, const char *body)
{
    CURL *h = k->c->curl;
    if (body) {
        (void)curl_easy_setopt(h, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(body));
        (void)curl_easy_setopt(h, CURLOPT_POSTFIELDS, body);
    } else if (strcmp(k->method, "GET") == 0) {
        (void)curl_easy_setopt(h, CURLOPT_HTTPGET, 1L);
    } else {
        (void)curl_easy_setopt(h, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)0);
        (void)curl_easy_setopt(h, CURLOPT_POSTFIELDS, "");
    }
    (void)curl_easy_setopt(h, CURLOPT_CUSTOMREQUEST, k->method);
}

/* Header lines for this call: the client's and one more. */
static struct curl_slist *headers_with(const struct client *c, const char *more)
{
    struct curl_slist *list = NULL;
    for (const struct curl_slist *h = c->headers; h; h = h->next)
        list = curl_slist_append(list, h->data);
    return more ? curl_slist_append(list, more) : list;
}

/* Sends, and fills k->reply or calls take. `body`: JSON text, or NULL; `form`: or NULL. */
static enum status
perform(struct call *k, const char *body, curl_mime *form, int *status, struct err *e)
{
    struct client *c = k->c;
    struct str url;
    struct curl_slist *headers = headers_with(c, body ? "Content-Type: application/json" : NULL);
    long code = 0;
    str_init(&url);
    str_printf(&url, "%s%s", c->url, k->path);
    set_method(k, body);
    if (form)
        (void)curl_easy_setopt(c->curl, CURLOPT_MIMEPOST, form);
    (void)curl_easy_setopt(c->curl, CURLOPT_URL, url.data);
    (void)curl_easy_setopt(c->curl, CURLOPT_HTTPHEADER, headers);
    (void)curl_easy_setopt(c->curl, CURLOPT_WRITEFUNCTION, on_bytes);
    (void)curl_easy_setopt(c->curl, CURLOPT_WRITEDATA, k);
    (void)curl_easy_setopt(c->curl, CURLOPT_TIMEOUT_MS, (long)(1000 * k->limit_s));
    (void)curl_easy_setopt(c->curl, CURLOPT_LOW_SPEED_LIMIT, k->limit_s > 0 ? 0L : 1L);
    (void)curl_easy_setopt(c->curl, CURLOPT_LOW_SPEED_TIME, k->limit_s > 0 ? 0L : silence_s);
    c->said[0] = 0;
    c->stopped = false;
    CURLcode rc = curl_easy_perform(c->curl);
    (void)curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &code);
    (void)curl_easy_setopt(c->curl, CURLOPT_HTTPHEADER, NULL);
    curl_slist_free_all(headers);
    str_release(&url);
    *status = (int)code;
    return rc == CURLE_OK || k->ended ? ST_OK : transport_error(k, rc, e);
}

static enum status check_path(const char *path, struct err *e)
{
    if (path[0] == '/' && !strpbrk(path, " \r\n") && strlen(path) + 1 < sizeof(struct client_path))
        return ST_OK;
    if (!path[0])
        return err_set(e, ST_INVALID, "a name in the request is empty, dots alone, or too long");
    return err_set(e, ST_INVALID, "\"%.100s\" cannot be asked of a server", path);
}

/* ---- calls with JSON ---- */

static void fill_reply(struct client_reply *r, int status, struct str *from)
{
    struct err ignored;
    *r = (struct client_reply){.status = status, .data_bytes = from->n};
    r->data = str_take(from);
    if (r->data_bytes &&
        json_parse(r->data, r->data_bytes, "the server's reply", &r->json, &ignored) != ST_OK)
        r->json = NULL;
}

enum status client_call(
    struct client *c, const char *method, const char *path, const json_t *body, double limit_s,
    struct client_reply *r, struct err *e)
{
    struct call k = {
        .c = c, .method = method, .path = path, .limit_s = limit_s > 0 ? limit_s : limit_s_default};
    char *text = body ? json_text(body, false) : NULL;
    int status = 0;
    *r = (struct client_reply){0};
    str_init(&k.reply);
    enum status st = check_path(path, e);
    if (st == ST_OK)
        st = perform(&k, text, NULL, &status, e);
    if (st == ST_OK)
        fill_reply(r, status, &k.reply);
    str_release(&k.reply);
    mem_free(text);
    return st;
}

void client_reply_release(struct client_reply *r)
{
    json_decref(r->json);
    mem_free(r->data);
    *r = (struct client_reply){0};
}

enum status client_status(int http)
{
    if (http >= 200 && http < 300)
        return ST_OK;
    switch (http) {
    case 400:
        return ST_INVALID;
    case 401:
    case 403:
        return ST_DENIED;
    case 404:
        return ST_NOT_FOUND;
    case 409:
        return ST_CONFLICT;
    case 410:
        return ST_GONE;
    case 413:
        return ST_TOO_LARGE;
    case 422:
        return ST_UNPROCESSABLE;
    case 429:
        return ST_FULL;
    case 502:
    case 503:
    case 504:
        return ST_BUSY;
    default:
        return http >= 500 ? ST_INTERNAL : ST_UNSUPPORTED;
    }
}

/* What a reply says of itself: detail as a text, as {"message"}, or as a list of {"msg"}. */
static const char *detail_of(const json_t *json, char *buf, size_t cap)
{
    const json_t *detail = json_object_get(json, "detail");
    if (json_is_array(detail) && json_array_size(detail) > 0) {
        const json_t *first = json_array_get(detail, 0), *loc = json_object_get(first, "loc");
        const json_t *last =
            json_array_get(loc, json_array_size(loc) ? json_array_size(loc) - 1 : 0);
        const char *where = json_string_value(last);
        (void)snprintf(
            buf, cap, "%s%s%s", where ? where : "", where ? ": " : "",
            json_get_str(first, "msg", "a body of another form"));
        return buf;
    }
    if (json_is_object(detail))
        return json_get_str(detail, "message", NULL);
    return json_string_value(detail);
}

enum status client_refusal(const struct client *c, const struct client_reply *r, struct err *e)
{
    char buf[600];
    enum status st = client_status(r->status);
    const char *detail = detail_of(r->json, buf, sizeof buf);
    ASSERT(st != ST_OK);
    if (detail)
        (void)err_set(e, st, "%s", detail);
    else
        (void)err_set(e, st, "\"%s\" answers with status %d", c->url, r->status);
    const char *hint = json_get_str(json_object_get(r->json, "detail"), "hint", NULL);
    hint = json_get_str(r->json, "hint", hint);
    if (json_get_str(r->json, "more", NULL))
        err_detail(e, "%s", json_get_str(r->json, "more", ""));
    if (hint)
        err_hint(e, "%s", hint);
    else if (r->status == 401 || (r->status == 403 && detail && strstr(detail, "oken")))
        err_hint(
            e, c->secret
                   ? "the key may be revoked, or may not do this; `snug keys` makes another"
                   : "--key KEY (or SNUG_KEY) opens the door; `snug keys add NAME` makes one");
    return st;
}

enum status client_json(
    struct client *c, const char *method, const char *path, const json_t *body, double limit_s,
    json_t **out, struct err *e)
{
    struct client_reply r;
    enum status st = client_call(c, method, path, body, limit_s, &r, e);
    if (out)
        *out = NULL;
    if (st != ST_OK)
        return st;
    if (client_status(r.status) != ST_OK)
        st = client_refusal(c, &r, e);
    else if (out)
        *out = r.json ? json_incref(r.json) : json_null();
    client_reply_release(&r);
    return st;
}

enum status
client_get(struct client *c, const char *path, double limit_s, json_t **out, struct err *e)
{
    return client_json(c, "GET", path, NULL, limit_s, out, e);
}

enum status client_post(
    struct client *c, const char *path, const json_t *body, double limit_s, json_t **out,
    struct err *e)
{
    return client_json(c, "POST", path, body, limit_s, out, e);
}

/* ---- files ---- */

static bool to_file(void *ctx, const char *data, size_t n)
{
    return fwrite(data, 1, n, ctx) == n;
}

/* The end of a call whose good bytes went elsewhere. */
static enum status end_taken(struct call *k, enum status st, int status, struct err *e)
{
    struct client_reply r;
    if (st == ST_OK && client_status(status) != ST_OK) {
        fill_reply(&r, status, &k->reply);
        st = client_refusal(k->c, &r, e);
        client_reply_release(&r);
    }
    str_release(&k->reply);
    return st;
}

enum status
client_download(struct client *c, const char *path, double limit_s, FILE *to, struct err *e)
{
    struct call k = {
        .c = c,
        .method = "GET",
        .path = path,
        .limit_s = limit_s > 0 ? limit_s : limit_s_default,
        .take = to_file,
        .ctx = to};
    int status = 0;
    TRY(check_path(path, e));
    str_init(&k.reply);
    enum status st = perform(&k, NULL, NULL, &status, e);
    if (st == ST_OK && (k.ended || fflush(to) != 0))
        st = err_errno(e, "could not write what \"%s\" sends", c->url);
    return end_taken(&k, st, status, e);
}

enum status client_upload(
    struct client *c, const char *path, const char *file, const char *name, double limit_s,
    json_t **out, struct err *e)
{
    struct call k = {
        .c = c, .method = "POST", .path = path, .limit_s = limit_s > 0 ? limit_s : limit_s_default};
    int status = 0;
    if (out)
        *out = NULL;
    TRY(check_path(path, e));
    curl_mime *form = curl_mime_init(c->curl);
    curl_mimepart *part = curl_mime_addpart(form);
    str_init(&k.reply);
    enum status st = ST_OK;
    if (curl_mime_name(part, "file") != CURLE_OK || curl_mime_filedata(part, file) != CURLE_OK ||
        curl_mime_filename(part, name) != CURLE_OK)
        st = err_set(e, ST_IO, "could not read \"%s\"", file);
    else
        st = perform(&k, NULL, form, &status, e);
    (void)curl_easy_setopt(c->curl, CURLOPT_MIMEPOST, NULL);
    curl_mime_free(form);
    if (st == ST_OK && out && client_status(status) == ST_OK) {
        struct err ignored;
        if (json_parse(k.reply.data, k.reply.n, "the server's reply", out, &ignored) != ST_OK)
            *out = json_null();
    }
    return end_taken(&k, st, status, e);
}

/* ---- event streams ---- */

struct events {
    struct str line, data, id, type;
    bool cr; /* the last byte ended a line as "\r" */
    size_t bytes_max;
    bool (*take)(void *ctx, const struct client_event *event);
    void *ctx;
};

static bool end_event(struct events *s)
{
    struct client_event event = {s->id.data, s->type.data, s->data.data};
    bool go_on = true;
    if (s->data.n) {
        s->data.data[--s->data.n] = 0; /* the last "\n" */
        go_on = s->take(s->ctx, &event);
    }
    str_clear(&s->data);
    str_clear(&s->type);
    return go_on;
}

/* A whole line: a field, a comment, or the end of an event. */
static bool end_line(struct events *s)
{
    char *line = s->line.data, *value = strchr(line, ':');
    if (!line[0])
        return end_event(s);
    if (value) {
        *value++ = 0;
        value += *value == ' ';
    } else {
        value = line + s->line.n;
    }
    if (strcmp(line, "data") == 0) {
        str_add(&s->data, value);
        str_add(&s->data, "\n");
    } else if (strcmp(line, "event") == 0) {
        str_clear(&s->type);
        str_add(&s->type, value);
    } else if (strcmp(line, "id") == 0) {
        str_clear(&s->id);
        str_add(&s->id, value);
    }
    return true;
}

static bool to_events(void *ctx, const char *data, size_t n)
{
    struct events *s = ctx;
    for (size_t i = 0; i < n; i++) {
        bool pair = s->cr && data[i] == '\n';
        s->cr = data[i] == '\r';
        if (pair)
            continue;
        if (data[i] != '\n' && data[i] != '\r') {
            if (s->line.n + s->data.n > s->bytes_max)
                return false;
            str_add_n(&s->line, &data[i], 1);
            continue;
        }
        bool go_on = end_line(s);
        str_clear(&s->line);
        if (!go_on)
            return false;
    }
    return true;
}

enum status client_stream(
    struct client *c, const char *path, bool (*take)(void *ctx, const struct client_event *event),
    void *ctx, struct err *e)
{
    struct events s = {.take = take, .ctx = ctx, .bytes_max = (size_t)c->reply_bytes_max};
    struct call k = {.c = c, .method = "GET", .path = path, .take = to_events, .ctx = &s};
    int status = 0;
    TRY(check_path(path, e));
    str_init(&k.reply);
    str_init(&s.line);
    str_init(&s.data);
    str_init(&s.id);
    str_init(&s.type);
    enum status st = perform(&k, NULL, NULL, &status, e);
    if (st == ST_OK && s.line.n + s.data.n > s.bytes_max)
        st = err_set(e, ST_TOO_LARGE, "an event of \"%s\" passes its limit", c->url);
    str_release(&s.line);
    str_release(&s.data);
    str_release(&s.id);
    str_release(&s.type);
    return end_taken(&k, st, status, e);
}
