/* train.c - learns a byte-level BPE: counts pairs once, then keeps the counts while merging.
 *
 * A pair knows the words it was seen in. Its counts only fall once it is known, so a heap with lazy
 * updates gives the largest: what comes out with an old count goes back with the new one.
 */
#include "text/train.h"

#include "text/tokenizer_int.h"
#include "text/utf8.h"

#include <string.h>

struct word {
    size_t at; /* in `symbols` */
    uint32_t n;
    int64_t count;
};
struct pair {
    uint32_t left, right;
    int64_t count;
    bool merged;
    uint32_t *words; /* may name a word more than once */
    size_t n, cap;
};
struct top {
    int64_t count;
    uint32_t pair; /* index */
};
struct learned {
    uint32_t left, right;
};
struct trainer {
    struct vocab pieces; /* the text's distinct pieces; number: index into words */
    struct vocab texts;  /* bytes of the tokens */
    VEC(struct word) words;
    VEC(uint32_t) symbols;
    VEC(struct pair) pairs;
    struct merges index; /* pair -> index (as rank) */
    VEC(struct top) heap;
    VEC(struct learned) merges;
};

/* ---- counting ---- */

static enum status count_piece(struct trainer *t, const char *piece, size_t n, struct err *e)
{
    if (n > TOKEN_BYTES_MAX)
        return ST_OK; /* no word of any language */
    uint32_t id = vocab_find(&t->pieces, piece, n);
    if (id == TOKEN_NONE) {
        struct word w = {t->symbols.n, (uint32_t)n, 0};
        id = (uint32_t)t->words.n;
        TRY(vocab_add(&t->pieces, piece, n, id, e));
        vec_push(&t->words, w);
        for (size_t i = 0; i < n; i++)
            vec_push(&t->symbols, (unsigned char)piece[i]);
    }
    t->words.data[id].count++;
    return ST_OK;
}

static enum status count_text(struct trainer *t, const char *text, size_t n, struct err *e)
{
    struct pattern *cut;
    TRY(pattern_new(PATTERN_GPT2, &cut, e));
    enum status st = ST_OK;
    for (size_t at = 0; at < n && st == ST_OK;) {
        struct span m;
        st = pattern_find(cut, text, n, at, &m, e);
        if (st == ST_OK && m.n)
            st = count_piece(t, text + m.at, m.n, e);
        at = m.at + m.n;
    }
    pattern_free(cut);
    return st;
}

/* ---- pairs ---- */

static bool above(const struct trainer *t, struct top a, struct top b)
{
    const struct pair *p = &t->pairs.data[a.pair], *q = &t->pairs.data[b.pair];
    if (a.count != b.count)
        return a.count > b.count;
    return p->left != q->left ? p->left < q->left : p->right < q->right;
}

static void heap_push(struct trainer *t, struct top c)
{
    vec_push(&t->heap, c);
    struct top *h = t->heap.data;
    size_t at = t->heap.n - 1;
    for (; at && above(t, c, h[(at - 1) / 2]); at = (at - 1) / 2)
        h[at] = h[(at - 1) / 2];
    h[at] = c;
}

static struct top heap_pop(struct trainer *t)
{
    struct top *h = t->heap.data, first = h[0], last = h[--t->heap.n];
    size_t n = t->heap.n, at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child + 1 < n && above(t, h[child + 1], h[child]))
            child++;
        if (child >= n || !above(t, h[child], last))
            break;
        h[at] = h[child];
        at = child;
    }
    if (n)
        h[at] = last;
    return first;
}

/* The pair's place; new ones come into being. */
static uint32_t pair_of(struct trainer *t, uint32_t left, uint32_t right)
{
    const struct merge *there = merges_find(&t->index, left, right);
    if (there)
        return there->rank;
    struct pair p = {.left = left, .right = right};
    merges_add(&t->index, left, right, (uint32_t)t->pairs.n, 0);
    vec_push(&t->pairs, p);
    return (uint32_t)t->pairs.n - 1;
}

static void pair_seen(struct trainer *t, uint32_t left, uint32_t right, uint32_t word)
{
    uint32_t index = pair_of(t, left, right); /* may move them all */
    struct pair *p = &t->pairs.data[index];
    p->count += t->words.data[word].count;
    if (p->merged || (p->n && p->words[p->n - 1] == word))
        return;
    if (p->n == p->cap) {
        p->cap = p->cap ? 2 * p->cap : 4;
        p->words = mem_resize(p->words, p->cap * sizeof *p->words);
    }
    p->words[p->n++] = word;
}

