/* corpus.c - texts, one per row: read from files, mixed, and turned into one row of tokens. */
#include "text/corpus.h"

#include "base/rng.h"
#include "data/source.h"

#include <stdio.h>
#include <string.h>

enum { READ_BYTES = 1 << 20, BLOCK_TOKENS = 1 << 18, PROGRESS_ROWS = 256 };

struct row {
    const char *text;
    size_t n;
    int64_t line;     /* from 1 */
    const char *path; /* of the file */
};
struct corpus {
    char path[1024];
    char *text; /* NULL: a mix */
    VEC(struct row) rows;
    int64_t bytes;
    uint64_t key;
};

void corpus_free(struct corpus *c)
{
    if (!c)
        return;
    mem_free(c->text);
    vec_release(&c->rows);
    mem_free(c);
}

int64_t corpus_rows(const struct corpus *c)
{
    return (int64_t)c->rows.n;
}

int64_t corpus_bytes(const struct corpus *c)
{
    return c->bytes;
}

uint64_t corpus_key(const struct corpus *c)
{
    return c->key;
}

/* The whole file; grows by doubling, since gzip does not say how much it is. */
static enum status read_all(struct source *s, char **out, size_t *n, struct err *e)
{
    char *text = NULL;
    size_t cap = 0, got = 1;
    *n = 0;
    while (got) {
        if (cap - *n < READ_BYTES) {
            size_t more = cap ? 2 * cap : 4 * READ_BYTES;
            char *grown = mem_try_alloc(more);
            if (grown && *n)
                memcpy(grown, text, *n);
            mem_free(text);
            if (!grown)
                return err_set(
                    e, ST_OOM, "no host memory for the %zu bytes of \"%s\"", more, source_name(s));
            text = grown;
            cap = more;
        }
        enum status st = source_read(s, text + *n, READ_BYTES, &got, e);
        if (st != ST_OK) {
            mem_free(text);
            return st;
        }
        *n += got;
    }
    *out = text;
    return ST_OK;
}

static void add_row(struct corpus *c, struct row r)
{
    c->bytes += (int64_t)r.n;
    c->key = hash_bytes(r.text, r.n, c->key);
    vec_push(&c->rows, r);
}

static bool is_blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] != ' ' && s[i] != '\t' && s[i] != '\r')
            return false;
    return true;
}

static void cut_lines(struct corpus *c, size_t n, int64_t most)
{
    int64_t line = 1;
    for (size_t at = 0; at < n && (most == 0 || (int64_t)c->rows.n < most); line++) {
        const char *s = c->text + at, *end = memchr(s, '\n', n - at);
        size_t length = end ? (size_t)(end - s) : n - at;
        at += length + 1;
        if (length && s[length - 1] == '\r')
            length--;
        if (!is_blank(s, length))
            add_row(c, (struct row){s, length, line, c->path});
    }
}

enum status corpus_open(const char *path, int64_t most, struct corpus **out, struct err *e)
{
    struct source *s;
    size_t n;
    TRY(source_open(path, &s, e));
    struct corpus *c = mem_alloc(sizeof *c);
    (void)snprintf(c->path, sizeof c->path, "%s", path);
    enum status st = read_all(s, &c->text, &n, e);
    source_close(s);
    if (st != ST_OK) {
        corpus_free(c);
        return st;
    }
    cut_lines(c, n, most);
    *out = c;
    return ST_OK;
}

static int draw(struct rng *g, const double *weights, int n, double all)
{
    double at = rng_f64(g) * all;
    for (int i = 0; i < n - 1; i++) {
        if (at < weights[i])
            return i;
        at -= weights[i];
    }
    return n - 1;
}

enum status corpus_mix(
    const struct corpus *const *parts, const double *weights, int n, bool interleave, uint64_t seed,
    struct corpus **out, struct err *e)
{
    double all = 0;
    for (int i = 0; i < n; i++) {
        if (!(weights[i] >= 0 && weights[i] < 1e9))
            return err_set(e, ST_INVALID, "weight %g is none", weights[i]);
        all += weights[i];
    }
    if (!(all > 0))
        return err_set(e, ST_INVALID, "all weights are 0");
    struct corpus *c = mem_alloc(sizeof *c);
    size_t *next = mem_alloc((size_t)n * sizeof *next);
    struct rng g;
    rng_init(&g, seed, (uint32_t)hash_name("corpus mix"), 0);
    for (int i = 0; i < n && !interleave; i++)
        for (size_t k = 0; k < parts[i]->rows.n; k++)
            add_row(c, parts[i]->rows.data[k]);
    while (interleave) {
        int i = draw(&g, weights, n, all);
        if (next[i] == parts[i]->rows.n)
            break;
        add_row(c, parts[i]->rows.data[next[i]++]);
    }
    mem_free(next);
    *out = c;
    return ST_OK;
}

