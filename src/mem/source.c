/* source.c - segments of device memory against a budget; the host as a device. */
#include "mem/source.h"

#include "base/env.h"
#include "base/str.h"

#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>

enum { HUGE_PAGE_BYTES = 2 << 20 };

static void *at(uint64_t addr)
{
    return (void *)(uintptr_t)addr;
}

/* The host. */

static uint64_t host_mmap(int64_t size_bytes, int protection)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (protection == PROT_NONE ? MAP_NORESERVE : 0);
    void *p = mmap(NULL, (size_t)size_bytes, protection, flags, -1, 0);
    return p == MAP_FAILED ? 0 : (uint64_t)(uintptr_t)p;
}

static void advise_huge(uint64_t addr, int64_t size_bytes)
{
    if (size_bytes >= HUGE_PAGE_BYTES)
        (void)madvise(at(addr), (size_t)size_bytes, MADV_HUGEPAGE); /* advice only */
}

static uint64_t host_take(struct mem_source *s, int64_t size_bytes)
{
    uint64_t addr = host_mmap(size_bytes + s->tail_bytes, PROT_READ | PROT_WRITE);
    if (addr)
        advise_huge(addr, size_bytes + s->tail_bytes);
    return addr;
}

static void host_give(struct mem_source *s, uint64_t addr, int64_t size_bytes)
{
    ASSERT(munmap(at(addr), (size_t)(size_bytes + s->tail_bytes)) == 0);
}

static void host_release(struct mem_source *s, uint64_t addr, int64_t size_bytes)
{
    (void)s;
    ASSERT(munmap(at(addr), (size_t)size_bytes) == 0);
}

static uint64_t host_reserve(struct mem_source *s, int64_t size_bytes)
{
    (void)s;
    return host_mmap(size_bytes, PROT_NONE);
}

static bool host_map(struct mem_source *s, uint64_t addr, int64_t size_bytes)
{
    (void)s;
    if (mprotect(at(addr), (size_t)size_bytes, PROT_READ | PROT_WRITE) != 0)
        return false;
    advise_huge(addr, size_bytes);
    return true;
}

/* A fresh mapping over the old one: its pages are gone, and nothing is committed for it. */
static void host_unmap(struct mem_source *s, uint64_t addr, int64_t size_bytes)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    (void)s;
    ASSERT(mmap(at(addr), (size_t)size_bytes, PROT_NONE, flags, -1, 0) == at(addr));
}

void mem_source_init_host(struct mem_source *s, int64_t budget_bytes)
{
    *s = (struct mem_source){
        .take = host_take,
        .give = host_give,
        .reserve = host_reserve,
        .release = host_release,
        .map = host_map,
        .unmap = host_unmap,
        .device = "cpu",
        .budget_bytes = budget_bytes};
}

/* The budget. */

/* Sets `size_bytes` aside before the device is asked: with several threads what was checked must
 * still hold when the memory comes. */
static bool charge(struct mem_source *s, int64_t size_bytes)
{
    int64_t held = atomic_load(&s->held_bytes);
    do {
        int64_t room = (s->budget_bytes ? s->budget_bytes : INT64_MAX) - held;
        if (size_bytes > room)
            return false;
    } while (!atomic_compare_exchange_weak(&s->held_bytes, &held, held + size_bytes));
    if (!s->account || s->account(s, size_bytes))
        return true;
    atomic_fetch_sub(&s->held_bytes, size_bytes);
    return false;
}

static void discharge(struct mem_source *s, int64_t size_bytes)
{
    int64_t was = atomic_fetch_sub(&s->held_bytes, size_bytes);
    ASSERT(size_bytes > 0 && size_bytes <= was);
    if (s->account)
        (void)s->account(s, -size_bytes);
}

/* What was set aside is really held now. */
static void note_peak(struct mem_source *s)
{
    int64_t held = atomic_load(&s->held_bytes), peak = atomic_load(&s->held_bytes_peak);
    while (held > peak && !atomic_compare_exchange_weak(&s->held_bytes_peak, &peak, held))
        ;
}

uint64_t mem_source_segment_take(struct mem_source *s, int64_t size_bytes)
{
    ASSERT(size_bytes > 0);
    if (!charge(s, size_bytes))
        return 0;
    uint64_t addr = s->take(s, size_bytes);
    if (!addr) {
        discharge(s, size_bytes);
        return 0;
    }
    note_peak(s);
    atomic_fetch_add(&s->taken_n, 1);
    return addr;
}

