/* conf.c - reading the allocator's configuration. */
#include "mem/pool/conf.h"

#include "base/mem.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((int64_t)1 << 20)
#define LARGE_SEGMENT_MB_DEFAULT 20
#define LARGE_SEGMENT_MB_ABOVE 10 /* requests from here on have segments of their own */
#define REGISTER_THREADS_MAX 128
#define RESERVE_MAX 1.125

void mem_pool_conf_init(struct mem_pool_conf *c)
{
    *c = (struct mem_pool_conf){
        .max_split_size_bytes = MEM_POOL_UNLIMITED,
        .max_non_split_rounding_bytes = LARGE_SEGMENT_MB_DEFAULT * MIB,
        .large_segment_bytes = LARGE_SEGMENT_MB_DEFAULT * MIB,
        .per_process_memory_fraction = 1,
        .expandable_segments_reserve = RESERVE_MAX,
        .pinned_num_register_threads = 1};
}

/* Words and the marks between them. */

struct parser {
    struct mem_pool_conf *c;
    VEC(char *) words; /* at least one character each */
    size_t at;         /* of the word being read */
    struct str *warnings;
    struct err *e;
};

static void words_add(struct parser *p, struct str *word)
{
    if (word->n)
        vec_push(&p->words, mem_strdup(word->data));
    str_clear(word);
}

static void split_words(struct parser *p, const char *text)
{
    struct str word;
    str_init(&word);
    for (; *text; text++) {
        if (strchr(",:[]", *text)) {
            words_add(p, &word);
            str_add_n(&word, text, 1);
            words_add(p, &word);
        } else if (!isspace((unsigned char)*text)) {
            str_add_n(&word, text, 1);
        }
    }
    words_add(p, &word);
    str_release(&word);
}

static bool is_word(const struct parser *p, size_t at, const char *word)
{
    return at < p->words.n && strcmp(p->words.data[at], word) == 0;
}

static enum status next(struct parser *p, const char **word)
{
    *word = "";
    if (p->at + 1 >= p->words.n)
        return err_set(p->e, ST_INVALID, "Index out of bounds in ConfigTokenizer");
    *word = p->words.data[++p->at];
    return ST_OK;
}

static enum status expect(struct parser *p, const char *mark)
{
    const char *word;
    TRY(next(p, &word));
    if (strcmp(word, mark) == 0)
        return ST_OK;
    return err_set(
        p->e, ST_INVALID, "Expected '%s' at index %zu in ConfigTokenizer but got '%s'", mark, p->at,
        word);
}

/* Values: after the key comes a colon. */

static enum status read_bool(struct parser *p, bool *out)
{
    const char *word;
    TRY(expect(p, ":"));
    TRY(next(p, &word));
    *out = strcmp(word, "True") == 0;
    if (*out || strcmp(word, "False") == 0)
        return ST_OK;
    return err_set(
        p->e, ST_INVALID, "Expected 'True' or 'False' at index %zu in ConfigTokenizer but got '%s'",
        p->at, word);
}

/* stoull: leading digits count; a minus sign wraps around. */
static enum status size_of_word(struct parser *p, const char *word, uint64_t *out)
{
    char *end;
    errno = 0;
    unsigned long long n = strtoull(word, &end, 10);
    if (end == word)
        return err_set(p->e, ST_INVALID, "stoull: \"%s\" is not a number", word);
    if (errno == ERANGE)
        return err_set(p->e, ST_INVALID, "stoull: \"%s\" is out of range", word);
    *out = n;
    return ST_OK;
}

static enum status read_size(struct parser *p, uint64_t *out)
{
    const char *word;
    TRY(expect(p, ":"));
    TRY(next(p, &word));
    return size_of_word(p, word, out);
}

static enum status read_double(struct parser *p, double *out)
{
    const char *word;
    char *end;
    TRY(expect(p, ":"));
    TRY(next(p, &word));
    *out = strtod(word, &end);
    if (end == word)
        return err_set(p->e, ST_INVALID, "stod: \"%s\" is not a number", word);
    return ST_OK;
}

