/* model.c - for tests: the caching allocator by walking arrays. See model.h. */
#include "mem/pool/model.h"

#include "base/err.h"
#include "base/mem.h"

#include <string.h>

#define MIB ((int64_t)1 << 20)
#define LEAST ((int64_t)512)
#define EIB ((int64_t)1 << 60)

uint64_t pool_model_address(int64_t n)
{
    /* Neither ascending nor descending: the numbers 0..7, 8..15, .. each in another order. */
    static const uint64_t order[8] = {3, 6, 1, 4, 7, 0, 5, 2};
    uint64_t slot = ((uint64_t)n & ~(uint64_t)7) + order[n & 7];
    return ((uint64_t)1 << 44) + (slot << 40);
}

struct pool_model *pool_model_new(const struct model_config *config)
{
    struct pool_model *m = mem_alloc(sizeof *m);
    m->config = *config;
    for (int p = 1; p < MODEL_POOLS; p++)
        m->uses[p] = -1;
    return m;
}

void pool_model_free(struct pool_model *m)
{
    mem_free(m->segment);
    mem_free(m);
}

/* ---- statistics ---- */

static void up(struct pool_model *m, enum model_family family, bool small, int64_t n)
{
    for (int k = 0; k < MODEL_KINDS; k++) {
        if (k == (small ? MODEL_LARGE : MODEL_SMALL))
            continue;
        struct model_stat *s = &m->stats.of[family][k];
        s->current += n;
        s->allocated += n;
        s->peak = s->current > s->peak ? s->current : s->peak;
    }
}

static void down(struct pool_model *m, enum model_family family, bool small, int64_t n)
{
    for (int k = 0; k < MODEL_KINDS; k++) {
        if (k == (small ? MODEL_LARGE : MODEL_SMALL))
            continue;
        m->stats.of[family][k].current -= n;
        m->stats.of[family][k].freed += n;
    }
}

static void change(struct pool_model *m, enum model_family family, bool small, int64_t n)
{
    if (n > 0)
        up(m, family, small, n);
    if (n < 0)
        down(m, family, small, -n);
}

/* Oversize statistics exist once, not by pool. */
static void oversize(struct pool_model *m, enum model_family family, int64_t size, int64_t n)
{
    if (size < m->config.max_split_bytes)
        return;
    struct model_stat *s = &m->stats.of[family][MODEL_ALL];
    s->current += n;
    s->peak = s->current > s->peak ? s->current : s->peak;
    *(n > 0 ? &s->allocated : &s->freed) += 1;
}

static int64_t reserved(const struct pool_model *m)
{
    return m->stats.of[MODEL_RESERVED_BYTES][MODEL_ALL].current;
}

/* ---- sizes ---- */

