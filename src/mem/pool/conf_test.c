/* conf_test.c - the allocator's configuration: every option, its limits, its errors; the summary.
 */
#include "base/mem.h"
#include "mem/pool/pool_support.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

static enum status parse(struct mem_pool_conf *c, const char *text, struct err *e)
{
    mem_pool_conf_init(c);
    memset(e, 0, sizeof *e);
    return mem_pool_conf_parse(c, text, NULL, e);
}

TEST(conf_defaults, "an empty text leaves PyTorch's defaults")
{
    struct mem_pool_conf c;
    struct err e;
    CHECK_OK(parse(&c, " \t ", &e), &e);
    CHECK(c.backend == MEM_POOL_NATIVE && c.max_split_size_bytes == MEM_POOL_UNLIMITED);
    CHECK_EQ(c.max_non_split_rounding_bytes, 20 * MIB);
    CHECK_EQ(c.large_segment_bytes, 20 * MIB);
    CHECK(c.garbage_collection_threshold == 0 && c.per_process_memory_fraction == 1);
    CHECK(!c.expandable_segments && !c.no_caching && !c.release_lock_on_cudamalloc);
    CHECK_EQ(c.pinned_num_register_threads, 1);
    for (int i = 0; i < MEM_POOL_DIVISIONS_N; i++)
        CHECK_EQ(c.roundup_power2_divisions[i], 0);
}

TEST(conf_options, "every option is read, with white space anywhere")
{
    struct mem_pool_conf c;
    struct err e;
    CHECK_OK(
        parse(
            &c,
            "backend:native, max_split_size_mb : 1 28,\tgarbage_collection_threshold:0.8,"
            "expandable_segments:True,per_process_memory_fraction:0.25,"
            "max_non_split_rounding_mb:64,large_segment_size_mb:32,"
            "release_lock_on_cudamalloc:True,throw_on_cudamalloc_oom:True,"
            "graph_capture_record_stream_reuse:True,pinned_use_cuda_host_register:True,"
            "pinned_num_register_threads:8,pinned_use_background_threads:True,"
            "pinned_reserve_segment_size_mb:4,pinned_free_catch_all:True,"
            "expandable_segments_reserve:0.5,expandable_segments_reserve_by_class:[a:0.5,b:4G]",
            &e),
        &e);
    CHECK_EQ(c.max_split_size_bytes, 128 * MIB);
    CHECK_NEAR(c.garbage_collection_threshold, 0.8, 0);
    CHECK_NEAR(c.per_process_memory_fraction, 0.25, 0);
    CHECK_EQ(c.max_non_split_rounding_bytes, 64 * MIB);
    CHECK_EQ(c.large_segment_bytes, 32 * MIB);
    CHECK(c.expandable_segments && c.release_lock_on_cudamalloc && c.throw_on_cudamalloc_oom);
    CHECK(c.graph_capture_record_stream_reuse && c.pinned_use_cuda_host_register);
    CHECK(c.pinned_use_background_threads && c.pinned_free_catch_all);
    CHECK_EQ(c.pinned_num_register_threads, 8);
    CHECK_EQ(c.pinned_reserve_segment_size_bytes, 4 * MIB);
    CHECK_NEAR(c.expandable_segments_reserve, 0.5, 0);
    CHECK_OK(parse(&c, "expandable_segments_reserve:40G", &e), &e);
    CHECK_EQ(c.expandable_segments_reserve_bytes, 40 * GIB);
    CHECK_OK(parse(&c, "large_segment_size_mb:32", &e), &e);
    CHECK_EQ(c.max_non_split_rounding_bytes, 32 * MIB);
    CHECK_OK(parse(&c, "max_split_size_mb:99999999999999999", &e), &e);
    CHECK(c.max_split_size_bytes == MEM_POOL_UNLIMITED);
    CHECK_OK(parse(&c, "max_split_size_mb:25abc,", &e), &e); /* as stoull reads it */
    CHECK_EQ(c.max_split_size_bytes, 25 * MIB);
}

