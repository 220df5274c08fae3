/* virtual.c - a device that is only numbers. */
#include "mem/virtual.h"

#include "base/mem.h"
#include "base/rng.h"

#include <pthread.h>

#define STEP_BYTES ((int64_t)2 << 20)
#define FIRST_ADDR ((uint64_t)1 << 40) /* ascending from here */
#define LAST_ADDR ((uint64_t)1 << 62)  /* descending from here */
#define SLOT_BYTES ((int64_t)1 << 36)  /* random: one segment each */
#define SLOT_BITS 24
#define TOTAL_BYTES ((int64_t)1 << 44) /* of a device without a capacity */

struct stream_clock {
    uint64_t stream;
    uint64_t done; /* events up to this number are done */
};

struct mem_virtual {
    struct mem_source source;
    struct mem_virtual_options o;
    pthread_mutex_t lock;
    uint64_t low, high; /* next ascending, last descending */
    uint64_t slot;
    int64_t fail_in; /* calls until one is refused; 0: none */
    VEC(struct stream_clock) clocks;
    VEC(uint64_t) event_stream; /* of event i + 1 */
    struct mem_virtual_calls calls;
};

static struct mem_virtual *of(struct mem_source *s)
{
    return s->ctx;
}

static int64_t round_up(int64_t n)
{
    return (n + STEP_BYTES - 1) / STEP_BYTES * STEP_BYTES;
}

/* A permutation of the slots: four rounds of a Feistel network keyed by the seed. */
static uint64_t shuffled(uint64_t i, uint64_t seed)
{
    uint64_t half = SLOT_BITS / 2, mask = ((uint64_t)1 << half) - 1;
    uint64_t left = i >> half, right = i & mask;
    for (uint64_t round = 0; round < 4; round++) {
        uint64_t key[2] = {right, round};
        uint64_t next = left ^ (hash_bytes(key, sizeof key, seed) & mask);
        left = right;
        right = next;
    }
    return left << half | right;
}

/* Ranges never overlap; 0 when the address space is used up. */
static uint64_t place(struct mem_virtual *v, int64_t size_bytes)
{
    uint64_t size = (uint64_t)round_up(size_bytes);
    if (size > LAST_ADDR / 2 || v->low + size > v->high)
        return 0;
    bool slot = v->o.order == MEM_VIRTUAL_RANDOM && size_bytes <= SLOT_BYTES &&
                v->slot < (uint64_t)1 << SLOT_BITS;
    if (slot)
        return LAST_ADDR + shuffled(v->slot++, v->o.seed) * (uint64_t)SLOT_BYTES;
    if (v->o.order == MEM_VIRTUAL_DESCENDING)
        return v->high -= size;
    uint64_t addr = v->low;
    v->low += size;
    return addr;
}

static bool fails(struct mem_virtual *v)
{
    return v->fail_in > 0 && --v->fail_in == 0;
}

static uint64_t address(struct mem_virtual *v, int64_t size_bytes, bool reservation)
{
    if (fails(v))
        return 0;
    if (v->o.order == MEM_VIRTUAL_GIVEN)
        return v->o.next(v->o.ctx, size_bytes, reservation);
    return place(v, size_bytes);
}

static uint64_t virtual_take(struct mem_source *s, int64_t size_bytes)
{
    struct mem_virtual *v = of(s);
    pthread_mutex_lock(&v->lock);
    v->calls.take_n++;
    uint64_t addr = address(v, size_bytes, false);
    pthread_mutex_unlock(&v->lock);
    return addr;
}

static uint64_t virtual_reserve(struct mem_source *s, int64_t size_bytes)
{
    struct mem_virtual *v = of(s);
    pthread_mutex_lock(&v->lock);
    v->calls.reserve_n++;
    uint64_t addr = address(v, size_bytes, true);
    v->calls.ranges_n += addr != 0;
    pthread_mutex_unlock(&v->lock);
    return addr;
}

static bool virtual_map(struct mem_source *s, uint64_t addr, int64_t size_bytes)
{
    struct mem_virtual *v = of(s);
    (void)addr;
    (void)size_bytes;
    pthread_mutex_lock(&v->lock);
    v->calls.map_n++;
    bool ok = !fails(v);
    pthread_mutex_unlock(&v->lock);
    return ok;
}

static void count(struct mem_virtual *v, int64_t *calls_n)
{
    pthread_mutex_lock(&v->lock);
    ++*calls_n;
    pthread_mutex_unlock(&v->lock);
}

static void virtual_give(struct mem_source *s, uint64_t addr, int64_t size_bytes)
{
    (void)addr;
    (void)size_bytes;
    count(of(s), &of(s)->calls.give_n);
}