/* MB as bytes; more than any device has is without limit. */
static int64_t mb_to_bytes(uint64_t mb)
{
    return mb >= (uint64_t)(MEM_POOL_UNLIMITED / MIB) ? MEM_POOL_UNLIMITED : (int64_t)mb * MIB;
}

static bool is_power_of_2(uint64_t n)
{
    return n && (n & (n - 1)) == 0;
}

/* One reader for each option. */

static enum status read_backend(struct parser *p)
{
    const char *word;
    TRY(expect(p, ":"));
    TRY(next(p, &word));
    p->c->backend = strcmp(word, "native") == 0 ? MEM_POOL_NATIVE : MEM_POOL_CUDA_MALLOC_ASYNC;
    if (p->c->backend == MEM_POOL_NATIVE || strcmp(word, "cudaMallocAsync") == 0)
        return ST_OK;
    return err_set(
        p->e, ST_INVALID, "Unknown allocator backend, options are native and cudaMallocAsync");
}

static enum status read_large_segment_size(struct parser *p)
{
    uint64_t mb;
    TRY(read_size(p, &mb));
    if (mb <= LARGE_SEGMENT_MB_ABOVE)
        return err_set(
            p->e, ST_INVALID, "CachingAllocator option large_segment_size_mb must be > %d MB",
            LARGE_SEGMENT_MB_ABOVE);
    int64_t bytes = mb_to_bytes(mb), bytes_max = (int64_t)1 << 50;
    p->c->large_segment_bytes = bytes < bytes_max ? bytes : bytes_max;
    return ST_OK;
}

/* Sizes that no segment of large requests may pass. */
static enum status read_least(struct parser *p, const char *name, int64_t *out)
{
    uint64_t mb, least = (uint64_t)(p->c->large_segment_bytes / MIB);
    TRY(read_size(p, &mb));
    if (mb < least)
        return err_set(
            p->e, ST_INVALID, "CachingAllocator option %s too small, must be >= %llu", name,
            (unsigned long long)least);
    *out = mb_to_bytes(mb);
    return ST_OK;
}

static enum status read_max_split_size(struct parser *p)
{
    return read_least(p, "max_split_size_mb", &p->c->max_split_size_bytes);
}

static enum status read_max_non_split_rounding(struct parser *p)
{
    return read_least(p, "max_non_split_rounding_mb", &p->c->max_non_split_rounding_bytes);
}

static enum status read_threshold(struct parser *p)
{
    double part;
    TRY(read_double(p, &part));
    if (!(part > 0 && part < 1))
        return err_set(
            p->e, ST_INVALID, "garbage_collect_threshold is invalid, set it in (0.0, 1.0)");
    p->c->garbage_collection_threshold = part;
    return ST_OK;
}

static enum status read_fraction(struct parser *p)
{
    double part;
    TRY(read_double(p, &part));
    if (!(part >= 0 && part <= 1))
        return err_set(
            p->e, ST_INVALID, "per_process_memory_fraction is invalid, set it in [0.0, 1.0]");
    p->c->per_process_memory_fraction = part;
    return ST_OK;
}

static void fill_divisions(struct mem_pool_conf *c, size_t from, size_t to, uint64_t divisions)
{
    for (size_t i = from; i < to; i++)
        c->roundup_power2_divisions[i] = (int64_t)divisions;
}

/* "512:2" or ">:8"; *from is the first interval without an entry. */
static enum status read_division(struct parser *p, const char *word, size_t *from)
{
    uint64_t mb = 0, divisions;
    TRY(read_size(p, &divisions));
    if (divisions && !is_power_of_2(divisions))
        return err_set(
            p->e, ST_INVALID,
            "For roundups, the divisions has to be power of 2 or 0 to disable roundup ");
    if (strcmp(word, ">") == 0) {
        fill_divisions(p->c, *from, MEM_POOL_DIVISIONS_N, divisions);
        return ST_OK;
    }
    TRY(size_of_word(p, word, &mb));
    if (!is_power_of_2(mb))
        return err_set(p->e, ST_INVALID, "For roundups, the intervals have to be power of 2 ");
    size_t i = (size_t)__builtin_ctzll(mb);
    i = i < MEM_POOL_DIVISIONS_N ? i : MEM_POOL_DIVISIONS_N - 1;
    fill_divisions(p->c, *from < i ? *from : i, i + 1, divisions);
    *from = i + 1;
    return ST_OK;
}

