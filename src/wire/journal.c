/* journal.c - a run's events on disk (journal.h). */
#include "wire/journal.h"

#include "base/env.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK = 64 << 10 };

static void journal_path(const char *dir, char *out, size_t cap)
{
    (void)snprintf(out, cap, "%s/events.jsonl", dir);
}

/* Reads n bytes at `at`, or fewer at the end; -1 on an error. */
static ssize_t read_at(int fd, char *to, size_t n, int64_t at)
{
    size_t got = 0;
    while (got < n) {
        ssize_t k = pread(fd, to + got, n - got, (off_t)(at + (int64_t)got));
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return -1;
        if (k == 0)
            break;
        got += (size_t)k;
    }
    return (ssize_t)got;
}

/* Offset behind the last line feed before `end`; 0 when there is none. -1 on an error. */
static int64_t line_start(int fd, int64_t end)
{
    char *buf = mem_alloc(CHUNK);
    int64_t found = 0;
    while (end > 0 && found == 0) {
        int64_t from = end > CHUNK ? end - CHUNK : 0;
        ssize_t n = read_at(fd, buf, (size_t)(end - from), from);
        if (n != (ssize_t)(end - from)) {
            found = -1;
            break;
        }
        for (ssize_t i = n - 1; i >= 0 && found == 0; i--)
            if (buf[i] == '\n')
                found = from + i + 1;
        end = from;
    }
    mem_free(buf);
    return found;
}

/* A line as an event that borrows from *doc; false: it is none. */
static bool event_parse(const char *line, size_t n, json_t **doc, struct run_event *out)
{
    struct err ignored;
    enum event_type type;
    *doc = NULL;
    if (json_parse(line, n, "event", doc, &ignored) != ST_OK)
        return false;
    if (json_is_object(*doc) && wire_read(&wire_run_event, *doc, out, &ignored) == ST_OK &&
        out->sequence > 0 && event_find(out->type, &type))
        return true;
    json_decref(*doc);
    *doc = NULL;
    return false;
}

/* What the line [from, end) says about where to go on; false: it is no event. */
static bool learn(struct journal *j, int64_t from, int64_t end, bool *newer)
{
    struct run_event ev;
    enum event_type type;
    json_t *doc = NULL;
    size_t n = (size_t)(end - from);
    char *line = n <= JOURNAL_LINE_MAX ? mem_try_alloc(n + 1) : NULL;
    bool good =
        line && read_at(j->fd, line, n, from) == (ssize_t)n && event_parse(line, n, &doc, &ev);
    if (good && ev.epoch == j->epoch) {
        j->sequence = ev.sequence;
        j->started = true;
        j->ended = event_find(ev.type, &type) && type == EVENT_ENDED;
    }
    *newer = good && ev.epoch > j->epoch;
    json_decref(doc);
    mem_free(line);
    return good;
}

/* Cuts what is not a whole event off the end, and learns from the last that is. */
static enum status find_end(struct journal *j, const char *path, struct err *e)
{
    struct stat st;
    bool newer = false;
    if (fstat(j->fd, &st) != 0)
        return err_errno(e, "cannot read \"%s\"", path);
    int64_t whole = line_start(j->fd, (int64_t)st.st_size), end = whole;
    while (end > 0) {
        int64_t from = line_start(j->fd, end - 1);
        if (from < 0 || learn(j, from, end - 1, &newer))
            break;
        end = from; /* zeros after a loss of power, or what nobody of us wrote */
    }
    if (end < 0 || whole < 0)
        return err_errno(e, "cannot read \"%s\"", path);
    if (newer)
        return err_set(e, ST_CONFLICT, "\"%s\" has events of a later attempt", path);
    if (end < (int64_t)st.st_size && ftruncate(j->fd, (off_t)end) != 0)
        return err_errno(e, "cannot cut a torn line off \"%s\"", path);
    return ST_OK;
}