TEST(conf_divisions, "a list of divisions fills up to each interval, and > the rest")
{
    static const int64_t want[MEM_POOL_DIVISIONS_N] = {1, 1, 1, 1, 1, 1, 1, 1,
                                                       1, 2, 4, 8, 8, 8, 8, 8};
    struct mem_pool_conf c;
    struct err e;
    CHECK_OK(parse(&c, "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", &e), &e);
    for (int i = 0; i < MEM_POOL_DIVISIONS_N; i++)
        CHECK_EQ(c.roundup_power2_divisions[i], want[i]);
    CHECK_OK(parse(&c, "roundup_power2_divisions:[64:8,256:0]", &e), &e);
    CHECK_EQ(c.roundup_power2_divisions[0], 8);
    CHECK_EQ(c.roundup_power2_divisions[6], 8);
    CHECK_EQ(c.roundup_power2_divisions[7], 0);
    CHECK_EQ(c.roundup_power2_divisions[9], 0);
    CHECK_OK(parse(&c, "roundup_power2_divisions:16", &e), &e);
    CHECK_EQ(c.roundup_power2_divisions[15], 16);
}

TEST(conf_errors, "errors have PyTorch's texts, and nothing is changed by a text that has one")
{
    static const struct {
        const char *text, *error;
    } rows[] = {
        {"x:1", "Unrecognized key 'x' in CUDA allocator config."},
        {"'max_split_size_mb:128'",
         "Unrecognized key ''max_split_size_mb' in CUDA allocator config."},
        {"max_split_size_mb:19",
         "CachingAllocator option max_split_size_mb too small, must be >= 20"},
        {"large_segment_size_mb:64,max_split_size_mb:63",
         "CachingAllocator option max_split_size_mb too small, must be >= 64"},
        {"max_split_size_mb:63,large_segment_size_mb:64",
         "CachingAllocator option max_split_size_mb too small, must be >= 64"},
        {"max_non_split_rounding_mb:1",
         "CachingAllocator option max_non_split_rounding_mb too small, must be >= 20"},
        {"large_segment_size_mb:10",
         "CachingAllocator option large_segment_size_mb must be > 10 MB"},
        {"garbage_collection_threshold:1.0",
         "garbage_collect_threshold is invalid, set it in (0.0, 1.0)"},
        {"garbage_collection_threshold:nan",
         "garbage_collect_threshold is invalid, set it in (0.0, 1.0)"},
        {"per_process_memory_fraction:1.01",
         "per_process_memory_fraction is invalid, set it in [0.0, 1.0]"},
        {"backend:other", "Unknown allocator backend, options are native and cudaMallocAsync"},
        {"expandable_segments:true",
         "Expected 'True' or 'False' at index 2 in ConfigTokenizer but got 'true'"},
        {"roundup_power2_divisions:3", "For roundups, the divisions has to be power of 2 "},
        {"roundup_power2_divisions:[256:3]",
         "For roundups, the divisions has to be power of 2 or 0 to disable roundup "},
        {"roundup_power2_divisions:[200:4]", "For roundups, the intervals have to be power of 2 "},
        {"roundup_power2_divisions:[256:4", "Index out of bounds in ConfigTokenizer"},
        {"roundup_power2_divisions:[256:4,",
         "Expected closing bracket ']' in ConfigTokenizer but reached end of config"},
        {"pinned_num_register_threads:3", "Number of register threads has to be power of 2, got 3"},
        {"pinned_num_register_threads:256",
         "Number of register threads should be less than or equal to 128, got 256"},
        {"max_split_size_mb", "Index out of bounds in ConfigTokenizer"},
        {"max_split_size_mb:", "Index out of bounds in ConfigTokenizer"},
        {"max_split_size_mb:lots", "stoull: \"lots\" is not a number"},
        {"max_split_size_mb=128",
         "Unrecognized key 'max_split_size_mb=128' in CUDA allocator config."},
        {"max_split_size_mb:128;expandable_segments:True",
         "Expected ',' at index 3 in ConfigTokenizer but got ':'"},
        {",", "Unrecognized key ',' in CUDA allocator config."},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct mem_pool_conf c, was;
        struct err e = {0};
        mem_pool_conf_init(&c);
        c.expandable_segments_reserve = 0.75;
        was = c;
        CHECK_EQ(mem_pool_conf_parse(&c, rows[i].text, NULL, &e), ST_INVALID);
        CHECK_STR(e.text, rows[i].error);
        CHECK(memcmp(&c, &was, sizeof c) == 0);
    }
}

