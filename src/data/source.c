/* source.c - bytes of a file or of memory in order, decompressed where they are gzip. */
#include "data/source.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

enum { CHUNK = 1 << 16 };

struct source {
    FILE *file; /* NULL: memory */
    const uint8_t *bytes;
    size_t bytes_left;
    uint64_t stored_bytes;
    char name[1024];
    bool gzip, gzip_end;
    z_stream z;
    uint8_t in[CHUNK];
};

/* Stored (perhaps compressed) bytes, up to n; 0 is the end. */
static enum status
read_stored(struct source *s, uint8_t *into, size_t n, size_t *got, struct err *e)
{
    if (!s->file) {
        *got = n < s->bytes_left ? n : s->bytes_left;
        if (*got) {
            memcpy(into, s->bytes, *got);
            s->bytes += *got;
            s->bytes_left -= *got;
        }
        return ST_OK;
    }
    *got = fread(into, 1, n, s->file);
    return *got < n && ferror(s->file) ? err_errno(e, "could not read \"%s\"", s->name) : ST_OK;
}

static enum status refill(struct source *s, struct err *e)
{
    size_t got = 0;
    TRY(read_stored(s, s->in, sizeof s->in, &got, e));
    s->z.next_in = s->in;
    s->z.avail_in = (uInt)got;
    return ST_OK;
}

/* Looks at the first chunk: gzip or plain. Plain sources keep it as what to hand out first. */
static enum status begin(struct source *s, struct err *e)
{
    TRY(refill(s, e));
    s->gzip = s->z.avail_in >= 2 && s->in[0] == 0x1f && s->in[1] == 0x8b;
    if (s->gzip && inflateInit2(&s->z, 16 + MAX_WBITS) != Z_OK)
        return err_set(e, ST_OOM, "no host memory to decompress \"%s\"", s->name);
    return ST_OK;
}

static struct source *source_new(const char *name)
{
    struct source *s = mem_alloc(sizeof *s);
    (void)snprintf(s->name, sizeof s->name, "%s", name);
    return s;
}

enum status source_open(const char *path, struct source **out, struct err *e)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return err_errno(e, "cannot open \"%s\"", path);
    if (!S_ISREG(info.st_mode))
        return err_set(e, ST_INVALID, "\"%s\" is not a file", path);
    FILE *file = fopen(path, "rb");
    if (!file)
        return err_errno(e, "cannot open \"%s\"", path);
    struct source *s = source_new(path);
    s->file = file;
    s->stored_bytes = (uint64_t)info.st_size;
    enum status st = begin(s, e);
    if (st != ST_OK) {
        source_close(s);
        return st;
    }
    *out = s;
    return ST_OK;
}

enum status
source_open_bytes(const void *bytes, size_t n, const char *name, struct source **out, struct err *e)
{
    struct source *s = source_new(name);
    s->bytes = bytes;
    s->bytes_left = n;
    s->stored_bytes = n;
    enum status st = begin(s, e);
    if (st != ST_OK) {
        source_close(s);
        return st;
    }
    *out = s;
    return ST_OK;
}

void source_close(struct source *s)
{
    if (!s)
        return;
    if (s->gzip)
        (void)inflateEnd(&s->z);
    if (s->file)
        (void)fclose(s->file);
    mem_free(s);
}

/* A gzip file may hold several members; what follows the last and is no member is ignored. */
static enum status next_member(struct source *s, struct err *e)
{
    if (s->z.avail_in == 0)
        TRY(refill(s, e));
    s->gzip_end = s->z.avail_in == 0 || s->z.next_in[0] != 0x1f || inflateReset(&s->z) != Z_OK;
    return ST_OK;
}

static enum status read_gzip(struct source *s, uint8_t *into, size_t n, size_t *got, struct err *e)
{
    s->z.next_out = into;
    size_t left = n;
    while (left && !s->gzip_end) {
        if (s->z.avail_in == 0)
            TRY(refill(s, e));
        if (s->z.avail_in == 0)
            return err_set(e, ST_CORRUPT, "compressed file \"%s\" ends early", s->name);
        uInt piece = left < CHUNK ? (uInt)left : CHUNK;
        s->z.avail_out = piece;
        int r = inflate(&s->z, Z_NO_FLUSH);
        left -= piece - s->z.avail_out;
        if (r == Z_STREAM_END)
            TRY(next_member(s, e));
        else if (r == Z_MEM_ERROR)
            return err_set(e, ST_OOM, "no host memory to decompress \"%s\"", s->name);
        else if (r != Z_OK && r != Z_BUF_ERROR)
            return err_set(
                e, ST_CORRUPT, "compressed file \"%s\" is damaged: %s", s->name,
                s->z.msg ? s->z.msg : "bad stream");
    }
    *got = n - left;
    return ST_OK;
}

enum status source_read(struct source *s, void *into, size_t n, size_t *got, struct err *e)
{
    if (s->gzip)
        return read_gzip(s, into, n, got, e);
    size_t first = n < s->z.avail_in ? n : s->z.avail_in;
    if (first)
        memcpy(into, s->z.next_in, first);
    s->z.next_in += first;
    s->z.avail_in -= (uInt)first;
    size_t rest = 0;
    if (first < n)
        TRY(read_stored(s, (uint8_t *)into + first, n - first, &rest, e));
    *got = first + rest;
    return ST_OK;
}

enum status source_need(struct source *s, void *into, size_t n, const char *what, struct err *e)
{
    size_t got = 0;
    TRY(source_read(s, into, n, &got, e));
    if (got == n)
        return ST_OK;
    return err_set(
        e, ST_CORRUPT, "\"%s\" ends inside its %s: %zu bytes where %zu belong", s->name, what, got,
        n);
}

enum status source_end(struct source *s, struct err *e)
{
    uint8_t more;
    size_t got = 0;
    TRY(source_read(s, &more, 1, &got, e));
    if (got == 0)
        return ST_OK;
    return err_set(e, ST_CORRUPT, "\"%s\" is longer than its header says", s->name);
}

uint64_t source_most_bytes(const struct source *s)
{
    return s->gzip ? s->stored_bytes * 1032 : s->stored_bytes;
}

const char *source_name(const struct source *s)
{
    return s->name;
}
