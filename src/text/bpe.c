/* bpe.c - byte-pair merging of one piece: the pair with the smallest rank first, leftmost of
 * equals.
 *
 * Short pieces are scanned for the smallest rank again and again; in long ones the candidates wait
 * in a heap and are checked when they come out, since an earlier merge may have taken one side.
 */
#include "text/tokenizer_int.h"
#include "text/utf8.h"

#include <string.h>

enum { SCAN_MAX = 32 }; /* symbols up to which scanning is faster than the heap */

static bool
pair_find(const struct tokenizer *t, const char *piece, const struct symbol *a, struct candidate *c)
{
    if (a->after == TOKEN_NONE)
        return false;
    const struct symbol *b = &t->symbols.data[a->after];
    c->n = a->n + b->n;
    uint32_t rank;
    if (t->by_ranks) {
        rank = c->id = vocab_find(&t->vocab, piece + a->at, c->n);
        if (rank == TOKEN_NONE)
            return false;
    } else {
        const struct merge *m = merges_find(&t->merges, a->id, b->id);
        if (!m)
            return false;
        rank = m->rank;
        c->id = m->id;
    }
    c->order = (uint64_t)rank << 32 | (uint64_t)(a - t->symbols.data);
    return true;
}

/* The symbol takes in the one after it. */
static void join(struct tokenizer *t, struct symbol *a, uint32_t id)
{
    struct symbol *b = &t->symbols.data[a->after];
    a->id = id;
    a->n += b->n;
    b->n = 0;
    a->after = b->after;
    if (b->after != TOKEN_NONE)
        t->symbols.data[b->after].before = (uint32_t)(a - t->symbols.data);
}

static void merge_short(struct tokenizer *t, const char *piece)
{
    uint64_t order[SCAN_MAX];
    uint32_t id[SCAN_MAX];
    struct symbol *s = t->symbols.data;
    size_t n = t->symbols.n;
    struct candidate c;
    for (size_t i = 0; i < n; i++) {
        bool found = pair_find(t, piece, &s[i], &c);
        order[i] = found ? c.order : UINT64_MAX;
        id[i] = found ? c.id : 0;
    }
    for (;;) {
        size_t best = 0;
        for (size_t i = 1; i < n; i++)
            if (order[i] < order[best])
                best = i;
        if (order[best] == UINT64_MAX)
            return;
        order[s[best].after] = UINT64_MAX;
        join(t, &s[best], id[best]);
        size_t changed[2] = {best, s[best].before};
        for (int k = 0; k < 2 && changed[k] != TOKEN_NONE; k++) {
            bool found = pair_find(t, piece, &s[changed[k]], &c);
            order[changed[k]] = found ? c.order : UINT64_MAX;
            id[changed[k]] = found ? c.id : 0;
        }
    }
}

static void heap_push(struct tokenizer *t, struct candidate c)
{
    vec_push(&t->heap, c);
    struct candidate *h = t->heap.data;
    size_t at = t->heap.n - 1;
    while (at && h[(at - 1) / 2].order > c.order) {
        h[at] = h[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    h[at] = c;
}

static struct candidate heap_pop(struct tokenizer *t)
{
    struct candidate *h = t->heap.data, top = h[0], last = h[--t->heap.n];
    size_t n = t->heap.n, at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child + 1 < n && h[child + 1].order < h[child].order)
            child++;
        if (child >= n || h[child].order >= last.order)
            break;
        h[at] = h[child];
        at = child;
    }
    if (n)
        h[at] = last;
    return top;
}

static void merge_long(struct tokenizer *t, const char *piece)
{
    struct candidate c;
    t->heap.n = 0;
    for (size_t i = 0; i < t->symbols.n; i++)
        if (pair_find(t, piece, &t->symbols.data[i], &c))
            heap_push(t, c);
    while (t->heap.n) {
        c = heap_pop(t);
        struct symbol *a = &t->symbols.data[(uint32_t)c.order];
        /* Stale: a side was merged meanwhile, so the two together have another length. */
        if (a->n == 0 || a->after == TOKEN_NONE || a->n + t->symbols.data[a->after].n != c.n)
            continue;
        join(t, a, c.id);
        if (pair_find(t, piece, a, &c))
            heap_push(t, c);
        if (a->before != TOKEN_NONE && pair_find(t, piece, &t->symbols.data[a->before], &c))
            heap_push(t, c);
    }
}

