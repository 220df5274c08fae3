/* find.c - the search for a cached block: best fit on the request's own stream. */
#include "mem/pool/pool_int.h"

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

struct mem_block *pool_find_free(struct request *r)
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
