/* series.c - labels and their figures in a line of a log, and the trend of what they say. */
#include "doctor/series.h"

#include "doctor/amount.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kind_names[SERIES_KINDS] = {
    "allocated", "reserved", "used", "peak", "free", "loss", "scale", "gradient norm", "speed"};

const char *series_kind_name(enum series_kind k)
{
    return kind_names[k];
}

/* Longer labels first: the first that matches takes its place in the line. */
static const struct {
    enum series_kind kind;
    const char *label;
} labels[] = {
    {SERIES_PEAK, "max_memory_allocated"},
    {SERIES_PEAK, "max memory allocated"},
    {SERIES_PEAK, "max_memory_reserved"},
    {SERIES_PEAK, "max reserved"},
    {SERIES_PEAK, "max allocated"},
    {SERIES_PEAK, "max_allocated"},
    {SERIES_PEAK, "peak allocated"},
    {SERIES_PEAK, "peak memory"},
    {SERIES_PEAK, "peak_memory"},
    {SERIES_PEAK, "peak mem"},
    {SERIES_PEAK, "peak_mem"},
    {SERIES_PEAK, "max memory"},
    {SERIES_PEAK, "max mem"},
    {SERIES_PEAK, "max_mem"},
    {SERIES_PEAK, "max_ma"},
    {SERIES_PEAK, "max_ca"},
    {SERIES_ALLOCATED, "memory_allocated"},
    {SERIES_ALLOCATED, "memory allocated"},
    {SERIES_ALLOCATED, "allocated memory"},
    {SERIES_ALLOCATED, "allocated"},
    {SERIES_ALLOCATED, "alloc"},
    {SERIES_ALLOCATED, "ma"},
    {SERIES_RESERVED, "memory_reserved"},
    {SERIES_RESERVED, "memory reserved"},
    {SERIES_RESERVED, "memory_cached"},
    {SERIES_RESERVED, "memory cached"},
    {SERIES_RESERVED, "reserved"},
    {SERIES_RESERVED, "cached"},
    {SERIES_RESERVED, "ca"},
    {SERIES_FREE, "gb_free"},
    {SERIES_FREE, "free memory"},
    {SERIES_FREE, "memory free"},
    {SERIES_USED, "gpu memory used"},
    {SERIES_USED, "gpu mem used"},
    {SERIES_USED, "mem used"},
    {SERIES_USED, "used mem"},
    {SERIES_USED, "gpumem"},
    {SERIES_USED, "gpu ram"},
    {SERIES_USED, "gpu_ram"},
    {SERIES_USED, "vram usage"},
    {SERIES_USED, "vram used"},
    {SERIES_USED, "gpu memory usage"},
    {SERIES_USED, "memory used"},
    {SERIES_USED, "used memory"},
    {SERIES_USED, "memory usage"},
    {SERIES_USED, "mem usage"},
    {SERIES_USED, "gpu memory"},
    {SERIES_USED, "gpu_memory"},
    {SERIES_USED, "cuda memory"},
    {SERIES_USED, "gpu_mem"},
    {SERIES_USED, "gpu mem"},
    {SERIES_USED, "cuda mem"},
    {SERIES_USED, "vram"},
    {SERIES_USED, "memory"},
    {SERIES_USED, "mem"},
    {SERIES_SCALE, "loss scale to"},
    {SERIES_SCALE, "reducing to"},
    {SERIES_SCALE, "loss scale"},
    {SERIES_SCALE, "loss_scale"},
    {SERIES_SCALE, "grad_scale"},
    {SERIES_SCALE, "scale"},
    {SERIES_NORM, "grad_norm"},
    {SERIES_NORM, "grad norm"},
    {SERIES_NORM, "gnorm"},
    {SERIES_LOSS, "train_loss"},
    {SERIES_LOSS, "loss"}};
enum { LABELS = sizeof labels / sizeof *labels };

