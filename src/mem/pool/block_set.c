/* block_set.c - free blocks in order of size and address: bins for small sizes, trees for the rest.
 *
 * A tree is a treap: a search tree by key that is a heap by priority, the priority being a hash of
 * the address. Its shape depends on its members alone, and stays flat whatever the order of calls.
 * Source: Seidel and Aragon, "Randomized search trees", Algorithmica 16, 1996.
 *
 * INVARIANTS
 * 1. Free blocks of a small pool of up to 2 MiB are in the bin of their size, others in `tree`.
 * 2. A bit of bins is set exactly when its tree (its word) has something in it.
 */
#include "mem/pool/pool_int.h"

enum key { BY_SIZE, BY_ADDR };

static bool before(enum key key, int64_t size, uint64_t addr, const struct mem_block *b)
{
    if (key == BY_SIZE && size != b->size_bytes)
        return size < b->size_bytes;
    return addr < b->addr;
}

static uint32_t priority_of(uint64_t addr)
{
    addr = (addr ^ (addr >> 32)) * 0xD6E8FEB86659FD93u;
    return (uint32_t)((addr ^ (addr >> 32)) * 0xD6E8FEB86659FD93u >> 32);
}

static void tree_insert(struct mem_block **root, struct mem_block *b, enum key key)
{
    struct mem_block *rest, **left, **right;
    b->priority = priority_of(b->addr);
    while (*root && (*root)->priority >= b->priority)
        root = before(key, b->size_bytes, b->addr, *root) ? &(*root)->left : &(*root)->right;
    /* What hangs here is cut in two at the key and hung below `b`. */
    rest = *root;
    *root = b;
    left = &b->left;
    right = &b->right;
    while (rest) {
        if (before(key, b->size_bytes, b->addr, rest)) {
            *right = rest;
            right = &rest->left;
            rest = rest->left;
        } else {
            *left = rest;
            left = &rest->right;
            rest = rest->right;
        }
    }
    *left = *right = NULL;
}

static void tree_remove(struct mem_block **root, struct mem_block *b, enum key key)
{
    struct mem_block *left = b->left, *right = b->right;
    while (*root != b) {
        ASSERT(*root);
        root = before(key, b->size_bytes, b->addr, *root) ? &(*root)->left : &(*root)->right;
    }
    while (left && right) {
        if (left->priority >= right->priority) {
            *root = left;
            root = &left->right;
            left = left->right;
        } else {
            *root = right;
            root = &right->left;
            right = right->left;
        }
    }
    *root = left ? left : right;
}

/* The first at or after the key. */
static struct mem_block *tree_at(struct mem_block *b, int64_t size, uint64_t addr, enum key key)
{
    struct mem_block *found = NULL;
    while (b) {
        bool too_low =
            key == BY_SIZE && b->size_bytes != size ? b->size_bytes < size : b->addr < addr;
        if (!too_low)
            found = b;
        b = too_low ? b->right : b->left;
    }
    return found;
}

static struct mem_block *tree_before(struct mem_block *b, int64_t size, uint64_t addr)
{
    struct mem_block *found = NULL;
    while (b) {
        bool low = b->size_bytes != size ? b->size_bytes < size : b->addr < addr;
        if (low)
            found = b;
        b = low ? b->right : b->left;
    }
    return found;
}

static struct mem_block *tree_first(struct mem_block *b)
{
    while (b && b->left)
        b = b->left;
    return b;
}

static struct mem_block **tree_list(struct mem_block *b, struct mem_block **out)
{
    while (b) {
        out = tree_list(b->left, out);
        *out++ = b;
        b = b->right;
    }
    return out;
}

/* Bins. */

static size_t bin_of(int64_t size)
{
    return (size_t)(size / BLOCK_MIN_BYTES) - 1;
}

static bool has_bin(const struct stream_set *s, int64_t size)
{
    return s->bins && size <= SMALL_SEGMENT_BYTES;
}

/* The first bin at or after `i` that has something in it, or BINS_N. */
static size_t bin_used(const struct bins *bins, size_t i)
{
    if (i >= BINS_N)
        return BINS_N;
    uint64_t bits = bins->words[i / 64] >> (i % 64);
    if (bits)
        return i + (size_t)__builtin_ctzll(bits);
    uint64_t above = i / 64 == BIN_WORDS - 1 ? 0 : bins->words_used >> (i / 64 + 1);
    if (!above)
        return BINS_N;
    size_t word = i / 64 + 1 + (size_t)__builtin_ctzll(above);
    return word * 64 + (size_t)__builtin_ctzll(bins->words[word]);
}

