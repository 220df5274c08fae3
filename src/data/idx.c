/* idx.c - reading IDX files. */
#include "data/idx.h"

#include "base/mem.h"

#include <string.h>

static uint32_t big_endian(const uint8_t b[4])
{
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

static enum status check_magic(struct source *s, int rank, struct err *e)
{
    uint8_t magic[4];
    TRY(source_need(s, magic, 4, "IDX header", e));
    if (magic[0] || magic[1])
        return err_set(
            e, ST_CORRUPT, "\"%s\" is not an IDX file: it begins with %02x%02x%02x%02x",
            source_name(s), magic[0], magic[1], magic[2], magic[3]);
    if (magic[2] != 8)
        return err_set(
            e, ST_CORRUPT, "\"%s\" holds elements of IDX type 0x%02x; only bytes (0x08) are read",
            source_name(s), magic[2]);
    if (magic[3] != rank)
        return err_set(
            e, ST_CORRUPT, "\"%s\" has %d dimensions where %d belong", source_name(s), magic[3],
            rank);
    return ST_OK;
}

static enum status read_sizes(struct source *s, struct idx *x, struct err *e)
{
    uint8_t b[4 * IDX_RANK_MAX];
    TRY(source_need(s, b, 4 * (size_t)x->rank, "IDX header", e));
    x->bytes = 1;
    for (int i = 0; i < x->rank; i++) {
        x->size[i] = big_endian(b + 4 * i);
        if (x->size[i] == 0)
            return err_set(
                e, ST_CORRUPT, "\"%s\" has no %s: dimension %d is 0", source_name(s),
                i == 0 ? "items" : "pixels", i);
        /* Three 32-bit sizes may pass 2^64: size_mul saturates. */
        x->bytes = size_mul(x->bytes, x->size[i]);
    }
    if (x->bytes > source_most_bytes(s))
        return err_set(
            e, ST_CORRUPT,
            "header of \"%s\" promises %llu bytes, more than a file of its size can hold",
            source_name(s), (unsigned long long)x->bytes);
    return ST_OK;
}

enum status idx_read(struct source *s, int rank, struct idx *out, struct err *e)
{
    ASSERT(rank >= 1 && rank <= IDX_RANK_MAX);
    struct idx x = {.rank = rank};
    TRY(check_magic(s, rank, e));
    TRY(read_sizes(s, &x, e));
    x.data = mem_try_alloc(x.bytes);
    if (!x.data)
        return err_set(
            e, ST_OOM, "no host memory for the %llu bytes of \"%s\"", (unsigned long long)x.bytes,
            source_name(s));
    enum status st = source_need(s, x.data, x.bytes, "data", e);
    if (st == ST_OK)
        st = source_end(s, e);
    if (st != ST_OK) {
        idx_release(&x);
        return st;
    }
    *out = x;
    return ST_OK;
}

enum status idx_read_count(struct source *s, int rank, uint32_t *count, struct err *e)
{
    struct idx x = {.rank = rank};
    TRY(check_magic(s, rank, e));
    TRY(read_sizes(s, &x, e));
    *count = x.size[0];
    return ST_OK;
}

void idx_release(struct idx *x)
{
    mem_free(x->data);
    *x = (struct idx){0};
}
