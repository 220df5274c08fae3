/* outputs_test.c - recorded outputs: what is written is what is read, in parts. */
#include "record/outputs.h"

#include "base/env.h"
#include "base/mem.h"
#include "base/rng.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const int64_t cube[] = {2, 3, 4};

/* 0, 1, 2, ... as [2, 3, 4] float32 at "n"."output", a list, a text and a model. */
static const char *recorded(void)
{
    static char dir[1100];
    struct err e = {0};
    struct outputs *o;
    float v[24];
    (void)path_join(test_dir(), "run1", dir, sizeof dir);
    for (int i = 0; i < 24; i++)
        v[i] = (float)i;
    struct record_tensor t = {RECORD_F32, 3, cube, v};
    CHECK_OK(dir_make(dir, &e), &e);
    CHECK_OK(outputs_begin(&o, dir, &e), &e);
    CHECK_OK(outputs_put_tensor(o, "n", "output", &t, &e), &e);
    CHECK_OK(
        outputs_put_value(o, "n", "names", "list", json_pack("[s,s,s]", "a", "b", "a"), &e), &e);
    CHECK_OK(outputs_put_value(o, "m", "path", "string", json_string("/x/y"), &e), &e);
    CHECK_OK(
        outputs_put_value(
            o, "m", "model", "model",
            json_pack("{s:s,s:i,s:i}", "class", "Sequential", "params", 10, "trainable", 8), &e),
        &e);
    outputs_end(o);
    return dir;
}

static void check_slice(const char *dir, const char *slice, const char *shape, const char *values)
{
    struct err e = {0};
    json_t *d = NULL;
    char *text;
    if (outputs_read(dir, "n", "output", slice, 0, &d, &e) != ST_OK)
        test_fail(__FILE__, __LINE__, "slice \"%s\": %s", slice, e.text);
    text = json_text(json_object_get(d, "sliced_shape"), false);
    CHECK_STR(text, shape);
    mem_free(text);
    text = json_text(json_object_get(d, "values"), false);
    CHECK_STR(text, values);
    mem_free(text);
    json_decref(d);
}

TEST(slices_are_those_of_tensors, "W9: a recorded output is read in slices, as tensors are cut")
{
    const char *dir = recorded();
    check_slice(dir, "1,2,3", "[]", "23.0");
    check_slice(dir, "-1,-1,-1", "[]", "23.0");
    check_slice(dir, "0,:,1", "[3]", "[1.0,5.0,9.0]");
    check_slice(dir, "0,1", "[4]", "[4.0,5.0,6.0,7.0]");
    check_slice(dir, ":,0:1,::3", "[2,1,2]", "[[[0.0,3.0]],[[12.0,15.0]]]");
    check_slice(dir, "1, 1:3 ,-2:", "[2,2]", "[[18.0,19.0],[22.0,23.0]]");
    check_slice(dir, "0,2:1", "[0,4]", "[]");
    check_slice(dir, "0,5:9", "[0,4]", "[]");
    check_slice(dir, ",,0", "[2,3]", "[[0.0,4.0,8.0],[12.0,16.0,20.0]]");
}

static enum status try_slice(const char *dir, const char *slice, int64_t max)
{
    struct err e = {0};
    json_t *d = NULL;
    enum status st = outputs_read(dir, "n", "output", slice, max, &d, &e);
    json_decref(d);
    return st;
}

/* A random place of a slice, its text, and which indices it takes. */
static size_t random_piece(struct rng *r, int64_t size, char *text, size_t cap, bool taken[16])
{
    int64_t start = (int64_t)rng_below(r, (uint64_t)(2 * size + 3)) - size - 1;
    int64_t stop = (int64_t)rng_below(r, (uint64_t)(2 * size + 3)) - size - 1;
    int64_t step = 1 + (int64_t)rng_below(r, 3);
    unsigned form = rng_u32(r) % 4;
    memset(taken, 0, 16);
    if (form == 0 && size > 0) { /* an index */
        int64_t at = (int64_t)rng_below(r, (uint64_t)(2 * size)) - size;
        taken[at < 0 ? at + size : at] = true;
        return (size_t)snprintf(text, cap, "%lld", (long long)at);
    }
    bool has_start = form & 1, has_stop = form & 2;
    int64_t from = has_start ? (start < 0 ? start + size : start) : 0;
    int64_t to = has_stop ? (stop < 0 ? stop + size : stop) : size;
    for (int64_t i = from < 0 ? 0 : from; i < (to < size ? to : size); i += step)
        taken[i] = true;
    char a[24] = "", b[24] = "";
    if (has_start)
        (void)snprintf(a, sizeof a, "%lld", (long long)start);
    if (has_stop)
        (void)snprintf(b, sizeof b, "%lld", (long long)stop);
    return (size_t)snprintf(text, cap, "%s:%s:%lld", a, b, (long long)step);
}