TEST(conf_again, "a second text starts sizes and threshold anew, and keeps the other options")
{
    struct mem_pool_conf c;
    struct err e;
    CHECK_OK(
        parse(
            &c,
            "max_split_size_mb:64,garbage_collection_threshold:0.5,roundup_power2_divisions:4,"
            "expandable_segments:True,max_non_split_rounding_mb:40",
            &e),
        &e);
    CHECK_OK(mem_pool_conf_parse(&c, "", NULL, &e), &e);
    CHECK(c.max_split_size_bytes == MEM_POOL_UNLIMITED && c.garbage_collection_threshold == 0);
    CHECK_EQ(c.roundup_power2_divisions[3], 0);
    CHECK(c.expandable_segments);
    CHECK_EQ(c.max_non_split_rounding_bytes, 40 * MIB);
}

TEST(conf_warnings, "what is accepted without effect is said")
{
    struct mem_pool_conf c;
    struct err e = {0};
    struct str s;
    str_init(&s);
    mem_pool_conf_init(&c);
    CHECK_OK(mem_pool_conf_parse(&c, "backend:cudaMallocAsync,max_split_size_mb:64", &s, &e), &e);
    CHECK(strstr(s.data, "backend:cudaMallocAsync ignores max_split_size_mb"));
    str_clear(&s);
    CHECK_OK(mem_pool_conf_parse(&c, "expandable_segments_reserve:much", &s, &e), &e);
    CHECK(strstr(s.data, "\"much\""));
    CHECK_NEAR(c.expandable_segments_reserve, 1.125, 0);
    str_release(&s);
}

