/* amount.c - sizes from texts. */
#include "doctor/amount.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

const struct amount amount_unknown = {-1, -1, -1};

bool amount_known(struct amount a)
{
    return a.high >= a.low && !(a.bytes == -1 && a.low == -1 && a.high == -1);
}

struct amount amount_exact(int64_t bytes)
{
    return bytes < 0 ? amount_unknown : (struct amount){bytes, bytes, bytes};
}

struct amount amount_add(struct amount a, struct amount b)
{
    if (!amount_known(a) || !amount_known(b))
        return amount_unknown;
    return (struct amount){a.bytes + b.bytes, a.low + b.low, a.high + b.high};
}

struct amount amount_sub(struct amount a, struct amount b)
{
    if (!amount_known(a) || !amount_known(b))
        return amount_unknown;
    struct amount d = {a.bytes - b.bytes, a.low - b.high, a.high - b.low};
    if (d.bytes == -1 && d.low == -1 && d.high == -1) /* not to be taken for unknown */
        d.bytes = d.low = d.high = 0;
    return d;
}

/* ---- reading ---- */

static const struct {
    const char *name;
    double unit, least; /* the least it may mean */
} units[] = {
    {"bytes", 1, 1},
    {"byte", 1, 1},
    {"kib", 1024.0, 1024.0},
    {"mib", 1048576.0, 1048576.0},
    {"gib", 1073741824.0, 1073741824.0},
    {"tib", 1099511627776.0, 1099511627776.0},
    {"kb", 1024.0, 1e3},
    {"mb", 1048576.0, 1e6},
    {"gb", 1073741824.0, 1e9},
    {"tb", 1099511627776.0, 1e12},
    {"k", 1024.0, 1e3},
    {"m", 1048576.0, 1e6},
    {"g", 1073741824.0, 1e9},
    {"t", 1099511627776.0, 1e12},
    {"b", 1, 1}};

/* Length of `name` where `s` begins with it in any case; 0 else; -1 where `s` ends within it. */
static int begins(const char *s, const char *name)
{
    int n = 0;
    while (name[n] && s[n] && tolower((unsigned char)s[n]) == name[n])
        n++;
    return !name[n] ? n : !s[n] && n > 0 ? -1 : 0;
}

/* Which unit `*s` begins with, moved behind it; -1 none, -2 the text ends within one. A single
 * letter counts only where no further letter follows ("g" of "gpu" is none). */
static int unit_at(const char **s)
{
    bool cut = false;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        int n = begins(*s, units[i].name);
        cut = cut || n < 0;
        if (n <= 0 || (n == 1 && isalpha((unsigned char)(*s)[1])))
            continue;
        *s += n;
        return (int)i;
    }
    return cut ? -2 : -1;
}

/* Digits with one point, commas between thousands; `half` is half of the last printed place. */
static bool number_at(const char **s, double *value, double *half)
{
    char digits[48];
    size_t n = 0;
    int places = -1;
    const char *p = *s;
    if (!isdigit((unsigned char)*p))
        return false;
    for (; n + 1 < sizeof digits; p++) {
        if (*p == '.' && places < 0 && isdigit((unsigned char)p[1]))
            places = 0;
        else if (*p == ',' && places < 0 && strspn(p + 1, "0123456789") == 3)
            continue;
        else if (!isdigit((unsigned char)*p))
            break;
        else if (places >= 0)
            places++;
        digits[n++] = *p;
    }
    digits[n] = 0;
    *value = strtod(digits, NULL);
    *half = places > 0 ? 0.5 : 0;
    for (int i = 0; i < places; i++)
        *half /= 10;
    *s = p;
    return true;
}

static struct amount amount_of(double value, double half, double unit, double least)
{
    double bytes = value * unit, low = (value - half) * least, high = (value + half) * unit;
    if (!(bytes < 72057594037927936.0)) /* 2^56 */
        return amount_unknown;
    if (low < 0)
        low = 0;
    return (struct amount){(int64_t)(bytes + 0.5), (int64_t)low, (int64_t)(high + 0.5)};
}

enum amount_end amount_read(const char **s, int64_t bare_unit, struct amount *out)
{
    double value, half;
    const char *p = *s;
    if (!number_at(&p, &value, &half))
        return AMOUNT_NONE;
    const char *after = p;
    while (*p == ' ' || *p == '\t')
        p++;
    bool cut = !*p || (*p == '.' && !p[1]);
    int unit = unit_at(&p);
    if (unit >= 0) {
        bool coarse = units[unit].unit > 1 && half <= 0; /* "12 MiB": a whole number, rounded */
        *out = amount_of(value, coarse ? 0.5 : half, units[unit].unit, units[unit].least);
        *s = p;
        return AMOUNT_WHOLE;
    }
    if (cut || unit == -2) {
        *out = amount_unknown;
        return AMOUNT_SHORT;
    }
    if (!bare_unit)
        return AMOUNT_NONE;
    *out = amount_of(value, half, (double)bare_unit, (double)bare_unit);
    *s = after;
    return AMOUNT_BARE;
}
