/* block.c - block structs: from slabs, cut in two, joined with their neighbours. */
#include "mem/pool/pool_int.h"

enum { SLAB_N = 256, LINE_BYTES = 64 };

/* Structs of one slab lie on cache lines, in the order in which blocks are cut from a segment. */
static void slab_add(struct mem_pool *p)
{
    void *slab = mem_alloc(SLAB_N * sizeof(struct mem_block) + LINE_BYTES);
    vec_push(&p->slabs, slab);
    uintptr_t first = ((uintptr_t)slab + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    struct mem_block *blocks = (struct mem_block *)first;
    for (size_t i = SLAB_N; i-- > 0;) {
        blocks[i].next = p->spare;
        p->spare = &blocks[i];
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
        b->uses_n = 0;
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
