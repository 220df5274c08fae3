/* snapshot_json.c - reads a JSON snapshot as a stream of tokens, on the stack machine of
 * snapshot_build.c: nothing is held but rows and what is open. Source: RFC 8259. */
#include "doctor/snapshot_int.h"

#include "base/str.h"

#include <string.h>

enum { NUMBER_MAX = 64, BATCH = 1000 };

struct json_run {
    struct snap_build *b;
    char kinds[SNAP_DEPTH_MAX]; /* of what is open: '{' or '[' */
    size_t depth;
    bool fresh; /* something was just begun: its end may come, or its first member */
    struct str text;
};

static enum status wrong(struct json_run *r, const char *what)
{
    return snap_fail(r->b, ST_CORRUPT, "%s", what);
}

/* The next byte that is no blank, not taken; 0 at the end. */
static int peek(struct json_run *r)
{
    struct snap_input *in = &r->b->in;
    while (snap_input_has(in, 1)) {
        if (*in->at != ' ' && *in->at != '\n' && *in->at != '\r' && *in->at != '\t')
            return *in->at;
        in->at++;
    }
    return 0;
}

static int hex4(const uint8_t *p)
{
    int v = 0;
    for (int i = 0; i < 4; i++) {
        int c = p[i], d = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (d < 0)
            return -1;
        v = v << 4 | d;
    }
    return v;
}

static void add_utf8(struct str *s, uint32_t c)
{
    char out[4];
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint8_t lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n; i-- > 1; c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)(n == 1 ? c : lead[n] | c);
    str_add_n(s, out, n);
}

/* \uXXXX, and a second one behind a high surrogate. */
static enum status unicode_escape(struct json_run *r)
{
    struct snap_input *in = &r->b->in;
    if (!snap_input_has(in, 4) || hex4(in->at) < 0)
        return wrong(r, "a text with a bad \\u escape");
    uint32_t c = (uint32_t)hex4(in->at);
    in->at += 4;
    if (c >= 0xd800 && c < 0xdc00 && snap_input_has(in, 6) && in->at[0] == '\\' &&
        in->at[1] == 'u') {
        int low = hex4(in->at + 2);
        if (low >= 0xdc00 && low < 0xe000) {
            c = 0x10000 + ((c - 0xd800) << 10) + ((uint32_t)low - 0xdc00);
            in->at += 6;
        }
    }
    add_utf8(&r->text, c >= 0xd800 && c < 0xe000 ? 0xfffd : c);
    return ST_OK;
}

static enum status escape(struct json_run *r)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    struct snap_input *in = &r->b->in;
    if (!snap_input_has(in, 1))
        return wrong(r, "the file ends within a text");
    char c = (char)*in->at++;
    if (c == 'u')
        return unicode_escape(r);
    const char *at = c ? strchr(from, c) : NULL;
    if (!at)
        return wrong(r, "a text with an unknown escape");
    str_add_n(&r->text, to + (at - from), 1);
    return ST_OK;
}

/* Behind the quote. */
static enum status text(struct json_run *r)
{
    struct snap_input *in = &r->b->in;
    str_clear(&r->text);
    for (;;) {
        if (!snap_input_has(in, 1))
            return wrong(r, "the file ends within a text");
        const uint8_t *p = in->at;
        while (p < in->end && *p != '"' && *p != '\\' && *p >= 0x20)
            p++;
        str_add_n(&r->text, (const char *)in->at, (size_t)(p - in->at));
        in->at = p;
        if (r->text.n > SNAP_TEXT_MAX)
            return wrong(r, "a text that is too long");
        if (p == in->end)
            continue;
        in->at++;
        if (*p == '"')
            return snap_push_text(r->b, r->text.data, r->text.n);
        if (*p != '\\')
            return wrong(r, "a text with a control character");
        TRY(escape(r));
    }
}

