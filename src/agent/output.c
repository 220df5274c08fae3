/* output.c - what a run writes to stdout and stderr (output.h). */
#define _GNU_SOURCE
#include "agent/output.h"

#include "agent/folder.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    READ_BYTES = 64 << 10,
    RING_BYTES = 1 << 20,
    EVENT_BYTES = 16 << 10, /* an event is sent as soon as there is so much */
    RATE_BYTES = 64 << 10,  /* a second */
    BURST_BYTES = 256 << 10,
    TOTAL_BYTES = 8 << 20
};
#define EVENT_NS INT64_C(100000000)
#define PARTIAL_NS INT64_C(1000000000)

/* Length of the UTF-8 character at s; 0: none; -1: it is cut off by the end. */
static int character(const unsigned char *s, size_t n)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    int length = s[0] < 0x80 ? 1 : s[0] >= 0xf0 && s[0] < 0xf8 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    uint32_t code = s[0] & (0x7f >> (length == 1 ? 0 : length));
    if (s[0] == 0 || (s[0] >= 0x80 && s[0] < 0xc2) || s[0] >= 0xf5)
        return 0;
    for (int i = 1; i < length; i++) {
        if ((size_t)i >= n)
            return -1;
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (s[i] & 0x3f);
    }
    return code < least[length] || (code >= 0xd800 && code < 0xe000) || code > 0x10ffff ? 0
                                                                                        : length;
}

size_t run_output_utf8(struct str *to, const char *bytes, size_t n, bool more)
{
    size_t at = 0;
    while (at < n) {
        size_t from = at;
        int length = 1;
        while (at < n && (length = character((const unsigned char *)bytes + at, n - at)) > 0)
            at += (size_t)length;
        str_add_n(to, bytes + from, at - from);
        if (at >= n || (length < 0 && more))
            break;
        str_add(to, "\xef\xbf\xbd");
        at++;
    }
    return at;
}

static void log_write(struct run_output *o, const char *bytes, size_t n)
{
    while (o->log >= 0 && n > 0) {
        ssize_t k = write(o->log, bytes, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0) { /* the disk is full: it is counted, and the run goes on */
            o->dropped += (int64_t)n;
            return;
        }
        bytes += k;
        n -= (size_t)k;
    }
}

