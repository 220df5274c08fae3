/* core.c - what every call runs through: sets of free blocks, blocks, the search, handing out.
 *
 * In one file because a pair of calls is to cost less than 60 ns: the compiler sees all of it.
 *
 * Free blocks are in order of size and address: bins for small sizes, trees for the rest. A tree is
 * a treap: a search tree by key that is a heap by priority, the priority being a hash of the
 * address. Its shape depends on its members alone, and stays flat whatever the order of calls.
 * Source: Seidel and Aragon, "Randomized search trees", Algorithmica 16, 1996.
 *
 * INVARIANTS
 * 1. A free block is loose, or in the bin of its size (small pools, up to 2 MiB), or in `tree`.
 * 2. A bit of bins is set exactly when its tree (its word) has something in it.
 */
#include "mem/pool/pool_int.h"

#include <sys/mman.h>

/* Trees. */

enum key { BY_SIZE, BY_ADDR };

static inline bool
before(enum key key, int64_t size, uint64_t addr, int64_t than_size, uint64_t than_addr)
{
    if (key == BY_SIZE && size != than_size)
        return size < than_size;
    return addr < than_addr;
}

static inline bool comes_before(enum key key, const struct mem_block *a, const struct mem_block *b)
{
    return before(key, a->size_bytes, a->addr, b->size_bytes, b->addr);
}

static uint32_t priority_of(uint64_t addr)
{
    addr = (addr ^ (addr >> 29)) * 0xD6E8FEB86659FD93u;
    return (uint32_t)(addr >> 32);
}

