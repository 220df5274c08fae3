/* text_store.c - what a run keeps of texts over all its passes. */
#include "runner/text_int.h"

#include "base/env.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/str.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

void text_store_free(struct text_store *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->files.n; i++)
        mem_free(s->files.data[i]);
    for (size_t i = 0; i < s->tokens.n; i++) {
        token_row_release(&s->tokens.data[i]->row);
        mem_free(s->tokens.data[i]);
    }
    for (size_t i = 0; i < s->tokenizers.n; i++) {
        tokenizer_free(s->tokenizers.data[i]->t);
        mem_free(s->tokenizers.data[i]);
    }
    vec_release(&s->files);
    vec_release(&s->tokens);
    vec_release(&s->tokenizers);
    mem_free(s);
}

static struct text_store *store(struct run *r)
{
    if (!r->texts)
        r->texts = mem_alloc(sizeof *r->texts);
    return r->texts;
}

enum status flow_tokenizer_open(struct run *r, struct flow_tokenizer *t, struct err *e)
{
    struct text_store *s = store(r);
    const char *name = t->path ? t->path : t->encoding;
    for (size_t i = 0; i < s->tokenizers.n && !t->open; i++)
        if (str_eq(s->tokenizers.data[i]->name, name))
            t->open = s->tokenizers.data[i]->t;
    if (t->open)
        return ST_OK;
    enum status st =
        t->path ? tokenizer_open(name, &t->open, e) : tokenizer_open_encoding(name, &t->open, e);
    if (st != ST_OK) {
        err_node(e, t->node_id, "LMTokenizer");
        return st;
    }
    struct text_tokenizer *kept = mem_alloc(sizeof *kept);
    (void)snprintf(kept->name, sizeof kept->name, "%s", name);
    kept->t = t->open;
    vec_push(&s->tokenizers, kept);
    return ST_OK;
}

/* ---- files ---- */

static enum status file_state(const char *path, int64_t *size, int64_t *changed_ns, struct err *e)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return err_errno(e, "cannot open \"%s\"", path);
    *size = (int64_t)info.st_size;
    *changed_ns = (int64_t)info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec;
    return ST_OK;
}

/* Reads the file unless it has been looked at. */
static enum status
look_at(struct run *r, const struct flow_corpus *c, const struct text_file **out, struct err *e)
{
    struct text_store *s = store(r);
    int64_t size = 0, changed = 0;
    TRY(file_state(c->path, &size, &changed, e));
    for (size_t i = 0; i < s->files.n; i++) {
        *out = s->files.data[i];
        if (str_eq((*out)->path, c->path) && (*out)->rows_max == c->rows_max &&
            (*out)->size == size && (*out)->changed_ns == changed)
            return ST_OK;
    }
    struct corpus *texts;
    TRY(corpus_open(c->path, c->rows_max, &texts, e));
    struct text_file *f = mem_alloc(sizeof *f);
    (void)snprintf(f->path, sizeof f->path, "%s", c->path);
    f->size = size;
    f->changed_ns = changed;
    f->rows_max = c->rows_max;
    f->key = corpus_key(texts);
    f->rows = corpus_rows(texts);
    f->bytes = corpus_bytes(texts);
    corpus_free(texts);
    vec_push(&s->files, f);
    *out = f;
    return ST_OK;
}

static uint64_t mixed(uint64_t key, const void *p, size_t n)
{
    return hash_bytes(p, n, key);
}

enum status text_count(
    struct run *r, const struct flow_corpus *c, int64_t *rows, int64_t *bytes, uint64_t *key,
    struct err *e)
{
    *rows = *bytes = 0;
    if (c->n_parts == 0) {
        const struct text_file *f;
        TRY(look_at(r, c, &f, e));
        *rows = f->rows;
        *bytes = f->bytes;
        *key = f->key;
        return ST_OK;
    }
    uint64_t all = c->interleave ? c->seed + 1 : 0;
    for (int i = 0; i < c->n_parts; i++) {
        int64_t part_rows, part_bytes;
        uint64_t part_key;
        TRY(text_count(r, c->part[i], &part_rows, &part_bytes, &part_key, e));
        *rows += part_rows;
        *bytes += part_bytes;
        all = mixed(mixed(all, &part_key, sizeof part_key), &c->weight[i], sizeof c->weight[i]);
    }
    *key = all;
    return ST_OK;
}