static enum status read_division_list(struct parser *p)
{
    const char *word;
    size_t from = 0;
    for (;;) {
        if (p->at + 1 >= p->words.n)
            return err_set(
                p->e, ST_INVALID,
                "Expected closing bracket ']' in ConfigTokenizer but reached end of config");
        TRY(next(p, &word));
        if (strcmp(word, "]") == 0)
            return ST_OK;
        TRY(read_division(p, word, &from));
        if (!is_word(p, p->at + 1, "]"))
            TRY(expect(p, ","));
    }
}

static enum status read_roundup_power2_divisions(struct parser *p)
{
    uint64_t divisions;
    if (is_word(p, p->at + 1, ":") && is_word(p, p->at + 2, "[")) {
        p->at += 2;
        return read_division_list(p);
    }
    TRY(read_size(p, &divisions));
    if (!is_power_of_2(divisions))
        return err_set(p->e, ST_INVALID, "For roundups, the divisions has to be power of 2 ");
    fill_divisions(p->c, 0, MEM_POOL_DIVISIONS_N, divisions);
    return ST_OK;
}

/* A value, or a list in brackets, that nothing is done with. */
static enum status read_skip(struct parser *p)
{
    const char *word;
    TRY(expect(p, ":"));
    TRY(next(p, &word));
    if (strcmp(word, "[") != 0)
        return ST_OK;
    while (strcmp(word, "]") != 0) {
        if (p->at + 1 >= p->words.n)
            return err_set(
                p->e, ST_INVALID,
                "Expected closing bracket ']' in ConfigTokenizer but reached end of config");
        TRY(next(p, &word));
    }
    return ST_OK;
}

/* "0.5" of the device, or "40G". Not worth an error: a smaller range only ends sooner. */
static enum status read_reserve(struct parser *p)
{
    static const char units[] = "KMGT";
    const char *word;
    char *end;
    TRY(expect(p, ":"));
    TRY(next(p, &word));
    double v = strtod(word, &end);
    const char *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    p->c->expandable_segments_reserve_bytes = 0;
    if (end != word && !*end && v > 0 && v <= RESERVE_MAX) {
        p->c->expandable_segments_reserve = v;
    } else if (end != word && unit && v > 0 && v <= 0x1p20) {
        double bytes = ldexp(v, 10 * (int)(unit - units + 1));
        p->c->expandable_segments_reserve_bytes = (int64_t)fmin(bytes, 0x1p60);
    } else if (p->warnings) {
        str_printf(
            p->warnings,
            "expandable_segments_reserve: \"%s\" is neither a part of the device nor "
            "a size, so it is ignored\n",
            word);
    }
    return ST_OK;
}

static enum status read_pinned_num_register_threads(struct parser *p)
{
    uint64_t n;
    TRY(read_size(p, &n));
    if (!is_power_of_2(n))
        return err_set(
            p->e, ST_INVALID, "Number of register threads has to be power of 2, got %llu",
            (unsigned long long)n);
    if (n > REGISTER_THREADS_MAX)
        return err_set(
            p->e, ST_INVALID,
            "Number of register threads should be less than or equal to %d, got %llu",
            REGISTER_THREADS_MAX, (unsigned long long)n);
    p->c->pinned_num_register_threads = (int64_t)n;
    return ST_OK;
}

static enum status read_pinned_reserve_segment_size(struct parser *p)
{
    uint64_t mb;
    TRY(read_size(p, &mb));
    p->c->pinned_reserve_segment_size_bytes = mb_to_bytes(mb);
    return ST_OK;
}

