/* summary.c - rows of a memory summary. */
#include "doctor/summary.h"

#include "base/str.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static const struct summary_row row_unknown = {
    {-1, -1, -1}, {-1, -1, -1}, {-1, -1, -1}, {-1, -1, -1}};

void summary_unknown(struct summary *t, int64_t line)
{
    *t = (struct summary){.device = -1, .ooms = -1, .retries = -1, .line = line};
#define X(field, title) t->field = row_unknown;
    SUMMARY_ROWS(X)
#undef X
}

static void begin(struct summary_reader *r, int64_t number)
{
    *r = (struct summary_reader){.open = true};
    summary_unknown(&r->table, number);
}

/* The number behind a key, over quotes, commas, colons and tabs. */
static bool value_of(const char *line, const char *key, int64_t *out)
{
    const char *at = strstr(line, key);
    if (!at)
        return false;
    at += strlen(key);
    at += strspn(at, " \t:,='\")");
    if (!isdigit((unsigned char)*at))
        return false;
    *out = strtoll(at, NULL, 10);
    return *out >= 0 && *out < (int64_t)1 << 56;
}

bool summary_stats_line(struct summary *t, const char *line)
{
    const struct {
        const char *key;
        struct amount *to;
    } rows[] = {
        {"allocated_bytes.all.current", &t->allocated.current},
        {"allocated_bytes.all.peak", &t->allocated.peak},
        {"reserved_bytes.all.current", &t->reserved.current},
        {"reserved_bytes.all.peak", &t->reserved.peak},
        {"active_bytes.all.current", &t->active.current},
        {"inactive_split_bytes.all.current", &t->inactive_split.current}};
    int64_t x;
    int before = t->rows;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (value_of(line, rows[i].key, &x)) {
            *rows[i].to = amount_exact(x);
            t->rows++;
        }
    if (value_of(line, "num_ooms", &x))
        t->ooms = x;
    if (value_of(line, "num_alloc_retries", &x))
        t->retries = x;
    return t->rows > before;
}

/* "  4.6 GiB": integers in all versions; K and M of counts are thousands. */
static struct amount cell(const char *s, bool count, bool *old)
{
    struct amount a = amount_unknown;
    while (*s == ' ' || *s == '\t')
        s++;
    const char *digits = s + strspn(s, "0123456789., ");
    if (count) {
        double v = strtod(s, NULL), unit = *digits == 'K' ? 1e3 : *digits == 'M' ? 1e6 : 1;
        double low = v * unit, high = unit > 1 ? (v + 1) * unit - 1 : low;
        if (isdigit((unsigned char)*s) && high < 9e17)
            a = (struct amount){(int64_t)low, (int64_t)low, (int64_t)high};
        return a;
    }
    if (strncmp(digits, "KB", 2) == 0 || strncmp(digits, "MB", 2) == 0 ||
        strncmp(digits, "GB", 2) == 0)
        *old = true;
    int64_t unit = *digits == 'K' ? 1024 : *digits == 'M' ? 1 << 20 : *digits == 'G' ? 1 << 30 : 1;
    double v = strtod(s, NULL);
    if (!isdigit((unsigned char)*s) || v >= 1e9)
        return a;
    a.low = (int64_t)(v * (double)unit);
    a.high = unit > 1 ? a.low + unit - 1 : a.low;
    a.bytes = a.low + (a.high - a.low) / 2;
    return a;
}

static struct summary_row *row_of(struct summary *t, const char *title, bool *count)
{
    *count = true;
    if (str_starts(title, "GPU reserved memory") || str_starts(title, "Allocated memory") ||
        str_starts(title, "Active memory") || str_starts(title, "Requested memory") ||
        str_starts(title, "Non-releasable memory"))
        *count = false;
#define X(field, name)                                                                             \
    if (str_starts(title, name))                                                                   \
        return &t->field;
    SUMMARY_ROWS(X)
#undef X
    return NULL;
}

static void read_row(struct summary *t, const char *s)
{
    bool count;
    struct summary_row *row = row_of(t, s, &count);
    struct amount *cells[4];
    if (!row || amount_known(row->current))
        return;
    cells[0] = &row->current, cells[1] = &row->peak;
    cells[2] = &row->allocated, cells[3] = &row->freed;
    for (int i = 0; i < 4 && (s = strchr(s, '|')); i++)
        *cells[i] = cell(++s, count, &t->old_units);
    t->rows += amount_known(row->current);
}

static int64_t number_after(const char *s, const char *what)
{
    const char *at = strstr(s, what);
    return at ? strtoll(at + strlen(what), NULL, 10) : -1;
}

bool summary_line(struct summary_reader *r, const char *line, int64_t number, bool *done)
{
    const char *s = strchr(line, '|');
    *done = false;
    if (!s) {
        *done = r->open && r->table.rows > 0;
        r->open = false;
        return false;
    }
    s += 1 + strspn(s + 1, " \t");
    const char *title = strstr(s, "memory summary, device ID");
    if (title) {
        *done = r->open && r->table.rows > 0;
        if (*done)
            return true; /* the caller takes the table, then gives the line again */
        begin(r, number);
        r->table.device = (int)number_after(title, "device ID");
        return true;
    }
    if (!r->open && str_starts(s, "Allocated memory"))
        begin(r, number); /* the head was cut off */
    if (!r->open)
        return false;
    if (strstr(s, "OOMs:")) {
        r->table.ooms = number_after(s, "OOMs:");
        r->table.retries = number_after(s, "retries:");
    }
    read_row(&r->table, s);
    return true;
}
