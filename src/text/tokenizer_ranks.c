/* tokenizer_ranks.c - tiktoken's rank files: a line "base64 rank" for each token. */
#include "text/tokenizer_int.h"

#include "base/env.h"

#include <stdio.h>
#include <string.h>

struct encoding_row {
    const char *name;
    int64_t size, in_file;
    const char *pattern;
};
static const struct encoding_row rows[] = {
#define X(name, size, in_file, pattern) {name, size, in_file, pattern},
#include "text/encodings.def"
};
static const struct special_row {
    const char *name, *text;
    uint32_t id;
} specials[] = {
#define SPECIAL(name, text, number) {name, text, number},
#include "text/encodings.def"
};
enum { ROWS = sizeof rows / sizeof *rows, SPECIALS = sizeof specials / sizeof *specials };

static const struct encoding_row *row_find(const char *name)
{
    for (int i = 0; i < ROWS; i++)
        if (str_eq(rows[i].name, name))
            return &rows[i];
    return NULL;
}

int64_t tokenizer_encoding_size(const char *name)
{
    const struct encoding_row *row = row_find(name);
    return row ? row->size : 0;
}

/* "dir/gpt2.tiktoken" is "gpt2". */
static const struct encoding_row *row_of_file(const char *path)
{
    char stem[256];
    const char *slash = strrchr(path, '/');
    (void)snprintf(stem, sizeof stem, "%s", slash ? slash + 1 : path);
    char *dot = strchr(stem, '.');
    if (dot)
        *dot = 0;
    return row_find(stem);
}

/* Bytes that n characters of base64 stand for; false when they are none. */
static bool base64_read(const char *text, size_t n, struct str *out)
{
    while (n && text[n - 1] == '=')
        n--;
    uint32_t bits = 0;
    str_clear(out);
    for (size_t i = 0; i < n; i++) {
        int d = base64_digit(text[i]);
        if (d < 0)
            return false;
        bits = bits << 6 | (uint32_t)d;
        if (i % 4) {
            char byte = (char)(bits >> (6 - 2 * (i % 4)));
            str_add_n(out, &byte, 1);
        }
    }
    return n % 4 != 1;
}

static enum status read_line(
    struct tokenizer *t, const char *line, size_t n, size_t number, struct str *token,
    struct err *e)
{
    char digits[24] = "";
    const char *space = memchr(line, ' ', n);
    size_t left = space ? n - (size_t)(space + 1 - line) : 0;
    int64_t rank;
    if (left && left < sizeof digits)
        memcpy(digits, space + 1, left);
    if (!space || !str_to_i64(digits, &rank) || rank < 0 ||
        !base64_read(line, (size_t)(space - line), token))
        return err_set(e, ST_CORRUPT, "\"%s\": line %zu is not \"base64 rank\"", t->name, number);
    enum status st = vocab_add(&t->vocab, token->data, token->n, (uint64_t)rank, e);
    if (st != ST_OK)
        err_prefix(e, "\"%s\": line %zu", t->name, number);
    return st;
}

static enum status read_lines(struct tokenizer *t, const char *bytes, size_t n, struct err *e)
{
    struct str token;
    enum status st = ST_OK;
    str_init(&token);
    size_t number = 1;
    for (size_t at = 0; at < n && st == ST_OK; number++) {
        const char *end = memchr(bytes + at, '\n', n - at);
        size_t length = end ? (size_t)(end - bytes) - at : n - at;
        size_t next = at + length + 1;
        if (length && bytes[at + length - 1] == '\r')
            length--;
        if (length)
            st = read_line(t, bytes + at, length, number, &token, e);
        at = next;
    }
    str_release(&token);
    return st;
}

enum status tokenizer_read_ranks(struct tokenizer *t, const char *bytes, size_t n, struct err *e)
{
    const struct encoding_row *row = row_of_file(t->name);
    TRY(read_lines(t, bytes, n, e));
    if (!row) {
        (void)err_set(
            e, ST_UNSUPPORTED,
            "\"%s\" is a list of ranks, which does not say how text is cut into pieces", t->name);
        err_hint(
            e, "Name the file after its encoding: gpt2, r50k_base, p50k_base, cl100k_base or "
               "o200k_base, with .tiktoken behind it.");
        return ST_UNSUPPORTED;
    }
    if ((int64_t)t->vocab.entries.n != row->in_file)
        return err_set(
            e, ST_CORRUPT, "\"%s\" has %zu tokens where %s has %lld", t->name, t->vocab.entries.n,
            row->name, (long long)row->in_file);
    t->by_ranks = true;
    for (int i = 0; i < 256; i++) {
        char byte = (char)i;
        t->byte_id[i] = vocab_find(&t->vocab, &byte, 1);
    }
    struct pre_step cut = {.kind = PRE_SPLIT, .behavior = SPLIT_ISOLATED};
    TRY(pattern_new(row->pattern, &cut.pattern, e));
    vec_push(&t->pre, cut);
    for (int i = 0; i < SPECIALS; i++) {
        union {
            const char *in;
            char *out;
        } text = {.in = specials[i].text}; /* copied */
        struct added_token a = {
            .text = text.out, .n = strlen(text.in), .id = specials[i].id, .special = true};
        if (str_eq(specials[i].name, row->name))
            TRY(tokenizer_add_special(t, a, e));
    }
    return ST_OK;
}

static enum status unknown(const char *name, struct err *e)
{
    const char *names[ROWS];
    for (int i = 0; i < ROWS; i++)
        names[i] = rows[i].name;
    const char *near = str_nearest(name, names, ROWS);
    (void)err_set(e, ST_INVALID, "there is no encoding \"%s\"", name);
    err_hint(
        e, "%s%s%sKnown are gpt2, r50k_base, p50k_base, cl100k_base and o200k_base.",
        near ? "Did you mean " : "", near ? near : "", near ? "? " : "");
    return ST_INVALID;
}

enum status tokenizer_open_encoding(const char *name, struct tokenizer **out, struct err *e)
{
    char folder[1024], file[96], path[1200];
    if (!row_find(name))
        return unknown(name, e);
    (void)path_join(snug_home(), "tokenizers", folder, sizeof folder);
    (void)snprintf(file, sizeof file, "%s.tiktoken", name);
    (void)path_join(folder, file, path, sizeof path);
    enum status st = tokenizer_open(path, out, e);
    if (st == ST_NOT_FOUND)
        err_hint(
            e,
            "Type: sh scripts/tokenizers (it brings the rank files from npm's package tiktoken), "
            "or put the file there.");
    return st;
}