/* The numbers of nested lists, in order. */
static void flatten(const json_t *v, double *out, size_t *n)
{
    size_t i;
    json_t *x;
    if (json_is_number(v))
        out[(*n)++] = json_number_value(v);
    json_array_foreach(v, i, x) flatten(x, out, n);
}

static void try_random_slice(struct rng *r, const char *dir)
{
    bool taken[3][16];
    char slice[160] = "";
    double wanted[24], got[24];
    size_t at = 0, n_wanted = 0, n_got = 0;
    struct err e = {0};
    json_t *d;
    for (int i = 0; i < 3; i++) {
        if (i)
            slice[at++] = ',';
        at += random_piece(r, cube[i], slice + at, sizeof slice - at, taken[i]);
    }
    for (int i = 0; i < 24; i++)
        if (taken[0][i / 12] && taken[1][i / 4 % 3] && taken[2][i % 4])
            wanted[n_wanted++] = i;
    if (outputs_read(dir, "n", "output", slice, 0, &d, &e) != ST_OK)
        test_fail(__FILE__, __LINE__, "slice \"%s\": %s", slice, e.text);
    flatten(json_object_get(d, "values"), got, &n_got);
    json_decref(d);
    if (n_got != n_wanted || memcmp(got, wanted, n_got * sizeof *got) != 0)
        test_fail(__FILE__, __LINE__, "slice \"%s\" gives other elements", slice);
}

TEST(
    random_slices_take_what_they_say,
    "W9: every slice takes the elements that its places take, in order")
{
    const char *dir = recorded();
    struct rng r;
    rng_init(&r, test_seed(), 0, 0);
    for (int i = 0; i < 3000; i++)
        try_random_slice(&r, dir);
}

