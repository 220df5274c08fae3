/* cmd_doctor.c - `snug doctor`: why memory ran out, from what was left behind: an error text, a
 * log, a memory summary, nvidia-smi's output. */
#include "cli/answer.h"
#include "cli/commands.h"

#include "doctor/report.h"
#include "doctor/snapshot.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { CHUNK = 1 << 20 };

/* Reads the text to its end, whatever its size. */
static enum status read_text(FILE *in, const char *name, struct text_reader *r, struct err *e)
{
    char *chunk = mem_alloc(CHUNK);
    size_t n;
    while ((n = fread(chunk, 1, CHUNK, in)) > 0)
        text_reader_feed(r, chunk, n);
    mem_free(chunk);
    if (ferror(in))
        return err_errno(e, "could not read \"%s\"", name);
    return ST_OK;
}

static enum status diagnose(const char *path, json_t **out, struct err *e)
{
    bool standard = strcmp(path, "-") == 0;
    const char *name = standard ? "standard input" : path;
    errno = 0;
    FILE *in = standard ? stdin : fopen(path, "rb");
    if (!in)
        return err_errno(e, "could not open \"%s\"", path);
    struct text_reader *r = text_reader_new();
    enum status st = read_text(in, name, r, e);
    if (st == ST_OK) {
        const struct text_facts *f = text_reader_end(r);
        *out = report_text_document(f);
        if (!*out)
            st = err_set(
                e, ST_NOT_FOUND,
                "\"%s\" has no out-of-memory message, memory summary or output of nvidia-smi (%lld "
                "lines were read)",
                name, (long long)f->lines);
    }
    if (st == ST_NOT_FOUND)
        err_hint(
            e,
            "give the log around the error, torch.cuda.memory_summary(), nvidia-smi's output, or a "
            "memory snapshot");
    text_reader_free(r);
    if (!standard)
        (void)fclose(in);
    return st;
}

int cmd_doctor(const struct args *a)
{
    struct err e = {0};
    json_t *d = NULL;
    int rc = 0;
    enum status st = diagnose(a->argument[0], &d, &e);
    if (st == ST_OK && !a->json) {
        struct str out;
        str_init(&out);
        report_text(d, &out);
        rc = answer_text(out.data);
        str_release(&out);
        json_decref(d);
        d = NULL;
    }
    int end = answer_end(a->json, st, &e, d);
    return end ? end : rc;
}
