/* cmd_tokenizer.c - `snug tokenizer`: learns a tokenizer from a text, and uses one. */
#include "cli/answer.h"
#include "cli/commands.h"

#include "base/env.h"
#include "text/tokenizer.h"
#include "text/train.h"
#include "text/utf8.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TEXT_MAX ((size_t)1 << 30)

/* What the command works on, and its two answers. */
struct work {
    const struct args *a;
    char *text;
    size_t n;
    struct tokenizer *tokenizer;
    json_t *document;
    struct str out;
};

static void show_progress(int64_t done, int64_t wanted, void *ctx)
{
    (void)ctx;
    (void)fprintf(stderr, "\r%lld of %lld tokens", (long long)done, (long long)wanted);
    (void)fflush(stderr);
}

static const char *text_of(const struct args *a, enum option_id id, const char *fallback)
{
    return a->option[id].given ? a->option[id].text : fallback;
}

static enum status train(struct work *w, struct err *e)
{
    bool terminal = isatty(STDERR_FILENO) && !w->a->json;
    const struct option_value *vocab = &w->a->option[OPTION_VOCAB];
    const char *path = text_of(w->a, OPTION_OUTPUT, "tokenizer.json");
    struct bpe_train_options o = {
        .vocab = vocab->given ? vocab->number : 4096, .progress = terminal ? show_progress : NULL};
    struct bpe_train_result r;
    json_t *made;
    int64_t began = clock_ns();
    TRY(bpe_train(w->text, w->n, &o, &made, &r, e));
    if (terminal)
        (void)fputs("\r\033[K", stderr);
    char *text = json_text(made, false);
    json_decref(made);
    enum status st = file_write(path, text, strlen(text), e);
    mem_free(text);
    TRY(st);
    double seconds = (double)(clock_ns() - began) * 1e-9;
    json_put_str(w->document, "file", path);
    json_put_i64(w->document, "tokens", r.tokens);
    json_put_i64(w->document, "merges", r.merges);
    json_put_i64(w->document, "words", r.words);
    json_put_f64(w->document, "seconds", seconds);
    str_printf(
        &w->out, "%s: %lld tokens (%lld merges) from %zu bytes, %lld distinct words, in %.1f s\n",
        path, (long long)r.tokens, (long long)r.merges, w->n, (long long)r.words, seconds);
    if (r.tokens < o.vocab)
        str_printf(
            &w->out, "The text has no more pairs that occur twice: %lld tokens were wanted.\n",
            (long long)o.vocab);
    return ST_OK;
}

static enum status open_tokenizer(struct work *w, struct err *e)
{
    const char *name = text_of(w->a, OPTION_TOKENIZER, "gpt2");
    if (tokenizer_encoding_size(name))
        return tokenizer_open_encoding(name, &w->tokenizer, e);
    return tokenizer_open(name, &w->tokenizer, e);
}

static enum status encode_line(
    struct work *w, const char *line, size_t n, struct tokens *ids, json_t *lines, struct err *e)
{
    struct encode_options o = {.templated = w->a->option[OPTION_TEMPLATE].given};
    json_t *row = json_array();
    ids->n = 0;
    enum status st = tokenizer_encode(w->tokenizer, line, n, &o, ids, e);
    for (size_t i = 0; i < ids->n && st == ST_OK; i++) {
        if (w->a->json)
            (void)json_array_append_new(row, json_integer(ids->data[i]));
        else
            str_printf(&w->out, "%s%u", i ? " " : "", ids->data[i]);
    }
    if (!w->a->json)
        str_add(&w->out, "\n");
    (void)json_array_append_new(lines, row);
    return st;
}

/* Numbers between blanks; anything else is an error. */
static enum status read_ids(const char *line, size_t n, struct tokens *ids, struct err *e)
{
    ids->n = 0;
    for (size_t i = 0; i < n;) {
        char digits[16] = "";
        size_t k = 0;
        while (i + k < n && line[i + k] != ' ')
            k++;
        int64_t id = -1;
        if (k && k < sizeof digits) {
            memcpy(digits, line + i, k);
            if (!str_to_i64(digits, &id) || id < 0 || id > UINT32_MAX)
                return err_set(e, ST_INVALID, "\"%s\" is no token number", digits);
            vec_push(ids, (uint32_t)id);
        } else if (k) {
            return err_set(e, ST_INVALID, "a token number has %zu digits", k);
        }
        i += k + 1;
    }
    return ST_OK;
}