/* ---- texts for a moment ---- */

/* Opens a corpus and what it is made of; all of it goes into `opened`. */
struct opened {
    VEC(struct corpus *) list;
};

static void close_all(struct opened *o)
{
    for (size_t i = 0; i < o->list.n; i++)
        corpus_free(o->list.data[i]);
    vec_release(&o->list);
}

static enum status
open_texts(const struct flow_corpus *c, struct opened *o, struct corpus **out, struct err *e)
{
    const struct corpus *parts[CORPUS_PARTS_MAX];
    for (int i = 0; i < c->n_parts; i++) {
        struct corpus *part;
        TRY(open_texts(c->part[i], o, &part, e));
        parts[i] = part;
    }
    enum status st = c->n_parts
                         ? corpus_mix(parts, c->weight, c->n_parts, c->interleave, c->seed, out, e)
                         : corpus_open(c->path, c->rows_max, out, e);
    if (st == ST_OK)
        vec_push(&o->list, *out);
    else
        err_node(e, c->node_id, c->n_parts ? "DataMixDataset" : "TextCorpusDataset");
    return st;
}

/* ---- tokens ---- */

struct watching {
    struct run *r;
    const char *node_id;
    int64_t said_ns;
};

/* An event twice a second, and whether to go on. */
static bool watch(int64_t done, int64_t bytes, void *ctx)
{
    struct watching *w = ctx;
    int64_t now = clock_ns();
    if (now - w->said_ns > 500000000) {
        json_t *event = json_object();
        w->said_ns = now;
        json_put_str(event, "event", "tokenize");
        json_put_str(event, "node_id", w->node_id);
        json_put_i64(event, "bytes_done", done);
        json_put_i64(event, "bytes", bytes);
        run_event(w->r, event);
    }
    return !run_stop_asked(w->r);
}

static enum status tokenize(
    struct run *r, const struct tokens_wanted *w, int64_t bytes_max, struct token_row *out,
    int64_t *bytes, struct err *e)
{
    struct opened opened = {0};
    struct corpus *texts;
    struct watching watching = {r, w->node->id, clock_ns()};
    struct tokenize_options o = {
        .append_end = w->append_end,
        .tokens_max = w->tokens_max,
        .bytes_max = bytes_max,
        .progress = watch,
        .ctx = &watching};
    enum status st = open_texts(w->corpus, &opened, &texts, e);
    if (st == ST_OK)
        st = corpus_tokenize(texts, w->tokenizer->open, &o, out, bytes, e);
    close_all(&opened);
    return st;
}

static const char *cache_path(const struct tokens_wanted *w, uint64_t key, char *buf, size_t cap)
{
    char folder[1024], name[32];
    if (w->cache_dir[0])
        (void)snprintf(folder, sizeof folder, "%s", w->cache_dir);
    else
        (void)path_join(snug_home(), "cache/tokens", folder, sizeof folder);
    (void)snprintf(name, sizeof name, "%016llx.bin", (unsigned long long)key);
    return path_join(folder, name, buf, cap);
}

/* A cache that cannot be written costs time, not the run. */
static void write_cache(const struct tokens_wanted *w, uint64_t key, const struct token_row *row)
{
    char path[1200], folder[1200];
    struct err e = {0};
    (void)path_dir(cache_path(w, key, path, sizeof path), folder, sizeof folder);
    if (dir_make(folder, &e) != ST_OK || token_file_write(path, row, &e) != ST_OK)
        log_warn("the tokens are not kept for the next run: %s", e.text);
}

/* What was counted for `bytes_counted` of text, for all of it. */
static void scale(struct token_row *row, int64_t bytes_counted, int64_t bytes, int64_t most)
{
    double all = bytes_counted ? (double)row->n * (double)bytes / (double)bytes_counted : 0;
    mem_free(row->data);
    row->data = NULL;
    row->n = most > 0 && all > (double)most ? most : (int64_t)all;
}