void run_output_open(
    struct run_output *o, int pipe, const char *dir, int64_t log_bytes_max, struct journal *events)
{
    char path[1200];
    struct stat st;
    *o = (struct run_output){
        .pipe = pipe,
        .events = events,
        .rate_left = BURST_BYTES,
        .total_left = TOTAL_BYTES,
    };
    if (log_bytes_max < 4096)
        log_bytes_max = 4096;
    o->ring_cap = log_bytes_max / 4 < RING_BYTES ? (size_t)log_bytes_max / 4 : RING_BYTES;
    o->head_left = log_bytes_max - (int64_t)o->ring_cap - 128; /* with the line between */
    str_init(&o->pending);
    o->log = open(
        run_folder_path(dir, "output.log", path, sizeof path),
        O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (o->log >= 0 && fstat(o->log, &st) == 0 && st.st_size > 0) {
        o->head_left = o->head_left > st.st_size ? o->head_left - st.st_size : 0;
        log_write(o, "\n---- the next attempt ----\n", 28);
    }
}

static void keep(struct run_output *o, const char *bytes, size_t n)
{
    size_t head = o->head_left > (int64_t)n ? n : (size_t)o->head_left;
    log_write(o, bytes, head);
    o->head_left -= (int64_t)head;
    bytes += head;
    n -= head;
    if (n > 0 && !o->ring)
        o->ring = mem_alloc(o->ring_cap);
    while (n > 0) { /* the oldest go */
        size_t part = o->ring_cap - o->ring_at < n ? o->ring_cap - o->ring_at : n;
        memcpy(o->ring + o->ring_at, bytes, part);
        o->ring_at = (o->ring_at + part) % o->ring_cap;
        o->dropped +=
            o->ring_n + part > o->ring_cap ? (int64_t)(o->ring_n + part - o->ring_cap) : 0;
        o->ring_n = o->ring_n + part > o->ring_cap ? o->ring_cap : o->ring_n + part;
        bytes += part;
        n -= part;
    }
}

static void rate_refill(struct run_output *o, int64_t now_ns)
{
    if (o->rate_started) {
        int64_t ms = (now_ns - o->rate_at_ns) / 1000000;
        int64_t more = ms > 60000 ? BURST_BYTES : ms * RATE_BYTES / 1000;
        o->rate_left = o->rate_left + more > BURST_BYTES ? BURST_BYTES : o->rate_left + more;
        o->rate_at_ns += ms * 1000000;
    } else {
        o->rate_at_ns = now_ns;
        o->rate_started = true;
    }
}

static void event_send(struct run_output *o, const char *text)
{
    struct err ignored;
    json_t *payload = json_object();
    json_put_str(payload, "text", text);
    if (journal_append(o->events, EVENT_LOG, payload, &ignored) != ST_OK)
        o->left_out += (int64_t)strlen(text);
}

/* The first n bytes of `pending` as an event; it takes what is whole of them. */
static void event_of(struct run_output *o, size_t n, bool all)
{
    struct str text;
    str_init(&text);
    if (o->left_out > 0) {
        str_printf(&text, "[%" PRId64 " bytes are left out here]\n", o->left_out);
        o->left_out = 0;
    }
    size_t taken = run_output_utf8(&text, o->pending.data, n, !all);
    if (taken > 0) {
        event_send(o, text.data);
        o->rate_left -= (int64_t)taken;
        o->total_left -= (int64_t)taken;
    }
    str_release(&text);
    memmove(o->pending.data, o->pending.data + taken, o->pending.n - taken + 1);
    o->pending.n -= taken;
}

static void skip_pending(struct run_output *o)
{
    o->left_out += (int64_t)o->pending.n;
    str_clear(&o->pending);
}

void run_output_flush(struct run_output *o, int64_t now_ns, bool all)
{
    if (!o->events || o->pending.n == 0)
        return;
    rate_refill(o, now_ns);
    if (o->rate_left <= 0 || o->total_left <= 0) {
        skip_pending(o);
        return;
    }
    size_t n = o->pending.n;
    if (!all && now_ns - o->pending_since_ns < PARTIAL_NS) { /* whole lines */
        const char *last = memrchr(o->pending.data, '\n', n);
        n = last ? (size_t)(last - o->pending.data) + 1 : n > EVENT_BYTES ? n : 0;
    }
    if (n > 0)
        event_of(o, n, all);
    o->pending_since_ns = now_ns;
}

int64_t run_output_due_ns(const struct run_output *o)
{
    if (!o->events || o->pending.n == 0)
        return INT64_MAX;
    bool line = memchr(o->pending.data, '\n', o->pending.n) != NULL;
    return o->pending_since_ns + (line ? EVENT_NS : PARTIAL_NS);
}

static void take(struct run_output *o, const char *bytes, size_t n, int64_t now_ns)
{
    keep(o, bytes, n);
    if (!o->events)
        return;
    if (o->pending.n == 0)
        o->pending_since_ns = now_ns;
    str_add_n(&o->pending, bytes, n);
    if (o->pending.n >= EVENT_BYTES)
        run_output_flush(o, now_ns, false);
}

static void read_some(struct run_output *o, int64_t now_ns, size_t most)
{
    char buf[READ_BYTES];
    while (o->pipe >= 0 && most > 0) {
        ssize_t n = read(o->pipe, buf, sizeof buf);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            o->pipe = -1;
            return;
        }
        take(o, buf, (size_t)n, now_ns);
        most -= (size_t)n < most ? (size_t)n : most;
    }
}

void run_output_read(struct run_output *o, int64_t now_ns)
{
    read_some(o, now_ns, (size_t)4 * READ_BYTES);
}

/* The line about what is missing, then the last bytes. */
static void log_end(struct run_output *o)
{
    char note[128];
    size_t first = o->ring_n < o->ring_cap ? 0 : o->ring_at;
    if (o->dropped > 0) {
        int n =
            snprintf(note, sizeof note, "\n[%" PRId64 " bytes are left out here]\n", o->dropped);
        log_write(o, note, (size_t)n);
    }
    if (o->ring_n > 0) {
        size_t part = o->ring_n < o->ring_cap - first ? o->ring_n : o->ring_cap - first;
        log_write(o, o->ring + first, part);
        log_write(o, o->ring, o->ring_n - part);
    }
}

void run_output_close(struct run_output *o, int64_t now_ns)
{
    read_some(o, now_ns, (size_t)64 << 20);
    run_output_flush(o, now_ns, true);
    if (o->events && o->left_out > 0) {
        char note[96];
        (void)snprintf(note, sizeof note, "[%" PRId64 " bytes are left out here]\n", o->left_out);
        event_send(o, note);
    }
    log_end(o);
    if (o->log >= 0)
        (void)close(o->log);
    o->log = -1;
    mem_free(o->ring);
    o->ring = NULL;
    str_release(&o->pending);
}
