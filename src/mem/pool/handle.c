/* handle.c - what a block says of itself, and the block at an address. */
#include "mem/pool/pool_int.h"

/* A live block does not change, except by who owns it. */

uint64_t mem_block_addr(const struct mem_block *b)
{
    return b ? b->addr : 0;
}

void *mem_block_data(const struct mem_block *b)
{
    return b ? (void *)(uintptr_t)b->addr : NULL;
}

int64_t mem_block_bytes(const struct mem_block *b)
{
    return b ? b->size_bytes : 0;
}

int64_t mem_block_requested_bytes(const struct mem_block *b)
{
    return b ? b->requested_bytes : 0;
}

uint64_t mem_block_stream(const struct mem_block *b)
{
    return b ? b->set->stream : 0;
}

const struct mem_tag *mem_block_tag(const struct mem_block *b)
{
    static const struct mem_tag none;
    return b ? &b->tag : &none;
}

struct mem_block *mem_pool_find(struct mem_pool *p, uint64_t addr)
{
    struct mem_block *found = NULL;
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->segments.n && !found; i++) {
        const struct segment *s = p->segments.data[i];
        if (addr < s->addr || addr - s->addr >= (uint64_t)s->size_bytes)
            continue;
        for (struct mem_block *b = s->head; b && b->addr <= addr; b = b->next)
            if (b->addr == addr && b->state == BLOCK_LIVE)
                found = b;
    }
    pthread_mutex_unlock(&p->lock);
    return found;
}