static void tree_insert(struct mem_block **root, struct mem_block *b, enum key key)
{
    struct mem_block *rest, **left, **right;
    b->priority = priority_of(b->addr);
    while (*root && (*root)->priority >= b->priority)
        root = comes_before(key, b, *root) ? &(*root)->left : &(*root)->right;
    /* What hangs here is cut in two at the key and hung below `b`. */
    rest = *root;
    *root = b;
    left = &b->left;
    right = &b->right;
    while (rest) {
        if (comes_before(key, b, rest)) {
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
        root = comes_before(key, b, *root) ? &(*root)->left : &(*root)->right;
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
        bool too_low = before(key, b->size_bytes, b->addr, size, addr);
        if (!too_low)
            found = b;
        b = too_low ? b->right : b->left;
    }
    return found;
}

static struct mem_block *tree_first(struct mem_block *b)
{
    while (b && b->left)
        b = b->left;
    return b;
}

/* Bins. */

static size_t bin_of(int64_t size)
{
    return (size_t)size / (size_t)BLOCK_MIN_BYTES - 1;
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

static void sort_in(struct stream_set *s, struct mem_block *b)
{
    if (!has_bin(s, b->size_bytes)) {
        tree_insert(&s->tree, b, BY_SIZE);
        return;
    }
    size_t i = bin_of(b->size_bytes);
    tree_insert(&s->bins->tree[i], b, BY_ADDR);
    s->bins->words[i / 64] |= (uint64_t)1 << (i % 64);
    s->bins->words_used |= (uint64_t)1 << (i / 64);
}

static void sort_out(struct stream_set *s, struct mem_block *b)
{
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

static struct mem_block *sorted_at(const struct stream_set *s, int64_t size, uint64_t addr)
{
    if (has_bin(s, size)) {
        size_t i = bin_of(size);
        struct mem_block *b = tree_at(s->bins->tree[i], size, addr, BY_ADDR);
        if (b)
            return b;
        i = bin_used(s->bins, i + 1);
        if (i < BINS_N)
            return tree_first(s->bins->tree[i]);
    }
    return tree_at(s->tree, size, addr, BY_SIZE);
}

/* The set: what is sorted, and the block that came last. Programs often take what they have just
 * given back, and then it was never sorted. */

void block_set_sort(struct stream_set *s)
{
    if (s->loose)
        sort_in(s, s->loose);
    s->loose = NULL;
}

void block_set_insert(struct stream_set *s, struct mem_block *b)
{
    s->free_n++;
    if (s->loose)
        sort_in(s, s->loose);
    s->loose = b;
}

void block_set_remove(struct stream_set *s, struct mem_block *b)
{
    s->free_n--;
    if (s->loose == b)
        s->loose = NULL;
    else
        sort_out(s, b);
}

struct mem_block *block_set_at(const struct stream_set *s, int64_t size_bytes, uint64_t addr)
{
    struct mem_block *loose = s->loose;
    if (loose && before(BY_SIZE, loose->size_bytes, loose->addr, size_bytes, addr))
        loose = NULL;
    /* Nothing sorted can come before an exact fit but another one. */
    if (loose && loose->size_bytes == size_bytes && has_bin(s, size_bytes) &&
        !s->bins->tree[bin_of(size_bytes)])
        return loose;
    struct mem_block *b = sorted_at(s, size_bytes, addr);
    bool first = loose && (!b || comes_before(BY_SIZE, loose, b));
    return first ? loose : b;
}

struct mem_block *block_set_after(const struct stream_set *s, const struct mem_block *b)
{
    return block_set_at(s, b->size_bytes, b->addr + 1);
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

/* Blocks: from slabs, cut in two, joined with their neighbours. */

/* Slabs double up to a huge page: with a million blocks, finding the pages of their structs would
 * cost more than the structs. */
enum { LINE_BYTES = 64, SLAB_BYTES_MIN = 1 << 15, SLAB_BYTES_MAX = 2 << 20 };

/* Structs lie on cache lines, in the order in which blocks are cut from a segment. */
static void slab_add(struct mem_pool *p)
{
    size_t bytes = SLAB_BYTES_MIN;
    for (size_t i = 0; i < p->slabs.n && bytes < SLAB_BYTES_MAX; i++)
        bytes *= 2;
    size_t align = bytes == SLAB_BYTES_MAX ? SLAB_BYTES_MAX : LINE_BYTES;
    char *slab = mem_alloc(bytes + align);
    vec_push(&p->slabs, slab);
    slab += align - (uintptr_t)slab % align;
    if (align == SLAB_BYTES_MAX)
        (void)madvise(slab, bytes, MADV_HUGEPAGE); /* advice only */
    for (size_t n = bytes / sizeof(struct mem_block); n-- > 0;) {
        struct mem_block *b = (struct mem_block *)(void *)(slab + n * sizeof *b);
        b->next = p->spare;
        p->spare = b;
    }
}

struct mem_block *block_new(struct mem_pool *p)
{
    if (!p->spare)
        slab_add(p);
    struct mem_block *b = p->spare;
    p->spare = b->next;
    return b;
}

void block_drop(struct mem_pool *p, struct mem_block *b)
{
    if (b->uses) {
        mem_free(b->uses);
        b->uses = NULL;
    }
    b->next = p->spare;
    p->spare = b;
}

bool block_is_split(const struct mem_block *b)
{
    return b->prev || b->next;
}

struct mem_block *block_cut(struct mem_pool *p, struct mem_block *b, int64_t size_bytes)
{
    struct mem_block *rest = block_new(p);
    rest->addr = b->addr + (uint64_t)size_bytes;
    rest->size_bytes = b->size_bytes - size_bytes;
    rest->requested_bytes = 0;
    rest->prev = b;
    rest->next = b->next;
    rest->set = b->set;
    rest->segment = b->segment;
    rest->state = b->state;
    rest->expandable = b->expandable;
    rest->uncached = false;
    if (b->next)
        b->next->prev = rest;
    b->next = rest;
    b->size_bytes = size_bytes;
    return rest;
}

/* `low` takes in its upper neighbour, which is in no set. */
static void swallow_next(struct mem_pool *p, struct mem_block *low)
{
    struct mem_block *gone = low->next;
    low->size_bytes += gone->size_bytes;
    low->next = gone->next;
    if (low->next)
        low->next->prev = low;
    block_drop(p, gone);
}

/* The size of a neighbour that can be joined, which then is in no set; 0. */
static int64_t loosen(const struct mem_block *b, struct mem_block *neighbour)
{
    if (!neighbour || neighbour->state != b->state)
        return 0;
    if (b->state == BLOCK_FREE)
        block_set_remove(b->set, neighbour);
    else
        block_unmapped_remove(b->set, neighbour);
    return neighbour->size_bytes;
}

struct mem_block *
block_join(struct mem_pool *p, struct mem_block *b, int64_t *prev_bytes, int64_t *next_bytes)
{
    ASSERT(b->state == BLOCK_FREE || b->state == BLOCK_UNMAPPED);
    *prev_bytes = loosen(b, b->prev);
    if (*prev_bytes) {
        b = b->prev;
        swallow_next(p, b);
    }
    *next_bytes = loosen(b, b->next);
    if (*next_bytes)
        swallow_next(p, b);
    return b;
}

void block_to_free(struct mem_block *b)
{
    b->state = BLOCK_FREE;
    b->born = b->set->pool->calls_n;
    block_set_insert(b->set, b);
}

/* The search: best fit on the request's own stream. */

/* What a block at the growing end of an expandable segment can become. */
static int64_t reach(const struct mem_block *b)
{
    bool grows = b->next && b->next->state == BLOCK_UNMAPPED;
    return b->size_bytes + (grows ? b->next->size_bytes : 0);
}

/* Best fit by what a block can become: blocks that do not sit at a growing end are preferred. */
static struct mem_block *prefer_inner(const struct stream_set *s, struct mem_block *b)
{
    while (b->expandable) {
        struct mem_block *next = block_set_after(s, b);
        if (!next || reach(next) >= reach(b))
            break;
        b = next;
    }
    return b;
}

/* Expandable segments were turned off after some were made: their blocks are left alone. */
static struct mem_block *skip_expandable(const struct stream_set *s, struct mem_block *b)
{
    while (b && b->expandable)
        b = block_set_after(s, b);
    return b;
}

/* Blocks of max_split_size and above are for requests of that size, and not for much smaller
 * ones. */
static bool fits_split_limit(const struct mem_pool_conf *c, int64_t size, int64_t found)
{
    if (size < c->max_split_size_bytes)
        return found < c->max_split_size_bytes;
    return found - size < c->max_non_split_rounding_bytes;
}

struct mem_block *core_find_free(struct request *r)
{
    const struct mem_pool_conf *c = &r->p->conf;
    if (r->p->allowed_bytes && c->garbage_collection_threshold > 0)
        r->pool->calls_n++;
    struct mem_block *b = block_set_at(r->set, r->size_bytes, 0);
    if (b && b->expandable)
        b = c->expandable_segments ? prefer_inner(r->set, b) : skip_expandable(r->set, b);
    if (!b || !fits_split_limit(c, r->size_bytes, b->size_bytes))
        return NULL;
    block_set_remove(r->set, b);
    return b;
}

/* Handing out. */

static bool should_split(const struct request *r, const struct mem_block *b)
{
    int64_t rest = b->size_bytes - r->size_bytes;
    if (r->pool->owner && r->pool->owner->options.no_split)
        return false;
    if (r->pool->small || b->expandable)
        return rest >= BLOCK_MIN_BYTES;
    return r->size_bytes < r->p->conf.max_split_size_bytes && rest > SMALL_MAX_BYTES;
}

/* The head of `b` is wanted, its tail stays free. */
static void split(struct request *r, struct mem_block *b)
{
    struct mem_pool *p = r->p;
    bool was_split = block_is_split(b), small = r->pool->small;
    struct mem_block *rest = block_cut(p, b, r->size_bytes);
    block_to_free(rest);
    if (b->expandable)
        return;
    if (was_split) {
        stat_down(p, STAT_inactive_split_bytes, small, b->size_bytes);
    } else {
        stat_up(p, STAT_inactive_split_bytes, small, rest->size_bytes);
        stat_up(p, STAT_inactive_split, small, 1);
    }
}

void core_count_live(struct mem_pool *p, struct mem_block *b)
{
    bool small = b->set->pool->small;
    stat_up(p, STAT_allocation, small, 1);
    stat_up(p, STAT_allocated_bytes, small, b->size_bytes);
    stat_up(p, STAT_requested_bytes, small, b->requested_bytes);
    if (p->events_n || p->deferred.n)
        stats_note_active(p);
    b->oversize = b->size_bytes >= p->conf.max_split_size_bytes;
    if (b->oversize)
        counter_up(&p->oversize_allocations, 1);
}

/* `b` is free and in no set. */
void core_hand_out(struct request *r, struct mem_block *b)
{
    struct mem_pool *p = r->p;
    if (should_split(r, b)) {
        split(r, b);
    } else if (block_is_split(b) && !b->expandable) {
        stat_down(p, STAT_inactive_split_bytes, r->pool->small, b->size_bytes);
        stat_down(p, STAT_inactive_split, r->pool->small, 1);
    }
    b->state = BLOCK_LIVE;
    b->priority = 0;
    b->requested_bytes = r->requested_bytes;
    b->tag = *r->tag;
    if (p->listen)
        tell(p, MEM_EVENT_ALLOC, b, b->requested_bytes, &b->tag);
    core_count_live(p, b);
}

/* Coming back. */

void core_block_free(struct mem_pool *p, struct mem_block *b)
{
    bool small = b->set->pool->small, split_counts = !b->expandable, uncached = b->uncached;
    int64_t prev_bytes, next_bytes;
    if (p->listen)
        tell(p, MEM_EVENT_FREE_COMPLETED, b, b->requested_bytes, &b->tag);
    stat_down(p, STAT_requested_bytes, small, b->requested_bytes);
    b->state = BLOCK_FREE;
    b = block_join(p, b, &prev_bytes, &next_bytes);
    block_to_free(b);
    if (split_counts) {
        /* Net of the merges: PyTorch counts one change, not three. */
        bool part = block_is_split(b);
        stat_change(
            p, STAT_inactive_split, small, (int64_t)part - (prev_bytes != 0) - (next_bytes != 0));
        stat_change(
            p, STAT_inactive_split_bytes, small,
            (part ? b->size_bytes : 0) - prev_bytes - next_bytes);
    }
    if (uncached)
        segment_give(p, b);
}
