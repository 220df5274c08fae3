/* events.c - blocks that work on other streams still uses: pending until its events are done.
 *
 * A pending block is neither live nor free. Queues are asked only when a request begins (and waited
 * for in flushes), so it becomes free when a later request looks. During a capture events may not
 * be asked: what is freed then is kept aside until no capture is under way.
 */
#include "mem/pool/pool_int.h"

#include <string.h>

/* The queue of a stream, made when it is new. */
static struct stream_queue *queue_of(struct mem_pool *p, uint64_t stream)
{
    size_t i = 0;
    while (i < p->queues.n && p->queues.data[i].stream < stream)
        i++;
    if (i < p->queues.n && p->queues.data[i].stream == stream)
        return &p->queues.data[i];
    vec_push(&p->queues, (struct stream_queue){0});
    memmove(
        &p->queues.data[i + 1], &p->queues.data[i],
        (p->queues.n - 1 - i) * sizeof(struct stream_queue));
    p->queues.data[i] = (struct stream_queue){.stream = stream};
    return &p->queues.data[i];
}

/* One event on each stream that uses the block; they are its uses no longer. */
static void record(struct mem_pool *p, struct mem_block *b)
{
    for (size_t i = 0; i < b->priority; i++) {
        struct mem_source *s = p->source;
        struct stream_queue *q = queue_of(p, b->uses[i]);
        uint64_t event = s->event_record ? s->event_record(s, b->uses[i]) : 0;
        vec_push(&q->events, ((struct stream_event){event, b}));
        p->events_n++;
    }
    mem_free(b->uses);
    b->uses = NULL;
}

void events_add(struct mem_pool *p, struct mem_block *b)
{
    bool small = b->set->pool->small;
    b->state = BLOCK_PENDING;
    p->pending_n[small]++;
    p->pending_bytes[small] += b->size_bytes;
    if (p->captures_n)
        vec_push(&p->deferred, b);
    else
        record(p, b);
}

static void record_deferred(struct mem_pool *p)
{
    for (size_t i = 0; i < p->deferred.n; i++)
        record(p, p->deferred.data[i]);
    p->deferred.n = 0;
}

/* Takes the oldest event, which is done, out of the queue. */
static void finish_first(struct mem_pool *p, struct stream_queue *q)
{
    struct mem_block *b = q->events.data[q->first++].block;
    if (q->first == q->events.n)
        q->first = q->events.n = 0;
    p->events_n--;
    if (--b->priority)
        return;
    p->pending_n[b->set->pool->small]--;
    p->pending_bytes[b->set->pool->small] -= b->size_bytes;
    core_block_free(p, b);
}

/* A long queue does not keep what it has finished. */
static void compact(struct stream_queue *q)
{
    size_t left = q->events.n - q->first;
    if (q->first < 64 || q->first < left)
        return;
    memmove(q->events.data, q->events.data + q->first, left * sizeof *q->events.data);
    q->first = 0;
    q->events.n = left;
}

void events_process(struct mem_pool *p)
{
    struct mem_source *s = p->source;
    record_deferred(p);
    for (size_t i = 0; i < p->queues.n; i++) {
        struct stream_queue *q = &p->queues.data[i];
        while (q->first < q->events.n &&
               (!s->event_done || s->event_done(s, q->events.data[q->first].event)))
            finish_first(p, q);
        compact(q);
    }
}

void events_wait_all(struct mem_pool *p)
{
    struct mem_source *s = p->source;
    p->num_sync_all_streams++;
    record_deferred(p);
    for (size_t i = 0; i < p->queues.n; i++) {
        struct stream_queue *q = &p->queues.data[i];
        while (q->first < q->events.n) {
            if (s->event_wait)
                s->event_wait(s, q->events.data[q->first].event);
            finish_first(p, q);
        }
    }
}

void events_release(struct mem_pool *p)
{
    for (size_t i = 0; i < p->queues.n; i++) {
        struct stream_queue *q = &p->queues.data[i];
        while (p->source->event_wait && q->first < q->events.n)
            p->source->event_wait(p->source, q->events.data[q->first++].event);
        vec_release(&q->events);
    }
    vec_release(&p->queues);
    vec_release(&p->deferred);
}

static void use_locked(struct mem_block *b, uint64_t stream)
{
    size_t i = 0;
    ASSERT(b->state == BLOCK_LIVE);
    if (b->set->stream == stream)
        return;
    while (i < b->priority && b->uses[i] < stream)
        i++;
    if (i < b->priority && b->uses[i] == stream)
        return;
    b->uses = mem_resize(b->uses, (b->priority + 1) * sizeof *b->uses);
    memmove(b->uses + i + 1, b->uses + i, (b->priority - i) * sizeof *b->uses);
    b->uses[i] = stream;
    b->priority++;
}

void mem_pool_use_on(struct mem_pool *p, struct mem_block *b, uint64_t stream)
{
    if (!b)
        return;
    pthread_mutex_lock(&p->lock);
    use_locked(b, stream);
    pthread_mutex_unlock(&p->lock);
}