static enum status count_some(
    struct run *r, const struct tokens_wanted *w, int64_t bytes, struct text_tokens *t,
    struct err *e)
{
    int64_t counted;
    TRY(tokenize(r, w, SAMPLE_BYTES, &t->row, &counted, e));
    scale(&t->row, counted, bytes, w->tokens_max);
    t->estimated = true;
    run_warn(
        r, w->node, "tokens",
        "the %lld MB of text have not been turned into tokens yet: their count is scaled from the "
        "first %d MB, and the peak is that of a full batch all the same",
        (long long)(bytes / 1000000), SAMPLE_BYTES / 1000000);
    return ST_OK;
}

/* Whether the file is what write_cache writes and as long: its header, then the tokens. */
static bool whole_cache(const char *path, const struct token_row *row)
{
    enum { HEADER_BYTES = 1024 };
    int64_t size = 0, changed = 0;
    struct err ignored = {0};
    return file_state(path, &size, &changed, &ignored) == ST_OK &&
           size == HEADER_BYTES + row->n * row->width;
}

static bool read_cache(struct run *r, const char *path, struct token_row *row)
{
    struct err ignored = {0};
    struct token_row found = {0};
    enum status st = token_file_describe(path, &found, &ignored);
    if (st != ST_OK || !whole_cache(path, &found))
        return false;
    if (r->planning)
        *row = found;
    else
        st = token_file_read(path, 0, row, &ignored);
    return st == ST_OK;
}

static enum status fill_tokens(
    struct run *r, const struct tokens_wanted *w, struct text_tokens *t, int64_t bytes,
    struct err *e)
{
    char path[1200];
    if (w->cache && file_exists(cache_path(w, t->key, path, sizeof path)) &&
        read_cache(r, path, &t->row))
        return ST_OK;
    if (r->planning && !r->o.prepares_data && bytes > TOKENIZE_BYTES)
        return count_some(r, w, bytes, t, e);
    TRY(tokenize(r, w, 0, &t->row, NULL, e));
    if (w->cache)
        write_cache(w, t->key, &t->row);
    return ST_OK;
}

static enum status
fill_bin(struct run *r, const struct tokens_wanted *w, struct text_tokens *t, struct err *e)
{
    const char *path = w->corpus->path;
    if (!r->planning)
        return token_file_read(path, w->tokens_max, &t->row, e);
    TRY(token_file_describe(path, &t->row, e));
    if (w->tokens_max > 0 && t->row.n > w->tokens_max)
        t->row.n = w->tokens_max;
    return ST_OK;
}

static enum status
key_of(struct run *r, const struct tokens_wanted *w, int64_t *bytes, uint64_t *key, struct err *e)
{
    int64_t rows, choice[2] = {w->append_end, w->tokens_max};
    if (w->corpus->tokens) {
        int64_t state[2];
        TRY(file_state(w->corpus->path, &state[0], &state[1], e));
        *bytes = state[0];
        *key = mixed(hash_name(w->corpus->path), state, sizeof state);
    } else {
        TRY(text_count(r, w->corpus, &rows, bytes, key, e));
        TRY(flow_tokenizer_open(r, w->tokenizer, e));
        uint64_t tokenizer = tokenizer_key(w->tokenizer->open);
        *key = mixed(*key, &tokenizer, sizeof tokenizer);
    }
    *key = mixed(*key, choice, sizeof choice);
    return ST_OK;
}

enum status text_tokens_get(
    struct run *r, const struct tokens_wanted *w, const struct text_tokens **out, struct err *e)
{
    struct text_store *s = store(r);
    struct text_tokens *t = NULL;
    int64_t bytes;
    uint64_t key;
    TRY(key_of(r, w, &bytes, &key, e));
    for (size_t i = 0; i < s->tokens.n; i++)
        if (s->tokens.data[i]->key == key)
            t = s->tokens.data[i];
    if (!t) {
        t = mem_alloc(sizeof *t);
        t->key = key;
        vec_push(&s->tokens, t);
        t->row.n = -1;
    }
    bool enough = t->row.n >= 0 && (r->planning || t->row.data);
    if (!enough)
        TRY(w->corpus->tokens ? fill_bin(r, w, t, e) : fill_tokens(r, w, t, bytes, e));
    *out = t;
    return ST_OK;
}