static void pair_gone(struct trainer *t, uint32_t left, uint32_t right, int64_t count)
{
    uint32_t index = pair_of(t, left, right);
    t->pairs.data[index].count -= count;
}

static void count_pairs(struct trainer *t)
{
    for (uint32_t w = 0; w < t->words.n; w++) {
        const struct word *word = &t->words.data[w];
        for (uint32_t i = 0; i + 1 < word->n; i++) {
            const uint32_t *s = &t->symbols.data[word->at + i];
            pair_seen(t, s[0], s[1], w);
        }
    }
    for (uint32_t i = 0; i < t->pairs.n; i++)
        heap_push(t, (struct top){t->pairs.data[i].count, i});
}

/* Writes the word anew with the pair as one symbol; its other pairs change their counts. */
static void merge_in_word(struct trainer *t, uint32_t w, struct learned m, uint32_t id)
{
    struct word *word = &t->words.data[w];
    uint32_t *s = &t->symbols.data[word->at];
    uint32_t n = 0;
    for (uint32_t i = 0; i < word->n; i++) {
        bool here = i + 1 < word->n && s[i] == m.left && s[i + 1] == m.right;
        if (!here) {
            s[n++] = s[i];
            continue;
        }
        uint32_t next = i + 2 < word->n ? s[i + 2] : TOKEN_NONE;
        if (n) {
            pair_gone(t, s[n - 1], m.left, word->count);
            pair_seen(t, s[n - 1], id, w);
        }
        if (next != TOKEN_NONE) {
            pair_gone(t, m.right, next, word->count);
            pair_seen(t, id, next, w);
        }
        s[n++] = id;
        i++;
    }
    word->n = n;
}

/* What two tokens together are: a new token, or one that other merges have made already. */
static enum status token_of(struct trainer *t, struct learned m, uint32_t *id, struct err *e)
{
    struct str joined;
    size_t n;
    str_init(&joined);
    const char *text = vocab_text(&t->texts, m.left, &n);
    str_add_n(&joined, text, n);
    text = vocab_text(&t->texts, m.right, &n);
    str_add_n(&joined, text, n);
    enum status st = ST_OK;
    *id = vocab_find(&t->texts, joined.data, joined.n);
    if (*id == TOKEN_NONE) {
        *id = (uint32_t)t->texts.entries.n;
        st = vocab_add(&t->texts, joined.data, joined.n, *id, e);
    }
    str_release(&joined);
    return st;
}

static enum status merge_pair(struct trainer *t, uint32_t index, struct err *e)
{
    size_t known = t->pairs.n;
    struct learned m = {t->pairs.data[index].left, t->pairs.data[index].right};
    uint32_t id;
    TRY(token_of(t, m, &id, e));
    t->pairs.data[index].merged = true;
    /* The pair takes on no words meanwhile: it is merged. */
    for (size_t i = 0; i < t->pairs.data[index].n; i++)
        merge_in_word(t, t->pairs.data[index].words[i], m, id);
    struct pair *p = &t->pairs.data[index];
    mem_free(p->words);
    p->words = NULL;
    p->n = p->cap = 0;
    vec_push(&t->merges, m);
    for (size_t i = known; i < t->pairs.n; i++)
        heap_push(t, (struct top){t->pairs.data[i].count, (uint32_t)i});
    return ST_OK;
}

static enum status learn(struct trainer *t, const struct bpe_train_options *o, struct err *e)
{
    int64_t wanted = o->vocab - 1, least = o->frequency_min ? o->frequency_min : 2;
    for (int i = 0; i < 256; i++) {
        char byte = (char)i;
        TRY(vocab_add(&t->texts, &byte, 1, (uint64_t)i, e));
    }
    while ((int64_t)t->texts.entries.n < wanted && t->heap.n) {
        struct top best = heap_pop(t);
        int64_t now = t->pairs.data[best.pair].count;
        if (now != best.count) {
            best.count = now;
            if (now >= least)
                heap_push(t, best);
            continue;
        }
        if (now < least)
            break;
        TRY(merge_pair(t, best.pair, e));
        if (o->progress && t->merges.n % 64 == 0)
            o->progress((int64_t)t->texts.entries.n, wanted, o->ctx);
    }
    return ST_OK;
}

