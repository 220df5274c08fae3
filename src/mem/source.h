/* source.h - where device memory comes from: segments, against one budget.
 *
 * The arena of a static plan and the segments of the pool are both taken here, so a budget
 * (`--memory-gib`, a simulated card's capacity) is enforced in one place. A device of another
 * kind supplies `map` and `unmap`.
 *
 * INVARIANTS
 * 1. held_bytes is what has been taken and not given back; it never passes budget_bytes.
 */
#ifndef MEM_SOURCE_H
#define MEM_SOURCE_H

#include "base/err.h"

#include <stdint.h>

struct mem_source {
    /* NULL when the device has no such memory left. */
    void *(*map)(struct mem_source *s, int64_t size_bytes);
    void (*unmap)(struct mem_source *s, void *p, int64_t size_bytes);
    void *ctx;            /* for map and unmap */
    const char *device;   /* for errors: "cpu" */
    int64_t budget_bytes; /* 0 is none */
    int64_t held_bytes, held_bytes_peak;
    int64_t taken_n; /* segments taken since the start */
};

/* Host memory, mapped by page and zeroed, with huge pages advised. */
void mem_source_init_host(struct mem_source *s, int64_t budget_bytes);
/* ST_OOM with need, held and budget. Nothing is held after a failure. */
enum status
mem_source_take(struct mem_source *s, int64_t size_bytes, void **out, struct err *e) NODISCARD;
/* `size_bytes` as taken. */
void mem_source_give(struct mem_source *s, void *p, int64_t size_bytes);

#endif
