/* tokenizer.c - opening tokenizer files, and encoding: added tokens out, then the pieces. */
#include "text/tokenizer_int.h"

#include "base/env.h"
#include "base/rng.h"
#include "text/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define FILE_BYTES_MAX ((size_t)256 << 20)
#define TEXT_BYTES_MAX ((size_t)1 << 30)

/* ---- life ---- */

struct tokenizer *tokenizer_new(const char *name)
{
    struct tokenizer *t = mem_alloc(sizeof *t);
    (void)snprintf(t->name, sizeof t->name, "%s", name);
    vocab_init(&t->vocab);
    vocab_init(&t->raw.texts);
    vocab_init(&t->normalized.texts);
    str_init(&t->text);
    str_init(&t->other);
    t->unk = TOKEN_NONE;
    for (int i = 0; i < 256; i++)
        t->byte_id[i] = TOKEN_NONE;
    return t;
}

static void release_steps(struct tokenizer *t)
{
    for (size_t i = 0; i < t->normal.n; i++) {
        pattern_free(t->normal.data[i].pattern);
        mem_free(t->normal.data[i].text);
    }
    for (size_t i = 0; i < t->pre.n; i++) {
        pattern_free(t->pre.data[i].pattern);
        mem_free(t->pre.data[i].text);
    }
    for (size_t i = 0; i < t->decode.n; i++) {
        mem_free(t->decode.data[i].from);
        mem_free(t->decode.data[i].text);
    }
    vec_release(&t->normal);
    vec_release(&t->pre);
    vec_release(&t->decode);
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t)
        return;
    release_steps(t);
    for (size_t i = 0; i < t->added.n; i++)
        mem_free(t->added.data[i].text);
    vec_release(&t->added);
    struct added_set *sets[] = {&t->raw, &t->normalized};
    for (int i = 0; i < 2; i++) {
        vocab_release(&sets[i]->texts);
        vec_release(&sets[i]->lengths);
    }
    vocab_release(&t->vocab);
    merges_release(&t->merges);
    vec_release(&t->prefix);
    vec_release(&t->suffix);
    str_release(&t->text);
    str_release(&t->other);
    vec_release(&t->pieces);
    vec_release(&t->more);
    vec_release(&t->symbols);
    vec_release(&t->heap);
    mem_free(t);
}

/* JSON begins with a brace; ranks are lines of base64. */
static bool is_json(const char *bytes, size_t n)
{
    size_t i = 0;
    while (i < n && strchr(" \t\r\n", bytes[i]) && bytes[i])
        i++;
    return i < n && bytes[i] == '{';
}

static enum status fill(struct tokenizer *t, const char *bytes, size_t n, struct err *e)
{
    if (!is_json(bytes, n))
        return tokenizer_read_ranks(t, bytes, n, e);
    json_t *doc;
    TRY(json_parse(bytes, n, t->name, &doc, e));
    enum status st = tokenizer_read_json(t, doc, e);
    json_decref(doc);
    return st;
}

enum status tokenizer_from_bytes(
    const char *bytes, size_t n, const char *name, struct tokenizer **out, struct err *e)
{
    struct tokenizer *t = tokenizer_new(name);
    t->key = hash_bytes(bytes, n, 0);
    enum status st = fill(t, bytes, n, e);
    if (st == ST_OK)
        st = tokenizer_finish(t, e);
    if (st != ST_OK) {
        if (e && !strstr(e->text, t->name))
            err_prefix(e, "\"%s\"", t->name);
        tokenizer_free(t);
        return st;
    }
    *out = t;
    return ST_OK;
}

enum status tokenizer_open(const char *path, struct tokenizer **out, struct err *e)
{
    char *bytes;
    size_t n;
    TRY(file_read(path, FILE_BYTES_MAX, &bytes, &n, e));
    enum status st = tokenizer_from_bytes(bytes, n, path, out, e);
    mem_free(bytes);
    return st;
}

/* ---- added tokens ---- */