static int64_t up_to(int64_t n, int64_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

static int64_t divisions_for(const struct model_config *c, int64_t size)
{
    int entry = 0; /* 0 below 2 MiB, 1 below 4 MiB, ... */
    while (entry < 15 && size >= (2 * MIB) << entry)
        entry++;
    return c->divisions[entry];
}

static int64_t rounded_request(const struct model_config *c, int64_t size)
{
    if (size < LEAST)
        return LEAST;
    if (c->no_caching)
        return up_to(size, LEAST);
    int64_t d = divisions_for(c, size);
    if (d <= 1 || size <= LEAST * d)
        return up_to(size, LEAST);
    int64_t p = 1;
    while (2 * p <= size)
        p *= 2;
    if (p == size)
        return size;
    int64_t step = p / d;
    return step == 0 ? 2 * p : up_to(size, step);
}

static int64_t segment_size(const struct model_config *c, int64_t rounded)
{
    if (rounded <= MIB)
        return 2 * MIB;
    return rounded < 10 * MIB ? c->large_segment_bytes : up_to(rounded, 2 * MIB);
}

/* ---- the array of blocks ---- */

static const struct model_segment *of(const struct pool_model *m, int i)
{
    return &m->segment[m->block[i].segment];
}

static int at(const struct pool_model *m, uint64_t address)
{
    for (int i = 0; i < m->blocks_n; i++)
        if (m->block[i].address == address)
            return i;
    return -1;
}

/* The block before or after i in its segment, or -1. */
static int before(const struct pool_model *m, int i)
{
    return i > 0 && m->block[i - 1].segment == m->block[i].segment ? i - 1 : -1;
}

static int after(const struct pool_model *m, int i)
{
    return i + 1 < m->blocks_n && m->block[i + 1].segment == m->block[i].segment ? i + 1 : -1;
}

static bool is_part(const struct pool_model *m, int i)
{
    return before(m, i) >= 0 || after(m, i) >= 0;
}

static int put(struct pool_model *m, struct model_block b)
{
    int i = m->blocks_n;
    ASSERT(m->blocks_n < MODEL_BLOCKS);
    while (i > 0 && m->block[i - 1].address > b.address)
        i--;
    memmove(&m->block[i + 1], &m->block[i], sizeof b * (size_t)(m->blocks_n - i));
    m->block[i] = b;
    m->blocks_n++;
    return i;
}

static void drop(struct pool_model *m, int i)
{
    m->blocks_n--;
    memmove(&m->block[i], &m->block[i + 1], sizeof *m->block * (size_t)(m->blocks_n - i));
}

/* Cuts block i in two; the second part is like the first. */
static void cut(struct pool_model *m, int i, int64_t size)
{
    struct model_block tail = m->block[i];
    if (size == 0 || size == tail.size_bytes)
        return;
    tail.address += (uint64_t)size;
    tail.size_bytes -= size;
    m->block[i].size_bytes = size;
    (void)put(m, tail);
}

static int64_t *searches_of(struct pool_model *m, int i)
{
    return &m->searches[of(m, i)->pool][of(m, i)->small];
}

static bool same_kind(const struct pool_model *m, int i, int j)
{
    return j >= 0 && m->block[i].state == m->block[j].state;
}

/* Joins i, free or unmapped, with neighbours of its state; where it lies then. `joined` and
 * `joined_bytes` (may be NULL) count what was swallowed. */
static int join(struct pool_model *m, int i, int *joined, int64_t *joined_bytes)
{
    int counted = 0;
    int64_t bytes = 0;
    if (same_kind(m, i, after(m, i))) {
        bytes += m->block[i + 1].size_bytes;
        m->block[i].size_bytes += m->block[i + 1].size_bytes;
        drop(m, i + 1);
        counted++;
    }
    if (same_kind(m, i, before(m, i))) {
        i--;
        bytes += m->block[i].size_bytes;
        m->block[i].size_bytes += m->block[i + 1].size_bytes;
        drop(m, i + 1);
        counted++;
    }
    m->block[i].born = *searches_of(m, i);
    if (joined)
        *joined = counted, *joined_bytes = bytes;
    return i;
}

/* ---- freeing, streams and events ---- */

static void release(struct pool_model *m, int i);

static void complete_free(struct pool_model *m, int i)
{
    int joined;
    int64_t joined_bytes, size = m->block[i].size_bytes, asked = m->block[i].requested_bytes;
    bool small = of(m, i)->small;
    m->block[i].state = MODEL_FREE;
    i = join(m, i, &joined, &joined_bytes);
    if (!of(m, i)->expandable) {
        change(m, MODEL_INACTIVE_SPLIT, small, (is_part(m, i) ? 1 : 0) - joined);
        change(
            m, MODEL_INACTIVE_SPLIT_BYTES, small,
            (is_part(m, i) ? m->block[i].size_bytes : 0) - joined_bytes);
    }
    down(m, MODEL_ACTIVE, small, 1);
    down(m, MODEL_ACTIVE_BYTES, small, size);
    down(m, MODEL_REQUESTED_BYTES, small, asked);
    if (m->config.no_caching)
        release(m, i);
}

/* One event on every stream that used the block. */
static void record_events(struct pool_model *m, int i)
{
    struct model_block *b = &m->block[i];
    for (int s = 0; s < MODEL_STREAMS; s++) {
        if (!(b->uses >> s & 1))
            continue;
        ASSERT(m->events_n[s] < MODEL_EVENTS);
        m->event[s][m->events_n[s]++] = (struct model_event){b->address, ++m->recorded[s]};
        b->events++;
    }
    b->uses = 0;
}

static void record_deferred(struct pool_model *m)
{
    for (int k = 0; k < m->deferred_n; k++)
        record_events(m, at(m, m->deferred[k]));
    m->deferred_n = 0;
}

/* Each stream's events in their order, up to the first that is not complete (or all). */
static void process_events(struct pool_model *m, bool wait)
{
    record_deferred(m);
    for (int s = 0; s < MODEL_STREAMS; s++) {
        int done = 0;
        for (; done < m->events_n[s]; done++) {
            struct model_event *v = &m->event[s][done];
            if (!wait && v->number > m->complete[s])
                break;
            int i = at(m, v->address);
            if (--m->block[i].events == 0)
                complete_free(m, i);
        }
        m->events_n[s] -= done;
        memmove(m->event[s], m->event[s] + done, sizeof **m->event * (size_t)m->events_n[s]);
        if (wait)
            m->complete[s] = m->recorded[s];
    }
    if (wait)
        m->stats.syncs++;
}

void pool_model_give(struct pool_model *m, uint64_t address)
{
    if (address == 0)
        return;
    int i = at(m, address);
    bool small = of(m, i)->small;
    m->block[i].state = MODEL_PENDING;
    down(m, MODEL_ALLOCATION, small, 1);
    down(m, MODEL_ALLOCATED_BYTES, small, m->block[i].size_bytes);
    oversize(m, MODEL_OVERSIZE_ALLOCATIONS, m->block[i].size_bytes, -1);
    if (!m->block[i].uses)
        complete_free(m, i);
    else if (pool_model_capturing(m))
        m->deferred[m->deferred_n++] = address;
    else
        record_events(m, i);
}

void pool_model_record_stream(struct pool_model *m, uint64_t address, int stream)
{
    int i = at(m, address);
    if (of(m, i)->stream != stream)
        m->block[i].uses |= 1u << stream;
}

/* ---- the device ---- */

static bool device_take(struct pool_model *m, int64_t size)
{
    if (size > m->config.capacity_bytes - m->device_bytes)
        return false;
    m->device_bytes += size;
    return true;
}

static int new_segment(struct pool_model *m, struct model_segment s)
{
    if (m->segments_n == m->segments_cap) {
        m->segments_cap = m->segments_cap ? 2 * m->segments_cap : 64;
        m->segment = mem_resize(m->segment, sizeof s * (size_t)m->segments_cap);
    }
    s.address = pool_model_address(m->handed_out++);
    m->segment[m->segments_n] = s;
    return m->segments_n++;
}

/* Gives a whole free segment back. */
static void release(struct pool_model *m, int i)
{
    struct model_segment *s = &m->segment[m->block[i].segment];
    down(m, MODEL_SEGMENT, s->small, 1);
    down(m, MODEL_RESERVED_BYTES, s->small, s->size_bytes);
    oversize(m, MODEL_OVERSIZE_SEGMENTS, s->size_bytes, -1);
    m->stats.device_frees++;
    m->device_bytes -= s->size_bytes;
    s->gone = true;
    drop(m, i);
}

/* ---- one allocation ---- */

struct want {
    int64_t size; /* rounded */
    int stream, pool;
    bool small;
};

static bool serves(const struct pool_model *m, int i, const struct want *w)
{
    const struct model_segment *s = of(m, i);
    return s->stream == w->stream && s->pool == w->pool && s->small == w->small;
}

/* What a free block can grow to. */
static int64_t reach(const struct pool_model *m, int i)
{
    int next = after(m, i);
    bool grows = next >= 0 && m->block[next].state == MODEL_UNMAPPED;
    return m->block[i].size_bytes + (grows ? m->block[next].size_bytes : 0);
}

/* The free block of w's kind that comes first by (size, address) among those at or after the given
 * place in that order; -1. */
static int first_from(const struct pool_model *m, const struct want *w, int64_t size, uint64_t from)
{
    int best = -1;
    for (int i = 0; i < m->blocks_n; i++) {
        const struct model_block *b = &m->block[i];
        if (b->state != MODEL_FREE || !serves(m, i, w))
            continue;
        if (of(m, i)->expandable && !m->config.expandable) /* they were switched off */
            continue;
        if (b->size_bytes < size || (b->size_bytes == size && b->address < from))
            continue;
        /* Addresses ascend: of equal ones the first stays. */
        if (best < 0 || b->size_bytes < m->block[best].size_bytes)
            best = i;
    }
    return best;
}

static int search(struct pool_model *m, const struct want *w)
{
    const struct model_config *c = &m->config;
    if (c->fraction < 1 && c->gc_threshold > 0)
        m->searches[w->pool][w->small]++;
    int found = first_from(m, w, w->size, 0);
    if (found < 0)
        return -1;
    while (of(m, found)->expandable) {
        int next = first_from(m, w, m->block[found].size_bytes, m->block[found].address + 1);
        if (next < 0 || reach(m, next) >= reach(m, found))
            break;
        found = next;
    }
    int64_t size = m->block[found].size_bytes;
    if (w->size < c->max_split_bytes && size >= c->max_split_bytes)
        return -1;
    if (w->size >= c->max_split_bytes && size >= w->size + c->rounding_bytes)
        return -1;
    return found;
}

static int64_t limit_of(const struct pool_model *m)
{
    if (m->config.fraction >= 1)
        return INT64_MAX;
    return (int64_t)(m->config.fraction * (double)m->config.capacity_bytes);
}

/* Frees whole cached segments of the default large pool, the oldest half by age. */
static void collect_garbage(struct pool_model *m)
{
    const struct model_config *c = &m->config;
    if (c->fraction >= 1 || c->gc_threshold <= 0)
        return;
    int64_t keep = (int64_t)(c->gc_threshold * (double)limit_of(m)), freed = 0;
    int64_t target = reserved(m) - keep;
    for (bool any = true; any && freed < target;) {
        int64_t ages = 0, n = 0, now = m->searches[0][0];
        for (int i = 0; i < m->blocks_n; i++) {
            const struct model_segment *s = of(m, i);
            if (m->block[i].state == MODEL_FREE && s->pool == 0 && !s->small && !s->expandable &&
                !is_part(m, i))
                ages += now - m->block[i].born, n++;
        }
        any = false;
        for (int i = m->blocks_n - 1; i >= 0; i--) {
            const struct model_segment *s = of(m, i);
            if (m->block[i].state != MODEL_FREE || s->pool != 0 || s->small || s->expandable ||
                is_part(m, i))
                continue;
            if ((double)(now - m->block[i].born) < (double)ages / (double)n)
                continue;
            freed += m->block[i].size_bytes;
            release(m, i);
            any = true;
        }
    }
}

/* Maps at least `size` bytes at the start of the unmapped block i; -1 when the device is full,
 * else where the mapped bytes lie now. */
static int map(struct pool_model *m, int i, int64_t size)
{
    const struct model_segment s = *of(m, i);
    int64_t page = s.small ? 2 * MIB : m->config.large_segment_bytes;
    int64_t bytes = up_to(size, page);
    if (!device_take(m, bytes))
        return -1;
    cut(m, i, bytes);
    m->block[i].state = MODEL_FREE;
    m->block[i].requested_bytes = 0;
    up(m, MODEL_RESERVED_BYTES, s.small, bytes);
    m->stats.device_allocs++;
    return join(m, i, NULL, NULL);
}

/* Free and unmapped bytes from block i on, without a gap. */
static int64_t room_from(const struct pool_model *m, int i)
{
    int64_t bytes = 0;
    for (; i >= 0; i = after(m, i)) {
        if (m->block[i].state != MODEL_FREE && m->block[i].state != MODEL_UNMAPPED)
            break;
        bytes += m->block[i].size_bytes;
    }
    return bytes;
}

static int place_in_reservation(struct pool_model *m, const struct want *w)
{
    for (int i = 0; i < m->blocks_n; i++) {
        if (m->block[i].state != MODEL_UNMAPPED || !serves(m, i, w))
            continue;
        int prev = before(m, i), from = prev >= 0 && m->block[prev].state == MODEL_FREE ? prev : i;
        if (room_from(m, from) >= w->size)
            return from;
    }
    int64_t page = w->small ? 2 * MIB : m->config.large_segment_bytes;
    int64_t total = m->config.capacity_bytes;
    struct model_segment s = {
        .size_bytes = up_to(total + total / 8, page),
        .stream = w->stream,
        .pool = w->pool,
        .small = w->small,
        .expandable = true,
    };
    int segment = new_segment(m, s);
    struct model_block b = {
        .address = m->segment[segment].address,
        .size_bytes = s.size_bytes,
        .state = MODEL_UNMAPPED,
        .segment = segment,
    };
    return put(m, b);
}

static int grow(struct pool_model *m, const struct want *w)
{
    int i = place_in_reservation(m, w);
    if (m->block[i].state == MODEL_UNMAPPED) {
        int64_t size = m->block[i].size_bytes;
        i = map(m, i, w->size < size ? w->size : size);
    }
    while (i >= 0 && m->block[i].size_bytes < w->size) {
        int64_t missing = w->size - m->block[i].size_bytes, size = m->block[i + 1].size_bytes;
        i = map(m, i + 1, missing < size ? missing : size);
    }
    return i;
}

/* A new segment, or more of an expandable one; the free block that serves, or -1. */
static int from_device(struct pool_model *m, const struct want *w)
{
    /* Without a cache a request is a segment. */
    int64_t size = m->config.no_caching ? w->size : segment_size(&m->config, w->size);
    if (reserved(m) > limit_of(m) - size)
        return -1;
    if (m->config.expandable && !m->config.no_caching)
        return grow(m, w);
    if (!device_take(m, size))
        return -1;
    struct model_segment s = {
        .size_bytes = size, .stream = w->stream, .pool = w->pool, .small = w->small};
    int segment = new_segment(m, s);
    struct model_block b = {
        .address = m->segment[segment].address, .size_bytes = size, .segment = segment};
    up(m, MODEL_SEGMENT, w->small, 1);
    up(m, MODEL_RESERVED_BYTES, w->small, size);
    oversize(m, MODEL_OVERSIZE_SEGMENTS, size, 1);
    m->stats.device_allocs++;
    return put(m, b);
}

/* With max_split_size: one cached block that is large enough goes back, or several oversize ones.
 * False when that is not enough. */
static bool release_oversize(struct pool_model *m, const struct want *w)
{
    int64_t most = m->config.max_split_bytes, sum = 0;
    if (most == MODEL_UNLIMITED)
        return false;
    int64_t key = w->size > most ? w->size : most;
    int found = first_from(m, w, key, 0);
    if (found >= 0 && !of(m, found)->expandable) {
        release(m, found);
        return true;
    }
    while (sum < key) {
        int largest = -1;
        for (int i = 0; i < m->blocks_n; i++) {
            const struct model_block *b = &m->block[i];
            if (b->state == MODEL_FREE && serves(m, i, w) && !of(m, i)->expandable &&
                b->size_bytes >= most &&
                (largest < 0 || b->size_bytes >= m->block[largest].size_bytes))
                largest = i;
        }
        if (largest < 0)
            return false;
        sum += m->block[largest].size_bytes;
        release(m, largest);
    }
    return true;
}

/* Gives the whole pages inside the free block i of a reservation back. */
static void unmap(struct pool_model *m, int i)
{
    struct model_segment *s = &m->segment[m->block[i].segment];
    int64_t page = s->small ? 2 * MIB : m->config.large_segment_bytes;
    int64_t begin = (int64_t)(m->block[i].address - s->address);
    int64_t end = begin + m->block[i].size_bytes;
    int64_t first = up_to(begin, page), last = end / page * page;
    if (first >= last)
        return;
    cut(m, i, first - begin);
    i += first > begin;
    cut(m, i, last - first);
    if (first > begin)
        m->block[i - 1].born = *searches_of(m, i);
    m->block[i].state = MODEL_UNMAPPED;
    i = join(m, i, NULL, NULL);
    down(m, MODEL_RESERVED_BYTES, s->small, last - first);
    m->stats.device_frees++;
    m->device_bytes -= last - first;
    if (!is_part(m, i)) { /* nothing is mapped any more */
        s->gone = true;
        drop(m, i);
    }
}

/* A private pool without memory; reservations that nothing was ever mapped in go with it. */
static void forget_pool(struct pool_model *m, int pool)
{
    for (int i = m->blocks_n - 1; i >= 0; i--)
        if (of(m, i)->pool == pool)
            drop(m, i);
    m->uses[pool] = -1;
}

/* All that is cached and whole, of the default pools and of private pools nobody uses. */
static void release_cached(struct pool_model *m)
{
    bool capturing = pool_model_capturing(m);
    if (!capturing)
        process_events(m, true);
    for (int p = 0; p < MODEL_POOLS; p++) {
        if (p > 0 ? m->uses[p] != 0 : capturing)
            continue;
        for (int i = m->blocks_n - 1; i >= 0; i--) {
            if (m->block[i].state != MODEL_FREE || of(m, i)->pool != p)
                continue;
            if (of(m, i)->expandable)
                unmap(m, i);
            else if (!is_part(m, i))
                release(m, i);
            i = i < m->blocks_n ? i : m->blocks_n; /* joined with blocks behind it */
        }
        int left = 0;
        for (int i = 0; i < m->blocks_n; i++)
            left += of(m, i)->pool == p && m->block[i].state != MODEL_UNMAPPED;
        if (p > 0 && left == 0)
            forget_pool(m, p);
    }
}

static int pool_for(const struct pool_model *m, int stream)
{
    for (int k = m->routes_n - 1; k >= 0; k--)
        if (m->route[k].streams >> stream & 1)
            return m->route[k].pool;
    return 0;
}

/* A cached block of a private pool that is there for the last resort; w then wants that pool. */
static int last_resort(struct pool_model *m, struct want *w)
{
    if (w->pool != 0)
        return -1;
    for (int p = 1; p < MODEL_POOLS; p++) {
        struct want of_pool = {w->size, w->stream, p, w->small};
        if (m->uses[p] < 0 || !m->config.last_resort[p])
            continue;
        int i = search(m, &of_pool);
        if (i >= 0) {
            *w = of_pool;
            return i;
        }
    }
    return -1;
}

/* The attempts in their order; a free block or -1. */
static int obtain(struct pool_model *m, struct want *w)
{
    if (m->config.no_caching) /* nothing is cached that could be given back */
        return from_device(m, w);
    int i = search(m, w);
    if (i < 0 && m->config.relieve && m->config.relieve(m->config.ctx))
        i = search(m, w);
    if (i >= 0)
        return i;
    collect_garbage(m);
    i = from_device(m, w);
    if (i < 0)
        i = last_resort(m, w);
    if (i < 0 && release_oversize(m, w))
        i = from_device(m, w);
    if (i < 0 && !pool_model_capturing(m)) {
        release_cached(m);
        m->stats.retries++;
        i = from_device(m, w);
    }
    return i;
}

static bool should_split(const struct pool_model *m, int i, const struct want *w)
{
    int64_t rest = m->block[i].size_bytes - w->size;
    if (m->config.no_split[w->pool])
        return false;
    if (w->small || of(m, i)->expandable)
        return rest >= LEAST;
    return w->size < m->config.max_split_bytes && rest > MIB;
}

/* Hands the free block i out. */
static void hand_out(struct pool_model *m, int i, const struct want *w, int64_t asked)
{
    bool was_part = is_part(m, i), counts = !of(m, i)->expandable, small = w->small;
    if (should_split(m, i, w)) {
        int64_t rest = m->block[i].size_bytes - w->size;
        cut(m, i, w->size);
        m->block[i + 1].born = *searches_of(m, i);
        if (counts && was_part) {
            down(m, MODEL_INACTIVE_SPLIT_BYTES, small, w->size);
        } else if (counts) {
            up(m, MODEL_INACTIVE_SPLIT_BYTES, small, rest);
            up(m, MODEL_INACTIVE_SPLIT, small, 1);
        }
    } else if (counts && was_part) {
        down(m, MODEL_INACTIVE_SPLIT_BYTES, small, m->block[i].size_bytes);
        down(m, MODEL_INACTIVE_SPLIT, small, 1);
    }
    struct model_block *b = &m->block[i];
    b->state = MODEL_LIVE;
    b->requested_bytes = asked;
    up(m, MODEL_ALLOCATION, small, 1);
    up(m, MODEL_ALLOCATED_BYTES, small, b->size_bytes);
    up(m, MODEL_ACTIVE, small, 1);
    up(m, MODEL_ACTIVE_BYTES, small, b->size_bytes);
    up(m, MODEL_REQUESTED_BYTES, small, asked);
    oversize(m, MODEL_OVERSIZE_ALLOCATIONS, b->size_bytes, 1);
}

/* The numbers of the message, with what the failed attempts left. */
static void set_oom(struct pool_model *m, int64_t rounded)
{
    m->oom = (struct model_oom){
        .rounded = rounded,
        .tried = m->config.no_caching ? rounded : segment_size(&m->config, rounded),
        .free = m->config.capacity_bytes - m->device_bytes,
        .allowed = m->config.fraction < 1 ? limit_of(m) : 0,
        .allocated = m->stats.of[MODEL_ALLOCATED_BYTES][MODEL_ALL].current,
        .reserved = reserved(m)};
    for (int i = 0; i < m->blocks_n; i++)
        if (m->block[i].state == MODEL_FREE && of(m, i)->pool != 0)
            m->oom.in_private += m->block[i].size_bytes;
}

bool pool_model_alloc(struct pool_model *m, int64_t size_bytes, int stream, uint64_t *address)
{
    *address = 0;
    if (size_bytes == 0)
        return true;
    if (size_bytes >= EIB)
        return false;
    if (!pool_model_capturing(m))
        process_events(m, false);
    int64_t size = rounded_request(&m->config, size_bytes);
    struct want w = {size, stream, pool_for(m, stream), size <= MIB};
    int i = obtain(m, &w);
    if (i < 0) {
        m->stats.ooms++;
        set_oom(m, size);
        return false;
    }
    hand_out(m, i, &w, size_bytes);
    *address = m->block[i].address;
    return true;
}

void pool_model_empty_cache(struct pool_model *m)
{
    release_cached(m);
}

/* ---- private pools ---- */

void pool_model_begin(struct pool_model *m, int pool)
{
    m->uses[pool] = m->uses[pool] < 0 ? 1 : m->uses[pool] + 1;
}

void pool_model_end(struct pool_model *m, int pool)
{
    m->uses[pool]--;
}

void pool_model_route(struct pool_model *m, int pool, unsigned streams, bool capture)
{
    m->route[m->routes_n++] = (struct model_route){pool, streams, capture};
}

void pool_model_unroute(struct pool_model *m, int pool)
{
    int k = 0;
    while (m->route[k].pool != pool)
        k++;
    m->routes_n--;
    memmove(&m->route[k], &m->route[k + 1], sizeof *m->route * (size_t)(m->routes_n - k));
}

bool pool_model_capturing(const struct pool_model *m)
{
    bool any = false;
    for (int k = 0; k < m->routes_n; k++)
        any = any || m->route[k].capture;
    return any;
}

bool pool_model_routed(const struct pool_model *m, int pool)
{
    for (int k = 0; k < m->routes_n; k++)
        if (m->route[k].pool == pool)
            return true;
    return false;
}

/* ---- for tests ---- */

void pool_model_reset_peaks(struct pool_model *m)
{
    for (int f = 0; f < MODEL_FAMILIES; f++)
        for (int k = 0; k < MODEL_KINDS; k++)
            m->stats.of[f][k].peak = m->stats.of[f][k].current;
}

void pool_model_reset_accumulated(struct pool_model *m)
{
    struct model_stats *s = &m->stats;
    for (int f = 0; f < MODEL_FAMILIES; f++)
        for (int k = 0; k < MODEL_KINDS; k++)
            s->of[f][k].allocated = s->of[f][k].freed = 0;
    s->retries = s->ooms = s->syncs = s->device_allocs = s->device_frees = 0;
}

const struct model_block *pool_model_find(const struct pool_model *m, uint64_t address)
{
    int i = at(m, address);
    return i < 0 ? NULL : &m->block[i];
}

/* ---- what must hold ---- */

static const char *wrong_layout(const struct pool_model *m)
{
    for (int i = 0; i < m->blocks_n; i++) {
        const struct model_block *b = &m->block[i];
        const struct model_segment *s = of(m, i);
        uint64_t end = b->address + (uint64_t)b->size_bytes;
        int next = after(m, i);
        if (s->gone || b->size_bytes < LEAST || b->size_bytes % LEAST)
            return "a block of no segment, or of a size that cannot be";
        if (before(m, i) < 0 && b->address != s->address)
            return "a segment does not begin with a block";
        if (end != (next < 0 ? s->address + (uint64_t)s->size_bytes : m->block[next].address))
            return "blocks leave a gap";
        if (next >= 0 && (b->state == MODEL_FREE || b->state == MODEL_UNMAPPED) &&
            m->block[next].state == b->state)
            return "neighbours of one state are not joined";
        if (b->state == MODEL_FREE && !s->small && !s->expandable && b->size_bytes <= MIB)
            return "a free block of a large pool is too small";
    }
    return NULL;
}

static void recount(const struct pool_model *m, int64_t sum[MODEL_FAMILIES][MODEL_KINDS])
{
    for (int i = 0; i < m->blocks_n; i++) {
        const struct model_block *b = &m->block[i];
        const struct model_segment *s = of(m, i);
        for (int k = 0; k < MODEL_KINDS; k++) {
            if (k == (s->small ? MODEL_LARGE : MODEL_SMALL))
                continue;
            bool live = b->state == MODEL_LIVE, active = live || b->state == MODEL_PENDING;
            bool split = b->state == MODEL_FREE && is_part(m, i) && !s->expandable;
            sum[MODEL_ALLOCATION][k] += live;
            sum[MODEL_ALLOCATED_BYTES][k] += live ? b->size_bytes : 0;
            sum[MODEL_ACTIVE][k] += active;
            sum[MODEL_ACTIVE_BYTES][k] += active ? b->size_bytes : 0;
            sum[MODEL_REQUESTED_BYTES][k] += active ? b->requested_bytes : 0;
            sum[MODEL_INACTIVE_SPLIT][k] += split;
            sum[MODEL_INACTIVE_SPLIT_BYTES][k] += split ? b->size_bytes : 0;
            sum[MODEL_RESERVED_BYTES][k] += b->state != MODEL_UNMAPPED ? b->size_bytes : 0;
            sum[MODEL_SEGMENT][k] += !s->expandable && before(m, i) < 0;
        }
        if (b->state == MODEL_LIVE && b->size_bytes >= m->config.max_split_bytes)
            sum[MODEL_OVERSIZE_ALLOCATIONS][MODEL_ALL]++;
        if (!s->expandable && before(m, i) < 0 && s->size_bytes >= m->config.max_split_bytes)
            sum[MODEL_OVERSIZE_SEGMENTS][MODEL_ALL]++;
    }
}

const char *pool_model_wrong(const struct pool_model *m)
{
    int64_t sum[MODEL_FAMILIES][MODEL_KINDS] = {0};
    recount(m, sum);
    for (int f = 0; f < MODEL_FAMILIES; f++)
        for (int k = 0; k < MODEL_KINDS; k++)
            if (sum[f][k] != m->stats.of[f][k].current)
                return "a statistic is not the sum over the blocks";
    if (m->device_bytes != reserved(m) || reserved(m) > m->config.capacity_bytes)
        return "reserved is not what the device holds";
    if (reserved(m) > limit_of(m) && !m->config.expandable)
        return "reserved is above the limit";
    return wrong_layout(m);
}
