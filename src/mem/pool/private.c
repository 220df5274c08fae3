/* private.c - private pools: made, used, routed to, and given back when nobody uses them. */
#include "mem/pool/pool_int.h"

static bool same(struct mem_pool_id a, struct mem_pool_id b)
{
    return a.first == b.first && a.second == b.second;
}

static bool before(struct mem_pool_id a, struct mem_pool_id b)
{
    return a.first != b.first ? a.first < b.first : a.second < b.second;
}

/* Where `id` is or belongs. */
static size_t place(const struct mem_pool *p, struct mem_pool_id id)
{
    size_t i = 0;
    while (i < p->privates.n && before(p->privates.data[i]->id, id))
        i++;
    return i;
}

static struct private_pool *find(const struct mem_pool *p, struct mem_pool_id id)
{
    size_t i = place(p, id);
    return i < p->privates.n && same(p->privates.data[i]->id, id) ? p->privates.data[i] : NULL;
}

struct private_pool *
private_make(struct mem_pool *p, struct mem_pool_id id, const struct mem_pool_private *o)
{
    struct private_pool *made = mem_alloc(sizeof *made);
    size_t at = place(p, id);
    *made = (struct private_pool){.id = id, .small = {.small = true}};
    if (o)
        made->options = *o;
    made->small.owner = made->large.owner = made;
    vec_push(&p->privates, NULL);
    for (size_t i = p->privates.n - 1; i > at; i--)
        p->privates.data[i] = p->privates.data[i - 1];
    p->privates.data[at] = made;
    return made;
}

void mem_pool_private_begin(
    struct mem_pool *p, struct mem_pool_id id, const struct mem_pool_private *o)
{
    ASSERT(id.first || id.second);
    pthread_mutex_lock(&p->lock);
    struct private_pool *pool = find(p, id);
    if (!pool)
        pool = private_make(p, id, o);
    pool->uses++;
    pthread_mutex_unlock(&p->lock);
}

void mem_pool_private_end(struct mem_pool *p, struct mem_pool_id id)
{
    pthread_mutex_lock(&p->lock);
    struct private_pool *pool = find(p, id);
    ASSERT(pool && pool->uses > 0);
    pool->uses--;
    pthread_mutex_unlock(&p->lock);
}

int mem_pool_private_uses(struct mem_pool *p, struct mem_pool_id id)
{
    pthread_mutex_lock(&p->lock);
    struct private_pool *pool = find(p, id);
    int uses = pool ? pool->uses : 0;
    pthread_mutex_unlock(&p->lock);
    return uses;
}

/* A route keeps its pool. */
void mem_pool_route_begin(struct mem_pool *p, const struct mem_pool_route *r)
{
    pthread_mutex_lock(&p->lock);
    struct private_pool *pool = find(p, r->id);
    ASSERT(pool);
    pool->pins++;
    p->captures_n += r->capture;
    vec_push(&p->routes, *r);
    pthread_mutex_unlock(&p->lock);
}

void mem_pool_route_end(struct mem_pool *p, struct mem_pool_id id)
{
    pthread_mutex_lock(&p->lock);
    size_t i = p->routes.n;
    while (i && !same(p->routes.data[i - 1].id, id))
        i--;
    ASSERT(i);
    p->captures_n -= p->routes.data[i - 1].capture;
    find(p, id)->pins--;
    for (; i < p->routes.n; i++)
        p->routes.data[i - 1] = p->routes.data[i];
    p->routes.n--;
    pthread_mutex_unlock(&p->lock);
}

struct block_pool *private_route(struct mem_pool *p, bool small, uint64_t stream)
{
    for (size_t i = p->routes.n; i-- > 0;) {
        const struct mem_pool_route *r = &p->routes.data[i];
        if (r->match && !r->match(r->ctx, stream))
            continue;
        struct private_pool *pool = find(p, r->id);
        return small ? &pool->small : &pool->large;
    }
    return &p->pools[small];
}

struct mem_block *private_last_resort(struct request *r)
{
    struct mem_block *b = NULL;
    for (size_t i = 0; i < r->p->privates.n && !r->pool->owner; i++) {
        struct private_pool *pool = r->p->privates.data[i];
        if (!pool->options.use_on_oom)
            continue;
        struct request other = *r;
        other.pool = r->pool->small ? &pool->small : &pool->large;
        other.set = block_pool_set(other.pool, r->set->stream);
        b = core_find_free(&other);
        if (b)
            *r = other;
    }
    return b;
}

/* Nothing is mapped, so only address ranges are left. */
static void erase(struct mem_pool *p, size_t at)
{
    struct private_pool *pool = p->privates.data[at];
    for (size_t i = p->segments.n; i-- > 0;) {
        struct segment *s = p->segments.data[i];
        if (s->set->pool->owner != pool)
            continue;
        ASSERT(expand_reservation_empty(s));
        mem_source_release(s->source, s->addr, s->size_bytes);
        segment_remove(p, s);
    }
    block_pool_release(&pool->small);
    block_pool_release(&pool->large);
    mem_free(pool);
    p->privates.n--;
    for (size_t i = at; i < p->privates.n; i++)
        p->privates.data[i] = p->privates.data[i + 1];
}

void private_flush(struct mem_pool *p)
{
    for (size_t i = 0; i < p->privates.n;) {
        struct private_pool *pool = p->privates.data[i];
        bool unused = !pool->uses && !pool->pins;
        if (unused) {
            segment_release_pool(p, &pool->small);
            segment_release_pool(p, &pool->large);
        }
        if (unused && pool->reserved_bytes == 0)
            erase(p, i);
        else
            i++;
    }
}

struct mem_pool_id block_pool_id(const struct block_pool *pool)
{
    return pool->owner ? pool->owner->id : (struct mem_pool_id){0, 0};
}

int64_t private_free_bytes(const struct mem_pool *p)
{
    int64_t bytes = 0;
    for (size_t i = 0; i < p->segments.n; i++) {
        const struct segment *s = p->segments.data[i];
        for (const struct mem_block *b = s->set->pool->owner ? s->head : NULL; b; b = b->next)
            bytes += b->state == BLOCK_FREE ? b->size_bytes : 0;
    }
    return bytes;
}
