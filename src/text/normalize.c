/* normalize.c - what a tokenizer file does to a text before cutting it. */
#include "text/tokenizer_int.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Unicode normal forms (utf8proc, Unicode 15). */
static enum status compose(const struct str *in, struct str *out, unsigned options, struct err *e)
{
    utf8proc_uint8_t *made = NULL;
    utf8proc_ssize_t n = utf8proc_map(
        (const utf8proc_uint8_t *)in->data, (utf8proc_ssize_t)in->n, &made,
        (utf8proc_option_t)(options | UTF8PROC_STABLE));
    if (n < 0)
        return err_set(
            e, n == UTF8PROC_ERROR_NOMEM ? ST_OOM : ST_INVALID, "a text cannot be normalized: %s",
            utf8proc_errmsg(n));
    str_add_n(out, (const char *)made, (size_t)n);
    free(made);
    return ST_OK;
}

static void lower(const struct str *in, struct str *out)
{
    for (size_t i = 0; i < in->n; i += utf8_length(in->data + i)) {
        char c[4];
        utf8proc_int32_t small = utf8proc_tolower((utf8proc_int32_t)utf8_read(in->data + i));
        str_add_n(out, c, utf8_write((uint32_t)small, c));
    }
}

/* Steps of a file that doubles a text again and again end here: normal forms give at most eighteen
 * times a text. */
static size_t most_bytes(size_t n)
{
    return ((size_t)1 << 20) + 256 * n;
}

static enum status grows(struct err *e)
{
    return err_set(
        e, ST_INVALID, "the tokenizer's normalizer makes a text more than 256 times longer");
}

static enum status replace(
    const struct str *in, struct pattern *p, const char *by, size_t most, struct str *out,
    struct err *e)
{
    size_t done = 0;
    while (done < in->n) {
        if (out->n > most)
            return grows(e);
        struct span m;
        TRY(pattern_find(p, in->data, in->n, done, &m, e));
        str_add_n(out, in->data + done, m.at - done);
        if (m.n)
            str_add(out, by);
        done = m.at + m.n;
    }
    return ST_OK;
}

static bool is_space(const char *s)
{
    uint32_t c = utf8_read(s);
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return (c >= 9 && c <= 13) || c == 0x85 || k == UTF8PROC_CATEGORY_ZS ||
           k == UTF8PROC_CATEGORY_ZL || k == UTF8PROC_CATEGORY_ZP;
}

static void strip(const struct str *in, bool left, bool right, struct str *out)
{
    size_t from = 0, to = 0;
    while (left && from < in->n && is_space(in->data + from))
        from += utf8_length(in->data + from);
    for (size_t i = from; i < in->n; i += utf8_length(in->data + i))
        if (!right || !is_space(in->data + i))
            to = i + utf8_length(in->data + i);
    if (to > from)
        str_add_n(out, in->data + from, to - from);
}

static enum status
step(const struct normal_step *s, const struct str *in, size_t most, struct str *out, struct err *e)
{
    switch (s->kind) {
    case NORMAL_PREPEND:
        if (in->n)
            str_add(out, s->text);
        str_add_n(out, in->data, in->n);
        return ST_OK;
    case NORMAL_REPLACE:
        return replace(in, s->pattern, s->text, most, out, e);
    case NORMAL_NFC:
        return compose(in, out, UTF8PROC_COMPOSE, e);
    case NORMAL_NFD:
        return compose(in, out, UTF8PROC_DECOMPOSE, e);
    case NORMAL_NFKC:
        return compose(in, out, UTF8PROC_COMPOSE | UTF8PROC_COMPAT, e);
    case NORMAL_NFKD:
        return compose(in, out, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT, e);
    case NORMAL_LOWERCASE:
        lower(in, out);
        return ST_OK;
    case NORMAL_STRIP:
        strip(in, s->left, s->right, out);
        return ST_OK;
    }
    return ST_OK;
}

enum status normalize_with(
    const struct tokenizer *t, const char *text, size_t n, struct str *out, struct err *e)
{
    struct str now, next;
    enum status st = ST_OK;
    str_init(&now);
    str_init(&next);
    str_add_n(&now, text, n);
    for (size_t i = 0; st == ST_OK && i < t->normal.n; i++) {
        str_clear(&next);
        st = step(&t->normal.data[i], &now, most_bytes(n), &next, e);
        if (st == ST_OK && next.n > most_bytes(n))
            st = grows(e);
        struct str swap = now;
        now = next;
        next = swap;
    }
    str_add_n(out, now.data, now.n);
    str_release(&now);
    str_release(&next);
    return st;
}