TEST(conf_environment, "our variable counts before PyTorch's, the newer before the older")
{
    struct mem_pool_conf c;
    struct err e = {0};
    CHECK_EQ(setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:30", 1), 0);
    CHECK_OK(mem_pool_conf_env(&c, NULL, &e), &e);
    CHECK_STR(c.variable, "PYTORCH_CUDA_ALLOC_CONF");
    CHECK_EQ(c.max_split_size_bytes, 30 * MIB);
    CHECK_EQ(setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:40", 1), 0);
    CHECK_OK(mem_pool_conf_env(&c, NULL, &e), &e);
    CHECK_STR(c.variable, "PYTORCH_ALLOC_CONF");
    CHECK_STR(c.text, "max_split_size_mb:40");
    CHECK_EQ(setenv("SNUG_ALLOC_CONF", "", 1), 0);
    CHECK_EQ(setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", 1), 0);
    CHECK_OK(mem_pool_conf_env(&c, NULL, &e), &e);
    CHECK_STR(c.variable, "SNUG_ALLOC_CONF");
    CHECK(c.max_split_size_bytes == MEM_POOL_UNLIMITED && c.no_caching);
    CHECK_EQ(setenv("SNUG_ALLOC_CONF", "nonsense", 1), 0);
    CHECK_EQ(mem_pool_conf_env(&c, NULL, &e), ST_INVALID);
    CHECK_STR(e.text, "SNUG_ALLOC_CONF: Unrecognized key 'nonsense' in CUDA allocator config.");
}

/* Sums of the calls below; the pool is that of a card of 24 GiB. */
static void small_history(struct world *w)
{
    struct mem_block *big = world_get(w, 3 * GIB + 5 * MIB), *mid = world_get(w, 5 * MIB);
    struct mem_block *many[100];
    for (int i = 0; i < 100; i++)
        many[i] = world_get(w, 1000 * (i + 1));
    for (int i = 0; i < 100; i += 2)
        world_give(w, many[i]);
    world_give(w, big);
    world_give(w, mid);
    (void)world_get(w, 900 * MIB);
    CHECK(!world_try(w, 30 * GIB));
}

static const char full_table[] =
    "|===========================================================================|\n"
    "|                  PyTorch CUDA memory summary, device ID 0                 |\n"
    "|---------------------------------------------------------------------------|\n"
    "|            CUDA OOMs: 1            |        cudaMalloc retries: 1         |\n"
    "|===========================================================================|\n"
    "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |\n"
    "|---------------------------------------------------------------------------|\n"
    "| Allocated memory      |    902 MiB |   3087 MiB |   3987 MiB |   3085 MiB |\n"
    "|       from large pool |    900 MiB |   3083 MiB |   3983 MiB |   3083 MiB |\n"
    "|       from small pool |      2 MiB |      4 MiB |      4 MiB |      2 MiB |\n"
    "|---------------------------------------------------------------------------|\n"
    "| Active memory         |    902 MiB |   3087 MiB |   3987 MiB |   3085 MiB |\n"
    "|       from large pool |    900 MiB |   3083 MiB |   3983 MiB |   3083 MiB |\n"
    "|       from small pool |      2 MiB |      4 MiB |      4 MiB |      2 MiB |\n"
    "|---------------------------------------------------------------------------|\n"
    "| Requested memory      |    902 MiB |   3086 MiB |   3986 MiB |   3084 MiB |\n"
    "|       from large pool |    900 MiB |   3082 MiB |   3982 MiB |   3082 MiB |\n"
    "|       from small pool |      2 MiB |      4 MiB |      4 MiB |      2 MiB |\n"
    "|---------------------------------------------------------------------------|\n"
    "| GPU reserved memory   |    906 MiB |   4004 MiB |   4004 MiB |   3098 MiB |\n"
    "|       from large pool |    900 MiB |   3998 MiB |   3998 MiB |   3098 MiB |\n"
    "|       from small pool |      6 MiB |      6 MiB |      6 MiB |      0 MiB |\n"
    "|---------------------------------------------------------------------------|\n"
    "| Non-releasable memory |   3642 KiB |  19002 KiB |  23804 KiB |  20162 KiB |\n"
    "|       from large pool |      0 KiB |  15360 KiB |  15360 KiB |  15360 KiB |\n"
    "|       from small pool |   3642 KiB |   3642 KiB |   8444 KiB |   4802 KiB |\n"
    "|---------------------------------------------------------------------------|\n"
    "| Allocations           |      51    |     102    |     103    |      52    |\n"
    "|       from large pool |       1    |       2    |       3    |       2    |\n"
    "|       from small pool |      50    |     100    |     100    |      50    |\n"
    "|---------------------------------------------------------------------------|\n"
    "| Active allocs         |      51    |     102    |     103    |      52    |\n"
    "|       from large pool |       1    |       2    |       3    |       2    |\n"
    "|       from small pool |      50    |     100    |     100    |      50    |\n"
    "|---------------------------------------------------------------------------|\n"
    "| GPU reserved segments |       4    |       6    |       6    |       2    |\n"
    "|       from large pool |       1    |       3    |       3    |       2    |\n"
    "|       from small pool |       3    |       3    |       3    |       0    |\n"
    "|---------------------------------------------------------------------------|\n"
    "| Non-releasable allocs |      53    |      54    |      54    |       1    |\n"
    "|       from large pool |       0    |       1    |       1    |       1    |\n"
    "|       from small pool |      53    |      53    |      53    |       0    |\n"
    "|---------------------------------------------------------------------------|\n"
    "| Oversize allocations  |       0    |       1    |       1    |       1    |\n"
    "|---------------------------------------------------------------------------|\n"
    "| Oversize GPU segments |       0    |       1    |       1    |       1    |\n"
    "|===========================================================================|\n";
static const char short_table[] =
    "|===========================================================================|\n"
    "|                  PyTorch CUDA memory summary, device ID 12                |\n"
    "|---------------------------------------------------------------------------|\n"
    "|            CUDA OOMs: 1            |        cudaMalloc retries: 1         |\n"
    "|===========================================================================|\n"
    "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |\n"
    "|---------------------------------------------------------------------------|\n"
    "| Allocated memory      |    902 MiB |   3087 MiB |   3987 MiB |   3085 MiB |\n"
    "|---------------------------------------------------------------------------|\n"
    "| Active memory         |    902 MiB |   3087 MiB |   3987 MiB |   3085 MiB |\n"
    "|---------------------------------------------------------------------------|\n"
    "| Requested memory      |    902 MiB |   3086 MiB |   3986 MiB |   3084 MiB |\n"
    "|---------------------------------------------------------------------------|\n"
    "| GPU reserved memory   |    906 MiB |   4004 MiB |   4004 MiB |   3098 MiB |\n"
    "|---------------------------------------------------------------------------|\n"
    "| Non-releasable memory |   3642 KiB |  19002 KiB |  23804 KiB |  20162 KiB |\n"
    "|---------------------------------------------------------------------------|\n"
    "| Allocations           |      51    |     102    |     103    |      52    |\n"
    "|---------------------------------------------------------------------------|\n"
    "| Active allocs         |      51    |     102    |     103    |      52    |\n"
    "|---------------------------------------------------------------------------|\n"
    "| GPU reserved segments |       4    |       6    |       6    |       2    |\n"
    "|---------------------------------------------------------------------------|\n"
    "| Non-releasable allocs |      53    |      54    |      54    |       1    |\n"
    "|---------------------------------------------------------------------------|\n"
    "| Oversize allocations  |       0    |       1    |       1    |       1    |\n"
    "|---------------------------------------------------------------------------|\n"
    "| Oversize GPU segments |       0    |       1    |       1    |       1    |\n"
    "|===========================================================================|\n";

TEST(pool_summary, "the table of memory_summary, in full and abbreviated")
{
    struct world w;
    struct str s;
    world_begin(
        &w, &(struct mem_virtual_options){.capacity_bytes = 24 * GIB}, "max_split_size_mb:1024");
    small_history(&w);
    struct mem_pool_stats stats = world_stats(&w);
    str_init(&s);
    mem_pool_summary(&stats, 0, false, &s);
    CHECK_STR(s.data, full_table);
    str_clear(&s);
    mem_pool_summary(&stats, 12, true, &s);
    CHECK_STR(s.data, short_table);
    str_release(&s);
    world_end(&w);
}

TEST(pool_stats_json, "the statistics as one flat object with sorted keys")
{
    struct world w;
    struct str s;
    world_begin(&w, NULL, NULL);
    (void)world_get(&w, 1000);
    struct mem_pool_stats stats = world_stats(&w);
    str_init(&s);
    mem_pool_stats_json(&stats, &s);
    CHECK(strncmp(s.data, "{\"active.all.allocated\": 1, ", 28) == 0);
    CHECK(strstr(s.data, "\"allocated_bytes.small_pool.peak\": 1024, "));
    CHECK(strstr(
        s.data, "\"allocated_bytes.small_pool.peak\": 1024, \"allocation.all.allocated\": 1"));
    CHECK(strstr(s.data, "\"requested_bytes.all.current\": 1000"));
    CHECK(strstr(
        s.data, "\"max_split_size\": -1, \"num_alloc_retries\": 0, \"num_device_alloc\": 1"));
    CHECK(strstr(s.data, "\"oversize_segments.peak\": 0, \"requested_bytes.all.allocated\""));
    CHECK(s.data[s.n - 1] == '}');
    size_t keys = 0;
    for (const char *p = s.data; (p = strstr(p, "\": ")); p++)
        keys++;
    CHECK_EQ(keys, 9 * 12 + 2 * 4 + 6 + 1);
    str_release(&s);
    world_end(&w);
}
