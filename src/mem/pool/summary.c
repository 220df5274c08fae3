/* summary.c - the table of torch.cuda.memory_summary. */
#include "mem/pool/stats.h"

#include <stdio.h>
#include <string.h>

enum { COLUMNS_N = 4, INNER_WIDTH = 75 };

/* One row's numbers: current, peak, allocated, freed. */
struct cells {
    int64_t value[COLUMNS_N];
};

static struct cells cells_of(struct mem_stat s)
{
    return (struct cells){{s.current, s.peak, s.allocated, s.freed}};
}

static void rule(struct str *out, char c)
{
    char line[INNER_WIDTH + 1];
    memset(line, c, INNER_WIDTH);
    line[INNER_WIDTH] = 0;
    str_printf(out, "|%s|\n", line);
}

/* Steps of 1024 (1000 for counts) that bring `value` below the limit of a column. */
static int unit_of(int64_t value, bool bytes)
{
    double v = (double)value, limit = bytes ? 768.0 * 1024 : 750.0 * 1000;
    int unit = 0, unit_max = bytes ? 5 : 2;
    for (; unit < unit_max && v >= limit; unit++)
        v /= bytes ? 1024 : 1000;
    return unit;
}

static void cell(struct str *out, int64_t value, int unit, bool bytes)
{
    static const char *const size_units[] = {"B  ", "KiB", "MiB", "GiB", "TiB", "PiB"};
    static const char *const count_units[] = {"  ", "K ", "M "};
    for (int i = 0; i < unit; i++)
        value /= bytes ? 1024 : 1000;
    if (bytes)
        str_printf(out, " | %6lld %s", (long long)value, size_units[unit]);
    else
        str_printf(out, " | %7lld %s", (long long)value, count_units[unit]);
}

/* Units follow the row `all` of the group. */
static void
row(struct str *out, const char *name, struct cells c, const struct cells *all, bool bytes)
{
    str_printf(out, "| %-21s", name);
    for (int i = 0; i < COLUMNS_N; i++)
        cell(out, c.value[i], unit_of(all->value[i], bytes), bytes);
    str_add(out, " |\n");
}

static void
group(struct str *out, const char *name, const struct mem_stat *s, bool bytes, bool abbreviated)
{
    struct cells all = cells_of(s[MEM_STAT_ALL]);
    rule(out, '-');
    row(out, name, all, &all, bytes);
    if (abbreviated)
        return;
    row(out, "      from large pool", cells_of(s[MEM_STAT_LARGE]), &all, bytes);
    row(out, "      from small pool", cells_of(s[MEM_STAT_SMALL]), &all, bytes);
}

static void single(struct str *out, const char *name, struct mem_stat s)
{
    struct cells all = cells_of(s);
    rule(out, '-');
    row(out, name, all, &all, false);
}

void mem_pool_summary(
    const struct mem_pool_stats *s, int device_id, bool abbreviated, struct str *out)
{
    rule(out, '=');
    str_printf(out, "| %16s PyTorch CUDA memory summary, device ID %-17d |\n", "", device_id);
    rule(out, '-');
    str_printf(
        out, "|  %9s CUDA OOMs: %-12lld | %6s cudaMalloc retries: %-8lld  |\n", "",
        (long long)s->num_ooms, "", (long long)s->num_alloc_retries);
    rule(out, '=');
    str_add(out, "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |\n");
    group(out, "Allocated memory", s->allocated_bytes, true, abbreviated);
    group(out, "Active memory", s->active_bytes, true, abbreviated);
    group(out, "Requested memory", s->requested_bytes, true, abbreviated);
    group(out, "GPU reserved memory", s->reserved_bytes, true, abbreviated);
    group(out, "Non-releasable memory", s->inactive_split_bytes, true, abbreviated);
    group(out, "Allocations", s->allocation, false, abbreviated);
    group(out, "Active allocs", s->active, false, abbreviated);
    group(out, "GPU reserved segments", s->segment, false, abbreviated);
    group(out, "Non-releasable allocs", s->inactive_split, false, abbreviated);
    single(out, "Oversize allocations", s->oversize_allocations);
    single(out, "Oversize GPU segments", s->oversize_segments);
    rule(out, '=');
}