void mem_source_segment_give(struct mem_source *s, uint64_t addr, int64_t size_bytes)
{
    s->give(s, addr, size_bytes);
    discharge(s, size_bytes);
}

bool mem_source_adopt(struct mem_source *s, int64_t size_bytes)
{
    if (!charge(s, size_bytes))
        return false;
    note_peak(s);
    atomic_fetch_add(&s->taken_n, 1);
    return true;
}

bool mem_source_can_expand(const struct mem_source *s)
{
    return s->reserve && s->release && s->map && s->unmap;
}

uint64_t mem_source_reserve(struct mem_source *s, int64_t size_bytes)
{
    return s->reserve(s, size_bytes);
}

void mem_source_release(struct mem_source *s, uint64_t addr, int64_t size_bytes)
{
    s->release(s, addr, size_bytes);
}

bool mem_source_map(struct mem_source *s, uint64_t addr, int64_t size_bytes)
{
    ASSERT(size_bytes > 0);
    if (!charge(s, size_bytes))
        return false;
    if (!s->map(s, addr, size_bytes)) {
        discharge(s, size_bytes);
        return false;
    }
    note_peak(s);
    return true;
}

void mem_source_unmap(struct mem_source *s, uint64_t addr, int64_t size_bytes)
{
    s->unmap(s, addr, size_bytes);
    discharge(s, size_bytes);
}

void mem_source_info(struct mem_source *s, int64_t *free_bytes, int64_t *total_bytes)
{
    if (s->info) {
        s->info(s, free_bytes, total_bytes);
        return;
    }
    int64_t held = atomic_load(&s->held_bytes);
    *total_bytes = s->budget_bytes ? s->budget_bytes : host_capacity_bytes() + held;
    *free_bytes = *total_bytes > held ? *total_bytes - held : 0;
}

/* Memory of this process. */

/* "could not get 2 GiB from device "cuda:0": this run holds 1 GiB of a budget of 2 GiB, and ...".
 */
static enum status refuse(struct mem_source *s, int64_t size_bytes, struct err *e)
{
    char need[32], held[32], budget[32], left[32], total[32], of_budget[64] = "", has[96] = "";
    struct mem_refusal *r = &s->refused;
    *r = (struct mem_refusal){
        .need_bytes = size_bytes,
        .held_bytes = atomic_load(&s->held_bytes),
        .budget_bytes = s->budget_bytes,
        .free_bytes = -1,
        .total_bytes = -1};
    if (e && s->account_broken && s->account_broken(s, e))
        return e->status;
    if (s->info)
        s->info(s, &r->free_bytes, &r->total_bytes);
    if (s->budget_bytes)
        (void)snprintf(
            of_budget, sizeof of_budget, " of a budget of %s",
            bytes_text(s->budget_bytes, budget, sizeof budget));
    if (r->total_bytes >= 0)
        (void)snprintf(
            has, sizeof has, ", and %s of the device's %s are free",
            bytes_text(r->free_bytes, left, sizeof left),
            bytes_text(r->total_bytes, total, sizeof total));
    return err_set(
        e, ST_OOM, "could not get %s from device \"%s\": this run holds %s%s%s",
        bytes_text(size_bytes, need, sizeof need), s->device,
        bytes_text(r->held_bytes, held, sizeof held), of_budget, has);
}

enum status mem_source_take(struct mem_source *s, int64_t size_bytes, void **out, struct err *e)
{
    uint64_t addr = mem_source_segment_take(s, size_bytes);
    if (!addr)
        return refuse(s, size_bytes, e);
    *out = at(addr);
    return ST_OK;
}

void mem_source_lower(struct mem_source *s, int64_t bytes)
{
    if (bytes > 0)
        discharge(s, bytes);
}

void mem_source_give_rest(struct mem_source *s, void *p, int64_t size_bytes, int64_t held_bytes)
{
    s->give(s, (uint64_t)(uintptr_t)p, size_bytes);
    mem_source_lower(s, held_bytes);
}

void mem_source_give(struct mem_source *s, void *p, int64_t size_bytes)
{
    mem_source_give_rest(s, p, size_bytes, size_bytes);
}
