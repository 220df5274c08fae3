/* stats.h - the statistics of the pool: records as in torch.cuda.memory_stats, and their texts.
 *
 * Source: PyTorch's documentation of torch.cuda.memory_stats and torch.cuda.memory_summary.
 */
#ifndef MEM_POOL_STATS_H
#define MEM_POOL_STATS_H

#include "base/str.h"

#include <stdint.h>

enum mem_stat_of { MEM_STAT_ALL, MEM_STAT_LARGE, MEM_STAT_SMALL, MEM_STAT_OF_N };

/* `allocated` and `freed` are the sums of all increases and decreases; current is what remains of
 * them unless they were reset. */
struct mem_stat {
    int64_t current, peak, allocated, freed;
};

struct mem_pool_stats {
#define ARRAY(name) struct mem_stat name[MEM_STAT_OF_N];
#define RECORD(name) struct mem_stat name;
#define SCALAR(name) int64_t name;
#include "mem/pool/stats.def"
    int64_t max_split_size; /* -1: unlimited */
};

/* One flat JSON object with sorted keys, "active.all.allocated" and so on, as memory_stats gives
 * it. */
void mem_pool_stats_json(const struct mem_pool_stats *s, struct str *out);

/* The table of torch.cuda.memory_summary, lines of 77 characters, each ended by a newline;
 * abbreviated without the rows of the two pools. */
void mem_pool_summary(
    const struct mem_pool_stats *s, int device_id, bool abbreviated, struct str *out);

#endif
