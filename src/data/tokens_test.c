/* tokens_test.c - token files of each format, whole and damaged, and the blocks made of them. */
#include "base/env.h"
#include "base/mem.h"
#include "data/loader.h"
#include "data/tokens.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

static const char *write_file(const char *name, const void *data, size_t n)
{
    static char path[1200];
    struct err e = {0};
    (void)snprintf(path, sizeof path, "%s/%s", test_dir(), name);
    CHECK_OK(file_write(path, data, n, &e), &e);
    return path;
}

TEST(token_files, "llm.c's files in both widths and nanoGPT's give their numbers back")
{
    uint16_t small[] = {1, 2, 50256, 3};
    uint32_t large[] = {7, 128000, 9};
    struct token_row out, rows[] = {{small, 2, 4, 0}, {large, 4, 3, 0}};
    struct err e = {0};
    char path[1200];
    for (int i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof path, "%s/%d.bin", test_dir(), i);
        CHECK_OK(token_file_write(path, &rows[i], &e), &e);
        CHECK_OK(token_file_describe(path, &out, &e), &e);
        CHECK_EQ(out.n, rows[i].n);
        CHECK_OK(token_file_read(path, 0, &out, &e), &e);
        CHECK_EQ(out.width, rows[i].width);
        CHECK_EQ(out.largest, i ? 128000 : 50256);
        for (int64_t k = 0; k < out.n; k++)
            CHECK_EQ(token_row_at(&out, k), token_row_at(&rows[i], k));
        token_row_release(&out);
    }
    CHECK_OK(token_file_read(write_file("nano.bin", small, sizeof small), 3, &out, &e), &e);
    CHECK_EQ(out.n, 3);
    CHECK_EQ(out.largest, 50256);
    token_row_release(&out);
}

TEST(token_files_damaged, "a token file that is cut off, of another version or odd is an error")
{
    int32_t head[256] = {20240520, 1, 4};
    struct token_row out;
    struct err e = {0};
    char bytes[1024 + 8];
    memcpy(bytes, head, sizeof head);
    memset(bytes + 1024, 0, 8);
    CHECK_OK(token_file_describe(write_file("a.bin", bytes, 1032), &out, &e), &e);
    CHECK_EQ(token_file_describe(write_file("a.bin", bytes, 1030), &out, &e), ST_CORRUPT);
    CHECK(strstr(e.text, "a.bin") && strstr(e.text, "4 tokens"));
    CHECK_EQ(token_file_describe(write_file("a.bin", bytes, 100), &out, &e), ST_CORRUPT);
    CHECK_EQ(token_file_describe(write_file("a.bin", "abc", 3), &out, &e), ST_CORRUPT);
    head[1] = 9;
    memcpy(bytes, head, sizeof head);
    CHECK_EQ(token_file_describe(write_file("a.bin", bytes, 1032), &out, &e), ST_UNSUPPORTED);
    CHECK(strstr(e.text, "version 9"));
}

TEST(token_blocks, "a sample is a block without its last token, its target without its first")
{
    uint16_t numbers[14];
    for (int i = 0; i < 14; i++)
        numbers[i] = (uint16_t)(10 + i);
    struct token_row row = {numbers, 2, 14, 23};
    struct dataset *d;
    struct err e = {0};
    CHECK_OK(dataset_from_tokens("t", &row, 3, &d, &e), &e);
    CHECK_EQ(dataset_get_info(d)->count, 3);
    CHECK_EQ(dataset_host_bytes(d), 28);
    struct loader_options o = {.batch_size = 2};
    struct loader *l;
    int64_t x[6], y[6], count;
    CHECK_OK(loader_new(d, NULL, &o, &l, &e), &e);
    CHECK_OK(loader_begin_epoch(l, 0, 0, &e), &e);
    CHECK_OK(loader_next(l, x, y, &count, &e), &e);
    static const int64_t wanted[] = {10, 11, 12, 14, 15, 16};
    CHECK_EQ(count, 2);
    for (int i = 0; i < 6; i++) {
        CHECK_EQ(x[i], wanted[i]);
        CHECK_EQ(y[i], wanted[i] + 1);
    }
    CHECK_OK(loader_next(l, x, y, &count, &e), &e);
    CHECK_EQ(count, 1);
    CHECK_EQ(y[2], 21);
    loader_free(l);
    dataset_free(d);
    CHECK_EQ(dataset_from_tokens("t", &row, 14, &d, &e), ST_INVALID);
    CHECK(strstr(e.text, "14 tokens"));
}