/* ---- tokens ---- */

/* Tokens come in blocks, so that a large corpus is never held twice. */
struct blocks {
    int width;
    int64_t n, largest;
    VEC(void *) data;
};

static void blocks_release(struct blocks *b)
{
    for (size_t i = 0; i < b->data.n; i++)
        mem_free(b->data.data[i]);
    vec_release(&b->data);
}

static enum status put(struct blocks *b, uint32_t id, struct err *e)
{
    int64_t at = b->n % BLOCK_TOKENS;
    if (at == 0) {
        void *block = mem_try_alloc((size_t)BLOCK_TOKENS * (size_t)b->width);
        if (!block)
            return err_set(e, ST_OOM, "no host memory for %lld tokens", (long long)b->n);
        vec_push(&b->data, block);
    }
    void *last = b->data.data[b->data.n - 1];
    if (b->width == 2)
        ((uint16_t *)last)[at] = (uint16_t)id;
    else
        ((uint32_t *)last)[at] = id;
    b->largest = id > b->largest ? id : b->largest;
    b->n++;
    return ST_OK;
}

/* One row out of the blocks, which are freed on the way. */
static enum status gather(struct blocks *b, struct token_row *out, struct err *e)
{
    size_t width = (size_t)b->width, left = (size_t)b->n;
    char *all = mem_try_alloc((size_t)b->n * width + 1);
    if (!all)
        return err_set(e, ST_OOM, "no host memory for %lld tokens", (long long)b->n);
    for (size_t i = 0; i < b->data.n; i++) {
        size_t count = left < BLOCK_TOKENS ? left : BLOCK_TOKENS;
        memcpy(all + i * BLOCK_TOKENS * width, b->data.data[i], count * width);
        mem_free(b->data.data[i]);
        b->data.data[i] = NULL;
        left -= count;
    }
    *out = (struct token_row){.data = all, .width = b->width, .n = b->n, .largest = b->largest};
    return ST_OK;
}

struct tokenizing {
    struct tokenizer *t;
    const struct tokenize_options *o;
    int64_t end; /* token; -1: none */
    struct blocks blocks;
    struct tokens ids;
};

static bool is_full(const struct tokenizing *z)
{
    return z->o->tokens_max > 0 && z->blocks.n >= z->o->tokens_max;
}

static enum status add_tokens(struct tokenizing *z, const struct row *r, struct err *e)
{
    z->ids.n = 0;
    enum status st = tokenizer_encode(z->t, r->text, r->n, NULL, &z->ids, e);
    if (st != ST_OK) {
        err_prefix(e, "\"%s\", line %lld", r->path, (long long)r->line);
        return st;
    }
    if (z->end >= 0)
        vec_push(&z->ids, (uint32_t)z->end);
    for (size_t i = 0; i < z->ids.n && !is_full(z); i++)
        TRY(put(&z->blocks, z->ids.data[i], e));
    return ST_OK;
}

static enum status
add_rows(struct tokenizing *z, const struct corpus *c, int64_t *done, struct err *e)
{
    const struct tokenize_options *o = z->o;
    for (size_t i = 0; i < c->rows.n && !is_full(z); i++) {
        TRY(add_tokens(z, &c->rows.data[i], e));
        *done += (int64_t)c->rows.data[i].n;
        if (o->bytes_max > 0 && *done >= o->bytes_max)
            return ST_OK;
        if (o->progress && i % PROGRESS_ROWS == 0 && !o->progress(*done, c->bytes, o->ctx))
            return err_set(e, ST_INTERRUPTED, "stopped while a text was turned into tokens");
    }
    return ST_OK;
}

enum status corpus_tokenize(
    const struct corpus *c, struct tokenizer *t, const struct tokenize_options *o,
    struct token_row *out, int64_t *bytes, struct err *e)
{
    struct tokenizing z = {.t = t, .o = o, .end = -1};
    int64_t done = 0;
    z.blocks.width = tokenizer_size(t) <= 65536 ? 2 : 4;
    z.blocks.largest = -1;
    if (o->append_end) {
        z.end = tokenizer_end(t);
        if (z.end < 0) {
            (void)err_set(e, ST_INVALID, "\"%s\" has no token that ends a text", tokenizer_name(t));
            err_hint(e, "Set append_eos of LMTokenizedDataset to false.");
            return ST_INVALID;
        }
    }
    enum status st = add_rows(&z, c, &done, e);
    if (st == ST_OK)
        st = gather(&z.blocks, out, e);
    if (bytes)
        *bytes = done;
    blocks_release(&z.blocks);
    vec_release(&z.ids);
    return st;
}