static void virtual_release(struct mem_source *s, uint64_t addr, int64_t size_bytes)
{
    struct mem_virtual *v = of(s);
    (void)addr;
    (void)size_bytes;
    pthread_mutex_lock(&v->lock);
    v->calls.release_n++;
    v->calls.ranges_n--;
    pthread_mutex_unlock(&v->lock);
}

static void virtual_unmap(struct mem_source *s, uint64_t addr, int64_t size_bytes)
{
    (void)addr;
    (void)size_bytes;
    count(of(s), &of(s)->calls.unmap_n);
}

static void virtual_info(struct mem_source *s, int64_t *free_bytes, int64_t *total_bytes)
{
    *total_bytes = s->budget_bytes ? s->budget_bytes : TOTAL_BYTES;
    *free_bytes = *total_bytes > s->held_bytes ? *total_bytes - s->held_bytes : 0;
}

/* Events. */

static uint64_t virtual_record(struct mem_source *s, uint64_t stream)
{
    struct mem_virtual *v = of(s);
    pthread_mutex_lock(&v->lock);
    v->calls.event_record_n++;
    vec_push(&v->event_stream, stream);
    uint64_t event = v->event_stream.n;
    pthread_mutex_unlock(&v->lock);
    return event;
}

static struct stream_clock *clock_of(struct mem_virtual *v, uint64_t stream)
{
    for (size_t i = 0; i < v->clocks.n; i++)
        if (v->clocks.data[i].stream == stream)
            return &v->clocks.data[i];
    vec_push(&v->clocks, (struct stream_clock){.stream = stream});
    return &v->clocks.data[v->clocks.n - 1];
}

static bool virtual_done(struct mem_source *s, uint64_t event)
{
    struct mem_virtual *v = of(s);
    pthread_mutex_lock(&v->lock);
    ASSERT(event && event <= v->event_stream.n);
    bool done = event <= clock_of(v, v->event_stream.data[event - 1])->done;
    pthread_mutex_unlock(&v->lock);
    return done;
}

/* Waiting for an event means that all work before it on the stream is done too. */
static void virtual_wait(struct mem_source *s, uint64_t event)
{
    struct mem_virtual *v = of(s);
    pthread_mutex_lock(&v->lock);
    v->calls.event_wait_n++;
    struct stream_clock *c = clock_of(v, v->event_stream.data[event - 1]);
    c->done = c->done < event ? event : c->done;
    pthread_mutex_unlock(&v->lock);
}

void mem_virtual_complete(struct mem_virtual *v, uint64_t stream)
{
    pthread_mutex_lock(&v->lock);
    clock_of(v, stream)->done = v->event_stream.n;
    pthread_mutex_unlock(&v->lock);
}

void mem_virtual_complete_all(struct mem_virtual *v)
{
    pthread_mutex_lock(&v->lock);
    for (size_t i = 0; i < v->event_stream.n; i++)
        clock_of(v, v->event_stream.data[i])->done = v->event_stream.n;
    pthread_mutex_unlock(&v->lock);
}

/* The device. */

struct mem_virtual *mem_virtual_new(const struct mem_virtual_options *o)
{
    struct mem_virtual *v = mem_alloc(sizeof *v);
    if (o)
        v->o = *o;
    ASSERT(pthread_mutex_init(&v->lock, NULL) == 0);
    v->low = FIRST_ADDR;
    v->high = LAST_ADDR;
    v->source = (struct mem_source){
        .take = virtual_take,
        .give = virtual_give,
        .info = virtual_info,
        .ctx = v,
        .device = "virtual",
        .budget_bytes = v->o.capacity_bytes};
    if (!v->o.no_expandable) {
        v->source.reserve = virtual_reserve;
        v->source.release = virtual_release;
        v->source.map = virtual_map;
        v->source.unmap = virtual_unmap;
    }
    if (v->o.manual_events) {
        v->source.event_record = virtual_record;
        v->source.event_done = virtual_done;
        v->source.event_wait = virtual_wait;
    }
    return v;
}

void mem_virtual_free(struct mem_virtual *v)
{
    if (!v)
        return;
    vec_release(&v->clocks);
    vec_release(&v->event_stream);
    ASSERT(pthread_mutex_destroy(&v->lock) == 0);
    mem_free(v);
}

struct mem_source *mem_virtual_source(struct mem_virtual *v)
{
    return &v->source;
}

void mem_virtual_fail_nth(struct mem_virtual *v, int64_t n)
{
    pthread_mutex_lock(&v->lock);
    v->fail_in = n;
    pthread_mutex_unlock(&v->lock);
}

struct mem_virtual_calls mem_virtual_calls(struct mem_virtual *v)
{
    pthread_mutex_lock(&v->lock);
    struct mem_virtual_calls calls = v->calls;
    pthread_mutex_unlock(&v->lock);
    return calls;
}
