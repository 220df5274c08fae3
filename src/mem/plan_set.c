/* plan_set.c - one arena for the programs of a run. */
#include "mem/plan_set.h"

#include "base/mem.h"
#include "mem/plan_check.h"

static int64_t alignment_of(const struct mem_plan_buffer *b)
{
    return b->alignment ? b->alignment : MEM_PLAN_ALIGNMENT;
}

static int64_t alignment_max(const struct mem_plan_set *s)
{
    int64_t most = MEM_PLAN_ALIGNMENT;
    for (size_t i = 0; i < s->persistent_n; i++)
        if (alignment_of(&s->persistent[i]) > most)
            most = alignment_of(&s->persistent[i]);
    for (size_t k = 0; k < s->programs_n; k++)
        for (size_t i = 0; i < s->programs[k].n; i++)
            if (alignment_of(&s->programs[k].buffers[i]) > most)
                most = alignment_of(&s->programs[k].buffers[i]);
    return most;
}

/* The next larger alignment below `limit` in use among persistent buffers; 0 when there is none. */
static int64_t alignment_below(const struct mem_plan_set *s, int64_t limit)
{
    int64_t most = 0;
    for (size_t i = 0; i < s->persistent_n; i++) {
        int64_t a = alignment_of(&s->persistent[i]);
        if (a < limit && a > most)
            most = a;
    }
    return most;
}

/* Persistent buffers are all live at once, so one after another is the best there is. The planner
 * has checked their sizes and alignments before. */
static void lay_out_persistent(struct mem_plan_set *s, int64_t round)
{
    int64_t at = 0;
    s->persistent_offset_bytes = mem_alloc(s->persistent_n * sizeof *s->persistent_offset_bytes);
    for (int64_t a = alignment_below(s, INT64_MAX); a; a = alignment_below(s, a)) {
        for (size_t i = 0; i < s->persistent_n; i++) {
            if (alignment_of(&s->persistent[i]) != a || s->persistent[i].size_bytes == 0)
                continue;
            at = (at + a - 1) & ~(a - 1);
            s->persistent_offset_bytes[i] = at;
            at += s->persistent[i].size_bytes;
        }
    }
    s->persistent_bytes = (at + round - 1) & ~(round - 1);
}

/* The persistent buffers as the planner sees them: all live at operation 0. */
static struct mem_plan_buffer *persistent_at_zero(const struct mem_plan_set *s)
{
    struct mem_plan_buffer *b = mem_alloc(s->persistent_n * sizeof *b);
    for (size_t i = 0; i < s->persistent_n; i++) {
        b[i] = s->persistent[i];
        b[i].first = b[i].last = 0;
    }
    return b;
}

/* Lets the planner find what is wrong with them (a negative size, a sum too large). */
static enum status check_persistent(const struct mem_plan_set *s, struct err *e)
{
    struct mem_plan p;
    struct mem_plan_buffer *b = persistent_at_zero(s);
    enum status st =
        mem_plan_make(b, s->persistent_n, &(struct mem_plan_options){.work_max = -1}, &p, e);
    mem_plan_release(&p);
    mem_free(b);
    if (st)
        err_prefix(e, "persistent buffers");
    return st;
}

enum status
mem_plan_set_make(struct mem_plan_set *s, const struct mem_plan_options *o, struct err *e)
{
    s->persistent_offset_bytes = NULL;
    s->persistent_bytes = s->peak_bytes = 0;
    s->peak_program = 0;
    for (size_t k = 0; k < s->programs_n; k++)
        s->programs[k].plan = (struct mem_plan){0};
    TRY(check_persistent(s, e));
    for (size_t k = 0; k < s->programs_n; k++) {
        struct mem_plan_program *g = &s->programs[k];
        enum status st = mem_plan_make(g->buffers, g->n, o, &g->plan, e);
        if (st) {
            err_prefix(e, "program \"%s\"", g->name ? g->name : "");
            return st;
        }
        if (g->plan.peak_bytes > s->programs[s->peak_program].plan.peak_bytes)
            s->peak_program = k;
    }
    lay_out_persistent(s, alignment_max(s));
    s->peak_bytes = s->persistent_bytes;
    if (s->programs_n)
        s->peak_bytes += s->programs[s->peak_program].plan.peak_bytes;
    return ST_OK;
}

enum status mem_plan_set_check(const struct mem_plan_set *s, struct err *e)
{
    int64_t highest = 0, live = 0, granule = 0;
    for (size_t i = 0; i < s->persistent_n; i++) {
        int64_t a = alignment_of(&s->persistent[i]);
        granule = granule == 0 || a < granule ? a : granule;
    }
    granule = granule ? granule : MEM_PLAN_ALIGNMENT;
    for (size_t i = 0; i < s->persistent_n; i++) {
        int64_t size = (s->persistent[i].size_bytes + granule - 1) / granule * granule;
        live += size;
        if (size && s->persistent_offset_bytes[i] + size > highest)
            highest = s->persistent_offset_bytes[i] + size;
    }
    struct mem_plan_buffer *b = persistent_at_zero(s);
    enum status st = mem_plan_check(
        b, s->persistent_n,
        &(struct mem_plan){
            .offset_bytes = s->persistent_offset_bytes,
            .n = s->persistent_n,
            .peak_bytes = highest,
            .lower_bound_bytes = live,
            .granule_bytes = granule},
        e);
    mem_free(b);
    TRY(st);
    int64_t peak = s->persistent_bytes;
    for (size_t k = 0; k < s->programs_n; k++) {
        const struct mem_plan_program *g = &s->programs[k];
        TRY(mem_plan_check(g->buffers, g->n, &g->plan, e));
        if (s->persistent_bytes + g->plan.peak_bytes > peak)
            peak = s->persistent_bytes + g->plan.peak_bytes;
    }
    if (highest > s->persistent_bytes || s->persistent_bytes % alignment_max(s) ||
        peak != s->peak_bytes)
        return err_set(
            e, ST_INTERNAL, "storage plan: %lld persistent bytes, peak %lld given as %lld",
            (long long)highest, (long long)peak, (long long)s->peak_bytes);
    return ST_OK;
}

void mem_plan_set_release(struct mem_plan_set *s)
{
    mem_free(s->persistent_offset_bytes);
    s->persistent_offset_bytes = NULL;
    for (size_t k = 0; k < s->programs_n; k++)
        mem_plan_release(&s->programs[k].plan);
}
