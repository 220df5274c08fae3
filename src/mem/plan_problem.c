/* plan_problem.c - reads storage problems (CSV) and writes their answers. */
#include "mem/plan_problem.h"

#include "base/env.h"

#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES_MAX = 64 << 20, BUFFERS_MAX = 1000000, ID_MAX = 256, COLUMNS_MAX = 16 };

enum column {
    COLUMN_ID,
    COLUMN_LOWER,
    COLUMN_UPPER,
    COLUMN_SIZE,
    COLUMN_ALIGNMENT,
    COLUMN_OFFSET,
    COLUMN_COUNT
};
static const char *const column_names[] = {"id", "lower", "upper", "size", "alignment", "offset"};

struct field {
    const char *text;
    size_t n;
};
struct reader {
    const char *name, *at, *end;
    int line;
    int columns_n;
    enum column columns[COLUMNS_MAX];
    struct field fields[COLUMNS_MAX];
    struct mem_problem *out;
    VEC(struct mem_plan_buffer) buffers;
    VEC(const char *) ids;
    VEC(int) lines;
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static struct field trimmed(const char *from, const char *to)
{
    while (from < to && is_blank(*from))
        from++;
    while (to > from && is_blank(to[-1]))
        to--;
    return (struct field){from, (size_t)(to - from)};
}

/* The next line that is not empty, cut at its commas: how many fields, one more than the most when
 * there are more; 0 at the end. */
static int next_line(struct reader *r)
{
    while (r->at < r->end) {
        const char *stop = memchr(r->at, '\n', (size_t)(r->end - r->at));
        const char *from = r->at, *to = stop ? stop : r->end;
        r->at = stop ? stop + 1 : r->end;
        r->line++;
        if (trimmed(from, to).n == 0)
            continue;
        for (int n = 0; n < COLUMNS_MAX; n++) {
            const char *comma = memchr(from, ',', (size_t)(to - from));
            r->fields[n] = trimmed(from, comma ? comma : to);
            if (!comma)
                return n + 1;
            from = comma + 1;
        }
        return COLUMNS_MAX + 1;
    }
    return 0;
}

/* A field in messages: short, and without control characters. */
static const char *shown(struct field f, char buf[48])
{
    size_t n = f.n < 40 ? f.n : 40;
    for (size_t i = 0; i < n; i++)
        buf[i] = (unsigned char)f.text[i] < 0x20 || f.text[i] == 0x7f ? '?' : f.text[i];
    (void)strcpy(buf + n, f.n > n ? "..." : "");
    return buf;
}

static enum status read_header(struct reader *r, struct err *e)
{
    bool has[COLUMN_COUNT] = {false};
    char buf[48];
    int n = next_line(r);
    if (n == 0 || n > COLUMNS_MAX)
        return err_set(
            e, ST_INVALID,
            "\"%s\" is no storage problem: its first line is not id,lower,upper,size", r->name);
    for (int i = 0; i < n; i++) {
        struct field f = r->fields[i];
        int c = 0;
        while (c < COLUMN_COUNT &&
               (strlen(column_names[c]) != f.n || memcmp(column_names[c], f.text, f.n) != 0))
            c++;
        if (c == COLUMN_COUNT || has[c]) {
            enum status st = err_set(
                e, ST_INVALID, "\"%s\" line %d: %s column \"%s\"", r->name, r->line,
                c == COLUMN_COUNT ? "unknown" : "second", shown(f, buf));
            err_hint(e, "the columns are id,lower,upper,size, and alignment and offset if need be");
            return st;
        }
        has[c] = true;
        r->columns[i] = (enum column)c;
    }
    for (int c = COLUMN_ID; c <= COLUMN_SIZE; c++)
        if (!has[c])
            return err_set(
                e, ST_INVALID, "\"%s\" line %d: column \"%s\" is missing", r->name, r->line,
                column_names[c]);
    r->columns_n = n;
    r->out->has_alignment = has[COLUMN_ALIGNMENT];
    return ST_OK;
}

static enum status
read_number(const struct reader *r, int column, int64_t least, int64_t *out, struct err *e)
{
    char text[32], buf[48];
    struct field f = r->fields[column];
    if (f.n > 0 && f.n < sizeof text) {
        memcpy(text, f.text, f.n);
        text[f.n] = 0;
        if (strlen(text) == f.n && str_to_i64(text, out) && *out >= least)
            return ST_OK;
    }
    return err_set(
        e, ST_INVALID, "\"%s\" line %d: \"%s\" is \"%s\", not a whole number from %lld", r->name,
        r->line, column_names[r->columns[column]], shown(f, buf), (long long)least);
}

static enum status read_id(struct reader *r, struct field f, struct err *e)
{
    if (f.n == 0 || f.n > ID_MAX || memchr(f.text, 0, f.n))
        return err_set(
            e, ST_INVALID, "\"%s\" line %d: the id is %s", r->name, r->line,
            f.n == 0       ? "empty"
            : f.n > ID_MAX ? "longer than 256 bytes"
                           : "not text");
    char *id = ARENA_ARRAY(&r->out->arena, char, f.n + 1);
    memcpy(id, f.text, f.n);
    vec_push(&r->ids, id);
    return ST_OK;
}

static enum status read_buffer(struct reader *r, struct err *e)
{
    struct mem_plan_buffer b = {.alignment = 1};
    int64_t upper = 0;
    for (int i = 0; i < r->columns_n; i++) {
        switch (r->columns[i]) {
        case COLUMN_ID:
            TRY(read_id(r, r->fields[i], e));
            break;
        case COLUMN_LOWER:
            TRY(read_number(r, i, 0, &b.first, e));
            break;
        case COLUMN_UPPER:
            TRY(read_number(r, i, 0, &upper, e));
            break;
        case COLUMN_SIZE:
            TRY(read_number(r, i, 0, &b.size_bytes, e));
            break;
        case COLUMN_ALIGNMENT:
            TRY(read_number(r, i, 1, &b.alignment, e));
            break;
        case COLUMN_OFFSET:
        case COLUMN_COUNT:
            break;
        }
    }
    if (upper <= b.first)
        return err_set(
            e, ST_INVALID, "\"%s\" line %d: upper (%lld) is not above lower (%lld)", r->name,
            r->line, (long long)upper, (long long)b.first);
    if (b.alignment > 1 << 30 || (b.alignment & (b.alignment - 1)))
        return err_set(
            e, ST_INVALID, "\"%s\" line %d: alignment %lld is not a power of two up to 2^30",
            r->name, r->line, (long long)b.alignment);
    b.last = upper - 1;
    vec_push(&r->buffers, b);
    vec_push(&r->lines, r->line);
    return ST_OK;
}

struct named {
    const char *id;
    int line;
};

static int by_name(const void *a, const void *b)
{
    const struct named *x = a, *y = b;
    int order = strcmp(x->id, y->id);
    return order ? order : x->line - y->line;
}

static enum status check_ids(const struct reader *r, struct err *e)
{
    enum status st = ST_OK;
    char buf[48];
    struct named *names = mem_alloc((r->ids.n + 1) * sizeof *names);
    for (size_t i = 0; i < r->ids.n; i++)
        names[i] = (struct named){r->ids.data[i], r->lines.data[i]};
    qsort(names, r->ids.n, sizeof *names, by_name);
    for (size_t i = 1; i < r->ids.n && st == ST_OK; i++)
        if (strcmp(names[i - 1].id, names[i].id) == 0)
            st = err_set(
                e, ST_INVALID, "\"%s\" line %d: id \"%s\" is that of line %d already", r->name,
                names[i].line, shown((struct field){names[i].id, strlen(names[i].id)}, buf),
                names[i - 1].line);
    mem_free(names);
    return st;
}

static enum status read_rows(struct reader *r, struct err *e)
{
    TRY(read_header(r, e));
    for (int n = next_line(r); n; n = next_line(r)) {
        if (n != r->columns_n)
            return err_set(
                e, ST_INVALID, "\"%s\" line %d has %d fields, the header %d", r->name, r->line, n,
                r->columns_n);
        if (r->buffers.n == BUFFERS_MAX)
            return err_set(e, ST_INVALID, "\"%s\" has more than %d buffers", r->name, BUFFERS_MAX);
        TRY(read_buffer(r, e));
    }
    if (r->buffers.n == 0)
        return err_set(e, ST_INVALID, "\"%s\" has a header but no buffers", r->name);
    return check_ids(r, e);
}

enum status mem_problem_parse(
    const char *text, size_t n, const char *name, struct mem_problem *out, struct err *e)
{
    *out = (struct mem_problem){0};
    arena_init(&out->arena);
    struct reader r = {.name = name, .at = text, .end = text + n, .out = out};
    if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        r.at += 3; /* a byte order mark */
    enum status st = read_rows(&r, e);
    if (st == ST_OK) {
        out->n = r.buffers.n;
        out->buffers = ARENA_ARRAY(&out->arena, struct mem_plan_buffer, out->n);
        out->ids = ARENA_ARRAY(&out->arena, const char *, out->n);
        memcpy(out->buffers, r.buffers.data, out->n * sizeof *out->buffers);
        memcpy(out->ids, r.ids.data, out->n * sizeof *out->ids);
    }
    vec_release(&r.buffers);
    vec_release(&r.ids);
    vec_release(&r.lines);
    return st;
}

enum status mem_problem_read(const char *path, struct mem_problem *out, struct err *e)
{
    char *text;
    size_t n;
    *out = (struct mem_problem){0};
    TRY(file_read(path, FILE_BYTES_MAX, &text, &n, e));
    enum status st = mem_problem_parse(text, n, path, out, e);
    mem_free(text);
    return st;
}

void mem_problem_release(struct mem_problem *p)
{
    arena_release(&p->arena);
    *p = (struct mem_problem){0};
}

void mem_problem_text(const struct mem_problem *p, const struct mem_plan *plan, struct str *out)
{
    str_printf(out, "id,lower,upper,size,%soffset\n", p->has_alignment ? "alignment," : "");
    for (size_t i = 0; i < p->n; i++) {
        const struct mem_plan_buffer *b = &p->buffers[i];
        str_printf(
            out, "%s,%lld,%lld,%lld,", p->ids[i], (long long)b->first, (long long)b->last + 1,
            (long long)b->size_bytes);
        if (p->has_alignment)
            str_printf(out, "%lld,", (long long)b->alignment);
        str_printf(out, "%lld\n", (long long)plan->offset_bytes[i]);
    }
}
