/* doctor.c - from a file to a diagnosis. */
#include "doctor/doctor.h"

#include "doctor/report.h"
#include "doctor/snapshot_report.h"
#include "doctor/symptoms.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { CHUNK = 1 << 20, LOOK = 1024 };

/* ---- an input, of which the first bytes have been seen ---- */

struct input {
    FILE *in; /* NULL: from memory */
    const char *what;
    const char *data; /* first bytes, or all */
    size_t n;
};

/* Hands everything to both readers of text. */
static enum status
read_text(struct input *in, struct text_reader *t, struct runs_reader *r, struct err *e)
{
    char *chunk = mem_alloc(CHUNK);
    text_reader_feed(t, in->data, in->n);
    runs_reader_feed(r, in->data, in->n);
    size_t n;
    while (in->in && (n = fread(chunk, 1, CHUNK, in->in)) > 0) {
        text_reader_feed(t, chunk, n);
        runs_reader_feed(r, chunk, n);
    }
    mem_free(chunk);
    if (in->in && ferror(in->in))
        return err_errno(e, "could not read \"%s\"", in->what);
    return ST_OK;
}

static enum status of_text(struct input *in, json_t **out, struct err *e)
{
    struct text_reader *t = text_reader_new();
    struct runs_reader *r = runs_reader_new();
    enum status st = read_text(in, t, r, e);
    if (st == ST_OK) {
        const struct text_facts *f = text_reader_end(t);
        *out = report_text_document(f, r);
        if (!*out) {
            st = err_set(
                e, ST_NOT_FOUND,
                "\"%s\" has no out-of-memory message, memory summary, output of nvidia-smi or "
                "rising "
                "figure of memory (%lld lines were read)",
                in->what, (long long)f->lines);
            err_hint(
                e,
                "give the log around the error, torch.cuda.memory_summary(), nvidia-smi's output, "
                "or a memory snapshot");
        }
    }
    runs_reader_free(r);
    text_reader_free(t);
    return st;
}

static enum status
of_snapshot(const struct snapshot *s, const struct doctor_options *o, json_t **out, struct err *e)
{
    enum status st = ST_OK;
    struct study x;
    study_init(&x, s, &(struct study_options){.capacity_bytes = o->capacity_bytes});
    *out = snapshot_report_document(&x);
    if (o->on_study)
        st = o->on_study(o->ctx, &x, *out, e);
    study_release(&x);
    if (st != ST_OK) {
        json_decref(*out);
        *out = NULL;
    }
    return st;
}

/* A pipe cannot be read twice: the whole of it, up to what the host can hold. */
static enum status rest_of(struct input *in, struct str *all, struct err *e)
{
    char *chunk = mem_alloc(CHUNK);
    size_t n;
    str_add_n(all, in->data, in->n);
    while (in->in && (n = fread(chunk, 1, CHUNK, in->in)) > 0)
        str_add_n(all, chunk, n);
    mem_free(chunk);
    if (in->in && ferror(in->in))
        return err_errno(e, "could not read \"%s\"", in->what);
    return ST_OK;
}

static enum status snapshot_of(
    struct input *in, const char *path, struct str *all, struct snapshot **out, struct err *e)
{
    if (path)
        return snapshot_read_file(path, NULL, out, e);
    TRY(rest_of(in, all, e));
    in->in = NULL; /* from here on it is in memory */
    in->data = all->data;
    in->n = all->n;
    return snapshot_read_bytes(all->data, all->n, in->what, NULL, out, e);
}

static enum status refuse_compressed(const struct input *in, struct err *e)
{
    static const unsigned char gzip[] = {0x1f, 0x8b};
    if (in->n < 2 || (memcmp(in->data, gzip, 2) != 0 && memcmp(in->data, "PK", 2) != 0))
        return ST_OK;
    (void)err_set(e, ST_UNSUPPORTED, "\"%s\" is compressed", in->what);
    err_hint(e, "unpack it, or: zcat FILE | snug doctor -");
    return ST_UNSUPPORTED;
}

static enum status diagnose(
    struct input *in, const char *path, const struct doctor_options *o, json_t **out, struct err *e)
{
    struct snapshot *s = NULL;
    struct str all;
    TRY(refuse_compressed(in, e));
    if (!snapshot_looks_like(in->data, in->n))
        return of_text(in, out, e);
    str_init(&all);
    bool page = in->data[strspn(in->data, " \t\r\n")] == '<';
    enum status st = snapshot_of(in, path, &all, &s, e);
    if (st == ST_OK)
        st = of_snapshot(s, o, out, e);
    else if (page && st != ST_IO && st != ST_OOM) /* a page that copies a text */
        st = of_text(in, out, e);
    snapshot_free(s);
    str_release(&all);
    return st;
}

enum status
doctor_diagnose(const char *path, const struct doctor_options *options, json_t **out, struct err *e)
{
    const struct doctor_options none = {0};
    bool standard = strcmp(path, "-") == 0;
    char look[LOOK + 1] = {0};
    errno = 0;
    struct input in = {
        .in = standard ? stdin : fopen(path, "rb"),
        .what = standard ? "standard input" : path,
        .data = look};
    if (!in.in)
        return err_errno(e, "could not open \"%s\"", path);
    in.n = fread(look, 1, LOOK, in.in);
    enum status st = ferror(in.in)
                         ? err_errno(e, "could not read \"%s\"", in.what)
                         : diagnose(&in, standard ? NULL : path, options ? options : &none, out, e);
    if (!standard)
        (void)fclose(in.in);
    return st;
}

enum status doctor_diagnose_bytes(
    const void *data, size_t size_bytes, const char *what, json_t **out, struct err *e)
{
    struct input in = {.what = what, .data = data, .n = size_bytes};
    return diagnose(&in, NULL, &(struct doctor_options){0}, out, e);
}
