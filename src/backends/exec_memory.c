/* exec_memory.c - live and reserved bytes of an executor at any moment, and their peaks. */
#include "backends/exec_int.h"

#include "base/json.h"

/* Bytes live after the last operator of a program: variables and outputs. */
static int64_t left_bytes(const struct exec *x, int index)
{
    size_t n = index < 0 ? 0 : x->programs[index].ir->ops.n;
    return n > 0 ? x->timelines[index][n - 1] : x->report.persistent_bytes;
}

/* Program -1: the arena was mapped. */
void exec_memory_seen(struct exec *x, int index)
{
    int64_t reserved = x->held_bytes + x->taken_held_bytes;
    if (index >= 0)
        x->programs[index].runs_n++;
    if (x->options.storage == EXEC_DYNAMIC)
        return;
    int64_t peak = index < 0 ? x->report.persistent_bytes : x->report.program_peak_bytes[index];
    x->live_bytes = left_bytes(x, index);
    x->live_bytes_peak = peak > x->live_bytes_peak ? peak : x->live_bytes_peak;
    x->reserved_bytes_peak = reserved > x->reserved_bytes_peak ? reserved : x->reserved_bytes_peak;
}

void exec_memory(const struct exec *x, struct exec_memory *out)
{
    if (x->pool) {
        struct mem_pool_stats s;
        mem_pool_stats(x->pool, &s);
        const struct mem_stat *live = &s.allocated_bytes[MEM_STAT_ALL],
                              *reserved = &s.reserved_bytes[MEM_STAT_ALL];
        *out = (struct exec_memory){
            x->held_bytes + live->current, x->held_bytes + live->peak,
            x->held_bytes + reserved->current, x->held_bytes + reserved->peak};
        return;
    }
    *out = (struct exec_memory){
        x->live_bytes, x->live_bytes_peak, x->held_bytes + x->taken_held_bytes,
        x->reserved_bytes_peak};
}

bool exec_was_refused(const struct exec *x)
{
    return x->pool && x->source->refused.by == x->pool;
}

void exec_memory_reset(struct exec *x)
{
    if (x->pool)
        mem_pool_reset_peaks(x->pool);
    x->live_bytes_peak = x->live_bytes;
    x->reserved_bytes_peak = x->held_bytes + x->taken_held_bytes;
}

json_t *exec_memory_json(const struct exec_memory *m)
{
    json_t *o = json_object();
    json_put_i64(o, "live_bytes", m->live_bytes);
    json_put_i64(o, "live_bytes_peak", m->live_bytes_peak);
    json_put_i64(o, "reserved_bytes", m->reserved_bytes);
    json_put_i64(o, "reserved_bytes_peak", m->reserved_bytes_peak);
    json_put_i64(o, "reserved_minus_live_bytes", m->reserved_bytes - m->live_bytes);
    return o;
}

static void set(struct mem_stat *s, int64_t current, int64_t peak, int64_t allocated)
{
    s[MEM_STAT_ALL] = s[MEM_STAT_LARGE] = (struct mem_stat){
        .current = current, .peak = peak, .allocated = allocated, .freed = allocated - current};
}

void exec_memory_stats(const struct exec *x, struct mem_pool_stats *out)
{
    struct exec_memory m;
    int64_t bytes = 0, n = 0, vars = 0;
    if (x->pool) {
        mem_pool_stats(x->pool, out);
        return;
    }
    *out = (struct mem_pool_stats){.max_split_size = -1};
    exec_memory(x, &m);
    for (int i = 0; i < x->n_programs; i++) {
        const struct exec_storages *s = &x->programs[i].storages;
        for (size_t k = 0; k < s->n; k++) {
            bytes +=
                x->programs[i].runs_n * mem_plan_bytes(&x->plan_programs[i].plan, &s->buffers[k]);
            n += x->programs[i].runs_n * (s->buffers[k].size_bytes > 0);
        }
    }
    for (size_t i = 0; i < x->vars->list.n; i++)
        vars += x->persistent[i].size_bytes > 0;
    bytes += x->report.persistent_bytes;
    set(out->allocated_bytes, m.live_bytes, m.live_bytes_peak, bytes);
    set(out->active_bytes, m.live_bytes, m.live_bytes_peak, bytes);
    set(out->requested_bytes, m.live_bytes, m.live_bytes_peak, bytes);
    set(out->reserved_bytes, m.reserved_bytes, m.reserved_bytes_peak, m.reserved_bytes_peak);
    set(out->allocation, vars, vars, vars + n);
    set(out->active, vars, vars, vars + n);
    set(out->segment, 1, 1, 1);
}