static enum status decode_line(
    struct work *w, const char *line, size_t n, struct tokens *ids, json_t *lines, struct err *e)
{
    struct str bytes, text;
    str_init(&bytes);
    str_init(&text);
    enum status st = read_ids(line, n, ids, e);
    if (st == ST_OK)
        st = tokenizer_decode(w->tokenizer, ids->data, ids->n, false, &bytes, e);
    utf8_repair(bytes.data, bytes.n, &text);
    if (st == ST_OK) {
        (void)json_array_append_new(lines, json_stringn(text.data, text.n));
        str_add_n(&w->out, text.data, text.n);
        str_add(&w->out, "\n");
    }
    str_release(&bytes);
    str_release(&text);
    return st;
}

/* Line by line; --whole: the file as one text. */
static enum status each_line(struct work *w, bool decodes, struct err *e)
{
    json_t *lines = json_array();
    struct tokens ids = {0};
    enum status st = open_tokenizer(w, e);
    size_t number = 1;
    bool whole = w->a->option[OPTION_WHOLE].given;
    for (size_t at = 0; at < w->n && st == ST_OK; number++) {
        const char *line = w->text + at, *end = whole ? NULL : memchr(line, '\n', w->n - at);
        size_t n = end ? (size_t)(end - line) : w->n - at;
        st = decodes ? decode_line(w, line, n, &ids, lines, e)
                     : encode_line(w, line, n, &ids, lines, e);
        if (st != ST_OK)
            err_prefix(e, "line %zu", number);
        at += n + 1;
    }
    if (st == ST_OK) {
        json_put_i64(w->document, "tokens", tokenizer_size(w->tokenizer));
        json_put(w->document, "lines", json_incref(lines));
    }
    json_decref(lines);
    vec_release(&ids);
    return st;
}

/* An option of another action would be ignored: better to say so. */
static enum status options_check(const struct args *a, const char *what, struct err *e)
{
    static const struct {
        enum option_id id;
        const char *name, *actions;
    } rows[] = {
        {OPTION_VOCAB, "vocab", "train"},
        {OPTION_OUTPUT, "output", "train"},
        {OPTION_TOKENIZER, "tokenizer", "encode and decode"},
        {OPTION_TEMPLATE, "template", "encode"},
        {OPTION_WHOLE, "whole", "encode and decode"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!a->option[rows[i].id].given || strstr(rows[i].actions, what))
            continue;
        (void)err_set(
            e, ST_USAGE, "--%s goes with %s, not with %s", rows[i].name, rows[i].actions, what);
        if (rows[i].id == OPTION_OUTPUT)
            err_hint(e, "what %s finds goes to stdout", what);
        return ST_USAGE;
    }
    return ST_OK;
}

static enum status work(struct work *w, struct err *e)
{
    const char *what = w->a->argument[0];
    if (w->a->n_arguments < 2)
        return err_set(e, ST_USAGE, "`snug tokenizer %s` needs a file", what);
    bool known = str_eq(what, "train") || str_eq(what, "encode") || str_eq(what, "decode");
    if (!known)
        return err_set(
            e, ST_USAGE, "`snug tokenizer` does one of train, encode and decode, not \"%s\"", what);
    TRY(options_check(w->a, what, e));
    TRY(file_read(w->a->argument[1], TEXT_MAX, &w->text, &w->n, e));
    return str_eq(what, "train") ? train(w, e) : each_line(w, str_eq(what, "decode"), e);
}

int cmd_tokenizer(const struct args *a)
{
    struct err e = {0};
    struct work w = {.a = a, .document = json_object()};
    int rc;
    str_init(&w.out);
    enum status st = work(&w, &e);
    if (!a->json && st == ST_OK) {
        rc = answer_bytes(w.out.data, w.out.n);
        json_decref(w.document);
    } else {
        rc = answer_end(a->json, st, &e, w.document);
    }
    str_release(&w.out);
    mem_free(w.text);
    tokenizer_free(w.tokenizer);
    return rc;
}