void block_set_insert(struct stream_set *s, struct mem_block *b)
{
    s->free_n++;
    if (!has_bin(s, b->size_bytes)) {
        tree_insert(&s->tree, b, BY_SIZE);
        return;
    }
    size_t i = bin_of(b->size_bytes);
    tree_insert(&s->bins->tree[i], b, BY_ADDR);
    s->bins->words[i / 64] |= (uint64_t)1 << (i % 64);
    s->bins->words_used |= (uint64_t)1 << (i / 64);
}

void block_set_remove(struct stream_set *s, struct mem_block *b)
{
    s->free_n--;
    if (!has_bin(s, b->size_bytes)) {
        tree_remove(&s->tree, b, BY_SIZE);
        return;
    }
    size_t i = bin_of(b->size_bytes);
    tree_remove(&s->bins->tree[i], b, BY_ADDR);
    if (s->bins->tree[i])
        return;
    s->bins->words[i / 64] &= ~((uint64_t)1 << (i % 64));
    if (!s->bins->words[i / 64])
        s->bins->words_used &= ~((uint64_t)1 << (i / 64));
}

struct mem_block *block_set_at(const struct stream_set *s, int64_t size_bytes, uint64_t addr)
{
    if (has_bin(s, size_bytes)) {
        size_t i = bin_of(size_bytes);
        if (addr) {
            struct mem_block *b = tree_at(s->bins->tree[i], size_bytes, addr, BY_ADDR);
            if (b)
                return b;
            i++;
        }
        i = bin_used(s->bins, i);
        if (i < BINS_N)
            return tree_first(s->bins->tree[i]);
    }
    return tree_at(s->tree, size_bytes, addr, BY_SIZE);
}

struct mem_block *block_set_after(const struct stream_set *s, const struct mem_block *b)
{
    return block_set_at(s, b->size_bytes, b->addr + 1);
}

struct mem_block *block_set_before(const struct stream_set *s, int64_t size_bytes, uint64_t addr)
{
    return tree_before(s->tree, size_bytes, addr);
}

struct mem_block **block_set_list(const struct stream_set *s)
{
    struct mem_block **list = mem_alloc((s->free_n + 1) * sizeof *list), **end = list;
    for (size_t i = s->bins ? bin_used(s->bins, 0) : BINS_N; i < BINS_N;
         i = bin_used(s->bins, i + 1))
        end = tree_list(s->bins->tree[i], end);
    end = tree_list(s->tree, end);
    ASSERT((size_t)(end - list) == s->free_n);
    return list;
}

void block_unmapped_insert(struct stream_set *s, struct mem_block *b)
{
    tree_insert(&s->unmapped, b, BY_ADDR);
}

void block_unmapped_remove(struct stream_set *s, struct mem_block *b)
{
    tree_remove(&s->unmapped, b, BY_ADDR);
}

struct mem_block *block_unmapped_from(const struct stream_set *s, uint64_t addr)
{
    return tree_at(s->unmapped, 0, addr, BY_ADDR);
}

/* The sets of a pool. */

static struct stream_set *set_new(struct block_pool *pool, uint64_t stream)
{
    struct stream_set *s = mem_alloc(sizeof *s);
    *s = (struct stream_set){.pool = pool, .stream = stream};
    if (pool->small)
        s->bins = mem_alloc(sizeof *s->bins);
    return s;
}

struct stream_set *block_pool_set(struct block_pool *pool, uint64_t stream)
{
    if (pool->last && pool->last->stream == stream)
        return pool->last;
    size_t i = 0, end = pool->sets.n;
    while (i < end) {
        size_t mid = i + (end - i) / 2;
        if (pool->sets.data[mid]->stream < stream)
            i = mid + 1;
        else
            end = mid;
    }
    if (i == pool->sets.n || pool->sets.data[i]->stream != stream) {
        vec_push(&pool->sets, NULL);
        for (size_t k = pool->sets.n - 1; k > i; k--)
            pool->sets.data[k] = pool->sets.data[k - 1];
        pool->sets.data[i] = set_new(pool, stream);
    }
    return pool->last = pool->sets.data[i];
}

void block_pool_release(struct block_pool *pool)
{
    for (size_t i = 0; i < pool->sets.n; i++) {
        mem_free(pool->sets.data[i]->bins);
        mem_free(pool->sets.data[i]);
    }
    vec_release(&pool->sets);
    pool->last = NULL;
}