static enum status
set_add(struct tokenizer *t, struct added_set *s, const char *text, size_t n, struct err *e)
{
    size_t index = t->added.n - 1;
    if (n == 0 || vocab_find(&s->texts, text, n) != TOKEN_NONE)
        return ST_OK; /* normalized to nothing, or to the same as another: the first one counts */
    TRY(vocab_add(&s->texts, text, n, index, e));
    s->first[(unsigned char)text[0]] = true;
    for (size_t i = 0; i < s->lengths.n; i++)
        if (s->lengths.data[i] == n)
            return ST_OK;
    vec_push(&s->lengths, (uint32_t)n);
    return ST_OK;
}

enum status tokenizer_add_special(struct tokenizer *t, struct added_token token, struct err *e)
{
    if (token.n == 0)
        return ST_OK;
    if (token.n > TOKEN_BYTES_MAX || token.id >= TOKEN_ID_MAX)
        return err_set(
            e, ST_CORRUPT, "added token %u: its number or its text is too large", token.id);
    char *text = mem_alloc(token.n + 1);
    memcpy(text, token.text, token.n);
    token.text = text;
    vec_push(&t->added, token);
    if (!token.normalized)
        return set_add(t, &t->raw, text, token.n, e);
    struct str s;
    str_init(&s);
    enum status st = normalize_with(t, text, token.n, &s, e);
    if (st == ST_OK)
        st = set_add(t, &t->normalized, s.data, s.n, e);
    str_release(&s);
    return st;
}

static int longest_first(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x < y) - (x > y);
}

static bool is_word(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return c == '_' || (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NO);
}

static size_t before(const char *text, size_t at)
{
    do
        at--;
    while (((unsigned char)text[at] & 0xc0) == 0x80);
    return at;
}

static bool stands_alone(const char *text, size_t n, struct span m)
{
    if (m.at && is_word(utf8_read(text + before(text, m.at))))
        return false;
    return m.at + m.n == n || !is_word(utf8_read(text + m.at + m.n));
}

/* The added token at text[at], the longest of those that fit. */
static const struct added_token *added_at(
    const struct tokenizer *t, const struct added_set *s, const char *text, size_t n, size_t at,
    size_t *length)
{
    if (!s->first[(unsigned char)text[at]])
        return NULL;
    for (size_t i = 0; i < s->lengths.n; i++) {
        *length = s->lengths.data[i];
        if (*length > n - at)
            continue;
        uint32_t index = vocab_find(&s->texts, text + at, *length);
        if (index == TOKEN_NONE)
            continue;
        const struct added_token *a = &t->added.data[index];
        if (!a->single_word || stands_alone(text, n, (struct span){at, *length}))
            return a;
    }
    return NULL;
}

static bool space_at(const char *s)
{
    uint32_t c = utf8_read(s);
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return (c >= 9 && c <= 13) || c == 0x85 ||
           (k >= UTF8PROC_CATEGORY_ZS && k <= UTF8PROC_CATEGORY_ZP);
}

/* The first added token at or after `from`; the span includes the white space it takes with it. */
static const struct added_token *added_next(
    const struct tokenizer *t, const struct added_set *s, const char *text, size_t n, size_t from,
    struct span *m)
{
    for (size_t at = from; at < n; at++) {
        size_t length;
        const struct added_token *a = added_at(t, s, text, n, at, &length);
        if (!a)
            continue;
        size_t begin = at, end = at + length;
        while (a->left && begin > from && space_at(text + before(text, begin)))
            begin = before(text, begin);
        while (a->right && end < n && space_at(text + end))
            end += utf8_length(text + end);
        *m = (struct span){begin, end - begin};
        return a;
    }
    *m = (struct span){n, 0};
    return NULL;
}

enum status tokenizer_finish(struct tokenizer *t, struct err *e)
{
    (void)e;
    struct added_set *sets[] = {&t->raw, &t->normalized};
    for (int i = 0; i < 2; i++)
        if (sets[i]->lengths.n)
            qsort(
                sets[i]->lengths.data, sets[i]->lengths.n, sizeof *sets[i]->lengths.data,
                longest_first);
    t->size = (int64_t)t->vocab.by_id.n;
    for (size_t i = 0; i < t->added.n; i++)
        if (t->added.data[i].id >= t->size)
            t->size = (int64_t)t->added.data[i].id + 1;
    return ST_OK;
}