static void symbol_add(struct tokenizer *t, uint32_t id, size_t at, size_t n)
{
    uint32_t i = (uint32_t)t->symbols.n;
    struct symbol s = {id, (uint32_t)at, (uint32_t)n, i ? i - 1 : TOKEN_NONE, TOKEN_NONE};
    if (i)
        t->symbols.data[i - 1].after = i;
    vec_push(&t->symbols, s);
}

static void symbols_of_bytes(struct tokenizer *t, const char *piece, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t id = t->byte_id[(unsigned char)piece[i]];
        if (id != TOKEN_NONE) /* a byte-level file without a byte drops it */
            symbol_add(t, id, i, 1);
    }
}

static bool has_bytes(const struct tokenizer *t, const char *piece, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (t->byte_id[(unsigned char)piece[i]] == TOKEN_NONE)
            return false;
    return true;
}

/* Characters; those that are no token become bytes, else the unknown token. */
static void symbols_of_characters(struct tokenizer *t, const char *piece, size_t n)
{
    bool open = false; /* the last symbol is an unknown one that may grow */
    for (size_t i = 0, length; i < n; i += length) {
        length = utf8_length(piece + i);
        uint32_t id = vocab_find(&t->vocab, piece + i, length);
        if (id != TOKEN_NONE) {
            symbol_add(t, id, i, length);
            open = false;
        } else if (t->byte_fallback && has_bytes(t, piece + i, length)) {
            for (size_t k = 0; k < length; k++)
                symbol_add(t, t->byte_id[(unsigned char)piece[i + k]], i + k, 1);
            open = false;
        } else if (t->unk != TOKEN_NONE && open && t->fuse_unk) {
            t->symbols.data[t->symbols.n - 1].n += (uint32_t)length;
        } else if (t->unk != TOKEN_NONE) {
            symbol_add(t, t->unk, i, length);
            open = true;
        }
    }
}

/* The whole piece as a token: what rank files mean, and ignore_merges. */
static uint32_t whole(struct tokenizer *t, const char *piece, size_t n)
{
    if (t->by_ranks)
        return vocab_find(&t->vocab, piece, n);
    if (!t->ignore_merges || n > t->vocab.longest)
        return TOKEN_NONE;
    if (!t->byte_level)
        return vocab_find(&t->vocab, piece, n);
    str_clear(&t->other);
    for (size_t i = 0; i < n; i++) {
        char c[4];
        str_add_n(&t->other, c, utf8_write(byte_level_char((unsigned char)piece[i]), c));
    }
    return vocab_find(&t->vocab, t->other.data, t->other.n);
}

enum status
tokenizer_merge(struct tokenizer *t, const char *piece, size_t n, struct tokens *out, struct err *e)
{
    uint32_t id = whole(t, piece, n);
    if (id != TOKEN_NONE) {
        vec_push(out, id);
        return ST_OK;
    }
    t->symbols.n = 0;
    if (t->by_ranks || t->byte_level)
        symbols_of_bytes(t, piece, n);
    else
        symbols_of_characters(t, piece, n);
    if (t->symbols.n == 0)
        return ST_OK;
    if (t->by_ranks && t->symbols.n != n)
        return err_set(e, ST_CORRUPT, "\"%s\" lacks a byte that the text has", t->name);
    if (t->symbols.n <= SCAN_MAX)
        merge_short(t, piece);
    else
        merge_long(t, piece);
    for (uint32_t i = 0; i != TOKEN_NONE; i = t->symbols.data[i].after)
        vec_push(out, t->symbols.data[i].id);
    return ST_OK;
}
