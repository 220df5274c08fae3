/* doc_out.c - documents as JSON or pickle, value by value. See doc_out.h. */
#include "mem/doc_out.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static void byte(struct doc_out *d, int c)
{
    (void)putc_unlocked(c, d->f);
}

static void little(struct doc_out *d, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        byte(d, (int)(v >> (8 * i) & 0xff));
}

void doc_out_begin(struct doc_out *d, FILE *f, bool pickle)
{
    *d = (struct doc_out){.f = f, .pickle = pickle};
    intern_init(&d->texts);
    if (pickle)
        (void)fputs("\x80\x02", f);
}

void doc_out_end(struct doc_out *d)
{
    byte(d, d->pickle ? '.' : '\n');
    intern_release(&d->texts);
    vec_release(&d->text_memo);
}

/* JSON: a comma where something stands before this value. */
static void separate(struct doc_out *d)
{
    if (!d->pickle && !d->after_key && d->depth > 0) {
        if (d->some[d->depth - 1])
            byte(d, ',');
        d->some[d->depth - 1] = true;
    }
    d->after_key = false;
}

static void open_it(struct doc_out *d, const char *pickled, char json)
{
    separate(d);
    if (d->pickle)
        (void)fputs(pickled, d->f);
    else
        byte(d, json);
    ASSERT(d->depth < DOC_DEPTH_MAX);
    d->some[d->depth++] = false;
}

static void close_it(struct doc_out *d, char pickled, char json)
{
    d->depth--;
    byte(d, d->pickle ? pickled : json);
}

void doc_map(struct doc_out *d)
{
    open_it(d, "}(", '{');
}

void doc_map_end(struct doc_out *d)
{
    close_it(d, 'u', '}');
}

void doc_list(struct doc_out *d)
{
    open_it(d, "](", '[');
}

void doc_list_end(struct doc_out *d)
{
    close_it(d, 'e', ']');
}

/* ---- texts ---- */

/* Bytes of the well-formed UTF-8 sequence at s; 0 when there is none. */
static int utf8_length(const unsigned char *s)
{
    static const struct {
        unsigned char from, to, least, most; /* first byte; second byte */
        int n;
    } forms[] = {
        {0x00, 0x7f, 0x00, 0xff, 1}, {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
        {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
        {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (s[0] < forms[i].from || s[0] > forms[i].to)
            continue;
        if (forms[i].n > 1 && (s[1] < forms[i].least || s[1] > forms[i].most))
            return 0;
        for (int k = 2; k < forms[i].n; k++)
            if (s[k] < 0x80 || s[k] > 0xbf)
                return 0;
        return forms[i].n;
    }
    return 0;
}

static void clean_text(const char *s, struct str *out)
{
    for (const unsigned char *p = (const unsigned char *)s; *p;) {
        int n = utf8_length(p);
        if (n)
            str_add_n(out, (const char *)p, (size_t)n);
        else
            str_add(out, "\xef\xbf\xbd");
        p += n ? n : 1;
    }
}

static void json_quoted(struct doc_out *d, const char *s)
{
    byte(d, '"');
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            (void)fprintf(d->f, "\\%c", c);
        else if (c < 0x20)
            (void)fprintf(d->f, "\\u%04x", c);
        else
            byte(d, c);
    }
    byte(d, '"');
}

static void pickled_text(struct doc_out *d, const char *s)
{
    uint32_t id = intern_put(&d->texts, s, strlen(s));
    while (d->text_memo.n <= id)
        vec_push(&d->text_memo, 0);
    if (d->text_memo.data[id]) {
        doc_out_again(d, d->text_memo.data[id] - 1);
        return;
    }
    byte(d, 'X');
    little(d, strlen(s), 4);
    (void)fputs(s, d->f);
    uint32_t mark = doc_out_mark(d);
    d->text_memo.data[id] = mark + 1;
}

static void text(struct doc_out *d, const char *s)
{
    bool plain = true;
    for (const char *p = s; *p; p++)
        plain = plain && (unsigned char)*p < 0x80;
    struct str clean;
    str_init(&clean);
    if (!plain) {
        clean_text(s, &clean);
        s = clean.data;
    }
    if (d->pickle)
        pickled_text(d, s);
    else
        json_quoted(d, s);
    str_release(&clean);
}

void doc_text(struct doc_out *d, const char *s)
{
    separate(d);
    text(d, s);
}

void doc_key(struct doc_out *d, const char *key)
{
    separate(d);
    text(d, key);
    if (!d->pickle)
        byte(d, ':');
    d->after_key = true;
}

/* ---- numbers ---- */

static void pickled_int(struct doc_out *d, int64_t v)
{
    int n = 1;
    if (v >= 0 && v < 256) {
        byte(d, 'K');
        little(d, (uint64_t)v, 1);
    } else if (v >= 0 && v < 65536) {
        byte(d, 'M');
        little(d, (uint64_t)v, 2);
    } else if (v >= INT32_MIN && v <= INT32_MAX) {
        byte(d, 'J');
        little(d, (uint64_t)v, 4);
    } else {
        /* Two's complement in as few bytes as keep the sign. */
        while (n < 8 && (v >> (8 * n - 1)) != 0 && (v >> (8 * n - 1)) != -1)
            n++;
        (void)fprintf(d->f, "\x8a%c", n);
        little(d, (uint64_t)v, n);
    }
}

void doc_int(struct doc_out *d, int64_t v)
{
    separate(d);
    if (d->pickle)
        pickled_int(d, v);
    else
        (void)fprintf(d->f, "%" PRId64, v);
}

void doc_uint(struct doc_out *d, uint64_t v)
{
    if (v <= INT64_MAX) {
        doc_int(d, (int64_t)v);
        return;
    }
    separate(d);
    if (d->pickle) { /* a ninth byte keeps it positive */
        (void)fputs("\x8a\x09", d->f);
        little(d, v, 8);
        byte(d, 0);
    } else {
        (void)fprintf(d->f, "%" PRIu64, v);
    }
}

void doc_real(struct doc_out *d, double v)
{
    separate(d);
    if (d->pickle) {
        uint64_t bits;
        memcpy(&bits, &v, sizeof bits);
        byte(d, 'G');
        for (int i = 7; i >= 0; i--)
            byte(d, (int)(bits >> (8 * i) & 0xff));
    } else {
        (void)fprintf(d->f, isfinite(v) ? "%.17g" : "null", v);
    }
}

void doc_bool(struct doc_out *d, bool v)
{
    separate(d);
    if (d->pickle)
        byte(d, v ? 0x88 : 0x89);
    else
        (void)fputs(v ? "true" : "false", d->f);
}

void doc_pair(struct doc_out *d, uint64_t a, uint64_t b)
{
    if (d->pickle) {
        doc_uint(d, a);
        doc_uint(d, b);
        byte(d, 0x86);
    } else {
        doc_list(d);
        doc_uint(d, a);
        doc_uint(d, b);
        doc_list_end(d);
    }
}

/* ---- the memo ---- */

uint32_t doc_out_mark(struct doc_out *d)
{
    uint32_t mark = d->memo_n++;
    if (mark < 256) {
        (void)fprintf(d->f, "q%c", (int)mark);
    } else {
        byte(d, 'r');
        little(d, mark, 4);
    }
    return mark;
}

void doc_out_again(struct doc_out *d, uint32_t mark)
{
    separate(d);
    if (mark < 256) {
        (void)fprintf(d->f, "h%c", (int)mark);
    } else {
        byte(d, 'j');
        little(d, mark, 4);
    }
}
