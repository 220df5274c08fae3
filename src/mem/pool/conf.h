/* conf.h - the allocator's configuration: the text of PYTORCH_ALLOC_CONF as numbers.
 *
 * FORMAT  `key:value` pairs with commas between them; white space is ignored anywhere, also inside
 * words. Integers and floats are read as C++'s stoull and stod read them (a leading number counts,
 * what follows it in the word is ignored). Booleans are True or False.
 *   backend:native|cudaMallocAsync           max_split_size_mb:N          N >= large segment size
 *   large_segment_size_mb:N   N > 10         max_non_split_rounding_mb:N  the same
 *   garbage_collection_threshold:F  0<F<1    per_process_memory_fraction:F     0 <= F <= 1
 *   expandable_segments:BOOL                 expandable_segments_reserve[_by_class]:F|SIZE
 *   roundup_power2_divisions:N, or [256:1,512:2,1024:4,>:8] with boundaries in MB
 *   release_lock_on_cudamalloc, throw_on_cudamalloc_oom, graph_capture_record_stream_reuse,
 *   pinned_use_cuda_host_register, pinned_use_background_threads, pinned_free_catch_all: BOOL
 *   pinned_num_register_threads:N   a power of two up to 128
 *   pinned_reserve_segment_size_mb:N
 * A list of divisions: the first entry fills the lower intervals too, each fills up to its own,
 * `>` the rest. Errors have PyTorch's texts. The large segment size is read before the rest.
 *
 * Environment: SNUG_ALLOC_CONF, else PYTORCH_ALLOC_CONF, else PYTORCH_CUDA_ALLOC_CONF; the first
 * that is set counts, also when it is empty. PYTORCH_NO_CUDA_MEMORY_CACHING=1 (any value) turns
 * the cache off.
 */
#ifndef MEM_POOL_CONF_H
#define MEM_POOL_CONF_H

#include "base/err.h"
#include "base/str.h"

#include <stddef.h>
#include <stdint.h>

#define MEM_POOL_UNLIMITED INT64_MAX
enum { MEM_POOL_DIVISIONS_N = 16 };

enum mem_pool_backend { MEM_POOL_NATIVE, MEM_POOL_CUDA_MALLOC_ASYNC };

struct mem_pool_conf {
    enum mem_pool_backend backend; /* stored; the pool is always the native one */
    int64_t max_split_size_bytes;  /* MEM_POOL_UNLIMITED */
    int64_t max_non_split_rounding_bytes;
    int64_t large_segment_bytes;
    /* Of requests by size: entry i for [2^i, 2^(i+1)) MiB, the first also for all below, the last
     * for all above. 0 and 1: none. */
    int64_t roundup_power2_divisions[MEM_POOL_DIVISIONS_N];
    double garbage_collection_threshold; /* 0: off */
    double per_process_memory_fraction;  /* 1: no limit */
    bool expandable_segments;
    double expandable_segments_reserve; /* address space as a part of the device; up to 9/8 */
    int64_t expandable_segments_reserve_bytes; /* the same in bytes; 0: as a part */
    bool release_lock_on_cudamalloc, throw_on_cudamalloc_oom;
    bool no_caching; /* every request is a segment of its own */
    /* Stored only. */
    bool graph_capture_record_stream_reuse;
    bool pinned_use_cuda_host_register, pinned_use_background_threads, pinned_free_catch_all;
    int64_t pinned_num_register_threads, pinned_reserve_segment_size_bytes;
    char text[512];       /* what was parsed, cut to fit */
    const char *variable; /* the environment variable it came from, or NULL */
};

void mem_pool_conf_init(struct mem_pool_conf *c); /* PyTorch's defaults */
/* Reads `text` into `c`, which has been set up: max_split_size, rounding, divisions and the
 * threshold start from their defaults again, the other options keep their values unless named.
 * ST_INVALID; then `c` is unchanged. `warnings` (may be NULL) gets a line for each option that is
 * accepted without effect. */
enum status mem_pool_conf_parse(
    struct mem_pool_conf *c, const char *text, struct str *warnings, struct err *e) NODISCARD;
/* Defaults, then the environment. `e` names the variable. */
enum status
mem_pool_conf_env(struct mem_pool_conf *c, struct str *warnings, struct err *e) NODISCARD;

#endif