static struct series *
series_of(struct series_table *t, const char *source, enum series_kind kind, const char *label)
{
    for (size_t i = 0; i < t->all.n; i++) {
        struct series *s = t->all.data[i];
        if (s->kind == kind && strcmp(s->label, label) == 0 && strcmp(s->source, source) == 0)
            return s;
    }
    if (t->all.n == SERIES_MAX)
        return NULL;
    struct series *s = mem_alloc(sizeof *s);
    s->kind = kind;
    (void)snprintf(s->label, sizeof s->label, "%s", label);
    (void)snprintf(s->source, sizeof s->source, "%s", source);
    s->stride = 1;
    vec_push(&t->all, s);
    return s;
}

void series_release(struct series_table *t)
{
    for (size_t i = 0; i < t->all.n; i++)
        mem_free(t->all.data[i]);
    vec_release(&t->all);
}

static void add(struct series *s, double x, int64_t line)
{
    if (!isfinite(x)) {
        if (!s->not_finite++)
            s->first_bad_line = line;
        return;
    }
    if (s->n == 0) {
        s->first = s->least = s->most = x;
        s->first_line = line;
    }
    s->last = x;
    s->last_line = line;
    s->least = fmin(s->least, x);
    s->most = fmax(s->most, x);
    if (s->n++ % s->stride)
        return;
    if (s->kept == SERIES_POINTS) { /* every other one goes */
        for (int i = 0; i < SERIES_POINTS / 2; i++)
            s->points[i] = s->points[2 * i];
        s->kept = SERIES_POINTS / 2;
        s->stride *= 2;
        if ((s->n - 1) % s->stride)
            return;
    }
    s->points[s->kept++] = x;
}

/* The same for a figure whose unit is known (bytes; 0: none), in the series' unit. False without a
 * series. */
static bool add_in_unit(struct series *s, double x, double unit, int64_t line)
{
    if (!s)
        return false;
    if (unit > 0 && s->unit > 0)
        x = x / unit * s->unit;
    else if (unit > 0)
        s->unit = unit;
    add(s, x, line);
    return true;
}

void series_add(
    struct series_table *t, const char *source, enum series_kind kind, const char *label, double x,
    int64_t line)
{
    struct series *s = series_of(t, source, kind, label);
    if (s)
        add(s, x, line);
}

/* ---- a line ---- */

static bool word_char(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* Behind a label: ":", "=", "is", "(GB)", blanks; a unit in brackets is kept. */
static const char *skip_to_value(const char *p, double *unit)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"gib", 1073741824.0}, {"gb", 1073741824.0}, {"mib", 1048576.0},
                 {"mb", 1048576.0},     {"kib", 1024.0},      {"kb", 1024.0},
                 {"bytes", 1},          {"g", 1073741824.0}};
    for (int i = 0; i < 24 && *p; i++) {
        if (*p == '(' || *p == '[' || *p == '_' || *p == '/') {
            for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
                size_t n = strlen(units[u].name);
                if (strncmp(p + 1, units[u].name, n) == 0 && !isalnum((unsigned char)p[1 + n])) {
                    *unit = units[u].bytes;
                    p += n;
                    break;
                }
            }
            p++;
        } else if (strncmp(p, "is ", 3) == 0 || strncmp(p, "now ", 4) == 0) {
            p += 2;
        } else if (strchr(" \t:=|])\"'>", *p)) {
            p++;
        } else {
            break;
        }
    }
    return p;
}

/* nan, inf, or a plain number. */
static bool plain_number(const char *p, double *x)
{
    bool negative = *p == '-';
    const char *q = p + negative;
    if (strncmp(q, "nan", 3) == 0 && !isalpha((unsigned char)q[3])) {
        *x = (double)NAN;
        return true;
    }
    if (strncmp(q, "inf", 3) == 0 &&
        (!isalpha((unsigned char)q[3]) || strncmp(q, "infinity", 8) == 0)) {
        *x = (double)INFINITY;
        return true;
    }
    if (!isdigit((unsigned char)*q))
        return false;
    char *end;
    *x = strtod(p, &end);
    return !isalpha((unsigned char)*end) || *end == 'x';
}

