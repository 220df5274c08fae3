/* stats.c - counting, resetting, and the flat form of the statistics. */
#include "mem/pool/pool_int.h"

#include <stdlib.h>
#include <string.h>

/* Active blocks are the allocated and the pending ones. They are counted as such only while some
 * are pending, so that nearly all calls have two records less to write. */

static int64_t active_now(const struct mem_pool *p, enum stat_index i, int kind)
{
    if (i == STAT_active)
        return p->stat[STAT_allocation].kind[kind].current + p->pending_n[kind];
    return p->stat[STAT_allocated_bytes].kind[kind].current + p->pending_bytes[kind];
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

void stats_note_active(struct mem_pool *p)
{
    static const enum stat_index both[] = {STAT_active, STAT_active_bytes};
    for (int i = 0; i < 2; i++) {
        struct counters *s = &p->stat[both[i]];
        int64_t large = active_now(p, both[i], KIND_LARGE);
        int64_t small = active_now(p, both[i], KIND_SMALL);
        s->kind[KIND_LARGE].peak = most(s->kind[KIND_LARGE].peak, large);
        s->kind[KIND_SMALL].peak = most(s->kind[KIND_SMALL].peak, small);
        s->all_peak = most(s->all_peak, large + small);
    }
}

/* The record of active blocks as if it had been written all the time; `of` is that of allocated
 * ones. */
static struct counters active_counters(const struct mem_pool *p, enum stat_index i)
{
    struct counters s = p->stat[i];
    const struct counters *of = &p->stat[i == STAT_active ? STAT_allocation : STAT_allocated_bytes];
    for (int k = 0; k < 2; k++) {
        s.kind[k].current = active_now(p, i, k);
        s.kind[k].total = of->kind[k].total;
        s.kind[k].total_base = of->kind[k].total_base;
        s.kind[k].peak = most(s.kind[k].peak, of->kind[k].peak);
    }
    s.all_peak = most(s.all_peak, of->all_peak);
    return s;
}

static struct counters counters_of(const struct mem_pool *p, enum stat_index i)
{
    return i == STAT_active || i == STAT_active_bytes ? active_counters(p, i) : p->stat[i];
}

/* Reading. */

static struct mem_stat record_of(const struct counter *c)
{
    return (struct mem_stat){
        c->current, c->peak, c->total - c->total_base, c->total - c->current - c->freed_base};
}

static void fill_array(struct counters s, struct mem_stat out[MEM_STAT_OF_N])
{
    struct mem_stat large = record_of(&s.kind[KIND_LARGE]), small = record_of(&s.kind[KIND_SMALL]);
    out[MEM_STAT_LARGE] = large;
    out[MEM_STAT_SMALL] = small;
    out[MEM_STAT_ALL] = (struct mem_stat){
        large.current + small.current, s.all_peak, large.allocated + small.allocated,
        large.freed + small.freed};
}

void stats_fill(const struct mem_pool *p, struct mem_pool_stats *out)
{
#define ARRAY(name) fill_array(counters_of(p, STAT_##name), out->name);
#define RECORD(name) out->name = record_of(&p->name);
#define SCALAR(name) out->name = p->name;
#include "mem/pool/stats.def"
    int64_t limit = p->conf.max_split_size_bytes;
    out->max_split_size = limit == MEM_POOL_UNLIMITED ? -1 : limit;
}

void mem_pool_stats(struct mem_pool *p, struct mem_pool_stats *out)
{
    pthread_mutex_lock(&p->lock);
    stats_fill(p, out);
    pthread_mutex_unlock(&p->lock);
}

void mem_pool_reset_peaks(struct mem_pool *p)
{
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < STAT_N; i++) {
        struct counters now = counters_of(p, (enum stat_index)i), *s = &p->stat[i];
        s->all_peak = 0;
        for (int k = 0; k < 2; k++) {
            s->kind[k].peak = now.kind[k].current;
            s->all_peak += now.kind[k].current;
        }
    }
#define RECORD(name) p->name.peak = p->name.current;
#include "mem/pool/stats.def"
    pthread_mutex_unlock(&p->lock);
}

static void reset_sums(struct counter *c)
{
    c->total_base = c->total;
    c->freed_base = c->total - c->current;
}

void mem_pool_reset_accumulated(struct mem_pool *p)
{
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < STAT_N; i++)
        for (int k = 0; k < 2; k++) {
            struct counters now = counters_of(p, (enum stat_index)i);
            reset_sums(&now.kind[k]);
            p->stat[i].kind[k].total_base = now.kind[k].total_base;
            p->stat[i].kind[k].freed_base = now.kind[k].freed_base;
        }
#define RECORD(name) reset_sums(&p->name);
#define SCALAR(name) p->name = 0;
#include "mem/pool/stats.def"
    pthread_mutex_unlock(&p->lock);
}

/* The flat form. */

struct row {
    char key[64];
    int64_t value;
};
struct rows {
    VEC(struct row) list;
};

static void
add(struct rows *rows, int64_t value, const char *family, const char *of, const char *field)
{
    struct row row = {.value = value};
    struct str key;
    str_init(&key);
    str_printf(&key, "%s%s%s%s%s", family, of[0] ? "." : "", of, field[0] ? "." : "", field);
    ASSERT(key.n < sizeof row.key);
    memcpy(row.key, key.data, key.n + 1);
    str_release(&key);
    vec_push(&rows->list, row);
}

static void add_record(struct rows *rows, struct mem_stat s, const char *family, const char *of)
{
    add(rows, s.allocated, family, of, "allocated");
    add(rows, s.current, family, of, "current");
    add(rows, s.freed, family, of, "freed");
    add(rows, s.peak, family, of, "peak");
}

static void add_array(struct rows *rows, const struct mem_stat *s, const char *family)
{
    add_record(rows, s[MEM_STAT_ALL], family, "all");
    add_record(rows, s[MEM_STAT_LARGE], family, "large_pool");
    add_record(rows, s[MEM_STAT_SMALL], family, "small_pool");
}

static int by_key(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    return strcmp(x->key, y->key);
}

void mem_pool_stats_json(const struct mem_pool_stats *s, struct str *out)
{
    struct rows rows = {0};
#define ARRAY(name) add_array(&rows, s->name, #name);
#define RECORD(name) add_record(&rows, s->name, #name, "");
#define SCALAR(name) add(&rows, s->name, #name, "", "");
#include "mem/pool/stats.def"
    add(&rows, s->max_split_size, "max_split_size", "", "");
    qsort(rows.list.data, rows.list.n, sizeof *rows.list.data, by_key);
    str_add(out, "{");
    for (size_t i = 0; i < rows.list.n; i++)
        str_printf(
            out, "%s\"%s\": %lld", i ? ", " : "", rows.list.data[i].key,
            (long long)rows.list.data[i].value);
    str_add(out, "}");
    vec_release(&rows.list);
}
