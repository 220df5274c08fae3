/* base_test.c - strings, numbers, random numbers, files, errors. */
#include "base/config.h"
#include "base/env.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/str.h"
#include "test.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

TEST(bytes_from_text, "KiB are powers of 1024, KB of 1000; junk is refused")
{
    int64_t n;
    CHECK(str_to_bytes("8GiB", &n) && n == (int64_t)8 << 30);
    CHECK(str_to_bytes("1.5 KB", &n) && n == 1500);
    CHECK(str_to_bytes("77", &n) && n == 77);
    CHECK(!str_to_bytes("8gigs", &n) && !str_to_bytes("-1", &n) && !str_to_bytes("1e30GiB", &n));
}

TEST(philox_known_answers, "the generator gives the published numbers")
{
    uint32_t out[4];
    rng_block(0, 0, 0, 0, out); /* known answer of the reference implementation, all zero */
    CHECK_EQ(out[0], 0x6627e8d5);
    CHECK_EQ(out[1], 0xe169c58d);
    CHECK_EQ(out[2], 0xbc57ac4c);
    CHECK_EQ(out[3], 0x9b00dbd8);
    rng_block(UINT64_MAX, UINT32_MAX, UINT32_MAX, UINT64_MAX, out);
    CHECK_EQ(out[0], 0x408f276d);
    CHECK_EQ(out[1], 0x41c83b0e);
    CHECK_EQ(out[2], 0xa20bc7c6);
    CHECK_EQ(out[3], 0x6d5451fd);
}

TEST(normal_moments, "normal numbers have mean 0 and deviation 1")
{
    struct rng r;
    rng_init(&r, test_seed(), 1, 0);
    double sum = 0, square = 0;
    for (int i = 0; i < 100000; i++) {
        double x = rng_normal(&r);
        sum += x;
        square += x * x;
    }
    CHECK_NEAR(sum / 1e5, 0, 0.02);
    CHECK_NEAR(square / 1e5, 1, 0.03);
}

TEST(whole_files, "a file appears whole or not at all")
{
    char path[300], *data;
    size_t n;
    struct err e;
    (void)snprintf(path, sizeof path, "%s/a", test_dir());
    CHECK_OK(file_write(path, "old", 3, &e), &e);
    struct file_whole f;
    CHECK_OK(file_whole_begin(&f, path, &e), &e);
    CHECK(fputs("new text", f.out) >= 0);
    file_whole_abort(&f);
    CHECK_OK(file_read(path, 100, &data, &n, &e), &e);
    CHECK_STR(data, "old");
    CHECK(!file_exists(f.temporary));
    mem_free(data);
    CHECK(file_read(path, 2, &data, &n, &e) == ST_CORRUPT);
    CHECK(file_write("/proc/none/x", "a", 1, &e) != ST_OK && strstr(e.text, "/proc/none/x"));
}

TEST(special_files, "a device is written, and not replaced by a file")
{
    struct err e;
    char path[300];
    (void)snprintf(path, sizeof path, "%s/null", test_dir());
    CHECK(symlink("/dev/null", path) == 0);
    CHECK_OK(file_write(path, "text", 4, &e), &e);
    CHECK(!file_exists(path));
    (void)snprintf(path, sizeof path, "%s/full", test_dir());
    CHECK(symlink("/dev/full", path) == 0);
    CHECK(file_write(path, "text", 4, &e) == ST_IO && strstr(e.text, path) && !file_exists(path));
}

TEST(paths_inside, "names that leave their folder are seen")
{
    CHECK(path_is_inside("a/b.pt") && path_is_inside("..a"));
    CHECK(
        !path_is_inside("../a") && !path_is_inside("/a") && !path_is_inside("a//b") &&
        !path_is_inside("a/.."));
}

