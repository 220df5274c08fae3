/* snapshot_read.c - opens a snapshot, sees what it is, and reads it. */
#include "doctor/snapshot_int.h"

#include "base/env.h"
#include "base/str.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

enum { LOOK_BYTES = 1024 };

/* The first byte that is no blank and no byte order mark. */
static const uint8_t *first_sign(const uint8_t *p, size_t n)
{
    if (n >= 3 && memcmp(p, "\xef\xbb\xbf", 3) == 0)
        p += 3, n -= 3;
    while (n > 0 && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t'))
        p++, n--;
    return n > 0 ? p : NULL;
}

static bool form_of(const uint8_t *p, size_t n, enum snap_form *form)
{
    const uint8_t *sign = first_sign(p, n);
    if (n >= 2 && p[0] == 0x80 && p[1] <= 9) {
        *form = SNAP_PICKLE;
        return true;
    }
    if (!sign)
        return false;
    *form = *sign == '<' ? SNAP_PAGE : SNAP_JSON;
    return *sign == '<' || *sign == '{' || *sign == '[';
}

bool snapshot_looks_like(const void *data, size_t size_bytes)
{
    enum snap_form form;
    if (!form_of(data, size_bytes, &form))
        return false;
    if (form == SNAP_PICKLE)
        return true;
    /* JSON and pages of other kinds begin so too: a word of ours must be near. */
    static const char *const words[] = {"\"segments\"",   "\"snug\"",  "device_traces",
                                        "\"total_size\"", "<!DOCTYPE", "<html",
                                        "<body",          "<script"};
    const char *p = data;
    for (size_t w = 0; w < sizeof words / sizeof *words; w++) {
        size_t n = strlen(words[w]);
        for (size_t i = 0; i + n <= size_bytes; i++)
            if (memcmp(p + i, words[w], n) == 0)
                return true;
    }
    return false;
}

/* Zero bytes pad the pickles of pages. */
static void look_behind(struct snap_build *b, struct snapshot *s)
{
    int64_t more = 0;
    bool zero = true;
    while (snap_input_has(&b->in, 1)) {
        size_t n = (size_t)(b->in.end - b->in.at);
        for (size_t i = 0; i < n && zero; i++)
            zero = b->in.at[i] == 0;
        more += (int64_t)n;
        b->in.at = b->in.end;
    }
    if (!zero)
        snap_warn(s, "%lld bytes after the end of the pickle were not read", (long long)more);
}

static enum status read_form(struct snap_build *b, struct snapshot *s)
{
    struct snap_input *in = &b->in;
    (void)snap_input_need(in, LOOK_BYTES);
    if (in->at == in->end)
        return snap_fail(b, ST_CORRUPT, "it is empty");
    if (!form_of(in->at, (size_t)(in->end - in->at), &s->form)) {
        (void)snap_fail(b, ST_CORRUPT, "this is no memory snapshot: no pickle, JSON or page");
        err_hint(
            b->e, "A snapshot is what torch.cuda.memory._dump_snapshot(\"FILE\") or "
                  "`snug run --memory-history FILE` writes.");
        return ST_CORRUPT;
    }
    if (s->form == SNAP_PAGE && !snap_input_page(in))
        return snap_fail(b, ST_CORRUPT, "this page holds no memory snapshot");
    if (s->form == SNAP_JSON) {
        in->at = first_sign(in->at, (size_t)(in->end - in->at));
        return snap_read_json(b);
    }
    return snap_read_pickle(b, &s->protocol);
}

static enum status read_all(struct snap_build *b, struct snapshot **out, struct err *e)
{
    struct snapshot *s = mem_alloc(sizeof *s);
    enum status st;
    arena_init(&s->arena);
    TRY_OUT(snap_build_init(b, e));
    st = read_form(b, s);
    if (b->in.failed) {
        errno = EIO;
        st = err_errno(e, "could not read \"%s\"", b->what);
    }
    TRY_OUT(st);
    vec_release(&b->memo);
    TRY_OUT(snap_finish(b, s));
    if (s->form != SNAP_JSON)
        look_behind(b, s);
    s->file_bytes = b->in.window && b->in.in ? b->in.raw_bytes : b->in.total_bytes;
    snap_check(s);
    *out = s;
    s = NULL;
out:
    snapshot_free(s);
    snap_build_release(b);
    return st;
}

enum status snapshot_read_bytes(
    const void *data, size_t size_bytes, const char *what, const struct snapshot_options *o,
    struct snapshot **out, struct err *e)
{
    struct snap_build b = {.what = what};
    b.in = (struct snap_input){
        .at = data,
        .end = (const uint8_t *)data + size_bytes,
        .ended = true,
        .total_bytes = (int64_t)size_bytes,
        .options = o};
    return read_all(&b, out, e);
}

static enum status open_input(struct snap_input *in, const char *path, struct err *e)
{
    struct stat info;
    bool is_stdin = str_eq(path, "-");
    in->in = is_stdin ? stdin : fopen(path, "rb");
    if (!in->in)
        return err_errno(e, "cannot open \"%s\"", path);
    if (fstat(fileno(in->in), &info) == 0) {
        if (S_ISDIR(info.st_mode)) {
            if (!is_stdin)
                (void)fclose(in->in);
            return err_set(e, ST_INVALID, "\"%s\" is a folder, not a file", path);
        }
        in->total_bytes = S_ISREG(info.st_mode) ? info.st_size : 0;
    }
    in->window = mem_alloc(SNAP_WINDOW);
    in->cap = SNAP_WINDOW;
    in->at = in->end = in->window;
    return ST_OK;
}

enum status snapshot_read_file(
    const char *path, const struct snapshot_options *o, struct snapshot **out, struct err *e)
{
    struct snap_build b = {.what = str_eq(path, "-") ? "standard input" : path};
    b.in.options = o;
    TRY(open_input(&b.in, path, e));
    FILE *in = b.in.in;
    enum status st = read_all(&b, out, e);
    if (in != stdin)
        (void)fclose(in);
    return st;
}
