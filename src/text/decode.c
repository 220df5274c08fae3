/* decode.c - token numbers to text: the tokens' own texts, then the steps of the file's decoder. */
#include "text/tokenizer_int.h"
#include "text/utf8.h"

#include <string.h>

/* Texts of the tokens: spans of one buffer, which each step writes anew. */
struct decoding {
    struct str text, next;
    struct spans parts;
};

static void begin(struct decoding *d)
{
    str_clear(&d->next);
}

static void end(struct decoding *d)
{
    struct str swap = d->text;
    d->text = d->next;
    d->next = swap;
}

static void replace(struct decoding *d, const char *from, const char *by)
{
    size_t length = strlen(from);
    begin(d);
    for (size_t i = 0; i < d->parts.n; i++) {
        struct span *p = &d->parts.data[i];
        const char *s = d->text.data + p->at;
        size_t at = d->next.n;
        for (size_t k = 0; k < p->n;) {
            bool here = length && p->n - k >= length && memcmp(s + k, from, length) == 0;
            if (here)
                str_add(&d->next, by);
            else
                str_add_n(&d->next, s + k, 1);
            k += here ? length : 1;
        }
        *p = (struct span){at, d->next.n - at};
    }
    end(d);
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* "<0x0A>" is the byte 10; -1: the part is no byte. */
static int fallback_byte(const char *s, size_t n)
{
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>' || hex(s[3]) < 0 || hex(s[4]) < 0)
        return -1;
    return 16 * hex(s[3]) + hex(s[4]);
}

static void bytes_of_fallback(struct decoding *d)
{
    begin(d);
    for (size_t i = 0; i < d->parts.n; i++) {
        struct span *p = &d->parts.data[i];
        size_t at = d->next.n;
        int byte = fallback_byte(d->text.data + p->at, p->n);
        char c = (char)byte;
        if (byte >= 0)
            str_add_n(&d->next, &c, 1);
        else
            str_add_n(&d->next, d->text.data + p->at, p->n);
        *p = (struct span){at, d->next.n - at};
    }
    end(d);
}

/* The characters of GPT-2's alphabet become bytes; a token with another character stays as it is.
 */
static void bytes_of_level(struct decoding *d)
{
    begin(d);
    for (size_t i = 0; i < d->parts.n; i++) {
        struct span *p = &d->parts.data[i];
        const char *s = d->text.data + p->at;
        size_t at = d->next.n;
        for (size_t k = 0; k < p->n; k += utf8_length(s + k)) {
            int byte = byte_level_byte(utf8_read(s + k));
            char c = (char)byte;
            if (byte < 0) {
                d->next.n = at;
                str_add_n(&d->next, s, p->n);
                break;
            }
            str_add_n(&d->next, &c, 1);
        }
        *p = (struct span){at, d->next.n - at};
    }
    end(d);
}

static void fuse(struct decoding *d)
{
    begin(d);
    for (size_t i = 0; i < d->parts.n; i++)
        str_add_n(&d->next, d->text.data + d->parts.data[i].at, d->parts.data[i].n);
    end(d);
    if (d->parts.n) {
        d->parts.n = 1;
        d->parts.data[0] = (struct span){0, d->text.n};
    }
}

static void strip(struct decoding *d, const struct decode_step *s)
{
    size_t n = strlen(s->from);
    for (size_t i = 0; n && i < d->parts.n; i++) {
        struct span *p = &d->parts.data[i];
        for (int64_t k = 0; k < s->start && p->n >= n; k++) {
            if (memcmp(d->text.data + p->at, s->from, n) != 0)
                break;
            p->at += n;
            p->n -= n;
        }
        for (int64_t k = 0; k < s->stop && p->n >= n; k++) {
            if (memcmp(d->text.data + p->at + p->n - n, s->from, n) != 0)
                break;
            p->n -= n;
        }
    }
}

static void metaspace(struct decoding *d, const struct decode_step *s)
{
    replace(d, s->from, " ");
    if (s->strip_first && d->parts.n && d->parts.data[0].n &&
        d->text.data[d->parts.data[0].at] == ' ') {
        d->parts.data[0].at++;
        d->parts.data[0].n--;
    }
}

static void run_step(struct decoding *d, const struct decode_step *s)
{
    switch (s->kind) {
    case DECODE_REPLACE:
        replace(d, s->from, s->text);
        return;
    case DECODE_BYTE_FALLBACK:
        bytes_of_fallback(d);
        return;
    case DECODE_FUSE:
        fuse(d);
        return;
    case DECODE_STRIP:
        strip(d, s);
        return;
    case DECODE_BYTE_LEVEL:
        bytes_of_level(d);
        return;
    case DECODE_METASPACE:
        metaspace(d, s);
        return;
    }
}

static const struct added_token *added_find(const struct tokenizer *t, uint32_t id)
{
    for (size_t i = 0; i < t->added.n; i++)
        if (t->added.data[i].id == id)
            return &t->added.data[i];
    return NULL;
}

static enum status collect(
    const struct tokenizer *t, const uint32_t *ids, size_t n, bool skip_special, struct decoding *d,
    struct err *e)
{
    for (size_t i = 0; i < n; i++) {
        size_t length;
        const char *text = vocab_text(&t->vocab, ids[i], &length);
        const struct added_token *a = text && !skip_special ? NULL : added_find(t, ids[i]);
        if (a && a->special && skip_special)
            continue;
        if (!text && a) {
            text = a->text;
            length = a->n;
        }
        if (!text)
            return err_set(e, ST_INVALID, "\"%s\" has no token %u", t->name, ids[i]);
        struct span part = {d->text.n, length};
        str_add_n(&d->text, text, length);
        vec_push(&d->parts, part);
    }
    return ST_OK;
}

enum status tokenizer_decode(
    const struct tokenizer *t, const uint32_t *ids, size_t n, bool skip_special, struct str *out,
    struct err *e)
{
    struct decoding d = {0};
    str_init(&d.text);
    str_init(&d.next);
    enum status st = collect(t, ids, n, skip_special, &d, e);
    for (size_t i = 0; st == ST_OK && i < t->decode.n; i++)
        run_step(&d, &t->decode.data[i]);
    for (size_t i = 0; st == ST_OK && i < d.parts.n; i++)
        str_add_n(out, d.text.data + d.parts.data[i].at, d.parts.data[i].n);
    str_release(&d.text);
    str_release(&d.next);
    vec_release(&d.parts);
    return st;
}