/* A number without unit: bytes, MiB or GiB, by its size. */
static double guess(double x)
{
    return x >= 3e5 ? 1 : x >= 200 ? 1048576.0 : 1073741824.0;
}

static bool memory_at(const char *p, double unit, struct series *s, double *x)
{
    struct amount a = amount_unknown;
    const char *q = p;
    if (amount_read(&q, 0, &a) == AMOUNT_WHOLE && amount_known(a)) {
        *x = (double)a.bytes;
        return true;
    }
    if (!plain_number(p, x) || !isfinite(*x) || *x < 0)
        return false;
    if (s->unit <= 0)
        s->unit = unit > 0 ? unit : guess(*x);
    *x *= s->unit;
    return true;
}

/* "7.16 GB allocated": where the number before a label begins; NULL. */
static const char *number_before(const char *line, const char *label)
{
    const char *p = label;
    while (p > line && p[-1] == ' ')
        p--;
    while (p > line && isalpha((unsigned char)p[-1]))
        p--;
    while (p > line && p[-1] == ' ')
        p--;
    const char *end = p;
    while (p > line && (isdigit((unsigned char)p[-1]) || p[-1] == '.'))
        p--;
    return p < end && (p == line || !word_char(p[-1])) ? p : NULL;
}

/* One label; where it was found is blanked, so that a shorter one does not match in it. */
static void
label_at(struct series_table *t, const char *source, char *line, char *at, int i, int64_t number)
{
    double unit = 0, x;
    size_t n = strlen(labels[i].label);
    bool memory = labels[i].kind <= SERIES_FREE;
    if ((at > line && word_char(at[-1])) || isalpha((unsigned char)at[n]))
        return;
    const char *value = skip_to_value(at + n, &unit);
    struct series probe = {0};
    bool found = memory ? memory_at(value, unit, &probe, &x) : plain_number(value, &x);
    if (!found && memory) {
        struct amount a = amount_unknown;
        const char *before = number_before(line, at);
        found = before && amount_read(&before, 0, &a) == AMOUNT_WHOLE && amount_known(a);
        x = (double)a.bytes;
    }
    if (!found)
        return;
    if (!add_in_unit(series_of(t, source, labels[i].kind, labels[i].label), x, probe.unit, number))
        return;
    t->points += memory;
    memset(at, '#', n);
}

/* The rows of YOLO's progress: "  1/300  5.21G  0.0453 ...". */
static bool yolo_row(struct series_table *t, const char *source, const char *line, int64_t number)
{
    const char *p = line + strspn(line, " \t");
    size_t a = strspn(p, "0123456789");
    if (!a || p[a] != '/')
        return false;
    size_t b = strspn(p + a + 1, "0123456789");
    const char *q = p + a + 1 + b;
    size_t blank = strspn(q, " \t");
    struct amount m = amount_unknown;
    q += blank;
    if (!b || !blank || amount_read(&q, 0, &m) != AMOUNT_WHOLE || m.bytes < 1 << 20)
        return false;
    series_add(t, source, SERIES_USED, "gpu_mem", (double)m.bytes, number);
    return true;
}

static void speed(struct series_table *t, const char *source, const char *line, int64_t number)
{
    const char *p = strstr(line, "it/s");
    const char *q = p;
    while (q && q > line && (isdigit((unsigned char)q[-1]) || q[-1] == '.'))
        q--;
    if (p && q < p)
        series_add(t, source, SERIES_SPEED, "it/s", strtod(q, NULL), number);
}

/* Kind of a name that a program made up: "mem_alloc", "cuda/peak_gib"; SERIES_KINDS when none. */
static enum series_kind kind_of_name(const char *key)
{
    bool peak = strstr(key, "max") || strstr(key, "peak");
    bool memory =
        strstr(key, "mem") || strstr(key, "vram") || strstr(key, "gpu") || strstr(key, "cuda");
    if (strstr(key, "alloc"))
        return peak ? SERIES_PEAK : SERIES_ALLOCATED;
    if (strstr(key, "reserv") || strstr(key, "cached"))
        return peak ? SERIES_PEAK : SERIES_RESERVED;
    if (memory && strstr(key, "free"))
        return SERIES_FREE;
    if (strstr(key, "mem") || strstr(key, "vram"))
        return peak ? SERIES_PEAK : SERIES_USED;
    return SERIES_KINDS;
}

