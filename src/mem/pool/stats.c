/* stats.c - counting, resetting, and the flat form of the statistics. */
#include "mem/pool/pool_int.h"

#include <stdlib.h>
#include <string.h>

/* Counting. */

void counter_up(struct counter *c, int64_t n)
{
    c->current += n;
    c->total += n;
    c->peak = c->current > c->peak ? c->current : c->peak;
}

void counter_down(struct counter *c, int64_t n)
{
    ASSERT(c->current >= n);
    c->current -= n;
}

void stat_up(struct mem_pool *p, enum stat_index i, bool small, int64_t n)
{
    struct counters *s = &p->stat[i];
    counter_up(&s->kind[small], n);
    int64_t all = s->kind[KIND_LARGE].current + s->kind[KIND_SMALL].current;
    s->all_peak = all > s->all_peak ? all : s->all_peak;
}

void stat_down(struct mem_pool *p, enum stat_index i, bool small, int64_t n)
{
    counter_down(&p->stat[i].kind[small], n);
}

void stat_change(struct mem_pool *p, enum stat_index i, bool small, int64_t n)
{
    if (n > 0)
        stat_up(p, i, small, n);
    else if (n < 0)
        stat_down(p, i, small, -n);
}

/* Reading. */

static struct mem_stat record_of(const struct counter *c)
{
    return (struct mem_stat){
        c->current, c->peak, c->total - c->total_base, c->total - c->current - c->freed_base};
}

static void fill_array(const struct counters *s, struct mem_stat out[MEM_STAT_OF_N])
{
    struct mem_stat large = record_of(&s->kind[KIND_LARGE]),
                    small = record_of(&s->kind[KIND_SMALL]);
    out[MEM_STAT_LARGE] = large;
    out[MEM_STAT_SMALL] = small;
    out[MEM_STAT_ALL] = (struct mem_stat){
        large.current + small.current, s->all_peak, large.allocated + small.allocated,
        large.freed + small.freed};
}

void stats_fill(const struct mem_pool *p, struct mem_pool_stats *out)
{
#define ARRAY(name) fill_array(&p->stat[STAT_##name], out->name);
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
        struct counters *s = &p->stat[i];
        s->all_peak = 0;
        for (int k = 0; k < 2; k++) {
            s->kind[k].peak = s->kind[k].current;
            s->all_peak += s->kind[k].current;
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
        for (int k = 0; k < 2; k++)
            reset_sums(&p->stat[i].kind[k]);
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