enum status journal_open(struct journal *j, const char *dir, int64_t epoch, struct err *e)
{
    char path[1100];
    *j = (struct journal){.fd = -1, .epoch = epoch};
    journal_path(dir, path, sizeof path);
    j->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (j->fd < 0)
        return err_errno(e, "cannot open \"%s\"", path);
    enum status st = find_end(j, path, e);
    if (st != ST_OK)
        journal_close(j);
    return st;
}

void journal_close(struct journal *j)
{
    if (j->fd >= 0)
        (void)close(j->fd);
    j->fd = -1;
}

/* All bytes, or none: what went before the failure is cut off again. */
static enum status append_whole(int fd, const char *line, size_t n, struct err *e)
{
    off_t before = lseek(fd, 0, SEEK_END);
    size_t done = 0;
    while (done < n) {
        ssize_t k = write(fd, line + done, n - done);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0) {
            enum status st = err_errno(e, "could not write the journal of the run");
            if (before >= 0 && done > 0)
                (void)!ftruncate(fd, before);
            return st;
        }
        done += (size_t)k;
    }
    return ST_OK;
}

enum status journal_append(struct journal *j, enum event_type type, json_t *payload, struct err *e)
{
    json_t *line = json_object();
    struct str text;
    ASSERT(!j->ended);
    json_put_i64(line, "epoch", j->epoch);
    json_put_i64(line, "sequence", j->sequence + 1);
    json_put_str(line, "type", event_name(type));
    json_put(line, "payload", payload ? payload : json_object());
    json_put_i64(line, "time_us", clock_wall_us());
    char *written = json_text(line, false);
    json_decref(line);
    str_init(&text);
    str_add(&text, written);
    if (text.n == 0 || text.data[text.n - 1] != '\n')
        str_add(&text, "\n");
    mem_free(written);
    enum status st = text.n > JOURNAL_LINE_MAX
                         ? err_set(e, ST_TOO_LARGE, "an event of %zu bytes is too large", text.n)
                         : append_whole(j->fd, text.data, text.n, e);
    str_release(&text);
    if (st == ST_OK) {
        j->sequence++;
        j->started = true;
        j->ended = type == EVENT_ENDED;
    }
    return st;
}

/* ---- reading along ---- */

enum status journal_read_open(struct journal_reader *r, const char *dir, struct err *e)
{
    char path[1100];
    *r = (struct journal_reader){.fd = -1};
    journal_path(dir, path, sizeof path);
    r->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    return r->fd < 0 ? err_errno(e, "cannot open \"%s\"", path) : ST_OK;
}

void journal_read_close(struct journal_reader *r)
{
    if (r->fd >= 0)
        (void)close(r->fd);
    mem_free(r->buf);
    *r = (struct journal_reader){.fd = -1};
}

void journal_read_seek(struct journal_reader *r, int64_t at)
{
    r->at = at;
    r->n = r->used = 0;
}

/* Reads anew from `at`: a torn line that was there before may have been cut off and written over.
 * False: no whole line. */
static bool fill(struct journal_reader *r)
{
    size_t want = CHUNK;
    for (;;) {
        if (r->cap < want) {
            char *more = mem_try_resize(r->buf, want);
            if (!more)
                return false;
            r->buf = more;
            r->cap = want;
        }
        ssize_t n = read_at(r->fd, r->buf, want, r->at);
        r->used = 0;
        r->n = n > 0 ? (size_t)n : 0;
        if (r->n && memchr(r->buf, '\n', r->n))
            return true;
        if (r->n < want || want > JOURNAL_LINE_MAX)
            return false;
        want *= 4;
    }
}

bool journal_next(struct journal_reader *r, json_t **doc, struct run_event *out, int *bad)
{
    for (;;) {
        char *line = r->buf ? r->buf + r->used : NULL;
        char *end = line && r->used < r->n ? memchr(line, '\n', r->n - r->used) : NULL;
        if (!end) {
            if (!fill(r))
                return false;
            continue;
        }
        size_t n = (size_t)(end - line);
        r->used += n + 1;
        r->at += (int64_t)n + 1;
        if (event_parse(line, n, doc, out))
            return true;
        if (bad)
            (*bad)++;
    }
}