static double unit_of_name(const char *key)
{
    return strstr(key, "gib") || strstr(key, "gb")   ? 1073741824.0
           : strstr(key, "mib") || strstr(key, "mb") ? 1048576.0
           : strstr(key, "kib") || strstr(key, "kb") ? 1024.0
           : strstr(key, "byte")                     ? 1
                                                     : 0;
}

/* "name=value" and "name: value" with any name that speaks of memory. */
static void pairs(struct series_table *t, const char *source, const char *line, int64_t number)
{
    for (const char *p = line; (p = strpbrk(p, "=:")); p++) {
        const char *from = p, *end = p;
        while (end > line && strchr(" \"'", end[-1]))
            end--;
        from = end;
        while (from > line && (word_char(from[-1]) || strchr("/.-", from[-1])))
            from--;
        char key[24];
        size_t n = (size_t)(end - from);
        if (n < 3 || n >= sizeof key)
            continue;
        memcpy(key, from, n);
        key[n] = 0;
        enum series_kind kind = kind_of_name(key);
        if (kind == SERIES_KINDS)
            continue;
        double x;
        struct series probe = {0};
        if (!memory_at(p + 1 + strspn(p + 1, " \"'"), unit_of_name(key), &probe, &x))
            continue;
        if (!add_in_unit(series_of(t, source, kind, key), x, probe.unit, number))
            return;
        t->points++;
    }
}

/* A line that is a size and nothing else, as loops around nvidia-smi print it. */
static bool lone_size(struct series_table *t, const char *source, const char *line, int64_t number)
{
    struct amount a = amount_unknown;
    const char *p = line + strspn(line, " \t");
    if (amount_read(&p, 0, &a) != AMOUNT_WHOLE || p[strspn(p, " \t")] || a.bytes < 1 << 20)
        return false;
    series_add(t, source, SERIES_USED, "size", (double)a.bytes, number);
    return true;
}

/* A number at the end of a line that can only be bytes of the allocator: all of its blocks are
 * multiples of 512. The text before it, without digits, is the label. */
static void bare(struct series_table *t, const char *source, const char *line, int64_t number)
{
    size_t n = strlen(line), d = n;
    char label[20];
    size_t used = 0;
    while (d && isdigit((unsigned char)line[d - 1]))
        d--;
    if (n - d < 7 || n - d > 13 || (d && (line[d - 1] == '.' || word_char(line[d - 1]))))
        return;
    long long x = strtoll(line + d, NULL, 10);
    if (x % 512 || x < 1 << 20)
        return;
    for (size_t i = 0; i < d && used + 1 < sizeof label; i++)
        if (!isdigit((unsigned char)line[i]))
            label[used++] = line[i];
    while (used && strchr(" :=", label[used - 1]))
        used--;
    label[used] = 0;
    series_add(t, source, SERIES_ALLOCATED, used ? label : "bytes", (double)x, number);
}

/* "after epoch 3: 4.1GB": a size at the end of a line that speaks of steps or the card, and not of
 * files. */
