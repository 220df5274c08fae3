/* snapshot_input.c - the bytes of a snapshot through a window: from a file, from memory, or from
 * the base64 within a page of _memory_viz.py. */
#include "doctor/snapshot_int.h"

#include "base/env.h"
#include "base/str.h"

#include <string.h>

enum { PROGRESS_NS = 100000000 };

static void tell(struct snap_input *in)
{
    const struct snapshot_options *o = in->options;
    int64_t now = clock_ns();
    if (!o || !o->progress || now - in->told_ns < PROGRESS_NS)
        return;
    in->told_ns = now;
    o->progress(o->ctx, in->raw_bytes, in->total_bytes);
}

/* Turns characters in place into the bytes they stand for; anything else ends the document. */
static size_t decode(struct snap_input *in, uint8_t *text, size_t n)
{
    size_t out = 0;
    for (size_t i = 0; i < n && !in->ended; i++) {
        int v = base64_digit((char)text[i]);
        if (v < 0) {
            in->ended = text[i] != '\\'; /* JSON may write a slash as \/ */
            continue;
        }
        in->bits = in->bits << 6 | (uint32_t)v;
        in->bits_n += 6;
        if (in->bits_n >= 8) {
            in->bits_n -= 8;
            text[out++] = (uint8_t)(in->bits >> in->bits_n);
        }
    }
    return out;
}

/* Reads behind `end`; only for files. */
static void read_more(struct snap_input *in, uint8_t *end, size_t room)
{
    size_t n = fread(end, 1, room, in->in);
    in->raw_bytes += (int64_t)n;
    if (n < room) {
        in->ended = true;
        in->failed = ferror(in->in) != 0;
    }
    if (in->base64) {
        bool last = in->ended;
        in->ended = false;
        n = decode(in, end, n);
        in->ended = in->ended || last;
    }
    in->end = end + n;
    tell(in);
}

bool snap_input_need(struct snap_input *in, size_t n)
{
    size_t have = (size_t)(in->end - in->at);
    if (have >= n)
        return true;
    if (in->ended || !in->window || n > SNAP_TEXT_MAX)
        return false;
    if (n > in->cap) {
        uint8_t *larger = mem_try_alloc(n + SNAP_WINDOW);
        if (!larger)
            return false;
        memcpy(larger, in->at, have);
        in->before_bytes += in->at - in->window;
        mem_free(in->window);
        in->window = larger;
        in->cap = n + SNAP_WINDOW;
    } else {
        in->before_bytes += in->at - in->window;
        memmove(in->window, in->at, have);
    }
    in->at = in->window;
    in->end = in->window + have;
    while ((size_t)(in->end - in->at) < n && !in->ended) {
        size_t filled = (size_t)(in->end - in->window);
        read_more(in, in->window + filled, in->cap - filled);
    }
    return (size_t)(in->end - in->at) >= n;
}

int64_t snap_input_offset(const struct snap_input *in)
{
    return in->window ? in->before_bytes + (in->at - in->window)
                      : in->total_bytes - (in->end - in->at);
}

int64_t snap_input_left(const struct snap_input *in)
{
    int64_t here = in->end - in->at;
    if (in->ended || !in->window)
        return here;
    return in->total_bytes > 0 ? here + in->total_bytes - in->raw_bytes : -1;
}

/* Characters of base64 in memory are decoded into a window of their own. */
static bool decode_all(struct snap_input *in)
{
    size_t n = (size_t)(in->end - in->at);
    uint8_t *text = mem_try_alloc(n + 1);
    if (!text)
        return false;
    memcpy(text, in->at, n);
    in->ended = false;
    n = decode(in, text, n);
    in->ended = true;
    in->window = text;
    in->cap = n;
    in->at = text;
    in->end = text + n;
    return true;
}

/* The place behind `"base64": "`, as json.dumps writes it, or behind the same in single quotes. */
static const uint8_t *after_key(const uint8_t *at, const uint8_t *end)
{
    static const char key[] = "base64";
    for (const uint8_t *p = at; (size_t)(end - p) >= 16; p++) {
        if (*p != 'b' || memcmp(p, key, 6) != 0)
            continue;
        const uint8_t *q = p + 6;
        while (q < end && (*q == '"' || *q == '\'' || *q == ' ' || *q == ':' || *q == '\\'))
            q++;
        if (q > p + 7 && end - q >= 2 && q[0] == 'g' && q[1] >= 'A' && q[1] <= 'W')
            return q; /* 0x80 and a protocol: gA.. */
    }
    return NULL;
}

bool snap_input_page(struct snap_input *in)
{
    for (;;) {
        const uint8_t *found = after_key(in->at, in->end);
        if (found) {
            in->at = found;
            break;
        }
        if (in->ended || !in->window)
            return false;
        if (in->end - in->at > 64)
            in->at = in->end - 64; /* the key may lie across the border */
        if (!snap_input_need(in, (size_t)(in->end - in->at) + 1))
            return false;
    }
    in->base64 = true;
    if (!in->window)
        return decode_all(in);
    /* What the window has of it already. */
    size_t have = (size_t)(in->end - in->at);
    bool last = in->ended;
    memmove(in->window, in->at, have);
    in->ended = false;
    have = decode(in, in->window, have);
    in->ended = in->ended || last;
    in->at = in->window;
    in->end = in->window + have;
    in->before_bytes = 0;
    return true;
}