static enum status number(struct json_run *r)
{
    struct snap_input *in = &r->b->in;
    char digits[NUMBER_MAX];
    size_t n = 0;
    bool whole = true;
    while (snap_input_has(in, 1) && *in->at && strchr("0123456789+-.eE", *in->at)) {
        if (n == NUMBER_MAX - 1)
            return wrong(r, "a number that is too long");
        whole = whole && *in->at != '.' && *in->at != 'e' && *in->at != 'E';
        digits[n++] = (char)*in->at++;
    }
    digits[n] = 0;
    struct snap_value v = {.kind = VAL_INT};
    if (whole && str_to_i64(digits, &v.i))
        return snap_push(r->b, v);
    v.kind = VAL_FLOAT;
    if (!str_to_f64(digits, &v.f))
        return wrong(r, "something that is no value");
    if (whole && v.f >= 9.2e18 && v.f < 1.84467440737095e19) { /* an address above 2^63 */
        v.kind = VAL_INT;
        v.i = (int64_t)(uint64_t)v.f;
    }
    return snap_push(r->b, v);
}

static enum status word(struct json_run *r, const char *name, struct snap_value v)
{
    struct snap_input *in = &r->b->in;
    size_t n = strlen(name);
    if (!snap_input_has(in, n) || memcmp(in->at, name, n) != 0)
        return wrong(r, "something that is no value");
    in->at += n;
    return snap_push(r->b, v);
}

static enum status begin(struct json_run *r, char kind)
{
    r->b->in.at++;
    TRY(snap_push_object(r->b, kind == '{' ? OBJ_DICT : OBJ_LIST));
    TRY(snap_mark(r->b)); /* bounds the depth */
    r->kinds[r->depth++] = kind;
    r->fresh = true;
    return ST_OK;
}

/* What has come so far goes into the list or dictionary that is open. */
static enum status flush(struct json_run *r)
{
    size_t height = 0;
    TRY(snap_unmark(r->b, &height));
    return r->kinds[r->depth - 1] == '{' ? snap_setitems(r->b, height) : snap_appends(r->b, height);
}

static enum status value(struct json_run *r, int c)
{
    switch (c) {
    case '{':
    case '[':
        return begin(r, (char)c);
    case '"':
        r->b->in.at++;
        return text(r);
    case 't':
        return word(r, "true", (struct snap_value){.kind = VAL_BOOL, .i = 1});
    case 'f':
        return word(r, "false", (struct snap_value){.kind = VAL_BOOL, .i = 0});
    case 'n':
        return word(r, "null", (struct snap_value){.kind = VAL_NONE});
    default:
        return number(r);
    }
}

/* A key and its colon, or nothing in a list; then the value. */
static enum status member(struct json_run *r, int c)
{
    if (r->depth > 0 && r->kinds[r->depth - 1] == '{') {
        if (c != '"')
            return wrong(r, "a member without a key");
        r->b->in.at++;
        TRY(text(r));
        if (peek(r) != ':')
            return wrong(r, "a key without a value");
        r->b->in.at++;
        c = peek(r);
    }
    return value(r, c);
}

/* After a value: ends of what is open, or a comma. */
static enum status after(struct json_run *r)
{
    while (r->depth > 0) {
        int c = peek(r);
        if (c == ',') {
            r->b->in.at++;
            if (r->b->stack.n - r->b->marks.data[r->b->marks.n - 1] >= BATCH) {
                TRY(flush(r));
                TRY(snap_mark(r->b));
            }
            return member(r, peek(r));
        }
        if (c != (r->kinds[r->depth - 1] == '{' ? '}' : ']'))
            return wrong(r, c ? "a comma or an end is missing" : "the file ends too early");
        r->b->in.at++;
        TRY(flush(r));
        r->depth--;
    }
    return ST_OK;
}

static enum status run(struct json_run *r)
{
    TRY(member(r, peek(r)));
    do {
        int c = r->fresh ? peek(r) : 0;
        bool inner = r->fresh && c != '}' && c != ']';
        r->fresh = false;
        TRY(inner ? member(r, c) : after(r));
    } while (r->depth > 0);
    if (peek(r))
        return wrong(r, "something follows the document");
    return ST_OK;
}

enum status snap_read_json(struct snap_build *b)
{
    struct json_run r = {.b = b};
    str_init(&r.text);
    enum status st = run(&r);
    str_release(&r.text);
    return st;
}