/* ---- the file ---- */

/* The token's text in GPT-2's alphabet. */
static json_t *text_json(const struct trainer *t, uint32_t id)
{
    size_t n;
    const char *bytes = vocab_text(&t->texts, id, &n);
    struct str text;
    str_init(&text);
    for (size_t i = 0; i < n; i++) {
        char c[4];
        str_add_n(&text, c, utf8_write(byte_level_char((unsigned char)bytes[i]), c));
    }
    json_t *made = json_stringn(text.data, text.n);
    str_release(&text);
    return made;
}

static json_t *model_json(const struct trainer *t)
{
    json_t *vocab = json_object(), *merges = json_array(), *model = json_object();
    for (uint32_t i = 0; i < t->texts.entries.n; i++) {
        json_t *text = text_json(t, i);
        json_put_i64(vocab, json_string_value(text), i);
        json_decref(text);
    }
    for (size_t i = 0; i < t->merges.n; i++) {
        json_t *sides = json_array();
        (void)json_array_append_new(sides, text_json(t, t->merges.data[i].left));
        (void)json_array_append_new(sides, text_json(t, t->merges.data[i].right));
        (void)json_array_append_new(merges, sides);
    }
    json_put_str(model, "type", "BPE");
    json_put(model, "dropout", json_null());
    json_put(model, "unk_token", json_null());
    json_put_bool(model, "fuse_unk", false);
    json_put_bool(model, "byte_fallback", false);
    json_put_bool(model, "ignore_merges", false);
    json_put(model, "vocab", vocab);
    json_put(model, "merges", merges);
    return model;
}

static json_t *byte_level_json(void)
{
    json_t *o = json_object();
    json_put_str(o, "type", "ByteLevel");
    json_put_bool(o, "add_prefix_space", false);
    json_put_bool(o, "trim_offsets", true);
    json_put_bool(o, "use_regex", true);
    return o;
}

static json_t *document(const struct trainer *t)
{
    json_t *doc = json_object(), *end = json_object(), *added = json_array();
    json_put_i64(end, "id", (int64_t)t->texts.entries.n);
    json_put_str(end, "content", "<|endoftext|>");
    static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized"};
    for (int i = 0; i < 4; i++)
        json_put_bool(end, flags[i], false);
    json_put_bool(end, "special", true);
    (void)json_array_append_new(added, end);
    json_put_str(doc, "version", "1.0");
    json_put(doc, "truncation", json_null());
    json_put(doc, "padding", json_null());
    json_put(doc, "added_tokens", added);
    json_put(doc, "normalizer", json_null());
    json_put(doc, "pre_tokenizer", byte_level_json());
    json_put(doc, "post_processor", json_null());
    json_put(doc, "decoder", byte_level_json());
    json_put(doc, "model", model_json(t));
    return doc;
}

static void trainer_release(struct trainer *t)
{
    for (size_t i = 0; i < t->pairs.n; i++)
        mem_free(t->pairs.data[i].words);
    vocab_release(&t->pieces);
    vocab_release(&t->texts);
    merges_release(&t->index);
    vec_release(&t->words);
    vec_release(&t->symbols);
    vec_release(&t->pairs);
    vec_release(&t->heap);
    vec_release(&t->merges);
}

enum status bpe_train(
    const char *text, size_t n, const struct bpe_train_options *o, json_t **out,
    struct bpe_train_result *result, struct err *e)
{
    struct trainer t = {0};
    if (o->vocab < BPE_VOCAB_MIN || o->vocab > BPE_VOCAB_MAX)
        return err_set(
            e, ST_INVALID, "a vocabulary of %lld tokens is outside %d to %d", (long long)o->vocab,
            BPE_VOCAB_MIN, BPE_VOCAB_MAX);
    size_t good = utf8_prefix(text, n);
    if (good != n)
        return err_set(e, ST_INVALID, "the text is not UTF-8 at byte %zu", good);
    vocab_init(&t.pieces);
    vocab_init(&t.texts);
    enum status st = count_text(&t, text, n, e);
    if (st == ST_OK) {
        count_pairs(&t);
        st = learn(&t, o, e);
    }
    if (st == ST_OK) {
        *out = document(&t);
        *result = (struct bpe_train_result){
            (int64_t)t.texts.entries.n + 1, (int64_t)t.merges.n, (int64_t)t.words.n};
    }
    trainer_release(&t);
    return st;
}
