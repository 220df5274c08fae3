/* summary.c - rows of a memory summary. */
#include "doctor/summary.h"

#include "base/str.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static const struct summary_row row_unknown = {
    {-1, -1, -1}, {-1, -1, -1}, {-1, -1, -1}, {-1, -1, -1}};

static void begin(struct summary_reader *r, int64_t number)
{
    *r = (struct summary_reader){.open = true};
    r->table = (struct summary){.device = -1, .ooms = -1, .retries = -1, .line = number};
#define X(field, title) r->table.field = row_unknown;
    SUMMARY_ROWS(X)
#undef X
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
