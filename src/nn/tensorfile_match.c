/* tensorfile_match.c - compares the tensors of a file with what a model wants. */
#include "base/mem.h"
#include "nn/tensorfile.h"

#include <string.h>

enum { NAMES_SHOWN = 6 };

void tensorfile_match_release(struct tensorfile_match *m)
{
    mem_free(m->missing);
    mem_free(m->unexpected);
    mem_free(m->mismatched);
    *m = (struct tensorfile_match){0};
}

static void text_names(struct str *out, const char *what, const char *const *names, size_t n)
{
    if (n == 0)
        return;
    str_printf(out, "%s%s: ", out->n > 0 ? "; " : "", what);
    for (size_t i = 0; i < n && i < NAMES_SHOWN; i++)
        str_printf(out, "%s%s", i > 0 ? ", " : "", names[i]);
    if (n > NAMES_SHOWN)
        str_printf(out, " and %zu more", n - NAMES_SHOWN);
}

void tensorfile_match_text(const struct tensorfile_match *m, struct str *out)
{
    text_names(out, "missing", m->missing, m->n_missing);
    text_names(out, "unexpected", m->unexpected, m->n_unexpected);
    text_names(out, "of another shape", m->mismatched, m->n_mismatched);
}

/* Marks the wanted names of the file; counts and lists the rest. */
static void compare(
    const struct tensorfile *f, const struct tensor_want *want, size_t n,
    struct tensorfile_match *m)
{
    size_t in_file;
    const struct tensorfile_entry *list = tensorfile_list(f, &in_file);
    bool *wanted = mem_alloc(in_file + 1);
    m->missing = mem_alloc(n * sizeof *m->missing);
    m->mismatched = mem_alloc(n * sizeof *m->mismatched);
    m->unexpected = mem_alloc(in_file * sizeof *m->unexpected);
    for (size_t i = 0; i < n; i++) {
        const struct tensorfile_entry *x = tensorfile_find(f, want[i].name);
        if (x)
            wanted[x - list] = true;
        if (!x)
            m->missing[m->n_missing++] = want[i].name;
        else if (!shape_eq(&x->shape, &want[i].shape))
            m->mismatched[m->n_mismatched++] = want[i].name;
        else
            m->n_matched++;
    }
    for (size_t i = 0; i < in_file; i++) {
        if (!wanted[i])
            m->unexpected[m->n_unexpected++] = list[i].name;
    }
    mem_free(wanted);
}

/* The shapes of the first mismatch, and a prefix that would explain missing names. */
static void explain(
    const struct tensorfile *f, const struct tensor_want *want, size_t n,
    const struct tensorfile_match *m, struct err *e)
{
    char ours[128], theirs[128];
    for (size_t i = 0; i < n && m->n_mismatched > 0; i++) {
        if (!str_eq(want[i].name, m->mismatched[0]))
            continue;
        const struct tensorfile_entry *x = tensorfile_find(f, want[i].name);
        err_hint(
            e, "\"%s\" is %s in the file and %s in the model.", want[i].name,
            shape_text(&x->shape, theirs, sizeof theirs),
            shape_text(&want[i].shape, ours, sizeof ours));
    }
    for (size_t i = 0; i < m->n_missing; i++) {
        for (size_t k = 0; k < m->n_unexpected; k++) {
            const char *name = m->missing[i], *other = m->unexpected[k];
            size_t a = strlen(name), b = strlen(other);
            const char *longer = a > b ? name : other, *shorter = a > b ? other : name;
            size_t cut = a > b ? a - b : b - a;
            if (cut == 0 || longer[cut - 1] != '.' || !str_eq(longer + cut, shorter))
                continue;
            err_hint(
                e, "Names in the %s begin with \"%.*s\"; rename them in the file.",
                a > b ? "model" : "file", (int)cut, longer);
            return;
        }
        if (i == 16) /* enough to find a common prefix */
            return;
    }
}

enum status tensorfile_match(
    const struct tensorfile *f, const struct tensor_want *want, size_t n, bool strict,
    struct tensorfile_match *m, struct err *e)
{
    *m = (struct tensorfile_match){0};
    compare(f, want, n, m);
    bool nothing = n > 0 && m->n_matched == 0;
    bool differs = m->n_missing + m->n_unexpected + m->n_mismatched > 0;
    if (!nothing && !(strict && differs))
        return ST_OK;
    struct str text;
    str_init(&text);
    tensorfile_match_text(m, &text);
    err_set(
        e, ST_INVALID, "\"%s\": %zu of %zu tensors of the model matched (%s)", tensorfile_path(f),
        m->n_matched, n, text.data);
    explain(f, want, n, m, e);
    str_release(&text);
    return ST_INVALID;
}
