/* tensorboard.c - event files for TensorBoard. */
#include "record/tensorboard.h"

#include "base/env.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/str.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { RECORD_MAX = 512, TAG_MAX = 256 };

/* ---- CRC-32C ---- */

/* Reflected polynomial 0x82f63b78, a byte at a time: event files are small. */
uint32_t crc32c(const void *data, size_t n)
{
    const unsigned char *p = data;
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (0x82f63b78u & (0u - (crc & 1u)));
    }
    return ~crc;
}

uint32_t crc32c_masked(const void *data, size_t n)
{
    uint32_t crc = crc32c(data, n);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

/* ---- protocol buffers: what an Event needs of them ---- */

struct bytes {
    unsigned char data[RECORD_MAX];
    size_t n;
};

static void put(struct bytes *b, const void *data, size_t n)
{
    ASSERT(b->n + n <= sizeof b->data);
    memcpy(b->data + b->n, data, n);
    b->n += n;
}

static void put_little(struct bytes *b, uint64_t v, int n)
{
    for (int i = 0; i < n; i++) {
        unsigned char c = (unsigned char)(v >> (8 * i));
        put(b, &c, 1);
    }
}

static void put_varint(struct bytes *b, uint64_t v)
{
    do {
        unsigned char c = (unsigned char)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
        put(b, &c, 1);
        v >>= 7;
    } while (v);
}

enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };

static void put_key(struct bytes *b, int field, int type)
{
    put_varint(b, (uint64_t)(field << 3 | type));
}

static void put_bytes(struct bytes *b, int field, const void *data, size_t n)
{
    put_key(b, field, WIRE_BYTES);
    put_varint(b, n);
    put(b, data, n);
}

static void put_double(struct bytes *b, int field, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_key(b, field, WIRE_FIXED64);
    put_little(b, bits, 8);
}

static void put_float(struct bytes *b, int field, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_key(b, field, WIRE_FIXED32);
    put_little(b, bits, 4);
}

/* ---- the file ---- */

struct tensorboard {
    FILE *out;
    char path[1400];
    int64_t flushed_ns;
    struct err failed; /* the first */
};

static void keep_error(struct tensorboard *t)
{
    if (t->failed.status == ST_OK)
        (void)err_errno(&t->failed, "could not write \"%s\"", t->path);
}

static void write_record(struct tensorboard *t, const struct bytes *event)
{
    struct bytes head = {.n = 0}, tail = {.n = 0};
    put_little(&head, event->n, 8);
    put_little(&head, crc32c_masked(head.data, 8), 4);
    put_little(&tail, crc32c_masked(event->data, event->n), 4);
    if (fwrite(head.data, 1, head.n, t->out) != head.n ||
        fwrite(event->data, 1, event->n, t->out) != event->n ||
        fwrite(tail.data, 1, tail.n, t->out) != tail.n)
        keep_error(t);
}

static double wall_s(void)
{
    return (double)clock_wall_us() * 1e-6;
}

static void name_of(char *out, size_t cap)
{
    char host[65] = "";
    struct rng r;
    if (gethostname(host, sizeof host - 1) != 0 || !host[0])
        (void)snprintf(host, sizeof host, "localhost");
    for (char *c = host; *c; c++)
        if (*c == '/')
            *c = '_';
    rng_init(&r, (uint64_t)clock_wall_us() ^ (uint64_t)clock_ns() << 20, (uint32_t)getpid(), 0);
    (void)snprintf(
        out, cap, "events.out.tfevents.%lld.%s.%ld.%08x", (long long)(clock_wall_us() / 1000000),
        host, (long)getpid(), rng_u32(&r));
}

enum status tensorboard_open(struct tensorboard **out, const char *dir, struct err *e)
{
    static const char version[] = "brain.Event:2";
    char name[160];
    struct bytes event = {.n = 0};
    TRY(dir_make(dir, e));
    struct tensorboard *t = mem_alloc(sizeof *t);
    name_of(name, sizeof name);
    (void)path_join(dir, name, t->path, sizeof t->path);
    t->out = fopen(t->path, "wbxe");
    if (!t->out) {
        enum status st = err_errno(e, "could not make \"%s\"", t->path);
        mem_free(t);
        return st;
    }
    put_double(&event, 1, wall_s());
    put_bytes(&event, 3, version, sizeof version - 1);
    write_record(t, &event);
    tensorboard_flush(t);
    *out = t;
    return ST_OK;
}

const char *tensorboard_path(const struct tensorboard *t)
{
    return t->path;
}

void tensorboard_scalar(struct tensorboard *t, const char *tag, int64_t step, double value)
{
    struct bytes point = {.n = 0}, summary = {.n = 0}, event = {.n = 0};
    size_t n = strlen(tag);
    if (!isfinite(value) || !isfinite((float)value))
        return;
    put_bytes(&point, 1, tag, n < TAG_MAX ? n : TAG_MAX);
    put_float(&point, 2, (float)value);
    put_bytes(&summary, 1, point.data, point.n);
    put_double(&event, 1, wall_s());
    put_key(&event, 2, WIRE_VARINT);
    put_varint(&event, (uint64_t)step);
    put_bytes(&event, 5, summary.data, summary.n);
    write_record(t, &event);
    if (clock_ns() - t->flushed_ns >= (int64_t)TENSORBOARD_FLUSH_S * 1000000000)
        tensorboard_flush(t);
}

void tensorboard_flush(struct tensorboard *t)
{
    t->flushed_ns = clock_ns();
    if (fflush(t->out) != 0)
        keep_error(t);
}

enum status tensorboard_close(struct tensorboard *t, struct err *e)
{
    enum status st = ST_OK;
    if (!t)
        return ST_OK;
    if (fclose(t->out) != 0)
        keep_error(t);
    if (t->failed.status != ST_OK) {
        *e = t->failed;
        st = e->status;
    }
    mem_free(t);
    return st;
}