static void
size_at_end(struct series_table *t, const char *source, const char *line, int64_t number)
{
    static const char *const about[] = {"gpu",   "cuda",  "step",   "iter", "epoch",
                                        "batch", "after", "before", "ram"};
    static const char *const files[] = {"load", "file", "data", "disk",  "shard", "cache",
                                        "read", "writ", "/s",   "param", "size"};
    size_t n = strlen(line), used = 0;
    const char *colon = strrchr(line, ':');
    colon = colon ? colon : strrchr(line, '=');
    bool speaks = false;
    char label[20];
    struct amount a = amount_unknown;
    if (!colon || n > 120)
        return;
    for (size_t i = 0; i < sizeof about / sizeof *about; i++)
        speaks = speaks || strstr(line, about[i]);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        speaks = speaks && !strstr(line, files[i]);
    const char *p = colon + 1 + strspn(colon + 1, " \t");
    if (!speaks || amount_read(&p, 0, &a) != AMOUNT_WHOLE || p[strspn(p, " \t.")] ||
        a.bytes < 1 << 20)
        return;
    for (const char *q = line; q < colon && used + 1 < sizeof label; q++)
        if (!isdigit((unsigned char)*q))
            label[used++] = *q;
    label[used] = 0;
    series_add(t, source, SERIES_USED, label, (double)a.bytes, number);
}

bool series_bare(const char *line)
{
    size_t n = strlen(line), blank = strspn(line, " \t");
    if (n >= 7 && isdigit((unsigned char)line[n - 1]) && isdigit((unsigned char)line[n - 7]))
        return true;
    if (n >= 5 && n < 120 && tolower((unsigned char)line[n - 1]) == 'b' && strpbrk(line, ":="))
        return true;
    size_t d = strspn(line + blank, "0123456789.");
    return d && (line[blank + d] == '/' ||
                 (n - d <= 8 && n > d && tolower((unsigned char)line[n - 1]) == 'b'));
}

void series_line(struct series_table *t, const char *source, const char *line, int64_t number)
{
    char low[1024];
    size_t n = 0;
    for (; line[n] && n + 1 < sizeof low; n++)
        low[n] = (char)tolower((unsigned char)line[n]);
    low[n] = 0;
    if (yolo_row(t, source, low, number) || lone_size(t, source, low, number))
        return;
    speed(t, source, low, number);
    size_t before = t->points;
    for (int i = 0; i < LABELS; i++) {
        char *at = strstr(low, labels[i].label);
        if (at)
            label_at(t, source, low, at, i, number);
    }
    if (t->points == before)
        pairs(t, source, low, number);
    if (t->points == before) {
        bare(t, source, low, number);
        size_at_end(t, source, low, number);
    }
}

/* ---- trend ---- */

static double least_of(const double *x, int from, int to)
{
    double least = x[from];
    for (int i = from + 1; i < to; i++)
        least = fmin(least, x[i]);
    return least;
}

/* What counts as more: 5%, and 32 MiB. */
static bool more(double a, double b, double share)
{
    return b > a * (1 + share) && b > a + share * 6.4e8;
}

struct series_trend series_trend_of(const struct series *s)
{
    struct series_trend t = {.points = s->n};
    int n = s->kept;
    const double *x = s->points;
    if (n < 2)
        return t;
    double up = 0, down = 0, sign = s->kind == SERIES_FREE ? -1 : 1;
    int rises = 0;
    for (int i = 1; i < n; i++) {
        double d = sign * (x[i] - x[i - 1]);
        rises += d > 0;
        up += d > 0 ? d : 0;
        down += d < 0 ? -d : 0;
    }
    t.total = sign * (x[n - 1] - x[0]);
    double late = sign * (x[n - 1] - x[n / 2]);
    t.per_point = late / (n - 1 - n / 2 + (n == 2)) / (double)s->stride;
    double base = sign > 0 ? x[0] : 0;
    bool steady = n >= 3 && 2 * rises >= n - 1 && down <= 0.2 * up &&
                  more(base, base + t.total, 0.05) && late >= 0.15 * t.total;
    /* It swings within a step, but its lower edge goes up. */
    bool edge = false;
    if (!steady && n >= 9 && sign > 0) {
        double a = least_of(x, 0, n / 3), b = least_of(x, n / 3, 2 * n / 3),
               c = least_of(x, 2 * n / 3, n);
        edge = more(a, b, 0.03) && more(b, c, 0.03);
        if (edge)
            t.total = c - a;
    }
    t.rising = steady || edge;
    return t;
}
