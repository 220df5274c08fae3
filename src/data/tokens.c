/* tokens.c - token files of llm.c and nanoGPT, and data sets of blocks of tokens. */
#include "data/tokens.h"

#include "base/env.h"
#include "base/mem.h"
#include "data/dataset_int.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { HEADER_WORDS = 256, HEADER_BYTES = 1024 };
static const struct {
    int32_t magic, version;
    int width;
} formats[] = {{20240520, 1, 2}, {20240801, 7, 4}};
enum { FORMATS = sizeof formats / sizeof *formats };

void token_row_release(struct token_row *t)
{
    mem_free(t->data);
    *t = (struct token_row){0};
}

uint32_t token_row_at(const struct token_row *t, int64_t i)
{
    if (t->width == 2)
        return ((const uint16_t *)t->data)[i];
    return ((const uint32_t *)t->data)[i];
}

static enum status open_bin(const char *path, FILE **out, int64_t *size_bytes, struct err *e)
{
    struct stat info;
    FILE *in = fopen(path, "rb");
    if (!in)
        return err_errno(e, "cannot open \"%s\"", path);
    if (fstat(fileno(in), &info) != 0 || !S_ISREG(info.st_mode)) {
        (void)fclose(in);
        return err_set(e, ST_INVALID, "\"%s\" is not a file", path);
    }
    *out = in;
    *size_bytes = (int64_t)info.st_size;
    return ST_OK;
}

/* Fills width and n; *from is where the numbers begin. */
static enum status read_header(
    const char *path, FILE *in, int64_t size, struct token_row *out, int64_t *from, struct err *e)
{
    int32_t head[HEADER_WORDS] = {0};
    size_t got = fread(head, 1, sizeof head, in);
    *out = (struct token_row){.largest = -1, .width = 2};
    for (int i = 0; i < FORMATS && got >= 4; i++) {
        if (head[0] != formats[i].magic)
            continue;
        out->width = formats[i].width;
        *from = HEADER_BYTES;
        if (got != HEADER_BYTES)
            return err_set(e, ST_CORRUPT, "\"%s\" ends inside its header", path);
        if (head[1] != formats[i].version)
            return err_set(
                e, ST_UNSUPPORTED, "\"%s\" is a token file of version %d; version %d is read", path,
                head[1], formats[i].version);
        out->n = head[2];
        if (head[2] < 0 || size - HEADER_BYTES != out->n * out->width)
            return err_set(
                e, ST_CORRUPT,
                "\"%s\" has %lld bytes of tokens where its header says %d tokens of %d", path,
                (long long)(size - HEADER_BYTES), head[2], out->width);
        return ST_OK;
    }
    *from = 0;
    out->n = size / 2;
    if (size % 2)
        return err_set(
            e, ST_CORRUPT, "\"%s\" has %lld bytes, which are not numbers of 2 bytes", path,
            (long long)size);
    return ST_OK;
}

enum status token_file_describe(const char *path, struct token_row *out, struct err *e)
{
    FILE *in;
    int64_t size, from;
    TRY(open_bin(path, &in, &size, e));
    enum status st = read_header(path, in, size, out, &from, e);
    (void)fclose(in);
    return st;
}

static enum status
read_numbers(const char *path, FILE *in, int64_t from, struct token_row *t, struct err *e)
{
    size_t bytes = (size_t)t->n * (size_t)t->width;
    t->data = mem_try_alloc(bytes + 1);
    if (!t->data)
        return err_set(e, ST_OOM, "no host memory for %zu bytes of tokens", bytes);
    if (fseek(in, (long)from, SEEK_SET) != 0 || fread(t->data, 1, bytes, in) != bytes)
        return err_errno(e, "could not read \"%s\"", path);
    for (int64_t i = 0; i < t->n; i++) {
        int64_t k = token_row_at(t, i);
        t->largest = k > t->largest ? k : t->largest;
    }
    return ST_OK;
}

enum status token_file_read(const char *path, int64_t most, struct token_row *out, struct err *e)
{
    FILE *in;
    int64_t size, from;
    struct token_row t;
    TRY(open_bin(path, &in, &size, e));
    enum status st = read_header(path, in, size, &t, &from, e);
    if (st == ST_OK && most > 0 && t.n > most)
        t.n = most;
    if (st == ST_OK)
        st = read_numbers(path, in, from, &t, e);
    (void)fclose(in);
    if (st != ST_OK)
        token_row_release(&t);
    else
        *out = t;
    return st;
}

enum status token_file_write(const char *path, const struct token_row *t, struct err *e)
{
    struct file_whole f;
    int32_t head[HEADER_WORDS] = {0};
    int k = t->width == 2 ? 0 : 1;
    if (t->n > INT32_MAX)
        return err_set(e, ST_UNSUPPORTED, "\"%s\": more than 2^31 tokens", path);
    head[0] = formats[k].magic;
    head[1] = formats[k].version;
    head[2] = (int32_t)t->n;
    TRY(file_whole_begin(&f, path, e));
    size_t n = (size_t)t->n;
    if (fwrite(head, sizeof head, 1, f.out) != 1 ||
        fwrite(t->data, (size_t)t->width, n, f.out) != n) {
        enum status st = err_errno(e, "could not write \"%s\"", path);
        file_whole_abort(&f);
        return st;
    }
    return file_whole_commit(&f, e);
}

/* ---- data sets ---- */

void dataset_describe_tokens(
    const char *name, const struct token_row *t, int64_t seq_len, struct dataset_info *out)
{
    *out = (struct dataset_info){
        .count = t->n / (seq_len + 1),
        .type = DATA_I64,
        .rank = 1,
        .shape = {seq_len},
        .target = DATA_I64,
        .target_rank = 1,
        .target_shape = {seq_len},
        .host_bytes = t->n * t->width};
    (void)snprintf(out->name, sizeof out->name, "%s", name);
}

enum status dataset_from_tokens(
    const char *name, const struct token_row *t, int64_t seq_len, struct dataset **out,
    struct err *e)
{
    struct dataset_info info;
    dataset_describe_tokens(name, t, seq_len, &info);
    if (info.count == 0)
        return err_set(
            e, ST_INVALID, "\"%s\" has %lld tokens, fewer than one block of seq_len + 1 = %lld",
            name, (long long)t->n, (long long)seq_len + 1);
    struct dataset *d = mem_alloc(sizeof *d);
    d->info = info;
    d->tokens = t;
    *out = d;
    return ST_OK;
}

void tokens_write(const struct dataset *d, int64_t index, int64_t shift, int64_t *into)
{
    int64_t n = d->info.shape[0], at = index * (n + 1) + shift;
    const struct token_row *t = d->tokens;
    if (t->width == 2) {
        const uint16_t *from = (const uint16_t *)t->data + at;
        for (int64_t i = 0; i < n; i++)
            into[i] = from[i];
    } else {
        const uint32_t *from = (const uint32_t *)t->data + at;
        for (int64_t i = 0; i < n; i++)
            into[i] = from[i];
    }
}