/* ---- encoding ---- */

struct encoding {
    struct tokenizer *t;
    bool special;
    struct tokens *out;
};

/* The part is in t->text. */
static enum status encode_plain(struct encoding *c, bool first, struct err *e)
{
    struct tokenizer *t = c->t;
    TRY(tokenizer_pieces(t, first, e));
    /* Merging uses t->other alone. */
    for (size_t i = 0; i < t->pieces.n; i++)
        TRY(tokenizer_merge(
            t, t->text.data + t->pieces.data[i].at, t->pieces.data[i].n, c->out, e));
    return ST_OK;
}

/* A part without raw added tokens. */
static enum status
encode_part(struct encoding *c, const char *text, size_t n, bool first, struct err *e)
{
    struct tokenizer *t = c->t;
    str_clear(&t->text);
    if (t->normal.n == 0 && !c->t->normalized.lengths.n) {
        str_add_n(&t->text, text, n);
        return encode_plain(c, first, e);
    }
    struct str whole;
    str_init(&whole);
    enum status st = normalize_with(t, text, n, &whole, e);
    for (size_t at = 0; st == ST_OK && at < whole.n;) {
        struct span m;
        const struct added_token *a =
            c->special ? added_next(t, &t->normalized, whole.data, whole.n, at, &m) : NULL;
        if (!a)
            m = (struct span){whole.n, 0};
        str_clear(&t->text);
        str_add_n(&t->text, whole.data + at, m.at - at);
        st = encode_plain(c, first && at == 0, e);
        if (a)
            vec_push(c->out, a->id);
        at = m.at + m.n;
    }
    str_release(&whole);
    return st;
}

static void push_all(struct tokens *out, const struct tokens *from)
{
    for (size_t i = 0; i < from->n; i++)
        vec_push(out, from->data[i]);
}

enum status tokenizer_encode(
    struct tokenizer *t, const char *text, size_t n, const struct encode_options *o,
    struct tokens *out, struct err *e)
{
    enum token_special special = o ? o->special : SPECIAL_BY_KIND;
    struct encoding c = {
        t, special == SPECIAL_BY_KIND ? !t->by_ranks : special == SPECIAL_FOUND, out};
    if (n > TEXT_BYTES_MAX)
        return err_set(e, ST_INVALID, "a text of %zu bytes is too long to encode at once", n);
    size_t good = utf8_prefix(text, n);
    if (good != n)
        return err_set(e, ST_INVALID, "the text is not UTF-8 at byte %zu", good);
    if (o && o->templated)
        push_all(out, &t->prefix);
    for (size_t at = 0; at < n;) {
        struct span m = {n, 0};
        const struct added_token *a = c.special ? added_next(t, &t->raw, text, n, at, &m) : NULL;
        TRY(encode_part(&c, text + at, m.at - at, at == 0, e));
        if (a)
            vec_push(out, a->id);
        at = m.at + m.n;
    }
    if (o && o->templated)
        push_all(out, &t->suffix);
    return ST_OK;
}

/* ---- questions ---- */

int64_t tokenizer_size(const struct tokenizer *t)
{
    return t->size;
}

uint64_t tokenizer_key(const struct tokenizer *t)
{
    return t->key;
}

const char *tokenizer_name(const struct tokenizer *t)
{
    return t->name;
}

int64_t tokenizer_find(const struct tokenizer *t, const char *text)
{
    size_t n = strlen(text);
    for (size_t i = 0; i < t->added.n; i++)
        if (t->added.data[i].n == n && memcmp(t->added.data[i].text, text, n) == 0)
            return t->added.data[i].id;
    uint32_t id = vocab_find(&t->vocab, text, n);
    return id == TOKEN_NONE ? -1 : (int64_t)id;
}

int64_t tokenizer_end(const struct tokenizer *t)
{
    static const char *const names[] = {"<|endoftext|>",       "</s>",   "<|end_of_text|>", "<eos>",
                                        "<|end▁of▁sentence|>", "<|eos|>"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int64_t id = tokenizer_find(t, names[i]);
        if (id >= 0)
            return id;
    }
    return -1;
}