TEST(json_numbers, "numbers that JSON lacks become strings; duplicates are refused")
{
    json_t *o = json_object(), *v;
    struct err e;
    json_put_f64(o, "a", (double)NAN);
    json_put_f64(o, "b", 0.5);
    char *text = json_text(o, false);
    CHECK_STR(text, "{\"a\":\"NaN\",\"b\":0.5}");
    mem_free(text);
    json_decref(o);
    CHECK(json_parse("{\"a\":1,\"a\":2}", 13, "x", &v, &e) == ST_CORRUPT);
    CHECK(json_parse("[1,", 3, "x", &v, &e) == ST_CORRUPT && strstr(e.text, "line 1"));
}

TEST(nearest_name, "a slip of the pen finds its word")
{
    const char *const names[] = {"Linear", "Conv2d", "Dropout"};
    CHECK_STR(str_nearest("conv2D", names, 3), "Conv2d");
    CHECK(str_nearest("Transformer", names, 3) == NULL);
}

TEST(trimmed_copy, "a copy loses the blanks around it and is cut to fit")
{
    char out[6];
    str_copy_trimmed(out, sizeof out, "  a b\t\n", 7);
    CHECK_STR(out, "a b");
    str_copy_trimmed(out, sizeof out, " abcdefgh", 9);
    CHECK_STR(out, "abcde");
    str_copy_trimmed(out, sizeof out, "   ", 3);
    CHECK_STR(out, "");
}

TEST(base64_digits, "each character of base64 has its number, no other has one")
{
    static const char all[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (int i = 0; i < 64; i++)
        CHECK_EQ(base64_digit(all[i]), i);
    CHECK_EQ(base64_digit('='), -1);
    CHECK_EQ(base64_digit('\\'), -1);
    CHECK_EQ(base64_digit(0), -1);
}

TEST(page_with_json, "a document in a page cannot end the script that holds it")
{
    struct str out;
    json_t *d = json_pack("{s:s}", "name", "</script><b>");
    str_init(&out);
    json_into_page("<p><script id=\"data\">{}</script>", "id=\"data\">", d, &out);
    CHECK_STR(out.data, "<p><script id=\"data\">{\"name\":\"\\u003c/script>\\u003cb>\"}</script>");
    str_release(&out);
    json_decref(d);
}

TEST(
    counts_of_settings,
    "a count comes from the environment, else from config.json as a number or a text")
{
    struct err e = {0};
    char path[1100];
    int64_t n = 0;
    CHECK(setenv("SNUG_HOME", test_dir(), 1) == 0 && unsetenv("SNUG_SOME_COUNT") == 0);
    CHECK_OK(config_count("SNUG_SOME_COUNT", "some_count", 7, &n, &e), &e);
    CHECK_EQ(n, 7);
    static const char file[] =
        "{\"some_count\": 12, \"other\": \"13\", \"bad\": true, \"low\": -1}";
    (void)path_join(test_dir(), "config.json", path, sizeof path);
    CHECK_OK(file_write(path, file, sizeof file - 1, &e), &e);
    CHECK_OK(config_count("SNUG_SOME_COUNT", "some_count", 7, &n, &e), &e);
    CHECK_EQ(n, 12);
    CHECK_OK(config_count("SNUG_SOME_COUNT", "other", 7, &n, &e), &e);
    CHECK_EQ(n, 13);
    CHECK_EQ(config_count("SNUG_SOME_COUNT", "bad", 7, &n, &e), ST_INVALID);
    CHECK_EQ(config_count("SNUG_SOME_COUNT", "low", 7, &n, &e), ST_INVALID);
    CHECK(setenv("SNUG_SOME_COUNT", "14", 1) == 0);
    CHECK_OK(config_count("SNUG_SOME_COUNT", "some_count", 7, &n, &e), &e);
    CHECK_EQ(n, 14);
    CHECK(setenv("SNUG_SOME_COUNT", "many", 1) == 0);
    CHECK_EQ(config_count("SNUG_SOME_COUNT", "some_count", 7, &n, &e), ST_INVALID);
}