TEST(bad_slices_are_refused, "a bad slice is refused (400), a large one is too large (413)")
{
    const char *dir = recorded();
    static const char *const bad[] = {"x",      "0,0,0,0", "2",   "0,3",  "::0",
                                      "::-1",   "1:2:3:4", "1.5", "0,-4", "99999999999999999999",
                                      ":,:,:,", "0x1",     "1:x", "NaN",  "--1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (try_slice(dir, bad[i], 0) != ST_INVALID)
            test_fail(__FILE__, __LINE__, "\"%s\" was taken", bad[i]);
    CHECK_EQ(try_slice(dir, NULL, 23), ST_TOO_LARGE);
    CHECK_EQ(try_slice(dir, NULL, 24), ST_OK);
    CHECK_EQ(try_slice(dir, "0", 12), ST_OK);
    CHECK_EQ(try_slice(dir, NULL, 1000001), ST_INVALID);
    CHECK_EQ(try_slice(dir, NULL, -1), ST_INVALID);
    CHECK_EQ(status_http(ST_INVALID), 400);
    CHECK_EQ(status_http(ST_TOO_LARGE), 413);
}

TEST(outputs_are_listed_and_typed, "what was recorded is listed in order, and each kind is read")
{
    const char *dir = recorded();
    struct err e = {0};
    json_t *d;
    CHECK_OK(outputs_list(dir, &d, &e), &e);
    CHECK_EQ(json_array_size(d), 4);
    CHECK_STR(json_get_str(json_array_get(d, 0), "type", ""), "tensor");
    CHECK_EQ(json_array_size(json_object_get(json_array_get(d, 0), "full_shape")), 3);
    CHECK_STR(json_get_str(json_array_get(d, 1), "type", ""), "list");
    json_decref(d);
    CHECK_OK(outputs_read(dir, "n", "names", NULL, 0, &d, &e), &e);
    CHECK_STR(json_get_str(d, "run_id", ""), "run1");
    CHECK_EQ(json_get_i64(d, "length", 0), 3);
    CHECK_EQ(json_array_size(json_object_get(d, "values")), 3);
    json_decref(d);
    CHECK_OK(outputs_read(dir, "m", "model", NULL, 0, &d, &e), &e);
    CHECK_EQ(json_get_i64(d, "params", 0), 10);
    CHECK_STR(json_get_str(d, "type", ""), "model");
    json_decref(d);
    CHECK_EQ(outputs_read(dir, "n", "other", NULL, 0, &d, &e), ST_NOT_FOUND);
    CHECK_EQ(outputs_read(test_dir(), "n", "output", NULL, 0, &d, &e), ST_NOT_FOUND);
}

TEST(damaged_records_are_refused, "H4: a damaged index or file is an answer, not a crash")
{
    const char *dir = recorded();
    struct err e = {0};
    char path[1300];
    json_t *d;
    (void)path_join(dir, "outputs/0.bin", path, sizeof path);
    CHECK_EQ(truncate(path, 40), 0);
    CHECK_EQ(outputs_read(dir, "n", "output", NULL, 0, &d, &e), ST_CORRUPT);
    CHECK_EQ(outputs_stats(dir, "n", "output", &d, &e), ST_CORRUPT);
    (void)path_join(dir, "outputs/index.jsonl", path, sizeof path);
    static const char lines[] = "{\"node\":\"a\",\"port\":\"b\",\"kind\":\"tensor\",\"file\":\"../"
                                "x\",\"dtype\":\"int64\",\"shape\":[1]}\n"
                                "{\"node\":\"a\",\"port\":\"c\",\"kind\":\"tensor\",\"file\":\"0."
                                "bin\",\"dtype\":\"int64\",\"shape\":[-1]}\n"
                                "{\"node\":\"a\",\"port\":\"d\",\"kind\":\"tensor\",\"file\":\"0."
                                "bin\",\"dtype\":\"int64\",\"shape\":[4611686018427387904,9]}\n"
                                "nonsense\n[1]\n{\"node\":3}\n{\"node\":\"a\",\"port\":\"torn";
    CHECK_OK(file_write(path, lines, sizeof lines - 1, &e), &e);
    CHECK_EQ(outputs_read(dir, "a", "b", NULL, 0, &d, &e), ST_CORRUPT);
    CHECK_EQ(outputs_read(dir, "a", "c", NULL, 0, &d, &e), ST_CORRUPT);
    CHECK_EQ(outputs_read(dir, "a", "d", NULL, 0, &d, &e), ST_CORRUPT);
    CHECK_EQ(outputs_read(dir, "a", "torn", NULL, 0, &d, &e), ST_NOT_FOUND);
}

static void
put_one(const char *dir, const char *port, enum record_dtype dtype, int64_t n, const void *data)
{
    struct err e = {0};
    struct outputs *o;
    struct record_tensor t = {dtype, 1, &n, data};
    CHECK_OK(outputs_begin(&o, dir, &e), &e);
    CHECK_OK(outputs_put_tensor(o, "n", port, &t, &e), &e);
    outputs_end(o);
}

TEST(
    statistics_are_exact_where_they_must_be,
    "counts, extremes, quantiles and a histogram of 64 bins")
{
    const char *dir = test_dir();
    struct err e = {0};
    json_t *d;
    double v[1001];
    for (int i = 0; i <= 1000; i++)
        v[i] = i == 7 ? (double)NAN : i == 9 ? (double)INFINITY : i;
    put_one(dir, "x", RECORD_F64, 1001, v);
    CHECK_OK(outputs_stats(dir, "n", "x", &d, &e), &e);
    CHECK_EQ(json_get_i64(d, "count", 0), 1001);
    CHECK_EQ(json_get_i64(d, "nan_count", 0), 1);
    CHECK_EQ(json_get_i64(d, "inf_count", 0), 1);
    CHECK_NEAR(json_get_f64(d, "zero_frac", 0), 1.0 / 1001, 1e-12);
    CHECK_NEAR(json_get_f64(d, "max", 0), 1000, 0);
    CHECK_NEAR(json_get_f64(json_object_get(d, "quantiles"), "p50", 0), 501, 1);
    json_t *h = json_object_get(d, "histogram"), *c;
    int64_t sum = 0;
    size_t i;
    CHECK_EQ(json_array_size(json_object_get(h, "edges")), 65);
    json_array_foreach(json_object_get(h, "counts"), i, c) sum += json_integer_value(c);
    CHECK_EQ(sum, 999);
    CHECK(json_is_null(json_object_get(d, "value_counts")));
    json_decref(d);
}

TEST(labels_are_counted, "whole numbers of few values are counted, also where they lie apart")
{
    const char *dir = test_dir();
    struct err e = {0};
    json_t *d;
    int64_t v[300];
    for (int i = 0; i < 300; i++)
        v[i] = i % 3 == 0 ? -5 : i % 3 == 1 ? 1000000 : 7;
    put_one(dir, "x", RECORD_I64, 300, v);
    CHECK_OK(outputs_stats(dir, "n", "x", &d, &e), &e);
    CHECK_EQ(json_array_size(json_object_get(d, "value_counts")), 3);
    CHECK_EQ(json_get_i64(json_array_get(json_object_get(d, "value_counts"), 0), "value", 0), -5);
    CHECK_EQ(json_get_i64(json_array_get(json_object_get(d, "value_counts"), 2), "count", 0), 100);
    CHECK_EQ(json_get_i64(d, "min", 0), -5);
    json_decref(d);
    uint8_t few[130];
    for (int i = 0; i < 130; i++)
        few[i] = (uint8_t)(i % 64);
    put_one(dir, "y", RECORD_U8, 130, few);
    CHECK_OK(outputs_stats(dir, "n", "y", &d, &e), &e);
    CHECK_EQ(json_array_size(json_object_get(d, "value_counts")), 64);
    json_decref(d);
}

TEST(
    large_tensors_are_sampled,
    "above 4,000,000 elements the distribution is of a sample, the extremes are exact")
{
    const char *dir = test_dir();
    struct err e = {0};
    json_t *d;
    int64_t n = OUTPUTS_SAMPLE_ABOVE + 1;
    float *v = mem_alloc((size_t)n * sizeof *v);
    for (int64_t i = 0; i < n; i++)
        v[i] = (float)(i % 1000);
    v[n - 1] = 1e6f;
    put_one(dir, "x", RECORD_F32, n, v);
    mem_free(v);
    CHECK_OK(outputs_stats(dir, "n", "x", &d, &e), &e);
    CHECK(json_get_bool(d, "sampled", false));
    CHECK_EQ(json_get_i64(d, "sample_size", 0), OUTPUTS_SAMPLE);
    CHECK_NEAR(json_get_f64(d, "max", 0), 1e6, 0);
    CHECK_NEAR(json_get_f64(json_object_get(d, "quantiles"), "p50", 0), 499.5, 5);
    json_decref(d);
}

TEST(sample_settings, "which tensors are sampled, and how large the sample is, are settings")
{
    const char *dir = test_dir();
    struct err e = {0};
    json_t *d;
    float v[100];
    for (int i = 0; i < 100; i++)
        v[i] = (float)i + 0.5F;
    put_one(dir, "x", RECORD_F32, 100, v);
    (void)setenv("SNUG_STATS_SAMPLE_THRESHOLD", "99", 1);
    (void)setenv("SNUG_STATS_SAMPLE_SIZE", "10", 1);
    CHECK_OK(outputs_stats(dir, "n", "x", &d, &e), &e);
    CHECK(json_get_bool(d, "sampled", false));
    CHECK_EQ(json_get_i64(d, "sample_size", 0), 10);
    CHECK_NEAR(json_get_f64(d, "max", 0), 99.5, 0);
    json_decref(d);
    (void)setenv("SNUG_STATS_SAMPLE_THRESHOLD", "100", 1);
    CHECK_OK(outputs_stats(dir, "n", "x", &d, &e), &e);
    CHECK(!json_get_bool(d, "sampled", true));
    json_decref(d);
}

TEST(empty_and_constant_tensors, "statistics of nothing, of one value, of nothing finite")
{
    const char *dir = test_dir();
    struct err e = {0};
    json_t *d;
    float v[3] = {2, 2, 2}, bad[2] = {(float)NAN, -(float)INFINITY};
    put_one(dir, "x", RECORD_F32, 0, v);
    CHECK_OK(outputs_stats(dir, "n", "x", &d, &e), &e);
    CHECK_EQ(json_get_i64(d, "count", 1), 0);
    json_decref(d);
    put_one(dir, "x", RECORD_F32, 3, v);
    CHECK_OK(outputs_stats(dir, "n", "x", &d, &e), &e);
    CHECK_EQ(json_get_i64(json_object_get(d, "histogram"), "bins", 0), 1);
    json_decref(d);
    put_one(dir, "x", RECORD_F32, 2, bad);
    CHECK_OK(outputs_stats(dir, "n", "x", &d, &e), &e);
    CHECK(json_is_null(json_object_get(d, "mean")));
    CHECK(json_is_null(json_object_get(d, "min")));
    json_decref(d);
}

TEST(lists_are_tables_of_one_column, "a list of plain values has counts of its values")
{
    const char *dir = recorded();
    struct err e = {0};
    json_t *d;
    CHECK_OK(outputs_stats(dir, "n", "names", &d, &e), &e);
    json_t *c = json_array_get(json_object_get(d, "columns"), 0);
    CHECK_STR(json_get_str(d, "kind", ""), "tabular");
    CHECK_EQ(json_get_i64(c, "unique", 0), 2);
    CHECK_STR(json_get_str(json_array_get(json_object_get(c, "top"), 0), "value", ""), "a");
    CHECK_STR(json_get_str(c, "dtype", ""), "str");
    json_decref(d);
    CHECK_OK(outputs_stats(dir, "m", "model", &d, &e), &e);
    CHECK_STR(json_get_str(d, "kind", ""), "unsupported");
    json_decref(d);
}

TEST(steps_and_gradients_are_indexed, "ports of steps and gradients have their index")
{
    const char *dir = test_dir();
    struct err e = {0};
    struct outputs *o;
    json_t *d;
    CHECK_OK(outputs_begin(&o, dir, &e), &e);
    CHECK_OK(
        outputs_put_value(o, "n", "__step__10__meta", "value", json_pack("{s:s}", "name", "b"), &e),
        &e);
    CHECK_OK(
        outputs_put_value(o, "n", "__step__2__meta", "value", json_pack("{s:s}", "name", "a"), &e),
        &e);
    CHECK_OK(
        outputs_put_value(o, "n", "output__grad", "value", json_pack("{s:i}", "x", 1), &e), &e);
    CHECK_OK(
        outputs_put_value(
            o, "n", "output__grad__meta", "value", json_pack("{s:s}", "status", "ok"), &e),
        &e);
    CHECK_OK(
        outputs_put_value(o, "n", "__weight_grad__bias", "value", json_pack("{s:i}", "x", 1), &e),
        &e);
    outputs_end(o);
    CHECK_OK(outputs_index(dir, "n", "__steps_index", &d, &e), &e);
    CHECK_EQ(json_array_size(d), 2);
    CHECK_STR(json_get_str(json_array_get(d, 0), "name", ""), "a");
    json_decref(d);
    CHECK_OK(outputs_index(dir, "n", "__grad_index", &d, &e), &e);
    CHECK_EQ(json_array_size(d), 2);
    CHECK_STR(json_get_str(json_array_get(d, 0), "port", ""), "output");
    CHECK_STR(json_get_str(json_object_get(json_array_get(d, 0), "health"), "status", ""), "ok");
    CHECK_STR(json_get_str(json_array_get(d, 1), "kind", ""), "weight");
    json_decref(d);
}

static void make_run(const char *runs, const char *name, int64_t n)
{
    char dir[1200];
    float *v = mem_alloc((size_t)n * sizeof *v + 1);
    (void)path_join(runs, name, dir, sizeof dir);
    put_one(dir, "x", RECORD_F32, n, v);
    mem_free(v);
}

static bool has(const char *runs, const char *name)
{
    char dir[1200], path[1300];
    (void)path_join(runs, name, dir, sizeof dir);
    return file_exists(path_join(dir, "outputs/index.jsonl", path, sizeof path));
}

static void age(const char *runs, const char *name, int seconds)
{
    char path[1300];
    (void)snprintf(path, sizeof path, "%s/%s/outputs/index.jsonl", runs, name);
    struct timespec t[2] = {{.tv_sec = 1000000000 - seconds}, {.tv_sec = 1000000000 - seconds}};
    CHECK_EQ(utimensat(-100, path, t, 0), 0);
}

TEST(
    eviction_keeps_the_newest, "S1 S2: the store of recorded outputs has a limit of runs and one "
                               "of bytes, least recently used out first")
{
    const char *runs = test_dir();
    struct err e = {0};
    char dir[1200];
    int64_t n, bytes;
    json_t *d;
    make_run(runs, "a", 1000);
    make_run(runs, "b", 1000);
    make_run(runs, "c", 1000);
    age(runs, "a", 30);
    age(runs, "b", 20);
    age(runs, "c", 10);
    outputs_count(runs, &n, &bytes);
    CHECK_EQ(n, 3);
    CHECK(bytes >= 12000 && bytes < 13000);
    CHECK_EQ(outputs_evict(runs, 3, 20000, NULL), 0);
    CHECK_OK(outputs_read(path_join(runs, "a", dir, sizeof dir), "n", "x", "0", 0, &d, &e), &e);
    json_decref(d); /* a is the newest now */
    CHECK_EQ(outputs_evict(runs, 2, 0, NULL), 1);
    CHECK(has(runs, "a") && !has(runs, "b") && has(runs, "c"));
    CHECK_EQ(outputs_evict(runs, 0, 5000, "c"), 1);
    CHECK(!has(runs, "a") && has(runs, "c"));
    CHECK_EQ(outputs_evict(runs, 0, 0, NULL), 0);
}
