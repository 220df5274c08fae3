/* cache.h - what outlives a run in its process: outputs of nodes, and weights of canvas layers.
 *
 *     struct run_cache *c = run_cache_new(&(struct run_cache_limits){0});
 *     run_cache_begin(c, changed, keeps_weights); options.cache = c; run_execute ...     per run
 *     run_cache_free(c);
 *
 * OUTPUTS  An entry is the outputs of one node, found again by the node's id, type, parameters,
 * device, seed and the contents of its inputs. Only nodes whose inputs and outputs are values
 * (tensors, numbers, texts, lists) have one: models, optimizers, schedulers, loaders and whatever
 * reads them are live, and a second run must not begin where the first ended. An input that is a
 * known data set counts as its node's parameters and the names, sizes and times of its files.
 * Nodes that the table calls UNCACHED have no entry, nor have those that write files.
 *
 * WEIGHTS  Layers of the canvas keep theirs under the node's id, as long as type and parameters are
 * the same. They are measured when they are made.
 *
 * LIMITS (S1)  256 outputs and 1 GiB, 200 layers and 1 GiB; the least recently used go first. What
 * is larger than the limit of bytes is not kept at all. Bytes are those of tensors' storages (S2)
 * and of texts.
 *
 * One thread; a cache serves one run at a time.
 */
#ifndef RUNNER_CACHE_H
#define RUNNER_CACHE_H

#include "base/json.h"

enum { RUN_CACHE_ENTRIES = 256, RUN_CACHE_MODULES = 200 };
struct run_cache;
struct run_cache_limits {
    int64_t output_bytes_max, weight_bytes_max; /* 0: no limit of bytes */
};
/* The limits of SNUG_EXECUTION_CACHE_MAX_MB and SNUG_NODE_STATE_STORE_MAX_MB (MiB; 0: none), or
 * their keys of config.json in lower case without SNUG_; 1024 each. */
enum status run_cache_limits_read(struct run_cache_limits *out, struct err *e) NODISCARD;
struct run_cache *run_cache_new(const struct run_cache_limits *l);
void run_cache_free(struct run_cache *c); /* NULL is fine */

/* Before a run. `changed`: an array of node ids whose outputs are not used again, or NULL. Without
 * keeps_weights layers start anew, and what they have is left as it is. */
void run_cache_begin(struct run_cache *c, const json_t *changed, bool keeps_weights);
/* Everything, or with node ids only theirs; returns how many layers went. */
int64_t run_cache_clear_weights(struct run_cache *c, const json_t *nodes);
void run_cache_clear_outputs(struct run_cache *c);

struct run_cache_stats {
    int64_t entries, bytes, bytes_max, entries_max;
    int64_t modules, weight_bytes, weight_bytes_max, modules_max;
};
struct run_cache_stats run_cache_stats(const struct run_cache *c);
/* The nodes whose weights are kept: [ids], a new reference. */
json_t *run_cache_modules(const struct run_cache *c);

#endif