#define BOOL(name)                                                                                 \
    static enum status read_##name(struct parser *p)                                               \
    {                                                                                              \
        return read_bool(p, &p->c->name);                                                          \
    }
BOOL(expandable_segments)
BOOL(graph_capture_record_stream_reuse)
BOOL(pinned_free_catch_all)
BOOL(pinned_use_background_threads)
BOOL(pinned_use_cuda_host_register)
BOOL(release_lock_on_cudamalloc)
BOOL(throw_on_cudamalloc_oom)

static const struct option {
    const char *key;
    enum status (*read)(struct parser *p);
    bool native;
} options[] = {
#define OPTION(key, reader, native) {#key, read_##reader, native},
#include "mem/pool/conf_options.def"
};

static const struct option *find_option(const char *key)
{
    /* As PyTorch does, both names of the platform are known. */
    if (strcmp(key, "release_lock_on_hipmalloc") == 0)
        key = "release_lock_on_cudamalloc";
    if (strcmp(key, "pinned_use_hip_host_register") == 0)
        key = "pinned_use_cuda_host_register";
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (strcmp(options[i].key, key) == 0)
            return &options[i];
    return NULL;
}

/* The other sizes are measured by it, wherever it stands. */
static enum status read_large_segment_first(struct parser *p)
{
    for (p->at = 0; p->at < p->words.n; p->at++)
        if (is_word(p, p->at, "large_segment_size_mb")) {
            TRY(read_large_segment_size(p));
            p->c->max_non_split_rounding_bytes = p->c->large_segment_bytes;
        }
    return ST_OK;
}

static enum status read_options(struct parser *p)
{
    bool native = false;
    TRY(read_large_segment_first(p));
    for (p->at = 0; p->at < p->words.n; p->at++) {
        const char *key = p->words.data[p->at];
        const struct option *o = find_option(key);
        if (!o)
            return err_set(
                p->e, ST_INVALID, "Unrecognized key '%s' in CUDA allocator config.", key);
        TRY(o->read(p));
        native = native || o->native;
        if (p->at + 1 < p->words.n)
            TRY(expect(p, ","));
    }
    if (native && p->c->backend == MEM_POOL_CUDA_MALLOC_ASYNC && p->warnings)
        str_add(
            p->warnings, "backend:cudaMallocAsync ignores max_split_size_mb,"
                         "roundup_power2_divisions, and garbage_collect_threshold.\n");
    return ST_OK;
}

enum status
mem_pool_conf_parse(struct mem_pool_conf *c, const char *text, struct str *warnings, struct err *e)
{
    struct mem_pool_conf parsed = *c;
    struct parser p = {.c = &parsed, .warnings = warnings, .e = e};
    parsed.max_split_size_bytes = MEM_POOL_UNLIMITED;
    parsed.garbage_collection_threshold = 0;
    fill_divisions(&parsed, 0, MEM_POOL_DIVISIONS_N, 0);
    (void)snprintf(parsed.text, sizeof parsed.text, "%s", text);
    split_words(&p, text);
    enum status st = read_options(&p);
    for (size_t i = 0; i < p.words.n; i++)
        mem_free(p.words.data[i]);
    vec_release(&p.words);
    if (st == ST_OK)
        *c = parsed;
    return st;
}

enum status mem_pool_conf_env(struct mem_pool_conf *c, struct str *warnings, struct err *e)
{
    static const char *const names[] = {
        "SNUG_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"};
    const char *text = NULL;
    size_t i = 0;
    mem_pool_conf_init(c);
    for (; i < sizeof names / sizeof *names && !text; i++)
        text = getenv(names[i]);
    if (text) {
        enum status st = mem_pool_conf_parse(c, text, warnings, e);
        if (st != ST_OK) {
            err_prefix(e, "%s", names[i - 1]);
            return st;
        }
        c->variable = names[i - 1];
    }
    c->no_caching = getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") != NULL;
    return ST_OK;
}
