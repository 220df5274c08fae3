/* str.c - growing strings, numbers out of strings, byte counts as text. */
#include "base/str.h"

#include "base/mem.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void reserve(struct str *s, size_t more)
{
    if (s->n + more + 1 <= s->cap)
        return;
    size_t cap = s->cap < 32 ? 64 : 2 * s->cap;
    while (cap < s->n + more + 1)
        cap *= 2;
    if (s->cap) {
        s->data = mem_resize(s->data, cap);
    } else {
        s->data = mem_alloc(cap);
    }
    s->cap = cap;
}

static char empty[1];

void str_init(struct str *s)
{
    *s = (struct str){.data = empty};
}

void str_release(struct str *s)
{
    if (s->cap)
        mem_free(s->data);
    str_init(s);
}

void str_clear(struct str *s)
{
    s->n = 0;
    if (s->cap)
        s->data[0] = 0;
}

void str_add_n(struct str *s, const char *text, size_t n)
{
    reserve(s, n);
    memcpy(s->data + s->n, text, n);
    s->n += n;
    s->data[s->n] = 0;
}

void str_add(struct str *s, const char *text)
{
    str_add_n(s, text, strlen(text));
}

void str_printf(struct str *s, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n > 0) {
        reserve(s, (size_t)n);
        (void)vsnprintf(s->data + s->n, (size_t)n + 1, fmt, again);
        s->n += (size_t)n;
    }
    va_end(again);
}

char *str_take(struct str *s)
{
    char *p = s->cap ? s->data : mem_strdup("");
    str_init(s);
    return p;
}

bool str_eq(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

bool str_starts(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

bool str_ends(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && strcmp(s + n - m, suffix) == 0;
}

/* Levenshtein distance, without case; words longer than 63 are never near. */
static size_t distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b), row[64];
    if (n > 63 || m > 63)
        return 64;
    for (size_t j = 0; j <= m; j++)
        row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t up = row[j];
            bool same = tolower((unsigned char)a[i - 1]) == tolower((unsigned char)b[j - 1]);
            size_t best = diagonal + (same ? 0 : 1);
            if (up + 1 < best)
                best = up + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
            diagonal = up;
        }
    }
    return row[m];
}

const char *str_nearest(const char *word, const char *const *names, size_t n)
{
    const char *best = NULL;
    size_t best_distance = 1 + strlen(word) / 3;
    for (size_t i = 0; i < n; i++) {
        size_t d = distance(word, names[i]);
        if (d <= best_distance && (!best || d < best_distance)) {
            best = names[i];
            best_distance = d;
        }
    }
    return best;
}

void str_copy_trimmed(char *out, size_t cap, const char *from, size_t n)
{
    while (n && isspace((unsigned char)from[n - 1]))
        n--;
    while (n && isspace((unsigned char)*from))
        from++, n--;
    if (n >= cap)
        n = cap - 1;
    memcpy(out, from, n);
    out[n] = 0;
}

int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool str_to_i64(const char *s, int64_t *out)
{
    if (!s ||
        !(isdigit((unsigned char)*s) || ((*s == '-' || *s == '+') && isdigit((unsigned char)s[1]))))
        return false;
    char *end;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (errno || *end)
        return false;
    *out = v;
    return true;
}

bool str_to_f64(const char *s, double *out)
{
    if (!s || !*s || isspace((unsigned char)*s) || strpbrk(s, "xXpP"))
        return false;
    char *end;
    double v = strtod(s, &end);
    if (*end || end == s)
        return false;
    *out = v;
    return true;
}

bool str_to_bytes(const char *s, int64_t *out)
{
    static const struct {
        const char *name;
        double factor;
    } units[] = {{"", 1},         {"B", 1},    {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
                 {"TiB", 0x1p40}, {"KB", 1e3}, {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12}};
    if (!s || !isdigit((unsigned char)*s))
        return false;
    char *end;
    double v = strtod(s, &end);
    if (s[0] == '0' && (s[1] == 'x' || s[1] == 'X'))
        return false;
    while (*end == ' ')
        end++;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(end, units[i].name) != 0)
            continue;
        v *= units[i].factor;
        if (!(v >= 0 && v < 0x1p62))
            return false;
        *out = (int64_t)v;
        return true;
    }
    return false;
}

const char *bytes_text(int64_t bytes, char *buf, size_t cap)
{
    double v = (double)bytes;
    if (bytes < 1024)
        (void)snprintf(buf, cap, "%lld B", (long long)bytes);
    else if (v < 0x1p20)
        (void)snprintf(buf, cap, "%.1f KiB", v / 0x1p10);
    else if (v < 0x1p30)
        (void)snprintf(buf, cap, "%.1f MiB", v / 0x1p20);
    else
        (void)snprintf(buf, cap, "%.2f GiB", v / 0x1p30);
    return buf;
}
