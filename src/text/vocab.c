/* vocab.c - token texts and their numbers, and pairs of numbers and what they merge into. */
#include "text/vocab.h"

#include <string.h>

void vocab_init(struct vocab *v)
{
    *v = (struct vocab){0};
    str_init(&v->bytes);
}

void vocab_release(struct vocab *v)
{
    str_release(&v->bytes);
    vec_release(&v->entries);
    vec_release(&v->by_id);
    mem_free(v->slots);
    vocab_init(v);
    v->slots = NULL;
}

static size_t hash_text(const char *text, size_t n)
{
    /* FNV-1a finished by a mixer: texts are short. */
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)text[i]) * 0x100000001b3u;
    h ^= h >> 32;
    h *= 0x9e3779b97f4a7c15u;
    return (size_t)(h ^ h >> 29);
}

/* The slot that holds the text, or the free one where it belongs. */
static size_t slot_of(const struct vocab *v, const char *text, size_t n)
{
    size_t at = hash_text(text, n) & (v->slot_count - 1);
    while (v->slots[at]) {
        const struct vocab_entry *t = &v->entries.data[v->slots[at] - 1];
        if (t->length == n && memcmp(v->bytes.data + t->at, text, n) == 0)
            break;
        at = (at + 1) & (v->slot_count - 1);
    }
    return at;
}

static void grow(struct vocab *v)
{
    if (2 * (v->entries.n + 1) < v->slot_count)
        return;
    v->slot_count = v->slot_count ? 2 * v->slot_count : 1024;
    mem_free(v->slots);
    v->slots = mem_alloc(v->slot_count * sizeof *v->slots);
    for (size_t i = 0; i < v->entries.n; i++) {
        const struct vocab_entry *t = &v->entries.data[i];
        v->slots[slot_of(v, v->bytes.data + t->at, t->length)] = (uint32_t)i + 1;
    }
}

enum status vocab_add(struct vocab *v, const char *text, size_t n, uint64_t id, struct err *e)
{
    if (id >= TOKEN_ID_MAX)
        return err_set(
            e, ST_CORRUPT, "token number %llu is not below %d", (unsigned long long)id,
            TOKEN_ID_MAX);
    if (n == 0 || n > TOKEN_BYTES_MAX)
        return err_set(
            e, ST_CORRUPT, "token %llu has %zu bytes, outside 1 to %d", (unsigned long long)id, n,
            TOKEN_BYTES_MAX);
    grow(v);
    size_t slot = slot_of(v, text, n);
    uint32_t there = v->slots[slot];
    if (there && v->entries.data[there - 1].id == id)
        return ST_OK;
    if (there)
        return err_set(
            e, ST_CORRUPT, "tokens %u and %llu have the same text", v->entries.data[there - 1].id,
            (unsigned long long)id);
    while (v->by_id.n <= id)
        vec_push(&v->by_id, TOKEN_NONE);
    if (v->by_id.data[id] != TOKEN_NONE)
        return err_set(e, ST_CORRUPT, "token number %llu is given twice", (unsigned long long)id);
    struct vocab_entry entry = {v->bytes.n, (uint32_t)n, (uint32_t)id};
    v->by_id.data[id] = (uint32_t)v->entries.n;
    str_add_n(&v->bytes, text, n);
    vec_push(&v->entries, entry);
    v->slots[slot] = (uint32_t)v->entries.n;
    if (n > v->longest)
        v->longest = (uint32_t)n;
    return ST_OK;
}

uint32_t vocab_find(const struct vocab *v, const char *text, size_t n)
{
    if (n > v->longest || n == 0)
        return TOKEN_NONE;
    uint32_t there = v->slots[slot_of(v, text, n)];
    return there ? v->entries.data[there - 1].id : TOKEN_NONE;
}

const char *vocab_text(const struct vocab *v, uint32_t id, size_t *n)
{
    *n = 0;
    if (id >= v->by_id.n || v->by_id.data[id] == TOKEN_NONE)
        return NULL;
    const struct vocab_entry *t = &v->entries.data[v->by_id.data[id]];
    *n = t->length;
    return v->bytes.data + t->at;
}

void merges_release(struct merges *m)
{
    mem_free(m->slots);
    *m = (struct merges){0};
}

static size_t pair_slot(const struct merges *m, uint64_t pair)
{
    uint64_t h = pair * 0x9e3779b97f4a7c15u;
    size_t at = (size_t)(h ^ h >> 32) & (m->slot_count - 1);
    while (m->slots[at].pair != UINT64_MAX && m->slots[at].pair != pair)
        at = (at + 1) & (m->slot_count - 1);
    return at;
}

static void grow_merges(struct merges *m)
{
    struct merge *old = m->slots;
    size_t count = m->slot_count;
    m->slot_count = count ? 2 * count : 1024;
    m->slots = mem_alloc(m->slot_count * sizeof *m->slots);
    for (size_t i = 0; i < m->slot_count; i++)
        m->slots[i].pair = UINT64_MAX;
    for (size_t i = 0; i < count; i++)
        if (old[i].pair != UINT64_MAX)
            m->slots[pair_slot(m, old[i].pair)] = old[i];
    mem_free(old);
}

void merges_add(struct merges *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t id)
{
    if (2 * (m->n + 1) >= m->slot_count)
        grow_merges(m);
    uint64_t pair = (uint64_t)left << 32 | right;
    size_t at = pair_slot(m, pair);
    m->n += m->slots[at].pair != pair;
    m->slots[at] = (struct merge){pair, rank, id};
}

const struct merge *merges_find(const struct merges *m, uint32_t left, uint32_t right)
{
    if (m->n == 0)
        return NULL;
    uint64_t pair = (uint64_t)left << 32 | right;
    const struct merge *there = &m->slots[pair_slot(m, pair)];
    return there->pair == pair ? there : NULL;
}
