/* open.c - a pool's beginning, its configuration, and its end. */
#include "mem/pool/pool_int.h"

void pool_verify(struct mem_pool *p)
{
    if (SNUG_VERIFY)
        check_locked(p);
}

static void fraction_locked(struct mem_pool *p, double fraction)
{
    int64_t free_bytes;
    mem_source_info(p->source, &free_bytes, &p->total_bytes);
    p->conf.per_process_memory_fraction = fraction;
    p->allowed_bytes = 0;
    if (fraction < 1)
        p->allowed_bytes = (int64_t)(fraction * (double)p->total_bytes);
    /* 0 means no limit here; nothing is as little as a byte. */
    if (fraction < 1 && p->allowed_bytes < 1)
        p->allowed_bytes = 1;
}

static void conf_locked(struct mem_pool *p, const struct mem_pool_conf *c)
{
    p->conf = *c;
    p->rounding = false;
    for (int i = 0; i < MEM_POOL_DIVISIONS_N; i++)
        p->rounding = p->rounding || c->roundup_power2_divisions[i] > 1;
    fraction_locked(p, c->per_process_memory_fraction);
}

struct mem_pool *mem_pool_open(struct mem_source *source, const struct mem_pool_options *o)
{
    struct mem_pool *p = mem_alloc(sizeof *p);
    struct mem_pool_conf conf;
    mem_pool_conf_init(&conf);
    ASSERT(pthread_mutex_init(&p->lock, NULL) == 0);
    p->source = source;
    p->device_id = o->device_id;
    p->listen = o->listen;
    p->listen_ctx = o->listen_ctx;
    p->warn = o->warn;
    p->warn_ctx = o->warn_ctx;
    p->pools[KIND_SMALL].small = true;
    conf_locked(p, o->conf ? o->conf : &conf);
    return p;
}

struct mem_pool *mem_pool_new(struct mem_source *source)
{
    return mem_pool_open(source, &(struct mem_pool_options){0});
}

static void segment_end(struct mem_pool *p, struct segment *s)
{
    for (struct mem_block *b = s->head; b && s->expandable; b = b->next)
        if (b->state != BLOCK_UNMAPPED && (!b->prev || b->prev->state == BLOCK_UNMAPPED)) {
            /* One mapped range, up to the next gap. */
            const struct mem_block *last = b;
            while (last->next && last->next->state != BLOCK_UNMAPPED)
                last = last->next;
            uint64_t end = last->addr + (uint64_t)last->size_bytes;
            mem_source_unmap(s->source, b->addr, (int64_t)(end - b->addr));
        }
    if (s->expandable)
        mem_source_release(s->source, s->addr, s->size_bytes);
    else
        mem_source_segment_give(s->source, s->addr, s->size_bytes);
    segment_remove(p, s);
}

void mem_pool_free(struct mem_pool *p)
{
    if (!p)
        return;
    events_release(p);
    while (p->segments.n)
        segment_end(p, p->segments.data[p->segments.n - 1]);
    for (size_t i = 0; i < p->privates.n; i++) {
        block_pool_release(&p->privates.data[i]->small);
        block_pool_release(&p->privates.data[i]->large);
        mem_free(p->privates.data[i]);
    }
    block_pool_release(&p->pools[KIND_LARGE]);
    block_pool_release(&p->pools[KIND_SMALL]);
    for (size_t i = 0; i < p->slabs.n; i++)
        mem_free(p->slabs.data[i]);
    vec_release(&p->slabs);
    vec_release(&p->segments);
    vec_release(&p->privates);
    vec_release(&p->routes);
    vec_release(&p->pressure);
    ASSERT(pthread_mutex_destroy(&p->lock) == 0);
    mem_free(p);
}

void mem_pool_listen(
    struct mem_pool *p, void (*listen)(void *ctx, const struct mem_event *event), void *ctx)
{
    pthread_mutex_lock(&p->lock);
    p->listen = listen;
    p->listen_ctx = ctx;
    pthread_mutex_unlock(&p->lock);
}

void mem_pool_conf_get(struct mem_pool *p, struct mem_pool_conf *out)
{
    pthread_mutex_lock(&p->lock);
    *out = p->conf;
    pthread_mutex_unlock(&p->lock);
}

void mem_pool_conf_set(struct mem_pool *p, const struct mem_pool_conf *c)
{
    pthread_mutex_lock(&p->lock);
    conf_locked(p, c);
    pthread_mutex_unlock(&p->lock);
}

void mem_pool_fraction_set(struct mem_pool *p, double fraction)
{
    pthread_mutex_lock(&p->lock);
    fraction_locked(p, fraction);
    pthread_mutex_unlock(&p->lock);
}

void mem_pool_on_pressure(struct mem_pool *p, bool (*free_some)(void *ctx), void *ctx)
{
    pthread_mutex_lock(&p->lock);
    vec_push(&p->pressure, ((struct pressure){free_some, ctx}));
    pthread_mutex_unlock(&p->lock);
}
