/* source.c - segments of device memory against a budget. */
#include "mem/source.h"

#include "base/str.h"

#include <sys/mman.h>

enum { HUGE_PAGE_BYTES = 2 << 20 };

static void *host_map(struct mem_source *s, int64_t size_bytes)
{
    (void)s;
    void *p =
        mmap(NULL, (size_t)size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    if (size_bytes >= HUGE_PAGE_BYTES)
        (void)madvise(p, (size_t)size_bytes, MADV_HUGEPAGE); /* advice only */
    return p;
}

static void host_unmap(struct mem_source *s, void *p, int64_t size_bytes)
{
    (void)s;
    ASSERT(munmap(p, (size_t)size_bytes) == 0);
}

void mem_source_init_host(struct mem_source *s, int64_t budget_bytes)
{
    *s = (struct mem_source){
        .map = host_map, .unmap = host_unmap, .device = "cpu", .budget_bytes = budget_bytes};
}

static enum status refuse(const struct mem_source *s, int64_t size_bytes, struct err *e)
{
    char need[32], held[32], budget[32];
    (void)bytes_text(size_bytes, need, sizeof need);
    (void)bytes_text(s->held_bytes, held, sizeof held);
    if (s->budget_bytes == 0)
        return err_set(
            e, ST_OOM, "could not get %s from device \"%s\", which holds %s for this run", need,
            s->device, held);
    (void)bytes_text(s->budget_bytes, budget, sizeof budget);
    return err_set(
        e, ST_OOM, "could not get %s from device \"%s\": %s of a budget of %s are held", need,
        s->device, held, budget);
}

enum status mem_source_take(struct mem_source *s, int64_t size_bytes, void **out, struct err *e)
{
    ASSERT(size_bytes > 0 && s->held_bytes >= 0);
    int64_t room = (s->budget_bytes ? s->budget_bytes : INT64_MAX) - s->held_bytes;
    void *p = size_bytes <= room ? s->map(s, size_bytes) : NULL;
    if (!p)
        return refuse(s, size_bytes, e);
    s->held_bytes += size_bytes;
    if (s->held_bytes > s->held_bytes_peak)
        s->held_bytes_peak = s->held_bytes;
    s->taken_n++;
    *out = p;
    return ST_OK;
}

void mem_source_give(struct mem_source *s, void *p, int64_t size_bytes)
{
    ASSERT(size_bytes <= s->held_bytes);
    s->unmap(s, p, size_bytes);
    s->held_bytes -= size_bytes;
}
