/* block_set.c - the sets of a pool, and walks over whole sets. */
#include "mem/pool/pool_int.h"

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

static struct mem_block **tree_list(struct mem_block *b, struct mem_block **out)
{
    while (b) {
        out = tree_list(b->left, out);
        *out++ = b;
        b = b->right;
    }
    return out;
}

struct mem_block *block_set_before(struct stream_set *s, int64_t size_bytes, uint64_t addr)
{
    block_set_sort(s);
    return tree_before(s->tree, size_bytes, addr);
}

struct mem_block **block_set_list(struct stream_set *s)
{
    block_set_sort(s);
    struct mem_block **list = mem_alloc((s->free_n + 1) * sizeof *list), **end = list;
    for (size_t word = 0; s->bins && word < BIN_WORDS; word++)
        for (uint64_t bits = s->bins->words[word]; bits; bits &= bits - 1)
            end = tree_list(s->bins->tree[word * 64 + (size_t)__builtin_ctzll(bits)], end);
    end = tree_list(s->tree, end);
    ASSERT((size_t)(end - list) == s->free_n);
    return list;
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
